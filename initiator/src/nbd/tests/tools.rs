//! The clients that people use, on a real socket.

use std::os::unix::net::UnixListener;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use godwit_memory::Layout;
use godwit_rdma::Fabric;
use godwit_reactor::{Event, Listener, PollBudget, Reactor, Token, Uring, UringConfig};

use super::queue::{Ends, GEOMETRY, MemoryQueue};
use crate::nbd::{Front, Limits, Volume};

/// A server on a thread of its own, which sleeps when there is nothing to do.
struct Server {
    socket: std::path::PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<bool>>,
    waker: godwit_reactor::Waker,
}

impl Server {
    fn start(name: &str, ends: Ends) -> Self {
        let socket = std::env::temp_dir().join(format!("godwit-nbd-{name}-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let listener = Listener::from_socket(UnixListener::bind(&socket).unwrap()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = std::sync::mpsc::channel();
        let stopping = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut reactor = Uring::new(&UringConfig { pool: Layout::of_total(0), poll: PollBudget(Duration::from_micros(50)) }).unwrap();
            sender.send(reactor.waker()).unwrap();
            serve(&mut reactor, listener, ends, &stopping)
        });
        Self { socket, stop, thread: Some(thread), waker: receiver.recv().unwrap() }
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// Ends it; all must be at rest.
    fn stop(mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        assert!(self.thread.take().unwrap().join().unwrap(), "all buffers are back");
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn serve(reactor: &mut Uring, listener: Listener, ends: Ends, stop: &AtomicBool) -> bool {
    let volume = Volume::new("vol0", "a volume in memory", &GEOMETRY, Limits::default()).unwrap();
    let mut front = Front::new(reactor, 3, volume);
    let (mut queue, mut fabric, mut events) = (MemoryQueue::new(GEOMETRY), Fabric::new(), Vec::new());
    queue.ends = ends;
    let listener = reactor.listen(listener, Token(1)).unwrap();
    while !(stop.load(Ordering::Acquire) && front.is_idle()) {
        reactor.turn(&mut events).unwrap();
        for event in events.drain(..) {
            match event {
                Event::Incoming { incoming, .. } => front.adopt(reactor, incoming),
                Event::Woken => {
                    reactor.close_listener(listener);
                    front.shutdown();
                }
                event => front.on_event(reactor, event),
            }
        }
        queue.turn();
        front.pump(reactor, &mut fabric, &mut queue);
        if !queue.pending.is_empty() {
            // Operations that end in some later turn: there must be one.
            reactor.set_timer(reactor.now(), Token(2));
        }
    }
    reactor.pool().in_use() == 0
}

fn run(program: &str, arguments: &[&str]) -> Output {
    // The system's Python has the nbd module, whatever other one stands before it in the path.
    let output = Command::new(program).args(arguments).env("PATH", "/usr/bin:/bin").output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

#[test]
#[ignore = "needs nbdinfo, of libnbd"]
fn nbdinfo_sees_what_is_offered() {
    let server = Server::start("info", Ends::AtOnce);
    let output = run("nbdinfo", &[&server.uri()]);
    let info = String::from_utf8_lossy(&output.stdout);
    for line in [
        "export-size: 67108864",
        "description: a volume in memory",
        "base:allocation",
        "can_fast_zero: true",
        "can_multi_conn: true",
        "can_fua: true",
        "can_df: true",
        "is_read_only: false",
        "block_size_minimum: 512",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(info.contains(line), "{line}: {info}");
    }
    let output = run("nbdinfo", &["--list", &server.uri()]);
    let list = String::from_utf8_lossy(&output.stdout);
    assert!(list.contains("export=\"vol0\""), "{list}");
    let output = run("nbdinfo", &["--map", &server.uri()]);
    let map = String::from_utf8_lossy(&output.stdout);
    assert!(map.split_whitespace().eq(["0", "67108864", "0", "data"]), "{map}");
    server.stop();
}

#[test]
#[ignore = "needs nbdsh, of libnbd"]
fn nbdsh_does_everything_that_a_client_can() {
    const SCRIPT: &str = r#"

def connect(structured):
    h = nbd.NBD()
    h.set_request_structured_replies(structured)
    h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    h.connect_uri(URI)
    return h
def fails(number, what, *arguments):
    try:
        what(*arguments)
    except nbd.Error as error:
        assert error.errno == number, error
        return
    raise AssertionError("no error")
for structured in (True, False):
    h = connect(structured)
    h.set_strict_mode(0)
    large = bytes((i * 7) % 256 for i in range(4096)) * 8192
    h.pwrite(large, 512, nbd.CMD_FLAG_FUA)
    assert h.pread(len(large), 512) == large
    assert h.pread(1024, 512) == large[:1024]
    if structured:
        assert h.pread(8 << 20, 4096, nbd.CMD_FLAG_DF) == large[3584:3584 + (8 << 20)]
        extents = []
        h.block_status(1 << 20, 0, lambda context, offset, entries, error: extents.append((context, offset, entries)))
        assert extents == [("base:allocation", 0, [1 << 20, 0])], extents
    h.zero(1 << 20, 0, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
    h.zero(1 << 20, 1 << 20, nbd.CMD_FLAG_FAST_ZERO)
    assert h.pread(2 << 20, 0) == bytes(2 << 20)
    h.trim(32 << 20, 0, nbd.CMD_FLAG_FUA)
    h.cache(1 << 20, 0)
    h.flush()
    fails("EINVAL", h.pread, 1, 0)
    fails("EINVAL", h.pread, 512, 64 << 20)
    fails("ENOSPC", h.pwrite, bytes(512), 64 << 20)
    fails("EINVAL", h.pwrite, bytes(100), 3)
    other = connect(not structured)
    other.pwrite(b"x" * 512, 0)
    h.flush()
    assert h.pread(512, 0) == b"x" * 512
    cookies = [h.aio_pread(nbd.Buffer(65536), i * 65536) for i in range(300)]
    for cookie in cookies:
        while not h.aio_command_completed(cookie):
            h.poll(-1)
    h.shutdown()
    other.shutdown()
"#;
    for ends in [Ends::AtOnce, Ends::AnyOrder(1)] {
        let server = Server::start("sh", ends);
        run("nbdsh", &["-c", &format!("URI = '{}'", server.uri()), "-c", SCRIPT]);
        server.stop();
    }
}

#[test]
#[ignore = "needs nbdcopy, of libnbd, and fio with its nbd engine"]
fn nbdcopy_and_fio_find_what_they_wrote() {
    let server = Server::start("copy", Ends::AnyOrder(2));
    let files = ["in", "out"].map(|name| std::env::temp_dir().join(format!("godwit-nbd-{name}-{}", std::process::id())));
    let data: Vec<u8> = (0..64_u32 << 20).map(|at| (at / 512 * 13 + at % 97) as u8).collect();
    std::fs::write(&files[0], &data).unwrap();
    let [from, to] = files.each_ref().map(|file| file.to_str().unwrap());
    run("nbdcopy", &["--flush", from, &server.uri()]);
    run("nbdcopy", &[&server.uri(), to]);
    assert!(std::fs::read(&files[1]).unwrap() == data);
    let uri = format!("--uri={}", server.uri());
    for (pattern, size) in [("randwrite", "4k"), ("write", "1280k"), ("randrw", "64k")] {
        let (pattern, size) = (format!("--rw={pattern}"), format!("--bs={size}"));
        let fixed = [
            "--name=x",
            "--ioengine=nbd",
            "--size=32M",
            "--iodepth=32",
            "--verify=crc32c",
            "--fsync=64",
            "--verify_fatal=1",
            "--verify_state_save=0",
        ];
        run("fio", &[&fixed[..], &[&uri, &pattern, &size]].concat());
    }
    files.iter().for_each(|file| std::fs::remove_file(file).unwrap());
    server.stop();
}
