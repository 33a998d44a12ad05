//! What is measured in one section, in alternation: in each round every contestant runs once per case, one right after the other, and the order
//! turns from round to round.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use godwit_initiator::demo::fio::{FioError, Measured};

use super::case::Case;
use super::sample::{Figures, Sample, Samples, Section};
use crate::daemon::Process;

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum ContestError {
    /// The user does not want to wait.
    #[error("interrupted")]
    Interrupted,
    /// It broke; in what words.
    #[error("{0}")]
    Failed(String),
}

impl ContestError {
    /// Of anything that says why.
    pub fn of(error: &dyn std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<FioError> for ContestError {
    fn from(error: FioError) -> Self {
        if matches!(error, FioError::Interrupted) { Self::Interrupted } else { Self::of(&error) }
    }
}

/// Something that can be measured.
pub trait Contestant {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Whether a case means anything to it.
    fn takes(&self, _case: &Case) -> bool {
        true
    }

    /// One run.
    ///
    /// # Errors
    ///
    /// When it breaks, and when `stop` is set.
    fn run(&mut self, case: &Case, time: Duration, stop: &AtomicBool) -> Result<Figures, ContestError>;
}

/// What was not measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    /// Where.
    pub section: Section,
    /// What.
    pub subject: String,
    /// Why.
    pub reason: String,
    /// Whether it was to run, and broke.
    pub is_failure: bool,
}

/// How a contest is held.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// Where.
    pub section: Section,
    /// How often each case runs on each contestant.
    pub rounds: u32,
    /// Time of each run.
    pub time: Duration,
    /// The user does not want to wait.
    pub stop: &'a AtomicBool,
}

/// Runs all cases on all contestants; one that breaks takes no further part, and what it did before does not count.
///
/// # Errors
///
/// When the user does not want to wait.
pub fn hold(rules: Rules<'_>, mut contestants: Vec<Box<dyn Contestant>>, cases: &[Case]) -> Result<(Samples, Vec<Absence>), ContestError> {
    let (mut samples, mut absences) = (Samples::default(), Vec::new());
    for round in 1..=rules.rounds {
        for case in cases {
            for turn in 0..contestants.len() {
                let index = (turn + round as usize - 1) % contestants.len().max(1);
                let Some(contestant) = contestants.get_mut(index).filter(|contestant| contestant.takes(case)) else { continue };
                let subject = contestant.name();
                match contestant.run(case, rules.time, rules.stop) {
                    Ok(figures) => {
                        eprintln!("round {round}, {case}: {subject} {:.0} IOPS, mean {:.1} us", figures.iops, figures.mean_us);
                        samples.0.push(Sample { section: rules.section, subject, case: *case, round, figures });
                    }
                    Err(ContestError::Interrupted) => return Err(ContestError::Interrupted),
                    Err(error) => {
                        eprintln!("{subject}: {error}; not measured any further");
                        let reason = error.to_string();
                        absences.push(Absence { section: rules.section, subject: subject.to_owned(), reason, is_failure: true });
                    }
                }
            }
            let is_out = |name| absences.iter().any(|absence: &Absence| absence.subject == name);
            contestants.retain(|contestant| !is_out(contestant.name()));
            samples.0.retain(|sample| !is_out(sample.subject));
        }
    }
    Ok((samples, absences))
}

/// Waits for the end of a process; whatever it printed.
///
/// # Errors
///
/// When it fails, does not end within `limit`, or the user does not want to wait. It has ended then, too.
pub fn finish(process: &mut Process, limit: Duration, stop: &AtomicBool) -> Result<String, ContestError> {
    let deadline = Instant::now() + limit;
    while process.is_running() {
        if stop.load(Ordering::Relaxed) {
            process.kill();
            return Err(ContestError::Interrupted);
        }
        if Instant::now() > deadline {
            process.kill();
            let said = process.output();
            return Err(ContestError::Failed(format!("it did not end within {} s; it said: {}", limit.as_secs(), last_words(&said))));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = process.wait(Duration::from_secs(1));
    if stop.load(Ordering::Relaxed) {
        return Err(ContestError::Interrupted);
    }
    let said = process.output();
    if status.success() {
        return Ok(said);
    }
    Err(ContestError::Failed(format!("{status}: {}", last_words(&said))))
}

fn last_words(said: &str) -> &str {
    said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing").trim()
}

impl From<&Measured> for Figures {
    fn from(measured: &Measured) -> Self {
        Self {
            iops: measured.iops,
            bytes_per_second: measured.bytes_per_second,
            mean_us: measured.mean_us,
            p50_us: Some(measured.p50_us),
            p99_us: Some(measured.p99_us),
            cpu_us: None,
        }
    }
}

impl Figures {
    /// With processor time for each request.
    pub fn with_cpu(self, cpu_us: Option<f64>) -> Self {
        Self { cpu_us, ..self }
    }
}

/// Processor time for each request of a run of fio.
pub fn cpu_us(measured: &Measured, cpu: Option<Duration>) -> Option<f64> {
    cpu.filter(|_| measured.requests > 0.0).map(|cpu| cpu.as_secs_f64() * 1e6 / measured.requests)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::case::{READ_1, READ_32};
    use super::*;

    struct Fake {
        name: &'static str,
        runs: u32,
        breaks_at: u32,
        log: std::sync::Arc<std::sync::Mutex<Vec<&'static str>>>,
    }

    impl Contestant for Fake {
        fn name(&self) -> &'static str {
            self.name
        }

        fn takes(&self, case: &Case) -> bool {
            self.name != "one" || case.depth == 1
        }

        fn run(&mut self, _: &Case, _: Duration, _: &AtomicBool) -> Result<Figures, ContestError> {
            self.runs += 1;
            self.log.lock().unwrap().push(self.name);
            if self.runs == self.breaks_at { Err(ContestError::Failed("torn".to_owned())) } else { Ok(Figures::default()) }
        }
    }

    fn contest(breaks_at: u32) -> (Samples, Vec<Absence>, Vec<&'static str>) {
        let log = std::sync::Arc::default();
        let fake =
            |name, breaks_at| -> Box<dyn Contestant> { Box::new(Fake { name, runs: 0, breaks_at, log: std::sync::Arc::clone(&log) }) };
        let contestants = vec![fake("one", 0), fake("two", breaks_at), fake("three", 0)];
        let stop = AtomicBool::new(false);
        let rules = Rules { section: Section::Direct, rounds: 2, time: Duration::ZERO, stop: &stop };
        let (samples, absences) = hold(rules, contestants, &[READ_1, READ_32]).unwrap();
        let log = log.lock().unwrap().clone();
        (samples, absences, log)
    }

    #[test]
    fn the_order_turns_and_a_case_that_means_nothing_is_left_out() {
        let (samples, absences, log) = contest(0);
        assert_eq!(log, ["one", "two", "three", "two", "three", "two", "three", "one", "two", "three"]);
        assert_eq!((samples.0.len(), absences), (10, vec![]));
    }

    #[test]
    fn one_that_breaks_is_out_with_all_that_it_did() {
        let (samples, absences, log) = contest(2);
        assert_eq!(log, ["one", "two", "three", "two", "three", "three", "one", "three"]);
        assert!(samples.0.iter().all(|sample| sample.subject != "two"));
        assert_eq!((absences[0].subject.as_str(), absences[0].reason.as_str(), absences.len()), ("two", "torn", 1));
    }

    #[test]
    fn a_process_that_fails_is_told_by_its_last_words() {
        let stop = AtomicBool::new(false);
        let mut process = Process::start(Command::new("sh").args(["-c", "echo first; echo last; echo; exit 3"]));
        let error = finish(&mut process, Duration::from_secs(20), &stop).unwrap_err().to_string();
        assert!(error.ends_with("3: last"), "{error}");
    }

    #[test]
    fn a_process_that_is_not_wanted_any_more_is_ended() {
        let mut process = Process::start(Command::new("sleep").arg("60"));
        assert!(matches!(finish(&mut process, Duration::from_secs(60), &AtomicBool::new(true)), Err(ContestError::Interrupted)));
        assert!(!process.is_running());
        let mut process = Process::start(Command::new("sleep").arg("60"));
        assert!(matches!(finish(&mut process, Duration::from_millis(20), &AtomicBool::new(false)), Err(ContestError::Failed(_))));
        assert!(!process.is_running());
    }
}
