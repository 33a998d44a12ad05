//! The numbers of DDP and RDMAP, each with a type of its own.

use std::fmt;

/// Steering tag (STag): names a registered memory region to the peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stag(pub u32);

impl Stag {
    /// The index part, bits 31:8, by which a region is found.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The key part, bits 7:0, which changes with each registration of the same index.
    #[must_use]
    pub const fn key(self) -> u8 {
        self.0.to_be_bytes()[3]
    }
}

impl fmt::Debug for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stag({:#010x})", self.0)
    }
}

impl fmt::Display for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Message sequence number (MSN): counts the untagged messages of one queue, modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Msn(pub u32);

impl Msn {
    /// The first message on every queue.
    pub const FIRST: Self = Self(1);

    /// The number of the message after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

impl fmt::Display for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of an untagged DDP queue (QN).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct QueueNumber(pub u32);

impl QueueNumber {
    /// The Send family.
    pub const SEND: Self = Self(0);
    /// RDMA Read Requests.
    pub const READ_REQUEST: Self = Self(1);
    /// Terminate.
    pub const TERMINATE: Self = Self(2);
}

impl fmt::Display for QueueNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// RDMAP opcode (RFC 5040, RDMA Message Opcode Definitions).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Opcode(pub u8);

impl Opcode {
    /// RDMA Write.
    pub const WRITE: Self = Self(0);
    /// RDMA Read Request.
    pub const READ_REQUEST: Self = Self(1);
    /// RDMA Read Response.
    pub const READ_RESPONSE: Self = Self(2);
    /// Send.
    pub const SEND: Self = Self(3);
    /// Send with Invalidate.
    pub const SEND_INVALIDATE: Self = Self(4);
    /// Send with Solicited Event.
    pub const SEND_SOLICITED: Self = Self(5);
    /// Send with Solicited Event and Invalidate.
    pub const SEND_SOLICITED_INVALIDATE: Self = Self(6);
    /// Terminate.
    pub const TERMINATE: Self = Self(7);

    /// Whether this opcode travels in the tagged model; `None` for an opcode that RFC 5040 does not define.
    #[must_use]
    pub const fn is_tagged(self) -> Option<bool> {
        match self {
            Self::WRITE | Self::READ_RESPONSE => Some(true),
            Self(1..=7) => Some(false),
            _ => None,
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::WRITE => "RDMA Write",
            Self::READ_REQUEST => "RDMA Read Request",
            Self::READ_RESPONSE => "RDMA Read Response",
            Self::SEND => "Send",
            Self::SEND_INVALIDATE => "Send with Invalidate",
            Self::SEND_SOLICITED => "Send with Solicited Event",
            Self::SEND_SOLICITED_INVALIDATE => "Send with Solicited Event and Invalidate",
            Self::TERMINATE => "Terminate",
            Self(other) => return write!(f, "opcode {other:#x}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn msn_counts_modulo_two_to_the_32() {
        assert_eq!(Msn(u32::MAX).next(), Msn(0));
        assert_eq!(Msn::FIRST.next(), Msn(2));
    }

    #[test]
    fn stag_splits_into_index_and_key() {
        let stag = Stag(0x1234_56ab);
        assert_eq!((stag.index(), stag.key()), (0x12_3456, 0xab));
    }

    #[test]
    fn opcodes_know_their_model() {
        let tagged: Vec<_> = (0..=8).map(|code| Opcode(code).is_tagged()).collect();
        let (t, u) = (Some(true), Some(false));
        assert_eq!(tagged, [t, u, t, u, u, u, u, u, None]);
    }
}
