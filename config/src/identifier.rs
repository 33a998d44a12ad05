//! Identities that an administrator may fix: NGUID, serial number, model number.

use std::{fmt, str::FromStr};

/// Namespace Globally Unique Identifier: sixteen bytes, never all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nguid([u8; 16]);

/// Why a text is not an [`Nguid`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an NGUID: write 32 hexadecimal digits that are not all zero")]
pub struct NguidError(pub String);

impl Nguid {
    /// The identifier, most significant byte first as on the wire.
    #[must_use]
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }
}

impl FromStr for Nguid {
    type Err = NguidError;

    fn from_str(text: &str) -> Result<Self, NguidError> {
        Some(text)
            .filter(|t| t.len() == 32 && t.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|t| u128::from_str_radix(t, 16).ok())
            .filter(|&n| n != 0)
            .map(|n| Self(n.to_be_bytes()))
            .ok_or_else(|| NguidError(text.to_owned()))
    }
}

impl fmt::Display for Nguid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// A text that does not fit into an ASCII field of Identify Controller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {name}: use 1 to {max} printable ASCII characters without a space at either end")]
pub struct TextError {
    /// What was written.
    pub text: String,
    /// The field.
    pub name: &'static str,
    /// Its length in bytes.
    pub max: usize,
}

macro_rules! ascii_field {
    ($(#[$doc:meta])* $type:ident, $name:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub struct $type(Box<str>);

        impl $type {
            /// The text, without the padding that the wire has.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = TextError;

            fn from_str(text: &str) -> Result<Self, TextError> {
                let printable = text.bytes().all(|b| (0x20..0x7f).contains(&b));
                if (1..=$max).contains(&text.len()) && printable && text.trim() == text {
                    return Ok(Self(text.into()));
                }
                Err(TextError { text: text.to_owned(), name: $name, max: $max })
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

ascii_field! {
    /// Serial Number (SN) of a subsystem: up to 20 characters.
    Serial, "serial number", 20
}

ascii_field! {
    /// Model Number (MN) of a subsystem: up to 40 characters.
    Model, "model", 40
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nguid_is_32_hexadecimal_digits() {
        let text = "0123456789abcdef0123456789ABCDEF";
        let nguid = text.parse::<Nguid>().unwrap();
        assert_eq!(nguid.bytes()[..3], [0x01, 0x23, 0x45]);
        assert_eq!(nguid.to_string(), text.to_lowercase());
        for text in
            ["", "0123", "00000000000000000000000000000000", "+123456789abcdef0123456789abcdef0", "0123456789abcdef0123456789abcdefg"]
        {
            assert_eq!(
                text.parse::<Nguid>().unwrap_err().to_string(),
                format!("`{text}` is not an NGUID: write 32 hexadecimal digits that are not all zero")
            );
        }
    }

    #[test]
    fn serial_and_model_fill_their_fields_and_no_more() {
        assert!("x".repeat(20).parse::<Serial>().is_ok());
        assert!("x".repeat(40).parse::<Model>().is_ok());
        assert!("x".repeat(41).parse::<Model>().is_err());
        assert!("two words".parse::<Model>().is_ok());
        for text in ["", " a", "a ", "a\tb", "\u{e9}", "x\u{7f}"] {
            assert!(text.parse::<Serial>().is_err(), "{text:?}");
        }
        assert_eq!(
            "xxxxxxxxxxxxxxxxxxxxx".parse::<Serial>().unwrap_err().to_string(),
            "\"xxxxxxxxxxxxxxxxxxxxx\" is not a serial number: use 1 to 20 printable ASCII characters without a space at either end"
        );
    }
}
