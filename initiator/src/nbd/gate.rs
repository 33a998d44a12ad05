//! The gate that keeps requests behind the operations of connections that ended before them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many connections had ended with operations under way, at some moment. Whoever passes the gate with it comes after those operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark(u64);

/// Operations that outlived their connection, of all connections of one volume.
#[derive(Debug, Default)]
pub(super) struct Gate {
    ended: AtomicU64,
    /// Ended connections by their number, with how many operations of each have not ended.
    open: Mutex<BTreeMap<u64, usize>>,
}

impl Gate {
    /// The moment now. One load: this is all that the gate costs while no connection breaks.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.ended.load(Ordering::Acquire))
    }

    /// Whether every operation of the connections that had ended by `mark` has ended.
    pub(super) fn is_clear(&self, mark: Mark) -> bool {
        self.lock().first_key_value().is_none_or(|(&oldest, _)| oldest >= mark.0)
    }

    /// A connection ends and leaves so many operations behind. To be called before its socket is closed.
    pub(super) fn retire(gate: &Arc<Self>, operations: usize) -> Orphans {
        let mut open = gate.lock();
        let number = gate.ended.load(Ordering::Relaxed);
        open.insert(number, operations);
        gate.ended.store(number + 1, Ordering::Release);
        Orphans { gate: Arc::clone(gate), number }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The operations that one connection left behind. Dropping this does not end them: what was not seen to end keeps the gate shut.
#[derive(Debug)]
pub(super) struct Orphans {
    gate: Arc<Gate>,
    number: u64,
}

impl Orphans {
    /// One of them has ended.
    pub(super) fn one_ended(&self) {
        let mut open = self.gate.lock();
        if let Some(left) = open.get_mut(&self.number) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                open.remove(&self.number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_waits_for_those_that_ended_before_it_and_for_no_others() {
        let gate = Arc::new(Gate::default());
        let before = gate.mark();
        assert!(gate.is_clear(before));
        let first = Gate::retire(&gate, 2);
        let after_first = gate.mark();
        let second = Gate::retire(&gate, 1);
        let after_second = gate.mark();
        assert!(gate.is_clear(before));
        assert!(!gate.is_clear(after_first));
        first.one_ended();
        assert!(!gate.is_clear(after_first));
        first.one_ended();
        assert!(gate.is_clear(after_first));
        assert!(!gate.is_clear(after_second));
        second.one_ended();
        assert!(gate.is_clear(after_second));
    }

    #[test]
    fn operations_that_were_never_seen_to_end_keep_the_gate_shut() {
        let gate = Arc::new(Gate::default());
        drop(Gate::retire(&gate, 1));
        assert!(!gate.is_clear(gate.mark()));
    }
}
