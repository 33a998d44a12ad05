//! Log-linear buckets: as many to each doubling, so that one is no wider than a part of what it holds, from the shortest to the longest.

/// Buckets for numbers of so many bits, 2^`fine_bits` to a doubling.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogLinear {
    fine_bits: u32,
    bits: u32,
}

impl LogLinear {
    /// Buckets at most 1/2^`fine_bits` wider than what they hold, for numbers below 2^`bits`; the last one holds all above it as well.
    pub(crate) const fn new(fine_bits: u32, bits: u32) -> Self {
        Self { fine_bits, bits }
    }

    /// How many there are.
    pub(crate) const fn count(self) -> usize {
        ((self.bits - self.fine_bits + 1) << self.fine_bits) as usize
    }

    /// The bucket of a number: its position is the number of doublings above the finest ones, then the bits from the highest one on.
    pub(crate) fn bucket(self, value: u64) -> usize {
        let doublings = (value >> self.fine_bits).checked_ilog2().unwrap_or(0);
        // The highest bit of what is left is where each doubling but the first begins.
        let index = (u64::from(doublings) << self.fine_bits) + (value >> doublings);
        usize::try_from(index).map_or(self.count() - 1, |index| index.min(self.count() - 1))
    }

    /// The lowest number of a bucket; of the one behind the last it is the first number that is too long.
    pub(crate) fn lowest(self, bucket: usize) -> u64 {
        let index = bucket as u64;
        let doublings = (index >> self.fine_bits).saturating_sub(1);
        (index - (doublings << self.fine_bits)) << doublings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_one_another_without_gap_or_overlap() {
        for buckets in [LogLinear::new(7, 37), LogLinear::new(3, 31)] {
            for bucket in 0..buckets.count() {
                let (lowest, next) = (buckets.lowest(bucket), buckets.lowest(bucket + 1));
                assert_eq!((buckets.bucket(lowest), buckets.bucket(next - 1)), (bucket, bucket), "{buckets:?}");
                assert!((next - lowest - 1) << buckets.fine_bits <= lowest, "{buckets:?}: {lowest} to {next}");
            }
            assert_eq!(buckets.lowest(buckets.count()), 1 << buckets.bits);
            assert_eq!(buckets.bucket(u64::MAX), buckets.count() - 1);
        }
    }
}
