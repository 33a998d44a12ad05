//! The sending side of a stream: segments become frames, frames leave in as few calls as possible.
//!
//! A frame is kept until its last byte is handed to TCP, which copies: until then its payload stays where it is, in a work request that cannot be
//! removed or in a region. A region that is revoked in between (the peer answered a command whose data it had not finished reading) is noticed when
//! the next call is put together, and ends the connection.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use godwit_iwarp::{Connection, Segment, Source, Stag};
use godwit_reactor::{Reactor, StreamId};

use super::work::{Payload, Work};
use crate::{Completion, Disconnect, Header};

/// Frames that one call takes at most; three slices each.
const FRAMES_PER_CALL: usize = 64;

/// Calls that one turn of the loop makes for a stream that takes everything, before others have their turn.
const CALLS_PER_TURN: usize = 16;

/// Bytes that are put into frames ahead of the socket: more would only age in the queue.
const BYTES_AHEAD: usize = 1 << 20;

/// Room for an FPDU header, the header of a message, and a little data.
const HEAD_BYTES: usize = 192;

/// A frame on its way out.
#[derive(Debug)]
struct Frame {
    /// What is copied: FPDU header, message header, and small data with their trailer.
    head: [u8; HEAD_BYTES],
    head_len: usize,
    body: Body,
    trailer: [u8; 8],
    trailer_len: usize,
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
}

impl Frame {
    fn len(&self) -> usize {
        self.head_len + self.body.len() + self.trailer_len
    }

    fn copied(bytes: &[&[u8]]) -> Self {
        let mut frame = Self { head: [0; HEAD_BYTES], head_len: 0, body: Body::Nothing, trailer: [0; 8], trailer_len: 0, completes: None };
        for part in bytes {
            frame.head[frame.head_len..frame.head_len + part.len()].copy_from_slice(part);
            frame.head_len += part.len();
        }
        frame
    }

    /// The frame of a segment, with the checksum of its payload.
    fn new(segment: &Segment, payload: &Payload) -> Option<Self> {
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
        let trailer = trailer.as_ref();
        let copies_all = segment.header().len() + first.len() + second.len() + trailer.len() <= HEAD_BYTES;
        let mut frame = if copies_all {
            Self::copied(&[segment.header(), first, second, trailer])
        } else {
            let mut frame = Self::copied(&[segment.header(), first]);
            frame.body = body;
            frame.trailer[..trailer.len()].copy_from_slice(trailer);
            frame.trailer_len = trailer.len();
            frame
        };
        if let (Source::Work(id), true) = (segment.source, segment.last) {
            frame.completes = usize::try_from(id).ok();
        }
        Some(frame)
    }

    fn body<'a>(&self, payload: &'a Payload) -> Option<&'a [u8]> {
        match self.body {
            Body::Nothing => Some(&[]),
            Body::Work { key, offset, len } => Some(payload.works.get(key)?.payload(offset, len).1),
            Body::Region { stag, to, len } => payload.regions.readable(stag, to, len).ok(),
        }
    }
}

/// Frames that were put together and not yet sent whole.
#[derive(Debug, Default)]
pub(super) struct Transmit {
    frames: VecDeque<Frame>,
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
        while self.queued_bytes < BYTES_AHEAD && self.frames.len() < FRAMES_PER_CALL {
            let Some(segment) = connection.next_segment() else { break };
            let frame = Frame::new(&segment, payload).ok_or_else(region_gone)?;
            self.queued_bytes += frame.len();
            self.frames.push_back(frame);
        }
        Ok(())
    }

    fn call<R: Reactor>(&self, reactor: &mut R, stream: StreamId, payload: &Payload) -> Result<usize, Unsent> {
        let mut slices = [IoSlice::new(&[]); 3 * FRAMES_PER_CALL];
        let mut count = 0;
        let mut skip = self.sent_of_first;
        for frame in &self.frames {
            let body = frame.body(payload).ok_or(Unsent::RegionGone)?;
            for part in [&frame.head[..frame.head_len], body, &frame.trailer[..frame.trailer_len]] {
                let skipped = skip.min(part.len());
                skip -= skipped;
                if skipped < part.len() {
                    slices[count] = IoSlice::new(&part[skipped..]);
                    count += 1;
                }
            }
        }
        reactor.send(stream, &slices[..count]).map_err(Unsent::Socket)
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
            if let Some(key) = frame.completes {
                match payload.works.remove(key) {
                    Work::Send { id, data, .. } => done.push_back(Completion::SendDone { id, data }),
                    Work::Write { .. } | Work::Read { .. } => {}
                }
            }
            self.frames.pop_front();
        }
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
        let trailer = segment.trailer([]);
        self.frames.push_back(Frame::copied(&[segment.header(), trailer.as_ref()]));
        self.queued_bytes = self.frames.iter().map(Frame::len).sum();
        while !self.frames.is_empty() {
            let Ok(sent) = self.call(reactor, stream, payload) else { return };
            self.advance(sent, payload, done);
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

const _: () = assert!(HEAD_BYTES > 48 + Header::MAX_BYTES + 8, "a Send's header and its frame's fit the head");
