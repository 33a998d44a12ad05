//! How many streams got how far.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! milestones {
    ($($(#[$doc:meta])* $name:ident => $words:literal,)*) => {
        /// How far a stream got. One stream reaches several.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Milestone {
            $($(#[$doc])* $name,)*
        }

        impl Milestone {
            /// Every one, in the order in which streams reach them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            const fn words(self) -> &'static str {
                match self {
                    $(Self::$name => $words,)*
                }
            }
        }
    };
}

milestones! {
    /// TCP connection to the target, and no more than bytes of its own.
    TcpOnly => "target: TCP only",
    /// A start-up frame that the target refused in words.
    StartupRejected => "target: start-up rejected with a reason",
    /// MPA start-up accepted.
    StartupAccepted => "target: MPA start-up accepted",
    /// A Terminate came back.
    Terminated => "target: answered with a Terminate",
    /// Connect of an admin queue.
    AdminConnected => "target: admin queue connected",
    /// A controller enabled and ready.
    Enabled => "target: controller enabled",
    /// Connect of an I/O queue.
    IoConnected => "target: I/O queue connected",
    /// A hostile command was completed with success.
    CommandSucceeded => "target: hostile command done",
    /// A hostile command was completed with an error.
    CommandRefused => "target: hostile command refused",
    /// The target asked for data of a hostile write.
    DataAskedFor => "target: RDMA Read asked for",
    /// The target sent data of a hostile read.
    DataWritten => "target: RDMA Write received",
    /// Unix connection to the initiator.
    NbdConnected => "NBD: greeted",
    /// An option was answered.
    NbdOptions => "NBD: option answered",
    /// Transmission.
    NbdTransmission => "NBD: transmission",
    /// A request was answered with success.
    NbdSucceeded => "NBD: hostile request done",
    /// A request was answered with an error.
    NbdRefused => "NBD: hostile request refused",
    /// The stream's end was half-closed, and the daemon closed the other half.
    Closed => "both: closed by the daemon after our half",
}

/// Streams by milestone.
#[derive(Debug, Default)]
pub struct Tally {
    counts: [AtomicU64; Milestone::ALL.len()],
}

impl Tally {
    /// How many got there.
    pub fn of(&self, milestone: Milestone) -> u64 {
        self.counts[milestone as usize].load(Ordering::Relaxed)
    }

    /// The milestones of one more stream.
    pub(super) const fn stream(&self) -> Progress<'_> {
        Progress { tally: self, reached: 0 }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &milestone in Milestone::ALL {
            writeln!(f, "{:7} {}", self.of(milestone), milestone.words())?;
        }
        Ok(())
    }
}

/// How far one stream got.
#[derive(Debug)]
pub(super) struct Progress<'a> {
    tally: &'a Tally,
    reached: u32,
}

impl Progress<'_> {
    /// It got there; the first time counts.
    pub(super) fn reach(&mut self, milestone: Milestone) {
        let bit = 1 << milestone as u32;
        if self.reached & bit == 0 {
            self.reached |= bit;
            self.tally.counts[milestone as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
}
