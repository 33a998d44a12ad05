//! How each leaf type reads from a YAML value.

use std::{net::SocketAddr, path::PathBuf};

use crate::{
    AnyNsid, BlockSize, Connections, Controllers, Crc, CtrlLossTimeout, FastIoFailTimeout, Fpdu, HostPort, InCapsule, IoQueues, IoTimeout,
    KeepAlive, Model, NVME_PORT, NbdDevice, NbdEndpoint, NbdMode, Nguid, Nqn, PollBudget, PoolMemory, QueueSize, Reactors, ReconnectDelay,
    Serial, Size, TargetNsid, Transport, UnsafeShutdowns, Url, ValueError, VolumeName, endpoint::check_socket_path, yaml::node::Value,
};

/// Why a value is not of the wanted type.
pub(crate) enum Mismatch {
    /// Another kind of value than [`Scalar::EXPECTED`].
    Kind,
    /// A number or the like where a text is wanted: quotes would do.
    Unquoted,
    /// The right kind, but not a value that the type has.
    Value(ValueError),
}

/// A leaf of the configuration.
pub(crate) trait Scalar: Sized {
    /// What would be right, for an error.
    const EXPECTED: &'static str;

    fn read(value: &Value) -> Result<Self, Mismatch>;
}

fn text(value: &Value) -> Result<&str, Mismatch> {
    match value {
        Value::Text(text) => Ok(text),
        Value::Bool(_) | Value::Integer(_) | Value::Float(_) => Err(Mismatch::Unquoted),
        Value::Null | Value::Sequence(_) | Value::Mapping(_) => Err(Mismatch::Kind),
    }
}

fn invalid(error: impl Into<ValueError>) -> Mismatch {
    Mismatch::Value(error.into())
}

macro_rules! texts {
    ($($type:ident: $expected:literal),+ $(,)?) => {$(
        impl Scalar for $type {
            const EXPECTED: &'static str = $expected;

            fn read(value: &Value) -> Result<Self, Mismatch> {
                text(value)?.parse().map_err(invalid)
            }
        }
    )+};
}

texts! {
    Nqn: "an NQN such as nqn.2026-11.org.example:vol0",
    Nguid: "32 hexadecimal digits",
    Serial: "a text of 1 to 20 characters",
    Model: "a text of 1 to 40 characters",
    VolumeName: "a name such as vol0",
    NbdDevice: "an NBD device such as /dev/nbd0, or auto",
    NbdMode: "octal permissions such as \"0660\"",
}

macro_rules! switches {
    ($($type:ident: $expected:expr),+ $(,)?) => {$(
        impl Scalar for $type {
            const EXPECTED: &'static str = $expected;

            fn read(value: &Value) -> Result<Self, Mismatch> {
                match value {
                    Value::Text(text) => text.parse().map_err(invalid),
                    _ => Err(Mismatch::Kind),
                }
            }
        }
    )+};
}

switches! {
    Transport: Self::EXPECTED,
    Fpdu: Self::EXPECTED,
    Crc: Self::EXPECTED,
    UnsafeShutdowns: "`trust` or `fail`",
}

macro_rules! numbers {
    ($($type:ident),+) => {$(
        impl Scalar for $type {
            const EXPECTED: &'static str = Self::EXPECTED;

            fn read(value: &Value) -> Result<Self, Mismatch> {
                match value {
                    Value::Integer(n) => Self::from_wide(*n).map_err(|_| Mismatch::Kind),
                    _ => Err(Mismatch::Kind),
                }
            }
        }
    )+};
}

numbers!(Reactors, QueueSize, IoQueues, Controllers, TargetNsid, AnyNsid, Connections, KeepAlive, ReconnectDelay, IoTimeout);

impl Scalar for bool {
    const EXPECTED: &'static str = "true or false";

    fn read(value: &Value) -> Result<Self, Mismatch> {
        match value {
            Value::Bool(value) => Ok(*value),
            _ => Err(Mismatch::Kind),
        }
    }
}

impl Scalar for Size {
    const EXPECTED: &'static str = "a size such as 512, 4KiB or 10GiB";

    fn read(value: &Value) -> Result<Self, Mismatch> {
        match value {
            Value::Integer(n) => u64::try_from(*n).map(Self::from_bytes).map_err(|_| Mismatch::Kind),
            Value::Text(text) => text.parse().map_err(invalid),
            _ => Err(Mismatch::Kind),
        }
    }
}

macro_rules! sizes {
    ($($type:ident: $expected:literal),+ $(,)?) => {$(
        impl Scalar for $type {
            const EXPECTED: &'static str = $expected;

            fn read(value: &Value) -> Result<Self, Mismatch> {
                Self::try_from(Size::read(value)?).map_err(invalid)
            }
        }
    )+};
}

sizes! {
    BlockSize: "512, 1024, 2048 or 4096",
    InCapsule: "a size up to 16KiB",
    PoolMemory: "a size such as 64MiB",
}

impl Scalar for PollBudget {
    const EXPECTED: &'static str = "0 or a time up to 10ms such as 50us";

    fn read(value: &Value) -> Result<Self, Mismatch> {
        match value {
            Value::Integer(n) => u32::try_from(*n).ok().and_then(Self::from_micros).ok_or(Mismatch::Kind),
            Value::Text(text) => text.parse().map_err(invalid),
            _ => Err(Mismatch::Kind),
        }
    }
}

impl Scalar for HostPort {
    const EXPECTED: &'static str = "an address such as \"0.0.0.0:4420\"";

    fn read(value: &Value) -> Result<Self, Mismatch> {
        Self::parse(text(value)?, NVME_PORT).map_err(invalid)
    }
}

impl Scalar for SocketAddr {
    const EXPECTED: &'static str = "an address with a port such as \"127.0.0.1:9421\"";

    fn read(value: &Value) -> Result<Self, Mismatch> {
        let text = text(value)?;
        text.parse().map_err(|_| Mismatch::Value(ValueError::SocketAddress(text.to_owned())))
    }
}

impl Scalar for uuid::Uuid {
    const EXPECTED: &'static str = "a UUID such as 11111111-2222-3333-4444-555555555555";

    fn read(value: &Value) -> Result<Self, Mismatch> {
        let text = text(value)?;
        Self::try_parse(text).ok().filter(|uuid| !uuid.is_nil()).ok_or_else(|| Mismatch::Value(ValueError::Uuid(text.to_owned())))
    }
}

impl Scalar for PathBuf {
    const EXPECTED: &'static str = "an absolute path such as /var/lib/godwit/vol0.img";

    fn read(value: &Value) -> Result<Self, Mismatch> {
        let text = text(value)?;
        check_path(text)?;
        Ok(text.into())
    }
}

/// A path to a file that does not depend on where the daemon runs.
fn check_path(text: &str) -> Result<(), Mismatch> {
    if text.contains('\0') {
        return Err(Mismatch::Value(ValueError::PathNul));
    }
    if !text.starts_with('/') {
        return Err(Mismatch::Value(ValueError::RelativePath(text.to_owned())));
    }
    if text.ends_with('/') {
        return Err(Mismatch::Value(ValueError::DirectoryPath(text.to_owned())));
    }
    Ok(())
}

/// The path of a Unix socket.
pub(crate) struct SocketPath(pub(crate) PathBuf);

impl Scalar for SocketPath {
    const EXPECTED: &'static str = "an absolute path such as /run/godwit/initiator.sock";

    fn read(value: &Value) -> Result<Self, Mismatch> {
        let path = PathBuf::read(value)?;
        check_socket_path(text(value)?).map_err(invalid)?;
        Ok(Self(path))
    }
}

impl Scalar for NbdEndpoint {
    const EXPECTED: &'static str = "an NBD endpoint such as unix:/run/godwit/vol0.sock or tcp:127.0.0.1:10809";

    fn read(value: &Value) -> Result<Self, Mismatch> {
        let endpoint: Self = text(value)?.parse().map_err(invalid)?;
        if let Some(path) = endpoint.path() {
            check_path(&path.to_string_lossy())?;
        }
        Ok(endpoint)
    }
}

/// An address of which the port is not left out.
pub(crate) struct AddressWithPort(pub(crate) HostPort);

impl Scalar for AddressWithPort {
    const EXPECTED: &'static str = "an address with a port such as \"127.0.0.1:9420\"";

    fn read(value: &Value) -> Result<Self, Mismatch> {
        HostPort::parse_with_port(text(value)?).map(Self).map_err(invalid)
    }
}

/// An address to connect to.
impl Scalar for Url {
    const EXPECTED: &'static str = "an address such as iwarp://192.0.2.1:4420";

    fn read(value: &Value) -> Result<Self, Mismatch> {
        Self::parse_address(text(value)?).map_err(invalid)
    }
}

/// Seconds with values that mean something else: numbers of which the type says which are right.
macro_rules! seconds {
    ($($type:ident: $expected:literal),+ $(,)?) => {$(
        impl Scalar for $type {
            const EXPECTED: &'static str = $expected;

            fn read(value: &Value) -> Result<Self, Mismatch> {
                match value {
                    Value::Integer(n) => n.to_string().parse().map_err(|_| Mismatch::Kind),
                    _ => Err(Mismatch::Kind),
                }
            }
        }
    )+};
}

seconds! {
    CtrlLossTimeout: "seconds up to 2147483647, 0 to fail at once, or -1 to wait for ever",
    FastIoFailTimeout: "seconds up to 2147483647, 0 to fail at once, or -1 to wait as long as ctrl_loss_tmo says",
}

/// The name of an NBD export.
pub(crate) struct ExportName(pub(crate) String);

impl Scalar for ExportName {
    const EXPECTED: &'static str = "a text";

    fn read(value: &Value) -> Result<Self, Mismatch> {
        let text = text(value)?;
        if text.contains('\0') {
            return Err(Mismatch::Value(ValueError::ExportNameNul));
        }
        Ok(Self(text.to_owned()))
    }
}
