//! What the figures were measured on.

use std::fs;
use std::process::Command;

/// The machine and the programs on it.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Model of its processor.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Release of its kernel.
    pub kernel: String,
    /// What each program says its version is.
    pub programs: Vec<String>,
}

impl Machine {
    /// This machine.
    pub fn look() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown processor");
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            processor: model.trim_start_matches(|c: char| c.is_whitespace() || c == ':').to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
            programs: ["fio", "nbdkit", "qemu-storage-daemon", "qemu-nbd"].into_iter().filter_map(version).collect(),
        }
    }

    /// One line.
    pub fn describe(&self) -> String {
        format!("{} ({} cores), Linux {}; {}", self.processor, self.cores, self.kernel, self.programs.join(", "))
    }
}

fn version(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned)
}
