//! Another disk in the place of the one that a host knows: nobody may take it for that.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use godwit_nbd::Command as Request;
use godwit_tests::daemon::{Initiator, Process, Target, binary, free_port, wait_for};
use godwit_tests::nbd::Client;
use godwit_tests::tools::run;

const NQN: &str = "nqn.2026-11.org.example:replaced";
const SIZE_MIB: usize = 16;
const SOON: Duration = Duration::from_secs(20);

struct World {
    folder: tempfile::TempDir,
    address: SocketAddr,
    _target: Target,
}

impl World {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        configure(folder.path(), address, Some("first"));
        let mut command = Command::new(binary("godwit-target"));
        let target = Target::start_command(command.arg("--config").arg(folder.path().join("target.yaml")), address);
        Self { folder, address, _target: target }
    }

    /// Has the target keep namespace 1 in another file, or not have it at all.
    fn put(&self, disk: Option<&str>) {
        configure(self.folder.path(), self.address, disk);
        run(Command::new(binary("godwit-target")).arg("reload").arg("--control").arg(self.folder.path().join("target.sock")));
    }

    fn disk(&self, name: &str) -> Vec<u8> {
        fs::read(self.folder.path().join(format!("{name}.img"))).unwrap()
    }

    fn attach(&self) -> Initiator {
        let url = format!("iwarp://{}/{NQN}?nsid=1", self.address);
        Initiator::start_with(&url, &self.folder.path().join("volume.sock"), &["--reconnect-delay", "1"])
    }
}

fn configure(folder: &Path, address: SocketAddr, disk: Option<&str>) {
    let namespace = |nsid: u32, name: &str| {
        let path = folder.join(format!("{name}.img"));
        format!("      - nsid: {nsid}\n        backend: {{ file: {{ path: {}, size: {SIZE_MIB}MiB, create: true }} }}\n", path.display())
    };
    let control = folder.join("target.sock");
    let text = format!(
        "listeners:\n  - {{ transport: iwarp, address: \"{address}\" }}\ncontrol: {}\nsubsystems:\n  - nqn: {NQN}\n    \
         allow_any_host: true\n    namespaces:\n{}{}",
        control.display(),
        disk.map(|name| namespace(1, name)).unwrap_or_default(),
        namespace(2, "other"),
    );
    fs::write(folder.join("target.yaml"), text).unwrap();
}

fn await_end(process: &mut Process) -> String {
    wait_for("the volume ends", SOON, || !process.is_running());
    process.output()
}

/// Faster than any host can look at what it is told: still not one write reaches the other disk.
#[test]
fn not_one_write_reaches_a_disk_that_took_the_place_of_another() {
    let world = World::start();
    let mut initiator = world.attach();
    let mut client = Client::connect(&initiator.socket).unwrap();
    client.write(0, &[0xAA; 4096]);
    let (mut sender, mut receiver) = client.split();
    let writer = std::thread::spawn(move || {
        for cookie in 0.. {
            let request = godwit_nbd::Request {
                cookie,
                command: Request::Write,
                flags: godwit_nbd::CommandFlags::NONE,
                offset: cookie % 1024 * 4096,
                length: 4096,
            };
            if sender.send(&request, &[0xBB; 4096]).is_err() || receiver.receive(|_| 0).is_err() {
                return;
            }
        }
    });
    std::thread::sleep(Duration::from_millis(200));
    world.put(None);
    world.put(Some("second"));
    let said = await_end(&mut initiator.process);
    writer.join().unwrap();
    assert!(said.contains("the target now has another volume there"), "{said}");
    assert!(world.disk("second").iter().all(|&byte| byte == 0));
    assert_eq!(world.disk("first")[..4096], [0xBB; 4096]);
}

/// What is taken away and put back is the same disk: who uses it waits meanwhile.
#[test]
fn a_disk_that_is_back_is_the_one_that_it_was() {
    let world = World::start();
    let initiator = world.attach();
    let mut client = Client::connect(&initiator.socket).unwrap();
    client.write(8192, &[0xAA; 4096]);
    world.put(None);
    wait_for("it is noticed", SOON, || initiator.process.output().contains("lost the target"));
    let reader = std::thread::spawn(move || client.read(8192, 4096));
    std::thread::sleep(Duration::from_millis(500));
    assert!(!reader.is_finished());
    world.put(Some("first"));
    assert_eq!(reader.join().unwrap(), [0xAA; 4096]);
}
