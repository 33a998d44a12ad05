//! Power cuts of the target's machine: what was promised before one is there after it, and no flush succeeds over what is not.
//!
//! The target runs in a guest whose disk has a volatile cache: nbdkit holds in its own memory, or in a file that nobody else can open, what it was not told to
//! flush. The cut is `kill -9` of nbdkit and of QEMU. The client runs here, and goes on as if nothing had happened.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use godwit_tests::daemon::{Initiator, NQN, Process, Target, binary, free_port, url, wait_for};
use godwit_tests::hostile::Random;
use godwit_tests::lab::drive::{self, Drive};
use godwit_tests::lab::filesystem::{FileSystem, Kind};
use godwit_tests::lab::{Guest, Running, is_inside};
use godwit_tests::nbd::Client;
use godwit_tests::record_log::{Loss, RecordLog};
use godwit_tests::tools::run;

use crate::cells::step;

const DISK_BYTES: u64 = 1 << 30;
const VOLUME_BYTES: u64 = 768 << 20;
const MEMORY_MIB: u32 = 1024;

/// How often the power is cut, where `GODWIT_LAB_CUTS` does not say.
const CUTS: u64 = 20;

/// The log is written for so long between two cuts, at most.
const MOST_MILLISECONDS: u64 = 6000;

/// A guest boots in a few seconds, on a busy machine in many times that; the log is read back through it.
const BOOT: Duration = Duration::from_secs(900);

/// The initiator waits for a machine that boots.
const PATIENT: [&str; 4] = ["--ctrl-loss-tmo", "3600", "--reconnect-delay", "1"];

/// Where the target listens in the guest.
const PORT: u16 = 4420;

/// What the guest prints when the target serves.
const SERVES: &str = "the target serves";

/// nbdkit keeps what is written to itself until it is flushed.
const WRITEBACK: &str = "writeback";
/// nbdkit ignores flushes.
const UNSAFE: &str = "unsafe";

/// What the target has below its namespace.
#[derive(Debug, Clone, Copy)]
enum Backing {
    /// A file of an ext4 on the disk.
    File,
    /// The disk itself.
    Device,
}

#[test]
#[ignore = "needs root and QEMU, and takes long: make lab-long"]
fn what_was_flushed_to_a_file_survives_power_cuts() {
    tells_of_lost_writes(Backing::File);
}

#[test]
#[ignore = "needs root and QEMU, and takes long: make lab-long"]
fn what_was_flushed_to_a_device_survives_power_cuts() {
    tells_of_lost_writes(Backing::Device);
}

#[test]
#[ignore = "needs root and QEMU, and takes long: make lab-long"]
fn what_was_retained_survives_power_cuts_unnoticed() {
    let outcome = power_cuts(Backing::File, WRITEBACK, cuts(), &["--retain", "64MiB"]);
    outcome.assert_promises_kept();
    assert_eq!(outcome.failures, 0, "a flush was told of lost writes, of which there were copies");
    assert!(outcome.said.contains("every write whose copy was retained is written again"), "no cut has lost anything: {}", outcome.said);
}

/// The tests above can fail: with a disk that does not flush, they do.
#[test]
#[ignore = "needs root and QEMU, and takes long: make lab-long"]
fn a_disk_that_drops_flushes_is_found_out() {
    let outcome = power_cuts(Backing::Device, UNSAFE, 1, &[]);
    let durable = outcome.losses.values().filter(|&&loss| loss == Loss::Durable).count();
    assert!(durable > 0, "nothing is missing of {} records that were never flushed", outcome.records);
}

fn tells_of_lost_writes(backing: Backing) {
    let outcome = power_cuts(backing, WRITEBACK, cuts(), &[]);
    outcome.assert_promises_kept();
    assert!(outcome.failures > 0, "no cut has lost anything");
}

fn cuts() -> u64 {
    number("GODWIT_LAB_CUTS").unwrap_or(CUTS)
}

/// What came of it.
struct Outcome {
    records: usize,
    failures: u64,
    losses: BTreeMap<u64, Loss>,
    /// What the initiator has said.
    said: String,
}

impl Outcome {
    fn assert_promises_kept(&self) {
        let lost = |kind| self.losses.iter().filter(|&(_, &loss)| loss == kind).map(|(block, _)| block).collect::<Vec<_>>();
        assert_eq!(lost(Loss::Durable), [] as [&u64; 0], "what was durable is lost, by block");
        assert_eq!(lost(Loss::FlushedOver), [] as [&u64; 0], "a flush has succeeded over lost writes, by block");
    }
}

fn power_cuts(backing: Backing, cache: &str, cuts: u64, arguments: &[&str]) -> Outcome {
    if is_inside() {
        serve(backing);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("GODWIT_LAB_SEED").unwrap_or(now.as_secs());
    println!("GODWIT_LAB_SEED={seed} draws the same records and the same times once more");
    let mut random = Random::new(seed, 0);
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk.img");
    File::create(&image).unwrap().set_len(DISK_BYTES).unwrap();
    let port = free_port();

    let mut machine = Powered::boot(&image, cache, port);
    let socket = folder.path().join("nbd.sock");
    let client = Initiator::start_with(&url(([127, 0, 0, 1], port).into()), &socket, &[&PATIENT, arguments].concat());
    let log = RecordLog::new(seed, VOLUME_BYTES);
    let mut reader = Client::connect(&client.socket).unwrap();
    let stream = UnixStream::connect(&client.socket).unwrap();
    let connection = Client::on(stream.try_clone().unwrap()).unwrap().split();
    let mut losses = BTreeMap::new();
    thread::scope(|scope| {
        let writer = scope.spawn(|| log.write(connection));
        let hang_up = HangUp(stream);
        let goes_on = || {
            let sent = log.sent();
            wait_for("the log goes on", BOOT, || log.goes_on_since(sent) || writer.is_finished());
            assert!(!writer.is_finished(), "the log has ended; the initiator said:\n{}", client.process.output());
        };
        for cut in 1..=cuts {
            goes_on();
            let moment = Duration::from_millis(random.below(MOST_MILLISECONDS));
            thread::sleep(moment);
            machine.cut();
            log.cut();
            let (started, records) = (Instant::now(), log.len());
            machine = Powered::boot(&image, cache, port);
            let booted = started.elapsed();
            goes_on();
            losses.append(&mut log.check(|offset, length| reader.read(offset, length)));
            println!(
                "cut {cut} after {moment:?}: {records} records were durable, {} losses so far, {} flushes failed so far; served after {:.1} s, in use after {:.1} s",
                losses.len(),
                log.failures(),
                booted.as_secs_f32(),
                started.elapsed().as_secs_f32()
            );
        }
        log.end();
        writer.join().unwrap();
        drop(hang_up);
    });
    Outcome { records: log.len(), failures: log.failures(), losses, said: client.process.output() }
}

/// Ends a connection, whose other user may wait for an answer that never comes when this test fails.
struct HangUp(UnixStream);

impl Drop for HangUp {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// The target's machine, with its power on.
struct Powered {
    disk: Process,
    guest: Running,
    _folder: tempfile::TempDir,
}

impl Powered {
    fn boot(image: &Path, cache: &str, port: u16) -> Self {
        // An emulated machine does not always boot, which is nobody's fault that is tested here.
        Self::try_boot(image, cache, port).or_else(|_| Self::try_boot(image, cache, port)).unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_boot(image: &Path, cache: &str, port: u16) -> Result<Self, godwit_tests::lab::Failure> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("disk.sock");
        let mut command = Command::new("nbdkit");
        command.args(["--exit-with-parent", "--filter=cache", "-U"]).arg(&socket);
        command.arg("file").arg(image).arg(format!("cache={cache}")).env("TMPDIR", folder.path());
        let mut disk = Process::start(&mut command);
        disk.await_ready(|| socket.exists()).unwrap_or_else(|error| panic!("{error}"));
        let mut guest = machine(socket, port).start()?;
        guest.await_line(SERVES)?;
        Ok(Self { disk, guest, _folder: folder })
    }

    fn cut(mut self) {
        // In this order: the guest cannot see that its disk is gone, it waits for it.
        self.disk.kill();
        drop(self.guest);
    }
}

fn machine(disk: PathBuf, port: u16) -> Guest {
    Guest::default().memory(MEMORY_MIB).limit(BOOT).drive(Drive::Nbd { socket: disk }).forward(port, PORT)
}

/// What the target's machine does, until its power is cut.
fn serve(backing: Backing) -> ! {
    machine(PathBuf::new(), 0).bring_up();
    let export = match backing {
        Backing::Device => format!("device:{}", drive::PATH),
        Backing::File => {
            let folder = Path::new("/mnt/disk");
            fs::create_dir(folder).unwrap();
            let file_system = if is_blank() {
                FileSystem::make(Kind::Ext4, drive::PATH.as_ref())
            } else {
                FileSystem::on(Kind::Ext4, drive::PATH.as_ref())
            };
            // It stays as it is until the end.
            let _ = file_system.mount(folder);
            format!("{}/volume.img,size={VOLUME_BYTES}", folder.display())
        }
    };
    let address = ([0, 0, 0, 0], PORT).into();
    let mut command = Command::new(binary("godwit-target"));
    command.args(["--export", &export, "--listen", &format!("iwarp://{address}"), "--nqn", NQN, "--allow-any-host-remote"]);
    let mut target = Target::start_command(&mut command, address);
    step(&target.process.output());
    println!("{SERVES}");
    target.process.wait(BOOT * 1000);
    panic!("the target has ended: {}", target.process.output());
}

/// Whether there is no file system on the disk.
fn is_blank() -> bool {
    let start = run(Command::new("od").args(["-An", "-tx1", "-j1080", "-N2", drive::PATH]));
    start.split_whitespace().collect::<Vec<_>>() != ["53", "ef"]
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is to be a number")))
}
