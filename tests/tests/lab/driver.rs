//! That the lab can fail: a verdict is the guest's, and whatever happens to a guest is told and leaves nothing behind.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use godwit_tests::daemon::{Process, wait_for};
use godwit_tests::lab::{Ended, Failure, Guest, in_guest, is_inside, try_in_guest};
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// A guest boots in a few seconds, and on a busy machine in minutes.
const BOOT: Duration = Duration::from_secs(300);

/// When a test with guests of its own has ended by itself, whatever they do: two of their time limits and more.
const END: Duration = Duration::from_secs(2000);

/// What a test has in its environment when it runs as the child of itself.
const CHILD: &str = "GODWIT_LAB_CHILD";

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_command_gives_its_output_and_its_status() {
    let script = "echo out; echo err >&2; test -e /proc/1/exe && modinfo -F filename siw; uname -r; exit 7";
    let run = Guest::default().run(&["bash", "-c", script]).unwrap();
    assert_eq!(run.ended, Ended::Exited(7), "{}", run.console);
    let lines: Vec<_> = run.output.lines().collect();
    assert_eq!(lines[..2], ["out", "err"]);
    assert!(lines[2].ends_with("/extra/siw.ko"), "{lines:?}");
    assert!(lines[3].starts_with("6.12."), "{lines:?}");
    assert!(run.kernel_log.contains("Linux version 6.12."), "{}", run.kernel_log);
}

/// What a guest writes outside its shared folder stays in the guest.
#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_guest_cannot_write_to_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("old"), "old").unwrap();
    let script = format!("cd {} && cat old && echo new > old && echo new > new && cat old", folder.path().display());
    let run = Guest::default().run(&["bash", "-c", &script]).unwrap();
    assert_eq!((run.ended, run.output.as_str()), (Ended::Exited(0), "oldnew\n"));
    assert_eq!(fs::read_to_string(folder.path().join("old")).unwrap(), "old");
    assert!(!folder.path().join("new").exists());
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_body_that_fails_in_the_guest_fails_the_case() {
    let failure = try_in_guest(&Guest::default(), || panic!("on purpose")).unwrap_err();
    assert!(matches!(failure, Failure::Failed { status: 101, .. }), "{failure}");
}

/// A program that ends well by itself has not passed.
#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_body_that_does_not_come_to_its_end_fails_the_case() {
    let failure = try_in_guest(&Guest::default(), || std::process::exit(0)).unwrap_err();
    assert!(matches!(failure, Failure::NotRun), "{failure}");
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_complaint_of_the_kernel_fails_the_case() {
    // The kernel shows where each of its tasks is, with a call trace.
    let outcome = try_in_guest(&Guest::default(), || fs::write("/proc/sysrq-trigger", "t").unwrap());
    if is_inside() {
        // It passed here.
        return;
    }
    let failure = outcome.unwrap_err();
    assert!(matches!(&failure, Failure::KernelComplained(lines) if lines.contains("Call Trace")), "{failure}");
}

/// And only if all went well in it, and nothing of the command before is there but what it wrote.
#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_shared_guest_takes_another_command() {
    // No other case has one like this.
    let guest = Guest::default().memory(1024).shared();
    let run = |script: &str| {
        let run = guest.run(&["bash", "-c", script]).unwrap();
        (run.ended, run.output, run.kernel_log)
    };
    let look = "cat /run/times; echo once more >>/run/times; exec >/dev/null; ";
    let (ended, output, log) = run(&format!("{look} echo of the first >/dev/kmsg"));
    assert_eq!((ended, output.as_str()), (Ended::Exited(0), "cat: /run/times: No such file or directory\n"));
    assert!(log.contains("of the first"), "{log}");

    let (ended, output, log) = run(&format!("{look} echo of the second >/dev/kmsg; exit 1"));
    assert_eq!((ended, output.as_str()), (Ended::Exited(1), "once more\n"));
    assert!(log.contains("of the second") && !log.contains("of the first"), "{log}");

    // That was the end of that one.
    let (_, output, _) = run(look);
    assert_eq!(output, "cat: /run/times: No such file or directory\n");
    let (_, output, _) = run("cat /run/times; sleep 1000 &");
    assert_eq!(output, "once more\n");
    let (_, output, _) = run(look);
    assert_eq!(output, "cat: /run/times: No such file or directory\n");
}

/// Once: who crashes a guest must not get another one.
#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_guest_that_crashes_is_told_with_its_console() {
    if is_inside() || is_child() {
        let failure = try_in_guest(&Guest::default(), || fs::write("/proc/sysrq-trigger", "c").unwrap()).unwrap_err();
        assert!(matches!(&failure, Failure::Died { console } if console.contains("sysrq triggered crash")), "{failure}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let machines = Machines::new(0);
    let mut child = Process::start(child(folder.path()).env("PATH", machines.path()));
    assert!(child.wait(END).success(), "{}", child.output());
    assert_eq!(machines.started(), 1, "{}", child.output());
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_guest_that_does_not_come_up_is_booted_once_more_and_no_more() {
    if is_inside() || is_child() {
        in_guest(&Guest::default(), || println!("the guest runs"));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (failing, status) in [(1, 0), (2, 101)] {
        let machines = Machines::new(failing);
        let mut child = Process::start(child(folder.path()).env("PATH", machines.path()));
        assert_eq!(child.wait(END).code(), Some(status), "{}", child.output());
        assert_eq!((machines.started(), child.output().contains("the guest runs")), (2, status == 0), "{}", child.output());
        assert!(child.output().contains("the guest did not come up; once more. Its console ends:\nno boot today"), "{}", child.output());
    }
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_guest_that_takes_too_long_is_ended_and_leaves_nothing_behind() {
    if is_inside() || is_child() {
        let started = Instant::now();
        let failure = try_in_guest(&Guest::default().limit(Duration::from_secs(15)), || thread::sleep(BOOT * 2)).unwrap_err();
        assert!(matches!(failure, Failure::TimedOut { .. }), "{failure}");
        assert!(started.elapsed() < BOOT, "{:?}", started.elapsed());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = Process::start(&mut child(folder.path()));
    let status = child.wait(END);
    assert!(status.success(), "{}", child.output());
    assert!(child.output().contains("1 passed"), "{}", child.output());
    assert_eq!(leftovers(folder.path()), [] as [String; 0]);
}

/// Not even `kill -9` of the test leaves its guest, or the guest's files.
#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_test_that_is_killed_leaves_nothing_behind() {
    if is_inside() || is_child() {
        let _ = try_in_guest(&Guest::default(), || {
            println!("the guest runs");
            thread::sleep(BOOT * 2);
        });
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = Process::start(&mut child(folder.path()));
    wait_for("the child's guest runs", BOOT, || child.output().contains("the guest runs"));
    // The folder, the keeper and QEMU.
    assert_eq!(leftovers(folder.path()).len(), 3);
    child.signal(Signal::SIGKILL);
    child.wait(BOOT);
    wait_for("the end of all that it had", BOOT, || leftovers(folder.path()).is_empty());
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The same test once more, as a process of its own, whose guests have their folders in `folder`.
fn child(folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", thread::current().name().unwrap(), "--include-ignored", "--nocapture"]);
    command.env(CHILD, "1").env("TMPDIR", folder);
    command
}

/// A QEMU that is found before QEMU's own: of the machines that it is asked for, the first so many do not boot.
struct Machines {
    folder: TempDir,
}

impl Machines {
    fn new(failing: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let qemu = folder.path().join("qemu-system-x86_64");
        let script = format!(
            "#!/bin/bash\necho >>\"${{0%/*}}/started\"\n[ \"$(wc -l <\"${{0%/*}}/started\")\" -gt {failing} ] || {{ echo no boot today; exit 1; }}\n\
             PATH=${{PATH#*:}} exec qemu-system-x86_64 \"$@\"\n"
        );
        fs::write(&qemu, script).unwrap();
        fs::set_permissions(&qemu, Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn path(&self) -> String {
        format!("{}:{}", self.folder.path().display(), std::env::var("PATH").unwrap())
    }

    /// How many it was asked for.
    fn started(&self) -> usize {
        fs::read_to_string(self.folder.path().join("started")).unwrap().lines().count()
    }
}

/// What is in a folder, and the processes that name it on their command lines.
fn leftovers(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path().display().to_string());
    let processes = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = processes.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    files.chain(lines.filter(|line| line.contains(&folder.display().to_string()))).collect()
}
