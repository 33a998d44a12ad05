//! FPDUs made by hand, so that every field can be wrong while the CRC is right; and those of the daemon taken apart.

use crc_fast::{CrcAlgorithm, checksum};
use godwit_iwarp::Opcode;

use super::Misbehaviour;

/// Bytes of a tagged DDP header.
const TAGGED_BYTES: usize = 14;
/// Bytes of an untagged DDP header.
pub(super) const UNTAGGED_BYTES: usize = 18;
/// Bytes of an untagged DDP header and that of a Read Request.
const READ_REQUEST_BYTES: usize = 46;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;

/// A ULPDU of an untagged segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Untagged {
    /// First control byte: tagged, last, version.
    pub(super) ddp: u8,
    /// Second control byte: version, opcode.
    pub(super) rdmap: u8,
    pub(super) invalidate: u32,
    pub(super) queue: u32,
    pub(super) msn: u32,
    pub(super) offset: u32,
}

impl Untagged {
    /// A message of one segment.
    pub(super) const fn new(opcode: Opcode, queue: u32, msn: u32) -> Self {
        Self { ddp: LAST | 1, rdmap: 0x40 | opcode.0, invalidate: 0, queue, msn, offset: 0 }
    }

    pub(super) const fn not_last(mut self) -> Self {
        self.ddp &= !LAST;
        self
    }

    pub(super) fn ulpdu(&self, payload: &[u8]) -> Vec<u8> {
        let words = [self.invalidate, self.queue, self.msn, self.offset].map(u32::to_be_bytes);
        [&[self.ddp, self.rdmap][..], words.as_flattened(), payload].concat()
    }
}

/// A ULPDU of a tagged segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tagged {
    pub(super) ddp: u8,
    pub(super) rdmap: u8,
    pub(super) stag: u32,
    pub(super) to: u64,
}

impl Tagged {
    pub(super) const fn new(opcode: Opcode, stag: u32, to: u64) -> Self {
        Self { ddp: TAGGED | LAST | 1, rdmap: 0x40 | opcode.0, stag, to }
    }

    pub(super) const fn not_last(mut self) -> Self {
        self.ddp &= !LAST;
        self
    }

    pub(super) fn ulpdu(&self, payload: &[u8]) -> Vec<u8> {
        [&[self.ddp, self.rdmap][..], &self.stag.to_be_bytes(), &self.to.to_be_bytes(), payload].concat()
    }
}

/// What a Read Request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) sink_stag: u32,
    pub(super) sink_to: u64,
    pub(super) size: u32,
    pub(super) source_stag: u32,
    pub(super) source_to: u64,
}

impl Read {
    pub(super) fn ulpdu(&self, msn: u32) -> Vec<u8> {
        let header = [
            &self.sink_stag.to_be_bytes()[..],
            &self.sink_to.to_be_bytes(),
            &self.size.to_be_bytes(),
            &self.source_stag.to_be_bytes(),
            &self.source_to.to_be_bytes(),
        ];
        Untagged::new(Opcode::READ_REQUEST, 1, msn).ulpdu(&header.concat())
    }
}

/// The FPDU of a ULPDU.
pub(super) fn frame(ulpdu: &[u8]) -> Vec<u8> {
    let length = u16::try_from(ulpdu.len()).expect("a ULPDU fits its length field");
    frame_claiming(length, ulpdu)
}

/// The same with any length field; pad and CRC are those of the real length.
pub(super) fn frame_claiming(length: u16, ulpdu: &[u8]) -> Vec<u8> {
    let mut frame = [&length.to_be_bytes()[..], ulpdu].concat();
    frame.resize(frame.len().next_multiple_of(4), 0);
    let crc = crc(&frame);
    frame.extend(crc);
    frame
}

fn crc(bytes: &[u8]) -> [u8; 4] {
    let crc = checksum(CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(crc).expect("a CRC of 32 bits").to_le_bytes()
}

/// A segment of the daemon's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// The Send family.
    Send { payload: Vec<u8> },
    /// RDMA Write.
    Write { stag: u32, to: u64, payload: Vec<u8> },
    /// Read Request.
    Read(Read),
    /// Read Response: nothing of ours asks for any.
    ReadResponse,
    /// Terminate.
    Terminate,
}

/// Takes the next segment off the front; `None` when more bytes are needed. Also returns how many bytes it has.
pub(super) fn take(bytes: &[u8]) -> Result<Option<(usize, Incoming)>, Misbehaviour> {
    let Some((length, _)) = bytes.split_first_chunk() else { return Ok(None) };
    let ulpdu_bytes = usize::from(u16::from_be_bytes(*length));
    let body_bytes = (2 + ulpdu_bytes).next_multiple_of(4);
    let Some(frame) = bytes.get(..body_bytes + 4) else { return Ok(None) };
    let (body, found) = frame.split_at(body_bytes);
    if found != crc(body) {
        return Err(Misbehaviour::Garbled(format!("an FPDU of {ulpdu_bytes} bytes with a wrong CRC")));
    }
    let segment =
        parse(&body[2..2 + ulpdu_bytes]).ok_or_else(|| Misbehaviour::Garbled(format!("segment {:02x?}", &body[..body.len().min(50)])))?;
    Ok(Some((frame.len(), segment)))
}

fn parse(ulpdu: &[u8]) -> Option<Incoming> {
    let word = |at: usize| ulpdu.get(at..at + 4).map(|bytes| u32::from_be_bytes(bytes.try_into().expect("four bytes")));
    let long = |at: usize| ulpdu.get(at..at + 8).map(|bytes| u64::from_be_bytes(bytes.try_into().expect("eight bytes")));
    match (ulpdu.first()? & TAGGED != 0, Opcode(ulpdu.get(1)? & 0x0f)) {
        (true, Opcode::WRITE) => Some(Incoming::Write { stag: word(2)?, to: long(6)?, payload: ulpdu.get(TAGGED_BYTES..)?.to_vec() }),
        (true, Opcode::READ_RESPONSE) => Some(Incoming::ReadResponse),
        (false, Opcode::READ_REQUEST) if ulpdu.len() == READ_REQUEST_BYTES => {
            let (sink_stag, sink_to, size) = (word(18)?, long(22)?, word(30)?);
            Some(Incoming::Read(Read { sink_stag, sink_to, size, source_stag: word(34)?, source_to: long(38)? }))
        }
        (false, Opcode::TERMINATE) => Some(Incoming::Terminate),
        (false, Opcode(3..=6)) => Some(Incoming::Send { payload: ulpdu.get(UNTAGGED_BYTES..)?.to_vec() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_those_of_the_protocol_core() {
        use godwit_iwarp::{Connection, Negotiated, Options, Role, SendKind};
        let negotiated = Negotiated { crc: true, ird: 4, ord: 4, rtr: None };
        let mut connection = Connection::new(Role::Initiator, negotiated, Options::default());
        connection.post_send(1, SendKind::Plain, 5).unwrap();
        let segment = connection.next_segment().unwrap();
        let theirs = [segment.header(), b"hello", segment.trailer(segment.header(), [&b"hello"[..]]).as_ref()].concat();
        assert_eq!(frame(&Untagged::new(Opcode::SEND, 0, 1).ulpdu(b"hello")), theirs);
        assert_eq!(take(&theirs).unwrap(), Some((theirs.len(), Incoming::Send { payload: b"hello".to_vec() })));
        assert_eq!(take(&theirs[..theirs.len() - 1]).unwrap(), None);
    }

    #[test]
    fn a_wrong_crc_of_the_daemon_is_seen() {
        let mut bytes = frame(&Tagged::new(Opcode::WRITE, 5, 7).ulpdu(b"data"));
        assert!(matches!(take(&bytes), Ok(Some((_, Incoming::Write { stag: 5, to: 7, .. })))));
        bytes[17] ^= 1;
        assert!(take(&bytes).is_err());
    }

    #[test]
    fn a_read_request_comes_back_as_it_was_made() {
        let read = Read { sink_stag: 1, sink_to: 2, size: 3, source_stag: 4, source_to: 5 };
        let bytes = frame(&read.ulpdu(1));
        assert_eq!(take(&bytes).unwrap(), Some((bytes.len(), Incoming::Read(read))));
    }
}
