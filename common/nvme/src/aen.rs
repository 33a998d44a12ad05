//! Asynchronous events: dword 0 of the completion of an Asynchronous Event Request.

use crate::bits::{u8_field, with_field_u32};
use crate::feature::AsyncEventConfiguration;
use crate::log::LogId;
use crate::macros::open_set;

open_set! {
    /// Asynchronous event type: bits 2:0.
    AsyncEventType(u8), "event type" {
        /// Error status.
        ERROR = 0 => "error",
        /// SMART / health status.
        SMART = 1 => "SMART",
        /// Notice.
        NOTICE = 2 => "notice",
        /// I/O command set specific status.
        IO_COMMAND_SET = 6 => "I/O command set",
        /// Vendor specific.
        VENDOR = 7 => "vendor",
    }
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// Type: bits 2:0.
    pub kind: AsyncEventType,
    /// Information: bits 15:8; its meaning depends on the type.
    pub info: u8,
    /// Log page that tells more: bits 23:16. Reading it with RAE clear arms the event again.
    pub log: LogId,
}

impl AsyncEvent {
    /// The namespaces or their attributes changed.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: Self = Self::notice(0x00, LogId::CHANGED_NAMESPACES);
    /// Firmware is being activated: hosts pause.
    pub const FIRMWARE_ACTIVATION_STARTING: Self = Self::notice(0x01, LogId::FIRMWARE_SLOTS);
    /// Asymmetric namespace access changed.
    pub const ANA_CHANGE: Self = Self::notice(0x03, LogId::ANA);
    /// The discovery log changed.
    pub const DISCOVERY_LOG_CHANGED: Self = Self::notice(0xF0, LogId::DISCOVERY);
    /// A reservation notification is in its log.
    pub const RESERVATION_LOG_AVAILABLE: Self =
        Self { kind: AsyncEventType::IO_COMMAND_SET, info: 0x00, log: LogId::RESERVATION_NOTIFICATION };
    /// A persistent internal error: hosts reset the controller.
    pub const PERSISTENT_INTERNAL_ERROR: Self = Self { kind: AsyncEventType::ERROR, info: 0x03, log: LogId::ERROR };

    const fn notice(info: u8, log: LogId) -> Self {
        Self { kind: AsyncEventType::NOTICE, info, log }
    }

    /// Dword 0 of the completion.
    ///
    /// # Panics
    /// The type has more than three bits.
    #[must_use]
    pub const fn to_wire(self) -> u32 {
        let dw0 = with_field_u32(0, 2, 0, self.kind.0 as u32);
        let dw0 = with_field_u32(dw0, 15, 8, self.info as u32);
        with_field_u32(dw0, 23, 16, self.log.0 as u32)
    }

    /// What dword 0 of a completion says.
    #[must_use]
    pub const fn from_wire(dw0: u32) -> Self {
        let dw0 = dw0 as u64;
        Self { kind: AsyncEventType(u8_field(dw0, 2, 0)), info: u8_field(dw0, 15, 8), log: LogId(u8_field(dw0, 23, 16)) }
    }

    /// The bit of Asynchronous Event Configuration that lets this event through; `None` if it cannot be turned off.
    #[must_use]
    pub const fn configuration(self) -> Option<AsyncEventConfiguration> {
        match (self.kind, self.info) {
            (AsyncEventType::NOTICE, 0x00) => Some(AsyncEventConfiguration::NAMESPACE_ATTRIBUTE),
            (AsyncEventType::NOTICE, 0x01) => Some(AsyncEventConfiguration::FIRMWARE_ACTIVATION),
            (AsyncEventType::NOTICE, 0x03) => Some(AsyncEventConfiguration::ANA_CHANGE),
            (AsyncEventType::NOTICE, 0xF0) => Some(AsyncEventConfiguration::DISCOVERY_CHANGE),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_lie_on_the_wire_as_specified() {
        assert_eq!(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.to_wire(), 0x0004_0002);
        assert_eq!(AsyncEvent::ANA_CHANGE.to_wire(), 0x000C_0302);
        assert_eq!(AsyncEvent::DISCOVERY_LOG_CHANGED.to_wire(), 0x0070_F002);
        assert_eq!(AsyncEvent::RESERVATION_LOG_AVAILABLE.to_wire(), 0x0080_0006);
        assert_eq!(AsyncEvent::from_wire(0xFF70_F0FA), AsyncEvent::DISCOVERY_LOG_CHANGED);
    }

    #[test]
    fn each_notice_has_the_bit_that_enables_it() {
        assert_eq!(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.configuration().unwrap().bits(), 1 << 8);
        assert_eq!(AsyncEvent::FIRMWARE_ACTIVATION_STARTING.configuration().unwrap().bits(), 1 << 9);
        assert_eq!(AsyncEvent::ANA_CHANGE.configuration().unwrap().bits(), 1 << 11);
        assert_eq!(AsyncEvent::DISCOVERY_LOG_CHANGED.configuration().unwrap().bits(), 1 << 31);
        assert_eq!(AsyncEvent::PERSISTENT_INTERNAL_ERROR.configuration(), None);
    }
}
