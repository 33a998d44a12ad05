//! Memory that the threads of a process share as they would share a disk: sparse, read and written by offset.
//!
//! It is cut into chunks, each behind a lock of its own, which is held for a copy and no longer. So two threads wait for each other only on one chunk, and a
//! read sees each chunk's part of a write whole or not at all. A chunk that was never written, or was zeroed as a whole, takes no memory.

use std::io;
use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nix::errno::Errno;
use zerocopy::FromZeros;

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 1 << 20;

type Chunk = Option<Box<[u8]>>;

/// A disk in memory. It begins as zeroes.
pub struct MemoryDisk {
    len_bytes: u64,
    chunks: Vec<RwLock<Chunk>>,
}

impl MemoryDisk {
    /// A disk of `len_bytes`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` when there is not even room for a list of its chunks.
    pub fn new(len_bytes: u64) -> io::Result<Self> {
        let count = usize::try_from(len_bytes.div_ceil(CHUNK_BYTES as u64)).map_err(|_| Errno::ENOMEM)?;
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        chunks.resize_with(count, RwLock::default);
        Ok(Self { len_bytes, chunks })
    }

    /// Its size.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Reads from `offset` on; how much there was before the disk's end.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> usize {
        let mut done = 0;
        for (index, range) in self.pieces(offset, into.len() as u64) {
            let part = &mut into[done..done + range.len()];
            match &*self.read(index) {
                Some(chunk) => part.copy_from_slice(&chunk[range]),
                None => part.fill(0),
            }
            done += part.len();
        }
        done
    }

    /// Writes from `offset` on; how much there was room for before the disk's end.
    ///
    /// # Errors
    ///
    /// `ENOMEM` when there is no memory for a chunk that was not written before. What comes before it is written.
    pub fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        for (index, range) in self.pieces(offset, from.len() as u64) {
            let part = &from[done..done + range.len()];
            let mut chunk = self.write(index);
            let chunk = match &mut *chunk {
                Some(chunk) => chunk,
                none => none.insert(<[u8]>::new_box_zeroed_with_elems(CHUNK_BYTES).map_err(|_| Errno::ENOMEM)?),
            };
            chunk[range].copy_from_slice(part);
            done += part.len();
        }
        Ok(done)
    }

    /// Makes a range read as zeroes, as far as it is on the disk, and gives the memory of whole chunks back.
    pub fn zero(&self, offset: u64, len_bytes: u64) {
        for (index, range) in self.pieces(offset, len_bytes) {
            let mut chunk = self.write(index);
            if range.len() == CHUNK_BYTES {
                *chunk = None;
            } else if let Some(chunk) = &mut *chunk {
                chunk[range].fill(0);
            }
        }
    }

    /// The chunks of a range, and which part of each.
    fn pieces(&self, offset: u64, len_bytes: u64) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let end = offset.saturating_add(len_bytes).min(self.len_bytes);
        let mut at = offset;
        std::iter::from_fn(move || {
            let left = end.checked_sub(at).filter(|&left| left > 0)?;
            let chunk_bytes = CHUNK_BYTES as u64;
            let (index, start) = (at / chunk_bytes, at % chunk_bytes);
            let len = left.min(chunk_bytes - start);
            at += len;
            // Each is smaller than the number of chunks or the size of one.
            let [index, start, len] = [index, start, len].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
            Some((index, start..start + len))
        })
    }

    // A copy does not panic half way.
    fn read(&self, index: usize) -> RwLockReadGuard<'_, Chunk> {
        self.chunks[index].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, index: usize) -> RwLockWriteGuard<'_, Chunk> {
        self.chunks[index].write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "memory of {} bytes", self.len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = CHUNK_BYTES as u64;

    fn held(disk: &MemoryDisk) -> usize {
        disk.chunks.iter().filter(|chunk| chunk.read().unwrap().is_some()).count()
    }

    #[test]
    fn what_is_written_over_chunks_is_read_and_the_rest_is_zeroes() {
        let disk = MemoryDisk::new(3 * CHUNK + 4096).unwrap();
        let data: Vec<u8> = (0..2 * CHUNK_BYTES + 10).map(|index| u8::try_from(index % 251).unwrap() | 1).collect();
        assert_eq!(disk.write_at(&data, CHUNK - 5).unwrap(), data.len());
        let mut found = vec![9; 3 * CHUNK_BYTES + 4096];
        assert_eq!(disk.read_at(&mut found, 0), found.len());
        let mut expected = vec![0; found.len()];
        expected[CHUNK_BYTES - 5..][..data.len()].copy_from_slice(&data);
        assert!(found == expected);
    }

    #[test]
    fn what_lies_behind_the_end_is_neither_read_nor_written() {
        let disk = MemoryDisk::new(4096).unwrap();
        assert_eq!(disk.write_at(&[7; 8], 4092).unwrap(), 4);
        let mut found = [1; 8];
        assert_eq!(disk.read_at(&mut found, 4092), 4);
        assert_eq!(found, [7, 7, 7, 7, 1, 1, 1, 1]);
        assert_eq!((disk.read_at(&mut found, 4096), disk.read_at(&mut found, u64::MAX)), (0, 0));
        assert_eq!(disk.write_at(&[7], u64::MAX).unwrap(), 0);
        disk.zero(4094, u64::MAX);
        assert_eq!(disk.read_at(&mut found, 4092), 4);
        assert_eq!(found[..4], [7, 7, 0, 0]);
    }

    #[test]
    fn only_what_holds_data_takes_memory() {
        let disk = MemoryDisk::new(1 << 40).unwrap();
        disk.read_at(&mut [0; 4096], 1 << 39);
        assert_eq!(held(&disk), 0);
        disk.write_at(&[1; 2], 7 * CHUNK - 1).unwrap();
        assert_eq!(held(&disk), 2);
        disk.zero(6 * CHUNK, CHUNK + 1);
        assert_eq!(held(&disk), 1);
        let mut found = [9; 2];
        disk.read_at(&mut found, 7 * CHUNK - 1);
        assert_eq!(found, [0, 0]);
    }

    #[test]
    fn a_disk_larger_than_any_memory_is_refused() {
        assert_eq!(MemoryDisk::new(u64::MAX).unwrap_err().raw_os_error(), Some(Errno::ENOMEM as i32));
    }
}
