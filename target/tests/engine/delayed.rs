//! A reactor whose file operations can be made to take as long as a test wants.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use godwit_memory::Pool;
use godwit_reactor::{
    BackingFile, Event, FileId, FileOp, Incoming, Listener, ListenerId, Peer, Reactor, StreamId, Time, TimerId, Token, Uring,
};

/// [`Uring`], but for the ends of file operations, which it keeps while `hold` is set.
pub(crate) struct Delayed {
    pub(crate) inner: Uring,
    pub(crate) hold: Arc<AtomicBool>,
    held: Vec<Event<Incoming>>,
}

impl Delayed {
    pub(crate) fn new(inner: Uring, hold: Arc<AtomicBool>) -> Self {
        Self { inner, hold, held: Vec::new() }
    }

    pub(crate) fn turn(&mut self, events: &mut Vec<Event<Incoming>>) -> io::Result<()> {
        self.inner.turn(events)?;
        if self.hold.load(Ordering::SeqCst) {
            let (files, others) = events.drain(..).partition(|event| matches!(event, Event::File { .. }));
            self.held.extend::<Vec<_>>(files);
            *events = others;
        } else {
            events.append(&mut self.held);
        }
        Ok(())
    }
}

impl Reactor for Delayed {
    type Incoming = Incoming;
    type Listener = Listener;
    type File = BackingFile;

    fn now(&self) -> Time {
        self.inner.now()
    }
    fn pool(&self) -> &Pool {
        self.inner.pool()
    }
    fn listen(&mut self, listener: Listener, token: Token) -> io::Result<ListenerId> {
        self.inner.listen(listener, token)
    }
    fn close_listener(&mut self, listener: ListenerId) {
        self.inner.close_listener(listener);
    }
    fn adopt(&mut self, incoming: Incoming, token: Token) -> io::Result<StreamId> {
        self.inner.adopt(incoming, token)
    }
    fn connect(&mut self, address: SocketAddr, token: Token) -> io::Result<StreamId> {
        self.inner.connect(address, token)
    }
    fn receive(&mut self, stream: StreamId, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.inner.receive(stream, into)
    }
    fn send(&mut self, stream: StreamId, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.inner.send(stream, from)
    }
    fn shutdown_send(&mut self, stream: StreamId) {
        self.inner.shutdown_send(stream);
    }
    fn close(&mut self, stream: StreamId) {
        self.inner.close(stream);
    }
    fn close_gracefully(&mut self, stream: StreamId) {
        self.inner.close_gracefully(stream);
    }
    fn peer(&self, stream: StreamId) -> Option<Peer> {
        self.inner.peer(stream)
    }
    fn local_address(&self, stream: StreamId) -> Option<SocketAddr> {
        self.inner.local_address(stream)
    }
    fn max_segment_bytes(&self, stream: StreamId) -> Option<usize> {
        self.inner.max_segment_bytes(stream)
    }
    fn has_ended(&self, stream: StreamId) -> bool {
        self.inner.has_ended(stream)
    }
    fn register_file(&mut self, file: BackingFile) -> io::Result<FileId> {
        self.inner.register_file(file)
    }
    fn unregister_file(&mut self, file: FileId) {
        self.inner.unregister_file(file);
    }
    fn submit(&mut self, file: FileId, op: FileOp, token: Token) {
        self.inner.submit(file, op, token);
    }
    fn portion(&self) -> usize {
        self.inner.portion()
    }
    fn keeps_looking(&mut self, progress: bool) -> bool {
        self.inner.keeps_looking(progress)
    }
    fn set_timer(&mut self, at: Time, token: Token) -> TimerId {
        self.inner.set_timer(at, token)
    }
    fn cancel_timer(&mut self, timer: TimerId) {
        self.inner.cancel_timer(timer);
    }
}
