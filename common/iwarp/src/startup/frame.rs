//! The start-up frame of both directions: collected byte by byte, its flags, its enhanced connection word.

use zerocopy::{FromBytes, IntoBytes};

use super::{Rtr, RtrKinds, StartupError};
use crate::wire::{EnhancedWord, STARTUP_HEADER, StartupHeader};

/// PD_Length on the wire is at most this (RFC 5044).
const MAX_WIRE_PRIVATE_DATA: u16 = 512;

/// The highest revision that we know: RFC 6581.
pub(super) const REVISION_ENHANCED: u8 = 2;

/// "Do not negotiate automatically" in an IRD or ORD field.
pub(super) const NOT_NEGOTIATED: u16 = 0x3fff;

/// Which frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Reply,
}

impl Kind {
    const fn key(self) -> &'static str {
        match self {
            Self::Request => "MPA ID Req Frame",
            Self::Reply => "MPA ID Rep Frame",
        }
    }
}

/// Flags of a start-up frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Flags(u8);

impl Flags {
    pub(super) const MARKERS: u8 = 0x80;
    pub(super) const CRC: u8 = 0x40;
    pub(super) const REJECT: u8 = 0x20;
    pub(super) const ENHANCED: u8 = 0x10;

    pub(super) const fn with(self, flag: u8, set: bool) -> Self {
        Self(if set { self.0 | flag } else { self.0 })
    }

    pub(super) const fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
}

/// A frame in the making: bytes in, at most one whole frame held.
#[derive(Clone, Debug)]
pub(super) struct Collector {
    kind: Kind,
    bytes: Vec<u8>,
}

impl Collector {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, bytes: Vec::with_capacity(STARTUP_HEADER) }
    }

    /// Takes bytes up to the end of the frame; returns how many, and the frame when it is complete.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(usize, Option<Frame>), StartupError> {
        let header_end = STARTUP_HEADER.saturating_sub(self.bytes.len()).min(bytes.len());
        self.bytes.extend_from_slice(&bytes[..header_end]);
        self.check_key()?;
        let Ok((header, _)) = StartupHeader::read_from_prefix(&self.bytes) else {
            return Ok((header_end, None));
        };
        check_header(&header)?;
        let end = STARTUP_HEADER + usize::from(header.private_data_length.get());
        let rest = (end - self.bytes.len()).min(bytes.len() - header_end);
        self.bytes.extend_from_slice(&bytes[header_end..header_end + rest]);
        let complete = self.bytes.len() == end;
        Ok((header_end + rest, complete.then(|| Frame::parse(&header, &self.bytes[STARTUP_HEADER..]))))
    }

    /// Refuses a wrong key at its first wrong byte: a peer that speaks something else may send nothing more.
    fn check_key(&self) -> Result<(), StartupError> {
        let expected = self.kind.key();
        let same = self.bytes.iter().zip(expected.as_bytes()).all(|(byte, key)| byte == key);
        if same { Ok(()) } else { Err(StartupError::Key { expected }) }
    }
}

fn check_header(header: &StartupHeader) -> Result<(), StartupError> {
    if header.revision > REVISION_ENHANCED {
        return Err(StartupError::Revision { revision: header.revision });
    }
    let length = header.private_data_length.get();
    let least = if is_enhanced(header) { 4 } else { 0 };
    if length > MAX_WIRE_PRIVATE_DATA {
        return Err(StartupError::PrivateDataLength { length, least });
    }
    Ok(())
}

/// The S flag means something from revision 2 on; before, it is reserved.
const fn is_enhanced(header: &StartupHeader) -> bool {
    header.revision >= REVISION_ENHANCED && Flags(header.flags).has(Flags::ENHANCED)
}

/// A start-up frame that is whole and within its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) flags: Flags,
    pub(super) revision: u8,
    /// The frame's S flag holds, though its enhanced word may be cut off.
    pub(super) claims_enhanced: bool,
    pub(super) enhanced: Option<Enhanced>,
    /// Without the enhanced word.
    pub(super) private_data: Vec<u8>,
}

impl Frame {
    fn parse(header: &StartupHeader, private_data: &[u8]) -> Self {
        let claims_enhanced = is_enhanced(header);
        let word = EnhancedWord::read_from_prefix(private_data).ok().filter(|_| claims_enhanced);
        let (enhanced, rest) = word.map_or((None, private_data), |(word, rest)| (Some(Enhanced::parse(&word)), rest));
        let flags = Flags(header.flags);
        Self { flags, revision: header.revision, claims_enhanced, enhanced, private_data: rest.to_vec() }
    }

    /// The error of a frame with the S flag that is too short for the enhanced word.
    pub(super) fn check_enhanced(&self) -> Result<(), StartupError> {
        if self.claims_enhanced && self.enhanced.is_none() {
            let length = u16::try_from(self.private_data.len()).unwrap_or(u16::MAX);
            return Err(StartupError::PrivateDataLength { length, least: 4 });
        }
        Ok(())
    }

    pub(super) fn encode(&self, kind: Kind) -> Vec<u8> {
        let word = self.enhanced.map(Enhanced::word);
        let word = word.as_ref().map_or(&[][..], IntoBytes::as_bytes);
        let length = word.len() + self.private_data.len();
        let mut key = [0; 16];
        key.copy_from_slice(kind.key().as_bytes());
        let header = StartupHeader {
            key,
            flags: self.flags.with(Flags::ENHANCED, self.enhanced.is_some()).0,
            revision: self.revision,
            private_data_length: u16::try_from(length).expect("private data is bounded").into(),
        };
        [header.as_bytes(), word, &self.private_data].concat()
    }
}

/// The enhanced connection word, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Enhanced {
    pub(super) ird: u16,
    pub(super) ord: u16,
    /// A, with B, C and D, which mean nothing without it.
    pub(super) peer_to_peer: Option<RtrKinds>,
}

impl Enhanced {
    const HIGH: u16 = 0x8000;
    const LOW: u16 = 0x4000;
    const DEPTH: u16 = 0x3fff;

    const fn parse(word: &EnhancedWord) -> Self {
        let (first, second) = (word.ird.get(), word.ord.get());
        let peer_to_peer = if first & Self::HIGH == 0 {
            None
        } else {
            Some(RtrKinds { send: first & Self::LOW != 0, write: second & Self::HIGH != 0, read: second & Self::LOW != 0 })
        };
        Self { ird: first & Self::DEPTH, ord: second & Self::DEPTH, peer_to_peer }
    }

    fn word(self) -> EnhancedWord {
        let bit = |set: bool, mask: u16| if set { mask } else { 0 };
        let kinds = self.peer_to_peer.unwrap_or_default();
        let first = bit(self.peer_to_peer.is_some(), Self::HIGH) | bit(kinds.send, Self::LOW);
        let second = bit(kinds.write, Self::HIGH) | bit(kinds.read, Self::LOW);
        EnhancedWord { ird: (first | (self.ird & Self::DEPTH)).into(), ord: (second | (self.ord & Self::DEPTH)).into() }
    }
}

/// The kind that a Responder answers: what both have, and a Write when nothing was offered, as siw does.
pub(super) fn answer(offered: RtrKinds) -> Rtr {
    let ours = RtrKinds { write: true, read: true, send: true };
    offered.common(ours).unwrap_or(Rtr::Write)
}
