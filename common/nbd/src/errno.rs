//! The error numbers of transmission replies ("Error values").

use std::fmt;

/// An error number on the wire; zero is success. Unknown values pass through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub u32);

impl Errno {
    /// Success.
    pub const OK: Self = Self(0);
    /// Operation not permitted: a write to a read-only export.
    pub const EPERM: Self = Self(1);
    /// Input/output error.
    pub const EIO: Self = Self(5);
    /// Cannot allocate memory.
    pub const ENOMEM: Self = Self(12);
    /// Invalid argument: unknown command or flag, unaligned, out of bounds.
    pub const EINVAL: Self = Self(22);
    /// No space left: a write beyond the end, or a full store.
    pub const ENOSPC: Self = Self(28);
    /// Value too large.
    pub const EOVERFLOW: Self = Self(75);
    /// Operation not supported: `FAST_ZERO` that would not be fast, nothing else.
    pub const ENOTSUP: Self = Self(95);
    /// The server is shutting down; the client must disconnect.
    pub const ESHUTDOWN: Self = Self(108);

    /// What a Linux error number becomes on the wire: the closest value that NBD has, and `EIO` when none is close.
    ///
    /// `EOPNOTSUPP` becomes `EIO`, too: on the wire [`Errno::ENOTSUP`] belongs to `FAST_ZERO` alone.
    #[must_use]
    pub const fn from_os(errno: i32) -> Self {
        match errno {
            0 => Self::OK,
            1 | 13 | 30 => Self::EPERM,    // EPERM, EACCES, EROFS
            12 => Self::ENOMEM,            // ENOMEM
            22 => Self::EINVAL,            // EINVAL
            27 | 28 | 122 => Self::ENOSPC, // EFBIG, ENOSPC, EDQUOT
            75 => Self::EOVERFLOW,         // EOVERFLOW
            108 => Self::ESHUTDOWN,        // ESHUTDOWN
            _ => Self::EIO,
        }
    }

    /// The number's name, if it has one.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::OK => "OK",
            Self::EPERM => "EPERM",
            Self::EIO => "EIO",
            Self::ENOMEM => "ENOMEM",
            Self::EINVAL => "EINVAL",
            Self::ENOSPC => "ENOSPC",
            Self::EOVERFLOW => "EOVERFLOW",
            Self::ENOTSUP => "ENOTSUP",
            Self::ESHUTDOWN => "ESHUTDOWN",
            _ => return None,
        })
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_the_numbers_of_the_protocol() {
        let table = [
            (1, "EPERM"),
            (5, "EIO"),
            (12, "ENOMEM"),
            (22, "EINVAL"),
            (28, "ENOSPC"),
            (75, "EOVERFLOW"),
            (95, "ENOTSUP"),
            (108, "ESHUTDOWN"),
        ];
        for (value, name) in table {
            assert_eq!(Errno(value).to_string(), name);
        }
        assert_eq!(Errno(2).to_string(), "error 2");
    }

    #[test]
    fn linux_errors_map_to_the_closest_value() {
        let table = [
            (0, 0),
            (1, 1),     // EPERM
            (2, 5),     // ENOENT
            (5, 5),     // EIO
            (12, 12),   // ENOMEM
            (13, 1),    // EACCES
            (22, 22),   // EINVAL
            (27, 28),   // EFBIG
            (28, 28),   // ENOSPC
            (30, 1),    // EROFS
            (75, 75),   // EOVERFLOW
            (95, 5),    // EOPNOTSUPP
            (108, 108), // ESHUTDOWN
            (122, 28),  // EDQUOT
            (-1, 5),
        ];
        for (os, wire) in table {
            assert_eq!(Errno::from_os(os), Errno(wire), "errno {os}");
        }
    }
}
