//! What a fabric reports.

use std::fmt;
use std::io;

use godwit_memory::Buffer;

use crate::{Rkey, WorkId};

/// Private data of the connection manager.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateData(pub Box<[u8]>);

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// The first bytes of a received message: as many as the queue pair's `header_bytes`.
#[derive(Clone, Copy)]
pub struct Header {
    pub(crate) bytes: [u8; Self::MAX_BYTES],
    pub(crate) len: usize,
}

impl Header {
    /// The longest header.
    pub const MAX_BYTES: usize = 64;

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// Something that happened to a queue pair.
#[derive(Debug)]
pub enum Completion {
    /// A peer wants to connect; answered by accept or reject.
    ConnectRequest {
        /// What the peer sent along.
        private_data: PrivateData,
        /// RDMA Reads that the peer is ready to answer at a time; 0 means that it cannot be read from.
        peer_inbound_reads: u16,
    },
    /// The peer accepted our connection.
    Established {
        /// What the peer sent along.
        private_data: PrivateData,
    },
    /// The peer refused our connection. The queue pair is in error; destroy it.
    Rejected {
        /// What the peer sent along.
        private_data: PrivateData,
    },
    /// A message arrived.
    Received {
        /// Its first bytes.
        header: Header,
        /// The bytes after the header, if there are any: exactly as long as the message.
        data: Option<Buffer>,
        /// The region of ours that the message invalidated. The peer can no longer reach it; revoke it to get the buffer.
        invalidated: Option<Rkey>,
    },
    /// A Send was handed to the transport; or several in a row that were posted under one name, without data.
    SendDone {
        /// Which.
        id: WorkId,
        /// Its data.
        data: Option<Buffer>,
        /// How many.
        count: usize,
    },
    /// An RDMA Read has filled its sink.
    ReadDone {
        /// Which.
        id: WorkId,
        /// The sink, with its length set to what was read.
        data: Buffer,
    },
    /// A Send or RDMA Read ended because the queue pair failed; whether it took effect is unknown.
    Flushed {
        /// Which.
        id: WorkId,
        /// Its data or sink.
        data: Option<Buffer>,
    },
    /// The connection is over, after all work was flushed. Destroy the queue pair.
    Disconnected {
        /// Why.
        reason: Disconnect,
    },
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Disconnect {
    /// The peer closed it.
    #[error("closed by the peer")]
    PeerClosed,
    /// We closed it, and the peer has closed its side as well.
    #[error("closed")]
    Closed,
    /// We closed it; whether the peer knows is not known.
    #[error("closed")]
    Unconfirmed,
    /// The network ended it.
    #[error("connection lost: {0}")]
    Lost(io::Error),
    /// It could not be opened.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The start-up exchange failed: the peer does not speak the transport's protocol.
    #[error("{0}")]
    Startup(String),
    /// The peer did not finish the start-up exchange in time.
    #[error("no answer to the connection set-up within {seconds} s")]
    StartupTimeout {
        /// How long we waited.
        seconds: u64,
    },
    /// The peer ended it because of an error.
    #[error("the peer ended the connection: {0}")]
    Terminated(String),
    /// The peer broke a rule.
    #[error("{0}")]
    Violation(String),
}

impl Disconnect {
    /// Whether the end shows that the peer knows of it: it closed or reset the connection itself. After a mere silence it may not.
    pub fn known_to_peer(&self) -> bool {
        match self {
            Self::PeerClosed | Self::Closed | Self::Terminated(_) => true,
            Self::Lost(error) => matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe),
            Self::Unconfirmed | Self::Connect(_) | Self::Startup(_) | Self::StartupTimeout { .. } | Self::Violation(_) => false,
        }
    }
}
