//! Our target, which can be killed and started again, as a case finds it.

use std::fs;
use std::path::Path;
use std::process::Command;

use godwit_tests::daemon::{NQN, Process, Target, binary};
use godwit_tests::lab::nvme::Host;
use nix::sys::signal::Signal;

use crate::cells::{self, Provider, address};

/// Our target at the address of the RDMA device, for every host.
pub(crate) struct Served {
    command: Command,
    target: Target,
}

impl Served {
    /// Serves a file of the folder, which is made.
    pub(crate) fn file(provider: Provider, folder: &Path, mib: u32) -> Self {
        Self::export(provider, &format!("{},size={mib}MiB", folder.join("disk.img").display()))
    }

    /// Serves what the argument of `--export` says.
    pub(crate) fn export(provider: Provider, export: &str) -> Self {
        let mut command = Command::new(binary("godwit-target"));
        command.args(["--export", export, "--listen", &provider.url(address()), "--nqn", NQN, "--allow-any-host-remote"]);
        Self::start(command)
    }

    /// Serves a file of the folder to the first host, under limits: a YAML mapping.
    pub(crate) fn limited(folder: &Path, mib: u32, limits: &str) -> Self {
        write_configuration(folder, mib, limits);
        let mut command = Command::new(binary("godwit-target"));
        command.arg("--config").arg(folder.join("target.yaml"));
        Self::start(command)
    }

    fn start(mut command: Command) -> Self {
        let target = Target::start_command(&mut command, address());
        Self { command, target }
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        &mut self.target.process
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.target.process.kill();
    }

    /// Starts it once more, as it was started first. With a configuration file, that may say something else now.
    pub(crate) fn start_again(&mut self) {
        self.target = Target::start_command(&mut self.command, address());
    }

    /// Takes its processor away.
    pub(crate) fn stall(&self) {
        self.target.process.signal(Signal::SIGSTOP);
    }

    /// Gives it back.
    pub(crate) fn resume(&self) {
        self.target.process.signal(Signal::SIGCONT);
    }

    /// Ends it as its user does.
    pub(crate) fn finish(mut self) {
        cells::finish(&mut self.target.process);
    }
}

/// Writes the configuration that [`Served::limited`] reads.
pub(crate) fn write_configuration(folder: &Path, mib: u32, limits: &str) {
    let disk = folder.join("disk.img");
    let text = format!(
        "listeners:\n  - {{ transport: iwarp, address: \"{}\" }}\nlimits: {limits}\nsubsystems:\n  - nqn: {NQN}\n    hosts: [{}]\n    \
         namespaces:\n      - nsid: 1\n        backend: {{ file: {{ path: {}, size: {mib}MiB, create: true }} }}\n",
        address(),
        Host::numbered(1).nqn,
        disk.display()
    );
    fs::write(folder.join("target.yaml"), text).unwrap();
}
