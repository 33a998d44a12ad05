//! What became of each system, and everything that was measured.

use std::time::Duration;

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

/// The whole result.
#[derive(Clone, Debug)]
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
