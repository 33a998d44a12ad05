//! The provider for RDMA devices: InfiniBand, RoCE and iWARP adapters, and the kernel's software ones (rxe, siw), through libibverbs and librdmacm.
//!
//! A reactor thread has a completion queue and a protection domain on each device that it uses (`shared`). It posts and polls by itself, without a system
//! call where the device needs none; connections are made and ended by the connection manager's thread (`cm`), which a queue pair hears of
//! through the thread's inbox. Making a queue pair, and the first use of a device and of a lent buffer, are calls to the kernel of up to milliseconds on the
//! reactor thread: once each.
//!
//! While the reactor looks for work instead of sleeping, each turn polls the completion queues. Before it sleeps they are armed, and polled once
//! more for what came in between.

mod cm;
mod device;
mod domain;
mod error;
mod queue_pair;
mod ring;
mod shared;

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use godwit_memory::{Buffer, Reservation};
use godwit_reactor::{Event, Reactor, Token, WatchId};
use rdma_sys as sys;
use slab::Slab;

use crate::nudge::NUDGE_AFTER;
use crate::{Access, Completion, Disconnect, PrivateData, QpConfig, QpId, Remote, Rkey, WorkId};
use cm::{CmId, Inbox, Key, Manager, News, Order, Parameters};
pub use cm::{Incoming, Listener};
use device::Device;
pub use error::VerbsError;
use queue_pair::{Phase, QueuePair, Scratch};
use shared::Shared;

/// Marks the queue pairs of this provider.
const MARK: u32 = 1 << 31;

/// Queue pairs of a thread, as many as a work request's name has room for.
const MOST: usize = 1 << 16;
const GENERATION_MASK: u32 = (1 << 24) - 1;

/// How long the peer may take to answer a connection request, as with the soft provider.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the peer may take to take note of the end of a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the connection manager may take to say why a device has flushed a queue pair.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a thread that ends waits for its queue pairs to be destroyed.
const FAREWELL: Duration = Duration::from_secs(5);

/// Entries that one call takes off a completion queue, and calls in one turn of the loop.
const ENTRIES_PER_POLL: usize = 32;
const POLLS_PER_TURN: usize = 16;

/// Completions that a queue pair may report before the next one has its turn.
const TURN: usize = 64;

const OWNED: u64 = 1 << 63;
/// Marks the tokens of this provider.
const VERBS: u64 = 1 << 60;
const KIND_SHIFT: u32 = 56;
const INBOX: u64 = OWNED | VERBS | 1 << KIND_SHIFT;
const WAIT: u64 = OWNED | VERBS | 2 << KIND_SHIFT;
const QUEUE: u64 = OWNED | VERBS | 3 << KIND_SHIFT;
const DEADLINE: u64 = OWNED | VERBS | 4 << KIND_SHIFT;
const NUDGE: u64 = OWNED | VERBS | 5 << KIND_SHIFT;
const KIND_MASK: u64 = OWNED | VERBS | 0xf << KIND_SHIFT;

/// Whether a queue pair is of this provider.
pub(crate) fn is_mine(qp: QpId) -> bool {
    qp.index & MARK != 0
}

/// Whether a token that a fabric owns is of this provider.
pub(crate) fn owns(Token(token): Token) -> bool {
    token & VERBS != 0
}

/// The token of a queue pair's timer: [`DEADLINE`] or [`NUDGE`].
fn timer_token(kind: u64, id: QpId) -> Token {
    Token(kind | u64::from(id.generation) << 16 | u64::from(id.index & !MARK))
}

#[expect(clippy::cast_possible_truncation, reason = "the token was put together from two smaller numbers")]
fn timed(Token(token): Token) -> QpId {
    QpId { index: (token as u32 & 0xffff) | MARK, generation: (token >> 16) as u32 & GENERATION_MASK }
}

/// The queue pair that a completion is of.
#[expect(clippy::cast_possible_truncation, reason = "the name was put together from smaller numbers")]
fn owner(name: u64) -> QpId {
    QpId { index: (name >> 48) as u32 | MARK, generation: (name >> 24) as u32 & GENERATION_MASK }
}

/// A device that queue pairs of this thread use. It goes with the last of them: its context is only sure to stay open as long as there is an identifier on it.
#[derive(Debug)]
struct Used {
    shared: Rc<Shared>,
    watch: WatchId,
    armed: bool,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    /// Its user has destroyed it; it stays until the device is done with it.
    abandoned: bool,
    qp: QueuePair,
}

/// The connection manager, as a thread that has queue pairs knows it.
#[derive(Debug)]
struct Office {
    manager: Arc<Manager>,
    inbox: Arc<Inbox>,
    watch: WatchId,
}

/// All queue pairs of a thread that run on this provider.
#[derive(Debug, Default)]
pub(crate) struct Verbs {
    qps: Slab<Entry>,
    next_generation: u32,
    ready: VecDeque<QpId>,
    dirty: Vec<QpId>,
    /// Queue pairs that wait for a buffer.
    stalled: Vec<QpId>,
    reported: usize,
    devices: Vec<Used>,
    polls_left: usize,
    /// There were entries in this turn.
    progress: bool,
    scratch: Scratch,
    office: Option<Office>,
}

impl Verbs {
    fn entry(&mut self, id: QpId) -> Option<&mut Entry> {
        self.qps.get_mut((id.index & !MARK) as usize).filter(|entry| entry.generation == id.generation)
    }

    /// A queue pair that its user has not destroyed.
    fn qp(&mut self, id: QpId) -> Option<&mut QueuePair> {
        self.entry(id).filter(|entry| !entry.abandoned).map(|entry| &mut entry.qp)
    }

    fn get(&self, id: QpId) -> Option<&QueuePair> {
        let entry = self.qps.get((id.index & !MARK) as usize)?;
        (entry.generation == id.generation && !entry.abandoned).then_some(&entry.qp)
    }

    fn next_id(&mut self) -> io::Result<QpId> {
        let index = self.qps.vacant_key();
        if index >= MOST {
            return Err(io::Error::other(format!("a reactor has at most {MOST} RDMA connections")));
        }
        self.next_generation = self.next_generation.wrapping_add(1) & GENERATION_MASK;
        Ok(QpId { index: u32::try_from(index).unwrap_or(0) | MARK, generation: self.next_generation })
    }

    fn insert(&mut self, id: QpId, qp: QueuePair) {
        self.qps.insert(Entry { generation: id.generation, abandoned: false, qp });
    }

    fn mark_ready(&mut self, id: QpId) {
        if let Some(qp) = self.qp(id)
            && !std::mem::replace(&mut qp.ready, true)
        {
            self.ready.push_back(id);
        }
    }

    fn mark_dirty(&mut self, id: QpId) {
        if let Some(qp) = self.qp(id)
            && !std::mem::replace(&mut qp.dirty, true)
        {
            self.dirty.push(id);
        }
    }

    /// The connection manager, which the first queue pair of the thread gets to know.
    fn office<R: Reactor>(&mut self, reactor: &mut R, manager: impl FnOnce() -> Result<Arc<Manager>, VerbsError>) -> io::Result<&Office> {
        if self.office.is_none() {
            let manager = manager()?;
            let inbox = Arc::new(Inbox::new()?);
            let watch = reactor.watch(inbox.descriptor()?, Token(INBOX))?;
            self.office = Some(Office { manager, inbox, watch });
        }
        Ok(self.office.as_ref().expect("it was just made"))
    }

    fn order(&self, order: Order) {
        if let Some(office) = &self.office {
            office.manager.order(order);
        }
    }

    /// What this thread has on a device.
    fn shared<R: Reactor>(&mut self, reactor: &mut R, device: Device) -> Result<Rc<Shared>, VerbsError> {
        if let Some(used) = self.devices.iter().find(|used| used.shared.device() == device) {
            return Ok(Rc::clone(&used.shared));
        }
        let shared = Rc::new(Shared::new(device, reactor.pool())?);
        let failed = |error| VerbsError::Call { call: "watching a completion queue", error };
        let watch = reactor.watch(shared.queue.descriptor().map_err(failed)?, Token(QUEUE)).map_err(failed)?;
        self.devices.push(Used { shared: Rc::clone(&shared), watch, armed: false });
        Ok(shared)
    }

    pub(crate) fn connect<R: Reactor>(
        &mut self,
        reactor: &mut R,
        address: SocketAddr,
        config: &QpConfig,
        private_data: &[u8],
    ) -> io::Result<QpId> {
        let id = self.next_id()?;
        let office = self.office(reactor, Manager::get)?;
        let (key, inbox) = (office.manager.new_key(), Arc::clone(&office.inbox));
        office.manager.order(Order::Connect { key, address, qp: id, inbox });
        let mut qp = QueuePair::connecting(id, key, config, private_data);
        qp.peer = Some(address);
        qp.deadline = Some(reactor.set_timer(reactor.now() + CONNECT_TIMEOUT, timer_token(DEADLINE, id)));
        self.insert(id, qp);
        Ok(id)
    }

    pub(crate) fn adopt<R: Reactor>(&mut self, reactor: &mut R, incoming: Incoming) -> io::Result<QpId> {
        let id = self.next_id()?;
        let manager = incoming.manager();
        let inbox = Arc::clone(&self.office(reactor, || Ok(manager))?.inbox);
        let request = incoming.adopt(id, inbox);
        let mut qp = QueuePair::requested(id, &request);
        (qp.peer, qp.local) = (request.peer, request.local);
        self.insert(id, qp);
        self.mark_ready(id);
        Ok(id)
    }

    pub(crate) fn accept<R: Reactor>(
        &mut self,
        reactor: &mut R,
        id: QpId,
        config: &QpConfig,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let Some(Phase::Requested { id: cm_id, .. }) = self.qp(id).map(|qp| &qp.phase) else { return Ok(()) };
        let cm_id = *cm_id;
        let shared = self.shared(reactor, cm_id.device().ok_or(VerbsError::NoDevice)?)?;
        let Some(qp) = self.qp(id) else { return Ok(()) };
        let key = qp.key;
        let parameters = qp.accept(cm_id, &shared, config, private_data)?;
        self.order(Order::Accept(key, parameters));
        Ok(())
    }

    pub(crate) fn reject<R: Reactor>(&mut self, reactor: &mut R, id: QpId, private_data: &[u8]) {
        match self.qp(id).map(|qp| &qp.phase) {
            Some(Phase::Requested { .. }) => {
                if let Some(key) = self.take(reactor, id) {
                    self.order(Order::Reject(key, private_data.to_vec()));
                }
            }
            // The peer has gone before it was answered.
            _ => self.destroy(reactor, id),
        }
    }

    pub(crate) fn disconnect<R: Reactor>(&mut self, reactor: &mut R, id: QpId) {
        let Some(qp) = self.qp(id) else { return };
        match qp.phase {
            Phase::Live => {
                qp.phase = Phase::Closing { told: false };
                qp.drop_messages();
                qp.deadline = Some(reactor.set_timer(reactor.now() + CLOSE_TIMEOUT, timer_token(DEADLINE, id)));
            }
            Phase::Resolving { .. } | Phase::Connecting | Phase::Requested { .. } => qp.fail(Some(Disconnect::Closed)),
            Phase::Closing { .. } | Phase::Failed { .. } | Phase::Draining { .. } | Phase::Ended => {}
        }
        self.mark_dirty(id);
        self.settle(reactor, id);
    }

    pub(crate) fn abort<R: Reactor>(&mut self, reactor: &mut R, id: QpId) {
        if let Some(qp) = self.qp(id) {
            qp.fail(Some(Disconnect::Lost(io::ErrorKind::TimedOut.into())));
        }
        self.settle(reactor, id);
    }

    pub(crate) fn destroy<R: Reactor>(&mut self, reactor: &mut R, id: QpId) {
        let Some(qp) = self.qp(id) else { return };
        qp.fail(Some(Disconnect::Closed));
        self.settle(reactor, id);
        self.stalled.retain(|stalled| *stalled != id);
        if let Some(entry) = self.entry(id) {
            entry.abandoned = true;
            if matches!(entry.qp.phase, Phase::Ended) {
                self.remove(reactor, id);
            }
        }
    }

    /// Forgets a queue pair that the device knows no more, and its identifier.
    fn remove<R: Reactor>(&mut self, reactor: &mut R, id: QpId) {
        if let Some(key) = self.take(reactor, id) {
            self.order(Order::Forget(key));
        }
    }

    /// Forgets a queue pair, and what was only there for it; the key of its identifier, which may go now.
    fn take<R: Reactor>(&mut self, reactor: &mut R, id: QpId) -> Option<Key> {
        self.entry(id)?;
        let mut qp = self.qps.remove((id.index & !MARK) as usize).qp;
        for timer in [qp.deadline.take(), qp.nudge.take()].into_iter().flatten() {
            reactor.cancel_timer(timer);
        }
        let key = qp.key;
        drop(qp);
        // Before the identifier goes: the last one on a device that is unplugged takes the context with it.
        self.devices.retain(|used| {
            let needed = Rc::strong_count(&used.shared) > 1;
            if !needed {
                reactor.unwatch(used.watch);
            }
            needed
        });
        Some(key)
    }

    /// Takes the next step of a queue pair that is about to end.
    fn settle<R: Reactor>(&mut self, reactor: &mut R, id: QpId) {
        let Some(entry) = self.entry(id) else { return };
        let qp = &mut entry.qp;
        let idle = qp.is_idle();
        match &mut qp.phase {
            Phase::Closing { told: told @ false } if idle => {
                *told = true;
                let key = qp.key;
                self.order(Order::Disconnect(key));
            }
            Phase::Failed { reason: reason @ Some(_) } => {
                let reason = reason.take().expect("just seen");
                if let Some(timer) = qp.deadline.take() {
                    reactor.cancel_timer(timer);
                }
                qp.phase = Phase::Draining { reason };
                let key = qp.key;
                // What the device has completed is in the queue now; some forget it when the queue pair is destroyed.
                self.poll_queues(usize::MAX);
                self.order(Order::Shut(key));
                // Its end may be reported already.
                self.mark_ready(id);
            }
            Phase::Failed { reason: None } if qp.deadline.is_none() => {
                qp.deadline = Some(reactor.set_timer(reactor.now() + REASON_TIMEOUT, timer_token(DEADLINE, id)));
            }
            _ => {}
        }
    }

    pub(crate) fn on_event<R: Reactor>(&mut self, reactor: &mut R, event: &Event<R::Incoming>) {
        match event {
            Event::Readable { token: Token(INBOX) } => self.read_inbox(reactor),
            Event::Readable { token: Token(QUEUE) } => {
                for used in &mut self.devices {
                    used.shared.queue.take_events();
                    used.armed = false;
                    if let Err(error) = reactor.watch_again(used.watch) {
                        tracing::error!("cannot watch a completion queue: {error}");
                    }
                }
                self.progress = true;
            }
            Event::Timer { token: Token(WAIT) } => {
                for id in std::mem::take(&mut self.stalled) {
                    self.mark_ready(id);
                }
            }
            Event::Timer { token } if token.0 & KIND_MASK == NUDGE => {
                let id = timed(*token);
                if self.qp(id).is_some_and(QueuePair::on_nudge_timer) {
                    self.await_message(reactor, id);
                }
                self.settle(reactor, id);
            }
            Event::Timer { token } => {
                let id = timed(*token);
                if let Some(entry) = self.entry(id) {
                    entry.qp.on_deadline(CONNECT_TIMEOUT);
                }
                self.settle(reactor, id);
            }
            _ => {}
        }
    }

    fn read_inbox<R: Reactor>(&mut self, reactor: &mut R) {
        let Some(office) = &self.office else { return };
        let (watch, mut news) = (office.watch, office.inbox.take());
        while let Some((id, news)) = news.pop_front() {
            self.on_news(reactor, id, news);
        }
        if let Err(error) = reactor.watch_again(watch) {
            tracing::error!("cannot watch the connection manager: {error}");
        }
    }

    fn on_news<R: Reactor>(&mut self, reactor: &mut R, id: QpId, news: News) {
        let Some(entry) = self.entry(id) else { return };
        let (abandoned, qp) = (entry.abandoned, &mut entry.qp);
        match news {
            News::Resolved(cm_id) => {
                if let Err(error) = self.on_resolved(reactor, id, cm_id)
                    && let Some(entry) = self.entry(id)
                {
                    entry.qp.fail(Some(Disconnect::Connect(error.into())));
                }
            }
            News::Established { private_data } => {
                qp.on_established(reactor, private_data);
                if qp.device().is_some_and(Device::is_iwarp) {
                    self.await_message(reactor, id);
                }
            }
            News::Rejected { private_data } => {
                if matches!(qp.phase, Phase::Connecting) {
                    qp.done.push_back(Completion::Rejected { private_data: PrivateData(private_data.into()) });
                    qp.reported = true;
                    qp.fail(Some(Disconnect::Closed));
                }
            }
            News::Failed(reason) => {
                let opening = matches!(qp.phase, Phase::Resolving { .. } | Phase::Connecting);
                qp.fail(Some(if opening { reason } else { Disconnect::Lost(io::ErrorKind::ConnectionAborted.into()) }));
            }
            News::Disconnected { known } => qp.on_disconnected(known),
            News::DeviceGone => qp.fail(Some(Disconnect::Lost(io::Error::other("the RDMA device is gone")))),
            News::Drained => {
                qp.on_drained(reactor.pool());
                if abandoned {
                    return self.remove(reactor, id);
                }
            }
        }
        self.settle(reactor, id);
        self.mark_ready(id);
        self.mark_dirty(id);
    }

    /// Looks after a while whether the peer's first message has come.
    fn await_message<R: Reactor>(&mut self, reactor: &mut R, id: QpId) {
        if let Some(qp) = self.qp(id) {
            qp.nudge = Some(reactor.set_timer(reactor.now() + NUDGE_AFTER, timer_token(NUDGE, id)));
        }
    }

    fn on_resolved<R: Reactor>(&mut self, reactor: &mut R, id: QpId, cm_id: CmId) -> Result<(), VerbsError> {
        let Some(Phase::Resolving { config, private_data }) = self.qp(id).map(|qp| &qp.phase) else { return Ok(()) };
        let (config, private_data) = (config.clone(), private_data.clone());
        let shared = self.shared(reactor, cm_id.device().ok_or(VerbsError::NoDevice)?)?;
        let Some(qp) = self.qp(id) else { return Ok(()) };
        let (responder_resources, initiator_depth) = qp.make(cm_id, &shared, &config)?;
        qp.phase = Phase::Connecting;
        let key = qp.key;
        self.order(Order::Start(key, Parameters { responder_resources, initiator_depth, private_data }));
        Ok(())
    }

    /// Takes entries off the completion queues. True when there were any.
    fn poll_queues(&mut self, most: usize) -> bool {
        let mut any = false;
        for device in 0..self.devices.len() {
            let shared = Rc::clone(&self.devices[device].shared);
            for _ in 0..most {
                let mut entries = [MaybeUninit::<sys::ibv_wc>::uninit(); ENTRIES_PER_POLL];
                let count = match shared.queue.poll(&mut entries) {
                    Ok(entries) => {
                        entries.iter().for_each(|entry| self.on_entry(entry));
                        entries.len()
                    }
                    Err(error) => {
                        tracing::error!("the completion queue of {} failed: {error}", shared.device().name());
                        0
                    }
                };
                any |= count > 0;
                if count < ENTRIES_PER_POLL {
                    break;
                }
            }
        }
        any
    }

    fn on_entry(&mut self, entry: &sys::ibv_wc) {
        let id = owner(entry.wr_id);
        // Queue pairs that are gone leave entries behind.
        if let Some(found) = self.entry(id)
            && found.qp.on_entry(entry)
        {
            self.mark_ready(id);
            self.mark_dirty(id);
        }
    }

    pub(crate) fn poll<R: Reactor>(&mut self, reactor: &mut R) -> Option<(QpId, Completion)> {
        loop {
            let Some(&id) = self.ready.front() else {
                if self.polls_left == 0 || self.devices.is_empty() {
                    return None;
                }
                self.polls_left -= 1;
                if !self.poll_queues(1) {
                    self.polls_left = 0;
                    return None;
                }
                self.progress = true;
                continue;
            };
            if self.reported >= TURN {
                self.reported = 0;
                self.ready.rotate_left(1);
                continue;
            }
            let completion = self.qp(id).and_then(|qp| qp.step(reactor.pool()));
            if let Some(completion) = completion {
                self.reported += 1;
                return Some((id, completion));
            }
            self.ready.pop_front();
            self.reported = 0;
            if let Some(qp) = self.qp(id) {
                qp.ready = false;
                if qp.is_stalled() && !self.stalled.contains(&id) {
                    self.stalled.push(id);
                }
            }
            self.settle(reactor, id);
        }
    }

    pub(crate) fn flush<R: Reactor>(&mut self, reactor: &mut R) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            let mut scratch = std::mem::take(&mut self.scratch);
            if let Some(qp) = self.qp(id) {
                qp.dirty = false;
                qp.flush(&mut scratch);
            }
            self.scratch = scratch;
            self.settle(reactor, id);
        }
        self.dirty = dirty;
        self.polls_left = POLLS_PER_TURN;
        let fed = self.stalled.iter().any(|&id| self.get(id).is_some_and(|qp| qp.has_buffer(reactor.pool())));
        if fed || !self.ready.is_empty() {
            // Reported in the next turn of the loop, which this keeps from sleeping.
            reactor.set_timer(reactor.now(), Token(WAIT));
        }
        self.look_or_arm(reactor);
    }

    /// Makes sure that entries that come from now on are seen: by polling in the next turn, or by an event.
    fn look_or_arm<R: Reactor>(&mut self, reactor: &mut R) {
        if self.devices.is_empty() {
            return;
        }
        let progress = std::mem::take(&mut self.progress);
        if reactor.keeps_looking(progress) || self.devices.iter().all(|used| used.armed) {
            return;
        }
        for used in &mut self.devices {
            if !used.armed {
                match used.shared.queue.arm() {
                    Ok(()) => used.armed = true,
                    Err(error) => tracing::error!("cannot arm the completion queue of {}: {error}", used.shared.device().name()),
                }
            }
        }
        if self.poll_queues(POLLS_PER_TURN) {
            reactor.keeps_looking(true);
        }
    }

    pub(crate) fn post_send(&mut self, id: QpId, work: WorkId, header: &[u8], data: Option<Buffer>, invalidate: Option<Rkey>) {
        self.post(id, |qp| qp.post_send(work, header, data, invalidate));
    }

    pub(crate) fn post_write(&mut self, id: QpId, data: Buffer, len_bytes: usize, to: Remote) {
        self.post(id, |qp| qp.post_write(data, len_bytes, to));
    }

    pub(crate) fn post_read(&mut self, id: QpId, work: WorkId, sink: Buffer, len_bytes: usize, from: Remote) {
        self.post(id, |qp| qp.post_read(work, sink, len_bytes, from));
    }

    fn post(&mut self, id: QpId, post: impl FnOnce(&mut QueuePair) -> bool) {
        if let Some(qp) = self.qp(id) {
            if post(qp) {
                self.mark_ready(id);
            }
            self.mark_dirty(id);
        }
    }

    pub(crate) fn expose(&mut self, id: QpId, buffer: Buffer, len_bytes: usize, access: Access) -> Option<Remote> {
        let remote = self.qp(id)?.expose(buffer, len_bytes, access);
        // It may have failed.
        self.mark_dirty(id);
        remote
    }

    pub(crate) fn revoke(&mut self, id: QpId, rkey: Rkey) -> Option<Buffer> {
        self.qp(id)?.revoke(rkey)
    }

    pub(crate) fn receive_from(&mut self, id: QpId, reservation: Option<Rc<Reservation>>) {
        if let Some(qp) = self.qp(id) {
            qp.receive_from(reservation);
        }
    }

    pub(crate) fn is_stalled(&self, id: QpId) -> bool {
        self.get(id).is_some_and(QueuePair::is_stalled)
    }

    pub(crate) fn peer(&self, id: QpId) -> Option<SocketAddr> {
        self.get(id)?.peer
    }

    pub(crate) fn local_address(&self, id: QpId) -> Option<SocketAddr> {
        self.get(id)?.local
    }
}

impl Drop for Verbs {
    /// Waits until the devices are done with the thread's memory; where that takes too long, it is left to the process.
    fn drop(&mut self) {
        let Some(office) = &self.office else { return };
        let mut open = 0;
        for (_, entry) in &mut self.qps {
            entry.qp.fail(Some(Disconnect::Closed));
            if matches!(entry.qp.phase, Phase::Failed { .. }) {
                office.manager.order(Order::Shut(entry.qp.key));
            }
            open += usize::from(!matches!(entry.qp.phase, Phase::Ended));
        }
        let end = Instant::now() + FAREWELL;
        while open > 0 && Instant::now() < end {
            office.inbox.wait(end.saturating_duration_since(Instant::now()));
            open -= office.inbox.take().iter().filter(|(_, news)| matches!(news, News::Drained)).count().min(open);
        }
        if open > 0 {
            std::mem::forget(std::mem::take(&mut self.qps));
            std::mem::forget(std::mem::take(&mut self.devices));
            return;
        }
        let keys: Vec<_> = self.qps.iter().map(|(_, entry)| entry.qp.key).collect();
        self.qps.clear();
        self.devices.clear();
        keys.into_iter().for_each(|key| office.manager.order(Order::Forget(key)));
    }
}
