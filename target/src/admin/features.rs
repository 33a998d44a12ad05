//! Get Features and Set Features.

use std::time::Duration;

use godwit_nvme::feature::{
    AsyncEventConfiguration, FeatureCapabilities, FeatureId, KeepAliveTimer, NumberOfQueues, Select, VolatileWriteCache,
    wants_extended_host_identifier,
};
use godwit_nvme::sqe::{GetFeatures, SetFeatures};
use godwit_nvme::{Nsid, StatusCode};

use super::About;
use crate::controller::Controller;
use crate::request::{Refusal, location};

/// The value of a feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Dword 0 of the completion.
    Dword(u32),
    /// Data.
    Data(Vec<u8>),
}

const UNKNOWN: Refusal = Refusal::at(location::CDW10, StatusCode::INVALID_FIELD);
const BAD_VALUE: Refusal = Refusal::at(location::CDW11, StatusCode::INVALID_FIELD);

/// SMART events, and what OAES says.
const KNOWN_EVENTS: AsyncEventConfiguration =
    AsyncEventConfiguration::from_bits(0x1F | AsyncEventConfiguration::NAMESPACE_ATTRIBUTE.bits());

const DISCOVERY_EVENTS: AsyncEventConfiguration = AsyncEventConfiguration::DISCOVERY_CHANGE;

/// Whether this controller has a feature, and whether the host may change it.
fn capabilities(id: FeatureId, controller: &Controller) -> Option<FeatureCapabilities> {
    match id {
        FeatureId::ASYNC_EVENT_CONFIGURATION | FeatureId::KEEP_ALIVE_TIMER => Some(FeatureCapabilities::CHANGEABLE),
        FeatureId::HOST_IDENTIFIER => Some(FeatureCapabilities::NONE),
        _ if controller.is_discovery() => None,
        FeatureId::NUMBER_OF_QUEUES => Some(FeatureCapabilities::CHANGEABLE),
        FeatureId::VOLATILE_WRITE_CACHE => Some(FeatureCapabilities::NONE),
        FeatureId::ARBITRATION | FeatureId::POWER_MANAGEMENT | FeatureId::TEMPERATURE_THRESHOLD | FeatureId::ERROR_RECOVERY => {
            Some(FeatureCapabilities::NONE)
        }
        _ => None,
    }
}

/// Features of the controller are named with namespace 0 or all.
fn check_nsid(nsid: Nsid) -> Result<(), Refusal> {
    if nsid == Nsid::NONE || nsid == Nsid::ALL {
        Ok(())
    } else {
        Err(Refusal::at(location::NSID, StatusCode::FEATURE_NOT_NAMESPACE_SPECIFIC))
    }
}

/// Get Features.
pub(crate) fn get(command: &GetFeatures, controller: &Controller, about: &About<'_>) -> Result<Value, Refusal> {
    let capabilities = capabilities(command.id, controller).ok_or(UNKNOWN)?;
    check_nsid(command.nsid)?;
    match command.select {
        Select::Capabilities => return Ok(Value::Dword(capabilities.bits())),
        Select::Reserved(_) => return Err(UNKNOWN),
        // Nothing is saved, so that the saved value is the default.
        Select::Current | Select::Default | Select::Saved => {}
    }
    let current = command.select == Select::Current;
    Ok(Value::Dword(match command.id {
        FeatureId::NUMBER_OF_QUEUES => queues(about),
        FeatureId::VOLATILE_WRITE_CACHE => VolatileWriteCache { enabled: true }.to_wire(),
        FeatureId::ASYNC_EVENT_CONFIGURATION if current => controller.events.bits(),
        FeatureId::KEEP_ALIVE_TIMER if current => KeepAliveTimer(controller.keep_alive()).to_wire(),
        FeatureId::HOST_IDENTIFIER => {
            if !wants_extended_host_identifier(command.value) {
                return Err(BAD_VALUE);
            }
            return Ok(Value::Data(controller.association.host.id.0.to_vec()));
        }
        _ => 0,
    }))
}

/// Set Features: dword 0 of the completion.
pub(crate) fn set(command: &SetFeatures, controller: &mut Controller, about: &About<'_>) -> Result<u32, Refusal> {
    let capabilities = capabilities(command.id, controller).ok_or(UNKNOWN)?;
    if command.save {
        return Err(Refusal::at(location::CDW10, StatusCode::FEATURE_NOT_SAVEABLE));
    }
    check_nsid(command.nsid)?;
    match command.id {
        FeatureId::NUMBER_OF_QUEUES => {
            NumberOfQueues::from_wire(command.value).ok_or(BAD_VALUE)?;
            if about.target.associations.has_members(&controller.association) {
                return Err(StatusCode::COMMAND_SEQUENCE_ERROR.do_not_retry().into());
            }
            Ok(queues(about))
        }
        FeatureId::ASYNC_EVENT_CONFIGURATION => {
            let wanted = AsyncEventConfiguration::from_bits(command.value);
            let known = if controller.is_discovery() { DISCOVERY_EVENTS } else { KNOWN_EVENTS };
            if !known.contains(wanted) {
                return Err(BAD_VALUE);
            }
            controller.events = wanted;
            Ok(0)
        }
        FeatureId::KEEP_ALIVE_TIMER => {
            controller.set_keep_alive(Duration::from_millis(u64::from(command.value)), about.now);
            Ok(0)
        }
        FeatureId::HOST_IDENTIFIER => Err(StatusCode::COMMAND_SEQUENCE_ERROR.do_not_retry().into()),
        // The cache below us is not ours to switch off; a host that wants it on gets what it wants.
        FeatureId::VOLATILE_WRITE_CACHE if VolatileWriteCache::from_wire(command.value).enabled => Ok(0),
        _ if !capabilities.contains(FeatureCapabilities::CHANGEABLE) => {
            Err(Refusal::at(location::CDW10, StatusCode::FEATURE_NOT_CHANGEABLE))
        }
        _ => Err(UNKNOWN),
    }
}

/// The number of I/O queues that every controller gets.
fn queues(about: &About<'_>) -> u32 {
    NumberOfQueues::pairs(about.target.limits.io_queues).map_or(0, NumberOfQueues::to_wire)
}
