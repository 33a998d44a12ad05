//! The log of a guest's kernel: what of it is about a case, and what fails a case that passed.

/// What `tests/lab/guest` puts into it before it runs the command.
const COMMAND_BEGINS: &str = "lab: the command begins\n";

/// Words of lines that tell of a fault of the kernel's. A warning has a call trace.
const COMPLAINTS: [&str; 6] = ["BUG:", "kernel BUG at", "Oops", "Call Trace", "general protection fault", "KASAN:"];

/// Traces of warnings by faults of Linux's own host that no target has a part in, by functions that all are in them.
const KNOWN: [&[&str]; 1] = [
    // A controller that is removed while it resets: both have its queues go on.
    &["blk_mq_unquiesce_tagset", "nvme_rdma_setup_ctrl", "nvme_rdma_reset_ctrl_work"],
];

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
    let first = (0..lines.len()).find(|&at| complains(lines[at]) && !is_known(&lines[at..]))?;
    Some(lines[first.saturating_sub(BEFORE)..lines.len().min(first + AFTER)].join("\n"))
}

fn complains(line: &str) -> bool {
    COMPLAINTS.iter().any(|word| line.contains(word))
}

/// Whether a complaint is a trace that is [`KNOWN`]: it ends before the next complaint.
fn is_known(lines: &[&str]) -> bool {
    let end = lines.iter().skip(1).position(|line| line.contains("</TASK>") || complains(line)).map_or(0, |at| at + 1);
    let trace = &lines[..end];
    let is_of = |function: &&str| trace.iter().any(|line| line.contains(function));
    trace.first().is_some_and(|line| line.contains("Call Trace")) && KNOWN.iter().any(|functions| functions.iter().all(is_of))
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
    fn a_warning_that_only_the_host_can_cause_is_none() {
        let known = "[    1.0] WARNING: CPU: 1 PID: 9 at block/blk-mq.c:297 blk_mq_unquiesce_queue+0x8/0x9\n[    1.1] Call Trace:\n[    1.2]  <TASK>\n\
                     [    1.3]  blk_mq_unquiesce_tagset+0x4d/0x60\n[    1.4]  nvme_rdma_setup_ctrl+0x771/0x860 [nvme_rdma]\n\
                     [    1.5]  nvme_rdma_reset_ctrl_work+0x7b/0xa0 [nvme_rdma]\n[    1.6]  </TASK>\n";
        assert_eq!(complaint(known), None);
        let other = "[    2.0] Call Trace:\n[    2.1]  nvme_rdma_setup_ctrl+0x1/0x2\n[    2.2]  </TASK>\n";
        assert!(complaint(&format!("{known}{other}")).is_some_and(|said| said.contains("[    2.1]")));
        assert!(complaint(&format!("{other}{known}")).is_some_and(|said| said.starts_with("[    2.0]")));
        let cut_off = "[    0.8] Call Trace:\n[    0.9]  <IRQ>\n";
        assert!(complaint(&format!("{cut_off}{known}")).is_some_and(|said| said.starts_with("[    0.8]")));
        assert!(complaint(&format!("[    0.9] Oops: 0000\n{known}")).is_some());
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
