//! The cores that a process of a run may use: what a pinned thread starts inherits its core.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// This thread.
const SELF: Pid = Pid::from_raw(0);

/// The cores that this thread may use, in order.
pub fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(SELF) else { return Vec::new() };
    (0..CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false)).collect()
}

/// Two of them, one for each end.
pub fn pair() -> Option<[usize; 2]> {
    allowed().first_chunk().copied()
}

/// This thread on one core, and all that it starts; back where it was when this is dropped.
#[derive(Debug)]
pub struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// To a core.
    ///
    /// # Errors
    ///
    /// When this thread may not use it.
    pub fn to(core: usize) -> io::Result<Self> {
        let before = sched_getaffinity(SELF)?;
        let mut only = CpuSet::new();
        only.set(core)?;
        sched_setaffinity(SELF, &only)?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = sched_setaffinity(SELF, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_a_pinned_thread_starts_has_its_core_alone() {
        let before = allowed();
        let core = *before.last().unwrap();
        let pinned = Pinned::to(core).unwrap();
        let status = Command::new("cat").arg("/proc/self/status").output().unwrap();
        let text = String::from_utf8(status.stdout).unwrap();
        let cores = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned();
        assert_eq!((cores, allowed()), (core.to_string(), vec![core]));
        drop(pinned);
        assert_eq!(allowed(), before);
    }

    #[test]
    fn a_core_that_there_is_not_is_refused() {
        assert!(Pinned::to(CpuSet::count()).is_err());
    }
}
