//! Numbers that look random and follow from a seed alone (splitmix64).

/// The numbers of one stream.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Those of stream `number` of a run.
    pub fn new(seed: u64, number: u64) -> Self {
        let mut random = Self(seed ^ number.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        random.long();
        random
    }

    /// Any number.
    pub fn long(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Any number of 32 bits.
    pub fn word(&mut self) -> u32 {
        u32::try_from(self.long() >> 32).expect("32 bits")
    }

    /// Any number of 16 bits.
    pub fn half(&mut self) -> u16 {
        u16::try_from(self.long() >> 48).expect("16 bits")
    }

    /// Any byte.
    pub fn byte(&mut self) -> u8 {
        u8::try_from(self.long() >> 56).expect("8 bits")
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.long() % bound
    }

    /// A count within `least..=most`.
    pub fn count(&mut self, least: usize, most: usize) -> usize {
        let span = u64::try_from(most - least + 1).expect("counts are small");
        least + usize::try_from(self.below(span)).expect("counts are small")
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of several, which are not none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.count(0, from.len() - 1)]
    }

    /// So many bytes of any value.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    /// Changes up to `most` bytes to any value, at least one if there are any.
    pub fn scramble(&mut self, bytes: &mut [u8], most: usize) {
        if bytes.is_empty() {
            return;
        }
        for _ in 0..self.count(1, most) {
            let at = self.count(0, bytes.len() - 1);
            bytes[at] = if self.one_in(2) { bytes[at] ^ (1 << self.below(8)) } else { self.byte() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_and_number_give_the_same_bytes() {
        assert_eq!(Random::new(7, 3).bytes(64), Random::new(7, 3).bytes(64));
        assert_ne!(Random::new(7, 3).bytes(64), Random::new(7, 4).bytes(64));
        assert_ne!(Random::new(8, 3).bytes(64), Random::new(7, 3).bytes(64));
    }

    #[test]
    fn counts_reach_both_ends() {
        let mut random = Random::new(1, 1);
        let counts: std::collections::BTreeSet<_> = (0..200).map(|_| random.count(2, 5)).collect();
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), [2, 3, 4, 5]);
    }
}
