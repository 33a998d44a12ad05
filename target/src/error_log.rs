//! The error log of a controller: its latest errors, newest first.

use std::collections::VecDeque;

use godwit_nvme::log::{ErrorEntry, ParameterLocation};
use godwit_nvme::{Cid, Lba, Nsid, Qid, Status};

use crate::limits::ERROR_LOG_ENTRIES;

/// A command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) sqid: Qid,
    pub(crate) cid: Cid,
    pub(crate) status: Status,
    /// Byte of the command that is at fault, where known.
    pub(crate) location: Option<u8>,
    pub(crate) nsid: Nsid,
    pub(crate) lba: Lba,
}

/// A ring of errors.
#[derive(Debug)]
pub(crate) struct ErrorLog {
    entries: VecDeque<ErrorEntry>,
    count: u64,
}

impl Default for ErrorLog {
    fn default() -> Self {
        Self { entries: VecDeque::with_capacity(ERROR_LOG_ENTRIES), count: 0 }
    }
}

impl ErrorLog {
    /// Adds an error; the oldest goes when the log is full.
    pub(crate) fn push(&mut self, failure: Failure) {
        self.count += 1;
        if self.entries.len() == ERROR_LOG_ENTRIES {
            self.entries.pop_back();
        }
        let Failure { sqid, cid, status, location, nsid, lba } = failure;
        let entry = ErrorEntry::new(self.count, sqid, cid, status).at_block(nsid, lba);
        let entry = location.map_or(entry, |byte| entry.at_parameter(ParameterLocation { byte, bit: 0 }));
        self.entries.push_front(entry);
    }

    /// Newest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &ErrorEntry> {
        self.entries.iter()
    }

    /// How many errors there have been.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use godwit_nvme::StatusCode;

    use super::*;

    #[test]
    fn keeps_the_latest_and_counts_all() {
        let mut log = ErrorLog::default();
        for cid in 0..70 {
            log.push(Failure {
                sqid: Qid::new(1),
                cid: Cid::new(cid),
                status: StatusCode::INVALID_FIELD.do_not_retry(),
                location: Some(40),
                nsid: Nsid::new(1),
                lba: Lba::new(0),
            });
        }
        assert_eq!(log.count(), 70);
        assert_eq!(log.entries().count(), ERROR_LOG_ENTRIES);
        let newest = log.entries().next().unwrap();
        assert_eq!((newest.count(), newest.cid()), (70, Cid::new(69)));
        assert_eq!(newest.parameter(), Some(ParameterLocation { byte: 40, bit: 0 }));
    }
}
