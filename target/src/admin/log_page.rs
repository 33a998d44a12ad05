//! Get Log Page.

use godwit_nvme::log::{CommandEffects, CommandEffectsLog, ErrorEntry, FirmwareSlotLog, SmartLog, window};
use godwit_nvme::sqe::GetLogPage;
use godwit_nvme::{AdminOpcode, IoOpcode, LogId, Nsid, StatusCode};
use zerocopy::little_endian::U128;

use super::About;
use super::identify::firmware_revision;
use crate::association::SubsystemIndex;
use crate::controller::Controller;
use crate::discovery;
use crate::limits::ERROR_LOG_ENTRIES;
use crate::request::{Refusal, location};

/// A room temperature, in kelvins: there is no sensor, and zero upsets tools.
const TEMPERATURE_KELVIN: u16 = 293;

/// The part of a log that the command asks for, up to the log's end: at most `len_bytes`.
pub(crate) fn log_page(command: &GetLogPage, len_bytes: usize, controller: &Controller, about: &About<'_>) -> Result<Vec<u8>, Refusal> {
    let unknown = Refusal::at(location::CDW10, StatusCode::INVALID_LOG_PAGE);
    let log = match (controller.association.subsystem, command.id) {
        (SubsystemIndex::Discovery, LogId::DISCOVERY) => {
            discovery::log(about.target, about.offer, &controller.association.host.nqn, about.local)
        }
        (_, LogId::ERROR) => errors(controller),
        (SubsystemIndex::Nvm(_), LogId::SMART) => smart(command.nsid, controller, about)?,
        (SubsystemIndex::Nvm(_), LogId::FIRMWARE_SLOTS) => FirmwareSlotLog::single(firmware_revision()).as_bytes().to_vec(),
        (SubsystemIndex::Nvm(_), LogId::CHANGED_NAMESPACES) => controller.pending.changed_namespaces().as_bytes().to_vec(),
        (SubsystemIndex::Nvm(_), LogId::COMMAND_EFFECTS) => effects().as_bytes().to_vec(),
        _ => return Err(unknown),
    };
    let bad_offset = Refusal::at(location::CDW12, StatusCode::INVALID_FIELD);
    if !command.offset_bytes.is_multiple_of(4) {
        return Err(bad_offset);
    }
    window(&log, command.offset_bytes, len_bytes).map(<[u8]>::to_vec).ok_or(bad_offset)
}

fn errors(controller: &Controller) -> Vec<u8> {
    let mut log: Vec<u8> = controller.association.errors().entries().flat_map(|entry| *entry.as_bytes()).collect();
    log.resize(ERROR_LOG_ENTRIES * ErrorEntry::LEN_BYTES, 0);
    log
}

fn smart(nsid: Nsid, controller: &Controller, about: &About<'_>) -> Result<Vec<u8>, Refusal> {
    let SubsystemIndex::Nvm(index) = controller.association.subsystem else {
        return Err(Refusal::at(location::CDW10, StatusCode::INVALID_LOG_PAGE));
    };
    let offered = &about.offer.subsystems[index];
    let namespaces = offered.subsystem.iter().flat_map(|subsystem| &subsystem.namespaces);
    let totals = if nsid == Nsid::NONE || nsid == Nsid::ALL {
        about.target.totals(namespaces.map(|namespace| namespace.store).chain(offered.former.iter().map(|namespace| namespace.store)))
    } else {
        let found = offered.subsystem.as_ref().and_then(|subsystem| subsystem.namespace(nsid));
        about.target.totals([found.ok_or(Refusal::at(location::NSID, StatusCode::INVALID_NAMESPACE_OR_FORMAT))?.store])
    };
    let mut smart = SmartLog::zeroed();
    smart.set_temperature_kelvin(TEMPERATURE_KELVIN);
    smart.available_spare = 100;
    smart.available_spare_threshold = 10;
    smart.set_bytes_transferred(totals.read_bytes.into(), totals.written_bytes.into());
    smart.host_reads = U128::new(totals.reads.into());
    smart.host_writes = U128::new(totals.writes.into());
    smart.unsafe_shutdowns = U128::new(totals.unsafe_shutdowns.into());
    smart.media_errors = U128::new(totals.media_errors.into());
    smart.error_log_entries = U128::new(controller.association.errors().count().into());
    smart.power_cycles = U128::new(1);
    smart.power_on_hours = U128::new(u128::from(about.now.as_nanos() / 3_600_000_000_000));
    Ok(smart.as_bytes().to_vec())
}

fn effects() -> CommandEffectsLog {
    let mut log = CommandEffectsLog::zeroed();
    let supported = CommandEffects::SUPPORTED;
    for opcode in [
        AdminOpcode::GET_LOG_PAGE,
        AdminOpcode::IDENTIFY,
        AdminOpcode::ABORT,
        AdminOpcode::SET_FEATURES,
        AdminOpcode::GET_FEATURES,
        AdminOpcode::ASYNC_EVENT_REQUEST,
        AdminOpcode::KEEP_ALIVE,
        AdminOpcode::FABRICS,
    ] {
        log.set_admin(opcode, supported);
    }
    for opcode in [IoOpcode::FLUSH, IoOpcode::READ, IoOpcode::COMPARE, IoOpcode::FABRICS] {
        log.set_io(opcode, supported);
    }
    for opcode in [IoOpcode::WRITE, IoOpcode::WRITE_ZEROES, IoOpcode::DATASET_MANAGEMENT] {
        log.set_io(opcode, supported | CommandEffects::CONTENT_CHANGE);
    }
    log
}
