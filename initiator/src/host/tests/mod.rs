//! The host on io_uring and loopback, against a target that is made for it.

mod durability;
mod paths;
mod patience;
mod proxy;
mod target;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use godwit_memory::{Buffer, Layout};
use godwit_nvme::{HostId, Nsid, QueueSize, StatusCode};
use godwit_rdma::{Fabric, FpduSize, Transport};
use godwit_reactor::{Event, PollBudget, Reactor, Uring, UringConfig};

use super::{
    Address, Endpoint, HostError, LossTimeout, Mailbox, Names, Resolver, TokenSpace, Uncounted, VolumeControl, VolumeEvent, VolumeInfo,
    VolumeSettings, VolumeState, VolumeStatus, VolumeThread,
};
use crate::block::{BlockDone, BlockError, BlockOp, BlockQueue, Ticket};
use crate::host::io_queue::link::JOIN_TIMEOUT;
use proxy::Proxy;
use target::{BLOCK, Executed, FakeTarget, LISTENER, NQN};

struct World {
    reactor: Uring,
    fabric: Fabric,
    target: FakeTarget,
    volume: Option<VolumeThread>,
    status: Arc<VolumeStatus>,
    events: Receiver<VolumeEvent>,
    seen: Vec<VolumeEvent>,
    done: Vec<BlockDone>,
    /// The user of operations that end well takes these for failed.
    failing: Vec<Ticket>,
    next_ticket: u64,
}

struct Options {
    keep_alive: Duration,
    loss_timeout: LossTimeout,
    queue_size: u32,
    nsid: Option<u32>,
    io_timeout: Duration,
    abort_timeout: Duration,
    fast_io_fail: Option<Duration>,
    reconnect_delay: Duration,
    through_proxy: bool,
    /// Instead of the target's.
    addresses: Vec<Address>,
    discovery: bool,
    resolver: Resolver,
    retain_bytes: usize,
    uncounted: Uncounted,
    known_unsafe_shutdowns: Option<u128>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(5),
            loss_timeout: LossTimeout::After(Duration::from_secs(60)),
            queue_size: 32,
            nsid: None,
            io_timeout: Duration::from_secs(30),
            abort_timeout: Duration::ZERO,
            fast_io_fail: None,
            reconnect_delay: Duration::from_millis(200),
            through_proxy: false,
            addresses: Vec::new(),
            discovery: false,
            resolver: Resolver::default(),
            retain_bytes: 0,
            uncounted: Uncounted::Trust,
            known_unsafe_shutdowns: None,
        }
    }
}

const LONG: Duration = Duration::from_secs(20);

fn reactor() -> Uring {
    Uring::new(&UringConfig { pool: Layout::of_total(16 << 20), poll: PollBudget(Duration::ZERO) }).unwrap()
}

fn endpoint(port: u16) -> Endpoint {
    Endpoint { transport: Transport::Iwarp, address: ([127, 0, 0, 1], port).into(), crc: true, fpdu: FpduSize::Large }
}

fn names() -> Names {
    Names {
        subsystem: NQN.parse().unwrap(),
        host: "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555".parse().unwrap(),
        host_id: HostId([1; 16]),
    }
}

impl World {
    fn new(options: &Options, prepare: impl FnOnce(&mut FakeTarget)) -> (Self, Option<Proxy>) {
        let mut world = Self::bare();
        prepare(&mut world.target);
        let proxy = options.through_proxy.then(|| Proxy::to(world.target.port));
        let port = proxy.as_ref().map_or(world.target.port, |proxy| proxy.port);
        world.attach(options, port);
        (world, proxy)
    }

    /// With a target, and no volume yet.
    fn bare() -> Self {
        let mut reactor = reactor();
        let target = FakeTarget::new(&mut reactor, 256);
        let (_, events) = channel();
        let volume = None;
        let status = VolumeStatus::new(1);
        let (seen, done, failing) = (Vec::new(), Vec::new(), Vec::new());
        Self { reactor, fabric: Fabric::new(), target, volume, status, events, seen, done, failing, next_ticket: 0 }
    }

    /// Begins to attach a volume, by a port unless the options name addresses.
    fn attach(&mut self, options: &Options, port: u16) {
        let settings = VolumeSettings {
            name: "test".to_owned(),
            addresses: match options {
                Options { discovery: true, .. } => Vec::new(),
                Options { addresses, .. } if addresses.is_empty() => vec![endpoint(port).into()],
                Options { addresses, .. } => addresses.clone(),
            },
            discovery: options.discovery.then(|| endpoint(port).into()),
            resolver: options.resolver.clone(),
            names: names(),
            nsid: options.nsid.map(Nsid::new),
            keep_alive: options.keep_alive,
            queue_size: QueueSize::new(options.queue_size).unwrap(),
            reconnect_delay: options.reconnect_delay,
            seed: 7,
            fast_io_fail: options.fast_io_fail,
            loss_timeout: options.loss_timeout,
            io_timeout: options.io_timeout,
            abort_timeout: options.abort_timeout,
            retain_bytes: options.retain_bytes,
            uncounted: options.uncounted,
            known_unsafe_shutdowns: options.known_unsafe_shutdowns,
            read_only: false,
            status: Arc::clone(&self.status),
        };
        let waker = self.reactor.waker();
        let wake = move || waker.wake();
        let (order, orders) = channel();
        let (tell, news) = channel();
        let (event, events) = channel();
        let tokens = TokenSpace::new(3);
        let queues = vec![Mailbox::new(order, wake.clone())];
        let control = VolumeControl::new(settings, tokens, queues, news, Mailbox::new(event, || {}));
        let mut volume = VolumeThread::new(tokens, 0, Some(control), orders, Mailbox::new(tell, wake), options.io_timeout);
        volume.start(&mut self.reactor, &mut self.fabric);
        self.events = events;
        self.volume = Some(volume);
    }

    fn volume(&mut self) -> &mut VolumeThread {
        self.volume.as_mut().expect("it is attached")
    }

    fn up(options: &Options) -> Self {
        let (mut world, _) = Self::new(options, |_| {});
        world.wait_up();
        world
    }

    fn wait_up(&mut self) -> VolumeInfo {
        self.run(|world| !world.seen.is_empty());
        match self.seen.remove(0) {
            VolumeEvent::Up(info) => *info,
            other => panic!("{other:?}"),
        }
    }

    fn turn(&mut self) {
        let Self { reactor, fabric, target, volume: Some(volume), .. } = self else { panic!("no volume is attached") };
        let mut events = Vec::new();
        reactor.turn(&mut events).unwrap();
        for event in events {
            match event {
                Event::Incoming { token: LISTENER, incoming } => {
                    let qp = fabric.adopt(reactor, godwit_rdma::Incoming::Stream(incoming)).unwrap();
                    target.adopted(qp);
                }
                Event::Timer { token } if !Fabric::owns(token) => {
                    // Some tests only need the reactor to wake.
                    volume.on_timer(reactor, fabric, token);
                }
                Event::Woken => {}
                event => fabric.on_event(reactor, event),
            }
        }
        while let Some((qp, completion)) = fabric.poll(reactor) {
            if target.owns(qp) {
                target.on_completion(reactor, fabric, qp, completion);
            } else {
                volume.on_completion(reactor, fabric, qp, completion).unwrap();
            }
        }
        volume.on_messages(reactor, fabric);
        if let Some(queue) = volume.queue() {
            while let Some(done) = BlockQueue::<Uring>::next_done(queue) {
                if self.failing.contains(&done.ticket) {
                    BlockQueue::<Uring>::failed_after_all(queue);
                }
                self.done.push(done);
            }
        }
        volume.pump(reactor, fabric);
        fabric.flush(reactor);
        self.seen.extend(self.events.try_iter());
    }

    fn run(&mut self, until: impl Fn(&Self) -> bool) {
        self.run_at_most(LONG, until);
    }

    fn run_at_most(&mut self, limit: Duration, until: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !until(self) {
            assert!(started.elapsed() < limit, "nothing came of it; events: {:?}, done: {:?}", self.seen, self.done);
            self.reactor.set_timer(self.reactor.now() + Duration::from_millis(5), godwit_reactor::Token(1));
            self.turn();
        }
    }

    fn run_for(&mut self, time: Duration) {
        let started = Instant::now();
        self.run_at_most(time + LONG, |_| started.elapsed() >= time);
    }

    fn submit(&mut self, op: BlockOp) -> Result<Ticket, BlockOp> {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let Self { reactor, fabric, volume: Some(volume), .. } = self else { panic!("no volume is attached") };
        volume.queue().unwrap().submit(reactor, fabric, ticket, op).map(|()| ticket)
    }

    fn write(&mut self, block: u64, blocks: usize, byte: u8) -> Ticket {
        let mut buffer = self.buffer(blocks * BLOCK);
        buffer.fill(byte);
        self.submit(BlockOp::Write { offset: block * BLOCK as u64, len_bytes: blocks * BLOCK, buffer, fua: false }).unwrap()
    }

    fn read(&mut self, block: u64, blocks: usize) -> Ticket {
        let mut buffer = self.buffer(blocks * BLOCK);
        buffer.fill(0xee);
        self.submit(BlockOp::Read { offset: block * BLOCK as u64, len_bytes: blocks * BLOCK, buffer }).unwrap()
    }

    fn buffer(&self, len_bytes: usize) -> Buffer {
        self.reactor.pool().take(len_bytes).unwrap()
    }

    fn finish(&mut self, ticket: Ticket) -> BlockDone {
        self.run(|world| world.done.iter().any(|done| done.ticket == ticket));
        let index = self.done.iter().position(|done| done.ticket == ticket).unwrap();
        self.done.remove(index)
    }

    fn expect(&mut self, ticket: Ticket, result: Result<(), BlockError>) {
        assert_eq!(self.finish(ticket).result, result);
    }

    fn saw(&self, wanted: impl Fn(&VolumeEvent) -> bool) -> bool {
        self.seen.iter().any(wanted)
    }

    fn stop(&mut self) {
        let Self { reactor, fabric, volume: Some(volume), .. } = self else { panic!("no volume is attached") };
        volume.stop(reactor, fabric);
    }

    fn in_use(&self) -> usize {
        self.reactor.pool().in_use()
    }
}

fn restored(event: &VolumeEvent) -> bool {
    matches!(event, VolumeEvent::Restored)
}

fn lost(event: &VolumeEvent) -> bool {
    matches!(event, VolumeEvent::Lost(_))
}

fn gone(event: &VolumeEvent) -> bool {
    matches!(event, VolumeEvent::Gone(_))
}

fn failed(world: &mut World) -> HostError {
    world.run(|world| !world.seen.is_empty());
    match world.seen.remove(0) {
        VolumeEvent::Failed(error) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn data_written_in_the_capsule_and_by_rdma_read_comes_back() {
    let mut world = World::up(&Options::default());
    for (block, blocks) in [(0, 1), (1, 2), (10, 3), (20, 64)] {
        let write = world.write(block, blocks, u8::try_from(block + 1).unwrap());
        world.expect(write, Ok(()));
        let read = world.read(block, blocks);
        let done = world.finish(read);
        assert_eq!(done.result, Ok(()));
        let buffer = done.buffer.unwrap();
        assert_eq!(buffer.len(), blocks * BLOCK);
        assert!(buffer.iter().all(|&byte| u64::from(byte) == block + 1));
    }
}

#[test]
fn flush_zeroes_and_discard_reach_the_target() {
    let mut world = World::up(&Options::default());
    let write = world.write(4, 1, 7);
    world.expect(write, Ok(()));
    for op in [
        BlockOp::Flush,
        BlockOp::WriteZeroes { offset: 4 * 4096, len_bytes: 4096, may_deallocate: true, fua: true },
        BlockOp::Discard { offset: 5 * 4096, len_bytes: 8192 },
    ] {
        let ticket = world.submit(op).unwrap();
        let done = world.finish(ticket);
        assert!(done.result.is_ok() && done.buffer.is_none());
    }
    assert_eq!(world.target.executed, [Executed::Write(4, 7), Executed::Flush, Executed::Zeroes(4), Executed::Discard(5)]);
}

#[test]
fn geometry_is_what_the_target_identifies() {
    let (mut world, _) = World::new(&Options::default(), |_| {});
    let info = world.wait_up();
    assert_eq!((info.geometry.size_bytes, info.geometry.block_bytes), (256 * 4096, 4096));
    assert_eq!(info.geometry.max_transfer_bytes, 1 << 20);
    assert_eq!((info.io_queues, info.queue_depth), (1, 31));
    assert_eq!(info.identity.nguid.unwrap().0, [9; 16]);
}

#[test]
fn a_queue_takes_one_operation_less_than_it_has_entries() {
    let mut world = World::up(&Options { queue_size: 4, ..Options::default() });
    world.target.faults.mute = true;
    for block in 0..3 {
        world.read(block, 1);
    }
    let fourth = BlockOp::Flush;
    assert!(matches!(world.submit(fourth), Err(BlockOp::Flush)));
}

#[test]
fn buffers_all_come_back() {
    let mut world = World::up(&Options::default());
    let before = world.in_use();
    for round in 0..3 {
        let tickets: Vec<_> =
            (0..10).flat_map(|block| [world.write(block * 20, 1, 1), world.write(block * 20, 16, 2), world.read(block, 4)]).collect();
        if round == 1 {
            world.target.kill(&mut world.reactor, &mut world.fabric);
        }
        for ticket in tickets {
            world.expect(ticket, Ok(()));
        }
    }
    assert_eq!(world.in_use(), before);
}

#[test]
fn the_status_tells_what_was_done_and_where_the_volume_stands() {
    let mut world = World::up(&Options::default());
    let control = world.status.control();
    assert_eq!((control.state, control.io_queues, control.queue_depth, control.reconnects), (VolumeState::Live, 1, 31, 0));
    assert_eq!(control.cntlid.map(godwit_nvme::Cntlid::get), Some(5));
    assert_eq!((control.keep_alive, control.last_error), (Duration::from_secs(5), None));
    for block in 0..3 {
        let write = world.write(block, 2, 1);
        world.expect(write, Ok(()));
    }
    let flush = world.submit(BlockOp::Flush).unwrap();
    world.expect(flush, Ok(()));
    world.target.faults.status = Some((StatusCode::INTERNAL_ERROR.do_not_retry(), 1));
    let read = world.read(0, 1);
    world.expect(read, Err(BlockError::Io));
    let total = world.status.total();
    assert_eq!((total.writes.count(), total.writes.bytes, total.flushes.count(), total.reads.count()), (3, 6 * 4096, 1, 0));
    assert_eq!((total.errors, total.in_flight, total.waiting), (1, 0, 0));
    world.target.faults.mute_writes = true;
    let sent = world.write(1, 1, 1);
    world.run(|world| world.target.executed.len() == 6);
    assert_eq!((world.status.total().in_flight, world.status.total().waiting), (1, 0));
    world.target.faults = target::Faults { busy: 2, ..target::Faults::default() };
    world.target.kill(&mut world.reactor, &mut world.fabric);
    world.run(|world| world.saw(lost));
    let later = world.write(2, 1, 1);
    world.turn();
    assert_eq!((world.status.total().in_flight, world.status.total().waiting), (0, 2));
    assert_eq!(world.status.control().state, VolumeState::Lost);
    world.expect(sent, Ok(()));
    world.expect(later, Ok(()));
    let control = world.status.control();
    assert_eq!((control.state, control.reconnects, control.attempts), (VolumeState::Live, 1, 0));
    assert!(control.last_error.unwrap().1.contains("busy"));
    // It waited for the busy target.
    assert!(world.status.queues()[0].writes.latency.max().unwrap() > Duration::from_secs(1));
}

#[test]
fn writes_without_an_answer_are_replayed_in_order_when_the_target_comes_back() {
    let mut world = World::up(&Options::default());
    world.target.faults.mute_writes = true;
    let tickets = [world.write(1, 1, 1), world.write(2, 16, 2), world.write(3, 1, 3)];
    world.run(|world| world.target.executed.len() == 3);
    world.target.kill(&mut world.reactor, &mut world.fabric);
    let late = world.write(4, 1, 4);
    world.target.executed.clear();
    world.target.faults.mute_writes = false;
    for ticket in tickets {
        world.expect(ticket, Ok(()));
    }
    world.expect(late, Ok(()));
    let by_number = |executed: &Executed| matches!(executed, Executed::Write(2, _));
    // In-capsule data overtakes data that is fetched; within each kind the order shows.
    let order: Vec<_> = world.target.executed.iter().filter(|executed| !by_number(executed)).copied().collect();
    assert_eq!(order, [Executed::Write(1, 1), Executed::Write(3, 3), Executed::Write(4, 4)]);
    assert!(world.saw(lost) && world.saw(restored));
    assert_eq!(world.target.associations, 2);
}

/// Cuts the connections silently while an operation is under way, and tells how long after it was sent the next association was made. Without a fence that
/// would be after four seconds at most: one to two until the operation is overdue, and two in which the target could close its ends.
fn time_to_come_back(keep_alive: Duration, begin: impl FnOnce(&mut World) -> Ticket) -> Duration {
    let options = Options { keep_alive, io_timeout: Duration::from_secs(1), through_proxy: true, ..Options::default() };
    let (mut world, proxy) = World::new(&options, |_| {});
    let proxy = proxy.unwrap();
    world.wait_up();
    let operation = begin(&mut world);
    world.turn();
    let sent = Instant::now();
    proxy.set_silent(true);
    world.run(|world| world.saw(lost));
    proxy.set_silent(false);
    world.target.faults = target::Faults::default();
    world.run(|world| world.target.associations == 2);
    let time = sent.elapsed();
    world.expect(operation, Ok(()));
    time
}

#[test]
fn after_a_silent_cut_nothing_is_replayed_before_the_target_has_given_up() {
    let time = time_to_come_back(Duration::from_secs(4), |world| {
        world.target.faults.mute_writes = true;
        let write = world.write(1, 1, 1);
        world.run(|world| !world.target.executed.is_empty());
        write
    });
    // One timeout and its grace of two seconds.
    assert!(time >= Duration::from_millis(5900) && time < Duration::from_millis(8000), "{time:?}");
}

#[test]
fn after_a_silent_cut_with_nothing_under_way_that_could_land_the_volume_is_back_at_once() {
    let time = time_to_come_back(Duration::from_secs(4), |world| {
        world.target.faults.mute = true;
        world.read(1, 1)
    });
    assert!(time < Duration::from_millis(5500), "{time:?}");
}

#[test]
fn a_target_that_closed_the_connections_itself_is_replayed_to_at_once() {
    let mut world = World::up(&Options::default());
    world.target.faults.mute_writes = true;
    let write = world.write(1, 1, 1);
    world.run(|world| !world.target.executed.is_empty());
    world.target.faults.mute_writes = false;
    world.target.kill(&mut world.reactor, &mut world.fabric);
    world.run_at_most(Duration::from_secs(3), |world| world.saw(restored));
    world.expect(write, Ok(()));
}

#[test]
fn a_command_that_is_not_answered_in_time_ends_the_association() {
    let mut world = World::up(&Options { io_timeout: Duration::from_secs(1), ..Options::default() });
    world.target.faults.mute_writes = true;
    let write = world.write(1, 1, 1);
    world.run(|world| world.saw(lost));
    world.target.faults.mute_writes = false;
    world.expect(write, Ok(()));
    assert_eq!(world.target.associations, 2);
}

#[test]
fn a_target_that_does_not_answer_keep_alive_is_lost() {
    let mut world = World::up(&Options { keep_alive: Duration::from_secs(1), ..Options::default() });
    world.run_for(Duration::from_millis(1700));
    assert!(world.seen.is_empty(), "{:?}", world.seen);
    world.target.faults.mute = true;
    world.run(|world| world.saw(lost));
    world.target.faults.mute = false;
    world.run(|world| world.saw(restored));
}

fn misbehaviour_ends_the_association(misbehave: impl Fn(&mut FakeTarget, bool)) {
    let mut world = World::up(&Options::default());
    misbehave(&mut world.target, true);
    let tickets = [world.read(1, 1), world.read(2, 1)];
    world.run(|world| world.saw(lost));
    misbehave(&mut world.target, false);
    for ticket in tickets {
        world.expect(ticket, Ok(()));
    }
}

#[test]
fn an_answer_to_an_unknown_command_ends_the_association() {
    misbehaviour_ends_the_association(|target, yes| target.faults.wrong_cid = yes);
}

#[test]
fn a_second_answer_ends_the_association() {
    misbehaviour_ends_the_association(|target, yes| target.faults.twice = yes);
}

#[test]
fn an_invalidation_of_another_key_ends_the_association() {
    misbehaviour_ends_the_association(|target, yes| target.faults.wrong_key = yes);
}

#[test]
fn an_answer_without_invalidation_is_as_good() {
    let mut world = World::up(&Options::default());
    world.target.faults.no_invalidate = true;
    for _ in 0..100 {
        let read = world.read(1, 4);
        world.expect(read, Ok(()));
    }
    assert!(world.seen.is_empty());
}

#[test]
fn statuses_are_retried_or_told() {
    let mut world = World::up(&Options::default());
    world.target.faults.status = Some((StatusCode::INTERNAL_ERROR.retryable(), 2));
    let read = world.read(1, 1);
    world.expect(read, Ok(()));
    assert_eq!(world.target.executed.len(), 3);
    world.target.faults.status = Some((StatusCode::CAPACITY_EXCEEDED.do_not_retry(), 1));
    let write = world.write(1, 1, 1);
    world.expect(write, Err(BlockError::NoSpace));
    world.target.faults.status = Some((StatusCode::UNRECOVERED_READ_ERROR.do_not_retry(), 1));
    let read = world.read(1, 1);
    world.expect(read, Err(BlockError::Media));
}

#[test]
fn another_volume_in_its_place_ends_the_volume() {
    let mut world = World::up(&Options::default());
    world.target.faults.mute_writes = true;
    let write = world.write(1, 1, 1);
    world.run(|world| !world.target.executed.is_empty());
    world.target.nguid = [8; 16];
    world.target.executed.clear();
    world.target.kill(&mut world.reactor, &mut world.fabric);
    world.expect(write, Err(BlockError::VolumeGone));
    assert!(world.saw(|event| matches!(event, VolumeEvent::Gone(HostError::Identity(_)))), "{:?}", world.seen);
    assert!(world.target.executed.is_empty());
    let later = world.read(1, 1);
    world.expect(later, Err(BlockError::VolumeGone));
}

#[test]
fn a_volume_that_grew_goes_on_and_one_that_shrank_does_not() {
    let mut world = World::up(&Options::default());
    world.target.disk.resize(512 * BLOCK, 0);
    world.target.kill(&mut world.reactor, &mut world.fabric);
    world.run(|world| world.saw(restored));
    assert!(world.saw(|event| matches!(event, VolumeEvent::Resized(geometry) if geometry.size_bytes == 512 * 4096)));
    let last = world.read(511, 1);
    world.expect(last, Ok(()));
    world.target.disk.truncate(256 * BLOCK);
    world.target.kill(&mut world.reactor, &mut world.fabric);
    world.run(|world| world.saw(gone));
}

#[test]
fn growth_is_noticed_while_connected() {
    let mut world = World::up(&Options::default());
    world.target.disk.resize(300 * BLOCK, 0);
    world.run_for(Duration::from_millis(20));
    world.target.tell_change(&mut world.fabric);
    world.run(|world| world.saw(|event| matches!(event, VolumeEvent::Resized(geometry) if geometry.size_bytes == 300 * 4096)));
    let last = world.read(299, 1);
    world.expect(last, Ok(()));
    world.target.disk.resize(301 * BLOCK, 0);
    world.target.tell_change(&mut world.fabric);
    world.run(|world| world.saw(|event| matches!(event, VolumeEvent::Resized(geometry) if geometry.size_bytes == 301 * 4096)));
}

/// Nothing is read from or written to a namespace that has taken the place of ours at the target.
#[test]
fn another_namespace_in_the_place_of_ours_ends_the_volume() {
    let mut world = World::up(&Options::default());
    world.run_for(Duration::from_millis(20));
    world.target.nguid = [8; 16];
    world.target.tell_change(&mut world.fabric);
    world.run(|world| world.saw(gone));
    assert!(world.saw(|event| matches!(event, VolumeEvent::Gone(HostError::Identity(_)))), "{:?}", world.seen);
}

#[test]
fn operations_wait_for_a_namespace_that_is_taken_away_until_it_is_back() {
    let mut world = World::up(&Options::default());
    world.run_for(Duration::from_millis(20));
    world.target.namespaces.clear();
    world.target.tell_change(&mut world.fabric);
    world.run(|world| world.saw(lost));
    let control = world.status.control();
    assert!(control.last_error.as_ref().is_some_and(|(_, error)| error.contains("namespace 1")), "{control:?}");
    let write = world.write(1, 1, 7);
    world.run_for(Duration::from_millis(500));
    assert!(world.done.is_empty() && !world.saw(gone), "{:?}", world.seen);
    world.target.namespaces = vec![1];
    world.expect(write, Ok(()));
    assert!(world.saw(restored));
}

/// Changes that come faster than they are looked at: the last one counts.
#[test]
fn a_change_while_another_is_looked_at_is_not_missed() {
    let mut world = World::up(&Options::default());
    world.run_for(Duration::from_millis(20));
    world.target.tell_change(&mut world.fabric);
    world.run(|world| world.target.awaits_events());
    world.target.nguid = [8; 16];
    world.target.tell_change(&mut world.fabric);
    world.run(|world| world.saw(gone));
}

#[test]
fn a_loss_timeout_of_zero_fails_at_once() {
    let mut world = World::up(&Options { loss_timeout: LossTimeout::After(Duration::ZERO), ..Options::default() });
    let read = world.read(1, 1);
    world.target.kill(&mut world.reactor, &mut world.fabric);
    world.expect(read, Err(BlockError::VolumeGone));
    assert!(world.saw(gone));
    assert_eq!(world.target.associations, 1);
}

#[test]
fn a_lost_volume_is_given_up_when_the_timeout_is_over() {
    let mut world = World::up(&Options { loss_timeout: LossTimeout::After(Duration::from_secs(1)), ..Options::default() });
    world.target.faults.busy = usize::MAX;
    let lost_at = Instant::now();
    world.target.kill(&mut world.reactor, &mut world.fabric);
    let read = world.read(1, 1);
    world.expect(read, Err(BlockError::VolumeGone));
    let after = lost_at.elapsed();
    assert!(after >= Duration::from_millis(990) && after < Duration::from_secs(3), "{after:?}");
}

#[test]
fn a_volume_without_a_loss_timeout_waits() {
    let mut world = World::up(&Options { loss_timeout: LossTimeout::Never, ..Options::default() });
    world.target.faults.busy = 3;
    world.target.kill(&mut world.reactor, &mut world.fabric);
    let read = world.read(1, 1);
    world.expect(read, Ok(()));
    assert_eq!(world.target.associations, 5);
}

#[test]
fn what_was_not_sent_can_be_abandoned() {
    let mut world = World::up(&Options::default());
    world.target.faults.mute_writes = true;
    let sent = world.write(1, 1, 1);
    world.run(|world| !world.target.executed.is_empty());
    world.target.faults.mute_writes = false;
    world.target.kill(&mut world.reactor, &mut world.fabric);
    world.run(|world| world.saw(lost));
    let unsent = world.write(2, 1, 2);
    for ticket in [sent, unsent] {
        BlockQueue::<Uring>::abandon(world.volume().queue().unwrap(), ticket);
    }
    world.expect(unsent, Err(BlockError::Abandoned));
    world.expect(sent, Ok(()));
    assert!(!world.target.executed.contains(&Executed::Write(2, 2)));
}

#[test]
fn stopping_shuts_the_controller_down() {
    let mut world = World::up(&Options::default());
    world.stop();
    world.run(|world| world.saw(|event| matches!(event, VolumeEvent::Stopped)));
    assert!(world.target.shut_down);
}

/// Clients may go without a flush.
#[test]
fn stopping_flushes_what_was_written_before_it_shuts_the_controller_down() {
    let mut world = World::up(&Options::default());
    let write = world.write(1, 1, 7);
    world.expect(write, Ok(()));
    assert_ne!(world.target.durable, world.target.disk);
    world.stop();
    world.run(|world| world.saw(|event| matches!(event, VolumeEvent::Stopped)));
    assert_eq!(world.target.durable, world.target.disk);
    assert!(world.target.shut_down);
}

#[test]
fn stopping_waits_a_while_for_a_flush_and_no_longer() {
    let mut world = World::up(&Options::default());
    world.target.faults.mute_flushes = true;
    world.stop();
    world.run_at_most(Duration::from_secs(15), |world| world.saw(|event| matches!(event, VolumeEvent::Stopped)));
    assert!(world.target.shut_down);
}

#[test]
fn stopping_while_the_target_is_away_does_not_wait_for_it() {
    let mut world = World::up(&Options::default());
    world.target.faults.busy = usize::MAX;
    world.target.kill(&mut world.reactor, &mut world.fabric);
    world.run(|world| world.saw(lost));
    world.stop();
    world.run_at_most(Duration::from_secs(3), |world| world.saw(|event| matches!(event, VolumeEvent::Stopped)));
}

#[test]
fn the_first_attach_waits_for_a_busy_target() {
    let (mut world, _) = World::new(&Options::default(), |target| target.faults.busy = 1);
    world.wait_up();
    assert_eq!(world.target.associations, 2);
}

#[test]
fn the_first_attach_begins_anew_a_few_times_when_the_target_ends_the_connection_without_a_word() {
    let (mut world, _) = World::new(&Options::default(), |target| target.faults.hang_up = 3);
    world.wait_up();
    assert_eq!(world.target.associations, 4);
    let (mut world, _) = World::new(&Options::default(), |target| target.faults.hang_up = usize::MAX);
    let error = failed(&mut world).to_string();
    assert!(error.contains("closed by the peer") || error.contains("reset by peer"), "{error}");
    assert_eq!(world.target.associations, 4);
}

#[test]
fn the_first_attach_begins_anew_when_an_io_queue_is_not_answered() {
    let (mut world, _) = World::new(&Options::default(), |target| target.faults.mute_joins = 1);
    world.run_at_most(JOIN_TIMEOUT + Duration::from_secs(10), |world| !world.seen.is_empty());
    world.wait_up();
    assert_eq!(world.target.associations, 2);
}

#[test]
fn refusals_are_told_in_words() {
    let refused = |prepare: fn(&mut FakeTarget)| {
        let (mut world, _) = World::new(&Options::default(), prepare);
        failed(&mut world).to_string()
    };
    let host = refused(|target| target.faults.refuse = Some(godwit_nvme::ConnectRefusal::INVALID_HOST));
    assert!(host.contains("does not allow this host"), "{host}");
    let queue = refused(|target| target.faults.reject_io = Some(godwit_nvme::cm::RejectStatus::NO_RESOURCES));
    assert!(queue.starts_with("target refused: the target has no resources left"), "{queue}");
    let namespace = refused(|target| target.namespaces = vec![1, 4]);
    assert!(namespace.contains("(1, 4): choose one"), "{namespace}");
}

#[test]
fn the_namespace_is_the_one_asked_for() {
    let (mut world, _) = World::new(&Options { nsid: Some(4), ..Options::default() }, |target| target.namespaces = vec![1, 4]);
    assert_eq!(world.wait_up().identity.nsid, Nsid::new(4));
    let (mut world, _) = World::new(&Options { nsid: Some(2), ..Options::default() }, |target| target.namespaces = vec![1, 4]);
    assert_eq!(failed(&mut world).to_string(), "the subsystem has no namespace 2; it has 1, 4");
}

#[test]
fn an_address_without_a_target_is_told() {
    let (mut world, _) = World::new(&Options::default(), |target| target.port = 1);
    let error = failed(&mut world).to_string();
    assert!(error.starts_with("cannot connect"), "{error}");
}
