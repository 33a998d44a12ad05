//! The initiator's machine: a volume on one or two reactors of the simulator, and its user.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

use godwit_initiator::host::{Mailbox, TokenSpace, VolumeControl, VolumeEvent, VolumeSettings, VolumeThread};
use godwit_memory::Layout;
use godwit_rdma::Fabric;
use godwit_reactor::sim::{HostId, Sim, SimIncoming, World};
use godwit_reactor::{Event, Reactor, Token};

use super::load::Load;

/// The user's own timer.
const PACE: Token = Token(1);

/// The machine.
pub(super) struct HostMachine {
    // Field order is teardown order: what holds buffers goes before the reactors.
    threads: Vec<Thread>,
    sims: Vec<Sim>,
    received: Vec<Event<SimIncoming>>,
    events: Receiver<VolumeEvent>,
    pub(super) load: Load,
}

struct Thread {
    volume: VolumeThread,
    fabric: Fabric,
    woken: Arc<AtomicBool>,
}

impl HostMachine {
    /// Begins to attach a volume on so many reactors.
    pub(super) fn start(world: &World, threads: usize, pool: &Layout, settings: &VolumeSettings, load: Load) -> Self {
        let tokens = TokenSpace::new(0);
        let mut sims: Vec<_> = (0..threads).map(|_| world.host(pool)).collect();
        let flags: Vec<_> = sims.iter().map(|_| Arc::new(AtomicBool::new(false))).collect();
        let wake = |index: usize| {
            let flag: Arc<AtomicBool> = Arc::clone(&flags[index]);
            move || flag.store(true, Ordering::Relaxed)
        };
        let (tell, news) = channel();
        let (event, events) = channel();
        let (orders, inboxes): (Vec<_>, Vec<_>) = (0..threads).map(|_| channel()).unzip();
        let queues = orders.into_iter().enumerate().map(|(index, order)| Mailbox::new(order, wake(index))).collect();
        let control = VolumeControl::new(settings.clone(), tokens, queues, news, Mailbox::new(event, || {}));
        let mut control = Some(control);
        let mut made = Vec::new();
        for ((index, inbox), sim) in inboxes.into_iter().enumerate().zip(&mut sims) {
            let to_control = Mailbox::new(tell.clone(), wake(0));
            let mut volume = VolumeThread::new(tokens, index, control.take(), inbox, to_control, settings.io_timeout);
            let mut fabric = Fabric::new();
            volume.start(sim, &mut fabric);
            fabric.flush(sim);
            sim.set_timer(sim.now(), PACE);
            made.push(Thread { volume, fabric, woken: Arc::clone(&flags[index]) });
        }
        Self { threads: made, sims, received: Vec::new(), events, load }
    }

    pub(super) fn hosts(&self) -> impl Iterator<Item = HostId> {
        self.sims.iter().map(Sim::id)
    }

    /// What the volume has told.
    pub(super) fn told(&self) -> Option<VolumeEvent> {
        self.events.try_recv().ok()
    }

    /// Ends the volume in the orderly way.
    pub(super) fn stop(&mut self) {
        let Thread { volume, fabric, .. } = &mut self.threads[0];
        volume.stop(&mut self.sims[0], fabric);
        self.threads[0].woken.store(true, Ordering::Relaxed);
        self.turn();
    }

    /// Forgets the volume.
    pub(super) fn end(&mut self) {
        self.threads.clear();
    }

    /// Buffers that are not in their pools.
    pub(super) fn buffers_in_use(&self) -> usize {
        self.sims.iter().map(|sim| sim.pool().in_use()).sum()
    }

    /// Has the user look at its queues.
    pub(super) fn poke(&mut self) {
        for thread in &self.threads {
            thread.woken.store(true, Ordering::Relaxed);
        }
        self.turn();
    }

    /// Lets each reactor handle what has happened to it, until nothing has.
    pub(super) fn turn(&mut self) {
        loop {
            let mut quiet = true;
            for (index, (thread, sim)) in self.threads.iter_mut().zip(&mut self.sims).enumerate() {
                sim.take_events(&mut self.received);
                if thread.woken.swap(false, Ordering::Relaxed) {
                    self.received.push(Event::Woken);
                }
                if !self.received.is_empty() {
                    quiet = false;
                    thread.turn(index, sim, &mut self.received, &mut self.load);
                }
            }
            if quiet {
                return;
            }
        }
    }
}

impl Thread {
    fn turn(&mut self, index: usize, sim: &mut Sim, events: &mut Vec<Event<SimIncoming>>, load: &mut Load) {
        let Self { volume, fabric, .. } = self;
        let mut paced = false;
        for event in events.drain(..) {
            match (event.token(), event) {
                (Some(PACE), _) => paced = true,
                (Some(token), event) if Fabric::owns(token) => fabric.on_event(sim, event),
                (_, Event::Timer { token }) => assert!(volume.on_timer(sim, fabric, token), "a timer is someone's"),
                _ => {}
            }
        }
        while let Some((qp, completion)) = fabric.poll(sim) {
            // One of a queue pair that was just destroyed is no one's.
            let _ = volume.on_completion(sim, fabric, qp, completion);
        }
        volume.on_messages(sim, fabric);
        if let Some(queue) = volume.queue() {
            load.take_ends(index, queue);
            load.submit(index, sim, fabric, queue, paced);
        }
        if paced {
            sim.set_timer(sim.now() + load.pause(), PACE);
        }
        volume.pump(sim, fabric);
        fabric.flush(sim);
    }
}
