//! A simulated disk with a volatile cache.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::Random;
use crate::FileOp;

/// A disk, or a file on one. Clones are the same disk; it outlives the hosts that use it.
#[derive(Clone, Debug)]
pub struct Disk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// What a reader sees.
    current: Vec<u8>,
    /// What a power cut leaves for sure, as far as the log does not say otherwise.
    durable: Vec<u8>,
    /// What has changed since, in order.
    log: VecDeque<Change>,
    /// Changes that have left the log.
    logged: u64,
    delay: Duration,
    fail_next_sync: bool,
    syncs: u64,
}

#[derive(Debug)]
struct Change {
    offset: usize,
    bytes: Vec<u8>,
    /// Whether it was written through: a power cut leaves it for sure.
    forced: bool,
}

/// A power cut takes or leaves so much at a time.
const SECTOR_BYTES: usize = 4096;

impl Disk {
    /// A disk of zeroes. Its operations take up to `delay`.
    pub fn new(size_bytes: usize, delay: Duration) -> Self {
        let state = State {
            current: vec![0; size_bytes],
            durable: vec![0; size_bytes],
            log: VecDeque::new(),
            logged: 0,
            delay,
            fail_next_sync: false,
            syncs: 0,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a simulation has one thread")
    }

    /// Changes how long operations that start from now on take at most.
    pub fn set_delay(&self, delay: Duration) {
        self.state().delay = delay;
    }

    /// Makes the next sync fail.
    pub fn fail_next_sync(&self) {
        self.state().fail_next_sync = true;
    }

    /// How many syncs have succeeded.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// What a reader would see.
    pub fn contents(&self) -> Vec<u8> {
        self.state().current.clone()
    }

    /// Cuts the power: each sector of each write that was not synced is lost or kept, by chance.
    pub fn cut_power(&self, random: &mut Random) {
        let state = &mut *self.state();
        while let Some(change) = state.pop_change() {
            for (sector, piece) in pieces(&change) {
                if change.forced || random.below(2) == 0 {
                    state.durable[sector..sector + piece.len()].copy_from_slice(piece);
                }
            }
        }
        state.current.clone_from(&state.durable);
    }

    /// How many changes there were so far: a sync that starts now covers these.
    pub(crate) fn changes(&self) -> u64 {
        let state = self.state();
        state.logged + state.log.len() as u64
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    pub(crate) fn delay(&self, random: &mut Random) -> Duration {
        let most = u64::try_from(self.state().delay.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(1 + random.below(most))
    }

    /// Runs an operation at the moment when it takes effect. `changes` is how many there were when it started.
    pub(crate) fn run(&self, mut op: FileOp, changes: u64, random: &mut Random) -> (io::Result<usize>, FileOp) {
        let state = &mut *self.state();
        let size = state.current.len();
        let result = match &mut op {
            FileOp::Read { offset, buffer, start, len } => range(*offset, *len, size).map(|range| {
                let count = random.piece(range.len().max(1)).min(range.len());
                buffer[*start..*start + count].copy_from_slice(&state.current[range.start..range.start + count]);
                count
            }),
            FileOp::Write { offset, buffer, start, len, durable } => range(*offset, *len, size).map(|range| {
                buffer.set_len(buffer.len().max(*start + *len));
                state.change(range.start, buffer[*start..*start + range.len()].to_vec(), *durable);
                range.len()
            }),
            FileOp::Sync => state.sync(changes).map(|()| 0),
            FileOp::Allocate { offset, len, .. } => range(*offset, usize::try_from(*len).unwrap_or(usize::MAX), size).map(|range| {
                state.change(range.start, vec![0; range.len()], false);
                0
            }),
        };
        (result, op)
    }
}

impl State {
    fn change(&mut self, offset: usize, bytes: Vec<u8>, forced: bool) {
        self.current[offset..offset + bytes.len()].copy_from_slice(&bytes);
        self.log.push_back(Change { offset, bytes, forced });
    }

    fn pop_change(&mut self) -> Option<Change> {
        let change = self.log.pop_front()?;
        self.logged += 1;
        Some(change)
    }

    /// Makes the first so many changes durable.
    fn sync(&mut self, changes: u64) -> io::Result<()> {
        let fails = std::mem::take(&mut self.fail_next_sync);
        while self.logged < changes
            && let Some(change) = self.pop_change()
        {
            // A failure is that of a page cache: what was dirty counts as clean from now on, and may be lost.
            if change.forced || !fails {
                self.durable[change.offset..change.offset + change.bytes.len()].copy_from_slice(&change.bytes);
            }
        }
        if fails {
            return Err(io::Error::other("simulated sync failure"));
        }
        self.syncs += 1;
        Ok(())
    }
}

/// The parts of a change that lie in one sector each, and where.
fn pieces(change: &Change) -> impl Iterator<Item = (usize, &[u8])> {
    let head = (SECTOR_BYTES - change.offset % SECTOR_BYTES).min(change.bytes.len());
    let (head, rest) = change.bytes.split_at(head);
    let first = change.offset + head.len();
    let rest = rest.chunks(SECTOR_BYTES).enumerate().map(move |(index, piece)| (first + index * SECTOR_BYTES, piece));
    std::iter::once((change.offset, head)).chain(rest)
}

/// The part of a range that lies on the disk.
fn range(offset: u64, len: usize, size: usize) -> io::Result<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok().filter(|start| *start <= size).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(start..start.saturating_add(len).min(size))
}
