//! A host that says exactly what a test wants it to say.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use godwit_memory::{Buffer, ClassLayout, Layout};
use godwit_nvme::cm::{QueueAccept, QueueReject, QueueRequest, RejectStatus};
use godwit_nvme::sqe::{Connect, PropertyAccess};
use godwit_nvme::{Cid, Cntlid, ConnectData, Cqe, HostId, Nqn, PropertyOffset, PropertySize, Qid, QueueSize, Rkey, SglDescriptor, Sqe};
use godwit_rdma::{Access, Completion, Fabric, FpduSize, QpConfig, QpId, Remote, Transport, WorkId};
use godwit_reactor::{Event, PollBudget, Reactor, Token, Uring, UringConfig};

use crate::server::VOLUME;

pub(crate) const HOST: &str = "nqn.2026-11.org.example:host";

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(8);

/// A queue as the host sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    pub(crate) qp: QpId,
    pub(crate) granted: u16,
}

/// What came on a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    pub(crate) cqe: Cqe,
    pub(crate) invalidated: Option<godwit_rdma::Rkey>,
}

impl Response {
    /// The status as the specification writes it, with DNR as 4000h.
    pub(crate) fn status(&self) -> u16 {
        self.cqe.status().to_wire() >> 1
    }
}

pub(crate) struct Host {
    ring: Uring,
    fabric: Fabric,
    inbox: VecDeque<(QpId, Completion)>,
    next_cid: u16,
}

impl Host {
    pub(crate) fn new() -> Self {
        let class = |buffer_bytes, count| ClassLayout { buffer_bytes, count };
        let pool = Layout::new(&[class(4096, 64), class(8192, 256), class(1 << 20, 8)]).unwrap();
        let ring = Uring::new(&UringConfig { pool, poll: PollBudget(Duration::ZERO) }).unwrap();
        Self { ring, fabric: Fabric::new(), inbox: VecDeque::new(), next_cid: 0 }
    }

    pub(crate) fn buffer(&self, content: &[u8]) -> Buffer {
        let mut buffer = self.ring.pool().take(content.len()).unwrap();
        buffer.copy_from_slice(content);
        buffer
    }

    fn turn(&mut self) {
        let mut events: Vec<Event<_>> = Vec::new();
        self.fabric.flush(&mut self.ring);
        let timer = self.ring.set_timer(self.ring.now() + Duration::from_millis(20), Token(0));
        self.ring.turn(&mut events).unwrap();
        self.ring.cancel_timer(timer);
        for event in events {
            if !matches!(event, Event::Timer { token: Token(0) }) {
                self.fabric.on_event(&mut self.ring, event);
            }
        }
        while let Some(completion) = self.fabric.poll(&mut self.ring) {
            self.inbox.push_back(completion);
        }
        self.fabric.flush(&mut self.ring);
    }

    /// Turns until a completion of the queue pair that `wanted` takes; `None` after `limit`.
    fn find<T>(&mut self, qp: QpId, limit: Duration, wanted: impl Fn(&Completion) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + limit;
        loop {
            let found = self.inbox.iter().position(|(of, completion)| *of == qp && wanted(completion).is_some());
            if let Some(found) = found {
                return self.inbox.remove(found).and_then(|(_, completion)| wanted(&completion));
            }
            if Instant::now() > deadline {
                return None;
            }
            self.turn();
        }
    }

    /// Connects a queue pair with this private data.
    pub(crate) fn connect_raw(&mut self, address: SocketAddr, private_data: &[u8], reads: u16) -> Result<Queue, RejectStatus> {
        let config = QpConfig {
            send_depth: 256,
            receive_depth: 256,
            header_bytes: Cqe::LEN_BYTES,
            data_bytes: 0,
            regions: 256,
            inbound_reads: reads,
            outbound_reads: 0,
            crc: true,
            fpdu: FpduSize::Large,
        };
        let qp = self.fabric.connect(&mut self.ring, Transport::Iwarp, address, &config, private_data).unwrap();
        let reply = self.find(qp, PATIENCE, |completion| match completion {
            Completion::Established { private_data } => Some(Ok(QueueAccept::from_wire(&private_data.0).unwrap().controller_receive_size)),
            Completion::Rejected { private_data } => Some(Err(QueueReject::from_wire(&private_data.0).unwrap().status)),
            _ => None,
        });
        reply.expect("an answer").map(|granted| Queue { qp, granted })
    }

    pub(crate) fn open(&mut self, address: SocketAddr, qid: u16, entries: u32) -> Queue {
        let request = QueueRequest::new(Qid::new(qid), QueueSize::new(entries).unwrap(), Cntlid::new(0));
        self.connect_raw(address, &request.to_wire(), 16).expect("accepted")
    }

    pub(crate) fn cid(&mut self) -> Cid {
        self.next_cid += 1;
        Cid::new(self.next_cid)
    }

    /// Sends a capsule.
    pub(crate) fn send(&mut self, queue: Queue, sqe: &Sqe, data: Option<&[u8]>) {
        let data = data.map(|data| self.buffer(data));
        self.fabric.post_send(queue.qp, WorkId(0), sqe.as_bytes(), data, None);
        self.fabric.flush(&mut self.ring);
    }

    /// The response to a command.
    pub(crate) fn response(&mut self, queue: Queue, cid: Cid) -> Response {
        self.response_within(queue, cid, PATIENCE).expect("a response")
    }

    pub(crate) fn response_within(&mut self, queue: Queue, cid: Cid, limit: Duration) -> Option<Response> {
        self.find(queue.qp, limit, |completion| match completion {
            Completion::Received { header, invalidated, .. } => {
                let cqe = Cqe::read_from(header.as_bytes()).unwrap();
                (cqe.cid() == cid).then_some(Response { cqe, invalidated: *invalidated })
            }
            _ => None,
        })
    }

    /// Sends a command and waits for its response.
    pub(crate) fn command(&mut self, queue: Queue, sqe: Sqe) -> Response {
        self.send(queue, &sqe, None);
        self.response(queue, sqe.cid())
    }

    /// Whether the connection has ended within `limit`.
    pub(crate) fn is_ended(&mut self, queue: Queue, limit: Duration) -> bool {
        let ended = |completion: &Completion| matches!(completion, Completion::Disconnected { .. }).then_some(());
        self.find(queue.qp, limit, ended).is_some()
    }

    /// Lends memory for a command: its descriptor.
    pub(crate) fn lend(&mut self, queue: Queue, buffer: Buffer, len: usize, access: Access, invalidate: bool) -> (Remote, SglDescriptor) {
        let remote = self.fabric.expose(queue.qp, buffer, len, access).expect("the queue pair is there");
        let key = Rkey::new(remote.rkey.0);
        let sgl = SglDescriptor::keyed(remote.address, u32::try_from(len).unwrap(), key, invalidate).unwrap();
        (remote, sgl)
    }

    /// Carries out a command with data from the target.
    pub(crate) fn fetch(&mut self, queue: Queue, sqe: Sqe, len: usize) -> (Response, Vec<u8>) {
        let mut buffer = self.ring.pool().take(len).unwrap();
        buffer.fill(0xEE);
        let (remote, sgl) = self.lend(queue, buffer, len, Access::RemoteWrite, true);
        let response = self.command(queue, sqe.with_sgl(sgl));
        assert_eq!(response.invalidated, Some(remote.rkey), "the response invalidates the key");
        let data = self.fabric.revoke(queue.qp, remote.rkey).expect("lent").to_vec();
        (response, data)
    }

    /// Carries out a command with data that the target fetches.
    pub(crate) fn give(&mut self, queue: Queue, sqe: Sqe, data: &[u8]) -> Response {
        let buffer = self.buffer(data);
        let (remote, sgl) = self.lend(queue, buffer, data.len(), Access::RemoteRead, false);
        let response = self.command(queue, sqe.with_sgl(sgl));
        assert_eq!(response.invalidated, None);
        self.fabric.revoke(queue.qp, remote.rkey).expect("lent");
        response
    }

    /// Carries out a command with data in its capsule.
    pub(crate) fn give_in_capsule(&mut self, queue: Queue, sqe: Sqe, data: &[u8]) -> Response {
        let sgl = SglDescriptor::in_capsule(0, u32::try_from(data.len()).unwrap());
        let sqe = sqe.with_sgl(sgl);
        self.send(queue, &sqe, Some(data));
        self.response(queue, sqe.cid())
    }

    pub(crate) fn connect_data(cntlid: Cntlid) -> ConnectData {
        ConnectData::new(HostId([7; 16]), cntlid, &Nqn::new(VOLUME).unwrap(), &Nqn::new(HOST).unwrap())
    }

    /// Connect on an admin queue: its response.
    pub(crate) fn connect_admin(&mut self, queue: Queue, kato: Duration) -> Response {
        let connect = Connect::admin(QueueSize::new(32).unwrap(), kato);
        let sqe = Sqe::connect(self.cid(), &connect);
        self.give(queue, sqe, Self::connect_data(Cntlid::DYNAMIC).as_bytes())
    }

    /// An admin queue, connected and enabled, and its controller.
    pub(crate) fn admin(&mut self, address: SocketAddr, kato: Duration) -> (Queue, Cntlid) {
        let queue = self.open(address, 0, 32);
        let response = self.connect_admin(queue, kato);
        assert_eq!(response.status(), 0);
        let cc = PropertyAccess { offset: PropertyOffset::CC, size: PropertySize::Four };
        let cid = self.cid();
        assert_eq!(self.command(queue, Sqe::property_set(cid, cc, 0x0046_0001)).status(), 0);
        (queue, Cntlid::new(u16::try_from(response.cqe.dw0()).unwrap()))
    }

    /// An I/O queue, connected: its Connect data comes in the capsule, as the kernel's host does it.
    pub(crate) fn io(&mut self, address: SocketAddr, cntlid: Cntlid, qid: u16, entries: u32) -> Queue {
        let queue = self.open(address, qid, entries);
        let connect = Connect::io(Qid::new(qid), QueueSize::new(entries).unwrap());
        let sqe = Sqe::connect(self.cid(), &connect);
        let response = self.give_in_capsule(queue, sqe, Self::connect_data(cntlid).as_bytes());
        assert_eq!(response.status(), 0);
        queue
    }

    pub(crate) fn close(&mut self, queue: Queue) {
        self.fabric.destroy(&mut self.ring, queue.qp);
    }

    /// Closes our direction and waits until the target has closed its own.
    pub(crate) fn leave(&mut self, queue: Queue) {
        self.fabric.disconnect(&mut self.ring, queue.qp);
        assert!(self.is_ended(queue, PATIENCE));
    }

    /// Lets time pass.
    pub(crate) fn idle(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.turn();
        }
    }
}
