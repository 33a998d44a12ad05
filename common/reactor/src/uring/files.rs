//! Files of a ring: the table of registered files and the operations in flight.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use godwit_memory::MemoryDisk;
use io_uring::{IoUring, opcode, squeue, types};
use nix::fcntl::FallocateFlags;
use slab::Slab;

use super::{Incoming, Kind, push};
use crate::{AllocateMode, Event, FileDone, FileId, FileOp, Token};

/// What operations run on. Several reactors may share it.
#[derive(Clone, Debug)]
pub enum BackingFile {
    /// An open file or block device: the descriptor, and so its locks, are the same for all.
    Open(Arc<File>),
    /// An open file whose data always are in memory (tmpfs). A ring would hand each operation to a worker thread, ten times as slow as doing it at once:
    /// it is read and written in place.
    InMemory(Arc<File>),
    /// Memory of this process: a copy, and no call of the system.
    Memory(Arc<MemoryDisk>),
}

impl BackingFile {
    /// Where it is a file: that.
    pub fn file(&self) -> Option<&File> {
        match self {
            Self::Open(file) | Self::InMemory(file) => Some(file),
            Self::Memory(_) => None,
        }
    }

    /// Brings what was written to stable storage, if there is any below it.
    ///
    /// # Errors
    ///
    /// Those of `fdatasync`.
    pub fn sync_data(&self) -> io::Result<()> {
        self.file().map_or(Ok(()), File::sync_data)
    }
}

struct Registered {
    backing: BackingFile,
    generation: u32,
    /// Operations in the backlog or in flight. The place is not given to another file before they have ended: they name it by its index.
    pending: usize,
    /// No more operations are taken.
    unregistered: bool,
}

struct InFlight {
    /// Index of the file in the table.
    file: u32,
    op: FileOp,
    token: Token,
}

pub(crate) struct Files {
    table: Slab<Registered>,
    next_generation: u32,
    in_flight: Slab<InFlight>,
    /// Operations that the ring has no room for yet, in order.
    backlog: VecDeque<InFlight>,
    /// Operations that ended when they were submitted.
    finished: VecDeque<(Token, FileDone)>,
    buffers_registered: bool,
    files_registered: bool,
    limit: usize,
}

/// Entries of the file table that is registered with a ring; further files work by descriptor.
pub(crate) const FILE_TABLE_ENTRIES: u32 = 1024;

impl Files {
    pub(crate) fn new(buffers_registered: bool, files_registered: bool, limit: u32) -> Self {
        let limit = limit as usize;
        Self {
            table: Slab::new(),
            next_generation: 0,
            in_flight: Slab::with_capacity(limit),
            backlog: VecDeque::with_capacity(limit),
            finished: VecDeque::with_capacity(limit),
            buffers_registered,
            files_registered,
            limit,
        }
    }

    pub(crate) fn register(&mut self, ring: &IoUring, backing: BackingFile) -> io::Result<FileId> {
        let index = u32::try_from(self.table.vacant_key()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        if let (Some(file), true) = (backing.file(), self.in_ring_table(index)) {
            ring.submitter().register_files_update(index, &[file.as_raw_fd()])?;
        }
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(1);
        self.table.insert(Registered { backing, generation, pending: 0, unregistered: false });
        Ok(FileId { index, generation })
    }

    pub(crate) fn unregister(&mut self, ring: &IoUring, file: FileId) {
        if let Some(registered) = self.registered(file) {
            registered.unregistered = true;
            self.free_if_unused(ring, file.index);
        }
    }

    fn free_if_unused(&mut self, ring: &IoUring, index: u32) {
        if self.table.get(index as usize).is_some_and(|file| file.unregistered && file.pending == 0) {
            if self.in_ring_table(index) {
                // Fails only for a place that the table does not have.
                let _ = ring.submitter().register_files_update(index, &[-1]);
            }
            self.table.remove(index as usize);
        }
    }

    fn registered(&mut self, file: FileId) -> Option<&mut Registered> {
        self.table.get_mut(file.index as usize).filter(|entry| entry.generation == file.generation && !entry.unregistered)
    }

    fn in_ring_table(&self, index: u32) -> bool {
        self.files_registered && index < FILE_TABLE_ENTRIES
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Gives up on what is in flight without freeing what the kernel may still use.
    pub(crate) fn leak_in_flight(&mut self) {
        mem::forget(mem::take(&mut self.in_flight));
    }

    pub(crate) fn submit(&mut self, file: FileId, op: FileOp, token: Token) {
        match self.run_in_memory(file, op) {
            Ok(done) => self.finished.push_back((token, done)),
            Err(op) => match self.registered(file) {
                Some(registered) => {
                    registered.pending += 1;
                    self.backlog.push_back(InFlight { file: file.index, op, token });
                }
                None => {
                    let done = FileDone { result: Err(io::Error::from_raw_os_error(libc::EBADF)), buffer: op.into_buffer() };
                    self.finished.push_back((token, done));
                }
            },
        }
    }

    /// Runs an operation that takes no longer than a copy.
    pub(crate) fn run_now(&mut self, file: FileId, op: FileOp) -> Result<FileDone, FileOp> {
        match op {
            FileOp::Read { .. } | FileOp::Write { .. } => self.run_in_memory(file, op),
            FileOp::Sync | FileOp::Allocate { .. } => Err(op),
        }
    }

    /// Runs an operation in place if the file's data are in memory.
    fn run_in_memory(&mut self, file: FileId, mut op: FileOp) -> Result<FileDone, FileOp> {
        op.assert_in_bounds();
        match &mut op {
            FileOp::Read { buffer, start, len, .. } => buffer.set_len(*start + *len),
            FileOp::Write { buffer, start, len, .. } if buffer.len() < *start + *len => buffer.set_len(*start + *len),
            _ => {}
        }
        let result = match self.registered(file).map(|registered| &registered.backing) {
            Some(BackingFile::InMemory(file)) => run_in_place(file, &mut op),
            Some(BackingFile::Memory(disk)) => run_on_memory(disk, &mut op),
            Some(BackingFile::Open(_)) | None => return Err(op),
        };
        Ok(FileDone { result, buffer: op.into_buffer() })
    }

    /// Hands as much of the backlog to the ring as it has room for.
    pub(crate) fn start_backlog(&mut self, ring: &mut IoUring) -> io::Result<()> {
        while self.in_flight.len() < self.limit {
            let Some(next) = self.backlog.pop_front() else { break };
            let file = next.file;
            let target = match self.table[file as usize].backing.file() {
                Some(_) if self.in_ring_table(file) => Target::Registered(file),
                Some(open) => Target::Descriptor(open.as_raw_fd()),
                None => unreachable!("what is memory is worked on in place"),
            };
            let key = self.in_flight.insert(next);
            let user_data = Kind::File.user_data(0, u32::try_from(key).expect("the table is smaller than its limit"));
            let entry = entry(&self.in_flight[key].op, target, self.buffers_registered);
            push(ring, &entry.user_data(user_data))?;
        }
        Ok(())
    }

    pub(crate) fn complete(&mut self, ring: &IoUring, index: u32, result: i32, events: &mut Vec<Event<Incoming>>) {
        let InFlight { file, op, token } = self.in_flight.remove(index as usize);
        if result == -libc::EINTR || result == -libc::EAGAIN {
            self.backlog.push_back(InFlight { file, op, token });
            return;
        }
        self.table[file as usize].pending -= 1;
        self.free_if_unused(ring, file);
        let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        events.push(Event::File { token, done: FileDone { result, buffer: op.into_buffer() } });
    }

    pub(crate) fn take_finished(&mut self, events: &mut Vec<Event<Incoming>>) {
        events.extend(self.finished.drain(..).map(|(token, done)| Event::File { token, done }));
    }
}

/// A position inside a buffer: its address for the kernel and the length as the ring counts it.
fn span(buffer: &godwit_memory::Buffer, start: usize, len: usize) -> (*mut u8, u32) {
    let address = buffer.address().as_ptr().wrapping_add(start);
    (address, u32::try_from(len).expect("a buffer is smaller than 4 GiB"))
}

/// How an entry names its file.
#[derive(Clone, Copy)]
enum Target {
    Registered(u32),
    Descriptor(i32),
}

/// The ring has a type for each way to name a file; this builds the same entry with either.
macro_rules! entry_on {
    ($target:expr, |$fd:ident| $build:expr) => {
        match $target {
            Target::Registered(index) => {
                let $fd = types::Fixed(index);
                $build
            }
            Target::Descriptor(descriptor) => {
                let $fd = types::Fd(descriptor);
                $build
            }
        }
    };
}

fn entry(op: &FileOp, target: Target, buffers_registered: bool) -> squeue::Entry {
    match op {
        FileOp::Read { offset, buffer, start, len } => {
            let (address, len) = span(buffer, *start, *len);
            if buffers_registered {
                entry_on!(target, |fd| opcode::ReadFixed::new(fd, address, len, 0).offset(*offset).build())
            } else {
                entry_on!(target, |fd| opcode::Read::new(fd, address, len).offset(*offset).build())
            }
        }
        FileOp::Write { offset, buffer, start, len, durable } => {
            let (address, len) = span(buffer, *start, *len);
            let flags = if *durable { libc::RWF_DSYNC } else { 0 };
            if buffers_registered {
                entry_on!(target, |fd| opcode::WriteFixed::new(fd, address, len, 0).offset(*offset).rw_flags(flags).build())
            } else {
                entry_on!(target, |fd| opcode::Write::new(fd, address, len).offset(*offset).rw_flags(flags).build())
            }
        }
        FileOp::Sync => entry_on!(target, |fd| opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build()),
        FileOp::Allocate { mode, offset, len } => {
            let flags = allocate_flags(*mode).bits();
            entry_on!(target, |fd| opcode::Fallocate::new(fd, *len).offset(*offset).mode(flags).build())
        }
    }
}

fn allocate_flags(mode: AllocateMode) -> FallocateFlags {
    FallocateFlags::FALLOC_FL_KEEP_SIZE
        | match mode {
            AllocateMode::PunchHole => FallocateFlags::FALLOC_FL_PUNCH_HOLE,
            AllocateMode::ZeroRange => FallocateFlags::FALLOC_FL_ZERO_RANGE,
        }
}

/// Runs an operation on memory of this process.
fn run_on_memory(disk: &MemoryDisk, op: &mut FileOp) -> io::Result<usize> {
    match op {
        FileOp::Read { offset, buffer, start, len } => Ok(disk.read_at(&mut buffer[*start..*start + *len], *offset)),
        FileOp::Write { offset, buffer, start, len, durable: _ } => Ok(disk.write_at(&buffer[*start..*start + *len], *offset)),
        FileOp::Sync => Ok(0),
        FileOp::Allocate { mode: AllocateMode::PunchHole | AllocateMode::ZeroRange, offset, len } => {
            disk.zero(*offset, *len);
            Ok(0)
        }
    }
}

/// Runs an operation on a file whose data are in memory.
fn run_in_place(file: &File, op: &mut FileOp) -> io::Result<usize> {
    match op {
        FileOp::Read { offset, buffer, start, len } => file.read_at(&mut buffer[*start..*start + *len], *offset),
        FileOp::Write { offset, buffer, start, len, durable } => {
            let written = file.write_at(&buffer[*start..*start + *len], *offset)?;
            if *durable {
                file.sync_data()?;
            }
            Ok(written)
        }
        FileOp::Sync => file.sync_data().map(|()| 0),
        FileOp::Allocate { mode, offset, len } => {
            let out_of_range = |_| io::Error::from_raw_os_error(libc::EFBIG);
            let offset = i64::try_from(*offset).map_err(out_of_range)?;
            let len = i64::try_from(*len).map_err(out_of_range)?;
            nix::fcntl::fallocate(file, allocate_flags(*mode), offset, len)?;
            Ok(0)
        }
    }
}
