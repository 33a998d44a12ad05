//! What an administrator calls a volume.

use std::{fmt, str::FromStr};

/// The name of a volume: what `godwit status` and metrics call it.
///
/// Letters, digits, `-`, `_` and `.` of ASCII, so that it can stand in a path, a label and a command line as it is; a letter or a digit first,
/// so that it is neither an option nor a hidden file, nor `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeName(Box<str>);

/// A text that is no [`VolumeName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a volume name: use 1 to 64 letters, digits, `-`, `_` and `.`, with a letter or digit first")]
pub struct VolumeNameError(pub String);

impl VolumeName {
    /// The longest name.
    pub const MAX_LEN_BYTES: usize = 64;

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for VolumeName {
    type Err = VolumeNameError;

    fn from_str(text: &str) -> Result<Self, VolumeNameError> {
        let starts = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if starts && plain && text.len() <= Self::MAX_LEN_BYTES { Ok(Self(text.into())) } else { Err(VolumeNameError(text.to_owned())) }
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_stand_anywhere_as_it_is() {
        for text in ["a", "0", "vol-0_a.b", &"x".repeat(64)] {
            assert_eq!(text.parse::<VolumeName>().unwrap().to_string(), text);
        }
        for text in ["", ".", "..", ".a", "-a", "_a", "a b", "a/b", "a:", "\u{e9}", "a\n", &"x".repeat(65)] {
            assert_eq!(
                text.parse::<VolumeName>().unwrap_err().to_string(),
                format!("{text:?} is not a volume name: use 1 to 64 letters, digits, `-`, `_` and `.`, with a letter or digit first")
            );
        }
    }
}
