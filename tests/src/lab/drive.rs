//! The disk of a guest.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::machine::option;
use super::modprobe;
use crate::daemon::wait_for;

/// Where a guest has its disk.
pub const PATH: &str = "/dev/vda";

/// Where the bytes of a disk are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drive {
    /// In a file that is made empty and goes with the guest. Nothing is made durable.
    Scratch {
        /// The size of the disk.
        bytes: u64,
    },
    /// With an NBD server of this machine, which may outlive the guest.
    Nbd {
        /// The server's socket.
        socket: PathBuf,
    },
}

impl Drive {
    /// Makes what has to be there before QEMU starts.
    pub(super) fn prepare(&self, folder: &Path) -> io::Result<()> {
        match self {
            Self::Scratch { bytes } => File::create(scratch(folder))?.set_len(*bytes),
            Self::Nbd { .. } => Ok(()),
        }
    }

    /// QEMU's option. The server may be killed before QEMU is: a request that waits for it then has no answer, rather than an error.
    pub(super) fn blockdev(&self, folder: &Path) -> String {
        match self {
            Self::Scratch { .. } => {
                format!("driver=file,node-name=disk,cache.no-flush=on,filename={}", option(&scratch(folder)))
            }
            Self::Nbd { socket } => {
                format!("driver=nbd,node-name=disk,cache.direct=on,reconnect-delay=600,server.type=unix,server.path={}", option(socket))
            }
        }
    }
}

fn scratch(folder: &Path) -> PathBuf {
    folder.join("disk.img")
}

/// In the guest: waits until the disk is there.
pub(super) fn bring_up() {
    modprobe(&["virtio_blk"]);
    wait_for("the disk", Duration::from_secs(60), || Path::new(PATH).exists());
}
