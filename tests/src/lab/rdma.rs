//! The RDMA devices of a guest: Linux's soft iWARP (siw) and soft RoCE (rxe), each on a network interface that leads nowhere.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::modprobe;
use crate::daemon::wait_for;
use crate::tools::run;

/// The IPv4 address of the device.
pub const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
/// The IPv6 address of the device.
pub const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 1));

/// The interface below the device.
const INTERFACE: &str = "rdma0";

/// A kind of RDMA device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// iWARP over the kernel's TCP.
    Siw,
    /// RoCE version 2 over the kernel's UDP.
    Rxe,
}

impl Device {
    /// Its name: `siw0`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Siw => "siw0",
            Self::Rxe => "rxe0",
        }
    }

    /// Makes the device, with [`V4`] and [`V6`], and waits until it can be used.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn bring_up(self) {
        // siw takes its CRC from whoever has it; nothing asks for these two by name.
        let (kind, modules, mtu) = match self {
            Self::Siw => ("siw", ["siw", "crc32c_generic", "libcrc32c"], "1500"),
            // Payloads of 4096 bytes, and the headers of RoCE.
            Self::Rxe => ("rxe", ["rdma_rxe", "crc32_generic", "rdma_cm"], "4200"),
        };
        modprobe(&["dummy", "iw_cm", "rdma_ucm", "ib_uverbs"]);
        modprobe(&modules);
        ip(&["link", "add", INTERFACE, "type", "dummy"]);
        ip(&["link", "set", INTERFACE, "mtu", mtu, "up"]);
        ip(&["addr", "add", &format!("{V4}/24"), "dev", INTERFACE]);
        // Nobody else is there who could have it.
        ip(&["addr", "add", &format!("{V6}/64"), "dev", INTERFACE, "nodad"]);
        run(Command::new("rdma").args(["link", "add", self.name(), "type", kind, "netdev", INTERFACE]));
        wait_for("the RDMA device is active", Duration::from_secs(60), || self.is_active());
    }

    fn is_active(self) -> bool {
        let port = Path::new("/sys/class/infiniband").join(self.name()).join("ports/1");
        let is_active = fs::read_to_string(port.join("state")).is_ok_and(|state| state.contains("ACTIVE"));
        match self {
            Self::Siw => is_active,
            // RoCE knows an address some time after the interface does.
            Self::Rxe => is_active && [V4, V6].iter().all(|&address| has_gid(&port, address)),
        }
    }
}

fn has_gid(port: &Path, address: IpAddr) -> bool {
    let bytes = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let words: Vec<_> = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    let gid = words.join(":");
    let entries = fs::read_dir(port.join("gids")).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_to_string(entry.path()).ok()).any(|found| found.trim() == gid)
}

fn ip(arguments: &[&str]) {
    run(Command::new("ip").args(arguments));
}
