//! Why an association cannot be made, or ended.

use std::time::Duration;

use godwit_nvme::cm::{QueueReject, QueueRequest};
use godwit_nvme::identify::{ControllerError, NamespaceError};
use godwit_nvme::{ConnectRefusal, InvalidParameter, Nqn, Nsid, Status, StatusCode};

use super::identity::IdentityChange;

/// What went wrong between this host and a target. Prints as one line.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HostError {
    /// The connection could not be made, was rejected or not answered in time, or this side ended it.
    #[error("{0}")]
    Connection(String),
    /// The peer or the network ended a connection that was made, or never said anything on it.
    #[error("{0}")]
    Torn(String),
    /// The name of the target has no address.
    #[error("cannot find the address of {host}: {reason}; correct the name, or write an address")]
    Lookup {
        /// The name, with the port.
        host: String,
        /// What the resolver says.
        reason: String,
    },
    /// The discovery controller does not know the subsystem.
    #[error("the discovery controller at {at} names no address of {nqn} for this host (`godwit discover` lists what it has)")]
    NotDiscovered {
        /// The subsystem.
        nqn: Nqn,
        /// Whom we asked.
        at: String,
    },
    /// The target refused the RDMA connection.
    #[error("{}", .reject.explain(.request))]
    Rejected {
        /// What it answered.
        reject: QueueReject,
        /// What we asked for.
        request: QueueRequest,
    },
    /// The target refused the RDMA connection without a reason that can be read.
    #[error("target refused the connection without a reason; is NVMe over RDMA served at this address?")]
    RejectedBlindly,
    /// The target refused Connect.
    #[error("target refused: {0}{hint}", hint = connect_hint(.0))]
    Refused(ConnectRefusal),
    /// The target wants this host to authenticate.
    #[error("target refused: it asks for in-band authentication (DH-HMAC-CHAP), which is not supported; allow this host without it")]
    AuthenticationRequired,
    /// A command of the set-up failed.
    #[error("{command} failed: {status}")]
    Command {
        /// Which.
        command: &'static str,
        /// How.
        status: Status,
    },
    /// A command was not answered in time.
    #[error("no answer to {command} within {} s", .after.as_secs())]
    Timeout {
        /// Which.
        command: &'static str,
        /// How long we waited.
        after: Duration,
    },
    /// The controller did not become ready.
    #[error("the controller did not become ready within {} s", .after.as_secs())]
    NotReady {
        /// How long we waited.
        after: Duration,
    },
    /// The controller reports a fatal error.
    #[error("the controller reports a fatal error (CSTS.CFS)")]
    Fatal,
    /// The controller cannot be used over RDMA.
    #[error(transparent)]
    Controller(#[from] ControllerError),
    /// The controller's memory pages are larger than ours.
    #[error("the controller wants memory pages of at least {0} bytes; 4096 are supported")]
    PageSize(u32),
    /// The controller has queues that are too small to use.
    #[error("the controller allows {0} outstanding commands a queue; at least 1 beside the one that stays free is needed")]
    QueueTooSmall(u32),
    /// The target grants fewer I/O queues than the volume runs on.
    #[error("target grants {granted} I/O queues, but the volume runs on {needed}; raise its limit again")]
    FewerQueues {
        /// What it grants now.
        granted: u16,
        /// What it granted before.
        needed: u16,
    },
    /// There is no such namespace.
    #[error("the subsystem has no namespace {nsid}; it has {}", list(.present))]
    NoNamespace {
        /// What was asked for.
        nsid: Nsid,
        /// What there is.
        present: Vec<Nsid>,
    },
    /// There are several namespaces, and none was asked for.
    #[error("the subsystem has several namespaces ({}): choose one, as in ?nsid={}", list(.0), .0.first().map_or(1, |nsid| nsid.get()))]
    SeveralNamespaces(Vec<Nsid>),
    /// There is no namespace at all.
    #[error("the subsystem has no namespace for this host")]
    NoNamespaces,
    /// The namespace cannot be used.
    #[error("namespace {nsid}: {reason}")]
    Namespace {
        /// Which.
        nsid: Nsid,
        /// Why.
        reason: NamespaceError,
    },
    /// An answer does not make sense.
    #[error("the target's answer to {command} makes no sense: {reason}")]
    Malformed {
        /// The command.
        command: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The target broke a rule of the protocol.
    #[error("the target broke the protocol: {0}")]
    Violation(&'static str),
    /// The reactor has no buffers to spare for the volume.
    #[error("no buffers to spare: give each reactor more memory")]
    NoBuffers,
    /// Another volume is there.
    #[error(transparent)]
    Identity(#[from] IdentityChange),
    /// The controller lost the association.
    #[error("the target sent a persistent internal error")]
    InternalError,
    /// It was unreachable for the whole controller loss timeout.
    #[error("gave up after {} s without the target (ctrl_loss_tmo); the last try: {last}", .after.as_secs())]
    LossTimeout {
        /// The timeout.
        after: Duration,
        /// Why the last attempt failed, or the loss itself.
        last: Box<Self>,
    },
}

impl HostError {
    /// Whether another attempt, soon, is what the target asks for: it is busy with the end of an earlier association.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused(ConnectRefusal { status, .. })
            if status.code == StatusCode::CONNECT_CONTROLLER_BUSY && !status.dnr)
    }

    /// Whether the target does not know the subsystem.
    pub fn is_unknown_subsystem(&self) -> bool {
        matches!(self, Self::Refused(ConnectRefusal { parameter: Some(InvalidParameter::SUBNQN), .. }))
    }

    /// Whether the target does not allow this host.
    pub fn is_unknown_host(&self) -> bool {
        matches!(self, Self::Refused(ConnectRefusal { status, .. }) if status.code == StatusCode::CONNECT_INVALID_HOST)
    }

    /// Whether the target refuses Connect, and says that it will whenever it is asked (DNR).
    pub fn is_refused_for_good(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.status.dnr)
    }

    /// Whether no later attempt can help.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Identity(_) | Self::LossTimeout { .. })
    }
}

fn connect_hint(refusal: &ConnectRefusal) -> &'static str {
    match (refusal.status.code, refusal.parameter) {
        (StatusCode::CONNECT_INVALID_HOST, _) => "; it does not allow this host: add its host NQN to the subsystem's hosts",
        (_, Some(InvalidParameter::SUBNQN)) => "; it has no such subsystem (`godwit discover` lists what it has)",
        (_, Some(InvalidParameter::SQSIZE)) => "; its queues are smaller: lower --queue-size",
        (StatusCode::CONNECT_CONTROLLER_BUSY, _) => "; try again later",
        _ => "",
    }
}

fn list(nsids: &[Nsid]) -> String {
    const SHOWN: usize = 16;
    let mut text = nsids.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if nsids.is_empty() {
        text.push_str("none");
    } else if nsids.len() > SHOWN {
        text.push_str(", ...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use godwit_nvme::cm::RejectStatus;
    use godwit_nvme::{Cntlid, Qid, QueueSize};

    #[test]
    fn refusals_say_what_to_do() {
        let host = HostError::Refused(ConnectRefusal::INVALID_HOST);
        assert!(host.to_string().ends_with("add its host NQN to the subsystem's hosts"), "{host}");
        let nqn = HostError::Refused(ConnectRefusal::invalid(InvalidParameter::SUBNQN));
        assert!(nqn.is_unknown_subsystem() && nqn.to_string().contains("no such subsystem"), "{nqn}");
        let request = QueueRequest::new(Qid::new(1), QueueSize::new(1025).unwrap(), Cntlid::new(1));
        let rejected = HostError::Rejected { reject: QueueReject { status: RejectStatus::INVALID_HSQSIZE }, request };
        assert!(rejected.to_string().contains("1025"), "{rejected}");
    }

    #[test]
    fn only_a_busy_controller_without_dnr_asks_for_another_try_soon() {
        assert!(HostError::Refused(ConnectRefusal::BUSY).is_busy());
        let dnr = ConnectRefusal { status: StatusCode::CONNECT_CONTROLLER_BUSY.do_not_retry(), parameter: None };
        assert!(!HostError::Refused(dnr).is_busy());
        assert!(!HostError::Refused(ConnectRefusal::INVALID_HOST).is_busy());
    }

    #[test]
    fn namespaces_to_choose_from_are_listed() {
        let present: Vec<_> = [2, 5].map(Nsid::new).into();
        assert_eq!(
            HostError::SeveralNamespaces(present.clone()).to_string(),
            "the subsystem has several namespaces (2, 5): choose one, as in ?nsid=2"
        );
        assert_eq!(HostError::NoNamespace { nsid: Nsid::new(1), present }.to_string(), "the subsystem has no namespace 1; it has 2, 5");
        assert_eq!(
            HostError::NoNamespace { nsid: Nsid::new(1), present: vec![] }.to_string(),
            "the subsystem has no namespace 1; it has none"
        );
    }
}
