//! Where namespaces keep their bytes: files, block devices and memory, by byte range, without blocking.
//!
//! A [`Store`] is opened once, by the control thread, and shared. Each reactor thread attaches to it ([`Attached`]) and runs [`Operation`]s as
//! [`Job`]s: small state machines that the thread feeds with the reactor's [`FileDone`](godwit_reactor::FileDone) events. Everything else about an
//! engine of storage stays behind this boundary, so that another one fits: asynchronous, by range, with flush, zero, discard and a size.
//!
//! # What a flush means
//!
//! All rings of the process work on one open file description, and every write that has completed has reached the file (its page cache or its
//! device). `fdatasync` covers the whole file, so a flush covers each write that completed, on any thread, before it was issued. Under `O_DIRECT` it
//! is needed as much: for the device's cache and for the metadata of blocks that were allocated.
//!
//! # Why a failed sync is sticky
//!
//! The kernel tells a failure to write back once per open file description, then drops the pages or marks them clean: the next `fdatasync`
//! succeeds over lost data. So the first failure is kept in the [`Store`], and every later flush and durable write fails, on all threads, until
//! [`Store::reopen`]. A job looks at the mark when it starts and again when its sync succeeded, so that it cannot report success once another
//! thread has learnt of a failure that this sync was not told of.
//!
//! What counts as a failed sync:
//!
//! * every error of a sync;
//! * errors of a durable write to a store with direct I/O, except those that mean that the write itself had no room or was not accepted (`ENOSPC`,
//!   `EDQUOT`, `EFBIG`, `EINVAL`, `EOPNOTSUPP`). `RWF_DSYNC` is one call with two halves and does not tell which of them failed. Under direct I/O the
//!   page cache holds nothing but the edges of zeroed ranges, in blocks that are allocated already (and a file system that quietly writes through the
//!   page cache nevertheless reserves room first), so its second half (journal commit, cache flush) does not lack room. Any other error may stem
//!   from it, and counts;
//! * with buffered I/O, where writing back may well lack room, a durable write is a write followed by a sync, and the halves speak for themselves.
//!
//! A failed sync is told to those who ask for one; what of others was lost with it, the count of unsafe shutdowns tells (see the module `mark`).
//!
//! A write that is not durable and fails is told to its own client and loses nothing that was acknowledged.
//!
//! One window is left: of two syncs that overlap, the kernel may tell the failure to the one and success to the other, whose event arrives first. Then
//! the second answers before the mark is set. The window is the time between the two events; what follows it fails.
//!
//! # Files that others truncate
//!
//! A store does not grow or shrink by itself ([`Store::resize`] is an administrator's word), and no operation reaches beyond its size. When someone else
//! truncates the file, a read behind its new end comes back short: [`BackendError::Truncated`]. The file is then asked for its real end, and the nearest
//! that was ever seen is kept. From then on reads *and writes* behind that point fail without being tried, for a write there would extend the file again,
//! and the hole in between would read as zeroes where data had been. Flushes fail, too, for they speak for all that was written, until
//! [`Store::reopen`]; a durable write before that point speaks for itself alone, and succeeds. A flush asks a regular file for its size after the sync,
//! one call that does not wait; [`Store::check_size`] lets the control thread notice a truncation about once a second without either.
//!
//! The limit: a write behind the new end that comes before any of these cannot be told from an honest one, and makes the file longer again. What was cut
//! off before that write's place then reads as zeroes, and if the write was in the last block, nobody ever notices. To ask for the size before each
//! write would be one more system call on a path that has none of its own, and would still leave a moment between the two. Whoever truncates a file
//! must stop the daemon, or remove the namespace, first.

mod error;
mod identity;
mod job;
mod lock;
mod mark;
mod open;
mod storage;
mod store;
#[cfg(test)]
mod tests;

use godwit_memory::Buffer;

pub use error::OpenError;
pub(crate) use error::in_words;
pub use identity::Identity;
pub use job::{Attached, Job, Progress};
pub use mark::BootId;
pub(crate) use mark::Past;
pub use open::{OpenOptions, Source, reject_shared_storage, usual_state_dir};
pub use storage::StorageId;
pub(crate) use store::Attachable;
pub use store::{Description, Kind, Store};

/// What to do with a range of a store. Offsets and lengths are in bytes, whole blocks, and inside the store.
#[derive(Debug)]
pub enum Operation {
    /// Reads into the buffer, from its start on.
    Read {
        /// Where in the store.
        offset: u64,
        /// How much, at most what the buffer holds.
        len: usize,
        /// Where the data goes.
        buffer: Buffer,
    },
    /// Writes from the start of the buffer.
    Write {
        /// Where in the store.
        offset: u64,
        /// How much, at most what the buffer holds.
        len: usize,
        /// Where the data comes from.
        buffer: Buffer,
        /// Whether the data must be on stable storage before the operation ends (FUA).
        durable: bool,
    },
    /// Brings every write that has completed, on any thread, to stable storage.
    Flush,
    /// Makes a range read as zeroes.
    Zero {
        /// Where in the store.
        offset: u64,
        /// How much.
        len: u64,
        /// Whether the space may be given back; else it stays provisioned (except in memory, where giving back is all there is).
        deallocate: bool,
        /// Whether the zeroes must be on stable storage before the operation ends (FUA).
        durable: bool,
    },
    /// Gives the space of a range back. Reads as zeroes afterwards, unless the store cannot give space back: then nothing happens, which is no error.
    Discard {
        /// Where in the store.
        offset: u64,
        /// How much.
        len: u64,
    },
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The range is not inside the store: the caller's mistake.
    #[error("the range is outside the store")]
    OutOfRange,
    /// The store was opened for reading only.
    #[error("the store is read-only")]
    ReadOnly,
    /// Someone else made the file shorter than it was when it was opened.
    #[error("the backing file was truncated")]
    Truncated,
    /// No space, no quota, or a limit on the file's size.
    #[error("no space left")]
    NoSpace,
    /// Reading failed.
    #[error("reading failed: {}", std::io::Error::from_raw_os_error(*errno))]
    Read {
        /// The operating system's error.
        errno: i32,
    },
    /// Writing, zeroing or discarding failed.
    #[error("writing failed: {}", std::io::Error::from_raw_os_error(*errno))]
    Write {
        /// The operating system's error.
        errno: i32,
    },
    /// A sync failed, now or earlier: what was written before it may be lost.
    #[error("a sync failed; data written before it may be lost")]
    SyncFailed,
}
