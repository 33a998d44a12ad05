//! Connections, commands and completions of the capture.

use std::time::Duration;

use godwit_nvme::cm::{QueueAccept, QueueRequest};
use godwit_nvme::connect::{ConnectData, ConnectResult};
use godwit_nvme::dsm;
use godwit_nvme::feature::{AsyncEventConfiguration, FeatureId, NumberOfQueues};
use godwit_nvme::property::{CommandSetSelected, ShutdownNotification, ShutdownStatus};
use godwit_nvme::sqe::{Connect, DataDirection, DatasetManagementAttributes, IoControl, PropertyAccess};
use godwit_nvme::*;

use crate::{admin, cqe, discovery, io, keyed, sqe};

const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";

#[test]
fn there_are_four_queues() {
    let counts: Vec<_> = crate::queues().iter().map(|queue| queue.exchanges.len()).collect();
    assert_eq!(counts, [16, 38, 4, 9]);
}

#[test]
fn queues_are_asked_for_and_granted_by_private_data() {
    let expected = [(0, 32, 32, 32), (0, 32, 32, 32), (1, 128, 128, 128), (2, 128, 128, 128)];
    for (queue, (qid, hrqsize, hsqsize, crqsize)) in crate::queues().iter().zip(expected) {
        let request = QueueRequest::from_wire(&queue.request).unwrap();
        assert_eq!(request, QueueRequest::new(Qid::new(qid), QueueSize::new(hsqsize).unwrap(), Cntlid::new(0)));
        assert_eq!(request.host_receive_size, hrqsize);
        assert_eq!(request.to_wire()[..], queue.request);
        let accept = QueueAccept::from_wire(&queue.accept).unwrap();
        assert_eq!(accept.controller_receive_size, crqsize);
        assert_eq!(accept.to_wire()[..], queue.accept);
    }
}

#[test]
fn admin_connect_names_its_data_by_key() {
    let exchange = &admin().exchanges[0];
    let sqe = sqe(exchange);
    let expected = Connect::admin(QueueSize::new(32).unwrap(), Duration::from_secs(2));
    assert_eq!(AdminCommand::parse(&sqe), AdminCommand::Fabrics(FabricsCommand::Connect(expected)));
    assert_eq!(sqe.data_direction(), DataDirection::HostToController);
    assert_eq!(keyed(&sqe), (1024, Rkey::new(0xAFCA_5B01)));
    assert_eq!(exchange.invalidated, Some(0xAFCA_5B01));

    let data = ConnectData::read_from(&exchange.fetched).unwrap();
    let host_id = HostId([0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55]);
    let subsystem = Nqn::of_any_form("tsub").unwrap();
    assert_eq!(data, ConnectData::new(host_id, Cntlid::DYNAMIC, &subsystem, &Nqn::new(HOST_NQN).unwrap()));
    assert_eq!(data.host_nqn().unwrap().as_str(), HOST_NQN);
    assert_eq!(data.subsystem_nqn(), Ok(subsystem));

    assert_eq!(ConnectResult::from_wire(cqe(exchange).dw0()), ConnectResult::new(Cntlid::new(1)));
}

#[test]
fn discovery_connect_has_no_keep_alive() {
    let exchange = &discovery().exchanges[0];
    assert_eq!(sqe(exchange).connect_parameters().keep_alive, Duration::ZERO);
    let data = ConnectData::read_from(&exchange.fetched).unwrap();
    assert!(data.subsystem_nqn().unwrap().is_discovery());
}

#[test]
fn io_connect_carries_its_data_in_the_capsule() {
    for qid in [1, 2] {
        let exchange = &io(usize::from(qid)).exchanges[0];
        let (sqe, data) = Sqe::split_capsule(&exchange.capsule).unwrap();
        let expected = Connect::io(Qid::new(qid), QueueSize::new(128).unwrap());
        assert_eq!(IoCommand::parse(sqe), IoCommand::Fabrics(FabricsCommand::Connect(expected)));
        assert_eq!(sqe.sgl(), Ok(Sgl::InCapsule { offset: 0, length: 1024 }));
        let data = ConnectData::read_from(sgl::in_capsule_data(data, 0, 1024).unwrap()).unwrap();
        assert_eq!(data.cntlid(), Cntlid::new(1));
        assert_eq!(exchange.invalidated, None);
    }
}

#[test]
fn controller_is_enabled_and_shut_down_by_properties() {
    let mut log = Vec::new();
    for exchange in &admin().exchanges {
        match FabricsCommand::parse(&sqe(exchange)) {
            FabricsCommand::PropertyGet(property) if sqe(exchange).is_fabrics() => {
                log.push((property.offset, property.size, cqe(exchange).result()));
            }
            FabricsCommand::PropertySet(property, value) if sqe(exchange).is_fabrics() => {
                log.push((property.offset, property.size, value));
            }
            _ => {}
        }
    }
    let (four, eight) = (PropertySize::Four, PropertySize::Eight);
    let cap = 0x0000_0820_0F00_007F;
    assert_eq!(
        log,
        [
            (PropertyOffset::CAP, eight, cap),
            (PropertyOffset::CC, four, 0x0046_0060),
            (PropertyOffset::CC, four, 0x0046_0060),
            (PropertyOffset::CAP, eight, cap),
            (PropertyOffset::CC, four, 0x0046_0061),
            (PropertyOffset::CSTS, four, 1),
            (PropertyOffset::VS, four, 0x0001_0300),
            (PropertyOffset::CC, four, 0x0046_4061),
            (PropertyOffset::CSTS, four, 8),
        ]
    );
    let enabled = ControllerConfiguration::new(true).with_command_set(CommandSetSelected::All);
    assert_eq!(enabled.bits(), 0x0046_0061);
    assert_eq!(enabled.with_shutdown(ShutdownNotification::Normal).bits(), 0x0046_4061);
    assert_eq!(ControllerConfiguration::from_bits(0x0046_4061).shutdown(), ShutdownNotification::Normal);
    assert_eq!(ControllerStatus::from_bits(8).shutdown(), ShutdownStatus::Complete);
    assert_eq!(Version::from_bits(0x0001_0300), Version::V1_3);
}

#[test]
fn features_ask_for_queues_and_events() {
    let queue = admin();
    let queues = sqe(&queue.exchanges[12]).set_features_parameters();
    assert_eq!((queues.id, queues.save), (FeatureId::NUMBER_OF_QUEUES, false));
    assert_eq!(NumberOfQueues::from_wire(queues.value).unwrap().queue_pairs(), 2);
    assert_eq!(NumberOfQueues::from_wire(cqe(&queue.exchanges[12]).dw0()).unwrap().queue_pairs(), 128);
    let events = sqe(&queue.exchanges[13]).set_features_parameters();
    assert_eq!(events.id, FeatureId::ASYNC_EVENT_CONFIGURATION);
    let wanted = AsyncEventConfiguration::NAMESPACE_ATTRIBUTE | AsyncEventConfiguration::ANA_CHANGE;
    assert_eq!(events.value, wanted.bits());
    assert_eq!(AdminCommand::parse(&sqe(&queue.exchanges[14])), AdminCommand::AsyncEventRequest);
    assert_eq!(queue.exchanges[14].response, None);
}

#[test]
fn reads_and_writes_name_their_blocks_and_data() {
    let queue = io(2);
    let blocks = |count| BlockRange::new(Lba::new(0), BlockCount::new(count).unwrap());
    let commands: Vec<_> = queue.exchanges[1..].iter().map(|exchange| IoCommand::parse(&sqe(exchange))).collect();
    let range = |blocks| sqe::IoRange { nsid: Nsid::new(1), blocks, control: IoControl::NONE };
    let dsm = sqe::DatasetManagement { nsid: Nsid::new(1), range_count: 1, attributes: DatasetManagementAttributes::DEALLOCATE };
    assert_eq!(
        commands,
        [
            IoCommand::Read(range(BlockRange::new(Lba::new(0x18), BlockCount::new(8).unwrap()))),
            IoCommand::Write(range(blocks(8))),
            IoCommand::Write(range(blocks(16))),
            IoCommand::Write(range(blocks(256))),
            IoCommand::Read(range(blocks(8))),
            IoCommand::Read(range(blocks(256))),
            IoCommand::WriteZeroes(range(blocks(8))),
            IoCommand::DatasetManagement(dsm),
        ]
    );
    assert_eq!(sqe(&queue.exchanges[2]).sgl(), Ok(Sgl::InCapsule { offset: 0, length: 4096 }));
    assert_eq!(queue.exchanges[2].capsule.len(), 64 + 4096);
    for (index, len) in [(1, 4096), (5, 4096), (6, 131_072)] {
        let (length, key) = keyed(&sqe(&queue.exchanges[index]));
        assert_eq!((length, queue.exchanges[index].written.len()), (len, usize::try_from(len).unwrap()));
        assert_eq!(queue.exchanges[index].invalidated.map(Rkey::new), Some(key));
    }
    for (index, len) in [(3, 8192), (4, 131_072)] {
        assert_eq!(queue.exchanges[index].fetched.len(), len);
        assert_eq!(keyed(&sqe(&queue.exchanges[index])).0, u32::try_from(len).unwrap());
    }
    assert_eq!(IoCommand::parse(&sqe(&io(1).exchanges[3])), IoCommand::Flush(Nsid::new(1)));
}

#[test]
fn dataset_management_carries_its_range_in_the_capsule() {
    let exchange = &io(2).exchanges[8];
    let (sqe, data) = Sqe::split_capsule(&exchange.capsule).unwrap();
    assert_eq!(sqe.sgl(), Ok(Sgl::InCapsule { offset: 0, length: 16 }));
    assert_eq!(dsm::ranges(data, 1).unwrap(), [DsmRange::new(Lba::new(0), 8)]);
    assert_eq!(DsmRange::new(Lba::new(0), 8).as_bytes()[..], *data);
}

/// Encodes a command again from what was parsed of it.
fn again(sqe: &Sqe, admin: bool) -> Sqe {
    let cid = sqe.cid();
    let fabrics = |command| match command {
        FabricsCommand::Connect(connect) => Sqe::connect(cid, &connect),
        FabricsCommand::PropertyGet(property) => Sqe::property_get(cid, property),
        FabricsCommand::PropertySet(property, value) => Sqe::property_set(cid, property, value),
        other => panic!("{other:?}"),
    };
    let over =
        |make: fn(Cid, Nsid, BlockRange) -> Sqe, range: sqe::IoRange| make(cid, range.nsid, range.blocks).with_control(range.control);
    let bare = if admin {
        match AdminCommand::parse(sqe) {
            AdminCommand::Identify(identify) => Sqe::identify(cid, &identify),
            AdminCommand::GetLogPage(log) => Sqe::get_log_page(cid, &log),
            AdminCommand::SetFeatures(features) => Sqe::set_features(cid, &features),
            AdminCommand::AsyncEventRequest => Sqe::async_event_request(cid),
            AdminCommand::KeepAlive => Sqe::keep_alive(cid),
            AdminCommand::Fabrics(command) => fabrics(command),
            other => panic!("{other:?}"),
        }
    } else {
        match IoCommand::parse(sqe) {
            IoCommand::Flush(nsid) => Sqe::flush(cid, nsid),
            IoCommand::Write(range) => over(Sqe::write, range),
            IoCommand::Read(range) => over(Sqe::read, range),
            IoCommand::WriteZeroes(range) => over(Sqe::write_zeroes, range),
            IoCommand::DatasetManagement(dsm) => Sqe::dataset_management(cid, dsm.nsid, dsm.range_count, dsm.attributes).unwrap(),
            IoCommand::Fabrics(command) => fabrics(command),
            other => panic!("{other:?}"),
        }
    };
    bare.with_sgl(SglDescriptor::try_from(sqe.sgl().unwrap()).unwrap())
}

#[test]
fn every_capsule_is_encoded_again_to_the_same_bytes() {
    for queue in crate::queues() {
        let qid = QueueRequest::from_wire(&queue.request).unwrap().qid;
        for exchange in &queue.exchanges {
            let sqe = sqe(exchange);
            assert_eq!(sqe.check_flags(), Ok(()));
            assert_eq!(again(&sqe, qid.is_admin()).as_bytes()[..], exchange.capsule[..64], "{sqe:?}");
            let Some(response) = exchange.response else {
                continue;
            };
            let cqe = Cqe::read_from(&response).unwrap();
            let ours = Cqe::new(sqe.cid(), qid, cqe.sqhd(), cqe.status()).with_result(cqe.result());
            assert_eq!(ours.as_bytes(), &response, "{cqe:?}");
        }
    }
}

#[test]
fn submission_queue_head_moves_by_one_for_each_response() {
    for queue in crate::queues() {
        let size = QueueRequest::from_wire(&queue.request).unwrap().host_send_size;
        let mut head = Sqhd::new(0);
        for exchange in queue.exchanges.iter().filter(|exchange| exchange.response.is_some()) {
            head = head.next(size);
            assert_eq!(cqe(exchange).sqhd(), head);
        }
    }
}

#[test]
fn debug_output_reads_well() {
    let queue = admin();
    let cc = PropertyAccess { offset: PropertyOffset::CC, size: PropertySize::Four };
    assert_eq!(sqe(&queue.exchanges[2]).property_access(), cc);
    assert_eq!(
        format!("{:?}", sqe(&queue.exchanges[2])),
        "Sqe { command: PropertySet(PropertyAccess { offset: CC (14h), size: Four }, 4587616), \
         cid: Cid(4096), sgl: no data, .. }"
    );
    assert_eq!(
        format!("{:?}", cqe(&queue.exchanges[1])),
        "Cqe { cid: Cid(1), status: Status(success (000h)), result: 0x8200f00007f, sqid: Qid(0), sqhd: Sqhd(2) }"
    );
}
