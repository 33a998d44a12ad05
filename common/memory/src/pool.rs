//! The pool and its buffers.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::mapping::Mapping;

/// Bytes of a page; every buffer starts on a multiple of it.
pub const PAGE_BYTES: usize = 4096;

/// The largest buffer that a pool holds, which is also the largest transfer of one command.
pub const MAX_BUFFER_BYTES: usize = 1 << 20;

/// How many buffers of one size a pool holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassLayout {
    /// Size of each buffer in bytes: a multiple of [`PAGE_BYTES`].
    pub buffer_bytes: usize,
    /// Number of buffers.
    pub count: usize,
}

/// The size classes of a pool, smallest buffers first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    classes: Vec<ClassLayout>,
}

impl Layout {
    /// A layout of the given classes.
    ///
    /// # Errors
    ///
    /// [`PoolError::Layout`] when a class is empty, is not made of pages, exceeds [`MAX_BUFFER_BYTES`], or the classes are not in rising order;
    /// also when they do not fit an address space together.
    pub fn new(classes: &[ClassLayout]) -> Result<Self, PoolError> {
        let well_formed = classes.iter().all(|class| {
            class.count > 0
                && class.buffer_bytes > 0
                && class.buffer_bytes.is_multiple_of(PAGE_BYTES)
                && class.buffer_bytes <= MAX_BUFFER_BYTES
        });
        let rising = classes.windows(2).all(|pair| pair[0].buffer_bytes < pair[1].buffer_bytes);
        // No sum of sizes wraps from here on, and an index has 32 bits.
        let countable = classes.iter().all(|class| u32::try_from(class.count).is_ok());
        let total = classes.iter().try_fold(0_usize, |sum, class| sum.checked_add(class.buffer_bytes.checked_mul(class.count)?));
        let addressable = total.is_some_and(|total| isize::try_from(total).is_ok());
        if classes.is_empty() || !well_formed || !rising || !countable || !addressable {
            return Err(PoolError::Layout);
        }
        Ok(Self { classes: classes.to_vec() })
    }

    /// Cuts `total_bytes`, or [`Self::MINIMUM_BYTES`] if that is more, into the sizes that block I/O uses: an eighth each to 4 KiB and 16 KiB, three
    /// eighths each to 128 KiB and 1 MiB.
    pub fn of_total(total_bytes: usize) -> Self {
        let total = total_bytes.max(Self::MINIMUM_BYTES);
        let class = |buffer_bytes: usize, eighths: usize| ClassLayout {
            buffer_bytes,
            count: (total / 8 * eighths / buffer_bytes).min(u32::MAX as usize),
        };
        Self { classes: vec![class(4 << 10, 1), class(16 << 10, 1), class(128 << 10, 3), class(MAX_BUFFER_BYTES, 3)] }
    }

    /// The least that [`Self::of_total`] makes: 256 buffers of 4 KiB, 64 of 16 KiB, 24 of 128 KiB and 3 of 1 MiB.
    pub const MINIMUM_BYTES: usize = 8 << 20;

    /// Bytes of all buffers together.
    pub fn total_bytes(&self) -> usize {
        self.classes.iter().map(|class| class.buffer_bytes * class.count).sum()
    }

    /// The classes, smallest buffers first.
    pub fn classes(&self) -> &[ClassLayout] {
        &self.classes
    }
}

/// Why a pool cannot be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The layout breaks a rule of [`Layout::new`].
    #[error("a pool needs classes of whole pages, in rising order, each with at least one buffer of at most {MAX_BUFFER_BYTES} bytes")]
    Layout,
    /// The kernel gave no memory.
    #[error("cannot map {bytes} bytes of buffer memory: {source}")]
    Map {
        /// Size asked for.
        bytes: usize,
        /// What the kernel answered.
        source: nix::Error,
    },
}

/// A set of page-aligned buffers in one anonymous mapping, for one thread.
#[derive(Clone)]
pub struct Pool {
    shared: Rc<Shared>,
}

pub(crate) struct Shared {
    memory: Mapping,
    classes: Vec<Class>,
}

pub(crate) struct Class {
    buffer_bytes: usize,
    first_offset: usize,
    count: usize,
    free: RefCell<Vec<u32>>,
    /// Free buffers that reservations may still claim; never more than `free` holds.
    reserved: Cell<usize>,
}

impl Pool {
    /// Maps a pool. Memory is touched only as buffers are used (or registered).
    ///
    /// # Errors
    ///
    /// [`PoolError::Map`] when the kernel refuses the mapping.
    pub fn new(layout: &Layout) -> Result<Self, PoolError> {
        let bytes = layout.total_bytes();
        let mapped_bytes = NonZeroUsize::new(bytes).ok_or(PoolError::Layout)?;
        let memory = Mapping::new(mapped_bytes).map_err(|source| PoolError::Map { bytes, source })?;
        let mut first_offset = 0;
        let mut classes = Vec::with_capacity(layout.classes.len());
        for class in &layout.classes {
            // Last in, first out, lowest first: what is not needed is never touched.
            let free = (0..u32::try_from(class.count).expect("a layout's counts have 32 bits")).rev().collect();
            classes.push(Class {
                buffer_bytes: class.buffer_bytes,
                first_offset,
                count: class.count,
                free: RefCell::new(free),
                reserved: Cell::new(0),
            });
            first_offset += class.buffer_bytes * class.count;
        }
        Ok(Self { shared: Rc::new(Shared { memory, classes }) })
    }

    /// Takes a buffer of at least `len_bytes`, with that length set; from the smallest class that fits and has one to spare.
    ///
    /// `None` means that all are in use or reserved (wait for one), or that `len_bytes` exceeds the largest class.
    pub fn take(&self, len_bytes: usize) -> Option<Buffer> {
        (0..self.shared.classes.len())
            .filter(|&class| self.shared.classes[class].buffer_bytes >= len_bytes)
            .find_map(|class| self.shared.classes[class].take_spare().map(|index| self.buffer(class, index, len_bytes)))
    }

    /// The mapping that all buffers lie in, for registration with a device or a ring: address and length in bytes.
    pub fn mapping(&self) -> (NonNull<u8>, usize) {
        (self.shared.memory.base(), self.shared.memory.len_bytes())
    }

    /// How many buffers of at least `len_bytes` are free and not reserved.
    pub fn spare(&self, len_bytes: usize) -> usize {
        self.shared.classes.iter().filter(|class| class.buffer_bytes >= len_bytes).map(Class::spare).sum()
    }

    /// How many buffers are in use, of any size.
    pub fn in_use(&self) -> usize {
        self.shared.classes.iter().map(|class| class.count - class.free.borrow().len()).sum()
    }

    /// The class that a buffer of `len_bytes` is reserved from: the smallest that fits.
    pub(crate) fn class_for(&self, len_bytes: usize) -> Option<usize> {
        self.shared.classes.iter().position(|class| class.buffer_bytes >= len_bytes)
    }

    pub(crate) fn class(&self, class: usize) -> &Class {
        &self.shared.classes[class]
    }

    pub(crate) fn buffer(&self, class: usize, index: u32, len_bytes: usize) -> Buffer {
        debug_assert!(len_bytes <= self.shared.classes[class].buffer_bytes);
        Buffer { shared: Rc::clone(&self.shared), class, index, len_bytes }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        for class in &self.shared.classes {
            list.entry(&format_args!("{}/{} x {} bytes", class.free.borrow().len(), class.count, class.buffer_bytes));
        }
        list.finish()
    }
}

impl Class {
    pub(crate) fn spare(&self) -> usize {
        self.free.borrow().len() - self.reserved.get()
    }

    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    fn take_spare(&self) -> Option<u32> {
        if self.spare() == 0 { None } else { self.free.borrow_mut().pop() }
    }

    /// Sets aside `count` of the spare buffers; all or none.
    pub(crate) fn reserve(&self, count: usize) -> bool {
        let enough = self.spare() >= count;
        if enough {
            self.reserved.set(self.reserved.get() + count);
        }
        enough
    }

    pub(crate) fn unreserve(&self, count: usize) {
        assert!(count <= self.reserved.get(), "more buffers unreserved than were reserved");
        self.reserved.set(self.reserved.get() - count);
    }

    /// Takes one of the buffers set aside.
    pub(crate) fn take_reserved(&self) -> u32 {
        self.unreserve(1);
        self.free.borrow_mut().pop().expect("a reserved buffer is in the free list")
    }
}

/// One buffer of a pool: page-aligned bytes that belong to whoever holds it, and return to the pool when it is dropped.
pub struct Buffer {
    shared: Rc<Shared>,
    class: usize,
    index: u32,
    len_bytes: usize,
}

impl Buffer {
    /// Bytes that the buffer can hold.
    pub fn capacity(&self) -> usize {
        self.shared.classes[self.class].buffer_bytes
    }

    /// Sets how many bytes are in use.
    ///
    /// # Panics
    ///
    /// When `len_bytes` exceeds the capacity.
    pub fn set_len(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.capacity(), "a buffer of {} bytes cannot hold {len_bytes}", self.capacity());
        self.len_bytes = len_bytes;
    }

    /// Where in the pool's mapping the buffer starts, in bytes.
    pub fn pool_offset(&self) -> usize {
        let class = &self.shared.classes[self.class];
        class.first_offset + class.buffer_bytes * self.index as usize
    }

    /// Address of the first byte, for submission to a ring or a device. Reading and writing through it is for the holder of the buffer alone.
    pub fn address(&self) -> NonNull<u8> {
        // SAFETY: the offset lies inside the mapping, for the index comes from the class's free list.
        unsafe { self.shared.memory.base().add(self.pool_offset()) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len_bytes` is at most the class's size, the bytes are initialised and mapped while `shared` lives, and this buffer alone owns them.
        unsafe { std::slice::from_raw_parts(self.address().as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.address().as_ptr(), self.len_bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.shared.classes[self.class].free.borrow_mut().push(self.index);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} bytes at {:#x})", self.len_bytes, self.capacity(), self.pool_offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Pool {
        let layout = Layout::new(&[ClassLayout { buffer_bytes: 4096, count: 2 }, ClassLayout { buffer_bytes: 16384, count: 1 }]);
        Pool::new(&layout.unwrap()).unwrap()
    }

    #[test]
    fn buffers_are_page_aligned_distinct_and_return_when_dropped() {
        let pool = small();
        let (mut a, mut b) = (pool.take(4096).unwrap(), pool.take(1).unwrap());
        assert_eq!(a.address().as_ptr() as usize % PAGE_BYTES, 0);
        a.fill(1);
        b.fill(2);
        assert!(a.iter().all(|&byte| byte == 1));
        assert_eq!(b.len(), 1);
        assert_eq!(pool.in_use(), 2);
        drop((a, b));
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn a_larger_buffer_serves_when_the_fitting_class_is_empty() {
        let pool = small();
        let held = [pool.take(4096).unwrap(), pool.take(4096).unwrap()];
        assert_eq!(pool.take(4096).unwrap().capacity(), 16384);
        assert_eq!(held.len(), 2);
    }

    #[test]
    fn an_exhausted_or_too_large_request_gives_none() {
        let pool = small();
        assert!(pool.take(16385).is_none());
        let held = pool.take(16384).unwrap();
        assert!(pool.take(16384).is_none());
        drop(held);
        assert!(pool.take(16384).is_some());
    }

    #[test]
    fn a_buffer_outlives_its_pool() {
        let pool = small();
        let mut buffer = pool.take(4096).unwrap();
        drop(pool);
        buffer.fill(7);
        assert_eq!(buffer[4095], 7);
    }

    #[test]
    fn rejects_layouts_that_break_a_rule() {
        let class = |buffer_bytes, count| ClassLayout { buffer_bytes, count };
        assert!(Layout::new(&[]).is_err());
        assert!(Layout::new(&[class(100, 1)]).is_err());
        assert!(Layout::new(&[class(4096, 0)]).is_err());
        assert!(Layout::new(&[class(8192, 1), class(4096, 1)]).is_err());
        assert!(Layout::new(&[class(2 << 20, 1)]).is_err());
        assert!(Layout::new(&[class(4096, 1 << 32)]).is_err());
        assert!(Layout::new(&[class(4096, usize::MAX / 4096 + 2)]).is_err());
        assert!(Layout::new(&[class(4096, 1), class(MAX_BUFFER_BYTES, 1)]).is_ok());
    }

    #[test]
    fn of_total_keeps_close_to_the_total_and_above_the_minimum() {
        for total in [0, 8 << 20, 20 << 20, 64 << 20, 1 << 30] {
            let layout = Layout::of_total(total);
            assert_eq!(Layout::new(layout.classes()).as_ref(), Ok(&layout));
            let wanted = total.max(Layout::MINIMUM_BYTES);
            assert!((wanted - (2 << 20)..=wanted).contains(&layout.total_bytes()), "{total}: {}", layout.total_bytes());
        }
    }

    #[test]
    fn the_minimum_is_what_it_says() {
        let counts: Vec<_> = Layout::of_total(0).classes().iter().map(|class| class.count).collect();
        assert_eq!(counts, [256, 64, 24, 3]);
        assert_eq!(Layout::of_total(0).total_bytes(), Layout::MINIMUM_BYTES);
        Layout::new(Layout::of_total(usize::MAX / 2).classes()).unwrap();
    }

    #[test]
    fn buffers_never_overlap_whatever_is_taken_and_returned() {
        let class = |buffer_bytes, count| ClassLayout { buffer_bytes, count };
        let pool = Pool::new(&Layout::new(&[class(4096, 5), class(12288, 3), class(65536, 2)]).unwrap()).unwrap();
        let (_, mapped) = pool.mapping();
        let mut held: Vec<Buffer> = Vec::new();
        let mut state = 1_u32;
        for _ in 0..2000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state >> 31 == 0 || held.is_empty() {
                held.extend(pool.take((state >> 8) as usize % 70_000));
            } else {
                held.swap_remove((state >> 8) as usize % held.len());
            }
            let mut ranges: Vec<_> = held.iter().map(|buffer| (buffer.pool_offset(), buffer.pool_offset() + buffer.capacity())).collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
            assert!(ranges.last().is_none_or(|&(_, end)| end <= mapped));
            assert_eq!(pool.in_use(), held.len());
        }
    }

    #[test]
    #[should_panic(expected = "cannot hold")]
    fn set_len_beyond_the_capacity_panics() {
        small().take(1).unwrap().set_len(4097);
    }
}
