//! The flag words of handshake, transmission, commands, chunks and extents.

use std::fmt;

/// Defines one flag word: a newtype whose unknown bits pass through.
macro_rules! flags {
    ($(#[$doc:meta])* pub struct $name:ident($word:ty) {
        $($(#[$flag_doc:meta])* $flag:ident = $value:expr;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $word);

        impl $name {
            /// No flag at all.
            pub const NONE: Self = Self(0);
            $($(#[$flag_doc])* pub const $flag: Self = Self($value);)*

            /// Whether every flag of `other` is set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The flags of both.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// These flags but those of `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Whether no flag is set.
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#06x})"), self.0)
            }
        }
    };
}

flags! {
    /// "Handshake flags" that the server offers, and "Client flags" of the same meaning.
    pub struct HandshakeFlags(u16) {
        /// Bit 0: fixed newstyle, every option is answered.
        FIXED_NEWSTYLE = 0x0001;
        /// Bit 1: no padding after the answer to `EXPORT_NAME`.
        NO_ZEROES = 0x0002;
    }
}

flags! {
    /// What an export can do ("Transmission flags").
    pub struct TransmissionFlags(u16) {
        /// Bit 0: the field is valid; always set by this server.
        HAS_FLAGS = 0x0001;
        /// Bit 1: the export is read-only.
        READ_ONLY = 0x0002;
        /// Bit 2: `FLUSH` is understood.
        SEND_FLUSH = 0x0004;
        /// Bit 3: [`CommandFlags::FUA`] is understood.
        SEND_FUA = 0x0008;
        /// Bit 4: the store prefers sequential access.
        ROTATIONAL = 0x0010;
        /// Bit 5: `TRIM` is understood.
        SEND_TRIM = 0x0020;
        /// Bit 6: `WRITE_ZEROES` and [`CommandFlags::NO_HOLE`] are understood.
        SEND_WRITE_ZEROES = 0x0040;
        /// Bit 7: [`CommandFlags::DF`] is understood; told only to clients with structured replies.
        SEND_DF = 0x0080;
        /// Bit 8: a flush on one connection covers the acknowledged writes of all.
        CAN_MULTI_CONN = 0x0100;
        /// Bit 9: the experimental `RESIZE`; this server never sets it.
        SEND_RESIZE = 0x0200;
        /// Bit 10: `CACHE` is understood.
        SEND_CACHE = 0x0400;
        /// Bit 11: [`CommandFlags::FAST_ZERO`] is understood.
        SEND_FAST_ZERO = 0x0800;
        /// Bit 12: only with extended headers; this server never sets it.
        BLOCK_STATUS_PAYLOAD = 0x1000;
    }
}

flags! {
    /// Modifiers of one request ("Command flags").
    pub struct CommandFlags(u16) {
        /// Bit 0, Force Unit Access: answer only when this request's data is durable.
        FUA = 0x0001;
        /// Bit 1: `WRITE_ZEROES` must provision the space.
        NO_HOLE = 0x0002;
        /// Bit 2, Don't Fragment: answer a `READ` in one chunk.
        DF = 0x0004;
        /// Bit 3: answer `BLOCK_STATUS` with one extent, not longer than the request.
        REQ_ONE = 0x0008;
        /// Bit 4: fail `WRITE_ZEROES` with `ENOTSUP` rather than write the zeroes out.
        FAST_ZERO = 0x0010;
        /// Bit 5: only with extended headers, which this server does not speak.
        PAYLOAD_LEN = 0x0020;
    }
}

flags! {
    /// Flags of a structured reply chunk.
    pub struct ChunkFlags(u16) {
        /// Bit 0: the last chunk of its request.
        DONE = 0x0001;
    }
}

flags! {
    /// What `base:allocation` says about an extent; none is always true.
    pub struct ExtentFlags(u32) {
        /// Bit 0: the extent is not provisioned.
        HOLE = 0x0001;
        /// Bit 1: the extent reads as zeroes.
        ZERO = 0x0002;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typical_server_flags_have_the_documented_value() {
        let flags = TransmissionFlags::HAS_FLAGS
            .with(TransmissionFlags::SEND_FLUSH)
            .with(TransmissionFlags::SEND_FUA)
            .with(TransmissionFlags::SEND_TRIM)
            .with(TransmissionFlags::SEND_WRITE_ZEROES)
            .with(TransmissionFlags::CAN_MULTI_CONN)
            .with(TransmissionFlags::SEND_CACHE);
        assert_eq!(flags.0, 0x056d);
        assert_eq!(flags.with(TransmissionFlags::SEND_FAST_ZERO).0, 0x0d6d);
        assert_eq!(flags.with(TransmissionFlags::SEND_FAST_ZERO).with(TransmissionFlags::SEND_DF).0, 0x0ded);
        assert_eq!(flags.without(TransmissionFlags::HAS_FLAGS).0, 0x056c);
    }

    #[test]
    fn contains_needs_every_flag() {
        let both = CommandFlags::FUA.with(CommandFlags::DF);
        assert!(both.contains(CommandFlags::DF));
        assert!(!CommandFlags::DF.contains(both));
        assert!(both.without(both).is_empty());
        assert_eq!(format!("{both:?}"), "CommandFlags(0x0005)");
    }
}
