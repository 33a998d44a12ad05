//! The daemon: a control thread that opens, binds and waits, and the reactor threads that work.

pub(crate) mod control;
mod memory;
mod rdma;
mod reactor_thread;
mod reload;
mod setup;
mod site;
pub(crate) mod status;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use godwit_config::Target as Configuration;
use godwit_control::{ControlError, metrics};
use godwit_rdma::Transport;
use godwit_reactor::{BackingFile, Incoming, Listener};
use sd_notify::NotifyState;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::backend::Store;
use crate::offer::Order;
use crate::{Handover, Portal, Target};
use rdma::RdmaListener;
use reactor_thread::Thread;
use setup::{Bound, Opened};
use site::Site;

pub use memory::MemoryError;
pub use setup::{SetupError, check, look_at_storage};

/// How long the reactor threads may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// How often the control thread looks whether somebody truncated a backing file.
const SIZE_CHECK: Duration = Duration::from_secs(1);

/// Why the daemon ended other than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// It could not start.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A reactor thread ended.
    #[error("reactor {index} ended: {reason}")]
    Reactor {
        /// Which.
        index: usize,
        /// Why.
        reason: String,
    },
    /// Memory cannot be locked.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The control socket or the metrics that were asked for.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Commands in a backend did not end in time.
    #[error("stopping took more than {} s; what was not answered is not acknowledged", STOP_LIMIT.as_secs())]
    Stuck,
}

/// What the control thread hears.
enum Heard {
    /// Listeners and stores are open, or why not.
    Opened(Box<Result<Opened, SetupError>>),
    /// A reactor thread works.
    Ready,
    /// A reactor thread ended.
    Ended(usize, Result<(), String>),
    /// SIGTERM or SIGINT.
    Signal,
    /// SIGHUP.
    Reload,
}

/// Tells the control thread that a reactor thread has ended, when it is dropped: also by a panic, so that the daemon ends instead of serving on with a part
/// of its threads.
struct End {
    index: usize,
    result: Result<(), String>,
    tell: Sender<Heard>,
}

impl End {
    /// The end of a thread that has just begun.
    fn of(index: usize, tell: Sender<Heard>) -> Self {
        Self { index, result: Err("it panicked".to_owned()), tell }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let result = std::mem::replace(&mut self.result, Ok(()));
        // The control thread may have given up waiting.
        let _ = self.tell.send(Heard::Ended(self.index, result));
    }
}

/// Runs the daemon until a signal ends it. `load` reads the configuration again.
///
/// # Errors
///
/// Why it could not start, or why it ended by itself.
pub fn run(
    configuration: &Configuration,
    load: impl Fn() -> Result<Configuration, String> + Send + Sync + 'static,
) -> Result<(), DaemonError> {
    if configuration.service.lock_memory {
        memory::lock()?;
    }
    let (tell, hear) = mpsc::channel();
    watch_signals(tell.clone())?;
    open(configuration, tell.clone())?;
    let Some(opened) = wait_until_open(&hear)? else { return Ok(()) };
    let listeners = opened.listeners;
    let url = |portal: &Portal| match portal.transport {
        Transport::Iwarp => format!("iwarp://{}", portal.address),
        Transport::Rdma => format!("rdma://{}", portal.address),
    };
    let urls: Vec<_> = opened.target.portals.iter().map(url).collect();
    let target = Arc::new(opened.target);
    let (order, orders): (Vec<_>, Vec<_>) = (0..configuration.reactors.get()).map(|_| mpsc::channel()).unzip();
    let (threads, on_devices) = spawn(configuration, &target, &opened.stores, listeners, orders, &tell)?;
    if !wait_until_ready(&hear, threads.len())? {
        return Ok(());
    }
    let site = Arc::new(Site::new(Arc::clone(&target), urls.clone(), opened.stores, order, configuration.clone(), Box::new(load)));
    let control = control::open(&site, configuration.service.control.clone())?;
    let metrics = configuration.service.metrics.map(|address| serve_metrics(&site, address)).transpose()?;
    for url in urls {
        // Nobody may be listening, and the daemon serves all the same.
        let _ = writeln!(io::stdout(), "listening on {url}");
    }
    tell_systemd(NotifyState::Ready);
    let ended = watch(&hear, &site);
    tell_systemd(NotifyState::Stopping);
    drop((control, metrics));
    drop(on_devices);
    target.drain();
    let already = usize::from(ended.is_err());
    let stopped = wait_until_stopped(&hear, threads, already);
    if already == 0 && stopped.is_ok() {
        site.close_stores();
    }
    ended.and(stopped)
}

/// A service manager that does not hear that the daemon is ready ends it after a while: the log must say why.
fn tell_systemd(state: NotifyState<'_>) {
    tell_systemd_all(&[state]);
}

fn tell_systemd_all(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify systemd: {error}");
    }
}

fn serve_metrics(site: &Arc<Site>, address: SocketAddr) -> Result<metrics::Handle, ControlError> {
    let site = Arc::clone(site);
    let handle = metrics::serve(address, move || status::metrics(&site))?;
    tracing::info!("metrics at http://{}/metrics", handle.local_address());
    Ok(handle)
}

/// Reads the configuration again on a thread of its own, for that may have to wait; tells systemd and the log.
fn reload_aside(site: &Arc<Site>) {
    let site = Arc::clone(site);
    let run = move || {
        // systemd takes the daemon for reloading until it hears that it is ready again.
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell_systemd_all(&[NotifyState::Reloading, now]),
            Err(error) => tracing::warn!("cannot tell systemd that the configuration is read again: {error}"),
        }
        // The log has the outcome.
        let _ = reload_and_tell(&site, false);
        tell_systemd(NotifyState::Ready);
    };
    if let Err(error) = thread::Builder::new().name("reload".into()).spawn(run) {
        tracing::error!("the configuration is not read again: cannot start a thread: {error}");
    }
}

/// Reads the configuration again and writes the outcome to the log.
fn reload_and_tell(site: &Arc<Site>, force: bool) -> Result<Vec<String>, reload::Refusals> {
    let outcome = reload::reload(site, force);
    match &outcome {
        Ok(changes) if changes.is_empty() => tracing::info!("the configuration was read again; nothing has changed"),
        Ok(changes) => changes.iter().for_each(|change| tracing::info!("{change}")),
        Err(refusals) => {
            for refusal in refusals {
                tracing::error!("the configuration stays as it was: {refusal}");
                site.target.journal.error(format!("reload refused: {refusal}"));
            }
        }
    }
    outcome
}

fn watch_signals(tell: Sender<Heard>) -> Result<(), SetupError> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|error| SetupError::Signals { error })?;
    let watch = move || {
        for signal in signals.forever() {
            let heard = if signal == SIGHUP { Heard::Reload } else { Heard::Signal };
            if tell.send(heard).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(watch).map_err(|error| SetupError::Thread { error })?;
    Ok(())
}

/// Opens everything on a thread of its own: a store may have to wait for the lock of a predecessor, and a signal must not.
fn open(configuration: &Configuration, tell: Sender<Heard>) -> Result<(), SetupError> {
    let configuration = configuration.clone();
    let open = move || drop(tell.send(Heard::Opened(Box::new(setup::open(&configuration)))));
    thread::Builder::new().name("opener".into()).spawn(open).map_err(|error| SetupError::Thread { error })?;
    Ok(())
}

/// What was opened; `None` when a signal came first.
fn wait_until_open(hear: &Receiver<Heard>) -> Result<Option<Opened>, SetupError> {
    loop {
        match hear.recv() {
            Ok(Heard::Opened(opened)) => return opened.map(Some),
            // What is being opened was read a moment ago.
            Ok(Heard::Reload) => {}
            _ => return Ok(None),
        }
    }
}

fn spawn(
    configuration: &Configuration,
    target: &Arc<Target>,
    stores: &[Arc<Store<BackingFile>>],
    listeners: Vec<Bound>,
    orders: Vec<Receiver<Order<BackingFile>>>,
    tell: &Sender<Heard>,
) -> Result<(Vec<JoinHandle<()>>, Vec<RdmaListener>), SetupError> {
    let count = usize::from(configuration.reactors.get());
    let layout = setup::pool_layout(configuration, &target.limits, stores.len())?;
    let (senders, receivers): (Vec<_>, Vec<Receiver<Handover<Incoming>>>) = (0..count).map(|_| mpsc::channel()).unzip();
    let mut of_thread: Vec<Vec<(u16, Listener)>> = (0..count).map(|_| Vec::new()).collect();
    let mut on_devices = Vec::new();
    for (portal, listener) in (0..).zip(listeners) {
        match listener {
            Bound::Stream(listener) => of_thread[usize::from(portal) % count].push((portal, listener)),
            Bound::Rdma(listener) => {
                listener.serve(portal, senders.clone(), Arc::clone(target));
                on_devices.push(listener);
            }
        }
    }
    let mut threads = Vec::with_capacity(count);
    for (index, ((incoming, listeners), orders)) in receivers.into_iter().zip(of_thread).zip(orders).enumerate() {
        let thread = Thread {
            index,
            target: Arc::clone(target),
            stores: stores.to_vec(),
            listeners,
            incoming,
            orders,
            peers: senders.clone(),
            pool: layout.clone(),
            poll: configuration.poll.duration(),
        };
        let tell = tell.clone();
        let run = move || {
            let mut end = End::of(index, tell.clone());
            let ready = || drop(tell.send(Heard::Ready));
            end.result = thread.run(ready);
        };
        let spawned = thread::Builder::new().name(format!("reactor{index}")).spawn(run);
        threads.push(spawned.map_err(|error| SetupError::Thread { error })?);
    }
    Ok((threads, on_devices))
}

/// Waits until all reactor threads work. False when a signal came first.
fn wait_until_ready(hear: &Receiver<Heard>, count: usize) -> Result<bool, DaemonError> {
    let mut ready = 0;
    while ready < count {
        match hear.recv() {
            Ok(Heard::Ready) => ready += 1,
            Ok(Heard::Ended(_, Err(reason))) => return Err(SetupError::Reactor { reason }.into()),
            Ok(Heard::Reload) => {}
            Ok(Heard::Ended(_, Ok(())) | Heard::Signal | Heard::Opened(_)) | Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// Waits for a signal, and looks after the stores meanwhile.
fn watch(hear: &Receiver<Heard>, site: &Arc<Site>) -> Result<(), DaemonError> {
    let mut looked = Instant::now();
    loop {
        if looked.elapsed() >= SIZE_CHECK {
            site.look_after_stores();
            looked = Instant::now();
        }
        match hear.recv_timeout(SIZE_CHECK.saturating_sub(looked.elapsed())) {
            Ok(Heard::Signal) => return Ok(()),
            Ok(Heard::Reload) => reload_aside(site),
            Ok(Heard::Ended(index, result)) => {
                let reason = result.err().unwrap_or_else(|| "nobody told it to".to_owned());
                return Err(DaemonError::Reactor { index, reason });
            }
            Ok(Heard::Ready | Heard::Opened(_)) | Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => {}
        }
    }
}

fn wait_until_stopped(hear: &Receiver<Heard>, threads: Vec<JoinHandle<()>>, already: usize) -> Result<(), DaemonError> {
    let deadline = Instant::now() + STOP_LIMIT;
    let mut ended = already;
    while ended < threads.len() {
        match hear.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Heard::Ended(_, Ok(()))) => ended += 1,
            Ok(Heard::Ended(index, Err(reason))) => return Err(DaemonError::Reactor { index, reason }),
            Ok(Heard::Ready | Heard::Signal | Heard::Reload | Heard::Opened(_)) => {}
            Err(_) => return Err(DaemonError::Stuck),
        }
    }
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a reactor thread panicked");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use godwit_config::Arguments;

    use super::*;

    fn site() -> Arc<Site> {
        let export = vec!["memory:1MiB".parse().unwrap()];
        let configuration = Configuration::from_arguments(Arguments { exports: export, ..Arguments::default() }).unwrap();
        let target = Arc::new(Target::new(vec![], vec![], crate::Limits::default(), 1));
        Arc::new(Site::new(target, vec![], vec![], vec![], configuration.clone(), Box::new(move || Ok(configuration.clone()))))
    }

    #[test]
    fn a_thread_that_panics_is_missed() {
        let (tell, hear) = mpsc::channel();
        let panicking = tell.clone();
        let thread = thread::spawn(move || {
            let _end = End::of(3, panicking);
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        let ended = watch(&hear, &site()).unwrap_err();
        assert_eq!(ended.to_string(), "reactor 3 ended: it panicked");
        End::of(4, tell).result = Ok(());
        assert!(matches!(hear.recv(), Ok(Heard::Ended(4, Ok(())))));
    }
}
