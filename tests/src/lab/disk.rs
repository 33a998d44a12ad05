//! A block device of the guest's kernel, seen by its users: read, written, flushed, zeroed, discarded, and under fio with verification.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::daemon::wait_for;
use crate::tools::{fio_with, run};

/// How long what sysfs has of a device may take to be there.
const APPEARS: Duration = Duration::from_secs(10);

/// A block device.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// The device at a path.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What sysfs tells of its queue: `write_cache`, `logical_block_size`, `discard_max_bytes` and so on.
    ///
    /// # Panics
    ///
    /// When the device is gone.
    pub fn queue(&self, attribute: &str) -> String {
        let path = self.folder().join("queue").join(attribute);
        // The kernel makes this a moment after the device.
        wait_for(&path.display().to_string(), APPEARS, || path.exists());
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim().to_owned()
    }

    /// Its size.
    ///
    /// # Panics
    ///
    /// When the device is gone.
    pub fn size_bytes(&self) -> u64 {
        let sectors = fs::read_to_string(self.folder().join("size")).expect("the device is there");
        sectors.trim().parse::<u64>().expect("a number") * 512
    }

    /// Two jobs on ranges of their own, 16 requests deep, of a block to 1 MiB; each reads back what it wrote.
    ///
    /// # Panics
    ///
    /// When fio fails, verification included.
    pub fn verify(&self) {
        let filename = format!("--filename={}", self.path.display());
        let arguments = ["--ioengine=libaio", "--direct=1", &filename];
        fio_with(&[&arguments[..], &VERIFY].concat());
    }

    /// One job on a range, in whole MiB, of a block to 256 KiB; it reads back what it wrote.
    ///
    /// # Panics
    ///
    /// When fio fails, verification included.
    pub fn verify_range(&self, offset_mib: u32, size_mib: u32) {
        let block = self.queue("logical_block_size");
        fio_with(&[
            "--ioengine=libaio",
            "--direct=1",
            &format!("--filename={}", self.path.display()),
            "--rw=randrw",
            &format!("--bsrange={block}-256k"),
            &format!("--blockalign={block}"),
            "--iodepth=16",
            &format!("--offset={offset_mib}m"),
            &format!("--size={size_mib}m"),
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
        ]);
    }

    /// Writes, and syncs, so that it is on the device.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn write(&self, offset: u64, data: &[u8]) {
        let file = self.open();
        file.write_all_at(data, offset).expect("the write succeeds");
        file.sync_all().expect("the sync succeeds");
    }

    /// Reads what the device has now, not the page cache.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    ///
    /// # Panics
    ///
    /// When there is no such device.
    pub fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        run(Command::new("blockdev").arg("--flushbufs").arg(&self.path));
        let mut data = vec![0; len];
        self.open().read_exact_at(&mut data, offset)?;
        Ok(data)
    }

    /// Writes zeroes by the device's own command.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn zero(&self, offset: u64, len: u64) {
        self.blkdiscard(&["--zeroout"], offset, len);
    }

    /// Discards a range.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn discard(&self, offset: u64, len: u64) {
        self.blkdiscard(&[], offset, len);
    }

    fn blkdiscard(&self, arguments: &[&str], offset: u64, len: u64) {
        run(Command::new("blkdiscard").args(arguments).args(["-o", &offset.to_string(), "-l", &len.to_string()]).arg(&self.path));
    }

    fn open(&self) -> File {
        let file = OpenOptions::new().read(true).write(true).open(&self.path);
        file.unwrap_or_else(|error| panic!("{}: {error}", self.path.display()))
    }

    fn folder(&self) -> PathBuf {
        Path::new("/sys/class/block").join(self.path.file_name().unwrap_or_default())
    }
}

/// fio's arguments for [`Disk::verify`]: for any engine, on 48 MiB.
pub const VERIFY: [&str; 11] = [
    "--rw=randrw",
    "--bsrange=4k-1m",
    "--blockalign=4k",
    "--iodepth=16",
    "--numjobs=2",
    "--size=24m",
    "--offset_increment=24m",
    "--verify=crc32c",
    "--verify_fatal=1",
    "--do_verify=1",
    "--group_reporting=1",
];
