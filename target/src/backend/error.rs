//! Why a store cannot be opened: one line each, with what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

/// Why [`Store::open`](super::Store::open) failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The block size is none that a namespace can have.
    #[error("block size {block_bytes} is not possible; use 512, 1024, 2048 or 4096")]
    BlockSize {
        /// What was asked for.
        block_bytes: u32,
    },
    /// There is no such file, and it shall not be made.
    #[error("{}: no such file; correct the path, or have it made with `create: true` and a `size` (PATH,size=10GiB after --export)", path.display())]
    MissingFile {
        /// The path.
        path: PathBuf,
    },
    /// There is no such device.
    #[error("{}: no such device; look for the right name with lsblk", path.display())]
    MissingDevice {
        /// The path.
        path: PathBuf,
    },
    /// The folder that the file shall be made in does not exist.
    #[error("{}: its folder does not exist; make it with mkdir -p", path.display())]
    MissingFolder {
        /// The path of the file.
        path: PathBuf,
    },
    /// The user that this process runs as may not open it.
    #[error("{}: permission denied to user {user}; give that user access, or start the daemon as another one{}", path.display(), if *writing { ", or set `read_only: true` (PATH,read_only after --export) if reading is enough" } else { "" })]
    Denied {
        /// The path.
        path: PathBuf,
        /// User id of this process.
        user: u32,
        /// Whether write access was asked for.
        writing: bool,
    },
    /// It lies on a read-only file system, or the device is read-only.
    #[error("{}: cannot be written to (read-only file system or device); set `read_only: true` (PATH,read_only after --export), or make it writable", path.display())]
    WriteProtected {
        /// The path.
        path: PathBuf,
    },
    /// The path names something other than a regular file.
    #[error("{} is {found}, not a regular file; {advice}", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        found: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// The path names something other than a block device.
    #[error("{} is {found}, not a block device; {advice}", path.display())]
    NotADevice {
        /// The path.
        path: PathBuf,
        /// What it is.
        found: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A file shall be made, but of what size?
    #[error("{}: does not exist yet, and `create: true` needs a `size` to make it", path.display())]
    NoSize {
        /// The path.
        path: PathBuf,
    },
    /// The file exists with another size.
    #[error("{}: is {found_bytes} bytes long, but `size` says {wanted_bytes}; an existing file is never resized: correct `size`, leave it out, or use truncate(1)", path.display())]
    SizeDiffers {
        /// The path.
        path: PathBuf,
        /// Its size.
        found_bytes: u64,
        /// The size that was asked for.
        wanted_bytes: u64,
    },
    /// There are no bytes in it.
    #[error("{what}: a size of 0 bytes cannot be exported; give it at least one block of {block_bytes} bytes")]
    Empty {
        /// The path, or `memory`.
        what: String,
        /// Bytes of a block.
        block_bytes: u32,
    },
    /// The last block is not whole.
    #[error("{what}: {size_bytes} bytes are not a whole number of blocks of {block_bytes}; the next smaller size is {}", size_bytes - size_bytes % u64::from(*block_bytes))]
    PartialBlock {
        /// The path, or `memory`.
        what: String,
        /// The size.
        size_bytes: u64,
        /// Bytes of a block.
        block_bytes: u32,
    },
    /// The size is beyond what a file can have.
    #[error("{what}: {size_bytes} bytes are more than a file can hold ({})", i64::MAX)]
    TooLarge {
        /// The path, or `memory`.
        what: String,
        /// The size.
        size_bytes: u64,
    },
    /// The device only works in larger blocks.
    #[error("{}: the device has blocks of {device_bytes} bytes, so `block_size: {block_bytes}` is too small; set `block_size: {device_bytes}`", path.display())]
    DeviceBlocks {
        /// The path.
        path: PathBuf,
        /// Bytes of the device's block.
        device_bytes: u32,
        /// Bytes of the block that was asked for.
        block_bytes: u32,
    },
    /// Another process has it locked.
    #[error("{}: still locked by {holder} after {} ms; stop that process, or export something else", path.display(), waited.as_millis())]
    Locked {
        /// The path.
        path: PathBuf,
        /// Who holds the lock.
        holder: String,
        /// For how long it was waited.
        waited: Duration,
    },
    /// The kernel or another process has claimed the device.
    #[error("{}: the device is in use by {holder}; unmount it, or stop what uses it", path.display())]
    Claimed {
        /// The path.
        path: PathBuf,
        /// Who may have claimed it.
        holder: String,
    },
    /// No lock can be taken there, so two daemons could serve the same file.
    #[error("{}: cannot be locked ({error}); keep it on a file system with flock(2)", path.display())]
    NoLocks {
        /// The path.
        path: PathBuf,
        /// What the kernel answered.
        error: io::Error,
    },
    /// While it was waited for the lock, the path came to name something else.
    #[error("{}: was replaced while it was waited for its lock; start again", path.display())]
    Replaced {
        /// The path.
        path: PathBuf,
    },
    /// Nothing there tells one file from another of the same name.
    #[error("{}: its file system keeps no birth times, so a file that replaces this one could not be told from it; give the namespace a `uuid` of its own", path.display())]
    NoIdentity {
        /// The path.
        path: PathBuf,
    },
    /// What tells later whether unflushed writes were lost cannot be written.
    #[error("{}: cannot write {}, which tells after a power cut whether writes were lost: {}; {}", path.display(), mark.display(), in_words(error), mark_advice(path, mark))]
    Mark {
        /// The path.
        path: PathBuf,
        /// The path of the mark.
        mark: PathBuf,
        /// What the operating system answered.
        error: io::Error,
    },
    /// Two exports lie on the same file or device.
    #[error("{first} and {second} are the same storage; export it once, under one namespace")]
    Twice {
        /// One path.
        first: String,
        /// The other.
        second: String,
    },
    /// The operating system refused something else.
    #[error("{what}: cannot {doing}: {}", in_words(error))]
    System {
        /// The path, or `memory`.
        what: String,
        /// What was tried.
        doing: &'static str,
        /// What it answered.
        error: io::Error,
    },
}

/// The mark of a file lies beside it, that of a device in the state directory.
fn mark_advice(path: &Path, mark: &Path) -> &'static str {
    if path.parent() == mark.parent() {
        "give the daemon's user write access to the folder, or set `read_only: true` (PATH,read_only after --export)"
    } else {
        "name a folder that the daemon's user can write to with `state_dir:` (--state-dir), or set `read_only: true`"
    }
}

/// An error of the system with what to do about it where that is known, and without its number, which says nothing to people.
pub(crate) fn in_words(error: &io::Error) -> String {
    if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) {
        return "no file descriptor left; raise LimitNOFILE= in the systemd unit, or `ulimit -n` in the shell".to_owned();
    }
    let text = error.to_string();
    text.split_once(" (os error").map_or(text.as_str(), |(words, _)| words).to_owned()
}
