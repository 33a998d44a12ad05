//! The memory that one peer may reach: a table of lent buffers, by STag.
//!
//! A region is named by a 24-bit index, never 0, and an 8-bit key that changes with each use of the index, so that a stale STag is refused. The table
//! belongs to one queue pair: an STag of another one means nothing here.

use std::collections::VecDeque;

use godwit_iwarp::{InvalidateError, Stag, TaggedError};
use godwit_memory::Buffer;

use crate::{Access, Remote, Rkey};

#[derive(Debug)]
struct Region {
    key: u8,
    lent: Option<Lent>,
}

#[derive(Debug)]
struct Lent {
    buffer: Buffer,
    access: Access,
    /// The peer has given up its right by a Send with Invalidate.
    invalidated: bool,
}

/// The regions of one queue pair.
#[derive(Debug)]
pub(super) struct Regions {
    table: Vec<Region>,
    /// The one that was free longest comes first: an STag of 8 bits of key then takes longest to come again.
    free: VecDeque<usize>,
}

/// Each region has an address range of its own, so that an address of another one is out of bounds rather than a near miss.
const ADDRESS_SHIFT: u32 = 32;

fn stag_of(index: usize, key: u8) -> Stag {
    Stag(u32::try_from(index + 1).expect("a table has fewer than 2^24 regions") << 8 | u32::from(key))
}

fn first_address(index: usize) -> u64 {
    (index as u64 + 1) << ADDRESS_SHIFT
}

impl Regions {
    pub(super) fn new(count: usize) -> Self {
        assert!(count < 1 << 24, "an STag has 24 bits of index");
        Self { table: (0..count).map(|_| Region { key: 0, lent: None }).collect(), free: (0..count).collect() }
    }

    /// Lends a buffer, as long as its length says.
    pub(super) fn expose(&mut self, buffer: Buffer, access: Access) -> Remote {
        let index = self.free.pop_front().expect("no more regions are exposed than the queue pair was made for");
        let region = &mut self.table[index];
        region.key = region.key.wrapping_add(1);
        region.lent = Some(Lent { buffer, access, invalidated: false });
        Remote { rkey: Rkey(stag_of(index, region.key).0), address: first_address(index) }
    }

    pub(super) fn revoke(&mut self, Rkey(stag): Rkey) -> Option<Buffer> {
        let index = self.index(Stag(stag)).ok()?;
        let lent = self.table[index].lent.take()?;
        self.free.push_back(index);
        Some(lent.buffer)
    }

    pub(super) fn invalidate(&mut self, stag: Stag) -> Result<(), InvalidateError> {
        let index = self.index(stag).map_err(|_| InvalidateError::InvalidStag)?;
        match &mut self.table[index].lent {
            Some(lent) if !lent.invalidated => {
                lent.invalidated = true;
                Ok(())
            }
            _ => Err(InvalidateError::InvalidStag),
        }
    }

    /// The bytes that an RDMA Write may fill.
    pub(super) fn writable(&mut self, stag: Stag, to: u64, len_bytes: usize) -> Result<&mut [u8], TaggedError> {
        let index = self.index(stag)?;
        let lent = self.table[index].lent.as_mut().ok_or(TaggedError::InvalidStag)?;
        let start = check(lent, index, Access::RemoteWrite, to, len_bytes)?;
        Ok(&mut lent.buffer[start..start + len_bytes])
    }

    /// The bytes that an RDMA Read may fetch.
    pub(super) fn readable(&self, stag: Stag, to: u64, len_bytes: usize) -> Result<&[u8], TaggedError> {
        let index = self.index(stag)?;
        let lent = self.table[index].lent.as_ref().ok_or(TaggedError::InvalidStag)?;
        let start = check(lent, index, Access::RemoteRead, to, len_bytes)?;
        Ok(&lent.buffer[start..start + len_bytes])
    }

    fn index(&self, stag: Stag) -> Result<usize, TaggedError> {
        let index = (stag.0 >> 8) as usize;
        let index = index.checked_sub(1).ok_or(TaggedError::InvalidStag)?;
        let region = self.table.get(index).ok_or(TaggedError::InvalidStag)?;
        if stag_of(index, region.key) == stag { Ok(index) } else { Err(TaggedError::InvalidStag) }
    }
}

/// Where in the buffer an access of the peer starts, once every right and bound is checked.
fn check(lent: &Lent, index: usize, access: Access, to: u64, len_bytes: usize) -> Result<usize, TaggedError> {
    if lent.invalidated {
        return Err(TaggedError::InvalidStag);
    }
    if lent.access != access {
        return Err(TaggedError::Access);
    }
    let start = to.checked_sub(first_address(index)).and_then(|start| usize::try_from(start).ok()).ok_or(TaggedError::Bounds)?;
    let end = start.checked_add(len_bytes).ok_or(TaggedError::Bounds)?;
    if end <= lent.buffer.len() { Ok(start) } else { Err(TaggedError::Bounds) }
}

#[cfg(test)]
mod tests {
    use godwit_memory::{ClassLayout, Layout, Pool};

    use super::*;

    fn pool() -> Pool {
        Pool::new(&Layout::new(&[ClassLayout { buffer_bytes: 4096, count: 4 }]).unwrap()).unwrap()
    }

    fn exposed(access: Access) -> (Regions, Stag, u64) {
        let mut regions = Regions::new(2);
        let remote = regions.expose(pool().take(512).unwrap(), access);
        (regions, Stag(remote.rkey.0), remote.address)
    }

    #[test]
    fn the_whole_region_and_nothing_beyond_it_is_reachable() {
        let (mut regions, stag, address) = exposed(Access::RemoteWrite);
        assert!(regions.writable(stag, address, 512).is_ok());
        assert!(regions.writable(stag, address + 511, 1).is_ok());
        for (to, len) in [(address, 513), (address + 512, 1), (address - 1, 1), (u64::MAX, 2), (0, 1), (address, usize::MAX)] {
            assert_eq!(regions.writable(stag, to, len).unwrap_err(), TaggedError::Bounds, "{to:#x} {len}");
        }
    }

    #[test]
    fn each_right_is_only_what_it_says() {
        let (mut regions, stag, address) = exposed(Access::RemoteRead);
        assert!(regions.readable(stag, address, 1).is_ok());
        assert_eq!(regions.writable(stag, address, 1).unwrap_err(), TaggedError::Access);
        let (regions, stag, address) = exposed(Access::RemoteWrite);
        assert_eq!(regions.readable(stag, address, 1).unwrap_err(), TaggedError::Access);
    }

    #[test]
    fn a_revoked_or_invalidated_stag_is_dead() {
        let (mut regions, stag, address) = exposed(Access::RemoteWrite);
        regions.invalidate(stag).unwrap();
        assert_eq!(regions.invalidate(stag), Err(InvalidateError::InvalidStag));
        assert_eq!(regions.writable(stag, address, 1).unwrap_err(), TaggedError::InvalidStag);
        assert!(regions.revoke(Rkey(stag.0)).is_some());
        assert!(regions.revoke(Rkey(stag.0)).is_none());
        let again = regions.expose(pool().take(512).unwrap(), Access::RemoteWrite);
        assert_ne!(again.rkey.0, stag.0);
        assert_eq!(regions.writable(stag, address, 1).unwrap_err(), TaggedError::InvalidStag);
    }

    #[test]
    fn an_stag_comes_again_only_after_all_keys_of_all_regions() {
        let (pool, mut regions) = (pool(), Regions::new(4));
        let mut seen = std::collections::BTreeSet::new();
        for use_of_table in 0..4 * 256 {
            let remote = regions.expose(pool.take(512).unwrap(), Access::RemoteRead);
            assert!(seen.insert(remote.rkey.0), "use {use_of_table}");
            regions.revoke(remote.rkey).unwrap();
        }
    }

    #[test]
    fn unknown_stags_are_refused() {
        let (mut regions, stag, address) = exposed(Access::RemoteWrite);
        for unknown in [0, 1, stag.0 ^ 1, stag.0 + 0x100, u32::MAX] {
            assert_eq!(regions.writable(Stag(unknown), address, 1).unwrap_err(), TaggedError::InvalidStag, "{unknown:#x}");
        }
    }
}
