//! A daemon of many volumes, as its administrator has it: configured, asked, changed while it runs.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use godwit_tests::daemon::{Process, Target, binary, free_port, wait_for};
use godwit_tests::nbd::Client;
use godwit_tests::tools::{fio, run, run_failing};
use nix::sys::signal::Signal;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(10);

/// A target with two subsystems, and an initiator that attaches them.
struct World {
    folder: tempfile::TempDir,
    target: Target,
    initiator: Process,
}

fn nqn(name: &str) -> String {
    format!("nqn.2026-11.org.example:{name}")
}

impl World {
    fn start(volumes: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        write_target(folder.path(), address, 16);
        let target =
            Target::start_command(Command::new(binary("godwit-target")).arg("--config").arg(folder.path().join("target.yaml")), address);
        write_initiator(folder.path(), address, volumes);
        let mut initiator =
            Process::start(Command::new(binary("godwit")).args(["run", "--config"]).arg(folder.path().join("initiator.yaml")));
        for volume in volumes {
            initiator.await_word(&format!("ready: {volume} as ")).unwrap();
        }
        Self { folder, target, initiator }
    }

    fn control(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    /// `godwit` asks this daemon and no other of this machine.
    fn ask(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary("godwit"));
        command.args(arguments).arg("--control").arg(self.control());
        command
    }

    fn status(&self, volume: &str) -> Value {
        let text = run(&mut self.ask(&["status", volume, "--json"]));
        let volumes: Value = serde_json::from_str(&text).unwrap();
        volumes[0].clone()
    }

    fn names(&self) -> Vec<String> {
        let text = run(&mut self.ask(&["list", "--json"]));
        let volumes: Value = serde_json::from_str(&text).unwrap();
        volumes.as_array().unwrap().iter().map(|volume| volume["name"].as_str().unwrap().to_owned()).collect()
    }

    fn reload(&self, volumes: &[&str]) {
        write_initiator(self.folder.path(), self.target.address, volumes);
        self.initiator.signal(Signal::SIGHUP);
    }

    fn uri(&self, volume: &str) -> String {
        format!("nbd+unix:///?socket={}", self.folder.path().join(format!("{volume}.sock")).display())
    }
}

fn write_target(folder: &Path, address: SocketAddr, mib: u32) {
    let subsystem = |name: &str| {
        let image = folder.join(format!("{name}.img"));
        format!(
            "  - nqn: {}\n    allow_any_host: true\n    namespaces:\n      - nsid: 1\n        backend: {{ file: {{ path: {}, size: {mib}MiB, create: true }} }}\n",
            nqn(name),
            image.display()
        )
    };
    let control = folder.join("target.sock");
    let text = format!(
        "listeners:\n  - {{ transport: iwarp, address: \"{address}\" }}\ncontrol: {}\nsubsystems:\n{}{}",
        control.display(),
        subsystem("vol0"),
        subsystem("vol1")
    );
    fs::write(folder.join("target.yaml"), text).unwrap();
}

fn write_initiator(folder: &Path, address: SocketAddr, volumes: &[&str]) {
    let volume = |name: &&str| {
        format!(
            "  - name: {name}\n    addresses: [\"iwarp://{address}\"]\n    nqn: {}\n    nbd: unix:{}\n",
            nqn(name),
            folder.join(format!("{name}.sock")).display()
        )
    };
    let metrics = SocketAddr::from(([127, 0, 0, 1], 0));
    let text = format!(
        "reactors: 2\nmetrics: \"{metrics}\"\ncontrol: {}\nvolumes:\n{}",
        folder.join("control.sock").display(),
        volumes.iter().map(volume).collect::<String>()
    );
    fs::write(folder.join("initiator.yaml"), text).unwrap();
}

#[test]
fn each_volume_is_served_and_told_of() {
    let world = World::start(&["vol0", "vol1"]);
    for volume in ["vol0", "vol1"] {
        fio(&world.uri(volume), &["--rw=randrw", "--bs=4k", "--size=8m", "--iodepth=8", "--verify=crc32c", "--do_verify=1"]);
        let status = world.status(volume);
        assert_eq!((&status["state"], &status["size_bytes"]), (&"live".into(), &(16 << 20).into()), "{status:#}");
        assert_eq!(status["nqn"], nqn(volume));
        assert!(
            status["writes"]["bytes"].as_u64().unwrap() > 0 && status["reads"]["latency_us"]["p99"].as_f64().unwrap() > 0.0,
            "{status:#}"
        );
        assert_eq!((&status["errors"], &status["in_flight"]), (&0.into(), &0.into()), "{status:#}");
    }
    let list = run(&mut world.ask(&["list"]));
    assert!(list.contains("vol0  live   16MiB") && list.contains("vol1  live   16MiB"), "{list}");
    let by_nqn = run(&mut world.ask(&["status", &nqn("vol1")]));
    assert!(by_nqn.starts_with("vol1: live for ") && by_nqn.contains("P99.9 us"), "{by_nqn}");
    let said = run_failing(&mut world.ask(&["status", "vol2"])).1;
    assert!(said.contains("no daemon of this user has a volume `vol2`"), "{said}");
}

#[test]
fn a_reload_attaches_what_is_new_and_detaches_what_is_gone_and_touches_nothing_else() {
    let world = World::start(&["vol0"]);
    let mut client = Client::connect(&world.folder.path().join("vol0.sock")).unwrap();
    client.limit(Some(SOON));
    world.reload(&["vol0", "vol1"]);
    wait_for("vol1 is there", SOON, || world.names() == ["vol0", "vol1"] && world.status("vol1")["state"] == "live");
    world.reload(&["vol1"]);
    let kept = "is in use: 1 connection of NBD clients; disconnect them first";
    wait_for("the log says that vol0 stays", SOON, || world.initiator.output().contains(kept));
    assert_eq!(world.names(), ["vol0", "vol1"]);
    client.ask(godwit_nbd::Command::Flush, 0, 0, &[]).expect("its client goes on");
    drop(client);
    let log = world.initiator.output();
    assert!(log.contains("vol1 is new") && log.contains("vol0 stays: "), "{log}");
    for line in log.lines().filter(|line| line.contains("attached namespace") || line.contains("NBD client connected")) {
        assert!(line.contains("volume=\"vol"), "{line}");
    }
    world.reload(&["vol1"]);
    wait_for("vol0 is gone", SOON, || world.names() == ["vol1"]);
    assert!(world.initiator.output().contains("vol0 is detached"));
    assert!(!world.folder.path().join("vol0.sock").exists());
    world.reload(&["vol0", "vol1"]);
    wait_for("vol0 is back", SOON, || world.status("vol1")["state"] == "live" && world.names().len() == 2);
    // What cannot be changed is told.
    let file = world.folder.path().join("initiator.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let text =
        text.replace("reactors: 2\nmetrics: \"127.0.0.1:0\"\n", "reactors: 1\npoll: 7us\nhost: { nqn: nqn.2026-11.org.example:host }\n");
    fs::write(&file, text.replace("control.sock", "other.sock")).unwrap();
    world.initiator.signal(Signal::SIGHUP);
    let told = |key| format!("`{key}` cannot be changed while the daemon runs; put it back, or restart the daemon");
    for key in ["host", "reactors", "poll", "control", "metrics"] {
        wait_for(&format!("the log names {key}"), SOON, || world.initiator.output().contains(&told(key)));
    }
    assert_eq!(world.names().len(), 2);
    // What is wrong changes nothing.
    fs::write(world.folder.path().join("initiator.yaml"), "volumes: [{ name: x }]\n").unwrap();
    world.initiator.signal(Signal::SIGHUP);
    wait_for("the log says what is wrong", SOON, || world.initiator.output().contains("the configuration stays as it was"));
    assert_eq!(world.names().len(), 2);
}

#[test]
fn a_disconnected_volume_is_gone_and_the_daemon_goes_on() {
    let mut world = World::start(&["vol0", "vol1"]);
    assert_eq!(run(&mut world.ask(&["disconnect", "vol0"])), "detached: vol0\n");
    assert_eq!(world.names(), ["vol1"]);
    fio(&world.uri("vol1"), &["--rw=randread", "--bs=4k", "--size=1m"]);
    let took = world.initiator.terminate();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(!world.control().exists(), "the control socket goes with its daemon");
}

/// It is kept to tell why it is gone, for as long as that is of interest.
#[test]
fn a_volume_that_is_gone_can_be_disconnected() {
    let mut world = World::start(&["vol0", "vol1"]);
    world.target.process.kill();
    fs::remove_file(world.folder.path().join("vol0.img")).unwrap();
    let mut command = Command::new(binary("godwit-target"));
    let again = Target::start_command(command.arg("--config").arg(world.folder.path().join("target.yaml")), world.target.address);
    wait_for("another disk ends the volume", SOON, || world.status("vol0")["state"] == "gone");
    assert_eq!(run(&mut world.ask(&["disconnect", "vol0"])), "detached: vol0\n");
    assert_eq!(world.names(), ["vol1"]);
    drop(again);
}

/// What was written could not be flushed.
#[test]
fn a_volume_whose_target_is_away_is_disconnected_by_force_only() {
    let mut world = World::start(&["vol0", "vol1"]);
    world.target.process.kill();
    wait_for("the loss is noticed", SOON, || world.status("vol0")["state"] == "lost");
    let (code, said) = run_failing(&mut world.ask(&["disconnect", "vol0"]));
    assert!(code == 1 && said.contains("is away, so that nothing can be flushed; wait for it, or add --force"), "{code}: {said}");
    assert_eq!(run(&mut world.ask(&["disconnect", "vol0", "--force"])), "detached: vol0\n");
    assert_eq!(world.names(), ["vol1"]);
}

/// Its end takes a while: what is configured when it is over counts.
#[test]
fn a_volume_that_is_put_back_while_it_is_taken_down_comes_back() {
    let world = World::start(&["vol0", "vol1"]);
    world.target.process.signal(Signal::SIGSTOP);
    world.reload(&["vol1"]);
    std::thread::sleep(Duration::from_millis(300));
    world.reload(&["vol0", "vol1"]);
    std::thread::sleep(Duration::from_millis(300));
    world.target.process.signal(Signal::SIGCONT);
    wait_for("it was taken down", SOON, || world.initiator.output().contains("vol0 is detached"));
    wait_for("it is back", SOON, || world.names().len() == 2 && world.status("vol0")["state"] == "live");
    fio(&world.uri("vol0"), &["--rw=randread", "--bs=4k", "--size=1m"]);
}

#[test]
fn a_volume_that_nbd_clients_use_is_not_disconnected_unless_forced() {
    let world = World::start(&["vol0"]);
    let connect = || {
        let client = Client::connect(&world.folder.path().join("vol0.sock")).unwrap();
        client.limit(Some(SOON));
        client
    };
    let mut clients = [connect(), connect()];
    let (code, said) = run_failing(&mut world.ask(&["disconnect", "vol0"]));
    assert!(code == 1 && said.contains("is in use: 2 connections of NBD clients; disconnect them first, or add --force"), "{code}: {said}");
    for client in &mut clients {
        client.ask(godwit_nbd::Command::Flush, 0, 0, &[]).expect("it goes on");
    }
    assert_eq!(world.status("vol0")["state"], "live");
    assert_eq!(run(&mut world.ask(&["disconnect", "vol0", "--force"])), "detached: vol0\n");
    for client in &mut clients {
        assert!(client.ask(godwit_nbd::Command::Flush, 0, 0, &[]).is_err(), "it was let go");
    }
}

/// Daemons of an ordinary user, whose sockets are in a folder of their own.
#[test]
fn a_name_that_two_daemons_have_is_not_disconnected_before_one_is_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let target = Target::start("memory:16MiB");
    let control = |which: usize| folder.path().join(format!("initiator-{which}.sock"));
    let mut daemons: Vec<_> = (0..2)
        .map(|which| {
            let mut command = Command::new(binary("godwit"));
            command.args(["connect", &target.url(), "--name", "twin", "--nbd"]);
            command.arg(format!("unix:{}", folder.path().join(format!("{which}.nbd")).display())).arg("--control").arg(control(which));
            let mut daemon = Process::start(&mut command);
            daemon.await_word("ready: ").unwrap();
            daemon
        })
        .collect();
    let ask = |arguments: &[&str], whom: &Path| {
        let mut command = Command::new(binary("godwit"));
        command.args(arguments).arg("--control").arg(whom);
        command
    };
    let (code, said) = run_failing(&mut ask(&["disconnect", "twin"], folder.path()));
    assert!(code == 1 && said.contains("`twin` could be any of 2 volumes"), "{code}: {said}");
    let list = run(&mut ask(&["list"], folder.path()));
    for (which, daemon) in daemons.iter().enumerate() {
        let candidate = format!("twin of the daemon with PID {}, target {}", daemon.pid(), target.address);
        assert!(said.contains(&candidate) && said.contains(&format!("--control {}", control(which).display())), "{said}");
        assert!(list.contains(&format!("  {}  ", daemon.pid())), "{list}");
    }
    assert_eq!(run(&mut ask(&["disconnect", "twin"], &control(1))), "detached: twin\n");
    assert!(daemons[1].wait(SOON).success(), "it ends with its volume");
    assert!(run(&mut ask(&["list"], folder.path())).contains(&format!("  {}  ", daemons[0].pid())), "the other one goes on");
}

#[test]
fn a_volume_whose_target_is_not_there_yet_is_tried_again() {
    let mut world = World::start(&["vol0"]);
    world.target.process.kill();
    world.reload(&["vol0", "vol1"]);
    wait_for("vol1 waits", SOON, || world.names().len() == 2);
    wait_for("it is known why", SOON, || {
        let status = world.status("vol1");
        let why = status["last_error"]["text"].as_str().unwrap_or_default();
        status["state"] == "failed" && why.contains("nothing is listening there")
    });
    let address = world.target.address;
    let config = world.folder.path().join("target.yaml");
    world.target = Target::start_command(Command::new(binary("godwit-target")).arg("--config").arg(config), address);
    wait_for("both are there", Duration::from_secs(20), || ["vol0", "vol1"].iter().all(|volume| world.status(volume)["state"] == "live"));
    assert_eq!(world.status("vol0")["reconnects"], 1);
}

/// The target is told of the new size; nothing of the client is.
#[test]
fn a_volume_that_grows_at_the_target_has_grown_for_the_next_client() {
    let world = World::start(&["vol0"]);
    let size = || run(Command::new("nbdinfo").args(["--size", &world.uri("vol0")])).trim().to_owned();
    assert_eq!(size(), (16 << 20).to_string());
    write_target(world.folder.path(), world.target.address, 24);
    world.target.process.signal(Signal::SIGHUP);
    wait_for("it has grown", SOON, || world.status("vol0")["size_bytes"] == 24 << 20);
    assert_eq!(size(), (24 << 20).to_string());
    fio(&world.uri("vol0"), &["--rw=write", "--bs=64k", "--offset=16m", "--size=8m", "--verify=crc32c", "--do_verify=1"]);
}

#[test]
fn prometheus_is_served_what_status_tells() {
    let folder = tempfile::tempdir().unwrap();
    let target = Target::start("memory:16MiB");
    let port = free_port();
    let mut initiator = Process::start(
        Command::new(binary("godwit"))
            .args(["connect", &target.url(), "--name", "v0", "--metrics", &format!("127.0.0.1:{port}"), "--nbd"])
            .arg(format!("unix:{}", folder.path().join("v.sock").display()))
            .arg("--control")
            .arg(folder.path().join("control.sock")),
    );
    initiator.await_word("ready: ").unwrap();
    fio(&format!("nbd+unix:///?socket={}", folder.path().join("v.sock").display()), &["--rw=write", "--bs=4k", "--size=64k"]);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for line in ["godwit_volume_up{volume=\"v0\"} 1\n", "godwit_volume_bytes_total{volume=\"v0\",kind=\"writes\"} 65536\n"] {
        assert!(answer.contains(line), "{answer}");
    }
}

#[test]
fn a_configuration_is_checked_without_a_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("initiator.yaml");
    let check = || {
        let mut command = Command::new(binary("godwit"));
        command.args(["run", "--check", "--config"]).arg(&file);
        command
    };
    write_initiator(folder.path(), SocketAddr::from(([127, 0, 0, 1], 4420)), &["vol0"]);
    assert_eq!(run(&mut check()), "the configuration is right\n");
    let text = fs::read_to_string(&file).unwrap().replace("nqn:", "nnq:");
    fs::write(&file, text).unwrap();
    let (code, said) = run_failing(&mut check());
    assert!(code == 2 && said.contains("initiator.yaml:7:5") && said.contains("nnq"), "{code}: {said}");
}
