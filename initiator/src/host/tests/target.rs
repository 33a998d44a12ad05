//! A target for tests, on the host's own reactor and fabric: one namespace in memory, and faults on demand.

use std::collections::HashMap;

use godwit_memory::Buffer;
use godwit_nvme::cm::{QueueAccept, QueueReject, QueueRequest, RejectStatus};
use godwit_nvme::feature::{FeatureId, NumberOfQueues};
use godwit_nvme::identify::{ControllerType, IoIdentifyController, OptionalNvmCommands, WriteCache};
use godwit_nvme::log::{AddressFamily, RdmaAddress, RdmaProvider};
use godwit_nvme::log::{DiscoveryEntry, DiscoveryHeader, SmartLog, SubsystemType};
use godwit_nvme::property::ShutdownNotification;
use godwit_nvme::sqe::{Abort, Cns, IoRange};
use godwit_nvme::{
    AdminCommand, BlockSize, Cap, Cid, Cntlid, ConnectData, ConnectRefusal, ConnectResult, ControllerConfiguration, ControllerStatus, Cqe,
    FabricsCommand, IdentifyController, IdentifyNamespace, InvalidParameter, IoCommand, LogId, NamespaceIdentifiers, NamespaceList, Nguid,
    Nsid, PropertyOffset, Qid, QueueSize, Sgl, Sqe, Sqhd, Status, StatusCode, Version, dsm,
};
use godwit_rdma::{Completion, Fabric, FpduSize, QpConfig, QpId, Remote, Rkey, WorkId};
use godwit_reactor::{Listener, ListenerId, Reactor, Token, Uring};

pub(super) const NQN: &str = "nqn.2026-11.org.example:vol0";
pub(super) const LISTENER: Token = Token(7);
pub(super) const BLOCK: usize = 4096;

/// A command that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Executed {
    Read(u64),
    Write(u64, u8),
    Flush,
    Zeroes(u64),
    Discard(u64),
}

/// What the target does wrong, or late.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Carries commands out but never answers writes.
    pub(super) mute_writes: bool,
    /// Carries flushes out, and answers them later.
    pub(super) hold_flushes: bool,
    /// Neither carries out nor answers flushes.
    pub(super) mute_flushes: bool,
    /// Answers nothing, Keep Alive included.
    pub(super) mute: bool,
    /// Answers this to so many I/O commands.
    pub(super) status: Option<(Status, usize)>,
    /// Answers Connect of the admin queue with "controller busy" so often.
    pub(super) busy: usize,
    /// Closes the connection instead of an answer to Connect of the admin queue, so often.
    pub(super) hang_up: usize,
    /// Does not answer Connect of an I/O queue, so often.
    pub(super) mute_joins: usize,
    /// Refuses Connect of the admin queue.
    pub(super) refuse: Option<ConnectRefusal>,
    /// Rejects RDMA connections of I/O queues.
    pub(super) reject_io: Option<RejectStatus>,
    /// Answers I/O commands with another command identifier.
    pub(super) wrong_cid: bool,
    /// Answers I/O commands twice.
    pub(super) twice: bool,
    /// Holds the answer to one I/O command back, and answers the next one by invalidating the key of that.
    pub(super) wrong_key: bool,
    /// Answers without invalidating.
    pub(super) no_invalidate: bool,
    /// Aborts nothing.
    pub(super) no_abort: bool,
}

#[derive(Debug)]
struct Queue {
    request: QueueRequest,
    /// Commands whose data is being read.
    reading: HashMap<u64, (Sqe, Sgl)>,
}

pub(super) struct FakeTarget {
    pub(super) port: u16,
    pub(super) disk: Vec<u8>,
    /// What a power cut leaves of it.
    pub(super) durable: Vec<u8>,
    /// How often it lost its power; a target that does not count has no log of it.
    pub(super) unsafe_shutdowns: Option<u128>,
    pub(super) nguid: [u8; 16],
    pub(super) in_capsule_bytes: u32,
    pub(super) faults: Faults,
    pub(super) executed: Vec<Executed>,
    /// Accepted admin connections so far.
    pub(super) associations: usize,
    /// Connects of admin queues so far.
    pub(super) controllers: usize,
    /// Aborts so far.
    pub(super) aborts: usize,
    /// The port that the discovery log names.
    pub(super) discovered_port: u16,
    /// The subsystem that it names.
    pub(super) discovered_nqn: String,
    pub(super) shut_down: bool,
    pub(super) granted_queues: u16,
    pub(super) namespaces: Vec<u32>,
    queues: HashMap<QpId, Queue>,
    listeners: HashMap<u16, ListenerId>,
    /// Writes that were carried out and not answered.
    unanswered: Vec<(QpId, Cid, Option<godwit_nvme::Rkey>)>,
    configuration: u32,
    events: Option<(QpId, Cid)>,
    held: Option<godwit_nvme::Rkey>,
}

impl FakeTarget {
    pub(super) fn new(reactor: &mut Uring, blocks: usize) -> Self {
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = listener.local_address().unwrap().port();
        let listener = reactor.listen(listener, LISTENER).unwrap();
        Self {
            port,
            disk: vec![0; blocks * BLOCK],
            durable: vec![0; blocks * BLOCK],
            unsafe_shutdowns: Some(0),
            nguid: [9; 16],
            in_capsule_bytes: 8192,
            faults: Faults::default(),
            executed: Vec::new(),
            associations: 0,
            controllers: 0,
            aborts: 0,
            discovered_port: port,
            discovered_nqn: NQN.to_owned(),
            listeners: HashMap::from([(port, listener)]),
            unanswered: Vec::new(),
            shut_down: false,
            granted_queues: 8,
            namespaces: vec![1],
            queues: HashMap::new(),
            configuration: 0,
            events: None,
            held: None,
        }
    }

    /// Listens at one more port.
    pub(super) fn listen(&mut self, reactor: &mut Uring) -> u16 {
        self.listen_at(reactor, 0)
    }

    pub(super) fn listen_at(&mut self, reactor: &mut Uring, port: u16) -> u16 {
        let listener = Listener::tcp(([127, 0, 0, 1], port).into()).unwrap();
        let port = listener.local_address().unwrap().port();
        self.listeners.insert(port, reactor.listen(listener, LISTENER).unwrap());
        port
    }

    /// Listens at a port no more, and closes every connection.
    pub(super) fn leave(&mut self, reactor: &mut Uring, fabric: &mut Fabric, port: u16) {
        reactor.close_listener(self.listeners.remove(&port).unwrap());
        self.kill(reactor, fabric);
    }

    pub(super) fn owns(&self, qp: QpId) -> bool {
        self.queues.contains_key(&qp)
    }

    pub(super) fn adopted(&mut self, qp: QpId) {
        let request = QueueRequest::new(Qid::ADMIN, QueueSize::MIN, Cntlid::new(0));
        self.queues.insert(qp, Queue { request, reading: HashMap::new() });
    }

    /// Closes every connection, as a target that is killed.
    pub(super) fn kill(&mut self, reactor: &mut Uring, fabric: &mut Fabric) {
        for (qp, _) in self.queues.drain() {
            fabric.destroy(reactor, qp);
        }
        self.events = None;
        self.unanswered.clear();
    }

    /// Answers what was held back.
    pub(super) fn answer_held(&mut self, fabric: &mut Fabric) {
        for (qp, cid, key) in std::mem::take(&mut self.unanswered) {
            self.answer_io(fabric, qp, cid, key);
        }
    }

    /// Loses its power: what was not flushed is gone.
    pub(super) fn cut_power(&mut self, reactor: &mut Uring, fabric: &mut Fabric) {
        self.kill(reactor, fabric);
        self.disk.copy_from_slice(&self.durable);
        self.unsafe_shutdowns = self.unsafe_shutdowns.map(|count| count + 1);
    }

    pub(super) fn awaits_events(&self) -> bool {
        self.events.is_some()
    }

    /// Tells the host that the namespace changed.
    pub(super) fn tell_change(&mut self, fabric: &mut Fabric) {
        let (qp, cid) = self.events.take().expect("the host awaits events");
        let cqe = Cqe::new(cid, Qid::ADMIN, Sqhd::new(0), Status::SUCCESS);
        send(fabric, qp, &cqe.with_dw0(godwit_nvme::AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.to_wire()), None);
    }

    pub(super) fn on_completion(&mut self, reactor: &mut Uring, fabric: &mut Fabric, qp: QpId, completion: Completion) {
        match completion {
            Completion::ConnectRequest { private_data, .. } => self.on_request(reactor, fabric, qp, &private_data.0),
            Completion::Received { .. } if self.faults.hang_up > 0 => {
                self.faults.hang_up -= 1;
                self.queues.remove(&qp);
                fabric.destroy(reactor, qp);
            }
            Completion::Received { header, data, .. } => {
                let sqe = *Sqe::ref_from(header.as_bytes()).unwrap();
                sqe.check_flags().expect("flags as fabrics demand");
                self.on_command(reactor, fabric, qp, &sqe, data);
            }
            Completion::ReadDone { id, data } => {
                let (sqe, sgl) = self.queues.get_mut(&qp).unwrap().reading.remove(&id.0).unwrap();
                self.with_data(fabric, qp, &sqe, &data, sgl.key_to_invalidate());
            }
            Completion::Disconnected { .. } => {
                fabric.destroy(reactor, qp);
                self.queues.remove(&qp);
            }
            _ => {}
        }
    }

    fn on_request(&mut self, reactor: &mut Uring, fabric: &mut Fabric, qp: QpId, private_data: &[u8]) {
        let request = QueueRequest::from_wire(private_data).unwrap();
        if let Some(status) = self.faults.reject_io
            && !request.qid.is_admin()
        {
            self.queues.remove(&qp);
            return fabric.reject(reactor, qp, &QueueReject { status }.to_wire());
        }
        let depth = usize::try_from(request.host_send_size.entries()).unwrap();
        let config = QpConfig {
            send_depth: 4 * depth,
            receive_depth: depth + 1,
            header_bytes: Sqe::LEN_BYTES,
            data_bytes: if request.qid.is_admin() { 0 } else { usize::try_from(self.in_capsule_bytes).unwrap() },
            regions: 0,
            inbound_reads: 0,
            outbound_reads: 16,
            crc: true,
            fpdu: FpduSize::Large,
        };
        if request.qid.is_admin() {
            self.associations += 1;
        }
        self.queues.get_mut(&qp).unwrap().request = request;
        let accept = QueueAccept { controller_receive_size: u16::try_from(depth).unwrap() };
        fabric.accept(reactor, qp, &config, &accept.to_wire()).unwrap();
    }

    fn on_command(&mut self, reactor: &mut Uring, fabric: &mut Fabric, qp: QpId, sqe: &Sqe, data: Option<Buffer>) {
        use godwit_nvme::sqe::DataDirection;
        let sgl = sqe.sgl().unwrap();
        match (sqe.data_direction(), sgl) {
            (DataDirection::HostToController, Sgl::Keyed { address, length, key, .. }) if length > 0 => {
                let sink = reactor.pool().take(length as usize).unwrap();
                let id = WorkId(sqe.cid().get().into());
                self.queues.get_mut(&qp).unwrap().reading.insert(id.0, (*sqe, sgl));
                fabric.post_read(qp, id, sink, length as usize, Remote { rkey: Rkey(key.get()), address });
            }
            (DataDirection::HostToController, Sgl::InCapsule { offset: 0, length }) => {
                let data = data.expect("data in the capsule");
                assert_eq!(data.len(), length as usize);
                self.with_data(fabric, qp, sqe, &data, None);
            }
            _ if self.queues[&qp].request.qid.is_admin() => self.admin(reactor, fabric, qp, sqe),
            _ => self.io(reactor, fabric, qp, sqe),
        }
    }

    fn with_data(&mut self, fabric: &mut Fabric, qp: QpId, sqe: &Sqe, data: &[u8], key: Option<godwit_nvme::Rkey>) {
        if sqe.is_fabrics() {
            return self.connect(fabric, qp, sqe, data, key);
        }
        match IoCommand::parse(sqe) {
            IoCommand::Write(range) => {
                let start = offset(&range);
                self.disk[start..start + data.len()].copy_from_slice(data);
                if range.is_forced_unit_access() {
                    self.durable[start..start + data.len()].copy_from_slice(data);
                }
                self.executed.push(Executed::Write(range.blocks.start.get(), data[0]));
                if self.faults.mute_writes {
                    self.unanswered.push((qp, sqe.cid(), key));
                } else {
                    self.answer_io(fabric, qp, sqe.cid(), key);
                }
            }
            IoCommand::DatasetManagement(command) => {
                for range in dsm::ranges(data, command.range_count).unwrap() {
                    self.executed.push(Executed::Discard(range.start().get()));
                }
                self.answer_io(fabric, qp, sqe.cid(), key);
            }
            other => panic!("{other:?}"),
        }
    }

    fn connect(&mut self, fabric: &mut Fabric, qp: QpId, sqe: &Sqe, data: &[u8], key: Option<godwit_nvme::Rkey>) {
        let connect = sqe.connect_parameters();
        let data = ConnectData::ref_from(data).unwrap();
        let mut refusal = None;
        if connect.qid.is_admin() {
            assert_eq!(data.cntlid(), Cntlid::DYNAMIC);
            self.controllers += 1;
            refusal = self.faults.refuse;
            if self.faults.busy > 0 {
                self.faults.busy -= 1;
                refusal = Some(ConnectRefusal::BUSY);
            }
            let nqn = data.subsystem_nqn().unwrap();
            if nqn.as_str() != NQN && !nqn.is_discovery() {
                refusal = Some(ConnectRefusal::invalid(InvalidParameter::SUBNQN));
            }
        } else {
            assert_eq!(data.cntlid(), Cntlid::new(5));
            assert!(connect.keep_alive.is_zero());
            if self.faults.mute_joins > 0 {
                self.faults.mute_joins -= 1;
                return;
            }
        }
        let (status, result) = match refusal {
            Some(refusal) => (refusal.status, refusal.result()),
            None => (Status::SUCCESS, ConnectResult::new(Cntlid::new(5)).to_wire()),
        };
        let cqe = Cqe::new(sqe.cid(), connect.qid, Sqhd::new(0), status).with_dw0(result);
        send(fabric, qp, &cqe, key);
    }

    fn admin(&mut self, reactor: &mut Uring, fabric: &mut Fabric, qp: QpId, sqe: &Sqe) {
        if self.faults.mute {
            return;
        }
        let cqe = Cqe::new(sqe.cid(), Qid::ADMIN, Sqhd::new(0), Status::SUCCESS);
        match AdminCommand::parse(sqe) {
            AdminCommand::Fabrics(FabricsCommand::PropertyGet(property)) => {
                let shut = ControllerConfiguration::from_bits(self.configuration).shutdown() != ShutdownNotification::None;
                let enabled = ControllerConfiguration::from_bits(self.configuration).is_enabled();
                let status = ControllerStatus::default().with_ready(enabled);
                let status = if shut { status.with_shutdown(godwit_nvme::property::ShutdownStatus::Complete) } else { status };
                let value = match property.offset {
                    PropertyOffset::CAP => Cap::new(QueueSize::new(1024).unwrap(), std::time::Duration::from_secs(5)).bits(),
                    PropertyOffset::VS => Version::V1_4.bits().into(),
                    PropertyOffset::CC => self.configuration.into(),
                    PropertyOffset::CSTS => status.bits().into(),
                    other => panic!("{other:?}"),
                };
                send(fabric, qp, &cqe.with_result(value), None);
            }
            AdminCommand::Fabrics(FabricsCommand::PropertySet(_, value)) => {
                self.configuration = u32::try_from(value).unwrap();
                self.shut_down |= ControllerConfiguration::from_bits(self.configuration).shutdown() != ShutdownNotification::None;
                send(fabric, qp, &cqe, None);
            }
            AdminCommand::Identify(identify) => {
                let page = self.identify(identify.cns);
                put(reactor, fabric, qp, sqe, &page);
                send(fabric, qp, &cqe, sqe.sgl().unwrap().key_to_invalidate());
            }
            AdminCommand::GetLogPage(log) if log.id == LogId::DISCOVERY => {
                let bytes = self.discovery_log();
                let start = usize::try_from(log.offset_bytes).unwrap();
                let end = start + usize::try_from(log.length.bytes()).unwrap();
                put(reactor, fabric, qp, sqe, &bytes[start..end]);
                send(fabric, qp, &cqe, sqe.sgl().unwrap().key_to_invalidate());
            }
            AdminCommand::GetLogPage(log) if log.id == LogId::SMART => match self.unsafe_shutdowns {
                Some(count) => {
                    let mut smart = SmartLog::zeroed();
                    smart.unsafe_shutdowns.set(count);
                    put(reactor, fabric, qp, sqe, smart.as_bytes());
                    send(fabric, qp, &cqe, sqe.sgl().unwrap().key_to_invalidate());
                }
                None => {
                    let unknown = StatusCode::INVALID_LOG_PAGE.do_not_retry();
                    send(fabric, qp, &Cqe::new(sqe.cid(), Qid::ADMIN, Sqhd::new(0), unknown), None);
                }
            },
            AdminCommand::GetLogPage(_) => {
                put(reactor, fabric, qp, sqe, NamespaceList::changed(&[Nsid::new(1)]).as_bytes());
                send(fabric, qp, &cqe, sqe.sgl().unwrap().key_to_invalidate());
            }
            AdminCommand::GetFeatures(_) => {
                let cqe = Cqe::new(sqe.cid(), Qid::ADMIN, Sqhd::new(0), StatusCode::INVALID_FIELD.do_not_retry());
                send(fabric, qp, &cqe, None);
            }
            AdminCommand::SetFeatures(features) if features.id == FeatureId::NUMBER_OF_QUEUES => {
                let granted = NumberOfQueues { submission: self.granted_queues, completion: self.granted_queues };
                send(fabric, qp, &cqe.with_dw0(granted.to_wire()), None);
            }
            AdminCommand::SetFeatures(_) | AdminCommand::KeepAlive => send(fabric, qp, &cqe, None),
            AdminCommand::Abort(abort) => {
                self.aborts += 1;
                let found = self.unanswered.iter().position(|(_, cid, _)| *cid == abort.cid && abort.sqid == Qid::new(1));
                let found = found.filter(|_| !self.faults.no_abort);
                if let Some(index) = found {
                    let (qp, cid, key) = self.unanswered.remove(index);
                    let aborted = StatusCode::ABORT_REQUESTED.retryable();
                    send(fabric, qp, &Cqe::new(cid, Qid::new(1), Sqhd::new(0), aborted), key);
                }
                send(fabric, qp, &cqe.with_dw0(Abort::result(found.is_some())), None);
            }
            AdminCommand::AsyncEventRequest => self.events = Some((qp, sqe.cid())),
            other => panic!("{other:?}"),
        }
    }

    fn identify(&self, cns: Cns) -> Vec<u8> {
        match cns {
            Cns::CONTROLLER => {
                let mut identity = IdentifyController::new();
                identity.set_cntlid(Cntlid::new(5));
                identity.cntrltype = ControllerType::IO;
                identity.set_keep_alive_granularity(std::time::Duration::from_millis(100));
                identity.set_in_capsule_bytes(self.in_capsule_bytes);
                identity.set_max_transfer_bytes(1 << 20);
                identity.oaes = godwit_nvme::feature::AsyncEventConfiguration::NAMESPACE_ATTRIBUTE;
                identity.oncs = OptionalNvmCommands::DATASET_MANAGEMENT | OptionalNvmCommands::WRITE_ZEROES;
                identity.vwc = WriteCache::PRESENT;
                identity.as_bytes().to_vec()
            }
            Cns::ACTIVE_NAMESPACES => {
                NamespaceList::active_above(Nsid::NONE, self.namespaces.iter().map(|&nsid| Nsid::new(nsid))).as_bytes().to_vec()
            }
            Cns::NAMESPACE_DESCRIPTORS => {
                NamespaceIdentifiers { nguid: Some(Nguid(self.nguid)), ..NamespaceIdentifiers::default() }.to_wire().to_vec()
            }
            Cns::NAMESPACE if self.namespaces.is_empty() => IdentifyNamespace::zeroed().as_bytes().to_vec(),
            Cns::NAMESPACE => IdentifyNamespace::new((self.disk.len() / BLOCK) as u64, BlockSize::B4096).as_bytes().to_vec(),
            Cns::IO_CONTROLLER => IoIdentifyController::zeroed().as_bytes().to_vec(),
            other => panic!("{other:?}"),
        }
    }

    fn discovery_log(&self) -> Vec<u8> {
        let address =
            RdmaAddress { family: AddressFamily::IPV4, address: "127.0.0.1", port: self.discovered_port, provider: RdmaProvider::IWARP };
        let mut log = DiscoveryHeader::new(1, 6).as_bytes().to_vec();
        for port_id in 0..6 {
            let entry = DiscoveryEntry::new(SubsystemType::NVM, &self.discovered_nqn.parse().unwrap(), port_id, address).unwrap();
            log.extend_from_slice(entry.as_bytes());
        }
        log
    }

    fn io(&mut self, reactor: &mut Uring, fabric: &mut Fabric, qp: QpId, sqe: &Sqe) {
        if self.faults.mute {
            return;
        }
        let key = sqe.sgl().unwrap().key_to_invalidate();
        match IoCommand::parse(sqe) {
            IoCommand::Read(range) => {
                let start = offset(&range);
                let len = usize::try_from(range.blocks.count.get()).unwrap() * BLOCK;
                let data = self.disk[start..start + len].to_vec();
                put(reactor, fabric, qp, sqe, &data);
                self.executed.push(Executed::Read(range.blocks.start.get()));
            }
            IoCommand::Flush(_) => {
                self.executed.push(Executed::Flush);
                if self.faults.mute_flushes {
                    return;
                }
                if self.faults.hold_flushes {
                    self.durable = self.disk.clone();
                    self.unanswered.push((qp, sqe.cid(), key));
                    return;
                }
                if !matches!(self.faults.status, Some((_, 1..))) {
                    self.durable = self.disk.clone();
                }
            }
            IoCommand::WriteZeroes(range) => {
                let start = offset(&range);
                let len = usize::try_from(range.blocks.count.get()).unwrap() * BLOCK;
                self.disk[start..start + len].fill(0);
                self.executed.push(Executed::Zeroes(range.blocks.start.get()));
            }
            other => panic!("{other:?}"),
        }
        self.answer_io(fabric, qp, sqe.cid(), key);
    }

    fn answer_io(&mut self, fabric: &mut Fabric, qp: QpId, cid: Cid, key: Option<godwit_nvme::Rkey>) {
        let status = match &mut self.faults.status {
            Some((status, left)) if *left > 0 => {
                *left -= 1;
                *status
            }
            _ => Status::SUCCESS,
        };
        let cid = if self.faults.wrong_cid { Cid::new(cid.get() ^ 0x0400) } else { cid };
        let key = key.filter(|_| !self.faults.no_invalidate);
        let key = if self.faults.wrong_key {
            let Some(other) = self.held.take() else {
                self.held = key;
                return;
            };
            Some(other)
        } else {
            key
        };
        let cqe = Cqe::new(cid, Qid::new(1), Sqhd::new(0), status);
        send(fabric, qp, &cqe, key);
        if self.faults.twice {
            send(fabric, qp, &cqe, None);
        }
    }
}

fn offset(range: &IoRange) -> usize {
    usize::try_from(range.blocks.offset_bytes(BlockSize::B4096).unwrap()).unwrap()
}

fn put(reactor: &mut Uring, fabric: &mut Fabric, qp: QpId, sqe: &Sqe, bytes: &[u8]) {
    let Sgl::Keyed { address, length, key, .. } = sqe.sgl().unwrap() else { panic!("a keyed SGL") };
    assert_eq!(length as usize, bytes.len());
    let mut buffer = reactor.pool().take(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    fabric.post_write(qp, buffer, bytes.len(), Remote { rkey: Rkey(key.get()), address });
}

fn send(fabric: &mut Fabric, qp: QpId, cqe: &Cqe, invalidate: Option<godwit_nvme::Rkey>) {
    fabric.post_send(qp, WorkId(u64::MAX), cqe.as_bytes(), None, invalidate.map(|key| Rkey(key.get())));
}
