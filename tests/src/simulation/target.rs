//! The target's machine: its workers, each a reactor of the simulator, and the disk that outlives them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use godwit_memory::{ClassLayout, Layout};
use godwit_nvme::{BlockSize, Nqn, Nsid};
use godwit_rdma::Fabric;
use godwit_reactor::Event;
use godwit_reactor::sim::{Disk, HostId, Sim, SimIncoming, World};
use godwit_target::backend::{Description, Store};
use godwit_target::{AllowedHosts, Limits, Namespace, Portal, Subsystem, Target, Worker};
use uuid::Uuid;

use super::model::BLOCK_BYTES;

/// The volume's subsystem.
pub(super) const SUBSYSTEM: &str = "nqn.2026-11.org.example:simulated";

const IDENTITY: Uuid = Uuid::from_u128(0x5eed_0000_0000_4000_8000_0000_0000_0001);

/// The machine.
pub(super) struct TargetMachine {
    // Field order is teardown order: what holds buffers goes before the reactors.
    life: Option<Life>,
    sims: Vec<Sim>,
    events: Vec<Event<SimIncoming>>,
    world: World,
    pub(super) disk: Disk,
    pub(super) address: SocketAddr,
}

/// From a start of the daemon to its end.
struct Life {
    threads: Vec<Thread>,
    target: Arc<Target>,
}

struct Thread {
    worker: Worker<Sim>,
    fabric: Fabric,
    woken: Arc<AtomicBool>,
}

fn pool() -> Layout {
    let class = |buffer_bytes, count| ClassLayout { buffer_bytes, count };
    Layout::new(&[class(4096, 64), class(8192, 160), class(32 << 10, 4), class(128 << 10, 5), class(1 << 20, 3)]).expect("a sound layout")
}

impl TargetMachine {
    pub(super) fn new(world: &World, workers: usize, disk: Disk) -> Self {
        let sims = (0..workers).map(|_| world.host(&pool())).collect();
        let address = ([10, 0, 0, 1], 4420).into();
        Self { life: None, sims, events: Vec::new(), world: world.clone(), disk, address }
    }

    pub(super) fn hosts(&self) -> impl Iterator<Item = HostId> {
        self.sims.iter().map(Sim::id)
    }

    pub(super) fn is_up(&self) -> bool {
        self.life.is_some()
    }

    /// Starts the daemon.
    pub(super) fn start(&mut self) {
        assert!(self.life.is_none(), "it runs already");
        let size_bytes = self.disk.contents().len() as u64;
        let block_bytes = u32::try_from(BLOCK_BYTES).expect("a block is small");
        let store = Arc::new(Store::new(self.disk.clone(), Description::of_simulated_disk(size_bytes, block_bytes, IDENTITY)));
        let namespace = Namespace {
            nsid: Nsid::new(1),
            store: 0,
            block_size: BlockSize::B4096,
            size_bytes,
            read_only: false,
            can_deallocate: true,
            nguid: store.identity().nguid,
            uuid: store.identity().uuid,
        };
        let subsystem = Subsystem {
            nqn: Nqn::new(SUBSYSTEM).expect("a sound name"),
            hosts: AllowedHosts::Any,
            serial: "SIM1".into(),
            model: "Godwit".into(),
            namespaces: vec![namespace],
        };
        let workers = self.sims.len();
        let target = Arc::new(Target::new(vec![subsystem], vec![Portal::new(self.address)], Limits::default(), workers));
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..workers).map(|_| mpsc::channel()).unzip();
        let mut threads = Vec::new();
        for ((index, sim), incoming) in self.sims.iter_mut().enumerate().zip(receivers) {
            let stores = [Arc::clone(&store)];
            let worker = Worker::new(sim, index, Arc::clone(&target), &stores, incoming, senders.clone()).expect("enough memory");
            let woken = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&woken);
            target.set_wake(index, Box::new(move || flag.store(true, Ordering::Relaxed)));
            threads.push(Thread { worker, fabric: Fabric::new(), woken });
        }
        threads[0].worker.listen(&mut self.sims[0], self.address, 0).expect("the address is free");
        self.life = Some(Life { threads, target });
    }

    /// Ends the daemon as `kill -9` does. What it has handed to the disk may still happen.
    pub(super) fn kill(&mut self) {
        for sim in &self.sims {
            self.world.kill(sim.id());
        }
        self.life = None;
    }

    /// Tells the daemon to finish and to stop.
    pub(super) fn drain(&mut self) {
        if let Some(life) = &self.life {
            life.target.drain();
        }
        self.turn();
    }

    pub(super) fn is_drained(&self) -> bool {
        self.life.as_ref().is_some_and(|life| life.threads.iter().all(|thread| thread.worker.is_done()))
    }

    /// Ends the daemon after it has drained.
    pub(super) fn end(&mut self) {
        self.life = None;
    }

    /// Buffers that are not in their pools.
    pub(super) fn buffers_in_use(&self) -> usize {
        use godwit_reactor::Reactor;
        self.sims.iter().map(|sim| sim.pool().in_use()).sum()
    }

    /// Lets each worker handle what has happened to it, until nothing has.
    pub(super) fn turn(&mut self) {
        let Some(life) = &mut self.life else {
            self.sims.iter_mut().for_each(|sim| sim.take_events(&mut self.events));
            return self.events.clear();
        };
        loop {
            let mut quiet = true;
            for (thread, sim) in life.threads.iter_mut().zip(&mut self.sims) {
                sim.take_events(&mut self.events);
                if thread.woken.swap(false, Ordering::Relaxed) {
                    self.events.push(Event::Woken);
                }
                if !self.events.is_empty() {
                    quiet = false;
                    thread.turn(sim, &mut self.events);
                }
            }
            if quiet {
                return;
            }
        }
    }
}

impl Thread {
    fn turn(&mut self, sim: &mut Sim, events: &mut Vec<Event<SimIncoming>>) {
        let Self { worker, fabric, .. } = self;
        for event in events.drain(..) {
            if event.token().is_some_and(Fabric::owns) {
                fabric.on_event(sim, event);
            } else {
                worker.on_event(sim, fabric, event);
            }
        }
        while let Some((qp, completion)) = fabric.poll(sim) {
            worker.on_completion(sim, fabric, qp, completion);
        }
        worker.before_flush(sim, fabric);
        fabric.flush(sim);
        worker.after_flush(sim, fabric);
    }
}
