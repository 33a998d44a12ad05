//! Every backend and block size under fio with verification, and the foreign NBD clients.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use godwit_tests::daemon::{Initiator, Target};
use godwit_tests::tools::{fio, has, nbdsh, nbdsh_command, run, run_failing, sha256};

/// A volume on a backend: target, initiator and their folder.
struct Volume {
    initiator: Initiator,
    target: Target,
    folder: tempfile::TempDir,
}

impl Volume {
    fn new(export: impl FnOnce(&Path) -> String) -> Self {
        Self::in_folder(tempfile::tempdir().unwrap(), export, &[])
    }

    fn in_folder(folder: tempfile::TempDir, export: impl FnOnce(&Path) -> String, arguments: &[&str]) -> Self {
        let target = Target::start(&export(folder.path()));
        let initiator = Initiator::start_with(&target.url(), &folder.path().join("nbd.sock"), arguments);
        Self { initiator, target, folder }
    }

    fn uri(&self) -> String {
        self.initiator.uri()
    }

    fn finish(mut self) {
        assert!(self.initiator.process.terminate() < Duration::from_secs(5));
        assert!(self.target.process.terminate() < Duration::from_secs(5));
        assert!(!self.folder.path().join("nbd.sock").exists(), "the socket is removed");
    }
}

/// Four jobs on ranges of their own, depth 32, sizes from a block to 256 KiB; each reads back what it wrote.
fn verify(volume: &Volume, block_bytes: u32) {
    let range = format!("--bsrange={block_bytes}-256k");
    let align = format!("--blockalign={block_bytes}");
    let arguments = [
        "--rw=randrw",
        "--iodepth=32",
        "--numjobs=4",
        "--size=24m",
        "--offset_increment=24m",
        "--verify=crc32c",
        "--verify_fatal=1",
        &range,
        &align,
    ];
    fio(&volume.uri(), &arguments);
}

/// A loop device on a file, detached when dropped.
struct LoopDevice(String);

impl LoopDevice {
    fn on(path: &Path) -> Self {
        run(Command::new("truncate").args(["-s", "128M"]).arg(path));
        Self(run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(path)).trim().to_owned())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

fn disk_folder() -> tempfile::TempDir {
    // Where O_DIRECT works: the build folder, rather than a /tmp that may be in memory.
    tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
}

#[test]
fn fio_verifies_a_file() {
    for block_bytes in [512, 4096] {
        let volume = Volume::in_folder(
            disk_folder(),
            |folder| format!("{},size=128MiB,block_size={block_bytes}", folder.join("disk.img").display()),
            &[],
        );
        verify(&volume, block_bytes);
        volume.finish();
    }
}

#[test]
fn fio_verifies_memory() {
    for block_bytes in [512, 4096] {
        let volume = Volume::new(|_| format!("memory:128MiB,block_size={block_bytes}"));
        verify(&volume, block_bytes);
        volume.finish();
    }
}

#[test]
#[ignore = "needs root, for loop devices"]
fn fio_verifies_a_device() {
    for block_bytes in [512, 4096] {
        let folder = disk_folder();
        let device = LoopDevice::on(&folder.path().join("loop.img"));
        let volume = Volume::in_folder(folder, |_| format!("device:{},block_size={block_bytes}", device.0), &[]);
        verify(&volume, block_bytes);
        volume.finish();
    }
}

#[test]
fn fio_verifies_without_crc_and_with_small_frames() {
    let target = Target::start("memory:128MiB");
    for query in ["crc=off", "fpdu=mss"] {
        let folder = tempfile::tempdir().unwrap();
        let initiator = Initiator::start(&format!("{}?{query}", target.url()), &folder.path().join("nbd.sock"));
        let arguments = ["--rw=randrw", "--iodepth=32", "--size=64m", "--verify=crc32c", "--verify_fatal=1", "--bsrange=4k-256k"];
        fio(&initiator.uri(), &arguments);
    }
}

#[test]
fn nbdinfo_sees_the_export() {
    let volume = Volume::in_folder(tempfile::tempdir().unwrap(), |_| "memory:64MiB".to_owned(), &["--export-name", "vol0"]);
    let info = run(Command::new("nbdinfo").arg(volume.uri()));
    for line in [
        "export-size: 67108864",
        "is_read_only: false",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_zero: true",
        "can_trim: true",
        "can_fast_zero: true",
        "can_df: true",
        "can_cache: true",
        "block_size_minimum: 4096",
        "block_size_maximum: 33554432",
        "base:allocation",
    ] {
        assert!(info.contains(line), "`{line}` is missing in:\n{info}");
    }
    let list = run(Command::new("nbdinfo").args(["--list", &volume.uri()]));
    assert!(list.contains("export=\"vol0\""), "{list}");
    let map = run(Command::new("nbdinfo").args(["--map", &volume.uri()]));
    assert!(map.contains("67108864"), "{map}");
    let named = format!("nbd+unix:///vol0?socket={}", volume.initiator.socket.display());
    assert_eq!(run(Command::new("nbdinfo").args(["--size", &named])).trim(), "67108864");
    let other = format!("nbd+unix:///other?socket={}", volume.initiator.socket.display());
    run_failing(Command::new("nbdinfo").arg(&other));
    volume.finish();
}

#[test]
fn nbdcopy_brings_a_gibibyte_in_and_out() {
    let folder = disk_folder();
    let source = folder.path().join("source");
    run(Command::new("sh").args(["-c", "head -c 1073741824 /dev/urandom > \"$0\""]).arg(&source));
    let volume = Volume::in_folder(folder, |folder| format!("{},size=1GiB", folder.join("disk.img").display()), &[]);
    let copy = volume.folder.path().join("copy");
    run(Command::new("nbdcopy").args(["--connections=4", "--flush"]).arg(&source).arg(volume.uri()));
    run(Command::new("nbdcopy").args(["--connections=4"]).arg(volume.uri()).arg(&copy));
    assert_eq!(sha256(&source), sha256(&copy));
    assert_eq!(sha256(&source), sha256(&volume.folder.path().join("disk.img")));
    volume.finish();
}

#[test]
fn qemu_img_converts_in_and_out() {
    let volume = Volume::new(|_| "memory:64MiB".to_owned());
    let folder = volume.folder.path();
    let (source, qcow2, back) = (folder.join("source"), folder.join("source.qcow2"), folder.join("back"));
    run(Command::new("sh").args(["-c", "head -c 33554432 /dev/urandom > \"$0\"; truncate -s 67108864 \"$0\""]).arg(&source));
    run(Command::new("qemu-img").args(["convert", "-f", "raw", "-O", "qcow2"]).arg(&source).arg(&qcow2));
    run(Command::new("qemu-img").args(["convert", "-n", "-f", "qcow2", "-O", "raw"]).arg(&qcow2).arg(volume.uri()));
    run(Command::new("qemu-img").args(["convert", "-f", "raw", "-O", "raw", &volume.uri()]).arg(&back));
    assert_eq!(sha256(&source), sha256(&back));
    run(Command::new("qemu-img").args(["compare", "-f", "raw", "-F", "raw", &volume.uri()]).arg(&source));
    volume.finish();
}

/// qemu-io writes at every alignment of a 512-byte grid, on a 512-byte and (through qemu's own read-modify-write) on a 4096-byte namespace.
#[test]
fn qemu_io_writes_at_every_alignment() {
    for block_bytes in [512, 4096] {
        let volume = Volume::new(|_| format!("memory:16MiB,block_size={block_bytes}"));
        let mut script: Vec<String> = vec!["write -P 0xff 0 128k".to_owned()];
        let cases = (0..9).flat_map(|start| [1, 2, 7, 8, 9, 16, 33].map(|len| (start * 512, len * 512)));
        for (index, (start, len)) in cases.enumerate() {
            let pattern = index % 250 + 1;
            script.push(format!("write -P {pattern} {start} {len}"));
            script.push(format!("read -P {pattern} {start} {len}"));
            script.push(format!("read -P 0xff {} {}", start + len, (128 << 10) - start - len));
            script.push("write -P 0xff 0 128k".to_owned());
        }
        script.extend(
            ["write -z 4k 8k", "read -P 0 4k 8k", "read -P 0xff 0 4k", "read -P 0xff 12k 4k", "discard 16k 8k", "flush"].map(str::to_owned),
        );
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw"]);
        for line in &script {
            command.args(["-c", line]);
        }
        let output = run(command.arg(volume.uri()));
        assert!(!output.contains("verification failed"), "{output}");
        volume.finish();
    }
}

/// Each command with each flag, in order and out of bounds, structured and simple.
#[test]
fn nbdsh_exercises_each_command_and_flag() {
    let volume = Volume::new(|_| "memory:64MiB".to_owned());
    let script = r#"
import errno
def fails(code, call):
    try:
        call()
    except nbd.Error as e:
        assert e.errnum == code, (e.errnum, code, e.string)
    else:
        raise AssertionError("must fail with %d" % code)
size = h.get_size()
assert size == 64 << 20
assert h.get_block_size(nbd.SIZE_MINIMUM) == 4096 and h.get_block_size(nbd.SIZE_MAXIMUM) == 32 << 20
h.set_strict_mode(0)
data = bytes(range(256)) * 16
h.pwrite(data, 4096)
assert h.pread(4096, 4096) == data
h.pwrite(data * 2, 8192, nbd.CMD_FLAG_FUA)
assert h.pread(8192, 8192, nbd.CMD_FLAG_DF) == data * 2
big = data * 8192
h.pwrite(big, 0)
assert h.pread(32 << 20, 0) == big
chunks = []
def chunk(buf, offset, status, err):
    chunks.append((offset, len(buf)))
assert h.pread_structured(8 << 20, 4096, chunk) == big[4096:4096 + (8 << 20)]
assert sum(n for _, n in chunks) == 8 << 20
h.flush()
h.cache(65536, 0)
h.trim(8192, 4096)
h.trim(8192, 65536, nbd.CMD_FLAG_FUA)
h.zero(8192, 4096)
assert h.pread(8192, 4096) == bytes(8192)
assert h.pread(4096, 0) == data and h.pread(4096, 12288) == data
h.zero(4096, 16384, nbd.CMD_FLAG_NO_HOLE)
h.zero(4096, 20480, nbd.CMD_FLAG_FUA)
h.zero(4096, 24576, nbd.CMD_FLAG_FAST_ZERO)
h.zero(48 << 20, 8 << 20)
assert h.pread(1 << 20, 40 << 20) == bytes(1 << 20)
extents = []
h.block_status(size, 0, lambda m, o, e, err: extents.extend(e)) if h.can_meta_context("base:allocation") else None
fails(errno.EINVAL, lambda: h.pread(512, 0))
fails(errno.EINVAL, lambda: h.pread(4096, 512))
fails(errno.EINVAL, lambda: h.pwrite(bytes(512), 512))
fails(errno.EINVAL, lambda: h.pread(4096, size))
fails(errno.ENOSPC, lambda: h.pwrite(bytes(4096), size))
fails(errno.ENOSPC, lambda: h.pwrite(bytes(8192), size - 4096))
fails(errno.ENOSPC, lambda: h.zero(8192, size - 4096))
fails(errno.EINVAL, lambda: h.trim(8192, size - 4096))
assert h.pread(4096, 0) == data
"#;
    nbdsh(&volume.uri(), script);
    // The same without structured replies, as the kernel speaks.
    let simple = format!(
        "h.set_request_structured_replies(False)\nh.connect_uri({:?})\nassert not h.get_structured_replies_negotiated()\n\
         d = bytes(range(256)) * 4096\nh.pwrite(d * 32, 0)\nassert h.pread(32 << 20, 0) == d * 32\nh.flush()\n",
        volume.uri()
    );
    run(nbdsh_command().args(["-c", &simple]));
    volume.finish();
}

#[test]
fn a_read_only_export_refuses_writes() {
    let volume = Volume::new(|folder| {
        fs::write(folder.join("disk.img"), vec![7; 1 << 20]).unwrap();
        format!("{},read_only", folder.join("disk.img").display())
    });
    let script = "import errno\nassert h.is_read_only()\nh.set_strict_mode(0)\nassert h.pread(4096, 0) == b'\\x07' * 4096\n\
                  for call in [lambda: h.pwrite(bytes(4096), 0), lambda: h.zero(4096, 0), lambda: h.trim(4096, 0)]:\n\
                  \x20   try:\n        call()\n    except nbd.Error as e:\n        assert e.errnum == errno.EPERM, e.errnum\n\
                  \x20   else:\n        raise AssertionError('a write succeeded')\n";
    nbdsh(&volume.uri(), script);
    assert!(fs::read(volume.folder.path().join("disk.img")).unwrap().iter().all(|&byte| byte == 7));
    volume.finish();
}

#[test]
fn the_tools_that_these_tests_use_are_there() {
    for tool in ["fio", "nbdinfo", "nbdcopy", "nbdsh", "qemu-img", "qemu-io", "sha256sum"] {
        assert!(has(tool), "{tool} is missing; run `make setup`");
    }
}
