use godwit_nvme::sqe::Fuse;
use godwit_nvme::{BlockCount, Cid, IoOpcode, Lba, SglDescriptor};

use super::*;
use crate::subsystem::tests::{namespace, subsystem};

const CID: Cid = Cid::new(9);
const KEY: godwit_nvme::Rkey = godwit_nvme::Rkey::new(0xABCD);

fn volume() -> Subsystem {
    subsystem(vec![
        namespace(1, 1024 * 4096),
        Namespace { read_only: true, ..namespace(2, 4096) },
        Namespace { can_deallocate: false, ..namespace(3, 4096) },
    ])
}

fn blocks(start: u64, count: u32) -> BlockRange {
    BlockRange::new(Lba::new(start), BlockCount::new(count).unwrap())
}

fn keyed(len: u32) -> SglDescriptor {
    SglDescriptor::keyed(0x10_0000, len, KEY, true).unwrap()
}

fn parse(sqe: Sqe) -> Result<Request, Refusal> {
    Request::parse(&sqe, 0, &volume())
}

fn status_of(result: Result<Request, Refusal>) -> u16 {
    result.unwrap_err().status.to_wire() >> 1
}

const DNR: u16 = 0x4000;

fn read(range: BlockRange) -> Sqe {
    Sqe::read(CID, Nsid::new(1), range).with_sgl(keyed(range.count.get() * 4096))
}

fn write(range: BlockRange) -> Sqe {
    Sqe::write(CID, Nsid::new(1), range).with_sgl(keyed(range.count.get() * 4096))
}

#[test]
fn ranges_end_with_the_namespace() {
    let request = parse(read(blocks(1023, 1))).unwrap();
    assert_eq!((request.offset_bytes, request.len_bytes), (1023 * 4096, 4096));
    assert_eq!(status_of(parse(read(blocks(1023, 2)))), DNR | 0x080);
    assert_eq!(status_of(parse(read(blocks(1024, 1)))), DNR | 0x080);
    assert_eq!(status_of(parse(read(blocks(u64::MAX, 2)))), DNR | 0x080);
    assert_eq!(status_of(parse(read(blocks(u64::MAX / 4096, 1)))), DNR | 0x080);
}

#[test]
fn transfers_are_at_most_mdts() {
    assert!(parse(read(blocks(0, 256))).is_ok());
    assert_eq!(status_of(parse(read(blocks(0, 257)))), DNR | 0x002);
    assert!(parse(write(blocks(0, 256))).is_ok());
    assert_eq!(status_of(parse(write(blocks(0, 257)))), DNR | 0x002);
}

#[test]
fn the_sgl_is_as_long_as_the_blocks() {
    let with = |len| parse(read(blocks(0, 2)).with_sgl(keyed(len)));
    assert!(with(8192).is_ok());
    assert_eq!(status_of(with(8191)), DNR | 0x00F);
    assert_eq!(status_of(with(8193)), DNR | 0x00F);
    let with = |len| parse(write(blocks(0, 2)).with_sgl(keyed(len)));
    assert!(with(8192).is_ok());
    assert_eq!(status_of(with(8191)), DNR | 0x00F);
    assert_eq!(status_of(with(8193)), DNR | 0x00F);
}

#[test]
fn in_capsule_data_lies_within_the_capsule() {
    let with =
        |offset, len, capsule| Request::parse(&write(blocks(0, 1)).with_sgl(SglDescriptor::in_capsule(offset, len)), capsule, &volume());
    let action = |start| Action::Write { from: DataAt::Capsule { start }, durable: false };
    assert_eq!(with(0, 4096, 4096).unwrap().action, action(0));
    assert_eq!(with(512, 4096, 4608).unwrap().action, action(512));
    assert_eq!(status_of(with(0, 4096, 4095)), DNR | 0x00F);
    assert_eq!(status_of(with(1, 4096, 4096)), DNR | 0x00F);
    assert_eq!(status_of(with(4097, 4096, 4096)), DNR | 0x016);
    assert_eq!(status_of(with(u64::MAX, 4096, 4096)), DNR | 0x016);
}

#[test]
fn reads_take_keyed_descriptors_only() {
    let with = |sgl| parse(read(blocks(0, 1)).with_sgl(sgl));
    assert_eq!(status_of(with(SglDescriptor::in_capsule(0, 4096))), DNR | 0x002);
    assert_eq!(status_of(with(SglDescriptor::in_capsule_segment(0, 16))), DNR | 0x011);
}

#[test]
fn unknown_descriptor_types_are_refused() {
    let mut bytes = *write(blocks(0, 1)).as_bytes();
    bytes[39] = 0x50;
    assert_eq!(status_of(parse(Sqe::read_from(&bytes).unwrap())), DNR | 0x011);
}

#[test]
fn namespace_ids_must_be_there() {
    for nsid in [0, 4, u32::MAX] {
        let refusal = parse(read(blocks(0, 1)).with_nsid(Nsid::new(nsid))).unwrap_err();
        assert_eq!(refusal, Refusal::at(4, StatusCode::INVALID_NAMESPACE_OR_FORMAT));
    }
    assert_eq!(status_of(parse(Sqe::flush(CID, Nsid::ALL))), DNR | 0x00B);
    assert_eq!(parse(Sqe::flush(CID, Nsid::new(1))).unwrap().action, Action::Flush);
}

#[test]
fn the_namespace_is_checked_before_the_opcode_and_the_opcode_before_the_range() {
    let unknown = |nsid| parse(Sqe::new(0x7D, CID).with_nsid(Nsid::new(nsid)));
    assert_eq!(status_of(unknown(9)), DNR | 0x00B);
    assert_eq!(status_of(unknown(1)), DNR | 0x001);
    assert_eq!(status_of(parse(Sqe::verify(CID, Nsid::new(1), blocks(5000, 1)))), DNR | 0x001);
}

#[test]
fn read_only_namespaces_refuse_every_kind_of_write() {
    let nsid = Nsid::new(2);
    assert_eq!(status_of(parse(write(blocks(0, 1)).with_nsid(nsid))), DNR | 0x020);
    assert_eq!(status_of(parse(Sqe::write_zeroes(CID, nsid, blocks(0, 1)))), DNR | 0x020);
    let dsm = Sqe::dataset_management(CID, nsid, 1, DatasetManagementAttributes::DEALLOCATE).unwrap();
    assert_eq!(status_of(parse(dsm.with_sgl(keyed(4096)))), DNR | 0x020);
    assert!(parse(read(blocks(0, 1)).with_nsid(nsid)).is_ok());
    assert!(parse(Sqe::flush(CID, nsid)).is_ok());
}

#[test]
fn force_unit_access_makes_writes_durable() {
    let fua = IoControl::FORCE_UNIT_ACCESS;
    let Action::Write { durable, .. } = parse(write(blocks(0, 1)).with_control(fua)).unwrap().action else { panic!() };
    assert!(durable);
    let zero = Sqe::write_zeroes(CID, Nsid::new(1), blocks(0, 1));
    assert_eq!(parse(zero.with_control(fua)).unwrap().action, Action::Zero { deallocate: false, durable: true });
}

#[test]
fn deallocating_zeroes_need_a_store_that_can() {
    let zero = |nsid| Sqe::write_zeroes(CID, Nsid::new(nsid), blocks(0, 1)).with_control(IoControl::DEALLOCATE);
    assert_eq!(parse(zero(1)).unwrap().action, Action::Zero { deallocate: true, durable: false });
    assert_eq!(status_of(parse(zero(3))), DNR | 0x002);
    assert_eq!(status_of(parse(write(blocks(0, 1)).with_control(IoControl::DEALLOCATE))), DNR | 0x002);
}

#[test]
fn write_zeroes_is_not_bound_by_mdts() {
    let request = parse(Sqe::write_zeroes(CID, Nsid::new(1), blocks(0, 1024))).unwrap();
    assert_eq!(request.len_bytes, 4 << 20);
}

#[test]
fn directives_are_refused() {
    assert_eq!(status_of(parse(write(blocks(0, 1)).with_control(IoControl::from_bits(0x0010)))), DNR | 0x002);
}

#[test]
fn fused_and_prp_commands_are_refused() {
    let refusal = parse(read(blocks(0, 1)).with_fuse(Fuse::First)).unwrap_err();
    assert_eq!(refusal, Refusal::at(1, StatusCode::INVALID_FIELD));
    let mut bytes = *read(blocks(0, 1)).as_bytes();
    bytes[1] = 0;
    assert_eq!(status_of(parse(Sqe::read_from(&bytes).unwrap())), DNR | 0x002);
}

#[test]
fn dataset_management_takes_longer_data_but_no_shorter() {
    let with = |nsid, count, len| {
        let dsm = Sqe::dataset_management(CID, Nsid::new(nsid), count, DatasetManagementAttributes::DEALLOCATE).unwrap();
        parse(dsm.with_sgl(keyed(len)))
    };
    let request = with(1, 2, 4096).unwrap();
    assert!(matches!(request.action, Action::Discard { ranges: 2, .. }));
    assert_eq!(request.len_bytes, 32);
    assert!(with(1, 256, 4096).is_ok());
    assert_eq!(status_of(with(1, 256, 4095)), DNR | 0x00F);
    assert_eq!(with(3, 1, 4096).unwrap().action, Action::Nothing, "a hint that this store cannot use");
}

#[test]
fn fabrics_commands_are_refused_on_a_connected_io_queue() {
    assert_eq!(status_of(parse(Sqe::new(IoOpcode::FABRICS.code(), CID).with_nsid(Nsid::new(4)))), DNR | 0x001);
}
