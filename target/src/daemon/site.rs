//! What the control thread, reloads and the control socket share: the target, its stores, and the way to its workers.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use godwit_config::Target as Configuration;
use godwit_nvme::{Nqn, Nsid};
use godwit_reactor::BackingFile;

use super::setup;
use crate::Target;
use crate::association::{Association, Ending};
use crate::backend::{Store, in_words};
use crate::offer::Order;

/// How long workers may take to obey an order. They do within a turn of their loops.
const OBEY_LIMIT: Duration = Duration::from_secs(10);

/// How the configuration is read again.
pub(super) type Load = Box<dyn Fn() -> Result<Configuration, String> + Send + Sync>;

/// A running daemon, for those who look after it.
pub(super) struct Site {
    pub(super) target: Arc<Target>,
    /// The listeners.
    pub(super) urls: Vec<String>,
    pub(super) started: Instant,
    pub(super) load: Load,
    stores: Mutex<BTreeMap<usize, Arc<Store<BackingFile>>>>,
    orders: Mutex<Vec<Sender<Order<BackingFile>>>>,
    /// The configuration that is in force. Locked for as long as it is being changed.
    applied: Mutex<Configuration>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics in between that leaves these half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why an administrator's command is not obeyed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    /// No such namespace.
    #[error("there is no namespace {nsid} of {nqn}; `godwit-target status` lists them")]
    NoNamespace {
        /// Its id.
        nsid: u32,
        /// Its subsystem.
        nqn: String,
    },
    /// Reopening failed.
    #[error("{store} cannot be reopened: {}; nothing has changed", in_words(error))]
    Reopen {
        /// The store.
        store: String,
        /// Why.
        error: std::io::Error,
    },
}

impl Site {
    pub(super) fn new(
        target: Arc<Target>,
        urls: Vec<String>,
        stores: Vec<Arc<Store<BackingFile>>>,
        orders: Vec<Sender<Order<BackingFile>>>,
        applied: Configuration,
        load: Load,
    ) -> Self {
        let stores = Mutex::new(stores.into_iter().enumerate().collect());
        Self { target, urls, started: Instant::now(), load, stores, orders: Mutex::new(orders), applied: Mutex::new(applied) }
    }

    pub(super) fn applied(&self) -> MutexGuard<'_, Configuration> {
        lock(&self.applied)
    }

    /// The stores by their numbers, also those that are about to be let go.
    pub(super) fn stores(&self) -> Vec<(usize, Arc<Store<BackingFile>>)> {
        lock(&self.stores).iter().map(|(&number, store)| (number, Arc::clone(store))).collect()
    }

    pub(super) fn store(&self, number: usize) -> Option<Arc<Store<BackingFile>>> {
        lock(&self.stores).get(&number).map(Arc::clone)
    }

    pub(super) fn add_store(&self, number: usize, store: Arc<Store<BackingFile>>) {
        lock(&self.stores).insert(number, store);
    }

    pub(super) fn forget_store(&self, number: usize) {
        lock(&self.stores).remove(&number);
    }

    /// Gives each worker an order, and a wake-up. Returns where their answers come, and how many there will be.
    pub(super) fn order(
        &self,
        make: impl Fn(Sender<Result<(), String>>) -> Order<BackingFile>,
    ) -> (mpsc::Receiver<Result<(), String>>, usize) {
        let (done, answers) = mpsc::channel();
        let mut obeying = 0;
        for (worker, orders) in lock(&self.orders).iter().enumerate() {
            if orders.send(make(done.clone())).is_ok() {
                obeying += 1;
                self.target.wake(worker);
            }
        }
        (answers, obeying)
    }

    /// Gives each worker an order, and waits until all have obeyed.
    pub(super) fn order_and_wait(&self, make: impl Fn(Sender<Result<(), String>>) -> Order<BackingFile>) -> Result<(), String> {
        let (answers, obeying) = self.order(make);
        let deadline = Instant::now() + OBEY_LIMIT;
        for _ in 0..obeying {
            match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(answer) => answer?,
                Err(RecvTimeoutError::Timeout) => return Err(format!("a reactor did not answer within {} s", OBEY_LIMIT.as_secs())),
                Err(RecvTimeoutError::Disconnected) => return Err("a reactor has ended".to_owned()),
            }
        }
        Ok(())
    }

    /// Ends the associations that `of` picks.
    pub(super) fn drop_associations(&self, ending: Ending, of: impl Fn(&Association) -> bool) {
        for (association, _) in self.target.associations.all() {
            if !association.is_dying() && of(&association) {
                self.target.kill(&association, ending);
            }
        }
    }

    /// What is done about once a second: looks whether somebody truncated a file, and whether a sync has failed.
    pub(super) fn look_after_stores(&self) {
        for (_, store) in self.stores() {
            match store.check_size() {
                Ok(false) => {}
                Ok(true) => self.target.journal.error(format!("{}: the file was truncated", store.description())),
                Err(error) => tracing::warn!(store = store.description(), "cannot look at its size: {error}"),
            }
            match store.keep_mark() {
                Ok(false) => {}
                Ok(true) => self.target.journal.error(format!("{}: a sync failed", store.description())),
                Err(error) => tracing::error!(store = store.description(), "cannot write down that a sync failed: {error}"),
            }
        }
    }

    /// Marks all stores as clean. No worker works on them any more.
    pub(super) fn close_stores(&self) {
        setup::close(self.stores().iter().map(|(_, store)| store));
    }

    /// An administrator's word that what a namespace has lost has been dealt with. True when something had been lost.
    pub(super) fn reopen(&self, nqn: &Nqn, nsid: Nsid) -> Result<bool, CommandError> {
        let offer = self.target.offer();
        let found = offer.find(nqn).and_then(|index| Some((index, offer.subsystem(index)?.namespace(nsid)?.store)));
        let missing = || CommandError::NoNamespace { nsid: nsid.get(), nqn: nqn.to_string() };
        let (index, number) = found.ok_or_else(missing)?;
        let store = self.store(number).ok_or_else(missing)?;
        let lost = store.sync_failed() || store.truncated();
        let before = || {
            self.target.set_unsafe_shutdowns(number, store.unsafe_shutdowns());
            self.drop_associations(Ending::NamespaceReopened, |association| association.subsystem == index);
        };
        store.reopen(before).map_err(|error| CommandError::Reopen { store: store.description().to_owned(), error })?;
        Ok(lost)
    }

    /// Lets stores go that no namespace is kept in any more, as soon as their last commands have ended.
    pub(super) fn let_go(self: &Arc<Self>, numbers: Vec<usize>) {
        let waiting: Vec<_> = numbers.into_iter().map(|number| (number, self.order(|done| Order::Detach { number, done }))).collect();
        let site = Arc::clone(self);
        let wait = move || {
            for (number, (answers, obeying)) in waiting {
                // Workers that end do not answer: then the daemon ends, and closes all stores.
                let answered = (0..obeying).all(|_| answers.recv().is_ok());
                if let (true, Some(store)) = (answered, site.store(number)) {
                    setup::close([&store]);
                    site.forget_store(number);
                    tracing::info!(store = store.description(), "namespace closed");
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("closer".into()).spawn(wait) {
            tracing::error!("cannot start a thread, so removed namespaces stay locked: {error}");
        }
    }
}
