//! The binary: its exit codes, what it prints, and how it stops.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A started daemon; killed when it is dropped.
struct Daemon {
    child: Child,
    address: SocketAddr,
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_godwit-target"));
    command.args(arguments).env_remove("GODWIT_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

fn output(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command(arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

impl Daemon {
    fn start(arguments: &[&str]) -> Self {
        let mut child = command(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on iwarp://").unwrap_or_else(|| panic!("it printed {line:?}"));
        Self { address: address.parse().unwrap(), child }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    fn exit_code(mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(8);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_says_where_it_listens_and_stops_on_sigterm_and_sigint() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let daemon = Daemon::start(&["--export", "memory:8MiB", "--listen", "iwarp://127.0.0.1:0", "--reactors", "2"]);
        assert_ne!(daemon.address.port(), 0);
        // A peer that says nothing does not keep it from stopping.
        let _silent = TcpStream::connect(daemon.address).unwrap();
        let started = Instant::now();
        daemon.signal(signal);
        assert_eq!(daemon.exit_code(), Some(0));
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn it_says_so_when_the_service_manager_cannot_be_told_that_it_is_ready() {
    let mut command = command(&["--export", "memory:8MiB", "--listen", "iwarp://127.0.0.1:0", "--log-format", "text"]);
    let mut child = command.env("NOTIFY_SOCKET", "/nowhere/notify").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on "), "it serves all the same: {line}");
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let told = said.matches("cannot notify systemd: No such file or directory").count();
    assert_eq!(told, 2, "once for ready, once for stopping: {said}");
}

#[test]
fn rubbish_at_the_port_does_not_hurt_it() {
    let daemon = Daemon::start(&["--export", "memory:8MiB", "--listen", "iwarp://127.0.0.1:0"]);
    for rubbish in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0; 4096], &[0xFF; 70_000]] {
        let mut stream = TcpStream::connect(daemon.address).unwrap();
        let _ = stream.write_all(rubbish);
    }
    std::thread::sleep(Duration::from_millis(100));
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.exit_code(), Some(0));
}

#[test]
fn a_file_is_made_and_keeps_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let export = format!("{},size=4MiB", path.display());
    let daemon = Daemon::start(&["--export", &export, "--listen", "iwarp://127.0.0.1:0"]);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 << 20);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.exit_code(), Some(0));
}

#[test]
fn a_daemon_that_stops_marks_its_file_as_clean_and_one_that_is_killed_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let mark = || std::fs::read_to_string(folder.path().join(".disk.img.godwit")).unwrap();
    let export = format!("{},size=4MiB", path.display());
    let start = || Daemon::start(&["--export", &export, "--listen", "iwarp://127.0.0.1:0"]);
    let daemon = start();
    assert!(mark().contains("\"in use\""), "{}", mark());
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.exit_code(), Some(0));
    assert!(mark().contains("\"clean\"") && mark().contains("\"unsafe_shutdowns\":0"), "{}", mark());
    drop(start());
    assert!(mark().contains("\"in use\""), "{}", mark());
    // One that fails to start has written nothing.
    let (code, _, _) = output(&["--export", &export, "--export", "/nowhere/disk.img", "--listen", "iwarp://127.0.0.1:0", "--log", "error"]);
    assert_eq!(code, Some(1));
    assert!(mark().contains("\"clean\""), "{}", mark());
}

/// Whether this process has CAP_SYS_RESOURCE, which a container may take even from root.
fn may_be_an_io_flusher() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    (u64::from_str_radix(capabilities.trim(), 16).unwrap() >> 24) & 1 == 1
}

#[test]
fn locked_memory_is_locked_in_each_thread_and_none_waits_for_writing_out_or_the_daemon_says_what_is_missing() {
    // PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE of the kernel.
    const FLUSHER: u64 = 0x0008_0000 | 0x0010_0000;
    let arguments = ["--export", "memory:8MiB", "--listen", "iwarp://127.0.0.1:0", "--reactors", "2", "--lock-memory"];
    if !may_be_an_io_flusher() {
        let (code, _, stderr) = output(&arguments);
        assert!(code == Some(1) && stderr.contains("give it CAP_SYS_RESOURCE") && stderr.lines().count() == 1, "{stderr}");
        return;
    }
    let daemon = Daemon::start(&arguments);
    let process = format!("/proc/{}", daemon.child.id());
    let status = std::fs::read_to_string(format!("{process}/status")).unwrap();
    let of = |key: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    // What cannot be locked is not memory: the rings, and what the kernel gives to every process.
    assert!(of("VmLck:") > of("VmRSS:") / 2, "{status}");
    let threads: Vec<_> = std::fs::read_dir(format!("{process}/task")).unwrap().map(|task| task.unwrap().path()).collect();
    assert!(threads.len() >= 4, "{threads:?}");
    for thread in threads {
        let stat = std::fs::read_to_string(thread.join("stat")).unwrap();
        let flags: u64 = stat.rsplit(')').next().unwrap().split_whitespace().nth(6).unwrap().parse().unwrap();
        assert_eq!(flags & FLUSHER, FLUSHER, "{stat}");
    }
}

#[test]
fn what_may_have_been_lost_under_an_earlier_daemon_is_told_with_the_namespace() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk.img");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let mark = folder.path().join(".disk.img.godwit");
    let told = || {
        let (image, url) = (image.to_str().unwrap(), "iwarp://127.0.0.1:0");
        let mut child = command(&["--export", image, "--listen", url, "--reactors", "1", "--log-format", "text"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGKILL).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        let lines = text.lines().filter(|line| line.contains("earlier daemon") && line.contains("nsid=1"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let first = told();
    assert!(first.len() == 1 && first[0].contains("INFO") && first[0].contains("no mark of an earlier daemon"), "{first:?}");
    assert_eq!(told(), Vec::<String>::new(), "killed in the same boot: nothing is lost");
    let record = std::fs::read_to_string(&mark).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let other_boot = "11111111-2222-3333-4444-555555555555";
    assert!(record.contains(boot.trim()), "{record}");
    std::fs::write(&mark, record.replace(boot.trim(), other_boot)).unwrap();
    let lost = told();
    assert!(lost.len() == 1 && lost[0].contains("WARN") && lost[0].contains("nqn=nqn.2026-11.org.example:godwit "), "{lost:?}");
}

#[test]
fn wrong_usage_exits_with_2() {
    assert_eq!(output(&[]).0, Some(2));
    assert_eq!(output(&["--export", "memory:1MiB", "--log", "a=b=c"]).0, Some(2));
    let (code, _, stderr) = output(&["--export", "memory:1000"]);
    assert_eq!(code, Some(2), "{stderr}");
    let (code, _, stderr) = output(&["--config", "/nowhere/target.yaml", "--check"]);
    assert_eq!(code, Some(2));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn who_asks_where_no_daemon_is_hears_where_it_was_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().display().to_string();
    let ask = || {
        let output = command(&["status"]).env("RUNTIME_DIRECTORY", &run).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    // Unless this machine runs one.
    if ["/run/godwit/target.sock", "/run/godwit/target/target.sock"].iter().any(|place| Path::new(place).exists()) {
        return;
    }
    let (code, told) = ask();
    assert_eq!(code, Some(1));
    assert_eq!(
        told,
        format!(
            "godwit-target: no daemon's control socket is at {run}/target.sock, /run/godwit/target.sock, /run/godwit/target/target.sock; \
             start godwit-target, or name its socket with --control PATH\n"
        )
    );
    // One that a daemon has left is there.
    std::fs::write(folder.path().join("target.sock"), "").unwrap();
    assert!(ask().1.contains(&format!("{run}/target.sock: ")), "{told}");
}

#[test]
fn failures_exit_with_1_and_say_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("iwarp://{}", taken.local_addr().unwrap());
    let (code, stdout, stderr) = output(&["--export", "memory:1MiB", "--listen", &url, "--log", "warn"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("address in use; stop the program") && stderr.lines().count() == 1, "{stderr}");

    let missing = Path::new("/nowhere/disk.img").display().to_string();
    let (code, _, stderr) = output(&["--export", &missing, "--listen", "iwarp://127.0.0.1:0", "--log", "warn"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("/nowhere/disk.img") && stderr.lines().count() == 1, "{stderr}");
}

#[test]
fn a_configuration_is_checked_without_touching_anything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("target.yaml");
    let image = folder.path().join("disk.img");
    let configuration = |nsid: &str| {
        format!(
            "listeners:\n  - {{ transport: iwarp, address: \"127.0.0.1:0\" }}\nsubsystems:\n  - nqn: nqn.2026-11.org.example:vol0\n    \
             allow_any_host: true\n    namespaces:\n      - nsid: {nsid}\n        backend: {{ file: {{ path: {}, size: 1MiB, create: true }} }}\n",
            image.display()
        )
    };
    let check = || output(&["--config", path.to_str().unwrap(), "--check"]);
    std::fs::write(&path, configuration("1")).unwrap();
    assert_eq!(check(), (Some(0), "the configuration is right\n".to_owned(), String::new()));
    assert!(!image.exists());
    std::fs::write(&path, configuration("0")).unwrap();
    let (code, _, stderr) = check();
    assert_eq!(code, Some(2));
    assert!(stderr.contains("target.yaml:7:"), "{stderr}");
}

#[test]
fn a_check_names_each_file_device_and_folder_that_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let path = at("target.yaml");
    let backends = [
        format!("{{ file: {{ path: {}, size: 1MiB, create: true }} }}", at("no/a.img")),
        format!("{{ file: {{ path: {} }} }}", at("b.img")),
        format!("{{ file: {{ path: {} }} }}", folder.path().display()),
        format!("{{ device: {{ path: {} }} }}", at("sdz")),
        format!("{{ device: {{ path: {path} }} }}"),
        format!("{{ file: {{ path: {path} }} }}"),
        format!("{{ file: {{ path: {}, size: 1MiB, create: true }} }}", at("c.img")),
    ];
    let mut text =
        "listeners:\n  - { transport: iwarp, address: \"127.0.0.1:0\" }\nsubsystems:\n  - nqn: nqn.2026-11.org.example:vol0\n    \
                    allow_any_host: true\n    namespaces:\n"
            .to_owned();
    for (index, backend) in backends.iter().take(4).chain(&backends[5..]).enumerate() {
        text += &format!("      - nsid: {}\n        backend: {backend}\n", index + 1);
    }
    std::fs::write(&path, &text).unwrap();
    let (code, stdout, stderr) = output(&["--config", &path, "--check"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    let words = [
        (7, "no/a.img: its folder does not exist; make it with mkdir -p"),
        (9, "b.img: no such file; correct the path"),
        (11, " is a directory, not a regular file"),
        (13, "sdz: no such device"),
    ];
    assert_eq!(stderr.lines().count(), words.len(), "{stderr}");
    for (line, (number, words)) in stderr.lines().zip(words) {
        assert!(line.contains(&format!("target.yaml:{number}:")) && line.contains(words), "{line}");
    }
    std::fs::write(&path, text.replace(&backends[3], &backends[4]).replace(&backends[5], "{ memory: { size: 1MiB } }")).unwrap();
    let (_, _, stderr) = output(&["--config", &path, "--check"]);
    assert!(stderr.contains("target.yaml is a regular file, not a block device"), "{stderr}");
    assert!(!folder.path().join("c.img").exists());
}

#[test]
fn it_prints_version_completions_and_a_manual_page() {
    assert!(output(&["--version"]).1.starts_with("godwit-target "));
    assert!(output(&["--help"]).1.contains("Examples:"));
    assert!(output(&["--completions", "bash"]).1.contains("complete -F"));
    assert!(output(&["--man"]).1.contains(".TH"));
}
