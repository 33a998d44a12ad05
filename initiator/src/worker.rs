//! One reactor thread: its loop, its parts of the volumes, and their NBD connections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use godwit_memory::Layout;
use godwit_rdma::{Completion, Fabric, QpId};
use godwit_reactor::{Event, Incoming, Listener, ListenerId, PollBudget, Reactor, SetupError, Token, Uring, UringConfig, Waker};

use crate::bench::generator::{self, Generator};
use crate::bench::load::Job;
use crate::host::{FromQueue, Mailbox, ToQueue, TokenSpace, VolumeControl, VolumeEvent, VolumeSettings, VolumeThread};
use crate::nbd;

/// The top 16 bits of the tokens of NBD listeners ("NL"); the volume's number is the rest.
const LISTENERS: u64 = 0x4e4c << 48;

/// Names a volume among those of a daemon. Numbers come again only after all others were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct VolumeNumber(pub(crate) u16);

/// What a thread is made of.
#[derive(Clone, Debug)]
pub(crate) struct WorkerConfig {
    pub(crate) pool: Layout,
    pub(crate) poll: Duration,
}

/// A thread's part of a volume, before it is there.
pub(crate) struct VolumePart {
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
    /// Something about a volume.
    Volume(VolumeNumber, ToVolume),
    /// Say that you are well.
    Ping,
    /// End the thread.
    Exit,
}

/// From the control thread to a reactor thread, about one volume.
pub(crate) enum ToVolume {
    /// Attach it.
    Attach(Box<VolumePart>),
    /// Serve it to NBD clients.
    Serve(Arc<nbd::Volume>),
    /// Measure it.
    Measure(Box<generator::Setup>),
    /// Do this job of a measurement.
    Job(Job),
    /// Take NBD clients in, and share them out among these threads.
    Listen(Listener, Vec<Mailbox<ToWorker>>),
    /// A client that another thread took in.
    Client(Incoming),
    /// A socket whose other end the kernel has.
    Link(nbd::LinkId, Incoming),
    /// Take no more clients and no more requests; tell when all are answered.
    Drain,
    /// From now on wait no longer than this for a target that is lost.
    LimitLossTimeout(Duration),
    /// Detach it.
    Detach,
    /// Forget it: nobody is served any more, whatever was answered.
    Forget,
}

/// From a reactor thread to the control thread.
pub(crate) enum FromWorker {
    /// Its ring is there.
    Ready(usize, Waker),
    /// It is well.
    Pong,
    /// All NBD requests for a volume are answered.
    Drained(VolumeNumber),
    /// A socket to the kernel has ended.
    LinkEnded(VolumeNumber, nbd::LinkId, nbd::LinkEnd),
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
    volumes: BTreeMap<VolumeNumber, Served>,
    fabric: Fabric,
    reactor: Uring,
    index: usize,
    inbox: Receiver<ToWorker>,
    outbox: &'a Outbox,
    /// Whose the last completion was: the next one is most often its, too.
    recent: VolumeNumber,
    touched: Touched,
    /// Volumes whose target has commands.
    expectant: usize,
}

/// Volumes to which something happened in this turn, each once: there are few.
#[derive(Debug, Default)]
struct Touched(Vec<VolumeNumber>);

impl Touched {
    fn insert(&mut self, number: VolumeNumber) {
        if self.0.last() != Some(&number) && !self.0.contains(&number) {
            self.0.push(number);
        }
    }
}

/// A volume on this thread.
struct Served {
    front: Option<nbd::Front>,
    /// In place of a front end, when the volume is measured.
    generator: Option<Generator>,
    volume: VolumeThread,
    listener: Option<ListenerId>,
    peers: Vec<Mailbox<ToWorker>>,
    next_peer: usize,
    draining: bool,
    /// The target had commands when it was last pumped.
    expectant: bool,
}

impl<'a> Worker<'a> {
    fn new(index: usize, reactor: Uring, inbox: Receiver<ToWorker>, outbox: &'a Outbox) -> Self {
        Self {
            volumes: BTreeMap::new(),
            fabric: Fabric::new(),
            reactor,
            index,
            inbox,
            outbox,
            recent: VolumeNumber(0),
            touched: Touched::default(),
            expectant: 0,
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
                self.on_completion(qp, completion);
            }
            if woken {
                // A message may be for any of them.
                self.volumes.keys().for_each(|&number| self.touched.insert(number));
                while let Ok(message) = self.inbox.try_recv() {
                    match message {
                        ToWorker::Exit => return Ok(()),
                        ToWorker::Ping => (self.outbox)(FromWorker::Pong),
                        ToWorker::Volume(number, message) => self.on_message(number, message)?,
                    }
                }
            }
            self.pump();
            self.reactor.expects(self.expectant > 0);
            self.fabric.flush(&mut self.reactor);
        }
    }

    /// Lets the volumes go on to which something happened: one with nothing to do costs nothing, however many there are.
    fn pump(&mut self) {
        let mut touched = std::mem::take(&mut self.touched.0);
        for number in touched.drain(..) {
            let Some(served) = self.volumes.get_mut(&number) else { continue };
            served.pump(&mut self.reactor, &mut self.fabric);
            let expectant = served.volume.expects_answers();
            self.expectant -= usize::from(std::mem::replace(&mut served.expectant, expectant));
            self.expectant += usize::from(expectant);
            while let Some((link, end)) = served.front.as_mut().and_then(nbd::Front::next_ended_link) {
                (self.outbox)(FromWorker::LinkEnded(number, link, end));
            }
            if served.draining && served.front.as_ref().is_none_or(nbd::Front::is_idle) {
                served.draining = false;
                (self.outbox)(FromWorker::Drained(number));
            }
        }
        // Its room is used again in the next turn.
        self.touched.0 = touched;
    }

    fn on_event(&mut self, event: Event<Incoming>) {
        let Some(token) = event.token() else { return };
        if Fabric::owns(token) {
            return self.fabric.on_event(&mut self.reactor, event);
        }
        let Some(number) = volume_of(token) else { return };
        let Some(served) = self.volumes.get_mut(&number) else { return };
        self.touched.insert(number);
        match event {
            Event::Incoming { incoming, .. } => served.share(number, incoming),
            Event::Timer { token } if TokenSpace::volume_of(token).is_some() => {
                served.volume.on_timer(&mut self.reactor, &mut self.fabric, token);
            }
            event => {
                if let Some(front) = &mut served.front {
                    front.on_event(&mut self.reactor, event);
                }
            }
        }
    }

    /// Gives a completion to whose it is. One of a queue pair that was just destroyed is no one's.
    fn on_completion(&mut self, qp: QpId, mut completion: Completion) {
        let first = self.recent;
        let Self { volumes, reactor, fabric, recent, touched, .. } = self;
        let mut offer = |number, served: &mut Served, completion| {
            served.volume.on_completion(reactor, fabric, qp, completion)?;
            *recent = number;
            touched.insert(number);
            Ok(())
        };
        if let Some(served) = volumes.get_mut(&first) {
            match offer(first, served, completion) {
                Ok(()) => return,
                Err(back) => completion = back,
            }
        }
        for (&number, served) in volumes.iter_mut().filter(|(number, _)| **number != first) {
            match offer(number, served, completion) {
                Ok(()) => return,
                Err(back) => completion = back,
            }
        }
    }

    fn on_message(&mut self, number: VolumeNumber, message: ToVolume) -> Result<(), WorkerError> {
        self.touched.insert(number);
        if let ToVolume::Attach(part) = message {
            self.attach(number, *part);
            return Ok(());
        }
        let Some(served) = self.volumes.get_mut(&number) else { return Ok(()) };
        match message {
            ToVolume::Attach(_) => {}
            ToVolume::Measure(setup) => served.generator = Some(Generator::new(number.0, *setup)),
            ToVolume::Job(job) => {
                if let Some(generator) = &mut served.generator {
                    generator.start(&self.reactor, job);
                }
            }
            ToVolume::Serve(volume) => served.front = Some(nbd::Front::new(&self.reactor, number.0, volume)),
            ToVolume::Listen(listener, peers) => {
                let token = Token(LISTENERS | u64::from(number.0));
                served.peers = peers;
                served.listener = Some(self.reactor.listen(listener, token).map_err(WorkerError::Listen)?);
            }
            ToVolume::Client(incoming) => {
                if let Some(front) = &mut served.front {
                    front.adopt(&mut self.reactor, incoming);
                }
            }
            ToVolume::Link(link, incoming) => {
                if let Some(front) = &mut served.front {
                    front.attach(&mut self.reactor, incoming, link);
                }
            }
            ToVolume::Drain => {
                if let Some(listener) = served.listener.take() {
                    self.reactor.close_listener(listener);
                }
                if let Some(front) = &mut served.front {
                    front.shutdown();
                }
                served.draining = true;
            }
            ToVolume::LimitLossTimeout(limit) => served.volume.limit_loss_timeout(&mut self.reactor, limit),
            ToVolume::Detach => served.volume.stop(&mut self.reactor, &mut self.fabric),
            ToVolume::Forget => self.forget(number),
        }
        Ok(())
    }

    fn attach(&mut self, number: VolumeNumber, part: VolumePart) {
        let VolumePart { orders, to_control, io_timeout, control } = part;
        let tokens = TokenSpace::new(number.0.into());
        let control = control.map(|part| VolumeControl::new(part.settings, tokens, part.queues, part.news, part.events));
        let mut volume = VolumeThread::new(tokens, self.index, control, orders, to_control, io_timeout);
        volume.start(&mut self.reactor, &mut self.fabric);
        let served = Served {
            front: None,
            generator: None,
            volume,
            listener: None,
            peers: Vec::new(),
            next_peer: 0,
            draining: false,
            expectant: false,
        };
        self.volumes.insert(number, served);
    }

    fn forget(&mut self, number: VolumeNumber) {
        let Some(mut served) = self.volumes.remove(&number) else { return };
        self.expectant -= usize::from(served.expectant);
        // The last orders, and what they make of the operations that are left.
        served.pump(&mut self.reactor, &mut self.fabric);
        if let Some(listener) = served.listener {
            self.reactor.close_listener(listener);
        }
        if let Some(front) = served.front {
            front.close(&mut self.reactor);
        }
    }
}

/// The volume whose own a token is.
fn volume_of(token: Token) -> Option<VolumeNumber> {
    #[expect(clippy::cast_possible_truncation, reason = "the field is cut out of the token as it was put together")]
    let listener = (token.0 >> 16 == LISTENERS >> 16).then_some(token.0 as u16);
    let of_volume = || u16::try_from(TokenSpace::volume_of(token)?).ok();
    let number = listener.or_else(|| nbd::Front::number_of(token)).or_else(of_volume).or_else(|| Generator::number_of(token))?;
    Some(VolumeNumber(number))
}

impl Served {
    fn pump(&mut self, reactor: &mut Uring, fabric: &mut Fabric) {
        self.volume.on_messages(reactor, fabric);
        if let (Some(front), Some(queue)) = (&mut self.front, self.volume.queue()) {
            front.pump(reactor, fabric, queue);
        }
        if let (Some(generator), Some(queue)) = (&mut self.generator, self.volume.queue()) {
            generator.pump(reactor, fabric, queue);
        }
        self.volume.pump(reactor, fabric);
    }

    /// Hands a client to the thread whose turn it is.
    fn share(&mut self, number: VolumeNumber, incoming: Incoming) {
        if let Some(peer) = self.peers.get(self.next_peer % self.peers.len().max(1)) {
            peer.send(ToWorker::Volume(number, ToVolume::Client(incoming)));
            self.next_peer = self.next_peer.wrapping_add(1);
        }
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
