//! All NBD connections of one volume on one reactor thread.

use std::sync::Arc;
use std::time::Duration;

use godwit_memory::Buffer;
use godwit_rdma::Fabric;
use godwit_reactor::{Event, Reactor, Time, TimerId, Token};
use slab::Slab;

use super::buffers::{Buffers, longest_transfer};
use super::connection::Connection;
use super::error::End;
use super::gate::{Gate, Mark, Orphans};
use super::request::PieceSizes;
use super::transmission::Supply;
use super::volume::Volume;
use crate::block::{BlockError, BlockOp, BlockQueue, Ticket};

/// The top 16 bits of all tokens of front ends ("NB"). The next 16 are a front end's number.
const TOKENS: u64 = 0x4e42;

/// Bits of a token for a connection's place, and for the count of connections that tells apart those that had one place.
const INDEX_BITS: u32 = 16;
const GENERATION_BITS: u32 = 12;

/// How often one pump looks at its connections before it lets the rest of the thread go on.
const ROUNDS: usize = 8;

/// How long to wait before trying again what no event tells of: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

/// The NBD front end of a volume on one thread: see the [module](super).
pub struct Front {
    number: u16,
    volume: Arc<Volume>,
    entries: Vec<Entry>,
    buffers: Buffers,
    generation: u16,
    /// Where the next round begins, so that no connection is always first.
    turn: usize,
    retry: Option<(Time, TimerId)>,
    pause: Duration,
    /// Whether the pause is over, so that stalled clients are looked for.
    paused: bool,
    stopping: bool,
    ended_links: Vec<(LinkId, LinkEnd)>,
}

/// A socket to the kernel, by its number among those of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkId(pub usize);

/// How a socket to the kernel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// The kernel said so: the device was freed.
    Freed,
    /// Any other end.
    Lost,
}

/// A place for a connection.
#[derive(Debug)]
enum Entry {
    Free,
    Open {
        connection: Box<Connection>,
        handshake: Option<TimerId>,
        /// The socket to the kernel that this is, if it is one.
        link: Option<LinkId>,
    },
    /// The connection ended; these of its operations have not.
    Ended {
        operations: Slab<()>,
        orphans: Orphans,
    },
}

#[derive(Clone, Copy)]
enum Purpose {
    Stream = 0,
    Handshake = 1,
    Retry = 2,
}

impl Front {
    /// A front end without connections. `number` tells the front ends of one thread apart.
    pub fn new<R: Reactor>(reactor: &R, number: u16, volume: Arc<Volume>) -> Self {
        let connections = volume.limits().connections;
        Self {
            number,
            entries: Vec::with_capacity(connections),
            buffers: Buffers::new(reactor.pool().clone(), connections),
            volume,
            generation: 0,
            turn: 0,
            retry: None,
            pause: FIRST_PAUSE,
            paused: false,
            stopping: false,
            ended_links: Vec::new(),
        }
    }

    /// The number of the front end whose own a reactor's token is.
    #[expect(clippy::cast_possible_truncation, reason = "the field is cut out of the token as it was put together")]
    pub fn number_of(token: Token) -> Option<u16> {
        (token.0 >> 48 == TOKENS).then_some((token.0 >> 32) as u16)
    }

    /// Whether a reactor's token is this front end's own.
    pub fn owns(&self, token: Token) -> bool {
        Self::number_of(token) == Some(self.number)
    }

    /// The volume that it serves.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Whether it has no connection, and none that ended left an operation behind.
    pub fn is_idle(&self) -> bool {
        self.entries.iter().all(|entry| matches!(entry, Entry::Free))
    }

    /// Takes over a client that connected. One that is over the limit of connections is closed, with a line in the log.
    pub fn adopt<R: Reactor>(&mut self, reactor: &mut R, incoming: R::Incoming) {
        let index = self.next_place();
        let stream = match reactor.adopt(incoming, self.token(Purpose::Stream, index, self.generation)) {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(volume = self.volume.label(), "cannot take over an NBD connection: {error}"),
        };
        let peer = reactor.peer(stream);
        let name = Name(peer.as_ref());
        if self.stopping || !self.volume.enter() {
            let limit = self.volume.limits().connections;
            let why = if self.stopping { "shutting down" } else { "limit of connections" };
            tracing::warn!(volume = self.volume.label(), client = %name, limit, "NBD client refused: {why}");
            return reactor.close_gracefully(stream);
        }
        tracing::info!(volume = self.volume.label(), client = %name, connections = self.volume.connections(), "NBD client connected");
        let deadline = reactor.now() + self.volume.limits().handshake;
        let handshake = Some(reactor.set_timer(deadline, self.token(Purpose::Handshake, index, self.generation)));
        let connection = Box::new(Connection::new(stream, peer, self.generation, self.volume.exports()));
        self.open_at(index, Entry::Open { connection, handshake, link: None });
    }

    /// Takes over a socket whose other end the kernel has, and which is past the handshake. The limit of connections is not for these.
    /// [`Self::next_ended_link`] tells of its end.
    pub fn attach<R: Reactor>(&mut self, reactor: &mut R, incoming: R::Incoming, link: LinkId) {
        let index = self.next_place();
        let stream = match reactor.adopt(incoming, self.token(Purpose::Stream, index, self.generation)) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(volume = self.volume.label(), "cannot take over a socket to the kernel: {error}");
                return self.ended_links.push((link, LinkEnd::Lost));
            }
        };
        if self.stopping {
            return reactor.close(stream);
        }
        self.volume.enter_always();
        let peer = reactor.peer(stream);
        // The version first: exports that are newer than it says are renewed once more.
        let version = self.volume.version();
        let connection = Connection::attached(stream, peer, self.generation, self.volume.exports(), version);
        self.open_at(index, Entry::Open { connection: Box::new(connection), handshake: None, link: Some(link) });
    }

    /// A socket to the kernel that has ended, and how.
    pub fn next_ended_link(&mut self) -> Option<(LinkId, LinkEnd)> {
        self.ended_links.pop()
    }

    /// Closes everything at once.
    pub fn close<R: Reactor>(self, reactor: &mut R) {
        for entry in self.entries {
            if let Entry::Open { connection, handshake, .. } = entry {
                if let Some(timer) = handshake {
                    reactor.cancel_timer(timer);
                }
                reactor.close(connection.stream);
            }
        }
        if let Some((_, timer)) = self.retry {
            reactor.cancel_timer(timer);
        }
    }

    /// The place for another connection, whose number in it is [`Self::generation`].
    fn next_place(&mut self) -> usize {
        self.generation = self.generation.wrapping_add(1) & ((1 << GENERATION_BITS) - 1);
        self.free_entry()
    }

    fn open_at(&mut self, index: usize, entry: Entry) {
        if index == self.entries.len() {
            self.entries.push(entry);
        } else {
            self.entries[index] = entry;
        }
    }

    /// Handles an event whose token it [owns](Self::owns). What follows from it happens in [`Self::pump`].
    pub fn on_event<R: Reactor>(&mut self, reactor: &mut R, event: Event<R::Incoming>) {
        let (Event::Readable { token } | Event::Writable { token } | Event::Timer { token }) = &event else { return };
        let (purpose, generation, index) = split(*token);
        if purpose == Purpose::Retry as u8 {
            self.retry = None;
            self.paused = true;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            return;
        }
        let Some(Entry::Open { connection, handshake, .. }) = self.entries.get_mut(index) else { return };
        if connection.generation != generation {
            return;
        }
        match event {
            Event::Readable { .. } => connection.readable = true,
            Event::Timer { .. } if connection.is_in_handshake() => {
                *handshake = None;
                let end = End::HandshakeTimeout;
                tracing::info!(volume = self.volume.label(), client = %Name(connection.peer.as_ref()), "NBD connection ended: {end}");
                reactor.close(connection.stream);
                self.entries[index] = Entry::Free;
                self.volume.leave();
            }
            Event::Writable { .. } => connection.writable = true,
            _ => {}
        }
    }

    /// Does all that can be done now: takes the ends of operations, reads requests, issues operations, sends replies. To be called once in every
    /// turn of the loop, after the fabric's completions were handled and before the fabric is flushed.
    pub fn pump<R: Reactor, Q: BlockQueue<R>>(&mut self, reactor: &mut R, fabric: &mut Fabric, queue: &mut Q) {
        let geometry = queue.geometry();
        let transfer = longest_transfer(reactor.pool(), geometry.max_transfer_bytes);
        let sizes = PieceSizes::new(&geometry, transfer);
        let mut context = Context { reactor, fabric, queue, sizes, submitted: false, starved: false };
        if std::mem::take(&mut self.paused) {
            self.end_stalled(&mut context);
        }
        let version = self.volume.version();
        for entry in &mut self.entries {
            let Entry::Open { connection, link, .. } = entry else { continue };
            connection.watch(context.queue.losses());
            connection.dirty |= connection.is_waiting();
            if link.is_some() && connection.exports_version != version {
                connection.renew_exports(self.volume.exports(), version);
            }
        }
        let mut again = true;
        for _ in 0..ROUNDS {
            context.submitted = false;
            self.take_done(&mut context);
            self.receive(&mut context);
            self.serve_waiting(&mut context);
            self.advance(&mut context);
            self.send(&mut context);
            again = context.submitted || self.open().any(|(_, connection)| connection.dirty || connection.wants_input());
            if !again {
                break;
            }
        }
        self.turn = self.turn.wrapping_add(1);
        self.set_retry(context.reactor, again);
    }

    /// Begins no further request and no further connection; what is under way is answered, then the connections are closed.
    pub fn shutdown(&mut self) {
        self.stopping = true;
        for (_, connection) in self.open() {
            connection.stop();
        }
    }

    fn free_entry(&self) -> usize {
        self.entries.iter().position(|entry| matches!(entry, Entry::Free)).unwrap_or(self.entries.len())
    }

    fn open(&mut self) -> impl Iterator<Item = (usize, &mut Connection)> {
        self.entries.iter_mut().enumerate().filter_map(|(index, entry)| match entry {
            Entry::Open { connection, .. } => Some((index, &mut **connection)),
            Entry::Free | Entry::Ended { .. } => None,
        })
    }

    fn connection(&mut self, index: usize) -> Option<&mut Connection> {
        match self.entries.get_mut(index) {
            Some(Entry::Open { connection, .. }) => Some(connection),
            _ => None,
        }
    }

    fn take_done<R: Reactor, Q: BlockQueue<R>>(&mut self, context: &mut Context<'_, R, Q>) {
        while let Some(mut done) = context.queue.next_done() {
            let (index, operation) = split_ticket(done.ticket);
            match &mut self.entries[index] {
                Entry::Open { connection, .. } => {
                    if connection.must_fail(operation, &done, context.queue.losses()) {
                        done.result = Err(BlockError::WritesLost);
                        context.queue.failed_after_all();
                    }
                    if let Err(end) = connection.done(operation, done) {
                        self.end(index, &end, context);
                    }
                }
                Entry::Ended { operations, orphans } => {
                    operations.remove(operation);
                    orphans.one_ended();
                    if operations.is_empty() {
                        self.entries[index] = Entry::Free;
                        self.volume.leave();
                    }
                }
                Entry::Free => unreachable!("an operation ended of a connection that had none"),
            }
        }
    }

    /// Reads from all before anything new is begun: so a connection that ended is known before the requests that came after it on another one.
    fn receive<R: Reactor, Q: BlockQueue<R>>(&mut self, context: &mut Context<'_, R, Q>) {
        for index in 0..self.entries.len() {
            let Some(connection) = self.connection(index).filter(|connection| connection.wants_input()) else { continue };
            if let Err(end) = connection.receive(context.reactor) {
                self.end(index, &end, context);
            }
        }
    }

    /// Lets those go on who wait for a buffer, one buffer each, in the order in which they began to wait.
    fn serve_waiting<R: Reactor, Q: BlockQueue<R>>(&mut self, context: &mut Context<'_, R, Q>) {
        while let Some(index) = self.buffers.first_waiting() {
            context.starved = false;
            self.advance_one(index, context);
            if self.buffers.first_waiting() == Some(index) {
                if context.starved {
                    return;
                }
                self.buffers.forget(index);
            }
        }
    }

    fn advance<R: Reactor, Q: BlockQueue<R>>(&mut self, context: &mut Context<'_, R, Q>) {
        let count = self.entries.len();
        for number in 0..count {
            let index = self.turn.wrapping_add(number) % count;
            if self.connection(index).is_some_and(|connection| connection.dirty) {
                self.advance_one(index, context);
            }
        }
    }

    fn advance_one<R: Reactor, Q: BlockQueue<R>>(&mut self, index: usize, context: &mut Context<'_, R, Q>) {
        let Some(Entry::Open { connection, handshake, .. }) = self.entries.get_mut(index) else { return };
        let sizes = context.sizes;
        let mut supply = ConnectionSupply { index, context, buffers: &mut self.buffers, gate: self.volume.gate() };
        let result = connection.advance(self.volume.limits(), sizes, &mut supply);
        if !connection.is_in_handshake()
            && let Some(timer) = handshake.take()
        {
            context.reactor.cancel_timer(timer);
            tracing::debug!(volume = self.volume.label(), client = %Name(connection.peer.as_ref()), "NBD handshake over");
        }
        if let Err(end) = result {
            self.end(index, &end, context);
        }
    }

    fn send<R: Reactor, Q: BlockQueue<R>>(&mut self, context: &mut Context<'_, R, Q>) {
        for index in 0..self.entries.len() {
            let stopping = self.stopping;
            let Some(connection) = self.connection(index) else { continue };
            let end = match connection.send(context.reactor) {
                Err(end) => Some(end),
                Ok(()) => connection.end().map(|end| if stopping { End::Shutdown } else { end }),
            };
            if let Some(end) = end {
                self.end(index, &end, context);
            }
        }
    }

    /// Ends connections whose clients keep buffers that others wait for.
    fn end_stalled<R: Reactor, Q: BlockQueue<R>>(&mut self, context: &mut Context<'_, R, Q>) {
        if self.buffers.first_waiting().is_none() {
            return;
        }
        let (now, limits) = (context.reactor.now(), *self.volume.limits());
        for index in 0..self.entries.len() {
            if self.connection(index).is_some_and(|connection| connection.is_stalled(now, &limits)) {
                self.end(index, &End::Stalled, context);
            }
        }
    }

    /// Ends a connection. Operations that were handed over go on without it, and the gate knows of them before the socket is closed.
    fn end<R: Reactor, Q: BlockQueue<R>>(&mut self, index: usize, end: &End, context: &mut Context<'_, R, Q>) {
        let Entry::Open { connection, handshake, link } = std::mem::replace(&mut self.entries[index], Entry::Free) else { return };
        if let Some(link) = link {
            self.ended_links.push((link, if matches!(end, End::Disconnected) { LinkEnd::Freed } else { LinkEnd::Lost }));
        }
        let client = Name(connection.peer.as_ref());
        match end {
            End::Violation(_) | End::BrokenReply { .. } | End::Stalled => {
                tracing::warn!(volume = self.volume.label(), %client, "NBD connection ended: {end}")
            }
            _ => tracing::info!(volume = self.volume.label(), %client, "NBD connection ended: {end}"),
        }
        if let Some(timer) = handshake {
            context.reactor.cancel_timer(timer);
        }
        self.buffers.forget(index);
        let stream = connection.stream;
        let operations = connection.into_operations();
        if operations.is_empty() {
            self.volume.leave();
        } else {
            let orphans = Gate::retire(self.volume.gate(), operations.len());
            for (operation, ()) in &operations {
                context.queue.abandon(ticket(index, operation));
            }
            // What was not sent has ended already, which the next round takes.
            context.submitted = true;
            self.entries[index] = Entry::Ended { operations, orphans };
        }
        if end.is_graceful() {
            context.reactor.close_gracefully(stream);
        } else {
            context.reactor.close(stream);
        }
    }

    /// Makes sure that there is another turn where no event would bring one.
    fn set_retry<R: Reactor>(&mut self, reactor: &mut R, again: bool) {
        let waiting = self.buffers.first_waiting().is_some() || self.open().any(|(_, connection)| connection.is_held());
        if !waiting {
            self.pause = FIRST_PAUSE;
        }
        if !again && !waiting {
            return;
        }
        let pause = if again { Duration::ZERO } else { self.pause };
        let at = reactor.now() + pause;
        match self.retry {
            Some((earlier, _)) if earlier <= at => return,
            Some((_, timer)) => reactor.cancel_timer(timer),
            None => {}
        }
        self.retry = Some((at, reactor.set_timer(at, self.token(Purpose::Retry, 0, 0))));
    }

    fn token(&self, purpose: Purpose, index: usize, generation: u16) -> Token {
        let index = u64::try_from(index).unwrap_or(u64::MAX) & ((1 << INDEX_BITS) - 1);
        let purpose = (purpose as u64) << (INDEX_BITS + GENERATION_BITS);
        Token(TOKENS << 48 | u64::from(self.number) << 32 | purpose | u64::from(generation) << INDEX_BITS | index)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the fields are cut out of the token as they were put together")]
fn split(Token(token): Token) -> (u8, u16, usize) {
    let purpose = (token >> (INDEX_BITS + GENERATION_BITS)) as u8 & 0xf;
    (purpose, (token >> INDEX_BITS) as u16 & ((1 << GENERATION_BITS) - 1), usize::from(token as u16))
}

/// The name of an operation: which connection, and which of its operations. A connection's place is not used again before all have ended.
fn ticket(index: usize, operation: usize) -> Ticket {
    Ticket(u64::try_from(index).unwrap_or(u64::MAX) << 32 | u64::try_from(operation).unwrap_or(u64::MAX))
}

#[expect(clippy::cast_possible_truncation, reason = "the halves are cut out of the ticket as they were put together")]
fn split_ticket(Ticket(ticket): Ticket) -> (usize, usize) {
    ((ticket >> 32) as usize, ticket as u32 as usize)
}

/// What a pump works with.
struct Context<'a, R, Q> {
    reactor: &'a mut R,
    fabric: &'a mut Fabric,
    queue: &'a mut Q,
    sizes: PieceSizes,
    /// Whether the queue was given anything, which may have ended at once.
    submitted: bool,
    /// Whether a buffer was asked for in vain.
    starved: bool,
}

/// The same for one connection.
struct ConnectionSupply<'a, 'b, R, Q> {
    index: usize,
    context: &'a mut Context<'b, R, Q>,
    buffers: &'a mut Buffers,
    gate: &'a Gate,
}

impl<R: Reactor, Q: BlockQueue<R>> Supply for ConnectionSupply<'_, '_, R, Q> {
    fn take(&mut self, len_bytes: usize) -> Option<Buffer> {
        let buffer = self.buffers.take(self.index, len_bytes);
        self.context.starved |= buffer.is_none();
        buffer
    }

    fn try_take(&mut self, len_bytes: usize) -> Option<Buffer> {
        self.buffers.try_take(self.index, len_bytes)
    }

    fn submit(&mut self, operation: usize, op: BlockOp) -> Result<(), BlockOp> {
        let Context { reactor, fabric, queue, submitted, .. } = &mut *self.context;
        queue.submit(reactor, fabric, ticket(self.index, operation), op)?;
        *submitted = true;
        Ok(())
    }

    fn mark(&self) -> Mark {
        self.gate.mark()
    }

    fn is_clear(&self, mark: Mark) -> bool {
        self.gate.is_clear(mark)
    }

    fn now(&self) -> Time {
        self.context.reactor.now()
    }
}

/// How a client is named in the log.
struct Name<'a>(Option<&'a godwit_reactor::Peer>);

impl std::fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(peer) => peer.fmt(f),
            None => f.write_str("unknown"),
        }
    }
}

impl std::fmt::Debug for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front")
            .field("volume", &self.volume)
            .field("entries", &self.entries)
            .field("stopping", &self.stopping)
            .finish_non_exhaustive()
    }
}
