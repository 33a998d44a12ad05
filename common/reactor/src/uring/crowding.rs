//! Whether others want the core of a thread that spins, for work of their own.
//!
//! Such a thread yields between its turns, but seldom where nobody takes the core. A yield that takes long gave it to someone who has much to do. One
//! alone shows nothing: somebody passed, or the hypervisor took the core. But where they come one after the other the thread had better not yield,
//! since it waits for a whole slice of time each time it does: it keeps the core for as long as a peer that spins on another core takes to answer,
//! then sleeps, for the scheduler prefers who wakes up to who has been running all the time. Where no answer comes in that time, as from a peer that
//! has to wait for a core itself, it sleeps at once. After a while it looks again.

use std::time::Duration;

use crate::Time;

/// A yield that takes longer than this is a long one.
const LONG: Duration = Duration::from_micros(500);

/// A yield that takes less than this gave the core to nobody...
const VAIN: Duration = Duration::from_micros(1);

/// ...and is not tried again for so many turns: it takes as long as a look at a stream.
const TURNS_ALONE: u8 = 3;

/// The core is crowded when a long yield comes before we have had the core for so many times as long.
const RATIO: u32 = 4;

/// For how long a thread looks for work where others want its core: the answer of a peer that is at work comes sooner, and a wake-up costs as much.
const CROWDED_BUDGET: Duration = Duration::from_micros(15);

/// After so many such looks in a row that were in vain a thread sleeps at once...
const LOOKS_IN_VAIN: u8 = 3;

/// ...so many times before it looks once more.
const SLEEPS_AT_ONCE: u8 = 16;

/// For how long a thread takes a core to be crowded that it found so; twice as long each time, up to the second figure.
const LEAST_CROWDED: Duration = Duration::from_millis(20);
const MOST_CROWDED: Duration = Duration::from_secs(1);

/// What a thread knows of its core.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Crowding {
    /// When the last long yield ended.
    gave_way: Time,
    /// Until when the core is taken to be wanted by others, and for how long that was set the last time.
    until: Time,
    lasts: Duration,
    /// Turns in which nobody else is taken to want the core.
    alone: u8,
    /// Looks in vain, in a row, before it slept; and how often it is to sleep at once.
    in_vain: u8,
    at_once: u8,
    /// It has slept since it last found work.
    slept: bool,
}

impl Crowding {
    /// Whether the core is taken to be wanted by others.
    pub(super) fn is_crowded(&self, now: Time) -> bool {
        now < self.until
    }

    /// For how long to look for work, of `most` otherwise.
    pub(super) fn budget(&self, now: Time, most: Duration) -> Duration {
        match self.is_crowded(now) {
            false => most,
            true if self.at_once > 0 => Duration::ZERO,
            true => most.min(CROWDED_BUDGET),
        }
    }

    /// There was work.
    pub(super) fn found_work(&mut self) {
        if !std::mem::take(&mut self.slept) {
            (self.in_vain, self.at_once) = (0, 0);
        }
    }

    /// There was none for as long as it looked, if it has done so since it slept last.
    pub(super) fn falls_asleep(&mut self) {
        // Who was woken for nothing, as by a timer, has not looked.
        if std::mem::replace(&mut self.slept, true) {
            return;
        }
        match self.at_once.checked_sub(1) {
            Some(left) => self.at_once = left,
            None => {
                self.in_vain = self.in_vain.saturating_add(1);
                self.at_once = if self.in_vain >= LOOKS_IN_VAIN { SLEEPS_AT_ONCE } else { 0 };
            }
        }
    }

    /// Whether to yield in this turn.
    pub(super) fn may_yield(&mut self, now: Time) -> bool {
        let alone = self.alone > 0;
        self.alone = self.alone.saturating_sub(1);
        !alone && !self.is_crowded(now)
    }

    /// A yield has ended.
    pub(super) fn yielded(&mut self, began: Time, ended: Time) {
        let taken = ended.since(began);
        self.alone = if taken < VAIN { TURNS_ALONE } else { 0 };
        if taken > LONG {
            if began.since(self.gave_way) < taken * RATIO {
                self.lasts = (self.lasts * 2).clamp(LEAST_CROWDED, MOST_CROWDED);
                self.until = ended + self.lasts;
            }
            self.gave_way = ended;
        } else if ended.since(self.until) > MOST_CROWDED {
            self.lasts = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(10);
    const SLICE: Duration = Duration::from_millis(3);

    /// A core that has been ours alone for a minute.
    fn at_peace() -> (Crowding, Time) {
        (Crowding::default(), Time::default() + Duration::from_secs(60))
    }

    /// Has the core for a time, yields it for another; when that has ended.
    fn pass(crowding: &mut Crowding, at: Time, ours: Duration, theirs: Duration) -> Time {
        let began = at + ours;
        crowding.yielded(began, began + theirs);
        began + theirs
    }

    #[test]
    fn one_who_takes_a_slice_for_each_of_ours_crowds_the_core() {
        let (mut crowding, at) = at_peace();
        let at = pass(&mut crowding, at, SHORT, SLICE);
        assert!(!crowding.is_crowded(at));
        let at = pass(&mut crowding, at, SHORT, SLICE);
        assert!(crowding.is_crowded(at) && crowding.is_crowded(at + LEAST_CROWDED / 2));
        assert!(!crowding.is_crowded(at + LEAST_CROWDED));
        let budget = |at, most| crowding.budget(at, Duration::from_micros(most)).as_micros();
        assert_eq!([budget(at, 50), budget(at, 5), budget(at, 0), budget(at + LEAST_CROWDED, 50)], [15, 5, 0, 50]);
    }

    #[test]
    fn one_who_passes_now_and_then_does_not() {
        let (mut crowding, mut at) = at_peace();
        for _ in 0..1000 {
            at = pass(&mut crowding, at, SLICE * RATIO, SLICE);
            assert!(!crowding.is_crowded(at));
        }
    }

    #[test]
    fn peers_that_yield_in_their_turn_do_not() {
        let (mut crowding, mut at) = at_peace();
        for _ in 0..1000 {
            at = pass(&mut crowding, at, SHORT, SHORT);
            assert!(!crowding.is_crowded(at));
        }
    }

    #[test]
    fn one_whom_no_answer_reaches_in_time_sleeps_at_once_and_tries_again_now_and_then() {
        let (mut crowding, at) = at_peace();
        let at = pass(&mut crowding, at, SHORT, SLICE);
        let at = pass(&mut crowding, at, SHORT, SLICE);
        let looks = |crowding: &Crowding| crowding.budget(at, Duration::from_micros(50)) > Duration::ZERO;
        let mut sleep = |finds_work_after: bool| {
            let looked = looks(&crowding);
            if finds_work_after {
                crowding.found_work();
            } else {
                crowding.falls_asleep();
                crowding.found_work();
            }
            looked
        };
        assert!((0..LOOKS_IN_VAIN).all(|_| sleep(false)));
        assert!((0..SLEEPS_AT_ONCE).all(|_| !sleep(false)));
        assert!(sleep(false), "once more");
        assert!((0..SLEEPS_AT_ONCE).all(|_| !sleep(false)));
        assert!(sleep(true), "now an answer came in time");
        assert!((0..LOOKS_IN_VAIN).all(|_| sleep(false)));
    }

    #[test]
    fn who_has_a_core_alone_seldom_yields_it() {
        let (mut crowding, at) = at_peace();
        let mut yields = |taken: u64| {
            assert!(crowding.may_yield(at));
            crowding.yielded(at, at + Duration::from_nanos(taken));
            (0..).find(|_| crowding.may_yield(at))
        };
        assert_eq!([yields(300), yields(5000), yields(300)], [Some(u32::from(TURNS_ALONE)), Some(0), Some(3)]);
    }

    #[test]
    fn who_stays_is_left_alone_for_longer_and_longer_and_forgotten_when_gone() {
        let (mut crowding, mut at) = at_peace();
        at = pass(&mut crowding, at, SHORT, SLICE);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            at = pass(&mut crowding, at, SHORT, SLICE);
            pauses.push(crowding.until.since(at).as_millis());
        }
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        let gone = crowding.until;
        at = pass(&mut crowding, gone, MOST_CROWDED * 2, SHORT);
        at = pass(&mut crowding, at, SHORT, SLICE);
        at = pass(&mut crowding, at, SHORT, SLICE);
        assert_eq!(crowding.until.since(at), LEAST_CROWDED);
    }
}
