//! Data for the target's RDMA Reads, and the ways not to give it.

use godwit_iwarp::Opcode;

use super::fpdu::{Read, Tagged, Untagged, frame};
use super::{Random, alphabet};

/// Bytes none of which is 0: as a range of Dataset Management, anything read out of them lies beyond every namespace.
pub(super) fn filling(random: &mut Random, len: usize) -> Vec<u8> {
    let block: [u8; 64] = std::array::from_fn(|_| random.byte() | 1);
    block.into_iter().cycle().take(len).collect()
}

/// Ranges of Dataset Management from block `first` on. Read from any other byte on, they name no block before it.
pub(super) fn ranges(random: &mut Random, first: u64, len: usize) -> Vec<u8> {
    let count = len.div_ceil(16);
    let mut bytes = Vec::with_capacity(count * 16);
    for _ in 0..count {
        bytes.extend(u32::MAX.to_le_bytes());
        let blocks = if random.one_in(9) { 0x0101_0000 } else { random.word() & 0x0f };
        bytes.extend(blocks.to_le_bytes());
        bytes.extend((first + random.below(first)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The FPDUs that answer a Read Request.
pub(super) fn honest_answer(read: &Read, data: &[u8]) -> Vec<u8> {
    in_pieces(read.sink_stag, read.sink_to, data, 60 << 10)
}

/// FPDUs in answer to a Read Request: the right ones, wrong ones, or none.
pub(super) fn answer(random: &mut Random, read: &Read, data: &[u8]) -> Vec<u8> {
    let (stag, to) = (read.sink_stag, read.sink_to);
    let whole = |stag, to, data: &[u8]| in_pieces(stag, to, data, 60 << 10);
    match random.below(14) {
        0..=4 => whole(stag, to, data),
        5 => in_pieces(stag, to, data, random.count(1, 16) * 256),
        6 => whole(stag ^ (1 << random.below(32)), to, data),
        7 => whole(stag, to.wrapping_add(alphabet::long(random)), data),
        8 => whole(stag, to, &[data, &[0xa5; 8]].concat()),
        9 => whole(stag, to, &data[..data.len() / 2]),
        10 => {
            // The second half first, or an end before the end.
            let half = data.len() / 2;
            let second = whole(stag, to.wrapping_add(half as u64), &data[half..]);
            [second, whole(stag, to, &data[..half])].concat()
        }
        11 => [whole(stag, to, data), whole(stag, to, data)].concat(),
        12 => frame(&Untagged::new(Opcode::READ_RESPONSE, 1, 1).ulpdu(&data[..data.len().min(1000)])),
        _ => Vec::new(),
    }
}

fn in_pieces(stag: u32, to: u64, data: &[u8], most: usize) -> Vec<u8> {
    if data.is_empty() {
        return frame(&Tagged::new(Opcode::READ_RESPONSE, stag, to).ulpdu(&[]));
    }
    let mut frames = Vec::new();
    for (index, piece) in data.chunks(most).enumerate() {
        let at = index * most;
        let segment = Tagged::new(Opcode::READ_RESPONSE, stag, to.wrapping_add(at as u64));
        let is_last = at + piece.len() == data.len();
        let segment = if is_last { segment } else { segment.not_last() };
        frames.extend(frame(&segment.ulpdu(piece)));
    }
    frames
}

#[cfg(test)]
mod tests {
    use godwit_nvme::DsmRange;

    use super::*;

    #[test]
    fn ranges_name_no_block_before_the_first_wherever_one_begins_to_read() {
        let bytes = ranges(&mut Random::new(1, 1), 4096, 4096);
        for start in 0..16 {
            for range in bytes[start..].chunks_exact(16) {
                let range = DsmRange::read_from(range).unwrap();
                assert!(range.start().get() >= 4096, "{range:?} from byte {start}");
            }
        }
    }

    #[test]
    fn filling_names_no_block_at_all() {
        for number in 0..50 {
            let bytes = filling(&mut Random::new(1, number), 64);
            assert!(bytes.iter().all(|&byte| byte != 0));
        }
    }
}
