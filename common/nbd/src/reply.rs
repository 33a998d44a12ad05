//! The bytes of replies: everything but the data of reads, made without allocation.

use std::fmt::{self, Write};

use zerocopy::IntoBytes;

use crate::wire::{self, ChunkFlags, ChunkType};
use crate::{Errno, ExtentFlags, Request, Session};

/// Room for the longest error chunk.
const CAPACITY: usize = 192;

/// The longest message of an error chunk in bytes; longer ones are cut.
pub const MAX_MESSAGE_LEN: usize = CAPACITY - size_of::<wire::ChunkHeader>() - size_of::<wire::ErrorHeader>() - size_of::<u64>();

/// The bytes to send for a request, in front of the data of a read if there is any.
#[derive(Clone, Copy)]
pub struct Reply {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Reply {
    /// The request succeeded and has no data: every command but `READ` and `BLOCK_STATUS`.
    ///
    /// Simple also where replies are structured, which the protocol allows and which is shorter.
    #[must_use]
    pub fn ok(request: &Request) -> Self {
        Self::simple(Errno::OK, request.cookie)
    }

    /// The whole read succeeded; its `request.length` bytes follow immediately, and nothing else does.
    ///
    /// Nothing can be taken back once this is sent: if the data cannot be sent in full, close the connection. A read that may
    /// yet fail in the middle is sent, where replies are structured and unless [`Request::single_chunk`], as [`Reply::offset_data`]
    /// and [`Reply::offset_hole`] and ended by [`Reply::none`] or [`Reply::error_chunk`].
    #[must_use]
    pub fn read(session: &Session, request: &Request) -> Self {
        match (session.structured, request.length) {
            (false, _) => Self::simple(Errno::OK, request.cookie),
            (true, 0) => Self::none(request.cookie),
            (true, length) => Self::offset_data(ChunkFlags::DONE, request.cookie, request.offset, length),
        }
    }

    /// The status of the range is one extent of `length` bytes from the request's offset.
    ///
    /// # Panics
    /// When no context is selected or the length is zero: [`Request::check`] lets no such request through.
    #[must_use]
    pub fn block_status(session: &Session, request: &Request, length: u32, flags: ExtentFlags) -> Self {
        let context = session.allocation.expect("BLOCK_STATUS was checked to have a context");
        assert!(length > 0, "an extent is never empty");
        let extent = wire::OneExtent { context: context.0.into(), length: length.into(), flags: flags.0.into() };
        Self::chunk(ChunkFlags::DONE, ChunkType::BLOCK_STATUS, request.cookie, extent.as_bytes(), 0)
    }

    /// The request failed, with a message for clients that can be told one.
    ///
    /// # Panics
    /// When `errno` is zero.
    #[must_use]
    pub fn error(session: &Session, request: &Request, errno: Errno, message: impl fmt::Display) -> Self {
        if session.structured {
            Self::error_chunk(request.cookie, errno, message, None)
        } else {
            assert!(errno != Errno::OK, "an error has a number");
            Self::simple(errno, request.cookie)
        }
    }

    /// "Simple reply message".
    #[must_use]
    pub fn simple(errno: Errno, cookie: u64) -> Self {
        let mut reply = Self::empty();
        reply.push(wire::SimpleReply { magic: wire::SIMPLE_REPLY_MAGIC.into(), error: errno.0.into(), cookie: cookie.into() }.as_bytes());
        reply
    }

    /// A chunk without content: the last one of a request.
    #[must_use]
    pub fn none(cookie: u64) -> Self {
        Self::chunk(ChunkFlags::DONE, ChunkType::NONE, cookie, &[], 0)
    }

    /// A chunk of data of a read; `length` bytes follow. [`ChunkFlags::DONE`] on the last one, unless [`Reply::none`] ends the reply.
    ///
    /// # Panics
    /// When `length` is zero, which clients take for an error, or does not fit the chunk's length with the offset.
    #[must_use]
    pub fn offset_data(flags: ChunkFlags, cookie: u64, offset: u64, length: u32) -> Self {
        assert!(length > 0 && length <= u32::MAX - 8, "the length of a data chunk");
        Self::chunk(flags, ChunkType::OFFSET_DATA, cookie, &offset.to_be_bytes(), length)
    }

    /// A chunk of zeroes of a read: nothing follows.
    ///
    /// # Panics
    /// When `length` is zero.
    #[must_use]
    pub fn offset_hole(flags: ChunkFlags, cookie: u64, offset: u64, length: u32) -> Self {
        assert!(length > 0, "a hole is never empty");
        let hole = wire::OffsetHole { offset: offset.into(), length: length.into() };
        Self::chunk(flags, ChunkType::OFFSET_HOLE, cookie, hole.as_bytes(), 0)
    }

    /// The chunk that says that a request failed, and at which offset of the export if that is known; the last one of the request.
    ///
    /// # Panics
    /// When `errno` is zero.
    #[must_use]
    pub fn error_chunk(cookie: u64, errno: Errno, message: impl fmt::Display, offset: Option<u64>) -> Self {
        assert!(errno != Errno::OK, "an error has a number");
        let mut text = Message { bytes: [0; MAX_MESSAGE_LEN], len: 0, cut: false };
        // The only failure is that of the message's own Display: what it wrote until then is the message.
        let _ = write!(text, "{message}");
        let chunk = if offset.is_some() { ChunkType::ERROR_OFFSET } else { ChunkType::ERROR };
        let head = wire::ErrorHeader { error: errno.0.into(), message_len: u16::try_from(text.len).expect("messages are short").into() };
        let offset = offset.map(u64::to_be_bytes);
        let offset = offset.as_ref().map_or(&[][..], |bytes| &bytes[..]);
        let rest = u32::try_from(text.len + offset.len()).expect("messages are short");
        let mut reply = Self::chunk(ChunkFlags::DONE, chunk, cookie, head.as_bytes(), rest);
        reply.push(&text.bytes[..text.len]);
        reply.push(offset);
        reply
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// A chunk whose payload is `payload` and `following` bytes more.
    fn chunk(flags: ChunkFlags, chunk: ChunkType, cookie: u64, payload: &[u8], following: u32) -> Self {
        let length = u32::try_from(payload.len()).ok().and_then(|len| len.checked_add(following));
        let mut reply = Self::empty();
        reply.push(
            wire::ChunkHeader {
                magic: wire::STRUCTURED_REPLY_MAGIC.into(),
                flags: flags.0.into(),
                chunk: chunk.0.into(),
                cookie: cookie.into(),
                length: length.expect("the length of a chunk").into(),
            }
            .as_bytes(),
        );
        reply.push(payload);
        reply
    }

    const fn empty() -> Self {
        Self { bytes: [0; CAPACITY], len: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

impl AsRef<[u8]> for Reply {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for Reply {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Reply {}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({:02x?})", self.as_bytes())
    }
}

/// Text that is cut, at a character, where the room ends.
struct Message {
    bytes: [u8; MAX_MESSAGE_LEN],
    len: usize,
    cut: bool,
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let room = MAX_MESSAGE_LEN - self.len;
            self.cut |= character.len_utf8() > room;
            if self.cut {
                break;
            }
            self.len += character.encode_utf8(&mut self.bytes[self.len..]).len();
        }
        Ok(())
    }
}
