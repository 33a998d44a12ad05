//! What `make install` and the Debian packages bring to a machine.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use godwit_tests::daemon::binary;
use godwit_tests::tools::{run, run_failing};
use tempfile::TempDir;

/// The systemd that is here counts settings of its own: 3 is where it stops to say OK.
const MOST_EXPOSED: f64 = 3.0;

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn built() -> PathBuf {
    binary("godwit").ancestors().nth(1).unwrap().to_owned()
}

fn script(doing: &str, destination: &Path, prefix: &str) -> Command {
    let mut command = Command::new(checkout().join("scripts/install"));
    command.arg(doing).arg(built()).env("DESTDIR", destination).env("PREFIX", prefix).env_remove("SYSCONFDIR");
    command
}

fn installed() -> TempDir {
    let destination = tempfile::tempdir().unwrap();
    run(&mut script("install", destination.path(), "/usr"));
    destination
}

/// The files under a folder, as paths from there.
fn files(folder: &Path) -> Vec<String> {
    let listed = run(Command::new("find").args([".", "-not", "-type", "d", "-printf", "%P\\n"]).current_dir(folder));
    let mut files: Vec<_> = listed.lines().map(str::to_owned).collect();
    files.sort();
    files
}

/// The commands that `godwit --help` tells of.
fn commands() -> Vec<String> {
    let help = run(Command::new(binary("godwit")).arg("--help"));
    let section = help.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    let names = section.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.map(|line| line.split_whitespace().next().unwrap().to_owned()).filter(|name| name != "help").collect()
}

#[test]
fn everything_is_installed_where_it_is_looked_for() {
    let destination = installed();
    let mut expected = vec![
        "etc/godwit/target.yaml.sample",
        "usr/bin/godwit",
        "usr/bin/godwit-target",
        "usr/lib/modules-load.d/godwit.conf",
        "usr/lib/systemd/system/godwit-again@.service",
        "usr/lib/systemd/system/godwit-initiator.service",
        "usr/lib/systemd/system/godwit-shutdown.service",
        "usr/lib/systemd/system/godwit-target.service",
        "usr/lib/systemd/system/godwit-volume@.service",
        "usr/share/bash-completion/completions/godwit",
        "usr/share/bash-completion/completions/godwit-target",
        "usr/share/fish/vendor_completions.d/godwit-target.fish",
        "usr/share/fish/vendor_completions.d/godwit.fish",
        "usr/share/man/man1/godwit-target-reload.1",
        "usr/share/man/man1/godwit-target-reopen.1",
        "usr/share/man/man1/godwit-target-status.1",
        "usr/share/man/man1/godwit-target.1",
        "usr/share/man/man1/godwit.1",
        "usr/share/zsh/site-functions/_godwit",
        "usr/share/zsh/site-functions/_godwit-target",
        "etc/godwit/initiator.yaml.sample",
    ]
    .into_iter()
    .map(str::to_owned)
    .collect::<Vec<_>>();
    let commands = commands();
    assert!(commands.len() >= 6, "{commands:?}");
    expected.extend(commands.iter().map(|command| format!("usr/share/man/man1/godwit-{command}.1")));
    expected.sort();
    assert_eq!(files(destination.path()), expected);
}

#[test]
fn pages_refer_to_pages_that_are_installed() {
    let destination = installed();
    let folder = destination.path().join("usr/share/man/man1");
    let mut found = 0;
    for page in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
        let text = fs::read_to_string(&page).unwrap().replace("\\-", "-");
        for (end, _) in text.match_indices("(1)") {
            let name = text[..end].rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap();
            if name.starts_with("godwit") {
                found += 1;
                assert!(folder.join(format!("{name}.1")).exists(), "{} refers to {name}(1)", page.display());
            }
        }
    }
    assert!(found >= 8, "{found} references");
}

#[test]
fn nothing_is_left_but_configurations() {
    let destination = installed();
    let configuration = destination.path().join("etc/godwit/target.yaml");
    fs::write(&configuration, "mine").unwrap();
    run(&mut script("install", destination.path(), "/usr"));
    run(&mut script("uninstall", destination.path(), "/usr"));
    assert_eq!(files(destination.path()), ["etc/godwit/target.yaml"]);
    assert_eq!(fs::read_to_string(&configuration).unwrap(), "mine");
    fs::remove_file(&configuration).unwrap();
    run(&mut script("uninstall", destination.path(), "/usr"));
    assert!(!destination.path().join("etc/godwit").exists());
}

#[test]
fn a_program_that_was_not_built_is_said() {
    let (nowhere, destination) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = Command::new(checkout().join("scripts/install"));
    let said = run_failing(command.arg("install").arg(nowhere.path()).env("DESTDIR", destination.path())).1;
    assert!(said.contains("make build"), "{said}");
    assert_eq!(files(destination.path()), [] as [String; 0]);
}

/// With programs where the units name them. A second prefix shows that they name the programs of that prefix.
#[test]
fn systemd_finds_no_fault_in_the_units() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().display().to_string();
    let mut command = script("install", Path::new(""), &prefix);
    run(command.env("SYSCONFDIR", folder.path().join("etc")));
    let units = folder.path().join("lib/systemd/system");
    let instances = ["godwit-target.service", "godwit-initiator.service", "godwit-volume@vol0.service", "godwit-shutdown.service"];
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).args(instances).arg("godwit-again@godwit-volume@vol0.service.service");
    let output = verify.env("SYSTEMD_UNIT_PATH", format!("{}:", units.display())).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // Units of this machine may have faults of their own.
    let ours: Vec<_> = said.lines().filter(|line| line.contains("godwit")).collect();
    assert_eq!(ours, [] as [&str; 0]);
    assert!(output.status.success(), "{said}");
}

#[test]
fn the_target_is_exposed_as_little_as_it_can_be() {
    let unit = checkout().join("config/systemd/godwit-target.service");
    let mut analyze = Command::new("systemd-analyze");
    let said = run(analyze.args(["security", "--offline=true", "--no-pager"]).arg(&unit));
    let line = said.lines().find(|line| line.contains("Overall exposure level")).unwrap_or_else(|| panic!("{said}"));
    let exposure: f64 = line.split_once(": ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
    assert!(exposure < MOST_EXPOSED, "{said}");
}

/// The packages have what an installation has: units, manual pages and completions as a whole, the program, the configuration that is kept.
#[test]
fn the_debian_packages_are_described() {
    for (folder, program, units) in
        [("target", "godwit-target", &["godwit-target"][..]), ("initiator", "godwit", &["godwit-initiator"][..])]
    {
        let manifest = fs::read_to_string(checkout().join(folder).join("Cargo.toml")).unwrap();
        let section = manifest.split_once("[package.metadata.deb]").unwrap_or_else(|| panic!("{folder} has none")).1;
        for asset in [
            format!("[\"target/release/{program}\", \"usr/bin/\", \"755\"]"),
            format!("[\"target/release/package/{folder}/usr/**/*\", \"usr/\", \"644\"]"),
            format!("[\"../config/samples/{folder}.yaml\", \"etc/godwit/{folder}.yaml\", \"644\"]"),
        ] {
            assert!(section.contains(&asset), "{folder}: {asset}");
        }
        for unit in units {
            assert!(section.contains(&format!("unit-name = \"{unit}\"")), "{folder}: {unit}");
        }
        let sources = section.lines().filter_map(|line| line.trim().strip_prefix("[\"../")?.split('"').next());
        for source in sources {
            assert!(checkout().join(source).exists(), "{folder}: {source} is not there");
        }
    }
}
