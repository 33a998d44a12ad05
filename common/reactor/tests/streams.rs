//! Streams, listeners, timers and the waker of the ring.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use std::io::{self, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use godwit_reactor::{Event, Listener, Peer, PollBudget, Reactor, Token, Uring, UringConfig};
use nix::sys::resource::{Resource, UsageWho, getrusage, setrlimit};
use support::{Loop, alone, layout};

const NEAR: Token = Token(1);
const FAR: Token = Token(2);

fn each_budget(test: impl Fn(&mut Loop)) {
    for budget in [Duration::ZERO, Duration::from_millis(2)] {
        test(&mut Loop::spinning(budget));
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 7 + i / 251) % 251).unwrap()).collect()
}

#[test]
fn connecting_to_nobody_is_refused_and_leaves_no_stream() {
    each_budget(|it| {
        let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let stream = it.reactor.connect(unused, NEAR).unwrap();
        let Event::Connected { result, .. } = it.until(|event| matches!(event, Event::Connected { .. })) else { unreachable!() };
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(it.write(stream, b"x").unwrap_err().kind(), io::ErrorKind::NotConnected);
    });
}

#[test]
fn both_ends_know_each_other() {
    let it = &mut Loop::sleeping();
    let (near, far) = it.pair(NEAR, FAR);
    let address = it.reactor.local_address(near).unwrap();
    assert_eq!(it.reactor.peer(far), Some(Peer::Tcp(address)));
    assert!(it.reactor.max_segment_bytes(near).unwrap() > 500);
}

#[test]
fn the_end_of_a_stream_is_known_before_the_bytes_in_front_of_it_are_received() {
    for is_reset in [false, true] {
        let it = &mut Loop::sleeping();
        let (near, far) = it.pair(NEAR, FAR);
        it.write(near, &pattern(5000)).unwrap();
        it.pass(Duration::from_millis(10));
        assert!(!it.reactor.has_ended(far), "it goes on");
        if is_reset {
            // Who closes with something unread resets.
            it.write(far, &pattern(1)).unwrap();
            it.reactor.close(near);
        } else {
            it.reactor.shutdown_send(near);
        }
        it.pass(Duration::from_millis(20));
        assert!(it.reactor.has_ended(far), "the bytes are not received");
        it.reactor.close(far);
        assert!(it.reactor.has_ended(far));
    }
}

#[test]
fn what_is_sent_arrives_in_order_however_full_the_stream_gets() {
    each_budget(|it| {
        let (near, far) = it.pair(NEAR, FAR);
        let data = pattern(32 << 20);
        let (mut sent, mut full) = (0, 0);
        let mut got = Vec::new();
        while got.len() < data.len() {
            while sent < data.len() {
                match it.write(near, &data[sent..]) {
                    Ok(count) => sent += count,
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        full += 1;
                        break;
                    }
                }
            }
            got.extend(it.read(far, FAR, (sent - got.len()).min(1 << 20)).unwrap());
            if sent < data.len() && got.len() == sent {
                it.until(|event| matches!(event, Event::Writable { token: NEAR }));
            }
        }
        assert!(got == data);
        assert!(full > 0, "32 MiB fit the socket: the test does not test");
    });
}

#[test]
fn a_receive_that_was_not_filled_is_followed_by_readable_without_another_try() {
    each_budget(|it| {
        let (near, far) = it.pair(NEAR, FAR);
        for round in 0..3 {
            it.write(near, b"some").unwrap();
            it.readable(FAR);
            let mut chunk = [0; 64];
            let count = loop {
                match it.reactor.receive(far, &mut [IoSliceMut::new(&mut chunk)]) {
                    Ok(count) => break count,
                    Err(_) => it.readable(FAR),
                }
            };
            assert_eq!(count, 4, "round {round}");
            it.seen.clear();
        }
        it.reactor.shutdown_send(near);
        it.readable(FAR);
        assert_eq!(it.read(far, FAR, 1).unwrap(), b"");
    });
}

#[test]
fn the_end_of_one_direction_leaves_the_other_open() {
    each_budget(|it| {
        let (near, far) = it.pair(NEAR, FAR);
        it.write(near, b"last words").unwrap();
        it.reactor.shutdown_send(near);
        assert_eq!(it.read(far, FAR, 100).unwrap(), b"last words");
        it.write(far, b"answer").unwrap();
        assert_eq!(it.read(near, NEAR, 6).unwrap(), b"answer");
        assert_eq!(it.write(near, b"more").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn closing_over_unread_data_resets_the_peer() {
    each_budget(|it| {
        let (near, far) = it.pair(NEAR, FAR);
        it.write(near, b"never read").unwrap();
        it.readable(FAR);
        it.reactor.close(far);
        assert_eq!(it.read(near, NEAR, 1).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    });
}

/// A stream of the loop whose other end is a plain blocking socket with unread data on the way to the loop.
fn with_plain_peer(it: &mut Loop) -> (godwit_reactor::StreamId, TcpStream) {
    let address = it.listen(Token(99));
    let mut peer = TcpStream::connect(address).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let incoming = it.incoming();
    let stream = it.reactor.adopt(incoming, FAR).unwrap();
    peer.write_all(b"nobody reads this").unwrap();
    it.readable(FAR);
    (stream, peer)
}

#[test]
fn a_graceful_close_delivers_the_last_bytes_and_ends_with_the_peer() {
    each_budget(|it| {
        let (stream, mut peer) = with_plain_peer(it);
        it.write(stream, b"the last bytes").unwrap();
        it.reactor.close_gracefully(stream);
        assert_eq!(it.write(stream, b"x").unwrap_err().kind(), io::ErrorKind::NotConnected);
        it.seen.clear();
        peer.write_all(b"still talking").unwrap();
        it.pass(Duration::from_millis(50));
        let mut got = Vec::new();
        peer.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"the last bytes");
        peer.write_all(b"and more").unwrap();
        it.pass(Duration::from_millis(50));
        let closed = Instant::now();
        drop(peer);
        while !format!("{:?}", it.reactor).contains("streams: 0 streams") {
            it.turn(Duration::from_millis(10));
            assert!(closed.elapsed() < Duration::from_millis(500), "{:?}", it.reactor);
        }
        assert!(it.seen.iter().all(|event| !matches!(event, Event::Readable { .. })), "{:?}", it.seen);
    });
}

#[test]
fn a_graceful_close_does_not_wait_for_ever() {
    let it = &mut Loop::sleeping();
    let (stream, mut peer) = with_plain_peer(it);
    it.reactor.close_gracefully(stream);
    it.pass(Duration::from_millis(1300));
    assert!(format!("{:?}", it.reactor).contains("streams: 0 streams"), "{:?}", it.reactor);
    assert_eq!(peer.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn a_closed_stream_is_not_connected_even_when_its_place_is_taken() {
    let it = &mut Loop::sleeping();
    let (near, far) = it.pair(NEAR, FAR);
    it.reactor.close(near);
    it.reactor.close(far);
    let (again, _) = it.pair(Token(11), Token(12));
    assert_ne!(near, again);
    for stale in [near, far] {
        assert_eq!(it.write(stale, b"x").unwrap_err().kind(), io::ErrorKind::NotConnected);
        let received = it.reactor.receive(stale, &mut [IoSliceMut::new(&mut [0; 4])]);
        assert_eq!(received.unwrap_err().kind(), io::ErrorKind::NotConnected);
        assert_eq!(it.reactor.peer(stale), None);
        it.reactor.shutdown_send(stale);
        it.reactor.close(stale);
        it.reactor.close_gracefully(stale);
    }
    it.write(again, b"unharmed").unwrap();
    assert_eq!(it.until(|event| matches!(event, Event::Readable { token: Token(12) })).token(), Some(Token(12)));
}

#[test]
fn no_stream_is_forgotten_however_many_ran_dry() {
    each_budget(|it| {
        let pairs: Vec<_> = (0..40_u64).map(|i| (it.pair(Token(100 + i), Token(200 + i)), Token(200 + i))).collect();
        for ((_, far), token) in &pairs {
            it.readable(*token);
            let dry = it.reactor.receive(*far, &mut [IoSliceMut::new(&mut [0; 4])]);
            assert_eq!(dry.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
        for round in 0..3_u8 {
            for ((near, _), _) in &pairs {
                it.write(*near, &[round; 4]).unwrap();
            }
            for ((_, far), token) in &pairs {
                assert_eq!(it.read(*far, *token, 4).unwrap(), [round; 4]);
            }
            it.seen.clear();
        }
    });
}

#[test]
fn a_unix_socket_is_a_stream_like_any_other() {
    let it = &mut Loop::sleeping();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = Listener::from_socket(UnixListener::bind(&path).unwrap()).unwrap();
    it.reactor.listen(listener, Token(99)).unwrap();
    let mut peer = UnixStream::connect(&path).unwrap();
    let incoming = it.incoming();
    assert_eq!(incoming.peer(), &Peer::Unix);
    let stream = it.reactor.adopt(incoming, FAR).unwrap();
    peer.write_all(b"hello").unwrap();
    assert_eq!(it.read(stream, FAR, 5).unwrap(), b"hello");
    it.write(stream, b"there").unwrap();
    let mut got = [0; 5];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"there");
}

#[test]
fn a_closed_listener_refuses_and_its_port_is_free() {
    let it = &mut Loop::sleeping();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_address().unwrap();
    let id = it.reactor.listen(listener, Token(99)).unwrap();
    it.pass(Duration::from_millis(20));
    it.reactor.close_listener(id);
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    it.pass(Duration::from_millis(20));
    let again = it.reactor.listen(Listener::tcp(address).unwrap(), Token(98)).unwrap();
    it.reactor.close_listener(id);
    let _peer = TcpStream::connect(address).unwrap();
    it.until(|event| matches!(event, Event::Incoming { token: Token(98), .. }));
    it.reactor.close_listener(again);
}

#[test]
fn a_reactor_that_is_dropped_frees_its_ports_and_ends_its_streams_at_once() {
    for _ in 0..20 {
        let mut it = Loop::sleeping();
        let address = it.listen(Token(99));
        let mut peer = TcpStream::connect(address).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let incoming = it.incoming();
        let stream = it.reactor.adopt(incoming, FAR).unwrap();
        it.readable(FAR);
        it.reactor.receive(stream, &mut [IoSliceMut::new(&mut [0; 4])]).unwrap_err();
        it.pass(Duration::from_millis(5));
        drop(it);
        Listener::tcp(address).unwrap();
        assert_eq!(peer.read(&mut [0; 4]).unwrap(), 0);
    }
}

#[test]
fn without_descriptors_a_connection_waits_and_nothing_else_does() {
    alone("without_descriptors_a_connection_waits_and_nothing_else_does", || {
        let it = &mut Loop::sleeping();
        let (near, far) = it.pair(NEAR, FAR);
        let address = it.listen(Token(98));
        it.pass(Duration::from_millis(20));
        // The peer's descriptor is the last one.
        let peer = TcpStream::connect(("127.0.0.1", 1));
        assert!(peer.is_err());
        let mut peer = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let highest = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&peer)).unwrap();
        let held: Vec<_> =
            (0..=highest).filter_map(|_| std::fs::File::open("/dev/null").ok()).take(usize::try_from(highest).unwrap()).collect();
        let next = u64::try_from(held.iter().map(std::os::fd::AsRawFd::as_raw_fd).max().unwrap()).unwrap().max(highest) + 1;
        setrlimit(Resource::RLIMIT_NOFILE, next, next).unwrap();
        peer.connect(&address.into()).unwrap();
        peer.write_all(b"let me in").unwrap();
        let cpu = cpu_time();
        let mut turns = 0;
        let end = Instant::now() + Duration::from_millis(500);
        while Instant::now() < end {
            it.turn(Duration::from_secs(1));
            turns += 1;
        }
        assert!(it.seen.iter().all(|event| !matches!(event, Event::Incoming { .. })), "{:?}", it.seen);
        assert!(turns < 50, "{turns} turns in half a second");
        assert!(cpu_time() - cpu < Duration::from_millis(50));
        it.write(near, b"others go on").unwrap();
        assert_eq!(it.read(far, FAR, 12).unwrap(), b"others go on");
        drop(held);
        let incoming = it.incoming();
        let stream = it.reactor.adopt(incoming, Token(7)).unwrap();
        assert_eq!(it.read(stream, Token(7), 9).unwrap(), b"let me in");
    });
}

fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let micros = |time: nix::sys::time::TimeVal| u64::try_from(time.tv_sec() * 1_000_000 + time.tv_usec()).unwrap();
    Duration::from_micros(micros(usage.user_time()) + micros(usage.system_time()))
}

#[test]
fn idle_streams_cost_no_processor_time() {
    each_budget(|it| {
        let pairs: Vec<_> = (0..12_u64).map(|i| it.pair(Token(100 + i), Token(200 + i))).collect();
        for (near, far) in &pairs {
            it.write(*near, b"x").unwrap();
            while it.reactor.receive(*far, &mut [IoSliceMut::new(&mut [0; 4])]).is_err() {
                it.turn(Duration::from_millis(10));
            }
        }
        it.pass(Duration::from_millis(20));
        let before = cpu_time();
        let mut turns = 0;
        let end = Instant::now() + Duration::from_secs(1);
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            it.turn(left);
            turns += 1;
        }
        let used = cpu_time() - before;
        assert!(used < Duration::from_millis(5), "{used:?} in {turns} turns");
    });
}

#[test]
fn another_thread_wakes_a_sleeping_reactor() {
    let mut reactor = Uring::new(&UringConfig { pool: layout(), poll: PollBudget(Duration::ZERO) }).unwrap();
    for _ in 0..3 {
        let waker = reactor.waker();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            waker.wake();
            waker.wake();
        });
        let mut events = Vec::new();
        let start = Instant::now();
        // No timer is set: nothing but the waker ends this.
        while !events.iter().any(|event| matches!(event, Event::Woken)) {
            reactor.turn(&mut events).unwrap();
        }
        assert!(start.elapsed() < Duration::from_secs(5));
        thread.join().unwrap();
    }
}

#[test]
fn timers_go_off_in_order_and_not_early() {
    each_budget(|it| {
        let start = Instant::now();
        let now = it.reactor.now();
        it.reactor.set_timer(now + Duration::from_millis(40), Token(2));
        it.reactor.set_timer(now + Duration::from_millis(20), Token(1));
        let cancelled = it.reactor.set_timer(now + Duration::from_millis(30), Token(3));
        it.reactor.cancel_timer(cancelled);
        let Event::Timer { token } = it.until(|event| matches!(event, Event::Timer { .. })) else { unreachable!() };
        assert_eq!(token, Token(1));
        let Event::Timer { token } = it.until(|event| matches!(event, Event::Timer { .. })) else { unreachable!() };
        assert_eq!(token, Token(2));
        assert!(start.elapsed() >= Duration::from_millis(40));
        assert!(start.elapsed() < Duration::from_secs(2));
    });
}
