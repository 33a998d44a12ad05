//! Copies of acknowledged changes, in a ring of fixed size, until a flush has covered them. See the module `ledger`.

use std::collections::VecDeque;

use godwit_nvme::BlockRange;
use godwit_reactor::Time;

use super::operation::Action;

/// Bytes of the ring to each record, of which there are that many: smaller changes use the records up first.
const BYTES_PER_RECORD: usize = 4096;

/// Where a change stands in the order of all acknowledgements, and what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Its number among the queue's acknowledgements.
    pub(crate) number: u64,
    /// The turn in which it was acknowledged.
    pub(crate) at: Time,
    /// What it was, with FUA taken off: covered it is by a flush.
    pub(crate) action: Action,
    /// Where its data begins in the ring.
    start: usize,
}

/// The copies of one queue.
#[derive(Debug)]
pub(crate) struct Retained {
    ring: Box<[u8]>,
    /// Where the next copy goes.
    end: usize,
    used: usize,
    records: VecDeque<Record>,
    max_records: usize,
}

impl Retained {
    /// Room for so many bytes, all of it allocated, and touched, here.
    pub(crate) fn new(bytes: usize) -> Self {
        let max_records = (bytes / BYTES_PER_RECORD).max(16);
        let mut ring = Vec::with_capacity(bytes);
        // Written to: a page that is only reserved would be allocated when memory is short.
        ring.resize(bytes, 0xA5);
        Self { ring: ring.into(), end: 0, used: 0, records: VecDeque::with_capacity(max_records), max_records }
    }

    /// Whether there is room for a copy of this.
    pub(crate) fn has_room(&self, action: Action) -> bool {
        self.records.len() < self.max_records && self.used + data_bytes(action) <= self.ring.len()
    }

    /// Whether it is time to have copies covered: half of the room is used.
    pub(crate) fn is_filling(&self) -> bool {
        self.used > self.ring.len() / 2 || self.records.len() > self.max_records / 2
    }

    /// Keeps a copy.
    ///
    /// # Panics
    ///
    /// Without [room](Self::has_room).
    pub(crate) fn keep(&mut self, number: u64, at: Time, action: Action, data: &[u8]) {
        assert!(self.has_room(action), "a copy is kept where there is room");
        let action = match action {
            Action::Write { blocks, len_bytes, .. } => Action::Write { blocks, len_bytes, fua: false },
            Action::WriteZeroes { blocks, may_deallocate, .. } => Action::WriteZeroes { blocks, may_deallocate, fua: false },
            other => other,
        };
        let len_bytes = data_bytes(action);
        let start = self.end;
        let (first, second) = split(self.ring.len(), start, len_bytes);
        self.ring[start..start + first].copy_from_slice(&data[..first]);
        self.ring[..second].copy_from_slice(&data[first..len_bytes]);
        self.end = if second > 0 || start + first == self.ring.len() { second } else { start + first };
        self.used += len_bytes;
        self.records.push_back(Record { number, at, action, start });
    }

    /// Lets the copies go that are covered, up to a number and a turn: see [`settled`](super::ledger::Ledger::settled).
    pub(crate) fn release(&mut self, (covered, until): (u64, Time)) {
        while let Some(record) = self.records.front()
            && record.number <= covered
            && record.at <= until
        {
            self.used -= data_bytes(record.action);
            self.records.pop_front();
        }
    }

    /// Lets all copies go.
    pub(crate) fn clear(&mut self) {
        self.release((u64::MAX, Time::from_nanos(u64::MAX)));
    }

    /// The copies, the oldest first.
    pub(crate) fn get(&self, index: usize) -> Option<Record> {
        self.records.get(index).copied()
    }

    /// Copies the data of a record, of which `into` takes as much as there is.
    pub(crate) fn copy(&self, record: &Record, into: &mut [u8]) {
        let (first, second) = split(self.ring.len(), record.start, data_bytes(record.action));
        into[..first].copy_from_slice(&self.ring[record.start..record.start + first]);
        into[first..first + second].copy_from_slice(&self.ring[..second]);
    }
}

fn data_bytes(action: Action) -> usize {
    match action {
        Action::Write { .. } | Action::Discard => action.data_bytes(),
        Action::Read { .. } | Action::Flush | Action::WriteZeroes { .. } => 0,
    }
}

/// How much of a copy lies before the end of the ring, and how much at its beginning.
fn split(ring_bytes: usize, start: usize, len_bytes: usize) -> (usize, usize) {
    let first = len_bytes.min(ring_bytes - start);
    (first, len_bytes - first)
}

/// Whether two changes have a block in common, for all that is known: the range of a discard is in its data.
pub(crate) fn overlap(one: Action, other: Action) -> bool {
    let range = |action| match action {
        Action::Write { blocks, .. } | Action::WriteZeroes { blocks, .. } => Some(bounds(blocks)),
        _ => None,
    };
    match (range(one), range(other)) {
        (Some((start, end)), Some((other_start, other_end))) => start < other_end && other_start < end,
        _ => one == Action::Discard || other == Action::Discard,
    }
}

fn bounds(blocks: BlockRange) -> (u64, u64) {
    let start = blocks.start.get();
    (start, start.saturating_add(u64::from(blocks.count.get())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use godwit_nvme::{BlockCount, Lba};

    fn range(start: u64, count: u32) -> BlockRange {
        BlockRange::new(Lba::new(start), BlockCount::new(count).unwrap())
    }

    fn write(start: u64, len_bytes: usize) -> Action {
        Action::Write { blocks: range(start, u32::try_from(len_bytes / 512).unwrap()), len_bytes, fua: true }
    }

    fn contents(retained: &Retained, index: usize) -> Vec<u8> {
        let record = retained.get(index).unwrap();
        let mut bytes = vec![0; data_bytes(record.action)];
        retained.copy(&record, &mut bytes);
        bytes
    }

    #[test]
    fn copies_are_whole_and_in_order_however_often_the_ring_goes_round() {
        let mut retained = Retained::new(10 * 512);
        let mut kept: VecDeque<(u64, Vec<u8>)> = VecDeque::new();
        for number in 1..200_u64 {
            let len = usize::try_from(1 + number % 4).unwrap() * 512;
            let action = write(number, len);
            while !retained.has_room(action) {
                let (oldest, _) = kept.pop_front().unwrap();
                retained.release((oldest, Time::default()));
            }
            let data: Vec<u8> = (0..len).map(|at| u8::try_from((number + at as u64) % 251).unwrap()).collect();
            retained.keep(number, Time::default(), action, &data);
            kept.push_back((number, data));
            for (index, (number, data)) in kept.iter().enumerate() {
                assert_eq!(retained.get(index).unwrap().number, *number);
                assert_eq!(contents(&retained, index), *data, "copy {number}");
            }
            assert_eq!(retained.get(kept.len()), None);
        }
        retained.clear();
        assert_eq!((retained.used, retained.get(0)), (0, None));
    }

    #[test]
    fn a_full_ring_has_no_room_and_zeroes_take_none() {
        let mut retained = Retained::new(16 * 4096);
        for number in 0..15 {
            retained.keep(number, Time::default(), write(number, 4096), &[1; 4096]);
        }
        assert!(retained.is_filling());
        assert!(retained.has_room(write(0, 4096)) && !retained.has_room(write(0, 8192)));
        let zeroes = Action::WriteZeroes { blocks: range(0, 65536), may_deallocate: true, fua: false };
        assert!(retained.has_room(zeroes));
        retained.keep(15, Time::default(), zeroes, &[]);
        assert!(!retained.has_room(zeroes), "there are as many records as pages");
        retained.release((7, Time::default()));
        assert!(!retained.is_filling());
    }

    #[test]
    fn what_was_forced_is_kept_as_what_is_not() {
        let mut retained = Retained::new(1 << 20);
        retained.keep(1, Time::default(), write(1, 512), &[1; 512]);
        assert!(matches!(retained.get(0).unwrap().action, Action::Write { fua: false, .. }));
    }

    #[test]
    fn ranges_overlap_when_they_share_a_block() {
        assert!(overlap(write(0, 1024), write(1, 512)));
        assert!(!overlap(write(0, 1024), write(2, 512)));
        let zeroes = Action::WriteZeroes { blocks: range(0, 10), may_deallocate: false, fua: false };
        assert!(overlap(write(9, 512), zeroes) && overlap(zeroes, Action::Discard) && overlap(Action::Discard, write(9, 512)));
    }
}
