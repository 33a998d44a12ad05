//! A volume as a block device of the kernel: sockets between the kernel's NBD driver and our [front ends](crate::nbd).
//!
//! The kernel keeps a device for as long as nobody disconnects it, sockets or not. So a device outlives the daemon: what it has not been answered waits
//! (`dead_conn_timeout`) until the next daemon hands it fresh sockets, and is sent again on those. What the next daemon must know to do so is kept by the
//! kernel with the device, as its backend identifier: which volume it is, and how many sockets it has, which cannot change.
//!
//! The kernel closes a socket whose request was not answered in [`TIMEOUT`], and sends its requests again on another one. The [gate](crate::nbd) holds
//! these back until what was sent before has ended at the target. Whenever a socket ends, for whatever reason, we see the end of its stream and give the
//! kernel another one, with the target there or not: this is what the kernel's multicast of dead links would tell, without the race of a second channel.
//!
//! A loss of acknowledged writes is told by the next flush of the kernel (module `host::ledger`). So that this holds across daemons as well, the count of
//! unsafe shutdowns whose losses were told is kept in a file beside the device's lock, and is what the next daemon compares with first.
//!
//! The end of the stream comes a moment before the kernel counts the socket as dead. A fresh one that comes within this moment is dropped by the kernel,
//! and ends at once: [`Links`] then waits a little before it tries again.

mod links;
mod netlink;
mod sysfs;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use godwit_config::NbdDevice;
use godwit_nbd::TransmissionFlags;
use godwit_reactor::Incoming;
use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use crate::block::Geometry;
use crate::host::{LossTimeout, VolumeIdentity, in_words};
pub(crate) use links::Links;
use netlink::{Driver, NetlinkError, Terms};
pub(crate) use sysfs::Disk;
use sysfs::{Attached, Lock};

/// How long a request may be without an answer before the kernel closes its socket, and sends it again on another one.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How much longer than the volume waits for its target the kernel waits for a socket.
const DEAD_CONN_MARGIN: Duration = Duration::from_secs(60);

/// For a volume that waits for ever. The kernel multiplies this by its ticks a second, and adds it to a time.
const TEN_YEARS: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Why a volume is not attached to the kernel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    /// The driver is not loaded.
    #[error("the kernel has no NBD driver: load it with `modprobe nbd`")]
    NoDriver,
    /// Only root may.
    #[error("attaching {0} needs root (CAP_SYS_ADMIN): run this with sudo, or serve the volume with --nbd")]
    NotRoot(String),
    /// Somebody has it.
    #[error("{disk} is in use{by}; free it with `nbd-client -d {disk}`, or take another device (`--device auto` finds one)")]
    Busy {
        /// Which device.
        disk: Disk,
        /// By whom.
        by: String,
    },
    /// It is another volume's, whose daemon is gone.
    #[error("{disk} is the device of another volume ({backend}); start that volume's daemon again, or free it with `nbd-client -d {disk}`")]
    OtherVolume {
        /// Which device.
        disk: Disk,
        /// Whose.
        backend: String,
    },
    /// Another daemon of ours serves it.
    #[error("{disk} is served by another godwit; `godwit list` shows which, and `godwit disconnect` ends it")]
    Served {
        /// Which device.
        disk: Disk,
    },
    /// There is no such device.
    #[error("the kernel has no {0}: load its driver with more devices (`modprobe nbd nbds_max=64`), or take another number")]
    NoDevice(String),
    /// The kernel does not take such a block size.
    #[error("the kernel's NBD driver takes blocks of 512 to 4096 bytes, and the volume has {0}")]
    BlockSize(u32),
    /// Something else went wrong.
    #[error("cannot {doing} {device}: {why}")]
    Failed {
        /// What.
        doing: &'static str,
        /// Which.
        device: String,
        /// Why.
        why: String,
    },
}

/// The volume that is to be attached.
pub(crate) struct Volume<'a> {
    /// Its subsystem.
    pub(crate) nqn: &'a str,
    pub(crate) identity: &'a VolumeIdentity,
    pub(crate) geometry: Geometry,
    /// As NBD clients that do not ask are told.
    pub(crate) flags: TransmissionFlags,
    pub(crate) loss_timeout: LossTimeout,
}

/// Finds out early whether a volume could be attached, before a target is troubled for it.
pub(crate) fn check(choice: NbdDevice) -> Result<(), DeviceError> {
    if !sysfs::may_administer() {
        return Err(DeviceError::NotRoot(choice.to_string()));
    }
    Driver::open().map(drop).map_err(|error| explain("reach", choice.to_string(), error))
}

/// The target's count of unsafe shutdowns of which the users of a device know that an earlier daemon made of a volume.
pub(crate) fn remembered(choice: NbdDevice, nqn: &str) -> Option<u128> {
    let disk = match choice {
        NbdDevice::Auto => sysfs::find(|attached| attached.is_of(nqn))?.0,
        NbdDevice::Number(number) => Disk::new(number),
    };
    let ours = disk.backend().and_then(|backend| Attached::parse(&backend)).is_some_and(|attached| attached.is_of(nqn));
    disk.remembered().filter(|_| ours)
}

/// A device that is ours. Dropping it leaves it to the next daemon.
pub(crate) struct Device {
    disk: Disk,
    attached: Attached,
    /// Nobody else serves it while we hold this.
    _lock: Lock,
}

impl Device {
    /// Makes a device of so many sockets, or resumes the one that an earlier daemon made of this volume. Returns our ends of the sockets, too.
    pub(crate) fn attach(choice: NbdDevice, volume: &Volume<'_>, sockets: usize) -> Result<(Self, Vec<Incoming>), DeviceError> {
        if !(512..=4096).contains(&volume.geometry.block_bytes) {
            return Err(DeviceError::BlockSize(volume.geometry.block_bytes));
        }
        let driver = Driver::open().map_err(|error| explain("reach", choice.to_string(), error))?;
        let ours = Attached::new(volume.nqn, volume.identity, sockets);
        let found = match choice {
            NbdDevice::Auto => sysfs::find(|attached| attached.is_same_volume(&ours)),
            NbdDevice::Number(number) => Disk::new(number).backend().map(|backend| (Disk::new(number), backend)),
        };
        if let Some((disk, backend)) = found {
            return Self::resume(&driver, disk, &backend, &ours, volume);
        }
        if let NbdDevice::Number(number) = choice
            && let Some(pid) = Disk::new(number).pid()
        {
            return Err(DeviceError::Busy { disk: Disk::new(number), by: sysfs::process(pid) });
        }
        Self::make(&driver, choice, ours, volume)
    }

    fn make(driver: &Driver, choice: NbdDevice, attached: Attached, volume: &Volume<'_>) -> Result<(Self, Vec<Incoming>), DeviceError> {
        let name = choice.to_string();
        let index = match choice {
            NbdDevice::Auto => None,
            NbdDevice::Number(number) => Some(number),
        };
        let (ours, theirs) = pairs(attached.sockets(), &name)?;
        let backend = attached.to_string();
        let theirs: Vec<_> = theirs.iter().map(AsFd::as_fd).collect();
        let made = driver.connect(index, &terms(volume, &backend), &theirs);
        let disk = Disk::new(made.map_err(|error| explain("attach the volume to", name, error))?);
        let lock = match disk.lock() {
            Ok(lock) => lock,
            Err(error) => {
                let _ = driver.disconnect(disk.number());
                return Err(error);
            }
        };
        disk.tune();
        tracing::info!("attached to {disk}, with {} sockets", ours.len());
        Ok((Self { disk, attached, _lock: lock }, ours))
    }

    fn resume(
        driver: &Driver,
        disk: Disk,
        backend: &str,
        ours: &Attached,
        volume: &Volume<'_>,
    ) -> Result<(Self, Vec<Incoming>), DeviceError> {
        let Some(attached) = Attached::parse(backend) else {
            let by = disk.pid().map(sysfs::process).unwrap_or_default();
            return Err(DeviceError::Busy { disk, by });
        };
        if !attached.is_same_volume(ours) {
            return Err(DeviceError::OtherVolume { disk, backend: backend.to_owned() });
        }
        let lock = disk.lock()?;
        let failed = |error| explain("resume", disk.to_string(), error);
        let (ends, theirs) = pairs(attached.sockets(), &disk.to_string())?;
        let theirs: Vec<_> = theirs.iter().map(AsFd::as_fd).collect();
        if disk.size_bytes() != Some(volume.geometry.size_bytes / 512 * 512) {
            driver.change(disk.number(), &terms(volume, backend)).map_err(failed)?;
        }
        driver.replace(disk.number(), backend, &theirs).map_err(failed)?;
        tracing::info!("resumed {disk}, with {} sockets", ends.len());
        Ok((Self { disk, attached, _lock: lock }, ends))
    }

    /// Which it is.
    pub(crate) fn disk(&self) -> Disk {
        self.disk
    }

    /// A fresh socket in place of one that ended: our end of it.
    pub(crate) fn replace(&self) -> Result<Incoming, DeviceError> {
        let (mut ours, theirs) = pairs(1, &self.disk.to_string())?;
        let theirs: Vec<_> = theirs.iter().map(AsFd::as_fd).collect();
        self.ask("give another socket to", |driver| driver.replace(self.disk.number(), &self.attached.to_string(), &theirs))?;
        Ok(ours.remove(0))
    }

    /// Whether it is attached still: somebody else may have freed it.
    pub(crate) fn is_attached(&self) -> bool {
        self.disk.backend().is_some_and(|backend| backend == self.attached.to_string())
    }

    /// Its users know of what was lost up to this count of unsafe shutdowns.
    pub(crate) fn remember(&self, unsafe_shutdowns: u128) {
        self.disk.remember(unsafe_shutdowns);
    }

    /// Tells the kernel what has changed about the volume.
    pub(crate) fn change(&self, volume: &Volume<'_>) -> Result<(), DeviceError> {
        self.ask("change the size of", |driver| driver.change(self.disk.number(), &terms(volume, &self.attached.to_string())))
    }

    /// Frees it. What it was asked and has not answered fails.
    pub(crate) fn detach(self) -> Result<(), DeviceError> {
        self.ask("free", |driver| driver.disconnect(self.disk.number()))?;
        self.disk.forget();
        tracing::info!("freed {}", self.disk);
        Ok(())
    }

    /// Has the driver do something: seldom enough for a way of its own to it each time.
    fn ask<T>(&self, doing: &'static str, what: impl FnOnce(&Driver) -> Result<T, NetlinkError>) -> Result<T, DeviceError> {
        Driver::open().and_then(|driver| what(&driver)).map_err(|error| explain(doing, self.disk.to_string(), error))
    }
}

fn terms<'a>(volume: &Volume<'_>, backend: &'a str) -> Terms<'a> {
    let dead_conn_timeout = match volume.loss_timeout {
        LossTimeout::Never => TEN_YEARS,
        LossTimeout::After(after) => (after + DEAD_CONN_MARGIN).min(TEN_YEARS),
    };
    let Geometry { size_bytes, block_bytes, .. } = volume.geometry;
    Terms { size_bytes, block_bytes, flags: volume.flags, timeout: TIMEOUT, dead_conn_timeout, backend }
}

/// Connected sockets: our ends, and the kernel's.
fn pairs(count: usize, device: &str) -> Result<(Vec<Incoming>, Vec<OwnedFd>), DeviceError> {
    let pair = || -> io::Result<(Incoming, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        Ok((Incoming::from_socket(ours)?, theirs))
    };
    (0..count).map(|_| pair()).collect::<io::Result<_>>().map_err(|error| DeviceError::Failed {
        doing: "make sockets for",
        device: device.to_owned(),
        why: in_words(&error),
    })
}

fn explain(doing: &'static str, device: String, error: NetlinkError) -> DeviceError {
    match error.errno() {
        _ if matches!(error, NetlinkError::NoFamily) => DeviceError::NoDriver,
        Some(libc::EPERM | libc::EACCES) => DeviceError::NotRoot(device),
        Some(libc::EBUSY) => match device.parse() {
            Ok(NbdDevice::Number(number)) => DeviceError::Busy { disk: Disk::new(number), by: String::new() },
            _ => DeviceError::NoDevice("free NBD device".to_owned()),
        },
        Some(libc::EINVAL | libc::ENODEV | libc::ENOENT) => DeviceError::NoDevice(device),
        _ => DeviceError::Failed { doing, device, why: error.to_string() },
    }
}
