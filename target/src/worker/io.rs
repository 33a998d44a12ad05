//! I/O commands: from the capsule through memory and backend to the response.

use godwit_memory::Buffer;
use godwit_nvme::{DsmRange, Nsid, Sqe, Status, StatusCode};
use godwit_rdma::{Remote, WorkId};
use godwit_reactor::{FileDone, Reactor, Token};

use super::connection::Attempt;
use super::{Context, Worker, place};
use crate::backend::{BackendError, Operation, Progress};
use crate::queue::{Phase, Purpose, Running, Work};
use crate::request::{Action, DataAt, Refusal, Request, location};
use crate::status;
use crate::subsystem::Namespace;

impl<R: Reactor> Worker<R> {
    pub(super) fn on_io_command(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, sqe: &Sqe, data: Option<Buffer>) {
        let Phase::Io(member) = &self.queues[index].phase else { return };
        let Some(subsystem) = self.offer.subsystem(member.association.subsystem) else {
            // It was removed a moment ago, and the association is about to end.
            self.give_back(index, data);
            return self.refuse(ctx, index, slot, Refusal::at(location::NSID, StatusCode::INVALID_NAMESPACE_OR_FORMAT), 0);
        };
        let request = match Request::parse(sqe, data.as_ref().map_or(0, |data| data.len()), subsystem) {
            Ok(request) => request,
            Err(refusal) => {
                self.give_back(index, data);
                return self.refuse(ctx, index, slot, refusal, 0);
            }
        };
        match request.action {
            Action::Compare { from: DataAt::Capsule { .. } } => self.start_capsule_compare(ctx, index, slot, request, data),
            Action::Write { from: DataAt::Capsule { .. }, .. } | Action::Discard { from: DataAt::Capsule { .. }, .. } => {
                self.start(ctx, index, slot, request, data, None);
            }
            Action::Zero { .. } | Action::Flush => {
                self.give_back(index, data);
                self.start(ctx, index, slot, request, None, None);
            }
            Action::Nothing => {
                self.give_back(index, data);
                self.respond(ctx, index, slot, Status::SUCCESS, 0);
            }
            Action::Read { to } => {
                self.give_back(index, data);
                if !self.read_in_place(ctx, index, slot, request, to) {
                    self.wait_for_memory(ctx, index, slot, request);
                }
            }
            Action::Write { .. } | Action::Compare { .. } | Action::Discard { .. } => {
                self.give_back(index, data);
                self.wait_for_memory(ctx, index, slot, request);
            }
        }
    }

    /// Answers a read of memory with what lies there: it needs no buffer, and is not copied. False where that cannot be done.
    fn read_in_place(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, request: Request, to: Remote) -> bool {
        let queue = &self.queues[index];
        let place = place(&self.places, request.store);
        // What belongs to a dying association is dropped on the usual way.
        let extent = match place.attached.extent(request.offset_bytes, request.data_bytes()) {
            Ok(Some(extent)) if !queue.is_dying() => extent,
            _ => return false,
        };
        if ctx.fabric.post_write_extent(queue.qp, extent, to).is_err() {
            return false;
        }
        place.counters.of(self.index).count_read(request.len_bytes);
        self.respond(ctx, index, slot, Status::SUCCESS, 0);
        true
    }

    /// A Compare whose data came in the capsule: it holds a buffer, so that it does not wait for another.
    fn start_capsule_compare(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, request: Request, data: Option<Buffer>) {
        let other = if self.waiting.is_empty() { ctx.reactor.pool().take(request.data_bytes()) } else { None };
        if other.is_some() {
            self.start(ctx, index, slot, request, data, other);
        } else {
            self.give_back(index, data);
            self.refuse(ctx, index, slot, StatusCode::COMMAND_INTERRUPTED.retryable().into(), 0);
        }
    }

    fn give_back(&self, index: usize, data: Option<Buffer>) {
        if let (Some(data), Some(queue)) = (data, self.queues.get(index)) {
            queue.give_back(data);
        }
    }

    /// An RDMA Read has brought its data.
    pub(super) fn on_fetched(&mut self, ctx: &mut Context<'_, R>, index: usize, id: WorkId, data: Buffer) {
        let Ok(slot) = u16::try_from(id.0) else { return };
        let queue = &mut self.queues[index];
        queue.reads -= 1;
        queue.last_read = ctx.reactor.now();
        match queue.slots.take_work(slot) {
            Work::ConnectData(connect) => {
                let parsed = godwit_nvme::ConnectData::read_from(&data);
                queue.give_back(data);
                match parsed {
                    Ok(parsed) => self.connect(ctx, index, slot, connect, parsed, Attempt::First),
                    Err(_) => self.refuse(ctx, index, slot, StatusCode::DATA_SGL_LENGTH_INVALID.do_not_retry().into(), 0),
                }
            }
            Work::Fetching(request, other) => self.start(ctx, index, slot, request, Some(data), other),
            other => queue.slots.set_work(slot, other),
        }
    }

    /// An RDMA Read ended with its queue pair: its command never reaches a backend.
    pub(super) fn on_read_lost(&mut self, _: &Context<'_, R>, index: usize, id: WorkId) {
        let Ok(slot) = u16::try_from(id.0) else { return };
        let queue = &mut self.queues[index];
        queue.reads -= 1;
        if matches!(queue.slots.get(slot).map(|slot| &slot.work), Some(Work::ConnectData(_) | Work::Fetching(..))) {
            queue.slots.release(slot);
        }
    }

    /// Starts a command that has all its memory: `data` is what its first step needs, `other` what a Compare reads into.
    pub(super) fn start(
        &mut self,
        ctx: &mut Context<'_, R>,
        index: usize,
        slot: u16,
        request: Request,
        mut data: Option<Buffer>,
        other: Option<Buffer>,
    ) {
        // The fence: nothing of a dying association starts (see the module `association`).
        if self.queues[index].is_dying() {
            self.give_back(index, data);
            self.queues[index].slots.release(slot);
            return;
        }
        let from = match request.action {
            Action::Write { from, .. } | Action::Compare { from } | Action::Discard { from, .. } => Some(from),
            _ => None,
        };
        if let (Some(DataAt::Capsule { start: 1.. }), Some(data)) = (from, &mut data) {
            bring_to_front(data, from, request.data_bytes());
        }
        let Request { offset_bytes: offset, len_bytes, .. } = request;
        let len = request.data_bytes();
        let (operation, held) = match (request.action, data) {
            (Action::Read { .. }, Some(buffer)) => (Operation::Read { offset, len, buffer }, None),
            (Action::Write { durable, .. }, Some(buffer)) => (Operation::Write { offset, len, buffer, durable }, None),
            (Action::Compare { .. }, Some(data)) => {
                let Some(buffer) = other else { unreachable!("a Compare starts with two buffers") };
                (Operation::Read { offset, len, buffer }, Some(data))
            }
            (Action::Zero { deallocate, durable }, _) => (Operation::Zero { offset, len: len_bytes, deallocate, durable }, None),
            (Action::Flush, _) => (Operation::Flush, None),
            (Action::Discard { .. }, Some(data)) => return self.start_discard(ctx, index, slot, request, data),
            (action, data) => unreachable!("{action:?} with {data:?}"),
        };
        self.run(ctx, (index, slot), request, held, operation, 0);
    }

    /// Checks all ranges of a Dataset Management, then discards the first.
    fn start_discard(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, request: Request, data: Buffer) {
        match self.next_discard(index, slot, request, &data, 0) {
            Ok(Some((operation, next))) => self.run(ctx, (index, slot), request, Some(data), operation, next),
            Ok(None) => {
                self.give_back(index, Some(data));
                self.respond(ctx, index, slot, Status::SUCCESS, 0);
            }
            Err(refusal) => {
                self.give_back(index, Some(data));
                self.refuse(ctx, index, slot, refusal, 0);
            }
        }
    }

    /// The discard of the first range from `next` on that is not empty. From the first on, all ranges are checked, so that a command with a bad one
    /// touches nothing.
    fn next_discard(&self, index: usize, slot: u16, request: Request, data: &[u8], next: u16) -> Result<Option<(Operation, u16)>, Refusal> {
        let Action::Discard { ranges: count, .. } = request.action else { return Ok(None) };
        let out_of_range = Refusal { status: StatusCode::LBA_OUT_OF_RANGE.do_not_retry(), location: None };
        let removed = Refusal::at(location::NSID, StatusCode::INVALID_NAMESPACE_OR_FORMAT);
        let namespace = self.namespace_of(index, slot).ok_or(removed)?;
        let ranges = godwit_nvme::dsm::ranges(data, count).map_err(|_| Refusal::at(location::SGL, StatusCode::DATA_SGL_LENGTH_INVALID))?;
        if next == 0 && !ranges.iter().all(|range| range.is_within(namespace.size_blocks())) {
            return Err(out_of_range);
        }
        let found = (next..count).zip(&ranges[usize::from(next)..]).find_map(|(at, range)| {
            let (offset, len) = byte_range(namespace, range)?;
            Some((Operation::Discard { offset, len }, at + 1))
        });
        Ok(found)
    }

    fn namespace_of(&self, index: usize, slot: u16) -> Option<&Namespace> {
        let queue = self.queues.get(index)?;
        let Phase::Io(member) = &queue.phase else { return None };
        let nsid: Nsid = queue.slots.get(slot)?.nsid;
        self.offer.subsystem(member.association.subsystem)?.namespace(nsid)
    }

    /// Hands an operation to the backend.
    fn run(
        &mut self,
        ctx: &mut Context<'_, R>,
        (index, slot): (usize, u16),
        request: Request,
        held: Option<Buffer>,
        operation: Operation,
        next_range: u16,
    ) {
        let queue = &mut self.queues[index];
        queue.running += 1;
        let token = Purpose::Slot(queue.key, slot).token();
        let progress = place(&self.places, request.store).attached.start(ctx.reactor, operation, token);
        self.advance(ctx, (index, slot), request, held, next_range, progress);
    }

    /// A step of a backend's operation has ended.
    pub(super) fn on_backend(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, done: FileDone, token: Token) {
        let work = self.queues[index].slots.take_work(slot);
        let Work::Running(Running { request, job, held, next_range }) = work else {
            unreachable!("a file operation of a slot without one: {work:?}")
        };
        let progress = place(&self.places, request.store).attached.resume(ctx.reactor, job, done, token);
        self.advance(ctx, (index, slot), request, held, next_range, progress);
    }

    /// Goes on with a command after a step: the slot waits, the next range is discarded, or the command ends.
    fn advance(
        &mut self,
        ctx: &mut Context<'_, R>,
        (index, slot): (usize, u16),
        request: Request,
        held: Option<Buffer>,
        mut next_range: u16,
        mut progress: Progress,
    ) {
        loop {
            let (result, buffer) = match progress {
                Progress::Working(job) => {
                    let running = Running { request, job, held, next_range };
                    return self.queues[index].slots.set_work(slot, Work::Running(running));
                }
                Progress::Done { result, buffer } => (result, buffer),
            };
            let further = match (result, &held) {
                // With its connection gone the rest of the ranges is of no interest.
                (Ok(()), Some(data)) => self.next_discard(index, slot, request, data, next_range).ok().flatten(),
                _ => None,
            };
            let Some((operation, next)) = further else {
                return self.finish(ctx, (index, slot), request, held, result, buffer);
            };
            next_range = next;
            let token = Purpose::Slot(self.queues[index].key, slot).token();
            progress = place(&self.places, request.store).attached.start(ctx.reactor, operation, token);
        }
    }

    /// A command has ended in the backend: answers it.
    fn finish(
        &mut self,
        ctx: &mut Context<'_, R>,
        (index, slot): (usize, u16),
        request: Request,
        held: Option<Buffer>,
        result: Result<(), BackendError>,
        buffer: Option<Buffer>,
    ) {
        let queue = &mut self.queues[index];
        queue.running -= 1;
        let Phase::Io(_) = &queue.phase else {
            drop((held, buffer));
            queue.slots.release(slot);
            return self.settle(index);
        };
        let counters = place(&self.places, request.store).counters.of(self.index);
        if let Err(error) = result {
            let status = status::of_backend(error);
            if status.code.is_media_error() {
                counters.count_media_error();
            }
            self.give_back(index, buffer);
            self.give_back(index, held);
            return self.refuse(ctx, index, slot, status.into(), 0);
        }
        let mut status = Status::SUCCESS;
        match (request.action, buffer) {
            (Action::Read { to }, Some(buffer)) => {
                counters.count_read(request.len_bytes);
                ctx.fabric.post_write(queue.qp, buffer, request.data_bytes(), to);
            }
            (Action::Write { .. }, buffer) => {
                counters.count_write(request.len_bytes);
                self.give_back(index, buffer);
            }
            (Action::Compare { .. }, Some(buffer)) => {
                counters.count_read(request.len_bytes);
                let len = request.data_bytes();
                let equal = held.as_ref().is_some_and(|data| data.get(..len).is_some() && data.get(..len) == buffer.get(..len));
                if !equal {
                    status = StatusCode::COMPARE_FAILURE.do_not_retry();
                }
                self.give_back(index, held);
            }
            (_, buffer) => {
                self.give_back(index, buffer);
                self.give_back(index, held);
            }
        }
        if status.is_success() {
            self.respond(ctx, index, slot, status, 0);
        } else {
            self.refuse(ctx, index, slot, status.into(), 0);
        }
    }
}

/// Moves in-capsule data to the start of its buffer, where backends expect it. Hosts put it there already.
fn bring_to_front(data: &mut Buffer, from: Option<DataAt>, len_bytes: usize) {
    if let Some(DataAt::Capsule { start }) = from {
        data.copy_within(start..start + len_bytes, 0);
    }
}

/// The bytes of a range of Dataset Management; `None` for an empty one.
fn byte_range(namespace: &Namespace, range: &DsmRange) -> Option<(u64, u64)> {
    let block_bytes = u64::from(namespace.block_size.bytes());
    let (offset, len) = (range.start().get().checked_mul(block_bytes)?, u64::from(range.len_blocks()) * block_bytes);
    (len > 0).then_some((offset, len))
}
