//! NVMe qualified names.

use std::fmt;
use std::str::FromStr;

/// The longest NQN in bytes, without its terminating NUL.
pub const MAX_LEN_BYTES: usize = 223;

/// Size of an NQN field on the wire, NUL-terminated and zero-padded.
pub const FIELD_LEN_BYTES: usize = 256;

const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";
const MAX_LABEL_LEN_BYTES: usize = 63;

/// An NVMe Qualified Name (NQN): the name of a host or of a subsystem.
///
/// The specification ("NVMe Qualified Names") has two forms, `nqn.YYYY-MM.REVERSE.DOMAIN:STRING` and
/// `nqn.2014-08.org.nvmexpress:uuid:UUID`, and the well-known name of discovery subsystems. Names are compared byte by byte.
///
/// What people write, in a configuration, a URL or an option, is held to these forms ([`Nqn::new`]): anything else is far more often a slip than a
/// name that somebody meant. What a peer sends is not ([`Nqn::of_any_form`], which [`Nqn::from_wire`] uses): administrators of other targets and
/// hosts do choose names such as `testnqn`, kernels take them, and such a host must be heard, such a subsystem listed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(Box<str>);

/// Why a text is not an [`Nqn`], and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    /// Nothing there.
    #[error("the NQN is empty: write it as nqn.2026-11.org.example:NAME")]
    Empty,
    /// Longer than 223 bytes.
    #[error("the NQN is {0} bytes long: {MAX_LEN_BYTES} is the most")]
    TooLong(usize),
    /// The 256-byte wire field has no NUL.
    #[error("the NQN field is not terminated by a NUL")]
    Unterminated,
    /// Not UTF-8.
    #[error("the NQN is not UTF-8: the byte at offset {offset} is wrong")]
    NotUtf8 {
        /// Offset of the first wrong byte.
        offset: usize,
    },
    /// A control character or a separator of lines; in a name of one of the two forms, a space.
    #[error("{0:?} is not an NQN: it has a space or a control character")]
    Unprintable(String),
    /// Does not start with `nqn.`.
    #[error("`{0}` is not an NQN: it must start with `nqn.`, as in nqn.2026-11.org.example:NAME")]
    Prefix(String),
    /// No year and month after `nqn.`.
    #[error("`{0}` is not an NQN: `nqn.` must be followed by a year and month, as in nqn.2026-11.org.example:NAME")]
    Date(String),
    /// The naming authority is no domain name.
    #[error("`{nqn}` is not an NQN: `{domain}` is not a reversed domain name, such as org.example in nqn.2026-11.org.example:NAME")]
    Domain {
        /// What was written.
        nqn: String,
        /// The part that is wrong.
        domain: String,
    },
    /// Nothing after the domain.
    #[error("`{0}` is not an NQN: it needs a colon and a name at its end, as in nqn.2026-11.org.example:NAME")]
    Name(String),
    /// `nqn.2014-08.org.nvmexpress:uuid:` without a UUID.
    #[error("`{0}` is not an NQN: after `uuid:` it needs a UUID, such as 11111111-2222-3333-4444-555555555555")]
    Uuid(String),
}

impl Nqn {
    /// The well-known name of every discovery subsystem.
    pub const DISCOVERY: &'static str = "nqn.2014-08.org.nvmexpress.discovery";

    /// Keeps `name` if it has one of the forms of the specification.
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn new(name: &str) -> Result<Self, NqnError> {
        check(name)?;
        Ok(Self(name.into()))
    }

    /// Keeps a `name` of any form that is not empty, at most 223 bytes long, and printable: for names that a peer chose.
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn of_any_form(name: &str) -> Result<Self, NqnError> {
        check_text(name)?;
        Ok(Self(name.into()))
    }

    /// The well-known discovery NQN.
    #[must_use]
    pub fn discovery() -> Self {
        Self(Self::DISCOVERY.into())
    }

    /// The NQN made from a UUID, as hosts without a domain use it.
    #[must_use]
    pub fn from_uuid(uuid: uuid::Uuid) -> Self {
        Self(format!("{UUID_PREFIX}{}", uuid.hyphenated()).into())
    }

    /// The UUID of a name that is made from one.
    #[must_use]
    pub fn uuid(&self) -> Option<uuid::Uuid> {
        self.0.strip_prefix(UUID_PREFIX)?.parse().ok()
    }

    /// Whether this is the well-known discovery NQN.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        &*self.0 == Self::DISCOVERY
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Takes a name of any form from its wire field: up to the first NUL; what follows the NUL is padding.
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn from_wire(field: &[u8; FIELD_LEN_BYTES]) -> Result<Self, NqnError> {
        let len_bytes = field.iter().position(|&byte| byte == 0).ok_or(NqnError::Unterminated)?;
        let name = std::str::from_utf8(&field[..len_bytes]).map_err(|error| NqnError::NotUtf8 { offset: error.valid_up_to() })?;
        Self::of_any_form(name)
    }

    /// The name as its wire field, NUL-padded.
    #[must_use]
    pub fn to_wire(&self) -> [u8; FIELD_LEN_BYTES] {
        let mut field = [0; FIELD_LEN_BYTES];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }
}

/// What holds for a name of any form.
fn check_text(name: &str) -> Result<(), NqnError> {
    if name.is_empty() {
        return Err(NqnError::Empty);
    }
    if name.len() > MAX_LEN_BYTES {
        return Err(NqnError::TooLong(name.len()));
    }
    if name.contains(|c: char| c.is_control() || (c.is_whitespace() && c != ' ')) {
        return Err(NqnError::Unprintable(name.to_owned()));
    }
    Ok(())
}

/// What holds for a name of one of the forms of the specification.
fn check(name: &str) -> Result<(), NqnError> {
    let own = || name.to_owned();
    check_text(name)?;
    if name.contains(' ') {
        return Err(NqnError::Unprintable(own()));
    }
    if name == Nqn::DISCOVERY {
        return Ok(());
    }
    let rest = name.strip_prefix("nqn.").ok_or_else(|| NqnError::Prefix(own()))?;
    if let Some(uuid) = name.strip_prefix(UUID_PREFIX) {
        return is_hyphenated_uuid(uuid).then_some(()).ok_or_else(|| NqnError::Uuid(own()));
    }
    let (_, rest) = rest.split_once('.').filter(|(date, _)| is_date(date)).ok_or_else(|| NqnError::Date(own()))?;
    let (domain, string) = rest.split_once(':').unwrap_or((rest, ""));
    if !domain.split('.').all(is_label) {
        return Err(NqnError::Domain { nqn: own(), domain: domain.to_owned() });
    }
    if string.is_empty() { Err(NqnError::Name(own())) } else { Ok(()) }
}

fn is_hyphenated_uuid(text: &str) -> bool {
    text.len() == 36 && uuid::Uuid::try_parse(text).is_ok()
}

/// Whether it is `YYYY-MM`.
fn is_date(text: &str) -> bool {
    let digits = |text: &str, len| text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((year, month)) = text.split_once('-') else { return false };
    digits(year, 4) && digits(month, 2) && month.parse().is_ok_and(|month: u8| (1..=12).contains(&month))
}

/// Whether it is a label of a domain name.
fn is_label(text: &str) -> bool {
    (1..=MAX_LABEL_LEN_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(name: &str) -> Result<Self, NqnError> {
        Self::new(name)
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nqn({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refusal(text: &str) -> String {
        text.parse::<Nqn>().expect_err(text).to_string()
    }

    #[test]
    fn accepts_the_forms_of_the_specification() {
        for name in [
            Nqn::DISCOVERY,
            "nqn.2026-11.org.example:vol0",
            "nqn.2026-12.org.example:vol0",
            "nqn.2026-01.localhost:a",
            "nqn.1992-08.com.netapp:sn.d04594ef915b4c73b642169e72e4c0b1:subsystem.x",
            "nqn.1994-12.com.3par:a:b?c%20",
            "nqn.2014-08.org.nvmexpress:NVMf:uuid:11111111-2222-3333-4444-555555555555",
            "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555",
            "nqn.2014-08.org.nvmexpress:uuid:ABCDEFab-2222-3333-4444-555555555555",
            "nqn.2026-11.org.example:b\u{e4}r",
        ] {
            assert_eq!(name.parse::<Nqn>().unwrap().as_str(), name);
        }
    }

    #[test]
    fn refuses_with_what_is_wrong() {
        let example = "nqn.2026-11.org.example:NAME";
        assert_eq!(refusal(""), format!("the NQN is empty: write it as {example}"));
        assert_eq!(
            refusal("iqn.2026-11.org.example:a"),
            format!("`iqn.2026-11.org.example:a` is not an NQN: it must start with `nqn.`, as in {example}")
        );
        for date in ["2026", "2026-13", "2026-00", "26-11", "2026-1", "2026-+1", "x"] {
            let text = format!("nqn.{date}.org.example:a");
            assert_eq!(refusal(&text), format!("`{text}` is not an NQN: `nqn.` must be followed by a year and month, as in {example}"));
        }
        for domain in ["", "org.", "org..example", "-a", "a-", "org.exa_mple"] {
            let text = format!("nqn.2026-11.{domain}:a");
            assert_eq!(
                refusal(&text),
                format!("`{text}` is not an NQN: `{domain}` is not a reversed domain name, such as org.example in {example}")
            );
        }
        for text in ["nqn.2026-11.org.example", "nqn.2026-11.org.example:"] {
            assert_eq!(refusal(text), format!("`{text}` is not an NQN: it needs a colon and a name at its end, as in {example}"));
        }
        assert!(format!("nqn.2026-11.{}:a", "d".repeat(63)).parse::<Nqn>().is_ok());
        assert!(format!("nqn.2026-11.{}:a", "d".repeat(64)).parse::<Nqn>().is_err());
        let uuid = "nqn.2014-08.org.nvmexpress:uuid:11111111222233334444555555555555";
        assert_eq!(
            refusal(uuid),
            format!("`{uuid}` is not an NQN: after `uuid:` it needs a UUID, such as 11111111-2222-3333-4444-555555555555")
        );
        for (text, shown) in [("a\tb", "a\\tb"), ("a\nb", "a\\nb"), ("a\u{2028}b", "a\\u{2028}b"), ("a b", "a b")] {
            assert_eq!(
                refusal(&format!("nqn.2026-11.org.example:{text}")),
                format!("\"nqn.2026-11.org.example:{shown}\" is not an NQN: it has a space or a control character")
            );
        }
        let long = format!("nqn.2026-11.org.example:{}", "x".repeat(200));
        assert_eq!(refusal(&long), "the NQN is 224 bytes long: 223 is the most");
    }

    #[test]
    fn is_at_most_223_bytes() {
        let name = |len: usize| format!("{:x<len$}", "nqn.2026-11.org.example:");
        assert!(Nqn::new(&name(223)).is_ok());
        assert_eq!(Nqn::new(&name(224)), Err(NqnError::TooLong(224)));
    }

    #[test]
    fn wire_field_ends_at_its_first_nul() {
        let nqn = Nqn::new("nqn.2026-11.org.example:vol0").unwrap();
        let mut field = nqn.to_wire();
        assert_eq!(Nqn::from_wire(&field), Ok(nqn.clone()));
        field[200] = 0xFF;
        assert_eq!(Nqn::from_wire(&field), Ok(nqn));
        assert_eq!(Nqn::from_wire(&[0; 256]), Err(NqnError::Empty));
        assert_eq!(Nqn::from_wire(&[b'n'; 256]), Err(NqnError::Unterminated));
        field[5] = 0xFF;
        assert_eq!(Nqn::from_wire(&field), Err(NqnError::NotUtf8 { offset: 5 }));
    }

    #[test]
    fn a_name_that_a_peer_sends_may_have_any_form() {
        for name in ["testnqn", "nqn.2026-11.org.example", "nqn.2026-11.org.example:a b"] {
            assert!(Nqn::new(name).is_err());
            let nqn = Nqn::of_any_form(name).unwrap();
            assert_eq!(Nqn::from_wire(&nqn.to_wire()), Ok(nqn));
        }
    }

    #[test]
    fn a_name_of_any_form_is_still_printable_and_bounded() {
        assert_eq!(Nqn::of_any_form(""), Err(NqnError::Empty));
        assert!(Nqn::of_any_form(&"x".repeat(223)).is_ok());
        assert_eq!(Nqn::of_any_form(&"x".repeat(224)), Err(NqnError::TooLong(224)));
        for name in ["a\tb", "a\u{2028}b", "\u{7f}"] {
            assert_eq!(Nqn::of_any_form(name), Err(NqnError::Unprintable(name.to_owned())));
        }
    }

    #[test]
    fn a_name_from_a_uuid_gives_it_back() {
        let uuid = uuid::Uuid::from_u128(0x11111111_2222_3333_4444_555555555555);
        let nqn = Nqn::from_uuid(uuid);
        assert_eq!(nqn.as_str(), "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555");
        assert_eq!(Nqn::new(nqn.as_str()), Ok(nqn.clone()));
        assert_eq!(nqn.uuid(), Some(uuid));
        assert!(!nqn.is_discovery());
        assert_eq!(Nqn::new("nqn.2026-11.org.example:vol0").unwrap().uuid(), None);
        assert!(Nqn::discovery().is_discovery());
    }

    proptest! {
        #[test]
        fn any_text_is_accepted_or_refused(text in "(nqn\\.)?(2014-08\\.org\\.nvmexpress:uuid:)?\\PC{0,40}") {
            let _ = text.parse::<Nqn>();
        }
    }
}
