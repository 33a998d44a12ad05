//! nbdkit as a daemon that ends with its owner.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::process;
use super::stage::StageError;
use crate::daemon::Process;

/// How long it may take to come up, and to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running nbdkit, ended when this is dropped.
#[derive(Debug)]
pub struct Nbdkit {
    pid: i32,
}

impl Nbdkit {
    /// Starts nbdkit with `arguments` beside those that make it a daemon; it serves when this returns. Paths have to be absolute: the daemon's
    /// working directory is the root.
    ///
    /// # Errors
    ///
    /// When it does not come up.
    pub fn start(pid_file: &Path, arguments: &[String]) -> Result<Self, StageError> {
        // A daemon's parent is gone; without this its remains would be left to the first process, which in a container may not care.
        let _ = prctl::set_child_subreaper(true);
        let mut command = Command::new("nbdkit");
        command.arg("-P").arg(pid_file).args(arguments);
        let mut parent = Process::try_start(&mut command).map_err(|source| StageError::Io { what: "start nbdkit".to_owned(), source })?;
        let deadline = Instant::now() + PATIENCE;
        // The daemon writes its pid when it serves; the parent ends before or after, or alone when it fails.
        loop {
            let pid = fs::read_to_string(pid_file).ok().filter(|text| text.ends_with('\n')).and_then(|text| text.trim().parse().ok());
            if let Some(pid) = pid {
                return Ok(Self { pid });
            }
            let failed = !parent.is_running() && !parent.wait(PATIENCE).success();
            if failed || Instant::now() > deadline {
                return Err(StageError::Nbdkit(parent.output().trim_end().to_owned()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    fn signal_and_wait(&self, signal: Signal) -> bool {
        let deadline = Instant::now() + PATIENCE;
        // Asked for its name first: the number may be another's by now.
        if process::runs(self.pid, "nbdkit") {
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
        while process::runs(self.pid, "nbdkit") && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        !process::runs(self.pid, "nbdkit")
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        if !self.signal_and_wait(Signal::SIGTERM) {
            self.signal_and_wait(Signal::SIGKILL);
        }
        let _ = waitpid(Pid::from_raw(self.pid), Some(WaitPidFlag::WNOHANG));
    }
}
