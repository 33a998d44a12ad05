//! Who may come, as whom, and how many at a time: Linux's hosts and ours beside each other.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use godwit_tests::daemon::{Initiator, NQN, Target, wait_for};
use godwit_tests::lab::disk::Disk;
use godwit_tests::lab::load::Load;
use godwit_tests::lab::nvme::{Controller, Host, controllers};
use godwit_tests::lab::rdma::Device;
use godwit_tests::lab::{Guest, dmesg, in_guest};
use godwit_tests::tools::fio;

use crate::cells::{Provider, address, finish, step};
use crate::offers::{self, Offer};

const OTHER_NQN: &str = "nqn.2026-11.org.example:other";
const UUID: &str = "0a1b2c3d-0000-4000-8000-000000000001";
const OTHER_UUID: &str = "0a1b2c3d-0000-4000-8000-000000000002";

fn siw() -> Guest {
    Guest::with(Device::Siw).shared()
}

fn start(folder: &Path, offers: &[Offer]) -> Target {
    offers::start(folder, Provider::Iwarp, address(), offers)
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn what_linux_host_may_not_do_is_refused_and_told() {
    in_guest(&siw(), || {
        let folder = tempfile::tempdir().unwrap();
        let (host, stranger) = (Host::numbered(1), Host::numbered(2));
        let blocks = |uuid: &str| Offer::new(NQN).to(&host).with(16, &format!("uuid: {uuid}"));

        step("nobody listens");
        refused(&host, NQN, "rdma_connect_locked failed (-111)");

        let mut target = start(folder.path(), &[blocks(UUID)]);
        step("a host that is not in the list");
        refused(&stranger, NQN, &format!("Connect for subsystem {NQN} is not allowed, hostnqn: {}", stranger.nqn));
        step("a subsystem that is not there");
        refused(&host, OTHER_NQN, "Connect Invalid Data Parameter, subsysnqn");

        step("identities");
        let controller = host.connect(address(), NQN, &["--keep-alive-tmo", "1", "--reconnect-delay", "1"]);
        let disk = Disk::at(controller.disk(1));
        assert_eq!(identity(&disk, "uuid"), UUID);
        assert_eq!(identity(&disk, "wwid"), format!("uuid.{UUID}"));
        step("half of another host's identity");
        for (nqn, id) in [(&host.nqn, &stranger.id), (&stranger.nqn, &host.id)] {
            let error = Host { nqn: nqn.clone(), id: id.clone() }.try_connect(address(), NQN, &[]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        }
        step("the same once more");
        let error = host.try_connect(address(), NQN, &[]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EALREADY), "{error}");
        disk.verify_range(0, 2);

        step("another disk in its place");
        let held = File::open(disk.path()).unwrap();
        target.process.kill();
        let mut target = start(folder.path(), &[blocks(OTHER_UUID)]);
        wait_for("the kernel looks at the disk again", Duration::from_secs(60), || dmesg().contains("identifiers changed for nsid 1"));
        controller.await_state("live");
        wait_for("the disk is gone", Duration::from_secs(60), || !disk.path().exists());
        // Who has it open does not read the other one either.
        assert!(!matches!(held.read_at(&mut [0; 4096], 8 << 20), Ok(len) if len > 0));
        controller.disconnect();
        finish(&mut target.process);
    });
}

/// The kernel says why.
fn refused(host: &Host, nqn: &str, words: &str) {
    host.fail_to_connect(address(), nqn, &[]);
    let log = dmesg();
    assert!(log.contains(words), "no `{words}` in:\n{log}");
    assert_eq!(controllers(), []);
}

fn identity(disk: &Disk, attribute: &str) -> String {
    let path = Path::new("/sys/class/block").join(disk.path().file_name().unwrap()).join(attribute);
    fs::read_to_string(path).unwrap().trim().to_owned()
}

/// Two hosts on the same disk at the same time; then one host by two paths, on two subsystems, and by our initiator under the same name.
#[test]
#[ignore = "needs root and QEMU: make lab"]
fn hosts_that_are_there_at_the_same_time_leave_each_other_alone() {
    in_guest(&siw(), || {
        let folder = tempfile::tempdir().unwrap();
        let offer = |nqn| Offer::new(nqn).with(64, "block_size: 4096").with(16, "block_size: 512");
        let mut target = start(folder.path(), &[offer(NQN), offer(OTHER_NQN)]);
        let (host, second) = (Host::numbered(1), Host::numbered(2));

        step("two hosts");
        // nvme-cli takes the first one's connection for the second one's.
        let controllers = [&host, &second].map(|host| host.try_connect(address(), NQN, &["keep_alive_tmo=10"]).unwrap());
        let [ours, theirs] = controllers.each_ref().map(|controller| Disk::at(controller.disk(1)));
        at_once(vec![Box::new(|| ours.verify_range(0, 8)), Box::new(|| theirs.verify_range(8, 8))]);
        // What one of them wrote, the other reads.
        ours.write(0, &[0xa5; 4096]);
        assert_eq!(theirs.read(0, 4096).unwrap(), [0xa5; 4096]);
        undisturbed(&target, &controllers);
        let [controller, theirs] = controllers;
        theirs.disconnect();

        step("two paths of one host");
        let path = host.try_connect(address(), NQN, &["keep_alive_tmo=10", "duplicate_connect"]).unwrap();
        assert_ne!(path.attribute("cntlid"), controller.attribute("cntlid"));
        path.await_state("live");
        assert_eq!(path.disk(1), controller.disk(1), "one disk by two paths");
        step("a second subsystem, and our initiator under the same name");
        let other = host.connect(address(), OTHER_NQN, &["--keep-alive-tmo", "10"]);
        let identity = ["--hostnqn", &host.nqn, "--hostid", &host.id, "--keep-alive-tmo", "10"];
        let url = format!("{}/{NQN}?nsid=2", Provider::Iwarp.url(address()));
        let mut initiator = Initiator::start_with(&url, &folder.path().join("nbd.sock"), &identity);
        let (disk, other_disk) = (Disk::at(controller.disk(1)), Disk::at(other.disk(1)));
        let uri = initiator.uri();
        at_once(vec![
            Box::new(|| disk.verify_range(0, 8)),
            Box::new(|| other_disk.verify_range(0, 8)),
            Box::new(|| {
                fio(&uri, &["--rw=randrw", "--bsrange=4k-256k", "--iodepth=16", "--size=8m", "--verify=crc32c", "--verify_fatal=1"]);
            }),
        ]);
        let all = [controller, path, other];
        undisturbed(&target, &all);
        let said = initiator.process.output();
        assert!(!said.contains("trying again") && !said.contains("WARN"), "{said}");

        step("one path goes, the disk stays");
        let [controller, path, other] = all;
        controller.disconnect();
        Disk::at(path.disk(1)).verify_range(8, 2);
        finish(&mut initiator.process);
        path.disconnect();
        Disk::at(other.disk(1)).verify_range(0, 1);
        other.disconnect();
        finish(&mut target.process);
    });
}

/// Commands keep an association alive as well as Keep Alive does (TBKAS), which comes late on a machine that has enough to do.
#[test]
#[ignore = "needs root and QEMU: make lab"]
fn hosts_at_work_keep_their_associations_however_short_their_timeouts() {
    in_guest(&siw(), || {
        let folder = tempfile::tempdir().unwrap();
        let mut target = start(folder.path(), &[Offer::new(NQN).with(64, "block_size: 4096").with(64, "block_size: 4096")]);
        let hosts = [Host::numbered(1), Host::numbered(2)];
        let controllers = hosts.map(|host| host.try_connect(address(), NQN, &["keep_alive_tmo=2"]).unwrap());
        let disks = [controllers[0].disk(1), controllers[1].disk(2)];
        step("the load");
        let loads = disks.map(|disk| Load::start(&disk, &["--numjobs=2", "--group_reporting", "--offset_increment=16m"]));
        thread::sleep(Duration::from_secs(60));
        loads.into_iter().for_each(Load::finish);
        undisturbed(&target, &controllers);
        step("idle");
        thread::sleep(Duration::from_secs(10));
        undisturbed(&target, &controllers);
        controllers.into_iter().for_each(Controller::disconnect);
        finish(&mut target.process);
    });
}

/// Runs all of it at the same time.
fn at_once(jobs: Vec<Box<dyn FnOnce() + Send + '_>>) {
    thread::scope(|scope| {
        let threads: Vec<_> = jobs.into_iter().map(|job| scope.spawn(job)).collect();
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

/// Every controller is the one that it was, and no association ended but of those that were disconnected.
fn undisturbed(target: &Target, controllers: &[Controller]) {
    for controller in controllers {
        assert_eq!(controller.attribute("state"), "live", "{controller:?}");
    }
    let log = dmesg();
    for word in ["keep-alive failed", "nvme_keep_alive_end_io", "error recovery", "econnect"] {
        assert!(!log.contains(word), "{log}");
    }
    let said = target.process.output();
    assert!(!said.contains("WARN"), "{said}");
}
