//! What runs in each section.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use godwit_initiator::demo::fio::{self, Place};

use super::case::{AT_A_RATE, AT_AN_EVEN_RATE, LARGE_READ, LARGE_WRITE, READ_1, READ_32, READ_128, WRITE_32, WRITE_128};
use super::chain::{Chains, free_bytes};
use super::contest::{Absence, ContestError, Contestant, Rules, hold};
use super::cores::{self, Pinned};
use super::floor::Floor;
use super::ours::{Ours, Setup, Store};
use super::outcome::Results;
use super::sample::{Samples, Section};
use super::spdk::{self, Spdk};
use super::stage::{Folders, Stage};
use super::staged::{OnOneCore, Raw};
use super::system::{self, System};
use super::{BenchError, BenchOptions, fairness, io_error, process, scaling};
use crate::daemon::find_binary;

/// The most that a volume without NBD has: as much as the floor reads from.
const MOST_DIRECT_BYTES: u64 = 256 << 20;

/// The chains that are compared on one core.
const ON_ONE_CORE: [&str; 2] = ["godwit-memory", "nbdkit-2hop-memory"];

/// Runs one section. What cannot run, or breaks, is in the results, with its reason.
///
/// # Errors
///
/// When the user does not want to wait, or nothing of it can run.
pub fn run(section: Section, options: &BenchOptions, stop: &AtomicBool, results: &mut Results) -> Result<(), BenchError> {
    let rules = Rules { section, rounds: options.rounds(), time: Duration::from_secs(options.seconds()), stop };
    let mut round = Round { rules, options, absences: Vec::new(), contestants: Vec::new() };
    if section == Section::Chain {
        results.chains = Chains::new(options, stop)?.measure()?;
        results.samples.0.extend(Samples::of_chains(&results.chains.runs).0);
        return Ok(());
    }
    if let Some(name) = ["godwit", "godwit-target"].into_iter().find(|name| find_binary(name).is_none()) {
        round.is_absent("godwit", format!("{name}: not built"));
        results.absences.append(&mut round.absences);
        return Err(BenchError::Nothing);
    }
    let run = match section {
        Section::Chain => Ok(()),
        Section::OneCore => round.one_core(results),
        Section::Direct => round.direct(results),
        Section::File => round.file(results),
        Section::Fairness => round.fairness(results),
        Section::Scaling => round.scaling(results),
    };
    results.absences.append(&mut round.absences);
    run
}

/// A section under way.
struct Round<'a> {
    // Field order is teardown order.
    contestants: Vec<Box<dyn Contestant>>,
    rules: Rules<'a>,
    options: &'a BenchOptions,
    absences: Vec<Absence>,
}

impl Round<'_> {
    fn is_absent(&mut self, subject: &str, reason: String) {
        self.absences.push(Absence { section: self.rules.section, subject: subject.to_owned(), reason, is_failure: false });
    }

    /// Takes part, unless it could not start.
    fn admit(&mut self, subject: &str, started: Result<impl Contestant + 'static, ContestError>) -> Result<(), BenchError> {
        match started {
            Ok(contestant) => self.contestants.push(Box::new(contestant)),
            Err(ContestError::Interrupted) => return Err(ContestError::Interrupted.into()),
            Err(error) => self.broke(subject, &error),
        }
        Ok(())
    }

    fn broke(&mut self, subject: &str, error: &ContestError) {
        eprintln!("{subject}: {error}");
        let (section, reason) = (self.rules.section, error.to_string());
        self.absences.push(Absence { section, subject: subject.to_owned(), reason, is_failure: true });
    }

    fn hold(&mut self, cases: &[super::case::Case], results: &mut Results) -> Result<(), BenchError> {
        let (samples, absences) = hold(self.rules, std::mem::take(&mut self.contestants), cases)?;
        results.samples.0.extend(samples.0);
        self.absences.extend(absences);
        Ok(())
    }

    /// Two cores, one for each end; says when there are none.
    fn cores(&mut self) -> Result<[usize; 2], BenchError> {
        cores::pair().ok_or_else(|| {
            self.is_absent("all of it", "two cores are needed".to_owned());
            BenchError::Nothing
        })
    }

    fn one_core(&mut self, results: &mut Results) -> Result<(), BenchError> {
        let core = cores::allowed().first().copied().ok_or(BenchError::Nothing)?;
        let (folders, size_bytes) = (Folders::make(&self.options.dir)?, self.options.size_bytes());
        for system in ON_ONE_CORE.into_iter().filter_map(System::named) {
            if let Some(reason) = system.lacks() {
                self.is_absent(system.name, reason);
                continue;
            }
            eprintln!("starting and filling {} on core {core}", system.name);
            let started = {
                let _pinned = Pinned::to(core).map_err(io_error("stay on one core"))?;
                Stage::set(system, &folders, size_bytes)
            };
            let filled = started.map_err(|error| ContestError::of(&error)).and_then(|stage| {
                fio::fill(&stage.place, size_bytes, self.rules.stop)?;
                Ok(OnOneCore { stage, size_bytes, core })
            });
            self.admit(system.name, filled)?;
        }
        self.hold(&[READ_1, READ_32], results)
    }

    fn direct(&mut self, results: &mut Results) -> Result<(), BenchError> {
        let (cores, stop) = (self.cores()?, self.rules.stop);
        let size_bytes = self.options.size_bytes().min(MOST_DIRECT_BYTES);
        // Ours with and without CRC, SPDK's, and the floor's.
        let needed_kib = (4 * size_bytes + MOST_DIRECT_BYTES + (2 << 30)) >> 10;
        if let Some(available_kib) = process::available_kib().filter(|available| *available < needed_kib) {
            return Err(BenchError::Memory { count: 4, needed_kib, available_kib });
        }
        for (name, crc) in [("godwit", false), ("godwit-crc", true)] {
            eprintln!("starting and filling {name}");
            let setup = Setup { crc, ..Setup::of(Store::Memory(size_bytes)) };
            self.admit(name, Ours::start(name, &setup, Some(cores), stop))?;
        }
        match &self.options.spdk_dir {
            None => self.is_absent("spdk", "no build of it was named: set SPDK_DIR, or --spdk-dir".to_owned()),
            Some(folder) => match spdk::lacks(folder) {
                Some(reason) => self.is_absent("spdk", reason),
                None => {
                    eprintln!("starting and filling spdk");
                    self.admit("spdk", Spdk::start(folder, size_bytes, cores, stop))?;
                }
            },
        }
        self.contestants.extend(Floor::all(cores).map(|floor| -> Box<dyn Contestant> { Box::new(floor) }));
        self.hold(&[READ_1, READ_32, READ_128, WRITE_32, WRITE_128, LARGE_READ, LARGE_WRITE, AT_A_RATE, AT_AN_EVEN_RATE], results)
    }

    fn file(&mut self, results: &mut Results) -> Result<(), BenchError> {
        let (cores, size_bytes) = (self.cores()?, self.options.size_bytes());
        let folders = Folders::make(&self.options.dir)?;
        let folder = folders.of(system::Backend::Disk).unwrap_or(Path::new("."));
        if !system::has_direct_io(folder) {
            self.is_absent("all of it", format!("{}: no O_DIRECT on this file system", folder.display()));
            return Err(BenchError::Nothing);
        }
        if let Some(free) = free_bytes(folder).filter(|free| *free < size_bytes) {
            self.is_absent("all of it", format!("{}: {} MiB free, {} needed", folder.display(), free >> 20, size_bytes >> 20));
            return Err(BenchError::Nothing);
        }
        let image = folder.join("file.img");
        println!("the file is on {}", system::file_system(folder));
        let made = File::create(&image).and_then(|file| file.set_len(size_bytes));
        made.map_err(io_error(format!("make {}", image.display())))?;
        fio::fill(&Place::File(image.clone()), size_bytes, self.rules.stop)?;
        self.admit("godwit", Ours::start("godwit", &Setup::of(Store::File(image.clone())), Some(cores), self.rules.stop))?;
        self.contestants.extend(Raw::both(&image, size_bytes).map(|raw| -> Box<dyn Contestant> { Box::new(raw) }));
        let held = self.hold(&[READ_1, READ_32, READ_128, WRITE_32, LARGE_READ, LARGE_WRITE], results);
        let _ = fs::remove_file(&image);
        held
    }

    fn fairness(&mut self, results: &mut Results) -> Result<(), BenchError> {
        match fairness::run(self.rules) {
            Ok((samples, gauges)) => {
                results.samples.0.extend(samples.0);
                results.gauges.extend(gauges);
            }
            Err(ContestError::Interrupted) => return Err(ContestError::Interrupted.into()),
            Err(error) => self.broke("godwit", &error),
        }
        Ok(())
    }

    fn scaling(&mut self, results: &mut Results) -> Result<(), BenchError> {
        match scaling::run(self.rules) {
            Ok(points) => {
                results.gauges.extend(points.gauges());
                results.scaling = points;
            }
            Err(ContestError::Interrupted) => return Err(ContestError::Interrupted.into()),
            Err(error) => self.broke("godwit", &error),
        }
        Ok(())
    }
}
