//! One queue pair on an RDMA device.
//!
//! # Buffer lifetime
//!
//! A device reads and writes buffers by itself. A buffer that was posted comes back with its completion, or else when the queue pair is destroyed:
//! from its first error (or the end of its connection) on, nothing is reported as flushed before the connection manager's thread has destroyed it, for only
//! then is the device done with what was posted. Completions of the device that say "flushed" are not relied on: providers differ in when and
//! whether they come.
//!
//! What the peer may reach by a key is out of its reach once the queue pair is in its error state. [`QueuePair::fail`] puts it there at once,
//! by a call that has taken effect when it returns (but for rxe, which is software and may be about to finish a write); so a caller that revokes and
//! destroys, or gets its end reported and then revokes, may use the buffers again. A response shows that the peer is done with the buffers of its
//! command.
//!
//! Only the last request of a batch, and each RDMA Read, are asked to be told of (on iWARP also what carries data, for the sake of siw). A Send or RDMA
//! Write that stands before a request that is complete is complete as well. An RDMA Read is not: siw tells of a Send behind it while its data are still on
//! their way.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use godwit_memory::{Buffer, Pool, Reservation};
use godwit_reactor::{Reactor, TimerId};
use rdma_sys as sys;
use rdma_sys::ibv_wc_status as status;
use rdma_sys::ibv_wr_opcode as opcode;

use super::cm::{CmId, Incoming, Key, Parameters, destroy_queue_pair};
use super::device::{CompletionQueue, Device, Limits, Region, check};
use super::domain::Domain;
use super::error::VerbsError;
use super::ring::Ring;
use super::shared::Shared;
use crate::nudge::NUDGES;
use crate::{Access, Completion, Disconnect, Header, PrivateData, QpConfig, QpId, Remote, Rkey, WorkId};

/// Completions of sends are told by number, modulo this; far more than can be posted.
const NUMBERS: u32 = 1 << 22;

/// In the name of a work request, above its number: it is a nudge, and nobody waits for its completion.
const IS_NUDGE: u64 = NUMBERS as u64;

/// Where a queue pair is in its life.
#[derive(Debug)]
pub(super) enum Phase {
    /// The peer's address is being resolved.
    Resolving { config: Box<QpConfig>, private_data: Vec<u8> },
    /// There is a queue pair, and the peer was asked.
    Connecting,
    /// A peer has asked, and its request was or is about to be reported.
    Requested { id: CmId, peer_inbound_reads: u8, peer_outbound_reads: u8 },
    /// Connected.
    Live,
    /// To be ended in an orderly way: once what was posted is sent, the peer is told.
    Closing { told: bool },
    /// In error. The reason may be yet to come: a device flushes before the connection manager says why.
    Failed { reason: Option<Disconnect> },
    /// It is being destroyed.
    Draining { reason: Disconnect },
    /// Over, and reported as such.
    Ended,
}

/// A work request until it is complete.
#[derive(Debug)]
enum Work {
    Send { id: WorkId, header: Header, data: Option<Buffer>, invalidate: Option<Rkey> },
    Write { data: Buffer, to: Remote },
    Read { id: WorkId, sink: Buffer, from: Remote, region: Option<Region> },
}

/// How a peer is nudged that may have missed the first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nudge {
    /// By an RDMA Write of zero bytes.
    Write,
    /// By an RDMA Read of zero bytes.
    Read,
}

/// A message that was received.
#[derive(Debug)]
struct Arrived {
    slot: usize,
    len: usize,
    invalidated: Option<Rkey>,
}

/// Whose memory a queue pair uses.
#[derive(Debug)]
enum Memory {
    /// What all queue pairs of the thread on this device use.
    Shared(Rc<Shared>),
    /// A domain of its own, beside the shared completion queue.
    Own(Box<Domain>, Rc<Shared>),
}

impl Memory {
    fn shared(&self) -> &Rc<Shared> {
        let (Self::Shared(shared) | Self::Own(_, shared)) = self;
        shared
    }

    fn with<T>(&self, use_it: impl FnOnce(&Domain) -> T) -> T {
        match self {
            Self::Shared(shared) => use_it(&shared.domain.borrow()),
            Self::Own(domain, _) => use_it(domain),
        }
    }
}

/// What there is of a queue pair on the device.
#[derive(Debug)]
struct Hardware {
    // Dropped in this order; the queue pair itself belongs to its connection identifier and is gone before.
    ring: Ring,
    memory: Memory,
    id: CmId,
    max_inline: usize,
    /// Entries of the completion queue that are set aside.
    completions: usize,
}

impl Drop for Hardware {
    fn drop(&mut self) {
        self.memory.shared().release(self.completions);
    }
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    name: QpId,
    pub(super) key: Key,
    pub(super) phase: Phase,
    pub(super) peer: Option<SocketAddr>,
    pub(super) local: Option<SocketAddr>,
    pub(super) deadline: Option<TimerId>,
    /// The timer of the next nudge.
    pub(super) nudge: Option<TimerId>,
    /// What a nudge is here, if there is any.
    nudge_by: Option<Nudge>,
    /// How often it is still looked whether one is needed.
    nudges: u8,
    /// The device still has one.
    nudging: bool,
    hardware: Option<Hardware>,
    config: QpConfig,
    /// What was posted, oldest first; `None` is complete. The first one has the number `oldest`.
    works: VecDeque<Option<Work>>,
    oldest: u32,
    /// How many of them are not complete.
    pending: usize,
    /// How many of the last ones the device does not know yet.
    unsent: usize,
    /// The side that was asked may send when the first message has come: on iWARP by a rule of MPA, elsewhere because nothing is sent earlier.
    may_send: bool,
    /// A message has come.
    heard: bool,
    /// Its end has been reported: the peer refused the connection, or it did not come about.
    pub(super) reported: bool,
    arrived: VecDeque<Arrived>,
    /// Slots whose message was taken, to be posted again.
    free_slots: Vec<usize>,
    lent: HashMap<u32, Buffer>,
    pub(super) done: VecDeque<Completion>,
    reservation: Option<Rc<Reservation>>,
    stalled: bool,
    /// In the provider's lists.
    pub(super) ready: bool,
    pub(super) dirty: bool,
}

/// Reads that may be outstanding, as the wire has it.
fn reads(count: u16, most: u8) -> u8 {
    u8::try_from(count).unwrap_or(u8::MAX).min(most)
}

/// Requests that the provider sends for itself, at a time: a nudge, on iWARP.
fn own_sends(device: Device) -> usize {
    usize::from(device.is_iwarp())
}

impl QueuePair {
    fn new(name: QpId, key: Key, phase: Phase) -> Self {
        let config = QpConfig {
            send_depth: 0,
            receive_depth: 0,
            header_bytes: 0,
            data_bytes: 0,
            regions: 0,
            inbound_reads: 0,
            outbound_reads: 0,
            crc: false,
            fpdu: crate::FpduSize::Large,
        };
        Self {
            name,
            key,
            phase,
            peer: None,
            local: None,
            deadline: None,
            nudge: None,
            nudge_by: None,
            nudges: NUDGES,
            nudging: false,
            hardware: None,
            config,
            works: VecDeque::new(),
            oldest: 0,
            pending: 0,
            unsent: 0,
            may_send: false,
            heard: false,
            reported: false,
            arrived: VecDeque::new(),
            free_slots: Vec::new(),
            lent: HashMap::new(),
            done: VecDeque::new(),
            reservation: None,
            stalled: false,
            ready: false,
            dirty: false,
        }
    }

    pub(super) fn connecting(name: QpId, key: Key, config: &QpConfig, private_data: &[u8]) -> Self {
        Self::new(name, key, Phase::Resolving { config: Box::new(config.clone()), private_data: private_data.to_vec() })
    }

    pub(super) fn requested(name: QpId, request: &Incoming) -> Self {
        let Incoming { key, id, peer_inbound_reads, peer_outbound_reads, .. } = *request;
        let mut qp = Self::new(name, key, Phase::Requested { id, peer_inbound_reads, peer_outbound_reads });
        let private_data = PrivateData(request.private_data.clone().into());
        qp.done.push_back(Completion::ConnectRequest { private_data, peer_inbound_reads: peer_inbound_reads.into() });
        qp
    }

    /// The work request's name for the device, from which [`super::Verbs`] finds back here.
    fn work_name(&self, received: bool, number: u32) -> u64 {
        u64::from(self.name.index & 0xffff) << 48 | u64::from(self.name.generation) << 24 | u64::from(received) << 23 | u64::from(number)
    }

    /// Makes the queue pair on the device that the connection identifier is bound to; the RDMA Reads that each side may have outstanding (IRD, ORD).
    pub(super) fn make(&mut self, id: CmId, shared: &Rc<Shared>, config: &QpConfig) -> Result<(u8, u8), VerbsError> {
        let Limits { inbound_reads, outbound_reads, .. } = shared.limits;
        let sends = config.send_depth + own_sends(shared.device());
        shared.limits.check_depth(sends, config.receive_depth).map_err(|depth| depth.of(shared.device()))?;
        let completions = sends + config.receive_depth;
        shared.reserve(completions)?;
        let made = self.make_hardware(id, shared, config, completions);
        let hardware = made.inspect_err(|_| shared.release(completions))?;
        self.hardware = Some(hardware);
        self.config = config.clone();
        self.works.reserve(config.send_depth);
        self.lent.reserve(config.regions);
        self.free_slots = (0..config.receive_depth).collect();
        if let Err(error) = self.post_receives() {
            // A request that cannot be accepted is refused, and nothing of it may be left on the device then.
            destroy_queue_pair(id);
            self.hardware = None;
            return Err(error);
        }
        Ok((reads(config.inbound_reads, inbound_reads), reads(config.outbound_reads, outbound_reads)))
    }

    /// Makes the queue pair for a peer that has asked, and answers it.
    pub(super) fn accept(
        &mut self,
        id: CmId,
        shared: &Rc<Shared>,
        config: &QpConfig,
        private_data: &[u8],
    ) -> Result<Parameters, VerbsError> {
        let Phase::Requested { peer_inbound_reads, peer_outbound_reads, .. } = self.phase else { return Err(VerbsError::NoDevice) };
        let (inbound, outbound) = self.make(id, shared, config)?;
        self.phase = Phase::Live;
        let outbound = outbound.min(peer_inbound_reads);
        self.nudge_by = (outbound > 0).then_some(Nudge::Read);
        Ok(Parameters {
            responder_resources: inbound.min(peer_outbound_reads),
            initiator_depth: outbound,
            private_data: private_data.to_vec(),
        })
    }

    pub(super) fn on_established<R: Reactor>(&mut self, reactor: &mut R, private_data: Vec<u8>) {
        if !matches!(self.phase, Phase::Connecting) {
            return;
        }
        if let Some(timer) = self.deadline.take() {
            reactor.cancel_timer(timer);
        }
        self.phase = Phase::Live;
        self.nudge_by = Some(Nudge::Write);
        self.may_send = true;
        self.done.push_back(Completion::Established { private_data: PrivateData(private_data.into()) });
    }

    /// The connection is over. On iWARP the device says so of an end that we asked for without waiting for the peer.
    pub(super) fn on_disconnected(&mut self, known: bool) {
        let iwarp = self.device().is_some_and(Device::is_iwarp);
        let reason = match (&self.phase, known) {
            (Phase::Closing { .. }, true) if !iwarp => Disconnect::Closed,
            (Phase::Closing { .. }, _) => Disconnect::Unconfirmed,
            (_, true) => Disconnect::PeerClosed,
            (_, false) => Disconnect::Lost(io::ErrorKind::ConnectionAborted.into()),
        };
        self.fail(Some(reason));
    }

    pub(super) fn on_deadline(&mut self, connect_timeout: Duration) {
        self.deadline = None;
        let reason = match self.phase {
            Phase::Resolving { .. } => Disconnect::Connect(io::ErrorKind::TimedOut.into()),
            Phase::Connecting => Disconnect::StartupTimeout { seconds: connect_timeout.as_secs() },
            Phase::Closing { .. } => Disconnect::Lost(io::ErrorKind::TimedOut.into()),
            Phase::Failed { reason: None } => Disconnect::Lost(io::ErrorKind::ConnectionAborted.into()),
            _ => return,
        };
        self.fail(Some(reason));
    }

    /// Nudges a peer whose first message has not come. True when it may need another nudge.
    pub(super) fn on_nudge_timer(&mut self) -> bool {
        self.nudge = None;
        let (Phase::Live, Some(by), Some(hardware)) = (&self.phase, self.nudge_by, &self.hardware) else { return false };
        if self.heard || self.nudges == 0 {
            return false;
        }
        // Who connected has nothing to be missed before it has sent something.
        let silent = by == Nudge::Write && self.oldest == 0 && self.works.len() == self.unsent;
        self.nudges -= 1;
        if !self.nudging && !silent {
            match self.post_nudge(hardware, by) {
                Ok(()) => self.nudging = true,
                Err(error) => self.fail(Some(Disconnect::Lost(error.into()))),
            }
        }
        true
    }

    /// Gives the device a request for zero bytes, where neither side looks at a key.
    fn post_nudge(&self, hardware: &Hardware, by: Nudge) -> Result<(), VerbsError> {
        let mut entry = sys::ibv_sge { addr: hardware.ring.message(0), length: 0, lkey: hardware.ring.lkey() };
        // SAFETY: zeroes are a valid work request.
        let mut request: sys::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        request.wr_id = self.work_name(false, 0) | IS_NUDGE;
        request.sg_list = &raw mut entry;
        request.num_sge = 1;
        request.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        request.opcode = match by {
            Nudge::Write => opcode::IBV_WR_RDMA_WRITE,
            Nudge::Read => opcode::IBV_WR_RDMA_READ,
        };
        // As siw's own: some adapters are said to treat key 0 in a way of its own.
        request.wr.rdma = sys::rdma_t { remote_addr: 0, rkey: 1 };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is alive, and the request names no byte of memory.
        check("ibv_post_send", unsafe { sys::ibv_post_send(Self::qp_ptr(hardware), &raw mut request, &raw mut bad) })
    }

    /// What has arrived is of no use any more.
    pub(super) fn drop_messages(&mut self) {
        self.arrived.clear();
        self.stalled = false;
    }

    fn make_hardware(&self, id: CmId, shared: &Rc<Shared>, config: &QpConfig, completions: usize) -> Result<Hardware, VerbsError> {
        // On iWARP the sink of a read is open to the peer: see `domain`.
        let memory = if shared.device().is_iwarp() && config.outbound_reads > 0 {
            Memory::Own(Box::new(Domain::new(shared.device(), &shared.pool)?), Rc::clone(shared))
        } else {
            Memory::Shared(Rc::clone(shared))
        };
        let protection = memory.with(|domain| Rc::clone(domain.protection()));
        let ring =
            Ring::new(&protection, config.receive_depth, config.header_bytes + config.data_bytes, config.send_depth.next_power_of_two())?;
        // SAFETY: zeroes are valid attributes.
        let mut attributes: sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        let queue: &CompletionQueue = &shared.queue;
        attributes.send_cq = queue.as_ptr();
        attributes.recv_cq = queue.as_ptr();
        attributes.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        let mut last = None;
        for max_inline in [Header::MAX_BYTES, 0] {
            attributes.cap.max_send_wr = u32::try_from(config.send_depth + own_sends(shared.device())).unwrap_or(u32::MAX);
            attributes.cap.max_recv_wr = u32::try_from(config.receive_depth).unwrap_or(u32::MAX);
            attributes.cap.max_send_sge = 2;
            attributes.cap.max_recv_sge = 1;
            attributes.cap.max_inline_data = u32::try_from(max_inline).unwrap_or(0);
            // SAFETY: identifier, domain and completion queue are alive and of one device.
            let made = unsafe { sys::rdma_create_qp(id.as_ptr(), protection.as_ptr(), &raw mut attributes) };
            match check("rdma_create_qp", made) {
                Ok(()) => {
                    let max_inline = usize::try_from(attributes.cap.max_inline_data).unwrap_or(0);
                    return Ok(Hardware { ring, memory, id, max_inline, completions });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("it was tried"))
    }

    fn qp_ptr(hardware: &Hardware) -> *mut sys::ibv_qp {
        // SAFETY: the identifier is alive as long as its queue pair has hardware here.
        unsafe { (*hardware.id.as_ptr()).qp }
    }

    /// Gives the free slots back to the device.
    fn post_receives(&mut self) -> Result<(), VerbsError> {
        let Some(hardware) = &self.hardware else { return Ok(()) };
        let length = self.config.header_bytes + self.config.data_bytes;
        while let Some(slot) = self.free_slots.pop() {
            let mut entry = sys::ibv_sge {
                addr: hardware.ring.message(slot),
                length: u32::try_from(length).unwrap_or(u32::MAX),
                lkey: hardware.ring.lkey(),
            };
            let mut request = sys::ibv_recv_wr {
                wr_id: self.work_name(true, u32::try_from(slot).unwrap_or(0)),
                next: std::ptr::null_mut(),
                sg_list: &raw mut entry,
                num_sge: 1,
            };
            let mut bad = std::ptr::null_mut();
            // SAFETY: the queue pair is alive, and the slot stays where it is until it is destroyed.
            let result = unsafe { sys::ibv_post_recv(Self::qp_ptr(hardware), &raw mut request, &raw mut bad) };
            check("ibv_post_recv", result)?;
        }
        Ok(())
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Live)
    }

    fn post(&mut self, work: Work) -> bool {
        if !self.is_open() {
            if matches!(self.phase, Phase::Ended | Phase::Closing { .. } | Phase::Resolving { .. } | Phase::Requested { .. }) {
                // Before the end is reported, unless that has happened.
                let ended = matches!(self.done.back(), Some(Completion::Disconnected { .. } | Completion::Rejected { .. }));
                let position = self.done.len() - usize::from(ended);
                if let Some(flushed) = flushed(work) {
                    self.done.insert(position, flushed);
                }
                return true;
            }
            // Its end is on the way, and flushes this as well.
            self.works.push_back(Some(work));
            self.unsent += 1;
            return true;
        }
        assert!(
            self.pending < self.config.send_depth,
            "more work is posted than the queue pair's send depth of {}",
            self.config.send_depth
        );
        self.pending += 1;
        self.works.push_back(Some(work));
        self.unsent += 1;
        false
    }

    /// Posts a Send. True when something is there to be reported.
    pub(super) fn post_send(&mut self, id: WorkId, header: &[u8], data: Option<Buffer>, invalidate: Option<Rkey>) -> bool {
        let mut bytes = [0; Header::MAX_BYTES];
        bytes[..header.len()].copy_from_slice(header);
        self.post(Work::Send { id, header: Header { bytes, len: header.len() }, data, invalidate })
    }

    pub(super) fn post_write(&mut self, mut data: Buffer, len_bytes: usize, to: Remote) -> bool {
        data.set_len(len_bytes);
        self.post(Work::Write { data, to })
    }

    pub(super) fn post_read(&mut self, id: WorkId, mut sink: Buffer, len_bytes: usize, from: Remote) -> bool {
        sink.set_len(len_bytes);
        self.post(Work::Read { id, sink, from, region: None })
    }

    /// Lends a buffer. Where that fails the queue pair ends: the command that is to name the buffer cannot be sent.
    pub(super) fn expose(&mut self, mut buffer: Buffer, len_bytes: usize, access: Access) -> Option<Remote> {
        if matches!(self.phase, Phase::Failed { .. } | Phase::Draining { .. }) && !self.reported {
            // Its end is on the way, and flushes the command that is to name the buffer. No key leads there.
            buffer.set_len(len_bytes);
            let rkey = (0..=u32::MAX).find(|key| !self.lent.contains_key(key)).map_or(Rkey(0), Rkey);
            let address = buffer.address().addr().get() as u64;
            self.lent.insert(rkey.0, buffer);
            return Some(Remote { rkey, address });
        }
        let (true, Some(hardware)) = (self.is_open(), &mut self.hardware) else { return None };
        assert!(self.lent.len() < self.config.regions, "no more regions are exposed than the queue pair was made for");
        buffer.set_len(len_bytes);
        let rkey = match &mut hardware.memory {
            Memory::Shared(shared) => shared.domain.borrow_mut().lend(&buffer, access),
            Memory::Own(domain, _) => domain.lend(&buffer, access),
        };
        let rkey = match rkey {
            Ok(rkey) => rkey,
            Err(error) => {
                self.fail(Some(Disconnect::Lost(error.into())));
                return self.expose(buffer, len_bytes, access);
            }
        };
        let address = buffer.address().addr().get() as u64;
        self.lent.insert(rkey.0, buffer);
        Some(Remote { rkey, address })
    }

    pub(super) fn revoke(&mut self, Rkey(rkey): Rkey) -> Option<Buffer> {
        self.lent.remove(&rkey)
    }

    pub(super) fn receive_from(&mut self, reservation: Option<Rc<Reservation>>) {
        self.reservation = reservation;
    }

    pub(super) fn device(&self) -> Option<Device> {
        self.hardware.as_ref().map(|hardware| hardware.memory.shared().device())
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Whether a stalled queue pair could go on now.
    pub(super) fn has_buffer(&self, pool: &Pool) -> bool {
        self.reservation.as_ref().is_some_and(|reservation| reservation.unused() > 0) || pool.spare(self.config.data_bytes) > 0
    }

    /// The next thing to report.
    pub(super) fn step(&mut self, pool: &Pool) -> Option<Completion> {
        if let Some(completion) = self.done.pop_front() {
            return Some(completion);
        }
        self.take_message(pool)
    }

    /// The next message, if there is a buffer for its data.
    fn take_message(&mut self, pool: &Pool) -> Option<Completion> {
        self.stalled = false;
        let (Phase::Live | Phase::Failed { .. } | Phase::Draining { .. }, Some(hardware)) = (&self.phase, &self.hardware) else {
            return None;
        };
        let arrived = self.arrived.front()?;
        let Some(data_len) = arrived.len.checked_sub(self.config.header_bytes) else {
            let reason = format!("a message of {} bytes is shorter than a capsule of {}", arrived.len, self.config.header_bytes);
            self.arrived.clear();
            self.fail(Some(Disconnect::Violation(reason)));
            return None;
        };
        let mut data = None;
        if data_len > 0 {
            let reserved = self.reservation.as_ref().and_then(|reservation| reservation.take());
            let Some(mut buffer) = reserved.or_else(|| pool.take(self.config.data_bytes)) else {
                self.stalled = true;
                return None;
            };
            buffer.set_len(data_len);
            hardware.ring.copy_message(arrived.slot, self.config.header_bytes, &mut buffer);
            data = Some(buffer);
        }
        let mut header = Header { bytes: [0; Header::MAX_BYTES], len: self.config.header_bytes };
        hardware.ring.copy_message(arrived.slot, 0, &mut header.bytes[..self.config.header_bytes]);
        let Arrived { slot, invalidated, .. } = self.arrived.pop_front()?;
        if matches!(self.phase, Phase::Live) {
            self.free_slots.push(slot);
            if let Err(error) = self.post_receives() {
                self.fail(Some(Disconnect::Lost(error.into())));
            }
        }
        if let Some(rkey) = invalidated {
            self.forget(rkey);
        }
        Some(Completion::Received { header, data, invalidated })
    }

    /// The peer has invalidated a region: it is registered anew when its buffer is lent again.
    fn forget(&mut self, Rkey(rkey): Rkey) {
        let (Some(buffer), Some(hardware)) = (self.lent.get(&rkey), &mut self.hardware) else { return };
        match &mut hardware.memory {
            Memory::Shared(shared) => shared.domain.borrow_mut().forget(buffer),
            Memory::Own(domain, _) => domain.forget(buffer),
        }
    }

    /// Handles an entry of the completion queue. True when there may be something to report.
    pub(super) fn on_entry(&mut self, entry: &sys::ibv_wc) -> bool {
        let received = entry.wr_id >> 23 & 1 == 1;
        let number = u32::try_from(entry.wr_id & u64::from((1_u32 << 23) - 1)).unwrap_or(0);
        if entry.status != status::IBV_WC_SUCCESS {
            self.on_error(entry.status);
        } else if received {
            let invalidated = entry.wc_flags & sys::ibv_wc_flags::IBV_WC_WITH_INV.0 != 0;
            // SAFETY: both members of the union are numbers of one size.
            let rkey = unsafe { entry.imm_data_invalidated_rkey_union.invalidated_rkey };
            let invalidated = invalidated.then_some(Rkey(rkey));
            let (slot, len) = (number as usize, entry.byte_len as usize);
            if matches!(self.phase, Phase::Closing { .. }) {
                // What arrives while we end the connection is dropped.
                return false;
            }
            // The first one may come before the connection manager calls the connection established.
            self.may_send = true;
            self.heard = true;
            self.arrived.push_back(Arrived { slot, len, invalidated });
        } else if entry.wr_id & IS_NUDGE != 0 {
            self.nudging = false;
            return false;
        } else {
            self.complete(number.wrapping_sub(self.oldest) % NUMBERS);
        }
        true
    }

    /// Reports the request at a position as complete, and what is so with it.
    fn complete(&mut self, position: u32) {
        let position = position as usize;
        if position + self.unsent >= self.works.len() {
            return;
        }
        for (index, place) in self.works.iter_mut().enumerate().take(position + 1) {
            if index < position && matches!(place, Some(Work::Read { .. })) {
                continue;
            }
            let Some(work) = place.take() else { continue };
            self.pending -= 1;
            match work {
                Work::Send { id, data, .. } => self.done.push_back(Completion::SendDone { id, data, count: 1 }),
                Work::Read { id, sink, region, .. } => {
                    // The peer is kept out before anyone looks at what it brought.
                    drop(region);
                    self.done.push_back(Completion::ReadDone { id, data: sink });
                }
                Work::Write { .. } => {}
            }
        }
        while let Some(None) = self.works.front() {
            self.works.pop_front();
            self.oldest = (self.oldest + 1) % NUMBERS;
        }
    }

    fn on_error(&mut self, code: status::Type) {
        let reason = match code {
            // Something happened before, or the connection is over: the connection manager tells which.
            status::IBV_WC_WR_FLUSH_ERR => None,
            status::IBV_WC_RETRY_EXC_ERR | status::IBV_WC_RNR_RETRY_EXC_ERR | status::IBV_WC_RESP_TIMEOUT_ERR => {
                Some(Disconnect::Lost(io::ErrorKind::TimedOut.into()))
            }
            status::IBV_WC_REM_ACCESS_ERR | status::IBV_WC_REM_INV_REQ_ERR | status::IBV_WC_REM_OP_ERR | status::IBV_WC_REM_ABORT_ERR => {
                Some(Disconnect::Terminated(in_words(code)))
            }
            _ => Some(Disconnect::Violation(in_words(code))),
        };
        self.fail(reason);
    }

    /// Ends the queue pair: from now on the peer reaches nothing by it. Its end is reported when it is destroyed.
    pub(super) fn fail(&mut self, reason: Option<Disconnect>) {
        match &mut self.phase {
            Phase::Failed { reason: known @ None } => *known = reason,
            Phase::Failed { .. } | Phase::Draining { .. } | Phase::Ended => {}
            // The device flushes because the connection does not come about, or ends as it was asked to: the connection manager tells.
            Phase::Connecting | Phase::Closing { told: true } if reason.is_none() => {}
            Phase::Resolving { .. } | Phase::Connecting if !self.may_send && reason.is_some() => {
                self.stop_device();
                self.end_early(reason);
            }
            _ => {
                self.stop_device();
                self.phase = Phase::Failed { reason };
            }
        }
    }

    /// No message has gone either way, so the device has no buffer but those for messages, and the end is reported at once: `rdma_connect` may
    /// go on for minutes (siw waits for TCP), and the queue pair cannot be destroyed before.
    fn end_early(&mut self, reason: Option<Disconnect>) {
        self.done.extend(self.works.drain(..).flatten().filter_map(flushed));
        (self.unsent, self.pending) = (0, 0);
        if let Some(reason) = reason
            && !std::mem::replace(&mut self.reported, true)
        {
            self.done.push_back(Completion::Disconnected { reason });
        }
        self.phase = Phase::Failed { reason: Some(Disconnect::Closed) };
    }

    fn stop_device(&mut self) {
        let Some(hardware) = &self.hardware else { return };
        // SAFETY: zeroes are valid attributes.
        let mut attributes: sys::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attributes.qp_state = sys::ibv_qp_state::IBV_QPS_ERR;
        let mask = i32::try_from(sys::ibv_qp_attr_mask::IBV_QP_STATE.0).unwrap_or(0);
        let qp = Self::qp_ptr(hardware);
        if !qp.is_null() {
            // SAFETY: the queue pair is alive. It fails when it was never connected, or is in that state already.
            unsafe { sys::ibv_modify_qp(qp, &raw mut attributes, mask) };
        }
    }

    /// Whether all that was posted is sent.
    pub(super) fn is_idle(&self) -> bool {
        self.works.is_empty()
    }

    /// The device is done with the queue pair: everything comes back, then the end is reported.
    pub(super) fn on_drained(&mut self, pool: &Pool) {
        // What arrived before the end, as far as there is memory for it.
        while let Some(message) = self.take_message(pool) {
            self.done.push_back(message);
        }
        let Phase::Draining { reason } = std::mem::replace(&mut self.phase, Phase::Ended) else { return };
        self.arrived.clear();
        self.stalled = false;
        self.reservation = None;
        self.done.extend(self.works.drain(..).flatten().filter_map(flushed));
        self.unsent = 0;
        self.hardware = None;
        if !self.reported {
            self.done.push_back(Completion::Disconnected { reason });
        }
    }

    /// Gives what was posted to the device, in one call.
    pub(super) fn flush(&mut self, scratch: &mut Scratch) {
        if self.unsent == 0 || !self.may_send || !matches!(self.phase, Phase::Live | Phase::Closing { .. }) {
            return;
        }
        if let Err(error) = self.post_sends(scratch) {
            self.fail(Some(Disconnect::Lost(error.into())));
        }
    }

    fn post_sends(&mut self, scratch: &mut Scratch) -> Result<(), VerbsError> {
        let Some(hardware) = &self.hardware else { return Ok(()) };
        let first = self.works.len() - self.unsent;
        let iwarp = hardware.memory.shared().device().is_iwarp();
        let invalidates = hardware.memory.shared().limits.invalidates;
        scratch.clear(self.unsent);
        let last = self.works.len() - 1;
        let base = self.work_name(false, 0);
        for (index, work) in self.works.iter_mut().enumerate().skip(first) {
            let Some(work) = work else { continue };
            let number = (self.oldest + u32::try_from(index).unwrap_or(0)) % NUMBERS;
            // SAFETY: zeroes are a valid work request.
            let mut request: sys::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
            request.wr_id = base | u64::from(number);
            let first_entry = scratch.entries.len();
            let mut flags = 0;
            match work {
                Work::Send { header, data, invalidate, .. } => {
                    let address = hardware.ring.put_header(index_in_ring(number, self.config.send_depth), header.as_bytes());
                    scratch.entry(address, header.len, hardware.ring.lkey());
                    let invalidate = invalidate.filter(|_| invalidates);
                    match data {
                        Some(data) => scratch.entry(data.address().addr().get() as u64, data.len(), hardware.memory.with(Domain::lkey)?),
                        // siw fails a queue pair over an inline Send with Invalidate.
                        None if header.len <= hardware.max_inline && !(iwarp && invalidate.is_some()) => {
                            flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
                        }
                        None => {}
                    }
                    request.opcode = opcode::IBV_WR_SEND;
                    if let Some(Rkey(rkey)) = invalidate {
                        request.opcode = opcode::IBV_WR_SEND_WITH_INV;
                        request.imm_data_invalidated_rkey_union.invalidated_rkey = rkey;
                        // siw's library takes the key from where those of reads and writes stand.
                        request.wr.rdma = sys::rdma_t { remote_addr: 0, rkey };
                    }
                }
                Work::Write { data, to } => {
                    scratch.entry(data.address().addr().get() as u64, data.len(), hardware.memory.with(Domain::lkey)?);
                    request.opcode = opcode::IBV_WR_RDMA_WRITE;
                    request.wr.rdma = sys::rdma_t { remote_addr: to.address, rkey: to.rkey.0 };
                }
                Work::Read { sink, from, region, .. } => {
                    let sink_key = if iwarp {
                        let registered = hardware.memory.with(|domain| domain.sink(sink))?;
                        let key = registered.lkey();
                        *region = Some(registered);
                        key
                    } else {
                        hardware.memory.with(Domain::lkey)?
                    };
                    scratch.entry(sink.address().addr().get() as u64, sink.len(), sink_key);
                    request.opcode = opcode::IBV_WR_RDMA_READ;
                    request.wr.rdma = sys::rdma_t { remote_addr: from.address, rkey: from.rkey.0 };
                    flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
                }
            }
            // siw hands the pages of a request that it need not tell of to TCP, and calls it complete while they wait there to be sent (or sent again):
            // what is written to the buffer next would go out instead. It copies the others.
            let lends_pages = iwarp && matches!(work, Work::Write { .. } | Work::Send { data: Some(_), .. });
            if index == last || lends_pages {
                flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            }
            request.send_flags = flags;
            request.num_sge = i32::try_from(scratch.entries.len() - first_entry).unwrap_or(0);
            scratch.requests.push(request);
        }
        self.unsent = 0;
        // SAFETY: the buffers stay in `works` until they are complete or the queue pair is destroyed.
        unsafe { scratch.post(Self::qp_ptr(hardware)) }
    }
}

/// The slot of a Send's header. There are at least as many slots as requests that are not complete, and behind a Send that is not, nothing is: no two of
/// these have the same slot.
fn index_in_ring(number: u32, depth: usize) -> usize {
    number as usize % depth.next_power_of_two()
}

/// What is reported of a request that was not completed.
fn flushed(work: Work) -> Option<Completion> {
    match work {
        Work::Send { id, data, .. } => Some(Completion::Flushed { id, data }),
        Work::Read { id, sink, region, .. } => {
            drop(region);
            Some(Completion::Flushed { id, data: Some(sink) })
        }
        Work::Write { .. } => None,
    }
}

fn in_words(code: status::Type) -> String {
    // SAFETY: the library has a static text for each status.
    let text = unsafe { sys::ibv_wc_status_str(code) };
    if text.is_null() {
        return format!("work completion status {code}");
    }
    // SAFETY: it is a C string.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Work requests on their way to the device; kept, so that nothing is allocated.
#[derive(Default)]
pub(super) struct Scratch {
    requests: Vec<sys::ibv_send_wr>,
    entries: Vec<sys::ibv_sge>,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scratch")
    }
}

impl Scratch {
    fn clear(&mut self, count: usize) {
        self.requests.clear();
        self.entries.clear();
        self.requests.reserve(count);
        self.entries.reserve(2 * count);
    }

    fn entry(&mut self, addr: u64, length: usize, lkey: u32) {
        self.entries.push(sys::ibv_sge { addr, length: u32::try_from(length).unwrap_or(u32::MAX), lkey });
    }

    /// Posts all requests.
    ///
    /// # Safety
    ///
    /// The queue pair is alive, and what the entries name stays where it is until the requests are complete or the queue pair is destroyed.
    unsafe fn post(&mut self, qp: *mut sys::ibv_qp) -> Result<(), VerbsError> {
        let mut entry = self.entries.as_mut_ptr();
        let requests = self.requests.as_mut_ptr();
        for index in 0..self.requests.len() {
            self.requests[index].sg_list = entry;
            let count = usize::try_from(self.requests[index].num_sge).unwrap_or(0);
            // SAFETY: the entries of all requests stand one after the other.
            entry = unsafe { entry.add(count) };
            if index + 1 < self.requests.len() {
                // SAFETY: inside the vector, which does not grow any more.
                self.requests[index].next = unsafe { requests.add(index + 1) };
            }
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the chain is whole; the rest is the caller's promise.
        check("ibv_post_send", unsafe { sys::ibv_post_send(qp, requests, &raw mut bad) })
    }
}
