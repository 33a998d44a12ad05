//! What the handshake settled.

use crate::{ContextId, TransmissionFlags};

/// What client and server agreed on before transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Index of the export in the slice that the last [`crate::Handshake::receive`] was given.
    pub export: usize,
    /// The transmission flags as the client was told; it is held to them.
    pub flags: TransmissionFlags,
    /// Whether replies are structured.
    pub structured: bool,
    /// The id of `base:allocation`, if the client selected it for this export.
    pub allocation: Option<ContextId>,
    /// Whether the client asked for the block sizes, and so promised to keep them.
    pub block_sizes_known: bool,
}
