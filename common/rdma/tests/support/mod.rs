//! Two machines with a connection between them: rings over loopback, or the simulator under its own clock. Tests are written once for both.

#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod endless;

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use godwit_memory::{Buffer, ClassLayout, Layout, Pool};
use godwit_rdma::{Access, Completion, Fabric, FpduSize, Incoming, QpConfig, QpId, Remote, Rkey, Transport, WorkId, verbs};
use godwit_reactor::sim::{Random, Sim, World};
use godwit_reactor::{Event, Listener, PollBudget, Reactor, StreamId, Time, Token, Uring, UringConfig};

/// The side that connects, and the side that listens.
pub(crate) const HOST: usize = 0;
pub(crate) const TARGET: usize = 1;

/// What makes two reactors go on.
pub(crate) trait Machines: Sized {
    type Reactor: Reactor;
    /// The seeds that a test runs with.
    const SEEDS: Range<u64>;
    /// What the host connects by.
    const TRANSPORT: Transport = Transport::Iwarp;
    /// Whether a side learns which rule was broken, and whether the other one knows of the end. Devices keep much of that to themselves.
    const EXPLAINS: [bool; 2] = [true; 2];
    /// How long anything may take.
    const PATIENCE: Duration = Duration::from_secs(10);
    /// How long what is on its way may take to arrive.
    const SETTLING: Duration = Duration::from_millis(30);

    fn new(seed: u64) -> (Self, [Self::Reactor; 2]);
    /// Has the target listen.
    fn listen(&self, target: &mut Side<Self::Reactor>) -> SocketAddr;
    /// Has both sides find their events; false when there will never be any more.
    fn turn(&mut self, sides: &mut [Side<Self::Reactor>; 2]) -> bool;
}

pub(crate) struct Rings;

impl Machines for Rings {
    type Reactor = Uring;
    const SEEDS: Range<u64> = 0..1;

    fn new(_: u64) -> (Self, [Uring; 2]) {
        let reactor = || Uring::new(&UringConfig { pool: layout(), poll: PollBudget(Duration::ZERO) }).unwrap();
        (Self, [reactor(), reactor()])
    }

    fn listen(&self, target: &mut Side<Uring>) -> SocketAddr {
        listen_on("127.0.0.1:0".parse().unwrap(), target)
    }

    fn turn(&mut self, sides: &mut [Side<Uring>; 2]) -> bool {
        turn_rings(sides);
        true
    }
}

/// Has a ring listen for streams.
pub(crate) fn listen_on(address: SocketAddr, target: &mut Side<Uring>) -> SocketAddr {
    let listener = Listener::tcp(address).unwrap();
    let address = listener.local_address().unwrap();
    target.reactor.listen(listener, Token(1)).unwrap();
    address
}

pub(crate) fn turn_rings(sides: &mut [Side<Uring>; 2]) {
    for side in sides {
        // A timer that is due keeps the turn from sleeping: both sides share this thread.
        let now = side.reactor.now();
        side.reactor.set_timer(now, Token(0));
        let mut events = Vec::new();
        side.reactor.turn(&mut events).unwrap();
        side.events.extend(events);
    }
}

pub(crate) struct Simulator {
    pub(crate) world: World,
}

impl Machines for Simulator {
    type Reactor = Sim;
    const SEEDS: Range<u64> = 0..12;

    fn new(seed: u64) -> (Self, [Sim; 2]) {
        let world = World::new(seed);
        let sims = [world.host(&layout()), world.host(&layout())];
        (Self { world }, sims)
    }

    fn listen(&self, target: &mut Side<Sim>) -> SocketAddr {
        let address = "10.0.0.2:4420".parse().unwrap();
        target.reactor.listen(address, Token(1)).unwrap();
        address
    }

    fn turn(&mut self, sides: &mut [Side<Sim>; 2]) -> bool {
        let happened = self.world.advance(Time::from_nanos(u64::MAX)).is_some();
        for side in sides {
            let mut events = Vec::new();
            side.reactor.take_events(&mut events);
            side.events.extend(events);
        }
        happened
    }
}

pub(crate) fn layout() -> Layout {
    let class = |buffer_bytes, count| ClassLayout { buffer_bytes, count };
    Layout::new(&[class(4096, 64), class(16 << 10, 8), class(1 << 20, 8)]).unwrap()
}

/// Runs a test once for each seed, and says which one it failed with.
pub(crate) fn each_seed<M: Machines>(test: impl Fn(u64)) {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the seed was {}", self.0);
            }
        }
    }
    for seed in M::SEEDS {
        let named = Named(seed);
        test(seed);
        drop(named);
    }
}

/// Makes a test of each function, on rings and on the simulator.
#[allow(unused_macros, reason = "each test file uses a part")]
macro_rules! on_both {
    ($($test:ident),* $(,)?) => {
        mod ring {
            $(#[test] fn $test() { $crate::support::each_seed::<$crate::support::Rings>(super::$test::<$crate::support::Rings>); })*
        }
        mod simulator {
            $(#[test] fn $test() { $crate::support::each_seed::<$crate::support::Simulator>(super::$test::<$crate::support::Simulator>); })*
        }
    };
}
#[allow(unused_imports, reason = "each test file uses a part")]
pub(crate) use on_both;

/// One side of a connection: the loop of a reactor thread, turned by hand.
pub(crate) struct Side<R: Reactor> {
    pub(crate) reactor: R,
    pub(crate) fabric: Fabric,
    pub(crate) events: VecDeque<Event<R::Incoming>>,
    pub(crate) completions: VecDeque<(QpId, Completion)>,
    /// Connections go to the fabric, or else (for a peer made by hand) here.
    pub(crate) plain: bool,
    pub(crate) incoming: VecDeque<R::Incoming>,
    /// Connections to RDMA devices.
    pub(crate) on_devices: Option<(verbs::Listener, Receiver<verbs::Incoming>)>,
    /// A stream that no fabric knows is connected.
    pub(crate) connected: bool,
}

impl<R: Reactor> Side<R> {
    fn new(reactor: R) -> Self {
        let (events, completions, incoming) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { reactor, fabric: Fabric::new(), events, completions, plain: false, incoming, on_devices: None, connected: false }
    }

    pub(crate) fn handle_events(&mut self) {
        while let Some(incoming) = self.on_devices.as_ref().and_then(|(_, incoming)| incoming.try_recv().ok()) {
            self.fabric.adopt(&mut self.reactor, Incoming::Rdma(incoming)).unwrap();
        }
        for event in std::mem::take(&mut self.events) {
            match event {
                Event::Incoming { incoming, .. } if self.plain => self.incoming.push_back(incoming),
                Event::Incoming { incoming, .. } => {
                    self.fabric.adopt(&mut self.reactor, Incoming::Stream(incoming)).unwrap();
                }
                Event::Readable { token } | Event::Writable { token } | Event::Timer { token } | Event::Connected { token, .. }
                    if Fabric::owns(token) =>
                {
                    self.fabric.on_event(&mut self.reactor, event);
                }
                Event::Connected { result, .. } => {
                    result.unwrap();
                    self.connected = true;
                }
                _ => {}
            }
        }
    }

    pub(crate) fn poll(&mut self) {
        while let Some(completion) = self.fabric.poll(&mut self.reactor) {
            self.completions.push_back(completion);
        }
        self.fabric.flush(&mut self.reactor);
    }

    pub(crate) fn pool(&self) -> &Pool {
        self.reactor.pool()
    }

    pub(crate) fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool().take(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        buffer
    }
}

pub(crate) struct Net<M: Machines> {
    pub(crate) machines: M,
    pub(crate) sides: [Side<M::Reactor>; 2],
    pub(crate) address: SocketAddr,
    pub(crate) random: Random,
}

impl<M: Machines> Net<M> {
    /// Two machines, the target listening.
    pub(crate) fn new(seed: u64) -> Self {
        let (machines, reactors) = M::new(seed);
        let mut sides = reactors.map(Side::new);
        let address = machines.listen(&mut sides[TARGET]);
        Self { machines, sides, address, random: Random::new(seed ^ 0x5eed) }
    }

    pub(crate) fn turn(&mut self) -> bool {
        // What the test posted leaves before the clock moves on.
        self.sides.iter_mut().for_each(Side::poll);
        let more = self.machines.turn(&mut self.sides) || self.sides.iter().any(|side| !side.events.is_empty());
        self.sides.iter_mut().for_each(Side::handle_events);
        self.sides.iter_mut().for_each(Side::poll);
        more
    }

    /// Turns for a time of the real clock.
    pub(crate) fn settle_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.turn();
        }
    }

    /// Turns until everything that is on its way has arrived.
    pub(crate) fn settle(&mut self) {
        let end = Instant::now() + M::SETTLING;
        for turns in 0..100_000 {
            if !self.turn() || (turns > 200 && Instant::now() > end) {
                return;
            }
        }
    }

    /// Connects a stream of the host that no fabric knows.
    pub(crate) fn connect_plain(&mut self) -> StreamId {
        let stream = self.sides[HOST].reactor.connect(self.address, Token(5)).unwrap();
        while !self.sides[HOST].connected {
            assert!(self.turn());
        }
        stream
    }

    /// Turns until a connection for a peer made by hand has come.
    pub(crate) fn settle_incoming(&mut self) {
        while self.sides.iter().all(|side| side.incoming.is_empty()) {
            assert!(self.turn());
        }
    }

    /// Turns until one side has a completion that `wanted` accepts, and takes it; others stay.
    pub(crate) fn next_of(&mut self, mut wanted: impl FnMut(usize, QpId, &Completion) -> bool) -> (QpId, Completion) {
        let deadline = Instant::now() + M::PATIENCE;
        loop {
            for (index, side) in self.sides.iter_mut().enumerate() {
                if let Some(position) = side.completions.iter().position(|(qp, completion)| wanted(index, *qp, completion)) {
                    return side.completions.remove(position).unwrap();
                }
            }
            let more = self.turn();
            let there = self
                .sides
                .iter()
                .any(|side| side.completions.iter().any(|(qp, completion)| wanted(0, *qp, completion) || wanted(1, *qp, completion)));
            let seen: Vec<_> = self.sides.iter().map(|side| &side.completions).collect();
            assert!(there || (more && Instant::now() < deadline), "the completion did not come; there are {seen:?}");
        }
    }

    pub(crate) fn next(&mut self, mut wanted: impl FnMut(usize, &Completion) -> bool) -> Completion {
        self.next_of(|side, _, completion| wanted(side, completion)).1
    }

    /// Connects a queue pair of the host with one of the target.
    pub(crate) fn connect(&mut self, config: &QpConfig) -> [QpId; 2] {
        let Self { sides: [host, _], address, .. } = self;
        let host_qp = host.fabric.connect(&mut host.reactor, M::TRANSPORT, *address, config, b"hello target").unwrap();
        let (target_qp, request) = self.next_of(|_, _, c| matches!(c, Completion::ConnectRequest { .. }));
        let Completion::ConnectRequest { private_data, peer_inbound_reads } = request else { unreachable!() };
        // InfiniBand's connection manager pads with zeroes.
        assert_eq!((&private_data.0[..12], peer_inbound_reads), (&b"hello target"[..], config.inbound_reads));
        let target = &mut self.sides[TARGET];
        target.fabric.accept(&mut target.reactor, target_qp, config, b"hello host").unwrap();
        let established = self.next(|_, c| matches!(c, Completion::Established { .. }));
        let Completion::Established { private_data } = established else { unreachable!() };
        assert_eq!(&private_data.0[..10], b"hello host");
        [host_qp, target_qp]
    }

    pub(crate) fn in_use(&self) -> [usize; 2] {
        [self.sides[HOST].pool().in_use(), self.sides[TARGET].pool().in_use()]
    }

    /// Bytes of a stream that no fabric knows, until `len` are there or it ends; the latter as `None` behind them.
    pub(crate) fn read_plain(&mut self, side: usize, stream: StreamId, len: usize) -> (Vec<u8>, Option<io::ErrorKind>) {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let mut chunk = vec![0; (len - bytes.len()).min(65536)];
            match self.sides[side].reactor.receive(stream, &mut [IoSliceMut::new(&mut chunk)]) {
                Ok(0) => return (bytes, Some(io::ErrorKind::UnexpectedEof)),
                Ok(count) => bytes.extend(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let more = self.turn();
                    assert!(more && Instant::now() < deadline, "nothing more comes after {bytes:02x?}");
                }
                Err(error) => return (bytes, Some(error.kind())),
            }
        }
        (bytes, None)
    }

    pub(crate) fn write_plain(&mut self, side: usize, stream: StreamId, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.sides[side].reactor.send(stream, &[IoSlice::new(rest)]) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => assert!(self.turn()),
                Err(_) => return,
            }
        }
    }
}

impl Net<Simulator> {
    /// Turns until nothing more happens within `time` from now.
    pub(crate) fn settle_until(&mut self, time: Duration) {
        let end = self.machines.world.now() + time;
        self.sides.iter_mut().for_each(Side::poll);
        while self.machines.world.advance(end).is_some() {
            for side in &mut self.sides {
                let mut events = Vec::new();
                side.reactor.take_events(&mut events);
                side.events.extend(events);
                side.handle_events();
                side.poll();
            }
        }
    }
}

/// A connected pair of queue pairs.
pub(crate) struct Pair<M: Machines> {
    pub(crate) net: Net<M>,
    pub(crate) qps: [QpId; 2],
}

impl<M: Machines> Pair<M> {
    pub(crate) fn new(seed: u64, config: &QpConfig) -> Self {
        let mut net = Net::new(seed);
        let qps = net.connect(config);
        Self { net, qps }
    }

    /// A pair whose host has sent a first message, after which the target may send.
    pub(crate) fn greeted(seed: u64, config: &QpConfig) -> Self {
        let mut pair = Self::new(seed, config);
        pair.send(HOST, WorkId(0), &[0; 16], None, None);
        pair.next(|side, c| side == TARGET && matches!(c, Completion::Received { .. }));
        pair.next(|side, c| side == HOST && matches!(c, Completion::SendDone { .. }));
        pair
    }

    pub(crate) fn next(&mut self, wanted: impl FnMut(usize, &Completion) -> bool) -> Completion {
        self.net.next(wanted)
    }

    pub(crate) fn side(&mut self, side: usize) -> &mut Side<M::Reactor> {
        &mut self.net.sides[side]
    }

    pub(crate) fn send(&mut self, side: usize, id: WorkId, header: &[u8], data: Option<Buffer>, invalidate: Option<Rkey>) {
        let qp = self.qps[side];
        self.side(side).fabric.post_send(qp, id, header, data, invalidate);
    }

    pub(crate) fn write(&mut self, side: usize, data: Buffer, len: usize, to: Remote) {
        let qp = self.qps[side];
        self.side(side).fabric.post_write(qp, data, len, to);
    }

    pub(crate) fn read(&mut self, side: usize, id: WorkId, sink: Buffer, len: usize, from: Remote) {
        let qp = self.qps[side];
        self.side(side).fabric.post_read(qp, id, sink, len, from);
    }

    pub(crate) fn expose(&mut self, side: usize, buffer: Buffer, len: usize, access: Access) -> Remote {
        let qp = self.qps[side];
        self.side(side).fabric.expose(qp, buffer, len, access).unwrap()
    }

    pub(crate) fn revoke(&mut self, side: usize, rkey: Rkey) -> Buffer {
        let qp = self.qps[side];
        self.side(side).fabric.revoke(qp, rkey).unwrap()
    }

    pub(crate) fn peer_invalidates(&self, side: usize) -> bool {
        self.net.sides[side].fabric.peer_invalidates(self.qps[side])
    }

    pub(crate) fn is_stalled(&self, side: usize) -> bool {
        self.net.sides[side].fabric.is_stalled(self.qps[side])
    }

    pub(crate) fn buffer(&self, side: usize, bytes: &[u8]) -> Buffer {
        self.net.sides[side].buffer(bytes)
    }

    pub(crate) fn destroy(&mut self, side: usize) {
        let qp = self.qps[side];
        let side = self.side(side);
        side.fabric.destroy(&mut side.reactor, qp);
    }

    pub(crate) fn disconnect(&mut self, side: usize) {
        let qp = self.qps[side];
        let side = self.side(side);
        side.fabric.disconnect(&mut side.reactor, qp);
    }
}

pub(crate) fn config() -> QpConfig {
    QpConfig {
        send_depth: 64,
        receive_depth: 64,
        header_bytes: 16,
        data_bytes: 8192,
        regions: 16,
        inbound_reads: 16,
        outbound_reads: 16,
        crc: true,
        fpdu: FpduSize::Large,
    }
}

/// Bytes that tell where they belong; those of another seed differ everywhere.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    static BASE: OnceLock<Vec<u8>> = OnceLock::new();
    let base = BASE.get_or_init(|| (0..1 << 20).map(|i| u8::try_from((i * 7 + i / 251) % 251).unwrap()).collect());
    base[..len].iter().map(|byte| byte ^ seed).collect()
}
