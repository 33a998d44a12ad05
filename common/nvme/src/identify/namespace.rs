//! Identify Namespace.

use std::fmt;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Eui64, NamespaceFeatures, NamespaceSharing, Nguid};
use crate::BlockSize;
use crate::bits::{bit, u8_field, with_field_u8};
use crate::macros::wire;

/// LBA Format (LBAF), 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LbaFormat {
    /// Metadata Size (MS), in bytes.
    pub ms: U16,
    /// LBA Data Size (LBADS), a power of two of bytes; 0 means that the format is not available.
    pub lbads: u8,
    /// Relative Performance (RP): bits 1:0, 0 is best.
    pub rp: u8,
}

wire!(LbaFormat, 4, { ms: 0, lbads: 2, rp: 3 });

impl LbaFormat {
    /// Blocks of `size` without metadata.
    #[must_use]
    pub const fn new(size: BlockSize) -> Self {
        Self { ms: U16::ZERO, lbads: size.log2(), rp: 0 }
    }
}

impl fmt::Debug for LbaFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LbaFormat(2^{} bytes, {} bytes of metadata)", self.lbads, self.ms.get())
    }
}

/// Identify Namespace (CNS 00h). All zero means that the namespace is not there.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Namespace Size (NSZE), in logical blocks.
    pub nsze: U64,
    /// Namespace Capacity (NCAP), in logical blocks; 0 means that the namespace is not there.
    pub ncap: U64,
    /// Namespace Utilization (NUSE), in logical blocks.
    pub nuse: U64,
    /// Namespace Features (NSFEAT).
    pub nsfeat: NamespaceFeatures,
    nlbaf: u8,
    flbas: u8,
    /// Metadata Capabilities (MC).
    pub mc: u8,
    /// End-to-end Data Protection Capabilities (DPC).
    pub dpc: u8,
    /// End-to-end Data Protection Type Settings (DPS): bits 2:0 type.
    pub dps: u8,
    /// Namespace Multi-path I/O and Namespace Sharing Capabilities (NMIC).
    pub nmic: NamespaceSharing,
    /// Reservation Capabilities (RESCAP).
    pub rescap: u8,
    /// Format Progress Indicator (FPI).
    pub fpi: u8,
    dlfeat: u8,
    /// Namespace Atomic Write Unit Normal (NAWUN), 0's-based blocks.
    pub nawun: U16,
    /// Namespace Atomic Write Unit Power Fail (NAWUPF), 0's-based blocks.
    pub nawupf: U16,
    /// Namespace Atomic Compare and Write Unit (NACWU), 0's-based blocks.
    pub nacwu: U16,
    /// Namespace Atomic Boundary Size Normal (NABSN), 0's-based blocks.
    pub nabsn: U16,
    /// Namespace Atomic Boundary Offset (NABO), in blocks.
    pub nabo: U16,
    /// Namespace Atomic Boundary Size Power Fail (NABSPF), 0's-based blocks.
    pub nabspf: U16,
    /// Namespace Optimal I/O Boundary (NOIOB), in blocks.
    pub noiob: U16,
    /// NVM Capacity (NVMCAP), in bytes.
    pub nvmcap: U128,
    /// Namespace Preferred Write Granularity (NPWG), 0's-based blocks.
    pub npwg: U16,
    /// Namespace Preferred Write Alignment (NPWA), 0's-based blocks.
    pub npwa: U16,
    /// Namespace Preferred Deallocate Granularity (NPDG), 0's-based blocks.
    pub npdg: U16,
    /// Namespace Preferred Deallocate Alignment (NPDA), 0's-based blocks.
    pub npda: U16,
    /// Namespace Optimal Write Size (NOWS), 0's-based blocks.
    pub nows: U16,
    reserved74: [u8; 18],
    /// ANA Group Identifier (ANAGRPID).
    pub anagrpid: U32,
    reserved96: [u8; 3],
    nsattr: u8,
    /// NVM Set Identifier (NVMSETID).
    pub nvmsetid: U16,
    /// Endurance Group Identifier (ENDGID).
    pub endgid: U16,
    nguid: [u8; 16],
    eui64: [u8; 8],
    /// LBA Format Support (LBAF).
    pub lbaf: [LbaFormat; 64],
    vendor: [u8; 3712],
}

wire!(IdentifyNamespace, 4096, {
    nsze: 0, ncap: 8, nuse: 16, nsfeat: 24, nlbaf: 25, flbas: 26, mc: 27, dpc: 28, dps: 29, nmic: 30, rescap: 31, fpi: 32,
    dlfeat: 33, nawun: 34, nawupf: 36, nacwu: 38, nabsn: 40, nabo: 42, nabspf: 44, noiob: 46, nvmcap: 48, npwg: 64, npwa: 66,
    npdg: 68, npda: 70, nows: 72, anagrpid: 92, nsattr: 99, nvmsetid: 100, endgid: 102, nguid: 104, eui64: 120, lbaf: 128,
    vendor: 384,
});

/// Why a host cannot use a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceError {
    /// It is not there.
    #[error("the namespace does not exist or is not attached")]
    Absent,
    /// Its blocks are of an odd size.
    #[error("the namespace has blocks of 2^{0} bytes; a power from 9 to 31 is needed")]
    BlockSize(u8),
    /// Its blocks have metadata.
    #[error("each block of the namespace has {0} bytes of metadata, which is not supported")]
    Metadata(u16),
}

impl IdentifyNamespace {
    /// A namespace of `size_blocks` blocks of `block_size`, all of them there, with nothing else to it.
    #[must_use]
    pub fn new(size_blocks: u64, block_size: BlockSize) -> Self {
        let mut this = Self::zeroed();
        this.nsze = U64::new(size_blocks);
        this.ncap = U64::new(size_blocks);
        this.nuse = U64::new(size_blocks);
        this.nvmcap = U128::new(u128::from(size_blocks) * u128::from(block_size.bytes()));
        this.lbaf[0] = LbaFormat::new(block_size);
        this
    }

    /// Whether the namespace is there.
    #[must_use]
    pub const fn is_present(&self) -> bool {
        self.ncap.get() != 0
    }

    /// Size in logical blocks (NSZE).
    #[must_use]
    pub const fn size_blocks(&self) -> u64 {
        self.nsze.get()
    }

    /// Number of LBA Formats (NLBAF), 0's-based on the wire.
    #[must_use]
    pub const fn format_count(&self) -> u16 {
        self.nlbaf as u16 + 1
    }

    /// Formatted LBA Size (FLBAS): the index of the format in use, bits 3:0 and, above them, bits 6:5.
    #[must_use]
    pub fn format_index(&self) -> usize {
        let flbas = u64::from(self.flbas);
        let low = u8_field(flbas, 3, 0);
        usize::from(with_field_u8(low, 5, 4, u8_field(flbas, 6, 5)))
    }

    /// The format in use.
    #[must_use]
    pub fn format(&self) -> LbaFormat {
        self.lbaf[self.format_index()]
    }

    /// The block size of a namespace that can be used as a plain block device.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn block_size(&self) -> Result<BlockSize, NamespaceError> {
        if !self.is_present() {
            return Err(NamespaceError::Absent);
        }
        let LbaFormat { ms, lbads, .. } = self.format();
        match ms.get() {
            0 => BlockSize::from_log2(lbads).ok_or(NamespaceError::BlockSize(lbads)),
            metadata => Err(NamespaceError::Metadata(metadata)),
        }
    }

    /// Whether deallocated blocks read as zeros (DLFEAT bits 2:0 are 001b).
    #[must_use]
    pub const fn deallocated_reads_zeroes(&self) -> bool {
        u8_field(self.dlfeat as u64, 2, 0) == 1
    }

    /// Whether Write Zeroes takes the Deallocate bit (DLFEAT bit 3).
    #[must_use]
    pub const fn write_zeroes_may_deallocate(&self) -> bool {
        bit(self.dlfeat as u64, 3)
    }

    /// Sets DLFEAT: whether deallocated blocks read as zeros, and whether Write Zeroes takes the Deallocate bit.
    pub const fn set_deallocate_features(&mut self, reads_zeroes: bool, write_zeroes_may_deallocate: bool) {
        let dlfeat = with_field_u8(self.dlfeat, 2, 0, reads_zeroes as u8);
        self.dlfeat = with_field_u8(dlfeat, 3, 3, write_zeroes_may_deallocate as u8);
    }

    /// Whether the namespace is write protected (NSATTR bit 0).
    #[must_use]
    pub const fn is_write_protected(&self) -> bool {
        bit(self.nsattr as u64, 0)
    }

    /// Sets NSATTR bit 0.
    pub const fn set_write_protected(&mut self, yes: bool) {
        self.nsattr = with_field_u8(self.nsattr, 0, 0, yes as u8);
    }

    /// Namespace Globally Unique Identifier (NGUID); zero is none.
    #[must_use]
    pub fn nguid(&self) -> Option<Nguid> {
        Some(Nguid(self.nguid)).filter(|id| *id != Nguid::default())
    }

    /// IEEE Extended Unique Identifier (EUI64); zero is none.
    #[must_use]
    pub fn eui64(&self) -> Option<Eui64> {
        Some(Eui64(self.eui64)).filter(|id| *id != Eui64::default())
    }

    /// Sets NGUID.
    pub const fn set_nguid(&mut self, nguid: Nguid) {
        self.nguid = nguid.0;
    }

    /// Sets EUI64.
    pub const fn set_eui64(&mut self, eui64: Eui64) {
        self.eui64 = eui64.0;
    }
}

impl fmt::Debug for IdentifyNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentifyNamespace")
            .field("nsze", &self.nsze.get())
            .field("ncap", &self.ncap.get())
            .field("nuse", &self.nuse.get())
            .field("format", &self.format())
            .field("nsfeat", &self.nsfeat)
            .field("nmic", &self.nmic)
            .field("deallocated_reads_zeroes", &self.deallocated_reads_zeroes())
            .field("write_protected", &self.is_write_protected())
            .field("anagrpid", &self.anagrpid.get())
            .field("nguid", &self.nguid())
            .field("eui64", &self.eui64())
            .finish_non_exhaustive()
    }
}

/// I/O Command Set Independent Identify Namespace (CNS 08h).
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IndependentNamespace {
    /// Namespace Features (NSFEAT).
    pub nsfeat: NamespaceFeatures,
    /// Namespace Multi-path I/O and Namespace Sharing Capabilities (NMIC).
    pub nmic: NamespaceSharing,
    /// Reservation Capabilities (RESCAP).
    pub rescap: u8,
    /// Format Progress Indicator (FPI).
    pub fpi: u8,
    /// ANA Group Identifier (ANAGRPID).
    pub anagrpid: U32,
    nsattr: u8,
    reserved9: u8,
    /// NVM Set Identifier (NVMSETID).
    pub nvmsetid: U16,
    /// Endurance Group Identifier (ENDGID).
    pub endgid: U16,
    nstat: u8,
    reserved15: [u8; 4081],
}

wire!(IndependentNamespace, 4096, {
    nsfeat: 0, nmic: 1, rescap: 2, fpi: 3, anagrpid: 4, nsattr: 8, nvmsetid: 10, endgid: 12, nstat: 14, reserved15: 15,
});

impl IndependentNamespace {
    /// What `namespace` says, and whether it is ready.
    #[must_use]
    pub fn new(namespace: &IdentifyNamespace, ready: bool) -> Self {
        let mut this = Self::zeroed();
        this.nsfeat = namespace.nsfeat.intersection(NamespaceFeatures::IDS_NOT_REUSED);
        this.nmic = namespace.nmic;
        this.rescap = namespace.rescap;
        this.fpi = namespace.fpi;
        this.anagrpid = namespace.anagrpid;
        this.nsattr = namespace.nsattr;
        this.nvmsetid = namespace.nvmsetid;
        this.endgid = namespace.endgid;
        this.nstat = u8::from(ready);
        this
    }

    /// Whether the namespace is ready (NSTAT bit 0).
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        bit(self.nstat as u64, 0)
    }

    /// Whether the namespace is write protected (NSATTR bit 0).
    #[must_use]
    pub const fn is_write_protected(&self) -> bool {
        bit(self.nsattr as u64, 0)
    }
}

impl fmt::Debug for IndependentNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndependentNamespace")
            .field("nsfeat", &self.nsfeat)
            .field("nmic", &self.nmic)
            .field("anagrpid", &self.anagrpid.get())
            .field("ready", &self.is_ready())
            .field("write_protected", &self.is_write_protected())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_index_has_its_high_bits_apart() {
        let mut ns = IdentifyNamespace::new(100, BlockSize::B512);
        assert_eq!(ns.format_index(), 0);
        ns.flbas = 0b0111_1010;
        assert_eq!(ns.format_index(), 0b11_1010);
        ns.flbas = 0xFF;
        assert_eq!(ns.format_index(), 63);
        assert_eq!(ns.format().lbads, 0);
    }

    #[test]
    fn block_size_is_that_of_a_plain_block_device() {
        let mut ns = IdentifyNamespace::new(100, BlockSize::B4096);
        assert_eq!(ns.block_size(), Ok(BlockSize::B4096));
        assert_eq!(ns.nvmcap.get(), 409_600);
        ns.lbaf[0].ms = U16::new(8);
        assert_eq!(ns.block_size(), Err(NamespaceError::Metadata(8)));
        ns.lbaf[0] = LbaFormat { lbads: 8, ..LbaFormat::new(BlockSize::B512) };
        assert_eq!(ns.block_size(), Err(NamespaceError::BlockSize(8)));
        assert_eq!(IdentifyNamespace::zeroed().block_size(), Err(NamespaceError::Absent));
    }

    #[test]
    fn flags_lie_where_they_belong() {
        let mut ns = IdentifyNamespace::new(1, BlockSize::B512);
        ns.set_write_protected(true);
        ns.set_deallocate_features(true, true);
        assert_eq!((ns.as_bytes()[99], ns.as_bytes()[33]), (1, 9));
        assert!(ns.deallocated_reads_zeroes() && ns.write_zeroes_may_deallocate() && ns.is_write_protected());
        let independent = IndependentNamespace::new(&ns, true);
        assert_eq!((independent.as_bytes()[8], independent.as_bytes()[14]), (1, 1));
        assert!(independent.is_ready() && independent.is_write_protected());
        assert_eq!(ns.nguid(), None);
        ns.set_nguid(Nguid([1; 16]));
        ns.set_eui64(Eui64([2; 8]));
        assert_eq!((ns.nguid(), ns.eui64()), (Some(Nguid([1; 16])), Some(Eui64([2; 8]))));
        assert_eq!(ns.as_bytes()[103..=128], [&[0][..], &[1; 16], &[2; 8], &[0]].concat());
    }
}
