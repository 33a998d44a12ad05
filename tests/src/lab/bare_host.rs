//! An NVMe host by hand, on either provider: it does what a case tells it and nothing else, and shows what it is answered.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use godwit_memory::{ClassLayout, Layout};
use godwit_nvme::cm::QueueRequest;
use godwit_nvme::property::PropertySize;
use godwit_nvme::sqe::{Connect, PropertyAccess};
use godwit_nvme::{
    BlockCount, BlockRange, Cid, Cntlid, ConnectData, ConnectRefusal, ConnectResult, ControllerConfiguration, Cqe, HostId, Lba, Nqn, Nsid,
    PropertyOffset, Qid, QueueSize, Rkey, SglDescriptor, Sqe,
};
use godwit_rdma::{Access, Completion, Fabric, FpduSize, QpConfig, QpId, Transport, WorkId};
use godwit_reactor::{PollBudget, Reactor, Token, Uring, UringConfig};
use uuid::Uuid;

use crate::daemon::NQN;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The longest transfer.
const BUFFER_BYTES: usize = 64 << 10;

const TICK: Duration = Duration::from_millis(5);

/// Why there is no association.
#[derive(Debug)]
pub enum NoAssociation {
    /// Connect was answered so.
    Refused(ConnectRefusal),
    /// There was no connection, or it ended.
    NoConnection(String),
}

/// The host, with all its queues.
#[derive(Debug)]
pub struct BareHost {
    fabric: Fabric,
    reactor: Uring,
    transport: Transport,
    target: SocketAddr,
    nqn: Nqn,
    id: HostId,
    completions: Vec<(QpId, Completion)>,
    patience: Duration,
    last_cid: u16,
}

impl BareHost {
    /// A host of a name, for a target at an address.
    ///
    /// # Panics
    ///
    /// When the name is none, or the machine has no ring for it.
    pub fn new(transport: Transport, target: SocketAddr, nqn: &str, id: &str) -> Self {
        let class = |buffer_bytes, count| ClassLayout { buffer_bytes, count };
        let pool = Layout::new(&[class(4096, 32), class(BUFFER_BYTES, 16)]).expect("a layout");
        let reactor = Uring::new(&UringConfig { pool, poll: PollBudget(Duration::ZERO) }).expect("a ring");
        let id = HostId(*id.parse::<Uuid>().expect("a UUID").as_bytes());
        let nqn = Nqn::new(nqn).expect("an NQN");
        Self { fabric: Fabric::new(), reactor, transport, target, nqn, id, completions: Vec::new(), patience: PATIENCE, last_cid: 0 }
    }

    /// Waits for no answer longer than this.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Connects an admin queue: the queue, and the identifier of its controller.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn connect_admin(&mut self, keep_alive: Duration) -> Result<(QpId, Cntlid), NoAssociation> {
        let size = QueueSize::new(32).expect("not zero");
        self.connect(&QueueRequest::new(Qid::ADMIN, size, Cntlid::new(0)), &Connect::admin(size, keep_alive), Cntlid::DYNAMIC)
    }

    /// Enables the controller of an admin queue.
    ///
    /// # Panics
    ///
    /// When that fails.
    pub fn enable(&mut self, admin: QpId) {
        let cc = PropertyAccess { offset: PropertyOffset::CC, size: PropertySize::Four };
        let cid = self.next_cid();
        let sqe = Sqe::property_set(cid, cc, ControllerConfiguration::new(true).bits().into());
        self.fabric.post_send(admin, WorkId(0), sqe.as_bytes(), None, None);
        let cqe = self.answer(admin, cid).expect("the controller is enabled");
        assert!(cqe.status().is_success(), "{}", cqe.status());
    }

    /// Connects the I/O queue 1 of a controller.
    ///
    /// # Panics
    ///
    /// When that fails.
    pub fn connect_io(&mut self, cntlid: Cntlid) -> QpId {
        let size = QueueSize::new(32).expect("not zero");
        let qid = Qid::new(1);
        let connected = self.connect(&QueueRequest::new(qid, size, cntlid), &Connect::io(qid, size), cntlid);
        connected.unwrap_or_else(|error| panic!("no I/O queue: {error:?}")).0
    }

    /// Sends a write of blocks of 4096 bytes, whose data the target is to fetch.
    ///
    /// # Panics
    ///
    /// When the queue is gone, or the data are no blocks, or too many.
    pub fn start_write(&mut self, queue: QpId, lba: u64, data: &[u8]) -> Cid {
        let mut buffer = self.reactor.pool().take(data.len()).expect("a buffer");
        buffer.set_len(data.len());
        buffer.copy_from_slice(data);
        let remote = self.fabric.expose(queue, buffer, data.len(), Access::RemoteRead).expect("the queue is there");
        let len = u32::try_from(data.len()).expect("a short write");
        let blocks = BlockCount::new(len / 4096).expect("whole blocks");
        let cid = self.next_cid();
        let sgl = SglDescriptor::keyed(remote.address, len, Rkey::new(remote.rkey.0), false).expect("a short write");
        let sqe = Sqe::write(cid, Nsid::new(1), BlockRange::new(Lba::new(lba), blocks)).with_sgl(sgl);
        self.fabric.post_send(queue, WorkId(0), sqe.as_bytes(), None, None);
        self.turn();
        cid
    }

    /// Writes, and waits for the answer.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn write(&mut self, queue: QpId, lba: u64, data: &[u8]) {
        let cid = self.start_write(queue, lba, data);
        let cqe = self.answer(queue, cid).unwrap_or_else(|error| panic!("a write was not answered: {error}"));
        assert!(cqe.status().is_success(), "{}", cqe.status());
    }

    /// Begins to end the connection of a queue.
    pub fn close(&mut self, queue: QpId) {
        self.fabric.disconnect(&mut self.reactor, queue);
        self.turn();
    }

    /// Does what peers ask of it, until a condition holds.
    ///
    /// # Panics
    ///
    /// When it does not in time.
    pub fn serve_until(&mut self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
            self.turn();
        }
    }

    /// Does what peers ask of it, for a while.
    pub fn serve_for(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            self.turn();
        }
    }

    fn connect(&mut self, request: &QueueRequest, connect: &Connect, cntlid: Cntlid) -> Result<(QpId, Cntlid), NoAssociation> {
        let no_connection = |why: String| NoAssociation::NoConnection(why);
        let config = QpConfig {
            send_depth: 32,
            receive_depth: 32,
            header_bytes: Cqe::LEN_BYTES,
            data_bytes: 0,
            regions: 8,
            inbound_reads: 8,
            outbound_reads: 0,
            crc: true,
            fpdu: FpduSize::Large,
        };
        let qp = self.fabric.connect(&mut self.reactor, self.transport, self.target, &config, &request.to_wire());
        let qp = qp.map_err(|error| no_connection(error.to_string()))?;
        let established = self.await_completion(qp, |completion| matches!(completion, Completion::Established { .. }));
        if let Err(why) = established {
            self.fabric.destroy(&mut self.reactor, qp);
            return Err(no_connection(why));
        }
        let bytes = ConnectData::new(self.id, cntlid, &Nqn::new(NQN).expect("an NQN"), &self.nqn);
        let bytes = bytes.as_bytes();
        let mut data = self.reactor.pool().take(bytes.len()).expect("a buffer");
        data.set_len(bytes.len());
        data.copy_from_slice(bytes);
        let cid = self.next_cid();
        let sqe = Sqe::connect(cid, connect).with_sgl(SglDescriptor::in_capsule(0, u32::try_from(bytes.len()).expect("1024")));
        self.fabric.post_send(qp, WorkId(0), sqe.as_bytes(), Some(data), None);
        match self.answer(qp, cid) {
            Ok(cqe) if cqe.status().is_success() => Ok((qp, ConnectResult::from_wire(cqe.dw0()).cntlid)),
            Ok(cqe) => {
                self.fabric.destroy(&mut self.reactor, qp);
                Err(NoAssociation::Refused(ConnectRefusal::from_completion(cqe.status(), cqe.dw0())))
            }
            Err(why) => {
                self.fabric.destroy(&mut self.reactor, qp);
                Err(no_connection(why))
            }
        }
    }

    fn next_cid(&mut self) -> Cid {
        self.last_cid += 1;
        Cid::new(self.last_cid)
    }

    fn answer(&mut self, queue: QpId, cid: Cid) -> Result<Cqe, String> {
        let of = |completion: &Completion| match completion {
            Completion::Received { header, .. } => Cqe::read_from(header.as_bytes()).ok().filter(|cqe| cqe.cid() == cid),
            _ => None,
        };
        let completion = self.await_completion(queue, |completion| of(completion).is_some())?;
        Ok(of(&completion).expect("it was looked for"))
    }

    /// The end of the queue, or too long a time, as an error.
    fn await_completion(&mut self, queue: QpId, wanted: impl Fn(&Completion) -> bool) -> Result<Completion, String> {
        let deadline = Instant::now() + self.patience;
        loop {
            let ends = |completion: &Completion| matches!(completion, Completion::Rejected { .. } | Completion::Disconnected { .. });
            let place = self.completions.iter().position(|(qp, completion)| *qp == queue && (wanted(completion) || ends(completion)));
            if let Some(place) = place {
                let (_, completion) = self.completions.remove(place);
                return if wanted(&completion) { Ok(completion) } else { Err(format!("{completion:?}")) };
            }
            if Instant::now() > deadline {
                return Err(format!("nothing within {:?}", self.patience));
            }
            self.turn();
        }
    }

    fn turn(&mut self) {
        self.poll();
        self.fabric.flush(&mut self.reactor);
        let now = self.reactor.now();
        let tick = self.reactor.set_timer(now + TICK, Token(0));
        let mut events = Vec::new();
        self.reactor.turn(&mut events).expect("the ring turns");
        self.reactor.cancel_timer(tick);
        for event in events {
            if event.token().is_some_and(Fabric::owns) {
                self.fabric.on_event(&mut self.reactor, event);
            }
        }
        self.poll();
    }

    fn poll(&mut self) {
        while let Some(completion) = self.fabric.poll(&mut self.reactor) {
            self.completions.push(completion);
        }
    }
}
