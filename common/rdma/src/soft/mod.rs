//! The soft provider: standard iWARP over TCP streams of the reactor, without RDMA hardware and without a kernel module.

mod queue_pair;
mod regions;
mod stream_buffers;
mod transmit;
mod work;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use godwit_memory::{Buffer, Extent, Reservation};
use godwit_reactor::{Event, Peer, Reactor, Token};
use slab::Slab;

use crate::nudge::NUDGE_AFTER;
use crate::{Access, Completion, QpConfig, QpId, Remote, Rkey, WorkId};
use queue_pair::{CLOSE_TIMEOUT, QueuePair, REPLY_TIMEOUT, REQUEST_TIMEOUT};
use stream_buffers::StreamBuffers;

/// Completions that a queue pair may report before the next one has its turn.
const TURN: usize = 64;

#[derive(Debug)]
struct Entry {
    generation: u32,
    qp: QueuePair,
    /// In the list of queue pairs that may have something to report.
    ready: bool,
    /// In the list of queue pairs that may have something to send.
    dirty: bool,
}

/// All queue pairs of a thread that run on this provider.
#[derive(Debug, Default)]
pub(crate) struct Soft {
    qps: Slab<Entry>,
    next_generation: u32,
    ready: VecDeque<QpId>,
    dirty: Vec<QpId>,
    /// Queue pairs that wait for a buffer.
    stalled: Vec<QpId>,
    /// Completions of the first ready queue pair in its current turn.
    reported: usize,
    /// Completions since the last flush.
    polled: usize,
    buffers: StreamBuffers,
}

const OWNED: u64 = 1 << 63;
const STALL_TIMER: u64 = OWNED | 1 << 62;
const DEADLINE_TIMER: u64 = 1 << 61;
const NUDGE_TIMER: u64 = 1 << 61 | 1 << 62;
const GENERATION_MASK: u32 = (1 << 28) - 1;

fn token(id: QpId) -> Token {
    Token(OWNED | u64::from(id.generation) << 32 | u64::from(id.index))
}

#[expect(clippy::cast_possible_truncation, reason = "the token was put together from two smaller numbers")]
fn id(Token(token): Token) -> QpId {
    QpId { index: token as u32, generation: (token >> 32) as u32 & GENERATION_MASK }
}

fn entry(qps: &mut Slab<Entry>, id: QpId) -> Option<&mut Entry> {
    qps.get_mut(id.index as usize).filter(|entry| entry.generation == id.generation)
}

impl Soft {
    fn entry(&mut self, id: QpId) -> Option<&mut Entry> {
        entry(&mut self.qps, id)
    }

    fn qp(&mut self, id: QpId) -> Option<&mut QueuePair> {
        self.entry(id).map(|entry| &mut entry.qp)
    }

    fn get(&self, id: QpId) -> Option<&QueuePair> {
        self.qps.get(id.index as usize).filter(|entry| entry.generation == id.generation).map(|entry| &entry.qp)
    }

    fn next_id(&mut self) -> QpId {
        self.next_generation = self.next_generation.wrapping_add(1) & GENERATION_MASK;
        QpId {
            index: u32::try_from(self.qps.vacant_key()).expect("a process has fewer connections than that"),
            generation: self.next_generation,
        }
    }

    fn insert(&mut self, id: QpId, qp: QueuePair) {
        self.qps.insert(Entry { generation: id.generation, qp, ready: false, dirty: false });
    }

    fn mark_ready(&mut self, id: QpId) {
        if let Some(entry) = self.entry(id)
            && !std::mem::replace(&mut entry.ready, true)
        {
            self.ready.push_back(id);
        }
    }

    fn mark_dirty(&mut self, id: QpId) {
        if let Some(entry) = self.entry(id)
            && !std::mem::replace(&mut entry.dirty, true)
        {
            self.dirty.push(id);
        }
    }

    pub(crate) fn on_event<R: Reactor>(&mut self, reactor: &mut R, event: Event<R::Incoming>) {
        match event {
            Event::Connected { token, result } => {
                let id = id(token);
                if let Some(qp) = self.qp(id) {
                    qp.on_connected(reactor, result);
                }
                self.mark_ready(id);
                self.mark_dirty(id);
            }
            Event::Readable { token } => {
                let id = id(token);
                if let Some(qp) = self.qp(id) {
                    qp.on_readable();
                }
                self.mark_ready(id);
            }
            Event::Writable { token } => {
                let id = id(token);
                if let Some(qp) = self.qp(id) {
                    qp.on_writable();
                }
                self.mark_dirty(id);
            }
            Event::Timer { token: Token(STALL_TIMER) } => {
                for id in std::mem::take(&mut self.stalled) {
                    self.mark_ready(id);
                }
            }
            Event::Timer { token } if token.0 & NUDGE_TIMER == NUDGE_TIMER => {
                let id = id(token);
                if self.qp(id).is_some_and(QueuePair::on_nudge_timer) {
                    self.await_answer(reactor, id);
                }
                self.mark_dirty(id);
            }
            Event::Timer { token } => {
                let id = id(token);
                if let Some(qp) = self.qp(id) {
                    qp.on_deadline(reactor);
                }
                self.mark_ready(id);
            }
            Event::Incoming { .. } | Event::File { .. } | Event::Woken => {}
        }
    }

    pub(crate) fn poll<R: Reactor>(&mut self, reactor: &mut R) -> Option<(QpId, Completion)> {
        if self.polled >= reactor.portion() && !self.ready.is_empty() {
            let Some(ended) = self.ready.iter().position(|&id| self.get(id).is_some_and(QueuePair::has_ended)) else {
                // For the reactor this is a turn with work, though nothing was read in it.
                reactor.keeps_looking(true);
                return None;
            };
            if ended > 0 {
                self.ready.swap(0, ended);
                self.reported = 0;
            }
        }
        loop {
            let id = *self.ready.front()?;
            if self.reported >= TURN {
                self.reported = 0;
                self.ready.rotate_left(1);
                continue;
            }
            let step = entry(&mut self.qps, id).and_then(|entry| {
                if entry.qp.has_posted_much() {
                    entry.qp.flush(reactor);
                }
                entry.qp.step(reactor, &mut self.buffers)
            });
            // Reading may have made something sendable: a Read Response, the first message that the peer's first one releases.
            self.mark_dirty(id);
            if let Some(completion) = step {
                if matches!(completion, Completion::Established { .. }) {
                    self.await_answer(reactor, id);
                }
                self.reported += 1;
                self.polled += 1;
                return Some((id, completion));
            }
            self.ready.pop_front();
            self.reported = 0;
            if let Some(entry) = self.entry(id) {
                entry.ready = false;
                if entry.qp.is_stalled() && !self.stalled.contains(&id) {
                    self.stalled.push(id);
                }
            }
        }
    }

    /// Looks after a while whether the peer has answered.
    fn await_answer<R: Reactor>(&mut self, reactor: &mut R, id: QpId) {
        if let Some(qp) = self.qp(id) {
            qp.nudge = Some(reactor.set_timer(reactor.now() + NUDGE_AFTER, Token(token(id).0 | NUDGE_TIMER)));
        }
    }

    pub(crate) fn flush<R: Reactor>(&mut self, reactor: &mut R) {
        self.polled = 0;
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            let Some(entry) = self.entry(id) else { continue };
            entry.dirty = false;
            let reportable = entry.qp.flush(reactor);
            if entry.qp.start_turn() || reportable {
                self.mark_ready(id);
            }
        }
        self.dirty = dirty;
        let go_on = !self.ready.is_empty() || self.stalled.iter().any(|&id| self.get(id).is_some_and(QueuePair::has_buffer));
        if go_on {
            // Reported in the next turn of the loop, which this keeps from sleeping.
            reactor.set_timer(reactor.now(), Token(STALL_TIMER));
        }
    }

    pub(crate) fn connect<R: Reactor>(
        &mut self,
        reactor: &mut R,
        address: SocketAddr,
        config: &QpConfig,
        private_data: &[u8],
    ) -> io::Result<QpId> {
        let id = self.next_id();
        let stream = reactor.connect(address, token(id))?;
        let timer = reactor.set_timer(reactor.now() + REPLY_TIMEOUT, Token(token(id).0 | DEADLINE_TIMER));
        match QueuePair::connecting(stream, timer, config, private_data) {
            Ok(qp) => {
                self.insert(id, qp);
                Ok(id)
            }
            Err(misuse) => {
                reactor.cancel_timer(timer);
                reactor.close(stream);
                Err(io::Error::new(io::ErrorKind::InvalidInput, misuse))
            }
        }
    }

    pub(crate) fn adopt<R: Reactor>(&mut self, reactor: &mut R, incoming: R::Incoming) -> io::Result<QpId> {
        let id = self.next_id();
        let stream = reactor.adopt(incoming, token(id))?;
        let timer = reactor.set_timer(reactor.now() + REQUEST_TIMEOUT, Token(token(id).0 | DEADLINE_TIMER));
        self.insert(id, QueuePair::accepted(stream, timer));
        Ok(id)
    }

    pub(crate) fn accept<R: Reactor>(&mut self, reactor: &mut R, id: QpId, config: &QpConfig, private_data: &[u8]) {
        if let Some(qp) = self.qp(id) {
            qp.accept(reactor, config, private_data);
        }
        self.mark_ready(id);
        self.mark_dirty(id);
    }

    pub(crate) fn reject<R: Reactor>(&mut self, reactor: &mut R, id: QpId, private_data: &[u8]) {
        if let Some(qp) = self.qp(id) {
            qp.reject(reactor, private_data);
            let stream = qp.stream;
            reactor.close_gracefully(stream);
        }
        self.destroy(reactor, id);
    }

    pub(crate) fn disconnect<R: Reactor>(&mut self, reactor: &mut R, id: QpId) {
        if let Some(qp) = self.qp(id)
            && qp.disconnect(reactor)
        {
            qp.deadline = Some(reactor.set_timer(reactor.now() + CLOSE_TIMEOUT, Token(token(id).0 | DEADLINE_TIMER)));
        }
        self.mark_ready(id);
        self.mark_dirty(id);
    }

    pub(crate) fn abort<R: Reactor>(&mut self, reactor: &mut R, id: QpId) {
        if let Some(qp) = self.qp(id) {
            qp.abort(reactor);
        }
        self.mark_ready(id);
    }

    pub(crate) fn destroy<R: Reactor>(&mut self, reactor: &mut R, id: QpId) {
        if self.entry(id).is_some() {
            let mut qp = self.qps.remove(id.index as usize).qp;
            qp.cancel_timers(reactor);
            qp.log_traffic(reactor);
            // No effect on a stream that is closing gracefully.
            reactor.close(qp.stream);
            self.stalled.retain(|stalled| *stalled != id);
        }
    }

    fn posted(&mut self, id: QpId, flushed: bool) {
        if flushed {
            self.mark_ready(id);
        }
        self.mark_dirty(id);
    }

    pub(crate) fn post_send(&mut self, id: QpId, work: WorkId, header: &[u8], data: Option<Buffer>, invalidate: Option<Rkey>) {
        if let Some(qp) = self.qp(id) {
            let flushed = qp.post_send(work, header, data, invalidate);
            self.posted(id, flushed);
        }
    }

    pub(crate) fn post_write(&mut self, id: QpId, data: Buffer, len_bytes: usize, to: Remote) {
        if let Some(qp) = self.qp(id) {
            let flushed = qp.post_write(data, len_bytes, to);
            self.posted(id, flushed);
        }
    }

    pub(crate) fn post_write_extent(&mut self, id: QpId, extent: Extent, to: Remote) -> Result<(), Extent> {
        if let Some(qp) = self.qp(id) {
            let flushed = qp.post_write_extent(extent, to)?;
            self.posted(id, flushed);
        }
        Ok(())
    }

    pub(crate) fn post_read(&mut self, id: QpId, work: WorkId, sink: Buffer, len_bytes: usize, from: Remote) {
        if let Some(qp) = self.qp(id) {
            let flushed = qp.post_read(work, sink, len_bytes, from);
            self.posted(id, flushed);
        }
    }

    pub(crate) fn expose(&mut self, id: QpId, buffer: Buffer, len_bytes: usize, access: Access) -> Option<Remote> {
        self.qp(id)?.expose(buffer, len_bytes, access)
    }

    pub(crate) fn revoke(&mut self, id: QpId, rkey: Rkey) -> Option<Buffer> {
        self.qp(id)?.revoke(rkey)
    }

    pub(crate) fn receive_from(&mut self, id: QpId, reservation: Option<Rc<Reservation>>) {
        if let Some(qp) = self.qp(id) {
            qp.receive_from(reservation);
        }
    }

    fn stream(&self, id: QpId) -> Option<godwit_reactor::StreamId> {
        self.get(id).map(|qp| qp.stream)
    }

    pub(crate) fn has_ended<R: Reactor>(&self, reactor: &R, id: QpId) -> bool {
        self.get(id).is_none_or(|qp| qp.has_ended() || reactor.has_ended(qp.stream))
    }

    pub(crate) fn is_stalled(&self, id: QpId) -> bool {
        self.get(id).is_some_and(QueuePair::is_stalled)
    }

    pub(crate) fn peer<R: Reactor>(&self, reactor: &R, id: QpId) -> Option<Peer> {
        reactor.peer(self.stream(id)?)
    }

    pub(crate) fn local_address<R: Reactor>(&self, reactor: &R, id: QpId) -> Option<SocketAddr> {
        reactor.local_address(self.stream(id)?)
    }
}
