//! Why MPA start-up failed, and what the peer is told.

use thiserror::Error;

use crate::terminate::{TerminateCode, startup_terminate};

/// A start-up frame that ends the connection. A Responder closes TCP, after [`crate::Responder::reject`] where that still
/// yields a frame; an Initiator first sends [`StartupError::terminate`], if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StartupError {
    /// The bytes do not begin with the key of the frame expected.
    #[error("the peer does not speak MPA: no {expected:?} at the start")]
    Key {
        /// The key expected.
        expected: &'static str,
    },
    /// A revision that we do not know.
    #[error("MPA revision {revision} is not supported")]
    Revision {
        /// The revision as received.
        revision: u8,
    },
    /// PD_Length over the limit of RFC 5044, or too small for the enhanced connection word.
    #[error("MPA private data of {length} bytes is not within {least} and 512")]
    PrivateDataLength {
        /// PD_Length as received.
        length: u16,
        /// The least for this frame: 4 with the S flag.
        least: u16,
    },
    /// The peer wants markers.
    #[error("the peer asks for MPA markers, which are not supported")]
    Markers,
    /// A Reply without enhanced connection set-up, so without IRD and ORD.
    #[error("the peer's MPA Reply (revision {revision}) has no enhanced connection set-up")]
    NotEnhanced {
        /// The revision of the Reply.
        revision: u8,
    },
    /// The peer will have more reads outstanding than we offered to hold.
    #[error("the peer's ORD of {ord} exceeds our IRD of {ird}")]
    InsufficientIrd {
        /// ORD of the Reply.
        ord: u16,
        /// The IRD that we offered.
        ird: u16,
    },
    /// The peer wants an RTR message that we did not offer.
    #[error("the peer accepts none of the RTR messages offered")]
    NoMatchingRtr,
    /// Bytes after the frame or a second frame were fed to a start-up that is over.
    #[error("MPA start-up is over")]
    Over,
}

impl StartupError {
    /// What the Terminate for this error says, when an Initiator meets it.
    #[must_use]
    pub const fn terminate_code(&self) -> Option<TerminateCode> {
        Some(match self {
            Self::Key { .. } | Self::Revision { .. } | Self::PrivateDataLength { .. } | Self::Markers | Self::NotEnhanced { .. } => {
                TerminateCode::MPA_FRAME
            }
            Self::InsufficientIrd { .. } => TerminateCode::MPA_INSUFFICIENT_IRD,
            Self::NoMatchingRtr => TerminateCode::MPA_NO_MATCHING_RTR,
            Self::Over => return None,
        })
    }

    /// The Terminate that an Initiator sends before it closes TCP, as one whole FPDU. (A Responder may not send an FPDU
    /// before it has received one.)
    #[must_use]
    pub fn terminate(&self) -> Option<Vec<u8>> {
        self.terminate_code().map(startup_terminate)
    }
}
