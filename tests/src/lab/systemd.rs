//! Guests whose first process is systemd, which boots them and shuts them down.
//!
//! A case has two bodies. The first one prepares the machine: it installs what systemd is to find. The second one runs under systemd, when it has booted.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::{Failure, Guest, PASSED, SHARED, STARTED, boot, is_inside};

/// What `tests/lab/guest` says in a guest with systemd: which body it is for.
const STAGE: &str = "GODWIT_LAB_STAGE";

/// What `tests/lab/guest` has on the console around a shutdown.
const BEGINS: &str = "lab: the shutdown begins";
const ENDS: &str = "lab: the shutdown ends";

/// Runs `before` in a guest, boots it with systemd, runs `body`, and shuts it down. The calling test passes if both do.
///
/// On the driver's side how long the shutdown took, from the order to the end of everything but the kernel; nothing in the guest.
///
/// # Panics
///
/// When it fails, or the guest does not come to its end in order.
pub fn in_guest_with_systemd(guest: &Guest, before: impl FnOnce(), body: impl FnOnce()) -> Option<Duration> {
    if is_inside() {
        run_stage(before, body);
        return None;
    }
    let run = match boot(&Guest { systemd: true, ..guest.clone() }) {
        Ok(run) => run,
        Err(failure) => panic!("{failure}{}", if let Failure::NotRun = failure { " Or systemd did not boot." } else { "" }),
    };
    let Some(took) = shutdown(&run.console) else {
        panic!("the guest was not shut down in order; its console ends:\n{}", super::tail(&run.console))
    };
    Some(took)
}

fn run_stage(before: impl FnOnce(), body: impl FnOnce()) {
    let shared = Path::new(SHARED);
    match std::env::var(STAGE).as_deref() {
        Ok("before") => {
            fs::write(shared.join(STARTED), []).expect("the shared folder can be written to");
            before();
        }
        Ok("body") => {
            body();
            fs::write(shared.join(PASSED), []).expect("the shared folder can be written to");
        }
        stage => panic!("{STAGE} is {stage:?}"),
    }
}

/// How long a shutdown took, by the kernel's clock on the console.
fn shutdown(console: &str) -> Option<Duration> {
    let at = |words: &str| {
        let line = console.lines().find(|line| line.contains(words))?;
        let seconds = line.split_once('[')?.1.split_once(']')?.0.trim();
        seconds.parse().ok().map(Duration::from_secs_f64)
    };
    at(ENDS)?.checked_sub(at(BEGINS)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shutdown_is_timed_by_the_kernel() {
        let console = "[    1.5] x\r\n[   10.250000] lab: the shutdown begins\r\n[   12.750000] lab: the shutdown ends\r\n";
        assert_eq!(shutdown(console), Some(Duration::from_millis(2500)));
        assert_eq!(shutdown("[   10.250000] lab: the shutdown begins\r\n"), None);
    }
}
