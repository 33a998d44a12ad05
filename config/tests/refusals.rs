//! Each fault of the target's configuration in the words that the administrator reads, with line and column.

use godwit_config::{AllowedHosts, Target};

/// A configuration that is right, to be made wrong one place at a time.
const GOOD: &str = r#"listeners:
  - { transport: iwarp, address: "127.0.0.1:4420" }
subsystems:
  - nqn: nqn.2026-11.org.example:vol0
    allow_any_host: true
    namespaces:
      - nsid: 1
        backend: { file: { path: /srv/a.img, size: 1GiB } }
"#;

fn parse(text: &str) -> Target {
    Target::parse(text, "t.yaml", false).unwrap_or_else(|problems| panic!("{problems}"))
}

fn refusal(text: &str) -> String {
    Target::parse(text, "t.yaml", false).expect_err(text).to_string()
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
fn what_is_not_yaml_says_where() {
    for (text, expected) in [
        ("listeners: [", "t.yaml:1:12: unclosed bracket '['"),
        ("listeners:\n\t- x", "t.yaml:2:2: tabs disallowed within this context (block indentation)"),
        ("a: 1\n b: 2", "t.yaml:2:3: mapping values are not allowed in this context"),
        ("a: 1\n---\nb: 2", "t.yaml:3:1: this belongs to a second YAML document: a configuration is one document"),
        ("poll: 1\npoll: 2", "t.yaml:2:1: the key `poll` is there twice"),
        ("<<: {poll: 1}", "t.yaml:1:1: `<<` merges are not supported: write the keys out, or use an alias for a whole value"),
    ] {
        assert_eq!(refusal(text), expected, "{text}");
    }
    let deep = format!("a: {}{}", "[".repeat(40), "]".repeat(40));
    assert_eq!(refusal(&deep), "t.yaml:1:35: the document is too large or too deeply nested");
}

#[test]
fn an_empty_file_says_what_it_needs() {
    let keys =
        "listeners, subsystems, reactors, poll, memory, limits, insecure_allow_any_host, state_dir, control, metrics and lock_memory";
    for (text, found) in
        [("", "nothing"), ("\n# only a comment\n", "nothing"), ("---", "nothing"), ("- a", "a list"), ("a", "the text \"a\"")]
    {
        assert_eq!(refusal(text), format!("t.yaml:1:1: the configuration must be a mapping with the keys {keys}, not {found}"));
    }
    assert_eq!(
        refusal("{}"),
        "t.yaml:1:1: the configuration needs `listeners`: a list of listeners, such as - { transport: iwarp, address: \"127.0.0.1:4420\" }\n\
         t.yaml:1:1: the configuration needs `subsystems`: a list of subsystems, each with an nqn and namespaces"
    );
}

#[test]
fn an_unknown_key_lists_the_known_ones() {
    refused(
        "    allow_any_host",
        "    allow_any",
        "t.yaml:5:5: `allow_any` is not a key of a subsystem: use nqn, allow_any_host, hosts, serial, model or namespaces",
    );
}

#[test]
fn unknown_keys_are_found_at_each_level() {
    for (old, new, expected) in [
        (
            "subsystems:",
            "port: 1\nsubsystems:",
            "t.yaml:3:1: `port` is not a key of the configuration: use listeners, subsystems, reactors, poll, memory, limits, insecure_allow_any_host, state_dir, control, metrics or lock_memory",
        ),
        (
            "subsystems:",
            "limits: { qd: 1 }\nsubsystems:",
            "t.yaml:3:11: `qd` is not a key of `limits`: use in_capsule, queue_size, io_queues or controllers",
        ),
        (
            "transport: iwarp",
            "transport: iwarp, port: 1",
            "t.yaml:2:25: `port` is not a key of a listener: use transport, address, fpdu or crc",
        ),
        (
            "nsid: 1",
            "nsid: 1\n        blocksize: 512",
            "t.yaml:8:9: `blocksize` is not a key of a namespace: use nsid, backend, block_size, read_only, uuid or nguid",
        ),
        ("{ file", "{ fiel", "t.yaml:8:20: `fiel` is not a key of `backend`: use file, device or memory"),
        ("size: 1GiB", "sise: 1GiB", "t.yaml:8:46: `sise` is not a key of `file`: use path, size or create"),
    ] {
        refused(old, new, expected);
    }
}

#[test]
fn a_wrong_type_says_what_is_expected() {
    for (old, new, expected) in [
        ("nsid: 1", "nsid: one", "t.yaml:7:15: `nsid` must be a whole number from 1 to 1024, not the text \"one\""),
        ("nsid: 1", "nsid: 0", "t.yaml:7:15: `nsid` must be a whole number from 1 to 1024, not 0"),
        ("nsid: 1", "nsid: 1025", "t.yaml:7:15: `nsid` must be a whole number from 1 to 1024, not 1025"),
        ("nsid: 1", "nsid: 1.5", "t.yaml:7:15: `nsid` must be a whole number from 1 to 1024, not 1.5"),
        ("nsid: 1", "nsid:", "t.yaml:7:13: `nsid` must be a whole number from 1 to 1024, not nothing"),
        ("allow_any_host: true", "allow_any_host: yes", "t.yaml:5:21: `allow_any_host` must be true or false, not the text \"yes\""),
        ("nqn.2026-11.org.example:vol0", "7", "t.yaml:4:10: `nqn` must be a text, but YAML reads this as 7: put it in quotes"),
        ("nqn.2026-11.org.example:vol0", "[a]", "t.yaml:4:10: `nqn` must be an NQN such as nqn.2026-11.org.example:vol0, not a list"),
        ("1GiB", "[1]", "t.yaml:8:52: `size` must be a size such as 512, 4KiB or 10GiB, not a list"),
        ("1GiB", "-1", "t.yaml:8:52: `size` must be a size such as 512, 4KiB or 10GiB, not -1"),
        ("1GiB", "1.5", "t.yaml:8:52: `size` must be a size such as 512, 4KiB or 10GiB, not 1.5"),
        (
            "{ file: { path: /srv/a.img, size: 1GiB } }",
            "/srv/a.img",
            "t.yaml:8:18: `backend` must be a mapping with the keys file, device and memory, not the text \"/srv/a.img\"",
        ),
        (
            "{ path: /srv/a.img, size: 1GiB }",
            "/srv/a.img",
            "t.yaml:8:26: `file` must be a mapping with the keys path, size and create, not the text \"/srv/a.img\"",
        ),
        (
            "subsystems:",
            "reactors: many\nsubsystems:",
            "t.yaml:3:11: `reactors` must be a whole number from 1 to 64, not the text \"many\"",
        ),
        ("subsystems:", "poll: -1\nsubsystems:", "t.yaml:3:7: `poll` must be 0 or a time up to 10ms such as 50us, not -1"),
        (
            "subsystems:",
            "limits: 5\nsubsystems:",
            "t.yaml:3:9: `limits` must be a mapping with the keys in_capsule, queue_size, io_queues and controllers, not 5",
        ),
        ("transport: iwarp", "transport: iwarp, crc: true", "t.yaml:2:30: `crc` must be `on` or `off`, not true"),
        ("/srv/a.img", "7", "t.yaml:8:34: `path` must be a text, but YAML reads this as 7: put it in quotes"),
    ] {
        refused(old, new, expected);
    }
}

#[test]
fn a_wrong_value_says_what_would_be_right() {
    for (old, new, expected) in [
        ("iwarp", "tcp", "t.yaml:2:18: `transport`: `tcp` is not `iwarp` or `rdma`"),
        ("iwarp", "iwarp, fpdu: tiny", "t.yaml:2:31: `fpdu`: `tiny` is not `mss` or `large`"),
        ("127.0.0.1:4420", "127.0.0.1:x", "t.yaml:2:34: `address`: `x` is not a port: use a number from 1 to 65535"),
        (
            "nqn.2026-11.org.example:vol0",
            "vol0",
            "t.yaml:4:10: `nqn`: `vol0` is not an NQN: it must start with `nqn.`, as in nqn.2026-11.org.example:NAME",
        ),
        (
            "1GiB",
            "1Gb2",
            "t.yaml:8:52: `size`: `Gb2` in the size `1Gb2` is not a unit: use KiB, MiB, GiB, TiB or PiB (powers of 1024), or KB, MB, GB, TB or PB (powers of 1000)",
        ),
        (
            "nsid: 1",
            "nsid: 1\n        block_size: 513",
            "t.yaml:8:21: `block_size`: the block size must be 512, 1024, 2048 or 4096, not 513",
        ),
        (
            "nsid: 1",
            "nsid: 1\n        uuid: x",
            "t.yaml:8:15: `uuid`: `x` is not a UUID: write it as 11111111-2222-3333-4444-555555555555, not all zero",
        ),
        (
            "nsid: 1",
            "nsid: 1\n        nguid: x",
            "t.yaml:8:16: `nguid`: `x` is not an NGUID: write 32 hexadecimal digits that are not all zero",
        ),
        (
            "nsid: 1",
            "nsid: 1\n        nguid: 11111111111111111111111111111111",
            "t.yaml:8:16: `nguid` must be a text, but YAML reads this as a number: put it in quotes",
        ),
        (
            "allow_any_host",
            "serial: \"\"\n    allow_any_host",
            "t.yaml:5:13: `serial`: \"\" is not a serial number: use 1 to 20 printable ASCII characters without a space at either end",
        ),
        ("/srv/a.img", "a.img", "t.yaml:8:34: `path`: the path `a.img` must be absolute: start it with `/`"),
        ("/srv/a.img", "/srv/", "t.yaml:8:34: `path`: the path `/srv/` names a directory: name a file"),
        ("/srv/a.img", "\"/a\\0\"", "t.yaml:8:34: `path`: the path has a NUL byte"),
        (
            "subsystems:",
            "memory: 1KiB\nsubsystems:",
            "t.yaml:3:9: `memory`: the memory of a reactor must be a size from 1MiB to 64GiB, not 1KiB",
        ),
        (
            "subsystems:",
            "poll: 1s\nsubsystems:",
            "t.yaml:3:7: `poll`: `1s` is not a polling budget: write 0 to never spin, or a time up to 10ms such as 50us",
        ),
        (
            "subsystems:",
            "limits: { in_capsule: 20KiB }\nsubsystems:",
            "t.yaml:3:23: `in_capsule`: the in-capsule size must be a multiple of 512 up to 16KiB, not 20KiB",
        ),
        (
            "subsystems:",
            "limits: { queue_size: 1025 }\nsubsystems:",
            "t.yaml:3:23: `queue_size` must be a whole number from 2 to 1024, not 1025",
        ),
    ] {
        refused(old, new, expected);
    }
}

#[test]
fn a_uuid_is_not_nil() {
    let nil = "00000000-0000-0000-0000-000000000000";
    refused(
        "nsid: 1",
        &format!("nsid: 1, uuid: {nil}").replace(", ", "\n        "),
        &format!("t.yaml:8:15: `uuid`: `{nil}` is not a UUID: write it as 11111111-2222-3333-4444-555555555555, not all zero"),
    );
}

#[test]
fn missing_keys_are_named() {
    for (old, new, expected) in [
        ("transport: iwarp, ", "", "t.yaml:2:5: a listener needs `transport`: `iwarp` or `rdma`"),
        (
            "{ transport: iwarp, address: \"127.0.0.1:4420\" }",
            "{ transport: iwarp }",
            "t.yaml:2:5: a listener needs `address`: an address such as \"0.0.0.0:4420\"",
        ),
        ("nqn: nqn.2026-11.org.example:vol0\n    ", "", "t.yaml:4:5: a subsystem needs `nqn`: an NQN such as nqn.2026-11.org.example:vol0"),
        ("nsid: 1\n        ", "", "t.yaml:7:9: a namespace needs `nsid`: a whole number from 1 to 1024"),
        ("path: /srv/a.img, ", "", "t.yaml:8:26: `file` needs `path`: an absolute path such as /var/lib/godwit/vol0.img"),
        (
            "        backend: { file: { path: /srv/a.img, size: 1GiB } }\n",
            "",
            "t.yaml:7:9: a namespace needs `backend`: where its blocks are, such as file: { path: /var/lib/godwit/vol0.img }",
        ),
        ("file: { path: /srv/a.img, size: 1GiB }", "memory: {}", "t.yaml:8:28: `memory` needs `size`: a size such as 512, 4KiB or 10GiB"),
        (
            "{ file: { path: /srv/a.img, size: 1GiB } }",
            "{}",
            "t.yaml:8:18: `backend` must have exactly one of the keys file, device and memory",
        ),
        ("{ file:", "{ memory: { size: 1 }, file:", "t.yaml:8:18: `backend` must have exactly one of the keys file, device and memory"),
        ("size: 1GiB", "create: true", "t.yaml:8:26: `create: true` needs `size`, as in size: 10GiB"),
        (
            "- { transport: iwarp, address: \"127.0.0.1:4420\" }",
            "[]",
            "t.yaml:2:3: `listeners` is empty: a list of listeners, such as - { transport: iwarp, address: \"127.0.0.1:4420\" }",
        ),
    ] {
        refused(old, new, expected);
    }
}

#[test]
fn listeners_that_cannot_both_be_bound_collide() {
    let second = |address: &str| {
        with("subsystems:", &format!("  - {{ transport: iwarp, address: \"{address}\" }}\ninsecure_allow_any_host: true\nsubsystems:"))
    };
    for address in ["127.0.0.1", "127.0.0.1:4420", "0.0.0.0:4420"] {
        let shown = if address.contains(':') { address.to_owned() } else { format!("{address}:4420") };
        assert_eq!(
            refusal(&second(address)),
            format!("t.yaml:3:34: the listener {shown} collides with the one at t.yaml:2:34: remove one, or give it another port")
        );
    }
    let scoped = |first: &str| second("[fe80::1%eth0]:4420").replacen("127.0.0.1:4420", first, 1);
    assert!(refusal(&scoped("[::]:4420")).contains(" collides with "));
    let reversed = second("[::]:4420").replacen("127.0.0.1:4420", "[fe80::1%eth0]:4420", 1);
    assert!(refusal(&reversed).contains(" collides with "));
    parse(&scoped("[::1]:4420"));
    for address in ["127.0.0.1:4421", "127.0.0.2:4420", "[::]:4420"] {
        parse(&second(address));
    }
    // Port 0 is another port each time; another transport has ports of its own.
    let zero = second("127.0.0.1:0").replace("127.0.0.1:4420", "127.0.0.1:0");
    assert_eq!(parse(&zero).listeners.len(), 2);
    parse(&second("127.0.0.1:4420").replacen("iwarp", "rdma", 1));
}

#[test]
fn iwarp_settings_are_refused_elsewhere() {
    refused("iwarp", "rdma, crc: off", "t.yaml:2:29: `crc` is for the transport iwarp only: remove it");
    refused("iwarp", "rdma, fpdu: mss", "t.yaml:2:30: `fpdu` is for the transport iwarp only: remove it");
}

#[test]
fn any_host_on_a_remote_listener_needs_a_flag() {
    for address in ["0.0.0.0:4420", "[::]:4420", "192.0.2.1:4420", "storage.example:4420"] {
        let text = with("127.0.0.1:4420", address);
        assert_eq!(
            refusal(&text),
            format!(
                "t.yaml:5:21: every machine that reaches the listener {address} could use this subsystem: list host NQNs in `hosts`, listen on 127.0.0.1 or [::1] only, or accept it with `insecure_allow_any_host: true` at the top of the file or --allow-any-host-remote"
            )
        );
        assert!(Target::parse(&text, "t.yaml", true).unwrap().insecure_allow_any_host);
        parse(&format!("{text}insecure_allow_any_host: true\n"));
        parse(&text.replace("allow_any_host: true", "hosts: [nqn.2026-11.org.example:h]"));
    }
}

#[test]
fn hosts_and_any_host_exclude_each_other() {
    let any = "allow_any_host: true";
    refused(
        any,
        "allow_any_host: true\n    hosts: [nqn.2026-11.org.example:h]",
        "t.yaml:6:12: `hosts` has no effect with `allow_any_host: true`: remove one of the two",
    );
    refused(any, "hosts: []", "t.yaml:5:12: no host may connect: list host NQNs in `hosts`, or set `allow_any_host: true`");
    refused(any, "allow_any_host: false", "t.yaml:4:5: no host may connect: list host NQNs in `hosts`, or set `allow_any_host: true`");
    refused(
        any,
        "hosts: [nqn.2026-11.org.example:h, nqn.2026-11.org.example:h]",
        "t.yaml:5:40: the host nqn.2026-11.org.example:h is there twice",
    );
    refused(
        any,
        "hosts: nqn.2026-11.org.example:h",
        "t.yaml:5:12: `hosts` must be a list of host NQNs, not the text \"nqn.2026-11.org.example:h\"",
    );
    let target = parse(&with(any, "allow_any_host: true\n    hosts: []"));
    assert_eq!(target.subsystems[0].hosts.value, AllowedHosts::Any);
}

/// A second namespace, and a second subsystem, behind the first.
fn with_more(namespace: &str, subsystem_nqn: &str, other: &str) -> String {
    format!("{GOOD}      - {namespace}\n  - nqn: {subsystem_nqn}\n    allow_any_host: true\n    namespaces:\n      - {other}\n")
}

#[test]
fn names_numbers_and_backends_are_used_once() {
    let vol1 = "nqn.2026-11.org.example:vol1";
    let second = "{ nsid: 2, backend: { device: { path: /dev/sdb } } }";
    let third = "{ nsid: 1, backend: { memory: { size: 4096 } } }";
    assert_eq!(parse(&with_more(second, vol1, third)).subsystems.len(), 2);
    assert_eq!(
        refusal(&with_more(second, "nqn.2026-11.org.example:vol0", third)),
        "t.yaml:10:10: the NQN nqn.2026-11.org.example:vol0 is already used at t.yaml:4:10: each subsystem needs its own"
    );
    assert_eq!(
        refusal(&with_more("{ nsid: 1, backend: { memory: { size: 4096 } } }", vol1, third)),
        "t.yaml:9:17: the namespace id 1 is already used at t.yaml:7:15: each namespace of a subsystem needs its own"
    );
    assert_eq!(
        refusal(&with_more(second, vol1, "{ nsid: 1, backend: { file: { path: //srv/./a.img } } }")),
        "t.yaml:13:45: //srv/./a.img is already the backend at t.yaml:8:34: two namespaces cannot share one"
    );
    assert_eq!(
        refusal(&with_more(
            "{ nsid: 2, nguid: 0123456789abcdef0123456789abcdef, backend: { memory: { size: 4096 } } }",
            vol1,
            "{ nsid: 1, nguid: 0123456789ABCDEF0123456789ABCDEF, backend: { memory: { size: 4096 } } }"
        )),
        "t.yaml:13:27: the NGUID 0123456789abcdef0123456789abcdef is already used at t.yaml:9:27: it must be unique"
    );
    refused(
        "nqn.2026-11.org.example:vol0",
        "nqn.2014-08.org.nvmexpress.discovery",
        "t.yaml:4:10: nqn.2014-08.org.nvmexpress.discovery is the discovery subsystem, which is always there: choose another NQN",
    );
}

#[test]
fn a_size_is_a_number_of_blocks() {
    let block_512 = |size: &str| with("nsid: 1", "nsid: 1\n        block_size: 512").replace("1GiB", size);
    parse(&with("1GiB", "4096"));
    parse(&block_512("512"));
    parse(&with("1GiB", "8796093022207MiB"));
    refused("1GiB", "0", "t.yaml:8:34: the size is 0: a namespace needs at least one block of 4096 bytes");
    refused("1GiB", "4097", "t.yaml:8:34: the size 4097 is not a multiple of the block size 4096: the next is 8KiB");
    refused("1GiB", "1MB", "t.yaml:8:34: the size 1000000 is not a multiple of the block size 4096: the next is 980KiB");
    refused("1GiB", "8192PiB", "t.yaml:8:34: the size 8192PiB is over the limit of 8192PiB less one byte");
    assert_eq!(refusal(&block_512("513")), "t.yaml:9:34: the size 513 is not a multiple of the block size 512: the next is 1KiB");
    refused(
        "file: { path: /srv/a.img, size: 1GiB }",
        "memory: { size: 1 }",
        "t.yaml:8:36: the size 1 is not a multiple of the block size 4096: the next is 4KiB",
    );
}

#[test]
fn the_pool_covers_one_full_queue() {
    let memory = |memory: &str, limits: &str| with("subsystems:", &format!("memory: {memory}\nlimits: {limits}\nsubsystems:"));
    parse(&memory("12MiB", "{}"));
    parse(&memory("6MiB", "{ queue_size: 128, in_capsule: 16KiB }"));
    assert_eq!(
        refusal(&memory("12287KiB", "{}")),
        "t.yaml:3:9: `memory` 12287KiB is too small for queue_size 1024 and in_capsule 8KiB: it must be at least 12MiB"
    );
}

#[test]
fn all_faults_are_told_at_once_in_the_order_of_the_file() {
    let text = GOOD.replace("iwarp", "tcp").replace("nsid: 1", "nsid: 0").replace("1GiB", "1Gib2");
    let places: Vec<_> = refusal(&text).lines().map(|l| l[..12].trim_end_matches([':', ' ', '`']).to_owned()).collect();
    assert_eq!(places, ["t.yaml:2:18", "t.yaml:7:15", "t.yaml:8:52"]);
}

#[test]
fn control_characters_of_the_file_do_not_reach_the_terminal() {
    assert_eq!(
        refusal(&with("nqn.2026-11.org.example:vol0", "\"nqn.2026-11.\\e[31m:x\"")),
        "t.yaml:4:10: `nqn`: \"nqn.2026-11.\\u{1b}[31m:x\" is not an NQN: it has a space or a control character"
    );
    let text = with("iwarp", "\"\\e[31m\"");
    assert_eq!(refusal(&text), "t.yaml:2:18: `transport`: `\\u{1b}[31m` is not `iwarp` or `rdma`");
}

#[test]
fn an_alias_stands_for_a_whole_value() {
    let text = GOOD.replace("nqn: nqn", "nqn: &name nqn")
        + "  - { nqn: *name, allow_any_host: true, namespaces: [{ nsid: 1, backend: { memory: { size: 1MiB } } }] }\n";
    assert_eq!(
        refusal(&text),
        "t.yaml:9:12: the NQN nqn.2026-11.org.example:vol0 is already used at t.yaml:4:16: each subsystem needs its own"
    );
}

#[test]
fn aliases_cannot_blow_the_document_up() {
    let long = format!("a: &a {}\nb: [*a, *a]\n", "x".repeat(4097));
    assert_eq!(refusal(&long), "t.yaml:1:7: a text of 4097 bytes is too long: 4096 is the most");
    let long_key = format!("? {}\n: 1\n", "x".repeat(4097));
    assert_eq!(refusal(&long_key), "t.yaml:1:3: a text of 4097 bytes is too long: 4096 is the most");
    let wide = format!("a: &a [{}]\nb: &b [{}]\nc: [{}]\n", vec!["1"; 100].join(","), vec!["*a"; 100].join(","), vec!["*b"; 100].join(","));
    assert_eq!(refusal(&wide), "t.yaml:3:59: the document is too large or too deeply nested");
}

#[test]
fn lists_have_a_most() {
    let hosts = |count: usize| {
        let names: Vec<_> = (0..count).map(|i| format!("nqn.2026-11.a:{i}")).collect();
        with("allow_any_host: true", &format!("hosts: [{}]", names.join(",")))
    };
    parse(&hosts(4096));
    assert_eq!(refusal(&hosts(4097)), "t.yaml:5:12: `hosts` has 4097 entries: 4096 is the most");
    let listeners = |count: usize| {
        let one = "  - { transport: iwarp, address: \"127.0.0.1:0\" }\n";
        with("subsystems:", &format!("{}subsystems:", one.repeat(count - 1)))
    };
    parse(&listeners(64));
    assert_eq!(refusal(&listeners(65)), "t.yaml:2:3: `listeners` has 65 entries: 64 is the most");
}
