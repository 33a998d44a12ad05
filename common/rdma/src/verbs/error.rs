//! Why RDMA devices cannot be used, in words that say what to do.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use super::device;

/// The connection manager's device node.
const CONNECTION_MANAGER: &str = "/dev/infiniband/rdma_cm";

/// The folder with the device nodes of verbs.
const NODES: &str = "/dev/infiniband";

/// Why an RDMA device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The libraries are missing.
    #[error(
        "libibverbs.so.1 or librdmacm.so.1 is not installed (Debian: `apt-get install libibverbs1 librdmacm1 ibverbs-providers`); iwarp:// needs neither"
    )]
    NoLibrary,
    /// The kernel has no connection manager.
    #[error(
        "the kernel has no RDMA connection manager ({CONNECTION_MANAGER} is missing): `modprobe rdma_ucm` loads it; iwarp:// needs none"
    )]
    NoConnectionManager,
    /// A device node may not be opened.
    #[error("no permission to open {node}: give the user access to it (with systemd: DeviceAllow=, and a group in SupplementaryGroups=)")]
    Permission {
        /// Which.
        node: String,
    },
    /// There is no device.
    #[error("this machine has no RDMA device (`rdma link` lists them, `rdma link add` makes a software one); iwarp:// needs none")]
    NoDevice,
    /// The address belongs to no RDMA device.
    #[error("no RDMA device has or reaches the address {address}; `rdma link` shows the devices and their network interfaces")]
    NoDeviceFor {
        /// The address.
        address: SocketAddr,
    },
    /// Too little memory may be locked.
    #[error(
        "cannot register {bytes} bytes of memory with {device}: the limit of locked memory (RLIMIT_MEMLOCK) is {limit}; set LimitMEMLOCK=infinity in the systemd unit, or `ulimit -l unlimited` in the shell"
    )]
    MemoryLock {
        /// The device.
        device: String,
        /// How much was to be registered.
        bytes: usize,
        /// The limit in words.
        limit: String,
    },
    /// A queue pair is deeper than the device can ever hold.
    #[error("{device} allows a queue {most} {what}, {wanted} are needed; lower the queue size")]
    TooDeep {
        /// The device.
        device: String,
        /// What it allows too few of.
        what: &'static str,
        /// How many it allows.
        most: usize,
        /// How many are needed.
        wanted: usize,
    },
    /// The queue pairs of the thread leave too little of its completion queue.
    #[error("{device} allows {most} entries of a completion queue, {wanted} are needed; use fewer or shorter queues, or more reactors")]
    CompletionQueueFull {
        /// The device.
        device: String,
        /// Entries that the queue has.
        most: usize,
        /// Entries that are needed for all queue pairs.
        wanted: usize,
    },
    /// A call failed.
    #[error("{call}: {error}")]
    Call {
        /// Which.
        call: &'static str,
        /// Why.
        error: io::Error,
    },
}

impl From<VerbsError> for io::Error {
    fn from(error: VerbsError) -> Self {
        match error {
            VerbsError::Call { error, .. } if error.raw_os_error().is_some() => error,
            VerbsError::Permission { .. } => Self::new(io::ErrorKind::PermissionDenied, error),
            error => Self::other(error),
        }
    }
}

impl VerbsError {
    /// Whether a device that comes later takes the obstacle away. Its driver brings the connection manager with it.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::NoDevice | Self::NoConnectionManager)
    }

    /// Whether there is no device, or none with the address.
    pub(super) fn is_absence(&self) -> bool {
        match self {
            Self::Call { error, .. } => error.kind() == io::ErrorKind::AddrNotAvailable,
            error => error.may_pass() || matches!(error, Self::NoDeviceFor { .. }),
        }
    }

    /// What a failed call of the connection manager for an address means.
    pub(super) fn at(self, address: SocketAddr) -> Self {
        let Self::Call { error, .. } = &self else { return self };
        match error.raw_os_error() {
            Some(libc::ENODEV) => obstacle().unwrap_or(Self::NoDeviceFor { address }),
            Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EACCES | libc::EPERM) => obstacle().unwrap_or(self),
            _ => self,
        }
    }
}

/// What stands in the way of any use of RDMA devices on this machine.
pub(super) fn obstacle() -> Option<VerbsError> {
    if !device::has_libraries() {
        return Some(VerbsError::NoLibrary);
    }
    if !Path::new(CONNECTION_MANAGER).exists() {
        return Some(VerbsError::NoConnectionManager);
    }
    let nodes = fs::read_dir(NODES).into_iter().flatten().flatten().map(|entry| entry.path());
    let wanted = nodes
        .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name == "rdma_cm" || name.starts_with("uverbs")));
    let usable = nix::unistd::AccessFlags::R_OK | nix::unistd::AccessFlags::W_OK;
    let refused = wanted.into_iter().find(|path| nix::unistd::access(path, usable).is_err());
    // Last, for whoever waits for a device is to know of all else before.
    refused
        .map(|path| VerbsError::Permission { node: path.display().to_string() })
        .or_else(|| (device::count() == 0).then_some(VerbsError::NoDevice))
}
