//! Storage that is full, slow, broken or cut short, and daemons out of descriptors: who is told what, and who goes on undisturbed.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use godwit_nbd::{Command, CommandFlags, Errno};
use godwit_tests::daemon::{Initiator, NQN, Target, binary, free_port, url, wait_for};
use godwit_tests::nbd::Client;
use godwit_tests::proxy::Proxy;
use godwit_tests::storage::{FuseFile, Mount};
use godwit_tests::tools::run;

const BLOCK_BYTES: u32 = 4096;
const MIB: u32 = 1 << 20;

/// Of a namespace whose backend tells nothing by which it could be known again.
const UUID: &str = "d2f0e4a8-5c5e-4c6e-9d0b-0c2b5a6f7e81";

/// The subsystem beside [`NQN`] in a target with two.
const OTHER_NQN: &str = "nqn.2026-11.org.example:other";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
}

/// A target with a file at `path` as [`NQN`], and memory as [`OTHER_NQN`], both on one reactor.
fn target_on(folder: &Path, path: &Path, read_only: bool) -> Target {
    let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
    let config = folder.join("target.yaml");
    let text = format!(
        "listeners: [{{ transport: iwarp, address: \"{address}\" }}]\n\
         reactors: 1\n\
         subsystems:\n\
         \x20 - nqn: {NQN}\n    allow_any_host: true\n\
         \x20   namespaces: [{{ nsid: 1, uuid: {UUID}, read_only: {read_only}, backend: {{ file: {{ path: {} }} }} }}]\n\
         \x20 - nqn: {OTHER_NQN}\n    allow_any_host: true\n\
         \x20   namespaces: [{{ nsid: 1, backend: {{ memory: {{ size: 16MiB }} }} }}]\n",
        path.display()
    );
    fs::write(&config, text).unwrap();
    Target::start_command(process::Command::new(binary("godwit-target")).arg("--config").arg(&config), address)
}

fn connect(initiator: &Initiator) -> Client {
    let client = Client::connect(&initiator.socket).unwrap();
    client.limit(Some(Duration::from_secs(60)));
    client
}

fn pattern(seed: u64, len_bytes: u32) -> Vec<u8> {
    (0..u64::from(len_bytes) / 8).flat_map(|at| (at ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes()).collect()
}

fn write(client: &mut Client, offset: u64, data: &[u8]) -> Result<(), Errno> {
    client.request(Command::Write, CommandFlags::NONE, offset, u32::try_from(data.len()).unwrap(), data).map(drop)
}

fn read(client: &mut Client, offset: u64, length: u32) -> Result<Vec<u8>, Errno> {
    client.request(Command::Read, CommandFlags::NONE, offset, length, &[])
}

fn flush(client: &mut Client) -> Result<(), Errno> {
    client.request(Command::Flush, CommandFlags::NONE, 0, 0, &[]).map(drop)
}

/// Runs `disturb` while another client writes and reads back, in the range from `start` on; fails unless each of its requests succeeds, and many do.
fn while_verifying<T>(socket: &Path, start: u64, disturb: impl FnOnce() -> T) -> T {
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let verifier = scope.spawn(|| {
            let mut client = Client::connect(socket).unwrap();
            client.limit(Some(Duration::from_secs(10)));
            while !stop.load(Ordering::Relaxed) {
                let round = rounds.fetch_add(1, Ordering::Relaxed);
                // In and out of the capsule by turns.
                let len_bytes = if round % 2 == 0 { BLOCK_BYTES } else { 64 << 10 };
                let offset = start + round % 8 * (64 << 10);
                client.write(offset, &pattern(round, len_bytes));
                assert!(client.read(offset, len_bytes) == pattern(round, len_bytes), "round {round} at {offset}");
            }
        });
        let guard = StopOnDrop(&stop);
        wait_for("the other client begins", Duration::from_secs(10), || verifier.is_finished() || rounds.load(Ordering::Relaxed) > 0);
        let before = rounds.load(Ordering::Relaxed);
        let result = disturb();
        wait_for("the other client goes on", Duration::from_secs(10), || {
            verifier.is_finished() || rounds.load(Ordering::Relaxed) > before + 20
        });
        drop(guard);
        if let Err(panic) = verifier.join() {
            std::panic::resume_unwind(panic);
        }
        result
    })
}

/// Ends a thread of a scope also when the test panics, which would wait for it for ever otherwise.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Fills the file system below a sparse file, and frees it again.
fn a_full_file_system_refuses_what_needs_space_and_nothing_else(mount: &Mount) {
    let target = Target::start(&format!("{},size=64MiB", mount.folder().join("vol.img").display()));
    let initiator = Initiator::start(&target.url(), &mount.folder().with_extension("sock"));
    let mut client = connect(&initiator);
    let written = pattern(1, MIB);
    client.write(0, &written);
    flush(&mut client).unwrap();

    let ballast = mount.fill();
    let wanted = 8 << 20;
    while_verifying(&initiator.socket, 0, || {
        for len_bytes in [BLOCK_BYTES, 256 << 10, MIB] {
            assert_eq!(write(&mut client, wanted, &pattern(2, len_bytes)), Err(Errno::ENOSPC), "{len_bytes}");
        }
        // A piece of a large request is refused as the whole.
        assert_eq!(write(&mut client, wanted, &pattern(2, 4 * MIB)), Err(Errno::ENOSPC));
        assert_eq!(read(&mut client, 32 << 20, BLOCK_BYTES), Ok(vec![0; BLOCK_BYTES as usize]), "a hole still reads");
        assert_eq!(flush(&mut client), Ok(()), "what was written is flushed");
    });

    fs::remove_file(ballast).unwrap();
    // A file system may free its space a moment later.
    wait_for("there is space again", Duration::from_secs(10), || write(&mut client, wanted, &pattern(3, 4 * MIB)).is_ok());
    assert_eq!(read(&mut client, wanted, 4 * MIB).unwrap(), pattern(3, 4 * MIB));
    assert_eq!(flush(&mut client), Ok(()));
    assert!(!target.process.output().contains("sync failed"), "{}", target.process.output());
}

#[test]
#[ignore = "needs root, for a small tmpfs"]
fn a_full_tmpfs_is_no_space_until_there_is_some() {
    let folder = folder();
    let mount = Mount::tmpfs(&folder.path().join("disk"), "24M");
    a_full_file_system_refuses_what_needs_space_and_nothing_else(&mount);
}

#[test]
#[ignore = "needs root, for a loop device"]
fn a_full_ext4_is_no_space_until_there_is_some() {
    let folder = folder();
    let mount = Mount::ext4(&folder.path().join("disk"), "48M");
    a_full_file_system_refuses_what_needs_space_and_nothing_else(&mount);
}

/// Six Keep Alive Timeouts long, and longer than the 30 s after which other hosts give a command up.
#[test]
#[ignore = "needs root, for FUSE"]
fn a_backend_that_stalls_is_slow_and_not_lost() {
    const STALL: Duration = Duration::from_secs(32);
    let folder = folder();
    let fuse = FuseFile::start(folder.path(), &["memory", "64M"]);
    let target = target_on(folder.path(), fuse.path(), false);
    let proxy = Proxy::start(target.address);
    let initiator = Initiator::start_with(&url(proxy.address), &folder.path().join("nbd.sock"), &["--keep-alive-tmo", "5"]);
    let other = Initiator::start(&format!("iwarp://{}/{OTHER_NQN}", target.address), &folder.path().join("other.sock"));
    let mut client = connect(&initiator);
    client.write(0, &pattern(1, MIB));
    let connections = proxy.connections();

    fuse.stall();
    let started = Instant::now();
    thread::scope(|scope| {
        let requests = scope.spawn(|| {
            client.write(0, &pattern(2, MIB));
            started.elapsed()
        });
        while_verifying(&other.socket, 0, || thread::sleep(STALL));
        assert!(!requests.is_finished(), "the write was answered by no one");
        fuse.resume();
        let answered = requests.join().unwrap();
        assert!((STALL..STALL + Duration::from_secs(5)).contains(&answered), "answered after {answered:?}");
    });
    assert_eq!(proxy.connections(), connections, "the controller was lost");
    assert_eq!(client.read(0, MIB), pattern(2, MIB));
    assert_eq!(flush(&mut client), Ok(()));
}

#[test]
#[ignore = "needs root, for FUSE"]
fn reads_that_fail_below_fail_above_until_they_work_again() {
    let folder = folder();
    let broken = folder.path().join("broken");
    let trigger = format!("error-pread-file={}", broken.display());
    let fuse = FuseFile::start(folder.path(), &["--filter=error", "memory", "64M", "error-pread=EIO", "error-pread-rate=100%", &trigger]);
    let target = target_on(folder.path(), fuse.path(), false);
    let initiator = Initiator::start(&target.url(), &folder.path().join("nbd.sock"));
    let other = Initiator::start(&format!("iwarp://{}/{OTHER_NQN}", target.address), &folder.path().join("other.sock"));
    let (mut client, mut writer) = (connect(&initiator), connect(&initiator));
    client.write(0, &pattern(1, MIB));

    fs::write(&broken, []).unwrap();
    while_verifying(&other.socket, 0, || {
        for (round, len_bytes) in (0..10).zip([BLOCK_BYTES, 64 << 10, MIB].into_iter().cycle()) {
            assert_eq!(read(&mut client, 0, len_bytes), Err(Errno::EIO));
            writer.write((1 + round) << 20, &pattern(round, MIB));
        }
        assert_eq!(read(&mut client, 0, 4 * MIB), Err(Errno::EIO), "a piece fails as the whole");
    });
    fs::remove_file(&broken).unwrap();
    assert_eq!(client.read(0, MIB), pattern(1, MIB));
    for round in 0..10 {
        assert_eq!(client.read((1 + round) << 20, MIB), pattern(round, MIB), "{round}");
    }
    assert_eq!(flush(&mut client), Ok(()), "a read that failed is no write that was lost");
}

/// Bad blocks in the middle: what lies beside them is read by others all the while.
#[test]
#[ignore = "needs root, for FUSE"]
fn bad_blocks_cost_only_those_who_read_them() {
    let folder = folder();
    let (image, map) = (folder.path().join("rescued.img"), folder.path().join("rescued.map"));
    fs::write(&image, pattern(7, 16 * MIB)).unwrap();
    // 64 KiB at 4 MiB could not be read ("-"), all else could ("+").
    fs::write(&map, "0x0 + 1\n0x00000000 0x00400000 +\n0x00400000 0x00010000 -\n0x00410000 0x00BF0000 +\n").unwrap();
    let (image, map) = (image.display().to_string(), format!("ddrescue-mapfile={}", map.display()));
    let fuse = FuseFile::start(folder.path(), &["--filter=ddrescue", "file", &image, &map]);
    let target = target_on(folder.path(), fuse.path(), true);
    let initiator = Initiator::start(&target.url(), &folder.path().join("nbd.sock"));
    let good = pattern(7, 16 * MIB);
    thread::scope(|scope| {
        for _ in 0..3 {
            let mut client = connect(&initiator);
            let good = &good;
            scope.spawn(move || {
                for at in (0..4_u64 << 20).step_by(64 << 10).chain((5 << 20..16 << 20).step_by(256 << 10)) {
                    let from = usize::try_from(at).unwrap();
                    assert!(client.read(at, 64 << 10) == good[from..from + (64 << 10)], "{at}");
                }
            });
        }
        let mut client = connect(&initiator);
        for at in [4 << 20, (4 << 20) + (60 << 10)].into_iter().cycle().take(50) {
            assert_eq!(read(&mut client, at, BLOCK_BYTES), Err(Errno::EIO), "{at}");
        }
        assert_eq!(read(&mut client, 4 << 20, 8 * MIB), Err(Errno::EIO));
        assert_eq!(read(&mut client, (4 << 20) - 4096, BLOCK_BYTES).unwrap()[..], good[(4 << 20) - 4096..4 << 20]);
    });
}

#[test]
fn a_file_that_someone_truncates_loses_that_range_and_nothing_else() {
    let folder = folder();
    let file = folder.path().join("vol.img");
    let target = Target::start(&format!("{},size=64MiB", file.display()));
    let initiator = Initiator::start(&target.url(), &folder.path().join("nbd.sock"));
    let mut client = connect(&initiator);
    client.write(0, &pattern(1, 16 * MIB));
    client.write(48 << 20, &pattern(2, 16 * MIB));
    flush(&mut client).unwrap();

    let truncate = |size: &str| run(process::Command::new("truncate").args(["-s", size]).arg(&file));
    truncate("32M");
    while_verifying(&initiator.socket, 16 << 20, || {
        for at in [32 << 20, 48 << 20, (64 << 20) - u64::from(BLOCK_BYTES)] {
            assert_eq!(read(&mut client, at, BLOCK_BYTES), Err(Errno::EIO), "{at}");
        }
        assert_eq!(read(&mut client, (32 << 20) - u64::from(BLOCK_BYTES), 2 * BLOCK_BYTES), Err(Errno::EIO), "across the new end");
        assert_eq!(write(&mut client, 48 << 20, &pattern(3, BLOCK_BYTES)), Err(Errno::EIO), "a write would grow the file with a hole");
        assert_eq!(read(&mut client, 0, 16 * MIB), Ok(pattern(1, 16 * MIB)));
    });
    assert_eq!(fs::metadata(&file).unwrap().len(), 32 << 20, "the target never changes a file's size");

    truncate("64M");
    // Long enough for a daemon that looks at the size now and then.
    thread::sleep(Duration::from_millis(2500));
    while_verifying(&initiator.socket, 16 << 20, || {
        assert_eq!(read(&mut client, 48 << 20, BLOCK_BYTES), Err(Errno::EIO), "zeroes in place of what was flushed");
    });
    let said = target.process.output();
    assert_eq!(said.matches("truncated").count(), 1, "{said}");
}

/// A sync that failed once: no flush and no forced write succeeds any more, although the storage has forgotten.
#[test]
#[ignore = "needs root, for FUSE"]
fn a_failed_sync_is_not_forgotten() {
    let folder = folder();
    let (image, broken) = (folder.path().join("image"), folder.path().join("broken"));
    fs::write(&image, vec![0; 8 << 20]).unwrap();
    let read_plan = format!("pread=dd if={} skip=$4 count=$3 iflag=count_bytes,skip_bytes status=none", image.display());
    let write_plan = format!("pwrite=dd of={} seek=$4 conv=notrunc oflag=seek_bytes status=none", image.display());
    let flush_plan = format!("flush=if [ -e {} ]; then echo EIO the disk is gone >&2; exit 1; fi", broken.display());
    let plans = ["eval", "get_size=echo 8388608", "can_write=exit 0", "can_flush=exit 0", &read_plan, &write_plan, &flush_plan];
    let fuse = FuseFile::start(folder.path(), &plans);
    let target = target_on(folder.path(), fuse.path(), false);
    let mut initiator = Initiator::start(&target.url(), &folder.path().join("nbd.sock"));
    let forced = |client: &mut Client, seed| {
        client.request(Command::Write, CommandFlags::FUA, 0, BLOCK_BYTES, &pattern(seed, BLOCK_BYTES)).map(drop)
    };
    let mut client = connect(&initiator);
    assert_eq!(forced(&mut client, 1), Ok(()));
    assert_eq!(flush(&mut client), Ok(()));

    fs::write(&broken, []).unwrap();
    assert_eq!(flush(&mut client), Err(Errno::EIO));
    fs::remove_file(&broken).unwrap();
    let mut other = connect(&initiator);
    for client in [&mut client, &mut other] {
        assert_eq!(flush(client), Err(Errno::EIO));
        assert_eq!(forced(client, 2), Err(Errno::EIO));
        assert_eq!(write(client, 4096, &pattern(3, BLOCK_BYTES)), Ok(()), "what promises nothing goes on");
        assert_eq!(read(client, 4096, BLOCK_BYTES), Ok(pattern(3, BLOCK_BYTES)));
    }
    initiator.process.kill();
    fs::remove_file(&initiator.socket).unwrap();
    let initiator = Initiator::start(&target.url(), &folder.path().join("nbd.sock"));
    assert_eq!(flush(&mut connect(&initiator)), Err(Errno::EIO), "nor does another association forget");
    let said = target.process.output();
    assert_eq!(said.matches("a sync failed").count(), 1, "{said}");
}

/// A command under a limit of open files.
fn with_descriptors(limit: usize, program: &str) -> process::Command {
    let mut command = process::Command::new("prlimit");
    command.arg(format!("--nofile={limit}:{limit}")).arg(binary(program));
    command
}

#[test]
fn a_target_out_of_descriptors_takes_connections_again_when_there_are_some() {
    let folder = folder();
    let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
    let mut command = with_descriptors(64, "godwit-target");
    command.args(["--export", "memory:64MiB", "--listen", &format!("iwarp://{address}"), "--nqn", NQN]);
    let target = Target::start_command(&mut command, address);
    let initiator = Initiator::start(&target.url(), &folder.path().join("nbd.sock"));
    while_verifying(&initiator.socket, 0, || {
        let idle: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
        wait_for("the target is out of descriptors", Duration::from_secs(5), || target.process.output().contains("cannot accept"));
        thread::sleep(Duration::from_secs(1));
        drop(idle);
        let second = Initiator::start(&target.url(), &folder.path().join("second.sock"));
        let mut client = connect(&second);
        client.write(32 << 20, &pattern(1, MIB));
        assert_eq!(client.read(32 << 20, MIB), pattern(1, MIB));
    });
    let said = target.process.output();
    // Once for each time that descriptors ran out: on the way back they may again. In a loop it would be ten times a second.
    assert!(said.matches("cannot accept").count() <= 4, "said in a loop:\n{said}");
}

#[test]
fn an_initiator_out_of_descriptors_takes_clients_again_when_there_are_some() {
    let folder = folder();
    let socket = folder.path().join("nbd.sock");
    let target = Target::start("memory:64MiB");
    let mut command = with_descriptors(48, "godwit");
    command.args(["connect", &target.url(), "--nbd", &format!("unix:{}", socket.display())]);
    let initiator = Initiator::start_command(&mut command, &socket);
    while_verifying(&socket, 0, || {
        let idle: Vec<_> = (0..80).map(|_| UnixStream::connect(&socket).unwrap()).collect();
        wait_for("the initiator is out of descriptors", Duration::from_secs(5), || initiator.process.output().contains("cannot accept"));
        let cpu = initiator.process.cpu_time();
        thread::sleep(Duration::from_secs(1));
        println!("{:?} of processor time in a second without descriptors", initiator.process.cpu_time().saturating_sub(cpu));
        drop(idle);
        // Those before it are taken in, and found to be gone, first.
        wait_for("clients are taken in again", Duration::from_secs(5), || Client::connect(&socket).is_ok());
        let mut client = connect(&initiator);
        client.write(32 << 20, &pattern(1, MIB));
        assert_eq!(client.read(32 << 20, MIB), pattern(1, MIB));
    });
    let said = initiator.process.output();
    // Once for each time that descriptors ran out: on the way back they may again. In a loop it would be ten times a second.
    assert!(said.matches("cannot accept").count() <= 4, "said in a loop:\n{said}");
}
