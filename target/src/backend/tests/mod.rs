//! Tests of the backend: on a ring with real files, and step by step with a reactor whose operations end as the test says.

mod faults;
mod marks;
mod model;
mod opening;
mod privileged;
mod simulated;
mod steps;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use godwit_memory::{Buffer, ClassLayout, Layout};
use godwit_reactor::{BackingFile, Event, PollBudget, Reactor, Token, Uring, UringConfig};
use tempfile::TempDir;

use super::*;

fn ring() -> Uring {
    let pool = Layout::new(&[ClassLayout { buffer_bytes: 4096, count: 16 }, ClassLayout { buffer_bytes: 128 << 10, count: 8 }]).unwrap();
    Uring::new(&UringConfig { pool, poll: PollBudget(Duration::ZERO) }).unwrap()
}

/// A folder on a disk, whose file system has direct I/O: beside this program.
fn folder_on_disk() -> TempDir {
    tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
}

fn file_source(path: &Path, size: u64) -> Source {
    Source::File { path: path.to_owned(), size: Some(size), create: true }
}

fn options(source: Source, block_size: u32) -> OpenOptions {
    let state_dir = std::env::current_exe().unwrap().with_file_name("state");
    OpenOptions { block_size, lock_wait: Duration::ZERO, state_dir, ..OpenOptions::new(source) }
}

fn write(path: PathBuf, content: &[u8]) -> PathBuf {
    std::fs::write(&path, content).unwrap();
    path
}

/// One thread at work on one store.
struct Thread {
    ring: Uring,
    attached: Attached,
}

type Outcome = (Result<(), BackendError>, Option<Buffer>);

impl Thread {
    fn new(store: &Arc<Store<BackingFile>>) -> Self {
        let mut ring = ring();
        let attached = Attached::new(&mut ring, store).unwrap();
        Self { ring, attached }
    }

    /// Runs operations side by side, to their ends.
    fn run_all(&mut self, operations: Vec<Operation>) -> Vec<Outcome> {
        let mut outcomes: Vec<Option<Outcome>> = Vec::new();
        let mut jobs = Vec::new();
        for (index, operation) in operations.into_iter().enumerate() {
            let progress = self.attached.start(&mut self.ring, operation, Token(index as u64));
            outcomes.push(None);
            jobs.push(None);
            Self::note(progress, &mut jobs[index], &mut outcomes[index]);
        }
        let mut events = Vec::new();
        while outcomes.iter().any(Option::is_none) {
            self.ring.turn(&mut events).unwrap();
            for event in events.drain(..) {
                let Event::File { token, done } = event else { continue };
                let index = usize::try_from(token.0).unwrap();
                let job = jobs[index].take().expect("one event for each step");
                let progress = self.attached.resume(&mut self.ring, job, done, token);
                Self::note(progress, &mut jobs[index], &mut outcomes[index]);
            }
        }
        outcomes.into_iter().flatten().collect()
    }

    fn note(progress: Progress, job: &mut Option<Job>, outcome: &mut Option<Outcome>) {
        match progress {
            Progress::Working(working) => *job = Some(working),
            Progress::Done { result, buffer } => *outcome = Some((result, buffer)),
        }
    }

    fn run(&mut self, operation: Operation) -> Outcome {
        self.run_all(vec![operation]).pop().unwrap()
    }

    fn buffer(&self, content: &[u8]) -> Buffer {
        let mut buffer = self.ring.pool().take(content.len()).unwrap();
        buffer.copy_from_slice(content);
        buffer
    }

    fn write(&mut self, offset: u64, content: &[u8], durable: bool) -> Result<(), BackendError> {
        let buffer = self.buffer(content);
        let (result, buffer) = self.run(Operation::Write { offset, len: content.len(), buffer, durable });
        assert_eq!(&buffer.expect("a write gives its buffer back")[..], content);
        result
    }

    fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, BackendError> {
        let buffer = self.ring.pool().take(len).unwrap();
        let (result, buffer) = self.run(Operation::Read { offset, len, buffer });
        let buffer = buffer.expect("a read gives its buffer back");
        result.map(|()| buffer[..len].to_vec())
    }

    fn flush(&mut self) -> Result<(), BackendError> {
        self.run(Operation::Flush).0
    }
}

fn open(options: &OpenOptions) -> Arc<Store<BackingFile>> {
    Arc::new(Store::open(options).unwrap())
}
