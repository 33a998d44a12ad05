//! A server on one thread, and clients that a test drives byte by byte.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use godwit_memory::{ClassLayout, Layout};
use godwit_nbd::wire::{ChunkFlags, ChunkType, HandshakeFlags};
use godwit_nbd::{Command, CommandFlags, Errno, InfoType, OptionCode, Request, client};
use godwit_rdma::Fabric;
use godwit_reactor::{Event, Incoming, PollBudget, Reactor, Uring, UringConfig};

use super::queue::{GEOMETRY, MIB, MemoryQueue};
use crate::block::Geometry;
use crate::nbd::{Front, Limits, Volume};

pub(super) const HANDSHAKE_FLAGS: HandshakeFlags = HandshakeFlags(3);

/// One reactor with one front end.
pub(super) struct World {
    pub(super) reactor: Uring,
    pub(super) fabric: Fabric,
    pub(super) queue: MemoryQueue,
    pub(super) front: Front,
    events: Vec<Event<Incoming>>,
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(GEOMETRY, Limits::default(), &[(4096, 64), (131_072, 8), (MIB, 4)])
    }

    pub(super) fn with(geometry: Geometry, limits: Limits, pool: &[(usize, usize)]) -> Self {
        let volume = Volume::new("vol0", "a volume", &geometry, limits).unwrap();
        Self::serving(volume, geometry, pool)
    }

    pub(super) fn serving(volume: Arc<Volume>, geometry: Geometry, pool: &[(usize, usize)]) -> Self {
        let classes: Vec<_> = pool.iter().map(|&(buffer_bytes, count)| ClassLayout { buffer_bytes, count }).collect();
        // It never sleeps, for its clients are driven by the same thread.
        let config = UringConfig { pool: Layout::new(&classes).unwrap(), poll: PollBudget(Duration::ZERO) };
        let reactor = Uring::new(&config).unwrap();
        let front = Front::new(&reactor, 1, volume);
        Self { reactor, fabric: Fabric::new(), queue: MemoryQueue::new(geometry), front, events: Vec::new() }
    }

    pub(super) fn turn(&mut self) {
        // The clients are on this thread, too: a turn that slept until they do something would sleep for ever.
        self.reactor.waker().wake();
        self.reactor.turn(&mut self.events).unwrap();
        for event in self.events.drain(..) {
            self.front.on_event(&mut self.reactor, event);
        }
        self.queue.turn();
        self.front.pump(&mut self.reactor, &mut self.fabric, &mut self.queue);
    }

    /// So many turns that all that can happen has happened.
    pub(super) fn settle(&mut self) {
        (0..12).for_each(|_| self.turn());
    }

    pub(super) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(4);
        while !done(self) {
            assert!(Instant::now() < deadline, "never: {what}; {:?}, {:?}", self.front, self.queue.pending);
            self.turn();
        }
    }

    /// A client that has connected and said nothing yet.
    pub(super) fn connect(&mut self) -> Client {
        let (socket, ours) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let same = ours.try_clone().unwrap();
        self.front.adopt(&mut self.reactor, Incoming::from_socket(ours).unwrap());
        // Less than the reactor asks for, so that a client that takes nothing is felt before a whole transfer is in the socket.
        socket2::SockRef::from(&same).set_send_buffer_size(128 << 10).unwrap();
        Client {
            socket,
            to_send: VecDeque::new(),
            received: Vec::new(),
            reads: HashMap::new(),
            parts: HashMap::new(),
            complete: HashMap::new(),
            cookie: 0,
            closed: false,
            takes: true,
        }
    }

    /// A client in transmission with the default export.
    pub(super) fn simple_client(&mut self) -> Client {
        self.client(&[client::info(OptionCode::GO, "", &[])])
    }

    /// The same, with structured replies and the context `base:allocation`.
    pub(super) fn structured_client(&mut self) -> Client {
        self.client(&[
            client::option(OptionCode::STRUCTURED_REPLY, &[]),
            client::meta_context(OptionCode::SET_META_CONTEXT, "", &["base:allocation"]),
            client::info(OptionCode::GO, "", &[InfoType::BLOCK_SIZE]),
        ])
    }

    fn client(&mut self, options: &[Vec<u8>]) -> Client {
        let mut client = self.connect();
        client.say(&client::flags(HANDSHAKE_FLAGS));
        self.until("a greeting", |world| {
            client.pump();
            world.turn();
            client.received.len() >= 18
        });
        assert_eq!(client::greeting(&client.received), Ok(Some(HANDSHAKE_FLAGS)));
        client.received.drain(..18);
        for option in options {
            client.say(option);
            self.until("an answer", |_| {
                client.pump();
                let Some((len, reply)) = client::OptionReply::parse(&client.received).unwrap() else { return false };
                assert!(!reply.reply.is_error(), "{reply:?}");
                client.received.drain(..len);
                reply.is_final()
            });
        }
        client
    }

    /// Sends requests and waits for the reply to the last, and all that come before that.
    pub(super) fn ask(&mut self, client: &mut Client, request: Request, payload: &[u8]) -> Answer {
        client.request(request, payload);
        self.answer(client, request.cookie)
    }

    /// Waits for the reply to one request.
    pub(super) fn answer(&mut self, client: &mut Client, cookie: u64) -> Answer {
        let mut answer = None;
        self.until("a reply", |_| {
            client.pump();
            answer = client.answers().get(&cookie).cloned();
            answer.is_some() || client.closed
        });
        answer.expect("the connection was closed")
    }

    pub(super) fn until_closed(&mut self, client: &mut Client) {
        self.until("an end of the connection", |_| {
            client.pump();
            client.closed
        });
    }

    /// All buffers are back, and nothing is under way.
    pub(super) fn assert_at_rest(&mut self) {
        self.settle();
        assert_eq!(self.reactor.pool().in_use(), 0, "{:?}", self.front);
    }
}

/// A whole reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) errno: Errno,
    /// The data of a read, put together.
    pub(super) data: Vec<u8>,
    /// Offset and length of each chunk of data, as they came.
    pub(super) chunks: Vec<(u64, usize)>,
    /// Extents of a block status.
    pub(super) extents: Vec<(u32, u32)>,
}

pub(super) struct Client {
    pub(super) socket: UnixStream,
    to_send: VecDeque<u8>,
    pub(super) received: Vec<u8>,
    /// What was asked for, by cookie.
    reads: HashMap<u64, Request>,
    parts: HashMap<u64, Answer>,
    complete: HashMap<u64, Answer>,
    cookie: u64,
    pub(super) closed: bool,
    /// Whether it reads what comes.
    pub(super) takes: bool,
}

impl Client {
    pub(super) fn say(&mut self, bytes: &[u8]) {
        self.to_send.extend(bytes);
        self.pump();
    }

    pub(super) fn unsent(&self) -> usize {
        self.to_send.len()
    }

    /// Moves what the socket takes and gives.
    pub(super) fn pump(&mut self) {
        while !self.to_send.is_empty() {
            match self.socket.write(self.to_send.as_slices().0) {
                Ok(len) => drop(self.to_send.drain(..len)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.to_send.clear();
                    break;
                }
            }
        }
        let mut chunk = vec![0; 1 << 18];
        while self.takes && !self.closed {
            match self.socket.read(&mut chunk) {
                Ok(0) => self.closed = true,
                Ok(len) => self.received.extend_from_slice(&chunk[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.closed = true,
            }
        }
    }

    pub(super) fn next(&mut self, command: Command, offset: u64, length: u32) -> Request {
        self.cookie += 1;
        Request { cookie: self.cookie, command, flags: CommandFlags::NONE, offset, length }
    }

    /// The request is sent by other means; its reply is to be understood.
    pub(super) fn expect(&mut self, request: Request) {
        self.reads.insert(request.cookie, request);
    }

    pub(super) fn request(&mut self, request: Request, payload: &[u8]) {
        self.expect(request);
        self.say(&client::request(&request));
        self.say(payload);
    }

    /// The replies that are complete.
    pub(super) fn answers(&mut self) -> &HashMap<u64, Answer> {
        let Self { received, reads, parts, complete, .. } = self;
        let mut used = 0;
        let len_of = |cookie: u64| match reads.get(&cookie) {
            Some(request) if request.command == Command::Read => request.length,
            _ => 0,
        };
        while let Some((len, reply)) = client::Reply::parse(&received[used..], len_of).unwrap() {
            used += len;
            let request = reads[&reply.cookie()];
            let answer = parts.entry(reply.cookie()).or_insert_with(|| Answer::new(Errno::OK));
            answer.errno = reply.errno();
            if answer.take(&request, reply) {
                let answer = parts.remove(&request.cookie).unwrap();
                assert!(complete.insert(request.cookie, answer).is_none(), "a request is answered once");
            }
        }
        received.drain(..used);
        complete
    }
}

impl Answer {
    /// A reply without data.
    pub(super) fn new(errno: Errno) -> Self {
        Self { errno, data: Vec::new(), chunks: Vec::new(), extents: Vec::new() }
    }

    /// Takes one reply or chunk; whether it is the last.
    fn take(&mut self, request: &Request, reply: client::Reply) -> bool {
        let (flags, chunk, payload) = match reply {
            client::Reply::Simple { data, .. } => {
                self.data = data;
                return true;
            }
            client::Reply::Chunk { flags, chunk, payload, .. } => (flags, chunk, payload),
        };
        if chunk == ChunkType::OFFSET_DATA {
            let (offset, data) = payload.split_first_chunk().unwrap();
            let offset = u64::from_be_bytes(*offset);
            self.data.resize(request.length as usize, 0);
            let start = usize::try_from(offset - request.offset).unwrap();
            self.data[start..start + data.len()].copy_from_slice(data);
            self.chunks.push((offset, data.len()));
        } else if chunk == ChunkType::BLOCK_STATUS {
            let words: Vec<_> = payload[4..].chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
            self.extents = words.chunks(2).map(|pair| (pair[0], pair[1])).collect();
        }
        flags.contains(ChunkFlags::DONE)
    }
}

pub(super) fn flagged(request: Request, flags: CommandFlags) -> Request {
    Request { flags, ..request }
}
