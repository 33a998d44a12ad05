//! A target that is away for longer than the kernel waits for a socket: what waits is sent again on other sockets, and no copy of it lands after what came later.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use godwit_tests::daemon::{Target, free_port, wait_for};
use godwit_tests::lab::attached::Attached;
use godwit_tests::lab::{Guest, dmesg, in_guest};

use crate::cells::step;

/// The kernel's patience with a socket is a quarter of this.
const AWAY: Duration = Duration::from_secs(120);

/// How long anything may take that takes moments.
const PATIENCE: Duration = Duration::from_secs(60);

/// Each with a request under way.
const WRITERS: u64 = 24;

/// Of each writer. Few: each is written again and again.
const BLOCKS: u64 = 2;

const BLOCK_BYTES: usize = 16 << 10;

#[test]
#[ignore = "needs root and QEMU, and takes long: make lab-long"]
fn nothing_old_lands_after_a_target_was_away_for_two_minutes() {
    in_guest(&Guest::default().processors(4), || {
        let folder = tempfile::tempdir().unwrap();
        let export = format!("{},size=64MiB", folder.path().join("disk.img").display());
        let port = free_port();
        let mut target = Target::start_at(port, &export);
        let attached = Attached::start(&target.url(), &["--connections", "4", "--nr-io-queues", "4", "--reactors", "4"]);
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|number| {
                    let (disk, stop, written) = (attached.disk.path(), &stop, &written);
                    scope.spawn(move || rewrite(disk, number, stop, written))
                })
                .collect();
            let _stops = Stops(&stop);
            let goes_on = || {
                let before = written.load(Ordering::Relaxed);
                wait_for("writes go on", PATIENCE, || written.load(Ordering::Relaxed) > before + 8 * WRITERS);
            };
            goes_on();
            step("the target is killed");
            target.process.kill();
            thread::sleep(AWAY);
            assert!(writers.iter().all(|writer| !writer.is_finished()), "a writer has failed");
            let log = dmesg();
            assert!(log.contains("Connection timed out, retrying"), "the kernel has sent nothing again:\n{log}");
            step("it is back");
            target = Target::start_at(port, &export);
            goes_on();
            thread::sleep(Duration::from_secs(2));
            stop.store(true, Ordering::Relaxed);
            let last: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
            // What is still to land has had the time to do so.
            thread::sleep(Duration::from_secs(3));
            for (number, last) in (0..).zip(last) {
                check_all(&open(attached.disk.path()), number, &last);
            }
        });
        println!("{} writes", written.load(Ordering::Relaxed));
        let log = dmesg();
        assert!(!log.contains("I/O error") && !log.contains("critical"), "{log}");
    });
}

/// Has the writers end when the test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn open(disk: &Path) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(disk).unwrap()
}

/// Memory as direct I/O wants it.
struct Block {
    memory: Vec<u8>,
    start: usize,
}

impl Block {
    fn new() -> Self {
        let memory = vec![0; BLOCK_BYTES * 2];
        let start = memory.as_ptr().align_offset(4096);
        Self { memory, start }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + BLOCK_BYTES]
    }
}

fn offset(writer: u64, block: u64) -> u64 {
    (writer * BLOCKS + block) * BLOCK_BYTES as u64
}

/// A version of a block: all its words are that number.
fn fill(bytes: &mut [u8], version: u64) {
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&version.to_le_bytes()));
}

/// Writes version after version of a few blocks, and looks before each whether the last one is still there. The last versions, by block.
fn rewrite(disk: &Path, writer: u64, stop: &AtomicBool, written: &AtomicU64) -> Vec<u64> {
    let file = open(disk);
    let mut block = Block::new();
    let mut last = vec![0; usize::try_from(BLOCKS).unwrap()];
    for version in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let number = version % BLOCKS;
        let known = &mut last[usize::try_from(number).unwrap()];
        if *known > 0 {
            check(&file, &mut block, writer, number, *known);
        }
        fill(block.bytes(), version);
        file.write_all_at(block.bytes(), offset(writer, number))
            .unwrap_or_else(|error| panic!("version {version} of writer {writer}: {error}"));
        *known = version;
        written.fetch_add(1, Ordering::Relaxed);
    }
    last
}

fn check_all(file: &File, writer: u64, last: &[u64]) {
    let mut block = Block::new();
    for (number, &version) in (0..).zip(last) {
        check(file, &mut block, writer, number, version);
    }
}

fn check(file: &File, block: &mut Block, writer: u64, number: u64, version: u64) {
    file.read_exact_at(block.bytes(), offset(writer, number))
        .unwrap_or_else(|error| panic!("reading block {number} of writer {writer}: {error}"));
    let found = block.bytes().chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).find(|&found| found != version);
    assert_eq!(found, None, "block {number} of writer {writer} is to have version {version}");
}
