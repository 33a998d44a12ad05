//! What a connection request and a Connect command may ask for, and what they are refused with.

use godwit_nvme::cm::{QueueReject, QueueRequest, RejectStatus, RequestError};
use godwit_nvme::sqe::Connect;
use godwit_nvme::{Cntlid, ConnectData, ConnectRefusal, InvalidParameter, Qid, QueueSize};
use godwit_rdma::verbs::VerbsError;

use crate::association::{Host, JoinError, OpenError, SubsystemIndex};
use crate::limits::Limits;
use crate::offer::Offer;

/// What a connection may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) qid: Qid,
    /// Commands that the host may have outstanding: our receive queue (CRQSIZE).
    pub(crate) depth: u16,
}

/// Checks a connection request.
pub(crate) fn check_request(private_data: &[u8], peer_inbound_reads: u16, limits: &Limits) -> Result<Granted, RequestError> {
    let request = QueueRequest::from_wire(private_data)?;
    let limit = Qid::new(limits.io_queues);
    if request.qid > limit {
        return Err(RequestError::Qid { qid: request.qid, limit });
    }
    request.check_sizes(limits.queue_size(request.qid.is_admin()))?;
    if peer_inbound_reads == 0 {
        return Err(RequestError::NoReads);
    }
    // A response needs a buffer of the host's, so that it can have no more commands outstanding than those.
    let sends = u16::try_from(request.host_send_size.entries()).unwrap_or(u16::MAX);
    Ok(Granted { qid: request.qid, depth: sends.min(request.host_receive_size) })
}

/// What a host is told whose queue the RDMA device cannot hold: never in this size, or not now.
pub(crate) fn device_refusal(error: &VerbsError) -> QueueReject {
    let status = match error {
        VerbsError::TooDeep { .. } => RejectStatus::INVALID_HSQSIZE,
        _ => RejectStatus::NO_RESOURCES,
    };
    QueueReject { status }
}

/// Checks what the Connect command itself says, for a queue that was connected as `qid`.
pub(crate) fn check_connect(connect: &Connect, qid: Qid, limits: &Limits) -> Result<(), ConnectRefusal> {
    if connect.record_format != 0 {
        return Err(ConnectRefusal::INCOMPATIBLE_FORMAT);
    }
    if connect.qid != qid {
        return Err(ConnectRefusal::invalid(InvalidParameter::QID));
    }
    let limit = limits.queue_size(qid.is_admin());
    if connect.sq_size == QueueSize::MIN || connect.sq_size > limit {
        return Err(ConnectRefusal::invalid(InvalidParameter::SQSIZE));
    }
    Ok(())
}

/// Who connects to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) host: Host,
    pub(crate) subsystem: SubsystemIndex,
    pub(crate) cntlid: Cntlid,
}

/// Checks the data of a Connect command.
pub(crate) fn check_data(data: &ConnectData, qid: Qid, offer: &Offer) -> Result<Wish, ConnectRefusal> {
    let subnqn = data.subsystem_nqn().map_err(|_| ConnectRefusal::invalid(InvalidParameter::SUBNQN))?;
    let hostnqn = data.host_nqn().map_err(|_| ConnectRefusal::invalid(InvalidParameter::HOSTNQN))?;
    let subsystem = offer.find(&subnqn).ok_or(ConnectRefusal::invalid(InvalidParameter::SUBNQN))?;
    if offer.subsystem(subsystem).is_some_and(|subsystem| !subsystem.hosts.allow(&hostnqn)) {
        return Err(ConnectRefusal::INVALID_HOST);
    }
    if qid.is_admin() && data.cntlid() != Cntlid::DYNAMIC {
        return Err(ConnectRefusal::invalid(InvalidParameter::CNTLID));
    }
    if !qid.is_admin() && subsystem == SubsystemIndex::Discovery {
        return Err(ConnectRefusal::invalid(InvalidParameter::QID));
    }
    Ok(Wish { host: Host { nqn: hostnqn, id: data.host_id() }, subsystem, cntlid: data.cntlid() })
}

/// What a host is told when there is no new association. It may try again: none of the reasons is for ever.
pub(crate) fn open_refusal(_: OpenError) -> ConnectRefusal {
    ConnectRefusal::BUSY
}

/// What kind of refusal it is, for a statistic.
pub(crate) fn in_words(refusal: ConnectRefusal) -> &'static str {
    match refusal.parameter {
        _ if refusal.status.code == ConnectRefusal::INVALID_HOST.status.code => "the host is not allowed to use the subsystem",
        _ if refusal.status.code == ConnectRefusal::BUSY.status.code => {
            "the controller is busy: commands of the host still run, or no controller is free"
        }
        _ if refusal.status.code == ConnectRefusal::INCOMPATIBLE_FORMAT.status.code => "the record format of Connect is unknown",
        Some(InvalidParameter::SUBNQN) => "there is no such subsystem",
        Some(InvalidParameter::HOSTNQN) => "the host NQN is none",
        Some(InvalidParameter::CNTLID) => "there is no such controller",
        Some(InvalidParameter::QID) => "the queue id is wrong",
        Some(InvalidParameter::SQSIZE) => "the queue size is wrong",
        _ => "the Connect is not in order",
    }
}

/// What a host is told when its I/O queue is not taken.
pub(crate) fn join_refusal(error: JoinError) -> ConnectRefusal {
    match error {
        // Its association ended a moment ago, perhaps: the host makes a new one.
        JoinError::UnknownController(_) => {
            let refusal = ConnectRefusal::invalid(InvalidParameter::CNTLID);
            ConnectRefusal { status: refusal.status.code.retryable(), ..refusal }
        }
        JoinError::NotReady => ConnectRefusal::invalid(InvalidParameter::QID),
        JoinError::QueueInUse(_) => {
            ConnectRefusal { status: godwit_nvme::StatusCode::COMMAND_SEQUENCE_ERROR.do_not_retry(), parameter: None }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use godwit_nvme::{HostId, Nqn};

    use super::*;
    use crate::subsystem::tests::{namespace, subsystem};
    use crate::subsystem::{AllowedHosts, Target};

    fn size(entries: u32) -> QueueSize {
        QueueSize::new(entries).unwrap()
    }

    fn request(qid: u16, entries: u32) -> QueueRequest {
        QueueRequest::new(Qid::new(qid), size(entries), Cntlid::new(0))
    }

    fn rejected(bytes: &[u8], reads: u16) -> RejectStatus {
        check_request(bytes, reads, &Limits::default()).unwrap_err().status()
    }

    #[test]
    fn a_queue_that_the_device_cannot_hold_is_refused_for_its_size_or_for_want_of_room() {
        let device = || "mlx5_0".to_owned();
        let deep = VerbsError::TooDeep { device: device(), what: "work requests", most: 4096, wanted: 6144 };
        assert_eq!(device_refusal(&deep).status, RejectStatus::INVALID_HSQSIZE);
        assert_eq!(deep.to_string(), "mlx5_0 allows a queue 4096 work requests, 6144 are needed; lower the queue size");
        let full = VerbsError::CompletionQueueFull { device: device(), most: 131_072, wanted: 136_211 };
        assert_eq!(device_refusal(&full).status, RejectStatus::NO_RESOURCES);
        assert_eq!(device_refusal(&VerbsError::NoDevice).status, RejectStatus::NO_RESOURCES);
    }

    #[test]
    fn requests_within_the_limits_are_granted_what_both_ends_can_hold() {
        let grant = |request: QueueRequest| check_request(&request.to_wire(), 1, &Limits::default()).unwrap().depth;
        assert_eq!(grant(request(0, 32)), 32);
        assert_eq!(grant(request(1, 1024)), 1024);
        assert_eq!(grant(request(128, 1)), 1);
        assert_eq!(grant(QueueRequest { host_receive_size: 100, ..request(1, 128) }), 100);
    }

    #[test]
    fn requests_over_a_limit_are_rejected_with_its_status() {
        let wire = |request: QueueRequest| request.to_wire();
        assert_eq!(rejected(&wire(request(0, 32))[..31], 1), RejectStatus::INVALID_PRIVATE_DATA_LENGTH);
        assert_eq!(rejected(&[], 1), RejectStatus::INVALID_PRIVATE_DATA_LENGTH);
        let mut format = wire(request(0, 32));
        format[0] = 1;
        assert_eq!(rejected(&format, 1), RejectStatus::INVALID_RECFMT);
        assert_eq!(rejected(&wire(request(129, 32)), 1), RejectStatus::INVALID_QID);
        assert_eq!(rejected(&wire(request(0, 33)), 1), RejectStatus::INVALID_HSQSIZE);
        assert_eq!(rejected(&wire(request(1, 1025)), 1), RejectStatus::INVALID_HSQSIZE);
        assert_eq!(rejected(&wire(QueueRequest { host_receive_size: 0, ..request(1, 32) }), 1), RejectStatus::INVALID_HRQSIZE);
        assert_eq!(rejected(&wire(request(1, 32)), 0), RejectStatus::INVALID_IRD);
    }

    #[test]
    fn connect_commands_are_checked_field_by_field() {
        let check = |connect: Connect, qid| check_connect(&connect, Qid::new(qid), &Limits::default());
        let admin = |entries| Connect::admin(size(entries), Duration::ZERO);
        let io = |entries| Connect::io(Qid::new(3), size(entries));
        let sqsize = Err(ConnectRefusal::invalid(InvalidParameter::SQSIZE));
        assert_eq!(check(admin(32), 0), Ok(()));
        assert_eq!(check(admin(33), 0), sqsize);
        assert_eq!(check(admin(1), 0), sqsize);
        assert_eq!(check(io(2), 3), Ok(()));
        assert_eq!(check(io(1024), 3), Ok(()));
        assert_eq!(check(io(1025), 3), sqsize);
        assert_eq!(check(io(32), 2), Err(ConnectRefusal::invalid(InvalidParameter::QID)));
        assert_eq!(check(Connect { record_format: 1, ..admin(32) }, 0), Err(ConnectRefusal::INCOMPATIBLE_FORMAT));
    }

    fn name(text: &str) -> Nqn {
        Nqn::new(text).unwrap()
    }

    #[test]
    fn connect_data_are_checked_in_the_order_of_their_statuses() {
        let mut closed = subsystem(vec![namespace(1, 4096)]);
        closed.hosts = AllowedHosts::Listed(vec![name("nqn.2026-11.org.example:a")]);
        let target = Target::new(vec![closed], vec![], Limits::default(), 1);
        let data = |cntlid, subnqn: &str, host: &str| ConnectData::new(HostId([7; 16]), Cntlid::new(cntlid), &name(subnqn), &name(host));
        let check = |data: ConnectData, qid| check_data(&data, Qid::new(qid), &target.offer());
        let (volume, host) = ("nqn.2026-11.org.example:vol0", "nqn.2026-11.org.example:a");

        let wish = check(data(0xFFFF, volume, host), 0).unwrap();
        assert_eq!((wish.subsystem, wish.host.id), (SubsystemIndex::Nvm(0), HostId([7; 16])));
        let invalid = |parameter| Err(ConnectRefusal::invalid(parameter));
        assert_eq!(check(data(0xFFFF, "nqn.2026-11.org.example:vol1", host), 0), invalid(InvalidParameter::SUBNQN));
        assert_eq!(check(data(0xFFFF, volume, "nqn.2026-11.org.example:b"), 0), Err(ConnectRefusal::INVALID_HOST));
        assert_eq!(check(data(1, volume, host), 0), invalid(InvalidParameter::CNTLID));
        assert_eq!(check(data(1, volume, host), 1).unwrap().cntlid, Cntlid::new(1));
        assert!(check(data(0xFFFF, Nqn::DISCOVERY, "nqn.2026-11.org.example:b"), 0).is_ok(), "everyone may discover");
        assert_eq!(check(data(1, Nqn::DISCOVERY, host), 1), invalid(InvalidParameter::QID));
        let mut bytes = *data(0xFFFF, volume, host).as_bytes();
        bytes[512..768].fill(b'x');
        assert_eq!(check(ConnectData::read_from(&bytes).unwrap(), 0), invalid(InvalidParameter::HOSTNQN));
        bytes[256..512].fill(0);
        assert_eq!(check(ConnectData::read_from(&bytes).unwrap(), 0), invalid(InvalidParameter::SUBNQN));
    }

    #[test]
    fn a_host_may_have_a_name_of_any_form_and_is_still_matched_by_it() {
        let data = |host: &str| {
            let host = Nqn::of_any_form(host).unwrap();
            ConnectData::new(HostId([7; 16]), Cntlid::DYNAMIC, &name("nqn.2026-11.org.example:vol0"), &host)
        };
        let mut subsystem = subsystem(vec![namespace(1, 4096)]);
        let target = |subsystem: &crate::subsystem::Subsystem| Target::new(vec![subsystem.clone()], vec![], Limits::default(), 1);
        let wish = check_data(&data("testhost"), Qid::ADMIN, &target(&subsystem).offer()).unwrap();
        assert_eq!(wish.host.nqn.as_str(), "testhost");
        subsystem.hosts = AllowedHosts::Listed(vec![name("nqn.2026-11.org.example:a")]);
        assert_eq!(check_data(&data("testhost"), Qid::ADMIN, &target(&subsystem).offer()), Err(ConnectRefusal::INVALID_HOST));
    }

    #[test]
    fn passing_refusals_let_the_host_try_again() {
        let wire = |refusal: ConnectRefusal| (refusal.status.to_wire() >> 1, refusal.result());
        assert_eq!(wire(open_refusal(OpenError::Fenced)), (0x181, 0));
        assert_eq!(wire(open_refusal(OpenError::Full { limit: 1 })), (0x181, 0));
        assert_eq!(wire(join_refusal(JoinError::UnknownController(Cntlid::new(1)))), (0x182, 0x1_0010));
        assert_eq!(wire(join_refusal(JoinError::NotReady)), (0x4182, 42));
        assert_eq!(wire(join_refusal(JoinError::QueueInUse(Qid::new(1)))), (0x400C, 0));
    }
}
