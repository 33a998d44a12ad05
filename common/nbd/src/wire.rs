//! The bytes: fixed-size structures of the protocol, all integers big-endian.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, Unaligned};

pub use crate::flags::{ChunkFlags, HandshakeFlags};
pub use crate::number::ChunkType;

/// First bytes of a server: "NBDMAGIC".
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Then, and in front of every option: "IHAVEOPT".
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// In front of every option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// In front of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// In front of every simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// In front of every structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The server's first bytes ("Newstyle negotiation").
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct Greeting {
    /// [`NBDMAGIC`].
    pub magic: U64,
    /// [`IHAVEOPT`].
    pub option_magic: U64,
    /// [`HandshakeFlags`].
    pub flags: U16,
}

/// The head of an option; `length` bytes of data follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct OptionHeader {
    /// [`IHAVEOPT`].
    pub magic: U64,
    /// [`crate::OptionCode`].
    pub option: U32,
    /// Bytes of data.
    pub length: U32,
}

/// The head of an option reply; `length` bytes of data follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct OptionReplyHeader {
    /// [`OPTION_REPLY_MAGIC`].
    pub magic: U64,
    /// The option that is answered.
    pub option: U32,
    /// [`crate::OptionReplyType`].
    pub reply: U32,
    /// Bytes of data.
    pub length: U32,
}

/// Data of `REP_INFO` with `INFO_EXPORT`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct InfoExport {
    /// [`crate::InfoType::EXPORT`].
    pub info: U16,
    /// Bytes of the export.
    pub size: U64,
    /// [`crate::TransmissionFlags`].
    pub flags: U16,
}

/// Data of `REP_INFO` with `INFO_BLOCK_SIZE`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct InfoBlockSize {
    /// [`crate::InfoType::BLOCK_SIZE`].
    pub info: U16,
    /// Smallest and aligning unit.
    pub minimum: U32,
    /// Unit that works best.
    pub preferred: U32,
    /// Largest payload.
    pub maximum: U32,
}

/// Answer to `EXPORT_NAME`, in front of 124 zero bytes unless `NO_ZEROES` was agreed.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct ExportNameReply {
    /// Bytes of the export.
    pub size: U64,
    /// [`crate::TransmissionFlags`].
    pub flags: U16,
}

/// "Request message"; a `WRITE` is followed by `length` bytes of payload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// [`REQUEST_MAGIC`].
    pub magic: U32,
    /// [`crate::CommandFlags`].
    pub flags: U16,
    /// [`crate::Command`].
    pub command: U16,
    /// Chosen by the client and echoed.
    pub cookie: U64,
    /// First byte of the range.
    pub offset: U64,
    /// Bytes of the range.
    pub length: U32,
}

/// "Simple reply message"; a successful `READ`'s data follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct SimpleReply {
    /// [`SIMPLE_REPLY_MAGIC`].
    pub magic: U32,
    /// [`crate::Errno`].
    pub error: U32,
    /// The request's cookie.
    pub cookie: U64,
}

/// "Structured reply chunk message"; `length` bytes of payload follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct ChunkHeader {
    /// [`STRUCTURED_REPLY_MAGIC`].
    pub magic: U32,
    /// [`ChunkFlags`].
    pub flags: U16,
    /// [`ChunkType`].
    pub chunk: U16,
    /// The request's cookie.
    pub cookie: U64,
    /// Bytes of payload.
    pub length: U32,
}

/// Payload of an `OFFSET_HOLE` chunk.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct OffsetHole {
    /// First byte of the hole, from the start of the export.
    pub offset: U64,
    /// Bytes of the hole, never zero.
    pub length: U32,
}

/// Payload of a `BLOCK_STATUS` chunk with one extent.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct OneExtent {
    /// [`crate::ContextId`].
    pub context: U32,
    /// Bytes of the extent, never zero.
    pub length: U32,
    /// [`crate::ExtentFlags`].
    pub flags: U32,
}

/// Start of the payload of `ERROR` and `ERROR_OFFSET` chunks; the message follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct ErrorHeader {
    /// [`crate::Errno`], never zero.
    pub error: U32,
    /// Bytes of the message.
    pub message_len: U16,
}

const _: () = {
    assert!(size_of::<Greeting>() == 18);
    assert!(size_of::<OptionHeader>() == 16);
    assert!(size_of::<OptionReplyHeader>() == 20);
    assert!(size_of::<InfoExport>() == 12);
    assert!(size_of::<InfoBlockSize>() == 14);
    assert!(size_of::<ExportNameReply>() == 10);
    assert!(size_of::<RequestHeader>() == 28);
    assert!(size_of::<SimpleReply>() == 16);
    assert!(size_of::<ChunkHeader>() == 20);
    assert!(size_of::<OffsetHole>() == 12);
    assert!(size_of::<OneExtent>() == 12);
    assert!(size_of::<ErrorHeader>() == 6);
};
