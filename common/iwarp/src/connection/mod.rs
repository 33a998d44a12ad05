//! One iWARP stream in FPDU mode: what its two directions share.

mod receive;
#[cfg(test)]
mod tests;
mod transmit;

use crate::fault::Fault;
use crate::number::Opcode;
use crate::segment::Segment;
use crate::startup::Negotiated;
use crate::terminate::terminate_segment;
use crate::traffic::Traffic;
use receive::Receiver;
use transmit::Transmitter;

pub use receive::{Landing, Place, Received};
pub use transmit::SendKind;

/// Which side of MPA start-up this was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sent the Request, and the first FPDU.
    Initiator,
    /// Sent the Reply, and nothing more before the first valid FPDU of the Initiator.
    Responder,
}

/// How large the FPDUs that we send may be. Those received may have any size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FpduSize {
    /// At most this many payload bytes in each, rounded down to a multiple of 4, within 4 and 65516.
    Payload(usize),
    /// One FPDU for each TCP segment of this size (RFC 5044, MULPDU), as hardware prefers.
    Mss(usize),
}

/// What the driver decides about a [`Connection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Size of the FPDUs that we send.
    pub fpdu: FpduSize,
    /// Most work requests that are queued at a time and have not been sent.
    pub send_queue_depth: usize,
}

impl Default for Options {
    /// FPDUs of 60 KiB payload, 128 work requests.
    fn default() -> Self {
        Self { fpdu: FpduSize::Payload(60 * 1024), send_queue_depth: 128 }
    }
}

/// The states of RFC 5040 that an open stream can be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Responder before the first valid FPDU: may receive everything and send nothing.
    ReceiveOnly,
    /// Both directions carry messages.
    ReadyToSend,
    /// Ended: what comes is discarded, nothing is sent but one Terminate where that is still allowed.
    Ended {
        /// The peer may still be sent a Terminate.
        terminate: bool,
    },
}

/// One iWARP stream in FPDU mode, without its socket and its payload.
///
/// Nothing is allocated after [`Connection::new`].
#[derive(Debug)]
pub struct Connection {
    state: State,
    crc: bool,
    rx: Receiver,
    tx: Transmitter,
    sent: Traffic,
    received: Traffic,
}

impl Connection {
    /// Enters FPDU mode with what start-up negotiated.
    #[must_use]
    pub fn new(role: Role, negotiated: Negotiated, options: Options) -> Self {
        let state = match role {
            Role::Initiator => State::ReadyToSend,
            Role::Responder => State::ReceiveOnly,
        };
        let rtr = negotiated.rtr.filter(|_| role == Role::Initiator);
        Self {
            state,
            crc: negotiated.crc,
            rx: Receiver::new(negotiated.crc, negotiated.ird),
            tx: Transmitter::new(negotiated.ord, rtr, options),
            sent: Traffic::default(),
            received: Traffic::default(),
        }
    }

    /// Whether this side may send: always for an Initiator, after the first valid FPDU for a Responder, and not after
    /// the end of the stream.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.state == State::ReadyToSend
    }

    /// Messages whose last segment was handed out for sending.
    #[must_use]
    pub fn sent(&self) -> &Traffic {
        &self.sent
    }

    /// Messages that were received whole.
    #[must_use]
    pub fn received(&self) -> &Traffic {
        &self.received
    }

    /// Whether a fault, or a Terminate of either side, ended the stream.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        matches!(self.state, State::Ended { .. })
    }

    /// The Terminate for `fault`, which ends the stream in both directions. To be sent after the FPDU that the driver
    /// is in the middle of, if any. `None` when the connection is to be dropped without one: the fault has none, one was
    /// sent or received already, or a Responder has not been spoken to.
    pub fn terminate(&mut self, fault: &Fault) -> Option<Segment> {
        let state = std::mem::replace(&mut self.state, State::Ended { terminate: false });
        let allowed = matches!(state, State::ReadyToSend | State::Ended { terminate: true });
        let code = fault.terminate_code().filter(|_| allowed)?;
        self.sent.count(Opcode::TERMINATE);
        Some(terminate_segment(code, fault.segment.as_ref(), self.crc))
    }

    fn end(&mut self) {
        self.state = State::Ended { terminate: self.state == State::ReadyToSend };
    }
}
