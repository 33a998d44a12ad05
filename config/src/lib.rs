#![forbid(unsafe_code)]
//! Typed configuration of both daemons: what people write, checked once, as types that cannot be wrong.
//!
//! Command line and YAML share their leaf types ([`Size`], [`Nqn`], [`HostPort`], ...): each reads one
//! notation, prints it back, and refuses everything else with a sentence that says what would be right.
//! [`Target`] is the whole configuration of the target daemon, read from YAML or made from `--export`
//! arguments; both ways pass the same checks. [`Initiator`] is that of the initiator's daemon; [`ConnectOptions`] and [`HostIdentity`] are
//! its, and those of `godwit connect`.

mod address;
mod bounded;
mod connect;
mod device;
mod endpoint;
mod export;
mod fault;
mod identifier;
mod identity;
mod initiator;
mod load;
mod located;
mod name;
mod nbd_uri;
mod poll;
mod size;
mod target;
mod url;
mod usage;
mod yaml;

pub use address::{Host, HostPort, HostPortError};
pub use bounded::{
    AnyNsid, Connections, Controllers, InCapsule, IoQueues, IoTimeout, KeepAlive, OutOfRange, PoolMemory, QueueSize, Reactors,
    ReconnectDelay, TargetNsid,
};
pub use connect::{
    ConnectOptions, CtrlLossTimeout, CtrlLossTimeoutError, FastIoFailTimeout, FastIoFailTimeoutError, NbdMode, NbdModeError,
    UnsafeShutdowns,
};
pub use device::{NbdDevice, NbdDeviceError};
pub use endpoint::{NBD_PORT, NbdEndpoint, NbdEndpointError};
pub use export::{Export, ExportError};
pub use fault::{Fault, Problem, Problems, ValueError};
pub use godwit_nvme::{Nqn, NqnError};
pub use identifier::{Model, Nguid, NguidError, Serial, TextError};
pub use identity::{HostIdentity, IdentityError, IdentityFiles, IdentitySource};
pub use initiator::{Front, Initiator, Paths, Volume};
pub use load::LoadError;
pub use located::{Located, Origin};
pub use name::{VolumeName, VolumeNameError};
pub use nbd_uri::{NbdUri, NbdUriError};
pub use poll::{PollBudget, PollBudgetError};
pub use size::{Size, SizeError};
pub use target::{AllowedHosts, Arguments, Backend, BlockSize, BlockSizeError, Limits, Listener, Namespace, Service, Subsystem, Target};
pub use url::{Crc, Fpdu, NVME_PORT, SwitchError, Transport, Url, UrlError};
pub use usage::{metrics_address, one_line};
