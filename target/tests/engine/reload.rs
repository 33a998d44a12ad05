//! The daemon while its configuration changes: what hosts see, what an administrator is told, what is refused.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use godwit_nvme::feature::{AsyncEventConfiguration, FeatureId};
use godwit_nvme::identify::IdentifyNamespace;
use godwit_nvme::log::DiscoveryHeader;
use godwit_nvme::sqe::{Cns, Connect, GetLogPage, Identify, PropertyAccess, SetFeatures};
use godwit_nvme::{
    BlockCount, BlockRange, Cid, Cntlid, ConnectData, DwordCount, HostId, Lba, LogId, NamespaceList, Nqn, Nsid, PropertyOffset,
    PropertySize, QueueSize, Sqe,
};

use crate::host::{HOST, Host, Queue};
use crate::server::VOLUME;

const PATIENCE: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;
const DNR: u16 = 0x4000;

/// A daemon with a configuration file, killed when this is dropped.
struct Daemon {
    child: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

/// One subsystem, whose hosts and namespaces are these lines.
fn subsystem(nqn: &str, hosts: &str, namespaces: &[String]) -> String {
    format!("  - nqn: {nqn}\n    {hosts}\n    namespaces:\n{}\n", namespaces.join("\n"))
}

fn file(nsid: u32, path: &Path, size: &str) -> String {
    format!("      - {{ nsid: {nsid}, backend: {{ file: {{ path: {}, size: {size}, create: true }} }} }}", path.display())
}

const ANY: &str = "allow_any_host: true";

impl Daemon {
    fn start(make: impl Fn(&Path) -> String) -> Self {
        let folder = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let configuration = folder.path().join("target.yaml");
        write(&configuration, &make(folder.path()), folder.path());
        let mut command = Command::new(env!("CARGO_BIN_EXE_godwit-target"));
        command.args(["--reactors", "2", "--log", "warn", "--metrics", "127.0.0.1:0", "--config"]).arg(&configuration);
        let mut child = command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on iwarp://").unwrap_or_else(|| panic!("it printed {line:?}"));
        Self { address: address.parse().unwrap(), child, folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Has it read this configuration: what it prints, and its exit code.
    fn reload_with(&self, subsystems: &str, more: &[&str]) -> (Option<i32>, String) {
        write(&self.at("target.yaml"), subsystems, self.folder.path());
        self.ask(&[&["reload"], more].concat())
    }

    fn ask(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_godwit-target"));
        let output = command.args(arguments).arg("--control").arg(self.at("control.sock")).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    }

    fn status(&self) -> serde_json::Value {
        let (code, text) = self.ask(&["status", "--json"]);
        assert_eq!(code, Some(0), "{text}");
        serde_json::from_str(&text).unwrap()
    }
}

fn write(path: &Path, subsystems: &str, folder: &Path) {
    let control = folder.join("control.sock");
    let top = format!(
        "control: {}\nlisteners:\n  - {{ transport: iwarp, address: \"127.0.0.1:0\" }}\nsubsystems:\n{subsystems}",
        control.display()
    );
    fs::write(path, top).unwrap();
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Has the host hear of events, and leaves a request for one.
fn listen(host: &mut Host, admin: Queue, events: AsyncEventConfiguration) -> Cid {
    let set = SetFeatures { nsid: Nsid::NONE, id: FeatureId::ASYNC_EVENT_CONFIGURATION, save: false, value: events.bits() };
    let sqe = Sqe::set_features(host.cid(), &set);
    assert_eq!(host.command(admin, sqe).status(), 0);
    request_event(host, admin)
}

fn request_event(host: &mut Host, admin: Queue) -> Cid {
    let cid = host.cid();
    host.send(admin, &Sqe::async_event_request(cid), None);
    cid
}

fn event(host: &mut Host, admin: Queue, cid: Cid) -> u32 {
    let response = host.response(admin, cid);
    assert_eq!(response.status(), 0);
    response.cqe.dw0()
}

fn changed(host: &mut Host, admin: Queue, retain_event: bool) -> Vec<u32> {
    let page = GetLogPage { retain_event, ..GetLogPage::new(LogId::CHANGED_NAMESPACES, DwordCount::from_bytes(4096).unwrap()) };
    let sqe = Sqe::get_log_page(host.cid(), &page);
    let (response, log) = host.fetch(admin, sqe, 4096);
    assert_eq!(response.status(), 0);
    NamespaceList::read_from(&log).unwrap().iter().map(Nsid::get).collect()
}

fn size_blocks(host: &mut Host, admin: Queue, nsid: u32) -> u64 {
    let sqe = Sqe::identify(host.cid(), &Identify::new(Cns::NAMESPACE, Nsid::new(nsid)));
    IdentifyNamespace::read_from(&host.fetch(admin, sqe, 4096).1).unwrap().size_blocks()
}

fn write_block(host: &mut Host, io: Queue, nsid: u32, lba: u64) -> u16 {
    let range = BlockRange::new(Lba::new(lba), BlockCount::new(1).unwrap());
    let sqe = Sqe::write(host.cid(), Nsid::new(nsid), range);
    host.give_in_capsule(io, sqe, &[7; 4096]).status()
}

#[test]
fn namespaces_that_grow_come_and_go_are_announced_to_hosts_that_stay_connected() {
    let daemon = Daemon::start(|folder| subsystem(VOLUME, ANY, &[file(1, &folder.join("a.img"), "1MiB")]));
    let (a, b) = (daemon.at("a.img"), daemon.at("b.img"));
    let mut host = Host::new();
    let (admin, cntlid) = host.admin(daemon.address, Duration::ZERO);
    let io = host.io(daemon.address, cntlid, 1, 32);
    let waiting = listen(&mut host, admin, AsyncEventConfiguration::NAMESPACE_ATTRIBUTE);
    assert_eq!(write_block(&mut host, io, 1, 256), DNR | 0x080, "beyond the end");

    let (code, told) = daemon.reload_with(&subsystem(VOLUME, ANY, &[file(1, &a, "2MiB"), file(2, &b, "1MiB")]), &[]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("namespace 1 of") && told.contains("has 2097152 bytes") && told.contains("namespace 2 of"), "{told}");
    assert_eq!(event(&mut host, admin, waiting), 0x0004_0002, "namespace attribute changed, log 04h");
    assert_eq!(changed(&mut host, admin, true), [1, 2]);
    assert_eq!((size_blocks(&mut host, admin, 1), size_blocks(&mut host, admin, 2)), (512, 256));
    assert_eq!((write_block(&mut host, io, 1, 511), write_block(&mut host, io, 2, 255)), (0, 0));
    assert_eq!(fs::metadata(&a).unwrap().len(), 2 * MIB);

    // The log was read with its event retained: what happens further is listed and not told.
    let waiting = request_event(&mut host, admin);
    let (code, told) = daemon.reload_with(&subsystem(VOLUME, ANY, &[file(1, &a, "2MiB")]), &[]);
    assert_eq!(code, Some(0), "{told}");
    assert!(host.response_within(admin, waiting, Duration::from_millis(300)).is_none());
    assert_eq!(changed(&mut host, admin, false), [1, 2]);
    assert_eq!(changed(&mut host, admin, false), [0_u32; 0]);
    assert_eq!(write_block(&mut host, io, 2, 0), DNR | 0x00B, "it is gone");
    assert_eq!(write_block(&mut host, io, 1, 0), 0, "the other is not");
    // Its file is let go, with a mark that says that nothing was lost.
    let mark = daemon.at(".b.img.godwit");
    wait_until("the file is closed", || fs::read_to_string(&mark).unwrap().contains("\"clean\""));
    wait_until("its lock is released", || Command::new("flock").args(["-n", b.to_str().unwrap(), "true"]).status().unwrap().success());

    let (code, told) = daemon.reload_with(&subsystem(VOLUME, ANY, &[file(1, &a, "2MiB"), file(3, &b, "1MiB")]), &[]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(event(&mut host, admin, waiting), 0x0004_0002, "armed again");
    assert_eq!(changed(&mut host, admin, false), [3]);
    assert_eq!(write_block(&mut host, io, 3, 0), 0);
}

#[test]
fn sighup_finds_a_file_that_was_made_larger() {
    let unsized_file =
        |folder: &Path| format!("      - {{ nsid: 1, backend: {{ file: {{ path: {} }} }} }}", folder.join("a.img").display());
    let daemon = Daemon::start(|folder| {
        fs::File::create(folder.join("a.img")).unwrap().set_len(MIB).unwrap();
        subsystem(VOLUME, ANY, &[unsized_file(folder)])
    });
    let mut host = Host::new();
    let (admin, _) = host.admin(daemon.address, Duration::ZERO);
    let waiting = listen(&mut host, admin, AsyncEventConfiguration::NAMESPACE_ATTRIBUTE);
    fs::File::options().write(true).open(daemon.at("a.img")).unwrap().set_len(4 * MIB).unwrap();
    assert_eq!(size_blocks(&mut host, admin, 1), 256, "not by itself");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(daemon.child.id()).unwrap()), nix::sys::signal::Signal::SIGHUP)
        .unwrap();
    assert_eq!(event(&mut host, admin, waiting), 0x0004_0002);
    assert_eq!(size_blocks(&mut host, admin, 1), 1024);
}

#[test]
fn a_bad_configuration_changes_nothing_and_each_fault_has_a_line() {
    let daemon = Daemon::start(|folder| subsystem(VOLUME, ANY, &[file(1, &folder.join("a.img"), "1MiB")]));
    let (a, b) = (daemon.at("a.img"), daemon.at("b.img"));
    let mut host = Host::new();
    let (admin, cntlid) = host.admin(daemon.address, Duration::ZERO);
    let waiting = listen(&mut host, admin, AsyncEventConfiguration::NAMESPACE_ATTRIBUTE);
    let refused = |subsystems: &str, expected: &[&str]| {
        let (code, told) = daemon.reload_with(subsystems, &[]);
        assert_eq!((code, told.lines().count()), (Some(1), expected.len()), "{told}");
        for (line, expected) in told.lines().zip(expected) {
            assert!(line.contains(expected), "{line}");
        }
    };
    let read_only = file(1, &a, "1MiB").replace("nsid: 1,", "nsid: 1, read_only: true,");
    let added = file(2, &b, "1MiB");
    refused("  - nonsense\n", &["target.yaml:5"]);
    refused(&subsystem(VOLUME, ANY, &[read_only, added.clone()]), &["`read_only` cannot be changed"]);
    refused(&subsystem(VOLUME, ANY, &[file(1, &b, "1MiB"), added.replace("b.img", "c.img")]), &["its backend cannot be changed"]);
    refused(&subsystem(VOLUME, "allow_any_host: true\n    serial: other", &[file(1, &a, "1MiB"), added.clone()]), &["serial number"]);
    refused(&subsystem(VOLUME, ANY, &[file(1, &a, "512KiB"), added.clone()]), &["a file is never cut off here"]);
    refused(&(subsystem(VOLUME, ANY, &[file(1, &a, "1MiB"), added.clone()]) + "poll: 7us\nmemory: 65MiB\n"), &["`poll`", "`memory`"]);
    refused(&subsystem(VOLUME, ANY, &[file(2, &a, "1MiB")]), &["is still open"]);
    // What is found out only when it is tried.
    refused(&subsystem(VOLUME, ANY, &[file(1, &a, "2MiB"), added, file(3, Path::new("/nowhere/c.img"), "1MiB")]), &["/nowhere/c.img"]);
    assert_eq!(fs::metadata(&a).unwrap().len(), MIB);
    assert!(fs::read_to_string(daemon.at(".b.img.godwit")).unwrap().contains("\"clean\""));
    assert!(host.response_within(admin, waiting, Duration::from_millis(300)).is_none(), "hosts hear nothing");
    assert_eq!((size_blocks(&mut host, admin, 1), size_blocks(&mut host, admin, 2)), (256, 0));
    let io = host.io(daemon.address, cntlid, 1, 32);
    assert_eq!(write_block(&mut host, io, 1, 255), 0);
    assert_eq!(daemon.reload_with(&subsystem(VOLUME, ANY, &[file(1, &a, "1MiB")]), &[]), (Some(0), "nothing has changed\n".to_owned()));
    let errors = daemon.status()["last_errors"].to_string();
    assert!(errors.contains("reload refused") && errors.contains("/nowhere/c.img"), "{errors}");
}

#[test]
fn a_namespace_shrinks_only_when_that_is_forced() {
    let namespace = |folder: &Path| format!("      - {{ nsid: 1, backend: {{ file: {{ path: {} }} }} }}", folder.join("a.img").display());
    let daemon = Daemon::start(|folder| {
        fs::File::create(folder.join("a.img")).unwrap().set_len(2 * MIB).unwrap();
        subsystem(VOLUME, ANY, &[namespace(folder)])
    });
    let mut host = Host::new();
    let (admin, cntlid) = host.admin(daemon.address, Duration::ZERO);
    let io = host.io(daemon.address, cntlid, 1, 32);
    let waiting = listen(&mut host, admin, AsyncEventConfiguration::NAMESPACE_ATTRIBUTE);
    fs::File::options().write(true).open(daemon.at("a.img")).unwrap().set_len(MIB).unwrap();
    let configuration = subsystem(VOLUME, ANY, &[namespace(daemon.folder.path())]);
    let (code, told) = daemon.reload_with(&configuration, &[]);
    assert!(code == Some(1) && told.contains("--force"), "{told}");
    assert_eq!(size_blocks(&mut host, admin, 1), 512);
    let (code, told) = daemon.reload_with(&configuration, &["--force"]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(event(&mut host, admin, waiting), 0x0004_0002);
    assert_eq!(size_blocks(&mut host, admin, 1), 256);
    assert_eq!((write_block(&mut host, io, 1, 256), write_block(&mut host, io, 1, 255)), (DNR | 0x080, 0));
    assert_eq!(fs::metadata(daemon.at("a.img")).unwrap().len(), MIB);
}

#[test]
fn a_host_that_is_no_longer_listed_is_dropped_and_not_let_in_again() {
    let hosts = |host: &str| format!("hosts: [{host}]");
    let daemon = Daemon::start(|folder| subsystem(VOLUME, &hosts(HOST), &[file(1, &folder.join("a.img"), "1MiB")]));
    let a = daemon.at("a.img");
    let mut host = Host::new();
    let (admin, cntlid) = host.admin(daemon.address, Duration::ZERO);
    let io = host.io(daemon.address, cntlid, 1, 32);
    let (code, told) = daemon.reload_with(&subsystem(VOLUME, &hosts("nqn.2026-11.org.example:other"), &[file(1, &a, "1MiB")]), &[]);
    assert!(code == Some(0) && told.contains("may be used by 1 host"), "{told}");
    assert!(host.is_ended(admin, PATIENCE) && host.is_ended(io, PATIENCE));
    let again = host.open(daemon.address, 0, 32);
    assert_eq!(host.connect_admin(again, Duration::ZERO).status(), DNR | 0x184, "Connect Invalid Host");
    let status = daemon.status();
    assert_eq!(status["refused"]["the host is not allowed to use the subsystem"], 1, "{status}");
    assert!(status["last_errors"].to_string().contains("took the host's access away"), "{status}");
    assert_eq!(daemon.reload_with(&subsystem(VOLUME, &hosts(HOST), &[file(1, &a, "1MiB")]), &[]).0, Some(0));
    host.admin(daemon.address, Duration::ZERO);
}

fn discovery(host: &mut Host, address: SocketAddr) -> Queue {
    let queue = host.open(address, 0, 32);
    let connect = Connect::admin(QueueSize::new(32).unwrap(), Duration::ZERO);
    let data = ConnectData::new(HostId([7; 16]), Cntlid::DYNAMIC, &Nqn::discovery(), &Nqn::new(HOST).unwrap());
    let sqe = Sqe::connect(host.cid(), &connect);
    assert_eq!(host.give(queue, sqe, data.as_bytes()).status(), 0);
    let cc = PropertyAccess { offset: PropertyOffset::CC, size: PropertySize::Four };
    let sqe = Sqe::property_set(host.cid(), cc, 0x0046_0001);
    assert_eq!(host.command(queue, sqe).status(), 0);
    queue
}

#[test]
fn a_subsystem_that_comes_or_goes_is_announced_to_discovery_and_its_hosts_are_dropped() {
    let daemon = Daemon::start(|folder| subsystem(VOLUME, ANY, &[file(1, &folder.join("a.img"), "1MiB")]));
    let (a, b) = (daemon.at("a.img"), daemon.at("b.img"));
    let mut host = Host::new();
    let queue = discovery(&mut host, daemon.address);
    let read = |host: &mut Host| {
        let sqe = Sqe::get_log_page(host.cid(), &GetLogPage::new(LogId::DISCOVERY, DwordCount::from_bytes(20).unwrap()));
        let header = DiscoveryHeader::from_prefix(&host.fetch(queue, sqe, 20).1).unwrap();
        (header.generation(), header.entry_count())
    };
    let (generation, entries) = read(&mut host);
    let waiting = listen(&mut host, queue, AsyncEventConfiguration::DISCOVERY_CHANGE);
    let (admin, _) = host.admin(daemon.address, Duration::ZERO);

    // A namespace is nothing to discovery.
    let first = [file(1, &a, "2MiB")];
    assert_eq!(daemon.reload_with(&subsystem(VOLUME, ANY, &first), &[]).0, Some(0));
    assert!(host.response_within(queue, waiting, Duration::from_millis(300)).is_none());
    let other = subsystem("nqn.2026-11.org.example:vol1", ANY, &[file(1, &b, "1MiB")]);
    assert_eq!(daemon.reload_with(&(subsystem(VOLUME, ANY, &first) + &other), &[]).0, Some(0));
    assert_eq!(event(&mut host, queue, waiting), 0x0070_F002, "discovery log page change, log 70h");
    assert_eq!(read(&mut host), (generation + 1, entries + 1));
    let waiting = request_event(&mut host, queue);
    assert_eq!(daemon.reload_with(&other, &[]).0, Some(0));
    assert_eq!(event(&mut host, queue, waiting), 0x0070_F002);
    assert_eq!(read(&mut host), (generation + 2, entries));
    assert!(host.is_ended(admin, PATIENCE));
    let again = host.open(daemon.address, 0, 32);
    assert_eq!(host.connect_admin(again, Duration::ZERO).status(), DNR | 0x182, "there is no such subsystem");
}

#[test]
fn status_and_metrics_tell_what_hosts_do() {
    let daemon = Daemon::start(|folder| subsystem(VOLUME, ANY, &[file(1, &folder.join("a.img"), "1MiB")]));
    let mut host = Host::new();
    let (_, cntlid) = host.admin(daemon.address, Duration::from_secs(60));
    let io = host.io(daemon.address, cntlid, 1, 32);
    assert_eq!(write_block(&mut host, io, 1, 0), 0);
    let status = daemon.status();
    let subsystem = &status["subsystems"][0];
    assert_eq!(status["listeners"][0], format!("iwarp://{}", daemon.address));
    let namespace = &subsystem["namespaces"][0];
    assert_eq!(
        (&namespace["size_bytes"], &namespace["written_bytes"], &namespace["unsafe_shutdowns"]),
        (&MIB.into(), &4096.into(), &0.into())
    );
    let controller = &subsystem["controllers"][0];
    assert_eq!((&controller["host"], &controller["keep_alive_ms"]), (&HOST.into(), &60_000.into()));
    let queues = controller["queues"].as_array().unwrap();
    assert_eq!(
        queues.iter().map(|queue| (queue["qid"].as_u64(), queue["depth"].as_u64(), queue["in_flight"].as_u64())).collect::<Vec<_>>(),
        [(Some(0), Some(32), Some(0)), (Some(1), Some(32), Some(0))]
    );
    let (code, words) = daemon.ask(&["status"]);
    assert!(code == Some(0) && words.contains("a.img, O_DIRECT, 1 MiB") && words.contains("2 queues, 0 commands in flight"), "{words}");

    let metrics = listening_ports(daemon.child.id()).into_iter().find_map(|port| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.starts_with("HTTP/1.1 200").then_some(text)
    });
    let metrics = metrics.expect("metrics are served");
    let labels = format!("{{nqn=\"{VOLUME}\",nsid=\"1\"}}");
    assert!(metrics.contains(&format!("godwit_target_written_bytes_total{labels} 4096\n")), "{metrics}");
    assert!(metrics.contains(&format!("godwit_target_queues{{nqn=\"{VOLUME}\"}} 2\n")), "{metrics}");
}

/// The TCP ports of this machine's loopback that a process listens on.
fn listening_ports(process: u32) -> Vec<u16> {
    let sockets: Vec<String> = fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .filter_map(|entry| {
            fs::read_link(entry.ok()?.path()).ok()?.to_str()?.strip_prefix("socket:[")?.strip_suffix(']').map(str::to_owned)
        })
        .collect();
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let port = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let listens = fields.get(3) == Some(&"0A") && sockets.iter().any(|inode| fields.get(9) == Some(&inode.as_str()));
        listens.then(|| u16::from_str_radix(fields[1].rsplit(':').next()?, 16).ok()).flatten()
    };
    table.lines().filter_map(port).collect()
}

#[test]
fn a_namespace_that_was_damaged_is_reopened_by_an_administrator_and_its_hosts_look_again() {
    let daemon = Daemon::start(|folder| subsystem(VOLUME, ANY, &[file(1, &folder.join("a.img"), "1MiB")]));
    let mut host = Host::new();
    let (admin, _) = host.admin(daemon.address, Duration::ZERO);
    let name = format!("1@{VOLUME}");
    let reopen = || daemon.ask(&["reopen", &name]);
    assert_eq!(reopen(), (Some(0), "nothing was lost, so there is nothing to do\n".to_owned()));
    let set_len = |len| fs::File::options().write(true).open(daemon.at("a.img")).unwrap().set_len(len).unwrap();
    set_len(4096);
    let namespace = || daemon.status()["subsystems"][0]["namespaces"][0].clone();
    wait_until("it is noticed", || namespace()["truncated"] == true);
    let (code, told) = reopen();
    assert!(code == Some(1) && told.contains("4096 bytes of 1048576"), "{told}");
    assert!(!host.is_ended(admin, Duration::from_millis(100)));
    set_len(MIB);
    assert_eq!(reopen().0, Some(0));
    assert!(host.is_ended(admin, PATIENCE));
    let after = namespace();
    assert_eq!((&after["truncated"], &after["unsafe_shutdowns"]), (&false.into(), &1.into()));
    assert_eq!(daemon.ask(&["reopen", &format!("2@{VOLUME}")]).0, Some(1));
    assert_eq!(daemon.ask(&["reopen", "nonsense"]).0, Some(2));
}
