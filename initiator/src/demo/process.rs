//! Processor time of a process, as /proc tells it.

use std::fs;
use std::time::Duration;

/// Processor time that a process used so far, with its threads; nothing when it is gone.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    cpu_time_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// User and system time are fields 14 and 15, in ticks of 10 ms; the name before them may hold anything.
fn cpu_time_of(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    Some(Duration::from_millis((ticks.next()?.ok()? + ticks.next()?.ok()?) * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_cannot_shift_its_times() {
        let stat = "42 (a) b 1 2 (c) S 1 42 42 0 -1 4194560 100 0 0 0 150 25 7 8 20 0 1 0 9999 1000 200";
        assert_eq!(cpu_time_of(stat), Some(Duration::from_millis(1750)));
        assert_eq!(cpu_time_of("42 (short) S 1"), None);
    }
}
