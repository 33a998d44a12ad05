//! MPA start-up: one Request and one Reply, with the enhanced connection set-up of RFC 6581.

mod error;
mod frame;
mod initiator;
mod responder;

pub use error::StartupError;
pub use initiator::{Initiator, Reply};
pub use responder::{Request, Responder};

/// Most private data that we send, for every peer's connection manager carries so much.
pub const MAX_PRIVATE_DATA: usize = 196;

/// Largest IRD and ORD that we announce: siw refuses more.
pub const MAX_READ_DEPTH: u16 = 128;

/// What the Initiator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartupConfig {
    /// Ask for CRC. It is used when either side asks.
    pub crc: bool,
    /// Inbound read depth (IRD): Read Requests of the peer that we hold.
    pub ird: u16,
    /// Outbound read depth (ORD): reads that we want to have outstanding.
    pub ord: u16,
    /// Ask for the peer-to-peer model and offer these messages to start it. `None`: the client-server model, where the
    /// Initiator speaks first anyway.
    pub peer_to_peer: Option<RtrKinds>,
}

impl Default for StartupConfig {
    /// CRC, 128 inbound reads, no outbound ones, client-server model.
    fn default() -> Self {
        Self { crc: true, ird: MAX_READ_DEPTH, ord: 0, peer_to_peer: None }
    }
}

/// What both sides agreed on, as seen from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// CRC is generated and checked in both directions.
    pub crc: bool,
    /// Read Requests of the peer that we hold at most.
    pub ird: u16,
    /// Reads that we may have outstanding.
    pub ord: u16,
    /// The message with which the Initiator says that it is ready to receive, in the peer-to-peer model. The
    /// [`crate::Connection`] of the Initiator sends it by itself.
    pub rtr: Option<Rtr>,
}

/// A ready-to-receive message (RTR), of zero length each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// RDMA Write.
    Write,
    /// RDMA Read; takes one of the Responder's IRD.
    Read,
    /// Send; takes one of the Responder's receives and is delivered as a message of length 0.
    Send,
}

/// A set of RTR messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RtrKinds {
    /// RDMA Write.
    pub write: bool,
    /// RDMA Read.
    pub read: bool,
    /// Send.
    pub send: bool,
}

impl RtrKinds {
    /// The kind to use of those in both sets: the one that costs least.
    const fn common(self, other: Self) -> Option<Rtr> {
        if self.write && other.write {
            Some(Rtr::Write)
        } else if self.read && other.read {
            Some(Rtr::Read)
        } else if self.send && other.send {
            Some(Rtr::Send)
        } else {
            None
        }
    }

    const fn only(kind: Rtr) -> Self {
        Self { write: matches!(kind, Rtr::Write), read: matches!(kind, Rtr::Read), send: matches!(kind, Rtr::Send) }
    }
}
