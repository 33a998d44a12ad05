//! How the memory of a reactor thread is cut into buffers.

use godwit_memory::{ClassLayout, Layout, PAGE_BYTES, PoolError};

use crate::limits::{Limits, MAX_TRANSFER_BYTES};

/// Buffers of the largest size that there are at least: what the module `worker::memory` needs is two, for a Compare.
const LEAST_LARGE: usize = 4;

/// Cuts `total_bytes` into buffers for these limits and so many stores.
///
/// * 4 KiB, an eighth: small reads, and the data of admin commands.
/// * In-capsule data, three eighths, and at least enough for each slot of the largest queue and for the connections beside it.
/// * 32 KiB, an eighth: reads of medium size.
/// * 128 KiB, three sixteenths: larger ones; each store takes one for the zeroes that it writes.
/// * 1 MiB, three sixteenths: the largest.
///
/// # Errors
///
/// When the limits are beyond what a pool can be.
pub(crate) fn layout(total_bytes: usize, limits: &Limits, stores: usize) -> Result<Layout, PoolError> {
    let share = |sixteenths: usize, buffer_bytes: usize| total_bytes / 16 * sixteenths / buffer_bytes;
    let capsule_bytes = limits.in_capsule_bytes.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
    let queue = usize::try_from(limits.io_queue_size.entries()).unwrap_or(usize::MAX);
    let capsules = share(6, capsule_bytes).max(queue.saturating_add(queue / 8).saturating_add(64));
    let mut classes = vec![
        ClassLayout { buffer_bytes: PAGE_BYTES, count: share(2, PAGE_BYTES).max(64) },
        ClassLayout { buffer_bytes: 32 << 10, count: share(2, 32 << 10).max(4) },
        ClassLayout { buffer_bytes: 128 << 10, count: share(3, 128 << 10).max(4).saturating_add(stores) },
        ClassLayout { buffer_bytes: MAX_TRANSFER_BYTES, count: share(3, MAX_TRANSFER_BYTES).max(LEAST_LARGE) },
    ];
    match classes.iter_mut().find(|class| class.buffer_bytes == capsule_bytes) {
        Some(class) => class.count = class.count.saturating_add(capsules),
        None => classes.insert(1, ClassLayout { buffer_bytes: capsule_bytes, count: capsules }),
    }
    Layout::new(&classes)
}

#[cfg(test)]
mod tests {
    use godwit_memory::{Pool, Reservation};
    use godwit_nvme::QueueSize;

    use super::*;

    #[test]
    fn the_largest_queue_fits_whatever_the_in_capsule_size() {
        for in_capsule_bytes in [0, 512, 4096, 8192, 16384] {
            let limits = Limits { in_capsule_bytes, io_queue_size: QueueSize::new(1024).unwrap(), ..Limits::default() };
            let pool = Pool::new(&layout(20 << 20, &limits, 100).unwrap()).unwrap();
            assert!(Reservation::possible(&pool, in_capsule_bytes.max(1024), 1024 + 64), "{in_capsule_bytes}");
            assert!(pool.spare(MAX_TRANSFER_BYTES) >= LEAST_LARGE);
            assert!(pool.spare(128 << 10) >= 100 + LEAST_LARGE);
        }
    }

    #[test]
    fn the_total_is_close_to_what_was_asked_for() {
        let bytes = layout(64 << 20, &Limits::default(), 1).unwrap().total_bytes();
        assert!((60 << 20..66 << 20).contains(&bytes), "{bytes}");
    }
}
