//! MPA, DDP and RDMAP headers as they lie on the wire; every field is big-endian.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::number::{Msn, Opcode, QueueNumber, Stag};

/// Bytes of the ULPDU_Length field, which does not count itself.
pub(crate) const LENGTH_FIELD: usize = 2;
/// Bytes of the CRC field at the end of every FPDU.
pub(crate) const CRC_FIELD: usize = 4;

/// Zero bytes between a ULPDU and its CRC: they make length field, ULPDU and pad a multiple of 4.
pub(crate) const fn pad_length(ulpdu_length: usize) -> usize {
    (LENGTH_FIELD + ulpdu_length).wrapping_neg() & 3
}

/// First control byte of a DDP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub(crate) struct DdpControl(pub(crate) u8);

impl DdpControl {
    const TAGGED: u8 = 0x80;
    const LAST: u8 = 0x40;
    const VERSION_MASK: u8 = 0x03;
    const VERSION: u8 = 0x01;

    pub(crate) const fn new(tagged: bool, last: bool) -> Self {
        let tagged = if tagged { Self::TAGGED } else { 0 };
        let last = if last { Self::LAST } else { 0 };
        Self(tagged | last | Self::VERSION)
    }

    /// T, bit 7: the segment names its place by STag and tagged offset.
    pub(crate) const fn is_tagged(self) -> bool {
        self.0 & Self::TAGGED != 0
    }

    /// L, bit 6: the last segment of its message.
    pub(crate) const fn is_last(self) -> bool {
        self.0 & Self::LAST != 0
    }

    /// DV, bits 1:0.
    pub(crate) const fn version(self) -> u8 {
        self.0 & Self::VERSION_MASK
    }

    pub(crate) const fn is_supported(self) -> bool {
        self.version() == Self::VERSION
    }
}

/// Second control byte of a DDP segment, which belongs to RDMAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub(crate) struct RdmapControl(pub(crate) u8);

impl RdmapControl {
    const VERSION: u8 = 1;

    pub(crate) const fn new(opcode: Opcode) -> Self {
        Self((Self::VERSION << 6) | opcode.0)
    }

    /// RV, bits 7:6.
    pub(crate) const fn version(self) -> u8 {
        self.0 >> 6
    }

    pub(crate) const fn is_supported(self) -> bool {
        self.version() == Self::VERSION
    }

    /// Opcode, bits 3:0.
    pub(crate) const fn opcode(self) -> Opcode {
        Opcode(self.0 & 0x0f)
    }
}

/// FPDU start of a tagged segment: RDMA Write and Read Response.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct TaggedHeader {
    pub(crate) ulpdu_length: U16,
    pub(crate) ddp: DdpControl,
    pub(crate) rdmap: RdmapControl,
    pub(crate) stag: U32,
    pub(crate) tagged_offset: U64,
}

/// FPDU start of an untagged segment: the Send family and Terminate.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct UntaggedHeader {
    pub(crate) ulpdu_length: U16,
    pub(crate) ddp: DdpControl,
    pub(crate) rdmap: RdmapControl,
    /// STag to invalidate for the Sends that carry one, otherwise reserved.
    pub(crate) invalidate: U32,
    pub(crate) queue: U32,
    pub(crate) msn: U32,
    pub(crate) message_offset: U32,
}

impl TaggedHeader {
    /// A header whose ULPDU_Length is not filled in yet.
    pub(crate) fn new(last: bool, opcode: Opcode, stag: Stag, to: u64) -> Self {
        Self {
            ulpdu_length: U16::ZERO,
            ddp: DdpControl::new(true, last),
            rdmap: RdmapControl::new(opcode),
            stag: stag.0.into(),
            tagged_offset: to.into(),
        }
    }
}

impl UntaggedHeader {
    /// A header whose ULPDU_Length is not filled in yet.
    pub(crate) fn new(last: bool, opcode: Opcode, invalidate: Stag, queue: QueueNumber, msn: Msn, offset: u32) -> Self {
        Self {
            ulpdu_length: U16::ZERO,
            ddp: DdpControl::new(false, last),
            rdmap: RdmapControl::new(opcode),
            invalidate: invalidate.0.into(),
            queue: queue.0.into(),
            msn: msn.0.into(),
            message_offset: offset.into(),
        }
    }
}

/// The RDMAP header of an RDMA Read Request, behind the untagged header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ReadHeader {
    pub(crate) sink_stag: U32,
    pub(crate) sink_offset: U64,
    pub(crate) size: U32,
    pub(crate) source_stag: U32,
    pub(crate) source_offset: U64,
}

/// A whole RDMA Read Request without its CRC.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ReadRequest {
    pub(crate) untagged: UntaggedHeader,
    pub(crate) read: ReadHeader,
}

/// The RDMAP header of a Terminate, behind the untagged header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct TerminateControl {
    /// Layer in bits 7:4, error type in bits 3:0.
    pub(crate) layer_and_type: u8,
    pub(crate) code: u8,
    /// Which parts of the terminated segment follow: M, bit 7; D, bit 6; R, bit 5.
    pub(crate) headers: u8,
    pub(crate) reserved: u8,
}

/// MPA start-up frame up to its private data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct StartupHeader {
    pub(crate) key: [u8; 16],
    pub(crate) flags: u8,
    pub(crate) revision: u8,
    pub(crate) private_data_length: U16,
}

/// The enhanced connection word (RFC 6581), the first private data of a frame with the S flag.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct EnhancedWord {
    /// A, bit 15; B, bit 14; IRD, bits 13:0.
    pub(crate) ird: U16,
    /// C, bit 15; D, bit 14; ORD, bits 13:0.
    pub(crate) ord: U16,
}

pub(crate) const TAGGED_HEADER: usize = size_of::<TaggedHeader>();
pub(crate) const UNTAGGED_HEADER: usize = size_of::<UntaggedHeader>();
pub(crate) const READ_HEADER: usize = size_of::<ReadHeader>();
pub(crate) const READ_REQUEST: usize = size_of::<ReadRequest>();
pub(crate) const TERMINATE_CONTROL: usize = size_of::<TerminateControl>();
pub(crate) const STARTUP_HEADER: usize = size_of::<StartupHeader>();
pub(crate) const ENHANCED_WORD: usize = size_of::<EnhancedWord>();

const _: () = {
    assert!(TAGGED_HEADER == 16);
    assert!(UNTAGGED_HEADER == 20);
    assert!(READ_HEADER == 28);
    assert!(READ_REQUEST == 48);
    assert!(TERMINATE_CONTROL == 4);
    assert!(STARTUP_HEADER == 20);
    assert!(ENHANCED_WORD == 4);
    assert!(std::mem::offset_of!(TaggedHeader, tagged_offset) == 2 + 6);
    assert!(std::mem::offset_of!(UntaggedHeader, queue) == 2 + 6);
    assert!(std::mem::offset_of!(UntaggedHeader, msn) == 2 + 10);
    assert!(std::mem::offset_of!(UntaggedHeader, message_offset) == 2 + 14);
    assert!(UNTAGGED_HEADER + std::mem::offset_of!(ReadHeader, sink_offset) == 2 + 22);
    assert!(UNTAGGED_HEADER + std::mem::offset_of!(ReadHeader, size) == 2 + 30);
    assert!(UNTAGGED_HEADER + std::mem::offset_of!(ReadHeader, source_stag) == 2 + 34);
    assert!(UNTAGGED_HEADER + std::mem::offset_of!(ReadHeader, source_offset) == 2 + 38);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pad_completes_a_multiple_of_four() {
        let pads: Vec<_> = [14, 15, 16, 17, 18, 82, 0x2a].map(pad_length).to_vec();
        assert_eq!(pads, [0, 3, 2, 1, 0, 0, 0]);
    }

    #[test]
    fn control_bytes_are_those_of_rfc_5040_and_5041() {
        assert_eq!(DdpControl::new(false, true).0, 0x41);
        assert_eq!(DdpControl::new(false, false).0, 0x01);
        assert_eq!(DdpControl::new(true, true).0, 0xc1);
        assert_eq!(DdpControl::new(true, false).0, 0x81);
        assert_eq!(RdmapControl::new(Opcode::WRITE).0, 0x40);
        assert_eq!(RdmapControl::new(Opcode::TERMINATE).0, 0x47);
        assert_eq!(RdmapControl(0x7f).opcode(), Opcode(0x0f));
    }
}
