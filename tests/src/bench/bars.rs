//! The bars: what is to hold, what was measured, and whether it holds. What was not measured is not met.

use std::fmt;

use serde_json::{Value, json};

use super::case::{AT_A_RATE, AT_AN_EVEN_RATE, Case, LARGE_READ, LARGE_WRITE, READ_1, READ_32, READ_128, WRITE_32, WRITE_128};
use super::gauge::{self, Gauge};
use super::sample::{Figure, Samples, Section, Spread};

/// How much is enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Enough {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Enough {
    fn is(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bar) => value >= bar,
            Self::AtMost(bar) => value <= bar,
        }
    }
}

impl fmt::Display for Enough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bar) => write!(f, ">= {bar}"),
            Self::AtMost(bar) => write!(f, "<= {bar}"),
        }
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug)]
enum Measure {
    /// A figure of ours divided by that of the best of some peers.
    Ratio { section: Section, ours: &'static str, peers: &'static [&'static str], case: Case, figure: Figure },
    /// A quantity of ours.
    Gauge(gauge::Name),
}

/// One bar.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    measure: Measure,
    enough: Enough,
}

/// What a bar has come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// What is compared, in words.
    pub name: String,
    /// What would be enough, with its unit.
    pub bar: String,
    /// What was measured, where it was.
    pub measured: Option<Spread>,
    /// Whether that is enough.
    pub is_met: bool,
}

impl Judgement {
    /// In a word.
    pub fn verdict(&self) -> &'static str {
        match (&self.measured, self.is_met) {
            (None, _) => "not measured",
            (Some(_), true) => "met",
            (Some(_), false) => "missed",
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let spread = self.measured.as_ref();
        json!({
            "name": self.name,
            "bar": self.bar,
            "measured": spread.map(|spread| spread.median),
            "least": spread.map(|spread| spread.least),
            "most": spread.map(|spread| spread.most),
            "rounds": spread.map(|spread| spread.count),
            "verdict": self.verdict(),
        })
    }
}

const SPDK: &[&str] = &["spdk"];
const FLOOR: &[&str] = &["floor-tcp"];
const TWO_HOPS: &[&str] = &["nbdkit-2hop-memory", "qemu-2hop-memory"];
const NBDKIT_TWO_HOPS: &[&str] = &["nbdkit-2hop-memory"];
const NBDKIT_TCP: &[&str] = &["nbdkit-tcp-memory"];

/// Every bar, in the order in which they are printed.
pub const BARS: [Bar; 33] = [
    direct(SPDK, READ_1, Figure::Mean, Enough::AtMost(0.9)),
    direct(SPDK, READ_32, Figure::Iops, Enough::AtLeast(1.2)),
    direct(SPDK, READ_128, Figure::Iops, Enough::AtLeast(1.25)),
    direct(SPDK, WRITE_32, Figure::Iops, Enough::AtLeast(1.2)),
    direct(SPDK, WRITE_128, Figure::Iops, Enough::AtLeast(1.25)),
    direct(SPDK, LARGE_READ, Figure::Bytes, Enough::AtLeast(1.1)),
    direct(SPDK, LARGE_WRITE, Figure::Bytes, Enough::AtLeast(1.1)),
    direct(SPDK, AT_A_RATE, Figure::Cpu, Enough::AtMost(0.3)),
    direct(SPDK, AT_AN_EVEN_RATE, Figure::Cpu, Enough::AtMost(0.3)),
    direct(FLOOR, READ_1, Figure::Mean, Enough::AtMost(1.2)),
    direct(FLOOR, READ_32, Figure::Iops, Enough::AtLeast(0.85)),
    direct(FLOOR, READ_128, Figure::Iops, Enough::AtLeast(0.85)),
    crc(READ_32, Figure::Iops),
    crc(LARGE_READ, Figure::Bytes),
    crc(LARGE_WRITE, Figure::Bytes),
    chain(TWO_HOPS, READ_32, Figure::Iops, Enough::AtLeast(3.0)),
    chain(TWO_HOPS, WRITE_32, Figure::Iops, Enough::AtLeast(3.0)),
    chain(TWO_HOPS, READ_1, Figure::Mean, Enough::AtMost(0.5)),
    chain(TWO_HOPS, LARGE_READ, Figure::Bytes, Enough::AtLeast(2.0)),
    chain(TWO_HOPS, LARGE_WRITE, Figure::Bytes, Enough::AtLeast(2.0)),
    chain(NBDKIT_TCP, READ_32, Figure::Iops, Enough::AtLeast(1.0)),
    ratio(Section::OneCore, "godwit-memory", NBDKIT_TWO_HOPS, READ_1, Figure::Mean, Enough::AtMost(0.8)),
    ratio(Section::OneCore, "godwit-memory", NBDKIT_TWO_HOPS, READ_32, Figure::Iops, Enough::AtLeast(2.0)),
    ratio(Section::File, "godwit", &["io_uring"], READ_32, Figure::Iops, Enough::AtLeast(0.8)),
    ratio(Section::Fairness, BESIDE, &[ALONE], READ_1, Figure::P99, Enough::AtMost(8.0)),
    gauge(gauge::Name::KeepAliveWorst, Enough::AtMost(100.0)),
    gauge(gauge::Name::StatusWorst, Enough::AtMost(100.0)),
    gauge(gauge::Name::IdleConnectionMemory, Enough::AtMost(100.0)),
    gauge(gauge::Name::IdleConnectionsCpu, Enough::AtMost(1.0)),
    gauge(gauge::Name::CostBesideIdle, Enough::AtMost(1.1)),
    gauge(gauge::Name::CostOfNamespaces, Enough::AtMost(1.1)),
    gauge(gauge::Name::CostOfConnections, Enough::AtMost(1.5)),
    gauge(gauge::Name::CostOfDepth, Enough::AtMost(1.1)),
];

/// The reader of the section on fairness, alone and beside a writer.
pub const ALONE: &str = "reader-alone";
/// See [`ALONE`].
pub const BESIDE: &str = "reader-beside";

const fn ratio(section: Section, ours: &'static str, peers: &'static [&'static str], case: Case, figure: Figure, enough: Enough) -> Bar {
    Bar { measure: Measure::Ratio { section, ours, peers, case, figure }, enough }
}

const fn direct(peers: &'static [&'static str], case: Case, figure: Figure, enough: Enough) -> Bar {
    ratio(Section::Direct, "godwit", peers, case, figure, enough)
}

const fn crc(case: Case, figure: Figure) -> Bar {
    ratio(Section::Direct, "godwit-crc", &["godwit"], case, figure, Enough::AtLeast(0.9))
}

const fn chain(peers: &'static [&'static str], case: Case, figure: Figure, enough: Enough) -> Bar {
    ratio(Section::Chain, "godwit-memory", peers, case, figure, enough)
}

const fn gauge(name: gauge::Name, enough: Enough) -> Bar {
    Bar { measure: Measure::Gauge(name), enough }
}

impl Bar {
    /// Whether it belongs to a section.
    pub fn is_of(&self, section: Section) -> bool {
        match self.measure {
            Measure::Ratio { section: of, .. } => of == section,
            Measure::Gauge(name) => name.section() == section,
        }
    }

    /// What it has come to.
    pub fn judge(&self, samples: &Samples, gauges: &[Gauge]) -> Judgement {
        let (name, unit, measured) = match self.measure {
            Measure::Ratio { section, ours, peers, case, figure } => {
                let best = samples.best(section, peers, case, figure);
                let measured = best.and_then(|peer| samples.ratio(section, [ours, peer], case, figure));
                let against = best.map_or_else(|| peers.join(" or "), str::to_owned);
                (format!("{}: {ours} against {against}, {case}: {figure}", section.name()), "x", measured)
            }
            Measure::Gauge(name) => {
                let measured = gauges.iter().find(|gauge| gauge.name == name).and_then(|gauge| Spread::of(&gauge.values));
                (format!("{}: {name}", name.section().name()), name.unit(), measured)
            }
        };
        let is_met = measured.is_some_and(|spread| self.enough.is(spread.median));
        Judgement { name, bar: format!("{} {unit}", self.enough), measured, is_met }
    }
}

/// What all of them have come to.
pub fn judge(samples: &Samples, gauges: &[Gauge]) -> Vec<Judgement> {
    BARS.iter().map(|bar| bar.judge(samples, gauges)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::sample;
    use super::*;

    fn judged(bar: Bar, samples: Vec<super::super::sample::Sample>, gauges: &[Gauge]) -> (Option<f64>, &'static str) {
        let judgement = bar.judge(&Samples(samples), gauges);
        (judgement.measured.as_ref().map(|spread| spread.median), judgement.verdict())
    }

    #[test]
    fn exactly_enough_is_enough() {
        let both = |ours| {
            let of = |subject, iops| sample(Section::Direct, subject, READ_32, 1, iops);
            vec![of("godwit", ours), of("spdk", 100.0)]
        };
        let bar = direct(SPDK, READ_32, Figure::Iops, Enough::AtLeast(1.5));
        assert_eq!(judged(bar, both(150.0), &[]), (Some(1.5), "met"));
        assert_eq!(judged(bar, both(149.0), &[]), (Some(1.49), "missed"));
        let bar = direct(SPDK, READ_32, Figure::Iops, Enough::AtMost(1.5));
        assert_eq!(judged(bar, both(150.0), &[]).1, "met");
        assert_eq!(judged(bar, both(151.0), &[]).1, "missed");
    }

    #[test]
    fn without_the_peer_a_bar_is_not_met() {
        let bar = direct(SPDK, READ_32, Figure::Iops, Enough::AtMost(1e9));
        let alone = vec![sample(Section::Direct, "godwit", READ_32, 1, 100.0)];
        assert_eq!(judged(bar, alone.clone(), &[]), (None, "not measured"));
        let judgement = bar.judge(&Samples(alone), &[]);
        assert!(!judgement.is_met);
        assert_eq!(judgement.json()["measured"], Value::Null);
        assert_eq!(judgement.name, "direct: godwit against spdk, 4 KiB random read, depth 32: IOPS");
    }

    #[test]
    fn the_best_of_the_peers_is_the_one_to_beat() {
        let of = |subject, iops| sample(Section::Chain, subject, READ_32, 1, iops);
        let samples = vec![of("godwit-memory", 300.0), of("nbdkit-2hop-memory", 100.0), of("qemu-2hop-memory", 200.0)];
        let judgement = chain(TWO_HOPS, READ_32, Figure::Iops, Enough::AtLeast(3.0)).judge(&Samples(samples), &[]);
        assert_eq!((judgement.measured.as_ref().unwrap().median, judgement.verdict()), (1.5, "missed"));
        assert!(judgement.name.contains("against qemu-2hop-memory"), "{}", judgement.name);
    }

    #[test]
    fn quantities_are_judged_by_their_median() {
        let bar = gauge(gauge::Name::KeepAliveWorst, Enough::AtMost(100.0));
        assert_eq!(judged(bar, vec![], &[]), (None, "not measured"));
        let gauges = [Gauge { name: gauge::Name::KeepAliveWorst, values: vec![90.0, 300.0, 100.0] }];
        assert_eq!(judged(bar, vec![], &gauges), (Some(100.0), "met"));
        assert_eq!(bar.judge(&Samples::default(), &gauges).bar, "<= 100 ms");
    }

    #[test]
    fn each_section_has_a_bar_and_each_bar_another_name() {
        assert!(Section::ALL.into_iter().all(|section| BARS.iter().any(|bar| bar.is_of(section))));
        let mut names: Vec<_> = judge(&Samples::default(), &[]).into_iter().map(|judgement| judgement.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), BARS.len());
    }
}
