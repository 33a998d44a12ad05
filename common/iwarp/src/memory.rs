//! What the owner of the memory supplies: checks and placement, called while bytes are received.

use thiserror::Error;

use crate::number::Stag;

/// Registered memory and posted receives of one queue pair, as the protocol core needs them.
///
/// Payload is placed as it arrives, before the CRC of its FPDU is known; nothing is delivered before. When the CRC fails
/// the stream ends, and the content of every buffer that the peer could reach is undefined.
pub trait Memory {
    /// Places payload of an RDMA Write. Checks that `stag` is alive, belongs to this queue pair, grants remote write,
    /// and covers the range. Never called with an empty payload: a Write of zero bytes names nothing.
    ///
    /// # Errors
    /// The check that failed.
    fn write(&mut self, stag: Stag, to: u64, payload: &[u8]) -> Result<(), TaggedError>;

    /// Places payload of the Read Response that answers the read posted as `read`, which is the oldest outstanding one.
    /// The core has checked that it lies within the length asked for.
    ///
    /// # Errors
    /// The sink is gone.
    fn read_response(&mut self, read: u64, offset: u32, payload: &[u8]) -> Result<(), PlacementError>;

    /// Places payload of the Send being received, at `offset` in the message. The first call of each message has
    /// offset 0 and an empty payload: it claims the buffer.
    ///
    /// # Errors
    /// [`ReceiveError::Wait`] stops the stream before this payload until the driver calls again; others end it.
    fn receive(&mut self, offset: u32, payload: &[u8]) -> Result<(), ReceiveError>;

    /// Checks the source of a peer's Read Request: as [`Memory::write`], but for remote read. Not called for zero bytes.
    ///
    /// # Errors
    /// The check that failed.
    fn check_read(&mut self, stag: Stag, to: u64, len: u32) -> Result<(), TaggedError>;

    /// Invalidates `stag` for a Send with Invalidate that was received whole.
    ///
    /// # Errors
    /// The STag cannot be invalidated by this peer.
    fn invalidate(&mut self, stag: Stag) -> Result<(), InvalidateError>;
}

/// Why a tagged access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TaggedError {
    /// No live region has this STag.
    #[error("names no live STag")]
    InvalidStag,
    /// The region ends before the access does, or begins after it.
    #[error("is outside the region")]
    Bounds,
    /// The region does not grant this kind of access.
    #[error("has no right of access")]
    Access,
    /// The region belongs to another queue pair or protection domain.
    #[error("is not associated with this stream")]
    NotAssociated,
}

/// A Read Response could not be placed: its sink is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the sink of the read is gone")]
pub struct PlacementError;

/// Why payload of a Send was not placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReceiveError {
    /// No buffer at this moment; the stream waits.
    #[error("no buffer right now")]
    Wait,
    /// The peer sent more messages than receives were posted.
    #[error("no receive is posted")]
    NoReceivePosted,
    /// The message is longer than the posted buffer.
    #[error("the message is longer than the posted receive")]
    TooLong,
}

/// Why a Send with Invalidate was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidateError {
    /// No live region has this STag.
    #[error("names no live STag")]
    InvalidStag,
    /// The peer may not invalidate this region.
    #[error("may not be invalidated by this peer")]
    Access,
}
