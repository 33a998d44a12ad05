//! Queues of every number and size, keep-alive timeouts of every length, and IPv6.

use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::Duration;

use godwit_tests::daemon::{Initiator, NQN, Target, binary};
use godwit_tests::lab::disk::Disk;
use godwit_tests::lab::nvme::{Controller, Host};
use godwit_tests::lab::nvmet::{Backing, LinuxTarget};
use godwit_tests::lab::rdma::{self, Device};
use godwit_tests::lab::{Guest, dmesg, in_guest};
use godwit_tests::tools::{fio, nbdsh, run};
use serde_json::Value;

use crate::cells::{Provider, address, finish, step};
use crate::offers::{self, Offer};

/// What fio does on a volume of ours: a part of it, verified.
const BRIEFLY: [&str; 8] = [
    "--rw=randrw",
    "--bsrange=4k-256k",
    "--blockalign=4k",
    "--iodepth=64",
    "--size=8m",
    "--verify=crc32c",
    "--verify_fatal=1",
    "--do_verify=1",
];

fn v6() -> SocketAddr {
    SocketAddr::new(rdma::V6, 4420)
}

/// The depth of the last I/O queue that a target accepted, by its log: what HSQSIZE asked for.
fn accepted_depth(target: &Target) -> u32 {
    let said = target.process.output();
    let line = said.lines().rfind(|line| line.contains("connection accepted") && line.contains("qid=1 ")).expect("a queue was accepted");
    line.rsplit("depth=").next().and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn linux_host_gets_the_queues_that_it_asks_for() {
    in_guest(&Guest::with(Device::Siw).shared(), || {
        let folder = tempfile::tempdir().unwrap();
        let host = Host::numbered(1);
        let mut target = offers::start(folder.path(), Provider::Iwarp, address(), &[Offer::new(NQN).with(16, "block_size: 4096")]);
        let check = |controller: Controller| {
            Disk::at(controller.disk(1)).verify_range(0, 4);
            controller.disconnect();
        };

        // The admin queue counts; a host makes no more queues than it has processors, and this one has two.
        for (asked, count) in [("1", "2"), ("2", "3"), ("8", "3")] {
            step(&format!("{asked} I/O queues"));
            let controller = host.connect(address(), NQN, &["--nr-io-queues", asked]);
            assert_eq!(controller.attribute("queue_count"), count);
            check(controller);
        }

        // Linux has no larger queues than 256 entries over RDMA, whatever is asked for.
        for (asked, entries) in [("16", 16), ("128", 128), ("256", 256), ("1024", 256)] {
            step(&format!("queues of {asked} entries"));
            let controller = host.connect(address(), NQN, &["--nr-io-queues", "1", "--queue-size", asked]);
            // The attribute counts from 0, as the field on the wire does.
            assert_eq!(controller.attribute("sqsize"), (entries - 1).to_string());
            assert_eq!(accepted_depth(&target), entries);
            check(controller);
        }

        step("queues of 15 entries");
        let error = host.try_connect(address(), NQN, &["queue_size=15"]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");

        step("queues without flow control");
        let controller = host.connect(address(), NQN, &["--disable-sqflow"]);
        check(controller);
        finish(&mut target.process);
    });
}

/// Hosts with every kind of keep-alive timeout, and discovery controllers, at the same time: none of them has anything to do.
#[test]
#[ignore = "needs root and QEMU: make lab"]
fn idle_linux_hosts_stay_whatever_their_keep_alive_timeout() {
    in_guest(&Guest::with(Device::Siw).shared(), || {
        let folder = tempfile::tempdir().unwrap();
        let host = Host::numbered(1);
        // Linux says that with 0 it sends no Keep Alive, and then takes what it takes by itself, 5 s. See the last step for a host without any.
        let timeouts = ["0", "1", "5"];
        let offers = timeouts.map(|seconds| Offer::new(&format!("{NQN}{seconds}")).with(16, "block_size: 4096"));
        let mut target = offers::start(folder.path(), Provider::Iwarp, address(), &offers);

        step("connect");
        let mut idle: Vec<_> = timeouts
            .iter()
            .map(|seconds| {
                let option = format!("keep_alive_tmo={seconds}");
                let controller = host.try_connect(address(), &format!("{NQN}{seconds}"), &[&option]).unwrap();
                assert_eq!(controller.attribute("kato"), if *seconds == "0" { "5" } else { seconds });
                controller
            })
            .collect();
        idle.extend(host.discover_and_stay(address(), 5));
        assert_eq!(idle.len(), 4, "{idle:?}");
        let kinds = idle.iter().map(|controller| controller.attribute("cntrltype")).collect::<Vec<_>>();
        assert_eq!(kinds, ["io", "io", "io", "discovery"]);
        let ids: Vec<_> = idle.iter().map(|controller| controller.attribute("cntlid")).collect();

        step("idle");
        thread::sleep(Duration::from_secs(11));
        for (controller, id) in idle.iter().zip(&ids) {
            assert_eq!((controller.attribute("state").as_str(), &controller.attribute("cntlid")), ("live", id), "{controller:?}");
        }
        quiet(&target);
        for controller in &idle[..3] {
            Disk::at(controller.disk(1)).verify_range(0, 1);
        }

        step("a timeout that is taken away");
        let five = &idle[2];
        five.command("set-feature", &["-f", "0x0f", "-v", "0"]);
        let said = five.command("get-feature", &["-f", "0x0f"]);
        let value = said.trim().rsplit(':').next().unwrap().trim_start_matches("0x");
        assert_eq!(u32::from_str_radix(value, 16), Ok(0), "{said}");
        // There is no timer that Keep Alive could restart.
        let refused = five.refused("admin-passthru", &["--opcode=0x18"]);
        assert!(refused.contains("(0x401a)"), "{refused}");
        thread::sleep(Duration::from_secs(8));
        assert_eq!((five.attribute("state").as_str(), &five.attribute("cntlid")), ("live", &ids[2]));
        quiet(&target);
        idle.into_iter().for_each(Controller::disconnect);
        finish(&mut target.process);
    });
}

/// No association ended, and none was made anew.
fn quiet(target: &Target) {
    let log = dmesg();
    for word in ["keep-alive failed", "nvme_keep_alive_end_io", "error recovery", "econnect"] {
        assert!(!log.contains(word), "{log}");
    }
    let said = target.process.output();
    assert!(!said.contains("association ends") && !said.contains("WARN"), "{said}");
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn our_iwarp_target_and_initiator_meet_linux_by_ipv6() {
    in_guest(&Guest::with(Device::Siw).shared(), || {
        linux_host_by_ipv6(Provider::Iwarp);
        let linux = LinuxTarget::start(v6(), &Backing::RamDisk(16));
        our_initiator_by_ipv6(Provider::Iwarp);
        drop(linux);
    });
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn our_rdma_target_and_initiator_meet_linux_by_ipv6() {
    in_guest(&Guest::with(Device::Rxe).shared(), || {
        linux_host_by_ipv6(Provider::Rdma);
        let linux = LinuxTarget::start(v6(), &Backing::RamDisk(16));
        our_initiator_by_ipv6(Provider::Rdma);
        drop(linux);
    });
}

fn linux_host_by_ipv6(provider: Provider) {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::numbered(1);
    let mut target = offers::start(folder.path(), provider, v6(), &[Offer::new(NQN).with(16, "block_size: 4096")]);
    step("Linux's host by IPv6");
    let records = host.discover(v6());
    let record = records.iter().find(|record| record["subnqn"] == NQN).unwrap();
    assert_eq!((&record["adrfam"], &record["traddr"]), (&"ipv6".into(), &rdma::V6.to_string().into()));
    let controller = host.connect(v6(), NQN, &[]);
    assert!(controller.attribute("address").contains(&rdma::V6.to_string()));
    Disk::at(controller.disk(1)).verify_range(0, 8);
    controller.disconnect();
    finish(&mut target.process);
}

fn our_initiator_by_ipv6(provider: Provider) {
    let folder = tempfile::tempdir().unwrap();
    let url = provider.url(v6());
    step("our initiator by IPv6");
    let list = run(Command::new(binary("godwit")).args(["discover", &url, "--json"]));
    let list: Value = serde_json::from_str(&list).unwrap();
    let records = list["records"].as_array().unwrap();
    assert!(records.iter().any(|record| record["subnqn"] == NQN && record["traddr"] == rdma::V6.to_string()), "{list}");
    // More than Linux's target has.
    let mut initiator = Initiator::start_with(&format!("{url}/{NQN}"), &folder.path().join("nbd.sock"), &["--queue-size", "1024"]);
    fio(&initiator.uri(), &BRIEFLY);
    nbdsh(&initiator.uri(), "h.pwrite(b'Z' * 4096, 8192)\nh.flush()\nassert h.pread(4096, 8192) == b'Z' * 4096");
    finish(&mut initiator.process);
}
