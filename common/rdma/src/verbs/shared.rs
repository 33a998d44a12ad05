//! What the queue pairs of one thread share on one device: completion queue, protection domain, limits.

use std::cell::RefCell;

use godwit_memory::Pool;

use super::device::{CompletionQueue, Device, Limits};
use super::domain::Domain;
use super::error::VerbsError;

/// Entries of a completion queue to begin with; it grows as queue pairs come.
const ENTRIES: usize = 16 << 10;

/// The same on iWARP, where completion queues cannot grow. What does not fit is refused.
const ENTRIES_FOR_GOOD: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Shared {
    // Field order is drop order.
    pub(super) queue: CompletionQueue,
    pub(super) domain: RefCell<Domain>,
    pub(super) limits: Limits,
    pub(super) pool: Pool,
    device: Device,
    entries: RefCell<Entries>,
}

impl Shared {
    pub(super) fn new(device: Device, pool: &Pool) -> Result<Self, VerbsError> {
        let limits = device.limits()?;
        let entries = Entries::new(limits.completions, !device.is_iwarp());
        let queue = CompletionQueue::new(device, entries.count)?;
        let domain = Domain::new(device, pool)?;
        // Too little memory that may be locked is told before anyone is let in.
        domain.lkey()?;
        let domain = RefCell::new(domain);
        Ok(Self { queue, domain, limits, pool: pool.clone(), device, entries: RefCell::new(entries) })
    }

    pub(super) fn device(&self) -> Device {
        self.device
    }

    /// Sets entries of the completion queue aside: an overflow would cost every queue pair of the thread.
    pub(super) fn reserve(&self, count: usize) -> Result<(), VerbsError> {
        let mut entries = self.entries.borrow_mut();
        let full = |wanted| VerbsError::CompletionQueueFull { device: self.device.name(), most: entries.count, wanted };
        let grown = entries.grown_for(count).map_err(full)?;
        if let Some(grown) = grown {
            self.queue.resize(grown).map_err(|_| full(entries.reserved + count))?;
            entries.count = grown;
        }
        entries.reserved += count;
        Ok(())
    }

    pub(super) fn release(&self, count: usize) {
        self.entries.borrow_mut().reserved -= count;
    }
}

/// The entries of a completion queue.
#[derive(Debug)]
struct Entries {
    count: usize,
    /// Set aside for queue pairs.
    reserved: usize,
    /// How many it may have one day.
    most: usize,
}

impl Entries {
    /// Those of a new queue on a device that allows `limit` of them.
    fn new(limit: usize, grows: bool) -> Self {
        let count = limit.min(if grows { ENTRIES } else { ENTRIES_FOR_GOOD });
        Self { count, reserved: 0, most: if grows { limit } else { count } }
    }

    /// How large the queue has to become before `count` more can be set aside; `None` when it is large enough. The error is what all would need.
    fn grown_for(&self, count: usize) -> Result<Option<usize>, usize> {
        let wanted = self.reserved + count;
        match wanted {
            _ if wanted <= self.count => Ok(None),
            _ if wanted <= self.most => Ok(Some(wanted.next_power_of_two().min(self.most))),
            _ => Err(wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_queue_that_cannot_grow_is_full_when_all_its_entries_are_set_aside() {
        let mut entries = Entries::new(1 << 20, false);
        assert_eq!(entries.count, ENTRIES_FOR_GOOD);
        assert_eq!(entries.grown_for(ENTRIES_FOR_GOOD), Ok(None));
        entries.reserved = ENTRIES_FOR_GOOD - 10;
        assert_eq!(entries.grown_for(10), Ok(None));
        assert_eq!(entries.grown_for(11), Err(ENTRIES_FOR_GOOD + 1));
    }

    #[test]
    fn a_completion_queue_grows_up_to_what_the_device_allows() {
        let mut entries = Entries::new(50_000, true);
        assert_eq!(entries.count, ENTRIES);
        entries.reserved = ENTRIES;
        assert_eq!(entries.grown_for(1), Ok(Some(2 * ENTRIES)));
        assert_eq!(entries.grown_for(50_000 - ENTRIES), Ok(Some(50_000)));
        assert_eq!(entries.grown_for(50_001 - ENTRIES), Err(50_001));
    }

    #[test]
    fn a_completion_queue_has_no_more_entries_than_the_device_allows() {
        assert_eq!(Entries::new(100, true).count, 100);
        assert_eq!(Entries::new(100, false).count, 100);
    }
}
