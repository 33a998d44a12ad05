//! A volume in memory, whose operations end when and how a test wants.

use std::collections::{HashSet, VecDeque};

use godwit_memory::Buffer;
use godwit_rdma::Fabric;
use godwit_reactor::Reactor;

use crate::block::{BlockDone, BlockError, BlockOp, BlockQueue, Geometry, Losses, Ticket};

pub(super) const MIB: usize = 1 << 20;

pub(super) const GEOMETRY: Geometry = Geometry {
    size_bytes: 64 << 20,
    block_bytes: 512,
    optimal_bytes: 4096,
    max_transfer_bytes: MIB,
    max_zeroes_bytes: 4 << 20,
    max_discard_bytes: 8 << 20,
    read_only: false,
    can_write_zeroes: true,
    can_discard: true,
    volatile_cache: true,
};

/// How operations end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// At once.
    AtOnce,
    /// When the test says so.
    ByHand,
    /// Each in some later turn, in any order, from this seed.
    AnyOrder(u64),
}

/// What an operation was, for transcripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Read(u64, usize),
    Write(u64, usize, Fua),
    Flush,
    Zeroes(u64, u64, MayDeallocate, Fua),
    Discard(u64, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fua(pub(super) bool);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MayDeallocate(pub(super) bool);

pub(super) struct MemoryQueue {
    pub(super) geometry: Geometry,
    pub(super) data: Vec<u8>,
    pub(super) ends: Ends,
    /// Operations that it takes at a time.
    pub(super) capacity: usize,
    /// How many of the oldest pending operations were sent; the others can be abandoned.
    pub(super) sent: usize,
    /// Operations that have not ended, oldest first.
    pub(super) pending: VecDeque<(Ticket, BlockOp)>,
    /// Everything that was ever submitted.
    pub(super) seen: Vec<Seen>,
    /// Ranges whose operations fail, and how.
    pub(super) broken: Vec<(std::ops::Range<u64>, BlockError)>,
    pub(super) refusals: usize,
    /// Writes that were lost after they had been acknowledged.
    pub(super) losses: Losses,
    /// Operations that ended well and not so for their clients.
    pub(super) failed_after_all: usize,
    tickets: HashSet<Ticket>,
    done: VecDeque<BlockDone>,
}

impl MemoryQueue {
    pub(super) fn new(geometry: Geometry) -> Self {
        let mut data = vec![0; usize::try_from(geometry.size_bytes).unwrap()];
        data.chunks_mut(512).enumerate().for_each(|(block, data)| data.fill((block % 251) as u8));
        Self {
            geometry,
            data,
            ends: Ends::AtOnce,
            capacity: 128,
            sent: usize::MAX,
            pending: VecDeque::new(),
            seen: Vec::new(),
            broken: Vec::new(),
            refusals: 0,
            losses: Losses::default(),
            failed_after_all: 0,
            tickets: HashSet::new(),
            done: VecDeque::new(),
        }
    }

    /// Ends the pending operation of that index as it should.
    pub(super) fn end(&mut self, index: usize) {
        let result = self.verdict(&self.pending[index].1);
        self.end_with(index, result);
    }

    pub(super) fn end_with(&mut self, index: usize, result: Result<(), BlockError>) {
        let (ticket, op) = self.pending.remove(index).unwrap();
        let buffer = if result.is_ok() { self.carry_out(op) } else { buffer_of(op) };
        self.done.push_back(BlockDone { ticket, result, buffer });
    }

    pub(super) fn end_all(&mut self) {
        while !self.pending.is_empty() {
            self.end(0);
        }
    }

    /// Ends some operations, in any order.
    pub(super) fn turn(&mut self) {
        let Ends::AnyOrder(seed) = &mut self.ends else { return };
        let mut random = *seed;
        let mut victims = Vec::new();
        for _ in 0..self.pending.len().min(3) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if random >> 62 != 0 {
                victims.push((random >> 33) as usize);
            }
        }
        *seed = random;
        for victim in victims {
            let index = victim % self.pending.len();
            self.end(index);
        }
    }

    fn verdict(&self, op: &BlockOp) -> Result<(), BlockError> {
        let (start, len) = range(op);
        let broken = self.broken.iter().find(|(range, _)| start < range.end && range.start < start + len);
        broken.map_or(Ok(()), |(_, error)| Err(*error))
    }

    fn carry_out(&mut self, op: BlockOp) -> Option<Buffer> {
        let (start, len) = range(&op);
        let range = usize::try_from(start).unwrap()..usize::try_from(start + len).unwrap();
        match op {
            BlockOp::Read { mut buffer, len_bytes, .. } => {
                buffer.set_len(len_bytes);
                buffer.copy_from_slice(&self.data[range]);
                Some(buffer)
            }
            BlockOp::Write { buffer, len_bytes, .. } => {
                self.data[range].copy_from_slice(&buffer[..len_bytes]);
                Some(buffer)
            }
            BlockOp::WriteZeroes { .. } => {
                self.data[range].fill(0);
                None
            }
            BlockOp::Discard { .. } => {
                self.data[range].fill(0xdd);
                None
            }
            BlockOp::Flush => None,
        }
    }

    /// The rules of [`BlockOp`].
    fn check(&self, op: &BlockOp) {
        let (start, len) = range(op);
        let block = u64::from(self.geometry.block_bytes);
        assert!(start % block == 0 && len % block == 0 && start + len <= self.geometry.size_bytes, "{op:?}");
        let longest = match op {
            BlockOp::Read { buffer, .. } | BlockOp::Write { buffer, .. } => {
                assert!(buffer.capacity() as u64 >= len);
                self.geometry.max_transfer_bytes as u64
            }
            BlockOp::WriteZeroes { .. } => self.geometry.max_zeroes_bytes,
            BlockOp::Discard { .. } => self.geometry.max_discard_bytes,
            BlockOp::Flush => return,
        };
        assert!(0 < len && len <= longest, "{op:?}");
    }
}

fn buffer_of(op: BlockOp) -> Option<Buffer> {
    match op {
        BlockOp::Read { buffer, .. } | BlockOp::Write { buffer, .. } => Some(buffer),
        _ => None,
    }
}

fn range(op: &BlockOp) -> (u64, u64) {
    match *op {
        BlockOp::Read { offset, len_bytes, .. } | BlockOp::Write { offset, len_bytes, .. } => (offset, len_bytes as u64),
        BlockOp::WriteZeroes { offset, len_bytes, .. } | BlockOp::Discard { offset, len_bytes } => (offset, len_bytes),
        BlockOp::Flush => (0, 0),
    }
}

fn seen(op: &BlockOp) -> Seen {
    match *op {
        BlockOp::Read { offset, len_bytes, .. } => Seen::Read(offset, len_bytes),
        BlockOp::Write { offset, len_bytes, fua, .. } => Seen::Write(offset, len_bytes, Fua(fua)),
        BlockOp::Flush => Seen::Flush,
        BlockOp::WriteZeroes { offset, len_bytes, may_deallocate, fua } => {
            Seen::Zeroes(offset, len_bytes, MayDeallocate(may_deallocate), Fua(fua))
        }
        BlockOp::Discard { offset, len_bytes } => Seen::Discard(offset, len_bytes),
    }
}

impl<R: Reactor> BlockQueue<R> for MemoryQueue {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn losses(&self) -> &Losses {
        &self.losses
    }

    fn submit(&mut self, _: &mut R, _: &mut Fabric, ticket: Ticket, op: BlockOp) -> Result<(), BlockOp> {
        if self.pending.len() >= self.capacity {
            self.refusals += 1;
            return Err(op);
        }
        self.check(&op);
        assert!(self.tickets.insert(ticket), "{ticket:?} is the name of another operation");
        self.seen.push(seen(&op));
        self.pending.push_back((ticket, op));
        if self.ends == Ends::AtOnce {
            self.end(self.pending.len() - 1);
        }
        Ok(())
    }

    fn next_done(&mut self) -> Option<BlockDone> {
        let done = self.done.pop_front()?;
        assert!(self.tickets.remove(&done.ticket));
        Some(done)
    }

    fn failed_after_all(&mut self) {
        self.failed_after_all += 1;
    }

    fn abandon(&mut self, ticket: Ticket) {
        let Some(index) = self.pending.iter().position(|(pending, _)| *pending == ticket) else { return };
        if index >= self.sent {
            self.end_with(index, Err(BlockError::Abandoned));
        }
    }
}
