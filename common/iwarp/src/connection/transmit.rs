//! The sending direction: work requests and Read Responses cut into segments, one message after the other.

use std::collections::VecDeque;

use zerocopy::IntoBytes;

use super::receive::InboundRead;
use super::{Connection, FpduSize, Options, State};
use crate::fault::Misuse;
use crate::number::{Msn, Opcode, QueueNumber, Stag};
use crate::segment::{Segment, Source};
use crate::startup::Rtr;
use crate::wire::{CRC_FIELD, LENGTH_FIELD, ReadHeader, TAGGED_HEADER, TaggedHeader, UNTAGGED_HEADER, UntaggedHeader};

/// Read Responses sent in a row while work requests wait, as siw does it.
const RESPONSES_IN_A_ROW: u8 = 4;
/// The least MULPDU (RFC 5044, Path MTU and MULPDU).
const LEAST_MULPDU: usize = 128;
/// The largest ULPDU whose FPDU needs no pad.
const LARGEST_ULPDU: usize = u16::MAX as usize & !3 | 2;

/// The members of the Send family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendKind {
    /// Send.
    Plain,
    /// Send with Invalidate.
    Invalidate(Stag),
    /// Send with Solicited Event.
    Solicited,
    /// Send with Solicited Event and Invalidate.
    SolicitedInvalidate(Stag),
}

impl SendKind {
    const fn opcode(self) -> Opcode {
        match self {
            Self::Plain => Opcode::SEND,
            Self::Invalidate(_) => Opcode::SEND_INVALIDATE,
            Self::Solicited => Opcode::SEND_SOLICITED,
            Self::SolicitedInvalidate(_) => Opcode::SEND_SOLICITED_INVALIDATE,
        }
    }

    const fn invalidate(self) -> Stag {
        match self {
            Self::Plain | Self::Solicited => Stag(0),
            Self::Invalidate(stag) | Self::SolicitedInvalidate(stag) => stag,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Send(SendKind),
    Write { stag: Stag, to: u64 },
    Read { stag: Stag, to: u64 },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    id: u64,
    operation: Operation,
    length: u32,
    sent: u32,
}

/// A read whose request was sent and whose response is not complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutstandingRead {
    /// The id that it was posted with; none for an RTR message, which is nobody's work request.
    pub(super) id: Option<u64>,
    pub(super) sink: Stag,
    pub(super) size: u32,
    /// Bytes of the response that are in their place.
    pub(super) placed: u32,
}

/// The message whose first segment was sent and whose last was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Response,
    Work,
}

/// Queues and message state of the sending direction.
#[derive(Debug)]
pub(super) struct Transmitter {
    depth: usize,
    pub(super) queue: VecDeque<Work>,
    ord: usize,
    /// Outstanding reads, oldest first; at most `ord`, or one more for an RTR message.
    pub(super) reads: VecDeque<OutstandingRead>,
    /// A message of zero bytes that goes before what is queued, and is nobody's work request.
    rtr: Option<Rtr>,
    unfinished: Option<Message>,
    responses_in_a_row: u8,
    pub(super) send_msn: Msn,
    pub(super) request_msn: Msn,
    most_tagged: usize,
    most_untagged: usize,
}

impl Transmitter {
    pub(super) fn new(ord: u16, rtr: Option<Rtr>, options: Options) -> Self {
        let (most_tagged, most_untagged) = most_payload(options.fpdu);
        Self {
            depth: options.send_queue_depth,
            queue: VecDeque::with_capacity(options.send_queue_depth),
            ord: ord.into(),
            reads: VecDeque::with_capacity(usize::from(ord) + 1),
            rtr,
            unfinished: None,
            responses_in_a_row: 0,
            send_msn: Msn::FIRST,
            request_msn: Msn::FIRST,
            most_tagged,
            most_untagged,
        }
    }

    fn post(&mut self, id: u64, operation: Operation, length: u32) -> Result<(), Misuse> {
        if self.queue.len() >= self.depth {
            return Err(Misuse::QueueFull { depth: self.depth });
        }
        self.queue.push_back(Work { id, operation, length, sent: 0 });
        Ok(())
    }

    /// Whether the oldest work request could be sent now.
    fn is_work_ready(&self) -> bool {
        self.queue.front().is_some_and(|work| match work.operation {
            Operation::Read { .. } => self.reads.len() < self.ord,
            Operation::Send(_) | Operation::Write { .. } => true,
        })
    }

    /// The message to send a segment of.
    fn choose(&self, response_waits: bool) -> Option<Message> {
        if self.unfinished.is_some() {
            return self.unfinished;
        }
        match (response_waits, self.is_work_ready()) {
            (true, true) if self.responses_in_a_row >= RESPONSES_IN_A_ROW => Some(Message::Work),
            (true, _) => Some(Message::Response),
            (false, true) => Some(Message::Work),
            (false, false) => None,
        }
    }

    /// The Read Request for `size` bytes, and its place among the outstanding reads.
    fn request(&mut self, id: Option<u64>, (stag, to): (Stag, u64), size: u32, crc: bool) -> Segment {
        let msn = self.request_msn;
        self.request_msn = msn.next();
        // The responder echoes the sink without looking at it: the number of the request tells responses apart.
        let sink = Stag(msn.0);
        self.reads.push_back(OutstandingRead { id, sink, size, placed: 0 });
        let untagged = UntaggedHeader::new(true, Opcode::READ_REQUEST, Stag(0), QueueNumber::READ_REQUEST, msn, 0);
        let read = ReadHeader {
            sink_stag: sink.0.into(),
            sink_offset: 0.into(),
            size: size.into(),
            source_stag: stag.0.into(),
            source_offset: to.into(),
        };
        let source = id.map_or(Source::Nothing, Source::ReadRequest);
        Segment::new(&[untagged.as_bytes(), read.as_bytes()], 0, source, 0, true, crc)
    }

    fn ready_to_receive(&mut self, rtr: Rtr, crc: bool) -> Segment {
        match rtr {
            Rtr::Write => {
                let header = TaggedHeader::new(true, Opcode::WRITE, Stag(0), 0);
                Segment::new(&[header.as_bytes()], 0, Source::Nothing, 0, true, crc)
            }
            Rtr::Send => {
                let header = UntaggedHeader::new(true, Opcode::SEND, Stag(0), QueueNumber::SEND, self.send_msn, 0);
                self.send_msn = self.send_msn.next();
                Segment::new(&[header.as_bytes()], 0, Source::Nothing, 0, true, crc)
            }
            Rtr::Read => self.request(None, (Stag(0), 0), 0, crc),
        }
    }

    /// The next segment of the oldest work request.
    fn work_segment(&mut self, crc: bool) -> Option<Segment> {
        let most = match self.queue.front()?.operation {
            Operation::Send(_) => self.most_untagged,
            Operation::Write { .. } | Operation::Read { .. } => self.most_tagged,
        };
        let work = self.queue.front_mut()?;
        let Work { id, operation, length, sent: offset } = *work;
        let (len, last) = piece(length, offset, most);
        work.sent += len;
        let segment = match operation {
            Operation::Write { stag, to } => {
                // Checked when it was posted.
                let header = TaggedHeader::new(last, Opcode::WRITE, stag, to.wrapping_add(offset.into()));
                Segment::new(&[header.as_bytes()], len as usize, Source::Work(id), offset, last, crc)
            }
            Operation::Send(kind) => {
                let msn = self.send_msn;
                let header = UntaggedHeader::new(last, kind.opcode(), kind.invalidate(), QueueNumber::SEND, msn, offset);
                if last {
                    self.send_msn = msn.next();
                }
                Segment::new(&[header.as_bytes()], len as usize, Source::Work(id), offset, last, crc)
            }
            Operation::Read { stag, to } => self.request(Some(id), (stag, to), length, crc),
        };
        self.responses_in_a_row = 0;
        self.unfinished = (!segment.last).then_some(Message::Work);
        if segment.last {
            self.queue.pop_front();
        }
        Some(segment)
    }
}

impl Connection {
    /// Posts a Send of `len` bytes.
    ///
    /// # Errors
    /// [`Misuse::QueueFull`], [`Misuse::Ended`].
    pub fn post_send(&mut self, id: u64, kind: SendKind, len: u32) -> Result<(), Misuse> {
        self.post(id, Operation::Send(kind), len)
    }

    /// Posts an RDMA Write of `len` bytes to the peer's `stag` at tagged offset `to`.
    ///
    /// # Errors
    /// [`Misuse::QueueFull`], [`Misuse::Ended`], [`Misuse::TaggedOffsetWrap`].
    pub fn post_write(&mut self, id: u64, stag: Stag, to: u64, len: u32) -> Result<(), Misuse> {
        to.checked_add(len.into()).ok_or(Misuse::TaggedOffsetWrap { to, len })?;
        self.post(id, Operation::Write { stag, to }, len)
    }

    /// Posts an RDMA Read of `len` bytes from the peer's memory at `source`, STag and tagged offset. What is posted
    /// later waits while as many reads as ORD allows are outstanding.
    ///
    /// # Errors
    /// [`Misuse::QueueFull`], [`Misuse::Ended`], [`Misuse::TaggedOffsetWrap`], [`Misuse::NoReads`].
    pub fn post_read(&mut self, id: u64, source: (Stag, u64), len: u32) -> Result<(), Misuse> {
        let (stag, to) = source;
        to.checked_add(len.into()).ok_or(Misuse::TaggedOffsetWrap { to, len })?;
        if self.tx.ord == 0 {
            return Err(Misuse::NoReads);
        }
        self.post(id, Operation::Read { stag, to }, len)
    }

    /// Has an RDMA Write of zero bytes sent, before what is queued. It touches nothing at the peer, who only learns that we are there: the message by which
    /// RFC 6581 has a peer-to-peer connection begin. No effect on a stream that has ended.
    pub fn post_empty_write(&mut self) {
        if !self.is_ended() {
            self.tx.rtr.get_or_insert(Rtr::Write);
        }
    }

    /// The next FPDU to send, if there is one now. The driver hands FPDUs to TCP whole and in this order.
    ///
    /// Read Responses go before work requests, but at most four in a row while a work request could be sent.
    pub fn next_segment(&mut self) -> Option<Segment> {
        if self.state != State::ReadyToSend {
            return None;
        }
        // Not into the middle of another message.
        let rtr = if self.tx.unfinished.is_none() { self.tx.rtr.take() } else { None };
        let segment = match rtr {
            Some(rtr) => self.tx.ready_to_receive(rtr, self.crc),
            None => match self.tx.choose(!self.rx.requests.is_empty())? {
                Message::Work => self.tx.work_segment(self.crc)?,
                Message::Response => self.response_segment()?,
            },
        };
        if segment.last {
            self.sent.count(segment.opcode());
        }
        Some(segment)
    }

    /// Whether [`Connection::next_segment`] would yield a segment now.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.is_established() && (self.tx.rtr.is_some() || self.tx.choose(!self.rx.requests.is_empty()).is_some())
    }

    /// Work requests whose last segment was not yielded yet.
    #[must_use]
    pub fn queued_work(&self) -> usize {
        self.tx.queue.len()
    }

    /// Reads whose request was yielded and whose response is not complete, an RTR message included.
    #[must_use]
    pub fn outstanding_reads(&self) -> usize {
        self.tx.reads.len()
    }

    fn post(&mut self, id: u64, operation: Operation, length: u32) -> Result<(), Misuse> {
        if self.is_ended() {
            return Err(Misuse::Ended);
        }
        self.tx.post(id, operation, length)
    }

    /// The next segment of the response to the oldest Read Request.
    fn response_segment(&mut self) -> Option<Segment> {
        let tx = &mut self.tx;
        let read = self.rx.requests.front_mut()?;
        let InboundRead { msn, sink, source: (stag, to), size, sent: offset } = *read;
        let (len, last) = piece(size, offset, tx.most_tagged);
        read.sent += len;
        // Checked for the whole size when the request came; with size 0 the offset is only echoed.
        let header = TaggedHeader::new(last, Opcode::READ_RESPONSE, sink.0, sink.1.wrapping_add(offset.into()));
        tx.unfinished = (!last).then_some(Message::Response);
        if last {
            self.rx.requests.pop_front();
            tx.responses_in_a_row = tx.responses_in_a_row.saturating_add(1);
        }
        let source = Source::ReadResponse { stag, to };
        let segment = Segment::new(&[header.as_bytes()], len as usize, source, offset, last, self.crc);
        Some(segment.answering(msn, size - offset))
    }
}

/// Payload of the segment at `offset` in a message of `length` bytes, and whether it is the last.
fn piece(length: u32, offset: u32, most: usize) -> (u32, bool) {
    let left = length - offset;
    let len = left.min(u32::try_from(most).unwrap_or(u32::MAX));
    (len, len == left)
}

/// Most payload of a tagged and of an untagged segment, multiples of 4 so that only last segments are padded.
fn most_payload(fpdu: FpduSize) -> (usize, usize) {
    let (tagged, untagged) = (TAGGED_HEADER - LENGTH_FIELD, UNTAGGED_HEADER - LENGTH_FIELD);
    match fpdu {
        FpduSize::Payload(most) => {
            let most = most.clamp(4, LARGEST_ULPDU - untagged) & !3;
            (most, most)
        }
        FpduSize::Mss(mss) => {
            let mulpdu = mss.saturating_sub(LENGTH_FIELD + CRC_FIELD + mss % 4).clamp(LEAST_MULPDU, LARGEST_ULPDU);
            ((mulpdu - tagged) & !3, (mulpdu - untagged) & !3)
        }
    }
}
