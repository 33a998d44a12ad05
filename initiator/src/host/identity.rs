//! What makes a volume the same volume after a reconnect.

use std::fmt;

use godwit_nvme::{BlockSize, Eui64, Nguid, Nsid};
use uuid::Uuid;

/// The identity of a namespace: its ids, block size and size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeIdentity {
    /// Namespace identifier at the target.
    pub nsid: Nsid,
    /// Namespace Globally Unique Identifier.
    pub nguid: Option<Nguid>,
    /// IEEE Extended Unique Identifier.
    pub eui64: Option<Eui64>,
    /// Namespace UUID.
    pub uuid: Option<Uuid>,
    /// Size of a logical block.
    pub block_size: BlockSize,
    /// Size in logical blocks.
    pub size_blocks: u64,
}

/// Another volume answers under the name of the one that we had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the target now has another volume there: it was {was}, it is {is}")]
pub struct IdentityChange {
    /// The volume that we had.
    pub was: Box<VolumeIdentity>,
    /// The one that answers.
    pub is: Box<VolumeIdentity>,
}

impl VolumeIdentity {
    /// Whether `now` is the same volume, of the same size or grown.
    ///
    /// # Errors
    ///
    /// Both volumes, when it is not.
    pub fn check_same(&self, now: &Self) -> Result<(), IdentityChange> {
        let Self { nsid, nguid, eui64, uuid, block_size, size_blocks } = self;
        let same = (nsid, nguid, eui64, uuid, block_size) == (&now.nsid, &now.nguid, &now.eui64, &now.uuid, &now.block_size);
        if same && now.size_blocks >= *size_blocks {
            return Ok(());
        }
        Err(IdentityChange { was: Box::new(self.clone()), is: Box::new(now.clone()) })
    }

    /// Size in bytes; `None` when it is beyond 2^64.
    pub fn size_bytes(&self) -> Option<u64> {
        self.size_blocks.checked_mul(self.block_size.bytes().into())
    }
}

impl fmt::Display for VolumeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "namespace {}", self.nsid)?;
        if let Some(uuid) = self.uuid {
            write!(f, ", UUID {uuid}")?;
        }
        if let Some(Nguid(nguid)) = self.nguid {
            write!(f, ", NGUID {:032x}", u128::from_be_bytes(nguid))?;
        }
        if let Some(Eui64(eui64)) = self.eui64 {
            write!(f, ", EUI64 {:016x}", u64::from_be_bytes(eui64))?;
        }
        write!(f, ", {} blocks of {} bytes", self.size_blocks, self.block_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> VolumeIdentity {
        VolumeIdentity {
            nsid: Nsid::new(1),
            nguid: Some(Nguid([7; 16])),
            eui64: None,
            uuid: Some(Uuid::from_u128(9)),
            block_size: BlockSize::B4096,
            size_blocks: 1000,
        }
    }

    #[test]
    fn the_same_volume_may_have_grown_but_not_shrunk() {
        assert!(volume().check_same(&volume()).is_ok());
        assert!(volume().check_same(&VolumeIdentity { size_blocks: 1001, ..volume() }).is_ok());
        assert!(volume().check_same(&VolumeIdentity { size_blocks: 999, ..volume() }).is_err());
    }

    #[test]
    fn any_other_id_or_block_size_is_another_volume() {
        let others = [
            VolumeIdentity { nguid: Some(Nguid([8; 16])), ..volume() },
            VolumeIdentity { nguid: None, ..volume() },
            VolumeIdentity { uuid: Some(Uuid::from_u128(10)), ..volume() },
            VolumeIdentity { uuid: None, ..volume() },
            VolumeIdentity { eui64: Some(Eui64([1; 8])), ..volume() },
            VolumeIdentity { block_size: BlockSize::B512, size_blocks: 8000, ..volume() },
        ];
        for other in others {
            assert!(volume().check_same(&other).is_err(), "{other}");
        }
    }

    #[test]
    fn a_change_names_both_volumes_on_one_line() {
        let other = VolumeIdentity { uuid: None, nguid: None, size_blocks: 10, ..volume() };
        assert_eq!(
            volume().check_same(&other).unwrap_err().to_string(),
            "the target now has another volume there: it was namespace 1, UUID 00000000-0000-0000-0000-000000000009, \
             NGUID 07070707070707070707070707070707, 1000 blocks of 4096 bytes, it is namespace 1, 10 blocks of 4096 bytes"
        );
    }
}
