//! Terminate messages: the code that names an error, what we send, and a tolerant reading of what we receive.

use std::fmt;

use zerocopy::IntoBytes;

use crate::number::{Msn, Opcode, QueueNumber, Stag};
use crate::segment::{Segment, Source};
use crate::wire::{
    DdpControl, READ_HEADER, RdmapControl, TAGGED_HEADER, TERMINATE_CONTROL, TerminateControl, UNTAGGED_HEADER, UntaggedHeader,
};

/// What a Terminate says: the layer that found the error, the error type, and the code.
///
/// Shown as `layer/type/code`, the code in hexadecimal, as in RFC 5040, Terminate Control Field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TerminateCode {
    /// 0 RDMAP, 1 DDP, 2 the LLP (MPA); 4 bits on the wire.
    pub layer: u8,
    /// Error type within the layer; 4 bits on the wire.
    pub error_type: u8,
    /// Error code within the type.
    pub code: u8,
}

impl TerminateCode {
    /// RDMAP: local catastrophic error.
    pub const LOCAL_CATASTROPHIC: Self = Self::new(0, 0, 0x00);
    /// RDMAP: the STag of a Read Request's source is invalid.
    pub const READ_INVALID_STAG: Self = Self::new(0, 1, 0x00);
    /// RDMAP: a Read Request leaves the bounds of its source.
    pub const READ_BOUNDS: Self = Self::new(0, 1, 0x01);
    /// RDMAP: the source of a Read Request does not grant remote read.
    pub const READ_ACCESS: Self = Self::new(0, 1, 0x02);
    /// RDMAP: the source of a Read Request belongs to another stream.
    pub const READ_NOT_ASSOCIATED: Self = Self::new(0, 1, 0x03);
    /// RDMAP: a Read Request's tagged offset wraps.
    pub const READ_WRAP: Self = Self::new(0, 1, 0x04);
    /// RDMAP: this peer has no right to invalidate the STag.
    pub const INVALIDATE_ACCESS: Self = Self::new(0, 1, 0x09);
    /// RDMAP: version not supported.
    pub const RDMAP_VERSION: Self = Self::new(0, 2, 0x05);
    /// RDMAP: opcode not expected.
    pub const OPCODE: Self = Self::new(0, 2, 0x06);
    /// RDMAP: an error that is catastrophic for this stream; also too many Read Requests.
    pub const STREAM_CATASTROPHIC: Self = Self::new(0, 2, 0x07);
    /// RDMAP: the STag cannot be invalidated.
    pub const CANNOT_INVALIDATE: Self = Self::new(0, 2, 0x09);
    /// DDP: local catastrophic error.
    pub const DDP_CATASTROPHIC: Self = Self::new(1, 0, 0x00);
    /// DDP tagged: invalid STag.
    pub const TAGGED_INVALID_STAG: Self = Self::new(1, 1, 0x00);
    /// DDP tagged: base or bounds violation.
    pub const TAGGED_BOUNDS: Self = Self::new(1, 1, 0x01);
    /// DDP tagged: STag not associated with this stream.
    pub const TAGGED_NOT_ASSOCIATED: Self = Self::new(1, 1, 0x02);
    /// DDP tagged: tagged offset wraps.
    pub const TAGGED_WRAP: Self = Self::new(1, 1, 0x03);
    /// DDP tagged: DDP version not supported.
    pub const TAGGED_VERSION: Self = Self::new(1, 1, 0x04);
    /// DDP untagged: invalid queue number.
    pub const UNTAGGED_QUEUE: Self = Self::new(1, 2, 0x01);
    /// DDP untagged: no buffer for this message.
    pub const UNTAGGED_NO_BUFFER: Self = Self::new(1, 2, 0x02);
    /// DDP untagged: message sequence number out of range.
    pub const UNTAGGED_MSN: Self = Self::new(1, 2, 0x03);
    /// DDP untagged: invalid message offset.
    pub const UNTAGGED_OFFSET: Self = Self::new(1, 2, 0x04);
    /// DDP untagged: message too long for its buffer.
    pub const UNTAGGED_TOO_LONG: Self = Self::new(1, 2, 0x05);
    /// DDP untagged: DDP version not supported.
    pub const UNTAGGED_VERSION: Self = Self::new(1, 2, 0x06);
    /// MPA: the TCP connection is closed or lost.
    pub const MPA_CLOSED: Self = Self::new(2, 0, 0x01);
    /// MPA: CRC error.
    pub const MPA_CRC: Self = Self::new(2, 0, 0x02);
    /// MPA: marker and ULPDU_Length do not match; also a length too small for its headers.
    pub const MPA_LENGTH: Self = Self::new(2, 0, 0x03);
    /// MPA: invalid Request or Reply frame.
    pub const MPA_FRAME: Self = Self::new(2, 0, 0x04);
    /// MPA: local catastrophic error.
    pub const MPA_CATASTROPHIC: Self = Self::new(2, 0, 0x05);
    /// MPA: not enough IRD for the peer's ORD.
    pub const MPA_INSUFFICIENT_IRD: Self = Self::new(2, 0, 0x06);
    /// MPA: no RTR message that both sides can use.
    pub const MPA_NO_MATCHING_RTR: Self = Self::new(2, 0, 0x07);

    const fn new(layer: u8, error_type: u8, code: u8) -> Self {
        Self { layer, error_type, code }
    }

    /// Whether RFC 5040 wants the terminated segment's DDP header in a Terminate with this code.
    const fn includes_ddp_header(self) -> bool {
        matches!((self.layer, self.error_type), (0, 1 | 2) | (1, 1 | 2))
    }

    /// Whether RFC 5040 wants the terminated Read Request's header too.
    const fn includes_read_header(self) -> bool {
        matches!((self.layer, self.error_type), (0, 1))
    }
}

impl fmt::Display for TerminateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{:02x}", self.layer, self.error_type, self.code)?;
        let meaning = match *self {
            Self::READ_INVALID_STAG => "read: invalid STag",
            Self::READ_BOUNDS => "read: base or bounds violation",
            Self::READ_ACCESS => "read: access rights violation",
            Self::READ_NOT_ASSOCIATED => "read: STag not associated with the stream",
            Self::READ_WRAP => "read: tagged offset wraps",
            Self::INVALIDATE_ACCESS | Self::CANNOT_INVALIDATE => "STag cannot be invalidated",
            Self::RDMAP_VERSION => "RDMAP version",
            Self::OPCODE => "unexpected opcode",
            Self::STREAM_CATASTROPHIC => "catastrophic for the stream",
            Self::TAGGED_INVALID_STAG => "tagged: invalid STag",
            Self::TAGGED_BOUNDS => "tagged: base or bounds violation",
            Self::TAGGED_NOT_ASSOCIATED => "tagged: STag not associated with the stream",
            Self::TAGGED_WRAP => "tagged: tagged offset wraps",
            Self::TAGGED_VERSION | Self::UNTAGGED_VERSION => "DDP version",
            Self::UNTAGGED_QUEUE => "untagged: invalid queue number",
            Self::UNTAGGED_NO_BUFFER => "untagged: no buffer",
            Self::UNTAGGED_MSN => "untagged: MSN out of range",
            Self::UNTAGGED_OFFSET => "untagged: invalid message offset",
            Self::UNTAGGED_TOO_LONG => "untagged: message too long",
            Self::MPA_CLOSED => "MPA: TCP connection closed or lost",
            Self::MPA_CRC => "MPA: CRC error",
            Self::MPA_LENGTH => "MPA: marker and length mismatch",
            Self::MPA_FRAME => "MPA: invalid Request or Reply frame",
            Self::MPA_CATASTROPHIC => "MPA: local catastrophic error",
            Self::MPA_INSUFFICIENT_IRD => "MPA: insufficient IRD",
            Self::MPA_NO_MATCHING_RTR => "MPA: no matching RTR option",
            Self { layer: 0, error_type: 0, .. } => "RDMAP: local catastrophic error",
            Self { layer: 1, error_type: 0, .. } => "DDP: local catastrophic error",
            _ => return Ok(()),
        };
        write!(f, " ({meaning})")
    }
}

/// A Terminate that the peer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminateInfo {
    /// What the peer found.
    pub code: TerminateCode,
    /// Length of the segment that it complains about, where it says so. (siw gives the payload's length.)
    pub segment_length: Option<u16>,
    /// The nibbles of layer and type came swapped, as siw on little-endian machines sends them.
    pub swapped: bool,
}

impl fmt::Display for TerminateInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the peer ended the stream with Terminate {}", self.code)
    }
}

/// Bytes of a received Terminate's RDMAP part that are of interest: control field and DDP segment length.
pub(crate) const TERMINATE_PREFIX: usize = TERMINATE_CONTROL + 2;

const SEGMENT_LENGTH_VALID: u8 = 0x80;
const DDP_HEADER_INCLUDED: u8 = 0x40;
const READ_HEADER_INCLUDED: u8 = 0x20;
/// M, D and R as siw's bit-fields lay them out on little-endian machines.
const SWAPPED_SEGMENT_LENGTH_VALID: u8 = 0x01;
const SWAPPED_DDP_HEADER_INCLUDED: u8 = 0x02;

impl TerminateInfo {
    /// Reads the first `have` bytes of a Terminate's RDMAP part; the caller has checked that the control field is there.
    pub(crate) fn parse(prefix: &[u8; TERMINATE_PREFIX], have: usize) -> Self {
        let [layer_and_type, code, headers, _, length @ ..] = *prefix;
        let swapped = headers & 0x07 != 0 && headers & 0xe0 == 0;
        let (high, low) = (layer_and_type >> 4, layer_and_type & 0x0f);
        let (layer, error_type) = if swapped { (low, high) } else { (high, low) };
        let valid =
            if swapped { SWAPPED_SEGMENT_LENGTH_VALID | SWAPPED_DDP_HEADER_INCLUDED } else { SEGMENT_LENGTH_VALID | DDP_HEADER_INCLUDED };
        let segment_length = (headers & valid == valid && have == TERMINATE_PREFIX).then(|| u16::from_be_bytes(length));
        Self { code: TerminateCode { layer, error_type, code }, segment_length, swapped }
    }
}

/// The header of the segment that an error is about, for the Terminate that reports it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TerminatedSegment {
    /// ULPDU_Length of the segment, then its DDP header, then for a Read Request the RDMAP header.
    bytes: [u8; Self::CAPACITY],
    length: u8,
}

impl TerminatedSegment {
    const CAPACITY: usize = UNTAGGED_HEADER + READ_HEADER;

    /// Keeps `header`, the bytes of an FPDU from its length field to the end of its headers.
    pub(crate) fn new(header: &[u8]) -> Self {
        let mut bytes = [0; Self::CAPACITY];
        let length = header.len().min(Self::CAPACITY);
        bytes[..length].copy_from_slice(&header[..length]);
        Self { bytes, length: u8::try_from(length).unwrap_or(0) }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Length field and DDP header.
    fn ddp(&self) -> &[u8] {
        let whole = self.as_bytes();
        let tagged = whole.get(2).is_some_and(|&control| DdpControl(control).is_tagged());
        let end = if tagged { TAGGED_HEADER } else { UNTAGGED_HEADER };
        &whole[..end.min(whole.len())]
    }

    /// The RDMAP header of a Read Request, if this is one.
    fn read(&self) -> &[u8] {
        let is_read = self.bytes.get(3).is_some_and(|&control| RdmapControl(control).opcode() == Opcode::READ_REQUEST);
        self.as_bytes().get(UNTAGGED_HEADER..).filter(|header| is_read && header.len() == READ_HEADER).unwrap_or(&[])
    }
}

impl fmt::Debug for TerminatedSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TerminatedSegment({:02x?})", self.as_bytes())
    }
}

/// Builds the Terminate for `code`, in the form of RFC 5040, with the headers that it wants for this code.
pub(crate) fn terminate_segment(code: TerminateCode, about: Option<&TerminatedSegment>, crc: bool) -> Segment {
    let about = about.filter(|_| code.includes_ddp_header());
    let ddp = about.map_or(&[][..], TerminatedSegment::ddp);
    let read = about.filter(|_| code.includes_read_header()).map_or(&[][..], TerminatedSegment::read);
    let control = TerminateControl {
        layer_and_type: (code.layer << 4) | (code.error_type & 0x0f),
        code: code.code,
        headers: if ddp.is_empty() { 0 } else { SEGMENT_LENGTH_VALID | DDP_HEADER_INCLUDED }
            | if read.is_empty() { 0 } else { READ_HEADER_INCLUDED },
        reserved: 0,
    };
    let untagged = UntaggedHeader::new(true, Opcode::TERMINATE, Stag(0), QueueNumber::TERMINATE, Msn::FIRST, 0);
    // The terminated segment's length field is exactly the Terminate's DDP Segment Length field.
    Segment::new(&[untagged.as_bytes(), control.as_bytes(), ddp, read], 0, Source::Nothing, 0, true, crc)
}

/// A Terminate of the start-up phase as one whole FPDU, with a valid CRC whether or not it is looked at.
pub(crate) fn startup_terminate(code: TerminateCode) -> Vec<u8> {
    let segment = terminate_segment(code, None, true);
    [segment.header(), segment.trailer(segment.header(), []).as_ref()].concat()
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use super::*;

    fn control_of(terminate: &Segment) -> TerminateControl {
        let bytes = &terminate.header()[UNTAGGED_HEADER..];
        TerminateControl::read_from_prefix(bytes).expect("a Terminate has a control field").0
    }

    fn parse(bytes: [u8; 6]) -> TerminateInfo {
        TerminateInfo::parse(&bytes, 6)
    }

    #[test]
    fn reads_the_form_of_rfc_5040() {
        let info = parse([0x12, 0x02, 0xc0, 0, 0x00, 0x22]);
        assert_eq!(info.code, TerminateCode::UNTAGGED_NO_BUFFER);
        assert_eq!((info.segment_length, info.swapped), (Some(0x22), false));
    }

    #[test]
    fn reads_the_swapped_nibbles_of_siw() {
        let info = parse([0x21, 0x02, 0x03, 0, 0x00, 0x10]);
        assert_eq!(info.code, TerminateCode::UNTAGGED_NO_BUFFER);
        assert_eq!((info.segment_length, info.swapped), (Some(0x10), true));
    }

    #[test]
    fn reserved_bits_do_not_make_it_siws_form() {
        let info = parse([0x12, 0x02, 0xc7, 0, 0x00, 0x22]);
        assert_eq!((info.code, info.swapped), (TerminateCode::UNTAGGED_NO_BUFFER, false));
    }

    #[test]
    fn has_no_segment_length_without_its_bits_or_bytes() {
        assert_eq!(parse([0x12, 0x02, 0x40, 0, 0, 9]).segment_length, None);
        assert_eq!(TerminateInfo::parse(&[0x12, 0x02, 0xc0, 0, 0, 0], 4).segment_length, None);
    }

    #[test]
    fn includes_exactly_the_headers_that_rfc_5040_wants() {
        let send = TerminatedSegment::new(&[0, 0x22, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0]);
        let write = TerminatedSegment::new(&[0, 0x0f, 0xc1, 0x40, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x20, 0]);
        let mut request = [0; 48];
        request[..4].copy_from_slice(&[0, 0x2e, 0x41, 0x41]);
        request[47] = 0x77;
        let read = TerminatedSegment::new(&request);
        let built = |code, about: &TerminatedSegment| {
            let segment = terminate_segment(code, Some(about), true);
            (control_of(&segment).headers, segment.header()[24..].to_vec())
        };
        assert_eq!(built(TerminateCode::UNTAGGED_MSN, &send), (0xc0, send.as_bytes().to_vec()));
        assert_eq!(built(TerminateCode::TAGGED_BOUNDS, &write), (0xc0, write.as_bytes().to_vec()));
        assert_eq!(built(TerminateCode::READ_BOUNDS, &read), (0xe0, request.to_vec()));
        assert_eq!(built(TerminateCode::STREAM_CATASTROPHIC, &read), (0xc0, request[..20].to_vec()));
        assert_eq!(built(TerminateCode::MPA_CRC, &send), (0, vec![]));
        assert_eq!(built(TerminateCode::LOCAL_CATASTROPHIC, &read), (0, vec![]));
    }

    #[test]
    fn is_one_segment_on_queue_2() {
        let segment = terminate_segment(TerminateCode::MPA_CRC, None, false);
        let expected = [
            0, 22, 0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, // DDP
            0x20, 0x02, 0, 0, // RDMAP
        ];
        assert_eq!(segment.header(), expected);
        assert_eq!(segment.trailer(segment.header(), []).as_ref(), [0; 4]);
    }

    #[test]
    fn code_shows_numbers_and_meaning() {
        assert_eq!(TerminateCode::MPA_CRC.to_string(), "2/0/02 (MPA: CRC error)");
        assert_eq!(TerminateCode { layer: 7, error_type: 3, code: 0xff }.to_string(), "7/3/ff");
    }
}
