//! Foreign tools: fio, the NBD tools, and what a test needs of the machine.

use std::path::Path;
use std::process::{Command, Output};

use godwit_initiator::demo::fio::report;
use serde_json::Value;

/// Whether a command is there. A test that needs one that is not says so and is not run.
pub fn has(command: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(command).is_file()))
}

/// Whether the test runs as root.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Runs a command to its end.
///
/// # Panics
///
/// When it cannot be started or fails; the message holds what it printed.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    assert!(output.status.success(), "{command:?} ended with {}:\n{}", output.status, said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command that is to fail, and gives what it printed.
///
/// # Panics
///
/// When it cannot be started or succeeds.
pub fn run_failing(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    assert!(!output.status.success(), "{command:?} succeeded:\n{}", said(&output));
    (output.status.code().unwrap_or(-1), said(&output))
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// fio on an NBD export, with `arguments` beside engine and address; its JSON report.
///
/// # Panics
///
/// When fio fails, verification included.
pub fn fio(uri: &str, arguments: &[&str]) -> Value {
    let uri = format!("--uri={uri}");
    fio_with(&[&["--ioengine=nbd", &uri], arguments].concat())
}

/// fio on whatever `arguments` say; its JSON report.
///
/// # Panics
///
/// As [`fio`].
pub fn fio_with(arguments: &[&str]) -> Value {
    let mut command = Command::new("fio");
    command.args(["--name=job", "--output-format=json", "--randrepeat=0"]).args(arguments);
    let text = run(&mut command);
    let report = report(&text).unwrap_or_else(|| panic!("fio printed no report:\n{text}"));
    for job in report["jobs"].as_array().into_iter().flatten() {
        assert_eq!(job["error"], 0, "fio reports an error:\n{text}");
    }
    report
}

/// An nbdsh script on an NBD export, with the handle as `h`.
///
/// # Panics
///
/// When the script fails.
pub fn nbdsh(uri: &str, script: &str) -> String {
    run(nbdsh_command().args(["-u", uri, "-c", script]))
}

/// nbdsh with the system's Python, the one that has the nbd module, whatever other one stands before it in the path.
pub fn nbdsh_command() -> Command {
    let mut command = Command::new("nbdsh");
    command.env("PATH", "/usr/bin:/bin");
    command
}

/// The SHA-256 of a file.
///
/// # Panics
///
/// When it cannot be read.
pub fn sha256(path: &Path) -> String {
    run(Command::new("sha256sum").arg(path)).split_whitespace().next().unwrap_or_default().to_owned()
}
