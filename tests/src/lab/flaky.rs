//! A block device with a volatile cache that fails, or stands still, when it is told to: device mapper's flakey on a loop device.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::modprobe;
use crate::tools::run;

const NAME: &str = "flaky";

/// The device. There is one.
#[derive(Debug)]
pub struct FlakyDisk {
    below: String,
    sectors: u64,
}

impl FlakyDisk {
    /// Makes it, in good health, on a file of the folder. A loop device has a cache to flush, which a RAM disk has not.
    ///
    /// # Panics
    ///
    /// When the kernel does not have it so.
    pub fn start(folder: &Path, mib: u32) -> Self {
        modprobe(&["loop", "dm-mod", "dm-flakey"]);
        let file = folder.join("flaky.img");
        run(Command::new("truncate").args(["-s", &format!("{mib}M")]).arg(&file));
        let below = run(Command::new("losetup").args(["--find", "--show"]).arg(&file)).trim().to_owned();
        let disk = Self { below, sectors: u64::from(mib) << 11 };
        dmsetup(&["create", NAME, "--table", &disk.table("1 0")]);
        disk
    }

    /// Its path.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn path(&self) -> PathBuf {
        // There is no udev to name it, but the kernel makes the node.
        Path::new("/dev").join(dmsetup(&["info", "-c", "--noheadings", "-o", "blkdevname", NAME]).trim())
    }

    /// From now on, writes and flushes fail.
    ///
    /// # Panics
    ///
    /// When the kernel does not have it so.
    pub fn fail_writes(&self) {
        self.become_(&self.table("0 1 1 error_writes"));
    }

    /// From now on, all is well.
    ///
    /// # Panics
    ///
    /// When the kernel does not have it so.
    pub fn recover(&self) {
        self.become_(&self.table("1 0"));
    }

    /// From now on, and while the guard is there, what is asked of it waits.
    ///
    /// # Panics
    ///
    /// When the kernel does not have it so.
    pub fn hold(&self) -> Held {
        dmsetup(&["suspend", "--noflush", "--nolockfs", NAME]);
        Held(())
    }

    fn become_(&self, table: &str) {
        dmsetup(&["load", NAME, "--table", table]);
        dmsetup(&["resume", "--noflush", "--nolockfs", NAME]);
    }

    /// Seconds up and seconds down, and how it is then.
    fn table(&self, health: &str) -> String {
        format!("0 {} flakey {} 0 {health}", self.sectors, self.below)
    }
}

/// A disk that stands still.
#[derive(Debug)]
pub struct Held(());

impl Held {
    /// Lets it go on.
    pub fn release(self) {}
}

impl Drop for Held {
    fn drop(&mut self) {
        dmsetup(&["resume", NAME]);
    }
}

fn dmsetup(arguments: &[&str]) -> String {
    run(Command::new("dmsetup").args(["--noudevsync", "--noudevrules"]).args(arguments))
}
