//! Log pages.

mod ana;
mod discovery;
mod effects;
mod error;
mod health;

pub use self::ana::{AnaGroup, AnaGroupHeader, AnaHeader, AnaState, ana_groups, ana_log};
pub use self::discovery::{
    AddressFamily, DiscoveryEntry, DiscoveryEntryFlags, DiscoveryHeader, RdmaAddress, RdmaProvider, SubsystemType, TransportRequirements,
    TransportType,
};
pub use self::effects::{CommandEffects, CommandEffectsLog};
pub use self::error::{ErrorEntry, ParameterLocation};
pub use self::health::{CriticalWarning, FirmwareSlotLog, SmartLog};

use crate::macros::open_set;

open_set! {
    /// Log page identifier (LID).
    LogId(u8), "log page" {
        /// Error information: [`ErrorEntry`].
        ERROR = 0x01 => "Error Information",
        /// SMART / health information: [`SmartLog`].
        SMART = 0x02 => "SMART / Health Information",
        /// Firmware slot information: [`FirmwareSlotLog`].
        FIRMWARE_SLOTS = 0x03 => "Firmware Slot Information",
        /// Changed namespace list: [`NamespaceList`](crate::NamespaceList).
        CHANGED_NAMESPACES = 0x04 => "Changed Namespace List",
        /// Commands supported and effects: [`CommandEffectsLog`].
        COMMAND_EFFECTS = 0x05 => "Commands Supported and Effects",
        /// Asymmetric namespace access: [`AnaHeader`] and [`AnaGroupHeader`].
        ANA = 0x0C => "Asymmetric Namespace Access",
        /// Discovery: [`DiscoveryHeader`] and [`DiscoveryEntry`].
        DISCOVERY = 0x70 => "Discovery",
        /// Reservation notification.
        RESERVATION_NOTIFICATION = 0x80 => "Reservation Notification",
    }
}

/// The `len_bytes` of a log from `offset_bytes` on, or fewer where the log has ended: what follows reads as zeros. `None` if the offset is beyond the
/// log, which is an invalid field.
#[must_use]
pub fn window(log: &[u8], offset_bytes: u64, len_bytes: usize) -> Option<&[u8]> {
    let tail = log.get(usize::try_from(offset_bytes).ok()?..)?;
    Some(&tail[..tail.len().min(len_bytes)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends_with_the_log_and_its_offset_is_bounded() {
        assert_eq!(window(&[1, 2, 3], 1, 4), Some(&[2, 3][..]));
        assert_eq!(window(&[1, 2, 3], 3, 4), Some(&[][..]));
        assert_eq!(window(&[1, 2, 3], 4, 4), None);
        assert_eq!(window(&[1, 2, 3], u64::MAX, 4), None);
        assert_eq!(window(&[1, 2, 3, 4, 5, 6], 1, 4), Some(&[2, 3, 4, 5][..]));
    }
}
