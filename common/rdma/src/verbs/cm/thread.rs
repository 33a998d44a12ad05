//! What the thread does: obeys orders, and listens to connections and devices.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;
use rdma_sys as sys;
use rdma_sys::rdma_cm_event_type as event_type;
use socket2::SockAddr;

use super::bell::{quiet, readable, ring, wait_for};
use super::event::{Channel, Heard, rejection, unreached};
use super::id::{destroy, shut};
use super::{CmId, Deliver, Inbox, Incoming, Key, Manager, News, Order, Parameters, may_wait};
use crate::verbs::device::{self, Device, check, make_nonblocking};
use crate::verbs::error::VerbsError;
use crate::{Disconnect, QpId};

/// How long the resolution of an address or a route may take, as with Linux' host.
const RESOLVE: i32 = 3000;

/// Connection requests of a listener that wait to be answered.
const BACKLOG: i32 = 128;

/// How often the thread looks whether a device in use is being unplugged.
const LOOK: Duration = Duration::from_secs(1);

/// How often a listener that has no device is bound anew.
const REBIND: Duration = Duration::from_secs(1);

pub(super) struct Connection {
    id: CmId,
    /// Who hears of it; nobody before it is adopted.
    user: Option<(QpId, Arc<Inbox>)>,
    active: bool,
    /// `rdma_connect` runs on another thread.
    calling: bool,
    /// To be shut, or forgotten, as soon as that has returned.
    shut: bool,
    forget: bool,
    /// It ended before it was adopted.
    ended: bool,
}

pub(super) struct Listening {
    id: Option<CmId>,
    address: SocketAddr,
    deliver: Deliver,
    /// When to bind anew, if there is no device yet or its device went away.
    rebind: Option<Instant>,
    /// What was told of it last.
    told: Option<String>,
}

impl Listening {
    /// Tells, once, what keeps the listener from a device that is there.
    fn tell(&mut self, error: &VerbsError) {
        let said = error.to_string();
        if !error.is_absence() && self.told.as_ref() != Some(&said) {
            tracing::warn!("cannot listen at {} yet: {said}", self.address);
            self.told = Some(said);
        }
    }
}

/// A device whose events are listened to.
pub(super) struct Watched {
    device: Device,
    /// An identifier that is there to keep the context open, and to be told when the device is unplugged: a listener on all devices is not.
    pin: Option<(Key, CmId)>,
    /// Its node was there to be seen.
    offered: bool,
    /// It is being unplugged, which waits until nobody uses it any more.
    unplugged: bool,
}

pub(super) struct Thread {
    /// Nothing before there is a device.
    pub(super) channel: Option<Channel>,
    pub(super) orders: Receiver<Order>,
    pub(super) bell: Arc<EventFd>,
    pub(super) back: Sender<Order>,
    pub(super) manager: Weak<Manager>,
    pub(super) connections: HashMap<Key, Connection>,
    pub(super) listeners: HashMap<Key, Listening>,
    /// Devices in use, or that were.
    pub(super) devices: Vec<Watched>,
}

impl Thread {
    pub(super) fn run(mut self) {
        loop {
            // A negative descriptor is not watched.
            let channel = self.channel.as_ref().map_or(-1, Channel::descriptor);
            let mut watched = vec![readable(channel), readable(self.bell.as_fd().as_raw_fd())];
            let devices: Vec<_> = self.devices.iter().map(|watched| watched.device).collect();
            // SAFETY: a context in use stays open: see `device`.
            watched.extend(devices.iter().map(|device| readable(unsafe { (*device.as_ptr()).async_fd })));
            let look = (!self.devices.is_empty()).then(|| Instant::now() + LOOK);
            let limit = self.listeners.values().filter_map(|listening| listening.rebind).chain(look).min();
            wait_for(&mut watched, limit.map_or(Duration::from_secs(3600), |at| at.saturating_duration_since(Instant::now())));
            quiet(&self.bell);
            while let Ok(order) = self.orders.try_recv() {
                if matches!(order, Order::Exit) {
                    return self.end();
                }
                self.obey(order);
            }
            while let Some(heard) = self.channel.as_ref().and_then(Channel::next) {
                self.hear(heard);
            }
            for (device, watch) in devices.into_iter().zip(&watched[2..]) {
                // Some may be gone since.
                if watch.revents != 0 && self.devices.iter().any(|watched| watched.device == device) {
                    self.hear_device(device);
                }
            }
            self.look_for_devices();
            self.rebind();
        }
    }

    /// Looks whether a device is being unplugged. Where ib_uverbs was loaded after rdma_cm, which modprobe does, it waits for the users of the device
    /// before rdma_cm tells them.
    fn look_for_devices(&mut self) {
        let gone = self.devices.iter_mut().filter(|watched| watched.offered && !watched.unplugged && !watched.device.is_offered());
        let gone: Vec<_> = gone.map(|watched| (watched.unplugged = true, watched.device).1).collect();
        for device in gone {
            let on_it = |id: CmId| id.device() == Some(device);
            let listeners = self.listeners.iter().filter(|(_, it)| it.id.is_some_and(on_it)).map(|(key, _)| *key);
            let connections = self.connections.iter().filter(|(_, it)| on_it(it.id)).map(|(key, _)| *key);
            let keys: Vec<_> = listeners.chain(connections).collect();
            keys.into_iter().for_each(|key| self.hear_removal(key));
            self.let_go();
        }
    }

    fn end(mut self) {
        for (_, listening) in self.listeners.drain() {
            if let Some(id) = listening.id {
                destroy(id);
            }
        }
        for (_, pin) in self.devices.drain(..).filter_map(|watched| watched.pin) {
            destroy(pin);
        }
        let mut calling = false;
        for (_, connection) in self.connections.drain() {
            calling |= connection.calling;
            if !connection.calling {
                shut(connection.id);
                destroy(connection.id);
            }
        }
        if calling {
            // `rdma_connect` uses the channel too, and is left to the process.
            std::mem::forget(self.channel);
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Listen { address, deliver, answer } => {
                let _ = answer.send(self.listen(address, deliver));
            }
            Order::Unlisten(key) => {
                if let Some(id) = self.listeners.remove(&key).and_then(|listening| listening.id) {
                    self.destroy(id);
                }
            }
            Order::Connect { key, address, qp, inbox } => match self.resolve(key, address) {
                Ok(id) => {
                    let connection =
                        Connection { id, user: Some((qp, inbox)), active: true, calling: false, shut: false, forget: false, ended: false };
                    self.connections.insert(key, connection);
                }
                Err(error) => {
                    inbox.post(qp, News::Failed(Disconnect::Connect(error.into())));
                    // There is nothing to shut, and so nobody who would say that it is done.
                    inbox.post(qp, News::Drained);
                }
            },
            Order::Start(key, parameters) => self.start(key, parameters),
            Order::Called(key, result) => self.called(key, result),
            Order::Adopt { key, qp, inbox } => {
                if let Some(connection) = self.connections.get_mut(&key) {
                    if connection.ended {
                        inbox.post(qp, News::Disconnected { known: true });
                    }
                    connection.user = Some((qp, inbox));
                }
            }
            Order::Accept(key, parameters) => {
                let Some(connection) = self.connections.get(&key) else { return };
                // SAFETY: the identifier is alive; the reactor thread is done with it.
                let result = parameters.with(|raw| unsafe { sys::rdma_accept(connection.id.as_ptr(), raw) });
                if let Err(error) = check("rdma_accept", result) {
                    self.tell(key, News::Failed(Disconnect::Connect(error.into())));
                }
            }
            Order::Reject(key, private_data) => {
                if let Some(connection) = self.connections.remove(&key) {
                    let length = u8::try_from(private_data.len()).unwrap_or(0);
                    // SAFETY: the identifier is alive, and the private data are as long as said.
                    unsafe { sys::rdma_reject(connection.id.as_ptr(), private_data.as_ptr().cast(), length) };
                    self.destroy(connection.id);
                }
            }
            Order::Disconnect(key) => {
                if let Some(connection) = self.connections.get(&key).filter(|connection| !connection.calling) {
                    // SAFETY: the identifier is alive. Fails only when the connection is over, which is told by an event.
                    unsafe { sys::rdma_disconnect(connection.id.as_ptr()) };
                }
            }
            Order::Shut(key) => {
                if let Some(connection) = self.connections.get_mut(&key) {
                    connection.shut = true;
                    self.finish(key);
                }
            }
            Order::Forget(key) => {
                if let Some(connection) = self.connections.get_mut(&key) {
                    connection.user = None;
                    connection.forget = true;
                    self.finish(key);
                }
            }
            Order::Exit => {}
        }
    }

    /// The channel, opened as soon as that is possible.
    fn channel(&mut self) -> Result<&Channel, VerbsError> {
        match &mut self.channel {
            Some(channel) => Ok(channel),
            none => Ok(none.insert(Channel::new()?)),
        }
    }

    fn listen(&mut self, address: SocketAddr, deliver: Deliver) -> Result<(Key, SocketAddr), VerbsError> {
        let manager = self.manager.upgrade().ok_or(VerbsError::Call { call: "listen", error: io::ErrorKind::BrokenPipe.into() })?;
        let key = manager.new_key();
        let mut listening = Listening { id: None, address, deliver, rebind: None, told: None };
        match self.bind(key, address) {
            Ok(id) => {
                listening.address = id.local().unwrap_or(address);
                listening.id = Some(id);
                self.listen_to_device(id);
            }
            Err(error) if error.may_pass() && may_wait(address) => {
                tracing::warn!("the listener at {address} waits for an RDMA device: {error}");
                listening.rebind = Some(Instant::now() + REBIND);
            }
            Err(error) => return Err(error),
        }
        let bound = listening.address;
        self.listeners.insert(key, listening);
        Ok((key, bound))
    }

    fn bind(&mut self, key: Key, address: SocketAddr) -> Result<CmId, VerbsError> {
        let id = self.channel()?.new_id(key)?;
        let mut reuse: i32 = 1;
        // SAFETY: the option is an int. Without it an address is only free again after a while.
        unsafe { sys::rdma_set_option(id.as_ptr(), 0, RDMA_OPTION_ID_REUSEADDR, (&raw mut reuse).cast(), size_of::<i32>()) };
        let raw = SockAddr::from(address);
        // SAFETY: the identifier and the address are alive.
        let result = check("rdma_bind_addr", unsafe { sys::rdma_bind_addr(id.as_ptr(), raw.as_ptr().cast_mut().cast()) });
        // SAFETY: the identifier is alive.
        let result = result.and_then(|()| check("rdma_listen", unsafe { sys::rdma_listen(id.as_ptr(), BACKLOG) }));
        result.map(|()| id).map_err(|error| {
            destroy(id);
            error.at(address)
        })
    }

    fn rebind(&mut self) {
        let now = Instant::now();
        let due: Vec<_> =
            self.listeners.iter().filter(|(_, it)| it.rebind.is_some_and(|at| at <= now)).map(|(key, it)| (*key, it.address)).collect();
        for (key, address) in due {
            let bound = self.bind(key, address).inspect(|&id| self.listen_to_device(id));
            if let Some(listening) = self.listeners.get_mut(&key) {
                match bound {
                    Ok(id) => {
                        tracing::info!("listening at {address} on RDMA devices now");
                        (listening.id, listening.rebind, listening.told) = (Some(id), None, None);
                    }
                    Err(error) => {
                        listening.rebind = Some(now + REBIND);
                        listening.tell(&error);
                    }
                }
            }
        }
    }

    fn resolve(&mut self, key: Key, address: SocketAddr) -> Result<CmId, VerbsError> {
        let id = self.channel()?.new_id(key)?;
        let raw = SockAddr::from(address);
        // SAFETY: the identifier and the address are alive.
        let result = unsafe { sys::rdma_resolve_addr(id.as_ptr(), ptr::null_mut(), raw.as_ptr().cast_mut().cast(), RESOLVE) };
        check("rdma_resolve_addr", result).map(|()| id).map_err(|error| {
            destroy(id);
            error.at(address)
        })
    }

    /// Runs `rdma_connect`, which may wait, on a thread of its own.
    fn start(&mut self, key: Key, parameters: Parameters) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let (id, back, bell) = (connection.id, self.back.clone(), Arc::clone(&self.bell));
        let call = move || {
            // The whole identifier moves here, not the pointer in it.
            let id: CmId = id;
            // SAFETY: the identifier is alive until this thread has said that it is done.
            let result = parameters.with(|raw| unsafe { sys::rdma_connect(id.as_ptr(), raw) });
            let _ = back.send(Order::Called(key, check("rdma_connect", result)));
            ring(&bell);
        };
        match std::thread::Builder::new().name("rdma-connect".into()).spawn(call) {
            Ok(_) => connection.calling = true,
            Err(error) => self.tell(key, News::Failed(Disconnect::Connect(error))),
        }
    }

    fn called(&mut self, key: Key, result: Result<(), VerbsError>) {
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.calling = false;
            if let Err(error) = result {
                self.tell(key, News::Failed(Disconnect::Connect(error.into())));
            }
            self.finish(key);
        }
    }

    /// Carries out what had to wait for `rdma_connect`.
    fn finish(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if connection.calling {
            return;
        }
        if std::mem::take(&mut connection.shut) {
            shut(connection.id);
            self.tell(key, News::Drained);
        }
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if connection.forget {
            let id = connection.id;
            self.connections.remove(&key);
            self.destroy(id);
        }
    }

    /// Destroys an identifier that nobody knows any more.
    fn destroy(&mut self, id: CmId) {
        // With nothing else to keep the context open, it may go with this one.
        let left = id.device().filter(|&device| !self.uses(device));
        self.devices.retain(|watched| watched.pin.is_some() || Some(watched.device) != left);
        destroy(id);
        self.let_go();
    }

    fn uses(&self, device: Device) -> bool {
        let listeners = self.listeners.values().filter_map(|listening| listening.id);
        listeners.chain(self.connections.values().map(|connection| connection.id)).any(|id| id.device() == Some(device))
    }

    /// Closes devices that are unplugged and that nothing is left on.
    fn let_go(&mut self) {
        while let Some(index) = self.devices.iter().position(|watched| watched.unplugged && !self.uses(watched.device)) {
            let watched = self.devices.swap_remove(index);
            if let Some((_, pin)) = watched.pin {
                // SAFETY: nothing is left on the device.
                unsafe { watched.device.cut_off() };
                destroy(pin);
            }
        }
    }

    fn tell(&self, key: Key, news: News) {
        if let Some((qp, inbox)) = self.connections.get(&key).and_then(|connection| connection.user.as_ref()) {
            inbox.post(*qp, news);
        }
    }

    /// Whether we opened the connection.
    fn is_active(&self, key: Key) -> bool {
        self.connections.get(&key).is_some_and(|connection| connection.active)
    }

    fn hear(&mut self, heard: Heard) {
        let key = heard.key;
        match heard.kind {
            event_type::RDMA_CM_EVENT_CONNECT_REQUEST => self.hear_request(heard),
            event_type::RDMA_CM_EVENT_ADDR_RESOLVED => {
                let Some(connection) = self.connections.get(&key) else { return };
                // SAFETY: the identifier is alive, and its address resolved.
                let result = unsafe { sys::rdma_resolve_route(connection.id.as_ptr(), RESOLVE) };
                if let Err(error) = check("rdma_resolve_route", result) {
                    self.tell(key, News::Failed(Disconnect::Connect(error.into())));
                }
            }
            event_type::RDMA_CM_EVENT_ROUTE_RESOLVED => {
                let Some(id) = self.connections.get(&key).map(|connection| connection.id) else { return };
                self.listen_to_device(id);
                self.tell(key, News::Resolved(id));
            }
            event_type::RDMA_CM_EVENT_ADDR_ERROR | event_type::RDMA_CM_EVENT_ROUTE_ERROR | event_type::RDMA_CM_EVENT_UNREACHABLE => {
                self.tell(key, News::Failed(Disconnect::Connect(unreached(heard.status))));
            }
            event_type::RDMA_CM_EVENT_CONNECT_ERROR => {
                let error = unreached(heard.status);
                self.tell(key, News::Failed(if self.is_active(key) { Disconnect::Connect(error) } else { Disconnect::Lost(error) }));
            }
            event_type::RDMA_CM_EVENT_REJECTED => self.tell(key, rejection(heard)),
            event_type::RDMA_CM_EVENT_ESTABLISHED => {
                self.tell(key, News::Established { private_data: heard.private_data });
            }
            event_type::RDMA_CM_EVENT_DISCONNECTED => {
                if let Some(connection) = self.connections.get_mut(&key) {
                    connection.ended = true;
                    // An error here: our question whether the peer agrees stayed without an answer.
                    self.tell(key, News::Disconnected { known: heard.status == 0 });
                }
            }
            event_type::RDMA_CM_EVENT_DEVICE_REMOVAL => self.hear_removal(key),
            _ => {}
        }
    }

    fn hear_request(&mut self, heard: Heard) {
        let Some(id) = heard.id else { return };
        let (Some(manager), true) = (self.manager.upgrade(), self.listeners.contains_key(&heard.key)) else { return destroy(id) };
        let key = manager.new_key();
        // SAFETY: the new identifier is this thread's; its context becomes its own number.
        unsafe { (*id.as_ptr()).context = ptr::without_provenance_mut(usize::try_from(key.0).unwrap_or(usize::MAX)) };
        let incoming = Incoming {
            key,
            id,
            private_data: heard.private_data,
            peer_inbound_reads: heard.initiator_depth,
            peer_outbound_reads: heard.responder_resources,
            peer: id.peer(),
            local: id.local(),
            manager: Some(manager),
        };
        let connection = Connection { id, user: None, active: false, calling: false, shut: false, forget: false, ended: false };
        self.connections.insert(key, connection);
        self.listen_to_device(id);
        if let Some(listening) = self.listeners.get(&heard.key) {
            (listening.deliver)(incoming);
        }
    }

    fn hear_removal(&mut self, key: Key) {
        if let Some(listening) = self.listeners.get_mut(&key) {
            listening.rebind = Some(Instant::now() + REBIND);
            if let Some(id) = listening.id.take() {
                tracing::warn!(
                    "the RDMA device of the listener at {} goes away; it listens again when the address is back",
                    listening.address
                );
                self.unplugged(id);
                self.destroy(id);
            }
        } else if let Some(connection) = self.connections.get_mut(&key) {
            connection.ended = true;
            let id = connection.id;
            self.unplugged(id);
            self.tell(key, News::DeviceGone);
        } else if let Some(watched) = self.devices.iter_mut().find(|watched| watched.pin.is_some_and(|(pin, _)| pin == key)) {
            watched.unplugged = true;
            self.let_go();
        }
    }

    fn unplugged(&mut self, id: CmId) {
        let device = id.device();
        for watched in self.devices.iter_mut().filter(|watched| Some(watched.device) == device) {
            watched.unplugged = true;
        }
    }

    fn listen_to_device(&mut self, id: CmId) {
        let Some(device) = id.device() else { return };
        if !self.devices.iter().any(|watched| watched.device == device) {
            // SAFETY: the context of a living identifier is open.
            let descriptor = unsafe { (*device.as_ptr()).async_fd };
            if make_nonblocking(descriptor).is_ok() {
                let pin = self.pin(id);
                self.devices.push(Watched { device, pin, offered: device.is_offered(), unplugged: false });
            }
        }
    }

    /// An identifier of our own on the device of another.
    fn pin(&self, id: CmId) -> Option<(Key, CmId)> {
        let mut address = id.local()?;
        address.set_port(0);
        let key = self.manager.upgrade()?.new_key();
        let pin = self.channel.as_ref()?.new_id(key).ok()?;
        let raw = SockAddr::from(address);
        // SAFETY: the identifier and the address are alive.
        let bound = check("rdma_bind_addr", unsafe { sys::rdma_bind_addr(pin.as_ptr(), raw.as_ptr().cast_mut().cast()) });
        if bound.is_err() || pin.device() != id.device() {
            destroy(pin);
            return None;
        }
        Some((key, pin))
    }

    /// Asynchronous events of a device.
    fn hear_device(&mut self, device: Device) {
        loop {
            let mut event = MaybeUninit::<sys::ibv_async_event>::zeroed();
            // SAFETY: the context is open, the event is written to.
            if unsafe { sys::ibv_get_async_event(device.as_ptr(), event.as_mut_ptr()) } != 0 {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::WouldBlock
                    && let Some(index) = self.devices.iter().position(|watched| watched.device == device)
                    && let Some((_, pin)) = self.devices.swap_remove(index).pin
                {
                    destroy(pin);
                }
                return;
            }
            // SAFETY: only the place is named, inside the event.
            let kind = unsafe { &raw const (*event.as_ptr()).event_type };
            // SAFETY: the kind is a C enumeration, of which the kernel may know more members than we do: it is read as a number.
            let kind = unsafe { kind.cast::<u32>().read() };
            // SAFETY: only the place is named, inside the event.
            let qp = unsafe { &raw const (*event.as_ptr()).element };
            // SAFETY: all members of the union are as large or smaller, and zeroed before; as a pointer it is only compared.
            let qp = unsafe { qp.cast::<*mut sys::ibv_qp>().read() };
            match kind {
                QP_FATAL | QP_REQ_ERR | QP_ACCESS_ERR => {
                    if let Some(key) = self.connection_of(qp) {
                        self.tell(key, News::Disconnected { known: false });
                    }
                }
                COMM_EST => {
                    if let Some(connection) = self.connection_of(qp).and_then(|key| self.connections.get(&key)) {
                        // The first message came before the last word of the handshake: the handshake is over.
                        // SAFETY: the identifier is alive.
                        unsafe { device::notify(connection.id.as_ptr(), COMM_EST) };
                    }
                }
                DEVICE_FATAL => {
                    tracing::error!("the RDMA device {} has failed", device.name());
                    let on_it: Vec<_> =
                        self.connections.iter().filter(|(_, it)| it.id.device() == Some(device)).map(|(key, _)| *key).collect();
                    for key in on_it {
                        self.tell(key, News::DeviceGone);
                    }
                }
                PORT_ERR => tracing::warn!("a port of the RDMA device {} is down", device.name()),
                PORT_ACTIVE => tracing::info!("a port of the RDMA device {} is up", device.name()),
                CQ_ERR => tracing::error!("a completion queue of the RDMA device {} has failed", device.name()),
                _ => {}
            }
            // SAFETY: the event was got, and is acknowledged once.
            unsafe { sys::ibv_ack_async_event(event.as_mut_ptr()) };
        }
    }

    fn connection_of(&self, qp: *mut sys::ibv_qp) -> Option<Key> {
        // SAFETY: the identifiers are alive; their queue pairs are only compared.
        self.connections.iter().find(|(_, it)| !qp.is_null() && unsafe { (*it.id.as_ptr()).qp } == qp).map(|(key, _)| *key)
    }
}

const RDMA_OPTION_ID_REUSEADDR: i32 = 1;

const CQ_ERR: u32 = 0;
const QP_FATAL: u32 = 1;
const QP_REQ_ERR: u32 = 2;
const QP_ACCESS_ERR: u32 = 3;
const COMM_EST: u32 = 4;
const DEVICE_FATAL: u32 = 8;
const PORT_ACTIVE: u32 = 9;
const PORT_ERR: u32 = 10;
