//! The floor that ours has to reach, and whether it does.

use std::fmt;

use godwit_initiator::demo::fio::{WORKLOADS, Workload};

use super::statistics::{Comparison, Runs};
use super::system::{Backend, Class};

/// What small requests at depth are to gain over the best chain of two hops.
pub const SMALL_AT_DEPTH: f64 = 1.5;

/// What has to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// In every workload at least the requests per second of the best chain of two hops.
    NotSlower,
    /// At least [`SMALL_AT_DEPTH`] times its requests per second in small requests at depth.
    SmallAtDepth,
}

impl Demand {
    /// The ratio that is enough.
    pub fn enough(self) -> f64 {
        match self {
            Self::NotSlower => 1.0,
            Self::SmallAtDepth => SMALL_AT_DEPTH,
        }
    }

    fn concerns(self, workload: &Workload) -> bool {
        match self {
            Self::NotSlower => true,
            Self::SmallAtDepth => workload.block_bytes == 4096 && workload.depth == 32,
        }
    }
}

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSlower => f.write_str("not slower than the best two-hop chain in any workload"),
            Self::SmallAtDepth => write!(f, "at least {SMALL_AT_DEPTH} x its IOPS in 4 KiB random read and write at depth 32"),
        }
    }
}

/// How a demand was met.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Each figure is enough.
    Pass(Vec<(usize, Comparison)>),
    /// These figures are not enough.
    Miss(Vec<(usize, Comparison)>),
    /// In some workload ours or every chain of two hops was not measured.
    NotMeasured,
}

impl Verdict {
    /// One word for it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Pass(_) => "PASS",
            Self::Miss(_) => "MISS",
            Self::NotMeasured => "NOT MEASURED",
        }
    }

    /// The figures behind it, by workload: all of a pass, those that are not enough of a miss.
    pub fn figures(&self) -> &[(usize, Comparison)] {
        match self {
            Self::Pass(figures) | Self::Miss(figures) => figures,
            Self::NotMeasured => &[],
        }
    }
}

/// Judges a backend.
pub fn judge(runs: &Runs, backend: Backend, demand: Demand) -> Verdict {
    weigh(demand, |workload| runs.compare(backend, Class::TwoHops, workload))
}

fn weigh(demand: Demand, compare: impl Fn(usize) -> Option<Comparison>) -> Verdict {
    let concerned = (0..WORKLOADS.len()).filter(|&workload| demand.concerns(&WORKLOADS[workload]));
    let figures: Option<Vec<_>> = concerned.map(|workload| Some((workload, compare(workload)?))).collect();
    let Some(figures) = figures else { return Verdict::NotMeasured };
    let misses: Vec<_> = figures.iter().copied().filter(|(_, comparison)| comparison.ratio < demand.enough()).collect();
    if misses.is_empty() { Verdict::Pass(figures) } else { Verdict::Miss(misses) }
}

/// The line that is printed.
pub fn line(backend: Backend, demand: Demand, verdict: &Verdict) -> String {
    let figures: Vec<String> = verdict
        .figures()
        .iter()
        .map(|(workload, comparison)| format!("{}: {:.2} x {}", WORKLOADS[*workload].name, comparison.ratio, comparison.peer.name))
        .collect();
    let figures = if figures.is_empty() { String::new() } else { format!(" ({})", figures.join("; ")) };
    format!("{}: {demand}: {}{figures}", backend.name(), verdict.word())
}

#[cfg(test)]
mod tests {
    use super::super::system::System;
    use super::*;

    fn against(ratio: f64) -> Option<Comparison> {
        Some(Comparison { peer: System::named("nbdkit-2hop-memory").unwrap(), ratio })
    }

    fn workloads(verdict: &Verdict) -> Vec<usize> {
        verdict.figures().iter().map(|(workload, _)| *workload).collect()
    }

    #[test]
    fn equal_is_not_slower() {
        let verdict = weigh(Demand::NotSlower, |_| against(1.0));
        assert_eq!((verdict.word(), workloads(&verdict)), ("PASS", vec![0, 1, 2, 3, 4, 5]));
    }

    #[test]
    fn a_miss_shows_the_workloads_that_are_too_slow() {
        let verdict = weigh(Demand::NotSlower, |workload| against(if workload == 4 { 0.999 } else { 3.0 }));
        assert_eq!((verdict.word(), workloads(&verdict)), ("MISS", vec![4]));
    }

    #[test]
    fn small_requests_at_depth_need_one_and_a_half_times_and_nothing_else_counts() {
        let verdict = weigh(Demand::SmallAtDepth, |workload| against(if workload == 2 || workload == 3 { 1.5 } else { 0.1 }));
        assert_eq!((verdict.word(), workloads(&verdict)), ("PASS", vec![2, 3]));
        let verdict = weigh(Demand::SmallAtDepth, |workload| against(if workload == 3 { 1.49 } else { 9.0 }));
        assert_eq!((verdict.word(), workloads(&verdict)), ("MISS", vec![3]));
    }

    #[test]
    fn one_workload_without_figures_leaves_no_verdict() {
        let verdict = weigh(Demand::NotSlower, |workload| if workload == 5 { None } else { against(2.0) });
        assert_eq!(verdict, Verdict::NotMeasured);
    }

    #[test]
    fn the_line_says_what_was_missed_and_by_how_much() {
        let verdict = weigh(Demand::SmallAtDepth, |workload| against(if workload == 3 { 1.25 } else { 9.0 }));
        assert_eq!(
            line(Backend::Memory, Demand::SmallAtDepth, &verdict),
            "memory: at least 1.5 x its IOPS in 4 KiB random read and write at depth 32: \
             MISS (4 KiB random write, depth 32: 1.25 x nbdkit-2hop-memory)"
        );
        assert_eq!(
            line(Backend::Tmpfs, Demand::NotSlower, &Verdict::NotMeasured),
            "tmpfs file: not slower than the best two-hop chain in any workload: NOT MEASURED"
        );
    }
}
