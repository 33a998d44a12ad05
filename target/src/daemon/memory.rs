//! A target on the machine of its own initiator must not wait for memory that only writing out, through itself, can free.
//!
//! With `lock_memory` nothing of the daemon is swapped out or dropped, and it is an I/O flusher for the kernel: what it allocates does not wait for other
//! memory to be written out, and it is not slowed down when there is much to be written. Both have to be set before there are other threads, which inherit
//! them, as do the kernel's workers of the rings. And it is not what is killed when memory ends.

use std::{fs, io};

use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::resource::{Resource, getrlimit};

use crate::backend::in_words;

/// Why the memory is not what it was asked to be.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Not all of it may be locked.
    #[error(
        "`lock_memory`: {}, with RLIMIT_MEMLOCK at {limit}; raise it with LimitMEMLOCK=infinity in the systemd unit, or `ulimit -l unlimited` in the shell",
        in_words(error)
    )]
    Lock {
        /// What the kernel answered.
        error: io::Error,
        /// The limit.
        limit: String,
    },
    /// It may not be an I/O flusher.
    #[error(
        "`lock_memory`: the kernel does not take the daemon for an I/O flusher ({}); give it CAP_SYS_RESOURCE (AmbientCapabilities= and CapabilityBoundingSet= in the systemd unit)", in_words(.0))]
    Flusher(io::Error),
}

/// Locks all memory, now and later, and makes this thread and those that it starts I/O flushers.
pub(super) fn lock() -> Result<(), MemoryError> {
    rustix::process::configure_io_flusher_behavior(true).map_err(|errno| MemoryError::Flusher(errno.into()))?;
    mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE)
        .map_err(|errno| MemoryError::Lock { error: errno.into(), limit: limit() })?;
    // Whoever may do the first may do this; a container may forbid it.
    if let Err(error) = fs::write("/proc/self/oom_score_adj", "-1000") {
        tracing::warn!("`lock_memory`: this process may be killed when memory ends: {}; set OOMScoreAdjust=-1000", in_words(&error));
    }
    Ok(())
}

fn limit() -> String {
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((nix::libc::RLIM_INFINITY, _)) => "no limit".to_owned(),
        Ok((soft, _)) => format!("{} KiB", soft >> 10),
        Err(_) => "an unknown number".to_owned(),
    }
}
