//! Identify.

use godwit_nvme::feature::AsyncEventConfiguration;
use godwit_nvme::identify::{
    ControllerAttributes, ControllerType, IdentifyController, IdentifyNamespace, IndependentNamespace, IoIdentifyController,
    LogPageAttributes, MultiPath, NamespaceIdentifiers, NamespaceList, NamespaceSharing, OptionalNvmCommands, WriteCache,
};
use godwit_nvme::sqe::{Cns, Csi, Identify};
use godwit_nvme::{Nguid, Nqn, Nsid, StatusCode, Text};
use zerocopy::little_endian::{U16, U32};

use super::About;
use crate::controller::{Controller, VERSION};
use crate::limits::{ABORT_COMMANDS, ASYNC_EVENT_REQUESTS, ERROR_LOG_ENTRIES, KEEP_ALIVE_GRANULARITY, MAX_NSID, MAX_TRANSFER_BYTES};
use crate::request::{Refusal, location};
use crate::subsystem::{Namespace, Subsystem};

/// Model and serial number of the discovery controller.
const DISCOVERY_MODEL: &str = "Godwit discovery";
const DISCOVERY_SERIAL: &str = "0";

/// The 4096 bytes that Identify is answered with.
pub(crate) fn identify(command: &Identify, controller: &Controller, about: &About<'_>) -> Result<Vec<u8>, Refusal> {
    let unknown = Refusal::at(location::CDW10, StatusCode::INVALID_FIELD);
    if controller.is_discovery() {
        return match command.cns {
            Cns::CONTROLLER => Ok(discovery_controller(controller, about).as_bytes().to_vec()),
            _ => Err(unknown),
        };
    }
    // One that was removed a moment ago: the association is about to end.
    let removed = Refusal::from(StatusCode::INTERNAL_ERROR.retryable());
    let subsystem = about.offer.subsystem(controller.association.subsystem).ok_or(removed)?;
    match command.cns {
        Cns::NAMESPACE => Ok(namespace_of(subsystem, command.nsid)?.map_or(vec![0; 4096], |found| found.as_bytes().to_vec())),
        Cns::CONTROLLER => Ok(io_controller(subsystem, controller, about).as_bytes().to_vec()),
        Cns::ACTIVE_NAMESPACES => active(subsystem, command.nsid),
        Cns::NAMESPACE_DESCRIPTORS => descriptors(subsystem, command.nsid),
        Cns::IO_NAMESPACE | Cns::IO_CONTROLLER | Cns::IO_ACTIVE_NAMESPACES if command.csi != Csi::NVM => {
            Err(Refusal::at(location::CDW11, StatusCode::INVALID_FIELD))
        }
        // Without formats that need it, the structure of the NVM command set says nothing.
        Cns::IO_NAMESPACE => namespace_of(subsystem, command.nsid).map(|_| vec![0; 4096]),
        Cns::IO_CONTROLLER => Ok(IoIdentifyController::zeroed().as_bytes().to_vec()),
        Cns::IO_ACTIVE_NAMESPACES => active(subsystem, command.nsid),
        Cns::INDEPENDENT_NAMESPACE => Ok(namespace_of(subsystem, command.nsid)?
            .map_or(vec![0; 4096], |found| IndependentNamespace::new(&found, true).as_bytes().to_vec())),
        _ => Err(unknown),
    }
}

const BAD_NSID: Refusal = Refusal::at(location::NSID, StatusCode::INVALID_NAMESPACE_OR_FORMAT);

/// The structure of a namespace; `None` for an identifier that could be one but is not.
fn namespace_of(subsystem: &Subsystem, nsid: Nsid) -> Result<Option<IdentifyNamespace>, Refusal> {
    if nsid == Nsid::NONE || nsid.get() > MAX_NSID {
        return Err(BAD_NSID);
    }
    Ok(subsystem.namespace(nsid).map(namespace))
}

fn namespace(namespace: &Namespace) -> IdentifyNamespace {
    let mut id = IdentifyNamespace::new(namespace.size_blocks(), namespace.block_size);
    id.nmic = NamespaceSharing::SHARED;
    id.set_nguid(Nguid(namespace.nguid));
    id.set_write_protected(namespace.read_only);
    id.set_deallocate_features(true, namespace.can_deallocate);
    id
}

fn active(subsystem: &Subsystem, above: Nsid) -> Result<Vec<u8>, Refusal> {
    if above.get() >= 0xFFFF_FFFE {
        return Err(BAD_NSID);
    }
    let all = subsystem.namespaces.iter().map(|namespace| namespace.nsid);
    Ok(NamespaceList::active_above(above, all).as_bytes().to_vec())
}

fn descriptors(subsystem: &Subsystem, nsid: Nsid) -> Result<Vec<u8>, Refusal> {
    let namespace = subsystem.namespace(nsid).ok_or(BAD_NSID)?;
    let identifiers =
        NamespaceIdentifiers { eui64: None, nguid: Some(Nguid(namespace.nguid)), uuid: Some(namespace.uuid), csi: Some(Csi::NVM) };
    Ok(identifiers.to_wire().to_vec())
}

/// What both kinds of controller say.
fn controller(nqn: &Nqn, serial: &str, model: &str, controller: &Controller, about: &About<'_>) -> IdentifyController {
    let limits = &about.target.limits;
    let mut id = IdentifyController::new();
    // Serial and model were checked when the subsystem was configured.
    id.sn = Text::new(serial).unwrap_or(Text::BLANK);
    id.mn = Text::new(model).unwrap_or(Text::BLANK);
    id.fr = firmware_revision();
    id.set_cntlid(controller.association.cntlid);
    id.set_version(VERSION);
    id.set_max_transfer_bytes(MAX_TRANSFER_BYTES as u64);
    id.ctratt = ControllerAttributes::HOST_ID_128_BIT | ControllerAttributes::TRAFFIC_BASED_KEEP_ALIVE;
    id.set_abort_limit(u16::from(ABORT_COMMANDS));
    id.set_async_event_request_limit(u16::try_from(ASYNC_EVENT_REQUESTS).unwrap_or(1));
    id.set_error_log_entries(u16::try_from(ERROR_LOG_ENTRIES).unwrap_or(1));
    id.set_keep_alive_granularity(KEEP_ALIVE_GRANULARITY);
    id.set_max_outstanding_commands(u16::try_from(limits.io_queue_size.entries()).unwrap_or(u16::MAX));
    id.frmw = 0x03;
    id.lpa = LogPageAttributes::EXTENDED_DATA;
    id.set_subsystem_nqn(nqn);
    id.psd[0].mp = U16::new(0x9C4);
    id.psd[0].enlat = U32::new(0x10);
    id.psd[0].exlat = U32::new(4);
    id
}

fn io_controller(subsystem: &Subsystem, admin: &Controller, about: &About<'_>) -> IdentifyController {
    let mut id = controller(&subsystem.nqn, &subsystem.serial, &subsystem.model, admin, about);
    id.cmic = MultiPath::MULTIPLE_PORTS | MultiPath::MULTIPLE_CONTROLLERS;
    id.cntrltype = ControllerType::IO;
    id.oaes = AsyncEventConfiguration::NAMESPACE_ATTRIBUTE;
    id.lpa |= LogPageAttributes::COMMAND_EFFECTS | LogPageAttributes::SMART_PER_NAMESPACE;
    id.nn = U32::new(MAX_NSID);
    id.mnan = U32::new(MAX_NSID);
    id.oncs = OptionalNvmCommands::COMPARE | OptionalNvmCommands::DATASET_MANAGEMENT | OptionalNvmCommands::WRITE_ZEROES;
    id.vwc = WriteCache::PRESENT | WriteCache::FLUSH_ALL_DEFINED;
    id.set_in_capsule_bytes(u32::try_from(about.target.limits.in_capsule_bytes).unwrap_or(0));
    id
}

fn discovery_controller(admin: &Controller, about: &About<'_>) -> IdentifyController {
    let mut id = controller(&Nqn::discovery(), DISCOVERY_SERIAL, DISCOVERY_MODEL, admin, about);
    id.cntrltype = ControllerType::DISCOVERY;
    id.oaes = AsyncEventConfiguration::DISCOVERY_CHANGE;
    id
}

/// The version of this software, as far as it fits.
pub(crate) fn firmware_revision() -> Text<8> {
    let version = env!("CARGO_PKG_VERSION");
    Text::new(&version[..version.len().min(8)]).unwrap_or(Text::BLANK)
}
