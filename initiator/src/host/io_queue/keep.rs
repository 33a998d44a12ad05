//! What an I/O queue does so that no flush succeeds over lost writes: it says what it acknowledges, retains copies, and writes them again. The argument is in
//! the module `ledger`.

use std::collections::VecDeque;
use std::sync::Arc;

use godwit_memory::{Buffer, Pool, Reservation};
use godwit_rdma::{Fabric, QpId};
use godwit_reactor::{Reactor, Time};

use super::{IoQueue, Link};
use crate::block::{BlockError, Losses};
use crate::host::ledger::Ledger;
use crate::host::message::{AssociationId, Join, News};
use crate::host::operation::{Action, Operation, Owner, Place};
use crate::host::retain::{Retained, overlap};

/// Copies that are written again at a time; each has a buffer set aside.
const COPIES: usize = 2;

/// Operations of the queue's own, beside those of clients: a flush, and copies.
pub(super) const OWN_OPERATIONS: usize = 1 + COPIES;

/// A queue's part in the ledger of its volume.
#[derive(Debug)]
pub(super) struct Keep {
    ledger: Arc<Ledger>,
    /// By slot: how far each queue had come when the flush there was sent.
    numbers: Box<[u64]>,
    copies: Option<Copies>,
}

#[derive(Debug)]
struct Copies {
    retained: Retained,
    /// Whether all that is exposed is retained.
    complete: bool,
    /// Changes that the target has completed, and that wait for room before they are acknowledged.
    held: VecDeque<u16>,
    /// Whether a flush is to make room.
    wants_room: bool,
    /// Whether it is under way.
    making_room: bool,
    buffers: Reservation,
    /// The next copy to be written again.
    next: usize,
    /// Those up to this time are.
    until: Time,
    failed: Option<BlockError>,
    /// Whether the control was told how far it came.
    told: bool,
}

impl Keep {
    /// `None` without buffers to write copies from.
    pub(super) fn new(pool: &Pool, join: &Join, slots: usize) -> Option<Self> {
        let copies = match join.retain_bytes {
            0 => None,
            bytes => Some(Copies {
                retained: Retained::new(bytes.max(join.access.geometry.max_transfer_bytes)),
                complete: true,
                held: VecDeque::with_capacity(slots),
                wants_room: false,
                making_room: false,
                buffers: Reservation::new(pool, join.access.geometry.max_transfer_bytes, COPIES)?,
                next: 0,
                until: Time::default(),
                failed: None,
                told: true,
            }),
        };
        let numbers = vec![0; slots * join.ledger.queues()].into();
        Some(Self { ledger: Arc::clone(&join.ledger), numbers, copies })
    }

    pub(super) fn losses(&self) -> &Losses {
        self.ledger.losses()
    }

    fn numbers(&mut self, slot: u16) -> &mut [u64] {
        let queues = self.ledger.queues();
        &mut self.numbers[usize::from(slot) * queues..][..queues]
    }

    /// A flush is about to be sent.
    pub(super) fn before_flush(&mut self, slot: u16) {
        let ledger = Arc::clone(&self.ledger);
        ledger.take_down(self.numbers(slot));
    }

    fn after_flush(&mut self, slot: u16, sent_at: Time) {
        let ledger = Arc::clone(&self.ledger);
        ledger.cover(self.numbers(slot), sent_at);
    }

    /// Acknowledges a change; false when it has to wait for room.
    fn acknowledge(&mut self, queue: usize, now: Time, action: Action, data: &[u8]) -> bool {
        // A discard that is undone has lost nothing; it is numbered for the sake of its copy.
        let forced = matches!(action, Action::Write { fua: true, .. } | Action::WriteZeroes { fua: true, .. } | Action::Discard);
        let Some(copies) = &mut self.copies else {
            self.ledger.acknowledge(queue, forced);
            return true;
        };
        copies.retained.release(self.ledger.settled(queue));
        if !copies.complete && self.ledger.covered(queue) >= self.ledger.acknowledged(queue) {
            copies.complete = true;
            self.ledger.set_retained(queue, true);
        }
        if !copies.complete {
            self.ledger.acknowledge(queue, forced);
            return true;
        }
        if !copies.retained.has_room(action) {
            copies.wants_room = true;
            return false;
        }
        let number = self.ledger.acknowledge(queue, forced);
        copies.retained.keep(number, now, action, data);
        copies.wants_room |= copies.retained.is_filling();
        true
    }

    /// Whether a flush of the queue's own is due.
    fn takes_room(&mut self) -> bool {
        self.copies
            .as_mut()
            .is_some_and(|copies| std::mem::take(&mut copies.wants_room) && !std::mem::replace(&mut copies.making_room, true))
    }

    /// Everything that waited is sent again.
    pub(super) fn taken_back(&mut self) {
        if let Some(copies) = &mut self.copies {
            copies.held.clear();
        }
    }
}

impl IoQueue {
    /// An operation of a client has succeeded at the target.
    pub(super) fn succeeded(&mut self, now: Time, index: u16, sent_at: Time) {
        let Some(operation) = self.operations.get_mut(index) else { return };
        match operation.action {
            Action::Flush => {
                self.keep.after_flush(index, sent_at);
                self.end_well(now, index);
                self.serve_held(now);
            }
            Action::Write { .. } | Action::WriteZeroes { .. } | Action::Discard if self.access.geometry.volatile_cache => {
                if self.try_acknowledge(now, index) {
                    self.end_well(now, index);
                } else if let Some(copies) = &mut self.keep.copies {
                    copies.held.push_back(index);
                }
            }
            _ => self.end_well(now, index),
        }
    }

    fn end_well(&mut self, now: Time, index: u16) {
        let count = self.operations.get_mut(index).map(|operation| (operation.action, now.since(operation.submitted)));
        self.end_counted(index, Ok(()), count);
    }

    fn try_acknowledge(&mut self, now: Time, index: u16) -> bool {
        let Some(Operation { action, place: Place::Here(buffer), .. }) = self.operations.get_mut(index) else { return true };
        self.keep.acknowledge(self.queue, now, *action, buffer.as_deref().unwrap_or_default())
    }

    /// Acknowledges changes that waited for room, as far as there is some.
    fn serve_held(&mut self, now: Time) {
        while let Some(index) = self.keep.copies.as_ref().and_then(|copies| copies.held.front().copied())
            && self.try_acknowledge(now, index)
        {
            if let Some(copies) = &mut self.keep.copies {
                copies.held.pop_front();
            }
            self.end_well(now, index);
        }
    }

    /// Once a turn, before operations are sent: another queue's flush may have made room, or a flush is to be sent for it.
    pub(super) fn make_room(&mut self, now: Time) {
        self.serve_held(now);
        if !self.keep.takes_room() {
            return;
        }
        let index = self.add_flush(now, Owner::Room);
        self.waiting.push_front(index);
    }

    /// A flush of the queue's own, to be put in line.
    fn add_flush(&mut self, now: Time, owner: Owner) -> u16 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let place = Place::Here(None);
        let flush = Operation { owner, action: Action::Flush, sequence, submitted: now, retries: 0, was_sent: false, place };
        self.own += 1;
        self.operations.insert(flush).expect("a slot is set aside for it")
    }

    /// Flushes what was written on any queue and acknowledged, before the volume ends. It is asked for once, and told of.
    pub(crate) fn flush(&mut self, now: Time, association: AssociationId) {
        if association == self.association && self.link.carries() {
            let index = self.add_flush(now, Owner::Farewell);
            self.waiting.push_back(index);
        }
    }

    /// The flush that was to make room has ended.
    pub(super) fn room_made(&mut self, now: Time, index: u16, sent_at: Time, covered: bool) {
        if covered {
            self.keep.after_flush(index, sent_at);
        } else if let Some(copies) = &mut self.keep.copies {
            // The copies are of no use: nothing would ever let them go.
            copies.retained.clear();
            copies.complete = false;
            self.keep.ledger.set_retained(self.queue, false);
        }
        self.end_here(index, Ok(()));
        self.serve_held(now);
    }

    /// An operation of the queue's own is over.
    pub(super) fn end_own(&mut self, owner: Owner, buffer: Option<Buffer>) {
        self.own -= 1;
        let Some(copies) = &mut self.keep.copies else { return };
        match (owner, buffer) {
            (Owner::Farewell, _) => {}
            (Owner::Room, _) => copies.making_room = false,
            (_, Some(buffer)) => drop(copies.buffers.give_back(buffer)),
            (_, None) => {}
        }
    }

    /// All queues have joined, and copies are to be written again before anything else: those that were acknowledged up to a time.
    pub(crate) fn restore(&mut self, association: AssociationId, until: Time) {
        if association != self.association {
            return;
        }
        let Some(copies) = &mut self.keep.copies else { return };
        if let Link::Ready { qp } = self.link {
            self.link = Link::Restoring { qp };
            copies.retained.release(self.keep.ledger.settled(self.queue));
            copies.next = 0;
            copies.failed = None;
        }
        copies.until = until;
        copies.told = false;
    }

    /// Writes copies again, in their order; such as have no block in common go together.
    pub(super) fn restore_more<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, qp: QpId) {
        if !self.delayed.is_empty() {
            self.schedule_retries(reactor);
        }
        let now = reactor.now();
        while let Some(&index) = self.waiting.front()
            && self.operations.get_mut(index).is_some_and(|operation| operation.owner == Owner::Copy)
        {
            self.waiting.pop_front();
            self.send(now, fabric, qp, index);
        }
        while let Some(operation) = self.next_copy(now) {
            let index = self.operations.insert(operation).expect("slots are set aside for copies");
            self.own += 1;
            self.send(now, fabric, qp, index);
        }
        let busy = self.operations.iter().any(|(_, operation)| operation.owner == Owner::Copy);
        let Some(copies) = self.keep.copies.as_mut().filter(|copies| !busy && !copies.told) else { return };
        let next = copies.retained.get(copies.next).map(|record| record.at);
        if copies.failed.is_none() && next.is_some_and(|at| at <= copies.until) {
            return;
        }
        copies.told = true;
        let news = copies.failed.map_or(News::Restored(next), News::NotRestored);
        self.tell(news);
    }

    /// The next copy that may be written now.
    fn next_copy(&mut self, now: Time) -> Option<Operation> {
        let under_way = || self.operations.iter().filter(|(_, operation)| operation.owner == Owner::Copy);
        let copies = self.keep.copies.as_mut().filter(|copies| copies.failed.is_none())?;
        let record = copies.retained.get(copies.next).filter(|record| record.at <= copies.until)?;
        if under_way().count() >= COPIES || under_way().any(|(_, other)| overlap(other.action, record.action)) {
            return None;
        }
        let buffer = match record.action {
            Action::Write { .. } | Action::Discard => {
                let mut buffer = copies.buffers.take()?;
                buffer.set_len(record.action.data_bytes());
                copies.retained.copy(&record, &mut buffer);
                Some(buffer)
            }
            _ => None,
        };
        copies.next += 1;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let place = Place::Here(buffer);
        Some(Operation { owner: Owner::Copy, action: record.action, sequence, submitted: now, retries: 0, was_sent: false, place })
    }

    /// The target does not take a copy. What of them is under way is waited for: it must not land after what comes later.
    pub(super) fn copy_failed(&mut self, index: u16, error: BlockError) {
        if let Some(copies) = &mut self.keep.copies {
            copies.failed.get_or_insert(error);
        }
        self.end_here(index, Err(error));
    }
}
