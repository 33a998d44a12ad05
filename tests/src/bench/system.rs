//! The systems that the bench compares, by name.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::daemon::find_binary;
use crate::tools;

/// Where the bytes of a system lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The memory of the serving process.
    Memory,
    /// A file on tmpfs.
    Tmpfs,
    /// A file in the folder that `--dir` names, past the page cache: nbdkit, which uses that, has nothing to compare.
    Disk,
}

impl Backend {
    /// Every backend.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Tmpfs, Self::Disk];

    /// Those that have chains of two hops to compare with.
    pub const JUDGED: [Self; 2] = [Self::Memory, Self::Tmpfs];

    /// Its name in headings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Tmpfs => "tmpfs file",
            Self::Disk => "disk file",
        }
    }
}

/// How fio reaches the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// NBD on a Unix socket, `godwit`, iWARP without CRC on loopback TCP, `godwit-target`: as NBD, which has none.
    Godwit,
    /// The same with CRC.
    GodwitCrc,
    /// NBD on a Unix socket, nbdkit, NBD on loopback TCP, nbdkit.
    NbdkitTwoHops,
    /// NBD on a Unix socket, qemu-storage-daemon, NBD on loopback TCP, nbdkit.
    QemuTwoHops,
    /// NBD on a Unix socket, nbdkit.
    NbdkitUnix,
    /// NBD on loopback TCP, nbdkit.
    NbdkitTcp,
    /// NBD on a Unix socket, qemu-nbd.
    QemuNbd,
    /// io_uring on the file itself.
    Raw,
}

/// What a system is compared as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Ours.
    Ours,
    /// Ours with CRC.
    OursWithCrc,
    /// A process on the client's machine, a network, a process at the storage: what ours replaces.
    TwoHops,
    /// One process.
    OneHop,
    /// No process.
    Raw,
}

/// One line of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    /// Its name on the command line and in the report.
    pub name: &'static str,
    /// Where its bytes lie.
    pub backend: Backend,
    /// How they are reached.
    pub chain: Chain,
}

/// Every system, in the order of the tables.
pub const SYSTEMS: [System; 14] = [
    System { name: "godwit-memory", backend: Backend::Memory, chain: Chain::Godwit },
    System { name: "godwit-crc-memory", backend: Backend::Memory, chain: Chain::GodwitCrc },
    System { name: "nbdkit-2hop-memory", backend: Backend::Memory, chain: Chain::NbdkitTwoHops },
    System { name: "qemu-2hop-memory", backend: Backend::Memory, chain: Chain::QemuTwoHops },
    System { name: "nbdkit-unix-memory", backend: Backend::Memory, chain: Chain::NbdkitUnix },
    System { name: "nbdkit-tcp-memory", backend: Backend::Memory, chain: Chain::NbdkitTcp },
    System { name: "godwit-tmpfs", backend: Backend::Tmpfs, chain: Chain::Godwit },
    System { name: "nbdkit-2hop-tmpfs", backend: Backend::Tmpfs, chain: Chain::NbdkitTwoHops },
    System { name: "nbdkit-unix-tmpfs", backend: Backend::Tmpfs, chain: Chain::NbdkitUnix },
    System { name: "qemu-nbd-tmpfs", backend: Backend::Tmpfs, chain: Chain::QemuNbd },
    System { name: "raw-tmpfs", backend: Backend::Tmpfs, chain: Chain::Raw },
    System { name: "godwit-disk", backend: Backend::Disk, chain: Chain::Godwit },
    System { name: "qemu-nbd-disk", backend: Backend::Disk, chain: Chain::QemuNbd },
    System { name: "raw-disk", backend: Backend::Disk, chain: Chain::Raw },
];

impl System {
    /// The system of a name.
    pub fn named(name: &str) -> Option<Self> {
        SYSTEMS.into_iter().find(|system| system.name == name)
    }

    /// How fio reaches its bytes, in words.
    pub fn path(self) -> &'static str {
        match self.chain {
            Chain::Godwit => "NBD (Unix socket), godwit, NVMe/RDMA over iWARP (loopback TCP, no CRC), godwit-target",
            Chain::GodwitCrc => "NBD (Unix socket), godwit, NVMe/RDMA over iWARP (loopback TCP, CRC), godwit-target",
            Chain::NbdkitTwoHops => "NBD (Unix socket), nbdkit, NBD (loopback TCP), nbdkit",
            Chain::QemuTwoHops => "NBD (Unix socket), qemu-storage-daemon, NBD (loopback TCP), nbdkit",
            Chain::NbdkitUnix => "NBD (Unix socket), nbdkit",
            Chain::NbdkitTcp => "NBD (loopback TCP), nbdkit",
            Chain::QemuNbd => "NBD (Unix socket), qemu-nbd",
            Chain::Raw => "io_uring, O_DIRECT, on the file itself",
        }
    }

    /// What it is compared as.
    pub fn class(self) -> Class {
        match self.chain {
            Chain::Godwit => Class::Ours,
            Chain::GodwitCrc => Class::OursWithCrc,
            Chain::NbdkitTwoHops | Chain::QemuTwoHops => Class::TwoHops,
            Chain::NbdkitUnix | Chain::NbdkitTcp | Chain::QemuNbd => Class::OneHop,
            Chain::Raw => Class::Raw,
        }
    }

    /// Whether it stands in the table of a backend. Raw memory is a file on tmpfs.
    pub fn is_shown_with(self, backend: Backend) -> bool {
        self.backend == backend || (self.chain == Chain::Raw && self.backend == Backend::Tmpfs && backend == Backend::Memory)
    }

    /// Why this machine cannot run it, in words, if it cannot.
    pub fn lacks(self) -> Option<String> {
        match self.chain {
            Chain::Godwit | Chain::GodwitCrc => {
                ["godwit", "godwit-target"].iter().find(|name| find_binary(name).is_none()).map(|name| format!("{name}: not built"))
            }
            Chain::NbdkitTwoHops => lacks_nbdkit(&["nbd", self.plugin()]),
            Chain::QemuTwoHops => lacks_program("qemu-storage-daemon").or_else(|| lacks_nbdkit(&[self.plugin()])),
            Chain::NbdkitUnix | Chain::NbdkitTcp => lacks_nbdkit(&[self.plugin()]),
            Chain::QemuNbd => lacks_program("qemu-nbd"),
            Chain::Raw => None,
        }
    }

    /// nbdkit's plugin for the backend.
    pub fn plugin(self) -> &'static str {
        if self.backend == Backend::Memory { "memory" } else { "file" }
    }
}

fn lacks_program(name: &str) -> Option<String> {
    (!tools::has(name)).then(|| format!("{name}: not installed"))
}

fn lacks_nbdkit(plugins: &[&str]) -> Option<String> {
    let has_plugin = |plugin: &str| {
        let mut command = Command::new("nbdkit");
        command.args(["--dump-plugin", plugin]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    lacks_program("nbdkit").or_else(|| {
        let missing = plugins.iter().find(|plugin| !has_plugin(plugin))?;
        Some(format!("nbdkit has no {missing} plugin"))
    })
}

/// Whether files there can be used past the page cache: some file systems, and tmpfs before Linux 6.6, refuse.
pub fn has_direct_io(folder: &Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = folder.join("direct-io");
    let opened = std::fs::OpenOptions::new().create(true).truncate(true).write(true).custom_flags(libc::O_DIRECT).open(&path);
    let _ = std::fs::remove_file(&path);
    opened.is_ok()
}

/// The name of the file system there, where it is one that people know.
pub fn file_system(folder: &Path) -> &'static str {
    use nix::sys::statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, statfs};
    let known = [
        (EXT4_SUPER_MAGIC, "ext4"),
        (XFS_SUPER_MAGIC, "xfs"),
        (BTRFS_SUPER_MAGIC, "btrfs"),
        (TMPFS_MAGIC, "tmpfs"),
        (OVERLAYFS_SUPER_MAGIC, "overlayfs"),
    ];
    let found = statfs(folder).ok().map(|found| found.filesystem_type());
    known.into_iter().find(|(magic, _)| Some(*magic) == found).map_or("another file system", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_of_one_system() {
        for system in SYSTEMS {
            assert_eq!(System::named(system.name), Some(system));
        }
        assert_eq!(System::named("godwit"), None);
    }

    #[test]
    fn each_backend_has_ours_and_what_it_is_compared_with() {
        let has = |backend, class| SYSTEMS.iter().any(|system| system.is_shown_with(backend) && system.class() == class);
        for backend in [Backend::Memory, Backend::Tmpfs] {
            assert!([Class::Ours, Class::TwoHops, Class::OneHop, Class::Raw].into_iter().all(|class| has(backend, class)), "{backend:?}");
        }
        assert!([Class::Ours, Class::Raw].into_iter().all(|class| has(Backend::Disk, class)));
        assert!(!System::named("raw-disk").unwrap().is_shown_with(Backend::Memory));
    }
}
