//! What volumes must be beside each other.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use super::{Front, Initiator, Volume};
use crate::{AnyNsid, Fault, HostPort, Located, NbdDevice, NbdEndpoint, Nqn, Origin, Problem, Problems, VolumeName, located::seen};

/// Finds every fault that takes more than one volume to see, and what the endpoint of one needs.
pub(super) fn check(initiator: Initiator) -> Result<Initiator, Problems> {
    let mut checker = Checker::default();
    if let Some(control) = &initiator.control {
        checker.unix(&control.value, &control.origin);
    }
    if let Some(metrics) = &initiator.metrics {
        checker.tcp(&metrics.value, &metrics.origin);
    }
    for volume in &initiator.volumes {
        checker.volume(volume);
    }
    if checker.problems.is_empty() { Ok(initiator) } else { Err(Problems::of(checker.problems)) }
}

/// The values seen so far and where.
#[derive(Default)]
struct Checker {
    problems: Vec<Problem>,
    names: HashMap<VolumeName, Origin>,
    namespaces: HashMap<Nqn, Vec<(Option<AnyNsid>, Origin)>>,
    devices: HashMap<u32, Origin>,
    sockets: HashMap<PathBuf, Origin>,
    ports: Vec<(HostPort, Origin)>,
}

impl Checker {
    fn fault(&mut self, origin: &Origin, fault: Fault) {
        self.problems.push(Problem { origin: origin.clone(), fault });
    }

    fn volume(&mut self, volume: &Volume) {
        let name = &volume.name;
        if let Some(first) = seen(&mut self.names, name.value.clone(), &name.origin) {
            self.fault(&name.origin, Fault::DuplicateName { name: name.value.clone(), first });
        }
        self.namespace(volume);
        match &volume.front {
            Front::Device { device, .. } => self.device(device),
            Front::Nbd(endpoint) => self.endpoint(endpoint, volume.options.nbd_allow_remote),
        }
    }

    /// Without an nsid it is the only namespace that there is, so it is any that another volume names.
    fn namespace(&mut self, volume: &Volume) {
        let nqn = &volume.nqn;
        let nsid = volume.nsid.as_ref().map(|nsid| nsid.value);
        let origin = volume.nsid.as_ref().map_or(&nqn.origin, |nsid| &nsid.origin);
        let attached = self.namespaces.entry(nqn.value.clone()).or_default();
        let same = attached.iter().find(|(other, _)| nsid.is_none() || other.is_none() || nsid == *other);
        let fault = same.map(|(other, first)| {
            let (nqn, first) = (nqn.value.clone(), first.clone());
            match nsid {
                Some(nsid) if other.is_some() => Fault::AttachedTwice { nsid, nqn, first },
                _ => Fault::NsidMissing { nqn, first },
            }
        });
        attached.push((nsid, origin.clone()));
        if let Some(fault) = fault {
            self.fault(origin, fault);
        }
    }

    fn device(&mut self, device: &Located<NbdDevice>) {
        if let NbdDevice::Number(number) = device.value
            && let Some(first) = seen(&mut self.devices, number, &device.origin)
        {
            self.fault(&device.origin, Fault::DuplicateDevice { device: device.value, first });
        }
    }

    fn endpoint(&mut self, endpoint: &Located<NbdEndpoint>, allow_remote: bool) {
        match &endpoint.value {
            NbdEndpoint::Unix(path) => self.unix(path, &endpoint.origin),
            NbdEndpoint::Tcp(address) => self.tcp(address, &endpoint.origin),
        }
        if endpoint.is_remote() && !allow_remote {
            self.fault(&endpoint.origin, Fault::NbdRemote(endpoint.value.clone()));
        }
    }

    fn unix(&mut self, path: &Path, origin: &Origin) {
        if let Some(first) = seen(&mut self.sockets, path.to_owned(), origin) {
            self.fault(origin, Fault::DuplicateSocket { path: path.display().to_string(), first });
        }
    }

    fn tcp(&mut self, address: &HostPort, origin: &Origin) {
        let first = self.ports.iter().find(|(other, _)| other.collides_with(address)).map(|(_, first)| first.clone());
        if let Some(first) = first {
            self.fault(origin, Fault::DuplicatePort { address: address.clone(), first });
        }
        self.ports.push((address.clone(), origin.clone()));
    }
}
