//! Properties, Identify structures and logs of the capture.

use std::time::Duration;

use godwit_nvme::feature::AsyncEventConfiguration;
use godwit_nvme::identify::{
    ControllerAttributes, ControllerType, IoIdentifyController, LogPageAttributes, MultiPath, NamespaceFeatures, NamespaceSharing,
    OptionalNvmCommands, SglSupport, WriteCache,
};
use godwit_nvme::log::{
    AddressFamily, AnaState, CommandEffects, CommandEffectsLog, DiscoveryEntry, DiscoveryHeader, ErrorEntry, ParameterLocation,
    RdmaProvider, SmartLog, SubsystemType, TransportRequirements, TransportType, ana_groups, ana_log,
};
use godwit_nvme::sqe::{Cns, GetLogPage, Identify};
use godwit_nvme::*;

use crate::capture::Exchange;
use crate::{admin, cqe, discovery, keyed, sqe};

#[test]
fn cap_of_the_kernel_is_what_our_builder_makes() {
    let cap = Cap::from_bits(cqe(&admin().exchanges[1]).result());
    assert_eq!(cap.max_queue_entries().entries(), 128);
    assert_eq!(cap.ready_timeout(), Duration::from_millis(7500));
    assert!(cap.supports_nvm() && cap.supports_selectable_command_sets());
    assert!(!cap.supports_ready_with_media() && !cap.supports_subsystem_reset() && !cap.supports_admin_only());
    // The kernel leaves CQR out.
    assert!(!cap.requires_contiguous_queues());
    let ours = Cap::new(QueueSize::new(128).unwrap(), Duration::from_millis(7500));
    let ours = ours.with_selectable_command_sets(true);
    assert!(ours.requires_contiguous_queues());
    assert_eq!(ours.bits(), cap.bits() | 1 << 16);
}

#[test]
fn identify_controller_of_the_kernel_is_what_our_builder_makes() {
    let exchange = &admin().exchanges[8];
    let sqe = sqe(exchange);
    assert_eq!(AdminCommand::parse(&sqe), AdminCommand::Identify(Identify::new(Cns::CONTROLLER, Nsid::NONE)));
    assert_eq!(keyed(&sqe), (4096, Rkey::new(0xAFCA_5B02)));
    let id = IdentifyController::read_from(&exchange.written).unwrap();

    assert_eq!(id.sn.as_str(), Some("ddd55dd843c51aceea5d"));
    assert_eq!(id.mn.as_str(), Some("Linux"));
    assert_eq!(id.fr.as_str(), Some("6.1.0-57"));
    assert_eq!(id.max_transfer_bytes(4096), Some(1 << 20));
    assert_eq!(id.in_capsule_bytes(), 4096);
    assert_eq!(id.keep_alive_granularity(), Some(Duration::from_secs(1)));
    assert_eq!(id.subsystem_nqn().unwrap().as_str(), "tsub");
    assert_eq!(id.check_for_rdma(Cntlid::new(1)), Ok(()));

    let mut ours = IdentifyController::new();
    ours.sn = Text::new("ddd55dd843c51aceea5d").unwrap();
    ours.mn = Text::new("Linux").unwrap();
    ours.fr = Text::new("6.1.0-57").unwrap();
    ours.rab = 6;
    ours.cmic = MultiPath::MULTIPLE_PORTS | MultiPath::MULTIPLE_CONTROLLERS | MultiPath::ANA_REPORTING;
    ours.set_max_transfer_bytes(1 << 20);
    ours.set_cntlid(Cntlid::new(1));
    ours.set_version(Version::V1_3);
    ours.oaes = AsyncEventConfiguration::NAMESPACE_ATTRIBUTE | AsyncEventConfiguration::ANA_CHANGE;
    ours.ctratt = ControllerAttributes::HOST_ID_128_BIT | ControllerAttributes::TRAFFIC_BASED_KEEP_ALIVE;
    ours.cntrltype = ControllerType::IO;
    ours.set_abort_limit(4);
    ours.set_async_event_request_limit(4);
    ours.set_error_log_entries(128);
    ours.frmw = 3;
    ours.lpa = LogPageAttributes::SMART_PER_NAMESPACE | LogPageAttributes::COMMAND_EFFECTS | LogPageAttributes::EXTENDED_DATA;
    ours.set_keep_alive_granularity(Duration::from_secs(1));
    ours.anatt = 10;
    ours.anacap = 0x1F;
    ours.anagrpmax = 128.into();
    ours.nanagrpid = 128.into();
    ours.set_max_outstanding_commands(1024);
    ours.nn = 1024.into();
    ours.mnan = 1024.into();
    ours.oncs = OptionalNvmCommands::DATASET_MANAGEMENT | OptionalNvmCommands::WRITE_ZEROES;
    ours.vwc = WriteCache::PRESENT;
    ours.nwpc = 1;
    ours.set_in_capsule_bytes(4096);
    ours.set_subsystem_nqn(&Nqn::of_any_form("tsub").unwrap());
    ours.psd[0].mp = 0x9C4.into();
    ours.psd[0].enlat = 16.into();
    ours.psd[0].exlat = 4.into();
    assert_eq!(ours.as_bytes()[..], exchange.written);
    assert_eq!(id.sgls, SglSupport::SUPPORTED | SglSupport::KEYED | SglSupport::OFFSET);
}

#[test]
fn identify_discovery_controller_says_so() {
    let id = IdentifyController::read_from(&discovery().exchanges[8].written).unwrap();
    assert_eq!(id.cntrltype, ControllerType::DISCOVERY);
    assert_eq!(id.oaes, AsyncEventConfiguration::DISCOVERY_CHANGE);
    assert!(id.subsystem_nqn().unwrap().is_discovery());
    assert_eq!(id.check_for_rdma(Cntlid::new(1)), Ok(()));
}

/// The exchange of the first Identify of one structure.
fn identify(cns: Cns) -> Exchange {
    let wanted =
        |exchange: &Exchange| sqe(exchange).admin_opcode() == AdminOpcode::IDENTIFY && sqe(exchange).identify_parameters().cns == cns;
    admin().exchanges.into_iter().find(wanted).expect("the capture has one")
}

#[test]
fn identify_namespace_of_the_kernel_is_what_our_builder_makes() {
    let exchange = identify(Cns::NAMESPACE);
    assert_eq!(sqe(&exchange).nsid(), Nsid::new(1));
    let ns = IdentifyNamespace::read_from(&exchange.written).unwrap();
    assert_eq!(ns.size_blocks(), 0x1F40_0000);
    assert_eq!(ns.block_size(), Ok(BlockSize::B512));
    assert_eq!((ns.format_count(), ns.format_index()), (1, 0));
    assert!(ns.is_present() && !ns.is_write_protected() && !ns.deallocated_reads_zeroes());
    assert_eq!((ns.nguid(), ns.eui64()), (None, None));

    let mut ours = IdentifyNamespace::new(0x1F40_0000, BlockSize::B512);
    ours.nvmcap = 0.into();
    ours.nsfeat = NamespaceFeatures::ATOMICS_VALID | NamespaceFeatures::OPTIMAL_IO_VALID;
    ours.nmic = NamespaceSharing::SHARED;
    ours.anagrpid = 1.into();
    assert_eq!(ours.as_bytes()[..], exchange.written);
}

#[test]
fn namespaces_are_listed_and_identified() {
    let list = identify(Cns::ACTIVE_NAMESPACES);
    assert_eq!(NamespaceList::read_from(&list.written).unwrap().iter().collect::<Vec<_>>(), [Nsid::new(1)]);
    assert_eq!(NamespaceList::active_above(Nsid::NONE, [Nsid::new(1)]).as_bytes()[..], list.written);

    let descriptors = identify(Cns::NAMESPACE_DESCRIPTORS);
    let ids = NamespaceIdentifiers::from_wire(&descriptors.written).unwrap();
    assert_eq!(ids.uuid.unwrap().to_string(), "4808eecf-fbd1-4cc3-8c01-46b850293e8c");
    assert_eq!((ids.nguid, ids.eui64, ids.csi), (None, None, Some(sqe::Csi::NVM)));
    assert_eq!(ids.to_wire()[..], descriptors.written);

    let io = identify(Cns::IO_CONTROLLER);
    assert_eq!(IoIdentifyController::read_from(&io.written).unwrap(), IoIdentifyController::zeroed());
}

#[test]
fn an_unknown_cns_fails_and_is_in_the_error_log() {
    let failed = identify(Cns::IO_NAMESPACE);
    let expected = Status { more: true, ..StatusCode::INVALID_FIELD.do_not_retry() };
    assert_eq!(cqe(&failed).status(), expected);
    assert_eq!(failed.written, []);

    let log = &admin().exchanges[28];
    let AdminCommand::GetLogPage(parameters) = AdminCommand::parse(&sqe(log)) else { panic!() };
    assert_eq!(parameters, GetLogPage::new(LogId::ERROR, DwordCount::from_bytes(64).unwrap()));
    let entry = ErrorEntry::read_from(&log.written).unwrap();
    assert_eq!(entry.count(), 1);
    assert_eq!((entry.sqid(), entry.cid()), (Qid::ADMIN, sqe(&failed).cid()));
    assert_eq!(entry.status(), StatusCode::INVALID_FIELD.do_not_retry());
    assert_eq!(entry.parameter(), Some(ParameterLocation { byte: 40, bit: 0 }));
    assert_eq!((entry.nsid(), entry.lba()), (Nsid::new(1), Lba::new(0)));
    let ours = ErrorEntry::new(1, Qid::ADMIN, Cid::new(0x2016), entry.status())
        .at_parameter(ParameterLocation { byte: 40, bit: 0 })
        .at_block(Nsid::new(1), Lba::new(0));
    let mut theirs = log.written.clone();
    assert_eq!(theirs[29], 0, "the kernel leaves the transport type out");
    theirs[29] = TransportType::RDMA.code();
    assert_eq!(ours.as_bytes()[..], theirs);
}

#[test]
fn smart_log_counts_what_was_done() {
    let exchange = &admin().exchanges[26];
    let AdminCommand::GetLogPage(parameters) = AdminCommand::parse(&sqe(exchange)) else { panic!() };
    assert_eq!(parameters, GetLogPage::new(LogId::SMART, DwordCount::from_bytes(512).unwrap()));
    let log = SmartLog::read_from(&exchange.written).unwrap();
    assert_eq!((log.data_units_read(), log.data_units_written()), (1, 1));
    assert_eq!((log.host_reads.get(), log.host_writes.get()), (9, 5));
    assert_eq!((log.error_log_entries.get(), log.unsafe_shutdowns.get(), log.media_errors.get()), (1, 0, 0));
    let mut ours = SmartLog::zeroed();
    ours.set_bytes_transferred(1, 512_000);
    ours.host_reads = 9.into();
    ours.host_writes = 5.into();
    ours.error_log_entries = 1.into();
    assert_eq!(ours.as_bytes()[..], exchange.written);
}

#[test]
fn effects_log_names_what_the_kernel_supports() {
    let log = CommandEffectsLog::read_from(&admin().exchanges[9].written).unwrap();
    assert!(log.admin(AdminOpcode::KEEP_ALIVE).contains(CommandEffects::SUPPORTED));
    assert!(log.io(IoOpcode::DATASET_MANAGEMENT).contains(CommandEffects::SUPPORTED));
    assert!(log.io(IoOpcode::COMPARE).is_empty());
    let mut ours = CommandEffectsLog::zeroed();
    for opcode in [0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18] {
        ours.set_admin(AdminOpcode::new(opcode), CommandEffects::SUPPORTED);
    }
    for opcode in [0x00, 0x01, 0x02, 0x08, 0x09] {
        ours.set_io(IoOpcode::new(opcode), CommandEffects::SUPPORTED);
    }
    assert_eq!(ours, log);
}

#[test]
fn ana_log_has_one_optimized_group() {
    let exchange = &admin().exchanges[10];
    let parameters = sqe(exchange).get_log_page_parameters();
    assert_eq!((parameters.id, parameters.length.bytes()), (LogId::ANA, 8208));
    let groups = ana_groups(&exchange.written).unwrap();
    let [group] = &groups[..] else { panic!("{groups:?}") };
    assert_eq!((group.id, group.state, group.namespaces.as_slice()), (1, AnaState::OPTIMIZED, &[Nsid::new(1)][..]));
    let ours = ana_log(0, &groups, false);
    assert_eq!(ours, exchange.written[..ours.len()]);
}

#[test]
fn discovery_log_lists_itself_and_the_subsystem() {
    let queue = discovery();
    let header = DiscoveryHeader::read_from(&queue.exchanges[12].written).unwrap();
    assert_eq!((header.generation(), header.entry_count(), header.record_format()), (2, 2, 0));
    assert_eq!(header, DiscoveryHeader::new(2, 2));
    assert!(sqe(&queue.exchanges[12]).get_log_page_parameters().retain_event);

    let log = &queue.exchanges[13];
    assert_eq!(sqe(log).get_log_page_parameters().length.bytes(), 3072);
    let first = DiscoveryEntry::read_from(&log.written[1024..]).unwrap();
    assert_eq!(first.subtype(), SubsystemType::CURRENT_DISCOVERY);
    assert!(first.subsystem_nqn().unwrap().is_discovery());
    let second = DiscoveryEntry::read_from(&log.written[2048..]).unwrap();
    assert_eq!((second.transport(), second.family()), (TransportType::RDMA, AddressFamily::IPV4));
    assert_eq!((second.subtype(), second.port_id()), (SubsystemType::NVM, 1));
    assert_eq!((second.cntlid(), second.max_admin_queue_entries()), (Cntlid::DYNAMIC, 32));
    assert_eq!((second.address().as_str(), second.port()), (Some("10.77.0.1"), Some(4420)));
    assert_eq!(second.provider(), Some(RdmaProvider::NOT_SPECIFIED));
    assert_eq!(second.treq, TransportRequirements::SQ_FLOW_CONTROL_DISABLE);
    assert_eq!(second.to_string(), "tsub at 10.77.0.1 port 4420");
}
