//! What follows when the target has lost acknowledged writes: copies are written again, or clients are told. The argument is in the module `ledger`.

use std::time::SystemTime;

use godwit_reactor::{Reactor, Time};
use tracing::{info, warn};

use super::{State, VolumeControl};
use crate::block::BlockError;
use crate::host::message::{Order, ToQueue};

/// After everything that was ever acknowledged.
const END: Time = Time::from_nanos(u64::MAX);

impl VolumeControl {
    /// All queues have joined, and nothing is sent yet. Whether copies are written again first.
    pub(super) fn check_lost_writes(&mut self, now: Time) -> bool {
        let Some(session) = &self.session else { return false };
        let (was, is) = (self.unsafe_shutdowns, session.unsafe_shutdowns);
        if self.volume.is_none() {
            // What an earlier process had acknowledged is not in this ledger.
            if was.is_some() && self.settings.uncounted.may_have_lost(was, is) {
                self.tell_of_loss(now, &how(was, is));
            }
            return false;
        }
        if !self.settings.uncounted.may_have_lost(was, is) || !self.ledger.is_exposed() {
            return false;
        }
        if self.settings.retain_bytes == 0 || !self.ledger.is_retained() {
            self.tell_of_loss(now, &how(was, is));
            return false;
        }
        info!(volume = self.settings.name, "{}: writing acknowledged writes again from their copies", how(was, is));
        self.state = State::Restoring { next: vec![None; self.io_queues] };
        // Nothing is so old: each queue only tells what it has.
        self.order_all(|association| Order::Restore(association, Time::default()));
        true
    }

    fn tell_of_loss(&self, now: Time, how: &str) {
        let text = format!("{how}, and acknowledged writes were not flushed: the next flush or forced write of each client fails");
        warn!(volume = self.settings.name, "{text}");
        self.ledger.lose(now);
        self.settings.status.update(|status| {
            status.losses += 1;
            status.last_loss = Some((SystemTime::now(), text));
        });
    }

    pub(super) fn on_restored<R: Reactor>(&mut self, reactor: &mut R, queue: usize, told: Option<Time>) {
        let State::Restoring { next } = &mut self.state else { return };
        next[queue] = Some(told);
        let Some(known) = next.iter().copied().collect::<Option<Vec<_>>>() else { return };
        match turn(&known) {
            Some((queue, until)) => {
                next[queue] = None;
                self.queues[queue].send(ToQueue(Order::Restore(self.association, until)));
            }
            None => {
                info!(volume = self.settings.name, "every write whose copy was retained is written again");
                self.settings.status.update(|status| {
                    status.restorations += 1;
                    let text = "the target lost acknowledged writes; they were written again from their copies";
                    status.last_loss = Some((SystemTime::now(), text.to_owned()));
                });
                self.go_live(reactor);
            }
        }
    }

    /// The one queue that was writing has ended: the others wait for their turn.
    pub(super) fn on_not_restored<R: Reactor>(&mut self, reactor: &mut R, error: BlockError) {
        if matches!(self.state, State::Restoring { .. }) {
            self.tell_of_loss(reactor.now(), &format!("copies of lost writes cannot be written again ({error})"));
            self.go_live(reactor);
        }
    }
}

/// Whose turn it is to write copies, and up to which time: the one with the oldest, as long as no other has an older one.
fn turn(next: &[Option<Time>]) -> Option<(usize, Time)> {
    let mut by_age: Vec<_> = next.iter().enumerate().filter_map(|(queue, at)| Some(((*at)?, queue))).collect();
    by_age.sort_unstable();
    let &(_, queue) = by_age.first()?;
    Some((queue, by_age.get(1).map_or(END, |&(at, _)| at)))
}

fn how(was: Option<u128>, is: Option<u128>) -> String {
    let count = |count: Option<u128>| count.map_or_else(|| "none".to_owned(), |count| count.to_string());
    if was == is || was.unwrap_or(0) == is.unwrap_or(0) {
        return "the target does not count unsafe shutdowns, and may have had one".to_owned();
    }
    format!("the target's count of unsafe shutdowns went from {} to {}", count(was), count(is))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> Time {
        Time::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn the_queue_with_the_oldest_copy_writes_as_long_as_no_other_has_an_older_one() {
        assert_eq!(turn(&[Some(at(5)), Some(at(3)), None, Some(at(9))]), Some((1, at(5))));
        assert_eq!(turn(&[None, Some(at(3))]), Some((1, END)));
        assert_eq!(turn(&[Some(at(3)), Some(at(3))]), Some((0, at(3))), "one of two that are equally old must go on");
        assert_eq!(turn(&[None, None]), None);
    }

    #[test]
    fn a_loss_is_told_with_its_reason() {
        assert_eq!(how(Some(5), Some(6)), "the target's count of unsafe shutdowns went from 5 to 6");
        assert_eq!(how(Some(5), None), "the target's count of unsafe shutdowns went from 5 to none");
        assert!(how(None, Some(0)).starts_with("the target does not count"));
    }
}
