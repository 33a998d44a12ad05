//! When an operation may be sent again: not before the association that it was first sent on is dead at the target too.
//!
//! A command that was sent and not answered may still be on its way, in a kernel's buffer or in the target's hands. Sent again too early, the old
//! one could land after a newer write of the same blocks. So the next association is opened only when one of these holds for every queue of the old one:
//!
//! * The queue has no unanswered command that changes data.
//! * The target closed or reset the queue's connection: then it takes nothing from it any more, whatever is still under way.
//! * Its keep alive timeout must have run out at the target. The target restarts its timer when it *receives* a Keep Alive. We never have two of them
//!   unanswered, so the target restarts it at most once after the last answer that we saw, and that one time before it would have run out: at the latest
//!   it runs out two timeouts after that answer; one, when no Keep Alive was under way. A target that counts any command as a sign of life (traffic based
//!   keep alive) looks once a timeout whether there was one: two timeouts after the last thing that we sent. (Our own target gives it up sooner: see the
//!   module `keep_alive` there.) To either comes a grace for rounding and for clocks that differ.
//!
//! It makes no difference whether the next association is made at the same address or at another one: addresses are doors of one target, and what the old
//! association left may come in by any of them until it is dead.
//!
//! Within an association a command is sent again only after it was answered, be it that the target aborted it: one that was answered changes nothing any more.
//! A command that is overdue is not sent again beside its first copy; if an Abort does not end it the association does, and then all of the above holds.
//!
//! Replayed is in the order of submission, queue by queue, and nothing that is submitted later goes before it. Between queues there is no order, and none is
//! needed: two operations whose order matters to their user are not under way together. A flush, in particular, is to cover what was acknowledged before
//! it was submitted; that was answered on the old association and is not replayed, so that a flush covers it whenever it is sent (unless the target lost its
//! power meanwhile: see the module `ledger`). What is replayed beside the flush was not acknowledged when it was submitted.
//!
//! An operation that fails because it waited too long (`fast_io_fail_tmo`, `ctrl_loss_tmo`) may still be carried out by the old association. Whatever its user
//! does next cannot be overtaken by it: until the old association is dead at the target nothing is sent at all.
//!
//! What this cannot see: bytes that our kernel still retransmits after we closed the socket. They arrive before the target's timer runs out, and are
//! carried out before anything is sent again, or after, and meet a closed connection. With traffic based keep alive a network that lets single
//! commands through while it loses the end of the stream could prolong the association beyond our reckoning. And a command that a foreign target has
//! handed to its storage when its timer runs out may still land later; our own target waits for those before it lets a new association in.

use std::time::Duration;

use godwit_reactor::Time;

/// What is known about an old association that ended without a word from the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Silence {
    /// Keep alive timeout that the target uses.
    pub(crate) keep_alive: Duration,
    /// Whether any command counts as a sign of life.
    pub(crate) traffic_based: bool,
    /// When the last answer to a Keep Alive (or to Connect) came.
    pub(crate) last_answer: Time,
    /// Whether a Keep Alive is unanswered.
    pub(crate) unanswered: bool,
    /// When the last command was sent, on any queue.
    pub(crate) last_sent: Time,
}

impl Silence {
    /// When the association is dead at the target in any case.
    pub(crate) fn dead_at(&self) -> Time {
        let restarted = if self.unanswered { 2 } else { 1 };
        let by_keep_alive = self.last_answer + self.keep_alive * restarted;
        let by_traffic = self.last_sent + self.keep_alive * if self.traffic_based { 2 } else { 1 };
        by_keep_alive.max(by_traffic) + grace(self.keep_alive)
    }
}

/// Half the timeout, and at least two seconds: targets round the timeout up to seconds, and look at it now and then.
fn grace(keep_alive: Duration) -> Duration {
    (keep_alive / 2).max(Duration::from_secs(2))
}

/// How one queue of an association ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueEnd {
    /// Whether the target closed or reset the connection.
    pub(crate) known_to_target: bool,
    /// Whether a command that changes data was sent and not answered.
    pub(crate) unanswered_change: bool,
    /// For how long nothing had been sent.
    pub(crate) quiet_for: Duration,
}

impl QueueEnd {
    /// The end of a queue on which no operation was ever sent.
    pub(crate) const HARMLESS: Self = Self { known_to_target: false, unanswered_change: false, quiet_for: Duration::MAX };

    /// Whether nothing of this queue can land any more.
    pub(crate) fn is_settled(&self) -> bool {
        self.known_to_target || !self.unanswered_change
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KATO: Duration = Duration::from_secs(5);

    fn at(seconds: f64) -> Time {
        Time::default() + Duration::from_secs_f64(seconds)
    }

    fn silence() -> Silence {
        Silence { keep_alive: KATO, traffic_based: false, last_answer: at(100.0), unanswered: false, last_sent: at(100.0) }
    }

    #[test]
    fn an_idle_association_is_dead_one_timeout_and_the_grace_after_the_last_answer() {
        assert_eq!(silence().dead_at(), at(107.5));
    }

    #[test]
    fn an_unanswered_keep_alive_may_have_restarted_the_timer_once() {
        assert_eq!(Silence { unanswered: true, last_sent: at(102.5), ..silence() }.dead_at(), at(112.5));
    }

    #[test]
    fn the_wait_counts_from_the_last_command_sent() {
        assert_eq!(Silence { last_sent: at(104.0), ..silence() }.dead_at(), at(111.5));
        assert_eq!(Silence { last_sent: at(130.0), unanswered: true, ..silence() }.dead_at(), at(137.5));
    }

    #[test]
    fn traffic_based_keep_alive_doubles_the_wait() {
        assert_eq!(Silence { traffic_based: true, ..silence() }.dead_at(), at(112.5));
    }

    #[test]
    fn the_grace_is_at_least_two_seconds() {
        assert_eq!(Silence { keep_alive: Duration::from_secs(1), ..silence() }.dead_at(), at(103.0));
        assert_eq!(Silence { keep_alive: Duration::from_secs(60), ..silence() }.dead_at(), at(190.0));
    }

    #[test]
    fn a_queue_is_settled_when_the_target_knows_or_nothing_can_land() {
        let end = |known_to_target, unanswered_change| QueueEnd { known_to_target, unanswered_change, quiet_for: Duration::ZERO };
        assert!(end(true, true).is_settled());
        assert!(end(true, false).is_settled());
        assert!(end(false, false).is_settled());
        assert!(!end(false, true).is_settled());
    }
}
