//! `godwit connect`: attaches a namespace and serves it until a signal comes.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use godwit_config::{
    ConnectOptions, Crc, CtrlLossTimeout, FastIoFailTimeout, Fpdu, HostPort, NbdEndpoint, PoolMemory, Transport, UnsafeShutdowns, Url,
};
use godwit_memory::{Layout, MAX_BUFFER_BYTES};
use godwit_nvme::{Nsid, QueueSize};
use godwit_rdma::FpduSize;

use super::{Failure, discover, endpoints, names, print};
use crate::cli::ConnectArgs;
use crate::control::{Service, ServiceError, serve};
use crate::host::{Address, LossTimeout, Names, Resolver, Uncounted, VolumeInfo, VolumeSettings, VolumeStatus};
use crate::socket;
use crate::worker::WorkerConfig;

/// How long a command that was to be aborted may still take before the association is given up.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(args: &ConnectArgs) -> Result<(), Failure> {
    let options = args.options();
    let nbd = nbd_endpoint(args)?;
    let Some(subsystem) = &args.url.nqn else {
        return Err(Failure::Usage(format!(
            "{} names no subsystem: add /NQN (`godwit discover {}` lists what the target has)",
            args.url, args.url
        )));
    };
    socket::check(nbd).map_err(|error| Failure::Failed(error.to_string()))?;
    let names = names(&args.host, subsystem.clone())?;
    let reactors = usize::from(args.reactors.get());
    let io_queues = io_queues(&options, args);
    if io_queues < usize::from(options.nr_io_queues.get()) {
        tracing::info!("using {io_queues} of {} I/O queues: one a reactor (--reactors)", options.nr_io_queues);
    }
    let service = Service {
        volume: volume(args, &options, names.clone())?,
        io_queues,
        reactors,
        worker: WorkerConfig {
            pool: Layout::of_total(usize::try_from(PoolMemory::default().size().bytes()).unwrap_or(usize::MAX)),
            poll: options.poll.duration(),
        },
        nbd: nbd.clone(),
        nbd_mode: options.nbd_mode,
        export_name: options.export_name.clone(),
    };
    serve(&service, print_ready).map_err(|error| explain(error, args, &options, names))
}

/// A queue lives on one reactor, and a second one there would only split its depth.
fn io_queues(options: &ConnectOptions, args: &ConnectArgs) -> usize {
    usize::from(options.nr_io_queues.get()).min(usize::from(args.reactors.get()))
}

fn nbd_endpoint(args: &ConnectArgs) -> Result<&NbdEndpoint, Failure> {
    let Some(nbd) = &args.nbd else {
        let device = args.device.as_deref().unwrap_or(std::path::Path::new("")).display();
        return Err(Failure::Usage(format!(
            "--device is not supported yet: serve the volume with --nbd unix:PATH, then run `nbd-client -unix PATH {device}`"
        )));
    };
    if nbd.is_remote() && !args.nbd_allow_remote {
        return Err(Failure::Usage(format!(
            "{nbd} can be reached from other machines, in clear text and without access control: add --nbd-allow-remote if that is meant"
        )));
    }
    Ok(nbd)
}

/// An address to which the options of the URL apply.
fn address(url: &Url, host: &HostPort, crc: Crc) -> Address {
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

fn volume(args: &ConnectArgs, options: &ConnectOptions, names: Names) -> Result<VolumeSettings, Failure> {
    let entries = u32::from(options.queue_size.get());
    let queue_size = QueueSize::new(entries).ok_or_else(|| Failure::Usage(format!("{entries} is not a queue size")))?;
    let first = address(&args.url, &args.url.address, options.crc);
    let (mut addresses, discovery) = if options.discover { (Vec::new(), Some(first)) } else { (vec![first], None) };
    addresses.extend(options.addresses.iter().map(|host| address(&args.url, host, options.crc)));
    Ok(VolumeSettings {
        name: names.subsystem.to_string(),
        addresses,
        discovery,
        resolver: Resolver::default(),
        names,
        nsid: args.url.nsid.map(Nsid::new),
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
        retain_bytes: retain_bytes(options, args)?,
        uncounted: match options.unsafe_shutdowns {
            UnsafeShutdowns::Trust => Uncounted::Trust,
            UnsafeShutdowns::Fail => Uncounted::Fail,
        },
        known_unsafe_shutdowns: None,
        read_only: options.read_only,
        status: VolumeStatus::new(io_queues(options, args)),
    })
}

/// Each queue needs room for the longest write.
fn retain_bytes(options: &ConnectOptions, args: &ConnectArgs) -> Result<usize, Failure> {
    let bytes = usize::try_from(options.retain.bytes()).unwrap_or(usize::MAX);
    let queues = io_queues(options, args);
    if bytes > 0 && bytes < queues * MAX_BUFFER_BYTES {
        let least = queues * MAX_BUFFER_BYTES >> 20;
        return Err(Failure::Usage(format!("--retain {} is too small for {queues} I/O queues: use {least}MiB or more", options.retain)));
    }
    Ok(bytes)
}

/// The one line on standard output that says where the volume is.
fn print_ready(uri: &str, info: &VolumeInfo) {
    let bytes = info.geometry.size_bytes;
    let access = if info.geometry.read_only { ", read-only" } else { "" };
    let (block_bytes, queues) = (info.geometry.block_bytes, info.io_queues);
    // Nobody may be listening, and the volume is served all the same.
    let _ = print(format!("ready: {uri} ({bytes} bytes in blocks of {block_bytes}{access}, {queues} I/O queues)\n").as_bytes());
}

/// The error, with what the target has instead where that helps.
fn explain(error: ServiceError, args: &ConnectArgs, options: &ConnectOptions, names: Names) -> Failure {
    if matches!(&error, ServiceError::Host(error) if error.is_unknown_host()) {
        return Failure::Failed(format!("{error}: {}", names.host));
    }
    let unknown = matches!(&error, ServiceError::Host(error) if error.is_unknown_subsystem());
    let mut text = error.to_string();
    if unknown && let Some(&endpoint) = endpoints(&args.url, options.crc).unwrap_or_default().first() {
        let offered = discover::offered(endpoint, names);
        match offered.as_deref() {
            Ok([]) => text.push_str("; it offers none to this host"),
            Ok(offered) => text.push_str(&format!("; it offers {}", offered.join(", "))),
            Err(_) => {}
        }
    }
    Failure::Failed(text)
}
