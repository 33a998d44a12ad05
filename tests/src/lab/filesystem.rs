//! File systems of the guest's kernel: made, mounted, checked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tools::run;

/// A kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// ext4, which is to go read-only at the first error.
    Ext4,
    /// XFS.
    Xfs,
}

/// A file system on a block device.
#[derive(Debug)]
pub struct FileSystem {
    kind: Kind,
    device: PathBuf,
}

impl FileSystem {
    /// Makes one.
    ///
    /// # Panics
    ///
    /// When the device does not take it.
    pub fn make(kind: Kind, device: &Path) -> Self {
        let mut command = match kind {
            Kind::Ext4 => Command::new("mkfs.ext4"),
            Kind::Xfs => Command::new("mkfs.xfs"),
        };
        match kind {
            Kind::Ext4 => command.args(["-q", "-F", "-e", "remount-ro"]),
            Kind::Xfs => command.args(["-q", "-f"]),
        };
        run(command.arg(device));
        Self { kind, device: device.to_owned() }
    }

    /// The one that is on a device.
    pub fn on(kind: Kind, device: &Path) -> Self {
        Self { kind, device: device.to_owned() }
    }

    /// The same file system on a device that has another name now.
    #[must_use]
    pub fn moved_to(self, device: &Path) -> Self {
        Self { device: device.to_owned(), ..self }
    }

    /// Mounts it.
    ///
    /// # Panics
    ///
    /// When that fails.
    pub fn mount(&self, folder: &Path) -> Mounted {
        let kind = match self.kind {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
        };
        run(Command::new("mount").args(["-t", kind]).arg(&self.device).arg(folder));
        Mounted { folder: folder.to_owned() }
    }

    /// Has its own checker look at it, which changes nothing.
    ///
    /// # Panics
    ///
    /// When it is not clean.
    pub fn check(&self) {
        let mut command = match self.kind {
            Kind::Ext4 => Command::new("e2fsck"),
            Kind::Xfs => Command::new("xfs_repair"),
        };
        match self.kind {
            Kind::Ext4 => command.args(["-f", "-n"]),
            Kind::Xfs => command.arg("-n"),
        };
        run(command.arg(&self.device));
    }
}

/// A mounted file system.
#[derive(Debug)]
pub struct Mounted {
    folder: PathBuf,
}

impl Mounted {
    /// Where.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the kernel still lets it be written to.
    ///
    /// # Panics
    ///
    /// When it is not mounted any more.
    pub fn is_writable(&self) -> bool {
        let mounts = fs::read_to_string("/proc/mounts").expect("proc is mounted");
        let folder = self.folder.display().to_string();
        let mount = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| words[1] == folder);
        mount.expect("it is mounted")[3].split(',').any(|option| option == "rw")
    }

    /// Unmounts it, which writes out what is not on the device yet.
    ///
    /// # Panics
    ///
    /// When that fails.
    pub fn unmount(self) {
        run(Command::new("umount").arg(&self.folder));
    }
}
