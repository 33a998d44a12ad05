//! Tests that need root: loop devices, and file systems of their own.

use std::process::Command;

use super::*;

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A loop device over a file, until it is dropped.
struct Loop(PathBuf);

impl Loop {
    fn new(file: &Path, more: &[&str]) -> Self {
        let args = [&["--find", "--show"], more, &[file.to_str().unwrap()]].concat();
        Self(PathBuf::from(run("losetup", &args)))
    }

    fn source(&self) -> Source {
        Source::Device { path: self.0.clone() }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", self.0.to_str().unwrap()]);
    }
}

/// A mounted file system, until it is dropped.
struct Mount(PathBuf);

impl Mount {
    fn new(place: PathBuf, args: &[&str]) -> Self {
        std::fs::create_dir(&place).unwrap();
        run("mount", &[args, &[place.to_str().unwrap()]].concat());
        Self(place)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A ring that was torn down lets go of its files a little later.
        let unmounted = || Command::new("umount").arg(&self.0).status().unwrap().success();
        let tries = std::iter::repeat_with(unmounted).take(100);
        assert!(
            tries
                .inspect(|done| if !done {
                    std::thread::sleep(Duration::from_millis(20))
                })
                .any(|done| done)
        );
    }
}

fn image(folder: &TempDir, name: &str, size: u64) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    path
}

#[test]
#[ignore = "needs root (loop devices); run with --ignored"]
fn a_device_reads_writes_and_zeroes_exactly() {
    let folder = folder_on_disk();
    let device = Loop::new(&image(&folder, "x.img", 1 << 20), &[]);
    let store = open(&options(device.source(), 512));
    assert_eq!((store.size_bytes(), store.kind()), (1 << 20, Kind::Device));
    assert_eq!(store.description(), format!("{}, O_DIRECT", device.0.display()));
    model::zeroes_exactly_the_range(&store);
    model::agrees_with_a_vector(&store, 0xbead, 300);
    drop(store);
}

#[test]
#[ignore = "needs root (loop devices); run with --ignored"]
fn the_mark_of_a_device_is_in_the_state_directory_which_is_made() {
    let folder = folder_on_disk();
    let device = Loop::new(&image(&folder, "x.img", 1 << 20), &[]);
    let (here, elsewhere) = (folder.path().join("a/state"), folder.path().join("b"));
    let during = |boot: u128, state_dir: &Path| {
        let boot = Some(BootId(uuid::Uuid::from_u128(boot)));
        let store = Store::open(&OpenOptions { boot, state_dir: state_dir.to_owned(), ..options(device.source(), 512) }).unwrap();
        (store.unsafe_shutdowns(), store.close().unwrap()).0
    };
    let first = during(1, &here);
    assert_eq!((during(1, &here), during(2, &here)), (first, first), "it was closed cleanly");
    std::thread::sleep(Duration::from_millis(1100));
    assert!(during(1, &elsewhere) > first, "another machine has a count of its own");
    let boot = Some(BootId(uuid::Uuid::from_u128(2)));
    drop(Store::open(&OpenOptions { boot, state_dir: here.clone(), ..options(device.source(), 512) }).unwrap());
    assert_eq!(during(3, &here), first + 1);
    let marks = std::fs::read_dir(&here).unwrap().map(|mark| mark.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>();
    assert!(matches!(&marks[..], [mark] if mark.starts_with("device-")), "{marks:?}");
}

#[test]
#[ignore = "needs root (loop devices); run with --ignored"]
fn a_device_with_larger_blocks_than_the_namespace_is_refused() {
    let folder = folder_on_disk();
    let device = Loop::new(&image(&folder, "x.img", 1 << 20), &["--sector-size", "4096"]);
    let line = Store::open(&options(device.source(), 512)).unwrap_err().to_string();
    assert!(line.contains("`block_size: 4096`"), "{line}");
    Store::open(&options(device.source(), 4096)).unwrap();
}

#[test]
#[ignore = "needs root (loop devices); run with --ignored"]
fn a_device_in_use_is_refused_with_who_uses_it() {
    let folder = folder_on_disk();
    let device = Loop::new(&image(&folder, "x.img", 16 << 20), &[]);
    let store = Store::open(&options(device.source(), 512)).unwrap();
    assert!(matches!(Store::open(&options(device.source(), 512)), Err(OpenError::Claimed { .. })));
    drop(store);
    run("mkfs.ext4", &["-q", device.0.to_str().unwrap()]);
    let mount = Mount::new(folder.path().join("mount"), &[device.0.to_str().unwrap()]);
    let line = Store::open(&options(device.source(), 512)).unwrap_err().to_string();
    assert!(line.contains(mount.0.to_str().unwrap()), "{line}");
    drop(mount);
}

#[test]
#[ignore = "needs root (loop devices); run with --ignored"]
fn a_read_only_device_asks_to_be_exported_so() {
    let folder = folder_on_disk();
    let device = Loop::new(&image(&folder, "x.img", 1 << 20), &["--read-only"]);
    let line = Store::open(&options(device.source(), 512)).unwrap_err().to_string();
    assert!(line.contains("`read_only: true`"), "{line}");
    let store = open(&OpenOptions { read_only: true, ..options(device.source(), 512) });
    assert_eq!(Thread::new(&store).read(0, 512).unwrap(), [0; 512]);
}

#[test]
#[ignore = "needs root (loop devices); run with --ignored"]
fn a_loop_device_is_the_file_behind_it_and_keeps_its_identity_under_another_number() {
    let folder = folder_on_disk();
    let (x, y) = (image(&folder, "x.img", 1 << 20), image(&folder, "y.img", 1 << 20));
    let (device, other) = (Loop::new(&x, &[]), Loop::new(&y, &[]));
    let file = Source::File { path: x.clone(), size: None, create: false };
    assert!(reject_shared_storage(&[&file, &device.source()]).is_err());
    reject_shared_storage(&[&file, &other.source()]).unwrap();
    let identity = |device: &Loop| Store::open(&options(device.source(), 512)).unwrap().identity();
    let (first, second) = (identity(&device), identity(&other));
    assert_ne!(first, second);
    drop((device, other));
    let (other, device) = (Loop::new(&y, &[]), Loop::new(&x, &[]));
    assert_eq!((identity(&device), identity(&other)), (first, second));
}

#[test]
#[ignore = "needs root (mounts a small tmpfs); run with --ignored"]
fn a_full_file_system_is_no_space_and_what_was_written_stays() {
    let folder = folder_on_disk();
    let mount = Mount::new(folder.path().join("mount"), &["-t", "tmpfs", "-o", "size=256k", "tmpfs"]);
    let store = open(&options(file_source(&mount.0.join("x.img"), 1 << 20), 512));
    let mut thread = Thread::new(&store);
    thread.write(0, &[1; 128 << 10], true).unwrap();
    let (mut offset, mut result) = (128 << 10, Ok(()));
    while result.is_ok() && offset < 1 << 20 {
        result = thread.write(offset, &[2; 96 << 10], true);
        offset += 96 << 10;
    }
    assert_eq!(result, Err(BackendError::NoSpace));
    assert_eq!(thread.flush(), Ok(()), "no room is no failed sync");
    assert_eq!(thread.read(0, 128 << 10).unwrap(), [1; 128 << 10]);
    thread.run(Operation::Discard { offset: 0, len: 1 << 20 }).0.unwrap();
    thread.write(512 << 10, &[3; 128 << 10], false).unwrap();
    drop((thread, store));
}

#[test]
#[ignore = "needs root (mounts an ext4 of its own); run with --ignored"]
fn a_full_disk_is_no_space_with_direct_io() {
    let folder = folder_on_disk();
    let disk = image(&folder, "disk", 4 << 20);
    run("mkfs.ext4", &["-q", "-O", "^has_journal", disk.to_str().unwrap()]);
    let device = Loop::new(&disk, &[]);
    let mount = Mount::new(folder.path().join("mount"), &[device.0.to_str().unwrap()]);
    let store = open(&options(file_source(&mount.0.join("x.img"), 64 << 20), 512));
    assert!(store.description().ends_with("O_DIRECT"));
    let mut thread = Thread::new(&store);
    let mut offset = 0;
    let error = loop {
        match thread.write(offset, &[2; 128 << 10], true) {
            Ok(()) => offset += 128 << 10,
            Err(error) => break error,
        }
    };
    assert_eq!((error, store.sync_failed()), (BackendError::NoSpace, false));
    assert_eq!(
        thread.run(Operation::Zero { offset: 32 << 20, len: 16 << 20, deallocate: false, durable: false }).0,
        Err(BackendError::NoSpace)
    );
    assert_eq!(thread.read(0, 512).unwrap(), [2; 512]);
    drop((thread, store));
    drop(mount);
}

#[test]
#[ignore = "needs root (mounts an ext4 of its own); run with --ignored"]
fn a_file_on_a_disk_with_larger_blocks_than_the_namespace_goes_through_the_page_cache() {
    let folder = folder_on_disk();
    let device = Loop::new(&image(&folder, "disk", 16 << 20), &["--sector-size", "4096"]);
    run("mkfs.ext4", &["-q", device.0.to_str().unwrap()]);
    let mount = Mount::new(folder.path().join("mount"), &[device.0.to_str().unwrap()]);
    let path = mount.0.join("x.img");
    let store = open(&options(file_source(&path, 1 << 20), 512));
    assert_eq!(store.description(), format!("{}, buffered", path.display()));
    model::agrees_with_a_vector(&store, 0xcafe, 200);
    drop(store);
    let store = Store::open(&OpenOptions { lock_wait: Duration::from_secs(5), ..options(file_source(&path, 1 << 20), 4096) }).unwrap();
    assert_eq!(store.description(), format!("{}, O_DIRECT", path.display()));
    drop(store);
}
