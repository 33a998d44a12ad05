//! Anonymous memory of the kernel, for as long as somebody holds it.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

/// A private mapping that begins as zeroes, and takes memory only where it is touched, in large pages if the kernel has them. It is unmapped when this is
/// dropped: who hands out what lies in it keeps it until nobody refers to that any more.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len_bytes: NonZeroUsize,
}

impl Mapping {
    pub(crate) fn new(len_bytes: NonZeroUsize) -> Result<Self, Errno> {
        // SAFETY: a fresh anonymous mapping at an address that the kernel chooses aliases nothing.
        let base = unsafe {
            mmap_anonymous(None, len_bytes, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE)
        };
        let base = base?;
        // A wish: what is read in no order otherwise costs a walk of the page tables, in a guest two, for each page.
        // SAFETY: the range is the mapping just made.
        let _ = unsafe { madvise(base, len_bytes.get(), MmapAdvise::MADV_HUGEPAGE) };
        Ok(Self { base: base.cast(), len_bytes })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes.get()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made in `new`, which is not used any more: see the type.
        let unmapped = unsafe { munmap(self.base.cast(), self.len_bytes.get()) };
        debug_assert!(unmapped.is_ok());
    }
}
