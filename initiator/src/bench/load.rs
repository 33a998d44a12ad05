//! What a generator is to do.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The order and the direction of requests, by fio's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum Pattern {
    /// Reads in any order
    RandRead,
    /// Writes in any order
    RandWrite,
    /// Reads and writes in any order
    RandRw,
    /// Reads one after the other
    Read,
    /// Writes one after the other
    Write,
}

impl Pattern {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
            Self::RandRw => "randrw",
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// Whether it changes what is stored.
    pub fn is_writing(self) -> bool {
        matches!(self, Self::RandWrite | Self::RandRw | Self::Write)
    }

    /// Whether it reads what is stored.
    pub fn is_reading(self) -> bool {
        matches!(self, Self::RandRead | Self::RandRw | Self::Read)
    }

    pub(crate) fn is_random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite | Self::RandRw)
    }

    /// Of a hundred requests, how many are reads, when `mixed` are where both are.
    pub(crate) fn read_percent(self, mixed: u8) -> u8 {
        match self {
            Self::RandRead | Self::Read => 100,
            Self::RandWrite | Self::Write => 0,
            Self::RandRw => mixed,
        }
    }
}

/// Something to do for a generator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) work: Work,
    /// Bytes of a request.
    pub(crate) request_bytes: usize,
    /// Requests under way at a time.
    pub(crate) depth: u16,
}

impl Job {
    /// For how long nothing may be due, so that nothing is answered either.
    pub(crate) fn longest_rest(&self) -> Duration {
        match self.work {
            Work::Load(Load { pace: Some(pace), .. }) => pace.rest(),
            Work::Fill | Work::Check | Work::Load(_) => Duration::ZERO,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Write the whole part once.
    Fill,
    /// Measure.
    Load(Load),
    /// Read all that was written, and compare.
    Check,
}

/// Requests for a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) pattern: Pattern,
    pub(crate) read_percent: u8,
    pub(crate) pace: Option<Pace>,
    /// What is not counted, at the beginning.
    pub(crate) ramp: Duration,
    pub(crate) time: Duration,
}

/// How many requests are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) per_second: u64,
    /// So many of a generator come at the same time.
    pub(crate) burst: u16,
}

/// A fixed rate, shared by several generators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) rate: Rate,
    pub(crate) generators: u64,
}

impl Pace {
    /// When a generator's request is due after its beginning. Both are counted from 0; generators take turns.
    pub(crate) fn due(self, generator: usize, request: u64) -> Duration {
        let burst = u64::from(self.rate.burst.max(1));
        let first = request / burst * burst;
        let before = u128::from(first) * u128::from(self.generators) + generator as u128 * u128::from(burst);
        let nanos = before * 1_000_000_000 / u128::from(self.rate.per_second);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// From the requests of one generator to those of the next.
    fn rest(self) -> Duration {
        self.due(1, 0)
    }
}

/// A generator's part of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its first byte.
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
}

impl Part {
    /// Shares a range out in equal parts of whole `unit`s. `None` when a part has not even one.
    pub(crate) fn share(offset: u64, len_bytes: u64, unit: u64, parts: usize) -> Option<Vec<Self>> {
        let count = u64::try_from(parts).ok()?;
        let len = len_bytes.checked_div(count)? / unit * unit;
        (len > 0).then(|| (0..count).map(|part| Self { offset: offset + part * len, len_bytes: len }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_shared_out_in_whole_units() {
        let parts = Part::share(4096, 1_000_000, 4096, 2).unwrap();
        assert_eq!(parts, [Part { offset: 4096, len_bytes: 499_712 }, Part { offset: 503_808, len_bytes: 499_712 }]);
        assert_eq!(Part::share(0, 8191, 4096, 2), None);
        assert_eq!(Part::share(0, 8192, 4096, 2).map(|parts| parts.len()), Some(2));
    }

    #[test]
    fn requests_of_a_rate_are_due_at_even_distances() {
        let pace = Pace { rate: Rate { per_second: 20_000, burst: 1 }, generators: 2 };
        let due = |generator| [0, 1, 10_000].map(|request| u64::try_from(pace.due(generator, request).as_micros()).unwrap());
        assert_eq!((due(0), due(1)), ([0, 100, 1_000_000], [50, 150, 1_000_050]));
        let odd = Pace { rate: Rate { per_second: 3, burst: 1 }, generators: 1 };
        assert_eq!(odd.due(0, 3_000_000_000), Duration::from_secs(1_000_000_000));
    }

    #[test]
    fn requests_of_a_burst_are_due_together_and_the_rate_is_the_same() {
        let pace = Pace { rate: Rate { per_second: 20_000, burst: 10 }, generators: 2 };
        let due = |generator| [0, 9, 10, 19, 10_000].map(|request| u64::try_from(pace.due(generator, request).as_micros()).unwrap());
        assert_eq!((due(0), due(1)), ([0, 0, 1000, 1000, 1_000_000], [500, 500, 1500, 1500, 1_000_500]));
    }

    #[test]
    fn nothing_is_due_between_bursts() {
        let rest = |pace| {
            let load = Load { pattern: Pattern::RandRead, read_percent: 100, pace, ramp: Duration::ZERO, time: Duration::from_secs(1000) };
            Job { work: Work::Load(load), request_bytes: 4096, depth: 1 }.longest_rest()
        };
        assert_eq!(rest(Some(Pace { rate: Rate { per_second: 1, burst: 300 }, generators: 2 })), Duration::from_secs(300));
        assert_eq!(rest(None), Duration::ZERO);
    }

    #[test]
    fn a_mix_has_both_directions_and_the_others_one() {
        let shares = Pattern::value_variants().iter().map(|pattern| (pattern.name(), pattern.read_percent(70)));
        assert_eq!(shares.collect::<Vec<_>>(), [("randread", 100), ("randwrite", 0), ("randrw", 70), ("read", 100), ("write", 0)]);
    }
}
