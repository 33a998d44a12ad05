//! Listeners on RDMA devices: the connection manager's thread hands each connection to a reactor thread.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};

use godwit_rdma::verbs::{Listener, VerbsError};

use crate::{Handover, Target};

/// Where connections go.
struct Route {
    portal: u16,
    workers: Vec<Sender<Handover<godwit_reactor::Incoming>>>,
    target: Arc<Target>,
    next: AtomicUsize,
}

/// A listener that refuses connections until it is told where they go.
pub(super) struct RdmaListener {
    listener: Listener,
    route: Arc<OnceLock<Route>>,
}

impl RdmaListener {
    pub(super) fn bind(address: SocketAddr) -> Result<Self, VerbsError> {
        let route = Arc::new(OnceLock::<Route>::new());
        let deliver = {
            let route = Arc::clone(&route);
            move |incoming| {
                let Some(route) = route.get() else { return };
                let worker = route.next.fetch_add(1, Ordering::Relaxed) % route.workers.len();
                if route.workers[worker].send((route.portal, godwit_rdma::Incoming::Rdma(incoming))).is_ok() {
                    route.target.wake(worker);
                }
            }
        };
        Ok(Self { listener: Listener::bind(address, deliver)?, route })
    }

    pub(super) fn local_address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// Has connections go to the workers, in turn.
    pub(super) fn serve(&self, portal: u16, workers: Vec<Sender<Handover<godwit_reactor::Incoming>>>, target: Arc<Target>) {
        let _ = self.route.set(Route { portal, workers, target, next: AtomicUsize::new(0) });
    }
}
