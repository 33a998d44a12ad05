//! What a volume tells of itself, to any thread at any time.
//!
//! Each I/O queue counts for itself: the queue's thread alone writes, with plain stores, so that counting costs no more than an addition in memory that is in
//! the cache anyway, and readers disturb nobody. The control's part changes when an association does, and stands under a mutex that is never held for longer
//! than a copy takes. Times of operations are those of the reactor's turns: no clock is read for them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use godwit_nvme::Cntlid;

use super::operation::Action;
use crate::log_linear::LogLinear;

/// What there is to know of one volume. Its threads write, whoever has it may read.
#[derive(Debug)]
pub struct VolumeStatus {
    queues: Box<[QueueCounters]>,
    control: Mutex<ControlStatus>,
}

/// The volume as a whole, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlStatus {
    /// Where it stands.
    pub state: VolumeState,
    /// Since when.
    pub since: Instant,
    /// Address of the target that it is, or was last, connected to.
    pub address: Option<SocketAddr>,
    /// Identifier of the controller there.
    pub cntlid: Option<Cntlid>,
    /// I/O queues that it runs on.
    pub io_queues: usize,
    /// Operations that each queue takes.
    pub queue_depth: usize,
    /// Keep alive timeout in use.
    pub keep_alive: Duration,
    /// Times that it came back after a loss.
    pub reconnects: u64,
    /// Attempts to connect since it was last live.
    pub attempts: u64,
    /// How often the target's machine ended without a shutdown, by its own count; `None` when it does not count.
    pub unsafe_shutdowns: Option<u128>,
    /// Times that acknowledged writes were lost with the target's power, and clients told so.
    pub losses: u64,
    /// Times that they were written again from retained copies.
    pub restorations: u64,
    /// The last of either, and when.
    pub last_loss: Option<(SystemTime, String)>,
    /// What last went wrong, and when.
    pub last_error: Option<(SystemTime, String)>,
}

/// Where a volume stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeState {
    /// It was never up.
    Attaching,
    /// Operations flow.
    Live,
    /// The target is lost: operations wait.
    Lost,
    /// It was given up, or could not be attached.
    Gone,
    /// It was ended as asked.
    Stopped,
}

/// What one queue has done, and has to do, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueStatus {
    /// Commands that the target has.
    pub in_flight: u64,
    /// Operations that were taken and are not at the target: to be sent, or sent again.
    pub waiting: u64,
    /// Reads that ended well.
    pub reads: Flow,
    /// Writes that ended well.
    pub writes: Flow,
    /// Flushes that ended well.
    pub flushes: Flow,
    /// Discards that ended well.
    pub discards: Flow,
    /// Writes of zeroes that ended well.
    pub zeroes: Flow,
    /// Operations that ended with an error.
    pub errors: u64,
    /// Commands that were sent again because their status allowed it.
    pub retries: u64,
}

/// Operations of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// How many bytes they moved; 0 for those that move none.
    pub bytes: u64,
    /// How long they took, from submission to end.
    pub latency: Latency,
}

/// How long operations took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    buckets: Vec<u64>,
    max: Duration,
}

/// Counters of one queue.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct QueueCounters {
    in_flight: AtomicU64,
    waiting: AtomicU64,
    errors: AtomicU64,
    retries: AtomicU64,
    reads: FlowCounters,
    writes: FlowCounters,
    flushes: FlowCounters,
    discards: FlowCounters,
    zeroes: FlowCounters,
}

#[derive(Debug, Default)]
struct FlowCounters {
    bytes: AtomicU64,
    max_nanos: AtomicU64,
    histogram: Histogram,
}

/// In units of 2^[`UNIT_BITS`] ns.
#[derive(Debug)]
struct Histogram([AtomicU64; BUCKETS.count()]);

/// The finest bucket is 2^10 ns wide: what is shorter is no network's.
const UNIT_BITS: u32 = 10;
/// Eight to a doubling, up to 2^31 units, some 36 minutes. What takes longer is counted there.
const BUCKETS: LogLinear = LogLinear::new(3, 31);

impl Default for Histogram {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS.count()])
    }
}

/// The bucket of a time.
fn bucket(nanos: u64) -> usize {
    BUCKETS.bucket(nanos >> UNIT_BITS)
}

/// The longest time of a bucket.
fn upper_bound(bucket: usize) -> Duration {
    Duration::from_nanos((BUCKETS.lowest(bucket + 1) << UNIT_BITS) - 1)
}

/// Only one thread writes a counter, so that a plain store does.
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

impl FlowCounters {
    fn count(&self, len_bytes: u64, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        add(&self.bytes, len_bytes);
        add(&self.histogram.0[bucket(nanos)], 1);
        if nanos > self.max_nanos.load(Ordering::Relaxed) {
            self.max_nanos.store(nanos, Ordering::Relaxed);
        }
    }

    fn read(&self) -> Flow {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Flow {
            bytes: load(&self.bytes),
            latency: Latency { buckets: self.histogram.0.iter().map(load).collect(), max: Duration::from_nanos(load(&self.max_nanos)) },
        }
    }
}

impl QueueCounters {
    /// An operation has ended well.
    pub(crate) fn count(&self, action: Action, took: Duration) {
        let (flow, len_bytes) = match action {
            Action::Read { len_bytes, .. } => (&self.reads, len_bytes),
            Action::Write { len_bytes, .. } => (&self.writes, len_bytes),
            Action::Flush => (&self.flushes, 0),
            Action::WriteZeroes { .. } => (&self.zeroes, 0),
            Action::Discard => (&self.discards, 0),
        };
        flow.count(len_bytes as u64, took);
    }

    /// An operation has ended with an error.
    pub(crate) fn count_error(&self) {
        add(&self.errors, 1);
    }

    /// A command is to be sent again.
    pub(crate) fn count_retry(&self) {
        add(&self.retries, 1);
    }

    /// What the queue holds now.
    pub(crate) fn set_load(&self, in_flight: usize, waiting: usize) {
        self.in_flight.store(in_flight as u64, Ordering::Relaxed);
        self.waiting.store(waiting as u64, Ordering::Relaxed);
    }

    fn read(&self) -> QueueStatus {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        QueueStatus {
            in_flight: load(&self.in_flight),
            waiting: load(&self.waiting),
            reads: self.reads.read(),
            writes: self.writes.read(),
            flushes: self.flushes.read(),
            discards: self.discards.read(),
            zeroes: self.zeroes.read(),
            errors: load(&self.errors),
            retries: load(&self.retries),
        }
    }
}

impl VolumeStatus {
    /// Of a volume that will have at most so many I/O queues.
    pub fn new(queues: usize) -> Arc<Self> {
        Arc::new(Self {
            queues: (0..queues).map(|_| QueueCounters::default()).collect(),
            control: Mutex::new(ControlStatus {
                state: VolumeState::Attaching,
                since: Instant::now(),
                address: None,
                cntlid: None,
                io_queues: 0,
                queue_depth: 0,
                keep_alive: Duration::ZERO,
                reconnects: 0,
                attempts: 0,
                unsafe_shutdowns: None,
                losses: 0,
                restorations: 0,
                last_loss: None,
                last_error: None,
            }),
        })
    }

    /// The volume as a whole.
    pub fn control(&self) -> ControlStatus {
        self.locked().clone()
    }

    /// Each queue that it runs on.
    pub fn queues(&self) -> Vec<QueueStatus> {
        let io_queues = self.locked().io_queues;
        self.queues.iter().take(io_queues).map(QueueCounters::read).collect()
    }

    /// All queues together.
    pub fn total(&self) -> QueueStatus {
        self.queues.iter().fold(QueueStatus::default(), |sum, queue| sum.plus(&queue.read()))
    }

    /// The counters of a queue.
    ///
    /// # Panics
    ///
    /// When it was made for fewer queues.
    pub(crate) fn queue(&self, index: usize) -> &QueueCounters {
        &self.queues[index]
    }

    /// How many queues it can count for.
    pub(crate) fn capacity(&self) -> usize {
        self.queues.len()
    }

    /// Writes the control's part.
    pub(crate) fn update(&self, change: impl FnOnce(&mut ControlStatus)) {
        change(&mut self.locked());
    }

    fn locked(&self) -> MutexGuard<'_, ControlStatus> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ControlStatus {
    pub(crate) fn enter(&mut self, state: VolumeState) {
        if self.state != state {
            self.state = state;
            self.since = Instant::now();
        }
    }

    pub(crate) fn failed(&mut self, reason: &impl ToString) {
        self.last_error = Some((SystemTime::now(), reason.to_string()));
    }
}

impl VolumeState {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attaching => "attaching",
            Self::Live => "live",
            Self::Lost => "lost",
            Self::Gone => "gone",
            Self::Stopped => "stopped",
        }
    }
}

impl QueueStatus {
    /// The kinds of operations, as programs read them.
    pub(crate) const KINDS: [&'static str; 5] = ["reads", "writes", "flushes", "discards", "zeroes"];

    /// Each kind, and its operations.
    pub(crate) fn flows(&self) -> impl Iterator<Item = (&'static str, &Flow)> {
        Self::KINDS.into_iter().zip([&self.reads, &self.writes, &self.flushes, &self.discards, &self.zeroes])
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            in_flight: self.in_flight + other.in_flight,
            waiting: self.waiting + other.waiting,
            reads: self.reads.plus(&other.reads),
            writes: self.writes.plus(&other.writes),
            flushes: self.flushes.plus(&other.flushes),
            discards: self.discards.plus(&other.discards),
            zeroes: self.zeroes.plus(&other.zeroes),
            errors: self.errors.wrapping_add(other.errors),
            retries: self.retries.wrapping_add(other.retries),
        }
    }

    /// How long operations of every kind took.
    pub fn latency(&self) -> Latency {
        self.flows().fold(Latency::default(), |sum, (_, flow)| sum.plus(&flow.latency))
    }
}

impl Flow {
    /// How many ended well.
    pub fn count(&self) -> u64 {
        self.latency.count()
    }

    fn plus(&self, other: &Self) -> Self {
        Self { bytes: self.bytes.wrapping_add(other.bytes), latency: self.latency.plus(&other.latency) }
    }
}

impl Latency {
    /// How many operations it knows of.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The time that so many of a thousand operations did not exceed, an eighth too long at most; `None` without operations.
    pub fn permille(&self, permille: u64) -> Option<Duration> {
        let rank = (self.count().checked_mul(permille)?.div_ceil(1000)).max(1);
        let mut seen = 0;
        let index = self.buckets.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(upper_bound(index).min(self.max))
    }

    /// The longest; `None` without operations.
    pub fn max(&self) -> Option<Duration> {
        (self.count() > 0).then_some(self.max)
    }

    /// The upper bounds of its buckets, each with the number of operations up to there; those that hold nothing are left out.
    pub fn cumulative(&self) -> impl Iterator<Item = (Duration, u64)> {
        let mut seen = 0;
        self.buckets.iter().enumerate().filter(|(_, count)| **count > 0).map(move |(index, count)| {
            seen += count;
            (upper_bound(index), seen)
        })
    }

    fn plus(&self, other: &Self) -> Self {
        let (longer, shorter) = if self.buckets.len() >= other.buckets.len() { (self, other) } else { (other, self) };
        let mut buckets = longer.buckets.clone();
        for (sum, count) in buckets.iter_mut().zip(&shorter.buckets) {
            *sum += count;
        }
        Self { buckets, max: self.max.max(other.max) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use godwit_nvme::{BlockCount, BlockRange, Lba};

    fn read(len_bytes: usize) -> Action {
        Action::Read { blocks: BlockRange::new(Lba::new(0), BlockCount::MIN), len_bytes }
    }

    #[test]
    fn every_time_is_in_a_bucket_that_is_at_most_an_eighth_wider() {
        let mut last = 0;
        for shift in 0..41 {
            for eighth in 0..16_u64 {
                let nanos = (1 << shift) + (eighth << shift) / 16;
                let index = bucket(nanos);
                let upper = upper_bound(index);
                let upper = u64::try_from(upper.as_nanos()).unwrap();
                assert!(index >= last, "{nanos}");
                assert!(nanos <= upper && upper <= nanos + nanos / 8 + 1023, "{nanos} is in a bucket up to {upper}");
                last = index;
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS.count() - 1);
        assert_eq!(bucket(0), 0);
    }

    #[test]
    fn bucket_bounds_touch() {
        for index in 0..BUCKETS.count() - 1 {
            let upper = u64::try_from(upper_bound(index).as_nanos()).unwrap();
            assert_eq!((bucket(upper), bucket(upper + 1)), (index, index + 1));
        }
    }

    #[test]
    fn percentiles_are_those_of_all_queues() {
        let status = VolumeStatus::new(2);
        status.update(|control| control.io_queues = 2);
        for micros in 1..=900 {
            status.queue(0).count(read(4096), Duration::from_micros(micros));
        }
        for micros in 901..=1000 {
            status.queue(1).count(read(512), Duration::from_micros(micros));
        }
        let total = status.total();
        assert_eq!((total.reads.count(), total.reads.bytes), (1000, 900 * 4096 + 100 * 512));
        let latency = total.latency();
        for (permille, exact) in [(500, 500), (990, 990), (999, 999)] {
            let found = latency.permille(permille).unwrap().as_micros();
            assert!(found >= exact && found <= exact + exact / 8, "{permille}: {found}");
        }
        assert_eq!(latency.max(), Some(Duration::from_millis(1)));
        assert_eq!(latency.permille(1000), latency.max());
        assert_eq!(latency.cumulative().last().map(|(_, count)| count), Some(1000));
        assert_eq!(status.queues()[1].reads.count(), 100);
    }

    #[test]
    fn without_operations_there_are_no_percentiles() {
        assert_eq!(VolumeStatus::new(1).total().latency().permille(500), None);
        assert_eq!(VolumeStatus::new(1).total().latency().max(), None);
    }
}
