//! The memory of one queue pair that is not the pool's: where messages arrive, and the headers of those that leave.
//!
//! A receive has to be posted for each message that the peer may send, while most of them bring no data, or never come. So they have memory of their own,
//! and in-capsule data (16 KiB at most) are copied into a buffer of the pool once there is one, as the soft provider does.

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::rc::Rc;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::device::{ProtectionDomain, Region, Rights};
use super::error::VerbsError;
use crate::Header;

#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nobody refers to it any more.
        let unmapped = unsafe { munmap(self.base.cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Slots for messages that arrive and for headers that leave.
///
/// # Why this is sound
///
/// The bytes are never borrowed: they are copied in before a work request names them, and out after its completion. The queue pair destroys its
/// device object before it drops its ring.
#[derive(Debug)]
pub(super) struct Ring {
    // Field order is drop order: deregistered, then unmapped.
    region: Region,
    mapping: Mapping,
    message_bytes: usize,
    first_header: usize,
}

impl Ring {
    pub(super) fn new(domain: &Rc<ProtectionDomain>, messages: usize, message_bytes: usize, headers: usize) -> Result<Self, VerbsError> {
        let message_bytes = message_bytes.next_multiple_of(Header::MAX_BYTES);
        let first_header = messages * message_bytes;
        let bytes = first_header + headers * Header::MAX_BYTES;
        let length = NonZeroUsize::new(bytes).unwrap_or(NonZeroUsize::MIN);
        // SAFETY: a new private mapping, at an address that the kernel chooses.
        let mapped = unsafe { mmap_anonymous(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE) };
        let base = mapped.map_err(|errno| VerbsError::Call { call: "mmap", error: errno.into() })?.cast();
        let mapping = Mapping { base, bytes: length.get() };
        // SAFETY: the mapping is dropped after the region.
        let region = unsafe { Region::new(domain, base, length.get(), Rights::Local) }?;
        Ok(Self { region, mapping, message_bytes, first_header })
    }

    pub(super) fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset + Header::MAX_BYTES <= self.mapping.bytes, "a slot lies in the ring");
        // SAFETY: just checked.
        unsafe { self.mapping.base.add(offset) }
    }

    /// Address of the slot of a message.
    pub(super) fn message(&self, slot: usize) -> u64 {
        self.at(slot * self.message_bytes).addr().get() as u64
    }

    /// Copies a part of a message that has arrived.
    pub(super) fn copy_message(&self, slot: usize, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.message_bytes, "a message lies in its slot");
        // SAFETY: the offset lies in the slot.
        let from = unsafe { self.at(slot * self.message_bytes).add(offset) };
        // SAFETY: the bytes lie in the slot, which no work request names now; `into` is elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
    }

    /// Copies a header into its slot; its address.
    pub(super) fn put_header(&self, slot: usize, header: &[u8]) -> u64 {
        assert!(header.len() <= Header::MAX_BYTES, "a header fits its slot");
        let to = self.at(self.first_header + slot * Header::MAX_BYTES);
        // SAFETY: the slot is as large, and no work request names it now; `header` is elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), to.as_ptr(), header.len()) };
        to.addr().get() as u64
    }
}
