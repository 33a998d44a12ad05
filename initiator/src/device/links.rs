//! Which sockets of a device are to be replaced, and when.

use std::time::{Duration, Instant};

/// A socket that lived shorter than this was not taken by the kernel.
const INFANT: Duration = Duration::from_secs(1);

/// How long to wait after that.
const PAUSE: Duration = Duration::from_millis(100);

/// The sockets of one device, by number.
#[derive(Debug)]
pub(crate) struct Links {
    born: Vec<Instant>,
    /// When which is due to be replaced.
    due: Vec<(Instant, usize)>,
}

impl Links {
    /// So many fresh sockets.
    pub(crate) fn new(count: usize, now: Instant) -> Self {
        Self { born: vec![now; count], due: Vec::new() }
    }

    /// A socket has ended.
    pub(crate) fn ended(&mut self, link: usize, now: Instant) {
        let Some(born) = self.born.get(link) else { return };
        let at = if now.saturating_duration_since(*born) < INFANT { now + PAUSE } else { now };
        self.due.push((at, link));
    }

    /// A socket was replaced.
    pub(crate) fn replaced(&mut self, link: usize, now: Instant) {
        self.born[link] = now;
    }

    /// One that is due to be replaced.
    pub(crate) fn next(&mut self, now: Instant) -> Option<usize> {
        let index = self.due.iter().position(|&(at, _)| at <= now)?;
        Some(self.due.swap_remove(index).1)
    }

    /// When to look again.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.iter().map(|&(at, _)| at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_served_is_replaced_at_once_and_one_that_was_not_taken_after_a_pause() {
        let start = Instant::now();
        let mut links = Links::new(2, start);
        let later = start + Duration::from_secs(60);
        links.ended(1, later);
        assert_eq!((links.next_due(), links.next(later), links.next(later)), (Some(later), Some(1), None));
        links.replaced(1, later);
        let soon = later + Duration::from_millis(1);
        links.ended(1, soon);
        assert_eq!(links.next(soon), None);
        assert_eq!(links.next_due(), Some(soon + PAUSE));
        assert_eq!(links.next(soon + PAUSE), Some(1));
    }
}
