//! The lock that keeps a second daemon out, and who holds it.
//!
//! The lock is `flock(2)` on the open file description that the rings work on. It lasts as long as the description does, which requests in flight keep
//! alive: a daemon that was killed holds its lock until its last write has ended, and a successor that waits for the lock cannot be overtaken
//! by such a write. Readers share it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock, major, minor};
use rustix::io::Errno;

use super::OpenError;
use super::storage::{attribute, numbers, sysfs};

/// How often a lock is tried.
const INTERVAL: Duration = Duration::from_millis(20);

/// How long a lock of this very process is waited for: a ring that was torn down lets go of its files a little later.
const OWN_LIMIT: Duration = Duration::from_secs(1);

/// After how long a wait is worth a line.
const PATIENCE: Duration = Duration::from_millis(500);

/// Waits, with one line about it when it takes long.
pub(super) struct Wait<'a> {
    path: &'a Path,
    started: Instant,
    limit: Duration,
    told: bool,
}

impl<'a> Wait<'a> {
    pub(super) fn new(path: &'a Path, limit: Duration) -> Self {
        Self { path, started: Instant::now(), limit, told: false }
    }

    /// Sleeps before the next try; false when time is up.
    pub(super) fn again(&mut self, holder: impl FnOnce() -> String) -> bool {
        let waited = self.started.elapsed();
        if waited >= self.limit {
            return false;
        }
        if waited >= PATIENCE && !self.told {
            self.told = true;
            let (path, holder) = (self.path.display(), holder());
            tracing::warn!("{path}: in use by {holder}; waiting for at most {} s", self.limit.as_secs());
        }
        thread::sleep(INTERVAL.min(self.limit - waited));
        true
    }
}

/// Locks an open file. Waits for a lock that is held; not long, if it is one of this process.
pub(super) fn lock(file: &File, path: &Path, shared: bool, limit: Duration) -> Result<(), OpenError> {
    let operation = if shared { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    let mut wait = Wait::new(path, limit);
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                let holders = holders(file);
                let own = holders.contains(&std::process::id());
                wait.limit = if own { limit.min(OWN_LIMIT) } else { limit };
                if wait.again(|| describe(&holders)) {
                    continue;
                }
                return Err(if own {
                    OpenError::Twice { first: path.display().to_string(), second: "another export of this daemon".to_owned() }
                } else {
                    OpenError::Locked { path: path.to_owned(), holder: describe(&holders), waited: wait.started.elapsed() }
                });
            }
            Err(errno) => return Err(OpenError::NoLocks { path: path.to_owned(), error: errno.into() }),
        }
    }
}

/// The processes that hold a lock on the file.
fn holders(file: &File) -> Vec<u32> {
    let Ok(metadata) = file.metadata() else { return Vec::new() };
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let device = format!("{:02x}:{:02x}", major(metadata.dev()), minor(metadata.dev()));
    holders_in(&locks, &device, metadata.ino())
}

/// Reads lines such as `1: FLOCK  ADVISORY  WRITE 26251 fe:00:5423625 0 EOF`. Some file systems (btrfs) show another device there than in `stat`: then
/// the inode has to do.
fn holders_in(locks: &str, device: &str, inode: u64) -> Vec<u32> {
    let held = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        // A line of someone who waits has `->` in it, which shifts the fields.
        let &[_, "FLOCK", _, _, process, place, ..] = fields.as_slice() else { return None };
        let (place_device, place_inode) = place.rsplit_once(':')?;
        (place_inode.parse() == Ok(inode)).then(|| (process.parse::<u32>().unwrap_or(0), place_device == device))
    };
    let found: Vec<_> = locks.lines().filter_map(held).collect();
    let exact: Vec<_> = found.iter().filter(|(_, exact)| *exact).map(|&(process, _)| process).collect();
    if exact.is_empty() { found.into_iter().map(|(process, _)| process).collect() } else { exact }
}

fn describe(holders: &[u32]) -> String {
    match holders {
        [] | [0, ..] => "a process that cannot be seen from here".to_owned(),
        [process, ..] => match attribute(Path::new(&format!("/proc/{process}/comm"))) {
            Some(name) => format!("process {process} ({name})"),
            None => format!("process {process}, which has ended but whose last writes have not"),
        },
    }
}

/// Who may have claimed a block device: a mount, swap, a device made of it, or a process with an exclusive handle.
pub(super) fn claimant(path: &Path, number: u64) -> String {
    let folder = sysfs(number);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let parts = partitions(&folder);
    if let Some(place) = mounted_at(&mounts, &numbers(number)).or_else(|| parts.iter().find_map(|part| mounted_at(&mounts, part))) {
        return format!("the file system mounted at {place}");
    }
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if swaps.lines().any(|line| line.split_whitespace().next() == real.to_str()) {
        return "the kernel, as swap space".to_owned();
    }
    let holder = fs::read_dir(folder.join("holders")).ok().and_then(|mut holders| holders.next()).and_then(Result::ok);
    match holder {
        Some(holder) => format!("the device {}", holder.file_name().to_string_lossy()),
        None => "another process or the kernel (a mount elsewhere, RAID, LVM, an export)".to_owned(),
    }
}

fn mounted_at(mountinfo: &str, numbers: &str) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(2);
        (fields.next() == Some(numbers)).then(|| fields.nth(1).unwrap_or("?").to_owned())
    })
}

/// The device numbers of a disk's partitions.
fn partitions(disk: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(disk) else { return Vec::new() };
    let partitions = entries.filter_map(Result::ok).map(|entry| entry.path()).filter(|path| path.join("partition").exists());
    partitions.filter_map(|path| attribute(&path.join("dev"))).collect()
}

/// Whether the error of opening a device says that someone has claimed it.
pub(super) fn is_claimed(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::BUSY.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &str = "1: FLOCK  ADVISORY  WRITE 26251 fe:00:5423625 0 EOF\n\
                         1: -> FLOCK  ADVISORY  WRITE 999 fe:00:5423625 0 EOF\n\
                         2: POSIX  ADVISORY  WRITE 77 fe:00:5423625 0 EOF\n\
                         3: FLOCK  ADVISORY  READ 12 00:2f:5423625 0 EOF\n\
                         4: FLOCK  ADVISORY  READ 13 00:2f:9 0 EOF\n";

    #[test]
    fn the_holder_of_a_lock_is_found_by_device_and_inode() {
        assert_eq!(holders_in(LOCKS, "fe:00", 5_423_625), [26251]);
        assert_eq!(holders_in(LOCKS, "00:2f", 5_423_625), [12]);
        assert_eq!(holders_in(LOCKS, "00:30", 9), [13], "the inode has to do");
        assert!(holders_in(LOCKS, "fe:00", 1).is_empty());
        assert!(holders_in("rubbish\n\n1:\n", "fe:00", 1).is_empty());
    }

    #[test]
    fn a_holder_that_ended_is_said_to_have_writes_in_flight() {
        assert!(describe(&[std::process::id()]).starts_with(&format!("process {} (", std::process::id())));
        assert!(describe(&[u32::MAX]).contains("last writes have not"));
        assert!(describe(&[0]).contains("cannot be seen"));
    }

    #[test]
    fn the_mount_of_a_device_is_found() {
        let mountinfo = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n30 22 7:1 / /mnt/x rw - ext4 /dev/loop1 rw\n";
        assert_eq!(mounted_at(mountinfo, "7:1").unwrap(), "/mnt/x");
        assert_eq!(mounted_at(mountinfo, "7:2"), None);
    }
}
