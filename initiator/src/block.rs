//! The boundary between a volume and the front end that serves it: block operations in, their results out.
//!
//! One [`BlockQueue`] belongs to one reactor thread. The front end of that thread is its only user:
//!
//! * [`submit`](BlockQueue::submit) moves an operation and its buffer into the queue, or hands both back when the queue is full for now. After a
//!   refusal, try again once [`next_done`](BlockQueue::next_done) has returned something (or after the next turn of the loop).
//! * Each operation that was taken ends exactly once, with its ticket, through `next_done`. Call it until `None` in every turn of the loop, after the
//!   fabric's completions were handled and before the fabric is flushed.
//! * While the volume reconnects nothing ends: operations wait inside the queue, and a queue whose slots are all waiting refuses further ones. That is
//!   the back-pressure: the front end stops reading its socket.
//! * Reactor tokens: bit 63 is the fabric's; a volume's begin with the sixteen bits 4000h. Those of a front end have other ones, and bit 63 clear.
//! * A volume that was given up ends everything with [`BlockError::VolumeGone`], what is submitted later too.

use std::sync::atomic::{AtomicU64, Ordering};

use godwit_memory::Buffer;
use godwit_nbd::Errno;
use godwit_rdma::Fabric;
use godwit_reactor::Reactor;

/// The front end's name of an operation, returned with its end. Unique among the operations of one queue that have not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// An operation. Offsets and lengths are in bytes, multiples of [`Geometry::block_bytes`], not empty, and within the volume; lengths are within the
/// limits that [`Geometry`] names.
#[derive(Debug)]
pub enum BlockOp {
    /// Fills the first `len_bytes` bytes of `buffer`.
    Read {
        /// Of the first byte.
        offset: u64,
        /// At most [`Geometry::max_transfer_bytes`].
        len_bytes: usize,
        /// Of at least that capacity, from this thread's pool.
        buffer: Buffer,
    },
    /// Writes the first `len_bytes` bytes of `buffer`.
    Write {
        /// Of the first byte.
        offset: u64,
        /// At most [`Geometry::max_transfer_bytes`].
        len_bytes: usize,
        /// From this thread's pool.
        buffer: Buffer,
        /// Whether the data must be on stable storage before the operation ends.
        fua: bool,
    },
    /// Brings every write that ended before this was submitted, on any queue of the volume, to stable storage.
    Flush,
    /// Makes the range read as zeroes. Only if [`Geometry::can_write_zeroes`].
    WriteZeroes {
        /// Of the first byte.
        offset: u64,
        /// At most [`Geometry::max_zeroes_bytes`].
        len_bytes: u64,
        /// Whether the space may be given up.
        may_deallocate: bool,
        /// Whether the zeroes must be on stable storage before the operation ends.
        fua: bool,
    },
    /// Gives the range up: what it reads as afterwards is not defined. Only if [`Geometry::can_discard`].
    Discard {
        /// Of the first byte.
        offset: u64,
        /// At most [`Geometry::max_discard_bytes`].
        len_bytes: u64,
    },
}

/// Size, limits and abilities of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of the volume; a multiple of `block_bytes`. It may grow when the volume reconnects.
    pub size_bytes: u64,
    /// The unit of offsets and lengths: a power of two, 512 to 4096 usually.
    pub block_bytes: u32,
    /// The length and alignment that serve best; a power of two multiple of `block_bytes`.
    pub optimal_bytes: u32,
    /// The longest read or write; a multiple of `block_bytes`, at most the largest buffer of the pool.
    pub max_transfer_bytes: usize,
    /// The longest write of zeroes; a multiple of `block_bytes`, 0 without [`Self::can_write_zeroes`].
    pub max_zeroes_bytes: u64,
    /// The longest discard; a multiple of `block_bytes`, 0 without [`Self::can_discard`].
    pub max_discard_bytes: u64,
    /// Nothing that changes data is allowed.
    pub read_only: bool,
    /// [`BlockOp::WriteZeroes`] is supported.
    pub can_write_zeroes: bool,
    /// [`BlockOp::Discard`] is supported.
    pub can_discard: bool,
    /// Writes without FUA are volatile until a flush. (Flush and FUA are always accepted.)
    pub volatile_cache: bool,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BlockError {
    /// The backing store is full.
    #[error("no space left")]
    NoSpace,
    /// The volume does not take changes.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The range is not within the volume.
    #[error("outside of the volume")]
    OutOfRange,
    /// The target does not do this.
    #[error("not supported by the target")]
    Unsupported,
    /// The storage medium failed.
    #[error("medium error")]
    Media,
    /// Another host's reservation forbids it.
    #[error("reservation conflict")]
    Reserved,
    /// Any other failure at the target.
    #[error("input/output error")]
    Io,
    /// What an NBD server that is measured answers.
    #[error("the server answers {0}")]
    Answered(Errno),
    /// It was [abandoned](BlockQueue::abandon) before it was sent.
    #[error("abandoned before it was sent")]
    Abandoned,
    /// Acknowledged writes were lost when the target's machine lost its power; told once to each client of a front end.
    #[error("the target lost acknowledged writes")]
    WritesLost,
    /// The target has been away for longer than operations are to wait (`fast_io_fail_tmo`).
    #[error("the target is away")]
    TargetAway,
    /// The volume was given up.
    #[error("the volume is gone")]
    VolumeGone,
}

/// The end of an operation.
#[derive(Debug)]
pub struct BlockDone {
    /// The operation's name.
    pub ticket: Ticket,
    /// How it ended.
    pub result: Result<(), BlockError>,
    /// The buffer of a read or a write. After a successful read its length is the read's, and it holds the data; otherwise its bytes mean nothing.
    pub buffer: Option<Buffer>,
}

/// How often a volume has lost acknowledged writes with its target's power. A front end has a [`LossWatch`] for each of its clients, and asks it whenever a
/// flush or a forced write of that client has succeeded: then it fails after all, once for each loss.
#[derive(Debug, Default)]
pub struct Losses {
    happened: AtomicU64,
    told: AtomicU64,
}

/// Those of a volume that loses nothing.
static NO_LOSSES: Losses = Losses { happened: AtomicU64::new(0), told: AtomicU64::new(0) };

/// What one client knows of a volume's losses.
#[derive(Debug)]
pub struct LossWatch {
    seen: u64,
    /// It was told of the last one, and has not gone on since.
    unconfirmed: bool,
}

impl Losses {
    /// For a client that comes now: it will be told of what comes, and of what nobody has been told and gone on from yet. (An answer may be lost with its
    /// connection: that it was given is not enough.)
    pub fn watch(&self) -> LossWatch {
        LossWatch { seen: self.told.load(Ordering::Acquire), unconfirmed: false }
    }

    /// Whether somebody was told of each one, and has gone on.
    pub(crate) fn are_told(&self) -> bool {
        self.told.load(Ordering::Acquire) == self.happened.load(Ordering::Acquire)
    }

    /// There was one.
    pub(crate) fn add(&self) {
        self.happened.fetch_add(1, Ordering::AcqRel);
    }
}

impl LossWatch {
    /// Whether the client is to be told now: true once after a loss.
    pub fn tell(&mut self, losses: &Losses) -> bool {
        let happened = losses.happened.load(Ordering::Acquire);
        if self.seen == happened {
            if std::mem::take(&mut self.unconfirmed) {
                losses.told.fetch_max(happened, Ordering::AcqRel);
            }
            return false;
        }
        self.seen = happened;
        self.unconfirmed = true;
        true
    }
}

/// A volume's queue on one reactor thread.
pub trait BlockQueue<R: Reactor> {
    /// What the volume can do. Only the size may change, by growing.
    fn geometry(&self) -> Geometry;

    /// The losses that clients are to be told, see [`LossWatch`].
    fn losses(&self) -> &Losses {
        &NO_LOSSES
    }

    /// Takes an operation.
    ///
    /// # Errors
    ///
    /// The operation itself, when the queue is full for now.
    fn submit(&mut self, reactor: &mut R, fabric: &mut Fabric, ticket: Ticket, op: BlockOp) -> Result<(), BlockOp>;

    /// The next operation that ended.
    fn next_done(&mut self) -> Option<BlockDone>;

    /// To its user the operation that [`next_done`](Self::next_done) gave last has failed after all, for writes before it were [lost](Losses): it is to be
    /// counted among the errors.
    fn failed_after_all(&mut self) {}

    /// The user of an operation is gone. If it was not sent yet it ends at once, with [`BlockError::Abandoned`]. If it was sent it ends as usual (after
    /// the volume has reconnected, when need be). No effect on a ticket that is not known.
    fn abandon(&mut self, ticket: Ticket);
}
