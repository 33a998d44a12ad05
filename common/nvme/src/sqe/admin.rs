//! Admin commands.

use super::{AdminOpcode, FabricsCommand, Sqe};
use crate::bits::{bit, u8_field, u16_field, with_field_u32};
use crate::feature::{FeatureId, Select};
use crate::log::LogId;
use crate::macros::open_set;
use crate::{Cid, Cntlid, DwordCount, Nsid, Qid};

open_set! {
    /// Controller or namespace structure (CNS): what Identify asks for.
    Cns(u8), "CNS" {
        /// Identify Namespace.
        NAMESPACE = 0x00 => "Identify Namespace",
        /// Identify Controller.
        CONTROLLER = 0x01 => "Identify Controller",
        /// Active namespaces above NSID.
        ACTIVE_NAMESPACES = 0x02 => "Active Namespace ID List",
        /// Namespace identification descriptors.
        NAMESPACE_DESCRIPTORS = 0x03 => "Namespace Identification Descriptor List",
        /// Namespace, for an I/O command set.
        IO_NAMESPACE = 0x05 => "I/O Command Set specific Identify Namespace",
        /// Controller, for an I/O command set.
        IO_CONTROLLER = 0x06 => "I/O Command Set specific Identify Controller",
        /// Active namespaces above NSID of an I/O command set.
        IO_ACTIVE_NAMESPACES = 0x07 => "I/O Command Set specific Active Namespace ID List",
        /// Namespace, for any I/O command set.
        INDEPENDENT_NAMESPACE = 0x08 => "I/O Command Set Independent Identify Namespace",
        /// Allocated namespaces above NSID.
        ALLOCATED_NAMESPACES = 0x10 => "Allocated Namespace ID List",
        /// A namespace, active or not.
        ALLOCATED_NAMESPACE = 0x11 => "Allocated Identify Namespace",
        /// I/O command set vectors.
        IO_COMMAND_SETS = 0x1C => "I/O Command Set data structure",
    }
}

open_set! {
    /// Command set identifier (CSI).
    Csi(u8), "command set" {
        /// The NVM command set.
        NVM = 0x00 => "NVM",
        /// The key value command set.
        KEY_VALUE = 0x01 => "Key Value",
        /// The zoned namespace command set.
        ZONED = 0x02 => "Zoned Namespace",
    }
}

/// Identify, which always transfers 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// Namespace, or where a list starts.
    pub nsid: Nsid,
    /// What to identify: bits 7:0 of CDW10.
    pub cns: Cns,
    /// Controller identifier (CNTID): bits 31:16 of CDW10.
    pub cntid: Cntlid,
    /// CNS specific identifier: bits 15:0 of CDW11.
    pub cns_specific: u16,
    /// Command set identifier: bits 31:24 of CDW11.
    pub csi: Csi,
}

impl Identify {
    /// Identify of one structure, without the fields that few of them use.
    #[must_use]
    pub const fn new(cns: Cns, nsid: Nsid) -> Self {
        Self { nsid, cns, cntid: Cntlid::new(0), cns_specific: 0, csi: Csi::NVM }
    }
}

/// Get Log Page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// Namespace: 0 or all for logs of the controller.
    pub nsid: Nsid,
    /// Log page (LID): bits 7:0 of CDW10.
    pub id: LogId,
    /// Log specific parameter (LSP), seven bits: bits 14:8 of CDW10.
    pub specific: u8,
    /// Retain asynchronous event (RAE): bit 15 of CDW10.
    pub retain_event: bool,
    /// Length (NUMD): NUMDL in bits 31:16 of CDW10, NUMDU in bits 15:0 of CDW11.
    pub length: DwordCount,
    /// Offset in bytes (LPO): CDW12 and CDW13.
    pub offset_bytes: u64,
    /// Command set identifier: bits 31:24 of CDW14.
    pub csi: Csi,
}

impl GetLogPage {
    /// The first `length` of a log of the controller.
    #[must_use]
    pub const fn new(id: LogId, length: DwordCount) -> Self {
        Self { nsid: Nsid::ALL, id, specific: 0, retain_event: false, length, offset_bytes: 0, csi: Csi::NVM }
    }
}

/// Get Features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetFeatures {
    /// Namespace: 0 or all for features of the controller.
    pub nsid: Nsid,
    /// Feature (FID): bits 7:0 of CDW10.
    pub id: FeatureId,
    /// Which of its values (SEL): bits 10:8 of CDW10.
    pub select: Select,
    /// Feature specific: CDW11.
    pub value: u32,
}

/// Set Features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetFeatures {
    /// Namespace: 0 or all for features of the controller.
    pub nsid: Nsid,
    /// Feature (FID): bits 7:0 of CDW10.
    pub id: FeatureId,
    /// Save (SV): bit 31 of CDW10.
    pub save: bool,
    /// The value: CDW11.
    pub value: u32,
}

/// Abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// Queue of the command to abort: bits 15:0 of CDW10.
    pub sqid: Qid,
    /// The command to abort: bits 31:16 of CDW10.
    pub cid: Cid,
}

impl Abort {
    /// Dword 0 of its completion: bit 0 set means that the command was not aborted.
    #[must_use]
    pub const fn result(aborted: bool) -> u32 {
        if aborted { 0 } else { 1 }
    }

    /// Whether the command was aborted, by dword 0 of the completion.
    #[must_use]
    pub const fn was_aborted(dw0: u32) -> bool {
        !bit(dw0 as u64, 0)
    }
}

/// A command of the admin queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminCommand {
    /// Identify.
    Identify(Identify),
    /// Get Log Page.
    GetLogPage(GetLogPage),
    /// Get Features.
    GetFeatures(GetFeatures),
    /// Set Features.
    SetFeatures(SetFeatures),
    /// Asynchronous Event Request.
    AsyncEventRequest,
    /// Keep Alive.
    KeepAlive,
    /// Abort.
    Abort(Abort),
    /// A fabrics command.
    Fabrics(FabricsCommand),
    /// Any other command.
    Other(AdminOpcode),
}

impl AdminCommand {
    /// Reads the command of an entry that came on the admin queue.
    #[must_use]
    pub const fn parse(sqe: &Sqe) -> Self {
        match sqe.admin_opcode() {
            AdminOpcode::IDENTIFY => Self::Identify(sqe.identify_parameters()),
            AdminOpcode::GET_LOG_PAGE => Self::GetLogPage(sqe.get_log_page_parameters()),
            AdminOpcode::GET_FEATURES => Self::GetFeatures(sqe.get_features_parameters()),
            AdminOpcode::SET_FEATURES => Self::SetFeatures(sqe.set_features_parameters()),
            AdminOpcode::ASYNC_EVENT_REQUEST => Self::AsyncEventRequest,
            AdminOpcode::KEEP_ALIVE => Self::KeepAlive,
            AdminOpcode::ABORT => Self::Abort(sqe.abort_parameters()),
            AdminOpcode::FABRICS => Self::Fabrics(FabricsCommand::parse(sqe)),
            other => Self::Other(other),
        }
    }
}

impl Sqe {
    /// Identify; its 4096 bytes go to the SGL.
    #[must_use]
    pub const fn identify(cid: Cid, identify: &Identify) -> Self {
        let cdw10 = with_field_u32(identify.cns.0 as u32, 31, 16, identify.cntid.get() as u32);
        let cdw11 = with_field_u32(identify.cns_specific as u32, 31, 24, identify.csi.0 as u32);
        Self::new(AdminOpcode::IDENTIFY.0, cid).with_nsid(identify.nsid).with_cdw10(cdw10).with_cdw11(cdw11)
    }

    /// The parameters of an Identify command.
    #[must_use]
    pub const fn identify_parameters(&self) -> Identify {
        let (cdw10, cdw11) = (self.cdw10.get() as u64, self.cdw11.get() as u64);
        Identify {
            nsid: self.nsid(),
            cns: Cns(u8_field(cdw10, 7, 0)),
            cntid: Cntlid::new(u16_field(cdw10, 31, 16)),
            cns_specific: u16_field(cdw11, 15, 0),
            csi: Csi(u8_field(cdw11, 31, 24)),
        }
    }

    /// Get Log Page; the log goes to the SGL.
    ///
    /// # Panics
    /// The log specific parameter has more than seven bits.
    #[must_use]
    pub const fn get_log_page(cid: Cid, log: &GetLogPage) -> Self {
        let numd = log.length.zeroes_based();
        let cdw10 = with_field_u32(log.id.0 as u32, 14, 8, log.specific as u32);
        let cdw10 = with_field_u32(cdw10, 15, 15, log.retain_event as u32);
        let cdw10 = with_field_u32(cdw10, 31, 16, u16_field(numd as u64, 15, 0) as u32);
        let mut sqe = Self::new(AdminOpcode::GET_LOG_PAGE.0, cid)
            .with_nsid(log.nsid)
            .with_cdw10(cdw10)
            .with_cdw11(u16_field(numd as u64, 31, 16) as u32)
            .with_cdw12_13(log.offset_bytes);
        sqe.cdw14 = zerocopy::little_endian::U32::new(with_field_u32(0, 31, 24, log.csi.0 as u32));
        sqe
    }

    /// The parameters of a Get Log Page command.
    #[must_use]
    pub const fn get_log_page_parameters(&self) -> GetLogPage {
        let cdw10 = self.cdw10.get() as u64;
        let numdl = u16_field(cdw10, 31, 16) as u32;
        let numd = with_field_u32(numdl, 31, 16, u16_field(self.cdw11.get() as u64, 15, 0) as u32);
        GetLogPage {
            nsid: self.nsid(),
            id: LogId(u8_field(cdw10, 7, 0)),
            specific: u8_field(cdw10, 14, 8),
            retain_event: bit(cdw10, 15),
            length: DwordCount::from_zeroes_based(numd),
            offset_bytes: self.cdw12_13(),
            csi: Csi(u8_field(self.cdw14.get() as u64, 31, 24)),
        }
    }

    /// Get Features.
    ///
    /// # Panics
    /// A reserved selection has more than three bits.
    #[must_use]
    pub const fn get_features(cid: Cid, features: &GetFeatures) -> Self {
        let cdw10 = with_field_u32(features.id.0 as u32, 10, 8, features.select.to_wire() as u32);
        Self::new(AdminOpcode::GET_FEATURES.0, cid).with_nsid(features.nsid).with_cdw10(cdw10).with_cdw11(features.value)
    }

    /// The parameters of a Get Features command.
    #[must_use]
    pub const fn get_features_parameters(&self) -> GetFeatures {
        let cdw10 = self.cdw10.get() as u64;
        GetFeatures {
            nsid: self.nsid(),
            id: FeatureId(u8_field(cdw10, 7, 0)),
            select: Select::from_wire(u8_field(cdw10, 10, 8)),
            value: self.cdw11.get(),
        }
    }

    /// Set Features.
    #[must_use]
    pub const fn set_features(cid: Cid, features: &SetFeatures) -> Self {
        let cdw10 = with_field_u32(features.id.0 as u32, 31, 31, features.save as u32);
        Self::new(AdminOpcode::SET_FEATURES.0, cid).with_nsid(features.nsid).with_cdw10(cdw10).with_cdw11(features.value)
    }

    /// The parameters of a Set Features command.
    #[must_use]
    pub const fn set_features_parameters(&self) -> SetFeatures {
        let cdw10 = self.cdw10.get() as u64;
        SetFeatures { nsid: self.nsid(), id: FeatureId(u8_field(cdw10, 7, 0)), save: bit(cdw10, 31), value: self.cdw11.get() }
    }

    /// Asynchronous Event Request.
    #[must_use]
    pub const fn async_event_request(cid: Cid) -> Self {
        Self::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, cid)
    }

    /// Keep Alive.
    #[must_use]
    pub const fn keep_alive(cid: Cid) -> Self {
        Self::new(AdminOpcode::KEEP_ALIVE.0, cid)
    }

    /// Abort.
    #[must_use]
    pub const fn abort(cid: Cid, abort: &Abort) -> Self {
        let cdw10 = with_field_u32(abort.sqid.get() as u32, 31, 16, abort.cid.get() as u32);
        Self::new(AdminOpcode::ABORT.0, cid).with_cdw10(cdw10)
    }

    /// The parameters of an Abort command.
    #[must_use]
    pub const fn abort_parameters(&self) -> Abort {
        let cdw10 = self.cdw10.get() as u64;
        Abort { sqid: Qid::new(u16_field(cdw10, 15, 0)), cid: Cid::new(u16_field(cdw10, 31, 16)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn get_log_page_splits_its_dword_count() {
        let log = GetLogPage {
            nsid: Nsid::new(3),
            id: LogId::DISCOVERY,
            specific: 0x7F,
            retain_event: true,
            length: DwordCount::from_zeroes_based(0xABCD_1234),
            offset_bytes: 0x1122_3344_5566_7788,
            csi: Csi::ZONED,
        };
        let sqe = Sqe::get_log_page(Cid::new(1), &log);
        assert_eq!(sqe.command_dwords(), [0x1234_FF70, 0x0000_ABCD, 0x5566_7788, 0x1122_3344, 0x0200_0000, 0]);
        assert_eq!(AdminCommand::parse(&sqe), AdminCommand::GetLogPage(log));
    }

    #[test]
    fn identify_carries_every_field() {
        let identify = Identify { nsid: Nsid::new(9), cns: Cns(0xAB), cntid: Cntlid::new(0x1234), cns_specific: 0x5678, csi: Csi(0x9A) };
        let sqe = Sqe::identify(Cid::new(1), &identify);
        assert_eq!(sqe.command_dwords(), [0x1234_00AB, 0x9A00_5678, 0, 0, 0, 0]);
        assert_eq!(AdminCommand::parse(&sqe), AdminCommand::Identify(identify));
    }

    #[test]
    fn features_have_select_and_save() {
        let get = GetFeatures { nsid: Nsid::NONE, id: FeatureId(0xAB), select: Select::Capabilities, value: 5 };
        let sqe = Sqe::get_features(Cid::new(1), &get);
        assert_eq!(sqe.command_dwords(), [0x0000_03AB, 5, 0, 0, 0, 0]);
        assert_eq!(AdminCommand::parse(&sqe), AdminCommand::GetFeatures(get));
        let set = SetFeatures { nsid: Nsid::ALL, id: FeatureId(0xAB), save: true, value: 6 };
        let sqe = Sqe::set_features(Cid::new(1), &set);
        assert_eq!(sqe.command_dwords(), [0x8000_00AB, 6, 0, 0, 0, 0]);
        assert_eq!(AdminCommand::parse(&sqe), AdminCommand::SetFeatures(set));
    }

    #[test]
    fn abort_names_queue_and_command() {
        let abort = Abort { sqid: Qid::new(2), cid: Cid::new(0x1234) };
        let sqe = Sqe::abort(Cid::new(1), &abort);
        assert_eq!(sqe.command_dwords()[0], 0x1234_0002);
        assert_eq!(AdminCommand::parse(&sqe), AdminCommand::Abort(abort));
        assert!(Abort::was_aborted(Abort::result(true)));
        assert!(!Abort::was_aborted(Abort::result(false)));
    }

    #[test]
    fn unknown_opcodes_pass_through() {
        assert_eq!(AdminCommand::parse(&Sqe::new(0xC1, Cid::new(1))), AdminCommand::Other(AdminOpcode(0xC1)));
        assert_eq!(format!("{:?}", AdminOpcode(0xC1)), "admin opcode C1h");
    }
}
