//! What every parser of this crate answers when bytes are missing.

use crate::{Status, StatusCode};

/// Fewer bytes than the structure needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} needs {needed_bytes} bytes, got {actual_bytes}")]
pub struct Truncated {
    /// Name of the structure.
    pub what: &'static str,
    /// Bytes that it needs.
    pub needed_bytes: usize,
    /// Bytes that there were.
    pub actual_bytes: usize,
}

impl Truncated {
    /// What a target answers to a command whose data are too short for it.
    #[must_use]
    pub const fn status(self) -> Status {
        StatusCode::DATA_SGL_LENGTH_INVALID.do_not_retry()
    }

    pub(crate) const fn new(what: &'static str, needed_bytes: usize, actual_bytes: usize) -> Self {
        Self { what, needed_bytes, actual_bytes }
    }
}
