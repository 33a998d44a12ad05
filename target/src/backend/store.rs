//! An open store, and what its threads share: geometry, identity, and what was learnt about it.

use std::io::{self, Seek, SeekFrom};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use godwit_reactor::{AllocateMode, BackingFile};
use rustix::fs::{AtFlags, StatxFlags};
use uuid::Uuid;

use super::mark::{Mark, Past};
use super::{Identity, StorageId};

/// What a store is kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A block device.
    Device,
    /// Memory of this process: empty at each start.
    Memory,
}

/// What is known about a store when it is opened.
#[derive(Clone, Debug)]
pub struct Description {
    /// For logs: `/var/lib/x.img, O_DIRECT`.
    pub text: String,
    /// What it is kept in.
    pub kind: Kind,
    /// Its size in bytes when it is opened: a multiple of the block size, not 0.
    pub size_bytes: u64,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Whether it must not be changed.
    pub read_only: bool,
    /// Who it is.
    pub identity: Identity,
    /// What lies below it, to tell two stores on one thing; `None` for memory.
    pub storage: Option<StorageId>,
    /// Whether I/O passes through the page cache. With neither this nor `in_memory` it is direct, in whole blocks.
    pub buffered: bool,
    /// Whether the data are in memory and operations run in place, on the thread that submits them.
    pub in_memory: bool,
}

/// A file, device or piece of memory that holds a namespace. `F` is what a reactor registers: [`BackingFile`] in the daemon.
#[derive(Debug)]
pub struct Store<F> {
    pub(super) file: F,
    pub(super) shared: Arc<Shared>,
}

/// What a thread needs to attach to a store.
#[derive(Debug)]
pub(crate) struct Attachable<F> {
    pub(super) file: F,
    pub(super) shared: Arc<Shared>,
}

/// What the threads that work on a store share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) description: Description,
    size_bytes: AtomicU64,
    sync_failed: AtomicBool,
    /// Of a file or device that can be written.
    mark: Mutex<Option<Mark>>,
    unsafe_shutdowns: AtomicU64,
    /// The store is known to end here, if that is less than its size.
    intact_bytes: AtomicU64,
    truncation_told: AtomicBool,
    /// The regular file that can be asked for its size, if it is one. A device that shrank cannot be made longer by a write.
    sized: Option<BackingFile>,
    no_punch_hole: AtomicBool,
    no_zero_range: AtomicBool,
}

impl<F> Store<F> {
    /// A store on a file that was opened by other means than [`Store::open`]: how the simulator makes one.
    ///
    /// # Panics
    ///
    /// When size and block size do not agree: whoever opened it checks them.
    pub fn new(file: F, description: Description) -> Self {
        Self::of(file, description, None)
    }

    fn of(file: F, description: Description, sized: Option<BackingFile>) -> Self {
        let blocks = description.size_bytes.checked_div(u64::from(description.block_bytes));
        assert!(blocks.is_some_and(|blocks| blocks > 0 && blocks * u64::from(description.block_bytes) == description.size_bytes));
        let shared = Shared {
            size_bytes: AtomicU64::new(description.size_bytes),
            sync_failed: AtomicBool::new(false),
            mark: Mutex::default(),
            unsafe_shutdowns: AtomicU64::new(0),
            intact_bytes: AtomicU64::new(description.size_bytes),
            truncation_told: AtomicBool::new(false),
            sized,
            no_punch_hole: AtomicBool::new(false),
            no_zero_range: AtomicBool::new(false),
            description,
        };
        Self { file, shared: Arc::new(shared) }
    }

    /// What another thread needs to attach to it.
    pub(crate) fn attachable(&self) -> Attachable<F>
    where
        F: Clone,
    {
        Attachable { file: self.file.clone(), shared: Arc::clone(&self.shared) }
    }

    /// Its size in bytes, as far as it is used.
    pub fn size_bytes(&self) -> u64 {
        self.shared.size_bytes()
    }

    /// How often writes that were acknowledged and not flushed may have been lost. It never decreases.
    pub fn unsafe_shutdowns(&self) -> u64 {
        self.shared.unsafe_shutdowns.load(Ordering::SeqCst)
    }

    /// Bytes of a logical block.
    pub fn block_size(&self) -> u32 {
        self.shared.description.block_bytes
    }

    /// Who it is.
    pub fn identity(&self) -> Identity {
        self.shared.description.identity
    }

    /// Whether it cannot be changed.
    pub fn read_only(&self) -> bool {
        self.shared.description.read_only
    }

    /// What it is kept in.
    pub fn kind(&self) -> Kind {
        self.shared.description.kind
    }

    /// What it is, for logs: `/var/lib/x.img, O_DIRECT`.
    pub fn description(&self) -> &str {
        &self.shared.description.text
    }

    /// Whether a sync has failed, so that flushes and durable writes fail until [`Self::reopen`].
    pub fn sync_failed(&self) -> bool {
        self.shared.sync_failed()
    }

    /// Whether the file was found shorter than it was when it was opened.
    pub fn truncated(&self) -> bool {
        self.shared.truncated()
    }

    /// What lies below it; `None` for memory.
    pub(crate) fn storage(&self) -> Option<StorageId> {
        self.shared.description.storage
    }

    /// Whether two stores lie on the same file or device, under whatever names.
    pub fn same_storage<G>(&self, other: &Store<G>) -> bool {
        self.shared.description.storage.is_some() && self.shared.description.storage == other.shared.description.storage
    }
}

impl Store<BackingFile> {
    /// A store on a file, device or memory that was opened and locked.
    pub(super) fn opened(file: BackingFile, description: Description) -> Self {
        let sized = (description.kind == Kind::File).then(|| file.clone());
        Self::of(file, description, sized)
    }

    /// Looks whether someone truncated the file. Cheap (no I/O); the control thread calls it about once a second.
    /// True once for each truncation, whoever found it.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn check_size(&self) -> io::Result<bool> {
        let len_bytes = self.current_bytes()?;
        if len_bytes < self.size_bytes() {
            self.shared.note_truncated(len_bytes);
        }
        let truncated = self.truncated();
        let told = self.shared.truncation_told.swap(truncated, Ordering::SeqCst);
        Ok(truncated && !told)
    }

    /// Writes down that a sync has failed, if one has: the next daemon must know, however this one ends. The control thread calls it about once a second.
    /// True when it was not known before.
    ///
    /// # Errors
    ///
    /// Those of writing the mark.
    pub fn keep_mark(&self) -> io::Result<bool> {
        match &mut *self.shared.mark() {
            Some(mark) if self.sync_failed() && !mark.is_lost() => mark.note_lost().map(|()| true),
            _ => Ok(false),
        }
    }

    /// Syncs for the last time, and marks the store as clean unless something was lost. No thread may work on it any more.
    ///
    /// # Errors
    ///
    /// Those of syncing and of writing the mark.
    pub fn close(&self) -> io::Result<()> {
        if self.read_only() {
            return Ok(());
        }
        self.file.sync_data().inspect_err(|error| self.shared.note_sync_failure(error))?;
        self.keep_mark()?;
        match &mut *self.shared.mark() {
            // Whoever makes the file longer again before the next start would hide it.
            Some(mark) if self.shared.found_truncated() => mark.note_lost(),
            Some(mark) if !mark.is_lost() => mark.clean(),
            _ => Ok(()),
        }
    }

    /// An administrator's word that what was lost has been dealt with: syncs once, checks the size, and forgets an earlier sync failure or truncation. The
    /// count of unsafe shutdowns moves first. Then `before` is called, for flushes that have failed may succeed from here on: it has to end the associations
    /// of all hosts that use the store, so that they see the count.
    ///
    /// # Errors
    ///
    /// When syncing fails again, the file is still too short, or the mark cannot be written; then nothing is forgotten.
    pub fn reopen(&self, before: impl FnOnce()) -> io::Result<()> {
        if !self.sync_failed() && !self.truncated() {
            return Ok(());
        }
        self.file.sync_data()?;
        let (found, size_bytes) = (self.current_bytes()?, self.size_bytes());
        if found < size_bytes {
            return Err(io::Error::other(format!("{} has {found} bytes of {size_bytes}", self.description())));
        }
        if let Some(mark) = &mut *self.shared.mark() {
            mark.count_lost()?;
            self.shared.unsafe_shutdowns.store(mark.unsafe_shutdowns(), Ordering::SeqCst);
        }
        before();
        self.shared.intact_bytes.store(size_bytes, Ordering::SeqCst);
        self.shared.truncation_told.store(false, Ordering::SeqCst);
        self.shared.sync_failed.store(false, Ordering::SeqCst);
        let unsafe_shutdowns = self.unsafe_shutdowns();
        tracing::info!(
            store = self.description(),
            unsafe_shutdowns,
            "reopened; writes may be lost, which counts as an unsafe shutdown that hosts see"
        );
        Ok(())
    }

    /// An administrator's word that the store has another size now: that of its file or device, which must have been changed before. Larger, hosts may be
    /// told of it afterwards; smaller, they must have been told before, and have nothing under way behind the new end.
    pub fn resize(&self, size_bytes: u64) {
        let Shared { size_bytes: size, intact_bytes: intact, .. } = &*self.shared;
        let before = size.load(Ordering::SeqCst);
        if size_bytes > before {
            // First, lest a flush in between take the store for truncated. Someone who truncated the file and made it longer again has put a hole in it
            // all the same.
            let _ = intact.compare_exchange(before, size_bytes, Ordering::SeqCst, Ordering::SeqCst);
        }
        size.store(size_bytes, Ordering::SeqCst);
        intact.fetch_min(size_bytes, Ordering::SeqCst);
        tracing::info!(store = self.description(), size_bytes, "has another size");
    }

    /// Makes the file longer. What is added reads as zeroes; hosts see it after [`Self::resize`].
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub(crate) fn extend(&self, size_bytes: u64) -> io::Result<()> {
        let Some(file) = self.file.file() else { return Err(io::ErrorKind::Unsupported.into()) };
        file.set_len(size_bytes)?;
        file.sync_all()
    }

    /// What was known of earlier writes when it was opened.
    pub(crate) fn past(&self) -> Past {
        self.shared.mark().as_ref().map(Mark::past).unwrap_or_default()
    }

    /// Has a mark that says what may have been lost.
    pub(super) fn with_mark(self, mark: Mark) -> Self {
        self.shared.unsafe_shutdowns.store(mark.unsafe_shutdowns(), Ordering::SeqCst);
        *self.shared.mark() = Some(mark);
        self
    }

    /// Only reports a count that others keep.
    pub(super) fn with_unsafe_shutdowns(self, count: u64) -> Self {
        self.shared.unsafe_shutdowns.store(count, Ordering::SeqCst);
        self
    }

    pub(crate) fn current_bytes(&self) -> io::Result<u64> {
        match (self.file.file(), self.kind()) {
            // All I/O names its offset: the position that this moves is nobody's.
            (Some(mut device), Kind::Device) => device.seek(SeekFrom::End(0)),
            (Some(file), _) => Ok(file.metadata()?.len()),
            (None, _) => Ok(self.size_bytes()),
        }
    }
}

impl Description {
    /// A disk of the simulator: it outlives the daemon, so it has an identity of its own; its operations may end early at any byte.
    pub fn of_simulated_disk(size_bytes: u64, block_bytes: u32, uuid: Uuid) -> Self {
        Self {
            text: "simulated disk".to_owned(),
            kind: Kind::File,
            size_bytes,
            block_bytes,
            read_only: false,
            identity: Identity::of_uuid(uuid),
            storage: None,
            buffered: false,
            in_memory: true,
        }
    }
}

impl Shared {
    fn mark(&self) -> MutexGuard<'_, Option<Mark>> {
        // Nothing panics in between that leaves it half changed.
        self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn is_direct(&self) -> bool {
        !self.description.buffered && !self.description.in_memory
    }

    pub(super) fn sync_failed(&self) -> bool {
        self.sync_failed.load(Ordering::SeqCst)
    }

    pub(super) fn note_sync_failure(&self, error: &io::Error) {
        if !self.sync_failed.swap(true, Ordering::SeqCst) {
            let store = self.description.text.as_str();
            tracing::error!(store, %error, "a sync failed; flushes and forced writes are refused until the namespace is reopened");
        }
    }

    pub(super) fn intact_bytes(&self) -> u64 {
        self.intact_bytes.load(Ordering::Relaxed)
    }

    /// Whether something is missing at the end. A change of the size while it looks is no truncation.
    pub(super) fn truncated(&self) -> bool {
        loop {
            let size_bytes = self.size_bytes.load(Ordering::SeqCst);
            let truncated = self.intact_bytes.load(Ordering::SeqCst) < size_bytes;
            if self.size_bytes.load(Ordering::SeqCst) == size_bytes {
                return truncated;
            }
        }
    }

    /// Whether something is missing at the end, as far as the kernel knows without asking a server: it does not block.
    pub(super) fn found_truncated(&self) -> bool {
        // In this order: a file grows before the store does.
        let size_bytes = self.size_bytes();
        if let Some(len_bytes) = self.len_bytes().filter(|&len_bytes| len_bytes < size_bytes) {
            self.note_truncated(len_bytes);
        }
        self.truncated()
    }

    /// A read came to the end of the file at `end_bytes`. The file may well end before: nothing behind its real end is intact.
    pub(super) fn note_short_read(&self, end_bytes: u64) {
        self.note_truncated(self.len_bytes().map_or(end_bytes, |len_bytes| len_bytes.min(end_bytes)));
    }

    /// How long the regular file is.
    fn len_bytes(&self) -> Option<u64> {
        let file = self.sized.as_ref()?.file()?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        rustix::fs::statx(file, "", flags, StatxFlags::SIZE).ok().map(|statx| statx.stx_size)
    }

    fn note_truncated(&self, intact_bytes: u64) {
        if self.intact_bytes.fetch_min(intact_bytes, Ordering::SeqCst) > intact_bytes {
            let (store, size_bytes) = (self.description.text.as_str(), self.size_bytes());
            tracing::error!(
                store,
                size_bytes,
                intact_bytes,
                "the backing file was truncated; what lay behind its new end is refused, and so are flushes, until the namespace is reopened"
            );
        }
    }

    pub(super) fn supports(&self, mode: AllocateMode) -> bool {
        !self.unsupported(mode).load(Ordering::Relaxed)
    }

    pub(super) fn note_unsupported(&self, mode: AllocateMode) {
        if !self.unsupported(mode).swap(true, Ordering::Relaxed) {
            tracing::debug!(store = self.description.text, ?mode, "not supported here");
        }
    }

    fn unsupported(&self, mode: AllocateMode) -> &AtomicBool {
        match mode {
            AllocateMode::PunchHole => &self.no_punch_hole,
            AllocateMode::ZeroRange => &self.no_zero_range,
        }
    }
}
