//! Simulated streams: reliable, ordered, with delays, cuts and resets.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::SocketAddr;
use std::time::Duration;

use super::Moment;
use crate::{Time, Token};

/// Bytes that one direction holds, in flight and unread.
const WINDOW_BYTES: usize = 128 << 10;

/// Something on its way.
#[derive(Debug)]
pub(crate) enum Notice {
    /// Bytes, or the end of the stream, reach this end.
    Arrived { end: usize },
    /// This end has bytes left, or its end of stream, that an earlier read did not take.
    Left { end: usize },
    /// The peer has read: this end may write again.
    Room { end: usize },
    /// A connection request reaches its address.
    Connect { end: usize, address: SocketAddr },
    /// Its answer comes back.
    Connected { end: usize, refused: bool },
}

#[derive(Debug)]
enum Segment {
    Bytes(Vec<u8>),
    Fin,
    Reset,
}

/// One end of a stream.
#[derive(Debug)]
struct End {
    host: usize,
    peer: Option<usize>,
    token: Option<Token>,
    /// On their way to this end, with the time of arrival.
    in_flight: VecDeque<(Time, Segment)>,
    in_flight_bytes: usize,
    arrived: VecDeque<u8>,
    fin: bool,
    reset: bool,
    closed: bool,
    wants_room: bool,
}

impl End {
    /// Whether a read would find something.
    fn has_news(&self) -> bool {
        self.reset || self.fin || !self.arrived.is_empty()
    }
}

/// All streams of a world.
#[derive(Debug, Default)]
pub(crate) struct Network {
    ends: Vec<End>,
    listeners: BTreeMap<SocketAddr, usize>,
    /// Where nothing passes, and since when.
    cuts: BTreeMap<(usize, usize), Time>,
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Network {
    pub(crate) fn listen(&mut self, address: SocketAddr, host: usize) -> io::Result<()> {
        if self.listeners.contains_key(&address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        self.listeners.insert(address, host);
        Ok(())
    }

    pub(crate) fn unlisten(&mut self, address: SocketAddr) {
        self.listeners.remove(&address);
    }

    pub(crate) fn listener(&self, address: SocketAddr) -> Option<usize> {
        self.listeners.get(&address).copied()
    }

    pub(crate) fn open(&mut self, host: usize) -> usize {
        self.ends.push(End {
            host,
            peer: None,
            token: None,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            arrived: VecDeque::new(),
            fin: false,
            reset: false,
            closed: false,
            wants_room: false,
        });
        self.ends.len() - 1
    }

    pub(crate) fn accept(&mut self, end: usize, host: usize) -> usize {
        let accepted = self.open(host);
        self.ends[accepted].peer = Some(end);
        self.ends[end].peer = Some(accepted);
        accepted
    }

    pub(crate) fn forget(&mut self, end: usize) {
        self.ends[end].closed = true;
    }

    pub(crate) fn fail(&mut self, end: usize) {
        self.ends[end].reset = true;
    }

    /// Moves an end to the host that adopts it.
    pub(crate) fn set_host(&mut self, end: usize, host: usize) {
        self.ends[end].host = host;
    }

    pub(crate) fn is_closed(&self, end: usize) -> bool {
        self.ends[end].closed
    }

    pub(crate) fn is_cut_between(&self, a: usize, b: usize) -> bool {
        self.cuts.contains_key(&pair(a, b))
    }

    pub(crate) fn host_of(&self, end: usize) -> usize {
        self.ends[end].host
    }

    pub(crate) fn token(&self, end: usize) -> Option<Token> {
        self.ends.get(end).filter(|end| !end.closed)?.token
    }

    pub(crate) fn set_token(&mut self, end: usize, token: Token) -> io::Result<()> {
        self.live(end)?.token = Some(token);
        Ok(())
    }

    pub(crate) fn ends_of(&self, host: usize) -> Vec<usize> {
        (0..self.ends.len()).filter(|&end| self.ends[end].host == host && !self.ends[end].closed).collect()
    }

    pub(crate) fn ends_between(&self, a: usize, b: usize) -> Vec<usize> {
        let between = |end: &usize| {
            let this = &self.ends[*end];
            !this.closed && this.peer.is_some_and(|peer| pair(this.host, self.ends[peer].host) == pair(a, b))
        };
        (0..self.ends.len()).filter(between).collect()
    }

    fn live(&mut self, end: usize) -> io::Result<&mut End> {
        self.ends.get_mut(end).filter(|end| !end.closed).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    pub(crate) fn partition(&mut self, a: usize, b: usize, cut: bool, moment: &mut Moment<'_>, schedule: &mut dyn FnMut(Time, Notice)) {
        if cut {
            self.cuts.entry(pair(a, b)).or_insert(moment.now);
            return;
        }
        let Some(since) = self.cuts.remove(&pair(a, b)) else { return };
        let most = u64::try_from(moment.now.since(since).as_nanos()).unwrap_or(u64::MAX).max(1);
        for end in self.ends_between(a, b) {
            // A sender that hears nothing doubles the time to its next try: that is as far off, at most, as the silence was long.
            let again = moment.now + Duration::from_nanos(moment.random.below(most));
            for (at, _) in &mut self.ends[end].in_flight {
                *at = again.max(*at);
            }
            schedule(again, Notice::Arrived { end });
        }
    }

    fn is_cut(&self, end: usize) -> bool {
        self.ends[end].peer.is_some_and(|peer| self.cuts.contains_key(&pair(self.ends[end].host, self.ends[peer].host)))
    }

    /// Moves what has arrived by now; true when there is something new to read.
    pub(crate) fn arrive(&mut self, end: usize, now: Time) -> bool {
        if self.is_cut(end) {
            return false;
        }
        let this = &mut self.ends[end];
        let mut news = false;
        while this.in_flight.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, segment)) = this.in_flight.pop_front() else { break };
            news = true;
            match segment {
                Segment::Bytes(bytes) => {
                    this.in_flight_bytes -= bytes.len();
                    this.arrived.extend(bytes);
                }
                Segment::Fin => this.fin = true,
                Segment::Reset => this.reset = true,
            }
        }
        news
    }

    /// Whether there is still something to read.
    pub(crate) fn has_news(&self, end: usize) -> bool {
        self.ends[end].has_news()
    }

    /// Whether the other end's end has come, or this one is closed.
    pub(crate) fn has_ended(&self, end: usize) -> bool {
        let this = &self.ends[end];
        this.fin || this.reset || this.closed
    }

    fn dispatch(&mut self, from: usize, segment: Segment, moment: &mut Moment<'_>, schedule: &mut dyn FnMut(Time, Notice)) {
        let Some(to) = self.ends[from].peer else { return };
        let travelled = moment.now + moment.random.delay();
        let this = &mut self.ends[to];
        // In order: nothing arrives before what was sent earlier.
        let at = this.in_flight.back().map_or(travelled, |(last, _)| travelled.max(*last));
        if let Segment::Bytes(bytes) = &segment {
            this.in_flight_bytes += bytes.len();
        }
        this.in_flight.push_back((at, segment));
        schedule(at, Notice::Arrived { end: to });
    }

    pub(crate) fn send(
        &mut self,
        end: usize,
        from: &[IoSlice<'_>],
        moment: &mut Moment<'_>,
        schedule: &mut dyn FnMut(Time, Notice),
    ) -> io::Result<usize> {
        let this = self.live(end)?;
        if this.reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let Some(peer) = this.peer else { return Err(io::ErrorKind::WouldBlock.into()) };
        let held = self.ends[peer].in_flight_bytes + self.ends[peer].arrived.len();
        let room = WINDOW_BYTES.saturating_sub(held);
        if room == 0 {
            self.ends[end].wants_room = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut bytes = Vec::new();
        for slice in from {
            bytes.extend_from_slice(&slice[..slice.len().min(room - bytes.len())]);
        }
        bytes.truncate(moment.random.piece(bytes.len()));
        let sent = bytes.len();
        if sent > 0 {
            self.dispatch(end, Segment::Bytes(bytes), moment, schedule);
        }
        Ok(sent)
    }

    pub(crate) fn receive(
        &mut self,
        end: usize,
        into: &mut [IoSliceMut<'_>],
        moment: &mut Moment<'_>,
        schedule: &mut dyn FnMut(Time, Notice),
    ) -> io::Result<usize> {
        let this = self.live(end)?;
        if this.reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if this.arrived.is_empty() {
            return if this.fin { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let most = moment.random.piece(this.arrived.len());
        let room: usize = into.iter().map(|slice| slice.len()).sum();
        let mut taken = 0;
        for slice in into {
            let count = slice.len().min(most - taken);
            this.arrived.read_exact(&mut slice[..count])?;
            taken += count;
        }
        if taken < room && this.has_news() {
            schedule(moment.now, Notice::Left { end });
        }
        if let Some(peer) = this.peer
            && std::mem::take(&mut self.ends[peer].wants_room)
        {
            schedule(moment.now + moment.random.delay(), Notice::Room { end: peer });
        }
        Ok(taken)
    }

    pub(crate) fn shutdown_send(&mut self, end: usize, moment: &mut Moment<'_>, schedule: &mut dyn FnMut(Time, Notice)) {
        if self.live(end).is_ok() {
            self.dispatch(end, Segment::Fin, moment, schedule);
        }
    }

    /// Forgets what was not read, so that closing is no reset.
    pub(crate) fn discard(&mut self, end: usize) {
        if let Ok(this) = self.live(end) {
            this.arrived.clear();
        }
    }

    pub(crate) fn close(&mut self, end: usize, reset: bool, moment: &mut Moment<'_>, schedule: &mut dyn FnMut(Time, Notice)) {
        let Ok(this) = self.live(end) else { return };
        this.closed = true;
        let unread = !this.arrived.is_empty();
        self.dispatch(end, if reset || unread { Segment::Reset } else { Segment::Fin }, moment, schedule);
    }
}
