//! What the SMART log counts: one set per subsystem and reactor thread, written by that thread alone.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one subsystem on one reactor thread.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    media_errors: AtomicU64,
}

/// The sums over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) media_errors: u64,
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
    pub(crate) fn of(counters: &[Counters]) -> Self {
        counters.iter().fold(Self::default(), |sum, counters| {
            let with = |total: u64, counter: &AtomicU64| total.wrapping_add(counter.load(Ordering::Relaxed));
            Self {
                read_bytes: with(sum.read_bytes, &counters.read_bytes),
                written_bytes: with(sum.written_bytes, &counters.written_bytes),
                reads: with(sum.reads, &counters.reads),
                writes: with(sum.writes, &counters.writes),
                media_errors: with(sum.media_errors, &counters.media_errors),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_sum_over_threads() {
        let counters = [Counters::default(), Counters::default()];
        counters[0].count_read(4096);
        counters[1].count_read(512);
        counters[1].count_write(8192);
        counters[0].count_media_error();
        let expected = Totals { read_bytes: 4608, written_bytes: 8192, reads: 2, writes: 1, media_errors: 1 };
        assert_eq!(Totals::of(&counters), expected);
    }
}
