//! What the blocks of a volume may hold, for all that its user knows.

use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;

/// Names what is written to a block; 0 stands for zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub u64);

impl Stamp {
    /// A block of zeroes.
    pub const ZEROES: Self = Self(0);

    /// The bytes of a block that was written under this stamp.
    pub fn content(self, block: usize) -> Vec<u8> {
        let word = if self == Self::ZEROES { 0 } else { self.0 << 16 | block as u64 };
        word.to_le_bytes().repeat(BLOCK_BYTES / size_of::<u64>())
    }
}

/// What an operation does to each of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It puts this there.
    To(Stamp),
    /// It gives the block up: the block keeps what it has, or reads as zeroes.
    Discard,
}

/// A block's possible contents, once something was acknowledged.
#[derive(Clone, Debug)]
struct State {
    /// When it was acknowledged, in the order of acknowledgements.
    acknowledged: u64,
    may_be: Vec<Stamp>,
    /// Whether something is lost with it: a discard may be undone.
    counts: bool,
}

#[derive(Clone, Debug)]
struct Block {
    /// What survives a power cut, if nothing that came later does.
    durable: Vec<Stamp>,
    /// What was acknowledged since, in order; the last is what there is.
    since: Vec<State>,
    pending: Option<Change>,
}

impl Block {
    fn current(&self) -> &[Stamp] {
        self.since.last().map_or(&self.durable, |state| &state.may_be)
    }

    fn after(&self, change: Change) -> Vec<Stamp> {
        match change {
            Change::To(stamp) => vec![stamp],
            Change::Discard => union(self.current().to_vec(), &[Stamp::ZEROES]),
        }
    }

    /// What a read may find now.
    fn readable(&self) -> Vec<Stamp> {
        match self.pending {
            Some(change) => union(self.current().to_vec(), &self.after(change)),
            None => self.current().to_vec(),
        }
    }

    /// What a power cut may leave.
    fn survivors(&self) -> Vec<Stamp> {
        self.since.iter().fold(union(self.durable.clone(), &self.readable()), |all, state| union(all, &state.may_be))
    }
}

fn union(mut all: Vec<Stamp>, more: &[Stamp]) -> Vec<Stamp> {
    all.extend(more);
    all.sort_unstable();
    all.dedup();
    all
}

#[derive(Debug)]
struct Read {
    blocks: Range<usize>,
    allowed: Vec<Vec<Stamp>>,
    /// Nothing else was done to its blocks meanwhile: what it finds is what there is.
    undisturbed: bool,
}

/// The blocks of a volume. Operations that change a block do not overlap; reads may overlap anything.
#[derive(Debug)]
pub struct Model {
    blocks: Vec<Block>,
    reads: BTreeMap<u64, Read>,
    acknowledged: u64,
    cuts: u64,
    /// Answers may still come that were given before the last power cut.
    late_answers: bool,
    /// The initiator finds out when writes are lost: a flush that succeeds proves what it says, whatever happened before.
    tells: bool,
    /// The initiator writes again what was lost: nothing ever is, for its user.
    restores: bool,
    /// Clients that are still to be told of a loss.
    owed: Vec<bool>,
}

/// What a flush covers.
#[derive(Clone, Copy, Debug)]
pub struct FlushMark {
    acknowledged: u64,
    cuts: u64,
}

impl Model {
    /// A volume of zeroes.
    pub fn new(blocks: usize) -> Self {
        let block = Block { durable: vec![Stamp::ZEROES], since: Vec::new(), pending: None };
        Self {
            blocks: vec![block; blocks],
            reads: BTreeMap::new(),
            acknowledged: 0,
            cuts: 0,
            late_answers: false,
            tells: false,
            restores: false,
            owed: Vec::new(),
        }
    }

    /// Size in blocks.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Whether a change of one of these blocks is under way.
    pub fn is_changing(&self, blocks: Range<usize>) -> bool {
        self.blocks[blocks].iter().any(|block| block.pending.is_some())
    }

    /// The initiator finds out about losses, and tells each of so many clients; or it has retained all that is lost.
    pub fn promise(&mut self, clients: usize, restores: bool) {
        self.tells = true;
        self.restores = restores;
        self.owed = vec![false; clients];
    }

    fn lose(&mut self) {
        self.owed.fill(true);
    }

    /// A flush or a forced write of a client has ended, well or with the news that writes before it were lost. One that was answered before the power cut, and
    /// heard of after it, may be the flush that what is owed was covered by.
    ///
    /// # Panics
    ///
    /// When the client should have been told, and was not.
    pub fn end_sync(&mut self, client: usize, told: bool, is_flush: bool) {
        assert!(!(told && self.restores), "client {client} was told of lost writes, and copies were retained");
        if self.late_answers && !told {
            if is_flush {
                self.owed.fill(false);
            }
        } else if let Some(owed) = self.owed.get_mut(client) {
            assert!(told || !*owed, "a flush or forced write of client {client} succeeded over lost writes");
            *owed = false;
        }
    }

    /// A change was asked for.
    pub fn begin_change(&mut self, blocks: Range<usize>, change: Change) {
        for index in blocks {
            let block = &mut self.blocks[index];
            assert!(block.pending.is_none(), "changes of block {index} overlap");
            block.pending = Some(change);
            self.widen_reads(index);
        }
    }

    /// A change was acknowledged.
    pub fn end_change(&mut self, blocks: Range<usize>, fua: bool) {
        self.acknowledged += 1;
        let counts = |block: &Block| matches!(block.pending, Some(Change::To(_)));
        if self.late_answers && !fua && !self.restores && self.blocks[blocks.clone()].iter().any(counts) {
            self.lose();
        }
        for block in &mut self.blocks[blocks] {
            let change = block.pending.expect("the change began");
            // One that was made before the power cut, and not forced, may be lost by now.
            let may_be = if self.late_answers && !fua { block.readable() } else { block.after(change) };
            let counts = counts(block);
            block.pending = None;
            if fua {
                block.since.clear();
                block.durable = may_be;
            } else {
                block.since.push(State { acknowledged: self.acknowledged, may_be, counts });
            }
        }
    }

    /// A change failed for good: whether it was made, or ever will be, nobody knows.
    pub fn fail_change(&mut self, blocks: Range<usize>) {
        for index in blocks {
            let may_be = self.blocks[index].readable();
            self.blocks[index].pending = None;
            self.blocks[index].since.push(State { acknowledged: u64::MAX, may_be, counts: false });
        }
    }

    /// A flush is asked for.
    pub fn begin_flush(&self) -> FlushMark {
        FlushMark { acknowledged: self.acknowledged, cuts: self.cuts }
    }

    /// A flush was acknowledged. One that a power cut came between proves nothing about what had been written before the cut.
    pub fn end_flush(&mut self, mark: FlushMark) {
        if mark.cuts != self.cuts && !self.tells {
            return;
        }
        for block in &mut self.blocks {
            let covered = block.since.partition_point(|state| state.acknowledged <= mark.acknowledged);
            if let Some(last) = block.since.drain(..covered).next_back() {
                block.durable = last.may_be;
            }
            // What was acknowledged between the asking and the sending of the flush was covered, too; where that was, only the initiator knows.
            block.since.iter_mut().for_each(|state| state.counts = false);
        }
    }

    /// The disk lost its power: each block has any of its contents since the last flush, and that is on stable storage.
    pub fn cut_power(&mut self) {
        self.cuts += 1;
        if self.restores {
            return;
        }
        self.late_answers = true;
        if self.blocks.iter().any(|block| block.since.iter().any(|state| state.counts)) {
            self.lose();
        }
        self.forget_unflushed();
    }

    /// The last power cut, after which nothing is left that could write again what was lost.
    pub fn cut_power_for_good(&mut self) {
        self.forget_unflushed();
    }

    fn forget_unflushed(&mut self) {
        for index in 0..self.blocks.len() {
            let block = &mut self.blocks[index];
            block.durable = block.survivors();
            block.since.clear();
            self.widen_reads(index);
        }
    }

    /// There is a new association: what was answered on the old one has arrived.
    pub fn reconnected(&mut self) {
        self.late_answers = false;
    }

    /// A read under way may find what a block may be now, too.
    fn widen_reads(&mut self, index: usize) {
        let readable = self.blocks[index].readable();
        for read in self.reads.values_mut().filter(|read| read.blocks.contains(&index)) {
            let allowed = &mut read.allowed[index - read.blocks.start];
            *allowed = union(std::mem::take(allowed), &readable);
            read.undisturbed = false;
        }
    }

    /// A read is asked for.
    pub fn begin_read(&mut self, ticket: u64, blocks: Range<usize>) {
        let undisturbed = !self.is_changing(blocks.clone());
        let allowed = self.blocks[blocks.clone()].iter().map(Block::readable).collect();
        self.reads.insert(ticket, Read { blocks, allowed, undisturbed });
    }

    /// A read failed.
    pub fn fail_read(&mut self, ticket: u64) {
        self.reads.remove(&ticket);
    }

    /// A read has found this.
    ///
    /// # Panics
    ///
    /// When it must not.
    pub fn end_read(&mut self, ticket: u64, data: &[u8]) {
        let read = self.reads.remove(&ticket).expect("the read began");
        assert_eq!(data.len(), read.blocks.len() * BLOCK_BYTES, "length of a read");
        for ((index, found), allowed) in read.blocks.clone().zip(data.chunks_exact(BLOCK_BYTES)).zip(&read.allowed) {
            let stamp = check(index, found, allowed);
            if let Some(stamp) = stamp.filter(|_| read.undisturbed) {
                self.narrow(index, stamp);
            }
        }
    }

    /// What a block that could be several things was found to be.
    fn narrow(&mut self, index: usize, stamp: Stamp) {
        let block = &mut self.blocks[index];
        block.since.last_mut().map_or(&mut block.durable, |state| &mut state.may_be).splice(.., [stamp]);
    }

    /// Checks the contents of a disk, with nothing under way.
    ///
    /// # Panics
    ///
    /// When a block has what it must not.
    pub fn check_disk(&self, contents: &[u8]) {
        for ((index, block), found) in self.blocks.iter().enumerate().zip(contents.chunks_exact(BLOCK_BYTES)) {
            check(index, found, &block.readable());
        }
    }
}

/// Which of the allowed contents a block has; `None` for a mixture of several.
fn check(index: usize, found: &[u8], allowed: &[Stamp]) -> Option<Stamp> {
    let contents: Vec<_> = allowed.iter().map(|stamp| stamp.content(index)).collect();
    if let Some(at) = contents.iter().position(|content| content == found) {
        return Some(allowed[at]);
    }
    // Only while it changes may a block be seen half changed.
    let strange = (0..found.len()).find(|&at| contents.iter().all(|content| content[at] != found[at]));
    if strange.is_none() && allowed.len() > 1 {
        return None;
    }
    let words = found.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    panic!("block {index} holds {:?} of block {} at its start; allowed: {allowed:?}", Stamp(words >> 16), words & 0xFFFF);
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Stamp = Stamp(1);
    const NEW: Stamp = Stamp(2);

    fn write(model: &mut Model, stamp: Stamp, fua: bool) {
        model.begin_change(0..1, Change::To(stamp));
        model.end_change(0..1, fua);
    }

    fn read(model: &mut Model, found: Stamp) {
        model.begin_read(9, 0..1);
        model.end_read(9, &found.content(0));
    }

    fn rejects_read(model: &mut Model, found: Stamp) {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| read(model, found)));
        assert!(caught.is_err(), "took {found:?}");
    }

    #[test]
    fn an_outstanding_write_may_be_seen_or_not_and_an_acknowledged_one_must_be() {
        let mut model = Model::new(1);
        write(&mut model, OLD, false);
        model.begin_change(0..1, Change::To(NEW));
        read(&mut model, OLD);
        read(&mut model, NEW);
        model.end_change(0..1, false);
        read(&mut model, NEW);
        rejects_read(&mut model, OLD);
    }

    #[test]
    fn a_write_that_begins_while_a_read_is_under_way_may_be_seen_in_part() {
        let mut model = Model::new(1);
        write(&mut model, OLD, false);
        model.begin_read(1, 0..1);
        model.begin_change(0..1, Change::To(NEW));
        model.end_change(0..1, false);
        let mut mixed = OLD.content(0);
        mixed[..512].copy_from_slice(&NEW.content(0)[..512]);
        model.end_read(1, &mixed);
        rejects_read(&mut model, OLD);
    }

    #[test]
    fn a_power_cut_takes_what_was_not_flushed_and_nothing_else() {
        let mut model = Model::new(1);
        write(&mut model, OLD, false);
        let mark = model.begin_flush();
        write(&mut model, NEW, false);
        model.end_flush(mark);
        model.cut_power();
        rejects_read(&mut model.clone_blocks(), Stamp::ZEROES);
        read(&mut model.clone_blocks(), NEW);
        read(&mut model, OLD);
        rejects_read(&mut model, NEW);
    }

    #[test]
    fn a_forced_write_survives() {
        let mut model = Model::new(1);
        write(&mut model, OLD, false);
        write(&mut model, NEW, true);
        model.cut_power();
        rejects_read(&mut model, OLD);
        read(&mut model, NEW);
    }

    #[test]
    fn a_write_that_was_answered_before_a_power_cut_may_be_lost_and_one_that_is_repeated_may_not() {
        let mut model = Model::new(1);
        write(&mut model, OLD, true);
        model.begin_change(0..1, Change::To(NEW));
        model.cut_power();
        let mut repeated = model.clone_blocks();
        model.end_change(0..1, false);
        read(&mut model, OLD);
        repeated.reconnected();
        repeated.end_change(0..1, false);
        rejects_read(&mut repeated, OLD);
    }

    #[test]
    fn a_flush_across_a_power_cut_proves_nothing() {
        let mut model = Model::new(1);
        write(&mut model, OLD, true);
        write(&mut model, NEW, false);
        let mark = model.begin_flush();
        model.cut_power();
        model.end_flush(mark);
        read(&mut model, OLD);
    }

    #[test]
    fn a_discarded_block_keeps_its_content_or_reads_as_zeroes() {
        let mut model = Model::new(1);
        write(&mut model, OLD, false);
        model.begin_change(0..1, Change::Discard);
        model.end_change(0..1, false);
        rejects_read(&mut model, NEW);
        read(&mut model.clone_blocks(), OLD);
        read(&mut model, Stamp::ZEROES);
        rejects_read(&mut model, OLD);
    }

    #[test]
    fn a_client_that_is_owed_the_news_of_a_loss_must_get_it() {
        let mut model = Model::new(1);
        model.promise(2, false);
        write(&mut model, OLD, true);
        model.cut_power();
        model.reconnected();
        model.end_sync(0, false, true);
        write(&mut model, NEW, false);
        model.cut_power();
        model.reconnected();
        model.end_sync(1, true, true);
        model.end_sync(1, false, true);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.end_sync(0, false, true)));
        assert!(caught.is_err(), "client 0 was not told");
    }

    #[test]
    fn what_is_written_again_is_there_after_a_power_cut() {
        let mut model = Model::new(1);
        model.promise(1, true);
        write(&mut model, OLD, true);
        write(&mut model, NEW, false);
        model.cut_power();
        rejects_read(&mut model, OLD);
        read(&mut model, NEW);
    }

    impl Model {
        fn clone_blocks(&self) -> Self {
            Self { blocks: self.blocks.clone(), reads: BTreeMap::new(), owed: self.owed.clone(), ..*self }
        }
    }
}
