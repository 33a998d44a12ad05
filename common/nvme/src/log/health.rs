//! SMART / Health Information and Firmware Slot Information logs.

use std::fmt;

use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Text;
use crate::bits::{U8, u8_field};
use crate::macros::{flags, wire};

flags! {
    /// Critical Warning of the SMART log.
    CriticalWarning(u8 as U8) {
        /// Available spare is below its threshold.
        SPARE = 0,
        /// Temperature is beyond a threshold.
        TEMPERATURE = 1,
        /// Reliability is degraded.
        RELIABILITY = 2,
        /// Media is read-only.
        READ_ONLY = 3,
        /// Volatile memory backup failed.
        BACKUP_FAILED = 4,
    }
}

/// SMART / Health Information log, 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SmartLog {
    /// Critical Warning.
    pub critical_warning: CriticalWarning,
    temperature: U16,
    /// Available Spare, in percent.
    pub available_spare: u8,
    /// Available Spare Threshold, in percent.
    pub available_spare_threshold: u8,
    /// Percentage Used.
    pub percentage_used: u8,
    /// Endurance Group Critical Warning Summary.
    pub endurance_group_warning: u8,
    reserved7: [u8; 25],
    data_units_read: U128,
    data_units_written: U128,
    /// Host Read Commands.
    pub host_reads: U128,
    /// Host Write Commands.
    pub host_writes: U128,
    /// Controller Busy Time, in minutes.
    pub busy_minutes: U128,
    /// Power Cycles.
    pub power_cycles: U128,
    /// Power On Hours.
    pub power_on_hours: U128,
    /// Unsafe Shutdowns: how often power, or what plays its part, was lost without a shutdown.
    pub unsafe_shutdowns: U128,
    /// Media and Data Integrity Errors.
    pub media_errors: U128,
    /// Number of Error Information Log Entries.
    pub error_log_entries: U128,
    /// Warning Composite Temperature Time, in minutes.
    pub warning_temperature_minutes: U32,
    /// Critical Composite Temperature Time, in minutes.
    pub critical_temperature_minutes: U32,
    /// Temperature Sensors 1 to 8, in kelvins; 0 is none.
    pub temperature_sensors: [U16; 8],
    reserved216: [u8; 296],
}

wire!(SmartLog, 512, {
    critical_warning: 0, temperature: 1, available_spare: 3, available_spare_threshold: 4, percentage_used: 5,
    endurance_group_warning: 6, data_units_read: 32, data_units_written: 48, host_reads: 64, host_writes: 80,
    busy_minutes: 96, power_cycles: 112, power_on_hours: 128, unsafe_shutdowns: 144, media_errors: 160,
    error_log_entries: 176, warning_temperature_minutes: 192, critical_temperature_minutes: 196,
    temperature_sensors: 200, reserved216: 216,
});

/// A data unit of the SMART log: a thousand 512-byte blocks.
const DATA_UNIT_BYTES: u128 = 512_000;

impl SmartLog {
    /// Composite Temperature, in kelvins; 0 is not reported.
    #[must_use]
    pub const fn temperature_kelvin(&self) -> u16 {
        self.temperature.get()
    }

    /// Sets Composite Temperature.
    pub const fn set_temperature_kelvin(&mut self, kelvin: u16) {
        self.temperature = U16::new(kelvin);
    }

    /// Data Units Read, in thousands of 512-byte blocks.
    #[must_use]
    pub const fn data_units_read(&self) -> u128 {
        self.data_units_read.get()
    }

    /// Data Units Written, in thousands of 512-byte blocks.
    #[must_use]
    pub const fn data_units_written(&self) -> u128 {
        self.data_units_written.get()
    }

    /// Sets Data Units Read and Written from bytes, rounded up.
    pub const fn set_bytes_transferred(&mut self, read_bytes: u128, written_bytes: u128) {
        self.data_units_read = U128::new(read_bytes.div_ceil(DATA_UNIT_BYTES));
        self.data_units_written = U128::new(written_bytes.div_ceil(DATA_UNIT_BYTES));
    }
}

impl fmt::Debug for SmartLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmartLog")
            .field("critical_warning", &self.critical_warning)
            .field("temperature_kelvin", &self.temperature_kelvin())
            .field("available_spare", &self.available_spare)
            .field("percentage_used", &self.percentage_used)
            .field("data_units_read", &self.data_units_read())
            .field("data_units_written", &self.data_units_written())
            .field("host_reads", &self.host_reads.get())
            .field("host_writes", &self.host_writes.get())
            .field("unsafe_shutdowns", &self.unsafe_shutdowns.get())
            .field("media_errors", &self.media_errors.get())
            .field("error_log_entries", &self.error_log_entries.get())
            .finish_non_exhaustive()
    }
}

/// Firmware Slot Information log, 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FirmwareSlotLog {
    afi: u8,
    reserved1: [u8; 7],
    slots: [Text<8>; 7],
    reserved64: [u8; 448],
}

wire!(FirmwareSlotLog, 512, { afi: 0, slots: 8, reserved64: 64 });

impl FirmwareSlotLog {
    /// One slot, the first, which is active and holds `revision`.
    #[must_use]
    pub fn single(revision: Text<8>) -> Self {
        let mut this = Self::zeroed();
        this.afi = 1;
        this.slots[0] = revision;
        this
    }

    /// The active slot, 1 to 7: Active Firmware Info (AFI) bits 2:0.
    #[must_use]
    pub const fn active_slot(&self) -> u8 {
        u8_field(self.afi as u64, 2, 0)
    }

    /// The revision in `slot`, 1 to 7; `None` for other numbers and empty slots.
    #[must_use]
    pub fn revision(&self, slot: u8) -> Option<Text<8>> {
        let index = usize::from(slot).checked_sub(1)?;
        self.slots.get(index).copied().filter(|revision| !revision.is_blank())
    }
}

impl fmt::Debug for FirmwareSlotLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirmwareSlotLog").field("active_slot", &self.active_slot()).field("slots", &self.slots).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_units_are_thousands_of_blocks_rounded_up() {
        let mut log = SmartLog::zeroed();
        log.set_bytes_transferred(1, 512_001);
        assert_eq!((log.data_units_read(), log.data_units_written()), (1, 2));
        log.set_bytes_transferred(512_000, 0);
        assert_eq!((log.as_bytes()[32], log.as_bytes()[48]), (1, 0));
        log.set_temperature_kelvin(0x0123);
        assert_eq!(log.as_bytes()[1..3], [0x23, 0x01]);
    }

    #[test]
    fn firmware_slots_are_counted_from_one() {
        let log = FirmwareSlotLog::single(Text::new("0.1").unwrap());
        assert_eq!(log.as_bytes()[..12], *b"\x01\x00\x00\x00\x00\x00\x00\x000.1 ");
        assert_eq!(log.active_slot(), 1);
        assert_eq!(log.revision(1).unwrap().as_str(), Some("0.1"));
        assert!(log.revision(0).is_none() && log.revision(2).is_none() && log.revision(8).is_none());
    }
}
