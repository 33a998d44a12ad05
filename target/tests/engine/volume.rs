//! What a well-behaved host does, and each thing that a host can get wrong.

use std::time::Duration;

use godwit_nvme::feature::FeatureId;
use godwit_nvme::identify::{IdentifyController, IdentifyNamespace, NamespaceIdentifiers, NamespaceList};
use godwit_nvme::log::{DiscoveryEntry, DiscoveryHeader, SmartLog};
use godwit_nvme::sqe::{
    Cns, Connect, DatasetManagementAttributes, GetFeatures, GetLogPage, Identify, IoControl, PropertyAccess, SetFeatures,
};
use godwit_nvme::{
    BlockCount, BlockRange, ConnectData, DsmRange, DwordCount, HostId, Lba, LogId, Nqn, Nsid, PropertyOffset, PropertySize, QueueSize, Sqe,
};

use crate::host::{HOST, Host, Queue};
use crate::server::{BLOCKS, Server, Setup};

const DNR: u16 = 0x4000;
const NSID: Nsid = Nsid::new(1);

pub(crate) fn blocks(start: u64, count: u32) -> BlockRange {
    BlockRange::new(Lba::new(start), BlockCount::new(count).unwrap())
}

pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at * 7 + at / 4096 + seed) % 251).unwrap()).collect()
}

fn volume(server: &Server, host: &mut Host) -> (Queue, Queue) {
    let (admin, cntlid) = host.admin(server.address, Duration::ZERO);
    let io = host.io(server.address, cntlid, 1, 128);
    (admin, io)
}

fn read(host: &mut Host, io: Queue, start: u64, count: u32) -> Vec<u8> {
    let sqe = Sqe::read(host.cid(), NSID, blocks(start, count));
    let (response, data) = host.fetch(io, sqe, count as usize * 4096);
    assert_eq!(response.status(), 0);
    data
}

#[test]
fn what_is_written_in_a_capsule_or_by_rdma_read_is_read_back() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let (_, io) = volume(&server, &mut host);
    let (small, large) = (pattern(1, 8192), pattern(2, 1 << 20));
    let sqe = Sqe::write(host.cid(), NSID, blocks(0, 2));
    assert_eq!(host.give_in_capsule(io, sqe, &small).status(), 0);
    let sqe = Sqe::write(host.cid(), NSID, blocks(2, 256)).with_control(IoControl::FORCE_UNIT_ACCESS);
    assert_eq!(host.give(io, sqe, &large).status(), 0);
    assert!(read(&mut host, io, 0, 2) == small);
    assert!(read(&mut host, io, 2, 256) == large);
    let sqe = Sqe::flush(host.cid(), NSID);
    assert_eq!(host.command(io, sqe).status(), 0);
    server.stop();
}

#[test]
fn the_submission_queue_head_moves_with_each_response() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let (admin, cntlid) = host.admin(server.address, Duration::ZERO);
    let io = host.io(server.address, cntlid, 1, 3);
    let _ = admin;
    let heads: Vec<_> = (0..4)
        .map(|_| {
            let sqe = Sqe::flush(host.cid(), NSID);
            host.command(io, sqe).cqe.sqhd().get()
        })
        .collect();
    assert_eq!(heads, [2, 0, 1, 2], "Connect was the first");
}

#[test]
fn a_host_may_disable_flow_control() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let queue = host.open(server.address, 0, 32);
    let mut connect = Connect::admin(QueueSize::new(32).unwrap(), Duration::ZERO);
    connect.attributes = godwit_nvme::sqe::ConnectAttributes::DISABLE_SQ_FLOW_CONTROL;
    let sqe = Sqe::connect(host.cid(), &connect);
    let response = host.give(queue, sqe, Host::connect_data(godwit_nvme::Cntlid::DYNAMIC).as_bytes());
    assert_eq!((response.status(), response.cqe.sqhd().get()), (0, 0xFFFF));
}

#[test]
fn zeroes_discards_and_compares_touch_exactly_their_range() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let (_, io) = volume(&server, &mut host);
    let mut model = pattern(3, 16 * 4096);
    let sqe = Sqe::write(host.cid(), NSID, blocks(0, 16));
    assert_eq!(host.give(io, sqe, &model).status(), 0);

    let sqe = Sqe::write_zeroes(host.cid(), NSID, blocks(3, 2));
    assert_eq!(host.command(io, sqe).status(), 0);
    model[3 * 4096..5 * 4096].fill(0);
    let sqe = Sqe::write_zeroes(host.cid(), NSID, blocks(6, 1)).with_control(IoControl::DEALLOCATE | IoControl::FORCE_UNIT_ACCESS);
    assert_eq!(host.command(io, sqe).status(), 0);
    model[6 * 4096..7 * 4096].fill(0);

    let ranges = [DsmRange::new(Lba::new(8), 1), DsmRange::new(Lba::new(0), 0), DsmRange::new(Lba::new(10), 3)];
    let bytes: Vec<u8> = ranges.iter().flat_map(|range| *range.as_bytes()).collect();
    let dsm = |host: &mut Host| Sqe::dataset_management(host.cid(), NSID, 3, DatasetManagementAttributes::DEALLOCATE).unwrap();
    let sqe = dsm(&mut host);
    assert_eq!(host.give_in_capsule(io, sqe, &bytes).status(), 0);
    model[8 * 4096..9 * 4096].fill(0);
    model[10 * 4096..13 * 4096].fill(0);
    assert!(read(&mut host, io, 0, 16) == model);

    // One range beyond the end: nothing is touched.
    let ranges = [DsmRange::new(Lba::new(0), 1), DsmRange::new(Lba::new(BLOCKS), 1), DsmRange::new(Lba::new(2), 1)];
    let mut bytes: Vec<u8> = ranges.iter().flat_map(|range| *range.as_bytes()).collect();
    bytes.resize(4096, 0);
    let sqe = dsm(&mut host);
    assert_eq!(host.give(io, sqe, &bytes).status(), DNR | 0x080);
    assert!(read(&mut host, io, 0, 16) == model);

    let sqe = Sqe::compare(host.cid(), NSID, blocks(0, 16));
    assert_eq!(host.give(io, sqe, &model).status(), 0);
    model[16 * 4096 - 1] ^= 1;
    let sqe = Sqe::compare(host.cid(), NSID, blocks(0, 16));
    assert_eq!(host.give(io, sqe, &model).status(), DNR | 0x285);
    let sqe = Sqe::compare(host.cid(), NSID, blocks(0, 2));
    assert_eq!(host.give_in_capsule(io, sqe, &model[..8192]).status(), 0);
    let sqe = Sqe::compare(host.cid(), NSID, blocks(0, 2));
    assert_eq!(host.give_in_capsule(io, sqe, &pattern(9, 8192)).status(), DNR | 0x285);
}

#[test]
fn bad_io_commands_are_answered_and_logged_and_the_queue_goes_on() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let (admin, io) = volume(&server, &mut host);
    let one = vec![1; 4096];
    for (sqe, expected) in [
        (Sqe::write(host.cid(), NSID, blocks(BLOCKS, 1)), DNR | 0x080),
        (Sqe::write(host.cid(), Nsid::new(9), blocks(0, 1)), DNR | 0x00B),
        (Sqe::write(host.cid(), Nsid::new(2), blocks(0, 1)), DNR | 0x020),
        (Sqe::write(host.cid(), NSID, blocks(0, 2)), DNR | 0x00F),
        (Sqe::write(host.cid(), NSID, blocks(0, 1)).with_fuse(godwit_nvme::sqe::Fuse::First), DNR | 0x002),
        (Sqe::new(0x71, host.cid()).with_nsid(NSID), DNR | 0x001),
    ] {
        assert_eq!(host.give_in_capsule(io, sqe, &one).status(), expected, "{sqe:?}");
        let keyed = sqe.with_cid(host.cid());
        assert_eq!(host.give(io, keyed, &one).status(), expected, "{sqe:?}");
    }
    let page = GetLogPage::new(LogId::ERROR, DwordCount::from_bytes(64).unwrap());
    let sqe = Sqe::get_log_page(host.cid(), &page);
    let (_, log) = host.fetch(admin, sqe, 64);
    let entry = godwit_nvme::log::ErrorEntry::read_from(&log).unwrap();
    assert_eq!((entry.count(), entry.status().to_wire() >> 1, entry.sqid().get()), (12, DNR | 0x001, 1));
    assert!(read(&mut host, io, 0, 1) == vec![0; 4096], "nothing was written");
}

#[test]
fn identify_tells_what_hosts_need() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let (admin, cntlid) = host.admin(server.address, Duration::ZERO);
    let mut identify = |cns, nsid| {
        let sqe = Sqe::identify(host.cid(), &Identify::new(cns, Nsid::new(nsid)));
        let (response, data) = host.fetch(admin, sqe, 4096);
        (response.status(), data)
    };
    let controller = IdentifyController::read_from(&identify(Cns::CONTROLLER, 0).1).unwrap();
    assert_eq!(controller.check_for_rdma(cntlid), Ok(()));
    assert_eq!(controller.in_capsule_bytes(), 8192);
    assert_eq!(controller.max_transfer_bytes(4096), Some(1 << 20));
    assert_eq!(controller.async_event_request_limit(), 4);
    assert_eq!(controller.sn.as_str(), Some("SN42"));
    let list = NamespaceList::read_from(&identify(Cns::ACTIVE_NAMESPACES, 0).1).unwrap();
    assert_eq!(list.iter().map(Nsid::get).collect::<Vec<_>>(), [1, 2]);
    let namespace = IdentifyNamespace::read_from(&identify(Cns::NAMESPACE, 1).1).unwrap();
    assert_eq!((namespace.size_blocks(), namespace.is_write_protected()), (BLOCKS, false));
    let identifiers = NamespaceIdentifiers::from_wire(&identify(Cns::NAMESPACE_DESCRIPTORS, 1).1).unwrap();
    assert!(identifiers.is_identified() && identifiers.nguid == namespace.nguid());
    let absent = identify(Cns::NAMESPACE, 77);
    assert_eq!((absent.0, absent.1 == vec![0; 4096]), (0, true));
    assert_eq!(identify(Cns::NAMESPACE, u32::MAX).0, DNR | 0x00B);
    assert_eq!(identify(Cns::new(0x55), 0).0, DNR | 0x002);
    for cns in [Cns::IO_NAMESPACE, Cns::IO_CONTROLLER, Cns::INDEPENDENT_NAMESPACE] {
        assert_eq!(identify(cns, 1).0, 0, "{cns}");
    }
}

#[test]
fn smart_counts_what_hosts_did() {
    let server = Server::start(Setup { workers: 2, ..Setup::default() });
    let mut host = Host::new();
    let (admin, io) = volume(&server, &mut host);
    for _ in 0..3 {
        let sqe = Sqe::write(host.cid(), NSID, blocks(0, 256));
        assert_eq!(host.give(io, sqe, &pattern(0, 1 << 20)).status(), 0);
    }
    read(&mut host, io, 0, 256);
    let page = GetLogPage::new(LogId::SMART, DwordCount::from_bytes(512).unwrap());
    let sqe = Sqe::get_log_page(host.cid(), &page);
    let smart = SmartLog::read_from(&host.fetch(admin, sqe, 512).1).unwrap();
    assert_eq!((smart.host_writes.get(), smart.host_reads.get()), (3, 1));
    assert_eq!((smart.data_units_written(), smart.data_units_read()), (7, 3));
}

#[test]
fn the_discovery_log_can_be_read_in_pieces() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let queue = host.open(server.address, 0, 32);
    let connect = Connect::admin(QueueSize::new(32).unwrap(), Duration::ZERO);
    let data = ConnectData::new(HostId([7; 16]), godwit_nvme::Cntlid::DYNAMIC, &Nqn::discovery(), &Nqn::new(HOST).unwrap());
    let sqe = Sqe::connect(host.cid(), &connect);
    assert_eq!(host.give(queue, sqe, data.as_bytes()).status(), 0);
    let cc = PropertyAccess { offset: PropertyOffset::CC, size: PropertySize::Four };
    let sqe = Sqe::property_set(host.cid(), cc, 0x0046_0001);
    assert_eq!(host.command(queue, sqe).status(), 0);
    let mut piece = |offset_bytes, len: u64| {
        let page = GetLogPage { offset_bytes, ..GetLogPage::new(LogId::DISCOVERY, DwordCount::from_bytes(len).unwrap()) };
        let sqe = Sqe::get_log_page(host.cid(), &page);
        let (response, data) = host.fetch(queue, sqe, usize::try_from(len).unwrap());
        (response.status(), data)
    };
    let header = DiscoveryHeader::from_prefix(&piece(0, 20).1).unwrap();
    assert_eq!(header.entry_count(), 2);
    let entry = DiscoveryEntry::read_from(&piece(2048, 1024).1).unwrap();
    assert_eq!((entry.port(), entry.address().as_str()), (Some(server.address.port()), Some("127.0.0.1")));
    let whole = piece(0, 8192).1;
    assert!(whole[3072..].iter().all(|&byte| byte == 0), "zeroes after its end");
    assert_eq!(piece(3076, 4).0, DNR | 0x002);
    assert_eq!(piece(2, 4).0, DNR | 0x002);
}

#[test]
fn features_are_got_and_set() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let (admin, cntlid) = host.admin(server.address, Duration::from_secs(60));
    let mut get = |id, value| {
        let command = GetFeatures { nsid: Nsid::NONE, id, select: godwit_nvme::feature::Select::Current, value };
        let sqe = Sqe::get_features(host.cid(), &command);
        let (response, data) = host.fetch(admin, sqe, 16);
        (response.status(), response.cqe.dw0(), data)
    };
    assert_eq!(get(FeatureId::VOLATILE_WRITE_CACHE, 0).1, 1);
    assert_eq!(get(FeatureId::KEEP_ALIVE_TIMER, 0).1, 60_000);
    assert_eq!(get(FeatureId::HOST_IDENTIFIER, 1).2, [7; 16]);
    assert_eq!(get(FeatureId::HOST_IDENTIFIER, 0).0, DNR | 0x002);
    assert_eq!(get(FeatureId::new(0xC0), 0).0, DNR | 0x002);
    let mut set = |id, value, save| {
        let sqe = Sqe::set_features(host.cid(), &SetFeatures { nsid: Nsid::NONE, id, save, value });
        let response = host.command(admin, sqe);
        (response.status(), response.cqe.dw0())
    };
    assert_eq!(set(FeatureId::NUMBER_OF_QUEUES, 0x0003_0003, false), (0, 0x007F_007F));
    assert_eq!(set(FeatureId::NUMBER_OF_QUEUES, 0xFFFF, false).0, DNR | 0x002);
    assert_eq!(set(FeatureId::NUMBER_OF_QUEUES, 0, true).0, DNR | 0x10D);
    assert_eq!(set(FeatureId::ASYNC_EVENT_CONFIGURATION, 0x100, false).0, 0);
    assert_eq!(set(FeatureId::ASYNC_EVENT_CONFIGURATION, 0x200, false).0, DNR | 0x002);
    assert_eq!(set(FeatureId::VOLATILE_WRITE_CACHE, 0, false).0, DNR | 0x10E);
    assert_eq!(set(FeatureId::HOST_IDENTIFIER, 0, false).0, DNR | 0x00C);
    host.io(server.address, cntlid, 1, 32);
    let sqe = Sqe::set_features(host.cid(), &SetFeatures { nsid: Nsid::NONE, id: FeatureId::NUMBER_OF_QUEUES, save: false, value: 0 });
    assert_eq!(host.command(admin, sqe).status(), DNR | 0x00C, "I/O queues are there already");
}
