//! What goes wrong outside: files that others truncate, ranges outside the store, stores that may not be written.

use std::fs::OpenOptions as Plain;

use super::*;

fn truncate(path: &Path, len: u64) {
    Plain::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

fn on_disk_and_in_memory(test: impl Fn(&Path)) {
    for folder in [folder_on_disk(), tempfile::tempdir_in("/dev/shm").unwrap()] {
        test(&folder.path().join("x.img"));
    }
}

#[test]
fn a_truncated_file_fails_behind_its_end_and_works_before_it() {
    on_disk_and_in_memory(|path| {
        let store = open(&options(file_source(path, 1 << 20), 512));
        let mut thread = Thread::new(&store);
        thread.write(0, &[5; 128 << 10], true).unwrap();
        truncate(path, 4096 + 100);

        assert_eq!(thread.read(0, 128 << 10), Err(BackendError::Truncated));
        assert!(store.truncated());
        assert_eq!(thread.read(0, 4096).unwrap(), [5; 4096]);
        assert_eq!(thread.read(4096, 512), Err(BackendError::Truncated));
        thread.write(512, &[6; 512], true).unwrap();

        for offset in [4096, 512 << 10] {
            assert_eq!(thread.write(offset, &[6; 512], false), Err(BackendError::Truncated));
            assert_eq!(thread.run(Operation::Zero { offset, len: 512, deallocate: false, durable: false }).0, Err(BackendError::Truncated));
        }
        assert_eq!(std::fs::metadata(path).unwrap().len(), 4096 + 100, "nothing extended the file again");
    });
}

#[test]
fn a_truncation_that_the_control_thread_notices_stops_writes_behind_it() {
    on_disk_and_in_memory(|path| {
        let store = open(&options(file_source(path, 1 << 20), 512));
        let mut thread = Thread::new(&store);
        store.check_size().unwrap();
        assert!(!store.truncated());
        truncate(path, 8192);
        store.check_size().unwrap();
        assert_eq!(thread.write(8192, &[6; 512], false), Err(BackendError::Truncated));

        // So does one that was made longer again, but not long enough.
        truncate(path, 64 << 10);
        store.check_size().unwrap();
        assert_eq!(thread.write(8192, &[6; 512], false), Err(BackendError::Truncated));

        // Growing the file back shows a hole where data had been: an administrator must say so.
        truncate(path, 1 << 20);
        assert_eq!(thread.read(8192, 512), Err(BackendError::Truncated));
        store.reopen(|| ()).unwrap();
        assert_eq!(thread.read(8192, 512).unwrap(), [0; 512]);
    });
}

#[test]
fn what_lies_behind_the_real_end_is_refused_wherever_the_short_read_was() {
    on_disk_and_in_memory(|path| {
        let store = open(&options(file_source(path, 1 << 20), 512));
        let mut thread = Thread::new(&store);
        thread.write(0, &[5; 128 << 10], true).unwrap();
        truncate(path, 64 << 10);
        assert_eq!(thread.read(768 << 10, 4096), Err(BackendError::Truncated));

        for offset in [64 << 10, 512 << 10] {
            assert_eq!(thread.write(offset, &[6; 512], false), Err(BackendError::Truncated));
            assert_eq!(thread.read(offset, 512), Err(BackendError::Truncated));
        }
        assert_eq!(thread.read((64 << 10) - 512, 512).unwrap(), [5; 512]);
        assert_eq!(std::fs::metadata(path).unwrap().len(), 64 << 10, "nothing extended the file again");
    });
}

#[test]
fn a_flush_finds_a_truncation_and_flushes_are_refused_until_the_store_is_reopened() {
    on_disk_and_in_memory(|path| {
        let store = open(&options(file_source(path, 1 << 20), 512));
        let mut thread = Thread::new(&store);
        thread.write(512 << 10, &[5; 4096], false).unwrap();
        assert_eq!(thread.flush(), Ok(()));
        truncate(path, 64 << 10);
        assert_eq!(thread.flush(), Err(BackendError::Truncated));
        assert!(store.truncated());
        assert_eq!(thread.write(128 << 10, &[6; 512], false), Err(BackendError::Truncated));

        // What was lost stays lost when the file is made longer again.
        truncate(path, 1 << 20);
        assert_eq!(thread.flush(), Err(BackendError::Truncated));
        store.reopen(|| ()).unwrap();
        assert_eq!(thread.flush(), Ok(()));
    });
}

#[test]
fn a_flush_is_refused_after_a_read_has_found_a_truncation() {
    on_disk_and_in_memory(|path| {
        let store = open(&options(file_source(path, 1 << 20), 512));
        let mut thread = Thread::new(&store);
        truncate(path, 64 << 10);
        assert_eq!(thread.read(512 << 10, 512), Err(BackendError::Truncated));
        truncate(path, 1 << 20);
        assert_eq!(thread.flush(), Err(BackendError::Truncated));
    });
}

#[test]
fn the_control_thread_tells_of_each_truncation_once_whoever_found_it() {
    on_disk_and_in_memory(|path| {
        let store = open(&options(file_source(path, 1 << 20), 512));
        let mut thread = Thread::new(&store);
        assert!(!store.check_size().unwrap());
        for _ in 0..2 {
            truncate(path, 64 << 10);
            assert_eq!(thread.flush(), Err(BackendError::Truncated));
            assert_eq!([(); 2].map(|()| store.check_size().unwrap()), [true, false]);
            truncate(path, 1 << 20);
            store.reopen(|| ()).unwrap();
        }
    });
}

#[test]
fn reopening_a_file_that_is_still_too_short_fails_and_forgets_nothing() {
    on_disk_and_in_memory(|path| {
        let store = open(&options(file_source(path, 1 << 20), 512));
        truncate(path, 8192);
        store.check_size().unwrap();
        assert!(store.reopen(|| ()).is_err());
        assert!(store.truncated());
    });
}

#[test]
fn memory_cannot_be_resized() {
    let store = open(&options(Source::Memory { size: 8192 }, 512));
    assert!(store.extend(4096).is_err());
    assert!(store.extend(16384).is_err());
    assert_eq!(store.current_bytes().unwrap(), 8192);
}

#[test]
fn ranges_outside_the_store_are_refused_and_the_last_block_is_not() {
    let store = open(&options(Source::Memory { size: 8192 }, 512));
    let mut thread = Thread::new(&store);
    thread.write(8192 - 512, &[1; 512], true).unwrap();
    assert_eq!(thread.write(8192, &[1; 512], false), Err(BackendError::OutOfRange));
    assert_eq!(thread.read(8192 - 512, 1024), Err(BackendError::OutOfRange));
    let zero = |offset, len| Operation::Zero { offset, len, deallocate: false, durable: false };
    assert_eq!(thread.run(zero(u64::MAX - 511, 1024)).0, Err(BackendError::OutOfRange));
    assert_eq!(thread.run(Operation::Discard { offset: 512, len: u64::MAX }).0, Err(BackendError::OutOfRange));
    assert_eq!(thread.run(zero(8192, 0)).0, Ok(()));
}

#[test]
fn a_read_only_store_reads_and_flushes_and_refuses_every_change() {
    let folder = folder_on_disk();
    let path = write(folder.path().join("x.img"), &[4; 8192]);
    let source = Source::File { path, size: None, create: false };
    let store = open(&OpenOptions { read_only: true, ..options(source, 512) });
    let mut thread = Thread::new(&store);
    assert_eq!(thread.read(512, 512).unwrap(), [4; 512]);
    assert_eq!(thread.flush(), Ok(()));
    assert_eq!(thread.write(0, &[1; 512], false), Err(BackendError::ReadOnly));
    assert_eq!(thread.run(Operation::Zero { offset: 0, len: 512, deallocate: true, durable: false }).0, Err(BackendError::ReadOnly));
    assert_eq!(thread.run(Operation::Discard { offset: 0, len: 512 }).0, Err(BackendError::ReadOnly));
    assert_eq!(thread.read(0, 512).unwrap(), [4; 512]);
}

#[test]
fn a_thread_without_a_buffer_to_spare_cannot_attach() {
    let store = open(&options(Source::Memory { size: 8192 }, 512));
    let mut ring = ring();
    let all: Vec<_> = std::iter::from_fn(|| ring.pool().take(1)).collect();
    assert_eq!(Attached::new(&mut ring, &store).unwrap_err().kind(), std::io::ErrorKind::OutOfMemory);
    drop(all);
    Attached::new(&mut ring, &store).unwrap().detach(&mut ring);
    assert_eq!(ring.pool().in_use(), 0);
}
