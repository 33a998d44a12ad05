//! What lies below a name: files and devices told apart whatever they are called.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A file or block device of this machine, while it runs. The names of one thing (symbolic links, hard links, a loop device over a file) give the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StorageId {
    /// A regular file.
    File {
        /// Its file system's device number.
        device: u64,
        /// Its inode number there.
        inode: u64,
    },
    /// A block device.
    Device {
        /// Its device number.
        number: u64,
    },
}

impl StorageId {
    /// What an open file, or the target of a path, is.
    pub(super) fn of(metadata: &Metadata) -> Self {
        if !metadata.file_type().is_block_device() {
            return Self::File { device: metadata.dev(), inode: metadata.ino() };
        }
        let number = metadata.rdev();
        match loop_backing(number).and_then(|path| fs::metadata(path).ok()) {
            Some(backing) if backing.is_file() => Self::of(&backing),
            _ => Self::Device { number },
        }
    }
}

/// The folder of a block device in sysfs.
pub(super) fn sysfs(number: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}", numbers(number)))
}

/// A device number as sysfs and mountinfo write it.
pub(super) fn numbers(number: u64) -> String {
    format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
}

/// The file that a loop device shows.
pub(super) fn loop_backing(number: u64) -> Option<PathBuf> {
    attribute(&sysfs(number).join("loop/backing_file")).map(PathBuf::from)
}

/// A value that sysfs has, and that is not empty.
pub(super) fn attribute(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// What something is, in words.
pub(super) fn kind_of(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    if kind.is_dir() {
        "a directory"
    } else if kind.is_file() {
        "a regular file"
    } else if kind.is_block_device() {
        "a block device"
    } else if kind.is_char_device() {
        "a character device"
    } else {
        "a pipe or socket"
    }
}
