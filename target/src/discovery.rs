//! The discovery log: which subsystems a host may use, and where.

use std::net::{IpAddr, SocketAddr};

use godwit_nvme::Nqn;
use godwit_nvme::log::{
    AddressFamily, DiscoveryEntry, DiscoveryEntryFlags, DiscoveryHeader, RdmaAddress, RdmaProvider, SubsystemType, TransportRequirements,
};
use godwit_rdma::Transport;

use crate::offer::Offer;
use crate::subsystem::{Portal, Target};

/// The log for a host that came to the address `local`: the discovery subsystem itself, then each subsystem at each portal.
///
/// A portal that listens on every address is reported with the address that the host came by, for that is one it can reach.
pub(crate) fn log(target: &Target, offer: &Offer, host: &Nqn, local: Option<SocketAddr>) -> Vec<u8> {
    let discovery = Nqn::discovery();
    let here = local.into_iter().filter_map(|local| {
        let portal = target.portals.iter().position(|portal| portal.address.port() == local.port()).unwrap_or(0);
        let transport = target.portals.get(portal).map_or_else(Transport::default, |portal| portal.transport);
        entry(SubsystemType::CURRENT_DISCOVERY, &discovery, portal, transport, canonical(local))
    });
    let visible = offer.present().map(|(_, subsystem)| subsystem).filter(|subsystem| subsystem.hosts.allow(host));
    let offered = visible.flat_map(|subsystem| {
        let portals = target.portals.iter().enumerate();
        portals.filter_map(|(id, portal)| entry(SubsystemType::NVM, &subsystem.nqn, id, portal.transport, reachable(portal, local)?))
    });
    let entries: Vec<_> = here.chain(offered).collect();
    let header = DiscoveryHeader::new(offer.generation, entries.len() as u64);
    let mut log = header.as_bytes().to_vec();
    entries.iter().for_each(|entry| log.extend_from_slice(entry.as_bytes()));
    log
}

/// The address of a portal for a host that came to `local`.
fn reachable(portal: &Portal, local: Option<SocketAddr>) -> Option<SocketAddr> {
    if !portal.address.ip().is_unspecified() {
        return Some(canonical(portal.address));
    }
    let ip = canonical(local?).ip();
    // A portal on all IPv6 addresses takes IPv4 as well; one on all IPv4 addresses does not take IPv6.
    (ip.is_ipv4() || portal.address.is_ipv6()).then(|| SocketAddr::new(ip, portal.address.port()))
}

/// An IPv4 address that came as an IPv6 one is an IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn entry(subtype: SubsystemType, nqn: &Nqn, portal: usize, transport: Transport, at: SocketAddr) -> Option<DiscoveryEntry> {
    let family = match at.ip() {
        IpAddr::V4(_) => AddressFamily::IPV4,
        IpAddr::V6(_) => AddressFamily::IPV6,
    };
    let provider = match transport {
        Transport::Iwarp => RdmaProvider::IWARP,
        // As the kernel's target has it, which does not ask its devices either.
        Transport::Rdma => RdmaProvider::NOT_SPECIFIED,
    };
    let address = RdmaAddress { family, address: &at.ip().to_string(), port: at.port(), provider };
    // Numbers and colons always fit.
    let mut entry = DiscoveryEntry::new(subtype, nqn, u16::try_from(portal).ok()?, address).ok()?;
    // "Not specified" for the secure channel, as the kernel's target has it: nvme-cli knows no other combination by name.
    entry.treq = TransportRequirements::SQ_FLOW_CONTROL_DISABLE;
    if subtype == SubsystemType::CURRENT_DISCOVERY {
        entry.eflags = DiscoveryEntryFlags::PERSISTENT_CONNECTIONS;
    }
    Some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::subsystem::AllowedHosts;
    use crate::subsystem::tests::subsystem;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn host(name: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.org.example:{name}")).unwrap()
    }

    /// The entries as `subtype nqn family address port`.
    fn discovered(portals: &[&str], hosts: AllowedHosts, who: &str, local: &str) -> Vec<String> {
        let mut subsystem = subsystem(vec![]);
        subsystem.hosts = hosts;
        let portals = portals.iter().map(|address| Portal::new(at(address))).collect();
        let target = Target::new(vec![subsystem], portals, Limits::default(), 1);
        let log = log(&target, &target.offer(), &host(who), Some(at(local)));
        let header = DiscoveryHeader::read_from(&log).unwrap();
        assert_eq!(header.log_bytes(), Some(log.len() as u64));
        log[1024..]
            .chunks(1024)
            .map(|bytes| {
                let entry = DiscoveryEntry::read_from(bytes).unwrap();
                assert_eq!((bytes[768], bytes[769], bytes[770]), (1, 5, 1), "TSAS: connected, iWARP, RDMA_CM");
                assert_eq!(bytes[3], 0b100, "TREQ: secure channel not specified, flow control can be disabled");
                let nqn = entry.subsystem_nqn().unwrap();
                let name = nqn.as_str().rsplit([':', '.']).next().unwrap().to_owned();
                format!("{} {name} {} {} {}", entry.subtype().code(), entry.family().code(), entry.address(), entry.service())
            })
            .collect()
    }

    #[test]
    fn wildcard_portals_report_the_address_that_the_host_came_by() {
        let log = |local| discovered(&["0.0.0.0:4420"], AllowedHosts::Any, "a", local);
        assert_eq!(log("192.0.2.1:4420"), ["3 discovery 1 192.0.2.1 4420", "2 vol0 1 192.0.2.1 4420"]);
        assert_eq!(log("127.0.0.1:4420"), ["3 discovery 1 127.0.0.1 4420", "2 vol0 1 127.0.0.1 4420"]);
        let dual = |local| discovered(&["[::]:4420"], AllowedHosts::Any, "a", local);
        assert_eq!(dual("[::1]:4420"), ["3 discovery 2 ::1 4420", "2 vol0 2 ::1 4420"]);
        assert_eq!(dual("[::ffff:192.0.2.1]:4420"), ["3 discovery 1 192.0.2.1 4420", "2 vol0 1 192.0.2.1 4420"]);
    }

    #[test]
    fn every_portal_is_reported_that_the_host_can_reach() {
        let log = discovered(&["0.0.0.0:4420", "[::1]:4421", "198.51.100.7:4422"], AllowedHosts::Any, "a", "192.0.2.1:4420");
        assert_eq!(log[1..], ["2 vol0 1 192.0.2.1 4420", "2 vol0 2 ::1 4421", "2 vol0 1 198.51.100.7 4422"]);
        let from_v6 = discovered(&["0.0.0.0:4420", "[::1]:4421"], AllowedHosts::Any, "a", "[::1]:4421");
        assert_eq!(from_v6, ["3 discovery 2 ::1 4421", "2 vol0 2 ::1 4421"]);
    }

    #[test]
    fn the_generation_is_the_targets_own() {
        let target = Target::new(vec![], vec![], Limits::default(), 1).with_generation(1_780_000_000);
        // GENCTR: bytes 7:0.
        assert_eq!(log(&target, &target.offer(), &host("a"), None)[..8], 1_780_000_000_u64.to_le_bytes());
    }

    #[test]
    fn a_host_sees_only_what_it_may_use() {
        let hosts = || AllowedHosts::Listed(vec![host("a")]);
        assert_eq!(discovered(&["127.0.0.1:4420"], hosts(), "a", "127.0.0.1:4420").len(), 2);
        assert_eq!(discovered(&["127.0.0.1:4420"], hosts(), "b", "127.0.0.1:4420"), ["3 discovery 1 127.0.0.1 4420"]);
    }
}
