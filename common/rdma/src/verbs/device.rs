//! The objects of libibverbs, each freed when it is dropped: completion queues, protection domains, memory regions.
//!
//! # Why this is sound
//!
//! * A context is opened by librdmacm for the first connection that uses the device, and stays open for the life of the process, or until the device is
//!   unplugged and the last connection identifier on it is destroyed: whoever holds a [`Device`] holds such an identifier (see `cm`). A thread lets go
//!   of what it has on a device before the identifier of its last queue pair there is destroyed.
//! * A region names memory by address. [`Region::new`] is unsafe: the memory has to outlive it. `domain` and `queue_pair` keep both together.
//! * Drop order is that of the verbs specification: regions before their domain, queue pairs before their completion queue.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::rc::Rc;

use rdma_sys as sys;

use super::error::VerbsError;

/// Whether the libraries could be loaded.
pub(super) fn has_libraries() -> bool {
    [c"librdmacm.so.1", c"libibverbs.so.1"].iter().all(|name| {
        // SAFETY: the name is a C string; the library, when found, was loaded before and stays so.
        !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }.is_null()
    })
}

/// `rdma_notify`, which the binding leaves out: tells the connection manager of an event of a queue pair.
///
/// # Safety
///
/// The identifier is alive.
pub(super) unsafe fn notify(id: *mut sys::rdma_cm_id, event: u32) {
    type Notify = unsafe extern "C" fn(*mut sys::rdma_cm_id, u32) -> i32;
    // SAFETY: the name is a C string; the library was loaded before and stays so.
    let library = unsafe { libc::dlopen(c"librdmacm.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return;
    }
    // SAFETY: the library is open, the name a C string.
    let symbol = unsafe { libc::dlsym(library, c"rdma_notify".as_ptr()) };
    if !symbol.is_null() {
        // SAFETY: the function has this type (rdma_notify(3)); an enumeration is passed as an unsigned int.
        let notify = unsafe { std::mem::transmute::<*mut libc::c_void, Notify>(symbol) };
        // SAFETY: the caller's promise.
        unsafe { notify(id, event) };
    }
}

/// How many RDMA devices this machine has.
pub(super) fn count() -> usize {
    let mut count = 0;
    // SAFETY: the count is written to; the list, if any, is freed below.
    let list = unsafe { sys::ibv_get_device_list(&raw mut count) };
    if list.is_null() {
        return 0;
    }
    // SAFETY: the list came from the call above, and nothing of it is used any more.
    unsafe { sys::ibv_free_device_list(list) };
    usize::try_from(count).unwrap_or(0)
}

/// The error of the last call.
pub(super) fn last(call: &'static str) -> VerbsError {
    VerbsError::Call { call, error: io::Error::last_os_error() }
}

/// The error of a call that returns its number.
pub(super) fn check(call: &'static str, result: i32) -> Result<(), VerbsError> {
    match result {
        0 => Ok(()),
        -1 => Err(last(call)),
        errno => Err(VerbsError::Call { call, error: io::Error::from_raw_os_error(errno.abs()) }),
    }
}

/// Makes a descriptor of the library non-blocking.
pub(super) fn make_nonblocking(descriptor: i32) -> Result<(), VerbsError> {
    // SAFETY: the library's descriptor stays open meanwhile: its owner is borrowed by the caller.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let flags = nix::fcntl::OFlag::O_NONBLOCK;
    nix::fcntl::fcntl(descriptor, nix::fcntl::FcntlArg::F_SETFL(flags))
        .map_err(|errno| VerbsError::Call { call: "fcntl", error: errno.into() })?;
    Ok(())
}

/// What a device is able to do: the part of `ibv_device_attr` that matters here.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// Work requests of one queue.
    pub(super) work_requests: usize,
    /// Entries of a completion queue.
    pub(super) completions: usize,
    /// RDMA Reads that a queue pair may answer at a time (IRD).
    pub(super) inbound_reads: u8,
    /// RDMA Reads that a queue pair may have outstanding (ORD).
    pub(super) outbound_reads: u8,
    /// Has Send with Invalidate.
    pub(super) invalidates: bool,
}

impl Limits {
    /// Whether a device with nothing else on it could hold the queue pair.
    pub(super) fn check_depth(&self, sends: usize, receives: usize) -> Result<(), TooDeep> {
        [("work requests", self.work_requests, sends.max(receives)), ("completions", self.completions, sends + receives)]
            .into_iter()
            .find(|(_, most, wanted)| wanted > most)
            .map_or(Ok(()), |(what, most, wanted)| Err(TooDeep { what, most, wanted }))
    }
}

/// What a queue pair needs more of than a device allows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooDeep {
    what: &'static str,
    most: usize,
    wanted: usize,
}

impl TooDeep {
    pub(super) fn of(self, device: Device) -> VerbsError {
        VerbsError::TooDeep { device: device.name(), what: self.what, most: self.most, wanted: self.wanted }
    }
}

/// An open device.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Device(NonNull<sys::ibv_context>);

// SAFETY: a context is used from any thread (ibv_open_device(3): all calls are thread-safe).
unsafe impl Send for Device {}

impl Device {
    /// The context of a connection identifier; `None` before it is bound to a device.
    pub(super) fn new(context: *mut sys::ibv_context) -> Option<Self> {
        NonNull::new(context).map(Self)
    }

    pub(super) fn as_ptr(self) -> *mut sys::ibv_context {
        self.0.as_ptr()
    }

    fn device(self) -> *mut sys::ibv_device {
        // SAFETY: an open context names its device.
        unsafe { (*self.as_ptr()).device }
    }

    /// Whether the kernel still offers the device to others.
    pub(super) fn is_offered(self) -> bool {
        // SAFETY: the device outlives the context.
        let node = unsafe { &raw const (*self.device()).dev_name };
        // SAFETY: the name of its node is a C string.
        let node = unsafe { CStr::from_ptr(node.cast()) };
        std::path::Path::new("/sys/class/infiniband_verbs").join(node.to_string_lossy().as_ref()).exists()
    }

    pub(super) fn name(self) -> String {
        // SAFETY: the device outlives the context.
        let name = unsafe { sys::ibv_get_device_name(self.device()) };
        // SAFETY: it is a C string.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }

    /// Whether the device speaks iWARP, where the sink of an RDMA Read is a region that the peer may write to.
    pub(super) fn is_iwarp(self) -> bool {
        // SAFETY: the device outlives the context.
        let transport = unsafe { (*self.device()).transport_type };
        transport == sys::ibv_transport_type::IBV_TRANSPORT_IWARP
    }

    /// Closes what the kernel knows of the context, whose device is being unplugged. That waits for it, for most devices cannot be taken from
    /// under their users, and librdmacm keeps a context open until it looks for devices once more and finds others.
    ///
    /// # Safety
    ///
    /// Nothing is left on the device that is used any more, and an identifier keeps the context itself.
    pub(super) unsafe fn cut_off(self) {
        let Ok(nothing) = std::fs::File::open("/dev/null") else { return };
        // SAFETY: the context is there.
        let context = unsafe { &*self.as_ptr() };
        for descriptor in [context.cmd_fd, context.async_fd] {
            // SAFETY: the context owns the descriptor, and goes on owning one of this number, to close it by and by.
            unsafe { libc::dup3(nothing.as_raw_fd(), descriptor, libc::O_CLOEXEC) };
        }
    }

    pub(super) fn limits(self) -> Result<Limits, VerbsError> {
        let mut attributes = MaybeUninit::<sys::ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and the attributes are large enough.
        check("ibv_query_device", unsafe { sys::ibv_query_device(self.as_ptr(), attributes.as_mut_ptr()) })?;
        // SAFETY: zeroes are valid attributes, and the call has filled them.
        let attributes = unsafe { attributes.assume_init() };
        let size = |number: i32| usize::try_from(number).unwrap_or(0);
        let reads = |number: i32| u8::try_from(number.clamp(0, 255)).unwrap_or(0);
        Ok(Limits {
            work_requests: size(attributes.max_qp_wr),
            completions: size(attributes.max_cqe),
            inbound_reads: reads(attributes.max_qp_rd_atom),
            outbound_reads: reads(attributes.max_qp_init_rd_atom),
            invalidates: attributes.device_cap_flags & sys::ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS.0 != 0,
        })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// A completion queue and the channel that tells of it.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    queue: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
}

impl CompletionQueue {
    pub(super) fn new(device: Device, entries: usize) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let channel = unsafe { sys::ibv_create_comp_channel(device.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(|| last("ibv_create_comp_channel"))?;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: context and channel are open; there is no context of ours to hand over.
        let queue = unsafe { sys::ibv_create_cq(device.as_ptr(), entries, ptr::null_mut(), channel.as_ptr(), 0) };
        let Some(queue) = NonNull::new(queue) else {
            let error = last("ibv_create_cq");
            // SAFETY: nothing uses the channel.
            unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        let queue = Self { queue, channel };
        // SAFETY: the channel is open.
        make_nonblocking(unsafe { (*queue.channel.as_ptr()).fd })?;
        Ok(queue)
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_cq {
        self.queue.as_ptr()
    }

    /// A descriptor that can be read when there is an event.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: the channel is open.
        let descriptor = unsafe { (*self.channel.as_ptr()).fd };
        // SAFETY: it stays open while it is cloned.
        unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned()
    }

    /// Takes the events that wait on the channel.
    pub(super) fn take_events(&self) {
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is open; non-blocking, so this ends.
        while unsafe { sys::ibv_get_cq_event(self.channel.as_ptr(), &raw mut queue, &raw mut context) } == 0 {
            // SAFETY: the event is of this queue, the only one of the channel.
            unsafe { sys::ibv_ack_cq_events(self.queue.as_ptr(), 1) };
        }
    }

    /// Asks for an event when the next entry comes. What came before does not count: poll once more.
    pub(super) fn arm(&self) -> Result<(), VerbsError> {
        // SAFETY: the queue is open.
        check("ibv_req_notify_cq", unsafe { sys::ibv_req_notify_cq(self.queue.as_ptr(), 0) })
    }

    /// Makes room for as many entries, where the device is able to.
    pub(super) fn resize(&self, entries: usize) -> Result<(), VerbsError> {
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: the queue is open.
        check("ibv_resize_cq", unsafe { sys::ibv_resize_cq(self.queue.as_ptr(), entries) })
    }

    /// Takes entries off the queue.
    pub(super) fn poll<'a>(&self, into: &'a mut [MaybeUninit<sys::ibv_wc>]) -> Result<&'a [sys::ibv_wc], VerbsError> {
        let most = i32::try_from(into.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue is open, and there is room for as many entries.
        let count = unsafe { sys::ibv_poll_cq(self.queue.as_ptr(), most, into.as_mut_ptr().cast()) };
        let count = usize::try_from(count).map_err(|_| last("ibv_poll_cq"))?;
        // SAFETY: the call has filled the first `count` entries.
        Ok(unsafe { std::slice::from_raw_parts(into.as_ptr().cast(), count) })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.take_events();
        // SAFETY: all queue pairs of the queue are gone, all events acknowledged.
        unsafe { sys::ibv_destroy_cq(self.queue.as_ptr()) };
        // SAFETY: its only queue is gone.
        unsafe { sys::ibv_destroy_comp_channel(self.channel.as_ptr()) };
    }
}

/// A protection domain.
#[derive(Debug)]
pub(super) struct ProtectionDomain {
    domain: NonNull<sys::ibv_pd>,
    pub(super) device: Device,
}

impl ProtectionDomain {
    pub(super) fn new(device: Device) -> Result<Rc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let domain = unsafe { sys::ibv_alloc_pd(device.as_ptr()) };
        Ok(Rc::new(Self { domain: NonNull::new(domain).ok_or_else(|| last("ibv_alloc_pd"))?, device }))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_pd {
        self.domain.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: regions hold a reference to their domain, and queue pairs do through theirs: none is left.
        unsafe { sys::ibv_dealloc_pd(self.domain.as_ptr()) };
    }
}

/// What a region may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    /// By our own work requests only.
    Local,
    /// Also by RDMA Reads of the peer.
    RemoteRead,
    /// Also by RDMA Writes of the peer.
    RemoteWrite,
}

impl Rights {
    fn flags(self) -> sys::ibv_access_flags {
        use sys::ibv_access_flags as flags;
        match self {
            Self::Local => flags::IBV_ACCESS_LOCAL_WRITE,
            Self::RemoteRead => flags::IBV_ACCESS_REMOTE_READ,
            // The verbs specification wants the local right beside it.
            Self::RemoteWrite => flags::IBV_ACCESS_LOCAL_WRITE | flags::IBV_ACCESS_REMOTE_WRITE,
        }
    }
}

/// Registered memory.
#[derive(Debug)]
pub(super) struct Region {
    region: NonNull<sys::ibv_mr>,
    _domain: Rc<ProtectionDomain>,
}

impl Region {
    /// Registers memory.
    ///
    /// # Safety
    ///
    /// The memory stays mapped until the region is dropped, and while work requests or a peer may reach it nothing relies on its contents.
    pub(super) unsafe fn new(domain: &Rc<ProtectionDomain>, start: NonNull<u8>, bytes: usize, rights: Rights) -> Result<Self, VerbsError> {
        let flags = i32::try_from(rights.flags().0).unwrap_or(0);
        // SAFETY: the domain is open, and the memory mapped, as the caller promises.
        let region = unsafe { sys::ibv_reg_mr(domain.as_ptr(), start.as_ptr().cast(), bytes, flags) };
        match NonNull::new(region) {
            Some(region) => Ok(Self { region, _domain: Rc::clone(domain) }),
            None => Err(unregistered(domain.device, bytes, last("ibv_reg_mr"))),
        }
    }

    /// The key for our own work requests.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the region is alive.
        unsafe { (*self.region.as_ptr()).lkey }
    }

    /// The key for the peer.
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: the region is alive.
        unsafe { (*self.region.as_ptr()).rkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region is alive, and nothing uses it afterwards.
        unsafe { sys::ibv_dereg_mr(self.region.as_ptr()) };
    }
}

/// Why memory was not registered: most often the limit of locked memory.
fn unregistered(device: Device, bytes: usize, error: VerbsError) -> VerbsError {
    let out_of_memory =
        matches!(&error, VerbsError::Call { error, .. } if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN)));
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK);
    match limit {
        Ok((soft, _)) if out_of_memory && soft != nix::sys::resource::RLIM_INFINITY => {
            VerbsError::MemoryLock { device: device.name(), bytes, limit: format!("{} KiB", soft >> 10) }
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_is_as_deep_as_the_device_allows_and_no_deeper() {
        let limits = Limits { work_requests: 6144, completions: 7000, inbound_reads: 1, outbound_reads: 1, invalidates: false };
        assert_eq!(limits.check_depth(6144, 856), Ok(()));
        assert_eq!(limits.check_depth(6145, 16), Err(TooDeep { what: "work requests", most: 6144, wanted: 6145 }));
        assert_eq!(limits.check_depth(16, 6145), Err(TooDeep { what: "work requests", most: 6144, wanted: 6145 }));
        assert_eq!(limits.check_depth(6144, 857), Err(TooDeep { what: "completions", most: 7000, wanted: 7001 }));
    }
}
