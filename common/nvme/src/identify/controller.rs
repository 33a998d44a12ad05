//! Identify Controller.

use std::fmt;
use std::time::Duration;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    CommandFusing, ControllerAttributes, LogPageAttributes, MultiPath, OptionalAdminCommands, OptionalNvmCommands, SglSupport, WriteCache,
};
use crate::feature::AsyncEventConfiguration;
use crate::macros::{open_set, wire};
use crate::nqn::FIELD_LEN_BYTES;
use crate::property::Version;
use crate::{Cntlid, Cqe, Nqn, NqnError, Sqe, Text};

open_set! {
    /// Controller Type (CNTRLTYPE).
    ControllerType(u8), "controller type" {
        /// Not reported.
        NOT_REPORTED = 0 => "not reported",
        /// I/O controller.
        IO = 1 => "I/O controller",
        /// Discovery controller.
        DISCOVERY = 2 => "discovery controller",
        /// Administrative controller.
        ADMINISTRATIVE = 3 => "administrative controller",
    }
}

/// Power state descriptor, 32 bytes; what a fabrics controller fills of it.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PowerState {
    /// Maximum Power (MP), in centiwatts.
    pub mp: U16,
    /// Reserved.
    pub reserved2: u8,
    /// Bit 0: MP is in units of 0.1 milliwatts; bit 1: non-operational.
    pub flags: u8,
    /// Entry Latency (ENLAT), in microseconds.
    pub enlat: U32,
    /// Exit Latency (EXLAT), in microseconds.
    pub exlat: U32,
    /// Relative throughput and latency, idle and active power.
    pub rest: [u8; 20],
}

wire!(PowerState, 32, { mp: 0, flags: 3, enlat: 4, exlat: 8, rest: 12 });

/// Identify Controller (CNS 01h).
///
/// A controller starts from [`IdentifyController::zeroed`] and fills what it has; fields that need arithmetic have setters and
/// getters, which both ends should use.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyController {
    /// PCI Vendor ID (VID); hosts read vendor logs of some.
    pub vid: U16,
    /// PCI Subsystem Vendor ID (SSVID).
    pub ssvid: U16,
    /// Serial Number (SN); the same on all controllers of a subsystem, and not blank.
    pub sn: Text<20>,
    /// Model Number (MN).
    pub mn: Text<40>,
    /// Firmware Revision (FR).
    pub fr: Text<8>,
    /// Recommended Arbitration Burst (RAB), as a power of two.
    pub rab: u8,
    /// IEEE OUI Identifier (IEEE).
    pub ieee: [u8; 3],
    /// Controller Multi-Path I/O and Namespace Sharing Capabilities (CMIC).
    pub cmic: MultiPath,
    mdts: u8,
    cntlid: U16,
    ver: U32,
    /// RTD3 Resume Latency (RTD3R), in microseconds.
    pub rtd3r: U32,
    /// RTD3 Entry Latency (RTD3E), in microseconds: how long hosts wait for a shutdown.
    pub rtd3e: U32,
    /// Optional Asynchronous Events Supported (OAES): without any, hosts send no Asynchronous Event Request.
    pub oaes: AsyncEventConfiguration,
    /// Controller Attributes (CTRATT).
    pub ctratt: ControllerAttributes,
    reserved100: [u8; 11],
    /// Controller Type (CNTRLTYPE).
    pub cntrltype: ControllerType,
    /// FRU Globally Unique Identifier (FGUID).
    pub fguid: [u8; 16],
    /// Command Retry Delay Times 1 to 3 (CRDT), in units of 100 milliseconds.
    pub crdt: [U16; 3],
    reserved134: [u8; 122],
    /// Optional Admin Command Support (OACS).
    pub oacs: OptionalAdminCommands,
    acl: u8,
    aerl: u8,
    /// Firmware Updates (FRMW): bit 0 slot 1 is read-only, bits 3:1 number of slots.
    pub frmw: u8,
    /// Log Page Attributes (LPA).
    pub lpa: LogPageAttributes,
    elpe: u8,
    npss: u8,
    /// Admin Vendor Specific Command Configuration (AVSCC).
    pub avscc: u8,
    /// Autonomous Power State Transition Attributes (APSTA).
    pub apsta: u8,
    /// Warning Composite Temperature Threshold (WCTEMP), in kelvins; 0 is none.
    pub wctemp: U16,
    /// Critical Composite Temperature Threshold (CCTEMP), in kelvins; 0 is none.
    pub cctemp: U16,
    reserved270: [u8; 10],
    /// Total NVM Capacity (TNVMCAP), in bytes.
    pub tnvmcap: U128,
    /// Unallocated NVM Capacity (UNVMCAP), in bytes.
    pub unvmcap: U128,
    reserved312: [u8; 8],
    kas: U16,
    reserved322: [u8; 20],
    /// ANA Transition Time (ANATT), in seconds.
    pub anatt: u8,
    /// Asymmetric Namespace Access Capabilities (ANACAP): bits 4:0 states, bit 6 group ids do not change, bit 7 they are not zero.
    pub anacap: u8,
    /// ANA Group Identifier Maximum (ANAGRPMAX).
    pub anagrpmax: U32,
    /// Number of ANA Group Identifiers (NANAGRPID).
    pub nanagrpid: U32,
    reserved352: [u8; 160],
    sqes: u8,
    cqes: u8,
    maxcmd: U16,
    /// Number of Namespaces (NN): the highest NSID.
    pub nn: U32,
    /// Optional NVM Command Support (ONCS).
    pub oncs: OptionalNvmCommands,
    /// Fused Operation Support (FUSES).
    pub fuses: CommandFusing,
    /// Format NVM Attributes (FNA).
    pub fna: u8,
    /// Volatile Write Cache (VWC).
    pub vwc: WriteCache,
    /// Atomic Write Unit Normal (AWUN), 0's-based blocks.
    pub awun: U16,
    /// Atomic Write Unit Power Fail (AWUPF), 0's-based blocks.
    pub awupf: U16,
    reserved530: u8,
    /// Namespace Write Protection Capabilities (NWPC).
    pub nwpc: u8,
    /// Atomic Compare and Write Unit (ACWU), 0's-based blocks.
    pub acwu: U16,
    reserved534: [u8; 2],
    /// SGL Support (SGLS).
    pub sgls: SglSupport,
    /// Maximum Number of Allowed Namespaces (MNAN).
    pub mnan: U32,
    reserved544: [u8; 224],
    subnqn: [u8; FIELD_LEN_BYTES],
    reserved1024: [u8; 768],
    ioccsz: U32,
    iorcsz: U32,
    icdoff: U16,
    /// Fabrics Controller Attributes (FCATT): bit 0 clear is the dynamic controller model.
    pub fcatt: u8,
    /// Maximum SGL Data Block Descriptors (MSDBD) in a capsule; 0 is no limit.
    pub msdbd: u8,
    /// Optional Fabric Commands Support (OFCS): bit 0 Disconnect.
    pub ofcs: U16,
    reserved1806: [u8; 242],
    /// Power State Descriptors (PSD).
    pub psd: [PowerState; 32],
    vendor: [u8; 1024],
}

wire!(IdentifyController, 4096, {
    vid: 0, ssvid: 2, sn: 4, mn: 24, fr: 64, rab: 72, ieee: 73, cmic: 76, mdts: 77, cntlid: 78, ver: 80, rtd3r: 84,
    rtd3e: 88, oaes: 92, ctratt: 96, cntrltype: 111, fguid: 112, crdt: 128, oacs: 256, acl: 258, aerl: 259, frmw: 260,
    lpa: 261, elpe: 262, npss: 263, avscc: 264, apsta: 265, wctemp: 266, cctemp: 268, tnvmcap: 280, unvmcap: 296, kas: 320,
    anatt: 342, anacap: 343, anagrpmax: 344, nanagrpid: 348, sqes: 512, cqes: 513, maxcmd: 514, nn: 516, oncs: 520,
    fuses: 522, fna: 524, vwc: 525, awun: 526, awupf: 528, nwpc: 531, acwu: 532, sgls: 536, mnan: 540, subnqn: 768,
    ioccsz: 1792, iorcsz: 1796, icdoff: 1800, fcatt: 1802, msdbd: 1803, ofcs: 1804, psd: 2048, vendor: 3072,
});

const KAS_UNIT_MS: u64 = 100;
const CAPSULE_UNIT_BYTES: u32 = 16;

/// Why a host cannot use a controller over RDMA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControllerError {
    /// It calls itself by another id than Connect gave.
    #[error("the controller identifies itself as {actual}, but Connect gave {connected}")]
    Cntlid {
        /// By Connect.
        connected: Cntlid,
        /// By Identify.
        actual: Cntlid,
    },
    /// It takes no keyed SGL descriptors.
    #[error("the controller does not support keyed SGLs, which NVMe over RDMA needs")]
    NoKeyedSgl,
    /// In-capsule data does not follow the entry at once.
    #[error("the controller wants in-capsule data at offset {0} (in 16 bytes), which NVMe over RDMA does not allow")]
    InCapsuleOffset(u16),
    /// Its command capsule has no room for an entry.
    #[error("the command capsule of the controller has {0} bytes, fewer than a submission queue entry")]
    CommandCapsule(u64),
    /// Its response capsule has no room for an entry.
    #[error("the response capsule of the controller has no room for a completion queue entry")]
    ResponseCapsule,
    /// An I/O controller without Keep Alive.
    #[error("the controller does not support Keep Alive")]
    NoKeepAlive,
    /// Its entries are of another size.
    #[error("the controller wants queue entries of other sizes than 64 and 16 bytes")]
    EntrySizes,
}

impl IdentifyController {
    /// All zero but for what every NVMe/RDMA controller has in common: entry sizes, capsules without data, keyed SGLs, no offset.
    #[must_use]
    pub fn new() -> Self {
        let mut this = Self::zeroed();
        this.sn = Text::BLANK;
        this.mn = Text::BLANK;
        this.fr = Text::BLANK;
        this.sqes = 0x66;
        this.cqes = 0x44;
        this.sgls = SglSupport::SUPPORTED | SglSupport::KEYED;
        this.iorcsz = U32::new(1);
        this.msdbd = 1;
        this.set_in_capsule_bytes(0);
        this
    }

    /// Controller ID (CNTLID).
    #[must_use]
    pub const fn cntlid(&self) -> Cntlid {
        Cntlid::new(self.cntlid.get())
    }

    /// Sets CNTLID.
    pub const fn set_cntlid(&mut self, cntlid: Cntlid) {
        self.cntlid = U16::new(cntlid.get());
    }

    /// Version (VER).
    #[must_use]
    pub const fn version(&self) -> Version {
        Version::from_bits(self.ver.get())
    }

    /// Sets VER.
    pub const fn set_version(&mut self, version: Version) {
        self.ver = U32::new(version.bits());
    }

    /// Maximum Data Transfer Size (MDTS) in bytes, from its power of two of pages of `min_page_bytes` (CAP.MPSMIN). `None` is no
    /// limit, or one beyond 2^64.
    #[must_use]
    pub fn max_transfer_bytes(&self, min_page_bytes: u32) -> Option<u64> {
        pages_to_bytes(self.mdts, min_page_bytes)
    }

    /// Sets MDTS to the largest power of two of 4096-byte pages that is not over `bytes`; 8192 bytes at least, for 0 would be no limit.
    pub fn set_max_transfer_bytes(&mut self, bytes: u64) {
        self.mdts = bytes_to_pages(bytes);
    }

    /// Abort Command Limit (ACL): how many Abort commands may be outstanding, 0's-based on the wire.
    #[must_use]
    pub const fn abort_limit(&self) -> u16 {
        self.acl as u16 + 1
    }

    /// Sets ACL from 1 to 256 commands; other numbers become the nearest of these.
    pub fn set_abort_limit(&mut self, count: u16) {
        self.acl = zeroes_based(count);
    }

    /// Asynchronous Event Request Limit (AERL): how many may be outstanding, 0's-based on the wire.
    #[must_use]
    pub const fn async_event_request_limit(&self) -> u16 {
        self.aerl as u16 + 1
    }

    /// Sets AERL from 1 to 256 commands; other numbers become the nearest of these.
    pub fn set_async_event_request_limit(&mut self, count: u16) {
        self.aerl = zeroes_based(count);
    }

    /// Error Log Page Entries (ELPE), 0's-based on the wire.
    #[must_use]
    pub const fn error_log_entries(&self) -> u16 {
        self.elpe as u16 + 1
    }

    /// Sets ELPE from 1 to 256 entries; other numbers become the nearest of these.
    pub fn set_error_log_entries(&mut self, count: u16) {
        self.elpe = zeroes_based(count);
    }

    /// Number of Power States Support (NPSS), 0's-based on the wire.
    #[must_use]
    pub const fn power_states(&self) -> u16 {
        self.npss as u16 + 1
    }

    /// Keep Alive Support (KAS): the granularity of the keep alive timer; `None` if there is none.
    #[must_use]
    pub const fn keep_alive_granularity(&self) -> Option<Duration> {
        match self.kas.get() {
            0 => None,
            units => Some(Duration::from_millis(units as u64 * KAS_UNIT_MS)),
        }
    }

    /// Sets KAS, in units of 100 milliseconds, rounded up.
    pub fn set_keep_alive_granularity(&mut self, granularity: Duration) {
        let units = granularity.as_millis().div_ceil(u128::from(KAS_UNIT_MS));
        self.kas = U16::new(u16::try_from(units).unwrap_or(u16::MAX));
    }

    /// Command Retry Delay Time `index` (0 to 2 for CRDT1 to CRDT3).
    #[must_use]
    pub fn retry_delay(&self, index: usize) -> Option<Duration> {
        self.crdt.get(index).map(|units| Duration::from_millis(u64::from(units.get()) * 100))
    }

    /// Maximum Outstanding Commands (MAXCMD) of one queue; 0 is not reported.
    #[must_use]
    pub const fn max_outstanding_commands(&self) -> u16 {
        self.maxcmd.get()
    }

    /// Sets MAXCMD; hosts take queues of at most so many entries, and 0 upsets some.
    pub const fn set_max_outstanding_commands(&mut self, count: u16) {
        self.maxcmd = U16::new(count);
    }

    /// NVM Subsystem NVMe Qualified Name (SUBNQN).
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn subsystem_nqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_wire(&self.subnqn)
    }

    /// Sets SUBNQN.
    pub fn set_subsystem_nqn(&mut self, nqn: &Nqn) {
        self.subnqn = nqn.to_wire();
    }

    /// How many bytes of data a command capsule may carry: 0 if SGLS has no offset bit, else by the I/O Queue Command Capsule
    /// Supported Size (IOCCSZ, in 16 bytes) less the entry.
    #[must_use]
    pub fn in_capsule_bytes(&self) -> u64 {
        if !self.sgls.contains(SglSupport::OFFSET) || self.icdoff.get() != 0 {
            return 0;
        }
        self.command_capsule_bytes().saturating_sub(Sqe::LEN_BYTES as u64)
    }

    /// I/O Queue Command Capsule Supported Size (IOCCSZ) in bytes.
    #[must_use]
    pub fn command_capsule_bytes(&self) -> u64 {
        u64::from(self.ioccsz.get()) * u64::from(CAPSULE_UNIT_BYTES)
    }

    /// I/O Queue Response Capsule Supported Size (IORCSZ) in bytes.
    #[must_use]
    pub fn response_capsule_bytes(&self) -> u64 {
        u64::from(self.iorcsz.get()) * u64::from(CAPSULE_UNIT_BYTES)
    }

    /// Sets IOCCSZ for `bytes` of data after the entry, rounded down to 16, and the offset bit of SGLS if there are any.
    pub fn set_in_capsule_bytes(&mut self, bytes: u32) {
        let units = bytes / CAPSULE_UNIT_BYTES;
        self.ioccsz = U32::new(units.saturating_add(4));
        let without = self.sgls.without(SglSupport::OFFSET);
        self.sgls = if units == 0 { without } else { without | SglSupport::OFFSET };
    }

    /// Checks what a host over RDMA cannot do without.
    ///
    /// # Errors
    /// The first thing that is missing.
    pub fn check_for_rdma(&self, connected: Cntlid) -> Result<(), ControllerError> {
        let discovery = self.cntrltype == ControllerType::DISCOVERY;
        if self.cntlid() != connected {
            return Err(ControllerError::Cntlid { connected, actual: self.cntlid() });
        }
        if !self.sgls.contains(SglSupport::KEYED) {
            return Err(ControllerError::NoKeyedSgl);
        }
        if self.icdoff.get() != 0 {
            return Err(ControllerError::InCapsuleOffset(self.icdoff.get()));
        }
        if discovery {
            return Ok(());
        }
        if self.command_capsule_bytes() < Sqe::LEN_BYTES as u64 {
            return Err(ControllerError::CommandCapsule(self.command_capsule_bytes()));
        }
        if self.response_capsule_bytes() < Cqe::LEN_BYTES as u64 {
            return Err(ControllerError::ResponseCapsule);
        }
        if self.keep_alive_granularity().is_none() {
            return Err(ControllerError::NoKeepAlive);
        }
        if !takes_size(self.sqes, 6) || !takes_size(self.cqes, 4) {
            return Err(ControllerError::EntrySizes);
        }
        Ok(())
    }
}

impl Default for IdentifyController {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether an entry size of 2^`log2` lies between the required size (bits 3:0) and the maximum (bits 7:4).
fn takes_size(sizes: u8, log2: u8) -> bool {
    let sizes = u64::from(sizes);
    (crate::bits::u8_field(sizes, 3, 0)..=crate::bits::u8_field(sizes, 7, 4)).contains(&log2)
}

fn zeroes_based(count: u16) -> u8 {
    u8::try_from(count.saturating_sub(1)).unwrap_or(u8::MAX)
}

/// 2^`log2` pages in bytes; 0 is no limit, and so is what is beyond 2^64.
fn pages_to_bytes(log2: u8, page_bytes: u32) -> Option<u64> {
    match log2 {
        0 => None,
        _ => 1_u64.checked_shl(log2.into())?.checked_mul(page_bytes.into()),
    }
}

fn bytes_to_pages(bytes: u64) -> u8 {
    let pages = (bytes / 4096).max(2);
    u8::try_from(pages.ilog2()).unwrap_or(u8::MAX)
}

impl fmt::Debug for IdentifyController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentifyController")
            .field("subsystem_nqn", &self.subsystem_nqn())
            .field("cntlid", &self.cntlid())
            .field("cntrltype", &self.cntrltype)
            .field("version", &self.version())
            .field("sn", &self.sn)
            .field("mn", &self.mn)
            .field("fr", &self.fr)
            .field("cmic", &self.cmic)
            .field("max_transfer_bytes", &self.max_transfer_bytes(4096))
            .field("in_capsule_bytes", &self.in_capsule_bytes())
            .field("max_outstanding_commands", &self.max_outstanding_commands())
            .field("keep_alive_granularity", &self.keep_alive_granularity())
            .field("async_event_request_limit", &self.async_event_request_limit())
            .field("oaes", &self.oaes)
            .field("ctratt", &self.ctratt)
            .field("oacs", &self.oacs)
            .field("oncs", &self.oncs)
            .field("lpa", &self.lpa)
            .field("vwc", &self.vwc)
            .field("sgls", &self.sgls)
            .field("msdbd", &self.msdbd)
            .field("nn", &self.nn.get())
            .field("mnan", &self.mnan.get())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PowerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PowerState")
            .field("mp", &self.mp.get())
            .field("enlat", &self.enlat.get())
            .field("exlat", &self.exlat.get())
            .finish_non_exhaustive()
    }
}

/// Identify Controller for the NVM command set (CNS 06h, CSI 0). Zero means no limit throughout.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IoIdentifyController {
    /// Verify Size Limit (VSL), a power of two of pages as MDTS.
    pub vsl: u8,
    /// Write Zeroes Size Limit (WZSL), likewise.
    pub wzsl: u8,
    /// Write Uncorrectable Size Limit (WUSL), likewise.
    pub wusl: u8,
    /// Dataset Management Ranges Limit (DMRL): ranges of one command.
    pub dmrl: u8,
    /// Dataset Management Range Size Limit (DMRSL): blocks of one range.
    pub dmrsl: U32,
    /// Dataset Management Size Limit (DMSL): blocks of one command.
    pub dmsl: U64,
    reserved16: [u8; 4080],
}

wire!(IoIdentifyController, 4096, { vsl: 0, wzsl: 1, wusl: 2, dmrl: 3, dmrsl: 4, dmsl: 8, reserved16: 16 });

impl IoIdentifyController {
    /// Write Zeroes Size Limit in bytes, by pages of `min_page_bytes` (CAP.MPSMIN); `None` is no limit.
    #[must_use]
    pub fn max_write_zeroes_bytes(&self, min_page_bytes: u32) -> Option<u64> {
        pages_to_bytes(self.wzsl, min_page_bytes)
    }
}

impl fmt::Debug for IoIdentifyController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoIdentifyController")
            .field("vsl", &self.vsl)
            .field("wzsl", &self.wzsl)
            .field("wusl", &self.wusl)
            .field("dmrl", &self.dmrl)
            .field("dmrsl", &self.dmrsl.get())
            .field("dmsl", &self.dmsl.get())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usable() -> IdentifyController {
        let mut id = IdentifyController::new();
        id.set_cntlid(Cntlid::new(7));
        id.set_keep_alive_granularity(Duration::from_secs(1));
        id
    }

    #[test]
    fn transfer_sizes_are_powers_of_two_of_pages() {
        let mut id = usable();
        assert_eq!(id.max_transfer_bytes(4096), None);
        for (bytes, log2, rounded) in [(1 << 20, 8, 1 << 20), ((1 << 20) + 5, 8, 1 << 20), (131_071, 4, 65_536), (0, 1, 8192)] {
            id.set_max_transfer_bytes(bytes);
            assert_eq!(id.as_bytes()[77], log2);
            assert_eq!(id.max_transfer_bytes(4096), Some(rounded));
        }
        id.mdts = 52;
        assert_eq!(id.max_transfer_bytes(4096), None);
        id.mdts = 255;
        assert_eq!(id.max_transfer_bytes(4096), None);
    }

    #[test]
    fn capsule_sizes_count_the_entry() {
        let mut id = usable();
        assert_eq!((id.ioccsz.get(), id.in_capsule_bytes()), (4, 0));
        id.set_in_capsule_bytes(8192);
        assert_eq!((id.ioccsz.get(), id.in_capsule_bytes()), (516, 8192));
        assert!(id.sgls.contains(SglSupport::OFFSET));
        id.set_in_capsule_bytes(15);
        assert_eq!((id.ioccsz.get(), id.in_capsule_bytes()), (4, 0));
        id.set_in_capsule_bytes(16);
        id.ioccsz = U32::new(3);
        assert_eq!(id.in_capsule_bytes(), 0);
        id.ioccsz = U32::new(u32::MAX);
        assert_eq!(id.in_capsule_bytes(), u64::from(u32::MAX) * 16 - 64);
        id.sgls = SglSupport::KEYED;
        assert_eq!(id.in_capsule_bytes(), 0);
    }

    #[test]
    fn a_host_refuses_what_it_cannot_use() {
        let broken = |breakage: fn(&mut IdentifyController)| {
            let mut id = usable();
            breakage(&mut id);
            id.check_for_rdma(Cntlid::new(7)).unwrap_err()
        };
        assert_eq!(usable().check_for_rdma(Cntlid::new(7)), Ok(()));
        assert_eq!(
            usable().check_for_rdma(Cntlid::new(8)),
            Err(ControllerError::Cntlid { connected: Cntlid::new(8), actual: Cntlid::new(7) })
        );
        assert_eq!(broken(|id| id.sgls = SglSupport::SUPPORTED), ControllerError::NoKeyedSgl);
        assert_eq!(broken(|id| id.icdoff = U16::new(1)), ControllerError::InCapsuleOffset(1));
        assert_eq!(broken(|id| id.ioccsz = U32::new(3)), ControllerError::CommandCapsule(48));
        assert_eq!(broken(|id| id.iorcsz = U32::new(0)), ControllerError::ResponseCapsule);
        assert_eq!(broken(|id| id.kas = U16::new(0)), ControllerError::NoKeepAlive);
        assert_eq!(broken(|id| id.sqes = 0x77), ControllerError::EntrySizes);
        assert_eq!(broken(|id| id.cqes = 0x33), ControllerError::EntrySizes);
    }

    #[test]
    fn limits_are_zeroes_based() {
        let mut id = usable();
        id.set_abort_limit(4);
        id.set_async_event_request_limit(0);
        id.set_error_log_entries(1000);
        assert_eq!(id.as_bytes()[258..260], [3, 0]);
        assert_eq!(id.as_bytes()[262], 255);
        assert_eq!((id.abort_limit(), id.async_event_request_limit(), id.error_log_entries()), (4, 1, 256));
    }
}
