//! When a lost volume is tried again, and when it is given up.

use std::time::Duration;

use godwit_reactor::Time;

/// Before another try when the target says that it is busy: with the end of the old association, as a rule.
const BUSY_DELAY: Duration = Duration::from_secs(1);

/// How long a first attach is tried while the target is busy.
pub(crate) const BUSY_PATIENCE: Duration = Duration::from_secs(30);

/// How long operations wait for a lost target before they fail (`ctrl_loss_tmo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossTimeout {
    /// For ever.
    Never,
    /// So long; with zero the volume is given up without a try.
    After(Duration),
}

impl LossTimeout {
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

/// When to try next: at once after a loss, then every `delay`, and never before the old association is dead at the target.
pub(crate) fn next_attempt(now: Time, before: Before, delay: Duration, fence: Time) -> Time {
    let wait = match before {
        Before::Live => Duration::ZERO,
        Before::Attempt => delay,
        Before::Busy => BUSY_DELAY,
    };
    (now + wait).max(fence)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_first_attempt_is_at_once_and_the_next_ones_follow_the_delay() {
        let delay = Duration::from_secs(10);
        assert_eq!(next_attempt(at(100), Before::Live, delay, at(0)), at(100));
        assert_eq!(next_attempt(at(100), Before::Attempt, delay, at(0)), at(110));
        assert_eq!(next_attempt(at(100), Before::Busy, delay, at(0)), at(101));
    }

    #[test]
    fn no_attempt_before_the_old_association_is_dead() {
        let delay = Duration::from_secs(2);
        assert_eq!(next_attempt(at(100), Before::Live, delay, at(108)), at(108));
        assert_eq!(next_attempt(at(100), Before::Attempt, delay, at(108)), at(108));
        assert_eq!(next_attempt(at(107), Before::Attempt, delay, at(108)), at(109));
    }
}
