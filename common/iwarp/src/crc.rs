//! The CRC of an FPDU: CRC32C over length field, ULPDU and pad, least significant byte first on the wire.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of payload that may come with a checksum of their own ([`Trailer::with_sums`](crate::Trailer::with_sums)).
pub const SUMMED_BYTES: usize = 4096;

/// CRC32C's polynomial, least significant bit first.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// What [`SUMMED_BYTES`] of zeroes make of each byte of a CRC: a CRC of two parts is what the length of the second makes of the first's, plus the second's,
/// and all of it is linear.
const BEHIND_ZEROES: [[u32; 256]; 4] = {
    // What zeroes make of each bit: first a single bit of them, then twice as many in each step.
    let mut bits = [0; 32];
    bits[0] = POLYNOMIAL;
    let mut bit = 1;
    while bit < 32 {
        bits[bit] = 1 << (bit - 1);
        bit += 1;
    }
    let mut zeroes = 1;
    while zeroes < 8 * SUMMED_BYTES {
        let mut twice = [0; 32];
        let mut bit = 0;
        while bit < 32 {
            twice[bit] = apply(&bits, bits[bit]);
            bit += 1;
        }
        bits = twice;
        zeroes *= 2;
    }
    let mut tables = [[0; 256]; 4];
    let mut byte = 0_u32;
    while byte < 4 * 256 {
        let (place, value) = (byte / 256, byte % 256);
        tables[place as usize][value as usize] = apply(&bits, value << (8 * place));
        byte += 1;
    }
    tables
};

/// The sum of what is made of each bit.
const fn apply(bits: &[u32; 32], mut crc: u32) -> u32 {
    let mut sum = 0;
    while crc != 0 {
        sum ^= bits[crc.trailing_zeros() as usize];
        crc &= crc - 1;
    }
    sum
}

/// What [`SUMMED_BYTES`] of zeroes make of a CRC.
fn behind_zeroes(crc: u32) -> u32 {
    crc.to_le_bytes().into_iter().zip(&BEHIND_ZEROES).fold(0, |sum, (byte, table)| sum ^ table[usize::from(byte)])
}

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

    /// The CRC field of what is known as a whole but for its end, of which the CRC32C of each [`SUMMED_BYTES`] is known.
    pub(crate) fn field_with(front: &[u8], sums: impl IntoIterator<Item = u32>) -> [u8; 4] {
        let front = crc_fast::crc32_iscsi(front);
        sums.into_iter().fold(front, |crc, sum| behind_zeroes(crc) ^ sum).to_le_bytes()
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
    fn is_the_same_made_from_the_checksums_of_parts() {
        let data: Vec<u8> = (0..5 * SUMMED_BYTES).map(|at| u8::try_from(at * at % 251).unwrap()).collect();
        for (front, blocks) in [(16, 0), (16, 1), (20, 2), (0, 3), (8, 4)] {
            let (front, end) = (&data[..front], &data[front..front + blocks * SUMMED_BYTES]);
            let sums = end.chunks(SUMMED_BYTES).map(crc_fast::crc32_iscsi);
            assert_eq!(Crc::field_with(front, sums), field_of(&[front, end]), "{} bytes, then {blocks} blocks", front.len());
        }
    }

    #[test]
    fn field_is_zero_when_not_negotiated() {
        let mut crc = Crc::new(false);
        crc.update(b"anything");
        assert_eq!(crc.field(), [0; 4]);
    }
}
