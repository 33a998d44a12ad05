//! Bit fields of wire integers: the one place that shifts.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One byte with the interface of the endian-typed integers, so that flag sets of every width share one macro.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub(crate) struct U8(u8);

impl U8 {
    pub(crate) const fn new(value: u8) -> Self {
        Self(value)
    }

    pub(crate) const fn get(self) -> u8 {
        self.0
    }
}

const fn mask(high: u32, low: u32) -> u64 {
    u64::MAX >> (63 - (high - low))
}

/// Bits `high:low` of `value`.
pub(crate) const fn field(value: u64, high: u32, low: u32) -> u64 {
    (value >> low) & mask(high, low)
}

/// Bit `bit` of `value`.
pub(crate) const fn bit(value: u64, bit: u32) -> bool {
    field(value, bit, bit) == 1
}

/// `value` with bits `high:low` replaced; panics if `new` does not fit, for that is a mistake of this program.
pub(crate) const fn with_field(value: u64, high: u32, low: u32, new: u64) -> u64 {
    let mask = mask(high, low);
    assert!(new <= mask, "value does not fit its bit field");
    (value & !(mask << low)) | (new << low)
}

macro_rules! narrow {
    ($($(#[$meta:meta])* $name:ident -> $int:ty);* $(;)?) => {$(
        $(#[$meta])*
        #[allow(clippy::cast_possible_truncation, reason = "the field is at most as wide as the result")]
        pub(crate) const fn $name(value: u64, high: u32, low: u32) -> $int {
            assert!(high - low < <$int>::BITS);
            field(value, high, low) as $int
        }
    )*};
}

narrow! {
    /// Bits `high:low` as a byte.
    u8_field -> u8;
    /// Bits `high:low` as 16 bits.
    u16_field -> u16;
    /// Bits `high:low` as 32 bits.
    u32_field -> u32;
}

/// [`with_field`] of a 32-bit integer.
#[allow(clippy::cast_possible_truncation, reason = "bits above 31 stay clear: the field lies below them")]
pub(crate) const fn with_field_u32(value: u32, high: u32, low: u32, new: u32) -> u32 {
    assert!(high < 32);
    with_field(value as u64, high, low, new as u64) as u32
}

/// [`with_field`] of a 16-bit integer.
#[allow(clippy::cast_possible_truncation, reason = "bits above 15 stay clear: the field lies below them")]
pub(crate) const fn with_field_u16(value: u16, high: u32, low: u32, new: u16) -> u16 {
    assert!(high < 16);
    with_field(value as u64, high, low, new as u64) as u16
}

/// [`with_field`] of a byte.
#[allow(clippy::cast_possible_truncation, reason = "bits above 7 stay clear: the field lies below them")]
pub(crate) const fn with_field_u8(value: u8, high: u32, low: u32, new: u8) -> u8 {
    assert!(high < 8);
    with_field(value as u64, high, low, new as u64) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_reach_both_ends_of_the_integer() {
        assert_eq!(field(0x8000_0000_0000_0001, 63, 0), 0x8000_0000_0000_0001);
        assert_eq!(field(0x8000_0000_0000_0001, 63, 63), 1);
        assert_eq!(u8_field(0xABCD, 11, 4), 0xBC);
        assert_eq!(with_field(u64::MAX, 11, 4, 0), 0xFFFF_FFFF_FFFF_F00F);
        assert_eq!(with_field_u32(0, 31, 24, 0xFF), 0xFF00_0000);
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn a_value_wider_than_its_field_is_our_mistake() {
        let _ = with_field(0, 1, 0, 4);
    }
}
