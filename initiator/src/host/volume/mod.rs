//! The control of a volume: it makes associations, keeps them alive, ends them as a whole, and makes the next one.
//!
//! It lives on one thread, with the admin queue. The I/O queues live on theirs and follow its orders. One failure anywhere ends the association everywhere:
//!
//! ```text
//!            attempt       address known        script done           all have joined
//! Waiting ------------> Looking -------> Opening ----------> Joining -----------------> Live
//!    ^                     |                |                   |                         |
//!    |  all queues down    |                |   any failure     |                         |
//!    +------------------ Ending <-----------+-------------------+-------------------------+
//! ```
//!
//! Between `Joining` and `Live` comes `Restoring`, when writes are to be written again that the target has lost.
//!
//! `Stopping` is the orderly end of `Live`, `Over` the last state.

mod end;
mod lookup;
mod paths;
mod probe;
mod restore;
mod watch;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use godwit_memory::Reservation;
use godwit_nvme::{Cqe, NamespaceIdentifiers, Nsid, Qid, QueueSize};
use godwit_rdma::{Completion, Fabric, QpId};
use godwit_reactor::{Reactor, Time, TimerId};
use tracing::{debug, info};

use super::TokenSpace;
use super::admin::{AdminEvent, AdminQueue, Purpose};
use super::bringup::{Bringup, Command, Controller, Names, Next, Outcome, Script, Wishes};
use super::discover::Discovery;
use super::error::HostError;
use super::fence::QueueEnd;
use super::ledger::{Ledger, Uncounted};
use super::message::{AssociationId, FromQueue, IoAccess, Join, Mailbox, News, Order, ToQueue, VolumeEvent, VolumeInfo};
use super::namespace::Attached;
use super::queue::Endpoint;
use super::reconnect::{Backoff, LossTimeout};
use super::shutdown::Shutdown;
use super::status::{VolumeState, VolumeStatus};

use crate::block::BlockError;
use lookup::Known;
pub(crate) use lookup::Resolved;
pub use lookup::Resolver;
pub use paths::Address;
use paths::Paths;
use probe::Probe;

/// How long the set-up of an association may take before its I/O queues are connected.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// What a volume is attached by.
#[derive(Clone, Debug)]
pub struct VolumeSettings {
    /// How the volume is called in the log.
    pub name: String,
    /// Where the target listens: tried in turn.
    pub addresses: Vec<Address>,
    /// A discovery controller that knows where the target listens, too.
    pub discovery: Option<Address>,
    /// Looks up the names among these.
    pub resolver: Resolver,
    /// Who connects to what.
    pub names: Names,
    /// Which namespace; `None` for the only one.
    pub nsid: Option<Nsid>,
    /// Keep alive timeout.
    pub keep_alive: Duration,
    /// Entries of an I/O queue.
    pub queue_size: QueueSize,
    /// The longest pause between two attempts to reconnect.
    pub reconnect_delay: Duration,
    /// What the pauses are randomly shortened by: volumes with different seeds are out of step.
    pub seed: u64,
    /// Until operations that wait for a lost target fail, while it is still tried (`fast_io_fail_tmo`); `None` lets them wait.
    pub fast_io_fail: Option<Duration>,
    /// Until a lost volume is given up.
    pub loss_timeout: LossTimeout,
    /// How long a command may take before it is aborted.
    pub io_timeout: Duration,
    /// How long it may take from then on before the association is given up; with zero it is at once, without an Abort.
    pub abort_timeout: Duration,
    /// Bytes of acknowledged writes, over all queues, of which copies are retained until they are flushed; 0 for none. Each queue has its part, of at least
    /// the longest transfer.
    pub retain_bytes: usize,
    /// What is made of the return of a target that does not count unsafe shutdowns.
    pub uncounted: Uncounted,
    /// The count of unsafe shutdowns when an earlier process last saw it whose clients may rely on writes that are not flushed.
    pub known_unsafe_shutdowns: Option<u128>,
    /// Refuse writes.
    pub read_only: bool,
    /// What the volume tells of itself: of one that has at least as many queues.
    pub status: Arc<VolumeStatus>,
}

/// The timers of a control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlTimer {
    /// The next attempt is due.
    Attempt,
    /// A state takes too long, or the next command of a script is due.
    State,
    /// The next command of a script is due.
    Script,
    /// Keep Alive is due.
    KeepAlive,
    /// The lost volume is to be given up.
    Loss,
    /// Operations are not to wait for the lost target any more.
    FailFast,
    /// Paths that are not in use are to be probed.
    Probe,
}

impl ControlTimer {
    /// How many there are.
    pub(crate) const COUNT: usize = 7;
}

#[derive(Debug)]
enum State {
    /// Between attempts.
    Waiting,
    /// Addresses are being looked up.
    Looking,
    /// The admin queue is being set up.
    Opening { script: Box<Bringup>, next: Option<Box<Command>>, established: bool, since: Time },
    /// The I/O queues are connecting.
    Joining { joined: Vec<bool> },
    /// Copies of lost writes are being written again: what each queue has to write next, for those of which that is known.
    Restoring { next: Vec<Option<Option<Time>>> },
    /// Operations flow.
    Live,
    /// The connections are being closed.
    Ending { reason: HostError, was_live: bool, sent: bool },
    /// The controller is being shut down; then the connections are closed.
    Stopping { script: Shutdown, next: Option<Box<Command>> },
    /// There will be no other association.
    Over,
}

/// What lasts as long as an association.
#[derive(Debug)]
struct Session {
    controller: Controller,
    attached: Attached,
    unsafe_shutdowns: Option<u128>,
    /// When the last Keep Alive, or Connect, was answered.
    last_answer: Time,
    /// Whether a Keep Alive is unanswered.
    keep_alive_unanswered: bool,
    /// How each I/O queue ended, those that did.
    ends: Vec<Option<QueueEnd>>,
    follow: Follow,
    /// The target told of another change meanwhile.
    follow_again: bool,
}

/// What is asked of the target after it told of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Follow {
    Nothing,
    /// Its log of changed namespaces, which arms the event again.
    Log,
    /// What identifies the namespace: under its identifier at the target there may be another one now.
    Descriptors,
    /// The namespace that these identify.
    Namespace(NamespaceIdentifiers),
}

/// The control of one volume.
#[derive(Debug)]
pub struct VolumeControl {
    settings: VolumeSettings,
    tokens: TokenSpace,
    queues: Vec<Mailbox<ToQueue>>,
    news: Receiver<FromQueue>,
    events: Mailbox<VolumeEvent>,
    association: AssociationId,
    state: State,
    /// Reaches this control from other threads.
    mailbox: Option<Mailbox<FromQueue>>,
    known: Known,
    paths: Paths,
    /// The path of the last attempt.
    current: Option<Endpoint>,
    discovery: Option<Box<Discovery>>,
    probes: Vec<Probe>,
    backoff: Backoff,
    admin: Option<AdminQueue>,
    /// Of the admin queues, from the first attempt to the end of the volume.
    admin_buffers: Option<Rc<Reservation>>,
    session: Option<Session>,
    /// The volume, once it was up.
    volume: Option<Attached>,
    /// I/O queues that the volume runs on, once it was up.
    io_queues: usize,
    ledger: Arc<Ledger>,
    /// Unsafe shutdowns, as of the last association that was live.
    unsafe_shutdowns: Option<u128>,
    /// No association may be made before this.
    fence: Time,
    started: Time,
    /// Rounds of a first attach that the peer ended without a word.
    torn: u32,
    /// The volume is lost, and its last word was this.
    lost: Option<HostError>,
    given_up: bool,
    stopping: bool,
    timers: [Option<TimerId>; ControlTimer::COUNT],
}

impl VolumeControl {
    /// The control of a volume whose queues are reached by `queues`, one each on its thread. [`start`](Self::start) it.
    ///
    /// # Panics
    ///
    /// When the settings' status is one for fewer queues.
    pub fn new(
        settings: VolumeSettings,
        tokens: TokenSpace,
        queues: Vec<Mailbox<ToQueue>>,
        news: Receiver<FromQueue>,
        events: Mailbox<VolumeEvent>,
    ) -> Self {
        let backoff = Backoff::new(settings.reconnect_delay, settings.seed);
        assert!(settings.status.capacity() >= queues.len(), "a status for {} queues", queues.len());
        Self {
            ledger: Arc::new(Ledger::new(queues.len())),
            unsafe_shutdowns: settings.known_unsafe_shutdowns,
            settings,
            tokens,
            queues,
            news,
            events,
            association: AssociationId::default(),
            state: State::Waiting,
            mailbox: None,
            known: Known::default(),
            paths: Paths::default(),
            current: None,
            discovery: None,
            probes: Vec::new(),
            backoff,
            admin: None,
            admin_buffers: None,
            session: None,
            volume: None,
            io_queues: 0,
            fence: Time::default(),
            started: Time::default(),
            torn: 0,
            lost: None,
            given_up: false,
            stopping: false,
            timers: [None; ControlTimer::COUNT],
        }
    }

    /// With a mailbox by which other threads reach it.
    pub(crate) fn with_mailbox(self, mailbox: Mailbox<FromQueue>) -> Self {
        Self { mailbox: Some(mailbox), ..self }
    }

    /// Begins to attach the volume.
    pub fn start<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        self.started = reactor.now();
        self.attempt(reactor, fabric);
    }

    /// Ends the volume in an orderly way. [`VolumeEvent::Stopped`] follows, in bounded time.
    pub fn stop<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        if self.stopping {
            return;
        }
        self.stopping = true;
        match self.state {
            State::Live => self.flush_and_shut_down(reactor, fabric),
            State::Waiting => self.finish_stop(reactor, fabric),
            State::Looking | State::Opening { .. } | State::Joining { .. } | State::Restoring { .. } => {
                self.end(reactor, fabric, HostError::Connection("stopped".to_owned()));
            }
            State::Ending { .. } | State::Stopping { .. } => {}
            State::Over => self.events.send(VolumeEvent::Stopped),
        }
    }

    /// Whether a completion is this control's.
    pub(crate) fn owns(&self, qp: QpId) -> bool {
        self.admin.as_ref().is_some_and(|admin| admin.owns(qp))
            || self.is_probe(qp)
            || self.discovery.as_ref().is_some_and(|discovery| discovery.owns(qp))
    }

    fn arm<R: Reactor>(&mut self, reactor: &mut R, timer: ControlTimer, after: Duration) {
        self.arm_at(reactor, timer, reactor.now() + after);
    }

    fn arm_at<R: Reactor>(&mut self, reactor: &mut R, timer: ControlTimer, at: Time) {
        self.cancel(reactor, timer);
        self.timers[timer as usize] = Some(reactor.set_timer(at, self.tokens.control(timer)));
    }

    fn cancel<R: Reactor>(&mut self, reactor: &mut R, timer: ControlTimer) {
        if let Some(timer) = self.timers[timer as usize].take() {
            reactor.cancel_timer(timer);
        }
    }

    fn order_all(&self, order: impl Fn(AssociationId) -> Order) {
        let joined = self.session.as_ref().map_or(0, |session| session.ends.len());
        for queue in &self.queues[..joined] {
            queue.send(ToQueue(order(self.association)));
        }
    }

    /// What a volume's first association has not joined yet has no queue, and no operations.
    fn fail_fast(&self) {
        for queue in &self.queues[..self.io_queues] {
            queue.send(ToQueue(Order::FailFast));
        }
    }

    fn attempt<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        self.association.0 += 1;
        self.session = None;
        self.current = None;
        self.look_up(reactor, fabric);
    }

    /// Opens the admin queue of a new association.
    fn open<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        let Some(endpoint) = self.paths.choose() else {
            let reason = self.no_path();
            return self.end(reactor, fabric, reason);
        };
        self.current = Some(endpoint);
        if self.volume.is_some() && self.timers[ControlTimer::Probe as usize].is_none() {
            self.watch_paths(reactor);
        }
        debug!(volume = self.settings.name, address = %endpoint.address, "connecting");
        self.settings.status.update(|status| {
            status.address = Some(endpoint.address);
            status.attempts += 1;
        });
        let io_queues = if self.volume.is_some() { self.io_queues } else { self.queues.len() };
        let wishes = Wishes {
            names: self.settings.names.clone(),
            keep_alive: self.settings.keep_alive,
            io_queues: u16::try_from(io_queues).unwrap_or(u16::MAX),
            queue_size: self.settings.queue_size,
            nsid: self.volume.as_ref().map(|volume| volume.identity.nsid).or(self.settings.nsid),
        };
        self.state = State::Opening { script: Box::new(Bringup::new(wishes)), next: None, established: false, since: reactor.now() };
        self.arm(reactor, ControlTimer::State, OPEN_TIMEOUT);
        let admin = self.admin_buffers(reactor).and_then(|buffers| AdminQueue::connect(reactor, fabric, &endpoint, buffers));
        match admin {
            Ok(admin) => self.admin = Some(admin),
            Err(error) => self.end(reactor, fabric, error),
        }
    }

    fn admin_buffers<R: Reactor>(&mut self, reactor: &R) -> Result<Rc<Reservation>, HostError> {
        if self.admin_buffers.is_none() {
            self.admin_buffers = Some(AdminQueue::set_aside(reactor.pool())?);
        }
        self.admin_buffers.clone().ok_or(HostError::NoBuffers)
    }

    fn send<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, purpose: Purpose, command: &Command) {
        let Some(admin) = &mut self.admin else { return };
        if let Err(error) = admin.send(reactor, fabric, purpose, command) {
            self.end(reactor, fabric, error);
        }
    }

    /// Handles a completion of the admin queue, of a probe or of a discovery.
    pub(crate) fn on_completion<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, qp: QpId, completion: Completion) {
        if self.is_probe(qp) {
            return self.on_probe(reactor, fabric, qp, &completion);
        }
        if let Some(discovery) = &mut self.discovery
            && discovery.owns(qp)
        {
            discovery.on_completion(reactor, fabric, qp, completion);
            return self.check_discovery(reactor, fabric);
        }
        let Some(event) = self.admin.as_mut().and_then(|admin| admin.on_completion(fabric, completion)) else { return };
        match event {
            AdminEvent::Established => {
                if let State::Opening { script, established, .. } = &mut self.state {
                    *established = true;
                    let first = script.start();
                    self.send(reactor, fabric, Purpose::Script, &first);
                }
            }
            AdminEvent::Answer { purpose, cqe, data } => {
                match purpose {
                    Purpose::Script => self.on_script(reactor, fabric, &cqe, data.as_deref().unwrap_or_default()),
                    Purpose::KeepAlive => self.on_keep_alive_answer(reactor, fabric, &cqe),
                    Purpose::AsyncEvent => self.on_async_event(reactor, fabric, &cqe),
                    Purpose::Abort => self.on_abort_answer(&cqe),
                    Purpose::Follow => self.on_follow(reactor, fabric, &cqe, data.as_deref().unwrap_or_default()),
                }
                if let (Some(admin), Some(data)) = (&self.admin, data) {
                    admin.recycle(data);
                }
            }
            AdminEvent::Failed(error) => self.end(reactor, fabric, error),
            AdminEvent::Down(error) => {
                if let Some(admin) = self.admin.take() {
                    admin.destroy(reactor, fabric);
                }
                self.end(reactor, fabric, error);
            }
        }
    }

    fn on_script<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, cqe: &Cqe, data: &[u8]) {
        match &mut self.state {
            State::Opening { script, next, .. } => match script.answer(cqe, data) {
                Ok(Next::Command(command, Duration::ZERO)) => self.send(reactor, fabric, Purpose::Script, &command),
                Ok(Next::Command(command, after)) => {
                    *next = Some(command);
                    self.arm(reactor, ControlTimer::Script, after);
                }
                Ok(Next::Done(outcome)) => self.on_opened(reactor, fabric, outcome),
                Err(error) => self.end(reactor, fabric, error),
            },
            State::Stopping { script, next } => match script.answer(cqe, data) {
                Ok(Next::Command(command, Duration::ZERO)) => self.send(reactor, fabric, Purpose::Script, &command),
                Ok(Next::Command(command, after)) => {
                    *next = Some(command);
                    self.arm(reactor, ControlTimer::Script, after);
                }
                Ok(Next::Done(())) => self.end(reactor, fabric, HostError::Connection("stopped".to_owned())),
                Err(error) => self.end(reactor, fabric, error),
            },
            _ => {}
        }
    }

    /// The controller is enabled and the namespace known: have the I/O queues join.
    fn on_opened<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, outcome: Outcome) {
        let Outcome { controller, namespace: Some(mut attached), unsafe_shutdowns } = outcome else {
            return self.end(reactor, fabric, HostError::NoNamespaces);
        };
        attached.geometry.read_only |= self.settings.read_only;
        if let Some(volume) = &self.volume
            && let Err(change) = volume.identity.check_same(&attached.identity)
        {
            return self.end(reactor, fabric, change.into());
        }
        let granted = usize::from(controller.io_queues);
        if self.volume.is_none() {
            self.io_queues = granted.min(self.queues.len());
        } else if granted < self.io_queues {
            let needed = u16::try_from(self.io_queues).unwrap_or(u16::MAX);
            return self.end(reactor, fabric, HostError::FewerQueues { granted: controller.io_queues, needed });
        }
        self.arm(reactor, ControlTimer::KeepAlive, self.settings.keep_alive / 2);
        self.arm(reactor, ControlTimer::State, OPEN_TIMEOUT);
        self.state = State::Joining { joined: vec![false; self.io_queues] };
        let events = !controller.events.is_empty();
        let (cntlid, queue_size) = (controller.cntlid, controller.queue_size);
        let access = IoAccess {
            nsid: attached.identity.nsid,
            geometry: attached.geometry,
            zeroes_may_deallocate: attached.zeroes_may_deallocate,
            in_capsule_bytes: controller.in_capsule_bytes,
            retry_delays: controller.retry_delays,
        };
        self.session = Some(Session {
            controller,
            attached,
            unsafe_shutdowns,
            last_answer: reactor.now(),
            keep_alive_unanswered: false,
            ends: vec![None; self.io_queues],
            follow: Follow::Nothing,
            follow_again: false,
        });
        if events {
            self.await_event(reactor, fabric);
        }
        let Some(endpoint) = self.current else { return };
        for (queue, qid) in self.queues[..self.io_queues].iter().zip(1..) {
            let join = Join {
                endpoint,
                qid: Qid::new(qid),
                queue_size,
                cntlid,
                connect_data: self.settings.names.connect_data(cntlid),
                access: access.clone(),
                abort_timeout: self.settings.abort_timeout,
                retain_bytes: self.settings.retain_bytes / self.io_queues.max(1),
                ledger: Arc::clone(&self.ledger),
                status: Arc::clone(&self.settings.status),
            };
            queue.send(ToQueue(Order::Join(self.association, Box::new(join))));
        }
    }

    /// Takes what the queues have told.
    pub(crate) fn on_news<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        while let Ok(FromQueue { association, queue, news }) = self.news.try_recv() {
            if let News::Resolved(resolved) = news {
                self.on_resolved(reactor, fabric, resolved);
                continue;
            }
            if association != self.association {
                continue;
            }
            match news {
                News::Joined => self.on_joined(reactor, queue),
                News::Failed(error) => self.end(reactor, fabric, error),
                News::Down(end, error) => self.on_queue_down(reactor, fabric, queue, end, error),
                News::Restored(next) => self.on_restored(reactor, queue, next),
                News::NotRestored(error) => self.on_not_restored(reactor, error),
                News::Flushed(result) => self.on_flushed(reactor, fabric, result),
                News::Overdue(cid) => self.abort_command(reactor, fabric, queue, cid),
                News::Resolved(_) => {}
            }
        }
    }

    fn on_joined<R: Reactor>(&mut self, reactor: &mut R, queue: usize) {
        let State::Joining { joined } = &mut self.state else { return };
        joined[queue] = true;
        if !joined.iter().all(|&joined| joined) {
            return;
        }
        self.cancel(reactor, ControlTimer::State);
        if !self.check_lost_writes(reactor.now()) {
            self.go_live(reactor);
        }
    }

    /// Operations may be sent.
    fn go_live<R: Reactor>(&mut self, reactor: &mut R) {
        let Some(session) = &self.session else { return };
        self.unsafe_shutdowns = session.unsafe_shutdowns;
        self.state = State::Live;
        let first = self.volume.is_none();
        let grown = self.volume.as_ref().is_some_and(|volume| volume.geometry != session.attached.geometry);
        let attached = session.attached.clone();
        let queue_depth = usize::from(session.controller.queue_size.zeroes_based());
        let (cntlid, keep_alive) = (session.controller.cntlid, session.controller.keep_alive);
        self.cancel(reactor, ControlTimer::Loss);
        self.cancel(reactor, ControlTimer::FailFast);
        if let Some(current) = self.current {
            self.paths.live(&current);
        }
        self.order_all(Order::Go);
        self.lost = None;
        self.settings.status.update(|status| {
            status.enter(VolumeState::Live);
            status.cntlid = Some(cntlid);
            status.io_queues = self.io_queues;
            status.queue_depth = queue_depth;
            status.keep_alive = keep_alive;
            status.attempts = 0;
            status.unsafe_shutdowns = self.unsafe_shutdowns;
            status.reconnects += u64::from(!first);
        });
        let name = &self.settings.name;
        if first {
            info!(volume = name, "attached {}, on {} I/O queues", attached.identity, self.io_queues);
            self.events.send(VolumeEvent::Up(Box::new(VolumeInfo {
                identity: attached.identity.clone(),
                geometry: attached.geometry,
                io_queues: self.io_queues,
                queue_depth,
                unsafe_shutdowns: self.unsafe_shutdowns,
                ledger: Arc::clone(&self.ledger),
            })));
        } else {
            info!(volume = name, "connected again");
            self.events.send(VolumeEvent::Restored);
        }
        if grown {
            self.events.send(VolumeEvent::Resized(attached.geometry));
        }
        self.volume = Some(attached);
        self.watch_paths(reactor);
    }

    /// Handles a timer.
    pub(crate) fn on_timer<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, timer: ControlTimer) {
        self.timers[timer as usize] = None;
        if let Some(discovery) = self.discovery.as_mut().filter(|_| matches!(timer, ControlTimer::State | ControlTimer::Script)) {
            discovery.on_timer(reactor, fabric, self.tokens.control(timer));
            return self.check_discovery(reactor, fabric);
        }
        match timer {
            ControlTimer::Attempt => {
                if matches!(self.state, State::Waiting) {
                    self.attempt(reactor, fabric);
                }
            }
            ControlTimer::State => self.on_state_timer(reactor, fabric),
            ControlTimer::Script => {
                if let State::Opening { next, .. } | State::Stopping { next, .. } = &mut self.state
                    && let Some(command) = next.take()
                {
                    self.send(reactor, fabric, Purpose::Script, &command);
                }
            }
            ControlTimer::KeepAlive => self.on_keep_alive_timer(reactor, fabric),
            ControlTimer::Loss => self.on_loss_timer(reactor, fabric),
            ControlTimer::FailFast => self.fail_fast(),
            ControlTimer::Probe => self.on_probe_timer(reactor, fabric),
        }
    }

    fn on_state_timer<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        match &self.state {
            State::Looking => self.on_lookup_timer(reactor, fabric),
            State::Opening { .. } => self.end(reactor, fabric, HostError::Timeout { command: "the set-up", after: OPEN_TIMEOUT }),
            State::Joining { .. } => {
                self.end(reactor, fabric, HostError::Timeout { command: "the connection of the I/O queues", after: OPEN_TIMEOUT });
            }
            State::Stopping { .. } => {
                self.end(reactor, fabric, HostError::Timeout { command: "the shutdown of the controller", after: end::MAX_SHUTDOWN });
            }
            State::Ending { .. } => self.drop_admin(reactor, fabric),
            State::Live if self.stopping => self.on_flushed(reactor, fabric, Err(BlockError::TargetAway)),
            State::Waiting | State::Restoring { .. } | State::Live | State::Over => {}
        }
    }
}
