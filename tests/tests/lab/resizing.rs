//! Namespaces that grow, come and go while their target runs: kernels take note, and nobody connects again.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use godwit_tests::daemon::{NQN, Target, binary, free_port, wait_for};
use godwit_tests::lab::attached::Attached;
use godwit_tests::lab::disk::Disk;
use godwit_tests::lab::filesystem::{FileSystem, Kind};
use godwit_tests::lab::nvme::Host;
use godwit_tests::lab::rdma::Device;
use godwit_tests::lab::{Guest, dmesg, in_guest};
use godwit_tests::tools::{run, run_failing};
use nix::sys::signal::Signal;

use crate::cells::{address, step};

/// How long it may take to show.
const PATIENCE: Duration = Duration::from_secs(30);

/// A target whose configuration changes.
struct Changing {
    folder: tempfile::TempDir,
    address: SocketAddr,
    target: Target,
}

impl Changing {
    /// With namespaces of so many MiB.
    fn start(address: SocketAddr, namespaces: &[(u32, u32)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("target.yaml"), configuration(&folder, address, namespaces)).unwrap();
        let mut command = Command::new(binary("godwit-target"));
        command.arg("--config").arg(folder.path().join("target.yaml")).arg("--control").arg(folder.path().join("target.ctl"));
        Self { address, target: Target::start_command(&mut command, address), folder }
    }

    /// Writes another configuration, and has it read.
    fn become_(&self, namespaces: &[(u32, u32)]) {
        fs::write(self.folder.path().join("target.yaml"), configuration(&self.folder, self.address, namespaces)).unwrap();
        self.target.process.signal(Signal::SIGHUP);
    }

    /// The command that reads the configuration again.
    fn reload(&self) -> Command {
        let mut command = Command::new(binary("godwit-target"));
        command.args(["reload", "--control"]).arg(self.folder.path().join("target.ctl"));
        command
    }

    fn file(&self, nsid: u32) -> PathBuf {
        file(&self.folder, nsid)
    }
}

fn file(folder: &tempfile::TempDir, nsid: u32) -> PathBuf {
    folder.path().join(format!("disk{nsid}.img"))
}

fn configuration(folder: &tempfile::TempDir, address: SocketAddr, namespaces: &[(u32, u32)]) -> String {
    let mut text = format!(
        "listeners:\n  - {{ transport: iwarp, address: \"{address}\" }}\ninsecure_allow_any_host: true\nsubsystems:\n  - nqn: {NQN}\n    \
         allow_any_host: true\n    namespaces:\n"
    );
    for &(nsid, mib) in namespaces {
        let path = file(folder, nsid);
        let _ = writeln!(
            text,
            "      - nsid: {nsid}\n        backend: {{ file: {{ path: {}, size: {mib}MiB, create: true }} }}",
            path.display()
        );
    }
    text
}

fn mib(disk: &Disk) -> u64 {
    disk.size_bytes() >> 20
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_mounted_volume_of_ours_grows() {
    in_guest(&Guest::default().shared(), || {
        let mount_point = tempfile::tempdir().unwrap();
        let mut world = Changing::start(SocketAddr::from(([127, 0, 0, 1], free_port())), &[(1, 24)]);
        let mut attached = Attached::start(&world.target.url(), &[]);
        let file_system = FileSystem::make(Kind::Ext4, attached.disk.path());
        let mounted = file_system.mount(mount_point.path());
        assert_eq!(mib(&attached.disk), 24);

        step("it grows");
        world.become_(&[(1, 64)]);
        wait_for("the device has grown", PATIENCE, || mib(&attached.disk) == 64);
        let told = run(Command::new("blockdev").arg("--getsize64").arg(attached.disk.path()));
        assert_eq!(told.trim(), (64_u64 << 20).to_string());
        run(Command::new("resize2fs").arg(attached.disk.path()));
        let data: Vec<_> = (0_u32..7 << 20).flat_map(|word| word.to_le_bytes()).collect();
        fs::write(mounted.folder().join("larger than it was"), &data).unwrap();
        mounted.unmount();
        file_system.check();
        let mounted = file_system.mount(mount_point.path());
        assert!(fs::read(mounted.folder().join("larger than it was")).unwrap() == data);

        step("it does not shrink");
        world.become_(&[(1, 24)]);
        wait_for("the target refuses", PATIENCE, || world.target.process.output().contains("the configuration stays as it was"));
        assert_eq!(mib(&attached.disk), 64);
        assert!(fs::read(mounted.folder().join("larger than it was")).unwrap() == data);
        mounted.unmount();
        let said = attached.process.output();
        assert!(!said.contains("lost the target"), "{said}");
        let log = dmesg();
        assert!(!log.contains("I/O error") && !log.contains("EXT4-fs error"), "{log}");

        step("unless that is meant");
        fs::File::options().write(true).open(world.file(1)).unwrap().set_len(24 << 20).unwrap();
        let refusal = run_failing(&mut world.reload()).1;
        assert!(refusal.contains("what hosts keep behind its new end is lost") && refusal.contains("--force"), "{refusal}");
        run(world.reload().arg("--force"));
        // Whoever relied on what is gone now is told so.
        assert_eq!(attached.process.wait(PATIENCE).code(), Some(1));
        let said = attached.process.output();
        assert!(said.contains("it was namespace 1") && said.contains("it is namespace 1") && said.contains("6144 blocks"), "{said}");
        world.target.process.terminate();
    });
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn linux_sees_namespaces_grow_come_and_go_on_siw() {
    in_guest(&Guest::with(Device::Siw).shared(), || {
        let mut world = Changing::start(address(), &[(1, 64)]);
        let controller = Host::numbered(1).connect(address(), NQN, &[]);
        let association = controller.attribute("cntlid");
        let first = Disk::at(controller.disk(1));
        assert_eq!(mib(&first), 64);

        step("it grows");
        world.become_(&[(1, 96)]);
        wait_for("the disk has grown", PATIENCE, || mib(&first) == 96);
        first.verify_range(90, 6);

        step("another one comes");
        world.become_(&[(1, 96), (2, 32)]);
        let second = Disk::at(controller.disk(2));
        assert_eq!(mib(&second), 32);
        second.verify_range(0, 4);

        step("and goes");
        world.become_(&[(1, 96)]);
        wait_for("the disk is gone", PATIENCE, || !second.path().exists());
        first.verify_range(0, 4);
        assert_eq!(controller.attribute("cntlid"), association, "the host has connected again");
        controller.disconnect();
        world.target.process.terminate();
    });
}
