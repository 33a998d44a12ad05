//! `godwit bench` and a target, with no NBD in between.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use godwit_initiator::bench::{CaseReport, Report};

use super::case::{Case, Rate};
use super::contest::{ContestError, Contestant, finish};
use super::cores::Pinned;
use super::sample::Figures;
use super::stage::scratch;
use crate::daemon::{self, Process, free_port};

/// How much longer than its time a run may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long either end spins before it sleeps. On one core each they would not by default, for want of a second one.
const POLL: &str = "50us";

/// What a target exports.
#[derive(Clone, Debug)]
pub enum Store {
    /// So many bytes of its memory.
    Memory(u64),
    /// A file.
    File(PathBuf),
}

/// A target's configuration.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Whether frames have a CRC.
    pub crc: bool,
    /// Its reactor threads; as many as it thinks right if none.
    pub reactors: Option<u32>,
    /// Its namespaces, from 1.
    pub stores: Vec<Store>,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Hosts at a time.
    pub controllers: u32,
}

impl Setup {
    /// One namespace, without CRC, on one reactor thread.
    pub fn of(store: Store) -> Self {
        Self { crc: false, reactors: Some(1), stores: vec![store], block_bytes: 4096, controllers: 256 }
    }

    fn yaml(&self, address: SocketAddr, folder: &Path) -> String {
        let crc = switch(self.crc);
        let mut text = format!("listeners:\n  - {{ transport: iwarp, address: \"{address}\", crc: {crc} }}\npoll: {POLL}\n");
        if let Some(reactors) = self.reactors {
            let _ = writeln!(text, "reactors: {reactors}");
        }
        let _ = writeln!(text, "control: {}\nstate_dir: {}", control(folder).display(), folder.display());
        let _ = writeln!(text, "limits: {{ controllers: {} }}", self.controllers);
        let _ = writeln!(text, "subsystems:\n  - nqn: {}\n    allow_any_host: true\n    namespaces:", daemon::NQN);
        for (store, nsid) in self.stores.iter().zip(1..) {
            let backend = match store {
                Store::Memory(bytes) => format!("memory: {{ size: {bytes} }}"),
                Store::File(path) => format!("file: {{ path: \"{}\" }}", path.display()),
            };
            let _ = writeln!(text, "      - {{ nsid: {nsid}, block_size: {}, backend: {{ {backend} }} }}", self.block_bytes);
        }
        text
    }
}

fn switch(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

fn control(folder: &Path) -> PathBuf {
    folder.join("target.sock")
}

/// A running target, and a folder of its own.
#[derive(Debug)]
pub struct Target {
    // Field order is teardown order.
    /// Its process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    crc: bool,
    folder: tempfile::TempDir,
}

impl Target {
    /// Starts it, on a core of its own if told so.
    ///
    /// # Errors
    ///
    /// When it does not come up.
    pub fn start(setup: &Setup, core: Option<usize>) -> Result<Self, ContestError> {
        let of = |error: std::io::Error| ContestError::of(&error);
        let folder = scratch().map_err(of)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let config = folder.path().join("target.yaml");
        fs::write(&config, setup.yaml(address, folder.path())).map_err(of)?;
        let _pinned = core.map(Pinned::to).transpose().map_err(of)?;
        let mut command = Command::new(daemon::binary("godwit-target"));
        let mut process = Process::try_start(command.arg("--config").arg(&config)).map_err(of)?;
        process.await_word("listening on ").map_err(|error| ContestError::of(&error))?;
        Ok(Self { process, address, crc: setup.crc, folder })
    }

    /// Where its daemon can be asked.
    pub fn control(&self) -> PathBuf {
        control(self.folder.path())
    }

    /// `godwit bench` on a namespace of it, before it is told what to measure. The report goes to [`Self::report`].
    pub fn bench(&self, nsid: u32, report: &str) -> Command {
        let mut command = Command::new(daemon::binary("godwit"));
        let url = format!("{}?nsid={nsid}&crc={}", daemon::url(self.address), switch(self.crc));
        command.args(["bench", &url, "--poll", POLL, "--allow-writes"]);
        command.arg("--target-control").arg(self.control()).arg("--json").arg(self.folder.path().join(report));
        command
    }

    /// What `godwit bench` has written.
    ///
    /// # Errors
    ///
    /// When it is no report.
    pub fn report(&self, name: &str) -> Result<Report, ContestError> {
        let text = fs::read_to_string(self.folder.path().join(name)).map_err(|error| ContestError::of(&error))?;
        Report::read(&text).map_err(|error| ContestError::of(&error))
    }

    /// Runs `godwit bench` with `arguments` for a time each.
    ///
    /// # Errors
    ///
    /// When it fails, or the user does not want to wait.
    pub fn measure(
        &self,
        nsid: u32,
        arguments: &[String],
        time: Duration,
        core: Option<usize>,
        stop: &AtomicBool,
    ) -> Result<Vec<CaseReport>, ContestError> {
        let mut command = self.bench(nsid, "report.json");
        command.args(arguments).args(["--ramp", "0", "--time", &time.as_secs().max(1).to_string()]);
        let mut process = {
            let _pinned = core.map(Pinned::to).transpose().map_err(|error| ContestError::of(&error))?;
            Process::try_start(&mut command).map_err(|error| ContestError::of(&error))?
        };
        finish(&mut process, time * 8 + PATIENCE, stop)?;
        Ok(self.report("report.json")?.cases)
    }

    /// Writes a namespace once: what was never written is answered faster than data.
    ///
    /// # Errors
    ///
    /// As [`Self::measure`].
    pub fn fill(&self, nsid: u32, stop: &AtomicBool) -> Result<(), ContestError> {
        let arguments = ["--rw", "write", "--bs", "128k", "--qd", "8", "--fill"].map(str::to_owned);
        self.measure(nsid, &arguments, Duration::from_secs(1), None, stop).map(|_| ())
    }
}

/// The arguments of `godwit bench` for a case.
pub fn arguments(case: &Case) -> Vec<String> {
    let mut arguments = ["--rw", case.pattern, "--bs"].map(str::to_owned).to_vec();
    arguments.extend([case.block_bytes.to_string(), "--qd".to_owned(), case.depth.to_string()]);
    if let Some(Rate { per_second, burst }) = case.rate {
        arguments.extend(["--rate".to_owned(), per_second.to_string(), "--burst".to_owned(), burst.to_string()]);
    }
    arguments
}

/// A target and `godwit bench` as they are compared.
#[derive(Debug)]
pub struct Ours {
    name: &'static str,
    target: Target,
    core: Option<usize>,
}

impl Ours {
    /// Starts the target on the first core, and fills its namespace; `godwit bench` will be on the second.
    ///
    /// # Errors
    ///
    /// When it does not come up.
    pub fn start(name: &'static str, setup: &Setup, cores: Option<[usize; 2]>, stop: &AtomicBool) -> Result<Self, ContestError> {
        let target = Target::start(setup, cores.map(|[first, _]| first))?;
        target.fill(1, stop)?;
        Ok(Self { name, target, core: cores.map(|[_, second]| second) })
    }
}

impl Contestant for Ours {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run(&mut self, case: &Case, time: Duration, stop: &AtomicBool) -> Result<Figures, ContestError> {
        let cases = self.target.measure(1, &arguments(case), time, self.core, stop)?;
        cases.first().map(Figures::from).ok_or_else(|| ContestError::Failed("an empty report".to_owned()))
    }
}

impl From<&CaseReport> for Figures {
    fn from(report: &CaseReport) -> Self {
        Self {
            iops: report.iops,
            bytes_per_second: report.bytes_per_second,
            mean_us: report.latency.mean_us,
            p50_us: Some(report.latency.p50_us),
            p99_us: Some(report.latency.p99_us),
            cpu_us: report.cpu_us_per_io.zip(report.target_cpu_us_per_io).map(|(own, target)| own + target),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::AT_A_RATE;
    use super::*;

    #[test]
    fn a_configuration_says_what_was_asked_for_and_is_one() {
        let setup = Setup { stores: vec![Store::Memory(1 << 20), Store::File("/srv/a b.img".into())], ..Setup::of(Store::Memory(0)) };
        let text = setup.yaml("127.0.0.1:4420".parse().unwrap(), Path::new("/tmp/x"));
        for line in ["crc: off", "reactors: 1", "controllers: 256", "nsid: 1, block_size: 4096, backend: { memory: { size: 1048576 } }"] {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.contains("nsid: 2, block_size: 4096, backend: { file: { path: \"/srv/a b.img\" } }"), "{text}");
        godwit_config::Target::parse(&text, "target.yaml", false).unwrap();
    }

    #[test]
    fn a_case_is_told_to_the_bench_in_its_words() {
        assert_eq!(arguments(&AT_A_RATE).join(" "), "--rw randread --bs 4096 --qd 32 --rate 20000 --burst 20");
    }
}
