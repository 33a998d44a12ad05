//! Numbers that follow from a seed (SplitMix64): for loads, patterns and pauses, never for secrets.

/// A sequence of numbers. Equal seeds give equal ones.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next one, of all there are.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next one below a bound.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_splitmix64() {
        // Of the reference implementation (Vigna, splitmix64.c), from 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!([random.next(), random.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn bounds_are_kept_and_everything_below_them_comes() {
        let mut random = Random::new(1);
        let seen: std::collections::BTreeSet<u64> = (0..1000).map(|_| random.below(7)).collect();
        assert_eq!(seen, (0..7).collect());
        assert_eq!(random.below(0), 0);
    }
}
