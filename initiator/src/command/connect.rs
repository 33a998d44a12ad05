//! `godwit connect`: attaches a namespace and serves it until a signal comes.

use godwit_config::ConnectOptions;

use super::volume::{self, Paths, address, io_queues};
use super::{Failure, control, explain, names, print};
use crate::cli::ConnectArgs;
use crate::daemon::{Purpose, Service, Setup, Wanted, serve};
use crate::device;
use crate::host::VolumeInfo;
use crate::socket;

pub(super) fn run(args: &ConnectArgs) -> Result<(), Failure> {
    let options = args.options();
    let service = service(args, &options)?;
    let Some(subsystem) = &args.url.nqn else {
        return Err(Failure::Usage(format!(
            "{} names no subsystem: add /NQN (`godwit discover {}` lists what the target has)",
            args.url, args.url
        )));
    };
    match &service {
        Service::Nbd { endpoint, .. } => socket::check(endpoint).map_err(|error| Failure::Failed(error.to_string()))?,
        Service::Device { device, .. } => device::check(*device).map_err(|error| Failure::Failed(error.to_string()))?,
    }
    let names = names(&args.host, subsystem.clone())?;
    let reactors = usize::from(args.reactors.get());
    let io_queues = io_queues(&options, reactors);
    let name = args.name.as_ref().map_or_else(|| short_name(subsystem.as_str()), ToString::to_string);
    let settings = volume::settings(name, &options, paths(args, &options), names.clone(), args.url.nsid, io_queues)?;
    let wanted = Wanted { settings, io_queues, own_threads: false, service };
    let setup = Setup {
        reactors,
        worker: volume::worker(options.poll),
        control: control::of_this_process(args.control.as_deref()),
        metrics: args.metrics,
        volumes: vec![wanted],
        purpose: Purpose::OneVolume,
    };
    serve(setup, |_, place, info| print_ready(place, info)).map_err(|error| explain(error, &args.url, options.crc, names))
}

fn paths(args: &ConnectArgs, options: &ConnectOptions) -> Paths {
    let first = address(&args.url, &args.url.address, options.crc);
    let (mut addresses, discovery) = if options.discover { (Vec::new(), Some(first)) } else { (vec![first], None) };
    addresses.extend(options.addresses.iter().map(|host| address(&args.url, host, options.crc)));
    Paths { addresses, discovery }
}

/// What follows the last colon of an NQN, which is what people tell subsystems apart by.
fn short_name(nqn: &str) -> String {
    nqn.rsplit(':').next().unwrap_or(nqn).to_owned()
}

fn service(args: &ConnectArgs, options: &ConnectOptions) -> Result<Service, Failure> {
    match (&args.nbd, args.device) {
        (Some(nbd), _) if nbd.is_remote() && !args.nbd_allow_remote => Err(Failure::Usage(format!(
            "{nbd} can be reached from other machines, in clear text and without access control: add --nbd-allow-remote if that is meant"
        ))),
        (Some(nbd), _) => Ok(Service::Nbd { endpoint: nbd.clone(), mode: options.nbd_mode, export_name: options.export_name.clone() }),
        (None, Some(device)) => Ok(Service::Device { device, sockets: args.connections.map(|sockets| sockets.get().into()) }),
        (None, None) => {
            Err(Failure::Usage("say where to serve the volume: --nbd unix:PATH|tcp:HOST[:PORT], or --device /dev/nbdN|auto".to_owned()))
        }
    }
}

/// The one line on standard output that says where the volume is.
fn print_ready(uri: &str, info: &VolumeInfo) {
    let bytes = info.geometry.size_bytes;
    let access = if info.geometry.read_only { ", read-only" } else { "" };
    let (block_bytes, queues) = (info.geometry.block_bytes, info.io_queues);
    // Nobody may be listening, and the volume is served all the same.
    let _ = print(format!("ready: {uri} ({bytes} bytes in blocks of {block_bytes}{access}, {queues} I/O queues)\n").as_bytes());
}
