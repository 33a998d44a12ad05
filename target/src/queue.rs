//! One queue of a host: its connection, its slots, and what it may do now.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use godwit_memory::{Buffer, Reservation};
use godwit_nvme::sqe::Connect;
use godwit_nvme::{Cid, ConnectData, Lba, Nsid, Qid, QueueSize, Sqe, Sqhd};
use godwit_rdma::{QpId, Remote, Rkey};
use godwit_reactor::{Time, TimerId, Token};

use crate::association::Member;
use crate::backend::Job;
use crate::controller::Controller;
use crate::limits::PEER_PATIENCE;
use crate::request::Request;

/// A queue of one worker. Keys are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueKey {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// What a reactor token of a worker stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A file operation of a slot.
    Slot(QueueKey, u16),
    /// The timer of a queue.
    Timer(QueueKey),
    /// A listener, by its portal.
    Listener(u16),
    /// The flush of a store when the daemon stops.
    FinalFlush(u32),
    /// The worker's timer for reservations, and for stopping.
    Housekeeping,
    /// The worker's timer for hosts that are stuck.
    Watch,
    /// The worker's timer for stores that shall be let go.
    Detach,
}

const GENERATION_MASK: u32 = 0x0FFF_FFFF;

impl Purpose {
    /// The token: bit 63 clear (it is the fabric's), bits 62:60 kind, 59:32 generation, 31:16 queue, 15:0 slot.
    #[expect(clippy::cast_possible_truncation, reason = "the number of a store is cut into two fields")]
    pub(crate) fn token(self) -> Token {
        let pack = |kind: u64, generation: u32, index: u32, low: u16| {
            Token((kind << 60) | (u64::from(generation & GENERATION_MASK) << 32) | (u64::from(index & 0xFFFF) << 16) | u64::from(low))
        };
        match self {
            Self::Slot(key, slot) => pack(0, key.generation, key.index, slot),
            Self::Timer(key) => pack(1, key.generation, key.index, 0),
            Self::Listener(portal) => pack(2, 0, 0, portal),
            Self::FinalFlush(store) => pack(3, 0, store >> 16, store as u16),
            Self::Housekeeping => pack(4, 0, 0, 0),
            Self::Watch => pack(5, 0, 0, 0),
            Self::Detach => pack(6, 0, 0, 0),
        }
    }

    /// What a token stands for; `None` for one that is not a worker's.
    #[expect(clippy::cast_possible_truncation, reason = "the fields are cut out by their widths")]
    pub(crate) fn of(Token(token): Token) -> Option<Self> {
        let key = QueueKey { index: u32::from((token >> 16) as u16), generation: (token >> 32) as u32 & GENERATION_MASK };
        let low = token as u16;
        match token >> 60 {
            0 => Some(Self::Slot(key, low)),
            1 => Some(Self::Timer(key)),
            2 => Some(Self::Listener(low)),
            3 => Some(Self::FinalFlush(token as u32)),
            4 => Some(Self::Housekeeping),
            5 => Some(Self::Watch),
            6 => Some(Self::Detach),
            _ => None,
        }
    }
}

/// Where a queue is in its life.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Adopted; its connection request is awaited.
    Requested,
    /// Accepted; its Connect is awaited or under way.
    Connecting,
    /// The admin queue of a controller.
    Admin(Box<Controller>),
    /// An I/O queue.
    Io(Member),
    /// Its connection is gone; it stays until its last operation in a backend has ended.
    Closed(Option<Member>),
}

/// What a slot's command is waiting for.
#[derive(Debug, Default)]
pub(crate) enum Work {
    /// There is no command.
    #[default]
    Free,
    /// It is being looked at.
    Starting,
    /// The data of a Connect, which an RDMA Read fetches.
    ConnectData(Connect),
    /// A dying association of the same host.
    Fence(Connect, Box<ConnectData>),
    /// An asynchronous event.
    AsyncEvent,
    /// A buffer for the answer's data.
    AnswerBuffer(AnswerData),
    /// A buffer for the command's data.
    Memory(Request),
    /// The data of the host, which an RDMA Read fetches; and the buffer that a Compare reads into.
    Fetching(Request, Option<Buffer>),
    /// A backend.
    Running(Running),
}

/// Data that answers an admin command: these bytes, then zeroes up to the length.
#[derive(Debug)]
pub(crate) struct AnswerData {
    pub(crate) bytes: Vec<u8>,
    pub(crate) len_bytes: usize,
    pub(crate) to: Remote,
}

/// A command that a backend works on.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) request: Request,
    pub(crate) job: Job,
    /// The host's data of a Compare, or the ranges of a Dataset Management.
    pub(crate) held: Option<Buffer>,
    /// The next range of a Dataset Management.
    pub(crate) next_range: u16,
}

/// A command.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) cid: Cid,
    /// The key that the response has to invalidate.
    pub(crate) invalidate: Option<Rkey>,
    pub(crate) nsid: Nsid,
    pub(crate) lba: Lba,
    pub(crate) work: Work,
}

/// The commands of a queue.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// How many are taken, for whoever looks from another thread.
    in_flight: Arc<AtomicU32>,
}

impl Slots {
    /// Slots for so many commands.
    pub(crate) fn new(count: u16) -> Self {
        let empty = || Slot { cid: Cid::new(0), invalidate: None, nsid: Nsid::NONE, lba: Lba::new(0), work: Work::Free };
        Self { slots: (0..count).map(|_| empty()).collect(), free: (0..count).rev().collect(), in_flight: Arc::default() }
    }

    /// How many commands have not been answered, as it is from time to time.
    pub(crate) fn in_flight(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.in_flight)
    }

    fn tell_in_flight(&self) {
        let taken = u32::try_from(self.slots.len() - self.free.len()).unwrap_or(u32::MAX);
        self.in_flight.store(taken, Ordering::Relaxed);
    }

    /// A slot for a command that came; `None` when the host has more outstanding than it may.
    pub(crate) fn take(&mut self, sqe: &Sqe) -> Option<u16> {
        let index = self.free.pop()?;
        let invalidate = sqe.sgl().ok().and_then(|sgl| sgl.key_to_invalidate()).map(|key| Rkey(key.get()));
        let slot = &mut self.slots[usize::from(index)];
        // Field by field: a whole slot is large, and most of it is the work, which is empty here.
        (slot.cid, slot.invalidate, slot.nsid, slot.lba) = (sqe.cid(), invalidate, sqe.nsid(), sqe.io_range().blocks.start);
        slot.work = Work::Starting;
        self.tell_in_flight();
        Some(index)
    }

    /// Takes the work out of a slot, for a step that puts it back or frees the slot.
    pub(crate) fn take_work(&mut self, index: u16) -> Work {
        self.slots.get_mut(usize::from(index)).map_or(Work::Free, |slot| std::mem::replace(&mut slot.work, Work::Starting))
    }

    pub(crate) fn set_work(&mut self, index: u16, work: Work) {
        self.slots[usize::from(index)].work = work;
    }

    pub(crate) fn get(&self, index: u16) -> Option<&Slot> {
        self.slots.get(usize::from(index))
    }

    /// Frees a slot; its command has been answered, or never will be. Returns what the answer names.
    pub(crate) fn release(&mut self, index: u16) -> (Cid, Option<Rkey>) {
        let slot = &mut self.slots[usize::from(index)];
        assert!(!matches!(slot.work, Work::Free), "a slot is freed once");
        slot.work = Work::Free;
        let named = (slot.cid, slot.invalidate);
        self.free.push(index);
        self.tell_in_flight();
        named
    }

    /// Frees every slot whose command is not in a backend.
    pub(crate) fn abandon_waiting(&mut self) {
        for index in 0..u16::try_from(self.slots.len()).unwrap_or(u16::MAX) {
            if !matches!(self.slots[usize::from(index)].work, Work::Free | Work::Running(_)) {
                self.release(index);
            }
        }
    }

    pub(crate) fn count(&self) -> u16 {
        u16::try_from(self.slots.len()).unwrap_or(u16::MAX)
    }

    /// Commands that have not been answered.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether a command names this store.
    pub(crate) fn uses(&self, store: usize) -> bool {
        self.slots.iter().any(|slot| match &slot.work {
            Work::Memory(request) | Work::Fetching(request, _) | Work::Running(Running { request, .. }) => request.store == store,
            _ => false,
        })
    }

    /// The slot of the first command that satisfies `wanted`.
    pub(crate) fn find(&self, wanted: impl Fn(&Slot) -> bool) -> Option<u16> {
        self.slots.iter().position(|slot| !matches!(slot.work, Work::Free) && wanted(slot)).and_then(|index| u16::try_from(index).ok())
    }
}

/// The head of a submission queue, which completions carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubmissionQueue {
    /// With flow control: the head moves with each completion.
    Controlled {
        /// Entries.
        size: QueueSize,
        /// The head.
        head: Sqhd,
    },
    /// The host disabled flow control.
    Uncontrolled,
}

impl SubmissionQueue {
    pub(crate) fn new(size: QueueSize, uncontrolled: bool) -> Self {
        if uncontrolled { Self::Uncontrolled } else { Self::Controlled { size, head: Sqhd::new(0) } }
    }

    /// One more command was consumed: what its completion says.
    pub(crate) fn advance(&mut self) -> Sqhd {
        match self {
            Self::Controlled { size, head } => {
                *head = head.next(*size);
                *head
            }
            Self::Uncontrolled => Sqhd::FLOW_CONTROL_DISABLED,
        }
    }
}

/// Where received in-capsule data finds its buffers.
#[derive(Debug)]
pub(crate) enum CapsuleMemory {
    /// In the pool: the queue may have no RDMA Reads outstanding.
    Pool,
    /// In one buffer of its own, as for queues that connect and for admin queues.
    Own(Rc<Reservation>),
    /// In a buffer for each slot: RDMA Reads may be outstanding.
    Reserved(Rc<Reservation>),
}

/// A queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) key: QueueKey,
    pub(crate) qp: QpId,
    /// The host's end, for logs.
    pub(crate) peer: String,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) portal: u16,
    pub(crate) phase: Phase,
    pub(crate) qid: Qid,
    pub(crate) slots: Slots,
    pub(crate) sq: SubmissionQueue,
    pub(crate) memory: CapsuleMemory,
    /// RDMA Reads outstanding.
    pub(crate) reads: usize,
    /// When the last RDMA Read ended, or the first began.
    pub(crate) last_read: Time,
    /// Responses posted and not yet reported as sent.
    pub(crate) sends: usize,
    /// When the last of them was reported, or the first posted.
    pub(crate) last_sent: Time,
    /// Commands in a backend.
    pub(crate) running: usize,
    /// What the workers were asked last, for an admin Connect: the number of the question, and how many have not answered.
    pub(crate) question: u32,
    pub(crate) unseen: usize,
    pub(crate) timer: Option<TimerId>,
}

impl Queue {
    pub(crate) fn new(key: QueueKey, qp: QpId, portal: u16) -> Self {
        Self {
            key,
            qp,
            peer: String::new(),
            local: None,
            portal,
            phase: Phase::Requested,
            qid: Qid::ADMIN,
            slots: Slots::new(0),
            sq: SubmissionQueue::Uncontrolled,
            memory: CapsuleMemory::Pool,
            reads: 0,
            last_read: Time::default(),
            sends: 0,
            last_sent: Time::default(),
            running: 0,
            question: 0,
            unseen: 0,
            timer: None,
        }
    }

    /// Commands that the host may have outstanding.
    pub(crate) fn depth(&self) -> usize {
        usize::from(self.slots.count())
    }

    /// Takes a buffer back that in-capsule data was in.
    pub(crate) fn give_back(&self, buffer: Buffer) {
        let (reservation, full) = match &self.memory {
            CapsuleMemory::Pool => return,
            CapsuleMemory::Own(reservation) => (reservation, 1),
            CapsuleMemory::Reserved(reservation) => (reservation, self.depth()),
        };
        // A buffer that was taken from the pool, before there was a reservation, may go to the reservation too; never more than it was made for.
        if reservation.unused() < full {
            reservation.give_back(buffer);
        }
    }

    /// An RDMA Read is about to be posted.
    pub(crate) fn count_read(&mut self, now: Time) {
        if self.reads == 0 {
            self.last_read = now;
        }
        self.reads += 1;
    }

    /// A response is about to be posted.
    pub(crate) fn count_send(&mut self, now: Time) {
        if self.sends == 0 {
            self.last_sent = now;
        }
        self.sends += 1;
    }

    /// So many responses were handed to the transport, or will never be.
    pub(crate) fn sent(&mut self, now: Time, count: usize) {
        self.sends -= count;
        self.last_sent = now;
    }

    /// Whether the host has not answered or not read for longer than we wait.
    pub(crate) fn is_stuck(&self, now: Time) -> bool {
        let reads = self.reads > 0 && now.since(self.last_read) >= PEER_PATIENCE;
        let sends = self.sends > 0 && now.since(self.last_sent) >= PEER_PATIENCE;
        reads || sends
    }

    /// Work requests that may be posted at a time.
    ///
    /// A host has at most `depth` commands outstanding. Each leads to a read at the host, or to a write and a send. But sends of earlier commands may
    /// not have been reported as done when the next commands come: [`Self::is_overrun`] allows twice `depth` of them. Each of these may have a write
    /// before it: three times a write and a send.
    pub(crate) fn send_depth(depth: usize) -> usize {
        6 * depth
    }

    /// Whether it is no I/O queue of an association that lives.
    pub(crate) fn is_dying(&self) -> bool {
        !matches!(&self.phase, Phase::Io(member) if !member.association.is_dying())
    }

    /// Whether more responses are on their way than an honest host can have asked for.
    pub(crate) fn is_overrun(&self) -> bool {
        self.sends > 2 * self.depth()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_tell_what_they_stand_for_and_stay_out_of_the_fabrics_way() {
        let key = QueueKey { index: 0xFFFF, generation: GENERATION_MASK };
        for purpose in [
            Purpose::Slot(key, 0xFFFF),
            Purpose::Slot(QueueKey { index: 0, generation: 0 }, 0),
            Purpose::Timer(key),
            Purpose::Listener(7),
            Purpose::FinalFlush(9),
            Purpose::FinalFlush(0xFFFF_FFFF),
            Purpose::Detach,
            Purpose::Housekeeping,
            Purpose::Watch,
        ] {
            assert_eq!(Purpose::of(purpose.token()), Some(purpose));
            assert!(!godwit_rdma::Fabric::owns(purpose.token()));
        }
        assert_eq!(Purpose::of(Token(7 << 60)), None);
    }

    #[test]
    fn a_queue_takes_as_many_commands_as_it_has_slots() {
        let mut slots = Slots::new(2);
        let sqe = Sqe::keep_alive(Cid::new(5));
        let (a, b) = (slots.take(&sqe).unwrap(), slots.take(&sqe).unwrap());
        assert_ne!(a, b);
        assert_eq!(slots.take(&sqe), None);
        assert_eq!(slots.release(a), (Cid::new(5), None));
        assert_eq!(slots.take(&sqe), Some(a));
        assert_eq!(slots.in_use(), 2);
    }

    #[test]
    #[should_panic(expected = "freed once")]
    fn freeing_a_slot_twice_is_our_mistake() {
        let mut slots = Slots::new(1);
        let slot = slots.take(&Sqe::keep_alive(Cid::new(5))).unwrap();
        slots.release(slot);
        slots.release(slot);
    }

    #[test]
    fn the_head_wraps_with_the_queue_and_stays_when_flow_control_is_off() {
        let mut queue = SubmissionQueue::new(QueueSize::new(3).unwrap(), false);
        assert_eq!([queue.advance(), queue.advance(), queue.advance(), queue.advance()].map(Sqhd::get), [1, 2, 0, 1]);
        let mut queue = SubmissionQueue::new(QueueSize::new(3).unwrap(), true);
        assert_eq!([queue.advance(), queue.advance()].map(Sqhd::get), [0xFFFF, 0xFFFF]);
    }
}
