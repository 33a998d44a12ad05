//! Submission queue entries: the command capsule.

mod admin;
mod fabrics;
mod io;
mod opcode;

use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use self::admin::{Abort, AdminCommand, Cns, Csi, GetFeatures, GetLogPage, Identify, SetFeatures};
pub use self::fabrics::{Connect, ConnectAttributes, FabricsCommand, PropertyAccess};
pub use self::io::{DatasetManagement, DatasetManagementAttributes, IoCommand, IoControl, IoRange};
pub use self::opcode::{AdminOpcode, DataDirection, FabricsType, IoOpcode};

use crate::bits::{field, u8_field, with_field_u8, with_field_u32};
use crate::macros::wire;
use crate::{Cid, Nsid, Sgl, SglDescriptor, SglError, Status, StatusCode, Truncated};

/// Submission queue entry (SQE), 64 bytes.
///
/// In a command capsule it comes first, and in-capsule data follow it at once: see [`Sqe::split_capsule`]. A host makes one with
/// the constructor of a command and adds what it needs; a controller views one and reads the command through [`AdminCommand`],
/// [`IoCommand`] and [`FabricsCommand`].
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Sqe {
    opcode: u8,
    flags: u8,
    cid: U16,
    nsid: U32,
    cdw2: U32,
    cdw3: U32,
    mptr: U64,
    sgl: SglDescriptor,
    cdw10: U32,
    cdw11: U32,
    cdw12: U32,
    cdw13: U32,
    cdw14: U32,
    cdw15: U32,
}

wire!(Sqe, 64, {
    opcode: 0, flags: 1, cid: 2, nsid: 4, cdw2: 8, cdw3: 12, mptr: 16, sgl: 24,
    cdw10: 40, cdw11: 44, cdw12: 48, cdw13: 52, cdw14: 56, cdw15: 60,
});

/// Fused operation (FUSE), bits 1:0 of the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fuse {
    /// 00b: a command of its own.
    Normal,
    /// 01b: the first of two.
    First,
    /// 10b: the second of two.
    Second,
    /// 11b.
    Reserved,
}

/// PRP or SGL for data transfer (PSDT), bits 7:6 of the flags: 01b, SGL with a contiguous metadata buffer, is the one of fabrics.
const PSDT_SGL: u8 = 0b01;

impl Sqe {
    /// A command without data of any opcode, namespace 0 and dwords of zero; PSDT is 01b as fabrics demand.
    #[must_use]
    pub const fn new(opcode: u8, cid: Cid) -> Self {
        Self {
            opcode,
            flags: with_field_u8(0, 7, 6, PSDT_SGL),
            cid: U16::new(cid.get()),
            nsid: U32::ZERO,
            cdw2: U32::ZERO,
            cdw3: U32::ZERO,
            mptr: U64::ZERO,
            sgl: SglDescriptor::NONE,
            cdw10: U32::ZERO,
            cdw11: U32::ZERO,
            cdw12: U32::ZERO,
            cdw13: U32::ZERO,
            cdw14: U32::ZERO,
            cdw15: U32::ZERO,
        }
    }

    /// The entry of a received command capsule, and the in-capsule data after it.
    ///
    /// # Errors
    /// The capsule is shorter than an entry, which ends the connection.
    pub fn split_capsule(capsule: &[u8]) -> Result<(&Self, &[u8]), Truncated> {
        Self::ref_from_prefix(capsule).map_err(|_| Truncated::new("command capsule", Self::LEN_BYTES, capsule.len()))
    }

    /// The same for another namespace.
    #[must_use]
    pub const fn with_nsid(mut self, nsid: Nsid) -> Self {
        self.nsid = U32::new(nsid.get());
        self
    }

    /// The same under another command identifier.
    #[must_use]
    pub const fn with_cid(mut self, cid: Cid) -> Self {
        self.cid = U16::new(cid.get());
        self
    }

    /// The same with its data at `sgl`.
    #[must_use]
    pub const fn with_sgl(mut self, sgl: SglDescriptor) -> Self {
        self.sgl = sgl;
        self
    }

    /// The same as a part of a fused operation.
    #[must_use]
    pub const fn with_fuse(mut self, fuse: Fuse) -> Self {
        let bits = match fuse {
            Fuse::Normal => 0,
            Fuse::First => 1,
            Fuse::Second => 2,
            Fuse::Reserved => 3,
        };
        self.flags = with_field_u8(self.flags, 1, 0, bits);
        self
    }

    /// The opcode; what it means depends on the queue.
    #[must_use]
    pub const fn opcode(&self) -> u8 {
        self.opcode
    }

    /// The opcode, of a command of the admin queue.
    #[must_use]
    pub const fn admin_opcode(&self) -> AdminOpcode {
        AdminOpcode(self.opcode)
    }

    /// The opcode, of a command of an I/O queue.
    #[must_use]
    pub const fn io_opcode(&self) -> IoOpcode {
        IoOpcode(self.opcode)
    }

    /// Whether this is a fabrics command (opcode 7Fh).
    #[must_use]
    pub const fn is_fabrics(&self) -> bool {
        self.opcode == AdminOpcode::FABRICS.0
    }

    /// Fabrics command type (FCTYPE), byte 4.
    #[must_use]
    pub const fn fabrics_type(&self) -> FabricsType {
        FabricsType(u8_field(self.nsid.get() as u64, 7, 0))
    }

    /// Where the command's data goes, by its opcode or its fabrics command type.
    #[must_use]
    pub const fn data_direction(&self) -> DataDirection {
        if self.is_fabrics() { DataDirection::of(self.fabrics_type().0) } else { DataDirection::of(self.opcode) }
    }

    /// Fused operation (FUSE), bits 1:0 of the flags.
    #[must_use]
    pub const fn fuse(&self) -> Fuse {
        match field(self.flags as u64, 1, 0) {
            0 => Fuse::Normal,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// PRP or SGL for data transfer (PSDT), bits 7:6 of the flags.
    #[must_use]
    pub const fn psdt(&self) -> u8 {
        u8_field(self.flags as u64, 7, 6)
    }

    /// Checks what holds for each command on fabrics where fused operations are not supported: PSDT is 01b and FUSE is 00b.
    ///
    /// # Errors
    /// Invalid Field in Command, for the host not to retry.
    pub const fn check_flags(&self) -> Result<(), Status> {
        if self.psdt() == PSDT_SGL && matches!(self.fuse(), Fuse::Normal) { Ok(()) } else { Err(StatusCode::INVALID_FIELD.do_not_retry()) }
    }

    /// Command identifier (CID).
    #[must_use]
    pub const fn cid(&self) -> Cid {
        Cid::new(self.cid.get())
    }

    /// Namespace identifier (NSID).
    #[must_use]
    pub const fn nsid(&self) -> Nsid {
        Nsid::new(self.nsid.get())
    }

    /// SGL 1 parsed.
    ///
    /// # Errors
    /// Its type is none that NVMe/RDMA uses.
    pub const fn sgl(&self) -> Result<Sgl, SglError> {
        self.sgl.parse()
    }

    /// Command dwords 10 to 15, for what this crate does not know.
    #[must_use]
    pub const fn command_dwords(&self) -> [u32; 6] {
        [self.cdw10.get(), self.cdw11.get(), self.cdw12.get(), self.cdw13.get(), self.cdw14.get(), self.cdw15.get()]
    }

    const fn with_cdw10(mut self, cdw10: u32) -> Self {
        self.cdw10 = U32::new(cdw10);
        self
    }

    const fn with_cdw11(mut self, cdw11: u32) -> Self {
        self.cdw11 = U32::new(cdw11);
        self
    }

    const fn with_cdw12(mut self, cdw12: u32) -> Self {
        self.cdw12 = U32::new(cdw12);
        self
    }

    /// CDW10 and CDW11 as one number.
    const fn cdw10_11(&self) -> u64 {
        join(self.cdw10, self.cdw11)
    }

    /// CDW12 and CDW13 as one number.
    const fn cdw12_13(&self) -> u64 {
        join(self.cdw12, self.cdw13)
    }

    const fn with_cdw12_13(mut self, value: u64) -> Self {
        (self.cdw12, self.cdw13) = split(value);
        self
    }

    const fn with_cdw10_11(mut self, value: u64) -> Self {
        (self.cdw10, self.cdw11) = split(value);
        self
    }

    const fn fabrics(cid: Cid, fctype: FabricsType) -> Self {
        let mut sqe = Self::new(AdminOpcode::FABRICS.0, cid);
        sqe.nsid = U32::new(with_field_u32(0, 7, 0, fctype.0 as u32));
        sqe
    }
}

const fn join(low: U32, high: U32) -> u64 {
    crate::bits::with_field(low.get() as u64, 63, 32, high.get() as u64)
}

const fn split(value: u64) -> (U32, U32) {
    (U32::new(crate::bits::u32_field(value, 31, 0)), U32::new(crate::bits::u32_field(value, 63, 32)))
}

impl fmt::Debug for Sqe {
    /// Fabrics commands by name. An opcode alone does not tell admin from I/O commands: for those, print the parsed command.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Sqe");
        if self.is_fabrics() {
            f.field("command", &FabricsCommand::parse(self));
        } else {
            f.field("opcode", &format_args!("{:02X}h", self.opcode)).field("nsid", &self.nsid());
        }
        f.field("cid", &self.cid()).field("sgl", &self.sgl);
        if !self.is_fabrics() {
            f.field("cdw10_15", &format_args!("{:08x?}", self.command_dwords()));
        }
        if self.check_flags().is_err() {
            f.field("flags", &format_args!("{:#04x}", self.flags));
        }
        f.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rkey;

    #[test]
    fn a_capsule_is_an_entry_and_the_data_after_it() {
        let mut capsule = Sqe::new(0x02, Cid::new(7)).as_bytes().to_vec();
        assert_eq!(Sqe::split_capsule(&capsule).unwrap().1, [0; 0]);
        capsule.extend([1, 2, 3]);
        let (sqe, data) = Sqe::split_capsule(&capsule).unwrap();
        assert_eq!((sqe.cid(), data), (Cid::new(7), &[1, 2, 3][..]));
    }

    #[test]
    fn rejects_capsule_shorter_than_64_bytes() {
        let error = Sqe::split_capsule(&[0; 63]).unwrap_err();
        assert_eq!(error.to_string(), "command capsule needs 64 bytes, got 63");
        assert!(Sqe::read_from(&[0; 63]).is_err());
        assert!(Sqe::read_from(&[0; 64]).is_ok());
    }

    #[test]
    fn only_lone_commands_with_sgls_pass_the_check() {
        for flags in 0..=u8::MAX {
            let sqe = Sqe { flags, ..Sqe::new(0, Cid::new(0)) };
            let passes = flags & 0b1100_0011 == 0b0100_0000;
            assert_eq!(sqe.check_flags().is_ok(), passes, "{flags:#010b}");
        }
        let fused = Sqe::new(0, Cid::new(0)).with_fuse(Fuse::Second);
        assert_eq!((fused.as_bytes()[1], fused.fuse(), fused.psdt()), (0x42, Fuse::Second, 1));
        assert_eq!(fused.check_flags().unwrap_err().to_wire(), 0x8004);
    }

    #[test]
    fn fields_of_every_command_lie_where_they_belong() {
        let sgl = SglDescriptor::keyed(1, 2, Rkey::new(3), true).unwrap();
        let sqe = Sqe::new(0xC2, Cid::new(0x1234)).with_nsid(Nsid::new(0x5566_7788)).with_sgl(sgl);
        let bytes = sqe.as_bytes();
        assert_eq!(bytes[..8], [0xC2, 0x40, 0x34, 0x12, 0x88, 0x77, 0x66, 0x55]);
        assert_eq!(bytes[8..24], [0; 16]);
        assert_eq!(&bytes[24..40], sgl.as_bytes());
        assert_eq!(bytes[40..], [0; 24]);
        assert_eq!(sqe.with_cid(Cid::new(1)).cid(), Cid::new(1));
        assert_eq!(sqe.data_direction(), DataDirection::ControllerToHost);
    }
}
