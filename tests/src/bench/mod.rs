//! The bench: the whole chain (fio, NBD on a Unix socket, `godwit`, iWARP on loopback TCP, `godwit-target`) and each peer that this machine has,
//! in alternation within one run.
//!
//! A machine that others share drifts by tens of per cent within minutes, so only ratios within one run mean anything: in each round every
//! system runs once per workload, one right after the other, and the order turns from round to round.

pub mod machine;
pub mod nbdkit;
pub mod outcome;
pub mod process;
pub mod report;
pub mod stage;
pub mod statistics;
pub mod system;
pub mod table;
pub mod verdict;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::builder::PossibleValuesParser;
use godwit_config::Size;
use godwit_initiator::demo::fio::{self, FioError, Measured, RAMP_TIME, WORKLOADS};

use machine::Machine;
use outcome::{Fate, Footprint, Outcome};
use stage::{Folders, Idle, Stage, StageError};
use statistics::{Run, Runs};
use system::{Backend, Chain, SYSTEMS, System};

/// How to get the peers.
const INSTALL_PEERS: &str = "Peers are measured where they are installed: apt-get install nbdkit qemu-utils";

/// What the user may choose.
#[derive(Clone, Debug, clap::Parser)]
#[command(
    name = "bench",
    about = "Measures godwit and each peer that this machine has, in alternation, and prints ratios",
    after_help = "Examples:\n  make bench\n  make bench ARGS=\"--seconds 10 --rounds 5\"\n  \
                  make bench ARGS=\"--only godwit-memory --only nbdkit-2hop-memory\"\n\n\
                  Peers are measured where they are installed: apt-get install nbdkit qemu-utils"
)]
pub struct BenchOptions {
    /// Time of each run
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// How often each workload runs on each system
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Measure this system and no other; may be given several times
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(SYSTEMS.map(|system| system.name)))]
    pub only: Vec<String>,
    /// Write every single run to this file, as JSON
    #[arg(long, value_name = "PATH", overrides_with = "json")]
    pub json: Option<PathBuf>,
    /// Folder for the files on disk; each takes the size of a volume
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Size of each volume; a multiple of 1MiB
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = volume_size)]
    pub size: Size,
}

fn volume_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error| format!("{error}"))?;
    let is_fit = size.bytes().is_multiple_of(1 << 20) && (16 << 20..=1 << 40).contains(&size.bytes());
    if is_fit { Ok(size) } else { Err("a volume is a multiple of 1MiB, from 16MiB to 1TiB".to_owned()) }
}

/// Why the bench came to no end, or to a bad one.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// fio, or Ctrl-C.
    #[error(transparent)]
    Fio(#[from] FioError),
    /// A folder.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The operating system.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What it answered.
        source: io::Error,
    },
    /// The volumes do not fit.
    #[error("{count} volumes in memory need {} MiB, and {} MiB are available: choose a smaller --size, or fewer systems with --only", .needed_kib >> 10, .available_kib >> 10)]
    Memory {
        /// How many.
        count: usize,
        /// What they need.
        needed_kib: u64,
        /// What there is.
        available_kib: u64,
    },
    /// Nothing that was asked for can run here.
    #[error("nothing to measure")]
    Nothing,
    /// Some systems broke; the others are reported.
    #[error("failed: {0}")]
    Failed(String),
}

/// Measures, prints the report, and writes the JSON.
///
/// # Errors
///
/// When it was interrupted, when nothing can run, and, after the report, when a system that could run broke. Everything that was started is
/// ended and removed.
pub fn run(options: &BenchOptions) -> Result<(), BenchError> {
    fio::check()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(io_error("watch for Ctrl-C"))?;
    }
    if let Some(path) = &options.json {
        // Now, and not after minutes of measuring; what is there already stays until there is something better.
        fs::OpenOptions::new().create(true).append(true).open(path).map_err(io_error(format!("write {}", path.display())))?;
    }
    let machine = Machine::look();
    println!("{}", machine.describe());
    let outcome = Bench::new(options, &stop).and_then(Bench::measure).inspect_err(|_| remove_if_empty(options.json.as_deref()))?;
    print!("{}", table::render(&outcome));
    if let Some(path) = &options.json {
        let text = format!("{:#}\n", report::render(&machine, &outcome));
        fs::write(path, text).map_err(io_error(format!("write {}", path.display())))?;
        println!("\nevery run: {}", path.display());
    }
    check_failures(&outcome.fates)
}

fn check_failures(fates: &[(System, Fate)]) -> Result<(), BenchError> {
    let failures = fates.iter().filter_map(|(system, fate)| match fate {
        Fate::Failed(reason) => Some(format!("{} ({reason})", system.name)),
        _ => None,
    });
    let failures: Vec<String> = failures.collect();
    if failures.is_empty() { Ok(()) } else { Err(BenchError::Failed(failures.join("; "))) }
}

fn remove_if_empty(path: Option<&Path>) {
    if let Some(path) = path.filter(|path| fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0)) {
        let _ = fs::remove_file(path);
    }
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> BenchError {
    let what = what.into();
    |source| BenchError::Io { what, source }
}

/// A bench under way.
struct Bench<'a> {
    // Field order is teardown order: images go before their folders.
    players: Vec<Player>,
    folders: Folders,
    fates: Vec<(System, Fate)>,
    runs: Vec<Run>,
    broken: Vec<Run>,
    options: &'a BenchOptions,
    stop: &'a AtomicBool,
}

/// A system that takes part.
struct Player {
    stage: Stage,
    idle: Idle,
}

impl<'a> Bench<'a> {
    fn new(options: &'a BenchOptions, stop: &'a AtomicBool) -> Result<Self, BenchError> {
        let folders = Folders::make(&options.dir)?;
        Ok(Self { players: Vec::new(), folders, fates: Vec::new(), runs: Vec::new(), broken: Vec::new(), options, stop })
    }

    fn measure(mut self) -> Result<Outcome, BenchError> {
        let able = self.choose()?;
        for system in &able {
            println!("{:<19} {}", system.name, system.path());
        }
        self.set_up(&able)?;
        if self.players.is_empty() {
            check_failures(&self.fates)?;
        }
        self.announce();
        for round in 1..=self.options.rounds {
            for workload in 0..WORKLOADS.len() {
                self.play(round, workload)?;
            }
        }
        for player in &self.players {
            let footprint =
                Footprint { peak_resident_kib: player.stage.peak_resident_kib(), idle_cpu_per_cent: player.idle.per_cent(&player.stage) };
            self.fates.push((player.stage.system, Fate::Measured(footprint)));
        }
        Ok(Outcome {
            fates: std::mem::take(&mut self.fates),
            runs: Runs(std::mem::take(&mut self.runs)),
            broken: std::mem::take(&mut self.broken),
            time: self.time(),
            rounds: self.options.rounds,
            size_bytes: self.options.size.bytes(),
        })
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.options.seconds)
    }

    /// The systems that were asked for and that this machine can run; says why it cannot run the others.
    fn choose(&mut self) -> Result<Vec<System>, BenchError> {
        let mut able = Vec::new();
        for system in SYSTEMS.into_iter().filter(|system| is_asked_for(&self.options.only, *system)) {
            match self.lacks(system) {
                None => able.push(system),
                Some(reason) => {
                    println!("{reason}, not measured: {}", system.name);
                    self.fates.push((system, Fate::Skipped(reason)));
                }
            }
        }
        if self.fates.iter().any(|(_, fate)| matches!(fate, Fate::Skipped(reason) if reason.ends_with("not installed"))) {
            println!("{INSTALL_PEERS}");
        }
        if able.is_empty() {
            return Err(BenchError::Nothing);
        }
        let count = able.iter().filter(|system| system.backend != Backend::Disk).count();
        let needed_kib = (self.options.size.bytes() >> 10).saturating_mul(count as u64);
        match process::available_kib() {
            Some(available_kib) if available_kib < needed_kib => Err(BenchError::Memory { count, needed_kib, available_kib }),
            _ => Ok(able),
        }
    }

    fn lacks(&self, system: System) -> Option<String> {
        let folder = self.folders.of(system.backend);
        if system.backend == Backend::Tmpfs && folder.is_none() {
            return Some(format!("{}: no such folder", stage::TMPFS));
        }
        if let Some(folder) = folder {
            let same = |other: &System| other.backend == system.backend && is_asked_for(&self.options.only, *other);
            let needed = self.options.size.bytes().saturating_mul(SYSTEMS.iter().filter(|other| same(other)).count() as u64);
            let free = free_bytes(folder).unwrap_or(u64::MAX);
            if free < needed {
                return Some(format!("{}: {} MiB free, {} needed", folder.display(), free >> 20, needed >> 20));
            }
            if system.chain == Chain::Raw && !system::has_direct_io(folder) {
                return Some(format!("{}: no O_DIRECT on this file system", folder.display()));
            }
        }
        system.lacks()
    }

    /// Starts the systems and fills their volumes: memory and files that were never written answer faster than data.
    fn set_up(&mut self, systems: &[System]) -> Result<(), BenchError> {
        for &system in systems {
            eprintln!("starting and filling {}", system.name);
            let size_bytes = self.options.size.bytes();
            let stage = match Stage::set(system, &self.folders, size_bytes) {
                Ok(stage) => stage,
                Err(error) => {
                    self.check_stop()?;
                    self.fail(system, &error);
                    continue;
                }
            };
            match fio::fill(&stage.place, size_bytes, self.stop) {
                Ok(()) => self.players.push(Player { idle: Idle::watch(&stage), stage }),
                Err(FioError::Interrupted) => return Err(FioError::Interrupted.into()),
                Err(error) => self.fail(system, &error),
            }
        }
        for player in &mut self.players {
            player.idle = Idle::watch(&player.stage);
        }
        Ok(())
    }

    fn announce(&self) {
        let runs = self.players.len() as u64 * WORKLOADS.len() as u64 * u64::from(self.options.rounds);
        // fio itself takes half a second to come and go.
        let seconds = runs as f64 * (self.time() + RAMP_TIME + Duration::from_millis(500)).as_secs_f64();
        eprintln!("{runs} runs; this takes about {:.0} min", (seconds / 60.0).ceil());
    }

    /// One workload of one round, on every system.
    fn play(&mut self, round: u32, workload: usize) -> Result<(), BenchError> {
        let mut order: Vec<System> = self.players.iter().map(|player| player.stage.system).collect();
        let turn = (round as usize - 1) % order.len().max(1);
        order.rotate_left(turn);
        for system in order {
            let Some(index) = self.players.iter().position(|player| player.stage.system == system) else { continue };
            match self.run_once(index, round, workload) {
                Ok(run) => {
                    let Measured { iops, p50_us, .. } = run.measured;
                    eprintln!("round {round}, {}: {} {iops:.0} IOPS, p50 {p50_us:.0} us", WORKLOADS[workload].name, system.name);
                    self.runs.push(run);
                }
                Err(FioError::Interrupted) => return Err(FioError::Interrupted.into()),
                Err(error) => {
                    drop(self.players.remove(index));
                    self.fail(system, &error);
                }
            }
        }
        Ok(())
    }

    fn run_once(&mut self, index: usize, round: u32, workload: usize) -> Result<Run, FioError> {
        let time = self.time();
        let Player { stage, idle } = &mut self.players[index];
        let (begin, before) = (Instant::now(), stage.cpu_time());
        let measured = fio::measure(&stage.place, &WORKLOADS[workload], self.options.size.bytes(), time, self.stop)?;
        let cpu = stage.cpu_time().zip(before).map(|(after, before)| after.saturating_sub(before));
        idle.was_busy(begin.elapsed(), cpu.unwrap_or_default());
        let cpu_us = cpu.filter(|_| measured.requests > 0.0).map(|cpu| cpu.as_secs_f64() * 1e6 / measured.requests);
        Ok(Run { system: stage.system, workload, round, measured, cpu_us })
    }

    fn fail(&mut self, system: System, error: &dyn std::error::Error) {
        eprintln!("{}: {error}; not measured any further", system.name);
        self.broken.extend(self.runs.extract_if(.., |run| run.system == system));
        self.fates.push((system, Fate::Failed(error.to_string())));
    }

    fn check_stop(&self) -> Result<(), FioError> {
        if self.stop.load(std::sync::atomic::Ordering::Relaxed) { Err(FioError::Interrupted) } else { Ok(()) }
    }
}

fn is_asked_for(only: &[String], system: System) -> bool {
    only.is_empty() || only.iter().any(|name| name == system.name)
}

fn free_bytes(folder: &Path) -> Option<u64> {
    let found = nix::sys::statvfs::statvfs(folder).ok()?;
    Some(found.blocks_available().saturating_mul(found.fragment_size()))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn without_only_every_system_is_asked_for() {
        let [memory, disk] = ["godwit-memory", "raw-disk"].map(|name| System::named(name).unwrap());
        assert!(is_asked_for(&[], memory) && is_asked_for(&[], disk));
        let only = ["raw-disk".to_owned()];
        assert!(!is_asked_for(&only, memory) && is_asked_for(&only, disk));
    }

    #[test]
    fn accepts_volumes_of_whole_mebibytes_only() {
        let parse = |size: &str| BenchOptions::try_parse_from(["bench", "--size", size]).map(|options| options.size.bytes());
        assert_eq!(parse("16MiB").unwrap(), 16 << 20);
        assert_eq!(parse("1TiB").unwrap(), 1 << 40);
        for refused in ["15MiB", "1025GiB", "16777217", "0", "x"] {
            assert!(parse(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn the_last_json_counts() {
        let options = BenchOptions::try_parse_from(["bench", "--json", "a", "--json", "b"]).unwrap();
        assert_eq!(options.json, Some(PathBuf::from("b")));
    }

    #[test]
    fn rejects_a_system_that_there_is_not() {
        let error = BenchOptions::try_parse_from(["bench", "--only", "nbdkit"]).unwrap_err().to_string();
        assert!(error.contains("nbdkit-2hop-memory"), "{error}");
    }
}
