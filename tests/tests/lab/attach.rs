//! Our volumes as block devices of Linux's, which people format, mount and forget, through the NBD driver of the guest's kernel.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use godwit_tests::daemon::{Process, Target, binary, free_port, wait_for};
use godwit_tests::lab::attached::Attached;
use godwit_tests::lab::filesystem::{FileSystem, Kind};
use godwit_tests::lab::load::Load;
use godwit_tests::lab::{Guest, dmesg, in_guest};
use godwit_tests::tools::{run, run_failing};
use nix::sys::signal::Signal;

use crate::cells::step;

fn godwit() -> Command {
    Command::new(binary("godwit"))
}

/// No I/O that the kernel asked for has failed.
fn no_io_error() {
    let log = dmesg();
    assert!(!log.contains("I/O error") && !log.contains("critical"), "{log}");
}

fn is_free(name: &str) -> bool {
    !Path::new("/sys/block").join(name).join("pid").exists()
}

/// The whole life of a device: what it says of itself, raw I/O, file systems, partitions, and its end.
#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_volume_is_a_disk_of_the_kernels() {
    in_guest(&Guest::default().shared(), || {
        let folder = tempfile::tempdir().unwrap();
        let mount_point = folder.path().join("mount");
        fs::create_dir(&mount_point).unwrap();
        let target = Target::start(&format!("{},size=400MiB", folder.path().join("disk.img").display()));
        let mut attached = Attached::start(&target.url(), &[]);

        step("what it says of itself");
        let disk = &attached.disk;
        assert_eq!(disk.size_bytes(), 400 << 20);
        for (attribute, value) in [("logical_block_size", "4096"), ("write_cache", "write back"), ("fua", "1"), ("rotational", "0")] {
            assert_eq!(disk.queue(attribute), value, "{attribute}");
        }
        wait_for("max_sectors_kb", Duration::from_secs(10), || disk.queue("max_sectors_kb").parse::<u32>().unwrap() <= 1024);
        assert_ne!(disk.queue("discard_max_bytes"), "0");
        assert_ne!(disk.queue("write_zeroes_max_bytes"), "0");

        step("raw");
        disk.verify();
        disk.write(0, &[0xa5; 1 << 20]);
        disk.zero(0, 64 << 10);
        assert_eq!(disk.read(0, 128 << 10).unwrap(), [vec![0; 64 << 10], vec![0xa5; 64 << 10]].concat());
        disk.discard(0, 1 << 20);
        run(Command::new("blkdiscard").arg(disk.path()));
        run(Command::new("blkdiscard").arg("-z").arg(disk.path()));

        for kind in [Kind::Ext4, Kind::Xfs] {
            step(&format!("{kind:?}"));
            let file_system = FileSystem::make(kind, disk.path());
            let mounted = file_system.mount(&mount_point);
            let file = mounted.folder().join("file");
            run(Command::new("fio")
                .args([
                    "--name=job",
                    "--rw=randrw",
                    "--bsrange=4k-256k",
                    "--blockalign=4k",
                    "--size=32m",
                    "--ioengine=libaio",
                    "--iodepth=16",
                    "--verify=crc32c",
                    "--do_verify=1",
                    "--verify_fatal=1",
                    "--fsync=16",
                ])
                .arg(format!("--filename={}", file.display())));
            run(Command::new("fstrim").arg(mounted.folder()));
            let refusal = run_failing(godwit().args(["disconnect", &attached.name().replace("nbd", "/dev/nbd")])).1;
            assert!(refusal.contains("is in use: it is mounted on"), "{refusal}");
            mounted.unmount();
            file_system.check();
        }

        step("partitions");
        let mut sfdisk = Command::new("sfdisk").arg("-q").arg(disk.path()).stdin(std::process::Stdio::piped()).spawn().unwrap();
        sfdisk.stdin.take().unwrap().write_all(b"label: gpt\nsize=64M\nsize=64M\n").unwrap();
        assert!(sfdisk.wait().unwrap().success());
        let second = disk.path().with_file_name(format!("{}p2", attached.name()));
        wait_for("the second partition", Duration::from_secs(20), || second.exists());
        let file_system = FileSystem::make(Kind::Ext4, &second);
        let mounted = file_system.mount(&mount_point);
        fs::write(mounted.folder().join("file"), "partitioned").unwrap();
        let refusal = run_failing(godwit().args(["disconnect", "test"])).1;
        assert!(refusal.contains("is in use: it is mounted on"), "{refusal}");
        mounted.unmount();

        step("the end");
        let told = run(godwit().args(["disconnect", "test"]));
        assert_eq!(told, "detached: test\n");
        assert!(attached.process.wait(Duration::from_secs(30)).success());
        assert!(is_free(&attached.name()));
        no_io_error();
    });
}

/// One volume a device, and each refusal says what to do.
#[test]
#[ignore = "needs root and QEMU: make lab"]
fn what_stands_in_the_way_of_a_device_is_said() {
    in_guest(&Guest::default(), || {
        let target = Target::start("memory:64MiB");
        let url = target.url();
        let connect = |device: &str| run_failing(godwit().args(["connect", &url, "--device", device])).1;

        step("no driver");
        // The kernel loads it by itself where it can.
        let forbidden = Path::new("/etc/modprobe.d/no-nbd.conf");
        fs::write(forbidden, "install nbd /bin/false\n").unwrap();
        let said = connect("/dev/nbd0");
        assert!(said.contains("the kernel has no NBD driver: load it with `modprobe nbd`"), "{said}");
        fs::remove_file(forbidden).unwrap();

        step("not root");
        let mut as_nobody = Command::new("setpriv");
        as_nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(binary("godwit")).args([
            "connect",
            &url,
            "--device",
            "/dev/nbd0",
        ]);
        let said = run_failing(&mut as_nobody).1;
        assert!(said.contains("needs root (CAP_SYS_ADMIN)"), "{said}");

        step("no such device");
        let said = connect("/dev/nbd99999999");
        assert!(said.contains("the kernel has no /dev/nbd99999999"), "{said}");

        step("in use by another godwit");
        let attached = Attached::start(&url, &["--device", "/dev/nbd3"]);
        let said = connect("/dev/nbd3");
        assert!(said.contains("/dev/nbd3 is served by another godwit"), "{said}");
        let other = Target::start("memory:64MiB");
        let said = run_failing(godwit().args(["connect", &other.url(), "--device", "/dev/nbd3"])).1;
        assert!(said.contains("/dev/nbd3 is the device of another volume"), "{said}");

        step("in use by somebody else");
        let socket = tempfile::tempdir().unwrap();
        let path = socket.path().join("nbd.sock");
        let mut server = Process::start(Command::new("nbdkit").args(["-f", "-U"]).arg(&path).args(["memory", "16M"]));
        server.await_ready(|| path.exists()).unwrap();
        run(Command::new("nbd-client").arg("-unix").arg(&path).arg("/dev/nbd5"));
        let said = connect("/dev/nbd5");
        assert!(said.contains("/dev/nbd5 is in use") && said.contains("nbd-client -d /dev/nbd5"), "{said}");
        run(Command::new("nbd-client").args(["-d", "/dev/nbd5"]));

        step("freed by somebody else");
        run(Command::new("nbd-client").args(["-d", "/dev/nbd3"]));
        let mut attached = attached;
        assert!(attached.process.wait(Duration::from_secs(30)).success(), "{}", attached.process.output());
        assert!(attached.process.output().contains("was freed by somebody else"), "{}", attached.process.output());
    });
}

/// A process that writes records and syncs each, and what it got back.
fn synced_writes_while(folder: &Path, events: impl FnOnce()) {
    let path = folder.join("log");
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let file = File::create(&path).unwrap();
            let mut count = 0_u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let record = [count; 512].map(u64::to_le_bytes).concat();
                file.write_all_at(&record, count * 4096).unwrap_or_else(|error| panic!("record {count}: {error}"));
                file.sync_data().unwrap_or_else(|error| panic!("sync of record {count}: {error}"));
                count += 1;
            }
            count
        });
        events();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let count = writer.join().unwrap();
        assert!(count > 10, "only {count} records were written");
        let written = fs::read(&path).unwrap();
        for (index, record) in (0_u64..).zip(written.chunks(4096)) {
            assert!(record.chunks(8).all(|word| word == index.to_le_bytes()), "record {index}");
        }
    });
}

/// The target is killed and stays away; the daemon is killed; both are. Nobody who uses the file system notices.
#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_mounted_file_system_outlives_both_daemons() {
    in_guest(&Guest::default().shared(), || {
        let folder = tempfile::tempdir().unwrap();
        let mount_point = folder.path().join("mount");
        fs::create_dir(&mount_point).unwrap();
        let export = format!("{},size=200MiB", folder.path().join("disk.img").display());
        let port = free_port();
        let mut target = Some(Target::start_at(port, &export));
        let mut attached = Attached::start(&target.as_ref().unwrap().url(), &["--reactors", "2", "--keep-alive-tmo", "5"]);
        let file_system = FileSystem::make(Kind::Ext4, attached.disk.path());
        let mounted = file_system.mount(&mount_point);
        let load = Load::start(&mounted.folder().join("load"), &[]);
        synced_writes_while(mounted.folder(), || {
            thread::sleep(Duration::from_secs(3));
            step("the target is killed and is away for 20 s");
            target.take().unwrap().process.kill();
            thread::sleep(Duration::from_secs(20));
            target = Some(Target::start_at(port, &export));
            thread::sleep(Duration::from_secs(5));
            step("the daemon is killed");
            attached.kill();
            thread::sleep(Duration::from_secs(3));
            attached.start_again();
            thread::sleep(Duration::from_secs(40));
            step("both are killed");
            target.take().unwrap().process.kill();
            attached.kill();
            thread::sleep(Duration::from_secs(3));
            target = Some(Target::start_at(port, &export));
            attached.start_again();
            thread::sleep(Duration::from_secs(40));
            step("the daemon is told to end, and another one goes on");
            attached.process.terminate();
            attached.start_again();
        });
        load.finish();
        assert!(mounted.is_writable());
        mounted.unmount();
        file_system.check();
        no_io_error();
        run(godwit().args(["disconnect", "test"]));
        assert!(is_free(&attached.name()));
    });
}

/// When the target does not come back in time, whatever waits fails, and the device is there for the next volume.
#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_volume_that_is_given_up_leaves_its_device_free() {
    in_guest(&Guest::default().shared(), || {
        let folder = tempfile::tempdir().unwrap();
        let mount_point = folder.path().join("mount");
        fs::create_dir(&mount_point).unwrap();
        let export = format!("{},size=64MiB", folder.path().join("disk.img").display());
        let port = free_port();
        let mut target = Target::start_at(port, &export);
        let mut attached = Attached::start(&target.url(), &["--ctrl-loss-tmo", "5", "--device", "/dev/nbd1"]);
        let file_system = FileSystem::make(Kind::Ext4, attached.disk.path());
        let mounted = file_system.mount(&mount_point);
        let file = File::create(mounted.folder().join("file")).unwrap();
        file.sync_all().unwrap();
        target.process.kill();
        file.write_all_at(&[1; 4096], 0).unwrap();
        let started = Instant::now();
        let error = file.sync_all().unwrap_err();
        assert!(
            error.raw_os_error() == Some(libc::EIO) && started.elapsed() < Duration::from_secs(60),
            "{error} after {:?}",
            started.elapsed()
        );
        assert_eq!(attached.process.wait(Duration::from_secs(30)).code(), Some(1));
        assert!(attached.process.output().contains("the volume is gone"), "{}", attached.process.output());
        drop(file);
        run(Command::new("umount").arg(mounted.folder()));
        wait_for("the device is free", Duration::from_secs(10), || is_free("nbd1"));
        let stuck = run(Command::new("ps").args(["-eo", "state,comm"]));
        assert!(!stuck.lines().any(|line| line.starts_with('D')), "{stuck}");

        let target = Target::start_at(port, &export);
        let attached = Attached::start(&target.url(), &["--device", "/dev/nbd1"]);
        FileSystem::make(Kind::Ext4, attached.disk.path()).check();
        attached.process.signal(Signal::SIGTERM);
        let mut attached = attached;
        assert!(attached.process.wait(Duration::from_secs(30)).success());
        assert!(is_free("nbd1"), "a device that nobody uses goes with its daemon");
    });
}
