//! The frame of an FPDU: its headers collected and checked by themselves, its pad and CRC.

use zerocopy::FromBytes;

use super::{Position, Receiver};
use crate::fault::FaultKind;
use crate::number::Opcode;
use crate::wire::{
    CRC_FIELD, DdpControl, LENGTH_FIELD, READ_REQUEST, RdmapControl, ReadRequest, TAGGED_HEADER, TERMINATE_CONTROL, TaggedHeader,
    UNTAGGED_HEADER, UntaggedHeader,
};

/// Moves bytes from the front of `input` to `buffer[*have..want]`; true when they are all there.
pub(super) fn gather(buffer: &mut [u8], have: &mut usize, want: usize, input: &mut &[u8]) -> bool {
    let count = (want - *have).min(input.len());
    let (taken, rest) = input.split_at(count);
    let place = &mut buffer[*have..*have + count];
    // What nearly all frames consist of: a copy of a known length takes no call.
    match count {
        4 => place[..4].copy_from_slice(&taken[..4]),
        12 => place[..12].copy_from_slice(&taken[..12]),
        16 => place[..16].copy_from_slice(&taken[..16]),
        _ => place.copy_from_slice(taken),
    }
    *have += count;
    *input = rest;
    *have == want
}

impl Receiver {
    pub(super) fn ulpdu_length(&self) -> usize {
        u16::from_be_bytes([self.header[0], self.header[1]]).into()
    }

    pub(super) const fn ddp(&self) -> DdpControl {
        DdpControl(self.header[2])
    }

    pub(super) const fn rdmap(&self) -> RdmapControl {
        RdmapControl(self.header[3])
    }

    pub(super) const fn opcode(&self) -> Opcode {
        self.rdmap().opcode()
    }

    pub(super) fn tagged_header(&self) -> TaggedHeader {
        TaggedHeader::read_from_prefix(&self.header).expect("a Read Request is longer").0
    }

    pub(super) fn request_header(&self) -> ReadRequest {
        zerocopy::transmute!(self.header)
    }

    pub(super) fn untagged_header(&self) -> UntaggedHeader {
        self.request_header().untagged
    }

    /// Collects all headers of an FPDU and makes the checks that need nothing but them; true when complete.
    ///
    /// The DDP header is collected before versions and opcode are looked at, for a Terminate shows it to the peer.
    pub(super) fn gather_header(&mut self, input: &mut &[u8]) -> Result<bool, FaultKind> {
        if self.header_have < 4 && !self.gather_header_to(4, input) {
            return Ok(false);
        }
        let ddp_header = if self.ddp().is_tagged() { TAGGED_HEADER } else { UNTAGGED_HEADER };
        if self.header_have < ddp_header {
            self.require_ulpdu(ddp_header)?;
            if !self.gather_header_to(ddp_header, input) {
                return Ok(false);
            }
            self.check_control()?;
        }
        match self.opcode() {
            Opcode::READ_REQUEST => {
                self.require_ulpdu(READ_REQUEST)?;
                Ok(self.gather_header_to(READ_REQUEST, input))
            }
            Opcode::TERMINATE => self.require_ulpdu(UNTAGGED_HEADER + TERMINATE_CONTROL).map(|()| true),
            _ => Ok(true),
        }
    }

    pub(super) fn gather_header_to(&mut self, want: usize, input: &mut &[u8]) -> bool {
        gather(&mut self.header, &mut self.header_have, want, input)
    }

    /// Checks that the ULPDU has room for headers of `header` bytes, length field included.
    pub(super) fn require_ulpdu(&self, header: usize) -> Result<(), FaultKind> {
        let found = u16::from_be_bytes([self.header[0], self.header[1]]);
        let least = u16::try_from(header - LENGTH_FIELD).unwrap_or(u16::MAX);
        if found < least { Err(FaultKind::UlpduLength { found, least }) } else { Ok(()) }
    }

    pub(super) fn check_control(&self) -> Result<(), FaultKind> {
        let (ddp, rdmap) = (self.ddp(), self.rdmap());
        let tagged = ddp.is_tagged();
        if !ddp.is_supported() {
            return Err(FaultKind::DdpVersion { version: ddp.version(), tagged });
        }
        if !rdmap.is_supported() {
            return Err(FaultKind::RdmapVersion { version: rdmap.version() });
        }
        if rdmap.opcode().is_tagged() != Some(tagged) {
            return Err(FaultKind::Opcode { opcode: rdmap.opcode(), tagged });
        }
        Ok(())
    }

    pub(super) fn begin_trailer(&mut self) {
        self.position = Position::Trailer;
        self.trailer_have = 0;
    }

    /// Collects pad and CRC and checks the CRC; true when complete.
    pub(super) fn gather_trailer(&mut self, input: &mut &[u8]) -> Result<bool, FaultKind> {
        if !gather(&mut self.trailer, &mut self.trailer_have, self.trailer_length, input) {
            return Ok(false);
        }
        if self.crc.is_enabled() {
            let (pad, field) = self.trailer[..self.trailer_length].split_at(self.trailer_length - CRC_FIELD);
            self.crc.update(pad);
            let expected = self.crc.field();
            if field != expected {
                let found = [field[0], field[1], field[2], field[3]];
                return Err(FaultKind::Crc { found, expected });
            }
        }
        Ok(true)
    }
}
