//! How long a reactor may spin before it sleeps: `50us`, `1ms`, `0`.

use std::{fmt, str::FromStr, time::Duration};

/// The time that a reactor keeps polling after the last completion before it sleeps, ten times as long at most for answers that come soon after it; zero
/// never spins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PollBudget(u32);

/// A text that is no [`PollBudget`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a polling budget: write 0 to never spin, or a time up to 10ms such as 50us")]
pub struct PollBudgetError(pub String);

impl PollBudget {
    /// Never spin.
    pub const NEVER: Self = Self(0);
    /// The largest budget: beyond it, spinning only burns a core.
    pub const MAX: Self = Self(10_000);

    /// A budget of so many microseconds, if it is at most [`PollBudget::MAX`].
    #[must_use]
    pub fn from_micros(micros: u32) -> Option<Self> {
        (micros <= Self::MAX.0).then_some(Self(micros))
    }

    /// The budget.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_micros(self.0 as u64)
    }
}

impl Default for PollBudget {
    /// Fifty microseconds. Also where there is one core for all: who spins yields it to its peer, which is cheaper than to be woken by it.
    fn default() -> Self {
        Self(50)
    }
}

impl FromStr for PollBudget {
    type Err = PollBudgetError;

    /// Digits and a unit, `us` or `ms`; digits alone are microseconds.
    fn from_str(text: &str) -> Result<Self, PollBudgetError> {
        let (digits, scale) = if let Some(digits) = text.strip_suffix("us") {
            (digits, 1)
        } else if let Some(digits) = text.strip_suffix("ms") {
            (digits, 1000)
        } else {
            (text, 1)
        };
        Some(digits)
            .filter(|d| d.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|d| d.parse::<u32>().ok())
            .and_then(|n| n.checked_mul(scale))
            .and_then(Self::from_micros)
            .ok_or_else(|| PollBudgetError(text.to_owned()))
    }
}

impl fmt::Display for PollBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("0"),
            micros => write!(f, "{micros}us"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_microseconds_and_milliseconds() {
        for (text, micros) in [("0", 0), ("0us", 0), ("50", 50), ("50us", 50), ("1ms", 1000), ("10ms", 10_000), ("10000", 10_000)] {
            assert_eq!(text.parse::<PollBudget>().unwrap().duration(), Duration::from_micros(micros));
        }
    }

    #[test]
    fn refuses_more_than_ten_milliseconds_and_other_units() {
        for text in ["", "us", "-1", "+1", "10001", "11ms", "1s", "1 ms", "4294967295ms"] {
            assert_eq!(
                text.parse::<PollBudget>().unwrap_err().to_string(),
                format!("`{text}` is not a polling budget: write 0 to never spin, or a time up to 10ms such as 50us")
            );
        }
    }

    #[test]
    fn displays_what_it_reads() {
        assert_eq!("1ms".parse::<PollBudget>().unwrap().to_string(), "1000us");
        assert_eq!(PollBudget::NEVER.to_string(), "0");
    }
}
