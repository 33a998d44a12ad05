//! The open sets of the protocol: options, their replies, infos, commands, contexts.

use std::fmt;

/// Defines one open set of numbers with names.
macro_rules! open_set {
    ($(#[$doc:meta])* $name:ident($word:ty), $unknown:literal {
        $($(#[$value_doc:meta])* $value_name:ident = $value:expr;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub $word);

        impl $name {
            $($(#[$value_doc])* pub const $value_name: Self = Self($value);)*

            /// The number's name, if it has one.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$value_name => Some(stringify!($value_name)),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!($unknown, " {}"), self.0),
                }
            }
        }
    };
}

open_set! {
    /// What a client asks for in the handshake ("Option types").
    OptionCode(u32), "option" {
        /// Enter transmission with the export of that name; cannot fail but by closing.
        EXPORT_NAME = 1;
        /// End the handshake.
        ABORT = 2;
        /// List the exports.
        LIST = 3;
        /// Withdrawn from the protocol.
        PEEK_EXPORT = 4;
        /// Go on in TLS.
        STARTTLS = 5;
        /// Describe an export.
        INFO = 6;
        /// Describe an export and enter transmission.
        GO = 7;
        /// Use structured replies.
        STRUCTURED_REPLY = 8;
        /// List the metadata contexts of an export.
        LIST_META_CONTEXT = 9;
        /// Select metadata contexts of an export.
        SET_META_CONTEXT = 10;
        /// Use extended headers.
        EXTENDED_HEADERS = 11;
    }
}

open_set! {
    /// What the server answers to an option ("Option reply types").
    OptionReplyType(u32), "option reply" {
        /// Done.
        ACK = 1;
        /// One export of `LIST`.
        SERVER = 2;
        /// One fact of `INFO` or `GO`.
        INFO = 3;
        /// One metadata context.
        META_CONTEXT = 4;
        /// The server does not know that option.
        ERR_UNSUP = 0x8000_0001;
        /// Forbidden by the server's configuration.
        ERR_POLICY = 0x8000_0002;
        /// Malformed, or not legal now.
        ERR_INVALID = 0x8000_0003;
        /// Not possible on the server's platform.
        ERR_PLATFORM = 0x8000_0004;
        /// TLS first.
        ERR_TLS_REQD = 0x8000_0005;
        /// No such export.
        ERR_UNKNOWN = 0x8000_0006;
        /// The server is shutting down.
        ERR_SHUTDOWN = 0x8000_0007;
        /// The client must ask for the block sizes.
        ERR_BLOCK_SIZE_REQD = 0x8000_0008;
        /// The option, or its answer, is too large.
        ERR_TOO_BIG = 0x8000_0009;
        /// Extended headers first.
        ERR_EXT_HEADER_REQD = 0x8000_000a;
    }
}

impl OptionReplyType {
    /// Whether bit 31, the mark of errors, is set.
    #[must_use]
    pub const fn is_error(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

open_set! {
    /// A fact about an export ("NBD_REP_INFO").
    InfoType(u16), "info" {
        /// Size and transmission flags; always sent.
        EXPORT = 0;
        /// The canonical name.
        NAME = 1;
        /// The description for people.
        DESCRIPTION = 2;
        /// The block size constraints.
        BLOCK_SIZE = 3;
    }
}

open_set! {
    /// The type of a structured reply chunk ("Structured reply types").
    ChunkType(u16), "chunk" {
        /// No content.
        NONE = 0;
        /// Data of a `READ`.
        OFFSET_DATA = 1;
        /// Zeroes of a `READ`.
        OFFSET_HOLE = 2;
        /// Extents of one metadata context.
        BLOCK_STATUS = 5;
        /// The request failed.
        ERROR = 0x8001;
        /// The request failed at an offset.
        ERROR_OFFSET = 0x8002;
    }
}

/// The number that stands for a selected metadata context in `BLOCK_STATUS` chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId(pub u32);

/// What a request asks for ("Request types").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Read `length` bytes.
    Read,
    /// Write the payload of `length` bytes.
    Write,
    /// Finish what is in flight, answer it, close. Has no answer itself.
    Disconnect,
    /// Make every acknowledged write durable.
    Flush,
    /// The content of the range is not needed any more.
    Trim,
    /// The range will be read soon.
    Cache,
    /// Write zeroes.
    WriteZeroes,
    /// Tell the state of the range in the selected metadata context.
    BlockStatus,
    /// Anything else: answered with `EINVAL`.
    Unknown(u16),
}

impl Command {
    /// The command of that number.
    #[must_use]
    pub const fn from_wire(number: u16) -> Self {
        match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            unknown => Self::Unknown(unknown),
        }
    }

    /// The command's number.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Disconnect => 2,
            Self::Flush => 3,
            Self::Trim => 4,
            Self::Cache => 5,
            Self::WriteZeroes => 6,
            Self::BlockStatus => 7,
            Self::Unknown(number) => number,
        }
    }

    /// Whether the command changes the export's content.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Disconnect => "DISC",
            Self::Flush => "FLUSH",
            Self::Trim => "TRIM",
            Self::Cache => "CACHE",
            Self::WriteZeroes => "WRITE_ZEROES",
            Self::BlockStatus => "BLOCK_STATUS",
            Self::Unknown(number) => return write!(f, "command {number}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_number_survives_the_round_trip() {
        for number in 0..=u16::MAX {
            assert_eq!(Command::from_wire(number).to_wire(), number);
        }
    }

    #[test]
    fn names_are_those_of_the_protocol() {
        let commands = ["READ", "WRITE", "DISC", "FLUSH", "TRIM", "CACHE", "WRITE_ZEROES", "BLOCK_STATUS", "command 8"];
        for (number, name) in (0..).zip(commands) {
            assert_eq!(Command::from_wire(number).to_string(), name);
        }
        assert_eq!(OptionCode(7).to_string(), "GO");
        assert_eq!(OptionCode(12).to_string(), "option 12");
        assert_eq!(OptionReplyType(0x8000_0006).to_string(), "ERR_UNKNOWN");
        assert!(OptionReplyType(0x8000_0006).is_error());
        assert!(!OptionReplyType(4).is_error());
    }
}
