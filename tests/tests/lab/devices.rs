//! What happens to RDMA devices and around them: nothing of it takes a daemon down, and all of it is told.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use godwit_memory::{ClassLayout, Layout};
use godwit_nvme::cm::{QueueReject, QueueRequest};
use godwit_nvme::{Cntlid, Qid, QueueSize};
use godwit_rdma::{Completion, Fabric, FpduSize, QpConfig, Transport};
use godwit_reactor::{Event, PollBudget, Reactor, Token, Uring, UringConfig};
use godwit_tests::daemon::{Initiator, NQN, Process, Target, binary, wait_for};
use godwit_tests::hostile::Victim;
use godwit_tests::lab::disk::Disk;
use godwit_tests::lab::nvme::Host;
use godwit_tests::lab::rdma::{self, Device, resources};
use godwit_tests::lab::{Guest, in_guest, modprobe};
use godwit_tests::tools::{nbdsh, run};
use tempfile::TempDir;

/// How long a daemon may take for what takes it moments where processors are not emulated.
const PATIENCE: Duration = Duration::from_secs(60);

/// Blocks that the load writes and reads back.
const BLOCKS: usize = 512;

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(rdma::V4, port)
}

fn url(address: SocketAddr) -> String {
    format!("rdma://{address}/{NQN}")
}

/// A step of a case, told as it begins: the last one is where it failed.
fn step(what: &str) {
    let uptime = fs::read_to_string("/proc/uptime").unwrap();
    println!("[{:>7}] {what}", uptime.split(' ').next().unwrap());
}

struct World {
    folder: TempDir,
}

impl World {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A target with a file of its own.
    fn target(&self, address: SocketAddr) -> Target {
        let export = format!("{},size=64MiB", self.path(&format!("disk-{}.img", address.port())).display());
        let mut command = Command::new(binary("godwit-target"));
        command.args(["--export", &export, "--listen", &format!("rdma://{address}"), "--nqn", NQN, "--allow-any-host-remote"]);
        Target::start_command(&mut command, address)
    }

    fn initiator(&self, address: SocketAddr) -> Initiator {
        let socket = self.path(&format!("nbd-{}.sock", address.port()));
        let arguments = ["--reconnect-delay", "1", "--nr-io-queues", "2", "--keep-alive-tmo", "3"];
        Initiator::start_with(&url(address), &socket, &arguments)
    }
}

/// An honest client at work.
struct Load {
    stop: Arc<AtomicBool>,
    operations: Arc<AtomicU64>,
    thread: JoinHandle<Option<Victim>>,
}

impl Load {
    /// With `dies` it may end with the initiator that it uses.
    fn start(socket: &Path, dies: bool) -> Self {
        let mut victim = Victim::start(socket, 1, 0, BLOCKS).unwrap();
        let (stop, operations) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, count) = (Arc::clone(&stop), Arc::clone(&operations));
        let work = move || {
            while !until.load(Ordering::Relaxed) {
                if let Err(harm) = victim.step() {
                    assert!(dies, "an honest client was harmed after {victim}: {harm}");
                    return None;
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
            victim.check_all().unwrap_or_else(|harm| panic!("an honest client was harmed in the end: {harm}"));
            Some(victim)
        };
        Self { stop, operations, thread: thread::spawn(work) }
    }

    /// Waits until so many more requests have been answered.
    fn await_progress(&self, count: u64) {
        let before = self.operations.load(Ordering::Relaxed);
        wait_for("I/O goes on", PATIENCE, || {
            assert!(!self.thread.is_finished(), "the client has failed");
            self.operations.load(Ordering::Relaxed) >= before + count
        });
    }

    fn finish(self) -> Option<Victim> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Ends a daemon as its user does.
fn end(process: &mut Process) {
    process.terminate();
    let said = process.output();
    assert!(!said.contains("panicked"), "{said}");
}

/// A command that is to fail, with these words among the one line that it says.
fn refuses(command: &mut Command, words: &[&str]) {
    let mut process = Process::start(command.env("GODWIT_LOG", "warn"));
    let started = Instant::now();
    let status = process.wait(PATIENCE);
    let said = process.output();
    println!("{:.1?}: {said}", started.elapsed());
    assert_eq!(status.code(), Some(1), "{command:?} said:\n{said}");
    // How the ring fares without locked memory is told as well.
    let lines = said.lines().filter(|line| !line.contains("WARN buffers of "));
    assert_eq!(lines.count(), 1, "{command:?} said:\n{said}");
    assert!(!said.contains("os error") && !said.contains("panicked"), "{said}");
    for word in words {
        assert!(said.contains(word), "`{word}` is missing in: {said}");
    }
}

fn listening(address: &str) -> Command {
    let mut command = Command::new(binary("godwit-target"));
    command.args(["--export", "memory:1MiB", "--allow-any-host-remote", "--nqn", NQN, "--listen", address]);
    command
}

fn discovering(address: &str) -> Command {
    let mut command = Command::new(binary("godwit"));
    command.args(["discover", address]);
    command
}

fn connecting(address: &str, more: &[&str]) -> Command {
    let mut command = Command::new(binary("godwit"));
    command.args(["connect", &format!("{address}/{NQN}"), "--nbd", "unix:/tmp/refused.sock"]).args(more);
    command
}

/// The command, as a user who is nobody.
fn as_nobody(command: &Command, memlock: &str) -> Command {
    let mut other = Command::new("prlimit");
    other.arg(format!("--memlock={memlock}")).args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    other.arg(command.get_program()).args(command.get_args());
    // For its control socket.
    other.env("XDG_RUNTIME_DIR", "/tmp");
    other
}

/// The device nodes of verbs get other permissions.
fn permit(mode: u32) {
    for entry in fs::read_dir("/dev/infiniband").unwrap().flatten() {
        fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// The command, where a library cannot be loaded.
fn without(library: &str, command: &Command) -> Command {
    let cache = run(Command::new("/sbin/ldconfig").arg("-p"));
    let line = cache.lines().find(|line| line.contains(library) && line.contains("x86-64")).expect("the library is installed");
    let (_, path) = line.split_once("=> ").unwrap();
    let mut other = Command::new("unshare");
    other.args(["--mount", "sh", "-c", "mount --bind /dev/null \"$0\" && exec \"$@\"", path]).arg(command.get_program());
    other.args(command.get_args());
    other
}

fn obstacles(device: Device) {
    let here = format!("rdma://{}", at(4420));
    let uses = || [listening(&here), discovering(&here), connecting(&here, &[])];

    step("no connection manager");
    for command in &mut uses() {
        refuses(command, &["/dev/infiniband/rdma_cm is missing", "`modprobe rdma_ucm`"]);
    }
    modprobe(&["rdma_ucm", "ib_uverbs"]);

    step("no library");
    let words = ["is not installed", "apt-get install libibverbs1 librdmacm1 ibverbs-providers"];
    for command in &uses() {
        refuses(&mut without("libibverbs.so.1", command), &words);
    }
    // No device that comes later brings it along.
    refuses(&mut without("librdmacm.so.1", &listening("rdma://0.0.0.0:4421")), &words);

    step("no device");
    // Without a port there is nothing to tell that a host could connect to.
    for command in uses().iter_mut().chain(&mut [listening("rdma://0.0.0.0:0")]) {
        refuses(command, &["this machine has no RDMA device", "rdma link"]);
    }

    device.bring_up();
    step("no such address");
    refuses(&mut listening("rdma://10.9.0.77"), &["no such address on this machine; see `ip address`"]);
    step("no route");
    for command in [&mut discovering("rdma://192.0.2.1"), &mut connecting("rdma://192.0.2.1", &[])] {
        refuses(command, &["cannot connect to 192.0.2.1:4420", "unreachable"]);
    }
    step("nobody there");
    // Each waits for as long as it has patience: both at the same time.
    thread::scope(|scope| {
        for mut command in [discovering("rdma://10.9.0.77"), connecting("rdma://10.9.0.77", &[])] {
            scope.spawn(move || refuses(&mut command, &["no answer to the connection set-up", "does a target listen at this address?"]));
        }
    });
    step("nobody listens");
    for command in [&mut discovering(&here), &mut connecting(&here, &[])] {
        refuses(command, &["nothing is listening there; is the target running?"]);
    }

    step("address in use");
    let mut target = Target::start_command(&mut listening(&here), at(4420));
    refuses(&mut listening(&here), &["address in use; stop the program that listens there"]);

    step("no permission");
    permit(0o600);
    for command in [&listening("rdma://10.9.0.1:4422"), &discovering(&here), &connecting(&here, &[])] {
        refuses(&mut as_nobody(command, "unlimited"), &["no permission to open /dev/infiniband/", "DeviceAllow="]);
    }

    step("too little memory may be locked");
    permit(0o666);
    for command in [&discovering(&here), &connecting(&here, &[])] {
        refuses(&mut as_nobody(command, "65536:65536"), &["RLIMIT_MEMLOCK", "64 KiB", "LimitMEMLOCK=infinity", device.name()]);
    }
    end(&mut target.process);
    step("a target that may lock too little says so when a host comes");
    let mut target = Target::start_command(&mut as_nobody(&listening(&here), "65536:65536"), at(4420));
    refuses(&mut discovering(&here), &[]);
    assert!(target.process.output().contains("RLIMIT_MEMLOCK"), "{}", target.process.output());
    end(&mut target.process);
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn what_stands_in_the_way_of_a_device_is_told_on_siw() {
    in_guest(&Guest::default(), || obstacles(Device::Siw));
}

/// Targets that were there before any device was.
fn early(device: Device) {
    let world = World::new();
    let soft = SocketAddr::from((Ipv4Addr::LOCALHOST, 4430));
    let waits = |listen: &str, port: u16| {
        let mut command = Command::new(binary("godwit-target"));
        let export = format!("{},size=64MiB", world.path(&format!("{port}.img")).display());
        command.args(["--export", &export, "--nqn", NQN, "--allow-any-host-remote", "--listen", listen]);
        command
    };
    let waited = |target: &Target| target.process.output().matches("waits for an RDMA device").count();

    step("without RDMA in the kernel");
    let mut targets = vec![Target::start_command(waits("rdma://[::]:4420", 4420).args(["--listen", &format!("iwarp://{soft}")]), at(4420))];
    run(&mut discovering(&format!("iwarp://{soft}")));
    modprobe(&["rdma_ucm", "ib_uverbs"]);
    step("without a device");
    targets.push(Target::start_command(&mut waits("rdma://0.0.0.0:4421", 4421), at(4421)));
    thread::sleep(Duration::from_secs(3));
    for target in &targets {
        assert_eq!(waited(target), 1, "{}", target.process.output());
    }
    assert!(targets[0].process.output().contains("`modprobe rdma_ucm`"), "{}", targets[0].process.output());

    step("a device comes");
    device.bring_up();
    for (target, address) in targets.iter().zip([SocketAddr::new(rdma::V6, 4420), at(4421)]) {
        let serves = || discovering(&format!("rdma://{address}")).output().unwrap().status.success();
        wait_for("the listener serves", PATIENCE, serves);
        let said = target.process.output();
        assert!(waited(target) == 1 && said.contains("on RDMA devices now") && !said.contains("cannot"), "{said}");
        step("Linux's host");
        let controller = Host::numbered(1).connect(address, NQN, &[]);
        Disk::at(controller.disk(1)).verify_range(0, 4);
        controller.disconnect();
    }
    step("it goes and comes back");
    println!("unplugged in {:.1?}", device.unplug());
    device.plug();
    wait_for("the listener serves", PATIENCE, || discovering(&format!("rdma://{}", at(4421))).output().unwrap().status.success());
    targets.iter_mut().for_each(|target| end(&mut target.process));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_device_that_comes_after_the_target_is_served_on_siw() {
    in_guest(&Guest::default(), || early(Device::Siw));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_device_that_comes_after_the_target_is_served_on_rxe() {
    in_guest(&Guest::default(), || early(Device::Rxe));
}

/// What is open when that has not changed for a while: no connection is being made or unmade.
fn settled_usage(processes: &[&Process]) -> Usage {
    let deadline = Instant::now() + PATIENCE;
    let (mut found, mut times) = (usage(processes), 0);
    while times < 3 {
        assert!(Instant::now() < deadline, "it does not settle: {found:?}");
        thread::sleep(Duration::from_millis(500));
        let now = usage(processes);
        times = if now == found { times + 1 } else { 0 };
        found = now;
    }
    println!("{found:?}");
    found
}

/// Once no connection is being made or unmade, the same things are open as before.
fn await_usage(what: &str, processes: &[&Process], before: &Usage) {
    await_usage_but(what, processes, before, 0);
}

/// The same under load: a buffer is registered when it is lent for the first time, and which ones a load comes by is not always the same.
fn await_usage_at_work(what: &str, processes: &[&Process], before: &Usage) {
    await_usage_but(what, processes, before, 4 * processes.len() as u64);
}

fn await_usage_but(what: &str, processes: &[&Process], before: &Usage, regions: u64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut now = usage(processes);
        if let (Some(now), Some(&before)) = (now.1.get_mut("mr"), before.1.get("mr"))
            && now.abs_diff(before) <= regions
        {
            *now = before;
        }
        if now == *before {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {before:?} became {now:?}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// The descriptors of each process, and what there is of the device.
type Usage = (Vec<usize>, BTreeMap<String, u64>);

fn usage(processes: &[&Process]) -> Usage {
    (processes.iter().map(|process| process.descriptors()).collect(), resources())
}

fn comes_and_goes(device: Device) {
    let world = World::new();
    let wildcard = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 4421);
    let mut targets = [world.target(at(4420)), world.target(wildcard)];

    step("unplugged with nothing but listeners");
    println!("unplugged in {:.1?}", device.unplug());
    device.plug();

    step("unplugged when connections have been there");
    thread::sleep(Duration::from_secs(2));
    for port in [4420, 4421] {
        wait_for("the listener is back", PATIENCE, || discovering(&format!("rdma://{}", at(port))).output().unwrap().status.success());
    }
    println!("unplugged in {:.1?}", device.unplug());
    device.plug();

    step("the load begins");
    thread::sleep(Duration::from_secs(2));
    let regions = || resources().get("mr").copied();
    let idle = regions();
    let mut initiators = [world.initiator(at(4420)), world.initiator(at(4421))];
    let loads: Vec<_> = initiators.iter().map(|initiator| Load::start(&initiator.socket, false)).collect();
    loads.iter().for_each(|load| load.await_progress(20));
    let processes = [&targets[0].process, &targets[1].process, &initiators[0].process, &initiators[1].process];
    let before = settled_usage(&processes);
    for round in 0..3 {
        step(&format!("round {round}: unplug"));
        println!("unplugged in {:.1?}", device.unplug());
        thread::sleep(Duration::from_millis(500 * round));
        step("plug");
        device.plug();
        loads.iter().for_each(|load| load.await_progress(20));
        await_usage_at_work("after a device went and came", &processes, &before);
    }
    for round in 0..2 {
        step(&format!("round {round}: the interface blinks"));
        device.blink(Duration::from_secs(1 + 5 * round));
        loads.iter().for_each(|load| load.await_progress(20));
        await_usage_at_work("after the interface was off", &processes, &before);
    }
    step("the load ends");
    for load in loads {
        println!("{}", load.finish().unwrap());
    }
    initiators.iter_mut().for_each(|initiator| end(&mut initiator.process));
    wait_for("no region of theirs is left", PATIENCE, || regions() == idle);
    step("unplugged while idle again");
    println!("unplugged in {:.1?}", device.unplug());
    device.plug();
    thread::sleep(Duration::from_secs(2));
    for port in [4420, 4421] {
        wait_for("the listener is back", PATIENCE, || discovering(&format!("rdma://{}", at(port))).output().unwrap().status.success());
    }
    targets.iter_mut().for_each(|target| end(&mut target.process));
    println!("in the end {:?}", resources());
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_device_that_goes_and_comes_costs_no_io_on_siw() {
    in_guest(&Guest::with(Device::Siw), || comes_and_goes(Device::Siw));
}

fn killed() {
    let world = World::new();
    let mut target = world.target(at(4420));
    let warm = |world: &World| end(&mut world.initiator(at(4420)).process);
    warm(&world);
    let idle = settled_usage(&[&target.process]);
    for round in 0..5 {
        step(&format!("round {round}: the initiator is killed"));
        let mut initiator = world.initiator(at(4420));
        let load = Load::start(&initiator.socket, true);
        load.await_progress(10);
        initiator.process.kill();
        load.finish();
        await_usage("after an initiator was killed", &[&target.process], &idle);
    }
    step("the load begins");
    let mut initiator = world.initiator(at(4420));
    let load = Load::start(&initiator.socket, false);
    load.await_progress(10);
    let at_work = settled_usage(&[&target.process, &initiator.process]);
    for round in 0..5 {
        step(&format!("round {round}: the target is killed"));
        target.process.kill();
        target = world.target(at(4420));
        load.await_progress(10);
        await_usage_at_work("after a target was killed", &[&target.process, &initiator.process], &at_work);
    }
    println!("{}", load.finish().unwrap());
    end(&mut initiator.process);
    await_usage("in the end", &[&target.process], &idle);
    end(&mut target.process);
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn either_side_is_killed_and_the_other_goes_on_on_siw() {
    in_guest(&Guest::with(Device::Siw).shared(), killed);
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn either_side_is_killed_and_the_other_goes_on_on_rxe() {
    in_guest(&Guest::with(Device::Rxe).shared(), killed);
}

/// What became of a crowd of connections.
#[derive(Debug, Default)]
struct Outcome {
    established: usize,
    refused: BTreeMap<String, usize>,
    other: Vec<String>,
}

/// Makes `count` connections for admin queues at the same time, says nothing on them, and dies.
fn crowd(address: SocketAddr, count: usize) -> ! {
    let class = |buffer_bytes, count| ClassLayout { buffer_bytes, count };
    let pool = Layout::new(&[class(4096, 64)]).unwrap();
    let mut reactor = Uring::new(&UringConfig { pool, poll: PollBudget(Duration::ZERO) }).unwrap();
    let mut fabric = Fabric::new();
    let config = QpConfig {
        send_depth: 4,
        receive_depth: 4,
        header_bytes: 16,
        data_bytes: 0,
        regions: 0,
        inbound_reads: 1,
        outbound_reads: 0,
        crc: true,
        fpdu: FpduSize::Large,
    };
    let request = QueueRequest::new(Qid::ADMIN, QueueSize::new(32).unwrap(), Cntlid::new(0)).to_wire();
    for _ in 0..count {
        fabric.connect(&mut reactor, Transport::Rdma, address, &config, &request).unwrap();
    }
    let mut outcome = Outcome::default();
    let (mut answered, mut established) = (0, HashSet::new());
    let deadline = Instant::now() + PATIENCE;
    while answered < count {
        assert!(Instant::now() < deadline, "{answered} of {count} connections were answered: {outcome:?}");
        while let Some((qp, completion)) = fabric.poll(&mut reactor) {
            answered += 1;
            match completion {
                Completion::Established { .. } => {
                    outcome.established += 1;
                    established.insert(qp);
                }
                Completion::Rejected { private_data } => {
                    let status =
                        QueueReject::from_wire(&private_data.0).map_or("without a reason".to_owned(), |reject| reject.status.to_string());
                    *outcome.refused.entry(status).or_default() += 1;
                }
                Completion::Disconnected { reason } if established.contains(&qp) => {
                    // It was answered before.
                    answered -= 1;
                    println!("{reason}");
                }
                other => outcome.other.push(format!("{other:?}")),
            }
        }
        fabric.flush(&mut reactor);
        let now = reactor.now();
        reactor.set_timer(now + Duration::from_millis(5), Token(0));
        let mut events = Vec::new();
        reactor.turn(&mut events).unwrap();
        for event in events {
            if let Event::Readable { token } | Event::Timer { token } = &event
                && Fabric::owns(*token)
            {
                fabric.on_event(&mut reactor, event);
            }
        }
    }
    println!("{outcome:?}");
    // All that it has is left to the kernel.
    std::process::exit(if outcome.established > 0 { CROWD_DIES } else { 1 })
}

/// What a process of the test is for when it has this in its environment.
const CROWD: &str = "GODWIT_LAB_CROWD";

/// What it exits with when it has done that.
const CROWD_DIES: i32 = 77;

fn crowds() {
    let world = World::new();
    let mut target = world.target(at(4420));
    let mut initiator = world.initiator(at(4420));
    let load = Load::start(&initiator.socket, false);
    load.await_progress(10);
    let mut seen = Vec::new();
    let mut warm = None;
    for round in 0..4 {
        step(&format!("round {round}: 200 connections"));
        let started = Instant::now();
        // A process of its own: what it does not take down itself is not to be ours.
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", thread::current().name().unwrap(), "--include-ignored", "--nocapture"]);
        let mut crowd = Process::start(test.env(CROWD, "1"));
        let status = crowd.wait(PATIENCE * 3);
        println!("{:.1?}: {}", started.elapsed(), crowd.output());
        assert_eq!(status.code(), Some(CROWD_DIES), "{status}");
        run(discovering(&format!("rdma://{}", at(4420))).env("GODWIT_LOG", "error"));
        load.await_progress(10);
        let before = warm.get_or_insert_with(|| settled_usage(&[&target.process, &initiator.process]));
        await_usage_at_work("after a crowd", &[&target.process, &initiator.process], before);
        seen.push(target.process.resident_kib());
    }
    println!("{seen:?} KiB resident");
    assert!(seen[3] <= seen[1] + 4096, "{seen:?} KiB resident");
    println!("{}", load.finish().unwrap());
    end(&mut initiator.process);
    end(&mut target.process);
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_crowd_leaves_nothing_behind_on_rxe() {
    if std::env::var_os(CROWD).is_some() {
        crowd(at(4420), 200);
    }
    in_guest(&Guest::with(Device::Rxe).shared(), crowds);
}

/// The completion queue of a reactor on iWARP is as large as it ever will be, and each queue sets entries aside: what is too much is refused, on both ends for
/// a reason that can be read, and costs no one else anything.
fn full() {
    let world = World::new();
    let here = format!("rdma://{}", at(4420));
    let configuration = world.path("target.yaml");
    let text = format!(
        "reactors: 1\nlisteners:\n  - {{ transport: rdma, address: \"{}\" }}\ninsecure_allow_any_host: true\nsubsystems:\n  - nqn: {NQN}\n    \
         allow_any_host: true\n    namespaces:\n      - {{ nsid: 1, backend: {{ memory: {{ size: 64MiB }} }} }}\n",
        at(4420)
    );
    fs::write(&configuration, text).unwrap();
    let mut target = Target::start_command(Command::new(binary("godwit-target")).arg("--config").arg(&configuration), at(4420));

    let queue_pairs = || resources().get("qp").copied();
    let before = queue_pairs();

    // 7169 entries for each queue of 1024 commands: there is room for 18.
    step("17 deep queues");
    let deep = ["--nr-io-queues", "17", "--reactors", "17", "--queue-size", "1024"];
    let mut first = Initiator::start_with(&url(at(4420)), &world.path("first.sock"), &deep);
    let load = Load::start(&first.socket, false);
    load.await_progress(10);
    step("two more");
    let two = ["--nr-io-queues", "2", "--reactors", "2", "--queue-size", "1024"];
    refuses(&mut connecting(&here, &two), &["the target has no resources left for another queue"]);
    let said = target.process.output();
    assert!(said.contains("siw0 allows 131072 entries of a completion queue, "), "{said}");
    assert!(said.contains("use fewer or shorter queues, or more reactors"), "{said}");
    step("a shorter one");
    let short = ["--nr-io-queues", "1", "--queue-size", "128"];
    end(&mut Initiator::start_with(&url(at(4420)), &world.path("second.sock"), &short).process);
    load.await_progress(10);
    println!("{}", load.finish().unwrap());
    end(&mut first.process);

    step("two deep ones when the others are gone");
    wait_for("there is room again", PATIENCE, || queue_pairs() == before);
    end(&mut Initiator::start_with(&url(at(4420)), &world.path("third.sock"), &two).process);
    end(&mut target.process);
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn what_a_completion_queue_has_no_room_for_is_refused_on_siw() {
    in_guest(&Guest::with(Device::Siw).shared(), full);
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn daemons_on_an_idle_device_use_next_to_nothing() {
    in_guest(&Guest::with(Device::Siw).shared(), || {
        const WATCH_SECONDS: u32 = 15;
        let watch = Duration::from_secs(WATCH_SECONDS.into());
        let world = World::new();
        let target = world.target(at(4420));
        let initiator = world.initiator(at(4420));
        nbdsh(&initiator.uri(), "h.pwrite(b'Z' * 4096, 8192)");
        thread::sleep(Duration::from_secs(1));
        let processes = [&target.process, &initiator.process];
        let before = processes.map(|process| (process.cpu_time(), wakings(process)));
        thread::sleep(watch);
        for (process, (used, woken)) in processes.into_iter().zip(before) {
            let (used, woken) = (process.cpu_time().saturating_sub(used), wakings(process) - woken);
            println!("{used:?} of processor time in {watch:?}, woken {woken} times");
            // Keep-alives and the clock of timeouts. An emulated processor that has to wait for a real one counts that as work.
            assert!(woken < u64::from(WATCH_SECONDS * 10), "woken {woken} times in {watch:?}");
            assert!(used < watch / 4, "{used:?} in {watch:?}");
        }
    });
}

/// How often the threads of a process had nothing to do and then had again.
fn wakings(process: &Process) -> u64 {
    let threads = fs::read_dir(format!("/proc/{}/task", process.pid())).unwrap().flatten();
    let wakings = threads.map(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.expect("Linux counts them").trim().parse::<u64>().unwrap()
    });
    wakings.sum()
}
