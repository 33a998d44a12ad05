//! What was measured in each run, and ratios of it.
//!
//! A ratio is the median of the ratios within each round, for a machine drifts more between rounds than within one; its spread is from the
//! least of these to the greatest.

use std::fmt;

use clap::ValueEnum;
use godwit_initiator::demo::fio::WORKLOADS;

use super::case::Case;
use super::statistics::{Runs, median};

/// A part of the bench: what is in one is measured in alternation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// fio, NBD, and what there is behind it
    Chain,
    /// The same, everything on one core
    OneCore,
    /// Without NBD: `godwit bench` and a target, one core each, beside SPDK and the bare framing over a socket
    Direct,
    /// A file past the page cache: `godwit bench` and a target beside io_uring and libaio
    File,
    /// A reader beside a writer, and admin commands under load
    Fairness,
    /// Connections, depths, sizes and namespaces, few and many
    Scaling,
}

impl Section {
    /// Every section, in the order in which they run.
    pub const ALL: [Self; 6] = [Self::Chain, Self::OneCore, Self::Direct, Self::File, Self::Fairness, Self::Scaling];

    /// Its name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::OneCore => "one-core",
            Self::Direct => "direct",
            Self::File => "file",
            Self::Fairness => "fairness",
            Self::Scaling => "scaling",
        }
    }

    /// The section of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.name() == name)
    }

    /// Its heading.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Chain => "fio over NBD",
            Self::OneCore => "fio over NBD, all on one core",
            Self::Direct => "without NBD, memory, one core each",
            Self::File => "a file past the page cache",
            Self::Fairness => "beside others",
            Self::Scaling => "few and many",
        }
    }
}

/// What one run has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Requests a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median latency, where it is known.
    pub p50_us: Option<f64>,
    /// 99th percentile of the latency, where it is known.
    pub p99_us: Option<f64>,
    /// Processor time of all processes but fio for each request, in microseconds, where it is known.
    pub cpu_us: Option<f64>,
}

/// One of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// [`Figures::iops`].
    Iops,
    /// [`Figures::bytes_per_second`].
    Bytes,
    /// [`Figures::mean_us`].
    Mean,
    /// [`Figures::p99_us`].
    P99,
    /// [`Figures::cpu_us`].
    Cpu,
}

impl Figure {
    /// Of a run, if it has it.
    pub fn of(self, figures: &Figures) -> Option<f64> {
        match self {
            Self::Iops => Some(figures.iops),
            Self::Bytes => Some(figures.bytes_per_second),
            Self::Mean => Some(figures.mean_us),
            Self::P99 => figures.p99_us,
            Self::Cpu => figures.cpu_us,
        }
    }

    const fn is_better_when_more(self) -> bool {
        matches!(self, Self::Iops | Self::Bytes)
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iops => "IOPS",
            Self::Bytes => "bytes/s",
            Self::Mean => "mean latency",
            Self::P99 => "p99 latency",
            Self::Cpu => "CPU per I/O",
        })
    }
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Where.
    pub section: Section,
    /// What was measured.
    pub subject: &'static str,
    /// What was asked of it.
    pub case: Case,
    /// From 1.
    pub round: u32,
    /// What it has come to.
    pub figures: Figures,
}

/// A median with its spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub most: f64,
    /// Of how many.
    pub count: usize,
}

impl Spread {
    /// Of values; nothing of none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let fold = |start, pick: fn(f64, f64) -> f64| values.iter().copied().fold(start, pick);
        let median = median(values.to_vec())?;
        Some(Self { median, least: fold(f64::INFINITY, f64::min), most: fold(f64::NEG_INFINITY, f64::max), count: values.len() })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2}-{:.2})", self.median, self.least, self.most)
    }
}

/// Every run.
#[derive(Clone, Debug, Default)]
pub struct Samples(pub Vec<Sample>);

impl Samples {
    /// The runs of the chains, as samples.
    pub fn of_chains(runs: &Runs) -> Self {
        let sample = |run: &super::statistics::Run| Sample {
            section: Section::Chain,
            subject: run.system.name,
            case: Case::from(&WORKLOADS[run.workload]),
            round: run.round,
            figures: Figures::from(&run.measured).with_cpu(run.cpu_us),
        };
        Self(runs.0.iter().map(sample).collect())
    }

    /// Median of a figure over the rounds.
    pub fn median(&self, section: Section, subject: &str, case: Case, figure: Figure) -> Option<f64> {
        median(self.of(section, subject, case).filter_map(|sample| figure.of(&sample.figures)).collect())
    }

    /// One figure of ours divided by a peer's.
    pub fn ratio(&self, section: Section, [ours, peer]: [&str; 2], case: Case, figure: Figure) -> Option<Spread> {
        let pairs = self.of(section, ours, case).filter_map(|mine| {
            let theirs = self.of(section, peer, case).find(|sample| sample.round == mine.round)?;
            let (mine, theirs) = figure.of(&mine.figures).zip(figure.of(&theirs.figures))?;
            (theirs > 0.0).then(|| mine / theirs)
        });
        Spread::of(&pairs.collect::<Vec<_>>())
    }

    /// The best of some peers in a figure.
    pub fn best(&self, section: Section, peers: &[&'static str], case: Case, figure: Figure) -> Option<&'static str> {
        let measured = peers.iter().filter_map(|&peer| Some((peer, self.median(section, peer, case, figure)?)));
        let best = if figure.is_better_when_more() {
            measured.max_by(|(_, one), (_, other)| one.total_cmp(other))
        } else {
            measured.min_by(|(_, one), (_, other)| one.total_cmp(other))
        };
        best.map(|(peer, _)| peer)
    }

    /// The subjects of a section, in the order in which they came.
    pub fn subjects(&self, section: Section) -> Vec<&'static str> {
        let mut subjects = Vec::new();
        for sample in self.0.iter().filter(|sample| sample.section == section) {
            if !subjects.contains(&sample.subject) {
                subjects.push(sample.subject);
            }
        }
        subjects
    }

    /// The cases of a section, in the order in which they came.
    pub fn cases(&self, section: Section) -> Vec<Case> {
        let mut cases = Vec::new();
        for sample in self.0.iter().filter(|sample| sample.section == section) {
            if !cases.contains(&sample.case) {
                cases.push(sample.case);
            }
        }
        cases
    }

    fn of<'a>(&'a self, section: Section, subject: &'a str, case: Case) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |sample| sample.section == section && sample.subject == subject && sample.case == case)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::case::{READ_1, READ_32};
    use super::*;

    pub(in super::super) fn sample(section: Section, subject: &'static str, case: Case, round: u32, iops: f64) -> Sample {
        let figures =
            Figures { iops, bytes_per_second: iops * 4096.0, mean_us: 1e6 / iops, cpu_us: Some(1000.0 / iops), ..Figures::default() };
        Sample { section, subject, case, round, figures }
    }

    fn direct(subject: &'static str, round: u32, iops: f64) -> Sample {
        sample(Section::Direct, subject, READ_32, round, iops)
    }

    #[test]
    fn a_ratio_pairs_the_runs_of_a_round_and_has_a_spread() {
        // The machine is twice as fast in round 2.
        let samples = Samples(vec![
            direct("a", 1, 150.0),
            direct("b", 1, 100.0),
            direct("b", 2, 200.0),
            direct("a", 2, 320.0),
            direct("a", 3, 140.0),
            direct("b", 3, 100.0),
            direct("a", 4, 999.0),
        ]);
        let ratio = samples.ratio(Section::Direct, ["a", "b"], READ_32, Figure::Iops).unwrap();
        assert_eq!((ratio.median, ratio.least, ratio.most, ratio.count), (1.5, 1.4, 1.6, 3));
        assert_eq!(ratio.to_string(), "1.50 (1.40-1.60)");
        assert_eq!(samples.ratio(Section::File, ["a", "b"], READ_32, Figure::Iops), None);
        assert_eq!(samples.ratio(Section::Direct, ["a", "b"], READ_1, Figure::Iops), None);
        assert_eq!(samples.ratio(Section::Direct, ["a", "b"], READ_32, Figure::P99), None);
    }

    #[test]
    fn the_best_has_the_most_requests_and_the_least_latency() {
        let samples = Samples(vec![direct("slow", 1, 10.0), direct("fast", 1, 20.0), direct("middle", 1, 15.0)]);
        for figure in [Figure::Iops, Figure::Bytes, Figure::Mean, Figure::Cpu] {
            assert_eq!(samples.best(Section::Direct, &["slow", "fast", "middle", "none"], READ_32, figure), Some("fast"));
        }
        assert_eq!(samples.best(Section::Direct, &["none"], READ_32, Figure::Iops), None);
    }

    #[test]
    fn sections_have_the_names_that_the_command_line_takes() {
        for section in Section::ALL {
            assert_eq!(Section::named(section.name()), Some(section));
            assert_eq!(section.to_possible_value().unwrap().get_name(), section.name());
        }
    }
}
