//! Storage below the target that a test can fill, stall or break. All of it needs root, and goes when it is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::daemon::{Process, wait_for};
use crate::tools::run;

/// A loop device on a file, detached when dropped.
#[derive(Debug)]
pub struct LoopDevice(String);

impl LoopDevice {
    /// Makes a sparse file of `size` (as truncate(1) reads it) and a device of it.
    ///
    /// # Panics
    ///
    /// When there is none to be had.
    pub fn of_size(path: &Path, size: &str) -> Self {
        run(Command::new("truncate").args(["-s", size]).arg(path));
        Self(run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(path)).trim().to_owned())
    }

    /// Its path: `/dev/loop0`.
    pub fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// A mounted file system, unmounted when dropped.
#[derive(Debug)]
pub struct Mount {
    folder: PathBuf,
    // Field order is teardown order, after the unmounting.
    device: Option<LoopDevice>,
}

impl Mount {
    /// An empty tmpfs at a folder that it makes.
    ///
    /// # Panics
    ///
    /// When it cannot be mounted.
    pub fn tmpfs(folder: &Path, size: &str) -> Self {
        fs::create_dir(folder).expect("a new folder");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(folder));
        Self { folder: folder.to_owned(), device: None }
    }

    /// An empty ext4 on a loop device, whose image lies beside the folder that it makes.
    ///
    /// # Panics
    ///
    /// When it cannot be made or mounted.
    pub fn ext4(folder: &Path, size: &str) -> Self {
        fs::create_dir(folder).expect("a new folder");
        let device = LoopDevice::of_size(&folder.with_extension("ext4"), size);
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", device.path()]));
        run(Command::new("mount").args(["-t", "ext4", device.path()]).arg(folder));
        Self { folder: folder.to_owned(), device: Some(device) }
    }

    /// Where it is mounted.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The device below, if there is one.
    pub fn device(&self) -> Option<&LoopDevice> {
        self.device.as_ref()
    }

    /// Fills all space that is left with a file, which it names.
    ///
    /// # Panics
    ///
    /// When that does not end for want of space.
    pub fn fill(&self) -> PathBuf {
        let ballast = self.folder.join("ballast");
        for block in ["1M", "4k"] {
            let output = Command::new("dd")
                .args(["if=/dev/zero", "oflag=append", "conv=notrunc,fsync", "status=none", &format!("bs={block}")])
                .arg(format!("of={}", ballast.display()))
                .output()
                .expect("dd runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("No space left"), "{} is not full: {said}", self.folder.display());
        }
        ballast
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        unmount(&self.folder);
    }
}

fn unmount(folder: &Path) {
    let unmounted =
        |flags: &[&str]| Command::new("umount").args(flags).arg(folder).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    // What a daemon that was killed has in flight may keep it busy for a moment; then it goes when that ends.
    let _ = unmounted(&[]) || unmounted(&["--lazy"]);
}

/// A file that nbdkit serves through FUSE, so that its plugins and filters are what the target has below it.
#[derive(Debug)]
pub struct FuseFile {
    path: PathBuf,
    nbdkit: Process,
    nbdfuse: Process,
}

impl FuseFile {
    /// Starts `nbdkit` with arguments of one's own, and mounts what it serves as the file `served` in a folder.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn start(folder: &Path, nbdkit: &[&str]) -> Self {
        assert!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse: load the kernel module fuse, or give it to the container");
        let (path, socket) = (folder.join("served"), folder.join("nbdkit.sock"));
        fs::write(&path, []).expect("a file to mount on");
        let nbdkit = Process::start(Command::new("nbdkit").args(["--foreground", "--unix"]).arg(&socket).args(nbdkit));
        wait_for("nbdkit listens", Duration::from_secs(10), || socket.exists());
        let nbdfuse = Process::start(Command::new("nbdfuse").arg(&path).arg("--unix").arg(&socket));
        let file = Self { path, nbdkit, nbdfuse };
        wait_for("nbdfuse has mounted its file", Duration::from_secs(10), || {
            fs::metadata(&file.path).is_ok_and(|metadata| metadata.len() > 0)
        });
        file
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Stops the server, so that nothing of the file is answered.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn stall(&self) {
        self.nbdkit.signal(Signal::SIGSTOP);
    }

    /// Lets it go on.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn resume(&self) {
        self.nbdkit.signal(Signal::SIGCONT);
    }
}

impl Drop for FuseFile {
    fn drop(&mut self) {
        // With its server gone all that waits for it is answered, and no one hangs in it.
        self.nbdfuse.kill();
        self.nbdkit.kill();
        unmount(&self.path);
    }
}
