//! One request, and every rule that it must keep before it is carried out.

use crate::{Command, CommandFlags, Errno, Export, Session, TransmissionFlags, wire};

/// A request as it came ("Request message"): well framed, otherwise unchecked until [`Request::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Chosen by the client; the reply echoes it.
    pub cookie: u64,
    /// What to do.
    pub command: Command,
    /// How to do it.
    pub flags: CommandFlags,
    /// First byte of the range.
    pub offset: u64,
    /// Bytes of the range.
    pub length: u32,
}

/// Why a request is answered with an error; its `Display` is the message for structured replies and for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not a command of the protocol.
    #[error("{0} is unknown")]
    UnknownCommand(Command),
    /// The export's transmission flags do not offer the command.
    #[error("{0} was not offered")]
    CommandNotOffered(Command),
    /// The command does not know one of its flags.
    #[error("{command} with flags {flags:#06x}: not all of them are valid there", flags = flags.0)]
    InvalidFlags {
        /// The command.
        command: Command,
        /// All its flags.
        flags: CommandFlags,
    },
    /// The export's transmission flags do not offer one of the command flags.
    #[error("{command} with flags {flags:#06x}: not all of them were offered", flags = flags.0)]
    FlagsNotOffered {
        /// The command.
        command: Command,
        /// All its flags.
        flags: CommandFlags,
    },
    /// `BLOCK_STATUS` without a selected metadata context.
    #[error("BLOCK_STATUS without a metadata context selected for this export")]
    NoContext,
    /// `BLOCK_STATUS` of nothing has no extent to tell.
    #[error("BLOCK_STATUS of zero bytes")]
    EmptyStatus,
    /// `FLUSH` names a range.
    #[error("FLUSH with an offset or a length")]
    FlushRange,
    /// A change to a read-only export.
    #[error("{0} to a read-only export")]
    ReadOnly(Command),
    /// The range ends beyond the export.
    #[error("{command} of {length} bytes at {offset} ends beyond the export's {size} bytes")]
    OutOfBounds {
        /// The command.
        command: Command,
        /// First byte of the range.
        offset: u64,
        /// Bytes of the range.
        length: u32,
        /// Bytes of the export.
        size: u64,
    },
    /// The range is not made of whole blocks.
    #[error("{command} of {length} bytes at {offset} is not a multiple of the minimum block size {minimum}")]
    Unaligned {
        /// The command.
        command: Command,
        /// First byte of the range.
        offset: u64,
        /// Bytes of the range.
        length: u32,
        /// The minimum block size in bytes.
        minimum: u32,
    },
    /// The payload is over the export's maximum.
    #[error("{command} of {length} bytes is over the maximum payload of {maximum}")]
    PayloadTooLong {
        /// The command.
        command: Command,
        /// Bytes of the payload.
        length: u32,
        /// The largest payload in bytes.
        maximum: u32,
    },
}

impl Refusal {
    /// What goes on the wire: the one map from refusals to error values.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::ReadOnly(_) => Errno::EPERM,
            Self::OutOfBounds { command: Command::Write | Command::WriteZeroes, .. } => Errno::ENOSPC,
            Self::UnknownCommand(_)
            | Self::CommandNotOffered(_)
            | Self::InvalidFlags { .. }
            | Self::FlagsNotOffered { .. }
            | Self::NoContext
            | Self::EmptyStatus
            | Self::FlushRange
            | Self::OutOfBounds { .. }
            | Self::Unaligned { .. }
            | Self::PayloadTooLong { .. } => Errno::EINVAL,
        }
    }
}

impl From<Refusal> for Errno {
    fn from(refusal: Refusal) -> Self {
        refusal.errno()
    }
}

impl Request {
    /// The bytes that follow the header: the data of a write.
    #[must_use]
    pub const fn payload_len(&self) -> u32 {
        match self.command {
            Command::Write => self.length,
            _ => 0,
        }
    }

    /// Whether the data of this request must be durable before its reply: `FUA`, on a command for which it has a meaning.
    #[must_use]
    pub const fn fua(&self) -> bool {
        self.flags.contains(CommandFlags::FUA) && self.command.writes()
    }

    /// Whether a read must be answered in a single chunk: `DF`. A server that cannot answers `EOVERFLOW`, but not up to 64 KiB.
    #[must_use]
    pub const fn single_chunk(&self) -> bool {
        self.flags.contains(CommandFlags::DF) && matches!(self.command, Command::Read)
    }

    /// Whether the request may be carried out: every rule of the protocol that does not need the store.
    ///
    /// A request of zero bytes inside the export passes (but `BLOCK_STATUS`); there is nothing to do but to answer it.
    /// [`Command::Disconnect`] always passes.
    ///
    /// # Errors
    /// The first rule that it breaks. A refused write's payload must be consumed before it is answered: see [`crate::Requests::refuse`].
    pub fn check(&self, session: &Session, export: &Export) -> Result<(), Refusal> {
        if self.command == Command::Disconnect {
            return Ok(());
        }
        self.check_command(session, export)?;
        self.check_flags(session)?;
        match self.command {
            Command::Flush if self.offset != 0 || self.length != 0 => Err(Refusal::FlushRange),
            Command::Flush => Ok(()),
            Command::BlockStatus if session.allocation.is_none() => Err(Refusal::NoContext),
            Command::BlockStatus if self.length == 0 => Err(Refusal::EmptyStatus),
            _ => self.check_range(export),
        }
    }

    fn check_command(&self, session: &Session, export: &Export) -> Result<(), Refusal> {
        let told = session.flags.with(export.flags());
        if self.command.writes() && told.contains(TransmissionFlags::READ_ONLY) {
            return Err(Refusal::ReadOnly(self.command));
        }
        let needed = match self.command {
            Command::Unknown(_) => return Err(Refusal::UnknownCommand(self.command)),
            Command::Read | Command::Write | Command::Disconnect | Command::BlockStatus => TransmissionFlags::NONE,
            Command::Flush => TransmissionFlags::SEND_FLUSH,
            Command::Trim => TransmissionFlags::SEND_TRIM,
            Command::Cache => TransmissionFlags::SEND_CACHE,
            Command::WriteZeroes => TransmissionFlags::SEND_WRITE_ZEROES,
        };
        if session.flags.contains(needed) { Ok(()) } else { Err(Refusal::CommandNotOffered(self.command)) }
    }

    fn check_flags(&self, session: &Session) -> Result<(), Refusal> {
        let (command, flags) = (self.command, self.flags);
        let own = match command {
            Command::Read => CommandFlags::DF,
            Command::WriteZeroes => CommandFlags::NO_HOLE.with(CommandFlags::FAST_ZERO),
            Command::BlockStatus => CommandFlags::REQ_ONE,
            _ => CommandFlags::NONE,
        };
        if !own.with(CommandFlags::FUA).contains(flags) {
            return Err(Refusal::InvalidFlags { command, flags });
        }
        let offers = [
            (CommandFlags::FUA, TransmissionFlags::SEND_FUA),
            (CommandFlags::DF, TransmissionFlags::SEND_DF),
            (CommandFlags::FAST_ZERO, TransmissionFlags::SEND_FAST_ZERO),
        ];
        for (flag, offer) in offers {
            if flags.contains(flag) && !session.flags.contains(offer) {
                return Err(Refusal::FlagsNotOffered { command, flags });
            }
        }
        Ok(())
    }

    fn check_range(&self, export: &Export) -> Result<(), Refusal> {
        let Self { command, offset, length, .. } = *self;
        let maximum = export.block().maximum();
        if matches!(command, Command::Read | Command::Write) && length > maximum {
            return Err(Refusal::PayloadTooLong { command, length, maximum });
        }
        let size = export.size();
        if offset.checked_add(length.into()).is_none_or(|end| end > size) {
            return Err(Refusal::OutOfBounds { command, offset, length, size });
        }
        let minimum = export.block().minimum();
        if !offset.is_multiple_of(minimum.into()) || !length.is_multiple_of(minimum) {
            return Err(Refusal::Unaligned { command, offset, length, minimum });
        }
        Ok(())
    }
}

impl From<wire::RequestHeader> for Request {
    fn from(header: wire::RequestHeader) -> Self {
        Self {
            cookie: header.cookie.get(),
            command: Command::from_wire(header.command.get()),
            flags: CommandFlags(header.flags.get()),
            offset: header.offset.get(),
            length: header.length.get(),
        }
    }
}
