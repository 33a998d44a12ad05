//! Hostile bytes at every port of both daemons, beside honest clients that must not notice.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use godwit_tests::daemon::{Initiator, NQN, Process, Target, binary, free_port, url, wait_for};
use godwit_tests::hostile::{self, Aim, BLOCK_BYTES, Crowd, Milestone, Random, Tally, Victim};
use tempfile::TempDir;

/// The subsystem of the hostile hosts.
const HOSTILE_NQN: &str = "nqn.2026-11.org.example:hostile";

/// Bytes of either volume: the first half is guarded, in the other hostile streams may change what they like.
const VOLUME_BYTES: u64 = 32 << 20;

const VOLUME_BLOCKS: u64 = VOLUME_BYTES / BLOCK_BYTES as u64;

/// Hostile streams at a time.
const THREADS: usize = 4;

/// Honest clients, which share the guarded half of their volume.
const VICTIMS: u64 = 2;

/// What a daemon's memory may grow by over all streams but the first, in KiB: less than what one buffer, or half a KiB, lost with each would come to.
const GROWTH_KIB: u64 = 8 << 10;

/// The longest that an honest client may wait for an answer.
const SLOWEST: Duration = Duration::from_secs(5);

/// A number from the environment, or its default.
fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

/// What the guarded half of the hostile volume holds.
fn guard() -> Vec<u8> {
    Random::new(0x6775_6172, 0).bytes(usize::try_from(VOLUME_BYTES / 2).expect("a small volume"))
}

fn make_volume(path: &Path, start: &[u8]) {
    let file = File::create(path).unwrap();
    file.write_all_at(start, 0).unwrap();
    file.set_len(VOLUME_BYTES).unwrap();
}

/// The daemons, and what is around them.
struct World {
    target: Target,
    initiator: Initiator,
    aim: Aim,
    folder: TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        make_volume(&path("victim.img"), &[]);
        make_volume(&path("hostile.img"), &guard());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        fs::write(path("target.yaml"), configuration(address, &path("victim.img"), &path("hostile.img"))).unwrap();
        let target = Target::start_command(Command::new(binary("godwit-target")).arg("--config").arg(path("target.yaml")), address);
        let initiator = Initiator::start(&url(address), &path("victim.sock"));
        let aim = Aim {
            target: address,
            subsystem: HOSTILE_NQN.to_owned(),
            namespace_blocks: VOLUME_BLOCKS,
            nbd: initiator.socket.clone(),
            export_bytes: VOLUME_BYTES,
        };
        Self { target, initiator, aim, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn victims(&self, seed: u64) -> Vec<Victim> {
        let blocks = VOLUME_BLOCKS / 2 / VICTIMS;
        let start = |index| Victim::start(&self.initiator.socket, seed, index * blocks, usize::try_from(blocks).unwrap()).unwrap();
        (0..VICTIMS).map(start).collect()
    }

    fn daemons(&mut self) -> [&mut Process; 2] {
        [&mut self.target.process, &mut self.initiator.process]
    }

    /// Waits until the daemons have the very descriptors that they had: no honest client's connection, at either daemon, was lost and made again.
    fn wait_until_as(&self, before: &[Usage; 2]) {
        let same = |usage: [Usage; 2]| usage.into_iter().zip(before).all(|(now, before)| now.descriptors == before.descriptors);
        wait_for("the daemons have the descriptors that they had before", Duration::from_secs(15), || same(self.usage()));
    }

    fn usage(&self) -> [Usage; 2] {
        [&self.target.process, &self.initiator.process].map(|process| Usage {
            pid: process.pid(),
            resident_kib: process.resident_kib(),
            descriptors: descriptors(process.pid()),
        })
    }
}

fn configuration(address: SocketAddr, victim: &Path, hostile: &Path) -> String {
    let subsystem = |nqn: &str, path: &Path| {
        let path = path.display();
        format!(
            "  - nqn: {nqn}\n    allow_any_host: true\n    namespaces:\n      - nsid: 1\n        backend: {{ file: {{ path: {path} }} }}\n"
        )
    };
    format!(
        "listeners:\n  - {{ transport: iwarp, address: \"{address}\" }}\nreactors: 2\nmemory: 16MiB\nlimits: {{ queue_size: 128 }}\nsubsystems:\n{}{}",
        subsystem(NQN, victim),
        subsystem(HOSTILE_NQN, hostile)
    )
}

/// What a daemon takes of its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Usage {
    pid: u32,
    resident_kib: u64,
    descriptors: BTreeMap<PathBuf, PathBuf>,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}: {} KiB, {} descriptors", self.pid, self.resident_kib, self.descriptors.len())
    }
}

/// The descriptors of a process and what they are; a socket that was closed and opened again is another.
fn descriptors(pid: u32) -> BTreeMap<PathBuf, PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs").map_while(Result::ok);
    entries.filter_map(|entry| fs::read_link(entry.path()).ok().map(|what| (entry.path(), what))).collect()
}

/// Runs streams `numbers` on several threads.
fn run_streams(aim: &Aim, seed: u64, numbers: std::ops::Range<u64>, tally: &Tally) {
    let (next, failure) = (AtomicU64::new(numbers.start), Mutex::new(None));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= numbers.end || failure.lock().unwrap().is_some() {
                        break;
                    }
                    if let Err(misbehaviour) = hostile::run(aim, seed, number, tally) {
                        failure.lock().unwrap().get_or_insert(format!("stream {number}: {misbehaviour}"));
                    }
                }
            });
        }
    });
    if let Some(failure) = failure.into_inner().unwrap() {
        panic!("{failure}\n{tally}");
    }
}

/// Has the victims work until `stop`, and gives them back.
fn suffer(mut victim: Victim, stop: &AtomicBool) -> Victim {
    while !stop.load(Ordering::Relaxed) {
        victim.step().unwrap_or_else(|harm| panic!("an honest client was harmed after {victim}: {harm}"));
    }
    victim
}

/// A client that comes when all is over: what it reads is what was there, and what it writes it reads.
fn a_fresh_client_works(world: &World, seed: u64) {
    let socket = world.path("fresh.sock");
    let mut initiator = Initiator::start(&format!("iwarp://{}/{HOSTILE_NQN}", world.target.address), &socket);
    let open = VOLUME_BLOCKS / 2;
    let mut victim = Victim::start(&socket, seed, open, 256).unwrap();
    for _ in 0..100 {
        victim.step().unwrap();
    }
    victim.check_all().unwrap();
    drop(victim);
    initiator.process.terminate();
}

#[test]
fn hostile_streams_cost_at_most_their_own_connection() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("GODWIT_HOSTILE_SEED", now.as_secs() * 1_000 + u64::from(now.subsec_millis()));
    let streams = number("GODWIT_HOSTILE_STREAMS", 20_000);
    println!("GODWIT_HOSTILE_SEED={seed} GODWIT_HOSTILE_STREAMS={streams} repeats this run");

    let mut world = World::new();
    let (tally, stop, started) = (Tally::default(), AtomicBool::new(false), Instant::now());
    let victims = world.victims(seed);
    let before = world.usage();
    let mut warm = before.clone();
    let mut victims = thread::scope(|scope| {
        let at_work: Vec<_> = victims.into_iter().map(|victim| scope.spawn(|| suffer(victim, &stop))).collect();
        let attack = scope.spawn(|| {
            run_streams(&world.aim, seed, 0..streams / 10, &tally);
            let warm = world.usage();
            run_streams(&world.aim, seed, streams / 10..streams, &tally);
            warm
        });
        let attacked = attack.join();
        stop.store(true, Ordering::Relaxed);
        let victims: Vec<_> = at_work.into_iter().map(thread::ScopedJoinHandle::join).collect();
        warm = attacked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        victims.into_iter().map(|victim| victim.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect::<Vec<_>>()
    });
    println!("{streams} streams in {:.1?}\n{tally}", started.elapsed());

    for victim in &mut victims {
        println!("honest client: {victim}");
        assert!(victim.operations > 500 && victim.longest < SLOWEST, "{victim}");
        victim.check_all().unwrap();
    }
    for &milestone in Milestone::ALL {
        assert!(tally.of(milestone) > 0, "no stream got to {milestone:?}");
    }
    for daemon in world.daemons() {
        assert!(daemon.is_running());
    }
    world.wait_until_as(&before);
    for ((before, warm), after) in before.iter().zip(&warm).zip(&world.usage()) {
        println!("{before}; soon {warm}; in the end {after}");
        assert_eq!(before.pid, after.pid);
        assert!(after.resident_kib <= warm.resident_kib + GROWTH_KIB, "{warm} became {after}");
    }

    a_fresh_client_works(&world, seed);
    drop(victims);
    for daemon in world.daemons() {
        daemon.terminate();
        assert!(!daemon.output().contains("panicked"), "{}", daemon.output());
    }
    let hostile = fs::read(world.path("hostile.img")).unwrap();
    assert_eq!((hostile.len() as u64, fs::metadata(world.path("victim.img")).unwrap().len()), (VOLUME_BYTES, VOLUME_BYTES));
    assert!(hostile.starts_with(&guard()), "guarded blocks of the hostile hosts' namespace changed");
}

#[test]
fn a_silent_crowd_keeps_nobody_out_for_long() {
    let mut world = World::new();
    let seed = 1;
    let (stop, limit) = (AtomicBool::new(false), Duration::from_secs(20));
    let victims = world.victims(seed);
    let before = world.usage();
    let mut victims: Vec<_> = thread::scope(|scope| {
        let at_work: Vec<_> = victims.into_iter().map(|victim| scope.spawn(|| suffer(victim, &stop))).collect();
        let crowd = scope.spawn(|| {
            let mut crowd = Crowd::gather(&world.aim, seed, 70).unwrap();
            let left = crowd.wait_for_the_door(limit);
            assert_eq!(left, 0, "connections that never said anything are still open after {limit:?}");
            assert_eq!(crowd.controllers, 70, "an honest host was kept out");
        });
        let gathered = crowd.join();
        stop.store(true, Ordering::Relaxed);
        let victims: Vec<_> = at_work.into_iter().map(thread::ScopedJoinHandle::join).collect();
        gathered.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        victims.into_iter().map(|victim| victim.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    for victim in &mut victims {
        assert!(victim.longest < SLOWEST, "{victim}");
        victim.check_all().unwrap();
    }
    world.wait_until_as(&before);
    a_fresh_client_works(&world, seed);
    for daemon in world.daemons() {
        daemon.terminate();
        assert!(!daemon.output().contains("panicked"), "{}", daemon.output());
    }
}
