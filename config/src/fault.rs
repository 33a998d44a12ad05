//! What can be wrong with a configuration, in the words that the administrator reads.

use std::fmt;

use crate::{
    AnyNsid, BlockSizeError, Connections, HostPort, HostPortError, IoQueues, NbdDevice, NbdDeviceError, NbdEndpoint, NbdEndpointError,
    NbdModeError, NguidError, Nqn, NqnError, Origin, OutOfRange, PollBudgetError, Size, SizeError, SwitchError, TargetNsid, TextError,
    Transport, UrlError, VolumeName, VolumeNameError,
};

/// One fault and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub origin: Origin,
    /// What.
    pub fault: Fault,
}

impl fmt::Display for Problem {
    /// One line, free of control characters whatever the configuration holds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in format!("{}: {}", self.origin, self.fault).chars() {
            if c.is_control() {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

/// All faults of a configuration, at least one, in the order of the file; printed one a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Sorts the problems, of which there must be one.
    pub(crate) fn of(mut problems: Vec<Problem>) -> Self {
        assert!(!problems.is_empty(), "a refusal has a reason");
        problems.sort_by(|a, b| a.origin.cmp(&b.origin));
        Self(problems)
    }

    /// Each problem.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// A leaf that is not right; each of these says what would be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// A size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// A block size.
    #[error(transparent)]
    BlockSize(#[from] BlockSizeError),
    /// A number out of its bounds.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// An address.
    #[error(transparent)]
    Address(#[from] HostPortError),
    /// A name.
    #[error(transparent)]
    Nqn(#[from] NqnError),
    /// A word out of a few.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// A polling budget.
    #[error(transparent)]
    Poll(#[from] PollBudgetError),
    /// An NGUID.
    #[error(transparent)]
    Nguid(#[from] NguidError),
    /// A serial number or a model.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A URL.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The name of a volume.
    #[error(transparent)]
    VolumeName(#[from] VolumeNameError),
    /// An NBD device.
    #[error(transparent)]
    Device(#[from] NbdDeviceError),
    /// An NBD endpoint, or the path of a socket.
    #[error(transparent)]
    Endpoint(#[from] NbdEndpointError),
    /// Permissions of a socket.
    #[error(transparent)]
    Mode(#[from] NbdModeError),
    /// A name that NBD cannot carry.
    #[error("the export name has a NUL byte")]
    ExportNameNul,
    /// An address with its port.
    #[error("`{0}` is not an address with a port: write it as 127.0.0.1:9421 or [::1]:9421")]
    SocketAddress(String),
    /// A UUID.
    #[error("`{0}` is not a UUID: write it as 11111111-2222-3333-4444-555555555555, not all zero")]
    Uuid(String),
    /// A path that depends on where the daemon runs.
    #[error("the path `{0}` must be absolute: start it with `/`")]
    RelativePath(String),
    /// A path that can only be a directory.
    #[error("the path `{0}` names a directory: name a file")]
    DirectoryPath(String),
    /// A path that no file can have.
    #[error("the path has a NUL byte")]
    PathNul,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not YAML.
    #[error("{0}")]
    Syntax(String),
    /// A key twice in one mapping.
    #[error("the key `{0}` is there twice")]
    DuplicateKey(String),
    /// `---` and another document.
    #[error("this belongs to a second YAML document: a configuration is one document")]
    SecondDocument,
    /// `<<`.
    #[error("`<<` merges are not supported: write the keys out, or use an alias for a whole value")]
    MergeKey,
    /// A document too large or too deep to be meant.
    #[error("the document is too large or too deeply nested")]
    TooMuch,
    /// Something else where a mapping must be.
    #[error("{place} must be a mapping with the keys {}, not {found}", Words("and", known))]
    NotATable {
        /// Which one.
        place: &'static str,
        /// Its keys.
        known: &'static [&'static str],
        /// What is there instead.
        found: String,
    },
    /// A key that does not exist there.
    #[error("`{key}` is not a key of {place}: use {}", Words("or", known))]
    UnknownKey {
        /// What was written.
        key: String,
        /// Where.
        place: &'static str,
        /// The keys there are.
        known: &'static [&'static str],
    },
    /// A key that must be there.
    #[error("{place} needs `{key}`: {expected}")]
    MissingKey {
        /// The key.
        key: &'static str,
        /// Where.
        place: &'static str,
        /// What it holds.
        expected: &'static str,
    },
    /// None or several keys of which there must be one.
    #[error("{place} must have exactly one of the keys {}", Words("and", known))]
    NotOne {
        /// Which mapping.
        place: &'static str,
        /// Its keys.
        known: &'static [&'static str],
    },
    /// Another kind of value.
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType {
        /// The key.
        key: &'static str,
        /// What would be right.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// A number or the like where a text is wanted.
    #[error("`{key}` must be a text, but YAML reads this as {found}: put it in quotes")]
    Unquoted {
        /// The key.
        key: &'static str,
        /// What YAML makes of it.
        found: String,
    },
    /// A value that is not right.
    #[error("`{key}`: {reason}")]
    Value {
        /// The key.
        key: &'static str,
        /// Why.
        reason: ValueError,
    },
    /// A list that must not be empty.
    #[error("`{key}` is empty: {expected}")]
    Empty {
        /// The key.
        key: &'static str,
        /// What would be right.
        expected: &'static str,
    },
    /// A list longer than anything that is meant.
    #[error("`{key}` has {count} entries: {max} is the most")]
    TooMany {
        /// The key.
        key: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// Two listeners on one address.
    #[error("the listener {address} collides with the one at {first}: remove one, or give it another port")]
    DuplicateListener {
        /// The address.
        address: HostPort,
        /// The other one.
        first: Origin,
    },
    /// An iWARP setting on another transport.
    #[error("`{0}` is for the transport iwarp only: remove it")]
    IwarpOnly(&'static str),
    /// Two subsystems of one name.
    #[error("the NQN {nqn} is already used at {first}: each subsystem needs its own")]
    DuplicateNqn {
        /// The name.
        nqn: Nqn,
        /// The other one.
        first: Origin,
    },
    /// The discovery subsystem configured.
    #[error("{} is the discovery subsystem, which is always there: choose another NQN", Nqn::DISCOVERY)]
    DiscoveryNqn,
    /// `hosts` beside `allow_any_host: true`.
    #[error("`hosts` has no effect with `allow_any_host: true`: remove one of the two")]
    HostsAndAnyHost,
    /// Nobody may connect.
    #[error("no host may connect: list host NQNs in `hosts`, or set `allow_any_host: true`")]
    NoHost,
    /// A host twice.
    #[error("the host {0} is there twice")]
    DuplicateHost(Nqn),
    /// Everyone may connect from everywhere.
    #[error(
        "every machine that reaches the listener {listener} could use this subsystem: list host NQNs in `hosts`, listen on 127.0.0.1 or [::1] only, or accept it with `insecure_allow_any_host: true` at the top of the file or --allow-any-host-remote"
    )]
    AnyHostRemote {
        /// The first listener that other machines can reach.
        listener: HostPort,
    },
    /// The same, on the command line.
    #[error(
        "every machine that reaches this address could use what is exported: name the hosts that may with --host NQN, listen on 127.0.0.1 or [::1] only, or accept it with --allow-any-host-remote"
    )]
    AnyHostRemoteListen,
    /// Two namespaces of one id in a subsystem.
    #[error("the namespace id {nsid} is already used at {first}: each namespace of a subsystem needs its own")]
    DuplicateNsid {
        /// The id.
        nsid: TargetNsid,
        /// The other one.
        first: Origin,
    },
    /// Two namespaces on one file or device.
    #[error("{path} is already the backend at {first}: two namespaces cannot share one")]
    DuplicatePath {
        /// The file or device.
        path: String,
        /// The other one.
        first: Origin,
    },
    /// Two namespaces or subsystems of one identity.
    #[error("the {what} {value} is already used at {first}: it must be unique")]
    DuplicateIdentity {
        /// UUID, NGUID or serial number.
        what: &'static str,
        /// The identity.
        value: String,
        /// The other one.
        first: Origin,
    },
    /// A namespace without blocks.
    #[error("the size is 0: a namespace needs at least one block of {block_size} bytes")]
    NoBlocks {
        /// The block size.
        block_size: u32,
    },
    /// A partial block at the end.
    #[error("the size {size} is not a multiple of the block size {block_size}: the next is {next}")]
    PartialBlock {
        /// The size.
        size: Size,
        /// The block size.
        block_size: u32,
        /// The next size that would be right.
        next: Size,
    },
    /// More bytes than a file offset can name.
    #[error("the size {0} is over the limit of 8192PiB less one byte")]
    TooLarge(Size),
    /// A file to make, of no size.
    #[error("`create: true` needs `size`, as in size: 10GiB")]
    CreateWithoutSize,
    /// A pool that cannot carry one queue.
    #[error("`memory` {memory} is too small for queue_size {queue_size} and in_capsule {in_capsule}: it must be at least {floor}")]
    MemoryTooSmall {
        /// What was asked for.
        memory: Size,
        /// The queue size limit.
        queue_size: u16,
        /// The in-capsule size.
        in_capsule: Size,
        /// The least that works.
        floor: Size,
    },
    /// Two volumes of one name.
    #[error("the volume name {name} is already used at {first}: each volume needs its own")]
    DuplicateName {
        /// The name.
        name: VolumeName,
        /// The other one.
        first: Origin,
    },
    /// Two volumes of one namespace.
    #[error("the namespace {nsid} of {nqn} is already attached at {first}: remove one, or give it another `nsid`")]
    AttachedTwice {
        /// The namespace.
        nsid: AnyNsid,
        /// The subsystem.
        nqn: Nqn,
        /// The other one.
        first: Origin,
    },
    /// Two volumes of one subsystem, which do not both say which namespace.
    #[error("{nqn} is already attached at {first}: give both volumes an `nsid`, each its own")]
    NsidMissing {
        /// The subsystem.
        nqn: Nqn,
        /// The other one.
        first: Origin,
    },
    /// A volume of a discovery subsystem.
    #[error("{} is a discovery subsystem, which has no namespaces: write the NQN of the volume's subsystem", Nqn::DISCOVERY)]
    DiscoveryVolume,
    /// An address of another transport than the first of a volume.
    #[error("the addresses of a volume are of one transport: that at {first} is {transport}://")]
    MixedTransports {
        /// That of the first address.
        transport: Transport,
        /// The first address.
        first: Origin,
    },
    /// An address twice in a volume.
    #[error("the address {0} is there twice")]
    DuplicateAddress(HostPort),
    /// A setting of exports on a device.
    #[error("`{0}` goes with `nbd` only: remove it")]
    NbdOnly(&'static str),
    /// A setting of devices on an export.
    #[error("`{0}` goes with `device` only: remove it")]
    DeviceOnly(&'static str),
    /// A setting of Unix sockets on a TCP port.
    #[error("`{0}` goes with a unix: endpoint only: remove it")]
    UnixOnly(&'static str),
    /// Two volumes on one device.
    #[error("the device {device} is already used at {first}: two volumes cannot share one")]
    DuplicateDevice {
        /// The device.
        device: NbdDevice,
        /// The other one.
        first: Origin,
    },
    /// Two sockets of one path.
    #[error("the socket {path} is already used at {first}: give it another path")]
    DuplicateSocket {
        /// The path.
        path: String,
        /// The other one.
        first: Origin,
    },
    /// Two addresses that cannot both be listened on.
    #[error("the address {address} collides with the one at {first}: give it another port")]
    DuplicatePort {
        /// The address.
        address: HostPort,
        /// The other one.
        first: Origin,
    },
    /// An export that other machines reach.
    #[error(
        "{0} can be reached from other machines, in clear text and without access control: use unix:PATH or tcp:127.0.0.1, or accept it with `nbd_allow_remote: true`"
    )]
    NbdRemote(NbdEndpoint),
    /// More connections than I/O queues.
    #[error("`connections` {connections} is more than `nr_io_queues` {queues}: each connection needs an I/O queue of its own")]
    ConnectionsWithoutQueue {
        /// Connections of the device.
        connections: Connections,
        /// I/O queues of the volume.
        queues: IoQueues,
    },
    /// A quick start of nothing.
    #[error("there is nothing to export: name a file, device:PATH or memory:SIZE")]
    NoExport,
    /// More namespaces in the quick start than there are ids.
    #[error("{count} exports are more than a subsystem has namespaces: {max} is the most", max = TargetNsid::MAX)]
    TooManyExports {
        /// How many.
        count: usize,
    },
}

/// `a, b and c`.
struct Words<'a>(&'static str, &'a [&'a str]);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(conjunction, words) = self;
        match words {
            [rest @ .., last] if !rest.is_empty() => {
                write!(f, "{} {conjunction} {last}", rest.join(", "))
            }
            _ => f.write_str(&words.join(", ")),
        }
    }
}
