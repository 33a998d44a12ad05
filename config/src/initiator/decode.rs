//! From the YAML tree to [`Initiator`]: shapes, types, defaults, and what one volume must be.

use super::{Front, Initiator, Paths, Volume};
use crate::{
    ConnectOptions, Fault, IoQueues, Located, NbdEndpoint, Nqn, Transport, Url,
    yaml::{AddressWithPort, Decoder, ExportName, List, Node, SocketPath, Table, value_or_default},
};

const TOP: &[&str] = &["host", "reactors", "poll", "control", "metrics", "volumes"];
const HOST: &[&str] = &["nqn", "id"];
const VOLUME: &[&str] = &[
    "name",
    "addresses",
    "discover",
    "nqn",
    "nsid",
    "device",
    "connections",
    "nbd",
    "nbd_mode",
    "nbd_allow_remote",
    "export_name",
    "read_only",
    "nr_io_queues",
    "queue_size",
    "keep_alive_tmo",
    "reconnect_delay",
    "ctrl_loss_tmo",
    "fast_io_fail_tmo",
    "io_timeout",
    "crc",
    "retain",
    "unsafe_shutdowns",
];
const PATHS: &[&str] = &["addresses", "discover"];
const FRONT: &[&str] = &["device", "nbd"];
/// What goes with `nbd` only, and what with `device` only.
const NBD_ONLY: &[&str] = &["nbd_mode", "nbd_allow_remote", "export_name"];
const DEVICE_ONLY: &[&str] = &["connections"];

const VOLUMES: List =
    List { key: "volumes", expected: "a list of volumes, each with a name, addresses, an nqn and a device or nbd", max: 1024 };
const ADDRESSES: List = List { key: "addresses", expected: "a list of addresses, such as - iwarp://192.0.2.1:4420", max: 64 };

/// The initiator, unless a fault leaves nothing of it.
pub(super) fn initiator(d: &mut Decoder, root: &Node) -> Option<Initiator> {
    let table = d.table(root, "the configuration", TOP)?;
    let host = d.node(&table, "host").and_then(|node| d.table(node, "`host`", HOST));
    let host_nqn: Option<Located<Nqn>> = host.and_then(|host| d.optional(&host, "nqn"));
    let host_id = host.and_then(|host| d.optional(&host, "id"));
    let reactors: crate::Reactors = value_or_default(d.optional(&table, "reactors"));
    let poll = value_or_default(d.optional(&table, "poll"));
    let control: Option<Located<SocketPath>> = d.optional(&table, "control");
    let metrics: Option<Located<AddressWithPort>> = d.optional(&table, "metrics");
    let defaults =
        ConnectOptions { poll, nr_io_queues: IoQueues::new(reactors.get()).unwrap_or(IoQueues::MIN), ..ConnectOptions::default() };
    let volumes = d.items(&table, &VOLUMES, |d, node| volume(d, node, &defaults));
    Some(Initiator {
        host_nqn,
        host_id,
        reactors,
        poll,
        control: control.map(|located| located.map(|path| path.0)),
        metrics: metrics.map(|located| located.map(|address| address.0)),
        volumes,
    })
}

fn volume(d: &mut Decoder, node: &Node, defaults: &ConnectOptions) -> Option<Volume> {
    let faults_before = d.faults();
    let table = d.table(node, "a volume", VOLUME)?;
    let misspelt = d.faults() != faults_before;
    let name = d.required(&table, "name");
    let paths = paths(d, &table, misspelt);
    let nqn: Option<Located<Nqn>> = d.required(&table, "nqn");
    let nsid = d.optional(&table, "nsid");
    let front = front(d, &table, misspelt);
    let queues = d.optional(&table, "nr_io_queues");
    if let (Some(front), Some(queues)) = (&front, &queues) {
        connections_have_queues(d, front, queues);
    }
    if let Some(nqn) = &nqn
        && nqn.is_discovery()
    {
        d.fault_at(nqn.origin.clone(), Fault::DiscoveryVolume);
    }
    let options = options(d, &table, queues, defaults);
    let paths = paths?;
    if paths.transport() == Some(Transport::Rdma) {
        d.refuse(&table, &["crc"], Fault::IwarpOnly);
    }
    Some(Volume { origin: d.origin(table.at()), name: name?, paths, nqn: nqn?, nsid, front: front?, options })
}

fn paths(d: &mut Decoder, table: &Table<'_>, misspelt: bool) -> Option<Paths> {
    match d.one_of(table, PATHS, misspelt)? {
        ("discover", node) => d.scalar(node, "discover").map(Paths::Discovered),
        _ => {
            let urls = d.items(table, &ADDRESSES, |d, node| d.scalar(node, ADDRESSES.key));
            addresses_differ(d, &urls);
            // One that is not right was told, and so was that there is none.
            (!urls.is_empty()).then_some(Paths::Listed(urls))
        }
    }
}

fn addresses_differ(d: &mut Decoder, urls: &[Located<Url>]) {
    let Some(first) = urls.first() else {
        return;
    };
    for (i, url) in urls.iter().enumerate() {
        if url.transport != first.transport {
            d.fault_at(url.origin.clone(), Fault::MixedTransports { transport: first.transport, first: first.origin.clone() });
        } else if urls[..i].iter().any(|other| other.address == url.address) {
            d.fault_at(url.origin.clone(), Fault::DuplicateAddress(url.address.clone()));
        }
    }
}

fn front(d: &mut Decoder, table: &Table<'_>, misspelt: bool) -> Option<Front> {
    match d.one_of(table, FRONT, misspelt)? {
        ("device", node) => {
            d.refuse(table, NBD_ONLY, Fault::NbdOnly);
            let connections = d.optional(table, "connections");
            Some(Front::Device { device: d.scalar(node, "device")?, connections })
        }
        (_, node) => {
            d.refuse(table, DEVICE_ONLY, Fault::DeviceOnly);
            let endpoint: Located<NbdEndpoint> = d.scalar(node, "nbd")?;
            if endpoint.path().is_none() {
                d.refuse(table, &["nbd_mode"], Fault::UnixOnly);
            }
            Some(Front::Nbd(endpoint))
        }
    }
}

fn connections_have_queues(d: &mut Decoder, front: &Front, queues: &Located<IoQueues>) {
    if let Front::Device { connections: Some(connections), .. } = front
        && connections.get() > queues.get()
    {
        let fault = Fault::ConnectionsWithoutQueue { connections: connections.value, queues: queues.value };
        d.fault_at(connections.origin.clone(), fault);
    }
}

fn options(d: &mut Decoder, table: &Table<'_>, queues: Option<Located<IoQueues>>, defaults: &ConnectOptions) -> ConnectOptions {
    let export_name: Option<Located<ExportName>> = d.optional(table, "export_name");
    ConnectOptions {
        nr_io_queues: queues.map_or(defaults.nr_io_queues, |queues| queues.value),
        queue_size: d.optional(table, "queue_size").map_or(defaults.queue_size, |size| size.value),
        keep_alive_tmo: value_or_default(d.optional(table, "keep_alive_tmo")),
        reconnect_delay: value_or_default(d.optional(table, "reconnect_delay")),
        ctrl_loss_tmo: value_or_default(d.optional(table, "ctrl_loss_tmo")),
        fast_io_fail_tmo: value_or_default(d.optional(table, "fast_io_fail_tmo")),
        io_timeout: value_or_default(d.optional(table, "io_timeout")),
        retain: d.optional(table, "retain").map_or(defaults.retain, |size| size.value),
        unsafe_shutdowns: value_or_default(d.optional(table, "unsafe_shutdowns")),
        crc: value_or_default(d.optional(table, "crc")),
        nbd_mode: value_or_default(d.optional(table, "nbd_mode")),
        nbd_allow_remote: value_or_default(d.optional(table, "nbd_allow_remote")),
        export_name: export_name.map_or_else(String::new, |name| name.value.0),
        read_only: value_or_default(d.optional(table, "read_only")),
        ..defaults.clone()
    }
}
