//! A listener with a bounded number of clients, each on a thread of its own, that can be stopped.

use std::io::{self, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::MAX_CLIENTS;

/// How long it is waited after no connection could be accepted: there may be no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long the answer to a request that was under way at the end may take to leave.
const LAST_ANSWER: Duration = Duration::from_millis(500);

/// What connects.
pub(crate) trait Stream: Read + io::Write + Send + Sized + 'static {
    /// Another name of the same connection.
    fn another(&self) -> io::Result<Self>;

    /// Ends it both ways.
    fn end(&self);

    /// Ends what comes from the peer.
    fn end_reading(&self);

    /// Ends what goes to the peer.
    fn end_writing(&self);

    /// How long reading may block.
    fn set_read_limit(&self, limit: Duration) -> io::Result<()>;

    /// How long writing may block.
    fn set_write_limit(&self, limit: Duration) -> io::Result<()>;
}

macro_rules! stream {
    ($stream:ty) => {
        impl Stream for $stream {
            fn another(&self) -> io::Result<Self> {
                self.try_clone()
            }

            fn end(&self) {
                let _ = self.shutdown(std::net::Shutdown::Both);
            }

            fn end_reading(&self) {
                let _ = self.shutdown(std::net::Shutdown::Read);
            }

            fn end_writing(&self) {
                let _ = self.shutdown(std::net::Shutdown::Write);
            }

            fn set_read_limit(&self, limit: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(limit))
            }

            fn set_write_limit(&self, limit: Duration) -> io::Result<()> {
                self.set_write_timeout(Some(limit))
            }
        }
    };
}

stream!(TcpStream);
stream!(UnixStream);

/// What is connected to.
pub(crate) trait Listen: AsFd + Send + 'static {
    /// What it gives.
    type Stream: Stream;

    /// The next connection, if one is there.
    fn next(&self) -> io::Result<Self::Stream>;

    /// Not to block in [`Self::next`].
    fn unblock(&self) -> io::Result<()>;
}

macro_rules! listener {
    ($listener:ty, $stream:ty) => {
        impl Listen for $listener {
            type Stream = $stream;

            fn next(&self) -> io::Result<$stream> {
                let (stream, _) = self.accept()?;
                stream.set_nonblocking(false)?;
                Ok(stream)
            }

            fn unblock(&self) -> io::Result<()> {
                self.set_nonblocking(true)
            }
        }
    };
}

listener!(TcpListener, TcpStream);
listener!(UnixListener, UnixStream);

/// What is done with a client.
pub(crate) trait Serve<S>: Send + Sync + 'static {
    /// Serves a client until one of the two has enough.
    fn serve(&self, stream: S);

    /// Lets a client go that is one too many.
    fn turn_away(&self, stream: S);
}

/// The connections of the clients there are.
struct Table<S> {
    open: Mutex<Vec<(u64, S)>>,
}

impl<S: Stream> Table<S> {
    /// Takes no more requests; who waits for an answer has a moment to get it.
    fn end(&self) {
        let for_all = |end: fn(&S)| {
            let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.iter().for_each(|(_, stream)| end(stream));
            open.is_empty()
        };
        let deadline = Instant::now() + LAST_ANSWER;
        while !for_all(S::end_reading) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        for_all(S::end);
    }
}

/// A client's place in the table, until it is dropped.
struct Place<S> {
    table: Arc<Table<S>>,
    number: u64,
}

impl<S> Drop for Place<S> {
    fn drop(&mut self) {
        let mut open = self.table.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(number, _)| *number != self.number);
    }
}

/// The thread that accepts. When this is dropped, it ends, and the connections of all clients with it.
#[derive(Debug)]
pub(crate) struct Clients {
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Clients {
    /// Accepts clients on a thread of this name.
    pub(crate) fn accept<L: Listen>(name: &str, listener: L, serve: impl Serve<L::Stream>) -> io::Result<Self> {
        listener.unblock()?;
        let (stop, stopped) = UnixStream::pair()?;
        let run = {
            let name = name.to_owned();
            move || accept(&name, &listener, &stopped, &Arc::new(serve))
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept<L: Listen>(name: &str, listener: &L, stopped: &UnixStream, serve: &Arc<impl Serve<L::Stream>>) {
    let table = Arc::new(Table { open: Mutex::new(Vec::new()) });
    let mut number = 0;
    loop {
        let mut watched = [PollFd::new(listener.as_fd(), PollFlags::POLLIN), PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
        match poll(&mut watched, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => {
                tracing::error!("{name}: cannot wait for clients: {error}");
                break;
            }
        }
        if watched[1].any() == Some(true) {
            break;
        }
        match listener.next() {
            Ok(stream) => {
                number += 1;
                admit(name, stream, number, &table, serve);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::debug!("{name}: cannot accept a client: {error}");
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
    table.end();
}

fn admit<S: Stream>(name: &str, stream: S, number: u64, table: &Arc<Table<S>>, serve: &Arc<impl Serve<S>>) {
    let Ok(another) = stream.another() else { return };
    let place = {
        let mut open = table.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MAX_CLIENTS {
            drop(open);
            tracing::debug!("{name}: more than {MAX_CLIENTS} clients at a time");
            return serve.turn_away(stream);
        }
        open.push((number, another));
        Place { table: Arc::clone(table), number }
    };
    let serve = Arc::clone(serve);
    let run = move || {
        // In this order also when a panic ends it.
        let _place = place;
        serve.serve(stream);
    };
    if let Err(error) = thread::Builder::new().name(format!("{name} {number}")).spawn(run) {
        tracing::warn!("{name}: cannot serve a client: {error}");
    }
}

/// Reads with a deadline for all of it, however small the pieces are that it comes in.
pub(crate) struct Timely<'a, S> {
    stream: &'a mut S,
    deadline: Instant,
}

impl<'a, S: Stream> Timely<'a, S> {
    /// Up to so long from now on.
    pub(crate) fn new(stream: &'a mut S, limit: Duration) -> Self {
        Self { stream, deadline: Instant::now() + limit }
    }
}

impl<S: Stream> Read for Timely<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_limit(left)?;
        self.stream.read(buffer)
    }
}
