//! Work requests of one queue pair, and where the payload of its messages lies.

use std::rc::Rc;

use godwit_iwarp::{InvalidateError, Memory, PlacementError, ReceiveError, Stag, TaggedError};
use godwit_memory::{Buffer, Extent, Pool, Reservation};
use slab::Slab;
use smallvec::SmallVec;

use super::regions::Regions;
use crate::{Completion, Header, QpConfig, Rkey, WorkId};

/// A work request until it is complete.
#[derive(Debug)]
pub(super) enum Work {
    /// A Send: header, then data.
    Send { id: WorkId, header: Header, data: Option<Buffer> },
    /// An RDMA Write.
    Write { data: Buffer },
    /// An RDMA Write of what lies on a disk in memory.
    WriteExtent { extent: Extent },
    /// An RDMA Read: its sink, and how much of it is asked for.
    Read { id: WorkId, sink: Buffer },
}

impl Work {
    /// The payload of the message from `offset` on: what of the header, and what of the data, unless it lies on a disk.
    pub(super) fn payload(&self, offset: usize, len_bytes: usize) -> (&[u8], &[u8]) {
        match self {
            Self::Send { header, data, .. } => {
                let header = header.as_bytes();
                let from_header = &header[offset.min(header.len())..(offset + len_bytes).min(header.len())];
                let data_start = offset.saturating_sub(header.len());
                let data_len = len_bytes - from_header.len();
                let from_data = data.as_ref().map_or(&[][..], |data| &data[data_start..data_start + data_len]);
                (from_header, from_data)
            }
            Self::Write { data } => (&[], &data[offset..offset + len_bytes]),
            Self::WriteExtent { .. } | Self::Read { .. } => (&[], &[]),
        }
    }

    /// Bytes of data that go out with it.
    pub(super) fn data_bytes(&self) -> usize {
        match self {
            Self::Send { data, .. } => data.as_ref().map_or(0, |data| data.len()),
            Self::Write { data } => data.len(),
            Self::WriteExtent { extent } => extent.len_bytes(),
            Self::Read { .. } => 0,
        }
    }

    /// What is reported when the queue pair failed before the work was complete.
    pub(super) fn flushed(self) -> Option<Completion> {
        match self {
            Self::Send { id, data, .. } => Some(Completion::Flushed { id, data }),
            Self::Read { id, sink } => Some(Completion::Flushed { id, data: Some(sink) }),
            Self::Write { .. } | Self::WriteExtent { .. } => None,
        }
    }
}

/// Ranges of disks that are fetched into the processor's cache together.
const FETCHED_TOGETHER: usize = 4;

/// The message that is being received.
#[derive(Debug)]
pub(super) struct Incoming {
    header: Header,
    data: Option<Buffer>,
}

/// Everything that the payload of a queue pair's messages is taken from or placed into.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) regions: Regions,
    pub(super) works: Slab<Work>,
    pub(super) send_depth: usize,
    /// Work that writes from disks, which are still to be fetched into the processor's cache.
    unfetched: SmallVec<[usize; FETCHED_TOGETHER]>,
    incoming: Incoming,
    header_bytes: usize,
    most_data_bytes: usize,
    pool: Pool,
    pub(super) reservation: Option<Rc<Reservation>>,
}

impl Payload {
    pub(super) fn new(config: &QpConfig, pool: &Pool) -> Self {
        assert!(config.header_bytes <= Header::MAX_BYTES, "a message header has at most {} bytes", Header::MAX_BYTES);
        Self {
            regions: Regions::new(config.regions),
            works: Slab::with_capacity(config.send_depth),
            send_depth: config.send_depth,
            unfetched: SmallVec::new(),
            incoming: Incoming { header: Header { bytes: [0; Header::MAX_BYTES], len: 0 }, data: None },
            header_bytes: config.header_bytes,
            most_data_bytes: config.data_bytes,
            pool: pool.clone(),
            reservation: None,
        }
    }

    pub(super) fn add(&mut self, work: Work) -> u64 {
        assert!(self.works.len() < self.send_depth, "more work is posted than the queue pair's send depth of {}", self.send_depth);
        let is_on_disk = matches!(work, Work::WriteExtent { .. });
        let key = self.works.insert(work);
        if is_on_disk {
            self.unfetched.push(key);
            if self.unfetched.len() == FETCHED_TOGETHER {
                self.fetch();
            }
        }
        key as u64
    }

    /// Has the processor fetch what work that was added since the last time writes from disks.
    pub(super) fn fetch(&mut self) {
        Extent::prefetch(self.unfetched.iter().filter_map(|&key| match self.works.get(key) {
            Some(Work::WriteExtent { extent }) => Some(extent),
            _ => None,
        }));
        self.unfetched.clear();
    }

    /// Gives up what is not complete, and says what is to be reported of it.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = Completion> + '_ {
        self.incoming.data = None;
        self.reservation = None;
        self.works.drain().filter_map(Work::flushed)
    }

    /// Whether a buffer for received data could be had now.
    pub(super) fn has_buffer(&self) -> bool {
        self.reservation.as_ref().is_some_and(|reservation| reservation.unused() > 0) || self.pool.spare(self.most_data_bytes) > 0
    }

    /// The message that was received whole; an error when it is shorter than its header.
    pub(super) fn take_message(&mut self, length: usize, invalidated: Option<Stag>) -> Result<Completion, usize> {
        if length < self.header_bytes {
            return Err(self.header_bytes);
        }
        let mut data = self.incoming.data.take();
        if let Some(data) = &mut data {
            data.set_len(length - self.header_bytes);
        }
        Ok(Completion::Received { header: self.incoming.header, data, invalidated: invalidated.map(|stag| Rkey(stag.0)) })
    }

    /// Where data of the message being received goes, for placement straight from the socket.
    pub(super) fn incoming_data(&mut self, offset: u32, len_bytes: usize) -> Option<&mut [u8]> {
        let start = (offset as usize).checked_sub(self.header_bytes)?;
        self.incoming.data.as_mut()?.get_mut(start..start.checked_add(len_bytes)?)
    }

    /// Where data of a Read Response goes.
    pub(super) fn sink(&mut self, read: u64, offset: u32, len_bytes: usize) -> Option<&mut [u8]> {
        match self.works.get_mut(usize::try_from(read).ok()?)? {
            Work::Read { sink, .. } => sink.get_mut(offset as usize..(offset as usize).checked_add(len_bytes)?),
            Work::Send { .. } | Work::Write { .. } | Work::WriteExtent { .. } => None,
        }
    }

    fn claim_data(&mut self) -> Option<()> {
        if self.incoming.data.is_none() {
            let reserved = self.reservation.as_ref().and_then(|reservation| reservation.take());
            let mut buffer = reserved.or_else(|| self.pool.take(self.most_data_bytes))?;
            buffer.set_len(self.most_data_bytes);
            self.incoming.data = Some(buffer);
        }
        Some(())
    }
}

impl Memory for Payload {
    fn write(&mut self, stag: Stag, to: u64, payload: &[u8]) -> Result<(), TaggedError> {
        self.regions.writable(stag, to, payload.len()).map(|bytes| bytes.copy_from_slice(payload))
    }

    fn read_response(&mut self, read: u64, offset: u32, payload: &[u8]) -> Result<(), PlacementError> {
        self.sink(read, offset, payload.len()).ok_or(PlacementError)?.copy_from_slice(payload);
        Ok(())
    }

    fn receive(&mut self, offset: u32, payload: &[u8]) -> Result<(), ReceiveError> {
        let start = offset as usize;
        let end = start.checked_add(payload.len()).ok_or(ReceiveError::TooLong)?;
        if end > self.header_bytes + self.most_data_bytes {
            return Err(ReceiveError::TooLong);
        }
        if start == 0 && payload.is_empty() {
            self.incoming.header.len = self.header_bytes;
            self.incoming.data = None;
            return Ok(());
        }
        let from_header = &payload[..payload.len().min(self.header_bytes.saturating_sub(start))];
        let from_data = &payload[from_header.len()..];
        if !from_data.is_empty() {
            self.claim_data().ok_or(ReceiveError::Wait)?;
        }
        let place = &mut self.incoming.header.bytes[start.min(self.header_bytes)..];
        match from_header.len() {
            // Whole headers, as nearly always: a copy of a known length takes no call.
            16 => place[..16].copy_from_slice(&from_header[..16]),
            64 => place[..64].copy_from_slice(&from_header[..64]),
            len => place[..len].copy_from_slice(from_header),
        }
        if let (Some(data), false) = (&mut self.incoming.data, from_data.is_empty()) {
            let data_start = start + from_header.len() - self.header_bytes;
            data[data_start..data_start + from_data.len()].copy_from_slice(from_data);
        }
        Ok(())
    }

    fn check_read(&mut self, stag: Stag, to: u64, len: u32) -> Result<(), TaggedError> {
        self.regions.readable(stag, to, len as usize).map(|_| ())
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), InvalidateError> {
        self.regions.invalidate(stag)
    }
}
