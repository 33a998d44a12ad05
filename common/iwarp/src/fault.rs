//! Why a stream in FPDU mode ended: the check that failed, whose fault it is, and the Terminate that says so.

use std::fmt;

use thiserror::Error;

use crate::memory::{InvalidateError, TaggedError};
use crate::number::{Msn, Opcode, QueueNumber, Stag};
use crate::terminate::{TerminateCode, TerminatedSegment};

/// An error that ends the stream. [`crate::Connection::terminate`] turns it into the message for the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What went wrong.
    pub kind: FaultKind,
    pub(crate) segment: Option<TerminatedSegment>,
}

impl Fault {
    /// A failure on our own side after which nothing can be sent any more.
    #[must_use]
    pub const fn local_catastrophic() -> Self {
        Self { kind: FaultKind::Local, segment: None }
    }

    /// What the Terminate for this fault says; `None` when the connection is dropped without a word.
    #[must_use]
    pub fn terminate_code(&self) -> Option<TerminateCode> {
        self.kind.terminate_code()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)?;
        match self.terminate_code() {
            Some(code) => write!(f, "; Terminate {code}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}

/// The check that failed. Unless it says otherwise the peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FaultKind {
    /// An FPDU's CRC does not match its content.
    #[error("CRC of an FPDU is {found:02x?} and should be {expected:02x?}")]
    Crc {
        /// The CRC field as received.
        found: [u8; 4],
        /// The CRC of what was received.
        expected: [u8; 4],
    },
    /// ULPDU_Length leaves no room for the headers.
    #[error("ULPDU_Length is {found}, less than the {least} bytes of the headers")]
    UlpduLength {
        /// ULPDU_Length as received.
        found: u16,
        /// The least that the headers take.
        least: u16,
    },
    /// A DDP version other than 1.
    #[error("DDP version is {version}, not 1")]
    DdpVersion {
        /// The version as received.
        version: u8,
        /// Whether the segment has the T flag.
        tagged: bool,
    },
    /// An RDMAP version other than 1.
    #[error("RDMAP version is {version}, not 1")]
    RdmapVersion {
        /// The version as received.
        version: u8,
    },
    /// An opcode that we do not know, or in the wrong buffer model.
    #[error("{opcode} is not expected in a{} segment", if *.tagged { " tagged" } else { "n untagged" })]
    Opcode {
        /// The opcode as received.
        opcode: Opcode,
        /// Whether the segment has the T flag.
        tagged: bool,
    },
    /// A message started, or changed its opcode, while another of its class was unfinished.
    #[error("{opcode} inside an unfinished {unfinished}")]
    Interleaved {
        /// The opcode as received.
        opcode: Opcode,
        /// The opcode of the unfinished message.
        unfinished: Opcode,
    },
    /// The segments of one Send with Invalidate name different STags.
    #[error("STag to invalidate changes from {expected} to {found} within a message")]
    InvalidateChanged {
        /// The STag of this segment.
        found: Stag,
        /// The STag of the first segment.
        expected: Stag,
    },
    /// A queue number that does not belong to the opcode.
    #[error("{opcode} on untagged queue {found}")]
    Queue {
        /// The opcode as received.
        opcode: Opcode,
        /// The queue as received.
        found: QueueNumber,
    },
    /// A message sequence number that is not the next one.
    #[error("MSN on queue {queue} is {found}, not {expected}")]
    Msn {
        /// The queue.
        queue: QueueNumber,
        /// The MSN as received.
        found: Msn,
        /// The next MSN.
        expected: Msn,
    },
    /// A message offset that does not continue the message.
    #[error("message offset on queue {queue} is {found}, not {expected}")]
    MessageOffset {
        /// The queue.
        queue: QueueNumber,
        /// The offset as received.
        found: u32,
        /// Payload bytes of the message so far.
        expected: u32,
    },
    /// A Send that is longer than the receive posted for it, or than any message may be.
    #[error("a Send is longer than its buffer")]
    TooLong,
    /// A Send without a receive.
    #[error("a Send found no posted receive")]
    NoReceivePosted,
    /// A Write that our memory refuses.
    #[error("an RDMA Write to {stag}:{to:#x} {error}")]
    Write {
        /// STag of the segment.
        stag: Stag,
        /// Tagged offset of the payload refused.
        to: u64,
        /// The check that failed.
        error: TaggedError,
    },
    /// The segments of one Write name different STags.
    #[error("STag changes from {expected} to {found} within an RDMA Write")]
    WriteStagChanged {
        /// The STag of this segment.
        found: Stag,
        /// The STag of the segments before.
        expected: Stag,
    },
    /// A segment of a Write does not continue the one before it.
    #[error("tagged offset within an RDMA Write is {found:#x}, not {expected:#x}")]
    WriteOffset {
        /// The offset of this segment.
        found: u64,
        /// Where the segment before ended.
        expected: u64,
    },
    /// A Write of more than 2^32 - 1 bytes.
    #[error("an RDMA Write is longer than a message can be")]
    WriteTooLong,
    /// Tagged offset plus length exceed 64 bits.
    #[error("tagged offset {to:#x} and {len} bytes wrap around")]
    TaggedOffsetWrap {
        /// Tagged offset of the segment.
        to: u64,
        /// Payload bytes.
        len: usize,
    },
    /// A Read Response that nobody asked for.
    #[error("an RDMA Read Response with no read outstanding")]
    UnexpectedReadResponse,
    /// A Read Response with another sink than its request.
    #[error("an RDMA Read Response names sink {found}, not {expected}")]
    ReadResponseStag {
        /// The sink STag as received.
        found: Stag,
        /// The sink STag of the oldest outstanding read.
        expected: Stag,
    },
    /// A Read Response segment that does not continue the one before it.
    #[error("an RDMA Read Response has tagged offset {found:#x}, not {expected:#x}")]
    ReadResponseOffset {
        /// The sink offset as received.
        found: u64,
        /// The bytes received so far.
        expected: u64,
    },
    /// A Read Response longer or shorter than its request.
    #[error("an RDMA Read Response of {found} bytes answers a request for {expected}")]
    ReadResponseLength {
        /// Bytes of the response, as far as it came.
        found: u64,
        /// Bytes asked for.
        expected: u32,
    },
    /// A Read Response could not be placed: its sink is gone. A fault of our own side.
    #[error("the sink of an outstanding read is gone")]
    Placement,
    /// A Read Request with payload or without the L flag.
    #[error("an RDMA Read Request is not exactly one segment without payload")]
    ReadRequestForm,
    /// More Read Requests than our IRD.
    #[error("an RDMA Read Request exceeds the IRD of {ird}")]
    TooManyReads {
        /// The Read Requests that we hold at most.
        ird: u16,
    },
    /// A Read Request whose source our memory refuses.
    #[error("an RDMA Read of {len} bytes from {stag}:{to:#x} {error}")]
    Read {
        /// STag of the source.
        stag: Stag,
        /// Tagged offset of the source.
        to: u64,
        /// Bytes asked for.
        len: u32,
        /// The check that failed.
        error: TaggedError,
    },
    /// A Read Request whose source or sink exceeds 64 bits.
    #[error("an RDMA Read of {len} bytes at tagged offset {to:#x} wraps around")]
    ReadWrap {
        /// Tagged offset of source or sink.
        to: u64,
        /// Bytes asked for.
        len: u32,
    },
    /// A Send with Invalidate whose STag our memory refuses to invalidate.
    #[error("a Send with Invalidate of {stag}, which {error}")]
    Invalidate {
        /// The STag to invalidate.
        stag: Stag,
        /// The check that failed.
        error: InvalidateError,
    },
    /// Our own side cannot go on.
    #[error("local catastrophic error")]
    Local,
}

impl FaultKind {
    /// The one map from errors to what goes on the wire.
    fn terminate_code(self) -> Option<TerminateCode> {
        Some(match self {
            Self::Crc { .. } => TerminateCode::MPA_CRC,
            Self::UlpduLength { .. } => TerminateCode::MPA_LENGTH,
            Self::DdpVersion { tagged: true, .. } => TerminateCode::TAGGED_VERSION,
            Self::DdpVersion { tagged: false, .. } => TerminateCode::UNTAGGED_VERSION,
            Self::RdmapVersion { .. } => TerminateCode::RDMAP_VERSION,
            Self::Opcode { .. } => TerminateCode::OPCODE,
            Self::Queue { .. } => TerminateCode::UNTAGGED_QUEUE,
            Self::Msn { .. } => TerminateCode::UNTAGGED_MSN,
            Self::MessageOffset { .. } => TerminateCode::UNTAGGED_OFFSET,
            Self::TooLong => TerminateCode::UNTAGGED_TOO_LONG,
            Self::NoReceivePosted => TerminateCode::UNTAGGED_NO_BUFFER,
            Self::Write { error, .. } => match error {
                // RFC 5041 has no code for access; siw says invalid STag too.
                TaggedError::InvalidStag | TaggedError::Access => TerminateCode::TAGGED_INVALID_STAG,
                TaggedError::Bounds => TerminateCode::TAGGED_BOUNDS,
                TaggedError::NotAssociated => TerminateCode::TAGGED_NOT_ASSOCIATED,
            },
            Self::WriteStagChanged { .. } | Self::ReadResponseStag { .. } => TerminateCode::TAGGED_INVALID_STAG,
            Self::WriteOffset { .. } | Self::WriteTooLong | Self::ReadResponseOffset { .. } | Self::ReadResponseLength { .. } => {
                TerminateCode::TAGGED_BOUNDS
            }
            Self::TaggedOffsetWrap { .. } => TerminateCode::TAGGED_WRAP,
            Self::Placement => TerminateCode::DDP_CATASTROPHIC,
            Self::TooManyReads { .. } => TerminateCode::STREAM_CATASTROPHIC,
            Self::Read { error, .. } => match error {
                TaggedError::InvalidStag => TerminateCode::READ_INVALID_STAG,
                TaggedError::Bounds => TerminateCode::READ_BOUNDS,
                TaggedError::Access => TerminateCode::READ_ACCESS,
                TaggedError::NotAssociated => TerminateCode::READ_NOT_ASSOCIATED,
            },
            Self::ReadWrap { .. } => TerminateCode::READ_WRAP,
            Self::Invalidate { error, .. } => match error {
                InvalidateError::InvalidStag => TerminateCode::CANNOT_INVALIDATE,
                InvalidateError::Access => TerminateCode::INVALIDATE_ACCESS,
            },
            Self::Local => TerminateCode::LOCAL_CATASTROPHIC,
            Self::Interleaved { .. } | Self::InvalidateChanged { .. } | Self::UnexpectedReadResponse | Self::ReadRequestForm => {
                return None;
            }
        })
    }
}

/// A call that our own side should not have made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Misuse {
    /// The send queue holds as many work requests as were announced.
    #[error("the send queue already holds its {depth} work requests")]
    QueueFull {
        /// The depth announced.
        depth: usize,
    },
    /// An RDMA Read although the peer accepts none.
    #[error("the peer accepts no RDMA Reads (ORD is 0)")]
    NoReads,
    /// Tagged offset plus length exceed 64 bits.
    #[error("tagged offset {to:#x} and {len} bytes wrap around")]
    TaggedOffsetWrap {
        /// Tagged offset of the request.
        to: u64,
        /// Bytes of the request.
        len: u32,
    },
    /// The stream has ended.
    #[error("the stream has ended")]
    Ended,
    /// Private data longer than is portable.
    #[error("private data of {len} bytes is over the limit of {most}")]
    PrivateData {
        /// Bytes given.
        len: usize,
        /// Bytes that may be given.
        most: usize,
    },
    /// IRD or ORD larger than the peers that we know of accept.
    #[error("IRD or ORD of {value} is over the limit of {most}")]
    ReadDepth {
        /// The value given.
        value: u16,
        /// The most that may be given.
        most: u16,
    },
    /// The operation needs a Request that was received whole.
    #[error("no MPA Request has been received")]
    NoRequest,
}
