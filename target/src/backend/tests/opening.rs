//! Opening: what is accepted, what is refused and in which words, locks, and who a store is.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use uuid::Uuid;

use super::*;

fn existing(path: &Path) -> Source {
    Source::File { path: path.to_owned(), size: None, create: false }
}

/// The one line that a user reads.
fn refusal(options: &OpenOptions) -> String {
    let line = Store::open(options).expect_err("must be refused").to_string();
    assert!(!line.contains('\n'), "{line}");
    line
}

#[test]
fn a_missing_file_is_made_sparse_private_and_of_its_size_and_opened_again_as_it_is() {
    use std::os::unix::fs::MetadataExt;
    let folder = folder_on_disk();
    let path = folder.path().join("x.img");
    let line = refusal(&options(existing(&path), 512));
    assert!(line.contains("x.img") && line.contains("`create: true`"), "{line}");
    let store = Store::open(&options(file_source(&path, 1 << 30), 512)).unwrap();
    assert_eq!((store.size_bytes(), store.block_size(), store.kind(), store.read_only()), (1 << 30, 512, Kind::File, false));
    assert_eq!(store.description(), format!("{}, O_DIRECT", path.display()));
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!((metadata.len(), metadata.permissions().mode() & 0o777), (1 << 30, 0o600));
    assert!(metadata.blocks() * 512 < 1 << 20);
    drop(store);
    assert_eq!(Store::open(&options(existing(&path), 4096)).unwrap().size_bytes(), 1 << 30);
}

#[test]
fn an_existing_file_is_never_resized_and_both_sizes_are_named() {
    let folder = folder_on_disk();
    let path = write(folder.path().join("x.img"), &[1; 8192]);
    let line = refusal(&options(file_source(&path, 16384), 512));
    assert!(line.contains("8192") && line.contains("16384"), "{line}");
    assert_eq!(std::fs::read(&path).unwrap(), [1; 8192]);
}

#[test]
fn sizes_that_make_no_whole_number_of_blocks_are_refused() {
    let folder = folder_on_disk();
    let empty = write(folder.path().join("empty"), &[]);
    assert!(refusal(&options(existing(&empty), 512)).contains("0 bytes"));
    let odd = write(folder.path().join("odd"), &[0; 4096 + 512]);
    assert!(refusal(&options(existing(&odd), 4096)).contains("next smaller size is 4096"));
    assert_eq!(Store::open(&options(existing(&odd), 512)).unwrap().size_bytes(), 4608);
    for (size, block_size, expected) in [(0, 512, "0 bytes"), (4608, 4096, "whole number"), (1 << 63, 512, "more than a file")] {
        let line = refusal(&options(Source::Memory { size }, block_size));
        assert!(line.contains(expected), "{line}");
        assert!(refusal(&options(file_source(&folder.path().join("new"), size), block_size)).contains(expected));
    }
    assert!(!folder.path().join("new").exists());
    for block_size in [0, 1, 256, 513, 8192] {
        assert!(refusal(&options(Source::Memory { size: 8192 }, block_size)).contains("512, 1024"));
    }
}

#[test]
fn what_is_no_regular_file_or_no_device_is_named_with_what_to_do() {
    let folder = folder_on_disk();
    let line = refusal(&options(existing(folder.path()), 512));
    assert!(line.contains("is a directory") && line.contains("name a file in it"), "{line}");
    assert!(refusal(&options(existing(Path::new("/dev/null")), 512)).contains("is a character device"));
    let file = write(folder.path().join("x.img"), &[0; 4096]);
    let line = refusal(&options(Source::Device { path: file }, 512));
    assert!(line.contains("is a regular file") && line.contains("`file:`"), "{line}");
    assert!(refusal(&options(Source::Device { path: folder.path().join("none") }, 512)).contains("lsblk"));
    let line = refusal(&options(file_source(&folder.path().join("no/x.img"), 4096), 512));
    assert!(line.contains("mkdir"), "{line}");
    let unsized_file = Source::File { path: folder.path().join("new"), size: None, create: true };
    assert!(refusal(&options(unsized_file, 512)).contains("`size`"));
}

#[test]
fn where_a_file_lies_decides_how_it_is_read() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = Store::open(&options(file_source(&memory.path().join("x.img"), 8192), 512)).unwrap();
    assert!(store.description().ends_with("x.img, in memory") && matches!(store.file, BackingFile::InMemory(_)));
    let store = Store::open(&options(Source::Memory { size: 8192 }, 512)).unwrap();
    assert_eq!((store.description(), store.kind()), ("memory, in memory", Kind::Memory));
    assert!(matches!(store.file, BackingFile::Memory(_)));
}

/// A process that holds a lock until it is dropped.
struct Locker(Child);

impl Locker {
    fn new(path: &Path, how: &str) -> Self {
        let script = "echo held; exec sleep 20";
        let mut command = Command::new("flock");
        command.args(["--no-fork", how]).arg(path).args(["sh", "-c", script]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("flock of util-linux");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Self(child)
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_file_that_another_process_holds_is_waited_for_and_then_refused_with_its_name() {
    let folder = folder_on_disk();
    let path = write(folder.path().join("x.img"), &[0; 8192]);
    let locker = Locker::new(&path, "-x");
    let started = Instant::now();
    let line = refusal(&OpenOptions { lock_wait: Duration::from_millis(300), ..options(existing(&path), 512) });
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert!(line.contains(&format!("process {}", locker.0.id())) && line.contains("x.img"), "{line}");
    assert!(refusal(&OpenOptions { read_only: true, ..options(existing(&path), 512) }).contains("locked by"));
}

#[test]
fn a_lock_that_is_released_in_time_lets_the_successor_in() {
    let folder = folder_on_disk();
    let path = write(folder.path().join("x.img"), &[0; 8192]);
    let locker = Locker::new(&path, "-x");
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        drop(locker);
    });
    let started = Instant::now();
    Store::open(&OpenOptions { lock_wait: Duration::from_secs(10), ..options(existing(&path), 512) }).unwrap();
    assert!(started.elapsed() >= Duration::from_millis(600));
    release.join().unwrap();
}

#[test]
fn readers_share_a_file_and_a_writer_does_not_join_them() {
    let folder = folder_on_disk();
    let path = write(folder.path().join("x.img"), &[0; 8192]);
    let reading = OpenOptions { read_only: true, ..options(existing(&path), 512) };
    let _other = Locker::new(&path, "-s");
    let (one, two) = (Store::open(&reading).unwrap(), Store::open(&reading).unwrap());
    assert!(one.same_storage(&two));
    assert!(refusal(&options(existing(&path), 512)).contains("same storage"));
}

#[test]
fn a_lock_lasts_as_long_as_any_thread_is_attached() {
    let folder = folder_on_disk();
    let path = write(folder.path().join("x.img"), &[0; 8192]);
    let mut thread = Thread::new(&open(&options(existing(&path), 512)));
    assert!(Store::open(&options(existing(&path), 512)).is_err());
    assert!(thread.read(0, 512).is_ok());
    drop(thread);
    // The ring's kernel side lets go of its file table a little later.
    Store::open(&OpenOptions { lock_wait: Duration::from_secs(5), ..options(existing(&path), 512) }).unwrap();
}

#[test]
fn two_exports_of_one_file_are_found_under_whatever_names() {
    let folder = folder_on_disk();
    let at = |name: &str| folder.path().join(name);
    write(at("x.img"), &[0; 8192]);
    write(at("y.img"), &[0; 8192]);
    std::fs::hard_link(at("x.img"), at("hard")).unwrap();
    symlink(at("x.img"), at("soft")).unwrap();
    symlink(folder.path(), at("folder")).unwrap();
    let check = |one: &str, two: &str| reject_shared_storage(&[&Source::Memory { size: 1 }, &existing(&at(one)), &existing(&at(two))]);
    for other in ["x.img", "hard", "soft", "folder/x.img"] {
        let line = check("x.img", other).unwrap_err().to_string();
        assert!(line.contains("/x.img and ") && line.contains(other), "{line}");
    }
    check("x.img", "y.img").unwrap();
    check("new", "newer").unwrap();
    assert!(check("new", "folder/new").is_err(), "not made yet");
    let memory = Source::Memory { size: 1 };
    reject_shared_storage(&[&memory, &memory]).unwrap();
    let (x, y) = (Store::open(&options(existing(&at("x.img")), 512)).unwrap(), Store::open(&options(existing(&at("y.img")), 512)).unwrap());
    assert!(!x.same_storage(&y));
    assert!(Store::open(&options(existing(&at("hard")), 512)).is_err());
}

#[test]
fn a_file_keeps_its_identity_when_opened_renamed_and_rewritten_and_a_copy_gets_another() {
    for folder in [folder_on_disk(), tempfile::tempdir_in("/dev/shm").unwrap()] {
        let identity = |path: &Path| Store::open(&options(existing(path), 512)).unwrap().identity();
        let path = write(folder.path().join("x.img"), &[1; 8192]);
        let original = identity(&path);
        assert_eq!(original.nguid, *original.uuid.as_bytes());
        assert_eq!(original.uuid.get_version_num(), 5);
        let moved = folder.path().join("moved");
        std::fs::rename(&path, &moved).unwrap();
        write(moved.clone(), &[2; 16384]);
        assert_eq!(identity(&moved), original);
        std::fs::copy(&moved, &path).unwrap();
        assert_ne!(identity(&path), original);
        // A file that takes the place of a deleted one may get its inode number.
        std::fs::remove_file(&moved).unwrap();
        write(moved.clone(), &[2; 16384]);
        assert_ne!(identity(&moved), original);
    }
}

#[test]
fn memory_is_another_store_at_each_start_and_the_configuration_has_the_last_word() {
    let memory = options(Source::Memory { size: 8192 }, 512);
    let identity = |options: &OpenOptions| Store::open(options).unwrap().identity();
    assert_ne!(identity(&memory), identity(&memory));
    let uuid = Uuid::from_u128(7);
    let named = OpenOptions { uuid: Some(uuid), ..memory.clone() };
    assert_eq!(identity(&named), Identity { nguid: *uuid.as_bytes(), uuid });
    let both = OpenOptions { nguid: Some([3; 16]), ..named };
    assert_eq!(identity(&both), Identity { nguid: [3; 16], uuid });
}
