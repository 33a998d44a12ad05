//! A machine that writes out to a volume of its own daemons while its memory is short: it must not wait for itself.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use godwit_tests::daemon::{NQN, Process, Target, binary, free_port};
use godwit_tests::hostile::Random;
use godwit_tests::lab::attached::Attached;
use godwit_tests::lab::drive::{self, Drive};
use godwit_tests::lab::filesystem::{FileSystem, Kind};
use godwit_tests::lab::{Guest, dmesg, in_guest};
use godwit_tests::tools::run;

use crate::cells::step;

const MEMORY_MIB: u32 = 512;

/// More than twice the memory.
const WRITTEN_MIB: usize = 1152;
const DISK_BYTES: u64 = 1536 << 20;

const TIMES: u64 = 10;

/// Both daemons live on the machine whose memory is written out to them, and are protected from its shortage.
///
/// Without the flag of I/O flushers all rounds went through as well, on Linux 6.12, and took as long: the locked pages and O_DIRECT are what this load needs.
/// The flag is the kernel's promise for what it does not provoke, an allocation of a daemon's in the kernel that waits for write-out. So it is looked at.
#[test]
#[ignore = "needs root and QEMU, and takes long: make lab-long"]
fn a_machine_writes_out_far_more_than_its_memory_to_its_own_daemons() {
    let guest = Guest::default().memory(MEMORY_MIB).drive(Drive::Scratch { bytes: DISK_BYTES }).limit(Duration::from_secs(5400));
    in_guest(&guest, || {
        let folder = tempfile::tempdir().unwrap();
        let mount_point = folder.path().join("mount");
        fs::create_dir(&mount_point).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        // As `OOMScoreAdjust=` of a unit does; the initiator sees to it itself.
        let mut command = Command::new("choom");
        command.args(["-n", "-1000", "--"]).arg(binary("godwit-target"));
        command.args([
            "--export",
            &format!("device:{}", drive::PATH),
            "--listen",
            &format!("iwarp://{address}"),
            "--nqn",
            NQN,
            "--lock-memory",
        ]);
        let target = Target::start_command(&mut command, address);
        let attached = Attached::start(&target.url(), &[]);
        let file_system = FileSystem::make(Kind::Ext4, attached.disk.path());
        let mounted = file_system.mount(&mount_point);
        for number in 1..=TIMES {
            let path = mounted.folder().join("file");
            let started = Instant::now();
            write(&path, number);
            let written = started.elapsed();
            fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
            verify(&path, number);
            step(&format!("{number}: written in {written:.1?}, read in {:.1?}", started.elapsed() - written));
        }
        // With the threads that they have by now.
        for process in [&target.process, &attached.process] {
            assert_protected(process);
        }
        mounted.unmount();
        file_system.check();
        run(Command::new(binary("godwit")).args(["disconnect", "test"]));
        let log = dmesg();
        for complaint in ["Out of memory", "oom-kill", "I/O error", "blocked for more than", "page allocation failure"] {
            assert!(!log.contains(complaint), "{log}");
        }
        let states = run(Command::new("ps").args(["-eo", "state,comm"]));
        assert!(!states.lines().any(|line| line.starts_with('D')), "{states}");
    });
}

/// Its pages are locked, it is not killed for want of memory, and each of its threads may write out while others wait.
fn assert_protected(process: &Process) {
    /// In the kernel's flags of a task: its allocations start no I/O, and it is throttled by what it dirties itself alone.
    const IO_FLUSHER: u64 = 0x0008_0000 | 0x0010_0000;
    let folder = Path::new("/proc").join(process.pid().to_string());
    let status = fs::read_to_string(folder.join("status")).unwrap();
    println!(
        "{}",
        status
            .lines()
            .filter(|line| ["Name", "VmLck", "VmRSS", "Threads"].iter().any(|key| line.starts_with(key)))
            .collect::<Vec<_>>()
            .join(" ")
    );
    let locked_kib = status.lines().find_map(|line| line.strip_prefix("VmLck:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    assert!(locked_kib.unwrap() > 4096, "{status}");
    assert_eq!(fs::read_to_string(folder.join("oom_score_adj")).unwrap().trim(), "-1000", "{status}");
    for task in fs::read_dir(folder.join("task")).unwrap() {
        let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        // The name in brackets may hold anything.
        let flags: u64 = stat.rsplit(')').next().unwrap().split_whitespace().nth(6).unwrap().parse().unwrap();
        assert_eq!(flags & IO_FLUSHER, IO_FLUSHER, "{stat}");
    }
}

/// A MiB of the file: the same for each round, but for a stamp on each page.
fn fill(chunk: &mut [u8], round: u64, number: usize) {
    for (page, bytes) in chunk.chunks_mut(4096).enumerate() {
        let stamp = [round, u64::try_from(number * 256 + page).unwrap()];
        bytes[..16].copy_from_slice(&stamp.map(u64::to_le_bytes).concat());
    }
}

fn pattern(round: u64) -> Vec<u8> {
    let mut random = Random::new(round, 0);
    (0..(1 << 20) / 8).flat_map(|_| random.long().to_le_bytes()).collect()
}

fn write(path: &Path, round: u64) {
    let mut chunk = pattern(round);
    let mut file = File::create(path).unwrap();
    for number in 0..WRITTEN_MIB {
        fill(&mut chunk, round, number);
        file.write_all(&chunk).unwrap();
    }
    file.sync_all().unwrap();
}

fn verify(path: &Path, round: u64) {
    let mut expected = pattern(round);
    let mut found = vec![0; expected.len()];
    let mut file = File::open(path).unwrap();
    for number in 0..WRITTEN_MIB {
        fill(&mut expected, round, number);
        file.read_exact(&mut found).unwrap();
        assert!(found == expected, "MiB {number} of round {round} is not what was written");
    }
    assert_eq!(file.read(&mut found).unwrap(), 0);
}
