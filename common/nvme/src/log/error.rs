//! Error Information log.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::TransportType;
use crate::bits::{u8_field, with_field_u16};
use crate::macros::{debug_by, wire};
use crate::{Cid, Lba, Nsid, Qid, Status};

/// Where in the command the fault lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParameterLocation {
    /// Byte of the command, 0 to 63: bits 7:0.
    pub byte: u8,
    /// Bit in the byte, 0 to 7: bits 10:8.
    pub bit: u8,
}

/// Error log entry, 64 bytes; the newest comes first in the log.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ErrorEntry {
    count: U64,
    sqid: U16,
    cid: U16,
    status: U16,
    parameter: U16,
    lba: U64,
    nsid: U32,
    vendor: u8,
    trtype: TransportType,
    reserved30: [u8; 2],
    command_specific: U64,
    transport_specific: U16,
    reserved42: [u8; 22],
}

wire!(ErrorEntry, 64, {
    count: 0, sqid: 8, cid: 10, status: 12, parameter: 14, lba: 16, nsid: 24, vendor: 28, trtype: 29, command_specific: 32,
    transport_specific: 40, reserved42: 42,
});

impl ErrorEntry {
    /// Error number `count`, counted from 1: command `cid` of queue `sqid` failed with `status`.
    #[must_use]
    pub const fn new(count: u64, sqid: Qid, cid: Cid, status: Status) -> Self {
        Self {
            count: U64::new(count),
            sqid: U16::new(sqid.get()),
            cid: U16::new(cid.get()),
            status: U16::new(status.to_wire()),
            parameter: U16::new(0xFFFF),
            lba: U64::ZERO,
            nsid: U32::ZERO,
            vendor: 0,
            trtype: TransportType::RDMA,
            reserved30: [0; 2],
            command_specific: U64::ZERO,
            transport_specific: U16::ZERO,
            reserved42: [0; 22],
        }
    }

    /// The same for a fault at a field of the command.
    ///
    /// # Panics
    /// The bit is above 7.
    #[must_use]
    pub const fn at_parameter(mut self, location: ParameterLocation) -> Self {
        self.parameter = U16::new(with_field_u16(location.byte as u16, 10, 8, location.bit as u16));
        self
    }

    /// The same for a fault at a block of a namespace.
    #[must_use]
    pub const fn at_block(mut self, nsid: Nsid, lba: Lba) -> Self {
        self.nsid = U32::new(nsid.get());
        self.lba = U64::new(lba.get());
        self
    }

    /// Error Count: which error this is, counted from 1; 0 means that the entry is empty.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count.get()
    }

    /// Whether there is nothing in the entry.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count.get() == 0
    }

    /// Submission Queue ID.
    #[must_use]
    pub const fn sqid(&self) -> Qid {
        Qid::new(self.sqid.get())
    }

    /// Command ID.
    #[must_use]
    pub const fn cid(&self) -> Cid {
        Cid::new(self.cid.get())
    }

    /// Status Field of the completion.
    #[must_use]
    pub const fn status(&self) -> Status {
        Status::from_wire(self.status.get())
    }

    /// Parameter Error Location; `None` if the fault is not at a field (all ones).
    #[must_use]
    pub const fn parameter(&self) -> Option<ParameterLocation> {
        match self.parameter.get() {
            0xFFFF => None,
            raw => Some(ParameterLocation { byte: u8_field(raw as u64, 7, 0), bit: u8_field(raw as u64, 10, 8) }),
        }
    }

    /// First block with the fault.
    #[must_use]
    pub const fn lba(&self) -> Lba {
        Lba::new(self.lba.get())
    }

    /// Namespace.
    #[must_use]
    pub const fn nsid(&self) -> Nsid {
        Nsid::new(self.nsid.get())
    }

    /// Transport Type (TRTYPE).
    #[must_use]
    pub const fn transport(&self) -> TransportType {
        self.trtype
    }
}

debug_by!(ErrorEntry { count, sqid, cid, status, parameter, nsid, lba });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StatusCode;

    #[test]
    fn lies_on_the_wire_as_specified() {
        let entry = ErrorEntry::new(0x11, Qid::new(2), Cid::new(0x3344), StatusCode::INVALID_FIELD.do_not_retry());
        assert_eq!(entry.parameter(), None);
        let entry = entry.at_parameter(ParameterLocation { byte: 40, bit: 7 }).at_block(Nsid::new(5), Lba::new(6));
        let bytes = entry.as_bytes();
        assert_eq!(bytes[..17], [0x11, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0x44, 0x33, 0x04, 0x80, 40, 7, 6]);
        assert_eq!((bytes[24], bytes[29]), (5, 1));
        assert_eq!(entry.parameter(), Some(ParameterLocation { byte: 40, bit: 7 }));
        assert!(ErrorEntry::zeroed().is_empty());
    }
}
