//! What the queue pairs of one thread share on one device: completion queue, protection domain, limits.

use std::cell::{Cell, RefCell};

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
    entries: Cell<usize>,
    reserved: Cell<usize>,
}

impl Shared {
    pub(super) fn new(device: Device, pool: &Pool) -> Result<Self, VerbsError> {
        let limits = device.limits()?;
        let entries = limits.completions.min(if device.is_iwarp() { ENTRIES_FOR_GOOD } else { ENTRIES });
        let queue = CompletionQueue::new(device, entries)?;
        let domain = Domain::new(device, pool)?;
        // Too little memory that may be locked is told before anyone is let in.
        domain.lkey()?;
        let domain = RefCell::new(domain);
        Ok(Self { queue, domain, limits, pool: pool.clone(), device, entries: Cell::new(entries), reserved: Cell::new(0) })
    }

    pub(super) fn device(&self) -> Device {
        self.device
    }

    /// Sets entries of the completion queue aside: an overflow would cost every queue pair of the thread.
    pub(super) fn reserve(&self, count: usize) -> Result<(), VerbsError> {
        let wanted = self.reserved.get() + count;
        if wanted > self.entries.get() {
            let grown = wanted.next_power_of_two().min(self.limits.completions);
            let grows = !self.device.is_iwarp() && grown >= wanted && self.queue.resize(grown).is_ok();
            if !grows {
                return Err(VerbsError::Limit {
                    device: self.device.name(),
                    what: "entries of a completion queue",
                    most: self.entries.get(),
                    wanted,
                    hint: "; use fewer or shorter queues, or more reactors",
                });
            }
            self.entries.set(grown);
        }
        self.reserved.set(wanted);
        Ok(())
    }

    pub(super) fn release(&self, count: usize) {
        self.reserved.set(self.reserved.get() - count);
    }
}
