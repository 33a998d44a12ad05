//! The control thread of a daemon: it has the volumes, starts and ends them, answers what it is asked, and obeys signals.
//!
//! Everything that happens comes to it as a [`Notice`], and while it serves it waits for nothing else: what may take long (flushing a device whose target is
//! away) runs on a thread of its own and comes back as a notice. Only when it is told to end it waits, for a bounded time, to hear who uses its devices.
//!
//! Volumes share the reactor threads. One on an RDMA device has threads of its own: what its target may write to is no other volume's memory.

mod memory;
mod requests;
mod signals;
mod volume;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use godwit_control::ControlError;
use sd_notify::NotifyState;
use serde_json::Value;
use tracing::{info, warn};

use crate::device::DeviceError;
use crate::host::{HostError, Mailbox, VolumeEvent, VolumeInfo, VolumeState, in_words};
use crate::socket::SocketError;
use crate::threads::{Threads, ThreadsError};
use crate::worker::{FromWorker, ToVolume, ToWorker, VolumeNumber, WorkerConfig, WorkerError};
use volume::{After, Outlet, Stage, Volume};
pub(crate) use volume::{Service, Wanted};

/// How long stopping may take: a little less than the 5 s that users are told.
const STOP: Duration = Duration::from_millis(4800);

/// The same for a volume that ends while the daemon goes on: nobody waits for the daemon, and a flush may take its time.
const STOP_ALONE: Duration = Duration::from_secs(15);

/// What of that is kept for detaching a volume, however long NBD requests take to be answered: its queues leave, its controller is shut down.
const DETACH: Duration = Duration::from_millis(800);

/// How long a lost target is waited for when the machine goes down.
const LOSS_AT_SHUTDOWN: Duration = Duration::from_secs(5);

/// Before a volume that could not be attached is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// What a daemon is to do.
pub(crate) struct Setup {
    /// Reactor threads that volumes share.
    pub(crate) reactors: usize,
    pub(crate) worker: WorkerConfig,
    pub(crate) control: Option<ControlSocket>,
    /// Where Prometheus finds it.
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) volumes: Vec<Wanted>,
    pub(crate) purpose: Purpose,
}

/// Where it can be asked.
pub(crate) struct ControlSocket {
    pub(crate) path: PathBuf,
    /// Whether somebody has named it, and so relies on it.
    pub(crate) is_asked_for: bool,
}

/// What it lives for.
pub(crate) enum Purpose {
    /// One volume: it ends with it.
    OneVolume,
    /// Whatever volumes its configuration names, which this reads anew.
    Configured(Box<dyn FnMut() -> Result<Vec<Wanted>, String>>),
}

/// Why the daemon ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    /// The volume could not be attached, or is gone.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A reactor thread could not go on.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The export cannot be listened on.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The kernel does not take the volume.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The daemon cannot be asked.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// NBD clients could not use the volume.
    #[error("the volume cannot be served through NBD: {0}")]
    Export(#[from] godwit_nbd::InvalidExport),
    /// Signals cannot be caught, or threads not started.
    #[error("cannot start: {}", in_words(.0))]
    Start(std::io::Error),
    /// A reactor thread could not start; it has said why.
    #[error("the reactor threads cannot start")]
    Threads,
    /// A second signal came while the first was obeyed.
    #[error("stopped at once by a second signal")]
    Impatient,
}

impl From<ThreadsError> for ServiceError {
    fn from(error: ThreadsError) -> Self {
        match error {
            ThreadsError::Start(error) => Self::Start(error),
            ThreadsError::Failed => Self::Threads,
        }
    }
}

/// What the control thread hears.
enum Notice {
    Worker(FromWorker),
    Volume(VolumeNumber, VolumeEvent),
    /// Somebody asks, and waits for the answer.
    Request(Value, Sender<Value>),
    /// A volume is not in use, its device was flushed, and it may go; or why not.
    Released(VolumeNumber, Result<(), String>),
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
}

/// Serves volumes until a signal comes. `ready` is called with each volume that comes up: its name, where it is, and what it is.
pub(crate) fn serve(setup: Setup, ready: impl FnMut(&str, &str, &VolumeInfo)) -> Result<(), ServiceError> {
    if setup.volumes.iter().any(|wanted| matches!(wanted.service, Service::Device { .. })) {
        memory::protect();
    }
    let (sender, notices) = channel();
    let _signals = signals::watch(sender.clone()).map_err(ServiceError::Start)?;
    let Setup { reactors, worker, control, metrics, volumes, purpose } = setup;
    let _control = match control.map(|socket| (socket.is_asked_for, requests::listen(socket.path, &sender))) {
        Some((false, Err(error))) => {
            warn!("`godwit list` does not find this daemon: {error}");
            None
        }
        Some((_, control)) => Some(control?),
        None => None,
    };
    let _metrics = metrics.map(|address| requests::serve_metrics(address, &sender)).transpose()?;
    let mut daemon = Daemon {
        notices,
        sender,
        reactors,
        worker,
        shared: None,
        volumes: BTreeMap::new(),
        next_number: 0,
        purpose,
        ready,
        is_ready: false,
        stopping: false,
        outcome: Ok(()),
        watchdog: Watchdog::new(Instant::now()),
    };
    let result = daemon.run(volumes);
    // Why a thread could not start stands behind what else it has heard.
    let failed = || {
        daemon.notices.try_iter().find_map(|notice| if let Notice::Worker(FromWorker::Failed(error)) = notice { Some(error) } else { None })
    };
    match result {
        Err(ServiceError::Threads) => Err(failed().map_or(ServiceError::Threads, ServiceError::from)),
        result => result,
    }
}

struct Daemon<F> {
    notices: Receiver<Notice>,
    sender: Sender<Notice>,
    reactors: usize,
    worker: WorkerConfig,
    shared: Option<Rc<Threads>>,
    volumes: BTreeMap<VolumeNumber, Volume>,
    next_number: u16,
    purpose: Purpose,
    ready: F,
    is_ready: bool,
    stopping: bool,
    outcome: Result<(), ServiceError>,
    watchdog: Watchdog,
}

impl<F: FnMut(&str, &str, &VolumeInfo)> Daemon<F> {
    fn run(&mut self, volumes: Vec<Wanted>) -> Result<(), ServiceError> {
        for wanted in volumes {
            self.start(wanted)?;
        }
        loop {
            let now = Instant::now();
            self.tick(now)?;
            self.tell_systemd_when_ready();
            if self.is_over() {
                return std::mem::replace(&mut self.outcome, Ok(()));
            }
            let deadline = self.volumes.values().filter_map(Volume::deadline).chain(self.watchdog.deadline()).min();
            let notice = match deadline {
                None => self.notices.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => self.notices.recv_timeout(at.saturating_duration_since(now)),
            };
            if let Ok(notice) = notice {
                self.on_notice(notice)?;
            }
        }
    }

    fn is_over(&self) -> bool {
        let ended = self.volumes.values().all(|volume| volume.stage == Stage::Gone);
        ended && (self.stopping || matches!(self.purpose, Purpose::OneVolume))
    }

    fn on_notice(&mut self, notice: Notice) -> Result<(), ServiceError> {
        match notice {
            Notice::Worker(FromWorker::Failed(error)) => return Err(error.into()),
            Notice::Worker(FromWorker::Drained(number)) => self.on_drained(number),
            Notice::Worker(FromWorker::LinkEnded(number, link, end)) => self.on_link_ended(number, link, end),
            Notice::Worker(FromWorker::Pong) => self.watchdog.pong(),
            Notice::Worker(FromWorker::Ready(..)) => {}
            Notice::Volume(number, event) => self.on_volume(number, event)?,
            Notice::Request(request, answer) => self.on_request(&request, answer),
            Notice::Released(number, result) => self.on_released(number, result),
            Notice::Stop => self.stop_all()?,
            Notice::Reload => self.reload()?,
        }
        Ok(())
    }

    /// Begins to attach a volume.
    fn start(&mut self, wanted: Wanted) -> Result<(), ServiceError> {
        let volume = Volume {
            wanted,
            threads: None,
            stage: Stage::Running,
            after: After::Removed,
            served: None,
            settled: false,
            asked: Vec::new(),
            next: None,
        };
        self.start_again(volume)
    }

    fn start_again(&mut self, mut volume: Volume) -> Result<(), ServiceError> {
        let threads = self.threads(volume.wanted.own_threads)?;
        let number = self.free_number();
        if let Service::Device { device, .. } = &volume.wanted.service {
            let settings = &mut volume.wanted.settings;
            settings.known_unsafe_shutdowns = crate::device::remembered(*device, settings.names.subsystem.as_str());
        }
        let sender = self.sender.clone();
        // Whoever has ended first does not listen any more.
        let events = Mailbox::with(move |event| drop(sender.send(Notice::Volume(number, event))));
        threads.attach(number, &volume.wanted.settings, volume.wanted.io_queues, events);
        volume.threads = Some(threads);
        volume.stage = Stage::Running;
        self.volumes.insert(number, volume);
        Ok(())
    }

    fn threads(&mut self, own: bool) -> Result<Rc<Threads>, ServiceError> {
        if let Some(shared) = self.shared.as_ref().filter(|_| !own) {
            return Ok(Rc::clone(shared));
        }
        let threads = Rc::new(Threads::start(self.reactors, &self.worker, {
            let sender = self.sender.clone();
            move |report| drop(sender.send(Notice::Worker(report)))
        })?);
        if !own {
            self.shared = Some(Rc::clone(&threads));
        }
        Ok(threads)
    }

    fn free_number(&mut self) -> VolumeNumber {
        loop {
            let number = VolumeNumber(self.next_number);
            self.next_number = self.next_number.wrapping_add(1);
            if !self.volumes.contains_key(&number) {
                return number;
            }
        }
    }

    fn on_volume(&mut self, number: VolumeNumber, event: VolumeEvent) -> Result<(), ServiceError> {
        let Some(volume) = self.volumes.get_mut(&number) else { return Ok(()) };
        let running = volume.stage == Stage::Running;
        match event {
            VolumeEvent::Up(info) if running => {
                volume.settled = true;
                match volume.serve(number, (*info).clone()) {
                    Ok(()) => {
                        let place = volume.place().unwrap_or_default();
                        (self.ready)(&volume.wanted.settings.name, &place, &info);
                    }
                    Err(error) => self.cannot_serve(number, error),
                }
            }
            VolumeEvent::Failed(error) if running => {
                volume.settled = true;
                if matches!(self.purpose, Purpose::OneVolume) {
                    self.outcome = Err(error.into());
                    self.forget(number, After::Removed);
                } else {
                    warn!(volume = volume.wanted.settings.name, "{} cannot be attached yet: {error}", volume.wanted.settings.name);
                    self.forget(number, After::Again);
                }
            }
            VolumeEvent::Gone(error) => {
                // Nothing of what the kernel or a client waits for comes any more, and that is said to them before the end.
                volume.free_device();
                if matches!(self.purpose, Purpose::OneVolume) && self.outcome.is_ok() {
                    self.outcome = Err(error.into());
                }
                self.stop(number, Instant::now() + STOP, After::Gone);
            }
            VolumeEvent::Resized(geometry) => volume.resize(geometry),
            VolumeEvent::Stopped => self.ended(number),
            // The status says so.
            VolumeEvent::Lost(_) => {}
            VolumeEvent::Restored => volume.remember_losses(),
            // It is being ended.
            VolumeEvent::Up(_) | VolumeEvent::Failed(_) => self.ended(number),
        }
        self.tell_systemd_where_it_stands();
        Ok(())
    }

    fn cannot_serve(&mut self, number: VolumeNumber, error: ServiceError) {
        if matches!(self.purpose, Purpose::OneVolume) {
            self.outcome = Err(error);
        } else if let Some(volume) = self.volumes.get_mut(&number) {
            warn!(volume = volume.wanted.settings.name, "{} cannot be served: {error}", volume.wanted.settings.name);
            volume.wanted.settings.status.update(|status| status.failed(&error));
        }
        self.stop(number, Instant::now() + STOP, After::Again);
    }

    fn on_link_ended(&mut self, number: VolumeNumber, link: crate::nbd::LinkId, end: crate::nbd::LinkEnd) {
        let Some(volume) = self.volumes.get_mut(&number).filter(|volume| volume.stage == Stage::Running) else { return };
        volume.link_ended(link, end, Instant::now());
        if volume.served.as_ref().is_some_and(|served| matches!(served.outlet, Outlet::Nothing)) {
            self.stop(number, Instant::now() + STOP, After::Gone);
        }
    }

    /// Takes a volume down in order: what was asked is answered, then the target is told. Until `limit` at the latest.
    fn stop(&mut self, number: VolumeNumber, limit: Instant, after: After) {
        let Some(volume) = self.volumes.get_mut(&number) else { return };
        match volume.stage {
            Stage::Running | Stage::Releasing => {
                let Some(threads) = &volume.threads else { return };
                threads.tell(number, || ToVolume::Drain);
                volume.after = after;
                volume.stage = Stage::Draining { busy: threads.workers().len(), until: limit.checked_sub(DETACH).unwrap_or(limit) };
            }
            Stage::Failed { .. } => self.remove(number),
            Stage::Gone if after == After::Removed => self.remove(number),
            Stage::Draining { .. } | Stage::Detaching { .. } | Stage::Gone => {}
        }
    }

    fn on_drained(&mut self, number: VolumeNumber) {
        let Some(volume) = self.volumes.get_mut(&number) else { return };
        if let Stage::Draining { busy, until } = &mut volume.stage {
            *busy -= 1;
            if *busy == 0 {
                let until = *until;
                self.detach(number, until + DETACH);
            }
        }
    }

    fn detach(&mut self, number: VolumeNumber, until: Instant) {
        let Some(volume) = self.volumes.get_mut(&number) else { return };
        if let Some(first) = volume.threads.as_ref().and_then(|threads| threads.workers().first()) {
            first.send(ToWorker::Volume(number, ToVolume::Detach));
        }
        volume.stage = Stage::Detaching { until };
    }

    /// The volume has ended, at the target too.
    fn ended(&mut self, number: VolumeNumber) {
        let Some(volume) = self.volumes.get(&number) else { return };
        let alone = self.stopping || matches!(self.purpose, Purpose::OneVolume);
        match volume.after {
            After::Removed => self.remove(number),
            after => self.forget(number, if alone { After::Removed } else { after }),
        }
    }

    /// Forgets a volume that is not wanted any more.
    fn remove(&mut self, number: VolumeNumber) {
        if let Some(volume) = self.volumes.get(&number) {
            info!(volume = volume.wanted.settings.name, "{} is detached", volume.wanted.settings.name);
        }
        self.forget(number, After::Removed);
    }

    /// Has the threads forget a volume.
    fn forget(&mut self, number: VolumeNumber, after: After) {
        let Some(mut volume) = self.volumes.remove(&number) else { return };
        if let Some(threads) = volume.threads.take() {
            threads.tell(number, || ToVolume::Forget);
        }
        // What is left is its device, if somebody holds it: the next daemon goes on with it.
        volume.served = None;
        volume.after = after;
        for asked in volume.asked.drain(..) {
            let _ = asked.send(serde_json::json!({ "detached": volume.wanted.settings.name }));
        }
        volume.stage = match (after, volume.next.take()) {
            // It was configured again meanwhile.
            (_, Some(next)) if !self.stopping => {
                volume.wanted = next;
                Stage::Failed { again: Instant::now() }
            }
            (After::Removed, _) => return,
            (After::Again, _) => Stage::Failed { again: Instant::now() + AGAIN },
            (After::Gone, _) => Stage::Gone,
        };
        self.volumes.insert(number, volume);
    }

    fn on_released(&mut self, number: VolumeNumber, result: Result<(), String>) {
        let Some(volume) = self.volumes.get_mut(&number).filter(|volume| volume.stage == Stage::Releasing) else { return };
        match result {
            Ok(()) => {
                volume.free_device();
                self.stop(number, Instant::now() + STOP_ALONE, After::Removed);
            }
            Err(_) if self.stopping => self.stop(number, Instant::now() + STOP, After::Removed),
            Err(reason) => {
                volume.stage = Stage::Running;
                volume.next = None;
                for asked in volume.asked.drain(..) {
                    let _ = asked.send(godwit_control::refusal(&reason));
                }
            }
        }
    }

    /// A signal to end. A device that nobody uses is freed; one that somebody uses is left to the next daemon.
    fn stop_all(&mut self) -> Result<(), ServiceError> {
        if self.stopping {
            return Err(ServiceError::Impatient);
        }
        info!("stopping");
        tell_systemd(&[NotifyState::Stopping]);
        self.stopping = true;
        let limit = Instant::now() + STOP;
        let running = self.volumes.iter().filter(|(_, volume)| volume.stage == Stage::Running);
        let devices: Vec<_> = running.filter_map(|(&number, volume)| Some((number, volume.device()?.disk()))).collect();
        let disks: Vec<_> = devices.iter().map(|&(_, disk)| disk).collect();
        for ((number, disk), holder) in devices.into_iter().zip(requests::holders(&disks)) {
            let Some(volume) = self.volumes.get_mut(&number) else { continue };
            match holder {
                Some(holder) => info!(volume = volume.wanted.settings.name, "{disk} stays for the next daemon: {holder}"),
                None => volume.free_device(),
            }
        }
        let numbers: Vec<_> = self.volumes.keys().copied().collect();
        for number in numbers {
            self.stop(number, limit, After::Removed);
        }
        Ok(())
    }

    /// Reads the configuration anew: volumes that are new in it are attached, and those that are gone from it detached, unless they are in use. Others
    /// are not touched.
    fn reload(&mut self) -> Result<(), ServiceError> {
        let Purpose::Configured(read) = &mut self.purpose else {
            info!("SIGHUP: there is no configuration to read");
            return Ok(());
        };
        if self.stopping {
            return Ok(());
        }
        let mut wanted = match read() {
            Ok(wanted) => wanted,
            Err(error) => {
                warn!("the configuration stays as it was: {error}");
                return Ok(());
            }
        };
        tell_systemd(&[NotifyState::Reloading]);
        let numbers: Vec<_> = self.volumes.keys().copied().collect();
        for number in numbers {
            let Some(volume) = self.volumes.get_mut(&number) else { continue };
            let name = volume.wanted.settings.name.clone();
            let position = wanted.iter().position(|wanted| wanted.settings.name == name);
            if matches!(volume.stage, Stage::Releasing | Stage::Draining { .. } | Stage::Detaching { .. }) {
                // It is on its way out: what is wanted of it is begun once it has gone.
                volume.next = position.map(|index| wanted.swap_remove(index));
                continue;
            }
            match position {
                Some(index) if wanted[index].is_same(&volume.wanted) && volume.stage != Stage::Gone => drop(wanted.swap_remove(index)),
                Some(index) if volume.stage == Stage::Gone || matches!(volume.stage, Stage::Failed { .. }) => {
                    self.volumes.remove(&number);
                    self.start(wanted.swap_remove(index))?;
                }
                Some(index) => {
                    warn!(volume = name, "{name} is configured otherwise now; `godwit disconnect {name}` and a reload make it so");
                    wanted.swap_remove(index);
                }
                None => self.release(number, false, None),
            }
        }
        for wanted in wanted {
            info!(volume = wanted.settings.name, "{} is new", wanted.settings.name);
            self.start(wanted)?;
        }
        tell_systemd(&[NotifyState::Ready]);
        Ok(())
    }

    /// Looks whether a volume may go, flushes its device, and takes it down. `answer` is told how that went.
    fn release(&mut self, number: VolumeNumber, force: bool, answer: Option<Sender<Value>>) {
        let Some(volume) = self.volumes.get_mut(&number) else { return };
        volume.asked.extend(answer);
        match volume.use_of().filter(|_| volume.stage == Stage::Running) {
            Some(of) => {
                volume.stage = Stage::Releasing;
                let (sender, name) = (self.sender.clone(), volume.wanted.settings.name.clone());
                std::thread::spawn(move || {
                    let result = requests::release(&of, force);
                    if let Err(reason) = &result {
                        warn!(volume = name, "{name} stays: {reason}");
                    }
                    let _ = sender.send(Notice::Released(number, result));
                });
            }
            None => self.stop(number, Instant::now() + STOP_ALONE, After::Removed),
        }
    }

    /// The machine goes down: what waits for a lost target must not hold that up, and is written to a target that is there, as ever.
    fn prepare_shutdown(&mut self) {
        info!("the machine goes down: lost targets are given up after {} s", LOSS_AT_SHUTDOWN.as_secs());
        for (&number, volume) in &mut self.volumes {
            if let Some(first) = volume.threads.as_ref().and_then(|threads| threads.workers().first()) {
                first.send(ToWorker::Volume(number, ToVolume::LimitLossTimeout(LOSS_AT_SHUTDOWN)));
            }
            volume.limit_loss_timeout(LOSS_AT_SHUTDOWN);
        }
    }

    /// Does what is due.
    fn tick(&mut self, now: Instant) -> Result<(), ServiceError> {
        let due: Vec<_> =
            self.volumes.iter().filter(|(_, volume)| volume.deadline().is_some_and(|at| at <= now)).map(|(&number, _)| number).collect();
        for number in due {
            let Some(volume) = self.volumes.get_mut(&number) else { continue };
            volume.replace_links(number, now);
            if volume.served.as_ref().is_some_and(|served| served.untold.is_some_and(|at| at <= now)) {
                volume.remember_losses();
            }
            match volume.stage {
                Stage::Draining { until, .. } if until <= now => {
                    warn!(volume = volume.wanted.settings.name, "some NBD requests were not answered in time");
                    self.detach(number, until + DETACH);
                }
                Stage::Detaching { until } if until <= now => {
                    warn!(volume = volume.wanted.settings.name, "the target did not take note of the end in time");
                    self.ended(number);
                }
                Stage::Failed { again } if again <= now => {
                    if let Some(volume) = self.volumes.remove(&number) {
                        self.start_again(volume)?;
                    }
                }
                _ => {}
            }
        }
        let threads = self
            .shared
            .iter()
            .chain(self.volumes.values().filter_map(|volume| volume.threads.as_ref()).filter(|threads| Rc::strong_count(threads) == 1));
        self.watchdog.tick(now, threads.map(Rc::as_ref));
        Ok(())
    }

    /// Ready is a daemon each of whose volumes was attached, or could not be on the first try.
    fn tell_systemd_when_ready(&mut self) {
        if !self.is_ready && !self.stopping && self.volumes.values().all(|volume| volume.settled) && self.outcome.is_ok() {
            self.is_ready = true;
            tell_systemd(&[NotifyState::Ready]);
            self.tell_systemd_where_it_stands();
        }
    }

    fn tell_systemd_where_it_stands(&self) {
        if !self.is_ready || self.stopping {
            return;
        }
        let all = self.volumes.len();
        let controls: Vec<_> = self.volumes.values().map(|volume| volume.wanted.settings.status.control()).collect();
        let live = controls.iter().filter(|control| control.state == VolumeState::Live).count();
        let lost = controls.iter().find(|control| control.state == VolumeState::Lost);
        let reason = lost.and_then(|control| Some(control.last_error.as_ref()?.1.as_str()));
        let status = match reason {
            Some(reason) => format!("serving {live} of {all} volumes; waiting for the target: {reason}"),
            None if all == live => "serving".to_owned(),
            None => format!("serving {live} of {all} volumes"),
        };
        tell_systemd(&[NotifyState::Status(&status)]);
    }
}

/// Tells systemd that all threads go on, for as long as they do.
struct Watchdog {
    every: Option<Duration>,
    next: Instant,
    /// How many threads have not answered.
    waiting: usize,
}

impl Watchdog {
    fn new(now: Instant) -> Self {
        let every = sd_notify::watchdog_enabled().map(|limit| limit / 3);
        Self { every, next: now, waiting: 0 }
    }

    fn deadline(&self) -> Option<Instant> {
        self.every.map(|_| self.next)
    }

    fn pong(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            tell_systemd(&[NotifyState::Watchdog]);
        }
    }

    fn tick<'a>(&mut self, now: Instant, threads: impl Iterator<Item = &'a Threads>) {
        let Some(every) = self.every.filter(|_| self.next <= now) else { return };
        self.next = now + every;
        // One that has not answered keeps all the others from being asked: systemd ends the daemon then.
        if self.waiting > 0 {
            return;
        }
        for worker in threads.flat_map(Threads::workers) {
            self.waiting += 1;
            worker.send(ToWorker::Ping);
        }
        if self.waiting == 0 {
            tell_systemd(&[NotifyState::Watchdog]);
        }
    }
}

/// A service manager that does not hear that the daemon is ready ends it after a while: the log must say why.
fn tell_systemd(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!("cannot notify systemd: {error}");
    }
}
