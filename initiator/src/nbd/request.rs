//! One request under way: which operations it is made of, and how far they are.

use godwit_memory::Buffer;
use godwit_nbd::Request;

use super::limits::WINDOW;
use crate::block::{BlockError, Geometry};

/// The longest operation of each kind, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PieceSizes {
    pub(super) transfer: u32,
    pub(super) zeroes: u32,
    pub(super) discard: u32,
}

impl PieceSizes {
    /// `transfer_bytes`: the longest transfer that both volume and pool allow. Never less than a block.
    pub(super) fn new(geometry: &Geometry, transfer_bytes: usize) -> Self {
        let block = u64::from(geometry.block_bytes.max(1));
        let fit = |bytes: u64| {
            let whole = bytes.min(u64::from(u32::MAX)) / block * block;
            u32::try_from(whole.max(block)).unwrap_or(u32::MAX)
        };
        Self {
            transfer: fit(u64::try_from(transfer_bytes).unwrap_or(u64::MAX)),
            zeroes: fit(geometry.max_zeroes_bytes),
            discard: fit(geometry.max_discard_bytes),
        }
    }
}

/// The next operation of a request. Offsets count from the request's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Read { offset: u32, len: u32 },
    Zeroes { offset: u32, len: u32 },
    Discard { offset: u32, len: u32 },
    Flush,
}

/// A request that was accepted and not yet answered.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) request: Request,
    pub(super) work: Work,
    /// Bytes of the range that operations were made of.
    issued: u32,
    /// Operations that have not ended.
    in_flight: usize,
    /// The first operation that failed.
    pub(super) failure: Option<Failure>,
    /// Whether it stands in its connection's queue of requests that have operations to issue.
    pub(super) queued: bool,
    /// Whether its client is not to be answered any more.
    pub(super) silent: bool,
}

/// What failed, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) error: BlockError,
    /// First byte of the failed operation, from the beginning of the volume.
    pub(super) offset: u64,
}

/// The kinds of requests.
#[derive(Debug)]
pub(super) enum Work {
    /// Each piece is answered by a chunk of its own, as it comes.
    Read,
    /// The pieces are answered in their order, behind one header.
    OrderedRead(Ordered),
    /// The operations are issued as the payload comes.
    Write {
        /// Whether all payload has come.
        arrived: bool,
    },
    Zeroes,
    Trim(FlushAfter),
    Flush,
}

/// Whether a trim is followed by a flush, for FUA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushAfter {
    No,
    Due,
    Issued,
}

/// The pieces of a read that must be answered in order.
#[derive(Debug, Default)]
pub(super) struct Ordered {
    /// Bytes that were handed over for sending.
    sent: u32,
    pub(super) mode: Mode,
    /// By their number modulo [`WINDOW`]: pieces that came and were not handed over; of a whole read also the buffers of those not yet issued.
    held: [Option<Buffer>; WINDOW],
}

/// When the reply to an ordered read begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// It has but one piece, or took no buffer yet.
    #[default]
    Undecided,
    /// When all pieces are there: it took the buffers of all at once.
    Whole,
    /// With the first piece, as soon as nothing else of its connection can come between.
    Streaming,
}

/// The next part of an ordered reply.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) data: Buffer,
    /// Whether the reply's header stands before it.
    pub(super) first: bool,
    /// Whether it is the end of the reply.
    pub(super) last: bool,
}

impl Active {
    pub(super) fn new(request: Request, work: Work) -> Self {
        Self { request, work, issued: 0, in_flight: 0, failure: None, queued: false, silent: false }
    }

    fn rest(&self) -> u32 {
        self.request.length - self.issued
    }

    /// Where the next piece of payload goes, and how long it is at most.
    pub(super) fn next_payload(&self, sizes: &PieceSizes) -> (u32, u32) {
        (self.issued, self.rest().min(sizes.transfer))
    }

    /// Whether another piece may be under way.
    pub(super) fn in_window(&self) -> bool {
        self.in_flight < WINDOW
    }

    /// The next operation to issue, if there is one that may be issued now.
    pub(super) fn next_step(&self, sizes: &PieceSizes) -> Option<Step> {
        if self.failure.is_some() {
            return None;
        }
        let (offset, rest) = (self.issued, self.rest());
        let may = rest > 0 && self.in_window();
        match &self.work {
            Work::Read => may.then(|| Step::Read { offset, len: rest.min(sizes.transfer) }),
            Work::OrderedRead(ordered) => {
                let outstanding = (offset - ordered.sent).div_ceil(sizes.transfer);
                (rest > 0 && (outstanding as usize) < WINDOW).then(|| Step::Read { offset, len: rest.min(sizes.transfer) })
            }
            Work::Write { .. } => None,
            Work::Zeroes => may.then(|| Step::Zeroes { offset, len: rest.min(sizes.zeroes) }),
            Work::Trim(FlushAfter::Due) if rest == 0 && self.in_flight == 0 => Some(Step::Flush),
            Work::Trim(_) => may.then(|| Step::Discard { offset, len: rest.min(sizes.discard) }),
            // A flush has no range: the one operation is what it is.
            Work::Flush => (self.in_flight == 0).then_some(Step::Flush),
        }
    }

    /// An operation on the next `len` bytes was made.
    pub(super) fn issue(&mut self, len: u32) {
        self.issued += len;
        self.in_flight += 1;
    }

    /// The flush that follows a trim was made.
    pub(super) fn issue_flush(&mut self) {
        if let Work::Trim(flush) = &mut self.work {
            *flush = FlushAfter::Issued;
        }
        self.in_flight += 1;
    }

    /// An operation ended.
    pub(super) fn ended(&mut self, offset: u32, result: Result<(), BlockError>) {
        self.in_flight -= 1;
        if let Err(error) = result {
            self.failure.get_or_insert(Failure { error, offset: self.request.offset + u64::from(offset) });
        }
    }

    /// Whether nothing is under way and nothing is left to do, but to answer. Of a flush: asked only after its operation ended.
    pub(super) fn is_finished(&self) -> bool {
        let all = self.failure.is_some() || self.rest() == 0;
        self.in_flight == 0
            && match &self.work {
                Work::Write { arrived } => all && *arrived,
                Work::OrderedRead(ordered) => self.failure.is_some() || ordered.sent == self.request.length,
                Work::Trim(FlushAfter::Due) => self.failure.is_some(),
                Work::Read | Work::Zeroes | Work::Trim(_) | Work::Flush => all,
            }
    }

    /// Keeps a piece of an ordered read until its turn.
    pub(super) fn hold(&mut self, offset: u32, data: Buffer, sizes: &PieceSizes) {
        if let Work::OrderedRead(ordered) = &mut self.work {
            ordered.held[slot(offset, sizes)] = Some(data);
        }
    }

    /// Drops the pieces that will not be sent, for the read failed; how many bytes.
    pub(super) fn drop_held(&mut self) -> usize {
        let Work::OrderedRead(ordered) = &mut self.work else { return 0 };
        ordered.held.iter_mut().filter_map(Option::take).map(|data| data.len()).sum()
    }

    /// An ordered read that has no buffer yet and needs more than one.
    pub(super) fn undecided(&mut self, sizes: &PieceSizes) -> Option<&mut Ordered> {
        let several = self.request.length > sizes.transfer;
        match &mut self.work {
            Work::OrderedRead(ordered) if several && ordered.mode == Mode::Undecided => Some(ordered),
            _ => None,
        }
    }

    /// The lengths of its pieces.
    pub(super) fn pieces(&self, sizes: &PieceSizes) -> impl Iterator<Item = u32> + use<> {
        let (length, transfer) = (self.request.length, sizes.transfer);
        (0..length.div_ceil(transfer)).map(move |number| (length - number * transfer).min(transfer))
    }

    /// The buffer that a whole read took for the piece at `offset`, which is now issued.
    pub(super) fn take_own(&mut self, offset: u32, sizes: &PieceSizes) -> Option<Buffer> {
        match &mut self.work {
            Work::OrderedRead(ordered) if ordered.mode == Mode::Whole => ordered.held[slot(offset, sizes)].take(),
            _ => None,
        }
    }

    /// Whether data of a read are under way or held.
    pub(super) fn reads(&self) -> bool {
        match &self.work {
            Work::Read => self.in_flight > 0,
            Work::OrderedRead(ordered) => self.in_flight > 0 || ordered.held.iter().any(Option::is_some),
            _ => false,
        }
    }

    /// Whether the reply has begun and can tell no error any more.
    pub(super) fn reply_has_begun(&self) -> bool {
        matches!(&self.work, Work::OrderedRead(ordered) if ordered.sent > 0)
    }

    /// The next part of an ordered reply that may leave. `quiet`: no other read of the connection is under way.
    pub(super) fn next_part(&mut self, sizes: &PieceSizes, quiet: bool) -> Option<Part> {
        let all_came = self.rest() == 0 && self.in_flight == 0;
        let Work::OrderedRead(ordered) = &mut self.work else { return None };
        let first = ordered.sent == 0;
        let may = match ordered.mode {
            Mode::Undecided | Mode::Whole => !first || all_came,
            Mode::Streaming => !first || quiet,
        };
        if self.failure.is_some() || !may {
            return None;
        }
        let data = ordered.held[slot(ordered.sent, sizes)].take()?;
        ordered.sent += u32::try_from(data.len()).unwrap_or(u32::MAX);
        Some(Part { data, first, last: ordered.sent == self.request.length })
    }
}

impl Ordered {
    /// Takes over the buffers of all pieces, or starts to stream without them.
    pub(super) fn decide(&mut self, buffers: Option<[Option<Buffer>; WINDOW]>) {
        self.mode = if buffers.is_some() { Mode::Whole } else { Mode::Streaming };
        self.held = buffers.unwrap_or_default();
    }
}

/// The place of a piece among those held.
fn slot(offset: u32, sizes: &PieceSizes) -> usize {
    (offset / sizes.transfer) as usize % WINDOW
}

#[cfg(test)]
mod tests {
    use godwit_memory::{ClassLayout, Layout, Pool};
    use godwit_nbd::{Command, CommandFlags};

    use super::*;

    const SIZES: PieceSizes = PieceSizes { transfer: 4096, zeroes: 8192, discard: 16384 };

    fn active(length: u32, work: Work) -> Active {
        Active::new(Request { cookie: 1, command: Command::Read, flags: CommandFlags::NONE, offset: 512, length }, work)
    }

    #[test]
    fn a_range_is_cut_into_pieces_and_few_are_under_way() {
        let mut read = active(4096 * 5 + 512, Work::Read);
        let mut lens = Vec::new();
        for _ in 0..6 {
            if !read.in_window() {
                assert_eq!(read.next_step(&SIZES), None);
                read.ended(0, Ok(()));
            }
            let Some(Step::Read { offset, len }) = read.next_step(&SIZES) else { panic!("a piece") };
            assert_eq!(offset as usize, lens.len() * 4096);
            read.issue(len);
            lens.push(len);
        }
        assert_eq!(lens, [4096, 4096, 4096, 4096, 4096, 512]);
        for _ in 0..4 {
            assert!(!read.is_finished());
            read.ended(0, Ok(()));
        }
        assert!(read.is_finished());
    }

    #[test]
    fn each_kind_has_its_own_longest_piece() {
        assert_eq!(active(65536, Work::Zeroes).next_step(&SIZES), Some(Step::Zeroes { offset: 0, len: 8192 }));
        assert_eq!(active(65536, Work::Trim(FlushAfter::No)).next_step(&SIZES), Some(Step::Discard { offset: 0, len: 16384 }));
    }

    #[test]
    fn a_trim_with_fua_flushes_after_the_last_discard_ended() {
        let mut trim = active(16384, Work::Trim(FlushAfter::Due));
        trim.issue(16384);
        assert_eq!(trim.next_step(&SIZES), None);
        trim.ended(0, Ok(()));
        assert!(!trim.is_finished());
        assert_eq!(trim.next_step(&SIZES), Some(Step::Flush));
        trim.issue_flush();
        assert_eq!(trim.next_step(&SIZES), None);
        trim.ended(0, Ok(()));
        assert!(trim.is_finished());
    }

    #[test]
    fn a_failed_trim_is_not_flushed() {
        let mut trim = active(512, Work::Trim(FlushAfter::Due));
        trim.issue(512);
        trim.ended(0, Err(BlockError::Io));
        assert_eq!(trim.next_step(&SIZES), None);
        assert!(trim.is_finished());
    }

    #[test]
    fn the_first_failure_counts_and_ends_the_issuing() {
        let mut read = active(16384, Work::Read);
        read.issue(4096);
        read.issue(4096);
        read.ended(4096, Err(BlockError::Media));
        read.ended(0, Err(BlockError::Io));
        assert_eq!(read.failure, Some(Failure { error: BlockError::Media, offset: 512 + 4096 }));
        assert_eq!(read.next_step(&SIZES), None);
        assert!(read.is_finished());
    }

    fn pool() -> Pool {
        Pool::new(&Layout::new(&[ClassLayout { buffer_bytes: 4096, count: 8 }]).unwrap()).unwrap()
    }

    fn piece_came(read: &mut Active, pool: &Pool, number: u8) {
        let mut data = pool.take(4096).unwrap();
        data.fill(number);
        read.ended(u32::from(number) * 4096, Ok(()));
        read.hold(u32::from(number) * 4096, data, &SIZES);
    }

    fn parts(read: &mut Active, quiet: bool) -> Vec<(u8, bool, bool)> {
        std::iter::from_fn(|| read.next_part(&SIZES, quiet)).map(|part| (part.data[0], part.first, part.last)).collect()
    }

    fn ordered(pieces: u32, whole: Option<&Pool>) -> Active {
        let mut read = active(4096 * pieces, Work::OrderedRead(Ordered::default()));
        let buffers = whole.map(|pool| std::array::from_fn(|at| (at < pieces as usize).then(|| pool.take(4096).unwrap())));
        read.undecided(&SIZES).unwrap().decide(buffers);
        read
    }

    #[test]
    fn a_whole_read_is_all_there_before_its_reply_begins() {
        let pool = pool();
        let mut read = ordered(3, Some(&pool));
        for number in 0..3 {
            assert!(read.take_own(number * 4096, &SIZES).is_some());
            read.issue(4096);
        }
        piece_came(&mut read, &pool, 2);
        piece_came(&mut read, &pool, 0);
        assert_eq!(parts(&mut read, true), []);
        assert!(!read.reply_has_begun() && read.reads());
        piece_came(&mut read, &pool, 1);
        assert_eq!(parts(&mut read, false), [(0, true, false), (1, false, false), (2, false, true)]);
        assert!(read.is_finished());
    }

    #[test]
    fn a_streaming_read_begins_with_its_first_piece_when_all_is_quiet() {
        let pool = pool();
        let mut read = ordered(6, None);
        (0..4).for_each(|_| read.issue(4096));
        assert_eq!(read.next_step(&SIZES), None);
        piece_came(&mut read, &pool, 1);
        assert_eq!(parts(&mut read, true), []);
        piece_came(&mut read, &pool, 0);
        assert_eq!(parts(&mut read, false), []);
        assert!(!read.reply_has_begun());
        assert_eq!(parts(&mut read, true), [(0, true, false), (1, false, false)]);
        assert!(read.reply_has_begun());
        assert_eq!(read.next_step(&SIZES), Some(Step::Read { offset: 16384, len: 4096 }));
    }

    #[test]
    fn a_read_that_failed_has_no_parts() {
        let pool = pool();
        let mut read = ordered(2, None);
        (0..2).for_each(|_| read.issue(4096));
        read.ended(0, Err(BlockError::Media));
        piece_came(&mut read, &pool, 1);
        assert_eq!(parts(&mut read, true), []);
        assert!(read.is_finished());
        assert_eq!(read.drop_held(), 4096);
    }

    #[test]
    fn the_pieces_of_a_read_make_up_its_length() {
        let read = active(4096 * 2 + 512, Work::Read);
        assert_eq!(read.pieces(&SIZES).collect::<Vec<_>>(), [4096, 4096, 512]);
    }

    #[test]
    fn piece_sizes_are_whole_blocks_and_never_nothing() {
        let geometry = Geometry {
            size_bytes: 1 << 40,
            block_bytes: 4096,
            optimal_bytes: 4096,
            max_transfer_bytes: 1 << 20,
            max_zeroes_bytes: 1 << 40,
            max_discard_bytes: 0,
            read_only: false,
            can_write_zeroes: true,
            can_discard: false,
            volatile_cache: true,
        };
        let sizes = PieceSizes::new(&geometry, 9000);
        assert_eq!(sizes, PieceSizes { transfer: 8192, zeroes: u32::MAX - 4095, discard: 4096 });
    }
}
