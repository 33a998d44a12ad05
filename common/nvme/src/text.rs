//! Text fields of fixed length.

use std::fmt::{self, Write};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// ASCII text in a field of `N` bytes, padded with spaces.
#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct Text<const N: usize>([u8; N]);

/// Text that its field cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// More bytes than the field has.
    #[error("{len_bytes} bytes are more than the {limit_bytes} of the field")]
    TooLong {
        /// Length of the text.
        len_bytes: usize,
        /// Length of the field.
        limit_bytes: usize,
    },
    /// Not printable ASCII.
    #[error("{0:?} is not printable ASCII")]
    NotAscii(char),
}

impl<const N: usize> Text<N> {
    /// Nothing but padding.
    pub const BLANK: Self = Self([b' '; N]);

    /// Puts `text` in its field.
    ///
    /// # Errors
    /// It is too long, or has other characters than printable ASCII.
    pub fn new(text: &str) -> Result<Self, TextError> {
        if let Some(bad) = text.chars().find(|c| !matches!(c, ' '..='~')) {
            return Err(TextError::NotAscii(bad));
        }
        let mut field = Self::BLANK;
        let len_bytes = text.len();
        field.0.get_mut(..len_bytes).ok_or(TextError::TooLong { len_bytes, limit_bytes: N })?.copy_from_slice(text.as_bytes());
        Ok(field)
    }

    /// The bytes without trailing spaces and NULs.
    #[must_use]
    pub fn trimmed(&self) -> &[u8] {
        let end = self.0.iter().rposition(|byte| !matches!(byte, b' ' | 0)).map_or(0, |last| last + 1);
        &self.0[..end]
    }

    /// The text without its padding, if it is printable ASCII.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        let text = std::str::from_utf8(self.trimmed()).ok()?;
        text.bytes().all(|byte| matches!(byte, b' '..=b'~')).then_some(text)
    }

    /// Whether there is nothing but padding.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.trimmed().is_empty()
    }
}

/// Prints the text without its padding; bytes that are not printable ASCII come out as `.`.
impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.trimmed().iter().try_for_each(|&byte| f.write_char(if matches!(byte, b' '..=b'~') { byte.into() } else { '.' }))
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_padded_with_spaces_and_trimmed_of_both_paddings() {
        let text = Text::<8>::new("godwit").unwrap();
        assert_eq!(text.as_bytes(), b"godwit  ");
        assert_eq!(text.as_str(), Some("godwit"));
        assert_eq!(Text::<8>(*b"4420\0\0\0\0").as_str(), Some("4420"));
        assert!(Text::<8>::BLANK.is_blank());
    }

    #[test]
    fn holds_printable_ascii_up_to_its_length() {
        assert!(Text::<8>::new("12345678").is_ok());
        assert_eq!(Text::<8>::new("123456789"), Err(TextError::TooLong { len_bytes: 9, limit_bytes: 8 }));
        assert_eq!(Text::<8>::new("a\tb"), Err(TextError::NotAscii('\t')));
        assert_eq!(Text::<8>::new("\u{e4}"), Err(TextError::NotAscii('\u{e4}')));
        assert_eq!(Text::<4>([0xFF, b'a', 7, b'b']).as_str(), None);
        assert_eq!(Text::<4>([0xFF, b'a', 7, b'b']).to_string(), ".a.b");
    }
}
