//! What became of each system, and everything that was measured.

use std::time::Duration;

use super::BenchOptions;
use super::contest::Absence;
use super::gauge::Gauge;
use super::sample::Samples;
use super::scaling::Points;
use super::statistics::{Run, Runs};
use super::system::System;

/// What became of a system.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// It ran to the end.
    Measured(Footprint),
    /// This machine cannot run it; why.
    Skipped(String),
    /// It was to run, and broke; why.
    Failed(String),
}

/// What the serving processes of a system need beside time in its runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Footprint {
    /// The most memory that they had resident, together; nothing where none serves.
    pub peak_resident_kib: Option<u64>,
    /// Per cent of one core while other systems were measured.
    pub idle_cpu_per_cent: Option<f64>,
}

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// fio over NBD.
    pub chains: Outcome,
    /// Every run that a bar may ask for, those of the chains among them.
    pub samples: Samples,
    /// Quantities that are no ratio to a peer.
    pub gauges: Vec<Gauge>,
    /// Few and many.
    pub scaling: Points,
    /// What was not measured outside the chains, and why.
    pub absences: Vec<Absence>,
    /// Time of each run.
    pub time: Duration,
    /// How often each case ran.
    pub rounds: u32,
    /// Bytes of each volume.
    pub size_bytes: u64,
}

impl Results {
    /// Nothing yet.
    pub fn new(options: &BenchOptions) -> Self {
        let (time, rounds, size_bytes) = (Duration::from_secs(options.seconds()), options.rounds(), options.size_bytes());
        Self { time, rounds, size_bytes, ..Self::default() }
    }

    /// Whether anything was measured.
    pub fn has_any(&self) -> bool {
        !(self.samples.0.is_empty() && self.scaling.0.is_empty())
    }
}

/// What the chains have come to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Each system that was asked for.
    pub fates: Vec<(System, Fate)>,
    /// Every run of the systems that ran to the end.
    pub runs: Runs,
    /// The runs of those that broke, before they did: they enter no figure and no verdict.
    pub broken: Vec<Run>,
    /// Time of each run.
    pub time: Duration,
    /// How often each workload ran on each system.
    pub rounds: u32,
    /// Size of each volume.
    pub size_bytes: u64,
}

impl Outcome {
    /// The footprint of a system that ran to the end.
    pub fn footprint(&self, system: System) -> Option<Footprint> {
        self.fates.iter().find_map(|(of, fate)| match fate {
            Fate::Measured(footprint) if *of == system => Some(*footprint),
            _ => None,
        })
    }
}
