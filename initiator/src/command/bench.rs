//! `godwit bench`: measures a volume or an NBD export, and reports.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use godwit_config::{ConnectOptions, CtrlLossTimeout, NbdUri, Transport, Url};
use godwit_control::place;
use godwit_reactor::{PollBudget, UringConfig};

use super::volume::{self, Paths, address};
use super::{Failure, explain, names, print};
use crate::bench::cpu::{Served, TargetDaemon};
use crate::bench::subject::{AttachError, NbdExport, Subject, Volume};
use crate::bench::{self, Bench, BenchArgs, BenchError, CaseReport, Config, Plan, Range, Report};
use crate::host::{Names, in_words};
use crate::worker::WorkerConfig;

pub(super) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let plan = args.plan(RandomState::new().hash_one(())).map_err(Failure::Usage)?;
    let others = args.compare.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    if let Some(path) = args.json.as_ref().filter(|json| args.html.as_ref() == Some(json)) {
        return Err(Failure::Usage(format!("--json and --html are both to be {}: choose another place for one", path.display())));
    }
    let mut files = Files::open([&args.json, &args.html].into_iter().flatten().filter(|path| !is_stdout(path)))?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second one ends it at once, whatever it waits for.
        let registered = signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)));
        registered.map_err(|error| Failure::Failed(format!("cannot watch for Ctrl-C: {}", in_words(&error))))?;
    }
    let (mut subject, target): (Box<dyn Subject>, _) = match (&args.nbd, &args.url) {
        (Some(uri), _) => {
            let target = args.target_control.clone().map(TargetDaemon::new);
            // Better now than after hours.
            target.as_ref().map(TargetDaemon::cpu_time).transpose().map_err(|error| Failure::Failed(error.to_string()))?;
            (Box::new(connect(args, uri, &plan)?), target)
        }
        (None, Some(url)) => {
            let (volume, target) = attach(args, url, &plan, &stop)?;
            (Box::new(volume), target)
        }
        (None, None) => return Err(Failure::Usage("say what to measure: a URL, or --nbd".to_owned())),
    };
    let mut cases = Vec::new();
    let result = measure(&plan, &mut *subject, target.as_ref(), &stop, &mut cases);
    let queues = subject.queues();
    subject.end();
    match result {
        Ok(range) => report(args, &plan, &range, queues, cases, &others, &mut files),
        Err((error, range)) => {
            // What was measured by then may have taken hours.
            if let Some(range) = range.filter(|_| !cases.is_empty())
                && let Err(failure) = report(args, &plan, &range, queues, cases, &others, &mut files)
            {
                eprintln!("error: {failure}");
            }
            Err(match error {
                BenchError::Unfit(words) => Failure::Usage(words),
                error @ BenchError::Stuck(_) => Failure::Failed(format!("{}: {error}; its log may say why", subject_of(args))),
                error => Failure::Failed(error.to_string()),
            })
        }
    }
}

/// Measures all cases; the range, as far as it is known, also when that fails.
fn measure(
    plan: &Plan,
    subject: &mut dyn Subject,
    target: Option<&TargetDaemon>,
    stop: &AtomicBool,
    cases: &mut Vec<CaseReport>,
) -> Result<Range, (BenchError, Option<Range>)> {
    let range = plan.range(&subject.geometry(), subject.queues(), subject.queue_depth()).map_err(|error| (error, None))?;
    let run = Bench::new(plan, range.clone(), subject, target, stop).and_then(|mut bench| bench.run(cases));
    match run {
        Ok(()) => Ok(range),
        Err(error) => Err((error, Some(range))),
    }
}

fn connect(args: &BenchArgs, uri: &NbdUri, plan: &Plan) -> Result<NbdExport, Failure> {
    let WorkerConfig { pool, poll } = worker(args, plan);
    let config = UringConfig { pool, poll: PollBudget(poll) };
    let export = NbdExport::connect(uri, args.queues.get().into(), plan.depth().into(), config);
    export.map_err(|error| Failure::Failed(error.to_string()))
}

fn attach(args: &BenchArgs, url: &Url, plan: &Plan, stop: &AtomicBool) -> Result<(Volume, Option<TargetDaemon>), Failure> {
    let Some(subsystem) = &url.nqn else {
        return Err(Failure::Usage(format!("{url} names no subsystem: add /NQN (`godwit discover {url}` lists what the target has)")));
    };
    let options = ConnectOptions {
        nr_io_queues: args.queues,
        queue_size: plan.queue_size(),
        crc: args.crc,
        poll: args.poll,
        // A measurement that waits for a lost target is none.
        ctrl_loss_tmo: CtrlLossTimeout::After(std::time::Duration::ZERO),
        ..ConnectOptions::default()
    };
    let names = names(&args.host, subsystem.clone())?;
    let io_queues = usize::from(args.queues.get());
    let paths = Paths { addresses: vec![address(url, &url.address, options.crc)], discovery: None };
    let settings = volume::settings(names.subsystem.to_string(), &options, paths, names.clone(), url.nsid, io_queues)?;
    let volume = Volume::attach(&settings, io_queues, &worker(args, plan), || !stop.load(Ordering::Relaxed));
    let volume = volume.map_err(|error| match error {
        AttachError::Host(error) => explain(error.into(), url, options.crc, names.clone()),
        error => Failure::Failed(error.to_string()),
    })?;
    let served = Served {
        cntlid: settings.status.control().cntlid,
        uuid: volume.info().identity.uuid,
        subsystem: names.subsystem.clone(),
        host: names.host.clone(),
        host_id: names.host_id,
    };
    let target = match volume.queues() {
        granted if granted < io_queues => {
            Err(Failure::Failed(format!("the target grants {granted} of {io_queues} I/O queues: choose --queues {granted}")))
        }
        _ => target(args, &served, &names),
    };
    match target {
        Ok(target) => Ok((volume, target)),
        Err(failure) => {
            Box::new(volume).end();
            Err(failure)
        }
    }
}

/// The target's daemon, if it is on this machine and can be asked. One that was named must be the right one.
fn target(args: &BenchArgs, served: &Served, names: &Names) -> Result<Option<TargetDaemon>, Failure> {
    if let Some(path) = &args.target_control {
        let target = TargetDaemon::new(path.clone());
        return match target.serves(served) {
            Ok(true) => Ok(Some(target)),
            Ok(false) => Err(Failure::Failed(format!("{}: that target does not serve {} to this host", path.display(), names.subsystem))),
            Err(error) => Err(Failure::Failed(error.to_string())),
        };
    }
    let target = place::of_running_target().map(TargetDaemon::new);
    Ok(target.filter(|target| target.serves(served).unwrap_or(false)))
}

fn worker(args: &BenchArgs, plan: &Plan) -> WorkerConfig {
    let usual = volume::worker(args.poll);
    WorkerConfig { pool: plan.pool(&usual.pool), ..usual }
}

fn report(
    args: &BenchArgs,
    plan: &Plan,
    range: &Range,
    queues: usize,
    cases: Vec<CaseReport>,
    others: &[Report],
    files: &mut Files,
) -> Result<(), Failure> {
    let subject = subject_of(args);
    let config = Config {
        queues,
        time_seconds: plan.time.as_secs_f64(),
        ramp_seconds: plan.ramp.as_secs_f64(),
        rate: args.rate,
        burst: args.burst,
        read_percent: plan.read_percent,
        offset_bytes: range.offset_bytes,
        size_bytes: range.size_bytes,
        block_bytes: range.block_bytes,
        seed: plan.seed,
        verify: plan.verify,
        fill: plan.is_filled(),
        crc: args.url.as_ref().filter(|url| url.transport == Transport::Iwarp).map(|url| url.crc.unwrap_or(args.crc).to_string()),
        poll_us: u64::try_from(args.poll.duration().as_micros()).unwrap_or(u64::MAX),
    };
    let name = args.name.clone().unwrap_or_else(|| subject.clone());
    let report = Report { cases, ..Report::new(name, subject, config) };
    let json = report.write().map_err(|error| Failure::Failed(error.to_string()))?;
    let runs: Vec<&Report> = std::iter::once(&report).chain(others).collect();
    let page = args.html.as_ref().map(|_| bench::html(&runs)).unwrap_or_default();
    let table = bench::table::render(&report, others);
    let documents = [(&args.json, &json), (&args.html, &page)].into_iter().filter_map(|(path, text)| Some((path.as_deref()?, text)));
    let (printed, written): (Vec<_>, Vec<_>) = documents.partition(|(path, _)| is_stdout(path));
    // What fails keeps nothing from the others.
    let written = written.into_iter().map(|(path, text)| files.write(path, text)).fold(Ok(()), Result::and);
    let printed = match printed.first() {
        None => print(table.as_bytes()),
        // It makes room.
        Some((_, text)) => {
            eprint!("{table}");
            print(text.as_bytes())
        }
    };
    written.and(printed)
}

/// What is measured, as it was named.
fn subject_of(args: &BenchArgs) -> String {
    match (&args.nbd, &args.url) {
        (Some(uri), _) => uri.to_string(),
        (None, url) => url.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

fn read(path: &PathBuf) -> Result<Report, Failure> {
    let text = fs::read_to_string(path).map_err(|error| Failure::Usage(format!("{}: {}", path.display(), in_words(&error))))?;
    let mut report = Report::read(&text).map_err(|error| Failure::Usage(format!("{} {error}", path.display())))?;
    // One that was given no name is called as its file is: it may well be an earlier run on the same volume.
    if report.name == report.subject
        && let Some(stem) = path.file_stem()
    {
        report.name = stem.to_string_lossy().into_owned();
    }
    Ok(report)
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("cannot write {}: {}", path.display(), in_words(error)))
}

/// The files of the reports. They are opened before anything is measured, so that no hours are lost to a folder that is not there; what is there already stays
/// until there is something better, and what was made stays only with a report in it.
struct Files {
    /// Those that were not there, and have no report yet.
    made: Vec<PathBuf>,
}

impl Files {
    fn open<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> Result<Self, Failure> {
        let mut files = Self { made: Vec::new() };
        for path in paths {
            let is_new = !path.exists();
            fs::OpenOptions::new().create(true).append(true).open(path).map_err(|error| cannot_write(path, &error))?;
            files.made.extend(is_new.then(|| path.clone()));
        }
        Ok(files)
    }

    fn write(&mut self, path: &Path, text: &str) -> Result<(), Failure> {
        fs::write(path, text).map_err(|error| cannot_write(path, &error))?;
        self.made.retain(|made| made != path);
        Ok(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.made.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}
