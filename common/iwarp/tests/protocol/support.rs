//! Memory that remembers, and frames built by hand, independently of the code under test.

use std::collections::{HashMap, VecDeque};

use godwit_iwarp::{
    Connection, Fault, InvalidateError, Memory, Negotiated, Options, PlacementError, ReceiveError, Received, Role, Segment, Source, Stag,
    TaggedError,
};

/// A registered region.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) remote_read: bool,
    pub(crate) remote_write: bool,
    pub(crate) foreign: bool,
}

impl Region {
    pub(crate) fn open(base: u64, bytes: Vec<u8>) -> Self {
        Self { base, bytes, remote_read: true, remote_write: true, foreign: false }
    }

    /// The range of `len` bytes at `to`, if the region has it.
    fn range(&self, to: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(to.checked_sub(self.base)?).ok()?;
        let end = start.checked_add(len)?;
        (end <= self.bytes.len()).then_some(start..end)
    }
}

/// Registered memory, read sinks and posted receives of one queue pair.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arena {
    pub(crate) regions: HashMap<u32, Region>,
    pub(crate) sinks: HashMap<u64, Vec<u8>>,
    /// Sizes of the receives posted.
    pub(crate) posted: VecDeque<usize>,
    /// Calls of `receive` that are answered with `Wait` first.
    pub(crate) waits: usize,
    pub(crate) current: Option<(usize, Vec<u8>)>,
    pub(crate) messages: Vec<Vec<u8>>,
    pub(crate) invalidated: Vec<Stag>,
    /// Read sinks are gone.
    pub(crate) sinks_gone: bool,
    /// STags that this peer may not invalidate.
    pub(crate) pinned: Vec<Stag>,
}

impl Arena {
    pub(crate) fn with_receives(sizes: &[usize]) -> Self {
        Self { posted: sizes.iter().copied().collect(), ..Self::default() }
    }

    fn region(&self, stag: Stag) -> Result<&Region, TaggedError> {
        let region = self.regions.get(&stag.0).ok_or(TaggedError::InvalidStag)?;
        if region.foreign { Err(TaggedError::NotAssociated) } else { Ok(region) }
    }

    /// The bytes that a segment carries when its payload is in this arena, `works` holding those of work requests.
    pub(crate) fn payload(&self, segment: &Segment, works: &HashMap<u64, Vec<u8>>) -> Vec<u8> {
        let start = segment.offset as usize;
        match segment.source {
            Source::Nothing | Source::ReadRequest(_) => Vec::new(),
            Source::Work(id) => works[&id][start..start + segment.len].to_vec(),
            Source::ReadResponse { .. } if segment.len == 0 => Vec::new(),
            Source::ReadResponse { stag, to } => {
                let region = &self.regions[&stag.0];
                let range = region.range(to + u64::from(segment.offset), segment.len).expect("responses are within bounds");
                region.bytes[range].to_vec()
            }
        }
    }

    /// Takes the message that was delivered.
    pub(crate) fn deliver(&mut self, length: u32) {
        let (_, bytes) = self.current.take().expect("a delivered message has a buffer");
        assert_eq!(bytes.len(), length as usize);
        self.messages.push(bytes);
    }

    /// Puts payload where a landing says, as a driver does that reads from its socket into place.
    pub(crate) fn land(&mut self, place: godwit_iwarp::Place, payload: &[u8]) {
        use godwit_iwarp::Place;
        match place {
            Place::Write { stag, to } => self.write(stag, to, payload).expect("valid traffic"),
            Place::ReadResponse { read, offset } => self.read_response(read, offset, payload).expect("valid traffic"),
            Place::Receive { offset } => self.receive(offset, payload).expect("valid traffic"),
        }
    }
}

impl Memory for Arena {
    fn write(&mut self, stag: Stag, to: u64, payload: &[u8]) -> Result<(), TaggedError> {
        assert!(!payload.is_empty(), "a Write of nothing names nothing");
        if !self.region(stag)?.remote_write {
            return Err(TaggedError::Access);
        }
        let region = self.regions.get_mut(&stag.0).ok_or(TaggedError::InvalidStag)?;
        let range = region.range(to, payload.len()).ok_or(TaggedError::Bounds)?;
        region.bytes[range].copy_from_slice(payload);
        Ok(())
    }

    fn read_response(&mut self, read: u64, offset: u32, payload: &[u8]) -> Result<(), PlacementError> {
        if self.sinks_gone {
            return Err(PlacementError);
        }
        let sink = self.sinks.entry(read).or_default();
        assert_eq!(sink.len(), offset as usize, "responses come in order");
        sink.extend_from_slice(payload);
        Ok(())
    }

    fn receive(&mut self, offset: u32, payload: &[u8]) -> Result<(), ReceiveError> {
        if self.waits > 0 {
            self.waits -= 1;
            return Err(ReceiveError::Wait);
        }
        if self.current.is_none() {
            assert_eq!((offset, payload.len()), (0, 0), "the first call claims the buffer");
            let size = self.posted.pop_front().ok_or(ReceiveError::NoReceivePosted)?;
            self.current = Some((size, Vec::new()));
        }
        let (size, bytes) = self.current.as_mut().expect("claimed");
        assert_eq!(bytes.len(), offset as usize, "a message comes in order");
        if bytes.len() + payload.len() > *size {
            return Err(ReceiveError::TooLong);
        }
        bytes.extend_from_slice(payload);
        Ok(())
    }

    fn check_read(&mut self, stag: Stag, to: u64, len: u32) -> Result<(), TaggedError> {
        assert!(len > 0, "a read of nothing names nothing");
        let region = self.region(stag)?;
        if !region.remote_read {
            return Err(TaggedError::Access);
        }
        region.range(to, len as usize).map(|_| ()).ok_or(TaggedError::Bounds)
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), InvalidateError> {
        if self.pinned.contains(&stag) {
            return Err(InvalidateError::Access);
        }
        self.regions.remove(&stag.0).ok_or(InvalidateError::InvalidStag)?;
        self.invalidated.push(stag);
        Ok(())
    }
}

/// Feeds all of `bytes` and gathers the events; messages are delivered in the arena.
pub(crate) fn feed(connection: &mut Connection, bytes: &[u8], arena: &mut Arena) -> Result<Vec<Received>, Fault> {
    let mut events = Vec::new();
    let mut rest = bytes;
    loop {
        let (consumed, event) = connection.receive(rest, arena)?;
        rest = &rest[consumed..];
        match event {
            Received::NeedMore => {
                assert!(rest.is_empty(), "all bytes are consumed before more are asked for");
                return Ok(events);
            }
            Received::Stalled => {
                events.push(event);
                assert!(events.len() < 10_000, "stalled for ever");
            }
            Received::Message { length, .. } => {
                arena.deliver(length);
                events.push(event);
            }
            _ => events.push(event),
        }
    }
}

pub(crate) fn negotiated(crc: bool) -> Negotiated {
    Negotiated { crc, ird: 4, ord: 4, rtr: None }
}

pub(crate) fn connection(role: Role, crc: bool) -> Connection {
    Connection::new(role, negotiated(crc), Options::default())
}

pub(crate) fn message(length: u32) -> Received {
    Received::Message { length, invalidated: None, solicited: false }
}

/// CRC32C bit by bit, as RFC 3385 writes it.
pub(crate) fn crc32c(bytes: &[u8]) -> [u8; 4] {
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    (!crc).to_le_bytes()
}

/// An FPDU around `ulpdu`, with a good CRC.
pub(crate) fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let length = u16::try_from(ulpdu.len()).expect("a ULPDU has 16 bits of length");
    let mut bytes = [&length.to_be_bytes(), ulpdu].concat();
    while bytes.len() % 4 != 0 {
        bytes.push(0);
    }
    let crc = crc32c(&bytes);
    bytes.extend_from_slice(&crc);
    bytes
}

/// The fields of an untagged segment.
#[derive(Clone, Copy)]
pub(crate) struct Untagged {
    pub(crate) control: [u8; 2],
    pub(crate) stag: u32,
    pub(crate) queue: u32,
    pub(crate) msn: u32,
    pub(crate) offset: u32,
}

impl Untagged {
    pub(crate) fn send(msn: u32) -> Self {
        Self { control: [0x41, 0x43], stag: 0, queue: 0, msn, offset: 0 }
    }

    pub(crate) fn with(self, payload: &[u8]) -> Vec<u8> {
        fpdu(
            &[
                &self.control[..],
                &self.stag.to_be_bytes(),
                &self.queue.to_be_bytes(),
                &self.msn.to_be_bytes(),
                &self.offset.to_be_bytes(),
                payload,
            ]
            .concat(),
        )
    }
}

pub(crate) fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    Untagged::send(msn).with(payload)
}

pub(crate) fn tagged(control: [u8; 2], stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    fpdu(&[&control[..], &stag.to_be_bytes(), &to.to_be_bytes(), payload].concat())
}

pub(crate) fn write(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    tagged([0xc1, 0x40], stag, to, payload)
}

/// The fields of a Read Request.
#[derive(Clone, Copy)]
pub(crate) struct ReadRequest {
    pub(crate) msn: u32,
    pub(crate) sink: (u32, u64),
    pub(crate) size: u32,
    pub(crate) source: (u32, u64),
}

impl ReadRequest {
    /// The 28 bytes behind the DDP header.
    pub(crate) fn body(self) -> Vec<u8> {
        [
            &self.sink.0.to_be_bytes()[..],
            &self.sink.1.to_be_bytes(),
            &self.size.to_be_bytes(),
            &self.source.0.to_be_bytes(),
            &self.source.1.to_be_bytes(),
        ]
        .concat()
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        Untagged { control: [0x41, 0x41], stag: 0, queue: 1, msn: self.msn, offset: 0 }.with(&self.body())
    }
}

pub(crate) fn read_request(msn: u32, size: u32, source: (u32, u64)) -> Vec<u8> {
    ReadRequest { msn, sink: (0x5151, 0x100), size, source }.bytes()
}

/// A small deterministic generator (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("smaller than a usize")
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}
