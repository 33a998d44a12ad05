//! fio as a measuring instrument: one workload on one file or export, and what it measured.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use serde_json::Value;

/// What a workload does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name in tables.
    pub name: &'static str,
    /// fio's `rw`.
    pub pattern: &'static str,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Requests in flight.
    pub depth: u32,
}

/// The workloads that people compare storage by.
pub const WORKLOADS: [Workload; 6] = [
    Workload { name: "4 KiB random read, depth 1", pattern: "randread", block_bytes: 4096, depth: 1 },
    Workload { name: "4 KiB random write, depth 1", pattern: "randwrite", block_bytes: 4096, depth: 1 },
    Workload { name: "4 KiB random read, depth 32", pattern: "randread", block_bytes: 4096, depth: 32 },
    Workload { name: "4 KiB random write, depth 32", pattern: "randwrite", block_bytes: 4096, depth: 32 },
    Workload { name: "128 KiB read, depth 8", pattern: "read", block_bytes: 128 << 10, depth: 8 },
    Workload { name: "128 KiB write, depth 8", pattern: "write", block_bytes: 128 << 10, depth: 8 },
];

/// How long a workload runs before its measuring begins.
pub const RAMP_TIME: Duration = Duration::from_millis(300);

/// How much longer than its work fio may take before it counts as stuck, as it is behind an export that no longer answers.
const PATIENCE: Duration = Duration::from_secs(30);

/// No storage that is worth measuring fills more slowly than this.
const SLOWEST_FILL_BYTES_PER_SECOND: u64 = 4 << 20;

/// What fio works on.
#[derive(Clone, Debug)]
pub enum Place {
    /// An NBD export, by URI.
    Nbd(String),
    /// A file, through io_uring and past the page cache.
    File(PathBuf),
    /// A file, through libaio and past the page cache.
    LibaioFile(PathBuf),
}

/// What fio measured of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// Requests in all, about, with those of [`RAMP_TIME`]: what processor time of the same run is divided by.
    pub requests: f64,
}

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum FioError {
    /// fio is not there.
    #[error("cannot start fio ({0}); install it: apt-get install fio")]
    Start(io::Error),
    /// This fio was built without the engine.
    #[error("this fio has no nbd engine (fio --enghelp lists the engines); Debian's and Ubuntu's has it")]
    NoNbdEngine,
    /// fio failed.
    #[error("fio failed: {0}")]
    Failed(String),
    /// The user does not want to wait.
    #[error("interrupted")]
    Interrupted,
}

/// Checks that fio is there and speaks NBD.
///
/// # Errors
///
/// [`FioError::Start`], [`FioError::NoNbdEngine`].
pub fn check() -> Result<(), FioError> {
    let output = Command::new("fio").arg("--enghelp").output().map_err(FioError::Start)?;
    let engines = String::from_utf8_lossy(&output.stdout);
    if engines.lines().any(|line| line.trim() == "nbd") { Ok(()) } else { Err(FioError::NoNbdEngine) }
}

/// Fills a place with data that no layer can squeeze, from front to back.
///
/// # Errors
///
/// As [`measure`].
pub fn fill(place: &Place, size_bytes: u64, stop: &AtomicBool) -> Result<(), FioError> {
    let mut command = Command::new("fio");
    command.args(["--name=fill", "--rw=write", "--bs=1m", "--iodepth=4", "--refill_buffers=1", "--end_fsync=1", "--output-format=json"]);
    command.arg(format!("--size={size_bytes}"));
    let limit = PATIENCE + Duration::from_secs(size_bytes / SLOWEST_FILL_BYTES_PER_SECOND);
    run(command, place, limit, stop).map(|_| ())
}

/// Runs a workload for a time and measures it.
///
/// # Errors
///
/// [`FioError::Failed`] with fio's last words, [`FioError::Interrupted`] once `stop` is set.
pub fn measure(place: &Place, workload: &Workload, size_bytes: u64, time: Duration, stop: &AtomicBool) -> Result<Measured, FioError> {
    let mut command = Command::new("fio");
    command.args(["--name=run", "--time_based=1", "--randrepeat=0", "--norandommap=1", "--output-format=json"]);
    command.args([
        format!("--rw={}", workload.pattern),
        format!("--bs={}", workload.block_bytes),
        format!("--iodepth={}", workload.depth),
        format!("--ramp_time={}ms", RAMP_TIME.as_millis()),
        format!("--runtime={}ms", time.as_millis()),
        format!("--size={size_bytes}"),
    ]);
    let report = run(command, place, RAMP_TIME + time + PATIENCE, stop)?;
    let direction = if workload.pattern.ends_with("read") { "read" } else { "write" };
    let job = &report["jobs"][0];
    let side = &job[direction];
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let percentile = |name: &str| number(&side["clat_ns"]["percentile"][name]) / 1000.0;
    Ok(Measured {
        iops: number(&side["iops"]),
        bytes_per_second: number(&side["bw_bytes"]),
        mean_us: number(&side["clat_ns"]["mean"]) / 1000.0,
        p50_us: percentile("50.000000"),
        p99_us: percentile("99.000000"),
        requests: number(&side["iops"]) * (RAMP_TIME + time).as_secs_f64(),
    })
}

fn run(mut command: Command, place: &Place, limit: Duration, stop: &AtomicBool) -> Result<Value, FioError> {
    match place {
        Place::Nbd(uri) => command.args(["--ioengine=nbd", &format!("--uri={uri}")]),
        Place::File(path) => command.args(["--ioengine=io_uring", "--direct=1", &format!("--filename={}", path.display())]),
        Place::LibaioFile(path) => command.args(["--ioengine=libaio", "--direct=1", &format!("--filename={}", path.display())]),
    };
    // Jobs as threads end with fio when it is killed.
    let child =
        command.arg("--thread=1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(FioError::Start)?;
    let output = wait(child, limit, stop)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words = || {
        let said = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
        said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").trim().to_owned()
    };
    if !output.status.success() {
        return Err(FioError::Failed(words()));
    }
    report(&text).ok_or_else(|| FioError::Failed(words()))
}

/// The JSON report in what fio printed: notes may stand before it.
pub fn report(printed: &str) -> Option<Value> {
    let start = printed.find('{')?;
    serde_json::from_str(&printed[start..]).ok()
}

fn wait(mut child: Child, limit: Duration, stop: &AtomicBool) -> Result<std::process::Output, FioError> {
    // A report is longer than a pipe holds: it is read while fio runs.
    let reader = child.stdout.take().map(|mut stdout| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = io::Read::read_to_end(&mut stdout, &mut bytes);
            bytes
        })
    });
    let deadline = Instant::now() + limit;
    loop {
        let interrupted = stop.load(Ordering::Relaxed);
        if interrupted || Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            let stuck = || FioError::Failed(format!("it did not end within {} s", limit.as_secs()));
            return Err(if interrupted { FioError::Interrupted } else { stuck() });
        }
        match child.try_wait() {
            Ok(None) => thread::sleep(Duration::from_millis(20)),
            Ok(Some(_)) => break,
            Err(error) => return Err(FioError::Failed(error.to_string())),
        }
    }
    // Ctrl-C in a terminal reaches fio, too: what it then reports is not a measurement.
    if stop.load(Ordering::Relaxed) {
        let _ = child.wait();
        return Err(FioError::Interrupted);
    }
    let mut output = child.wait_with_output().map_err(|error| FioError::Failed(error.to_string()))?;
    output.stdout = reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn a_report_is_found_behind_notes_and_only_whole() {
        assert_eq!(report("note: both iodepth and sync\n{\"jobs\": []}\n"), Some(serde_json::json!({ "jobs": [] })));
        assert_eq!(report("{\"jobs\": ["), None);
        assert_eq!(report("fio: no such engine\n"), None);
    }

    #[test]
    fn a_child_that_is_stuck_is_killed_at_its_limit() {
        let begin = Instant::now();
        let result = wait(sleeper(), Duration::from_millis(100), &AtomicBool::new(false));
        assert!(matches!(result, Err(FioError::Failed(_))));
        assert!(begin.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn an_interrupted_child_is_killed_at_once() {
        let begin = Instant::now();
        let result = wait(sleeper(), Duration::from_secs(60), &AtomicBool::new(true));
        assert!(matches!(result, Err(FioError::Interrupted)));
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
}
