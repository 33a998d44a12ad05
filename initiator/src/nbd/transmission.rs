//! The requests of one connection: from the stream to operations, and from their ends to replies.

use std::collections::VecDeque;
use std::sync::Arc;

use godwit_memory::Buffer;
use godwit_nbd::wire::ChunkFlags;
use godwit_nbd::{Command, CommandFlags, Export, ExtentFlags, Parsed, Reply, Request, Requests, Session};
use godwit_reactor::Time;
use slab::Slab;

use super::error::{End, errno};
use super::gate::Mark;
use super::input::Input;
use super::limits::{Limits, WINDOW};
use super::output::Output;
use super::request::{Active, FlushAfter, Ordered, PieceSizes, Step, Work};
use crate::block::{BlockError, BlockOp};

/// What a connection's requests need from around them.
pub(super) trait Supply {
    /// A buffer from the pool, or a place in the queue for one.
    fn take(&mut self, len_bytes: usize) -> Option<Buffer>;
    /// A buffer, if there is one now and nobody waits for it.
    fn try_take(&mut self, len_bytes: usize) -> Option<Buffer>;
    /// Hands over an operation of this connection, or has it back when the volume's queue is full.
    fn submit(&mut self, operation: usize, op: BlockOp) -> Result<(), BlockOp>;
    /// The moment now, for the gate.
    fn mark(&self) -> Mark;
    /// Whether what came by `mark` may start.
    fn is_clear(&self, mark: Mark) -> bool;
    /// The time of this turn.
    fn now(&self) -> Time;
}

/// An operation that has not ended.
#[derive(Clone, Copy, Debug)]
struct Operation {
    /// Its request.
    request: usize,
    /// Its first byte, from the request's first.
    offset: u32,
    /// Bytes of its buffer.
    data_bytes: usize,
}

/// A write whose payload is coming.
#[derive(Debug)]
struct Payload {
    request: usize,
    /// The piece that is being filled, once there is a buffer for it.
    piece: Option<Piece>,
}

#[derive(Debug)]
struct Piece {
    buffer: Buffer,
    filled: usize,
    since: Time,
}

/// The transmission phase of a connection.
pub(super) struct Transmission {
    exports: Arc<[Export]>,
    session: Session,
    limits: Limits,
    sizes: PieceSizes,
    requests: Requests,
    active: Slab<Active>,
    operations: Slab<Operation>,
    /// Requests that have operations to issue; they take turns.
    issuing: VecDeque<usize>,
    payload: Option<Payload>,
    /// The read whose reply is queued part by part. No other read is begun beside it, so that no other data can stand in the middle of its reply.
    streaming: Option<usize>,
    /// The operation that the volume's queue had no room for; nothing is issued before it.
    refused: Option<(usize, BlockOp)>,
    /// Bytes of buffers that this connection holds, but for those that wait to be sent.
    held_bytes: usize,
    /// Whether anything was received since [`Self::after`] was set.
    fresh: bool,
    /// Requests that were received start only behind this mark...
    after: Mark,
    /// ...which has been passed up to this one.
    cleared: Mark,
    /// No request is read any more.
    ending: bool,
}

impl Transmission {
    pub(super) fn new(exports: Arc<[Export]>, session: Session, limits: &Limits, sizes: PieceSizes) -> Self {
        Self {
            exports,
            session,
            limits: *limits,
            sizes,
            requests: Requests::new(),
            active: Slab::with_capacity(limits.requests),
            operations: Slab::with_capacity(limits.operations),
            issuing: VecDeque::with_capacity(limits.requests),
            payload: None,
            streaming: None,
            refused: None,
            held_bytes: 0,
            fresh: true,
            after: Mark::default(),
            cleared: Mark::default(),
            ending: false,
        }
    }

    /// What the client may reach has changed, and it knows.
    pub(super) fn renew_exports(&mut self, exports: Arc<[Export]>) {
        self.exports = exports;
    }

    /// Where the next bytes of the stream belong, when that is known: the rest of the piece of payload that is being filled.
    pub(super) fn payload_space(&mut self) -> Option<&mut [u8]> {
        let piece = self.payload.as_mut()?.piece.as_mut()?;
        Some(&mut piece.buffer[piece.filled..])
    }

    /// Bytes were received; the first so many of them into [`Self::payload_space`].
    pub(super) fn received(&mut self, payload_bytes: usize) {
        self.fresh = true;
        if payload_bytes > 0
            && let Some(piece) = self.payload.as_mut().and_then(|payload| payload.piece.as_mut())
        {
            piece.filled += payload_bytes;
            self.requests.take(u32::try_from(payload_bytes).expect("a piece is shorter than its request"));
        }
    }

    /// Begins no further request. What is under way is answered, but for a write whose payload has not come.
    pub(super) fn stop(&mut self) {
        self.ending = true;
        if let Some(Payload { request, piece }) = self.payload.take() {
            self.held_bytes -= piece.map_or(0, |piece| piece.buffer.len());
            let active = &mut self.active[request];
            active.silent = true;
            active.work = Work::Write { arrived: true };
            active.failure.get_or_insert(super::request::Failure { error: BlockError::Abandoned, offset: active.request.offset });
            if active.is_finished() {
                self.active.remove(request);
            }
        }
    }

    /// Whether the client said goodbye, or [`Self::stop`] did, and nothing is left to answer.
    pub(super) fn is_over(&self) -> bool {
        self.ending && self.active.is_empty()
    }

    /// Whether further input is of no interest.
    pub(super) fn is_ending(&self) -> bool {
        self.ending
    }

    /// Since when a piece of payload has been coming, if one is.
    pub(super) fn filling_since(&self) -> Option<Time> {
        let piece = self.payload.as_ref()?.piece.as_ref()?;
        (piece.filled < piece.buffer.len()).then_some(piece.since)
    }

    /// Whether requests wait for operations of connections that ended.
    pub(super) fn is_held(&self) -> bool {
        self.after > self.cleared
    }

    /// Whether an operation waits for room in the volume's queue.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// The operations that were handed over and have not ended. All else is dropped.
    pub(super) fn into_operations(mut self) -> Slab<()> {
        if let Some((operation, _)) = self.refused.take() {
            self.operations.remove(operation);
        }
        self.operations.iter().map(|(operation, _)| (operation, ())).collect()
    }

    /// Goes on as far as input, buffers and the volume's queue allow.
    pub(super) fn advance(&mut self, input: &mut Input, output: &mut Output, supply: &mut impl Supply) -> Result<(), End> {
        if std::mem::take(&mut self.fresh) {
            self.after = supply.mark();
        }
        if let Some((operation, op)) = self.refused.take() {
            self.submit(operation, op, supply);
        }
        loop {
            self.issue(output, supply);
            if self.ending {
                input.consume(input.bytes().len());
                return Ok(());
            }
            if self.payload.is_some() {
                if !self.take_payload(input, output, supply) {
                    return Ok(());
                }
                continue;
            }
            if input.is_empty() || !self.may_admit(output, supply) {
                return Ok(());
            }
            let (consumed, parsed) = self.requests.parse(input.bytes())?;
            input.consume(consumed);
            match parsed {
                Some(Parsed::Request(request)) => self.admit(request, output),
                Some(Parsed::Refused(reply)) => output.push(reply.as_bytes()),
                None => {}
            }
        }
    }

    /// Whether there is room for one more request, and whether it may start.
    fn may_admit(&mut self, output: &Output, supply: &impl Supply) -> bool {
        if self.is_held() && supply.is_clear(self.after) {
            self.cleared = self.after;
        }
        !self.is_held() && self.refused.is_none() && self.active.len() < self.limits.requests && !output.is_backlogged()
    }

    /// Checks a request, and begins it or answers it.
    fn admit(&mut self, request: Request, output: &mut Output) {
        let export = &self.exports[self.session.export];
        if let Err(refusal) = request.check(&self.session, export) {
            let reply = Reply::error(&self.session, &request, refusal.errno(), refusal);
            if let Some(reply) = self.requests.refuse(reply) {
                output.push(reply.as_bytes());
            }
            return;
        }
        let work = match request.command {
            Command::Disconnect => {
                self.ending = true;
                return;
            }
            Command::Flush => Work::Flush,
            Command::Read if request.length == 0 => {
                return output.push(Reply::read(&self.session, &request).as_bytes());
            }
            Command::BlockStatus => {
                // The volume's map is not known here: data is always a true answer.
                return output.push(Reply::block_status(&self.session, &request, request.length, ExtentFlags::NONE).as_bytes());
            }
            // To read ahead would take buffers from requests that someone waits for.
            Command::Cache => return output.push(Reply::ok(&request).as_bytes()),
            _ if request.length == 0 => return output.push(Reply::ok(&request).as_bytes()),
            Command::Read if !self.session.structured || request.flags.contains(CommandFlags::DF) => Work::OrderedRead(Ordered::default()),
            Command::Read => Work::Read,
            Command::Write => Work::Write { arrived: false },
            Command::Trim => Work::Trim(if request.fua() { FlushAfter::Due } else { FlushAfter::No }),
            Command::WriteZeroes => Work::Zeroes,
            Command::Unknown(_) => unreachable!("refused by the check"),
        };
        let has_payload = matches!(work, Work::Write { .. });
        let key = self.active.insert(Active::new(request, work));
        if has_payload {
            self.payload = Some(Payload { request: key, piece: None });
        } else {
            self.enqueue(key);
        }
    }

    fn enqueue(&mut self, request: usize) {
        let active = &mut self.active[request];
        if !active.queued {
            active.queued = true;
            self.issuing.push_back(request);
        }
    }

    /// Issues operations of the requests in the queue, which take turns.
    fn issue(&mut self, output: &Output, supply: &mut impl Supply) {
        let (mut skipped, mut starved) = (0, false);
        while skipped < self.issuing.len() && self.refused.is_none() && self.operations.len() < self.limits.operations {
            let key = self.issuing[0];
            let Some(step) = self.active[key].next_step(&self.sizes) else {
                self.active[key].queued = false;
                self.issuing.pop_front();
                continue;
            };
            let buffer = match step {
                Step::Read { offset, len } => match self.read_buffer(key, offset, len, starved, output, supply) {
                    Ok(buffer) => Some(buffer),
                    Err(starves) => {
                        starved |= starves;
                        skipped += 1;
                        self.issuing.rotate_left(1);
                        continue;
                    }
                },
                _ => None,
            };
            self.issuing.rotate_left(1);
            self.start(key, step, buffer, supply);
        }
    }

    /// The buffer for a piece of a read. `Err`: not now; true when that is for want of one, so that no other read may have it.
    fn read_buffer(
        &mut self,
        key: usize,
        offset: u32,
        len: u32,
        starved: bool,
        output: &Output,
        supply: &mut impl Supply,
    ) -> Result<Buffer, bool> {
        if let Some(own) = self.active[key].take_own(offset, &self.sizes) {
            return Ok(own);
        }
        if starved || self.streaming.is_some_and(|streaming| streaming != key) {
            return Err(false);
        }
        let mine = self.held_bytes + output.data_bytes();
        let allowed = |len: u32| mine == 0 || mine + len as usize <= self.limits.bytes_in_flight;
        if output.is_backlogged() || !allowed(len) {
            return Err(true);
        }
        let whole = allowed(self.active[key].request.length);
        if let Some(buffers) = self.decide(key, whole, supply) {
            self.held_bytes += buffers;
            return self.active[key].take_own(offset, &self.sizes).ok_or(true);
        }
        let buffer = supply.take(len as usize).ok_or(true)?;
        self.held_bytes += buffer.len();
        Ok(buffer)
    }

    /// Decides how an ordered read of several pieces is answered. If wholly, it has taken all its buffers at once (how many bytes), so that it never
    /// waits for one while it holds others back.
    fn decide(&mut self, key: usize, may_be_whole: bool, supply: &mut impl Supply) -> Option<usize> {
        let active = &mut self.active[key];
        let mut pieces = active.pieces(&self.sizes);
        let ordered = active.undecided(&self.sizes)?;
        let mut buffers: [Option<Buffer>; WINDOW] = Default::default();
        for (buffer, len) in buffers.iter_mut().zip(&mut pieces) {
            *buffer = if may_be_whole { supply.try_take(len as usize) } else { None };
            if buffer.is_none() {
                ordered.decide(None);
                self.streaming = Some(key);
                return None;
            }
        }
        if pieces.next().is_some() {
            ordered.decide(None);
            self.streaming = Some(key);
            return None;
        }
        let bytes = buffers.iter().flatten().map(|buffer| buffer.len()).sum();
        ordered.decide(Some(buffers));
        Some(bytes)
    }

    /// Makes the operation of a step.
    fn start(&mut self, key: usize, step: Step, buffer: Option<Buffer>, supply: &mut impl Supply) {
        let active = &mut self.active[key];
        let request = active.request;
        let at = |offset: u32| request.offset + u64::from(offset);
        let (offset, len, op) = match step {
            Step::Read { offset, len } => {
                let buffer = buffer.expect("a read has a buffer");
                (offset, len, BlockOp::Read { offset: at(offset), len_bytes: len as usize, buffer })
            }
            Step::Zeroes { offset, len } => {
                let may_deallocate = !request.flags.contains(CommandFlags::NO_HOLE);
                let op = BlockOp::WriteZeroes { offset: at(offset), len_bytes: len.into(), may_deallocate, fua: request.fua() };
                (offset, len, op)
            }
            Step::Discard { offset, len } => (offset, len, BlockOp::Discard { offset: at(offset), len_bytes: len.into() }),
            Step::Flush => (0, 0, BlockOp::Flush),
        };
        let data_bytes = if let Step::Read { len, .. } = step { len as usize } else { 0 };
        match step {
            Step::Flush => active.issue_flush(),
            _ => active.issue(len),
        }
        let operation = self.operations.insert(Operation { request: key, offset, data_bytes });
        self.submit(operation, op, supply);
    }

    fn submit(&mut self, operation: usize, op: BlockOp, supply: &mut impl Supply) {
        assert!(self.refused.is_none(), "an operation is issued while another waits for room in the queue");
        self.refused = supply.submit(operation, op).err().map(|op| (operation, op));
    }

    /// Takes payload off the stream into buffers, and submits those that are full; whether all payload of the request has come.
    fn take_payload(&mut self, input: &mut Input, output: &mut Output, supply: &mut impl Supply) -> bool {
        while let Some(Payload { request: key, piece }) = self.payload.take() {
            if self.active[key].failure.is_some() {
                return self.discard_payload(key, piece, input, output);
            }
            let Some(mut piece) = piece.or_else(|| self.take_piece(key, supply)) else {
                self.payload = Some(Payload { request: key, piece: None });
                return false;
            };
            let len = input.bytes().len().min(piece.buffer.len() - piece.filled);
            piece.buffer[piece.filled..piece.filled + len].copy_from_slice(&input.bytes()[..len]);
            piece.filled += len;
            input.consume(len);
            self.requests.take(u32::try_from(len).expect("a piece is shorter than its request"));
            // Whole, it still waits behind an operation that found no room: there is one place for such.
            if piece.filled < piece.buffer.len() || self.refused.is_some() {
                self.payload = Some(Payload { request: key, piece: Some(piece) });
                return false;
            }
            self.start_write(key, piece.buffer, supply);
            if self.requests.payload_owed() > 0 {
                self.payload = Some(Payload { request: key, piece: None });
            }
        }
        true
    }

    /// A buffer for the next piece of payload, if one may be taken now.
    fn take_piece(&mut self, key: usize, supply: &mut impl Supply) -> Option<Piece> {
        let (_, len) = self.active[key].next_payload(&self.sizes);
        let len = len as usize;
        let room = self.refused.is_none() && self.operations.len() < self.limits.operations && self.active[key].in_window();
        let allowed = self.held_bytes == 0 || self.held_bytes + len <= self.limits.bytes_in_flight;
        if !room || !allowed {
            return None;
        }
        let buffer = supply.take(len)?;
        self.held_bytes += len;
        Some(Piece { buffer, filled: 0, since: supply.now() })
    }

    /// The write failed already: the rest of its payload is of no use, but stands in the stream.
    fn discard_payload(&mut self, key: usize, piece: Option<Piece>, input: &mut Input, output: &mut Output) -> bool {
        self.held_bytes -= piece.map_or(0, |piece| piece.buffer.len());
        let owed = self.requests.payload_owed();
        let len = u32::try_from(input.bytes().len()).unwrap_or(u32::MAX).min(owed);
        input.consume(len as usize);
        self.requests.take(len);
        if len < owed {
            self.payload = Some(Payload { request: key, piece: None });
            return false;
        }
        self.active[key].work = Work::Write { arrived: true };
        self.finish_if_done(key, output);
        true
    }

    fn start_write(&mut self, key: usize, buffer: Buffer, supply: &mut impl Supply) {
        let active = &mut self.active[key];
        let request = active.request;
        let len_bytes = buffer.len();
        let (offset, len) = active.next_payload(&self.sizes);
        active.issue(len);
        if self.requests.payload_owed() == 0 {
            active.work = Work::Write { arrived: true };
        }
        let operation = self.operations.insert(Operation { request: key, offset, data_bytes: len_bytes });
        let op = BlockOp::Write { offset: request.offset + u64::from(offset), len_bytes, buffer, fua: request.fua() };
        self.submit(operation, op, supply);
    }

    /// Whether an operation is of a request that is to bring something to stable storage.
    pub(super) fn is_sync(&self, operation: usize) -> bool {
        let request = &self.active[self.operations[operation].request].request;
        request.command == Command::Flush || request.fua()
    }

    /// An operation ended.
    pub(super) fn done(
        &mut self,
        operation: usize,
        result: Result<(), BlockError>,
        buffer: Option<Buffer>,
        output: &mut Output,
    ) -> Result<(), End> {
        let Operation { request: key, offset, data_bytes } = self.operations.remove(operation);
        self.held_bytes -= data_bytes;
        let active = &mut self.active[key];
        active.ended(offset, result);
        if let Some(failure) = active.failure {
            if active.reply_has_begun() {
                let Request { offset, length, .. } = active.request;
                return Err(End::BrokenReply { offset, length, error: failure.error });
            }
        } else if let Some(data) = buffer {
            self.read_piece(key, offset, data, output);
        }
        self.go_on(key, output);
        // This may have been the last that stood in the way of a reply that is queued part by part.
        if let Some(streaming) = self.streaming.filter(|&streaming| streaming != key) {
            self.go_on(streaming, output);
        }
        Ok(())
    }

    /// Hands over what may leave of a request's reply, and has its next operations issued.
    fn go_on(&mut self, key: usize, output: &mut Output) {
        self.send_parts(key, output);
        if !self.finish_if_done(key, output) && self.active[key].next_step(&self.sizes).is_some() {
            self.enqueue(key);
        }
    }

    /// Hands over what may leave of an ordered reply.
    fn send_parts(&mut self, key: usize, output: &mut Output) {
        let quiet = self.streaming == Some(key) && self.active.iter().all(|(other, active)| other == key || !active.reads());
        let active = &mut self.active[key];
        while let Some(part) = active.next_part(&self.sizes, quiet) {
            self.held_bytes -= part.data.len();
            if part.first {
                output.push_part(Reply::read(&self.session, &active.request).as_bytes(), part.data, part.last);
            } else {
                output.push_part(&[], part.data, part.last);
            }
        }
    }

    /// A piece of a read has come (the buffer of a write just returns to its pool).
    fn read_piece(&mut self, key: usize, offset: u32, data: Buffer, output: &mut Output) {
        let active = &mut self.active[key];
        match active.work {
            Work::Read => {
                let flags = if active.is_finished() { ChunkFlags::DONE } else { ChunkFlags::NONE };
                let length = u32::try_from(data.len()).expect("a piece is shorter than its request");
                let head = Reply::offset_data(flags, active.request.cookie, active.request.offset + u64::from(offset), length);
                output.push_data(head.as_bytes(), data);
            }
            Work::OrderedRead(_) => {
                self.held_bytes += data.len();
                active.hold(offset, data, &self.sizes);
            }
            _ => {}
        }
    }

    /// Answers and forgets a request that has nothing left to do; whether that is so.
    fn finish_if_done(&mut self, key: usize, output: &mut Output) -> bool {
        if !self.active[key].is_finished() {
            return false;
        }
        let mut active = self.active.remove(key);
        if active.queued {
            self.issuing.retain(|&queued| queued != key);
        }
        if self.streaming == Some(key) {
            self.streaming = None;
        }
        self.held_bytes -= active.drop_held();
        match active.failure {
            _ if active.silent => {}
            Some(failure) => output.push(error_reply(&self.session, &active.request, failure).as_bytes()),
            None if active.request.command == Command::Read => {}
            None => output.push(Reply::ok(&active.request).as_bytes()),
        }
        true
    }
}

fn error_reply(session: &Session, request: &Request, failure: super::request::Failure) -> Reply {
    let errno = errno(failure.error, request);
    if session.structured && request.command == Command::Read {
        Reply::error_chunk(request.cookie, errno, failure.error, Some(failure.offset))
    } else {
        Reply::error(session, request, errno, failure.error)
    }
}

impl std::fmt::Debug for Transmission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transmission")
            .field("requests", &self.active.len())
            .field("operations", &self.operations.len())
            .field("held_bytes", &self.held_bytes)
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}
