//! Little memory and much to do: nothing waits for ever, nothing starves, nothing grows.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use godwit_nbd::{Command, CommandFlags, Errno, Request};
use godwit_tests::daemon::{Initiator, NQN, Process, Target, binary, free_port};
use godwit_tests::nbd::{Client, Receiver, Sender};
use godwit_tests::storage::FuseFile;

/// One NBD connection that writes and reads back, with so many requests of one length under way, each in a place of its own.
#[derive(Clone, Copy, Debug)]
struct Lane {
    start: u64,
    len_bytes: u32,
    depth: u16,
}

/// What a lane does next at one of its places; a request's cookie holds all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    place: u16,
    reading: bool,
    round: u32,
}

impl Turn {
    fn cookie(self) -> u64 {
        u64::from(self.round) << 32 | u64::from(self.reading) << 16 | u64::from(self.place)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the fields are cut out by their widths")]
    fn of(cookie: u64) -> Self {
        Self { place: cookie as u16, reading: cookie >> 16 & 1 == 1, round: (cookie >> 32) as u32 }
    }

    /// Each write is read back, then comes the next one.
    fn next(self) -> Self {
        Self { place: self.place, reading: !self.reading, round: self.round + u32::from(self.reading) }
    }
}

impl Lane {
    fn offset(self, place: u16) -> u64 {
        self.start + u64::from(place) * u64::from(self.len_bytes)
    }

    fn end(self) -> u64 {
        self.offset(self.depth)
    }

    /// Words that tell where they belong and of which round they are.
    fn content(self, turn: Turn) -> impl Iterator<Item = [u8; 8]> {
        let first = self.offset(turn.place) ^ u64::from(turn.round).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (0..u64::from(self.len_bytes) / 8).map(move |word| first.wrapping_add(word.wrapping_mul(0xD6E8_FEB8_6659_FD93)).to_le_bytes())
    }

    /// Runs until the deadline and until all is answered. `answered` counts.
    fn run(self, socket: &Path, deadline: Instant, answered: &AtomicU64) {
        let client = Client::connect(socket).unwrap();
        client.limit(Some(Duration::from_secs(30)));
        let (sender, receiver) = client.split();
        let (turns, next_turns) = mpsc::channel();
        for place in 0..self.depth {
            turns.send(Turn { place, reading: false, round: 0 }).unwrap();
        }
        thread::scope(|scope| {
            scope.spawn(|| self.send(sender, next_turns, deadline));
            self.receive(receiver, turns, answered);
        });
    }

    fn send(self, mut sender: Sender, turns: mpsc::Receiver<Turn>, deadline: Instant) {
        let mut data = Vec::with_capacity(self.len_bytes as usize);
        let mut done = 0;
        while done < self.depth {
            // It ends when the receiver has panicked.
            let Ok(turn) = turns.recv() else { return };
            if Instant::now() >= deadline {
                done += 1;
                continue;
            }
            let command = if turn.reading { Command::Read } else { Command::Write };
            data.clear();
            if !turn.reading {
                self.content(turn).for_each(|word| data.extend_from_slice(&word));
            }
            let offset = self.offset(turn.place);
            let request = Request { cookie: turn.cookie(), command, flags: CommandFlags::NONE, offset, length: self.len_bytes };
            sender.send(&request, &data).unwrap();
        }
        sender.close();
    }

    fn receive(self, mut receiver: Receiver, turns: mpsc::Sender<Turn>, answered: &AtomicU64) {
        let read_len = |cookie| if Turn::of(cookie).reading { self.len_bytes } else { 0 };
        loop {
            let answer = match receiver.receive(read_len) {
                Ok(answer) => answer,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return,
                Err(error) => panic!("{self:?}: no answer: {error}"),
            };
            let turn = Turn::of(answer.cookie);
            assert_eq!(answer.errno, Errno::OK, "{self:?} {turn:?}");
            if turn.reading {
                assert!(answer.data.chunks_exact(8).eq(self.content(turn)), "{self:?} {turn:?}: not what was written");
            }
            answered.fetch_add(1, Ordering::Relaxed);
            if turns.send(turn.next()).is_err() {
                return;
            }
        }
    }
}

/// The lanes of a test, one behind the other.
fn lanes(kinds: &[(usize, u32, u16)]) -> Vec<Lane> {
    let mut start = 0;
    let kinds = kinds.iter().flat_map(|&(count, len_bytes, depth)| std::iter::repeat_n((len_bytes, depth), count));
    kinds
        .map(|(len_bytes, depth)| {
            let lane = Lane { start, len_bytes, depth };
            start = lane.end();
            lane
        })
        .collect()
}

/// Runs all lanes for a while; `watch` is called now and then. The longest time in which nothing was answered, and the same for each lane alone.
fn load(sockets: &[&Path], lanes: &[Lane], duration: Duration, mut watch: impl FnMut()) -> (Duration, Vec<Duration>) {
    let counters: Vec<AtomicU64> = lanes.iter().map(|_| AtomicU64::new(0)).collect();
    let deadline = Instant::now() + duration;
    let (mut total, mut each) = (Watch::new(), vec![Watch::new(); lanes.len()]);
    thread::scope(|scope| {
        let threads: Vec<_> = lanes
            .iter()
            .zip(sockets.iter().cycle())
            .zip(&counters)
            .map(|((lane, socket), counter)| scope.spawn(|| lane.run(socket, deadline, counter)))
            .collect();
        while !threads.iter().all(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(50));
            watch();
            let counts = counters.iter().map(|counter| counter.load(Ordering::Relaxed));
            let mut sum = 0;
            for ((count, watch), thread) in counts.zip(&mut each).zip(&threads) {
                sum += count;
                if !thread.is_finished() {
                    watch.see(count);
                }
            }
            total.see(sum);
        }
    });
    for (lane, counter) in lanes.iter().zip(&counters) {
        println!("{lane:?}: {} answers", counter.load(Ordering::Relaxed));
    }
    (total.longest, each.into_iter().map(|watch| watch.longest).collect())
}

/// How long a number stood still.
#[derive(Clone, Debug)]
struct Watch {
    count: u64,
    since: Instant,
    longest: Duration,
}

impl Watch {
    fn new() -> Self {
        Self { count: 0, since: Instant::now(), longest: Duration::ZERO }
    }

    fn see(&mut self, count: u64) {
        if count != self.count {
            (self.count, self.since) = (count, Instant::now());
        }
        self.longest = self.longest.max(self.since.elapsed());
    }
}

fn target_with(folder: &Path, backend: &str, more: &str) -> Target {
    let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
    let config = folder.join("target.yaml");
    let text = format!(
        "listeners: [{{ transport: iwarp, address: \"{address}\" }}]\n{more}\n\
         subsystems:\n\
         \x20 - nqn: {NQN}\n    allow_any_host: true\n    namespaces: [{{ nsid: 1, {backend} }}]\n"
    );
    fs::write(&config, text).unwrap();
    Target::start_command(process::Command::new(binary("godwit-target")).arg("--config").arg(&config), address)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
}

/// Eight I/O queues, small writes in capsules at full depth beside large ones and beside requests of 32 MiB, over a target with the least memory.
#[test]
fn a_busy_mix_never_stops_with_the_least_memory() {
    const LONGEST_PAUSE: Duration = Duration::from_secs(2);
    const LONGEST_STARVATION: Duration = Duration::from_secs(8);
    let lanes = lanes(&[(8, 8 << 10, 128), (4, 1 << 20, 8), (8, 32 << 20, 2)]);
    let size_mib = lanes.last().unwrap().end().div_ceil(1 << 20);
    for reactors in [1, 2] {
        let folder = folder();
        let file = folder.path().join("vol.img");
        // The floor of the sample configuration: queue_size times in_capsule plus 4 MiB.
        let limits = format!("reactors: {reactors}\nmemory: 5MiB\nlimits: {{ queue_size: 128, in_capsule: 8KiB }}");
        let backend = format!("backend: {{ file: {{ path: {}, size: {size_mib}MiB, create: true }} }}", file.display());
        let target = target_with(folder.path(), &backend, &limits);
        let arguments = ["--reactors", "4", "--nr-io-queues", "4", "--queue-size", "128"];
        let initiators = ["a.sock", "b.sock"].map(|name| Initiator::start_with(&target.url(), &folder.path().join(name), &arguments));
        let sockets = [initiators[0].socket.as_path(), initiators[1].socket.as_path()];
        let (longest, each) = load(&sockets, &lanes, Duration::from_secs(20), || {});
        println!("{reactors} reactors: nothing was answered for at most {longest:?}; by lane {each:?}");
        assert!(longest < LONGEST_PAUSE, "nothing was answered for {longest:?}");
        assert!(each.iter().all(|&pause| pause < LONGEST_STARVATION), "a lane starved: {each:?} of {lanes:?}");
        for initiator in &initiators {
            assert!(!initiator.process.output().contains("lost"), "{}", initiator.process.output());
        }
    }
}

/// Resident memory of the daemons over time.
struct Resident {
    started: Instant,
    samples: Vec<(Duration, u64)>,
}

impl Resident {
    fn see(&mut self, processes: &[&Process]) {
        let kib = processes.iter().map(|process| process.resident_kib()).sum();
        self.samples.push((self.started.elapsed(), kib));
    }

    fn most(&self, from: Duration, to: Duration) -> u64 {
        self.samples.iter().filter(|(at, _)| (from..to).contains(at)).map(|&(_, kib)| kib).max().unwrap()
    }
}

/// A writer that is much faster than the storage is held back; it does not fill anyone's memory.
#[test]
#[ignore = "needs root, for FUSE"]
fn memory_stays_flat_when_the_backend_is_slower_than_the_writer() {
    const DURATION: Duration = Duration::from_secs(12);
    let folder = folder();
    let lanes = lanes(&[(4, 8 << 10, 128), (4, 1 << 20, 8), (2, 32 << 20, 1)]);
    let size = format!("{}", lanes.last().unwrap().end());
    // 20 MiB/s for all connections together.
    let fuse = FuseFile::start(folder.path(), &["--filter=rate", "memory", &size, "rate=160M"]);
    let backend = format!("uuid: d2f0e4a8-5c5e-4c6e-9d0b-0c2b5a6f7e81, backend: {{ file: {{ path: {} }} }}", fuse.path().display());
    let target = target_with(folder.path(), &backend, "reactors: 2");
    let initiator = Initiator::start(&target.url(), &folder.path().join("nbd.sock"));
    let mut resident = Resident { started: Instant::now(), samples: Vec::new() };
    load(&[&initiator.socket], &lanes, DURATION, || resident.see(&[&target.process, &initiator.process]));
    let (before, after) = (resident.most(Duration::from_secs(1), DURATION / 2), resident.most(DURATION / 2, DURATION));
    println!("{before} KiB resident at most in the first half, {after} KiB in the second");
    assert!(after < before + (4 << 10), "{before} KiB, then {after} KiB");
}
