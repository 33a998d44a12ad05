//! Fabrics Connect: its data, its result, and what its refusal tells.

use std::fmt;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::{bit, u8_field, u16_field, with_field_u32};
use crate::macros::wire;
use crate::nqn::FIELD_LEN_BYTES;
use crate::status::CommandFamily;
use crate::{Cntlid, HostId, Nqn, NqnError, Status, StatusCode};

/// Data of the Connect command, 1024 bytes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    hostid: [u8; 16],
    cntlid: U16,
    reserved18: [u8; 238],
    subnqn: [u8; FIELD_LEN_BYTES],
    hostnqn: [u8; FIELD_LEN_BYTES],
    reserved768: [u8; 256],
}

wire!(ConnectData, 1024, { hostid: 0, cntlid: 16, subnqn: 256, hostnqn: 512, reserved768: 768 });

impl ConnectData {
    /// What `host` sends to connect to `subsystem`: [`Cntlid::DYNAMIC`] for the admin queue, the assigned one for I/O queues.
    #[must_use]
    pub fn new(host_id: HostId, cntlid: Cntlid, subsystem: &Nqn, host: &Nqn) -> Self {
        Self {
            hostid: host_id.0,
            cntlid: U16::new(cntlid.get()),
            reserved18: [0; 238],
            subnqn: subsystem.to_wire(),
            hostnqn: host.to_wire(),
            reserved768: [0; 256],
        }
    }

    /// Host Identifier (HOSTID).
    #[must_use]
    pub const fn host_id(&self) -> HostId {
        HostId(self.hostid)
    }

    /// Controller ID (CNTLID).
    #[must_use]
    pub const fn cntlid(&self) -> Cntlid {
        Cntlid::new(self.cntlid.get())
    }

    /// NVM Subsystem NVMe Qualified Name (SUBNQN).
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn subsystem_nqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_wire(&self.subnqn)
    }

    /// Host NVMe Qualified Name (HOSTNQN).
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn host_nqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_wire(&self.hostnqn)
    }
}

impl fmt::Debug for ConnectData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectData")
            .field("host_id", &self.host_id())
            .field("cntlid", &self.cntlid())
            .field("subsystem_nqn", &self.subsystem_nqn())
            .field("host_nqn", &self.host_nqn())
            .finish()
    }
}

/// Result of a successful Connect: dword 0 of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectResult {
    /// The controller: bits 15:0.
    pub cntlid: Cntlid,
    /// Whether the host must authenticate (ATR): bit 17.
    pub authentication_required: bool,
    /// Whether it must do so with a secure channel (ASCR): bit 18.
    pub secure_channel_required: bool,
}

impl ConnectResult {
    /// Connected to `cntlid`, without authentication.
    #[must_use]
    pub const fn new(cntlid: Cntlid) -> Self {
        Self { cntlid, authentication_required: false, secure_channel_required: false }
    }

    /// Dword 0 of the completion.
    #[must_use]
    pub const fn to_wire(self) -> u32 {
        let dw0 = with_field_u32(self.cntlid.get() as u32, 17, 17, self.authentication_required as u32);
        with_field_u32(dw0, 18, 18, self.secure_channel_required as u32)
    }

    /// What dword 0 of the completion says.
    #[must_use]
    pub const fn from_wire(dw0: u32) -> Self {
        let dw0 = dw0 as u64;
        Self { cntlid: Cntlid::new(u16_field(dw0, 15, 0)), authentication_required: bit(dw0, 17), secure_channel_required: bit(dw0, 18) }
    }
}

/// The parameter that a refused Connect got wrong: dword 0 of its completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct InvalidParameter {
    /// Invalid Parameter Offset (IPO), in bytes: bits 15:0.
    pub offset: u16,
    /// Invalid Attributes (IATTR), bit 0: whether the offset is one in the Connect data, not in the SQE.
    pub in_data: bool,
}

impl InvalidParameter {
    /// Queue identifier, in the SQE.
    pub const QID: Self = Self { offset: 42, in_data: false };
    /// Submission queue size, in the SQE.
    pub const SQSIZE: Self = Self { offset: 44, in_data: false };
    /// Keep alive timeout, in the SQE.
    pub const KATO: Self = Self { offset: 48, in_data: false };
    /// Host identifier, in the data.
    pub const HOSTID: Self = Self { offset: 0, in_data: true };
    /// Controller identifier, in the data.
    pub const CNTLID: Self = Self { offset: 16, in_data: true };
    /// Subsystem NQN, in the data.
    pub const SUBNQN: Self = Self { offset: 256, in_data: true };
    /// Host NQN, in the data.
    pub const HOSTNQN: Self = Self { offset: 512, in_data: true };

    /// Dword 0 of the completion.
    #[must_use]
    pub const fn to_wire(self) -> u32 {
        with_field_u32(self.offset as u32, 23, 16, self.in_data as u32)
    }

    /// What dword 0 of the completion says.
    #[must_use]
    pub const fn from_wire(dw0: u32) -> Self {
        Self { offset: u16_field(dw0 as u64, 15, 0), in_data: bit(u8_field(dw0 as u64, 23, 16) as u64, 0) }
    }

    /// The name of the parameter, if it is a known one.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::QID => Some("queue id"),
            Self::SQSIZE => Some("queue size"),
            Self::KATO => Some("keep alive timeout"),
            Self::HOSTID => Some("host id"),
            Self::CNTLID => Some("controller id"),
            Self::SUBNQN => Some("subsystem NQN"),
            Self::HOSTNQN => Some("host NQN"),
            _ => None,
        }
    }
}

impl fmt::Display for InvalidParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.in_data { "Connect data" } else { "Connect command" };
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "byte {} of the {place}", self.offset),
        }
    }
}

impl fmt::Debug for InvalidParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InvalidParameter({self})")
    }
}

/// A refused Connect: its status, and the parameter at fault where the status has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectRefusal {
    /// The status.
    pub status: Status,
    /// What was wrong, with the statuses "invalid parameters" (182h) and "invalid host" (184h).
    pub parameter: Option<InvalidParameter>,
}

impl ConnectRefusal {
    /// The record format is not 0.
    pub const INCOMPATIBLE_FORMAT: Self = Self { status: StatusCode::CONNECT_INCOMPATIBLE_FORMAT.do_not_retry(), parameter: None };
    /// The controller is busy, or all are taken: the host may try again.
    pub const BUSY: Self = Self { status: StatusCode::CONNECT_CONTROLLER_BUSY.retryable(), parameter: None };
    /// The host NQN is not allowed here.
    pub const INVALID_HOST: Self =
        Self { status: StatusCode::CONNECT_INVALID_HOST.do_not_retry(), parameter: Some(InvalidParameter::HOSTNQN) };

    /// The parameter is wrong, and will be.
    #[must_use]
    pub const fn invalid(parameter: InvalidParameter) -> Self {
        Self { status: StatusCode::CONNECT_INVALID_PARAMETERS.do_not_retry(), parameter: Some(parameter) }
    }

    /// Dword 0 of the completion.
    #[must_use]
    pub const fn result(self) -> u32 {
        match self.parameter {
            Some(parameter) => parameter.to_wire(),
            None => 0,
        }
    }

    /// What a completion with an error says.
    #[must_use]
    pub const fn from_completion(status: Status, dw0: u32) -> Self {
        let parameter = match status.code {
            StatusCode::CONNECT_INVALID_PARAMETERS | StatusCode::CONNECT_INVALID_HOST => Some(InvalidParameter::from_wire(dw0)),
            _ => None,
        };
        Self { status, parameter }
    }
}

impl fmt::Display for ConnectRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status.code.name_for(CommandFamily::Fabrics) {
            Some(name) => write!(f, "{name} ({:03X}h)", self.status.code.folded())?,
            None => self.status.code.fmt(f)?,
        }
        match self.parameter {
            Some(parameter) => write!(f, ": {parameter}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ConnectRefusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_lies_on_the_wire_as_specified() {
        let subsystem = Nqn::new("nqn.2026-11.org.example:vol0").unwrap();
        let host = Nqn::new("nqn.2026-11.org.example:host").unwrap();
        let data = ConnectData::new(HostId([9; 16]), Cntlid::new(0x1234), &subsystem, &host);
        let bytes = data.as_bytes();
        assert_eq!(bytes[..20], [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0x34, 0x12, 0, 0]);
        assert_eq!(&bytes[256..285], b"nqn.2026-11.org.example:vol0\0");
        assert_eq!(&bytes[512..541], b"nqn.2026-11.org.example:host\0");
        assert_eq!(data.subsystem_nqn(), Ok(subsystem));
        assert_eq!(data.host_nqn(), Ok(host));
        assert!(ConnectData::read_from(&bytes[..1023]).is_err());
    }

    #[test]
    fn an_unterminated_name_is_an_error() {
        let mut bytes = [0; 1024];
        bytes[512..768].fill(b'n');
        assert_eq!(ConnectData::read_from(&bytes).unwrap().host_nqn(), Err(NqnError::Unterminated));
        assert_eq!(ConnectData::read_from(&bytes).unwrap().subsystem_nqn(), Err(NqnError::Empty));
    }

    #[test]
    fn result_has_the_authentication_bits_above_the_controller() {
        let result = ConnectResult { cntlid: Cntlid::new(7), authentication_required: true, secure_channel_required: false };
        assert_eq!(result.to_wire(), 0x0002_0007);
        assert_eq!(ConnectResult::from_wire(0x0002_0007), result);
        assert!(ConnectResult::from_wire(0x0004_0000).secure_channel_required);
        assert_eq!(ConnectResult::new(Cntlid::new(1)).to_wire(), 1);
    }

    #[test]
    fn refusal_names_the_parameter() {
        let refusal = ConnectRefusal::invalid(InvalidParameter::SUBNQN);
        assert_eq!(refusal.result(), 0x0001_0100);
        assert_eq!(ConnectRefusal::invalid(InvalidParameter::SQSIZE).result(), 44);
        let seen = ConnectRefusal::from_completion(refusal.status, refusal.result());
        assert_eq!(seen, refusal);
        assert_eq!(seen.to_string(), "Connect: invalid parameters (182h): subsystem NQN");
        assert_eq!(ConnectRefusal::INVALID_HOST.to_string(), "Connect: invalid host (184h): host NQN");
        assert_eq!(ConnectRefusal::from_completion(ConnectRefusal::BUSY.status, 0xFFFF_FFFF), ConnectRefusal::BUSY);
        assert!(ConnectRefusal::BUSY.status.is_retryable());
        let odd = ConnectRefusal::invalid(InvalidParameter { offset: 7, in_data: true });
        assert_eq!(odd.to_string(), "Connect: invalid parameters (182h): byte 7 of the Connect data");
        let other = ConnectRefusal::from_completion(StatusCode::INTERNAL_ERROR.do_not_retry(), 0);
        assert_eq!(other.to_string(), "internal error (006h)");
    }
}
