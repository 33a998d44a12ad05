//! Takes a capture of NVMe/RDMA over iWARP apart: pcap, TCP, MPA, DDP, RDMAP. Independent of the code under test, for one clean file:
//! anything unexpected panics.

use std::collections::HashMap;

/// One queue: one connection.
pub(crate) struct Queue {
    /// Private data of the connection request.
    pub(crate) request: Vec<u8>,
    /// Private data of the acceptance.
    pub(crate) accept: Vec<u8>,
    /// Commands in the order in which they were sent.
    pub(crate) exchanges: Vec<Exchange>,
}

/// One command, its answer, and the data that moved for it.
pub(crate) struct Exchange {
    pub(crate) capsule: Vec<u8>,
    /// None for the request that waits for an event.
    pub(crate) response: Option<[u8; 16]>,
    /// The key that the answer invalidated.
    pub(crate) invalidated: Option<u32>,
    /// What RDMA Writes put into the memory that the command names.
    pub(crate) written: Vec<u8>,
    /// What an RDMA Read fetched from the memory that the command names.
    pub(crate) fetched: Vec<u8>,
}

/// The queues of a capture, those that ended at the target's port, in the order of their connection.
pub(crate) fn queues(file: &[u8], target_port: u16) -> Vec<Queue> {
    let mut streams: Vec<((u16, u16), Stream)> = Vec::new();
    for packet in packets(file) {
        let Some(segment) = Segment::parse(packet) else {
            continue;
        };
        let key = (segment.source, segment.destination);
        if segment.syn {
            streams.push((key, Stream { next: segment.sequence.wrapping_add(1), bytes: Vec::new() }));
        } else if let Some((_, stream)) = streams.iter_mut().find(|(other, _)| *other == key) {
            stream.append(&segment);
        }
    }
    let of = |key| streams.iter().find(|(other, _)| *other == key).map(|(_, stream)| &stream.bytes[..]);
    streams
        .iter()
        .filter(|((_, destination), stream)| *destination == target_port && !stream.bytes.is_empty())
        .map(|((port, _), stream)| queue(&stream.bytes, of((target_port, *port)).expect("both directions")))
        .collect()
}

fn queue(from_host: &[u8], from_target: &[u8]) -> Queue {
    let (request, host) = split_stream(from_host);
    let (accept, target) = split_stream(from_target);
    let mut answers: Vec<_> = target.iter().filter_map(Message::send).collect();
    let exchanges = host.iter().filter_map(Message::send).map(|(capsule, _)| {
        let answer = answers.iter().position(|(cqe, _)| cqe[12..14] == capsule[2..4]).map(|index| answers.remove(index));
        let key = u32::from_le_bytes(capsule[35..39].try_into().unwrap());
        Exchange {
            capsule: capsule.to_vec(),
            response: answer.map(|(cqe, _)| cqe.try_into().expect("16 bytes")),
            invalidated: answer.and_then(|(_, key)| key),
            written: placed(&target, 0, key),
            fetched: fetched(&host, &target, key),
        }
    });
    let exchanges = exchanges.collect();
    Queue { request, accept, exchanges }
}

/// Payloads of the tagged messages of one opcode for one tag, in order.
fn placed(messages: &[Message], opcode: u8, tag: u32) -> Vec<u8> {
    let wanted = |message: &&Message| message.opcode == opcode && message.tag == tag;
    messages.iter().filter(wanted).flat_map(|message| message.payload.clone()).collect()
}

/// What the RDMA Read Requests of the target for `source` brought.
fn fetched(host: &[Message], target: &[Message], source: u32) -> Vec<u8> {
    let sinks: HashMap<u32, u32> =
        target.iter().filter(|message| message.opcode == 1).map(|message| (be32(&message.payload[16..]), be32(&message.payload))).collect();
    sinks.get(&source).map_or(Vec::new(), |&sink| placed(host, 2, sink))
}

/// An RDMAP message segment: the tag is the STag of a tagged one, or the STag to invalidate of an untagged one.
struct Message {
    opcode: u8,
    tag: u32,
    payload: Vec<u8>,
}

impl Message {
    fn parse(ulpdu: &[u8]) -> Self {
        let tagged = ulpdu[0] & 0x80 != 0;
        let header = if tagged { 14 } else { 18 };
        Self { opcode: ulpdu[1] & 0x0F, tag: be32(&ulpdu[2..]), payload: ulpdu[header..].to_vec() }
    }

    fn send(&self) -> Option<(&[u8], Option<u32>)> {
        match self.opcode {
            3 => Some((&self.payload, None)),
            4 => Some((&self.payload, Some(self.tag))),
            _ => None,
        }
    }
}

/// The private data of NVMe/RDMA, and the messages after the MPA frame that carries it.
fn split_stream(bytes: &[u8]) -> (Vec<u8>, Vec<Message>) {
    let private_end = 20 + usize::from(be16(&bytes[18..]));
    let private = bytes[24..private_end].to_vec();
    let mut rest = &bytes[private_end..];
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let len = usize::from(be16(rest));
        messages.push(Message::parse(&rest[2..2 + len]));
        rest = &rest[(2 + len).next_multiple_of(4) + 4..];
    }
    (private, messages)
}

struct Stream {
    next: u32,
    bytes: Vec<u8>,
}

impl Stream {
    fn append(&mut self, segment: &Segment<'_>) {
        if segment.sequence == self.next {
            self.bytes.extend_from_slice(segment.payload);
            self.next = self.next.wrapping_add(u32::try_from(segment.payload.len()).unwrap());
        }
    }
}

struct Segment<'a> {
    source: u16,
    destination: u16,
    sequence: u32,
    syn: bool,
    payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// The TCP segment of an Ethernet frame, if it is IPv4.
    fn parse(frame: &'a [u8]) -> Option<Self> {
        if be16(&frame[12..]) != 0x0800 {
            return None;
        }
        let ip = &frame[14..];
        let ip = &ip[..usize::from(be16(&ip[2..]))];
        let tcp = &ip[usize::from(ip[0] & 0x0F) * 4..];
        Some(Self {
            source: be16(tcp),
            destination: be16(&tcp[2..]),
            sequence: be32(&tcp[4..]),
            syn: tcp[13] & 2 != 0,
            payload: &tcp[usize::from(tcp[12] >> 4) * 4..],
        })
    }
}

fn packets(mut file: &[u8]) -> impl Iterator<Item = &[u8]> {
    file = &file[24..];
    std::iter::from_fn(move || {
        let header = file.get(..16)?;
        let len = usize::try_from(u32::from_le_bytes(header[8..12].try_into().unwrap())).unwrap();
        let packet = &file[16..16 + len];
        file = &file[16 + len..];
        Some(packet)
    })
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes(bytes[..2].try_into().unwrap())
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}
