//! One connection in transmission, as a queue of block operations.
//!
//! Requests are gathered while a turn lasts, and leave by one send (of as many pieces as a call takes) at its end. Replies are received many at a time; the
//! data of a read that are not with its header are received straight into the read's buffer.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};

use godwit_memory::Buffer;
use godwit_nbd::client::{self, REQUEST_LEN, SIMPLE_REPLY_LEN};
use godwit_nbd::{Command, CommandFlags, Errno, Request};
use godwit_rdma::Fabric;
use godwit_reactor::{Reactor, StreamId};
use slab::Slab;

use crate::block::{BlockDone, BlockError, BlockOp, BlockQueue, Geometry, Ticket};
use crate::host::in_words;
use crate::nbd::Input;

/// Pieces that leave by one call.
const PIECES: usize = 64;

/// The connection: block operations in, their ends out.
pub(crate) struct Client {
    stream: StreamId,
    geometry: Geometry,
    depth: usize,
    /// Requests that are not answered. A cookie is the place in this table.
    requests: Slab<Pending>,
    /// Headers to send, and the pieces that they and the data of writes make.
    headers: Vec<u8>,
    pieces: VecDeque<Piece>,
    /// Bytes that were submitted, and bytes of them that have left.
    submitted: u64,
    left: u64,
    input: Input,
    /// The read whose data come next, and how much of them is there.
    reading: Option<(usize, usize)>,
    done: VecDeque<BlockDone>,
    /// Why there will be no more answers.
    failure: Option<String>,
}

/// A request that is not answered.
struct Pending {
    ticket: Ticket,
    is_read: bool,
    len_bytes: usize,
    buffer: Option<Buffer>,
    /// Where its last byte is in all that is submitted.
    ends: u64,
}

/// Bytes to send.
#[derive(Clone, Copy, Debug)]
enum Piece {
    /// Of the headers.
    Headers { start: usize, end: usize },
    /// Of the buffer of a write.
    Data { request: usize, start: usize },
}

impl Client {
    /// A client of at most `depth` requests at a time.
    pub(crate) fn new(stream: StreamId, geometry: Geometry, depth: usize) -> Self {
        Self {
            stream,
            geometry,
            depth,
            requests: Slab::with_capacity(depth),
            headers: Vec::with_capacity(2 * depth * REQUEST_LEN),
            pieces: VecDeque::with_capacity(2 * depth),
            submitted: 0,
            left: 0,
            input: Input::new(),
            reading: None,
            done: VecDeque::with_capacity(depth),
            failure: None,
        }
    }

    /// Why the connection is of no use any more.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Whether requests were made that are not answered.
    pub(crate) fn awaits_replies(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Takes the answers that are there. When the stream may be read, and before requests are made.
    pub(crate) fn receive<R: Reactor>(&mut self, reactor: &mut R) {
        if self.failure.is_some() {
            return;
        }
        if let Err(failure) = self.receive_all(reactor) {
            self.fail(failure);
        }
    }

    fn receive_all<R: Reactor>(&mut self, reactor: &mut R) -> Result<(), String> {
        loop {
            let into_input = self.input.space();
            let (wanted, room, received) = match self.reading {
                None => {
                    let room = into_input.len();
                    (0, room, reactor.receive(self.stream, &mut [IoSliceMut::new(into_input)]))
                }
                Some((request, filled)) => {
                    let pending = self.requests.get_mut(request).ok_or("a read is gone")?;
                    let rest = pending.buffer.as_mut().and_then(|buffer| buffer.get_mut(filled..)).ok_or("a buffer is gone")?;
                    let (wanted, room) = (rest.len(), rest.len() + into_input.len());
                    (wanted, room, reactor.receive(self.stream, &mut [IoSliceMut::new(rest), IoSliceMut::new(into_input)]))
                }
            };
            let received = match received {
                Ok(0) => return Err("the server has closed the connection".to_owned()),
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(in_words(&error)),
            };
            let direct = received.min(wanted);
            self.input.received(received - direct);
            self.filled(direct);
            self.take_replies()?;
            if received < room {
                return Ok(());
            }
        }
    }

    /// So many bytes more of the read whose data are coming are in its buffer.
    fn filled(&mut self, count: usize) {
        let Some((request, filled)) = self.reading else { return };
        let whole = self.requests.get(request).is_none_or(|pending| filled + count >= pending.len_bytes);
        if whole {
            self.reading = None;
            self.end(request, Ok(()));
        } else {
            self.reading = Some((request, filled + count));
        }
    }

    /// Takes the replies that were received.
    fn take_replies(&mut self) -> Result<(), String> {
        while self.reading.is_none()
            && let Some(head) = self.input.bytes().first_chunk::<SIMPLE_REPLY_LEN>()
        {
            let (cookie, errno) = client::simple_reply(head).map_err(|error| error.to_string())?;
            self.input.consume(SIMPLE_REPLY_LEN);
            let request = usize::try_from(cookie).ok().filter(|&request| self.requests.contains(request));
            let request = request.ok_or_else(|| format!("it has answered request {cookie}, which was not made"))?;
            if self.left < self.requests[request].ends {
                // An answer to what it cannot know; and of a write that it has refused it could not tell the data from the next request.
                return Err(format!("it has answered request {cookie} before it had all of it"));
            }
            if errno != Errno::OK {
                self.end(request, Err(error_of(errno)));
                continue;
            }
            let pending = &mut self.requests[request];
            if !pending.is_read {
                self.end(request, Ok(()));
                continue;
            }
            let Some(buffer) = &mut pending.buffer else { return Err("a buffer is gone".to_owned()) };
            buffer.set_len(pending.len_bytes);
            let here = self.input.bytes();
            let count = here.len().min(pending.len_bytes);
            buffer[..count].copy_from_slice(&here[..count]);
            self.input.consume(count);
            self.reading = Some((request, 0));
            self.filled(count);
        }
        Ok(())
    }

    fn end(&mut self, request: usize, result: Result<(), BlockError>) {
        let Pending { ticket, buffer, .. } = self.requests.remove(request);
        self.done.push_back(BlockDone { ticket, result, buffer });
    }

    /// Sends what was submitted. Once a turn.
    pub(crate) fn flush<R: Reactor>(&mut self, reactor: &mut R) {
        while self.failure.is_none() && !self.pieces.is_empty() {
            let mut slices = [IoSlice::new(&[]); PIECES];
            let mut offered = 0;
            let count = self.pieces.len().min(PIECES);
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                let bytes = match *piece {
                    Piece::Headers { start, end } => &self.headers[start..end],
                    Piece::Data { request, start } => {
                        let buffer = self.requests.get(request).and_then(|pending| pending.buffer.as_deref());
                        buffer.and_then(|data| data.get(start..)).unwrap_or_default()
                    }
                };
                offered += bytes.len();
                *slice = IoSlice::new(bytes);
            }
            match reactor.send(self.stream, &slices[..count]) {
                Ok(sent) => {
                    self.left += sent as u64;
                    self.sent(sent);
                    if sent < offered {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => self.fail(in_words(&error)),
            }
        }
        match self.pieces.front() {
            None => self.headers.clear(),
            // What is left begins at the front again, so that the headers never outgrow their room.
            Some(_) => self.move_headers_to_front(),
        }
    }

    /// Tells the server that there is nothing more to come ("`NBD_CMD_DISC`"), as far as the socket takes it.
    pub(crate) fn disconnect<R: Reactor>(&mut self, reactor: &mut R) {
        self.push_header(&Request { cookie: 0, command: Command::Disconnect, flags: CommandFlags::NONE, offset: 0, length: 0 });
        self.flush(reactor);
    }

    fn push_header(&mut self, request: &Request) {
        let start = self.headers.len();
        self.headers.extend_from_slice(&client::request(request));
        match self.pieces.back_mut() {
            Some(Piece::Headers { end, .. }) => *end = self.headers.len(),
            _ => self.pieces.push_back(Piece::Headers { start, end: self.headers.len() }),
        }
    }

    fn sent(&mut self, mut count: usize) {
        while let Some(piece) = self.pieces.front_mut() {
            let (len, start) = match piece {
                Piece::Headers { start, end } => (*end - *start, start),
                Piece::Data { request, start } => {
                    let len = self.requests.get(*request).map_or(0, |pending| pending.len_bytes);
                    (len.saturating_sub(*start), start)
                }
            };
            if count < len {
                *start += count;
                return;
            }
            count -= len;
            self.pieces.pop_front();
        }
    }

    fn move_headers_to_front(&mut self) {
        let first = self.pieces.iter().find_map(|piece| if let Piece::Headers { start, .. } = piece { Some(*start) } else { None });
        let gone = first.unwrap_or(self.headers.len());
        self.headers.drain(..gone);
        for piece in &mut self.pieces {
            if let Piece::Headers { start, end } = piece {
                *start -= gone;
                *end -= gone;
            }
        }
    }

    /// Ends everything that waits for an answer.
    fn fail(&mut self, why: String) {
        self.failure = Some(why);
        self.reading = None;
        self.pieces.clear();
        let requests: Vec<usize> = self.requests.iter().map(|(request, _)| request).collect();
        requests.into_iter().for_each(|request| self.end(request, Err(BlockError::VolumeGone)));
    }
}

/// An error of the protocol as one of a volume.
fn error_of(errno: Errno) -> BlockError {
    match errno {
        Errno::ENOSPC => BlockError::NoSpace,
        Errno::EPERM => BlockError::ReadOnly,
        Errno::EINVAL => BlockError::OutOfRange,
        Errno::ENOTSUP => BlockError::Unsupported,
        errno => BlockError::Answered(errno),
    }
}

impl<R: Reactor> BlockQueue<R> for Client {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, _: &mut R, _: &mut Fabric, ticket: Ticket, op: BlockOp) -> Result<(), BlockOp> {
        if self.requests.len() + self.done.len() >= self.depth {
            return Err(op);
        }
        let (command, offset, len_bytes, buffer) = match op {
            BlockOp::Read { offset, len_bytes, buffer } => (Command::Read, offset, len_bytes, Some(buffer)),
            BlockOp::Write { offset, len_bytes, buffer, .. } => (Command::Write, offset, len_bytes, Some(buffer)),
            BlockOp::Flush => (Command::Flush, 0, 0, None),
            BlockOp::WriteZeroes { .. } | BlockOp::Discard { .. } => {
                self.done.push_back(BlockDone { ticket, result: Err(BlockError::Unsupported), buffer: None });
                return Ok(());
            }
        };
        let (true, Ok(length)) = (self.failure.is_none(), u32::try_from(len_bytes)) else {
            self.done.push_back(BlockDone { ticket, result: Err(BlockError::VolumeGone), buffer });
            return Ok(());
        };
        let data_bytes = if command == Command::Write { len_bytes } else { 0 };
        self.submitted += (REQUEST_LEN + data_bytes) as u64;
        let pending = Pending { ticket, is_read: command == Command::Read, len_bytes, buffer, ends: self.submitted };
        let request = self.requests.insert(pending);
        self.push_header(&Request { cookie: request as u64, command, flags: CommandFlags::NONE, offset, length });
        if command == Command::Write {
            self.pieces.push_back(Piece::Data { request, start: 0 });
        }
        Ok(())
    }

    fn next_done(&mut self) -> Option<BlockDone> {
        self.done.pop_front()
    }

    fn abandon(&mut self, _: Ticket) {
        // What is submitted is as good as sent.
    }
}

#[cfg(test)]
#[path = "../tests/nbd_client.rs"]
mod tests;
