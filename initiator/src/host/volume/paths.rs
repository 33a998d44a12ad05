//! The addresses at which a volume's subsystem may be, and which of them is tried next.

use std::net::SocketAddr;

use godwit_config::HostPort;
use godwit_rdma::{FpduSize, Transport};

use crate::host::error::HostError;
use crate::host::queue::Endpoint;

/// Where a target listens, as people write it, and how to speak to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Which provider connects to it.
    pub transport: Transport,
    /// A name is looked up anew for each attempt.
    pub host: HostPort,
    /// Whether to ask for CRC32C.
    pub crc: bool,
    /// Frame size.
    pub fpdu: FpduSize,
}

impl Address {
    /// One of its endpoints.
    pub(crate) fn at(&self, address: SocketAddr) -> Endpoint {
        Endpoint { transport: self.transport, address, crc: self.crc, fpdu: self.fpdu }
    }
}

impl From<Endpoint> for Address {
    fn from(endpoint: Endpoint) -> Self {
        let Endpoint { transport, address, crc, fpdu } = endpoint;
        Self { transport, host: HostPort::from(address), crc, fpdu }
    }
}

/// What is known of a path without an association on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Unknown,
    /// The last probe was answered.
    Up,
    /// The last probe, or attempt, was not.
    Down,
}

#[derive(Clone, Debug)]
struct Path {
    endpoint: Endpoint,
    health: Health,
    /// Why the last attempt failed, since an association was last live.
    failure: Option<HostError>,
}

/// The paths, in the order in which they are tried.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paths {
    paths: Vec<Path>,
    next: usize,
}

impl Paths {
    /// Takes over the addresses that there are now. Of those that there were, what is known stays known.
    pub(crate) fn update(&mut self, endpoints: impl IntoIterator<Item = Endpoint>) {
        let mut paths: Vec<Path> = Vec::with_capacity(self.paths.len());
        for endpoint in endpoints {
            if paths.iter().any(|path| path.endpoint == endpoint) {
                continue;
            }
            let known = self.paths.iter().find(|path| path.endpoint == endpoint).cloned();
            paths.push(known.unwrap_or(Path { endpoint, health: Health::Unknown, failure: None }));
        }
        self.paths = paths;
    }

    /// The path to try now: in turn, those that answered a probe before those of which nothing is known, and these before those that did not.
    pub(crate) fn choose(&mut self) -> Option<Endpoint> {
        let count = self.paths.len();
        let start = self.next;
        let in_turn = || (0..count).map(|offset| (start + offset) % count);
        let with = |health| in_turn().find(|&index| self.paths[index].health == health);
        let index = with(Health::Up).or_else(|| with(Health::Unknown)).or_else(|| in_turn().next())?;
        self.next = index + 1;
        Some(self.paths[index].endpoint)
    }

    /// An attempt has failed.
    pub(crate) fn failed(&mut self, endpoint: &Endpoint, reason: &HostError) {
        if let Some(path) = self.find(endpoint) {
            // A target that refuses is there all the same.
            if matches!(reason, HostError::Connection(_) | HostError::Torn(_) | HostError::Timeout { .. }) {
                path.health = Health::Down;
            }
            path.failure = Some(reason.clone());
        }
    }

    /// An association is live there.
    pub(crate) fn live(&mut self, endpoint: &Endpoint) {
        for path in &mut self.paths {
            path.failure = None;
        }
        if let Some(path) = self.find(endpoint) {
            path.health = Health::Up;
        }
    }

    /// The association there was lost: the others come first.
    pub(crate) fn lost(&mut self, endpoint: &Endpoint) {
        if let Some(path) = self.find(endpoint) {
            path.health = Health::Unknown;
        }
    }

    /// A probe was answered, or was not. Whether it shows a path that was not known to be up.
    pub(crate) fn probed(&mut self, endpoint: &Endpoint, up: bool) -> bool {
        let Some(path) = self.find(endpoint) else { return false };
        let news = up && path.health != Health::Up;
        path.health = if up { Health::Up } else { Health::Down };
        news
    }

    /// All of them.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = Endpoint> {
        self.paths.iter().map(|path| path.endpoint)
    }

    /// Whether another one than this is up.
    pub(crate) fn has_better_than(&self, endpoint: &Endpoint) -> bool {
        self.paths.iter().any(|path| path.endpoint != *endpoint && path.health == Health::Up)
    }

    /// Whether an attempt on each has failed since one was last live; also when there is none.
    pub(crate) fn all_failed(&self) -> bool {
        self.paths.iter().all(|path| path.failure.is_some())
    }

    /// What a target has said that refuses for good, if no path is left on which none did.
    pub(crate) fn refused_by_all(&self) -> Option<&HostError> {
        let refusals = || self.paths.iter().filter_map(|path| path.failure.as_ref().filter(|reason| reason.is_refused_for_good()));
        if refusals().count() == self.paths.len() { refusals().next() } else { None }
    }

    /// The failure that says most: a target's words before those about a connection.
    pub(crate) fn worst(&self) -> Option<&HostError> {
        let failures = self.paths.iter().filter_map(|path| path.failure.as_ref());
        failures.min_by_key(|reason| match reason {
            HostError::Connection(_) => 2,
            HostError::Torn(_) => 1,
            _ => 0,
        })
    }

    /// A round of attempts is over: each is to be tried once more before it is over again.
    pub(crate) fn begin_round(&mut self) {
        for path in &mut self.paths {
            path.failure = None;
        }
    }

    fn find(&mut self, endpoint: &Endpoint) -> Option<&mut Path> {
        self.paths.iter_mut().find(|path| path.endpoint == *endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use godwit_nvme::{ConnectRefusal, InvalidParameter};

    fn endpoint(last: u8) -> Endpoint {
        Endpoint { transport: Transport::Iwarp, address: ([192, 0, 2, last], 4420).into(), crc: true, fpdu: FpduSize::Large }
    }

    fn paths(count: u8) -> Paths {
        let mut paths = Paths::default();
        paths.update((1..=count).map(endpoint));
        paths
    }

    fn chosen(paths: &mut Paths) -> u8 {
        match paths.choose().unwrap().address.ip() {
            std::net::IpAddr::V4(ip) => ip.octets()[3],
            std::net::IpAddr::V6(_) => panic!("not made here"),
        }
    }

    fn gone() -> HostError {
        HostError::Connection("gone".to_owned())
    }

    #[test]
    fn paths_are_tried_in_turn() {
        let mut paths = paths(3);
        let mut turns = Vec::new();
        for _ in 0..7 {
            let path = chosen(&mut paths);
            turns.push(path);
            paths.failed(&endpoint(path), &gone());
        }
        assert_eq!(turns, [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(Paths::default().choose(), None);
    }

    #[test]
    fn a_path_that_answers_goes_first_and_one_that_does_not_last() {
        let mut paths = paths(3);
        paths.probed(&endpoint(1), false);
        assert_eq!(chosen(&mut paths), 2);
        assert!(paths.probed(&endpoint(1), true));
        assert!(!paths.probed(&endpoint(1), true), "that is not new");
        assert_eq!(chosen(&mut paths), 1);
        assert!(paths.has_better_than(&endpoint(2)) && !paths.has_better_than(&endpoint(1)));
    }

    #[test]
    fn the_next_path_takes_over_from_one_that_was_lost() {
        let mut paths = paths(2);
        assert_eq!(chosen(&mut paths), 1);
        paths.live(&endpoint(1));
        paths.lost(&endpoint(1));
        assert_eq!(chosen(&mut paths), 2);
        paths.failed(&endpoint(2), &gone());
        assert_eq!(chosen(&mut paths), 1);
    }

    #[test]
    fn what_a_target_says_counts_more_than_what_became_of_a_connection() {
        let mut paths = paths(3);
        paths.failed(&endpoint(1), &gone());
        assert!(matches!(paths.worst(), Some(HostError::Connection(_))));
        paths.failed(&endpoint(2), &HostError::Torn("closed".to_owned()));
        assert!(matches!(paths.worst(), Some(HostError::Torn(_))));
        paths.failed(&endpoint(3), &HostError::Refused(ConnectRefusal::INVALID_HOST));
        assert!(matches!(paths.worst(), Some(HostError::Refused(_))));
    }

    #[test]
    fn only_when_every_path_refuses_for_good_the_volume_is_refused() {
        let refusal = HostError::Refused(ConnectRefusal::invalid(InvalidParameter::SUBNQN));
        let mut paths = paths(2);
        paths.failed(&endpoint(1), &refusal);
        assert!(paths.refused_by_all().is_none() && !paths.all_failed());
        paths.failed(&endpoint(2), &gone());
        assert!(paths.refused_by_all().is_none() && paths.all_failed());
        assert!(matches!(paths.worst(), Some(HostError::Refused(_))));
        paths.failed(&endpoint(2), &refusal);
        assert!(matches!(paths.refused_by_all(), Some(HostError::Refused(_))));
        paths.live(&endpoint(2));
        assert!(paths.refused_by_all().is_none());
    }

    #[test]
    fn new_addresses_leave_what_is_known_of_the_others() {
        let mut paths = paths(2);
        paths.probed(&endpoint(2), true);
        paths.update([3, 2, 3].map(endpoint));
        assert_eq!(paths.endpoints().count(), 2);
        assert_eq!(chosen(&mut paths), 2);
    }
}
