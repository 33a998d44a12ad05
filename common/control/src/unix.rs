//! Unix sockets that daemons listen on: their files, their permissions, and whose they are.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

/// Why nothing can listen on a path.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another program listens there.
    #[error("another program is listening there")]
    InUse,
    /// Something else than a socket is there.
    #[error("there is something that is not a socket")]
    NotASocket,
    /// The system refuses.
    #[error("cannot {doing}: {error}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// Why not.
        error: io::Error,
    },
}

/// The file of a socket that we listen on. It goes when this is dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

/// Device, inode, and when it was made, for inodes are used again: seconds and nanoseconds.
type Identity = (u64, u64, i64, i64);

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

impl SocketFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Only our own: another program may have taken the place over.
        let ours = self.path.symlink_metadata().is_ok_and(|metadata| identity(&metadata) == self.identity);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens on a path, in the place of a program that is gone; never of one that is there. `backlog` connections may wait to be accepted, and for `patience` is
/// waited for a program that is about to go.
///
/// # Errors
///
/// When another program listens there, or the system refuses.
pub fn listen(path: &Path, mode: u32, backlog: i32, patience: Duration) -> Result<(SocketFile, Socket), ListenError> {
    if is_stale(path, patience)? {
        fs::remove_file(path).map_err(failed("remove the socket of a program that is gone"))?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed("make a socket"))?;
    let address = SockAddr::unix(path).map_err(failed("listen"))?;
    socket.bind(&address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse,
        _ => failed("listen")(error),
    })?;
    let metadata = path.symlink_metadata().map_err(failed(LOOKING))?;
    let file = SocketFile { path: path.to_owned(), identity: identity(&metadata) };
    // Before it listens nobody gets in, whatever the umask was.
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed("set the permissions of the socket"))?;
    socket.listen(backlog).map_err(failed("listen"))?;
    Ok((file, socket))
}

/// Whether a file is the socket of a program that is gone. False when there is no file. For `patience` is waited for one that is about to go.
///
/// # Errors
///
/// When a program listens there, or the file is no socket.
pub fn is_stale(path: &Path, patience: Duration) -> Result<bool, ListenError> {
    match path.symlink_metadata() {
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(ListenError::NotASocket),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(LOOKING)(error)),
    }
    let started = Instant::now();
    loop {
        match knock(path) {
            Err(ListenError::InUse) if started.elapsed() < patience => thread::sleep(Duration::from_millis(20)),
            result => return result,
        }
    }
}

/// [`is_stale`] of a socket, at this moment.
fn knock(path: &Path) -> Result<bool, ListenError> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).map_err(failed("make a socket"))?;
    let address = SockAddr::unix(path).map_err(failed(LOOKING))?;
    match socket.connect(&address) {
        Ok(()) => Err(ListenError::InUse),
        Err(error) => match error.kind() {
            // A program whose clients wait in a line that is full is there as well.
            io::ErrorKind::WouldBlock => Err(ListenError::InUse),
            io::ErrorKind::ConnectionRefused => Ok(true),
            // Between two looks its owner has removed it.
            io::ErrorKind::NotFound => Ok(false),
            _ => Err(failed(LOOKING)(error)),
        },
    }
}

const LOOKING: &str = "look at the socket";

fn failed(doing: &'static str) -> impl Fn(io::Error) -> ListenError {
    move |error| ListenError::System { doing, error }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_program_whose_line_is_full_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (_file, _socket) = listen(&path, 0o600, 0, Duration::ZERO).unwrap();
        let waiting: Vec<Socket> = (0..2)
            .map(|_| {
                let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).unwrap();
                let _ = socket.connect(&SockAddr::unix(&path).unwrap());
                socket
            })
            .collect();
        let full = waiting[1].connect(&SockAddr::unix(&path).unwrap()).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert!(matches!(listen(&path, 0o600, 0, Duration::ZERO), Err(ListenError::InUse)));
    }

    #[test]
    fn a_program_that_is_about_to_go_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let other = UnixListener::bind(&path).unwrap();
        assert!(matches!(is_stale(&path, Duration::ZERO), Err(ListenError::InUse)));
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(SECOND / 10);
                drop(other);
            });
            assert!(listen(&path, 0o600, 1, 10 * SECOND).is_ok());
        });
    }
}
