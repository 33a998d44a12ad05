//! From the YAML tree to [`Target`]: shapes, types and defaults.

use std::path::PathBuf;

use super::{AllowedHosts, Backend, Limits, Listener, Namespace, Service, Subsystem, Target};
use crate::{
    Fault, Located, PoolMemory, QueueSize, Size, TargetNsid,
    yaml::{Decoder, List, Node, Table, value_or_default},
};

const TOP: &[&str] = &[
    "listeners",
    "subsystems",
    "reactors",
    "poll",
    "memory",
    "limits",
    "insecure_allow_any_host",
    "state_dir",
    "control",
    "metrics",
    "lock_memory",
];
const LIMITS: &[&str] = &["in_capsule", "queue_size", "io_queues", "controllers"];
const LISTENER: &[&str] = &["transport", "address", "fpdu", "crc"];
const SUBSYSTEM: &[&str] = &["nqn", "allow_any_host", "hosts", "serial", "model", "namespaces"];
const NAMESPACE: &[&str] = &["nsid", "backend", "block_size", "read_only", "uuid", "nguid"];
const BACKEND: &[&str] = &["file", "device", "memory"];
const FILE: &[&str] = &["path", "size", "create"];
const DEVICE: &[&str] = &["path"];
const MEMORY: &[&str] = &["size"];

const LISTENERS: List =
    List { key: "listeners", expected: "a list of listeners, such as - { transport: iwarp, address: \"127.0.0.1:4420\" }", max: 64 };
const SUBSYSTEMS: List = List { key: "subsystems", expected: "a list of subsystems, each with an nqn and namespaces", max: 1024 };
const HOSTS: List = List { key: "hosts", expected: "a list of host NQNs", max: 4096 };
const NAMESPACES: List =
    List { key: "namespaces", expected: "a list of namespaces, each with an nsid and a backend", max: TargetNsid::MAX.get() as usize };

const BACKEND_EXPECTED: &str = "where its blocks are, such as file: { path: /var/lib/godwit/vol0.img }";

/// The target, unless a fault leaves nothing of it.
pub(super) fn target(d: &mut Decoder, root: &Node) -> Option<Target> {
    let table = d.table(root, "the configuration", TOP)?;
    let listeners = d.items(&table, &LISTENERS, listener);
    let subsystems = d.items(&table, &SUBSYSTEMS, subsystem);
    let reactors = d.optional(&table, "reactors");
    let poll = d.optional(&table, "poll");
    let memory: Option<Located<PoolMemory>> = d.optional(&table, "memory");
    let limits = match d.node(&table, "limits") {
        Some(node) => limits(d, node)?,
        None => Limits::default(),
    };
    if let Some(memory) = &memory {
        pool_covers_a_queue(d, memory, &limits);
    }
    Some(Target {
        listeners,
        subsystems,
        reactors: value_or_default(reactors),
        poll: value_or_default(poll),
        memory: value_or_default(memory),
        limits,
        insecure_allow_any_host: value_or_default(d.optional(&table, "insecure_allow_any_host")),
        service: Service {
            state_dir: d.optional(&table, "state_dir").map(|located| located.value),
            control: d.optional(&table, "control").map(|located| located.value),
            metrics: d.optional(&table, "metrics").map(|located| located.value),
            lock_memory: value_or_default(d.optional(&table, "lock_memory")),
        },
    })
}

/// The default covers every queue there can be.
fn pool_covers_a_queue(d: &mut Decoder, memory: &Located<PoolMemory>, limits: &Limits) {
    let floor = PoolMemory::floor(limits.queue_size, limits.in_capsule);
    if memory.size() < floor {
        let fault = Fault::MemoryTooSmall {
            memory: memory.size(),
            queue_size: limits.queue_size.get(),
            in_capsule: Size::from_bytes(limits.in_capsule.bytes().into()),
            floor,
        };
        d.fault_at(memory.origin.clone(), fault);
    }
}

fn limits(d: &mut Decoder, node: &Node) -> Option<Limits> {
    let table = d.table(node, "`limits`", LIMITS)?;
    Some(Limits {
        in_capsule: value_or_default(d.optional(&table, "in_capsule")),
        queue_size: d.optional(&table, "queue_size").map_or(QueueSize::MAX, |l| l.value),
        io_queues: value_or_default(d.optional(&table, "io_queues")),
        controllers: value_or_default(d.optional(&table, "controllers")),
    })
}

fn listener(d: &mut Decoder, node: &Node) -> Option<Listener> {
    let table = d.table(node, "a listener", LISTENER)?;
    let transport = d.required(&table, "transport");
    let address = d.required(&table, "address");
    let fpdu = d.optional(&table, "fpdu");
    let crc = d.optional(&table, "crc");
    let transport = transport?.value;
    if transport == crate::Transport::Rdma {
        d.refuse(&table, &["fpdu", "crc"], Fault::IwarpOnly);
    }
    Some(Listener { transport, address: address?, fpdu: value_or_default(fpdu), crc: value_or_default(crc) })
}

fn subsystem(d: &mut Decoder, node: &Node) -> Option<Subsystem> {
    let faults_before = d.faults();
    let table = d.table(node, "a subsystem", SUBSYSTEM)?;
    let nqn = d.required(&table, "nqn");
    let hosts = allowed_hosts(d, &table, faults_before);
    let serial = d.optional(&table, "serial");
    let model = d.optional(&table, "model");
    let namespaces = d.items(&table, &NAMESPACES, namespace);
    Some(Subsystem { nqn: nqn?, hosts: hosts?, serial, model, namespaces })
}

/// The origin of the result is where everyone or the list is allowed. That there is neither is told only if nothing else is
/// wrong with the subsystem yet: a misspelt key would be told twice.
fn allowed_hosts(d: &mut Decoder, table: &Table<'_>, faults_before: usize) -> Option<Located<AllowedHosts>> {
    let any: Option<Located<bool>> = d.optional(table, "allow_any_host");
    let any = any.filter(|any| any.value);
    let Some(node) = d.node(table, "hosts") else {
        if any.is_none() && d.faults() == faults_before {
            d.fault(table.at(), Fault::NoHost);
        }
        return any.map(|any| any.map(|_| AllowedHosts::Any));
    };
    let nodes = d.list(node, &HOSTS)?;
    match (any, nodes.is_empty()) {
        (Some(any), true) => Some(any.map(|_| AllowedHosts::Any)),
        (Some(_), false) => {
            d.fault(node.at, Fault::HostsAndAnyHost);
            None
        }
        (None, true) => {
            d.fault(node.at, Fault::NoHost);
            None
        }
        (None, false) => Some(Located { value: listed_hosts(d, nodes), origin: d.origin(node.at) }),
    }
}

fn listed_hosts(d: &mut Decoder, nodes: &[Node]) -> AllowedHosts {
    let mut hosts = Vec::with_capacity(nodes.len());
    for node in nodes {
        match d.scalar(node, HOSTS.key) {
            Some(host) if hosts.contains(&host.value) => {
                d.fault(node.at, Fault::DuplicateHost(host.value));
            }
            Some(host) => hosts.push(host.value),
            None => {}
        }
    }
    AllowedHosts::Listed(hosts)
}

fn namespace(d: &mut Decoder, node: &Node) -> Option<Namespace> {
    let table = d.table(node, "a namespace", NAMESPACE)?;
    let nsid = d.required(&table, "nsid");
    let backend = d.required_node(&table, "backend", BACKEND_EXPECTED).and_then(|node| backend(d, node));
    let configured_block_size = d.optional(&table, "block_size");
    let read_only = value_or_default(d.optional(&table, "read_only"));
    let uuid = d.optional(&table, "uuid");
    let nguid = d.optional(&table, "nguid");
    Some(Namespace { origin: d.origin(table.at()), nsid: nsid?, backend: backend?, configured_block_size, read_only, uuid, nguid })
}

/// The origin of the result is the path's or the size's, which is what later errors are about.
fn backend(d: &mut Decoder, node: &Node) -> Option<Located<Backend>> {
    let (kind, node) = d.variant(node, "`backend`", BACKEND)?;
    match kind {
        "file" => file(d, node),
        "device" => {
            let table = d.table(node, "`device`", DEVICE)?;
            let path: Located<PathBuf> = d.required(&table, "path")?;
            Some(path.map(|path| Backend::Device { path }))
        }
        _ => {
            let table = d.table(node, "`memory`", MEMORY)?;
            let size: Located<Size> = d.required(&table, "size")?;
            Some(size.map(|size| Backend::Memory { size }))
        }
    }
}

fn file(d: &mut Decoder, node: &Node) -> Option<Located<Backend>> {
    let table = d.table(node, "`file`", FILE)?;
    let path: Option<Located<PathBuf>> = d.required(&table, "path");
    let size: Option<Located<Size>> = d.optional(&table, "size");
    let create: Option<Located<bool>> = d.optional(&table, "create");
    if create.as_ref().is_some_and(|c| c.value) && d.node(&table, "size").is_none() {
        d.fault(table.at(), Fault::CreateWithoutSize);
    }
    let create = value_or_default(create);
    let size = size.map(|s| s.value);
    Some(path?.map(|path| Backend::File { path, size, create }))
}
