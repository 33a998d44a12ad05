//! Controller properties: CAP, VS, CC, CSTS and their offsets.

use std::fmt;
use std::time::Duration;

use crate::QueueSize;
use crate::bits::{bit, field, u8_field, u16_field, with_field, with_field_u32};
use crate::macros::open_set;

open_set! {
    /// Offset of a property (OFST).
    PropertyOffset(u32), "property" {
        /// Controller Capabilities, 8 bytes.
        CAP = 0x00 => "CAP",
        /// Version, 4 bytes.
        VS = 0x08 => "VS",
        /// Controller Configuration, 4 bytes.
        CC = 0x14 => "CC",
        /// Controller Status, 4 bytes.
        CSTS = 0x1C => "CSTS",
        /// NVM Subsystem Reset, 4 bytes.
        NSSR = 0x20 => "NSSR",
        /// Controller Ready Timeouts, 4 bytes.
        CRTO = 0x68 => "CRTO",
    }
}

impl PropertyOffset {
    /// The size of the property, if it is a known one.
    #[must_use]
    pub const fn size(self) -> Option<PropertySize> {
        match self {
            Self::CAP => Some(PropertySize::Eight),
            Self::VS | Self::CC | Self::CSTS | Self::NSSR | Self::CRTO => Some(PropertySize::Four),
            _ => None,
        }
    }
}

/// Size of a property (ATTRIB, bits 2:0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PropertySize {
    /// 0: four bytes.
    Four,
    /// 1: eight bytes.
    Eight,
    /// 2 to 7.
    Reserved(u8),
}

impl PropertySize {
    pub(crate) const fn from_wire(attrib: u8) -> Self {
        match attrib {
            0 => Self::Four,
            1 => Self::Eight,
            other => Self::Reserved(other),
        }
    }

    pub(crate) const fn to_wire(self) -> u8 {
        match self {
            Self::Four => 0,
            Self::Eight => 1,
            Self::Reserved(other) => other,
        }
    }
}

const TIMEOUT_UNIT_MS: u64 = 500;

/// Controller Capabilities (CAP).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cap(u64);

impl Cap {
    /// What a fabrics controller for the NVM command set has: contiguous queues (CQR), 4 KiB pages.
    #[must_use]
    pub const fn new(max_queue_entries: QueueSize, ready_timeout: Duration) -> Self {
        let cap = with_field(0, 15, 0, max_queue_entries.zeroes_based() as u64);
        let cap = with_field(cap, 16, 16, 1);
        let cap = with_field(cap, 31, 24, timeout_units(ready_timeout));
        Self(with_field(cap, 37, 37, 1))
    }

    /// The property as read.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The property as it is read.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The same with or without "one or more I/O command sets" (bit 43): hosts then ask every namespace for its command set.
    #[must_use]
    pub const fn with_selectable_command_sets(self, yes: bool) -> Self {
        Self(with_field(self.0, 43, 43, yes as u64))
    }

    /// Maximum Queue Entries Supported (MQES), bits 15:0.
    #[must_use]
    pub const fn max_queue_entries(self) -> QueueSize {
        QueueSize::from_zeroes_based(u16_field(self.0, 15, 0))
    }

    /// Contiguous Queues Required (CQR), bit 16.
    #[must_use]
    pub const fn requires_contiguous_queues(self) -> bool {
        bit(self.0, 16)
    }

    /// Timeout (TO), bits 31:24: how long the controller may take to become ready.
    #[must_use]
    pub const fn ready_timeout(self) -> Duration {
        Duration::from_millis(field(self.0, 31, 24) * TIMEOUT_UNIT_MS)
    }

    /// NVM Subsystem Reset Supported (NSSRS), bit 36.
    #[must_use]
    pub const fn supports_subsystem_reset(self) -> bool {
        bit(self.0, 36)
    }

    /// Command Sets Supported (CSS), bit 37: the NVM command set.
    #[must_use]
    pub const fn supports_nvm(self) -> bool {
        bit(self.0, 37)
    }

    /// Command Sets Supported (CSS), bit 43: one or more I/O command sets.
    #[must_use]
    pub const fn supports_selectable_command_sets(self) -> bool {
        bit(self.0, 43)
    }

    /// Command Sets Supported (CSS), bit 44: no I/O command set.
    #[must_use]
    pub const fn supports_admin_only(self) -> bool {
        bit(self.0, 44)
    }

    /// Memory Page Size Minimum (MPSMIN), bits 51:48, in bytes.
    #[must_use]
    pub const fn min_page_bytes(self) -> u32 {
        page_bytes(u8_field(self.0, 51, 48))
    }

    /// Memory Page Size Maximum (MPSMAX), bits 55:52, in bytes.
    #[must_use]
    pub const fn max_page_bytes(self) -> u32 {
        page_bytes(u8_field(self.0, 55, 52))
    }

    /// Controller Ready With Media Support (CRWMS), bit 59.
    #[must_use]
    pub const fn supports_ready_with_media(self) -> bool {
        bit(self.0, 59)
    }

    /// Controller Ready Independent of Media Support (CRIMS), bit 60.
    #[must_use]
    pub const fn supports_ready_independent_of_media(self) -> bool {
        bit(self.0, 60)
    }
}

/// `timeout` in units of 500 ms, rounded up, as far as eight bits reach.
#[allow(clippy::cast_possible_truncation, reason = "bounded by 255 before the cast")]
const fn timeout_units(timeout: Duration) -> u64 {
    let units = timeout.as_millis().div_ceil(TIMEOUT_UNIT_MS as u128);
    if units > 255 { 255 } else { units as u64 }
}

const fn page_bytes(mps: u8) -> u32 {
    4096 << mps
}

impl fmt::Debug for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cap")
            .field("bits", &format_args!("{:#018x}", self.0))
            .field("max_queue_entries", &self.max_queue_entries())
            .field("ready_timeout", &self.ready_timeout())
            .field("nvm", &self.supports_nvm())
            .field("selectable_command_sets", &self.supports_selectable_command_sets())
            .field("min_page_bytes", &self.min_page_bytes())
            .field("max_page_bytes", &self.max_page_bytes())
            .finish()
    }
}

/// Version (VS): bits 31:16 major, 15:8 minor, 7:0 tertiary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u32);

impl Version {
    /// 1.3.0, from which hosts read namespace identification descriptors.
    pub const V1_3: Self = Self::new(1, 3, 0);
    /// 1.4.0.
    pub const V1_4: Self = Self::new(1, 4, 0);

    /// `major`.`minor`.`tertiary`.
    #[must_use]
    pub const fn new(major: u16, minor: u8, tertiary: u8) -> Self {
        let bits = with_field_u32(tertiary as u32, 15, 8, minor as u32);
        Self(with_field_u32(bits, 31, 16, major as u32))
    }

    /// The property as read.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The property as it is read.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = u64::from(self.0);
        write!(f, "{}.{}.{}", u16_field(bits, 31, 16), u8_field(bits, 15, 8), u8_field(bits, 7, 0))
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Version({self})")
    }
}

/// I/O Command Set Selected (CSS), bits 6:4 of CC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandSetSelected {
    /// 000b: the NVM command set.
    Nvm,
    /// 110b: all that the controller supports.
    All,
    /// 111b: admin commands only.
    AdminOnly,
    /// 001b to 101b.
    Reserved(u8),
}

/// Shutdown Notification (SHN), bits 15:14 of CC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShutdownNotification {
    /// 00b: none.
    None,
    /// 01b: normal shutdown.
    Normal,
    /// 10b: abrupt shutdown.
    Abrupt,
    /// 11b.
    Reserved,
}

/// Controller Configuration (CC).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ControllerConfiguration(u32);

impl ControllerConfiguration {
    /// I/O Submission Queue Entry Size (IOSQES) that the NVM command set wants: 2^6 bytes.
    pub const IO_SQE_SIZE_LOG2: u8 = 6;
    /// I/O Completion Queue Entry Size (IOCQES) that the NVM command set wants: 2^4 bytes.
    pub const IO_CQE_SIZE_LOG2: u8 = 4;

    /// What a host sets that uses the NVM command set with 4 KiB pages, enabled or not.
    #[must_use]
    pub const fn new(enable: bool) -> Self {
        let cc = with_field_u32(0, 19, 16, Self::IO_SQE_SIZE_LOG2 as u32);
        Self(with_field_u32(cc, 23, 20, Self::IO_CQE_SIZE_LOG2 as u32)).with_enable(enable)
    }

    /// The property as written.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The property as it is written.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The same, enabled or not.
    #[must_use]
    pub const fn with_enable(self, enable: bool) -> Self {
        Self(with_field_u32(self.0, 0, 0, enable as u32))
    }

    /// The same for other command sets.
    ///
    /// # Panics
    /// A reserved value has more than three bits.
    #[must_use]
    pub const fn with_command_set(self, css: CommandSetSelected) -> Self {
        let bits = match css {
            CommandSetSelected::Nvm => 0,
            CommandSetSelected::All => 6,
            CommandSetSelected::AdminOnly => 7,
            CommandSetSelected::Reserved(other) => other,
        };
        Self(with_field_u32(self.0, 6, 4, bits as u32))
    }

    /// The same with a shutdown notification.
    #[must_use]
    pub const fn with_shutdown(self, shn: ShutdownNotification) -> Self {
        let bits = match shn {
            ShutdownNotification::None => 0,
            ShutdownNotification::Normal => 1,
            ShutdownNotification::Abrupt => 2,
            ShutdownNotification::Reserved => 3,
        };
        Self(with_field_u32(self.0, 15, 14, bits))
    }

    /// Enable (EN), bit 0.
    #[must_use]
    pub const fn is_enabled(self) -> bool {
        bit(self.0 as u64, 0)
    }

    /// I/O Command Set Selected (CSS), bits 6:4.
    #[must_use]
    pub const fn command_set(self) -> CommandSetSelected {
        match u8_field(self.0 as u64, 6, 4) {
            0 => CommandSetSelected::Nvm,
            6 => CommandSetSelected::All,
            7 => CommandSetSelected::AdminOnly,
            other => CommandSetSelected::Reserved(other),
        }
    }

    /// Memory Page Size (MPS), bits 10:7, in bytes.
    #[must_use]
    pub const fn page_bytes(self) -> u32 {
        page_bytes(u8_field(self.0 as u64, 10, 7))
    }

    /// Arbitration Mechanism Selected (AMS), bits 13:11; 0 is round robin.
    #[must_use]
    pub const fn arbitration(self) -> u8 {
        u8_field(self.0 as u64, 13, 11)
    }

    /// Shutdown Notification (SHN), bits 15:14.
    #[must_use]
    pub const fn shutdown(self) -> ShutdownNotification {
        match field(self.0 as u64, 15, 14) {
            0 => ShutdownNotification::None,
            1 => ShutdownNotification::Normal,
            2 => ShutdownNotification::Abrupt,
            _ => ShutdownNotification::Reserved,
        }
    }

    /// I/O Submission Queue Entry Size (IOSQES), bits 19:16, as a power of two.
    #[must_use]
    pub const fn io_sqe_size_log2(self) -> u8 {
        u8_field(self.0 as u64, 19, 16)
    }

    /// I/O Completion Queue Entry Size (IOCQES), bits 23:20, as a power of two.
    #[must_use]
    pub const fn io_cqe_size_log2(self) -> u8 {
        u8_field(self.0 as u64, 23, 20)
    }
}

impl fmt::Debug for ControllerConfiguration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerConfiguration")
            .field("bits", &format_args!("{:#010x}", self.0))
            .field("enabled", &self.is_enabled())
            .field("command_set", &self.command_set())
            .field("shutdown", &self.shutdown())
            .field("page_bytes", &self.page_bytes())
            .field("io_sqe_size_log2", &self.io_sqe_size_log2())
            .field("io_cqe_size_log2", &self.io_cqe_size_log2())
            .finish()
    }
}

/// Shutdown Status (SHST), bits 3:2 of CSTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShutdownStatus {
    /// 00b: no shutdown was asked for.
    Normal,
    /// 01b: shutdown in progress.
    InProgress,
    /// 10b: shutdown complete.
    Complete,
    /// 11b.
    Reserved,
}

/// Controller Status (CSTS).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ControllerStatus(u32);

impl ControllerStatus {
    /// The property as read.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The property as it is read.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The same, ready or not.
    #[must_use]
    pub const fn with_ready(self, ready: bool) -> Self {
        Self(with_field_u32(self.0, 0, 0, ready as u32))
    }

    /// The same, with a fatal error or without.
    #[must_use]
    pub const fn with_fatal(self, fatal: bool) -> Self {
        Self(with_field_u32(self.0, 1, 1, fatal as u32))
    }

    /// The same with another shutdown status.
    #[must_use]
    pub const fn with_shutdown(self, shst: ShutdownStatus) -> Self {
        let bits = match shst {
            ShutdownStatus::Normal => 0,
            ShutdownStatus::InProgress => 1,
            ShutdownStatus::Complete => 2,
            ShutdownStatus::Reserved => 3,
        };
        Self(with_field_u32(self.0, 3, 2, bits))
    }

    /// Ready (RDY), bit 0.
    #[must_use]
    pub const fn is_ready(self) -> bool {
        bit(self.0 as u64, 0)
    }

    /// Controller Fatal Status (CFS), bit 1.
    #[must_use]
    pub const fn is_fatal(self) -> bool {
        bit(self.0 as u64, 1)
    }

    /// Shutdown Status (SHST), bits 3:2.
    #[must_use]
    pub const fn shutdown(self) -> ShutdownStatus {
        match field(self.0 as u64, 3, 2) {
            0 => ShutdownStatus::Normal,
            1 => ShutdownStatus::InProgress,
            2 => ShutdownStatus::Complete,
            _ => ShutdownStatus::Reserved,
        }
    }

    /// Whether the value is the all-ones one of a controller that is gone.
    #[must_use]
    pub const fn is_gone(self) -> bool {
        self.0 == u32::MAX
    }
}

impl fmt::Debug for ControllerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerStatus")
            .field("ready", &self.is_ready())
            .field("fatal", &self.is_fatal())
            .field("shutdown", &self.shutdown())
            .finish()
    }
}

/// Controller Ready Timeouts (CRTO).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadyTimeouts(u32);

impl ReadyTimeouts {
    /// The property as read.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Controller Ready With Media Timeout (CRWMT), bits 15:0.
    #[must_use]
    pub const fn with_media(self) -> Duration {
        Duration::from_millis(field(self.0 as u64, 15, 0) * TIMEOUT_UNIT_MS)
    }

    /// Controller Ready Independent of Media Timeout (CRIMT), bits 31:16.
    #[must_use]
    pub const fn independent_of_media(self) -> Duration {
        Duration::from_millis(field(self.0 as u64, 31, 16) * TIMEOUT_UNIT_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_has_each_field_in_its_place() {
        let cap = Cap::new(QueueSize::new(1024).unwrap(), Duration::from_millis(7_501));
        assert_eq!(cap.bits(), 0x0000_0020_1001_03FF);
        assert_eq!(cap.with_selectable_command_sets(true).bits(), 0x0000_0820_1001_03FF);
        assert_eq!(cap.ready_timeout(), Duration::from_secs(8));
        assert_eq!(Cap::new(QueueSize::MIN, Duration::MAX).ready_timeout(), Duration::from_millis(127_500));
        assert_eq!(cap.min_page_bytes(), 4096);
        assert_eq!(Cap::from_bits(0xF << 52).max_page_bytes(), 128 << 20);
        assert!(Cap::from_bits(1 << 59).supports_ready_with_media());
        assert!(Cap::from_bits(1 << 60).supports_ready_independent_of_media());
    }

    #[test]
    fn version_prints_as_people_say_it() {
        assert_eq!(Version::V1_3.bits(), 0x0001_0300);
        assert_eq!(Version::new(2, 1, 7).to_string(), "2.1.7");
        assert!(Version::V1_4 > Version::V1_3);
    }

    #[test]
    fn configuration_has_each_field_in_its_place() {
        let cc = ControllerConfiguration::new(false);
        assert_eq!(cc.bits(), 0x0046_0000);
        assert_eq!(cc.with_command_set(CommandSetSelected::All).with_enable(true).bits(), 0x0046_0061);
        assert_eq!(cc.with_shutdown(ShutdownNotification::Abrupt).bits(), 0x0046_8000);
        let odd = ControllerConfiguration::from_bits(0x0000_3BB0);
        assert_eq!(odd.command_set(), CommandSetSelected::Reserved(3));
        assert_eq!(odd.arbitration(), 7);
        assert_eq!(odd.page_bytes(), 4096 << 7);
    }

    #[test]
    fn status_has_each_field_in_its_place() {
        let csts = ControllerStatus::default().with_fatal(true).with_shutdown(ShutdownStatus::InProgress);
        assert_eq!(csts.bits(), 0b0110);
        assert_eq!(csts.with_ready(true).with_fatal(false).bits(), 0b0101);
        assert!(ControllerStatus::from_bits(u32::MAX).is_gone());
        assert_eq!(ReadyTimeouts::from_bits(0x0003_0002).with_media(), Duration::from_secs(1));
        assert_eq!(ReadyTimeouts::from_bits(0x0003_0002).independent_of_media(), Duration::from_millis(1500));
    }
}
