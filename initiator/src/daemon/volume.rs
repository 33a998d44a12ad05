//! One volume of the daemon: how it is served, and where it stands.

use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use godwit_config::{NbdDevice, NbdEndpoint, NbdMode};
use godwit_reactor::Incoming;
use serde_json::Value;

use super::ServiceError;
use crate::block::Geometry;
use crate::device::{self, Device, Disk, Links};
use crate::host::{Mailbox, VolumeInfo, VolumeSettings, VolumeState};
use crate::nbd;
use crate::socket::{IN_USE_PATIENCE, NbdSocket};
use crate::threads::Threads;
use crate::worker::{ToVolume, ToWorker, VolumeNumber};

/// How soon it is looked again whether a loss was told.
const LOOK_FOR_TOLD: Duration = Duration::from_secs(1);

/// A volume that is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Their name is what people call it.
    pub(crate) settings: VolumeSettings,
    pub(crate) io_queues: usize,
    /// Reactor threads of its own: what an RDMA device may write to is no other volume's.
    pub(crate) own_threads: bool,
    pub(crate) service: Service,
}

impl Wanted {
    /// Whether it is the same volume, attached and served in the same way.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        // All settings but those that each attachment has of its own.
        let key = |wanted: &Self| {
            let VolumeSettings { addresses, discovery, names, nsid, keep_alive, queue_size, .. } = wanted.settings.clone();
            let VolumeSettings { reconnect_delay, fast_io_fail, loss_timeout, io_timeout, abort_timeout, read_only, .. } = wanted.settings;
            let VolumeSettings { retain_bytes, uncounted, .. } = wanted.settings;
            let times = (keep_alive, reconnect_delay, fast_io_fail, loss_timeout, io_timeout, abort_timeout);
            (
                wanted.io_queues,
                wanted.service.clone(),
                addresses,
                discovery,
                names,
                nsid,
                queue_size,
                times,
                (retain_bytes, uncounted, read_only),
            )
        };
        key(self) == key(other)
    }
}

/// How a volume is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// As an NBD export.
    Nbd { endpoint: NbdEndpoint, mode: NbdMode, export_name: String },
    /// As a block device of the kernel. As many sockets as I/O queues, unless told otherwise.
    Device { device: NbdDevice, sockets: Option<usize> },
}

/// A volume of the daemon.
pub(super) struct Volume {
    pub(super) wanted: Wanted,
    pub(super) threads: Option<Rc<Threads>>,
    pub(super) stage: Stage,
    /// What becomes of it when it has been taken down.
    pub(super) after: After,
    pub(super) served: Option<Served>,
    /// Whether the first attempt to attach it has ended, one way or the other.
    pub(super) settled: bool,
    /// Who wants to know of its end.
    pub(super) asked: Vec<Sender<Value>>,
    /// What is to be in its place when it has ended: the configuration names it again.
    pub(super) next: Option<Wanted>,
}

/// What becomes of a volume when it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It is forgotten.
    Removed,
    /// It is tried again.
    Again,
    /// It is kept, to tell why it is gone.
    Gone,
}

/// Where a volume stands with the daemon. (Where it stands with its target, its status tells.)
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is being attached, or it is served.
    Running,
    /// It is to be tried again.
    Failed { again: Instant },
    /// It is looked who uses it, and its device is flushed, on a thread of its own.
    Releasing,
    /// Its clients' requests are being answered, on so many threads still.
    Draining { busy: usize, until: Instant },
    /// The target is being told.
    Detaching { until: Instant },
    /// It was given up.
    Gone,
}

/// What there is of a volume that was up.
pub(super) struct Served {
    /// What it is; its size is that of now.
    pub(super) info: VolumeInfo,
    pub(super) export: Arc<nbd::Volume>,
    pub(super) outlet: Outlet,
    /// When to look whether the device's users were told of a loss meanwhile.
    pub(super) untold: Option<Instant>,
}

/// Where the use of a volume shows that is to go.
pub(super) enum Use {
    /// Who holds the device, the kernel knows.
    Device(Disk),
    /// NBD clients are connected to the export, which is at this place; or the target is lost, and what they wrote cannot be flushed.
    Nbd { export: Arc<nbd::Volume>, place: String, is_lost: bool },
}

pub(super) enum Outlet {
    Nbd(NbdSocket),
    Device(Device, Links),
    /// The device was freed.
    Nothing,
}

/// How long a socket that is in use is waited for: all that want one together wait no longer than one does, for the daemon does nothing else meanwhile.
fn patience() -> Duration {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    IN_USE_PATIENCE.saturating_sub(FIRST.get_or_init(Instant::now).elapsed())
}

impl Volume {
    /// Serves the volume, which is up now.
    pub(super) fn serve(&mut self, number: VolumeNumber, info: VolumeInfo) -> Result<(), ServiceError> {
        let Some(threads) = &self.threads else { return Ok(()) };
        let workers = serving(threads, &info);
        let settings = &self.wanted.settings;
        let name = if let Service::Nbd { export_name, .. } = &self.wanted.service { export_name } else { "" };
        let export =
            nbd::Volume::labelled(&settings.name, name, settings.names.subsystem.as_str(), &info.geometry, nbd::Limits::default())?;
        let outlet = match &self.wanted.service {
            Service::Nbd { endpoint, mode, .. } => {
                let (socket, listener) = NbdSocket::listen(endpoint, *mode, patience())?;
                serve_on(workers, number, &export);
                workers[0].send(ToWorker::Volume(number, ToVolume::Listen(listener, workers.to_vec())));
                Outlet::Nbd(socket)
            }
            Service::Device { device, sockets } => {
                let sockets = sockets.unwrap_or(workers.len());
                let (device, ends) = Device::attach(*device, &for_kernel(settings, &info, &export), sockets)?;
                serve_on(workers, number, &export);
                let links = Links::new(ends.len(), Instant::now());
                for (link, end) in ends.into_iter().enumerate() {
                    serve_link(workers, number, link, end);
                }
                Outlet::Device(device, links)
            }
        };
        self.served = Some(Served { info, export, outlet, untold: None });
        self.remember_losses();
        Ok(())
    }

    /// The volume has grown.
    pub(super) fn resize(&mut self, geometry: Geometry) {
        let Some(served) = &mut self.served else { return };
        served.info.geometry = geometry;
        if let Err(error) = served.export.update(&geometry) {
            return tracing::warn!(volume = self.wanted.settings.name, "NBD clients cannot see the new size: {error}");
        }
        // Only now: the kernel uses the new size at once.
        if let Outlet::Device(device, _) = &served.outlet
            && let Err(error) = device.change(&for_kernel(&self.wanted.settings, &served.info, &served.export))
        {
            tracing::warn!(volume = self.wanted.settings.name, "{error}");
        }
    }

    /// What waits for a lost target waits no longer than this from now on, in the kernel too.
    pub(super) fn limit_loss_timeout(&mut self, limit: Duration) {
        let settings = &mut self.wanted.settings;
        settings.loss_timeout = settings.loss_timeout.at_most(limit);
        if let Some(Served { info, export, outlet: Outlet::Device(device, _), .. }) = &self.served
            && let Err(error) = device.change(&for_kernel(settings, info, export))
        {
            tracing::warn!(volume = self.wanted.settings.name, "{error}");
        }
    }

    /// Keeps for the next daemon what the users of the device know of losses. One that they were not told yet is
    /// looked after again.
    pub(super) fn remember_losses(&mut self) {
        let Some(Served { info, outlet: Outlet::Device(device, _), untold, .. }) = &mut self.served else { return };
        // In this order: a loss that came with a new count is on record before the count is.
        let unsafe_shutdowns = self.wanted.settings.status.control().unsafe_shutdowns;
        *untold = (!info.are_losses_told()).then(|| Instant::now() + LOOK_FOR_TOLD);
        if untold.is_none() {
            device.remember(unsafe_shutdowns.unwrap_or(0));
        }
    }

    /// A socket to the kernel has ended.
    pub(super) fn link_ended(&mut self, link: nbd::LinkId, end: nbd::LinkEnd, now: Instant) {
        let Some(Served { outlet, .. }) = &mut self.served else { return };
        let Outlet::Device(device, links) = outlet else { return };
        if end == nbd::LinkEnd::Freed || !device.is_attached() {
            tracing::warn!(volume = self.wanted.settings.name, "{} was freed by somebody else", device.disk());
            *outlet = Outlet::Nothing;
        } else {
            links.ended(link.0, now);
        }
    }

    /// Gives the kernel fresh sockets for those that have ended, target or not: its requests wait here rather than there, where they would fail in the end.
    pub(super) fn replace_links(&mut self, number: VolumeNumber, now: Instant) {
        let (Some(threads), Some(Served { info, outlet: Outlet::Device(device, links), .. })) = (&self.threads, &mut self.served) else {
            return;
        };
        let workers = serving(threads, info);
        while let Some(link) = links.next(now) {
            match device.replace() {
                Ok(end) => {
                    tracing::info!(volume = self.wanted.settings.name, "gave the kernel another socket for {}", device.disk());
                    links.replaced(link, now);
                    serve_link(workers, number, link, end);
                }
                Err(error) => {
                    tracing::warn!(volume = self.wanted.settings.name, "{error}");
                    links.replaced(link, now);
                    links.ended(link, now);
                }
            }
        }
    }

    /// Frees the volume's device, if it has one: whatever the kernel waits for fails.
    pub(super) fn free_device(&mut self) {
        let Some(served) = &mut self.served else { return };
        if let Outlet::Device(device, _) = std::mem::replace(&mut served.outlet, Outlet::Nothing)
            && let Err(error) = device.detach()
        {
            tracing::warn!(volume = self.wanted.settings.name, "{error}");
        }
    }

    /// The volume's device.
    pub(super) fn device(&self) -> Option<&Device> {
        match &self.served.as_ref()?.outlet {
            Outlet::Device(device, _) => Some(device),
            Outlet::Nbd(_) | Outlet::Nothing => None,
        }
    }

    /// Where its use shows; `None` when it is not served.
    pub(super) fn use_of(&self) -> Option<Use> {
        let served = self.served.as_ref()?;
        match &served.outlet {
            Outlet::Device(device, _) => Some(Use::Device(device.disk())),
            Outlet::Nbd(_) => {
                let is_lost = self.wanted.settings.status.control().state == VolumeState::Lost;
                Some(Use::Nbd { export: Arc::clone(&served.export), place: self.place()?, is_lost })
            }
            Outlet::Nothing => None,
        }
    }

    /// When something is to be done about it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let stage = match self.stage {
            Stage::Failed { again: at } | Stage::Draining { until: at, .. } | Stage::Detaching { until: at } => Some(at),
            Stage::Running | Stage::Releasing | Stage::Gone => None,
        };
        let links = match self.served.as_ref().map(|served| &served.outlet) {
            Some(Outlet::Device(_, links)) => links.next_due(),
            _ => None,
        };
        let untold = self.served.as_ref().and_then(|served| served.untold);
        stage.into_iter().chain(links).chain(untold).min()
    }

    /// Where people find it: a device, or a URI.
    pub(super) fn place(&self) -> Option<String> {
        match (&self.served.as_ref()?.outlet, &self.wanted.service) {
            (Outlet::Nbd(socket), Service::Nbd { export_name, .. }) => Some(socket.uri(export_name)),
            (Outlet::Device(device, _), _) => Some(device.disk().to_string()),
            _ => None,
        }
    }
}

/// The threads that the volume's queues are on.
fn serving<'a>(threads: &'a Threads, info: &VolumeInfo) -> &'a [Mailbox<ToWorker>] {
    &threads.workers()[..info.io_queues.min(threads.workers().len())]
}

/// Each socket to the kernel has its thread.
fn serve_link(workers: &[Mailbox<ToWorker>], number: VolumeNumber, link: usize, end: Incoming) {
    workers[link % workers.len()].send(ToWorker::Volume(number, ToVolume::Link(nbd::LinkId(link), end)));
}

fn serve_on(workers: &[Mailbox<ToWorker>], number: VolumeNumber, export: &Arc<nbd::Volume>) {
    for worker in workers {
        worker.send(ToWorker::Volume(number, ToVolume::Serve(Arc::clone(export))));
    }
}

fn for_kernel<'a>(settings: &'a VolumeSettings, info: &'a VolumeInfo, export: &nbd::Volume) -> device::Volume<'a> {
    device::Volume {
        nqn: settings.names.subsystem.as_str(),
        identity: &info.identity,
        geometry: info.geometry,
        flags: export.flags(),
        loss_timeout: settings.loss_timeout,
    }
}
