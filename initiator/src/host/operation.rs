//! One block operation in a queue: what it asks for, and where it and its buffer are.

use godwit_memory::Buffer;
use godwit_nvme::sqe::{DatasetManagementAttributes, IoControl};
use godwit_nvme::{BlockCount, BlockRange, Cid, DsmRange, Lba, Sqe, Status};
use godwit_rdma::Rkey;
use godwit_reactor::Time;

use super::message::IoAccess;
use crate::block::{BlockError, BlockOp, Ticket};

/// What an operation asks the target for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Read {
        blocks: BlockRange,
        len_bytes: usize,
    },
    Write {
        blocks: BlockRange,
        len_bytes: usize,
        fua: bool,
    },
    Flush,
    WriteZeroes {
        blocks: BlockRange,
        may_deallocate: bool,
        fua: bool,
    },
    /// Its buffer holds the one range.
    Discard,
}

/// Whom an operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The front end.
    Client(Ticket),
    /// The queue: a flush that is to make room for copies.
    Room,
    /// The queue: a copy that is written again.
    Copy,
    /// The volume: the flush before its end.
    Farewell,
}

/// An operation that has not ended.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) owner: Owner,
    pub(crate) action: Action,
    /// Its place in the order of submission.
    pub(crate) sequence: u64,
    pub(crate) submitted: Time,
    pub(crate) retries: u8,
    /// Whether it was ever sent: then only an answer ends it.
    pub(crate) was_sent: bool,
    pub(crate) place: Place,
}

/// Where an operation and its buffer are.
#[derive(Debug)]
pub(crate) enum Place {
    /// With us, to be sent (again).
    Here(Option<Buffer>),
    /// Sent on the queue's connection.
    Sent(Sent),
}

/// The part of a sent operation that changes until it ends: it does once it was answered and its Send is done.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) at: Time,
    /// The region that lends its buffer to the target.
    pub(crate) rkey: Option<Rkey>,
    /// Its buffer, once it is back from the Send or the region.
    pub(crate) buffer: Option<Buffer>,
    pub(crate) send_done: bool,
    /// Whether it was found to be overdue.
    pub(crate) overdue: bool,
    pub(crate) status: Option<Status>,
}

impl Action {
    /// Whether it changes what is stored: sent twice, it could undo what came in between.
    pub(crate) fn is_change(self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Flush)
    }

    /// Bytes of its buffer that the command names.
    pub(crate) fn data_bytes(self) -> usize {
        match self {
            Self::Read { len_bytes, .. } | Self::Write { len_bytes, .. } => len_bytes,
            Self::Discard => DsmRange::LEN_BYTES,
            Self::Flush | Self::WriteZeroes { .. } => 0,
        }
    }

    /// Its submission queue entry, without an SGL and without a command identifier of its own.
    pub(crate) fn sqe(self, access: &IoAccess) -> Sqe {
        const NO_CID: Cid = Cid::new(0);
        let nsid = access.nsid;
        let control = |fua: bool| if fua { IoControl::FORCE_UNIT_ACCESS } else { IoControl::NONE };
        match self {
            Self::Read { blocks, .. } => Sqe::read(NO_CID, nsid, blocks),
            Self::Write { blocks, fua, .. } => Sqe::write(NO_CID, nsid, blocks).with_control(control(fua)),
            Self::Flush => Sqe::flush(NO_CID, nsid),
            Self::WriteZeroes { blocks, may_deallocate, fua } => {
                let deallocate = may_deallocate && access.zeroes_may_deallocate;
                let deallocate = if deallocate { IoControl::DEALLOCATE } else { IoControl::NONE };
                Sqe::write_zeroes(NO_CID, nsid, blocks).with_control(control(fua) | deallocate)
            }
            Self::Discard => {
                let attributes = DatasetManagementAttributes::DEALLOCATE;
                Sqe::dataset_management(NO_CID, nsid, 1, attributes).expect("one range is within bounds")
            }
        }
    }
}

/// Why an operation was not taken.
#[derive(Debug)]
pub(crate) enum Untaken {
    /// There is no buffer for its range now.
    Full(BlockOp),
    /// It breaks a rule of the volume: it ends at once.
    Wrong(BlockError, Option<Buffer>),
}

/// Checks an operation and takes it apart. `take_page` gives a small buffer.
pub(crate) fn plan(
    op: BlockOp,
    access: &IoAccess,
    take_page: impl FnOnce() -> Option<Buffer>,
) -> Result<(Action, Option<Buffer>), Untaken> {
    let geometry = &access.geometry;
    let wrong = |error, buffer| Err(Untaken::Wrong(error, buffer));
    match op {
        BlockOp::Read { offset, len_bytes, buffer } => {
            if len_bytes > buffer.capacity() || len_bytes > geometry.max_transfer_bytes {
                return wrong(BlockError::OutOfRange, Some(buffer));
            }
            match range(offset, len_bytes as u64, access) {
                Some(blocks) => Ok((Action::Read { blocks, len_bytes }, Some(buffer))),
                None => wrong(BlockError::OutOfRange, Some(buffer)),
            }
        }
        BlockOp::Write { offset, len_bytes, buffer, fua } => {
            if geometry.read_only {
                return wrong(BlockError::ReadOnly, Some(buffer));
            }
            if len_bytes > buffer.len() || len_bytes > geometry.max_transfer_bytes {
                return wrong(BlockError::OutOfRange, Some(buffer));
            }
            match range(offset, len_bytes as u64, access) {
                Some(blocks) => Ok((Action::Write { blocks, len_bytes, fua }, Some(buffer))),
                None => wrong(BlockError::OutOfRange, Some(buffer)),
            }
        }
        BlockOp::Flush => Ok((Action::Flush, None)),
        BlockOp::WriteZeroes { .. } | BlockOp::Discard { .. } if geometry.read_only => wrong(BlockError::ReadOnly, None),
        BlockOp::WriteZeroes { offset, len_bytes, may_deallocate, fua } => {
            if !geometry.can_write_zeroes {
                return wrong(BlockError::Unsupported, None);
            }
            match range(offset, len_bytes, access).filter(|_| len_bytes <= geometry.max_zeroes_bytes) {
                Some(blocks) => Ok((Action::WriteZeroes { blocks, may_deallocate, fua }, None)),
                None => wrong(BlockError::OutOfRange, None),
            }
        }
        BlockOp::Discard { offset, len_bytes } => {
            if !geometry.can_discard {
                return wrong(BlockError::Unsupported, None);
            }
            let Some(dsm) = dsm_range(offset, len_bytes, access) else { return wrong(BlockError::OutOfRange, None) };
            let Some(mut buffer) = take_page() else { return Err(Untaken::Full(BlockOp::Discard { offset, len_bytes })) };
            buffer.set_len(DsmRange::LEN_BYTES);
            buffer.copy_from_slice(dsm.as_bytes());
            Ok((Action::Discard, Some(buffer)))
        }
    }
}

/// First block and number of blocks of a byte range that lies within the volume and on block boundaries.
fn blocks(offset: u64, len_bytes: u64, access: &IoAccess) -> Option<(u64, u64)> {
    let block = u64::from(access.geometry.block_bytes);
    let end = offset.checked_add(len_bytes)?;
    let fits = len_bytes > 0 && end <= access.geometry.size_bytes && offset.is_multiple_of(block) && len_bytes.is_multiple_of(block);
    fits.then(|| (offset / block, len_bytes / block))
}

fn range(offset: u64, len_bytes: u64, access: &IoAccess) -> Option<BlockRange> {
    let (start, count) = blocks(offset, len_bytes, access)?;
    Some(BlockRange::new(Lba::new(start), BlockCount::new(u32::try_from(count).ok()?)?))
}

fn dsm_range(offset: u64, len_bytes: u64, access: &IoAccess) -> Option<DsmRange> {
    let (start, count) = blocks(offset, len_bytes, access)?;
    (len_bytes <= access.geometry.max_discard_bytes).then_some(())?;
    Some(DsmRange::new(Lba::new(start), u32::try_from(count).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::message::tests::access;
    use godwit_memory::{ClassLayout, Layout, Pool};

    fn pool() -> Pool {
        Pool::new(&Layout::new(&[ClassLayout { buffer_bytes: 128 << 10, count: 1 }]).unwrap()).unwrap()
    }

    fn read(offset: u64, len_bytes: usize) -> Result<Action, BlockError> {
        let buffer = pool().take(128 << 10).unwrap();
        outcome(BlockOp::Read { offset, len_bytes, buffer }, &access())
    }

    fn outcome(op: BlockOp, access: &IoAccess) -> Result<Action, BlockError> {
        match plan(op, access, || pool().take(4096)) {
            Ok((action, _)) => Ok(action),
            Err(Untaken::Wrong(error, _)) => Err(error),
            Err(Untaken::Full(op)) => panic!("{op:?} found no buffer"),
        }
    }

    // The volume of these tests has 1000 blocks of 4096 bytes and takes transfers of up to 128 KiB.

    #[test]
    fn accepts_the_last_block_and_rejects_the_one_after_it() {
        let last = BlockRange::new(Lba::new(999), BlockCount::MIN);
        assert_eq!(read(999 * 4096, 4096), Ok(Action::Read { blocks: last, len_bytes: 4096 }));
        assert_eq!(read(1000 * 4096, 4096), Err(BlockError::OutOfRange));
        assert_eq!(read(999 * 4096, 8192), Err(BlockError::OutOfRange));
        assert_eq!(read(u64::MAX - 4095, 4096), Err(BlockError::OutOfRange));
    }

    #[test]
    fn rejects_what_is_not_whole_blocks() {
        assert_eq!(read(512, 4096), Err(BlockError::OutOfRange));
        assert_eq!(read(0, 512), Err(BlockError::OutOfRange));
        assert_eq!(read(0, 0), Err(BlockError::OutOfRange));
    }

    #[test]
    fn accepts_the_largest_transfer_and_rejects_one_block_more() {
        assert!(read(0, 128 << 10).is_ok());
        assert_eq!(read(0, (128 << 10) + 4096), Err(BlockError::OutOfRange));
    }

    #[test]
    fn a_read_only_volume_takes_no_change() {
        let mut access = access();
        access.geometry.read_only = true;
        let buffer = pool().take(4096).unwrap();
        let write = BlockOp::Write { offset: 0, len_bytes: 4096, buffer, fua: false };
        assert_eq!(outcome(write, &access), Err(BlockError::ReadOnly));
        assert_eq!(outcome(BlockOp::Discard { offset: 0, len_bytes: 4096 }, &access), Err(BlockError::ReadOnly));
        let zeroes = BlockOp::WriteZeroes { offset: 0, len_bytes: 4096, may_deallocate: true, fua: false };
        assert_eq!(outcome(zeroes, &access), Err(BlockError::ReadOnly));
        assert_eq!(outcome(BlockOp::Flush, &access), Ok(Action::Flush));
    }

    #[test]
    fn a_discard_without_a_buffer_is_handed_back() {
        let result = plan(BlockOp::Discard { offset: 4096, len_bytes: 8192 }, &access(), || None);
        assert!(matches!(result, Err(Untaken::Full(BlockOp::Discard { offset: 4096, len_bytes: 8192 }))));
    }

    #[test]
    fn a_discard_names_its_range_in_blocks() {
        let (action, buffer) = plan(BlockOp::Discard { offset: 8192, len_bytes: 12288 }, &access(), || pool().take(4096)).unwrap();
        assert_eq!(action, Action::Discard);
        assert_eq!(&*buffer.unwrap(), &[0, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn zeroes_are_deallocated_only_where_the_namespace_allows_it() {
        let zeroes = |may_deallocate, allowed| {
            let mut access = access();
            access.zeroes_may_deallocate = allowed;
            let op = BlockOp::WriteZeroes { offset: 0, len_bytes: 4096, may_deallocate, fua: true };
            outcome(op, &access).unwrap().sqe(&access).io_range().control
        };
        let fua = IoControl::FORCE_UNIT_ACCESS;
        assert_eq!(zeroes(true, true), fua | IoControl::DEALLOCATE);
        assert_eq!(zeroes(true, false), fua);
        assert_eq!(zeroes(false, true), fua);
    }
}
