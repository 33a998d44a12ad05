//! The table of associations, and the fence between an old association and a new one of the same host.
//!
//! An association is one controller with its admin queue and its I/O queues, which may live on different reactor threads.
//!
//! # The fence
//!
//! A host that lost its connections connects again and repeats what was not answered. A write of the old association that lands after such a
//! repeated one, or after a newer write, would be silent corruption. So:
//!
//! 1. An association is *dying* once one of its connections closed, its keep-alive timer ran out, or it was dropped. This never ends: see
//!    [`Association::is_dying`], an atomic that each queue reads before it starts a command.
//! 2. An I/O queue is a [`Member`] of its association from its Connect until it is closed *and* the last operation that it started in a backend
//!    has ended. The membership is a token that the queue holds and spends ([`Associations::leave`]); joining a dying association is refused.
//! 3. An admin Connect of the same host NQN, host identifier and subsystem is refused with [`OpenError::Fenced`] while a dying association of
//!    these has members.
//!
//! Hence, when a new association of a host comes up, no operation of an old, dying one is in a backend: a queue that has one is a member (2), and with
//! members the new one does not come up (3). And none starts later: a queue that could start one is a member as well, for it leaves only after it
//! was closed. No order between the flag and the start of a command is needed for this; reading the flag only makes the end come sooner.
//! Flag and members change under one lock, so that a queue cannot join between the two.
//!
//! 4. Whether an old association is dying may be known late: the end of a connection is on the wire before the worker that closed it has come to say so,
//!    and a timer that is due fires when its worker gets to it, be that after a long stall. A host may have drawn its conclusions by then. So before
//!    an admin Connect is admitted, each worker that has a queue of a live association of the same host and subsystem looks
//!    ([`Associations::workers_of`], [`OpenError::Unseen`]): what had ended when the host connected is dying then. For timers a turn of its loop does. The end
//!    of a stream may lie behind more commands than a turn deals with, behind some that find no memory, or behind bytes without end; but the kernel knows of
//!    it, and is asked ([`Fabric::has_ended`](godwit_rdma::Fabric::has_ended)). What lies before it does not start any more. The end of an RDMA device's
//!    connection is known when its event has come. A command that a worker finds after the timer ran out does not start it again, and is not carried
//!    out: see the module `keep_alive`, also for why hosts that reckon when an association must be over reckon right.
//!
//! A *live* association is never superseded: two volumes, two paths, a bench beside a volume, and cloned machines all share one identity. The admin
//! queue is no member, for its commands reach no backend.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use godwit_nvme::{Cntlid, HostId, Nqn, Qid};

use crate::error_log::ErrorLog;
use crate::keep_alive::KeepAlive;
use crate::queue::QueueKey;

/// An association of this process; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AssociationId(u64);

/// Who a host is: two hosts are the same if both parts are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) nqn: Nqn,
    pub(crate) id: HostId,
}

/// What an association is with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubsystemIndex {
    /// The discovery subsystem.
    Discovery,
    /// One of the configured subsystems.
    Nvm(usize),
}

/// Why an association ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// One of its connections closed.
    ConnectionClosed,
    /// The host did not send anything in time.
    KeepAliveExpired,
    /// The host disabled the controller or shut it down while it had I/O queues.
    ControllerDisabled,
    /// An administrator took the host's access away.
    AccessRevoked,
    /// An administrator removed the subsystem.
    SubsystemRemoved,
    /// An administrator reopened a namespace that has lost writes: hosts have to look at its count of unsafe shutdowns.
    NamespaceReopened,
    /// An administrator gave the identifier of a removed namespace to another one.
    NamespaceReplaced,
}

impl Ending {
    /// Whether the host may still shut the controller down through its admin queue.
    pub(crate) fn leaves_the_admin_queue(self) -> bool {
        matches!(self, Self::ConnectionClosed | Self::ControllerDisabled)
    }

    /// Whether an administrator should see it among the latest errors: not what hosts do when they mean to.
    pub(crate) fn is_worth_a_note(self) -> bool {
        !self.leaves_the_admin_queue()
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConnectionClosed => "one of its connections closed",
            Self::KeepAliveExpired => "no command came in time",
            Self::ControllerDisabled => "the host disabled the controller",
            Self::AccessRevoked => "an administrator took the host's access away",
            Self::SubsystemRemoved => "an administrator removed the subsystem",
            Self::NamespaceReopened => "an administrator reopened a namespace that had lost writes",
            Self::NamespaceReplaced => "an administrator put another namespace in the place of a removed one",
        })
    }
}

/// What the queues of an association share.
#[derive(Debug)]
pub(crate) struct Association {
    pub(crate) id: AssociationId,
    pub(crate) cntlid: Cntlid,
    pub(crate) host: Host,
    pub(crate) subsystem: SubsystemIndex,
    pub(crate) keep_alive: KeepAlive,
    dying: AtomicBool,
    ready: AtomicBool,
    errors: Mutex<ErrorLog>,
}

impl Association {
    /// Whether no command may start any more.
    pub(crate) fn is_dying(&self) -> bool {
        self.dying.load(Ordering::Relaxed)
    }

    /// Whether the controller is enabled (CSTS.RDY): I/O queues connect only then.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    /// The error log. Locked for errors and for reading the log, never for a command that goes well.
    pub(crate) fn errors(&self) -> MutexGuard<'_, ErrorLog> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue as an administrator sees it.
#[derive(Clone, Debug)]
pub(crate) struct QueueInfo {
    pub(crate) qid: Qid,
    /// The worker that it lives on.
    pub(crate) worker: usize,
    /// The host's end.
    pub(crate) peer: String,
    /// Commands that the host may have outstanding.
    pub(crate) depth: u16,
    /// Commands that have not been answered.
    pub(crate) in_flight: Arc<AtomicU32>,
}

/// An admin Connect that the fence holds back: where to tell that it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) worker: usize,
    pub(crate) queue: QueueKey,
}

/// The membership of an I/O queue: see the module's header.
#[must_use = "a member that never leaves fences its host out for ever"]
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) association: Arc<Association>,
    qid: Qid,
}

/// Why there is no new association.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OpenError {
    /// Commands of a dying association of this host are still running. The waiter will be told.
    #[error("commands of the host's previous association are still running")]
    Fenced,
    /// Not every worker has looked yet whether associations of this host have ended. The waiter will be told.
    #[error("whether the host's previous associations have ended is not known yet")]
    Unseen,
    /// All controllers are taken.
    #[error("all {limit} controllers are in use")]
    Full {
        /// How many there may be.
        limit: u16,
    },
}

/// Why an I/O queue does not join an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JoinError {
    /// No such controller, or it belongs to another host or subsystem, or it is dying.
    #[error("there is no controller {0} for this host")]
    UnknownController(Cntlid),
    /// The controller takes no I/O queues now.
    #[error("the controller is not enabled")]
    NotReady,
    /// The queue is there already.
    #[error("queue {0} is already connected")]
    QueueInUse(Qid),
}

/// All associations of the daemon.
#[derive(Debug)]
pub(crate) struct Associations {
    table: Mutex<Table>,
    limit: u16,
}

#[derive(Debug, Default)]
struct Table {
    entries: BTreeMap<u16, Entry>,
    last_cntlid: u16,
    last_id: u64,
    waiters: Vec<Waiter>,
}

#[derive(Debug)]
struct Entry {
    association: Arc<Association>,
    /// The worker of the admin queue, while that is there.
    admin: Option<usize>,
    /// The members, and their workers.
    members: BTreeMap<u16, usize>,
    /// Its queues, the admin queue among them.
    queues: BTreeMap<u16, QueueInfo>,
}

impl Associations {
    /// A table of at most `limit` associations.
    pub(crate) fn new(limit: u16) -> Self {
        Self { table: Mutex::default(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing panics in between that leaves the table half changed.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an association for an admin queue. When the fence holds it back, the waiter is told once it no longer does.
    pub(crate) fn open(&self, host: Host, subsystem: SubsystemIndex, waiter: Waiter) -> Result<Arc<Association>, OpenError> {
        let mut table = self.lock();
        if table.entries.values().any(|entry| entry.fences(&host, subsystem)) {
            if !table.waiters.contains(&waiter) {
                table.waiters.push(waiter);
            }
            return Err(OpenError::Fenced);
        }
        let cntlid = table.free_cntlid(self.limit).ok_or(OpenError::Full { limit: self.limit })?;
        table.last_cntlid = cntlid;
        table.last_id += 1;
        let association = Arc::new(Association {
            id: AssociationId(table.last_id),
            cntlid: Cntlid::new(cntlid),
            host,
            subsystem,
            keep_alive: KeepAlive::default(),
            dying: AtomicBool::new(false),
            ready: AtomicBool::new(false),
            errors: Mutex::default(),
        });
        let entry =
            Entry { association: Arc::clone(&association), admin: Some(waiter.worker), members: BTreeMap::new(), queues: BTreeMap::new() };
        table.entries.insert(cntlid, entry);
        Ok(association)
    }

    /// The workers that have queues of live associations of this host and subsystem, each once.
    pub(crate) fn workers_of(&self, host: &Host, subsystem: SubsystemIndex) -> Vec<usize> {
        let table = self.lock();
        let live = table.entries.values().filter(|entry| {
            let association = &entry.association;
            !association.is_dying() && association.subsystem == subsystem && association.host == *host
        });
        let mut workers: Vec<_> = live.flat_map(|entry| entry.members.values().copied().chain(entry.admin)).collect();
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    /// Makes an I/O queue a member.
    pub(crate) fn join(
        &self,
        cntlid: Cntlid,
        host: &Host,
        subsystem: SubsystemIndex,
        qid: Qid,
        worker: usize,
    ) -> Result<Member, JoinError> {
        let mut table = self.lock();
        let entry = table
            .entries
            .get_mut(&cntlid.get())
            .filter(|entry| entry.association.host == *host && entry.association.subsystem == subsystem && !entry.association.is_dying())
            .ok_or(JoinError::UnknownController(cntlid))?;
        if !entry.association.is_ready() {
            return Err(JoinError::NotReady);
        }
        if entry.members.contains_key(&qid.get()) {
            return Err(JoinError::QueueInUse(qid));
        }
        entry.members.insert(qid.get(), worker);
        Ok(Member { association: Arc::clone(&entry.association), qid })
    }

    /// Ends a membership. Returns who is to be told that the fence may be gone.
    #[must_use = "the waiters must be told"]
    pub(crate) fn leave(&self, member: Member) -> Vec<Waiter> {
        let mut table = self.lock();
        if let Some(entry) = table.entry_of(&member.association) {
            entry.members.remove(&member.qid.get());
            entry.queues.remove(&member.qid.get());
        }
        table.settle(&member.association)
    }

    /// The admin queue is gone. Returns who is to be told that the fence may be gone.
    #[must_use = "the waiters must be told"]
    pub(crate) fn close_admin(&self, association: &Arc<Association>) -> Vec<Waiter> {
        let mut table = self.lock();
        if let Some(entry) = table.entry_of(association) {
            entry.admin = None;
            entry.queues.remove(&Qid::ADMIN.get());
        }
        table.settle(association)
    }

    /// Makes an association dying. Returns the workers that have queues of it, each once; none when it was dying before.
    pub(crate) fn kill(&self, association: &Arc<Association>) -> Vec<usize> {
        let mut table = self.lock();
        if association.dying.swap(true, Ordering::Relaxed) {
            return Vec::new();
        }
        association.set_ready(false);
        let Some(entry) = table.entry_of(association) else { return Vec::new() };
        let mut workers: Vec<_> = entry.members.values().copied().chain(entry.admin).collect();
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    /// Says more about a queue that has just connected.
    pub(crate) fn describe(&self, association: &Arc<Association>, queue: QueueInfo) {
        if let Some(entry) = self.lock().entry_of(association) {
            entry.queues.insert(queue.qid.get(), queue);
        }
    }

    /// All associations and their queues, as they are now.
    pub(crate) fn all(&self) -> Vec<(Arc<Association>, Vec<QueueInfo>)> {
        let of = |entry: &Entry| (Arc::clone(&entry.association), entry.queues.values().cloned().collect());
        self.lock().entries.values().map(of).collect()
    }

    /// Whether the controller has I/O queues.
    pub(crate) fn has_members(&self, association: &Arc<Association>) -> bool {
        self.lock().entry_of(association).is_some_and(|entry| !entry.members.is_empty())
    }

    /// Forgets a waiter that gave up.
    pub(crate) fn stop_waiting(&self, waiter: Waiter) {
        self.lock().waiters.retain(|other| *other != waiter);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().entries.len()
    }
}

impl Entry {
    fn fences(&self, host: &Host, subsystem: SubsystemIndex) -> bool {
        let Self { association, members, .. } = self;
        association.is_dying() && !members.is_empty() && association.subsystem == subsystem && association.host == *host
    }
}

impl Table {
    fn entry_of(&mut self, association: &Arc<Association>) -> Option<&mut Entry> {
        self.entries.get_mut(&association.cntlid.get()).filter(|entry| entry.association.id == association.id)
    }

    /// The next free controller id after the last one given, so that ids are not reused soon; 0 and FFF0h and above are none.
    fn free_cntlid(&self, limit: u16) -> Option<u16> {
        const MAX: u16 = 0xFFEF;
        if self.entries.len() >= usize::from(limit) {
            return None;
        }
        let after = (self.last_cntlid.saturating_add(1)..=MAX).find(|id| !self.entries.contains_key(id));
        after.or_else(|| (1..=MAX).find(|id| !self.entries.contains_key(id)))
    }

    /// Removes an association that nothing is left of; takes the waiters if it no longer fences.
    fn settle(&mut self, association: &Arc<Association>) -> Vec<Waiter> {
        let Some(entry) = self.entry_of(association) else { return Vec::new() };
        if !entry.members.is_empty() {
            return Vec::new();
        }
        let dying = entry.association.is_dying();
        if entry.admin.is_none() {
            self.entries.remove(&association.cntlid.get());
        }
        // They ask again, and wait again if another association fences them.
        if dying { std::mem::take(&mut self.waiters) } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: SubsystemIndex = SubsystemIndex::Nvm(0);

    fn host(id: u8) -> Host {
        Host { nqn: Nqn::new("nqn.2026-11.org.example:host").unwrap(), id: HostId([id; 16]) }
    }

    fn waiter(queue: u32) -> Waiter {
        Waiter { worker: 3, queue: QueueKey { index: queue, generation: 1 } }
    }

    fn opened(table: &Associations, id: u8) -> Arc<Association> {
        let association = table.open(host(id), VOLUME, waiter(0)).unwrap();
        association.set_ready(true);
        association
    }

    fn joined(table: &Associations, association: &Arc<Association>, qid: u16, worker: usize) -> Member {
        table.join(association.cntlid, &association.host, association.subsystem, Qid::new(qid), worker).unwrap()
    }

    #[test]
    fn a_live_association_is_never_superseded() {
        let table = Associations::new(8);
        let first = opened(&table, 1);
        let _member = joined(&table, &first, 1, 0);
        let second = opened(&table, 1);
        assert!(!first.is_dying() && !second.is_dying());
        assert_ne!(first.cntlid, second.cntlid);
    }

    #[test]
    fn a_dying_association_fences_its_host_until_its_last_member_leaves() {
        let table = Associations::new(8);
        let old = opened(&table, 1);
        let members = [joined(&table, &old, 1, 0), joined(&table, &old, 2, 1)];
        assert_eq!(table.kill(&old), [0, 1, 3]);
        assert_eq!(table.close_admin(&old), []);
        assert_eq!(table.open(host(1), VOLUME, waiter(7)).unwrap_err(), OpenError::Fenced);
        let [one, two] = members;
        assert_eq!(table.leave(one), []);
        assert_eq!(table.open(host(1), VOLUME, waiter(7)).unwrap_err(), OpenError::Fenced);
        assert_eq!(table.leave(two), [waiter(7)]);
        assert!(table.open(host(1), VOLUME, waiter(7)).is_ok());
        assert_eq!(table.len(), 1, "nothing is left of the old one");
    }

    #[test]
    fn the_fence_holds_before_the_admin_queue_is_closed_too() {
        let table = Associations::new(8);
        let old = opened(&table, 1);
        let member = joined(&table, &old, 1, 0);
        table.kill(&old);
        assert_eq!(table.open(host(1), VOLUME, waiter(7)).unwrap_err(), OpenError::Fenced);
        assert_eq!(table.leave(member), [waiter(7)]);
        assert!(table.open(host(1), VOLUME, waiter(7)).is_ok(), "an admin queue alone has no commands in a backend");
    }

    #[test]
    fn the_workers_of_live_associations_of_the_same_host_are_known() {
        let table = Associations::new(8);
        let (first, second) = (opened(&table, 1), opened(&table, 1));
        let _members = [joined(&table, &first, 1, 0), joined(&table, &first, 2, 3), joined(&table, &second, 1, 5)];
        assert_eq!(table.workers_of(&host(1), VOLUME), [0, 3, 5]);
        assert!(table.workers_of(&host(2), VOLUME).is_empty());
        assert!(table.workers_of(&host(1), SubsystemIndex::Discovery).is_empty());
        table.kill(&second);
        assert_eq!(table.workers_of(&host(1), VOLUME), [0, 3]);
    }

    #[test]
    fn the_fence_is_for_the_same_host_and_subsystem_only() {
        let table = Associations::new(8);
        let old = opened(&table, 1);
        let _member = joined(&table, &old, 1, 0);
        table.kill(&old);
        assert!(table.open(host(2), VOLUME, waiter(1)).is_ok());
        assert!(table.open(host(1), SubsystemIndex::Nvm(1), waiter(2)).is_ok());
        assert!(table.open(host(1), SubsystemIndex::Discovery, waiter(3)).is_ok());
    }

    #[test]
    fn nothing_joins_a_dying_a_disabled_or_a_foreign_controller() {
        let table = Associations::new(8);
        let association = opened(&table, 1);
        let join = |host: &Host, subsystem, qid| table.join(association.cntlid, host, subsystem, Qid::new(qid), 0).map(|_| ());
        let unknown = Err(JoinError::UnknownController(association.cntlid));
        assert_eq!(join(&host(2), VOLUME, 1), unknown);
        assert_eq!(join(&host(1), SubsystemIndex::Nvm(1), 1), unknown);
        association.set_ready(false);
        assert_eq!(join(&host(1), VOLUME, 1), Err(JoinError::NotReady));
        association.set_ready(true);
        assert_eq!(join(&host(1), VOLUME, 1), Ok(()));
        assert_eq!(join(&host(1), VOLUME, 1), Err(JoinError::QueueInUse(Qid::new(1))));
        table.kill(&association);
        assert_eq!(join(&host(1), VOLUME, 2), unknown);
    }

    #[test]
    fn controllers_are_limited_and_their_ids_not_reused_at_once() {
        let table = Associations::new(2);
        let (a, b) = (opened(&table, 1), opened(&table, 2));
        assert_eq!((a.cntlid, b.cntlid), (Cntlid::new(1), Cntlid::new(2)));
        assert_eq!(table.open(host(3), VOLUME, waiter(1)).unwrap_err(), OpenError::Full { limit: 2 });
        table.kill(&a);
        assert_eq!(table.close_admin(&a), []);
        assert_eq!(opened(&table, 3).cntlid, Cntlid::new(3));
    }

    #[test]
    fn killing_twice_tells_the_workers_once() {
        let table = Associations::new(2);
        let association = opened(&table, 1);
        assert_eq!(table.kill(&association), [3]);
        assert!(table.kill(&association).is_empty());
    }

    #[test]
    fn a_waiter_that_gave_up_is_not_told() {
        let table = Associations::new(2);
        let old = opened(&table, 1);
        let member = joined(&table, &old, 1, 0);
        table.kill(&old);
        assert!(table.open(host(1), VOLUME, waiter(7)).is_err());
        table.stop_waiting(waiter(7));
        assert_eq!(table.leave(member), []);
    }
}
