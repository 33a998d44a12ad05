//! `godwit bench`: measures a volume by the host's own queues, with no NBD in between; or any NBD export, by the same generators.
//!
//! Each I/O queue is on a reactor thread of its own, in the very loop that serves volumes, and where an NBD front end stands there otherwise stands a
//! generator. This module leads them from the calling thread through the cases of a plan: it starts each job on all of them at once, waits for
//! their reports, and adds up what they have counted. Nothing of it is on the path of a request.
//!
//! Processor time for each request is that of the whole process between two looks, one when the ramp is over and one at the end of the time, divided by
//! the requests that ended between these looks; so is the target's.

mod chart;
pub(crate) mod cpu;
mod display;
pub(crate) mod generator;
mod histogram;
mod html;
pub(crate) mod load;
pub(crate) mod nbd;
mod options;
mod report;
pub(crate) mod stamp;
pub(crate) mod subject;
pub mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use godwit_config::Size;

pub use histogram::Histogram;
pub(crate) use html::render as html;
pub use load::Pattern;
pub use options::BenchArgs;
pub use report::{CaseReport, Config, Latency, Machine, Report, ReportError};

use crate::block::Geometry;
use cpu::TargetDaemon;
use display::Display;
use generator::{Counted, Memory, Progress, Setup};
use load::{Job, Load, Pace, Part, Rate, Work};
use subject::Subject;

/// How often it is looked whether the user has had enough.
const LOOK: Duration = Duration::from_millis(100);

/// How long no request may be answered before a run is given up. The host gives a target up sooner, and says why.
const PATIENCE: Duration = Duration::from_secs(180);

/// Requests under way while a range is filled or checked, and how large they are at least where the range allows.
const WALK_DEPTH: u16 = 32;
const WALK_BYTES: u64 = 128 << 10;

/// What is to be measured.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) cases: Vec<Case>,
    pub(crate) time: Duration,
    pub(crate) ramp: Duration,
    pub(crate) rate: Option<Rate>,
    pub(crate) read_percent: u8,
    pub(crate) offset_bytes: u64,
    /// Up to the end unless told.
    pub(crate) size_bytes: Option<u64>,
    pub(crate) seed: u64,
    pub(crate) verify: bool,
    pub(crate) fill: bool,
}

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) pattern: Pattern,
    pub(crate) request_bytes: u64,
    pub(crate) depth: u16,
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The plan does not fit what is to be measured.
    #[error("{0}")]
    Unfit(String),
    /// A generator, or what it measures, failed.
    #[error("{0}")]
    Failed(String),
    /// It takes for ever.
    #[error("requests are not answered: given up after {} s", .0.as_secs())]
    Stuck(Duration),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// The range of a plan, cut for what is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset_bytes: u64,
    pub(crate) size_bytes: u64,
    pub(crate) block_bytes: u32,
    parts: Vec<Part>,
    /// Bytes of a request that fills or checks.
    walk_bytes: u64,
    /// How many of these are under way at a time, in each queue.
    walk_depth: u16,
}

impl Range {
    fn no_memory(&self) -> BenchError {
        let needed = Size::from_bytes((self.size_bytes / u64::from(self.block_bytes)).saturating_mul(4));
        let size = Size::from_bytes(self.size_bytes);
        BenchError::Unfit(format!("--verify needs {needed} of memory for a range of {size}: choose a smaller --size"))
    }
}

impl Plan {
    /// The deepest case, or walk where queues are deep enough.
    pub(crate) fn depth(&self) -> u16 {
        let walks = if self.walks() { WALK_DEPTH } else { 1 };
        self.cases.iter().map(|case| case.depth).chain([walks]).max().unwrap_or(1)
    }

    /// The longest request.
    pub(crate) fn longest_bytes(&self) -> u64 {
        self.cases.iter().map(|case| case.request_bytes).max().unwrap_or_default()
    }

    /// Requests of each size that are under way at a time, for memory.
    pub(crate) fn demands(&self) -> impl Iterator<Item = (u64, u16)> {
        let walk = self.walks().then(|| (self.walk_bytes(u64::MAX), WALK_DEPTH));
        self.cases.iter().map(|case| (case.request_bytes, case.depth)).chain(walk)
    }

    /// Whether the range is filled or checked.
    fn walks(&self) -> bool {
        self.verify || self.fill
    }

    /// A multiple of the longest request, long enough to be fast, where there is room for so much.
    fn walk_bytes(&self, most_bytes: u64) -> u64 {
        let longest = self.longest_bytes().max(1);
        let wanted = WALK_BYTES.div_ceil(longest) * longest;
        if wanted <= most_bytes { wanted } else { longest }
    }

    /// Whether the plan can be carried out on such a volume, and where.
    pub(crate) fn range(&self, geometry: &Geometry, queues: usize, queue_depth: Option<usize>) -> Result<Range, BenchError> {
        let unfit = |words: String| Err(BenchError::Unfit(words));
        let block = u64::from(geometry.block_bytes);
        for case in &self.cases {
            let bytes = Size::from_bytes(case.request_bytes);
            if !case.request_bytes.is_multiple_of(block) {
                return unfit(format!("--bs {bytes} is not a multiple of the volume's blocks: choose a multiple of {block} bytes"));
            }
            if case.request_bytes > geometry.max_transfer_bytes as u64 {
                let longest = Size::from_bytes(geometry.max_transfer_bytes as u64);
                return unfit(format!("--bs {bytes} is longer than the volume's longest transfer: choose at most {longest}"));
            }
            if case.pattern.is_writing() && geometry.read_only {
                return unfit(format!("{} cannot be measured: the volume is read-only", case.pattern.name()));
            }
        }
        if self.walks() && geometry.read_only {
            return unfit("--verify and --fill write, and the volume is read-only".to_owned());
        }
        let limit = queue_depth.map_or(u16::MAX, |limit| u16::try_from(limit).unwrap_or(u16::MAX));
        if let Some(case) = self.cases.iter().find(|case| case.depth > limit) {
            return unfit(format!("--qd {} is more than the {limit} requests that the target takes in a queue", case.depth));
        }
        let left = geometry.size_bytes.saturating_sub(self.offset_bytes);
        if !self.offset_bytes.is_multiple_of(block) {
            let offset = self.offset_bytes;
            return unfit(format!("--offset {offset} is not a multiple of the volume's blocks: choose a multiple of {block} bytes"));
        }
        let size_bytes = self.size_bytes.unwrap_or(left);
        if size_bytes > left {
            let (size, end) = (Size::from_bytes(geometry.size_bytes), Size::from_bytes(self.offset_bytes.saturating_add(size_bytes)));
            return unfit(format!("the range ends at {end}, and the volume at {size}: choose a smaller --offset or --size"));
        }
        let longest = self.longest_bytes();
        let most_bytes = (size_bytes / (queues.max(1) as u64)).min(geometry.max_transfer_bytes as u64);
        let walk_bytes = self.walk_bytes(most_bytes);
        // A walk leaves nothing of a part out.
        let unit = if self.walks() { walk_bytes } else { longest };
        let Some(parts) = Part::share(self.offset_bytes, size_bytes, unit, queues) else {
            let (size, bytes) = (Size::from_bytes(size_bytes), Size::from_bytes(longest));
            let words = format!("the range of {size} has no room for a request of {bytes} of each of {queues} queues");
            return unfit(format!("{words}: choose fewer --queues or a larger --size"));
        };
        let walk_depth = WALK_DEPTH.min(limit);
        Ok(Range { offset_bytes: self.offset_bytes, size_bytes, block_bytes: geometry.block_bytes, parts, walk_bytes, walk_depth })
    }

    /// What happens, in order.
    fn steps(&self) -> usize {
        let checks = self.cases.iter().filter(|case| self.is_checked_after(case)).count();
        usize::from(self.is_filled()) + self.cases.len() + checks
    }

    pub(crate) fn is_filled(&self) -> bool {
        self.fill || (self.verify && self.cases.iter().any(|case| case.pattern.is_reading()))
    }

    fn is_checked_after(&self, case: &Case) -> bool {
        self.verify && case.pattern.is_writing()
    }
}

/// A run under way.
pub(crate) struct Bench<'a> {
    plan: &'a Plan,
    subject: &'a mut dyn Subject,
    target: Option<&'a TargetDaemon>,
    stop: &'a AtomicBool,
    display: Display,
    progress: Vec<Arc<Progress>>,
    range: Range,
}

/// A look at the clocks.
struct Look {
    own: Duration,
    target: Option<Duration>,
    completed: u64,
}

/// What a job has come to.
struct Outcome {
    counted: Counted,
    looks: Option<(Look, Look)>,
}

impl<'a> Bench<'a> {
    /// Puts the generators in place.
    pub(crate) fn new(
        plan: &'a Plan,
        range: Range,
        subject: &'a mut dyn Subject,
        target: Option<&'a TargetDaemon>,
        stop: &'a AtomicBool,
    ) -> Result<Self, BenchError> {
        let progress: Vec<Arc<Progress>> = range.parts.iter().map(|_| Arc::default()).collect();
        let (block_bytes, reports) = (subject.geometry().block_bytes, subject.reports());
        let setups = range.parts.iter().zip(&progress).enumerate().map(|(index, (&part, progress))| {
            let memory = if plan.verify { Memory::of(part, block_bytes).ok_or_else(|| range.no_memory())? } else { Memory::default() };
            Ok(Setup {
                index,
                part,
                block_bytes,
                seed: plan.seed,
                verify: plan.verify,
                memory,
                reports: reports.clone(),
                progress: Arc::clone(progress),
            })
        });
        subject.put(setups.collect::<Result<_, BenchError>>()?).map_err(BenchError::Failed)?;
        Ok(Self { plan, subject, target, stop, display: Display::new(plan.steps()), progress, range })
    }

    /// Measures all cases. What was measured before something failed is in `cases` all the same.
    pub(crate) fn run(&mut self, cases: &mut Vec<CaseReport>) -> Result<(), BenchError> {
        let result = self.run_all(cases);
        self.display.clear();
        result
    }

    fn run_all(&mut self, cases: &mut Vec<CaseReport>) -> Result<(), BenchError> {
        if self.plan.is_filled() {
            self.walk("filling", Work::Fill)?;
        }
        let plan = self.plan;
        for case in &plan.cases {
            let mut report = self.measure(case)?;
            if plan.is_checked_after(case) {
                report.checked_blocks += self.walk("checking", Work::Check)?;
            }
            cases.push(report);
        }
        Ok(())
    }

    /// Writes or reads the range once; how many blocks were checked.
    fn walk(&mut self, verb: &str, work: Work) -> Result<u64, BenchError> {
        let bytes = self.range.walk_bytes;
        let part = self.range.parts.first().map_or(0, |part| part.len_bytes);
        self.display.step(format!("{verb} {}", Size::from_bytes(part * self.range.parts.len() as u64)), self.completed());
        let request_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(self.job(Job { work, request_bytes, depth: self.range.walk_depth }, None)?.counted.checked_blocks)
    }

    fn measure(&mut self, case: &Case) -> Result<CaseReport, BenchError> {
        let plan = self.plan;
        let queues = self.range.parts.len();
        let &Case { pattern, request_bytes, depth } = case;
        let name = format!("{} {}, depth {depth}, {}", pattern.name(), Size::from_bytes(request_bytes), table::queues(queues));
        self.display.step(name, self.completed());
        let load = Load {
            pattern,
            read_percent: pattern.read_percent(plan.read_percent),
            pace: plan.rate.map(|rate| Pace { rate, generators: queues as u64 }),
            ramp: plan.ramp,
            time: plan.time,
        };
        let job = Job { work: Work::Load(load), request_bytes: usize::try_from(request_bytes).unwrap_or(usize::MAX), depth };
        let Outcome { counted, looks } = self.job(job, Some((plan.ramp, plan.time)))?;
        let (own, target) = looks.map_or((None, None), |(before, after)| costs(&before, &after));
        #[expect(clippy::cast_precision_loss, reason = "rates are shown, not counted")]
        let [requests, bytes] =
            [counted.reads + counted.writes, (counted.reads + counted.writes) * request_bytes].map(|count| count as f64);
        let seconds = plan.time.as_secs_f64();
        Ok(CaseReport {
            rw: pattern,
            request_bytes,
            depth,
            reads: counted.reads,
            writes: counted.writes,
            iops: report::rounded(requests / seconds),
            bytes_per_second: report::rounded(bytes / seconds),
            latency: Latency::from(&counted.histogram),
            cpu_us_per_io: own,
            target_cpu_us_per_io: target,
            checked_blocks: counted.checked_blocks,
        })
    }

    /// Runs a job on all generators, and adds up what they have counted. With a window: looks at the clocks when it begins and when it ends.
    fn job(&mut self, job: Job, window: Option<(Duration, Duration)>) -> Result<Outcome, BenchError> {
        let begun = Instant::now();
        let mut due = window.map(|(ramp, time)| [begun + ramp, begun + ramp + time]).into_iter().flatten().collect::<Vec<_>>();
        due.reverse();
        let mut looks = Vec::new();
        let mut counted = Counted::default();
        let mut missing = self.range.parts.len();
        let mut last_progress = (begun, self.completed());
        let patience = PATIENCE.saturating_add(job.longest_rest());
        self.subject.start(job);
        while missing > 0 {
            let now = Instant::now();
            if self.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted);
            }
            let completed = self.completed();
            self.display.tick(completed);
            if completed > last_progress.1 {
                last_progress = (now, completed);
            }
            if now.saturating_duration_since(last_progress.0) > patience {
                return Err(BenchError::Stuck(patience));
            }
            if due.last().is_some_and(|&at| at <= now) {
                due.pop();
                looks.push(self.look());
                continue;
            }
            let limit = due.last().map_or(LOOK, |at| at.saturating_duration_since(now).min(LOOK));
            match self.subject.next_report(limit) {
                None => {}
                Some(Err(words)) => return Err(BenchError::Failed(words)),
                Some(Ok(report)) => {
                    let more = report.result.map_err(|trouble| BenchError::Failed(trouble.to_string()))?;
                    counted.histogram.merge(&more.histogram);
                    counted.reads += more.reads;
                    counted.writes += more.writes;
                    counted.checked_blocks += more.checked_blocks;
                    missing -= 1;
                }
            }
        }
        // All may have ended in the very moment of the last look.
        while due.pop().is_some() {
            looks.push(self.look());
        }
        let after = looks.pop();
        Ok(Outcome { counted, looks: looks.pop().zip(after) })
    }

    fn completed(&self) -> u64 {
        self.progress.iter().map(|progress| progress.completed()).sum()
    }

    fn look(&self) -> Look {
        let (own, completed) = (godwit_control::cpu_time(), self.completed());
        // It may take its time.
        let target = self.target.map(TargetDaemon::cpu_time);
        let target =
            target.and_then(|time| time.inspect_err(|error| tracing::warn!("the target's processor time is not known: {error}")).ok());
        Look { own, target, completed }
    }
}

/// Processor time of this process and of the target for each request between two looks, in microseconds.
fn costs(before: &Look, after: &Look) -> (Option<f64>, Option<f64>) {
    #[expect(clippy::cast_precision_loss, reason = "it is divided by")]
    let requests = after.completed.saturating_sub(before.completed) as f64;
    let cost =
        |from: Duration, to: Duration| (requests > 0.0).then(|| report::rounded(to.saturating_sub(from).as_secs_f64() * 1e6 / requests));
    let target = before.target.zip(after.target).and_then(|(from, to)| cost(from, to));
    (cost(before.own, after.own), target)
}

#[cfg(test)]
#[path = "tests/plan.rs"]
mod tests;
