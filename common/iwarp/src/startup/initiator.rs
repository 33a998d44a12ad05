//! The side that opened the TCP connection: sends the Request, validates the Reply.

use super::frame::{Collector, Enhanced, Flags, Frame, Kind, REVISION_ENHANCED};
use super::{MAX_PRIVATE_DATA, MAX_READ_DEPTH, Negotiated, Rtr, StartupConfig, StartupError};
use crate::fault::Misuse;

/// What the Responder said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// FPDU mode begins.
    Accepted {
        /// What holds from now on.
        parameters: Negotiated,
        /// Private data of the Reply, without the enhanced word.
        private_data: Vec<u8>,
    },
    /// The Responder does not want the connection.
    Rejected {
        /// Private data of the Reply, without the enhanced word.
        private_data: Vec<u8>,
    },
}

/// MPA start-up of the Initiator.
#[derive(Clone, Debug)]
pub struct Initiator {
    config: StartupConfig,
    request: Vec<u8>,
    reply: Option<Collector>,
}

impl Initiator {
    /// Prepares an enhanced Request, revision 2.
    ///
    /// # Errors
    /// [`Misuse::PrivateData`] over [`MAX_PRIVATE_DATA`], [`Misuse::ReadDepth`] over [`MAX_READ_DEPTH`].
    pub fn new(config: StartupConfig, private_data: &[u8]) -> Result<Self, Misuse> {
        check_private_data(private_data)?;
        check_read_depth(config.ird)?;
        check_read_depth(config.ord)?;
        let StartupConfig { crc, ird, ord, peer_to_peer } = config;
        let request = Frame {
            flags: Flags::default().with(Flags::CRC, crc),
            revision: REVISION_ENHANCED,
            claims_enhanced: true,
            enhanced: Some(Enhanced { ird, ord, peer_to_peer }),
            private_data: private_data.to_vec(),
        };
        let request = request.encode(Kind::Request);
        Ok(Self { config, request, reply: Some(Collector::new(Kind::Reply)) })
    }

    /// The Request, the first bytes to send. Nothing may follow it before the Reply.
    #[must_use]
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Feeds bytes that came. Returns how many belong to the Reply, and the Reply when it is complete.
    ///
    /// # Errors
    /// The Reply is invalid or asks for what we cannot do. Start-up is then over.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(usize, Option<Reply>), StartupError> {
        let mut collector = self.reply.take().ok_or(StartupError::Over)?;
        let (consumed, frame) = collector.receive(bytes)?;
        let Some(frame) = frame else {
            self.reply = Some(collector);
            return Ok((consumed, None));
        };
        self.validate(frame).map(|reply| (consumed, Some(reply)))
    }

    fn validate(&self, frame: Frame) -> Result<Reply, StartupError> {
        if frame.flags.has(Flags::REJECT) {
            return Ok(Reply::Rejected { private_data: frame.private_data });
        }
        if frame.flags.has(Flags::MARKERS) {
            return Err(StartupError::Markers);
        }
        frame.check_enhanced()?;
        let theirs = frame.enhanced.ok_or(StartupError::NotEnhanced { revision: frame.revision })?;
        if theirs.ord > self.config.ird {
            return Err(StartupError::InsufficientIrd { ord: theirs.ord, ird: self.config.ird });
        }
        let rtr = self.ready_to_receive(&theirs)?;
        let parameters = Negotiated {
            crc: self.config.crc || frame.flags.has(Flags::CRC),
            ird: self.config.ird,
            ord: self.config.ord.min(theirs.ird),
            rtr,
        };
        Ok(Reply::Accepted { parameters, private_data: frame.private_data })
    }

    /// The RTR message to send; a Reply in the client-server model needs none, whatever was asked for.
    fn ready_to_receive(&self, theirs: &Enhanced) -> Result<Option<Rtr>, StartupError> {
        let Some(accepted) = theirs.peer_to_peer else {
            return Ok(None);
        };
        let offered = self.config.peer_to_peer.unwrap_or_default();
        offered.common(accepted).map(Some).ok_or(StartupError::NoMatchingRtr)
    }
}

pub(super) fn check_private_data(private_data: &[u8]) -> Result<(), Misuse> {
    let (len, most) = (private_data.len(), MAX_PRIVATE_DATA);
    if len > most { Err(Misuse::PrivateData { len, most }) } else { Ok(()) }
}

pub(super) fn check_read_depth(value: u16) -> Result<(), Misuse> {
    let most = MAX_READ_DEPTH;
    if value > most { Err(Misuse::ReadDepth { value, most }) } else { Ok(()) }
}
