//! A target on threads of the test, over memory.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use godwit_memory::{ClassLayout, Layout};
use godwit_nvme::{BlockSize, Nqn, Nsid};
use godwit_rdma::{Completion, Fabric};
use godwit_reactor::{Listener, PollBudget, Uring, UringConfig, Waker};
use godwit_target::backend::{OpenOptions, Source, Store};
use godwit_target::{AllowedHosts, Limits, Namespace, Portal, Subsystem, Target, Worker};

use crate::delayed::Delayed;

pub(crate) const VOLUME: &str = "nqn.2026-11.org.example:vol0";
pub(crate) const BLOCKS: u64 = 1024;

/// How a server is made.
pub(crate) struct Setup {
    pub(crate) workers: usize,
    pub(crate) limits: Limits,
    pub(crate) pool: Layout,
    pub(crate) hosts: AllowedHosts,
}

impl Default for Setup {
    fn default() -> Self {
        Self { workers: 1, limits: Limits::default(), pool: pool(2048, 8), hosts: AllowedHosts::Any }
    }
}

/// A pool with so many buffers for in-capsule data and for large transfers.
pub(crate) fn pool(capsules: usize, large: usize) -> Layout {
    let class = |buffer_bytes, count| ClassLayout { buffer_bytes, count };
    Layout::new(&[class(4096, 64), class(8192, capsules), class(128 << 10, 4), class(1 << 20, large)]).unwrap()
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) target: Arc<Target>,
    hold: Arc<AtomicBool>,
    interrupted: Arc<AtomicBool>,
    /// The worker that stands still, if there is one of this number.
    halted: Arc<AtomicUsize>,
    wakers: Vec<Waker>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(setup: Setup) -> Self {
        let size = BLOCKS * 4096;
        let store = Arc::new(Store::open(&OpenOptions::new(Source::Memory { size })).unwrap());
        let read_only = {
            let mut options = OpenOptions::new(Source::Memory { size: 4096 });
            options.read_only = true;
            Arc::new(Store::open(&options).unwrap())
        };
        let namespace = |nsid, index, store: &Store<_>| Namespace {
            nsid: Nsid::new(nsid),
            store: index,
            block_size: BlockSize::B4096,
            size_bytes: store.size_bytes(),
            read_only: store.read_only(),
            can_deallocate: true,
            nguid: store.identity().nguid,
            uuid: store.identity().uuid,
        };
        let subsystem = Subsystem {
            nqn: Nqn::new(VOLUME).unwrap(),
            hosts: setup.hosts,
            serial: "SN42".into(),
            model: "Godwit".into(),
            namespaces: vec![namespace(1, 0, &store), namespace(2, 1, &read_only)],
        };
        let stores = [store, read_only];
        let mut listener = Some(Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).unwrap());
        let address = listener.as_ref().unwrap().local_address().unwrap();
        let target = Arc::new(Target::new(vec![subsystem], vec![Portal::new(address)], setup.limits, setup.workers));
        let hold = Arc::new(AtomicBool::new(false));
        let interrupted = Arc::new(AtomicBool::new(false));
        let halted = Arc::new(AtomicUsize::new(usize::MAX));
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..setup.workers).map(|_| mpsc::channel()).unzip();
        let (ready, readiness) = mpsc::channel();
        let mut threads = Vec::new();
        for (index, receiver) in receivers.into_iter().enumerate() {
            let (target, senders, stores, hold, ready) =
                (Arc::clone(&target), senders.clone(), stores.clone(), Arc::clone(&hold), ready.clone());
            let (pool, listener) = (setup.pool.clone(), listener.take());
            let (interrupted, halted) = (Arc::clone(&interrupted), Arc::clone(&halted));
            threads.push(std::thread::spawn(move || {
                let ring = Uring::new(&UringConfig { pool, poll: PollBudget(std::time::Duration::ZERO) }).unwrap();
                let waker = ring.waker();
                let mut reactor = Delayed::new(ring, hold);
                let mut worker = Worker::new(&mut reactor, index, Arc::clone(&target), &stores, receiver, senders).unwrap();
                if let Some(listener) = listener {
                    worker.listen(&mut reactor, listener, 0).unwrap();
                }
                target.set_wake(
                    index,
                    Box::new({
                        let waker = waker.clone();
                        move || waker.wake()
                    }),
                );
                ready.send(waker).unwrap();
                let stands_still = || halted.load(Ordering::SeqCst) == index;
                run(&mut reactor, &mut worker, stands_still, &interrupted);
            }));
        }
        let wakers = (0..setup.workers).map(|_| readiness.recv().unwrap()).collect();
        Self { address, target, hold, interrupted, halted, wakers, threads }
    }

    /// Makes operations of backends take until [`Self::resume`].
    pub(crate) fn stall(&self) {
        self.hold.store(true, Ordering::SeqCst);
    }

    /// Stops each worker, until [`Self::resume`], when its fabric has closed a connection and before it hears of that.
    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
    }

    /// Has a worker stand still between two turns, until [`Self::go_on`].
    pub(crate) fn halt(&self, worker: usize) {
        self.halted.store(worker, Ordering::SeqCst);
        self.wakers[worker].wake();
    }

    pub(crate) fn go_on(&self) {
        self.halted.store(usize::MAX, Ordering::SeqCst);
    }

    pub(crate) fn resume(&self) {
        self.go_on();
        self.interrupted.store(false, Ordering::SeqCst);
        self.hold.store(false, Ordering::SeqCst);
        self.wakers.iter().for_each(Waker::wake);
    }

    /// Stops it in the orderly way and waits for its end.
    pub(crate) fn stop(mut self) {
        self.resume();
        self.target.drain();
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.resume();
        self.target.drain();
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a worker panicked");
        }
    }
}

fn run(reactor: &mut Delayed, worker: &mut Worker<Delayed>, stands_still: impl Fn() -> bool, interrupted: &AtomicBool) {
    let mut fabric = Fabric::new();
    let mut events = Vec::new();
    while !worker.is_done() {
        while stands_still() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        reactor.turn(&mut events).unwrap();
        for event in events.drain(..) {
            if event.token().is_some_and(Fabric::owns) {
                fabric.on_event(reactor, event);
            } else {
                worker.on_event(reactor, &mut fabric, event);
            }
        }
        while let Some((qp, completion)) = fabric.poll(reactor) {
            while matches!(completion, Completion::Disconnected { .. }) && interrupted.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            worker.on_completion(reactor, &mut fabric, qp, completion);
        }
        worker.before_flush(reactor, &mut fabric);
        fabric.flush(reactor);
        worker.after_flush(reactor, &mut fabric);
    }
}
