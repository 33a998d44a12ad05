//! Chance from a seed.

use std::time::Duration;

use super::MOST_DELAY;

/// A small generator of numbers (SplitMix64): the same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// How long something takes: mostly short, sometimes not.
    pub(crate) fn delay(&mut self) -> Duration {
        let most = u64::try_from(MOST_DELAY.as_nanos()).expect("a short time");
        let most = if self.below(8) == 0 { most } else { most / 50 };
        Duration::from_nanos(1 + self.below(most))
    }

    /// A size from 1 to `most`: often all, sometimes any.
    pub(crate) fn piece(&mut self, most: usize) -> usize {
        if most > 1 && self.below(4) == 0 { 1 + usize::try_from(self.below(most as u64)).unwrap_or(0) } else { most }
    }
}
