//! Numbers at which code goes wrong: ends of ranges, signs, and what is next to them.

use super::Random;

/// A number of 16 bits.
pub(super) fn half(random: &mut Random) -> u16 {
    match random.below(4) {
        0 => random.pick(&[0, 1, 2, 3, 4, 15, 16, 31, 32, 127, 128, 129, 255, 256, 1023, 1024, 1025]),
        1 => random.pick(&[0x3fff, 0x4000, 0x7fff, 0x8000, 0x8001, 0xfff0, 0xfffe, 0xffff]),
        2 => 1 << random.below(16),
        _ => random.half(),
    }
}

/// A number of 32 bits.
pub(super) fn word(random: &mut Random) -> u32 {
    match random.below(5) {
        0 => random.pick(&[0, 1, 2, 3, 4, 7, 8, 15, 16, 63, 64, 65, 511, 512, 4095, 4096, 4097, 8191, 8192, 8193]),
        1 => random.pick(&[0xffff, 0x1_0000, 0x10_0000, 0x10_0001, 0xff_ffff, 0x100_0000, 0x400_0000, 0x400_0001]),
        2 => random.pick(&[0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_f000, 0xffff_fffc, 0xffff_fffe, u32::MAX]),
        3 => 1 << random.below(32),
        _ => random.word(),
    }
}

/// A number of 64 bits.
pub(super) fn long(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => u64::from(word(random)),
        1 => u64::MAX - u64::from(word(random)),
        2 => (1 << random.below(64)) - random.below(2),
        _ => random.long(),
    }
}
