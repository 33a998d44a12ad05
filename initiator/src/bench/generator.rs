//! Makes the load of one I/O queue, on the queue's reactor thread, and counts what comes back.
//!
//! It stands where an NBD front end stands otherwise: it gives operations to the thread's [`BlockQueue`] and takes their ends, once in each turn of the
//! loop, and all that it has submitted in a turn leaves by the one flush of that turn. A request allocates nothing and takes no lock; its buffer is the one
//! of its slot, from the thread's pool, and goes round from job to end and back.
//!
//! # The clock
//!
//! A request begins and ends at the times of the turns in which it was submitted and its end was taken, so no clock is read for it. With a slot always
//! under way the next request begins when the last one ended: the latencies of a slot add up to the time that has passed, and depth over mean latency is
//! the rate. At a fixed rate a request that finds no slot free begins when it was due: a target that stalls is not flattered by requests that were never made.
//!
//! # What is counted
//!
//! Requests that end within the measured time, which begins when the ramp is over; latencies are those of the requests that begin within it, however late
//! they end: a target that stalls at the end is not flattered either.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use godwit_memory::Buffer;
use godwit_rdma::Fabric;
use godwit_reactor::{Reactor, Time, TimerId, Token};
use zerocopy::FromZeros;

use super::histogram::Histogram;
use super::load::{Job, Load, Part, Work};
use super::stamp::{Mismatch, Stamp};
use crate::block::{BlockDone, BlockError, BlockOp, BlockQueue, Ticket};
use crate::host::Mailbox;
use crate::random::Random;

/// The top 16 bits of the tokens of generators ("GN"); the volume's number is the rest.
const TOKENS: u64 = 0x474e << 48;

/// What a generator is made of.
pub(crate) struct Setup {
    /// Which of the generators it is.
    pub(crate) index: usize,
    pub(crate) part: Part,
    /// Of the volume.
    pub(crate) block_bytes: u32,
    pub(crate) seed: u64,
    /// Whether what it writes carries stamps, and what it reads is checked.
    pub(crate) verify: bool,
    /// Of the part when that is to be verified.
    pub(crate) memory: Memory,
    pub(crate) reports: Mailbox<Report>,
    pub(crate) progress: Arc<Progress>,
}

/// What a generator remembers of its part.
#[derive(Default)]
pub(crate) struct Memory {
    /// How often each block was written.
    generations: Box<[u32]>,
    /// Units that a request is under way for. No unit is shorter than a block.
    busy: Box<[u64]>,
}

impl Memory {
    /// That of a part, whose size a peer has named: the system gives it page by page, as it is used, or says at once that there is not so much.
    pub(crate) fn of(part: Part, block_bytes: u32) -> Option<Self> {
        let blocks = usize::try_from(part.len_bytes / u64::from(block_bytes)).ok()?;
        let generations = <[u32]>::new_box_zeroed_with_elems(blocks).ok()?;
        let busy = <[u64]>::new_box_zeroed_with_elems(blocks.div_ceil(64)).ok()?;
        Some(Self { generations, busy })
    }
}

/// How far a generator is, for whoever looks on.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Progress {
    completed: AtomicU64,
}

impl Progress {
    /// Requests that have ended, of all jobs.
    pub(crate) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }
}

/// A job has ended.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) result: Result<Counted, Trouble>,
}

/// What a generator has counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) histogram: Histogram,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    /// Blocks that were compared with what was written there.
    pub(crate) checked_blocks: u64,
}

/// Why a job ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    /// A request failed.
    #[error("a {} at byte {offset} failed: {error}", if *.is_write { "write" } else { "read" })]
    Request { is_write: bool, offset: u64, error: BlockError },
    /// A block does not hold what was written there.
    #[error("{0}")]
    Mismatch(Mismatch),
    /// The pool has too few buffers.
    #[error("there is no memory for {depth} requests of {request_bytes} bytes: choose a smaller --qd or --bs")]
    NoBuffers { depth: u16, request_bytes: usize },
}

/// The load of one queue.
pub(crate) struct Generator {
    token: Token,
    setup: Setup,
    random: Random,
    slots: Vec<Slot>,
    free: Vec<u16>,
    run: Option<Run>,
    /// What the queue refused: it is offered again before anything else.
    refused: Option<Choice>,
    timer: Option<(Time, TimerId)>,
    completed: u64,
}

/// A request, or the place of one.
struct Slot {
    buffer: Option<Buffer>,
    choice: Choice,
    begun: Time,
}

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    /// Which unit of the part, of the size of a request.
    unit: u64,
    is_write: bool,
}

/// A job under way.
struct Run {
    job: Job,
    /// Which of the generators it is of.
    generator: usize,
    units: u64,
    begun: Time,
    /// What begins or ends from here on is counted.
    counted_from: Time,
    until: Option<Time>,
    /// The next unit in order.
    cursor: u64,
    /// Requests that were made.
    made: u64,
    /// Requests are due for which there was no slot.
    late: bool,
    counted: Counted,
    trouble: Option<Trouble>,
}

impl Generator {
    /// A generator with nothing to do. `number` tells those of one thread apart.
    pub(crate) fn new(number: u16, setup: Setup) -> Self {
        Self {
            token: Token(TOKENS | u64::from(number)),
            random: Random::new(setup.seed ^ (setup.index as u64).wrapping_mul(0x9e37_79b9)),
            setup,
            slots: Vec::new(),
            free: Vec::new(),
            run: None,
            refused: None,
            timer: None,
            completed: 0,
        }
    }

    /// The number of the generator whose own a reactor's token is.
    #[expect(clippy::cast_possible_truncation, reason = "the field is cut out of the token as it was put together")]
    pub(crate) fn number_of(token: Token) -> Option<u16> {
        (token.0 >> 16 == TOKENS >> 16).then_some(token.0 as u16)
    }

    /// Begins a job. A report tells of its end.
    pub(crate) fn start<R: Reactor>(&mut self, reactor: &R, job: Job) {
        self.slots.clear();
        self.slots.reserve(job.depth.into());
        let writes = match job.work {
            Work::Fill => true,
            Work::Load(load) => load.pattern.is_writing(),
            Work::Check => false,
        };
        for _ in 0..job.depth {
            let Some(mut buffer) = reactor.pool().take(job.request_bytes) else {
                self.slots.clear();
                return self.report(Err(Trouble::NoBuffers { depth: job.depth, request_bytes: job.request_bytes }));
            };
            if writes {
                self.make_noise(&mut buffer);
            }
            self.slots.push(Slot { buffer: Some(buffer), choice: Choice { unit: 0, is_write: false }, begun: Time::default() });
        }
        self.free = (0..job.depth).rev().collect();
        let units = self.setup.part.len_bytes / job.request_bytes as u64;
        // Nothing is busy any more: what was is cleared, instead of all that there is.
        if let Some(refused) = self.refused.take() {
            set_bit(&mut self.setup.memory.busy, refused.unit, false);
        }
        let begun = reactor.now();
        let (ramp, until) = match job.work {
            Work::Load(load) => (load.ramp, Some(begun + load.ramp + load.time)),
            Work::Fill | Work::Check => (Duration::ZERO, None),
        };
        self.run = Some(Run {
            job,
            generator: self.setup.index,
            units,
            begun,
            counted_from: begun + ramp,
            until,
            cursor: 0,
            made: 0,
            late: false,
            counted: Counted::default(),
            trouble: None,
        });
    }

    /// Fills a buffer with what no storage can shorten.
    fn make_noise(&mut self, buffer: &mut [u8]) {
        for word in buffer.chunks_mut(8) {
            let noise = self.random.next().to_le_bytes();
            word.copy_from_slice(&noise[..word.len()]);
        }
    }

    /// Takes what has ended, and makes the requests that are to follow. Once a turn, before what was submitted is sent.
    pub(crate) fn pump<R: Reactor, Q: BlockQueue<R>>(&mut self, reactor: &mut R, fabric: &mut Fabric, queue: &mut Q) {
        if self.run.is_none() {
            return;
        }
        let now = reactor.now();
        self.take_ended(now, queue);
        if self.make_requests(now, reactor, fabric, queue) {
            // What failed at once has ended already, and no event would tell of it.
            self.take_ended(now, queue);
        }
        self.setup.progress.completed.store(self.completed, Ordering::Relaxed);
        if self.free.len() == self.slots.len() && self.is_over(now) {
            self.finish(reactor);
        } else {
            self.set_timer(now, reactor);
        }
    }

    fn take_ended<R: Reactor, Q: BlockQueue<R>>(&mut self, now: Time, queue: &mut Q) {
        while let Some(done) = queue.next_done() {
            self.on_ended(now, done);
        }
    }

    fn on_ended(&mut self, now: Time, done: BlockDone) {
        let Some(run) = &mut self.run else { return };
        let Ok(index) = u16::try_from(done.ticket.0) else { return };
        let Some(slot) = self.slots.get_mut(usize::from(index)) else { return };
        slot.buffer = done.buffer;
        self.free.push(index);
        self.completed += 1;
        let choice = slot.choice;
        set_bit(&mut self.setup.memory.busy, choice.unit, false);
        let offset = self.setup.part.offset + choice.unit * run.job.request_bytes as u64;
        if let Err(error) = done.result {
            run.trouble.get_or_insert(Trouble::Request { is_write: choice.is_write, offset, error });
            return;
        }
        // None begins when the time is over.
        if slot.begun >= run.counted_from {
            run.counted.histogram.record(now - slot.begun);
        }
        if now >= run.counted_from && run.until.is_none_or(|until| now < until) {
            let count = if choice.is_write { &mut run.counted.writes } else { &mut run.counted.reads };
            *count += 1;
        }
        if self.setup.verify {
            self.on_verified(index);
        }
    }

    /// Counts a write of each block, or compares what was read.
    fn on_verified(&mut self, index: u16) {
        let (Some(run), Some(slot)) = (&mut self.run, self.slots.get(usize::from(index))) else { return };
        let Choice { unit, is_write } = slot.choice;
        let block_bytes = self.setup.block_bytes as usize;
        let blocks = Blocks::of(&self.setup, run.job.request_bytes, unit);
        let generations = &mut self.setup.memory.generations[blocks.in_part()];
        if is_write {
            generations.iter_mut().for_each(|generation| *generation = generation.wrapping_add(1));
            return;
        }
        let Some(buffer) = &slot.buffer else { return };
        for ((data, &mut generation), block) in buffer.chunks_exact(block_bytes).zip(generations).zip(blocks.first..) {
            if generation == 0 {
                continue;
            }
            run.counted.checked_blocks += 1;
            let expected = Stamp { block, generation, seed: self.setup.seed };
            if let Err(found) = expected.check(data) {
                let mismatch = Mismatch { expected, found, block_bytes: self.setup.block_bytes };
                run.trouble.get_or_insert(Trouble::Mismatch(mismatch));
                return;
            }
        }
    }

    /// Makes the requests that are due, as far as there are slots; whether there were any.
    fn make_requests<R: Reactor, Q: BlockQueue<R>>(&mut self, now: Time, reactor: &mut R, fabric: &mut Fabric, queue: &mut Q) -> bool {
        let mut made = false;
        while let Some(begun) = self.run.as_ref().and_then(|run| run.next_begins(now)) {
            let Some(&index) = self.free.last() else { break };
            let Some(choice) = self.refused.take().or_else(|| self.choose()) else { break };
            let Some(op) = self.operation(index, choice) else { break };
            if let Err(op) = queue.submit(reactor, fabric, Ticket(index.into()), op) {
                self.refused = Some(choice);
                if let BlockOp::Read { buffer, .. } | BlockOp::Write { buffer, .. } = op {
                    self.slots[usize::from(index)].buffer = Some(buffer);
                }
                break;
            }
            self.free.pop();
            let slot = &mut self.slots[usize::from(index)];
            (slot.choice, slot.begun) = (choice, begun);
            if let Some(run) = &mut self.run {
                run.made += 1;
            }
            made = true;
        }
        if let Some(run) = &mut self.run {
            run.late = run.pace_due().is_some_and(|due| due <= now);
        }
        made
    }

    /// What the next request is about; `None` when there is none to make, or none now.
    fn choose(&mut self) -> Option<Choice> {
        let run = self.run.as_mut()?;
        let choice = match run.job.work {
            Work::Fill => Choice { unit: run.next_in_order()?, is_write: true },
            Work::Check => {
                let blocks = |unit| Blocks::of(&self.setup, run.job.request_bytes, unit).in_part();
                let written = |unit: &u64| self.setup.memory.generations[blocks(*unit)].iter().any(|&generation| generation > 0);
                let unit = (run.cursor..run.units).find(written);
                run.cursor = unit.map_or(run.units, |unit| unit + 1);
                Choice { unit: unit?, is_write: false }
            }
            Work::Load(load) => {
                let unit = if load.pattern.is_random() { self.random.below(run.units) } else { run.next_around() };
                let is_write = match load.read_percent {
                    100 => false,
                    0 => true,
                    percent => self.random.below(100) >= u64::from(percent),
                };
                let unit = if self.setup.verify { first_idle(&self.setup.memory.busy, unit, run.units)? } else { unit };
                Choice { unit, is_write }
            }
        };
        if self.setup.verify {
            set_bit(&mut self.setup.memory.busy, choice.unit, true);
        }
        Some(choice)
    }

    /// The operation of a request, with the buffer of its slot.
    fn operation(&mut self, index: u16, choice: Choice) -> Option<BlockOp> {
        let request_bytes = self.run.as_ref()?.job.request_bytes;
        let mut buffer = self.slots[usize::from(index)].buffer.take()?;
        let offset = self.setup.part.offset + choice.unit * request_bytes as u64;
        if !choice.is_write {
            return Some(BlockOp::Read { offset, len_bytes: request_bytes, buffer });
        }
        buffer.set_len(request_bytes);
        let data = buffer.chunks_exact_mut(self.setup.block_bytes as usize);
        if self.setup.verify {
            let blocks = Blocks::of(&self.setup, request_bytes, choice.unit);
            let generations = &self.setup.memory.generations[blocks.in_part()];
            for ((data, generation), block) in data.zip(generations).zip(blocks.first..) {
                Stamp { block, generation: generation.wrapping_add(1), seed: self.setup.seed }.write(data);
            }
        } else {
            // The same noise again is for storage that looks for what it has.
            let random = &mut self.random;
            data.filter_map(<[u8]>::first_chunk_mut).for_each(|word| *word = random.next().to_le_bytes());
        }
        Some(BlockOp::Write { offset, len_bytes: request_bytes, buffer, fua: false })
    }

    fn is_over(&self, now: Time) -> bool {
        let Some(run) = &self.run else { return true };
        run.trouble.is_some()
            || match run.until {
                Some(until) => now >= until,
                None => run.cursor >= run.units && self.refused.is_none(),
            }
    }

    fn finish<R: Reactor>(&mut self, reactor: &mut R) {
        if let Some((_, timer)) = self.timer.take() {
            reactor.cancel_timer(timer);
        }
        self.slots.clear();
        self.free.clear();
        let Some(run) = self.run.take() else { return };
        self.report(match run.trouble {
            None => Ok(run.counted),
            Some(trouble) => Err(trouble),
        });
    }

    fn report(&self, result: Result<Counted, Trouble>) {
        self.setup.reports.send(Report { result });
    }

    /// Makes sure of a turn when the next request of a fixed rate is due: what is under way may end before, or never.
    fn set_timer<R: Reactor>(&mut self, now: Time, reactor: &mut R) {
        let due = self.run.as_ref().and_then(|run| {
            let due = run.pace_due().filter(|&due| due > now);
            due.into_iter().chain(run.until).min().filter(|_| run.is_paced())
        });
        match self.timer {
            Some((at, _)) if Some(at) == due => return,
            Some((at, timer)) if at > now => reactor.cancel_timer(timer),
            _ => {}
        }
        self.timer = due.map(|at| (at, reactor.set_timer(at, self.token)));
    }
}

impl Run {
    fn load(&self) -> Option<&Load> {
        match &self.job.work {
            Work::Load(load) => Some(load),
            Work::Fill | Work::Check => None,
        }
    }

    fn is_paced(&self) -> bool {
        self.load().is_some_and(|load| load.pace.is_some())
    }

    /// When the next request of a fixed rate is due.
    fn pace_due(&self) -> Option<Time> {
        let pace = self.load()?.pace?;
        Some(self.begun + pace.due(self.generator, self.made))
    }

    /// When the next request begins, if there is to be one by now.
    fn next_begins(&self, now: Time) -> Option<Time> {
        if self.trouble.is_some() || self.until.is_some_and(|until| now >= until) {
            return None;
        }
        match self.pace_due() {
            None => Some(now),
            Some(due) if due > now => None,
            // Nothing but this thread was late when a slot was free.
            Some(due) => Some(if self.late { due } else { now }),
        }
    }

    fn next_in_order(&mut self) -> Option<u64> {
        let unit = self.cursor;
        (unit < self.units).then(|| {
            self.cursor += 1;
            unit
        })
    }

    fn next_around(&mut self) -> u64 {
        let unit = self.cursor;
        self.cursor = if unit + 1 < self.units { unit + 1 } else { 0 };
        unit
    }
}

/// The blocks of a unit.
struct Blocks {
    /// The first one, in the volume.
    first: u64,
    /// The first one, in the part.
    start: usize,
    count: usize,
}

impl Blocks {
    fn of(setup: &Setup, request_bytes: usize, unit: u64) -> Self {
        let block_bytes = u64::from(setup.block_bytes);
        let byte = unit * request_bytes as u64;
        Self {
            first: (setup.part.offset + byte) / block_bytes,
            start: usize::try_from(byte / block_bytes).unwrap_or(usize::MAX),
            count: request_bytes / setup.block_bytes as usize,
        }
    }

    fn in_part(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.count
    }
}

fn set_bit(bits: &mut [u64], index: u64, to: bool) {
    let mask = 1 << (index % 64);
    if let Some(word) = usize::try_from(index / 64).ok().and_then(|word| bits.get_mut(word)) {
        *word = if to { *word | mask } else { *word & !mask };
    }
}

/// The first unit from `start` on that no request is under way for.
fn first_idle(busy: &[u64], start: u64, units: u64) -> Option<u64> {
    let is_busy =
        |unit: u64| usize::try_from(unit / 64).ok().and_then(|word| busy.get(word)).is_some_and(|word| word >> (unit % 64) & 1 == 1);
    (start..units).chain(0..start).find(|&unit| !is_busy(unit))
}

impl std::fmt::Debug for Generator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generator")
            .field("index", &self.setup.index)
            .field("part", &self.setup.part)
            .field("under_way", &(self.slots.len() - self.free.len()))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "tests/generator.rs"]
mod tests;
