//! The listening socket of an NBD export: its file, its permissions, and whose it is.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use godwit_config::{HostPort, NbdEndpoint, NbdMode};
use godwit_reactor::Listener;
use nix::unistd::{AccessFlags, access};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::host::in_words;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// How long a socket that is in use is waited for: the kernel takes the rings of a daemon that was killed down a moment after its end, and its
/// listeners with them.
const IN_USE_PATIENCE: Duration = Duration::from_secs(1);

/// Why an export cannot listen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// Another server listens there.
    #[error("{}: another server is listening there; stop it, or choose another path", .0.display())]
    InUse(PathBuf),
    /// Something else than a socket is there.
    #[error("{}: there is something that is not a socket; remove it, or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The system refuses.
    #[error("cannot listen on {at}: {}", explain(source))]
    Io {
        /// Where.
        at: String,
        /// Why.
        source: io::Error,
    },
}

/// What to do about it.
fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "its folder does not exist; make it with mkdir -p, or choose another path".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied; choose a folder that this user may write to, or a port from 1024".to_owned(),
        io::ErrorKind::AddrInUse => {
            "address in use; stop the program that listens there (`ss -ltnp` names it), or choose another port".to_owned()
        }
        io::ErrorKind::AddrNotAvailable => "no such address on this machine; see `ip address`".to_owned(),
        _ => in_words(error),
    }
}

/// A socket that listens. A Unix socket's file is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct NbdSocket {
    file: Option<SocketFile>,
    uri: String,
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: FileIdentity,
}

/// Device, inode, and when it was made, for inodes are used again: seconds and nanoseconds.
type FileIdentity = (u64, u64, i64, i64);

fn identity(metadata: &std::fs::Metadata) -> FileIdentity {
    (metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

/// Finds out early whether an export could listen at an endpoint, before a target is troubled for it.
pub(crate) fn check(endpoint: &NbdEndpoint) -> Result<(), SocketError> {
    match endpoint {
        NbdEndpoint::Tcp(address) => listen_tcp(address).map(|_| ()),
        NbdEndpoint::Unix(path) => {
            is_stale(path)?;
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            access(folder, AccessFlags::W_OK | AccessFlags::X_OK)
                .map_err(|errno| SocketError::Io { at: path.display().to_string(), source: errno.into() })
        }
    }
}

/// Whether a file is the socket of a server that is gone. False when there is no file.
fn is_stale(path: &Path) -> Result<bool, SocketError> {
    let failed = |source| SocketError::Io { at: path.display().to_string(), source };
    match path.symlink_metadata() {
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(SocketError::NotASocket(path.to_owned())),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(error)),
    }
    patiently(|| match UnixStream::connect(path) {
        Ok(_) => Err(SocketError::InUse(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        // Between the two tries its owner has removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(error)),
    })
}

/// Tries again for a while what fails because another server listens.
fn patiently<T>(mut attempt: impl FnMut() -> Result<T, SocketError>) -> Result<T, SocketError> {
    let started = Instant::now();
    loop {
        match attempt() {
            Err(error) if error.is_in_use() && started.elapsed() < IN_USE_PATIENCE => thread::sleep(Duration::from_millis(20)),
            result => return result,
        }
    }
}

impl SocketError {
    fn is_in_use(&self) -> bool {
        match self {
            Self::InUse(_) => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::AddrInUse,
            Self::NotASocket(_) => false,
        }
    }
}

impl NbdSocket {
    /// Listens at an endpoint.
    pub(crate) fn listen(endpoint: &NbdEndpoint, mode: NbdMode) -> Result<(Self, Listener), SocketError> {
        match endpoint {
            NbdEndpoint::Unix(path) => listen_unix(path, mode),
            NbdEndpoint::Tcp(address) => listen_tcp(address),
        }
    }

    /// How clients name the export, by the URI scheme of NBD.
    pub(crate) fn uri(&self, export_name: &str) -> String {
        match self.uri.split_once('?') {
            Some((before, query)) => format!("{before}{}?{query}", escape(export_name.as_bytes())),
            None => format!("{}{}", self.uri, escape(export_name.as_bytes())),
        }
    }
}

/// Text as a part of a URI (RFC 3986, "Percent-Encoding").
fn escape(text: &[u8]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for &byte in text {
        if byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

impl Drop for NbdSocket {
    fn drop(&mut self) {
        let Some(file) = &self.file else { return };
        let path = &file.path;
        // Only our own: another server may have taken the place over.
        let ours = path.symlink_metadata().is_ok_and(|metadata| identity(&metadata) == file.identity);
        if ours {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn listen_unix(path: &Path, mode: NbdMode) -> Result<(NbdSocket, Listener), SocketError> {
    let failed = |source| SocketError::Io { at: path.display().to_string(), source };
    if is_stale(path)? {
        std::fs::remove_file(path).map_err(failed)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed)?;
    socket.bind(&SockAddr::unix(path).map_err(failed)?).map_err(failed)?;
    let metadata = path.symlink_metadata().map_err(failed)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(&metadata) };
    let uri = format!("nbd+unix:///?socket={}", escape(path.as_os_str().as_bytes()));
    let this = NbdSocket { file: Some(file), uri };
    // Before it listens nobody gets in, whatever the umask was.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode.bits())).map_err(failed)?;
    socket.listen(BACKLOG).map_err(failed)?;
    let listener = Listener::from_socket(socket).map_err(failed)?;
    Ok((this, listener))
}

fn listen_tcp(address: &HostPort) -> Result<(NbdSocket, Listener), SocketError> {
    let failed = |source| SocketError::Io { at: address.to_string(), source };
    let addresses = address.resolve().map_err(failed)?;
    let first = addresses.first().copied().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let listener = patiently(|| Listener::tcp(first).map_err(failed))?;
    let bound = listener.local_address().unwrap_or(first);
    Ok((NbdSocket { file: None, uri: format!("nbd://{bound}/") }, listener))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(path: &Path) -> NbdEndpoint {
        NbdEndpoint::Unix(path.to_owned())
    }

    #[test]
    fn the_socket_is_for_its_owner_alone_and_goes_with_its_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vol0.sock");
        let (socket, listener) = NbdSocket::listen(&endpoint(&path), NbdMode::default()).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(socket.uri("vol0"), format!("nbd+unix:///vol0?socket={}", path.display()));
        assert!(UnixStream::connect(&path).is_ok());
        drop((socket, listener));
        assert!(!path.exists());
    }

    #[test]
    fn the_mode_is_the_one_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vol0.sock");
        let _socket = NbdSocket::listen(&endpoint(&path), "0666".parse().unwrap()).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o666);
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vol0.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(check(&endpoint(&path)).is_ok());
        let (_socket, _listener) = NbdSocket::listen(&endpoint(&path), NbdMode::default()).unwrap();
        assert!(matches!(check(&endpoint(&path)), Err(SocketError::InUse(_))));
        assert!(matches!(NbdSocket::listen(&endpoint(&path), NbdMode::default()), Err(SocketError::InUse(_))));
        assert!(path.exists());
    }

    #[test]
    fn a_server_that_is_about_to_be_gone_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vol0.sock");
        let unix = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp:{}", tcp.local_addr().unwrap()).parse().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(100));
                drop((unix, tcp));
            });
            assert!(check(&endpoint(&path)).is_ok());
            assert!(NbdSocket::listen(&address, NbdMode::default()).is_ok());
        });
    }

    #[test]
    fn what_is_not_a_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(NbdSocket::listen(&endpoint(&path), NbdMode::default()), Err(SocketError::NotASocket(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_successor_keeps_its_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vol0.sock");
        let (first, _) = NbdSocket::listen(&endpoint(&path), NbdMode::default()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _successor = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(first);
        assert!(path.exists());
    }

    #[test]
    fn odd_names_are_escaped_in_the_uri() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a b?.sock");
        let (socket, _listener) = NbdSocket::listen(&endpoint(&path), NbdMode::default()).unwrap();
        assert_eq!(socket.uri("é&1"), format!("nbd+unix:///%C3%A9%261?socket={}/a%20b%3F.sock", folder.path().display()));
    }

    #[test]
    fn a_tcp_port_of_zero_is_told() {
        let (socket, _listener) = NbdSocket::listen(&"tcp:127.0.0.1:0".parse().unwrap(), NbdMode::default()).unwrap();
        let uri = socket.uri("");
        assert!(uri.starts_with("nbd://127.0.0.1:") && !uri.contains(":0/"), "{uri}");
    }
}
