//! Buffers set aside for one user, so that waiting for a buffer cannot deadlock.
//!
//! On one stream, in-capsule data that waits for a buffer stands in front of the RDMA Read Responses that would free one. A queue therefore issues
//! RDMA Reads only while it holds a reservation that covers in-capsule data for each of its slots: then the receive side never waits behind a read.

use std::cell::Cell;
use std::fmt;

use crate::pool::{Buffer, Pool};

/// A claim on a number of buffers of one size. Dropping it releases what was not taken.
pub struct Reservation {
    pool: Pool,
    class: usize,
    len_bytes: usize,
    unused: Cell<usize>,
}

impl Reservation {
    /// Sets aside `count` buffers of at least `len_bytes`, all or none. `None` when the pool cannot spare them now (or ever: see [`Self::possible`]).
    pub fn new(pool: &Pool, len_bytes: usize, count: usize) -> Option<Self> {
        let class = pool.class_for(len_bytes)?;
        pool.class(class).reserve(count).then(|| Self { pool: pool.clone(), class, len_bytes, unused: Cell::new(count) })
    }

    /// Whether the pool could make such a reservation were all its buffers free.
    pub fn possible(pool: &Pool, len_bytes: usize, count: usize) -> bool {
        pool.class_for(len_bytes).is_some_and(|class| pool.class(class).count() >= count)
    }

    /// Takes one of the buffers set aside; `None` once all are taken.
    pub fn take(&self) -> Option<Buffer> {
        let unused = self.unused.get().checked_sub(1)?;
        self.unused.set(unused);
        Some(self.pool.buffer(self.class, self.pool.class(self.class).take_reserved(), self.len_bytes))
    }

    /// Returns a buffer to the reservation: it is set aside again at once, so that no one else can take it in between.
    ///
    /// A buffer of another class is returned to the pool alone; then false, for nothing was set aside.
    pub fn give_back(&self, buffer: Buffer) -> bool {
        let same_class = buffer.capacity() == self.pool.class(self.class).buffer_bytes();
        drop(buffer);
        let reserved = same_class && self.pool.class(self.class).reserve(1);
        if reserved {
            self.unused.set(self.unused.get() + 1);
        }
        reserved
    }

    /// Buffers still set aside.
    pub fn unused(&self) -> usize {
        self.unused.get()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.class(self.class).unreserve(self.unused.get());
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} x {} bytes)", self.unused.get(), self.len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClassLayout, Layout};

    fn pool_of(count: usize) -> Pool {
        Pool::new(&Layout::new(&[ClassLayout { buffer_bytes: 8192, count }]).unwrap()).unwrap()
    }

    #[test]
    fn reserved_buffers_are_out_of_reach_for_others() {
        let pool = pool_of(3);
        let reservation = Reservation::new(&pool, 8192, 2).unwrap();
        let spare = pool.take(8192).unwrap();
        assert!(pool.take(8192).is_none());
        let reserved = reservation.take().unwrap();
        assert!(pool.take(8192).is_none());
        drop((spare, reserved));
        assert_eq!(pool.spare(8192), 2);
    }

    #[test]
    fn a_buffer_given_back_is_set_aside_again() {
        let pool = pool_of(1);
        let reservation = Reservation::new(&pool, 8192, 1).unwrap();
        let buffer = reservation.take().unwrap();
        assert!(reservation.take().is_none());
        assert!(reservation.give_back(buffer));
        assert!(pool.take(8192).is_none());
        assert_eq!(reservation.unused(), 1);
    }

    #[test]
    fn dropping_a_reservation_frees_what_was_not_taken() {
        let pool = pool_of(2);
        let reservation = Reservation::new(&pool, 8192, 2).unwrap();
        let taken = reservation.take().unwrap();
        drop(reservation);
        assert_eq!(pool.spare(8192), 1);
        drop(taken);
        assert_eq!(pool.spare(8192), 2);
    }

    #[test]
    fn a_reservation_is_all_or_none() {
        let pool = pool_of(2);
        assert!(Reservation::new(&pool, 8192, 3).is_none());
        assert!(!Reservation::possible(&pool, 8192, 3));
        assert!(!Reservation::possible(&pool, 8193, 1));
        assert_eq!(pool.spare(8192), 2);
    }
}
