//! What keeps a machine alive that writes out to a device of its own daemon when its memory is short.
//!
//! The kernel frees memory by writing dirty pages out, here to our device: so the daemon is in the way of every allocation. If it waits for memory
//! itself, or its pages were taken, nothing goes on. Hence its pages are locked; its threads are marked as I/O flushers (`PR_SET_IO_FLUSHER`), whose own
//! allocations in the kernel never wait for write-out, and which may dirty pages when others are throttled; and it is not what is killed when
//! memory ends.

use std::fs;

use nix::sys::mman::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;
use tracing::{info, warn};

/// Protects this process, as far as it is allowed to. To be called before there are other threads, which inherit a part of it.
pub(super) fn protect() {
    // Each alone is worth having.
    if let Err(error) = configure_io_flusher_behavior(true) {
        warn!("not an I/O flusher, so that this machine may stall when its memory is short: {error}; run this with CAP_SYS_RESOURCE");
    }
    if let Err(error) = mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE) {
        warn!("memory is not locked, so that this machine may stall when it is short: {error}; run this with LimitMEMLOCK=infinity");
    }
    match fs::read_to_string("/proc/self/oom_score_adj") {
        Ok(score) if score.trim() == "-1000" => {}
        _ => match fs::write("/proc/self/oom_score_adj", "-1000") {
            Ok(()) => info!("memory is locked, and this process is not killed for want of it"),
            Err(error) => warn!("this process may be killed when memory ends: {error}; run this with OOMScoreAdjust=-1000"),
        },
    }
}
