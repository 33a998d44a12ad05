//! The receiving direction: FPDUs taken apart as their bytes come, payload placed at once, events after the CRC.

mod fpdu;
mod message;

use std::collections::VecDeque;

use super::transmit::OutstandingRead;
use super::{Connection, State};
use crate::crc::Crc;
use crate::fault::{Fault, FaultKind};
use crate::memory::{Memory, PlacementError, ReceiveError};
use crate::number::{Msn, Opcode, Stag};
use crate::terminate::{TERMINATE_PREFIX, TerminateInfo, TerminatedSegment};
use crate::wire::{CRC_FIELD, LENGTH_FIELD, READ_REQUEST, pad_length};
pub(super) use message::InboundRead;
use message::{SendMessage, TaggedMessage, add};

/// What [`Connection::receive`] came upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Nothing more can be done with the bytes given; all were consumed.
    NeedMore,
    /// [`Memory::receive`] has no buffer: call again, with the bytes that were not consumed, when there may be one.
    Stalled,
    /// The Responder's first valid FPDU came: from now on it may send. What that FPDU says is the next event.
    Established,
    /// A Send was received whole into the buffer that its first call of [`Memory::receive`] claimed.
    Message {
        /// Bytes of the message.
        length: u32,
        /// The STag that it invalidated.
        invalidated: Option<Stag>,
        /// Whether the peer asks for a solicited event.
        solicited: bool,
    },
    /// The oldest outstanding read has all its data.
    ReadDone {
        /// The id that it was posted with.
        read: u64,
    },
    /// The peer's Read Request was accepted; its response is now queued for transmission.
    ReadRequested,
    /// The peer ended the stream.
    Terminated(TerminateInfo),
}

/// Where the next payload bytes of the stream belong; see [`Connection::landing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landing {
    /// The place of the first byte.
    pub place: Place,
    /// Bytes that remain in this FPDU, at least 1.
    pub len: usize,
}

/// A place for payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Our registered memory, not yet checked.
    Write {
        /// STag of the region.
        stag: Stag,
        /// Tagged offset of the next byte.
        to: u64,
    },
    /// The sink of the read posted with this id; within the length asked for.
    ReadResponse {
        /// The id of the read.
        read: u64,
        /// Offset in the sink.
        offset: u32,
    },
    /// The receive buffer of the current message, whose size is not yet checked.
    Receive {
        /// Offset in the message.
        offset: u32,
    },
}

/// Where in an FPDU the stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Header,
    /// At the first payload byte of a Send whose buffer is not claimed yet.
    Claim,
    Payload,
    Trailer,
}

/// What the FPDU in progress is, with the place of its next payload byte.
#[derive(Clone, Copy, Debug)]
enum Body {
    Write { stag: Stag, to: u64 },
    ReadResponse,
    Send,
    ReadRequest,
    Terminate,
}

/// Parser and message state of the receiving direction.
#[derive(Debug)]
pub(super) struct Receiver {
    position: Position,
    crc: Crc,
    header: [u8; READ_REQUEST],
    header_have: usize,
    body: Body,
    /// Whether the FPDU in progress is the last of its message.
    last: bool,
    /// Payload bytes that are still to come in this FPDU.
    remaining: usize,
    trailer: [u8; 8],
    trailer_have: usize,
    trailer_length: usize,
    terminate: [u8; TERMINATE_PREFIX],
    terminate_have: usize,
    tagged: Option<TaggedMessage>,
    send: Option<SendMessage>,
    pub(super) send_msn: Msn,
    pub(super) request_msn: Msn,
    ird: u16,
    /// Peers' Read Requests, oldest first; at most `ird`.
    pub(super) requests: VecDeque<InboundRead>,
    /// An event that waits behind [`Received::Established`].
    held: Option<Received>,
}

impl Receiver {
    pub(super) fn new(crc: bool, ird: u16) -> Self {
        Self {
            position: Position::Header,
            crc: Crc::new(crc),
            header: [0; READ_REQUEST],
            header_have: 0,
            body: Body::Terminate,
            last: false,
            remaining: 0,
            trailer: [0; 8],
            trailer_have: 0,
            trailer_length: 0,
            terminate: [0; TERMINATE_PREFIX],
            terminate_have: 0,
            tagged: None,
            send: None,
            send_msn: Msn::FIRST,
            request_msn: Msn::FIRST,
            ird,
            requests: VecDeque::with_capacity(ird.into()),
            held: None,
        }
    }
}

impl Connection {
    /// Feeds bytes of the stream. Returns how many were consumed and what they led to; call again with the rest, also
    /// when it is empty, until [`Received::NeedMore`] or [`Received::Stalled`].
    ///
    /// After the end of the stream everything is consumed and discarded.
    ///
    /// # Errors
    /// The first failed check; it ends the stream.
    pub fn receive(&mut self, bytes: &[u8], memory: &mut impl Memory) -> Result<(usize, Received), Fault> {
        if let Some(event) = self.rx.held.take() {
            return Ok((0, event));
        }
        if self.is_ended() {
            return Ok((bytes.len(), Received::NeedMore));
        }
        let mut input = bytes;
        match self.advance(&mut input, memory) {
            Ok(event) => Ok((bytes.len() - input.len(), event)),
            Err(kind) => {
                self.end();
                let header = &self.rx.header[..self.rx.header_have];
                Err(Fault { kind, segment: Some(TerminatedSegment::new(header)) })
            }
        }
    }

    /// Where the next payload bytes belong, while the stream stands inside the payload of an FPDU.
    ///
    /// The driver may then read from the socket straight into that place, once it has made the checks that [`Memory`]
    /// makes, and report it with [`Connection::landed`]. Only when all bytes read before were consumed.
    #[must_use]
    pub fn landing(&self) -> Option<Landing> {
        let rx = &self.rx;
        if self.is_ended() || rx.position != Position::Payload || rx.remaining == 0 {
            return None;
        }
        let place = match rx.body {
            Body::Write { stag, to } => Place::Write { stag, to },
            Body::ReadResponse => {
                let read = self.tx.reads.front()?;
                Place::ReadResponse { read: read.id?, offset: read.placed }
            }
            Body::Send => Place::Receive { offset: rx.send?.placed },
            Body::ReadRequest | Body::Terminate => return None,
        };
        Some(Landing { place, len: rx.remaining })
    }

    /// Accounts for payload that the driver read from the socket straight into the place of [`Connection::landing`].
    ///
    /// # Panics
    /// When there is no landing, or `bytes` are more than its length.
    pub fn landed(&mut self, bytes: &[u8]) {
        let landing = self.landing().expect("bytes land only where a landing was given");
        assert!(bytes.len() <= landing.len, "no more bytes land than the landing has room for");
        self.placed(bytes);
    }

    /// Read Requests of the peer whose responses are not sent yet.
    #[must_use]
    pub fn inbound_reads(&self) -> usize {
        self.rx.requests.len()
    }

    fn advance(&mut self, input: &mut &[u8], memory: &mut impl Memory) -> Result<Received, FaultKind> {
        loop {
            match self.rx.position {
                Position::Header => {
                    if !self.rx.gather_header(input)? {
                        return Ok(Received::NeedMore);
                    }
                    self.begin_segment()?;
                }
                Position::Claim => match memory.receive(0, &[]) {
                    Ok(()) => self.rx.position = Position::Payload,
                    Err(ReceiveError::Wait) => return Ok(Received::Stalled),
                    Err(error) => return Err(error.into()),
                },
                Position::Payload if self.rx.remaining == 0 => self.rx.begin_trailer(),
                Position::Payload => {
                    let chunk = &input[..self.rx.remaining.min(input.len())];
                    if chunk.is_empty() {
                        return Ok(Received::NeedMore);
                    }
                    if !self.place(chunk, memory)? {
                        return Ok(Received::Stalled);
                    }
                    self.placed(chunk);
                    *input = &input[chunk.len()..];
                }
                Position::Trailer => {
                    if !self.rx.gather_trailer(input)? {
                        return Ok(Received::NeedMore);
                    }
                    if let Some(event) = self.end_segment(memory)? {
                        return Ok(event);
                    }
                }
            }
        }
    }

    /// Takes a complete, supported header: checks it against the messages in progress and sets up its payload.
    fn begin_segment(&mut self) -> Result<(), FaultKind> {
        let rx = &mut self.rx;
        rx.crc.restart();
        rx.crc.update(&rx.header[..rx.header_have]);
        rx.trailer_length = pad_length(rx.ulpdu_length()) + CRC_FIELD;
        rx.remaining = LENGTH_FIELD + rx.ulpdu_length() - rx.header_have;
        rx.position = Position::Payload;
        rx.last = rx.ddp().is_last();
        rx.body = match rx.opcode() {
            Opcode::WRITE => rx.begin_write()?,
            Opcode::READ_RESPONSE => rx.begin_read_response(self.tx.reads.front_mut())?,
            Opcode::READ_REQUEST => rx.begin_read_request()?,
            Opcode::TERMINATE => rx.begin_terminate()?,
            _ => rx.begin_send()?,
        };
        Ok(())
    }

    /// Places a non-empty piece of payload; false when there is no buffer for it at this moment.
    fn place(&mut self, chunk: &[u8], memory: &mut impl Memory) -> Result<bool, FaultKind> {
        match self.rx.body {
            Body::Write { stag, to } => {
                memory.write(stag, to, chunk).map_err(|error| FaultKind::Write { stag, to, error })?;
            }
            Body::ReadResponse => {
                let Some(&OutstandingRead { id: Some(id), placed, .. }) = self.tx.reads.front() else {
                    return Err(FaultKind::UnexpectedReadResponse);
                };
                memory.read_response(id, placed, chunk).map_err(|PlacementError| FaultKind::Placement)?;
            }
            Body::Send => {
                let offset = self.rx.send.map_or(0, |message| message.placed);
                match memory.receive(offset, chunk) {
                    Ok(()) => {}
                    Err(ReceiveError::Wait) => return Ok(false),
                    Err(error) => return Err(error.into()),
                }
            }
            Body::Terminate => self.rx.keep_terminate(chunk),
            Body::ReadRequest => return Err(FaultKind::ReadRequestForm),
        }
        Ok(true)
    }

    /// Moves on behind `chunk`, which is in its place.
    fn placed(&mut self, chunk: &[u8]) {
        let rx = &mut self.rx;
        rx.crc.update(chunk);
        rx.remaining -= chunk.len();
        // The header was checked: no sum below exceeds what it announced.
        match &mut rx.body {
            Body::Write { to, .. } => *to = to.wrapping_add(chunk.len() as u64),
            Body::ReadResponse => {
                if let Some(read) = self.tx.reads.front_mut() {
                    read.placed = add(read.placed, chunk.len()).unwrap_or(u32::MAX);
                }
            }
            Body::Send => {
                if let Some(message) = &mut rx.send {
                    message.placed = add(message.placed, chunk.len()).unwrap_or(u32::MAX);
                }
            }
            Body::ReadRequest | Body::Terminate => {}
        }
    }

    /// Acts on an FPDU whose CRC is good.
    fn end_segment(&mut self, memory: &mut impl Memory) -> Result<Option<Received>, FaultKind> {
        let first = self.state == State::ReceiveOnly;
        if first {
            self.state = State::ReadyToSend;
        }
        let event = if self.rx.last {
            self.received.count(self.rx.opcode());
            self.end_message(memory)?
        } else {
            None
        };
        self.rx.position = Position::Header;
        self.rx.header_have = 0;
        if matches!(event, Some(Received::Terminated(_))) {
            self.state = State::Ended { terminate: false };
        }
        if first {
            self.rx.held = event;
            return Ok(Some(Received::Established));
        }
        Ok(event)
    }

    /// Delivers a message that is complete.
    fn end_message(&mut self, memory: &mut impl Memory) -> Result<Option<Received>, FaultKind> {
        let rx = &mut self.rx;
        match rx.body {
            Body::Write { .. } => {
                rx.tagged = None;
                Ok(None)
            }
            Body::ReadResponse => {
                rx.tagged = None;
                let read = self.tx.reads.pop_front().and_then(|read| read.id);
                Ok(read.map(|read| Received::ReadDone { read }))
            }
            Body::Send => {
                let Some(message) = rx.send.take() else {
                    return Ok(None);
                };
                rx.send_msn = rx.send_msn.next();
                // STag 0 is nobody's. A program on siw's verbs cannot help naming it, as siw's library does not pass on the key; what it means is a plain Send.
                let invalidated = message.invalidates().filter(|stag| stag.0 != 0);
                if let Some(stag) = invalidated {
                    memory.invalidate(stag).map_err(|error| FaultKind::Invalidate { stag, error })?;
                }
                let solicited = message.is_solicited();
                Ok(Some(Received::Message { length: message.placed, invalidated, solicited }))
            }
            Body::ReadRequest => {
                rx.end_read_request(memory)?;
                Ok(Some(Received::ReadRequested))
            }
            Body::Terminate => {
                let info = TerminateInfo::parse(&rx.terminate, rx.terminate_have);
                Ok(Some(Received::Terminated(info)))
            }
        }
    }
}

impl From<ReceiveError> for FaultKind {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::TooLong => Self::TooLong,
            // A wait is no error where it is possible; elsewhere there is nothing to wait for.
            ReceiveError::NoReceivePosted | ReceiveError::Wait => Self::NoReceivePosted,
        }
    }
}
