//! The program by which blktests drives our target: what it starts serves one host, and nothing of it stays.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use godwit_tests::daemon::{binary, free_port};
use godwit_tests::tools::{run, run_failing};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349";
const SUBSYSTEM: &str = "nqn.2026-11.org.example:blktests";
const UUID: &str = "91fdba0d-f87b-4c25-b80f-db7be1418b9e";

/// The program, with an environment of its own.
struct Control {
    target: PathBuf,
    folder: tempfile::TempDir,
    listen: String,
}

impl Control {
    fn new() -> Self {
        let listen = format!("iwarp://127.0.0.1:{}", free_port());
        Self { target: binary("godwit-target"), folder: tempfile::tempdir().unwrap(), listen }
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/blktests-target"));
        command.env("GODWIT_TARGET", &self.target).env("GODWIT_LISTEN", &self.listen).env("GODWIT_STATE", self.state());
        command.env("NVME_IMG_SIZE", "8m").envs([("GODWIT_BACKEND", ""), ("GODWIT_BLOCK_SIZE", ""), ("GODWIT_TARGET_LOG", "")]);
        command.args(arguments);
        command
    }

    fn setup(&self) -> Command {
        self.command(&["setup", "--subsysnqn", SUBSYSTEM, "--subsys-uuid", UUID, "--hostnqn", HOST])
    }

    fn cleanup(&self) -> Command {
        self.command(&["cleanup", "--subsysnqn", SUBSYSTEM])
    }

    /// The process that a setup left running.
    fn pid(&self) -> i32 {
        fs::read_to_string(self.state().join("pid")).unwrap().split(' ').next().unwrap().parse().unwrap()
    }

    fn discovers(&self, host: &str) -> bool {
        run(Command::new(binary("godwit")).args(["discover", &self.listen, "--hostnqn", host])).contains(SUBSYSTEM)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // A test that failed must not leave its target.
        let _ = self.cleanup().output();
    }
}

fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie has ended: nobody may be there to wait for it.
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('Z'))
}

#[test]
fn tells_blktests_where_the_target_is() {
    let control = Control::new();
    let port = control.listen.rsplit(':').next().unwrap();
    let values = [
        ("blkdev-type", "file"),
        ("trtype", "rdma"),
        ("hostnqn", HOST),
        ("hostid", "0f01fb42-9f7f-4856-b0b3-51e60b8de349"),
        ("host-traddr", "127.0.0.1"),
        ("traddr", "127.0.0.1"),
        ("trsvid", port),
        ("subsys-uuid", UUID),
        ("subsysnqn", SUBSYSTEM),
    ];
    for (name, value) in values {
        assert_eq!(run(&mut control.command(&["config", &format!("--show-{name}")])).trim_end(), value, "{name}");
    }
    let v6 = run(control.command(&["config", "--show-traddr"]).env("GODWIT_LISTEN", "rdma://[fd00::1]:4421"));
    assert_eq!(v6.trim_end(), "fd00::1");
}

#[test]
fn what_setup_starts_serves_its_host_until_cleanup() {
    let control = Control::new();
    run(&mut control.setup());
    assert!(control.discovers(HOST));
    assert!(!control.discovers("nqn.2026-11.org.example:stranger"));
    let pid = control.pid();
    run(&mut control.cleanup());
    assert!(!runs(pid));
    assert!(!control.state().exists());
}

#[test]
fn setup_replaces_the_target_that_a_failed_test_left() {
    let control = Control::new();
    run(&mut control.setup());
    let left = control.pid();
    run(&mut control.setup());
    assert!(!runs(left));
    assert!(control.discovers(HOST));
    run(&mut control.cleanup());
    assert!(!control.state().exists());
}

#[test]
fn cleanup_tells_of_a_target_that_ended_by_itself() {
    let control = Control::new();
    run(&mut control.setup());
    kill(Pid::from_raw(control.pid()), Signal::SIGKILL).unwrap();
    let (code, said) = run_failing(&mut control.cleanup());
    assert!(code == 1 && said.contains("ended by itself"), "{code}: {said}");
    assert!(!control.state().exists());
    let (code, said) = run_failing(&mut control.cleanup());
    assert!(code == 1 && said.contains("no target to clean up"), "{code}: {said}");
}

#[test]
fn a_process_that_only_has_the_id_of_the_target_is_left_alone() {
    let control = Control::new();
    run(&mut control.setup());
    kill(Pid::from_raw(control.pid()), Signal::SIGKILL).unwrap();
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    let started = fs::read_to_string(control.state().join("pid")).unwrap();
    let start = started.split(' ').nth(1).unwrap();
    fs::write(control.state().join("pid"), format!("{} {start}", other.id())).unwrap();
    // The clock of starts ticks a hundred times a second, and the target started more than one tick before.
    let (_, said) = run_failing(&mut control.cleanup());
    let unharmed = other.try_wait().unwrap().is_none();
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(unharmed && said.contains("ended by itself"), "{said}");
}

#[test]
fn a_setup_that_fails_says_why_and_leaves_nothing() {
    let control = Control::new();
    // Environment, arguments, exit code, words.
    type Refusal<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], i32, &'a str);
    let refused: [Refusal<'_>; 6] = [
        (&[("NVME_IMG_SIZE", "1k"), ("GODWIT_BLOCK_SIZE", "4096")], &[], 1, "not a multiple of the block size"),
        (&[("NVME_IMG_SIZE", "much")], &[], 2, "NVME_IMG_SIZE"),
        (&[("GODWIT_LISTEN", "tcp://127.0.0.1")], &[], 2, "GODWIT_LISTEN"),
        (&[("GODWIT_TARGET", "/nowhere/godwit-target")], &[], 1, "GODWIT_TARGET"),
        (&[], &["--hostkey", "DHHC-1:00:secret:"], 1, "does not authenticate"),
        (&[], &["--ports"], 2, "--ports"),
    ];
    for (environment, arguments, expected, words) in refused {
        let (code, said) = run_failing(control.setup().envs(environment.iter().copied()).args(arguments));
        assert!(code == expected && said.contains(words) && said.lines().count() == 1, "{code}: {said}");
        assert!(!control.state().exists(), "{said}");
    }
}
