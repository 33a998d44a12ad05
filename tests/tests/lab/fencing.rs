//! That an old write never lands after a newer one: writes that are held below the target, before it, and on their way to it, when their association ends.
//!
//! Each case shows it twice where it can: in the data, and in the kernel's record of what the disk was asked for. All of them run in one guest for each provider,
//! between two ends of a cable, on one disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use godwit_nbd::{Command as Nbd, CommandFlags, Errno, Request};
use godwit_nvme::ConnectRefusal;
use godwit_rdma::Transport;
use godwit_tests::daemon::{Initiator, NQN, Process, Target, binary, wait_for};
use godwit_tests::lab::bare_host::{BareHost, NoAssociation};
use godwit_tests::lab::block_trace::BlockTrace;
use godwit_tests::lab::cable::{Cable, TARGET};
use godwit_tests::lab::flaky::FlakyDisk;
use godwit_tests::lab::{Guest, in_guest};
use godwit_tests::nbd::{Client, Receiver, Sender};
use godwit_tests::tools::run;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::cells::{Provider, step};

/// How long anything may take that takes moments.
const PATIENCE: Duration = Duration::from_secs(60);

/// The host whose writes are fenced, and another one.
const HOST: [&str; 2] = ["nqn.2026-11.org.example:fenced", "11111111-2222-3333-4444-00000000000f"];
const OTHER: [&str; 2] = ["nqn.2026-11.org.example:other", "11111111-2222-3333-4444-00000000000e"];

const DISK_MIB: u32 = 32;

/// A write of this length goes in its command's capsule, one of that is fetched by the target.
const SMALL: u32 = 4096;
const LARGE: u32 = 64 << 10;

/// Where cases write: aligned to either length.
const OFFSET: u64 = 1 << 20;

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn no_old_write_lands_after_a_newer_one_on_iwarp() {
    in_guest(&Guest::default(), || run_all(Provider::Iwarp));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn no_old_write_lands_after_a_newer_one_on_rxe() {
    in_guest(&Guest::default(), || run_all(Provider::Rdma));
}

/// Its name, and what it does.
type Case = (&'static str, fn(&World));

const CASES: [Case; 5] = [
    ("a host waits for its write below the target", a_host_waits_for_its_write_below_the_target),
    ("a write whose data come too late never reaches the disk", a_write_whose_data_come_too_late_never_reaches_the_disk),
    ("after a silent cut nothing is sent again too early", after_a_silent_cut_nothing_is_sent_again_too_early),
    ("the successor of a killed target waits for its writes", the_successor_of_a_killed_target_waits_for_its_writes),
    ("the successor of a killed initiator comes after its writes", the_successor_of_a_killed_initiator_comes_after_its_writes),
];

fn run_all(provider: Provider) {
    let folder = tempfile::tempdir().unwrap();
    let world = World { provider, cable: Cable::lay(), disk: FlakyDisk::start(folder.path(), DISK_MIB), folder };
    let mut failed = Vec::new();
    for (name, case) in CASES {
        step(name);
        let started = Instant::now();
        let passed = catch_unwind(AssertUnwindSafe(|| case(&world))).is_ok();
        println!("{name}: {} ({:.1?})", if passed { "ok" } else { "FAILED" }, started.elapsed());
        failed.extend((!passed).then_some(name));
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}

struct World {
    provider: Provider,
    cable: Cable,
    disk: FlakyDisk,
    folder: tempfile::TempDir,
}

impl World {
    fn control(&self) -> PathBuf {
        self.folder.path().join("target.ctl")
    }

    fn target_command(&self) -> Command {
        let mut command = Command::new(binary("godwit-target"));
        command.args([
            "--export",
            &format!("device:{},block_size=4096", self.disk.path().display()),
            "--nqn",
            NQN,
            "--allow-any-host-remote",
        ]);
        command.args(["--listen", &self.provider.url(TARGET)]).arg("--control").arg(self.control());
        command
    }

    fn target(&self) -> Target {
        Target::start_command(&mut self.target_command(), TARGET)
    }

    fn initiator_command(&self, arguments: &[&str]) -> (Command, PathBuf) {
        let socket = self.folder.path().join("nbd.sock");
        let mut command = Command::new(binary("godwit"));
        command.args(["connect", &format!("{}/{NQN}", self.provider.url(TARGET)), "--nbd", &format!("unix:{}", socket.display())]);
        command.args(["--hostnqn", HOST[0], "--hostid", HOST[1], "--reconnect-delay", "1"]).args(arguments);
        (command, socket)
    }

    fn initiator(&self, arguments: &[&str]) -> Initiator {
        let (mut command, socket) = self.initiator_command(arguments);
        Initiator::start_command(&mut command, &socket)
    }

    fn bare(&self, [nqn, id]: [&str; 2]) -> BareHost {
        let transport = match self.provider {
            Provider::Iwarp => Transport::Iwarp,
            Provider::Rdma => Transport::Rdma,
        };
        BareHost::new(transport, TARGET, nqn, id)
    }

    fn trace(&self) -> BlockTrace {
        BlockTrace::start(&self.disk.path())
    }

    /// What is on the disk, past every cache.
    fn on_disk(&self, offset: u64, len: u32) -> Vec<u8> {
        let mut dd = Command::new("dd");
        dd.args(["bs=4096", "iflag=direct", "status=none", &format!("skip={}", offset / 4096), &format!("count={}", len / 4096)]);
        let output = dd.arg(format!("if={}", self.disk.path().display())).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    fn assert_on_disk(&self, offset: u64, len: u32, byte: u8) {
        let found = self.on_disk(offset, len);
        assert!(found.len() == len as usize && found.iter().all(|&found| found == byte), "not {byte:#x}, but {:#x} and so on", found[0]);
    }

    /// Commands of the host that the target has not answered.
    fn in_flight(&self) -> u64 {
        let status = run(Command::new(binary("godwit-target")).args(["status", "--json", "--control"]).arg(self.control()));
        let status: Value = serde_json::from_str(&status).unwrap();
        let controllers = status["subsystems"][0]["controllers"].as_array().unwrap();
        let queues =
            controllers.iter().filter(|controller| controller["host"] == HOST[0]).flat_map(|found| found["queues"].as_array().unwrap());
        queues.filter(|queue| queue["qid"] != 0).map(|queue| queue["in_flight"].as_u64().unwrap()).sum()
    }
}

/// A client of the initiator that does not wait for answers.
struct Writer {
    sender: Sender,
    receiver: Receiver,
}

impl Writer {
    fn start(initiator: &Initiator) -> Self {
        let (sender, receiver) = Client::connect(&initiator.socket).unwrap().split();
        Self { sender, receiver }
    }

    /// Sends a write, whose cookie is its offset.
    fn send(&mut self, offset: u64, len: u32, byte: u8) {
        let request = Request { cookie: offset, command: Nbd::Write, flags: CommandFlags::NONE, offset, length: len };
        self.sender.send(&request, &vec![byte; len as usize]).unwrap();
    }

    /// Waits for an answer.
    fn await_answer(&mut self) {
        let answer = self.receiver.receive(|_| 0).unwrap();
        assert_eq!(answer.errno, Errno::OK);
    }
}

fn sector(offset: u64) -> u64 {
    offset / 512
}

fn count(process: &Process, text: &str) -> usize {
    process.output().matches(text).count()
}

/// Writes B by way of an initiator to where A was, and finds it there, now and a little later.
fn write_and_find(world: &World, initiator: &Initiator, offset: u64, len: u32, byte: u8) {
    let mut client = Client::connect(&initiator.socket).unwrap();
    client.write(offset, &vec![byte; len as usize]);
    for pause in [Duration::ZERO, Duration::from_millis(500)] {
        thread::sleep(pause);
        assert!(client.read(offset, len).iter().all(|&found| found == byte), "an older write is there");
        world.assert_on_disk(offset, len, byte);
    }
}

/// A is held below the target when its host's connections end. Until it has landed that host gets no association, but is told to try again.
fn a_host_waits_for_its_write_below_the_target(world: &World) {
    let target = world.target();
    let mut initiator = world.initiator(&[]);
    let mut writer = Writer::start(&initiator);
    let trace = world.trace();
    let (mut command, socket) = world.initiator_command(&[]);
    let mut successor;
    {
        let held = world.disk.hold();
        writer.send(OFFSET, LARGE, b'A');
        wait_for("A is below the target", PATIENCE, || trace.under_way() == [sector(OFFSET)]);
        initiator.process.kill();
        wait_for("the target knows", PATIENCE, || count(&target.process, "association ends") == 1);
        successor = Process::start(&mut command);
        let mut host = world.bare(HOST);
        for _ in 0..4 {
            match host.connect_admin(Duration::from_secs(30)) {
                Err(NoAssociation::Refused(refusal)) => {
                    assert_eq!((refusal, refusal.status.to_wire() >> 1), (ConnectRefusal::BUSY, 0x181));
                }
                other => panic!("A is not on the disk, and Connect was answered with {other:?}"),
            }
        }
        // Not everyone is told so.
        world.bare(OTHER).connect_admin(Duration::from_secs(30)).unwrap();
        assert_eq!(count(&successor, "ready: "), 0, "{}", successor.output());
        assert_eq!(trace.under_way(), [sector(OFFSET)]);
        held.release();
    }
    successor.await_word("ready: ").unwrap_or_else(|error| panic!("{error}"));
    trace.mark("connected");
    assert_eq!(trace.under_way_at("connected"), [] as [u64; 0]);
    world.assert_on_disk(OFFSET, LARGE, b'A');
    write_and_find(world, &Initiator { process: successor, socket }, OFFSET, LARGE, b'B');
}

/// The target has the command A and not yet its data when the association ends. When they can come, a new one is up, and A is not carried out.
fn a_write_whose_data_come_too_late_never_reaches_the_disk(world: &World) {
    let target = world.target();
    let mut host = world.bare(HOST);
    let (admin, cntlid) = host.connect_admin(Duration::from_secs(60)).unwrap();
    host.enable(admin);
    let queue = host.connect_io(cntlid);
    let lba = OFFSET / 4096;
    host.write(queue, lba, &[b'0'; LARGE as usize]);
    let trace = world.trace();
    trace.mark("A");
    {
        // The target's question for the data is lost, and what is sent to the target is not.
        let silence = world.cable.silence_target();
        host.start_write(queue, lba, &[b'A'; LARGE as usize]);
        host.serve_until("the target has the command", || world.in_flight() == 1);
        host.close(admin);
        host.serve_until("the target knows", || count(&target.process, "association ends") == 1);
        silence.end();
    }
    let deadline = Instant::now() + PATIENCE;
    let (admin, cntlid) = loop {
        match host.connect_admin(Duration::from_secs(60)) {
            Ok(connected) => break connected,
            Err(NoAssociation::Refused(refusal)) if refusal == ConnectRefusal::BUSY && Instant::now() < deadline => {}
            Err(other) => panic!("{other:?}"),
        }
    };
    // The old queue goes on answering all the while, whatever it is asked. A lost question is asked again within this time.
    host.serve_for(Duration::from_secs(3));
    assert_eq!(trace.begun_since("A"), [] as [u64; 0], "A was carried out after its association had ended");
    world.assert_on_disk(OFFSET, LARGE, b'0');

    host.enable(admin);
    let queue = host.connect_io(cntlid);
    host.write(queue, lba, &[b'B'; LARGE as usize]);
    assert_eq!(trace.begun_since("A"), [sector(OFFSET)], "B is all that was written");
    world.assert_on_disk(OFFSET, LARGE, b'B');
}

/// A is on its way when the network goes silent, and comes back long before the target may have given the association up.
fn after_a_silent_cut_nothing_is_sent_again_too_early(world: &World) {
    // A connection request that is lost is sent again after a second of TCP's, and four of RoCE's: one that leaves too early is to arrive too early.
    let keep_alive = Duration::from_secs(match world.provider {
        Provider::Iwarp => 4,
        Provider::Rdma => 8,
    });
    // Half the timeout, and at least two seconds.
    let grace = (keep_alive / 2).max(Duration::from_secs(2));
    let target = world.target();
    let initiator = world.initiator(&["--keep-alive-tmo", &keep_alive.as_secs().to_string(), "--nr-io-queues", "1"]);
    let mut writer = Writer::start(&initiator);
    writer.send(OFFSET, SMALL, b'0');
    writer.await_answer();
    let silence = world.cable.silence();
    let sent = Instant::now();
    writer.send(OFFSET, SMALL, b'A');
    // Nothing was heard of the target to the end: what it closes it is known to have closed.
    let waits = "until the target has given up the old association";
    wait_for("the initiator has lost the target", PATIENCE, || count(&initiator.process, waits) == 1);
    silence.end();
    println!("lost after {:.1?}", sent.elapsed());
    wait_for("a new association", PATIENCE, || count(&target.process, "host connected") == 2);
    let after = sent.elapsed();
    println!("connected again after {after:.1?}");
    // The target counts any command, and the last one may have come to it at the end of the timeout before.
    assert!(after >= keep_alive * 2 + grace, "connected again {after:?} after A was sent");
    let said = target.process.output();
    let (ended, again) = (said.find("association ends"), said.rfind("host connected"));
    assert!(ended.is_some() && ended < again, "the target knew nothing of an end:\n{said}");
    writer.await_answer();
    world.assert_on_disk(OFFSET, SMALL, b'A');
    write_and_find(world, &initiator, OFFSET, SMALL, b'B');
}

/// A is held below the target when that is killed. Until it has landed its successor serves nobody.
fn the_successor_of_a_killed_target_waits_for_its_writes(world: &World) {
    let target = world.target();
    let initiator = world.initiator(&[]);
    let mut writer = Writer::start(&initiator);
    let trace = world.trace();
    let mut successor;
    {
        let held = world.disk.hold();
        writer.send(OFFSET, LARGE, b'A');
        wait_for("A is below the target", PATIENCE, || trace.under_way() == [sector(OFFSET)]);
        target.process.signal(Signal::SIGKILL);
        successor = Process::start(&mut world.target_command());
        wait_for("the successor is up, or waits", PATIENCE, || {
            ["in use by", "listening on "].iter().any(|text| count(&successor, text) == 1)
        });
        // The kernel may keep the socket of the dead, which nobody answers on.
        let mut host = world.bare(OTHER).patience(Duration::from_secs(1));
        let watched = Instant::now();
        while watched.elapsed() < Duration::from_secs(2) {
            let connected = host.connect_admin(Duration::from_secs(30));
            assert!(connected.is_err(), "A is not on the disk, and there is an association");
            thread::sleep(Duration::from_millis(100));
        }
        assert!(successor.is_running() && count(&successor, "listening on ") == 0, "{}", successor.output());
        assert_eq!(trace.under_way(), [sector(OFFSET)]);
        held.release();
    }
    successor.await_word("listening on ").unwrap_or_else(|error| panic!("{error}"));
    world.assert_on_disk(OFFSET, LARGE, b'A');
    writer.await_answer();
    write_and_find(world, &initiator, OFFSET, LARGE, b'B');
}

/// Many writes are under way when the initiator is killed, in the disk and before it. When its successor is up, no one of them is left.
fn the_successor_of_a_killed_initiator_comes_after_its_writes(world: &World) {
    const WRITES: u64 = 24;
    let len = |number| if number % 2 == 0 { SMALL } else { LARGE };
    let offset = |number| OFFSET + number * u64::from(LARGE);
    let target = world.target();
    let mut initiator = world.initiator(&["--nr-io-queues", "2", "--reactors", "2"]);
    let mut writers = [Writer::start(&initiator), Writer::start(&initiator)];
    let trace = world.trace();
    let (mut command, socket) = world.initiator_command(&["--nr-io-queues", "2", "--reactors", "2"]);
    let mut successor;
    {
        let held = world.disk.hold();
        for number in 0..WRITES {
            writers[usize::from(number % 3 == 0)].send(offset(number), len(number), b'A');
        }
        wait_for("a write is in the disk", PATIENCE, || !trace.under_way().is_empty());
        initiator.process.kill();
        successor = Process::start(&mut command);
        let answers = ["host connected", "Connect refused"];
        wait_for("the successor's Connect is answered", PATIENCE, || {
            answers.iter().map(|text| count(&target.process, text)).sum::<usize>() > 1
        });
        assert_eq!(count(&target.process, "host connected"), 1, "the successor came before the writes had ended");
        println!("{} of {WRITES} writes are in the disk", trace.under_way().len());
        held.release();
    }
    successor.await_word("ready: ").unwrap_or_else(|error| panic!("{error}"));
    trace.mark("connected");
    assert_eq!(trace.under_way_at("connected"), [] as [u64; 0], "writes of the dead initiator are not on the disk yet");
    let successor = Initiator { process: successor, socket };
    let mut client = Client::connect(&successor.socket).unwrap();
    for number in 0..WRITES {
        client.write(offset(number), &vec![b'B'; len(number) as usize]);
    }
    thread::sleep(Duration::from_millis(500));
    let on_disk = world.on_disk(OFFSET, u32::try_from(offset(WRITES) - OFFSET).unwrap());
    for (number, on_disk) in (0..).zip(on_disk.chunks(LARGE as usize)) {
        let seen = client.read(offset(number), len(number));
        let is_new = |data: &[u8]| data.iter().all(|&byte| byte == b'B');
        assert!(is_new(&seen) && is_new(&on_disk[..len(number) as usize]), "write {number} of the dead initiator has landed");
    }
}
