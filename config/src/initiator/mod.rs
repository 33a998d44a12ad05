//! The configuration of the initiator's daemon.

mod check;
mod decode;
mod load;

use std::path::PathBuf;

use uuid::Uuid;

use crate::{
    AnyNsid, ConnectOptions, Connections, HostPort, Located, NbdDevice, NbdEndpoint, Nqn, Origin, PollBudget, Reactors, Transport, Url,
    VolumeName,
};

/// Everything that the initiator's daemon needs to know. Made by [`Initiator::load`] or [`Initiator::parse`], which check it; what is left to the
/// daemon is what only the machine and the targets know (is there such a device, what does the target offer).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initiator {
    /// Host NQN; absent is that of [`HostIdentity::discover`](crate::HostIdentity::discover).
    pub host_nqn: Option<Located<Nqn>>,
    /// Host identifier; absent likewise.
    pub host_id: Option<Located<Uuid>>,
    /// Reactor threads.
    pub reactors: Reactors,
    /// How long a reactor spins before it sleeps, and up to ten times as long for answers that come in that time.
    pub poll: PollBudget,
    /// The control socket's path, absolute; absent is the daemon's choice.
    pub control: Option<Located<PathBuf>>,
    /// Where metrics are served; port 0 is any free port, absent is nowhere.
    pub metrics: Option<Located<HostPort>>,
    /// What to attach; at least one.
    pub volumes: Vec<Volume>,
}

/// A volume: a namespace of a target, and what it becomes on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Where the volume is configured.
    pub origin: Origin,
    /// Its name.
    pub name: Located<VolumeName>,
    /// How to get to its subsystem.
    pub paths: Paths,
    /// Its subsystem.
    pub nqn: Located<Nqn>,
    /// Its namespace; absent is the only one that the subsystem has.
    pub nsid: Option<Located<AnyNsid>>,
    /// What it becomes.
    pub front: Front,
    /// How to attach and serve it. What was left out has its default; `poll` is that of the daemon, and `nr_io_queues` is one a reactor
    /// unless it was given. `addresses` and `discover` are never set: [`Volume::paths`] is in their place.
    pub options: ConnectOptions,
}

/// How to get to a subsystem. The URLs have neither NQN nor nsid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Paths {
    /// At these addresses, at least one, all different and of one transport.
    Listed(Vec<Located<Url>>),
    /// At those that the discovery service at this address tells.
    Discovered(Located<Url>),
}

impl Paths {
    /// The provider.
    #[must_use]
    pub fn transport(&self) -> Option<Transport> {
        match self {
            Self::Listed(urls) => urls.first().map(|url| url.transport),
            Self::Discovered(url) => Some(url.transport),
        }
    }
}

/// What a volume becomes on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Front {
    /// A device of the kernel's NBD driver.
    Device {
        /// Which.
        device: Located<NbdDevice>,
        /// Connections of the kernel to the daemon; absent is the daemon's choice. Where `nr_io_queues` was given as well, not more than that.
        connections: Option<Located<Connections>>,
    },
    /// An NBD export, at a place that no other volume has.
    Nbd(Located<NbdEndpoint>),
}
