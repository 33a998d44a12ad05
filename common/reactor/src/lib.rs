//! One event loop per thread: streams, files and timers behind one trait, with an io_uring implementation and a simulator.
//!
//! A protocol engine is written once against [`Reactor`] and runs on [`Uring`] in the daemons and on the simulator in tests, where network,
//! clock and disk come from a seed.
//!
//! * Streams are read and written without blocking, by plain calls that copy: the caller keeps its memory. [`Event::Readable`] says that a try is
//!   worth while; a caller reads until a call does not fill what it was given, or fails with [`WouldBlock`](std::io::ErrorKind::WouldBlock).
//! * File operations are asynchronous: [`Reactor::submit`] moves the buffer into the reactor, [`Event::File`] moves it out.
//! * Everything carries the [`Token`] that the caller chose.

mod file;
pub mod sim;
mod time;
mod timers;
mod uring;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use godwit_memory::{MemoryDisk, Pool};

pub use file::{AllocateMode, FileDone, FileId, FileOp};
pub use time::Time;
pub use uring::{BackingFile, Incoming, Listener, PollBudget, SetupError, Uring, UringConfig, Waker};

/// The caller's name for a stream, a listener, an operation or a timer; returned with each event about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// A stream of one reactor. Ids are not reused soon: a call with the id of a closed stream fails with
/// [`NotConnected`](io::ErrorKind::NotConnected).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A listener of one reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub(crate) u32);

/// A timer of one reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId(pub(crate) Time, pub(crate) u64);

/// A watched descriptor of one reactor. Ids are not reused soon: a call with the id of a watch that has ended has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Who is at the other end of a stream, for logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP peer.
    Tcp(SocketAddr),
    /// A process on this machine, through a Unix socket.
    Unix,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix => f.write_str("unix socket"),
        }
    }
}

/// Something that happened. `I` is [`Reactor::Incoming`].
#[derive(Debug)]
pub enum Event<I> {
    /// A listener accepted a connection; any reactor of the same kind may adopt it.
    Incoming {
        /// The listener's token.
        token: Token,
        /// The connection.
        incoming: I,
    },
    /// [`Reactor::connect`] ended.
    Connected {
        /// The stream's token.
        token: Token,
        /// On an error the stream is closed already.
        result: io::Result<()>,
    },
    /// Reading from the stream or the watched descriptor may be worth while (data, end of stream, or an error). May be spurious.
    Readable {
        /// The stream's or the watch's token.
        token: Token,
    },
    /// Writing to the stream, which last would have blocked, may be worth while. May be spurious.
    Writable {
        /// The stream's token.
        token: Token,
    },
    /// A file operation ended.
    File {
        /// The operation's token.
        token: Token,
        /// Its result, and its buffer.
        done: FileDone,
    },
    /// A timer is due.
    Timer {
        /// The timer's token.
        token: Token,
    },
    /// Another thread used the [`Waker`]. May be spurious.
    Woken,
}

impl<I> Event<I> {
    /// Whom it is for, by the token that was chosen; [`Woken`](Self::Woken) has none.
    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Incoming { token, .. }
            | Self::Connected { token, .. }
            | Self::Readable { token }
            | Self::Writable { token }
            | Self::File { token, .. }
            | Self::Timer { token } => Some(*token),
            Self::Woken => None,
        }
    }
}

/// Streams, files and timers of one thread.
pub trait Reactor {
    /// A connection that was accepted and not yet adopted.
    type Incoming: fmt::Debug;
    /// Something bound, ready to listen.
    type Listener;
    /// An open file to register.
    type File;

    /// The time of the current turn of the loop. The reactors of a process share one clock.
    fn now(&self) -> Time;

    /// The thread's buffers.
    fn pool(&self) -> &Pool;

    /// Starts to accept connections: each becomes an [`Event::Incoming`].
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    fn listen(&mut self, listener: Self::Listener, token: Token) -> io::Result<ListenerId>;

    /// Stops listening. Connections that were not accepted are refused.
    fn close_listener(&mut self, listener: ListenerId);

    /// Takes a connection over. Its first [`Event::Readable`] comes by itself.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    fn adopt(&mut self, incoming: Self::Incoming, token: Token) -> io::Result<StreamId>;

    /// Opens a TCP connection; [`Event::Connected`] tells how it went.
    ///
    /// # Errors
    ///
    /// Those of the operating system that show at once (no descriptors, no route).
    fn connect(&mut self, address: SocketAddr, token: Token) -> io::Result<StreamId>;

    /// Reads what is there, without blocking. 0 is the end of the stream. After fewer bytes than `into` has room for, [`Event::Readable`] follows
    /// when more have come (or the end): there is no need to try once more.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when nothing is there ([`Event::Readable`] will follow), `NotConnected` for a closed stream, else the connection's error.
    fn receive(&mut self, stream: StreamId, into: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Writes what fits, without blocking.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when nothing fits ([`Event::Writable`] will follow), `NotConnected` for a closed stream, else the connection's error.
    fn send(&mut self, stream: StreamId, from: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Ends the sending direction (TCP FIN); receiving goes on. No effect on a closed stream.
    fn shutdown_send(&mut self, stream: StreamId);

    /// Closes a stream at once; unread data makes this a reset. No event about it follows.
    fn close(&mut self, stream: StreamId);

    /// Closes a stream such that what was sent arrives: ends the sending direction, discards what still comes in, and closes at the peer's end of
    /// stream or after a second. No event about it follows.
    fn close_gracefully(&mut self, stream: StreamId);

    /// The other end of a stream.
    fn peer(&self, stream: StreamId) -> Option<Peer>;

    /// The address that the other end came to, for a TCP stream.
    fn local_address(&self, stream: StreamId) -> Option<SocketAddr>;

    /// The sender's maximum segment size of a TCP stream, in bytes.
    fn max_segment_bytes(&self, stream: StreamId) -> Option<usize>;

    /// Whether the end of a stream has come, be it behind bytes that were not received yet; true of a stream that is closed.
    fn has_ended(&self, stream: StreamId) -> bool;

    /// Makes a file known.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    fn register_file(&mut self, file: Self::File) -> io::Result<FileId>;

    /// The disk in memory that a file is, if it is one.
    fn memory(_file: &Self::File) -> Option<&Arc<MemoryDisk>> {
        None
    }

    /// Forgets a file. Operations that were submitted before still end as usual, after which the file is closed.
    fn unregister_file(&mut self, file: FileId);

    /// Starts a file operation. Its buffer belongs to the reactor until [`Event::File`] gives it back.
    fn submit(&mut self, file: FileId, op: FileOp, token: Token);

    /// Runs a read or write at once if that takes no longer than copying it, as on a file whose data are in memory: no event follows then.
    ///
    /// # Errors
    ///
    /// Gives the operation back, to be [submitted](Self::submit), when it may have to wait.
    fn run_now(&mut self, _file: FileId, op: FileOp) -> Result<FileDone, FileOp> {
        Err(op)
    }

    /// Asks for an [`Event::Timer`] at a time (or soon after).
    fn set_timer(&mut self, at: Time, token: Token) -> TimerId;

    /// Forgets a timer. No effect when it has gone off.
    fn cancel_timer(&mut self, timer: TimerId);

    /// Has a descriptor watched that the caller reads by itself: one [`Event::Readable`] follows as soon as it can be read, and none after it
    /// until [`Self::watch_again`].
    ///
    /// # Errors
    ///
    /// [`Unsupported`](io::ErrorKind::Unsupported) where there are no descriptors, as in the simulator; else those of the operating system.
    fn watch(&mut self, _descriptor: OwnedFd, _token: Token) -> io::Result<WatchId> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Asks for the next event about a watched descriptor.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    fn watch_again(&mut self, _watch: WatchId) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Ends a watch, and closes its descriptor. No event about it follows.
    fn unwatch(&mut self, _watch: WatchId) {}

    /// How much to do in this turn, of much that has come at once, before what it led to is sent; the rest is for the next turn. Little where the thread
    /// had nothing to do before: its peers wait, and work on the first while it goes on. Then more and more, as that takes fewer calls.
    fn portion(&self) -> usize {
        usize::MAX
    }

    /// For a caller that has asked its peers for something: whether it waits for `answers`, from now on. It may be worth a longer look for them.
    fn expects(&mut self, _answers: bool) {}

    /// For a caller that looks for work of its own in each turn: `progress` says whether it has found any since it last called. True: the next turn
    /// does not sleep, so that it can look again. False: the next turn may sleep, and only an event ends that.
    fn keeps_looking(&mut self, _progress: bool) -> bool {
        false
    }
}
