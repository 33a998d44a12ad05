//! The configuration of the initiator's daemon: the sample, the defaults, every key, and the file.

use std::{path::Path, time::Duration};

use godwit_config::{
    ConnectOptions, Crc, CtrlLossTimeout, FastIoFailTimeout, Fpdu, Front, Initiator, LoadError, NbdDevice, NbdEndpoint, Paths, PollBudget,
    Reactors, Transport, UnsafeShutdowns,
};

const SAMPLE: &str = include_str!("../samples/initiator.yaml");

const GOOD: &str = r#"volumes:
  - name: vol0
    addresses: [iwarp://192.0.2.1]
    nqn: nqn.2026-11.org.example:vol0
    device: auto
"#;

fn parse(text: &str) -> Initiator {
    Initiator::parse(text, "i.yaml").unwrap_or_else(|problems| panic!("{problems}"))
}

fn listed(paths: &Paths) -> Vec<String> {
    match paths {
        Paths::Listed(urls) => urls.iter().map(|url| url.to_string()).collect(),
        Paths::Discovered(url) => panic!("{url:?}"),
    }
}

#[test]
fn the_sample_is_right() {
    let initiator = parse(SAMPLE);
    let [vol0, vol1] = &initiator.volumes[..] else { panic!("two volumes") };
    assert_eq!((vol0.name.as_str(), vol0.nqn.as_str()), ("vol0", "nqn.2026-11.org.example:vol0"));
    assert_eq!(listed(&vol0.paths), ["iwarp://10.0.0.1:4420", "iwarp://10.0.0.2:4420"]);
    assert_eq!(vol0.nsid.as_ref().unwrap().get(), 1);
    assert!(matches!(&vol0.front, Front::Device { device, connections: None } if device.value == NbdDevice::Number(0)));
    assert!(matches!(&vol1.paths, Paths::Discovered(url) if url.to_string() == "iwarp://10.0.0.1:4420"));
    assert!(matches!(&vol1.front, Front::Nbd(endpoint) if endpoint.to_string() == "unix:/run/godwit/vol1.nbd"));
}

/// Takes the `#` off each line that holds nothing but a key and its default.
#[test]
fn what_the_sample_shows_as_defaults_is_right_too() {
    let mut text = String::new();
    let mut taken = 0;
    for line in SAMPLE.lines() {
        let body = line.trim_start();
        let uncommented = body.strip_prefix("# ").filter(|rest| {
            let key = rest.split_once(':').map_or("", |(key, _)| key.trim_start());
            is_key(key) && key != "discover"
        });
        match uncommented {
            Some(rest) => {
                taken += 1;
                text.push_str(&" ".repeat(line.len() - body.len()));
                text.push_str(rest);
            }
            None => text.push_str(line),
        }
        text.push('\n');
    }
    assert_eq!(taken, 22);
    let shown = parse(&text);
    let default = parse(SAMPLE);
    assert_eq!(shown.host_id.unwrap().to_string(), "11111111-2222-3333-4444-555555555555");
    assert_eq!((shown.reactors.get(), shown.poll.to_string().as_str()), (4, "50us"));
    assert_eq!(shown.control.as_ref().unwrap().value, Path::new("/run/godwit/initiator.sock"));
    assert_eq!(shown.metrics.as_ref().unwrap().to_string(), "127.0.0.1:9420");
    assert!(matches!(&shown.volumes[0].front, Front::Device { connections: Some(connections), .. } if connections.get() == 2));
    for (shown, default) in shown.volumes.iter().zip(&default.volumes) {
        let machine = ConnectOptions { nr_io_queues: "4".parse().unwrap(), poll: "50us".parse().unwrap(), ..default.options.clone() };
        assert_eq!(shown.options, machine);
    }
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}

#[test]
fn what_is_left_out_has_its_default() {
    let initiator = parse(GOOD);
    assert_eq!((initiator.host_nqn, initiator.host_id, initiator.control, initiator.metrics), (None, None, None, None));
    assert_eq!((initiator.reactors, initiator.poll), (Reactors::default(), PollBudget::default()));
    let volume = &initiator.volumes[0];
    assert_eq!(listed(&volume.paths), ["iwarp://192.0.2.1:4420"]);
    assert_eq!(volume.nsid, None);
    assert!(matches!(&volume.front, Front::Device { device, connections: None } if device.value == NbdDevice::Auto));
    assert_eq!(volume.options, ConnectOptions::default());
}

#[test]
fn io_queues_default_to_one_a_reactor() {
    let initiator = parse(&format!("reactors: 7\n{GOOD}"));
    assert_eq!(initiator.volumes[0].options.nr_io_queues.get(), 7);
}

#[test]
fn every_key_is_read() {
    let initiator = parse(
        r#"
host: { nqn: nqn.2026-11.org.example:host, id: 99999999-2222-3333-4444-555555555555 }
reactors: 2
poll: 1ms
control: /run/c.sock
metrics: "[::1]:0"
volumes:
  - name: vol.0
    addresses: ["iwarp://[fe80::1%eth0]", "iwarp://storage:4421?fpdu=mss&crc=on"]
    nqn: nqn.2026-11.org.example:vol0
    nsid: 4294967294
    device: /dev/nbd15
    connections: 64
    read_only: true
    nr_io_queues: 64
    queue_size: 2
    keep_alive_tmo: 3600
    reconnect_delay: 1
    ctrl_loss_tmo: -1
    fast_io_fail_tmo: 0
    io_timeout: 30
    retain: 64MiB
    unsafe_shutdowns: fail
    crc: off
  - name: vol-1
    discover: rdma://storage
    nqn: nqn.2026-11.org.example:vol1
    nbd: tcp:0.0.0.0
    nbd_allow_remote: true
    export_name: "a name"
  - name: vol_2
    addresses: [rdma://storage]
    nqn: nqn.2026-11.org.example:vol0
    nsid: 1
    nbd: unix:/run/vol2.nbd
    nbd_mode: "660"
"#,
    );
    assert_eq!(initiator.host_nqn.as_ref().unwrap().as_str(), "nqn.2026-11.org.example:host");
    assert_eq!(initiator.host_id.as_ref().unwrap().as_bytes()[0], 0x99);
    assert_eq!((initiator.reactors.get(), initiator.poll.to_string().as_str()), (2, "1000us"));
    assert_eq!(initiator.control.as_ref().unwrap().value, Path::new("/run/c.sock"));
    assert_eq!(initiator.metrics.as_ref().unwrap().to_string(), "[::1]:0");
    let [vol0, vol1, vol2] = &initiator.volumes[..] else { panic!("three volumes") };
    assert_eq!((vol0.name.as_str(), vol0.origin.to_string().as_str()), ("vol.0", "i.yaml:8:5"));
    assert_eq!(listed(&vol0.paths), ["iwarp://[fe80::1%eth0]:4420", "iwarp://storage:4421?fpdu=mss&crc=on"]);
    let Paths::Listed(urls) = &vol0.paths else { panic!("{:?}", vol0.paths) };
    assert_eq!((urls[1].fpdu, urls[1].crc, vol0.paths.transport()), (Fpdu::Mss, Some(Crc::On), Some(Transport::Iwarp)));
    assert_eq!(vol0.nsid.as_ref().unwrap().get(), 4_294_967_294);
    let Front::Device { device, connections: Some(connections) } = &vol0.front else { panic!("{:?}", vol0.front) };
    assert_eq!((device.value, device.origin.to_string().as_str(), connections.get()), (NbdDevice::Number(15), "i.yaml:12:13", 64));
    assert_eq!(
        vol0.options,
        ConnectOptions {
            nr_io_queues: "64".parse().unwrap(),
            queue_size: "2".parse().unwrap(),
            keep_alive_tmo: "3600".parse().unwrap(),
            reconnect_delay: "1".parse().unwrap(),
            ctrl_loss_tmo: CtrlLossTimeout::Never,
            fast_io_fail_tmo: FastIoFailTimeout::After(Duration::ZERO),
            io_timeout: "30".parse().unwrap(),
            retain: "64MiB".parse().unwrap(),
            unsafe_shutdowns: UnsafeShutdowns::Fail,
            crc: Crc::Off,
            poll: "1ms".parse().unwrap(),
            read_only: true,
            ..ConnectOptions::default()
        }
    );
    assert_eq!(vol1.paths.transport(), Some(Transport::Rdma));
    assert!(matches!(&vol1.front, Front::Nbd(endpoint) if endpoint.to_string() == "tcp:0.0.0.0:10809"));
    assert!(vol1.options.nbd_allow_remote && vol1.options.export_name == "a name");
    assert!(matches!(&vol2.front, Front::Nbd(endpoint) if endpoint.value == NbdEndpoint::Unix("/run/vol2.nbd".into())));
    assert_eq!(vol2.options.nbd_mode.bits(), 0o660);
}

#[test]
fn a_file_that_cannot_be_read_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("i.yaml");
    let shown = path.display();
    assert_eq!(
        Initiator::load(&path).unwrap_err().to_string(),
        format!("cannot read {shown}: No such file or directory; name the configuration file")
    );
    std::fs::write(&path, "volumes: 1\n").unwrap();
    let error = Initiator::load(&path).unwrap_err();
    assert!(matches!(&error, LoadError::Problems(_)));
    assert!(error.to_string().starts_with(&format!("{shown}:1:10: `volumes` must be a list of volumes, ")), "{error}");
    std::fs::write(&path, GOOD).unwrap();
    assert_eq!(Initiator::load(&path).unwrap().volumes[0].nqn.origin.to_string(), format!("{shown}:4:10"));
}
