//! Completion queue entries: the response capsule.

use std::fmt;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::{u32_field, with_field};
use crate::macros::wire;
use crate::{Cid, Qid, Sqhd, Status};

/// Completion queue entry (CQE), 16 bytes; on fabrics the whole response capsule.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Cqe {
    result: U64,
    sqhd: U16,
    sqid: U16,
    cid: U16,
    status: U16,
}

wire!(Cqe, 16, { result: 0, sqhd: 8, sqid: 10, cid: 12, status: 14 });

impl Cqe {
    /// The completion of command `cid` of queue `sqid`, with a result of zero.
    #[must_use]
    pub const fn new(cid: Cid, sqid: Qid, sqhd: Sqhd, status: Status) -> Self {
        Self {
            result: U64::ZERO,
            sqhd: U16::new(sqhd.get()),
            sqid: U16::new(sqid.get()),
            cid: U16::new(cid.get()),
            status: U16::new(status.to_wire()),
        }
    }

    /// The same with all eight bytes of the command-specific result.
    #[must_use]
    pub const fn with_result(mut self, result: u64) -> Self {
        self.result = U64::new(result);
        self
    }

    /// The same with the first dword of the command-specific result.
    #[must_use]
    pub const fn with_dw0(self, dw0: u32) -> Self {
        let result = with_field(self.result.get(), 31, 0, dw0 as u64);
        self.with_result(result)
    }

    /// The same with another submission queue head, as it is known only when the completion is sent.
    #[must_use]
    pub const fn with_sqhd(mut self, sqhd: Sqhd) -> Self {
        self.sqhd = U16::new(sqhd.get());
        self
    }

    /// Command-specific result, dwords 0 and 1.
    #[must_use]
    pub const fn result(&self) -> u64 {
        self.result.get()
    }

    /// Command-specific result, dword 0.
    #[must_use]
    pub const fn dw0(&self) -> u32 {
        u32_field(self.result.get(), 31, 0)
    }

    /// Submission queue head pointer (SQHD).
    #[must_use]
    pub const fn sqhd(&self) -> Sqhd {
        Sqhd::new(self.sqhd.get())
    }

    /// Submission queue identifier (SQID).
    #[must_use]
    pub const fn sqid(&self) -> Qid {
        Qid::new(self.sqid.get())
    }

    /// Command identifier (CID).
    #[must_use]
    pub const fn cid(&self) -> Cid {
        Cid::new(self.cid.get())
    }

    /// Status field, bits 15:1 of its word.
    #[must_use]
    pub const fn status(&self) -> Status {
        Status::from_wire(self.status.get())
    }
}

impl fmt::Debug for Cqe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cqe")
            .field("cid", &self.cid())
            .field("status", &self.status())
            .field("result", &format_args!("{:#x}", self.result()))
            .field("sqid", &self.sqid())
            .field("sqhd", &self.sqhd())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StatusCode;

    #[test]
    fn lies_on_the_wire_as_specified() {
        let cqe = Cqe::new(Cid::new(0x2016), Qid::new(3), Sqhd::new(0x19), StatusCode::INVALID_FIELD.do_not_retry())
            .with_result(0xAABB_CCDD_1122_3344)
            .with_dw0(0x5566_7788);
        let bytes = [0x88, 0x77, 0x66, 0x55, 0xDD, 0xCC, 0xBB, 0xAA, 0x19, 0, 3, 0, 0x16, 0x20, 0x04, 0x80];
        assert_eq!(cqe.as_bytes(), &bytes);
        assert_eq!(Cqe::read_from(&bytes), Ok(cqe));
        assert_eq!(cqe.dw0(), 0x5566_7788);
        assert_eq!(cqe.with_sqhd(Sqhd::FLOW_CONTROL_DISABLED).sqhd().get(), 0xFFFF);
    }

    #[test]
    fn rejects_fewer_than_16_bytes() {
        assert!(Cqe::read_from(&[0; 16]).is_ok());
        assert_eq!(Cqe::read_from(&[0; 15]).unwrap_err().to_string(), "Cqe needs 16 bytes, got 15");
    }
}
