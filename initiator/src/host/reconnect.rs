//! When a lost volume is tried again, and when it is given up.
//!
//! The reconnect delay is the longest pause between two attempts: what it is to nvme-cli, which knows no other. The first attempt follows a loss at once, for
//! most losses are restarts and torn connections; those after it come at an eighth, a quarter and half of the delay, and from then on at the delay. So a
//! path that is up is used within one delay, whatever was tried before. Every pause is shortened by up to a quarter of it, and the first attempt put off by
//! up to a sixteenth of the delay, at random: a hundred volumes that lost one target do not come back in step.

use std::time::Duration;

use godwit_reactor::Time;

use crate::random::Random;

/// Before another try when the target says that it is busy: with the end of the old association, as a rule.
const BUSY_DELAY: Duration = Duration::from_secs(1);

/// How long a first attach is tried while the target is busy.
pub(crate) const BUSY_PATIENCE: Duration = Duration::from_secs(30);

/// How often a first attach begins anew when the peer ended the connection without a word. A target that restarts does that, and siw, the kernel's iWARP, to a
/// peer whose first message it missed.
pub(crate) const TORN_ATTEMPTS: u32 = 3;

/// The most that the first attempt after a loss is put off.
const MAX_FIRST: Duration = Duration::from_millis(250);

/// How often a pause doubles before it is the whole delay.
const DOUBLINGS: u32 = 3;

/// How long operations wait for a lost target before they fail (`ctrl_loss_tmo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossTimeout {
    /// For ever.
    Never,
    /// So long; with zero the volume is given up without a try.
    After(Duration),
}

impl LossTimeout {
    /// The same, but no longer than `limit`.
    #[must_use]
    pub(crate) fn at_most(self, limit: Duration) -> Self {
        match self {
            Self::Never => Self::After(limit),
            Self::After(timeout) => Self::After(timeout.min(limit)),
        }
    }

    /// When a volume that was lost at a time is given up.
    pub(crate) fn deadline(self, lost_at: Time) -> Option<Time> {
        match self {
            Self::Never => None,
            Self::After(timeout) => Some(lost_at + timeout),
        }
    }
}

/// What the time before an attempt depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// The association was live until now.
    Live,
    /// An attempt has failed.
    Attempt,
    /// An attempt has met a busy target.
    Busy,
}

/// The pauses between the attempts of one volume.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    delay: Duration,
    failures: u32,
    random: Random,
}

impl Backoff {
    /// Pauses of up to `delay`. Equal seeds give equal pauses.
    pub(crate) fn new(delay: Duration, seed: u64) -> Self {
        Self { delay, failures: 0, random: Random::new(seed) }
    }

    /// When to try next, never before the old association is dead at the target.
    pub(crate) fn next_attempt(&mut self, now: Time, before: Before, fence: Time) -> Time {
        let pause = match before {
            Before::Live => {
                self.failures = 0;
                self.part_of((self.delay / 16).min(MAX_FIRST))
            }
            Before::Attempt => {
                let doublings = DOUBLINGS.saturating_sub(self.failures);
                self.failures += 1;
                self.shortened(self.delay / (1 << doublings))
            }
            Before::Busy => self.shortened(BUSY_DELAY),
        };
        (now + pause).max(fence)
    }

    fn shortened(&mut self, pause: Duration) -> Duration {
        pause - self.part_of(pause / 4)
    }

    /// A random time up to `most`.
    fn part_of(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.random.below(u64::try_from(most.as_nanos()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(8);

    fn at(seconds: u64) -> Time {
        Time::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn the_loss_timeout_means_what_nvme_cli_says() {
        assert_eq!(LossTimeout::Never.deadline(at(100)), None);
        assert_eq!(LossTimeout::After(Duration::ZERO).deadline(at(100)), Some(at(100)));
        assert_eq!(LossTimeout::After(Duration::from_secs(3)).deadline(at(100)), Some(at(103)));
        assert_eq!(LossTimeout::After(Duration::from_secs(600)).deadline(at(100)), Some(at(700)));
    }

    #[test]
    fn pauses_grow_to_the_delay_and_never_beyond_it() {
        for seed in 0..100 {
            let mut backoff = Backoff::new(DELAY, seed);
            let first = backoff.next_attempt(at(100), Before::Live, at(0));
            assert!(first.since(at(100)) <= Duration::from_millis(250));
            for whole in [1, 2, 4, 8, 8, 8] {
                let pause = backoff.next_attempt(at(100), Before::Attempt, at(0)).since(at(100));
                let whole = Duration::from_secs(whole);
                assert!(pause <= whole && pause >= whole * 3 / 4, "{pause:?}");
            }
            backoff.next_attempt(at(100), Before::Live, at(0));
            let pause = backoff.next_attempt(at(100), Before::Attempt, at(0)).since(at(100));
            assert!(pause <= Duration::from_secs(1), "a new loss begins anew, and not with {pause:?}");
        }
    }

    #[test]
    fn volumes_that_lost_one_target_are_out_of_step() {
        let after = |before| {
            let mut times: Vec<_> = (0..100).map(|seed| Backoff::new(DELAY, seed).next_attempt(at(100), before, at(0))).collect();
            times.sort_unstable();
            // The most that come within a twentieth of the whole time.
            let span = times[99].since(times[0]);
            times.iter().map(|&time| times.iter().filter(|&&other| other >= time && other.since(time) <= span / 20).count()).max()
        };
        for before in [Before::Live, Before::Attempt, Before::Busy] {
            assert!(after(before) < Some(25), "{before:?}: {:?} of a hundred at once", after(before));
        }
    }

    #[test]
    fn a_busy_target_is_asked_again_after_a_second() {
        let pause = Backoff::new(DELAY, 1).next_attempt(at(100), Before::Busy, at(0)).since(at(100));
        assert!(pause <= BUSY_DELAY && pause >= BUSY_DELAY * 3 / 4, "{pause:?}");
    }

    #[test]
    fn no_attempt_before_the_old_association_is_dead() {
        let mut backoff = Backoff::new(DELAY, 1);
        assert_eq!(backoff.next_attempt(at(100), Before::Live, at(108)), at(108));
        assert_eq!(backoff.next_attempt(at(100), Before::Attempt, at(108)), at(108));
        assert!(backoff.next_attempt(at(107), Before::Attempt, at(108)) >= at(108));
    }
}
