//! The endpoint that metrics are fetched from: as much of HTTP/1.1 as GET needs.
//!
//! Requests are taken apart by httparse. An HTTP server of a library would do more than is needed, and less: it is the bounds on clients, bytes and time
//! that matter in a daemon that has other things to do.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::ControlError;
use crate::clients::{Clients, Serve, Stream, Timely};

/// The longest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 8 << 10;

/// The most header fields of a request.
const MAX_HEADERS: usize = 64;

/// How long a client may take for its request, and for taking each part of the answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it is waited for a client to hang up, and how many bytes of what it still sends are read: a connection that is closed over unread bytes is
/// reset, and the answer may be lost with it.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_BYTES: u64 = 64 << 10;

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const WORDS_TYPE: &str = "text/plain; charset=utf-8";

/// An endpoint that serves. It ends when this is dropped.
#[derive(Debug)]
pub struct Handle {
    address: SocketAddr,
    _clients: Clients,
}

impl Handle {
    /// Where it listens, with its real port.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }
}

/// Serves what `text` gives, anew for each request, at `http://ADDRESS/metrics`. It runs on the thread of its client.
///
/// # Errors
///
/// When it cannot listen there, or no thread can be started.
pub fn serve(address: SocketAddr, text: impl Fn() -> String + Send + Sync + 'static) -> Result<Handle, ControlError> {
    let failed = |error| ControlError::Metrics { address, error };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let clients = Clients::accept("metrics", listener, Endpoint { text }).map_err(ControlError::Thread)?;
    Ok(Handle { address, _clients: clients })
}

struct Endpoint<T> {
    text: T,
}

/// What is answered.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
    /// HEAD: the length of the body, without the body.
    head_only: bool,
}

impl Answer {
    fn words(status: &'static str, words: &str) -> Self {
        Self { status, content_type: WORDS_TYPE, body: format!("{words}\n"), head_only: false }
    }
}

/// What a head asks for: `None` while it is not complete.
fn answer(head: &[u8], text: impl Fn() -> String) -> Option<Answer> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) if head.len() >= MAX_HEAD_BYTES => {
            return Some(Answer::words("431 Request Header Fields Too Large", "the request is too long"));
        }
        Ok(httparse::Status::Partial) => return None,
        Err(httparse::Error::TooManyHeaders) => {
            return Some(Answer::words("431 Request Header Fields Too Large", "the request has too many header fields"));
        }
        Err(error) => return Some(Answer::words("400 Bad Request", &format!("the request is not HTTP: {error}"))),
        Ok(httparse::Status::Complete(_)) => {}
    }
    let head_only = request.method == Some("HEAD");
    if !head_only && request.method != Some("GET") {
        return Some(Answer::words("405 Method Not Allowed", "only GET and HEAD are"));
    }
    let path = request.path.unwrap_or_default();
    let answer = match path.split_once('?').map_or(path, |(path, _)| path) {
        "/metrics" => Answer { status: "200 OK", content_type: METRICS_TYPE, body: text(), head_only },
        _ => Answer { head_only, ..Answer::words("404 Not Found", "metrics are at /metrics") },
    };
    Some(answer)
}

impl<T: Fn() -> String + Send + Sync + 'static> Serve<TcpStream> for Endpoint<T> {
    fn serve(&self, mut stream: TcpStream) {
        if let Err(error) = self.answer(&mut stream) {
            tracing::debug!("a client of the metrics is let go: {error}");
        }
        stream.end();
    }

    fn turn_away(&self, stream: TcpStream) {
        drop(stream);
    }
}

impl<T: Fn() -> String> Endpoint<T> {
    fn answer(&self, stream: &mut TcpStream) -> io::Result<()> {
        stream.set_write_limit(PATIENCE)?;
        let mut head = Vec::new();
        let mut from = Timely::new(stream, PATIENCE);
        let answer = loop {
            if let Some(answer) = answer(&head, &self.text) {
                break answer;
            }
            let mut piece = [0; 1024];
            match from.read(&mut piece)? {
                0 => return Ok(()),
                len => head.extend_from_slice(&piece[..len]),
            }
        };
        let Answer { status, content_type, body, head_only } = answer;
        let len_bytes = body.len();
        // The method that is refused is said with those that are not (RFC 9110, "405 Method Not Allowed").
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let mut message =
            format!("HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len_bytes}\r\n{allow}Connection: close\r\n\r\n");
        if !head_only {
            message.push_str(&body);
        }
        stream.write_all(message.as_bytes())?;
        stream.end_writing();
        io::copy(&mut Timely::new(stream, FAREWELL).take(FAREWELL_BYTES), &mut io::sink()).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::MAX_CLIENTS;

    fn endpoint() -> Handle {
        serve((Ipv4Addr::LOCALHOST, 0).into(), || "a 1\n".to_owned()).unwrap()
    }

    fn talk(endpoint: &Handle, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(endpoint.local_address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn metrics_are_where_prometheus_looks_for_them() {
        let endpoint = endpoint();
        let expected = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: 4\r\nConnection: close\r\n\r\na 1\n";
        assert_eq!(talk(&endpoint, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), expected);
        assert_eq!(talk(&endpoint, b"GET /metrics?x=y HTTP/1.0\r\n\r\n"), expected);
        assert_eq!(talk(&endpoint, b"HEAD /metrics HTTP/1.1\r\n\r\n"), expected.trim_end_matches("a 1\n"));
    }

    #[test]
    fn everything_else_is_refused_by_its_status() {
        let endpoint = endpoint();
        let status = |request: &[u8]| talk(&endpoint, request)[9..12].parse::<u16>().unwrap();
        assert_eq!(status(b"GET / HTTP/1.1\r\n\r\n"), 404);
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"), 405);
        assert_eq!(status(b"\x16\x03\x01\x02\x00\x01\x00"), 400);
        assert_eq!(status(&[b"GET /metrics HTTP/1.1\r\n".as_slice(), &b"a: b\r\n".repeat(MAX_HEADERS + 1), b"\r\n"].concat()), 431);
        assert_eq!(status(&[b"GET /metrics HTTP/1.1\r\na: ".as_slice(), &[b'x'; MAX_HEAD_BYTES]].concat()), 431);
    }

    #[test]
    fn a_head_may_come_in_pieces_up_to_its_limit() {
        let text = || "a 1\n".to_owned();
        assert_eq!(answer(b"", text), None);
        assert_eq!(answer(b"GET /metrics HTTP/1.1\r\n", text), None);
        let filled = |len: usize| [b"GET /metrics HTTP/1.1\r\na: ".as_slice(), &vec![b'x'; len - 26]].concat();
        assert_eq!(answer(&filled(MAX_HEAD_BYTES - 1), text), None);
        assert!(answer(&filled(MAX_HEAD_BYTES), text).is_some());
    }

    #[test]
    fn silent_clients_take_no_more_than_their_places() {
        let endpoint = endpoint();
        let mut silent: Vec<_> = (0..MAX_CLIENTS).map(|_| TcpStream::connect(endpoint.local_address()).unwrap()).collect();
        // The line of connections is served in its order: when this one has been let go, all before have their places.
        let mut one_more = TcpStream::connect(endpoint.local_address()).unwrap();
        assert_eq!(one_more.read(&mut [0]).unwrap(), 0);
        silent.pop();
        let began = std::time::Instant::now();
        loop {
            let mut stream = TcpStream::connect(endpoint.local_address()).unwrap();
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
            let mut answer = String::new();
            if stream.read_to_string(&mut answer).is_ok() && answer.ends_with("a 1\n") {
                return;
            }
            assert!(began.elapsed() < PATIENCE);
        }
    }

    #[test]
    fn an_address_in_use_is_an_error_that_says_so() {
        let endpoint = endpoint();
        let error = serve(endpoint.local_address(), String::new).unwrap_err();
        assert!(error.to_string().contains("choose another port"), "{error}");
    }
}
