//! A reactor thread: one ring, one fabric, one worker, and the loop that joins them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use godwit_memory::Layout;
use godwit_rdma::Fabric;
use godwit_reactor::{BackingFile, Incoming, Listener, PollBudget, Uring, UringConfig};

use crate::backend::Store;
use crate::offer::Order;
use crate::{Handover, Target, Worker};

/// What a thread is made of.
pub(super) struct Thread {
    pub(super) index: usize,
    pub(super) target: Arc<Target>,
    pub(super) stores: Vec<Arc<Store<BackingFile>>>,
    pub(super) listeners: Vec<(u16, Listener)>,
    pub(super) incoming: Receiver<Handover<Incoming>>,
    pub(super) orders: Receiver<Order<BackingFile>>,
    pub(super) peers: Vec<Sender<Handover<Incoming>>>,
    pub(super) pool: Layout,
    pub(super) poll: Duration,
}

impl Thread {
    /// Works until it is told to stop. Calls `ready` once it does.
    pub(super) fn run(self, ready: impl FnOnce()) -> Result<(), String> {
        let mut ring = Uring::new(&UringConfig { pool: self.pool, poll: PollBudget(self.poll) }).map_err(|error| error.to_string())?;
        let target = Arc::clone(&self.target);
        let made = Worker::new(&mut ring, self.index, self.target, &self.stores, self.incoming, self.peers);
        let mut worker = made.map_err(|error| error.to_string())?;
        // The worker lets go of one that is taken away, and its file is to be closed then.
        drop(self.stores);
        worker.obey_orders(&ring, self.orders);
        for (portal, listener) in self.listeners {
            worker.listen(&mut ring, listener, portal).map_err(|error| format!("cannot listen: {error}"))?;
        }
        let waker = ring.waker();
        target.set_wake(self.index, Box::new(move || waker.wake()));
        ready();
        run(&mut ring, &mut worker).map_err(|error| format!("its io_uring failed: {error}"))
    }
}

fn run(ring: &mut Uring, worker: &mut Worker<Uring>) -> std::io::Result<()> {
    let mut fabric = Fabric::new();
    let mut events = Vec::with_capacity(1024);
    while !worker.is_done() {
        ring.turn(&mut events)?;
        for event in events.drain(..) {
            if event.token().is_some_and(Fabric::owns) {
                fabric.on_event(ring, event);
            } else {
                worker.on_event(ring, &mut fabric, event);
            }
        }
        while let Some((qp, completion)) = fabric.poll(ring) {
            worker.on_completion(ring, &mut fabric, qp, completion);
        }
        worker.before_flush(ring, &mut fabric);
        fabric.flush(ring);
        worker.after_flush(ring, &mut fabric);
    }
    Ok(())
}
