//! The pool's buffers, for the connections of one thread in the order in which they began to wait.

use std::collections::VecDeque;

use godwit_memory::{Buffer, MAX_BUFFER_BYTES, PAGE_BYTES, Pool, Reservation};

/// A pool and who waits for it: strictly first come, first served, one buffer a turn, so a small request never overtakes a large one for ever.
#[derive(Debug)]
pub(super) struct Buffers {
    pool: Pool,
    waiting: VecDeque<usize>,
}

impl Buffers {
    pub(super) fn new(pool: Pool, connections: usize) -> Self {
        Self { pool, waiting: VecDeque::with_capacity(connections) }
    }

    /// A buffer of `len_bytes` for a connection; without one, or while others have been waiting for longer, the connection waits.
    pub(super) fn take(&mut self, connection: usize, len_bytes: usize) -> Option<Buffer> {
        let first = self.waiting.front().copied();
        if first.is_none_or(|first| first == connection)
            && let Some(buffer) = self.pool.take(len_bytes)
        {
            if first.is_some() {
                self.waiting.pop_front();
            }
            return Some(buffer);
        }
        if !self.waiting.contains(&connection) {
            self.waiting.push_back(connection);
        }
        None
    }

    /// A buffer, if there is one and nobody else waits for it. Without one, the connection does not begin to wait.
    pub(super) fn try_take(&self, connection: usize, len_bytes: usize) -> Option<Buffer> {
        let first = self.waiting.front().is_none_or(|&first| first == connection);
        first.then(|| self.pool.take(len_bytes)).flatten()
    }

    /// Who has been waiting for longest.
    pub(super) fn first_waiting(&self) -> Option<usize> {
        self.waiting.front().copied()
    }

    /// The connection does not want one any more.
    pub(super) fn forget(&mut self, connection: usize) {
        self.waiting.retain(|&waiting| waiting != connection);
    }
}

/// The longest transfer that this pool has a buffer for, at most `wanted_bytes`.
pub(super) fn longest_transfer(pool: &Pool, wanted_bytes: usize) -> usize {
    let wanted = wanted_bytes.min(MAX_BUFFER_BYTES);
    let smaller = std::iter::successors(Some(MAX_BUFFER_BYTES), |len| (*len > PAGE_BYTES).then_some(len / 2)).filter(|&len| len < wanted);
    std::iter::once(wanted).chain(smaller).find(|&len| Reservation::possible(pool, len, 1)).unwrap_or(wanted)
}

#[cfg(test)]
mod tests {
    use godwit_memory::{ClassLayout, Layout};

    use super::*;

    fn pool(count: usize) -> Pool {
        Pool::new(&Layout::new(&[ClassLayout { buffer_bytes: 16384, count }]).unwrap()).unwrap()
    }

    #[test]
    fn those_who_wait_are_served_in_their_order_one_buffer_a_turn() {
        let mut buffers = Buffers::new(pool(1), 4);
        let held = buffers.take(7, 1).unwrap();
        assert!(buffers.take(1, 1).is_none());
        assert!(buffers.take(2, 1).is_none());
        assert!(buffers.take(1, 1).is_none(), "waits once");
        drop(held);
        assert!(buffers.try_take(2, 1).is_none());
        assert!(buffers.take(2, 1).is_none(), "1 has been waiting for longer");
        let held = buffers.take(1, 1).unwrap();
        assert!(buffers.take(1, 1).is_none());
        drop(held);
        assert_eq!(buffers.first_waiting(), Some(2));
        buffers.forget(2);
        assert!(buffers.take(1, 1).is_some());
        assert_eq!(buffers.first_waiting(), None);
    }

    #[test]
    fn transfers_are_no_longer_than_the_largest_buffer() {
        assert_eq!(longest_transfer(&pool(1), 1 << 20), 16384);
        assert_eq!(longest_transfer(&pool(1), 12288), 12288);
        assert_eq!(longest_transfer(&pool(1), 16384), 16384);
    }
}
