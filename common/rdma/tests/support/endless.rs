//! A simulated machine whose network can be made to bring bytes without end, or to take few at a time.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::ops::{Deref, Range};

use godwit_memory::Pool;
use godwit_reactor::sim::{Disk, Sim, SimIncoming};
use godwit_reactor::{FileId, FileOp, ListenerId, Peer, Reactor, StreamId, Time, TimerId, Token};

use super::{Machines, Side, Simulator};

pub(crate) struct Endless {
    sim: Sim,
    /// What every stream brings from now on, over and over.
    pub(crate) flood: Vec<u8>,
    position: usize,
    /// Calls of `receive`.
    pub(crate) reads: usize,
    /// Bytes that a call of `send` takes at most.
    pub(crate) takes: usize,
    /// Bytes that each call of `send` was offered.
    pub(crate) offers: Vec<usize>,
}

pub(crate) struct EndlessWorld(Simulator);

impl Machines for EndlessWorld {
    type Reactor = Endless;
    const SEEDS: Range<u64> = 0..1;

    fn new(seed: u64) -> (Self, [Endless; 2]) {
        let (simulator, sims) = Simulator::new(seed);
        (Self(simulator), sims.map(|sim| Endless { sim, flood: Vec::new(), position: 0, reads: 0, takes: usize::MAX, offers: Vec::new() }))
    }

    fn listen(&self, target: &mut Side<Self::Reactor>) -> SocketAddr {
        let address = "10.0.0.2:4420".parse().unwrap();
        target.reactor.listen(address, Token(1)).unwrap();
        address
    }

    fn turn(&mut self, sides: &mut [Side<Endless>; 2]) -> bool {
        let happened = self.0.world.advance(Time::from_nanos(u64::MAX)).is_some();
        for side in sides {
            let mut events = Vec::new();
            side.reactor.sim.take_events(&mut events);
            side.events.extend(events);
        }
        happened
    }
}

/// Methods that the simulator runs as they are.
macro_rules! by_simulator {
    ($(fn $name:ident(& $($self:ident)+ $(, $argument:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {
        $(by_simulator!(@ $name ($($self)+) ($($argument: $kind),*) ($($result)?));)*
    };
    (@ $name:ident (self) ($($argument:ident: $kind:ty),*) ($($result:ty)?)) => {
        fn $name(&self $(, $argument: $kind)*) $(-> $result)? { self.sim.$name($($argument),*) }
    };
    (@ $name:ident (mut self) ($($argument:ident: $kind:ty),*) ($($result:ty)?)) => {
        fn $name(&mut self $(, $argument: $kind)*) $(-> $result)? { self.sim.$name($($argument),*) }
    };
}

impl Reactor for Endless {
    type Incoming = SimIncoming;
    type Listener = SocketAddr;
    type File = Disk;

    fn receive(&mut self, stream: StreamId, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.reads += 1;
        if self.flood.is_empty() {
            return self.sim.receive(stream, into);
        }
        assert!(self.reads < 10_000, "reads without end in one turn");
        let mut count = 0;
        for byte in into.iter_mut().flat_map(|slice| slice.iter_mut()) {
            *byte = self.flood[self.position];
            self.position = (self.position + 1) % self.flood.len();
            count += 1;
        }
        Ok(count)
    }

    fn send(&mut self, stream: StreamId, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.offers.push(from.iter().map(|slice| slice.len()).sum());
        let mut left = self.takes;
        let part = |slice| {
            let bytes: &[u8] = IoSlice::deref(slice);
            let taken = bytes.len().min(left);
            left -= taken;
            IoSlice::new(&bytes[..taken])
        };
        let parts: Vec<IoSlice<'_>> = from.iter().map(part).collect();
        self.sim.send(stream, &parts)
    }

    by_simulator! {
        fn now(&self) -> Time;
        fn pool(&self) -> &Pool;
        fn listen(&mut self, listener: SocketAddr, token: Token) -> io::Result<ListenerId>;
        fn close_listener(&mut self, listener: ListenerId);
        fn adopt(&mut self, incoming: SimIncoming, token: Token) -> io::Result<StreamId>;
        fn connect(&mut self, address: SocketAddr, token: Token) -> io::Result<StreamId>;
        fn shutdown_send(&mut self, stream: StreamId);
        fn close(&mut self, stream: StreamId);
        fn close_gracefully(&mut self, stream: StreamId);
        fn peer(&self, stream: StreamId) -> Option<Peer>;
        fn local_address(&self, stream: StreamId) -> Option<SocketAddr>;
        fn max_segment_bytes(&self, stream: StreamId) -> Option<usize>;
        fn has_ended(&self, stream: StreamId) -> bool;
        fn register_file(&mut self, file: Disk) -> io::Result<FileId>;
        fn unregister_file(&mut self, file: FileId);
        fn submit(&mut self, file: FileId, op: FileOp, token: Token);
        fn set_timer(&mut self, at: Time, token: Token) -> TimerId;
        fn cancel_timer(&mut self, timer: TimerId);
    }
}
