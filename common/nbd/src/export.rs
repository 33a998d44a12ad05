//! What is served: exports, their sizes, and how a name finds one.

use crate::{ABSURD_PAYLOAD_LEN, DEFAULT_MAX_PAYLOAD_LEN, TransmissionFlags};

/// The longest name of an export, in bytes: longer ones are legal but break clients.
pub const MAX_NAME_LEN: usize = 256;

/// The longest description of an export, in bytes: `nbd-client` gives up at longer ones.
pub const MAX_DESCRIPTION_LEN: usize = 1023;

/// Why an export or its block sizes would violate the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidExport {
    /// The name is too long or holds a NUL.
    #[error("an export's name has at most {MAX_NAME_LEN} bytes and no NUL")]
    Name,
    /// The description is too long or holds a NUL.
    #[error("an export's description has at most {MAX_DESCRIPTION_LEN} bytes and no NUL")]
    Description,
    /// The minimum is not a power of two from 1 to 65536.
    #[error("minimum block size {0} is not a power of two from 1 to 65536")]
    Minimum(u32),
    /// The preferred size is not a power of two, or smaller than 512 or than the minimum.
    #[error("preferred block size {0} is not a power of two of at least 512 and at least the minimum")]
    Preferred(u32),
    /// The maximum is out of range or no multiple of the minimum.
    #[error("maximum payload {0} is not a multiple of the minimum from the preferred block size to {ABSURD_PAYLOAD_LEN}")]
    Maximum(u32),
    /// The size is no multiple of the minimum block size, so some bytes could never be reached.
    #[error("size {size} is not a multiple of the minimum block size {minimum}")]
    SizeUnaligned {
        /// Bytes of the export.
        size: u64,
        /// Its minimum block size.
        minimum: u32,
    },
    /// The size does not fit a signed 64-bit integer, which clients use.
    #[error("size {0} is over the limit of 2^63 - 1 bytes")]
    SizeTooLarge(u64),
}

/// "Block size constraints" of an export, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    minimum: u32,
    preferred: u32,
    maximum: u32,
}

impl BlockSizes {
    /// Takes the three sizes.
    ///
    /// # Errors
    /// When they break the rules of the protocol, or when the maximum is over [`ABSURD_PAYLOAD_LEN`].
    pub fn new(minimum: u32, preferred: u32, maximum: u32) -> Result<Self, InvalidExport> {
        if !minimum.is_power_of_two() || minimum > 65536 {
            return Err(InvalidExport::Minimum(minimum));
        }
        if !preferred.is_power_of_two() || preferred < 512 || preferred < minimum {
            return Err(InvalidExport::Preferred(preferred));
        }
        if maximum < preferred || maximum > ABSURD_PAYLOAD_LEN || !maximum.is_multiple_of(minimum) {
            return Err(InvalidExport::Maximum(maximum));
        }
        Ok(Self { minimum, preferred, maximum })
    }

    /// What applies when nothing is advertised.
    pub const DEFAULT: Self = Self { minimum: 1, preferred: 4096, maximum: DEFAULT_MAX_PAYLOAD_LEN };

    /// The unit that every offset and length must be a multiple of.
    #[must_use]
    pub const fn minimum(self) -> u32 {
        self.minimum
    }

    /// The unit that works best.
    #[must_use]
    pub const fn preferred(self) -> u32 {
        self.preferred
    }

    /// The largest payload of a read or write.
    #[must_use]
    pub const fn maximum(self) -> u32 {
        self.maximum
    }
}

/// One block device that a client can choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    name: String,
    description: String,
    size: u64,
    block: BlockSizes,
    flags: TransmissionFlags,
}

impl Export {
    /// Describes an export of `size` bytes. Flags that this server cannot honour, or that make no sense together, are left out:
    /// see [`Export::flags`].
    ///
    /// # Errors
    /// When clients could not use it: see [`InvalidExport`].
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        size: u64,
        block: BlockSizes,
        flags: TransmissionFlags,
    ) -> Result<Self, InvalidExport> {
        let (name, description) = (name.into(), description.into());
        if name.len() > MAX_NAME_LEN || name.contains('\0') {
            return Err(InvalidExport::Name);
        }
        if description.len() > MAX_DESCRIPTION_LEN || description.contains('\0') {
            return Err(InvalidExport::Description);
        }
        if size > i64::MAX.cast_unsigned() {
            return Err(InvalidExport::SizeTooLarge(size));
        }
        if !size.is_multiple_of(block.minimum.into()) {
            return Err(InvalidExport::SizeUnaligned { size, minimum: block.minimum });
        }
        Ok(Self { name, description, size, block, flags: normalized(flags) })
    }

    /// The name, case-sensitive.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The description for people.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The size in bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// The block size constraints.
    #[must_use]
    pub const fn block(&self) -> BlockSizes {
        self.block
    }

    /// What the export can do. `HAS_FLAGS` is always there; `SEND_RESIZE` and `BLOCK_STATUS_PAYLOAD` never; `SEND_FAST_ZERO`
    /// only beside `SEND_WRITE_ZEROES`; nothing that changes content beside `READ_ONLY`.
    #[must_use]
    pub const fn flags(&self) -> TransmissionFlags {
        self.flags
    }

    /// The flags as a client is told them: `SEND_DF` only if it uses structured replies.
    #[must_use]
    pub const fn flags_for(&self, structured: bool) -> TransmissionFlags {
        if structured { self.flags } else { self.flags.without(TransmissionFlags::SEND_DF) }
    }
}

const fn normalized(flags: TransmissionFlags) -> TransmissionFlags {
    let mut flags =
        flags.with(TransmissionFlags::HAS_FLAGS).without(TransmissionFlags::SEND_RESIZE).without(TransmissionFlags::BLOCK_STATUS_PAYLOAD);
    if flags.contains(TransmissionFlags::READ_ONLY) {
        flags = flags.without(TransmissionFlags::SEND_TRIM).without(TransmissionFlags::SEND_WRITE_ZEROES);
    }
    if !flags.contains(TransmissionFlags::SEND_WRITE_ZEROES) {
        flags = flags.without(TransmissionFlags::SEND_FAST_ZERO);
    }
    flags
}

/// The index of the export of that name. The empty name means the default: the export without a name, else the first.
#[must_use]
pub fn find(exports: &[Export], name: &str) -> Option<usize> {
    let exact = exports.iter().position(|export| export.name == name);
    if name.is_empty() && !exports.is_empty() { exact.or(Some(0)) } else { exact }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(name: &str, description: &str, size: u64) -> Result<Export, InvalidExport> {
        let block = BlockSizes::new(512, 4096, 1 << 20).unwrap();
        Export::new(name, description, size, block, TransmissionFlags::NONE)
    }

    #[test]
    fn block_sizes_keep_the_rules_at_both_boundaries() {
        let max = ABSURD_PAYLOAD_LEN;
        for (minimum, preferred, maximum) in
            [(1, 512, 512), (1, 512, max), (512, 4096, 4096), (65536, 65536, 65536), (65536, 1 << 20, max), (1, 4096, 5000)]
        {
            let sizes = BlockSizes::new(minimum, preferred, maximum).unwrap();
            assert_eq!((sizes.minimum(), sizes.preferred(), sizes.maximum()), (minimum, preferred, maximum));
        }
        for (minimum, preferred, maximum, error) in [
            (0, 4096, max, InvalidExport::Minimum(0)),
            (3, 4096, max, InvalidExport::Minimum(3)),
            (131_072, 131_072, max, InvalidExport::Minimum(131_072)),
            (1, 256, max, InvalidExport::Preferred(256)),
            (1, 5000, max, InvalidExport::Preferred(5000)),
            (4096, 2048, max, InvalidExport::Preferred(2048)),
            (1, 4096, 4095, InvalidExport::Maximum(4095)),
            (512, 4096, 5000, InvalidExport::Maximum(5000)),
            (1, 4096, max + 1, InvalidExport::Maximum(max + 1)),
            (1, 4096, u32::MAX, InvalidExport::Maximum(u32::MAX)),
        ] {
            assert_eq!(BlockSizes::new(minimum, preferred, maximum), Err(error));
        }
        let BlockSizes { minimum, preferred, maximum } = BlockSizes::DEFAULT;
        assert_eq!((minimum, preferred, maximum), (1, 4096, 33_554_432));
        assert_eq!(BlockSizes::new(minimum, preferred, maximum), Ok(BlockSizes::DEFAULT));
    }

    #[test]
    fn export_keeps_the_rules_at_both_boundaries() {
        let last_size = i64::MAX.cast_unsigned() - 511;
        for (name_len, description_len, size) in [(0, 0, 0), (256, 1023, last_size)] {
            let (name, description) = ("n".repeat(name_len), "d".repeat(description_len));
            let export = export(&name, &description, size).unwrap();
            assert_eq!((export.name(), export.description(), export.size()), (&*name, &*description, size));
        }
        assert_eq!(export(&"n".repeat(257), "", 0), Err(InvalidExport::Name));
        assert_eq!(export("n\0", "", 0), Err(InvalidExport::Name));
        assert_eq!(export("", &"d".repeat(1024), 0), Err(InvalidExport::Description));
        assert_eq!(export("", "\0", 0), Err(InvalidExport::Description));
        assert_eq!(export("", "", 1 << 63), Err(InvalidExport::SizeTooLarge(1 << 63)));
        assert_eq!(export("", "", 513), Err(InvalidExport::SizeUnaligned { size: 513, minimum: 512 }));
    }

    #[test]
    fn flags_that_make_no_sense_are_left_out() {
        let flags = |flags: u16| {
            let flags = TransmissionFlags(flags);
            Export::new("", "", 0, BlockSizes::DEFAULT, flags).unwrap().flags().0
        };
        assert_eq!(flags(0), 0x0001);
        assert_eq!(flags(0x0ded), 0x0ded);
        assert_eq!(flags(0x1f6d), 0x0d6d, "no RESIZE, no BLOCK_STATUS_PAYLOAD");
        assert_eq!(flags(0x0d2d), 0x052d, "no FAST_ZERO without WRITE_ZEROES");
        assert_eq!(flags(0x0def), 0x058f, "nothing that writes beside READ_ONLY");
    }

    #[test]
    fn dont_fragment_is_told_only_with_structured_replies() {
        let export = Export::new("", "", 0, BlockSizes::DEFAULT, TransmissionFlags(0x0ded)).unwrap();
        assert_eq!(export.flags_for(true).0, 0x0ded);
        assert_eq!(export.flags_for(false).0, 0x0d6d);
    }

    #[test]
    fn names_find_exactly_and_the_empty_one_falls_back_to_the_first() {
        let named = |name: &str| export(name, "", 0).unwrap();
        let exports = [named("a"), named("A"), named("b")];
        assert_eq!(find(&exports, "A"), Some(1));
        assert_eq!(find(&exports, "b"), Some(2));
        assert_eq!(find(&exports, "c"), None);
        assert_eq!(find(&exports, ""), Some(0));
        assert_eq!(find(&[], ""), None);
        assert_eq!(find(&[named("a"), named("")], ""), Some(1));
    }
}
