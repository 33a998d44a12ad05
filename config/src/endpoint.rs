//! Where a volume is served through NBD: `unix:PATH` or `tcp:HOST[:PORT]`.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::{HostPort, HostPortError};

/// The port that IANA assigned to NBD.
pub const NBD_PORT: u16 = 10809;

/// Where an NBD server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NbdEndpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port; 0 is any free one.
    Tcp(HostPort),
}

/// Why a text is not an [`NbdEndpoint`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NbdEndpointError {
    /// Neither `unix:` nor `tcp:`.
    #[error("`{0}` is not an NBD endpoint: write unix:PATH, as in unix:/run/godwit/vol0.sock, or tcp:HOST[:PORT]")]
    Kind(String),
    /// `unix:` alone.
    #[error("`unix:` needs a path, as in unix:/run/godwit/vol0.sock")]
    NoPath,
    /// Longer than `sun_path`.
    #[error("the socket path is {0} bytes long: the system's limit is {SOCKET_PATH_MAX_BYTES}")]
    PathTooLong(usize),
    /// A NUL byte.
    #[error("the socket path has a NUL byte")]
    PathNul,
    /// The host or the port.
    #[error(transparent)]
    Address(#[from] HostPortError),
}

/// `sun_path` of unix(7) less the NUL.
const SOCKET_PATH_MAX_BYTES: usize = 107;

impl NbdEndpoint {
    /// Whether another machine can reach it, which needs `--nbd-allow-remote`.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        match self {
            Self::Unix(_) => false,
            Self::Tcp(address) => !address.is_loopback(),
        }
    }

    /// The path of a Unix socket.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Unix(path) => Some(path),
            Self::Tcp(_) => None,
        }
    }
}

impl FromStr for NbdEndpoint {
    type Err = NbdEndpointError;

    fn from_str(text: &str) -> Result<Self, NbdEndpointError> {
        match text.split_once(':') {
            Some(("unix", path)) => check_socket_path(path).map(|()| Self::Unix(path.into())),
            Some(("tcp", address)) => {
                let address = address.strip_prefix("//").unwrap_or(address);
                Ok(Self::Tcp(HostPort::parse(address, NBD_PORT)?))
            }
            _ => Err(NbdEndpointError::Kind(text.to_owned())),
        }
    }
}

/// Whether a Unix socket can have this path.
pub(crate) fn check_socket_path(path: &str) -> Result<(), NbdEndpointError> {
    match path.len() {
        0 => Err(NbdEndpointError::NoPath),
        len if len > SOCKET_PATH_MAX_BYTES => Err(NbdEndpointError::PathTooLong(len)),
        _ if path.contains('\0') => Err(NbdEndpointError::PathNul),
        _ => Ok(()),
    }
}

impl fmt::Display for NbdEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_unix_and_tcp() {
        for (text, expected, remote) in [
            ("unix:/run/godwit/vol0.sock", "unix:/run/godwit/vol0.sock", false),
            ("unix:vol0.sock", "unix:vol0.sock", false),
            ("tcp:127.0.0.1", "tcp:127.0.0.1:10809", false),
            ("tcp:[::]:10810", "tcp:[::]:10810", true),
            ("tcp://localhost:0", "tcp:localhost:0", false),
            ("tcp:storage.example", "tcp:storage.example:10809", true),
        ] {
            let endpoint: NbdEndpoint = text.parse().unwrap();
            assert_eq!((endpoint.to_string().as_str(), endpoint.is_remote()), (expected, remote));
        }
    }

    #[test]
    fn refuses_with_what_would_be_right() {
        let refusal = |text: &str| text.parse::<NbdEndpoint>().expect_err(text).to_string();
        for text in ["", "/run/x.sock", "nbd+unix:///?socket=x", "127.0.0.1:10809"] {
            assert_eq!(
                refusal(text),
                format!("`{text}` is not an NBD endpoint: write unix:PATH, as in unix:/run/godwit/vol0.sock, or tcp:HOST[:PORT]")
            );
        }
        assert_eq!(refusal("unix:"), "`unix:` needs a path, as in unix:/run/godwit/vol0.sock");
        assert_eq!(refusal("unix:a\0"), "the socket path has a NUL byte");
        assert!(format!("unix:{}", "x".repeat(107)).parse::<NbdEndpoint>().is_ok());
        assert_eq!(refusal(&format!("unix:{}", "x".repeat(108))), "the socket path is 108 bytes long: the system's limit is 107");
        assert_eq!(refusal("tcp::10809"), "the host is missing in `:10809`: write HOST or HOST:PORT");
    }

    proptest! {
        #[test]
        fn what_is_read_prints_and_reads_back(text in "(unix:|tcp:)?\\PC{0,30}") {
            if let Ok(endpoint) = text.parse::<NbdEndpoint>() {
                prop_assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
            }
        }
    }
}
