//! The engine of one reactor thread: its connections and their queues, driven by events and completions.
//!
//! The loop that drives it is, for each turn:
//!
//! ```text
//! reactor.turn(&mut events);
//! for event in events { if Fabric::owns(token) { fabric.on_event(..) } else { worker.on_event(..) } }
//! while let Some((qp, completion)) = fabric.poll(..) { worker.on_completion(..) }
//! worker.before_flush(..); fabric.flush(..); worker.after_flush(..);
//! ```

mod admin;
mod connection;
mod io;
mod memory;
mod orders;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::io as std_io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use godwit_memory::{Buffer, Reservation};
use godwit_nvme::{Cqe, Status};
use godwit_rdma::{Completion, Fabric, Incoming, QpId, WorkId};
use godwit_reactor::{Event, FileDone, Reactor, Time, Token};
use slab::Slab;

use crate::association::{AssociationId, Ending, Waiter};
use crate::backend::{Attached, Job, Operation, Progress, Store};
use crate::counters::StoreCounters;
use crate::error_log::Failure;
use crate::limits::{ADMIN_BUFFERS, DRAIN_GRACE, MAX_TRANSFER_BYTES, PEER_PATIENCE, RESERVATION_IDLE, WATCH_INTERVAL};
use crate::mailbox::Notice;
use crate::offer::{Offer, Order};
use crate::queue::{Phase, Purpose, Queue, QueueKey};
use crate::request::Refusal;
use crate::subsystem::Target;
use connection::Attempt;

/// The id of every response's Send; an RDMA Read has that of its slot.
const RESPONSE: WorkId = WorkId(u64::MAX);

/// Size of the buffers for the data of admin commands.
const ADMIN_DATA_BYTES: usize = 4096;

/// Hashes the id of a queue pair, which is two small numbers of our own.
#[derive(Default)]
struct QpHasher(u64);

impl Hasher for QpHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(byte.into());
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0.rotate_left(29) ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// A connection on its way to the worker that shall have it, and the portal that it came by.
pub type Handover<I> = (u16, Incoming<I>);

/// What a worker works with; lent to it for each call.
pub(crate) struct Context<'a, R> {
    pub(crate) reactor: &'a mut R,
    pub(crate) fabric: &'a mut Fabric,
}

/// Why a worker cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Not even two of the largest transfers fit into memory.
    #[error("the memory of a reactor is too small for its stores and two transfers of {MAX_TRANSFER_BYTES} bytes; raise `memory`")]
    Memory,
    /// A store cannot be used by the reactor.
    #[error("cannot use {store}: {error}")]
    Store {
        /// Which.
        store: String,
        /// Why.
        error: std_io::Error,
    },
}

/// Where stopping has come to.
enum Stopping {
    /// Not begun.
    No,
    /// Commands in a backend are awaited.
    Commands,
    /// The flushes of all stores are awaited: how many.
    Flushes(usize, Vec<Option<Job>>),
    /// The last responses are on their way, until then.
    Farewell(Time),
    /// Done.
    Done,
}

/// A store as this worker knows it.
struct Place {
    attached: Attached,
    counters: Arc<StoreCounters>,
}

/// The place of a store that a command names: it is let go only after the last of these.
fn place(places: &[Option<Place>], store: usize) -> &Place {
    places[store].as_ref().expect("a store that a command names is attached")
}

/// The engine of one reactor thread.
pub struct Worker<R: Reactor> {
    index: usize,
    target: Arc<Target>,
    /// What is offered: read for each command, exchanged by an order.
    offer: Arc<Offer>,
    orders: Option<Receiver<Order<R::File>>>,
    /// By store.
    places: Vec<Option<Place>>,
    /// Buffers for stores that will be attached.
    spare: Vec<Buffer>,
    /// Stores to be let go, and whom to tell.
    leaving: Vec<(usize, Sender<Result<(), String>>)>,
    queues: Slab<Queue>,
    by_qp: HashMap<QpId, usize, BuildHasherDefault<QpHasher>>,
    next_generation: u32,
    /// Commands that wait for memory: see the module `memory`.
    waiting: VecDeque<(QueueKey, u16)>,
    /// The reservation that the first of them is being given, as far as it has come.
    building: Option<Reservation>,
    /// One of the two buffers that the first of them needs, if it is a Compare.
    kept: Option<Buffer>,
    /// Buffers for the data of admin commands.
    answers: Reservation,
    /// Admin commands whose answers wait for larger buffers.
    waiting_answers: VecDeque<(QueueKey, u16)>,
    /// Largest depth of a queue that needs a reservation, and buffers that queues have for themselves: see `memory`.
    largest_depth: usize,
    own_buffers: usize,
    reserved_queues: usize,
    housekeeping: bool,
    watching: bool,
    incoming: Receiver<Handover<R::Incoming>>,
    peers: Vec<Sender<Handover<R::Incoming>>>,
    next_peer: usize,
    listeners: Vec<godwit_reactor::ListenerId>,
    /// Admin Connects that wait until this worker has looked, and the numbers of their questions: see the module `association`.
    asked_to_look: Vec<(Waiter, u32)>,
    stopping: Stopping,
}

impl<R: Reactor> Worker<R>
where
    R::File: Clone,
{
    /// The worker `index` of a target. `stores` are those that the namespaces name; `incoming` and `peers` hand connections from the workers that
    /// listen to those that adopt them.
    ///
    /// # Errors
    ///
    /// When its memory is too small, or a store cannot be used.
    pub fn new(
        reactor: &mut R,
        index: usize,
        target: Arc<Target>,
        stores: &[Arc<Store<R::File>>],
        incoming: Receiver<Handover<R::Incoming>>,
        peers: Vec<Sender<Handover<R::Incoming>>>,
    ) -> Result<Self, WorkerError> {
        let attach = |(number, store): (usize, &Arc<Store<R::File>>)| {
            let attached =
                Attached::new(reactor, store).map_err(|error| WorkerError::Store { store: store.description().to_owned(), error })?;
            // A store that no namespace names is counted for nobody.
            let counters = target.counters(number).unwrap_or_else(|| Arc::new(StoreCounters::new(index + 1)));
            Ok(Some(Place { attached, counters }))
        };
        let places = stores.iter().enumerate().map(attach).collect::<Result<_, _>>()?;
        let pool = reactor.pool();
        let answers = Reservation::new(pool, ADMIN_DATA_BYTES, ADMIN_BUFFERS).ok_or(WorkerError::Memory)?;
        if pool.spare(MAX_TRANSFER_BYTES) < 2 {
            return Err(WorkerError::Memory);
        }
        Ok(Self {
            index,
            offer: target.offer(),
            target,
            orders: None,
            places,
            spare: Vec::new(),
            leaving: Vec::new(),
            queues: Slab::new(),
            by_qp: HashMap::default(),
            next_generation: 0,
            waiting: VecDeque::new(),
            building: None,
            kept: None,
            answers,
            waiting_answers: VecDeque::new(),
            largest_depth: 0,
            own_buffers: 0,
            reserved_queues: 0,
            housekeeping: false,
            watching: false,
            incoming,
            peers,
            next_peer: index,
            listeners: Vec::new(),
            asked_to_look: Vec::new(),
            stopping: Stopping::No,
        })
    }
}

impl<R: Reactor> Worker<R> {
    /// Starts to listen for the portal of this index.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn listen(&mut self, reactor: &mut R, listener: R::Listener, portal: u16) -> std_io::Result<()> {
        let listener = reactor.listen(listener, Purpose::Listener(portal).token())?;
        self.listeners.push(listener);
        Ok(())
    }

    /// Whether the worker has been told to stop, and has: all commands ended, all stores flushed.
    pub fn is_done(&self) -> bool {
        matches!(self.stopping, Stopping::Done)
    }

    fn is_stopping(&self) -> bool {
        !matches!(self.stopping, Stopping::No)
    }

    /// Handles an event whose token is not the fabric's.
    pub fn on_event(&mut self, reactor: &mut R, fabric: &mut Fabric, event: Event<R::Incoming>) {
        let mut ctx = Context { reactor, fabric };
        match event {
            Event::Incoming { token, incoming } => {
                if let Some(Purpose::Listener(portal)) = Purpose::of(token) {
                    self.hand_over(&mut ctx, portal, Incoming::Stream(incoming));
                }
            }
            Event::File { token, done } => self.on_file(&mut ctx, token, done),
            Event::Timer { token } => self.on_timer(&mut ctx, token),
            Event::Woken => {
                while let Ok((portal, incoming)) = self.incoming.try_recv() {
                    self.adopt(&mut ctx, portal, incoming);
                }
                self.obey(&mut ctx);
            }
            // Streams are the fabric's.
            Event::Connected { .. } | Event::Readable { .. } | Event::Writable { .. } => {}
        }
        self.serve_waiting(&mut ctx);
    }

    /// Handles a completion of a queue pair.
    pub fn on_completion(&mut self, reactor: &mut R, fabric: &mut Fabric, qp: QpId, completion: Completion) {
        let Some(&index) = self.by_qp.get(&qp) else { return };
        let mut ctx = Context { reactor, fabric };
        match completion {
            Completion::Received { header, data, .. } => self.on_capsule(&mut ctx, index, header.as_bytes(), data),
            Completion::SendDone { count, .. } => self.queues[index].sent(ctx.reactor.now(), count),
            Completion::Flushed { id: RESPONSE, .. } => self.queues[index].sent(ctx.reactor.now(), 1),
            Completion::ReadDone { id, data } => self.on_fetched(&mut ctx, index, id, data),
            Completion::Flushed { id, data } => {
                drop(data);
                self.on_read_lost(&ctx, index, id);
            }
            Completion::ConnectRequest { private_data, peer_inbound_reads } => {
                self.on_connect_request(&mut ctx, index, &private_data.0, peer_inbound_reads);
            }
            Completion::Disconnected { reason } => {
                tracing::debug!(peer = self.queues[index].peer, qid = self.queues[index].qid.get(), "connection ended: {reason}");
                self.close(&mut ctx, index);
            }
            // Only connections that we open ourselves report these.
            Completion::Established { .. } | Completion::Rejected { .. } => {}
        }
        self.serve_waiting(&mut ctx);
    }

    /// To be called before each flush of the fabric.
    pub fn before_flush(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        let mut ctx = Context { reactor, fabric };
        self.tell_who_asked();
        if !self.target.mailboxes[self.index].is_empty() {
            for notice in self.target.mailboxes[self.index].take() {
                self.on_notice(&mut ctx, notice);
            }
        }
        self.serve_waiting(&mut ctx);
        self.relieve_streams(&mut ctx);
        self.go_on_stopping(&mut ctx);
    }

    /// To be called after each flush of the fabric, before anything else takes the buffers that it freed.
    pub fn after_flush(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        let mut ctx = Context { reactor, fabric };
        self.refill_answers(&ctx);
        self.serve_waiting(&mut ctx);
    }

    fn hand_over(&mut self, ctx: &mut Context<'_, R>, portal: u16, incoming: Incoming<R::Incoming>) {
        if self.is_stopping() {
            return;
        }
        self.next_peer = (self.next_peer + 1) % self.peers.len().max(1);
        let peer = self.next_peer;
        if peer == self.index || peer >= self.peers.len() {
            self.adopt(ctx, portal, incoming);
        } else if self.peers[peer].send((portal, incoming)).is_ok() {
            self.target.mailboxes[peer].wake();
        }
    }

    fn on_file(&mut self, ctx: &mut Context<'_, R>, token: Token, done: FileDone) {
        match Purpose::of(token) {
            Some(Purpose::Slot(key, slot)) => {
                let Some(index) = self.index_of(key) else { return };
                self.on_backend(ctx, index, slot, done, token);
            }
            Some(Purpose::FinalFlush(store)) => self.on_final_flush(ctx, store, done, token),
            _ => {}
        }
    }

    fn on_timer(&mut self, ctx: &mut Context<'_, R>, token: Token) {
        match Purpose::of(token) {
            Some(Purpose::Timer(key)) => {
                if let Some(index) = self.index_of(key) {
                    self.queues[index].timer = None;
                    self.on_queue_timer(ctx, index);
                }
            }
            Some(Purpose::Housekeeping) => {
                self.housekeeping = false;
                self.release_idle_reservations(ctx, RESERVATION_IDLE);
            }
            Some(Purpose::Watch) => {
                self.watching = false;
                self.end_stuck(ctx);
            }
            Some(Purpose::Detach) => self.let_go(ctx),
            _ => {}
        }
    }

    /// Ends connections whose hosts hold memory and do nothing, and looks again later.
    fn end_stuck(&mut self, ctx: &mut Context<'_, R>) {
        let now = ctx.reactor.now();
        for index in self.indices() {
            let stuck = self.queues.get(index).is_some_and(|queue| !matches!(queue.phase, Phase::Closed(_)) && queue.is_stuck(now));
            if stuck {
                self.violated(ctx, index, &format!("its host has not taken or given data for {} s", PEER_PATIENCE.as_secs()));
            }
        }
        self.watch(ctx);
    }

    fn watch(&mut self, ctx: &mut Context<'_, R>) {
        if !self.watching && !self.queues.is_empty() {
            self.watching = true;
            let at = ctx.reactor.now() + WATCH_INTERVAL;
            ctx.reactor.set_timer(at, Purpose::Watch.token());
        }
    }

    fn on_notice(&mut self, ctx: &mut Context<'_, R>, notice: Notice) {
        match notice {
            Notice::Close(association, ending) => self.close_association(ctx, association, ending),
            Notice::Settled(key) => {
                if let Some(index) = self.index_of(key) {
                    self.try_fenced(ctx, index, Attempt::Again);
                }
            }
            Notice::Look { waiter, question, host, subsystem } => self.look(ctx, waiter, question, &host, subsystem),
            Notice::Looked(key, question) => self.on_looked(ctx, key, question),
            Notice::Drain => self.drain(ctx),
        }
    }

    fn close_association(&mut self, ctx: &mut Context<'_, R>, id: AssociationId, ending: Ending) {
        let grace = ending.leaves_the_admin_queue();
        for index in self.indices() {
            let Some(queue) = self.queues.get(index) else { continue };
            match &queue.phase {
                Phase::Io(member) if member.association.id == id => self.close(ctx, index),
                Phase::Admin(controller) if controller.association.id == id => {
                    if grace {
                        self.set_timer(ctx, index, self.target.limits.admin_grace);
                    } else {
                        self.close(ctx, index);
                    }
                }
                _ => {}
            }
        }
    }

    fn index_of(&self, key: QueueKey) -> Option<usize> {
        let index = usize::try_from(key.index).ok()?;
        self.queues.get(index).filter(|queue| queue.key == key).map(|_| index)
    }

    fn indices(&self) -> Vec<usize> {
        self.queues.iter().map(|(index, _)| index).collect()
    }

    fn set_timer(&mut self, ctx: &mut Context<'_, R>, index: usize, after: Duration) {
        let at = ctx.reactor.now() + after;
        self.set_timer_at(ctx, index, at);
    }

    /// Sets the timer of a queue, which has one at most.
    fn set_timer_at(&mut self, ctx: &mut Context<'_, R>, index: usize, at: Time) {
        let queue = &mut self.queues[index];
        if let Some(timer) = queue.timer.take() {
            ctx.reactor.cancel_timer(timer);
        }
        queue.timer = Some(ctx.reactor.set_timer(at, Purpose::Timer(queue.key).token()));
    }

    fn clear_timer(&mut self, ctx: &mut Context<'_, R>, index: usize) {
        if let Some(timer) = self.queues[index].timer.take() {
            ctx.reactor.cancel_timer(timer);
        }
    }

    /// Answers a command and frees its slot. Nothing is sent when the connection is gone.
    fn respond(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, status: Status, result: u64) {
        let queue = &mut self.queues[index];
        let (cid, invalidate) = queue.slots.release(slot);
        if matches!(queue.phase, Phase::Closed(_)) {
            return;
        }
        let cqe = Cqe::new(cid, queue.qid, queue.sq.advance(), status).with_result(result);
        queue.count_send(ctx.reactor.now());
        ctx.fabric.post_send(queue.qp, RESPONSE, cqe.as_bytes(), None, invalidate);
    }

    /// Answers a command that is refused or has failed, and notes it in the error log.
    fn refuse(&mut self, ctx: &mut Context<'_, R>, index: usize, slot: u16, refusal: Refusal, result: u64) {
        let queue = &self.queues[index];
        let association = match &queue.phase {
            Phase::Admin(controller) => Some(&controller.association),
            Phase::Io(member) => Some(&member.association),
            _ => None,
        };
        if let (Some(association), Some(command)) = (association, queue.slots.get(slot)) {
            let Refusal { status, location } = refusal;
            let failure = Failure { sqid: queue.qid, cid: command.cid, status, location, nsid: command.nsid, lba: command.lba };
            association.errors().push(failure);
        }
        self.respond(ctx, index, slot, refusal.status, result);
    }

    fn drain(&mut self, ctx: &mut Context<'_, R>) {
        if self.is_stopping() {
            return;
        }
        self.stopping = Stopping::Commands;
        for listener in self.listeners.drain(..) {
            ctx.reactor.close_listener(listener);
        }
        for index in self.indices() {
            let association = match &self.queues[index].phase {
                Phase::Admin(controller) => Some(Arc::clone(&controller.association)),
                Phase::Io(member) => Some(Arc::clone(&member.association)),
                _ => None,
            };
            match association {
                // Marks it as dying without telling anyone: each worker drains by itself, and lets what runs be answered.
                Some(association) => drop(self.target.associations.kill(&association)),
                None => self.close(ctx, index),
            }
        }
    }

    /// Takes the next step of stopping, if it is time.
    fn go_on_stopping(&mut self, ctx: &mut Context<'_, R>) {
        match &self.stopping {
            Stopping::Commands if self.queues.iter().all(|(_, queue)| queue.running == 0) => self.flush_stores(ctx),
            Stopping::Flushes(0, _) => {
                for index in self.indices() {
                    let qp = self.queues[index].qp;
                    ctx.fabric.disconnect(ctx.reactor, qp);
                }
                let end = ctx.reactor.now() + DRAIN_GRACE;
                ctx.reactor.set_timer(end, Purpose::Housekeeping.token());
                self.stopping = Stopping::Farewell(end);
            }
            Stopping::Farewell(end) if self.queues.is_empty() || ctx.reactor.now() >= *end => {
                for index in self.indices() {
                    self.close(ctx, index);
                }
                self.stopping = Stopping::Done;
            }
            _ => {}
        }
    }

    fn flush_stores(&mut self, ctx: &mut Context<'_, R>) {
        let mut jobs = Vec::with_capacity(self.places.len());
        for (store, place) in self.places.iter().enumerate() {
            let token = Purpose::FinalFlush(u32::try_from(store).unwrap_or(u32::MAX)).token();
            jobs.push(place.as_ref().and_then(|place| after_flush(place.attached.start(ctx.reactor, Operation::Flush, token))));
        }
        let running = jobs.iter().flatten().count();
        self.stopping = Stopping::Flushes(running, jobs);
        self.go_on_stopping(ctx);
    }

    fn on_final_flush(&mut self, ctx: &mut Context<'_, R>, store: u32, done: FileDone, token: Token) {
        let Stopping::Flushes(running, jobs) = &mut self.stopping else { return };
        let Ok(store) = usize::try_from(store) else { return };
        let Some(job) = jobs.get_mut(store).and_then(Option::take) else { return };
        match after_flush(place(&self.places, store).attached.resume(ctx.reactor, job, done, token)) {
            Some(job) => jobs[store] = Some(job),
            None => *running -= 1,
        }
    }
}

/// What is left of a final flush.
fn after_flush(progress: Progress) -> Option<Job> {
    match progress {
        Progress::Working(job) => Some(job),
        Progress::Done { result, .. } => {
            if let Err(error) = result {
                tracing::error!("the last flush of a namespace failed: {error}");
            }
            None
        }
    }
}

impl<R: Reactor> std::fmt::Debug for Worker<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("index", &self.index)
            .field("queues", &self.queues.len())
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}
