//! A controller: its properties and its features.

use std::sync::Arc;
use std::time::Duration;

use godwit_nvme::feature::AsyncEventConfiguration;
use godwit_nvme::property::{CommandSetSelected, ShutdownNotification, ShutdownStatus};
use godwit_nvme::sqe::PropertyAccess;
use godwit_nvme::{
    AsyncEvent, Cap, ControllerConfiguration, ControllerStatus, PropertyOffset, PropertySize, QueueSize, StatusCode, Version,
};
use godwit_reactor::Time;

use crate::association::{Association, SubsystemIndex};
use crate::events::Events;
use crate::limits::{DISCOVERY_KEEP_ALIVE, KEEP_ALIVE_GRANULARITY};
use crate::request::{Refusal, location};

/// The version of the specification that we report.
pub(crate) const VERSION: Version = Version::V1_4;

/// CAP.TO: how long a host waits for a controller to get ready. It is ready at once.
const READY_TIMEOUT: Duration = Duration::from_millis(7500);

/// State of a controller beyond what its queues share.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) association: Arc<Association>,
    cap: Cap,
    cc: ControllerConfiguration,
    csts: ControllerStatus,
    /// Asynchronous events that the host wants.
    pub(crate) events: AsyncEventConfiguration,
    /// Asynchronous events that have happened.
    pub(crate) pending: Events,
    /// Asynchronous Event Requests held.
    pub(crate) event_requests: usize,
}

/// What a write to CC changes for the I/O queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    /// Nothing.
    None,
    /// The controller stopped working: its I/O queues have to go.
    Stopped,
}

impl Controller {
    /// A controller that a host has just connected to, with this keep-alive timeout (zero for none).
    pub(crate) fn new(association: Arc<Association>, queue_size: QueueSize, keep_alive: Duration, now: Time) -> Self {
        let discovery = association.subsystem == SubsystemIndex::Discovery;
        let keep_alive = if discovery && keep_alive.is_zero() { DISCOVERY_KEEP_ALIVE } else { round_up(keep_alive) };
        association.keep_alive.start(keep_alive, now);
        Self {
            association,
            cap: Cap::new(queue_size, READY_TIMEOUT),
            cc: ControllerConfiguration::default(),
            csts: ControllerStatus::default(),
            events: AsyncEventConfiguration::NONE,
            pending: Events::default(),
            event_requests: 0,
        }
    }

    /// The next event to tell the host, which has been told with that.
    pub(crate) fn next_event(&mut self) -> Option<AsyncEvent> {
        if self.is_ready() { self.pending.next(self.events) } else { None }
    }

    /// Whether it is for discovery only.
    pub(crate) fn is_discovery(&self) -> bool {
        self.association.subsystem == SubsystemIndex::Discovery
    }

    /// Whether commands other than fabrics commands are carried out.
    pub(crate) fn is_ready(&self) -> bool {
        self.csts.is_ready()
    }

    /// The keep-alive timeout; zero for none.
    pub(crate) fn keep_alive(&self) -> Duration {
        self.association.keep_alive.timeout()
    }

    /// Sets the keep-alive timeout, rounded up to what KAS says.
    pub(crate) fn set_keep_alive(&self, keep_alive: Duration, now: Time) {
        self.association.keep_alive.start(round_up(keep_alive), now);
    }

    /// Property Get.
    pub(crate) fn property(&self, access: PropertyAccess) -> Result<u64, Refusal> {
        check_size(access)?;
        match access.offset {
            PropertyOffset::CAP => Ok(self.cap.bits()),
            PropertyOffset::VS => Ok(u64::from(VERSION.bits())),
            PropertyOffset::CC => Ok(u64::from(self.cc.bits())),
            PropertyOffset::CSTS => Ok(u64::from(self.csts.bits())),
            _ => Err(Refusal::at(location::CDW11, StatusCode::INVALID_FIELD)),
        }
    }

    /// Property Set.
    pub(crate) fn set_property(&mut self, access: PropertyAccess, value: u64) -> Result<Transition, Refusal> {
        check_size(access)?;
        let cc = u32::try_from(value).map_err(|_| Refusal::at(location::CDW12, StatusCode::INVALID_FIELD))?;
        match access.offset {
            PropertyOffset::CC => Ok(self.configure(ControllerConfiguration::from_bits(cc))),
            _ => Err(Refusal::at(location::CDW11, StatusCode::INVALID_FIELD)),
        }
    }

    /// Writes CC.
    fn configure(&mut self, new: ControllerConfiguration) -> Transition {
        let old = std::mem::replace(&mut self.cc, new);
        let was_ready = self.csts.is_ready();
        if new.is_enabled() && !old.is_enabled() {
            let usable = self.can_use(new);
            self.csts = ControllerStatus::default().with_ready(usable).with_fatal(!usable);
        } else if !new.is_enabled() && old.is_enabled() {
            self.csts = ControllerStatus::default();
            self.forget_features();
        }
        let shuts_down = new.shutdown() != ShutdownNotification::None && old.shutdown() == ShutdownNotification::None;
        if shuts_down {
            // All that was acknowledged is in the backend; what a volatile cache there holds is the host's to flush.
            self.csts = self.csts.with_ready(false).with_shutdown(ShutdownStatus::Complete);
            self.cc = self.cc.with_enable(false);
        } else if new.shutdown() == ShutdownNotification::None {
            self.csts = self.csts.with_shutdown(ShutdownStatus::Normal);
        }
        self.association.set_ready(self.csts.is_ready() && !self.association.is_dying());
        if was_ready && !self.csts.is_ready() { Transition::Stopped } else { Transition::None }
    }

    fn can_use(&self, cc: ControllerConfiguration) -> bool {
        let entries = cc.io_sqe_size_log2() == ControllerConfiguration::IO_SQE_SIZE_LOG2
            && cc.io_cqe_size_log2() == ControllerConfiguration::IO_CQE_SIZE_LOG2;
        cc.page_bytes() == self.cap.min_page_bytes()
            && cc.arbitration() == 0
            && cc.command_set() == CommandSetSelected::Nvm
            && (entries || self.is_discovery())
    }

    fn forget_features(&mut self) {
        self.events = AsyncEventConfiguration::NONE;
        self.pending = Events::default();
    }
}

fn round_up(keep_alive: Duration) -> Duration {
    let unit = KEEP_ALIVE_GRANULARITY.as_millis();
    let millis = keep_alive.as_millis().div_ceil(unit) * unit;
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

fn check_size(access: PropertyAccess) -> Result<(), Refusal> {
    let known = access.offset.size().ok_or(Refusal::at(location::CDW11, StatusCode::INVALID_FIELD))?;
    if known == access.size && !matches!(access.size, PropertySize::Reserved(_)) {
        Ok(())
    } else {
        Err(Refusal::at(location::CDW10, StatusCode::INVALID_FIELD))
    }
}

#[cfg(test)]
mod tests {
    use godwit_nvme::{HostId, Nqn};

    use super::*;
    use crate::association::{Associations, Host, Waiter};
    use crate::queue::QueueKey;

    const CC: PropertyAccess = PropertyAccess { offset: PropertyOffset::CC, size: PropertySize::Four };
    const CSTS: PropertyAccess = PropertyAccess { offset: PropertyOffset::CSTS, size: PropertySize::Four };

    fn controller_of(subsystem: SubsystemIndex, keep_alive: Duration) -> Controller {
        let host = Host { nqn: Nqn::new("nqn.2026-11.org.example:host").unwrap(), id: HostId([1; 16]) };
        let waiter = Waiter { worker: 0, queue: QueueKey { index: 0, generation: 0 } };
        let association = Associations::new(1).open(host, subsystem, waiter).unwrap();
        Controller::new(association, QueueSize::new(1024).unwrap(), keep_alive, Time::default())
    }

    fn controller() -> Controller {
        controller_of(SubsystemIndex::Nvm(0), Duration::from_secs(5))
    }

    fn set(controller: &mut Controller, cc: u64) -> Transition {
        controller.set_property(CC, cc).unwrap()
    }

    fn status(controller: &Controller) -> u64 {
        controller.property(CSTS).unwrap()
    }

    #[test]
    fn capabilities_and_version_are_those_of_a_fabrics_controller() {
        let controller = controller();
        let cap = controller.property(PropertyAccess { offset: PropertyOffset::CAP, size: PropertySize::Eight }).unwrap();
        assert_eq!(cap, 0x0000_0020_0F01_03FF, "MQES 1023, CQR, TO 7.5 s, NVM command set, 4 KiB pages");
        let version = controller.property(PropertyAccess { offset: PropertyOffset::VS, size: PropertySize::Four }).unwrap();
        assert_eq!(version, 0x0001_0400);
    }

    #[test]
    fn a_host_enables_polls_and_shuts_down() {
        let mut controller = controller();
        assert_eq!(set(&mut controller, 0x0046_0000), Transition::None);
        assert_eq!((status(&controller), controller.is_ready()), (0, false));
        assert_eq!(set(&mut controller, 0x0046_0001), Transition::None);
        assert_eq!((status(&controller), controller.is_ready()), (1, true));
        assert!(controller.association.is_ready());
        assert_eq!(controller.property(CC).unwrap(), 0x0046_0001);
        assert_eq!(set(&mut controller, 0x0046_4001), Transition::Stopped);
        assert_eq!(status(&controller), 0b1000, "shutdown complete, not ready");
        assert!(!controller.association.is_ready());
    }

    #[test]
    fn disabling_stops_and_enabling_again_starts() {
        let mut controller = controller();
        set(&mut controller, 0x0046_0001);
        controller.events = AsyncEventConfiguration::NAMESPACE_ATTRIBUTE;
        assert_eq!(set(&mut controller, 0x0046_0000), Transition::Stopped);
        assert_eq!(status(&controller), 0);
        assert_eq!(controller.events, AsyncEventConfiguration::NONE);
        assert_eq!(set(&mut controller, 0x0046_0001), Transition::None);
        assert_eq!(status(&controller), 1);
    }

    #[test]
    fn a_configuration_that_cannot_be_used_is_fatal_until_disabled() {
        // IOSQES 7, IOCQES 5, MPS 1, AMS 1, CSS 6.
        for cc in [0x0047_0001, 0x0056_0001, 0x0046_0081, 0x0046_0801, 0x0046_0061] {
            let mut controller = controller();
            set(&mut controller, cc);
            assert_eq!(status(&controller), 0b10, "{cc:#x}");
            set(&mut controller, 0x0046_0000);
            set(&mut controller, 0x0046_0001);
            assert_eq!(status(&controller), 1, "{cc:#x}");
        }
        let mut discovery = controller_of(SubsystemIndex::Discovery, Duration::ZERO);
        set(&mut discovery, 1);
        assert_eq!(status(&discovery), 1, "a discovery controller has no I/O queues, whatever their entries");
    }

    #[test]
    fn unknown_properties_and_sizes_are_refused() {
        let mut controller = controller();
        let access = |offset, size| PropertyAccess { offset: PropertyOffset::new(offset), size };
        let invalid = |location| Refusal::at(location, StatusCode::INVALID_FIELD);
        assert_eq!(controller.property(access(0x30, PropertySize::Four)), Err(invalid(44)));
        assert_eq!(controller.property(access(0x00, PropertySize::Four)), Err(invalid(40)));
        assert_eq!(controller.property(access(0x14, PropertySize::Eight)), Err(invalid(40)));
        assert_eq!(controller.property(access(0x14, PropertySize::Reserved(2))), Err(invalid(40)));
        assert_eq!(controller.set_property(access(0x1C, PropertySize::Four), 0), Err(invalid(44)));
        assert_eq!(controller.set_property(access(0x20, PropertySize::Four), 0x4E56_4D65), Err(invalid(44)));
        assert_eq!(controller.set_property(CC, 1 << 32), Err(invalid(48)));
    }

    #[test]
    fn the_keep_alive_timeout_is_rounded_up_and_discovery_has_one() {
        let controller = controller_of(SubsystemIndex::Nvm(0), Duration::from_millis(4999));
        assert_eq!(controller.keep_alive(), Duration::from_secs(5));
        controller.set_keep_alive(Duration::from_millis(1), Time::default());
        assert_eq!(controller.keep_alive(), Duration::from_millis(100));
        controller.set_keep_alive(Duration::ZERO, Time::default());
        assert_eq!(controller.association.keep_alive.expires(), None);
        assert_eq!(controller_of(SubsystemIndex::Nvm(0), Duration::ZERO).keep_alive(), Duration::ZERO);
        assert_eq!(controller_of(SubsystemIndex::Discovery, Duration::ZERO).keep_alive(), Duration::from_secs(120));
    }
}
