//! What failures become: the error value of a reply, or the end of a connection.

use std::io;

use godwit_nbd::{CommandFlags, Errno, Request, Violation};

use crate::block::BlockError;

/// The one map from failures of the volume to error values on the wire.
pub(super) fn errno(error: BlockError, request: &Request) -> Errno {
    match error {
        BlockError::NoSpace => Errno::ENOSPC,
        BlockError::ReadOnly => Errno::EPERM,
        BlockError::OutOfRange => Errno::EINVAL,
        BlockError::Unsupported if request.flags.contains(CommandFlags::FAST_ZERO) => Errno::ENOTSUP,
        BlockError::Unsupported
        | BlockError::Media
        | BlockError::Reserved
        | BlockError::Io
        | BlockError::Answered(_)
        | BlockError::Abandoned
        | BlockError::WritesLost
        | BlockError::TargetAway
        | BlockError::VolumeGone => Errno::EIO,
    }
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    /// The client said so, and everything is answered.
    #[error("the client disconnected")]
    Disconnected,
    /// The client ended the handshake.
    #[error("the client ended the handshake")]
    Aborted,
    /// The client closed its end without a word.
    #[error("the client closed the connection")]
    Closed,
    /// The network failed.
    #[error("connection lost: {0}")]
    Lost(io::Error),
    /// The client broke the protocol.
    #[error("protocol violation: {0}")]
    Violation(#[from] Violation),
    /// A read failed after its reply had begun, and the reply cannot say so any more.
    #[error("a read of {length} bytes at {offset} failed in the middle of its reply: {error}")]
    BrokenReply {
        /// First byte of the read.
        offset: u64,
        /// Its length in bytes.
        length: u32,
        /// Why it failed.
        error: BlockError,
    },
    /// The handshake took too long.
    #[error("the handshake was not over in time")]
    HandshakeTimeout,
    /// The client kept others from a buffer.
    #[error("the client neither sent nor took the data of a transfer, while others waited for its buffer")]
    Stalled,
    /// We end.
    #[error("the server is shutting down")]
    Shutdown,
}

impl End {
    /// Whether what was queued for sending, or sent, is to arrive.
    pub(super) fn is_graceful(&self) -> bool {
        matches!(self, Self::Disconnected | Self::Aborted | Self::Shutdown)
    }
}

#[cfg(test)]
mod tests {
    use godwit_nbd::Command;

    use super::*;

    #[test]
    fn failures_have_the_error_values_of_the_protocol() {
        let request = |flags| Request { cookie: 0, command: Command::WriteZeroes, flags, offset: 0, length: 512 };
        let plain = |error| errno(error, &request(CommandFlags::NONE)).0;
        assert_eq!(plain(BlockError::NoSpace), 28);
        assert_eq!(plain(BlockError::ReadOnly), 1);
        assert_eq!(plain(BlockError::OutOfRange), 22);
        for error in [BlockError::Unsupported, BlockError::Media, BlockError::Reserved, BlockError::Io, BlockError::VolumeGone] {
            assert_eq!(plain(error), 5);
        }
        assert_eq!(errno(BlockError::Unsupported, &request(CommandFlags::FAST_ZERO)).0, 95, "ENOTSUP is for FAST_ZERO alone");
        assert_eq!(errno(BlockError::Io, &request(CommandFlags::FAST_ZERO)).0, 5);
    }
}
