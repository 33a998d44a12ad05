//! Jobs step by step: what they ask of the reactor, and what they make of each answer.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;

use godwit_memory::Pool;
use godwit_reactor::{AllocateMode, FileDone, FileId, FileOp, Incoming, Listener, ListenerId, Peer, StreamId, Time, TimerId};
use rustix::io::Errno;

use super::*;

/// A reactor whose file operations wait for the test to end them.
struct Stage {
    ring: Uring,
    asked: VecDeque<(FileOp, Token)>,
}

impl Reactor for Stage {
    type Incoming = Incoming;
    type Listener = Listener;
    type File = BackingFile;

    fn now(&self) -> Time {
        self.ring.now()
    }
    fn pool(&self) -> &Pool {
        self.ring.pool()
    }
    fn listen(&mut self, _: Listener, _: Token) -> io::Result<ListenerId> {
        unreachable!("a backend has no listeners")
    }
    fn close_listener(&mut self, _: ListenerId) {}
    fn adopt(&mut self, _: Incoming, _: Token) -> io::Result<StreamId> {
        unreachable!("a backend has no streams")
    }
    fn connect(&mut self, _: SocketAddr, _: Token) -> io::Result<StreamId> {
        unreachable!("a backend has no streams")
    }
    fn receive(&mut self, _: StreamId, _: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        unreachable!("a backend has no streams")
    }
    fn send(&mut self, _: StreamId, _: &[IoSlice<'_>]) -> io::Result<usize> {
        unreachable!("a backend has no streams")
    }
    fn shutdown_send(&mut self, _: StreamId) {}
    fn close(&mut self, _: StreamId) {}
    fn close_gracefully(&mut self, _: StreamId) {}
    fn peer(&self, _: StreamId) -> Option<Peer> {
        None
    }
    fn local_address(&self, _: StreamId) -> Option<SocketAddr> {
        None
    }
    fn max_segment_bytes(&self, _: StreamId) -> Option<usize> {
        None
    }
    fn has_ended(&self, _: StreamId) -> bool {
        true
    }
    fn register_file(&mut self, file: BackingFile) -> io::Result<FileId> {
        self.ring.register_file(file)
    }
    fn unregister_file(&mut self, file: FileId) {
        self.ring.unregister_file(file);
    }
    fn submit(&mut self, _: FileId, op: FileOp, token: Token) {
        self.asked.push_back((op, token));
    }
    fn set_timer(&mut self, at: Time, token: Token) -> TimerId {
        self.ring.set_timer(at, token)
    }
    fn cancel_timer(&mut self, timer: TimerId) {
        self.ring.cancel_timer(timer);
    }
}

/// What a job asked for, without its buffer.
#[derive(Debug, PartialEq, Eq)]
enum Ask {
    Read(u64, usize, usize),
    Write(u64, usize, usize, bool),
    Sync,
    Allocate(AllocateMode, u64, u64),
}

use AllocateMode::{PunchHole, ZeroRange};
use Ask::{Allocate, Read, Sync, Write};

struct Scene {
    stage: Stage,
    attached: Attached,
}

impl Scene {
    fn new(store: &Arc<Store<BackingFile>>) -> Self {
        let mut stage = Stage { ring: ring(), asked: VecDeque::new() };
        let attached = Attached::new(&mut stage, store).unwrap();
        Self { stage, attached }
    }

    fn start(&mut self, token: u64, operation: Operation) -> Progress {
        self.attached.start(&mut self.stage, operation, Token(token))
    }

    fn read(&mut self, offset: u64, len: usize) -> Progress {
        let buffer = self.stage.pool().take(len).unwrap();
        self.start(1, Operation::Read { offset, len, buffer })
    }

    fn write(&mut self, offset: u64, len: usize, durable: bool) -> Progress {
        let buffer = self.stage.pool().take(len).unwrap();
        self.start(1, Operation::Write { offset, len, buffer, durable })
    }

    fn zero(&mut self, offset: u64, len: u64, deallocate: bool, durable: bool) -> Progress {
        self.start(1, Operation::Zero { offset, len, deallocate, durable })
    }

    /// Expects the job to have asked for exactly this, and ends it.
    fn answer(&mut self, progress: Progress, ask: &Ask, result: Result<usize, Errno>) -> Progress {
        let Progress::Working(job) = progress else { panic!("ended before it asked for {ask:?}: {progress:?}") };
        let (op, token) = self.stage.asked.pop_front().expect("the job asks for something");
        let (asked, buffer) = split(op);
        assert_eq!(asked, *ask);
        let done = FileDone { result: result.map_err(io::Error::from), buffer };
        self.attached.resume(&mut self.stage, job, done, token)
    }

    fn ended(&self, progress: Progress) -> Result<(), BackendError> {
        let Progress::Done { result, .. } = progress else { panic!("goes on: {progress:?}") };
        assert!(self.stage.asked.is_empty(), "asked for more: {:?}", self.stage.asked);
        result
    }
}

fn split(op: FileOp) -> (Ask, Option<Buffer>) {
    match op {
        FileOp::Read { offset, buffer, start, len } => (Read(offset, start, len), Some(buffer)),
        FileOp::Write { offset, buffer, start, len, durable } => (Write(offset, start, len, durable), Some(buffer)),
        FileOp::Sync => (Sync, None),
        FileOp::Allocate { mode, offset, len } => (Allocate(mode, offset, len), None),
    }
}

const SIZE: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn store_with(buffered: bool, in_memory: bool) -> Arc<Store<BackingFile>> {
    let description = Description {
        text: "test".to_owned(),
        kind: Kind::File,
        size_bytes: SIZE,
        block_bytes: 512,
        read_only: false,
        identity: Identity::random(),
        storage: None,
        buffered,
        in_memory,
    };
    let file = Arc::new(tempfile::tempfile().unwrap());
    let backing = if in_memory { BackingFile::InMemory(file) } else { BackingFile::Open(file) };
    Arc::new(Store::new(backing, description))
}

fn direct() -> Arc<Store<BackingFile>> {
    store_with(false, false)
}

#[test]
fn a_short_write_goes_on_where_it_stopped() {
    let mut scene = Scene::new(&direct());
    let job = scene.write(4096, 8192, true);
    let job = scene.answer(job, &Write(4096, 0, 8192, true), Ok(512));
    let job = scene.answer(job, &Write(4608, 512, 7680, true), Ok(7168));
    let job = scene.answer(job, &Write(11776, 7680, 512, true), Ok(512));
    assert_eq!(scene.ended(job), Ok(()));
}

#[test]
fn a_write_that_gets_nowhere_fails() {
    let mut scene = Scene::new(&direct());
    let job = scene.write(0, 8192, false);
    let job = scene.answer(job, &Write(0, 0, 8192, false), Ok(512));
    let job = scene.answer(job, &Write(512, 512, 7680, false), Ok(0));
    assert_eq!(scene.ended(job), Err(BackendError::Write { errno: Errno::IO.raw_os_error() }));
}

#[test]
fn a_short_read_goes_on_from_the_last_whole_block() {
    let mut scene = Scene::new(&direct());
    let job = scene.read(4096, 4096);
    let job = scene.answer(job, &Read(4096, 0, 4096), Ok(1124));
    let job = scene.answer(job, &Read(5120, 1024, 3072), Ok(3072));
    assert_eq!(scene.ended(job), Ok(()));
}

#[test]
fn a_read_that_gets_no_whole_block_further_has_found_the_end() {
    let store = direct();
    let mut scene = Scene::new(&store);
    let job = scene.read(4096, 4096);
    let job = scene.answer(job, &Read(4096, 0, 4096), Ok(1124));
    let job = scene.answer(job, &Read(5120, 1024, 3072), Ok(100));
    assert_eq!(scene.ended(job), Err(BackendError::Truncated));
    assert!(store.truncated());
    let job = scene.read(5120, 512);
    assert_eq!(scene.ended(job), Err(BackendError::Truncated));
    let job = scene.read(4608, 512);
    let job = scene.answer(job, &Read(4608, 0, 512), Ok(512));
    assert_eq!(scene.ended(job), Ok(()));
}

#[test]
fn a_short_read_that_is_not_direct_goes_on_from_any_byte_until_there_is_none() {
    for store in [store_with(true, false), store_with(false, true)] {
        let mut scene = Scene::new(&store);
        let job = scene.read(4096, 4096);
        let job = scene.answer(job, &Read(4096, 0, 4096), Ok(100));
        let job = scene.answer(job, &Read(4196, 100, 3996), Ok(3996));
        assert_eq!(scene.ended(job), Ok(()));
        let job = scene.read(4096, 4096);
        let job = scene.answer(job, &Read(4096, 0, 4096), Ok(100));
        let job = scene.answer(job, &Read(4196, 100, 3996), Ok(0));
        assert_eq!(scene.ended(job), Err(BackendError::Truncated));
        assert!(store.truncated());
    }
}

#[test]
fn errors_of_the_system_are_told_apart() {
    let store = direct();
    let mut scene = Scene::new(&store);
    for (errno, error) in [
        (Errno::NOSPC, BackendError::NoSpace),
        (Errno::DQUOT, BackendError::NoSpace),
        (Errno::FBIG, BackendError::NoSpace),
        (Errno::IO, BackendError::Write { errno: Errno::IO.raw_os_error() }),
    ] {
        let job = scene.write(0, 512, false);
        let job = scene.answer(job, &Write(0, 0, 512, false), Err(errno));
        assert_eq!(scene.ended(job), Err(error));
        let job = scene.zero(0, 512, true, false);
        let job = scene.answer(job, &Allocate(PunchHole, 0, 512), Err(errno));
        assert_eq!(scene.ended(job), Err(error));
    }
    let job = scene.read(0, 512);
    let job = scene.answer(job, &Read(0, 0, 512), Err(Errno::IO));
    assert_eq!(scene.ended(job), Err(BackendError::Read { errno: Errno::IO.raw_os_error() }));
    assert!(!store.sync_failed() && !store.truncated());
}

#[test]
fn a_failed_sync_fails_every_later_flush_and_durable_write_on_every_thread_and_nothing_else() {
    let store = direct();
    let (mut one, mut other) = (Scene::new(&store), Scene::new(&store));
    let job = one.start(1, Operation::Flush);
    let job = one.answer(job, &Sync, Err(Errno::IO));
    assert_eq!(one.ended(job), Err(BackendError::SyncFailed));
    for scene in [&mut one, &mut other] {
        let refused = [scene.start(1, Operation::Flush), scene.write(0, 512, true), scene.zero(0, 512, false, true)];
        for progress in refused {
            assert_eq!(scene.ended(progress), Err(BackendError::SyncFailed));
        }
        let job = scene.write(0, 512, false);
        let job = scene.answer(job, &Write(0, 0, 512, false), Ok(512));
        assert_eq!(scene.ended(job), Ok(()));
    }
    store.file.file().unwrap().set_len(SIZE).unwrap();
    store.reopen(|| ()).unwrap();
    let job = other.start(1, Operation::Flush);
    let job = other.answer(job, &Sync, Ok(0));
    assert_eq!(other.ended(job), Ok(()));
}

#[test]
fn a_sync_that_succeeds_after_another_one_failed_is_a_failure() {
    let store = direct();
    let (mut one, mut other) = (Scene::new(&store), Scene::new(&store));
    let flush = other.start(1, Operation::Flush);
    let durable = one.write(0, 512, true);
    let failing = other.start(2, Operation::Flush);
    // The failure reaches its thread first.
    let sync = other.stage.asked.pop_front().unwrap();
    let failing = other.answer(failing, &Sync, Err(Errno::IO));
    assert!(matches!(failing, Progress::Done { result: Err(BackendError::SyncFailed), .. }));
    other.stage.asked.push_back(sync);
    let flush = other.answer(flush, &Sync, Ok(0));
    assert_eq!(other.ended(flush), Err(BackendError::SyncFailed));
    let durable = one.answer(durable, &Write(0, 0, 512, true), Ok(512));
    assert_eq!(one.ended(durable), Err(BackendError::SyncFailed));
}

#[test]
fn an_error_of_a_durable_write_is_a_failed_sync_unless_the_write_itself_was_refused() {
    for (errno, error, sticky) in [
        (Errno::IO, BackendError::SyncFailed, true),
        (Errno::ROFS, BackendError::SyncFailed, true),
        (Errno::NOSPC, BackendError::NoSpace, false),
        (Errno::DQUOT, BackendError::NoSpace, false),
        (Errno::FBIG, BackendError::NoSpace, false),
        (Errno::INVAL, BackendError::Write { errno: Errno::INVAL.raw_os_error() }, false),
    ] {
        let store = direct();
        let mut scene = Scene::new(&store);
        let job = scene.write(0, 512, true);
        let job = scene.answer(job, &Write(0, 0, 512, true), Err(errno));
        assert_eq!((scene.ended(job), store.sync_failed()), (Err(error), sticky), "{errno}");
    }
}

#[test]
fn a_durable_write_through_the_page_cache_is_a_write_and_a_sync() {
    let store = store_with(true, false);
    let mut scene = Scene::new(&store);
    let job = scene.write(0, 1024, true);
    let job = scene.answer(job, &Write(0, 0, 1024, false), Ok(512));
    let job = scene.answer(job, &Write(512, 512, 512, false), Ok(512));
    let job = scene.answer(job, &Sync, Ok(0));
    let Progress::Done { result: Ok(()), buffer: Some(_) } = job else { panic!("{job:?}") };

    let job = scene.write(0, 512, true);
    let job = scene.answer(job, &Write(0, 0, 512, false), Err(Errno::IO));
    assert!(scene.ended(job).is_err());
    assert!(!store.sync_failed(), "the write failed, not the sync");
    let job = scene.write(0, 512, true);
    let job = scene.answer(job, &Write(0, 0, 512, false), Ok(512));
    let job = scene.answer(job, &Sync, Err(Errno::NOSPC));
    assert_eq!(scene.ended(job), Err(BackendError::SyncFailed));
    assert!(store.sync_failed());
}

#[test]
fn zeroing_goes_by_pieces_and_a_durable_one_ends_with_a_sync() {
    let mut scene = Scene::new(&direct());
    let job = scene.zero(512, 64 * MIB + 512, false, true);
    let job = scene.answer(job, &Allocate(ZeroRange, 512, 64 * MIB), Ok(0));
    let job = scene.answer(job, &Allocate(ZeroRange, 512 + 64 * MIB, 512), Ok(0));
    let job = scene.answer(job, &Sync, Ok(0));
    assert_eq!(scene.ended(job), Ok(()));
    let mut scene = Scene::new(&store_with(false, true));
    let job = scene.start(1, Operation::Discard { offset: 0, len: 5 * MIB });
    let job = scene.answer(job, &Allocate(PunchHole, 0, 4 * MIB), Ok(0));
    let job = scene.answer(job, &Allocate(PunchHole, 4 * MIB, MIB), Ok(0));
    assert_eq!(scene.ended(job), Ok(()));
}

#[test]
fn zeroing_tries_what_may_work_and_remembers_what_does_not() {
    let mut scene = Scene::new(&direct());
    let job = scene.zero(0, 192 << 10, true, false);
    let job = scene.answer(job, &Allocate(PunchHole, 0, 192 << 10), Err(Errno::OPNOTSUPP));
    let job = scene.answer(job, &Allocate(ZeroRange, 0, 192 << 10), Err(Errno::OPNOTSUPP));
    let job = scene.answer(job, &Write(0, 0, 128 << 10, false), Ok(128 << 10));
    let job = scene.answer(job, &Write(128 << 10, 0, 64 << 10, false), Ok(1024));
    let job = scene.answer(job, &Write(129 << 10, 0, 63 << 10, false), Ok(63 << 10));
    assert_eq!(scene.ended(job), Ok(()));
    let job = scene.zero(0, 512, true, false);
    let job = scene.answer(job, &Write(0, 0, 512, false), Err(Errno::NOSPC));
    assert_eq!(scene.ended(job), Err(BackendError::NoSpace));
    let job = scene.zero(0, 512, false, true);
    let job = scene.answer(job, &Write(0, 0, 512, false), Ok(512));
    let job = scene.answer(job, &Sync, Ok(0));
    assert_eq!(scene.ended(job), Ok(()));
    let job = scene.start(1, Operation::Discard { offset: 0, len: 512 });
    assert_eq!(scene.ended(job), Ok(()), "advice that cannot be followed");
}

#[test]
fn a_range_that_is_to_stay_provisioned_is_not_made_a_hole_for_want_of_a_better_call() {
    let mut scene = Scene::new(&direct());
    let job = scene.zero(0, 512, false, false);
    let job = scene.answer(job, &Allocate(ZeroRange, 0, 512), Err(Errno::OPNOTSUPP));
    let job = scene.answer(job, &Write(0, 0, 512, false), Ok(512));
    assert_eq!(scene.ended(job), Ok(()));
}

#[test]
fn memory_is_zeroed_by_giving_it_back() {
    let mut scene = Scene::new(&store_with(false, true));
    let job = scene.zero(0, 512, false, false);
    let job = scene.answer(job, &Allocate(PunchHole, 0, 512), Ok(0));
    assert_eq!(scene.ended(job), Ok(()));
}

#[test]
fn a_range_that_the_call_does_not_take_is_written_and_the_call_tried_again_next_time() {
    let store = direct();
    let mut scene = Scene::new(&store);
    let job = scene.zero(0, 512, true, false);
    let job = scene.answer(job, &Allocate(PunchHole, 0, 512), Err(Errno::INVAL));
    let job = scene.answer(job, &Write(0, 0, 512, false), Ok(512));
    assert_eq!(scene.ended(job), Ok(()));
    let job = scene.start(1, Operation::Discard { offset: 0, len: 512 });
    let job = scene.answer(job, &Allocate(PunchHole, 0, 512), Err(Errno::INVAL));
    assert_eq!(scene.ended(job), Ok(()));
    assert!(store.shared.supports(PunchHole));
}

#[test]
fn writers_of_zeroes_stand_in_line_and_each_piece_carries_its_own_token() {
    let store = direct();
    store.shared.note_unsupported(ZeroRange);
    let mut scene = Scene::new(&store);
    let zero = |offset| Operation::Zero { offset, len: 256 << 10, deallocate: false, durable: false };
    let (first, second) = (scene.start(1, zero(0)), scene.start(2, zero(MIB)));
    let third = scene.start(3, zero(2 * MIB));
    let tokens = |scene: &Scene| scene.stage.asked.iter().map(|(_, token)| token.0).collect::<Vec<_>>();
    assert_eq!(tokens(&scene), [1], "one write at a time");
    let first = scene.answer(first, &Write(0, 0, 128 << 10, false), Ok(128 << 10));
    assert_eq!(tokens(&scene), [2]);
    let second = scene.answer(second, &Write(MIB, 0, 128 << 10, false), Err(Errno::IO));
    assert!(matches!(second, Progress::Done { result: Err(BackendError::Write { .. }), .. }));
    assert_eq!(tokens(&scene), [3], "one that fails passes the buffer on");
    let third = scene.answer(third, &Write(2 * MIB, 0, 128 << 10, false), Ok(128 << 10));
    assert_eq!(tokens(&scene), [1]);
    let first = scene.answer(first, &Write(128 << 10, 0, 128 << 10, false), Ok(128 << 10));
    assert!(matches!(first, Progress::Done { result: Ok(()), .. }));
    let third = scene.answer(third, &Write((2 << 20) + (128 << 10), 0, 128 << 10, false), Ok(128 << 10));
    assert_eq!(scene.ended(third), Ok(()));
    let again = scene.zero(0, 512, false, false);
    let again = scene.answer(again, &Write(0, 0, 512, false), Ok(512));
    assert_eq!(scene.ended(again), Ok(()));
}
