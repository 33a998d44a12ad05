//! SGL descriptors: where a command's data lies.

use std::fmt;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::u32_field;
use crate::macros::wire;
use crate::{Rkey, Status, StatusCode};

/// SGL descriptor as it lies in a capsule, 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SglDescriptor {
    address: U64,
    specific: [u8; 7],
    identifier: u8,
}

wire!(SglDescriptor, 16, { address: 0, specific: 8, identifier: 15 });

/// An SGL descriptor parsed: the forms that NVMe/RDMA uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sgl {
    /// Keyed data block (types 40h and 4Fh): memory of the host. The descriptor of a command without data is one of these, all zero.
    Keyed {
        /// Remote address.
        address: u64,
        /// Length in bytes, at most 2^24 - 1.
        length: u32,
        /// Remote key.
        key: Rkey,
        /// Whether the response must invalidate the key (Send with Invalidate).
        invalidate: bool,
    },
    /// Data block by offset (type 01h): data in the capsule.
    InCapsule {
        /// Offset in bytes from the start of the in-capsule data.
        offset: u64,
        /// Length in bytes.
        length: u32,
    },
    /// Last segment by offset (type 31h): descriptors in the capsule, see [`segment`].
    InCapsuleSegment {
        /// Offset in bytes from the start of the in-capsule data.
        offset: u64,
        /// Length in bytes: 16 for each descriptor.
        length: u32,
    },
}

/// Why an SGL descriptor cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SglError {
    /// A type or subtype that NVMe/RDMA does not use.
    #[error("SGL descriptor type {0:02X}h is not one of NVMe over RDMA")]
    Type(u8),
    /// A data block by offset starts beyond the capsule's data.
    #[error("in-capsule offset {offset} is beyond the {available_bytes} bytes of the capsule")]
    Offset {
        /// Its offset.
        offset: u64,
        /// Bytes in the capsule after the SQE.
        available_bytes: usize,
    },
    /// A data block by offset ends beyond the capsule's data.
    #[error("{length} bytes from in-capsule offset {offset} are more than the {available_bytes} bytes of the capsule")]
    Length {
        /// Its offset.
        offset: u64,
        /// Its length in bytes.
        length: u32,
        /// Bytes in the capsule after the SQE.
        available_bytes: usize,
    },
    /// A segment is empty or no whole number of descriptors.
    #[error("an SGL segment of {length} bytes is not a positive number of 16-byte descriptors")]
    SegmentLength {
        /// Its length in bytes.
        length: u32,
    },
    /// More descriptors than the controller takes (MSDBD).
    #[error("{count} SGL descriptors are over the limit of {limit}")]
    TooManyDescriptors {
        /// How many.
        count: u32,
        /// At most this many.
        limit: u32,
    },
    /// A keyed data block longer than its 24-bit length can say.
    #[error("{length} bytes are more than a keyed SGL descriptor can hold ({})", Sgl::MAX_KEYED_LENGTH)]
    KeyedLength {
        /// Its length in bytes.
        length: u32,
    },
    /// Another length than the command transfers.
    #[error("{length} bytes of data where the command transfers {expected_bytes}")]
    Mismatch {
        /// Length of the descriptor in bytes.
        length: u32,
        /// Bytes that the command transfers.
        expected_bytes: u64,
    },
    /// A descriptor of one kind where only another will do.
    #[error("the SGL descriptor must be {0}")]
    Unexpected(&'static str),
}

impl SglError {
    /// What the target answers.
    #[must_use]
    pub const fn status(self) -> Status {
        let code = match self {
            Self::Type(_) => StatusCode::SGL_DESCRIPTOR_TYPE_INVALID,
            Self::Offset { .. } => StatusCode::SGL_OFFSET_INVALID,
            Self::Length { .. } | Self::KeyedLength { .. } | Self::Mismatch { .. } => StatusCode::DATA_SGL_LENGTH_INVALID,
            Self::SegmentLength { .. } => StatusCode::INVALID_SGL_SEGMENT_DESCRIPTOR,
            Self::TooManyDescriptors { .. } => StatusCode::INVALID_SGL_DESCRIPTOR_COUNT,
            Self::Unexpected(_) => StatusCode::INVALID_FIELD,
        };
        code.do_not_retry()
    }
}

const KEYED: u8 = 0x40;
const KEYED_INVALIDATE: u8 = 0x4F;
const IN_CAPSULE: u8 = 0x01;
const IN_CAPSULE_LAST_SEGMENT: u8 = 0x31;

impl SglDescriptor {
    /// What a command without data carries: a keyed data block of zeros.
    pub const NONE: Self = Self { address: U64::ZERO, specific: [0; 7], identifier: KEYED };

    /// Memory of the host: `length` bytes at `address` under `key`.
    ///
    /// # Errors
    /// `length` is over [`Sgl::MAX_KEYED_LENGTH`].
    pub const fn keyed(address: u64, length: u32, key: Rkey, invalidate: bool) -> Result<Self, SglError> {
        let [l0, l1, l2, 0] = length.to_le_bytes() else {
            return Err(SglError::KeyedLength { length });
        };
        let [k0, k1, k2, k3] = key.get().to_le_bytes();
        Ok(Self {
            address: U64::new(address),
            specific: [l0, l1, l2, k0, k1, k2, k3],
            identifier: if invalidate { KEYED_INVALIDATE } else { KEYED },
        })
    }

    /// `length` bytes in the capsule, `offset` bytes after the SQE.
    #[must_use]
    pub const fn in_capsule(offset: u64, length: u32) -> Self {
        Self::by_offset(offset, length, IN_CAPSULE)
    }

    /// `length` bytes of descriptors in the capsule, `offset` bytes after the SQE.
    #[must_use]
    pub const fn in_capsule_segment(offset: u64, length: u32) -> Self {
        Self::by_offset(offset, length, IN_CAPSULE_LAST_SEGMENT)
    }

    const fn by_offset(offset: u64, length: u32, identifier: u8) -> Self {
        let [l0, l1, l2, l3] = length.to_le_bytes();
        Self { address: U64::new(offset), specific: [l0, l1, l2, l3, 0, 0, 0], identifier }
    }

    /// SGL identifier: type in bits 7:4, subtype in bits 3:0.
    #[must_use]
    pub const fn identifier(&self) -> u8 {
        self.identifier
    }

    /// What the descriptor says. Reserved bytes are ignored.
    ///
    /// # Errors
    /// Its type is none that NVMe/RDMA uses.
    pub const fn parse(&self) -> Result<Sgl, SglError> {
        let address = self.address.get();
        let [b0, b1, b2, b3, b4, b5, b6] = self.specific;
        let length = u32::from_le_bytes([b0, b1, b2, b3]);
        match self.identifier {
            KEYED | KEYED_INVALIDATE => Ok(Sgl::Keyed {
                address,
                length: u32_field(length as u64, 23, 0),
                key: Rkey::new(u32::from_le_bytes([b3, b4, b5, b6])),
                invalidate: self.identifier == KEYED_INVALIDATE,
            }),
            IN_CAPSULE => Ok(Sgl::InCapsule { offset: address, length }),
            IN_CAPSULE_LAST_SEGMENT => Ok(Sgl::InCapsuleSegment { offset: address, length }),
            other => Err(SglError::Type(other)),
        }
    }
}

impl Sgl {
    /// The longest keyed data block in bytes: its length has 24 bits.
    pub const MAX_KEYED_LENGTH: u32 = (1 << 24) - 1;

    /// Its length in bytes; for a segment, of the descriptors.
    #[must_use]
    pub const fn length(self) -> u32 {
        match self {
            Self::Keyed { length, .. } | Self::InCapsule { length, .. } | Self::InCapsuleSegment { length, .. } => length,
        }
    }

    /// Checks that the descriptor is exactly as long as what the command transfers.
    ///
    /// # Errors
    /// It is shorter or longer.
    pub const fn check_length_is(self, expected_bytes: u64) -> Result<(), SglError> {
        if self.length() as u64 == expected_bytes { Ok(()) } else { Err(SglError::Mismatch { length: self.length(), expected_bytes }) }
    }

    /// Checks that the descriptor is long enough for what the command transfers, as for Dataset Management, where hosts send more.
    ///
    /// # Errors
    /// It is shorter.
    pub const fn check_length_is_at_least(self, expected_bytes: u64) -> Result<(), SglError> {
        if self.length() as u64 >= expected_bytes { Ok(()) } else { Err(SglError::Mismatch { length: self.length(), expected_bytes }) }
    }

    /// The key that the response has to invalidate, if the host asked for it.
    #[must_use]
    pub const fn key_to_invalidate(self) -> Option<Rkey> {
        match self {
            Self::Keyed { key, invalidate: true, .. } => Some(key),
            _ => None,
        }
    }
}

impl TryFrom<Sgl> for SglDescriptor {
    type Error = SglError;

    fn try_from(sgl: Sgl) -> Result<Self, SglError> {
        match sgl {
            Sgl::Keyed { address, length, key, invalidate } => Self::keyed(address, length, key, invalidate),
            Sgl::InCapsule { offset, length } => Ok(Self::in_capsule(offset, length)),
            Sgl::InCapsuleSegment { offset, length } => Ok(Self::in_capsule_segment(offset, length)),
        }
    }
}

/// The bytes that `offset` and `length` name in the capsule's data.
///
/// # Errors
/// They reach beyond the capsule.
pub fn in_capsule_data(capsule_data: &[u8], offset: u64, length: u32) -> Result<&[u8], SglError> {
    let available_bytes = capsule_data.len();
    let tail =
        usize::try_from(offset).ok().and_then(|start| capsule_data.get(start..)).ok_or(SglError::Offset { offset, available_bytes })?;
    usize::try_from(length).ok().and_then(|length| tail.get(..length)).ok_or(SglError::Length { offset, length, available_bytes })
}

/// The descriptors of an in-capsule segment, at most `limit` of them (MSDBD).
///
/// # Errors
/// The segment reaches beyond the capsule, is no whole number of descriptors, or has too many of them. Each descriptor may be of
/// an unknown type too.
pub fn segment(
    capsule_data: &[u8],
    offset: u64,
    length: u32,
    limit: u32,
) -> Result<impl ExactSizeIterator<Item = Result<Sgl, SglError>>, SglError> {
    let bytes = in_capsule_data(capsule_data, offset, length)?;
    let (descriptors, rest) = bytes.as_chunks::<{ SglDescriptor::LEN_BYTES }>();
    if descriptors.is_empty() || !rest.is_empty() {
        return Err(SglError::SegmentLength { length });
    }
    let count = length / 16;
    if count > limit {
        return Err(SglError::TooManyDescriptors { count, limit });
    }
    Ok(descriptors.iter().map(|bytes| zerocopy::transmute_ref!(bytes)).map(SglDescriptor::parse))
}

impl fmt::Debug for Sgl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Keyed { address: 0, length: 0, key, invalidate: false } if key.get() == 0 => f.write_str("no data"),
            Self::Keyed { address, length, key, invalidate } => {
                let then = if invalidate { ", then invalidate" } else { "" };
                write!(f, "{length} bytes at {address:#x} key {:#010x}{then}", key.get())
            }
            Self::InCapsule { offset, length } => {
                write!(f, "{length} bytes in the capsule at {offset}")
            }
            Self::InCapsuleSegment { offset, length } => write!(f, "{length} bytes of descriptors in the capsule at {offset}"),
        }
    }
}

impl fmt::Debug for SglDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parse() {
            Ok(sgl) => sgl.fmt(f),
            Err(_) => write!(f, "SGL type {:02X}h {:02X?}", self.identifier, &self.as_bytes()[..15]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyed_length_is_24_bits() {
        let sgl = SglDescriptor::keyed(0x1122_3344_5566_7788, 0xFF_FFFF, Rkey::new(0xAABB_CCDD), true).unwrap();
        assert_eq!(sgl.as_bytes(), &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xFF, 0xFF, 0xFF, 0xDD, 0xCC, 0xBB, 0xAA, 0x4F]);
        assert_eq!(
            sgl.parse(),
            Ok(Sgl::Keyed { address: 0x1122_3344_5566_7788, length: 0xFF_FFFF, key: Rkey::new(0xAABB_CCDD), invalidate: true })
        );
        assert_eq!(SglDescriptor::keyed(0, 0x100_0000, Rkey::new(0), false), Err(SglError::KeyedLength { length: 0x100_0000 }));
    }

    #[test]
    fn only_the_types_of_rdma_are_accepted() {
        for identifier in 0..=u8::MAX {
            let parsed = SglDescriptor { identifier, ..SglDescriptor::NONE }.parse();
            match identifier {
                0x40 | 0x4F | 0x01 | 0x31 => assert_eq!(SglDescriptor::try_from(parsed.unwrap()).unwrap().identifier(), identifier),
                _ => assert_eq!(parsed, Err(SglError::Type(identifier))),
            }
        }
        assert_eq!(SglError::Type(0).status().to_wire(), 0x8022);
    }

    #[test]
    fn length_is_checked_against_what_the_command_transfers() {
        let sgl = Sgl::InCapsule { offset: 0, length: 4096 };
        assert_eq!(sgl.check_length_is(4096), Ok(()));
        let longer = SglError::Mismatch { length: 4096, expected_bytes: 4097 };
        assert_eq!(sgl.check_length_is(4097), Err(longer));
        assert_eq!(longer.status().to_wire(), 0x801E);
        assert!(sgl.check_length_is(4095).is_err());
        assert!(sgl.check_length_is((1 << 32) + 4096).is_err());
        assert_eq!(sgl.check_length_is_at_least(4095), Ok(()));
        assert_eq!(sgl.check_length_is_at_least(4096), Ok(()));
        assert_eq!(sgl.check_length_is_at_least(4097), Err(longer));
    }

    #[test]
    fn in_capsule_data_ends_with_the_capsule() {
        let data = [7; 100];
        assert_eq!(in_capsule_data(&data, 0, 100).unwrap().len(), 100);
        assert_eq!(in_capsule_data(&data, 100, 0).unwrap().len(), 0);
        assert_eq!(in_capsule_data(&data, 101, 0), Err(SglError::Offset { offset: 101, available_bytes: 100 }));
        let too_long = SglError::Length { offset: 1, length: 100, available_bytes: 100 };
        assert_eq!(in_capsule_data(&data, 1, 100), Err(too_long));
        assert_eq!(too_long.status().to_wire(), 0x801E);
        let wrap = in_capsule_data(&data, u64::MAX, u32::MAX).unwrap_err();
        assert_eq!(wrap.status().to_wire(), 0x802C);
    }

    #[test]
    fn a_segment_is_whole_descriptors_up_to_the_limit() {
        let one = SglDescriptor::keyed(4096, 512, Rkey::new(9), false).unwrap();
        let bytes = [*one.as_bytes(), *one.as_bytes(), [0; 16]].concat();
        let keyed = Sgl::Keyed { address: 4096, length: 512, key: Rkey::new(9), invalidate: false };
        let parsed: Vec<_> = segment(&bytes, 0, 48, 3).unwrap().collect();
        assert_eq!(parsed, [Ok(keyed), Ok(keyed), Err(SglError::Type(0))]);
        assert_eq!(segment(&bytes, 0, 48, 2).err(), Some(SglError::TooManyDescriptors { count: 3, limit: 2 }));
        assert_eq!(segment(&bytes, 0, 0, 3).err(), Some(SglError::SegmentLength { length: 0 }));
        assert_eq!(segment(&bytes, 0, 17, 3).err(), Some(SglError::SegmentLength { length: 17 }));
        assert!(matches!(segment(&bytes, 16, 48, 3), Err(SglError::Length { .. })));
    }
}
