//! What is measured: a volume by the host that serves volumes, or an NBD export. Each has its reactor threads, with a generator on each.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use godwit_config::NbdUri;
use godwit_reactor::{Incoming, UringConfig, Waker};

use super::generator::{Report, Setup};
use super::load::Job;
use super::nbd::{self, Connection, Export, NbdError, Order};
use crate::block::Geometry;
use crate::host::{HostError, Mailbox, VolumeEvent, VolumeInfo, VolumeSettings};
use crate::threads::{Threads, ThreadsError};
use crate::worker::{FromWorker, ToVolume, ToWorker, VolumeNumber, WorkerConfig, WorkerError};

/// The one volume.
const NUMBER: VolumeNumber = VolumeNumber(0);

/// How long a target may take to hear of the end.
const DETACH: Duration = Duration::from_secs(5);

/// Something that can be measured.
pub(crate) trait Subject {
    /// Its size and limits.
    fn geometry(&self) -> Geometry;

    /// How many generators it takes.
    fn queues(&self) -> usize;

    /// Requests that each takes at a time, if that is limited.
    fn queue_depth(&self) -> Option<usize>;

    /// Where its generators report.
    fn reports(&self) -> Mailbox<Report>;

    /// Puts the generators in place, one a queue.
    fn put(&mut self, setups: Vec<Setup>) -> Result<(), String>;

    /// Gives all generators a job.
    fn start(&self, job: Job);

    /// The next report of a generator, or why there will be none; `None` when there is none for so long.
    fn next_report(&mut self, limit: Duration) -> Option<Result<Report, String>>;

    /// Ends it in an orderly way.
    fn end(self: Box<Self>);
}

/// A volume that is attached.
pub(crate) struct Volume {
    threads: Threads,
    sender: Sender<Notice>,
    notices: Receiver<Notice>,
    info: VolumeInfo,
    lost: Option<HostError>,
}

/// What is heard of a volume.
pub(crate) enum Notice {
    Worker(FromWorker),
    Volume(VolumeEvent),
    Report(Report),
}

/// Why a volume could not be attached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Worker(#[from] WorkerError),
    #[error("cannot start: {}", crate::host::in_words(.0))]
    Start(std::io::Error),
    #[error("the reactor threads have ended before they were ready; their last words stand above")]
    Threads,
    #[error("interrupted")]
    Interrupted,
}

impl Volume {
    /// Attaches a volume with so many I/O queues, each on a thread of its own. `goes_on` is asked now and then.
    pub(crate) fn attach(
        settings: &VolumeSettings,
        io_queues: usize,
        config: &WorkerConfig,
        goes_on: impl Fn() -> bool,
    ) -> Result<Self, AttachError> {
        let (sender, notices) = channel();
        let failed = || {
            notices.try_iter().find_map(|notice| if let Notice::Worker(FromWorker::Failed(error)) = notice { Some(error) } else { None })
        };
        let report = {
            let sender = sender.clone();
            move |report| drop(sender.send(Notice::Worker(report)))
        };
        let threads = Threads::start(io_queues, config, report).map_err(|error| match error {
            ThreadsError::Start(error) => AttachError::Start(error),
            ThreadsError::Failed => failed().map_or(AttachError::Threads, AttachError::Worker),
        })?;
        let events = sender.clone();
        threads.attach(NUMBER, settings, io_queues, Mailbox::with(move |event| drop(events.send(Notice::Volume(event)))));
        loop {
            if !goes_on() {
                return Err(AttachError::Interrupted);
            }
            match notices.recv_timeout(Duration::from_millis(100)) {
                Ok(Notice::Volume(VolumeEvent::Up(info))) => return Ok(Self { threads, sender, notices, info: *info, lost: None }),
                Ok(Notice::Volume(VolumeEvent::Failed(error) | VolumeEvent::Gone(error))) => return Err(error.into()),
                Ok(Notice::Worker(FromWorker::Failed(error))) => return Err(error.into()),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(AttachError::Threads),
            }
        }
    }

    /// What it is.
    pub(crate) fn info(&self) -> &VolumeInfo {
        &self.info
    }

    fn tell(&self, queue: usize, message: ToVolume) {
        self.threads.workers()[queue].send(ToWorker::Volume(NUMBER, message));
    }
}

impl Subject for Volume {
    fn geometry(&self) -> Geometry {
        self.info.geometry
    }

    fn queues(&self) -> usize {
        self.info.io_queues.min(self.threads.workers().len())
    }

    fn queue_depth(&self) -> Option<usize> {
        Some(self.info.queue_depth)
    }

    fn reports(&self) -> Mailbox<Report> {
        let sender = self.sender.clone();
        Mailbox::with(move |report| drop(sender.send(Notice::Report(report))))
    }

    fn put(&mut self, setups: Vec<Setup>) -> Result<(), String> {
        for (queue, setup) in setups.into_iter().enumerate() {
            self.tell(queue, ToVolume::Measure(Box::new(setup)));
        }
        Ok(())
    }

    fn start(&self, job: Job) {
        for queue in 0..self.queues() {
            self.tell(queue, ToVolume::Job(job));
        }
    }

    fn next_report(&mut self, limit: Duration) -> Option<Result<Report, String>> {
        match self.notices.recv_timeout(limit).ok()? {
            // Requests fail then: this is why.
            Notice::Volume(VolumeEvent::Lost(error)) => {
                self.lost = Some(error);
                None
            }
            Notice::Volume(VolumeEvent::Gone(error)) => Some(Err(self.lost.take().unwrap_or(error).to_string())),
            Notice::Worker(FromWorker::Failed(error)) => Some(Err(error.to_string())),
            Notice::Report(Report { result: Err(_), .. }) if self.lost.is_some() => self.lost.take().map(|error| Err(error.to_string())),
            Notice::Report(report) => Some(Ok(report)),
            Notice::Volume(_) | Notice::Worker(_) => None,
        }
    }

    fn end(self: Box<Self>) {
        self.tell(0, ToVolume::Detach);
        let deadline = Instant::now() + DETACH;
        while let Ok(notice) = self.notices.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            if matches!(notice, Notice::Volume(VolumeEvent::Stopped | VolumeEvent::Gone(_)) | Notice::Worker(FromWorker::Failed(_))) {
                return;
            }
        }
    }
}

/// Tells when a reactor thread panics, which says nothing else to whoever waits for it.
struct Panic<'a>(&'a Sender<Result<Report, String>>);

impl Drop for Panic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.send(Err(WorkerError::Panicked.to_string()));
        }
    }
}

/// An NBD export, with a connection for each generator.
pub(crate) struct NbdExport {
    connections: Vec<Incoming>,
    export: Export,
    config: UringConfig,
    depth: usize,
    threads: Vec<(Sender<Order>, Waker, JoinHandle<()>)>,
    sender: Sender<Result<Report, String>>,
    heard: Receiver<Result<Report, String>>,
}

impl NbdExport {
    /// Connects so many times; each connection is to take `depth` requests at a time.
    pub(crate) fn connect(uri: &NbdUri, connections: usize, depth: usize, config: UringConfig) -> Result<Self, NbdError> {
        let connected = (0..connections).map(|_| nbd::connect(uri)).collect::<Result<Vec<_>, _>>()?;
        let export = connected.first().map(|(_, export)| *export).ok_or_else(|| NbdError::NoSize(uri.to_string()))?;
        if connected.iter().any(|(_, other)| *other != export) {
            return Err(NbdError::Differs(uri.to_string()));
        }
        let (sender, heard) = channel();
        let connections = connected.into_iter().map(|(incoming, _)| incoming).collect();
        Ok(Self { connections, export, config, depth, threads: Vec::new(), sender, heard })
    }
}

impl Subject for NbdExport {
    fn geometry(&self) -> Geometry {
        self.export.geometry()
    }

    fn queues(&self) -> usize {
        self.connections.len().max(self.threads.len())
    }

    fn queue_depth(&self) -> Option<usize> {
        None
    }

    fn reports(&self) -> Mailbox<Report> {
        let sender = self.sender.clone();
        Mailbox::with(move |report| drop(sender.send(Ok(report))))
    }

    fn put(&mut self, setups: Vec<Setup>) -> Result<(), String> {
        let geometry = self.geometry();
        for (incoming, generator) in self.connections.drain(..).zip(setups) {
            let connection = Connection { incoming, geometry, depth: self.depth, generator };
            let (config, failures) = (self.config.clone(), self.sender.clone());
            let (order, orders) = channel();
            let (tell, ready) = channel();
            let builder = std::thread::Builder::new().name(format!("reactor-{}", self.threads.len()));
            let work = move || {
                let _panic = Panic(&failures);
                let result = nbd::run(&config, connection, &orders, |waker| drop(tell.send(waker)));
                if let Err(failure) = result {
                    let _ = failures.send(Err(failure));
                }
            };
            let handle = builder.spawn(work).map_err(|error| crate::host::in_words(&error))?;
            match ready.recv() {
                Ok(waker) => self.threads.push((order, waker, handle)),
                Err(_) => {
                    let failure = self.heard.recv_timeout(Duration::from_secs(1));
                    return Err(match failure {
                        Ok(Err(failure)) => failure,
                        _ => "a reactor thread has ended before it was ready; its last words stand above".to_owned(),
                    });
                }
            }
        }
        Ok(())
    }

    fn start(&self, job: Job) {
        for (order, waker, _) in &self.threads {
            // One that has ended has said why.
            let _ = order.send(Order::Job(job));
            waker.wake();
        }
    }

    fn next_report(&mut self, limit: Duration) -> Option<Result<Report, String>> {
        self.heard.recv_timeout(limit).ok()
    }

    fn end(self: Box<Self>) {
        for (order, waker, handle) in self.threads {
            let _ = order.send(Order::Exit);
            waker.wake();
            let _ = handle.join();
        }
    }
}
