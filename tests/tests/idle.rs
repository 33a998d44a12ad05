//! What the daemons cost when nothing happens.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::thread;
use std::time::Duration;

use godwit_tests::daemon::{Initiator, Target};

const WATCH: Duration = Duration::from_secs(30);

#[test]
fn idle_daemons_use_less_than_a_percent_of_a_core() {
    let folder = tempfile::tempdir().unwrap();
    let target = Target::start("memory:64MiB");
    let initiator = Initiator::start(&target.url(), &folder.path().join("nbd.sock"));
    // Let the start-up pass.
    thread::sleep(Duration::from_secs(1));
    let processes = [&target.process, &initiator.process];
    let before = processes.map(|process| process.cpu_time());
    thread::sleep(WATCH);
    for (process, before) in processes.into_iter().zip(before) {
        let used = process.cpu_time().saturating_sub(before);
        println!("{used:?} of processor time in {WATCH:?}; {} KiB resident, {} descriptors", process.resident_kib(), process.descriptors());
        assert!(used < WATCH / 100, "{used:?} in {WATCH:?}");
    }
}
