//! One queue pair on a TCP stream: MPA start-up, then FPDU mode, then its end.
//!
//! # Buffer lifetime
//!
//! Bytes enter and leave the socket in calls of this thread that copy, so nothing but this thread ever touches a buffer. A buffer is in exactly one
//! place: a work request (until it is sent, read, or flushed), the region table (until it is revoked), the message being received, or a completion.
//! When the stream ends every work request is turned into a completion before [`Completion::Disconnected`] is reported.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::rc::Rc;
use std::time::Duration;

use godwit_iwarp::{
    Connection, Fault, FpduSize as IwarpFpduSize, Initiator, Misuse, Negotiated, Options, Place, Received, Reply, Responder, Role,
    SendKind, Stag, StartupConfig,
};
use godwit_memory::{Buffer, Extent, Reservation};
use godwit_reactor::{Reactor, StreamId, TimerId};

use super::stream_buffers::StreamBuffers;
use super::transmit::{Sent, Transmit};
use super::work::{Payload, Work};
use crate::nudge::NUDGES;
use crate::{Access, Completion, Disconnect, FpduSize, Header, PrivateData, QpConfig, Remote, Rkey, WorkId};

/// Payload that is worth reading straight into its place: below this, copying it is cheaper than a shorter read.
const LANDING_BYTES: usize = 8 << 10;

/// How long the initiator waits for the connection and the Reply (as siw does).
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the responder waits for the Request (as siw does).
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the peer may take to close its side once we have asked to end the connection.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// FPDU payload for peers that take any size: whole blocks of any disk.
const LARGE_FPDU_BYTES: usize = 60 << 10;

const _: () = assert!(LARGE_FPDU_BYTES.is_multiple_of(4096), "no block is in two frames");

/// What TCP hands down in one piece at most (Linux's loopback, and network cards that cut it into packets). A little more would be two pieces, which cost
/// twice as much; and the peer can work on one while the next is made.
const SEGMENT_BYTES: usize = 65_483;

/// What a frame adds to its data, about.
const FRAME_BYTES: usize = 32;

/// Segment size to assume where TCP does not tell one.
const FALLBACK_SEGMENT_BYTES: usize = 1448;

#[derive(Debug)]
enum State {
    /// TCP is being connected.
    Connecting { initiator: Initiator, config: Box<QpConfig> },
    /// The MPA Request is sent or about to be.
    AwaitReply { initiator: Initiator, config: Box<QpConfig> },
    /// The MPA Request is expected.
    AwaitRequest { responder: Responder },
    /// The user of the queue pair decides.
    AwaitDecision { responder: Responder },
    /// FPDU mode.
    Streaming(Box<Streaming>),
    /// FPDU mode, and we want to end it: what was posted is sent, what comes is dropped.
    Closing { streaming: Box<Streaming>, sent: bool },
    /// Over. What is left are lent buffers to revoke.
    Ended { streaming: Option<Box<Streaming>> },
}

#[derive(Debug)]
struct Streaming {
    connection: Connection,
    payload: Payload,
    transmit: Transmit,
    /// Frames end at multiples of [`LARGE_FPDU_BYTES`], and of a disk's blocks.
    has_large_frames: bool,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) stream: StreamId,
    state: State,
    /// The timer of what must not last for ever: start-up, and the orderly end.
    pub(super) deadline: Option<TimerId>,
    /// The timer of the next nudge, and how many there may be.
    pub(super) nudge: Option<TimerId>,
    nudges: u8,
    /// Start-up bytes still to be sent.
    greeting: Vec<u8>,
    /// A buffer of the thread's, while it is needed; empty otherwise.
    received: Box<[u8]>,
    /// The part of `received` that was not looked at.
    unread: std::ops::Range<usize>,
    done: VecDeque<Completion>,
    stalled: bool,
    /// The last read took what there was; the stream's next event tells of more.
    dry: bool,
    /// It has read from its stream in this turn. Once is enough: what that brought is answered before more is read, so that both ends are at work at the
    /// same time; and a peer that never stops sending does not starve others.
    has_read: bool,
    /// It would have read once more.
    postponed: bool,
    /// Bytes posted since the last flush.
    posted_bytes: usize,
    /// How many they were when that was asked last.
    asked_at_bytes: usize,
}

/// What a step came to.
enum Step {
    /// Something to report.
    Completion(Completion),
    /// There may be more to do.
    Again,
    /// Nothing to do before the stream's next event.
    Idle,
}

impl Step {
    fn again_if(more: bool) -> Self {
        if more { Self::Again } else { Self::Idle }
    }
}

impl QueuePair {
    fn new(stream: StreamId, state: State, deadline: TimerId) -> Self {
        Self {
            stream,
            state,
            deadline: Some(deadline),
            nudge: None,
            nudges: NUDGES,
            greeting: Vec::new(),
            received: Box::default(),
            unread: 0..0,
            posted_bytes: 0,
            asked_at_bytes: 0,
            done: VecDeque::new(),
            stalled: false,
            dry: false,
            has_read: false,
            postponed: false,
        }
    }

    pub(super) fn connecting(stream: StreamId, timer: TimerId, config: &QpConfig, private_data: &[u8]) -> Result<Self, Misuse> {
        let startup = StartupConfig { crc: config.crc, ird: config.inbound_reads, ord: config.outbound_reads, peer_to_peer: None };
        let initiator = Initiator::new(startup, private_data)?;
        Ok(Self::new(stream, State::Connecting { initiator, config: Box::new(config.clone()) }, timer))
    }

    pub(super) fn accepted(stream: StreamId, timer: TimerId) -> Self {
        Self::new(stream, State::AwaitRequest { responder: Responder::new(false) }, timer)
    }

    /// Whether what was posted is not kept waiting for the flush at the end of the turn: it nearly is a segment, and with as much again as since the last
    /// time that this was asked, it would be more than one.
    pub(super) fn has_posted_much(&mut self) -> bool {
        let last = self.posted_bytes - std::mem::replace(&mut self.asked_at_bytes, self.posted_bytes);
        self.posted_bytes >= SEGMENT_BYTES * 3 / 4 && self.posted_bytes + last > SEGMENT_BYTES
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended { .. })
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Whether a stalled queue pair could go on now.
    pub(super) fn has_buffer(&self) -> bool {
        matches!(&self.state, State::Streaming(streaming) if streaming.payload.has_buffer())
    }

    pub(super) fn on_connected<R: Reactor>(&mut self, reactor: &mut R, result: io::Result<()>) {
        match (result, std::mem::replace(&mut self.state, State::Ended { streaming: None })) {
            (Ok(()), State::Connecting { initiator, config }) => {
                self.greeting = initiator.request().to_vec();
                self.state = State::AwaitReply { initiator, config };
            }
            (Err(error), state) => {
                self.state = state;
                self.fail(reactor, Disconnect::Connect(error));
            }
            (Ok(()), state) => self.state = state,
        }
    }

    pub(super) fn on_deadline<R: Reactor>(&mut self, reactor: &mut R) {
        self.deadline = None;
        match self.state {
            State::Closing { .. } => self.fail(reactor, Disconnect::Lost(io::ErrorKind::TimedOut.into())),
            State::Connecting { .. } => self.fail(reactor, Disconnect::Connect(io::ErrorKind::TimedOut.into())),
            State::AwaitReply { .. } => self.fail(reactor, Disconnect::StartupTimeout { seconds: REPLY_TIMEOUT.as_secs() }),
            State::AwaitRequest { .. } => self.fail(reactor, Disconnect::StartupTimeout { seconds: REQUEST_TIMEOUT.as_secs() }),
            _ => {}
        }
    }

    /// Has a nudge sent to a peer that has not answered. True when it may need another one.
    pub(super) fn on_nudge_timer(&mut self) -> bool {
        self.nudge = None;
        let State::Streaming(streaming) = &mut self.state else { return false };
        let connection = &mut streaming.connection;
        if !connection.received().is_empty() || self.nudges == 0 {
            return false;
        }
        self.nudges -= 1;
        if !connection.sent().is_empty() {
            connection.post_empty_write();
        }
        true
    }

    pub(super) fn cancel_timers<R: Reactor>(&mut self, reactor: &mut R) {
        for timer in [self.deadline.take(), self.nudge.take()].into_iter().flatten() {
            reactor.cancel_timer(timer);
        }
    }

    pub(super) fn on_readable(&mut self) {
        self.dry = false;
    }

    /// Grants the read of another turn; true when the last one's was not enough.
    pub(super) fn start_turn(&mut self) -> bool {
        self.has_read = false;
        std::mem::take(&mut self.postponed)
    }

    pub(super) fn on_writable(&mut self) {
        if let State::Streaming(streaming) | State::Closing { streaming, .. } = &mut self.state {
            streaming.transmit.unblock();
        }
    }

    pub(super) fn accept<R: Reactor>(&mut self, reactor: &mut R, config: &QpConfig, private_data: &[u8]) {
        let State::AwaitDecision { responder } = std::mem::replace(&mut self.state, State::Ended { streaming: None }) else { return };
        let mut responder = responder;
        if config.crc {
            responder.require_crc();
        }
        match responder.accept(config.inbound_reads, config.outbound_reads, private_data) {
            Ok((reply, negotiated)) => {
                self.greeting = reply;
                self.state = self.streaming(reactor, Role::Responder, negotiated, config);
            }
            Err(misuse) => self.fail(reactor, Disconnect::Startup(misuse.to_string())),
        }
    }

    /// The reject frame, best effort; the caller destroys the queue pair gracefully.
    pub(super) fn reject<R: Reactor>(&mut self, reactor: &mut R, private_data: &[u8]) {
        if let State::AwaitDecision { responder } = &mut self.state
            && let Ok(frame) = responder.reject(private_data)
        {
            let _ = send_whole(reactor, self.stream, &mut &frame[..]);
        }
    }

    fn streaming<R: Reactor>(&mut self, reactor: &mut R, role: Role, negotiated: Negotiated, config: &QpConfig) -> State {
        if let Some(timer) = self.deadline.take() {
            reactor.cancel_timer(timer);
        }
        let fpdu = match config.fpdu {
            FpduSize::Large => IwarpFpduSize::Payload(LARGE_FPDU_BYTES),
            FpduSize::Segment => IwarpFpduSize::Mss(reactor.max_segment_bytes(self.stream).unwrap_or(FALLBACK_SEGMENT_BYTES)),
        };
        self.done.reserve(config.send_depth + 2);
        State::Streaming(Box::new(Streaming {
            connection: Connection::new(role, negotiated, Options { fpdu, send_queue_depth: config.send_depth }),
            payload: Payload::new(config, reactor.pool()),
            transmit: Transmit::default(),
            has_large_frames: config.fpdu == FpduSize::Large,
        }))
    }

    /// Goes on until there is something to report, or nothing to do.
    pub(super) fn step<R: Reactor>(&mut self, reactor: &mut R, buffers: &mut StreamBuffers) -> Option<Completion> {
        loop {
            if let Some(completion) = self.done.pop_front() {
                return Some(completion);
            }
            if self.received.is_empty() {
                self.received = buffers.take();
            }
            let step = match &mut self.state {
                State::Streaming(_) => self.step_stream(reactor),
                State::AwaitReply { .. } => Step::again_if(self.step_reply(reactor)),
                State::AwaitRequest { .. } => Step::again_if(self.step_request(reactor)),
                State::Closing { .. } => Step::again_if(self.step_closing(reactor)),
                State::Connecting { .. } | State::AwaitDecision { .. } | State::Ended { .. } => Step::Idle,
            };
            match step {
                // Nothing can have come before it: the queue was empty.
                Step::Completion(completion) => return Some(completion),
                Step::Again => {}
                Step::Idle if !self.done.is_empty() => {}
                Step::Idle => {
                    if self.unread.is_empty() {
                        buffers.give_back(std::mem::take(&mut self.received));
                    }
                    return None;
                }
            }
        }
    }

    /// Has bytes in the stream buffer, read from the socket if need be. True when there are.
    fn fill<R: Reactor>(&mut self, reactor: &mut R) -> bool {
        !self.unread.is_empty() || (self.may_read() && self.read(reactor))
    }

    /// Whether a read is worth while, and granted in this turn.
    fn may_read(&mut self) -> bool {
        if self.dry {
            return false;
        }
        self.postponed = self.has_read;
        self.has_read = true;
        !self.postponed
    }

    fn read<R: Reactor>(&mut self, reactor: &mut R) -> bool {
        let result = reactor.receive(self.stream, &mut [IoSliceMut::new(&mut self.received)]);
        let room = self.received.len();
        match self.read_result(reactor, result, room) {
            Some(count) => {
                self.unread = 0..count;
                true
            }
            None => false,
        }
    }

    /// The bytes that a read brought; `None` when there are none now or no more.
    fn read_result<R: Reactor>(&mut self, reactor: &mut R, result: io::Result<usize>, room: usize) -> Option<usize> {
        match result {
            Ok(0) => {
                let reason = match self.state {
                    State::Closing { .. } => Disconnect::Closed,
                    State::AwaitReply { .. } => Disconnect::Startup(
                        "the peer closed the connection during the iWARP set-up: it does not speak iWARP, or refuses this client"
                            .to_owned(),
                    ),
                    _ => Disconnect::PeerClosed,
                };
                self.fail(reactor, reason);
                None
            }
            Ok(count) => {
                self.dry = count < room;
                Some(count)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.dry = true;
                None
            }
            Err(error) => {
                self.fail(reactor, Disconnect::Lost(error));
                None
            }
        }
    }

    fn step_reply<R: Reactor>(&mut self, reactor: &mut R) -> bool {
        if !self.fill(reactor) {
            return false;
        }
        let State::AwaitReply { initiator, .. } = &mut self.state else { return false };
        let (count, reply) = match initiator.receive(&self.received[self.unread.clone()]) {
            Ok(progress) => progress,
            Err(error) => {
                if let Some(terminate) = error.terminate() {
                    let _ = send_whole(reactor, self.stream, &mut &terminate[..]);
                }
                self.fail(reactor, Disconnect::Startup(error.to_string()));
                return true;
            }
        };
        self.unread.start += count;
        match reply {
            None => true,
            Some(Reply::Rejected { private_data }) => {
                self.done.push_back(Completion::Rejected { private_data: PrivateData(private_data.into()) });
                self.end(reactor);
                true
            }
            Some(Reply::Accepted { parameters, private_data }) => {
                let State::AwaitReply { config, .. } = std::mem::replace(&mut self.state, State::Ended { streaming: None }) else {
                    return false;
                };
                self.state = self.streaming(reactor, Role::Initiator, parameters, &config);
                self.done.push_back(Completion::Established { private_data: PrivateData(private_data.into()) });
                true
            }
        }
    }

    fn step_request<R: Reactor>(&mut self, reactor: &mut R) -> bool {
        if !self.fill(reactor) {
            return false;
        }
        let State::AwaitRequest { responder } = &mut self.state else { return false };
        let (count, request) = match responder.receive(&self.received[self.unread.clone()]) {
            Ok(progress) => progress,
            Err(error) => {
                // Where the frame was whole, its sender gets an answer.
                if let Ok(frame) = responder.reject(&[]) {
                    let _ = send_whole(reactor, self.stream, &mut &frame[..]);
                }
                self.fail(reactor, Disconnect::Startup(error.to_string()));
                return true;
            }
        };
        self.unread.start += count;
        let Some(request) = request else { return true };
        if !self.unread.is_empty() {
            self.fail(reactor, Disconnect::Startup("bytes follow the MPA Request before its Reply".to_owned()));
            return true;
        }
        let State::AwaitRequest { responder } = std::mem::replace(&mut self.state, State::Ended { streaming: None }) else { return false };
        self.state = State::AwaitDecision { responder };
        if let Some(timer) = self.deadline.take() {
            reactor.cancel_timer(timer);
        }
        // Without the enhanced set-up the peer says nothing of reads; none may be sent then (as siw tells its users).
        let peer_inbound_reads = if request.enhanced { request.peer_ird } else { 0 };
        self.done.push_back(Completion::ConnectRequest { private_data: PrivateData(request.private_data.into()), peer_inbound_reads });
        true
    }

    fn step_stream<R: Reactor>(&mut self, reactor: &mut R) -> Step {
        let State::Streaming(streaming) = &mut self.state else { return Step::Idle };
        let Streaming { connection, payload, .. } = &mut **streaming;
        match connection.receive(&self.received[self.unread.clone()], payload) {
            Ok((count, event)) => {
                self.unread.start += count;
                self.stalled = event == Received::Stalled;
                self.on_received(reactor, event)
            }
            Err(fault) => {
                self.fail_with(reactor, &fault);
                Step::Again
            }
        }
    }

    fn on_received<R: Reactor>(&mut self, reactor: &mut R, event: Received) -> Step {
        let State::Streaming(streaming) = &mut self.state else { return Step::Idle };
        match event {
            Received::NeedMore => return Step::again_if(self.fill_stream(reactor)),
            Received::Stalled => return Step::Idle,
            // Both make something sendable; the flush at the end of the turn sends it.
            Received::Established | Received::ReadRequested => {}
            Received::Message { length, invalidated, .. } => match streaming.payload.take_message(length as usize, invalidated) {
                Ok(completion) => return Step::Completion(completion),
                Err(header_bytes) => {
                    let reason = format!("a message of {length} bytes is shorter than a capsule of {header_bytes}");
                    self.fail(reactor, Disconnect::Violation(reason));
                }
            },
            Received::ReadDone { read } => {
                let work = usize::try_from(read).ok().and_then(|key| streaming.payload.works.try_remove(key));
                if let Some(Work::Read { id, sink }) = work {
                    return Step::Completion(Completion::ReadDone { id, data: sink });
                }
            }
            Received::Terminated(info) => self.fail(reactor, Disconnect::Terminated(info.to_string())),
        }
        Step::Again
    }

    /// Reads more of the stream, straight into place where much of one payload is still to come.
    fn fill_stream<R: Reactor>(&mut self, reactor: &mut R) -> bool {
        if !self.may_read() {
            return false;
        }
        let State::Streaming(streaming) = &mut self.state else { return false };
        let Streaming { connection, payload, .. } = &mut **streaming;
        let landing = connection.landing().filter(|landing| landing.len >= LANDING_BYTES);
        let place = landing.and_then(|landing| match landing.place {
            Place::Write { stag, to } => payload.regions.writable(stag, to, landing.len).ok(),
            Place::ReadResponse { read, offset } => payload.sink(read, offset, landing.len),
            Place::Receive { offset } => payload.incoming_data(offset, landing.len),
        });
        let Some(place) = place else { return self.read(reactor) };
        let place_len = place.len();
        let room = place_len + self.received.len();
        let result = reactor.receive(self.stream, &mut [IoSliceMut::new(place), IoSliceMut::new(&mut self.received)]);
        if let Ok(count) = result
            && count > 0
        {
            let landed = count.min(place_len);
            connection.landed(&place[..landed]);
            self.unread = 0..count - landed;
        }
        self.read_result(reactor, result, room).is_some()
    }

    fn step_closing<R: Reactor>(&mut self, reactor: &mut R) -> bool {
        self.unread = 0..0;
        let more = self.fill(reactor);
        self.unread = 0..0;
        more
    }

    /// Sends what there is to send. True when the next turn has something to do: to report what was completed or that the connection ended, or to
    /// send more.
    pub(super) fn flush<R: Reactor>(&mut self, reactor: &mut R) -> bool {
        (self.posted_bytes, self.asked_at_bytes) = (0, 0);
        if !self.greeting.is_empty() {
            let mut rest = &self.greeting[..];
            let result = send_whole(reactor, self.stream, &mut rest);
            self.greeting.drain(..self.greeting.len() - rest.len());
            match result {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => self.fail(reactor, Disconnect::Lost(error)),
                _ => {}
            }
            if !self.greeting.is_empty() {
                return !self.done.is_empty();
            }
        }
        let (State::Streaming(streaming) | State::Closing { streaming, .. }) = &mut self.state else { return !self.done.is_empty() };
        let Streaming { connection, payload, transmit, .. } = &mut **streaming;
        payload.fetch();
        match transmit.run(reactor, self.stream, connection, payload, &mut self.done) {
            Sent::All => {
                if let State::Closing { sent, .. } = &mut self.state
                    && !std::mem::replace(sent, true)
                {
                    reactor.shutdown_send(self.stream);
                }
            }
            Sent::Blocked => {}
            Sent::More => return true,
            Sent::Failed(reason) => self.fail(reactor, reason),
        }
        !self.done.is_empty()
    }

    /// Starts the orderly end. True when it has to wait for the peer, which is to have a deadline.
    pub(super) fn disconnect<R: Reactor>(&mut self, reactor: &mut R) -> bool {
        match std::mem::replace(&mut self.state, State::Ended { streaming: None }) {
            State::Streaming(streaming) => {
                self.stalled = false;
                self.state = State::Closing { streaming, sent: false };
                return true;
            }
            state @ (State::Closing { .. } | State::Ended { .. }) => self.state = state,
            state => {
                self.state = state;
                self.fail(reactor, Disconnect::Closed);
            }
        }
        false
    }

    /// Ends the connection without waiting for the peer.
    pub(super) fn abort<R: Reactor>(&mut self, reactor: &mut R) {
        self.fail(reactor, Disconnect::Lost(io::ErrorKind::TimedOut.into()));
    }

    /// Ends the stream over a fault of the peer, telling it which.
    fn fail_with<R: Reactor>(&mut self, reactor: &mut R, fault: &Fault) {
        if let State::Streaming(streaming) = &mut self.state {
            let Streaming { connection, payload, transmit, .. } = &mut **streaming;
            if let Some(segment) = connection.terminate(fault) {
                transmit.send_last(reactor, self.stream, payload, &segment, &mut self.done);
            }
        }
        self.fail(reactor, Disconnect::Violation(fault.to_string()));
    }

    /// Ends the queue pair: flushes its work, then reports why.
    fn fail<R: Reactor>(&mut self, reactor: &mut R, reason: Disconnect) {
        if matches!(self.state, State::Ended { .. }) {
            return;
        }
        self.end(reactor);
        if let State::Ended { streaming: Some(streaming) } = &mut self.state {
            self.done.extend(streaming.payload.abandon());
        }
        self.done.push_back(Completion::Disconnected { reason });
    }

    fn end<R: Reactor>(&mut self, reactor: &mut R) {
        self.cancel_timers(reactor);
        self.log_traffic(reactor);
        reactor.close_gracefully(self.stream);
        self.stalled = false;
        self.unread = 0..0;
        self.received = Box::default();
        self.greeting.clear();
        self.state = match std::mem::replace(&mut self.state, State::Ended { streaming: None }) {
            State::Streaming(streaming) | State::Closing { streaming, .. } => State::Ended { streaming: Some(streaming) },
            State::Ended { streaming } => State::Ended { streaming },
            _ => State::Ended { streaming: None },
        };
    }

    /// Says what went over the stream, when it is about to end.
    pub(super) fn log_traffic<R: Reactor>(&self, reactor: &R) {
        if let (State::Streaming(streaming) | State::Closing { streaming, .. }, Some(peer)) = (&self.state, reactor.peer(self.stream)) {
            let connection = &streaming.connection;
            tracing::debug!(
                "connection with {peer} ends; RDMAP messages by opcode: sent {}; received {}",
                connection.sent(),
                connection.received()
            );
        }
    }

    /// Posts a Send. True when it could not be: its flush is there to be reported.
    pub(super) fn post_send(&mut self, id: WorkId, header: &[u8], data: Option<Buffer>, invalidate: Option<Rkey>) -> bool {
        let mut bytes = [0; Header::MAX_BYTES];
        bytes[..header.len()].copy_from_slice(header);
        let len_bytes = header.len() + data.as_ref().map_or(0, |data| data.len());
        let kind = invalidate.map_or(SendKind::Plain, |Rkey(stag)| SendKind::Invalidate(Stag(stag)));
        let work = Work::Send { id, header: Header { bytes, len: header.len() }, data };
        self.post(work, |connection, key| connection.post_send(key, kind, message_len(len_bytes)))
    }

    pub(super) fn post_write(&mut self, mut data: Buffer, len_bytes: usize, to: Remote) -> bool {
        data.set_len(len_bytes);
        self.post(Work::Write { data }, |connection, key| connection.post_write(key, Stag(to.rkey.0), to.address, message_len(len_bytes)))
    }

    /// Posts an RDMA Write of what lies on a disk; gives it back where frames may end within a block.
    pub(super) fn post_write_extent(&mut self, extent: Extent, to: Remote) -> Result<bool, Extent> {
        if matches!(&self.state, State::Streaming(streaming) if !streaming.has_large_frames) {
            return Err(extent);
        }
        let len_bytes = extent.len_bytes();
        let post = |connection: &mut Connection, key| connection.post_write(key, Stag(to.rkey.0), to.address, message_len(len_bytes));
        Ok(self.post(Work::WriteExtent { extent }, post))
    }

    pub(super) fn post_read(&mut self, id: WorkId, mut sink: Buffer, len_bytes: usize, from: Remote) -> bool {
        sink.set_len(len_bytes);
        self.post(Work::Read { id, sink }, |connection, key| {
            connection.post_read(key, (Stag(from.rkey.0), from.address), message_len(len_bytes))
        })
    }

    fn post(&mut self, work: Work, post: impl FnOnce(&mut Connection, u64) -> Result<(), Misuse>) -> bool {
        let State::Streaming(streaming) = &mut self.state else {
            // Before the end is reported, unless that has happened.
            let ended = matches!(self.done.back(), Some(Completion::Disconnected { .. } | Completion::Rejected { .. }));
            let position = self.done.len() - usize::from(ended);
            if let Some(flushed) = work.flushed() {
                self.done.insert(position, flushed);
            }
            return true;
        };
        self.posted_bytes += FRAME_BYTES + work.data_bytes();
        let key = streaming.payload.add(work);
        match post(&mut streaming.connection, key) {
            Ok(()) => false,
            Err(misuse) => {
                // What a peer asked for cannot be done (an address that wraps, reads that it does not answer): its fault, and its end.
                let work = usize::try_from(key).ok().and_then(|key| streaming.payload.works.try_remove(key));
                self.done.extend(work.and_then(Work::flushed));
                self.doom(Disconnect::Violation(misuse.to_string()));
                true
            }
        }
    }

    /// Ends the queue pair where there is no reactor at hand; the stream is closed when the queue pair is destroyed.
    fn doom(&mut self, reason: Disconnect) {
        if let State::Streaming(streaming) = std::mem::replace(&mut self.state, State::Ended { streaming: None }) {
            let mut streaming = streaming;
            self.done.extend(streaming.payload.abandon());
            self.done.push_back(Completion::Disconnected { reason });
            self.state = State::Ended { streaming: Some(streaming) };
        }
    }

    pub(super) fn expose(&mut self, mut buffer: Buffer, len_bytes: usize, access: Access) -> Option<Remote> {
        let State::Streaming(streaming) = &mut self.state else { return None };
        buffer.set_len(len_bytes);
        Some(streaming.payload.regions.expose(buffer, access))
    }

    pub(super) fn revoke(&mut self, rkey: Rkey) -> Option<Buffer> {
        match &mut self.state {
            State::Streaming(streaming) | State::Closing { streaming, .. } | State::Ended { streaming: Some(streaming) } => {
                streaming.payload.regions.revoke(rkey)
            }
            _ => None,
        }
    }

    pub(super) fn receive_from(&mut self, reservation: Option<Rc<Reservation>>) {
        if let State::Streaming(streaming) = &mut self.state {
            streaming.payload.reservation = reservation;
        }
    }
}

/// Sends a start-up frame as far as the socket takes it; `frame` is what is left.
fn send_whole<R: Reactor>(reactor: &mut R, stream: StreamId, frame: &mut &[u8]) -> io::Result<()> {
    while !frame.is_empty() {
        let sent = reactor.send(stream, &[io::IoSlice::new(frame)])?;
        *frame = &frame[sent..];
    }
    Ok(())
}

fn message_len(len_bytes: usize) -> u32 {
    u32::try_from(len_bytes).expect("a message is at most a buffer and a header long")
}
