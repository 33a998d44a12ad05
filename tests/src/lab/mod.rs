//! The kernel lab: tests that run under a Linux kernel of their own, in a QEMU guest, where there are RDMA devices and Linux's own NVMe host and target.
//!
//! A case is a test whose body is given to [`in_guest`]. On this machine that boots a guest, whose root folder is this machine's, and runs the very same
//! test of the very same binary in it; in the guest it runs the body. So a case uses the harness and the built daemons as any other test does:
//!
//! ```ignore
//! #[test]
//! #[ignore = "needs root and QEMU: make lab"]
//! fn linux_connects() {
//!     lab::in_guest(&Guest::with(Device::Siw), || {
//!         let target = Target::start_command(...);
//!         Host::first().connect(target.address, NQN, &[]);
//!     });
//! }
//! ```
//!
//! It fails when the body fails, when the guest dies or takes too long, and when its kernel complains ([`kernel_log`]). A guest that is [`shared`](Guest::shared)
//! stays for other cases when all has gone well.

pub mod attached;
pub mod bare_host;
pub mod block_trace;
pub mod cable;
pub mod disk;
pub mod drive;
pub mod filesystem;
pub mod flaky;
pub mod kernel_log;
pub mod load;
mod machine;
pub mod nvme;
pub mod nvmet;
pub mod rdma;
pub mod systemd;

use std::fs;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

pub use machine::{Ended, Run, Running};

use crate::tools::run;
use drive::Drive;
use rdma::Device;

/// What a guest has in its environment and nothing else has.
const INSIDE: &str = "GODWIT_LAB_GUEST";

/// The folder that guest and driver share, as the guest sees it.
const SHARED: &str = "/lab";

/// What a case leaves there when it begins.
const STARTED: &str = "started";

/// What the body leaves there when it has come to its end.
const PASSED: &str = "passed";

/// A test program and two daemons, their files, and what the kernel's target has for a disk.
const MEMORY_MIB: u32 = 2048;

/// Two, so that what happens at the same time shows.
const PROCESSORS: u32 = 2;

/// How many lines of a log a failure shows.
const TAIL: usize = 60;

/// A kernel that guests boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// The one that counts.
    Linux6_12,
    /// The oldest that is supported.
    Linux6_1,
}

impl Kernel {
    /// Its series, as Debian names it.
    pub fn series(self) -> &'static str {
        match self {
            Self::Linux6_12 => "6.12",
            Self::Linux6_1 => "6.1",
        }
    }
}

/// A TCP port of this machine's loopback that leads to one of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Forwarded {
    here: u16,
    there: u16,
}

/// A guest to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    kernel: Kernel,
    device: Option<Device>,
    limit: Duration,
    kernel_arguments: String,
    systemd: bool,
    shared: bool,
    memory_mib: u32,
    processors: u32,
    drive: Option<Drive>,
    forwarded: Option<Forwarded>,
}

impl Default for Guest {
    fn default() -> Self {
        // Emulation is slow, and another guest and a busy machine slow it down further: many times what a case takes. Where something hangs, the case mostly
        // has a shorter patience of its own.
        Self {
            kernel: Kernel::Linux6_12,
            device: None,
            limit: Duration::from_secs(900),
            kernel_arguments: String::new(),
            systemd: false,
            shared: false,
            memory_mib: MEMORY_MIB,
            processors: PROCESSORS,
            drive: None,
            forwarded: None,
        }
    }
}

impl Guest {
    /// A guest with an RDMA device.
    pub fn with(device: Device) -> Self {
        Self { device: Some(device), ..Self::default() }
    }

    /// Another kernel than 6.12.
    #[must_use]
    pub fn kernel(self, kernel: Kernel) -> Self {
        Self { kernel, ..self }
    }

    /// Another time limit than a quarter of an hour, from the start of QEMU to its end.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// More arguments on the kernel's command line.
    #[must_use]
    pub fn kernel_arguments(self, arguments: &str) -> Self {
        Self { kernel_arguments: arguments.to_owned(), ..self }
    }

    /// A guest of several cases, one after the other, each of which leaves it as it found it. To boot one takes as long as many a case.
    #[must_use]
    pub fn shared(self) -> Self {
        Self { shared: true, ..self }
    }

    /// Another size of memory than 2 GiB.
    #[must_use]
    pub fn memory(self, memory_mib: u32) -> Self {
        Self { memory_mib, ..self }
    }

    /// Another number of processors than two.
    #[must_use]
    pub fn processors(self, processors: u32) -> Self {
        Self { processors, ..self }
    }

    /// A disk, as [`drive::PATH`].
    #[must_use]
    pub fn drive(self, drive: Drive) -> Self {
        Self { drive: Some(drive), ..self }
    }

    /// A network interface, by which who connects to a TCP port of 127.0.0.1 here reaches a port of the guest.
    #[must_use]
    pub fn forward(self, here: u16, there: u16) -> Self {
        Self { forwarded: Some(Forwarded { here, there }), ..self }
    }

    /// Makes what the guest has been given ready for use, in the guest. [`in_guest`] does so by itself.
    ///
    /// # Panics
    ///
    /// When something does not come up.
    pub fn bring_up(&self) {
        if let Some(device) = self.device {
            device.bring_up();
        }
        if self.drive.is_some() {
            drive::bring_up();
        }
        if self.forwarded.is_some() {
            machine::bring_up_network();
        }
    }

    /// Boots the guest and runs the calling test in it, while the test goes on here: there, [`is_inside`] tells it its part.
    ///
    /// # Errors
    ///
    /// When there is no guest to be had here.
    pub fn start(&self) -> Result<Running, Failure> {
        let command = this_test();
        Running::start(self, &command.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Boots the guest, runs a command in it as root, and gives what came of it. What the command prints is printed as it comes.
    ///
    /// # Errors
    ///
    /// When there is no guest to be had here.
    pub fn run(&self, command: &[&str]) -> Result<Run, Failure> {
        machine::run(self, command)
    }
}

/// Why a case failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The machine lacks what the lab needs.
    #[error("the kernel lab cannot run here, `make lab` installs what is missing: {0}")]
    Unavailable(String),
    /// The time limit passed.
    #[error("the guest did not end within {limit:?}; its console ends:\n{console}")]
    TimedOut {
        /// The limit.
        limit: Duration,
        /// The end of what the console showed.
        console: String,
    },
    /// The guest ended before its command did.
    #[error("the guest died; its console ends:\n{console}")]
    Died {
        /// The end of what the console showed.
        console: String,
    },
    /// The test failed in the guest.
    #[error("it failed in the guest, with status {status}, for the reason above; the guest's kernel said at last:\n{kernel_log}")]
    Failed {
        /// The status of the test program.
        status: i32,
        /// The end of the kernel's log.
        kernel_log: String,
    },
    /// The test program ended well, and the body did not come to its end.
    #[error("the test was not run in the guest to its end: is it called from a thread that does not have the test's name?")]
    NotRun,
    /// The test passed, and the kernel complained meanwhile.
    #[error("the guest's kernel complained:\n{0}")]
    KernelComplained(String),
}

/// Runs the body in a guest; the calling test passes if it does there.
///
/// # Panics
///
/// When it fails.
#[track_caller]
pub fn in_guest(guest: &Guest, body: impl FnOnce()) {
    let place = Location::caller();
    if let Err(failure) = try_in_guest(guest, body) {
        panic!("{place}: {failure}");
    }
}

/// As [`in_guest`], for who wants to see it fail.
///
/// # Errors
///
/// Why it failed. In the guest the body's panics pass through.
///
/// # Panics
///
/// When the machine is not as it should be: there is no room for files, for instance.
pub fn try_in_guest(guest: &Guest, body: impl FnOnce()) -> Result<(), Failure> {
    if is_inside() {
        fs::write(Path::new(SHARED).join(STARTED), []).expect("the shared folder can be written to");
        guest.bring_up();
        body();
        fs::write(Path::new(SHARED).join(PASSED), []).expect("the shared folder can be written to");
        return Ok(());
    }
    boot(guest).map(|_| ())
}

/// Boots a guest that runs the calling test.
fn boot(guest: &Guest) -> Result<Run, Failure> {
    let command = this_test();
    let command: Vec<_> = command.iter().map(String::as_str).collect();
    let mut run = guest.run(&command)?;
    if !run.started && !matches!(run.ended, Ended::Exited(_)) {
        // An emulated machine does not always boot, which is nobody's fault that is tested here.
        println!("the guest did not come up; once more. Its console ends:\n{}", tail(&run.console));
        run = guest.run(&command)?;
    }
    match run.ended {
        Ended::TimedOut => return Err(Failure::TimedOut { limit: guest.limit, console: tail(&run.console) }),
        Ended::Died => return Err(Failure::Died { console: tail(&run.console) }),
        Ended::Exited(0) => {}
        Ended::Exited(status) => {
            if !run.journal.is_empty() {
                println!("the guest's journal:\n{}", run.journal);
            }
            return Err(Failure::Failed { status, kernel_log: tail(kernel_log::of_command(&run.kernel_log)) });
        }
    }
    if !run.passed {
        return Err(Failure::NotRun);
    }
    match kernel_log::complaint(&run.kernel_log) {
        None => Ok(run),
        Some(lines) => Err(Failure::KernelComplained(lines)),
    }
}

/// The command that runs the calling test, and no other.
fn this_test() -> Vec<String> {
    // libtest names the thread of a test after it.
    let test = thread::current().name().unwrap_or_default().to_owned();
    let program = std::env::current_exe().expect("the test binary has a path").display().to_string();
    let options = ["--include-ignored", "--nocapture", "--test-threads=1"].map(str::to_owned);
    [vec![program, "--exact".to_owned(), test], options.to_vec()].concat()
}

/// Whether this process runs in a guest.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// The kernel's log so far, in a guest.
///
/// # Panics
///
/// When it cannot be read.
pub fn dmesg() -> String {
    run(&mut Command::new("dmesg"))
}

/// Loads kernel modules.
///
/// # Panics
///
/// When one cannot be loaded.
pub fn modprobe(modules: &[&str]) {
    run(Command::new("modprobe").arg("-a").args(modules));
}

/// One of the scripts in tests/lab.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lab").join(name)
}

fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}
