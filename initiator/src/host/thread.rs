//! What one reactor thread has of a volume: its I/O queue, and on one of the threads the control.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use godwit_rdma::{Completion, Fabric, QpId};
use godwit_reactor::{Reactor, Token};

use super::error::HostError;
use super::fence::QueueEnd;
use super::io_queue::{IoQueue, QueueTimer};
use super::message::{FromQueue, Mailbox, News, Order, ToQueue};
use super::volume::VolumeControl;
use super::{TokenSpace, VolumeTimer};

/// One thread's part of a volume.
#[derive(Debug)]
pub struct VolumeThread {
    tokens: TokenSpace,
    /// Which queue of the volume this thread has, counted from 0.
    index: usize,
    control: Option<VolumeControl>,
    queue: Option<IoQueue>,
    orders: Receiver<ToQueue>,
    to_control: Mailbox<FromQueue>,
    io_timeout: Duration,
}

impl VolumeThread {
    /// The part of thread `index`, which gets its orders from `orders` and tells its news to `to_control`. One thread has the `control` too.
    pub fn new(
        tokens: TokenSpace,
        index: usize,
        control: Option<VolumeControl>,
        orders: Receiver<ToQueue>,
        to_control: Mailbox<FromQueue>,
        io_timeout: Duration,
    ) -> Self {
        let control = control.map(|control| control.with_mailbox(to_control.clone()));
        Self { tokens, index, control, queue: None, orders, to_control, io_timeout }
    }

    /// Begins to attach the volume, on the thread that has its control.
    pub fn start<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        if let Some(control) = &mut self.control {
            control.start(reactor, fabric);
        }
    }

    /// Ends the volume in an orderly way, on the thread that has its control.
    pub fn stop<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        if let Some(control) = &mut self.control {
            control.stop(reactor, fabric);
        }
    }

    /// From now on a lost target is waited for no longer than this. On the thread that has the control.
    pub fn limit_loss_timeout<R: Reactor>(&mut self, reactor: &mut R, limit: Duration) {
        if let Some(control) = &mut self.control {
            control.limit_loss_timeout(reactor, limit);
        }
    }

    /// The volume's queue on this thread, once there is one.
    pub fn queue(&mut self) -> Option<&mut IoQueue> {
        self.queue.as_mut()
    }

    /// Whether the target has commands of this thread's queue.
    pub fn expects_answers(&self) -> bool {
        self.queue.as_ref().is_some_and(IoQueue::expects_answers)
    }

    /// Handles a timer. False when it is not one of this volume.
    pub fn on_timer<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, token: Token) -> bool {
        match self.tokens.timer(token) {
            None => return false,
            Some(VolumeTimer::Control(timer)) => {
                if let Some(control) = &mut self.control {
                    control.on_timer(reactor, fabric, timer);
                }
            }
            Some(VolumeTimer::Queue(timer)) => {
                if let Some(queue) = &mut self.queue {
                    match timer {
                        QueueTimer::Link => queue.on_link_timer(reactor, fabric),
                        QueueTimer::Watch => queue.on_watch_timer(reactor, fabric),
                        QueueTimer::Retry => queue.on_retry_timer(),
                    }
                }
            }
        }
        true
    }

    /// Handles a completion. Hands it back when it is not one of this volume.
    ///
    /// # Errors
    ///
    /// The completion of another volume.
    pub fn on_completion<R: Reactor>(
        &mut self,
        reactor: &mut R,
        fabric: &mut Fabric,
        qp: QpId,
        completion: Completion,
    ) -> Result<(), Completion> {
        if let Some(queue) = self.queue.as_mut().filter(|queue| queue.owns(qp)) {
            queue.on_completion(reactor, fabric, completion);
        } else if let Some(control) = self.control.as_mut().filter(|control| control.owns(qp)) {
            control.on_completion(reactor, fabric, qp, completion);
        } else {
            return Err(completion);
        }
        Ok(())
    }

    /// Takes what other threads, and the other part on this one, have sent. Once a turn, after the completions.
    pub fn on_messages<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        loop {
            if let Some(control) = &mut self.control {
                control.on_news(reactor, fabric);
            }
            let Ok(ToQueue(order)) = self.orders.try_recv() else { return };
            self.on_order(reactor, fabric, order);
        }
    }

    fn on_order<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, order: Order) {
        match order {
            Order::Join(association, join) => {
                if self.queue.is_none() {
                    self.queue = IoQueue::new(reactor, self.index, self.tokens, self.to_control.clone(), self.io_timeout, &join);
                }
                match &mut self.queue {
                    Some(queue) => queue.join(reactor, fabric, association, join),
                    None => {
                        let news = News::Down(QueueEnd::HARMLESS, HostError::NoBuffers);
                        self.to_control.send(FromQueue { association, queue: self.index, news });
                    }
                }
            }
            Order::Restore(association, until) => {
                if let Some(queue) = &mut self.queue {
                    queue.restore(association, until);
                }
            }
            Order::Go(association) => {
                if let Some(queue) = &mut self.queue {
                    queue.go(reactor, association);
                }
            }
            Order::Leave(association) => {
                if let Some(queue) = &mut self.queue {
                    queue.leave(reactor, fabric, association);
                }
            }
            Order::Flush(association) => {
                if let Some(queue) = &mut self.queue {
                    queue.flush(reactor.now(), association);
                }
            }
            Order::Resize(geometry) => {
                if let Some(queue) = &mut self.queue {
                    queue.resize(geometry);
                }
            }
            Order::FailFast => {
                if let Some(queue) = &mut self.queue {
                    queue.fail_fast();
                }
            }
            Order::GiveUp => {
                if let Some(queue) = &mut self.queue {
                    queue.give_up(reactor, fabric);
                }
            }
        }
    }

    /// Sends what was submitted. Once a turn, before the fabric is flushed.
    pub fn pump<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        if let Some(queue) = &mut self.queue {
            queue.pump(reactor, fabric);
        }
    }
}
