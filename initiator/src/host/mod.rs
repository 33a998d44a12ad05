//! The NVMe over RDMA host: one volume on the queues of a target, across reconnects.
//!
//! A volume has a [`VolumeControl`] on one reactor thread, with the admin queue, and an [`IoQueue`] on each thread that serves it. A [`VolumeThread`] is
//! what one thread has of a volume, and the only thing that the thread's loop sees.

mod admin;
mod bringup;
mod discover;
mod error;
mod fence;
mod identity;
mod io_queue;
mod ledger;
mod message;
mod namespace;
mod operation;
mod queue;
mod reconnect;
mod retain;
mod retry;
mod shutdown;
mod slots;
mod status;
mod thread;
mod volume;

use godwit_reactor::Token;

pub use bringup::Names;
pub use discover::{Discovery, DiscoveryLog, DiscoverySettings};
pub use error::HostError;
pub use identity::{IdentityChange, VolumeIdentity};
pub use io_queue::IoQueue;
pub use ledger::Uncounted;
pub use message::{FromQueue, Mailbox, ToQueue, VolumeEvent, VolumeInfo};
pub use queue::Endpoint;
pub(crate) use queue::in_words;
pub use reconnect::LossTimeout;
pub use status::{ControlStatus, Flow, Latency, QueueStatus, VolumeState, VolumeStatus};
pub use thread::VolumeThread;
pub use volume::{Address, Resolver, VolumeControl, VolumeSettings};

use io_queue::QueueTimer;
use volume::ControlTimer;

/// Reactor tokens of one volume on one thread. All have bit 62 set and bit 63, the fabric's, clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSpace {
    volume: u32,
}

const HOST: u64 = 1 << 62;
const TIMER_BITS: u32 = 8;
const CONTROL: u64 = 1 << 4;

/// A timer of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VolumeTimer {
    Control(ControlTimer),
    Queue(QueueTimer),
}

const CONTROL_TIMERS: [ControlTimer; ControlTimer::COUNT] = [
    ControlTimer::Attempt,
    ControlTimer::State,
    ControlTimer::Script,
    ControlTimer::KeepAlive,
    ControlTimer::Loss,
    ControlTimer::FailFast,
    ControlTimer::Probe,
];
const QUEUE_TIMERS: [QueueTimer; 3] = [QueueTimer::Link, QueueTimer::Watch, QueueTimer::Retry];

impl TokenSpace {
    /// The tokens of a volume, by its number among those of the process.
    pub const fn new(volume: u32) -> Self {
        Self { volume }
    }

    /// The number of the volume whose own a token is.
    #[expect(clippy::cast_possible_truncation, reason = "the field is cut out of the token as it was put together")]
    pub fn volume_of(token: Token) -> Option<u32> {
        let above = TIMER_BITS + u32::BITS;
        (token.0 >> above == HOST >> above).then_some((token.0 >> TIMER_BITS) as u32)
    }

    fn token(self, timer: u64) -> Token {
        Token(HOST | u64::from(self.volume) << TIMER_BITS | timer)
    }

    fn control(self, timer: ControlTimer) -> Token {
        self.token(CONTROL | timer as u64)
    }

    fn queue(self, timer: QueueTimer) -> Token {
        self.token(timer as u64)
    }

    /// Which timer of this volume a token names, if it names one.
    fn timer(self, token: Token) -> Option<VolumeTimer> {
        let control = CONTROL_TIMERS.into_iter().find(|&timer| self.control(timer) == token).map(VolumeTimer::Control);
        control.or_else(|| QUEUE_TIMERS.into_iter().find(|&timer| self.queue(timer) == token).map(VolumeTimer::Queue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_timer_of_each_volume_has_a_token_of_its_own() {
        let spaces = [TokenSpace::new(0), TokenSpace::new(u32::MAX)];
        for space in spaces {
            for timer in CONTROL_TIMERS {
                assert_eq!(space.timer(space.control(timer)), Some(VolumeTimer::Control(timer)));
                assert_eq!(TokenSpace::volume_of(space.control(timer)), Some(space.volume));
            }
            for timer in QUEUE_TIMERS {
                let token = space.queue(timer);
                assert_eq!(token.0 >> 62, 1);
                assert_eq!(space.timer(token), Some(VolumeTimer::Queue(timer)));
                assert_eq!(spaces.into_iter().filter(|space| space.timer(token).is_some()).count(), 1);
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/mod.rs"]
mod engine_tests;
