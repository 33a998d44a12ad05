//! Reading the configuration file.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::{Problems, Target, check::check, decode::decode};

/// Why a configuration file was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It cannot be read.
    #[error("cannot read {}: {}; {}", path.display(), without_number(source), advice(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is far larger than a configuration is.
    #[error("{} is larger than {} bytes: is it the right file?", .0.display(), FILE_MAX_BYTES)]
    TooLarge(PathBuf),
    /// It is no text.
    #[error("{}:{line}: the line is not UTF-8 text: is it the right file?", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The first line that is not.
        line: usize,
    },
    /// It is wrong.
    #[error(transparent)]
    Problems(#[from] Problems),
}

const FILE_MAX_BYTES: u64 = 4 << 20;

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
        let mut target = match decode(text, file) {
            Ok(target) => target,
            Err(problems) => return Err(Problems::of(problems)),
        };
        target.insecure_allow_any_host |= allow_any_host_remote;
        check(target)
    }
}

fn read_text(path: &Path) -> Result<String, LoadError> {
    let io_error = |source| LoadError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(io_error)?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(LoadError::TooLarge(path.to_owned()));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        LoadError::NotUtf8 { path: path.to_owned(), line: 1 + valid.iter().filter(|&&b| b == b'\n').count() }
    })
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "let the daemon's user read it",
        _ => "name the configuration file",
    }
}

/// The words of an error of the system, without `(os error 2)`.
pub(crate) fn without_number(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
