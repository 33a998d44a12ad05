//! A capture of Linux's siw, NVMe host and target: our side takes either place and makes the same headers.

use std::collections::{BTreeMap, HashMap};

use godwit_iwarp::{
    Connection, FpduSize, Initiator, InvalidateError, Memory, Negotiated, Options, PlacementError, ReceiveError, Received, Reply, Request,
    Responder, Role, Segment, SendKind, Source, Stag, StartupConfig, TaggedError,
};

const CAPTURE: &[u8] = include_bytes!("../../../../tests/golden/siw-nvme.pcap");
const TARGET_PORT: u16 = 4420;

/// Memory that accepts everything and counts.
#[derive(Debug, Default)]
struct Permissive {
    written: usize,
    read: usize,
    received: usize,
    invalidated: Vec<Stag>,
}

impl Memory for Permissive {
    fn write(&mut self, _: Stag, _: u64, payload: &[u8]) -> Result<(), TaggedError> {
        self.written += payload.len();
        Ok(())
    }

    fn read_response(&mut self, _: u64, _: u32, payload: &[u8]) -> Result<(), PlacementError> {
        self.read += payload.len();
        Ok(())
    }

    fn receive(&mut self, _: u32, payload: &[u8]) -> Result<(), ReceiveError> {
        self.received += payload.len();
        Ok(())
    }

    fn check_read(&mut self, _: Stag, _: u64, _: u32) -> Result<(), TaggedError> {
        Ok(())
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), InvalidateError> {
        self.invalidated.push(stag);
        Ok(())
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The TCP payload of each direction of each connection in the capture, by (source port, destination port).
fn streams() -> BTreeMap<(u16, u16), Vec<u8>> {
    let le32 = |at: usize| u32::from_le_bytes(CAPTURE[at..at + 4].try_into().expect("four bytes"));
    let (mut streams, mut next) = (BTreeMap::new(), HashMap::new());
    let mut at = 24;
    while at < CAPTURE.len() {
        let length = le32(at + 8) as usize;
        let packet = &CAPTURE[at + 16..at + 16 + length];
        at += 16 + length;
        if be16(packet, 12) != 0x0800 {
            continue;
        }
        let tcp = 14 + usize::from(packet[14] & 15) * 4;
        let payload = &packet[tcp + usize::from(packet[tcp + 12] >> 4) * 4..14 + usize::from(be16(packet, 16))];
        let ports = (be16(packet, tcp), be16(packet, tcp + 2));
        let sequence = be32(packet, tcp + 4);
        if packet[tcp + 13] & 2 != 0 {
            next.insert(ports, sequence.wrapping_add(1));
            streams.insert(ports, Vec::new());
        } else if next.get(&ports) == Some(&sequence) {
            streams.get_mut(&ports).expect("begun by its SYN").extend_from_slice(payload);
            next.insert(ports, sequence.wrapping_add(u32::try_from(payload.len()).expect("a packet")));
        }
    }
    streams.retain(|_, stream| !stream.is_empty());
    streams
}

/// One side's bytes, taken apart by hand.
#[derive(Debug)]
struct Side {
    startup: Vec<u8>,
    fpdus: Vec<Fpdu>,
}

#[derive(Clone, Debug)]
struct Fpdu {
    header: Vec<u8>,
    payload: Vec<u8>,
}

impl Fpdu {
    fn opcode(&self) -> u8 {
        self.header[3] & 0x0f
    }

    fn is_last(&self) -> bool {
        self.header[2] & 0x40 != 0
    }

    fn length(&self) -> u32 {
        u32::try_from(self.payload.len()).expect("an FPDU")
    }

    /// Back to stream bytes; the capture has no CRC.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = [&self.header[..], &self.payload].concat();
        bytes.resize(bytes.len().next_multiple_of(4) + 4, 0);
        bytes
    }
}

impl Side {
    fn parse(stream: &[u8]) -> Self {
        let startup = 20 + usize::from(be16(stream, 18));
        let mut fpdus = Vec::new();
        let mut at = startup;
        while at < stream.len() {
            let ulpdu = usize::from(be16(stream, at));
            let header = match (stream[at + 2] & 0x80, stream[at + 3] & 0x0f) {
                (0x80, _) => 16,
                (_, 1) => 48,
                _ => 20,
            };
            let bytes = &stream[at..at + 2 + ulpdu];
            fpdus.push(Fpdu { header: bytes[..header].to_vec(), payload: bytes[header..].to_vec() });
            at += bytes.len().next_multiple_of(4) + 4;
        }
        assert_eq!(at, stream.len());
        Self { startup: stream[..startup].to_vec(), fpdus }
    }

    /// Messages by opcode.
    fn counts(&self) -> BTreeMap<u8, usize> {
        let mut counts = BTreeMap::new();
        for fpdu in self.fpdus.iter().filter(|fpdu| fpdu.is_last()) {
            *counts.entry(fpdu.opcode()).or_default() += 1;
        }
        counts
    }

    fn payload(&self, opcodes: &[u8]) -> usize {
        self.fpdus.iter().filter(|fpdu| opcodes.contains(&fpdu.opcode())).map(|fpdu| fpdu.payload.len()).sum()
    }

    fn headers(&self, wanted: impl Fn(u8) -> bool) -> Vec<Vec<u8>> {
        self.fpdus.iter().filter(|fpdu| wanted(fpdu.opcode())).map(|fpdu| fpdu.header.clone()).collect()
    }

    /// The work requests that this side must have posted.
    fn post(&self, connection: &mut Connection) {
        let mut length = 0;
        let mut first = None;
        for (id, fpdu) in self.fpdus.iter().enumerate() {
            length += fpdu.length();
            let start = first.take().unwrap_or(fpdu);
            if !fpdu.is_last() {
                first = Some(start);
                continue;
            }
            let (id, header, stag) = (id as u64, &start.header, Stag(be32(&start.header, 4)));
            match fpdu.opcode() {
                0 => connection.post_write(id, stag, be64(header, 8), length),
                1 => connection.post_read(id, (Stag(be32(header, 36)), be64(header, 40)), be32(header, 32)),
                2 => Ok(()),
                3 => connection.post_send(id, SendKind::Plain, length),
                4 => connection.post_send(id, SendKind::Invalidate(stag), length),
                other => panic!("opcode {other} is not in the capture"),
            }
            .expect("within the limits");
            length = 0;
        }
    }
}

/// The host's and the target's side of each connection.
fn connections() -> Vec<(Side, Side)> {
    let streams = streams();
    let hosts = streams.iter().filter(|((_, to), _)| *to == TARGET_PORT);
    let pairs: Vec<_> = hosts.map(|((from, to), host)| (Side::parse(host), Side::parse(&streams[&(*to, *from)]))).collect();
    assert_eq!(pairs.len(), 4, "discovery, admin, two I/O queues");
    pairs
}

fn feed(connection: &mut Connection, bytes: &[u8], memory: &mut Permissive) -> Vec<Received> {
    let mut events = Vec::new();
    let mut rest = bytes;
    loop {
        let (consumed, event) = connection.receive(rest, memory).expect("siw's stream is valid");
        rest = &rest[consumed..];
        if event == Received::NeedMore {
            return events;
        }
        events.push(event);
    }
}

fn options() -> Options {
    // The loopback's segments had 32 KiB.
    Options { fpdu: FpduSize::Mss(32768), ..Options::default() }
}

fn segments(connection: &mut Connection) -> Vec<Segment> {
    std::iter::from_fn(|| connection.next_segment()).collect()
}

fn headers(segments: &[Segment]) -> Vec<Vec<u8>> {
    segments.iter().map(|segment| segment.header().to_vec()).collect()
}

/// Blanks the sink of a Read Request, which is the requester's own numbering.
fn without_sink(mut headers: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    headers.iter_mut().filter(|header| header.len() == 48).for_each(|header| header[20..32].fill(0));
    headers
}

fn count(events: &[Received], wanted: fn(&Received) -> bool) -> usize {
    events.iter().filter(|event| wanted(event)).count()
}

#[test]
fn capture_holds_the_messages_that_its_description_promises() {
    let mut total = BTreeMap::new();
    for (host, target) in connections() {
        for (opcode, count) in host.counts().into_iter().chain(target.counts()) {
            *total.entry(opcode).or_insert(0) += count;
        }
    }
    // Write, Read Request, Read Response, Send, Send with Invalidate.
    assert_eq!(total, BTreeMap::from([(0, 32), (1, 4), (2, 4), (3, 100), (4, 32)]));
}

#[test]
fn start_up_frames_are_reproduced() {
    for (host, target) in connections() {
        let config = StartupConfig { crc: false, ird: 128, ord: 0, peer_to_peer: None };
        let mut initiator = Initiator::new(config, &host.startup[24..]).unwrap();
        assert_eq!(initiator.request(), host.startup);
        let mut responder = Responder::new(false);
        let (consumed, request) = responder.receive(&host.startup).unwrap();
        assert_eq!(consumed, host.startup.len());
        let expected = Request {
            private_data: host.startup[24..].to_vec(),
            peer_ird: 128,
            peer_ord: 0,
            enhanced: true,
            peer_to_peer: false,
            crc: false,
            revision: 2,
        };
        assert_eq!(request, Some(expected));
        let (reply, negotiated) = responder.accept(0, 128, &target.startup[24..]).unwrap();
        assert_eq!(reply, target.startup);
        assert_eq!(negotiated, Negotiated { crc: false, ird: 0, ord: 128, rtr: None });
        let (_, reply) = initiator.receive(&target.startup).unwrap();
        let parameters = Negotiated { crc: false, ird: 128, ord: 0, rtr: None };
        assert_eq!(reply, Some(Reply::Accepted { parameters, private_data: target.startup[24..].to_vec() }));
    }
}

#[test]
fn in_the_hosts_place_we_take_the_targets_stream_and_send_the_same_headers() {
    for (host, target) in connections() {
        let parameters = Negotiated { crc: false, ird: 128, ord: 0, rtr: None };
        let mut connection = Connection::new(Role::Initiator, parameters, options());
        let mut memory = Permissive::default();
        let stream: Vec<u8> = target.fpdus.iter().flat_map(Fpdu::bytes).collect();
        let events = feed(&mut connection, &stream, &mut memory);

        let counts = target.counts();
        let of = |opcode| counts.get(&opcode).copied().unwrap_or(0);
        assert_eq!(count(&events, |event| matches!(event, Received::Message { invalidated: None, .. })), of(3));
        assert_eq!(count(&events, |event| matches!(event, Received::Message { invalidated: Some(_), .. })), of(4));
        assert_eq!(count(&events, |event| matches!(event, Received::ReadRequested)), of(1));
        assert_eq!(events.len(), of(1) + of(3) + of(4));
        assert_eq!((memory.written, memory.received), (target.payload(&[0]), target.payload(&[3, 4])));
        assert_eq!((memory.read, memory.invalidated.len()), (0, of(4)));

        host.post(&mut connection);
        let sent = segments(&mut connection);
        let is_response = |segment: &Segment| matches!(segment.source, Source::ReadResponse { .. });
        let (responses, sends): (Vec<_>, Vec<_>) = sent.into_iter().partition(is_response);
        assert_eq!(headers(&responses), host.headers(|opcode| opcode == 2));
        assert_eq!(headers(&sends), host.headers(|opcode| opcode != 2));
    }
}

#[test]
fn in_the_targets_place_we_take_the_hosts_stream_and_send_the_same_headers() {
    for (host, target) in connections() {
        let parameters = Negotiated { crc: false, ird: 0, ord: 128, rtr: None };
        let mut connection = Connection::new(Role::Responder, parameters, options());
        let mut memory = Permissive::default();
        target.post(&mut connection);
        assert!(connection.next_segment().is_none(), "the host speaks first");

        let mut events = feed(&mut connection, &host.fpdus[0].bytes(), &mut memory);
        let sent = segments(&mut connection);
        assert_eq!(without_sink(headers(&sent)), without_sink(target.headers(|_| true)));

        // Responses name siw's sinks: give them ours, in the order of the requests.
        let requests: Vec<_> = target.fpdus.iter().filter(|fpdu| fpdu.opcode() == 1).collect();
        let mut answered = 0;
        for fpdu in &host.fpdus[1..] {
            let mut fpdu = fpdu.clone();
            if fpdu.opcode() == 2 {
                let theirs = &requests[answered].header;
                assert_eq!(fpdu.header[4..8], theirs[20..24]);
                let offset = be64(&fpdu.header, 8) - be64(theirs, 24);
                let ours = u32::try_from(answered).unwrap() + 1;
                fpdu.header[4..8].copy_from_slice(&ours.to_be_bytes());
                fpdu.header[8..16].copy_from_slice(&offset.to_be_bytes());
                answered += usize::from(fpdu.is_last());
            }
            events.extend(feed(&mut connection, &fpdu.bytes(), &mut memory));
        }
        let counts = host.counts();
        let of = |opcode| counts.get(&opcode).copied().unwrap_or(0);
        assert_eq!(events[0], Received::Established);
        assert_eq!(count(&events, |event| matches!(event, Received::Message { .. })), of(3));
        assert_eq!(count(&events, |event| matches!(event, Received::ReadDone { .. })), of(2));
        assert_eq!(events.len(), 1 + of(2) + of(3));
        assert_eq!((memory.received, memory.read), (host.payload(&[3]), host.payload(&[2])));
        assert_eq!(connection.outstanding_reads(), 0);
    }
}
