//! The mark beside a store that tells whether acknowledged writes may have been lost: what Unsafe Shutdowns of the SMART log counts.
//!
//! # What is counted
//!
//! A write that was acknowledged and not flushed is in the kernel: in the page cache, or in the cache of a device. It outlives the daemon, however that
//! ends, and is lost only with the machine; or when writing back failed, which the kernel tells once. So each store that can be written has a mark, which
//! is on stable storage before the first command is served:
//!
//! | the mark says | found in the same boot | found in another boot |
//! | --- | --- | --- |
//! | clean: all was synced, then nothing was written | nothing is lost | nothing is lost |
//! | in use | the daemon was killed: nothing is lost | **the machine went down: counts** |
//! | lost: a sync has failed, or the file was truncated when it was closed | **counts** | **counts** |
//! | nothing that can be read, or of another store | **counts**, see below | the same |
//!
//! A boot is known by the kernel's boot id. After it has been looked at, the mark says "in use" in this boot with the new count, so that each loss counts
//! once. Clean is written when the store is closed: no thread works on it any more, and a last sync has succeeded.
//!
//! A host reads the count on each association. If it moved while the host had writes that were acknowledged and not flushed, these may be lost, and no flush
//! may pretend otherwise. So the count must move when in doubt, and must never come back to a number that a host has seen before.
//!
//! # When there is no mark
//!
//! Then nobody can tell what happened: the file may never have been exported; or it was moved and its mark was not; or the mark was deleted; or
//! the device comes from another machine, whose state directory is not ours. A count that begins at 0 might be the one that a host remembers. It begins with
//! the seconds since 2026 instead, which no earlier count of the same store has reached. Only a file that this daemon has just made begins with 0.
//!
//! * **Copies and restored images.** The mark names its store by what the file or device *is* (inode and birth time; serial number), whatever `uuid`
//!   says. A mark that was copied along with a folder, or that stayed beside an image that took the place of another, is none. What is restored *into* a file
//!   (`cp backup.img vol0.img`) while the daemon is down cannot be told from what the daemon left there: the hosts are to be disconnected first.
//! * **Two targets that take turns on one device**, each with a state directory of its own: each has a count of its own, from another second, so a host
//!   that goes from one to the other sees it move and takes its unflushed writes for lost. That is right: nobody knows whether the other machine has lost
//!   power. With a shared state directory, or a file on a shared file system, the mark goes along and a clean handover counts nothing.
//! * **Storage that loses power on its own** (an array behind a network, with a volatile cache and no errors to tell) is beyond what is seen here.
//!
//! # Where it is
//!
//! Of a file, beside it: `.vol0.img.godwit` for `vol0.img`, after links have been followed. Of a device, in the state directory, by the identity of the
//! device. It is replaced as a whole: written and synced under another name, renamed, the folder synced. Whoever holds the lock of the store owns it.
//! A store that is open for reading has none of its own, for it loses nothing; it reports what the mark beside it tells.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use uuid::Uuid;

/// What is in the first field, so that nobody takes the file for something else.
const FORMAT: &str = "godwit mark 1";

/// The most that a mark has, in bytes.
const MAX_BYTES: u64 = 4096;

/// 2026-01-01, 00:00 UTC.
const EPOCH: Duration = Duration::from_secs(1_767_225_600);

/// A run of the machine, from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(pub Uuid);

impl BootId {
    /// This one.
    ///
    /// # Errors
    ///
    /// When the kernel does not tell it: `/proc` is not mounted.
    pub fn current() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Uuid::parse_str(text.trim()).map(Self).map_err(io::Error::other)
    }
}

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Clean,
    InUse,
    Lost,
}

impl State {
    const ALL: [(Self, &'static str); 3] = [(Self::Clean, "clean"), (Self::InUse, "in use"), (Self::Lost, "lost")];

    fn name(self) -> &'static str {
        Self::ALL.into_iter().find_map(|(state, name)| (state == self).then_some(name)).unwrap_or_default()
    }

    fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find_map(|(state, known)| (known == name).then_some(state))
    }
}

/// What is known, when a store is opened, of writes that an earlier daemon has acknowledged and not flushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Past {
    /// None is lost.
    #[default]
    Intact,
    /// Some may be lost: that was counted.
    Lost,
    /// There is no mark that tells.
    Unknown,
}

/// What is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    store: Uuid,
    state: State,
    boot: BootId,
    unsafe_shutdowns: u64,
}

impl Record {
    fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let word = |key: &str| value.get(key).and_then(Value::as_str);
        if word("format") != Some(FORMAT) {
            return None;
        }
        Some(Self {
            store: word("store")?.parse().ok()?,
            state: State::of(word("state")?)?,
            boot: BootId(word("boot")?.parse().ok()?),
            unsafe_shutdowns: value.get("unsafe_shutdowns")?.as_u64()?,
        })
    }

    fn text(&self) -> String {
        let Self { store, state, boot, unsafe_shutdowns } = self;
        let record = json!({
            "format": FORMAT,
            "store": store.to_string(),
            "state": state.name(),
            "boot": boot.0.to_string(),
            "unsafe_shutdowns": unsafe_shutdowns,
        });
        format!("{record}\n")
    }
}

/// The mark of a store that this process has open for writing.
#[derive(Debug)]
pub(super) struct Mark {
    path: PathBuf,
    record: Record,
    past: Past,
}

/// Where the mark of a file is.
pub(super) fn beside(file: &Path) -> io::Result<PathBuf> {
    let real = file.canonicalize()?;
    let mut name = std::ffi::OsString::from(".");
    name.push(real.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    name.push(".godwit");
    Ok(real.with_file_name(name))
}

/// Where the mark of a device is.
pub(super) fn in_state_directory(directory: &Path, store: Uuid) -> PathBuf {
    directory.join(format!("device-{store}.godwit"))
}

/// What a mark tells of a store, as it is now. `made`: the store has not existed before.
fn count(path: &Path, store: Uuid, boot: BootId, made: bool) -> io::Result<(u64, Past)> {
    if made {
        return Ok((0, Past::Intact));
    }
    Ok(match read(path)?.filter(|record| record.store == store) {
        Some(Record { state: State::Clean, unsafe_shutdowns, .. }) => (unsafe_shutdowns, Past::Intact),
        Some(Record { state: State::InUse, unsafe_shutdowns, boot: then, .. }) if then == boot => (unsafe_shutdowns, Past::Intact),
        Some(Record { unsafe_shutdowns, .. }) => (unsafe_shutdowns.saturating_add(1), Past::Lost),
        None => (seconds_since_epoch(), Past::Unknown),
    })
}

/// The number that a count begins with when nothing is known.
fn seconds_since_epoch() -> u64 {
    // A clock that is wrong by years is no worse than none: 1 is not what a fresh file has.
    SystemTime::now().duration_since(UNIX_EPOCH + EPOCH).map_or(1, |since| since.as_secs().max(1))
}

/// The record in a file; `None` when there is no such file, or it holds something else.
fn read(path: &Path) -> io::Result<Option<Record>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, MAX_BYTES), &mut text)?;
    let record = std::str::from_utf8(&text).ok().and_then(Record::parse);
    if record.is_none() {
        tracing::warn!("{}: not a mark of godwit-target; what was not flushed counts as lost", path.display());
    }
    Ok(record)
}

/// What the mark beside a store tells to someone who only reads.
pub(super) fn look(path: &Path, store: Uuid, boot: BootId) -> u64 {
    count(path, store, boot, false).map_or(0, |(count, _)| count)
}

impl Mark {
    /// Looks at the mark of a store, and marks the store as in use. The store's lock must be held.
    pub(super) fn take(path: PathBuf, store: Uuid, boot: BootId, made: bool) -> io::Result<Self> {
        let (unsafe_shutdowns, past) = count(&path, store, boot, made)?;
        let mark = Self { path, record: Record { store, state: State::InUse, boot, unsafe_shutdowns }, past };
        mark.write()?;
        Ok(mark)
    }

    /// How often unflushed writes may have been lost.
    pub(super) fn unsafe_shutdowns(&self) -> u64 {
        self.record.unsafe_shutdowns
    }

    /// What it told when it was taken.
    pub(super) fn past(&self) -> Past {
        self.past
    }

    /// A sync has failed: whoever opens the store next counts that, unless it has been counted by then.
    pub(super) fn note_lost(&mut self) -> io::Result<()> {
        self.set(State::Lost)
    }

    /// Counts what was lost, and goes on.
    pub(super) fn count_lost(&mut self) -> io::Result<()> {
        let before = self.record.unsafe_shutdowns;
        self.record.unsafe_shutdowns = before.saturating_add(1);
        self.set(State::InUse).inspect_err(|_| self.record.unsafe_shutdowns = before)
    }

    /// Everything is on stable storage, and nothing more is written.
    pub(super) fn clean(&mut self) -> io::Result<()> {
        self.set(State::Clean)
    }

    /// Whether a failed sync has been noted and not been counted.
    pub(super) fn is_lost(&self) -> bool {
        self.record.state == State::Lost
    }

    fn set(&mut self, state: State) -> io::Result<()> {
        let before = std::mem::replace(&mut self.record.state, state);
        self.write().inspect_err(|_| self.record.state = before)
    }

    fn write(&self) -> io::Result<()> {
        let mut new = self.path.clone().into_os_string();
        new.push(".new");
        // One that is left of a write that broke off; and nothing that somebody else may have put there is written to.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(self.record.text().as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }
}
