//! What a volume's control and its queues tell each other, across threads.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use godwit_nvme::{Cid, Cntlid, Nsid, Qid, QueueSize};

use godwit_reactor::Time;

use super::error::HostError;
use super::fence::QueueEnd;
use super::identity::VolumeIdentity;
use super::ledger::Ledger;
use super::queue::Endpoint;
use super::retry::RetryDelays;
use super::status::VolumeStatus;
use super::volume::Resolved;
use crate::block::{BlockError, Geometry};

/// The sending end of a channel whose receiver sleeps in a reactor, or wherever else.
pub struct Mailbox<T> {
    deliver: Arc<dyn Fn(T) + Send + Sync>,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self { deliver: Arc::clone(&self.deliver) }
    }
}

impl<T> Mailbox<T> {
    /// A mailbox that hands each message over by a call of `deliver`.
    pub fn with(deliver: impl Fn(T) + Send + Sync + 'static) -> Self {
        Self { deliver: Arc::new(deliver) }
    }

    /// A mailbox whose every message goes into a channel, and is followed by a call of `wake`. One to a thread that has ended is lost.
    pub fn new(sender: Sender<T>, wake: impl Fn() + Send + Sync + 'static) -> Self
    where
        T: Send + 'static,
    {
        Self::with(move |message| {
            if sender.send(message).is_ok() {
                wake();
            }
        })
    }

    /// Sends a message.
    pub fn send(&self, message: T) {
        (self.deliver)(message);
    }
}

impl<T> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mailbox")
    }
}

/// Counts the associations of a volume, so that a message about an old one is known as such.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AssociationId(pub(crate) u64);

/// What a queue needs to know of the namespace and the controller that it talks to.
#[derive(Clone, Debug)]
pub(crate) struct IoAccess {
    pub(crate) nsid: Nsid,
    pub(crate) geometry: Geometry,
    pub(crate) zeroes_may_deallocate: bool,
    pub(crate) in_capsule_bytes: usize,
    pub(crate) retry_delays: RetryDelays,
}

/// How an I/O queue joins an association.
#[derive(Clone, Debug)]
pub(crate) struct Join {
    pub(crate) endpoint: Endpoint,
    pub(crate) qid: Qid,
    pub(crate) queue_size: QueueSize,
    pub(crate) cntlid: Cntlid,
    /// Data of Connect.
    pub(crate) connect_data: Vec<u8>,
    pub(crate) access: IoAccess,
    /// How long an Abort may take to have an effect.
    pub(crate) abort_timeout: Duration,
    /// Bytes of copies that the queue retains; 0 for none.
    pub(crate) retain_bytes: usize,
    /// Where it says what it has acknowledged.
    pub(crate) ledger: Arc<Ledger>,
    /// Where the queue counts.
    pub(crate) status: Arc<VolumeStatus>,
}

/// From the control to a queue.
#[derive(Clone, Debug)]
pub struct ToQueue(pub(crate) Order);

#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// Connect.
    Join(AssociationId, Box<Join>),
    /// All queues have joined: copies of changes that were acknowledged up to this time are to be written again.
    Restore(AssociationId, Time),
    /// Operations may be sent.
    Go(AssociationId),
    /// Disconnect.
    Leave(AssociationId),
    /// Flush what was written: the volume is about to end.
    Flush(AssociationId),
    /// The volume has changed its size.
    Resize(Geometry),
    /// The target has been away for so long that operations do not wait for it any more.
    FailFast,
    /// The volume is gone for good.
    GiveUp,
}

/// From a queue to the control.
#[derive(Debug)]
pub struct FromQueue {
    pub(crate) association: AssociationId,
    /// Which queue, counted from 0.
    pub(crate) queue: usize,
    pub(crate) news: News,
}

#[derive(Debug)]
pub(crate) enum News {
    /// It has joined.
    Joined,
    /// It cannot go on; it is leaving.
    Failed(HostError),
    /// It has left, or could not join.
    Down(QueueEnd, HostError),
    /// Copies are written again, as far as was ordered; the next one was acknowledged at this time.
    Restored(Option<Time>),
    /// A copy cannot be written again.
    NotRestored(BlockError),
    /// What was written is flushed, or is not.
    Flushed(Result<(), BlockError>),
    /// A command is overdue: it is to be aborted.
    Overdue(Cid),
    /// Not of a queue, but of the resolver.
    Resolved(Resolved),
}

/// From a volume to whoever runs it.
#[derive(Debug)]
pub enum VolumeEvent {
    /// It can be used: its queues take operations.
    Up(Box<VolumeInfo>),
    /// The target is lost; operations wait.
    Lost(HostError),
    /// It is back.
    Restored,
    /// It has grown.
    Resized(Geometry),
    /// It could not be attached at all.
    Failed(HostError),
    /// It was given up: operations fail.
    Gone(HostError),
    /// It was shut down as asked.
    Stopped,
}

/// A volume that is up.
#[derive(Clone, Debug)]
pub struct VolumeInfo {
    /// Which it is.
    pub identity: VolumeIdentity,
    /// Its size and abilities.
    pub geometry: Geometry,
    /// How many queues it has: those of the first so many reactors.
    pub io_queues: usize,
    /// Operations that each queue takes.
    pub queue_depth: usize,
    /// How often the target's machine ended without a shutdown, if it counts that.
    pub unsafe_shutdowns: Option<u128>,
    pub(crate) ledger: Arc<Ledger>,
}

impl VolumeInfo {
    /// Whether somebody was told of every write that the target lost.
    pub(crate) fn are_losses_told(&self) -> bool {
        self.ledger.losses().are_told()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A volume of 1000 blocks of 4096 bytes.
    pub(crate) fn access() -> IoAccess {
        let geometry = Geometry {
            size_bytes: 1000 * 4096,
            block_bytes: 4096,
            optimal_bytes: 4096,
            max_transfer_bytes: 128 << 10,
            max_zeroes_bytes: 1 << 20,
            max_discard_bytes: 1 << 20,
            read_only: false,
            can_write_zeroes: true,
            can_discard: true,
            volatile_cache: true,
        };
        IoAccess { nsid: Nsid::new(1), geometry, zeroes_may_deallocate: true, in_capsule_bytes: 8192, retry_delays: [Duration::ZERO; 3] }
    }
}
