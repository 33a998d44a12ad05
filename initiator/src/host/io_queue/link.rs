//! The connection of an I/O queue: how it is made, how it joins its association, and how it ends.

use std::time::Duration;

use godwit_memory::Buffer;
use godwit_nvme::cm::{QueueAccept, QueueRequest};
use godwit_nvme::sqe::Connect;
use godwit_nvme::{Cid, ConnectRefusal, ConnectResult, Cqe, Sqe};
use godwit_rdma::{Access, Completion, Disconnect, Fabric, QpConfig, QpId, Rkey, WorkId};
use godwit_reactor::{Reactor, Time};
use tracing::warn;

use super::{IoQueue, Link, QueueTimer, depth};
use crate::block::{BlockError, Geometry};
use crate::host::bringup::IDENTIFY_BYTES;
use crate::host::error::HostError;
use crate::host::fence::QueueEnd;
use crate::host::message::{AssociationId, Join, News};
use crate::host::operation::{Operation, Place};
use crate::host::queue::{disconnected, in_words, keyed, rejected};

/// RDMA Reads that the target may have outstanding on a queue.
const INBOUND_READS: u16 = 128;

/// How long a queue may take to join.
pub(crate) const JOIN_TIMEOUT: Duration = Duration::from_secs(15);

/// How long the target may take to close its end of a connection that we end.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Send of Connect; operations are named by their command identifiers, which are smaller.
const CONNECT_WORK: WorkId = WorkId(1 << 32);

/// The command identifier of Connect: it is alone on its queue then.
const CONNECT_CID: Cid = Cid::new(0);

impl IoQueue {
    /// Connects to join an association.
    pub(crate) fn join<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, association: AssociationId, join: Box<Join>) {
        self.drop_link(reactor, fabric);
        self.association = association;
        self.address = join.endpoint.address;
        let request = QueueRequest::new(join.qid, join.queue_size, join.cntlid);
        let depth = depth(join.queue_size);
        let config = QpConfig {
            // The one beside the operations is Connect's.
            send_depth: depth + 1,
            receive_depth: depth + 1,
            header_bytes: Cqe::LEN_BYTES,
            data_bytes: 0,
            regions: depth + 1,
            inbound_reads: INBOUND_READS,
            outbound_reads: 0,
            crc: join.endpoint.crc,
            fpdu: join.endpoint.fpdu,
        };
        match fabric.connect(reactor, join.endpoint.transport, join.endpoint.address, &config, &request.to_wire()) {
            Ok(qp) => {
                self.access = join.access.clone();
                self.limit = depth;
                self.link = Link::Connecting { qp, join, request };
                self.arm_link_timer(reactor, JOIN_TIMEOUT);
            }
            Err(error) => {
                let reason = HostError::Connection(format!("cannot connect to {}: {}", join.endpoint.address, in_words(&error)));
                self.tell(News::Down(QueueEnd::HARMLESS, reason));
            }
        }
    }

    /// All queues have joined.
    pub(crate) fn go<R: Reactor>(&mut self, reactor: &R, association: AssociationId) {
        if let Link::Ready { qp } | Link::Restoring { qp } = self.link
            && association == self.association
        {
            self.link = Link::Live { qp };
            self.failing = false;
            self.last_sent = reactor.now();
        }
    }

    /// Ends the connection.
    pub(crate) fn leave<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, association: AssociationId) {
        if association != self.association {
            return;
        }
        match self.link {
            Link::Restoring { qp } | Link::Live { qp } => {
                self.link = Link::Leaving { qp };
                fabric.disconnect(reactor, qp);
                self.arm_link_timer(reactor, LEAVE_TIMEOUT);
            }
            Link::Leaving { .. } | Link::Down | Link::Gone => {}
            // Nothing but Connect was ever sent on it.
            Link::Connecting { .. } | Link::Joining { .. } | Link::Ready { .. } => {
                self.drop_link(reactor, fabric);
                self.tell(News::Down(QueueEnd::HARMLESS, HostError::Connection(Disconnect::Closed.to_string())));
            }
        }
    }

    /// Operations do not wait any more: those that are here fail, and those to come, until an association is live again. What the old association still has
    /// fails once it is taken back; nothing else is sent before that one is dead at the target, so that it cannot land after something newer.
    pub(crate) fn fail_fast(&mut self) {
        if !matches!(self.link, Link::Live { .. } | Link::Gone) {
            self.failing = true;
            self.fail_waiting();
        }
    }

    pub(super) fn fail_waiting(&mut self) {
        while let Some(index) = self.waiting.pop_front() {
            self.end_here(index, Err(BlockError::TargetAway));
        }
    }

    /// The volume is gone: everything ends.
    pub(crate) fn give_up<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        if let Some(qp) = self.link.qp() {
            self.take_back(fabric, qp);
        }
        self.drop_link(reactor, fabric);
        self.link = Link::Gone;
        self.waiting.clear();
        self.delayed.clear();
        let all: Vec<_> = self.operations.iter().map(|(index, _)| index).collect();
        if !all.is_empty() {
            let changes = self.operations.iter().filter(|(_, operation)| operation.action.is_change()).count();
            warn!(queue = self.queue, "{} operations are not carried out, {changes} of which were to change data", all.len());
        }
        for index in all {
            self.end_here(index, Err(BlockError::VolumeGone));
        }
    }

    pub(crate) fn resize(&mut self, geometry: Geometry) {
        self.access.geometry = geometry;
    }

    /// Forgets the connection, without a word to the control.
    fn drop_link<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        if let Some(timer) = self.link_timer.take() {
            reactor.cancel_timer(timer);
        }
        if let Link::Joining { qp, rkey } = self.link
            && let Some(buffer) = fabric.revoke(qp, rkey)
        {
            // It is the only one for Connect: the next connection needs it.
            self.connect_buffer.give_back(buffer);
        }
        if let Some(qp) = self.link.qp() {
            fabric.destroy(reactor, qp);
        }
        if !matches!(self.link, Link::Gone) {
            self.link = Link::Down;
        }
    }

    fn arm_link_timer<R: Reactor>(&mut self, reactor: &mut R, after: Duration) {
        if let Some(timer) = self.link_timer.take() {
            reactor.cancel_timer(timer);
        }
        self.link_timer = Some(reactor.set_timer(reactor.now() + after, self.tokens.queue(QueueTimer::Link)));
    }

    /// The connection cannot be used any more; the association ends.
    pub(super) fn fail<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, error: HostError) {
        if self.link.carries() {
            self.tell(News::Failed(error));
            self.leave(reactor, fabric, self.association);
        } else {
            self.drop_link(reactor, fabric);
            self.tell(News::Down(QueueEnd::HARMLESS, error));
        }
    }

    /// Handles a completion of this queue.
    pub(crate) fn on_completion<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, completion: Completion) {
        match completion {
            Completion::Established { private_data } => self.on_established(reactor, fabric, &private_data.0),
            Completion::Rejected { private_data } => {
                let Link::Connecting { request, .. } = &self.link else { return };
                let error = rejected(&private_data.0, request);
                self.fail(reactor, fabric, error);
            }
            Completion::SendDone { id, data, .. } | Completion::Flushed { id, data } => self.on_sent(reactor.now(), id, data),
            Completion::Received { header, data, invalidated } => {
                let cqe = Cqe::read_from(header.as_bytes()).ok().filter(|_| data.is_none());
                let result = match cqe {
                    Some(cqe) => self.on_response(reactor, fabric, &cqe, invalidated),
                    None => Err(HostError::Violation("a response is not as long as a completion queue entry")),
                };
                if let Err(error) = result {
                    self.fail(reactor, fabric, error);
                }
            }
            Completion::Disconnected { reason } => self.on_disconnected(reactor, fabric, &reason),
            Completion::ConnectRequest { .. } | Completion::ReadDone { .. } => {}
        }
    }

    fn on_established<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, private_data: &[u8]) {
        let Link::Connecting { qp, join, .. } = &self.link else { return };
        let qp = *qp;
        // A target may have made the queue smaller than asked for.
        if let Ok(accept) = QueueAccept::from_wire(private_data)
            && accept.controller_receive_size > 0
        {
            self.limit = self.limit.min(usize::from(accept.controller_receive_size));
        }
        let sqe = Sqe::connect(CONNECT_CID, &Connect::io(join.qid, join.queue_size));
        let Some(mut buffer) = self.connect_buffer.take() else { return self.fail(reactor, fabric, HostError::NoBuffers) };
        let len_bytes = join.connect_data.len();
        buffer.set_len(len_bytes);
        buffer.copy_from_slice(&join.connect_data);
        let Some(remote) = fabric.expose(qp, buffer, len_bytes, Access::RemoteRead) else {
            // The queue pair failed within this very turn, and let the buffer go: it is set aside again before anyone else takes it.
            if let Some(buffer) = reactor.pool().take(IDENTIFY_BYTES) {
                self.connect_buffer.give_back(buffer);
            }
            return;
        };
        let sgl = keyed(fabric, qp, remote, len_bytes);
        fabric.post_send(qp, CONNECT_WORK, sqe.with_sgl(sgl).as_bytes(), None, None);
        self.link = Link::Joining { qp, rkey: remote.rkey };
    }

    /// A Send is done, or was flushed: then the end of the connection is reported next, and takes the operation back.
    fn on_sent(&mut self, now: Time, id: WorkId, data: Option<Buffer>) {
        let index = u16::try_from(id.0).ok().and_then(|cid| self.operations.find(Cid::new(cid)));
        if let Some(index) = index
            && let Some(Operation { place: Place::Sent(sent), .. }) = self.operations.get_mut(index)
        {
            sent.send_done = true;
            if data.is_some() {
                sent.buffer = data;
            }
            self.finish(now, index);
        }
    }

    fn on_response<R: Reactor>(
        &mut self,
        reactor: &mut R,
        fabric: &mut Fabric,
        cqe: &Cqe,
        invalidated: Option<Rkey>,
    ) -> Result<(), HostError> {
        match self.link {
            Link::Joining { qp, rkey } => return self.on_connect_response(reactor, fabric, qp, rkey, cqe, invalidated),
            Link::Restoring { .. } | Link::Live { .. } => {}
            // What comes after we closed is of no use any more: the operation is sent again.
            Link::Leaving { .. } => return Ok(()),
            _ => return Err(HostError::Violation("it sent a response before any command")),
        }
        let index = self.operations.find(cqe.cid()).ok_or(HostError::Violation("it answered a command that was not sent"))?;
        let Some(Operation { place: Place::Sent(sent), .. }) = self.operations.get_mut(index) else {
            return Err(HostError::Violation("it answered a command that was not sent"));
        };
        if sent.status.is_some() {
            return Err(HostError::Violation("it answered a command twice"));
        }
        if invalidated.is_some() && invalidated != sent.rkey {
            return Err(HostError::Violation("it invalidated a key of another command"));
        }
        sent.status = Some(cqe.status());
        if let (Some(rkey), Some(qp)) = (sent.rkey.take(), self.link.qp()) {
            sent.buffer = fabric.revoke(qp, rkey);
        }
        self.finish(reactor.now(), index);
        Ok(())
    }

    fn on_connect_response<R: Reactor>(
        &mut self,
        reactor: &mut R,
        fabric: &mut Fabric,
        qp: QpId,
        rkey: Rkey,
        cqe: &Cqe,
        invalidated: Option<Rkey>,
    ) -> Result<(), HostError> {
        if cqe.cid() != CONNECT_CID || invalidated.is_some_and(|key| key != rkey) {
            return Err(HostError::Violation("its answer to Connect is one to another command"));
        }
        if let Some(buffer) = fabric.revoke(qp, rkey) {
            self.connect_buffer.give_back(buffer);
        }
        if !cqe.status().is_success() {
            return Err(HostError::Refused(ConnectRefusal::from_completion(cqe.status(), cqe.dw0())));
        }
        if ConnectResult::from_wire(cqe.dw0()).authentication_required {
            return Err(HostError::AuthenticationRequired);
        }
        if let Some(timer) = self.link_timer.take() {
            reactor.cancel_timer(timer);
        }
        self.link = Link::Ready { qp };
        self.tell(News::Joined);
        Ok(())
    }

    /// The connection is over: what was sent on it comes back.
    fn on_disconnected<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, reason: &Disconnect) {
        let (Link::Restoring { qp } | Link::Live { qp } | Link::Leaving { qp }) = self.link else {
            return self.fail(reactor, fabric, disconnected(reason, self.address));
        };
        let unanswered_change = self.operations.iter().any(|(_, operation)| operation.is_unanswered() && operation.action.is_change());
        let quiet_for = reactor.now().since(self.last_sent);
        self.take_back(fabric, qp);
        self.drop_link(reactor, fabric);
        let end = QueueEnd { known_to_target: reason.known_to_peer(), unanswered_change, quiet_for };
        self.tell(News::Down(end, disconnected(reason, self.address)));
    }

    pub(crate) fn on_link_timer<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        self.link_timer = None;
        match self.link {
            Link::Leaving { qp } => fabric.abort(reactor, qp),
            Link::Connecting { .. } => {
                self.fail(reactor, fabric, HostError::Timeout { command: "the connection of an I/O queue", after: JOIN_TIMEOUT });
            }
            Link::Joining { .. } => {
                let reason = format!("no answer to Connect of an I/O queue within {} s", JOIN_TIMEOUT.as_secs());
                self.fail(reactor, fabric, HostError::Torn(reason));
            }
            _ => {}
        }
    }
}
