//! The keep-alive timer of an association, which any command on any of its queues restarts (Traffic Based Keep Alive, TBKAS).
//!
//! A host that is busy may be slow to send Keep Alive while its I/O flows; ending its association would be no help to anyone.
//!
//! # What it costs
//!
//! Queues on several reactor threads share one timer. A command reads when the host was last heard of, and writes that only when it is an eighth of the
//! timeout old: the cache line stays shared, but for some writes in each timeout. So that a host gets its whole timeout from each command on, the timer
//! runs out that eighth later ([`KeepAlive::expires`]).
//!
//! # What a host may rely on
//!
//! A host that lost its connections waits until its old association must be over, and only then repeats its commands: our initiator two timeouts
//! after the last command that it sent, and a grace of half a timeout or more (`host/fence.rs` there). We end it sooner:
//!
//! * With all threads at work, a command that is sent at `t` arrives at about `t`, and the association is over one timeout and an eighth after the last.
//! * A thread that stood still finds commands late: they may have come long ago. They count as heard of when they are found, for nothing tells
//!   when they came. So a sign of life *never revives*: one that comes when the timer has run out is none ([`KeepAlive::hear`]), on whatever thread, and
//!   the command that brought it is not carried out. When the process stood still, it does not matter which of its threads goes on first. Hence a command
//!   sent at `t` at the latest restarts the timer before one timeout and an eighth have passed since an earlier one, and it is over
//!   another timeout and an eighth after that: two and a quarter after `t`, which is within the host's grace.
//! * This does not hold when one thread after another stands still, each for nearly a timeout, with a command for each to find afterwards. As with
//!   any timer that is late, what then guards the host is that an admin Connect waits until each thread has gone through a turn, and for what dying
//!   associations have in backends: see the module `association`.
//!
//! Hosts that count Keep Alive alone, as if there were no TBKAS, are served as before: Keep Alive is a command.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use godwit_reactor::Time;

/// The timer. Times are of one clock on all threads ([`Reactor::now`](godwit_reactor::Reactor::now)).
#[derive(Debug, Default)]
pub(crate) struct KeepAlive {
    /// Zero for none.
    timeout_nanos: AtomicU64,
    heard_nanos: AtomicU64,
}

impl KeepAlive {
    /// Sets the timeout (zero for none), and starts the timer.
    pub(crate) fn start(&self, timeout: Duration, now: Time) {
        // In this order: who sees the timeout sees that the host was heard of.
        self.heard_nanos.fetch_max(now.as_nanos(), Ordering::Relaxed);
        self.timeout_nanos.store(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// The timeout; zero for none.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_nanos.load(Ordering::Acquire))
    }

    /// The host has sent a command. Whether that was in time: a timer that ran out does not start again.
    #[must_use = "a command that comes too late is not carried out"]
    pub(crate) fn hear(&self, now: Time) -> bool {
        let timeout_nanos = self.timeout_nanos.load(Ordering::Acquire);
        if timeout_nanos == 0 {
            return true;
        }
        let silent_nanos = now.as_nanos().saturating_sub(self.heard_nanos.load(Ordering::Relaxed));
        if silent_nanos >= limit_nanos(timeout_nanos) {
            return false;
        }
        if silent_nanos >= granularity_nanos(timeout_nanos) {
            // Another thread may have written a later time since.
            self.heard_nanos.fetch_max(now.as_nanos(), Ordering::Relaxed);
        }
        true
    }

    /// When the host counts as gone unless it is heard of; `None` without a timer.
    pub(crate) fn expires(&self) -> Option<Time> {
        let timeout_nanos = self.timeout_nanos.load(Ordering::Acquire);
        let heard_nanos = self.heard_nanos.load(Ordering::Relaxed);
        (timeout_nanos > 0).then(|| Time::from_nanos(heard_nanos.saturating_add(limit_nanos(timeout_nanos))))
    }
}

/// How old the time may get at which the host was last heard of.
fn granularity_nanos(timeout_nanos: u64) -> u64 {
    timeout_nanos / 8
}

/// After what silence the timer runs out.
fn limit_nanos(timeout_nanos: u64) -> u64 {
    timeout_nanos.saturating_add(granularity_nanos(timeout_nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_millis(millis: u64) -> Time {
        Time::default() + Duration::from_millis(millis)
    }

    fn started() -> KeepAlive {
        let timer = KeepAlive::default();
        timer.start(Duration::from_secs(8), at_millis(1000));
        timer
    }

    #[test]
    fn a_host_has_its_whole_timeout_from_any_command_on() {
        let timer = started();
        assert_eq!(timer.expires(), Some(at_millis(10_000)));
        for heard in (1500..20_000).step_by(100) {
            assert!(timer.hear(at_millis(heard)));
            let expires = timer.expires().unwrap();
            assert!(expires >= at_millis(heard + 8000) && expires <= at_millis(heard + 9000), "{expires:?} after {heard} ms");
        }
    }

    #[test]
    fn commands_that_follow_each_other_write_nothing() {
        let timer = started();
        assert!(timer.hear(at_millis(1999)));
        assert_eq!(timer.expires(), Some(at_millis(10_000)));
        assert!(timer.hear(at_millis(2000)));
        assert_eq!(timer.expires(), Some(at_millis(11_000)));
    }

    #[test]
    fn a_timer_that_ran_out_does_not_start_again() {
        let timer = started();
        assert!(timer.hear(at_millis(9999)));
        let timer = started();
        assert!(!timer.hear(at_millis(10_000)));
        assert!(!timer.hear(at_millis(10_001)));
        assert_eq!(timer.expires(), Some(at_millis(10_000)));
    }

    #[test]
    fn a_thread_whose_time_is_a_little_behind_changes_nothing() {
        let timer = started();
        assert!(timer.hear(at_millis(5000)));
        assert!(timer.hear(at_millis(3000)));
        assert_eq!(timer.expires(), Some(at_millis(14_000)));
    }

    #[test]
    fn without_a_timeout_it_never_runs_out_and_one_may_be_set_late() {
        let timer = KeepAlive::default();
        assert!(timer.hear(at_millis(u64::from(u32::MAX))));
        assert_eq!(timer.expires(), None);
        timer.start(Duration::from_secs(8), at_millis(100_000));
        assert!(timer.hear(at_millis(108_999)));
        assert!(!timer.hear(at_millis(118_000)));
    }
}
