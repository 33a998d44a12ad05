//! The sending side of a stream: segments become frames, frames leave in as few calls as possible.
//!
//! What is short is copied, one frame behind the other, into one run of bytes; only payload that is not worth a copy stays where it is. So many small frames
//! are one slice of a call, and a response goes with the end of the data before it.
//!
//! A frame is kept until its last byte is handed to TCP, which copies: until then its payload stays where it is, in a work request that cannot be
//! removed or in a region. A region that is revoked in between (the peer answered a command whose data it had not finished reading) is noticed when
//! the next call is put together, and ends the connection.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;

use godwit_iwarp::{Connection, Segment, Source, Stag};
use godwit_reactor::{Reactor, StreamId};

use super::work::{Payload, Work};
use crate::{Completion, Disconnect};

/// Frames that one call takes at most.
const FRAMES_PER_CALL: usize = 64;

/// Slices that these are at most: payload, and the copied bytes before, between and behind.
const SLICES_PER_CALL: usize = 2 * FRAMES_PER_CALL + 1;

/// Calls that one turn of the loop makes for a stream that takes everything, before others have their turn.
const CALLS_PER_TURN: usize = 16;

/// Bytes that are put into frames ahead of the socket: more would only age in the queue.
const BYTES_AHEAD: usize = 1 << 20;

/// The longest frame that is copied as a whole.
const COPY_BYTES: usize = 192;

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
    Work { key: usize, offset: usize, len: usize },
    Region { stag: Stag, to: u64, len: usize },
}

impl Body {
    fn len(self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Work { len, .. } | Self::Region { len, .. } => len,
        }
    }

    fn bytes(self, payload: &Payload) -> Option<&[u8]> {
        match self {
            Self::Nothing => Some(&[]),
            Self::Work { key, offset, len } => Some(payload.works.get(key)?.payload(offset, len).1),
            Self::Region { stag, to, len } => payload.regions.readable(stag, to, len).ok(),
        }
    }
}

impl Frame {
    fn len(&self) -> usize {
        self.before + self.body.len() + self.behind
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
                Ok(sent) => self.advance(sent, payload, done),
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

    /// Adds the frame of a segment, with the checksum of its payload.
    fn add(&mut self, segment: &Segment, payload: &Payload) -> Option<()> {
        let (first, second, body) = match segment.source {
            Source::Nothing | Source::ReadRequest(_) => (&[][..], &[][..], Body::Nothing),
            Source::Work(id) => {
                let key = usize::try_from(id).ok()?;
                let (header, data) = payload.works.get(key)?.payload(segment.offset as usize, segment.len);
                let offset = segment.offset as usize + header.len();
                (header, data, Body::Work { key, offset, len: data.len() })
            }
            Source::ReadResponse { stag, to } => {
                let to = to.checked_add(u64::from(segment.offset))?;
                let data = if segment.len == 0 { &[][..] } else { payload.regions.readable(stag, to, segment.len).ok()? };
                (&[][..], data, Body::Region { stag, to, len: data.len() })
            }
        };
        let trailer = segment.trailer([first, second]);
        let completes = match segment.source {
            Source::Work(id) if segment.last => Some(usize::try_from(id).ok()?),
            _ => None,
        };
        let before = self.copied.len();
        self.copied.extend_from_slice(segment.header());
        self.copied.extend_from_slice(first);
        let body = if segment.wire_len() <= COPY_BYTES {
            self.copied.extend_from_slice(second);
            Body::Nothing
        } else {
            body
        };
        let behind = self.copied.len();
        self.copied.extend_from_slice(trailer.as_ref());
        let frame = Frame { before: behind - before, body, behind: self.copied.len() - behind, completes };
        self.queued_bytes += frame.len();
        self.frames.push_back(frame);
        Some(())
    }

    fn call<R: Reactor>(&self, reactor: &mut R, stream: StreamId, payload: &Payload) -> Result<usize, Unsent> {
        let mut slices = Slices { slices: [IoSlice::new(&[]); SLICES_PER_CALL], count: 0, skip: self.sent_of_first };
        let mut run = self.start..self.start;
        for frame in &self.frames {
            run.end += frame.before;
            if frame.body.len() > 0 {
                slices.add(&self.copied[run.clone()]);
                slices.add(frame.body.bytes(payload).ok_or(Unsent::RegionGone)?);
                run = Range { start: run.end, end: run.end };
            }
            run.end += frame.behind;
        }
        slices.add(&self.copied[run]);
        reactor.send(stream, &slices.slices[..slices.count]).map_err(Unsent::Socket)
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
            if let Some(key) = frame.completes {
                match payload.works.remove(key) {
                    Work::Send { id, data, .. } => done.push_back(Completion::SendDone { id, data }),
                    Work::Write { .. } | Work::Read { .. } => {}
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
        if self.add(segment, payload).is_none() {
            return;
        }
        while !self.frames.is_empty() {
            let Ok(sent) = self.call(reactor, stream, payload) else { return };
            self.advance(sent, payload, done);
        }
    }
}

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
}

enum Unsent {
    RegionGone,
    Socket(io::Error),
}

fn region_gone() -> Disconnect {
    Disconnect::Violation("the peer answered a command before it had read the command's data".to_owned())
}
