//! Checksums of a disk's blocks, kept from one reading to the next: to read a block from memory only to sum it up takes as long as to send it.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use zerocopy::FromZeros;

/// Bytes of a block that has a checksum.
pub const SUMMED_BYTES: usize = 4096;

/// A word of this stands for a checksum that is not known. A block of which it is the checksum is summed up each time.
const UNKNOWN: u32 = 0;

/// The CRC32C of each block, where it is known.
///
/// A word changes only while the lock of its block's stripe is held, and becomes [`UNKNOWN`] only while that is held by a writer: the lock orders it with
/// the block's bytes, so the accesses themselves need no order. Two readers may sum up one block at a time, and come to the same.
pub(crate) struct Sums(Vec<AtomicU32>);

impl Sums {
    /// Nothing is known of a disk of so many bytes. What is never summed up takes no memory; `None` when there is no room for it in the address space.
    pub(crate) fn new(len_bytes: usize) -> Option<Self> {
        AtomicU32::new_vec_zeroed(len_bytes.div_ceil(SUMMED_BYTES)).ok().map(Self)
    }

    /// A piece is about to change.
    pub(crate) fn forget(&self, piece: &Range<usize>) {
        for word in &self.0[piece.start / SUMMED_BYTES..piece.end.div_ceil(SUMMED_BYTES)] {
            // Most are unknown already, and a page of words that is only looked at takes no memory.
            if word.load(Ordering::Relaxed) != UNKNOWN {
                word.store(UNKNOWN, Ordering::Relaxed);
            }
        }
    }

    /// Whether nothing of a piece would have to be summed up.
    pub(crate) fn are_known(&self, piece: &Range<usize>) -> bool {
        self.words(piece).is_some_and(|words| words.iter().all(|word| word.load(Ordering::Relaxed) != UNKNOWN))
    }

    /// The checksums of a piece with these bytes, block by block; `None` when it does not begin and end where blocks do.
    pub(crate) fn get(&self, piece: &Range<usize>, bytes: &[u8]) -> Option<impl Iterator<Item = u32>> {
        let blocks = self.words(piece)?.iter().zip(bytes.chunks_exact(SUMMED_BYTES));
        Some(blocks.map(|(word, block)| match word.load(Ordering::Relaxed) {
            UNKNOWN => {
                let sum = crc_fast::crc32_iscsi(block);
                word.store(sum, Ordering::Relaxed);
                sum
            }
            known => known,
        }))
    }

    fn words(&self, piece: &Range<usize>) -> Option<&[AtomicU32]> {
        let is_whole = piece.start.is_multiple_of(SUMMED_BYTES) && piece.end.is_multiple_of(SUMMED_BYTES);
        is_whole.then(|| &self.0[piece.start / SUMMED_BYTES..piece.end / SUMMED_BYTES])
    }
}
