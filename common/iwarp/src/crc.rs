//! The CRC of an FPDU: CRC32C over length field, ULPDU and pad, least significant byte first on the wire.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};

/// An FPDU's CRC in the making, or nothing when CRC was not negotiated.
#[derive(Clone)]
pub(crate) struct Crc(Option<Digest>);

impl Crc {
    pub(crate) fn new(enabled: bool) -> Self {
        Self(enabled.then(|| Digest::new(CrcAlgorithm::Crc32Iscsi)))
    }

    /// The CRC field of what is known as a whole: the shortest way for a short one.
    pub(crate) fn field_of(bytes: &[u8]) -> [u8; 4] {
        crc_fast::crc32_iscsi(bytes).to_le_bytes()
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn restart(&mut self) {
        if let Some(digest) = &mut self.0 {
            digest.reset();
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        // The pad, for one, which few frames have.
        if bytes.is_empty() {
            return;
        }
        if let Some(digest) = &mut self.0 {
            digest.update(bytes);
        }
    }

    /// The CRC field as it goes on the wire: zero when not negotiated, as siw sends it.
    pub(crate) fn field(&self) -> [u8; 4] {
        self.0.as_ref().map_or([0; 4], |digest| {
            let [a, b, c, d, ..] = digest.finalize().to_le_bytes();
            [a, b, c, d]
        })
    }
}

impl fmt::Debug for Crc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_enabled() { "Crc(on)" } else { "Crc(off)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field_of(parts: &[&[u8]]) -> [u8; 4] {
        let mut crc = Crc::new(true);
        parts.iter().for_each(|part| crc.update(part));
        crc.field()
    }

    #[test]
    fn is_crc32c_by_its_check_value() {
        assert_eq!(field_of(&[b"1234", b"", b"56789"]), 0xe306_9283_u32.to_le_bytes());
        assert_eq!(Crc::field_of(b"123456789"), 0xe306_9283_u32.to_le_bytes());
    }

    #[test]
    fn matches_the_examples_of_rfc_5044() {
        let first = [0, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        let second = [0, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0];
        // Figure 5: a marker before the FPDU; figure 6: a marker inside it.
        assert_eq!(field_of(&[&[0; 4], &first, &[0; 24]]), [0x52, 0x23, 0x99, 0x83]);
        assert_eq!(field_of(&[&second, &[0, 0, 0, 0x14], &[0; 24]]), [0x84, 0x92, 0x58, 0x98]);
        assert_eq!(field_of(&[&first, &[0; 24]]), [0xb7, 0x24, 0x3e, 0xc3]);
    }

    #[test]
    fn field_is_zero_when_not_negotiated() {
        let mut crc = Crc::new(false);
        crc.update(b"anything");
        assert_eq!(crc.field(), [0; 4]);
    }
}
