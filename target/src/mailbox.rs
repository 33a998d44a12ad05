//! What threads tell a reactor thread: notices in a mailbox, and a way to wake it.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::association::{AssociationId, Ending, Host, SubsystemIndex, Waiter};
use crate::queue::QueueKey;

/// Something that a reactor thread has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Close the queues of an association, which is dying.
    Close(AssociationId, Ending),
    /// The commands that an admin Connect waited for have ended.
    Settled(QueueKey),
    /// Look whether connections of a host have ended, then tell the admin queue that asked, with the number of its question.
    Look {
        /// Who asks.
        waiter: Waiter,
        /// The number of the question.
        question: u32,
        /// Whose queues, and of which subsystem.
        host: Host,
        subsystem: SubsystemIndex,
    },
    /// A worker has looked.
    Looked(QueueKey, u32),
    /// Stop: finish what runs, flush, and be done.
    Drain,
}

/// The mailbox of one reactor thread.
#[derive(Default)]
pub(crate) struct Mailbox {
    notices: Mutex<Vec<Notice>>,
    /// Whether there are notices, so that an empty mailbox costs one load.
    pending: AtomicBool,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Mailbox {
    /// Sets how the thread is woken. Only the first call has an effect.
    pub(crate) fn set_wake(&self, wake: Box<dyn Fn() + Send + Sync>) {
        let _ = self.wake.set(wake);
        self.wake();
    }

    pub(crate) fn post(&self, notice: Notice) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
        self.pending.store(true, Ordering::Release);
        self.wake();
    }

    /// Takes all notices.
    pub(crate) fn take(&self) -> Vec<Notice> {
        if !self.pending.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        mem::take(&mut *self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.pending.load(Ordering::Relaxed)
    }

    /// Makes the thread look, once it can be woken.
    pub(crate) fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("pending", &self.pending).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn every_post_wakes_and_is_taken_once() {
        let mailbox = Mailbox::default();
        let woken = Arc::new(AtomicUsize::new(0));
        mailbox.post(Notice::Drain);
        mailbox.set_wake(Box::new({
            let woken = Arc::clone(&woken);
            move || {
                woken.fetch_add(1, Ordering::Relaxed);
            }
        }));
        mailbox.post(Notice::Drain);
        assert_eq!(woken.load(Ordering::Relaxed), 2, "once for what was posted before, once after");
        assert_eq!(mailbox.take(), [Notice::Drain, Notice::Drain]);
        assert!(mailbox.is_empty());
        assert_eq!(mailbox.take(), []);
    }
}
