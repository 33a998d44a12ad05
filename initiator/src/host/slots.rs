//! The table of a queue's commands: a fixed number of slots, each named by a command identifier that is never the same twice in a row.

use godwit_nvme::Cid;

/// Bits of a command identifier that hold the slot; the other six count how often the slot was used, so that a late or repeated completion
/// does not find its successor.
const INDEX_BITS: u32 = 10;

/// The most slots that a table can have.
pub(crate) const MAX_SLOTS: usize = 1 << INDEX_BITS;

/// A fixed table of values, found by slot or by command identifier.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u16>,
}

#[derive(Debug)]
struct Slot<T> {
    use_count: u16,
    value: Option<T>,
}

impl<T> Slots<T> {
    /// A table of `count` free slots.
    ///
    /// # Panics
    ///
    /// When `count` exceeds [`MAX_SLOTS`].
    pub(crate) fn new(count: usize) -> Self {
        assert!(count <= MAX_SLOTS, "{count} slots do not fit into a command identifier");
        let count = u16::try_from(count).unwrap_or(u16::MAX);
        Self { slots: (0..count).map(|_| Slot { use_count: 0, value: None }).collect(), free: (0..count).rev().collect() }
    }

    /// Slots in use.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Puts a value into a free slot; hands it back when there is none.
    pub(crate) fn insert(&mut self, value: T) -> Result<u16, T> {
        let Some(index) = self.free.pop() else { return Err(value) };
        self.slots[usize::from(index)].value = Some(value);
        Ok(index)
    }

    /// A command identifier for the value in a slot. The one before is no longer known.
    pub(crate) fn name(&mut self, index: u16) -> Cid {
        let slot = &mut self.slots[usize::from(index)];
        slot.use_count = slot.use_count.wrapping_add(1);
        Cid::new((slot.use_count << INDEX_BITS) | index)
    }

    /// The command identifier that a slot in use was last given.
    pub(crate) fn name_of(&self, index: u16) -> Option<Cid> {
        let slot = self.slots.get(usize::from(index)).filter(|slot| slot.value.is_some())?;
        Some(Cid::new((slot.use_count << INDEX_BITS) | index))
    }

    /// The slot that a command identifier names now.
    pub(crate) fn find(&self, cid: Cid) -> Option<u16> {
        let index = cid.get() & ((1 << INDEX_BITS) - 1);
        let slot = self.slots.get(usize::from(index))?;
        let named = (slot.use_count << INDEX_BITS) | index;
        (slot.value.is_some() && named == cid.get()).then_some(index)
    }

    /// The value in a slot.
    pub(crate) fn get_mut(&mut self, index: u16) -> Option<&mut T> {
        self.slots.get_mut(usize::from(index))?.value.as_mut()
    }

    /// Empties a slot.
    pub(crate) fn remove(&mut self, index: u16) -> Option<T> {
        let value = self.slots.get_mut(usize::from(index))?.value.take()?;
        self.free.push(index);
        Some(value)
    }

    /// All values with their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &T)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| Some((index, slot.value.as_ref()?)))
    }

    /// All values with their slots.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u16, &mut T)> {
        (0..).zip(&mut self.slots).filter_map(|(index, slot)| Some((index, slot.value.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_hands_the_value_back() {
        let mut slots = Slots::new(2);
        slots.insert('a').unwrap();
        let second = slots.insert('b').unwrap();
        assert_eq!(slots.insert('c'), Err('c'));
        assert_eq!(slots.remove(second), Some('b'));
        assert_eq!(slots.insert('c'), Ok(second));
        assert_eq!(slots.len(), 2);
    }

    #[test]
    fn an_identifier_is_known_until_its_slot_is_named_again() {
        let mut slots = Slots::new(1);
        let index = slots.insert('a').unwrap();
        let first = slots.name(index);
        assert_eq!(slots.find(first), Some(index));
        let second = slots.name(index);
        assert_eq!((slots.find(first), slots.find(second)), (None, Some(index)));
        slots.remove(index);
        assert_eq!(slots.find(second), None);
    }

    #[test]
    fn identifiers_outside_of_the_table_are_unknown() {
        let mut slots = Slots::new(3);
        let index = slots.insert('a').unwrap();
        let cid = slots.name(index);
        assert_eq!(slots.find(Cid::new(cid.get() + 3)), None);
        assert_eq!(slots.find(Cid::new(cid.get() ^ 0x8000)), None);
        assert_eq!(slots.find(Cid::new(0xffff)), None);
    }

    #[test]
    fn a_slot_goes_through_64_identifiers_before_one_comes_again() {
        let mut slots = Slots::new(MAX_SLOTS);
        let index = slots.insert('a').unwrap();
        let first = slots.name(index);
        let other = (0..63).map(|_| slots.name(index)).filter(|&cid| cid == first).count();
        assert_eq!(other, 0);
        assert_eq!(slots.name(index), first);
    }
}
