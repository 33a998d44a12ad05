//! Each fault of the configuration of the initiator's daemon in the words that the administrator reads, with line and column.

use godwit_config::Initiator;

/// A configuration that is right, to be made wrong one place at a time.
const GOOD: &str = r#"reactors: 2
volumes:
  - name: vol0
    addresses: [iwarp://192.0.2.1]
    nqn: nqn.2026-11.org.example:vol0
    nsid: 1
    device: /dev/nbd0
  - name: vol1
    discover: rdma://192.0.2.1
    nqn: nqn.2026-11.org.example:vol1
    nbd: unix:/run/vol1.nbd
"#;

const VOLUME_KEYS: &str = "name, addresses, discover, nqn, nsid, device, connections, nbd, nbd_mode, nbd_allow_remote, export_name, read_only, nr_io_queues, queue_size, keep_alive_tmo, reconnect_delay, ctrl_loss_tmo, fast_io_fail_tmo, io_timeout, crc, retain";

fn parse(text: &str) -> Initiator {
    Initiator::parse(text, "i.yaml").unwrap_or_else(|problems| panic!("{problems}"))
}

fn refusal(text: &str) -> String {
    Initiator::parse(text, "i.yaml").expect_err(text).to_string()
}

/// [`GOOD`] with one text replaced by another.
fn with(old: &str, new: &str) -> String {
    assert!(GOOD.contains(old), "{old} is not in the configuration");
    GOOD.replacen(old, new, 1)
}

#[track_caller]
fn refused(old: &str, new: &str, expected: &str) {
    assert_eq!(refusal(&with(old, new)), expected);
}

#[test]
fn what_it_is_made_of_is_right() {
    assert_eq!(parse(GOOD).volumes.len(), 2);
}

#[test]
fn an_empty_file_says_what_it_needs() {
    assert_eq!(
        refusal(""),
        "i.yaml:1:1: the configuration must be a mapping with the keys host, reactors, poll, control, metrics and volumes, not nothing"
    );
    let volumes = "a list of volumes, each with a name, addresses, an nqn and a device or nbd";
    assert_eq!(refusal("{}"), format!("i.yaml:1:1: the configuration needs `volumes`: {volumes}"));
    assert_eq!(refusal("volumes: []"), format!("i.yaml:1:10: `volumes` is empty: {volumes}"));
    assert_eq!(refusal("poll: 1\npoll: 2"), "i.yaml:2:1: the key `poll` is there twice");
}

#[test]
fn unknown_keys_are_found_at_each_level() {
    for (old, new, expected) in [
        (
            "reactors: 2",
            "listeners: []",
            "i.yaml:1:1: `listeners` is not a key of the configuration: use host, reactors, poll, control, metrics or volumes".to_owned(),
        ),
        ("reactors: 2", "host: { hostnqn: a }", "i.yaml:1:9: `hostnqn` is not a key of `host`: use nqn or id".to_owned()),
        ("    nsid: 1", "    NSID: 1", format!("i.yaml:6:5: `NSID` is not a key of a volume: use {VOLUME_KEYS} or unsafe_shutdowns")),
        // Not told twice: that a misspelt key is missing as well.
        ("    device:", "    dev:", format!("i.yaml:7:5: `dev` is not a key of a volume: use {VOLUME_KEYS} or unsafe_shutdowns")),
        (
            "    addresses:",
            "    address:",
            format!("i.yaml:4:5: `address` is not a key of a volume: use {VOLUME_KEYS} or unsafe_shutdowns"),
        ),
    ] {
        refused(old, new, &expected);
    }
}

#[test]
fn a_wrong_type_says_what_is_expected() {
    let urls = "[iwarp://192.0.2.1]";
    let seconds = "seconds up to 2147483647, 0 to fail at once, or -1 to wait for ever";
    for (old, new, expected) in [
        ("reactors: 2", "host: me", "i.yaml:1:7: `host` must be a mapping with the keys nqn and id, not the text \"me\"".to_owned()),
        ("reactors: 2", "reactors: 65", "i.yaml:1:11: `reactors` must be a whole number from 1 to 64, not 65".to_owned()),
        (
            "reactors: 2",
            "control: []",
            "i.yaml:1:10: `control` must be an absolute path such as /run/godwit/initiator.sock, not a list".to_owned(),
        ),
        ("reactors: 2", "metrics: 9420", "i.yaml:1:10: `metrics` must be a text, but YAML reads this as 9420: put it in quotes".to_owned()),
        (
            "reactors: 2",
            "metrics: {}",
            "i.yaml:1:10: `metrics` must be an address with a port such as \"127.0.0.1:9420\", not a mapping".to_owned(),
        ),
        ("name: vol0", "name: 0", "i.yaml:3:11: `name` must be a text, but YAML reads this as 0: put it in quotes".to_owned()),
        ("name: vol0", "name: []", "i.yaml:3:11: `name` must be a name such as vol0, not a list".to_owned()),
        (
            urls,
            "iwarp://192.0.2.1",
            "i.yaml:4:16: `addresses` must be a list of addresses, such as - iwarp://192.0.2.1:4420, not the text \"iwarp://192.0.2.1\""
                .to_owned(),
        ),
        (urls, "[~]", "i.yaml:4:17: `addresses` must be an address such as iwarp://192.0.2.1:4420, not nothing".to_owned()),
        ("rdma://192.0.2.1", "[]", "i.yaml:9:15: `discover` must be an address such as iwarp://192.0.2.1:4420, not a list".to_owned()),
        ("nsid: 1", "nsid: 0", "i.yaml:6:11: `nsid` must be a whole number from 1 to 4294967294, not 0".to_owned()),
        ("nsid: 1", "nsid: 4294967295", "i.yaml:6:11: `nsid` must be a whole number from 1 to 4294967294, not 4294967295".to_owned()),
        ("/dev/nbd0", "0", "i.yaml:7:13: `device` must be a text, but YAML reads this as 0: put it in quotes".to_owned()),
        ("/dev/nbd0", "[]", "i.yaml:7:13: `device` must be an NBD device such as /dev/nbd0, or auto, not a list".to_owned()),
        (
            "unix:/run/vol1.nbd",
            "[]",
            "i.yaml:11:10: `nbd` must be an NBD endpoint such as unix:/run/godwit/vol0.sock or tcp:127.0.0.1:10809, not a list".to_owned(),
        ),
        ("nsid: 1", "connections: 0", "i.yaml:6:18: `connections` must be a whole number from 1 to 64, not 0".to_owned()),
        ("nsid: 1", "connections: 65", "i.yaml:6:18: `connections` must be a whole number from 1 to 64, not 65".to_owned()),
        ("nsid: 1", "read_only: yes", "i.yaml:6:16: `read_only` must be true or false, not the text \"yes\"".to_owned()),
        ("nsid: 1", "nr_io_queues: 0", "i.yaml:6:19: `nr_io_queues` must be a whole number from 1 to 1024, not 0".to_owned()),
        ("nsid: 1", "queue_size: 1", "i.yaml:6:17: `queue_size` must be a whole number from 2 to 1024, not 1".to_owned()),
        ("nsid: 1", "keep_alive_tmo: 0", "i.yaml:6:21: `keep_alive_tmo` must be a whole number from 1 to 3600, not 0".to_owned()),
        (
            "nsid: 1",
            "reconnect_delay: 5s",
            "i.yaml:6:22: `reconnect_delay` must be a whole number from 1 to 3600, not the text \"5s\"".to_owned(),
        ),
        ("nsid: 1", "ctrl_loss_tmo: -2", format!("i.yaml:6:20: `ctrl_loss_tmo` must be {seconds}, not -2")),
        ("nsid: 1", "ctrl_loss_tmo: 2147483648", format!("i.yaml:6:20: `ctrl_loss_tmo` must be {seconds}, not 2147483648")),
        ("nsid: 1", "ctrl_loss_tmo: never", format!("i.yaml:6:20: `ctrl_loss_tmo` must be {seconds}, not the text \"never\"")),
        (
            "nsid: 1",
            "fast_io_fail_tmo: off",
            "i.yaml:6:23: `fast_io_fail_tmo` must be seconds up to 2147483647, 0 to fail at once, or -1 to wait as long as ctrl_loss_tmo says, not the text \"off\"".to_owned(),
        ),
        ("nsid: 1", "io_timeout: 3601", "i.yaml:6:17: `io_timeout` must be a whole number from 1 to 3600, not 3601".to_owned()),
        ("nsid: 1", "retain: []", "i.yaml:6:13: `retain` must be a size such as 512, 4KiB or 10GiB, not a list".to_owned()),
        ("nsid: 1", "unsafe_shutdowns: true", "i.yaml:6:23: `unsafe_shutdowns` must be `trust` or `fail`, not true".to_owned()),
        ("nsid: 1", "crc: true", "i.yaml:6:10: `crc` must be `on` or `off`, not true".to_owned()),
    ] {
        refused(old, new, &expected);
    }
    let nbd = |line: &str| format!("{GOOD}    {line}\n");
    for (line, found) in [("nbd_mode: 0660", "660"), ("nbd_mode: 0o660", "432")] {
        assert_eq!(
            refusal(&nbd(line)),
            format!("i.yaml:12:15: `nbd_mode` must be a text, but YAML reads this as {found}: put it in quotes")
        );
    }
    assert_eq!(refusal(&nbd("export_name: 1")), "i.yaml:12:18: `export_name` must be a text, but YAML reads this as 1: put it in quotes");
    assert_eq!(refusal(&nbd("export_name: []")), "i.yaml:12:18: `export_name` must be a text, not a list");
}

#[test]
fn a_wrong_value_says_what_would_be_right() {
    let url = "iwarp://192.0.2.1";
    let long = format!("/run/{}", "x".repeat(103));
    for (old, new, expected) in [
        (
            "reactors: 2",
            "host: { nqn: me }",
            "i.yaml:1:14: `nqn`: `me` is not an NQN: it must start with `nqn.`, as in nqn.2026-11.org.example:NAME",
        ),
        (
            "reactors: 2",
            "host: { id: me }",
            "i.yaml:1:13: `id`: `me` is not a UUID: write it as 11111111-2222-3333-4444-555555555555, not all zero",
        ),
        ("reactors: 2", "control: godwit.sock", "i.yaml:1:10: `control`: the path `godwit.sock` must be absolute: start it with `/`"),
        (
            "reactors: 2",
            &format!("control: {long}"),
            "i.yaml:1:10: `control`: the socket path is 108 bytes long: the system's limit is 107",
        ),
        ("reactors: 2", "metrics: 127.0.0.1", "i.yaml:1:10: `metrics`: `127.0.0.1` has no port: write it as 127.0.0.1:9420 or [::1]:9420"),
        ("reactors: 2", "metrics: localhost:x", "i.yaml:1:10: `metrics`: `x` is not a port: use a number from 1 to 65535"),
        (
            "name: vol0",
            "name: vol/0",
            "i.yaml:3:11: `name`: \"vol/0\" is not a volume name: use 1 to 64 letters, digits, `-`, `_` and `.`, with a letter or digit first",
        ),
        (url, "192.0.2.1", "i.yaml:4:17: `addresses`: `192.0.2.1` has no scheme: write it as iwarp://HOST[:PORT] or rdma://HOST[:PORT]"),
        (
            url,
            "iwarp://192.0.2.1/nqn.2026-11.org.example:vol0?nsid=1",
            "i.yaml:4:17: `addresses`: an address has no NQN here: write iwarp://192.0.2.1:4420, and the key `nqn: nqn.2026-11.org.example:vol0`",
        ),
        (url, "iwarp://192.0.2.1?nsid=1", "i.yaml:4:17: `addresses`: an address has no nsid here: write the key `nsid: 1`"),
        (
            url,
            "tcp://192.0.2.1",
            "i.yaml:4:17: `addresses`: `tcp://` is not a transport: use iwarp:// (any machine) or rdma:// (an RDMA device)",
        ),
        (
            "rdma://192.0.2.1",
            "rdma://192.0.2.1:0",
            "i.yaml:9:15: `discover`: port 0 cannot be connected to: leave it out for 4420, or use a number from 1 to 65535",
        ),
        (
            "nqn.2026-11.org.example:vol0",
            "vol0",
            "i.yaml:5:10: `nqn`: `vol0` is not an NQN: it must start with `nqn.`, as in nqn.2026-11.org.example:NAME",
        ),
        (
            "/dev/nbd0",
            "/dev/sda",
            "i.yaml:7:13: `device`: `/dev/sda` is not an NBD device: write /dev/nbdN, as in /dev/nbd0, or auto for a free one",
        ),
        (
            "unix:/run/vol1.nbd",
            "/run/vol1.nbd",
            "i.yaml:11:10: `nbd`: `/run/vol1.nbd` is not an NBD endpoint: write unix:PATH, as in unix:/run/godwit/vol0.sock, or tcp:HOST[:PORT]",
        ),
        ("unix:/run/vol1.nbd", "unix:vol1.nbd", "i.yaml:11:10: `nbd`: the path `vol1.nbd` must be absolute: start it with `/`"),
        ("unix:/run/vol1.nbd", "unix:/run/", "i.yaml:11:10: `nbd`: the path `/run/` names a directory: name a file"),
        (
            "vol1.nbd",
            "vol1.nbd\n    nbd_mode: rw",
            "i.yaml:12:15: `nbd_mode`: `rw` is not a file mode: write octal permissions up to 0777, such as 0660 to let the socket's group in",
        ),
        ("nsid: 1", "unsafe_shutdowns: count", "i.yaml:6:23: `unsafe_shutdowns`: `count` is not `trust` or `fail`"),
        ("vol1.nbd", "vol1.nbd\n    export_name: \"a\\0\"", "i.yaml:12:18: `export_name`: the export name has a NUL byte"),
    ] {
        refused(old, new, expected);
    }
}

#[test]
fn missing_keys_are_named() {
    for (old, new, expected) in [
        ("name: vol0\n    ", "", "i.yaml:3:5: a volume needs `name`: a name such as vol0"),
        ("    nqn: nqn.2026-11.org.example:vol0\n", "", "i.yaml:3:5: a volume needs `nqn`: an NQN such as nqn.2026-11.org.example:vol0"),
        ("    addresses: [iwarp://192.0.2.1]\n", "", "i.yaml:3:5: a volume must have exactly one of the keys addresses and discover"),
        ("    device: /dev/nbd0\n", "", "i.yaml:3:5: a volume must have exactly one of the keys device and nbd"),
        ("[iwarp://192.0.2.1]", "[]", "i.yaml:4:16: `addresses` is empty: a list of addresses, such as - iwarp://192.0.2.1:4420"),
    ] {
        refused(old, new, expected);
    }
}

#[test]
fn a_volume_has_one_way_in_and_one_way_out() {
    refused("nsid: 1", "discover: iwarp://192.0.2.1", "i.yaml:3:5: a volume must have exactly one of the keys addresses and discover");
    refused("nsid: 1", "nbd: unix:/run/vol0.nbd", "i.yaml:3:5: a volume must have exactly one of the keys device and nbd");
}

#[test]
fn the_addresses_of_a_volume_differ_in_host_and_port_alone() {
    let urls = "[iwarp://192.0.2.1]";
    parse(&with(urls, "[iwarp://192.0.2.1, iwarp://192.0.2.1:4421, iwarp://192.0.2.2?fpdu=mss]"));
    refused(
        urls,
        "[iwarp://192.0.2.1, rdma://192.0.2.2]",
        "i.yaml:4:36: the addresses of a volume are of one transport: that at i.yaml:4:17 is iwarp://",
    );
    refused(urls, "[iwarp://192.0.2.1, iwarp://192.0.2.1:4420?crc=off]", "i.yaml:4:36: the address 192.0.2.1:4420 is there twice");
}

#[test]
fn settings_go_with_what_they_are_for() {
    for (old, new, expected) in [
        ("nsid: 1", "nbd_mode: \"0600\"", "i.yaml:6:15: `nbd_mode` goes with `nbd` only: remove it"),
        ("nsid: 1", "nbd_allow_remote: true", "i.yaml:6:23: `nbd_allow_remote` goes with `nbd` only: remove it"),
        ("nsid: 1", "export_name: a", "i.yaml:6:18: `export_name` goes with `nbd` only: remove it"),
        ("vol1.nbd", "vol1.nbd\n    connections: 1", "i.yaml:12:18: `connections` goes with `device` only: remove it"),
        (
            "unix:/run/vol1.nbd",
            "tcp:127.0.0.1\n    nbd_mode: \"0600\"",
            "i.yaml:12:15: `nbd_mode` goes with a unix: endpoint only: remove it",
        ),
        ("vol1.nbd", "vol1.nbd\n    crc: off", "i.yaml:12:10: `crc` is for the transport iwarp only: remove it"),
    ] {
        refused(old, new, expected);
    }
}

#[test]
fn each_connection_has_an_io_queue() {
    parse(&with("nsid: 1", "connections: 2\n    nr_io_queues: 2"));
    // Only what was given is compared: the daemon chooses the rest.
    parse(&with("nsid: 1", "connections: 64"));
    refused(
        "nsid: 1",
        "connections: 3\n    nr_io_queues: 2",
        "i.yaml:6:18: `connections` 3 is more than `nr_io_queues` 2: each connection needs an I/O queue of its own",
    );
}

#[test]
fn an_export_that_others_reach_needs_a_flag() {
    for endpoint in ["tcp:0.0.0.0:10809", "tcp:[::]:10809", "tcp:storage.example:10810"] {
        let text = with("unix:/run/vol1.nbd", endpoint);
        assert_eq!(
            refusal(&text),
            format!(
                "i.yaml:11:10: {endpoint} can be reached from other machines, in clear text and without access control: use unix:PATH or tcp:127.0.0.1, or accept it with `nbd_allow_remote: true`"
            )
        );
        parse(&format!("{text}    nbd_allow_remote: true\n"));
        assert!(Initiator::parse(&format!("{text}    nbd_allow_remote: false\n"), "i.yaml").is_err());
    }
    parse(&with("unix:/run/vol1.nbd", "tcp:localhost"));
}

#[test]
fn names_and_fronts_are_used_once() {
    refused("name: vol1", "name: vol0", "i.yaml:8:11: the volume name vol0 is already used at i.yaml:3:11: each volume needs its own");
    let nbd = "nbd: unix:/run/vol1.nbd";
    refused(nbd, "device: /dev/nbd0", "i.yaml:11:13: the device /dev/nbd0 is already used at i.yaml:7:13: two volumes cannot share one");
    let auto = with("/dev/nbd0", "auto").replace(nbd, "device: auto");
    parse(&auto);
    let two = |first: &str, second: &str| with("device: /dev/nbd0", &format!("nbd: {first}")).replace("unix:/run/vol1.nbd", second);
    for second in ["unix:/run/a", "unix://run/./a"] {
        let path = second.strip_prefix("unix:").unwrap();
        assert_eq!(
            refusal(&two("unix:/run/a", second)),
            format!("i.yaml:11:10: the socket {path} is already used at i.yaml:7:10: give it another path")
        );
    }
    assert_eq!(
        refusal(&two("tcp:127.0.0.1", "tcp:127.0.0.1:10809")),
        "i.yaml:11:10: the address 127.0.0.1:10809 collides with the one at i.yaml:7:10: give it another port"
    );
    parse(&two("tcp:127.0.0.1", "tcp:127.0.0.1:10810"));
    parse(&two("tcp:127.0.0.1:0", "tcp:127.0.0.1:0"));
}

#[test]
fn the_daemon_itself_listens_elsewhere() {
    assert_eq!(
        refusal(&format!("control: /run/vol1.nbd\n{GOOD}")),
        "i.yaml:12:10: the socket /run/vol1.nbd is already used at i.yaml:1:10: give it another path"
    );
    let tcp = with("unix:/run/vol1.nbd", "tcp:127.0.0.1:9420");
    assert_eq!(
        refusal(&format!("metrics: 127.0.0.1:9420\n{tcp}")),
        "i.yaml:12:10: the address 127.0.0.1:9420 collides with the one at i.yaml:1:10: give it another port"
    );
    parse(&format!("metrics: 127.0.0.1:9421\n{tcp}"));
}

#[test]
fn a_namespace_is_attached_once() {
    let same = |nsids: [&str; 2]| {
        let [first, second] = nsids.map(|nsid| if nsid.is_empty() { "read_only: true".to_owned() } else { format!("nsid: {nsid}") });
        with("nsid: 1", &first).replace("example:vol1", &format!("example:vol0\n    {second}"))
    };
    parse(&same(["1", "2"]));
    assert_eq!(
        refusal(&same(["1", "1"])),
        "i.yaml:11:11: the namespace 1 of nqn.2026-11.org.example:vol0 is already attached at i.yaml:6:11: remove one, or give it another `nsid`"
    );
    for (nsids, place, first) in [(["1", ""], "10:10", "6:11"), (["", "1"], "11:11", "5:10"), (["", ""], "10:10", "5:10")] {
        assert_eq!(
            refusal(&same(nsids)),
            format!(
                "i.yaml:{place}: nqn.2026-11.org.example:vol0 is already attached at i.yaml:{first}: give both volumes an `nsid`, each its own"
            )
        );
    }
    refused(
        "nqn.2026-11.org.example:vol0",
        "nqn.2014-08.org.nvmexpress.discovery",
        "i.yaml:5:10: nqn.2014-08.org.nvmexpress.discovery is a discovery subsystem, which has no namespaces: write the NQN of the volume's subsystem",
    );
}

#[test]
fn lists_have_a_most() {
    let volumes = |count: usize| {
        let one = |i| format!("  - {{ name: v{i}, addresses: [iwarp://h], nqn: nqn.2026-11.a:{i}, device: /dev/nbd{i} }}\n");
        format!("volumes:\n{}", (0..count).map(one).collect::<String>())
    };
    assert_eq!(parse(&volumes(1024)).volumes.len(), 1024);
    assert_eq!(refusal(&volumes(1025)), "i.yaml:2:3: `volumes` has 1025 entries: 1024 is the most");
    let addresses = |count: u16| {
        let urls: Vec<_> = (1..=count).map(|port| format!("iwarp://h:{port}")).collect();
        with("[iwarp://192.0.2.1]", &format!("[{}]", urls.join(",")))
    };
    parse(&addresses(64));
    assert_eq!(refusal(&addresses(65)), "i.yaml:4:16: `addresses` has 65 entries: 64 is the most");
}

#[test]
fn all_faults_are_told_at_once_in_the_order_of_the_file() {
    let text = GOOD.replace("iwarp:", "tcp:").replace("nsid: 1", "nsid: 0").replace("unix:", "file:");
    let places: Vec<_> = refusal(&text).lines().map(|l| l[..12].trim_end_matches([':', ' ', '`']).to_owned()).collect();
    assert_eq!(places, ["i.yaml:4:17", "i.yaml:6:11", "i.yaml:11:10"]);
}

#[test]
fn control_characters_of_the_file_do_not_reach_the_terminal() {
    let text = with("/dev/nbd0", "\"\\e[31m\"");
    assert_eq!(
        refusal(&text),
        "i.yaml:7:13: `device`: `\\u{1b}[31m` is not an NBD device: write /dev/nbdN, as in /dev/nbd0, or auto for a free one"
    );
}
