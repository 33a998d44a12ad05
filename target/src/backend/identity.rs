//! Who a store is: the identifiers that a client compares before it replays what it had not got answered.
//!
//! They must stay the same when the daemon or the machine restarts, and differ when another store has taken the place of the first. So neither path
//! nor size go in.
//!
//! * **A file** is its inode number and its birth time, to the nanosecond. Renaming or moving it within its file system, and restoring its content in
//!   place (`cp backup.img vol.img`), keep its identity; a copy, a file restored under its name anew, or one moved to another file system is another
//!   store, and clients refuse to replay onto it. Whoever wants the copy to pass for the original sets `uuid`. The identifier of the file system is
//!   left out: several file systems make it up from the device number, which may change at the next boot, and a block-wise copy of a file system
//!   repeats it.
//! * **A device** is what the kernel calls it worldwide: the UUID of a device-mapper or MD device, its WWID, its serial number; a partition is
//!   its disk, its number and its first sector; a loop device the file behind it. Without any of these it is its path and size, with a warning.
//! * **Memory** is new at each start, for it is empty.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use uuid::Uuid;

use super::storage::{attribute, loop_backing, sysfs};

/// The identifiers of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Namespace Globally Unique Identifier (NGUID).
    pub nguid: [u8; 16],
    /// Namespace UUID.
    pub uuid: Uuid,
}

/// The name space of UUIDs that are made from what a store is.
const NAME_SPACE: Uuid = Uuid::from_u128(0x8a6f_20d4_1c57_4b7e_9f43_5d1e_70c2_b9a6);

impl Identity {
    /// The identity of a UUID: the NGUID has the same bytes.
    pub fn of_uuid(uuid: Uuid) -> Self {
        Self { nguid: *uuid.as_bytes(), uuid }
    }

    /// One that never was.
    pub fn random() -> Self {
        Self::of_uuid(Uuid::new_v4())
    }

    fn of_name(name: &str) -> Self {
        Self::of_uuid(Uuid::new_v5(&NAME_SPACE, name.as_bytes()))
    }

    /// A file's. `None` when its file system keeps no birth time.
    pub(super) fn of_file(metadata: &Metadata) -> Option<Self> {
        file_name(metadata).map(|name| Self::of_name(&name))
    }

    /// A device's. `None` when nothing tells it from another one.
    pub(super) fn of_device(number: u64) -> Option<Self> {
        device_name(number, &sysfs(number)).map(|name| Self::of_name(&name))
    }

    /// That of a device that has no name of its own.
    pub(super) fn of_path(path: &Path, size_bytes: u64) -> Self {
        Self::of_name(&format!("path {} size {size_bytes}", path.display()))
    }
}

fn file_name(metadata: &Metadata) -> Option<String> {
    let born = metadata.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
    (!born.is_zero()).then(|| format!("file {} born {}.{:09}", metadata.ino(), born.as_secs(), born.subsec_nanos()))
}

fn device_name(number: u64, folder: &Path) -> Option<String> {
    if let Some(partition) = attribute(&folder.join("partition")) {
        let start = attribute(&folder.join("start"))?;
        let disk = whole_disk(folder)?;
        return Some(format!("{} partition {partition} start {start}", disk_name(&disk)?));
    }
    if let Some(backing) = loop_backing(number) {
        let offset = attribute(&folder.join("loop/offset")).unwrap_or_default();
        return Some(format!("loop offset {offset} {}", file_name(&backing.metadata().ok()?)?));
    }
    disk_name(folder)
}

/// The folder of a partition's disk: the one around its own.
fn whole_disk(partition: &Path) -> Option<PathBuf> {
    Some(partition.canonicalize().ok()?.parent()?.to_owned())
}

fn disk_name(folder: &Path) -> Option<String> {
    ["dm/uuid", "md/uuid", "wwid", "device/wwid", "serial", "device/serial"]
        .into_iter()
        .find_map(|name| attribute(&folder.join(name)).map(|value| format!("{} {value}", name.trim_start_matches("device/"))))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder(attributes: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, value) in attributes {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        }
        folder
    }

    /// A device number that no machine has.
    const NOWHERE: u64 = u64::MAX;

    #[test]
    fn a_device_is_known_by_the_strongest_name_that_it_has() {
        let name = |attributes: &[(&str, &str)]| device_name(NOWHERE, folder(attributes).path());
        assert_eq!(name(&[("dm/uuid", "LVM-abc\n"), ("serial", "1")]).unwrap(), "dm/uuid LVM-abc");
        assert_eq!(name(&[("wwid", "eui.0025\n"), ("device/serial", "S4")]).unwrap(), "wwid eui.0025");
        assert_eq!(name(&[("device/wwid", "naa.5000\n")]).unwrap(), "wwid naa.5000");
        assert_eq!(name(&[("serial", "\n"), ("device/serial", " S4 \n")]).unwrap(), "serial S4");
        assert_eq!(name(&[("serial", "\n"), ("size", "8")]), None);
    }

    #[test]
    fn a_partition_is_its_disk_its_number_and_its_start() {
        let disk =
            folder(&[("serial", "S4"), ("vda1/partition", "1"), ("vda1/start", "2048"), ("vda2/partition", "2"), ("vda2/start", "4096")]);
        assert_eq!(device_name(NOWHERE, &disk.path().join("vda1")).unwrap(), "serial S4 partition 1 start 2048");
        assert_eq!(device_name(NOWHERE, &disk.path().join("vda2")).unwrap(), "serial S4 partition 2 start 4096");
    }

    #[test]
    fn uuids_of_names_stay_what_they_are() {
        // Clients hold on to these across upgrades of the daemon.
        let uuid = Identity::of_name("file 12 born 1.000000002").uuid;
        assert_eq!(uuid.to_string(), "b5f2b811-aab4-56dd-9df5-386e664a2425");
        assert_eq!(Identity::of_uuid(uuid).nguid, *uuid.as_bytes());
    }
}
