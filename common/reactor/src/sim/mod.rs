//! The simulator: many hosts with their streams, files and timers in one thread, under a clock that only moves when told to.
//!
//! Everything that real machines leave open is drawn from the seed: how long bytes travel, in what pieces they are taken and delivered, in what order
//! and after what time file operations end, which unsynced writes a power cut takes. The same seed gives the same run.
//!
//! A test makes a [`World`], a [`Sim`] for each host, and turns the world: [`World::advance`] moves the clock to the next thing that happens and says to
//! whom; the test gives that host's events to its engine.

mod disk;
mod network;
mod random;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use godwit_memory::{Layout, Pool};

use crate::timers::Timers;
use crate::{Event, FileDone, FileId, FileOp, ListenerId, Peer, Reactor, StreamId, Time, TimerId, Token};
pub use disk::Disk;
use network::{Network, Notice};
pub use random::Random;

/// A host of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(usize);

/// A connection that a simulated listener accepted.
#[derive(Debug)]
pub struct SimIncoming {
    end: usize,
}

/// Hosts, network and clock.
#[derive(Clone)]
pub struct World {
    shared: Rc<RefCell<Shared>>,
}

struct Shared {
    now: Time,
    random: Random,
    network: Network,
    hosts: Vec<Host>,
    /// Network happenings by time; those of one moment in the order in which they were caused.
    agenda: BTreeMap<(Time, u64), Notice>,
    disk_agenda: BTreeMap<(Time, u64), DiskNotice>,
    next: u64,
}

struct DiskNotice {
    host: usize,
    epoch: u64,
    file: Disk,
    op: FileOp,
    token: Token,
    /// Changes of the disk before it started.
    changes: u64,
}

#[derive(Default)]
struct Host {
    timers: Timers,
    events: VecDeque<Event<SimIncoming>>,
    files: BTreeMap<u32, Disk>,
    next_file: u32,
    listeners: BTreeMap<u32, (SocketAddr, Token)>,
    next_listener: u32,
    /// Counts the host's lives: what an earlier one started does not reach a later one.
    epoch: u64,
}

/// One host's reactor.
pub struct Sim {
    world: World,
    host: usize,
    pool: Pool,
}

impl World {
    /// A world without hosts.
    pub fn new(seed: u64) -> Self {
        let shared = Shared {
            now: Time::default(),
            random: Random::new(seed),
            network: Network::default(),
            hosts: Vec::new(),
            agenda: BTreeMap::new(),
            disk_agenda: BTreeMap::new(),
            next: 0,
        };
        Self { shared: Rc::new(RefCell::new(shared)) }
    }

    /// Adds a host with buffers of the given layout.
    ///
    /// # Panics
    ///
    /// When there is no memory for them.
    pub fn host(&self, pool: &Layout) -> Sim {
        let mut shared = self.shared.borrow_mut();
        shared.hosts.push(Host::default());
        Sim { world: self.clone(), host: shared.hosts.len() - 1, pool: Pool::new(pool).expect("memory for a simulated host") }
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.shared.borrow().now
    }

    /// A draw from the world's randomness, below `bound`.
    pub fn draw(&self, bound: u64) -> u64 {
        self.shared.borrow_mut().random.below(bound)
    }

    /// Moves the clock to the next thing that happens at a host, and names the host; `None` when nothing ever will, or not before `until`.
    pub fn advance(&self, until: Time) -> Option<HostId> {
        loop {
            let mut shared = self.shared.borrow_mut();
            if let Some(host) = shared.hosts.iter().position(|host| !host.events.is_empty()) {
                return Some(HostId(host));
            }
            let timer = shared.hosts.iter().enumerate().filter_map(|(host, state)| Some((state.timers.next_due()?, host))).min();
            let network = shared.agenda.first_key_value().map(|(&(at, _), _)| at);
            let disk = shared.disk_agenda.first_key_value().map(|(&(at, _), _)| at);
            let at = [timer.map(|(at, _)| at), network, disk].into_iter().flatten().min()?;
            if at > until {
                shared.now = until;
                return None;
            }
            shared.now = shared.now.max(at);
            if network == Some(at) {
                let (_, notice) = shared.agenda.pop_first().expect("seen above");
                shared.deliver(notice);
            } else if disk == Some(at) {
                let (_, notice) = shared.disk_agenda.pop_first().expect("seen above");
                shared.finish_disk(notice);
            } else if let Some((_, host)) = timer {
                let now = shared.now;
                while let Some(token) = shared.hosts[host].timers.pop_due(now) {
                    shared.hosts[host].events.push_back(Event::Timer { token });
                }
            }
        }
    }

    /// Cuts (or heals) the network between two hosts. What is sent meanwhile is neither delivered nor refused: it arrives after the cut, each stream
    /// when its sender tries again.
    pub fn partition(&self, a: HostId, b: HostId, cut: bool) {
        let mut shared = self.shared.borrow_mut();
        shared.with_network(|network, moment, schedule| network.partition(a.0, b.0, cut, moment, schedule));
    }

    /// Ends a host as `kill -9` does: its peers see a reset, its own timers and operations come to nothing. Writes in flight may still reach the disk.
    pub fn kill(&self, host: HostId) {
        let mut shared = self.shared.borrow_mut();
        let HostId(host) = host;
        let epoch = shared.hosts[host].epoch + 1;
        let addresses: Vec<_> = shared.hosts[host].listeners.values().map(|(address, _)| *address).collect();
        shared.hosts[host] = Host { epoch, ..Host::default() };
        for address in addresses {
            shared.network.unlisten(address);
        }
        for end in shared.network.ends_of(host) {
            shared.with_network(|network, at, schedule| network.close(end, true, at, schedule));
        }
    }

    /// Operations on a disk that have started and not ended, those of killed hosts too.
    pub fn disk_operations(&self, disk: &Disk) -> usize {
        self.shared.borrow().disk_agenda.values().filter(|notice| notice.file.is(disk)).count()
    }

    /// Those of them that change what is on it.
    pub fn disk_changes(&self, disk: &Disk) -> usize {
        let changes = |notice: &&DiskNotice| matches!(notice.op, FileOp::Write { .. } | FileOp::Allocate { .. }) && notice.file.is(disk);
        self.shared.borrow().disk_agenda.values().filter(changes).count()
    }

    /// Cuts the power of a disk: of what is under way each operation has taken effect or not, by chance, and so has what was not synced. The hosts that
    /// use it are to be [killed](Self::kill) as well.
    pub fn cut_power(&self, disk: &Disk) {
        let shared = &mut *self.shared.borrow_mut();
        let (under_way, elsewhere) = std::mem::take(&mut shared.disk_agenda).into_iter().partition(|(_, notice)| notice.file.is(disk));
        shared.disk_agenda = elsewhere;
        let under_way: BTreeMap<_, DiskNotice> = under_way;
        for notice in under_way.into_values() {
            if shared.random.below(2) == 0 {
                let _ = disk.run(notice.op, notice.changes, &mut shared.random);
            }
        }
        disk.cut_power(&mut shared.random);
    }

    /// Resets every connection between two hosts.
    pub fn reset_connections(&self, a: HostId, b: HostId) {
        let mut shared = self.shared.borrow_mut();
        for end in shared.network.ends_between(a.0, b.0) {
            let host = shared.network.host_of(end);
            shared.network.fail(end);
            if let Some(token) = shared.network.token(end) {
                shared.hosts[host].events.push_back(Event::Readable { token });
            }
        }
    }
}

impl Shared {
    fn schedule(&mut self, at: Time, notice: Notice) {
        self.next += 1;
        self.agenda.insert((at, self.next), notice);
    }

    fn with_network<T>(&mut self, act: impl FnOnce(&mut Network, &mut Moment<'_>, &mut dyn FnMut(Time, Notice)) -> T) -> T {
        let Self { network, random, now, agenda, next, .. } = self;
        let mut moment = Moment { now: *now, random };
        act(network, &mut moment, &mut |at, notice| {
            *next += 1;
            agenda.insert((at, *next), notice);
        })
    }

    fn deliver(&mut self, notice: Notice) {
        match notice {
            Notice::Arrived { end } => {
                if self.network.arrive(end, self.now)
                    && let Some(token) = self.network.token(end)
                {
                    let host = self.network.host_of(end);
                    self.hosts[host].events.push_back(Event::Readable { token });
                }
            }
            Notice::Left { end } => {
                if self.network.has_news(end)
                    && let Some(token) = self.network.token(end)
                {
                    let host = self.network.host_of(end);
                    self.hosts[host].events.push_back(Event::Readable { token });
                }
            }
            Notice::Room { end } => {
                if let Some(token) = self.network.token(end) {
                    let host = self.network.host_of(end);
                    self.hosts[host].events.push_back(Event::Writable { token });
                }
            }
            Notice::Connect { end, address } => self.connect_arrives(end, address),
            Notice::Connected { end, refused } => {
                if let Some(token) = self.network.token(end) {
                    let host = self.network.host_of(end);
                    let result = if refused {
                        self.network.forget(end);
                        Err(io::ErrorKind::ConnectionRefused.into())
                    } else {
                        Ok(())
                    };
                    self.hosts[host].events.push_back(Event::Connected { token, result });
                }
            }
        }
    }

    fn connect_arrives(&mut self, end: usize, address: SocketAddr) {
        if self.network.is_closed(end) {
            return;
        }
        let listener = self.network.listener(address);
        if listener.is_some_and(|host| self.network.is_cut_between(self.network.host_of(end), host)) {
            return self.schedule(self.now + CONNECT_AGAIN, Notice::Connect { end, address });
        }
        let delay = self.random.delay();
        let at = self.now + delay;
        let known = listener.and_then(|host| {
            let token = self.hosts[host].listeners.values().find(|(bound, _)| *bound == address).map(|(_, token)| *token)?;
            Some((host, token))
        });
        match known {
            Some((host, token)) => {
                let peer_end = self.network.accept(end, host);
                self.hosts[host].events.push_back(Event::Incoming { token, incoming: SimIncoming { end: peer_end } });
                self.schedule(at, Notice::Connected { end, refused: false });
            }
            None => self.schedule(at, Notice::Connected { end, refused: true }),
        }
    }

    fn finish_disk(&mut self, DiskNotice { host, epoch, file, op, token, changes }: DiskNotice) {
        let (result, op) = file.run(op, changes, &mut self.random);
        if self.hosts[host].epoch == epoch {
            let done = FileDone { result, buffer: op.into_buffer() };
            self.hosts[host].events.push_back(Event::File { token, done });
        }
    }
}

/// The present, and chance.
pub(crate) struct Moment<'a> {
    pub(crate) now: Time,
    pub(crate) random: &'a mut Random,
}

impl Sim {
    /// Which host this is.
    pub fn id(&self) -> HostId {
        HostId(self.host)
    }

    /// Takes the events that happened to this host.
    pub fn take_events(&mut self, events: &mut Vec<Event<SimIncoming>>) {
        events.extend(self.world.shared.borrow_mut().hosts[self.host].events.drain(..));
    }

    fn stream(end: usize) -> StreamId {
        StreamId { index: u32::try_from(end).expect("a simulation has few streams"), generation: 0 }
    }
}

impl Reactor for Sim {
    type Incoming = SimIncoming;
    type Listener = SocketAddr;
    type File = Disk;

    fn now(&self) -> Time {
        self.world.now()
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn listen(&mut self, listener: SocketAddr, token: Token) -> io::Result<ListenerId> {
        let mut shared = self.world.shared.borrow_mut();
        shared.network.listen(listener, self.host)?;
        let host = &mut shared.hosts[self.host];
        host.next_listener += 1;
        let id = host.next_listener;
        host.listeners.insert(id, (listener, token));
        Ok(ListenerId(id))
    }

    fn close_listener(&mut self, ListenerId(id): ListenerId) {
        let mut shared = self.world.shared.borrow_mut();
        if let Some((address, _)) = shared.hosts[self.host].listeners.remove(&id) {
            shared.network.unlisten(address);
        }
    }

    fn adopt(&mut self, incoming: SimIncoming, token: Token) -> io::Result<StreamId> {
        let mut shared = self.world.shared.borrow_mut();
        shared.network.set_token(incoming.end, token)?;
        shared.network.set_host(incoming.end, self.host);
        shared.hosts[self.host].events.push_back(Event::Readable { token });
        Ok(Self::stream(incoming.end))
    }

    fn connect(&mut self, address: SocketAddr, token: Token) -> io::Result<StreamId> {
        let mut shared = self.world.shared.borrow_mut();
        let end = shared.network.open(self.host);
        shared.network.set_token(end, token)?;
        let at = shared.now + shared.random.delay();
        shared.schedule(at, Notice::Connect { end, address });
        Ok(Self::stream(end))
    }

    fn receive(&mut self, stream: StreamId, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.world
            .shared
            .borrow_mut()
            .with_network(|network, moment, schedule| network.receive(stream.index as usize, into, moment, schedule))
    }

    fn send(&mut self, stream: StreamId, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.world.shared.borrow_mut().with_network(|network, moment, schedule| network.send(stream.index as usize, from, moment, schedule))
    }

    fn shutdown_send(&mut self, stream: StreamId) {
        self.world
            .shared
            .borrow_mut()
            .with_network(|network, moment, schedule| network.shutdown_send(stream.index as usize, moment, schedule));
    }

    fn close(&mut self, stream: StreamId) {
        self.world
            .shared
            .borrow_mut()
            .with_network(|network, moment, schedule| network.close(stream.index as usize, false, moment, schedule));
    }

    fn close_gracefully(&mut self, stream: StreamId) {
        self.world.shared.borrow_mut().network.discard(stream.index as usize);
        self.close(stream);
    }

    fn peer(&self, stream: StreamId) -> Option<Peer> {
        let shared = self.world.shared.borrow();
        shared.network.token(stream.index as usize).map(|_| Peer::Unix)
    }

    fn local_address(&self, _: StreamId) -> Option<SocketAddr> {
        self.world.shared.borrow().hosts[self.host].listeners.values().next().map(|(address, _)| *address)
    }

    fn max_segment_bytes(&self, _: StreamId) -> Option<usize> {
        None
    }

    fn has_ended(&self, stream: StreamId) -> bool {
        self.world.shared.borrow().network.has_ended(stream.index as usize)
    }

    fn register_file(&mut self, file: Disk) -> io::Result<FileId> {
        let host = &mut self.world.shared.borrow_mut().hosts[self.host];
        host.next_file += 1;
        host.files.insert(host.next_file, file);
        Ok(FileId { index: host.next_file, generation: 0 })
    }

    fn unregister_file(&mut self, file: FileId) {
        self.world.shared.borrow_mut().hosts[self.host].files.remove(&file.index);
    }

    fn submit(&mut self, file: FileId, mut op: FileOp, token: Token) {
        op.assert_in_bounds();
        if let FileOp::Read { buffer, start, len, .. } = &mut op {
            buffer.set_len(*start + *len);
        }
        let mut shared = self.world.shared.borrow_mut();
        let Some(file) = shared.hosts[self.host].files.get(&file.index).cloned() else {
            let done = FileDone { result: Err(io::Error::from_raw_os_error(libc::EBADF)), buffer: op.into_buffer() };
            shared.hosts[self.host].events.push_back(Event::File { token, done });
            return;
        };
        let at = shared.now + file.delay(&mut shared.random);
        shared.next += 1;
        let key = (at, shared.next);
        let (host, epoch) = (self.host, shared.hosts[self.host].epoch);
        let changes = file.changes();
        shared.disk_agenda.insert(key, DiskNotice { host, epoch, file, op, token, changes });
    }

    /// As little as a thread that has slept deals with, so that what is left over for later turns is the rule here.
    fn portion(&self) -> usize {
        4
    }

    fn set_timer(&mut self, at: Time, token: Token) -> TimerId {
        let mut shared = self.world.shared.borrow_mut();
        let now = shared.now;
        shared.hosts[self.host].timers.set(now, at, token)
    }

    fn cancel_timer(&mut self, timer: TimerId) {
        self.world.shared.borrow_mut().hosts[self.host].timers.cancel(timer);
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.shared.borrow();
        write!(f, "World({} hosts at {:?})", shared.hosts.len(), shared.now)
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sim(host {})", self.host)
    }
}

/// After which time a connection request that was lost is repeated.
const CONNECT_AGAIN: Duration = Duration::from_secs(1);

/// The longest time that bytes travel.
pub(crate) const MOST_DELAY: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests;
