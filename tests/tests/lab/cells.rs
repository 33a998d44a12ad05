//! What two peers must be able to do with each other, written once for every way to reach RDMA. All of it runs in a guest.

use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::Duration;

use godwit_tests::daemon::{Initiator, NQN, Target, binary};
use godwit_tests::lab::disk::{Disk, VERIFY};
use godwit_tests::lab::nvme::{Controller, Host, controllers, disconnect, list_subsystems};
use godwit_tests::lab::nvmet::{Backing, LinuxTarget};
use godwit_tests::lab::{dmesg, rdma};
use godwit_tests::tools::{fio, nbdsh, run};
use serde_json::Value;

/// The keep-alive timeout of cells that idle.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// The size of the volumes.
const VOLUME_MIB: u32 = 64;
const VOLUME_BYTES: u64 = (VOLUME_MIB as u64) << 20;

/// How a daemon of ours reaches RDMA: what its addresses begin with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Provider {
    /// `iwarp://`: iWARP in userspace, over the sockets of the network interface.
    Iwarp,
    /// `rdma://`: the RDMA device.
    Rdma,
}

impl Provider {
    pub(crate) fn url(self, address: SocketAddr) -> String {
        match self {
            Self::Iwarp => format!("iwarp://{address}"),
            Self::Rdma => format!("rdma://{address}"),
        }
    }
}

pub(crate) fn address() -> SocketAddr {
    SocketAddr::new(rdma::V4, 4420)
}

/// A step of a case, told as it begins: the last one is where it failed.
pub(crate) fn step(what: &str) {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    println!("[{:>7}] {what}", uptime.split(' ').next().unwrap());
}

/// Our target on an address of the RDMA device, for one host, with a file as its namespace.
fn our_target(provider: Provider, host: &Host, folder: &tempfile::TempDir) -> Target {
    let export = format!("{},size={VOLUME_MIB}MiB", folder.path().join("disk.img").display());
    let mut command = Command::new(binary("godwit-target"));
    command.args(["--export", &export, "--listen", &provider.url(address()), "--nqn", NQN, "--host", &host.nqn]);
    Target::start_command(&mut command, address())
}

/// Ends a daemon as its user does, and looks for what it should not have said.
pub(crate) fn finish(process: &mut godwit_tests::daemon::Process) {
    process.terminate();
    let said = process.output();
    assert!(!said.contains("ERROR") && !said.contains("panicked"), "{said}");
}

/// Linux's NVMe host on our target, from discovery to the end of a second connection.
pub(crate) fn linux_host(provider: Provider) {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::numbered(1);
    let mut target = our_target(provider, &host, &folder);

    step("discover");
    find_record(&host.discover(address()));

    step("connect");
    let keep_alive = KEEP_ALIVE.as_secs().to_string();
    let arguments = ["--nr-io-queues", "2", "--keep-alive-tmo", &keep_alive];
    let controller = host.connect(address(), NQN, &arguments);
    controller.await_state("live");
    // The admin queue counts.
    assert_eq!(controller.attribute("queue_count"), "3");
    let disk = Disk::at(controller.disk(1));

    step("admin commands");
    admin_commands(&controller, &disk, &host);

    step("fio");
    disk.verify();
    step("flush, zero and discard");
    ranges(&controller, &disk);

    step("idle");
    idle(&controller);

    step("disconnect");
    disk.write(8192, &[0x5a; 4096]);
    controller.disconnect();
    assert!(target.process.is_running());

    step("connect again");
    let controller = host.connect(address(), NQN, &[]);
    let disk = Disk::at(controller.disk(1));
    assert_eq!(disk.read(8192, 4096).unwrap(), [0x5a; 4096]);
    controller.disconnect();

    step("connect to all");
    let all = host.connect_all(address(), &[]);
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0].attribute("subsysnqn"), NQN);
    disconnect(NQN);
    assert_eq!(controllers(), []);
    finish(&mut target.process);
}

/// Linux's NVMe host on our target: connect, verify, disconnect.
pub(crate) fn smoke_of_linux_host(provider: Provider) {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::numbered(1);
    let mut target = our_target(provider, &host, &folder);
    find_record(&host.discover(address()));
    let controller = host.connect(address(), NQN, &[]);
    let disk = Disk::at(controller.disk(1));
    disk.verify();
    ranges(&controller, &disk);
    controller.disconnect();
    finish(&mut target.process);
}

fn find_record(records: &[Value]) {
    let record = records.iter().find(|record| record["subnqn"] == NQN).unwrap_or_else(|| panic!("{NQN} is not in {records:?}"));
    assert_eq!(record["trtype"], "rdma");
    assert_eq!(record["adrfam"], "ipv4");
    assert_eq!(record["traddr"], rdma::V4.to_string());
    assert_eq!(record["trsvcid"], address().port().to_string());
    assert_eq!(record["subtype"], "nvme subsystem");
}

fn admin_commands(controller: &Controller, disk: &Disk, host: &Host) {
    let id = controller.query("id-ctrl", &[]);
    assert_eq!(id["subnqn"], NQN);
    assert_eq!(id["cntlid"].as_u64().unwrap().to_string(), controller.attribute("cntlid"));
    // A volatile write cache, so that file systems flush; 64-byte and 16-byte entries; at least the command and 8 KiB in a capsule of 16-byte units.
    assert_eq!(id["vwc"].as_u64().unwrap() & 1, 1);
    assert_eq!((&id["sqes"], &id["cqes"]), (&0x66.into(), &0x44.into()));
    assert!(id["ioccsz"].as_u64().unwrap() >= (64 + 8192) / 16, "{id}");
    let namespace = controller.query("id-ns", &["-n", "1"]);
    assert_eq!(namespace["nsze"], VOLUME_BYTES / 4096);
    assert_eq!(disk.size_bytes(), VOLUME_BYTES);
    assert_eq!(disk.queue("logical_block_size"), "4096");
    assert_eq!(disk.queue("write_cache"), "write back");
    let smart = controller.query("smart-log", &[]);
    assert_eq!(smart["critical_warning"], 0);
    let errors = controller.query("error-log", &["-e", "1"]);
    assert_eq!(errors["errors"].as_array().map(Vec::len), Some(1), "{errors}");
    let listed = list_subsystems().to_string();
    for word in [NQN, &host.nqn, &controller.name, "rdma", &format!("traddr={},trsvcid={}", rdma::V4, address().port()), "live"] {
        assert!(listed.contains(word), "`{word}` is missing in {listed}");
    }
}

/// Zeroing and discarding touch the range that was asked for and no other, and a flush goes to the target.
fn ranges(controller: &Controller, disk: &Disk) {
    let pattern: Vec<u8> = (0..1 << 20).map(|index: u32| index.to_le_bytes()[0] | 1).collect();
    disk.write(0, &pattern);
    let flushes = controller.flushes(1);
    disk.write(1 << 20, &pattern[..4096]);
    assert!(controller.flushes(1) > flushes, "the sync was no flush");
    controller.command("flush", &["-n", "1"]);

    assert_ne!(disk.queue("write_zeroes_max_bytes"), "0");
    disk.zero(65536, 131_072);
    let mut expected = pattern;
    expected[65536..65536 + 131_072].fill(0);
    assert!(disk.read(0, 1 << 20).unwrap() == expected, "after zeroing");

    assert_ne!(disk.queue("discard_max_bytes"), "0");
    disk.discard(524_288, 65536);
    controller.command("dsm", &["-n", "1", "-d", "-s", "160", "-b", "16"]);
    // Deallocated blocks read as zeroes with our target.
    expected[524_288..524_288 + 65536].fill(0);
    expected[160 * 4096..176 * 4096].fill(0);
    assert!(disk.read(0, 1 << 20).unwrap() == expected, "after discarding");
}

fn idle(controller: &Controller) {
    let id = controller.attribute("cntlid");
    thread::sleep(KEEP_ALIVE * 2 + Duration::from_secs(1));
    assert_eq!(controller.attribute("state"), "live");
    assert_eq!(controller.attribute("cntlid"), id);
    let log = dmesg();
    for word in ["keep-alive failed", "error recovery", "econnect"] {
        assert!(!log.contains(word), "{log}");
    }
}

/// Our initiator on Linux's NVMe target, from discovery to the end of a second connection.
pub(crate) fn linux_target(provider: Provider) {
    let _target = LinuxTarget::start(address(), &Backing::RamDisk(VOLUME_MIB));
    our_initiator(provider);
}

/// Our initiator on our target, from discovery to the end of a second connection.
pub(crate) fn ours(target: Provider, initiator: Provider) {
    let folder = tempfile::tempdir().unwrap();
    let export = format!("{},size={VOLUME_MIB}MiB", folder.path().join("disk.img").display());
    let mut command = Command::new(binary("godwit-target"));
    command.args(["--export", &export, "--listen", &target.url(address()), "--nqn", NQN, "--allow-any-host-remote"]);
    let mut target = Target::start_command(&mut command, address());
    our_initiator(initiator);
    finish(&mut target.process);
}

/// Our initiator on whatever target listens, from discovery to the end of a second connection.
fn our_initiator(provider: Provider) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd.sock");
    let url = format!("{}/{NQN}", provider.url(address()));

    step("discover");
    discover(provider);

    step("connect");
    let keep_alive = KEEP_ALIVE.as_secs().to_string();
    let mut initiator = Initiator::start_with(&url, &socket, &["--keep-alive-tmo", &keep_alive, "--nr-io-queues", "2"]);
    assert_eq!(run(Command::new("nbdinfo").args(["--size", &initiator.uri()])).trim(), VOLUME_BYTES.to_string());

    step("fio");
    fio(&initiator.uri(), &VERIFY);
    step("flush, zero and trim");
    nbdsh(&initiator.uri(), RANGES);

    step("idle");
    thread::sleep(KEEP_ALIVE * 2 + Duration::from_secs(1));
    nbdsh(&initiator.uri(), "h.pwrite(b'Z' * 4096, 8192)\nh.flush()\nassert h.pread(4096, 8192) == b'Z' * 4096");
    let said = initiator.process.output();
    assert!(!said.contains("reconnect") && !said.contains("WARN"), "{said}");

    step("disconnect");
    finish(&mut initiator.process);
    drop(initiator);

    step("connect again");
    let mut initiator = Initiator::start(&url, &socket);
    nbdsh(&initiator.uri(), "assert h.pread(4096, 8192) == b'Z' * 4096");
    finish(&mut initiator.process);
}

/// Our initiator on Linux's NVMe target: connect, verify, disconnect.
pub(crate) fn smoke_of_linux_target(provider: Provider) {
    let _target = LinuxTarget::start(address(), &Backing::RamDisk(VOLUME_MIB));
    let folder = tempfile::tempdir().unwrap();
    discover(provider);
    let mut initiator = Initiator::start(&format!("{}/{NQN}", provider.url(address())), &folder.path().join("nbd.sock"));
    fio(&initiator.uri(), &VERIFY);
    nbdsh(&initiator.uri(), RANGES);
    finish(&mut initiator.process);
}

fn discover(provider: Provider) {
    let list = run(Command::new(binary("godwit")).args(["discover", &provider.url(address()), "--json"]));
    let list: Value = serde_json::from_str(&list).unwrap();
    let records = list["records"].as_array().unwrap();
    assert!(records.iter().any(|record| record["subnqn"] == NQN && record["traddr"] == rdma::V4.to_string()), "{list}");
}

/// With and without FUA; zeroes where zeroes were asked for, and nowhere else. What a trimmed range reads as is the target's affair.
const RANGES: &str = r"
pattern = bytes(i & 255 | 1 for i in range(1 << 16)) * 16
h.pwrite(pattern, 0)
h.flush()
h.pwrite(pattern[:8192], 0, nbd.CMD_FLAG_FUA)
h.zero(131072, 65536)
h.zero(65536, 262144, nbd.CMD_FLAG_FUA)
expected = bytearray(pattern)
expected[65536:65536 + 131072] = bytes(131072)
expected[262144:262144 + 65536] = bytes(65536)
assert h.pread(1 << 20, 0) == expected
h.trim(65536, 524288)
h.trim(65536, 655360, nbd.CMD_FLAG_FUA)
h.flush()
assert h.pread(524288, 0) == expected[:524288]
assert h.pread(65536, 589824) == expected[589824:655360]
assert h.pread((1 << 20) - 720896, 720896) == expected[720896:]
";
