//! The side that accepted the TCP connection: validates the Request, sends the Reply.

use super::frame::{Collector, Enhanced, Flags, Frame, Kind, NOT_NEGOTIATED, answer};
use super::initiator::{check_private_data, check_read_depth};
use super::{MAX_READ_DEPTH, Negotiated, Rtr, RtrKinds, StartupError};
use crate::fault::Misuse;

/// What the Initiator asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Private data of the Request, without the enhanced word.
    pub private_data: Vec<u8>,
    /// Read Requests that the peer can hold; 0 when it did not say, 0x3fff when it does not negotiate.
    pub peer_ird: u16,
    /// Reads that the peer wants to have outstanding; 0 when it did not say, 0x3fff when it does not negotiate.
    pub peer_ord: u16,
    /// Whether IRD and ORD are negotiated (RFC 6581).
    pub enhanced: bool,
    /// Whether the peer asks for the peer-to-peer model.
    pub peer_to_peer: bool,
    /// Whether the peer asks for CRC.
    pub crc: bool,
    /// MPA revision of the Request.
    pub revision: u8,
}

/// What a Reply needs to know of its Request.
#[derive(Clone, Copy, Debug)]
struct Asked {
    revision: u8,
    crc: bool,
    claims_enhanced: bool,
    enhanced: Option<Enhanced>,
}

/// MPA start-up of the Responder.
#[derive(Clone, Debug)]
pub struct Responder {
    crc: bool,
    request: Option<Collector>,
    asked: Option<Asked>,
}

impl Responder {
    /// Waits for a Request. `crc` asks for CRC; it is used when either side asks.
    #[must_use]
    pub fn new(crc: bool) -> Self {
        Self { crc, request: Some(Collector::new(Kind::Request)), asked: None }
    }

    /// Asks for CRC from now on, for who decides only once the Request is there.
    pub const fn require_crc(&mut self) {
        self.crc = true;
    }

    /// Feeds bytes that came. Returns how many belong to the Request, and the Request when it is complete.
    ///
    /// # Errors
    /// The Request is invalid or asks for what we cannot do. Start-up is then over, but for [`Responder::reject`].
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(usize, Option<Request>), StartupError> {
        let mut collector = self.request.take().ok_or(StartupError::Over)?;
        let (consumed, frame) = collector.receive(bytes)?;
        let Some(frame) = frame else {
            self.request = Some(collector);
            return Ok((consumed, None));
        };
        self.validate(frame).map(|request| (consumed, Some(request)))
    }

    fn validate(&mut self, frame: Frame) -> Result<Request, StartupError> {
        let Frame { flags, revision, claims_enhanced, enhanced, .. } = frame;
        let crc = flags.has(Flags::CRC);
        self.asked = Some(Asked { revision, crc, claims_enhanced, enhanced });
        frame.check_enhanced()?;
        if flags.has(Flags::MARKERS) {
            return Err(StartupError::Markers);
        }
        Ok(Request {
            private_data: frame.private_data,
            peer_ird: enhanced.map_or(0, |word| word.ird),
            peer_ord: enhanced.map_or(0, |word| word.ord),
            enhanced: enhanced.is_some(),
            peer_to_peer: enhanced.is_some_and(|word| word.peer_to_peer.is_some()),
            crc,
            revision,
        })
    }

    /// The Reply that accepts, and what it makes of `ird` and `ord`, the reads that we hold and want to have outstanding:
    /// ORD is lowered to what the peer holds, IRD raised to what the peer wants, up to [`MAX_READ_DEPTH`]. A peer that
    /// does not negotiate leaves both as they are given here.
    ///
    /// # Errors
    /// [`Misuse::NoRequest`] before the Request, [`Misuse::PrivateData`], [`Misuse::ReadDepth`].
    pub fn accept(&mut self, ird: u16, ord: u16, private_data: &[u8]) -> Result<(Vec<u8>, Negotiated), Misuse> {
        check_private_data(private_data)?;
        check_read_depth(ird)?;
        check_read_depth(ord)?;
        let asked = self.asked.ok_or(Misuse::NoRequest)?;
        let crc = self.crc || asked.crc;
        let (negotiated, word) = match asked.enhanced {
            Some(theirs) => negotiate(&theirs, crc, ird, ord),
            None => (Negotiated { crc, ird, ord, rtr: None }, None),
        };
        let reply = Frame {
            flags: Flags::default().with(Flags::CRC, crc),
            revision: asked.revision,
            claims_enhanced: word.is_some(),
            enhanced: word,
            private_data: private_data.to_vec(),
        };
        self.asked = None;
        Ok((reply.encode(Kind::Reply), negotiated))
    }

    /// The Reply that rejects, after which TCP is closed; possible also after an error of [`Responder::receive`] over the
    /// content of a whole Request. Empty when there is nobody to answer: before the Request, and for revision 0.
    ///
    /// # Errors
    /// [`Misuse::PrivateData`].
    pub fn reject(&mut self, private_data: &[u8]) -> Result<Vec<u8>, Misuse> {
        check_private_data(private_data)?;
        let Some(asked) = self.asked.take().filter(|asked| asked.revision > 0) else {
            return Ok(Vec::new());
        };
        let word = Enhanced { ird: 0, ord: 0, peer_to_peer: None };
        let reply = Frame {
            flags: Flags::default().with(Flags::CRC, asked.crc).with(Flags::REJECT, true),
            revision: asked.revision,
            claims_enhanced: asked.claims_enhanced,
            enhanced: asked.claims_enhanced.then_some(word),
            private_data: private_data.to_vec(),
        };
        Ok(reply.encode(Kind::Reply))
    }
}

/// The Responder's half of RFC 6581, IRD and ORD negotiation and peer-to-peer connection set-up.
fn negotiate(theirs: &Enhanced, crc: bool, ird: u16, ord: u16) -> (Negotiated, Option<Enhanced>) {
    let rtr = theirs.peer_to_peer.map(answer);
    let least = u16::from(rtr == Some(Rtr::Read));
    let (ird, ird_field) = match theirs.ord {
        NOT_NEGOTIATED => (ird.max(least), NOT_NEGOTIATED),
        wanted => {
            let ird = ird.max(wanted.min(MAX_READ_DEPTH)).max(least);
            (ird, ird)
        }
    };
    let (ord, ord_field) = match theirs.ird {
        NOT_NEGOTIATED => (ord, NOT_NEGOTIATED),
        held => (ord.min(held), ord.min(held)),
    };
    let word = Enhanced { ird: ird_field, ord: ord_field, peer_to_peer: rtr.map(RtrKinds::only) };
    (Negotiated { crc, ird, ord, rtr }, Some(word))
}
