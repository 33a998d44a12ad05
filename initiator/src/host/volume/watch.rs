//! Life signs: Keep Alive towards the target, and the changes that it tells of.

use godwit_nvme::identify::NamespaceError;
use godwit_nvme::log::LogId;
use godwit_nvme::sqe::{Abort, Cns, GetLogPage};
use godwit_nvme::{AsyncEvent, AsyncEventType, Cid, Cqe, DwordCount, IdentifyNamespace, NamespaceIdentifiers, Qid, Sqe};
use godwit_rdma::Fabric;
use godwit_reactor::Reactor;
use tracing::{info, warn};

use super::{ControlTimer, Follow, State, VolumeControl};
use crate::host::admin::Purpose;
use crate::host::bringup::{Command, Data, IDENTIFY_BYTES, command, identify};
use crate::host::error::HostError;
use crate::host::message::{Order, VolumeEvent};
use crate::host::namespace::describe;

const NO_CID: Cid = Cid::new(0);

impl VolumeControl {
    pub(super) fn on_keep_alive_timer<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        if !matches!(self.state, State::Joining { .. } | State::Restoring { .. } | State::Live) {
            return;
        }
        let keep_alive = self.settings.keep_alive;
        let (Some(admin), Some(session)) = (&mut self.admin, &mut self.session) else { return };
        if let Some(overdue) = admin.overdue(reactor.now(), keep_alive) {
            return self.end(reactor, fabric, overdue);
        }
        // Never two of them at a time: how long the old association may live is reckoned by that.
        let send = !admin.is_pending(Purpose::KeepAlive);
        session.keep_alive_unanswered = true;
        self.arm(reactor, ControlTimer::KeepAlive, keep_alive / 2);
        if send {
            self.send(reactor, fabric, Purpose::KeepAlive, &command("Keep Alive", Sqe::keep_alive(NO_CID)));
        }
    }

    pub(super) fn on_keep_alive_answer<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, cqe: &Cqe) {
        if let Some(session) = &mut self.session {
            session.last_answer = reactor.now();
            session.keep_alive_unanswered = false;
        }
        if !cqe.status().is_success() {
            self.end(reactor, fabric, HostError::Command { command: "Keep Alive", status: cqe.status() });
        }
    }

    /// A command is overdue. If the Abort is of no avail, its queue ends the association after a while.
    pub(super) fn abort_command<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, queue: usize, cid: Cid) {
        let idle = self.admin.as_ref().is_some_and(|admin| !admin.is_pending(Purpose::Abort));
        // One at a time is what every controller takes. Others that are overdue will do as well when the association ends.
        if matches!(self.state, State::Live) && idle {
            warn!(volume = self.settings.name, "no answer to a command on I/O queue {}: aborting it", queue + 1);
            let sqid = Qid::new(u16::try_from(queue + 1).unwrap_or(u16::MAX));
            self.send(reactor, fabric, Purpose::Abort, &command("Abort", Sqe::abort(NO_CID, &Abort { sqid, cid })));
        }
    }

    pub(super) fn on_abort_answer(&self, cqe: &Cqe) {
        let aborted = cqe.status().is_success() && Abort::was_aborted(cqe.dw0());
        info!(volume = self.settings.name, "the target has {} it", if aborted { "aborted" } else { "not aborted" });
    }

    pub(super) fn on_async_event<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, cqe: &Cqe) {
        if !cqe.status().is_success() {
            // The target takes none of these; it will not tell of a new size.
            return;
        }
        let event = AsyncEvent::from_wire(cqe.dw0());
        if event.kind == AsyncEventType::ERROR {
            return self.end(reactor, fabric, HostError::InternalError);
        }
        self.await_event(reactor, fabric);
        let Some(session) = &mut self.session else { return };
        if event == AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED {
            match session.follow {
                Follow::Nothing => self.follow_change(reactor, fabric),
                _ => session.follow_again = true,
            }
        }
    }

    /// Asks the target what has changed.
    fn follow_change<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        let length = DwordCount::from_bytes(IDENTIFY_BYTES as u64).expect("a multiple of four");
        let log = GetLogPage::new(LogId::CHANGED_NAMESPACES, length);
        let read = Command {
            name: "Get Log Page of changed namespaces",
            sqe: Sqe::get_log_page(NO_CID, &log),
            data: Data::FromController(IDENTIFY_BYTES),
        };
        self.follow(reactor, fabric, Follow::Log, &read);
    }

    fn follow<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, step: Follow, command: &Command) {
        if let Some(session) = &mut self.session {
            session.follow = step;
            self.send(reactor, fabric, Purpose::Follow, command);
        }
    }

    /// Leaves a command with the target that it answers when something changes.
    pub(super) fn await_event<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        let request = command("Asynchronous Event Request", Sqe::async_event_request(NO_CID));
        self.send(reactor, fabric, Purpose::AsyncEvent, &request);
    }

    pub(super) fn on_follow<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, cqe: &Cqe, data: &[u8]) {
        let Some(session) = &mut self.session else { return };
        let nsid = session.attached.identity.nsid;
        let has_descriptors = session.controller.has_descriptors;
        match session.follow {
            Follow::Nothing => {}
            Follow::Log if has_descriptors => {
                let command = identify("Identify of the namespace descriptors", Cns::NAMESPACE_DESCRIPTORS, nsid);
                self.follow(reactor, fabric, Follow::Descriptors, &command);
            }
            Follow::Log => {
                let command = identify("Identify Namespace", Cns::NAMESPACE, nsid);
                self.follow(reactor, fabric, Follow::Namespace(NamespaceIdentifiers::default()), &command);
            }
            Follow::Descriptors => match NamespaceIdentifiers::from_wire(data) {
                Ok(identifiers) if cqe.status().is_success() => {
                    let command = identify("Identify Namespace", Cns::NAMESPACE, nsid);
                    self.follow(reactor, fabric, Follow::Namespace(identifiers), &command);
                }
                _ => self.on_taken_away(reactor, fabric),
            },
            Follow::Namespace(identifiers) => {
                session.follow = Follow::Nothing;
                if std::mem::take(&mut session.follow_again) {
                    // What was read may be of the past, or of two namespaces.
                    self.follow_change(reactor, fabric);
                } else if cqe.status().is_success() {
                    self.on_identified_again(reactor, fabric, &identifiers, data);
                } else {
                    self.on_taken_away(reactor, fabric);
                }
            }
        }
    }

    /// The target does not know the namespace any more. The association ends: each attempt at another looks for the namespace, and whether it is the one that
    /// we had, and operations wait as for a target that is away.
    fn on_taken_away<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        let Some(session) = &self.session else { return };
        let nsid = session.attached.identity.nsid;
        self.end(reactor, fabric, HostError::Namespace { nsid, reason: NamespaceError::Absent });
    }

    /// The namespace may have grown; anything else makes it another volume.
    fn on_identified_again<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, identifiers: &NamespaceIdentifiers, data: &[u8]) {
        let (Some(session), Ok(namespace)) = (&mut self.session, IdentifyNamespace::ref_from(data)) else { return };
        let was = &session.attached.identity;
        let now = match describe(was.nsid, namespace, identifiers, &session.controller.limits, None) {
            Ok(attached) => attached.identity,
            Err(NamespaceError::Absent) => return self.on_taken_away(reactor, fabric),
            Err(reason) => {
                let nsid = was.nsid;
                return self.end(reactor, fabric, HostError::Namespace { nsid, reason });
            }
        };
        if let Err(change) = was.check_same(&now) {
            return self.end(reactor, fabric, change.into());
        }
        let Some(size_bytes) = now.size_bytes().filter(|_| now != *was) else { return };
        session.attached.identity = now;
        session.attached.geometry.size_bytes = size_bytes;
        let attached = session.attached.clone();
        let geometry = attached.geometry;
        info!(volume = self.settings.name, "grown to {size_bytes} bytes");
        // The queues first: whoever hears of the event may use the new size at once.
        self.order_all(|_| Order::Resize(geometry));
        if matches!(self.state, State::Live) {
            self.volume = Some(attached);
            self.events.send(VolumeEvent::Resized(geometry));
        }
    }
}
