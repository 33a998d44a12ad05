//! Features: what Set Features and Get Features carry.

use std::time::Duration;

use zerocopy::little_endian::U32;

use crate::bits::{bit, u16_field, with_field_u32};
use crate::macros::{flags, open_set};

open_set! {
    /// Feature identifier (FID).
    FeatureId(u8), "feature" {
        /// Arbitration.
        ARBITRATION = 0x01 => "Arbitration",
        /// Power Management.
        POWER_MANAGEMENT = 0x02 => "Power Management",
        /// Temperature Threshold.
        TEMPERATURE_THRESHOLD = 0x04 => "Temperature Threshold",
        /// Error Recovery.
        ERROR_RECOVERY = 0x05 => "Error Recovery",
        /// Volatile Write Cache.
        VOLATILE_WRITE_CACHE = 0x06 => "Volatile Write Cache",
        /// Number of Queues.
        NUMBER_OF_QUEUES = 0x07 => "Number of Queues",
        /// Interrupt Coalescing; not used on fabrics.
        INTERRUPT_COALESCING = 0x08 => "Interrupt Coalescing",
        /// Write Atomicity Normal.
        WRITE_ATOMICITY_NORMAL = 0x0A => "Write Atomicity Normal",
        /// Asynchronous Event Configuration.
        ASYNC_EVENT_CONFIGURATION = 0x0B => "Asynchronous Event Configuration",
        /// Autonomous Power State Transition.
        AUTONOMOUS_POWER_STATE_TRANSITION = 0x0C => "Autonomous Power State Transition",
        /// Timestamp.
        TIMESTAMP = 0x0E => "Timestamp",
        /// Keep Alive Timer.
        KEEP_ALIVE_TIMER = 0x0F => "Keep Alive Timer",
        /// Host Behavior Support.
        HOST_BEHAVIOR_SUPPORT = 0x16 => "Host Behavior Support",
        /// Host Identifier.
        HOST_IDENTIFIER = 0x81 => "Host Identifier",
        /// Reservation Notification Mask.
        RESERVATION_NOTIFICATION_MASK = 0x82 => "Reservation Notification Mask",
        /// Reservation Persistence.
        RESERVATION_PERSISTENCE = 0x83 => "Reservation Persistence",
        /// Namespace Write Protection.
        NAMESPACE_WRITE_PROTECTION = 0x84 => "Namespace Write Protection",
    }
}

/// Which value Get Features asks for (SEL).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Select {
    /// 000b: the current value.
    Current,
    /// 001b: the default value.
    Default,
    /// 010b: the saved value.
    Saved,
    /// 011b: what can be done with the feature, see [`FeatureCapabilities`].
    Capabilities,
    /// 100b to 111b.
    Reserved(u8),
}

impl Select {
    pub(crate) const fn from_wire(sel: u8) -> Self {
        match sel {
            0 => Self::Current,
            1 => Self::Default,
            2 => Self::Saved,
            3 => Self::Capabilities,
            other => Self::Reserved(other),
        }
    }

    pub(crate) const fn to_wire(self) -> u8 {
        match self {
            Self::Current => 0,
            Self::Default => 1,
            Self::Saved => 2,
            Self::Capabilities => 3,
            Self::Reserved(other) => other,
        }
    }
}

flags! {
    /// What can be done with a feature: dword 0 of Get Features with [`Select::Capabilities`].
    FeatureCapabilities(u32 as U32) {
        /// It can be saved.
        SAVEABLE = 0,
        /// It is per namespace.
        NAMESPACE_SPECIFIC = 1,
        /// It can be changed.
        CHANGEABLE = 2,
    }
}

/// Number of Queues: CDW11 of the request and dword 0 of the answer; both halves are 0's-based on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NumberOfQueues {
    /// I/O submission queues (NSQR, NSQA), 1 to 65535: bits 15:0.
    pub submission: u16,
    /// I/O completion queues (NCQR, NCQA), 1 to 65535: bits 31:16.
    pub completion: u16,
}

impl NumberOfQueues {
    /// As many queue pairs as `count`; `None` for zero.
    #[must_use]
    pub const fn pairs(count: u16) -> Option<Self> {
        if count == 0 { None } else { Some(Self { submission: count, completion: count }) }
    }

    /// The dword as wire value; counts of zero, which the type's constructors never make, are taken for one.
    #[must_use]
    pub const fn to_wire(self) -> u32 {
        with_field_u32(self.submission.saturating_sub(1) as u32, 31, 16, self.completion.saturating_sub(1) as u32)
    }

    /// The counts of the dword; `None` if a half is FFFFh, which the specification forbids.
    #[must_use]
    pub const fn from_wire(dword: u32) -> Option<Self> {
        let submission = u16_field(dword as u64, 15, 0).checked_add(1);
        let completion = u16_field(dword as u64, 31, 16).checked_add(1);
        match (submission, completion) {
            (Some(submission), Some(completion)) => Some(Self { submission, completion }),
            _ => None,
        }
    }

    /// How many queue pairs these numbers allow.
    #[must_use]
    pub const fn queue_pairs(self) -> u16 {
        if self.submission < self.completion { self.submission } else { self.completion }
    }
}

flags! {
    /// Asynchronous Event Configuration: CDW11; and, from bit 8 on, Optional Asynchronous Events Supported (OAES).
    AsyncEventConfiguration(u32 as U32) {
        /// SMART: available spare is below its threshold.
        SMART_SPARE = 0,
        /// SMART: temperature.
        SMART_TEMPERATURE = 1,
        /// SMART: reliability is degraded.
        SMART_RELIABILITY = 2,
        /// SMART: read-only.
        SMART_READ_ONLY = 3,
        /// SMART: volatile memory backup failed.
        SMART_BACKUP_FAILED = 4,
        /// Namespace attribute notices.
        NAMESPACE_ATTRIBUTE = 8,
        /// Firmware activation notices.
        FIRMWARE_ACTIVATION = 9,
        /// Telemetry log notices.
        TELEMETRY = 10,
        /// Asymmetric namespace access change notices.
        ANA_CHANGE = 11,
        /// Discovery log page change notices.
        DISCOVERY_CHANGE = 31,
    }
}

/// Volatile Write Cache: CDW11 and dword 0, bit 0 is WCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VolatileWriteCache {
    /// Whether the cache is enabled.
    pub enabled: bool,
}

impl VolatileWriteCache {
    /// The dword.
    #[must_use]
    pub const fn to_wire(self) -> u32 {
        self.enabled as u32
    }

    /// What the dword says.
    #[must_use]
    pub const fn from_wire(dword: u32) -> Self {
        Self { enabled: bit(dword as u64, 0) }
    }
}

/// Keep Alive Timer: CDW11 and dword 0, in milliseconds; zero turns it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeepAliveTimer(pub Duration);

impl KeepAliveTimer {
    /// The dword; what does not fit is the longest time that does.
    #[must_use]
    pub fn to_wire(self) -> u32 {
        u32::try_from(self.0.as_millis()).unwrap_or(u32::MAX)
    }

    /// What the dword says.
    #[must_use]
    pub const fn from_wire(dword: u32) -> Self {
        Self(Duration::from_millis(dword as u64))
    }
}

/// Host Identifier: CDW11, bit 0 is EXHID, by which the host asks for all 16 bytes.
#[must_use]
pub const fn wants_extended_host_identifier(cdw11: u32) -> bool {
    bit(cdw11 as u64, 0)
}

/// Host Behavior Support: the 512 bytes of data that come with it.
pub mod host_behavior {
    /// Length of the data in bytes.
    pub const LEN_BYTES: usize = 512;
    /// Offset of ACRE, "advanced command retry enabled": 1 means that the host honours the retry delay of a status.
    pub const ACRE_OFFSET: usize = 0;
    /// Offset of LBAFEE, "LBA format extension enable".
    pub const LBAFEE_OFFSET: usize = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_numbers_are_zeroes_based_in_both_halves() {
        let eight = NumberOfQueues { submission: 8, completion: 3 };
        assert_eq!(eight.to_wire(), 0x0002_0007);
        assert_eq!(NumberOfQueues::from_wire(0x0002_0007), Some(eight));
        assert_eq!(eight.queue_pairs(), 3);
        assert_eq!(NumberOfQueues::from_wire(0xFFFE_FFFE).unwrap().queue_pairs(), u16::MAX);
        assert_eq!(NumberOfQueues::from_wire(0x0000_FFFF), None);
        assert_eq!(NumberOfQueues::from_wire(0xFFFF_0000), None);
        assert_eq!(NumberOfQueues::pairs(0), None);
        assert_eq!(NumberOfQueues::pairs(1).unwrap().to_wire(), 0);
    }

    #[test]
    fn event_configuration_names_its_bits() {
        let config = AsyncEventConfiguration::from_bits(0x8000_0900);
        assert!(config.contains(AsyncEventConfiguration::DISCOVERY_CHANGE | AsyncEventConfiguration::ANA_CHANGE));
        assert!(!config.intersects(AsyncEventConfiguration::FIRMWARE_ACTIVATION));
        assert_eq!(
            format!("{:?}", config | AsyncEventConfiguration::from_bits(1 << 20)),
            "AsyncEventConfiguration(NAMESPACE_ATTRIBUTE | ANA_CHANGE | DISCOVERY_CHANGE | 0x100000)"
        );
    }

    #[test]
    fn timers_and_caches_are_dwords() {
        assert_eq!(KeepAliveTimer::from_wire(10_000).0, Duration::from_secs(10));
        assert_eq!(KeepAliveTimer(Duration::MAX).to_wire(), u32::MAX);
        assert!(VolatileWriteCache::from_wire(3).enabled);
        assert_eq!(VolatileWriteCache { enabled: true }.to_wire(), 1);
        assert!(wants_extended_host_identifier(1) && !wants_extended_host_identifier(2));
    }
}
