//! A generator in the simulator, on a queue in memory whose operations end when a test says so.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, channel};

use godwit_memory::Layout;
use godwit_reactor::sim::{Sim, World};

use super::*;
use crate::bench::load::{Pace, Pattern, Rate};
use crate::block::Geometry;

const BLOCK: usize = 4096;

/// A volume of 64 blocks.
struct MemoryQueue {
    data: Vec<u8>,
    capacity: usize,
    pending: VecDeque<(Ticket, BlockOp)>,
    done: VecDeque<BlockDone>,
    /// Offsets of reads and writes, in order.
    seen: Vec<(u64, bool)>,
    /// What is submitted fails at once.
    gone: bool,
}

impl MemoryQueue {
    /// Ends the oldest operations.
    fn end(&mut self, count: usize) {
        for (ticket, op) in self.pending.drain(..count.min(self.pending.len())) {
            let buffer = match op {
                BlockOp::Read { offset, len_bytes, mut buffer } => {
                    let start = usize::try_from(offset).unwrap();
                    buffer.set_len(len_bytes);
                    buffer.copy_from_slice(&self.data[start..start + len_bytes]);
                    buffer
                }
                BlockOp::Write { offset, len_bytes, buffer, .. } => {
                    let start = usize::try_from(offset).unwrap();
                    self.data[start..start + len_bytes].copy_from_slice(&buffer[..len_bytes]);
                    buffer
                }
                op => panic!("{op:?}"),
            };
            self.done.push_back(BlockDone { ticket, result: Ok(()), buffer: Some(buffer) });
        }
    }
}

impl BlockQueue<Sim> for MemoryQueue {
    fn geometry(&self) -> Geometry {
        unreachable!("a generator knows its part")
    }

    fn submit(&mut self, _: &mut Sim, _: &mut Fabric, ticket: Ticket, op: BlockOp) -> Result<(), BlockOp> {
        if self.pending.len() + self.done.len() >= self.capacity {
            return Err(op);
        }
        let (offset, is_write) = match &op {
            BlockOp::Read { offset, .. } => (*offset, false),
            BlockOp::Write { offset, .. } => (*offset, true),
            op => panic!("{op:?}"),
        };
        self.seen.push((offset / BLOCK as u64, is_write));
        if self.gone {
            self.done.push_back(BlockDone { ticket, result: Err(BlockError::VolumeGone), buffer: None });
        } else {
            self.pending.push_back((ticket, op));
        }
        Ok(())
    }

    fn next_done(&mut self) -> Option<BlockDone> {
        self.done.pop_front()
    }

    fn abandon(&mut self, _: Ticket) {}
}

struct Stage {
    world: World,
    reactor: Sim,
    fabric: Fabric,
    queue: MemoryQueue,
    generator: Generator,
    reports: Receiver<Report>,
    progress: Arc<Progress>,
}

impl Stage {
    fn new(verify: bool) -> Self {
        let world = World::new(1);
        let reactor = world.host(&Layout::of_total(Layout::MINIMUM_BYTES));
        let (report, reports) = channel();
        let progress = Arc::new(Progress::default());
        let part = Part { offset: 16 * BLOCK as u64, len_bytes: 32 * BLOCK as u64 };
        let setup = Setup {
            index: 0,
            part,
            block_bytes: 4096,
            seed: 9,
            verify,
            memory: if verify { Memory::of(part, 4096).unwrap() } else { Memory::default() },
            reports: Mailbox::new(report, || {}),
            progress: Arc::clone(&progress),
        };
        let queue = MemoryQueue {
            data: vec![0; 64 * BLOCK],
            capacity: 64,
            pending: VecDeque::new(),
            done: VecDeque::new(),
            seen: Vec::new(),
            gone: false,
        };
        Self { world, reactor, fabric: Fabric::new(), queue, generator: Generator::new(3, setup), reports, progress }
    }

    fn start(&mut self, work: Work, request_bytes: usize, depth: u16) {
        self.generator.start(&self.reactor, Job { work, request_bytes, depth });
        self.pump();
    }

    fn pump(&mut self) {
        self.generator.pump(&mut self.reactor, &mut self.fabric, &mut self.queue);
    }

    fn pass(&mut self, time: Duration) {
        let until = self.world.now() + time;
        // A clock with nothing to come stands still.
        self.reactor.set_timer(until, Token(0));
        while self.world.advance(until).is_some() {
            self.reactor.take_events(&mut Vec::new());
        }
    }

    /// After some time so many operations end, and what follows from that is done.
    fn turn(&mut self, time: Duration, ends: usize) {
        self.pass(time);
        self.queue.end(ends);
        self.pump();
    }

    /// Turns until the job has ended.
    fn finish(&mut self) -> Result<Counted, Trouble> {
        for _ in 0..10_000 {
            if let Ok(report) = self.reports.try_recv() {
                return report.result;
            }
            self.turn(MILLI, usize::MAX);
        }
        panic!("never over: {:?}", self.generator)
    }
}

const MILLI: Duration = Duration::from_millis(1);

fn load(pattern: Pattern) -> Load {
    Load { pattern, read_percent: pattern.read_percent(50), pace: None, ramp: Duration::ZERO, time: 100 * MILLI }
}

#[test]
fn as_many_requests_as_the_depth_are_under_way_and_buffers_go_round() {
    let mut stage = Stage::new(false);
    let before = stage.reactor.pool().in_use();
    stage.start(Work::Load(load(Pattern::RandRead)), BLOCK, 8);
    assert_eq!((stage.queue.pending.len(), stage.reactor.pool().in_use() - before), (8, 8));
    for _ in 0..20 {
        stage.turn(MILLI, 3);
        assert_eq!((stage.queue.pending.len(), stage.reactor.pool().in_use() - before), (8, 8));
    }
    assert_eq!(stage.progress.completed(), 60);
    let counted = stage.finish().unwrap();
    assert_eq!(counted.writes, 0);
    assert_eq!(counted.histogram.count(), counted.reads + 8, "those that were under way at the end");
    assert_eq!(stage.reactor.pool().in_use(), before);
}

#[test]
fn latencies_of_a_slot_add_up_to_the_time_that_passes() {
    let mut stage = Stage::new(false);
    stage.start(Work::Load(load(Pattern::RandRead)), BLOCK, 1);
    let counted = loop {
        if let Ok(report) = stage.reports.try_recv() {
            break report.result.unwrap();
        }
        stage.turn(3 * MILLI, 1);
    };
    // The request that ends after 102 ms is counted by its latency alone.
    assert_eq!((counted.reads, counted.histogram.count()), (33, 34));
    assert_eq!((counted.histogram.mean(), counted.histogram.max()), (3 * MILLI, 3 * MILLI));
}

#[test]
fn what_ends_before_the_ramp_is_over_is_not_counted() {
    let mut stage = Stage::new(false);
    stage.start(Work::Load(Load { ramp: 50 * MILLI, ..load(Pattern::RandWrite) }), BLOCK, 1);
    let counted = stage.finish().unwrap();
    assert_eq!((counted.reads, counted.writes), (0, 100));
    assert_eq!(stage.progress.completed(), 150);
}

#[test]
fn a_stall_at_the_end_is_not_hidden() {
    let mut stage = Stage::new(false);
    stage.start(Work::Load(load(Pattern::RandRead)), BLOCK, 4);
    (0..90).for_each(|_| stage.turn(MILLI, 4));
    (0..500).for_each(|_| stage.turn(MILLI, 0));
    let counted = stage.finish().unwrap();
    assert_eq!((counted.reads, counted.histogram.max()), (4 * 90, 501 * MILLI));
}

#[test]
fn no_block_is_written_twice() {
    let mut stage = Stage::new(false);
    stage.start(Work::Load(load(Pattern::Write)), 2 * BLOCK, 1);
    stage.finish().unwrap();
    let part = &stage.queue.data[16 * BLOCK..48 * BLOCK];
    assert_eq!(part.chunks(BLOCK).collect::<std::collections::BTreeSet<_>>().len(), 32);
}

#[test]
fn requests_stay_in_the_part_and_reach_all_of_it() {
    for pattern in [Pattern::RandRead, Pattern::RandRw, Pattern::Write] {
        let mut stage = Stage::new(false);
        stage.start(Work::Load(load(pattern)), BLOCK, 16);
        stage.finish().unwrap();
        let blocks: std::collections::BTreeSet<u64> = stage.queue.seen.iter().map(|seen| seen.0).collect();
        assert_eq!(blocks, (16..48).collect());
        let writes = stage.queue.seen.iter().filter(|seen| seen.1).count();
        let share = writes * 100 / stage.queue.seen.len();
        assert!((pattern == Pattern::RandRw && (40..60).contains(&share)) || share == if pattern.is_writing() { 100 } else { 0 });
    }
}

#[test]
fn requests_in_order_begin_again_at_the_end() {
    let mut stage = Stage::new(false);
    stage.start(Work::Load(load(Pattern::Read)), 2 * BLOCK, 4);
    (0..5).for_each(|_| stage.turn(MILLI, 4));
    let first: Vec<u64> = stage.queue.seen.iter().map(|seen| seen.0).collect();
    assert_eq!(first, (0..24).map(|n| 16 + n % 16 * 2).collect::<Vec<_>>());
}

#[test]
fn a_rate_is_kept_and_a_late_request_counts_from_when_it_was_due() {
    let mut stage = Stage::new(false);
    let pace = Some(Pace { rate: Rate { per_second: 1000, burst: 1 }, generators: 2 });
    stage.start(Work::Load(Load { pace, ..load(Pattern::RandRead) }), BLOCK, 4);
    // One at once, then one each 2 ms; each ends a millisecond later.
    for _ in 0..10 {
        assert_eq!(stage.queue.pending.len(), 1);
        stage.turn(MILLI, 1);
        assert_eq!(stage.queue.pending.len(), 0);
        stage.turn(MILLI, 0);
    }
    // The target stalls for 20 ms with requests due after 20, 22, ... 38 ms, of which it has four.
    (0..20).for_each(|_| stage.turn(MILLI, 0));
    assert_eq!(stage.queue.pending.len(), 4);
    stage.turn(Duration::ZERO, 4);
    stage.turn(Duration::ZERO, 4);
    let counted = stage.finish().unwrap();
    assert_eq!(counted.reads, 50);
    // The first of these took 20 ms, and the fifth, due after 28 ms, was late by 12 ms.
    assert_eq!(counted.histogram.max(), 20 * MILLI);
    let longer = |time: Duration| (0..1000).filter(|n| counted.histogram.quantile(n * 1000 + 1) >= time).count() * 50 / 1000;
    assert_eq!(longer(11 * MILLI), 5);
}

#[test]
fn a_refused_request_is_offered_again() {
    let mut stage = Stage::new(false);
    stage.queue.capacity = 2;
    stage.start(Work::Load(load(Pattern::Read)), BLOCK, 4);
    assert_eq!(stage.queue.pending.len(), 2);
    (0..3).for_each(|_| stage.turn(MILLI, 1));
    assert_eq!(stage.queue.seen.iter().map(|seen| seen.0).collect::<Vec<_>>(), [16, 17, 18, 19, 20]);
    stage.finish().unwrap();
}

#[test]
fn a_failed_request_ends_the_job_when_nothing_is_under_way() {
    let mut stage = Stage::new(false);
    stage.start(Work::Load(load(Pattern::Read)), BLOCK, 4);
    let (ticket, _) = stage.queue.pending.pop_front().unwrap();
    stage.queue.done.push_back(BlockDone { ticket, result: Err(BlockError::Media), buffer: None });
    stage.pump();
    assert!(stage.reports.try_recv().is_err());
    stage.turn(MILLI, 3);
    let trouble = stage.reports.try_recv().unwrap().result.unwrap_err();
    assert_eq!(trouble, Trouble::Request { is_write: false, offset: 65_536, error: BlockError::Media });
    assert_eq!(trouble.to_string(), "a read at byte 65536 failed: medium error");
}

#[test]
fn requests_that_fail_at_once_end_the_job_in_the_same_turn() {
    let mut stage = Stage::new(false);
    stage.queue.gone = true;
    stage.start(Work::Load(load(Pattern::Read)), BLOCK, 4);
    assert!(matches!(stage.reports.try_recv().unwrap().result, Err(Trouble::Request { error: BlockError::VolumeGone, .. })));
}

#[test]
fn too_few_buffers_are_said_to_be_too_few() {
    let mut stage = Stage::new(false);
    stage.start(Work::Load(load(Pattern::Read)), 1 << 20, 4);
    let trouble = stage.reports.try_recv().unwrap().result.unwrap_err();
    assert_eq!(trouble.to_string(), "there is no memory for 4 requests of 1048576 bytes: choose a smaller --qd or --bs");
}

#[test]
fn what_is_filled_is_read_as_it_was_written() {
    let mut stage = Stage::new(true);
    stage.start(Work::Fill, 4 * BLOCK, 3);
    assert_eq!(stage.finish().unwrap().writes, 8);
    for pattern in [Pattern::RandRead, Pattern::RandRw, Pattern::Read] {
        stage.start(Work::Load(load(pattern)), BLOCK, 8);
        assert!(stage.finish().unwrap().checked_blocks > 100);
    }
    stage.start(Work::Check, 2 * BLOCK, 8);
    assert_eq!(stage.finish().unwrap().checked_blocks, 32);
}

#[test]
fn what_was_not_written_is_not_checked() {
    let mut stage = Stage::new(true);
    stage.start(Work::Load(Load { time: 2 * MILLI, ..load(Pattern::Write) }), BLOCK, 3);
    let written = stage.finish().unwrap().writes;
    assert!(written > 0 && written < 32);
    let seen: std::collections::BTreeSet<u64> = stage.queue.seen.iter().map(|seen| seen.0).collect();
    stage.start(Work::Check, 4 * BLOCK, 8);
    assert_eq!(stage.finish().unwrap().checked_blocks, seen.len() as u64);
}

#[test]
fn a_block_that_was_changed_behind_the_back_is_named() {
    for (change, words) in [(0xff_u8, "block 20 (4096 bytes at 81920) does not hold"), (0, "it is all zeroes")] {
        let mut stage = Stage::new(true);
        stage.start(Work::Fill, BLOCK, 8);
        stage.finish().unwrap();
        stage.queue.data[20 * BLOCK..21 * BLOCK].fill(change);
        stage.start(Work::Load(load(Pattern::RandRead)), BLOCK, 8);
        let trouble = stage.finish().unwrap_err().to_string();
        assert!(trouble.contains(words), "{trouble}");
    }
}

#[test]
fn a_lost_write_is_found() {
    let mut stage = Stage::new(true);
    stage.start(Work::Fill, BLOCK, 8);
    stage.finish().unwrap();
    let old = stage.queue.data[20 * BLOCK..21 * BLOCK].to_vec();
    stage.start(Work::Load(load(Pattern::RandWrite)), BLOCK, 8);
    stage.finish().unwrap();
    assert_ne!(stage.queue.data[20 * BLOCK..21 * BLOCK], old, "block 20 was never written again");
    stage.queue.data[20 * BLOCK..21 * BLOCK].copy_from_slice(&old);
    stage.start(Work::Check, BLOCK, 8);
    let trouble = stage.finish().unwrap_err().to_string();
    assert!(trouble.contains("it holds write 1, and the last one was write "), "{trouble}");
}

#[test]
fn requests_that_are_verified_never_meet() {
    let mut stage = Stage::new(true);
    stage.start(Work::Load(load(Pattern::RandRw)), 8 * BLOCK, 16);
    for _ in 0..50 {
        let mut offsets: Vec<u64> = stage
            .queue
            .pending
            .iter()
            .map(|(_, op)| match op {
                BlockOp::Read { offset, .. } | BlockOp::Write { offset, .. } => *offset,
                op => panic!("{op:?}"),
            })
            .collect();
        offsets.sort_unstable();
        // There are four places for them.
        assert!(offsets.len() == 4 && offsets.windows(2).all(|pair| pair[0] < pair[1]), "{offsets:?}");
        stage.turn(MILLI, 2);
    }
}

#[test]
fn a_part_that_no_memory_is_enough_for_is_told() {
    assert!(Memory::of(Part { offset: 0, len_bytes: 7 << 60 }, 512).is_none());
    assert!(Memory::of(Part { offset: 0, len_bytes: u64::MAX }, 1).is_none());
}

#[test]
fn each_generator_has_a_token_of_its_own() {
    let stage = Stage::new(false);
    assert_eq!(Generator::number_of(stage.generator.token), Some(3));
    assert_eq!(Generator::number_of(Token(3)), None);
    assert!(!Fabric::owns(stage.generator.token));
    assert_eq!(crate::host::TokenSpace::volume_of(stage.generator.token), None);
    assert_eq!(crate::nbd::Front::number_of(stage.generator.token), None);
}
