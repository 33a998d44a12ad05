//! Linux's NVMe target, through configfs.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::modprobe;
use crate::daemon::NQN;

const CONFIGFS: &str = "/sys/kernel/config/nvmet";

/// What a namespace lies on.
#[derive(Debug, Clone)]
pub enum Backing {
    /// A RAM disk of this many MiB; there is one.
    RamDisk(u32),
    /// A device without a medium that keeps what is written in memory: of this many MiB, with blocks of 512 or 4096 bytes; there is one.
    NullBlock(u32, u32),
    /// A file or a device that is there.
    Path(PathBuf),
}

impl Backing {
    fn path(&self) -> PathBuf {
        match self {
            Self::RamDisk(mib) => {
                modprobe_with("brd", &["rd_nr=1", &format!("rd_size={}", mib << 10)]);
                "/dev/ram0".into()
            }
            Self::NullBlock(mib, block_bytes) => {
                modprobe_with("null_blk", &["nr_devices=0"]);
                let folder = Path::new("/sys/kernel/config/nullb/nullb0");
                fs::create_dir(folder).expect("null_blk has configfs");
                for (name, value) in [("size", *mib), ("blocksize", *block_bytes), ("memory_backed", 1), ("discard", 1), ("power", 1)] {
                    write(&folder.join(name), &value.to_string());
                }
                "/dev/nullb0".into()
            }
            Self::Path(path) => path.clone(),
        }
    }
}

/// The target, with one subsystem, [`NQN`], of one namespace, on one port. Its identities are fixed: a host that reconnects compares them.
#[derive(Debug)]
pub struct LinuxTarget {
    /// Where it listens.
    pub address: SocketAddr,
}

impl LinuxTarget {
    /// The namespace's UUID.
    pub const UUID: &str = "6e6d7600-0000-4000-8000-000000000001";
    /// The controllers' serial number.
    pub const SERIAL: &str = "LAB0001";

    /// Starts it for every host, with the kernel's own limits.
    ///
    /// # Panics
    ///
    /// When the kernel does not have it so.
    pub fn start(address: SocketAddr, backing: &Backing) -> Self {
        Self::start_with(address, backing, |_| {})
    }

    /// As [`Self::start`], where `configure` writes more attributes, by paths in the port's folder, before it serves: `param_inline_data_size`.
    ///
    /// # Panics
    ///
    /// When the kernel does not have it so.
    pub fn start_with(address: SocketAddr, backing: &Backing, configure: impl FnOnce(&Path)) -> Self {
        modprobe(&["nvmet", "nvmet-rdma"]);
        let path = backing.path();
        let target = Self { address };
        let namespace = target.namespace();
        fs::create_dir(target.subsystem()).expect("nvmet has configfs");
        write(&target.subsystem().join("attr_allow_any_host"), "1");
        write(&target.subsystem().join("attr_serial"), Self::SERIAL);
        fs::create_dir(&namespace).expect("a namespace");
        write(&namespace.join("device_path"), &path.display().to_string());
        write(&namespace.join("device_uuid"), Self::UUID);
        write(&namespace.join("enable"), "1");
        let port = target.port();
        fs::create_dir(&port).expect("a port");
        write(&port.join("addr_trtype"), "rdma");
        write(&port.join("addr_adrfam"), if address.is_ipv6() { "ipv6" } else { "ipv4" });
        write(&port.join("addr_traddr"), &address.ip().to_string());
        write(&port.join("addr_trsvcid"), &address.port().to_string());
        configure(&port);
        target.listen();
        target
    }

    /// Serves the subsystem at the port, again.
    ///
    /// # Panics
    ///
    /// When it does already.
    pub fn listen(&self) {
        let link = self.link();
        symlink(self.subsystem(), &link)
            .unwrap_or_else(|error| panic!("{}: {error}; the kernel says:\n{}", link.display(), super::dmesg()));
    }

    /// Takes the subsystem from the port: the kernel ends every association with it.
    ///
    /// # Panics
    ///
    /// When it is not there.
    pub fn shut(&self) {
        fs::remove_file(self.link()).expect("the port serves the subsystem");
    }

    /// The subsystem's folder in configfs.
    pub fn subsystem(&self) -> PathBuf {
        Path::new(CONFIGFS).join("subsystems").join(NQN)
    }

    /// The namespace's folder in configfs.
    pub fn namespace(&self) -> PathBuf {
        self.subsystem().join("namespaces/1")
    }

    fn port(&self) -> PathBuf {
        Path::new(CONFIGFS).join("ports/1")
    }

    fn link(&self) -> PathBuf {
        self.port().join("subsystems").join(NQN)
    }
}

/// Removes it from the kernel.
impl Drop for LinuxTarget {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.link());
        let _ = fs::remove_dir(self.port());
        let _ = fs::write(self.namespace().join("enable"), "0");
        let _ = fs::remove_dir(self.namespace());
        let _ = fs::remove_dir(self.subsystem());
    }
}

fn modprobe_with(module: &str, parameters: &[&str]) {
    crate::tools::run(std::process::Command::new("modprobe").arg(module).args(parameters));
}

/// Writes an attribute.
///
/// # Panics
///
/// When the kernel does not take it.
pub fn write(path: &Path, value: &str) {
    fs::write(path, value)
        .unwrap_or_else(|error| panic!("cannot write {value} to {}: {error}; the kernel says:\n{}", path.display(), super::dmesg()));
}
