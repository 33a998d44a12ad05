//! Kills, cuts and restarts at either end, under load: nothing is lost, nothing old lands after something newer, and everything goes on by itself.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use godwit_nbd::{Command as Nbd, CommandFlags, Errno, Request};
use godwit_tests::daemon::{Initiator, NQN, Process, Target, binary, free_port, url, wait_for};
use godwit_tests::load::{Load, size_bytes};
use godwit_tests::nbd::Client;
use godwit_tests::proxy::Proxy;
use godwit_tests::tools::run;
use nix::sys::signal::Signal;

/// NBD connections of a load.
const CONNECTIONS: usize = 4;

/// Answers on each connection that show that a load goes on: more than were under way.
const ENOUGH: u64 = 200;

/// How long a volume may take to carry on, from when nothing is in its way.
const PROMPTLY: Duration = Duration::from_secs(10);

const MIB: u64 = 1 << 20;

/// A keep-alive timeout that does not take a test's time.
const BRIEF_KEEP_ALIVE: [&str; 2] = ["--keep-alive-tmo", "2"];

/// Twice that timeout and the grace, after which the initiator may try again: with something to spare.
const LONGER_THAN_THE_FENCE: Duration = Duration::from_secs(8);

/// A backing file where O_DIRECT works, and sockets beside it: in the build folder, rather than in a /tmp that may be in memory.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap())
    }

    fn disk(&self) -> PathBuf {
        self.0.path().join("disk.img")
    }

    fn export(&self) -> String {
        format!("{},size={}", self.disk().display(), 64 * MIB)
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// A target on a file, and an initiator on it under load.
struct World {
    load: Option<Load>,
    initiator: Initiator,
    target: Target,
    place: Place,
}

impl World {
    fn new(arguments: &[&str]) -> Self {
        Self::through(|target| target, arguments)
    }

    /// The initiator reaches the target at another address than where that listens.
    fn through(way: impl FnOnce(SocketAddr) -> SocketAddr, arguments: &[&str]) -> Self {
        let place = Place::new();
        let target = Target::start(&place.export());
        let initiator = Initiator::start_with(&url(way(target.address)), &place.socket("nbd"), arguments);
        let mut world = Self { load: None, initiator, target, place };
        world.load();
        world
    }

    fn load(&mut self) {
        self.load = Some(Load::start(&self.initiator.socket, CONNECTIONS));
        self.goes_on(PROMPTLY);
    }

    fn goes_on(&self, limit: Duration) {
        self.load.as_ref().unwrap().progress(ENOUGH, limit);
    }

    fn answered(&self) -> u64 {
        self.load.as_ref().unwrap().answered()
    }

    /// Nothing is answered for so long; and no connection ends.
    fn stands_still_for(&self, time: Duration) {
        // What the target answered last may still be on its way to the clients.
        thread::sleep(Duration::from_millis(300));
        let answered = self.answered();
        thread::sleep(time);
        self.load.as_ref().unwrap().assert_sound();
        assert_eq!(self.answered(), answered, "something was answered that the target did not answer");
    }

    fn restart_target(&mut self) {
        self.target = Target::start_at(self.target.address.port(), &self.place.export());
    }

    /// Ends everything, and compares what clients see and what is on the disk with the model.
    fn finish(mut self) {
        let mut contents = self.load.take().unwrap().finish(&self.initiator.socket);
        assert!(self.initiator.process.terminate() < Duration::from_secs(5));
        assert!(self.target.process.terminate() < Duration::from_secs(5));
        contents.verify_file(&self.place.disk());
    }
}

fn count(process: &Process, text: &str) -> usize {
    process.output().matches(text).count()
}

#[test]
fn a_killed_target_that_comes_back_after_ten_seconds_is_carried_on_with() {
    let mut world = World::new(&[]);
    world.target.process.kill();
    world.stands_still_for(Duration::from_secs(10));
    world.restart_target();
    world.goes_on(PROMPTLY);
    world.finish();
}

/// The successor opens the very file that the kernel may still write for the dead process.
#[test]
fn a_killed_target_hands_its_disk_to_its_successor_at_once() {
    let mut world = World::new(&["--reconnect-delay", "1"]);
    for _ in 0..4 {
        world.target.process.kill();
        world.restart_target();
        world.goes_on(PROMPTLY);
    }
    world.finish();
}

#[test]
fn a_target_that_is_stopped_and_started_again_is_carried_on_with() {
    let mut world = World::new(&["--reconnect-delay", "1"]);
    assert!(world.target.process.terminate() < Duration::from_secs(5));
    world.stands_still_for(Duration::from_secs(1));
    world.restart_target();
    world.goes_on(PROMPTLY);
    world.finish();
}

#[test]
fn one_cut_connection_brings_the_whole_association_up_again() {
    let mut proxy = None;
    let world = World::through(|target| proxy.insert(Proxy::start(target)).address, &[]);
    let proxy = proxy.unwrap();
    let mut made = proxy.connections();
    assert!(made > 1, "an admin queue and at least one I/O queue");
    for round in 1..=3 {
        proxy.cut(made - 1);
        wait_for("the initiator is connected again", PROMPTLY, || count(&world.initiator.process, "connected again") == round);
        world.goes_on(PROMPTLY);
        let now = proxy.connections();
        assert!(now >= made + 2, "a new association has queues of its own");
        made = now;
    }
    assert_eq!(count(&world.initiator.process, "waiting "), 0, "a connection that the target closed needs no time to be dead");
    world.finish();
}

/// Shorter than the keep-alive timeout: nothing but a stall.
#[test]
fn a_network_that_stalls_for_a_moment_is_waited_for() {
    let mut proxy = None;
    let world = World::through(|target| proxy.insert(Proxy::start(target)).address, &[]);
    let proxy = proxy.unwrap();
    proxy.freeze(true);
    world.stands_still_for(Duration::from_secs(2));
    proxy.freeze(false);
    world.goes_on(PROMPTLY);
    assert_eq!(count(&world.initiator.process, "lost the target"), 0);
    world.finish();
}

/// What was on its way arrives late, when the network comes back, and must find a target that has given up that association.
#[test]
fn a_network_that_stalls_for_long_brings_no_old_write_back() {
    let mut proxy = None;
    let world = World::through(|target| proxy.insert(Proxy::start(target)).address, &BRIEF_KEEP_ALIVE);
    let proxy = proxy.unwrap();
    proxy.freeze(true);
    world.stands_still_for(LONGER_THAN_THE_FENCE);
    assert_eq!(count(&world.initiator.process, "connected again"), 0);
    proxy.freeze(false);
    recovers_after_the_target_knew(&world.initiator.process, &world.target.process, Duration::from_secs(20));
    world.goes_on(PROMPTLY);
    world.finish();
}

/// The target finds commands of the old association, its end, and a new one at once when it wakes up, on several threads.
#[test]
fn a_target_that_was_suspended_lets_no_old_write_land() {
    let world = World::new(&BRIEF_KEEP_ALIVE);
    for round in 1..=2 {
        world.target.process.signal(Signal::SIGSTOP);
        world.stands_still_for(LONGER_THAN_THE_FENCE);
        world.target.process.signal(Signal::SIGCONT);
        wait_for("the initiator is connected again", PROMPTLY, || count(&world.initiator.process, "connected again") == round);
        world.goes_on(PROMPTLY);
    }
    world.finish();
}

#[test]
fn an_initiator_that_was_suspended_carries_on() {
    let world = World::new(&BRIEF_KEEP_ALIVE);
    world.initiator.process.signal(Signal::SIGSTOP);
    world.stands_still_for(Duration::from_secs(4));
    assert_eq!(count(&world.target.process, "no command came in time"), 1);
    world.initiator.process.signal(Signal::SIGCONT);
    world.goes_on(PROMPTLY);
    world.finish();
}

/// Nothing is sent again before the target has said that it gave up the association.
fn recovers_after_the_target_knew(initiator: &Process, target: &Process, limit: Duration) {
    wait_for("the initiator is connected again", limit, || count(initiator, "connected again") == 1);
    assert_eq!(count(target, "no command came in time"), 1, "the target gave the old association up before a new one was made");
    assert_eq!(count(initiator, "until the target has given up the old association"), 1);
}

/// Two network namespaces that are joined by a cable.
struct Net {
    names: [String; 2],
}

impl Net {
    const TARGET: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4420);

    fn new() -> Self {
        let pid = std::process::id();
        let net = Self { names: [format!("godwit-{pid}-t"), format!("godwit-{pid}-i")] };
        let [target, initiator] = &net.names;
        for name in &net.names {
            ip(&["netns", "add", name]);
        }
        run(within(target, Path::new("ip")).args(["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", initiator]));
        for (name, address) in net.names.iter().zip(["192.0.2.1/24", "192.0.2.2/24"]) {
            run(within(name, Path::new("ip")).args(["address", "add", address, "dev", "eth0"]));
            for device in ["eth0", "lo"] {
                run(within(name, Path::new("ip")).args(["link", "set", device, "up"]));
            }
        }
        net
    }

    fn command(&self, name: usize, program: &Path) -> Command {
        within(&self.names[name], program)
    }

    /// From now on every packet between the two disappears.
    fn drop_packets(&self) {
        for chain in ["input", "output"] {
            let chain = format!("add chain inet silence {chain} {{ type filter hook {chain} priority 0; policy drop; }}");
            for rule in ["add table inet silence", &chain] {
                run(self.command(0, Path::new("nft")).arg(rule));
            }
        }
    }

    fn pass_packets(&self) {
        run(self.command(0, Path::new("nft")).arg("delete table inet silence"));
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in &self.names {
            // The cable goes with its ends.
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

/// A program in a network namespace. Not by `ip netns exec`, which mounts things anew and cannot where `/` is no mount point, as in a chroot.
fn within(namespace: &str, program: &Path) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}")).arg(program);
    command
}

fn ip(arguments: &[&str]) {
    run(Command::new("ip").args(arguments));
}

#[test]
#[ignore = "needs root, for network namespaces"]
fn thirty_seconds_without_a_packet_are_carried_on_from() {
    let place = Place::new();
    let net = Net::new();
    let mut command = net.command(0, &binary("godwit-target"));
    command.args(["--export", &place.export(), "--listen", &format!("iwarp://{}", Net::TARGET), "--nqn", NQN, "--allow-any-host-remote"]);
    let mut target = Target::start_command(&mut command, Net::TARGET).process;
    let socket = place.socket("nbd");
    let mut command = net.command(1, &binary("godwit"));
    command.args(["connect", &url(Net::TARGET), "--nbd", &format!("unix:{}", socket.display())]);
    let mut initiator = Initiator::start_command(&mut command, &socket);
    let load = Load::start(&socket, CONNECTIONS);
    load.progress(ENOUGH, PROMPTLY);
    net.drop_packets();
    thread::sleep(Duration::from_millis(300));
    let answered = load.answered();
    thread::sleep(Duration::from_secs(30));
    assert_eq!(load.answered(), answered, "something was answered that the target did not answer");
    net.pass_packets();
    recovers_after_the_target_knew(&initiator.process, &target, Duration::from_secs(20));
    load.progress(ENOUGH, PROMPTLY);
    let mut contents = load.finish(&socket);
    assert!(initiator.process.terminate() < Duration::from_secs(5));
    assert!(target.terminate() < Duration::from_secs(5));
    contents.verify_file(&place.disk());
}

/// What the killed client had under way is over before the first request of a later one starts.
#[test]
fn a_killed_nbd_client_leaves_nothing_behind_that_lands_later() {
    const OFFSET: u64 = 32 * MIB;
    const LEN: u32 = 4 << 20;
    assert!(size_bytes(CONNECTIONS as u64) <= OFFSET);
    let world = World::new(&[]);
    for round in 1..=5_u8 {
        let mut command = Command::new("fio");
        let range = [format!("--offset={OFFSET}"), format!("--size={LEN}"), format!("--uri={}", world.initiator.uri())];
        command.args(["--name=victim", "--ioengine=nbd", "--thread", "--rw=randwrite", "--bsrange=4k-256k", "--iodepth=64"]);
        command.args(["--numjobs=2", "--time_based", "--runtime=60", "--output=/dev/null"]).args(range);
        let mut victim = Process::start(&mut command);
        let mut client = Client::connect(&world.initiator.socket).unwrap();
        wait_for("fio writes", PROMPTLY, || client.read(OFFSET, LEN).iter().any(|&byte| byte != 0 && byte != round - 1));
        thread::sleep(Duration::from_millis(200));
        victim.kill();
        let mut later = Client::connect(&world.initiator.socket).unwrap();
        later.write(OFFSET, &vec![round; LEN as usize]);
        thread::sleep(Duration::from_millis(300));
        assert!(client.read(OFFSET, LEN).iter().all(|&byte| byte == round), "a write of the killed client landed after a later client's");
        world.goes_on(PROMPTLY);
    }
    world.finish();
}

/// A hundred and eighty killed initiators cost the target at most this.
const FLAT_KIB: u64 = 1024;

#[test]
fn two_hundred_killed_initiators_leave_nothing_behind_in_the_target() {
    let place = Place::new();
    let target = Target::start(&place.export());
    let socket = place.socket("nbd");
    let mut early = None;
    for round in 1..=200_u8 {
        let mut initiator = Initiator::start(&target.url(), &socket);
        let mut client = Client::connect(&socket).unwrap();
        for offset in [0, MIB] {
            client.write(offset, &[round; 64 << 10]);
            assert!(client.read(offset, 64 << 10).iter().all(|&byte| byte == round));
        }
        let request = Request { cookie: 99, command: Nbd::Write, flags: CommandFlags::NONE, offset: 2 * MIB, length: 64 << 10 };
        client.split().0.send(&request, &[round; 64 << 10]).unwrap();
        initiator.process.kill();
        if round == 20 {
            early = Some(settled(&target.process));
        }
    }
    let (early, late) = (early.unwrap(), settled(&target.process));
    assert!(late.0 <= early.0, "{} descriptors after 20 rounds, {} after 200", early.0, late.0);
    assert!(late.1 <= early.1 + FLAT_KIB, "{} KiB after 20 rounds, {} after 200", early.1, late.1);
}

/// Descriptors and memory, once the ends of the last connections were seen.
fn settled(process: &Process) -> (usize, u64) {
    thread::sleep(Duration::from_millis(500));
    (process.descriptors(), process.resident_kib())
}

/// The volume is gone: whatever waits fails, whatever comes later fails at once, and the daemon ends with one line that says why.
fn ends_with_an_error(world: &mut World, reason: &str) {
    let load = world.load.take().unwrap();
    wait_for("requests fail", PROMPTLY, || load.errors() > 0);
    load.ended(Duration::from_secs(5));
    fails_at_once(&world.initiator.socket);
    assert_eq!(world.initiator.process.wait(Duration::from_secs(5)).code(), Some(1));
    let output = world.initiator.process.output();
    let lines: Vec<_> = output.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(matches!(lines[..], [line] if line.contains(reason)), "`{reason}` is not what it says: {lines:?}");
    assert_eq!(count(&world.initiator.process, "connected again"), 0);
}

fn fails_at_once(socket: &Path) {
    let started = Instant::now();
    let failed = Client::connect(socket).and_then(|mut client| match client.ask(Nbd::Read, 0, 4096, &[])?.errno {
        Errno::OK => Ok(()),
        errno => Err(io::Error::other(format!("{errno}"))),
    });
    assert!(failed.is_err(), "a volume that is gone was read");
    assert!(started.elapsed() < Duration::from_secs(1), "it took {:?} to fail", started.elapsed());
}

#[test]
fn nothing_is_sent_again_to_another_disk() {
    let mut world = World::new(&["--reconnect-delay", "1"]);
    world.target.process.kill();
    let aside = world.place.socket("aside.img");
    fs::rename(world.place.disk(), &aside).unwrap();
    world.restart_target();
    ends_with_an_error(&mut world, "NGUID");
    assert!(world.target.process.terminate() < Duration::from_secs(5));
    assert!(fs::read(world.place.disk()).unwrap().iter().all(|&byte| byte == 0), "the other disk was written to");
}

#[test]
fn nothing_is_sent_again_to_memory_that_was_emptied() {
    let port = free_port();
    let export = format!("memory:{}", 64 * MIB);
    let place = Place::new();
    let target = Target::start_at(port, &export);
    let initiator = Initiator::start_with(&target.url(), &place.socket("nbd"), &["--reconnect-delay", "1"]);
    let mut world = World { load: None, initiator, target, place };
    world.load();
    world.target.process.kill();
    world.target = Target::start_at(port, &export);
    ends_with_an_error(&mut world, "NGUID");
    let second = Initiator::start(&world.target.url(), &world.place.socket("second"));
    let mut client = Client::connect(&second.socket).unwrap();
    for offset in (0..64 * MIB).step_by(1 << 20) {
        assert!(client.read(offset, 1 << 20).iter().all(|&byte| byte == 0), "the new memory was written to");
    }
}

/// 0 fails at once, 3 gives up after three seconds, -1 waits for ever.
#[test]
fn a_lost_target_is_waited_for_as_long_as_was_said() {
    let place = Place::new();
    let mut target = Target::start(&place.export());
    let mut attach = |timeout: &str| {
        let arguments = ["--ctrl-loss-tmo", timeout, "--reconnect-delay", "1"];
        Initiator::start_with(&target.url(), &place.socket(&format!("nbd{timeout}")), &arguments)
    };
    let [mut at_once, mut soon, mut never] = ["0", "3", "-1"].map(&mut attach);
    let mut waiting = [&at_once, &soon].map(|initiator| Client::connect(&initiator.socket).unwrap());
    waiting.iter_mut().for_each(|client| drop(client.read(0, 4096)));
    let load = Load::start(&never.socket, CONNECTIONS);
    load.progress(ENOUGH, PROMPTLY);
    target.process.kill();
    let lost = Instant::now();
    let failed_after = waiting.map(|mut client| {
        thread::spawn(move || {
            let answer = client.ask(Nbd::Read, 0, 4096, &[]);
            assert!(answer.is_err() || answer.is_ok_and(|answer| answer.errno == Errno::EIO));
            lost.elapsed()
        })
    });
    let [first, second] = failed_after.map(|thread| thread.join().unwrap());
    assert!(first < Duration::from_secs(1), "0 means at once, not {first:?}");
    assert!(second > Duration::from_millis(2800) && second < Duration::from_millis(4500), "3 means three seconds, not {second:?}");
    for initiator in [&mut at_once, &mut soon] {
        assert_eq!(initiator.process.wait(Duration::from_secs(5)).code(), Some(1));
    }
    thread::sleep(Duration::from_secs(10).saturating_sub(lost.elapsed()));
    load.assert_sound();
    assert!(never.process.is_running());
    let _target = Target::start_at(target.address.port(), &place.export());
    load.progress(ENOUGH, PROMPTLY);
    load.finish(&never.socket);
    assert!(never.process.terminate() < Duration::from_secs(5));
}

/// Requests that the target has not answered are answered before the end.
#[test]
fn a_stopping_initiator_answers_what_is_in_flight() {
    const WRITES: u64 = 16;
    const LEN: u32 = 64 << 10;
    let place = Place::new();
    let target = Target::start(&place.export());
    let proxy = Proxy::start(target.address);
    let mut initiator = Initiator::start(&url(proxy.address), &place.socket("nbd"));
    let (mut sender, mut receiver) = Client::connect(&initiator.socket).unwrap().split();
    proxy.freeze(true);
    for cookie in 1..=WRITES {
        let request = Request { cookie, command: Nbd::Write, flags: CommandFlags::NONE, offset: cookie * MIB, length: LEN };
        sender.send(&request, &vec![u8::try_from(cookie).unwrap(); LEN as usize]).unwrap();
    }
    thread::sleep(Duration::from_millis(200));
    initiator.process.signal(Signal::SIGTERM);
    let stopped = Instant::now();
    thread::sleep(Duration::from_millis(500));
    assert!(initiator.process.is_running(), "it ended with requests in flight");
    proxy.freeze(false);
    let mut answered: Vec<_> = (1..=WRITES).map(|_| receiver.receive(|_| 0).unwrap()).map(|answer| (answer.cookie, answer.errno)).collect();
    answered.sort_unstable_by_key(|(cookie, _)| *cookie);
    assert_eq!(answered, (1..=WRITES).map(|cookie| (cookie, Errno::OK)).collect::<Vec<_>>());
    assert!(receiver.receive(|_| 0).is_err(), "then the connection ends");
    assert!(initiator.process.wait(Duration::from_secs(5)).success());
    assert!(stopped.elapsed() < Duration::from_secs(5));
    let disk = fs::read(place.disk()).unwrap();
    for cookie in 1..=WRITES {
        let at = usize::try_from(cookie * MIB).unwrap();
        assert!(disk[at..at + LEN as usize].iter().all(|&byte| u64::from(byte) == cookie));
    }
}

#[test]
fn an_initiator_that_is_stopped_under_load_leaves_in_order() {
    let mut world = World::new(&[]);
    assert!(world.initiator.process.terminate() < Duration::from_secs(5));
    let contents = world.load.take().unwrap().ended(Duration::from_secs(1));
    for sign in ["no Keep Alive", "connection closed: ", "Connect refused"] {
        assert_eq!(count(&world.target.process, sign), 0, "the target saw no orderly end:\n{}", world.target.process.output());
    }
    world.initiator = Initiator::start(&world.target.url(), &world.place.socket("nbd"));
    world.load = Some(Load::resume(&world.initiator.socket, contents));
    world.goes_on(PROMPTLY);
    world.finish();
}

#[test]
fn a_volume_that_waits_for_its_target_can_be_stopped() {
    let mut world = World::new(&[]);
    world.target.process.kill();
    world.stands_still_for(Duration::from_millis(500));
    let started = Instant::now();
    world.initiator.process.signal(Signal::SIGTERM);
    let load = world.load.take().unwrap();
    world.initiator.process.wait(PROMPTLY);
    assert!(started.elapsed() < Duration::from_secs(5), "it took {:?}", started.elapsed());
    load.ended(Duration::from_secs(1));
}

/// The new one has the identity of the old one, whose last commands may still be in the disk.
#[test]
fn a_killed_initiator_is_succeeded_at_once() {
    let mut world = World::new(&[]);
    let socket = world.initiator.socket.clone();
    for _ in 0..6 {
        world.initiator.process.kill();
        let killed = Instant::now();
        world.initiator = Initiator::start(&world.target.url(), &socket);
        assert!(killed.elapsed() < Duration::from_secs(3), "it took {:?} to come up", killed.elapsed());
        let contents = world.load.take().unwrap().ended(Duration::from_secs(1));
        world.load = Some(Load::resume(&socket, contents));
        world.goes_on(PROMPTLY);
    }
    assert_eq!(count(&world.target.process, "is already connected"), 0);
    world.finish();
}
