//! What a daemon says of its own process.

use std::time::Duration;

use nix::time::ClockId;

/// Processor time that this process has used, with all its threads.
#[must_use]
pub fn cpu_time() -> Duration {
    // It cannot fail: Linux has this clock.
    ClockId::CLOCK_PROCESS_CPUTIME_ID.now().map(Duration::from).unwrap_or_default()
}
