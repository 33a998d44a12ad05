//! The numbers of NVMe, each a type of its own; 0's-based counts are converted here and nowhere else.

use std::fmt;

use crate::macros::number;

number! {
    /// Namespace identifier (NSID).
    Nsid(u32)
}

impl Nsid {
    /// No namespace: what commands that name none carry.
    pub const NONE: Self = Self(0);
    /// All namespaces of the controller.
    pub const ALL: Self = Self(0xFFFF_FFFF);

    /// Whether this names exactly one namespace: neither 0, nor one of the reserved value FFFFFFFEh and the broadcast value.
    #[must_use]
    pub const fn is_one_namespace(self) -> bool {
        self.0 != 0 && self.0 < 0xFFFF_FFFE
    }
}

number! {
    /// Command identifier (CID): opaque to the controller, echoed in the completion.
    Cid(u16)
}

number! {
    /// Queue identifier (QID).
    Qid(u16)
}

impl Qid {
    /// The admin queue.
    pub const ADMIN: Self = Self(0);

    /// Whether this is the admin queue.
    #[must_use]
    pub const fn is_admin(self) -> bool {
        self.0 == 0
    }
}

number! {
    /// Controller identifier (CNTLID).
    Cntlid(u16)
}

impl Cntlid {
    /// "Any controller" (dynamic controller model): what an admin Connect asks for.
    pub const DYNAMIC: Self = Self(0xFFFF);
}

number! {
    /// Logical block address, in logical blocks.
    Lba(u64)
}

number! {
    /// Remote key of a registered memory region (on iWARP the STag).
    Rkey(u32)
}

number! {
    /// Submission queue head pointer (SQHD), an index into the submission queue.
    Sqhd(u16)
}

impl Sqhd {
    /// What every completion carries when submission queue flow control is disabled.
    pub const FLOW_CONTROL_DISABLED: Self = Self(0xFFFF);

    /// The head after one more command was consumed from a queue of `size`.
    #[must_use]
    pub const fn next(self, size: QueueSize) -> Self {
        if self.0 >= size.zeroes_based() { Self(0) } else { Self(self.0 + 1) }
    }
}

macro_rules! zeroes_based {
    ($(#[$meta:meta])* $name:ident($raw:ty) counts $count:ident: $wide:ty, max $max:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($raw);

        impl $name {
            /// The smallest value: one.
            pub const MIN: Self = Self(0);
            /// The largest value that the wire can carry.
            pub const MAX: Self = Self(<$raw>::MAX);

            #[doc = concat!("The count `count`, which must be within 1..=", stringify!($max), ".")]
            #[must_use]
            pub const fn new(count: $wide) -> Option<Self> {
                if count == 0 || count > $max {
                    return None;
                }
                #[allow(clippy::cast_possible_truncation, reason = "bounded above")]
                Some(Self((count - 1) as $raw))
            }

            /// The count that the 0's-based wire value `raw` stands for.
            #[must_use]
            pub const fn from_zeroes_based(raw: $raw) -> Self {
                Self(raw)
            }

            /// The 0's-based wire value: the count less one.
            #[must_use]
            pub const fn zeroes_based(self) -> $raw {
                self.0
            }

            /// The count.
            #[must_use]
            pub const fn $count(self) -> $wide {
                self.0 as $wide + 1
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.$count())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.$count().fmt(f)
            }
        }
    };
}

zeroes_based! {
    /// Number of logical blocks of one command (NLB): 1 to 65536, 0's-based on the wire.
    BlockCount(u16) counts get: u32, max 65_536
}

zeroes_based! {
    /// Entries of a queue (MQES, SQSIZE, HSQSIZE): 1 to 65536, 0's-based on the wire.
    QueueSize(u16) counts entries: u32, max 65_536
}

zeroes_based! {
    /// A length in dwords (NUMD): 1 to 2^32, 0's-based on the wire.
    DwordCount(u32) counts dwords: u64, max 4_294_967_296
}

impl DwordCount {
    /// The length `len_bytes`, which must be a positive multiple of four.
    #[must_use]
    pub const fn from_bytes(len_bytes: u64) -> Option<Self> {
        if len_bytes.is_multiple_of(4) { Self::new(len_bytes / 4) } else { None }
    }

    /// The length in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.dwords() * 4
    }
}

/// Size of a logical block: a power of two of at least 512 bytes and at most 2^31.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize(u8);

impl BlockSize {
    /// 512 bytes.
    pub const B512: Self = Self(9);
    /// 4096 bytes.
    pub const B4096: Self = Self(12);

    /// The block size of `bytes`, if it is a power of two within bounds.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "trailing_zeros is at most 32")]
    pub const fn new(bytes: u32) -> Option<Self> {
        if bytes.is_power_of_two() { Self::from_log2(bytes.trailing_zeros() as u8) } else { None }
    }

    /// The block size of 2^`log2` bytes (LBADS), if it is within bounds.
    #[must_use]
    pub const fn from_log2(log2: u8) -> Option<Self> {
        if log2 >= 9 && log2 <= 31 { Some(Self(log2)) } else { None }
    }

    /// The exponent (LBADS).
    #[must_use]
    pub const fn log2(self) -> u8 {
        self.0
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        1 << self.0
    }
}

impl fmt::Debug for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockSize({})", self.bytes())
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// Consecutive logical blocks of one command. The range may reach beyond any namespace: see [`BlockRange::is_within`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockRange {
    /// First block (SLBA).
    pub start: Lba,
    /// Number of blocks (NLB).
    pub count: BlockCount,
}

impl BlockRange {
    /// `count` blocks from `start`.
    #[must_use]
    pub const fn new(start: Lba, count: BlockCount) -> Self {
        Self { start, count }
    }

    /// The block after the last one; `None` if it lies beyond 2^64.
    #[must_use]
    pub const fn end(self) -> Option<Lba> {
        match self.start.get().checked_add(self.count.get() as u64) {
            Some(end) => Some(Lba::new(end)),
            None => None,
        }
    }

    /// Whether every block lies in a namespace of `size_blocks` blocks.
    #[must_use]
    pub const fn is_within(self, size_blocks: u64) -> bool {
        match self.end() {
            Some(end) => end.get() <= size_blocks,
            None => false,
        }
    }

    /// Length in bytes of the blocks' data.
    #[must_use]
    pub const fn len_bytes(self, block_size: BlockSize) -> u64 {
        self.count.get() as u64 * block_size.bytes() as u64
    }

    /// Byte offset of the first block; `None` if it lies beyond 2^64.
    #[must_use]
    pub const fn offset_bytes(self, block_size: BlockSize) -> Option<u64> {
        self.start.get().checked_mul(block_size.bytes() as u64)
    }
}

/// Host identifier: 16 opaque bytes, which with the host NQN make the identity of a host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub [u8; 16]);

impl HostId {
    /// Whether all bytes are zero, which no host may use.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl From<uuid::Uuid> for HostId {
    fn from(uuid: uuid::Uuid) -> Self {
        Self(uuid.into_bytes())
    }
}

impl From<HostId> for uuid::Uuid {
    fn from(id: HostId) -> Self {
        Self::from_bytes(id.0)
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from(*self).fmt(f)
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_based_counts_are_bounded_on_both_sides() {
        assert_eq!(BlockCount::new(0), None);
        assert_eq!(BlockCount::new(1).unwrap().zeroes_based(), 0);
        assert_eq!(BlockCount::new(65_536).unwrap().zeroes_based(), 0xFFFF);
        assert_eq!(BlockCount::new(65_537), None);
        assert_eq!(QueueSize::from_zeroes_based(31).entries(), 32);
        assert_eq!(DwordCount::new(1 << 32).unwrap().zeroes_based(), u32::MAX);
        assert_eq!(DwordCount::new((1 << 32) + 1), None);
        assert_eq!(DwordCount::MAX.bytes(), 1 << 34);
    }

    #[test]
    fn dwords_come_from_multiples_of_four_bytes() {
        assert_eq!(DwordCount::from_bytes(0), None);
        assert_eq!(DwordCount::from_bytes(3), None);
        assert_eq!(DwordCount::from_bytes(4).unwrap().dwords(), 1);
        assert_eq!(DwordCount::from_bytes(4094), None);
        assert_eq!(DwordCount::from_bytes(4096).unwrap().zeroes_based(), 1023);
    }

    #[test]
    fn a_range_at_the_end_of_the_address_space_does_not_wrap() {
        let one = BlockCount::new(1).unwrap();
        let last = BlockRange::new(Lba::new(u64::MAX), one);
        assert_eq!(last.end(), None);
        assert!(!last.is_within(u64::MAX));
        assert!(BlockRange::new(Lba::new(u64::MAX - 1), one).is_within(u64::MAX));
        assert_eq!(last.offset_bytes(BlockSize::B512), None);
    }

    #[test]
    fn a_range_is_within_up_to_the_last_block() {
        let range = |start, count| BlockRange::new(Lba::new(start), BlockCount::new(count).unwrap());
        assert!(range(0, 8).is_within(8));
        assert!(!range(0, 9).is_within(8));
        assert!(range(7, 1).is_within(8));
        assert!(!range(8, 1).is_within(8));
        assert_eq!(range(3, 65_536).len_bytes(BlockSize::B4096), 256 << 20);
    }

    #[test]
    fn block_sizes_are_powers_of_two_from_512() {
        assert_eq!(BlockSize::new(256), None);
        assert_eq!(BlockSize::new(512), Some(BlockSize::B512));
        assert_eq!(BlockSize::new(513), None);
        assert_eq!(BlockSize::new(0), None);
        assert_eq!(BlockSize::new(1 << 31).unwrap().log2(), 31);
        assert_eq!(BlockSize::from_log2(32), None);
        assert_eq!(BlockSize::from_log2(8), None);
    }

    #[test]
    fn the_submission_queue_head_wraps_at_the_queue_size() {
        let size = QueueSize::new(32).unwrap();
        assert_eq!(Sqhd::new(30).next(size), Sqhd::new(31));
        assert_eq!(Sqhd::new(31).next(size), Sqhd::new(0));
        assert_eq!(Sqhd::FLOW_CONTROL_DISABLED.next(QueueSize::MAX), Sqhd::new(0));
    }

    #[test]
    fn only_real_namespace_ids_name_one_namespace() {
        assert!(!Nsid::NONE.is_one_namespace());
        assert!(Nsid::new(1).is_one_namespace());
        assert!(Nsid::new(0xFFFF_FFFD).is_one_namespace());
        assert!(!Nsid::new(0xFFFF_FFFE).is_one_namespace());
        assert!(!Nsid::ALL.is_one_namespace());
    }
}
