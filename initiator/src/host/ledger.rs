//! What has been acknowledged and is not known to be on stable storage: so that no flush succeeds over writes that a power cut has taken.
//!
//! A target that loses its power forgets writes that it has acknowledged and not flushed, and the next flush, which finds nothing to do, would succeed. The
//! target counts such ends of its machine (Unsafe Shutdowns of the SMART log). On each association the count is read before any operation is sent. When it
//! differs from that of the last association that was live, whatever was exposed is taken for lost: it is either written again from retained copies, or
//! else the next flush or forced write of every client fails, once for each client and loss.
//!
//! # What is exposed
//!
//! A change (Write, Write Zeroes) is *acknowledged* when its success is given to the front end, and *covered* when a flush succeeded that was sent after
//! that. Each queue numbers its acknowledgements. A flush, when it is sent, takes down how far every queue has come; when it succeeds, all that is covered.
//! The order is what makes it sound: a number is taken after the target has completed the change, and read before the flush is sent; so the target has
//! seen the end of every change that the flush is taken to cover. A number that is read too late, for it is another thread's, leaves a change exposed
//! that is not: that errs on the safe side. The numbers of several queues are not read at one moment, so that a flush may be taken to cover a change and
//! not an older one on another queue. To a copy that would matter, for it would be written over the newer change; so copies are let go only if they were also
//! acknowledged, by the time of their turn, before the turn in which the flush was sent: what is older than one of these was acknowledged, and its number
//! stored, before any number was read. A flush that is sent again, on whatever association, takes the numbers down again. A forced change (FUA) is
//! not exposed, nor is one that the target failed. Discards leave what a block holds undefined, and may be undone. Without a volatile write cache at the
//! target nothing is exposed at all.
//!
//! # When the count is read
//!
//! After every queue of the old association is down: what it may still answer is ignored, so nothing more is acknowledged that the old machine did. Before
//! any operation is sent on the new one: what was under way is sent again after the count was read, so that it is there however the count stands. Should the
//! power fail after the reading, the connections fail with it, and the next association reads the count again. The count to compare with is replaced only
//! when the association is live and all that follows from the difference was done. So attempts that end half-way, and a target that restarts twice, change
//! nothing: any difference counts, whatever its size and sign. A flush that was under way when the power failed is sent again and succeeds over nothing; it
//! fails at the front end, for the loss is on record before anything is sent.
//!
//! # Whom a loss is told
//!
//! Each NBD connection, by the next flush or FUA that it is answered; later ones mean what they say again, for what was lost has been told, as Linux
//! does for `fsync` of a file. Nobody knows whether two connections belong to one user, so each is told. A connection that is made later is told as well if
//! nobody was yet, and has gone on to another flush or FUA since: the kernel may have had to replace the connections of a device meanwhile, and an answer may be
//! lost with its connection (see [`Losses`](crate::block::Losses)).
//!
//! # Retained copies
//!
//! With `retain`, each queue keeps copies of what it acknowledged in a ring of fixed size (module `retain`), until it is covered. A change that finds no
//! room is not acknowledged before a flush of our own has made some. After a loss, before operations go on, all copies are written again, in the order
//! of their acknowledgements over all queues: of two changes of a block, the second was submitted after the first was acknowledged, if their user
//! cares for their order at all. The time of the turn in which an acknowledgement was taken tells the order between queues: the turn in which the second
//! was acknowledged began after its answer had come, thus after it was sent, thus after the end of the turn in which the first was acknowledged; and
//! reactors share one clock. Forced changes are kept too, or an older copy would be written over them, and so are discards, or what was read as gone would come
//! back. Copies stay
//! in the ring until they are covered, so that a second loss, even amid the writing, finds all of them. The copies that were written may reach the target
//! late as any change may, so the fence waits for them as for any change.
//!
//! If copies cannot be written again, or a flush of our own fails, so that copies had to be let go, the loss is told as without copies.
//!
//! # Targets that do not count
//!
//! Many report zero for ever, or have no SMART log. Then nothing tells a power cut from a torn connection. `trust` takes every return of such a target for
//! harmless: what Linux does. `fail` takes every return for a loss of what was exposed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use godwit_reactor::Time;

use crate::block::Losses;

/// What is made of the return of a target that does not count unsafe shutdowns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Uncounted {
    /// Nothing was lost.
    #[default]
    Trust,
    /// Whatever was acknowledged and not flushed was lost.
    Fail,
}

impl Uncounted {
    /// Whether writes may have been lost between two readings of the count; `None` where it could not be read.
    pub(crate) fn may_have_lost(self, was: Option<u128>, is: Option<u128>) -> bool {
        match (was, is) {
            // Zero may also be that of a target that counts, and has not had any yet.
            (None | Some(0), None | Some(0)) => self == Self::Fail,
            (was, is) => was != is,
        }
    }
}

/// The changes of all queues of a volume.
#[derive(Debug)]
pub(crate) struct Ledger {
    queues: Box<[Page]>,
    /// The last turn in which a flush was sent that has succeeded.
    covered_until: AtomicU64,
    losses: Losses,
}

/// One queue's. The queue's own thread alone numbers acknowledgements; any thread's flush may cover them.
#[derive(Debug)]
#[repr(align(128))]
struct Page {
    /// How many changes were acknowledged.
    acknowledged: AtomicU64,
    /// The number of the last one that was not forced.
    last_volatile: AtomicU64,
    /// Up to which they are covered.
    covered: AtomicU64,
    /// Whether a copy is retained of every one that is not covered.
    retained: AtomicBool,
}

impl Ledger {
    /// Of a volume with so many queues.
    pub(crate) fn new(queues: usize) -> Self {
        let page = || Page {
            acknowledged: AtomicU64::new(0),
            last_volatile: AtomicU64::new(0),
            covered: AtomicU64::new(0),
            retained: AtomicBool::new(true),
        };
        Self { queues: (0..queues).map(|_| page()).collect(), covered_until: AtomicU64::new(0), losses: Losses::default() }
    }

    /// How many queues there are.
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// The losses that clients are to be told.
    pub(crate) fn losses(&self) -> &Losses {
        &self.losses
    }

    /// Numbers a change that is now acknowledged.
    pub(crate) fn acknowledge(&self, queue: usize, forced: bool) -> u64 {
        let page = &self.queues[queue];
        let number = page.acknowledged.load(Ordering::Relaxed) + 1;
        if !forced {
            page.last_volatile.store(number, Ordering::Release);
        }
        page.acknowledged.store(number, Ordering::Release);
        number
    }

    /// Takes down how far every queue has come. Before a flush is sent.
    pub(crate) fn take_down(&self, numbers: &mut [u64]) {
        for (number, page) in numbers.iter_mut().zip(&self.queues) {
            *number = page.acknowledged.load(Ordering::Acquire);
        }
    }

    /// A flush has succeeded that was sent after these numbers were taken down, in this turn.
    pub(crate) fn cover(&self, numbers: &[u64], sent_at: Time) {
        for (&number, page) in numbers.iter().zip(&self.queues) {
            page.covered.fetch_max(number, Ordering::AcqRel);
        }
        // After the numbers, as it is read before them.
        self.covered_until.fetch_max(sent_at.as_nanos(), Ordering::AcqRel);
    }

    /// Which copies of a queue may be let go: those of numbers up to this one that were acknowledged up to this turn.
    pub(crate) fn settled(&self, queue: usize) -> (u64, Time) {
        let until = Time::from_nanos(self.covered_until.load(Ordering::Acquire));
        (self.covered(queue), until)
    }

    /// Up to which number a queue's changes are covered.
    pub(crate) fn covered(&self, queue: usize) -> u64 {
        self.queues[queue].covered.load(Ordering::Acquire)
    }

    /// How many changes of a queue were acknowledged.
    pub(crate) fn acknowledged(&self, queue: usize) -> u64 {
        self.queues[queue].acknowledged.load(Ordering::Acquire)
    }

    /// Whether a power cut at the target would lose anything. For the control, while all queues are down.
    pub(crate) fn is_exposed(&self) -> bool {
        self.queues.iter().any(|page| page.last_volatile.load(Ordering::Acquire) > page.covered.load(Ordering::Acquire))
    }

    /// What was exposed is lost: every client will be told, and then it is forgotten. For the control, while all queues are down.
    pub(crate) fn lose(&self, now: Time) {
        for page in &self.queues {
            page.covered.store(page.acknowledged.load(Ordering::Acquire), Ordering::Release);
        }
        self.covered_until.fetch_max(now.as_nanos(), Ordering::AcqRel);
        self.losses.add();
    }

    /// Whether copies of all that is exposed are retained.
    pub(crate) fn is_retained(&self) -> bool {
        self.queues.iter().all(|page| page.retained.load(Ordering::Acquire))
    }

    /// Says whether a queue retains copies of all that is exposed.
    pub(crate) fn set_retained(&self, queue: usize, retained: bool) {
        self.queues[queue].retained.store(retained, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flush(ledger: &Ledger) {
        let mut numbers = vec![0; ledger.queues()];
        ledger.take_down(&mut numbers);
        ledger.cover(&numbers, Time::default());
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_on_any_queue_before_it_was_sent() {
        let ledger = Ledger::new(2);
        assert!(!ledger.is_exposed());
        ledger.acknowledge(0, false);
        ledger.acknowledge(1, false);
        assert!(ledger.is_exposed());
        let mut numbers = [0; 2];
        ledger.take_down(&mut numbers);
        ledger.acknowledge(1, false);
        ledger.cover(&numbers, Time::default());
        assert!(ledger.is_exposed(), "the last one came too late for it");
        flush(&ledger);
        assert!(!ledger.is_exposed());
        ledger.cover(&numbers, Time::default());
        assert_eq!(ledger.covered(1), 2, "an older flush that ends later takes nothing back");
    }

    #[test]
    fn a_copy_is_let_go_only_with_all_that_are_older() {
        let at = |nanos| Time::from_nanos(nanos);
        let ledger = Ledger::new(2);
        // The number of queue 0 is read, then both queues acknowledge, one after the other, and then that of queue 1 is read.
        let mut numbers = [0; 2];
        ledger.take_down(&mut numbers[..1]);
        let older = (ledger.acknowledge(0, false), at(20));
        let newer = (ledger.acknowledge(1, false), at(30));
        let mut both = [0; 2];
        ledger.take_down(&mut both);
        numbers[1] = both[1];
        ledger.cover(&numbers, at(10));
        let is_settled = |queue, (number, acknowledged_at)| {
            let (covered, until) = ledger.settled(queue);
            number <= covered && acknowledged_at <= until
        };
        assert_eq!(ledger.covered(1), newer.0);
        assert!(!is_settled(0, older) && !is_settled(1, newer), "the newer one stays, for the older one does");
        ledger.cover(&both, at(40));
        assert!(is_settled(0, older) && is_settled(1, newer));
    }

    #[test]
    fn what_was_forced_is_not_exposed_and_covers_nothing() {
        let ledger = Ledger::new(1);
        ledger.acknowledge(0, true);
        assert!(!ledger.is_exposed());
        ledger.acknowledge(0, false);
        ledger.acknowledge(0, true);
        assert!(ledger.is_exposed());
    }

    #[test]
    fn a_loss_is_told_to_each_client_once() {
        let ledger = Ledger::new(1);
        let [mut first, mut second] = [(); 2].map(|()| ledger.losses().watch());
        assert!(!first.tell(ledger.losses()));
        ledger.acknowledge(0, false);
        ledger.lose(Time::default());
        assert!(!ledger.is_exposed());
        let mut late = ledger.losses().watch();
        assert!(first.tell(ledger.losses()));
        assert!(ledger.losses().watch().tell(ledger.losses()), "the answer to the first may not have arrived");
        assert!(!first.tell(ledger.losses()), "it goes on");
        assert!(second.tell(ledger.losses()));
        assert!(late.tell(ledger.losses()), "nobody had been told when it came");
        assert!(!ledger.losses().watch().tell(ledger.losses()), "when this one came, others had been");
        ledger.lose(Time::default());
        assert!(first.tell(ledger.losses()) && second.tell(ledger.losses()));
    }

    #[test]
    fn any_difference_of_the_count_is_a_loss() {
        for policy in [Uncounted::Trust, Uncounted::Fail] {
            let lost = |was, is| policy.may_have_lost(was, is);
            assert!(!lost(Some(5), Some(5)));
            assert!(lost(Some(5), Some(6)) && lost(Some(5), Some(7)) && lost(Some(6), Some(5)));
            assert!(lost(Some(0), Some(1)) && lost(Some(1), Some(0)));
            assert!(lost(Some(5), None) && lost(None, Some(5)));
        }
    }

    #[test]
    fn a_target_that_does_not_count_is_trusted_or_not() {
        for (was, is) in [(None, None), (Some(0), Some(0)), (None, Some(0)), (Some(0), None)] {
            assert!(!Uncounted::Trust.may_have_lost(was, is));
            assert!(Uncounted::Fail.may_have_lost(was, is));
        }
    }
}
