//! What is offered to hosts: replaced as a whole when the configuration changes, never changed in place.
//!
//! Each worker has a reference of its own, which it reads for each command without a lock, and exchanges when it is told to (see [`Order`]). So all workers
//! offer the same some turns later, and whoever gives the orders knows when.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use godwit_nvme::{Nqn, Nsid};

use crate::association::SubsystemIndex;
use crate::backend::Attachable;
use crate::counters::StoreCounters;
use crate::subsystem::{Namespace, Subsystem};

/// The subsystems that there are.
#[derive(Debug)]
pub(crate) struct Offer {
    /// By [`SubsystemIndex`]. A place is not used again, for associations with what was there may last a little longer than it.
    pub(crate) subsystems: Vec<Offered>,
    /// The generation counter of the discovery log (GENCTR).
    pub(crate) generation: u64,
}

/// A subsystem, and what it has been.
#[derive(Clone, Debug)]
pub(crate) struct Offered {
    /// `None` when it is no longer there.
    pub(crate) subsystem: Option<Subsystem>,
    /// Namespaces that are no longer there, oldest first: what was counted of them stays in the sums, and hosts may not know yet that they are gone.
    pub(crate) former: Vec<Namespace>,
}

impl Offered {
    pub(crate) fn new(mut subsystem: Subsystem) -> Self {
        subsystem.namespaces.sort_by_key(|namespace| namespace.nsid);
        Self { subsystem: Some(subsystem), former: Vec::new() }
    }

    /// Whether a namespace has the identifier of a former one and is another one.
    pub(crate) fn has_replaced(&self) -> bool {
        let present = self.subsystem.iter().flat_map(|subsystem| &subsystem.namespaces);
        let replaces = |now: &Namespace| {
            let before = self.former.iter().rfind(|former| former.nsid == now.nsid);
            before.is_some_and(|before| (before.uuid, before.nguid, before.block_size) != (now.uuid, now.nguid, now.block_size))
        };
        present.into_iter().any(replaces)
    }
}

impl Offer {
    /// The subsystem at an index. `None` for discovery, and for one that is no longer there.
    pub(crate) fn subsystem(&self, index: SubsystemIndex) -> Option<&Subsystem> {
        match index {
            SubsystemIndex::Discovery => None,
            SubsystemIndex::Nvm(index) => self.subsystems.get(index)?.subsystem.as_ref(),
        }
    }

    /// Those that are there, with their indices.
    pub(crate) fn present(&self) -> impl Iterator<Item = (usize, &Subsystem)> {
        self.subsystems.iter().enumerate().filter_map(|(index, offered)| Some((index, offered.subsystem.as_ref()?)))
    }

    /// The subsystem of this name.
    pub(crate) fn find(&self, nqn: &Nqn) -> Option<SubsystemIndex> {
        if nqn.is_discovery() {
            return Some(SubsystemIndex::Discovery);
        }
        self.present().find(|(_, subsystem)| subsystem.nqn == *nqn).map(|(index, _)| SubsystemIndex::Nvm(index))
    }
}

/// What controllers tell their hosts about a new offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// Namespaces that were added, removed or changed, by the index of their subsystem.
    pub(crate) namespaces: Vec<(usize, Nsid)>,
    /// Whether the discovery log says something else now.
    pub(crate) discovery: bool,
}

/// What a worker is told when the configuration changes. Each order is answered.
#[derive(Debug)]
pub(crate) enum Order<F> {
    /// Give namespaces of later offers access to a store.
    Attach {
        /// Its number.
        number: usize,
        /// The store.
        store: Attachable<F>,
        /// What is counted of it.
        counters: Arc<StoreCounters>,
        /// Whether that went well.
        done: Sender<Result<(), String>>,
    },
    /// Offer something else.
    Offer {
        /// What.
        offer: Arc<Offer>,
        /// What hosts are told.
        news: Arc<News>,
        /// That it is done.
        done: Sender<Result<(), String>>,
    },
    /// Let a store go that no namespace of the present offer is kept in, when the last command on it has ended.
    Detach {
        /// Its number.
        number: usize,
        /// That it is done.
        done: Sender<Result<(), String>>,
    },
}
