//! What a configuration must be as a whole, however it was written.

use std::collections::HashMap;

use super::{AllowedHosts, Backend, Listener, Namespace, Subsystem, Target};
use crate::{Fault, HostPort, Located, Origin, Problem, Problems, Size, located::seen};

/// Finds every fault that takes more than one value to see.
pub(super) fn check(target: Target) -> Result<Target, Problems> {
    let mut checker = Checker::default();
    checker.listeners(&target.listeners);
    checker.subsystems(&target);
    if checker.problems.is_empty() { Ok(target) } else { Err(Problems::of(checker.problems)) }
}

/// The values seen so far and where.
#[derive(Default)]
struct Checker {
    problems: Vec<Problem>,
    nqns: HashMap<String, Origin>,
    paths: HashMap<std::path::PathBuf, Origin>,
    /// By kind and text.
    identities: HashMap<(&'static str, String), Origin>,
}

impl Checker {
    fn fault(&mut self, origin: &Origin, fault: Fault) {
        self.problems.push(Problem { origin: origin.clone(), fault });
    }

    fn listeners(&mut self, listeners: &[Listener]) {
        for (i, listener) in listeners.iter().enumerate() {
            let first =
                listeners[..i].iter().find(|other| other.transport == listener.transport && other.address.collides_with(&listener.address));
            if let Some(first) = first {
                let fault = Fault::DuplicateListener { address: listener.address.value.clone(), first: first.address.origin.clone() };
                self.fault(&listener.address.origin, fault);
            }
        }
    }

    fn subsystems(&mut self, target: &Target) {
        let remote = target.listeners.iter().map(|listener| &listener.address).find(|address| !address.is_loopback());
        for subsystem in &target.subsystems {
            self.subsystem(subsystem);
            match (&subsystem.hosts.value, remote) {
                (AllowedHosts::Any, Some(listener)) if !target.insecure_allow_any_host => {
                    self.any_host_remote(&subsystem.hosts.origin, listener);
                }
                _ => {}
            }
        }
    }

    /// In a file the place to change is the subsystem; on the command line there is only the listener.
    fn any_host_remote(&mut self, hosts: &Origin, listener: &Located<HostPort>) {
        match hosts {
            Origin::File { .. } => {
                let listener = listener.value.clone();
                self.fault(hosts, Fault::AnyHostRemote { listener });
            }
            Origin::Argument(_) => self.fault(&listener.origin, Fault::AnyHostRemoteListen),
        }
    }

    fn subsystem(&mut self, subsystem: &Subsystem) {
        let nqn = &subsystem.nqn;
        if nqn.is_discovery() {
            self.fault(&nqn.origin, Fault::DiscoveryNqn);
        }
        if let Some(first) = seen(&mut self.nqns, nqn.to_string(), &nqn.origin) {
            let nqn_value = nqn.value.clone();
            self.fault(&nqn.origin, Fault::DuplicateNqn { nqn: nqn_value, first });
        }
        self.unique("serial number", subsystem.serial.as_ref());
        let mut nsids = HashMap::new();
        for namespace in &subsystem.namespaces {
            let nsid = &namespace.nsid;
            if let Some(first) = seen(&mut nsids, nsid.value, &nsid.origin) {
                let nsid_value = nsid.value;
                self.fault(&nsid.origin, Fault::DuplicateNsid { nsid: nsid_value, first });
            }
            self.namespace(namespace);
        }
    }

    fn namespace(&mut self, namespace: &Namespace) {
        self.unique("UUID", namespace.uuid.as_ref());
        self.unique("NGUID", namespace.nguid.as_ref());
        let Located { value: backend, origin } = &namespace.backend;
        if let Some(path) = backend.path()
            && let Some(first) = seen(&mut self.paths, path.to_owned(), origin)
        {
            let path = path.display().to_string();
            self.fault(origin, Fault::DuplicatePath { path, first });
        }
        self.size(namespace, backend, origin);
    }

    fn size(&mut self, namespace: &Namespace, backend: &Backend, origin: &Origin) {
        let block_size = namespace.block_size(None).bytes();
        let Some(size) = backend.size() else {
            return;
        };
        let block = u64::from(block_size);
        let excess = size.bytes() % block;
        if size.bytes() == 0 {
            self.fault(origin, Fault::NoBlocks { block_size });
        } else if size.bytes() > SIZE_MAX_BYTES {
            self.fault(origin, Fault::TooLarge(size));
        } else if excess != 0 {
            let next = Size::from_bytes(size.bytes() - excess + block);
            self.fault(origin, Fault::PartialBlock { size, block_size, next });
        }
    }

    fn unique(&mut self, what: &'static str, identity: Option<&Located<impl ToString>>) {
        let Some(identity) = identity else {
            return;
        };
        let value = identity.value.to_string();
        if let Some(first) = seen(&mut self.identities, (what, value.clone()), &identity.origin) {
            self.fault(&identity.origin, Fault::DuplicateIdentity { what, value, first });
        }
    }
}

/// `off_t`.
const SIZE_MAX_BYTES: u64 = i64::MAX as u64;
