//! Commands of admin queues: answered at once, but for the data of answers that are larger than a reserved buffer.
//!
//! None of them waits behind I/O. They are carried out in the turn in which they are found, without a backend and without the line for memory (see the module
//! `memory`); Connect has its connection's own buffer, and Keep Alive needs none. Answers up to a page have buffers set aside ([`ADMIN_BUFFERS`]), which
//! are refilled before I/O is served; larger ones, parts of a long log, wait in a line of their own that is served before that of I/O.

use std::sync::Arc;

use godwit_nvme::sqe::Abort;
use godwit_nvme::{Sqe, Status, StatusCode};
use godwit_reactor::Reactor;

use super::{ADMIN_DATA_BYTES, Context, Worker};
use crate::admin::{self, About, Answer};
use crate::association::Ending;
use crate::limits::ADMIN_BUFFERS;
use crate::queue::{AnswerData, Phase, Work};
use crate::request::Refusal;

impl<R: Reactor> Worker<R> {
    pub(super) fn on_admin_command(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, sqe: &Sqe) {
        let queue = &mut self.queues[index];
        let about = About { target: &self.target, offer: &self.offer, local: queue.local, now: ctx.reactor.now() };
        let Phase::Admin(controller) = &mut queue.phase else { return };
        match admin::execute(controller, sqe, &about) {
            Ok(Answer::Result(result)) => self.respond(ctx, index, slot, Status::SUCCESS, result),
            Ok(Answer::Data { bytes, len_bytes, to }) => self.answer(ctx, index, slot, AnswerData { bytes, len_bytes, to }),
            Ok(Answer::Held) => queue.slots.set_work(slot, Work::AsyncEvent),
            Ok(Answer::Abort(abort)) => self.abort(ctx, index, slot, abort),
            Ok(Answer::KeepAliveChanged) => {
                self.respond(ctx, index, slot, Status::SUCCESS, 0);
                self.restart_keep_alive(ctx, index);
            }
            Ok(Answer::Stopped) => {
                self.respond(ctx, index, slot, Status::SUCCESS, 0);
                self.stop_controller(index);
            }
            Err(refusal) => self.refuse(ctx, index, slot, refusal, 0),
        }
        self.tell_events(ctx, index);
    }

    /// Completes Asynchronous Event Requests with what has happened.
    pub(super) fn tell_events(&mut self, ctx: &mut Context<'_, R>, index: usize) {
        loop {
            let Some(queue) = self.queues.get_mut(index) else { return };
            let Phase::Admin(controller) = &mut queue.phase else { return };
            if controller.event_requests == 0 {
                return;
            }
            let Some(slot) = queue.slots.find(|slot| matches!(slot.work, Work::AsyncEvent)) else { return };
            let Some(event) = controller.next_event() else { return };
            controller.event_requests -= 1;
            self.respond(ctx, index, slot, Status::SUCCESS, event.to_wire().into());
        }
    }

    /// The keep-alive timer is another now. An association that is dying has none any more: its admin queue has the grace that it was given.
    fn restart_keep_alive(&mut self, ctx: &mut Context<'_, R>, index: usize) {
        if matches!(&self.queues[index].phase, Phase::Admin(controller) if !controller.association.is_dying()) {
            self.clear_timer(ctx, index);
            self.watch_keep_alive(ctx, index);
        }
    }

    /// The host disabled the controller. With I/O queues the association ends, for their commands may still be in a backend.
    fn stop_controller(&mut self, index: usize) {
        let Phase::Admin(controller) = &mut self.queues[index].phase else { return };
        controller.event_requests = 0;
        let association = Arc::clone(&controller.association);
        if self.target.associations.has_members(&association) {
            self.target.kill(&association, Ending::ControllerDisabled);
        }
        // Asynchronous Event Requests of a disabled controller end without an answer.
        let slots = &mut self.queues[index].slots;
        while let Some(slot) = slots.find(|slot| matches!(slot.work, Work::AsyncEvent)) {
            slots.release(slot);
        }
    }

    /// Sends data and the response after it, as soon as there is a buffer.
    fn answer(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, data: AnswerData) {
        self.queues[index].slots.set_work(slot, Work::AnswerBuffer(data));
        if !self.try_answer(ctx, index, slot) {
            self.waiting_answers.push_back((self.queues[index].key, slot));
        }
    }

    fn try_answer(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16) -> bool {
        let queue = &mut self.queues[index];
        let Some(Work::AnswerBuffer(AnswerData { bytes, len_bytes, to })) = queue.slots.get(slot).map(|slot| &slot.work) else {
            return true;
        };
        let len_bytes = *len_bytes;
        let reserved = if len_bytes <= ADMIN_DATA_BYTES { self.answers.take() } else { None };
        let Some(mut buffer) = reserved.or_else(|| ctx.reactor.pool().take(len_bytes)) else { return false };
        buffer.set_len(len_bytes);
        let (start, rest) = buffer.split_at_mut(bytes.len());
        start.copy_from_slice(bytes);
        rest.fill(0);
        ctx.fabric.post_write(queue.qp, buffer, len_bytes, *to);
        self.respond(ctx, index, slot, Status::SUCCESS, 0);
        true
    }

    /// Tries the answers that wait for buffers, in their order.
    pub(super) fn serve_answers(&mut self, ctx: &mut Context<'_, R>) {
        while let Some(&(key, slot)) = self.waiting_answers.front() {
            if self.index_of(key).is_some_and(|index| !self.try_answer(ctx, index, slot)) {
                return;
            }
            self.waiting_answers.pop_front();
        }
    }

    /// Sets buffers aside again that went out with answers and have come back to the pool.
    pub(super) fn refill_answers(&mut self, ctx: &Context<'_, R>) {
        while self.answers.unused() < ADMIN_BUFFERS {
            let Some(buffer) = ctx.reactor.pool().take(ADMIN_DATA_BYTES) else { return };
            // A larger one goes back to where it came from.
            if !self.answers.give_back(buffer) {
                return;
            }
        }
    }

    /// Abort: only an Asynchronous Event Request waits long enough to be aborted. What is in a backend is not.
    fn abort(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, abort: Abort) {
        let queue = &self.queues[index];
        let own = abort.sqid == queue.qid;
        let found = queue.slots.find(|slot| own && slot.cid == abort.cid && matches!(slot.work, Work::AsyncEvent));
        if let Some(found) = found {
            if let Phase::Admin(controller) = &mut self.queues[index].phase {
                controller.event_requests -= 1;
            }
            let aborted = Refusal::from(StatusCode::ABORT_REQUESTED.retryable());
            self.refuse(ctx, index, found, aborted, 0);
        }
        self.respond(ctx, index, slot, Status::SUCCESS, Abort::result(found.is_some()).into());
    }
}
