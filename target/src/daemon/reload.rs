//! Another configuration for a running daemon: what may change is changed, or nothing at all.
//!
//! | change | what happens |
//! | --- | --- |
//! | a subsystem or namespace is added | it is opened as at start, then offered |
//! | a namespace is removed | new commands are refused; those under way end; then its file is closed and unlocked |
//! | another namespace takes the identifier of one that was removed | associations with the subsystem end before it is offered: a host that has not looked again takes it for the old one |
//! | a subsystem is removed, a host is no longer listed | the same; associations that it concerns end |
//! | a namespace grows: a larger `size`, or a file or device that became larger | hosts are told. A file is made longer for a larger `size` |
//! | a namespace shrinks | refused unless forced: what lies behind its new end is gone. The file or device has to be made smaller first; nothing here does |
//! | anything else | refused |
//!
//! Everything that can be refused is looked at before anything is changed: all faults are told, a line each. What may fail after that (files to be opened,
//! memory of the workers) comes before hosts notice anything, and is undone.

use std::path::Path;
use std::sync::Arc;

use godwit_config::{Backend, Target as Configuration};
use godwit_nvme::Nsid;
use godwit_reactor::BackingFile;

use super::setup;
use super::site::Site;
use crate::association::{Ending, SubsystemIndex};
use crate::backend::{Store, in_words};
use crate::offer::{News, Offer, Offered, Order};
use crate::subsystem::{AllowedHosts, Namespace, Subsystem};

/// Why nothing was changed: a line each.
pub(super) type Refusals = Vec<String>;

/// A store and its number.
type Numbered = (usize, Arc<Store<BackingFile>>);

/// A namespace to be opened.
struct Addition<'a> {
    /// Index of its subsystem in the new offer.
    subsystem: usize,
    namespace: &'a godwit_config::Namespace,
}

/// A namespace whose size changes.
struct Resizing {
    store: Arc<Store<BackingFile>>,
    from: u64,
    to: u64,
    /// Whether the file has to be made longer first.
    extend: bool,
}

/// What has to be done.
struct Plan<'a> {
    subsystems: Vec<Offered>,
    news: News,
    additions: Vec<Addition<'a>>,
    resizings: Vec<Resizing>,
    /// Stores that are let go.
    removals: Vec<usize>,
    changes: Vec<String>,
}

/// Reads the configuration again and puts it in force. Returns what has changed, a line each.
///
/// # Errors
///
/// Why nothing has.
pub(super) fn reload(site: &Arc<Site>, force: bool) -> Result<Vec<String>, Refusals> {
    let mut applied = site.applied();
    let wanted = (site.load)().map_err(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())?;
    let mut plan = plan(site, &applied, &wanted, force)?;
    let opened = open(site, &mut plan, &wanted)?;
    let undo = |reason: String| {
        for &(number, ref store) in &opened {
            let _ = site.order_and_wait(|done| Order::Detach { number, done });
            setup::close([store]);
            site.forget_store(number);
        }
        vec![reason]
    };
    for &(number, ref store) in &opened {
        let counters = site.target.counters(number).ok_or_else(|| undo("a store was forgotten".to_owned()))?;
        counters.set_unsafe_shutdowns(store.unsafe_shutdowns());
        site.add_store(number, Arc::clone(store));
        let attach = |done| Order::Attach { number, store: store.attachable(), counters: Arc::clone(&counters), done };
        site.order_and_wait(attach).map_err(|error| undo(format!("{}: cannot be attached: {error}", store.description())))?;
    }
    for resizing in plan.resizings.iter().filter(|resizing| resizing.extend) {
        let store = &resizing.store;
        store.extend(resizing.to).map_err(|error| undo(format!("{}: cannot be made longer: {}", store.description(), in_words(&error))))?;
    }
    // From here on nothing is refused.
    plan.resizings.iter().filter(|resizing| resizing.to > resizing.from).for_each(|resizing| resizing.store.resize(resizing.to));
    forget_replaced(site, &plan);
    publish(site, &plan);
    plan.resizings.iter().filter(|resizing| resizing.to < resizing.from).for_each(|resizing| resizing.store.resize(resizing.to));
    revoke(site);
    let (removals, changes) = plan.into_rest();
    site.let_go(removals);
    *applied = wanted;
    Ok(changes)
}

/// Compares what is with what shall be.
fn plan<'a>(site: &Site, applied: &Configuration, wanted: &'a Configuration, force: bool) -> Result<Plan<'a>, Refusals> {
    let mut refusals = unchangeable(applied, wanted);
    let offer = site.target.offer();
    let mut plan = Plan {
        subsystems: offer.subsystems.clone(),
        news: News::default(),
        additions: Vec::new(),
        resizings: Vec::new(),
        removals: Vec::new(),
        changes: Vec::new(),
    };
    for (index, present) in offer.present() {
        match wanted.subsystems.iter().find(|subsystem| *subsystem.nqn == present.nqn) {
            Some(wanted) => {
                let before = applied.subsystems.iter().find(|subsystem| *subsystem.nqn == present.nqn);
                plan.keep(site, (index, present), before, wanted, force, &mut refusals);
            }
            None => plan.remove_subsystem(index, present),
        }
    }
    for subsystem in &wanted.subsystems {
        if offer.find(&subsystem.nqn).is_none() {
            plan.add_subsystem(subsystem);
        }
    }
    plan.check_storage(site, &mut refusals);
    if refusals.is_empty() { Ok(plan) } else { Err(refusals) }
}

/// What a running daemon cannot change.
fn unchangeable(applied: &Configuration, wanted: &Configuration) -> Refusals {
    let listeners = |configuration: &Configuration| {
        let values =
            configuration.listeners.iter().map(|listener| (listener.transport, listener.address.to_string(), listener.fpdu, listener.crc));
        values.collect::<Vec<_>>()
    };
    let (now, then) = (&applied.service, &wanted.service);
    let differs = [
        ("listeners", listeners(applied) != listeners(wanted)),
        ("reactors", applied.reactors != wanted.reactors),
        ("poll", applied.poll != wanted.poll),
        ("memory", applied.memory != wanted.memory),
        ("limits", applied.limits != wanted.limits),
        ("state_dir", now.state_dir != then.state_dir),
        ("control", now.control != then.control),
        ("metrics", now.metrics != then.metrics),
        ("lock_memory", now.lock_memory != then.lock_memory),
    ];
    let changed = differs.into_iter().filter_map(|(key, differs)| differs.then_some(key));
    changed.map(|key| format!("`{key}` cannot be changed while the daemon runs; put it back, or restart the daemon")).collect()
}

impl<'a> Plan<'a> {
    /// What is left to do and to tell at the end.
    fn into_rest(self) -> (Vec<usize>, Vec<String>) {
        (self.removals, self.changes)
    }

    fn remove_subsystem(&mut self, index: usize, present: &Subsystem) {
        self.subsystems[index].subsystem = None;
        self.removals.extend(present.namespaces.iter().map(|namespace| namespace.store));
        self.news.discovery = true;
        self.changes.push(format!("{} was removed", present.nqn));
    }

    fn add_subsystem(&mut self, wanted: &'a godwit_config::Subsystem) {
        let index = self.subsystems.len();
        self.subsystems.push(Offered::new(setup::subsystem(wanted, Vec::new())));
        self.additions.extend(wanted.namespaces.iter().map(|namespace| Addition { subsystem: index, namespace }));
        self.news.discovery = true;
        self.changes.push(format!("{} was added", *wanted.nqn));
    }

    /// A subsystem that is there and stays.
    fn keep(
        &mut self,
        site: &Site,
        (index, present): (usize, &Subsystem),
        before: Option<&godwit_config::Subsystem>,
        wanted: &'a godwit_config::Subsystem,
        force: bool,
        refusals: &mut Refusals,
    ) {
        let mut next = setup::subsystem(wanted, Vec::new());
        if (&next.serial, &next.model) != (&present.serial, &present.model) {
            refusals
                .push(format!("{}: serial number and model of {} cannot be changed while the daemon runs", wanted.nqn.origin, present.nqn));
        }
        if next.hosts != present.hosts {
            self.news.discovery = true;
            self.changes.push(format!("{} may be used by {}", present.nqn, in_numbers(&next.hosts)));
        }
        for namespace in &present.namespaces {
            let nsid = namespace.nsid;
            let name = format!("namespace {nsid} of {}", present.nqn);
            let same = |other: &&godwit_config::Namespace| other.nsid.get() == nsid.get();
            let Some(asked) = wanted.namespaces.iter().find(same) else {
                self.subsystems[index].former.push(namespace.clone());
                self.removals.push(namespace.store);
                self.news.namespaces.push((index, nsid));
                self.changes.push(format!("{name} was removed"));
                continue;
            };
            let was = before.and_then(|before| before.namespaces.iter().find(same));
            let Some(store) = site.store(namespace.store) else { continue };
            let checked = was.map_or(Ok(()), |was| same_but_for_size(was, asked, &store)).and_then(|()| wanted_size(asked, &store, force));
            match checked {
                Ok((to, extend)) => {
                    let from = store.size_bytes();
                    next.namespaces.push(Namespace { size_bytes: to, ..namespace.clone() });
                    if to != from {
                        self.news.namespaces.push((index, nsid));
                        self.changes.push(format!("{name} has {to} bytes, and had {from}"));
                        self.resizings.push(Resizing { store, from, to, extend });
                    }
                }
                Err(reason) => refusals.push(format!("{}: {name}: {reason}", asked.origin)),
            }
        }
        let is_new = |namespace: &&godwit_config::Namespace| present.namespace(Nsid::new(namespace.nsid.get())).is_none();
        for namespace in wanted.namespaces.iter().filter(is_new) {
            let nsid = Nsid::new(namespace.nsid.get());
            self.additions.push(Addition { subsystem: index, namespace });
            self.news.namespaces.push((index, nsid));
            self.changes.push(format!("namespace {nsid} of {} was added", present.nqn));
        }
        self.subsystems[index].subsystem = Some(next);
    }

    /// What is added must not lie on what is open, also if that is about to be let go: it is locked until then.
    fn check_storage(&self, site: &Site, refusals: &mut Refusals) {
        let open = site.stores();
        for Addition { namespace, .. } in &self.additions {
            let Some(storage) = setup::source(&namespace.backend).storage() else { continue };
            if let Some((_, store)) = open.iter().find(|(_, store)| store.storage() == Some(storage)) {
                let (origin, store) = (&namespace.origin, store.description());
                refusals.push(format!(
                    "{origin}: {store} is still open; remove its namespace with one reload, and add the other with the next"
                ));
            }
        }
    }
}

fn in_numbers(hosts: &AllowedHosts) -> String {
    match hosts {
        AllowedHosts::Any => "every host".to_owned(),
        AllowedHosts::Listed(hosts) if hosts.len() == 1 => "1 host".to_owned(),
        AllowedHosts::Listed(hosts) => format!("{} hosts", hosts.len()),
    }
}

/// Checks that a namespace stays what it is.
fn same_but_for_size(was: &godwit_config::Namespace, asked: &godwit_config::Namespace, store: &Store<BackingFile>) -> Result<(), String> {
    let place = |backend: &Backend| -> Option<(bool, std::path::PathBuf)> {
        let path: &Path = backend.path()?;
        Some((matches!(backend, Backend::Device { .. }), path.to_owned()))
    };
    if place(&was.backend) != place(&asked.backend) {
        return Err("its backend cannot be changed; give the new one an nsid of its own".to_owned());
    }
    let block_size = match &*asked.backend {
        Backend::Device { .. } => asked.configured_block_size.as_ref().map(|size| size.bytes()),
        Backend::File { .. } | Backend::Memory { .. } => Some(asked.block_size(None).bytes()),
    };
    if block_size.is_some_and(|block_size| block_size != store.block_size()) {
        return Err(format!("its block size is {} and cannot be changed", store.block_size()));
    }
    if was.read_only != asked.read_only {
        return Err("`read_only` cannot be changed while the daemon runs".to_owned());
    }
    let identity = |namespace: &godwit_config::Namespace| {
        (namespace.uuid.as_ref().map(|uuid| uuid.value), namespace.nguid.as_ref().map(|nguid| nguid.bytes()))
    };
    if identity(was) != identity(asked) {
        return Err("its identity cannot be changed".to_owned());
    }
    Ok(())
}

/// The size that a namespace shall have, and whether its file has to be made longer for that.
fn wanted_size(asked: &godwit_config::Namespace, store: &Store<BackingFile>, force: bool) -> Result<(u64, bool), String> {
    let now = store.size_bytes();
    if let Backend::Memory { size } = &*asked.backend {
        return if size.bytes() == now { Ok((now, false)) } else { Err("memory cannot be resized".to_owned()) };
    }
    let found = store.current_bytes().map_err(|error| format!("cannot look at its size: {}", in_words(&error)))?;
    let size = asked.backend.size().map(|size| size.bytes());
    let (to, extend) = match size {
        // Whoever cut a file off did not mean to have zeroes where data had been.
        Some(size) if size > found && found >= now => (size, true),
        Some(size) if size != found => {
            return Err(format!(
                "it is {found} bytes long, but `size` says {size}; a file is never cut off here: correct `size`, or use truncate(1)"
            ));
        }
        _ => (found, false),
    };
    if extend && store.read_only() {
        return Err("it is read-only, so it cannot be made longer".to_owned());
    }
    let block_bytes = u64::from(store.block_size());
    if to == 0 || !to.is_multiple_of(block_bytes) {
        return Err(format!("{to} bytes are not a whole number of blocks of {block_bytes}"));
    }
    if to < now && !force {
        return Err(format!(
            "it has {found} bytes and had {now}: what hosts keep behind its new end is lost; if that is meant, `godwit-target reload --force`"
        ));
    }
    Ok((to, extend))
}

/// Opens what is added, into the plan. On failure, all that was opened is closed.
fn open(site: &Site, plan: &mut Plan<'_>, wanted: &Configuration) -> Result<Vec<Numbered>, Refusals> {
    let mut opened: Vec<Numbered> = Vec::new();
    let mut refusals = Vec::new();
    for Addition { subsystem, namespace } in &plan.additions {
        let nqn = plan.subsystems[*subsystem].subsystem.as_ref().map_or("", |subsystem| subsystem.nqn.as_str());
        match setup::open_store(nqn, namespace, wanted) {
            Ok(store) => {
                let (number, _) = site.target.add_store();
                if let Some(subsystem) = &mut plan.subsystems[*subsystem].subsystem {
                    subsystem.namespaces.push(setup::describe(namespace, &store, number));
                }
                opened.push((number, Arc::new(store)));
            }
            Err(error) => refusals.push(error.to_string()),
        }
    }
    if !refusals.is_empty() {
        setup::close(opened.iter().map(|(_, store)| store));
        return Err(refusals);
    }
    for subsystem in plan.subsystems.iter_mut().filter_map(|offered| offered.subsystem.as_mut()) {
        subsystem.namespaces.sort_by_key(|namespace| namespace.nsid);
    }
    Ok(opened)
}

/// Ends the associations of hosts that could take a namespace that is added for one that was removed. They look at it when they come again. No command of
/// theirs reaches it: none starts any more, and those made until it is offered know neither.
fn forget_replaced(site: &Site, plan: &Plan<'_>) {
    for &Addition { subsystem, .. } in &plan.additions {
        if plan.subsystems[subsystem].has_replaced() {
            site.drop_associations(Ending::NamespaceReplaced, |association| association.subsystem == SubsystemIndex::Nvm(subsystem));
        }
    }
}

/// Has the plan's offer made by all workers.
fn publish(site: &Site, plan: &Plan<'_>) {
    let generation = site.target.offer().generation + u64::from(plan.news.discovery);
    let offer = Arc::new(Offer { subsystems: plan.subsystems.clone(), generation });
    let news = Arc::new(plan.news.clone());
    site.target.set_offer(Arc::clone(&offer));
    let told = site.order_and_wait(|done| Order::Offer { offer: Arc::clone(&offer), news: Arc::clone(&news), done });
    if let Err(error) = told {
        tracing::error!("not every reactor offers the new configuration yet: {error}");
    }
}

/// Ends the associations that are not allowed any more. No worker makes new ones by the old lists now.
fn revoke(site: &Site) {
    let offer = site.target.offer();
    site.drop_associations(Ending::SubsystemRemoved, |association| {
        matches!(association.subsystem, SubsystemIndex::Nvm(_)) && offer.subsystem(association.subsystem).is_none()
    });
    site.drop_associations(Ending::AccessRevoked, |association| {
        offer.subsystem(association.subsystem).is_some_and(|subsystem| !subsystem.hosts.allow(&association.host.nqn))
    });
}
