//! What is sent: one DDP segment in its FPDU, the headers made here, the payload left with the driver.

use std::fmt;

use zerocopy::{FromBytes, IntoBytes};

use crate::crc::Crc;
use crate::fault::{Fault, FaultKind};
use crate::memory::TaggedError;
use crate::number::{Msn, Opcode, QueueNumber, Stag};
use crate::terminate::TerminatedSegment;
use crate::wire::{
    CRC_FIELD, LENGTH_FIELD, READ_HEADER, ReadHeader, TERMINATE_CONTROL, TaggedHeader, UNTAGGED_HEADER, UntaggedHeader, pad_length,
};

/// The largest header: a Terminate with the headers of a Read Request in it.
const HEADER_CAPACITY: usize = UNTAGGED_HEADER + TERMINATE_CONTROL + UNTAGGED_HEADER + READ_HEADER;

/// Where the payload of a segment comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The segment has no payload and belongs to no work request: an RTR message or a Terminate.
    Nothing,
    /// The Send or Write posted with this id. Its last segment, once handed to TCP, completes it.
    Work(u64),
    /// The Read Request of the read posted with this id; no payload. The read completes when its response has come.
    ReadRequest(u64),
    /// Our registered memory, as the peer's Read Request names it; [`Segment::offset`] counts from `to`.
    ReadResponse {
        /// STag of the region.
        stag: Stag,
        /// Tagged offset of the first byte that the peer asked for.
        to: u64,
    },
}

/// One FPDU to send: [`Segment::header`], then the payload that `source`, `offset` and `len` name, then
/// [`Segment::trailer`].
#[derive(Clone, Debug)]
pub struct Segment {
    header: [u8; HEADER_CAPACITY],
    header_length: u8,
    crc: bool,
    /// Of a Read Response: MSN of its request, and the bytes left of it from this segment on.
    request: Option<(Msn, u32)>,
    /// Where the payload comes from.
    pub source: Source,
    /// Offset of the payload in its message, in bytes.
    pub offset: u32,
    /// Payload bytes of this segment.
    pub len: usize,
    /// Whether this is the last segment of its message.
    pub last: bool,
}

impl Segment {
    /// Joins `header` of its parts and fills in ULPDU_Length for `len` payload bytes.
    ///
    /// # Panics
    /// When header and payload exceed what a ULPDU can hold; the callers' sizes rule that out.
    pub(crate) fn new(parts: &[&[u8]], len: usize, source: Source, offset: u32, last: bool, crc: bool) -> Self {
        let mut header = [0; HEADER_CAPACITY];
        let mut end = 0;
        for part in parts {
            header[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        let ulpdu_length = u16::try_from(end - LENGTH_FIELD + len).expect("segment sizes fit a ULPDU");
        header[..LENGTH_FIELD].copy_from_slice(&ulpdu_length.to_be_bytes());
        let header_length = u8::try_from(end).expect("headers are short");
        Self { header, header_length, crc, request: None, source, offset, len, last }
    }

    pub(crate) const fn answering(mut self, msn: Msn, left: u32) -> Self {
        self.request = Some((msn, left));
        self
    }

    /// The fault for a Read Response that cannot be sent, because `error` became true of its source after the request
    /// was accepted. Its Terminate shows what is left of the request. For other segments, a local error.
    #[must_use]
    pub fn read_fault(&self, error: TaggedError) -> Fault {
        let (Some((msn, left)), Source::ReadResponse { stag, to }) = (self.request, self.source) else {
            return Fault::local_catastrophic();
        };
        let Ok((response, _)) = TaggedHeader::read_from_prefix(self.header()) else {
            return Fault::local_catastrophic();
        };
        // Checked for the whole size when the request came.
        let to = to.wrapping_add(self.offset.into());
        let untagged = UntaggedHeader::new(true, Opcode::READ_REQUEST, Stag(0), QueueNumber::READ_REQUEST, msn, 0);
        let read = ReadHeader {
            sink_stag: response.stag,
            sink_offset: response.tagged_offset,
            size: left.into(),
            source_stag: stag.0.into(),
            source_offset: to.into(),
        };
        let request = Self::new(&[untagged.as_bytes(), read.as_bytes()], 0, Source::Nothing, 0, true, false);
        let kind = FaultKind::Read { stag, to, len: left, error };
        Fault { kind, segment: Some(TerminatedSegment::new(request.header())) }
    }

    /// The FPDU up to its payload: ULPDU_Length, DDP and RDMAP headers.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.header_length)]
    }

    pub(crate) fn opcode(&self) -> Opcode {
        // Behind ULPDU_Length and the DDP control byte.
        Opcode(self.header[LENGTH_FIELD + 1] & 0x0f)
    }

    /// Bytes of pad and CRC behind the payload.
    #[must_use]
    pub fn trailer_len(&self) -> usize {
        pad_length(self.header().len() - LENGTH_FIELD + self.len) + CRC_FIELD
    }

    /// Bytes of the whole FPDU on the wire.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        self.header().len() + self.len + self.trailer_len()
    }

    /// Whether its trailer depends on its payload: CRC was negotiated.
    #[must_use]
    pub fn has_crc(&self) -> bool {
        self.crc
    }

    /// Pad and CRC for this segment: `front` is the frame so far, its header and as much of the payload as lies behind that, `rest` the rest of the payload.
    /// They are not looked at when CRC was not negotiated.
    ///
    /// # Panics
    /// When CRC is negotiated and the payload has not [`Segment::len`] bytes.
    pub fn trailer<'a>(&self, front: &[u8], rest: impl IntoIterator<Item = &'a [u8]>) -> Trailer {
        if !self.crc {
            return Trailer { bytes: [0; Trailer::CAPACITY], length: self.trailer_len() };
        }
        let mut seen = front.len();
        let trailer = Trailer::with_crc(front, rest.into_iter().inspect(|part| seen += part.len()));
        assert_eq!(seen, self.header().len() + self.len, "a segment is sent with exactly its payload");
        trailer
    }
}

/// Pad and CRC of an FPDU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    bytes: [u8; Self::CAPACITY],
    length: usize,
}

impl Trailer {
    /// The longest trailer: three pad bytes and the CRC, rounded up.
    pub const CAPACITY: usize = 8;

    /// Pad and CRC of an FPDU: see [`Segment::trailer`].
    pub fn with_crc<'a>(front: &[u8], rest: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut bytes = [0; Self::CAPACITY];
        let mut rest = rest.into_iter().filter(|part| !part.is_empty()).peekable();
        if rest.peek().is_none() && pad_length(front.len() - LENGTH_FIELD) == 0 {
            bytes[..CRC_FIELD].copy_from_slice(&Crc::field_of(front));
            return Self { bytes, length: CRC_FIELD };
        }
        let mut crc = Crc::new(true);
        crc.update(front);
        let mut rest_len = 0;
        for part in rest {
            crc.update(part);
            rest_len += part.len();
        }
        let pad = pad_length(front.len() - LENGTH_FIELD + rest_len);
        crc.update(&bytes[..pad]);
        let length = pad + CRC_FIELD;
        bytes[pad..length].copy_from_slice(&crc.field());
        Self { bytes, length }
    }

    /// The CRC of an FPDU with blocks of [`SUMMED_BYTES`](crate::SUMMED_BYTES) behind `front`, of each of which the CRC32C is given.
    ///
    /// # Panics
    /// When it would need a pad.
    pub fn with_sums(front: &[u8], sums: impl IntoIterator<Item = u32>) -> Self {
        assert_eq!(pad_length(front.len() - LENGTH_FIELD), 0, "a header of {} bytes leaves room for a pad", front.len());
        let mut bytes = [0; Self::CAPACITY];
        bytes[..CRC_FIELD].copy_from_slice(&Crc::field_with(front, sums));
        Self { bytes, length: CRC_FIELD }
    }
}

impl AsRef<[u8]> for Trailer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl fmt::Debug for Trailer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trailer({:02x?})", self.as_ref())
    }
}
