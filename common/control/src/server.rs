//! The answering end of a control socket.

use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::clients::{Clients, Serve, Stream, Timely};
use crate::line::{Line, LineReader};
use crate::unix::{self, SocketFile};
use crate::{ControlError, MAX_CLIENTS, MAX_REQUEST_BYTES, PATIENCE};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

/// How long a socket that is in use is waited for: a daemon that was killed is there for a moment more.
const IN_USE_PATIENCE: Duration = Duration::from_secs(1);

/// A control socket that listens, and does not answer yet.
#[derive(Debug)]
pub struct Server {
    file: SocketFile,
    listener: UnixListener,
    patience: Duration,
}

/// A control socket that answers. When this is dropped, it ends: its file is removed, and clients are let go.
#[derive(Debug)]
pub struct Handle {
    file: SocketFile,
    _clients: Clients,
}

impl Server {
    /// Listens on a path, with these permissions (0o600: for the daemon's own user and root). The socket of a daemon that is gone is replaced.
    ///
    /// # Errors
    ///
    /// When another daemon listens there, or the system refuses.
    pub fn bind(path: impl Into<PathBuf>, mode: u32) -> Result<Self, ControlError> {
        let path = path.into();
        let (file, socket) = unix::listen(&path, mode, BACKLOG, IN_USE_PATIENCE).map_err(|error| ControlError::of(path, error))?;
        Ok(Self { file, listener: socket.into(), patience: PATIENCE })
    }

    /// Answers each request with what `handler` makes of it. It runs on the thread of its client, so it may take its time, and several may run at
    /// the same time.
    ///
    /// # Errors
    ///
    /// When no thread can be started.
    pub fn serve(self, handler: impl Fn(Value) -> Value + Send + Sync + 'static) -> Result<Handle, ControlError> {
        let lines = Lines { handler, patience: self.patience };
        let clients = Clients::accept("control", self.listener, lines).map_err(ControlError::Thread)?;
        Ok(Handle { file: self.file, _clients: clients })
    }

    /// For tests: to lose patience sooner.
    #[cfg(test)]
    fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

impl Handle {
    /// Where it listens.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

/// An answer that says why a request is not obeyed.
pub fn refusal(reason: impl std::fmt::Display) -> Value {
    json!({ "error": reason.to_string() })
}

/// Requests and answers, a line each.
struct Lines<H> {
    handler: H,
    patience: Duration,
}

impl<H: Fn(Value) -> Value + Send + Sync + 'static> Serve<UnixStream> for Lines<H> {
    fn serve(&self, mut stream: UnixStream) {
        if let Err(error) = self.answer_all(&mut stream) {
            tracing::debug!("a client of the control socket is let go: {error}");
        }
        stream.end();
    }

    fn turn_away(&self, mut stream: UnixStream) {
        // It has room for this one line.
        if stream.set_nonblocking(true).is_ok() {
            let _ =
                send(&mut stream, &refusal(format_args!("more than {MAX_CLIENTS} clients at a time; try again when one of them is gone")));
        }
    }
}

impl<H: Fn(Value) -> Value> Lines<H> {
    fn answer_all(&self, stream: &mut UnixStream) -> io::Result<()> {
        stream.set_write_limit(self.patience)?;
        let mut lines = LineReader::default();
        loop {
            let line = lines.next(&mut Timely::new(stream, self.patience), MAX_REQUEST_BYTES)?;
            let answer = match line {
                Line::End => return Ok(()),
                Line::TooLong => return send(stream, &refusal(format_args!("a request has at most {MAX_REQUEST_BYTES} bytes"))),
                Line::Whole(line) => match serde_json::from_slice(&line) {
                    Ok(request) => (self.handler)(request),
                    Err(error) => refusal(format_args!("the request is not JSON: {error}")),
                },
            };
            send(stream, &answer)?;
        }
    }
}

fn send(stream: &mut UnixStream, answer: &Value) -> io::Result<()> {
    let mut line = answer.to_string().into_bytes();
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;
    use crate::Client;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_answer_that_is_under_way_at_the_end_still_leaves() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let (tell, begun) = mpsc::channel();
        let tell = std::sync::Mutex::new(tell);
        let handler = move |_| {
            tell.lock().unwrap().send(()).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            json!("done")
        };
        let server = Server::bind(&path, 0o600).unwrap().serve(handler).unwrap();
        let asking = std::thread::spawn(move || Client::call(&path, &json!({}), SECOND));
        begun.recv().unwrap();
        drop(server);
        assert_eq!(asking.join().unwrap().unwrap(), json!("done"));
    }

    fn path() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.sock");
        (folder, path)
    }

    fn echo(path: &Path) -> Handle {
        Server::bind(path, 0o600).unwrap().serve(|request| json!({ "asked": request })).unwrap()
    }

    fn line(stream: &mut UnixStream) -> Value {
        stream.set_read_timeout(Some(10 * SECOND)).unwrap();
        match LineReader::default().next(stream, 1 << 20).unwrap() {
            Line::Whole(line) => serde_json::from_slice(&line).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_are_answered_one_after_the_other() {
        let (_folder, path) = path();
        let _handle = echo(&path);
        let mut client = Client::connect(&path, SECOND).unwrap();
        for number in 0..3 {
            assert_eq!(client.ask(&json!({ "n": number })).unwrap(), json!({ "asked": { "n": number } }));
        }
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"1\n2\n").unwrap();
        let mut lines = LineReader::default();
        for expected in [r#"{"asked":1}"#, r#"{"asked":2}"#] {
            assert_eq!(lines.next(&mut stream, 1 << 20).unwrap(), Line::Whole(expected.into()));
        }
    }

    #[test]
    fn the_socket_is_for_its_owner_alone_and_goes_with_its_daemon() {
        let (_folder, path) = path();
        let handle = echo(&path);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let mut client = Client::connect(&path, SECOND).unwrap();
        drop(handle);
        assert!(!path.exists());
        assert!(matches!(client.ask(&json!(1)), Err(ControlError::NoAnswer(_))));
        assert!(matches!(Client::connect(&path, SECOND), Err(ControlError::NoServer(_))));
    }

    #[test]
    fn a_stale_socket_is_replaced_a_live_one_and_a_file_are_not() {
        let (folder, path) = path();
        drop(UnixListener::bind(&path).unwrap());
        let _handle = echo(&path);
        assert!(matches!(Server::bind(&path, 0o600), Err(ControlError::InUse(_))));
        assert!(Client::call(&path, &json!(1), SECOND).is_ok(), "the first one answers on");
        let file = folder.path().join("data");
        std::fs::write(&file, "precious").unwrap();
        assert!(matches!(Server::bind(&file, 0o600), Err(ControlError::NotASocket(_))));
        assert!(matches!(Server::bind(folder.path().join("no/daemon.sock"), 0o600), Err(ControlError::MissingFolder(_))));
    }

    #[test]
    fn what_is_not_json_is_refused_and_the_connection_goes_on() {
        let (_folder, path) = path();
        let _handle = echo(&path);
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"rubbish\xff\n").unwrap();
        assert!(line(&mut stream)["error"].as_str().unwrap().starts_with("the request is not JSON"));
        stream.write_all(b"7\n").unwrap();
        assert_eq!(line(&mut stream), json!({ "asked": 7 }));
    }

    #[test]
    fn a_request_that_is_too_long_ends_its_connection() {
        let (_folder, path) = path();
        let _handle = echo(&path);
        let mut client = Client::connect(&path, SECOND).unwrap();
        let fitting = "x".repeat(MAX_REQUEST_BYTES - 3);
        assert_eq!(client.ask(&json!(fitting)).unwrap()["asked"], fitting);
        let refused = client.ask(&json!("x".repeat(MAX_REQUEST_BYTES - 2))).unwrap_err();
        assert_eq!(refused.to_string(), "a request has at most 65536 bytes");
        assert!(client.ask(&json!(1)).is_err());
    }

    #[test]
    fn one_client_too_many_is_told_so_and_a_place_is_free_again_when_one_goes() {
        let (_folder, path) = path();
        let _handle = echo(&path);
        let mut clients: Vec<_> = (0..MAX_CLIENTS).map(|_| Client::connect(&path, SECOND).unwrap()).collect();
        for client in &mut clients {
            client.ask(&json!(1)).unwrap();
        }
        let refused = Client::call(&path, &json!(1), SECOND).unwrap_err();
        assert!(refused.to_string().contains("more than 16 clients"), "{refused}");
        clients.pop();
        let began = Instant::now();
        while Client::call(&path, &json!(1), SECOND).is_err() {
            assert!(began.elapsed() < 10 * SECOND);
        }
    }

    #[test]
    fn a_client_that_dawdles_is_let_go() {
        let (_folder, path) = path();
        let server = Server::bind(&path, 0o600).unwrap().with_patience(Duration::from_millis(200));
        let _handle = server.serve(|request| request).unwrap();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(10 * SECOND)).unwrap();
        let began = Instant::now();
        // A byte at a time, none of them late.
        while stream.write_all(b" ").is_ok() {
            assert!(began.elapsed() < 10 * SECOND);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(began.elapsed() >= Duration::from_millis(150));
    }

    #[test]
    fn a_slow_request_holds_up_no_other_client() {
        let (_folder, path) = path();
        let (go, wait) = mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        let handler = move |request: Value| {
            if request == json!("slow") {
                wait.lock().unwrap().recv().unwrap();
            }
            request
        };
        let _handle = Server::bind(&path, 0o600).unwrap().serve(handler).unwrap();
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| Client::call(&path, &json!("slow"), 10 * SECOND));
            assert_eq!(Client::call(&path, &json!("quick"), 10 * SECOND).unwrap(), json!("quick"));
            go.send(()).unwrap();
            assert_eq!(slow.join().unwrap().unwrap(), json!("slow"));
        });
    }

    #[test]
    fn refusals_and_silence_are_told_apart() {
        let (_folder, path) = path();
        let handler = |request: Value| match request.as_str() {
            Some("no") => refusal("it is mounted"),
            Some("state") => json!({ "error": "of the last run", "state": "up" }),
            _ => {
                std::thread::sleep(SECOND);
                Value::Null
            }
        };
        let _handle = Server::bind(&path, 0o600).unwrap().serve(handler).unwrap();
        let call = |text: &str| Client::call(&path, &json!(text), Duration::from_millis(100));
        assert_eq!(call("no").unwrap_err().to_string(), "it is mounted");
        assert_eq!(call("state").unwrap()["state"], "up");
        assert!(matches!(call("wait"), Err(ControlError::Silent { .. })));
    }
}
