//! Reading the configuration file of either daemon.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use crate::Problems;

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

/// The text of a file.
pub(crate) fn read_text(path: &Path) -> Result<String, LoadError> {
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
