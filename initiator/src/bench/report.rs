//! What was measured, as it is written to a file and read again for a comparison.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::histogram::Histogram;
use super::load::Pattern;

/// The version of the format: one that is not read any more gets another number.
const FORMAT: u32 = 1;

/// The points of a curve, of a million: closer together where the tail is.
const POINTS: [u32; 20] = [
    10_000, 100_000, 250_000, 500_000, 750_000, 900_000, 950_000, 980_000, 990_000, 995_000, 998_000, 999_000, 999_500, 999_800, 999_900,
    999_950, 999_980, 999_990, 999_995, 999_999,
];

/// A run: all its cases, and what it was run with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of the format.
    pub format: u32,
    /// What people call the run.
    pub name: String,
    /// What was measured: a URL of a target, or the URI of an NBD export.
    pub subject: String,
    /// Version of `godwit`.
    pub version: String,
    /// When it began, in seconds since 1970.
    pub unix_seconds: u64,
    /// Where it ran.
    pub machine: Machine,
    /// What was asked for.
    pub config: Config,
    /// What was measured, in order.
    pub cases: Vec<CaseReport>,
}

/// The machine of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of its processor.
    pub processor: String,
    /// Cores that the process may use.
    pub cores: usize,
    /// Release of its kernel.
    pub kernel: String,
}

/// What a run was asked for, and what it found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// I/O queues, or connections; each with a thread.
    pub queues: usize,
    /// Seconds of each case that count.
    pub time_seconds: f64,
    /// Seconds of each case before them.
    pub ramp_seconds: f64,
    /// Requests a second that were offered, of all queues; none is as many as can be.
    pub rate: Option<u64>,
    /// How many of them at a time, of each queue.
    #[serde(default = "one")]
    pub burst: u16,
    /// Of a hundred requests of a mixed load, how many were reads.
    pub read_percent: u8,
    /// First byte of the range.
    pub offset_bytes: u64,
    /// Bytes of the range.
    pub size_bytes: u64,
    /// Unit of the volume.
    pub block_bytes: u32,
    /// Where the random numbers began.
    pub seed: u64,
    /// Whether data were checked, which costs time.
    pub verify: bool,
    /// Whether the range was written before, as it also is to be verified.
    pub fill: bool,
    /// CRC of iWARP, as asked for; none for RDMA devices and NBD.
    pub crc: Option<String>,
    /// How long threads spin before they sleep, in microseconds.
    pub poll_us: u64,
}

fn one() -> u16 {
    1
}

impl Config {
    /// The requests that were offered, in words.
    pub(crate) fn offered(&self) -> String {
        match (self.rate, self.burst) {
            (None, _) => "as many requests as are answered".to_owned(),
            (Some(rate), ..=1) => format!("{rate} requests a second"),
            (Some(rate), burst) => format!("{rate} requests a second, {burst} at a time"),
        }
    }
}

/// One case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    /// Order and direction.
    pub rw: Pattern,
    /// Bytes of a request.
    pub request_bytes: u64,
    /// Requests under way at a time, in each queue.
    pub depth: u16,
    /// Reads that ended within the time.
    pub reads: u64,
    /// Writes that did.
    pub writes: u64,
    /// Requests a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// How long requests took that began within the time, also where they ended after it.
    pub latency: Latency,
    /// Processor time of this process for each request, in microseconds.
    pub cpu_us_per_io: Option<f64>,
    /// Processor time of the target for each request, in microseconds, where it could be asked.
    pub target_cpu_us_per_io: Option<f64>,
    /// Blocks that were compared with what had been written.
    pub checked_blocks: u64,
}

/// Latencies in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub mean_us: f64,
    /// Shortest.
    pub min_us: f64,
    /// Half of them took at most this.
    pub p50_us: f64,
    /// 99 per cent.
    #[serde(rename = "p99_us")]
    pub p99_us: f64,
    /// 99.9 per cent.
    #[serde(rename = "p99.9_us")]
    pub p999_us: f64,
    /// 99.99 per cent.
    #[serde(rename = "p99.99_us")]
    pub p9999_us: f64,
    /// Longest.
    pub max_us: f64,
    /// The distribution: so many per cent took at most that.
    pub curve: Vec<(f64, f64)>,
}

/// A file that is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// No JSON, or not with what a report has.
    #[error("is not a report of godwit bench: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Of another version.
    #[error("is a report of format {0}, and this godwit reads format {FORMAT}: measure again")]
    Format(u64),
}

impl Report {
    /// A report of this version's format, without cases yet.
    pub fn new(name: String, subject: String, config: Config) -> Self {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            format: FORMAT,
            name,
            subject,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            unix_seconds: since_1970.map_or(0, |since| since.as_secs()),
            machine: Machine::look(),
            config,
            cases: Vec::new(),
        }
    }

    /// Reads a report.
    ///
    /// # Errors
    ///
    /// When it is none, or of another format.
    pub fn read(text: &str) -> Result<Self, ReportError> {
        let value: serde_json::Value = serde_json::from_str(text)?;
        match value["format"].as_u64() {
            Some(format) if format != u64::from(FORMAT) => Err(ReportError::Format(format)),
            _ => Ok(serde_json::from_value(value)?),
        }
    }

    /// As it is written to a file.
    ///
    /// # Errors
    ///
    /// Never in practice: a report has nothing that JSON cannot say.
    pub fn write(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }

    /// The case of the same kind, if there is one.
    pub fn case_like(&self, other: &CaseReport) -> Option<&CaseReport> {
        self.cases.iter().find(|case| case.key() == other.key())
    }
}

impl CaseReport {
    /// What tells the kinds of cases apart.
    pub fn key(&self) -> (Pattern, u64, u16) {
        (self.rw, self.request_bytes, self.depth)
    }
}

impl Machine {
    /// This machine.
    pub fn look() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown processor");
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            processor: model.trim_start_matches(|c: char| c.is_whitespace() || c == ':').to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
        }
    }
}

impl From<&Histogram> for Latency {
    fn from(histogram: &Histogram) -> Self {
        let at = |per_million| micros(histogram.quantile(per_million));
        let curve = POINTS.iter().map(|&point| (f64::from(point) / 10_000.0, at(point)));
        Self {
            mean_us: micros(histogram.mean()),
            min_us: micros(histogram.min()),
            p50_us: at(500_000),
            p99_us: at(990_000),
            p999_us: at(999_000),
            p9999_us: at(999_900),
            max_us: micros(histogram.max()),
            curve: curve.chain([(100.0, micros(histogram.max()))]).collect(),
        }
    }
}

/// In microseconds, to the nanosecond.
fn micros(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1e6)
}

/// To three digits behind the point.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report of made-up figures.
    pub(crate) fn report(name: &str, depths: &[u16]) -> Report {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|n| histogram.record(Duration::from_micros(n)));
        let case = |&depth: &u16| CaseReport {
            rw: Pattern::RandRead,
            request_bytes: 4096,
            depth,
            reads: 1000,
            writes: 0,
            iops: 1000.0 * f64::from(depth),
            bytes_per_second: 4_096_000.0 * f64::from(depth),
            latency: Latency::from(&histogram),
            cpu_us_per_io: Some(1.25),
            target_cpu_us_per_io: None,
            checked_blocks: 0,
        };
        let config = Config {
            queues: 1,
            time_seconds: 1.0,
            ramp_seconds: 0.5,
            rate: None,
            burst: 1,
            read_percent: 50,
            offset_bytes: 0,
            size_bytes: 1 << 30,
            block_bytes: 4096,
            seed: u64::MAX,
            verify: false,
            fill: false,
            crc: Some("off".to_owned()),
            poll_us: 50,
        };
        let subject = "iwarp://127.0.0.1/nqn.2026-11.org.example:vol0".to_owned();
        Report { cases: depths.iter().map(case).collect(), ..Report::new(name.to_owned(), subject, config) }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let written = report("one", &[1, 32]);
        assert_eq!(Report::read(&written.write().unwrap()).unwrap(), written);
    }

    #[test]
    fn names_of_figures_are_those_that_programs_read() {
        let value: serde_json::Value = serde_json::from_str(&report("one", &[1]).write().unwrap()).unwrap();
        let case = &value["cases"][0];
        assert_eq!((&case["rw"], &case["request_bytes"], &case["depth"]), (&"randread".into(), &4096.into(), &1.into()));
        let latency = |key: &str| case["latency"][key].as_f64().unwrap();
        assert!((latency("p50_us") - 500.0).abs() < 2.5 && (latency("p99.9_us") - 999.0).abs() < 5.0);
        assert_eq!((latency("max_us"), latency("min_us"), latency("mean_us")), (1000.0, 1.0, 500.5));
        assert_eq!(case["latency"]["curve"].as_array().map(Vec::len), Some(21));
        assert!(case["target_cpu_us_per_io"].is_null());
    }

    #[test]
    fn what_is_no_report_is_said_to_be_none() {
        let refusal = |text: &str| Report::read(text).unwrap_err().to_string();
        assert!(refusal("{").starts_with("is not a report of godwit bench: EOF"));
        assert!(refusal("{}").contains("missing field `format`"));
        assert!(refusal(r#"{"format":2}"#).contains("is a report of format 2"));
    }
}
