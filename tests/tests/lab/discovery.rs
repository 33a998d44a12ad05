//! Discovery by Linux's host: long logs, who sees what, connecting to all, and logs that change with a restart.

use std::collections::BTreeSet;

use godwit_tests::daemon::NQN;
use godwit_tests::lab::nvme::{Host, controllers, disconnect_all};
use godwit_tests::lab::rdma::Device;
use godwit_tests::lab::{Guest, in_guest};
use serde_json::Value;

use crate::cells::{Provider, address, finish, step};
use crate::offers::{self, Offer};

/// Entries are of 1 KiB, and Linux's host reads the log in pieces of 4 KiB.
const SUBSYSTEMS: usize = 100;

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn linux_host_discovers_what_it_may_use_and_nothing_else() {
    in_guest(&Guest::with(Device::Siw).shared(), || {
        let folder = tempfile::tempdir().unwrap();
        let (host, stranger) = (Host::numbered(1), Host::numbered(2));
        let names: BTreeSet<_> = (0..SUBSYSTEMS).map(|number| format!("{NQN}{number}")).collect();
        let many: Vec<_> = names.iter().map(|nqn| Offer::new(nqn).to(&host).with(1, "read_only: false")).collect();

        step("a long log");
        let mut target = offers::start(folder.path(), Provider::Iwarp, address(), &many);
        let log = host.discovery_log(address());
        let generation = log["genctr"].as_u64().unwrap();
        let mut found = offered(&log);
        assert_eq!(found.len(), SUBSYSTEMS);
        found.sort();
        assert!(found.iter().eq(&names), "{found:?}");
        assert_eq!(host.discovery_log(address())["genctr"], generation, "nothing has changed");
        step("a stranger");
        assert_eq!(offered(&stranger.discovery_log(address())), [] as [String; 0]);
        finish(&mut target.process);

        step("another configuration");
        let few: Vec<_> =
            ["a", "b", "c"].iter().map(|name| Offer::new(&format!("{NQN}-{name}")).to(&host).with(4, "read_only: false")).collect();
        let mut target = offers::start(folder.path(), Provider::Iwarp, address(), &few);
        let log = host.discovery_log(address());
        assert!(log["genctr"].as_u64().unwrap() > generation, "{log} after {generation}");
        assert_eq!(offered(&log).len(), few.len());

        step("connect to all");
        let all = host.connect_all(address(), &[]);
        let mut connected: Vec<_> = all.iter().map(|controller| controller.attribute("subsysnqn")).collect();
        connected.sort();
        assert_eq!(connected, ["a", "b", "c"].map(|name| format!("{NQN}-{name}")));
        for controller in &all {
            controller.await_state("live");
            controller.disk(1);
        }
        step("disconnect from all");
        disconnect_all();
        assert_eq!(controllers(), []);
        finish(&mut target.process);
    });
}

/// The subsystems in a log.
fn offered(log: &Value) -> Vec<String> {
    let records = log["records"].as_array().unwrap().iter();
    let offered = records.filter(|record| record["subtype"] == "nvme subsystem");
    offered.map(|record| record["subnqn"].as_str().unwrap().to_owned()).collect()
}
