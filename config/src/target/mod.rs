//! The configuration of the target daemon.

mod arguments;
mod check;
mod decode;
mod load;

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use uuid::Uuid;

use crate::{
    Controllers, Crc, Fpdu, HostPort, InCapsule, IoQueues, Located, Model, Nguid, Nqn, Origin, PollBudget, PoolMemory, QueueSize, Reactors,
    Serial, Size, SizeError, TargetNsid, Transport,
};

pub use arguments::Arguments;

/// Everything that the target daemon needs to know. Made by [`Target::load`], [`Target::parse`] or
/// [`Target::from_arguments`], all of which check it; what is left to the daemon is what only the machine knows
/// (do the files exist, can the address be bound).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Where to listen; at least one.
    pub listeners: Vec<Listener>,
    /// What to offer; at least one.
    pub subsystems: Vec<Subsystem>,
    /// Reactor threads.
    pub reactors: Reactors,
    /// How long a reactor spins before it sleeps, and up to ten times as long for answers that come in that time.
    pub poll: PollBudget,
    /// Registered memory of each reactor.
    pub memory: PoolMemory,
    /// What hosts may use.
    pub limits: Limits,
    /// `allow_any_host` is also right where other machines can connect.
    pub insecure_allow_any_host: bool,
    /// What the daemon is to its machine.
    pub service: Service,
}

/// What the daemon is to the machine that it runs on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Service {
    /// The folder for what is kept about devices; absent is the daemon's choice.
    pub state_dir: Option<PathBuf>,
    /// The control socket; absent is the daemon's choice.
    pub control: Option<PathBuf>,
    /// Where metrics are served; absent is nowhere.
    pub metrics: Option<SocketAddr>,
    /// Whether all of the daemon's memory stays in RAM, and writing out of memory pressure passes it by.
    pub lock_memory: bool,
}

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The provider.
    pub transport: Transport,
    /// The address; port 0 is any free port.
    pub address: Located<HostPort>,
    /// FPDU size (iWARP).
    pub fpdu: Fpdu,
    /// CRC (iWARP).
    pub crc: Crc,
}

/// A subsystem: a name, who may use it, and its namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subsystem {
    /// Its name.
    pub nqn: Located<Nqn>,
    /// Who may connect.
    pub hosts: Located<AllowedHosts>,
    /// Serial number; absent is made up from the identity of the machine and the name.
    pub serial: Option<Located<Serial>>,
    /// Model number; absent is the product's name.
    pub model: Option<Located<Model>>,
    /// At least one, in the order written.
    pub namespaces: Vec<Namespace>,
}

/// Who may connect to a subsystem. A host NQN is a name, not a proof of identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Everyone.
    Any,
    /// The hosts of these names; at least one.
    Listed(Vec<Nqn>),
}

impl AllowedHosts {
    /// Whether the host of this name may connect.
    #[must_use]
    pub fn allows(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(hosts) => hosts.iter().any(|nqn| nqn.as_str() == host),
        }
    }
}

/// A namespace: a backend with a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Where the namespace is configured.
    pub origin: Origin,
    /// Its id.
    pub nsid: Located<TargetNsid>,
    /// Where its blocks are.
    pub backend: Located<Backend>,
    /// Logical block size. Absent: a device's own, 4096 for everything else; see [`Namespace::block_size`].
    pub configured_block_size: Option<Located<BlockSize>>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// UUID; absent is made up from the backend's identity.
    pub uuid: Option<Located<Uuid>>,
    /// NGUID; absent is made up from the backend's identity.
    pub nguid: Option<Located<Nguid>>,
}

impl Namespace {
    /// The logical block size, given that of the backing device if there is one.
    #[must_use]
    pub fn block_size(&self, device: Option<BlockSize>) -> BlockSize {
        match &self.configured_block_size {
            Some(size) => size.value,
            None => device.unwrap_or_default(),
        }
    }
}

/// Where the blocks of a namespace are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// A regular file.
    File {
        /// Its path, absolute.
        path: PathBuf,
        /// With `create`: the size of the file to make. Without: the size that the file must have.
        size: Option<Size>,
        /// Whether to make the file (sparse, of `size`) when there is none. One that is there keeps its content and
        /// must have that size.
        create: bool,
    },
    /// A block device.
    Device {
        /// Its path, absolute.
        path: PathBuf,
    },
    /// Memory of the daemon, empty at each start.
    Memory {
        /// How much.
        size: Size,
    },
}

impl Backend {
    /// The file or device.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File { path, .. } | Self::Device { path } => Some(path),
            Self::Memory { .. } => None,
        }
    }

    /// The configured size.
    #[must_use]
    pub fn size(&self) -> Option<Size> {
        match self {
            Self::File { size, .. } => *size,
            Self::Memory { size } => Some(*size),
            Self::Device { .. } => None,
        }
    }
}

/// Logical block size: 512, 1024, 2048 or 4096 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize(u16);

/// A size that no logical block has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockSizeError {
    /// Not a size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// Another size.
    #[error("the block size must be 512, 1024, 2048 or 4096, not {0}")]
    Other(Size),
}

impl BlockSize {
    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self.0 as u32
    }
}

impl Default for BlockSize {
    /// 4096: what file systems use and storage does best.
    fn default() -> Self {
        Self(4096)
    }
}

impl TryFrom<Size> for BlockSize {
    type Error = BlockSizeError;

    fn try_from(size: Size) -> Result<Self, BlockSizeError> {
        match size.bytes() {
            512 => Ok(Self(512)),
            1024 => Ok(Self(1024)),
            2048 => Ok(Self(2048)),
            4096 => Ok(Self(4096)),
            _ => Err(BlockSizeError::Other(size)),
        }
    }
}

impl FromStr for BlockSize {
    type Err = BlockSizeError;

    fn from_str(text: &str) -> Result<Self, BlockSizeError> {
        Self::try_from(text.parse::<Size>()?)
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What hosts may use; more is refused with the limit in the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// In-capsule data per I/O command.
    pub in_capsule: InCapsule,
    /// Entries of an I/O queue, at most.
    pub queue_size: QueueSize,
    /// I/O queues of one controller, at most.
    pub io_queues: IoQueues,
    /// Controllers at a time, at most.
    pub controllers: Controllers,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            in_capsule: InCapsule::default(),
            queue_size: QueueSize::MAX,
            io_queues: IoQueues::default(),
            controllers: Controllers::default(),
        }
    }
}
