//! `godwit run`: serves the volumes of a configuration file until a signal comes.

use std::path::{Path, PathBuf};

use godwit_config::{Front, Initiator, LoadError, Located, Paths as ConfiguredPaths, Transport, Volume};

use super::volume::{self, Paths, address, io_queues};
use super::{Failure, control, names, print};
use crate::cli::{HostArgs, RunArgs};
use crate::daemon::{Purpose, Service, Setup, Wanted, serve};
use crate::host::in_words;

pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    let configuration = load(&args.config)?;
    let volumes = wanted(&configuration)?;
    if args.check {
        return print(b"the configuration is right\n");
    }
    let metrics = configuration.metrics.as_ref().map(|address| match address.value.resolve() {
        Ok(addresses) if !addresses.is_empty() => Ok(addresses[0]),
        Ok(_) => Err(Failure::Failed(format!("metrics: {} has no address", address.value))),
        Err(error) => Err(Failure::Failed(format!("metrics: cannot find the address of {}: {}", address.value, in_words(&error)))),
    });
    let setup = Setup {
        reactors: configuration.reactors.get().into(),
        worker: volume::worker(configuration.poll),
        control: control::of_the_configured(configuration.control.as_ref().map(|path| path.value.as_path())),
        metrics: metrics.transpose()?,
        volumes,
        purpose: Purpose::Configured(reader(args.config.clone(), configuration)),
    };
    let ready = |name: &str, place: &str, info: &crate::host::VolumeInfo| {
        let bytes = info.geometry.size_bytes;
        // Nobody may be listening, and the volume is served all the same.
        let _ = print(format!("ready: {name} as {place} ({bytes} bytes in blocks of {})\n", info.geometry.block_bytes).as_bytes());
    };
    serve(setup, ready).map_err(|error| Failure::Failed(error.to_string()))
}

/// Reads anew the volumes of a configuration that is `applied`, and says of what else has changed that it stays as it was.
fn reader(file: PathBuf, applied: Initiator) -> Box<dyn FnMut() -> Result<Vec<Wanted>, String>> {
    Box::new(move || {
        let read = || -> Result<_, Failure> {
            let configuration = load(&file)?;
            let changed = unchangeable(&applied, &configuration);
            let Initiator { host_nqn, host_id, .. } = applied.clone();
            let volumes = wanted(&Initiator { host_nqn, host_id, reactors: applied.reactors, ..configuration })?;
            Ok((changed, volumes))
        };
        let (changed, volumes) = read().map_err(|failure| failure.to_string())?;
        for key in changed {
            tracing::warn!("`{key}` cannot be changed while the daemon runs; put it back, or restart the daemon");
        }
        Ok(volumes)
    })
}

/// The keys of what a running daemon cannot change, and what differs.
fn unchangeable(applied: &Initiator, wanted: &Initiator) -> Vec<&'static str> {
    fn value<T>(located: &Option<Located<T>>) -> Option<&T> {
        located.as_ref().map(|located| &located.value)
    }
    let host = |of: &Initiator| (value(&of.host_nqn).cloned(), value(&of.host_id).copied());
    let differs = [
        ("host", host(applied) != host(wanted)),
        ("reactors", applied.reactors != wanted.reactors),
        ("poll", applied.poll != wanted.poll),
        ("control", value(&applied.control) != value(&wanted.control)),
        ("metrics", value(&applied.metrics) != value(&wanted.metrics)),
    ];
    differs.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
}

fn load(path: &Path) -> Result<Initiator, Failure> {
    Initiator::load(path).map_err(|error: LoadError| Failure::Usage(error.to_string()))
}

fn wanted(configuration: &Initiator) -> Result<Vec<Wanted>, Failure> {
    configuration.volumes.iter().map(|volume| volume_of(configuration, volume)).collect()
}

fn volume_of(configuration: &Initiator, volume: &Volume) -> Result<Wanted, Failure> {
    let options = &volume.options;
    let host = HostArgs {
        hostnqn: configuration.host_nqn.as_ref().map(|nqn| nqn.value.clone()),
        hostid: configuration.host_id.as_ref().map(|id| id.value),
    };
    let paths = match &volume.paths {
        ConfiguredPaths::Listed(urls) => {
            Paths { addresses: urls.iter().map(|url| address(url, &url.address, options.crc)).collect(), discovery: None }
        }
        ConfiguredPaths::Discovered(url) => Paths { addresses: Vec::new(), discovery: Some(address(url, &url.address, options.crc)) },
    };
    let io_queues = io_queues(options, configuration.reactors.get().into());
    let names = names(&host, volume.nqn.value.clone())?;
    let nsid = volume.nsid.as_ref().map(|nsid| nsid.value.get());
    Ok(Wanted {
        settings: volume::settings(volume.name.value.to_string(), options, paths, names, nsid, io_queues)?,
        io_queues,
        own_threads: volume.paths.transport() == Some(Transport::Rdma),
        service: match &volume.front {
            Front::Device { device, connections } => {
                Service::Device { device: device.value, sockets: connections.as_ref().map(|connections| connections.value.get().into()) }
            }
            Front::Nbd(endpoint) => {
                Service::Nbd { endpoint: endpoint.value.clone(), mode: options.nbd_mode, export_name: options.export_name.clone() }
            }
        },
    })
}
