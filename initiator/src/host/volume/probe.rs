//! Looking after the paths that are not in use: whether a target listens there.
//!
//! A probe opens the connection of an admin queue and closes it again: the target answers the connection request, and since Connect never follows, there
//! is no controller, and nothing of the volume is asked for or changed. While an association is live the others are probed now and then, so that it is
//! known where to go; while there is none, often. A probe that is answered brings the next attempt forward, though never to before the old association
//! is dead at the target; and an attempt on a path that does not even answer its connection request gives way to one on a path that does.

use std::time::Duration;

use godwit_rdma::{Completion, Fabric, QpId};
use godwit_reactor::{Reactor, Time};
use tracing::{debug, info};

use super::{ControlTimer, State, VolumeControl};
use crate::host::admin::AdminQueue;
use crate::host::error::HostError;
use crate::host::queue::Endpoint;

/// Reconnect delays between two rounds of probes while an association is live.
const LIVE_PERIOD: u32 = 5;

/// Rounds in a reconnect delay while there is none.
const LOST_ROUNDS: u32 = 4;

/// A connection that is to show whether a target listens.
#[derive(Debug)]
pub(super) struct Probe {
    qp: QpId,
    endpoint: Endpoint,
    since: Time,
}

impl VolumeControl {
    /// Begins to look after the paths, or goes on with another period.
    pub(super) fn watch_paths<R: Reactor>(&mut self, reactor: &mut R) {
        if self.paths.endpoints().nth(1).is_none() {
            return;
        }
        let delay = self.settings.reconnect_delay;
        let period = match self.state {
            State::Live => delay * LIVE_PERIOD,
            _ => delay / LOST_ROUNDS,
        };
        self.arm(reactor, ControlTimer::Probe, period);
    }

    /// A round: probes without an answer have failed, and each path that is not in use gets a new one.
    pub(super) fn on_probe_timer<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        if matches!(self.state, State::Stopping { .. } | State::Over) || self.volume.is_none() {
            return self.end_probes(reactor, fabric);
        }
        let now = reactor.now();
        let patience = self.settings.reconnect_delay;
        let (over, going): (Vec<_>, Vec<_>) = self.probes.drain(..).partition(|probe| now.since(probe.since) >= patience);
        self.probes = going;
        for probe in over {
            fabric.destroy(reactor, probe.qp);
            self.paths.probed(&probe.endpoint, false);
        }
        let endpoints: Vec<_> = self.paths.endpoints().collect();
        if endpoints.len() > 1 {
            let in_use = self.current.filter(|_| !matches!(self.state, State::Waiting | State::Looking));
            for endpoint in endpoints {
                if Some(endpoint) != in_use && self.probes.iter().all(|probe| probe.endpoint != endpoint) {
                    self.probe(reactor, fabric, endpoint);
                }
            }
        }
        self.give_way(reactor, fabric);
        self.watch_paths(reactor);
    }

    fn probe<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, endpoint: Endpoint) {
        match AdminQueue::knock(reactor, fabric, &endpoint) {
            Ok(qp) => self.probes.push(Probe { qp, endpoint, since: reactor.now() }),
            Err(error) => {
                debug!(volume = self.settings.name, address = %endpoint.address, "cannot probe: {error}");
                self.paths.probed(&endpoint, false);
            }
        }
    }

    /// Whether a completion is a probe's.
    pub(super) fn is_probe(&self, qp: QpId) -> bool {
        self.probes.iter().any(|probe| probe.qp == qp)
    }

    pub(super) fn on_probe<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric, qp: QpId, completion: &Completion) {
        let up = match completion {
            Completion::Established { .. } => true,
            Completion::Rejected { .. } | Completion::Disconnected { .. } => false,
            _ => return,
        };
        let Some(index) = self.probes.iter().position(|probe| probe.qp == qp) else { return };
        let probe = self.probes.swap_remove(index);
        fabric.destroy(reactor, qp);
        let news = self.paths.probed(&probe.endpoint, up);
        if news && matches!(self.state, State::Waiting) && self.volume.is_some() && !self.stopping {
            info!(volume = self.settings.name, "{} answers", probe.endpoint.address);
            self.arm_at(reactor, ControlTimer::Attempt, reactor.now().max(self.fence));
        }
    }

    /// An attempt whose connection request is not answered leaves the field to a path that is up.
    fn give_way<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        let State::Opening { established: false, since, .. } = self.state else { return };
        let Some(current) = self.current else { return };
        let waited = reactor.now().since(since);
        if waited >= self.settings.reconnect_delay / 2 && self.paths.has_better_than(&current) {
            let waited = Duration::from_millis(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
            self.end(reactor, fabric, HostError::Connection(format!("no answer from {} within {waited:?}", current.address)));
        }
    }

    pub(super) fn end_probes<R: Reactor>(&mut self, reactor: &mut R, fabric: &mut Fabric) {
        self.cancel(reactor, ControlTimer::Probe);
        for probe in self.probes.drain(..) {
            fabric.destroy(reactor, probe.qp);
        }
    }
}
