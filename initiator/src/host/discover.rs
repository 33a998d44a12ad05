//! Discovery: what a target offers to this host.

use std::rc::Rc;
use std::time::Duration;

use godwit_memory::Reservation;
use godwit_nvme::log::{DiscoveryEntry, DiscoveryHeader};
use godwit_nvme::sqe::GetLogPage;
use godwit_nvme::{Cid, Cqe, DwordCount, LogId, Nqn, QueueSize, Sqe};
use godwit_rdma::{Completion, Fabric, QpId};
use godwit_reactor::{Reactor, TimerId, Token};

use super::TokenSpace;
use super::admin::{AdminEvent, AdminQueue, Purpose};
use super::bringup::{Bringup, Command, Data, IDENTIFY_BYTES, Names, Next, Script, Wishes};
use super::error::HostError;
use super::queue::Endpoint;
use super::volume::ControlTimer;

/// How long discovery may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long the target may take to close its end.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a log that changes while it is read is read again.
const MAX_READS: usize = 10;

/// More entries than any target has.
const MAX_ENTRIES: u64 = 4096;

const HEADER_BYTES: u64 = DiscoveryHeader::LEN_BYTES as u64;
const CHUNK_BYTES: u64 = IDENTIFY_BYTES as u64;
const LOG: &str = "Get Log Page of the discovery log";

/// The commands: the set-up of the controller, then its discovery log, read until it did not change meanwhile.
#[derive(Debug)]
struct DiscoveryScript {
    bringup: Bringup,
    step: Step,
    log: Vec<u8>,
    reads: usize,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Bringup,
    Header,
    Entries { generation: u64, log_bytes: u64 },
    Check { generation: u64 },
}

impl DiscoveryScript {
    fn new(names: Names) -> Self {
        let queue_size = QueueSize::MIN;
        let bringup = Bringup::new(Wishes { names, keep_alive: Duration::ZERO, io_queues: 0, queue_size, nsid: None });
        Self { bringup, step: Step::Bringup, log: Vec::new(), reads: 0 }
    }

    fn read(&mut self, step: Step, offset_bytes: u64, len_bytes: u64) -> Next<DiscoveryLog> {
        self.step = step;
        let length = DwordCount::from_bytes(len_bytes).expect("the log consists of 1024-byte records");
        let log = GetLogPage { offset_bytes, ..GetLogPage::new(LogId::DISCOVERY, length) };
        let data = Data::FromController(usize::try_from(len_bytes).unwrap_or(IDENTIFY_BYTES));
        Next::Command(Box::new(Command { name: LOG, sqe: Sqe::get_log_page(Cid::new(0), &log), data }), Duration::ZERO)
    }

    fn on_header(&mut self, data: &[u8]) -> Result<Next<DiscoveryLog>, HostError> {
        let malformed = |reason: String| HostError::Malformed { command: LOG, reason };
        let header = DiscoveryHeader::read_from(data).map_err(|error| malformed(error.to_string()))?;
        if header.record_format() != 0 {
            return Err(malformed(format!("record format {}", header.record_format())));
        }
        let log_bytes = header.log_bytes().filter(|_| header.entry_count() <= MAX_ENTRIES);
        let log_bytes = log_bytes.ok_or_else(|| malformed(format!("{} entries", header.entry_count())))?;
        self.log.clear();
        Ok(self.read_on(header.generation(), log_bytes))
    }

    fn read_on(&mut self, generation: u64, log_bytes: u64) -> Next<DiscoveryLog> {
        let offset = HEADER_BYTES + self.log.len() as u64;
        match log_bytes.saturating_sub(offset) {
            0 => self.read(Step::Check { generation }, 0, HEADER_BYTES),
            left => self.read(Step::Entries { generation, log_bytes }, offset, left.min(CHUNK_BYTES)),
        }
    }

    fn on_check(&mut self, generation: u64, data: &[u8]) -> Result<Next<DiscoveryLog>, HostError> {
        self.reads += 1;
        let now = DiscoveryHeader::read_from(data).map(|header| header.generation());
        if now == Ok(generation) || self.reads == MAX_READS {
            let entries = self.log.chunks_exact(DiscoveryEntry::LEN_BYTES).filter_map(|bytes| DiscoveryEntry::read_from(bytes).ok());
            return Ok(Next::Done(DiscoveryLog { generation, entries: entries.collect() }));
        }
        self.on_header(data)
    }
}

impl Script for DiscoveryScript {
    type Outcome = DiscoveryLog;

    fn start(&mut self) -> Command {
        self.bringup.start()
    }

    fn answer(&mut self, cqe: &Cqe, data: &[u8]) -> Result<Next<Self::Outcome>, HostError> {
        if let Step::Bringup = self.step {
            return Ok(match self.bringup.answer(cqe, data)? {
                Next::Command(command, after) => Next::Command(command, after),
                Next::Done(_) => self.read(Step::Header, 0, HEADER_BYTES),
            });
        }
        if !cqe.status().is_success() {
            return Err(HostError::Command { command: LOG, status: cqe.status() });
        }
        match self.step {
            Step::Bringup => unreachable!("handled above"),
            Step::Header => self.on_header(data),
            Step::Entries { generation, log_bytes } => {
                self.log.extend_from_slice(data);
                Ok(self.read_on(generation, log_bytes))
            }
            Step::Check { generation } => self.on_check(generation, data),
        }
    }
}

/// What a target offers.
#[derive(Clone, Debug)]
pub struct DiscoveryLog {
    /// Moves with each change of the log.
    pub generation: u64,
    /// The entries.
    pub entries: Vec<DiscoveryEntry>,
}

/// Whom to ask, and who asks.
#[derive(Clone, Debug)]
pub struct DiscoverySettings {
    /// Where the target listens.
    pub endpoint: Endpoint,
    /// The host; its subsystem is replaced by the discovery subsystem.
    pub names: Names,
}

/// One discovery.
#[derive(Debug)]
pub struct Discovery {
    tokens: TokenSpace,
    admin: Option<AdminQueue>,
    script: DiscoveryScript,
    next: Option<Box<Command>>,
    deadline: TimerId,
    outcome: Option<Result<DiscoveryLog, HostError>>,
}

impl Discovery {
    /// Begins.
    ///
    /// # Errors
    ///
    /// Those that show at once.
    pub fn start<R: Reactor>(
        reactor: &mut R,
        fabric: &mut Fabric,
        settings: DiscoverySettings,
        tokens: TokenSpace,
    ) -> Result<Self, HostError> {
        let buffers = AdminQueue::set_aside(reactor.pool())?;
        Self::start_with(reactor, fabric, settings, tokens, buffers)
    }

    /// Begins, with buffers that were set aside for an admin queue.
    pub(crate) fn start_with<R: Reactor>(
        reactor: &mut R,
        fabric: &mut Fabric,
        settings: DiscoverySettings,
        tokens: TokenSpace,
        buffers: Rc<Reservation>,
    ) -> Result<Self, HostError> {
        let names = Names { subsystem: Nqn::discovery(), ..settings.names };
        let admin = AdminQueue::connect(reactor, fabric, &settings.endpoint, buffers)?;
        let deadline = reactor.set_timer(reactor.now() + TIMEOUT, tokens.control(ControlTimer::State));
        Ok(Self { tokens, admin: Some(admin), script: DiscoveryScript::new(names), next: None, deadline, outcome: None })
    }

    /// Whether a completion is its own.
    pub(crate) fn owns(&self, qp: QpId) -> bool {
        self.admin.as_ref().is_some_and(|admin| admin.owns(qp))
    }

    /// Ends it where it stands.
    pub(crate) fn abandon<R: Reactor>(mut self, reactor: &mut R, fabric: &mut Fabric) {
        self.drop_admin(reactor, fabric);
    }

    /// What came of it, once it is over and the connection closed.
    pub fn take_outcome(&mut self) -> Option<Result<DiscoveryLog, HostError>> {
        if self.admin.is_some() { None } else { self.outcome.take() }
    }

    /// Handles a completion.
    pub fn on_completion<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, qp: QpId, completion: Completion) {
        let Some(admin) = self.admin.as_mut().filter(|admin| admin.owns(qp)) else { return };
        match admin.on_completion(fabric, completion) {
            None => {}
            Some(AdminEvent::Established) => {
                let first = self.script.start();
                self.send(reactor, fabric, &first);
            }
            Some(AdminEvent::Answer { cqe, data, .. }) => {
                let result = self.script.answer(&cqe, data.as_deref().unwrap_or_default());
                if let Some(data) = data {
                    admin.recycle(data);
                }
                match result {
                    Ok(Next::Command(command, Duration::ZERO)) => self.send(reactor, fabric, &command),
                    Ok(Next::Command(command, after)) => {
                        self.next = Some(command);
                        reactor.set_timer(reactor.now() + after, self.tokens.control(ControlTimer::Script));
                    }
                    Ok(Next::Done(entries)) => self.finish(reactor, fabric, Ok(entries)),
                    Err(error) => self.finish(reactor, fabric, Err(error)),
                }
            }
            Some(AdminEvent::Failed(error)) => self.finish(reactor, fabric, Err(error)),
            Some(AdminEvent::Down(error)) => {
                self.outcome.get_or_insert(Err(error));
                self.drop_admin(reactor, fabric);
            }
        }
    }

    fn send<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, command: &Command) {
        let Some(admin) = &mut self.admin else { return };
        if let Err(error) = admin.send(reactor, fabric, Purpose::Script, command) {
            self.finish(reactor, fabric, Err(error));
        }
    }

    fn finish<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, outcome: Result<DiscoveryLog, HostError>) {
        self.outcome.get_or_insert(outcome);
        reactor.cancel_timer(self.deadline);
        self.deadline = reactor.set_timer(reactor.now() + LEAVE_TIMEOUT, self.tokens.control(ControlTimer::State));
        if let Some(admin) = &mut self.admin {
            admin.leave(reactor, fabric);
        }
    }

    fn drop_admin<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        reactor.cancel_timer(self.deadline);
        if let Some(admin) = self.admin.take() {
            admin.destroy(reactor, fabric);
        }
    }

    /// Handles a timer.
    pub fn on_timer<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, token: Token) {
        if token == self.tokens.control(ControlTimer::Script) {
            if let Some(command) = self.next.take() {
                self.send(reactor, fabric, &command);
            }
        } else if token == self.tokens.control(ControlTimer::State) {
            self.outcome.get_or_insert(Err(HostError::Timeout { command: "discovery", after: TIMEOUT }));
            self.drop_admin(reactor, fabric);
        }
    }
}
