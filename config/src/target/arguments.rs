//! A target without a file: `--export`, `--listen`, `--nqn`.

use std::{path::PathBuf, sync::Arc};

use super::{AllowedHosts, Backend, Limits, Listener, Namespace, Service, Subsystem, Target, check::check};
use crate::{
    Crc, Export, Fault, Host, HostPort, Located, NVME_PORT, Nqn, Origin, PollBudget, PoolMemory, Problem, Problems, Reactors, TargetNsid,
    Transport, Url,
};

/// What the command line of the target says when there is no file.
#[derive(Debug, Clone, Default)]
pub struct Arguments {
    /// What to export: the namespaces 1, 2, ... of one subsystem.
    pub exports: Vec<Export>,
    /// Where to listen; none is `iwarp://127.0.0.1:4420`.
    pub listen: Vec<Url>,
    /// The name of the subsystem; absent is [`Arguments::NQN`].
    pub nqn: Option<Nqn>,
    /// Who may connect; none is everyone.
    pub hosts: Vec<Nqn>,
    /// Everyone may connect from other machines as well.
    pub allow_any_host_remote: bool,
}

impl Arguments {
    /// The name of the subsystem when none is given. (`org.example` is nobody's.)
    pub const NQN: &'static str = "nqn.2026-11.org.example:godwit";

    fn subsystem(self) -> Result<Subsystem, Problem> {
        let count = self.exports.len();
        let mut namespaces = Vec::with_capacity(count);
        for (export, nsid) in self.exports.into_iter().zip(1..) {
            let too_many = |_| Problem { origin: argument("--export"), fault: Fault::TooManyExports { count } };
            namespaces.push(namespace(export, TargetNsid::new(nsid).map_err(too_many)?));
        }
        if namespaces.is_empty() {
            return Err(Problem { origin: argument("--export"), fault: Fault::NoExport });
        }
        let hosts = if self.hosts.is_empty() { AllowedHosts::Any } else { AllowedHosts::Listed(self.hosts) };
        let nqn = self.nqn.unwrap_or_else(|| Self::NQN.parse().expect("the default is an NQN"));
        Ok(Subsystem {
            hosts: Located { value: hosts, origin: argument("--listen") },
            nqn: Located { origin: argument(&format!("--nqn {nqn}")), value: nqn },
            serial: None,
            model: None,
            namespaces,
        })
    }
}

impl Target {
    /// A target from the command line alone, checked as a file would be.
    ///
    /// # Errors
    /// Every fault, each with the argument that it is in.
    pub fn from_arguments(arguments: Arguments) -> Result<Self, Problems> {
        let mut listeners: Vec<_> = arguments.listen.iter().map(listener).collect();
        if listeners.is_empty() {
            listeners.push(listener(&default_url()));
        }
        let insecure_allow_any_host = arguments.allow_any_host_remote;
        let subsystem = arguments.subsystem().map_err(|problem| Problems::of(vec![problem]))?;
        check(Self {
            listeners,
            subsystems: vec![subsystem],
            reactors: Reactors::default(),
            poll: PollBudget::default(),
            memory: PoolMemory::default(),
            limits: Limits::default(),
            insecure_allow_any_host,
            service: Service::default(),
        })
    }
}

fn argument(text: &str) -> Origin {
    Origin::Argument(Arc::from(text))
}

fn default_url() -> Url {
    let address = HostPort { host: Host::Ip(std::net::Ipv4Addr::LOCALHOST.into()), port: NVME_PORT };
    Url::of(Transport::Iwarp, address)
}

fn listener(url: &Url) -> Listener {
    Listener {
        transport: url.transport,
        address: Located { value: url.address.clone(), origin: argument(&format!("--listen {url}")) },
        fpdu: url.fpdu,
        crc: url.crc.unwrap_or(Crc::On),
    }
}

fn namespace(export: Export, nsid: TargetNsid) -> Namespace {
    let origin = argument(&format!("--export {export}"));
    let at = || origin.clone();
    Namespace {
        nsid: Located { value: nsid, origin: at() },
        backend: Located { value: with_absolute_path(export.backend), origin: at() },
        configured_block_size: export.block_size.map(|value| Located { value, origin: at() }),
        read_only: export.read_only,
        uuid: None,
        nguid: None,
        origin,
    }
}

/// Relative to where the command was typed, which is where its user expects it.
fn with_absolute_path(mut backend: Backend) -> Backend {
    if let Backend::File { path, .. } | Backend::Device { path } = &mut backend {
        // Fails without a working directory only: then opening the path fails as well, and says so.
        *path = std::path::absolute(&path).unwrap_or_else(|_| PathBuf::from(&path));
    }
    backend
}
