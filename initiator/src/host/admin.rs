//! The admin queue of an association: one connection, a few commands at a time, each with its own buffer.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use godwit_memory::{Buffer, Pool, Reservation};
use godwit_nvme::cm::QueueRequest;
use godwit_nvme::{Cid, Cntlid, Cqe, Qid, QueueSize};
use godwit_rdma::{Access, Completion, Disconnect, Fabric, Header, QpConfig, QpId, Rkey, WorkId};
use godwit_reactor::{Reactor, Time};

use super::bringup::{ADMIN_QUEUE_ENTRIES, Command, Data, IDENTIFY_BYTES};
use super::error::HostError;
use super::queue::{Endpoint, disconnected, in_words, keyed, rejected};
use super::slots::Slots;

/// Commands at a time: one of a script, one Keep Alive, one Asynchronous Event Request, one that reads a log after an event, one Abort.
const COMMANDS: usize = 8;

/// Buffers set aside, so that no admin command waits behind I/O: for a script, and for a log page.
const BUFFERS: usize = 2;

/// RDMA Reads that the target may have outstanding on the admin queue.
const INBOUND_READS: u16 = 16;

/// How long an admin command may take. (Asynchronous Event Requests are not bound by it.)
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// What a command is for, to whoever sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A step of a script.
    Script,
    /// Keep Alive.
    KeepAlive,
    /// Asynchronous Event Request.
    AsyncEvent,
    /// What an event is followed by.
    Follow,
    /// Abort of an I/O command that is overdue.
    Abort,
}

#[derive(Debug)]
struct Pending {
    purpose: Purpose,
    name: &'static str,
    sent_at: Time,
    rkey: Option<Rkey>,
    reads: bool,
    sent: bool,
    answer: Option<Cqe>,
    buffer: Option<Buffer>,
}

/// What happened to the queue.
#[derive(Debug)]
pub(crate) enum AdminEvent {
    /// The connection is there: Connect may be sent.
    Established,
    /// A command was answered.
    Answer {
        purpose: Purpose,
        cqe: Cqe,
        /// What it read; give it back by [`AdminQueue::recycle`].
        data: Option<Buffer>,
    },
    /// The queue must go: [`AdminQueue::leave`].
    Failed(HostError),
    /// The connection is over; the queue is to be dropped, after [`AdminQueue::destroy`].
    Down(HostError),
}

/// The queue.
#[derive(Debug)]
pub(crate) struct AdminQueue {
    qp: QpId,
    address: SocketAddr,
    request: QueueRequest,
    commands: Slots<Pending>,
    buffers: Rc<Reservation>,
    leaving: bool,
}

impl AdminQueue {
    /// Sets the buffers aside that admin queues need, one queue after the other. Whoever reconnects keeps them meanwhile: operations that wait for the
    /// next association may hold all others.
    ///
    /// # Errors
    ///
    /// When there are none to spare.
    pub(crate) fn set_aside(pool: &Pool) -> Result<Rc<Reservation>, HostError> {
        Reservation::new(pool, IDENTIFY_BYTES, BUFFERS).map(Rc::new).ok_or(HostError::NoBuffers)
    }

    /// Opens the connection. [`AdminEvent::Established`] or [`AdminEvent::Down`] follows.
    ///
    /// # Errors
    ///
    /// Those that show at once.
    pub(crate) fn connect<R: Reactor>(
        reactor: &mut R,
        fabric: &mut Fabric,
        endpoint: &Endpoint,
        buffers: Rc<Reservation>,
    ) -> Result<Self, HostError> {
        let (qp, request) = Self::request(reactor, fabric, endpoint, COMMANDS)?;
        Ok(Self { qp, address: endpoint.address, request, commands: Slots::new(COMMANDS), buffers, leaving: false })
    }

    /// Opens the connection of an admin queue that will send nothing, to see whether a target listens.
    ///
    /// # Errors
    ///
    /// Those that show at once.
    pub(crate) fn knock<R: Reactor>(reactor: &mut R, fabric: &mut Fabric, endpoint: &Endpoint) -> Result<QpId, HostError> {
        Self::request(reactor, fabric, endpoint, 1).map(|(qp, _)| qp)
    }

    fn request<R: Reactor>(
        reactor: &mut R,
        fabric: &mut Fabric,
        endpoint: &Endpoint,
        commands: usize,
    ) -> Result<(QpId, QueueRequest), HostError> {
        let size = QueueSize::new(ADMIN_QUEUE_ENTRIES).expect("within bounds");
        // Before Connect there is no controller yet; the kernel's host sends 0.
        let request = QueueRequest::new(Qid::ADMIN, size, Cntlid::new(0));
        let config = QpConfig {
            send_depth: commands,
            receive_depth: commands,
            header_bytes: Cqe::LEN_BYTES,
            data_bytes: 0,
            regions: commands,
            inbound_reads: INBOUND_READS,
            outbound_reads: 0,
            crc: endpoint.crc,
            fpdu: endpoint.fpdu,
        };
        let qp = fabric
            .connect(reactor, endpoint.transport, endpoint.address, &config, &request.to_wire())
            .map_err(|error| HostError::Connection(format!("cannot connect to {}: {}", endpoint.address, in_words(&error))))?;
        Ok((qp, request))
    }

    /// Whether a completion is this queue's.
    pub(crate) fn owns(&self, qp: QpId) -> bool {
        self.qp == qp
    }

    /// Sends a command.
    pub(crate) fn send<R: Reactor>(
        &mut self,
        reactor: &R,
        fabric: &mut Fabric,
        purpose: Purpose,
        command: &Command,
    ) -> Result<(), HostError> {
        let mut pending = Pending {
            purpose,
            name: command.name,
            sent_at: reactor.now(),
            rkey: None,
            reads: false,
            sent: false,
            answer: None,
            buffer: None,
        };
        let mut sqe = command.sqe;
        if command.data != Data::None {
            let mut buffer = self.buffers.take().ok_or(HostError::NoBuffers)?;
            let (len_bytes, access) = match &command.data {
                Data::ToController(bytes) => {
                    buffer.set_len(bytes.len());
                    buffer.copy_from_slice(bytes);
                    (bytes.len(), Access::RemoteRead)
                }
                Data::FromController(len_bytes) => {
                    buffer.set_len(*len_bytes);
                    // What a target does not write must not look like an answer.
                    buffer.fill(0);
                    (*len_bytes, Access::RemoteWrite)
                }
                Data::None => unreachable!("checked above"),
            };
            pending.reads = access == Access::RemoteWrite;
            let Some(remote) = fabric.expose(self.qp, buffer, len_bytes, access) else {
                // The queue pair is gone, and let the buffer go: it is set aside again before anyone else takes it.
                if let Some(buffer) = reactor.pool().take(IDENTIFY_BYTES) {
                    self.buffers.give_back(buffer);
                }
                return Err(gone());
            };
            pending.rkey = Some(remote.rkey);
            sqe = sqe.with_sgl(keyed(fabric, self.qp, remote, len_bytes));
        }
        let index = self.commands.insert(pending).map_err(|_| HostError::Violation("it leaves admin commands unanswered"))?;
        let cid = self.commands.name(index);
        fabric.post_send(self.qp, WorkId(cid.get().into()), sqe.with_cid(cid).as_bytes(), None, None);
        Ok(())
    }

    /// Whether a command of that purpose is unanswered.
    pub(crate) fn is_pending(&self, purpose: Purpose) -> bool {
        self.commands.iter().any(|(_, pending)| pending.purpose == purpose)
    }

    /// A command that was not answered in time.
    pub(crate) fn overdue(&self, now: Time, keep_alive: Duration) -> Option<HostError> {
        self.commands.iter().find_map(|(_, pending)| {
            let after = match pending.purpose {
                Purpose::AsyncEvent => return None,
                Purpose::KeepAlive => keep_alive,
                Purpose::Script | Purpose::Follow | Purpose::Abort => COMMAND_TIMEOUT,
            };
            (now.since(pending.sent_at) >= after).then_some(HostError::Timeout { command: pending.name, after })
        })
    }

    /// Gives the buffer of an answer back.
    pub(crate) fn recycle(&self, buffer: Buffer) {
        self.buffers.give_back(buffer);
    }

    /// Ends the connection in an orderly way; [`AdminEvent::Down`] follows.
    pub(crate) fn leave<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        if !self.leaving {
            self.leaving = true;
            fabric.disconnect(reactor, self.qp);
        }
    }

    /// Frees the queue pair.
    pub(crate) fn destroy<R: Reactor>(mut self, reactor: &mut R, fabric: &mut Fabric) {
        for (_, pending) in self.commands.iter_mut() {
            let lent = pending.rkey.take().and_then(|rkey| fabric.revoke(self.qp, rkey));
            if let Some(buffer) = lent.or(pending.buffer.take()) {
                self.buffers.give_back(buffer);
            }
        }
        fabric.destroy(reactor, self.qp);
    }

    /// Handles a completion of this queue.
    pub(crate) fn on_completion(&mut self, fabric: &mut Fabric, completion: Completion) -> Option<AdminEvent> {
        match completion {
            Completion::Established { .. } => Some(AdminEvent::Established),
            Completion::Rejected { private_data } => Some(AdminEvent::Down(rejected(&private_data.0, &self.request))),
            Completion::Disconnected { reason } => Some(AdminEvent::Down(disconnected(&reason, self.address))),
            _ if self.leaving => None,
            Completion::SendDone { id, .. } => self.on_sent(id),
            Completion::Received { header, data: None, invalidated } => self.on_answer(fabric, &header, invalidated),
            Completion::Received { data: Some(_), .. } => Some(failed("a response is longer than a completion queue entry")),
            // Its end is reported after these.
            Completion::Flushed { .. } => None,
            Completion::ConnectRequest { .. } | Completion::ReadDone { .. } => None,
        }
    }

    fn on_sent(&mut self, id: WorkId) -> Option<AdminEvent> {
        let index = self.commands.find(Cid::new(u16::try_from(id.0).ok()?))?;
        self.commands.get_mut(index)?.sent = true;
        self.finish(index)
    }

    fn on_answer(&mut self, fabric: &mut Fabric, header: &Header, invalidated: Option<Rkey>) -> Option<AdminEvent> {
        let Ok(cqe) = Cqe::read_from(header.as_bytes()) else { return Some(failed("a response is shorter than a completion queue entry")) };
        let Some(index) = self.commands.find(cqe.cid()) else { return Some(failed("it answered a command that was not sent")) };
        let pending = self.commands.get_mut(index)?;
        if pending.answer.is_some() {
            return Some(failed("it answered a command twice"));
        }
        if invalidated.is_some() && invalidated != pending.rkey {
            return Some(failed("it invalidated a key of another command"));
        }
        pending.answer = Some(cqe);
        if let Some(rkey) = pending.rkey.take() {
            pending.buffer = fabric.revoke(self.qp, rkey);
        }
        self.finish(index)
    }

    /// A command ends when it was answered and its Send is done.
    fn finish(&mut self, index: u16) -> Option<AdminEvent> {
        let pending = self.commands.get_mut(index)?;
        let cqe = pending.answer.filter(|_| pending.sent)?;
        let Pending { purpose, reads, buffer, .. } = self.commands.remove(index)?;
        let data = match buffer {
            Some(buffer) if reads && cqe.status().is_success() => Some(buffer),
            Some(buffer) => {
                self.buffers.give_back(buffer);
                None
            }
            None => None,
        };
        Some(AdminEvent::Answer { purpose, cqe, data })
    }
}

fn failed(why: &'static str) -> AdminEvent {
    AdminEvent::Failed(HostError::Violation(why))
}

fn gone() -> HostError {
    HostError::Connection(Disconnect::Closed.to_string())
}
