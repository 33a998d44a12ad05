//! The sending side of a stream: segments become frames, frames leave in as few calls as possible.
//!
//! What is short is copied, one frame behind the other, into one run of bytes; only payload that is not worth a copy stays where it is. So many small frames
//! are one slice of a call, and a response goes with the end of the data before it.
//!
//! A frame is kept until its last byte is handed to TCP, which copies: until then its payload stays where it is, in a work request that cannot be
//! removed or in a region. A region that is revoked in between (the peer answered a command whose data it had not finished reading) is noticed when
//! the next call is put together, and ends the connection.
//!
//! # Payload that others may change
//!
//! What is sent from a disk in memory ([`Extent`]) is kept from being changed only for the length of a call: a peer that does not read must not stop others
//! from writing. So
//!
//! * such a frame gets its CRC when a call takes it, under the same lock; one that did not leave gets another at the next call. A long payload is sent first
//!   and summed up then, for the call has just fetched it, and its trailer goes with the next call. The disk keeps the checksums of whole blocks until they
//!   change, so that what is read again is not summed up again;
//! * of the frame in whose payload a call ends, the rest is copied before the lock is given up. A payload of which a byte has left does not change any more.
//!
//! Each frame is therefore sent as it was at one moment between the posting and the response behind it. Frames end at multiples of 4 KiB, and a
//! target's blocks are no longer, so that none is in two of them, and the peer never gets half a write to a block.
//!
//! A call waits for a lock only while it has none (two threads could wait for each other): it takes what frames it gets locks for at once, and waits for
//! that of the first.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;

use godwit_iwarp::{Connection, Segment, Source, Stag, Trailer};
use godwit_memory::{Buffer, Reading};
use godwit_reactor::{Reactor, StreamId};
use smallvec::SmallVec;

use super::work::{Payload, Work};
use crate::{Completion, Disconnect, WorkId};

/// Frames that one call takes at most.
const FRAMES_PER_CALL: usize = 64;

/// Slices that these are at most: payload, and the copied bytes before, between and behind.
const SLICES_PER_CALL: usize = 2 * FRAMES_PER_CALL + 1;

/// Calls that one turn of the loop makes for a stream that takes everything, before others have their turn.
const CALLS_PER_TURN: usize = 16;

/// Bytes that are put into frames ahead of the socket: more would only age in the queue.
const BYTES_AHEAD: usize = 1 << 20;

/// The longest frame that is copied as a whole, unless its payload lies on a disk.
const COPY_BYTES: usize = 192;

/// Bytes of disks that one call takes, if it takes more than one frame: their locks are held meanwhile.
const LOCKED_BYTES_PER_CALL: usize = 512 << 10;

/// The shortest payload that is worth a call of its own to be sent before its checksum is known: to read it from memory costs several calls.
const SUMMED_UP_LATER: usize = 16 << 10;

/// The checksums that a disk keeps are those that a frame's is made from.
const _: () = assert!(godwit_memory::SUMMED_BYTES == godwit_iwarp::SUMMED_BYTES);

/// Copied bytes that have been sent and may lie in front of those that have not.
const MOST_STALE_BYTES: usize = 32 << 10;

/// A frame on its way out: copied bytes, then payload, then copied bytes.
#[derive(Debug)]
struct Frame {
    /// Copied bytes before the payload: all of it for a small frame.
    before: usize,
    body: Body,
    /// Copied bytes behind the payload.
    behind: usize,
    /// The work request that is complete when this frame is gone.
    completes: Option<usize>,
}

/// The part of a frame's payload that is not copied.
#[derive(Clone, Copy, Debug)]
enum Body {
    Nothing,
    Work {
        key: usize,
        offset: usize,
        len: usize,
    },
    Region {
        stag: Stag,
        to: u64,
        len: usize,
    },
    /// Of a work request that writes from a disk.
    Extent {
        key: usize,
        offset: usize,
        len: usize,
        crc: bool,
    },
    /// Of which a part has left: [`Transmit::rest`].
    Rest {
        len: usize,
    },
    /// Which has left as a whole.
    Gone {
        len: usize,
    },
}

impl Body {
    fn len(self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Work { len, .. } | Self::Region { len, .. } | Self::Extent { len, .. } | Self::Rest { len } | Self::Gone { len } => len,
        }
    }

    /// Whether it is sent before it is summed up, unless the disk knows its checksums.
    fn is_summed_up_later(self) -> bool {
        matches!(self, Self::Extent { len: SUMMED_UP_LATER.., crc: true, .. })
    }
}

impl Frame {
    fn len(&self) -> usize {
        self.before + self.body.len() + self.behind
    }

    /// Puts the checksum of a payload from a disk behind it; `copied` begins with the frame's own bytes.
    fn sum_up(&self, copied: &mut [u8], payload: &Reading<'_>) {
        let header = &copied[..self.before];
        let trailer = match payload.sums() {
            Some(sums) => Trailer::with_sums(header, sums),
            None => Trailer::with_crc(header, [&**payload]),
        };
        copied[self.before..self.before + self.behind].copy_from_slice(trailer.as_ref());
    }
}

/// Frames that were put together and not yet sent whole.
#[derive(Debug, Default)]
pub(super) struct Transmit {
    frames: VecDeque<Frame>,
    /// The copied bytes of the frames, in order, from `start` on.
    copied: Vec<u8>,
    start: usize,
    queued_bytes: usize,
    /// Frames whose payload lies on a disk.
    on_disks: usize,
    /// The last call took less than it was offered: the next one is offered one frame, for nothing is to be locked and summed up in vain.
    is_tight: bool,
    /// The payload of the first frame, if that is [`Body::Rest`].
    rest: Vec<u8>,
    /// How much of the first frame is gone.
    sent_of_first: usize,
    /// The socket took no more; it will say when.
    blocked: bool,
}

/// How an attempt to send ended.
#[derive(Debug)]
pub(super) enum Sent {
    /// Everything is gone.
    All,
    /// The socket is full.
    Blocked,
    /// There is more, for the next turn.
    More,
    /// The connection is over.
    Failed(Disconnect),
}

impl Transmit {
    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Sends what the connection has to send; completions go to `done`.
    pub(super) fn run<R: Reactor>(
        &mut self,
        reactor: &mut R,
        stream: StreamId,
        connection: &mut Connection,
        payload: &mut Payload,
        done: &mut VecDeque<Completion>,
    ) -> Sent {
        if self.blocked {
            return Sent::Blocked;
        }
        for _ in 0..CALLS_PER_TURN {
            if let Err(reason) = self.fill(connection, payload) {
                return Sent::Failed(reason);
            }
            if self.frames.is_empty() {
                return Sent::All;
            }
            match self.call(reactor, stream, payload) {
                Ok((sent, offered)) => {
                    self.is_tight = sent < offered;
                    self.advance(sent, payload, done);
                }
                Err(Unsent::RegionGone) => return Sent::Failed(region_gone()),
                Err(Unsent::Socket(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return Sent::Blocked;
                }
                Err(Unsent::Socket(error)) => return Sent::Failed(Disconnect::Lost(error)),
            }
        }
        Sent::More
    }

    fn fill(&mut self, connection: &mut Connection, payload: &Payload) -> Result<(), Disconnect> {
        if self.start > MOST_STALE_BYTES {
            self.copied.drain(..std::mem::take(&mut self.start));
        }
        while self.queued_bytes < BYTES_AHEAD && self.frames.len() < FRAMES_PER_CALL {
            let Some(segment) = connection.next_segment() else { break };
            self.add(&segment, payload).ok_or_else(region_gone)?;
        }
        Ok(())
    }

    /// Adds the frame of a segment, with the checksum of its payload unless that lies on a disk.
    fn add(&mut self, segment: &Segment, payload: &Payload) -> Option<()> {
        let (first, second, body) = match segment.source {
            Source::Nothing | Source::ReadRequest(_) => (&[][..], &[][..], Body::Nothing),
            Source::Work(id) => {
                let (key, offset) = (usize::try_from(id).ok()?, segment.offset as usize);
                match payload.works.get(key)? {
                    Work::WriteExtent { .. } => (&[][..], &[][..], Body::Extent { key, offset, len: segment.len, crc: segment.has_crc() }),
                    work => {
                        let (header, data) = work.payload(offset, segment.len);
                        (header, data, Body::Work { key, offset: offset + header.len(), len: data.len() })
                    }
                }
            }
            Source::ReadResponse { stag, to } => {
                let to = to.checked_add(u64::from(segment.offset))?;
                let data = if segment.len == 0 { &[][..] } else { payload.regions.readable(stag, to, segment.len).ok()? };
                (&[][..], data, Body::Region { stag, to, len: data.len() })
            }
        };
        let completes = match segment.source {
            Source::Work(id) if segment.last => Some(usize::try_from(id).ok()?),
            _ => None,
        };
        let before = self.copied.len();
        append(&mut self.copied, segment.header());
        append(&mut self.copied, first);
        let is_on_disk = matches!(body, Body::Extent { .. });
        let (body, rest) = if !is_on_disk && segment.wire_len() <= COPY_BYTES {
            self.copied.extend_from_slice(second);
            (Body::Nothing, &[][..])
        } else {
            (body, second)
        };
        let behind = self.copied.len();
        if is_on_disk {
            self.on_disks += 1;
            append(&mut self.copied, &[0; Trailer::CAPACITY][..segment.trailer_len()]);
        } else {
            let trailer = segment.trailer(&self.copied[before..], [rest]);
            append(&mut self.copied, trailer.as_ref());
        }
        let frame = Frame { before: behind - before, body, behind: self.copied.len() - behind, completes };
        self.queued_bytes += frame.len();
        self.frames.push_back(frame);
        Some(())
    }

    /// Sends as much as one call takes; how many bytes those are, of how many.
    fn call<R: Reactor>(&mut self, reactor: &mut R, stream: StreamId, payload: &Payload) -> Result<(usize, usize), Unsent> {
        let mut readings = Readings::new();
        let Taken { frames: count, is_open } =
            if self.on_disks > 0 { self.lock(payload, &mut readings)? } else { Taken { frames: self.frames.len(), is_open: false } };
        let mut slices = Slices { slices: [IoSlice::new(&[]); SLICES_PER_CALL], count: 0, skip: self.sent_of_first };
        let mut run = self.start..self.start;
        let mut locked = readings.iter();
        for frame in self.frames.range(..count) {
            run.end += frame.before;
            if frame.body.len() > 0 {
                slices.add(&self.copied[run.clone()]);
                match frame.body {
                    Body::Nothing => {}
                    Body::Work { key, offset, len } => {
                        slices.add(payload.works.get(key).ok_or(Unsent::RegionGone)?.payload(offset, len).1);
                    }
                    Body::Region { stag, to, len } => {
                        slices.add(payload.regions.readable(stag, to, len).map_err(|_| Unsent::RegionGone)?);
                    }
                    Body::Extent { .. } => slices.add(locked.next().ok_or(Unsent::RegionGone)?),
                    Body::Rest { .. } => slices.add(&self.rest),
                    Body::Gone { len } => slices.pass(len),
                }
                run = Range { start: run.end, end: run.end };
            }
            run.end += frame.behind;
        }
        if is_open {
            run = 0..0;
        }
        slices.add(&self.copied[run]);
        let slices = &slices.slices[..slices.count];
        let offered = slices.iter().map(|slice| slice.len()).sum();
        let sent = reactor.send(stream, slices).map_err(Unsent::Socket)?;
        if self.on_disks > 0 {
            self.settle(self.sent_of_first + sent, &readings);
        }
        Ok((sent, offered))
    }

    /// Locks what the first frames send from disks, and puts their checksums behind it. Returns what a call may take.
    fn lock<'a>(&mut self, payload: &'a Payload, readings: &mut Readings<'a>) -> Result<Taken, Unsent> {
        let mut locked_bytes = 0;
        let mut at = self.start;
        for (number, frame) in self.frames.iter().enumerate() {
            if let Body::Extent { key, offset, len, crc } = frame.body {
                let Some(Work::WriteExtent { extent }) = payload.works.get(key) else { return Err(Unsent::RegionGone) };
                let part = offset..offset + len;
                let reading = if readings.is_empty() { Some(extent.read(part)) } else { extent.try_read(part) };
                let Some(reading) = reading.filter(|_| readings.is_empty() || locked_bytes + len <= LOCKED_BYTES_PER_CALL) else {
                    return Ok(Taken { frames: number, is_open: false });
                };
                if frame.body.is_summed_up_later() && !reading.has_sums() {
                    readings.push(reading);
                    return Ok(Taken { frames: number + 1, is_open: true });
                }
                if crc {
                    frame.sum_up(&mut self.copied[at..], &reading);
                }
                locked_bytes += len;
                readings.push(reading);
            }
            at += frame.before + frame.behind;
            if self.is_tight {
                return Ok(Taken { frames: number + 1, is_open: false });
            }
        }
        Ok(Taken { frames: self.frames.len(), is_open: false })
    }

    /// Has the frame in which the sent bytes end become one that does not change any more, if it lies on a disk and a part of that is gone.
    fn settle(&mut self, mut sent: usize, readings: &[Reading<'_>]) {
        let mut locked = readings.iter();
        let mut at = self.start;
        for frame in &mut self.frames {
            let reading = if matches!(frame.body, Body::Extent { .. }) { locked.next() } else { None };
            if sent >= frame.len() {
                sent -= frame.len();
                at += frame.before + frame.behind;
                continue;
            }
            let Some(reading) = reading.filter(|_| sent > frame.before) else { return };
            if frame.body.is_summed_up_later() {
                frame.sum_up(&mut self.copied[at..], reading);
            }
            let len = reading.len();
            frame.body = if sent < frame.before + len {
                self.rest.clear();
                self.rest.extend_from_slice(reading);
                Body::Rest { len }
            } else {
                Body::Gone { len }
            };
            self.on_disks -= 1;
            return;
        }
    }

    fn advance(&mut self, sent: usize, payload: &mut Payload, done: &mut VecDeque<Completion>) {
        self.sent_of_first += sent;
        while let Some(frame) = self.frames.front() {
            let len = frame.len();
            if self.sent_of_first < len {
                return;
            }
            self.sent_of_first -= len;
            self.queued_bytes -= len;
            self.start += frame.before + frame.behind;
            match frame.body {
                Body::Extent { .. } => self.on_disks -= 1,
                // Seldom needed: it is not kept for a connection that was slow once.
                Body::Rest { .. } => self.rest = Vec::new(),
                _ => {}
            }
            if let Some(key) = frame.completes {
                match payload.works.remove(key) {
                    Work::Send { id, data, .. } => report_sent(done, id, data),
                    Work::Write { .. } | Work::WriteExtent { .. } | Work::Read { .. } => {}
                }
            }
            self.frames.pop_front();
        }
        self.copied.clear();
        self.start = 0;
    }

    /// Sends a last segment, a Terminate, behind the frame that is half sent. As far as the socket takes it: it is not asked to say when it takes more.
    pub(super) fn send_last<R: Reactor>(
        &mut self,
        reactor: &mut R,
        stream: StreamId,
        payload: &mut Payload,
        segment: &Segment,
        done: &mut VecDeque<Completion>,
    ) {
        self.frames.truncate(usize::from(self.sent_of_first > 0));
        self.copied.truncate(self.start + self.frames.iter().map(|frame| frame.before + frame.behind).sum::<usize>());
        self.queued_bytes = self.frames.iter().map(Frame::len).sum();
        self.on_disks = self.frames.iter().filter(|frame| matches!(frame.body, Body::Extent { .. })).count();
        if self.add(segment, payload).is_none() {
            return;
        }
        while !self.frames.is_empty() {
            let Ok((sent, _)) = self.call(reactor, stream, payload) else { return };
            self.advance(sent, payload, done);
        }
    }
}

/// Reports a Send, together with the last one if nobody can tell them apart.
fn report_sent(done: &mut VecDeque<Completion>, sent: WorkId, returned: Option<Buffer>) {
    match done.back_mut() {
        Some(Completion::SendDone { id, data: None, count }) if *id == sent && returned.is_none() => *count += 1,
        _ => done.push_back(Completion::SendDone { id: sent, data: returned, count: 1 }),
    }
}

/// Appends bytes. The lengths that nearly all frames consist of are named, for a copy of a known length takes no call.
fn append(to: &mut Vec<u8>, bytes: &[u8]) {
    match bytes.len() {
        4 => to.extend_from_slice(&bytes[..4]),
        16 => to.extend_from_slice(&bytes[..16]),
        20 => to.extend_from_slice(&bytes[..20]),
        64 => to.extend_from_slice(&bytes[..64]),
        _ => to.extend_from_slice(bytes),
    }
}

/// What a call takes.
struct Taken {
    /// So many of the first frames.
    frames: usize,
    /// The last of them without its trailer.
    is_open: bool,
}

/// What a call sends from disks, in order.
type Readings<'a> = SmallVec<[Reading<'a>; FRAMES_PER_CALL]>;

/// The slices of a call, without what was sent before.
struct Slices<'a> {
    slices: [IoSlice<'a>; SLICES_PER_CALL],
    count: usize,
    skip: usize,
}

impl<'a> Slices<'a> {
    fn add(&mut self, bytes: &'a [u8]) {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        if skipped < bytes.len() {
            self.slices[self.count] = IoSlice::new(&bytes[skipped..]);
            self.count += 1;
        }
    }

    /// Leaves bytes out that were sent before.
    fn pass(&mut self, len: usize) {
        self.skip -= len;
    }
}

enum Unsent {
    RegionGone,
    Socket(io::Error),
}

fn region_gone() -> Disconnect {
    Disconnect::Violation("the peer answered a command before it had read the command's data".to_owned())
}
