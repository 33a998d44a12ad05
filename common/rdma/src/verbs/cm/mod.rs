//! The connection manager's thread: one per process, for all queue pairs on RDMA devices.
//!
//! librdmacm reports through one event channel, and some of its calls may wait (siw connects its TCP stream within the call), so none of them is made by
//! a reactor thread. That sends [`Order`]s and gets [`News`] in its [`Inbox`].
//!
//! # Who may use a connection identifier
//!
//! An `rdma_cm_id` is used by one thread at a time: by this one, but for two times in its life. Between [`News::Resolved`] (or the delivery of an
//! [`Incoming`]) and the order that goes on with it, the reactor thread makes the queue pair; and the thread that runs `rdma_connect` has it
//! until it says [`Order::Called`]. Its queue pair is destroyed by this thread ([`Order::Shut`]), after which the device touches no buffer of it any
//! more: `ibv_destroy_qp` returns when the device is done with it. [`News::Drained`] says so, and is what gives buffers back. The identifier goes last
//! ([`Order::Forget`]), when the reactor thread has freed what it has on the device.

mod bell;
mod event;
mod id;
mod thread;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use nix::sys::eventfd::EventFd;

use super::error::VerbsError;
use crate::{Disconnect, QpId};
use bell::{bell, quiet, readable, ring, wait_for};
use event::Channel;
pub(super) use id::{CmId, Parameters, destroy_queue_pair};
use thread::Thread;

/// Names a connection identifier of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(u64);

/// Something that the thread is to do.
pub(super) enum Order {
    Listen {
        address: SocketAddr,
        deliver: Deliver,
        answer: SyncSender<Result<(Key, SocketAddr), VerbsError>>,
    },
    Unlisten(Key),
    /// Resolves an address.
    Connect {
        key: Key,
        address: SocketAddr,
        qp: QpId,
        inbox: Arc<Inbox>,
    },
    /// Connects, now that there is a queue pair.
    Start(Key, Parameters),
    /// `rdma_connect` has returned.
    Called(Key, Result<(), VerbsError>),
    /// Gives an incoming connection to a reactor thread.
    Adopt {
        key: Key,
        qp: QpId,
        inbox: Arc<Inbox>,
    },
    Accept(Key, Parameters),
    /// Refuses a connection, and destroys it.
    Reject(Key, Vec<u8>),
    /// Asks the peer to end the connection, whose posted work is done.
    Disconnect(Key),
    /// Ends a connection and destroys its queue pair.
    Shut(Key),
    /// Destroys the identifier. Nothing is told of it any more.
    Forget(Key),
    Exit,
}

/// Something that happened to a connection.
#[derive(Debug)]
pub(super) enum News {
    /// The address leads to a device: make a queue pair, and [`Order::Start`].
    Resolved(CmId),
    /// Messages may go both ways. To the side that was asked, whose queue pair is in use since it answered, this is that the peer has the answer.
    Established {
        private_data: Vec<u8>,
    },
    Rejected {
        private_data: Vec<u8>,
    },
    /// It could not be opened.
    Failed(Disconnect),
    /// It is over. True when the peer is known to know.
    Disconnected {
        known: bool,
    },
    /// Its device is being removed, or failed.
    DeviceGone,
    /// Its queue pair is destroyed.
    Drained,
}

/// News for the queue pairs of one reactor thread.
#[derive(Debug)]
pub(super) struct Inbox {
    news: Mutex<VecDeque<(QpId, News)>>,
    bell: EventFd,
}

impl Inbox {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { news: Mutex::default(), bell: bell()? })
    }

    /// A descriptor that can be read when there is news.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.bell.as_fd().try_clone_to_owned()
    }

    fn post(&self, qp: QpId, news: News) {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).push_back((qp, news));
        ring(&self.bell);
    }

    pub(super) fn take(&self) -> VecDeque<(QpId, News)> {
        quiet(&self.bell);
        std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until there is news, for a while.
    pub(super) fn wait(&self, limit: Duration) {
        wait_for(&mut [readable(self.bell.as_fd().as_raw_fd())], limit);
    }
}

/// A connection that a listener accepted and nobody has adopted yet. Dropping it refuses it.
pub struct Incoming {
    pub(super) key: Key,
    pub(super) id: CmId,
    pub(super) private_data: Vec<u8>,
    /// RDMA Reads that the peer answers at a time, and that it wants to have outstanding.
    pub(super) peer_inbound_reads: u8,
    pub(super) peer_outbound_reads: u8,
    pub(super) peer: Option<SocketAddr>,
    pub(super) local: Option<SocketAddr>,
    manager: Option<Arc<Manager>>,
}

impl Incoming {
    pub(super) fn manager(&self) -> Arc<Manager> {
        Arc::clone(self.manager.as_ref().expect("it is adopted once"))
    }

    /// Takes it over.
    pub(super) fn adopt(mut self, qp: QpId, inbox: Arc<Inbox>) -> Self {
        if let Some(manager) = self.manager.take() {
            manager.order(Order::Adopt { key: self.key, qp, inbox });
        }
        self
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(manager) = self.manager.take() {
            manager.order(Order::Reject(self.key, Vec::new()));
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Who gets the connections of a listener.
pub(super) type Deliver = Box<dyn Fn(Incoming) + Send>;

/// A listener on RDMA devices. Listens until it is dropped; at an unspecified address also on devices that come later, be it the first one.
#[derive(Debug)]
pub struct Listener {
    key: Key,
    address: SocketAddr,
    manager: Arc<Manager>,
}

impl Listener {
    /// Listens at an address; `deliver` is called, on a thread of the connection manager, with each connection that comes.
    ///
    /// # Errors
    ///
    /// Why there is nothing to listen on. At an unspecified address the want of a device is none: the log tells of it, and of the end of it.
    pub fn bind(address: SocketAddr, deliver: impl Fn(Incoming) + Send + 'static) -> Result<Self, VerbsError> {
        let manager = if may_wait(address) { Manager::get_early() } else { Manager::get() }?;
        let (answer, answered) = mpsc::sync_channel(1);
        manager.order(Order::Listen { address, deliver: Box::new(deliver), answer });
        let ended = || VerbsError::Call { call: "the connection manager", error: io::ErrorKind::BrokenPipe.into() };
        let (key, address) = answered.recv().map_err(|_| ended())??;
        Ok(Self { key, address, manager })
    }

    /// The bound address.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.manager.order(Order::Unlisten(self.key));
    }
}

/// Whether a listener at the address may begin before there is a device. The port has to be known by then.
fn may_wait(address: SocketAddr) -> bool {
    address.ip().is_unspecified() && address.port() != 0
}

/// A handle to the thread, which ends with the last one.
#[derive(Debug)]
pub(super) struct Manager {
    orders: Sender<Order>,
    bell: Arc<EventFd>,
    next: std::sync::atomic::AtomicU64,
}

static MANAGER: Mutex<Weak<Manager>> = Mutex::new(Weak::new());

impl Manager {
    /// The process's connection manager, started if need be.
    pub(super) fn get() -> Result<Arc<Self>, VerbsError> {
        Self::get_or_start(|| Channel::new().map(Some))
    }

    /// The same where there may be no device yet.
    fn get_early() -> Result<Arc<Self>, VerbsError> {
        Self::get_or_start(|| match Channel::new() {
            Err(error) if error.may_pass() => Ok(None),
            channel => channel.map(Some),
        })
    }

    fn get_or_start(channel: impl FnOnce() -> Result<Option<Channel>, VerbsError>) -> Result<Arc<Self>, VerbsError> {
        let mut current = MANAGER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(manager) = current.upgrade() {
            return Ok(manager);
        }
        let failed = |error| VerbsError::Call { call: "the connection manager's thread", error };
        let channel = channel()?;
        let bell = Arc::new(bell().map_err(failed)?);
        let (orders, received) = mpsc::channel();
        let manager = Arc::new(Self { orders: orders.clone(), bell: Arc::clone(&bell), next: std::sync::atomic::AtomicU64::new(1) });
        let thread = Thread {
            channel,
            orders: received,
            bell,
            back: orders,
            manager: Arc::downgrade(&manager),
            connections: HashMap::new(),
            listeners: HashMap::new(),
            devices: Vec::new(),
        };
        std::thread::Builder::new().name("rdma-cm".into()).spawn(move || thread.run()).map_err(failed)?;
        *current = Arc::downgrade(&manager);
        Ok(manager)
    }

    pub(super) fn order(&self, order: Order) {
        // The thread only ends with the last handle.
        let _ = self.orders.send(order);
        ring(&self.bell);
    }

    pub(super) fn new_key(&self) -> Key {
        Key(self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.order(Order::Exit);
    }
}
