//! Few and many: connections, requests under way, bytes of a request, idle connections, namespaces; what a request costs then, and what memory the
//! target has. Ours alone: there is no peer in it.

use std::time::{Duration, Instant};

use godwit_initiator::bench::CaseReport;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use super::contest::{ContestError, Rules};
use super::gauge::{Gauge, Name};
use super::ours::{Setup, Store, Target};
use super::statistics::median;
use crate::daemon;
use crate::hostile::Bystander;

/// Bytes of the namespace that is read.
const NAMESPACE_BYTES: u64 = 64 << 20;

/// Requests under way in all while connections grow in number.
const DEPTH_IN_ALL: u32 = 64;

const CONNECTIONS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const DEPTHS: [u32; 9] = [1, 4, 16, 32, 64, 128, 256, 512, 1023];
const SIZES: [&str; 7] = ["512", "4KiB", "16KiB", "64KiB", "128KiB", "256KiB", "1MiB"];
const IDLE: [usize; 3] = [0, 100, 1000];
const NAMESPACES: [usize; 2] = [1, 256];

/// Bytes of each of many namespaces.
const SMALL_BYTES: u64 = 1 << 20;

/// Entries of an idle I/O queue: what hosts usually ask for.
const IDLE_ENTRIES: u32 = 128;

/// How long the target is watched while nothing happens.
const WATCH: Duration = Duration::from_secs(5);

/// Descriptors that the most idle connections need, at either end.
const DESCRIPTORS: u64 = 2048;

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Connections, with the same depth in all.
    Connections,
    /// Requests under way.
    Depth,
    /// Bytes of a request.
    Size,
    /// Connections without requests, beside one with them.
    Idle,
    /// Namespaces, of which one is read.
    Namespaces,
}

impl Question {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections, 64 requests under way in all",
            Self::Depth => "depth",
            Self::Size => "bytes of a request, depth 8",
            Self::Idle => "idle connections beside one at depth 32",
            Self::Namespaces => "namespaces, one read at depth 32",
        }
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Point {
    /// What grows.
    pub question: Question,
    /// How far.
    pub value: String,
    /// What was measured.
    pub report: CaseReport,
    /// Memory of the target that is resident after the run, in KiB.
    pub resident_kib: u64,
    /// The target's processor time while nothing happened, in per cent of a core.
    pub idle_cpu_per_cent: Option<f64>,
}

/// Every run.
#[derive(Clone, Debug, Default)]
pub struct Points(pub Vec<Point>);

/// The medians of a row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What grows.
    pub question: Question,
    /// How far.
    pub value: String,
    /// Requests a second.
    pub iops: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Its 99th percentile.
    pub p99_us: f64,
    /// Processor time of `godwit bench` for each request, in microseconds.
    pub cpu_us: Option<f64>,
    /// Processor time of the target.
    pub target_cpu_us: Option<f64>,
    /// Memory of the target, in KiB.
    pub resident_kib: f64,
    /// Its processor time while nothing happened, in per cent of a core.
    pub idle_cpu_per_cent: Option<f64>,
}

impl Row {
    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "question": self.question.name(),
            "value": self.value,
            "iops": self.iops,
            "mean_us": self.mean_us,
            "p99_us": self.p99_us,
            "cpu_us_per_io": self.cpu_us,
            "target_cpu_us_per_io": self.target_cpu_us,
            "target_resident_kib": self.resident_kib,
            "target_idle_cpu_per_cent": self.idle_cpu_per_cent,
        })
    }
}

impl Points {
    /// The rows of the table, in order.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for point in &self.0 {
            if rows.iter().any(|row| row.question == point.question && row.value == point.value) {
                continue;
            }
            let of = |figure: fn(&Point) -> Option<f64>| self.median(point.question, &point.value, figure);
            rows.push(Row {
                question: point.question,
                value: point.value.clone(),
                iops: of(|point| Some(point.report.iops)).unwrap_or_default(),
                mean_us: of(|point| Some(point.report.latency.mean_us)).unwrap_or_default(),
                p99_us: of(|point| Some(point.report.latency.p99_us)).unwrap_or_default(),
                cpu_us: of(|point| point.report.cpu_us_per_io),
                target_cpu_us: of(|point| point.report.target_cpu_us_per_io),
                resident_kib: of(resident).unwrap_or_default(),
                idle_cpu_per_cent: of(|point| point.idle_cpu_per_cent),
            });
        }
        rows
    }

    fn median(&self, question: Question, value: &str, figure: fn(&Point) -> Option<f64>) -> Option<f64> {
        median(self.of(question, value).filter_map(figure).collect())
    }

    fn of<'a>(&'a self, question: Question, value: &'a str) -> impl Iterator<Item = &'a Point> {
        self.0.iter().filter(move |point| point.question == question && point.value == value)
    }

    /// What the most costs the target for each request, divided by what the least does, in each round.
    fn growth(&self, question: Question, [most, least]: [&str; 2]) -> Vec<f64> {
        let cost = |point: &Point| point.report.target_cpu_us_per_io.filter(|us| *us > 0.0);
        let pairs = self.of(question, most).zip(self.of(question, least));
        pairs.filter_map(|(most, least)| Some(cost(most)? / cost(least)?)).collect()
    }

    /// The quantities that the bars ask for.
    pub fn gauges(&self) -> Vec<Gauge> {
        let idle = self.of(Question::Idle, "1000").filter_map(|point| point.idle_cpu_per_cent).collect();
        let values = [
            (Name::IdleConnectionMemory, self.memory_of_each()),
            (Name::IdleConnectionsCpu, idle),
            (Name::CostBesideIdle, self.growth(Question::Idle, ["1000", "0"])),
            (Name::CostOfNamespaces, self.growth(Question::Namespaces, ["256", "1"])),
            (Name::CostOfConnections, self.growth(Question::Connections, ["64", "1"])),
            (Name::CostOfDepth, self.growth(Question::Depth, ["1023", "32"])),
        ];
        values.into_iter().filter(|(_, values)| !values.is_empty()).map(|(name, values)| Gauge { name, values }).collect()
    }

    /// Memory of each of a thousand idle connections, in KiB: what the target has more than without any.
    #[expect(clippy::cast_precision_loss, reason = "sizes of memory are small")]
    fn memory_of_each(&self) -> Vec<f64> {
        let pairs = self.of(Question::Idle, "1000").zip(self.of(Question::Idle, "0"));
        pairs.map(|(many, none)| many.resident_kib.saturating_sub(none.resident_kib) as f64 / 1000.0).collect()
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::unnecessary_wraps,
    reason = "sizes of memory are small; a figure may be missing, this one is not"
)]
fn resident(point: &Point) -> Option<f64> {
    Some(point.resident_kib as f64)
}

/// Runs all questions, once a round.
///
/// # Errors
///
/// When something breaks, or the user does not want to wait.
pub fn run(rules: Rules<'_>) -> Result<Points, ContestError> {
    allow_descriptors()?;
    let mut points = Points::default();
    let setup = Setup { reactors: None, block_bytes: 512, ..Setup::of(Store::Memory(NAMESPACE_BYTES)) };
    for round in 1..=rules.rounds {
        eprintln!("scaling, round {round}");
        {
            let scene = Scene { target: Target::start(&setup, None)?, rules };
            scene.target.fill(1, rules.stop)?;
            for connections in CONNECTIONS {
                let arguments = format!("--bs 4KiB --queues {connections} --qd {}", (DEPTH_IN_ALL / connections).max(1));
                scene.ask(Question::Connections, &[connections.to_string()], &arguments, None, &mut points)?;
            }
            let depths = DEPTHS.map(|depth| depth.to_string());
            scene.ask(Question::Depth, &depths, &format!("--bs 4KiB --qd {}", depths.join(",")), None, &mut points)?;
            let sizes = SIZES.map(str::to_owned);
            scene.ask(Question::Size, &sizes, &format!("--qd 8 --bs {}", SIZES.join(",")), None, &mut points)?;
        }
        for connections in IDLE {
            idle(connections, rules, &mut points)?;
        }
        for count in NAMESPACES {
            let setup = Setup { reactors: None, stores: vec![Store::Memory(SMALL_BYTES); count], ..Setup::of(Store::Memory(0)) };
            let scene = Scene { target: Target::start(&setup, None)?, rules };
            scene.target.fill(1, rules.stop)?;
            scene.ask(Question::Namespaces, &[count.to_string()], "--bs 4KiB --qd 32", None, &mut points)?;
        }
    }
    Ok(points)
}

/// A target that is asked.
struct Scene<'a> {
    target: Target,
    rules: Rules<'a>,
}

impl Scene<'_> {
    /// Runs `godwit bench`, whose cases are so many values of a question.
    fn ask(
        &self,
        question: Question,
        values: &[String],
        arguments: &str,
        idle_cpu_per_cent: Option<f64>,
        points: &mut Points,
    ) -> Result<(), ContestError> {
        eprintln!("{}: {}", question.name(), values.join(", "));
        let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
        let time = self.rules.time;
        let cases = self.target.measure(1, &arguments, time, None, self.rules.stop)?;
        let resident_kib = self.target.process.resident_kib();
        let point =
            |(value, report): (&String, CaseReport)| Point { question, value: value.clone(), report, resident_kib, idle_cpu_per_cent };
        points.0.extend(values.iter().zip(cases).map(point));
        Ok(())
    }
}

/// A target with so many idle connections: what it does by itself, and what a request of another connection costs.
fn idle(connections: usize, rules: Rules<'_>, points: &mut Points) -> Result<(), ContestError> {
    // With CRC: bare hosts insist on it.
    let setup = Setup { crc: true, reactors: None, controllers: 2048, ..Setup::of(Store::Memory(NAMESPACE_BYTES)) };
    let scene = Scene { target: Target::start(&setup, None)?, rules };
    scene.target.fill(1, rules.stop)?;
    let connect = |number: usize| Bystander::connect(scene.target.address, daemon::NQN, IDLE_ENTRIES, number as u64 + 1);
    let hosts: Result<Vec<_>, _> = (0..connections / Bystander::CONNECTIONS).map(connect).collect();
    let mut hosts = hosts.map_err(|error| ContestError::of(&error))?;
    // Let what a connection starts with pass.
    std::thread::sleep(Duration::from_millis(500));
    let (begin, before) = (Instant::now(), scene.target.process.cpu_time());
    while begin.elapsed() < WATCH {
        if rules.stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(ContestError::Interrupted);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let used = scene.target.process.cpu_time().saturating_sub(before);
    let per_cent = 100.0 * used.as_secs_f64() / begin.elapsed().as_secs_f64();
    for host in &mut hosts {
        host.keep_alive().map_err(|error| ContestError::of(&error))?;
    }
    scene.ask(Question::Idle, &[connections.to_string()], "--bs 4KiB --qd 32", Some(per_cent), points)
}

/// Lets this process and what it starts have enough descriptors.
fn allow_descriptors() -> Result<(), ContestError> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|error| ContestError::of(&error))?;
    if soft >= DESCRIPTORS {
        return Ok(());
    }
    if hard < DESCRIPTORS {
        return Err(ContestError::Failed(format!(
            "{DESCRIPTORS} descriptors are needed, and the limit is {hard}: raise it with `ulimit -n`"
        )));
    }
    setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, hard).map_err(|error| ContestError::of(&error))
}

#[cfg(test)]
mod tests {
    use godwit_initiator::bench::{Histogram, Latency, Pattern};

    use super::*;

    fn point(question: Question, value: &str, target_cpu_us: f64, resident_kib: u64) -> Point {
        let report = CaseReport {
            rw: Pattern::RandRead,
            request_bytes: 4096,
            depth: 32,
            reads: 1,
            writes: 0,
            iops: 1e6 / target_cpu_us,
            bytes_per_second: 0.0,
            latency: Latency::from(&Histogram::default()),
            cpu_us_per_io: None,
            target_cpu_us_per_io: Some(target_cpu_us),
            checked_blocks: 0,
        };
        Point { question, value: value.to_owned(), report, resident_kib, idle_cpu_per_cent: Some(0.5) }
    }

    #[test]
    fn growth_pairs_the_runs_of_a_round_and_memory_is_what_came_on_top() {
        let mut points = Vec::new();
        for (many, none) in [(3.0, 2.0), (6.0, 5.0), (2.2, 2.0)] {
            points.extend([
                point(Question::Idle, "0", none, 100_000),
                point(Question::Idle, "100", 99.0, 1),
                point(Question::Idle, "1000", many, 140_000),
            ]);
        }
        let gauges = Points(points.clone()).gauges();
        let values = |name| gauges.iter().find(|gauge| gauge.name == name).map(|gauge| gauge.values.clone());
        assert_eq!(values(Name::CostBesideIdle), Some(vec![1.5, 1.2, 1.1]));
        assert_eq!(values(Name::IdleConnectionMemory), Some(vec![40.0; 3]));
        assert_eq!(values(Name::IdleConnectionsCpu), Some(vec![0.5; 3]));
        assert_eq!(values(Name::CostOfNamespaces), None);
        let rows = Points(points).rows();
        assert_eq!(rows.iter().map(|row| row.value.as_str()).collect::<Vec<_>>(), ["0", "100", "1000"]);
        assert_eq!((rows[2].target_cpu_us, rows[2].resident_kib), (Some(3.0), 140_000.0));
    }

    #[test]
    fn bars_ask_for_values_that_are_measured() {
        let all = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>();
        assert!(["1", "64"].iter().all(|value| all(&CONNECTIONS).contains(&(*value).to_owned())));
        assert!(["32", "1023"].iter().all(|value| all(&DEPTHS).contains(&(*value).to_owned())));
        assert!([0, 1000].iter().all(|value| IDLE.contains(value)) && [1, 256].iter().all(|value| NAMESPACES.contains(value)));
    }
}
