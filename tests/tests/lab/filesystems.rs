//! What file systems of Linux's keep on our target: every file, byte for byte, through unmounting, disconnecting, and a target that is killed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use godwit_tests::daemon::NQN;
use godwit_tests::lab::filesystem::{FileSystem, Kind};
use godwit_tests::lab::nvme::Host;
use godwit_tests::lab::rdma::Device;
use godwit_tests::lab::{Guest, dmesg, in_guest};

use crate::cells::{Provider, address, step};
use crate::served::Served;

/// XFS takes no less than 300 MiB.
const VOLUME_MIB: u32 = 400;

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn ext4_keeps_its_files_on_our_iwarp_target() {
    in_guest(&Guest::with(Device::Siw).shared(), || keeps_its_files(Kind::Ext4));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn xfs_keeps_its_files_on_our_iwarp_target() {
    in_guest(&Guest::with(Device::Siw).shared(), || keeps_its_files(Kind::Xfs));
}

fn keeps_its_files(kind: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let mount_point = folder.path().join("mount");
    fs::create_dir(&mount_point).unwrap();
    let host = Host::numbered(1);
    let mut target = Served::file(Provider::Iwarp, folder.path(), VOLUME_MIB);
    let controller = host.connect(address(), NQN, &[]);

    step("make");
    let file_system = FileSystem::make(kind, &controller.disk(1));
    file_system.check();
    let mounted = file_system.mount(&mount_point);

    step("write");
    let files = write_tree(mounted.folder());
    assert!(controller.flushes(1) > 0);
    mounted.unmount();

    step("check");
    file_system.check();
    let mounted = file_system.mount(&mount_point);
    compare(&files, &read_tree(mounted.folder()));
    mounted.unmount();
    controller.disconnect();

    step("another target, another connection");
    target.kill();
    target.start_again();
    let controller = host.connect(address(), NQN, &[]);
    let file_system = file_system.moved_to(&controller.disk(1));
    file_system.check();
    let mounted = file_system.mount(&mount_point);
    compare(&files, &read_tree(mounted.folder()));

    step("write once more");
    fs::remove_dir_all(mounted.folder().join("folder 1")).unwrap();
    let files = write_tree(mounted.folder());
    assert!(mounted.is_writable());
    mounted.unmount();
    file_system.check();
    let mounted = file_system.mount(&mount_point);
    compare(&files, &read_tree(mounted.folder()));
    mounted.unmount();
    controller.disconnect();
    let log = dmesg();
    assert!(!log.contains("I/O error") && !log.contains("critical"), "{log}");
    target.finish();
}

type Tree = BTreeMap<PathBuf, Vec<u8>>;

/// Files of many sizes in some folders, each synced: grown piece by piece, written over, sparse, renamed, and some that are removed again.
fn write_tree(folder: &Path) -> Tree {
    const SIZES: [usize; 9] = [0, 1, 511, 4095, 4096, 4097, 65_537, 300_000, 3 << 20];
    let mut tree = Tree::new();
    for number in 0..72 {
        let inner = folder.join(format!("folder {}", number % 4));
        fs::create_dir_all(&inner).unwrap();
        let (path, last) = (inner.join(format!("new {number}")), inner.join(format!("file {number}")));
        let mut content = bytes(number, SIZES[number % SIZES.len()]);
        let mut file = File::create(&path).unwrap();
        for piece in content.chunks(100_000) {
            file.write_all(piece).unwrap();
        }
        if number % 5 == 0 {
            file.sync_data().unwrap();
            let end = content.len() + 200_000;
            content.resize(end, 0);
            content.extend_from_slice(b"end");
            file.write_all_at(b"end", end as u64).unwrap();
        }
        file.sync_all().unwrap();
        if number % 6 == 1 {
            fs::remove_file(&path).unwrap();
            let _ = fs::remove_file(&last);
        } else {
            fs::rename(&path, &last).unwrap();
            tree.insert(last.strip_prefix(folder).unwrap().to_owned(), content);
        }
        File::open(&inner).unwrap().sync_all().unwrap();
    }
    tree
}

/// Of an own kind for each file and each block of it.
fn bytes(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 12).wrapping_mul(97) ^ number.wrapping_mul(59)).to_le_bytes()[0]).collect()
}

fn read_tree(folder: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        for entry in fs::read_dir(inner).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                tree.insert(path.strip_prefix(folder).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    tree
}

fn compare(written: &Tree, read: &Tree) {
    assert_eq!(written.keys().collect::<Vec<_>>(), read.keys().collect::<Vec<_>>());
    for (path, content) in written {
        let found = &read[path];
        let differs = content.iter().zip(found).position(|(written, read)| written != read);
        assert!(
            content.len() == found.len() && differs.is_none(),
            "{}: {} bytes, {} written; differs at {differs:?}",
            path.display(),
            found.len(),
            content.len()
        );
    }
}
