//! A host and a port, as in `192.0.2.1:4420`, `[::1]:4420`, or `storage.example`.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
};

/// The machine part of an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// An address.
    Ip(IpAddr),
    /// A link-local IPv6 address with the interface that it is on: `fe80::1%eth0`.
    Scoped(Ipv6Addr, Box<str>),
    /// A host name, to be resolved.
    Name(Box<str>),
}

/// A host and a TCP port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// The machine.
    pub host: Host,
    /// The port.
    pub port: u16,
}

/// Why a text is not a host with an optional port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostPortError {
    /// Nothing there, or only a port.
    #[error("the host is missing in `{0}`: write HOST or HOST:PORT")]
    NoHost(String),
    /// More than one colon outside of brackets.
    #[error("`{0}` has more than one colon: write an IPv6 address in brackets, as in [::1]:4420")]
    Brackets(String),
    /// An opening bracket without the closing one.
    #[error("`{0}` has no `]` after its IPv6 address: write it as [::1]:4420")]
    Unclosed(String),
    /// Something else than an IPv6 address in brackets.
    #[error("`{0}` in brackets is not an IPv6 address: write it as [::1]:4420")]
    Ipv6(String),
    /// Something else than a port after the closing bracket.
    #[error("`{0}` after `]` is not a port: write it as [::1]:4420")]
    AfterBracket(String),
    /// Neither an IPv4 address nor a host name.
    #[error("`{0}` is neither an IPv4 address nor a host name")]
    Name(String),
    /// A port that is not a number up to 65535.
    #[error("`{0}` is not a port: use a number from 1 to 65535")]
    Port(String),
    /// No port where one must be.
    #[error("`{0}` has no port: write it as 127.0.0.1:9420 or [::1]:9420")]
    NoPort(String),
}

const NAME_MAX_BYTES: usize = 253;
const LABEL_MAX_BYTES: usize = 63;
/// IFNAMSIZ less the NUL.
const INTERFACE_MAX_BYTES: usize = 15;

impl HostPort {
    /// Reads `HOST` or `HOST:PORT`, with `default_port` when there is none.
    ///
    /// Port 0 is read: what it means, the caller knows.
    ///
    /// # Errors
    /// Names the part that is wrong.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, HostPortError> {
        let (host, port) = split(text)?;
        Ok(Self { host, port: port.map_or(Ok(default_port), parse_port)? })
    }

    /// Reads `HOST:PORT`.
    ///
    /// # Errors
    /// Names the part that is wrong, or that there is no port.
    pub fn parse_with_port(text: &str) -> Result<Self, HostPortError> {
        let (host, port) = split(text)?;
        let port = port.ok_or_else(|| HostPortError::NoPort(text.to_owned()))?;
        Ok(Self { host, port: parse_port(port)? })
    }

    /// Whether only this machine can reach the address: 127.0.0.0/8, `::1`, or the name `localhost`.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        match &self.host {
            Host::Ip(ip) => ip.to_canonical().is_loopback(),
            Host::Scoped(..) => false,
            Host::Name(name) => name.eq_ignore_ascii_case("localhost"),
        }
    }

    /// Whether two addresses cannot both be bound: the same, or one of them every address of its family. Port 0 is another port each time.
    #[must_use]
    pub fn collides_with(&self, other: &Self) -> bool {
        let same_family = |a: &IpAddr, b: &IpAddr| a.is_ipv4() == b.is_ipv4();
        let same_host = match (&self.host, &other.host) {
            (Host::Ip(a), Host::Ip(b)) => a == b || (same_family(a, b) && (a.is_unspecified() || b.is_unspecified())),
            (Host::Ip(IpAddr::V6(ip)), Host::Scoped(..)) | (Host::Scoped(..), Host::Ip(IpAddr::V6(ip))) => ip.is_unspecified(),
            (Host::Name(a), Host::Name(b)) => a.eq_ignore_ascii_case(b),
            (a, b) => a == b,
        };
        self.port != 0 && self.port == other.port && same_host
    }

    /// The addresses behind the host, asking the system's resolver for a name. Blocks.
    ///
    /// # Errors
    /// What the resolver says.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<_> = match &self.host {
            Host::Ip(ip) => vec![SocketAddr::new(*ip, self.port)],
            Host::Scoped(ip, zone) => (format!("{ip}%{zone}").as_str(), self.port).to_socket_addrs()?.collect(),
            Host::Name(name) => (&**name, self.port).to_socket_addrs()?.collect(),
        };
        if found.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        }
        Ok(found)
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        let host = match address {
            SocketAddr::V6(v6) if v6.scope_id() != 0 => Host::Scoped(*v6.ip(), v6.scope_id().to_string().into()),
            _ => Host::Ip(address.ip()),
        };
        Self { host, port: address.port() }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
            Self::Ip(IpAddr::V4(ip)) => ip.fmt(f),
            Self::Scoped(ip, zone) => write!(f, "[{ip}%{zone}]"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

fn split(text: &str) -> Result<(Host, Option<&str>), HostPortError> {
    if let Some(bracketed) = text.strip_prefix('[') {
        let (ip, rest) = bracketed.split_once(']').ok_or_else(|| HostPortError::Unclosed(text.to_owned()))?;
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(port),
            None if rest.is_empty() => None,
            None => return Err(HostPortError::AfterBracket(rest.to_owned())),
        };
        return Ok((parse_ipv6(ip)?, port));
    }
    let (name, port) = match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => {
            return Err(HostPortError::Brackets(text.to_owned()));
        }
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    if name.is_empty() {
        return Err(HostPortError::NoHost(text.to_owned()));
    }
    Ok((parse_name(name)?, port))
}

fn parse_ipv6(text: &str) -> Result<Host, HostPortError> {
    let refusal = || HostPortError::Ipv6(text.to_owned());
    let Some((ip, zone)) = text.split_once('%') else {
        return text.parse::<Ipv6Addr>().map(|ip| Host::Ip(ip.into())).map_err(|_| refusal());
    };
    let interface = (1..=INTERFACE_MAX_BYTES).contains(&zone.len()) && zone.bytes().all(|b| b.is_ascii_graphic() && !b"/%:?#".contains(&b));
    match ip.parse() {
        Ok(ip) if interface => Ok(Host::Scoped(ip, zone.into())),
        _ => Err(refusal()),
    }
}

fn parse_name(text: &str) -> Result<Host, HostPortError> {
    if let Ok(ip) = text.parse::<Ipv4Addr>() {
        return Ok(Host::Ip(ip.into()));
    }
    let labels = text.strip_suffix('.').unwrap_or(text).split('.');
    let is_label = |label: &str| {
        (1..=LABEL_MAX_BYTES).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // A last label of digits is a mistyped IPv4 address (RFC 3696, "Restrictions on domain (DNS) names").
    let numeric = labels.clone().next_back().is_some_and(|l| l.bytes().all(|b| b.is_ascii_digit()));
    if text.len() > NAME_MAX_BYTES || numeric || !labels.clone().all(is_label) {
        return Err(HostPortError::Name(text.to_owned()));
    }
    Ok(Host::Name(text.into()))
}

fn parse_port(text: &str) -> Result<u16, HostPortError> {
    Some(text)
        .filter(|t| t.bytes().all(|b| b.is_ascii_digit()))
        .and_then(|t| t.parse().ok())
        .ok_or_else(|| HostPortError::Port(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> String {
        HostPort::parse(text, 4420).unwrap_or_else(|e| panic!("{e}")).to_string()
    }

    fn refusal(text: &str) -> String {
        HostPort::parse(text, 4420).expect_err(text).to_string()
    }

    #[test]
    fn reads_addresses_and_names_with_and_without_a_port() {
        for (text, expected) in [
            ("192.0.2.1", "192.0.2.1:4420"),
            ("192.0.2.1:1", "192.0.2.1:1"),
            ("[::1]", "[::1]:4420"),
            ("[::1]:65535", "[::1]:65535"),
            ("[fe80::1%eth0]:4421", "[fe80::1%eth0]:4421"),
            ("localhost:0", "localhost:0"),
            ("storage-1.example.", "storage-1.example.:4420"),
            ("my_host", "my_host:4420"),
        ] {
            assert_eq!(read(text), expected);
        }
    }

    #[test]
    fn refuses_with_the_part_that_is_wrong() {
        for (text, expected) in [
            ("", "the host is missing in ``: write HOST or HOST:PORT"),
            (":4420", "the host is missing in `:4420`: write HOST or HOST:PORT"),
            ("::1", "`::1` has more than one colon: write an IPv6 address in brackets, as in [::1]:4420"),
            ("[::1", "`[::1` has no `]` after its IPv6 address: write it as [::1]:4420"),
            ("[127.0.0.1]", "`127.0.0.1` in brackets is not an IPv6 address: write it as [::1]:4420"),
            ("[fe80::1%]", "`fe80::1%` in brackets is not an IPv6 address: write it as [::1]:4420"),
            ("[::1]4420", "`4420` after `]` is not a port: write it as [::1]:4420"),
            ("256.0.0.1", "`256.0.0.1` is neither an IPv4 address nor a host name"),
            ("a b", "`a b` is neither an IPv4 address nor a host name"),
            ("-a", "`-a` is neither an IPv4 address nor a host name"),
            ("a..b", "`a..b` is neither an IPv4 address nor a host name"),
            ("host:", "`` is not a port: use a number from 1 to 65535"),
            ("host:65536", "`65536` is not a port: use a number from 1 to 65535"),
            ("host:+1", "`+1` is not a port: use a number from 1 to 65535"),
            ("[::1]:http", "`http` is not a port: use a number from 1 to 65535"),
        ] {
            assert_eq!(refusal(text), expected);
        }
        assert!(HostPort::parse(&"a".repeat(63), 1).is_ok());
        assert!(HostPort::parse(&"a".repeat(64), 1).is_err());
        let longest = "a.".repeat(126) + "a";
        assert!(HostPort::parse(&longest, 1).is_ok());
        assert!(HostPort::parse(&format!("{longest}b"), 1).is_err());
        assert!(HostPort::parse("[fe80::1%interface123456]", 1).is_ok());
        assert!(HostPort::parse("[fe80::1%interface1234567]", 1).is_err());
    }

    #[test]
    fn loopback_is_what_only_this_machine_reaches() {
        for text in ["127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]", "LocalHost"] {
            assert!(HostPort::parse(text, 1).unwrap().is_loopback(), "{text}");
        }
        for text in ["0.0.0.0", "[::]", "192.0.2.1", "localhost.example", "[fe80::1%lo]"] {
            assert!(!HostPort::parse(text, 1).unwrap().is_loopback(), "{text}");
        }
    }

    #[test]
    fn addresses_resolve_to_themselves() {
        let resolved = |text| HostPort::parse(text, 7).unwrap().resolve().unwrap();
        assert_eq!(resolved("127.0.0.1"), ["127.0.0.1:7".parse().unwrap()]);
        assert_eq!(resolved("[::1]:9"), ["[::1]:9".parse().unwrap()]);
    }

    proptest! {
        #[test]
        fn what_is_read_prints_and_reads_back(text in "\\[?[a-z0-9.:%-]{0,20}\\]?(:[0-9]{0,6})?|\\PC{0,20}") {
            if let Ok(address) = HostPort::parse(&text, 4420) {
                prop_assert_eq!(HostPort::parse(&address.to_string(), 1), Ok(address));
            }
        }
    }
}
