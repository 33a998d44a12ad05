//! The asking end of a control socket.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::clients::{Stream, Timely};
use crate::line::{Line, LineReader};
use crate::{ControlError, MAX_ANSWER_BYTES};

/// A connection to a daemon's control socket.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    lines: LineReader,
    path: PathBuf,
    timeout: Duration,
}

impl Client {
    /// Connects to the daemon that listens on a path. Each of its answers may take up to `timeout`.
    ///
    /// # Errors
    ///
    /// When nobody listens there, or not to this user.
    pub fn connect(path: impl Into<PathBuf>, timeout: Duration) -> Result<Self, ControlError> {
        let path = path.into();
        match UnixStream::connect(&path) {
            Ok(stream) => Ok(Self { stream, lines: LineReader::default(), path, timeout }),
            Err(error) => Err(match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ControlError::NoServer(path),
                io::ErrorKind::PermissionDenied => ControlError::Denied(path),
                _ => ControlError::Socket { path, doing: "connect", error },
            }),
        }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    ///
    /// When the daemon refuses, is gone, or takes too long. After any of these but the first, the connection is of no use any more.
    pub fn ask(&mut self, request: &Value) -> Result<Value, ControlError> {
        let mut line = request.to_string().into_bytes();
        line.push(b'\n');
        let sent = self.stream.set_write_limit(self.timeout).and_then(|()| self.stream.write_all(&line));
        // A daemon that lets us go says why before it does: look for that first.
        let answer = self.lines.next(&mut Timely::new(&mut self.stream, self.timeout), MAX_ANSWER_BYTES);
        match answer {
            Ok(Line::Whole(line)) => self.read(&line),
            Ok(Line::End | Line::TooLong) => Err(ControlError::NoAnswer(self.path.clone())),
            Err(error) => Err(self.explain(sent.err().unwrap_or(error))),
        }
    }

    /// Connects, asks once, and is gone.
    ///
    /// # Errors
    ///
    /// Those of [`Self::connect`] and [`Self::ask`].
    pub fn call(path: impl AsRef<Path>, request: &Value, timeout: Duration) -> Result<Value, ControlError> {
        Self::connect(path.as_ref(), timeout)?.ask(request)
    }

    fn read(&self, line: &[u8]) -> Result<Value, ControlError> {
        let answer: Value = serde_json::from_slice(line).map_err(|_| ControlError::NoAnswer(self.path.clone()))?;
        match answer.as_object() {
            Some(fields) if fields.len() == 1 => match fields.get("error").and_then(Value::as_str) {
                Some(reason) => Err(ControlError::Refused(reason.to_owned())),
                None => Ok(answer),
            },
            _ => Ok(answer),
        }
    }

    fn explain(&self, error: io::Error) -> ControlError {
        let path = self.path.clone();
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => ControlError::Silent { path, waited: self.timeout },
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ControlError::NoAnswer(path),
            _ => ControlError::Socket { path, doing: "ask", error },
        }
    }
}
