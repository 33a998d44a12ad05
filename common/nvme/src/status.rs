//! Status of a completed command.

use std::fmt;

use crate::bits::{bit, field, u8_field, u16_field, with_field_u16};

/// Status code type and status code, folded as `0xTSS`: three bits of type above eight bits of code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StatusCode(u16);

/// Status code type (SCT): bits 10:8 of a [`StatusCode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusCodeType {
    /// 0h: applies to any command.
    Generic,
    /// 1h: its meaning depends on the command.
    CommandSpecific,
    /// 2h: media and data integrity errors.
    Media,
    /// 3h: the path to the namespace failed, not the namespace.
    Path,
    /// 4h to 6h.
    Reserved(u8),
    /// 7h.
    Vendor,
}

/// Which family of commands a command-specific status belongs to; 180h to 18Fh mean something else in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandFamily {
    /// Admin commands.
    Admin,
    /// Commands of the NVM command set.
    Io,
    /// Connect and the other fabrics commands.
    Fabrics,
}

macro_rules! status_codes {
    ($($(#[$meta:meta])* $name:ident = $value:literal => $text:literal,)*) => {
        impl StatusCode {
            $(
                $(#[$meta])*
                #[doc = concat!("`", stringify!($value), "`: ", $text, ".")]
                pub const $name: Self = Self($value);
            )*

            const fn own_name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

status_codes! {
    SUCCESS = 0x000 => "success",
    INVALID_OPCODE = 0x001 => "invalid command opcode",
    INVALID_FIELD = 0x002 => "invalid field in command",
    COMMAND_ID_CONFLICT = 0x003 => "command id conflict",
    DATA_TRANSFER_ERROR = 0x004 => "data transfer error",
    ABORTED_POWER_LOSS = 0x005 => "command aborted due to power loss notification",
    INTERNAL_ERROR = 0x006 => "internal error",
    ABORT_REQUESTED = 0x007 => "command abort requested",
    ABORTED_SQ_DELETION = 0x008 => "command aborted due to submission queue deletion",
    ABORTED_FAILED_FUSED = 0x009 => "command aborted due to failed fused command",
    ABORTED_MISSING_FUSED = 0x00A => "command aborted due to missing fused command",
    INVALID_NAMESPACE_OR_FORMAT = 0x00B => "invalid namespace or format",
    COMMAND_SEQUENCE_ERROR = 0x00C => "command sequence error",
    INVALID_SGL_SEGMENT_DESCRIPTOR = 0x00D => "invalid SGL segment descriptor",
    INVALID_SGL_DESCRIPTOR_COUNT = 0x00E => "invalid number of SGL descriptors",
    DATA_SGL_LENGTH_INVALID = 0x00F => "data SGL length invalid",
    METADATA_SGL_LENGTH_INVALID = 0x010 => "metadata SGL length invalid",
    SGL_DESCRIPTOR_TYPE_INVALID = 0x011 => "SGL descriptor type invalid",
    ATOMIC_WRITE_UNIT_EXCEEDED = 0x014 => "atomic write unit exceeded",
    OPERATION_DENIED = 0x015 => "operation denied",
    SGL_OFFSET_INVALID = 0x016 => "SGL offset invalid",
    HOST_ID_INCONSISTENT_FORMAT = 0x018 => "host identifier inconsistent format",
    KEEP_ALIVE_TIMEOUT_EXPIRED = 0x019 => "keep alive timer expired",
    KEEP_ALIVE_TIMEOUT_INVALID = 0x01A => "keep alive timeout invalid",
    ABORTED_PREEMPT_AND_ABORT = 0x01B => "command aborted due to preempt and abort",
    SANITIZE_FAILED = 0x01C => "sanitize failed",
    SANITIZE_IN_PROGRESS = 0x01D => "sanitize in progress",
    NAMESPACE_WRITE_PROTECTED = 0x020 => "namespace is write protected",
    COMMAND_INTERRUPTED = 0x021 => "command interrupted",
    TRANSIENT_TRANSPORT_ERROR = 0x022 => "transient transport error",
    ADMIN_MEDIA_NOT_READY = 0x024 => "admin command media not ready",
    INVALID_IO_COMMAND_SET = 0x02C => "invalid I/O command set",
    LBA_OUT_OF_RANGE = 0x080 => "LBA out of range",
    CAPACITY_EXCEEDED = 0x081 => "capacity exceeded",
    NAMESPACE_NOT_READY = 0x082 => "namespace not ready",
    RESERVATION_CONFLICT = 0x083 => "reservation conflict",
    FORMAT_IN_PROGRESS = 0x084 => "format in progress",
    INVALID_QUEUE_ID = 0x101 => "invalid queue identifier",
    INVALID_QUEUE_SIZE = 0x102 => "invalid queue size",
    ABORT_LIMIT_EXCEEDED = 0x103 => "abort command limit exceeded",
    AER_LIMIT_EXCEEDED = 0x105 => "asynchronous event request limit exceeded",
    INVALID_LOG_PAGE = 0x109 => "invalid log page",
    FEATURE_NOT_SAVEABLE = 0x10D => "feature identifier not saveable",
    FEATURE_NOT_CHANGEABLE = 0x10E => "feature not changeable",
    FEATURE_NOT_NAMESPACE_SPECIFIC = 0x10F => "feature not namespace specific",
    CONNECT_RESTART_DISCOVERY = 0x190 => "discover restart",
    AUTHENTICATION_REQUIRED = 0x191 => "authentication required",
    WRITE_FAULT = 0x280 => "write fault",
    UNRECOVERED_READ_ERROR = 0x281 => "unrecovered read error",
    GUARD_CHECK_ERROR = 0x282 => "end-to-end guard check error",
    APPLICATION_TAG_CHECK_ERROR = 0x283 => "end-to-end application tag check error",
    REFERENCE_TAG_CHECK_ERROR = 0x284 => "end-to-end reference tag check error",
    COMPARE_FAILURE = 0x285 => "compare failure",
    ACCESS_DENIED = 0x286 => "access denied",
    DEALLOCATED_OR_UNWRITTEN_BLOCK = 0x287 => "deallocated or unwritten logical block",
    INTERNAL_PATH_ERROR = 0x300 => "internal path error",
    ANA_PERSISTENT_LOSS = 0x301 => "asymmetric access persistent loss",
    ANA_INACCESSIBLE = 0x302 => "asymmetric access inaccessible",
    ANA_TRANSITION = 0x303 => "asymmetric access transition",
    CONTROLLER_PATH_ERROR = 0x360 => "controller pathing error",
    HOST_PATH_ERROR = 0x370 => "host pathing error",
    /// Made by hosts themselves.
    ABORTED_BY_HOST = 0x371 => "command aborted by host",
}

/// 180h to 18Fh carry one name for fabrics commands and another for I/O commands.
macro_rules! shared_codes {
    ($family:ident: $($name:ident = $value:literal => $text:literal,)*) => {
        impl StatusCode {
            $(
                #[doc = concat!("`", stringify!($value), "`: ", $text, ".")]
                pub const $name: Self = Self($value);
            )*

            const fn $family(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

shared_codes! { fabrics_name:
    CONNECT_INCOMPATIBLE_FORMAT = 0x180 => "Connect: incompatible format",
    CONNECT_CONTROLLER_BUSY = 0x181 => "Connect: controller busy",
    CONNECT_INVALID_PARAMETERS = 0x182 => "Connect: invalid parameters",
    CONNECT_RESTART = 0x183 => "Connect: restart discovery",
    CONNECT_INVALID_HOST = 0x184 => "Connect: invalid host",
}

shared_codes! { io_name:
    CONFLICTING_ATTRIBUTES = 0x180 => "conflicting attributes",
    INVALID_PROTECTION_INFORMATION = 0x181 => "invalid protection information",
    WRITE_TO_READ_ONLY_RANGE = 0x182 => "attempted write to read only range",
    COMMAND_SIZE_LIMIT_EXCEEDED = 0x183 => "command size limit exceeded",
}

impl StatusCode {
    /// Folds a status code type (three bits; more are dropped) and a status code.
    #[must_use]
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self::from_folded(u16::from_le_bytes([sc, sct]))
    }

    /// Takes the folded form `0xTSS`; bits above the eleventh are dropped.
    #[must_use]
    pub const fn from_folded(folded: u16) -> Self {
        Self(u16_field(folded as u64, 10, 0))
    }

    /// The folded form `0xTSS`.
    #[must_use]
    pub const fn folded(self) -> u16 {
        self.0
    }

    /// Status code (SC), bits 7:0.
    #[must_use]
    pub const fn sc(self) -> u8 {
        u8_field(self.0 as u64, 7, 0)
    }

    /// Status code type (SCT), bits 10:8.
    #[must_use]
    pub const fn kind(self) -> StatusCodeType {
        match field(self.0 as u64, 10, 8) {
            0 => StatusCodeType::Generic,
            1 => StatusCodeType::CommandSpecific,
            2 => StatusCodeType::Media,
            3 => StatusCodeType::Path,
            7 => StatusCodeType::Vendor,
            _ => StatusCodeType::Reserved(u8_field(self.0 as u64, 10, 8)),
        }
    }

    /// Whether the command succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// Whether the path failed (SCT 3h): another path, or a new connection, may do it.
    #[must_use]
    pub fn is_path_error(self) -> bool {
        self.kind() == StatusCodeType::Path
    }

    /// Whether media or data integrity failed (SCT 2h).
    #[must_use]
    pub fn is_media_error(self) -> bool {
        self.kind() == StatusCodeType::Media
    }

    /// Its name for a command of `family`, if it is a known one.
    #[must_use]
    pub const fn name_for(self, family: CommandFamily) -> Option<&'static str> {
        let special = match family {
            CommandFamily::Admin => None,
            CommandFamily::Io => self.io_name(),
            CommandFamily::Fabrics => self.fabrics_name(),
        };
        match special {
            Some(name) => Some(name),
            None => self.own_name(),
        }
    }

    /// The status that tells the host not to try again.
    #[must_use]
    pub const fn do_not_retry(self) -> Status {
        Status { code: self, dnr: true, more: false, retry_delay: RetryDelay::None }
    }

    /// The status that lets the host try again.
    #[must_use]
    pub const fn retryable(self) -> Status {
        Status { code: self, dnr: false, more: false, retry_delay: RetryDelay::None }
    }
}

impl fmt::Display for StatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.own_name(), self.fabrics_name(), self.io_name()) {
            (Some(name), _, _) | (_, Some(name), None) => write!(f, "{name} ({:03X}h)", self.0),
            (_, Some(fabrics), Some(io)) => write!(f, "{fabrics}, or {io} ({:03X}h)", self.0),
            _ => write!(f, "status {:03X}h", self.0),
        }
    }
}

impl fmt::Debug for StatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Command retry delay (CRD): which of the three times of Identify Controller a host waits before it tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum RetryDelay {
    /// At once.
    #[default]
    None,
    /// After CRDT1.
    Crdt1,
    /// After CRDT2.
    Crdt2,
    /// After CRDT3.
    Crdt3,
}

impl RetryDelay {
    const fn from_wire(value: u64) -> Self {
        match value {
            1 => Self::Crdt1,
            2 => Self::Crdt2,
            3 => Self::Crdt3,
            _ => Self::None,
        }
    }

    const fn to_wire(self) -> u16 {
        match self {
            Self::None => 0,
            Self::Crdt1 => 1,
            Self::Crdt2 => 2,
            Self::Crdt3 => 3,
        }
    }
}

/// The status field of a completion, without its phase tag, which is always 0 on fabrics.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status {
    /// What happened.
    pub code: StatusCode,
    /// Do not retry (DNR): the same command would fail again.
    pub dnr: bool,
    /// More (M): the error log holds an entry on this.
    pub more: bool,
    /// How long to wait before a retry (CRD).
    pub retry_delay: RetryDelay,
}

impl Status {
    /// The command succeeded.
    pub const SUCCESS: Self = StatusCode::SUCCESS.retryable();

    /// Whether the command succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.code.is_success()
    }

    /// Whether the command failed in a way that a retry may cure.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        !self.is_success() && !self.dnr
    }

    /// Status field of a completion: 0 phase, 8:1 SC, 11:9 SCT, 13:12 CRD, 14 More, 15 DNR.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        let wire = with_field_u16(0, 11, 1, self.code.0);
        let wire = with_field_u16(wire, 13, 12, self.retry_delay.to_wire());
        let wire = with_field_u16(wire, 14, 14, self.more as u16);
        with_field_u16(wire, 15, 15, self.dnr as u16)
    }

    /// The status that a completion's status field holds; its phase tag is ignored.
    #[must_use]
    pub const fn from_wire(wire: u16) -> Self {
        let wire = wire as u64;
        Self {
            code: StatusCode(u16_field(wire, 11, 1)),
            dnr: bit(wire, 15),
            more: bit(wire, 14),
            retry_delay: RetryDelay::from_wire(field(wire, 13, 12)),
        }
    }

    /// `Ok` for success, else the status as the error.
    ///
    /// # Errors
    /// This status, unless it is success.
    pub const fn into_result(self) -> Result<(), Self> {
        if self.is_success() { Ok(()) } else { Err(self) }
    }
}

impl From<StatusCode> for Status {
    fn from(code: StatusCode) -> Self {
        code.retryable()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.code.fmt(f)?;
        if self.dnr {
            f.write_str(", do not retry")?;
        }
        if self.more {
            f.write_str(", more in the error log")?;
        }
        if self.retry_delay != RetryDelay::None {
            write!(f, ", retry after CRDT{}", self.retry_delay.to_wire())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_field_has_the_code_above_the_phase_tag() {
        assert_eq!(Status::SUCCESS.to_wire(), 0);
        assert_eq!(StatusCode::INVALID_FIELD.do_not_retry().to_wire(), 0x8004);
        assert_eq!(StatusCode::COMPARE_FAILURE.retryable().to_wire(), 0x050A);
        let full = Status { more: true, retry_delay: RetryDelay::Crdt3, ..StatusCode::new(7, 0xFF).do_not_retry() };
        assert_eq!(full.to_wire(), 0xFFFE);
        assert_eq!(Status::from_wire(0xFFFF), full);
    }

    #[test]
    fn every_wire_value_survives_but_for_its_phase_tag() {
        for wire in 0..=u16::MAX {
            assert_eq!(Status::from_wire(wire).to_wire(), wire & 0xFFFE);
        }
    }

    #[test]
    fn codes_shared_between_families_get_the_right_name() {
        let code = StatusCode::CONNECT_INVALID_PARAMETERS;
        assert_eq!(code.name_for(CommandFamily::Fabrics), Some("Connect: invalid parameters"));
        assert_eq!(code.name_for(CommandFamily::Io), Some("attempted write to read only range"));
        assert_eq!(code.name_for(CommandFamily::Admin), None);
        assert_eq!(StatusCode::INVALID_OPCODE.name_for(CommandFamily::Io), Some("invalid command opcode"));
    }

    #[test]
    fn prints_names_and_passes_unknown_codes_through() {
        assert_eq!(StatusCode::LBA_OUT_OF_RANGE.do_not_retry().to_string(), "LBA out of range (080h), do not retry");
        assert_eq!(StatusCode::new(7, 0xC1).to_string(), "status 7C1h");
        assert_eq!(StatusCode::CONNECT_INVALID_HOST.to_string(), "Connect: invalid host (184h)");
        assert!(StatusCode::HOST_PATH_ERROR.is_path_error());
        assert!(StatusCode::WRITE_FAULT.is_media_error());
        assert!(!StatusCode::INTERNAL_ERROR.is_media_error());
    }
}
