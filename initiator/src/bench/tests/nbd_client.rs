//! A client and a server's end of its socket, which a test drives byte by byte.

#![expect(clippy::cast_possible_truncation, reason = "patterns of bytes may repeat")]

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use godwit_memory::Layout;
use godwit_nbd::Reply;
use godwit_reactor::{Event, Incoming, PollBudget, Token, Uring, UringConfig};

use super::*;

const GEOMETRY: Geometry = Geometry {
    size_bytes: 64 << 20,
    block_bytes: 512,
    optimal_bytes: 512,
    max_transfer_bytes: 1 << 20,
    max_zeroes_bytes: 0,
    max_discard_bytes: 0,
    read_only: false,
    can_write_zeroes: false,
    can_discard: false,
    volatile_cache: true,
};

struct Stage {
    reactor: Uring,
    fabric: Fabric,
    client: Client,
    server: UnixStream,
    heard: Vec<u8>,
}

impl Stage {
    fn new() -> Self {
        let config = UringConfig { pool: Layout::of_total(64 << 20), poll: PollBudget(Duration::ZERO) };
        let mut reactor = Uring::new(&config).unwrap();
        let (server, ours) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let stream = reactor.adopt(Incoming::from_socket(ours).unwrap(), Token(1)).unwrap();
        Self { reactor, fabric: Fabric::new(), client: Client::new(stream, GEOMETRY, 16), server, heard: Vec::new() }
    }

    fn submit(&mut self, ticket: u64, op: BlockOp) {
        self.client.submit(&mut self.reactor, &mut self.fabric, Ticket(ticket), op).unwrap();
    }

    fn read(&mut self, ticket: u64, offset: u64, len_bytes: usize) {
        let buffer = self.reactor.pool().take(len_bytes).unwrap();
        self.submit(ticket, BlockOp::Read { offset, len_bytes, buffer });
    }

    fn write(&mut self, ticket: u64, offset: u64, data: &[u8]) {
        let mut buffer = self.reactor.pool().take(data.len()).unwrap();
        buffer.copy_from_slice(data);
        self.submit(ticket, BlockOp::Write { offset, len_bytes: data.len(), buffer, fua: false });
    }

    /// One turn of the client's thread, and the server hears what there is.
    fn turn(&mut self) {
        self.reactor.waker().wake();
        let mut events = Vec::new();
        self.reactor.turn(&mut events).unwrap();
        if events.iter().any(|event| matches!(event, Event::Readable { .. })) {
            self.client.receive(&mut self.reactor);
        }
        self.client.flush(&mut self.reactor);
        let mut more = vec![0; 100_000];
        if let Ok(count) = self.server.read(&mut more) {
            self.heard.extend_from_slice(&more[..count]);
        }
    }

    fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !condition(self) {
            assert!(Instant::now() < deadline, "never: {what}");
            self.turn();
        }
    }

    fn say(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.server.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
            self.turn();
        }
    }

    fn ended(&mut self) -> BlockDone {
        let mut done = None;
        self.until("an end", |stage| {
            done = BlockQueue::<Uring>::next_done(&mut stage.client);
            done.is_some()
        });
        done.unwrap()
    }
}

fn header(cookie: u64, command: Command, offset: u64, length: u32) -> Vec<u8> {
    client::request(&Request { cookie, command, flags: CommandFlags::NONE, offset, length }).to_vec()
}

fn reply(cookie: u64, errno: Errno) -> Vec<u8> {
    Reply::simple(errno, cookie).as_bytes().to_vec()
}

/// Bytes that tell where they belong.
fn noise(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 251 + at) as u8 ^ seed).collect()
}

#[test]
fn requests_of_a_turn_leave_in_their_order() {
    let mut stage = Stage::new();
    let data = noise(1024, 1);
    stage.read(70, 512, 4096);
    stage.write(71, 8192, &data);
    stage.submit(72, BlockOp::Flush);
    stage.turn();
    let expected = [header(0, Command::Read, 512, 4096), header(1, Command::Write, 8192, 1024), data, header(2, Command::Flush, 0, 0)];
    assert_eq!(stage.heard, expected.concat());
}

#[test]
fn replies_are_taken_in_any_order_cut_anywhere() {
    let lengths = [512, 4096, 100_000 / 512 * 512, 1 << 20, 4096, 4096];
    for cut in [1, 13, 16, 17, 4096 + 16, 65_536, 300_000] {
        let mut stage = Stage::new();
        for (ticket, &len) in (0_u64..).zip(&lengths) {
            stage.read(10 + ticket, 0, len);
        }
        stage.write(20, 0, &[7; 512]);
        stage.turn();
        let order = [5, 2, 6, 0, 3, 1, 4];
        let said = order.iter().map(|&cookie| {
            let data = lengths.get(cookie).map(|&len| noise(len, cookie as u8));
            [reply(cookie as u64, Errno::OK), data.unwrap_or_default()].concat()
        });
        let said = said.collect::<Vec<_>>().concat();
        // A million turns are too many.
        let pieces: Vec<&[u8]> =
            if cut < 100 { said[..50_000].chunks(cut).chain([&said[50_000..]]).collect() } else { said.chunks(cut).collect() };
        pieces.into_iter().for_each(|piece| stage.say(piece));
        for cookie in order {
            let done = stage.ended();
            assert_eq!((done.ticket, done.result), (Ticket(if cookie == 6 { 20 } else { 10 + cookie as u64 }), Ok(())));
            if let Some(&len) = lengths.get(cookie) {
                assert!(*done.buffer.unwrap() == noise(len, cookie as u8), "read {cookie}, cut at {cut}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_the_socket_leaves_later_and_in_order() {
    let mut stage = Stage::new();
    let mut expected = Vec::new();
    for round in 0..4_u64 {
        for ticket in 0..8 {
            let data = noise(300_032, (round * 8 + ticket) as u8);
            stage.write(ticket, ticket << 20, &data);
            stage.read(8 + ticket, 0, 512);
            expected.extend([
                header(2 * ticket, Command::Write, ticket << 20, 300_032),
                data,
                header(2 * ticket + 1, Command::Read, 0, 512),
            ]);
        }
        let whole: usize = expected.iter().map(Vec::len).sum();
        stage.until("all that was sent", |stage| stage.heard.len() >= whole);
        // Places are given again last one first, so they are freed from the last to the first.
        for ticket in (0..8).rev() {
            stage.say(&[reply(2 * ticket + 1, Errno::OK), vec![0; 512], reply(2 * ticket, Errno::OK)].concat());
        }
        (0..16).for_each(|_| assert_eq!(stage.ended().result, Ok(())));
    }
    assert!(stage.heard == expected.concat());
}

#[test]
fn the_end_is_told_after_all_requests() {
    let mut stage = Stage::new();
    stage.read(1, 0, 512);
    stage.client.disconnect(&mut stage.reactor);
    stage.turn();
    assert_eq!(stage.heard, [header(0, Command::Read, 0, 512), header(0, Command::Disconnect, 0, 0)].concat());
}

#[test]
fn a_full_queue_hands_the_operation_back() {
    let mut stage = Stage::new();
    (0..16).for_each(|ticket| stage.read(ticket, 0, 512));
    let buffer = stage.reactor.pool().take(512).unwrap();
    let op = BlockOp::Read { offset: 0, len_bytes: 512, buffer };
    assert!(stage.client.submit(&mut stage.reactor, &mut stage.fabric, Ticket(16), op).is_err());
}

#[test]
fn an_error_ends_its_request_alone() {
    let mut stage = Stage::new();
    stage.read(1, 0, 512);
    stage.read(2, 0, 512);
    stage.turn();
    stage.read(3, 0, 512);
    stage.turn();
    stage.say(&[reply(0, Errno::ENOSPC), reply(2, Errno::ESHUTDOWN), reply(1, Errno::OK), vec![9; 512]].concat());
    assert_eq!(stage.ended().result, Err(BlockError::NoSpace));
    assert_eq!(stage.ended().result.unwrap_err().to_string(), "the server answers ESHUTDOWN");
    assert_eq!(stage.ended().result, Ok(()));
    assert_eq!(stage.client.failure(), None);
}

#[test]
fn what_is_no_reply_ends_the_connection_and_all_requests() {
    let structured = [0x66, 0x8e, 0x33, 0xef].into_iter().chain([0; 28]).collect();
    for (said, words) in [
        (reply(7, Errno::OK), "request 7, which was not made"),
        (vec![0xff; 16], "0xffffffff stands where the magic of a reply belongs"),
        (structured, "0x668e33ef stands where"),
    ] {
        let mut stage = Stage::new();
        stage.read(1, 0, 512);
        stage.turn();
        stage.server.write_all(&said).unwrap();
        assert_eq!(stage.ended().result, Err(BlockError::VolumeGone));
        assert!(stage.client.failure().unwrap().contains(words), "{:?}", stage.client.failure());
        stage.read(2, 0, 512);
        assert_eq!(stage.ended().ticket, Ticket(2));
    }
}

#[test]
fn a_server_that_goes_ends_all_requests() {
    let mut stage = Stage::new();
    stage.read(1, 0, 1 << 20);
    stage.turn();
    stage.say(&[reply(0, Errno::OK), vec![0; 1000]].concat());
    stage.server.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(stage.ended().result, Err(BlockError::VolumeGone));
    assert!(stage.client.failure().unwrap().contains("the server has closed the connection"));
}

/// What comes of a reply to the last of eight requests of which the socket takes only the first ones.
fn answered_too_early(stage: &mut Stage, errno: Errno) {
    stage.client.flush(&mut stage.reactor);
    stage.server.write_all(&[reply(7, errno), vec![0; 512]].concat()).unwrap();
    stage.reactor.waker().wake();
    stage.reactor.turn(&mut Vec::new()).unwrap();
    stage.client.receive(&mut stage.reactor);
    assert_eq!(stage.client.failure(), Some("it has answered request 7 before it had all of it"));
    assert_eq!(stage.ended().result, Err(BlockError::VolumeGone));
}

#[test]
fn a_write_that_is_answered_before_its_data_ends_the_connection() {
    for errno in [Errno::ENOSPC, Errno::OK] {
        let mut stage = Stage::new();
        (0..8).for_each(|ticket| stage.write(ticket, 0, &vec![0; 1 << 20]));
        answered_too_early(&mut stage, errno);
    }
}

#[test]
fn a_read_that_is_answered_before_its_header_ends_the_connection() {
    for errno in [Errno::EIO, Errno::OK] {
        let mut stage = Stage::new();
        (0..7).for_each(|ticket| stage.write(ticket, 0, &vec![0; 1 << 20]));
        stage.read(7, 0, 512);
        answered_too_early(&mut stage, errno);
    }
}
