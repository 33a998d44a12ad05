//! Asynchronous events of one controller: what happened, what the host wants to hear of it, and what it has been told.
//!
//! An event is told once, by completing an Asynchronous Event Request that the host has left with us. Then it is masked: what happens further is
//! only noted, until the host reads the event's log page without asking to retain the event (RAE).

use godwit_nvme::feature::AsyncEventConfiguration;
use godwit_nvme::{AsyncEvent, LogId, NamespaceList, Nsid};

/// Where one kind of event is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stage {
    /// It has happened since the log was read.
    pending: bool,
    /// The host has been told, and has not read the log.
    masked: bool,
}

/// The events of a controller.
#[derive(Debug, Default)]
pub(crate) struct Events {
    changed: Vec<Nsid>,
    namespaces: Stage,
    discovery: Stage,
}

impl Events {
    /// A namespace was added, removed or changed.
    pub(crate) fn note_namespace(&mut self, nsid: Nsid) {
        if let Err(place) = self.changed.binary_search(&nsid) {
            self.changed.insert(place, nsid);
        }
        self.namespaces.pending = true;
    }

    /// The discovery log says something else.
    pub(crate) fn note_discovery(&mut self) {
        self.discovery.pending = true;
    }

    /// The Changed Namespace List, as it is read now.
    pub(crate) fn changed_namespaces(&self) -> NamespaceList {
        NamespaceList::changed(&self.changed)
    }

    /// The host has read a log page without retaining its event.
    pub(crate) fn log_was_read(&mut self, log: LogId) {
        match log {
            LogId::CHANGED_NAMESPACES => {
                self.changed.clear();
                self.namespaces = Stage::default();
            }
            LogId::DISCOVERY => self.discovery = Stage::default(),
            _ => {}
        }
    }

    /// The next event to tell a host that has enabled these, and now has been told.
    pub(crate) fn next(&mut self, enabled: AsyncEventConfiguration) -> Option<AsyncEvent> {
        let stages =
            [(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED, &mut self.namespaces), (AsyncEvent::DISCOVERY_LOG_CHANGED, &mut self.discovery)];
        stages.into_iter().find_map(|(event, stage)| {
            let wanted = event.configuration().is_none_or(|bit| enabled.contains(bit));
            if !stage.pending || stage.masked || !wanted {
                return None;
            }
            *stage = Stage { pending: false, masked: true };
            Some(event)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: AsyncEventConfiguration = AsyncEventConfiguration::from_bits(
        AsyncEventConfiguration::NAMESPACE_ATTRIBUTE.bits() | AsyncEventConfiguration::DISCOVERY_CHANGE.bits(),
    );

    fn listed(events: &Events) -> Vec<u32> {
        events.changed_namespaces().iter().map(Nsid::get).collect()
    }

    #[test]
    fn a_change_is_told_once_until_its_log_is_read() {
        let mut events = Events::default();
        assert_eq!(events.next(ALL), None);
        events.note_namespace(Nsid::new(7));
        events.note_namespace(Nsid::new(2));
        assert_eq!(events.next(ALL), Some(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED));
        events.note_namespace(Nsid::new(7));
        events.note_namespace(Nsid::new(3));
        assert_eq!(events.next(ALL), None, "masked");
        assert_eq!(listed(&events), [2, 3, 7], "but listed");
        events.log_was_read(LogId::SMART);
        assert_eq!(events.next(ALL), None);
        events.log_was_read(LogId::CHANGED_NAMESPACES);
        assert_eq!((events.next(ALL), listed(&events)), (None, vec![]), "the host knows all there is");
        events.note_namespace(Nsid::new(7));
        assert_eq!(events.next(ALL), Some(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED));
    }

    #[test]
    fn what_is_not_enabled_waits() {
        let mut events = Events::default();
        events.note_namespace(Nsid::new(1));
        events.note_discovery();
        assert_eq!(events.next(AsyncEventConfiguration::NONE), None);
        assert_eq!(events.next(AsyncEventConfiguration::DISCOVERY_CHANGE), Some(AsyncEvent::DISCOVERY_LOG_CHANGED));
        assert_eq!(events.next(ALL), Some(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED));
        events.log_was_read(LogId::DISCOVERY);
        events.note_discovery();
        assert_eq!(events.next(ALL), Some(AsyncEvent::DISCOVERY_LOG_CHANGED), "each has a mask of its own");
    }
}
