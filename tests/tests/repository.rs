//! Rules that hold for the repository as a whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The top of the checkout.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in the checkout").to_owned()
}

fn git(arguments: &[&str]) -> String {
    let output = Command::new("git").arg("-C").arg(root()).args(arguments).output().expect("git runs");
    String::from_utf8(output.stdout).expect("names of files are UTF-8")
}

/// The Rust files under version control or about to be, as paths from the top.
fn sources() -> Vec<String> {
    let listed = git(&["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"]);
    let sources: Vec<String> = listed.lines().filter(|path| root().join(path).exists()).map(str::to_owned).collect();
    assert!(sources.len() > 50, "git lists too few files: {sources:?}");
    sources
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The lines of code: without comments, and without what is between quotes.
fn code(text: &str) -> impl Iterator<Item = String> + '_ {
    text.lines().map(|line| {
        let outside_quotes: Vec<&str> = line.split('"').step_by(2).collect();
        outside_quotes.join("\"\"").split("//").next().unwrap_or_default().to_owned()
    })
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

#[test]
fn the_crate_in_the_folder_target_is_not_taken_for_build_output() {
    assert_eq!(git(&["check-ignore", "target/src/lib.rs", "target/Cargo.toml", "target/tests/new.rs"]), "");
    assert_eq!(git(&["check-ignore", "build/debug"]).trim(), "build/debug");
    assert!(read(".cargo/config.toml").contains("target-dir = \"build\""));
}

#[test]
fn unsafe_is_fenced_into_three_crates() {
    let fenced = ["common/memory/", "common/reactor/", "common/rdma/"];
    for path in sources() {
        if fenced.iter().any(|crate_path| path.starts_with(crate_path)) {
            continue;
        }
        for (number, line) in code(&read(&path)).enumerate() {
            // NVMe counts these, and what is said of them may take several lines.
            let line = line.replace("unsafe shutdown", "");
            assert!(!has_word(&line, "unsafe"), "{path}:{}: {line}", number + 1);
        }
    }
}

#[test]
fn the_soft_provider_needs_no_unsafe() {
    let soft: Vec<_> = sources().into_iter().filter(|path| path.starts_with("common/rdma/src/soft/")).collect();
    assert!(!soft.is_empty());
    for path in soft {
        assert!(!code(&read(&path)).any(|line| has_word(&line, "unsafe")), "{path}");
    }
}

#[test]
fn protocol_cores_configuration_and_daemons_forbid_unsafe() {
    let roots = [
        "common/nvme/src/lib.rs",
        "common/iwarp/src/lib.rs",
        "common/nbd/src/lib.rs",
        "common/control/src/lib.rs",
        "config/src/lib.rs",
        "target/src/lib.rs",
        "target/src/main.rs",
        "initiator/src/lib.rs",
        "initiator/src/main.rs",
    ];
    for path in roots {
        assert!(read(path).lines().any(|line| line == "#![forbid(unsafe_code)]"), "{path} does not forbid unsafe code");
    }
}

#[test]
fn protocol_cores_do_no_input_or_output() {
    for path in sources() {
        let is_core = ["common/nvme/src/", "common/iwarp/src/", "common/nbd/src/"].iter().any(|core| path.starts_with(core));
        if !is_core {
            continue;
        }
        for (number, line) in code(&read(&path)).enumerate() {
            let touches = ["std::net", "std::fs", "std::thread", "std::time::Instant", "SystemTime"].iter().any(|name| line.contains(name));
            assert!(!touches, "{path}:{}: {line}", number + 1);
        }
    }
}

#[test]
fn no_source_file_is_too_long_to_hold_one_idea() {
    for path in sources() {
        let lines = read(&path).lines().count();
        assert!(lines <= 900, "{path} has {lines} lines");
    }
}

#[test]
fn every_module_says_what_it_is() {
    let is_test = |path: &String| path.ends_with("/tests.rs") || path.contains("/tests/");
    for path in sources().into_iter().filter(|path| !is_test(path)) {
        let text = read(&path);
        let first = text.lines().find(|line| !line.is_empty() && !line.starts_with("#!")).unwrap_or_default();
        assert!(first.starts_with("//!"), "{path} has no header");
    }
}

#[test]
fn the_rules_see_what_they_look_for() {
    let text = "let a = \"word\"; // word\nword { b() }\nword_and_more\n";
    let found: Vec<bool> = code(text).map(|line| has_word(&line, "word")).collect();
    assert_eq!(found, [false, true, false]);
}
