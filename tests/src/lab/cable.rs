//! A cable between two interfaces of a guest, at the one end a host, at the other a target, which can go silent.
//!
//! What a kernel sends to an address of its own never leaves it: rules of routing send it out here nonetheless. Each end has a soft RoCE device; for our own
//! iWARP each is an ordinary interface.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;

use super::modprobe;
use super::rdma::await_rxe;
use crate::tools::run;

/// The host's address.
pub const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 1, 1));
/// Where the target listens.
pub const TARGET: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 1, 2)), 4420);

/// The interfaces, and beyond each of them the address of the other.
const ENDS: [(&str, IpAddr, IpAddr); 2] = [("cable0", HOST, TARGET.ip()), ("cable1", TARGET.ip(), HOST)];

/// The cable. There is one.
#[derive(Debug)]
pub struct Cable(());

/// While this is there, packets disappear.
#[derive(Debug)]
pub struct Silence(());

impl Cable {
    /// Lays it.
    ///
    /// # Panics
    ///
    /// When the kernel does not have it so.
    pub fn lay() -> Self {
        modprobe(&["veth", "rdma_rxe", "crc32_generic", "rdma_cm", "rdma_ucm", "ib_uverbs", "nf_tables"]);
        let [(first, ..), (second, ..)] = ENDS;
        ip(&["link", "add", first, "type", "veth", "peer", "name", second]);
        // Before a packet is for this machine because of its address, it is for the other end.
        ip(&["rule", "add", "pref", "30", "lookup", "local"]);
        ip(&["rule", "delete", "pref", "0"]);
        for (index, (interface, here, there)) in ENDS.into_iter().enumerate() {
            let (here, there, table) = (here.to_string(), there.to_string(), (101 + index).to_string());
            for (name, value) in [("accept_local", "1"), ("rp_filter", "0")] {
                fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/{name}"), value).expect("an attribute of the interface");
            }
            // Payloads of 4096 bytes, and the headers of RoCE.
            ip(&["link", "set", interface, "mtu", "4200", "up"]);
            ip(&["addr", "add", &format!("{here}/32"), "dev", interface]);
            ip(&["route", "add", &there, "dev", interface, "src", &here, "table", &table]);
            ip(&["rule", "add", "pref", "10", "iif", interface, "lookup", "local"]);
            ip(&["rule", "add", "pref", "20", "to", &there, "lookup", &table]);
        }
        for (index, (interface, here, _)) in ENDS.into_iter().enumerate() {
            await_rxe(&format!("rxe{index}"), interface, &[here]);
        }
        Self(())
    }

    /// From now on no packet arrives at either end, and nobody is told.
    ///
    /// # Panics
    ///
    /// When the kernel does not have it so.
    pub fn silence(&self) -> Silence {
        Self::drop_at(&ENDS)
    }

    /// From now on no packet arrives at the host.
    ///
    /// # Panics
    ///
    /// When the kernel does not have it so.
    pub fn silence_target(&self) -> Silence {
        Self::drop_at(&ENDS[..1])
    }

    fn drop_at(ends: &[(&str, IpAddr, IpAddr)]) -> Silence {
        nft("add table netdev silence");
        let silence = Silence(());
        for (interface, ..) in ends {
            nft(&format!(
                "add chain netdev silence {interface} {{ type filter hook ingress device {interface} priority 0; policy drop; }}"
            ));
        }
        silence
    }
}

impl Silence {
    /// Lets packets through again.
    pub fn end(self) {}
}

impl Drop for Silence {
    fn drop(&mut self) {
        nft("delete table netdev silence");
    }
}

fn nft(rule: &str) {
    run(Command::new("nft").arg(rule));
}

fn ip(arguments: &[&str]) {
    run(Command::new("ip").args(arguments));
}
