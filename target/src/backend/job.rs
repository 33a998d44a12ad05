//! Operations of one thread on one store, as state machines that end exactly once.
//!
//! # Writing zeroes
//!
//! Where the store has no call that zeroes a range, zeroes are written from one buffer that is taken when the thread attaches. It serves one
//! write at a time; jobs that wait for it stand in a line, and whoever returns it starts the write at the head of the line, under that job's token.
//! Each job goes to the end of the line after each piece. So there is no buffer to wait for while holding another, and nothing can starve.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use godwit_memory::{Buffer, Extent, Holding, PAGE_BYTES};
use godwit_reactor::{AllocateMode, FileDone, FileId, FileOp, Reactor, Token};

use super::store::Shared;
use super::{Attachable, BackendError, Operation, Store};

/// How much one call zeroes or discards. A worker thread of the kernel runs it.
const PIECE_BYTES: u64 = 64 << 20;

/// The same where the call runs on this thread, and its other work waits: a fraction of a millisecond.
const PIECE_BYTES_IN_MEMORY: u64 = 4 << 20;

/// The size wished for the buffer of zeroes.
const ZEROES_BYTES: usize = 128 << 10;

/// Jobs that can wait for the buffer of zeroes before their line is made longer.
const LINE_CAPACITY: usize = 128;

/// One thread's access to a store.
#[derive(Debug)]
pub struct Attached {
    shared: Arc<Shared>,
    file: FileId,
    /// What the store is, if that is memory.
    memory: Option<Holding>,
    zeroes: RefCell<Zeroes>,
}

/// The buffer of zeroes, and who waits for it.
#[derive(Debug)]
struct Zeroes {
    capacity: u64,
    /// Not here: a write is using it.
    buffer: Option<Buffer>,
    line: VecDeque<Fill>,
}

/// A write of zeroes that waits for its turn.
#[derive(Debug)]
struct Fill {
    token: Token,
    offset: u64,
    len: usize,
}

/// An operation under way. It must be carried on with [`Attached::resume`] until it is done: it holds the buffer's place, and its client waits.
#[derive(Debug)]
#[must_use = "an operation under way must be carried to its end"]
pub struct Job(State);

#[derive(Debug)]
enum State {
    Read { offset: u64, len: usize, start: usize },
    Write { offset: u64, len: usize, start: usize, durable: bool },
    Sync { buffer: Option<Buffer> },
    Flush,
    Zero { range: Range, mode: AllocateMode, deallocate: bool, durable: bool },
    Fill { range: Range, durable: bool },
    Discard { range: Range },
}

/// What is left of a range.
#[derive(Clone, Copy, Debug)]
struct Range {
    offset: u64,
    len: u64,
}

/// How far an operation came.
#[derive(Debug)]
#[must_use = "an operation under way must be carried to its end"]
pub enum Progress {
    /// Another [`Event::File`](godwit_reactor::Event::File) with the operation's token will come: resume the job with it.
    Working(Job),
    /// It ended.
    Done {
        /// How.
        result: Result<(), BackendError>,
        /// The operation's buffer, if it had one. After a read that succeeded its length is that of the data.
        buffer: Option<Buffer>,
    },
}

impl Progress {
    fn done(result: Result<(), BackendError>, buffer: Option<Buffer>) -> Self {
        Self::Done { result, buffer }
    }
}

impl Range {
    fn first(self, piece_bytes: u64) -> Self {
        Self { len: self.len.min(piece_bytes), ..self }
    }

    fn without(self, done_bytes: u64) -> Self {
        Self { offset: self.offset + done_bytes, len: self.len - done_bytes }
    }
}

impl Attached {
    /// Gives this thread access to a store.
    ///
    /// # Errors
    ///
    /// Those of registering the file, and `OutOfMemory` when the thread's pool is used up.
    pub fn new<R>(reactor: &mut R, store: &Arc<Store<R::File>>) -> io::Result<Self>
    where
        R: Reactor,
        R::File: Clone,
    {
        let buffer =
            Self::buffer(reactor).ok_or_else(|| io::Error::new(io::ErrorKind::OutOfMemory, "no buffer left in the thread's pool"))?;
        Self::with_buffer(reactor, store.attachable(), buffer).map_err(|(error, _)| error)
    }

    /// A buffer to write zeroes from.
    pub(crate) fn buffer<R: Reactor>(reactor: &R) -> Option<Buffer> {
        let pool = reactor.pool();
        [ZEROES_BYTES, 4 * PAGE_BYTES, PAGE_BYTES].into_iter().find_map(|bytes| pool.take(bytes))
    }

    /// Gives this thread access to a store, with a buffer that was taken before.
    ///
    /// # Errors
    ///
    /// Those of registering the file; then the buffer comes back.
    pub(crate) fn with_buffer<R: Reactor>(
        reactor: &mut R,
        store: Attachable<R::File>,
        mut buffer: Buffer,
    ) -> Result<Self, (io::Error, Buffer)> {
        let memory = R::memory(&store.file).map(|disk| Holding::new(Arc::clone(disk)));
        let file = match reactor.register_file(store.file) {
            Ok(file) => file,
            Err(error) => return Err((error, buffer)),
        };
        buffer.fill(0);
        let zeroes = Zeroes { capacity: buffer.len() as u64, buffer: Some(buffer), line: VecDeque::with_capacity(LINE_CAPACITY) };
        Ok(Self { shared: store.shared, file, memory, zeroes: RefCell::new(zeroes) })
    }

    /// Ends this thread's access, and gives the buffer back that zeroes were written from. Call it when no job is under way, and nothing is
    /// lent any more.
    pub fn detach<R: Reactor>(self, reactor: &mut R) -> Option<Buffer> {
        reactor.unregister_file(self.file);
        self.zeroes.into_inner().buffer
    }

    /// What a read of this range would copy, if that can be read where it lies.
    ///
    /// # Errors
    ///
    /// Why such a read fails.
    pub(crate) fn extent(&self, offset: u64, len: usize) -> Result<Option<Extent>, BackendError> {
        let Some(memory) = &self.memory else { return Ok(None) };
        self.admit_range(offset, len as u64)?;
        Ok(memory.extent(offset, len))
    }

    /// Whether what was read where it lies is still to be sent.
    pub(crate) fn is_lent(&self) -> bool {
        self.memory.as_ref().is_some_and(Holding::is_lent)
    }

    /// Starts an operation. It may end at once, without an event.
    pub fn start<R: Reactor>(&self, reactor: &mut R, operation: Operation, token: Token) -> Progress {
        if let Err(error) = self.admit(&operation) {
            return Progress::done(Err(error), operation.into_buffer());
        }
        if operation.is_empty() {
            return Progress::done(Ok(()), operation.into_buffer());
        }
        match operation {
            Operation::Read { offset, len, buffer } => self.read(reactor, token, buffer, offset, len, 0),
            Operation::Write { offset, len, buffer, durable } => self.write(reactor, token, buffer, (offset, len, 0), durable),
            Operation::Flush => {
                reactor.submit(self.file, FileOp::Sync, token);
                Progress::Working(Job(State::Flush))
            }
            Operation::Zero { offset, len, deallocate, durable } => {
                let range = Range { offset, len };
                self.zero(reactor, token, range, deallocate, durable)
            }
            Operation::Discard { offset, len } => self.discard(reactor, token, Range { offset, len }),
        }
    }

    /// Carries an operation on after an event of its token.
    ///
    /// # Panics
    ///
    /// When the event is not that of the job's last step.
    pub fn resume<R: Reactor>(&self, reactor: &mut R, job: Job, done: FileDone, token: Token) -> Progress {
        let FileDone { result, buffer } = done;
        match job.0 {
            State::Read { offset, len, start } => {
                let buffer = buffer.expect("a read gives its buffer back");
                self.after_read(reactor, token, buffer, (offset, len, start), result)
            }
            State::Write { offset, len, start, durable } => {
                let buffer = buffer.expect("a write gives its buffer back");
                self.after_write(reactor, token, buffer, (offset, len, start), durable, result)
            }
            State::Sync { buffer } => Progress::done(self.after_sync(result.map(drop)), buffer),
            State::Flush => Progress::done(self.after_sync(result.map(drop)).and_then(|()| self.whole()), None),
            State::Zero { range, mode, deallocate, durable } => match result {
                Ok(_) => self.zero(reactor, token, range.without(range.first(self.piece_bytes()).len), deallocate, durable),
                Err(error) if is_unsupported(&error) => {
                    self.shared.note_unsupported(mode);
                    self.zero(reactor, token, range, deallocate, durable)
                }
                // Refused for this range alone.
                Err(error) if error.raw_os_error() == Some(EINVAL) => self.fill(reactor, token, range, durable),
                Err(error) => Progress::done(Err(write_error(&error)), None),
            },
            State::Fill { range, durable } => {
                self.return_zeroes(reactor, buffer.expect("a write gives its buffer back"));
                match result {
                    Ok(0) => Progress::done(Err(BackendError::Write { errno: EIO }), None),
                    Ok(written) => self.fill(reactor, token, range.without(written as u64), durable),
                    Err(error) => Progress::done(Err(write_error(&error)), None),
                }
            }
            State::Discard { range } => match result {
                Ok(_) => self.discard(reactor, token, range.without(range.first(self.piece_bytes()).len)),
                Err(error) if is_unsupported(&error) => {
                    self.shared.note_unsupported(AllocateMode::PunchHole);
                    Progress::done(Ok(()), None)
                }
                Err(error) if error.raw_os_error() == Some(EINVAL) => Progress::done(Ok(()), None),
                Err(error) => Progress::done(Err(write_error(&error)), None),
            },
        }
    }

    /// Whether an operation may start at all.
    fn admit(&self, operation: &Operation) -> Result<(), BackendError> {
        let description = &self.shared.description;
        if operation.changes() && description.read_only {
            return Err(BackendError::ReadOnly);
        }
        if operation.must_be_stable() && self.shared.sync_failed() {
            return Err(BackendError::SyncFailed);
        }
        let Some((offset, len)) = operation.range() else {
            return if self.shared.truncated() { Err(BackendError::Truncated) } else { Ok(()) };
        };
        self.admit_range(offset, len)
    }

    fn admit_range(&self, offset: u64, len: u64) -> Result<(), BackendError> {
        let end = offset.checked_add(len).filter(|&end| end <= self.shared.size_bytes()).ok_or(BackendError::OutOfRange)?;
        if end <= self.shared.intact_bytes() { Ok(()) } else { Err(BackendError::Truncated) }
    }

    fn read<R: Reactor>(&self, reactor: &mut R, token: Token, buffer: Buffer, offset: u64, len: usize, start: usize) -> Progress {
        let op = FileOp::Read { offset: offset + start as u64, buffer, start, len: len - start };
        match reactor.run_now(self.file, op) {
            Ok(FileDone { result, buffer }) => {
                let buffer = buffer.expect("a read gives its buffer back");
                self.after_read(reactor, token, buffer, (offset, len, start), result)
            }
            Err(op) => {
                reactor.submit(self.file, op, token);
                Progress::Working(Job(State::Read { offset, len, start }))
            }
        }
    }

    /// A read may end early for other reasons than the end of the file. It goes on where it ended; under direct I/O, which works in blocks, from the last
    /// whole one. When that gets it no further, the file ends there.
    fn after_read<R: Reactor>(
        &self,
        reactor: &mut R,
        token: Token,
        buffer: Buffer,
        (offset, len, start): (u64, usize, usize),
        result: io::Result<usize>,
    ) -> Progress {
        let read = match result {
            Ok(read) => read,
            Err(error) => return Progress::done(Err(BackendError::Read { errno: errno(&error) }), Some(buffer)),
        };
        let block_bytes = if self.shared.is_direct() { self.shared.description.block_bytes as usize } else { 1 };
        let next = start + read - read % block_bytes;
        if start + read >= len {
            Progress::done(Ok(()), Some(buffer))
        } else if next > start {
            self.read(reactor, token, buffer, offset, len, next)
        } else {
            self.shared.note_short_read(offset + (start + read) as u64);
            Progress::done(Err(BackendError::Truncated), Some(buffer))
        }
    }

    fn write<R: Reactor>(
        &self,
        reactor: &mut R,
        token: Token,
        buffer: Buffer,
        (offset, len, start): (u64, usize, usize),
        durable: bool,
    ) -> Progress {
        let with_sync = durable && !self.shared.description.buffered;
        let op = FileOp::Write { offset: offset + start as u64, buffer, start, len: len - start, durable: with_sync };
        match reactor.run_now(self.file, op) {
            Ok(FileDone { result, buffer }) => {
                let buffer = buffer.expect("a write gives its buffer back");
                self.after_write(reactor, token, buffer, (offset, len, start), durable, result)
            }
            Err(op) => {
                reactor.submit(self.file, op, token);
                Progress::Working(Job(State::Write { offset, len, start, durable }))
            }
        }
    }

    fn after_write<R: Reactor>(
        &self,
        reactor: &mut R,
        token: Token,
        buffer: Buffer,
        (offset, len, start): (u64, usize, usize),
        durable: bool,
        result: io::Result<usize>,
    ) -> Progress {
        let with_sync = durable && !self.shared.description.buffered;
        match result {
            Err(error) if with_sync && may_be_of_the_sync(&error) => {
                self.shared.note_sync_failure(&error);
                Progress::done(Err(BackendError::SyncFailed), Some(buffer))
            }
            Err(error) => Progress::done(Err(write_error(&error)), Some(buffer)),
            Ok(0) => Progress::done(Err(BackendError::Write { errno: EIO }), Some(buffer)),
            Ok(written) if start + written < len => self.write(reactor, token, buffer, (offset, len, start + written), durable),
            Ok(_) if !durable => Progress::done(Ok(()), Some(buffer)),
            Ok(_) if with_sync => Progress::done(self.after_sync(Ok(())), Some(buffer)),
            Ok(_) => self.sync(reactor, token, Some(buffer)),
        }
    }

    fn sync<R: Reactor>(&self, reactor: &mut R, token: Token, buffer: Option<Buffer>) -> Progress {
        reactor.submit(self.file, FileOp::Sync, token);
        Progress::Working(Job(State::Sync { buffer }))
    }

    fn after_sync(&self, result: io::Result<()>) -> Result<(), BackendError> {
        if let Err(error) = result {
            self.shared.note_sync_failure(&error);
        }
        if self.shared.sync_failed() { Err(BackendError::SyncFailed) } else { Ok(()) }
    }

    /// A flush speaks for all that was written: also for what a truncation has cut off.
    fn whole(&self) -> Result<(), BackendError> {
        if self.shared.found_truncated() { Err(BackendError::Truncated) } else { Ok(()) }
    }

    /// Goes on zeroing what is left of a range, in the best way that is known to work.
    fn zero<R: Reactor>(&self, reactor: &mut R, token: Token, range: Range, deallocate: bool, durable: bool) -> Progress {
        if range.len == 0 {
            return self.zeroed(reactor, token, durable);
        }
        // Memory is provisioned by being written to: there a hole serves both wishes.
        let punch = deallocate || self.shared.description.in_memory;
        let modes: &[AllocateMode] = if punch { &[AllocateMode::PunchHole, AllocateMode::ZeroRange] } else { &[AllocateMode::ZeroRange] };
        match modes.iter().find(|&&mode| self.shared.supports(mode)) {
            Some(&mode) => {
                self.allocate(reactor, token, range, mode);
                Progress::Working(Job(State::Zero { range, mode, deallocate, durable }))
            }
            None => self.fill(reactor, token, range, durable),
        }
    }

    fn discard<R: Reactor>(&self, reactor: &mut R, token: Token, range: Range) -> Progress {
        if range.len == 0 || !self.shared.supports(AllocateMode::PunchHole) {
            return Progress::done(Ok(()), None);
        }
        self.allocate(reactor, token, range, AllocateMode::PunchHole);
        Progress::Working(Job(State::Discard { range }))
    }

    fn allocate<R: Reactor>(&self, reactor: &mut R, token: Token, range: Range, mode: AllocateMode) {
        let Range { offset, len } = range.first(self.piece_bytes());
        reactor.submit(self.file, FileOp::Allocate { mode, offset, len }, token);
    }

    fn piece_bytes(&self) -> u64 {
        if self.shared.description.in_memory { PIECE_BYTES_IN_MEMORY } else { PIECE_BYTES }
    }

    /// Goes on writing zeroes.
    fn fill<R: Reactor>(&self, reactor: &mut R, token: Token, range: Range, durable: bool) -> Progress {
        if range.len == 0 {
            return self.zeroed(reactor, token, durable);
        }
        let mut zeroes = self.zeroes.borrow_mut();
        let len = usize::try_from(range.len.min(zeroes.capacity)).expect("a buffer's size is a usize");
        let fill = Fill { token, offset: range.offset, len };
        match zeroes.buffer.take() {
            Some(buffer) => self.write_zeroes(reactor, buffer, &fill),
            None => zeroes.line.push_back(fill),
        }
        Progress::Working(Job(State::Fill { range, durable }))
    }

    fn return_zeroes<R: Reactor>(&self, reactor: &mut R, buffer: Buffer) {
        let mut zeroes = self.zeroes.borrow_mut();
        match zeroes.line.pop_front() {
            Some(next) => self.write_zeroes(reactor, buffer, &next),
            None => zeroes.buffer = Some(buffer),
        }
    }

    fn write_zeroes<R: Reactor>(&self, reactor: &mut R, buffer: Buffer, fill: &Fill) {
        let &Fill { token, offset, len } = fill;
        reactor.submit(self.file, FileOp::Write { offset, buffer, start: 0, len, durable: false }, token);
    }

    fn zeroed<R: Reactor>(&self, reactor: &mut R, token: Token, durable: bool) -> Progress {
        if durable { self.sync(reactor, token, None) } else { Progress::done(Ok(()), None) }
    }
}

impl Operation {
    fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Read { offset, len, .. } | Self::Write { offset, len, .. } => Some((*offset, *len as u64)),
            Self::Zero { offset, len, .. } | Self::Discard { offset, len } => Some((*offset, *len)),
            Self::Flush => None,
        }
    }

    fn is_empty(&self) -> bool {
        self.range().is_some_and(|(_, len)| len == 0)
    }

    fn changes(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Zero { .. } | Self::Discard { .. })
    }

    fn must_be_stable(&self) -> bool {
        matches!(self, Self::Flush | Self::Write { durable: true, .. } | Self::Zero { durable: true, .. })
    }

    fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Read { buffer, .. } | Self::Write { buffer, .. } => Some(buffer),
            Self::Flush | Self::Zero { .. } | Self::Discard { .. } => None,
        }
    }
}

const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(EIO)
}

fn is(error: &io::Error, any_of: &[rustix::io::Errno]) -> bool {
    any_of.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Whether this file system or device cannot do such a thing at all. `EREMOTEIO` is how a disk says so.
fn is_unsupported(error: &io::Error) -> bool {
    use rustix::io::Errno;
    is(error, &[Errno::OPNOTSUPP, Errno::NOSYS, Errno::REMOTEIO])
}

fn no_space(error: &io::Error) -> bool {
    use rustix::io::Errno;
    is(error, &[Errno::NOSPC, Errno::DQUOT, Errno::FBIG])
}

/// Whether the error of a write with `RWF_DSYNC` may stem from its sync: see the module `backend`.
fn may_be_of_the_sync(error: &io::Error) -> bool {
    use rustix::io::Errno;
    !no_space(error) && !is(error, &[Errno::INVAL, Errno::OPNOTSUPP])
}

fn write_error(error: &io::Error) -> BackendError {
    if no_space(error) { BackendError::NoSpace } else { BackendError::Write { errno: errno(error) } }
}
