//! What a load costs others: the tail of a reader beside a writer of large requests, and admin commands meanwhile.

use std::time::{Duration, Instant};

use godwit_control::Client;
use serde_json::json;

use super::bars::{ALONE, BESIDE};
use super::case::READ_1;
use super::contest::{ContestError, Rules, finish};
use super::gauge::{Gauge, Name};
use super::ours::{Setup, Store, Target, arguments};
use super::sample::{Figures, Sample, Samples, Section};
use crate::daemon::{self, Process};
use crate::hostile::Bystander;

/// Bytes of each of the two namespaces.
const NAMESPACE_BYTES: u64 = 128 << 20;

/// The load: 16 MiB under way.
const WRITER: [&str; 6] = ["--rw", "write", "--bs", "128k", "--qd", "128"];

/// What the writer says when it begins.
const AT_WORK: &str = "[1/1] write";

/// How often the target is asked meanwhile.
const INTERVAL: Duration = Duration::from_millis(20);

/// How long an answer may take before it counts as none.
const PATIENCE: Duration = Duration::from_secs(20);

/// Measures a reader alone and beside the writer, once a round.
///
/// # Errors
///
/// When something breaks, or the user does not want to wait.
pub fn run(rules: Rules<'_>) -> Result<(Samples, Vec<Gauge>), ContestError> {
    let stores = vec![Store::Memory(NAMESPACE_BYTES), Store::Memory(NAMESPACE_BYTES)];
    // With CRC: the bare host insists on it.
    let target = Target::start(&Setup { crc: true, reactors: None, stores, ..Setup::of(Store::Memory(0)) }, None)?;
    target.fill(1, rules.stop)?;
    target.fill(2, rules.stop)?;
    let mut samples = Samples::default();
    let mut gauges = [Name::KeepAliveWorst, Name::StatusWorst].map(|name| Gauge { name, values: Vec::new() });
    for round in 1..=rules.rounds {
        let mut keep = |subject, figures: Figures| {
            eprintln!(
                "round {round}, {READ_1}: {subject} mean {:.1} us, p99 {:.0} us",
                figures.mean_us,
                figures.p99_us.unwrap_or_default()
            );
            samples.0.push(Sample { section: Section::Fairness, subject, case: READ_1, round, figures });
        };
        let alone = target.measure(1, &arguments(&READ_1), rules.time, None, rules.stop)?;
        keep(ALONE, alone.first().map(Figures::from).unwrap_or_default());
        let (beside, worst) = measure_beside(&target, rules)?;
        keep(BESIDE, beside);
        for (gauge, worst) in gauges.iter_mut().zip(worst) {
            gauge.values.push(worst.as_secs_f64() * 1e3);
        }
    }
    Ok((samples, gauges.into()))
}

/// The reader beside the writer; and the slowest Keep Alive and status.
fn measure_beside(target: &Target, rules: Rules<'_>) -> Result<(Figures, [Duration; 2]), ContestError> {
    let start = |nsid, name: &str, arguments: &[&str], time: Duration| {
        let mut command = target.bench(nsid, name);
        command.args(arguments).args(["--ramp", "0", "--time", &time.as_secs().max(1).to_string()]);
        Process::try_start(&mut command).map_err(|error| ContestError::of(&error))
    };
    let mut host = Bystander::connect(target.address, daemon::NQN, 32, 1).map_err(|error| ContestError::of(&error))?;
    // It ends when it is dropped.
    let mut writer = start(2, "writer.json", &WRITER, rules.time + PATIENCE)?;
    writer.await_word(AT_WORK).map_err(|error| ContestError::of(&error))?;
    let reading = arguments(&READ_1);
    let mut reader = start(1, "reader.json", &reading.iter().map(String::as_str).collect::<Vec<_>>(), rules.time)?;
    let mut worst = [Duration::ZERO; 2];
    let deadline = Instant::now() + rules.time + PATIENCE;
    while reader.is_running() && Instant::now() < deadline && !rules.stop.load(std::sync::atomic::Ordering::Relaxed) {
        let kept = host.keep_alive().map_err(|error| ContestError::of(&error))?;
        let begin = Instant::now();
        Client::call(target.control(), &json!({ "command": "status" }), PATIENCE).map_err(|error| ContestError::of(&error))?;
        for (worst, found) in worst.iter_mut().zip([kept, begin.elapsed()]) {
            *worst = (*worst).max(found);
        }
        std::thread::sleep(INTERVAL);
    }
    finish(&mut reader, PATIENCE, rules.stop)?;
    if !writer.is_running() {
        return Err(ContestError::Failed(format!("the writer ended early: {}", writer.output().trim_end())));
    }
    let report = target.report("reader.json")?;
    let figures = report.cases.first().map(Figures::from).ok_or_else(|| ContestError::Failed("an empty report".to_owned()))?;
    Ok((figures, worst))
}
