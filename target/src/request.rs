//! From a command of an I/O queue to what has to be done: all checks that need no I/O, in the order in which their statuses take precedence.

use godwit_nvme::sqe::{DatasetManagementAttributes, IoControl, IoRange};
use godwit_nvme::{BlockRange, IoCommand, Nsid, Sgl, Sqe, Status, StatusCode};
use godwit_rdma::{Remote, Rkey};

use crate::limits::MAX_TRANSFER_BYTES;
use crate::subsystem::{Namespace, Subsystem};

/// Where in a command a field lies, in bytes: what the error log names.
pub(crate) mod location {
    pub(crate) const OPCODE: u8 = 0;
    pub(crate) const FLAGS: u8 = 1;
    pub(crate) const NSID: u8 = 4;
    pub(crate) const SGL: u8 = 24;
    pub(crate) const CDW10: u8 = 40;
    pub(crate) const CDW11: u8 = 44;
    pub(crate) const CDW12: u8 = 48;
    pub(crate) const IO_CONTROL: u8 = 50;
}

/// Why a command is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: Status,
    /// The byte of the command that is at fault.
    pub(crate) location: Option<u8>,
}

impl Refusal {
    /// The field at `location` is wrong, and will be.
    pub(crate) const fn at(location: u8, code: StatusCode) -> Self {
        Self { status: code.do_not_retry(), location: Some(location) }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self { status, location: None }
    }
}

/// Where the data of a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataAt {
    /// In memory of the host.
    Host(Remote),
    /// In the capsule, from this byte of its data on.
    Capsule {
        /// First byte.
        start: usize,
    },
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Read blocks to the host.
    Read {
        /// Where to.
        to: Remote,
    },
    /// Write blocks.
    Write {
        /// Where they are.
        from: DataAt,
        /// Whether they must be on stable storage before the command ends.
        durable: bool,
    },
    /// Compare blocks with data of the host.
    Compare {
        /// Where the data is.
        from: DataAt,
    },
    /// Zero blocks.
    Zero {
        /// Whether the store may give them back.
        deallocate: bool,
        /// As for Write.
        durable: bool,
    },
    /// Bring all completed writes to stable storage.
    Flush,
    /// Give ranges back to the store.
    Discard {
        /// Where the ranges are.
        from: DataAt,
        /// How many.
        ranges: u16,
    },
    /// Nothing: the command is a hint that we do not use.
    Nothing,
}

/// A command whose fields are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) action: Action,
    /// The store.
    pub(crate) store: usize,
    /// First byte of the range in the store.
    pub(crate) offset_bytes: u64,
    /// Length of the range, or of the data if there is no range.
    pub(crate) len_bytes: u64,
}

impl Request {
    /// Length of the data in memory, at most [`MAX_TRANSFER_BYTES`].
    pub(crate) fn data_bytes(&self) -> usize {
        usize::try_from(self.len_bytes).unwrap_or(MAX_TRANSFER_BYTES)
    }

    /// Reads and checks a command of an I/O queue that came with so many bytes of in-capsule data.
    pub(crate) fn parse(sqe: &Sqe, capsule_bytes: usize, subsystem: &Subsystem) -> Result<Self, Refusal> {
        sqe.check_flags().map_err(|status| Refusal { status, location: Some(location::FLAGS) })?;
        let command = IoCommand::parse(sqe);
        if let IoCommand::Fabrics(_) = command {
            return Err(Refusal::at(location::OPCODE, StatusCode::INVALID_OPCODE));
        }
        let namespace = namespace_of(subsystem, sqe.nsid())?;
        let ranged = |range: IoRange| ranged(namespace, range);
        match command {
            IoCommand::Flush(_) => Ok(Self { action: Action::Flush, store: namespace.store, offset_bytes: 0, len_bytes: 0 }),
            IoCommand::Read(range) => {
                let request = ranged(range)?.transferring()?;
                let to = host_data(sqe, request.len_bytes)?;
                check_control(range, IoControl::NONE)?;
                Ok(Self { action: Action::Read { to }, ..request })
            }
            IoCommand::Write(range) => {
                writable(namespace)?;
                let request = ranged(range)?.transferring()?;
                let from = data(sqe, request.len_bytes, capsule_bytes)?;
                check_control(range, IoControl::NONE)?;
                Ok(Self { action: Action::Write { from, durable: range.is_forced_unit_access() }, ..request })
            }
            IoCommand::Compare(range) => {
                let request = ranged(range)?.transferring()?;
                let from = data(sqe, request.len_bytes, capsule_bytes)?;
                check_control(range, IoControl::NONE)?;
                Ok(Self { action: Action::Compare { from }, ..request })
            }
            IoCommand::WriteZeroes(range) => {
                writable(namespace)?;
                let request = ranged(range)?;
                let allowed = if namespace.can_deallocate { IoControl::DEALLOCATE } else { IoControl::NONE };
                check_control(range, allowed)?;
                let deallocate = range.control.contains(IoControl::DEALLOCATE);
                Ok(Self { action: Action::Zero { deallocate, durable: range.is_forced_unit_access() }, ..request })
            }
            IoCommand::DatasetManagement(dsm) => {
                writable(namespace)?;
                let len_bytes = u64::from(dsm.range_count) * DSM_RANGE_BYTES;
                let from = longer_data(sqe, len_bytes, capsule_bytes)?;
                let discards = dsm.attributes.contains(DatasetManagementAttributes::DEALLOCATE) && namespace.can_deallocate;
                let action = if discards { Action::Discard { from, ranges: dsm.range_count } } else { Action::Nothing };
                Ok(Self { action, store: namespace.store, offset_bytes: 0, len_bytes })
            }
            _ => Err(Refusal::at(location::OPCODE, StatusCode::INVALID_OPCODE)),
        }
    }

    /// Checks that the data of the command is not more than MDTS allows.
    fn transferring(self) -> Result<Self, Refusal> {
        if self.len_bytes <= MAX_TRANSFER_BYTES as u64 { Ok(self) } else { Err(Refusal::at(location::CDW12, StatusCode::INVALID_FIELD)) }
    }
}

const DSM_RANGE_BYTES: u64 = godwit_nvme::DsmRange::LEN_BYTES as u64;

fn namespace_of(subsystem: &Subsystem, nsid: Nsid) -> Result<&Namespace, Refusal> {
    subsystem.namespace(nsid).ok_or(Refusal::at(location::NSID, StatusCode::INVALID_NAMESPACE_OR_FORMAT))
}

fn writable(namespace: &Namespace) -> Result<(), Refusal> {
    if namespace.read_only { Err(Refusal::at(location::OPCODE, StatusCode::NAMESPACE_WRITE_PROTECTED)) } else { Ok(()) }
}

/// The byte range of a range of blocks that lies in the namespace.
pub(crate) fn byte_range(namespace: &Namespace, blocks: BlockRange) -> Option<(u64, u64)> {
    if !blocks.is_within(namespace.size_blocks()) {
        return None;
    }
    // The size in bytes fits 64 bits, and so does what lies within it.
    blocks.offset_bytes(namespace.block_size).map(|offset| (offset, blocks.len_bytes(namespace.block_size)))
}

fn ranged(namespace: &Namespace, range: IoRange) -> Result<Request, Refusal> {
    let (offset_bytes, len_bytes) =
        byte_range(namespace, range.blocks).ok_or(Refusal::at(location::CDW10, StatusCode::LBA_OUT_OF_RANGE))?;
    Ok(Request { action: Action::Nothing, store: namespace.store, offset_bytes, len_bytes })
}

/// Refuses directives, and Deallocate unless it is allowed. Protection information bits mean nothing without protection information.
fn check_control(range: IoRange, allowed: IoControl) -> Result<(), Refusal> {
    let deallocates = range.control.contains(IoControl::DEALLOCATE) && !allowed.contains(IoControl::DEALLOCATE);
    if deallocates || range.control.directive_type() != 0 {
        return Err(Refusal::at(location::IO_CONTROL, StatusCode::INVALID_FIELD));
    }
    Ok(())
}

pub(crate) const BAD_LENGTH: Refusal = Refusal::at(location::SGL, StatusCode::DATA_SGL_LENGTH_INVALID);

fn sgl(sqe: &Sqe) -> Result<Sgl, Refusal> {
    sqe.sgl().map_err(|error| Refusal { status: error.status(), location: Some(location::SGL) })
}

/// Data of exactly this length, in the capsule or at the host.
fn data(sqe: &Sqe, len_bytes: u64, capsule_bytes: usize) -> Result<DataAt, Refusal> {
    let at = longer_data(sqe, len_bytes, capsule_bytes)?;
    if u64::from(sgl(sqe)?.length()) == len_bytes { Ok(at) } else { Err(BAD_LENGTH) }
}

/// Data of at least this length.
fn longer_data(sqe: &Sqe, len_bytes: u64, capsule_bytes: usize) -> Result<DataAt, Refusal> {
    match sgl(sqe)? {
        Sgl::Keyed { length, .. } | Sgl::InCapsule { length, .. } if u64::from(length) < len_bytes => Err(BAD_LENGTH),
        Sgl::Keyed { address, key, .. } => Ok(DataAt::Host(Remote { rkey: Rkey(key.get()), address })),
        Sgl::InCapsule { offset, length } => in_capsule(offset, length, capsule_bytes),
        Sgl::InCapsuleSegment { .. } => Err(Refusal::at(location::SGL, StatusCode::SGL_DESCRIPTOR_TYPE_INVALID)),
    }
}

fn in_capsule(offset: u64, length: u32, capsule_bytes: usize) -> Result<DataAt, Refusal> {
    let bad_offset = Refusal::at(location::SGL, StatusCode::SGL_OFFSET_INVALID);
    let start = usize::try_from(offset).map_err(|_| bad_offset)?;
    let left = capsule_bytes.checked_sub(start).ok_or(bad_offset)?;
    match usize::try_from(length) {
        Ok(length) if length <= left => Ok(DataAt::Capsule { start }),
        _ => Err(BAD_LENGTH),
    }
}

/// Memory of the host of exactly this length, to write to.
fn host_data(sqe: &Sqe, len_bytes: u64) -> Result<Remote, Refusal> {
    let (to, length) = host_memory(sqe)?;
    if u64::from(length) == len_bytes { Ok(to) } else { Err(BAD_LENGTH) }
}

/// Memory of the host to write to, and its length in bytes.
pub(crate) fn host_memory(sqe: &Sqe) -> Result<(Remote, u32), Refusal> {
    match sgl(sqe)? {
        Sgl::Keyed { address, length, key, .. } => Ok((Remote { rkey: Rkey(key.get()), address }, length)),
        Sgl::InCapsule { .. } => Err(Refusal::at(location::SGL, StatusCode::INVALID_FIELD)),
        Sgl::InCapsuleSegment { .. } => Err(Refusal::at(location::SGL, StatusCode::SGL_DESCRIPTOR_TYPE_INVALID)),
    }
}

#[cfg(test)]
mod tests;
