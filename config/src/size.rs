//! Sizes in bytes as people write them: `512`, `4KiB`, `1.5GiB`, `1MB`.

use std::{fmt, str::FromStr};

/// A number of bytes.
///
/// Reads a whole number of bytes (`512`, `512B`) or a decimal number with a unit: `KiB MiB GiB TiB PiB` (powers of
/// 1024; `K M G T P` mean the same, as in qemu and fio) or `KB MB GB TB PB` (powers of 1000). Case does not matter;
/// one space may stand before the unit. A fraction must come out as whole bytes: `1.5KiB` is 1536, `0.3KiB` is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

/// Why a text is not a [`Size`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Nothing there.
    #[error("the size is empty: write a number of bytes, such as 512, 4KiB or 10GiB")]
    Empty,
    /// Does not start with a decimal number.
    #[error("the size `{0}` does not start with a number: write it as 512, 4KiB or 10GiB")]
    NoNumber(String),
    /// A unit that is none of the known ones.
    #[error(
        "`{unit}` in the size `{text}` is not a unit: use KiB, MiB, GiB, TiB or PiB (powers of 1024), or KB, MB, GB, TB or PB (powers of 1000)"
    )]
    Unit {
        /// What was written.
        text: String,
        /// The part that is wrong.
        unit: String,
    },
    /// The fraction leaves part of a byte.
    #[error("the size `{0}` is not a whole number of bytes")]
    Fraction(String),
    /// Larger than 2^64 - 1 bytes.
    #[error("the size `{0}` is too large: the largest is 16384PiB less one byte")]
    TooLarge(String),
}

/// Units by lower-case name, with their size in bytes.
const UNITS: [(&str, u64); 17] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
    ("p", 1 << 50),
    ("pib", 1 << 50),
    ("pb", 1_000_000_000_000_000),
];

/// Digits after the point: more are refused, and this many times the largest unit stays far inside 128 bits.
const FRACTION_DIGITS_MAX: usize = 18;

impl Size {
    /// A size of `bytes`.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        if text.is_empty() {
            return Err(SizeError::Empty);
        }
        let number_len = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(number_len);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
            return Err(SizeError::NoNumber(text.to_owned()));
        }
        let scale = unit_scale(unit.strip_prefix(' ').unwrap_or(unit))
            .ok_or_else(|| SizeError::Unit { text: text.to_owned(), unit: unit.trim().to_owned() })?;
        let too_large = || SizeError::TooLarge(text.to_owned());
        let whole_bytes = whole.parse::<u64>().ok().and_then(|n| n.checked_mul(scale)).ok_or_else(too_large)?;
        let part_bytes = fraction_bytes(fraction, scale).ok_or_else(|| SizeError::Fraction(text.to_owned()))?;
        whole_bytes.checked_add(part_bytes).map(Self).ok_or_else(too_large)
    }
}

fn unit_scale(unit: &str) -> Option<u64> {
    UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|&(_, scale)| scale)
}

/// `0.{digits} * scale`, or `None` when that is not a whole number.
fn fraction_bytes(digits: &str, scale: u64) -> Option<u64> {
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    if digits.len() > FRACTION_DIGITS_MAX {
        return None;
    }
    let numerator = digits.parse::<u128>().ok()? * u128::from(scale);
    let denominator = 10_u128.pow(u32::try_from(digits.len()).ok()?);
    (numerator % denominator == 0).then(|| u64::try_from(numerator / denominator).ok()).flatten()
}

impl fmt::Display for Size {
    /// The largest binary unit that divides the size, so that reading it back gives the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(&str, u32); 5] = [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        for (name, shift) in NAMES {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{name}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(text: &str) -> u64 {
        text.parse::<Size>().unwrap_or_else(|e| panic!("{text}: {e}")).bytes()
    }

    fn refusal(text: &str) -> String {
        text.parse::<Size>().expect_err(text).to_string()
    }

    #[test]
    fn reads_every_notation() {
        for (text, expected) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("4KiB", 4096),
            ("4k", 4096),
            ("4 KiB", 4096),
            ("10GiB", 10_737_418_240),
            ("10g", 10_737_418_240),
            ("1MB", 1_000_000),
            ("1MiB", 1_048_576),
            ("1.5GiB", 1_610_612_736),
            ("1.5KB", 1500),
            ("0.5KiB", 512),
            ("1.0", 1),
            ("0.0009765625KiB", 1),
            ("1.000KiB", 1024),
            ("2TiB", 2_199_023_255_552),
            ("1PB", 1_000_000_000_000_000),
            ("18446744073709551615", u64::MAX),
            ("16383PiB", 16383 << 50),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }

    #[test]
    fn refuses_with_what_is_wrong() {
        let start = "write it as 512, 4KiB or 10GiB";
        for (text, expected) in [
            ("", "the size is empty: write a number of bytes, such as 512, 4KiB or 10GiB".to_owned()),
            ("GiB", format!("the size `GiB` does not start with a number: {start}")),
            ("-1", format!("the size `-1` does not start with a number: {start}")),
            (" 1", format!("the size ` 1` does not start with a number: {start}")),
            (".5KiB", format!("the size `.5KiB` does not start with a number: {start}")),
            ("1.KiB", format!("the size `1.KiB` does not start with a number: {start}")),
            ("1.2.3", format!("the size `1.2.3` does not start with a number: {start}")),
            ("0.3KiB", "the size `0.3KiB` is not a whole number of bytes".to_owned()),
            ("1.5", "the size `1.5` is not a whole number of bytes".to_owned()),
            (
                "10Gi",
                "`Gi` in the size `10Gi` is not a unit: use KiB, MiB, GiB, TiB or PiB (powers of 1024), or KB, MB, GB, TB or PB (powers of 1000)".to_owned(),
            ),
            (
                "16384PiB",
                "the size `16384PiB` is too large: the largest is 16384PiB less one byte".to_owned(),
            ),
            (
                "18446744073709551616",
                "the size `18446744073709551616` is too large: the largest is 16384PiB less one byte".to_owned(),
            ),
        ] {
            assert_eq!(refusal(text), expected, "{text}");
        }
        // Ten to the 51st is more than 128 bits.
        let long = format!("0.{}1PiB", "0".repeat(50));
        assert_eq!(long.parse::<Size>(), Err(SizeError::Fraction(long)));
        assert!(matches!("1  KiB".parse::<Size>(), Err(SizeError::Unit { .. })));
    }

    #[test]
    fn displays_the_largest_unit_that_is_exact() {
        for (size, expected) in [(0, "0"), (1023, "1023"), (1024, "1KiB"), (1 << 30, "1GiB"), (1_610_612_736, "1536MiB")] {
            assert_eq!(Size::from_bytes(size).to_string(), expected);
        }
    }

    proptest! {
        #[test]
        fn display_reads_back(size in any::<u64>(), shift in 0u32..60) {
            let size = Size::from_bytes(size >> shift << shift);
            prop_assert_eq!(size.to_string().parse::<Size>(), Ok(size));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9.]{0,60}[ a-zA-Z\\PC]{0,5}") {
            let _ = text.parse::<Size>();
        }
    }
}
