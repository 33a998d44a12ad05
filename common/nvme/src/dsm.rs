//! Ranges of Dataset Management.

use std::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::macros::wire;
use crate::{Lba, Truncated};

/// One range of Dataset Management, 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DsmRange {
    attributes: U32,
    length: U32,
    start: U64,
}

wire!(DsmRange, 16, { attributes: 0, length: 4, start: 8 });

impl DsmRange {
    /// `len_blocks` blocks from `start`, without hints.
    #[must_use]
    pub const fn new(start: Lba, len_blocks: u32) -> Self {
        Self { attributes: U32::ZERO, length: U32::new(len_blocks), start: U64::new(start.get()) }
    }

    /// Context attributes: hints on how the range is used.
    #[must_use]
    pub const fn attributes(&self) -> u32 {
        self.attributes.get()
    }

    /// Length in logical blocks. Unlike NLB not 0's-based: zero is an empty range.
    #[must_use]
    pub const fn len_blocks(&self) -> u32 {
        self.length.get()
    }

    /// First block (SLBA).
    #[must_use]
    pub const fn start(&self) -> Lba {
        Lba::new(self.start.get())
    }

    /// The block after the last one; `None` if it lies beyond 2^64.
    #[must_use]
    pub const fn end(&self) -> Option<Lba> {
        match self.start.get().checked_add(self.length.get() as u64) {
            Some(end) => Some(Lba::new(end)),
            None => None,
        }
    }

    /// Whether every block lies in a namespace of `size_blocks` blocks.
    #[must_use]
    pub const fn is_within(&self, size_blocks: u64) -> bool {
        match self.end() {
            Some(end) => end.get() <= size_blocks,
            None => false,
        }
    }
}

impl fmt::Debug for DsmRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DsmRange({} blocks at {})", self.len_blocks(), self.start())
    }
}

/// The first `range_count` ranges of `data`; hosts may send more bytes than that.
///
/// # Errors
/// `data` is too short for them.
pub fn ranges(data: &[u8], range_count: u16) -> Result<&[DsmRange], Truncated> {
    <[DsmRange]>::ref_from_prefix_with_elems(data, usize::from(range_count))
        .map(|(ranges, _)| ranges)
        .map_err(|_| Truncated::new("Dataset Management ranges", usize::from(range_count) * DsmRange::LEN_BYTES, data.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_need_16_bytes_each_and_ignore_the_rest() {
        let range = DsmRange::new(Lba::new(0x1122_3344_5566_7788), 0xAABB_CCDD);
        let bytes = [0, 0, 0, 0, 0xDD, 0xCC, 0xBB, 0xAA, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11];
        assert_eq!(range.as_bytes(), &bytes);
        let list = [bytes, bytes].concat();
        assert_eq!(ranges(&list, 2).unwrap(), [range, range]);
        assert_eq!(ranges(&list, 1).unwrap(), [range]);
        assert_eq!(ranges(&list, 3).unwrap_err(), Truncated { what: "Dataset Management ranges", needed_bytes: 48, actual_bytes: 32 });
        assert!(ranges(&list[..31], 2).is_err());
    }

    #[test]
    fn a_range_is_within_up_to_the_last_block_and_does_not_wrap() {
        assert!(DsmRange::new(Lba::new(0), 8).is_within(8));
        assert!(!DsmRange::new(Lba::new(1), 8).is_within(8));
        assert!(DsmRange::new(Lba::new(8), 0).is_within(8));
        assert_eq!(DsmRange::new(Lba::new(u64::MAX), 1).end(), None);
        assert!(!DsmRange::new(Lba::new(u64::MAX), 1).is_within(u64::MAX));
    }
}
