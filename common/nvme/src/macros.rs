//! Macros that declare the four shapes of this crate: numbers, open sets, flag sets and wire structs.

/// A number with a name of its own.
macro_rules! number {
    ($(#[$meta:meta])* $name:ident($int:ty)) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name($int);

        impl $name {
            /// Names a number.
            #[must_use]
            pub const fn new(value: $int) -> Self {
                Self(value)
            }

            /// The number.
            #[must_use]
            pub const fn get(self) -> $int {
                self.0
            }
        }

        impl From<$int> for $name {
            fn from(value: $int) -> Self {
                Self(value)
            }
        }

        impl From<$name> for $int {
            fn from(value: $name) -> Self {
                value.0
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// A set of codes that may grow: unknown values pass through and print as numbers.
macro_rules! open_set {
    // A byte may lie anywhere in a wire struct.
    ($(#[$meta:meta])* $name:ident(u8), $($rest:tt)*) => {
        $crate::macros::open_set! { @declare $(#[$meta])* #[derive(zerocopy::Unaligned)] $name(u8), $($rest)* }
    };
    ($(#[$meta:meta])* $name:ident($int:ty), $($rest:tt)*) => {
        $crate::macros::open_set! { @declare $(#[$meta])* $name($int), $($rest)* }
    };
    (@declare $(#[$meta:meta])* $name:ident($int:ty), $what:literal {
        $($(#[$cmeta:meta])* $const:ident = $value:literal => $text:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable)]
        #[repr(transparent)]
        pub struct $name(pub(crate) $int);

        impl $name {
            $($(#[$cmeta])* pub const $const: Self = Self($value);)*

            /// Any code, known or not.
            #[must_use]
            pub const fn new(code: $int) -> Self {
                Self(code)
            }

            /// The code.
            #[must_use]
            pub const fn code(self) -> $int {
                self.0
            }

            /// The name that the specification gives this value, if it is a known one.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{name} ({:02X}h)", self.0),
                    None => write!(f, concat!($what, " {:02X}h"), self.0),
                }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{self}")
            }
        }
    };
}

/// A set of single-bit flags, stored as it lies on the wire.
macro_rules! flags {
    ($(#[$meta:meta])* $name:ident($int:ty as $wire:ty) {
        $($(#[$cmeta:meta])* $const:ident = $bit:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned)]
        #[repr(transparent)]
        pub struct $name($wire);

        impl $name {
            $($(#[$cmeta])* pub const $const: Self = Self::from_bits(1 << $bit);)*

            /// No flag.
            pub const NONE: Self = Self::from_bits(0);

            /// The set with exactly these bits, known or not.
            #[must_use]
            pub const fn from_bits(bits: $int) -> Self {
                Self(<$wire>::new(bits))
            }

            /// Every bit, known or not.
            #[must_use]
            pub const fn bits(self) -> $int {
                self.0.get()
            }

            /// Whether all of `other` is in this set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.bits() & other.bits() == other.bits()
            }

            /// Whether any of `other` is in this set.
            #[must_use]
            pub const fn intersects(self, other: Self) -> bool {
                self.bits() & other.bits() != 0
            }

            /// Whether no bit is set.
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.bits() == 0
            }

            /// Both sets together.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self::from_bits(self.bits() | other.bits())
            }

            /// What both sets have.
            #[must_use]
            pub const fn intersection(self, other: Self) -> Self {
                Self::from_bits(self.bits() & other.bits())
            }

            /// This set without `other`; what remains after removing all that is supported is unsupported.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self::from_bits(self.bits() & !other.bits())
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::NONE
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl std::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }

        impl std::ops::BitAnd for $name {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                self.intersection(other)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut rest = *self;
                let mut separator = "";
                f.write_str(concat!(stringify!($name), "("))?;
                $(
                    if self.contains(Self::$const) {
                        write!(f, concat!("{}", stringify!($const)), separator)?;
                        separator = " | ";
                        rest = rest.without(Self::$const);
                    }
                )*
                if !rest.is_empty() {
                    write!(f, "{separator}{:#X}", rest.bits())?;
                }
                f.write_str(")")
            }
        }
    };
}

/// Checks size and offsets of a `repr(C)` struct at compile time.
macro_rules! layout {
    ($name:ident, $size:literal, { $($field:ident: $offset:literal),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$name>() == $size);
            assert!(align_of::<$name>() == 1);
            $(assert!(std::mem::offset_of!($name, $field) == $offset);)*
        };
    };
}

/// Reading and writing of a `repr(C)` zerocopy struct, with its size and offsets checked at compile time.
macro_rules! wire {
    ($name:ident, $size:literal, { $($layout:tt)* }) => {
        $crate::macros::layout!($name, $size, { $($layout)* });

        impl $name {
            /// Length on the wire in bytes.
            pub const LEN_BYTES: usize = $size;

            /// Copies the structure from the start of `bytes`; what follows it is ignored.
            ///
            /// # Errors
            /// `bytes` are fewer than [`Self::LEN_BYTES`].
            pub fn read_from(bytes: &[u8]) -> Result<Self, $crate::Truncated> {
                Self::ref_from(bytes).copied()
            }

            /// Views the start of `bytes` as the structure; what follows it is ignored.
            ///
            /// # Errors
            /// `bytes` are fewer than [`Self::LEN_BYTES`].
            pub fn ref_from(bytes: &[u8]) -> Result<&Self, $crate::Truncated> {
                match <Self as zerocopy::FromBytes>::ref_from_prefix(bytes) {
                    Ok((this, _)) => Ok(this),
                    Err(_) => Err($crate::Truncated::new(stringify!($name), $size, bytes.len())),
                }
            }

            /// The structure with every byte zero.
            #[must_use]
            pub fn zeroed() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }

            /// The bytes that go on the wire.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; $size] {
                zerocopy::transmute_ref!(self)
            }
        }
    };
}

/// A `Debug` of a wire struct that shows the values of named accessors and leaves out reserved bytes.
macro_rules! debug_by {
    ($name:ident { $($method:ident),* $(,)? }) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($method), &self.$method()))*
                    .finish_non_exhaustive()
            }
        }
    };
}

pub(crate) use {debug_by, flags, layout, number, open_set, wire};
