//! What the target offers: subsystems, their namespaces and hosts, and everything that its reactor threads share.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use godwit_nvme::{BlockSize, Nqn, Nsid};
use godwit_rdma::{FpduSize, Transport};
use uuid::Uuid;

use crate::association::{Association, Associations, Ending, Waiter};
use crate::counters::{StoreCounters, Totals};
use crate::journal::Journal;
use crate::limits::Limits;
use crate::mailbox::{Mailbox, Notice};
use crate::offer::{Offer, Offered};

/// A namespace: blocks of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its identifier within its subsystem.
    pub nsid: Nsid,
    /// Which store holds its blocks: an index into the stores that each worker is made with.
    pub store: usize,
    /// Size of a logical block.
    pub block_size: BlockSize,
    /// Size of the store in bytes; what is beyond the last whole block is not used.
    pub size_bytes: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether blocks can be given back to the store.
    pub can_deallocate: bool,
    /// Namespace globally unique identifier.
    pub nguid: [u8; 16],
    /// UUID.
    pub uuid: Uuid,
}

impl Namespace {
    /// Size in logical blocks.
    pub(crate) fn size_blocks(&self) -> u64 {
        self.size_bytes / u64::from(self.block_size.bytes())
    }
}

/// Who may connect to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Everyone.
    Any,
    /// The hosts of these names.
    Listed(Vec<Nqn>),
}

impl AllowedHosts {
    /// Whether the host of this name may connect.
    pub(crate) fn allow(&self, host: &Nqn) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(hosts) => hosts.contains(host),
        }
    }
}

/// A subsystem as it is configured.
#[derive(Clone, Debug)]
pub struct Subsystem {
    /// Its name.
    pub nqn: Nqn,
    /// Who may connect.
    pub hosts: AllowedHosts,
    /// Serial number: 1 to 20 printable ASCII characters.
    pub serial: String,
    /// Model number: 1 to 40 printable ASCII characters.
    pub model: String,
    /// Its namespaces, sorted by their identifiers.
    pub namespaces: Vec<Namespace>,
}

impl Subsystem {
    /// The namespace of this identifier.
    pub(crate) fn namespace(&self, nsid: Nsid) -> Option<&Namespace> {
        self.namespaces.binary_search_by_key(&nsid, |namespace| namespace.nsid).ok().map(|index| &self.namespaces[index])
    }
}

/// An address at which the target listens, for discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portal {
    /// What listens there.
    pub transport: Transport,
    /// The address, with its real port.
    pub address: SocketAddr,
    /// iWARP: whether to ask for CRC32C.
    pub crc: bool,
    /// iWARP: frame size.
    pub fpdu: FpduSize,
}

impl Portal {
    /// A portal with the usual settings.
    pub fn new(address: SocketAddr) -> Self {
        Self { transport: Transport::Iwarp, address, crc: true, fpdu: FpduSize::Large }
    }
}

/// All that the reactor threads of a target share. Nothing of it is locked by a command that goes well.
#[derive(Debug)]
pub struct Target {
    /// What new workers offer, and what an administrator sees. Workers have references of their own.
    offer: Mutex<Arc<Offer>>,
    pub(crate) portals: Vec<Portal>,
    pub(crate) limits: Limits,
    pub(crate) associations: Associations,
    pub(crate) mailboxes: Vec<Mailbox>,
    pub(crate) journal: Journal,
    /// By store. Numbers are not used again.
    counters: Mutex<Vec<Arc<StoreCounters>>>,
}

impl Target {
    /// A target for so many workers. Namespaces are sorted here.
    pub fn new(subsystems: Vec<Subsystem>, portals: Vec<Portal>, limits: Limits, workers: usize) -> Self {
        let namespaces = subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        let stores = namespaces.map(|namespace| namespace.store + 1).max().unwrap_or_default();
        let counters = (0..stores).map(|_| Arc::new(StoreCounters::new(workers))).collect();
        Self {
            offer: Mutex::new(Arc::new(Offer { subsystems: subsystems.into_iter().map(Offered::new).collect(), generation: 1 })),
            portals,
            limits,
            associations: Associations::new(limits.controllers),
            mailboxes: (0..workers).map(|_| Mailbox::default()).collect(),
            journal: Journal::default(),
            counters: Mutex::new(counters),
        }
    }

    /// With another generation counter of the discovery log than 1: a host that comes back to a target that was started again, with another
    /// configuration perhaps, knows by it that the log is to be read anew.
    #[must_use]
    pub fn with_generation(self, generation: u64) -> Self {
        let offer = self.offer();
        self.set_offer(Arc::new(Offer { subsystems: offer.subsystems.clone(), generation }));
        self
    }

    /// What is offered now.
    pub(crate) fn offer(&self) -> Arc<Offer> {
        Arc::clone(&self.offer.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has something else offered by whoever asks from now on. Workers that are there are told by whoever calls this.
    pub(crate) fn set_offer(&self, offer: Arc<Offer>) {
        *self.offer.lock().unwrap_or_else(PoisonError::into_inner) = offer;
    }

    /// Sets how a worker's thread is woken from another thread.
    pub fn set_wake(&self, worker: usize, wake: Box<dyn Fn() + Send + Sync>) {
        self.mailboxes[worker].set_wake(wake);
    }

    /// Makes a worker look for what was sent to it.
    pub(crate) fn wake(&self, worker: usize) {
        self.mailboxes[worker].wake();
    }

    /// Tells each worker to finish what runs, to flush, and to stop.
    pub fn drain(&self) {
        for mailbox in &self.mailboxes {
            mailbox.post(Notice::Drain);
        }
    }

    /// Says how often writes to a store that were acknowledged and not flushed may have been lost.
    pub fn set_unsafe_shutdowns(&self, store: usize, count: u64) {
        if let Some(counters) = self.counters(store) {
            counters.set_unsafe_shutdowns(count);
        }
    }

    fn lock_counters(&self) -> MutexGuard<'_, Vec<Arc<StoreCounters>>> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a further store, and what will be counted of it.
    pub(crate) fn add_store(&self) -> (usize, Arc<StoreCounters>) {
        let mut all = self.lock_counters();
        let counters = Arc::new(StoreCounters::new(self.mailboxes.len()));
        all.push(Arc::clone(&counters));
        (all.len() - 1, counters)
    }

    pub(crate) fn counters(&self, store: usize) -> Option<Arc<StoreCounters>> {
        self.lock_counters().get(store).map(Arc::clone)
    }

    /// What was counted of these stores.
    pub(crate) fn totals(&self, stores: impl IntoIterator<Item = usize>) -> Totals {
        let all = self.lock_counters();
        stores.into_iter().filter_map(|store| all.get(store)).map(|counters| counters.totals()).fold(Totals::default(), Totals::plus)
    }

    /// Ends an association: no command of it starts any more, and its queues are told to close.
    pub(crate) fn kill(&self, association: &Arc<Association>, ending: Ending) {
        let workers = self.associations.kill(association);
        if !workers.is_empty() {
            tracing::info!(cntlid = association.cntlid.get(), host = %association.host.nqn, "association ends: {ending}");
            if ending.is_worth_a_note() {
                let (cntlid, host) = (association.cntlid, &association.host.nqn);
                self.journal.error(format!("association {cntlid} of {host} ends: {ending}"));
            }
        }
        for worker in workers {
            self.mailboxes[worker].post(Notice::Close(association.id, ending));
        }
    }

    /// Tells admin queues that the fence which held them may be gone.
    pub(crate) fn tell(&self, waiters: Vec<Waiter>) {
        for waiter in waiters {
            self.mailboxes[waiter.worker].post(Notice::Settled(waiter.queue));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::association::SubsystemIndex;

    pub(crate) fn namespace(nsid: u32, size_bytes: u64) -> Namespace {
        Namespace {
            nsid: Nsid::new(nsid),
            store: 0,
            block_size: BlockSize::B4096,
            size_bytes,
            read_only: false,
            can_deallocate: true,
            nguid: [0xA0; 16],
            uuid: Uuid::from_u128(0x1111_2222),
        }
    }

    pub(crate) fn subsystem(namespaces: Vec<Namespace>) -> Subsystem {
        Subsystem {
            nqn: Nqn::new("nqn.2026-11.org.example:vol0").unwrap(),
            hosts: AllowedHosts::Any,
            serial: "0123456789".into(),
            model: "Godwit".into(),
            namespaces,
        }
    }

    #[test]
    fn namespaces_are_found_by_their_identifiers_in_any_order() {
        let target = Target::new(vec![subsystem(vec![namespace(7, 4096), namespace(2, 8192)])], vec![], Limits::default(), 1);
        let offer = target.offer();
        let subsystem = offer.subsystem(SubsystemIndex::Nvm(0)).unwrap();
        assert_eq!(subsystem.namespace(Nsid::new(2)).unwrap().size_blocks(), 2);
        assert_eq!(subsystem.namespace(Nsid::new(7)).unwrap().size_blocks(), 1);
        assert_eq!(subsystem.namespace(Nsid::new(3)), None);
    }

    #[test]
    fn a_partial_last_block_is_not_used() {
        assert_eq!(namespace(1, 4095).size_blocks(), 0);
        assert_eq!(namespace(1, 8191).size_blocks(), 1);
    }

    #[test]
    fn hosts_are_matched_by_their_whole_name() {
        let name = |text: &str| Nqn::new(text).unwrap();
        let listed = AllowedHosts::Listed(vec![name("nqn.2026-11.org.example:a")]);
        assert!(listed.allow(&name("nqn.2026-11.org.example:a")));
        assert!(!listed.allow(&name("nqn.2026-11.org.example:aa")));
        assert!(AllowedHosts::Any.allow(&name("nqn.2026-11.org.example:b")));
    }

    #[test]
    fn the_discovery_subsystem_is_always_there() {
        let target = Target::new(vec![subsystem(vec![])], vec![], Limits::default(), 1);
        let find = |text| target.offer().find(&Nqn::new(text).unwrap());
        assert_eq!(find(Nqn::DISCOVERY), Some(SubsystemIndex::Discovery));
        assert_eq!(find("nqn.2026-11.org.example:vol0"), Some(SubsystemIndex::Nvm(0)));
        assert_eq!(find("nqn.2026-11.org.example:vol1"), None);
    }
}
