//! What an administrator wants to know of what went wrong: whom the target refused, and its latest errors. Written off the data path, on refusals and ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Errors that are remembered.
const LATEST: usize = 32;

/// The journal of a target.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    refused: BTreeMap<&'static str, u64>,
    latest: VecDeque<(SystemTime, String)>,
}

impl Journal {
    fn with<T>(&self, work: impl FnOnce(&mut Pages) -> T) -> T {
        work(&mut self.pages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A connection or Connect was refused; there are not many reasons.
    pub(crate) fn refused(&self, reason: &'static str) {
        self.with(|pages| *pages.refused.entry(reason).or_default() += 1);
    }

    /// Something went wrong.
    pub(crate) fn error(&self, text: String) {
        self.with(|pages| {
            if pages.latest.len() == LATEST {
                pages.latest.pop_front();
            }
            pages.latest.push_back((SystemTime::now(), text));
        });
    }

    /// How many were refused, by reason.
    pub(crate) fn refusals(&self) -> Vec<(&'static str, u64)> {
        self.with(|pages| pages.refused.iter().map(|(&reason, &count)| (reason, count)).collect())
    }

    /// The latest errors, oldest first.
    pub(crate) fn latest(&self) -> Vec<(SystemTime, String)> {
        self.with(|pages| pages.latest.iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_by_reason_and_the_latest_errors_kept() {
        let journal = Journal::default();
        for reason in ["b", "a", "b"] {
            journal.refused(reason);
        }
        assert_eq!(journal.refusals(), [("a", 1), ("b", 2)]);
        for number in 0..=LATEST {
            journal.error(number.to_string());
        }
        let latest: Vec<_> = journal.latest().into_iter().map(|(_, text)| text).collect();
        assert_eq!((latest.len(), latest[0].as_str(), latest[LATEST - 1].as_str()), (LATEST, "1", "32"));
    }
}
