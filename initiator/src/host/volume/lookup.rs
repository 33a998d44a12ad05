//! Where the subsystem may be: names are looked up, and a discovery controller is asked, before an attempt.
//!
//! The system's resolver blocks, so it is asked on a thread of its own, which tells the control what it has heard as a queue tells its news. One that takes
//! too long is not waited for: the attempt goes to the addresses that were known before. The discovery controller is asked when no address is known, and
//! again once an attempt on each that is known has failed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use godwit_config::{Host, HostPort};
use godwit_nvme::Nqn;
use godwit_nvme::log::{DiscoveryEntry, SubsystemType, TransportType};
use godwit_rdma::Fabric;
use godwit_reactor::Reactor;
use tracing::{debug, info};

use super::{Address, ControlTimer, State, VolumeControl};
use crate::host::discover::{Discovery, DiscoverySettings};
use crate::host::error::HostError;
use crate::host::message::{FromQueue, News};
use crate::host::queue::{Endpoint, in_words};

/// How long an attempt waits for the resolver.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Looks a name up; may block.
#[derive(Clone)]
pub struct Resolver(Arc<Resolve>);

type Resolve = dyn Fn(&HostPort) -> io::Result<Vec<SocketAddr>> + Send + Sync;

impl Resolver {
    /// One that answers by a function, on a thread of its own.
    pub fn new(resolve: impl Fn(&HostPort) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(resolve))
    }
}

impl Default for Resolver {
    /// The system's.
    fn default() -> Self {
        Self::new(HostPort::resolve)
    }
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resolver")
    }
}

/// What the resolver said about each address of the settings, the one of the discovery controller last.
#[derive(Debug)]
pub(crate) struct Resolved(Vec<io::Result<Vec<SocketAddr>>>);

/// What is known of where the subsystem may be.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// By address of the settings, the one of the discovery controller last.
    resolved: Vec<Vec<SocketAddr>>,
    /// What the discovery controller said.
    discovered: Vec<Endpoint>,
    /// The resolver is at work.
    resolving: bool,
    /// Which of the discovery controller's addresses to ask next.
    turn: usize,
    /// Why nothing is known.
    failure: Option<HostError>,
}

/// The address, when it needs no resolver.
fn literal(host: &HostPort) -> Option<SocketAddr> {
    match host.host {
        Host::Ip(ip) => Some(SocketAddr::new(ip, host.port)),
        Host::Scoped(..) | Host::Name(_) => None,
    }
}

impl VolumeControl {
    fn hosts(&self) -> impl Iterator<Item = &HostPort> {
        self.settings.addresses.iter().chain(&self.settings.discovery).map(|address| &address.host)
    }

    /// Finds out where to try, then tries.
    pub(super) fn look_up<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        self.state = State::Looking;
        let literals: Option<Vec<_>> = self.hosts().map(|host| literal(host).map(|address| vec![address])).collect();
        if let Some(literals) = literals {
            self.known.resolved = literals;
            return self.looked_up(reactor, fabric);
        }
        self.arm(reactor, ControlTimer::State, LOOKUP_TIMEOUT);
        if !self.known.resolving && !self.ask_resolver() {
            self.looked_up(reactor, fabric);
        }
    }

    /// False when it cannot be asked.
    fn ask_resolver(&mut self) -> bool {
        let Some(mailbox) = self.mailbox.clone() else { return false };
        let hosts: Vec<_> = self.hosts().cloned().collect();
        let resolver = self.settings.resolver.clone();
        let association = self.association;
        let ask = move || {
            let resolved = Resolved(hosts.iter().map(|host| (resolver.0)(host)).collect());
            mailbox.send(FromQueue { association, queue: 0, news: News::Resolved(resolved) });
        };
        self.known.resolving = std::thread::Builder::new().name("resolver".to_owned()).spawn(ask).is_ok();
        self.known.resolving
    }

    /// The resolver has answered, be it late.
    pub(super) fn on_resolved<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, resolved: Resolved) {
        self.known.resolving = false;
        let hosts: Vec<_> = self.hosts().cloned().collect();
        self.known.resolved.resize(hosts.len(), Vec::new());
        for ((known, result), host) in self.known.resolved.iter_mut().zip(resolved.0).zip(&hosts) {
            match result {
                Ok(addresses) => *known = addresses,
                Err(error) => {
                    debug!(volume = self.settings.name, "cannot find the address of {host}: {error}");
                    self.known.failure = Some(HostError::Lookup { host: host.to_string(), reason: in_words(&error) });
                }
            }
        }
        if matches!(self.state, State::Looking) && self.discovery.is_none() {
            self.looked_up(reactor, fabric);
        }
    }

    /// The resolver takes too long.
    pub(super) fn on_lookup_timer<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        if self.known.resolved.iter().all(Vec::is_empty) {
            let host = self.hosts().next().map_or_else(String::new, ToString::to_string);
            let reason = format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs());
            self.known.failure = Some(HostError::Lookup { host, reason });
        }
        self.looked_up(reactor, fabric);
    }

    fn looked_up<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        self.cancel(reactor, ControlTimer::State);
        self.update_paths();
        let Some(address) = self.settings.discovery.clone().filter(|_| self.paths.all_failed()) else { return self.open(reactor, fabric) };
        let controllers = self.known.resolved.get(self.settings.addresses.len()).map_or(&[][..], Vec::as_slice);
        let Some(&controller) = controllers.get(self.known.turn % controllers.len().max(1)) else { return self.open(reactor, fabric) };
        self.known.turn += 1;
        let settings = DiscoverySettings { endpoint: address.at(controller), names: self.settings.names.clone() };
        debug!(volume = self.settings.name, address = %controller, "asking the discovery controller");
        let buffers = self.admin_buffers(reactor);
        match buffers.and_then(|buffers| Discovery::start_with(reactor, fabric, settings, self.tokens, buffers)) {
            Ok(discovery) => self.discovery = Some(Box::new(discovery)),
            Err(error) => {
                self.known.failure = Some(error);
                self.open(reactor, fabric);
            }
        }
    }

    fn update_paths(&mut self) {
        let named = self.settings.addresses.iter().zip(&self.known.resolved);
        let named = named.flat_map(|(address, resolved)| resolved.iter().map(|&at| address.at(at)));
        let endpoints: Vec<_> = named.chain(self.known.discovered.iter().copied()).collect();
        self.paths.update(endpoints);
    }

    /// Looks whether the discovery controller has answered.
    pub(super) fn check_discovery<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        let Some(outcome) = self.discovery.as_mut().and_then(|discovery| discovery.take_outcome()) else { return };
        self.discovery = None;
        match (outcome, &self.settings.discovery) {
            (Ok(log), Some(asked)) => {
                let nqn = &self.settings.names.subsystem;
                let found: Vec<_> = log.entries.iter().filter_map(|entry| endpoint_of(entry, nqn, asked)).collect();
                if found.is_empty() {
                    let at = asked.host.to_string();
                    self.known.failure = Some(HostError::NotDiscovered { nqn: nqn.clone(), at });
                } else {
                    if found != self.known.discovered {
                        let addresses: Vec<_> = found.iter().map(|endpoint| endpoint.address.to_string()).collect();
                        info!(volume = self.settings.name, "the discovery controller names {}", addresses.join(", "));
                    }
                    self.known.discovered = found;
                }
                self.update_paths();
                self.paths.begin_round();
            }
            (Err(error), _) => {
                debug!(volume = self.settings.name, "discovery failed: {error}");
                self.known.failure = Some(error);
            }
            (Ok(_), None) => {}
        }
        self.open(reactor, fabric);
    }

    /// Why no path is known.
    pub(super) fn no_path(&mut self) -> HostError {
        self.known.failure.take().unwrap_or_else(|| HostError::Connection("no address is known".to_owned()))
    }
}

/// The endpoint that an entry of a discovery log names, if it is one of the subsystem. Both of our transports are RDMA to NVMe: it is the one by which
/// the discovery controller was reached.
fn endpoint_of(entry: &DiscoveryEntry, nqn: &Nqn, asked: &Address) -> Option<Endpoint> {
    let ours = entry.transport() == TransportType::RDMA
        && entry.subtype() == SubsystemType::NVM
        && entry.subsystem_nqn().is_ok_and(|found| found == *nqn);
    let ip = entry.address().to_string().parse().ok().filter(|_| ours)?;
    Some(asked.at(SocketAddr::new(ip, entry.port()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use godwit_nvme::log::{AddressFamily, RdmaAddress, RdmaProvider};
    use godwit_rdma::{FpduSize, Transport};

    #[test]
    fn an_entry_of_the_subsystem_is_an_endpoint_of_the_transport_that_was_asked() {
        let nqn: Nqn = "nqn.2026-11.org.example:vol0".parse().unwrap();
        let asked =
            Address { transport: Transport::Rdma, host: HostPort::parse("192.0.2.1", 8009).unwrap(), crc: false, fpdu: FpduSize::Segment };
        let entry = |subtype, family, address| {
            DiscoveryEntry::new(subtype, &nqn, 1, RdmaAddress { family, address, port: 4421, provider: RdmaProvider::IWARP }).unwrap()
        };
        let v4 = entry(SubsystemType::NVM, AddressFamily::IPV4, "192.0.2.7");
        let found = endpoint_of(&v4, &nqn, &asked).unwrap();
        assert_eq!(
            found,
            Endpoint { transport: Transport::Rdma, address: ([192, 0, 2, 7], 4421).into(), crc: false, fpdu: FpduSize::Segment }
        );
        let v6 = entry(SubsystemType::NVM, AddressFamily::IPV6, "2001:db8::7");
        assert_eq!(endpoint_of(&v6, &nqn, &asked).unwrap().address, "[2001:db8::7]:4421".parse().unwrap());
        assert_eq!(endpoint_of(&v4, &"nqn.2026-11.org.example:vol1".parse().unwrap(), &asked), None);
        assert_eq!(endpoint_of(&entry(SubsystemType::REFERRAL, AddressFamily::IPV4, "192.0.2.7"), &nqn, &asked), None);
        assert_eq!(endpoint_of(&entry(SubsystemType::NVM, AddressFamily::IPV4, "storage.example"), &nqn, &asked), None);
    }
}
