//! I/O commands of the NVM command set.

use super::{DataDirection, FabricsCommand, IoOpcode, Sqe};
use crate::bits::{u8_field, u16_field, with_field_u32};
use crate::macros::flags;
use crate::{BlockCount, BlockRange, Cid, Lba, Nsid};

flags! {
    /// Control bits of a command that names a range of blocks: bits 31:16 of CDW12.
    IoControl(u16 as zerocopy::little_endian::U16) {
        /// Limited Retry (LR).
        LIMITED_RETRY = 15,
        /// Force Unit Access (FUA).
        FORCE_UNIT_ACCESS = 14,
        /// Protection Information Action (PRACT).
        PROTECTION_ACTION = 13,
        /// Protection Information Check (PRCHK): guard.
        CHECK_GUARD = 12,
        /// Protection Information Check (PRCHK): application tag.
        CHECK_APPLICATION_TAG = 11,
        /// Protection Information Check (PRCHK): reference tag.
        CHECK_REFERENCE_TAG = 10,
        /// Deallocate (DEAC), of Write Zeroes.
        DEALLOCATE = 9,
    }
}

impl IoControl {
    /// Directive Type (DTYPE), bits 7:4; 0 is none.
    #[must_use]
    pub const fn directive_type(self) -> u8 {
        u8_field(self.bits() as u64, 7, 4)
    }
}

flags! {
    /// Attributes of Dataset Management: CDW11. Only Deallocate changes anything; the others are hints.
    DatasetManagementAttributes(u32 as zerocopy::little_endian::U32) {
        /// Integral Dataset for Read (IDR).
        INTEGRAL_READ = 0,
        /// Integral Dataset for Write (IDW).
        INTEGRAL_WRITE = 1,
        /// Attribute - Deallocate (AD).
        DEALLOCATE = 2,
    }
}

/// What Read, Write, Compare, Write Zeroes, Write Uncorrectable and Verify share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoRange {
    /// Namespace.
    pub nsid: Nsid,
    /// Blocks: SLBA (CDW10 and CDW11) and NLB (bits 15:0 of CDW12).
    pub blocks: BlockRange,
    /// Control bits.
    pub control: IoControl,
}

impl IoRange {
    /// Whether the command must reach stable media before it completes.
    #[must_use]
    pub const fn is_forced_unit_access(&self) -> bool {
        self.control.contains(IoControl::FORCE_UNIT_ACCESS)
    }
}

/// Dataset Management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetManagement {
    /// Namespace.
    pub nsid: Nsid,
    /// Number of ranges (NR), 1 to 256: bits 7:0 of CDW10, 0's-based there.
    pub range_count: u16,
    /// What to do with them.
    pub attributes: DatasetManagementAttributes,
}

/// A command of an I/O queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoCommand {
    /// Flush.
    Flush(Nsid),
    /// Write.
    Write(IoRange),
    /// Read.
    Read(IoRange),
    /// Write Uncorrectable.
    WriteUncorrectable(IoRange),
    /// Compare.
    Compare(IoRange),
    /// Write Zeroes.
    WriteZeroes(IoRange),
    /// Dataset Management.
    DatasetManagement(DatasetManagement),
    /// Verify.
    Verify(IoRange),
    /// A fabrics command.
    Fabrics(FabricsCommand),
    /// Any other command.
    Other(IoOpcode),
}

impl IoCommand {
    /// Reads the command of an entry that came on an I/O queue.
    #[must_use]
    pub const fn parse(sqe: &Sqe) -> Self {
        match sqe.io_opcode() {
            IoOpcode::FLUSH => Self::Flush(sqe.nsid()),
            IoOpcode::WRITE => Self::Write(sqe.io_range()),
            IoOpcode::READ => Self::Read(sqe.io_range()),
            IoOpcode::WRITE_UNCORRECTABLE => Self::WriteUncorrectable(sqe.io_range()),
            IoOpcode::COMPARE => Self::Compare(sqe.io_range()),
            IoOpcode::WRITE_ZEROES => Self::WriteZeroes(sqe.io_range()),
            IoOpcode::DATASET_MANAGEMENT => Self::DatasetManagement(sqe.dataset_management_parameters()),
            IoOpcode::VERIFY => Self::Verify(sqe.io_range()),
            IoOpcode::FABRICS => Self::Fabrics(FabricsCommand::parse(sqe)),
            other => Self::Other(other),
        }
    }

    /// Where its data goes.
    #[must_use]
    pub const fn data_direction(&self) -> DataDirection {
        match self {
            Self::Write(_) | Self::Compare(_) | Self::DatasetManagement(_) => DataDirection::HostToController,
            Self::Read(_) => DataDirection::ControllerToHost,
            Self::Flush(_) | Self::WriteUncorrectable(_) | Self::WriteZeroes(_) | Self::Verify(_) => DataDirection::None,
            Self::Fabrics(command) => command.data_direction(),
            Self::Other(opcode) => DataDirection::of(opcode.0),
        }
    }
}

impl Sqe {
    /// Read; its data goes to the SGL.
    #[must_use]
    pub const fn read(cid: Cid, nsid: Nsid, blocks: BlockRange) -> Self {
        Self::over_blocks(IoOpcode::READ, cid, nsid, blocks)
    }

    /// Write; its data comes from the SGL.
    #[must_use]
    pub const fn write(cid: Cid, nsid: Nsid, blocks: BlockRange) -> Self {
        Self::over_blocks(IoOpcode::WRITE, cid, nsid, blocks)
    }

    /// Compare; its data comes from the SGL.
    #[must_use]
    pub const fn compare(cid: Cid, nsid: Nsid, blocks: BlockRange) -> Self {
        Self::over_blocks(IoOpcode::COMPARE, cid, nsid, blocks)
    }

    /// Write Zeroes.
    #[must_use]
    pub const fn write_zeroes(cid: Cid, nsid: Nsid, blocks: BlockRange) -> Self {
        Self::over_blocks(IoOpcode::WRITE_ZEROES, cid, nsid, blocks)
    }

    /// Write Uncorrectable.
    #[must_use]
    pub const fn write_uncorrectable(cid: Cid, nsid: Nsid, blocks: BlockRange) -> Self {
        Self::over_blocks(IoOpcode::WRITE_UNCORRECTABLE, cid, nsid, blocks)
    }

    /// Verify.
    #[must_use]
    pub const fn verify(cid: Cid, nsid: Nsid, blocks: BlockRange) -> Self {
        Self::over_blocks(IoOpcode::VERIFY, cid, nsid, blocks)
    }

    /// Flush.
    #[must_use]
    pub const fn flush(cid: Cid, nsid: Nsid) -> Self {
        Self::new(IoOpcode::FLUSH.0, cid).with_nsid(nsid)
    }

    /// Dataset Management of `range_count` ranges, which the SGL names; `None` unless there are 1 to 256.
    #[must_use]
    pub const fn dataset_management(cid: Cid, nsid: Nsid, range_count: u16, attributes: DatasetManagementAttributes) -> Option<Self> {
        if range_count == 0 || range_count > 256 {
            return None;
        }
        let sqe = Self::new(IoOpcode::DATASET_MANAGEMENT.0, cid)
            .with_nsid(nsid)
            .with_cdw10(with_field_u32(0, 7, 0, range_count as u32 - 1))
            .with_cdw11(attributes.bits());
        Some(sqe)
    }

    const fn over_blocks(opcode: IoOpcode, cid: Cid, nsid: Nsid, blocks: BlockRange) -> Self {
        Self::new(opcode.0, cid).with_nsid(nsid).with_cdw10_11(blocks.start.get()).with_cdw12(with_field_u32(
            0,
            15,
            0,
            blocks.count.zeroes_based() as u32,
        ))
    }

    /// The same with these control bits: bits 31:16 of CDW12.
    #[must_use]
    pub const fn with_control(self, control: IoControl) -> Self {
        let cdw12 = with_field_u32(self.cdw12.get(), 31, 16, control.bits() as u32);
        self.with_cdw12(cdw12)
    }

    /// The namespace, blocks and control bits of a command that names a range of blocks.
    #[must_use]
    pub const fn io_range(&self) -> IoRange {
        let cdw12 = self.cdw12.get() as u64;
        let count = BlockCount::from_zeroes_based(u16_field(cdw12, 15, 0));
        IoRange {
            nsid: self.nsid(),
            blocks: BlockRange::new(Lba::new(self.cdw10_11()), count),
            control: IoControl::from_bits(u16_field(cdw12, 31, 16)),
        }
    }

    /// The parameters of a Dataset Management command.
    #[must_use]
    pub const fn dataset_management_parameters(&self) -> DatasetManagement {
        DatasetManagement {
            nsid: self.nsid(),
            range_count: u16_field(self.cdw10.get() as u64, 7, 0) + 1,
            attributes: DatasetManagementAttributes::from_bits(self.cdw11.get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(start: u64, count: u32) -> BlockRange {
        BlockRange::new(Lba::new(start), BlockCount::new(count).unwrap())
    }

    #[test]
    fn range_commands_lie_on_the_wire_as_specified() {
        let control = IoControl::FORCE_UNIT_ACCESS | IoControl::DEALLOCATE;
        let sqe = Sqe::write_zeroes(Cid::new(0x1234), Nsid::new(7), blocks(0x1122_3344_5566_7788, 65_536)).with_control(control);
        let bytes = sqe.as_bytes();
        assert_eq!(bytes[..8], [0x08, 0x40, 0x34, 0x12, 7, 0, 0, 0]);
        assert_eq!(bytes[40..52], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xFF, 0xFF, 0x00, 0x42]);
        let IoCommand::WriteZeroes(parsed) = IoCommand::parse(&sqe) else { panic!("{sqe:?}") };
        assert_eq!(parsed, IoRange { nsid: Nsid::new(7), blocks: blocks(0x1122_3344_5566_7788, 65_536), control });
        assert!(parsed.is_forced_unit_access());
    }

    #[test]
    fn each_constructor_has_its_own_opcode() {
        let (cid, nsid, range) = (Cid::new(1), Nsid::new(1), blocks(0, 1));
        let opcode = |sqe: Sqe| sqe.opcode();
        assert_eq!(opcode(Sqe::flush(cid, nsid)), 0x00);
        assert_eq!(opcode(Sqe::write(cid, nsid, range)), 0x01);
        assert_eq!(opcode(Sqe::read(cid, nsid, range)), 0x02);
        assert_eq!(opcode(Sqe::write_uncorrectable(cid, nsid, range)), 0x04);
        assert_eq!(opcode(Sqe::compare(cid, nsid, range)), 0x05);
        assert_eq!(opcode(Sqe::verify(cid, nsid, range)), 0x0C);
    }

    #[test]
    fn dataset_management_takes_1_to_256_ranges() {
        let dsm = |count| Sqe::dataset_management(Cid::new(1), Nsid::new(1), count, DatasetManagementAttributes::DEALLOCATE);
        assert_eq!(dsm(0), None);
        assert_eq!(dsm(257), None);
        assert_eq!(dsm(1).unwrap().as_bytes()[40..48], [0, 0, 0, 0, 4, 0, 0, 0]);
        let last = dsm(256).unwrap();
        assert_eq!(last.as_bytes()[40..44], [0xFF, 0, 0, 0]);
        assert_eq!(last.dataset_management_parameters().range_count, 256);
    }

    #[test]
    fn the_directive_type_is_seen() {
        assert_eq!(IoControl::from_bits(0x00F0).directive_type(), 15);
        assert_eq!(IoControl::from_bits(0xFF0F).directive_type(), 0);
    }
}
