//! The file of a control socket: its permissions, and whose it is.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::ControlError;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

/// The file of a socket that we listen on. It goes when this is dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

/// Device, inode, and when it was made, for inodes are used again: seconds and nanoseconds.
type Identity = (u64, u64, i64, i64);

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Only our own: another daemon may have taken the place over.
        let ours = self.path.symlink_metadata().is_ok_and(|metadata| identity(&metadata) == self.identity);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens on a path, in the place of a daemon that is gone; never of one that is there.
pub(crate) fn listen(path: &Path, mode: u32) -> Result<(SocketFile, UnixListener), ControlError> {
    let failed = |doing| move |error| ControlError::Socket { path: path.to_owned(), doing, error };
    if is_stale(path)? {
        fs::remove_file(path).map_err(failed("remove the socket of a daemon that is gone"))?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed("make a socket"))?;
    let address = SockAddr::unix(path).map_err(failed("listen"))?;
    socket.bind(&address).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => ControlError::MissingFolder(path.to_owned()),
        io::ErrorKind::AddrInUse => ControlError::InUse(path.to_owned()),
        _ => failed("listen")(error),
    })?;
    let metadata = path.symlink_metadata().map_err(failed("look at the socket"))?;
    let file = SocketFile { path: path.to_owned(), identity: identity(&metadata) };
    // Before it listens nobody gets in, whatever the umask was.
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed("set the permissions of the socket"))?;
    socket.listen(BACKLOG).map_err(failed("listen"))?;
    Ok((file, socket.into()))
}

/// Whether a file is the socket of a daemon that is gone. False when there is no file.
fn is_stale(path: &Path) -> Result<bool, ControlError> {
    let failed = |error| ControlError::Socket { path: path.to_owned(), doing: "look at the socket", error };
    match path.symlink_metadata() {
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(ControlError::NotASocket(path.to_owned())),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(error)),
    }
    match UnixStream::connect(path) {
        // A daemon whose clients wait in a line that is full is there as well.
        Ok(_) => Err(ControlError::InUse(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(ControlError::InUse(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        // Between the two looks its owner has removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(error)),
    }
}
