//! File operations.

use std::io;

use godwit_memory::Buffer;

/// A file registered with a reactor. Ids are not reused soon: an operation on an unregistered file fails with `EBADF`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// An operation on a file or block device.
#[derive(Debug)]
pub enum FileOp {
    /// Reads `len` bytes at `offset` of the file into the buffer, from its byte `start` on.
    Read {
        /// Position in the file in bytes.
        offset: u64,
        /// Where the data goes.
        buffer: Buffer,
        /// First byte of the buffer to fill.
        start: usize,
        /// Number of bytes.
        len: usize,
    },
    /// Writes `len` bytes of the buffer, from its byte `start` on, at `offset` of the file.
    Write {
        /// Position in the file in bytes.
        offset: u64,
        /// Where the data comes from.
        buffer: Buffer,
        /// First byte of the buffer to write.
        start: usize,
        /// Number of bytes.
        len: usize,
        /// Whether these bytes must be on stable storage before the operation ends (`RWF_DSYNC`).
        durable: bool,
    },
    /// Brings all completed writes to stable storage (`fdatasync`; for a block device, its cache flush).
    Sync,
    /// Changes how a range is stored, within the file's size.
    Allocate {
        /// What becomes of the range.
        mode: AllocateMode,
        /// Position in the file in bytes.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
}

/// What [`FileOp::Allocate`] does. Neither changes the file's size; both leave zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Frees the range (`FALLOC_FL_PUNCH_HOLE`).
    PunchHole,
    /// Zeroes the range and keeps it provisioned (`FALLOC_FL_ZERO_RANGE`).
    ZeroRange,
}

/// The end of a file operation.
#[derive(Debug)]
pub struct FileDone {
    /// Bytes read or written (0 for other operations); fewer than asked for at the end of the file or of the space, after which the rest of the
    /// range that a read was to fill has its earlier content.
    pub result: io::Result<usize>,
    /// The operation's buffer.
    pub buffer: Option<Buffer>,
}

impl FileOp {
    /// Checks that the range lies inside the buffer: everything that runs an operation relies on it.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub(crate) fn assert_in_bounds(&self) {
        if let Self::Read { buffer, start, len, .. } | Self::Write { buffer, start, len, .. } = self {
            assert!(start.checked_add(*len).is_some_and(|end| end <= buffer.capacity()), "file operation outside its buffer");
        }
    }

    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Read { buffer, .. } | Self::Write { buffer, .. } => Some(buffer),
            Self::Sync | Self::Allocate { .. } => None,
        }
    }
}
