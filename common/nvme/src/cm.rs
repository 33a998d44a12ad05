//! Private data of the RDMA connection manager: how an NVMe/RDMA queue is asked for, granted and refused.

use std::fmt;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::macros::{layout, open_set};
use crate::{Cntlid, Qid, QueueSize};

/// The only record format (RECFMT).
const RECORD_FORMAT: u16 = 0;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RequestWire {
    recfmt: U16,
    qid: U16,
    hrqsize: U16,
    hsqsize: U16,
    cntlid: U16,
    reserved10: [u8; 22],
}

layout!(RequestWire, 32, { recfmt: 0, qid: 2, hrqsize: 4, hsqsize: 6, cntlid: 8, reserved10: 10 });

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AcceptWire {
    recfmt: U16,
    crqsize: U16,
    reserved4: [u8; 28],
}

layout!(AcceptWire, 32, { recfmt: 0, crqsize: 2, reserved4: 4 });

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RejectWire {
    recfmt: U16,
    sts: U16,
}

layout!(RejectWire, 4, { recfmt: 0, sts: 2 });

/// Private data of a connection request, from host to controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueRequest {
    /// Queue (QID).
    pub qid: Qid,
    /// Host receive queue size (HRQSIZE): response capsules that the host can receive; the controller never has more in flight.
    pub host_receive_size: u16,
    /// Host send queue size (HSQSIZE): command capsules that the host may have outstanding; 0's-based on the wire.
    pub host_send_size: QueueSize,
    /// Controller (CNTLID), for an I/O queue; older hosts send 0.
    pub cntlid: Cntlid,
}

/// Private data of an acceptance, from controller to host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueAccept {
    /// Controller receive queue size (CRQSIZE): command capsules that the controller can receive.
    pub controller_receive_size: u16,
}

/// Private data of a refusal, from controller to host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueReject {
    /// Status (STS).
    pub status: RejectStatus,
}

open_set! {
    /// Status of a refusal (STS).
    RejectStatus(u16), "reject status" {
        /// Private data too short.
        INVALID_PRIVATE_DATA_LENGTH = 1 => "invalid private data length",
        /// Record format unknown.
        INVALID_RECFMT = 2 => "invalid RECFMT",
        /// Queue id wrong.
        INVALID_QID = 3 => "invalid QID",
        /// Host send queue size wrong.
        INVALID_HSQSIZE = 4 => "invalid HSQSIZE",
        /// Host receive queue size wrong.
        INVALID_HRQSIZE = 5 => "invalid HRQSIZE",
        /// Out of resources.
        NO_RESOURCES = 6 => "no resources",
        /// Inbound RDMA Read depth wrong.
        INVALID_IRD = 7 => "invalid IRD",
        /// Outbound RDMA Read depth wrong.
        INVALID_ORD = 8 => "invalid ORD",
        /// Controller id wrong.
        INVALID_CNTLID = 9 => "invalid CNTLID",
    }
}

impl RejectStatus {
    /// What the status means to someone who reads it, in one clause.
    #[must_use]
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::INVALID_PRIVATE_DATA_LENGTH => "the private data of the connection request is missing or too short",
            Self::INVALID_RECFMT => "the private data of the connection request has an unknown format",
            Self::INVALID_QID => "the queue id is not one that the target takes",
            Self::INVALID_HSQSIZE => "the queue size is over the limit of the target",
            Self::INVALID_HRQSIZE => "the host's receive queue is too small or too large for the target",
            Self::NO_RESOURCES => "the target has no resources left for another queue",
            Self::INVALID_IRD => "the host cannot serve RDMA Reads, which the target needs to fetch data",
            Self::INVALID_ORD => "the RDMA Read depth of the host does not suit the target",
            Self::INVALID_CNTLID => "the target knows no such controller",
            _ => "the target gave a reason that is not known here",
        }
    }
}

/// Why a controller refuses a queue: what a target says in its log, and where its answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RequestError {
    /// Fewer than 32 bytes of private data.
    #[error("private data of {actual_bytes} bytes are fewer than the {} of NVMe/RDMA", QueueRequest::LEN_BYTES)]
    Length {
        /// Bytes that came.
        actual_bytes: usize,
    },
    /// The record format is not 0.
    #[error("record format {0} is not 0")]
    RecordFormat(u16),
    /// The queue id is over the limit.
    #[error("queue id {qid} is over its limit of {limit}")]
    Qid {
        /// What was asked for.
        qid: Qid,
        /// The highest one allowed.
        limit: Qid,
    },
    /// The send queue is over the limit.
    #[error("queue size {asked} is over its limit of {limit}")]
    QueueSize {
        /// What was asked for.
        asked: QueueSize,
        /// The most allowed.
        limit: QueueSize,
    },
    /// The receive queue has no room for a response.
    #[error("receive queue size {0} leaves no room for responses")]
    ReceiveQueueSize(u16),
    /// No room for another queue.
    #[error("no resources for another queue")]
    NoResources,
    /// The host serves no RDMA Reads.
    #[error("the host serves no RDMA Reads (its read depth is 0)")]
    NoReads,
    /// No such controller.
    #[error("there is no controller {0}")]
    Cntlid(Cntlid),
}

impl RequestError {
    /// What goes on the wire.
    #[must_use]
    pub const fn status(self) -> RejectStatus {
        match self {
            Self::Length { .. } => RejectStatus::INVALID_PRIVATE_DATA_LENGTH,
            Self::RecordFormat(_) => RejectStatus::INVALID_RECFMT,
            Self::Qid { .. } => RejectStatus::INVALID_QID,
            Self::QueueSize { .. } => RejectStatus::INVALID_HSQSIZE,
            Self::ReceiveQueueSize(_) => RejectStatus::INVALID_HRQSIZE,
            Self::NoResources => RejectStatus::NO_RESOURCES,
            Self::NoReads => RejectStatus::INVALID_IRD,
            Self::Cntlid(_) => RejectStatus::INVALID_CNTLID,
        }
    }

    /// The refusal that goes on the wire.
    #[must_use]
    pub const fn reject(self) -> QueueReject {
        QueueReject { status: self.status() }
    }
}

/// Private data of a controller that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ReplyError {
    /// Too short.
    #[error("private data of {actual_bytes} bytes are fewer than the {needed_bytes} of NVMe/RDMA")]
    Length {
        /// Bytes needed.
        needed_bytes: usize,
        /// Bytes that came.
        actual_bytes: usize,
    },
    /// The record format is not 0.
    #[error("record format {0} is not 0")]
    RecordFormat(u16),
}

impl QueueRequest {
    /// Length in bytes.
    pub const LEN_BYTES: usize = 32;

    /// The request for a queue of `size` entries at both ends.
    #[must_use]
    pub fn new(qid: Qid, size: QueueSize, cntlid: Cntlid) -> Self {
        let host_receive_size = u16::try_from(size.entries()).unwrap_or(u16::MAX);
        Self { qid, host_receive_size, host_send_size: size, cntlid }
    }

    /// The private data.
    #[must_use]
    pub fn to_wire(self) -> [u8; Self::LEN_BYTES] {
        zerocopy::transmute!(RequestWire {
            recfmt: U16::new(RECORD_FORMAT),
            qid: U16::new(self.qid.get()),
            hrqsize: U16::new(self.host_receive_size),
            hsqsize: U16::new(self.host_send_size.zeroes_based()),
            cntlid: U16::new(self.cntlid.get()),
            reserved10: [0; 22],
        })
    }

    /// Reads the private data; some connection managers pad it, so more than 32 bytes are taken.
    ///
    /// # Errors
    /// It is too short, or of another format.
    pub fn from_wire(bytes: &[u8]) -> Result<Self, RequestError> {
        let (wire, _) = RequestWire::read_from_prefix(bytes).map_err(|_| RequestError::Length { actual_bytes: bytes.len() })?;
        if wire.recfmt.get() != RECORD_FORMAT {
            return Err(RequestError::RecordFormat(wire.recfmt.get()));
        }
        Ok(Self {
            qid: Qid::new(wire.qid.get()),
            host_receive_size: wire.hrqsize.get(),
            host_send_size: QueueSize::from_zeroes_based(wire.hsqsize.get()),
            cntlid: Cntlid::new(wire.cntlid.get()),
        })
    }

    /// Refuses a queue larger than `limit`, and one without room for a response.
    ///
    /// # Errors
    /// Which of the two it is.
    pub fn check_sizes(&self, limit: QueueSize) -> Result<(), RequestError> {
        if self.host_send_size > limit {
            return Err(RequestError::QueueSize { asked: self.host_send_size, limit });
        }
        if self.host_receive_size == 0 {
            return Err(RequestError::ReceiveQueueSize(0));
        }
        Ok(())
    }
}

impl QueueAccept {
    /// Length in bytes.
    pub const LEN_BYTES: usize = 32;

    /// The private data.
    #[must_use]
    pub fn to_wire(self) -> [u8; Self::LEN_BYTES] {
        zerocopy::transmute!(AcceptWire {
            recfmt: U16::new(RECORD_FORMAT),
            crqsize: U16::new(self.controller_receive_size),
            reserved4: [0; 28],
        })
    }

    /// Reads the private data.
    ///
    /// # Errors
    /// It is too short, or of another format.
    pub fn from_wire(bytes: &[u8]) -> Result<Self, ReplyError> {
        let wire: AcceptWire = read_reply(bytes)?;
        check_reply_format(wire.recfmt)?;
        Ok(Self { controller_receive_size: wire.crqsize.get() })
    }
}

impl QueueReject {
    /// Length in bytes.
    pub const LEN_BYTES: usize = 4;

    /// The private data.
    #[must_use]
    pub fn to_wire(self) -> [u8; Self::LEN_BYTES] {
        zerocopy::transmute!(RejectWire { recfmt: U16::new(RECORD_FORMAT), sts: U16::new(self.status.0) })
    }

    /// Reads the private data.
    ///
    /// # Errors
    /// It is too short, or of another format.
    pub fn from_wire(bytes: &[u8]) -> Result<Self, ReplyError> {
        let wire: RejectWire = read_reply(bytes)?;
        check_reply_format(wire.recfmt)?;
        Ok(Self { status: RejectStatus(wire.sts.get()) })
    }

    /// The refusal in words for whoever asked for `request`.
    #[must_use]
    pub const fn explain(self, request: &QueueRequest) -> Explanation<'_> {
        Explanation { reject: self, request }
    }
}

fn read_reply<T: FromBytes>(bytes: &[u8]) -> Result<T, ReplyError> {
    let short = ReplyError::Length { needed_bytes: size_of::<T>(), actual_bytes: bytes.len() };
    T::read_from_prefix(bytes).map(|(wire, _)| wire).map_err(|_| short)
}

fn check_reply_format(recfmt: U16) -> Result<(), ReplyError> {
    match recfmt.get() {
        RECORD_FORMAT => Ok(()),
        other => Err(ReplyError::RecordFormat(other)),
    }
}

/// A refusal in words, with the value that was refused.
#[derive(Clone, Copy, Debug)]
pub struct Explanation<'a> {
    reject: QueueReject,
    request: &'a QueueRequest,
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reject: QueueReject { status }, request } = self;
        write!(f, "target refused: {}", status.explanation())?;
        match *status {
            RejectStatus::INVALID_HSQSIZE => write!(f, " (asked for {})", request.host_send_size)?,
            RejectStatus::INVALID_HRQSIZE => write!(f, " (it is {})", request.host_receive_size)?,
            RejectStatus::INVALID_QID => write!(f, " (it is {})", request.qid)?,
            RejectStatus::INVALID_CNTLID => write!(f, " (it is {})", request.cntlid)?,
            _ => {}
        }
        write!(f, ": {status}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_lies_on_the_wire_as_specified() {
        let request = QueueRequest {
            qid: Qid::new(0x0102),
            host_receive_size: 0x0304,
            host_send_size: QueueSize::from_zeroes_based(0x0506),
            cntlid: Cntlid::new(0x0708),
        };
        let mut bytes = [0; 32];
        bytes[..10].copy_from_slice(&[0, 0, 2, 1, 4, 3, 6, 5, 8, 7]);
        assert_eq!(request.to_wire(), bytes);
        assert_eq!(QueueRequest::from_wire(&bytes), Ok(request));
        assert_eq!(QueueRequest::from_wire(&[&bytes[..], &[0; 24]].concat()), Ok(request));
    }

    #[test]
    fn request_is_refused_with_the_status_of_its_fault() {
        assert_eq!(QueueRequest::from_wire(&[0; 31]), Err(RequestError::Length { actual_bytes: 31 }));
        assert_eq!(RequestError::Length { actual_bytes: 31 }.reject().to_wire(), [0, 0, 1, 0]);
        let mut bytes = [0; 32];
        bytes[1] = 1;
        assert_eq!(QueueRequest::from_wire(&bytes), Err(RequestError::RecordFormat(256)));
        assert_eq!(RequestError::RecordFormat(256).status(), RejectStatus::INVALID_RECFMT);
    }

    #[test]
    fn queue_sizes_are_accepted_up_to_the_limit() {
        let limit = QueueSize::new(1024).unwrap();
        let of = |entries| QueueRequest::new(Qid::new(1), QueueSize::new(entries).unwrap(), Cntlid::new(1));
        assert_eq!(of(1024).check_sizes(limit), Ok(()));
        let error = of(1025).check_sizes(limit).unwrap_err();
        assert_eq!(error.to_string(), "queue size 1025 is over its limit of 1024");
        assert_eq!(error.reject().to_wire(), [0, 0, 4, 0]);
        let deaf = QueueRequest { host_receive_size: 0, ..of(16) };
        assert_eq!(deaf.check_sizes(limit), Err(RequestError::ReceiveQueueSize(0)));
        assert_eq!(of(65_536).host_receive_size, 65_535);
    }

    #[test]
    fn replies_need_their_length_and_format() {
        let accept = QueueAccept { controller_receive_size: 128 };
        assert_eq!(accept.to_wire()[..4], [0, 0, 128, 0]);
        assert_eq!(QueueAccept::from_wire(&accept.to_wire()), Ok(accept));
        assert!(matches!(QueueAccept::from_wire(&[0; 31]), Err(ReplyError::Length { needed_bytes: 32, actual_bytes: 31 })));
        assert_eq!(QueueAccept::from_wire(&[1; 32]), Err(ReplyError::RecordFormat(0x0101)));
        assert!(matches!(QueueReject::from_wire(&[0; 3]), Err(ReplyError::Length { needed_bytes: 4, actual_bytes: 3 })));
        assert_eq!(QueueReject::from_wire(&[0, 0, 6, 0, 9]).unwrap().status, RejectStatus::NO_RESOURCES);
    }

    #[test]
    fn a_refusal_is_explained_in_words() {
        let request = QueueRequest::new(Qid::new(3), QueueSize::new(1025).unwrap(), Cntlid::new(9));
        let explain = |status| QueueReject { status }.explain(&request).to_string();
        assert_eq!(
            explain(RejectStatus::INVALID_HSQSIZE),
            "target refused: the queue size is over the limit of the target (asked for 1025): invalid HSQSIZE (04h)"
        );
        assert_eq!(
            explain(RejectStatus::NO_RESOURCES),
            "target refused: the target has no resources left for another queue: no resources (06h)"
        );
        assert!(explain(RejectStatus(77)).ends_with("a reason that is not known here: reject status 4Dh"));
    }
}
