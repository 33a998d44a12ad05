//! Where an NBD export is, by the URI scheme of NBD: `nbd://HOST[:PORT]/[NAME]` and `nbd+unix:///[NAME]?socket=PATH`.

use std::fmt::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::endpoint::check_socket_path;
use crate::{HostPort, HostPortError, NBD_PORT, NbdEndpoint, NbdEndpointError};

/// An NBD export of some server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NbdUri {
    /// Where the server listens.
    pub endpoint: NbdEndpoint,
    /// The name of the export; empty is the default one.
    pub export_name: String,
}

/// Why a text is not an [`NbdUri`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NbdUriError {
    /// Another scheme, or none.
    #[error("`{0}` is not an NBD URI: write nbd://HOST[:PORT]/NAME or nbd+unix:///NAME?socket=PATH")]
    Scheme(String),
    /// TLS.
    #[error("`{0}` asks for TLS, which is not there: use nbd:// or nbd+unix://")]
    Tls(String),
    /// A Unix socket that is not named.
    #[error("`{0}` names no socket: write nbd+unix:///NAME?socket=PATH")]
    NoSocket(String),
    /// A host where there is none.
    #[error("`{0}` has a host: a Unix socket has none, write nbd+unix:///NAME?socket=PATH")]
    Host(String),
    /// A query that is not understood.
    #[error("`{0}` in an NBD URI is not understood: there is socket=PATH, of nbd+unix://")]
    Query(String),
    /// A `%` without two hexadecimal digits, or bytes that are no text.
    #[error("`{0}` is not percent-encoded UTF-8")]
    Encoding(String),
    /// A NUL byte.
    #[error("`{0}` has a NUL byte")]
    Nul(String),
    /// The host or the port.
    #[error(transparent)]
    Address(#[from] HostPortError),
    /// The path of the socket.
    #[error(transparent)]
    Socket(#[from] NbdEndpointError),
}

impl FromStr for NbdUri {
    type Err = NbdUriError;

    fn from_str(text: &str) -> Result<Self, NbdUriError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| NbdUriError::Scheme(text.to_owned()))?;
        let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
        let (authority, name) = place.split_once('/').unwrap_or((place, ""));
        let export_name = decode(name)?;
        let endpoint = match scheme {
            "nbd" => match query {
                Some(query) => return Err(NbdUriError::Query(query.to_owned())),
                None => NbdEndpoint::Tcp(HostPort::parse(if authority.is_empty() { "localhost" } else { authority }, NBD_PORT)?),
            },
            "nbd+unix" if !authority.is_empty() => return Err(NbdUriError::Host(text.to_owned())),
            "nbd+unix" => {
                let query = query.ok_or_else(|| NbdUriError::NoSocket(text.to_owned()))?;
                let path = query.strip_prefix("socket=").filter(|path| !path.contains('&'));
                let path = decode(path.ok_or_else(|| NbdUriError::Query(query.to_owned()))?)?;
                check_socket_path(&path)?;
                NbdEndpoint::Unix(PathBuf::from(path))
            }
            "nbds" | "nbds+unix" => return Err(NbdUriError::Tls(text.to_owned())),
            _ => return Err(NbdUriError::Scheme(text.to_owned())),
        };
        Ok(Self { endpoint, export_name })
    }
}

/// Takes percent-encoding off (RFC 3986, "Percent-Encoding").
fn decode(text: &str) -> Result<String, NbdUriError> {
    let wrong = || NbdUriError::Encoding(text.to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let decoded = match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
                let value = digit().zip(digit()).map(|(high, low)| high * 16 + low);
                value.and_then(|value| u8::try_from(value).ok()).ok_or_else(wrong)?
            }
            byte => byte,
        };
        bytes.push(decoded);
    }
    if bytes.contains(&0) {
        return Err(NbdUriError::Nul(text.to_owned()));
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

/// Text as a part of a URI (RFC 3986, "Percent-Encoding").
struct Encoded<'a>(&'a [u8]);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|&byte| match byte {
            byte if byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte) => f.write_char(char::from(byte)),
            byte => write!(f, "%{byte:02X}"),
        })
    }
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Encoded(self.export_name.as_bytes());
        match &self.endpoint {
            NbdEndpoint::Tcp(address) => write!(f, "nbd://{address}/{name}"),
            NbdEndpoint::Unix(path) => write!(f, "nbd+unix:///{name}?socket={}", Encoded(path.as_os_str().as_bytes())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(String, String), String> {
        let uri: NbdUri = text.parse().map_err(|error: NbdUriError| error.to_string())?;
        Ok((uri.endpoint.to_string(), uri.export_name))
    }

    #[test]
    fn reads_tcp_and_unix_exports() {
        for (text, endpoint, name) in [
            ("nbd://192.0.2.7", "tcp:192.0.2.7:10809", ""),
            ("nbd://storage.example:7/vol0", "tcp:storage.example:7", "vol0"),
            ("nbd://[::1]:7/a/b", "tcp:[::1]:7", "a/b"),
            ("nbd:///vol%200", "tcp:localhost:10809", "vol 0"),
            ("nbd+unix:///?socket=/run/vol0.sock", "unix:/run/vol0.sock", ""),
            ("nbd+unix:///v%c3%b6l?socket=/run/a%3fb", "unix:/run/a?b", "völ"),
        ] {
            assert_eq!(read(text), Ok((endpoint.to_owned(), name.to_owned())), "{text}");
        }
    }

    #[test]
    fn what_is_shown_is_read_again() {
        for (text, shown) in [
            ("nbd://[fe80::1%eth0]:7/a b/é&1", "nbd://[fe80::1%eth0]:7/a%20b/%C3%A9%261"),
            ("nbd+unix:///?socket=/run/vol0.sock", "nbd+unix:///?socket=/run/vol0.sock"),
            ("nbd+unix:///100%25?socket=/a b%3f", "nbd+unix:///100%25?socket=/a%20b%3F"),
        ] {
            let uri: NbdUri = text.parse().unwrap();
            assert_eq!(uri.to_string(), shown);
            assert_eq!(shown.parse(), Ok(uri));
        }
    }

    #[test]
    fn says_what_would_be_right() {
        for (text, words) in [
            ("/run/vol0.sock", "is not an NBD URI: write nbd://HOST"),
            ("iwarp://192.0.2.7", "is not an NBD URI"),
            ("nbds://192.0.2.7", "asks for TLS"),
            ("nbd+unix:///vol0", "names no socket"),
            ("nbd+unix://host/vol0?socket=/s", "has a host"),
            ("nbd+unix:///?socket=", "needs a path"),
            ("nbd+unix:///?path=/s", "`path=/s` in an NBD URI is not understood"),
            ("nbd://host/?socket=/s", "`socket=/s` in an NBD URI is not understood"),
            ("nbd://host/%4", "is not percent-encoded UTF-8"),
            ("nbd://host/a%00b", "has a NUL byte"),
            ("nbd+unix:///?socket=/s%00", "has a NUL byte"),
            ("nbd://host/%ff", "is not percent-encoded UTF-8"),
            ("nbd://a:b:c/", "more than one colon"),
        ] {
            let refusal = read(text).unwrap_err();
            assert!(refusal.contains(words), "{text}: {refusal}");
        }
    }
}
