//! The RDMA devices of a guest: Linux's soft iWARP (siw) and soft RoCE (rxe), each on a network interface that leads nowhere.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::modprobe;
use crate::daemon::{Process, wait_for};
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

    /// Makes the device, with [`V4`] and [`V6`], and waits until it can be used. A case that had the guest before may have done so.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn bring_up(self) {
        if self.port().exists() {
            return;
        }
        // siw takes its CRC from whoever has it; nothing asks for these two by name.
        let (modules, mtu) = match self {
            Self::Siw => (["siw", "crc32c_generic", "libcrc32c"], "1500"),
            // Payloads of 4096 bytes, and the headers of RoCE.
            Self::Rxe => (["rdma_rxe", "crc32_generic", "rdma_cm"], "4200"),
        };
        modprobe(&["dummy", "iw_cm", "rdma_ucm", "ib_uverbs"]);
        modprobe(&modules);
        ip(&["link", "add", INTERFACE, "type", "dummy"]);
        ip(&["link", "set", INTERFACE, "mtu", mtu, "up"]);
        ip(&["addr", "add", &format!("{V4}/24"), "dev", INTERFACE]);
        // Nobody else is there who could have it.
        ip(&["addr", "add", &format!("{V6}/64"), "dev", INTERFACE, "nodad"]);
        self.plug();
    }

    /// Puts the device on its interface, and waits until it can be used.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn plug(self) {
        let kind = match self {
            Self::Siw => "siw",
            Self::Rxe => "rxe",
        };
        run(Command::new("rdma").args(["link", "add", self.name(), "type", kind, "netdev", INTERFACE]));
        wait_for("the RDMA device is active", Duration::from_secs(60), || self.is_active());
    }

    /// Takes the device off its interface; how long the kernel took, which waits until nobody uses it any more.
    ///
    /// # Panics
    ///
    /// When that does not come to its end.
    pub fn unplug(self) -> Duration {
        let started = Instant::now();
        let mut process = Process::start(Command::new("rdma").args(["link", "delete", self.name()]));
        assert!(process.wait(Duration::from_secs(60)).success(), "{}", process.output());
        started.elapsed()
    }

    /// Switches the interface below the device off and on.
    ///
    /// # Panics
    ///
    /// When it does not come up again.
    pub fn blink(self, off: Duration) {
        ip(&["link", "set", INTERFACE, "down"]);
        std::thread::sleep(off);
        ip(&["link", "set", INTERFACE, "up"]);
        wait_for("the RDMA device is active", Duration::from_secs(60), || self.port_is_active());
    }

    fn port(self) -> PathBuf {
        Path::new("/sys/class/infiniband").join(self.name()).join("ports/1")
    }

    fn port_is_active(self) -> bool {
        fs::read_to_string(self.port().join("state")).is_ok_and(|state| state.contains("ACTIVE"))
    }

    fn is_active(self) -> bool {
        match self {
            Self::Siw => self.port_is_active(),
            // RoCE knows an address some time after the interface does.
            Self::Rxe => self.port_is_active() && [V4, V6].iter().all(|&address| has_gid(&self.port(), address)),
        }
    }
}

/// Makes a soft RoCE device of a name on an interface, and waits until it knows the interface's addresses.
pub(super) fn await_rxe(name: &str, interface: &str, addresses: &[IpAddr]) {
    run(Command::new("rdma").args(["link", "add", name, "type", "rxe", "netdev", interface]));
    let port = Path::new("/sys/class/infiniband").join(name).join("ports/1");
    let is_active = || fs::read_to_string(port.join("state")).is_ok_and(|state| state.contains("ACTIVE"));
    wait_for("the RDMA device is active", Duration::from_secs(60), || {
        is_active() && addresses.iter().all(|&address| has_gid(&port, address))
    });
}

/// What the RDMA devices hold for everyone, as `rdma resource` counts it: queue pairs (`qp`), memory regions (`mr`), identifiers (`cm_id`) and so on.
///
/// # Panics
///
/// When it cannot be told.
pub fn resources() -> BTreeMap<String, u64> {
    let shown = run(Command::new("rdma").args(["resource", "show"]));
    let mut total = BTreeMap::new();
    for line in shown.lines() {
        let words: Vec<_> = line.split_whitespace().skip(2).collect();
        for pair in words.chunks_exact(2) {
            *total.entry(pair[0].to_owned()).or_default() += pair[1].parse::<u64>().expect("a count");
        }
    }
    total
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
