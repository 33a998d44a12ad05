//! Where a subsystem is: `iwarp://HOST[:PORT][/NQN][?nsid=1&fpdu=mss&crc=off]`, `rdma://...`.

use std::{fmt, str::FromStr};

use crate::{HostPort, HostPortError, Nqn, NqnError};

/// The port that IANA assigned to NVMe over Fabrics.
pub const NVME_PORT: u16 = 4420;

/// The RDMA provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// iWARP over TCP in this process.
    Iwarp,
    /// Kernel verbs: an RDMA device, be it hardware or soft.
    Rdma,
}

/// How large the FPDUs (framed protocol data units of iWARP) are that we send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fpdu {
    /// As large as the 16-bit ULPDU_Length allows: the fastest towards software.
    #[default]
    Large,
    /// As large as one TCP segment, for NICs that want them so.
    Mss,
}

/// Whether FPDUs carry a CRC32C.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Crc {
    /// Ask for it.
    #[default]
    On,
    /// Do without, unless the peer asks for it.
    Off,
}

/// A word that is none of those that a switch has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not {expected}")]
pub struct SwitchError {
    /// What was written.
    pub found: String,
    /// What would be right.
    pub expected: &'static str,
}

macro_rules! switch {
    ($type:ident, $expected:literal, $($word:literal => $variant:ident),+) => {
        impl $type {
            /// What would be right, for an error.
            pub(crate) const EXPECTED: &'static str = $expected;
        }

        impl FromStr for $type {
            type Err = SwitchError;

            fn from_str(text: &str) -> Result<Self, SwitchError> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(SwitchError { found: text.to_owned(), expected: $expected }),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $(Self::$variant => $word,)+ })
            }
        }
    };
}

switch!(Transport, "`iwarp` or `rdma`", "iwarp" => Iwarp, "rdma" => Rdma);
switch!(Fpdu, "`mss` or `large`", "mss" => Mss, "large" => Large);
switch!(Crc, "`on` or `off`", "on" => On, "off" => Off);

/// A target, a subsystem of it, or a namespace of that.
///
/// The NQN is taken literally up to the first `?`; nothing is percent-decoded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Url {
    /// The scheme.
    pub transport: Transport,
    /// Where the target listens.
    pub address: HostPort,
    /// The subsystem; absent names the target itself, for discovery or listening.
    pub nqn: Option<Nqn>,
    /// The namespace: 1 to FFFFFFFEh. Absent means the only one.
    pub nsid: Option<u32>,
    /// FPDU size of the iWARP connections.
    pub fpdu: Fpdu,
    /// CRC of the iWARP connections; absent leaves it to other options.
    pub crc: Option<Crc>,
}

/// Why a text is not a [`Url`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// No `://`.
    #[error("`{0}` has no scheme: write it as iwarp://HOST[:PORT]/NQN")]
    NoScheme(String),
    /// Another scheme.
    #[error("`{0}://` is not a transport: use iwarp:// (any machine) or rdma:// (an RDMA device)")]
    Scheme(String),
    /// `user@host`.
    #[error("`{0}` has a user name: NVMe over RDMA has none, write HOST[:PORT]")]
    User(String),
    /// The host or the port.
    #[error(transparent)]
    Address(#[from] HostPortError),
    /// Port zero.
    #[error("port 0 cannot be connected to: leave it out for {NVME_PORT}, or use a number from 1 to 65535")]
    PortZero,
    /// A subsystem where to listen.
    #[error("an address to listen on has no NQN: write iwarp://HOST[:PORT], and `--nqn {0}`")]
    ListenNqn(Nqn),
    /// A subsystem in an address of a volume.
    #[error("an address has no NQN here: write {address}, and the key `nqn: {nqn}`")]
    AddressNqn {
        /// The address without it.
        address: Box<Url>,
        /// The NQN.
        nqn: Nqn,
    },
    /// A namespace in an address of a volume.
    #[error("an address has no nsid here: write the key `nsid: {0}`")]
    AddressNsid(u32),
    /// No `://` in an address that is without NQN.
    #[error("`{0}` has no scheme: write it as iwarp://HOST[:PORT] or rdma://HOST[:PORT]")]
    AddressScheme(String),
    /// The subsystem.
    #[error(transparent)]
    Nqn(#[from] NqnError),
    /// Options without the subsystem that they are for.
    #[error("`nsid` needs a subsystem: write iwarp://HOST[:PORT]/NQN?nsid={0}")]
    NsidWithoutNqn(u32),
    /// An option that does not exist.
    #[error("`{0}` is not an option of an address: the options are nsid, fpdu and crc")]
    Option(String),
    /// An option without a value.
    #[error("the option `{0}` needs a value, as in nsid=1, fpdu=mss or crc=off")]
    NoValue(String),
    /// The same option twice.
    #[error("the option `{0}` is there twice")]
    Twice(&'static str),
    /// An option that the transport does not have.
    #[error("`{0}` is an option of iwarp:// only")]
    IwarpOnly(&'static str),
    /// No namespace id.
    #[error("`{0}` is not a namespace id: use a number from 1 to 4294967294")]
    Nsid(String),
    /// `fpdu` or `crc`.
    #[error("`{name}`: {reason}")]
    Switch {
        /// The option.
        name: &'static str,
        /// What is wrong with it.
        reason: SwitchError,
    },
}

impl UrlError {
    /// The same where no subsystem is asked for.
    fn without_nqn(self) -> Self {
        match self {
            Self::NoScheme(text) => Self::AddressScheme(text),
            other => other,
        }
    }
}

const NSID_MAX: u32 = 0xFFFF_FFFE;

impl Url {
    /// The address of a target, with every option at its default.
    #[must_use]
    pub const fn of(transport: Transport, address: HostPort) -> Self {
        Self { transport, address, nqn: None, nsid: None, fpdu: Fpdu::Large, crc: None }
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let url = Self::read(text)?;
        if url.address.port == 0 {
            return Err(UrlError::PortZero);
        }
        Ok(url)
    }
}

impl Url {
    /// Reads an address to listen on: as [`FromStr`], but without an NQN, and port 0 means any free port.
    ///
    /// # Errors
    /// Names the part that is wrong.
    pub fn parse_listen(text: &str) -> Result<Self, UrlError> {
        let url = Self::read(text).map_err(UrlError::without_nqn)?;
        match url.nqn {
            Some(nqn) => Err(UrlError::ListenNqn(nqn)),
            None => Ok(url),
        }
    }

    /// Reads an address of which it matters where it is and not what is there: as [`FromStr`], but advises none to write an NQN.
    ///
    /// # Errors
    /// Names the part that is wrong.
    pub fn parse_target(text: &str) -> Result<Self, UrlError> {
        text.parse().map_err(UrlError::without_nqn)
    }

    /// Reads an address to connect to: as [`FromStr`], but without NQN and nsid, which stand elsewhere.
    ///
    /// # Errors
    /// Names the part that is wrong.
    pub fn parse_address(text: &str) -> Result<Self, UrlError> {
        match text.parse::<Self>() {
            Ok(mut url) => match (url.nqn.take(), url.nsid.take()) {
                (Some(nqn), _) => Err(UrlError::AddressNqn { address: Box::new(url), nqn }),
                _ => Ok(url),
            },
            Err(UrlError::NsidWithoutNqn(nsid)) => Err(UrlError::AddressNsid(nsid)),
            Err(error) => Err(error.without_nqn()),
        }
    }

    fn read(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| UrlError::NoScheme(text.to_owned()))?;
        let transport = scheme.parse().map_err(|_| UrlError::Scheme(scheme.to_owned()))?;
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(UrlError::User(authority.to_owned()));
        }
        let mut url = Self::of(transport, HostPort::parse(authority, NVME_PORT)?);
        if !path.is_empty() {
            url.nqn = Some(path.parse()?);
        }
        if let Some(query) = query {
            url.read_options(query)?;
        }
        match (url.nsid, &url.nqn) {
            (Some(nsid), None) => Err(UrlError::NsidWithoutNqn(nsid)),
            _ => Ok(url),
        }
    }

    fn read_options(&mut self, query: &str) -> Result<(), UrlError> {
        let mut fpdu = None;
        for option in query.split('&') {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) if !value.is_empty() => (name, Ok(value)),
                Some((name, _)) => (name, Err(UrlError::NoValue(name.to_owned()))),
                None => (option, Err(UrlError::NoValue(option.to_owned()))),
            };
            match name {
                "nsid" => once("nsid", &mut self.nsid, parse_nsid(value?)?)?,
                "fpdu" => once("fpdu", &mut fpdu, self.parse_switch("fpdu", value?)?)?,
                "crc" => {
                    let crc = self.parse_switch("crc", value?)?;
                    once("crc", &mut self.crc, crc)?;
                }
                _ => return Err(UrlError::Option(name.to_owned())),
            }
        }
        self.fpdu = fpdu.unwrap_or_default();
        Ok(())
    }

    fn parse_switch<T: FromStr<Err = SwitchError>>(&self, name: &'static str, value: &str) -> Result<T, UrlError> {
        if self.transport != Transport::Iwarp {
            return Err(UrlError::IwarpOnly(name));
        }
        value.parse().map_err(|reason| UrlError::Switch { name, reason })
    }
}

fn once<T>(name: &'static str, slot: &mut Option<T>, value: T) -> Result<(), UrlError> {
    match slot.replace(value) {
        Some(_) => Err(UrlError::Twice(name)),
        None => Ok(()),
    }
}

fn parse_nsid(text: &str) -> Result<u32, UrlError> {
    Some(text)
        .filter(|t| t.bytes().all(|b| b.is_ascii_digit()))
        .and_then(|t| t.parse().ok())
        .filter(|nsid| (1..=NSID_MAX).contains(nsid))
        .ok_or_else(|| UrlError::Nsid(text.to_owned()))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.transport, self.address)?;
        if let Some(nqn) = &self.nqn {
            write!(f, "/{nqn}")?;
        }
        let nsid = self.nsid.map(|nsid| format!("nsid={nsid}"));
        let fpdu = (self.fpdu != Fpdu::default()).then(|| format!("fpdu={}", self.fpdu));
        let crc = self.crc.map(|crc| format!("crc={crc}"));
        for (i, option) in [nsid, fpdu, crc].into_iter().flatten().enumerate() {
            write!(f, "{}{option}", if i == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refusal(text: &str) -> String {
        text.parse::<Url>().expect_err(text).to_string()
    }

    #[test]
    fn reads_each_part() {
        let url: Url = "iwarp://[::1]:4421/nqn.2026-11.org.example:vol0?nsid=2&fpdu=mss&crc=off".parse().unwrap();
        assert_eq!(url.transport, Transport::Iwarp);
        assert_eq!(url.address.to_string(), "[::1]:4421");
        assert_eq!(url.nqn.as_ref().unwrap().as_str(), "nqn.2026-11.org.example:vol0");
        assert_eq!((url.nsid, url.fpdu, url.crc), (Some(2), Fpdu::Mss, Some(Crc::Off)));
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        for text in ["rdma://storage", "rdma://storage:4420", "rdma://storage/"] {
            let url: Url = text.parse().unwrap();
            assert_eq!(url.to_string(), "rdma://storage:4420");
            assert_eq!((url.nqn, url.nsid, url.fpdu, url.crc), (None, None, Fpdu::Large, None));
        }
    }

    #[test]
    fn displays_what_it_reads() {
        for text in [
            "iwarp://192.0.2.1:4420",
            "iwarp://[fe80::1%eth0]:4420/nqn.2014-08.org.nvmexpress.discovery",
            "iwarp://h:1/nqn.2026-11.org.example:a?nsid=4294967294&fpdu=mss&crc=on",
            "rdma://h:1/nqn.2026-11.org.example:a?nsid=1",
        ] {
            assert_eq!(text.parse::<Url>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_with_the_part_that_is_wrong() {
        let nqn = "nqn.2026-11.org.example:a";
        for (text, expected) in [
            ("192.0.2.1", "`192.0.2.1` has no scheme: write it as iwarp://HOST[:PORT]/NQN".to_owned()),
            ("tcp://h", "`tcp://` is not a transport: use iwarp:// (any machine) or rdma:// (an RDMA device)".to_owned()),
            ("iwarp://me@h", "`me@h` has a user name: NVMe over RDMA has none, write HOST[:PORT]".to_owned()),
            ("iwarp://", "the host is missing in ``: write HOST or HOST:PORT".to_owned()),
            ("iwarp://h:x", "`x` is not a port: use a number from 1 to 65535".to_owned()),
            ("iwarp://h:0", "port 0 cannot be connected to: leave it out for 4420, or use a number from 1 to 65535".to_owned()),
            ("iwarp://::1/x", "`::1` has more than one colon: write an IPv6 address in brackets, as in [::1]:4420".to_owned()),
            ("iwarp://h/vol0", "`vol0` is not an NQN: it must start with `nqn.`, as in nqn.2026-11.org.example:NAME".to_owned()),
            ("iwarp://h?nsid=1", "`nsid` needs a subsystem: write iwarp://HOST[:PORT]/NQN?nsid=1".to_owned()),
            (&format!("iwarp://h/{nqn}?"), "`` is not an option of an address: the options are nsid, fpdu and crc".to_owned()),
            (&format!("iwarp://h/{nqn}?ns=1"), "`ns` is not an option of an address: the options are nsid, fpdu and crc".to_owned()),
            (&format!("iwarp://h/{nqn}?nsid"), "the option `nsid` needs a value, as in nsid=1, fpdu=mss or crc=off".to_owned()),
            (&format!("iwarp://h/{nqn}?crc="), "the option `crc` needs a value, as in nsid=1, fpdu=mss or crc=off".to_owned()),
            (&format!("iwarp://h/{nqn}?nsid=1&nsid=1"), "the option `nsid` is there twice".to_owned()),
            (&format!("iwarp://h/{nqn}?fpdu=large&fpdu=mss"), "the option `fpdu` is there twice".to_owned()),
            (&format!("iwarp://h/{nqn}?nsid=0"), "`0` is not a namespace id: use a number from 1 to 4294967294".to_owned()),
            (
                &format!("iwarp://h/{nqn}?nsid=4294967295"),
                "`4294967295` is not a namespace id: use a number from 1 to 4294967294".to_owned(),
            ),
            (&format!("iwarp://h/{nqn}?fpdu=small"), "`fpdu`: `small` is not `mss` or `large`".to_owned()),
            (&format!("iwarp://h/{nqn}?crc=maybe"), "`crc`: `maybe` is not `on` or `off`".to_owned()),
            (&format!("rdma://h/{nqn}?crc=off"), "`crc` is an option of iwarp:// only".to_owned()),
        ] {
            assert_eq!(refusal(text), expected, "{text}");
        }
    }

    #[test]
    fn an_address_to_listen_on_has_no_nqn() {
        let refusal = Url::parse_listen("iwarp://h/nqn.2026-11.org.example:a").unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "an address to listen on has no NQN: write iwarp://HOST[:PORT], and `--nqn nqn.2026-11.org.example:a`"
        );
    }

    #[test]
    fn what_has_no_scheme_is_advised_an_nqn_only_where_one_belongs() {
        let expected = "`127.0.0.1:4420` has no scheme: write it as iwarp://HOST[:PORT] or rdma://HOST[:PORT]";
        for parse in [Url::parse_listen, Url::parse_target, Url::parse_address] {
            assert_eq!(parse("127.0.0.1:4420").unwrap_err().to_string(), expected);
        }
        assert_eq!(Url::parse_target("iwarp://h/nqn.2026-11.org.example:a").unwrap().address.to_string(), "h:4420");
    }

    #[test]
    fn an_address_to_connect_to_has_neither_nqn_nor_nsid() {
        assert_eq!(Url::parse_address("iwarp://h?fpdu=mss&crc=off").unwrap().to_string(), "iwarp://h:4420?fpdu=mss&crc=off");
        for (text, expected) in [
            (
                "iwarp://h/nqn.2026-11.org.example:a?nsid=1&crc=off",
                "an address has no NQN here: write iwarp://h:4420?crc=off, and the key `nqn: nqn.2026-11.org.example:a`",
            ),
            ("iwarp://h?nsid=1", "an address has no nsid here: write the key `nsid: 1`"),
            ("h:4420", "`h:4420` has no scheme: write it as iwarp://HOST[:PORT] or rdma://HOST[:PORT]"),
            ("rdma://h:0", "port 0 cannot be connected to: leave it out for 4420, or use a number from 1 to 65535"),
        ] {
            assert_eq!(Url::parse_address(text).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn port_zero_is_right_for_listening_only() {
        assert_eq!(Url::parse_listen("iwarp://127.0.0.1:0").unwrap().address.port, 0);
        assert_eq!("iwarp://127.0.0.1:0".parse::<Url>(), Err(UrlError::PortZero));
    }

    proptest! {
        #[test]
        fn what_is_read_prints_and_reads_back(
            text in "(iwarp|rdma)://[a-z0-9.]{1,9}(:[0-9]{1,5})?(/nqn\\.20(14|26)-11\\.a:\\PC{0,9})?(\\?\\PC{0,9}|\\?(nsid=[0-9]{1,4}&?)?(fpdu=(mss|large)&?)?(crc=(on|off))?)?|\\PC{0,30}"
        ) {
            if let Ok(url) = text.parse::<Url>() {
                prop_assert_eq!(url.to_string().parse(), Ok(url));
            }
        }
    }
}
