//! A target from a configuration file.

use std::path::Path;

use super::{Target, check::check, decode::target};
use crate::{LoadError, Problems, load::read_text, yaml::decode};

impl Target {
    /// Reads and checks a configuration file.
    ///
    /// `allow_any_host_remote` is the command line's `insecure_allow_any_host: true`.
    ///
    /// # Errors
    /// Every fault of the file, each with its line and column, or why the file cannot be read.
    pub fn load(path: &Path, allow_any_host_remote: bool) -> Result<Self, LoadError> {
        let text = read_text(path)?;
        Ok(Self::parse(&text, &path.to_string_lossy(), allow_any_host_remote)?)
    }

    /// As [`Target::load`], from the text of a file; `file` is its name for errors.
    ///
    /// # Errors
    /// Every fault of the text.
    pub fn parse(text: &str, file: &str, allow_any_host_remote: bool) -> Result<Self, Problems> {
        let mut target = decode(text, file, target)?;
        target.insecure_allow_any_host |= allow_any_host_remote;
        check(target)
    }
}
