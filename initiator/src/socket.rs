//! The listening socket of an NBD export.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use godwit_config::{HostPort, NbdEndpoint, NbdMode, NbdUri};
use godwit_control::unix::{self, ListenError, SocketFile};
use godwit_reactor::Listener;
use nix::unistd::{AccessFlags, access};

use crate::host::in_words;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// How long a socket that is in use is to be waited for: the kernel takes the rings of a daemon that was killed down a moment after its end, and its
/// listeners with them.
pub(crate) const IN_USE_PATIENCE: Duration = Duration::from_secs(1);

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
    _file: Option<SocketFile>,
    endpoint: NbdEndpoint,
}

/// Finds out early whether an export could listen at an endpoint, before a target is troubled for it.
pub(crate) fn check(endpoint: &NbdEndpoint) -> Result<(), SocketError> {
    match endpoint {
        NbdEndpoint::Tcp(address) => listen_tcp(address, IN_USE_PATIENCE).map(|_| ()),
        NbdEndpoint::Unix(path) => {
            unix::is_stale(path, IN_USE_PATIENCE).map_err(|error| SocketError::of(path, error))?;
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            access(folder, AccessFlags::W_OK | AccessFlags::X_OK)
                .map_err(|errno| SocketError::Io { at: path.display().to_string(), source: errno.into() })
        }
    }
}

/// Tries again for a while what fails because another server listens.
fn patiently<T>(patience: Duration, mut attempt: impl FnMut() -> Result<T, SocketError>) -> Result<T, SocketError> {
    let started = Instant::now();
    loop {
        match attempt() {
            Err(error) if error.is_in_use() && started.elapsed() < patience => thread::sleep(Duration::from_millis(20)),
            result => return result,
        }
    }
}

impl SocketError {
    fn of(path: &Path, error: ListenError) -> Self {
        match error {
            ListenError::InUse => Self::InUse(path.to_owned()),
            ListenError::NotASocket => Self::NotASocket(path.to_owned()),
            ListenError::System { error, .. } => Self::Io { at: path.display().to_string(), source: error },
        }
    }

    fn is_in_use(&self) -> bool {
        match self {
            Self::InUse(_) => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::AddrInUse,
            Self::NotASocket(_) => false,
        }
    }
}

impl NbdSocket {
    /// Listens at an endpoint. One that is in use is waited for, for so long.
    pub(crate) fn listen(endpoint: &NbdEndpoint, mode: NbdMode, patience: Duration) -> Result<(Self, Listener), SocketError> {
        match endpoint {
            NbdEndpoint::Unix(path) => listen_unix(path, mode, patience),
            NbdEndpoint::Tcp(address) => listen_tcp(address, patience),
        }
    }

    /// How clients name the export, by the URI scheme of NBD.
    pub(crate) fn uri(&self, export_name: &str) -> String {
        NbdUri { endpoint: self.endpoint.clone(), export_name: export_name.to_owned() }.to_string()
    }
}

fn listen_unix(path: &Path, mode: NbdMode, patience: Duration) -> Result<(NbdSocket, Listener), SocketError> {
    let failed = |error| SocketError::of(path, error);
    let (file, socket) = unix::listen(path, mode.bits(), BACKLOG, patience).map_err(failed)?;
    let listener = Listener::from_socket(socket).map_err(|error| failed(ListenError::System { doing: "listen", error }))?;
    Ok((NbdSocket { _file: Some(file), endpoint: NbdEndpoint::Unix(path.to_owned()) }, listener))
}

fn listen_tcp(address: &HostPort, patience: Duration) -> Result<(NbdSocket, Listener), SocketError> {
    let failed = |source| SocketError::Io { at: address.to_string(), source };
    let addresses = address.resolve().map_err(failed)?;
    let first = addresses.first().copied().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let listener = patiently(patience, || Listener::tcp(first).map_err(failed))?;
    let bound = listener.local_address().unwrap_or(first);
    Ok((NbdSocket { _file: None, endpoint: NbdEndpoint::Tcp(bound.into()) }, listener))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn endpoint(path: &Path) -> NbdEndpoint {
        NbdEndpoint::Unix(path.to_owned())
    }

    #[test]
    fn the_socket_is_for_its_owner_alone_and_goes_with_its_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vol0.sock");
        let (socket, listener) = NbdSocket::listen(&endpoint(&path), NbdMode::default(), IN_USE_PATIENCE).unwrap();
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
        let _socket = NbdSocket::listen(&endpoint(&path), "0666".parse().unwrap(), IN_USE_PATIENCE).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o666);
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vol0.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(check(&endpoint(&path)).is_ok());
        let (_socket, _listener) = NbdSocket::listen(&endpoint(&path), NbdMode::default(), IN_USE_PATIENCE).unwrap();
        assert!(matches!(check(&endpoint(&path)), Err(SocketError::InUse(_))));
        assert!(matches!(NbdSocket::listen(&endpoint(&path), NbdMode::default(), IN_USE_PATIENCE), Err(SocketError::InUse(_))));
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
            assert!(NbdSocket::listen(&address, NbdMode::default(), IN_USE_PATIENCE).is_ok());
        });
    }

    #[test]
    fn what_is_not_a_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(NbdSocket::listen(&endpoint(&path), NbdMode::default(), IN_USE_PATIENCE), Err(SocketError::NotASocket(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_successor_keeps_its_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vol0.sock");
        let (first, _) = NbdSocket::listen(&endpoint(&path), NbdMode::default(), IN_USE_PATIENCE).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _successor = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(first);
        assert!(path.exists());
    }

    #[test]
    fn odd_names_are_escaped_in_the_uri() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a b?.sock");
        let (socket, _listener) = NbdSocket::listen(&endpoint(&path), NbdMode::default(), IN_USE_PATIENCE).unwrap();
        assert_eq!(socket.uri("é&1"), format!("nbd+unix:///%C3%A9%261?socket={}/a%20b%3F.sock", folder.path().display()));
    }

    #[test]
    fn a_tcp_port_of_zero_is_told() {
        let (socket, _listener) = NbdSocket::listen(&"tcp:127.0.0.1:0".parse().unwrap(), NbdMode::default(), IN_USE_PATIENCE).unwrap();
        let uri = socket.uri("");
        assert!(uri.starts_with("nbd://127.0.0.1:") && !uri.contains(":0/"), "{uri}");
    }
}
