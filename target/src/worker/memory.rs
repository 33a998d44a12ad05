//! Memory of a reactor thread: who waits for it, in which order, and why no one waits for ever.
//!
//! # Who holds buffers
//!
//! 1. A command in a backend holds its data, and a Compare the host's data as well.
//! 2. Data on its way to a host, until it is sent; but what is read of memory is sent from where it lies, and needs no buffer.
//! 3. The sink of an RDMA Read, until the host has answered it.
//! 4. In-capsule data: received, or being received.
//! 5. Reservations: a buffer for each slot of a queue that has RDMA Reads outstanding, or had a moment ago ([`CapsuleMemory::Reserved`]); one
//!    buffer for each queue that is being connected and for each admin queue ([`CapsuleMemory::Own`]); some for the answers to admin commands.
//! 6. What is being gathered for the first command in line: a reservation, then the first of the two buffers of a Compare.
//!
//! # Who waits
//!
//! Commands that need a buffer that they do not have, in one line per thread: a Read for its data, a command with data at the host for its sink and,
//! if its queue has none, for a reservation. A command joins the line when there is one, even if its needs could be met, so that nobody overtakes the first.
//! It takes all that it needs or nothing, but for the first in line. In-capsule data that has no buffer waits in the stream, in front of what follows it.
//!
//! # Why there is no deadlock
//!
//! Everything in 1 to 4 ends without needing more memory:
//!
//! * 1 ends with its backend operation. A command with in-capsule data starts at once; an in-capsule Compare that finds no second buffer is refused
//!   (021h, which hosts retry) and does not wait while it holds the first.
//! * 2 ends when the host reads, or when its connection ends.
//! * 3 ends when the host answers, or when its connection ends. The answer cannot be stuck behind in-capsule data on its stream, for the queue holds a
//!   reservation with a buffer for each further command that the host may send.
//! * 4 ends with the message, or when the connection ends.
//!
//! 5 never keeps the first in line from what it needs: reservations without outstanding RDMA Reads are released as soon as it fails to be served, and
//! since all later commands queue behind it, the outstanding ones run out. What is set aside for good (own buffers, answers) is bounded such that the
//! largest reservation fits beside it: a connection that would break this is refused (see `set_aside`).
//!
//! 6 is of the first in line, which takes each buffer as it becomes free; only one command at a time holds memory while it waits, and what it
//! waits for ends without it. The sum of all this: each buffer comes back, and the first in line gets it before anything else does, for
//! the line is served after each event, each completion and each flush, and no code in between takes memory.
//!
//! The only wait that can last is for a peer that neither reads nor answers: its Keep Alive timer ends its association, and without one its connection
//! ends after a while ([`Queue::is_stuck`](crate::queue::Queue::is_stuck)).

use std::rc::Rc;
use std::time::Duration;

use godwit_memory::Reservation;
use godwit_rdma::{Remote, WorkId};
use godwit_reactor::Reactor;

use super::{Context, Worker};
use crate::limits::RESERVATION_IDLE;
use crate::queue::{CapsuleMemory, Purpose, QueueKey, Work};
use crate::request::{Action, DataAt, Request};

impl<R: Reactor> Worker<R> {
    /// Gives a command its memory, or puts it in line.
    pub(super) fn wait_for_memory(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, request: Request) {
        if !self.waiting.is_empty() || !self.try_serve(ctx, index, slot, request) {
            let queue = &mut self.queues[index];
            queue.slots.set_work(slot, Work::Memory(request));
            self.waiting.push_back((queue.key, slot));
        }
    }

    /// Serves the line as far as memory goes.
    pub(super) fn serve_waiting(&mut self, ctx: &mut Context<'_, R>) {
        if !self.waiting_answers.is_empty() {
            self.serve_answers(ctx);
        }
        while let Some(&(key, slot)) = self.waiting.front() {
            let waiting = self.index_of(key).and_then(|index| match self.queues[index].slots.get(slot)?.work {
                Work::Memory(request) => Some((index, request)),
                _ => None,
            });
            if let Some((index, request)) = waiting
                && !self.try_serve(ctx, index, slot, request)
                && (self.release_reservations(ctx, Duration::ZERO, Some(index)) == 0 || !self.try_serve(ctx, index, slot, request))
            {
                return;
            }
            self.waiting.pop_front();
            (self.building, self.kept) = (None, None);
        }
    }

    /// Takes the commands of a closed queue out of the lines, which are no longer than what waits in them however many connections come and go. What
    /// the first of the line was being given goes back to the pool.
    pub(super) fn leave_lines(&mut self, key: QueueKey) {
        if self.waiting.front().is_some_and(|&(first, _)| first == key) {
            (self.building, self.kept) = (None, None);
        }
        self.waiting.retain(|&(other, _)| other != key);
        self.waiting_answers.retain(|&(other, _)| other != key);
    }

    /// Takes all that a command needs, and starts its next step; or takes nothing but, for the first in line, what can be had of it.
    fn try_serve(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, request: Request) -> bool {
        let pool = ctx.reactor.pool().clone();
        let len_bytes = request.data_bytes();
        match request.action {
            Action::Write { from: DataAt::Host(remote), .. } | Action::Discard { from: DataAt::Host(remote), .. } => {
                if !self.reserve(ctx, index) {
                    return false;
                }
                let Some(sink) = pool.take(len_bytes) else { return false };
                self.fetch(ctx, (index, slot), Work::Fetching(request, None), sink, len_bytes, remote);
            }
            Action::Compare { from: DataAt::Host(remote) } => {
                if !self.reserve(ctx, index) {
                    return false;
                }
                // The first of the two is kept: else streams that wait may take each single one that becomes free, for ever.
                let Some(sink) = self.kept.take().or_else(|| pool.take(len_bytes)) else { return false };
                let Some(other) = pool.take(len_bytes) else {
                    self.kept = Some(sink);
                    return false;
                };
                self.fetch(ctx, (index, slot), Work::Fetching(request, Some(other)), sink, len_bytes, remote);
            }
            _ => {
                let Some(buffer) = pool.take(len_bytes) else { return false };
                self.start(ctx, index, slot, request, Some(buffer), None);
            }
        }
        true
    }

    fn fetch(
        &mut self,
        ctx: &mut Context<'_, R>,
        (index, slot): (usize, u16),
        work: Work,
        sink: godwit_memory::Buffer,
        len_bytes: usize,
        from: Remote,
    ) {
        let queue = &mut self.queues[index];
        queue.slots.set_work(slot, work);
        queue.count_read(ctx.reactor.now());
        ctx.fabric.post_read(queue.qp, WorkId(u64::from(slot)), sink, len_bytes, from);
    }

    /// Makes sure that a queue may have RDMA Reads outstanding. False when the memory for that is not there yet; what is there is kept for the next
    /// attempt, which is of the same queue, for only the first in line tries again.
    fn reserve(&mut self, ctx: &mut Context<'_, R>, index: usize) -> bool {
        let data_bytes = self.target.limits.in_capsule_bytes;
        let queue = &mut self.queues[index];
        if data_bytes == 0 || matches!(queue.memory, CapsuleMemory::Reserved(_)) {
            return true;
        }
        let (pool, depth) = (ctx.reactor.pool(), queue.depth());
        let whole = if self.building.is_none() { Reservation::new(pool, data_bytes, depth) } else { None };
        let Some(reservation) = whole.or_else(|| self.building.take()).or_else(|| Reservation::new(pool, data_bytes, 0)) else {
            return false;
        };
        while reservation.unused() < depth {
            // A buffer of a larger class does not count, and goes back.
            let grown = pool.take(data_bytes).is_some_and(|buffer| reservation.give_back(buffer));
            if !grown {
                self.building = Some(reservation);
                return false;
            }
        }
        let reservation = Rc::new(reservation);
        queue.memory = CapsuleMemory::Reserved(Rc::clone(&reservation));
        queue.last_read = ctx.reactor.now();
        ctx.fabric.receive_from(queue.qp, Some(reservation));
        self.reserved_queues += 1;
        self.arm_housekeeping(ctx);
        true
    }

    /// Releases the reservations of queues that have had no RDMA Reads for a while, and looks again later if there are more.
    pub(super) fn release_idle_reservations(&mut self, ctx: &mut Context<'_, R>, idle: Duration) {
        self.release_reservations(ctx, idle, None);
        self.arm_housekeeping(ctx);
    }

    /// In-capsule data may be waiting for buffers that idle reservations hold.
    pub(super) fn relieve_streams(&mut self, ctx: &mut Context<'_, R>) {
        if self.reserved_queues > 0 && ctx.reactor.pool().spare(self.target.limits.in_capsule_bytes) == 0 {
            self.release_reservations(ctx, Duration::ZERO, None);
        }
    }

    fn arm_housekeeping(&mut self, ctx: &mut Context<'_, R>) {
        if self.reserved_queues > 0 && !self.housekeeping {
            self.housekeeping = true;
            let at = ctx.reactor.now() + RESERVATION_IDLE;
            ctx.reactor.set_timer(at, Purpose::Housekeeping.token());
        }
    }

    /// Releases reservations without outstanding RDMA Reads, but for that of one queue. Returns how many.
    fn release_reservations(&mut self, ctx: &mut Context<'_, R>, idle: Duration, except: Option<usize>) -> usize {
        if self.reserved_queues == 0 {
            return 0;
        }
        let now = ctx.reactor.now();
        let mut released = 0;
        for (index, queue) in &mut self.queues {
            let reserved = matches!(queue.memory, CapsuleMemory::Reserved(_));
            if reserved && queue.reads == 0 && except != Some(index) && now.since(queue.last_read) >= idle {
                queue.memory = CapsuleMemory::Pool;
                ctx.fabric.receive_from(queue.qp, None);
                released += 1;
            }
        }
        self.reserved_queues -= released;
        released
    }
}
