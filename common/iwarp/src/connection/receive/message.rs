//! Messages: the checks of DDP and RDMAP on each segment against the messages before it and in progress.

use super::fpdu::gather;
use super::{Body, Position, Receiver};
use crate::connection::transmit::OutstandingRead;
use crate::fault::FaultKind;
use crate::memory::Memory;
use crate::number::{Msn, Opcode, QueueNumber, Stag};
use crate::terminate::TERMINATE_PREFIX;
use crate::wire::{ReadRequest, UntaggedHeader};

/// The tagged message that is not finished.
#[derive(Clone, Copy, Debug)]
pub(super) enum TaggedMessage {
    Write { stag: Stag, next: u64, length: u32 },
    ReadResponse,
}

impl TaggedMessage {
    pub(super) const fn opcode(self) -> Opcode {
        match self {
            Self::Write { .. } => Opcode::WRITE,
            Self::ReadResponse => Opcode::READ_RESPONSE,
        }
    }
}

/// The message on queue 0 that is not finished.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendMessage {
    pub(super) opcode: Opcode,
    pub(super) invalidate: Stag,
    /// Payload bytes of all segments up to and including the current one.
    pub(super) announced: u32,
    /// Payload bytes placed.
    pub(super) placed: u32,
}

impl SendMessage {
    pub(super) const fn invalidates(self) -> Option<Stag> {
        match self.opcode {
            Opcode::SEND_INVALIDATE | Opcode::SEND_SOLICITED_INVALIDATE => Some(self.invalidate),
            _ => None,
        }
    }

    pub(super) const fn is_solicited(self) -> bool {
        matches!(self.opcode, Opcode::SEND_SOLICITED | Opcode::SEND_SOLICITED_INVALIDATE)
    }
}

/// A peer's Read Request whose response is not sent yet.
#[derive(Clone, Copy, Debug)]
pub(in crate::connection) struct InboundRead {
    pub(in crate::connection) msn: Msn,
    /// STag and tagged offset that the response names, without meaning for us.
    pub(in crate::connection) sink: (Stag, u64),
    /// STag and tagged offset of our memory.
    pub(in crate::connection) source: (Stag, u64),
    pub(in crate::connection) size: u32,
    /// Bytes of the response that were handed out for sending.
    pub(in crate::connection) sent: u32,
}

impl InboundRead {
    const fn new(request: &ReadRequest) -> Self {
        let read = &request.read;
        Self {
            msn: Msn(request.untagged.msn.get()),
            sink: (Stag(read.sink_stag.get()), read.sink_offset.get()),
            source: (Stag(read.source_stag.get()), read.source_offset.get()),
            size: read.size.get(),
            sent: 0,
        }
    }
}

/// `base + len`, unless a 32-bit message length cannot hold it.
pub(super) fn add(base: u32, len: usize) -> Option<u32> {
    base.checked_add(u32::try_from(len).ok()?)
}

impl Receiver {
    pub(super) fn check_queue(&self, header: &UntaggedHeader, queue: QueueNumber) -> Result<(), FaultKind> {
        let found = QueueNumber(header.queue.get());
        if found == queue { Ok(()) } else { Err(FaultKind::Queue { opcode: self.opcode(), found }) }
    }

    pub(super) fn begin_write(&mut self) -> Result<Body, FaultKind> {
        let header = self.tagged_header();
        let (stag, to) = (Stag(header.stag.get()), header.tagged_offset.get());
        let before = match self.tagged {
            None => 0,
            Some(TaggedMessage::Write { stag: expected, .. }) if expected != stag => {
                return Err(FaultKind::WriteStagChanged { found: stag, expected });
            }
            Some(TaggedMessage::Write { next, .. }) if next != to => {
                return Err(FaultKind::WriteOffset { found: to, expected: next });
            }
            Some(TaggedMessage::Write { length, .. }) => length,
            Some(other) => return Err(self.interleaved(other.opcode())),
        };
        let length = add(before, self.remaining).ok_or(FaultKind::WriteTooLong)?;
        // The end is an offset too: the very last byte of the 64-bit space is out of reach.
        let next = to.checked_add(self.remaining as u64);
        let next = next.ok_or(FaultKind::TaggedOffsetWrap { to, len: self.remaining })?;
        self.tagged = Some(TaggedMessage::Write { stag, next, length });
        Ok(Body::Write { stag, to })
    }

    pub(super) fn begin_read_response(&mut self, read: Option<&mut OutstandingRead>) -> Result<Body, FaultKind> {
        if let Some(message @ TaggedMessage::Write { .. }) = self.tagged {
            return Err(self.interleaved(message.opcode()));
        }
        let read = read.ok_or(FaultKind::UnexpectedReadResponse)?;
        let header = self.tagged_header();
        // The response to a request of zero bytes names nothing that could be checked.
        if read.size > 0 {
            let found = Stag(header.stag.get());
            if found != read.sink {
                return Err(FaultKind::ReadResponseStag { found, expected: read.sink });
            }
            let (found, expected) = (header.tagged_offset.get(), read.placed.into());
            if found != expected {
                return Err(FaultKind::ReadResponseOffset { found, expected });
            }
        }
        let total = u64::from(read.placed) + self.remaining as u64;
        let expected = read.size;
        if total > expected.into() || (self.last && total < expected.into()) {
            return Err(FaultKind::ReadResponseLength { found: total, expected });
        }
        self.tagged = Some(TaggedMessage::ReadResponse);
        Ok(Body::ReadResponse)
    }

    pub(super) fn begin_send(&mut self) -> Result<Body, FaultKind> {
        let header = self.untagged_header();
        self.check_queue(&header, QueueNumber::SEND)?;
        let (opcode, invalidate) = (self.opcode(), Stag(header.invalidate.get()));
        let first = SendMessage { opcode, invalidate, announced: 0, placed: 0 };
        let mut message = self.send.unwrap_or(first);
        if message.opcode != opcode {
            return Err(self.interleaved(message.opcode));
        }
        self.check_msn(QueueNumber::SEND, Msn(header.msn.get()), self.send_msn)?;
        if let Some(expected) = message.invalidates().filter(|expected| *expected != invalidate) {
            return Err(FaultKind::InvalidateChanged { found: invalidate, expected });
        }
        let (found, expected) = (header.message_offset.get(), message.announced);
        if found != expected {
            return Err(FaultKind::MessageOffset { queue: QueueNumber::SEND, found, expected });
        }
        message.announced = add(expected, self.remaining).ok_or(FaultKind::TooLong)?;
        if self.send.is_none() {
            self.position = Position::Claim;
        }
        self.send = Some(message);
        Ok(Body::Send)
    }

    pub(super) fn begin_read_request(&mut self) -> Result<Body, FaultKind> {
        let header = self.untagged_header();
        self.check_queue(&header, QueueNumber::READ_REQUEST)?;
        if let Some(message) = self.send {
            return Err(self.interleaved(message.opcode));
        }
        self.check_msn(QueueNumber::READ_REQUEST, Msn(header.msn.get()), self.request_msn)?;
        self.check_message_start(QueueNumber::READ_REQUEST, &header)?;
        if self.remaining > 0 || !self.last {
            return Err(FaultKind::ReadRequestForm);
        }
        Ok(Body::ReadRequest)
    }

    /// Accepts a Read Request whose CRC is good.
    pub(super) fn end_read_request(&mut self, memory: &mut impl Memory) -> Result<(), FaultKind> {
        self.request_msn = self.request_msn.next();
        if self.requests.len() >= self.ird.into() {
            return Err(FaultKind::TooManyReads { ird: self.ird });
        }
        let read = InboundRead::new(&self.request_header());
        let len = read.size;
        // A request of zero bytes names nothing that could be checked.
        if len > 0 {
            let (stag, source) = read.source;
            for to in [source, read.sink.1] {
                to.checked_add(len.into()).ok_or(FaultKind::ReadWrap { to, len })?;
            }
            memory.check_read(stag, source, len).map_err(|error| FaultKind::Read { stag, to: source, len, error })?;
        }
        self.requests.push_back(read);
        Ok(())
    }

    /// A Terminate may come at any time, also inside an unfinished message.
    pub(super) fn begin_terminate(&mut self) -> Result<Body, FaultKind> {
        let header = self.untagged_header();
        self.check_queue(&header, QueueNumber::TERMINATE)?;
        self.check_msn(QueueNumber::TERMINATE, Msn(header.msn.get()), Msn::FIRST)?;
        self.check_message_start(QueueNumber::TERMINATE, &header)?;
        // It is one segment; nothing may follow it, whatever its L flag says.
        self.last = true;
        Ok(Body::Terminate)
    }

    pub(super) fn keep_terminate(&mut self, chunk: &[u8]) {
        gather(&mut self.terminate, &mut self.terminate_have, TERMINATE_PREFIX, &mut &*chunk);
    }

    pub(super) fn check_msn(&self, queue: QueueNumber, found: Msn, expected: Msn) -> Result<(), FaultKind> {
        if found == expected { Ok(()) } else { Err(FaultKind::Msn { queue, found, expected }) }
    }

    pub(super) fn check_message_start(&self, queue: QueueNumber, header: &UntaggedHeader) -> Result<(), FaultKind> {
        match header.message_offset.get() {
            0 => Ok(()),
            found => Err(FaultKind::MessageOffset { queue, found, expected: 0 }),
        }
    }

    pub(super) const fn interleaved(&self, unfinished: Opcode) -> FaultKind {
        FaultKind::Interleaved { opcode: self.opcode(), unfinished }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::wire::TaggedHeader;

    /// A receiver that stands behind `header` of a segment with 8 bytes of payload.
    fn receiver(header: &[u8]) -> Receiver {
        let mut receiver = Receiver::new(false, 0);
        receiver.header[..header.len()].copy_from_slice(header);
        receiver.remaining = 8;
        receiver
    }

    #[test]
    fn send_is_at_most_as_long_as_32_bits_can_say() {
        let begin = |announced| {
            let header = UntaggedHeader::new(false, Opcode::SEND, Stag(0), QueueNumber::SEND, Msn(1), announced);
            let mut receiver = receiver(header.as_bytes());
            receiver.send = Some(SendMessage { opcode: Opcode::SEND, invalidate: Stag(0), announced, placed: announced });
            receiver.begin_send().map(|_| ())
        };
        assert_eq!(begin(u32::MAX - 8), Ok(()));
        assert_eq!(begin(u32::MAX - 7), Err(FaultKind::TooLong));
    }

    #[test]
    fn write_is_at_most_as_long_as_32_bits_can_say() {
        let begin = |length| {
            let header = TaggedHeader::new(false, Opcode::WRITE, Stag(1), 0x10_0000_0000);
            let mut receiver = receiver(header.as_bytes());
            receiver.tagged = Some(TaggedMessage::Write { stag: Stag(1), next: 0x10_0000_0000, length });
            receiver.begin_write().map(|_| ())
        };
        assert_eq!(begin(u32::MAX - 8), Ok(()));
        assert_eq!(begin(u32::MAX - 7), Err(FaultKind::WriteTooLong));
    }
}
