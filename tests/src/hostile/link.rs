//! A connection to the target in FPDU mode, and the watch over what the target does on it.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use godwit_iwarp::Opcode;
use godwit_nvme::{Cqe, Sgl, Sqe};

use super::fpdu::{self, Incoming, Read, Tagged, Untagged};
use super::socket::{Ending, PATIENCE, Socket};
use super::tally::Progress;
use super::{Milestone, Misbehaviour, Random, VICTIM_MARK};

/// Memory of ours that a command named.
#[derive(Clone, Copy, Debug)]
struct Named {
    key: u32,
    address: u64,
    len: u32,
}

impl Named {
    fn covers(&self, key: u32, address: u64, len: u64) -> bool {
        // What a command names may reach beyond the last address; what is accessed may not.
        let Some(end) = address.checked_add(len) else { return false };
        self.key == key && self.address <= address && end <= self.address.saturating_add(self.len.into())
    }
}

/// Something that the target did.
#[derive(Debug)]
pub(super) enum Event {
    /// Completed a command.
    Completion(Cqe),
    /// Asked for our memory.
    Read(Read),
    /// Wrote to our memory.
    Write,
    /// Ended the stream with a Terminate.
    Terminate,
    /// Nothing, for as long as was waited.
    Silence,
    /// Closed or reset the connection.
    End,
}

/// A connection behind an accepted start-up.
#[derive(Debug)]
pub(super) struct Link {
    socket: Socket,
    /// Number of the next message on queue 0.
    pub(super) msn: u32,
    named: Vec<Named>,
    /// What Read Requests of an honest beginning get.
    source: Vec<u8>,
}

impl Link {
    pub(super) const fn new(socket: Socket) -> Self {
        Self { socket, msn: 1, named: Vec::new(), source: Vec::new() }
    }

    pub(super) fn into_socket(self) -> Socket {
        self.socket
    }

    pub(super) fn send_bytes(&mut self, bytes: &[u8]) -> bool {
        self.socket.send(bytes)
    }

    /// Takes note of the memory that a command names.
    pub(super) fn name(&mut self, sqe: &[u8]) {
        let Ok(sqe) = Sqe::read_from(sqe) else { return };
        if let Ok(Sgl::Keyed { address, length, key, .. }) = sqe.sgl() {
            self.named.push(Named { key: key.get(), address, len: length });
        }
    }

    /// The FPDU of a capsule, as the next message on queue 0.
    pub(super) fn capsule(&mut self, capsule: &[u8]) -> Vec<u8> {
        self.name(capsule.get(..Sqe::LEN_BYTES).unwrap_or_default());
        let segment = Untagged::new(Opcode::SEND, 0, self.msn);
        self.msn = self.msn.wrapping_add(1);
        fpdu::frame(&segment.ulpdu(capsule))
    }

    /// What the target does next.
    ///
    /// # Errors
    /// It is something that it must not do.
    pub(super) fn next(&mut self, limit: Duration, progress: &mut Progress<'_>) -> Result<Event, Misbehaviour> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some((len, incoming)) = fpdu::take(&self.socket.inbox)? {
                self.socket.inbox.drain(..len);
                return self.judge(incoming, progress);
            }
            if self.socket.is_over {
                return Ok(Event::End);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.socket.receive(left) && !self.socket.is_over && left.is_zero() {
                return Ok(Event::Silence);
            }
        }
    }

    fn judge(&self, incoming: Incoming, progress: &mut Progress<'_>) -> Result<Event, Misbehaviour> {
        match incoming {
            Incoming::Send { payload } => {
                let cqe = Cqe::read_from(&payload).ok().filter(|_| payload.len() == Cqe::LEN_BYTES);
                cqe.map(Event::Completion).ok_or_else(|| Misbehaviour::Garbled(format!("a response capsule of {} bytes", payload.len())))
            }
            Incoming::Write { stag, to, payload } => {
                self.check_named("wrote", stag, to, payload.len() as u64)?;
                if holds_mark(&payload) {
                    return Err(Misbehaviour::Leak);
                }
                progress.reach(Milestone::DataWritten);
                Ok(Event::Write)
            }
            Incoming::Read(read) => {
                self.check_named("asked for", read.source_stag, read.source_to, read.size.into())?;
                progress.reach(Milestone::DataAskedFor);
                Ok(Event::Read(read))
            }
            Incoming::ReadResponse => Err(Misbehaviour::Garbled("a Read Response, and there is nothing to read".to_owned())),
            Incoming::Terminate => {
                progress.reach(Milestone::Terminated);
                Ok(Event::Terminate)
            }
        }
    }

    fn check_named(&self, what: &'static str, key: u32, address: u64, len: u64) -> Result<(), Misbehaviour> {
        let named = len == 0 || self.named.iter().any(|named| named.covers(key, address, len));
        if named { Ok(()) } else { Err(Misbehaviour::Overreach { what, key, address, len }) }
    }

    /// Carries out an honest command: sends it, gives its data when asked for, and waits for its completion.
    ///
    /// # Errors
    /// The daemon does not complete it.
    pub(super) fn command(
        &mut self,
        at: &'static str,
        sqe: &Sqe,
        in_capsule: &[u8],
        source: &[u8],
        progress: &mut Progress<'_>,
    ) -> Result<Cqe, Misbehaviour> {
        self.source = source.to_vec();
        let frame = self.capsule(&[sqe.as_bytes(), in_capsule].concat());
        self.send_bytes(&frame);
        loop {
            let refused = |kind: ErrorKind, said: &str| Misbehaviour::Refused { at, error: io::Error::new(kind, said) };
            match self.next(PATIENCE, progress)? {
                Event::Completion(cqe) if cqe.cid() == sqe.cid() => return Ok(cqe),
                Event::Completion(_) | Event::Write => {}
                Event::Read(read) => self.serve(&read),
                Event::Terminate => return Err(refused(ErrorKind::ConnectionAborted, "a Terminate")),
                Event::Silence => return Err(refused(ErrorKind::TimedOut, "no answer")),
                Event::End => return Err(refused(ErrorKind::ConnectionReset, "the end of the connection")),
            }
        }
    }

    /// Answers a Read Request from `source`, whose first byte has address 0.
    fn serve(&mut self, read: &Read) {
        let start = usize::try_from(read.source_to).unwrap_or(usize::MAX);
        let end = start.saturating_add(read.size as usize);
        let data = self.source.get(start..end).map(<[u8]>::to_vec).unwrap_or_default();
        let response = Tagged::new(Opcode::READ_RESPONSE, read.sink_stag, read.sink_to);
        self.send_bytes(&fpdu::frame(&response.ulpdu(&data)));
    }

    /// Ends the connection in one of the ways there are.
    ///
    /// # Errors
    /// The daemon does something wrong to the very end, or keeps the connection.
    pub(super) fn finish(mut self, random: &mut Random, progress: &mut Progress<'_>) -> Result<(), Misbehaviour> {
        match Ending::any(random) {
            Ending::Dropped => Ok(()),
            Ending::Reset => {
                self.socket.reset();
                Ok(())
            }
            Ending::HalfClosed => {
                self.socket.close_half();
                loop {
                    match self.next(PATIENCE, progress)? {
                        Event::End => break,
                        Event::Silence => return Err(Misbehaviour::Kept(PATIENCE)),
                        event => tell(&event, progress),
                    }
                }
                progress.reach(Milestone::Closed);
                Ok(())
            }
        }
    }
}

/// Counts what the target did with hostile commands.
pub(super) fn tell(event: &Event, progress: &mut Progress<'_>) {
    if let Event::Completion(cqe) = event {
        progress.reach(if cqe.status().is_success() { Milestone::CommandSucceeded } else { Milestone::CommandRefused });
    }
}

/// Whether bytes hold those of a [`super::Victim`]: they carry the mark in every eight.
fn holds_mark(payload: &[u8]) -> bool {
    payload.chunks(512).any(|chunk| chunk[..chunk.len().min(11)].windows(4).any(|window| window == VICTIM_MARK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_named_up_to_its_ends_and_not_around_the_end_of_addresses() {
        let named = Named { key: 7, address: 100, len: 50 };
        assert!(named.covers(7, 100, 50) && named.covers(7, 149, 1));
        assert!(!named.covers(7, 99, 2) && !named.covers(7, 149, 2) && !named.covers(8, 100, 1));
        let wraps = Named { key: 7, address: u64::MAX - 1, len: 50 };
        assert!(wraps.covers(7, u64::MAX - 1, 1));
        assert!(!wraps.covers(7, u64::MAX - 1, 2) && !wraps.covers(7, 0, 1));
    }

    #[test]
    fn the_victims_bytes_are_known_wherever_they_begin() {
        let block = super::super::victim::content(5, 3);
        for start in 0..9 {
            assert!(holds_mark(&block[start..start + 600]), "from {start}");
        }
        assert!(!holds_mark(&[0x5a; 4096]));
    }
}
