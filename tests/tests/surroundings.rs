//! What the machine denies, and how targets are named: io_uring behind a seccomp filter, descriptors, IPv6, host names, wildcard addresses.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use godwit_tests::daemon::{Initiator, NQN, Process, Target, binary, free_port, wait_for};
use godwit_tests::tools::{nbdsh, run};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

const LIMIT: Duration = Duration::from_secs(10);

fn program(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary(name));
    command.args(arguments).env("GODWIT_LOG", "warn").env("RUST_BACKTRACE", "1");
    command
}

/// Starts a command under a filter that answers io_uring's system calls with `errno`, as the seccomp profiles of container engines do.
fn start_without_io_uring(errno: i32, command: &mut Command) -> Process {
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    let rules: BTreeMap<_, _> = calls.map(|call| (call, Vec::new())).into();
    let deny = SeccompAction::Errno(errno.unsigned_abs());
    let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
    let program = BpfProgram::try_from(SeccompFilter::new(rules, SeccompAction::Allow, deny, arch).unwrap()).unwrap();
    // A filter is a thread's, and its children's: the other tests are not under it.
    thread::scope(|scope| {
        let start = || {
            apply_filter(&program).unwrap();
            Process::start(command)
        };
        scope.spawn(start).join().unwrap()
    })
}

#[test]
fn a_seccomp_filter_that_forbids_io_uring_is_named() {
    let target = Target::start("memory:1MiB");
    let folder = tempfile::tempdir().unwrap();
    let nbd = format!("unix:{}", folder.path().join("nbd.sock").display());
    for (errno, name) in [(libc::EPERM, "EPERM"), (libc::ENOSYS, "ENOSYS")] {
        for command in [
            &mut program("godwit-target", &["--export", "memory:1MiB", "--listen", "iwarp://127.0.0.1:0"]),
            &mut program("godwit", &["connect", &target.url(), "--nbd", &nbd]),
            &mut program("godwit", &["discover", &format!("iwarp://{}", target.address)]),
        ] {
            let mut process = start_without_io_uring(errno, command);
            let status = process.wait(LIMIT);
            let said = process.output();
            assert_eq!(said.lines().count(), 1, "{command:?} said:\n{said}");
            let words =
                format!("io_uring is forbidden to this process ({name}), as a container's seccomp profile does; allow the system calls");
            assert!(said.contains(&words), "{said}");
            assert_eq!(status.code(), Some(1), "{said}");
        }
    }
}

/// From the least with which a program can be loaded to the first that is enough, each failure names the limit.
#[test]
fn too_few_descriptors_are_told_at_start() {
    let target = Target::start("memory:1MiB");
    let folder = tempfile::tempdir().unwrap();
    let nbd = format!("unix:{}", folder.path().join("nbd.sock").display());
    let (url, listener) = (target.url(), format!("iwarp://{}", target.address));
    for (name, arguments, serves) in [
        ("godwit-target", &["--export", "memory:1MiB", "--listen", "iwarp://127.0.0.1:0", "--reactors", "2"][..], "listening on"),
        ("godwit", &["connect", &url, "--nbd", &nbd, "--reactors", "2"], "ready: "),
        ("godwit", &["discover", &listener], "Discovery Log"),
    ] {
        let mut refusals = 0;
        for limit in 4.. {
            assert!(limit < 64, "{name} {arguments:?}");
            let mut command = Command::new("prlimit");
            command.arg(format!("--nofile={limit}:{limit}")).arg(binary(name)).args(arguments).env("GODWIT_LOG", "error");
            let mut process = Process::start(&mut command);
            wait_for("an outcome", LIMIT, || process.output().contains(serves) || !process.is_running());
            if process.output().contains(serves) {
                break;
            }
            let status = process.wait(LIMIT);
            let said = process.output();
            if said.contains(serves) {
                break;
            }
            assert_eq!(status.code(), Some(1), "{limit}: {said}");
            assert_eq!(said.lines().count(), 1, "{limit}: {said}");
            assert!(said.contains("no file descriptor left") && said.contains("LimitNOFILE="), "{limit}: {said}");
            refusals += 1;
        }
        assert!(refusals > 0, "{name} {arguments:?} was never refused");
    }
}

/// The loopback addresses of this machine: containers may be without IPv6.
fn loopbacks() -> Vec<SocketAddr> {
    let candidates: [SocketAddr; 2] = [(Ipv4Addr::LOCALHOST, 0).into(), (Ipv6Addr::LOCALHOST, 0).into()];
    candidates.into_iter().filter_map(|address| TcpListener::bind(address).and_then(|listener| listener.local_addr()).ok()).collect()
}

fn start_at(listen: &str, address: SocketAddr) -> Target {
    let arguments = ["--export", "memory:16MiB", "--nqn", NQN, "--listen", listen, "--allow-any-host-remote"];
    Target::start_command(&mut program("godwit-target", &arguments), address)
}

/// Writes and reads through the whole chain.
fn use_volume(url: &str) {
    let folder = tempfile::tempdir().unwrap();
    let initiator = Initiator::start(url, &folder.path().join("nbd.sock"));
    nbdsh(&initiator.uri(), "d = bytes(range(256)) * 16384\nh.pwrite(d, 0)\nh.flush()\nassert h.pread(len(d), 0) == d");
}

#[test]
fn every_form_of_address_works_end_to_end() {
    for address in loopbacks() {
        let _target = start_at(&format!("iwarp://{address}"), address);
        use_volume(&format!("iwarp://{address}/{NQN}"));
    }
    let port = free_port();
    let _target = start_at(&format!("iwarp://localhost:{port}"), (Ipv4Addr::LOCALHOST, port).into());
    use_volume(&format!("iwarp://localhost:{port}/{NQN}"));
    let list = run(&mut program("godwit", &["discover", &format!("iwarp://localhost:{port}")]));
    assert!(list.contains(NQN), "{list}");
}

/// A target on a wildcard address tells each host the address that the host came by, for no other is sure to reach it.
#[test]
fn a_wildcard_listener_is_discovered_under_the_address_that_was_used() {
    let loopbacks = loopbacks();
    let wildcard = if loopbacks.iter().any(SocketAddr::is_ipv6) { "[::]" } else { "0.0.0.0" };
    let port = free_port();
    let _target = start_at(&format!("iwarp://{wildcard}:{port}"), (Ipv4Addr::LOCALHOST, port).into());
    for mut address in loopbacks {
        address.set_port(port);
        let list = run(&mut program("godwit", &["discover", &format!("iwarp://{address}"), "--json"]));
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        let records = list["records"].as_array().unwrap();
        assert_eq!(records.len(), 2, "{list}");
        for record in records {
            assert_eq!(record["traddr"], address.ip().to_string(), "{list}");
            assert_eq!(record["adrfam"], if address.is_ipv6() { "ipv6" } else { "ipv4" }, "{list}");
            assert_eq!(record["trsvcid"], port.to_string(), "{list}");
        }
        assert!(TcpStream::connect(address).is_ok());
        use_volume(&format!("iwarp://{address}/{NQN}"));
    }
}
