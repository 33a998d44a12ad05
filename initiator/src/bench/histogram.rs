//! Latencies of one thread: counted into log-linear buckets, so that recording one is an addition, and every percentile is known to within a per cent.

use std::time::Duration;

use crate::log_linear::LogLinear;

/// 128 to a doubling, up to 2^37 ns, some two minutes. What takes longer is counted in the last bucket.
const BUCKETS: LogLinear = LogLinear::new(7, 37);

/// How often each latency was seen.
#[derive(Clone)]
pub struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
    sum_nanos: u128,
    min_nanos: u64,
    max_nanos: u64,
}

/// The middle of a bucket.
fn middle(bucket: usize) -> u64 {
    u64::midpoint(BUCKETS.lowest(bucket), BUCKETS.lowest(bucket + 1))
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS.count()].into_boxed_slice(), count: 0, sum_nanos: 0, min_nanos: u64::MAX, max_nanos: 0 }
    }
}

impl Histogram {
    /// Counts one.
    pub fn record(&mut self, latency: Duration) {
        // Half a millennium fits.
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[BUCKETS.bucket(nanos)] += 1;
        self.count += 1;
        self.sum_nanos += u128::from(nanos);
        self.min_nanos = self.min_nanos.min(nanos);
        self.max_nanos = self.max_nanos.max(nanos);
    }

    /// Adds what another thread has counted.
    pub fn merge(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(mine, theirs)| *mine += theirs);
        self.count += other.count;
        self.sum_nanos += other.sum_nanos;
        self.min_nanos = self.min_nanos.min(other.min_nanos);
        self.max_nanos = self.max_nanos.max(other.max_nanos);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean, exactly; zero when there are none.
    pub fn mean(&self) -> Duration {
        let mean = self.sum_nanos.checked_div(u128::from(self.count)).unwrap_or_default();
        Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// The shortest, exactly; zero when there are none.
    pub fn min(&self) -> Duration {
        Duration::from_nanos(if self.count == 0 { 0 } else { self.min_nanos })
    }

    /// The longest, exactly; zero when there are none.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_nanos)
    }

    /// What so many of a million of them are at most, to within half a per cent; zero when there are none.
    pub fn quantile(&self, per_million: u32) -> Duration {
        let wanted = rank(per_million, self.count);
        let mut seen = 0;
        let found = self.buckets.iter().position(|&count| {
            seen += count;
            seen >= wanted
        });
        let nanos = match found {
            _ if self.count == 0 => 0,
            _ if wanted == self.count => self.max_nanos,
            Some(index) if index < BUCKETS.count() - 1 => middle(index).clamp(self.min_nanos, self.max_nanos),
            // What is in the last bucket, or longer, is only known by the longest.
            _ => self.max_nanos,
        };
        Duration::from_nanos(nanos)
    }
}

/// Which of `count` in rising order a quantile is, counted from 1.
fn rank(per_million: u32, count: u64) -> u64 {
    let rank = (u128::from(count) * u128::from(per_million)).div_ceil(1_000_000);
    u64::try_from(rank).unwrap_or(u64::MAX).clamp(1, count.max(1))
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count)
            .field("mean", &self.mean())
            .field("max", &self.max())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(nanos: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::default();
        nanos.into_iter().for_each(|nanos| histogram.record(Duration::from_nanos(nanos)));
        histogram
    }

    fn nanos(time: Duration) -> u64 {
        u64::try_from(time.as_nanos()).unwrap()
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_list() {
        let histogram = of((1..=100_000).map(|n| n * 1000));
        for (per_million, exact) in [(500_000, 50_000_000), (990_000, 99_000_000), (999_000, 99_900_000), (999_900, 99_990_000)] {
            let found = nanos(histogram.quantile(per_million));
            assert!(found.abs_diff(exact) * 200 <= exact, "{per_million}: {found} for {exact}");
        }
        assert_eq!(nanos(histogram.quantile(1_000_000)), 100_000_000);
        assert_eq!((nanos(histogram.min()), nanos(histogram.max()), nanos(histogram.mean())), (1000, 100_000_000, 50_000_500));
    }

    #[test]
    fn ranks_are_counted_up_to_the_next_whole_one() {
        let ranks =
            [(999_000, 1000), (999_900, 10_000), (500_000, 3), (999_000, 10), (0, 10), (1_000_000, 10)].map(|(part, of)| rank(part, of));
        assert_eq!(ranks, [999, 9999, 2, 10, 1, 10]);
    }

    #[test]
    fn small_numbers_are_exact() {
        let histogram = of(0..128);
        assert_eq!(nanos(histogram.quantile(500_000)), 63);
        assert_eq!(nanos(of([7]).quantile(999_900)), 7);
    }

    #[test]
    fn an_empty_one_is_all_zero() {
        let histogram = Histogram::default();
        assert_eq!((histogram.mean(), histogram.min(), histogram.max(), histogram.quantile(990_000)), Default::default());
    }

    #[test]
    fn what_is_beyond_the_last_bucket_is_told_by_the_longest() {
        let histogram = of([1000, u64::MAX / 2]);
        assert_eq!(nanos(histogram.quantile(990_000)), u64::MAX / 2);
    }

    proptest! {
        #[test]
        fn any_latency_is_found_again_within_a_per_cent(latency in 0_u64..1 << 37) {
            let found = middle(BUCKETS.bucket(latency));
            prop_assert!(found.abs_diff(latency) * 100 <= latency, "{} for {}", found, latency);
        }

        #[test]
        fn merged_ones_are_as_if_counted_by_one(a in proptest::collection::vec(1_u64..1 << 40, 0..50), b in proptest::collection::vec(1_u64..1 << 40, 0..50)) {
            let mut merged = of(a.clone());
            merged.merge(&of(b.clone()));
            let one = of(a.into_iter().chain(b));
            prop_assert_eq!(merged.buckets, one.buckets);
            prop_assert_eq!((merged.count, merged.sum_nanos, merged.min_nanos, merged.max_nanos), (one.count, one.sum_nanos, one.min_nanos, one.max_nanos));
        }
    }
}
