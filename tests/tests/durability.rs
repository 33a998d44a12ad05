//! That a flush and a forced write are on stable storage before they are answered: what the kernel saw of it, and what is left after a kill.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::fs;
use std::os::unix::fs::MetadataExt;

use godwit_nbd::{Command, CommandFlags};
use godwit_tests::daemon::{Initiator, Target};
use godwit_tests::nbd::Client;
use godwit_tests::storage::Mount;
use godwit_tests::trace::{Event, Trace};

const BLOCK_BYTES: u32 = 4096;

/// A volume on a file of an ext4 of its own, with the kernel's record of what happens to it.
struct Traced {
    trace: Trace,
    initiator: Initiator,
    _target: Target,
    /// `7,0` and `7340032`: the device below as the block layer and as ext4 print it.
    device: [String; 2],
    _disk: Mount,
    _folder: tempfile::TempDir,
}

impl Traced {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let disk = Mount::ext4(&folder.path().join("disk"), "128M");
        let file = disk.folder().join("vol.img");
        let target = Target::start(&format!("{},size=16MiB", file.display()));
        let initiator = Initiator::start(&target.url(), &folder.path().join("nbd.sock"));
        assert!(opened_direct(target.process.pid(), &file), "the file is not open with O_DIRECT");
        let metadata = fs::metadata(&file).unwrap();
        let (major, minor) = (nix::sys::stat::major(metadata.dev()), nix::sys::stat::minor(metadata.dev()));
        let device = [format!("{major},{minor} "), format!("dev {major},{minor} ino {} ", metadata.ino())];
        let trace = Trace::start(&[
            "io_uring/io_uring_submit_req",
            "io_uring/io_uring_complete",
            "ext4/ext4_sync_file_enter",
            "ext4/ext4_sync_file_exit",
            "block/block_rq_issue",
            "block/block_rq_complete",
        ]);
        Self { trace, initiator, _target: target, device, _disk: disk, _folder: folder }
    }

    fn client(&self) -> Client {
        Client::connect(&self.initiator.socket).unwrap()
    }

    /// What happened between the moment before a request was sent and the moment after its reply came.
    fn record(&self, name: &str, request: impl FnOnce()) -> Record<'_> {
        let (sent, answered) = (format!("{name} is sent"), format!("{name} is answered"));
        self.trace.mark(&sent);
        request();
        self.trace.mark(&answered);
        Record { volume: self, name: name.to_owned(), events: self.trace.between(&sent, &answered) }
    }
}

/// Whether a process has a file open with O_DIRECT.
fn opened_direct(pid: u32, file: &std::path::Path) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(Result::unwrap);
    let on_file = descriptors.filter(|entry| fs::read_link(entry.path()).is_ok_and(|path| path == file));
    on_file.into_iter().any(|entry| {
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", entry.file_name().display())).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        i32::from_str_radix(flags.trim(), 8).unwrap() & libc::O_DIRECT != 0
    })
}

struct Record<'a> {
    volume: &'a Traced,
    name: String,
    events: Vec<Event>,
}

impl Record<'_> {
    /// The place, from `start` on, of the first event that is as wanted.
    fn find(&self, start: usize, what: &str, wanted: impl Fn(&Event) -> bool) -> usize {
        let found = self.events.iter().skip(start).position(wanted);
        start + found.unwrap_or_else(|| panic!("{}: no {what} after event {start} of\n{:#?}", self.name, self.events))
    }

    fn is_sync_enter(&self, event: &Event) -> bool {
        event.name == "ext4_sync_file_enter" && event.fields.starts_with(&self.volume.device[1])
    }

    /// The file system's sync of the file, from its begin to its success, and in between the device's flush of its cache. Returns its end.
    fn sync_with_device_flush(&self, start: usize) -> usize {
        let entered = self.find(start, "sync of the file", |event| self.is_sync_enter(event));
        let is_device = |event: &Event| event.fields.starts_with(&self.volume.device[0]);
        // A request that begins with F flushes the device's cache first, as that of a flush alone does, or a journal's commit.
        let is_flush = |event: &Event| event.fields.split(' ').nth(1).is_some_and(|rwbs| rwbs.starts_with('F'));
        let issued =
            self.find(entered, "flush of the device", |event| event.name == "block_rq_issue" && is_device(event) && is_flush(event));
        let flushed = self.find(issued, "end of that", |event| event.name == "block_rq_complete" && is_device(event) && is_flush(event));
        self.find(flushed, "success of the sync", |event| {
            event.name == "ext4_sync_file_exit" && event.fields.starts_with(&self.volume.device[1]) && event.field("ret") == Some("0")
        })
    }

    /// A request of a ring, from its submission; it must complete with `result` after the event `from` and before the reply.
    fn submitted(&self, opcodes: &[&str]) -> (usize, String) {
        let at = self.find(0, &format!("submission of {opcodes:?}"), |event| is_submission(event, opcodes));
        (at, self.events[at].field("req").unwrap().to_owned())
    }

    fn completed(&self, from: usize, request: &str, result: u32) {
        self.find(from, "completion in the ring", |event| {
            event.name == "io_uring_complete" && event.field("req") == Some(request) && event.field("result") == Some(&result.to_string())
        });
    }

    fn assert_no_sync(&self) {
        let sync = self.events.iter().find(|event| self.is_sync_enter(event) || is_submission(event, &["FSYNC"]));
        assert_eq!(sync, None, "{} waits for a sync", self.name);
    }
}

fn is_submission(event: &Event, opcodes: &[&str]) -> bool {
    event.name == "io_uring_submit_req" && event.field("opcode").is_some_and(|opcode| opcodes.contains(&opcode))
}

const WRITES: [&str; 2] = ["WRITE_FIXED", "WRITE"];

#[test]
#[ignore = "needs root, for tracefs and loop devices"]
fn flushes_and_forced_writes_are_synced_before_they_are_answered() {
    let volume = Traced::new();
    let mut client = volume.client();
    let data = vec![0x5a; BLOCK_BYTES as usize];
    let write = |client: &mut Client, offset, flags| client.request(Command::Write, flags, offset, BLOCK_BYTES, &data).unwrap();
    let flush = |client: &mut Client| client.request(Command::Flush, CommandFlags::NONE, 0, 0, &[]).unwrap();
    // Blocks that are there: what follows is about syncs, not about the allocation of blocks.
    client.write(0, &vec![1; 64 << 10]);
    flush(&mut client);

    for round in 0..5 {
        let offset = round * u64::from(BLOCK_BYTES);
        let plain = volume.record(&format!("write {round}"), || drop(write(&mut client, offset, CommandFlags::NONE)));
        let (submitted, request) = plain.submitted(&WRITES);
        plain.completed(submitted, &request, BLOCK_BYTES);
        plain.assert_no_sync();

        let flushed = volume.record(&format!("flush {round}"), || drop(flush(&mut client)));
        let (submitted, request) = flushed.submitted(&["FSYNC"]);
        let synced = flushed.sync_with_device_flush(submitted);
        flushed.completed(synced, &request, 0);

        let forced = volume.record(&format!("forced write {round}"), || drop(write(&mut client, offset, CommandFlags::FUA)));
        let (submitted, request) = forced.submitted(&WRITES);
        let synced = forced.sync_with_device_flush(submitted);
        forced.completed(synced, &request, BLOCK_BYTES);

        for (name, command) in [("zeroing", Command::WriteZeroes), ("discard", Command::Trim)] {
            let call = |client: &mut Client, flags| client.request(command, flags, 32 << 10, BLOCK_BYTES, &[]).unwrap();
            let plain = volume.record(&format!("{name} {round}"), || drop(call(&mut client, CommandFlags::NONE)));
            plain.assert_no_sync();
            let forced = volume.record(&format!("forced {name} {round}"), || drop(call(&mut client, CommandFlags::FUA)));
            forced.sync_with_device_flush(0);
        }
    }
}

/// The page cache would survive this kill in any case: what is tested is that nothing acknowledged is left in either daemon.
#[test]
fn what_one_connection_wrote_and_another_flushed_is_in_the_file_after_a_kill() {
    let folder = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
    let file = folder.path().join("vol.img");
    let mut target = Target::start(&format!("{},size=64MiB", file.display()));
    let mut initiator = Initiator::start(&target.url(), &folder.path().join("nbd.sock"));
    let (mut writer, mut flusher) = (Client::connect(&initiator.socket).unwrap(), Client::connect(&initiator.socket).unwrap());
    let data: Vec<u8> = (0_u32..8 << 20).map(|at| (at / 4096 + at).to_le_bytes()[0]).collect();
    writer.write(4096, &data);
    flusher.request(Command::Flush, CommandFlags::NONE, 0, 0, &[]).unwrap();
    target.process.kill();
    initiator.process.kill();
    let found = fs::read(&file).unwrap();
    assert_eq!(found.len(), 64 << 20);
    assert!(found[4096..4096 + data.len()] == data, "the file is not what was written");
}
