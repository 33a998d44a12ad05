//! Linux's NVMe host, through nvme-cli and sysfs.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::modprobe;
use crate::daemon::wait_for;
use crate::tools::{run, run_failing};

/// How long the kernel may take to show what it has.
const PATIENCE: Duration = Duration::from_secs(60);

/// A host: a name, under which the kernel connects to subsystems.
#[derive(Debug, Clone)]
pub struct Host {
    /// Its NQN.
    pub nqn: String,
    /// Its host identifier.
    pub id: String,
}

impl Host {
    /// The host of this number. A kernel can be several.
    ///
    /// # Panics
    ///
    /// When the kernel has no NVMe/RDMA.
    pub fn numbered(number: u32) -> Self {
        modprobe(&["nvme-rdma"]);
        let id = format!("11111111-2222-3333-4444-{number:012}");
        Self { nqn: format!("nqn.2014-08.org.nvmexpress:uuid:{id}"), id }
    }

    /// The records of the discovery log.
    ///
    /// # Panics
    ///
    /// When discovery fails.
    pub fn discover(&self, address: SocketAddr) -> Vec<Value> {
        let log = self.discovery_log(address);
        log["records"].as_array().cloned().unwrap_or_else(|| panic!("no records in {log}"))
    }

    /// The discovery log: `genctr` and `records`.
    ///
    /// # Panics
    ///
    /// When discovery fails.
    pub fn discovery_log(&self, address: SocketAddr) -> Value {
        json(self.fabrics("discover", address).args(["-o", "json"]))
    }

    /// Reads the discovery log by a controller that stays, with so many seconds of keep-alive timeout.
    ///
    /// # Panics
    ///
    /// When discovery fails.
    pub fn discover_and_stay(&self, address: SocketAddr, keep_alive: u32) -> Vec<Controller> {
        new_controllers(|| {
            run(self.fabrics("discover", address).args(["--persistent", "--keep-alive-tmo", &keep_alive.to_string()]));
        })
    }

    /// Connects to a subsystem; more arguments are nvme-cli's.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn connect(&self, address: SocketAddr, nqn: &str, arguments: &[&str]) -> Controller {
        let mut new = new_controllers(|| {
            run(self.fabrics("connect", address).args(["-n", nqn]).args(arguments));
        });
        new.retain(|controller| controller.attribute("subsysnqn") == nqn);
        assert_eq!(new.len(), 1, "connect made {new:?}");
        new.remove(0)
    }

    /// As [`Self::connect`], where that is to fail; the words of nvme-cli.
    ///
    /// # Panics
    ///
    /// When it succeeds.
    pub fn fail_to_connect(&self, address: SocketAddr, nqn: &str, arguments: &[&str]) -> String {
        run_failing(self.fabrics("connect", address).args(["-n", nqn]).args(arguments)).1
    }

    /// Connects by the kernel's own interface, with options in its words (`keep_alive_tmo=0`, `duplicate_connect`): nvme-cli leaves some out, and has
    /// checks of its own.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    ///
    /// # Panics
    ///
    /// When the kernel has no NVMe over Fabrics.
    pub fn try_connect(&self, address: SocketAddr, nqn: &str, options: &[&str]) -> io::Result<Controller> {
        let mut device = OpenOptions::new().read(true).write(true).open("/dev/nvme-fabrics").expect("NVMe over Fabrics is there");
        let (Self { nqn: host, id }, ip, port) = (self, address.ip(), address.port());
        let mut line = format!("transport=rdma,traddr={ip},trsvcid={port},nqn={nqn},hostnqn={host},hostid={id}");
        options.iter().for_each(|option| line.extend([",", option]));
        device.write_all(line.as_bytes())?;
        let mut answer = String::new();
        device.read_to_string(&mut answer)?;
        let instance = answer.split([',', '=']).nth(1).unwrap_or_else(|| panic!("the kernel answered {answer}"));
        Ok(Controller { name: format!("nvme{}", instance.trim()) })
    }

    /// Connects to every subsystem that the target offers.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn connect_all(&self, address: SocketAddr, arguments: &[&str]) -> Vec<Controller> {
        new_controllers(|| {
            run(self.fabrics("connect-all", address).args(arguments));
        })
    }

    fn fabrics(&self, command: &str, address: SocketAddr) -> Command {
        let mut nvme = Command::new("nvme");
        nvme.args([
            command,
            "-t",
            "rdma",
            "-a",
            &address.ip().to_string(),
            "-s",
            &address.port().to_string(),
            "-q",
            &self.nqn,
            "-I",
            &self.id,
        ]);
        nvme
    }
}

/// What `nvme list-subsys` tells, of every subsystem.
///
/// # Panics
///
/// When it fails.
pub fn list_subsystems() -> Value {
    json(Command::new("nvme").args(["list-subsys", "-o", "json"]))
}

/// Disconnects every controller of a subsystem.
///
/// # Panics
///
/// When it fails.
pub fn disconnect(nqn: &str) {
    run(Command::new("nvme").args(["disconnect", "-n", nqn]));
}

/// Disconnects every controller that the kernel has.
///
/// # Panics
///
/// When it fails.
pub fn disconnect_all() {
    run(Command::new("nvme").arg("disconnect-all"));
}

/// The controllers that the kernel has.
pub fn controllers() -> Vec<Controller> {
    let entries = fs::read_dir("/sys/class/nvme").into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names.into_iter().map(|name| Controller { name }).collect()
}

fn new_controllers(connect: impl FnOnce()) -> Vec<Controller> {
    let before = controllers();
    connect();
    controllers().into_iter().filter(|controller| !before.contains(controller)).collect()
}

/// A controller of the kernel's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    /// Its name: `nvme0`.
    pub name: String,
}

impl Controller {
    /// What sysfs tells of it: `state`, `cntlid`, `queue_count`, `subsysnqn` and so on.
    ///
    /// # Panics
    ///
    /// When the controller is gone.
    pub fn attribute(&self, name: &str) -> String {
        let path = self.folder().join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim().to_owned()
    }

    /// Whether the kernel still has it.
    pub fn exists(&self) -> bool {
        self.folder().exists()
    }

    /// Waits until it is in a state: `live`, `connecting`.
    ///
    /// # Panics
    ///
    /// When it does not get there.
    pub fn await_state(&self, state: &str) {
        wait_for(&format!("{} is {state}", self.name), PATIENCE, || self.attribute("state") == state);
    }

    /// Its character device.
    pub fn device(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    /// The block device of a namespace, once it is there. There is no udev, but the kernel makes the nodes.
    ///
    /// # Panics
    ///
    /// When it does not appear.
    pub fn disk(&self, nsid: u32) -> PathBuf {
        let mut found = None;
        wait_for(&format!("namespace {nsid} of {}", self.name), PATIENCE, || {
            found = self.find_disk(nsid);
            found.is_some()
        });
        found.unwrap_or_default()
    }

    /// With native multipath a namespace's disk is the subsystem's, `nvme0n1`, and its path `nvme0c0n1` is the controller's.
    fn find_disk(&self, nsid: u32) -> Option<PathBuf> {
        let subsystems = fs::read_dir("/sys/class/nvme-subsystem").into_iter().flatten().flatten().map(|entry| entry.path());
        let folders = subsystems.filter(|folder| folder.join(&self.name).exists()).chain([self.folder()]);
        let is_path = |folder: &Path| folder.file_name().is_some_and(|name| name.to_string_lossy().contains('c'));
        let disk = folders.flat_map(|folder| namespaces(&folder)).find(|folder| !is_path(folder) && has_nsid(folder, nsid))?;
        Some(Path::new("/dev").join(disk.file_name()?)).filter(|node| node.exists())
    }

    /// How many flushes of a namespace the controller has completed.
    ///
    /// # Panics
    ///
    /// When it has no such namespace.
    pub fn flushes(&self, nsid: u32) -> u64 {
        self.statistic(nsid, 15)
    }

    /// How many writes to a namespace the controller has completed.
    ///
    /// # Panics
    ///
    /// When it has no such namespace.
    pub fn writes(&self, nsid: u32) -> u64 {
        self.statistic(nsid, 4)
    }

    /// A field of the statistics of a path: the disk of a subsystem counts no flushes.
    fn statistic(&self, nsid: u32, field: usize) -> u64 {
        let path = namespaces(&self.folder()).find(|path| has_nsid(path, nsid)).expect("a path to the namespace");
        let statistics = fs::read_to_string(path.join("stat")).expect("a block device");
        statistics.split_whitespace().nth(field).expect("the field is there").parse().expect("a number")
    }

    /// Writes to one of its attributes in sysfs: `reset_controller`, `rescan_controller`, `delete_controller`.
    ///
    /// # Panics
    ///
    /// When the kernel refuses.
    pub fn order(&self, attribute: &str) {
        let path = self.folder().join(attribute);
        fs::write(&path, "1").unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Waits until the kernel has forgotten it.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn await_end(&self) {
        wait_for(&format!("{} is gone", self.name), PATIENCE, || !self.exists());
    }

    /// nvme-cli's JSON of a command that takes the controller's device: `id-ctrl`, `smart-log`, `error-log`, `id-ns` with its arguments.
    ///
    /// # Panics
    ///
    /// When the command fails.
    pub fn query(&self, command: &str, arguments: &[&str]) -> Value {
        json(Command::new("nvme").arg(command).arg(self.device()).args(arguments).args(["-o", "json"]))
    }

    /// Runs an nvme-cli command that takes the controller's device: `flush`, `dsm`, `reset`.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn command(&self, command: &str, arguments: &[&str]) -> String {
        run(Command::new("nvme").arg(command).arg(self.device()).args(arguments))
    }

    /// As [`Self::command`], where that is to fail; the words of nvme-cli.
    ///
    /// # Panics
    ///
    /// When it succeeds.
    pub fn refused(&self, command: &str, arguments: &[&str]) -> String {
        run_failing(Command::new("nvme").arg(command).arg(self.device()).args(arguments)).1
    }

    /// Disconnects it, and waits until the kernel has forgotten it.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn disconnect(self) {
        run(Command::new("nvme").args(["disconnect", "-d", &self.name]));
        self.await_end();
    }

    fn folder(&self) -> PathBuf {
        Path::new("/sys/class/nvme").join(&self.name)
    }
}

/// The folders of namespaces in a controller's or a subsystem's folder.
fn namespaces(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.join("nsid").exists())
}

fn has_nsid(namespace: &Path, nsid: u32) -> bool {
    fs::read_to_string(namespace.join("nsid")).is_ok_and(|found| found.trim() == nsid.to_string())
}

fn json(command: &mut Command) -> Value {
    let text = run(command);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command:?} printed no JSON ({error}):\n{text}"))
}
