//! A volume of ours as a block device of the guest's kernel.

use std::path::PathBuf;
use std::process::Command;

use super::disk::Disk;
use crate::daemon::{Process, binary};

/// `godwit connect --device`, which can be killed and started again.
#[derive(Debug)]
pub struct Attached {
    command: Command,
    /// The daemon.
    pub process: Process,
    /// The device that it serves.
    pub disk: Disk,
}

impl Attached {
    /// Attaches the volume at a URL as a device that is free.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn start(url: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(binary("godwit"));
        command.args(["connect", url]).args(arguments);
        if !arguments.contains(&"--device") {
            command.args(["--device", "auto"]);
        }
        let (process, disk) = start(&mut command);
        Self { command, process, disk }
    }

    /// Its name in /dev, without the folder.
    pub fn name(&self) -> String {
        self.disk.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts the daemon once more, as it was started first.
    ///
    /// # Panics
    ///
    /// When it does not come up, or makes another device.
    pub fn start_again(&mut self) {
        let (process, disk) = start(&mut self.command);
        assert_eq!(disk.path(), self.disk.path(), "it resumes its device");
        self.process = process;
    }
}

fn start(command: &mut Command) -> (Process, Disk) {
    let mut process = Process::start(command);
    process.await_word("ready: ").unwrap_or_else(|error| panic!("{error}"));
    let output = process.output();
    let path = output.lines().find_map(|line| line.strip_prefix("ready: ")?.split(' ').next()).unwrap_or_default();
    (process, Disk::at(PathBuf::from(path)))
}
