//! NBD exports of any server, measured by the same generators: a client of the transmission protocol on a reactor thread.
//!
//! The handshake (fixed newstyle, `GO`, no structured replies) is done before, by plain blocking calls.

mod client;
mod handshake;
mod thread;

pub(crate) use handshake::{Export, NbdError, connect};
pub(crate) use thread::{Connection, Order, run};

/// The largest payload of a request when the server names none.
const DEFAULT_MAX_PAYLOAD_BYTES: u32 = godwit_nbd::DEFAULT_MAX_PAYLOAD_LEN;

/// The unit of offsets, at least: also where a server takes any.
const LEAST_BLOCK_BYTES: u32 = 512;
