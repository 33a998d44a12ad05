//! What the tests of the ring share: a loop that is turned until something happens, and tests that run in a process of their own.

#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use godwit_memory::{ClassLayout, Layout};
use godwit_reactor::{Event, Incoming, Listener, PollBudget, Reactor, StreamId, Token, Uring, UringConfig};

/// The token of the timer that keeps a turn from sleeping for ever.
const WATCHDOG: Token = Token(u64::MAX);

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Loop {
    pub(crate) reactor: Uring,
    pub(crate) seen: Vec<Event<Incoming>>,
}

pub(crate) fn layout() -> Layout {
    Layout::new(&[ClassLayout { buffer_bytes: 4096, count: 4096 }, ClassLayout { buffer_bytes: 1 << 20, count: 4 }]).unwrap()
}

impl Loop {
    pub(crate) fn sleeping() -> Self {
        Self::spinning(Duration::ZERO)
    }

    pub(crate) fn spinning(budget: Duration) -> Self {
        let reactor = Uring::new(&UringConfig { pool: layout(), poll: PollBudget(budget) }).unwrap();
        Self { reactor, seen: Vec::new() }
    }

    pub(crate) fn turn(&mut self, longest: Duration) {
        let watchdog = self.reactor.set_timer(self.reactor.now() + longest, WATCHDOG);
        let mut events = Vec::new();
        self.reactor.turn(&mut events).unwrap();
        self.seen.append(&mut events);
        self.reactor.cancel_timer(watchdog);
        self.seen.retain(|event| !matches!(event, Event::Timer { token: WATCHDOG }));
    }

    /// Turns until there is an event that `wanted` accepts, and takes it; others stay.
    pub(crate) fn until(&mut self, mut wanted: impl FnMut(&Event<Incoming>) -> bool) -> Event<Incoming> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(position) = self.seen.iter().position(&mut wanted) {
                return self.seen.remove(position);
            }
            assert!(Instant::now() < deadline, "the event did not come; there are {:?}", self.seen);
            self.turn(Duration::from_millis(100));
        }
    }

    /// Turns for a while.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.turn(Duration::from_millis(10));
        }
    }

    pub(crate) fn listen(&mut self, token: Token) -> SocketAddr {
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_address().unwrap();
        self.reactor.listen(listener, token).unwrap();
        address
    }

    pub(crate) fn incoming(&mut self) -> Incoming {
        match self.until(|event| matches!(event, Event::Incoming { .. })) {
            Event::Incoming { incoming, .. } => incoming,
            _ => unreachable!(),
        }
    }

    pub(crate) fn readable(&mut self, token: Token) {
        self.until(|event| matches!(event, Event::Readable { token: of } if *of == token));
    }

    /// Reads until `len` bytes are there or the stream ends.
    pub(crate) fn read(&mut self, stream: StreamId, token: Token, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut chunk = [0; 65536];
        while bytes.len() < len {
            let room = (len - bytes.len()).min(chunk.len());
            match self.reactor.receive(stream, &mut [IoSliceMut::new(&mut chunk[..room])]) {
                Ok(0) => break,
                Ok(count) => bytes.extend(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable(token),
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    pub(crate) fn write(&mut self, stream: StreamId, bytes: &[u8]) -> io::Result<usize> {
        self.reactor.send(stream, &[IoSlice::new(bytes)])
    }

    /// Two ends of a TCP connection, both in this loop.
    pub(crate) fn pair(&mut self, near: Token, far: Token) -> (StreamId, StreamId) {
        let address = self.listen(Token(99));
        let near_id = self.reactor.connect(address, near).unwrap();
        let incoming = self.incoming();
        let far_id = self.reactor.adopt(incoming, far).unwrap();
        let connected = self.until(|event| matches!(event, Event::Connected { .. }));
        assert!(matches!(connected, Event::Connected { token, result: Ok(()) } if token == near));
        (near_id, far_id)
    }
}

/// Runs `body` in a process of its own, which is this test alone; returns what it wrote to its standard error.
pub(crate) fn alone(test: &str, body: impl FnOnce()) -> String {
    const MARK: &str = "GODWIT_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        body();
        return String::new();
    }
    let output = Command::new(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]).env(MARK, "1").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}{errors}", String::from_utf8_lossy(&output.stdout));
    errors
}

pub(crate) fn is_alone() -> bool {
    std::env::var_os("GODWIT_TEST_ALONE").is_some()
}
