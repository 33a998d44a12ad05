//! The reactor on io_uring: one ring per thread.
//!
//! # How it waits
//!
//! Streams are read and written by plain non-blocking calls, which at depth 1 beats a submission per message. A stream that ran dry is *hot*: each
//! turn offers it for another try. Once no stream made progress for the [`PollBudget`], the hot ones are armed in the ring (`POLL_ADD`, one shot,
//! which looks at the socket when armed, so nothing is missed) and the thread sleeps in `io_uring_enter`. A busy stream therefore costs no ring
//! operation, an idle one no processor time. Where an answer is due that has lately come soon after the budget, it is looked for longer (see
//! [`patience`]). Between fruitless turns the thread yields if anybody takes the core, for it may share that with its peer; where others want the
//! core for work of their own it spins for a moment only, and keeps the core until it sleeps (see [`crowding`]).
//!
//! # How much it does at once
//!
//! A thread that was idle deals with a little of what came, sends what that leads to, and goes on with twice as much. For its peers have nothing to do until
//! they hear of the first: where a disk tells of many ended operations at once, and each thread did all that there is before the next one begins, only one
//! of them would work at a time. After some turns with work in each of them there is no limit. What is left over keeps the next turn from sleeping.
//!
//! # Why file buffers are safe
//!
//! [`Reactor::submit`] moves the operation, buffer and all, into the in-flight table; only its completion entry (file operations have exactly one)
//! moves it out. A ring that is dropped waits for what is in flight, and if that does not end, leaks table and buffers rather than freeing memory
//! that the kernel may write to.

mod crowding;
mod files;
mod patience;
mod setup;
mod streams;
mod watches;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use godwit_memory::{Layout, MemoryDisk, Pool};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use nix::time::ClockId;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::timers::Timers;
use crate::{Event, FileDone, FileId, FileOp, ListenerId, Peer, Reactor, StreamId, Time, TimerId, Token, WatchId};
use crowding::Crowding;
pub use files::BackingFile;
use files::Files;
use patience::Patience;
pub use setup::SetupError;
use streams::Streams;
pub use streams::{Incoming, Listener};
use watches::Watches;

/// A thread that has had nothing to do for so long, or has slept, begins with a small portion: see [`Reactor::portion`].
const RUN_DRY: Duration = Duration::from_micros(100);

/// What it does then of much that comes at once, before it sends; twice as much in the next turn, and so on.
const FIRST_PORTION: usize = 4;

/// For how long a thread keeps looking for work after the last progress, before it sleeps; longer for answers that have come soon after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollBudget(pub Duration);

/// What a [`Uring`] is made of.
#[derive(Clone, Debug)]
pub struct UringConfig {
    /// Buffers of the thread.
    pub pool: Layout,
    /// How long to spin.
    pub poll: PollBudget,
}

/// Wakes a reactor from another thread.
#[derive(Clone, Debug)]
pub struct Waker {
    eventfd: Arc<OwnedFd>,
}

impl Waker {
    /// Makes the reactor's next turn report [`Event::Woken`], at once if it sleeps.
    pub fn wake(&self) {
        // The counter can only be full of earlier wake-ups, which serve as well.
        let _ = nix::unistd::write(&self.eventfd, &1_u64.to_ne_bytes());
    }
}

/// An event loop on io_uring.
pub struct Uring {
    // Field order is teardown order: see `Drop`, which empties `files` first.
    files: Files,
    streams: Streams,
    watches: Watches,
    timers: Timers,
    /// Timers of the reactor itself: listeners that pause, streams that linger.
    housekeeping: Timers,
    waker: Waker,
    waker_armed: bool,
    ring: IoUring,
    pool: Pool,
    poll: Duration,
    now: Time,
    last_progress: Time,
    progress: bool,
    /// An answer is due, of a disk or a peer, or was when the last turn began.
    answer_due: bool,
    /// One has come since; from a peer that owes some, whatever came.
    answered: bool,
    /// The engine waits for answers of peers.
    peers_owe: bool,
    /// The next turn is not to sleep.
    stay_awake: bool,
    /// File operations have ended that the last turn left for the next.
    more_finished: bool,
    /// How much this turn deals with.
    portion: usize,
    crowding: Crowding,
    patience: Patience,
}

/// What a completion entry is about: the top bits of its user data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ignored = 0,
    File = 1,
    StreamIn = 2,
    StreamOut = 3,
    Listener = 4,
    Waker = 5,
    Watch = 6,
}

const KIND_SHIFT: u32 = 60;
const GENERATION_SHIFT: u32 = 32;
const GENERATION_MASK: u32 = 0x0fff_ffff;

impl Kind {
    fn user_data(self, generation: u32, index: u32) -> u64 {
        ((self as u64) << KIND_SHIFT) | (u64::from(generation & GENERATION_MASK) << GENERATION_SHIFT) | u64::from(index)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the fields are cut out by mask")]
    fn split(user_data: u64) -> (Self, u32, u32) {
        let kind = match user_data >> KIND_SHIFT {
            1 => Self::File,
            2 => Self::StreamIn,
            3 => Self::StreamOut,
            4 => Self::Listener,
            5 => Self::Waker,
            6 => Self::Watch,
            _ => Self::Ignored,
        };
        (kind, (user_data >> GENERATION_SHIFT) as u32 & GENERATION_MASK, user_data as u32)
    }
}

impl Uring {
    /// Makes a ring and its pool, and registers the pool with it. Without enough locked memory the pool stays unregistered, with one warning.
    ///
    /// # Errors
    ///
    /// [`SetupError`] names why io_uring cannot be used, or that memory is lacking.
    pub fn new(config: &UringConfig) -> Result<Self, SetupError> {
        let pool = Pool::new(&config.pool)?;
        let ring = setup::ring()?;
        let buffers_registered = setup::register_buffers(&ring, &pool);
        let files_registered = setup::register_file_table(&ring);
        let eventfd = nix::sys::eventfd::EventFd::from_value_and_flags(
            0,
            nix::sys::eventfd::EfdFlags::EFD_NONBLOCK | nix::sys::eventfd::EfdFlags::EFD_CLOEXEC,
        )
        .map_err(|errno| setup::explain(errno.into()))?;
        Ok(Self {
            files: Files::new(buffers_registered, files_registered, ring.params().cq_entries() / 2),
            streams: Streams::default(),
            watches: Watches::default(),
            timers: Timers::default(),
            housekeeping: Timers::default(),
            waker: Waker { eventfd: Arc::new(eventfd.into()) },
            waker_armed: false,
            ring,
            pool,
            poll: config.poll.0,
            now: monotonic(),
            last_progress: Time::default(),
            progress: false,
            answer_due: false,
            answered: false,
            peers_owe: false,
            stay_awake: false,
            more_finished: false,
            portion: FIRST_PORTION,
            crowding: Crowding::default(),
            patience: Patience::new(config.poll.0),
        })
    }

    /// A handle that other threads wake this reactor with.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// One turn: appends what happened to `events`; sleeps when nothing has happened for the poll budget. May append nothing.
    ///
    /// # Errors
    ///
    /// When the ring itself fails, which leaves the thread without a loop.
    pub fn turn(&mut self, events: &mut Vec<Event<Incoming>>) -> io::Result<()> {
        self.files.start_backlog(&mut self.ring)?;
        self.arm_waker()?;
        let last_turn = self.now;
        self.read_clock();
        if self.progress {
            self.progress = false;
            if std::mem::take(&mut self.answered) && self.answer_due {
                self.patience.answered(last_turn.since(self.last_progress));
            }
            self.last_progress = self.now;
            self.portion = self.portion.saturating_mul(2);
            self.crowding.found_work();
        } else if self.now.since(self.last_progress) > RUN_DRY {
            self.portion = FIRST_PORTION;
        }
        self.answer_due = self.peers_owe || self.files.in_flight() > 0;
        self.files.take_finished(events);
        let spins = self.spins() || std::mem::take(&mut self.stay_awake) || self.more_finished;
        let due = self.next_due().is_some_and(|due| due <= self.now);
        let busy = !events.is_empty() || self.streams.has_ready() || due || spins;
        if busy {
            if !self.ring.submission().is_empty() {
                self.enter(Some(Duration::ZERO))?;
            } else if events.is_empty() && !self.streams.has_ready() && !due && !self.more_finished {
                self.yield_core()?;
            }
        } else {
            self.streams.arm_hot(&mut self.ring)?;
            self.crowding.falls_asleep();
            self.portion = FIRST_PORTION;
            let sleep = self.next_due().map(|due| due.since(self.now));
            self.enter(sleep)?;
            self.read_clock();
        }
        self.reap(events)?;
        self.streams.offer_ready(events);
        while let Some(token) = self.housekeeping.pop_due(self.now) {
            self.streams.housekeep(&mut self.ring, token)?;
        }
        while let Some(token) = self.timers.pop_due(self.now) {
            events.push(Event::Timer { token });
        }
        Ok(())
    }

    /// Whether it is time to look for work rather than to sleep.
    fn spins(&self) -> bool {
        self.now.since(self.last_progress) < self.crowding.budget(self.now, self.patience.budget(self.answer_due))
    }

    /// Lets others on this core run, if there are any, but for those who would keep it. Also has the ring do its work, as any system call does.
    fn yield_core(&mut self) -> io::Result<()> {
        if !self.crowding.may_yield(self.now) {
            return if self.ring.submission().taskrun() { self.enter(Some(Duration::ZERO)) } else { Ok(()) };
        }
        std::thread::yield_now();
        let before = self.now;
        self.read_clock();
        self.crowding.yielded(before, self.now);
        Ok(())
    }

    fn read_clock(&mut self) {
        self.now = monotonic();
    }

    fn next_due(&self) -> Option<Time> {
        [self.timers.next_due(), self.housekeeping.next_due()].into_iter().flatten().min()
    }

    /// Submits what is queued, and waits for at most `sleep` (`None`: for ever) unless that is zero.
    fn enter(&mut self, sleep: Option<Duration>) -> io::Result<()> {
        let result = match sleep {
            Some(Duration::ZERO) => self.ring.submit(),
            Some(sleep) => {
                let timespec = types::Timespec::from(sleep);
                self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&timespec))
            }
            None => self.ring.submit_and_wait(1),
        };
        match result {
            Ok(_) => Ok(()),
            // Time is up; a signal; completions must be reaped first.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn reap(&mut self, events: &mut Vec<Event<Incoming>>) -> io::Result<()> {
        let mut files = 0;
        loop {
            self.more_finished = files >= self.portion;
            if self.more_finished {
                return Ok(());
            }
            let Some(entry) = self.ring.completion().next() else { return Ok(()) };
            let (kind, generation, index) = Kind::split(entry.user_data());
            match kind {
                Kind::File => {
                    files += 1;
                    (self.progress, self.answered) = (true, true);
                    self.files.complete(&self.ring, index, entry.result(), events);
                }
                Kind::StreamIn => self.streams.on_readable(&mut self.ring, generation, index, events)?,
                Kind::StreamOut => self.streams.on_writable(generation, index, events),
                Kind::Listener => {
                    if self.streams.on_acceptable(index, events) {
                        self.streams.arm_listener(&mut self.ring, index)?;
                    } else {
                        self.housekeeping.set(self.now, self.now + streams::ACCEPT_PAUSE, Token(streams::listener_chore(index)));
                    }
                }
                Kind::Waker => self.on_woken(&entry, events),
                Kind::Watch => self.watches.on_readable(generation, index, events),
                Kind::Ignored => {}
            }
        }
    }

    fn arm_waker(&mut self) -> io::Result<()> {
        if !self.waker_armed {
            self.waker_armed = true;
            push_poll(&mut self.ring, self.waker.eventfd.as_raw_fd(), libc::POLLIN, Kind::Waker.user_data(0, 0))?;
        }
        Ok(())
    }

    fn on_woken(&mut self, entry: &cqueue::Entry, events: &mut Vec<Event<Incoming>>) {
        self.waker_armed = false;
        if entry.result() >= 0 {
            let mut counter = [0; 8];
            let _ = nix::unistd::read(&*self.waker.eventfd, &mut counter);
        }
        events.push(Event::Woken);
    }
}

/// The time of the machine, which is the same on all threads.
fn monotonic() -> Time {
    // It cannot fail: Linux has this clock.
    let time = ClockId::CLOCK_MONOTONIC.now().map(Duration::from).unwrap_or_default();
    Time::from_nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Repeats a call that a signal interrupted.
fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Queues an entry, submitting what is queued when the ring is full.
fn push(ring: &mut IoUring, entry: &squeue::Entry) -> io::Result<()> {
    loop {
        // SAFETY: what the entry points to (a buffer of the in-flight table, or nothing) stays valid until its completion: see the module's header.
        let pushed = unsafe { ring.submission().push(entry) };
        if pushed.is_ok() {
            return Ok(());
        }
        uninterrupted(|| ring.submit())?;
    }
}

fn push_poll(ring: &mut IoUring, fd: i32, flags: libc::c_short, user_data: u64) -> io::Result<()> {
    let flags = u32::from(flags.unsigned_abs());
    push(ring, &opcode::PollAdd::new(types::Fd(fd), flags).build().user_data(user_data))
}

fn push_cancel(ring: &mut IoUring, user_data: u64) -> io::Result<()> {
    push(ring, &opcode::AsyncCancel::new(user_data).build().user_data(Kind::Ignored.user_data(0, 0)))
}

impl Reactor for Uring {
    type Incoming = Incoming;
    type Listener = Listener;
    type File = BackingFile;

    fn now(&self) -> Time {
        self.now
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn listen(&mut self, listener: Listener, token: Token) -> io::Result<ListenerId> {
        self.streams.listen(&mut self.ring, listener, token)
    }

    fn close_listener(&mut self, listener: ListenerId) {
        self.streams.close_listener(&mut self.ring, listener);
    }

    fn adopt(&mut self, incoming: Incoming, token: Token) -> io::Result<StreamId> {
        self.streams.adopt(incoming, token)
    }

    fn connect(&mut self, address: SocketAddr, token: Token) -> io::Result<StreamId> {
        self.streams.connect(&mut self.ring, address, token)
    }

    fn receive(&mut self, stream: StreamId, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let open = self.streams.open(stream)?;
        let room: usize = into.iter().map(|slice| slice.len()).sum();
        // The plain calls are cheaper.
        let result = uninterrupted(|| match &mut *into {
            [one] => (&open.socket).read(one),
            many => (&open.socket).read_vectored(many),
        });
        let dry = match &result {
            Ok(received) => {
                self.progress = true;
                self.answered |= self.peers_owe;
                // Most likely nothing is left. If something is, or the end, the poll or the next turn finds it: no call is spent on asking.
                (1..room).contains(received)
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        if dry {
            self.streams.ran_dry(&mut self.ring, stream, self.poll > Duration::ZERO)?;
        }
        result
    }

    fn send(&mut self, stream: StreamId, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let open = self.streams.open(stream)?;
        // A closed peer is an error here, not a signal: Rust's start-up code ignores SIGPIPE.
        let result = uninterrupted(|| match from {
            [one] => (&open.socket).write(one),
            many => (&open.socket).write_vectored(many),
        });
        match result {
            Ok(sent) => {
                self.progress = true;
                Ok(sent)
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::WouldBlock {
                    self.streams.ran_full(&mut self.ring, stream)?;
                }
                Err(error)
            }
        }
    }

    fn shutdown_send(&mut self, stream: StreamId) {
        if let Ok(open) = self.streams.open(stream) {
            // Fails only when the connection is gone, which reading will tell.
            let _ = open.socket.shutdown(std::net::Shutdown::Write);
        }
    }

    fn close(&mut self, stream: StreamId) {
        self.streams.close(&mut self.ring, stream);
    }

    fn close_gracefully(&mut self, stream: StreamId) {
        if let Some(chore) = self.streams.linger(&mut self.ring, stream) {
            self.housekeeping.set(self.now, self.now + streams::LINGER, Token(chore));
        }
    }

    fn peer(&self, stream: StreamId) -> Option<Peer> {
        self.streams.open(stream).ok().map(|open| open.peer.clone())
    }

    fn local_address(&self, stream: StreamId) -> Option<SocketAddr> {
        self.streams.open(stream).ok()?.socket.local_addr().ok()?.as_socket()
    }

    fn max_segment_bytes(&self, stream: StreamId) -> Option<usize> {
        self.streams.open(stream).ok()?.socket.tcp_mss().ok().and_then(|mss| usize::try_from(mss).ok())
    }

    fn has_ended(&self, stream: StreamId) -> bool {
        let Ok(open) = self.streams.open(stream) else { return true };
        let mut ends = [PollFd::new(&open.socket, PollFlags::RDHUP)];
        // It does not wait. A reset is told unasked.
        let count = rustix::event::poll(&mut ends, Some(&Timespec::default()));
        count.is_ok_and(|count| count > 0)
    }

    fn register_file(&mut self, file: BackingFile) -> io::Result<FileId> {
        self.files.register(&self.ring, file)
    }

    fn memory(file: &BackingFile) -> Option<&Arc<MemoryDisk>> {
        match file {
            BackingFile::Memory(disk) => Some(disk),
            BackingFile::Open(_) | BackingFile::InMemory(_) => None,
        }
    }

    fn unregister_file(&mut self, file: FileId) {
        self.files.unregister(&self.ring, file);
    }

    fn submit(&mut self, file: FileId, op: FileOp, token: Token) {
        self.progress = true;
        self.files.submit(file, op, token);
    }

    fn run_now(&mut self, file: FileId, op: FileOp) -> Result<FileDone, FileOp> {
        self.progress = true;
        self.files.run_now(file, op)
    }

    fn set_timer(&mut self, at: Time, token: Token) -> TimerId {
        self.timers.set(self.now, at, token)
    }

    fn cancel_timer(&mut self, timer: TimerId) {
        self.timers.cancel(timer);
    }

    fn watch(&mut self, descriptor: OwnedFd, token: Token) -> io::Result<WatchId> {
        self.watches.add(&mut self.ring, descriptor, token)
    }

    fn watch_again(&mut self, watch: WatchId) -> io::Result<()> {
        self.watches.arm(&mut self.ring, watch)
    }

    fn unwatch(&mut self, watch: WatchId) {
        self.watches.remove(&mut self.ring, watch);
    }

    fn portion(&self) -> usize {
        self.portion
    }

    fn expects(&mut self, answers: bool) {
        self.peers_owe = answers;
    }

    fn keeps_looking(&mut self, progress: bool) -> bool {
        self.progress |= progress;
        self.answered |= progress && self.peers_owe;
        self.stay_awake = progress || self.spins();
        self.stay_awake
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The ring is torn down some time after it is closed; sockets are not to wait for that.
        self.streams.close_all(&mut self.ring);
        let _ = self.enter(Some(Duration::ZERO));
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut events = Vec::new();
        while self.files.in_flight() > 0 && Instant::now() < deadline {
            let _ = self.enter(Some(Duration::from_millis(100)));
            let _ = self.reap(&mut events);
            events.clear();
        }
        if self.files.in_flight() > 0 {
            tracing::warn!(operations = self.files.in_flight(), "file operations did not end; their buffers are left to the kernel");
            self.files.leak_in_flight();
        }
    }
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uring")
            .field("now", &self.now)
            .field("streams", &self.streams)
            .field("in_flight", &self.files.in_flight())
            .finish_non_exhaustive()
    }
}
