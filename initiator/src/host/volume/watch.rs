//! Life signs: Keep Alive towards the target, and the changes that it tells of.

use godwit_nvme::log::LogId;
use godwit_nvme::sqe::{Abort, Cns, GetLogPage, Identify};
use godwit_nvme::{AsyncEvent, AsyncEventType, Cid, Cqe, DwordCount, IdentifyNamespace, Nsid, Qid, Sqe};
use godwit_rdma::Fabric;
use godwit_reactor::Reactor;
use tracing::{info, warn};

use super::{ControlTimer, Follow, State, VolumeControl};
use crate::host::admin::Purpose;
use crate::host::bringup::{Command, Data, IDENTIFY_BYTES, command};
use crate::host::error::HostError;
use crate::host::message::{Order, VolumeEvent};

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
        if event == AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED && session.follow == Follow::Nothing {
            session.follow = Follow::Log;
            let length = DwordCount::from_bytes(IDENTIFY_BYTES as u64).expect("a multiple of four");
            let log = GetLogPage::new(LogId::CHANGED_NAMESPACES, length);
            let read = Command {
                name: "Get Log Page of changed namespaces",
                sqe: Sqe::get_log_page(NO_CID, &log),
                data: Data::FromController(IDENTIFY_BYTES),
            };
            self.send(reactor, fabric, Purpose::Follow, &read);
        }
    }

    /// Leaves a command with the target that it answers when something changes.
    pub(super) fn await_event<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        let request = command("Asynchronous Event Request", Sqe::async_event_request(NO_CID));
        self.send(reactor, fabric, Purpose::AsyncEvent, &request);
    }

    pub(super) fn on_follow<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, cqe: &Cqe, data: &[u8]) {
        let Some(session) = &mut self.session else { return };
        match session.follow {
            Follow::Nothing => {}
            Follow::Log => {
                session.follow = Follow::Namespace;
                let nsid = session.attached.identity.nsid;
                let again = identify_namespace(nsid);
                self.send(reactor, fabric, Purpose::Follow, &again);
            }
            Follow::Namespace => {
                session.follow = Follow::Nothing;
                if cqe.status().is_success() {
                    self.on_identified_again(reactor, fabric, data);
                }
            }
        }
    }

    /// The namespace may have grown; anything else makes it another volume.
    fn on_identified_again<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, data: &[u8]) {
        let (Some(session), Ok(namespace)) = (&mut self.session, IdentifyNamespace::ref_from(data)) else { return };
        let Ok(block_size) = namespace.block_size() else { return };
        if !namespace.is_present() {
            warn!(volume = self.settings.name, "the target has taken the namespace away");
            return;
        }
        let was = &session.attached.identity;
        let mut now = was.clone();
        now.block_size = block_size;
        now.size_blocks = namespace.size_blocks();
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

fn identify_namespace(nsid: Nsid) -> Command {
    Command {
        name: "Identify Namespace",
        sqe: Sqe::identify(NO_CID, &Identify::new(Cns::NAMESPACE, nsid)),
        data: Data::FromController(IDENTIFY_BYTES),
    }
}
