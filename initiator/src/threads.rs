//! A set of reactor threads, and the parts of volumes that are handed to them.

use std::io;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use godwit_reactor::Waker;

use crate::host::{Mailbox, VolumeEvent, VolumeSettings};
use crate::worker::{self, ControlPart, FromWorker, Outbox, ToVolume, ToWorker, VolumeNumber, VolumePart, WorkerConfig};

/// Reactor threads. They end when this is dropped.
pub(crate) struct Threads {
    workers: Vec<Mailbox<ToWorker>>,
    wakers: Vec<Waker>,
    handles: Vec<JoinHandle<()>>,
}

/// Why there are no reactor threads.
#[derive(Debug)]
pub(crate) enum ThreadsError {
    /// The system gives none.
    Start(io::Error),
    /// One could not begin to work: its last report says why.
    Failed,
}

impl Threads {
    /// Starts so many threads, and returns when all of them work. What they say from then on, and why one could not work, goes to `report`.
    pub(crate) fn start(
        count: usize,
        config: &WorkerConfig,
        report: impl Fn(FromWorker) + Clone + Send + 'static,
    ) -> Result<Self, ThreadsError> {
        let (ready, started) = channel();
        let mut inboxes = Vec::new();
        let mut handles = Vec::new();
        for index in 0..count {
            let (inbox, messages) = channel();
            let (report, ready, config) = (report.clone(), ready.clone(), config.clone());
            let outbox: Outbox = Box::new(move |said| {
                // Whoever has ended first does not listen any more.
                match said {
                    FromWorker::Ready(index, waker) => drop(ready.send(Some((index, waker)))),
                    FromWorker::Failed(error) => {
                        report(FromWorker::Failed(error));
                        let _ = ready.send(None);
                    }
                    said => report(said),
                }
            });
            let builder = std::thread::Builder::new().name(format!("reactor-{index}"));
            handles.push(builder.spawn(move || worker::run(index, &config, messages, &outbox)).map_err(ThreadsError::Start)?);
            inboxes.push(inbox);
        }
        let mut wakers = vec![None; count];
        while wakers.iter().any(Option::is_none) {
            match started.recv() {
                Ok(Some((index, waker))) => wakers[index] = Some(waker),
                Ok(None) | Err(_) => return Err(ThreadsError::Failed),
            }
        }
        let wakers: Vec<Waker> = wakers.into_iter().flatten().collect();
        let inboxes = inboxes.into_iter().zip(wakers.clone());
        let workers = inboxes.map(|(inbox, waker)| Mailbox::new(inbox, move || waker.wake())).collect();
        Ok(Self { workers, wakers, handles })
    }

    /// The threads, by number.
    pub(crate) fn workers(&self) -> &[Mailbox<ToWorker>] {
        &self.workers
    }

    /// Gives each thread its part of a volume; the first one has the control.
    pub(crate) fn attach(&self, number: VolumeNumber, settings: &VolumeSettings, io_queues: usize, events: Mailbox<VolumeEvent>) {
        let io_timeout = settings.io_timeout;
        let (tell, news) = channel();
        let to_control = {
            let waker = self.wakers[0].clone();
            Mailbox::new(tell, move || waker.wake())
        };
        let mut queues = Vec::new();
        let mut parts = Vec::new();
        for waker in self.wakers.iter().take(io_queues) {
            let (order, orders) = channel();
            let waker = waker.clone();
            queues.push(Mailbox::new(order, move || waker.wake()));
            parts.push(VolumePart { orders, to_control: to_control.clone(), io_timeout, control: None });
        }
        if let Some(first) = parts.first_mut() {
            first.control = Some(ControlPart { settings: settings.clone(), queues, news, events });
        }
        // The control sends its first orders at once: every part must be on its way before.
        for (worker, part) in self.workers.iter().zip(parts).rev() {
            worker.send(ToWorker::Volume(number, ToVolume::Attach(Box::new(part))));
        }
    }

    /// Tells all threads something about a volume.
    pub(crate) fn tell(&self, number: VolumeNumber, message: impl Fn() -> ToVolume) {
        for worker in &self.workers {
            worker.send(ToWorker::Volume(number, message()));
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        for worker in &self.workers {
            worker.send(ToWorker::Exit);
        }
        for thread in self.handles.drain(..) {
            let _ = thread.join();
        }
    }
}
