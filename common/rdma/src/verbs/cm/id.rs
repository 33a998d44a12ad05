//! Connection identifiers, and the parameters of connections.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr::{self, NonNull};

use rdma_sys as sys;

use crate::verbs::device::Device;

/// A connection identifier, on its way between threads.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct CmId(pub(super) NonNull<sys::rdma_cm_id>);

// SAFETY: one thread at a time uses it: see the module's header.
unsafe impl Send for CmId {}

impl CmId {
    pub(in crate::verbs) fn as_ptr(self) -> *mut sys::rdma_cm_id {
        self.0.as_ptr()
    }

    /// The device that it is bound to.
    pub(in crate::verbs) fn device(self) -> Option<Device> {
        // SAFETY: the identifier is alive, and this thread's.
        Device::new(unsafe { (*self.as_ptr()).verbs })
    }

    pub(super) fn peer(self) -> Option<SocketAddr> {
        // SAFETY: the identifier is alive, and this thread's.
        let id = unsafe { &*self.as_ptr() };
        // SAFETY: the address is inside the identifier.
        let raw = unsafe { sys::rdma_get_peer_addr(id) };
        // SAFETY: it is in a union that has room for any address.
        unsafe { address(raw) }
    }

    pub(super) fn local(self) -> Option<SocketAddr> {
        // SAFETY: the identifier is alive, and this thread's.
        let id = unsafe { &*self.as_ptr() };
        // SAFETY: the address is inside the identifier.
        let raw = unsafe { sys::rdma_get_local_addr(id) };
        // SAFETY: it is in a union that has room for any address.
        unsafe { address(raw) }
    }
}

/// The address in a union of librdmacm.
///
/// # Safety
///
/// The reference is into a union that has room for any address.
unsafe fn address(raw: &libc::sockaddr) -> Option<SocketAddr> {
    let raw = ptr::from_ref(raw);
    // SAFETY: the union begins with the family.
    let family = unsafe { (*raw).sa_family };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says which member of the union it is.
            let v4 = unsafe { raw.cast::<libc::sockaddr_in>().read_unaligned() };
            Some((Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr)), u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says which member of the union it is.
            let v6 = unsafe { raw.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), u32::from_be(v6.sin6_flowinfo), v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// What the connection parameters say beside the private data.
#[derive(Clone, Debug)]
pub(in crate::verbs) struct Parameters {
    /// RDMA Reads that we answer at a time.
    pub(in crate::verbs) responder_resources: u8,
    /// RDMA Reads that we have outstanding.
    pub(in crate::verbs) initiator_depth: u8,
    pub(in crate::verbs) private_data: Vec<u8>,
}

impl Parameters {
    pub(super) fn with<T>(&self, call: impl FnOnce(*mut sys::rdma_conn_param) -> T) -> T {
        // SAFETY: zeroes are valid parameters.
        let mut raw: sys::rdma_conn_param = unsafe { std::mem::zeroed() };
        raw.private_data = self.private_data.as_ptr().cast();
        raw.private_data_len = u8::try_from(self.private_data.len()).unwrap_or(u8::MAX);
        raw.responder_resources = self.responder_resources;
        raw.initiator_depth = self.initiator_depth;
        raw.retry_count = RETRIES;
        raw.rnr_retry_count = RETRIES;
        call(&raw mut raw)
    }
}

/// Retries of the transport, each after a time of its own: the most there is, as Linux and SPDK ask for. For a receiver that is not ready, 7 means for ever.
const RETRIES: u8 = 7;

/// Ends a connection and destroys its queue pair.
pub(super) fn shut(id: CmId) {
    // SAFETY: the identifier is alive. Fails when it was never connected or is over.
    unsafe { sys::rdma_disconnect(id.as_ptr()) };
    destroy_queue_pair(id);
}

pub(super) fn destroy(id: CmId) {
    // SAFETY: the identifier is alive, has no queue pair, and all its events are acknowledged.
    unsafe { sys::rdma_destroy_id(id.as_ptr()) };
}

/// Destroys the queue pair of an identifier that is the caller's, if it has one.
pub(in crate::verbs) fn destroy_queue_pair(id: CmId) {
    // SAFETY: the identifier is alive.
    if !unsafe { (*id.as_ptr()).qp }.is_null() {
        // SAFETY: nobody posts to the queue pair any more.
        unsafe { sys::rdma_destroy_qp(id.as_ptr()) };
    }
}
