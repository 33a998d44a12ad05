//! One client: its socket, and the phase it is in.

use std::io::{self, IoSliceMut};
use std::sync::Arc;

use godwit_memory::Buffer;
use godwit_nbd::{Export, Handshake, Outcome, Session};
use godwit_reactor::{Peer, Reactor, StreamId, Time};
use slab::Slab;

use super::error::End;
use super::input::Input;
use super::limits::Limits;
use super::output::Output;
use super::request::PieceSizes;
use super::transmission::{Supply, Transmission};
use crate::block::{BlockDone, LossWatch, Losses};

/// An open connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: StreamId,
    pub(super) peer: Option<Peer>,
    pub(super) generation: u16,
    exports: Arc<[Export]>,
    /// Which of the volume's versions that is.
    pub(super) exports_version: u64,
    input: Input,
    output: Output,
    phase: Phase,
    /// What its client was told of writes that were lost.
    losses: Option<LossWatch>,
    /// Whether the socket may have more to read: until a read says that it has not.
    pub(super) readable: bool,
    /// Whether the socket may take something: until a send says that it does not.
    pub(super) writable: bool,
    /// Since when the socket has not taken a whole buffer; `None` while it takes all.
    blocked_since: Option<Time>,
    /// Whether there may be something to do.
    pub(super) dirty: bool,
}

#[derive(Debug)]
enum Phase {
    Handshake(Handshake),
    /// Before the first request.
    Agreed(Session),
    Transmission(Box<Transmission>),
    /// Nothing but what is queued to be sent.
    Closing,
}

impl Connection {
    pub(super) fn new(stream: StreamId, peer: Option<Peer>, generation: u16, exports: Arc<[Export]>) -> Self {
        let mut output = Output::new();
        output.push(&Handshake::greeting());
        Self::begin(stream, peer, generation, exports, 0, output, Phase::Handshake(Handshake::new()))
    }

    /// A socket to the kernel, which is told of the export by other means than a handshake, and keeps to simple replies.
    pub(super) fn attached(stream: StreamId, peer: Option<Peer>, generation: u16, exports: Arc<[Export]>, exports_version: u64) -> Self {
        let flags = exports[0].flags_for(false);
        let session = Session { export: 0, flags, structured: false, allocation: None, block_sizes_known: true };
        Self::begin(stream, peer, generation, exports, exports_version, Output::new(), Phase::Agreed(session))
    }

    fn begin(
        stream: StreamId,
        peer: Option<Peer>,
        generation: u16,
        exports: Arc<[Export]>,
        exports_version: u64,
        output: Output,
        phase: Phase,
    ) -> Self {
        Self {
            stream,
            peer,
            generation,
            exports,
            exports_version,
            input: Input::new(),
            output,
            phase,
            losses: None,
            readable: true,
            writable: true,
            blocked_since: None,
            dirty: true,
        }
    }

    /// The volume has grown, and the client was told.
    pub(super) fn renew_exports(&mut self, exports: Arc<[Export]>, version: u64) {
        if let Phase::Transmission(transmission) = &mut self.phase {
            transmission.renew_exports(Arc::clone(&exports));
        }
        (self.exports, self.exports_version) = (exports, version);
    }

    /// From its first turn on it is told of losses.
    pub(super) fn watch(&mut self, losses: &Losses) {
        self.losses.get_or_insert_with(|| losses.watch());
    }

    pub(super) fn is_in_handshake(&self) -> bool {
        matches!(self.phase, Phase::Handshake(_))
    }

    fn transmission(&self) -> Option<&Transmission> {
        if let Phase::Transmission(transmission) = &self.phase { Some(transmission) } else { None }
    }

    /// Whether its requests wait for operations of connections that ended.
    pub(super) fn is_held(&self) -> bool {
        self.transmission().is_some_and(Transmission::is_held)
    }

    /// Whether it waits for something that is told to nobody.
    pub(super) fn is_waiting(&self) -> bool {
        self.transmission().is_some_and(|transmission| transmission.is_held() || transmission.is_refused())
    }

    /// Whether a read would be made now.
    pub(super) fn wants_input(&self) -> bool {
        self.readable && self.input.has_space() && self.is_open()
    }

    fn is_open(&self) -> bool {
        match &self.phase {
            Phase::Handshake(_) | Phase::Agreed(_) => true,
            Phase::Transmission(transmission) => !transmission.is_ending(),
            Phase::Closing => false,
        }
    }

    /// Whether the client has kept a buffer for too long, by neither sending nor taking its data.
    pub(super) fn is_stalled(&self, now: Time, limits: &Limits) -> bool {
        let filling = self.transmission().and_then(Transmission::filling_since);
        let sending = self.blocked_since.filter(|_| self.output.data_bytes() > 0);
        [filling, sending].into_iter().flatten().any(|since| now.since(since) > limits.stall)
    }

    /// Answers what is under way, and nothing else.
    pub(super) fn stop(&mut self) {
        self.dirty = true;
        match &mut self.phase {
            Phase::Transmission(transmission) => transmission.stop(),
            phase => *phase = Phase::Closing,
        }
    }

    /// How it ended, once everything is done and sent.
    pub(super) fn end(&self) -> Option<End> {
        let end = match &self.phase {
            Phase::Transmission(transmission) if transmission.is_over() => End::Disconnected,
            Phase::Closing => End::Aborted,
            Phase::Handshake(_) | Phase::Agreed(_) | Phase::Transmission(_) => return None,
        };
        self.output.is_empty().then_some(end)
    }

    /// Reads once: payload that is expected into its buffer, all else into the stream buffer.
    pub(super) fn receive<R: Reactor>(&mut self, reactor: &mut R) -> Result<(), End> {
        let payload = match &mut self.phase {
            Phase::Transmission(transmission) if self.input.is_empty() => transmission.payload_space(),
            _ => None,
        };
        let payload = payload.unwrap_or_default();
        let payload_room = payload.len();
        let mut slices = [IoSliceMut::new(payload), IoSliceMut::new(self.input.space())];
        let slices = if payload_room > 0 { &mut slices[..] } else { &mut slices[1..] };
        match reactor.receive(self.stream, slices) {
            Ok(0) => return Err(End::Closed),
            Ok(len) => {
                self.dirty = true;
                let payload_len = len.min(payload_room);
                self.input.received(len - payload_len);
                if let Phase::Transmission(transmission) = &mut self.phase {
                    transmission.received(payload_len);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(End::Closed),
            Err(error) => return Err(End::Lost(error)),
        }
        Ok(())
    }

    /// Goes on with what was received.
    pub(super) fn advance(&mut self, limits: &Limits, sizes: PieceSizes, supply: &mut impl Supply) -> Result<(), End> {
        self.dirty = false;
        if let Phase::Handshake(handshake) = &mut self.phase
            // One answer at a time: a client that takes none gets no further ones.
            && self.output.is_empty()
            && !self.input.is_empty()
        {
            let (input, exports) = (&self.input, &self.exports);
            let (consumed, outcome) = self.output.append(|out| handshake.receive(input.bytes(), exports, out))?;
            self.input.consume(consumed);
            match outcome {
                Outcome::NeedMore | Outcome::Answered => {}
                Outcome::Transmission(session) => self.phase = Phase::Agreed(session),
                Outcome::Aborted => self.phase = Phase::Closing,
            }
        }
        if let Phase::Agreed(session) = self.phase {
            self.phase = Phase::Transmission(Box::new(Transmission::new(Arc::clone(&self.exports), session, limits, sizes)));
        }
        match &mut self.phase {
            Phase::Transmission(transmission) => transmission.advance(&mut self.input, &mut self.output, supply),
            Phase::Handshake(_) | Phase::Agreed(_) | Phase::Closing => Ok(()),
        }
    }

    /// Whether an operation that ended well fails after all, for the client is to be told of a loss. To be asked once, before [`Self::done`].
    pub(super) fn must_fail(&mut self, operation: usize, done: &BlockDone, losses: &Losses) -> bool {
        // The answer to a flush or FUA says that what was written before is safe: it is the one that may not be given after a loss.
        let Phase::Transmission(transmission) = &self.phase else { return false };
        done.result.is_ok() && transmission.is_sync(operation) && self.losses.as_mut().is_some_and(|watch| watch.tell(losses))
    }

    /// An operation ended.
    pub(super) fn done(&mut self, operation: usize, done: BlockDone) -> Result<(), End> {
        self.dirty = true;
        let data: Option<Buffer> = done.buffer;
        match &mut self.phase {
            Phase::Transmission(transmission) => transmission.done(operation, done.result, data, &mut self.output),
            Phase::Handshake(_) | Phase::Agreed(_) | Phase::Closing => unreachable!("operations are made in transmission"),
        }
    }

    /// Sends what is ready.
    pub(super) fn send<R: Reactor>(&mut self, reactor: &mut R) -> Result<(), End> {
        if self.output.is_empty() || !self.writable {
            return Ok(());
        }
        let sent = self.output.send(reactor, self.stream).map_err(End::Lost)?;
        // Room in the send queue, and buffers that became free, may be what something waited for.
        self.dirty |= sent.bytes > 0;
        self.writable = sent.all;
        if sent.all {
            self.blocked_since = None;
        } else if sent.buffers > 0 || self.blocked_since.is_none() {
            self.blocked_since = Some(reactor.now());
        }
        Ok(())
    }

    /// The operations that were handed over and have not ended; all else is dropped.
    pub(super) fn into_operations(self) -> Slab<()> {
        match self.phase {
            Phase::Transmission(transmission) => transmission.into_operations(),
            Phase::Handshake(_) | Phase::Agreed(_) | Phase::Closing => Slab::new(),
        }
    }
}
