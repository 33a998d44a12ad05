//! Memory that the threads of a process share as they would share a disk: sparse, read and written by offset.
//!
//! # Why this is sound
//!
//! * The mapping is made once, for as long as the disk lives; nobody else knows of it.
//! * It is cut into stripes, each with a lock. The bytes of a stripe are read while its lock is held by readers, and changed while it is held by one writer:
//!   so no copy races with another, and no slice of it outlives its guard.
//!
//! A lock is held for a copy of at most a stripe, or for a call that sends pieces of some ([`Extent`]). Two threads wait for each other only when they work
//! on one stripe (or on two that share a lock) and one of them writes; a read sees each stripe's part of a write whole or not at all, and what is sent by
//! pieces sees so much of each piece. Who sends may hold many locks and be in the kernel meanwhile: it waits for none while it holds one. What was never
//! written, or was zeroed by whole pages, takes no memory; but the checksum of a block that was sent, a thousandth of it, stays ([`Sums`], ordered by the
//! same locks).

use std::io;
use std::num::NonZeroUsize;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use nix::errno::Errno;
use nix::sys::mman::{MmapAdvise, madvise};

use crate::PAGE_BYTES;
use crate::mapping::Mapping;
use crate::streaming::{self, LINE_BYTES};
use crate::sums::Sums;

/// Bytes of a stripe.
const STRIPE_BYTES: usize = 1 << 20;

/// The most that is fetched ahead: behind it the processor sees where the reader is going.
const PREFETCHED_BYTES: usize = 1024;

/// Locks: stripes whose numbers differ by a multiple of this share one.
const LOCKS: usize = 1024;

/// A disk in memory. It begins as zeroes.
pub struct MemoryDisk {
    memory: Mapping,
    locks: Vec<RwLock<()>>,
    sums: Sums,
}

// SAFETY: the mapping belongs to no thread, and what threads do with its bytes is ordered by the locks: see the module's header.
unsafe impl Send for MemoryDisk {}
// SAFETY: as above.
unsafe impl Sync for MemoryDisk {}

impl MemoryDisk {
    /// A disk of `len_bytes`.
    ///
    /// # Errors
    ///
    /// `EINVAL` when that is nothing, `ENOMEM` when it is more than the process may address, and those of locking it where all memory is locked.
    pub fn new(len_bytes: u64) -> io::Result<Self> {
        let len_bytes = usize::try_from(len_bytes).ok().filter(|&len| isize::try_from(len).is_ok()).ok_or(Errno::ENOMEM)?;
        let len_bytes = NonZeroUsize::new(len_bytes).ok_or(Errno::EINVAL)?;
        let memory = Mapping::new(len_bytes)?;
        let locks = (0..LOCKS).map(|_| RwLock::default()).collect();
        let sums = Sums::new(len_bytes.get()).ok_or(Errno::ENOMEM)?;
        Ok(Self { memory, locks, sums })
    }

    /// Reads from `offset` on; how much there was before the disk's end.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> usize {
        let mut done = 0;
        for piece in self.pieces(offset, into.len() as u64) {
            let len = piece.len();
            let reading = self.lock_of(&piece).read().unwrap_or_else(PoisonError::into_inner);
            into[done..done + len].copy_from_slice(self.bytes(&reading, piece));
            done += len;
        }
        done
    }

    /// Writes from `offset` on; how much there was room for before the disk's end.
    pub fn write_at(&self, from: &[u8], offset: u64) -> usize {
        let mut done = 0;
        for piece in self.pieces(offset, from.len() as u64) {
            let len = piece.len();
            let mut writing = self.change(&piece);
            let (place, data) = (self.bytes_mut(&mut writing, piece), &from[done..done + len]);
            if len < PAGE_BYTES {
                place.copy_from_slice(data);
            } else {
                streaming::copy(place, data);
            }
            done += len;
        }
        done
    }

    /// Makes a range read as zeroes, as far as it is on the disk, and gives the memory of whole pages back.
    pub fn zero(&self, offset: u64, len_bytes: u64) {
        for piece in self.pieces(offset, len_bytes) {
            let mut writing = self.change(&piece);
            let pages = piece.start.next_multiple_of(PAGE_BYTES)..piece.end / PAGE_BYTES * PAGE_BYTES;
            let given_back = NonNull::new(self.address(pages.start).cast()).filter(|_| !pages.is_empty()).is_some_and(|start| {
                // SAFETY: the pages lie in the piece, whose lock is held by us alone; private and anonymous, they read as zeroes from then on.
                unsafe { madvise(start, pages.len(), MmapAdvise::MADV_DONTNEED) }.is_ok()
            });
            if given_back {
                self.bytes_mut(&mut writing, piece.start..pages.start).fill(0);
                self.bytes_mut(&mut writing, pages.end..piece.end).fill(0);
            } else {
                self.bytes_mut(&mut writing, piece).fill(0);
            }
        }
    }

    fn address(&self, offset: usize) -> *mut u8 {
        self.memory.base().as_ptr().wrapping_add(offset)
    }

    /// A piece, to be read while its lock is held.
    fn bytes<'a>(&self, _reading: &'a RwLockReadGuard<'_, ()>, piece: Range<usize>) -> &'a [u8] {
        // SAFETY: the piece lies in the mapping and in one stripe, which nobody changes while its lock is held.
        unsafe { slice::from_raw_parts(self.address(piece.start), piece.len()) }
    }

    /// A piece, to be changed while its lock is held by us alone.
    fn bytes_mut<'a>(&self, _writing: &'a mut RwLockWriteGuard<'_, ()>, piece: Range<usize>) -> &'a mut [u8] {
        // SAFETY: the piece lies in the mapping and in one stripe, which nobody else reads or changes meanwhile.
        unsafe { slice::from_raw_parts_mut(self.address(piece.start), piece.len()) }
    }

    /// Keeps a piece from others, for it is about to change.
    fn change(&self, piece: &Range<usize>) -> RwLockWriteGuard<'_, ()> {
        let writing = self.lock_of(piece).write().unwrap_or_else(PoisonError::into_inner);
        self.sums.forget(piece);
        writing
    }

    fn lock_of(&self, piece: &Range<usize>) -> &RwLock<()> {
        &self.locks[piece.start / STRIPE_BYTES % LOCKS]
    }

    /// A range, as far as it is on the disk, cut at the stripes.
    fn pieces(&self, offset: u64, len_bytes: u64) -> impl Iterator<Item = Range<usize>> + use<> {
        let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(self.memory.len_bytes());
        let (mut at, end) = (within(offset), within(offset.saturating_add(len_bytes)));
        std::iter::from_fn(move || {
            let start = at;
            at = end.min((start / STRIPE_BYTES + 1) * STRIPE_BYTES);
            (start < end).then_some(start..at)
        })
    }
}

/// A disk as one thread has it. Its extents are counted by that thread alone, which can tell when it has none left.
#[derive(Debug)]
pub struct Holding(Rc<Held>);

/// What a holding and its extents share.
#[derive(Debug)]
struct Held(Arc<MemoryDisk>);

impl Holding {
    /// A holding without extents.
    pub fn new(disk: Arc<MemoryDisk>) -> Self {
        Self(Rc::new(Held(disk)))
    }

    /// A range that can be read where it lies; `None` when it is not on the disk as a whole, or not in one stripe.
    pub fn extent(&self, offset: u64, len_bytes: usize) -> Option<Extent> {
        let range = self.0.0.pieces(offset, len_bytes as u64).next().filter(|piece| piece.len() == len_bytes)?;
        Some(Extent { held: Rc::clone(&self.0), range })
    }

    /// Whether there are extents of it.
    pub fn is_lent(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }
}

/// A range of a disk, to be read where it lies: for who hands the bytes on at once, such as to a socket. It keeps the disk, and its bytes may change
/// until they are read.
#[derive(Debug)]
pub struct Extent {
    held: Rc<Held>,
    /// In one stripe.
    range: Range<usize>,
}

impl Extent {
    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.range.len()
    }

    /// Has the processor fetch the ranges, or as much of each as it would not see coming, while the caller does something else: reading in no order waits
    /// for memory otherwise. The most of that is to find out where a page lies, which the processor does for several at a time: so all begin first.
    pub fn prefetch<'a>(extents: impl Iterator<Item = &'a Self> + Clone) {
        extents.clone().for_each(|extent| prefetch_line(extent.disk().address(extent.range.start)));
        for Self { held, range } in extents {
            let end = range.end.min(range.start + PREFETCHED_BYTES);
            (range.start..end).step_by(LINE_BYTES).skip(1).for_each(|at| prefetch_line(held.0.address(at)));
        }
    }

    /// Keeps a part of the range from being changed. Waits for who is changing it, and must therefore not be called by who holds another.
    ///
    /// # Panics
    ///
    /// When the part is not within the range.
    pub fn read(&self, part: Range<usize>) -> Reading<'_> {
        let piece = self.piece(&part);
        let lock = self.disk().lock_of(&piece).read().unwrap_or_else(PoisonError::into_inner);
        Reading { disk: self.disk(), lock, piece }
    }

    /// Like [`read`](Self::read), but does not wait: `None` when somebody changes the stripe, or waits for that.
    ///
    /// # Panics
    ///
    /// When the part is not within the range.
    pub fn try_read(&self, part: Range<usize>) -> Option<Reading<'_>> {
        let piece = self.piece(&part);
        let lock = match self.disk().lock_of(&piece).try_read() {
            Ok(lock) => lock,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Reading { disk: self.disk(), lock, piece })
    }

    fn disk(&self) -> &MemoryDisk {
        &self.held.0
    }

    fn piece(&self, part: &Range<usize>) -> Range<usize> {
        assert!(part.start <= part.end && part.end <= self.range.len(), "{part:?} is not within {} bytes", self.range.len());
        self.range.start + part.start..self.range.start + part.end
    }
}

/// Bytes of a disk that nobody changes as long as this lives.
#[derive(Debug)]
pub struct Reading<'a> {
    disk: &'a MemoryDisk,
    lock: RwLockReadGuard<'a, ()>,
    piece: Range<usize>,
}

impl Reading<'_> {
    /// Whether [`sums`](Self::sums) gives checksums without looking at a byte.
    pub fn has_sums(&self) -> bool {
        self.disk.sums.are_known(&self.piece)
    }

    /// The CRC32C of each [`SUMMED_BYTES`](crate::SUMMED_BYTES), which the disk keeps until they are changed; `None` when the bytes do not begin and end at
    /// multiples of that on the disk.
    pub fn sums(&self) -> Option<impl Iterator<Item = u32>> {
        self.disk.sums.get(&self.piece, self)
    }
}

impl Deref for Reading<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.disk.bytes(&self.lock, self.piece.clone())
    }
}

#[cfg(target_arch = "x86_64")]
fn prefetch_line(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: a hint to the processor, which reads nothing for the program, and does not fault.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
fn prefetch_line(_: *const u8) {}

impl std::fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "memory of {} bytes", self.memory.len_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIPE: u64 = STRIPE_BYTES as u64;

    /// Pages of a range that take memory.
    fn held(disk: &MemoryDisk, offset: usize, len_bytes: usize) -> usize {
        let first = (disk.memory.base().as_ptr() as usize + offset) / PAGE_BYTES;
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        let mut entries = vec![0; len_bytes / PAGE_BYTES * 8];
        std::os::unix::fs::FileExt::read_exact_at(&map, &mut entries, first as u64 * 8).unwrap();
        // Bit 63: present in memory.
        entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count()
    }

    #[test]
    fn what_is_written_over_stripes_is_read_and_the_rest_is_zeroes() {
        let disk = MemoryDisk::new(3 * STRIPE + 4096).unwrap();
        let data: Vec<u8> = (0..2 * STRIPE_BYTES + 10).map(|index| u8::try_from(index % 251).unwrap() | 1).collect();
        assert_eq!(disk.write_at(&data, STRIPE - 5), data.len());
        let mut found = vec![9; 3 * STRIPE_BYTES + 4096];
        assert_eq!(disk.read_at(&mut found, 0), found.len());
        let mut expected = vec![0; found.len()];
        expected[STRIPE_BYTES - 5..][..data.len()].copy_from_slice(&data);
        assert!(found == expected);
    }

    #[test]
    fn what_lies_behind_the_end_is_neither_read_nor_written() {
        let disk = MemoryDisk::new(4096).unwrap();
        assert_eq!(disk.write_at(&[7; 8], 4092), 4);
        let mut found = [1; 8];
        assert_eq!(disk.read_at(&mut found, 4092), 4);
        assert_eq!(found, [7, 7, 7, 7, 1, 1, 1, 1]);
        assert_eq!((disk.read_at(&mut found, 4096), disk.read_at(&mut found, u64::MAX)), (0, 0));
        assert_eq!(disk.write_at(&[7], u64::MAX), 0);
        disk.zero(4094, u64::MAX);
        assert_eq!(disk.read_at(&mut found, 4092), 4);
        assert_eq!(found[..4], [7, 7, 0, 0]);
    }

    #[test]
    fn only_what_holds_data_takes_memory() {
        let disk = MemoryDisk::new(1 << 40).unwrap();
        let whole = 2 * STRIPE_BYTES;
        disk.write_at(&vec![1; whole], 0);
        assert_eq!(held(&disk, 0, whole), whole / PAGE_BYTES);
        disk.zero(100, whole as u64 - 200);
        assert_eq!(held(&disk, 0, whole), 2);
        let mut found = vec![9; whole];
        disk.read_at(&mut found, 0);
        assert!(found.iter().enumerate().all(|(at, &byte)| byte == u8::from(!(100..whole - 100).contains(&at))));
    }

    #[test]
    fn readers_and_writers_of_one_stripe_see_whole_writes() {
        let disk = MemoryDisk::new(STRIPE).unwrap();
        std::thread::scope(|scope| {
            for byte in 1..=2 {
                let disk = &disk;
                scope.spawn(move || {
                    for _ in 0..200 {
                        disk.write_at(&[byte; 32 << 10], 4096);
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut found = vec![0; 32 << 10];
                    for _ in 0..200 {
                        disk.read_at(&mut found, 4096);
                        assert!(found.iter().all(|&byte| byte == found[0]), "half a write");
                    }
                });
            }
        });
    }

    #[test]
    fn an_extent_lies_on_the_disk_and_in_one_stripe() {
        let disk = Holding::new(Arc::new(MemoryDisk::new(STRIPE + 4096).unwrap()));
        assert_eq!(disk.extent(0, STRIPE_BYTES).map(|extent| extent.len_bytes()), Some(STRIPE_BYTES));
        assert_eq!(disk.extent(STRIPE, 4096).map(|extent| extent.len_bytes()), Some(4096));
        for (offset, len) in [(STRIPE - 1, 2), (STRIPE, 4097), (STRIPE + 4096, 1), (u64::MAX, 1), (0, usize::MAX), (0, 0)] {
            assert!(disk.extent(offset, len).is_none(), "{offset} {len}");
        }
        let extent = disk.extent(0, 1);
        assert!(disk.is_lent());
        drop(extent);
        assert!(!disk.is_lent());
    }

    #[test]
    fn what_is_read_where_it_lies_is_not_changed_meanwhile() {
        let disk = Arc::new(MemoryDisk::new(2 * STRIPE).unwrap());
        let holding = Holding::new(Arc::clone(&disk));
        let (extent, other) = (holding.extent(4096, 8192).unwrap(), holding.extent(STRIPE, 1).unwrap());
        let reading = extent.read(4096..8192);
        let again = extent.try_read(0..4096).expect("it is only read");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| disk.write_at(&[1; 8192], 4096));
            // Who waits to write keeps others from starting to read, in this stripe alone.
            while extent.try_read(0..1).is_some() {
                std::thread::yield_now();
            }
            assert!(other.try_read(0..1).is_some());
            assert!(!writer.is_finished() && reading.iter().chain(&*again).all(|&byte| byte == 0));
            drop((reading, again));
        });
        assert!(extent.read(0..8192).iter().all(|&byte| byte == 1));
    }

    #[test]
    fn checksums_are_those_of_the_bytes_and_kept_until_these_change() {
        const PAGE: u64 = PAGE_BYTES as u64;
        let disk = Arc::new(MemoryDisk::new(2 * STRIPE).unwrap());
        let holding = Holding::new(Arc::clone(&disk));
        let all = holding.extent(0, STRIPE_BYTES).unwrap();
        let (changed, kept) = (PAGE_BYTES..3 * PAGE_BYTES, 3 * PAGE_BYTES..8 * PAGE_BYTES);
        let check = |is_known: bool| {
            let reading = all.read(changed.clone());
            assert_eq!(reading.has_sums(), is_known);
            let expected: Vec<u32> = reading.chunks(PAGE_BYTES).map(crc_fast::crc32_iscsi).collect();
            assert_eq!(reading.sums().unwrap().collect::<Vec<_>>(), expected);
            assert!(reading.has_sums());
            expected
        };
        let zeroes = check(false);
        assert_eq!(all.read(kept.clone()).sums().unwrap().count(), 5);
        let changes: [&dyn Fn(); 5] = [
            &|| assert_eq!(disk.write_at(&[1], PAGE), 1),
            &|| assert_eq!(disk.write_at(&[2; 2], 3 * PAGE - 2), 2),
            &|| assert_eq!(disk.write_at(&[3; 2], 2 * PAGE - 1), 2),
            &|| assert_eq!(disk.write_at(&[4; PAGE_BYTES], 2 * PAGE), PAGE_BYTES),
            // A page, and the end of the one before.
            &|| disk.zero(2 * PAGE - 9, PAGE + 9),
        ];
        for change in changes {
            check(true);
            change();
            assert!(all.read(kept.clone()).has_sums());
            assert_ne!(check(false), zeroes);
        }
        disk.zero(PAGE, 2 * PAGE);
        assert_eq!(check(false), zeroes);
        for part in [1..PAGE_BYTES, 0..PAGE_BYTES - 1, 512..PAGE_BYTES + 512] {
            assert!(all.read(part.clone()).sums().is_none() && !all.read(part).has_sums());
        }
    }

    #[test]
    #[should_panic(expected = "is not within 4096 bytes")]
    fn a_part_beyond_an_extent_is_refused() {
        drop(Holding::new(Arc::new(MemoryDisk::new(STRIPE).unwrap())).extent(0, 4096).unwrap().read(0..4097));
    }

    #[test]
    fn a_disk_larger_than_any_memory_is_refused() {
        for size in [1 << 50, u64::MAX] {
            assert_eq!(MemoryDisk::new(size).unwrap_err().raw_os_error(), Some(Errno::ENOMEM as i32));
        }
    }
}
