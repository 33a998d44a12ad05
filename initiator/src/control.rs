//! The control thread of a daemon that serves one volume: starts the reactor threads, brings the export up, and takes everything down in order.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use godwit_config::{NbdEndpoint, NbdMode};
use godwit_reactor::Waker;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{info, warn};

use crate::block::Geometry;
use crate::host::{HostError, Mailbox, TokenSpace, VolumeEvent, VolumeInfo, VolumeSettings, in_words};
use crate::nbd;
use crate::socket::{NbdSocket, SocketError};
use crate::worker::{self, ControlPart, FromWorker, Outbox, ToWorker, VolumePart, WorkerConfig, WorkerError};

/// How long stopping may take: a little less than the 5 s that users are told.
const STOP: Duration = Duration::from_millis(4800);

/// What of that is kept for detaching the volume, however long NBD requests take to be answered: its queues leave, its controller is shut down.
const DETACH: Duration = Duration::from_millis(800);

/// Within this time a second signal is the first one once more: timeout(1), sudo and the like send it to the process and to its group.
const ECHO: Duration = Duration::from_secs(1);

/// What the daemon serves, and how.
pub(crate) struct Service {
    pub(crate) volume: VolumeSettings,
    pub(crate) io_queues: usize,
    pub(crate) reactors: usize,
    pub(crate) worker: WorkerConfig,
    pub(crate) nbd: NbdEndpoint,
    pub(crate) nbd_mode: NbdMode,
    pub(crate) export_name: String,
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
    /// NBD clients could not use the volume.
    #[error("the volume cannot be served through NBD: {0}")]
    Export(#[from] godwit_nbd::InvalidExport),
    /// Signals cannot be caught, or threads not started.
    #[error("cannot start: {}", in_words(.0))]
    Start(std::io::Error),
    /// A second signal came while the first was obeyed.
    #[error("stopped at once by a second signal")]
    Impatient,
}

/// What the control thread hears.
enum Notice {
    Worker(FromWorker),
    Volume(VolumeEvent),
    Signal,
}

/// Serves a volume until a signal comes. `ready` is called once, with the export's URI.
pub(crate) fn serve(service: &Service, ready: impl FnOnce(&str, &VolumeInfo)) -> Result<(), ServiceError> {
    let (sender, notices) = channel();
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(ServiceError::Start)?;
    let signal_handle = signals.handle();
    let on_signal = sender.clone();
    let signal_thread = std::thread::spawn(move || {
        let mut first: Option<Instant> = None;
        for _ in signals.forever() {
            if first.is_some_and(|first| first.elapsed() < ECHO) {
                continue;
            }
            first.get_or_insert_with(Instant::now);
            if on_signal.send(Notice::Signal).is_err() {
                return;
            }
        }
    });
    let mut daemon =
        Daemon { service, notices, sender, threads: Vec::new(), workers: Vec::new(), wakers: Vec::new(), export: None, socket: None };
    let result = daemon.run(ready);
    daemon.end();
    signal_handle.close();
    let _ = signal_thread.join();
    result
}

struct Daemon<'a> {
    service: &'a Service,
    notices: Receiver<Notice>,
    sender: Sender<Notice>,
    threads: Vec<JoinHandle<()>>,
    workers: Vec<Mailbox<ToWorker>>,
    wakers: Vec<Waker>,
    export: Option<Arc<nbd::Volume>>,
    socket: Option<NbdSocket>,
}

impl Daemon<'_> {
    fn run(&mut self, ready: impl FnOnce(&str, &VolumeInfo)) -> Result<(), ServiceError> {
        if self.start_workers()? {
            return Ok(());
        }
        self.attach();
        let mut ready = Some(ready);
        let gone = loop {
            match self.notices.recv() {
                Ok(Notice::Volume(VolumeEvent::Up(info))) => {
                    self.export(&info)?;
                    if let (Some(ready), Some(socket)) = (ready.take(), &self.socket) {
                        ready(&socket.uri(&self.service.export_name), &info);
                    }
                    tell_systemd(&[NotifyState::Ready, NotifyState::Status("serving")]);
                }
                Ok(Notice::Volume(VolumeEvent::Lost(reason))) => {
                    tell_systemd(&[NotifyState::Status(&format!("waiting for the target: {reason}"))]);
                }
                Ok(Notice::Volume(VolumeEvent::Restored)) => tell_systemd(&[NotifyState::Status("serving")]),
                Ok(Notice::Volume(VolumeEvent::Resized(geometry))) => self.resize(&geometry),
                Ok(Notice::Volume(VolumeEvent::Failed(error))) => return Err(error.into()),
                Ok(Notice::Volume(VolumeEvent::Gone(error))) => break Some(error),
                Ok(Notice::Volume(VolumeEvent::Stopped) | Notice::Signal) | Err(_) => break None,
                Ok(Notice::Worker(FromWorker::Failed(error))) => return Err(error.into()),
                Ok(Notice::Worker(FromWorker::Ready(..) | FromWorker::Drained)) => {}
            }
        };
        info!("stopping");
        tell_systemd(&[NotifyState::Stopping]);
        let deadline = Instant::now() + STOP;
        self.drain(deadline - DETACH)?;
        self.detach(deadline)?;
        gone.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Starts the threads. True when a signal came meanwhile.
    fn start_workers(&mut self) -> Result<bool, ServiceError> {
        let mut inboxes = Vec::new();
        for index in 0..self.service.reactors {
            let (inbox, messages) = channel();
            let sender = self.sender.clone();
            let config = self.service.worker.clone();
            // The control thread may have ended first; then nobody listens.
            let outbox: Outbox = Box::new(move |report| drop(sender.send(Notice::Worker(report))));
            let builder = std::thread::Builder::new().name(format!("reactor-{index}"));
            let thread = builder.spawn(move || worker::run(index, &config, messages, &outbox)).map_err(ServiceError::Start)?;
            self.threads.push(thread);
            inboxes.push(inbox);
        }
        let mut stop = false;
        let mut wakers = vec![None; inboxes.len()];
        while wakers.iter().any(Option::is_none) {
            match self.notices.recv() {
                Ok(Notice::Worker(FromWorker::Ready(index, waker))) => wakers[index] = Some(waker),
                Ok(Notice::Worker(FromWorker::Failed(error))) => return Err(error.into()),
                Ok(Notice::Signal) => stop = true,
                Ok(_) | Err(_) => {}
            }
        }
        self.wakers = wakers.into_iter().flatten().collect();
        let inboxes = inboxes.into_iter().zip(self.wakers.clone());
        self.workers = inboxes.map(|(inbox, waker)| Mailbox::new(inbox, move || waker.wake())).collect();
        Ok(stop)
    }

    /// Gives each thread its part of the volume; the first one has the control.
    fn attach(&self) {
        let tokens = TokenSpace::new(0);
        let settings = self.service.volume.clone();
        let io_timeout = settings.io_timeout;
        let (tell, news) = channel();
        let to_control = {
            let waker = self.wakers[0].clone();
            Mailbox::new(tell, move || waker.wake())
        };
        let sender = self.sender.clone();
        let events = Mailbox::with(move |event| drop(sender.send(Notice::Volume(event))));
        let mut queues = Vec::new();
        let mut parts = Vec::new();
        for waker in self.wakers.iter().take(self.service.io_queues) {
            let (order, orders) = channel();
            let waker = waker.clone();
            queues.push(Mailbox::new(order, move || waker.wake()));
            parts.push(VolumePart { tokens, orders, to_control: to_control.clone(), io_timeout, control: None });
        }
        if let Some(first) = parts.first_mut() {
            first.control = Some(ControlPart { settings, queues, news, events });
        }
        // The control sends its first orders at once: every part must be on its way before.
        for (worker, part) in self.workers.iter().zip(parts).rev() {
            worker.send(ToWorker::Attach(Box::new(part)));
        }
    }

    /// The volume is up: serve it.
    fn export(&mut self, info: &VolumeInfo) -> Result<(), ServiceError> {
        let Service { nbd, nbd_mode, export_name, volume, .. } = self.service;
        let export = nbd::Volume::new(export_name, &volume.name, &info.geometry, nbd::Limits::default())?;
        let (socket, listener) = NbdSocket::listen(nbd, *nbd_mode)?;
        let serving = &self.workers[..info.io_queues];
        for worker in serving {
            worker.send(ToWorker::Serve(Arc::clone(&export)));
        }
        self.workers[0].send(ToWorker::Listen(listener, serving.to_vec()));
        self.export = Some(export);
        self.socket = Some(socket);
        Ok(())
    }

    fn resize(&self, geometry: &Geometry) {
        if let Some(export) = &self.export
            && let Err(error) = export.update(geometry)
        {
            warn!("NBD clients cannot see the new size: {error}");
        }
    }

    /// Waits for the answers to what NBD clients have asked, for a while.
    fn drain(&self, deadline: Instant) -> Result<(), ServiceError> {
        for worker in &self.workers {
            worker.send(ToWorker::Drain);
        }
        let mut busy = self.workers.len();
        while busy > 0 {
            match self.next_before(deadline)? {
                Some(Notice::Worker(FromWorker::Drained)) => busy -= 1,
                Some(_) => {}
                None => {
                    warn!("some NBD requests were not answered in time");
                    break;
                }
            }
        }
        Ok(())
    }

    fn detach(&self, deadline: Instant) -> Result<(), ServiceError> {
        if let Some(first) = self.workers.first() {
            first.send(ToWorker::Detach);
        }
        while let Some(notice) = self.next_before(deadline)? {
            if let Notice::Volume(VolumeEvent::Stopped) = notice {
                return Ok(());
            }
        }
        warn!("the target did not take note of the end in time");
        Ok(())
    }

    /// The next notice, or `None` at the deadline.
    fn next_before(&self, deadline: Instant) -> Result<Option<Notice>, ServiceError> {
        match self.notices.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Notice::Signal) => Err(ServiceError::Impatient),
            Ok(Notice::Worker(FromWorker::Failed(error))) => Err(error.into()),
            Ok(notice) => Ok(Some(notice)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
        }
    }

    /// Ends the threads.
    fn end(self) {
        for worker in &self.workers {
            worker.send(ToWorker::Exit);
        }
        // Without their mailboxes those that were still starting could not be told to end.
        if self.workers.len() == self.threads.len() {
            for thread in self.threads {
                let _ = thread.join();
            }
        }
    }
}

fn tell_systemd(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!("cannot notify systemd: {error}");
    }
}
