//! Lists of namespace identifiers.

use std::fmt;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Nsid;
use crate::macros::wire;

/// Up to 1024 namespace identifiers, 4096 bytes: Active Namespace ID List (CNS 02h) and Changed Namespace List (log 04h).
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NamespaceList {
    ids: [U32; 1024],
}

wire!(NamespaceList, 4096, { ids: 0 });

impl NamespaceList {
    /// How many identifiers one list holds.
    pub const CAPACITY: usize = 1024;

    /// The answer to "active namespaces above `after`": the first 1024 of `active`, which comes in ascending order.
    #[must_use]
    pub fn active_above(after: Nsid, active: impl IntoIterator<Item = Nsid>) -> Self {
        let mut this = Self::zeroed();
        let above = active.into_iter().filter(|&nsid| nsid > after);
        for (slot, nsid) in this.ids.iter_mut().zip(above) {
            *slot = U32::new(nsid.get());
        }
        this
    }

    /// The answer to "which namespaces changed": `changed`, or the mark for "too many" if the list cannot hold them.
    #[must_use]
    pub fn changed(changed: &[Nsid]) -> Self {
        if changed.len() > Self::CAPACITY {
            return Self::active_above(Nsid::NONE, [Nsid::ALL]);
        }
        Self::active_above(Nsid::NONE, changed.iter().copied())
    }

    /// The identifiers, up to the first zero.
    pub fn iter(&self) -> impl Iterator<Item = Nsid> {
        self.ids.iter().map(|id| Nsid::new(id.get())).take_while(|&nsid| nsid != Nsid::NONE)
    }

    /// Whether there may be more above the last: ask again from there.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.iter().count() == Self::CAPACITY
    }

    /// Whether a list of changes says that they were too many: every namespace may have changed.
    #[must_use]
    pub fn is_overflow(&self) -> bool {
        self.iter().next() == Some(Nsid::ALL)
    }
}

impl fmt::Debug for NamespaceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_what_is_above() {
        let list = NamespaceList::active_above(Nsid::new(2), [1, 2, 3, 7].map(Nsid::new));
        assert_eq!(list.as_bytes()[..12], [3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(list.iter().collect::<Vec<_>>(), [3, 7].map(Nsid::new));
        assert!(!list.is_full());
    }

    #[test]
    fn a_full_list_says_so() {
        let list = NamespaceList::active_above(Nsid::NONE, (1..=1024).map(Nsid::new));
        assert!(list.is_full());
        assert_eq!(list, NamespaceList::active_above(Nsid::NONE, (1..=2000).map(Nsid::new)));
        assert!(!NamespaceList::active_above(Nsid::NONE, (1..=1023).map(Nsid::new)).is_full());
    }

    #[test]
    fn too_many_changes_are_one_mark() {
        let ids: Vec<_> = (1..=1025).map(Nsid::new).collect();
        assert!(!NamespaceList::changed(&ids[..1024]).is_overflow());
        let list = NamespaceList::changed(&ids);
        assert!(list.is_overflow());
        assert_eq!(list.as_bytes()[..8], [0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0]);
    }
}
