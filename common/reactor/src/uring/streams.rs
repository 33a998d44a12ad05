//! Streams and listeners of a ring.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::IoUring;
use slab::Slab;
use socket2::{Domain, SockAddr, Socket, Type};

use super::{Kind, push_cancel, push_poll};
use crate::{Event, ListenerId, Peer, StreamId, Token};

/// How long a closed stream may take to deliver its last bytes.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// How long a listener rests when there is no descriptor for another connection.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Streams that are tried on each turn; beyond this number a stream that ran dry goes back to the ring at once.
const MAX_HOT: usize = 8;

/// Bytes that a Unix socket is asked to hold for its reader.
const UNIX_SEND_BYTES: usize = 1 << 20;

/// Connections taken from a listener in one turn.
const ACCEPTS_PER_TURN: usize = 16;

/// A bound socket, not yet part of a reactor. Made on the control thread, so that errors show at start.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
}

impl Listener {
    /// Binds a TCP address. With port 0 the kernel chooses one.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), None)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        Ok(Self { socket })
    }

    /// Takes over a listening socket of the standard library (a Unix socket with its mode set, one passed by systemd).
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn from_socket(socket: impl Into<std::os::fd::OwnedFd>) -> io::Result<Self> {
        let socket = Socket::from(socket.into());
        socket.set_nonblocking(true)?;
        Ok(Self { socket })
    }

    /// The bound TCP address.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()?.as_socket()
    }
}

/// A connection that was accepted and not yet adopted; may be sent to another thread.
#[derive(Debug)]
pub struct Incoming {
    socket: Socket,
    peer: Peer,
}

impl Incoming {
    /// Takes a connected socket of the standard library.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn from_socket(socket: impl Into<std::os::fd::OwnedFd>) -> io::Result<Self> {
        let socket = Socket::from(socket.into());
        socket.set_nonblocking(true)?;
        let peer = socket.peer_addr().map_or(Peer::Unix, |address| peer_of(&address));
        Ok(Self { socket, peer })
    }

    /// Who connected.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

fn peer_of(address: &SockAddr) -> Peer {
    address.as_socket().map_or(Peer::Unix, Peer::Tcp)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Connecting,
    Open,
    /// Closed by its user; only there until its last bytes have arrived.
    Lingering,
}

pub(crate) struct OpenStream {
    pub(crate) socket: Socket,
    pub(crate) peer: Peer,
    token: Token,
    generation: u32,
    state: State,
    in_armed: bool,
    out_armed: bool,
}

struct OpenListener {
    socket: Socket,
    token: Token,
    armed: bool,
    /// Whether the last accept failed, for lack of descriptors most likely, so that this is said once.
    starved: bool,
}

#[derive(Default)]
pub(crate) struct Streams {
    streams: Slab<OpenStream>,
    /// By number, which is not used again.
    listeners: BTreeMap<u32, OpenListener>,
    next_listener: u32,
    next_generation: u32,
    /// Streams that ran dry and are tried again on each turn.
    hot: Vec<StreamId>,
    /// Streams to offer once: newly adopted.
    fresh: Vec<StreamId>,
}

const LISTENER_CHORE: u64 = 1 << 62;

/// The housekeeping token for a listener that rests.
pub(crate) fn listener_chore(index: u32) -> u64 {
    LISTENER_CHORE | u64::from(index)
}

impl Streams {
    pub(crate) fn open(&self, id: StreamId) -> io::Result<&OpenStream> {
        self.streams
            .get(id.index as usize)
            .filter(|stream| stream.generation == id.generation && stream.state != State::Lingering)
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn open_mut(&mut self, id: StreamId) -> io::Result<&mut OpenStream> {
        self.streams
            .get_mut(id.index as usize)
            .filter(|stream| stream.generation == id.generation && stream.state != State::Lingering)
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn insert(&mut self, socket: Socket, peer: Peer, token: Token, state: State) -> StreamId {
        self.next_generation = self.next_generation.wrapping_add(1) & super::GENERATION_MASK;
        let generation = self.next_generation;
        let stream = OpenStream { socket, peer, token, generation, state, in_armed: false, out_armed: false };
        let index = u32::try_from(self.streams.insert(stream)).expect("a process has fewer descriptors than that");
        StreamId { index, generation }
    }

    pub(crate) fn adopt(&mut self, Incoming { socket, peer }: Incoming, token: Token) -> io::Result<StreamId> {
        prepare(&socket, &peer)?;
        let id = self.insert(socket, peer, token, State::Open);
        self.fresh.push(id);
        Ok(id)
    }

    pub(crate) fn connect(&mut self, ring: &mut IoUring, address: SocketAddr, token: Token) -> io::Result<StreamId> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), None)?;
        let peer = Peer::Tcp(address);
        prepare(&socket, &peer)?;
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let id = self.insert(socket, peer, token, State::Connecting);
        self.ran_full(ring, id)?;
        Ok(id)
    }

    pub(crate) fn close(&mut self, ring: &mut IoUring, id: StreamId) {
        if self.open(id).is_ok() {
            self.remove(ring, id.index);
        }
    }

    /// Closes everything, at once.
    pub(crate) fn close_all(&mut self, ring: &mut IoUring) {
        while let Some((&index, _)) = self.listeners.first_key_value() {
            self.close_listener(ring, ListenerId(index));
        }
        let open: Vec<_> = self.streams.iter().filter_map(|(index, _)| u32::try_from(index).ok()).collect();
        for index in open {
            self.remove(ring, index);
        }
    }

    /// Closes a socket. The ring holds its own reference to it while a poll is armed, so that is cancelled, and the shutdown makes sure.
    fn remove(&mut self, ring: &mut IoUring, index: u32) {
        let Some(stream) = self.streams.try_remove(index as usize) else { return };
        for (armed, kind) in [(stream.in_armed, Kind::StreamIn), (stream.out_armed, Kind::StreamOut)] {
            if armed && push_cancel(ring, kind.user_data(stream.generation, index)).is_err() {
                let _ = stream.socket.shutdown(std::net::Shutdown::Both);
            }
        }
    }

    /// Starts a graceful close; the chore that ends it, if there is something to wait for.
    pub(crate) fn linger(&mut self, ring: &mut IoUring, id: StreamId) -> Option<u64> {
        let stream = self.open_mut(id).ok()?;
        let connected = stream.state == State::Open && stream.socket.shutdown(std::net::Shutdown::Write).is_ok();
        stream.state = State::Lingering;
        if !connected || discard_input(&stream.socket) {
            self.remove(ring, id.index);
            return None;
        }
        let user_data = Kind::StreamIn.user_data(id.generation, id.index);
        if !stream.in_armed && push_poll(ring, stream.socket.as_raw_fd(), libc::POLLIN, user_data).is_ok() {
            stream.in_armed = true;
        }
        Some((u64::from(id.generation) << 32) | u64::from(id.index))
    }

    #[expect(clippy::cast_possible_truncation, reason = "the chore was put together from two numbers of 32 bits")]
    pub(crate) fn housekeep(&mut self, ring: &mut IoUring, Token(chore): Token) -> io::Result<()> {
        let index = chore as u32;
        if chore & LISTENER_CHORE != 0 {
            return self.arm_listener(ring, index);
        }
        let generation = (chore >> 32) as u32;
        let due =
            self.streams.get(index as usize).is_some_and(|stream| stream.generation == generation && stream.state == State::Lingering);
        if due {
            self.remove(ring, index);
        }
        Ok(())
    }

    /// A read would have blocked: try again on the next turns, or have the ring say when.
    pub(crate) fn ran_dry(&mut self, ring: &mut IoUring, id: StreamId, spinning: bool) -> io::Result<()> {
        let hot = spinning && self.hot.len() < MAX_HOT;
        let stream = self.open_mut(id)?;
        if stream.in_armed {
            return Ok(());
        }
        if !hot {
            stream.in_armed = true;
            return push_poll(
                ring,
                stream.socket.as_raw_fd(),
                libc::POLLIN | libc::POLLRDHUP,
                Kind::StreamIn.user_data(id.generation, id.index),
            );
        }
        if !self.hot.contains(&id) {
            self.hot.push(id);
        }
        Ok(())
    }

    /// A write would have blocked: have the ring say when it is worth while.
    pub(crate) fn ran_full(&mut self, ring: &mut IoUring, id: StreamId) -> io::Result<()> {
        let stream = self.open_mut(id)?;
        if stream.out_armed {
            return Ok(());
        }
        stream.out_armed = true;
        push_poll(ring, stream.socket.as_raw_fd(), libc::POLLOUT, Kind::StreamOut.user_data(id.generation, id.index))
    }

    /// Before sleep: the ring watches what has been tried in vain.
    pub(crate) fn arm_hot(&mut self, ring: &mut IoUring) -> io::Result<()> {
        while let Some(id) = self.hot.pop() {
            match self.ran_dry(ring, id, false) {
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Whether a stream wants to be offered that was not tried before.
    pub(crate) fn has_ready(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Offers the streams that are worth a try.
    pub(crate) fn offer_ready(&mut self, events: &mut Vec<Event<Incoming>>) {
        let mut tried = std::mem::take(&mut self.hot);
        let mut fresh = std::mem::take(&mut self.fresh);
        for id in tried.drain(..).chain(fresh.drain(..)) {
            if let Ok(stream) = self.open(id) {
                events.push(Event::Readable { token: stream.token });
            }
        }
        self.hot = tried;
        self.fresh = fresh;
    }

    fn armed(&mut self, generation: u32, index: u32) -> Option<&mut OpenStream> {
        self.streams.get_mut(index as usize).filter(|stream| stream.generation == generation)
    }

    pub(crate) fn on_readable(
        &mut self,
        ring: &mut IoUring,
        generation: u32,
        index: u32,
        events: &mut Vec<Event<Incoming>>,
    ) -> io::Result<()> {
        let Some(stream) = self.armed(generation, index) else { return Ok(()) };
        stream.in_armed = false;
        if stream.state != State::Lingering {
            events.push(Event::Readable { token: stream.token });
        } else if discard_input(&stream.socket) {
            self.remove(ring, index);
        } else {
            // What comes in is read and forgotten. Without an end of stream, the chore closes the socket when the time is up.
            stream.in_armed = true;
            return push_poll(ring, stream.socket.as_raw_fd(), libc::POLLIN, Kind::StreamIn.user_data(generation, index));
        }
        Ok(())
    }

    pub(crate) fn on_writable(&mut self, generation: u32, index: u32, events: &mut Vec<Event<Incoming>>) {
        let Some(stream) = self.armed(generation, index) else { return };
        stream.out_armed = false;
        let token = stream.token;
        match stream.state {
            State::Open => events.push(Event::Writable { token }),
            State::Lingering => {}
            State::Connecting => match stream.socket.take_error() {
                Ok(None) => {
                    stream.state = State::Open;
                    events.push(Event::Connected { token, result: Ok(()) });
                }
                Ok(Some(error)) | Err(error) => {
                    self.streams.remove(index as usize);
                    events.push(Event::Connected { token, result: Err(error) });
                }
            },
        }
    }

    pub(crate) fn listen(&mut self, ring: &mut IoUring, Listener { socket }: Listener, token: Token) -> io::Result<ListenerId> {
        let listener = OpenListener { socket, token, armed: false, starved: false };
        let index = self.next_listener;
        self.next_listener += 1;
        self.listeners.insert(index, listener);
        self.arm_listener(ring, index)?;
        Ok(ListenerId(index))
    }

    pub(crate) fn close_listener(&mut self, ring: &mut IoUring, ListenerId(index): ListenerId) {
        if let Some(listener) = self.listeners.remove(&index) {
            if listener.armed {
                let _ = push_cancel(ring, Kind::Listener.user_data(0, index));
            }
            // Refuses what waits, although the ring may hold the socket for another moment.
            let _ = listener.socket.shutdown(std::net::Shutdown::Both);
        }
    }

    pub(crate) fn arm_listener(&mut self, ring: &mut IoUring, index: u32) -> io::Result<()> {
        let Some(listener) = self.listeners.get_mut(&index) else { return Ok(()) };
        if listener.armed {
            return Ok(());
        }
        listener.armed = true;
        push_poll(ring, listener.socket.as_raw_fd(), libc::POLLIN, Kind::Listener.user_data(0, index))
    }

    /// Accepts what waits. False: that cannot be done now (there is no descriptor for it), try again later.
    pub(crate) fn on_acceptable(&mut self, index: u32, events: &mut Vec<Event<Incoming>>) -> bool {
        let Some(listener) = self.listeners.get_mut(&index) else { return true };
        listener.armed = false;
        for _ in 0..ACCEPTS_PER_TURN {
            match listener.socket.accept4_nonblocking() {
                Ok((socket, address)) => {
                    listener.starved = false;
                    let incoming = Incoming { socket, peer: peer_of(&address) };
                    events.push(Event::Incoming { token: listener.token, incoming });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // The connection went away again, or the network did: not the listener's fault.
                Err(error) if is_fault_of_connection(&error) => {}
                Err(error) => {
                    if !std::mem::replace(&mut listener.starved, true) {
                        tracing::warn!(
                            "cannot accept a connection: {error}; it waits (LimitNOFILE= in the systemd unit, or `ulimit -n`, is the limit of open files)"
                        );
                    }
                    return false;
                }
            }
        }
        true
    }
}

trait AcceptNonblocking {
    fn accept4_nonblocking(&self) -> io::Result<(Socket, SockAddr)>;
}

impl AcceptNonblocking for Socket {
    fn accept4_nonblocking(&self) -> io::Result<(Self, SockAddr)> {
        let (socket, address) = self.accept()?;
        socket.set_nonblocking(true)?;
        Ok((socket, address))
    }
}

/// Whether accept(2) reports what became of one connection: the next one may be fine.
fn is_fault_of_connection(error: &io::Error) -> bool {
    let faults = [
        libc::EINTR,
        libc::ECONNABORTED,
        libc::ECONNRESET,
        libc::EPROTO,
        libc::EPERM,
        libc::ENETDOWN,
        libc::ENOPROTOOPT,
        libc::EHOSTDOWN,
        libc::ENONET,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
    ];
    error.raw_os_error().is_some_and(|errno| faults.contains(&errno))
}

fn prepare(socket: &Socket, peer: &Peer) -> io::Result<()> {
    match peer {
        Peer::Tcp(address) => {
            socket.set_tcp_nodelay(true)?;
            if address.ip().is_loopback() {
                // Loopback has no congestion: an algorithm that paces (bbr) only holds bytes back. Where neither may be chosen, the default has to do.
                let _ = socket.set_tcp_congestion(b"cubic").or_else(|_| socket.set_tcp_congestion(b"reno"));
            }
        }
        // A Unix socket holds what one large reply needs, or less where the system allows less.
        Peer::Unix => socket.set_send_buffer_size(UNIX_SEND_BYTES)?,
    }
    Ok(())
}

/// Reads and forgets what is there; true at the end of the stream.
fn discard_input(mut socket: &Socket) -> bool {
    let mut scratch = [0; 4096];
    // Bounded: a peer that keeps sending is cut off when the time is up.
    for _ in 0..64 {
        match io::Read::read(&mut socket, &mut scratch) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
    false
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} streams ({} hot), {} listeners", self.streams.len(), self.hot.len(), self.listeners.len())
    }
}
