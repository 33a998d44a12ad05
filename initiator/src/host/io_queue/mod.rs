//! An I/O queue: the block operations of one reactor thread, on the connection that the volume has at the time.
//!
//! Operations outlive connections. Each sits in a slot from its submission to its end; what is sent and not answered when a connection fails comes back,
//! buffer and all, and is sent again in the order of submission once the control says that it may.
//!
//! Submitting only queues: operations are sent at the end of a turn, when all that had happened to the connection is known. So no buffer is lent to a
//! queue pair that has just failed.

mod keep;
pub(crate) mod link;
mod send;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use godwit_memory::Reservation;
use godwit_nvme::QueueSize;
use godwit_nvme::cm::QueueRequest;
use godwit_rdma::{Fabric, QpId, Rkey};
use godwit_reactor::{Reactor, Time, TimerId};

use super::TokenSpace;
use super::bringup::IDENTIFY_BYTES;
use super::message::{AssociationId, FromQueue, IoAccess, Join, Mailbox, News};
use super::operation::{Action, Operation, Owner, Place, Untaken, plan};
use super::retry::{Verdict, judge};
use super::slots::{MAX_SLOTS, Slots};
use super::status::{QueueCounters, VolumeStatus};
use crate::block::{BlockDone, BlockError, BlockOp, BlockQueue, Geometry, Losses, Ticket};
use keep::Keep;

/// The smallest buffers of a pool, for the range of a discard.
const SMALL_BUFFER_BYTES: usize = 16;

/// The connection.
#[derive(Debug)]
enum Link {
    /// There is none.
    Down,
    /// It is being made.
    Connecting { qp: QpId, join: Box<Join>, request: QueueRequest },
    /// Connect is sent.
    Joining { qp: QpId, rkey: Rkey },
    /// The queue has joined and waits for the others.
    Ready { qp: QpId },
    /// Copies are written again on it.
    Restoring { qp: QpId },
    /// Operations are sent on it.
    Live { qp: QpId },
    /// We have closed our direction.
    Leaving { qp: QpId },
    /// There will be none.
    Gone,
}

impl Link {
    fn qp(&self) -> Option<QpId> {
        match *self {
            Self::Connecting { qp, .. }
            | Self::Joining { qp, .. }
            | Self::Ready { qp }
            | Self::Restoring { qp }
            | Self::Live { qp }
            | Self::Leaving { qp } => Some(qp),
            Self::Down | Self::Gone => None,
        }
    }

    /// Whether commands may be outstanding on it, and answers are taken.
    fn carries(&self) -> bool {
        matches!(self, Self::Restoring { .. } | Self::Live { .. })
    }
}

/// Operations of the volume's own in a queue: the flush before its end.
const FAREWELL: usize = 1;

/// The timers of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueTimer {
    /// Joining or leaving takes too long.
    Link,
    /// Operations in flight are to be checked.
    Watch,
    /// An operation is to be sent again.
    Retry,
}

/// An operation that ended well, and how long it took.
type Count = (Action, Duration);

/// An I/O queue.
#[derive(Debug)]
pub struct IoQueue {
    queue: usize,
    tokens: TokenSpace,
    control: Mailbox<FromQueue>,
    io_timeout: Duration,
    abort_timeout: Duration,
    status: Arc<VolumeStatus>,
    /// The target has been away for too long: operations fail instead of waiting.
    failing: bool,
    keep: Keep,
    /// Operations of clients that it takes.
    depth: usize,
    /// Operations of its own that are in the table.
    own: usize,
    link: Link,
    /// Where the target is.
    address: SocketAddr,
    association: AssociationId,
    access: IoAccess,
    operations: Slots<Operation>,
    /// To be sent, in order.
    waiting: VecDeque<u16>,
    /// To be sent again at a time.
    delayed: Vec<(Time, u16)>,
    /// What ended, each with what is to be counted of one that ended well.
    done: VecDeque<(BlockDone, Option<Count>)>,
    /// Of the one that its user was given last, who may have it fail after all.
    uncounted: Option<Count>,
    next_sequence: u64,
    in_flight: usize,
    /// The most that may be in flight on this connection.
    limit: usize,
    last_sent: Time,
    connect_buffer: Reservation,
    link_timer: Option<TimerId>,
    watch_timer: Option<TimerId>,
    retry_timer: Option<(Time, TimerId)>,
}

impl IoQueue {
    /// The queue of a volume on this thread, as deep as the first association allows.
    pub(crate) fn new<R: Reactor>(
        reactor: &R,
        queue: usize,
        tokens: TokenSpace,
        control: Mailbox<FromQueue>,
        io_timeout: Duration,
        join: &Join,
    ) -> Option<Self> {
        let own = FAREWELL + if join.retain_bytes > 0 { keep::OWN_OPERATIONS } else { 0 };
        let depth = depth(join.queue_size).min(MAX_SLOTS - own);
        let slots = depth + own;
        Some(Self {
            queue,
            tokens,
            control,
            io_timeout,
            abort_timeout: join.abort_timeout,
            status: Arc::clone(&join.status),
            failing: false,
            keep: Keep::new(reactor.pool(), join, slots)?,
            depth,
            own: 0,
            link: Link::Down,
            address: join.endpoint.address,
            association: AssociationId::default(),
            access: join.access.clone(),
            operations: Slots::new(slots),
            waiting: VecDeque::with_capacity(slots),
            delayed: Vec::with_capacity(slots),
            done: VecDeque::with_capacity(depth),
            uncounted: None,
            next_sequence: 0,
            in_flight: 0,
            limit: 0,
            last_sent: Time::default(),
            connect_buffer: Reservation::new(reactor.pool(), IDENTIFY_BYTES, 1)?,
            link_timer: None,
            watch_timer: None,
            retry_timer: None,
        })
    }

    /// Whether a completion is this queue's.
    pub(crate) fn owns(&self, qp: QpId) -> bool {
        self.link.qp() == Some(qp)
    }

    /// Whether the target has commands of it.
    pub(crate) fn expects_answers(&self) -> bool {
        self.in_flight > 0
    }

    fn tell(&self, news: News) {
        self.control.send(FromQueue { association: self.association, queue: self.queue, news });
    }

    fn counters(&self) -> &QueueCounters {
        self.status.queue(self.queue)
    }

    /// Ends an operation that was answered and whose Send is done, or has it sent again.
    fn finish(&mut self, now: Time, index: u16) {
        let Some(operation) = self.operations.get_mut(index) else { return };
        let Place::Sent(sent) = &mut operation.place else { return };
        let Some(status) = sent.status.filter(|_| sent.send_done) else { return };
        let (buffer, sent_at) = (sent.buffer.take(), sent.at);
        operation.place = Place::Here(buffer);
        self.in_flight -= 1;
        match (judge(status, operation.retries, &self.access.retry_delays), operation.owner) {
            (Verdict::Done, Owner::Client(_)) => self.succeeded(now, index, sent_at),
            (Verdict::Failed(error), Owner::Client(_)) => self.end_here(index, Err(error)),
            (verdict @ (Verdict::Done | Verdict::Failed(_)), Owner::Room) => self.room_made(now, index, sent_at, verdict == Verdict::Done),
            (Verdict::Done, Owner::Copy) => self.end_here(index, Ok(())),
            (Verdict::Done, Owner::Farewell) => self.flushed(index, Ok(())),
            (Verdict::Failed(error), Owner::Farewell) => self.flushed(index, Err(error)),
            (Verdict::Failed(error), Owner::Copy) => self.copy_failed(index, error),
            (Verdict::Retry(delay), _) => {
                operation.retries += 1;
                self.delayed.push((now + delay, index));
                self.counters().count_retry();
            }
        }
    }

    fn flushed(&mut self, index: u16, result: Result<(), BlockError>) {
        self.end_here(index, result);
        self.tell(News::Flushed(result));
    }

    /// Ends an operation that is not at the target.
    fn end_here(&mut self, index: u16, result: Result<(), BlockError>) {
        self.end_counted(index, result, None);
    }

    /// The same, of one that ended well.
    fn end_counted(&mut self, index: u16, result: Result<(), BlockError>, count: Option<Count>) {
        let Some(operation) = self.operations.remove(index) else { return };
        let mut buffer = match operation.place {
            Place::Here(buffer) => buffer,
            Place::Sent(sent) => sent.buffer,
        };
        let Owner::Client(ticket) = operation.owner else { return self.end_own(operation.owner, buffer) };
        if result.is_err() {
            self.counters().count_error();
        }
        match operation.action {
            Action::Read { len_bytes, .. } => {
                if let Some(buffer) = &mut buffer {
                    buffer.set_len(len_bytes);
                }
            }
            // The range of a discard is ours.
            Action::Discard => buffer = None,
            _ => {}
        }
        self.done.push_back((BlockDone { ticket, result, buffer }, count));
    }
}

/// Commands that may be outstanding: one entry of a queue always stays free.
fn depth(size: QueueSize) -> usize {
    usize::from(size.zeroes_based())
}

impl<R: Reactor> BlockQueue<R> for IoQueue {
    fn geometry(&self) -> Geometry {
        self.access.geometry
    }

    fn losses(&self) -> &Losses {
        self.keep.losses()
    }

    fn submit(&mut self, reactor: &mut R, _: &mut Fabric, ticket: Ticket, op: BlockOp) -> Result<(), BlockOp> {
        if self.operations.len() - self.own + self.done.len() >= self.depth {
            return Err(op);
        }
        let (action, buffer) = match plan(op, &self.access, || reactor.pool().take(SMALL_BUFFER_BYTES)) {
            Ok(planned) => planned,
            Err(Untaken::Full(op)) => return Err(op),
            Err(Untaken::Wrong(error, buffer)) => {
                self.done.push_back((BlockDone { ticket, result: Err(error), buffer }, None));
                return Ok(());
            }
        };
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let operation = Operation {
            owner: Owner::Client(ticket),
            action,
            sequence,
            submitted: reactor.now(),
            retries: 0,
            was_sent: false,
            place: Place::Here(buffer),
        };
        let index = self.operations.insert(operation).expect("a slot is free, as was checked");
        if matches!(self.link, Link::Gone) {
            self.end_here(index, Err(BlockError::VolumeGone));
        } else if self.failing {
            self.end_here(index, Err(BlockError::TargetAway));
        } else {
            self.waiting.push_back(index);
        }
        Ok(())
    }

    fn next_done(&mut self) -> Option<BlockDone> {
        // Only now: its user has taken it for what it is, and a count that others read never goes back.
        if let Some((action, took)) = self.uncounted.take() {
            self.counters().count(action, took);
        }
        let (done, count) = self.done.pop_front()?;
        self.uncounted = count;
        Some(done)
    }

    fn failed_after_all(&mut self) {
        if self.uncounted.take().is_some() {
            self.counters().count_error();
        }
    }

    fn abandon(&mut self, ticket: Ticket) {
        let found = self.operations.iter().find(|(_, operation)| operation.owner == Owner::Client(ticket) && !operation.was_sent);
        let Some((index, _)) = found else { return };
        self.waiting.retain(|&waiting| waiting != index);
        self.end_here(index, Err(BlockError::Abandoned));
    }
}
