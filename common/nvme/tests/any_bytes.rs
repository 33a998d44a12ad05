//! Any bytes, through every parser and accessor: none panics, and what is parsed is encoded again to what was read.

#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a test that fails")]

use std::fmt::Debug;
use std::hint::black_box;

use godwit_nvme::aen::AsyncEvent;
use godwit_nvme::cm::{QueueAccept, QueueReject, QueueRequest};
use godwit_nvme::feature::{AsyncEventConfiguration, KeepAliveTimer, NumberOfQueues, VolatileWriteCache, wants_extended_host_identifier};
use godwit_nvme::identify::{IndependentNamespace, IoIdentifyController};
use godwit_nvme::log::{
    AnaGroupHeader, AnaHeader, CommandEffectsLog, DiscoveryEntry, DiscoveryHeader, ErrorEntry, FirmwareSlotLog, SmartLog, ana_groups,
    ana_log, window,
};
use godwit_nvme::property::ReadyTimeouts;
use godwit_nvme::sqe::{Abort, Connect, FabricsCommand, GetFeatures, GetLogPage, Identify, IoRange, SetFeatures};
use godwit_nvme::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Formats a value to run its `Debug`, and drops the text.
fn show(value: &impl Debug) {
    black_box(format!("{value:?}"));
}

fn sqe_accessors(sqe: &Sqe, data: &[u8]) {
    show(sqe);
    show(&AdminCommand::parse(sqe));
    show(&IoCommand::parse(sqe));
    show(&FabricsCommand::parse(sqe));
    show(&(sqe.fuse(), sqe.psdt(), sqe.check_flags(), sqe.data_direction(), IoCommand::parse(sqe).data_direction()));
    let range = sqe.io_range();
    show(&(range.blocks.end(), range.blocks.is_within(u64::MAX), range.blocks.offset_bytes(BlockSize::B4096)));
    show(&(range.control.directive_type(), range.is_forced_unit_access()));
    let _ = black_box(dsm::ranges(data, sqe.dataset_management_parameters().range_count));
    match sqe.sgl() {
        Ok(Sgl::InCapsule { offset, length }) => show(&sgl::in_capsule_data(data, offset, length)),
        Ok(Sgl::InCapsuleSegment { offset, length }) => {
            if let Ok(descriptors) = sgl::segment(data, offset, length, u32::MAX) {
                descriptors.for_each(|descriptor| show(&descriptor));
            }
        }
        Ok(Sgl::Keyed { .. }) => show(&sqe.sgl().unwrap().key_to_invalidate()),
        Err(error) => show(&(error.to_string(), error.status())),
    }
}

/// Every command of an entry encoded again has the fields that were parsed.
fn sqe_round_trips(sqe: &Sqe) {
    let cid = sqe.cid();
    let identify: Identify = sqe.identify_parameters();
    assert_eq!(Sqe::identify(cid, &identify).identify_parameters(), identify);
    let log: GetLogPage = sqe.get_log_page_parameters();
    assert_eq!(Sqe::get_log_page(cid, &log).get_log_page_parameters(), log);
    let get: GetFeatures = sqe.get_features_parameters();
    assert_eq!(Sqe::get_features(cid, &get).get_features_parameters(), get);
    let set: SetFeatures = sqe.set_features_parameters();
    assert_eq!(Sqe::set_features(cid, &set).set_features_parameters(), set);
    let abort: Abort = sqe.abort_parameters();
    assert_eq!(Sqe::abort(cid, &abort).abort_parameters(), abort);
    let connect: Connect = sqe.connect_parameters();
    assert_eq!(Sqe::connect(cid, &connect).connect_parameters(), connect);
    let property = sqe.property_access();
    assert_eq!(Sqe::property_get(cid, property).property_access(), property);
    let range: IoRange = sqe.io_range();
    assert_eq!(Sqe::write(cid, range.nsid, range.blocks).with_control(range.control).io_range(), range);
    let dsm = sqe.dataset_management_parameters();
    let again = Sqe::dataset_management(cid, dsm.nsid, dsm.range_count, dsm.attributes).unwrap();
    assert_eq!(again.dataset_management_parameters(), dsm);
    assert_eq!(again.with_fuse(sqe.fuse()).fuse(), sqe.fuse());
}

fn identify_accessors(bytes: &[u8]) {
    if let Ok(id) = IdentifyController::ref_from(bytes) {
        show(id);
        show(&(id.max_transfer_bytes(u32::MAX), id.in_capsule_bytes(), id.check_for_rdma(id.cntlid())));
        show(&(id.abort_limit(), id.error_log_entries(), id.power_states(), id.retry_delay(2), id.retry_delay(3)));
        show(&(id.response_capsule_bytes(), id.subsystem_nqn(), id.psd[31]));
    }
    if let Ok(id) = IdentifyNamespace::ref_from(bytes) {
        show(id);
        show(&(id.block_size().map_err(|error| error.to_string()), id.format_count(), id.write_zeroes_may_deallocate()));
        show(&IndependentNamespace::new(id, true));
    }
    if let Ok(list) = NamespaceList::ref_from(bytes) {
        show(list);
        show(&(list.is_full(), list.is_overflow()));
    }
    if let Ok(id) = IoIdentifyController::ref_from(bytes) {
        show(&(id, id.max_write_zeroes_bytes(4096)));
    }
    show(&IndependentNamespace::ref_from(bytes));
    if let Ok(ids) = NamespaceIdentifiers::from_wire(bytes) {
        assert_eq!(NamespaceIdentifiers::from_wire(&ids.to_wire()), Ok(ids));
    }
}

fn log_accessors(bytes: &[u8]) {
    show(&ErrorEntry::read_from(bytes));
    show(&SmartLog::read_from(bytes));
    show(&CommandEffectsLog::read_from(bytes));
    show(&AnaHeader::read_from(bytes));
    show(&AnaGroupHeader::read_from(bytes));
    if let Ok(log) = FirmwareSlotLog::read_from(bytes) {
        show(&(log, (0..=u8::MAX).map(|slot| log.revision(slot)).collect::<Vec<_>>()));
    }
    if let Ok(header) = DiscoveryHeader::from_prefix(bytes) {
        show(&(header, header.log_bytes()));
    }
    if let Ok(entry) = DiscoveryEntry::read_from(bytes) {
        show(&(entry, entry.to_string(), entry.port(), entry.cntlid(), entry.max_admin_queue_entries()));
    }
    if let Ok(groups) = ana_groups(bytes) {
        assert_eq!(ana_groups(&ana_log(0, &groups, false)), Ok(groups));
    }
}

fn dword_accessors(dword: u32) {
    show(&ConnectResult::from_wire(dword));
    show(&ConnectRefusal::from_completion(StatusCode::CONNECT_INVALID_HOST.do_not_retry(), dword).to_string());
    show(&(NumberOfQueues::from_wire(dword), AsyncEventConfiguration::from_bits(dword), KeepAliveTimer::from_wire(dword)));
    show(&(VolatileWriteCache::from_wire(dword), wants_extended_host_identifier(dword)));
    show(&(AsyncEvent::from_wire(dword), AsyncEvent::from_wire(dword).configuration()));
    show(&(ControllerConfiguration::from_bits(dword), ControllerStatus::from_bits(dword), Version::from_bits(dword)));
    show(&(ReadyTimeouts::from_bits(dword).with_media(), ReadyTimeouts::from_bits(dword).independent_of_media()));
    assert_eq!(AsyncEvent::from_wire(dword).to_wire(), dword & 0x00FF_FF07);
    assert_eq!(KeepAliveTimer::from_wire(dword).to_wire(), dword);
    if let Some(queues) = NumberOfQueues::from_wire(dword) {
        assert_eq!(queues.to_wire(), dword);
    }
    let cc = ControllerConfiguration::from_bits(dword);
    assert_eq!(cc.with_command_set(cc.command_set()).with_shutdown(cc.shutdown()).with_enable(cc.is_enabled()), cc);
}

fn cm_accessors(bytes: &[u8], request: &QueueRequest) {
    match QueueRequest::from_wire(bytes) {
        Ok(request) => {
            assert_eq!(QueueRequest::from_wire(&request.to_wire()), Ok(request));
            show(&request.check_sizes(QueueSize::MIN));
        }
        Err(error) => show(&(error.to_string(), error.reject().to_wire())),
    }
    show(&QueueAccept::from_wire(bytes));
    if let Ok(reject) = QueueReject::from_wire(bytes) {
        show(&reject.explain(request).to_string());
    }
}

/// Bytes of a length that matters to some parser, or is one off.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    const LENGTHS: [usize; 10] = [0, 4, 16, 20, 32, 64, 512, 1024, 4096, 4160];
    let length = proptest::sample::select(&LENGTHS[..]).prop_flat_map(|len: usize| len.saturating_sub(1)..=len + 1);
    // Mostly zeros, too: lists and texts end at the first zero.
    let sparse = prop_oneof![3 => Just(0_u8), 1 => any::<u8>()];
    length.prop_flat_map(move |len| prop_oneof![vec(any::<u8>(), len), vec(sparse.clone(), len)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_accessor_of_a_capsule_panics(bytes in bytes(), kind in proptest::sample::select(&[0x40_u8, 0x4F, 0x01, 0x31, 0xFF][..])) {
        let mut bytes = bytes;
        if let Some(identifier) = bytes.get_mut(39) {
            *identifier = kind;
        }
        if let Ok((sqe, data)) = Sqe::split_capsule(&bytes) {
            sqe_accessors(sqe, data);
            sqe_round_trips(sqe);
        } else {
            prop_assert!(bytes.len() < 64);
        }
    }

    #[test]
    fn no_accessor_of_a_completion_panics(bytes in bytes()) {
        if let Ok(cqe) = Cqe::read_from(&bytes) {
            show(&cqe);
            show(&(cqe.status().code.kind(), cqe.status().is_retryable()));
            let again = Cqe::new(cqe.cid(), cqe.sqid(), cqe.sqhd(), cqe.status()).with_result(cqe.result());
            prop_assert_eq!(again.as_bytes()[..14].to_vec(), bytes[..14].to_vec());
        } else {
            prop_assert!(bytes.len() < 16);
        }
    }

    #[test]
    fn no_accessor_of_identify_panics(bytes in bytes()) {
        identify_accessors(&bytes);
    }

    #[test]
    fn no_accessor_of_a_log_panics(bytes in bytes(), offset: u64, short in 0_u64..5000) {
        log_accessors(&bytes);
        prop_assert_eq!(window(&bytes, offset, 64).is_some(), offset <= bytes.len() as u64);
        prop_assert_eq!(window(&bytes, short, 64).is_some(), short <= bytes.len() as u64);
    }

    #[test]
    fn no_accessor_of_a_dword_panics(dword: u32, qword: u64) {
        dword_accessors(dword);
        show(&Cap::from_bits(qword));
    }

    #[test]
    fn no_accessor_of_connect_data_panics(bytes in bytes()) {
        if let Ok(data) = ConnectData::read_from(&bytes) {
            show(&data);
            show(&(data.subsystem_nqn(), data.host_nqn(), data.host_id().is_zero()));
        } else {
            prop_assert!(bytes.len() < 1024);
        }
    }

    #[test]
    fn no_private_data_panics(bytes in bytes(), format_is_right: bool, qid: u16, status: u16) {
        let request = QueueRequest::new(Qid::new(qid), QueueSize::MAX, Cntlid::new(qid));
        let mut bytes = bytes;
        if format_is_right && bytes.len() >= 4 {
            bytes[..2].fill(0);
            bytes[2..4].copy_from_slice(&(status % 12).to_le_bytes());
        }
        cm_accessors(&bytes, &request);
    }

    #[test]
    fn any_text_is_a_name_or_an_error(text in ".{0,240}", tail in "[a-z0-9.:-]{0,80}") {
        for name in [text, format!("nqn.2026-11.{tail}"), format!("nqn.2014-08.org.nvmexpress:uuid:{tail}")] {
            match Nqn::new(&name) {
                Ok(nqn) => prop_assert_eq!(Nqn::from_wire(&nqn.to_wire()), Ok(nqn)),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }
}
