//! A client and a server core joined by a pipe that cuts the stream anywhere: what is read is what was written.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use std::collections::HashMap;

use godwit_nbd::wire::{ChunkFlags, ChunkType, HandshakeFlags};
use godwit_nbd::{
    BASE_ALLOCATION, Command, CommandFlags, Errno, Export, ExtentFlags, Handshake, InfoType, OptionCode, OptionReplyType, Outcome, Parsed,
    Reply, Request, Requests, Session, client,
};
use proptest::prelude::*;

const DISK_LEN: u32 = 64 << 10;
const BLOCK: u32 = 512;

/// Cuts streams by a seed (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound).unwrap()).unwrap()
    }

    /// Some beginning of the bytes, never empty unless they are.
    fn cut<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        match bytes.len() {
            0 => bytes,
            len => &bytes[..1 + self.below(len.min(100))],
        }
    }
}

/// A server: the cores, a disk in memory, and a stream buffer as a driver has one.
struct Server {
    exports: Vec<Export>,
    phase: Phase,
    disk: Vec<u8>,
    /// The write whose payload is being received, and whether it is kept.
    write: Option<(Request, Vec<u8>)>,
    disconnected: bool,
}

enum Phase {
    Handshake(Handshake),
    Transmission(Session, Requests),
}

impl Server {
    fn new() -> Self {
        let block = godwit_nbd::BlockSizes::new(BLOCK, 4096, 1 << 20).unwrap();
        let export = Export::new("disk", "", DISK_LEN.into(), block, support::EVERYTHING).unwrap();
        Self {
            exports: vec![export],
            phase: Phase::Handshake(Handshake::new()),
            disk: vec![0; DISK_LEN as usize],
            write: None,
            disconnected: false,
        }
    }

    /// Takes all of the input; appends what it answers.
    fn receive(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            let consumed = match &mut self.phase {
                Phase::Handshake(handshake) => {
                    let (consumed, outcome) = handshake.receive(input, &self.exports, out).unwrap();
                    if let Outcome::Transmission(session) = outcome {
                        self.phase = Phase::Transmission(session, Requests::new());
                    }
                    consumed
                }
                Phase::Transmission(session, requests) => {
                    let (consumed, parsed) = requests.parse(input).unwrap();
                    let session = *session;
                    match parsed {
                        None => {}
                        Some(Parsed::Request(request)) => self.begin(&session, request, out),
                        Some(Parsed::Refused(reply)) => out.extend_from_slice(reply.as_bytes()),
                    }
                    consumed + self.payload(&session, &input[consumed..], out)
                }
            };
            assert!(consumed > 0, "no progress");
            input = &input[consumed..];
        }
    }

    fn begin(&mut self, session: &Session, request: Request, out: &mut Vec<u8>) {
        let Phase::Transmission(_, requests) = &mut self.phase else { unreachable!() };
        if let Err(refusal) = request.check(session, &self.exports[session.export]) {
            let reply = Reply::error(session, &request, refusal.errno(), refusal);
            if let Some(reply) = requests.refuse(reply) {
                out.extend_from_slice(reply.as_bytes());
            }
        } else if request.payload_len() > 0 {
            self.write = Some((request, Vec::new()));
        } else {
            self.execute(session, &request, &[], out);
        }
    }

    fn payload(&mut self, session: &Session, input: &[u8], out: &mut Vec<u8>) -> usize {
        let Phase::Transmission(_, requests) = &mut self.phase else { unreachable!() };
        let Some((request, mut data)) = self.write.take() else {
            return 0;
        };
        let len = input.len().min(requests.payload_owed() as usize);
        data.extend_from_slice(&input[..len]);
        requests.take(u32::try_from(len).unwrap());
        if requests.payload_owed() == 0 {
            self.execute(session, &request, &data, out);
        } else {
            self.write = Some((request, data));
        }
        len
    }

    fn execute(&mut self, session: &Session, request: &Request, data: &[u8], out: &mut Vec<u8>) {
        let start = usize::try_from(request.offset).unwrap();
        let range = start..start + request.length as usize;
        match request.command {
            Command::Disconnect => self.disconnected = true,
            Command::Read => {
                out.extend_from_slice(Reply::read(session, request).as_bytes());
                out.extend_from_slice(&self.disk[range]);
            }
            Command::BlockStatus => {
                let reply = Reply::block_status(session, request, request.length, ExtentFlags::NONE);
                out.extend_from_slice(reply.as_bytes());
            }
            command => {
                match command {
                    Command::Write => self.disk[range].copy_from_slice(data),
                    Command::WriteZeroes => self.disk[range].fill(0),
                    _ => {}
                }
                out.extend_from_slice(Reply::ok(request).as_bytes());
            }
        }
    }
}

/// Server and client ends of one connection, and what is under way between them.
struct World {
    server: Server,
    chance: Chance,
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    /// What the client received and did not take apart yet.
    inbox: Vec<u8>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            server: Server::new(),
            chance: Chance(seed | 1),
            to_server: Vec::new(),
            to_client: Handshake::greeting().to_vec(),
            inbox: Vec::new(),
        }
    }

    /// Carries some bytes to the server.
    fn step(&mut self) {
        let len = self.chance.cut(&self.to_server).len();
        let bytes: Vec<u8> = self.to_server.drain(..len).collect();
        self.server.receive(&bytes, &mut self.to_client);
    }

    fn carry_all(&mut self) {
        while !self.to_server.is_empty() {
            self.step();
        }
    }

    /// Carries bytes to the client until it can take one whole item off its inbox.
    fn hear<T>(&mut self, mut parse: impl FnMut(&[u8]) -> Option<(usize, T)>) -> T {
        loop {
            if let Some((len, item)) = parse(&self.inbox) {
                self.inbox.drain(..len);
                return item;
            }
            let len = self.chance.cut(&self.to_client).len();
            assert!(len > 0, "the server owes the client something");
            self.inbox.extend(self.to_client.drain(..len));
        }
    }

    /// Sends an option; the replies in front of the final one, and the kind of that.
    fn option(&mut self, option: &[u8]) -> (Vec<client::OptionReply>, OptionReplyType) {
        self.to_server.extend_from_slice(option);
        self.carry_all();
        let mut replies = Vec::new();
        loop {
            let reply = self.hear(|bytes| client::OptionReply::parse(bytes).unwrap());
            if reply.is_final() {
                assert!(self.to_client.is_empty() && self.inbox.is_empty());
                return (replies, reply.reply);
            }
            replies.push(reply);
        }
    }

    fn enter(&mut self, structured: bool) {
        let offered = self.hear(|bytes| client::greeting(bytes).unwrap().map(|flags| (18, flags)));
        assert!(offered.contains(HandshakeFlags::FIXED_NEWSTYLE));
        self.to_server.extend(client::flags(offered));
        if structured {
            let (_, end) = self.option(&client::option(OptionCode::STRUCTURED_REPLY, &[]));
            assert_eq!(end, OptionReplyType::ACK);
            let set = client::meta_context(OptionCode::SET_META_CONTEXT, "disk", &[BASE_ALLOCATION]);
            let (contexts, end) = self.option(&set);
            assert_eq!((contexts.len(), end), (1, OptionReplyType::ACK));
        }
        let go = client::info(OptionCode::GO, "disk", &[InfoType::BLOCK_SIZE]);
        let (infos, end) = self.option(&go);
        assert_eq!((infos.len(), end), (2, OptionReplyType::ACK));
    }
}

/// What a client must get for a request.
enum Expected {
    Nothing,
    Data(u64, Vec<u8>),
    Extent(u32),
    Error(Errno),
}

/// What a request does to the model, and what must be answered.
fn model(disk: &mut [u8], request: &Request, data: &[u8], structured: bool) -> Expected {
    let end = request.offset + u64::from(request.length);
    let whole = request.offset.is_multiple_of(BLOCK.into()) && request.length.is_multiple_of(BLOCK);
    let status = request.command == Command::BlockStatus;
    if status && (!structured || request.length == 0) {
        return Expected::Error(Errno::EINVAL);
    }
    if end > DISK_LEN.into() {
        let writes = matches!(request.command, Command::Write | Command::WriteZeroes);
        return Expected::Error(if writes { Errno::ENOSPC } else { Errno::EINVAL });
    }
    if !whole {
        return Expected::Error(Errno::EINVAL);
    }
    let start = usize::try_from(request.offset).unwrap();
    let range = start..start + request.length as usize;
    match request.command {
        Command::Read => return Expected::Data(request.offset, disk[range].to_vec()),
        Command::BlockStatus => return Expected::Extent(request.length),
        Command::Write => disk[range].copy_from_slice(data),
        Command::WriteZeroes => disk[range].fill(0),
        _ => {}
    }
    Expected::Nothing
}

fn compare(expected: Expected, reply: &client::Reply, structured: bool) {
    match (expected, reply) {
        (Expected::Error(errno), reply) => {
            assert_eq!(reply.errno(), errno);
            assert_eq!(matches!(reply, client::Reply::Chunk { .. }), structured);
        }
        (Expected::Nothing, client::Reply::Simple { errno, data, .. }) => {
            assert_eq!((*errno, data.len()), (Errno::OK, 0));
        }
        (Expected::Data(_, expected), client::Reply::Simple { errno, data, .. }) => {
            assert!(!structured, "a read is answered by chunks");
            assert_eq!((*errno, data), (Errno::OK, &expected));
        }
        (Expected::Data(offset, expected), client::Reply::Chunk { flags, chunk, payload, .. }) => {
            assert_eq!(*flags, ChunkFlags::DONE);
            if expected.is_empty() {
                assert_eq!((*chunk, payload.len()), (ChunkType::NONE, 0));
            } else {
                assert_eq!(*chunk, ChunkType::OFFSET_DATA);
                assert_eq!(*payload, [&offset.to_be_bytes()[..], &expected].concat());
            }
        }
        (Expected::Extent(length), client::Reply::Chunk { flags, chunk, payload, .. }) => {
            assert_eq!((*flags, *chunk), (ChunkFlags::DONE, ChunkType::BLOCK_STATUS));
            let words = [1, length, 0].map(u32::to_be_bytes);
            assert_eq!(*payload, words.concat());
        }
        (_, reply) => panic!("{reply:?}"),
    }
}

fn any_request() -> impl Strategy<Value = (Command, u64, u32)> {
    let command = prop_oneof![
        Just(Command::Read),
        Just(Command::Write),
        Just(Command::Trim),
        Just(Command::Cache),
        Just(Command::WriteZeroes),
        Just(Command::BlockStatus),
    ];
    let range = prop_oneof![
        8 => (0..120_u32, 0..10_u32).prop_map(|(first, count)| (u64::from(first * BLOCK), count * BLOCK)),
        1 => (0..DISK_LEN, 0..4096_u32).prop_map(|(offset, length)| (u64::from(offset), length)),
        1 => (120..130_u32, 0..10_u32).prop_map(|(first, count)| (u64::from(first * BLOCK), count * BLOCK)),
    ];
    (command, range).prop_map(|(command, (offset, length))| (command, offset, length))
}

proptest! {
    #[test]
    fn what_is_read_is_what_was_written(
        seed: u64,
        structured: bool,
        script in prop::collection::vec(any_request(), 1..40),
    ) {
        let mut world = World::new(seed);
        world.enter(structured);
        let mut disk = vec![0; DISK_LEN as usize];
        let mut expected = HashMap::new();
        let mut read_lens = HashMap::new();
        for (cookie, (command, offset, length)) in (100..).zip(script) {
            let request = Request { cookie, command, flags: CommandFlags::FUA, offset, length };
            let fill = u8::try_from(cookie & 0xff).unwrap();
            let data = vec![fill; request.payload_len() as usize];
            expected.insert(cookie, model(&mut disk, &request, &data, structured));
            read_lens.insert(cookie, if command == Command::Read { length } else { 0 });
            world.to_server.extend(client::request(&request));
            world.to_server.extend(data);
            world.step(); // requests and replies are under way at once
        }
        let goodbye = Request {
            cookie: 1,
            command: Command::Disconnect,
            flags: CommandFlags::NONE,
            offset: 0,
            length: 0,
        };
        world.to_server.extend(client::request(&goodbye));
        world.carry_all();
        prop_assert!(world.server.disconnected);
        while !expected.is_empty() {
            let reply = world.hear(|bytes| {
                client::Reply::parse(bytes, |cookie| read_lens[&cookie]).unwrap()
            });
            compare(expected.remove(&reply.cookie()).expect("one reply each"), &reply, structured);
        }
        prop_assert!(world.to_client.is_empty() && world.inbox.is_empty());
        prop_assert_eq!(&world.server.disk, &disk);
    }
}
