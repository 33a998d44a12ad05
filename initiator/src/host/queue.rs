//! What the admin queue and the I/O queues share: where they connect to, and what the ends of their connections mean.

use std::io;
use std::net::SocketAddr;

use godwit_nvme::cm::{QueueReject, QueueRequest};
use godwit_nvme::{Rkey, SglDescriptor};
use godwit_rdma::{Disconnect, Fabric, FpduSize, QpId, Remote, Transport};
use nix::errno::Errno;

use super::error::HostError;

/// Where a target listens, and how to speak to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Which provider connects to it.
    pub transport: Transport,
    /// Its address.
    pub address: SocketAddr,
    /// Whether to ask for CRC32C.
    pub crc: bool,
    /// Frame size.
    pub fpdu: FpduSize,
}

/// A refusal in words.
pub(crate) fn rejected(private_data: &[u8], request: &QueueRequest) -> HostError {
    match QueueReject::from_wire(private_data) {
        Ok(reject) => HostError::Rejected { reject, request: *request },
        Err(_) => HostError::RejectedBlindly,
    }
}

/// The end of a connection in words.
pub(crate) fn disconnected(reason: &Disconnect, address: SocketAddr) -> HostError {
    let text = match reason {
        Disconnect::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            format!("cannot connect to {address}: nothing is listening there; is the target running?")
        }
        Disconnect::Connect(error) => format!("cannot connect to {address}: {}", in_words(error)),
        Disconnect::Lost(error) => format!("connection to {address} lost: {}", in_words(error)),
        Disconnect::Startup(text) => {
            format!("{address} does not answer as an iWARP target does: {text}; does a target listen at this address?")
        }
        Disconnect::StartupTimeout { .. } => format!("connection to {address}: {reason}; does a target listen at this address?"),
        other => format!("connection to {address}: {other}"),
    };
    match reason {
        Disconnect::PeerClosed | Disconnect::Lost(_) => HostError::Torn(text),
        _ => HostError::Connection(text),
    }
}

/// An error of the system with what to do about it where that is known, and without its number, which says nothing to people.
pub(crate) fn in_words(error: &io::Error) -> String {
    if error.raw_os_error() == Some(Errno::EMFILE as i32) {
        return "no file descriptor left; raise LimitNOFILE= in the systemd unit, or `ulimit -n` in the shell".to_owned();
    }
    let text = error.to_string();
    text.split_once(" (os error").map_or(text.as_str(), |(words, _)| words).to_owned()
}

/// The descriptor of an exposed buffer. The response is to invalidate the key where that can be.
pub(crate) fn keyed(fabric: &Fabric, qp: QpId, remote: Remote, len_bytes: usize) -> SglDescriptor {
    let length = u32::try_from(len_bytes).unwrap_or(u32::MAX);
    SglDescriptor::keyed(remote.address, length, Rkey::new(remote.rkey.0), fabric.peer_invalidates(qp))
        .expect("a buffer is shorter than 16 MiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(reason: &Disconnect) -> String {
        disconnected(reason, ([192, 0, 2, 7], 4420).into()).to_string()
    }

    #[test]
    fn the_end_of_a_connection_names_the_target_and_no_number() {
        let refused = Disconnect::Connect(io::Error::from_raw_os_error(111));
        assert_eq!(told(&refused), "cannot connect to 192.0.2.7:4420: nothing is listening there; is the target running?");
        let unreachable = Disconnect::Connect(io::Error::from_raw_os_error(113));
        assert_eq!(told(&unreachable), "cannot connect to 192.0.2.7:4420: No route to host");
        let reset = Disconnect::Lost(io::Error::from_raw_os_error(104));
        assert_eq!(told(&reset), "connection to 192.0.2.7:4420 lost: Connection reset by peer");
        assert_eq!(told(&Disconnect::PeerClosed), "connection to 192.0.2.7:4420: closed by the peer");
    }

    #[test]
    fn a_refusal_without_private_data_is_told_as_such() {
        let request = QueueRequest::new(godwit_nvme::Qid::ADMIN, godwit_nvme::QueueSize::MIN, godwit_nvme::Cntlid::new(0));
        assert!(matches!(rejected(&[], &request), HostError::RejectedBlindly));
        assert!(matches!(rejected(&[0, 0, 6, 0], &request), HostError::Rejected { .. }));
    }
}
