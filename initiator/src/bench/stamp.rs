//! What `--verify` writes into each block, and how it is told what a block holds instead.
//!
//! A stamp says where it was written (address of the block), how often that place had been written by then (generation), and by which run (seed). The rest
//! of the block follows from these three, so that half a block of an older write is found as well.

use std::fmt;

use crate::random::Random;

/// The first eight bytes of a stamped block.
const MAGIC: u64 = u64::from_le_bytes(*b"GodwitBn");

/// Words of a block before what follows from them.
const HEAD_WORDS: usize = 4;

/// Bytes of a word.
const WORD: usize = 8;

/// What a block says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Its address, in blocks of the volume.
    pub(crate) block: u64,
    /// Which write of this block it is, counted from 1.
    pub(crate) generation: u32,
    /// Of which run.
    pub(crate) seed: u64,
}

/// A block that does not hold what was written there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) expected: Stamp,
    pub(crate) found: Found,
    pub(crate) block_bytes: u32,
}

/// What a block holds instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing but zeroes.
    Zeroes,
    /// Another block, another write, or that of another run.
    Other(Stamp),
    /// The right head, and from this byte of the block on not what follows from it.
    Damaged(usize),
    /// No stamp.
    Unknown,
}

impl Stamp {
    /// Fills a block, of a multiple of eight bytes.
    pub(crate) fn write(&self, block: &mut [u8]) {
        let mut words = block.chunks_exact_mut(WORD);
        // In this order: the other way round a word is taken that has no value any more.
        for (value, word) in self.head().into_iter().zip(words.by_ref()) {
            word.copy_from_slice(&value.to_le_bytes());
        }
        let mut rest = self.rest();
        for word in words {
            word.copy_from_slice(&rest.next().to_le_bytes());
        }
    }

    /// What is wrong with a block that should hold this stamp.
    pub(crate) fn check(&self, block: &[u8]) -> Result<(), Found> {
        let head = self.head();
        let is_head = block.chunks_exact(WORD).zip(head).all(|(word, value)| word == value.to_le_bytes());
        if !is_head {
            return Err(found(block));
        }
        let mut rest = self.rest();
        let wrong = block.chunks_exact(WORD).skip(HEAD_WORDS).position(|word| word != rest.next().to_le_bytes());
        match wrong {
            None => Ok(()),
            Some(word) => Err(Found::Damaged((HEAD_WORDS + word) * WORD)),
        }
    }

    fn head(&self) -> [u64; HEAD_WORDS] {
        [MAGIC, self.block, u64::from(self.generation), self.seed]
    }

    /// What follows from the head.
    fn rest(&self) -> Random {
        let seed = self.seed ^ self.block.rotate_left(32) ^ u64::from(self.generation).rotate_left(17);
        // Neighbours begin far from one another.
        Random::new(Random::new(seed).next())
    }
}

/// What a block that is not the right one seems to be.
fn found(block: &[u8]) -> Found {
    let mut words = block.chunks_exact(WORD).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    let head: Vec<u64> = words.by_ref().take(HEAD_WORDS).collect();
    match head[..] {
        [MAGIC, block, generation, seed] => match u32::try_from(generation) {
            Ok(generation) => Found::Other(Stamp { block, generation, seed }),
            Err(_) => Found::Unknown,
        },
        _ if block.iter().all(|&byte| byte == 0) => Found::Zeroes,
        _ => Found::Unknown,
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, found, block_bytes } = self;
        let at = expected.block * u64::from(*block_bytes);
        write!(f, "block {} ({block_bytes} bytes at {at}) does not hold what was written there: ", expected.block)?;
        match found {
            Found::Zeroes => f.write_str("it is all zeroes"),
            Found::Unknown => f.write_str("it holds something else"),
            Found::Damaged(byte) => write!(f, "it differs from byte {byte} on"),
            Found::Other(other) if other.seed != expected.seed => write!(f, "it holds what another run wrote, with seed {}", other.seed),
            Found::Other(other) if other.block != expected.block => write!(f, "it holds block {}", other.block),
            Found::Other(other) => write!(f, "it holds write {}, and the last one was write {}", other.generation, expected.generation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { block: 7, generation: 3, seed: 42 };

    fn block() -> Vec<u8> {
        let mut block = vec![0xee; 4096];
        STAMP.write(&mut block);
        block
    }

    #[test]
    fn a_stamped_block_is_right_for_its_stamp_alone() {
        assert_eq!(STAMP.check(&block()), Ok(()));
        for other in [Stamp { block: 8, ..STAMP }, Stamp { generation: 2, ..STAMP }, Stamp { seed: 1, ..STAMP }] {
            assert_eq!(other.check(&block()), Err(Found::Other(STAMP)));
        }
    }

    #[test]
    fn every_byte_is_checked() {
        for byte in 0..4096 {
            let mut block = block();
            block[byte] ^= 0x10;
            assert!(STAMP.check(&block).is_err(), "byte {byte}");
        }
        let mut torn = block();
        Stamp { generation: 2, ..STAMP }.write(&mut torn);
        torn[..512].copy_from_slice(&block()[..512]);
        assert_eq!(STAMP.check(&torn), Err(Found::Damaged(512)));
    }

    #[test]
    fn what_is_no_stamp_is_said_to_be_none() {
        assert_eq!(STAMP.check(&[0; 512]), Err(Found::Zeroes));
        assert_eq!(STAMP.check(&[1; 512]), Err(Found::Unknown));
    }

    #[test]
    fn a_mismatch_names_the_block() {
        let told = |found| Mismatch { expected: STAMP, found, block_bytes: 4096 }.to_string();
        let start = "block 7 (4096 bytes at 28672) does not hold what was written there: ";
        for (found, words) in [
            (Found::Zeroes, "it is all zeroes"),
            (Found::Damaged(512), "it differs from byte 512 on"),
            (Found::Other(Stamp { generation: 2, ..STAMP }), "it holds write 2, and the last one was write 3"),
            (Found::Other(Stamp { block: 9, ..STAMP }), "it holds block 9"),
            (Found::Other(Stamp { seed: 9, ..STAMP }), "it holds what another run wrote, with seed 9"),
        ] {
            assert_eq!(told(found), format!("{start}{words}"));
        }
    }
}
