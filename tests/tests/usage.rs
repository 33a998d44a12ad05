//! Wrong usage and wrong surroundings: each is one line that says what, where and what to do, and an exit code that tells whose fault it is.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use godwit_tests::daemon::{Initiator, NQN, Process, Target, binary, free_port, wait_for};
use godwit_tests::tools::{nbdsh, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Failed: another machine state, a moment later, would have worked.
const FAILED: i32 = 1;
/// Wrong usage or configuration: it cannot work as it is written.
const WRONG: i32 = 2;

/// How long a program may take to refuse.
const LIMIT: Duration = Duration::from_secs(45);

fn program(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary(name));
    command.args(arguments).env_remove("GODWIT_LOG").env("RUST_BACKTRACE", "1");
    command
}

fn target(arguments: &[&str]) -> Command {
    program("godwit-target", arguments)
}

fn godwit(arguments: &[&str]) -> Command {
    program("godwit", arguments)
}

/// A command whose only line is to hold the words.
fn refuses(command: &mut Command, code: i32, words: &[&str]) {
    let mut process = Process::start(command);
    let status = process.wait(LIMIT);
    let said = process.output();
    assert_eq!(said.lines().count(), 1, "{command:?} said:\n{said}");
    check_line(&said, words);
    assert_eq!(status.code(), Some(code), "{command:?} said: {said}");
}

/// What is said of `rdma://` where the kernel or a library it takes is not there. Where they are, that is a matter of the address: see the kernel lab.
fn without_devices() -> &'static str {
    if Path::new("/dev/infiniband/rdma_cm").exists() { "" } else { "iwarp:// needs n" }
}

fn check_line(line: &str, words: &[&str]) {
    for word in words {
        assert!(line.contains(word), "`{word}` is missing in: {line}");
    }
    for noise in ["panicked", "backtrace", "os error", "Err("] {
        assert!(!line.contains(noise), "`{noise}` is in: {line}");
    }
}

/// A configuration of one subsystem for each of these lists of namespaces.
fn yaml(nqns: &[(&str, &str)]) -> String {
    let mut text = "listeners:\n  - { transport: iwarp, address: \"127.0.0.1:0\" }\nsubsystems:\n".to_owned();
    for (nqn, namespaces) in nqns {
        text.push_str(&format!("  - nqn: {nqn}\n    allow_any_host: true\n    namespaces:\n{namespaces}"));
    }
    text
}

const MEMORY: &str = "      - nsid: 1\n        backend: { memory: { size: 1MiB } }\n";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A path in it, as a text.
    fn at(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        fs::write(self.at(name), content).unwrap();
        self.at(name)
    }

    fn sized(&self, name: &str, bytes: u64) -> String {
        fs::File::create(self.at(name)).unwrap().set_len(bytes).unwrap();
        self.at(name)
    }
}

#[test]
fn a_wrong_configuration_is_refused_with_its_place() {
    let folder = Folder::new();
    let good = yaml(&[(NQN, MEMORY)]);
    let file = |old: &str, new: &str| {
        assert!(good.contains(old));
        good.replacen(old, new, 1)
    };
    let twice = yaml(&[(NQN, MEMORY), (NQN, MEMORY)]);
    let cases: &[(&str, String, &[&str])] = &[
        ("unknown key", file("nsid: 1", "nsid: 1\n        readonly: true"), &[":8:9: `readonly` is not a key of", "read_only"]),
        ("unknown top key", format!("{good}listen: []\n"), &[":9:1: `listen` is not a key of", "listeners"]),
        ("wrong type", file("nsid: 1", "nsid: one"), &[":7:15: `nsid` must be a whole number from 1 to 1024"]),
        (
            "duplicate NQN",
            twice,
            &[":9:10: the NQN nqn.2026-11.org.example:test is already used at ", ":4:10: each subsystem needs its own"],
        ),
        ("bad NQN", file(NQN, "vol0"), &[":4:10: `nqn`: `vol0` is not an NQN: it must start with `nqn.`, as in "]),
        ("size 0", file("1MiB", "0"), &[":8:36: the size is 0: a namespace needs at least one block of 4096 bytes"]),
        ("no size", file("1MiB", "1XiB"), &["`XiB` in the size `1XiB` is not a unit: use KiB,"]),
        (
            "open to all",
            file("127.0.0.1:0", "0.0.0.0:0"),
            &[":5:21: every machine that reaches the listener", "insecure_allow_any_host: true"],
        ),
        ("no YAML", "listeners: [\n".to_owned(), &["no-yaml.yaml:"]),
        ("no text", String::new(), &[":1:1: "]),
    ];
    for (name, text, words) in cases {
        let path = folder.write(&format!("{}.yaml", name.replace(' ', "-").to_lowercase()), text);
        for check in [&["--config", &path, "--check"][..], &["--config", &path]] {
            refuses(&mut target(check), WRONG, words);
        }
    }
    let path = folder.write("good.yaml", good);
    assert_eq!(run(&mut target(&["--config", &path, "--check"])), "the configuration is right\n");
    refuses(&mut target(&["--config", &folder.at("none.yaml")]), WRONG, &["none.yaml: No such file or directory; name the configuration"]);
    refuses(&mut target(&["--config", &folder.at("")]), WRONG, &["Is a directory; name the configuration"]);
}

#[test]
fn a_target_refuses_wrong_arguments() {
    let folder = Folder::new();
    let (empty, odd) = (folder.sized("empty.img", 0), folder.sized("odd.img", 5000));
    let none = folder.at("none.img");
    let in_no_folder = format!("{},size=1MiB", folder.at("no/disk.img"));
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let in_use = format!("iwarp://{}", taken.local_addr().unwrap());
    let image = folder.sized("disk.img", 1 << 20);
    let other_size = format!("{image},size=2MiB");
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&[], WRONG, &["nothing to export: name it with --export EXPORT, as in ", "or a configuration with --config FILE; see --help"]),
        (&["--export", "memory:1MiB", "--metrics", "9420"], WRONG, &["'9420'", "write it as ADDRESS:PORT, as in 127.0.0.1:9420"]),
        (&["--exprt", "x"], WRONG, &["unexpected argument '--exprt'", "'--export'; see --help"]),
        (&["--export", "memory:0"], WRONG, &["--export memory:0: the size is 0: a namespace needs at least one block of 4096 bytes"]),
        (&["--export", "memory:1MiB,ro"], WRONG, &["ro", "read_only"]),
        (&["--export", "memory:1MiB", "--nqn", "vol0"], WRONG, &["`vol0` is not an NQN: it must start with `nqn.`, as in "]),
        (&["--export", "memory:1MiB", "--listen", "127.0.0.1"], WRONG, &["`127.0.0.1` has no scheme: write it as iwarp://HOST[:PORT] or "]),
        (
            &["--export", "memory:1MiB", "--listen", "iwarp://127.0.0.1:70000"],
            WRONG,
            &["`70000` is not a port: use a number from 1 to 65535"],
        ),
        (&["--export", "memory:1MiB", "--listen", "iwarp://0.0.0.0"], WRONG, &["every machine", "--host NQN", "--allow-any-host-remote"]),
        (
            &["--export", "memory:1MiB", "--listen", "rdma://127.0.0.1"],
            FAILED,
            &["--listen rdma://127.0.0.1:4420: cannot listen on 127.0.0.1:4420: ", without_devices()],
        ),
        (&["--export", "memory:1MiB", "--log", "a=b=c"], WRONG, &["--log a=b=c: "]),
        (&["--export", "memory:1MiB", "--listen", &in_use], FAILED, &[&in_use, "address in use; stop the program that listens there"]),
        (
            &["--export", "memory:1MiB", "--listen", "iwarp://no.invalid", "--host", NQN],
            FAILED,
            &["cannot resolve no.invalid:4420", "correct the name"],
        ),
        (
            &["--export", "memory:1MiB", "--listen", "iwarp://192.0.2.99", "--host", NQN],
            FAILED,
            &["no such address on this machine; see `ip address`"],
        ),
        (&["--export", &none], FAILED, &[&none, "no such file; correct the path, or have it made with", ",size=10GiB"]),
        (&["--export", &in_no_folder], FAILED, &["its folder does not exist; make it with mkdir -p"]),
        (&["--export", &empty], FAILED, &[&empty, "a size of 0 bytes cannot be exported; give it at least one block of 4096"]),
        (&["--export", &odd], FAILED, &[&odd, "5000 bytes are not a whole number of blocks of 4096; the next smaller size is 4096"]),
        (&["--export", &other_size], FAILED, &["is 1048576 bytes long, but `size` says 2097152; an existing file is never resized"]),
        (&["--export", "/dev"], FAILED, &["/dev is a directory, not a regular file; name a file in it"]),
        (&["--export", "device:/dev/none"], FAILED, &["/dev/none: no such device; look for the right name with lsblk"]),
        (&["--export", "device:/dev/null"], FAILED, &["/dev/null is ", "not a block device"]),
    ];
    let listen = format!("iwarp://127.0.0.1:{}", free_port());
    for (arguments, code, words) in cases {
        let mut command = target(arguments);
        if !arguments.is_empty() && !arguments.contains(&"--listen") {
            command.args(["--listen", &listen]);
        }
        refuses(&mut command, *code, words);
    }
}

#[test]
fn two_namespaces_on_one_file_are_refused_under_whatever_names() {
    let folder = Folder::new();
    let image = folder.sized("disk.img", 1 << 20);
    let (soft, hard) = (folder.at("soft.img"), folder.at("hard.img"));
    symlink(&image, &soft).unwrap();
    fs::hard_link(&image, &hard).unwrap();
    refuses(&mut target(&["--export", &image, "--export", &image]), WRONG, &[&image, "two namespaces cannot share one"]);
    for other in [&soft, &hard] {
        let words: &[&str] = &[&format!("{image} and {other} are the same storage; export it once")];
        refuses(&mut target(&["--export", &image, "--export", other]), WRONG, words);
        let namespaces = format!(
            "      - {{ nsid: 1, backend: {{ file: {{ path: {image} }} }} }}\n      - {{ nsid: 2, backend: {{ file: {{ path: {other} }} }} }}\n"
        );
        let path = folder.write("target.yaml", yaml(&[(NQN, &namespaces)]));
        refuses(&mut target(&["--config", &path]), WRONG, words);
        refuses(&mut target(&["--config", &path, "--check"]), WRONG, words);
    }
}

#[test]
fn a_file_of_another_daemon_is_waited_for_and_its_holder_named() {
    let folder = Folder::new();
    let image = folder.sized("disk.img", 1 << 20);
    let holder = Target::start(&image);
    let held_by = format!("process {} (godwit-target)", holder.process.pid());
    let hard = folder.at("hard.img");
    fs::hard_link(&image, &hard).unwrap();
    let mut second = Process::start(target(&["--export", &hard, "--listen", "iwarp://127.0.0.1:0"]).env("GODWIT_LOG", "warn"));
    wait_for("a line about the wait", Duration::from_secs(5), || {
        second.output().contains(&format!("in use by {held_by}; waiting for at most 30 s"))
    });
    // A signal does not have to wait with it.
    assert!(second.terminate() < Duration::from_secs(2));

    let started = Instant::now();
    let mut third = Process::start(target(&["--export", &hard, "--listen", "iwarp://127.0.0.1:0"]).env("GODWIT_LOG", "error"));
    let status = third.wait(LIMIT);
    assert_eq!(status.code(), Some(FAILED));
    let said = third.output();
    assert_eq!(said.lines().count(), 1, "{said}");
    check_line(&said, &[&hard, &format!("still locked by {held_by}"), "stop that process, or export something else"]);
    assert!(started.elapsed() >= Duration::from_secs(30), "it waits as long as it says");
}

/// A peer that is no target: sends its greeting, and an answer once something has come.
fn foreign(greeting: &'static [u8], answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(greeting);
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer);
        }
    });
    address
}

/// nbdkit on a free port.
fn nbdkit() -> (Process, SocketAddr) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let mut process =
        Process::start(Command::new("nbdkit").args(["-f", "-i", "127.0.0.1", "-p", &address.port().to_string(), "memory", "1M"]));
    process.await_ready(|| std::net::TcpStream::connect(address).is_ok()).unwrap();
    (process, address)
}

#[test]
fn a_peer_that_is_no_target_is_told_as_such() {
    let (_nbdkit, nbd) = nbdkit();
    let http = foreign(b"", b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n<html>Bad Request</html>");
    let ssh = foreign(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", b"");
    let closes = foreign(b"", b"");
    let folder = Folder::new();
    let nothing = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    // Accepts, by its backlog, and never answers.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let cases: &[(SocketAddr, &[&str])] = &[
        (http, &["does not answer as an iWARP target does", "does a target listen at this address?"]),
        (ssh, &["does not answer as an iWARP target does", "does a target listen at this address?"]),
        (nbd, &["does not answer as an iWARP target does", "does a target listen at this address?"]),
        (closes, &["127.0.0.1:"]),
        (nothing, &["cannot connect to ", "nothing is listening there; is the target running?"]),
        (silent.local_addr().unwrap(), &["no answer to the connection set-up within 10 s; does a target listen at this address?"]),
    ];
    for (address, words) in cases {
        let at = address.to_string();
        let words = [words, &[at.as_str()][..]].concat();
        refuses(&mut godwit(&["discover", &format!("iwarp://{address}")]), FAILED, &words);
        let nbd = format!("unix:{}", folder.at("nbd.sock"));
        refuses(&mut godwit(&["connect", &format!("iwarp://{address}/{NQN}"), "--nbd", &nbd]), FAILED, &words);
    }
}

#[test]
fn an_initiator_refuses_wrong_arguments() {
    let folder = Folder::new();
    let nbd = format!("unix:{}", folder.at("nbd.sock"));
    let url = format!("iwarp://127.0.0.1:{}/{NQN}", free_port());
    let rdma = format!("rdma://127.0.0.1/{NQN}");
    let with = |query: &str| format!("{url}?{query}");
    let file = format!("unix:{}", folder.write("data", "precious"));
    let in_no_folder = format!("unix:{}", folder.at("no/nbd.sock"));
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let in_use = format!("tcp:{}", taken.local_addr().unwrap());
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["bench"], WRONG, &["say what to measure: a URL, or --nbd"]),
        (&["connect", &url], WRONG, &["say where to serve the volume: --nbd unix:PATH|tcp:HOST[:PORT], or --device /dev/nbdN|auto"]),
        (&["discover", "127.0.0.1"], WRONG, &["`127.0.0.1` has no scheme: write it as iwarp://HOST[:PORT] or "]),
        (&["connect", &url, "--nbd", &nbd, "--metrics", "9420"], WRONG, &["'9420'", "write it as ADDRESS:PORT, as in 127.0.0.1:9420"]),
        (&["conect", &url], WRONG, &["unrecognized subcommand 'conect'", "'connect'; see --help"]),
        (&["connect", "127.0.0.1", "--nbd", &nbd], WRONG, &["`127.0.0.1` has no scheme: write it as iwarp://HOST[:PORT]/NQN"]),
        (&["connect", "nvme://h", "--nbd", &nbd], WRONG, &["`nvme://` is not a transport: use iwarp://"]),
        (&["connect", "iwarp://h/vol0", "--nbd", &nbd], WRONG, &["`vol0` is not an NQN: it must start with `nqn.`, as in "]),
        (
            &["connect", "iwarp://h", "--nbd", &nbd],
            WRONG,
            &["iwarp://h:4420 names no subsystem: add /NQN (`godwit discover iwarp://h:4420` lists"],
        ),
        (&["connect", &with("nsid=0"), "--nbd", &nbd], WRONG, &["`0` is not a namespace id: use a number from 1 to 4294967294"]),
        (&["connect", &with("ns=1"), "--nbd", &nbd], WRONG, &["`ns` is not an option of an address: the options are nsid, fpdu and crc"]),
        (&["connect", &rdma, "--nbd", &nbd], FAILED, &["cannot connect to 127.0.0.1:4420: ", without_devices()]),
        (&["discover", "rdma://127.0.0.1"], FAILED, &["cannot connect to 127.0.0.1:4420: ", without_devices()]),
        (&["connect", &url, "--device", "/dev/sda"], WRONG, &["`/dev/sda` is not an NBD device", "/dev/nbdN"]),
        (&["connect", &url, "--nbd", "/tmp/x"], WRONG, &["`/tmp/x` is not an NBD endpoint: write unix:PATH"]),
        (
            &["connect", &url, "--nbd", "tcp:0.0.0.0"],
            WRONG,
            &["tcp:0.0.0.0:10809 can be reached from other machines", "add --nbd-allow-remote"],
        ),
        (&["connect", &url, "--nbd", "tcp:[::]:0"], WRONG, &["can be reached from other machines", "add --nbd-allow-remote"]),
        (&["connect", &url, "--nbd", &nbd, "--queue-size", "0"], WRONG, &["'--queue-size <N>'", "from 2 to 1024"]),
        (&["connect", &url, "--nbd", &nbd, "--queue-size", "1"], WRONG, &["'--queue-size <N>'", "from 2 to 1024"]),
        (&["connect", &url, "--nbd", &nbd, "--queue-size", "1025"], WRONG, &["'--queue-size <N>'", "from 2 to 1024"]),
        (&["--log", "a=b=c", "connect", &url, "--nbd", &nbd], WRONG, &["`a=b=c` is not a log filter"]),
        (&["connect", &url, "--nbd", &file], FAILED, &["there is something that is not a socket; remove it, or choose another path"]),
        (&["connect", &url, "--nbd", &in_no_folder], FAILED, &["its folder does not exist; make it with mkdir -p"]),
        (
            &["connect", &url, "--nbd", &in_use],
            FAILED,
            &["cannot listen on 127.0.0.1:", "address in use; stop the program that listens there"],
        ),
        (&["discover", "iwarp://no.invalid"], FAILED, &["cannot find the address of no.invalid:4420", "correct the name"]),
    ];
    for (arguments, code, words) in cases {
        refuses(&mut godwit(arguments), *code, words);
    }
    assert_eq!(fs::read(folder.at("data")).unwrap(), b"precious");
    assert!(!Path::new(&folder.at("nbd.sock")).exists());
}

#[test]
fn what_a_target_refuses_is_told_with_what_it_has() {
    let folder = Folder::new();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let (allowed, other) = ("nqn.2026-11.org.example:allowed", "nqn.2026-11.org.example:other");
    let listen = format!("iwarp://{address}");
    let arguments = ["--export", "memory:1MiB", "--export", "memory:2MiB", "--nqn", NQN, "--host", allowed, "--listen", &listen];
    let _target = Target::start_command(&mut target(&arguments), address);
    let nbd = format!("unix:{}", folder.at("nbd.sock"));
    let connect = |nqn: &str, query: &str, host: &str| {
        godwit(&["connect", &format!("iwarp://{address}/{nqn}{query}"), "--nbd", &nbd, "--hostnqn", host])
    };
    let not_allowed: &[&str] = &["does not allow this host: add its host NQN to the subsystem's hosts: ", other];
    refuses(&mut connect(NQN, "?nsid=1", other), FAILED, not_allowed);
    refuses(&mut connect("nqn.2026-11.org.example:x", "", allowed), FAILED, &["it has no such subsystem", &format!("it offers {NQN}")]);
    refuses(&mut connect("nqn.2026-11.org.example:x", "", other), FAILED, &["it has no such subsystem", "it offers none to this host"]);
    refuses(&mut connect(NQN, "?nsid=7", allowed), FAILED, &["the subsystem has no namespace 7; it has 1, 2"]);
    refuses(&mut connect(NQN, "", allowed), FAILED, &["several namespaces (1, 2): choose one, as in ?nsid=1"]);
    // The same target serves who asks rightly.
    let socket = PathBuf::from(folder.at("nbd.sock"));
    let initiator = Initiator::start_with(&format!("iwarp://{address}/{NQN}?nsid=2"), &socket, &["--hostnqn", allowed]);
    nbdsh(&initiator.uri(), "assert h.get_size() == 2 << 20");
}

/// The status of the answer to a request for I/O queue 1 with so many entries in HSQSIZE, which counts from 0; none when it is granted.
fn ask_for_queue(address: SocketAddr, hsqsize: u16) -> Option<u16> {
    // An enhanced MPA request (CRC, revision 2) of one RDMA Read each way, around 32 bytes of NVMe/RDMA.
    let mut request = b"MPA ID Req Frame\x50\x02\x00\x24\x00\x01\x00\x01".to_vec();
    let mut private = [0; 32];
    private[2] = 1;
    private[4..6].copy_from_slice(&64_u16.to_le_bytes());
    private[6..8].copy_from_slice(&hsqsize.to_le_bytes());
    request.extend(private);
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(&request).unwrap();
    let mut reply = [0; 28];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply[..16], b"MPA ID Rep Frame");
    let is_rejected = reply[16] & 0x20 != 0;
    // After IRD and ORD: the record format and the status.
    is_rejected.then(|| u16::from_le_bytes([reply[26], reply[27]]))
}

#[test]
fn a_queue_over_the_limit_is_refused_and_the_target_says_which() {
    const INVALID_HSQSIZE: u16 = 4;
    let mut target = Target::start("memory:1MiB");
    assert_eq!(ask_for_queue(target.address, 1023), None);
    assert_eq!(ask_for_queue(target.address, 1024), Some(INVALID_HSQSIZE));
    assert_eq!(ask_for_queue(target.address, 65535), Some(INVALID_HSQSIZE));
    target.process.terminate();
    let said = target.process.output();
    assert!(said.contains("connection refused: queue size 1025 is over its limit of 1024"), "{said}");
    assert!(said.contains("connection refused: queue size 65536 is over its limit of 1024"), "{said}");
    assert!(!said.contains("queue size 1024 is over"), "{said}");
}

#[test]
fn a_socket_in_use_is_left_and_a_stale_one_replaced() {
    let folder = Folder::new();
    let target = Target::start("memory:1MiB");
    let socket = PathBuf::from(folder.at("nbd.sock"));
    let nbd = format!("unix:{}", socket.display());
    let mut first = Initiator::start(&target.url(), &socket);
    let in_use = ["another server is listening there; stop it, or choose another path"];
    refuses(&mut godwit(&["connect", &target.url(), "--nbd", &nbd]), FAILED, &in_use);
    nbdsh(&first.uri(), "h.pwrite(b'1' * 4096, 0)");
    first.process.kill();
    assert!(socket.exists(), "kill -9 leaves the file");
    let second = Initiator::start(&target.url(), &socket);
    nbdsh(&second.uri(), "assert h.pread(4096, 0) == b'1' * 4096");
    drop(second);
    fs::remove_file(&socket).unwrap();
    // A server of another kind.
    let _listener = UnixListener::bind(&socket).unwrap();
    refuses(&mut godwit(&["connect", &target.url(), "--nbd", &nbd]), FAILED, &in_use);
}

#[test]
fn a_signal_sent_twice_at_once_is_one_wish() {
    let folder = Folder::new();
    let mut target = Target::start("memory:1MiB");
    let mut initiator = Initiator::start(&target.url(), Path::new(&folder.at("nbd.sock")));
    for process in [&mut initiator.process, &mut target.process] {
        process.signal(Signal::SIGTERM);
        // The first one may have ended it already.
        let _ = kill(Pid::from_raw(i32::try_from(process.pid()).unwrap()), Signal::SIGTERM);
        let status = process.wait(Duration::from_secs(5));
        assert_eq!(status.code(), Some(0), "{}", process.output());
    }
}

#[test]
fn help_and_version_succeed() {
    for (name, examples) in [("godwit", "godwit discover iwarp://"), ("godwit-target", "godwit-target --export disk.img,size=1GiB")] {
        let help = run(&mut program(name, &["--help"]));
        for word in ["Usage:", "Examples:", examples, "2 wrong usage"] {
            assert!(help.contains(word), "`{word}` is missing in:\n{help}");
        }
        let version = run(&mut program(name, &["--version"]));
        assert_eq!(version.trim_end(), format!("{name} {}", env!("CARGO_PKG_VERSION")));
    }
    for command in ["discover", "connect", "demo"] {
        assert!(run(&mut godwit(&[command, "--help"])).contains("Example"), "{command}");
    }
    // Without a command there is the help, and no success.
    let output = godwit(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(WRONG));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Usage: godwit"));
}

#[test]
fn completions_and_manual_pages_are_what_shells_and_man_take() {
    for (name, completions, man) in [
        ("godwit", &["completions", "bash"][..], &["man"][..]),
        ("godwit", &["completions", "bash"], &["man", "connect"]),
        ("godwit-target", &["--completions", "bash"], &["--man"]),
        ("godwit-target", &["--completions", "bash"], &["--man", "reopen"]),
    ] {
        let script = run(&mut program(name, completions));
        let folder = Folder::new();
        run(Command::new("bash").args(["-c", ". \"$0\" && complete -p \"$1\""]).arg(folder.write("completions", script)).arg(name));
        let page = run(&mut program(name, man));
        for part in [".TH ", ".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS"] {
            assert!(page.contains(part), "{part} is missing in:\n{page}");
        }
    }
    // A reader may have had enough, and a full disk is told.
    for (command, code) in
        [("godwit completions zsh | head -c 1", 0), ("godwit-target --man | true", 0), ("godwit man > /dev/full", FAILED)]
    {
        let folder = binary("godwit").parent().unwrap().display().to_string();
        let output = Command::new("bash").args(["-c", &format!("set -o pipefail; PATH=\"{folder}:$PATH\"; {command}")]).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(code), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{command}");
    }
    refuses(&mut target(&["--man", "nothing"]), WRONG, &["`nothing` is not a command"]);
    refuses(&mut godwit(&["man", "nothing"]), WRONG, &["`nothing` is not a command"]);
}

/// Programs as a user without rights can run them, and a folder of that user.
struct Nobody(Folder);

impl Nobody {
    const ID: u32 = 65534;

    fn new() -> Self {
        let folder = Folder::new();
        fs::set_permissions(folder.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["godwit", "godwit-target"] {
            // The place where they were built may be closed to others.
            fs::copy(binary(name), folder.at(name)).unwrap();
        }
        fs::create_dir(folder.at("own")).unwrap();
        std::os::unix::fs::chown(folder.at("own"), Some(Self::ID), Some(Self::ID)).unwrap();
        Self(folder)
    }

    fn command(&self, launcher: &[&str], name: &str, arguments: &[&str]) -> Command {
        let id = Self::ID.to_string();
        let drop = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"];
        let words = [launcher, &drop].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(self.0.at(name)).args(arguments).env_remove("GODWIT_LOG").env("RUST_BACKTRACE", "1");
        command
    }
}

#[test]
#[ignore = "needs root, for another user and a network namespace"]
fn what_a_user_may_not_do_is_told_with_what_would_help() {
    let nobody = Nobody::new();
    let folder = &nobody.0;
    let image = folder.sized("disk.img", 1 << 20);
    fs::set_permissions(&image, fs::Permissions::from_mode(0o600)).unwrap();
    let closed = folder.write("closed.yaml", yaml(&[(NQN, MEMORY)]));
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o600)).unwrap();
    let made = format!("{},size=1MiB", folder.at("made.img"));
    let listen = ["--listen", "iwarp://127.0.0.1:0"];
    let cases: &[(&[&str], &[&str])] = &[
        (&["--export", &image], &[&image, "permission denied to user 65534; give that user access", "read_only"]),
        (&["--export", &made], &["made.img", "permission denied to user 65534"]),
    ];
    for (arguments, words) in cases {
        refuses(nobody.command(&[], "godwit-target", arguments).args(listen), FAILED, words);
    }
    let words = ["closed.yaml: Permission denied; let the daemon's user read it"];
    refuses(&mut nobody.command(&[], "godwit-target", &["--config", &closed]), WRONG, &words);
    // A network namespace of its own: elsewhere the administrator may have opened the low ports to all.
    let privileged = ["--export", "memory:1MiB", "--host", NQN, "--listen", "iwarp://0.0.0.0:80"];
    let words = ["0.0.0.0:80", "ports below 1024 need CAP_NET_BIND_SERVICE", "choose another port"];
    refuses(&mut nobody.command(&["unshare", "--net"], "godwit-target", &privileged), FAILED, &words);
    let url = format!("iwarp://127.0.0.1/{NQN}");
    let nbd = format!("unix:{}", folder.at("nbd.sock"));
    let words = ["nbd.sock: permission denied; choose a folder that this user may write to"];
    refuses(&mut nobody.command(&[], "godwit", &["connect", &url, "--nbd", &nbd]), FAILED, &words);
}

#[test]
#[ignore = "needs root, for another user"]
fn a_user_with_little_locked_memory_is_served() {
    let nobody = Nobody::new();
    let (image, socket) = (nobody.0.at("own/disk.img"), PathBuf::from(nobody.0.at("own/nbd.sock")));
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let limit = ["prlimit", "--memlock=65536:65536"];
    let (export, listen) = (format!("{image},size=64MiB"), format!("iwarp://{address}"));
    let arguments = ["--export", &export, "--listen", &listen, "--nqn", NQN, "--reactors", "4", "--log", "warn"];
    let mut target = Target::start_command(&mut nobody.command(&limit, "godwit-target", &arguments), address);
    let (url, nbd) = (target.url(), format!("unix:{}", socket.display()));
    let control = nobody.0.at("own/control.sock");
    let arguments = ["connect", &url, "--nbd", &nbd, "--reactors", "4", "--log", "warn", "--control", &control];
    let mut initiator = Initiator::start_command(&mut nobody.command(&limit, "godwit", &arguments), &socket);
    let verify =
        ["--rw=randrw", "--iodepth=32", "--numjobs=4", "--size=8m", "--offset_increment=16m", "--verify=crc32c", "--bsrange=4k-256k"];
    godwit_tests::tools::fio(&initiator.uri(), &verify);
    for process in [&mut initiator.process, &mut target.process] {
        process.terminate();
        let said = process.output();
        let warnings: Vec<_> = said.lines().filter(|line| line.contains("WARN")).collect();
        assert_eq!(warnings.len(), 1, "{said}");
        check_line(warnings[0], &["RLIMIT_MEMLOCK is 64 KiB", "LimitMEMLOCK=infinity in the systemd unit", "`ulimit -l unlimited`"]);
    }
}
