//! The log of a guest's kernel: what of it is about a case, and what fails a case that passed.

/// What `tests/lab/guest` puts into it before it runs the command.
const COMMAND_BEGINS: &str = "lab: the command begins\n";

/// Words of lines that tell of a fault of the kernel's. A warning has a call trace.
const COMPLAINTS: [&str; 6] = ["BUG:", "kernel BUG at", "Oops", "Call Trace", "general protection fault", "KASAN:"];

/// How many lines around a complaint are shown.
const BEFORE: usize = 5;
const AFTER: usize = 40;

/// The part of a log that is later than the boot.
pub fn of_command(log: &str) -> &str {
    log.split_once(COMMAND_BEGINS).map_or(log, |(_, rest)| rest)
}

/// The first complaint in a log, with what stands around it.
pub fn complaint(log: &str) -> Option<String> {
    let lines: Vec<_> = log.lines().collect();
    let first = lines.iter().position(|line| COMPLAINTS.iter().any(|word| line.contains(word)))?;
    Some(lines[first.saturating_sub(BEFORE)..lines.len().min(first + AFTER)].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_a_complaint() {
        let log = "[    1.0] nvme nvme0: creating 2 I/O queues.\n[    1.1] WARNING: CPU: 0 PID: 1 at drivers/x.c:1 f+0x1/0x2\n\
                   [    1.2] Call Trace:\n[    1.3]  <TASK>\n";
        assert_eq!(complaint(log).as_deref(), Some(log.trim_end()));
    }

    #[test]
    fn the_boot_is_not_about_the_command() {
        assert_eq!(of_command("[    1.0] Run /init\n[    2.0] lab: the command begins\n[    3.0] nvme\n"), "[    3.0] nvme\n");
        assert_eq!(of_command("[    1.0] Run /init\n"), "[    1.0] Run /init\n");
    }

    #[test]
    fn what_a_kernel_says_in_good_health_is_none() {
        let log = "[    1.0] siw: loading out-of-tree module taints kernel.\n\
                   [    2.0] nvme nvme0: new ctrl: NQN \"nqn.2026-11.org.example:test\", addr 10.9.0.1:4420\n\
                   [    3.0] nvme nvme0: I/O tag 1 (1001) QID 1 timeout\n";
        assert_eq!(complaint(log), None);
    }
}
