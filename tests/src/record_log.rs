//! A log that is written through NBD and knows what it was promised: what has to be there whatever happened to the target since.
//!
//! Its records lie one after another, a block each, behind a head that is written again and again. Records are written several at a time and flushed, or
//! written alone with Force Unit Access; so is the head. A flush that fails promises nothing: the records that it was for are written again.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use godwit_nbd::{Command, CommandFlags, Errno, Request};

use crate::hostile::Random;
use crate::nbd::{Receiver, Sender};

/// The length of a record, and of the head.
const RECORD_LEN: u32 = 4096;

/// How many records a check reads at a time.
const CHECKED_AT_ONCE: usize = 256;

/// The most records between two flushes.
const MOST_RECORDS: usize = 32;

/// How long the log rests before a flush, at most: acknowledged writes are at stake meanwhile.
const MOST_REST_MS: u64 = 200;

/// When something happened, in power cuts before it.
type Life = u64;

/// A record that was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Promise {
    /// When its write was sent.
    sent: Life,
    /// When the flush that covered it had succeeded.
    kept: Life,
}

/// What is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// A record that was written and made durable before the target lost power: its flush, or it itself, was not on stable storage when it was answered.
    Durable,
    /// A record whose write was sent before a power cut, and for which a flush has succeeded after it: the flush succeeded over lost writes.
    FlushedOver,
}

#[derive(Debug, Default)]
struct Known {
    /// Of each record that was promised, from the first on.
    records: Vec<Promise>,
    /// The latest head that was promised, and the latest that was written.
    head: (u64, u64),
    /// The number of the last request that made something durable.
    last: u64,
    /// How many flushes and forced writes have failed.
    failures: u64,
}

/// The log.
#[derive(Debug)]
pub struct RecordLog {
    seed: u64,
    capacity: u64,
    life: AtomicU64,
    /// How many requests were sent that are to make something durable.
    sent: AtomicU64,
    ended: AtomicBool,
    known: Mutex<Known>,
    /// Whoever holds it has the volume for itself.
    turn: Mutex<()>,
}

impl RecordLog {
    /// An empty log for a volume of a size; what it writes follows from the seed.
    pub fn new(seed: u64, volume_bytes: u64) -> Self {
        let capacity = volume_bytes / u64::from(RECORD_LEN) - 1;
        let (known, turn) = (Mutex::default(), Mutex::default());
        Self { seed, capacity, life: AtomicU64::new(0), sent: AtomicU64::new(0), ended: AtomicBool::new(false), known, turn }
    }

    /// Writes until [`Self::end`].
    ///
    /// # Panics
    ///
    /// When a write fails, or a flush does with anything but EIO, or the connection ends.
    pub fn write(&self, connection: (Sender, Receiver)) {
        let mut random = Random::new(self.seed, 1);
        let mut writer = Writer { log: self, connection, cookie: 0 };
        while !self.ended.load(Ordering::Relaxed) {
            let turn = lock(&self.turn);
            match random.below(4) {
                0 => writer.force_head(),
                1 => writer.force_record(),
                _ => {
                    let rest = Duration::from_millis(if random.one_in(2) { random.below(MOST_REST_MS) } else { 0 });
                    writer.write_and_flush(random.count(1, MOST_RECORDS), rest);
                }
            }
            drop(turn);
            thread::sleep(Duration::from_millis(random.below(20)));
        }
    }

    /// Stops the writer after its next request.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// The target has lost power.
    pub fn cut(&self) {
        self.life.fetch_add(1, Ordering::SeqCst);
    }

    /// How many requests were sent so far that are to make something durable.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    /// Whether one that was sent after so many others has succeeded.
    pub fn goes_on_since(&self, sent: u64) -> bool {
        lock(&self.known).last > sent
    }

    /// How many records were promised.
    pub fn len(&self) -> usize {
        lock(&self.known).records.len()
    }

    /// Whether none was promised.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many flushes and forced writes have failed.
    pub fn failures(&self) -> u64 {
        lock(&self.known).failures
    }

    /// Looks for all that was promised; what is not there, by its block. The log stands still meanwhile.
    ///
    /// # Panics
    ///
    /// When a block of the log holds what was never written there.
    pub fn check(&self, mut read: impl FnMut(u64, u32) -> Vec<u8>) -> BTreeMap<u64, Loss> {
        let _turn = lock(&self.turn);
        let known = lock(&self.known);
        let mut losses = BTreeMap::new();
        let head = head_of(&read(0, RECORD_LEN));
        assert!(head <= known.head.1, "the head is {head}, and {} is the last that was written", known.head.1);
        if head < known.head.0 {
            losses.insert(0, Loss::Durable);
        }
        for (chunk, promises) in known.records.chunks(CHECKED_AT_ONCE).enumerate() {
            let first = u64::try_from(chunk * CHECKED_AT_ONCE).unwrap_or(u64::MAX);
            let length = RECORD_LEN * u32::try_from(promises.len()).unwrap_or(u32::MAX);
            let data = read(offset_of(first), length);
            for ((index, promise), found) in (first..).zip(promises).zip(data.chunks(RECORD_LEN as usize)) {
                if found == self.record(index) {
                    continue;
                }
                assert!(found.iter().all(|&byte| byte == 0), "record {index} is neither there nor missing: {:?}...", &found[..64]);
                losses.insert(index + 1, if promise.sent == promise.kept { Loss::Durable } else { Loss::FlushedOver });
            }
        }
        losses
    }

    fn life(&self) -> Life {
        self.life.load(Ordering::SeqCst)
    }

    fn record(&self, index: u64) -> Vec<u8> {
        let mut random = Random::new(self.seed, index + 2);
        (0..RECORD_LEN / 8).flat_map(|_| random.long().to_le_bytes()).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn offset_of(index: u64) -> u64 {
    (index + 1) * u64::from(RECORD_LEN)
}

fn head_of(block: &[u8]) -> u64 {
    let mut words = block.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
    let head = words.next().expect("a block");
    assert!(words.all(|word| word == head), "the head is torn");
    head
}

struct Writer<'a> {
    log: &'a RecordLog,
    connection: (Sender, Receiver),
    cookie: u64,
}

impl<'a> Writer<'a> {
    fn write_and_flush(&mut self, count: usize, rest: Duration) {
        let (first, sent) = (u64::try_from(self.log.len()).unwrap_or(u64::MAX), self.log.life());
        let records = first..first + u64::try_from(count).unwrap_or(0);
        for index in records.clone() {
            self.send(Command::Write, CommandFlags::NONE, offset_of(index), &self.log.record(index));
        }
        for _ in records.clone() {
            assert_eq!(self.receive(), Errno::OK, "one of the writes of {records:?}");
        }
        thread::sleep(rest);
        if let Some(mut known) = self.make_durable(Command::Flush, CommandFlags::NONE, 0, &[]) {
            let promise = Promise { sent, kept: self.log.life() };
            known.records.extend(records.map(|_| promise));
        }
    }

    fn force_record(&mut self) {
        let (index, sent) = (u64::try_from(self.log.len()).unwrap_or(u64::MAX), self.log.life());
        let record = self.log.record(index);
        if let Some(mut known) = self.make_durable(Command::Write, CommandFlags::FUA, offset_of(index), &record) {
            known.records.push(Promise { sent, kept: self.log.life() });
        }
    }

    fn force_head(&mut self) {
        let head = {
            let mut known = lock(&self.log.known);
            known.head.1 += 1;
            known.head.1
        };
        let block = head.to_le_bytes().repeat(RECORD_LEN as usize / 8);
        if let Some(mut known) = self.make_durable(Command::Write, CommandFlags::FUA, 0, &block) {
            known.head.0 = head;
        }
    }

    /// A request that makes something durable: what is known when it has, or nothing when it has failed.
    fn make_durable(&mut self, command: Command, flags: CommandFlags, offset: u64, payload: &[u8]) -> Option<MutexGuard<'a, Known>> {
        let number = self.log.sent.fetch_add(1, Ordering::SeqCst) + 1;
        self.send(command, flags, offset, payload);
        let errno = self.receive();
        let mut known = lock(&self.log.known);
        if errno == Errno::EIO {
            known.failures += 1;
            return None;
        }
        assert_eq!(errno, Errno::OK);
        known.last = number;
        Some(known)
    }

    fn send(&mut self, command: Command, flags: CommandFlags, offset: u64, payload: &[u8]) {
        assert!(offset < self.log.capacity * u64::from(RECORD_LEN), "the log is full");
        self.cookie += 1;
        let length = u32::try_from(payload.len()).expect("a short payload");
        self.connection.0.send(&Request { cookie: self.cookie, command, flags, offset, length }, payload).expect("the server takes it");
    }

    fn receive(&mut self) -> Errno {
        let answer: io::Result<_> = self.connection.1.receive(|_| 0);
        answer.expect("the server answers").errno
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 * RECORD_LEN as usize;

    /// A log of which ten records were promised: the first five before a power cut, two across it, three after it.
    fn log() -> (RecordLog, Vec<u8>) {
        let log = RecordLog::new(1, BYTES as u64);
        let promises = [(0, 0, 5), (0, 1, 2), (1, 1, 3)];
        let records = promises.iter().flat_map(|&(sent, kept, count)| vec![Promise { sent, kept }; count]).collect();
        *lock(&log.known) = Known { records, head: (2, 3), last: 0, failures: 0 };
        let records = (0..10).flat_map(|index| log.record(index));
        let mut volume: Vec<_> = 2_u64.to_le_bytes().repeat(RECORD_LEN as usize / 8).into_iter().chain(records).collect();
        volume.resize(BYTES, 0);
        (log, volume)
    }

    fn check(log: &RecordLog, volume: &[u8]) -> Vec<(u64, Loss)> {
        let read = |offset: u64, len: u32| volume[usize::try_from(offset).unwrap()..][..len as usize].to_vec();
        log.check(read).into_iter().collect()
    }

    #[test]
    fn finds_nothing_missing_where_all_is_there() {
        let (log, volume) = log();
        assert_eq!(check(&log, &volume), []);
    }

    #[test]
    fn finds_what_is_missing_and_tells_which_promise_was_broken() {
        let (log, mut volume) = log();
        for block in [1, 6, 10] {
            volume[block * RECORD_LEN as usize..][..RECORD_LEN as usize].fill(0);
        }
        volume[..RECORD_LEN as usize].copy_from_slice(&1_u64.to_le_bytes().repeat(RECORD_LEN as usize / 8));
        assert_eq!(check(&log, &volume), [(0, Loss::Durable), (1, Loss::Durable), (6, Loss::FlushedOver), (10, Loss::Durable)]);
    }

    #[test]
    #[should_panic(expected = "neither there nor missing")]
    fn finds_a_record_that_was_written_in_part() {
        let (log, mut volume) = log();
        volume[RECORD_LEN as usize..][..512].fill(0);
        check(&log, &volume);
    }
}
