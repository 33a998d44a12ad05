//! What the SMART log counts: one set per store and reactor thread, written by that thread alone.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted of one store.
#[derive(Debug)]
pub(crate) struct StoreCounters {
    by_worker: Vec<Counters>,
    unsafe_shutdowns: AtomicU64,
}

impl StoreCounters {
    /// For so many workers.
    pub(crate) fn new(workers: usize) -> Self {
        Self { by_worker: (0..workers).map(|_| Counters::default()).collect(), unsafe_shutdowns: AtomicU64::new(0) }
    }

    /// Those that a worker counts in.
    pub(crate) fn of(&self, worker: usize) -> &Counters {
        &self.by_worker[worker]
    }

    /// The sums over all workers.
    pub(crate) fn totals(&self) -> Totals {
        let start = Totals { unsafe_shutdowns: self.unsafe_shutdowns.load(Ordering::SeqCst), ..Totals::default() };
        self.by_worker.iter().fold(start, Totals::with)
    }

    /// How often unflushed writes may have been lost.
    pub(crate) fn set_unsafe_shutdowns(&self, count: u64) {
        self.unsafe_shutdowns.store(count, Ordering::SeqCst);
    }
}

/// Counters of one store on one reactor thread.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    media_errors: AtomicU64,
}

/// Sums over threads, or stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) media_errors: u64,
    pub(crate) unsafe_shutdowns: u64,
}

impl Counters {
    /// A Read or Compare has ended well.
    pub(crate) fn count_read(&self, len_bytes: u64) {
        add(&self.reads, 1);
        add(&self.read_bytes, len_bytes);
    }

    /// A Write has ended well.
    pub(crate) fn count_write(&self, len_bytes: u64) {
        add(&self.writes, 1);
        add(&self.written_bytes, len_bytes);
    }

    /// The medium has failed.
    pub(crate) fn count_media_error(&self) {
        add(&self.media_errors, 1);
    }
}

/// Only one thread writes a counter, so that a plain store does.
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

impl Totals {
    fn with(self, counters: &Counters) -> Self {
        let with = |total: u64, counter: &AtomicU64| total.wrapping_add(counter.load(Ordering::Relaxed));
        Self {
            read_bytes: with(self.read_bytes, &counters.read_bytes),
            written_bytes: with(self.written_bytes, &counters.written_bytes),
            reads: with(self.reads, &counters.reads),
            writes: with(self.writes, &counters.writes),
            media_errors: with(self.media_errors, &counters.media_errors),
            unsafe_shutdowns: self.unsafe_shutdowns,
        }
    }

    /// The sum of both.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            read_bytes: self.read_bytes.wrapping_add(other.read_bytes),
            written_bytes: self.written_bytes.wrapping_add(other.written_bytes),
            reads: self.reads.wrapping_add(other.reads),
            writes: self.writes.wrapping_add(other.writes),
            media_errors: self.media_errors.wrapping_add(other.media_errors),
            unsafe_shutdowns: self.unsafe_shutdowns.saturating_add(other.unsafe_shutdowns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_sum_over_threads() {
        let counters = StoreCounters::new(2);
        counters.of(0).count_read(4096);
        counters.of(1).count_read(512);
        counters.of(1).count_write(8192);
        counters.of(0).count_media_error();
        counters.set_unsafe_shutdowns(3);
        let expected = Totals { read_bytes: 4608, written_bytes: 8192, reads: 2, writes: 1, media_errors: 1, unsafe_shutdowns: 3 };
        assert_eq!(counters.totals(), expected);
        assert_eq!(expected.plus(expected).unsafe_shutdowns, 6);
    }
}
