use std::sync::Arc;
use std::time::Duration;

use godwit_nvme::feature::{FeatureId, Select};
use godwit_nvme::identify::{ControllerType, IdentifyController};
use godwit_nvme::log::{CommandEffects, CommandEffectsLog, ErrorEntry, FirmwareSlotLog};
use godwit_nvme::sqe::{Cns, Csi, GetFeatures, GetLogPage, Identify, PropertyAccess};
use godwit_nvme::{
    AdminOpcode, Cid, DwordCount, HostId, IoOpcode, LogId, Nqn, Nsid, PropertyOffset, PropertySize, QueueSize, Rkey as Key, SglDescriptor,
};

use godwit_rdma::Rkey;

use super::*;
use crate::association::{Host, SubsystemIndex, Waiter};
use crate::limits::Limits;
use crate::queue::QueueKey;
use crate::subsystem::Namespace;
use crate::subsystem::tests::{namespace, subsystem};

const CID: Cid = Cid::new(1);
const DNR: u16 = 0x4000;

struct Bench {
    target: Target,
    controller: Controller,
}

impl Bench {
    fn of(subsystem_index: SubsystemIndex) -> Self {
        let target = Target::new(
            vec![subsystem(vec![namespace(1, 1 << 20), Namespace { store: 1, ..namespace(5, 1 << 20) }])],
            vec![],
            Limits::default(),
            1,
        );
        let host = Host { nqn: Nqn::new("nqn.2026-11.org.example:host").unwrap(), id: HostId([1; 16]) };
        let waiter = Waiter { worker: 0, queue: QueueKey { index: 0, generation: 0 } };
        let association = target.associations.open(host, subsystem_index, waiter).unwrap();
        let controller = Controller::new(Arc::clone(&association), QueueSize::new(128).unwrap(), Duration::from_secs(5), Time::default());
        Self { target, controller }
    }

    fn enabled(index: SubsystemIndex) -> Self {
        let mut bench = Self::of(index);
        let cc = PropertyAccess { offset: PropertyOffset::CC, size: PropertySize::Four };
        assert_eq!(bench.run(Sqe::property_set(CID, cc, 0x0046_0001)), Ok(Answer::Result(0)));
        bench
    }

    fn run(&mut self, sqe: Sqe) -> Result<Answer, u16> {
        let offer = self.target.offer();
        let about = About {
            offer: &offer,
            target: &self.target,
            local: Some("127.0.0.1:4420".parse().unwrap()),
            now: Time::from_nanos(7_200_000_000_000),
        };
        execute(&mut self.controller, &sqe, &about).map_err(|refusal| refusal.status.to_wire() >> 1)
    }

    fn data(&mut self, sqe: Sqe, len: usize) -> Result<Vec<u8>, u16> {
        match self.run(sqe.with_sgl(lent(len)))? {
            Answer::Data { mut bytes, len_bytes, to } => {
                assert_eq!(to, Remote { rkey: Rkey(9), address: 0x1000 });
                assert!(bytes.len() <= len_bytes);
                bytes.resize(len_bytes, 0);
                Ok(bytes)
            }
            other => panic!("{other:?}"),
        }
    }

    fn identify(&mut self, identify: &Identify) -> Result<Vec<u8>, u16> {
        self.data(Sqe::identify(CID, identify), 4096)
    }

    fn log(&mut self, id: LogId, len: u64) -> Result<Vec<u8>, u16> {
        let page = GetLogPage::new(id, DwordCount::from_bytes(len).unwrap());
        self.data(Sqe::get_log_page(CID, &page), usize::try_from(len).unwrap())
    }
}

fn lent(len: usize) -> SglDescriptor {
    SglDescriptor::keyed(0x1000, u32::try_from(len).unwrap(), Key::new(9), false).unwrap()
}

const VOLUME: SubsystemIndex = SubsystemIndex::Nvm(0);

#[test]
fn before_the_controller_is_enabled_only_fabrics_commands_and_keep_alive_work() {
    let mut bench = Bench::of(VOLUME);
    assert_eq!(bench.identify(&Identify::new(Cns::CONTROLLER, Nsid::NONE)), Err(DNR | 0x00C));
    assert_eq!(bench.run(Sqe::async_event_request(CID)), Err(DNR | 0x00C));
    assert_eq!(bench.run(Sqe::keep_alive(CID)), Ok(Answer::Result(0)));
    let cap = PropertyAccess { offset: PropertyOffset::CAP, size: PropertySize::Eight };
    assert!(bench.run(Sqe::property_get(CID, cap)).is_ok());
}

#[test]
fn keep_alive_without_a_timeout_is_refused() {
    let mut bench = Bench::enabled(VOLUME);
    bench.controller.set_keep_alive(Duration::ZERO, Time::default());
    assert_eq!(bench.run(Sqe::keep_alive(CID)), Err(DNR | 0x01A));
}

#[test]
fn unknown_commands_structures_logs_and_features_are_refused() {
    let mut bench = Bench::enabled(VOLUME);
    assert_eq!(bench.run(Sqe::new(0xC0, CID)), Err(DNR | 0x001));
    assert_eq!(bench.run(Sqe::disconnect(CID)), Err(DNR | 0x001));
    assert_eq!(bench.identify(&Identify::new(Cns::new(0x10), Nsid::NONE)), Err(DNR | 0x002));
    assert_eq!(bench.identify(&Identify { csi: Csi::ZONED, ..Identify::new(Cns::IO_CONTROLLER, Nsid::NONE) }), Err(DNR | 0x002));
    assert_eq!(bench.log(LogId::ANA, 64), Err(DNR | 0x109));
    assert_eq!(bench.log(LogId::DISCOVERY, 64), Err(DNR | 0x109));
    let timestamp = GetFeatures { nsid: Nsid::NONE, id: FeatureId::TIMESTAMP, select: Select::Current, value: 0 };
    assert_eq!(bench.run(Sqe::get_features(CID, &timestamp)), Err(DNR | 0x002));
    let mut prp = *Sqe::keep_alive(CID).as_bytes();
    prp[1] = 0;
    assert_eq!(bench.run(Sqe::read_from(&prp).unwrap()), Err(DNR | 0x002));
}

#[test]
fn answers_need_memory_of_the_host_that_is_large_enough() {
    let mut bench = Bench::enabled(VOLUME);
    let sqe = || Sqe::identify(CID, &Identify::new(Cns::CONTROLLER, Nsid::NONE));
    assert!(bench.run(sqe().with_sgl(lent(4096))).is_ok());
    assert!(bench.run(sqe().with_sgl(lent(4097))).is_ok());
    assert_eq!(bench.run(sqe().with_sgl(lent(4095))), Err(DNR | 0x00F));
    assert_eq!(bench.run(sqe().with_sgl(SglDescriptor::in_capsule(0, 4096))), Err(DNR | 0x002));
    assert_eq!(bench.run(sqe().with_sgl(SglDescriptor::in_capsule_segment(0, 16))), Err(DNR | 0x011));
}

#[test]
fn log_lengths_are_bounded_by_the_largest_transfer() {
    let mut bench = Bench::enabled(VOLUME);
    assert_eq!(bench.log(LogId::SMART, 1 << 20).map(|log| log.len()), Ok(1 << 20));
    assert_eq!(bench.log(LogId::SMART, (1 << 20) + 4), Err(DNR | 0x002));
    assert_eq!(bench.log(LogId::SMART, 4).map(|log| log.len()), Ok(4));
}

#[test]
fn a_host_that_asks_for_more_than_there_is_costs_no_memory() {
    let mut bench = Bench::enabled(VOLUME);
    let page = GetLogPage::new(LogId::SMART, DwordCount::from_bytes(1 << 20).unwrap());
    let answer = bench.run(Sqe::get_log_page(CID, &page).with_sgl(lent(1 << 20)));
    let Ok(Answer::Data { bytes, len_bytes, .. }) = answer else { panic!("{answer:?}") };
    assert_eq!((bytes.len(), len_bytes), (512, 1 << 20));
}

#[test]
fn lists_of_namespaces_start_above_the_one_that_is_named() {
    let mut bench = Bench::enabled(VOLUME);
    let mut list = |above: u32| bench.identify(&Identify::new(Cns::ACTIVE_NAMESPACES, Nsid::new(above))).map(|list| list[..12].to_vec());
    assert_eq!(list(0), Ok(vec![1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(list(1), Ok(vec![5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(list(5), Ok(vec![0; 12]));
    assert_eq!(list(0xFFFF_FFFD), Ok(vec![0; 12]));
    assert_eq!(list(0xFFFF_FFFE), Err(DNR | 0x00B));
}

#[test]
fn namespace_ids_of_identify_are_bounded() {
    let mut bench = Bench::enabled(VOLUME);
    let mut of = |cns, nsid| bench.identify(&Identify::new(cns, Nsid::new(nsid))).map(|id| id == vec![0; 4096]);
    assert_eq!(of(Cns::NAMESPACE, 1), Ok(false));
    assert_eq!(of(Cns::NAMESPACE, 2), Ok(true), "inactive");
    assert_eq!(of(Cns::NAMESPACE, 1024), Ok(true));
    assert_eq!(of(Cns::NAMESPACE, 1025), Err(DNR | 0x00B));
    assert_eq!(of(Cns::NAMESPACE, 0), Err(DNR | 0x00B));
    assert_eq!(of(Cns::NAMESPACE_DESCRIPTORS, 2), Err(DNR | 0x00B));
    assert_eq!(of(Cns::INDEPENDENT_NAMESPACE, 5), Ok(false));
}

#[test]
fn a_discovery_controller_is_for_discovery_alone() {
    let mut bench = Bench::enabled(SubsystemIndex::Discovery);
    let id = IdentifyController::read_from(&bench.identify(&Identify::new(Cns::CONTROLLER, Nsid::NONE)).unwrap()).unwrap();
    assert_eq!((id.cntrltype, id.nn.get()), (ControllerType::DISCOVERY, 0));
    assert_eq!(id.check_for_rdma(bench.controller.association.cntlid), Ok(()));
    assert_eq!(bench.identify(&Identify::new(Cns::NAMESPACE, Nsid::new(1))), Err(DNR | 0x002));
    assert_eq!(bench.log(LogId::DISCOVERY, 1024).map(|log| log[8]), Ok(1), "itself, for there is no portal");
    assert_eq!(bench.log(LogId::SMART, 512), Err(DNR | 0x109));
    let queues = GetFeatures { nsid: Nsid::NONE, id: FeatureId::NUMBER_OF_QUEUES, select: Select::Current, value: 0 };
    assert_eq!(bench.run(Sqe::get_features(CID, &queues)), Err(DNR | 0x002));
}

#[test]
fn logs_of_a_fresh_controller_are_sane() {
    let mut bench = Bench::enabled(VOLUME);
    assert!(bench.log(LogId::ERROR, 64 * 64).unwrap().chunks(64).all(|entry| ErrorEntry::read_from(entry).unwrap().is_empty()));
    let smart = bench.log(LogId::SMART, 512).unwrap();
    assert_eq!((smart[0], smart[3], smart[128], smart[144]), (0, 100, 2, 0), "two hours, no unsafe shutdown");
    let firmware = FirmwareSlotLog::read_from(&bench.log(LogId::FIRMWARE_SLOTS, 512).unwrap()).unwrap();
    assert_eq!(firmware.revision(1).unwrap().as_str(), Some(env!("CARGO_PKG_VERSION")));
    assert_eq!(bench.log(LogId::CHANGED_NAMESPACES, 4096), Ok(vec![0; 4096]));
    let effects = CommandEffectsLog::read_from(&bench.log(LogId::COMMAND_EFFECTS, 4096).unwrap()).unwrap();
    let changes = CommandEffects::SUPPORTED | CommandEffects::CONTENT_CHANGE;
    assert_eq!(effects.io(IoOpcode::WRITE), changes);
    assert_eq!(effects.io(IoOpcode::READ), CommandEffects::SUPPORTED);
    assert_eq!(effects.io(IoOpcode::COPY), CommandEffects::NONE);
    assert_eq!(effects.admin(AdminOpcode::KEEP_ALIVE), CommandEffects::SUPPORTED);
}

#[test]
fn smart_logs_are_of_the_controller_or_of_a_namespace_that_is_there() {
    let mut bench = Bench::enabled(VOLUME);
    bench.target.set_unsafe_shutdowns(0, 3);
    bench.target.set_unsafe_shutdowns(1, 4);
    bench.target.counters(1).unwrap().of(0).count_write(512_000);
    let mut counted = |nsid| {
        let page = GetLogPage { nsid, ..GetLogPage::new(LogId::SMART, DwordCount::from_bytes(512).unwrap()) };
        let log = bench.data(Sqe::get_log_page(CID, &page), 512).unwrap();
        (log[48], log[144])
    };
    assert_eq!([Nsid::new(1), Nsid::new(5)].map(&mut counted), [(0, 3), (1, 4)], "data units written, unsafe shutdowns");
    assert_eq!([Nsid::NONE, Nsid::ALL].map(&mut counted), [(1, 7), (1, 7)]);
    let mut of = |nsid| {
        let page = GetLogPage { nsid, ..GetLogPage::new(LogId::SMART, DwordCount::from_bytes(512).unwrap()) };
        bench.data(Sqe::get_log_page(CID, &page), 512).map(|_| ())
    };
    assert_eq!((of(Nsid::NONE), of(Nsid::ALL), of(Nsid::new(5))), (Ok(()), Ok(()), Ok(())));
    assert_eq!(of(Nsid::new(2)), Err(DNR | 0x00B));
}

#[test]
fn features_say_what_can_be_done_with_them() {
    let mut bench = Bench::enabled(VOLUME);
    let mut get = |id, select, nsid| bench.run(Sqe::get_features(CID, &GetFeatures { nsid: Nsid::new(nsid), id, select, value: 0 }));
    assert_eq!(get(FeatureId::KEEP_ALIVE_TIMER, Select::Capabilities, 0), Ok(Answer::Result(4)));
    assert_eq!(get(FeatureId::VOLATILE_WRITE_CACHE, Select::Capabilities, 0), Ok(Answer::Result(0)));
    assert_eq!(get(FeatureId::KEEP_ALIVE_TIMER, Select::Current, 0), Ok(Answer::Result(5000)));
    assert_eq!(get(FeatureId::KEEP_ALIVE_TIMER, Select::Default, 0), Ok(Answer::Result(0)));
    assert_eq!(get(FeatureId::KEEP_ALIVE_TIMER, Select::Reserved(5), 0), Err(DNR | 0x002));
    assert_eq!(get(FeatureId::VOLATILE_WRITE_CACHE, Select::Current, 1), Err(DNR | 0x10F));
}
