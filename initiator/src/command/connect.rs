//! `godwit connect`: attaches a namespace and serves it until a signal comes.

use std::time::Duration;

use godwit_config::{ConnectOptions, CtrlLossTimeout, NbdEndpoint, PoolMemory};
use godwit_memory::Layout;
use godwit_nvme::{Nsid, QueueSize};

use super::{Failure, discover, endpoints, names, print};
use crate::cli::ConnectArgs;
use crate::control::{Service, ServiceError, serve};
use crate::host::{Endpoint, LossTimeout, Names, VolumeInfo, VolumeSettings, VolumeStatus};
use crate::socket;
use crate::worker::WorkerConfig;

/// How long a command may be without an answer before the association is given up. It is for a command that the target forgot: a dead connection is for
/// the Keep Alive to find, and a backend that stalls, even for longer than the 30 s of the Linux host, is slow and not lost.
const IO_TIMEOUT: Duration = Duration::from_secs(120);

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
    let endpoints = endpoints(&args.url, options.crc)?;
    let names = names(&args.host, subsystem.clone())?;
    let reactors = usize::from(args.reactors.get());
    let service = Service {
        volume: volume(args, &options, endpoints.clone(), names.clone())?,
        io_queues: io_queues(&options, reactors),
        reactors,
        worker: WorkerConfig {
            pool: Layout::of_total(usize::try_from(PoolMemory::default().size().bytes()).unwrap_or(usize::MAX)),
            poll: options.poll.duration(),
        },
        nbd: nbd.clone(),
        nbd_mode: options.nbd_mode,
        export_name: options.export_name.clone(),
    };
    serve(&service, print_ready).map_err(|error| explain(error, &endpoints, names))
}

/// A queue lives on one reactor, and a second one there would only split its depth.
fn io_queues(options: &ConnectOptions, reactors: usize) -> usize {
    let asked = usize::from(options.nr_io_queues.get());
    if asked > reactors {
        tracing::info!("using {reactors} of {asked} I/O queues: one a reactor (--reactors)");
    }
    asked.min(reactors)
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

fn volume(args: &ConnectArgs, options: &ConnectOptions, endpoints: Vec<Endpoint>, names: Names) -> Result<VolumeSettings, Failure> {
    let entries = u32::from(options.queue_size.get());
    let queue_size = QueueSize::new(entries).ok_or_else(|| Failure::Usage(format!("{entries} is not a queue size")))?;
    Ok(VolumeSettings {
        name: names.subsystem.to_string(),
        endpoints,
        names,
        nsid: args.url.nsid.map(Nsid::new),
        keep_alive: Duration::from_secs(options.keep_alive_tmo.get().into()),
        queue_size,
        reconnect_delay: Duration::from_secs(options.reconnect_delay.get().into()),
        loss_timeout: match options.ctrl_loss_tmo {
            CtrlLossTimeout::Never => LossTimeout::Never,
            CtrlLossTimeout::After(after) => LossTimeout::After(after),
        },
        io_timeout: IO_TIMEOUT,
        read_only: options.read_only,
        status: VolumeStatus::new(io_queues(options, usize::from(args.reactors.get()))),
    })
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
fn explain(error: ServiceError, endpoints: &[Endpoint], names: Names) -> Failure {
    if matches!(&error, ServiceError::Host(error) if error.is_unknown_host()) {
        return Failure::Failed(format!("{error}: {}", names.host));
    }
    let unknown = matches!(&error, ServiceError::Host(error) if error.is_unknown_subsystem());
    let mut text = error.to_string();
    if unknown && let Some(&endpoint) = endpoints.first() {
        let offered = discover::offered(endpoint, names);
        match offered.as_deref() {
            Ok([]) => text.push_str("; it offers none to this host"),
            Ok(offered) => text.push_str(&format!("; it offers {}", offered.join(", "))),
            Err(_) => {}
        }
    }
    Failure::Failed(text)
}
