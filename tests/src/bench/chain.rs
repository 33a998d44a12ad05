//! The whole chain (fio, NBD on a Unix socket, `godwit`, iWARP on loopback TCP, `godwit-target`) and each peer that this machine has, in alternation.
//!
//! In each round every system runs once per workload, one right after the other, and the order turns from round to round.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use godwit_initiator::demo::fio::{self, FioError, Measured, RAMP_TIME, WORKLOADS};

use super::contest::cpu_us;
use super::outcome::{Fate, Footprint, Outcome};
use super::stage::{self, Folders, Idle, Stage};
use super::statistics::{Run, Runs};
use super::system::{self, Backend, Chain, SYSTEMS, System};
use super::{BenchError, BenchOptions, process};

/// How to get the peers.
const INSTALL_PEERS: &str = "Peers are measured where they are installed: apt-get install nbdkit qemu-utils";

/// A measurement under way.
#[derive(Debug)]
pub struct Chains<'a> {
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
#[derive(Debug)]
struct Player {
    stage: Stage,
    idle: Idle,
}

impl<'a> Chains<'a> {
    /// Makes its folders.
    ///
    /// # Errors
    ///
    /// When there is no place for them.
    pub fn new(options: &'a BenchOptions, stop: &'a AtomicBool) -> Result<Self, BenchError> {
        let folders = Folders::make(&options.dir)?;
        Ok(Self { players: Vec::new(), folders, fates: Vec::new(), runs: Vec::new(), broken: Vec::new(), options, stop })
    }

    /// Measures all that was asked for and that this machine can run.
    ///
    /// # Errors
    ///
    /// When nothing can run, and when the user does not want to wait.
    pub fn measure(mut self) -> Result<Outcome, BenchError> {
        let able = self.choose()?;
        for system in &able {
            println!("{:<19} {}", system.name, system.path());
        }
        self.set_up(&able)?;
        self.announce();
        for round in 1..=self.options.rounds() {
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
            rounds: self.options.rounds(),
            size_bytes: self.options.size_bytes(),
        })
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.options.seconds())
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
        let needed_kib = (self.options.size_bytes() >> 10).saturating_mul(count as u64);
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
            let needed = self.options.size_bytes().saturating_mul(SYSTEMS.iter().filter(|other| same(other)).count() as u64);
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
            let size_bytes = self.options.size_bytes();
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
        let runs = self.players.len() as u64 * WORKLOADS.len() as u64 * u64::from(self.options.rounds());
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
        let measured = fio::measure(&stage.place, &WORKLOADS[workload], self.options.size_bytes(), time, self.stop)?;
        let cpu = stage.cpu_time().zip(before).map(|(after, before)| after.saturating_sub(before));
        idle.was_busy(begin.elapsed(), cpu.unwrap_or_default());
        let cpu_us = cpu_us(&measured, cpu);
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

/// Of the names of sections and systems, those of systems count here; without any, all are asked for.
fn is_asked_for(only: &[String], system: System) -> bool {
    let mut systems = only.iter().filter(|name| System::named(name).is_some()).peekable();
    systems.peek().is_none() || systems.any(|name| name == system.name)
}

pub(super) fn free_bytes(folder: &Path) -> Option<u64> {
    let found = nix::sys::statvfs::statvfs(folder).ok()?;
    Some(found.blocks_available().saturating_mul(found.fragment_size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_system_among_the_names_every_system_is_asked_for() {
        let [memory, disk] = ["godwit-memory", "raw-disk"].map(|name| System::named(name).unwrap());
        assert!(is_asked_for(&[], memory) && is_asked_for(&[], disk));
        let chain = ["chain".to_owned()];
        assert!(is_asked_for(&chain, memory) && is_asked_for(&chain, disk));
        let only = ["file".to_owned(), "raw-disk".to_owned()];
        assert!(!is_asked_for(&only, memory) && is_asked_for(&only, disk));
    }
}
