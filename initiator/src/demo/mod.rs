//! `godwit demo`: target, initiator and fio on this machine, with a table at the end.
//!
//! A target exports a file of 1 GiB; an initiator attaches it and serves it as an NBD export on a Unix socket; fio measures that export, and the same
//! file without anything in between. Everything runs as the calling user, in a folder of its own that is gone afterwards, also after Ctrl-C.

pub mod fio;
pub mod process;

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, BufReader, IsTerminal, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use fio::{FioError, Measured, Place, WORKLOADS, Workload};

const NQN: &str = "nqn.2026-11.org.godwit:demo";

/// Size of the volume.
const SIZE_BYTES: u64 = 1 << 30;

/// How long each workload runs.
const RUN_TIME: Duration = Duration::from_secs(3);

/// How long a daemon may take to come up.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the user may choose.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoOptions {
    /// Folder for the volume's file; it needs 1 GiB of space
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    pub dir: PathBuf,
    /// Time for each workload, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = RUN_TIME.as_secs(), value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
}

/// Why the demo did not come to its table.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// fio.
    #[error(transparent)]
    Fio(#[from] FioError),
    /// The operating system.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What it answered.
        source: io::Error,
    },
    /// A daemon ended, or did not come up.
    #[error("{name} did not come up: {words}")]
    Daemon {
        /// Which.
        name: &'static str,
        /// The last thing it said.
        words: String,
    },
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> DemoError {
    let what = what.into();
    |source| DemoError::Io { what, source }
}

/// Runs the demo and prints its table.
///
/// # Errors
///
/// The first thing that failed; everything that was started is ended and removed.
pub fn run(options: &DemoOptions) -> Result<(), DemoError> {
    fio::check()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(io_error("watch for Ctrl-C"))?;
    }
    let stage = Stage::set(&options.dir, &stop)?;
    let time = Duration::from_secs(options.seconds);
    let progress = progress_bar(2 * WORKLOADS.len() as u64 + 1);
    progress.set_message("filling the volume through the whole chain");
    let volume = Place::Nbd(stage.uri());
    fio::fill(&volume, SIZE_BYTES, &stop)?;
    progress.inc(1);
    let mut rows = Vec::new();
    for workload in &WORKLOADS {
        progress.set_message(format!("{} through godwit", workload.name));
        let before = stage.cpu_time();
        let ours = fio::measure(&volume, workload, SIZE_BYTES, time, &stop)?;
        let cpu = stage.cpu_time().saturating_sub(before);
        progress.inc(1);
        progress.set_message(format!("{} on the raw file", workload.name));
        let raw = fio::measure(&Place::File(stage.image()), workload, SIZE_BYTES, time, &stop)?;
        progress.inc(1);
        rows.push(Row { workload: *workload, ours, raw, cpu });
    }
    progress.finish_and_clear();
    drop(stage);
    io::stdout().write_all(table(&rows).as_bytes()).map_err(io_error("print the table"))
}

fn progress_bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let style = ProgressStyle::with_template("{spinner} [{pos}/{len}] {msg}").expect("a valid template");
    bar.set_style(style);
    bar.enable_steady_tick(Duration::from_millis(120));
    if !io::stderr().is_terminal() {
        eprintln!("measuring: {} runs; this takes about a minute", length);
    }
    bar
}

/// One line of the table.
struct Row {
    workload: Workload,
    ours: Measured,
    raw: Measured,
    /// Processor time of both daemons during our run.
    cpu: Duration,
}

fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let title = "fio -> NBD on a Unix socket -> godwit -> NVMe/RDMA over iWARP on loopback TCP -> godwit-target -> file";
    let _ = writeln!(text, "\n{title}\nbeside fio with io_uring on the same file (\"raw\"); latency in microseconds\n");
    let _ = writeln!(
        text,
        "{:<29} {:>9} {:>8} {:>8} {:>8} {:>10} | {:>9} {:>8} {:>8} {:>8}",
        "workload", "IOPS", "MB/s", "p50", "p99", "CPU us/IO", "raw IOPS", "MB/s", "p50", "p99"
    );
    for Row { workload, ours, raw, cpu } in rows {
        let cpu_us = cpu.as_secs_f64() * 1e6 / ours.requests.max(1.0);
        let _ = writeln!(
            text,
            "{:<29} {:>9.0} {:>8.0} {:>8.0} {:>8.0} {:>10.1} | {:>9.0} {:>8.0} {:>8.0} {:>8.0}",
            workload.name,
            ours.iops,
            ours.bytes_per_second / 1e6,
            ours.p50_us,
            ours.p99_us,
            cpu_us,
            raw.iops,
            raw.bytes_per_second / 1e6,
            raw.p50_us,
            raw.p99_us
        );
    }
    text
}

/// The running daemons and their folder. Dropping it ends and removes them.
struct Stage {
    // Field order is teardown order: the client of the volume goes first.
    initiator: Daemon,
    target: Daemon,
    folder: Folder,
}

impl Stage {
    fn set(parent: &Path, stop: &AtomicBool) -> Result<Self, DemoError> {
        let folder = Folder::make(parent)?;
        let image = folder.path.join("disk.img");
        let export = format!("{},size=1GiB", image.display());
        let myself = std::env::current_exe().map_err(io_error("find this program"))?;
        let mut target = Daemon::start(
            "godwit-target",
            &sibling(&myself, "godwit-target"),
            &["--export", &export, "--listen", "iwarp://127.0.0.1:0", "--nqn", NQN],
        )?;
        let address = target.wait_for_word("iwarp://", stop)?;
        let socket = folder.path.join("nbd.sock");
        let mut initiator =
            Daemon::start("godwit", &myself, &["connect", &format!("{address}/{NQN}"), "--nbd", &format!("unix:{}", socket.display())])?;
        initiator.wait_until(stop, || UnixStream::connect(&socket).is_ok())?;
        Ok(Self { initiator, target, folder })
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.folder.path.join("nbd.sock").display())
    }

    fn image(&self) -> PathBuf {
        self.folder.path.join("disk.img")
    }

    fn cpu_time(&self) -> Duration {
        self.initiator.cpu_time() + self.target.cpu_time()
    }
}

fn sibling(program: &Path, name: &str) -> PathBuf {
    let beside = program.with_file_name(name);
    if beside.is_file() { beside } else { PathBuf::from(name) }
}

/// A folder that is removed with everything in it.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn make(parent: &Path) -> Result<Self, DemoError> {
        let path = parent.join(format!("godwit-demo-{}", std::process::id()));
        fs::create_dir(&path).map_err(io_error(format!("make the folder {}", path.display())))?;
        Ok(Self { path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A daemon of ours as a child process.
struct Daemon {
    name: &'static str,
    child: Child,
    /// What it prints on its standard output, line by line.
    lines: std::sync::mpsc::Receiver<String>,
    last_words: Arc<std::sync::Mutex<String>>,
}

impl Daemon {
    fn start(name: &'static str, program: &Path, arguments: &[&str]) -> Result<Self, DemoError> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(io_error(format!("start {}", program.display())))?;
        let (sender, lines) = std::sync::mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        }
        let last_words = Arc::new(std::sync::Mutex::new(String::new()));
        if let Some(stderr) = child.stderr.take() {
            let words = Arc::clone(&last_words);
            thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    if let Ok(mut words) = words.lock() {
                        *words = line;
                    }
                }
            });
        }
        Ok(Self { name, child, lines, last_words })
    }

    /// Waits for a word that begins with `prefix` on the daemon's output.
    fn wait_for_word(&mut self, prefix: &str, stop: &AtomicBool) -> Result<String, DemoError> {
        let mut found = None;
        let deadline = Instant::now() + PATIENCE;
        while found.is_none() {
            self.check(deadline, stop)?;
            if let Ok(line) = self.lines.recv_timeout(Duration::from_millis(50)) {
                let is_trailing = |c: char| ",.;)".contains(c);
                found =
                    line.split_whitespace().find(|word| word.starts_with(prefix)).map(|word| word.trim_end_matches(is_trailing).to_owned());
            }
        }
        Ok(found.unwrap_or_default())
    }

    fn wait_until(&mut self, stop: &AtomicBool, mut condition: impl FnMut() -> bool) -> Result<(), DemoError> {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            self.check(deadline, stop)?;
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn check(&mut self, deadline: Instant, stop: &AtomicBool) -> Result<(), DemoError> {
        if stop.load(Ordering::Relaxed) {
            return Err(FioError::Interrupted.into());
        }
        let ended = matches!(self.child.try_wait(), Ok(Some(_)));
        if ended || Instant::now() > deadline {
            let words = self.last_words.lock().map(|words| words.clone()).unwrap_or_default();
            return Err(DemoError::Daemon { name: self.name, words: if words.is_empty() { "it said nothing".to_owned() } else { words } });
        }
        Ok(())
    }

    /// Processor time used so far; zero where /proc does not tell.
    fn cpu_time(&self) -> Duration {
        process::cpu_time(self.child.id()).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Asked to end first, so that it removes what it made; a daemon that does not is killed.
        let _ = i32::try_from(self.child.id()).map(|pid| kill(Pid::from_raw(pid), Signal::SIGTERM));
        let deadline = Instant::now() + Duration::from_secs(6);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_both_sides_of_each_workload() {
        let measured =
            |iops| Measured { iops, bytes_per_second: iops * 4096.0, mean_us: 12.0, p50_us: 10.0, p99_us: 20.0, requests: 1000.0 };
        let row = Row { workload: WORKLOADS[0], ours: measured(100_000.0), raw: measured(200_000.0), cpu: Duration::from_millis(5) };
        let text = table(&[row]);
        let line = text.lines().last().unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells[cells.len() - 10..], ["100000", "410", "10", "20", "5.0", "|", "200000", "819", "10", "20"]);
    }

    #[test]
    fn a_folder_is_gone_when_it_is_dropped() {
        let parent = std::env::temp_dir().join(format!("godwit-demo-test-{}", std::process::id()));
        fs::create_dir(&parent).unwrap();
        let folder = Folder::make(&parent).unwrap();
        fs::write(folder.path.join("file"), "x").unwrap();
        drop(folder);
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 0);
        fs::remove_dir(&parent).unwrap();
    }
}
