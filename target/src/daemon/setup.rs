//! From the configuration to open stores, bound listeners and the target that they make.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use godwit_config::{Backend, BlockSize as ConfiguredBlockSize, Crc, Fpdu, Target as Configuration, Transport};
use godwit_memory::{Layout, PoolError};
use godwit_nvme::{BlockSize, Nsid, QueueSize};
use godwit_rdma::FpduSize;
use godwit_rdma::verbs::VerbsError;
use godwit_reactor::{BackingFile, Listener};
use uuid::Uuid;

use super::rdma::RdmaListener;
use crate::backend::{OpenError, OpenOptions, Past, Source, Store, in_words, reject_shared_storage};
use crate::layout;
use crate::limits::SPARE_STORES;
use crate::{AllowedHosts, Limits, Namespace, Portal, Subsystem, Target};

/// How long an address that is in use is waited for: the kernel takes the rings of a daemon that was killed down a moment after its end, and its
/// listeners with them.
const IN_USE_PATIENCE: Duration = Duration::from_secs(1);

/// Why the daemon could not start.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A backing store.
    #[error("{origin}: {source}")]
    Store {
        /// Where it is configured.
        origin: String,
        /// Why.
        source: OpenError,
    },
    /// Two namespaces on one store.
    #[error(transparent)]
    Shared(OpenError),
    /// A listener on RDMA devices.
    #[error("{origin}: cannot listen on {address}: {}", explain_verbs(error))]
    Rdma {
        /// Where it is configured.
        origin: String,
        /// The address.
        address: SocketAddr,
        /// Why.
        error: Box<VerbsError>,
    },
    /// A listener's host name.
    #[error("{origin}: cannot resolve {address}: {error}; correct the name, or write an address")]
    Resolve {
        /// Where it is configured.
        origin: String,
        /// The address.
        address: String,
        /// Why.
        error: io::Error,
    },
    /// A listener's address.
    #[error("{origin}: cannot listen on {address}: {}", explain(error))]
    Bind {
        /// Where it is configured.
        origin: String,
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// Signals cannot be caught.
    #[error("cannot catch signals: {}", in_words(error))]
    Signals {
        /// Why.
        error: io::Error,
    },
    /// No thread.
    #[error("cannot start a thread: {}; raise TasksMax= in the systemd unit, or `ulimit -u` in the shell", in_words(error))]
    Thread {
        /// Why.
        error: io::Error,
    },
    /// No memory.
    #[error("the memory of a reactor: {0}")]
    Pool(#[from] PoolError),
    /// A reactor thread could not start.
    #[error("{reason}")]
    Reactor {
        /// Why.
        reason: String,
    },
}

/// What to do about a failed bind.
fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "address in use; stop the program that listens there (`ss -ltnp` names it), or choose another port".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "permission denied; ports below 1024 need CAP_NET_BIND_SERVICE (AmbientCapabilities= in the systemd unit), or choose another port"
                .to_owned()
        }
        io::ErrorKind::AddrNotAvailable => "no such address on this machine; see `ip address`".to_owned(),
        _ => in_words(error),
    }
}

/// What to do about a failed bind to RDMA devices.
fn explain_verbs(error: &VerbsError) -> String {
    match error {
        VerbsError::Call { error, .. } => explain(error),
        other => other.to_string(),
    }
}

/// A bound listener.
pub(super) enum Bound {
    Stream(Listener),
    Rdma(RdmaListener),
}

/// Everything that was opened.
pub(super) struct Opened {
    pub(super) target: Target,
    pub(super) stores: Vec<Arc<Store<BackingFile>>>,
    /// One per portal.
    pub(super) listeners: Vec<Bound>,
}

/// Finds what is wrong with a configuration on this machine and in this build, without opening anything.
///
/// # Errors
///
/// Two namespaces on one file under different names.
pub fn check(configuration: &Configuration) -> Result<(), SetupError> {
    let sources: Vec<_> = namespaces(configuration).map(|namespace| source(&namespace.backend)).collect();
    reject_shared_storage(&sources.iter().collect::<Vec<_>>()).map_err(SetupError::Shared)
}

/// Looks whether what the namespaces are to be kept in is there, without opening anything: every fault.
pub fn look_at_storage(configuration: &Configuration) -> Vec<SetupError> {
    let look = |namespace: &godwit_config::Namespace| {
        let fault = source(&namespace.backend).look().err()?;
        Some(SetupError::Store { origin: namespace.origin.to_string(), source: fault })
    };
    namespaces(configuration).filter_map(look).collect()
}

/// Binds the listeners and opens the stores of a configuration that was checked.
pub(super) fn open(configuration: &Configuration) -> Result<Opened, SetupError> {
    let (portals, listeners) = bind(configuration)?;
    let mut stores = Vec::with_capacity(namespaces(configuration).count());
    let subsystems = open_stores(configuration, &mut stores);
    let subsystems = subsystems.inspect_err(|_| close(&stores))?;
    let limits = limits(configuration);
    let target = Target::new(subsystems, portals, limits, usize::from(configuration.reactors.get())).with_generation(generation());
    for (number, store) in stores.iter().enumerate() {
        target.set_unsafe_shutdowns(number, store.unsafe_shutdowns());
    }
    Ok(Opened { target, stores, listeners })
}

/// Marks stores as clean that nobody works on any more. What is not marked is taken for lost if the machine goes down before it is opened again.
pub(super) fn close<'a>(stores: impl IntoIterator<Item = &'a Arc<Store<BackingFile>>>) {
    for store in stores {
        if let Err(error) = store.close() {
            tracing::error!(store = store.description(), "cannot close it cleanly: {error}");
        }
    }
}

/// Opens the stores of all namespaces.
fn open_stores(configuration: &Configuration, stores: &mut Vec<Arc<Store<BackingFile>>>) -> Result<Vec<Subsystem>, SetupError> {
    let mut subsystems = Vec::with_capacity(configuration.subsystems.len());
    for subsystem in &configuration.subsystems {
        let mut namespaces = Vec::with_capacity(subsystem.namespaces.len());
        for namespace in &subsystem.namespaces {
            let store = open_store(subsystem.nqn.as_str(), namespace, configuration)?;
            namespaces.push(describe(namespace, &store, stores.len()));
            tracing::info!(nqn = %*subsystem.nqn, nsid = namespace.nsid.get(), store = store.description(), "namespace opened");
            stores.push(Arc::new(store));
        }
        subsystems.push(self::subsystem(subsystem, namespaces));
    }
    Ok(subsystems)
}

/// A subsystem with these namespaces.
pub(super) fn subsystem(configured: &godwit_config::Subsystem, namespaces: Vec<Namespace>) -> Subsystem {
    Subsystem {
        nqn: configured.nqn.value.clone(),
        hosts: match &*configured.hosts {
            godwit_config::AllowedHosts::Any => AllowedHosts::Any,
            godwit_config::AllowedHosts::Listed(hosts) => AllowedHosts::Listed(hosts.clone()),
        },
        serial: configured.serial.as_ref().map_or_else(|| derived_serial(configured.nqn.as_str()), |serial| serial.to_string()),
        model: configured.model.as_ref().map_or_else(|| "Godwit".to_owned(), |model| model.to_string()),
        namespaces,
    }
}

/// A number that is larger at each start: the milliseconds of the clock.
fn generation() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|since| u64::try_from(since.as_millis()).ok()).unwrap_or(1)
}

/// The memory of a reactor thread.
pub(super) fn pool_layout(configuration: &Configuration, limits: &Limits, stores: usize) -> Result<Layout, SetupError> {
    let bytes = usize::try_from(configuration.memory.size().bytes()).unwrap_or(usize::MAX);
    Ok(layout::layout(bytes, limits, stores + SPARE_STORES)?)
}

fn namespaces(configuration: &Configuration) -> impl Iterator<Item = &godwit_config::Namespace> {
    configuration.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces)
}

fn limits(configuration: &Configuration) -> Limits {
    let limits = &configuration.limits;
    Limits {
        in_capsule_bytes: limits.in_capsule.bytes() as usize,
        io_queue_size: QueueSize::new(limits.queue_size.get().into()).expect("the configuration bounds it"),
        io_queues: limits.io_queues.get(),
        controllers: limits.controllers.get(),
        ..Limits::default()
    }
}

fn bind(configuration: &Configuration) -> Result<(Vec<Portal>, Vec<Bound>), SetupError> {
    let (mut portals, mut listeners) = (Vec::new(), Vec::new());
    for listener in &configuration.listeners {
        let origin = listener.address.origin.to_string();
        let resolved = listener.address.resolve();
        let addresses =
            resolved.map_err(|error| SetupError::Resolve { origin: origin.clone(), address: listener.address.to_string(), error })?;
        for address in addresses {
            let (bound, transport, bound_address) = match listener.transport {
                Transport::Iwarp => {
                    let bound = patiently(IN_USE_PATIENCE, || Listener::tcp(address), io::Error::kind);
                    let bound = bound.map_err(|error| SetupError::Bind { origin: origin.clone(), address, error })?;
                    let bound_address = bound.local_address().unwrap_or(address);
                    (Bound::Stream(bound), godwit_rdma::Transport::Iwarp, bound_address)
                }
                Transport::Rdma => {
                    let kind = |error: &VerbsError| match error {
                        VerbsError::Call { error, .. } => error.kind(),
                        _ => io::ErrorKind::Other,
                    };
                    let bound = patiently(IN_USE_PATIENCE, || RdmaListener::bind(address), kind);
                    let bound = bound.map_err(|error| SetupError::Rdma { origin: origin.clone(), address, error: Box::new(error) })?;
                    let bound_address = bound.local_address();
                    (Bound::Rdma(bound), godwit_rdma::Transport::Rdma, bound_address)
                }
            };
            portals.push(Portal {
                transport,
                address: bound_address,
                crc: listener.crc == Crc::On,
                fpdu: match listener.fpdu {
                    Fpdu::Large => FpduSize::Large,
                    Fpdu::Mss => FpduSize::Segment,
                },
            });
            listeners.push(bound);
        }
    }
    Ok((portals, listeners))
}

/// Tries once more, for a while, when an address is in use.
fn patiently<T, E>(patience: Duration, bind: impl Fn() -> Result<T, E>, kind: impl Fn(&E) -> io::ErrorKind) -> Result<T, E> {
    let started = Instant::now();
    loop {
        match bind() {
            Err(error) if kind(&error) == io::ErrorKind::AddrInUse && started.elapsed() < patience => {
                thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

pub(super) fn source(backend: &Backend) -> Source {
    match backend {
        Backend::File { path, size, create } => Source::File { path: path.clone(), size: size.map(|size| size.bytes()), create: *create },
        Backend::Device { path } => Source::Device { path: path.clone() },
        Backend::Memory { size } => Source::Memory { size: size.bytes() },
    }
}

/// Opens the store of a namespace, and says what may have been lost in it.
pub(super) fn open_store(
    nqn: &str,
    namespace: &godwit_config::Namespace,
    configuration: &Configuration,
) -> Result<Store<BackingFile>, SetupError> {
    let device = match &*namespace.backend {
        Backend::Device { path } => device_block_size(path),
        Backend::File { .. } | Backend::Memory { .. } => None,
    };
    let mut options = OpenOptions::new(source(&namespace.backend));
    options.block_size = namespace.block_size(device).bytes();
    options.read_only = namespace.read_only;
    options.uuid = namespace.uuid.as_ref().map(|uuid| uuid.value);
    options.nguid = namespace.nguid.as_ref().map(|nguid| nguid.bytes());
    if let Some(state_dir) = &configuration.service.state_dir {
        options.state_dir.clone_from(state_dir);
    }
    let store = Store::open(&options).map_err(|source| SetupError::Store { origin: namespace.origin.to_string(), source })?;
    tell_of_past(nqn, namespace, &store);
    Ok(store)
}

fn tell_of_past(nqn: &str, namespace: &godwit_config::Namespace, store: &Store<BackingFile>) {
    let (nsid, unsafe_shutdowns, store, past) = (namespace.nsid.get(), store.unsafe_shutdowns(), store.description(), store.past());
    match past {
        Past::Intact => {}
        Past::Lost => tracing::warn!(
            %nqn,
            nsid,
            store,
            unsafe_shutdowns,
            "under an earlier daemon the machine went down, a sync failed, or the file was truncated: what hosts wrote and did not flush may be lost, which counts as an unsafe shutdown that they see"
        ),
        Past::Unknown => tracing::info!(
            %nqn,
            nsid,
            store,
            unsafe_shutdowns,
            "no mark of an earlier daemon: as it should be when this is exported for the first time; hosts that wrote to it before take what they did not flush for lost"
        ),
    }
}

pub(super) fn describe(namespace: &godwit_config::Namespace, store: &Store<BackingFile>, index: usize) -> Namespace {
    Namespace {
        nsid: Nsid::new(namespace.nsid.get()),
        store: index,
        block_size: BlockSize::new(store.block_size()).expect("the store checked it"),
        size_bytes: store.size_bytes(),
        read_only: store.read_only(),
        can_deallocate: true,
        nguid: store.identity().nguid,
        uuid: store.identity().uuid,
    }
}

/// The logical block size of a device. `None` when it cannot be told; opening it will say what is wrong.
fn device_block_size(path: &Path) -> Option<ConfiguredBlockSize> {
    let number = fs::metadata(path).ok()?.rdev();
    let device = format!("/sys/dev/block/{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    // A partition has none of its own; its disk is the folder above.
    let read = |queue: &str| fs::read_to_string(format!("{device}/{queue}/logical_block_size"));
    let text = read("queue").or_else(|_| read("../queue")).ok()?;
    text.trim().parse().ok()
}

/// Ours alone, so that the machine id, which is confidential, cannot be told from what is derived.
const SERIAL_NAMESPACE: Uuid = Uuid::from_u128(0x5c0d_6b1e_93a2_4c7f_8e15_7d20_b94f_a631);

/// The same serial number at each start, and another on each machine and for each subsystem.
fn derived_serial(nqn: &str) -> String {
    // Without a machine id the name alone has to do.
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let uuid = Uuid::new_v5(&SERIAL_NAMESPACE, format!("{}\n{nqn}", machine.trim()).as_bytes());
    uuid.simple().to_string()[..20].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_are_stable_and_differ_by_subsystem() {
        let serial = derived_serial("nqn.2026-11.org.example:a");
        assert_eq!(serial, derived_serial("nqn.2026-11.org.example:a"));
        assert_ne!(serial, derived_serial("nqn.2026-11.org.example:b"));
        assert_eq!(serial.len(), 20);
    }

    #[test]
    fn failed_binds_say_what_to_do() {
        let say = |kind: io::ErrorKind| explain(&kind.into());
        assert!(say(io::ErrorKind::AddrInUse).contains("choose another port"));
        assert!(say(io::ErrorKind::PermissionDenied).contains("CAP_NET_BIND_SERVICE"));
        assert!(say(io::ErrorKind::AddrNotAvailable).contains("ip address"));
    }

    #[test]
    fn an_address_that_is_let_go_of_is_waited_for_and_one_that_is_not_is_in_use() {
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let listen = |patience| patiently(patience, || Listener::tcp(address), io::Error::kind);
        assert_eq!(listen(Duration::ZERO).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(100));
                drop(other);
            });
            assert!(listen(Duration::from_secs(5)).is_ok());
        });
    }
}
