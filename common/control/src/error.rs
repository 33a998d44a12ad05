//! Why a daemon cannot be asked, or cannot be made to answer: one line each, with what to do.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::unix::ListenError;

/// Why there is no control socket, no metrics, or no answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens there.
    #[error("{}: no daemon listens there; start it, or name its control socket", .0.display())]
    NoServer(PathBuf),
    /// The socket is another user's.
    #[error("{}: permission denied; ask as the user that the daemon runs as, or as root", .0.display())]
    Denied(PathBuf),
    /// The daemon said no.
    #[error("{0}")]
    Refused(String),
    /// The daemon did not answer in time.
    #[error("{}: no answer within {} s; the daemon may be stuck: its log says more", path.display(), waited.as_secs())]
    Silent {
        /// The socket.
        path: PathBuf,
        /// How long it was waited.
        waited: Duration,
    },
    /// What came is no answer.
    #[error("{}: what answers there does not speak this protocol", .0.display())]
    NoAnswer(PathBuf),
    /// Another daemon listens there.
    #[error("{}: another daemon is listening there; stop it, or choose another path", .0.display())]
    InUse(PathBuf),
    /// Something else than a socket is there.
    #[error("{}: there is something that is not a socket; remove it, or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The folder of the socket does not exist.
    #[error("{}: its folder does not exist; make it with mkdir -p, or choose another path", .0.display())]
    MissingFolder(PathBuf),
    /// The system refuses a socket.
    #[error("{}: cannot {doing}: {}", path.display(), in_words(error))]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why not.
        error: io::Error,
    },
    /// Metrics cannot be served there.
    #[error("metrics: cannot listen on {address}: {}", explain(error))]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// No thread could be started.
    #[error("cannot start a thread: {}", in_words(.0))]
    Thread(io::Error),
}

impl ControlError {
    pub(crate) fn of(path: PathBuf, error: ListenError) -> Self {
        match error {
            ListenError::InUse => Self::InUse(path),
            ListenError::NotASocket => Self::NotASocket(path),
            ListenError::System { error, .. } if error.kind() == io::ErrorKind::NotFound => Self::MissingFolder(path),
            ListenError::System { doing, error } => Self::Socket { path, doing, error },
        }
    }
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "address in use; stop the program that listens there (`ss -ltnp` names it), or choose another port".to_owned()
        }
        io::ErrorKind::AddrNotAvailable => "no such address on this machine; see `ip address`".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied; choose a port from 1024".to_owned(),
        _ => in_words(error),
    }
}

/// An error of the system without its number, which says nothing to people.
fn in_words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error").map_or(text.as_str(), |(words, _)| words).to_owned()
}
