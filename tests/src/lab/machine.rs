//! One guest in QEMU, from its boot to its end, of which nothing is left.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Failure, Forwarded, Guest, INSIDE, Kernel, PASSED, STARTED, kernel_log, modprobe, script, tail};
use crate::daemon::wait_for;
use crate::tools::{has, is_root, run as run_to_end};

/// An Oops ends the guest, with the trace on the console, rather than leave it hanging. The guest is an ordinary process, which may stand still on a busy
/// machine: what its kernel would say about lost time is no fault. The log is large enough for all that a case makes the kernel say. What only hardens a
/// kernel is off: an emulated processor takes long enough without.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 oops=panic nokaslr mitigations=off tsc=reliable no_timer_check random.trust_cpu=on \
                                nowatchdog rcupdate.rcu_cpu_stall_suppress=1 log_buf_len=4M init_on_alloc=0 hardened_usercopy=off \
                                randomize_kstack_offset=off lsm= audit=0";

const QEMU: &str = "qemu-system-x86_64";

/// What the guest is to run; it takes the file away.
const COMMAND: &str = "command";

/// The status that it ended with.
const STATUS: &str = "status";

/// The kernel's log since the command before it ended.
const KERNEL_LOG: &str = "dmesg";

/// What a guest leaves in the shared folder when it is ready for another command.
const WAITING: &str = "waiting";

/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// Where QEMU listens to the driver, in the folder.
const MONITOR: &str = "monitor";

/// How long it may take to answer.
const MONITOR_PATIENCE: Duration = Duration::from_secs(30);

/// How a guest ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself, when the command had ended with this status.
    Exited(i32),
    /// By the driver, when the time limit had passed.
    TimedOut,
    /// By itself, before the command had ended.
    Died,
}

/// What came of a guest.
#[derive(Debug)]
pub struct Run {
    /// How it ended.
    pub ended: Ended,
    /// What the command printed, on both streams.
    pub output: String,
    /// What the kernel wrote to its console, and QEMU to its standard error.
    pub console: String,
    /// The kernel's log when the command had ended.
    pub kernel_log: String,
    /// The end of systemd's journal, if the command failed under it.
    pub journal: String,
    /// Whether the guest got as far as the body of a case.
    pub(super) started: bool,
    /// Whether the body came to its end.
    pub(super) passed: bool,
}

/// A kernel.
#[derive(Debug, Clone)]
struct Image {
    /// Where its modules are.
    folder: PathBuf,
    vmlinux: PathBuf,
    initrd: PathBuf,
}

/// Makes sure that the files of a kernel are there. Their version is looked up once a process: a kernel update in the middle of the tests is no use.
fn image(kernel: Kernel) -> Result<Image, Failure> {
    static KNOWN: Mutex<Option<HashMap<&'static str, Image>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if let Some(image) = known.get(kernel.series()) {
        return Ok(image.clone());
    }
    let [folder] = paths_from(Command::new(script("kernel")).arg(kernel.series()))?;
    let [vmlinux, initrd] = paths_from(Command::new(script("boot")).arg(&folder))?;
    let image = Image { folder, vmlinux, initrd };
    known.insert(kernel.series(), image.clone());
    Ok(image)
}

/// The paths that a script prints, one a line.
fn paths_from<const N: usize>(command: &mut Command) -> Result<[PathBuf; N], Failure> {
    let unavailable = |why: String| Failure::Unavailable(format!("{command:?}: {why}"));
    let output = Command::new(command.get_program()).args(command.get_args()).stdin(Stdio::null()).output();
    let output = output.map_err(|error| unavailable(error.to_string()))?;
    if !output.status.success() {
        return Err(unavailable(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let paths: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect();
    paths.try_into().map_err(|paths| unavailable(format!("printed {paths:?}")))
}

/// A guest that runs. Its keeper ends it and removes its folder as soon as we let go of the keeper's standard input, if only by dying.
#[derive(Debug)]
struct Machine {
    keeper: Child,
    hold: Option<ChildStdin>,
    output: Receiver<Vec<u8>>,
    folder: PathBuf,
    monitor: Option<BufReader<UnixStream>>,
}

impl Machine {
    fn start(guest: &Guest, image: &Image, command: &[&str]) -> std::io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("godwit-lab-").tempdir()?;
        fs::copy(script("guest"), folder.path().join("guest"))?;
        let kernel = quoted(&image.folder.display().to_string());
        let [systemd, shared] = [guest.systemd, guest.shared].map(|is_so| if is_so { "1" } else { "" });
        fs::write(folder.path().join("environment"), format!("KERNEL={kernel}\nSYSTEMD={systemd}\nSHARED={shared}\n"))?;
        fs::create_dir(folder.path().join("systemd"))?;
        for unit in ["lab.target", "lab.service"] {
            fs::copy(script("systemd").join(unit), folder.path().join("systemd").join(unit))?;
        }
        fs::write(folder.path().join(COMMAND), shell_script(command)?)?;
        if let Some(drive) = &guest.drive {
            drive.prepare(folder.path())?;
        }
        let mut keeper = Command::new(script("keeper"));
        keeper.arg(folder.path()).arg(QEMU).args(qemu_arguments(guest, image, folder.path()));
        // A signal to our process group is not for the keeper, who has to clean up after us.
        let mut keeper = keeper.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (hold, stream) = (keeper.stdin.take(), keeper.stdout.take());
        let (sender, output) = mpsc::channel();
        if let Some(mut stream) = stream {
            thread::spawn(move || {
                let mut chunk = [0; 4096];
                while let Some(received) = stream.read(&mut chunk).ok().filter(|&len| len > 0) {
                    if sender.send(chunk[..received].to_vec()).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self { keeper, hold, output, folder: folder.keep(), monitor: None })
    }

    /// Gives a guest that waits for it another command.
    fn give(&mut self, command: &[&str]) -> std::io::Result<()> {
        for name in [WAITING, STATUS, KERNEL_LOG, STARTED, PASSED] {
            match fs::remove_file(self.folder.join(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        // The guest takes it as soon as it is there, so it is there as a whole.
        let whole = self.folder.join("next");
        fs::write(&whole, shell_script(command)?)?;
        fs::rename(whole, self.folder.join(COMMAND))?;
        self.tell_qemu("cont")
    }

    /// Stops the guest's time: it costs nothing then, where an idle one is still emulated.
    fn freeze(&mut self) -> std::io::Result<()> {
        self.tell_qemu("stop")
    }

    /// Has QEMU execute a command of its machine protocol, QMP.
    fn tell_qemu(&mut self, command: &str) -> std::io::Result<()> {
        let commands = if self.monitor.is_none() { &["qmp_capabilities", command][..] } else { &[command] };
        let mut monitor = match self.monitor.take() {
            Some(monitor) => monitor,
            None => BufReader::new(UnixStream::connect(self.folder.join(MONITOR))?),
        };
        monitor.get_ref().set_read_timeout(Some(MONITOR_PATIENCE))?;
        for command in commands {
            writeln!(monitor.get_ref(), r#"{{"execute": "{command}"}}"#)?;
            // Its greeting, and events, come in between.
            loop {
                let mut line = String::new();
                if monitor.read_line(&mut line)? == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                let answer: Value = serde_json::from_str(&line)?;
                if let Some(error) = answer.get("error") {
                    return Err(std::io::Error::other(format!("{command}: {error}")));
                }
                if answer.get("return").is_some() {
                    break;
                }
            }
        }
        self.monitor = Some(monitor);
        Ok(())
    }

    fn is_waiting(&self) -> bool {
        self.folder.join(WAITING).exists()
    }

    /// Prints what comes out, line by line, until the guest ends or waits; all of it, and whether that was before the deadline.
    fn relay(&self, deadline: Instant) -> (String, bool) {
        let (mut output, mut printed) = (Vec::new(), 0);
        let ended = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left.min(LOOK)) {
                Ok(chunk) => output.extend(chunk),
                Err(RecvTimeoutError::Disconnected) => break true,
                // What the command printed was on its way before the guest waited.
                Err(RecvTimeoutError::Timeout) if self.is_waiting() => break true,
                Err(RecvTimeoutError::Timeout) if left.is_zero() => break false,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let complete = output.iter().rposition(|&byte| byte == b'\n').map_or(printed, |end| end + 1);
            print_lines(&output[printed..complete]);
            printed = complete;
        };
        print_lines(&output[printed..]);
        (String::from_utf8_lossy(&output).into_owned(), ended)
    }

    /// What the kernel wrote to its console, and QEMU to its standard error.
    fn console(&self) -> String {
        format!("{}{}", self.file("console").unwrap_or_default(), self.file("qemu").unwrap_or_default())
    }

    fn file(&self, name: &str) -> Option<String> {
        fs::read(self.folder.join(name)).ok().map(|content| String::from_utf8_lossy(&content).into_owned())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.hold = None;
        let _ = self.keeper.wait();
    }
}

/// Boots a guest that is to run a command.
fn boot(guest: &Guest, command: &[&str]) -> Result<Machine, Failure> {
    if !is_root() {
        return Err(Failure::Unavailable("it needs root, as which guests run on this machine's files".to_owned()));
    }
    if !has(QEMU) {
        return Err(Failure::Unavailable(format!("there is no {QEMU}")));
    }
    let image = image(guest.kernel)?;
    Machine::start(guest, &image, command).map_err(|error| Failure::Unavailable(error.to_string()))
}

/// A guest that runs while who started it goes on. It is killed when it is dropped, as if its power was cut.
#[derive(Debug)]
pub struct Running {
    machine: Machine,
    limit: Duration,
    deadline: Instant,
    /// What it has printed and nobody has waited for.
    output: Vec<u8>,
}

impl Running {
    pub(super) fn start(guest: &Guest, command: &[&str]) -> Result<Self, Failure> {
        let machine = boot(guest, command)?;
        Ok(Self { machine, limit: guest.limit, deadline: Instant::now() + guest.limit, output: Vec::new() })
    }

    /// Waits until the command has printed a line.
    ///
    /// # Errors
    ///
    /// When the guest ends before, or its time limit passes.
    pub fn await_line(&mut self, wanted: &str) -> Result<(), Failure> {
        loop {
            while let Some(end) = self.output.iter().position(|&byte| byte == b'\n') {
                let line: Vec<_> = self.output.drain(..=end).collect();
                print_lines(&line);
                if line.trim_ascii() == wanted.as_bytes() {
                    return Ok(());
                }
            }
            match self.machine.output.recv_timeout(self.deadline.saturating_duration_since(Instant::now())) {
                Ok(chunk) => self.output.extend(chunk),
                Err(RecvTimeoutError::Disconnected) => return Err(Failure::Died { console: tail(&self.machine.console()) }),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Failure::TimedOut { limit: self.limit, console: tail(&self.machine.console()) });
                }
            }
        }
    }
}

/// The guests that wait for another command. As all of them, they end with this process.
static SHARED: Mutex<Vec<(Guest, Machine)>> = Mutex::new(Vec::new());

/// One that is as it is to be, which this test has for itself now.
fn take_shared(guest: &Guest) -> Option<Machine> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let index = shared.iter().position(|(kind, _)| kind == guest)?;
    Some(shared.swap_remove(index).1)
}

/// See [`Guest::run`].
pub(super) fn run(guest: &Guest, command: &[&str]) -> Result<Run, Failure> {
    let mut machine = match take_shared(guest) {
        Some(mut machine) => {
            println!("in a guest that has run something before");
            machine.give(command).map_err(|error| Failure::Unavailable(error.to_string()))?;
            machine
        }
        None => boot(guest, command)?,
    };
    let deadline = Instant::now() + guest.limit;
    let (output, in_time) = machine.relay(deadline);
    let ended = match machine.file(STATUS).and_then(|status| status.trim().parse().ok()) {
        Some(status) => Ended::Exited(status),
        None if in_time => Ended::Died,
        None => Ended::TimedOut,
    };
    let run = Run {
        ended,
        output,
        console: machine.console(),
        kernel_log: machine.file(KERNEL_LOG).unwrap_or_default(),
        journal: machine.file("journal").unwrap_or_default(),
        started: machine.folder.join(STARTED).exists(),
        passed: machine.folder.join(PASSED).exists(),
    };
    // Nobody knows in what state a failure leaves it.
    if ended == Ended::Exited(0) && machine.is_waiting() && kernel_log::complaint(&run.kernel_log).is_none() && machine.freeze().is_ok() {
        SHARED.lock().unwrap_or_else(PoisonError::into_inner).push((guest.clone(), machine));
    }
    Ok(run)
}

/// So that nobody takes the verdict of the test program in the guest for that of ours.
fn print_lines(lines: &[u8]) {
    for line in String::from_utf8_lossy(lines).lines() {
        println!("guest: {line}");
    }
}

fn qemu_arguments(guest: &Guest, image: &Image, folder: &Path) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(|&word| word.to_owned()));
    // Emulation everywhere: where there is KVM at all it is nested, and does not run every kernel. One thread for both processors: two now and then execute an
    // instruction that the kernel has just patched as it was in the middle of that, an Oops, and cost more together than one.
    add(&[
        "-accel",
        "tcg,thread=single",
        "-cpu",
        "max",
        "-M",
        "q35",
        "-m",
        &guest.memory_mib.to_string(),
        "-smp",
        &guest.processors.to_string(),
    ]);
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    add(&["-kernel", &image.vmlinux.display().to_string(), "-initrd", &image.initrd.display().to_string()]);
    add(&["-append", &format!("{KERNEL_ARGUMENTS} {}", guest.kernel_arguments)]);
    add(&["-chardev", &format!("file,id=console,path={}", option(&folder.join("console"))), "-serial", "chardev:console"]);
    if guest.shared {
        add(&["-qmp", &format!("unix:{},server=on,wait=off", option(&folder.join(MONITOR)))]);
    }
    // Descriptor 3 is where the keeper has our end. The chardev `stdio` would drop everything once its input has ended.
    add(&["-add-fd", "fd=3,set=1", "-chardev", "file,id=output,path=/dev/fdset/1,append=on"]);
    add(&["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=output,name=output", "-device", "virtio-rng-pci"]);
    add(&["-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"]);
    add(&["-virtfs", &format!("local,path={},mount_tag=lab,security_model=none,multidevs=remap", option(folder))]);
    if let Some(drive) = &guest.drive {
        add(&["-blockdev", &drive.blockdev(folder), "-device", "virtio-blk-pci,drive=disk,serial=godwit-lab"]);
    }
    if let Some(Forwarded { here, there }) = guest.forwarded {
        add(&["-netdev", &format!("user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{here}-:{there}")]);
        add(&["-device", "virtio-net-pci,netdev=net,romfile="]);
    }
    arguments
}

/// The guest's end of QEMU's user network, with the address that QEMU forwards to.
pub(super) fn bring_up_network() {
    modprobe(&["virtio_net"]);
    wait_for("the network interface", Duration::from_secs(60), || Path::new("/sys/class/net/eth0").exists());
    run_to_end(Command::new("ip").args(["link", "set", "eth0", "up"]));
    run_to_end(Command::new("ip").args(["addr", "add", "10.0.2.15/24", "dev", "eth0"]));
}

/// A path as the value of one of QEMU's options.
pub(super) fn option(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// A script that runs a command where we are.
fn shell_script(command: &[&str]) -> std::io::Result<String> {
    let folder = std::env::current_dir()?;
    let words: Vec<_> = command.iter().map(|word| quoted(word)).collect();
    Ok(format!("cd {}\nexport {INSIDE}=1 RUST_BACKTRACE=1\nexec {}\n", quoted(&folder.display().to_string()), words.join(" ")))
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_a_quoted_word_as_it_was() {
        for word in ["", "a b", "$HOME", "it's", "'", "\\", "a\nb"] {
            let output = Command::new("sh").args(["-c", &format!("printf %s {}", quoted(word))]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }
}
