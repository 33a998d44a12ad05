//! Every limit of the front end, in one place.

use std::time::Duration;

/// Pieces of one request that may be under way at the same time; for a read that must be answered in order this includes pieces that came early. So one
/// request of 32 MiB holds four buffers of the pool, not thirty-two.
pub(super) const WINDOW: usize = 4;

/// Bytes of a connection's stream buffer: one receive brings many requests.
pub(super) const STREAM_BUFFER_BYTES: usize = 64 << 10;

/// The largest payload of one request, as clients are told: what they use when nothing is agreed.
pub(super) const MAX_PAYLOAD_BYTES: u32 = godwit_nbd::DEFAULT_MAX_PAYLOAD_LEN;

/// The smallest transfer that clients are advised to make.
pub(super) const LEAST_PREFERRED_BYTES: u32 = 4096;

/// How many connections a volume takes, and how much each may have under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// NBD connections of one volume, over all threads. One that ended counts until its last operation has.
    pub connections: usize,
    /// Requests of one connection that are under way; further ones wait in the socket. The kernel's client has up to 128.
    pub requests: usize,
    /// Operations of one connection that are under way: its requests, and the pieces of large ones.
    pub operations: usize,
    /// Bytes of data of one connection that are under way. One piece of a request is always allowed.
    pub bytes_in_flight: usize,
    /// How long a handshake may take. Transmission may be idle for ever.
    pub handshake: Duration,
    /// While other connections wait for a buffer: how long a client may take to send the data of one write piece, or to take those of one read piece.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            requests: 256,
            operations: 512,
            bytes_in_flight: 16 << 20,
            handshake: Duration::from_secs(10),
            stall: Duration::from_secs(10),
        }
    }
}
