//! The same jobs on the simulator: reads that come in pieces, syncs that fail, power cuts.

use godwit_reactor::Time;
use godwit_reactor::sim::{Disk, Sim, World};
use uuid::Uuid;

use super::*;

const SIZE: usize = 256 << 10;

struct Host {
    world: World,
    sim: Sim,
    attached: Attached,
}

impl Host {
    fn new(world: &World, store: &Arc<Store<Disk>>) -> Self {
        let pool = Layout::new(&[ClassLayout { buffer_bytes: 4096, count: 4 }, ClassLayout { buffer_bytes: 128 << 10, count: 4 }]);
        let mut sim = world.host(&pool.unwrap());
        let attached = Attached::new(&mut sim, store).unwrap();
        Self { world: world.clone(), sim, attached }
    }

    fn run(&mut self, operation: Operation) -> Outcome {
        let mut progress = self.attached.start(&mut self.sim, operation, Token(1));
        let mut events = Vec::new();
        loop {
            let job = match progress {
                Progress::Working(job) => job,
                Progress::Done { result, buffer } => return (result, buffer),
            };
            self.world.advance(Time::from_nanos(u64::MAX)).expect("the disk answers");
            self.sim.take_events(&mut events);
            let Some(Event::File { token, done }) = events.pop() else { panic!("nothing but files here: {events:?}") };
            progress = self.attached.resume(&mut self.sim, job, done, token);
        }
    }

    fn write(&mut self, offset: u64, byte: u8, durable: bool) -> Result<(), BackendError> {
        let mut buffer = self.sim.pool().take(4096).unwrap();
        buffer.fill(byte);
        self.run(Operation::Write { offset, len: 4096, buffer, durable }).0
    }

    fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let buffer = self.sim.pool().take(len).unwrap();
        let (result, buffer) = self.run(Operation::Read { offset, len, buffer });
        result.unwrap();
        buffer.unwrap().to_vec()
    }
}

fn scene(seed: u64) -> (World, Disk, Arc<Store<Disk>>) {
    let disk = Disk::new(SIZE, Duration::from_micros(100));
    let description = Description::of_simulated_disk(SIZE as u64, 512, Uuid::from_u128(1));
    (World::new(seed), disk.clone(), Arc::new(Store::new(disk, description)))
}

#[test]
fn reads_that_come_in_pieces_of_any_size_are_put_together() {
    for seed in 1..50 {
        let (world, disk, store) = scene(seed);
        let mut host = Host::new(&world, &store);
        for block in 0..8_u8 {
            host.write(u64::from(block) * 4096, block + 1, false).unwrap();
        }
        host.run(Operation::Zero { offset: 4096 + 512, len: 1024, deallocate: true, durable: false }).0.unwrap();
        assert!(host.read(0, 32 << 10) == disk.contents()[..32 << 10], "seed {seed}");
        assert_eq!(disk.contents()[4096..4096 + 2048], [[2; 512], [0; 512], [0; 512], [2; 512]].concat());
    }
}

#[test]
fn what_was_durable_or_flushed_survives_every_power_cut() {
    for seed in 1..50 {
        let (world, disk, store) = scene(seed);
        let (mut one, mut other) = (Host::new(&world, &store), Host::new(&world, &store));
        one.write(0, 1, true).unwrap();
        one.write(4096, 2, false).unwrap();
        other.run(Operation::Flush).0.unwrap();
        one.run(Operation::Zero { offset: 0, len: 512, deallocate: false, durable: true }).0.unwrap();
        disk.cut_power(&mut godwit_reactor::sim::Random::new(seed));
        assert_eq!(other.read(0, 8192), [vec![0; 512], vec![1; 3584], vec![2; 4096]].concat(), "seed {seed}");
    }
}

#[test]
fn a_sync_that_failed_once_fails_on_every_host_although_the_disk_says_yes_again() {
    let (world, disk, store) = scene(7);
    let (mut one, mut other) = (Host::new(&world, &store), Host::new(&world, &store));
    one.write(0, 1, false).unwrap();
    disk.fail_next_sync();
    assert_eq!(other.run(Operation::Flush).0, Err(BackendError::SyncFailed));
    assert_eq!(one.run(Operation::Flush).0, Err(BackendError::SyncFailed));
    assert_eq!(one.write(0, 1, true), Err(BackendError::SyncFailed));
    assert_eq!(one.write(0, 1, false), Ok(()));
    assert!(store.sync_failed());
}
