//! A raw NBD client on a Unix socket: requests go out as they are asked for, simple replies come in as they are answered.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use godwit_nbd::wire::HandshakeFlags;
use godwit_nbd::{Command, CommandFlags, Errno, OptionCode, Request, client};

/// The length of a server's greeting in bytes.
const GREETING_LEN: usize = 18;

/// How much is received at a time.
const CHUNK_LEN: usize = 256 << 10;

/// The sending half of a connection in transmission.
#[derive(Debug)]
pub struct Sender {
    stream: UnixStream,
}

impl Sender {
    /// Sends a request, and the payload of a write.
    ///
    /// # Errors
    ///
    /// When the connection has ended.
    pub fn send(&mut self, request: &Request, payload: &[u8]) -> io::Result<()> {
        let mut message = client::request(request).to_vec();
        message.extend_from_slice(payload);
        self.stream.write_all(&message)
    }

    /// Ends the connection in both directions, without a word.
    pub fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// A reply.
#[derive(Debug)]
pub struct Answer {
    /// Of which request.
    pub cookie: u64,
    /// Whether it succeeded.
    pub errno: Errno,
    /// What was read.
    pub data: Vec<u8>,
}

/// The receiving half of a connection in transmission.
#[derive(Debug)]
pub struct Receiver {
    stream: UnixStream,
    received: Vec<u8>,
}

impl Receiver {
    /// Waits for the next reply; `read_len` tells how long the data of a successful one are, by its cookie.
    ///
    /// # Errors
    ///
    /// When the connection has ended, or what came is no reply.
    pub fn receive(&mut self, read_len: impl Fn(u64) -> u32) -> io::Result<Answer> {
        loop {
            match client::Reply::parse(&self.received, &read_len) {
                Ok(Some((len, client::Reply::Simple { cookie, errno, data }))) => {
                    self.received.drain(..len);
                    return Ok(Answer { cookie, errno, data });
                }
                Ok(Some((_, chunk @ client::Reply::Chunk { .. }))) => return Err(garbled(format!("{chunk:?} was not negotiated"))),
                Ok(None) => self.fill()?,
                Err(error) => return Err(garbled(error.to_string())),
            }
        }
    }

    /// Limits how long one receive may take; none means for ever.
    ///
    /// # Panics
    ///
    /// When the limit is zero.
    pub fn limit(&self, limit: Option<Duration>) {
        self.stream.set_read_timeout(limit).expect("a limit above zero");
    }

    fn fill(&mut self) -> io::Result<()> {
        let len = self.received.len();
        self.received.resize(len + CHUNK_LEN, 0);
        let count = self.stream.read(&mut self.received[len..]);
        self.received.truncate(len + *count.as_ref().unwrap_or(&0));
        match count {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A connection in transmission, with the default export.
#[derive(Debug)]
pub struct Client {
    sender: Sender,
    receiver: Receiver,
    cookie: u64,
}

impl Client {
    /// Connects and goes through the handshake, without structured replies.
    ///
    /// # Errors
    ///
    /// When the server is not there, or refuses.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        Self::on(UnixStream::connect(socket)?)
    }

    /// Goes through the handshake on a stream.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub fn on(stream: UnixStream) -> io::Result<Self> {
        let mut sender = Sender { stream: stream.try_clone()? };
        let mut receiver = Receiver { stream, received: Vec::new() };
        while receiver.received.len() < GREETING_LEN {
            receiver.fill()?;
        }
        client::greeting(&receiver.received).map_err(|error| garbled(error.to_string()))?;
        receiver.received.drain(..GREETING_LEN);
        sender.stream.write_all(&client::flags(HandshakeFlags(3)))?;
        sender.stream.write_all(&client::info(OptionCode::GO, "", &[]))?;
        loop {
            match client::OptionReply::parse(&receiver.received).map_err(|error| garbled(error.to_string()))? {
                None => receiver.fill()?,
                Some((_, reply)) if reply.reply.is_error() => return Err(garbled(format!("{reply:?}"))),
                Some((len, reply)) => {
                    receiver.received.drain(..len);
                    if reply.is_final() {
                        return Ok(Self { sender, receiver, cookie: 0 });
                    }
                }
            }
        }
    }

    /// The two halves, for two threads.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    /// One request and its reply.
    ///
    /// # Errors
    ///
    /// When the connection has ended.
    pub fn ask(&mut self, command: Command, offset: u64, length: u32, payload: &[u8]) -> io::Result<Answer> {
        self.ask_with(CommandFlags::NONE, command, offset, length, payload)
    }

    fn ask_with(&mut self, flags: CommandFlags, command: Command, offset: u64, length: u32, payload: &[u8]) -> io::Result<Answer> {
        self.cookie += 1;
        let cookie = self.cookie;
        self.sender.send(&Request { cookie, command, flags, offset, length }, payload)?;
        let data_len = if command == Command::Read { length } else { 0 };
        let answer = self.receiver.receive(|_| data_len)?;
        if answer.cookie == cookie { Ok(answer) } else { Err(garbled(format!("{} is answered instead of {cookie}", answer.cookie))) }
    }

    /// One request with flags: what was read, or the server's error.
    ///
    /// # Errors
    ///
    /// The server's.
    ///
    /// # Panics
    ///
    /// When the connection has ended.
    pub fn request(&mut self, command: Command, flags: CommandFlags, offset: u64, length: u32, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let answer = self.ask_with(flags, command, offset, length, payload);
        let answer = answer.unwrap_or_else(|error| panic!("{command:?} of {length} bytes at {offset}: {error}"));
        if answer.errno == Errno::OK { Ok(answer.data) } else { Err(answer.errno) }
    }

    /// Limits how long one answer may take; none means for ever.
    pub fn limit(&self, limit: Option<Duration>) {
        self.receiver.limit(limit);
    }

    /// Writes.
    ///
    /// # Panics
    ///
    /// When it does not succeed.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let length = u32::try_from(data.len()).expect("a short write");
        let answer = self.ask(Command::Write, offset, length, data).expect("the write is answered");
        assert_eq!(answer.errno, Errno::OK, "write of {length} bytes at {offset}");
    }

    /// Reads.
    ///
    /// # Panics
    ///
    /// When it does not succeed.
    pub fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        let answer = self.ask(Command::Read, offset, length, &[]).expect("the read is answered");
        assert_eq!(answer.errno, Errno::OK, "read of {length} bytes at {offset}");
        answer.data
    }
}

fn garbled(what: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}
