//! The end of an association, and what follows it: another attempt, or the end of the volume.
//!
//! A volume that is ended as asked is flushed before its controller is shut down, for clients may go without a flush of their own, and not every target keeps
//! what it has cached over a shutdown. Whoever asks has let the front end answer what it had taken; so each change that was acknowledged, on whatever queue,
//! had ended at the target before this flush is sent, and one flush on one queue covers them all. It is put in line like any operation: if the target is lost
//! meanwhile there is nothing to flush to, and if it fails or takes too long the log says so.

use std::time::Duration;

use godwit_rdma::Fabric;
use godwit_reactor::{Reactor, Time};
use tracing::{debug, error, info, warn};

use super::{ControlTimer, Session, State, VolumeControl};
use crate::block::BlockError;
use crate::host::CONTROL_TIMERS;
use crate::host::admin::Purpose;
use crate::host::bringup::Script;
use crate::host::error::HostError;
use crate::host::fence::{QueueEnd, Silence};
use crate::host::message::{Order, ToQueue, VolumeEvent};
use crate::host::reconnect::{BUSY_PATIENCE, Before, LossTimeout, TORN_ATTEMPTS};
use crate::host::shutdown::Shutdown;
use crate::host::status::VolumeState;

/// How long the target may take to close its end of the admin connection when we end it.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the last flush may take.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a controller may take to shut down, whatever it says.
pub(super) const MAX_SHUTDOWN: Duration = Duration::from_secs(10);

impl VolumeControl {
    /// Ends the association, or the attempt at one. Once everything is down, [`Self::ended`] decides what comes next.
    pub(super) fn end<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, reason: HostError) {
        let sent = matches!(self.state, State::Live | State::Restoring { .. });
        let was_live = match self.state {
            State::Live => true,
            State::Looking | State::Opening { .. } | State::Joining { .. } | State::Restoring { .. } | State::Stopping { .. } => false,
            State::Ending { .. } => return self.check_ended(reactor, fabric),
            State::Waiting | State::Over => return,
        };
        if was_live {
            warn!(volume = self.settings.name, "lost the target: {reason}; operations wait");
            if let Some(deadline) = self.settings.loss_timeout.deadline(reactor.now()) {
                self.arm_at(reactor, ControlTimer::Loss, deadline);
            }
            if let Some(after) = self.settings.fast_io_fail {
                self.arm(reactor, ControlTimer::FailFast, after);
            }
            self.given_up = self.settings.loss_timeout == LossTimeout::After(Duration::ZERO);
            self.settings.status.update(|status| {
                status.enter(VolumeState::Lost);
                status.failed(&reason);
            });
            self.events.send(VolumeEvent::Lost(reason.clone()));
        }
        self.cancel(reactor, ControlTimer::KeepAlive);
        self.cancel(reactor, ControlTimer::Script);
        self.cancel(reactor, ControlTimer::State);
        if let Some(discovery) = self.discovery.take() {
            discovery.abandon(reactor, fabric);
        }
        if matches!(self.state, State::Opening { established: false, .. })
            && let Some(admin) = self.admin.take()
        {
            // There is no connection to end.
            admin.destroy(reactor, fabric);
        }
        self.arm(reactor, ControlTimer::State, LEAVE_TIMEOUT);
        self.state = State::Ending { reason, was_live, sent };
        self.order_all(Order::Leave);
        if let Some(admin) = &mut self.admin {
            admin.leave(reactor, fabric);
        }
        self.check_ended(reactor, fabric);
    }

    /// The admin connection was not closed by the target in time.
    pub(super) fn drop_admin<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        if let Some(admin) = self.admin.take() {
            admin.destroy(reactor, fabric);
        }
        self.check_ended(reactor, fabric);
    }

    pub(super) fn on_queue_down<R: Reactor>(
        &mut self,
        reactor: &mut R,
        fabric: &mut Fabric,
        queue: usize,
        end: QueueEnd,
        error: HostError,
    ) {
        if let Some(session) = &mut self.session
            && let Some(slot) = session.ends.get_mut(queue)
        {
            *slot = Some(end);
        }
        // A controller that is shut down may close its queues by itself.
        if !matches!(self.state, State::Stopping { .. }) {
            self.end(reactor, fabric, error);
        }
    }

    /// Has what was written flushed, then tells the controller that this is the end.
    pub(super) fn flush_and_shut_down<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        let caches = self.session.as_ref().is_some_and(|session| {
            let geometry = &session.attached.geometry;
            geometry.volatile_cache && !geometry.read_only
        });
        let Some(queue) = self.queues.first().filter(|_| caches) else { return self.shut_down(reactor, fabric) };
        queue.send(ToQueue(Order::Flush(self.association)));
        self.arm(reactor, ControlTimer::State, FLUSH_TIMEOUT);
    }

    pub(super) fn on_flushed<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, result: Result<(), BlockError>) {
        if !matches!(self.state, State::Live) {
            return;
        }
        if let Err(error) = result {
            error!(volume = self.settings.name, "what was written last could not be flushed, and may be lost: {error}");
        }
        self.shut_down(reactor, fabric);
    }

    /// Tells the controller that this is the end. The connections are closed once it has taken note: our target gives an association up with its first
    /// connection.
    pub(super) fn shut_down<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        let Some(session) = &self.session else { return };
        let timeout = session.controller.shutdown_timeout.min(MAX_SHUTDOWN);
        let mut script = Shutdown::new(session.controller.configuration);
        let first = script.start();
        self.cancel(reactor, ControlTimer::KeepAlive);
        self.state = State::Stopping { script, next: None };
        self.arm(reactor, ControlTimer::State, timeout);
        self.send(reactor, fabric, Purpose::Script, &first);
    }

    fn check_ended<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        let queues_down = self.session.as_ref().is_none_or(|session| session.ends.iter().all(Option::is_some));
        if self.admin.is_some() || !queues_down {
            return;
        }
        if let State::Ending { reason, was_live, sent } = std::mem::replace(&mut self.state, State::Waiting) {
            self.cancel(reactor, ControlTimer::State);
            if sent {
                self.set_fence(reactor.now());
            }
            self.ended(reactor, fabric, reason, was_live);
        }
    }

    /// Something was sent on the association that may have to be waited for.
    fn set_fence(&mut self, now: Time) {
        let Some(session) = &self.session else { return };
        let fence = fence(now, session);
        if fence > now {
            let wait = fence.since(now).as_secs_f32();
            info!(volume = self.settings.name, "waiting {wait:.1} s until the target has given up the old association");
        }
        self.fence = self.fence.max(fence);
    }

    /// Everything of the association is down.
    fn ended<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, reason: HostError, was_live: bool) {
        let now = reactor.now();
        self.session = None;
        if let Some(current) = self.current {
            if was_live { self.paths.lost(&current) } else { self.paths.failed(&current, &reason) }
        }
        if !was_live && !self.stopping {
            self.settings.status.update(|status| status.failed(&reason));
        }
        if self.stopping {
            return self.finish_stop(reactor, fabric);
        }
        if self.volume.is_none() {
            return self.retry_first(reactor, reason);
        }
        if !was_live && let Some(refusal) = self.paths.refused_by_all() {
            let refusal = refusal.clone();
            return self.give_up(reactor, fabric, refusal);
        }
        if self.given_up || reason.is_final() {
            return self.give_up(reactor, fabric, reason);
        }
        let before = match &reason {
            _ if was_live => Before::Live,
            reason if reason.is_busy() => Before::Busy,
            _ => Before::Attempt,
        };
        if !was_live {
            self.log_failed_attempt(&reason);
        }
        self.lost = Some(reason);
        let at = self.backoff.next_attempt(now, before, self.fence);
        self.arm_at(reactor, ControlTimer::Attempt, at);
        if was_live {
            self.watch_paths(reactor);
        }
    }

    /// A reason is worth a line once, not at each attempt.
    fn log_failed_attempt(&self, reason: &HostError) {
        let known = self.lost.as_ref().is_some_and(|lost| lost.to_string() == reason.to_string());
        if known {
            debug!(volume = self.settings.name, "cannot connect again: {reason}");
        } else {
            warn!(volume = self.settings.name, "cannot connect again yet: {reason}");
        }
    }

    /// The volume was never up. A busy target is asked again: it is, for a moment, after a host that went away without a word. So is, a few times, one that
    /// ended the connection without a word.
    fn retry_first<R: Reactor>(&mut self, reactor: &mut R, reason: HostError) {
        let now = reactor.now();
        if reason.is_busy() && now.since(self.started) < BUSY_PATIENCE {
            return self.try_first_again(reactor, &reason, Before::Busy);
        }
        if !self.paths.all_failed() {
            debug!(volume = self.settings.name, "{reason}; trying the next address");
            return self.arm_at(reactor, ControlTimer::Attempt, now);
        }
        let reason = self.paths.worst().cloned().unwrap_or(reason);
        if matches!(reason, HostError::Torn(_)) && self.torn < TORN_ATTEMPTS {
            self.torn += 1;
            self.paths.begin_round();
            return self.try_first_again(reactor, &reason, Before::Attempt);
        }
        self.state = State::Over;
        self.admin_buffers = None;
        self.settings.status.update(|status| status.enter(VolumeState::Gone));
        self.events.send(VolumeEvent::Failed(reason));
    }

    fn try_first_again<R: Reactor>(&mut self, reactor: &mut R, reason: &HostError, before: Before) {
        info!(volume = self.settings.name, "{reason}; trying again");
        let at = self.backoff.next_attempt(reactor.now(), before, self.fence);
        self.arm_at(reactor, ControlTimer::Attempt, at);
    }

    /// From now on a lost target is waited for no longer than this, as when the machine goes down.
    pub fn limit_loss_timeout<R: Reactor>(&mut self, reactor: &mut R, limit: Duration) {
        self.settings.loss_timeout = self.settings.loss_timeout.at_most(limit);
        if self.volume.is_some() && !matches!(self.state, State::Live | State::Stopping { .. } | State::Over) {
            self.arm(reactor, ControlTimer::Loss, limit);
        }
    }

    pub(super) fn on_loss_timer<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        self.given_up = true;
        match self.state {
            State::Waiting => {
                let last = self.lost.take().unwrap_or_else(|| HostError::Connection("lost".to_owned()));
                self.give_up(reactor, fabric, last);
            }
            State::Looking | State::Opening { .. } | State::Joining { .. } | State::Restoring { .. } => {
                let last = self.lost.take().unwrap_or_else(|| HostError::Connection("no answer".to_owned()));
                self.end(reactor, fabric, last);
            }
            // Given up as soon as it has ended.
            State::Ending { .. } => {}
            State::Live | State::Stopping { .. } | State::Over => self.given_up = false,
        }
    }

    /// No other association will be made: whatever waits fails.
    fn give_up<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, last: HostError) {
        let reason = match self.settings.loss_timeout {
            LossTimeout::After(after) if self.given_up && !last.is_final() => HostError::LossTimeout { after, last: Box::new(last) },
            _ => last,
        };
        warn!(volume = self.settings.name, "the volume is gone: {reason}");
        self.close(reactor, fabric);
        self.settings.status.update(|status| {
            status.enter(VolumeState::Gone);
            status.failed(&reason);
        });
        self.events.send(VolumeEvent::Gone(reason));
    }

    pub(super) fn finish_stop<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        self.close(reactor, fabric);
        self.settings.status.update(|status| status.enter(VolumeState::Stopped));
        self.events.send(VolumeEvent::Stopped);
    }

    fn close<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        for timer in CONTROL_TIMERS {
            self.cancel(reactor, timer);
        }
        self.end_probes(reactor, fabric);
        self.state = State::Over;
        self.admin_buffers = None;
        for queue in &self.queues {
            queue.send(ToQueue(Order::GiveUp));
        }
    }
}

/// Before when no new association may be made: now, unless something of the old one may still land.
fn fence(now: Time, session: &Session) -> Time {
    let ends = session.ends.iter().flatten();
    if ends.clone().all(QueueEnd::is_settled) {
        return now;
    }
    let quiet_for = ends.map(|end| end.quiet_for).min().unwrap_or_default();
    let quiet_for = u64::try_from(quiet_for.as_nanos()).unwrap_or(u64::MAX);
    let silence = Silence {
        keep_alive: session.controller.keep_alive,
        traffic_based: session.controller.traffic_based_keep_alive,
        last_answer: session.last_answer,
        unanswered: session.keep_alive_unanswered,
        last_sent: Time::from_nanos(now.as_nanos().saturating_sub(quiet_for)),
    };
    silence.dead_at().max(now)
}
