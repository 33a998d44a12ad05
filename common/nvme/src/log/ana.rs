//! Asymmetric Namespace Access log.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::u8_field;
use crate::macros::{debug_by, open_set, wire};
use crate::{Nsid, Truncated};

open_set! {
    /// Asymmetric namespace access state.
    AnaState(u8), "ANA state" {
        /// Optimized: use this path.
        OPTIMIZED = 0x1 => "optimized",
        /// Non-optimized: use it if no other is optimized.
        NON_OPTIMIZED = 0x2 => "non-optimized",
        /// Inaccessible for now.
        INACCESSIBLE = 0x3 => "inaccessible",
        /// Lost for good.
        PERSISTENT_LOSS = 0x4 => "persistent loss",
        /// Changing.
        CHANGE = 0xF => "change",
    }
}

/// Header of the ANA log, 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AnaHeader {
    change_count: U64,
    group_count: U16,
    reserved10: [u8; 6],
}

wire!(AnaHeader, 16, { change_count: 0, group_count: 8, reserved10: 10 });

impl AnaHeader {
    /// Change Count.
    #[must_use]
    pub const fn change_count(&self) -> u64 {
        self.change_count.get()
    }

    /// Number of ANA Group Descriptors.
    #[must_use]
    pub const fn group_count(&self) -> u16 {
        self.group_count.get()
    }
}

debug_by!(AnaHeader { change_count, group_count });

/// Header of an ANA group descriptor, 32 bytes; the namespaces follow it, 4 bytes each.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AnaGroupHeader {
    group_id: U32,
    namespace_count: U32,
    change_count: U64,
    state: u8,
    reserved17: [u8; 15],
}

wire!(AnaGroupHeader, 32, { group_id: 0, namespace_count: 4, change_count: 8, state: 16, reserved17: 17 });

impl AnaGroupHeader {
    /// ANA Group ID.
    #[must_use]
    pub const fn group_id(&self) -> u32 {
        self.group_id.get()
    }

    /// Number of NSID Values.
    #[must_use]
    pub const fn namespace_count(&self) -> u32 {
        self.namespace_count.get()
    }

    /// Change Count.
    #[must_use]
    pub const fn change_count(&self) -> u64 {
        self.change_count.get()
    }

    /// State, bits 3:0.
    #[must_use]
    pub const fn state(&self) -> AnaState {
        AnaState(u8_field(self.state as u64, 3, 0))
    }
}

debug_by!(AnaGroupHeader { group_id, state, namespace_count, change_count });

/// A group of namespaces and how they can be reached through this controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// ANA Group ID, from 1.
    pub id: u32,
    /// State.
    pub state: AnaState,
    /// Change Count.
    pub change_count: u64,
    /// Its namespaces, ascending; empty if only the groups were asked for.
    pub namespaces: Vec<Nsid>,
}

/// Writes the log; with `groups_only` (RGO) without the namespaces.
#[must_use]
pub fn ana_log(change_count: u64, groups: &[AnaGroup], groups_only: bool) -> Vec<u8> {
    let mut header = AnaHeader::zeroed();
    header.change_count = U64::new(change_count);
    header.group_count = U16::new(u16::try_from(groups.len()).unwrap_or(u16::MAX));
    let mut log = header.as_bytes().to_vec();
    for group in groups.iter().take(usize::from(header.group_count())) {
        let namespaces = if groups_only { &[] } else { &group.namespaces[..] };
        let mut header = AnaGroupHeader::zeroed();
        header.group_id = U32::new(group.id);
        header.namespace_count = U32::new(u32::try_from(namespaces.len()).unwrap_or(u32::MAX));
        header.change_count = U64::new(group.change_count);
        header.state = group.state.0;
        log.extend_from_slice(header.as_bytes());
        log.extend(namespaces.iter().flat_map(|nsid| nsid.get().to_le_bytes()));
    }
    log
}

/// Reads the log; every group that its header announces must be there.
///
/// # Errors
/// The log is too short.
pub fn ana_groups(log: &[u8]) -> Result<Vec<AnaGroup>, Truncated> {
    let header = AnaHeader::read_from(log)?;
    let mut rest = &log[AnaHeader::LEN_BYTES..];
    let mut groups = Vec::new();
    for _ in 0..header.group_count() {
        let group = AnaGroupHeader::read_from(rest)?;
        rest = &rest[AnaGroupHeader::LEN_BYTES..];
        let (namespaces, after) = namespaces(rest, group.namespace_count())?;
        rest = after;
        groups.push(AnaGroup { id: group.group_id(), state: group.state(), change_count: group.change_count(), namespaces });
    }
    Ok(groups)
}

fn namespaces(bytes: &[u8], count: u32) -> Result<(Vec<Nsid>, &[u8]), Truncated> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let (ids, rest) =
        <[U32]>::ref_from_prefix_with_elems(bytes, count).map_err(|_| Truncated::new("ANA group", count.saturating_mul(4), bytes.len()))?;
    Ok((ids.iter().map(|id| Nsid::new(id.get())).collect(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups() -> Vec<AnaGroup> {
        vec![
            AnaGroup { id: 1, state: AnaState::OPTIMIZED, change_count: 9, namespaces: [1, 5].map(Nsid::new).to_vec() },
            AnaGroup { id: 2, state: AnaState::CHANGE, change_count: 8, namespaces: vec![] },
        ]
    }

    #[test]
    fn lies_on_the_wire_as_specified() {
        let log = ana_log(7, &groups(), false);
        assert_eq!(log.len(), 16 + 32 + 8 + 32);
        assert_eq!(log[..16], [7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(log[16..34], [1, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(log[48..56], [1, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(log[72], 0xF);
        assert_eq!(ana_groups(&log), Ok(groups()));
        assert_eq!(ana_log(7, &groups(), true).len(), 16 + 64);
    }

    #[test]
    fn a_log_that_ends_early_is_an_error() {
        let log = ana_log(7, &groups(), false);
        for len in 0..log.len() {
            assert!(ana_groups(&log[..len]).is_err(), "{len} bytes");
        }
        let mut lying = log;
        lying[20..24].fill(0xFF);
        assert!(ana_groups(&lying).is_err());
    }
}
