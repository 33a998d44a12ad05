//! Commands that are almost right: from the builders of honest ones, then with fields that are not.

use std::time::Duration;

use godwit_nvme::feature::{FeatureId, Select};
use godwit_nvme::property::PropertySize;
use godwit_nvme::sqe::{
    Abort, Cns, Connect, Csi, DatasetManagementAttributes, GetFeatures, GetLogPage, Identify, IoControl, PropertyAccess, SetFeatures,
};
use godwit_nvme::{
    BlockCount, BlockRange, Cid, Cntlid, DwordCount, Lba, LogId, Nsid, PropertyOffset, Qid, QueueSize, Rkey, SglDescriptor, Sqe,
};

use super::{BLOCK_BYTES, Random, alphabet};

/// Bytes of an SQE.
const SQE_BYTES: usize = Sqe::LEN_BYTES;

/// Where in an SQE its SGL descriptor lies.
const SGL: std::ops::Range<usize> = 24..40;

/// A namespace of which only the second half may change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// All blocks.
    pub(super) blocks: u64,
}

impl Field {
    /// The first block that may change.
    pub(super) const fn open(self) -> u64 {
        self.blocks / 2
    }

    /// Moves a command that might change guarded blocks to blocks that may change, or past the end.
    pub(super) fn spare(self, sqe: &mut [u8; SQE_BYTES]) {
        const HARMLESS: [u8; 4] = [0x00, 0x02, 0x05, 0x0C];
        let start = u64::from_le_bytes(sqe[40..48].try_into().expect("eight bytes"));
        if !HARMLESS.contains(&sqe[0]) && start < self.open() {
            sqe[40..48].copy_from_slice(&(start + self.open()).to_le_bytes());
        }
    }
}

/// A range that is honest, or at an edge, or far away.
fn blocks(random: &mut Random, field: Field) -> BlockRange {
    let start = match random.below(8) {
        0 => alphabet::long(random),
        1 => field.blocks - random.below(3),
        2 => field.open() - random.below(3),
        _ => random.below(field.blocks),
    };
    let count = if random.one_in(6) { u32::from(alphabet::half(random)) + 1 } else { u32::from(random.byte() % 16) + 1 };
    BlockRange::new(Lba::new(start), BlockCount::new(count).expect("within 65536"))
}

fn nsid(random: &mut Random) -> Nsid {
    if random.one_in(10) { Nsid::new(alphabet::word(random)) } else { Nsid::new(1) }
}

/// A command of an I/O queue as a host might build it, and the bytes that it moves.
fn io(random: &mut Random, field: Field) -> (Sqe, u32) {
    let (cid, nsid, range) = (Cid::new(random.half()), nsid(random), blocks(random, field));
    let len = range.count.get().saturating_mul(u32::try_from(BLOCK_BYTES).expect("a small number"));
    match random.below(20) {
        0..=5 => (Sqe::read(cid, nsid, range), len),
        6..=11 => (Sqe::write(cid, nsid, range), len),
        12 => (Sqe::compare(cid, nsid, range), len),
        13 => (Sqe::write_zeroes(cid, nsid, range), 0),
        14 => (Sqe::verify(cid, nsid, range), 0),
        15 => (Sqe::write_uncorrectable(cid, nsid, range), 0),
        16 => (Sqe::flush(cid, nsid), 0),
        17 => {
            let count = random.half() % 256 + 1;
            let attributes = DatasetManagementAttributes::from_bits(alphabet::word(random) & 7);
            let sqe = Sqe::dataset_management(cid, nsid, count, attributes).expect("1 to 256 ranges");
            (sqe, u32::from(count) * 16)
        }
        18 => (fabrics(random, cid), 0),
        _ => (Sqe::new(random.byte(), cid).with_nsid(nsid), len),
    }
}

/// A fabrics command.
fn fabrics(random: &mut Random, cid: Cid) -> Sqe {
    let offset = random.pick(&[
        PropertyOffset::CC,
        PropertyOffset::CSTS,
        PropertyOffset::CAP,
        PropertyOffset::VS,
        PropertyOffset::new(0x20),
        PropertyOffset::new(0x16),
    ]);
    let offset = if random.one_in(4) { PropertyOffset::new(alphabet::word(random)) } else { offset };
    let size = random.pick(&[PropertySize::Four, PropertySize::Eight, PropertySize::Reserved(7)]);
    let property = PropertyAccess { offset, size };
    match random.below(6) {
        0 | 1 => Sqe::property_get(cid, property),
        2 | 3 => Sqe::property_set(cid, property, alphabet::long(random)),
        4 => {
            let size = QueueSize::from_zeroes_based(alphabet::half(random));
            let connect = Connect { record_format: random.half() % 2, ..Connect::io(Qid::new(alphabet::half(random) % 5), size) };
            Sqe::connect(cid, &Connect { keep_alive: Duration::from_millis(alphabet::word(random).into()), ..connect })
        }
        _ => Sqe::disconnect(cid),
    }
}

/// A command of an admin queue as a host might build it, and the bytes that it moves.
fn admin(random: &mut Random) -> (Sqe, u32) {
    let cid = Cid::new(random.half());
    match random.below(12) {
        0 | 1 => {
            let identify = Identify {
                nsid: nsid(random),
                cns: Cns::new(random.pick(&[0, 1, 2, 3, 5, 6, 7, 8, 0x10, 0x12, 0x13, 0x1c, 0xff])),
                cntid: Cntlid::new(alphabet::half(random)),
                cns_specific: alphabet::half(random),
                csi: Csi::new(random.byte() % 4),
            };
            (Sqe::identify(cid, &identify), 4096)
        }
        2 | 3 => {
            let length = DwordCount::new(u64::from(alphabet::word(random)) + 1).expect("at most 2^32");
            let log = GetLogPage {
                nsid: nsid(random),
                id: LogId::new(random.pick(&[0, 1, 2, 3, 4, 5, 6, 0x0c, 0x0d, 0x12, 0x70, 0x80, 0xff])),
                specific: random.byte() & 0x7f,
                retain_event: random.one_in(2),
                length,
                offset_bytes: if random.one_in(2) { 0 } else { alphabet::long(random) },
                csi: Csi::new(random.byte() % 4),
            };
            (Sqe::get_log_page(cid, &log), u32::try_from(length.bytes()).unwrap_or(u32::MAX))
        }
        4 => {
            let features = GetFeatures {
                nsid: nsid(random),
                id: FeatureId::new(random.byte() & 0x8f),
                select: random.pick(&[Select::Current, Select::Default]),
                value: alphabet::word(random),
            };
            (Sqe::get_features(cid, &features), 0)
        }
        5 => {
            let features = SetFeatures {
                nsid: nsid(random),
                id: FeatureId::new(random.byte() & 0x8f),
                save: random.one_in(2),
                value: alphabet::word(random),
            };
            (Sqe::set_features(cid, &features), 0)
        }
        6 => (Sqe::async_event_request(cid), 0),
        7 => (Sqe::keep_alive(cid), 0),
        8 => (Sqe::abort(cid, &Abort { sqid: Qid::new(alphabet::half(random) % 3), cid: Cid::new(alphabet::half(random)) }), 0),
        9 | 10 => (fabrics(random, cid), 0),
        _ => (Sqe::new(random.byte(), cid).with_nsid(nsid(random)), 4096),
    }
}

/// Where a command says that its data is; `len` is what it moves.
fn sgl(random: &mut Random, len: u32) -> SglDescriptor {
    let key = Rkey::new(random.word());
    let keyed =
        |random: &mut Random, address, len: u32| SglDescriptor::keyed(address, len & 0xff_ffff, key, random.one_in(3)).expect("24 bits");
    match random.below(12) {
        0..=4 => {
            let address = u64::from(random.word()) << 12;
            keyed(random, address, len)
        }
        5 => {
            let address = alphabet::long(random);
            keyed(random, address, len)
        }
        6 => {
            // Around the end of addresses.
            let address = u64::MAX - random.below(u64::from(len) + 1);
            keyed(random, address, len)
        }
        7 => {
            let (address, len) = (alphabet::long(random), alphabet::word(random));
            keyed(random, address, len)
        }
        8 => SglDescriptor::in_capsule(0, len),
        9 => SglDescriptor::in_capsule(alphabet::long(random), alphabet::word(random)),
        10 => SglDescriptor::in_capsule_segment(alphabet::long(random), alphabet::word(random)),
        _ => SglDescriptor::NONE,
    }
}

/// Which queue a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Admin,
    Io,
}

/// A hostile command, and the bytes that it moves by its own account.
pub(super) fn hostile(random: &mut Random, queue: Queue, field: Field) -> ([u8; SQE_BYTES], u32) {
    let (sqe, len) = match queue {
        Queue::Admin => admin(random),
        Queue::Io => io(random, field),
    };
    let len = len.min(16 << 20);
    let sqe = if random.one_in(4) { sqe } else { sqe.with_sgl(sgl(random, len)) };
    let sqe = if random.one_in(12) { sqe.with_control(IoControl::from_bits(alphabet::half(random))) } else { sqe };
    let mut bytes: [u8; SQE_BYTES] = *sqe.as_bytes();
    match random.below(8) {
        0 => random.scramble(&mut bytes, 4),
        1 => random.scramble(&mut bytes[SGL], 3),
        2 => bytes[1] = random.byte(),
        3 => {
            let at = 40 + 4 * random.count(0, 5);
            bytes[at..at + 4].copy_from_slice(&alphabet::word(random).to_le_bytes());
        }
        _ => {}
    }
    if queue == Queue::Io {
        field.spare(&mut bytes);
    }
    (bytes, len)
}

/// A read or write of one to sixteen blocks of a namespace, right in every field but perhaps its data.
pub(super) fn honest(random: &mut Random, field: Field, cid: u16) -> ([u8; SQE_BYTES], u32) {
    let count = u32::from(random.byte() % 16) + 1;
    let start = field.open() + random.below(field.open() - u64::from(count));
    let range = BlockRange::new(Lba::new(start), BlockCount::new(count).expect("not zero"));
    let len = count * u32::try_from(BLOCK_BYTES).expect("a small number");
    let sqe = if random.one_in(2) { Sqe::read } else { Sqe::write }(Cid::new(cid), Nsid::new(1), range);
    let address = u64::from(random.word()) << 12;
    let keyed = SglDescriptor::keyed(address, len, Rkey::new(random.word()), random.one_in(2)).expect("short");
    (*sqe.with_sgl(keyed).as_bytes(), len)
}

#[cfg(test)]
mod tests {
    use godwit_nvme::IoCommand;

    use super::*;

    const FIELD: Field = Field { blocks: 8192 };

    #[test]
    fn no_hostile_command_names_a_guarded_block_to_change_it() {
        let mut opcodes = std::collections::BTreeSet::new();
        for number in 0..50_000 {
            let mut random = Random::new(11, number);
            let (bytes, _) = hostile(&mut random, Queue::Io, FIELD);
            let sqe = Sqe::read_from(&bytes).unwrap();
            opcodes.insert(sqe.opcode());
            if let IoCommand::Write(range) | IoCommand::WriteZeroes(range) | IoCommand::WriteUncorrectable(range) = IoCommand::parse(&sqe) {
                assert!(range.blocks.start.get() >= FIELD.open(), "stream {number}: {sqe:?}");
            }
        }
        assert!(opcodes.len() > 200, "{} opcodes", opcodes.len());
    }

    #[test]
    fn honest_commands_lie_in_the_open_half() {
        for number in 0..1000 {
            let (bytes, len) = honest(&mut Random::new(3, number), FIELD, 9);
            let range = Sqe::read_from(&bytes).unwrap().io_range().blocks;
            assert!(range.start.get() >= FIELD.open() && range.is_within(FIELD.blocks));
            assert_eq!(u64::from(range.count.get()) * 4096, u64::from(len));
        }
    }
}
