//! RDMA verbs over interchangeable providers: queue pairs, their connections, and the memory that a peer may reach.
//!
//! A [`Fabric`] holds the queue pairs of one reactor thread. Whoever uses it names a transport when it listens or connects, and cannot tell
//! afterwards which provider a queue pair runs on.
//!
//! One turn of a thread's loop is: give the fabric the reactor's events that it [owns](Fabric::owns), [`poll`](Fabric::poll) until there is nothing
//! left or it has been enough, [`flush`](Fabric::flush) once. Posting only queues; the flush is the doorbell, so that what was posted in one turn leaves
//! together.
//!
//! # Who owns a buffer
//!
//! * Posting moves a buffer into the queue pair. It comes back with the completion of that work, or with [`Completion::Flushed`] when the queue pair
//!   failed first; the buffer of an RDMA Write goes back to its pool by itself.
//! * [`Fabric::expose`] lends a buffer to the peer and moves it into the queue pair's table of regions. [`Fabric::revoke`] ends that and moves it out.
//!   With the soft provider the peer's bytes are placed by this very thread, within the named range and only while the region is there, so revoking is
//!   always safe. With a provider whose hardware places bytes, revoking is right only after the response to the command that named the region or
//!   after the queue pair is in error; callers obey the stricter rule.
//! * Nothing is ordered between completions of different kinds. Sends arrive in the order posted; a Send arrives after the RDMA Writes posted before
//!   it were placed.

mod completion;
mod nudge;
mod soft;
pub mod verbs;

use std::net::SocketAddr;
use std::rc::Rc;

use godwit_memory::{Buffer, Extent, Reservation};
use godwit_reactor::{Event, Peer, Reactor, Token};
use verbs::{Verbs, VerbsError};

pub use completion::{Completion, Disconnect, Header, PrivateData};
use soft::Soft;

/// A queue pair of one [`Fabric`]. Ids are not reused soon: posting to a destroyed queue pair has no effect but to return the buffer to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// The poster's name for a work request; returned with its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkId(pub u64);

/// The key by which a peer names a region (rkey; on iWARP the STag).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rkey(pub u32);

/// Where memory of the other side begins: its key, and the address that the other side gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The region's key.
    pub rkey: Rkey,
    /// The address of the first byte.
    pub address: u64,
}

/// What a peer may do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// The peer may fetch it by RDMA Read.
    RemoteRead,
    /// The peer may fill it by RDMA Write.
    RemoteWrite,
}

/// Which provider makes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Transport {
    /// Our own iWARP, over TCP.
    #[default]
    Iwarp,
    /// An RDMA device.
    Rdma,
}

/// A connection that a listener accepted; goes to the thread that shall have it.
#[derive(Debug)]
pub enum Incoming<I> {
    /// A stream of the reactor, for our own iWARP.
    Stream(I),
    /// A connection of an RDMA device.
    Rdma(verbs::Incoming),
}

/// How large the frames of an iWARP stream are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FpduSize {
    /// Up to 60 KiB of payload: the least work, taken by software peers.
    #[default]
    Large,
    /// One TCP segment each, as iWARP NICs expect.
    Segment,
}

/// What a queue pair must hold. All of it is allocated when the connection is accepted or made.
#[derive(Clone, Debug)]
pub struct QpConfig {
    /// Sends, RDMA Writes and RDMA Reads that may be posted and not yet completed.
    pub send_depth: usize,
    /// Messages that the peer may send before it has heard of the last of them being dealt with. Soft provider: without meaning.
    pub receive_depth: usize,
    /// Bytes that each received message must have; they come with [`Completion::Received`] by value. At most 64.
    pub header_bytes: usize,
    /// Bytes that a received message may have beyond its header; they come in a buffer.
    pub data_bytes: usize,
    /// Regions that may be exposed at the same time.
    pub regions: usize,
    /// RDMA Reads that the peer may have outstanding towards us (IRD).
    pub inbound_reads: u16,
    /// RDMA Reads that we want to have outstanding (ORD); further ones queue.
    pub outbound_reads: u16,
    /// iWARP: whether to ask for CRC32C. The peer may insist on it.
    pub crc: bool,
    /// iWARP: frame size.
    pub fpdu: FpduSize,
}

/// The queue pairs of one thread.
#[derive(Debug, Default)]
pub struct Fabric {
    soft: Soft,
    verbs: Verbs,
}

impl Fabric {
    /// An empty fabric.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a reactor's token is one of a fabric's own. Its user must keep the top bit of its tokens clear.
    pub fn owns(token: Token) -> bool {
        token.0 >> 63 == 1
    }

    /// Handles an event whose token the fabric [owns](Self::owns).
    pub fn on_event<R: Reactor>(&mut self, reactor: &mut R, event: Event<R::Incoming>) {
        match &event {
            Event::Readable { token } | Event::Timer { token } if verbs::owns(*token) => self.verbs.on_event(reactor, &event),
            _ => self.soft.on_event(reactor, event),
        }
    }

    /// The next completion, of any queue pair; `None` when there is nothing to do for now, or enough for this turn ([`Reactor::portion`]): the rest is
    /// reported after the next flush. Either way the end of each queue pair that has ended is reported before: who then posts to one, or lends it a
    /// buffer, finds it well. Fair: a busy queue pair takes turns with the others.
    pub fn poll<R: Reactor>(&mut self, reactor: &mut R) -> Option<(QpId, Completion)> {
        self.soft.poll(reactor).or_else(|| self.verbs.poll(reactor))
    }

    /// Sends what was posted since the last call.
    pub fn flush<R: Reactor>(&mut self, reactor: &mut R) {
        self.soft.flush(reactor);
        self.verbs.flush(reactor);
    }

    /// Opens a connection. [`Completion::Established`], [`Completion::Rejected`] or [`Completion::Disconnected`] follows.
    ///
    /// # Errors
    ///
    /// Those of the operating system that show at once.
    pub fn connect<R: Reactor>(
        &mut self,
        reactor: &mut R,
        transport: Transport,
        address: SocketAddr,
        config: &QpConfig,
        private_data: &[u8],
    ) -> std::io::Result<QpId> {
        match transport {
            Transport::Iwarp => self.soft.connect(reactor, address, config, private_data),
            Transport::Rdma => self.verbs.connect(reactor, address, config, private_data),
        }
    }

    /// Takes over a connection that a listener accepted. [`Completion::ConnectRequest`] or [`Completion::Disconnected`] follows.
    ///
    /// # Errors
    ///
    /// Those of the operating system that show at once.
    pub fn adopt<R: Reactor>(&mut self, reactor: &mut R, incoming: Incoming<R::Incoming>) -> std::io::Result<QpId> {
        match incoming {
            Incoming::Stream(incoming) => self.soft.adopt(reactor, incoming),
            Incoming::Rdma(incoming) => self.verbs.adopt(reactor, incoming),
        }
    }

    /// Accepts a [`Completion::ConnectRequest`]. Messages may be received from now on, and posted at once (they leave when the protocol allows).
    ///
    /// # Errors
    ///
    /// What the device is not able to hold. The request still waits for its answer then: reject it.
    pub fn accept<R: Reactor>(&mut self, reactor: &mut R, qp: QpId, config: &QpConfig, private_data: &[u8]) -> Result<(), VerbsError> {
        if verbs::is_mine(qp) {
            return self.verbs.accept(reactor, qp, config, private_data);
        }
        self.soft.accept(reactor, qp, config, private_data);
        Ok(())
    }

    /// Refuses a [`Completion::ConnectRequest`] and destroys the queue pair.
    pub fn reject<R: Reactor>(&mut self, reactor: &mut R, qp: QpId, private_data: &[u8]) {
        if verbs::is_mine(qp) {
            self.verbs.reject(reactor, qp, private_data);
        } else {
            self.soft.reject(reactor, qp, private_data);
        }
    }

    /// Ends a connection in an orderly way: what was posted is sent, then our direction is closed. [`Completion::Disconnected`] follows when the peer
    /// has closed its own (which shows that it knows), or after five seconds. Messages that arrive meanwhile are dropped; reads that are outstanding,
    /// and work that waits behind them, are flushed.
    pub fn disconnect<R: Reactor>(&mut self, reactor: &mut R, qp: QpId) {
        if verbs::is_mine(qp) {
            self.verbs.disconnect(reactor, qp);
        } else {
            self.soft.disconnect(reactor, qp);
        }
    }

    /// Ends a connection at once, as if it had been lost: what was posted comes back with [`Completion::Flushed`], then
    /// [`Completion::Disconnected`] follows. For a peer that does not answer a [`disconnect`](Self::disconnect).
    pub fn abort<R: Reactor>(&mut self, reactor: &mut R, qp: QpId) {
        if verbs::is_mine(qp) {
            self.verbs.abort(reactor, qp);
        } else {
            self.soft.abort(reactor, qp);
        }
    }

    /// Closes a queue pair at once and frees all that it holds. No completion follows. Takes posted and exposed buffers back to their pool: whoever
    /// needs them waits for [`Completion::Flushed`], and revokes, first.
    pub fn destroy<R: Reactor>(&mut self, reactor: &mut R, qp: QpId) {
        if verbs::is_mine(qp) {
            self.verbs.destroy(reactor, qp);
        } else {
            self.soft.destroy(reactor, qp);
        }
    }

    /// Posts a Send of `header` (at most 64 bytes, copied) followed by `data`, with the invalidation of one of the peer's regions if asked for.
    /// Ends with [`Completion::SendDone`], which returns `data`. Sends that share an `id` and have no data may be reported together.
    ///
    /// # Panics
    ///
    /// When more work is posted than the queue pair's `send_depth`: keeping count is the caller's task.
    pub fn post_send(&mut self, qp: QpId, id: WorkId, header: &[u8], data: Option<Buffer>, invalidate: Option<Rkey>) {
        if verbs::is_mine(qp) {
            self.verbs.post_send(qp, id, header, data, invalidate);
        } else {
            self.soft.post_send(qp, id, header, data, invalidate);
        }
    }

    /// Posts an RDMA Write of the first `len_bytes` bytes of `data`. No completion: `data` returns to its pool when it has been sent.
    ///
    /// # Panics
    ///
    /// As [`Self::post_send`].
    pub fn post_write(&mut self, qp: QpId, data: Buffer, len_bytes: usize, to: Remote) {
        if verbs::is_mine(qp) {
            self.verbs.post_write(qp, data, len_bytes, to);
        } else {
            self.soft.post_write(qp, data, len_bytes, to);
        }
    }

    /// Posts an RDMA Write of what lies on a disk in memory, which is not copied and may be changed until it is sent: each of its blocks (of at most 4 KiB,
    /// counted from its start) arrives as it was at one moment before the next Send that is posted. No completion.
    ///
    /// # Errors
    ///
    /// Gives the extent back where that cannot be done: copy it to a buffer.
    ///
    /// # Panics
    ///
    /// As [`Self::post_send`].
    pub fn post_write_extent(&mut self, qp: QpId, extent: Extent, to: Remote) -> Result<(), Extent> {
        if verbs::is_mine(qp) { Err(extent) } else { self.soft.post_write_extent(qp, extent, to) }
    }

    /// Posts an RDMA Read that fills the first `len_bytes` bytes of `sink`. Ends with [`Completion::ReadDone`].
    ///
    /// # Panics
    ///
    /// As [`Self::post_send`].
    pub fn post_read(&mut self, qp: QpId, id: WorkId, sink: Buffer, len_bytes: usize, from: Remote) {
        if verbs::is_mine(qp) {
            self.verbs.post_read(qp, id, sink, len_bytes, from);
        } else {
            self.soft.post_read(qp, id, sink, len_bytes, from);
        }
    }

    /// Lends the first `len_bytes` bytes of a buffer to the peer. `None`, and the buffer returns to its pool, when the queue pair is gone.
    ///
    /// # Panics
    ///
    /// When more regions are exposed than the queue pair's `regions`.
    pub fn expose(&mut self, qp: QpId, buffer: Buffer, len_bytes: usize, access: Access) -> Option<Remote> {
        if verbs::is_mine(qp) { self.verbs.expose(qp, buffer, len_bytes, access) } else { self.soft.expose(qp, buffer, len_bytes, access) }
    }

    /// Takes a lent buffer back. Works until the queue pair is destroyed, also after it failed.
    pub fn revoke(&mut self, qp: QpId, rkey: Rkey) -> Option<Buffer> {
        if verbs::is_mine(qp) { self.verbs.revoke(qp, rkey) } else { self.soft.revoke(qp, rkey) }
    }

    /// Sets where received data finds its buffers: in a reservation, or (without one, as at first) in the reactor's pool. Without a free buffer the
    /// queue pair stops reading until there is one.
    pub fn receive_from(&mut self, qp: QpId, reservation: Option<Rc<Reservation>>) {
        if verbs::is_mine(qp) {
            self.verbs.receive_from(qp, reservation);
        } else {
            self.soft.receive_from(qp, reservation);
        }
    }

    /// Whether the peer is able to take back its right to a region by a Send with Invalidate; where not, it must not be asked to.
    pub fn peer_invalidates(&self, qp: QpId) -> bool {
        !verbs::is_mine(qp)
    }

    /// Whether the end of a queue pair's connection has come, though messages may lie before it that were not reported yet. Of an RDMA device's it is known
    /// when it is reported.
    pub fn has_ended<R: Reactor>(&self, reactor: &R, qp: QpId) -> bool {
        !verbs::is_mine(qp) && self.soft.has_ended(reactor, qp)
    }

    /// Whether a queue pair has stopped reading for want of a buffer.
    pub fn is_stalled(&self, qp: QpId) -> bool {
        if verbs::is_mine(qp) { self.verbs.is_stalled(qp) } else { self.soft.is_stalled(qp) }
    }

    /// The other end of a queue pair's connection, for logs.
    pub fn peer<R: Reactor>(&self, reactor: &R, qp: QpId) -> Option<Peer> {
        if verbs::is_mine(qp) { self.verbs.peer(qp).map(Peer::Tcp) } else { self.soft.peer(reactor, qp) }
    }

    /// The address that the peer came to.
    pub fn local_address<R: Reactor>(&self, reactor: &R, qp: QpId) -> Option<SocketAddr> {
        if verbs::is_mine(qp) { self.verbs.local_address(qp) } else { self.soft.local_address(reactor, qp) }
    }
}
