//! What Linux's host and our target live through: a target that is killed, resets, ends under load, a target that stands still, one that does not come back.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use godwit_tests::daemon::{NQN, wait_for};
use godwit_tests::lab::disk::Disk;
use godwit_tests::lab::filesystem::{FileSystem, Kind};
use godwit_tests::lab::load::Load;
use godwit_tests::lab::nvme::{Controller, Host, controllers, disconnect};
use godwit_tests::lab::rdma::Device;
use godwit_tests::lab::{Guest, dmesg, in_guest};
use godwit_tests::tools::run;

use crate::cells::{Provider, address, step};
use crate::served::{Served, write_configuration};

const VOLUME_MIB: u32 = 96;

/// As soon as it can, for ten minutes.
const PERSISTENT: [&str; 4] = ["--reconnect-delay", "1", "--ctrl-loss-tmo", "600"];

/// Linux waits so long for the answer to an admin command, of a target that does not answer.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long anything may take that takes moments.
const PATIENCE: Duration = Duration::from_secs(60);

fn siw() -> Guest {
    Guest::with(Device::Siw).shared()
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_mounted_file_system_outlives_our_killed_iwarp_target() {
    in_guest(&siw(), || outlives_its_target(Provider::Iwarp, 4));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_mounted_file_system_outlives_our_killed_rdma_target_on_rxe() {
    in_guest(&Guest::with(Device::Rxe).shared(), || outlives_its_target(Provider::Rdma, 2));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_mounted_file_system_outlives_our_killed_rdma_target_on_siw() {
    in_guest(&siw(), || outlives_its_target(Provider::Rdma, 2));
}

/// The target is killed in the middle of synced writes and starts again, several times: no user of the file system notices.
fn outlives_its_target(provider: Provider, times: usize) {
    let folder = tempfile::tempdir().unwrap();
    let below = mount_ram_disk(folder.path(), VOLUME_MIB * 2);
    let mount_point = folder.path().join("mount");
    fs::create_dir(&mount_point).unwrap();
    let mut target = Served::file(provider, &below, VOLUME_MIB);
    let controller = Host::numbered(1).connect(address(), NQN, &PERSISTENT);
    let file_system = FileSystem::make(Kind::Ext4, &controller.disk(1));
    let mounted = file_system.mount(&mount_point);

    let mut load = Load::start(&mounted.folder().join("load"), &["--fsync=16"]);
    load.await_progress(|| controller.writes(1));
    for time in 0..times {
        step("kill");
        let flushes = controller.flushes(1);
        target.kill();
        controller.await_state("connecting");
        // It may have to wait for what is on its way to the journal.
        let note = mounted.folder().join(format!("note {time}"));
        let note = thread::spawn(move || fs::write(note, "in the cache"));
        step("start");
        target.start_again();
        controller.await_state("live");
        step("live");
        note.join().unwrap().unwrap();
        load.await_progress(|| controller.writes(1));
        wait_for("a flush", PATIENCE, || controller.flushes(1) > flushes);
        assert!(mounted.is_writable() && load.is_running());
    }
    load.finish();
    step("look at it");
    fs::write(mounted.folder().join("after"), "still writable").unwrap();
    mounted.unmount();
    file_system.check();
    let mounted = file_system.mount(&mount_point);
    assert_eq!(fs::read_to_string(mounted.folder().join("after")).unwrap(), "still writable");
    for time in 0..times {
        assert_eq!(fs::read_to_string(mounted.folder().join(format!("note {time}"))).unwrap(), "in the cache");
    }
    mounted.unmount();
    let log = dmesg();
    for word in ["I/O error", "EXT4-fs error", "EXT4-fs warning", "emounting filesystem read-only"] {
        assert!(!log.contains(word), "{log}");
    }
    controller.disconnect();
    target.finish();
}

/// A file system of its own for the backing file: a tmpfs would have the target's writes done in place.
fn mount_ram_disk(folder: &Path, mib: u32) -> std::path::PathBuf {
    run(Command::new("modprobe").args(["brd", "rd_nr=1", &format!("rd_size={}", mib << 10)]));
    let below = folder.join("below");
    fs::create_dir(&below).unwrap();
    FileSystem::make(Kind::Ext4, Path::new("/dev/ram0")).mount(&below);
    below
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn verified_writes_go_on_through_resets_rescans_and_fewer_queues() {
    in_guest(&siw(), || {
        let folder = tempfile::tempdir().unwrap();
        let mut target = Served::limited(folder.path(), VOLUME_MIB, "{ io_queues: 2 }");
        let controller = Host::numbered(1).connect(address(), NQN, &[&["--nr-io-queues", "2"], &PERSISTENT[..]].concat());
        let disk = controller.disk(1);
        let mut load = Load::start(&disk, &[]);
        load.await_progress(|| controller.writes(1));

        for by_ioctl in [true, false, true, false] {
            step("reset");
            let id = connections(&controller);
            if by_ioctl {
                controller.command("reset", &[]);
            } else {
                controller.order("reset_controller");
            }
            controller.await_state("live");
            load.await_progress(|| controller.writes(1));
            assert_ne!(connections(&controller), id, "it was no reset");
        }
        step("rescan");
        for _ in 0..10 {
            controller.order("rescan_controller");
            load.await_progress(|| controller.writes(1));
        }
        assert_eq!(controller.disk(1), disk);

        for (limits, with_admin) in [("{ io_queues: 1 }", "2"), ("{ io_queues: 2 }", "3")] {
            step(limits);
            write_configuration(folder.path(), VOLUME_MIB, limits);
            target.kill();
            controller.await_state("connecting");
            target.start_again();
            controller.await_state("live");
            assert_eq!(controller.attribute("queue_count"), with_admin);
            load.await_progress(|| controller.writes(1));
        }
        load.finish();
        controller.disconnect();
        target.finish();
    });
}

/// The identifier of the controller at the target, which each association has for itself.
fn connections(controller: &Controller) -> String {
    controller.attribute("cntlid")
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn controllers_come_and_go_and_leave_nothing_behind() {
    in_guest(&siw(), || {
        let folder = tempfile::tempdir().unwrap();
        // A place that is not free again at once is missed soon.
        let mut target = Served::limited(folder.path(), VOLUME_MIB, "{ controllers: 2 }");
        let host = Host::numbered(1);
        // What is made at the first connection stays.
        come_and_go(&host);
        wait_for("the connections end", PATIENCE, || target.process().output().contains("host connected"));
        thread::sleep(Duration::from_secs(1));
        let (descriptors, resident_kib) = (target.process().descriptors(), target.process().resident_kib());

        for order in ["disconnect", "delete_controller"] {
            step(order);
            let controller = host.connect(address(), NQN, &PERSISTENT);
            let disk = controller.disk(1);
            let mut load = Load::start(&disk, &[]);
            load.await_progress(|| controller.writes(1));
            if order == "disconnect" {
                disconnect(NQN);
            } else {
                controller.command("reset", &[]);
                thread::sleep(Duration::from_millis(500));
                controller.order(order);
            }
            controller.await_end();
            load.await_failure();
        }
        step("come and go");
        for _ in 0..10 {
            come_and_go(&host);
        }
        step("reset and go");
        for _ in 0..5 {
            let controller = host.connect(address(), NQN, &PERSISTENT);
            controller.order("reset_controller");
            disconnect(NQN);
            controller.await_end();
        }
        assert_eq!(controllers(), []);
        step("look at the target");
        wait_for("the descriptors are closed", PATIENCE, || target.process().descriptors() <= descriptors);
        let now_kib = target.process().resident_kib();
        assert!(now_kib < resident_kib + 4096, "resident: {resident_kib} KiB, then {now_kib} KiB");
        let controller = host.connect(address(), NQN, &PERSISTENT);
        Disk::at(controller.disk(1)).verify();
        controller.disconnect();
        target.finish();
    });
}

/// Connects, and does not wait for anything.
fn come_and_go(host: &Host) {
    let controller = host.connect(address(), NQN, &PERSISTENT);
    disconnect(NQN);
    controller.await_end();
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_target_that_stands_still_is_left_and_found_again() {
    let guest = siw().kernel_arguments(&format!("nvme_core.admin_timeout={}", ADMIN_TIMEOUT.as_secs()));
    in_guest(&guest, || {
        let folder = tempfile::tempdir().unwrap();
        let target = Served::file(Provider::Iwarp, folder.path(), VOLUME_MIB);
        let arguments = [&["--keep-alive-tmo", "2"], &PERSISTENT[..]].concat();
        let host = Host::numbered(1);
        let controller = host.connect(address(), NQN, &arguments);
        let disk = controller.disk(1);

        step("idle");
        stall_until_left(&target, &controller, Duration::ZERO);
        step("under load");
        let mut load = Load::start(&disk, &[]);
        load.await_progress(|| controller.writes(1));
        stall_until_left(&target, &controller, Duration::ZERO);
        load.await_progress(|| controller.writes(1));
        step("while it connects");
        stall_until_left(&target, &controller, Duration::from_secs(4));
        load.await_progress(|| controller.writes(1));
        step("while it resets");
        target.stall();
        let mut reset = Command::new("nvme").arg("reset").arg(controller.device()).spawn().unwrap();
        controller.await_state("resetting");
        thread::sleep(Duration::from_secs(3));
        target.resume();
        // Whether the reset succeeds or the host connects again after it: the load goes on.
        reset.wait().unwrap();
        controller.await_state("live");
        load.await_progress(|| controller.writes(1));
        load.finish();

        step("while it is deleted");
        target.stall();
        let started = Instant::now();
        disconnect(NQN);
        controller.await_end();
        // Its queues, its shutdown, and time for a slow machine.
        assert!(started.elapsed() < ADMIN_TIMEOUT * 4, "{:?}", started.elapsed());
        target.resume();
        let controller = host.connect(address(), NQN, &arguments);
        Disk::at(controller.disk(1)).verify();
        controller.disconnect();
        target.finish();
    });
}

/// Stops the target until the host has given it up, and a while longer, and lets it go on.
fn stall_until_left(target: &Served, controller: &Controller, longer: Duration) {
    target.stall();
    controller.await_state("connecting");
    thread::sleep(longer);
    target.resume();
    controller.await_state("live");
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn writes_wait_for_the_target_until_ctrl_loss_tmo_and_fail_then() {
    in_guest(&siw(), || {
        let folder = tempfile::tempdir().unwrap();
        let mut target = Served::file(Provider::Iwarp, folder.path(), VOLUME_MIB);
        let host = Host::numbered(1);

        step("it comes back");
        let controller = host.connect(address(), NQN, &["--reconnect-delay", "1", "--ctrl-loss-tmo", "60"]);
        let disk = controller.disk(1);
        target.kill();
        controller.await_state("connecting");
        let mut write = write_block(&disk).spawn().unwrap();
        thread::sleep(Duration::from_secs(4));
        assert!(write.try_wait().unwrap().is_none(), "it did not wait");
        target.start_again();
        assert!(write.wait().unwrap().success());
        controller.disconnect();

        step("it does not come back");
        let controller = host.connect(address(), NQN, &["--reconnect-delay", "1", "--ctrl-loss-tmo", "3"]);
        let disk = controller.disk(1);
        target.kill();
        let started = Instant::now();
        let Output { status, stderr, .. } = write_block(&disk).output().unwrap();
        let (took, said) = (started.elapsed(), String::from_utf8_lossy(&stderr).into_owned());
        assert!(!status.success() && said.contains("Input/output error"), "{said}");
        assert!(took > Duration::from_secs(2) && took < Duration::from_secs(30), "{took:?}");
        controller.await_end();
        assert!(dmesg().contains("Failed reconnect attempt 3/3"), "{}", dmesg());
        target.start_again();
        let controller = host.connect(address(), NQN, &[]);
        Disk::at(controller.disk(1)).verify();
        controller.disconnect();
        target.finish();
    });
}

fn write_block(disk: &Path) -> Command {
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", "bs=4096", "count=1", "oflag=direct", "status=none"]).arg(format!("of={}", disk.display()));
    dd.stderr(std::process::Stdio::piped());
    dd
}
