//! The user of a volume: random operations, paced, each checked when it ends.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use godwit_initiator::block::{BlockError, BlockOp, BlockQueue, LossWatch, Ticket};
use godwit_initiator::host::IoQueue;
use godwit_rdma::Fabric;
use godwit_reactor::Reactor;
use godwit_reactor::sim::{Random, Sim};

use super::model::{BLOCK_BYTES, Change, FlushMark, Model, Stamp};

/// The longest transfer, in blocks: what goes by RDMA Read is longer than two.
const MAX_BLOCKS: u64 = 32;

/// An operation under way.
#[derive(Debug)]
enum Under {
    Read,
    Change { blocks: Range<usize>, fua: bool },
    Flush(FlushMark),
}

/// An operation to be submitted.
#[derive(Clone, Debug)]
enum Wish {
    Read(Range<usize>),
    Write { blocks: Range<usize>, fua: bool },
    Zeroes { blocks: Range<usize>, may_deallocate: bool, fua: bool },
    Discard(Range<usize>),
    Flush,
}

/// The user.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) model: Model,
    random: Random,
    /// What the client of each queue was told of lost writes, from its first turn on.
    watches: Vec<Option<LossWatch>>,
    /// By queue.
    under_way: Vec<BTreeMap<u64, Under>>,
    /// To be submitted as soon as there is room, whatever the pace.
    wishes: VecDeque<Wish>,
    depth: usize,
    next_ticket: u64,
    next_stamp: u64,
    /// Submit nothing of its own accord.
    pub(super) resting: bool,
    /// The volume may be given up.
    pub(super) may_be_gone: bool,
    /// Operations that ended well.
    pub(super) succeeded: u64,
    /// Flushes and forced writes that failed for writes before them that were lost.
    pub(super) told: u64,
    /// Operations that ended because the volume was given up.
    pub(super) gone: u64,
}

fn bytes(blocks: &Range<usize>) -> (u64, usize) {
    ((blocks.start * BLOCK_BYTES) as u64, blocks.len() * BLOCK_BYTES)
}

impl Load {
    /// A user of `queues` queues.
    pub(super) fn new(seed: u64, blocks: usize, queues: usize) -> Self {
        let mut random = Random::new(seed);
        let depth = 1 + usize::try_from(random.below(24)).unwrap_or(0);
        Self {
            model: Model::new(blocks),
            random,
            watches: (0..queues).map(|_| None).collect(),
            under_way: (0..queues).map(|_| BTreeMap::new()).collect(),
            wishes: VecDeque::new(),
            depth,
            next_ticket: 0,
            next_stamp: 1,
            resting: false,
            may_be_gone: false,
            succeeded: 0,
            told: 0,
            gone: 0,
        }
    }

    /// Operations that have not ended.
    pub(super) fn outstanding(&self) -> usize {
        self.wishes.len() + self.under_way.iter().map(BTreeMap::len).sum::<usize>()
    }

    /// How long until the next burst.
    pub(super) fn pause(&mut self) -> Duration {
        if self.resting {
            return Duration::from_millis(500);
        }
        Duration::from_micros(match self.random.below(4) {
            0 => self.random.below(30_000),
            _ => self.random.below(3_000),
        })
    }

    /// Asks for each block, once.
    pub(super) fn read_everything(&mut self) {
        let blocks = self.model.blocks();
        let step = usize::try_from(MAX_BLOCKS).unwrap_or(1);
        self.wishes.extend((0..blocks).step_by(step).map(|start| Wish::Read(start..(start + step).min(blocks))));
    }

    /// Asks for a flush.
    pub(super) fn flush(&mut self) {
        self.wishes.push_back(Wish::Flush);
    }

    fn draw_range(&mut self) -> Range<usize> {
        let count = match self.random.below(4) {
            0 | 1 => 1 + self.random.below(2),
            2 => 3,
            _ => 1 + self.random.below(MAX_BLOCKS),
        };
        let count = usize::try_from(count).unwrap_or(1).min(self.model.blocks());
        let start = self.random.below((self.model.blocks() - count + 1) as u64);
        let start = usize::try_from(start).unwrap_or(0);
        start..start + count
    }

    fn draw(&mut self) -> Wish {
        let blocks = self.draw_range();
        let fua = self.random.below(6) == 0;
        match self.random.below(100) {
            0..35 => Wish::Read(blocks),
            35..80 => Wish::Write { blocks, fua },
            80..87 => Wish::Zeroes { blocks, may_deallocate: self.random.below(2) == 0, fua },
            87..91 => Wish::Discard(blocks),
            _ => Wish::Flush,
        }
    }

    /// Submits what there is room for.
    pub(super) fn submit(&mut self, index: usize, sim: &mut Sim, fabric: &mut Fabric, queue: &mut IoQueue, paced: bool) {
        while let Some(wish) = self.wishes.pop_front() {
            if !self.try_submit(index, sim, fabric, queue, &wish) {
                self.wishes.push_front(wish);
                break;
            }
        }
        if self.resting || !paced {
            return;
        }
        for _ in 0..=self.random.below(5) {
            if self.under_way[index].len() < self.depth {
                let wish = self.draw();
                self.try_submit(index, sim, fabric, queue, &wish);
            }
        }
    }

    /// False when there is no room now.
    fn try_submit(&mut self, index: usize, sim: &mut Sim, fabric: &mut Fabric, queue: &mut IoQueue, wish: &Wish) -> bool {
        let (change, blocks) = match wish {
            Wish::Write { blocks, .. } => (Some(Change::To(Stamp(self.next_stamp))), blocks.clone()),
            Wish::Zeroes { blocks, .. } => (Some(Change::To(Stamp::ZEROES)), blocks.clone()),
            Wish::Discard(blocks) => (Some(Change::Discard), blocks.clone()),
            Wish::Read(blocks) => (None, blocks.clone()),
            Wish::Flush => (None, 0..0),
        };
        if change.is_some() && self.model.is_changing(blocks.clone()) {
            return false;
        }
        let (offset, len_bytes) = bytes(&blocks);
        let op = match *wish {
            Wish::Read(_) | Wish::Write { .. } => {
                let Some(mut buffer) = sim.pool().take(len_bytes) else { return false };
                buffer.set_len(len_bytes);
                if let Wish::Write { fua, .. } = *wish {
                    for (block, part) in blocks.clone().zip(buffer.chunks_exact_mut(BLOCK_BYTES)) {
                        part.copy_from_slice(&Stamp(self.next_stamp).content(block));
                    }
                    BlockOp::Write { offset, len_bytes, buffer, fua }
                } else {
                    buffer.fill(0xEE);
                    BlockOp::Read { offset, len_bytes, buffer }
                }
            }
            Wish::Zeroes { may_deallocate, fua, .. } => BlockOp::WriteZeroes { offset, len_bytes: len_bytes as u64, may_deallocate, fua },
            Wish::Discard(_) => BlockOp::Discard { offset, len_bytes: len_bytes as u64 },
            Wish::Flush => BlockOp::Flush,
        };
        let ticket = self.next_ticket;
        if queue.submit(sim, fabric, Ticket(ticket), op).is_err() {
            return false;
        }
        self.next_ticket += 1;
        self.next_stamp += 1;
        let under = match (wish, change) {
            (Wish::Read(_), _) => {
                self.model.begin_read(ticket, blocks);
                Under::Read
            }
            (Wish::Flush, _) => Under::Flush(self.model.begin_flush()),
            (wish, Some(change)) => {
                self.model.begin_change(blocks.clone(), change);
                let fua = matches!(wish, Wish::Write { fua: true, .. } | Wish::Zeroes { fua: true, .. });
                Under::Change { blocks, fua }
            }
            (wish, None) => unreachable!("{wish:?} changes nothing"),
        };
        self.under_way[index].insert(ticket, under);
        true
    }

    /// Takes what has ended, and checks it.
    pub(super) fn take_ends(&mut self, index: usize, queue: &mut IoQueue) {
        self.watches[index].get_or_insert_with(|| BlockQueue::<Sim>::losses(queue).watch());
        while let Some(done) = BlockQueue::<Sim>::next_done(queue) {
            let Ticket(ticket) = done.ticket;
            let under = self.under_way[index].remove(&ticket).unwrap_or_else(|| panic!("operation {ticket} ended twice, or never began"));
            match done.result {
                Ok(()) => {
                    self.succeeded += 1;
                    let sync = matches!(under, Under::Flush(_) | Under::Change { fua: true, .. });
                    let losses = BlockQueue::<Sim>::losses(queue);
                    let told = sync && self.watches[index].as_mut().is_some_and(|watch| watch.tell(losses));
                    if sync {
                        self.told += u64::from(told);
                        self.model.end_sync(index, told, matches!(under, Under::Flush(_)));
                    }
                    match under {
                        Under::Flush(_) if told => {}
                        Under::Read => {
                            let buffer = done.buffer.unwrap_or_else(|| panic!("read {ticket} lost its buffer"));
                            self.model.end_read(ticket, &buffer);
                        }
                        Under::Change { blocks, fua } => self.model.end_change(blocks, fua),
                        Under::Flush(mark) => self.model.end_flush(mark),
                    }
                }
                Err(BlockError::VolumeGone) if self.may_be_gone => {
                    self.gone += 1;
                    match under {
                        Under::Read => self.model.fail_read(ticket),
                        Under::Change { blocks, .. } => self.model.fail_change(blocks),
                        Under::Flush(_) => {}
                    }
                }
                Err(error) => panic!("operation {ticket} ({under:?}) failed: {error}"),
            }
        }
    }
}
