//! The timers of one reactor, soonest first.

use std::collections::{BTreeMap, VecDeque};

use crate::{Time, TimerId, Token};

/// Timers by due time; those of the same moment go off in the order in which they were set.
///
/// A timer that is due when it is set, by which a turn of the loop asks for the next one, waits in a queue and costs no allocation.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: BTreeMap<(Time, u64), Token>,
    soon: VecDeque<(TimerId, Token)>,
    next: u64,
}

impl Timers {
    pub(crate) fn set(&mut self, now: Time, at: Time, token: Token) -> TimerId {
        let id = TimerId(at, self.next);
        self.next += 1;
        if at <= now {
            self.soon.push_back((id, token));
        } else {
            self.due.insert((at, id.1), token);
        }
        id
    }

    pub(crate) fn cancel(&mut self, id: TimerId) {
        self.due.remove(&(id.0, id.1));
        self.soon.retain(|(soon, _)| *soon != id);
    }

    /// When the next timer is due.
    pub(crate) fn next_due(&self) -> Option<Time> {
        let soon = self.soon.front().map(|(TimerId(at, _), _)| *at);
        soon.or_else(|| self.due.first_key_value().map(|(&(at, _), _)| at))
    }

    /// Takes a timer that is due by `now`.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Token> {
        if let Some((_, token)) = self.soon.pop_front() {
            return Some(token);
        }
        let entry = self.due.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timers_go_off_in_order_and_not_before_their_time() {
        let start = Time::default();
        let mut timers = Timers::default();
        timers.set(start, start + Duration::from_secs(2), Token(2));
        timers.set(start, start + Duration::from_secs(1), Token(1));
        timers.set(start, start + Duration::from_secs(1), Token(11));
        assert_eq!(timers.pop_due(start), None);
        let later = start + Duration::from_secs(2);
        assert_eq!(
            [timers.pop_due(later), timers.pop_due(later), timers.pop_due(later), timers.pop_due(later)],
            [Some(Token(1)), Some(Token(11)), Some(Token(2)), None]
        );
    }

    #[test]
    fn a_cancelled_timer_never_goes_off() {
        let mut timers = Timers::default();
        for at in [Time::default(), Time::from_nanos(5)] {
            let timer = timers.set(Time::default(), at, Token(1));
            timers.cancel(timer);
            timers.cancel(timer);
        }
        assert_eq!(timers.pop_due(Time::from_nanos(u64::MAX)), None);
        assert_eq!(timers.next_due(), None);
    }
}
