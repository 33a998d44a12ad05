//! An initiator from a configuration file.

use std::path::Path;

use super::{Initiator, check::check, decode::initiator};
use crate::{LoadError, Problems, load::read_text, yaml::decode};

impl Initiator {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// Every fault of the file, each with its line and column, or why the file cannot be read.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let text = read_text(path)?;
        Ok(Self::parse(&text, &path.to_string_lossy())?)
    }

    /// As [`Initiator::load`], from the text of a file; `file` is its name for errors.
    ///
    /// # Errors
    /// Every fault of the text.
    pub fn parse(text: &str, file: &str) -> Result<Self, Problems> {
        check(decode(text, file, initiator)?)
    }
}
