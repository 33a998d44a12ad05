//! The target's configuration: the sample, the defaults, the file, and the command line.

use std::path::Path;

use godwit_config::{AllowedHosts, Arguments, Backend, BlockSize, Crc, Export, Fpdu, LoadError, Target, Transport};

const SAMPLE: &str = include_str!("../samples/target.yaml");

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

#[test]
fn the_sample_is_right() {
    let target = parse(SAMPLE);
    assert_eq!(target.listeners.len(), 1);
    let subsystem = &target.subsystems[0];
    assert_eq!(subsystem.nqn.as_str(), "nqn.2026-11.org.example:vol0");
    let host = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
    assert!(subsystem.hosts.allows(host));
    assert!(!subsystem.hosts.allows("nqn.2026-11.org.example:stranger"));
    let namespace = &subsystem.namespaces[0];
    assert_eq!(namespace.nsid.get(), 1);
    assert_eq!(
        namespace.backend.value,
        Backend::File { path: "/var/lib/godwit/vol0.img".into(), size: "10GiB".parse().ok(), create: true }
    );
}

/// Takes the `#` off each line that holds nothing but a key and its default.
#[test]
fn what_the_sample_shows_as_defaults_is_right_too() {
    let mut text = String::new();
    for line in SAMPLE.lines() {
        let body = line.trim_start();
        let uncommented = body
            .strip_prefix("# ")
            .filter(|rest| rest.split_once(':').is_some_and(|(key, _)| is_key(key.trim_start()) && key.trim_start() != "backend"));
        match uncommented {
            Some(rest) if !rest.contains("\"...\"") => {
                text.push_str(&" ".repeat(line.len() - body.len()));
                text.push_str(rest);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    let shown = parse(&text);
    let default = parse(SAMPLE);
    assert_eq!(shown.limits, default.limits);
    assert_eq!(shown.memory, default.memory);
    assert_eq!(shown.reactors.get(), 4);
    assert_eq!(shown.poll.to_string(), "50us");
    assert_eq!(shown.listeners[0].fpdu, default.listeners[0].fpdu);
    assert_eq!(shown.listeners[0].crc, default.listeners[0].crc);
    let namespace = &shown.subsystems[0].namespaces[0];
    assert!(namespace.uuid.is_some() && namespace.nguid.is_some() && !namespace.read_only);
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}

#[test]
fn what_is_left_out_has_its_default() {
    let target = parse(GOOD);
    assert_eq!(target.memory.size().to_string(), "64MiB");
    assert_eq!(target.limits.in_capsule.bytes(), 8192);
    assert_eq!(target.limits.queue_size.get(), 1024);
    assert_eq!(target.limits.io_queues.get(), 128);
    assert_eq!(target.limits.controllers.get(), 256);
    assert!(!target.insecure_allow_any_host);
    assert_eq!(target.service, godwit_config::Service::default());
    let listener = &target.listeners[0];
    assert_eq!((listener.transport, listener.fpdu, listener.crc), (Transport::Iwarp, Fpdu::Large, Crc::On));
    let namespace = &target.subsystems[0].namespaces[0];
    let device = BlockSize::try_from("512".parse::<godwit_config::Size>().unwrap()).unwrap();
    assert_eq!(namespace.block_size(None).bytes(), 4096);
    assert_eq!(namespace.block_size(Some(device)).bytes(), 512);
    assert!(!namespace.read_only);
}

#[test]
fn every_key_is_read() {
    let target = parse(
        r#"
listeners:
  - { transport: iwarp, address: "[::1]", fpdu: mss, crc: off }
  - { transport: rdma, address: "localhost:4421" }
reactors: 2
poll: 1ms
memory: 32MiB
insecure_allow_any_host: true
limits: { in_capsule: 0, queue_size: 2, io_queues: 1, controllers: 65519 }
subsystems:
  - nqn: nqn.2026-11.org.example:vol0
    hosts: [nqn.2026-11.org.example:host]
    serial: "0123"
    model: A model
    namespaces:
      - nsid: 1024
        backend: { memory: { size: 1MiB } }
        block_size: 512
        read_only: true
        uuid: 11111111-2222-3333-4444-555555555555
        nguid: 0123456789abcdef0123456789abcdef
      - { nsid: 2, backend: { device: { path: /dev/sdb } } }
state_dir: /srv/state
control: /run/a.sock
metrics: "[::1]:9421"
lock_memory: true
"#,
    );
    assert_eq!(
        (target.service.state_dir.as_deref(), target.service.control.as_deref()),
        (Some(Path::new("/srv/state")), Some(Path::new("/run/a.sock")))
    );
    assert_eq!((target.service.metrics, target.service.lock_memory), ("[::1]:9421".parse().ok(), true));
    assert_eq!(target.listeners[0].address.to_string(), "[::1]:4420");
    assert_eq!((target.listeners[0].fpdu, target.listeners[0].crc), (Fpdu::Mss, Crc::Off));
    assert_eq!(target.listeners[1].transport, Transport::Rdma);
    assert_eq!((target.reactors.get(), target.poll.to_string().as_str()), (2, "1000us"));
    assert_eq!(target.memory.size().to_string(), "32MiB");
    assert!(target.insecure_allow_any_host);
    assert_eq!((target.limits.in_capsule.bytes(), target.limits.queue_size.get()), (0, 2));
    assert_eq!((target.limits.io_queues.get(), target.limits.controllers.get()), (1, 65519));
    let subsystem = &target.subsystems[0];
    assert_eq!(subsystem.serial.as_ref().unwrap().as_str(), "0123");
    assert_eq!(subsystem.model.as_ref().unwrap().as_str(), "A model");
    let namespace = &subsystem.namespaces[0];
    assert_eq!(namespace.nguid.as_ref().unwrap().bytes()[1], 0x23);
    assert_eq!(namespace.uuid.as_ref().unwrap().as_bytes()[0], 0x11);
    assert!(namespace.read_only);
    assert_eq!(namespace.origin.to_string(), "t.yaml:16:9");
    assert_eq!(namespace.backend.origin.to_string(), "t.yaml:17:36");
    assert_eq!(subsystem.namespaces[1].backend.path(), Some(Path::new("/dev/sdb")));
}

#[test]
fn a_file_that_cannot_be_read_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.yaml");
    let shown = path.display();
    let load = |path: &Path| Target::load(path, false);
    assert_eq!(
        load(&path).unwrap_err().to_string(),
        format!("cannot read {shown}: No such file or directory; name the configuration file")
    );
    assert_eq!(
        load(dir.path()).unwrap_err().to_string(),
        format!("cannot read {}: Is a directory; name the configuration file", dir.path().display())
    );
    std::fs::write(&path, b"a: 1\nb: \xff\n").unwrap();
    assert_eq!(load(&path).unwrap_err().to_string(), format!("{shown}:2: the line is not UTF-8 text: is it the right file?"));
    std::fs::write(&path, vec![b'#'; (4 << 20) + 1]).unwrap();
    assert!(matches!(load(&path), Err(LoadError::TooLarge(_))));
    std::fs::write(&path, GOOD).unwrap();
    assert_eq!(load(&path).unwrap().subsystems[0].nqn.origin.to_string(), format!("{shown}:4:10"));
}

fn exports(texts: &[&str]) -> Vec<Export> {
    let read = |text: &&str| text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
    texts.iter().map(read).collect()
}

#[test]
fn arguments_alone_make_a_target_on_loopback() {
    let target = Target::from_arguments(Arguments {
        exports: exports(&["disk.img,size=1GiB", "memory:1MiB,block_size=512,read_only"]),
        ..Arguments::default()
    })
    .unwrap();
    let listener = &target.listeners[0];
    assert_eq!((listener.transport, listener.address.to_string().as_str()), (Transport::Iwarp, "127.0.0.1:4420"));
    let subsystem = &target.subsystems[0];
    assert_eq!(subsystem.nqn.as_str(), "nqn.2026-11.org.example:godwit");
    assert_eq!(subsystem.hosts.value, AllowedHosts::Any);
    let [disk, memory] = &subsystem.namespaces[..] else { panic!("two namespaces") };
    assert_eq!((disk.nsid.get(), memory.nsid.get()), (1, 2));
    assert_eq!(disk.backend.path(), Some(&*std::path::absolute("disk.img").unwrap()));
    assert_eq!((memory.block_size(None).bytes(), memory.read_only), (512, true));
    assert_eq!(disk.origin.to_string(), "--export disk.img,size=1GiB");
}

#[test]
fn arguments_pass_the_same_checks() {
    let refusal = |arguments| Target::from_arguments(arguments).unwrap_err().to_string();
    let listen = |text: &str| vec![godwit_config::Url::parse_listen(text).unwrap()];
    assert_eq!(refusal(Arguments::default()), "--export: there is nothing to export: name a file, device:PATH or memory:SIZE");
    assert_eq!(
        refusal(Arguments { exports: exports(&["/a", "/a"]), ..Arguments::default() }),
        "--export /a: /a is already the backend at --export /a: two namespaces cannot share one"
    );
    assert_eq!(
        refusal(Arguments { exports: exports(&["memory:1000"]), ..Arguments::default() }),
        "--export memory:1000: the size 1000 is not a multiple of the block size 4096: the next is 4KiB"
    );
    let remote = Arguments { exports: exports(&["memory:1MiB"]), listen: listen("iwarp://0.0.0.0"), ..Arguments::default() };
    assert!(
        refusal(remote.clone())
            .starts_with("--listen iwarp://0.0.0.0:4420: every machine that reaches this address could use what is exported: ")
    );
    assert!(Target::from_arguments(Arguments { allow_any_host_remote: true, ..remote.clone() }).is_ok());
    let host = "nqn.2026-11.org.example:h".parse().unwrap();
    assert!(Target::from_arguments(Arguments { hosts: vec![host], ..remote }).is_ok());
    let many = vec!["memory:4096"; 1025];
    assert_eq!(
        refusal(Arguments { exports: exports(&many), ..Arguments::default() }),
        "--export: 1025 exports are more than a subsystem has namespaces: 1024 is the most"
    );
    assert!(Target::from_arguments(Arguments { exports: exports(&many[1..]), ..Arguments::default() }).is_ok());
}
