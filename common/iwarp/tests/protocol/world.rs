//! Two connections joined by a byte pipe that delivers seeded random pieces; every byte must arrive where it belongs.

use std::collections::{HashMap, VecDeque};

use godwit_iwarp::{
    Connection, FpduSize, Initiator, Negotiated, Options, Received, Reply, Responder, Role, RtrKinds, SendKind, Source, Stag, StartupConfig,
};

use crate::support::{Arena, Random, Region};

/// Largest message of a test.
const MOST: usize = 300 * 1024;
/// The STag of the region that the peer writes to, and of the one that it reads from.
const TARGET: Stag = Stag(0x0001_0001);
const SOURCE: Stag = Stag(0x0002_0002);
const TARGET_BASE: u64 = 0xffff_0000_0000;
const SOURCE_BASE: u64 = 0x1000;

/// One end: its core, its memory, what it sends and what it must see.
#[derive(Debug)]
struct End {
    connection: Connection,
    arena: Arena,
    works: HashMap<u64, Vec<u8>>,
    outgoing: Vec<u8>,
    /// Work requests in the order posted, and those completed.
    posted: VecDeque<u64>,
    completed: Vec<u64>,
    sent_messages: Vec<Vec<u8>>,
    /// Writes as the peer's region must show them in the end.
    writes: Vec<(usize, Vec<u8>)>,
    reads: HashMap<u64, Vec<u8>>,
    reads_done: Vec<u64>,
    landed: usize,
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    crc: bool,
    fpdu: FpduSize,
    landing: bool,
    peer_to_peer: Option<RtrKinds>,
}

fn start_up(plan: Plan) -> (Negotiated, Negotiated) {
    let config = StartupConfig { crc: plan.crc, ird: 3, ord: 2, peer_to_peer: plan.peer_to_peer };
    let mut initiator = Initiator::new(config, b"from the initiator").expect("valid");
    let mut responder = Responder::new(false);
    let (_, request) = responder.receive(initiator.request()).expect("a valid Request");
    assert_eq!(request.expect("whole").private_data, b"from the initiator");
    let (reply, ours) = responder.accept(1, 8, b"from the responder").expect("valid");
    let (_, reply) = initiator.receive(&reply).expect("a valid Reply");
    match reply {
        Some(Reply::Accepted { parameters, private_data }) => {
            assert_eq!(private_data, b"from the responder");
            (parameters, ours)
        }
        other => panic!("not accepted: {other:?}"),
    }
}

impl End {
    fn new(role: Role, negotiated: Negotiated, plan: Plan, random: &mut Random) -> Self {
        let options = Options { fpdu: plan.fpdu, send_queue_depth: 64 };
        let mut arena = Arena::with_receives(&[MOST; 64]);
        arena.regions.insert(TARGET.0, Region { remote_read: false, ..Region::open(TARGET_BASE, vec![0; MOST]) });
        let source = Region { remote_write: false, ..Region::open(SOURCE_BASE, random.bytes(MOST)) };
        arena.regions.insert(SOURCE.0, source);
        arena.waits = random.below(5);
        Self {
            connection: Connection::new(role, negotiated, options),
            arena,
            works: HashMap::new(),
            outgoing: Vec::new(),
            posted: VecDeque::new(),
            completed: Vec::new(),
            sent_messages: Vec::new(),
            writes: Vec::new(),
            reads: HashMap::new(),
            reads_done: Vec::new(),
            landed: 0,
        }
    }

    /// Posts a work request of random kind and size; `source` is what the peer lets us read.
    fn post(&mut self, id: u64, random: &mut Random, source: &[u8]) {
        let size = match random.below(4) {
            0 => random.below(5),
            1 => random.below(200),
            2 => random.below(9000),
            _ => random.below(MOST + 1),
        };
        let length = u32::try_from(size).expect("small");
        let start = random.below(MOST - size + 1);
        let bytes = random.bytes(size);
        match random.below(3) {
            0 => {
                let kind = if random.below(2) == 0 { SendKind::Plain } else { SendKind::Solicited };
                self.connection.post_send(id, kind, length).expect("room");
                self.sent_messages.push(bytes.clone());
                self.posted.push_back(id);
            }
            1 => {
                self.connection.post_write(id, TARGET, TARGET_BASE + start as u64, length).expect("room");
                self.writes.push((start, bytes.clone()));
                self.posted.push_back(id);
            }
            _ => {
                self.connection.post_read(id, (SOURCE, SOURCE_BASE + start as u64), length).expect("room");
                self.reads.insert(id, source[start..start + size].to_vec());
            }
        }
        self.works.insert(id, bytes);
    }

    /// Hands a few FPDUs to the pipe.
    fn transmit(&mut self, random: &mut Random) {
        for _ in 0..random.below(4) {
            let Some(segment) = self.connection.next_segment() else { return };
            let payload = self.arena.payload(&segment, &self.works);
            let (front, back) = payload.split_at(random.below(payload.len() + 1));
            self.outgoing.extend_from_slice(segment.header());
            self.outgoing.extend_from_slice(&payload);
            self.outgoing.extend_from_slice(segment.trailer(segment.header(), [front, back]).as_ref());
            if let (Source::Work(id), true) = (segment.source, segment.last) {
                assert_eq!(self.posted.pop_front(), Some(id), "completions come in the order of posting");
                self.completed.push(id);
            }
        }
    }

    /// Takes one piece from the pipe, by landing where `plan` says so and the stream stands inside payload.
    fn take(&mut self, mut piece: &[u8], plan: Plan, random: &mut Random) {
        let mut idle = 0;
        loop {
            if let Some(landing) = self.connection.landing().filter(|_| plan.landing && random.below(2) == 0 && !piece.is_empty()) {
                let (bytes, rest) = piece.split_at(piece.len().min(landing.len));
                self.arena.land(landing.place, bytes);
                self.connection.landed(bytes);
                self.landed += bytes.len();
                piece = rest;
                continue;
            }
            // Small bites, so that the stream often stands just behind a header.
            let bite = if plan.landing { piece.len().min(1 + random.below(64)) } else { piece.len() };
            let (consumed, event) = self.connection.receive(&piece[..bite], &mut self.arena).expect("valid traffic");
            piece = &piece[consumed..];
            match event {
                Received::NeedMore if piece.is_empty() => return,
                Received::NeedMore => assert_eq!(consumed, bite),
                Received::Message { length, .. } => {
                    self.arena.deliver(length);
                    self.arena.waits = random.below(3);
                }
                Received::ReadDone { read } => self.reads_done.push(read),
                Received::Stalled => idle += 1,
                Received::Established | Received::ReadRequested => {}
                Received::Terminated(info) => panic!("{info}"),
            }
            assert!(idle < 20, "stalled for ever");
        }
    }

    fn is_done(&self) -> bool {
        self.posted.is_empty() && self.reads_done.len() == self.reads.len() && self.outgoing.is_empty() && !self.connection.has_work()
    }
}

fn source(end: &End) -> Vec<u8> {
    end.arena.regions[&SOURCE.0].bytes.clone()
}

/// What arrived at `to` must be what `from` sent.
fn compare(from: &End, to: &End) {
    let mut messages = to.arena.messages.clone();
    if messages.len() == from.sent_messages.len() + 1 {
        assert_eq!(messages.remove(0), b"", "an RTR Send stands before the others");
    }
    assert!(messages == from.sent_messages, "messages differ");
    let mut expected = vec![0; MOST];
    for (start, bytes) in &from.writes {
        expected[*start..start + bytes.len()].copy_from_slice(bytes);
    }
    assert!(to.arena.regions[&TARGET.0].bytes == expected, "written memory differs");
    for (id, expected) in &from.reads {
        assert!(from.arena.sinks.get(id).unwrap_or(&Vec::new()) == expected, "read {id} differs");
    }
    assert!(from.reads_done.is_sorted(), "reads complete in the order of posting");
}

fn run(plan: Plan) -> usize {
    let mut random = Random(plan.seed);
    let (one, two) = start_up(plan);
    assert_eq!((one.crc, one.ord, two.ord), (plan.crc, 2, 3));
    let mut ends = [End::new(Role::Initiator, one, plan, &mut random), End::new(Role::Responder, two, plan, &mut random)];
    if plan.peer_to_peer.is_none() {
        // Somebody must speak first, and that is the Initiator.
        ends[0].connection.post_send(0, SendKind::Plain, 5).expect("room");
        ends[0].works.insert(0, b"hello".to_vec());
        ends[0].sent_messages.push(b"hello".to_vec());
        ends[0].posted.push_back(0);
    }
    let sources = [source(&ends[1]), source(&ends[0])];
    let (mut id, last) = (0, 24);
    for round in 1.. {
        assert!(round < 1_000_000, "no progress");
        let side = random.below(2);
        if id < last && random.below(3) == 0 {
            id += 1;
            ends[side].post(id, &mut random, &sources[side]);
        }
        ends[side].transmit(&mut random);
        let most = ends[side].outgoing.len();
        let bound = if random.below(3) == 0 { most.min(64) } else { most };
        let piece: Vec<u8> = ends[side].outgoing.drain(..random.below(bound + 1).max(most.min(1))).collect();
        ends[1 - side].take(&piece, plan, &mut random);
        if id == last && ends.iter().all(End::is_done) {
            break;
        }
    }
    compare(&ends[0], &ends[1]);
    compare(&ends[1], &ends[0]);
    ends[0].landed + ends[1].landed
}

/// Runs `count` seeds; a failure names its plan.
fn run_seeds(count: u64, plan: impl Fn(u64) -> Plan) -> usize {
    (0..count)
        .map(|seed| {
            let plan = plan(seed);
            let outcome = std::panic::catch_unwind(|| run(plan));
            outcome.unwrap_or_else(|_| panic!("failed with {plan:?}"))
        })
        .sum()
}

fn plan(seed: u64, crc: bool) -> Plan {
    let fpdu = match seed % 4 {
        0 => FpduSize::Payload(60 * 1024),
        1 => FpduSize::Mss(1448),
        2 => FpduSize::Payload(usize::MAX),
        _ => FpduSize::Payload(512),
    };
    Plan { seed, crc, fpdu, landing: false, peer_to_peer: None }
}

#[test]
fn every_byte_arrives_with_crc() {
    assert_eq!(run_seeds(12, |seed| plan(seed, true)), 0);
}

#[test]
fn every_byte_arrives_without_crc() {
    assert_eq!(run_seeds(12, |seed| plan(seed, false)), 0);
}

#[test]
fn every_byte_arrives_when_part_of_it_lands_in_place() {
    for crc in [false, true] {
        assert!(run_seeds(8, |seed| Plan { landing: true, ..plan(seed, crc) }) > 1_000_000);
    }
}

#[test]
fn every_byte_arrives_after_each_rtr_message() {
    let none = RtrKinds::default();
    for kinds in [RtrKinds { write: true, ..none }, RtrKinds { read: true, ..none }, RtrKinds { send: true, ..none }] {
        run_seeds(4, |seed| Plan { peer_to_peer: Some(kinds), ..plan(seed, true) });
    }
}
