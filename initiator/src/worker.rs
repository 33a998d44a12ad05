//! One reactor thread: its loop, its part of the volume, and its NBD connections.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use godwit_memory::Layout;
use godwit_rdma::Fabric;
use godwit_reactor::{Event, Incoming, Listener, ListenerId, PollBudget, Reactor, SetupError, Token, Uring, UringConfig, Waker};

use crate::host::{FromQueue, Mailbox, ToQueue, TokenSpace, VolumeControl, VolumeEvent, VolumeSettings, VolumeThread};
use crate::nbd;

/// The token of the NBD listener: the tokens of everyone else have their own upper bits.
const LISTENER: Token = Token(1);

/// What a thread is made of.
#[derive(Clone, Debug)]
pub(crate) struct WorkerConfig {
    pub(crate) pool: Layout,
    pub(crate) poll: Duration,
}

/// A thread's part of a volume, before it is there.
pub(crate) struct VolumePart {
    pub(crate) tokens: TokenSpace,
    pub(crate) orders: Receiver<ToQueue>,
    pub(crate) to_control: Mailbox<FromQueue>,
    pub(crate) io_timeout: Duration,
    /// Of the thread that has the control.
    pub(crate) control: Option<ControlPart>,
}

/// What a volume's control is made of.
pub(crate) struct ControlPart {
    pub(crate) settings: VolumeSettings,
    pub(crate) queues: Vec<Mailbox<ToQueue>>,
    pub(crate) news: Receiver<FromQueue>,
    pub(crate) events: Mailbox<VolumeEvent>,
}

/// From the control thread to a reactor thread.
pub(crate) enum ToWorker {
    /// Attach a volume.
    Attach(Box<VolumePart>),
    /// Serve the volume to NBD clients.
    Serve(Arc<nbd::Volume>),
    /// Take NBD clients in, and share them out among these threads.
    Listen(Listener, Vec<Mailbox<Self>>),
    /// A client that another thread took in.
    Client(Incoming),
    /// Take no more clients and no more requests; tell when all are answered.
    Drain,
    /// Detach the volume.
    Detach,
    /// End the thread.
    Exit,
}

/// From a reactor thread to the control thread.
pub(crate) enum FromWorker {
    /// Its ring is there.
    Ready(usize, Waker),
    /// All NBD requests are answered.
    Drained,
    /// It cannot go on.
    Failed(WorkerError),
}

/// Why a reactor thread cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    /// It has no ring.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Its ring failed.
    #[error("io_uring failed: {0}")]
    Ring(std::io::Error),
    /// It cannot listen.
    #[error("cannot listen for NBD clients: {0}")]
    Listen(std::io::Error),
    /// It panicked.
    #[error("a reactor thread panicked; its last words stand above")]
    Panicked,
}

/// How a reactor thread talks to the control thread.
pub(crate) type Outbox = Box<dyn Fn(FromWorker) + Send>;

/// Runs a reactor thread until it is told to end.
pub(crate) fn run(index: usize, config: &WorkerConfig, inbox: Receiver<ToWorker>, outbox: &Outbox) {
    let _panic = Panic(outbox);
    let result = Uring::new(&UringConfig { pool: config.pool.clone(), poll: PollBudget(config.poll) })
        .map_err(WorkerError::from)
        .and_then(|reactor| Worker::new(index, reactor, inbox, outbox).run());
    if let Err(error) = result {
        outbox(FromWorker::Failed(error));
    }
}

/// Tells the control thread when the reactor thread panics, so that the daemon ends instead of leaving its clients without answers.
struct Panic<'a>(&'a Outbox);

impl Drop for Panic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)(FromWorker::Failed(WorkerError::Panicked));
        }
    }
}

struct Worker<'a> {
    // Field order is teardown order: what holds buffers and streams goes before the reactor.
    front: Option<nbd::Front>,
    volume: Option<VolumeThread>,
    fabric: Fabric,
    reactor: Uring,
    index: usize,
    inbox: Receiver<ToWorker>,
    outbox: &'a Outbox,
    listener: Option<ListenerId>,
    peers: Vec<Mailbox<ToWorker>>,
    next_peer: usize,
    draining: bool,
}

impl<'a> Worker<'a> {
    fn new(index: usize, reactor: Uring, inbox: Receiver<ToWorker>, outbox: &'a Outbox) -> Self {
        Self {
            front: None,
            volume: None,
            fabric: Fabric::new(),
            reactor,
            index,
            inbox,
            outbox,
            listener: None,
            peers: Vec::new(),
            next_peer: 0,
            draining: false,
        }
    }

    fn run(mut self) -> Result<(), WorkerError> {
        (self.outbox)(FromWorker::Ready(self.index, self.reactor.waker()));
        let mut events = Vec::new();
        loop {
            self.reactor.turn(&mut events).map_err(WorkerError::Ring)?;
            let mut woken = false;
            for event in events.drain(..) {
                woken |= matches!(event, Event::Woken);
                self.on_event(event);
            }
            while let Some((qp, completion)) = self.fabric.poll(&mut self.reactor) {
                if let Some(volume) = &mut self.volume {
                    // One of a queue pair that was just destroyed is no one's.
                    let _ = volume.on_completion(&mut self.reactor, &mut self.fabric, qp, completion);
                }
            }
            if woken {
                while let Ok(message) = self.inbox.try_recv() {
                    if matches!(message, ToWorker::Exit) {
                        return Ok(());
                    }
                    self.on_message(message)?;
                }
            }
            if let Some(volume) = &mut self.volume {
                volume.on_messages(&mut self.reactor, &mut self.fabric);
                if let (Some(front), Some(queue)) = (&mut self.front, volume.queue()) {
                    front.pump(&mut self.reactor, &mut self.fabric, queue);
                }
                volume.pump(&mut self.reactor, &mut self.fabric);
            }
            self.fabric.flush(&mut self.reactor);
            if self.draining && self.front.as_ref().is_none_or(nbd::Front::is_idle) {
                self.draining = false;
                (self.outbox)(FromWorker::Drained);
            }
        }
    }

    fn on_event(&mut self, event: Event<Incoming>) {
        let token = match &event {
            Event::Incoming { .. } => LISTENER,
            Event::Connected { token, .. }
            | Event::Readable { token }
            | Event::Writable { token }
            | Event::File { token, .. }
            | Event::Timer { token } => *token,
            Event::Woken => return,
        };
        if Fabric::owns(token) {
            self.fabric.on_event(&mut self.reactor, event);
        } else if let Event::Incoming { incoming, .. } = event {
            self.share(incoming);
        } else if let Some(front) = self.front.as_mut().filter(|front| front.owns(token)) {
            front.on_event(&mut self.reactor, event);
        } else if let (Event::Timer { token }, Some(volume)) = (event, &mut self.volume) {
            volume.on_timer(&mut self.reactor, &mut self.fabric, token);
        }
    }

    /// Hands a client to the thread whose turn it is.
    fn share(&mut self, incoming: Incoming) {
        if let Some(peer) = self.peers.get(self.next_peer % self.peers.len().max(1)) {
            peer.send(ToWorker::Client(incoming));
            self.next_peer = self.next_peer.wrapping_add(1);
        }
    }

    fn on_message(&mut self, message: ToWorker) -> Result<(), WorkerError> {
        match message {
            ToWorker::Attach(part) => self.attach(*part),
            ToWorker::Serve(volume) => self.front = Some(nbd::Front::new(&self.reactor, 0, volume)),
            ToWorker::Listen(listener, peers) => {
                self.peers = peers;
                self.listener = Some(self.reactor.listen(listener, LISTENER).map_err(WorkerError::Listen)?);
            }
            ToWorker::Client(incoming) => {
                if let Some(front) = &mut self.front {
                    front.adopt(&mut self.reactor, incoming);
                }
            }
            ToWorker::Drain => {
                if let Some(listener) = self.listener.take() {
                    self.reactor.close_listener(listener);
                }
                if let Some(front) = &mut self.front {
                    front.shutdown();
                }
                self.draining = true;
            }
            ToWorker::Detach => {
                if let Some(volume) = &mut self.volume {
                    volume.stop(&mut self.reactor, &mut self.fabric);
                }
            }
            // Ends the loop before it comes here.
            ToWorker::Exit => {}
        }
        Ok(())
    }

    fn attach(&mut self, part: VolumePart) {
        let VolumePart { tokens, orders, to_control, io_timeout, control } = part;
        let control = control.map(|part| VolumeControl::new(part.settings, tokens, part.queues, part.news, part.events));
        let mut volume = VolumeThread::new(tokens, self.index, control, orders, to_control, io_timeout);
        volume.start(&mut self.reactor, &mut self.fabric);
        self.volume = Some(volume);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn only_a_thread_that_panics_says_so() {
        let (tell, hear) = channel();
        let end = |panics: bool| {
            let tell = tell.clone();
            let outbox: Outbox = Box::new(move |report| drop(tell.send(report)));
            let thread = std::thread::spawn(move || {
                let _panic = Panic(&outbox);
                assert!(!panics, "on purpose");
            });
            let _ = thread.join();
        };
        end(false);
        assert!(hear.try_recv().is_err());
        end(true);
        assert!(matches!(hear.try_recv(), Ok(FromWorker::Failed(WorkerError::Panicked))));
    }
}
