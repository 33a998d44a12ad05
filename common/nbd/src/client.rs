//! The client side, as far as measuring and tests need it: bytes to send, and replies taken apart.
//!
//! It checks framing only and trusts the server's lengths up to [`MAX_DATA_LEN`]; it is no client for production.

use zerocopy::{FromBytes, IntoBytes};

use crate::wire::{self, ChunkFlags, ChunkType, HandshakeFlags};
use crate::{ABSURD_PAYLOAD_LEN, Errno, InfoType, OptionCode, OptionReplyType, Request, TransmissionFlags};

/// The longest data of a reply that the parsers accept, in bytes.
pub const MAX_DATA_LEN: u32 = ABSURD_PAYLOAD_LEN + 8;

/// The server sent something that is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Garbled {
    /// Not the greeting of a fixed newstyle server.
    #[error("not the greeting of a newstyle NBD server")]
    Greeting,
    /// The magic number of a reply is wrong.
    #[error("{0:#x} stands where the magic of a reply belongs")]
    Magic(u64),
    /// The reply announces too much data.
    #[error("a reply announces {0} bytes of data")]
    TooLong(u32),
    /// Something stands behind what should be the last.
    #[error("{0} bytes follow the last reply of the handshake")]
    Trailing(usize),
    /// There is no last reply.
    #[error("{0} bytes of replies to one option, and no end")]
    Endless(usize),
}

/// The handshake flags of a server's greeting; `None` when more bytes are needed. It is 18 bytes long.
///
/// # Errors
/// When it is not a greeting.
pub fn greeting(bytes: &[u8]) -> Result<Option<HandshakeFlags>, Garbled> {
    let Ok((greeting, _)) = wire::Greeting::read_from_prefix(bytes) else {
        return Ok(None);
    };
    if greeting.magic.get() != wire::NBDMAGIC || greeting.option_magic.get() != wire::IHAVEOPT {
        return Err(Garbled::Greeting);
    }
    Ok(Some(HandshakeFlags(greeting.flags.get())))
}

/// The client flags.
#[must_use]
pub fn flags(flags: HandshakeFlags) -> [u8; 4] {
    u32::from(flags.0).to_be_bytes()
}

/// Any option with any data.
///
/// # Panics
/// When the data do not fit 32 bits.
#[must_use]
pub fn option(option: OptionCode, data: &[u8]) -> Vec<u8> {
    let header = wire::OptionHeader { magic: wire::IHAVEOPT.into(), option: option.0.into(), length: length(data).into() };
    [header.as_bytes(), data].concat()
}

/// `INFO` or `GO` for the export `name`, asking for `infos`.
///
/// # Panics
/// When a length does not fit its field.
#[must_use]
pub fn info(code: OptionCode, name: &str, infos: &[InfoType]) -> Vec<u8> {
    let count = u16::try_from(infos.len()).expect("so many infos fit no option");
    let mut data = string(name);
    data.extend_from_slice(&count.to_be_bytes());
    data.extend(infos.iter().flat_map(|info| info.0.to_be_bytes()));
    option(code, &data)
}

/// `LIST_META_CONTEXT` or `SET_META_CONTEXT` for the export `name`.
///
/// # Panics
/// When a length does not fit its field.
#[must_use]
pub fn meta_context(code: OptionCode, name: &str, queries: &[&str]) -> Vec<u8> {
    let count = u32::try_from(queries.len()).expect("so many queries fit no option");
    let mut data = string(name);
    data.extend_from_slice(&count.to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query)));
    option(code, &data)
}

/// One reply to an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionReply {
    /// The option.
    pub option: OptionCode,
    /// What kind of reply.
    pub reply: OptionReplyType,
    /// Its data.
    pub data: Vec<u8>,
}

impl OptionReply {
    /// Takes a reply off the front; `None` when more bytes are needed. Also returns how many bytes it has.
    ///
    /// # Errors
    /// When it is not an option reply.
    pub fn parse(bytes: &[u8]) -> Result<Option<(usize, Self)>, Garbled> {
        let Ok((header, rest)) = wire::OptionReplyHeader::read_from_prefix(bytes) else {
            return Ok(None);
        };
        if header.magic.get() != wire::OPTION_REPLY_MAGIC {
            return Err(Garbled::Magic(header.magic.get()));
        }
        let len = data_len(header.length.get())?;
        let Some(data) = rest.get(..len) else {
            return Ok(None);
        };
        let reply = Self { option: OptionCode(header.option.get()), reply: OptionReplyType(header.reply.get()), data: data.to_vec() };
        Ok(Some((size_of::<wire::OptionReplyHeader>() + len, reply)))
    }

    /// Whether no further reply to the option follows.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.reply == OptionReplyType::ACK || self.reply.is_error()
    }
}

/// A fact about an export, out of the data of a reply of the type [`OptionReplyType::INFO`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Info {
    /// Its size in bytes, and what it can do.
    Export {
        /// Bytes of the export.
        size: u64,
        /// What it can do.
        flags: TransmissionFlags,
    },
    /// Its block size constraints.
    BlockSize {
        /// Smallest and aligning unit.
        minimum: u32,
        /// Unit that works best.
        preferred: u32,
        /// Largest payload.
        maximum: u32,
    },
    /// Any other.
    Other(InfoType),
}

impl Info {
    /// Reads the data of a reply; `None` when they are not as long as such a fact is.
    #[must_use]
    pub fn parse(data: &[u8]) -> Option<Self> {
        let info = InfoType(u16::from_be_bytes(*data.first_chunk()?));
        Some(match info {
            InfoType::EXPORT => {
                let export = wire::InfoExport::read_from_bytes(data).ok()?;
                Self::Export { size: export.size.get(), flags: TransmissionFlags(export.flags.get()) }
            }
            InfoType::BLOCK_SIZE => {
                let sizes = wire::InfoBlockSize::read_from_bytes(data).ok()?;
                Self::BlockSize { minimum: sizes.minimum.get(), preferred: sizes.preferred.get(), maximum: sizes.maximum.get() }
            }
            other => Self::Other(other),
        })
    }
}

/// The length of a request's header.
pub const REQUEST_LEN: usize = size_of::<wire::RequestHeader>();

/// The length of a simple reply without the data of a read.
pub const SIMPLE_REPLY_LEN: usize = size_of::<wire::SimpleReply>();

/// The head of a simple reply: the request's cookie, and whether it succeeded; the data of a read that did follow.
///
/// # Errors
/// When it is not the head of a simple reply.
pub fn simple_reply(bytes: &[u8; SIMPLE_REPLY_LEN]) -> Result<(u64, Errno), Garbled> {
    let head: wire::SimpleReply = zerocopy::transmute!(*bytes);
    if head.magic.get() != wire::SIMPLE_REPLY_MAGIC {
        return Err(Garbled::Magic(head.magic.get().into()));
    }
    Ok((head.cookie.get(), Errno(head.error.get())))
}

/// The header of a request; a write's payload is to follow.
#[must_use]
pub fn request(request: &Request) -> [u8; REQUEST_LEN] {
    zerocopy::transmute!(wire::RequestHeader {
        magic: wire::REQUEST_MAGIC.into(),
        flags: request.flags.0.into(),
        command: request.command.to_wire().into(),
        cookie: request.cookie.into(),
        offset: request.offset.into(),
        length: request.length.into(),
    })
}

/// One reply, or one chunk of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A simple reply.
    Simple {
        /// The request's cookie.
        cookie: u64,
        /// Whether it succeeded.
        errno: Errno,
        /// What was read.
        data: Vec<u8>,
    },
    /// A chunk of a structured reply.
    Chunk {
        /// The request's cookie.
        cookie: u64,
        /// Whether it is the last.
        flags: ChunkFlags,
        /// What kind of chunk.
        chunk: ChunkType,
        /// Its payload.
        payload: Vec<u8>,
    },
}

impl Reply {
    /// Takes a reply off the front; `None` when more bytes are needed. Also returns how many bytes it has.
    ///
    /// `read_len` tells how much data a successful simple reply has, by its cookie: the length of a read, zero for all else.
    ///
    /// # Errors
    /// When it is not a reply.
    pub fn parse(bytes: &[u8], read_len: impl FnOnce(u64) -> u32) -> Result<Option<(usize, Self)>, Garbled> {
        let Some((magic, _)) = bytes.split_first_chunk() else {
            return Ok(None);
        };
        match u32::from_be_bytes(*magic) {
            wire::SIMPLE_REPLY_MAGIC => Self::parse_simple(bytes, read_len),
            wire::STRUCTURED_REPLY_MAGIC => Self::parse_chunk(bytes),
            magic => Err(Garbled::Magic(magic.into())),
        }
    }

    fn parse_simple(bytes: &[u8], read_len: impl FnOnce(u64) -> u32) -> Result<Option<(usize, Self)>, Garbled> {
        let Some((head, rest)) = bytes.split_first_chunk() else {
            return Ok(None);
        };
        let (cookie, errno) = simple_reply(head)?;
        let len = if errno == Errno::OK { data_len(read_len(cookie))? } else { 0 };
        let Some(data) = rest.get(..len) else {
            return Ok(None);
        };
        let reply = Self::Simple { cookie, errno, data: data.to_vec() };
        Ok(Some((SIMPLE_REPLY_LEN + len, reply)))
    }

    fn parse_chunk(bytes: &[u8]) -> Result<Option<(usize, Self)>, Garbled> {
        let Ok((header, rest)) = wire::ChunkHeader::read_from_prefix(bytes) else {
            return Ok(None);
        };
        let len = data_len(header.length.get())?;
        let Some(payload) = rest.get(..len) else {
            return Ok(None);
        };
        let reply = Self::Chunk {
            cookie: header.cookie.get(),
            flags: ChunkFlags(header.flags.get()),
            chunk: ChunkType(header.chunk.get()),
            payload: payload.to_vec(),
        };
        Ok(Some((size_of::<wire::ChunkHeader>() + len, reply)))
    }

    /// The cookie of the request that it answers.
    #[must_use]
    pub const fn cookie(&self) -> u64 {
        match self {
            Self::Simple { cookie, .. } | Self::Chunk { cookie, .. } => *cookie,
        }
    }

    /// The error that it reports; [`Errno::OK`] if none.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Simple { errno, .. } => *errno,
            Self::Chunk { chunk: ChunkType::ERROR | ChunkType::ERROR_OFFSET, payload, .. } => {
                payload.first_chunk().map_or(Errno::EINVAL, |errno| Errno(u32::from_be_bytes(*errno)))
            }
            Self::Chunk { .. } => Errno::OK,
        }
    }
}

fn data_len(length: u32) -> Result<usize, Garbled> {
    if length > MAX_DATA_LEN { Err(Garbled::TooLong(length)) } else { Ok(length as usize) }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("so many bytes fit no option")
}

/// A string with its length in front.
fn string(text: &str) -> Vec<u8> {
    [&length(text.as_bytes()).to_be_bytes(), text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simple_reply_is_told_by_its_magic() {
        let bytes = *b"\x67\x44\x66\x98\0\0\0\x05\x01\x02\x03\x04\x05\x06\x07\x08";
        assert_eq!(simple_reply(&bytes), Ok((0x0102_0304_0506_0708, Errno::EIO)));
        let structured = *b"\x66\x8e\x33\xef\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08";
        assert_eq!(simple_reply(&structured), Err(Garbled::Magic(0x668e_33ef)));
    }

    #[test]
    fn facts_of_an_export_are_as_long_as_they_are() {
        let export = b"\0\0\0\0\0\0\x40\0\0\0\x01\x6d";
        assert_eq!(Info::parse(export), Some(Info::Export { size: 1 << 30, flags: TransmissionFlags(0x016d) }));
        assert_eq!(Info::parse(&export[..11]), None);
        let sizes = b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0";
        assert_eq!(Info::parse(sizes), Some(Info::BlockSize { minimum: 512, preferred: 4096, maximum: 32 << 20 }));
        assert_eq!(Info::parse(b"\0\x01name"), Some(Info::Other(InfoType::NAME)));
        assert_eq!(Info::parse(b"\0"), None);
    }
}
