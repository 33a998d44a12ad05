//! From options, as people give them, to a volume that a daemon can attach.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use godwit_config::{
    ConnectOptions, Crc, CtrlLossTimeout, FastIoFailTimeout, Fpdu, HostPort, PollBudget, PoolMemory, Transport, UnsafeShutdowns, Url,
};
use godwit_memory::{Layout, MAX_BUFFER_BYTES};
use godwit_nvme::{Nsid, QueueSize};
use godwit_rdma::FpduSize;

use super::Failure;
use crate::host::{Address, LossTimeout, Names, Resolver, Uncounted, VolumeSettings, VolumeStatus};
use crate::worker::WorkerConfig;

/// How long a command that was to be aborted may still take before the association is given up.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// How to get to a volume.
pub(super) struct Paths {
    /// Where its subsystem is.
    pub(super) addresses: Vec<Address>,
    /// Who knows where it is.
    pub(super) discovery: Option<Address>,
}

/// An address to which the options of a URL apply.
pub(super) fn address(url: &Url, host: &HostPort, crc: Crc) -> Address {
    Address {
        transport: match url.transport {
            Transport::Iwarp => godwit_rdma::Transport::Iwarp,
            Transport::Rdma => godwit_rdma::Transport::Rdma,
        },
        host: host.clone(),
        crc: url.crc.unwrap_or(crc) == Crc::On,
        fpdu: match url.fpdu {
            Fpdu::Large => FpduSize::Large,
            Fpdu::Mss => FpduSize::Segment,
        },
    }
}

/// What a volume is attached by.
pub(super) fn settings(
    name: String,
    options: &ConnectOptions,
    paths: Paths,
    names: Names,
    nsid: Option<u32>,
    io_queues: usize,
) -> Result<VolumeSettings, Failure> {
    let entries = u32::from(options.queue_size.get());
    let queue_size = QueueSize::new(entries).ok_or_else(|| Failure::Usage(format!("{entries} is not a queue size")))?;
    Ok(VolumeSettings {
        name,
        addresses: paths.addresses,
        discovery: paths.discovery,
        resolver: Resolver::default(),
        names,
        nsid: nsid.map(Nsid::new),
        keep_alive: Duration::from_secs(options.keep_alive_tmo.get().into()),
        queue_size,
        reconnect_delay: Duration::from_secs(options.reconnect_delay.get().into()),
        seed: RandomState::new().hash_one(()),
        loss_timeout: match options.ctrl_loss_tmo {
            CtrlLossTimeout::Never => LossTimeout::Never,
            CtrlLossTimeout::After(after) => LossTimeout::After(after),
        },
        fast_io_fail: match options.fast_io_fail_tmo {
            FastIoFailTimeout::Off => None,
            FastIoFailTimeout::After(after) => Some(after),
        },
        io_timeout: Duration::from_secs(options.io_timeout.get().into()),
        abort_timeout: ABORT_TIMEOUT,
        retain_bytes: retain_bytes(options, io_queues)?,
        uncounted: match options.unsafe_shutdowns {
            UnsafeShutdowns::Trust => Uncounted::Trust,
            UnsafeShutdowns::Fail => Uncounted::Fail,
        },
        known_unsafe_shutdowns: None,
        read_only: options.read_only,
        status: VolumeStatus::new(io_queues),
    })
}

/// Each queue needs room for the longest write.
fn retain_bytes(options: &ConnectOptions, io_queues: usize) -> Result<usize, Failure> {
    let bytes = usize::try_from(options.retain.bytes()).unwrap_or(usize::MAX);
    if bytes > 0 && bytes < io_queues * MAX_BUFFER_BYTES {
        let least = (io_queues * MAX_BUFFER_BYTES) >> 20;
        return Err(Failure::Usage(format!("--retain {} is too small for {io_queues} I/O queues: use {least}MiB or more", options.retain)));
    }
    Ok(bytes)
}

/// A queue lives on one reactor, and a second one there would only split its depth.
pub(super) fn io_queues(options: &ConnectOptions, reactors: usize) -> usize {
    let asked = usize::from(options.nr_io_queues.get());
    if asked > reactors {
        tracing::info!("using {reactors} of {asked} I/O queues: one a reactor (--reactors)");
    }
    asked.min(reactors)
}

/// What a reactor thread is made of.
pub(super) fn worker(poll: PollBudget) -> WorkerConfig {
    WorkerConfig {
        pool: Layout::of_total(usize::try_from(PoolMemory::default().size().bytes()).unwrap_or(usize::MAX)),
        poll: poll.duration(),
    }
}
