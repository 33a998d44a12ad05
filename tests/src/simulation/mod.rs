//! Target and initiator in one thread, over a network, a clock and a disk that come from a seed.
//!
//! A [`Simulation`] joins the target's workers and the initiator's volume, both as the daemons have them, and a user who submits random operations and
//! checks each result against a [`model`]. Tests do to it what happens to machines: see [`faults`]. The same seed gives the same run.

pub mod faults;
mod host;
mod journal;
mod load;
pub mod model;
mod target;

use std::sync::Arc;
use std::time::Duration;

use godwit_initiator::host::{Endpoint, LossTimeout, Names, Resolver, Uncounted, VolumeEvent, VolumeSettings, VolumeStatus};
use godwit_memory::{ClassLayout, Layout};
use godwit_nvme::{HostId, Nqn, Nsid, QueueSize};
use godwit_rdma::{FpduSize, Transport};
use godwit_reactor::Time;
use godwit_reactor::sim::{Disk, HostId as SimHostId, Random, World};

use host::HostMachine;
pub use journal::Journal;
use load::Load;
use model::BLOCK_BYTES;
use target::{SUBSYSTEM, TargetMachine};

/// How long the disk takes for an operation at most when nothing is wrong with it.
pub const QUICK: Duration = Duration::from_millis(1);

/// How long anything may take that is to happen, in simulated time: several keep alive timeouts and the slowest disk.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a simulation is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Blocks of the volume.
    pub blocks: usize,
    /// Reactors of the target.
    pub workers: usize,
    /// Reactors of the initiator, with an I/O queue each.
    pub queues: usize,
    /// Keep alive timeout.
    pub keep_alive: Duration,
    /// How long a command may take before the initiator gives its association up.
    pub io_timeout: Duration,
    /// How long it may take from then on, after it was to be aborted.
    pub abort_timeout: Duration,
    /// Until a lost volume is given up.
    pub loss_timeout: LossTimeout,
    /// Bytes of acknowledged writes of which the initiator retains copies.
    pub retain_bytes: usize,
    /// What it makes of the return of a target that does not count.
    pub uncounted: Uncounted,
    /// Whether iWARP checks its frames.
    pub crc: bool,
    /// Whether the user may take every buffer that the initiator has.
    pub scarce_buffers: bool,
}

impl Options {
    /// One of the many ways in which it can be set up.
    pub fn draw(random: &mut Random) -> Self {
        let mut one_or_two = || if random.below(2) == 0 { 1 } else { 2 };
        let (workers, queues) = (one_or_two(), one_or_two());
        let io_timeout = Duration::from_secs([2, 8, 60][usize::try_from(random.below(3)).unwrap_or(0)]);
        Self {
            blocks: if random.below(2) == 0 { 96 } else { 16 },
            workers,
            queues,
            keep_alive: Duration::from_secs(if random.below(4) == 0 { 15 } else { 5 }),
            io_timeout,
            abort_timeout: Duration::from_secs(random.below(3)),
            loss_timeout: LossTimeout::Never,
            retain_bytes: 0,
            uncounted: Uncounted::Trust,
            crc: random.below(4) == 0,
            scarce_buffers: random.below(3) == 0,
        }
    }
}

/// How often something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Operations that succeeded.
    pub succeeded: u64,
    /// Operations that ended with the volume.
    pub gone: u64,
    /// Times that the target was lost.
    pub lost: u64,
    /// Times that it came back.
    pub restored: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Flushes and forced writes that failed for writes before them that were lost.
    pub told: u64,
    /// Times that lost writes were written again from copies.
    pub restorations: u64,
    /// When it ended.
    pub ended: Time,
}

/// A target, an initiator, and all between and below them.
pub struct Simulation {
    world: World,
    random: Random,
    target: TargetMachine,
    host: HostMachine,
    tally: Tally,
    status: Arc<VolumeStatus>,
    up: bool,
    stopped: bool,
    given_up: bool,
}

impl Simulation {
    /// Starts both, and waits until the volume is up.
    pub fn start(seed: u64, options: &Options) -> Self {
        let world = World::new(seed);
        let disk = Disk::new(options.blocks * BLOCK_BYTES, QUICK);
        let mut target = TargetMachine::new(&world, options.workers, disk);
        target.start();
        let settings = VolumeSettings {
            name: "simulated".to_owned(),
            addresses: vec![
                Endpoint { transport: Transport::Iwarp, address: target.address, crc: options.crc, fpdu: FpduSize::Large }.into(),
            ],
            discovery: None,
            resolver: Resolver::default(),
            names: Names {
                subsystem: Nqn::new(SUBSYSTEM).expect("a sound name"),
                host: Nqn::new("nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555").expect("a sound name"),
                host_id: HostId([1; 16]),
            },
            nsid: Some(Nsid::new(1)),
            keep_alive: options.keep_alive,
            queue_size: QueueSize::new(32).expect("not zero"),
            reconnect_delay: Duration::from_millis(500),
            seed,
            fast_io_fail: None,
            loss_timeout: options.loss_timeout,
            io_timeout: options.io_timeout,
            abort_timeout: options.abort_timeout,
            retain_bytes: options.retain_bytes,
            uncounted: options.uncounted,
            known_unsafe_shutdowns: None,
            read_only: false,
            status: VolumeStatus::new(options.queues),
        };
        let class = |buffer_bytes, count| ClassLayout { buffer_bytes, count };
        let pool = if options.scarce_buffers {
            Layout::new(&[class(4096, 8), class(16 << 10, 4), class(128 << 10, 4)]).expect("a sound layout")
        } else {
            Layout::of_total(Layout::MINIMUM_BYTES)
        };
        let mut load = Load::new(seed ^ 0x10AD, options.blocks, options.queues);
        load.may_be_gone = options.loss_timeout != LossTimeout::Never;
        if options.uncounted == Uncounted::Fail {
            load.model.promise(options.queues, options.retain_bytes > 0);
        }
        let host = HostMachine::start(&world, options.queues, &pool, &settings, load);
        let random = Random::new(seed ^ 0xFA17);
        let tally = Tally::default();
        let status = Arc::clone(&settings.status);
        let mut simulation = Self { world, random, target, host, tally, status, up: false, stopped: false, given_up: false };
        simulation.run_until("the volume is up", |simulation| simulation.up);
        simulation
    }

    /// How often things happened so far.
    pub fn tally(&self) -> Tally {
        let Load { succeeded, gone, told, .. } = self.host.load;
        let restorations = self.status.control().restorations;
        Tally { succeeded, gone, told, restorations, ended: self.world.now(), ..self.tally }
    }

    /// Whether the volume was given up.
    pub fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// Moves to what happens next, but not beyond `until`. False when there is nothing before it.
    fn step(&mut self, until: Time) -> bool {
        let Some(host) = self.world.advance(until) else { return false };
        if self.target.hosts().any(|id| id == host) {
            self.target.turn();
        } else {
            self.host.turn();
        }
        self.hear();
        true
    }

    /// Takes what the volume tells.
    fn hear(&mut self) {
        while let Some(event) = self.host.told() {
            tracing::info!("{:?}: {event:?}", self.world.now());
            match event {
                VolumeEvent::Up(_) => self.up = true,
                VolumeEvent::Lost(_) => self.tally.lost += 1,
                VolumeEvent::Restored => {
                    self.tally.restored += 1;
                    self.host.load.model.reconnected();
                    let running = self.world.disk_changes(&self.target.disk);
                    assert_eq!(running, 0, "changes of the old association were still in the backend when the new one came up");
                }
                VolumeEvent::Gone(_) if self.host.load.may_be_gone => {
                    self.given_up = true;
                    self.rest(true);
                }
                VolumeEvent::Stopped => self.stopped = true,
                VolumeEvent::Resized(_) | VolumeEvent::Gone(_) | VolumeEvent::Failed(_) => panic!("{event:?}"),
            }
        }
    }

    /// Lets so much time pass.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.world.now() + time;
        while self.step(until) {}
    }

    /// Lets time pass until something holds.
    ///
    /// # Panics
    ///
    /// When it does not come to that.
    pub fn run_until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let until = self.world.now() + PATIENCE;
        while !holds(self) {
            assert!(self.step(until), "not within {PATIENCE:?}: {what}; {} operations wait", self.host.load.outstanding());
        }
    }

    /// Has the user submit nothing for now, or go on.
    pub fn rest(&mut self, resting: bool) {
        self.host.load.resting = resting;
    }

    /// Waits until all operations have ended.
    pub fn finish_operations(&mut self) {
        self.rest(true);
        self.host.poke();
        self.hear();
        self.run_until("all operations end", |simulation| simulation.host.load.outstanding() == 0);
    }

    /// Everything ends, and what is left is what must be: all answered, all data as acknowledged, all buffers in their pools.
    pub fn finish(&mut self) -> Tally {
        self.finish_operations();
        // What is still under way somewhere, of whatever association, lands within this time.
        self.run_for(Duration::from_secs(60));
        self.host.load.read_everything();
        self.finish_operations();
        self.host.load.model.check_disk(&self.target.disk.contents());
        self.host.load.flush();
        self.finish_operations();
        let tally = self.tally();
        if self.random.below(2) == 0 {
            self.stop();
        } else {
            self.target.kill();
        }
        self.world.cut_power(&self.target.disk);
        self.host.load.model.cut_power_for_good();
        self.host.load.model.check_disk(&self.target.disk.contents());
        self.check_buffers();
        tally
    }

    /// Ends both in the orderly way.
    fn stop(&mut self) {
        self.host.stop();
        self.hear();
        self.run_until("the volume stops", |simulation| simulation.stopped);
        self.target.drain();
        self.run_until("the target drains", |simulation| simulation.target.is_drained());
        self.target.end();
    }

    /// Ends what there is, and counts the buffers.
    pub fn check_buffers(&mut self) {
        if self.target.is_up() {
            self.target.kill();
        }
        self.run_for(Duration::from_secs(60));
        self.host.end();
        assert_eq!(self.host.buffers_in_use(), 0, "buffers of the initiator");
        assert_eq!(self.target.buffers_in_use(), 0, "buffers of the target");
    }

    fn pairs(&self) -> Vec<(SimHostId, SimHostId)> {
        self.host.hosts().flat_map(|host| self.target.hosts().map(move |target| (host, target))).collect()
    }

    fn draw(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn draw_millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.draw(to - from))
    }
}

impl std::fmt::Debug for Simulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation").field("world", &self.world).field("tally", &self.tally()).finish_non_exhaustive()
    }
}
