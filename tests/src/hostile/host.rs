//! Honest beginnings: what a well-behaved host does to get where a hostile stream starts to misbehave.

use std::io::{self, ErrorKind};
use std::thread;
use std::time::{Duration, Instant};

use godwit_iwarp::{Initiator, Reply, StartupConfig};
use godwit_nvme::cm::{QueueReject, QueueRequest, RejectStatus};
use godwit_nvme::property::PropertySize;
use godwit_nvme::sqe::{Connect, PropertyAccess};
use godwit_nvme::{
    Cid, Cntlid, ConnectData, ConnectResult, ControllerConfiguration, ControllerStatus, HostId, Nqn, PropertyOffset, Qid, QueueSize, Rkey,
    SglDescriptor, Sqe,
};

use super::link::Link;
use super::socket::{PATIENCE, Socket};
use super::tally::Progress;
use super::{Aim, Milestone, Misbehaviour, Random, alphabet};

/// The host of a stream, which no other stream has.
#[derive(Clone, Debug)]
pub(super) struct Host {
    subsystem: Nqn,
    name: Nqn,
    id: HostId,
}

impl Host {
    pub(super) fn new(aim: &Aim, random: &mut Random) -> Self {
        let mut id = [0; 16];
        id.fill_with(|| random.byte());
        let subsystem = Nqn::new(&aim.subsystem).expect("the subsystem of the test");
        Self { subsystem, name: Nqn::new("nqn.2026-11.org.example:hostile-host").expect("a name"), id: HostId(id) }
    }

    pub(super) fn connect_data(&self, cntlid: Cntlid) -> ConnectData {
        ConnectData::new(self.id, cntlid, &self.subsystem, &self.name)
    }
}

/// What a target answered to a start-up frame.
#[derive(Debug)]
pub(super) enum Answer {
    Accepted(Link),
    Rejected(Vec<u8>),
}

/// Starts a connection up.
pub(super) fn start(aim: &Aim, random: &mut Random, private_data: &[u8], at: &'static str) -> Result<Answer, Misbehaviour> {
    let refused = |error| Misbehaviour::Refused { at, error };
    let mut socket = Socket::tcp(aim.target).map_err(refused)?;
    let config = StartupConfig { crc: random.one_in(2), ird: u16::from(random.byte() % 128) + 1, ord: 0, peer_to_peer: None };
    let mut initiator = Initiator::new(config, private_data).expect("within its limits");
    socket.send(initiator.request());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let came = socket.receive(deadline.saturating_duration_since(Instant::now()));
        if !came && socket.is_over {
            return Err(refused(ErrorKind::ConnectionReset.into()));
        }
        if !came && Instant::now() >= deadline {
            return Err(refused(ErrorKind::TimedOut.into()));
        }
        let (consumed, reply) = initiator.receive(&socket.inbox).map_err(|error| Misbehaviour::Garbled(error.to_string()))?;
        socket.inbox.drain(..consumed);
        match reply {
            None => {}
            Some(Reply::Rejected { private_data }) => return Ok(Answer::Rejected(private_data)),
            Some(Reply::Accepted { parameters, .. }) if parameters.crc => return Ok(Answer::Accepted(Link::new(socket))),
            Some(Reply::Accepted { .. }) => return Err(Misbehaviour::Garbled("a target that insists on CRC does without".to_owned())),
        }
    }
}

/// Starts the connection of a queue up, again while the target has no room because other streams are not quite gone yet.
pub(super) fn start_queue(
    aim: &Aim,
    random: &mut Random,
    request: &QueueRequest,
    progress: &mut Progress<'_>,
) -> Result<Link, Misbehaviour> {
    let at = "MPA start-up";
    let deadline = Instant::now() + PATIENCE;
    loop {
        let rejection = match start(aim, random, &request.to_wire(), at)? {
            Answer::Accepted(link) => {
                progress.reach(Milestone::StartupAccepted);
                return Ok(link);
            }
            Answer::Rejected(private_data) => {
                QueueReject::from_wire(&private_data).map_err(|error| Misbehaviour::Garbled(error.to_string()))?
            }
        };
        if rejection.status != RejectStatus::NO_RESOURCES || Instant::now() > deadline {
            return Err(Misbehaviour::Refused { at, error: io::Error::other(rejection.explain(request).to_string()) });
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// The data of a command: in its capsule, or in memory of ours that is given when asked for.
fn with_data(random: &mut Random, sqe: Sqe, data: &[u8]) -> (Sqe, Vec<u8>) {
    let len = u32::try_from(data.len()).expect("short data");
    if random.one_in(2) {
        return (sqe.with_sgl(SglDescriptor::in_capsule(0, len)), data.to_vec());
    }
    let keyed = SglDescriptor::keyed(0, len, Rkey::new(random.word()), random.one_in(2)).expect("short data");
    (sqe.with_sgl(keyed), Vec::new())
}

/// Connects a queue.
fn connect(
    host: &Host,
    random: &mut Random,
    link: &mut Link,
    at: &'static str,
    connect: &Connect,
    cntlid: Cntlid,
    progress: &mut Progress<'_>,
) -> Result<Cntlid, Misbehaviour> {
    let data = host.connect_data(cntlid);
    let sqe = Sqe::connect(Cid::new(random.half()), connect);
    let (sqe, in_capsule) = with_data(random, sqe, data.as_bytes());
    let cqe = link.command(at, &sqe, &in_capsule, data.as_bytes(), progress)?;
    if !cqe.status().is_success() {
        return Err(Misbehaviour::Refused { at, error: io::Error::other(cqe.status().to_string()) });
    }
    Ok(ConnectResult::from_wire(cqe.dw0()).cntlid)
}

/// Connects an admin queue.
pub(super) fn connect_admin(
    aim: &Aim,
    host: &Host,
    random: &mut Random,
    progress: &mut Progress<'_>,
) -> Result<(Link, Cntlid), Misbehaviour> {
    let size = QueueSize::new(32).expect("not zero");
    let mut link = start_queue(aim, random, &QueueRequest::new(Qid::ADMIN, size, Cntlid::new(0)), progress)?;
    let keep_alive = Duration::from_millis(u64::from(alphabet::half(random)) + 30_000);
    let cntlid = connect(host, random, &mut link, "admin Connect", &Connect::admin(size, keep_alive), Cntlid::DYNAMIC, progress)?;
    progress.reach(Milestone::AdminConnected);
    Ok((link, cntlid))
}

/// Enables the controller of an admin queue and waits until it is ready.
pub(super) fn enable(random: &mut Random, link: &mut Link, progress: &mut Progress<'_>) -> Result<(), Misbehaviour> {
    let at = "enabling the controller";
    let cc = PropertyAccess { offset: PropertyOffset::CC, size: PropertySize::Four };
    let value = ControllerConfiguration::new(true).bits().into();
    let cqe = link.command(at, &Sqe::property_set(Cid::new(random.half()), cc, value), &[], &[], progress)?;
    if !cqe.status().is_success() {
        return Err(Misbehaviour::Refused { at, error: io::Error::other(cqe.status().to_string()) });
    }
    let csts = PropertyAccess { offset: PropertyOffset::CSTS, size: PropertySize::Four };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let cqe = link.command(at, &Sqe::property_get(Cid::new(random.half()), csts), &[], &[], progress)?;
        if ControllerStatus::from_bits(cqe.dw0()).is_ready() {
            break;
        }
        if Instant::now() > deadline {
            return Err(Misbehaviour::Refused { at, error: ErrorKind::TimedOut.into() });
        }
    }
    progress.reach(Milestone::Enabled);
    Ok(())
}

/// Connects an I/O queue of `entries`.
pub(super) fn connect_io(
    aim: &Aim,
    host: &Host,
    random: &mut Random,
    cntlid: Cntlid,
    entries: u32,
    progress: &mut Progress<'_>,
) -> Result<Link, Misbehaviour> {
    let (qid, size) = (Qid::new(1 + random.half() % 4), QueueSize::new(entries).expect("not zero"));
    let mut link = start_queue(aim, random, &QueueRequest::new(qid, size, cntlid), progress)?;
    connect(host, random, &mut link, "I/O Connect", &Connect::io(qid, size), cntlid, progress)?;
    progress.reach(Milestone::IoConnected);
    Ok(link)
}
