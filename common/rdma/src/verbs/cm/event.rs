//! The event channel, and what its events say.

use std::io;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};

use rdma_sys as sys;
use rdma_sys::rdma_cm_event_type as event_type;

use super::{CmId, Key, News};
use crate::Disconnect;
use crate::verbs::device::{self, check, make_nonblocking};
use crate::verbs::error::{self, VerbsError};

/// Reject of InfiniBand's connection manager: nobody listens, and refused by its consumer, whose private data then count.
const REJECTED_NO_LISTENER: i32 = 8;
const REJECTED_BY_CONSUMER: i32 = 28;

/// The event channel of librdmacm.
#[derive(Debug)]
pub(super) struct Channel(NonNull<sys::rdma_event_channel>);

// SAFETY: one thread, the manager's, uses it.
unsafe impl Send for Channel {}

impl Channel {
    /// Opens a channel. librdmacm needs a device for its first one, and looks for devices anew as long as it has seen none.
    pub(super) fn new() -> Result<Self, VerbsError> {
        // One that it has seen and that is unplugged counts: it goes by its list.
        if let Some(obstacle) = error::obstacle().filter(|obstacle| !matches!(obstacle, VerbsError::NoDevice)) {
            return Err(obstacle);
        }
        // SAFETY: no arguments.
        let channel = NonNull::new(unsafe { sys::rdma_create_event_channel() });
        let channel = Self(channel.ok_or_else(|| error::obstacle().unwrap_or_else(|| device::last("rdma_create_event_channel")))?);
        make_nonblocking(channel.descriptor())?;
        Ok(channel)
    }

    pub(super) fn descriptor(&self) -> RawFd {
        // SAFETY: the channel is open.
        unsafe { (*self.0.as_ptr()).fd }
    }

    pub(super) fn new_id(&self, Key(key): Key) -> Result<CmId, VerbsError> {
        let mut id = ptr::null_mut();
        // The context carries a number, not an address.
        let context = ptr::without_provenance_mut(usize::try_from(key).unwrap_or(usize::MAX));
        // SAFETY: the channel is open, the identifier is written to.
        let result = unsafe { sys::rdma_create_id(self.0.as_ptr(), &raw mut id, context, sys::rdma_port_space::RDMA_PS_TCP) };
        check("rdma_create_id", result)?;
        NonNull::new(id).map(CmId).ok_or_else(|| device::last("rdma_create_id"))
    }

    /// The next event, if there is one.
    pub(super) fn next(&self) -> Option<Heard> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is open and non-blocking.
        if unsafe { sys::rdma_get_cm_event(self.0.as_ptr(), &raw mut event) } != 0 {
            return None;
        }
        // SAFETY: the event is valid until it is acknowledged.
        let borrowed = unsafe { &*event };
        // SAFETY: as before.
        let heard = unsafe { Heard::read(borrowed) };
        // SAFETY: all of it was copied.
        unsafe { sys::rdma_ack_cm_event(event) };
        Some(heard)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: all identifiers of the channel are destroyed.
        unsafe { sys::rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

/// An event, copied.
pub(super) struct Heard {
    pub(super) kind: event_type::Type,
    pub(super) status: i32,
    pub(super) key: Key,
    /// The identifier of a connection request.
    pub(super) id: Option<CmId>,
    pub(super) private_data: Vec<u8>,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
}

impl Heard {
    /// # Safety
    ///
    /// The event is valid.
    unsafe fn read(event: &sys::rdma_cm_event) -> Self {
        let is_request = event.event == event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
        let about = if is_request { event.listen_id } else { event.id };
        // SAFETY: the event names a living identifier, whose context is the number that it was made with.
        let key = unsafe { (*about).context }.addr() as u64;
        let carries = matches!(
            event.event,
            event_type::RDMA_CM_EVENT_CONNECT_REQUEST | event_type::RDMA_CM_EVENT_ESTABLISHED | event_type::RDMA_CM_EVENT_REJECTED
        );
        let mut heard = Self {
            kind: event.event,
            status: event.status,
            key: Key(key),
            id: NonNull::new(event.id).filter(|_| is_request).map(CmId),
            private_data: Vec::new(),
            responder_resources: 0,
            initiator_depth: 0,
        };
        if carries {
            // SAFETY: these events of a connected service carry connection parameters.
            let parameters = unsafe { &event.param.conn };
            heard.responder_resources = parameters.responder_resources;
            heard.initiator_depth = parameters.initiator_depth;
            if !parameters.private_data.is_null() {
                let length = usize::from(parameters.private_data_len);
                // SAFETY: the library says how long the private data are.
                heard.private_data = unsafe { std::slice::from_raw_parts(parameters.private_data.cast::<u8>(), length) }.to_vec();
            }
        }
        heard
    }
}

/// What a refusal means: InfiniBand gives the reason of its connection manager, iWARP an error number.
pub(super) fn rejection(heard: Heard) -> News {
    match heard.status {
        REJECTED_NO_LISTENER => News::Failed(Disconnect::Connect(io::ErrorKind::ConnectionRefused.into())),
        // siw says ECONNRESET for a reject by the peer's consumer, others ECONNREFUSED; both with its private data.
        status if status == REJECTED_BY_CONSUMER || status < 0 => News::Rejected { private_data: heard.private_data },
        _ => News::Rejected { private_data: Vec::new() },
    }
}

/// Why a connection did not come up. The status is a negative error number.
pub(super) fn unreached(status: i32) -> io::Error {
    match status {
        0 => io::ErrorKind::TimedOut.into(),
        errno => io::Error::from_raw_os_error(errno.abs()),
    }
}
