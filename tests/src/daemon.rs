//! The two daemons as child processes that end with their test.

use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use godwit_initiator::demo::process::cpu_time;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bench::process;
use crate::lab;

/// The subsystem that tests export by default.
pub const NQN: &str = "nqn.2026-11.org.example:test";

/// How long a daemon may take to come up or to go down. An emulated processor is many times slower.
fn patience() -> Duration {
    Duration::from_secs(if lab::is_inside() { 120 } else { 20 })
}

/// A built binary of the workspace, beside the test binaries.
///
/// # Panics
///
/// When it was not built.
pub fn binary(name: &str) -> PathBuf {
    find_binary(name).unwrap_or_else(|| panic!("{name} is not built beside the test binaries; run `make test`"))
}

/// As [`binary`], where that may not be built.
pub fn find_binary(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    test.ancestors().map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// A TCP port of 127.0.0.1 that was free a moment ago.
///
/// # Panics
///
/// When there is none.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// Waits until `condition` holds.
///
/// # Panics
///
/// When it does not within `limit`.
pub fn wait_for(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A daemon that did not come up.
#[derive(Debug, Clone)]
pub struct NotReady {
    name: String,
    verb: &'static str,
    output: String,
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}; it said: {}", self.name, self.verb, if self.output.is_empty() { "nothing" } else { self.output.trim_end() })
    }
}

impl std::error::Error for NotReady {}

/// A child process, killed when it is dropped, with what it printed.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    output: Arc<Mutex<String>>,
}

impl Process {
    /// Starts a command and collects what it prints.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> Self {
        Self::try_start(command).unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
    }

    /// As [`Self::start`], where the command may be missing.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn try_start(command: &mut Command) -> io::Result<Self> {
        let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let output = Arc::new(Mutex::new(String::new()));
        let streams: [Option<Box<dyn io::Read + Send>>; 2] =
            [child.stdout.take().map(|stream| Box::new(stream) as _), child.stderr.take().map(|stream| Box::new(stream) as _)];
        for stream in streams.into_iter().flatten() {
            let output = Arc::clone(&output);
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let mut output = output.lock().expect("no reader panics");
                    output.push_str(&line);
                    output.push('\n');
                }
            });
        }
        Ok(Self { child, name, output })
    }

    /// Waits until the process is ready.
    ///
    /// # Errors
    ///
    /// When it ends before, or takes too long; with what it said.
    pub fn await_ready(&mut self, mut is_ready: impl FnMut() -> bool) -> Result<(), NotReady> {
        let deadline = Instant::now() + patience();
        while !is_ready() {
            let ended = !self.is_running();
            if ended || Instant::now() > deadline {
                // The readers see the end of the streams a moment later.
                thread::sleep(Duration::from_millis(50));
                let verb = if ended { "ended at once" } else { "does not serve" };
                return Err(NotReady { name: self.name.clone(), verb, output: self.output() });
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Waits until the process has said `text`. A connection would not tell it from a predecessor: the kernel keeps the sockets of a process that was
    /// killed while it takes its rings down.
    ///
    /// # Errors
    ///
    /// As [`Self::await_ready`].
    pub fn await_word(&mut self, text: &str) -> Result<(), NotReady> {
        let output = Arc::clone(&self.output);
        self.await_ready(|| output.lock().is_ok_and(|output| output.contains(text)))
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the process printed so far, on both streams.
    ///
    /// # Panics
    ///
    /// Never in practice.
    pub fn output(&self) -> String {
        self.output.lock().expect("no reader panics").clone()
    }

    /// Sends a signal.
    ///
    /// # Panics
    ///
    /// When the process is gone.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("a process id");
        kill(Pid::from_raw(pid), signal).unwrap_or_else(|error| panic!("cannot signal {}: {error}", self.name));
    }

    /// Kills the process as `kill -9` does, and waits for its end.
    ///
    /// # Panics
    ///
    /// When it cannot be waited for.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().expect("a child can be waited for");
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the process to end by itself.
    ///
    /// # Panics
    ///
    /// When it does not within `limit`.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                // The readers see the end of the streams a moment later.
                thread::sleep(Duration::from_millis(50));
                return status;
            }
            assert!(Instant::now() < deadline, "{} did not end within {limit:?}; it said:\n{}", self.name, self.output());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the process with SIGTERM; the time that it took.
    ///
    /// # Panics
    ///
    /// When it does not exit with 0 in time.
    pub fn terminate(&mut self) -> Duration {
        let started = Instant::now();
        self.signal(Signal::SIGTERM);
        let status = self.wait(patience());
        assert!(status.success(), "{} ended with {status}; it said:\n{}", self.name, self.output());
        started.elapsed()
    }

    /// Resident memory in KiB, from /proc.
    ///
    /// # Panics
    ///
    /// When the process is gone.
    pub fn resident_kib(&self) -> u64 {
        process::resident_kib(self.pid()).expect("the process runs")
    }

    /// Number of open descriptors, from /proc.
    ///
    /// # Panics
    ///
    /// When the process is gone.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("the process runs").count()
    }

    /// Processor time used so far, from /proc.
    ///
    /// # Panics
    ///
    /// When the process is gone.
    pub fn cpu_time(&self) -> Duration {
        cpu_time(self.pid()).expect("the process runs")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- {} said:\n{}", self.name, self.output());
        }
    }
}

/// A running target.
#[derive(Debug)]
pub struct Target {
    /// The process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Target {
    /// Starts a target that exports `export` (the syntax of `--export`) as [`NQN`] on a free port.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn start(export: &str) -> Self {
        Self::start_at(free_port(), export)
    }

    /// Starts a target on a given port of 127.0.0.1.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn start_at(port: u16, export: &str) -> Self {
        let address = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        let mut command = Command::new(binary("godwit-target"));
        command.args(["--export", export, "--listen", &format!("iwarp://{address}"), "--nqn", NQN]);
        Self::start_command(&mut command, address)
    }

    /// Starts a target from a command of one's own, which is to listen at `address`.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn start_command(command: &mut Command, address: SocketAddr) -> Self {
        let mut process = Process::start(command);
        process.await_word("listening on ").unwrap_or_else(|error| panic!("{error}"));
        Self { process, address }
    }

    /// The URL of the subsystem that tests use.
    pub fn url(&self) -> String {
        url(self.address)
    }
}

/// The URL of [`NQN`] at an address.
pub fn url(address: SocketAddr) -> String {
    format!("iwarp://{address}/{NQN}")
}

/// A running initiator with one volume on a Unix socket.
#[derive(Debug)]
pub struct Initiator {
    /// The process.
    pub process: Process,
    /// The NBD socket.
    pub socket: PathBuf,
}

impl Initiator {
    /// Attaches the volume at `url` and serves it at `socket`.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn start(url: &str, socket: &Path) -> Self {
        Self::start_with(url, socket, &[])
    }

    /// As [`Self::start`], with more arguments.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn start_with(url: &str, socket: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(binary("godwit"));
        command.args(["connect", url, "--nbd", &format!("unix:{}", socket.display())]).args(arguments);
        Self::start_command(&mut command, socket)
    }

    /// Starts an initiator from a command of one's own, which is to serve at `socket`.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn start_command(command: &mut Command, socket: &Path) -> Self {
        let mut process = Process::start(command);
        process.await_word("ready: ").unwrap_or_else(|error| panic!("{error}"));
        Self { process, socket: socket.to_owned() }
    }

    /// The NBD URI of the volume.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }
}
