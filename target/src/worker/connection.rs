//! Connections: from their request over Connect to their end.

use std::rc::Rc;
use std::sync::Arc;

use godwit_memory::{Buffer, Reservation};
use godwit_nvme::cm::{QueueAccept, RequestError};
use godwit_nvme::sqe::{Connect, FabricsCommand};
use godwit_nvme::{ConnectData, ConnectRefusal, ConnectResult, Sgl, Sqe, Status, StatusCode};
use godwit_rdma::{Incoming, QpConfig, Remote, Rkey, WorkId};
use godwit_reactor::Reactor;

use super::{ADMIN_DATA_BYTES, Context, Worker};
use crate::association::{Ending, Host, Member, OpenError, QueueInfo, SubsystemIndex, Waiter};
use crate::controller::Controller;
use crate::fabrics::{self, Granted, Wish};
use crate::limits::{ADMIN_BUFFERS, CONNECT_TIMEOUT, CONNECTIONS_PER_WORKER, FENCE_WAIT, OUTBOUND_READS};
use crate::mailbox::Notice;
use crate::queue::{CapsuleMemory, Phase, Queue, QueueKey, Slots, SubmissionQueue, Work};
use crate::request::{Refusal, location};

/// Which try it is to carry a Connect out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The first: it may be held.
    First,
    /// It was held, and something has changed.
    Again,
    /// It was held long enough: it is answered now.
    Last,
}

impl<R: Reactor> Worker<R> {
    /// Takes a connection over.
    pub(super) fn adopt(&mut self, ctx: &mut Context<'_, R>, portal: u16, incoming: Incoming<R::Incoming>) {
        if self.is_stopping() {
            return;
        }
        if self.queues.len() >= CONNECTIONS_PER_WORKER {
            tracing::warn!("connection closed: {CONNECTIONS_PER_WORKER} connections of this reactor are in use");
            return;
        }
        let qp = match ctx.fabric.adopt(ctx.reactor, incoming) {
            Ok(qp) => qp,
            Err(error) => {
                tracing::warn!("cannot take over a connection: {error}");
                return;
            }
        };
        self.next_generation = self.next_generation.wrapping_add(1) & 0x0FFF_FFFF;
        let index = self.queues.vacant_key();
        let key = QueueKey { index: u32::try_from(index).unwrap_or(u32::MAX), generation: self.next_generation };
        self.queues.insert(Queue::new(key, qp, portal));
        self.by_qp.insert(qp, index);
        self.set_timer(ctx, index, CONNECT_TIMEOUT);
        self.watch(ctx);
    }

    pub(super) fn on_connect_request(&mut self, ctx: &mut Context<'_, R>, index: usize, private_data: &[u8], peer_inbound_reads: u16) {
        let qp = self.queues[index].qp;
        self.queues[index].peer = ctx.fabric.peer(ctx.reactor, qp).map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
        self.queues[index].local = ctx.fabric.local_address(ctx.reactor, qp);
        let granted = fabrics::check_request(private_data, peer_inbound_reads, &self.target.limits)
            .and_then(|granted| self.set_aside(ctx, granted).map(|own| (granted, own)));
        match granted {
            Ok((granted, own)) => self.accept(ctx, index, granted, own, peer_inbound_reads),
            Err(error) => {
                tracing::warn!(peer = self.queues[index].peer, "connection refused: {error}");
                self.target.journal.refused(error.status().explanation());
                ctx.fabric.reject(ctx.reactor, qp, &error.reject().to_wire());
                self.close(ctx, index);
            }
        }
    }

    /// The buffer of its own that a new connection has: see the module `memory`.
    fn set_aside(&mut self, ctx: &Context<'_, R>, granted: Granted) -> Result<Reservation, RequestError> {
        if self.is_stopping() {
            return Err(RequestError::NoResources);
        }
        let pool = ctx.reactor.pool();
        let data_bytes = self.target.limits.in_capsule_bytes;
        let depth = if granted.qid.is_admin() || data_bytes == 0 { 0 } else { usize::from(granted.depth) };
        let largest_depth = self.largest_depth.max(depth);
        let own_bytes = data_bytes.max(ConnectData::LEN_BYTES);
        // Where both are of one size, the answers to admin commands lie there as well.
        let answers = if own_bytes <= ADMIN_DATA_BYTES { ADMIN_BUFFERS } else { 0 };
        if !Reservation::possible(pool, own_bytes, largest_depth + self.own_buffers + 1 + answers) {
            return Err(RequestError::NoResources);
        }
        let own = Reservation::new(pool, own_bytes, 1).ok_or(RequestError::NoResources)?;
        self.largest_depth = largest_depth;
        self.own_buffers += 1;
        Ok(own)
    }

    fn accept(&mut self, ctx: &mut Context<'_, R>, index: usize, granted: Granted, own: Reservation, peer_inbound_reads: u16) {
        let own = Rc::new(own);
        let queue = &mut self.queues[index];
        let portal = self.target.portals.get(usize::from(queue.portal)).copied();
        queue.qid = granted.qid;
        queue.slots = Slots::new(granted.depth);
        queue.memory = CapsuleMemory::Own(Rc::clone(&own));
        queue.phase = Phase::Connecting;
        let config = QpConfig {
            send_depth: Queue::send_depth(queue.depth()),
            // The one beside the slots shows that a host sends more than it may.
            receive_depth: queue.depth() + 1,
            header_bytes: Sqe::LEN_BYTES,
            data_bytes: self.target.limits.in_capsule_bytes,
            regions: 0,
            inbound_reads: 0,
            outbound_reads: peer_inbound_reads.min(OUTBOUND_READS),
            crc: portal.is_none_or(|portal| portal.crc),
            fpdu: portal.map_or_else(Default::default, |portal| portal.fpdu),
        };
        let reply = QueueAccept { controller_receive_size: granted.depth };
        if let Err(error) = ctx.fabric.accept(ctx.reactor, queue.qp, &config, &reply.to_wire()) {
            tracing::warn!(peer = queue.peer, "connection refused: {error}");
            ctx.fabric.reject(ctx.reactor, queue.qp, &fabrics::device_refusal(&error).to_wire());
            return self.close(ctx, index);
        }
        ctx.fabric.receive_from(queue.qp, Some(own));
        tracing::debug!(peer = queue.peer, qid = queue.qid.get(), depth = granted.depth, "connection accepted");
    }

    /// A command came.
    pub(super) fn on_capsule(&mut self, ctx: &mut Context<'_, R>, index: usize, sqe: &[u8], data: Option<Buffer>) {
        // What comes while the daemon stops, or the association dies, is not started; its host sees the connection end.
        if self.is_stopping() {
            return;
        }
        let Ok(sqe) = Sqe::ref_from(sqe) else { return self.violated(ctx, index, "its command capsule is too short") };
        if !self.is_in_time(ctx, index) {
            return;
        }
        let queue = &mut self.queues[index];
        if matches!(queue.phase, Phase::Closed(_) | Phase::Requested) {
            return;
        }
        let slot = if queue.is_overrun() { None } else { queue.slots.take(sqe) };
        let Some(slot) = slot else {
            let reason = format!("it has more than {} commands outstanding", queue.depth());
            return self.violated(ctx, index, &reason);
        };
        match &queue.phase {
            Phase::Io(_) => self.on_io_command(ctx, index, slot, sqe, data),
            Phase::Admin(_) => {
                if let Some(data) = data {
                    // No admin command that we know brings data.
                    queue.give_back(data);
                }
                self.on_admin_command(ctx, index, slot, sqe);
            }
            _ => self.on_first_command(ctx, index, slot, sqe, data),
        }
    }

    /// Takes a command for the sign of life that it is. One that comes too late is the end of a live association, whose timer has yet to tell.
    fn is_in_time(&self, ctx: &Context<'_, R>, index: usize) -> bool {
        let association = match &self.queues[index].phase {
            Phase::Admin(controller) => &controller.association,
            Phase::Io(member) => &member.association,
            _ => return true,
        };
        // The admin queue of a dying one has a time of its own.
        let in_time = association.is_dying() || association.keep_alive.hear(ctx.reactor.now());
        if !in_time {
            self.target.kill(association, Ending::KeepAliveExpired);
        }
        in_time
    }

    /// A peer broke a rule: only its own connection ends.
    pub(super) fn violated(&mut self, ctx: &mut Context<'_, R>, index: usize, reason: &str) {
        let queue = &self.queues[index];
        tracing::warn!(peer = queue.peer, qid = queue.qid.get(), "connection closed: {reason}");
        self.target.journal.error(format!("connection of {} closed: {reason}", queue.peer));
        self.close(ctx, index);
    }

    /// A command on a queue that is not connected yet: only Connect is allowed.
    fn on_first_command(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, sqe: &Sqe, data: Option<Buffer>) {
        let busy = self.queues[index].slots.find(|slot| matches!(slot.work, Work::ConnectData(_) | Work::Fence(..))).is_some();
        let connect = if sqe.is_fabrics() { FabricsCommand::parse(sqe) } else { FabricsCommand::Disconnect };
        let FabricsCommand::Connect(connect) = connect else {
            return self.refuse(ctx, index, slot, Refusal::at(location::OPCODE, StatusCode::INVALID_OPCODE), 0);
        };
        if busy {
            return self.refuse(ctx, index, slot, StatusCode::COMMAND_SEQUENCE_ERROR.do_not_retry().into(), 0);
        }
        if let Err(status) = sqe.check_flags() {
            return self.refuse(ctx, index, slot, status.into(), 0);
        }
        match sqe.sgl() {
            Ok(Sgl::InCapsule { offset, length }) => {
                let bytes = data.as_deref().unwrap_or(&[]);
                let found = godwit_nvme::sgl::in_capsule_data(bytes, offset, length).map_err(|error| error.status());
                let parsed =
                    found.and_then(|bytes| ConnectData::read_from(bytes).map_err(|_| StatusCode::DATA_SGL_LENGTH_INVALID.do_not_retry()));
                if let Some(data) = data {
                    self.queues[index].give_back(data);
                }
                match parsed {
                    Ok(data) => self.connect(ctx, index, slot, connect, data, Attempt::First),
                    Err(status) => self.refuse(ctx, index, slot, status.into(), 0),
                }
            }
            Ok(Sgl::Keyed { length, .. }) if (length as usize) < ConnectData::LEN_BYTES => {
                self.refuse(ctx, index, slot, Refusal::at(location::SGL, StatusCode::DATA_SGL_LENGTH_INVALID), 0);
            }
            Ok(Sgl::Keyed { address, key, .. }) => {
                if let Some(data) = data {
                    self.queues[index].give_back(data);
                }
                self.fetch_connect_data(ctx, index, slot, connect, Remote { rkey: Rkey(key.get()), address });
            }
            Ok(Sgl::InCapsuleSegment { .. }) => {
                self.refuse(ctx, index, slot, Refusal::at(location::SGL, StatusCode::SGL_DESCRIPTOR_TYPE_INVALID), 0);
            }
            Err(error) => self.refuse(ctx, index, slot, error.status().into(), 0),
        }
    }

    /// Fetches the data of a Connect into the queue's own buffer.
    fn fetch_connect_data(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, connect: Connect, from: Remote) {
        let queue = &mut self.queues[index];
        let CapsuleMemory::Own(own) = &queue.memory else { return };
        // It is in use only if the peer sent data that no command of an unconnected queue has.
        let Some(sink) = own.take() else { return self.violated(ctx, index, "it sent data before its Connect") };
        queue.slots.set_work(slot, Work::ConnectData(connect));
        queue.count_read(ctx.reactor.now());
        ctx.fabric.post_read(queue.qp, WorkId(u64::from(slot)), sink, ConnectData::LEN_BYTES, from);
    }

    /// The data of a Connect are here.
    pub(super) fn connect(
        &mut self,
        ctx: &mut Context<'_, R>,
        index: usize,
        slot: u16,
        connect: Connect,
        data: ConnectData,
        attempt: Attempt,
    ) {
        let qid = self.queues[index].qid;
        let wish = fabrics::check_connect(&connect, qid, &self.target.limits).and_then(|()| fabrics::check_data(&data, qid, &self.offer));
        let wish = match wish {
            Ok(wish) => wish,
            Err(refusal) => return self.refuse_connect(ctx, index, slot, refusal, &data, &refusal.to_string()),
        };
        if !qid.is_admin() {
            return self.connect_io(ctx, index, slot, connect, &data, &wish);
        }
        let waiter = self.waiter(index);
        if attempt == Attempt::First {
            self.ask_to_look(index, &wish);
        }
        let opened = if self.queues[index].unseen > 0 {
            Err(OpenError::Unseen)
        } else {
            self.target.associations.open(wish.host.clone(), wish.subsystem, waiter)
        };
        match opened {
            Ok(association) => {
                let now = ctx.reactor.now();
                let controller = Controller::new(association, self.target.limits.io_queue_size, connect.keep_alive, now);
                self.connected(ctx, index, slot, connect, Phase::Admin(Box::new(controller)), &wish);
                self.watch_keep_alive(ctx, index);
            }
            Err(reason @ (OpenError::Fenced | OpenError::Unseen)) if attempt != Attempt::Last => {
                tracing::debug!(peer = self.queues[index].peer, host = %wish.host.nqn, "Connect waits: {reason}");
                self.queues[index].slots.set_work(slot, Work::Fence(connect, Box::new(data)));
                // Once: it may be told to try again far more often than this.
                if attempt == Attempt::First {
                    self.set_timer(ctx, index, FENCE_WAIT);
                }
            }
            Err(error) => {
                self.target.associations.stop_waiting(waiter);
                self.refuse_connect(ctx, index, slot, fabrics::open_refusal(error), &data, &error.to_string());
            }
        }
    }

    /// Has the workers look whose queues may say more about associations of this host than the table does: see the module `association`.
    fn ask_to_look(&mut self, index: usize, wish: &Wish) {
        let workers = self.target.associations.workers_of(&wish.host, wish.subsystem);
        let waiter = self.waiter(index);
        let queue = &mut self.queues[index];
        queue.question = queue.question.wrapping_add(1);
        queue.unseen = workers.len();
        for worker in workers {
            let (host, subsystem) = (wish.host.clone(), wish.subsystem);
            self.target.mailboxes[worker].post(Notice::Look { waiter, question: queue.question, host, subsystem });
        }
    }

    /// Ends the associations of a host of which a connection has ended. Who asked is told in the next turn: this one may have begun before a stall, and timers
    /// that were due then fire in that one.
    pub(super) fn look(&mut self, ctx: &mut Context<'_, R>, waiter: Waiter, question: u32, host: &Host, subsystem: SubsystemIndex) {
        for (_, queue) in &self.queues {
            let association = match &queue.phase {
                Phase::Admin(controller) => &controller.association,
                Phase::Io(member) => &member.association,
                _ => continue,
            };
            if association.host == *host && association.subsystem == subsystem && ctx.fabric.has_ended(ctx.reactor, queue.qp) {
                self.target.kill(association, Ending::ConnectionClosed);
            }
        }
        self.asked_to_look.push((waiter, question));
        self.target.mailboxes[self.index].wake();
    }

    /// Tells those who asked before this turn.
    pub(super) fn tell_who_asked(&mut self) {
        for (waiter, question) in self.asked_to_look.drain(..) {
            self.target.mailboxes[waiter.worker].post(Notice::Looked(waiter.queue, question));
        }
    }

    /// A worker has looked.
    pub(super) fn on_looked(&mut self, ctx: &mut Context<'_, R>, key: QueueKey, question: u32) {
        let Some(index) = self.index_of(key) else { return };
        let queue = &mut self.queues[index];
        if queue.question == question && queue.unseen > 0 {
            queue.unseen -= 1;
            if queue.unseen == 0 {
                self.try_fenced(ctx, index, Attempt::Again);
            }
        }
    }

    fn connect_io(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, connect: Connect, data: &ConnectData, wish: &Wish) {
        let qid = self.queues[index].qid;
        match self.target.associations.join(wish.cntlid, &wish.host, wish.subsystem, qid, self.index) {
            Ok(member) => {
                let queue = &mut self.queues[index];
                queue.memory = CapsuleMemory::Pool;
                self.own_buffers -= 1;
                ctx.fabric.receive_from(queue.qp, None);
                self.connected(ctx, index, slot, connect, Phase::Io(member), wish);
            }
            Err(error) => self.refuse_connect(ctx, index, slot, fabrics::join_refusal(error), data, &error.to_string()),
        }
    }

    fn connected(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, connect: Connect, phase: Phase, wish: &Wish) {
        self.clear_timer(ctx, index);
        let cntlid = match &phase {
            Phase::Admin(controller) => controller.association.cntlid,
            Phase::Io(member) => member.association.cntlid,
            _ => wish.cntlid,
        };
        let queue = &mut self.queues[index];
        let info = QueueInfo {
            qid: queue.qid,
            worker: self.index,
            peer: queue.peer.clone(),
            depth: queue.slots.count(),
            in_flight: queue.slots.in_flight(),
        };
        match &phase {
            Phase::Admin(controller) => self.target.associations.describe(&controller.association, info),
            Phase::Io(member) => self.target.associations.describe(&member.association, info),
            _ => {}
        }
        queue.phase = phase;
        queue.sq = SubmissionQueue::new(connect.sq_size, connect.disables_sq_flow_control());
        if queue.qid.is_admin() {
            tracing::info!(peer = queue.peer, cntlid = cntlid.get(), host = %wish.host.nqn, "host connected");
        } else {
            tracing::debug!(peer = queue.peer, cntlid = cntlid.get(), qid = queue.qid.get(), "I/O queue connected");
        }
        self.respond(ctx, index, slot, Status::SUCCESS, ConnectResult::new(cntlid).to_wire().into());
    }

    fn refuse_connect(
        &mut self,
        ctx: &mut Context<'_, R>,
        index: usize,
        slot: u16,
        refusal: ConnectRefusal,
        data: &ConnectData,
        reason: &str,
    ) {
        let host = data.host_nqn().map_or_else(|error| error.to_string(), |nqn| nqn.to_string());
        tracing::warn!(peer = self.queues[index].peer, qid = self.queues[index].qid.get(), host, "Connect refused: {reason}");
        self.target.journal.refused(fabrics::in_words(refusal));
        self.set_timer(ctx, index, CONNECT_TIMEOUT);
        self.refuse(ctx, index, slot, refusal.status.into(), refusal.result().into());
    }

    fn waiter(&self, index: usize) -> Waiter {
        Waiter { worker: self.index, queue: self.queues[index].key }
    }

    /// Tries a Connect again that the fence held back.
    pub(super) fn try_fenced(&mut self, ctx: &mut Context<'_, R>, index: usize, attempt: Attempt) {
        let queue = &mut self.queues[index];
        let Some(slot) = queue.slots.find(|slot| matches!(slot.work, Work::Fence(..))) else { return };
        if let Work::Fence(connect, data) = queue.slots.take_work(slot) {
            self.connect(ctx, index, slot, connect, *data, attempt);
        }
    }

    pub(super) fn on_queue_timer(&mut self, ctx: &mut Context<'_, R>, index: usize) {
        let queue = &self.queues[index];
        match &queue.phase {
            Phase::Requested => self.violated(ctx, index, "it did not ask for a queue in time"),
            Phase::Connecting if queue.slots.find(|slot| matches!(slot.work, Work::Fence(..))).is_some() => {
                self.try_fenced(ctx, index, Attempt::Last);
            }
            Phase::Connecting => self.violated(ctx, index, "it did not connect in time"),
            Phase::Admin(controller) if controller.association.is_dying() => self.close(ctx, index),
            Phase::Admin(controller) => match controller.association.keep_alive.expires() {
                Some(at) if at <= ctx.reactor.now() => {
                    let association = Arc::clone(&controller.association);
                    self.target.kill(&association, Ending::KeepAliveExpired);
                }
                _ => self.watch_keep_alive(ctx, index),
            },
            Phase::Io(_) | Phase::Closed(_) => {}
        }
    }

    /// Sets the timer for the host's next sign of life.
    pub(super) fn watch_keep_alive(&mut self, ctx: &mut Context<'_, R>, index: usize) {
        if let Phase::Admin(controller) = &self.queues[index].phase
            && let Some(at) = controller.association.keep_alive.expires()
        {
            self.set_timer_at(ctx, index, at);
        }
    }

    /// Ends a connection. The queue stays until its last operation in a backend has ended.
    pub(super) fn close(&mut self, ctx: &mut Context<'_, R>, index: usize) {
        self.clear_timer(ctx, index);
        let waiter = self.waiter(index);
        let queue = &mut self.queues[index];
        let phase = std::mem::replace(&mut queue.phase, Phase::Closed(None));
        if let Phase::Closed(member) = phase {
            queue.phase = Phase::Closed(member);
            return;
        }
        let qp = queue.qp;
        self.by_qp.remove(&qp);
        let (key, waits) = (queue.key, queue.slots.find(|slot| matches!(slot.work, Work::Memory(_) | Work::AnswerBuffer(_))).is_some());
        queue.slots.abandon_waiting();
        match queue.memory {
            CapsuleMemory::Own(_) => self.own_buffers -= 1,
            CapsuleMemory::Reserved(_) => self.reserved_queues -= 1,
            CapsuleMemory::Pool => {}
        }
        queue.memory = CapsuleMemory::Pool;
        ctx.fabric.destroy(ctx.reactor, qp);
        if waits {
            self.leave_lines(key);
        }
        match phase {
            Phase::Admin(controller) => {
                self.target.kill(&controller.association, Ending::ConnectionClosed);
                let waiters = self.target.associations.close_admin(&controller.association);
                self.target.tell(waiters);
            }
            Phase::Io(member) => {
                self.target.kill(&member.association, Ending::ConnectionClosed);
                self.queues[index].phase = Phase::Closed(Some(member));
            }
            Phase::Requested | Phase::Connecting | Phase::Closed(_) => self.target.associations.stop_waiting(waiter),
        }
        self.settle(index);
    }

    /// Removes a closed queue when nothing of it runs any more, and ends its membership.
    pub(super) fn settle(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        let Phase::Closed(member) = &mut queue.phase else { return };
        if queue.running > 0 {
            return;
        }
        if let Some(member) = member.take() {
            self.leave(member);
        }
        self.queues.remove(index);
    }

    fn leave(&self, member: Member) {
        let waiters = self.target.associations.leave(member);
        self.target.tell(waiters);
    }
}
