//! Verified writes that go on while something happens.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use godwit_initiator::demo::fio::report;
use nix::sys::signal::Signal;

use crate::daemon::{Process, wait_for};

/// How long fio may take to end: what it has under way may wait for a controller to come back.
const PATIENCE: Duration = Duration::from_secs(90);

/// What fio exits with when it was told to stop.
const INTERRUPTED: i32 = 128;

/// How many blocks fio writes before it reads them back.
const BACKLOG: u64 = 32;

/// A running fio, which reads back what it has written a while ago, and checks it.
#[derive(Debug)]
pub struct Load {
    fio: Process,
}

impl Load {
    /// Starts to write to a disk, or to a file that is made for it, past the page cache; more arguments are fio's.
    ///
    /// # Panics
    ///
    /// When fio does not start.
    pub fn start(path: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new("fio");
        command.args(["--name=job", "--output-format=json", "--ioengine=libaio", "--direct=1", "--rw=randwrite", "--bs=4k"]);
        command.args(["--iodepth=8", "--size=16m", "--time_based", "--runtime=1h"]);
        command.args(["--verify=crc32c", "--verify_fatal=1"]).arg(format!("--verify_backlog={BACKLOG}"));
        command.arg(format!("--filename={}", path.display())).args(arguments);
        let mut fio = Process::start(&mut command);
        assert!(fio.is_running(), "{}", fio.output());
        Self { fio }
    }

    /// Whether it still goes on.
    pub fn is_running(&mut self) -> bool {
        self.fio.is_running()
    }

    /// Waits until `written`, a count of writes that have been done, has grown by as many as there are under way and more.
    ///
    /// # Panics
    ///
    /// When it does not, or fio has ended.
    pub fn await_progress(&mut self, mut written: impl FnMut() -> u64) {
        let before = written();
        wait_for("the load goes on", PATIENCE, || {
            assert!(self.fio.is_running(), "fio ended:\n{}", self.fio.output());
            written() > before + BACKLOG
        });
    }

    /// Ends it.
    ///
    /// # Panics
    ///
    /// When anything was not as it had been written, or an operation failed.
    pub fn finish(mut self) {
        assert!(self.fio.is_running(), "fio ended before it should:\n{}", self.fio.output());
        self.fio.signal(Signal::SIGINT);
        let status = self.fio.wait(PATIENCE);
        let said = self.fio.output();
        assert_eq!(status.code(), Some(INTERRUPTED), "{said}");
        let report = report(&said).unwrap_or_else(|| panic!("fio printed no report:\n{said}"));
        let job = &report["jobs"][0];
        assert_eq!(job["error"], 0, "{said}");
        for direction in ["read", "write"] {
            assert!(job[direction]["total_ios"].as_u64() >= Some(BACKLOG), "it did next to nothing:\n{said}");
        }
    }

    /// Waits until it ends by itself because its disk is gone; what it said.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn await_failure(mut self) -> String {
        let status = self.fio.wait(PATIENCE);
        let said = self.fio.output();
        assert!(!status.success(), "fio noticed nothing:\n{said}");
        assert!(!said.contains("verify: ") && !said.contains("verify failed"), "it read what it had not written:\n{said}");
        said
    }
}
