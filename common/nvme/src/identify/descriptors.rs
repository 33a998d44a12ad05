//! Namespace Identification Descriptor List (CNS 03h).

use std::fmt;

use uuid::Uuid;

use super::LEN_BYTES;
use crate::Truncated;
use crate::sqe::Csi;

/// Namespace Globally Unique Identifier (NGUID), 16 bytes as they are written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nguid(pub [u8; 16]);

/// IEEE Extended Unique Identifier (EUI64), 8 bytes as they are written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Eui64(pub [u8; 8]);

macro_rules! hex_identifier {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

hex_identifier!(Nguid);
hex_identifier!(Eui64);

/// What identifies a namespace through every controller and across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct NamespaceIdentifiers {
    /// IEEE Extended Unique Identifier (type 1).
    pub eui64: Option<Eui64>,
    /// Namespace Globally Unique Identifier (type 2).
    pub nguid: Option<Nguid>,
    /// Namespace UUID (type 3).
    pub uuid: Option<Uuid>,
    /// Command Set Identifier (type 4).
    pub csi: Option<Csi>,
}

/// A descriptor list that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// Fewer than 4096 bytes.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// A known descriptor with a length that is not its own.
    #[error("namespace descriptor of type {kind} at byte {offset} is {len_bytes} bytes long")]
    Length {
        /// Its type (NIDT).
        kind: u8,
        /// Its length (NIDL).
        len_bytes: u8,
        /// Where its header lies.
        offset: usize,
    },
}

const EUI64: u8 = 1;
const NGUID: u8 = 2;
const UUID: u8 = 3;
const CSI: u8 = 4;
const HEADER_LEN_BYTES: usize = 4;

impl NamespaceIdentifiers {
    /// The list; it ends with a header of zeros.
    #[must_use]
    pub fn to_wire(&self) -> [u8; LEN_BYTES] {
        let mut list = [0; LEN_BYTES];
        let mut rest = &mut list[..];
        if let Some(Eui64(id)) = self.eui64 {
            rest = put(rest, EUI64, &id);
        }
        if let Some(Nguid(id)) = self.nguid {
            rest = put(rest, NGUID, &id);
        }
        if let Some(id) = self.uuid {
            rest = put(rest, UUID, id.as_bytes());
        }
        if let Some(Csi(id)) = self.csi {
            put(rest, CSI, &[id]);
        }
        list
    }

    /// Reads the list up to a header with length zero. Types that are not known are passed over; of a type that comes twice the
    /// first counts.
    ///
    /// # Errors
    /// The list is too short, or a descriptor has a wrong length.
    pub fn from_wire(bytes: &[u8]) -> Result<Self, DescriptorError> {
        let list = bytes.get(..LEN_BYTES).ok_or(Truncated::new("descriptor list", LEN_BYTES, bytes.len()))?;
        let mut this = Self::default();
        let mut offset = 0;
        while let Some(&[kind, len_bytes, _, _, ref rest @ ..]) = list.get(offset..) {
            if len_bytes == 0 {
                break;
            }
            let wrong = DescriptorError::Length { kind, len_bytes, offset };
            let value = rest.get(..usize::from(len_bytes)).ok_or(wrong)?;
            this.take(kind, value).ok_or(wrong)?;
            offset += HEADER_LEN_BYTES + usize::from(len_bytes);
        }
        Ok(this)
    }

    /// Keeps the value of one descriptor; `None` if its length is wrong.
    fn take(&mut self, kind: u8, value: &[u8]) -> Option<()> {
        match kind {
            EUI64 => drop(self.eui64.get_or_insert(Eui64(value.try_into().ok()?))),
            NGUID => drop(self.nguid.get_or_insert(Nguid(value.try_into().ok()?))),
            UUID => drop(self.uuid.get_or_insert(Uuid::from_bytes(value.try_into().ok()?))),
            CSI => {
                let [csi] = value else { return None };
                self.csi.get_or_insert(Csi(*csi));
            }
            _ => {}
        }
        Some(())
    }

    /// Whether there is anything that identifies the namespace beyond its [`Nsid`](crate::Nsid).
    #[must_use]
    pub const fn is_identified(&self) -> bool {
        self.eui64.is_some() || self.nguid.is_some() || self.uuid.is_some()
    }
}

fn put<'a>(list: &'a mut [u8], kind: u8, value: &[u8]) -> &'a mut [u8] {
    let (descriptor, rest) = list.split_at_mut(HEADER_LEN_BYTES + value.len());
    descriptor[0] = kind;
    descriptor[1] = u8::try_from(value.len()).expect("no identifier is longer than 16 bytes");
    descriptor[HEADER_LEN_BYTES..].copy_from_slice(value);
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> NamespaceIdentifiers {
        NamespaceIdentifiers {
            eui64: Some(Eui64([1, 2, 3, 4, 5, 6, 7, 8])),
            nguid: Some(Nguid([0xAB; 16])),
            uuid: Some(Uuid::from_u128(0x11111111_2222_3333_4444_555555555555)),
            csi: Some(Csi::NVM),
        }
    }

    #[test]
    fn lies_on_the_wire_as_specified() {
        let list = all().to_wire();
        assert_eq!(list[..12], [1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(list[12..18], [2, 16, 0, 0, 0xAB, 0xAB]);
        assert_eq!(list[32..38], [3, 16, 0, 0, 0x11, 0x11]);
        assert_eq!(list[52..58], [4, 1, 0, 0, 0, 0]);
        assert_eq!(NamespaceIdentifiers::from_wire(&list), Ok(all()));
        assert_eq!(NamespaceIdentifiers::from_wire(&[0; 4096]), Ok(NamespaceIdentifiers::default()));
        assert!(matches!(NamespaceIdentifiers::from_wire(&list[..4095]), Err(DescriptorError::Truncated(_))));
    }

    #[test]
    fn unknown_types_are_passed_over_and_wrong_lengths_are_errors() {
        let mut list = [0; 4096];
        list[..8].copy_from_slice(&[9, 4, 0, 0, 1, 2, 3, 4]);
        list[8..13].copy_from_slice(&[4, 1, 0, 0, 2]);
        list[13..18].copy_from_slice(&[4, 1, 0, 0, 1]);
        assert_eq!(NamespaceIdentifiers::from_wire(&list).unwrap().csi, Some(Csi::ZONED));
        list[9] = 2;
        assert_eq!(NamespaceIdentifiers::from_wire(&list), Err(DescriptorError::Length { kind: 4, len_bytes: 2, offset: 8 }));
    }

    #[test]
    fn a_descriptor_may_end_with_the_list_but_not_beyond() {
        let mut list = [0; 4096];
        for chunk in list.as_chunks_mut::<128>().0 {
            chunk[..2].copy_from_slice(&[200, 124]);
        }
        assert_eq!(NamespaceIdentifiers::from_wire(&list), Ok(NamespaceIdentifiers::default()));
        list[4096 - 127] = 125;
        assert_eq!(NamespaceIdentifiers::from_wire(&list), Err(DescriptorError::Length { kind: 200, len_bytes: 125, offset: 4096 - 128 }));
    }
}
