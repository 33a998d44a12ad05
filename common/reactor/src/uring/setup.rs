//! Making a ring, and saying in words why it cannot be made.

use std::fs;
use std::io;
use std::sync::Once;

use godwit_memory::{Pool, PoolError};
use io_uring::{IoUring, Probe, opcode};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::files::FILE_TABLE_ENTRIES;

/// Entries of the submission queue; the completion queue has four times as many.
const RING_ENTRIES: u32 = 1024;

/// Entries where so many do not fit. Newer kernels count the rings of all processes of a user as locked memory: one of this size is two pages, so where
/// 64 KiB may be locked there is room for eight, the reactors of a target and of an initiator.
const SMALL_RING_ENTRIES: u32 = 32;

/// The largest piece of memory that the kernel takes as one registered buffer.
const MAX_REGISTERED_BYTES: usize = 1 << 30;

/// The oldest kernel that this reactor is made for.
const OLDEST_KERNEL: &str = "6.1";

/// Why a [`Uring`](super::Uring) cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The administrator switched io_uring off.
    #[error(
        "io_uring is switched off on this machine (kernel.io_uring_disabled is {value}); allow it with: sysctl kernel.io_uring_disabled=0"
    )]
    Disabled {
        /// The value of the switch.
        value: String,
    },
    /// A seccomp filter forbids it.
    #[error(
        "io_uring is forbidden to this process ({error}), as a container's seccomp profile does; allow the system calls io_uring_setup, io_uring_enter and io_uring_register in it"
    )]
    Seccomp {
        /// `EPERM` or `ENOSYS`.
        error: &'static str,
    },
    /// The kernel lacks io_uring or a feature of it.
    #[error("this kernel ({kernel}) lacks {what}; Linux {OLDEST_KERNEL} or newer is needed")]
    Kernel {
        /// The running kernel.
        kernel: String,
        /// What is missing.
        what: &'static str,
    },
    /// No memory or descriptors for the ring.
    #[error("no {what} left for an io_uring: {limit}")]
    Resources {
        /// What ran out.
        what: &'static str,
        /// What bounds it, and how to raise that.
        limit: String,
    },
    /// The buffers cannot be made.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Anything else.
    #[error("cannot set up io_uring: {0}")]
    Other(io::Error),
}

/// Makes a ring with the cheapest notification that the kernel has.
pub(super) fn ring() -> Result<IoUring, SetupError> {
    let ring = match ring_of(RING_ENTRIES) {
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => ring_of(SMALL_RING_ENTRIES),
        other => other,
    };
    let ring = ring.map_err(explain)?;
    check_features(&ring)?;
    Ok(ring)
}

fn ring_of(entries: u32) -> io::Result<IoUring> {
    let modern = IoUring::builder()
        .setup_cqsize(4 * entries)
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_clamp()
        .build(entries);
    match modern {
        // Flags newer than the kernel: it works without them, with more interrupts.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().setup_cqsize(4 * entries).setup_clamp().build(entries)
        }
        other => other,
    }
}

fn check_features(ring: &IoUring) -> Result<(), SetupError> {
    let lacking = |what| SetupError::Kernel { kernel: kernel_release(), what };
    if !ring.params().is_feature_ext_arg() {
        return Err(lacking("io_uring waits with a time limit"));
    }
    if !ring.params().is_feature_nodrop() {
        return Err(lacking("io_uring completions that are never dropped"));
    }
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|_| lacking("the io_uring probe"))?;
    let needed = [
        (opcode::PollAdd::CODE, "io_uring POLL_ADD"),
        (opcode::AsyncCancel::CODE, "io_uring ASYNC_CANCEL"),
        (opcode::Read::CODE, "io_uring READ"),
        (opcode::Write::CODE, "io_uring WRITE"),
        (opcode::ReadFixed::CODE, "io_uring READ_FIXED"),
        (opcode::WriteFixed::CODE, "io_uring WRITE_FIXED"),
        (opcode::Fsync::CODE, "io_uring FSYNC"),
        (opcode::Fallocate::CODE, "io_uring FALLOCATE"),
    ];
    match needed.iter().find(|(code, _)| !probe.is_supported(*code)) {
        Some((_, what)) => Err(lacking(what)),
        None => Ok(()),
    }
}

/// What the answer of the kernel to the making of a ring means.
pub(super) fn explain(error: io::Error) -> SetupError {
    match error.raw_os_error() {
        Some(libc::EPERM) => match switch() {
            Some(value) if value != "0" => SetupError::Disabled { value },
            _ => SetupError::Seccomp { error: "EPERM" },
        },
        Some(libc::ENOSYS) if kernel_is_new_enough() => SetupError::Seccomp { error: "ENOSYS" },
        Some(libc::ENOSYS) => SetupError::Kernel { kernel: kernel_release(), what: "io_uring" },
        Some(libc::EINVAL) => SetupError::Kernel { kernel: kernel_release(), what: "the io_uring set-up flags" },
        Some(libc::ENOMEM) => {
            let limit = format!(
                "{}, for all processes of this user together; {RAISE_LOCKED_MEMORY}; or raise the service's MemoryMax=",
                locked_memory_limit()
            );
            SetupError::Resources { what: "memory", limit }
        }
        Some(libc::EMFILE) => {
            let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
            let limit = format!("RLIMIT_NOFILE is {limit}; raise it with LimitNOFILE= in the systemd unit, or `ulimit -n` in the shell");
            SetupError::Resources { what: "file descriptor", limit }
        }
        _ => SetupError::Other(error),
    }
}

const RAISE_LOCKED_MEMORY: &str = "raise it with LimitMEMLOCK=infinity in the systemd unit, or `ulimit -l unlimited` in the shell";

fn locked_memory_limit() -> String {
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((RLIM_INFINITY, _)) => "RLIMIT_MEMLOCK is unlimited".to_owned(),
        Ok((soft, _)) => format!("RLIMIT_MEMLOCK is {} KiB", soft >> 10),
        Err(_) => "RLIMIT_MEMLOCK is unknown".to_owned(),
    }
}

fn switch() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok().map(|text| text.trim().to_owned())
}

fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// Whether the kernel has io_uring at all (5.1), so that `ENOSYS` can only come from a filter.
fn kernel_is_new_enough() -> bool {
    let release = kernel_release();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (major, minor) >= (5, 1)
}

/// Registers the pool, an optimisation: the kernel then pins its pages once and not for each operation.
pub(super) fn register_buffers(ring: &IoUring, pool: &Pool) -> bool {
    let (address, bytes) = pool.mapping();
    if bytes > MAX_REGISTERED_BYTES {
        tracing::warn!(
            "buffers of {bytes} bytes stay unregistered with io_uring, which takes at most {MAX_REGISTERED_BYTES}: I/O is a little slower"
        );
        return false;
    }
    let vector = [libc::iovec { iov_base: address.as_ptr().cast(), iov_len: bytes }];
    // SAFETY: the mapping outlives the ring: `Uring` drops its ring before its pool, and waits for the operations in flight before either.
    let result = unsafe { ring.submitter().register_buffers(&vector) };
    match result {
        Ok(()) => true,
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
            // Once a process: its other reactors are under the same limit.
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                tracing::warn!(
                    "buffers of {} KiB stay unregistered with io_uring, I/O is a little slower: {}; {RAISE_LOCKED_MEMORY}",
                    bytes >> 10,
                    locked_memory_limit()
                );
            });
            false
        }
        Err(error) => {
            tracing::warn!("buffers stay unregistered with io_uring, I/O is a little slower: {error}");
            false
        }
    }
}

/// Registers an empty file table, an optimisation: operations then skip the lookup of the descriptor.
pub(super) fn register_file_table(ring: &IoUring) -> bool {
    ring.submitter().register_files_sparse(FILE_TABLE_ENTRIES).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_their_cause() {
        let message = |errno| explain(io::Error::from_raw_os_error(errno)).to_string();
        assert!(message(libc::ENOSYS).contains("seccomp profile"), "{}", message(libc::ENOSYS));
        assert!(message(libc::EMFILE).contains("LimitNOFILE="));
        assert!(message(libc::ENOMEM).contains("RLIMIT_MEMLOCK is "), "{}", message(libc::ENOMEM));
        assert!(message(libc::EINVAL).contains("Linux 6.1"));
        if switch().is_none_or(|value| value == "0") {
            assert!(message(libc::EPERM).contains("seccomp profile"));
        }
    }
}
