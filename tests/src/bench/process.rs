//! What /proc tells of a process, beside its processor time.

use std::fs;

/// Memory that a process has resident, in KiB; nothing when it is gone.
pub fn resident_kib(pid: u32) -> Option<u64> {
    kib_of(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS:")
}

/// The most memory that a process ever had resident, in KiB; nothing when it is gone.
pub fn peak_resident_kib(pid: u32) -> Option<u64> {
    kib_of(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmHWM:")
}

/// Memory that programs can have without swapping, in KiB.
pub fn available_kib() -> Option<u64> {
    kib_of(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

/// Whether a process runs under a name; one that ended and was not waited for does not.
pub fn runs(pid: i32, name: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((head, fields)) = stat.rsplit_once(')') else { return false };
    head.split_once('(').is_some_and(|(_, found)| found == name) && !fields.trim_start().starts_with('Z')
}

fn kib_of(text: &str, label: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(label))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_peak_is_not_the_present() {
        let status = "Name:\tnbdkit\nVmHWM:\t  532480 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(kib_of(status, "VmHWM:"), Some(532_480));
        assert_eq!(kib_of(status, "VmSwap:"), None);
    }

    #[test]
    fn a_process_runs_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        // Between fork and exec the child still has our name.
        while !runs(pid, "sleep") {
            std::thread::yield_now();
        }
        assert!(!runs(pid, "nbdkit"));
        child.kill().unwrap();
        // Not waited for: a zombie now, or in a moment.
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while runs(pid, "sleep") {
            assert!(std::time::Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
    }
}
