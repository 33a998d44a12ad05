//! That a failed sync stays failed: a kernel tells it once, and the next sync of a device that is well again would succeed over lost data.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use godwit_tests::daemon::{Initiator, NQN};
use godwit_tests::lab::flaky::FlakyDisk;
use godwit_tests::lab::nvme::{Controller, Host};
use godwit_tests::lab::rdma::Device;
use godwit_tests::lab::{Guest, in_guest};
use godwit_tests::tools::{nbdsh, run, run_failing};

use crate::cells::{Provider, address, step};
use crate::served::Served;

/// What nvme-cli prints of Write Fault with Do Not Retry.
const WRITE_FAULT: &str = "0x4280";

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn a_flush_that_failed_fails_for_everyone_until_the_target_starts_again() {
    in_guest(&Guest::with(Device::Siw).shared(), a_failed_flush_is_sticky);
}

fn a_failed_flush_is_sticky() {
    let folder = tempfile::tempdir().unwrap();
    let flaky = FlakyDisk::start(folder.path(), 64);
    let mut target = Served::export(Provider::Iwarp, &format!("device:{}", flaky.path().display()));
    let linux = Host::numbered(1).connect(address(), NQN, &[]);
    let socket = folder.path().join("nbd.sock");
    let ours = Initiator::start(&format!("{}/{NQN}", Provider::Iwarp.url(address())), &socket);

    step("all is well");
    write_past_the_cache(&linux, 0);
    flush(&linux);
    nbdsh(&ours.uri(), "h.pwrite(b'A' * 4096, 8192)\nh.flush()");

    step("a flush fails");
    // The write itself is taken: nobody has been told of an error yet.
    write_past_the_cache(&linux, 4096);
    flaky.fail_writes();
    fail_to_flush(&linux);
    flaky.recover();

    step("the device is well again");
    File::options().write(true).open(flaky.path()).unwrap().sync_all().unwrap();
    fail_to_flush(&linux);
    nbdsh(&ours.uri(), FAILS);
    // What promises nothing about earlier writes goes on.
    write_past_the_cache(&linux, 12288);

    step("a new connection");
    linux.disconnect();
    let linux = Host::numbered(1).connect(address(), NQN, &[]);
    linux.disk(1);
    fail_to_flush(&linux);

    step("a new start");
    target.kill();
    target.start_again();
    linux.await_state("live");
    flush(&linux);
    // The initiator has its own way back.
    nbdsh(&ours.uri(), "h.pwrite(b'B' * 4096, 8192)\nh.flush()\nassert h.pread(4096, 8192) == b'B' * 4096");
    linux.disconnect();
}

/// Flushes and durable writes fail, and reads do not.
const FAILS: &str = r"
for operation in [lambda: h.flush(), lambda: h.pwrite(b'C' * 4096, 16384, nbd.CMD_FLAG_FUA)]:
    try:
        operation()
    except nbd.Error as error:
        assert error.errno == 'EIO', error.errno
    else:
        raise AssertionError('it succeeded')
assert h.pread(4096, 8192) == b'A' * 4096
";

/// Writes a block with direct I/O, so that no cache of the client's kernel has a say.
fn write_past_the_cache(controller: &Controller, offset: u64) {
    let disk: &Path = &controller.disk(1);
    let seek = format!("seek={}", offset / 4096);
    run(Command::new("dd")
        .args(["if=/dev/zero", "bs=4096", "count=1", "oflag=direct", "status=none", &seek])
        .arg(format!("of={}", disk.display())));
}

fn flush(controller: &Controller) {
    controller.command("flush", &["-n", "1"]);
}

fn fail_to_flush(controller: &Controller) {
    let (_, said) = run_failing(Command::new("nvme").arg("flush").arg(controller.device()).args(["-n", "1"]));
    assert!(said.contains(WRITE_FAULT), "{said}");
}
