//! Orders of the control thread: other stores, another offer.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use godwit_reactor::Reactor;

use super::{Context, Place, Worker};
use crate::association::SubsystemIndex;
use crate::backend::Attached;
use crate::limits::SPARE_STORES;
use crate::offer::{News, Order};
use crate::queue::{Phase, Purpose};

/// How often it is looked whether a store can be let go.
const LEAVING_INTERVAL: Duration = Duration::from_millis(10);

impl<R: Reactor> Worker<R> {
    /// Has the worker obey orders, which come with a wake-up. It sets memory aside for [`SPARE_STORES`] further stores.
    pub(crate) fn obey_orders(&mut self, reactor: &R, orders: Receiver<Order<R::File>>) {
        self.spare.extend((0..SPARE_STORES).filter_map(|_| Attached::buffer(reactor)));
        self.orders = Some(orders);
    }

    /// Carries out what has been ordered.
    pub(super) fn obey(&mut self, ctx: &mut Context<'_, R>) {
        while let Some(order) = self.orders.as_ref().and_then(|orders| orders.try_recv().ok()) {
            // Whoever asked may have given up waiting.
            match order {
                Order::Attach { number, store, counters, done } => {
                    let attached = match self.spare.pop() {
                        Some(buffer) => Attached::with_buffer(ctx.reactor, store, buffer).map_err(|(error, buffer)| {
                            self.spare.push(buffer);
                            error.to_string()
                        }),
                        None => Err("no memory is set aside for further namespaces".to_owned()),
                    };
                    let placed = attached.map(|attached| {
                        if self.places.len() <= number {
                            self.places.resize_with(number + 1, || None);
                        }
                        self.places[number] = Some(Place { attached, counters });
                    });
                    let _ = done.send(placed);
                }
                Order::Offer { offer, news, done } => {
                    self.offer = offer;
                    self.announce(ctx, &news);
                    let _ = done.send(Ok(()));
                }
                Order::Detach { number, done } => {
                    self.leaving.push((number, done));
                    self.let_go(ctx);
                }
            }
        }
    }

    /// Tells the hosts of this worker's controllers what is new to them.
    fn announce(&mut self, ctx: &mut Context<'_, R>, news: &Arc<News>) {
        for index in self.indices() {
            let Some(queue) = self.queues.get_mut(index) else { continue };
            let Phase::Admin(controller) = &mut queue.phase else { continue };
            if !controller.is_ready() {
                continue;
            }
            match controller.association.subsystem {
                SubsystemIndex::Discovery if news.discovery => controller.pending.note_discovery(),
                SubsystemIndex::Discovery => {}
                SubsystemIndex::Nvm(of) => {
                    let changed = news.namespaces.iter().filter(|(subsystem, _)| *subsystem == of);
                    changed.for_each(|&(_, nsid)| controller.pending.note_namespace(nsid));
                }
            }
            self.tell_events(ctx, index);
        }
    }

    fn is_used(&self, store: usize) -> bool {
        self.queues.iter().any(|(_, queue)| queue.slots.uses(store))
            || self.places.get(store).and_then(Option::as_ref).is_some_and(|place| place.attached.is_lent())
    }

    /// Lets stores go that no command names any more and nothing is sent from, and looks again later for the others.
    pub(super) fn let_go(&mut self, ctx: &mut Context<'_, R>) {
        let (staying, going): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.leaving).into_iter().partition(|(number, _)| self.is_used(*number));
        for (number, done) in going {
            if let Some(place) = self.places.get_mut(number).and_then(Option::take) {
                self.spare.extend(place.attached.detach(ctx.reactor));
            }
            let _ = done.send(Ok(()));
        }
        self.leaving = staying;
        if !self.leaving.is_empty() {
            let at = ctx.reactor.now() + LEAVING_INTERVAL;
            ctx.reactor.set_timer(at, Purpose::Detach.token());
        }
    }
}
