//! The bench: ours and each peer that this machine has, in alternation within one run, and the bars that ours has to reach.
//!
//! A machine that others share drifts by tens of per cent within minutes, so only ratios within one run mean anything. What is compared is in one
//! [`Section`], and runs one right after the other there; sections run one after the other.

pub mod bars;
pub mod case;
pub mod chain;
pub mod contest;
pub mod cores;
pub mod fairness;
pub mod floor;
pub mod gauge;
pub mod machine;
pub mod nbdkit;
pub mod options;
pub mod ours;
pub mod outcome;
pub mod process;
pub mod report;
pub mod sample;
pub mod scaling;
pub mod sections;
pub mod spdk;
pub mod stage;
pub mod staged;
pub mod statistics;
pub mod system;
pub mod table;
pub mod verdict;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use godwit_initiator::demo::fio::{self, FioError};

pub use options::BenchOptions;

use contest::ContestError;
use machine::Machine;
use outcome::{Fate, Results};
use sample::Section;
use stage::StageError;

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
/// When it was interrupted, when nothing can run, and, after the report, when something that could run broke. Everything that was started is
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
    if let Some(warning) = machine.warning() {
        println!("{warning}");
    }
    let results = measure(options, &stop).inspect_err(|_| remove_if_empty(options.json.as_deref()))?;
    print!("{}", table::render(&results));
    if let Some(path) = &options.json {
        let text = format!("{:#}\n", report::render(&machine, &results));
        fs::write(path, text).map_err(io_error(format!("write {}", path.display())))?;
        println!("\nevery run: {}", path.display());
    }
    check_failures(&results)
}

/// Runs the sections that were asked for, one after the other.
fn measure(options: &BenchOptions, stop: &AtomicBool) -> Result<Results, BenchError> {
    let mut results = Results::new(options);
    for section in Section::ALL {
        if !options.asks_for(section) {
            println!("not asked for, not measured: {} ({})", section.name(), section.title());
            continue;
        }
        println!("== {} ({})", section.name(), section.title());
        match sections::run(section, options, stop, &mut results) {
            Ok(()) => {}
            Err(BenchError::Nothing) => println!("nothing to measure in {}", section.name()),
            Err(error) => return Err(error),
        }
    }
    for absence in &results.absences {
        println!("not measured in {}: {} ({})", absence.section.name(), absence.subject, absence.reason);
    }
    if results.has_any() { Ok(results) } else { Err(check_failures(&results).err().unwrap_or(BenchError::Nothing)) }
}

fn check_failures(results: &Results) -> Result<(), BenchError> {
    let chains = results.chains.fates.iter().filter_map(|(system, fate)| match fate {
        Fate::Failed(reason) => Some(format!("{} ({reason})", system.name)),
        _ => None,
    });
    let others = results.absences.iter().filter(|absence| absence.is_failure);
    let others = others.map(|absence| format!("{} in {} ({})", absence.subject, absence.section.name(), absence.reason));
    let failures: Vec<String> = chains.chain(others).collect();
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

impl From<ContestError> for BenchError {
    fn from(error: ContestError) -> Self {
        match error {
            ContestError::Interrupted => Self::Fio(FioError::Interrupted),
            ContestError::Failed(words) => Self::Failed(words),
        }
    }
}
