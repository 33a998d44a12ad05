//! The units in a machine whose first process is systemd: what is in fstab comes up at boot, outlives its daemon, and does not hold up the shutdown.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use godwit_tests::daemon::{NQN, binary, wait_for};
use godwit_tests::lab::load::Load;
use godwit_tests::lab::systemd::in_guest_with_systemd;
use godwit_tests::lab::{Guest, dmesg, is_inside};
use godwit_tests::tools::run;

use crate::cells::step;

/// Where the volume is mounted.
const MOUNT_POINT: &str = "/srv/vol0";

/// What is in the file on the volume before the machine boots.
const CONTENT: &str = "written before the boot";

/// What the state directory of a service with a dynamic user really is.
const STATE: &str = "/var/lib/private/godwit";

const PATIENCE: Duration = Duration::from_secs(120);

/// A shutdown with a volume takes no longer than one without, and this.
const LONGER: Duration = Duration::from_secs(10);

/// What a shutdown without a volume takes at most in a guest that has a processor of this machine to itself.
const QUICK: Duration = Duration::from_secs(6);

/// Boot, case and shutdown under an emulated processor.
fn guest() -> Guest {
    Guest::default().limit(Duration::from_secs(1200))
}

fn systemctl(arguments: &[&str]) -> String {
    run(Command::new("systemctl").args(arguments))
}

/// Who has a volume for the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    /// The daemon of all volumes.
    Initiator,
    /// A daemon of its own.
    Volume,
}

impl Client {
    fn unit(self) -> &'static str {
        match self {
            Self::Initiator => "godwit-initiator.service",
            Self::Volume => "godwit-volume@vol0.service",
        }
    }

    fn configure(self) {
        match self {
            Self::Initiator => {
                let volume = format!(
                    "volumes:\n  - name: vol0\n    addresses: [\"iwarp://127.0.0.1:4420\"]\n    nqn: {NQN}\n    device: /dev/nbd0\n"
                );
                fs::write("/etc/godwit/initiator.yaml", volume).unwrap();
            }
            Self::Volume => {
                let volume = format!("URL=iwarp://127.0.0.1:4420/{NQN}\nOPTIONS=--device /dev/nbd0\n");
                fs::write("/etc/godwit/volumes/vol0.conf", volume).unwrap();
            }
        }
    }

    /// The process id of its daemon.
    fn pid(self) -> u32 {
        systemctl(&["show", "--property=MainPID", "--value", self.unit()]).trim().parse().unwrap()
    }
}

/// Installs the programs and their units as an administrator does, and configures a target.
fn install() {
    let built = binary("godwit").ancestors().nth(2).unwrap().to_owned();
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    run(Command::new("make").arg("-C").arg(checkout).arg("install").arg("PREFIX=/usr").env("CARGO_TARGET_DIR", built));
    let target = format!(
        "listeners:\n  - {{ transport: iwarp, address: \"127.0.0.1:4420\" }}\nsubsystems:\n  - nqn: {NQN}\n    allow_any_host: true\n    namespaces:\n      \
         - {{ nsid: 1, backend: {{ file: {{ path: /var/lib/godwit/disk.img }} }} }}\n"
    );
    fs::write("/etc/godwit/target.yaml", target).unwrap();
    // With a file system that has a file.
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), CONTENT).unwrap();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(STATE).unwrap();
    let image = Path::new(STATE).join("disk.img");
    run(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096", "-e", "remount-ro", "-d"]).arg(folder.path()).arg(&image).arg("200M"));
}

/// The volume in fstab, as the unit's header has it.
fn put_into_fstab(client: Client) {
    let options = format!("_netdev,x-systemd.requires={}", client.unit());
    fs::write("/etc/fstab", format!("/dev/nbd0 {MOUNT_POINT} ext4 {options} 0 2\n")).unwrap();
}

fn is_mount_point() -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(MOUNT_POINT))
}

/// The mount, by a number that each time that systemd mounts gets one of.
fn invocation() -> String {
    systemctl(&["show", "--property=InvocationID", "--value", "srv-vol0.mount"])
}

/// The volume is in use, with what had been written to it.
fn is_mounted() {
    assert!(is_mount_point(), "{}", systemctl(&["--no-pager", "list-units", "--all", "*godwit*", "*nbd0*", "srv*"]));
    assert_eq!(fs::read_to_string(Path::new(MOUNT_POINT).join("file")).unwrap(), CONTENT);
}

fn no_io_error() {
    let log = dmesg();
    assert!(!log.contains("I/O error") && !log.contains("critical"), "{log}");
}

fn comes_up_and_outlives_its_daemon(client: Client) {
    let before = || {
        install();
        client.configure();
        put_into_fstab(client);
        run(Command::new("systemctl").args(["enable", "godwit-target.service"]));
    };
    in_guest_with_systemd(&guest(), before, || {
        step("mounted at boot");
        is_mounted();
        // Each daemon is found where its unit has its control socket.
        let asked = run(Command::new("godwit-target").arg("status"));
        assert!(asked.contains(NQN), "{asked}");
        let asked = run(Command::new("godwit").arg("list"));
        assert!(asked.contains("vol0") && asked.contains("/dev/nbd0"), "{asked}");
        let mount = invocation();

        step("the daemon is killed under load");
        let mut load = Load::start(&Path::new(MOUNT_POINT).join("load"), &[]);
        let written = || {
            let statistics = fs::read_to_string("/sys/block/nbd0/stat").unwrap();
            statistics.split_whitespace().nth(4).unwrap().parse().unwrap()
        };
        for _ in 0..3 {
            load.await_progress(written);
            let pid = client.pid();
            systemctl(&["kill", "--signal=KILL", client.unit()]);
            wait_for("systemd starts it again", PATIENCE, || ![0, pid].contains(&client.pid()));
            load.await_progress(written);
            assert!(is_mount_point());
            assert_eq!(invocation(), mount, "it stays mounted");
        }

        step("another version takes over");
        systemctl(&["restart", "--job-mode=ignore-dependencies", client.unit()]);
        load.await_progress(written);
        assert!(is_mount_point());
        assert_eq!(invocation(), mount, "it stays mounted");
        load.finish();
        no_io_error();

        step("unmounted before the daemon goes");
        systemctl(&["stop", client.unit()]);
        assert!(!is_mount_point());
        no_io_error();
        assert!(!Path::new("/sys/block/nbd0/pid").exists(), "the device is free");
    });
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_volume_in_fstab_is_mounted_at_boot_and_outlives_its_daemon() {
    comes_up_and_outlives_its_daemon(Client::Initiator);
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_volume_of_its_own_daemon_in_fstab_is_mounted_at_boot_and_outlives_it() {
    comes_up_and_outlives_its_daemon(Client::Volume);
}

/// Not even a target that is gone while there is something to write out.
#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_mounted_volume_does_not_hold_up_the_shutdown() {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum With {
        NoVolume,
        Volume,
        VolumeOfDeadTarget,
    }
    let took = |with: With| {
        let before = || {
            install();
            Client::Volume.configure();
            run(Command::new("systemctl").args(["enable", "godwit-target.service"]));
            if with != With::NoVolume {
                put_into_fstab(Client::Volume);
            }
        };
        let mark = format!("lab.{with:?}.");
        if is_inside() && !fs::read_to_string("/proc/cmdline").unwrap().contains(&mark) {
            // This guest is another one's.
            return None;
        }
        in_guest_with_systemd(&guest().kernel_arguments(&mark), before, || {
            step(&format!("{with:?}"));
            if with == With::NoVolume {
                assert!(!is_mount_point());
                return;
            }
            is_mounted();
            fs::write(Path::new(MOUNT_POINT).join("more"), [1; 1 << 20]).unwrap();
            if with == With::VolumeOfDeadTarget {
                fs::create_dir_all("/run/systemd/system/godwit-target.service.d").unwrap();
                fs::write("/run/systemd/system/godwit-target.service.d/no.conf", "[Service]\nRestart=no\n").unwrap();
                systemctl(&["daemon-reload"]);
                systemctl(&["kill", "--signal=KILL", "godwit-target.service"]);
            }
        })
    };
    let [Some(plain), Some(volume), Some(dead)] = [With::NoVolume, With::Volume, With::VolumeOfDeadTarget].map(took) else { return };
    println!("shutdown: {plain:.1?} without a volume, {volume:.1?} with one, {dead:.1?} with one whose target is gone");
    // Where the machine is that slow without a volume, what is done for one takes longer, too.
    let longer = LONGER.mul_f64((plain.as_secs_f64() / QUICK.as_secs_f64()).max(1.0));
    assert!(volume <= plain + longer && dead <= plain + longer, "{plain:?}, {volume:?}, {dead:?}");
}

/// What the README has for a quick start.
#[test]
#[ignore = "needs root and QEMU: make lab"]
fn the_daemons_run_by_systemd_run() {
    in_guest_with_systemd(&guest(), install, || {
        // With the paths of the README.
        let start = |unit: &str, command: &[&str]| {
            run(Command::new("systemd-run").arg(format!("--unit={unit}")).args(["-p", "Type=notify"]).args(command));
            assert_eq!(systemctl(&["is-active", unit]), "active\n");
        };
        fs::create_dir_all("/var/lib/godwit").unwrap();
        fs::rename(Path::new(STATE).join("disk.img"), "/var/lib/godwit/disk.img").unwrap();
        start("try-target", &["godwit-target", "--config", "/etc/godwit/target.yaml"]);
        let url = format!("iwarp://127.0.0.1:4420/{NQN}");
        start("try-vol0", &["godwit", "connect", &url, "--nbd", "unix:/run/vol0.sock"]);
        let size = run(Command::new("nbdinfo").args(["--size", "nbd+unix:///?socket=/run/vol0.sock"]));
        assert_eq!(size.trim(), (200 << 20).to_string());
        for unit in ["try-vol0", "try-target"] {
            systemctl(&["stop", unit]);
            let result = systemctl(&["show", "--property=Result", "--value", unit]);
            assert_eq!(result, "success\n", "{unit}");
        }
    });
}
