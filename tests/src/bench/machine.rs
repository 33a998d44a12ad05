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
    /// Threads that others had running or waiting for a core, of late, before anything was measured.
    pub load: Option<f64>,
}

/// From this on, what is measured is as much about others as about the programs.
const LOADED: f64 = 0.5;

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
            load: fs::read_to_string("/proc/loadavg").ok().and_then(|text| load_of(&text)),
        }
    }

    /// What to say of a machine that is at work already.
    pub fn warning(&self) -> Option<String> {
        let load = self.load.filter(|load| *load > LOADED)?;
        Some(format!(
            "this machine is at work already (load {load}): the spread will be wide, and ratios of what polls to what sleeps are off"
        ))
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

/// The mean of the last minute.
fn load_of(loadavg: &str) -> Option<f64> {
    loadavg.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_at_work_is_told_of() {
        let machine = |text: &str| Machine { load: load_of(text), ..Machine::default() };
        assert!(machine("5.87 5.47 5.03 4/310 31241\n").warning().unwrap().contains("(load 5.87)"));
        assert_eq!(machine("0.31 5.47 5.03 1/310 31241\n").warning(), None);
        assert_eq!(machine("").warning(), None);
    }
}
