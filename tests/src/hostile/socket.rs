//! A socket of a stream: never blocks for long, and ends in one of the ways in which sockets end.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::{Misbehaviour, Random};

/// How long a daemon may take for anything that an honest peer asks for, with hostile ones around.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// How long a stream goes on sending to a daemon that does not take it.
const FLOOD_PATIENCE: Duration = Duration::from_millis(50);

/// How a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Closed, with what came left unread.
    Dropped,
    /// Reset.
    Reset,
    /// Our half is closed, and what comes is read to its end.
    HalfClosed,
}

impl Ending {
    pub(super) fn any(random: &mut Random) -> Self {
        random.pick(&[Self::Dropped, Self::Reset, Self::HalfClosed, Self::HalfClosed])
    }
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A socket with what came on it and was not looked at yet.
#[derive(Debug)]
pub(super) struct Socket {
    kind: Kind,
    pub(super) inbox: Vec<u8>,
    /// The daemon closed or reset it.
    pub(super) is_over: bool,
}

impl Socket {
    pub(super) fn tcp(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { kind: Kind::Tcp(stream), inbox: Vec::new(), is_over: false })
    }

    pub(super) fn unix(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_nonblocking(true)?;
        Ok(Self { kind: Kind::Unix(stream), inbox: Vec::new(), is_over: false })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Tcp(stream) => stream.as_fd(),
            Kind::Unix(stream) => stream.as_fd(),
        }
    }

    fn wait(&self, events: PollFlags, limit: Duration) {
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut [PollFd::new(self.fd(), events)], timeout);
    }

    /// Sends as much as the daemon takes; whether that is all. What comes meanwhile is kept.
    pub(super) fn send(&mut self, mut bytes: &[u8]) -> bool {
        let deadline = Instant::now() + FLOOD_PATIENCE;
        while !bytes.is_empty() && !self.is_over {
            let sent = match &mut self.kind {
                Kind::Tcp(stream) => stream.write(bytes),
                Kind::Unix(stream) => stream.write(bytes),
            };
            match sent {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !self.read_available() && Instant::now() > deadline {
                        return false;
                    }
                    self.wait(PollFlags::POLLIN | PollFlags::POLLOUT, Duration::from_millis(5));
                }
                Err(_) => self.is_over = true,
            }
        }
        bytes.is_empty()
    }

    /// Reads what is there; whether that is anything.
    fn read_available(&mut self) -> bool {
        let mut chunk = [0; 64 << 10];
        let before = self.inbox.len();
        while !self.is_over && self.inbox.len() < before + (1 << 20) {
            let received = match &mut self.kind {
                Kind::Tcp(stream) => stream.read(&mut chunk),
                Kind::Unix(stream) => stream.read(&mut chunk),
            };
            match received {
                Ok(0) => self.is_over = true,
                Ok(count) => self.inbox.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.is_over = true,
            }
        }
        self.inbox.len() > before
    }

    /// Waits until something comes, or until the end of the connection or of `limit`; whether something came.
    pub(super) fn receive(&mut self, limit: Duration) -> bool {
        if self.read_available() {
            return true;
        }
        if !self.is_over {
            self.wait(PollFlags::POLLIN, limit);
        }
        self.read_available()
    }

    /// Closes our half.
    pub(super) fn close_half(&self) {
        let _ = match &self.kind {
            Kind::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Kind::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }

    /// Ends the connection with a reset.
    pub(super) fn reset(self) {
        let _ = setsockopt(&self.fd(), sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 });
    }

    /// Waits for something behind our closed half; false at the end of the connection.
    ///
    /// # Errors
    /// The daemon keeps the connection.
    pub(super) fn drain(&mut self) -> Result<bool, Misbehaviour> {
        if self.receive(PATIENCE) {
            return Ok(true);
        }
        if self.is_over { Ok(false) } else { Err(Misbehaviour::Kept(PATIENCE)) }
    }
}
