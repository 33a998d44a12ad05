//! For how long a thread looks for work before it sleeps.
//!
//! For the [`PollBudget`](super::PollBudget) where nothing is under way: work may come at once or never. For ten times as long while an answer is due to it,
//! from a disk or from a peer, if such answers have come in that time lately. Up to what a wake-up costs, some tens of microseconds, that takes no more of the
//! processor than to sleep. Beyond, it takes a core that would be idle, and gives what the wake-ups would add to each answer: for a disk whose answers come
//! in bunches, all some hundreds of microseconds, the sixth part of the throughput. Who wants the core more sets a smaller budget, which this goes down with.
//! A thread whose answers take longer than that sleeps as early as one without any, and is none the wiser for it than before: it sees when they come.

use std::time::Duration;

/// So many times the budget...
const FACTOR: u32 = 10;

/// ...but if that is less than this, or the budget itself is more.
const LONGEST: Duration = Duration::from_millis(1);

/// So many waits in a row that were worth it, one that was not aside, show that the next will be, too.
const CONVINCED: u8 = 2;

/// What is remembered of them.
const MOST_CONVINCED: u8 = 4;

/// What a thread knows of its waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    budget: Duration,
    longest: Duration,
    /// Waits of late that outlasted the budget, and which more patience would have seen the end of.
    worth_it: u8,
}

impl Patience {
    pub(super) fn new(budget: Duration) -> Self {
        Self { budget, longest: (budget * FACTOR).min(LONGEST).max(budget), worth_it: 0 }
    }

    /// How long to look now. `due`: an answer is.
    pub(super) fn budget(&self, due: bool) -> Duration {
        if due && self.worth_it >= CONVINCED { self.longest } else { self.budget }
    }

    /// An answer that was due has come, after so long.
    pub(super) fn answered(&mut self, waited: Duration) {
        if waited > self.longest {
            self.worth_it = self.worth_it.saturating_sub(CONVINCED);
        } else if waited > self.budget {
            self.worth_it = (self.worth_it + 1).min(MOST_CONVINCED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_micros(50);

    /// A thread that has waited for so many microseconds each time, and how long it looks for an answer now.
    fn looks_after(waits: &[u64]) -> u128 {
        let mut patience = Patience::new(BUDGET);
        waits.iter().for_each(|&wait| patience.answered(Duration::from_micros(wait)));
        assert_eq!(patience.budget(false), BUDGET, "nothing is due");
        patience.budget(true).as_micros()
    }

    #[test]
    fn answers_that_come_soon_after_the_budget_are_waited_for() {
        assert_eq!(looks_after(&[]), 50);
        assert_eq!(looks_after(&[80]), 50);
        assert_eq!(looks_after(&[80, 500]), 500);
        assert_eq!(looks_after(&[10; 100]), 50, "those within the budget show nothing");
        assert_eq!(looks_after(&[80, 10, 10, 80, 10]), 500, "nor do they speak against it");
    }

    #[test]
    fn answers_that_take_long_are_slept_for() {
        assert_eq!(looks_after(&[501; 100]), 50);
        assert_eq!(looks_after(&[80, 80, 80, 80, 5000]), 500, "one may be late");
        assert_eq!(looks_after(&[80, 80, 80, 80, 80, 5000, 5000]), 50);
        assert_eq!(looks_after(&[80, 5000, 80, 5000, 80, 5000]), 50);
    }

    #[test]
    fn patience_grows_with_the_budget_up_to_a_millisecond() {
        let longest = |budget: u64| {
            let mut patience = Patience::new(Duration::from_micros(budget));
            (0..2).for_each(|_| patience.answered(Duration::from_micros(budget + 1).min(patience.longest)));
            patience.longest.as_micros()
        };
        assert_eq!([longest(0), longest(1), longest(50), longest(200), longest(10_000)], [0, 10, 500, 1000, 10_000]);
    }
}
