//! The commands that make an association: from Connect of the admin queue to a namespace that is known in full.
//!
//! A script without I/O: it says which command comes next, and takes the answer. The order is that of the Linux host; the namespace is identified
//! before the I/O queues are connected.

use std::time::Duration;

use godwit_nvme::feature::{AsyncEventConfiguration, FeatureId, KeepAliveTimer, NumberOfQueues, Select};
use godwit_nvme::identify::{ControllerAttributes, ControllerError, IoIdentifyController};
use godwit_nvme::log::SmartLog;
use godwit_nvme::property::CommandSetSelected;
use godwit_nvme::sqe::{Cns, Connect, GetFeatures, GetLogPage, Identify, PropertyAccess, SetFeatures};
use godwit_nvme::{
    Cap, Cid, Cntlid, ConnectData, ConnectRefusal, ConnectResult, ControllerConfiguration, ControllerStatus, Cqe, DwordCount, HostId,
    IdentifyController, IdentifyNamespace, LogId, NamespaceIdentifiers, NamespaceList, Nqn, Nsid, PropertyOffset, PropertySize, QueueSize,
    Sqe, Version,
};

use super::error::HostError;
use super::namespace::{Attached, Limits, describe};
use super::retry::RetryDelays;

/// Entries of the admin queue, as the Linux host has it.
pub(crate) const ADMIN_QUEUE_ENTRIES: u32 = 32;

/// How often CSTS is looked at while the controller gets ready.
const READY_POLL: Duration = Duration::from_millis(2);

/// Bytes of Identify data.
pub(crate) const IDENTIFY_BYTES: usize = 4096;

/// What a command of a script moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// Nothing.
    None,
    /// These bytes, to the controller.
    ToController(Vec<u8>),
    /// So many bytes, from the controller.
    FromController(usize),
}

/// A command of a script; its command identifier is filled in when it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// What it is called in an error.
    pub(crate) name: &'static str,
    /// The entry.
    pub(crate) sqe: Sqe,
    /// Its data.
    pub(crate) data: Data,
}

/// What comes after an answer.
#[derive(Debug)]
pub(crate) enum Next<T> {
    /// This command, after this time.
    Command(Box<Command>, Duration),
    /// Nothing: the script is done.
    Done(T),
}

/// A sequence of admin commands.
pub(crate) trait Script {
    /// What it is for.
    type Outcome;

    /// The first command.
    fn start(&mut self) -> Command;

    /// Takes the answer to the last command.
    ///
    /// # Errors
    ///
    /// Why the script cannot go on.
    fn answer(&mut self, cqe: &Cqe, data: &[u8]) -> Result<Next<Self::Outcome>, HostError>;
}

/// Who connects to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The subsystem.
    pub subsystem: Nqn,
    /// The host.
    pub host: Nqn,
    /// The host's identifier, which always goes with the same name.
    pub host_id: HostId,
}

impl Names {
    /// Data of Connect.
    pub(crate) fn connect_data(&self, cntlid: Cntlid) -> Vec<u8> {
        ConnectData::new(self.host_id, cntlid, &self.subsystem, &self.host).as_bytes().to_vec()
    }
}

/// What the host wants.
#[derive(Clone, Debug)]
pub(crate) struct Wishes {
    pub(crate) names: Names,
    pub(crate) keep_alive: Duration,
    /// I/O queues; 0 stops the script before any (a discovery controller has none).
    pub(crate) io_queues: u16,
    /// Entries of an I/O queue.
    pub(crate) queue_size: QueueSize,
    /// The namespace; `None` for the only one.
    pub(crate) nsid: Option<Nsid>,
}

/// A controller that is enabled and identified.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    pub(crate) cntlid: Cntlid,
    /// Keep alive timeout that the controller uses: the one asked for, or a longer one.
    pub(crate) keep_alive: Duration,
    pub(crate) traffic_based_keep_alive: bool,
    /// Of an I/O queue.
    pub(crate) queue_size: QueueSize,
    pub(crate) io_queues: u16,
    pub(crate) in_capsule_bytes: usize,
    pub(crate) retry_delays: RetryDelays,
    pub(crate) shutdown_timeout: Duration,
    /// Events that were asked for; without any, no Asynchronous Event Request is sent.
    pub(crate) events: AsyncEventConfiguration,
    pub(crate) limits: Limits,
    /// Whether it lists what identifies a namespace (CNS 03h).
    pub(crate) has_descriptors: bool,
    /// CC as it was enabled with.
    pub(crate) configuration: ControllerConfiguration,
}

/// What the script is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Connect,
    Capabilities,
    Disable,
    Enable,
    Ready { waited: Duration },
    Version,
    IdentifyController,
    KeepAliveTimer,
    Queues,
    Events,
    Namespaces,
    IoController,
    Descriptors,
    Namespace,
    Health,
}

/// The script.
#[derive(Debug)]
pub(crate) struct Bringup {
    wishes: Wishes,
    step: Step,
    cap: Cap,
    version: Version,
    nsid: Nsid,
    identifiers: NamespaceIdentifiers,
    io_controller: Option<IoIdentifyController>,
    controller: Option<Box<Controller>>,
    attached: Option<Attached>,
    cntlid: Cntlid,
}

/// How long a controller may take to shut down unless it says otherwise, and at most.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);

const NO_CID: Cid = Cid::new(0);

impl Bringup {
    pub(crate) fn new(wishes: Wishes) -> Self {
        Self {
            wishes,
            step: Step::Connect,
            cap: Cap::from_bits(0),
            version: Version::from_bits(0),
            nsid: Nsid::NONE,
            identifiers: NamespaceIdentifiers::default(),
            io_controller: None,
            controller: None,
            attached: None,
            cntlid: Cntlid::DYNAMIC,
        }
    }

    fn go(&mut self, step: Step, command: Command) -> Next<Outcome> {
        self.step = step;
        Next::Command(Box::new(command), Duration::ZERO)
    }

    fn on_connected(&mut self, cqe: &Cqe) -> Result<Next<Outcome>, HostError> {
        if !cqe.status().is_success() {
            return Err(HostError::Refused(ConnectRefusal::from_completion(cqe.status(), cqe.dw0())));
        }
        let result = ConnectResult::from_wire(cqe.dw0());
        if result.authentication_required || result.secure_channel_required {
            return Err(HostError::AuthenticationRequired);
        }
        self.cntlid = result.cntlid;
        Ok(self.go(Step::Capabilities, property_get("Property Get of CAP", PropertyOffset::CAP, PropertySize::Eight)))
    }

    fn on_capabilities(&mut self, cqe: &Cqe) -> Result<Next<Outcome>, HostError> {
        self.cap = Cap::from_bits(cqe.result());
        if self.cap.min_page_bytes() > 4096 {
            return Err(HostError::PageSize(self.cap.min_page_bytes()));
        }
        Ok(self.go(Step::Disable, set_configuration("disabling the controller", self.configuration(false))))
    }

    fn configuration(&self, enable: bool) -> ControllerConfiguration {
        let css = if self.cap.supports_selectable_command_sets() { CommandSetSelected::All } else { CommandSetSelected::Nvm };
        ControllerConfiguration::new(enable).with_command_set(css)
    }

    fn on_status(&mut self, cqe: &Cqe, waited: Duration) -> Result<Next<Outcome>, HostError> {
        let status = ControllerStatus::from_bits(cqe.dw0());
        if status.is_fatal() || status.is_gone() {
            return Err(HostError::Fatal);
        }
        if status.is_ready() {
            return Ok(self.go(Step::Version, property_get("Property Get of VS", PropertyOffset::VS, PropertySize::Four)));
        }
        let timeout = self.cap.ready_timeout() + Duration::from_millis(500);
        if waited >= timeout {
            return Err(HostError::NotReady { after: timeout });
        }
        self.step = Step::Ready { waited: waited + READY_POLL };
        Ok(Next::Command(Box::new(get_status()), READY_POLL))
    }

    fn on_identified(&mut self, data: &[u8]) -> Result<Next<Outcome>, HostError> {
        let identity = parse("Identify Controller", IdentifyController::ref_from(data))?;
        let queue_size = match (identity.check_for_rdma(self.cntlid), self.wishes.io_queues) {
            // What only I/O queues need is not asked of a controller that has none.
            (
                Ok(())
                | Err(
                    ControllerError::NoKeepAlive
                    | ControllerError::CommandCapsule(_)
                    | ControllerError::ResponseCapsule
                    | ControllerError::EntrySizes,
                ),
                0,
            ) => self.wishes.queue_size,
            (checked, _) => checked.map(|()| queue_size(self.wishes.queue_size, self.cap, identity))??,
        };
        let events = AsyncEventConfiguration::NAMESPACE_ATTRIBUTE.intersection(identity.oaes);
        let rtd3e = Duration::from_micros(identity.rtd3e.get().into());
        self.controller = Some(Box::new(Controller {
            cntlid: self.cntlid,
            keep_alive: self.wishes.keep_alive,
            traffic_based_keep_alive: identity.ctratt.contains(ControllerAttributes::TRAFFIC_BASED_KEEP_ALIVE),
            queue_size,
            io_queues: 0,
            in_capsule_bytes: usize::try_from(identity.in_capsule_bytes()).unwrap_or(usize::MAX),
            retry_delays: [0, 1, 2].map(|index| identity.retry_delay(index).unwrap_or_default()),
            shutdown_timeout: rtd3e.clamp(SHUTDOWN_TIMEOUT, MAX_SHUTDOWN_TIMEOUT),
            events,
            limits: Limits::of(identity, self.cap),
            has_descriptors: self.version >= Version::V1_3 || self.cap.supports_selectable_command_sets(),
            configuration: self.configuration(true),
        }));
        if self.wishes.io_queues == 0 {
            return self.finish(None, None);
        }
        let feature = GetFeatures { nsid: Nsid::NONE, id: FeatureId::KEEP_ALIVE_TIMER, select: Select::Current, value: 0 };
        Ok(self.go(Step::KeepAliveTimer, command("Get Features of Keep Alive Timer", Sqe::get_features(NO_CID, &feature))))
    }

    fn controller(&mut self) -> &mut Controller {
        self.controller.as_mut().expect("the controller was identified before")
    }

    fn finish(&mut self, namespace: Option<Attached>, unsafe_shutdowns: Option<u128>) -> Result<Next<Outcome>, HostError> {
        let controller = self.controller.take().expect("the controller was identified before");
        Ok(Next::Done(Outcome { controller: *controller, namespace, unsafe_shutdowns }))
    }

    fn on_keep_alive_timer(&mut self, cqe: &Cqe) -> Next<Outcome> {
        if cqe.status().is_success() {
            // A target may round the timeout up, or have a minimum; then it is that long before it gives an old association up.
            let KeepAliveTimer(actual) = KeepAliveTimer::from_wire(cqe.dw0());
            let controller = self.controller();
            controller.keep_alive = controller.keep_alive.max(actual);
        }
        let asked = NumberOfQueues { submission: self.wishes.io_queues, completion: self.wishes.io_queues };
        self.go(Step::Queues, set_feature("Set Features of Number of Queues", FeatureId::NUMBER_OF_QUEUES, asked.to_wire()))
    }

    fn on_queues(&mut self, cqe: &Cqe) -> Result<Next<Outcome>, HostError> {
        let granted = NumberOfQueues::from_wire(cqe.dw0()).ok_or_else(|| HostError::Malformed {
            command: "Set Features of Number of Queues",
            reason: format!("result {:#x}", cqe.dw0()),
        })?;
        let io_queues = granted.queue_pairs().min(self.wishes.io_queues);
        self.controller().io_queues = io_queues;
        let events = self.controller().events;
        if events.is_empty() {
            return Ok(self.list_namespaces());
        }
        Ok(self.go(
            Step::Events,
            set_feature("Set Features of Asynchronous Event Configuration", FeatureId::ASYNC_EVENT_CONFIGURATION, events.bits()),
        ))
    }

    fn on_events(&mut self, cqe: &Cqe) -> Next<Outcome> {
        if !cqe.status().is_success() {
            self.controller().events = AsyncEventConfiguration::NONE;
        }
        self.list_namespaces()
    }

    fn list_namespaces(&mut self) -> Next<Outcome> {
        self.go(Step::Namespaces, identify("Identify of the namespace list", Cns::ACTIVE_NAMESPACES, Nsid::NONE))
    }

    fn on_namespaces(&mut self, data: &[u8]) -> Result<Next<Outcome>, HostError> {
        let list = parse("Identify of the namespace list", NamespaceList::ref_from(data))?;
        self.nsid = choose(self.wishes.nsid, list)?;
        let limits = &self.controller().limits;
        if limits.can_write_zeroes || limits.can_discard {
            return Ok(self.go(Step::IoController, identify("Identify of the NVM command set", Cns::IO_CONTROLLER, Nsid::NONE)));
        }
        Ok(self.identify_descriptors())
    }

    fn on_io_controller(&mut self, cqe: &Cqe, data: &[u8]) -> Next<Outcome> {
        // Controllers before version 1.4 do not have it.
        if cqe.status().is_success() {
            self.io_controller = IoIdentifyController::read_from(data).ok();
        }
        self.identify_descriptors()
    }

    fn identify_descriptors(&mut self) -> Next<Outcome> {
        if !self.controller().has_descriptors {
            return self.identify_namespace();
        }
        let nsid = self.nsid;
        self.go(Step::Descriptors, identify("Identify of the namespace descriptors", Cns::NAMESPACE_DESCRIPTORS, nsid))
    }

    fn on_descriptors(&mut self, data: &[u8]) -> Result<Next<Outcome>, HostError> {
        self.identifiers = parse("Identify of the namespace descriptors", NamespaceIdentifiers::from_wire(data))?;
        Ok(self.identify_namespace())
    }

    fn identify_namespace(&mut self) -> Next<Outcome> {
        let nsid = self.nsid;
        self.go(Step::Namespace, identify("Identify Namespace", Cns::NAMESPACE, nsid))
    }

    fn on_namespace(&mut self, data: &[u8]) -> Result<Next<Outcome>, HostError> {
        let namespace = parse("Identify Namespace", IdentifyNamespace::ref_from(data))?;
        let controller = self.controller.as_ref().expect("the controller was identified before");
        let attached = describe(self.nsid, namespace, &self.identifiers, &controller.limits, self.io_controller.as_ref())
            .map_err(|reason| HostError::Namespace { nsid: self.nsid, reason })?;
        self.attached = Some(attached);
        let length = DwordCount::from_bytes(SmartLog::LEN_BYTES as u64).expect("a multiple of four");
        let log = GetLogPage { nsid: Nsid::ALL, ..GetLogPage::new(LogId::SMART, length) };
        let data = Data::FromController(SmartLog::LEN_BYTES);
        Ok(self.go(Step::Health, Command { name: "Get Log Page of health", sqe: Sqe::get_log_page(NO_CID, &log), data }))
    }

    /// A target without the log does not count.
    fn on_health(&mut self, cqe: &Cqe, data: &[u8]) -> Result<Next<Outcome>, HostError> {
        let log = SmartLog::ref_from(data).ok().filter(|_| cqe.status().is_success());
        let unsafe_shutdowns = log.map(|log| log.unsafe_shutdowns.get());
        let attached = self.attached.take();
        self.finish(attached, unsafe_shutdowns)
    }
}

/// What the script came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) controller: Controller,
    /// `None` when no I/O queues were wanted.
    pub(crate) namespace: Option<Attached>,
    /// Unsafe Shutdowns, if there is such a count.
    pub(crate) unsafe_shutdowns: Option<u128>,
}

impl Script for Bringup {
    type Outcome = Outcome;

    fn start(&mut self) -> Command {
        let size = QueueSize::new(ADMIN_QUEUE_ENTRIES).expect("within bounds");
        let connect = Connect::admin(size, self.wishes.keep_alive);
        Command {
            name: "Connect",
            sqe: Sqe::connect(NO_CID, &connect),
            data: Data::ToController(self.wishes.names.connect_data(Cntlid::DYNAMIC)),
        }
    }

    fn answer(&mut self, cqe: &Cqe, data: &[u8]) -> Result<Next<Outcome>, HostError> {
        let may_fail = matches!(self.step, Step::Connect | Step::KeepAliveTimer | Step::Events | Step::IoController | Step::Health);
        if !may_fail && !cqe.status().is_success() {
            return Err(HostError::Command { command: self.name(), status: cqe.status() });
        }
        match self.step {
            Step::Connect => self.on_connected(cqe),
            Step::Capabilities => self.on_capabilities(cqe),
            Step::Disable => Ok(self.go(Step::Enable, set_configuration("enabling the controller", self.configuration(true)))),
            Step::Enable => Ok(self.go(Step::Ready { waited: Duration::ZERO }, get_status())),
            Step::Ready { waited } => self.on_status(cqe, waited),
            Step::Version => {
                self.version = Version::from_bits(cqe.dw0());
                Ok(self.go(Step::IdentifyController, identify("Identify Controller", Cns::CONTROLLER, Nsid::NONE)))
            }
            Step::IdentifyController => self.on_identified(data),
            Step::KeepAliveTimer => Ok(self.on_keep_alive_timer(cqe)),
            Step::Queues => self.on_queues(cqe),
            Step::Events => Ok(self.on_events(cqe)),
            Step::Namespaces => self.on_namespaces(data),
            Step::IoController => Ok(self.on_io_controller(cqe, data)),
            Step::Descriptors => self.on_descriptors(data),
            Step::Namespace => self.on_namespace(data),
            Step::Health => self.on_health(cqe, data),
        }
    }
}

impl Bringup {
    fn name(&self) -> &'static str {
        match self.step {
            Step::Connect => "Connect",
            Step::Capabilities => "Property Get of CAP",
            Step::Disable => "disabling the controller",
            Step::Enable => "enabling the controller",
            Step::Ready { .. } => "Property Get of CSTS",
            Step::Version => "Property Get of VS",
            Step::IdentifyController => "Identify Controller",
            Step::KeepAliveTimer => "Get Features of Keep Alive Timer",
            Step::Queues => "Set Features of Number of Queues",
            Step::Events => "Set Features of Asynchronous Event Configuration",
            Step::Namespaces => "Identify of the namespace list",
            Step::IoController => "Identify of the NVM command set",
            Step::Descriptors => "Identify of the namespace descriptors",
            Step::Namespace => "Identify Namespace",
            Step::Health => "Get Log Page of health",
        }
    }
}

/// The entries that an I/O queue gets: what was asked for, within what the controller takes.
fn queue_size(wish: QueueSize, cap: Cap, identity: &IdentifyController) -> Result<QueueSize, HostError> {
    let mut entries = wish.entries().min(cap.max_queue_entries().entries());
    let max_commands = u32::from(identity.max_outstanding_commands());
    if max_commands != 0 {
        entries = entries.min(max_commands);
    }
    // One entry stays free, so two are the least that can hold a command.
    QueueSize::new(entries).filter(|size| size.entries() >= 2).ok_or(HostError::QueueTooSmall(entries))
}

/// The namespace to use of those that there are.
fn choose(wish: Option<Nsid>, list: &NamespaceList) -> Result<Nsid, HostError> {
    let present: Vec<_> = list.iter().collect();
    match (wish, present.as_slice()) {
        (Some(nsid), present) if present.contains(&nsid) => Ok(nsid),
        // Beyond what one list holds; Identify Namespace tells.
        (Some(nsid), present) if list.is_full() && present.last().is_some_and(|&last| nsid > last) => Ok(nsid),
        (Some(nsid), _) => Err(HostError::NoNamespace { nsid, present }),
        (None, []) => Err(HostError::NoNamespaces),
        (None, &[only]) => Ok(only),
        (None, _) => Err(HostError::SeveralNamespaces(present)),
    }
}

fn parse<T, E: std::fmt::Display>(command: &'static str, result: Result<T, E>) -> Result<T, HostError> {
    result.map_err(|error| HostError::Malformed { command, reason: error.to_string() })
}

pub(crate) fn command(name: &'static str, sqe: Sqe) -> Command {
    Command { name, sqe, data: Data::None }
}

fn property_get(name: &'static str, offset: PropertyOffset, size: PropertySize) -> Command {
    command(name, Sqe::property_get(NO_CID, PropertyAccess { offset, size }))
}

pub(crate) fn get_status() -> Command {
    property_get("Property Get of CSTS", PropertyOffset::CSTS, PropertySize::Four)
}

pub(crate) fn set_configuration(name: &'static str, configuration: ControllerConfiguration) -> Command {
    let access = PropertyAccess { offset: PropertyOffset::CC, size: PropertySize::Four };
    command(name, Sqe::property_set(NO_CID, access, configuration.bits().into()))
}

fn set_feature(name: &'static str, id: FeatureId, value: u32) -> Command {
    command(name, Sqe::set_features(NO_CID, &SetFeatures { nsid: Nsid::NONE, id, save: false, value }))
}

pub(crate) fn identify(name: &'static str, cns: Cns, nsid: Nsid) -> Command {
    Command { name, sqe: Sqe::identify(NO_CID, &Identify::new(cns, nsid)), data: Data::FromController(IDENTIFY_BYTES) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use godwit_nvme::{AdminCommand, FabricsCommand, Qid, Sqhd, Status, StatusCode};

    fn bringup() -> Bringup {
        let names = Names {
            subsystem: "nqn.2026-11.org.example:vol0".parse().unwrap(),
            host: "nqn.2026-11.org.example:host".parse().unwrap(),
            host_id: HostId([1; 16]),
        };
        let queue_size = QueueSize::new(128).unwrap();
        Bringup::new(Wishes { names, keep_alive: Duration::from_secs(5), io_queues: 2, queue_size, nsid: None })
    }

    fn success(result: u64) -> Cqe {
        Cqe::new(NO_CID, Qid::ADMIN, Sqhd::new(0), Status::SUCCESS).with_result(result)
    }

    fn next(bringup: &mut Bringup, cqe: &Cqe) -> FabricsCommand {
        let Ok(Next::Command(command, _)) = bringup.answer(cqe, &[]) else { panic!("a command comes next") };
        match AdminCommand::parse(&command.sqe) {
            AdminCommand::Fabrics(command) => command,
            other => panic!("{other:?}"),
        }
    }

    fn entries(wish: u32, max_queue_entries: u32, max_commands: u16) -> Result<u32, HostError> {
        let mut identity = IdentifyController::new();
        identity.set_max_outstanding_commands(max_commands);
        let cap = Cap::new(QueueSize::new(max_queue_entries).unwrap(), Duration::from_secs(1));
        queue_size(QueueSize::new(wish).unwrap(), cap, &identity).map(QueueSize::entries)
    }

    #[test]
    fn a_controller_is_disabled_then_enabled_then_awaited() {
        let mut bringup = bringup();
        let AdminCommand::Fabrics(FabricsCommand::Connect(connect)) = AdminCommand::parse(&bringup.start().sqe) else { panic!() };
        assert_eq!((connect.sq_size.zeroes_based(), connect.keep_alive), (31, Duration::from_secs(5)));
        let get = |offset, size| FabricsCommand::PropertyGet(PropertyAccess { offset, size });
        let set = |value| FabricsCommand::PropertySet(PropertyAccess { offset: PropertyOffset::CC, size: PropertySize::Four }, value);
        let csts = get(PropertyOffset::CSTS, PropertySize::Four);
        assert_eq!(next(&mut bringup, &success(7)), get(PropertyOffset::CAP, PropertySize::Eight));
        let cap = Cap::new(QueueSize::new(128).unwrap(), Duration::from_secs(1)).with_selectable_command_sets(true);
        assert_eq!(next(&mut bringup, &success(cap.bits())), set(0x0046_0060));
        assert_eq!(next(&mut bringup, &success(0)), set(0x0046_0061));
        assert_eq!(next(&mut bringup, &success(0)), csts);
        assert_eq!(next(&mut bringup, &success(0)), csts);
        assert_eq!(next(&mut bringup, &success(1)), get(PropertyOffset::VS, PropertySize::Four));
    }

    #[test]
    fn a_controller_gets_the_time_that_it_names_to_become_ready() {
        let mut bringup = bringup();
        bringup.cap = Cap::new(QueueSize::new(128).unwrap(), Duration::from_secs(1));
        bringup.step = Step::Ready { waited: Duration::from_millis(1498) };
        assert!(bringup.answer(&success(0), &[]).is_ok());
        assert!(matches!(bringup.answer(&success(0), &[]), Err(HostError::NotReady { .. })));
        for csts in [2, u64::from(u32::MAX)] {
            bringup.step = Step::Ready { waited: Duration::ZERO };
            assert!(matches!(bringup.answer(&success(csts), &[]), Err(HostError::Fatal)));
        }
    }

    #[test]
    fn pages_larger_than_ours_and_authentication_are_refused() {
        let mut large = bringup();
        large.step = Step::Capabilities;
        assert!(matches!(large.answer(&success(1 << 48), &[]), Err(HostError::PageSize(8192))));
        let mut authenticated = bringup();
        assert!(matches!(authenticated.answer(&success(1 << 17), &[]), Err(HostError::AuthenticationRequired)));
        assert!(matches!(bringup().answer(&success(1 << 18), &[]), Err(HostError::AuthenticationRequired)));
    }

    #[test]
    fn a_failed_step_is_named() {
        let mut bringup = bringup();
        bringup.step = Step::Queues;
        let cqe = Cqe::new(NO_CID, Qid::ADMIN, Sqhd::new(0), StatusCode::INTERNAL_ERROR.do_not_retry());
        let error = bringup.answer(&cqe, &[]).unwrap_err().to_string();
        assert!(error.starts_with("Set Features of Number of Queues failed: internal error"), "{error}");
    }

    #[test]
    fn a_queue_is_as_large_as_wish_mqes_and_maxcmd_allow() {
        assert_eq!(entries(128, 1024, 0).unwrap(), 128);
        assert_eq!(entries(1024, 128, 0).unwrap(), 128);
        assert_eq!(entries(1024, 1024, 64).unwrap(), 64);
        assert_eq!(entries(2, 1024, 0).unwrap(), 2);
        assert!(matches!(entries(128, 1, 0), Err(HostError::QueueTooSmall(1))));
        assert!(matches!(entries(128, 1024, 1), Err(HostError::QueueTooSmall(1))));
    }

    #[test]
    fn the_namespace_is_the_one_asked_for_or_the_only_one() {
        let list = |ids: &[u32]| NamespaceList::active_above(Nsid::NONE, ids.iter().map(|&nsid| Nsid::new(nsid)));
        let one = Nsid::new(1);
        assert_eq!(choose(None, &list(&[1])).unwrap(), one);
        assert_eq!(choose(Some(one), &list(&[1, 2])).unwrap(), one);
        assert!(matches!(choose(None, &list(&[])), Err(HostError::NoNamespaces)));
        assert!(matches!(choose(None, &list(&[1, 2])), Err(HostError::SeveralNamespaces(_))));
        assert!(matches!(choose(Some(Nsid::new(3)), &list(&[1, 2])), Err(HostError::NoNamespace { .. })));
        let full: Vec<_> = (1..=1024).collect();
        assert_eq!(choose(Some(Nsid::new(2000)), &list(&full)).unwrap(), Nsid::new(2000));
    }
}
