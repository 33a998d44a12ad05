//! Sending the operations of an I/O queue, and taking them back from a connection that failed.

use std::time::Duration;

use godwit_nvme::SglDescriptor;
use godwit_rdma::{Access, Fabric, QpId, WorkId};
use godwit_reactor::{Reactor, Time};

use super::{IoQueue, Link, QueueTimer};
use crate::block::BlockError;
use crate::host::error::HostError;
use crate::host::message::News;
use crate::host::operation::{Action, Operation, Owner, Place, Sent};
use crate::host::queue::keyed;

/// How often operations in flight are checked for their age.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

impl IoQueue {
    /// Sends what may be sent: once a turn, after all completions were handled.
    pub(crate) fn pump<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        match self.link {
            Link::Live { qp } => {
                self.make_room(reactor.now());
                self.send_waiting(reactor, fabric, qp);
            }
            Link::Restoring { qp } => self.restore_more(reactor, fabric, qp),
            _ => {}
        }
        if self.in_flight > 0 && self.watch_timer.is_none() {
            self.watch_timer = Some(reactor.set_timer(reactor.now() + WATCH_PERIOD, self.tokens.queue(QueueTimer::Watch)));
        }
        self.counters().set_load(self.in_flight, self.operations.len() - self.in_flight);
    }

    fn send_waiting<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, qp: QpId) {
        if !self.delayed.is_empty() {
            self.schedule_retries(reactor);
        }
        let now = reactor.now();
        while self.in_flight < self.limit
            && let Some(index) = self.waiting.pop_front()
        {
            self.send(now, fabric, qp, index);
        }
    }

    pub(super) fn send(&mut self, now: Time, fabric: &mut Fabric, qp: QpId, index: u16) {
        let Some(operation) = self.operations.get_mut(index) else { return };
        let Place::Here(buffer) = &mut operation.place else { return };
        let (action, mut buffer) = (operation.action, buffer.take());
        let len_bytes = action.data_bytes();
        let mut sqe = action.sqe(&self.access);
        let mut rkey = None;
        if let Some(mut data) = buffer.take() {
            data.set_len(len_bytes);
            let is_read = matches!(action, Action::Read { .. });
            if !is_read && len_bytes <= self.access.in_capsule_bytes {
                sqe = sqe.with_sgl(SglDescriptor::in_capsule(0, u32::try_from(len_bytes).unwrap_or(u32::MAX)));
                buffer = Some(data);
            } else {
                let access = if is_read { Access::RemoteWrite } else { Access::RemoteRead };
                let Some(remote) = fabric.expose(qp, data, len_bytes, access) else {
                    // The queue pair failed within this very turn, and took the data along.
                    return self.end_here(index, Err(BlockError::Io));
                };
                rkey = Some(remote.rkey);
                sqe = sqe.with_sgl(keyed(fabric, qp, remote, len_bytes));
            }
        }
        if action == Action::Flush {
            self.keep.before_flush(index);
        }
        operation.was_sent = true;
        operation.place = Place::Sent(Sent { at: now, rkey, buffer: None, send_done: false, overdue: false, status: None });
        let cid = self.operations.name(index);
        fabric.post_send(qp, WorkId(cid.get().into()), sqe.with_cid(cid).as_bytes(), buffer, None);
        self.in_flight += 1;
        self.last_sent = now;
    }

    /// Puts what is due in front of the line, and sets the timer for the rest.
    pub(super) fn schedule_retries<R: Reactor>(&mut self, reactor: &mut R) {
        let now = reactor.now();
        for entry in (0..self.delayed.len()).rev() {
            if self.delayed[entry].0 <= now {
                let (_, index) = self.delayed.swap_remove(entry);
                self.waiting.push_front(index);
            }
        }
        let Some(due) = self.delayed.iter().map(|&(due, _)| due).min() else { return };
        if let Some((set_for, timer)) = self.retry_timer {
            if set_for <= due {
                return;
            }
            reactor.cancel_timer(timer);
        }
        self.retry_timer = Some((due, reactor.set_timer(due, self.tokens.queue(QueueTimer::Retry))));
    }

    /// Takes every operation back from a queue pair that is over, and lines them up in the order of their submission.
    pub(super) fn take_back(&mut self, fabric: &mut Fabric, qp: QpId) {
        let mut line = Vec::with_capacity(self.operations.len());
        let mut lost = Vec::new();
        let mut copies = Vec::new();
        self.keep.taken_back();
        for (index, operation) in self.operations.iter_mut() {
            if let Place::Sent(sent) = &mut operation.place {
                let lent = sent.rkey.take().and_then(|rkey| fabric.revoke(qp, rkey));
                let buffer = lent.or(sent.buffer.take());
                if buffer.is_none() && operation.action.data_bytes() > 0 && operation.owner != Owner::Copy {
                    lost.push(index);
                }
                operation.place = Place::Here(buffer);
            }
            match operation.owner {
                Owner::Copy => copies.push(index),
                Owner::Client(_) | Owner::Room | Owner::Farewell => line.push((operation.sequence, index)),
            }
        }
        line.sort_unstable();
        self.in_flight = 0;
        self.delayed.clear();
        self.waiting.clear();
        self.waiting.extend(line.into_iter().map(|(_, index)| index).filter(|index| !lost.contains(index)));
        // They are still in the ring, and written from there if need be.
        for index in copies {
            self.end_here(index, Err(BlockError::Io));
        }
        for index in lost {
            self.end_here(index, Err(BlockError::Io));
        }
        if self.failing {
            self.fail_waiting();
        }
    }

    /// Checks the age of what is in flight: what is overdue is aborted, and if that is of no avail the connection ends.
    pub(crate) fn on_watch_timer<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        self.watch_timer = None;
        let now = reactor.now();
        if !self.link.carries() {
            return;
        }
        let after = self.io_timeout + self.abort_timeout;
        let of_no_avail = self.operations.iter().any(|(_, operation)| operation.is_unanswered_since(now, after));
        if of_no_avail {
            return self.fail(reactor, fabric, HostError::Timeout { command: "an I/O command", after });
        }
        let mut overdue = None;
        for (index, operation) in self.operations.iter_mut() {
            if let Place::Sent(sent @ Sent { status: None, overdue: false, .. }) = &mut operation.place
                && now.since(sent.at) >= self.io_timeout
            {
                sent.overdue = true;
                overdue = overdue.or(Some(index));
            }
        }
        if let Some(cid) = overdue.and_then(|index| self.operations.name_of(index)) {
            self.tell(News::Overdue(cid));
        }
    }

    /// Something may be due; the pump of this turn sends it.
    pub(crate) fn on_retry_timer(&mut self) {
        self.retry_timer = None;
    }
}

impl Operation {
    /// Whether it is at the target, for all that we know.
    pub(super) fn is_unanswered(&self) -> bool {
        matches!(self.place, Place::Sent(Sent { status: None, .. }))
    }

    fn is_unanswered_since(&self, now: Time, age: Duration) -> bool {
        matches!(self.place, Place::Sent(Sent { status: None, at, .. }) if now.since(at) >= age)
    }
}
