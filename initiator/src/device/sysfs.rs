//! What the kernel shows of its NBD devices: `/sys/block/nbdN`, and who holds them.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::libc;

use super::DeviceError;
use crate::host::{VolumeIdentity, in_words};

/// Where the locks of devices are, and what outlives daemons.
const RUN: &str = "/run/godwit";

/// What stands in the file that outlives a daemon beside its device, before a number.
const UNSAFE_SHUTDOWNS: &str = "unsafe_shutdowns=";

/// How long a device manager may look at a device.
const GLANCE: Duration = Duration::from_secs(3);

/// The longest request that we want.
const MAX_SECTORS_KB: u32 = 1024;

/// A device of the kernel's NBD driver, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disk(u32);

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/dev/nbd{}", self.0)
    }
}

/// Held by the daemon that serves a device.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "held, not read")] Flock<File>);

impl Disk {
    pub(super) const fn new(number: u32) -> Self {
        Self(number)
    }

    pub(super) const fn number(self) -> u32 {
        self.0
    }

    fn folder(self) -> PathBuf {
        PathBuf::from(format!("/sys/block/nbd{}", self.0))
    }

    fn attribute(self, name: &str) -> Option<String> {
        Some(fs::read_to_string(self.folder().join(name)).ok()?.trim_end().to_owned())
    }

    /// The process that connected it; `None` while it is free.
    pub(super) fn pid(self) -> Option<u32> {
        self.attribute("pid")?.parse().ok()
    }

    /// Its backend identifier, if it is attached and has one.
    pub(super) fn backend(self) -> Option<String> {
        self.pid()?;
        self.attribute("backend").filter(|backend| !backend.is_empty())
    }

    pub(super) fn size_bytes(self) -> Option<u64> {
        self.attribute("size")?.parse::<u64>().ok()?.checked_mul(512)
    }

    /// Makes sure that no other daemon of ours serves it.
    pub(super) fn lock(self) -> Result<Lock, DeviceError> {
        let path = Path::new(RUN).join(format!("nbd{}.lock", self.0));
        let failed = |error: &io::Error| DeviceError::Failed { doing: "lock", device: path.display().to_string(), why: in_words(error) };
        fs::create_dir_all(RUN).map_err(|error| failed(&error))?;
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(|error| failed(&error))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Lock(lock)),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(DeviceError::Served { disk: self }),
            Err((_, errno)) => Err(failed(&errno.into())),
        }
    }

    /// Keeps, for the next daemon, the target's count of unsafe shutdowns of which the device's users know.
    pub(super) fn remember(self, unsafe_shutdowns: u128) {
        let (path, new) = (self.state(), Path::new(RUN).join(format!("nbd{}.state.new", self.0)));
        let kept = fs::write(&new, format!("{UNSAFE_SHUTDOWNS}{unsafe_shutdowns}\n")).and_then(|()| fs::rename(&new, &path));
        if let Err(error) = kept {
            tracing::warn!("cannot write {}: {}", path.display(), in_words(&error));
        }
    }

    /// What was kept.
    pub(super) fn remembered(self) -> Option<u128> {
        fs::read_to_string(self.state()).ok()?.strip_prefix(UNSAFE_SHUTDOWNS)?.trim_end().parse().ok()
    }

    /// Nobody has it any more.
    pub(super) fn forget(self) {
        let _ = fs::remove_file(self.state());
    }

    fn state(self) -> PathBuf {
        Path::new(RUN).join(format!("nbd{}.state", self.0))
    }

    /// Sets what netlink cannot. By a thread of its own: the kernel may wait for requests under way before it takes these.
    pub(super) fn tune(self) {
        thread::spawn(move || {
            let queue = self.folder().join("queue");
            let longest = queue.join("max_sectors_kb");
            let too_long =
                fs::read_to_string(&longest).ok().and_then(|text| text.trim().parse::<u32>().ok()).is_some_and(|kb| kb > MAX_SECTORS_KB);
            if too_long {
                write(&longest, &MAX_SECTORS_KB.to_string());
            }
            write(&queue.join("rotational"), "0");
        });
    }

    /// Who uses it, in words. A process that has it open is given a moment: device managers look at what is unmounted or changed.
    pub(crate) fn holder(self) -> Option<String> {
        let started = Instant::now();
        loop {
            let exclusive = OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC).open(self.to_string());
            if exclusive.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
                return Some(mounts(&self.numbers()).unwrap_or_else(|| "it is part of another device, or swap".to_owned()));
            }
            let pid = opener(&self.numbers())?;
            if started.elapsed() > GLANCE {
                return Some(format!("it is open{}", process(pid)));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Writes out what the kernel has of it in its page cache, and flushes it. May take for as long as the target is away.
    pub(crate) fn flush(self) -> io::Result<()> {
        File::open(self.to_string())?.sync_all()
    }

    /// The device numbers of the disk and its partitions, `MAJOR:MINOR`.
    fn numbers(self) -> Vec<String> {
        let folders = fs::read_dir(self.folder()).into_iter().flatten().flatten().map(|entry| entry.path());
        let numbers = folders.chain([self.folder()]).filter_map(|folder| fs::read_to_string(folder.join("dev")).ok());
        numbers.map(|text| text.trim().to_owned()).collect()
    }
}

fn write(path: &Path, value: &str) {
    if let Err(error) = fs::write(path, value) {
        tracing::warn!("cannot set {} to {value}: {}", path.display(), in_words(&error));
    }
}

/// Where a device is mounted, in words, as far as this process sees.
fn mounts(numbers: &[String]) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mounted = table.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let number = fields.next()?;
        numbers.iter().any(|own| own == number).then(|| fields.nth(1)).flatten()
    })?;
    Some(format!("it is mounted on {mounted}"))
}

/// A process that has a device open.
fn opener(numbers: &[String]) -> Option<u32> {
    let rdev = |metadata: &fs::Metadata| format!("{}:{}", libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    let processes = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes.into_iter().find(|pid| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors.into_iter().any(|entry| {
            let is_device = fs::read_link(entry.path()).is_ok_and(|link| link.starts_with("/dev"));
            is_device && fs::metadata(entry.path()).is_ok_and(|metadata| numbers.contains(&rdev(&metadata)))
        })
    })
}

/// Whether this process has CAP_SYS_ADMIN, by number 21. Where that is not told, it is tried.
pub(super) fn may_administer() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_none_or(|mask| mask & 1 << 21 != 0)
}

/// A process for the end of a sentence.
pub(super) fn process(pid: u32) -> String {
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!(" by process {pid} ({})", name.trim_end()),
        Err(_) => format!(", attached by process {pid}, which is gone"),
    }
}

/// The device that an earlier daemon made of a volume.
pub(super) fn find(is_wanted: impl Fn(&Attached) -> bool) -> Option<(Disk, String)> {
    let names = fs::read_dir("/sys/block").ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix("nbd")?.parse().ok()).map(Disk).find_map(|disk| {
        let backend = disk.backend()?;
        is_wanted(&Attached::parse(&backend)?).then_some((disk, backend))
    })
}

/// What the kernel keeps with a device: its backend identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attached {
    sockets: usize,
    volume: String,
}

const PREFIX: &str = "godwit sockets=";

impl Attached {
    pub(super) fn new(nqn: &str, identity: &VolumeIdentity, sockets: usize) -> Self {
        let VolumeIdentity { nsid, nguid, eui64, uuid, block_size, .. } = identity;
        let uuid = uuid.map(|uuid| format!(" uuid={uuid}")).unwrap_or_default();
        let nguid = nguid.map(|nguid| format!(" nguid={:032x}", u128::from_be_bytes(nguid.0))).unwrap_or_default();
        let eui64 = eui64.map(|eui64| format!(" eui64={:016x}", u64::from_be_bytes(eui64.0))).unwrap_or_default();
        let volume = format!("nsid={nsid}{uuid}{nguid}{eui64} block={block_size} nqn={nqn}");
        Self { sockets: sockets.max(1), volume }
    }

    /// Reads one of ours.
    pub(super) fn parse(backend: &str) -> Option<Self> {
        let (sockets, volume) = backend.strip_prefix(PREFIX)?.split_once(' ')?;
        let sockets = sockets.parse().ok().filter(|&sockets| sockets > 0)?;
        Some(Self { sockets, volume: volume.to_owned() })
    }

    pub(super) const fn sockets(&self) -> usize {
        self.sockets
    }

    /// Whether it is a volume of this subsystem.
    pub(super) fn is_of(&self, nqn: &str) -> bool {
        self.volume.split_once(" nqn=").is_some_and(|(_, own)| own == nqn)
    }

    /// Whether this is the same volume, by however many sockets.
    pub(super) fn is_same_volume(&self, other: &Self) -> bool {
        self.volume == other.volume
    }
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{} {}", self.sockets, self.volume)
    }
}

#[cfg(test)]
mod tests {
    use godwit_nvme::{BlockSize, Nguid, Nsid};

    use super::*;

    fn identity() -> VolumeIdentity {
        let block_size = BlockSize::new(4096).unwrap();
        VolumeIdentity { nsid: Nsid::new(1), nguid: Some(Nguid([1; 16])), eui64: None, uuid: None, block_size, size_blocks: 100 }
    }

    #[test]
    fn what_the_kernel_keeps_names_the_volume_and_counts_the_sockets() {
        let kept = Attached::new("nqn.2026-11.org.example:vol0", &identity(), 2).to_string();
        assert_eq!(kept, "godwit sockets=2 nsid=1 nguid=01010101010101010101010101010101 block=4096 nqn=nqn.2026-11.org.example:vol0");
        let read = Attached::parse(&kept).unwrap();
        assert_eq!((read.sockets(), read.to_string()), (2, kept));
        assert!(read.is_of("nqn.2026-11.org.example:vol0") && !read.is_of("nqn.2026-11.org.example:vol"));
    }

    #[test]
    fn a_grown_volume_is_the_same_and_another_one_is_not() {
        let of = |identity: &VolumeIdentity, sockets| Attached::new("nqn.2026-11.org.example:vol0", identity, sockets);
        let ours = of(&identity(), 2);
        assert!(ours.is_same_volume(&of(&VolumeIdentity { size_blocks: 200, ..identity() }, 4)));
        assert!(!ours.is_same_volume(&of(&VolumeIdentity { nguid: Some(Nguid([2; 16])), ..identity() }, 2)));
        assert!(!ours.is_same_volume(&Attached::new("nqn.2026-11.org.example:vol1", &identity(), 2)));
    }

    #[test]
    fn what_others_keep_is_not_ours() {
        for backend in ["", "qemu", "godwit", "godwit sockets= nqn=x", "godwit sockets=0 nqn=x", "godwit sockets=2"] {
            assert_eq!(Attached::parse(backend), None, "{backend}");
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_free() {
        let disk = Disk::new(1_000_000);
        assert_eq!((disk.pid(), disk.backend(), disk.size_bytes()), (None, None, None));
        assert_eq!(disk.to_string(), "/dev/nbd1000000");
    }
}
