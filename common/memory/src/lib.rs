//! Registered memory: one mapping per reactor thread, cut into page-aligned buffers of a few sizes. And memory in the place of a disk ([`MemoryDisk`]).
//!
//! # Why this is sound
//!
//! * The [`Pool`] maps its memory once and unmaps it when the last handle, pool or [`Buffer`], is gone; a buffer keeps the mapping alive.
//! * A buffer is a move-only token. Its index is either in the free list or in exactly one [`Buffer`], so two of them never overlap, and
//!   a `&mut Buffer` is the only way to the bytes.
//! * Whoever hands the bytes to the kernel for later (io_uring) moves the `Buffer` into its in-flight table and gives it back only after the
//!   terminal completion. Memory that an RDMA device may write to by itself is held by the queue pair in the same way until its key is dead.
//! * Pool and buffers stay on the thread that made them (`Rc` inside): no lock, no atomic.
//!
//! The bytes of a buffer are always initialised (the mapping starts as zeroes) but may be those of an earlier user: only what was filled may leave.

mod disk;
mod mapping;
mod pool;
mod reservation;
mod streaming;
mod sums;

pub use disk::{Extent, Holding, MemoryDisk, Reading};
pub use pool::{Buffer, ClassLayout, Layout, MAX_BUFFER_BYTES, PAGE_BYTES, Pool, PoolError};
pub use reservation::Reservation;
pub use sums::SUMMED_BYTES;
