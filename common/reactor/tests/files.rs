//! Files of the ring: on disk past the page cache, through it, and in memory.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use godwit_memory::Buffer;
use godwit_reactor::{AllocateMode, BackingFile, Event, FileDone, FileId, FileOp, Reactor, Token};
use nix::sys::resource::{Resource, setrlimit};
use support::{Loop, alone, is_alone};
use tempfile::NamedTempFile;

/// A file system that keeps its data on a disk.
fn on_disk() -> NamedTempFile {
    NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn open(path: &Path, flags: i32) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

fn backing(file: File) -> BackingFile {
    BackingFile::Open(Arc::new(file))
}

fn buffer(it: &Loop, byte: u8) -> Buffer {
    let mut buffer = it.reactor.pool().take(4096).unwrap();
    buffer.fill(byte);
    buffer
}

fn read(it: &Loop, offset: u64) -> FileOp {
    FileOp::Read { offset, buffer: buffer(it, 0xee), start: 0, len: 4096 }
}

fn write(it: &Loop, offset: u64, byte: u8, durable: bool) -> FileOp {
    FileOp::Write { offset, buffer: buffer(it, byte), start: 0, len: 4096, durable }
}

fn done(it: &mut Loop, token: Token) -> FileDone {
    match it.until(|event| matches!(event, Event::File { token: of, .. } if *of == token)) {
        Event::File { done, .. } => done,
        _ => unreachable!(),
    }
}

fn run(it: &mut Loop, file: FileId, op: FileOp) -> FileDone {
    it.reactor.submit(file, op, Token(1));
    done(it, Token(1))
}

fn errno(done: &FileDone) -> Option<i32> {
    done.result.as_ref().err().and_then(std::io::Error::raw_os_error)
}

/// Each kind of file that a namespace may live on.
fn each_kind(test: impl Fn(&mut Loop, FileId, &File)) {
    let disk = on_disk();
    let memory = NamedTempFile::new_in("/dev/shm").unwrap();
    let kinds = [
        BackingFile::Open(Arc::new(open(disk.path(), libc::O_DIRECT))),
        BackingFile::Open(Arc::new(open(disk.path(), 0))),
        BackingFile::Open(Arc::new(open(memory.path(), 0))),
        BackingFile::InMemory(Arc::new(open(memory.path(), 0))),
    ];
    for (kind, plain) in kinds.into_iter().zip([&disk, &disk, &memory, &memory]) {
        let plain = plain.as_file();
        plain.set_len(0).unwrap();
        plain.set_len(64 << 10).unwrap();
        let it = &mut Loop::sleeping();
        let file = it.reactor.register_file(kind).unwrap();
        test(it, file, plain);
        it.seen.clear();
        assert_eq!(it.reactor.pool().in_use(), 0);
    }
}

#[test]
fn what_was_written_is_read_and_a_hole_reads_as_zeroes() {
    each_kind(|it, file, plain| {
        for (index, durable) in [(0, false), (1, true), (2, false)] {
            let op = write(it, u64::from(index) * 4096, index + 1, durable);
            assert_eq!(run(it, file, op).result.unwrap(), 4096);
        }
        assert_eq!(run(it, file, FileOp::Sync).result.unwrap(), 0);
        let hole = FileOp::Allocate { mode: AllocateMode::PunchHole, offset: 4096, len: 4096 };
        assert_eq!(run(it, file, hole).result.unwrap(), 0);
        for (index, byte) in [(0, 1), (1, 0), (2, 3)] {
            let op = read(it, index * 4096);
            let done = run(it, file, op);
            assert_eq!(done.result.unwrap(), 4096);
            assert!(done.buffer.unwrap().iter().all(|&found| found == byte), "block {index}");
        }
        assert_eq!(plain.metadata().unwrap().len(), 64 << 10);
    });
}

#[test]
fn of_much_that_ends_at_once_a_thread_that_slept_is_told_in_growing_portions() {
    let disk = on_disk();
    disk.as_file().set_len(64 << 10).unwrap();
    // What is in the page cache is read at once.
    std::fs::read(disk.path()).unwrap();
    let it = &mut Loop::sleeping();
    let file = it.reactor.register_file(backing(open(disk.path(), 0))).unwrap();
    for round in 0..3 {
        for index in 0..60 {
            let op = read(it, index % 16 * 4096);
            it.reactor.submit(file, op, Token(index));
        }
        let mut portions = Vec::new();
        while portions.iter().sum::<usize>() < 60 {
            let mut events = Vec::new();
            it.reactor.turn(&mut events).unwrap();
            let ended = events.iter().filter(|event| matches!(event, Event::File { .. })).count();
            portions.extend((ended > 0).then_some(ended));
        }
        let grows = portions.iter().zip([8, 16, 32, 64]).all(|(&portion, most)| portion <= most);
        assert!(grows, "round {round}: {portions:?}");
        // With nothing to do it sleeps, until the timer.
        it.reactor.set_timer(it.reactor.now() + Duration::from_millis(1), Token(99));
        it.until(|event| matches!(event, Event::Timer { .. }));
    }
}

#[test]
fn a_change_of_allocation_never_changes_the_size() {
    each_kind(|it, file, plain| {
        for mode in [AllocateMode::PunchHole, AllocateMode::ZeroRange] {
            let beyond = FileOp::Allocate { mode, offset: 60 << 10, len: 1 << 20 };
            let done = run(it, file, beyond);
            assert!(matches!(errno(&done), None | Some(libc::EOPNOTSUPP)), "{done:?}");
            assert_eq!(plain.metadata().unwrap().len(), 64 << 10);
        }
    });
}

#[test]
fn a_read_ends_at_the_end_of_the_file() {
    each_kind(|it, file, plain| {
        plain.set_len(8192 + 512).unwrap();
        let op = read(it, 8192);
        assert_eq!(run(it, file, op).result.unwrap(), 512);
        let op = read(it, 1 << 30);
        assert_eq!(run(it, file, op).result.unwrap(), 0);
    });
}

#[test]
fn part_of_a_buffer_is_filled_and_the_rest_left_alone() {
    each_kind(|it, file, plain| {
        plain.write_all_at(&[7; 4096], 0).unwrap();
        let op = FileOp::Read { offset: 512, buffer: buffer(it, 0xee), start: 1024, len: 512 };
        let done = run(it, file, op);
        assert_eq!(done.result.unwrap(), 512);
        let mut buffer = done.buffer.unwrap();
        assert_eq!(buffer.len(), 1536);
        buffer.set_len(4096);
        assert!(buffer.iter().enumerate().all(|(i, &byte)| byte == if (1024..1536).contains(&i) { 7 } else { 0xee }));
        let op = FileOp::Write { offset: 4096, buffer, start: 1024, len: 512, durable: false };
        assert_eq!(run(it, file, op).result.unwrap(), 512);
        let mut found = [0; 512];
        plain.read_exact_at(&mut found, 4096).unwrap();
        assert_eq!(found, [7; 512]);
    });
}

#[test]
#[should_panic(expected = "outside its buffer")]
fn an_operation_outside_its_buffer_is_a_fault_of_the_caller() {
    let it = &mut Loop::sleeping();
    let file = it.reactor.register_file(backing(tempfile::tempfile().unwrap())).unwrap();
    let op = FileOp::Write { offset: 0, buffer: buffer(it, 0), start: 4000, len: 100, durable: false };
    it.reactor.submit(file, op, Token(1));
}

#[test]
fn errors_are_those_of_the_kernel_and_return_the_buffer() {
    let it = &mut Loop::sleeping();
    let disk = on_disk();
    let direct = it.reactor.register_file(backing(open(disk.path(), libc::O_DIRECT))).unwrap();
    let read_only = it.reactor.register_file(backing(File::open(disk.path()).unwrap())).unwrap();
    let full = it.reactor.register_file(backing(open(Path::new("/dev/full"), 0))).unwrap();
    let memory = BackingFile::InMemory(Arc::new(open(Path::new("/dev/full"), 0)));
    let memory = it.reactor.register_file(memory).unwrap();
    let odd = FileOp::Write { offset: 1, buffer: buffer(it, 0), start: 0, len: 512, durable: false };
    let done = run(it, direct, odd);
    assert_eq!(errno(&done), Some(libc::EINVAL));
    assert!(done.buffer.is_some());
    for (file, expected) in [(read_only, libc::EBADF), (full, libc::ENOSPC), (memory, libc::ENOSPC)] {
        let op = write(it, 0, 1, false);
        let done = run(it, file, op);
        assert_eq!(errno(&done), Some(expected));
        assert!(done.buffer.is_some());
    }
}

#[test]
fn more_operations_than_the_ring_takes_wait_their_turn() {
    each_kind(|it, file, plain| {
        let count = 4000_u64;
        for id in 0..count {
            let op = FileOp::Write {
                offset: id % 16 * 4096,
                buffer: buffer(it, u8::try_from(id % 16).unwrap()),
                start: 0,
                len: 4096,
                durable: false,
            };
            it.reactor.submit(file, op, Token(id));
        }
        let mut ended = vec![false; usize::try_from(count).unwrap()];
        for _ in 0..count {
            let Event::File { token: Token(id), done } = it.until(|event| matches!(event, Event::File { .. })) else { unreachable!() };
            assert_eq!(done.result.unwrap(), 4096);
            assert!(!std::mem::replace(&mut ended[usize::try_from(id).unwrap()], true), "{id} ended twice");
        }
        let mut found = vec![0; 64 << 10];
        plain.read_exact_at(&mut found, 0).unwrap();
        assert!(found.chunks(4096).enumerate().all(|(i, block)| block.iter().all(|&byte| usize::from(byte) == i)));
    });
}

#[test]
fn an_unregistered_file_finishes_what_was_submitted_and_takes_no_more() {
    let it = &mut Loop::sleeping();
    let (old, new) = (on_disk(), on_disk());
    let old_id = it.reactor.register_file(backing(open(old.path(), 0))).unwrap();
    let op = write(it, 0, 7, false);
    it.reactor.submit(old_id, op, Token(1));
    it.reactor.unregister_file(old_id);
    let op = write(it, 0, 8, false);
    it.reactor.submit(old_id, op, Token(2));
    let new_id = it.reactor.register_file(backing(open(new.path(), 0))).unwrap();
    assert_ne!(old_id, new_id);
    assert_eq!(done(it, Token(1)).result.unwrap(), 4096);
    let refused = done(it, Token(2));
    assert_eq!(errno(&refused), Some(libc::EBADF));
    assert!(refused.buffer.is_some());
    // Its place may be taken by now; its id means nothing all the same.
    let newest = it.reactor.register_file(backing(open(new.path(), 0))).unwrap();
    let op = write(it, 4096, 9, false);
    assert_eq!(errno(&run(it, old_id, op)), Some(libc::EBADF));
    it.reactor.unregister_file(old_id);
    let op = write(it, 8192, 10, false);
    assert_eq!(run(it, newest, op).result.unwrap(), 4096);
    assert_eq!(old.as_file().metadata().unwrap().len(), 4096);
    let mut found = vec![0; 12288];
    new.as_file().read_exact_at(&mut found, 0).unwrap();
    assert!(found[..8192].iter().all(|&byte| byte == 0), "what was meant for another file landed here");
}

#[test]
fn an_unregistered_file_is_closed_once_it_is_idle() {
    let it = &mut Loop::sleeping();
    let file = Arc::new(open(on_disk().path(), 0));
    let id = it.reactor.register_file(BackingFile::Open(Arc::clone(&file))).unwrap();
    let op = write(it, 0, 7, false);
    it.reactor.submit(id, op, Token(1));
    it.reactor.unregister_file(id);
    done(it, Token(1)).result.unwrap();
    assert_eq!(Arc::strong_count(&file), 1);
    let id = it.reactor.register_file(BackingFile::Open(Arc::clone(&file))).unwrap();
    it.reactor.unregister_file(id);
    assert_eq!(Arc::strong_count(&file), 1);
}

#[test]
fn a_reactor_that_is_dropped_waits_for_its_operations() {
    let disk = on_disk();
    let mut it = Loop::sleeping();
    let pool = it.reactor.pool().clone();
    let file = it.reactor.register_file(backing(open(disk.path(), libc::O_DIRECT))).unwrap();
    for id in 0..3000 {
        let op = write(&it, id % 64 * 4096, 5, false);
        it.reactor.submit(file, op, Token(id));
    }
    it.turn(Duration::ZERO);
    let start = Instant::now();
    drop(it);
    assert_eq!(pool.in_use(), 0);
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

#[test]
fn buffers_of_operations_that_never_end_are_not_freed() {
    let mut it = Loop::sleeping();
    let pool = it.reactor.pool().clone();
    let (empty_pipe, writer) = nix::unistd::pipe().unwrap();
    let file = it.reactor.register_file(backing(empty_pipe.into())).unwrap();
    let op = FileOp::Read { offset: u64::MAX, buffer: buffer(&it, 0), start: 0, len: 4096 };
    it.reactor.submit(file, op, Token(1));
    it.turn(Duration::from_millis(50));
    assert!(it.seen.is_empty(), "{:?}", it.seen);
    let start = Instant::now();
    drop(it);
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert_eq!(pool.in_use(), 1);
    drop(writer);
}

#[test]
fn too_little_locked_memory_is_a_warning_and_works() {
    let errors = alone("too_little_locked_memory_is_a_warning_and_works", || {
        let file = NamedTempFile::new_in("/dev/shm").unwrap();
        let opened = open(file.path(), 0);
        setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, 64 << 10).unwrap();
        if nix::unistd::geteuid().is_root() {
            // Nobody has no CAP_IPC_LOCK, which would lift the limit.
            nix::unistd::setuid(nix::unistd::Uid::from_raw(65534)).unwrap();
        }
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
        let it = &mut Loop::sleeping();
        let file = it.reactor.register_file(backing(opened)).unwrap();
        let op = write(it, 0, 7, true);
        assert_eq!(run(it, file, op).result.unwrap(), 4096);
        let op = read(it, 0);
        assert_eq!(run(it, file, op).buffer.unwrap()[..], [7; 4096]);
    });
    if !is_alone() {
        assert!(errors.contains("RLIMIT_MEMLOCK is 64 KiB"), "{errors}");
        assert!(errors.contains("LimitMEMLOCK=infinity"), "{errors}");
    }
}
