//! Reads, writes, zeroes and discards at every alignment, against a vector of bytes.

use godwit_reactor::AllocateMode;

use super::*;

const SECTOR: usize = 512;

/// The ways to keep bytes that an ordinary user has.
fn everywhere(size_bytes: u64, test: impl Fn(&str, &Arc<Store<BackingFile>>)) {
    let (disk, memory) = (folder_on_disk(), tempfile::tempdir_in("/dev/shm").unwrap());
    for source in [
        file_source(&disk.path().join("x.img"), size_bytes),
        file_source(&memory.path().join("x.img"), size_bytes),
        Source::Memory { size: size_bytes },
    ] {
        let store = open(&options(source, 512));
        test(store.description(), &store);
    }
    let store = buffered(&disk.path().join("buffered.img"), size_bytes);
    test(store.description(), &store);
}

/// A file of which direct I/O is not made use of.
fn buffered(path: &Path, size_bytes: u64) -> Arc<Store<BackingFile>> {
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(size_bytes).unwrap();
    let description = Description {
        text: "buffered".to_owned(),
        kind: Kind::File,
        size_bytes,
        block_bytes: 512,
        read_only: false,
        identity: Identity::random(),
        storage: None,
        buffered: true,
        in_memory: false,
    };
    Arc::new(Store::new(BackingFile::Open(Arc::new(file)), description))
}

fn without_fallocate(store: &Store<BackingFile>) {
    store.shared.note_unsupported(AllocateMode::PunchHole);
    store.shared.note_unsupported(AllocateMode::ZeroRange);
}

/// Zeroing or discarding each range of sectors in a window of three pages leaves its neighbours alone, and the file's size.
pub(super) fn zeroes_exactly_the_range(store: &Arc<Store<BackingFile>>) {
    const WINDOW: usize = 3 * 4096;
    let mut thread = Thread::new(store);
    for first in 0..=WINDOW / SECTOR / 2 {
        for count in 1..=WINDOW / SECTOR / 2 {
            let what = first + count;
            let content: Vec<u8> = (0..WINDOW).map(|at| u8::try_from((at / SECTOR + what) % 255 + 1).unwrap()).collect();
            thread.write(0, &content, false).unwrap();
            let (offset, len) = ((first * SECTOR) as u64, (count * SECTOR) as u64);
            let operation = match what % 3 {
                0 => Operation::Zero { offset, len, deallocate: false, durable: what % 2 == 0 },
                1 => Operation::Zero { offset, len, deallocate: true, durable: what % 2 == 0 },
                _ => Operation::Discard { offset, len },
            };
            let discard_without_effect = what % 3 == 2 && !store.shared.supports(AllocateMode::PunchHole);
            thread.run(operation).0.unwrap();
            let mut expected = content;
            if !discard_without_effect {
                expected[first * SECTOR..(first + count) * SECTOR].fill(0);
            }
            assert!(thread.read(0, WINDOW).unwrap() == expected, "{}: {count} sectors at {first}", store.description());
        }
    }
    assert_eq!(store.current_bytes().unwrap(), store.size_bytes());
}

#[test]
fn zero_and_discard_touch_exactly_their_range_at_every_alignment() {
    everywhere(64 << 10, |_, store| zeroes_exactly_the_range(store));
}

#[test]
fn zeroes_that_are_written_touch_exactly_their_range_at_every_alignment() {
    everywhere(64 << 10, |_, store| {
        without_fallocate(store);
        zeroes_exactly_the_range(store);
    });
}

/// A small generator of numbers, so that a failure can be repeated from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Operations of all kinds at random agree with a vector.
pub(super) fn agrees_with_a_vector(store: &Arc<Store<BackingFile>>, seed: u64, operations: usize) {
    let mut thread = Thread::new(store);
    let mut random = Random(seed);
    let size = usize::try_from(store.size_bytes()).unwrap();
    thread.run(Operation::Zero { offset: 0, len: size as u64, deallocate: false, durable: false }).0.unwrap();
    let mut model = vec![0_u8; size];
    let sectors = (size / SECTOR) as u64;
    for step in 0..operations {
        let first = usize::try_from(random.below(sectors)).unwrap();
        let most = (sectors - first as u64).min(if random.below(4) == 0 { 256 } else { 20 });
        let count = usize::try_from(1 + random.below(most)).unwrap();
        let range = first * SECTOR..(first + count) * SECTOR;
        let (offset, len) = (range.start as u64, range.len() as u64);
        let (durable, deallocate) = (random.below(8) == 0, random.below(2) == 0);
        match random.below(8) {
            0..4 => {
                let content: Vec<u8> = range.clone().map(|_| u8::try_from(random.below(256)).unwrap()).collect();
                thread.write(offset, &content, durable).unwrap();
                model[range].copy_from_slice(&content);
            }
            4 => {
                thread.run(Operation::Zero { offset, len, deallocate, durable }).0.unwrap();
                model[range].fill(0);
            }
            5 if store.shared.supports(AllocateMode::PunchHole) => {
                thread.run(Operation::Discard { offset, len }).0.unwrap();
                model[range].fill(0);
            }
            6 if random.below(4) == 0 => thread.flush().unwrap(),
            _ => assert!(thread.read(offset, range.len()).unwrap() == model[range], "{}, seed {seed}, step {step}", store.description()),
        }
    }
    for start in (0..size).step_by(128 << 10) {
        let len = (size - start).min(128 << 10);
        assert!(thread.read(start as u64, len).unwrap() == model[start..start + len], "{}, seed {seed}, at the end", store.description());
    }
}

#[test]
fn operations_at_random_agree_with_a_vector() {
    everywhere(1 << 20, |_, store| agrees_with_a_vector(store, 0x5eed, 600));
    everywhere(1 << 20, |_, store| {
        without_fallocate(store);
        agrees_with_a_vector(store, 0xfeed, 300);
    });
}

#[test]
fn a_range_of_many_pieces_is_zeroed_whole_and_the_first_and_last_block_beside_it_stay() {
    const SIZE: u64 = 160 << 20;
    everywhere(SIZE, |what, store| {
        let mut thread = Thread::new(store);
        let content = [7; 512];
        for written in [0, 512, 70 << 20, 130 << 20, SIZE - 1024, SIZE - 512] {
            thread.write(written, &content, false).unwrap();
            assert_eq!(thread.read(written, 512).unwrap(), content, "{what} at {written}");
        }
        thread.run(Operation::Zero { offset: 512, len: SIZE - 1024, deallocate: true, durable: true }).0.unwrap();
        for zeroed in [512, 70 << 20, 130 << 20, SIZE - 1024] {
            assert_eq!(thread.read(zeroed, 512).unwrap(), [0; 512], "{what} at {zeroed}");
        }
        for kept in [0, SIZE - 512] {
            assert_eq!(thread.read(kept, 512).unwrap(), content, "{what} at {kept}");
        }
    });
}

#[test]
fn jobs_that_write_zeroes_take_turns_with_the_one_buffer_and_give_it_back() {
    everywhere(4 << 20, |what, store| {
        without_fallocate(store);
        let mut thread = Thread::new(store);
        for offset in (0..4 << 20).step_by(128 << 10) {
            thread.write(offset, &[9; 128 << 10], false).unwrap();
        }
        let spare = thread.ring.pool().in_use();
        // Every other 128 KiB but for its last sector, each more than one piece of some buffer sizes.
        let zero = |index: u64| Operation::Zero {
            offset: index * (256 << 10),
            len: (200 << 10) - 512,
            deallocate: false,
            durable: index.is_multiple_of(2),
        };
        let outcomes = thread.run_all((0..16).map(zero).collect());
        assert!(outcomes.iter().all(|(result, _)| result.is_ok()), "{what}: {outcomes:?}");
        assert_eq!(thread.ring.pool().in_use(), spare);
        for index in 0..16 {
            let start = index * (256 << 10);
            let end = start + (200 << 10) - 512;
            assert_eq!(thread.read(start, 512).unwrap(), [0; 512], "{what} {index}");
            assert_eq!(thread.read(end - 512, 1024).unwrap(), [[0; 512], [9; 512]].concat(), "{what} {index}");
        }
    });
}

#[test]
fn what_one_thread_wrote_another_reads_and_flushes() {
    everywhere(64 << 10, |what, store| {
        let (mut one, mut other) = (Thread::new(store), Thread::new(store));
        one.write(4096, &[3; 4096], false).unwrap();
        other.flush().unwrap();
        assert_eq!(other.read(4096, 4096).unwrap(), [3; 4096], "{what}");
    });
}

#[test]
fn a_zeroed_range_stays_provisioned_and_a_discarded_one_is_freed() {
    use std::os::unix::fs::MetadataExt;
    let folder = folder_on_disk();
    let path = folder.path().join("x.img");
    let store = open(&options(file_source(&path, 1 << 20), 512));
    let mut thread = Thread::new(&store);
    let allocated = || std::fs::metadata(&path).unwrap().blocks() * 512;
    assert!(allocated() < 64 << 10, "made sparse");
    thread.run(Operation::Zero { offset: 0, len: 1 << 20, deallocate: false, durable: true }).0.unwrap();
    assert!(allocated() >= 1 << 20);
    thread.run(Operation::Discard { offset: 0, len: 1 << 20 }).0.unwrap();
    assert!(allocated() < 64 << 10);
    assert!(store.shared.supports(AllocateMode::ZeroRange) && store.shared.supports(AllocateMode::PunchHole));
}
