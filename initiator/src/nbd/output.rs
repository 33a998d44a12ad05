//! The replies of a connection that were not yet sent: headers in one run of bytes, data in the buffers that they were read into.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};

use godwit_memory::Buffer;
use godwit_reactor::{Reactor, StreamId};

/// Runs of bytes that one send takes.
const SLICES: usize = 64;

/// Room for headers. Its sum: [`BACKLOG_BYTES`], and the longest error reply (192 bytes) of each of 256 requests, make 64 KiB; the headers of the
/// chunks that are under way are less than the rest. More would grow it.
const HEAD_CAPACITY: usize = 96 << 10;

/// With so many bytes of headers, or so many buffers, waiting to be sent, no further request is taken.
const BACKLOG_BYTES: usize = 16 << 10;
const BACKLOG_BUFFERS: usize = 256;

/// What is to be sent: some bytes of `heads`, then some data.
struct Segment {
    head_bytes: usize,
    data: Option<Buffer>,
}

/// The send queue of one connection.
pub(super) struct Output {
    /// The headers of all segments, one after the other.
    heads: Vec<u8>,
    /// How many of their bytes were sent.
    heads_sent: usize,
    segments: VecDeque<Segment>,
    /// How many bytes of the first segment's data were sent.
    data_sent: usize,
    /// Bytes of data in all segments.
    data_bytes: usize,
    /// Whether a reply has begun whose end is not queued yet: nothing may come between.
    in_run: bool,
    /// Headers that wait for the end of the run.
    deferred: Vec<u8>,
}

/// How a send went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// Buffers that returned to the pool.
    pub(super) buffers: usize,
    /// Bytes that were sent.
    pub(super) bytes: usize,
    /// Whether the socket took all.
    pub(super) all: bool,
}

impl Output {
    pub(super) fn new() -> Self {
        Self {
            heads: Vec::with_capacity(HEAD_CAPACITY),
            heads_sent: 0,
            segments: VecDeque::with_capacity(BACKLOG_BUFFERS),
            data_sent: 0,
            data_bytes: 0,
            in_run: false,
            deferred: Vec::with_capacity(HEAD_CAPACITY),
        }
    }

    /// Queues a reply without data.
    pub(super) fn push(&mut self, head: &[u8]) {
        if self.in_run {
            self.deferred.extend_from_slice(head);
        } else {
            self.append(|heads| heads.extend_from_slice(head));
        }
    }

    /// Queues what a function appends.
    pub(super) fn append<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        if self.heads_sent > 0 && self.heads.len() > HEAD_CAPACITY / 2 {
            self.heads.drain(..self.heads_sent);
            self.heads_sent = 0;
        }
        let before = self.heads.len();
        let result = write(&mut self.heads);
        let head_bytes = self.heads.len() - before;
        match self.segments.back_mut() {
            Some(segment) if segment.data.is_none() => segment.head_bytes += head_bytes,
            _ if head_bytes > 0 => self.segments.push_back(Segment { head_bytes, data: None }),
            _ => {}
        }
        result
    }

    /// Queues a header and the data that follow it. Not while a reply is queued part by part.
    pub(super) fn push_data(&mut self, head: &[u8], data: Buffer) {
        assert!(!self.in_run, "data would stand in the middle of a reply");
        self.queue_data(head, data);
    }

    /// Queues a part of a reply that has several; other replies stand behind its last.
    pub(super) fn push_part(&mut self, head: &[u8], data: Buffer, last: bool) {
        self.queue_data(head, data);
        self.in_run = !last;
        if last && !self.deferred.is_empty() {
            let mut deferred = std::mem::take(&mut self.deferred);
            self.push(&deferred);
            deferred.clear();
            self.deferred = deferred;
        }
    }

    fn queue_data(&mut self, head: &[u8], data: Buffer) {
        self.append(|heads| heads.extend_from_slice(head));
        self.data_bytes += data.len();
        match self.segments.back_mut() {
            Some(segment) if segment.data.is_none() => segment.data = Some(data),
            _ => self.segments.push_back(Segment { head_bytes: 0, data: Some(data) }),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes of data that wait.
    pub(super) fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// Whether so much waits that nothing should be begun that adds to it.
    pub(super) fn is_backlogged(&self) -> bool {
        self.heads.len() - self.heads_sent + self.deferred.len() > BACKLOG_BYTES || self.segments.len() >= BACKLOG_BUFFERS
    }

    /// Sends until all is sent or the socket takes no more.
    pub(super) fn send<R: Reactor>(&mut self, reactor: &mut R, stream: StreamId) -> io::Result<Sent> {
        let mut sent = Sent { buffers: 0, bytes: 0, all: true };
        while !self.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.gather(&mut slices);
            match reactor.send(stream, &slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => {
                    sent.bytes += len;
                    sent.buffers += self.advance(len);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sent.all = false;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Lists what comes next; how many runs that are.
    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES]) -> usize {
        let mut heads = &self.heads[self.heads_sent..];
        let mut data_sent = self.data_sent;
        let mut count = 0;
        for segment in &self.segments {
            if count + 2 > SLICES {
                break;
            }
            let (head, rest) = heads.split_at(segment.head_bytes);
            heads = rest;
            let data = segment.data.as_deref().map_or(&[][..], |data| &data[data_sent..]);
            data_sent = 0;
            for run in [head, data] {
                if !run.is_empty() {
                    slices[count] = IoSlice::new(run);
                    count += 1;
                }
            }
        }
        count
    }

    /// So many bytes were sent; how many buffers that freed.
    fn advance(&mut self, mut len: usize) -> usize {
        let mut buffers = 0;
        while let Some(segment) = self.segments.front_mut() {
            let head = segment.head_bytes.min(len);
            segment.head_bytes -= head;
            self.heads_sent += head;
            len -= head;
            let data_bytes = segment.data.as_ref().map_or(0, |data| data.len());
            let data = (data_bytes - self.data_sent).min(len);
            self.data_sent += data;
            len -= data;
            if segment.head_bytes > 0 || self.data_sent < data_bytes {
                break;
            }
            buffers += usize::from(segment.data.is_some());
            self.data_bytes -= data_bytes;
            self.data_sent = 0;
            self.segments.pop_front();
        }
        debug_assert_eq!(len, 0, "no more is sent than there was");
        if self.segments.is_empty() {
            self.heads.clear();
            self.heads_sent = 0;
        }
        buffers
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Output({} segments, {} bytes of data)", self.segments.len(), self.data_bytes)
    }
}

#[cfg(test)]
mod tests {
    use godwit_memory::{ClassLayout, Layout, Pool};
    use proptest::prelude::*;

    use super::*;

    fn waiting(output: &Output) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = output.gather(&mut slices);
        slices[..count].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    proptest! {
        #[test]
        fn what_is_sent_in_parts_is_what_was_queued(
            replies in proptest::collection::vec((0_usize..60, proptest::option::of(1_usize..4096)), 1..60),
            steps in proptest::collection::vec(1_usize..9000, 1..200),
        ) {
            let pool = Pool::new(&Layout::new(&[ClassLayout { buffer_bytes: 4096, count: 64 }]).unwrap()).unwrap();
            let (mut output, mut expected) = (Output::new(), Vec::new());
            for (number, &(head, data)) in (0_u8..).zip(&replies) {
                let head = vec![number; head];
                expected.extend_from_slice(&head);
                match data {
                    None => output.push(&head),
                    Some(len) => {
                        let mut buffer = pool.take(len).unwrap();
                        buffer.fill(!number);
                        expected.extend_from_slice(&buffer);
                        output.push_data(&head, buffer);
                    }
                }
            }
            let mut sent = Vec::new();
            for step in steps {
                let next = waiting(&output);
                let len = step.min(next.len());
                sent.extend_from_slice(&next[..len]);
                output.advance(len);
            }
            while !output.is_empty() {
                let next = waiting(&output);
                sent.extend_from_slice(&next);
                output.advance(next.len());
            }
            prop_assert_eq!(sent, expected);
            prop_assert_eq!((pool.in_use(), output.data_bytes()), (0, 0));
        }
    }

    #[test]
    fn replies_without_data_leave_as_one_run_of_bytes() {
        let mut output = Output::new();
        for _ in 0..100 {
            output.push(&[1; 16]);
        }
        assert_eq!(output.gather(&mut [IoSlice::new(&[]); SLICES]), 1);
        assert_eq!(waiting(&output).len(), 1600);
    }

    #[test]
    fn nothing_comes_between_the_parts_of_a_reply() {
        let pool = Pool::new(&Layout::new(&[ClassLayout { buffer_bytes: 4096, count: 2 }]).unwrap()).unwrap();
        let part = |fill: u8| {
            let mut data = pool.take(2).unwrap();
            data.fill(fill);
            data
        };
        let mut output = Output::new();
        output.push_part(&[1], part(2), false);
        output.push(&[9, 9]);
        output.push_part(&[], part(3), true);
        output.push(&[8]);
        assert_eq!(waiting(&output), [1, 2, 2, 3, 3, 9, 9, 8]);
    }

    #[test]
    fn a_backlog_is_a_number_of_bytes() {
        let mut output = Output::new();
        output.push(&[0; BACKLOG_BYTES]);
        assert!(!output.is_backlogged());
        output.push(&[0]);
        assert!(output.is_backlogged());
        output.advance(1);
        assert!(!output.is_backlogged());
    }

    #[test]
    fn headers_never_outgrow_their_room_while_some_always_wait() {
        let mut output = Output::new();
        output.push(&[0; 16]);
        for _ in 0..100_000 {
            output.push(&[0; 16]);
            output.advance(16);
        }
        assert_eq!(output.heads.capacity(), HEAD_CAPACITY);
    }
}
