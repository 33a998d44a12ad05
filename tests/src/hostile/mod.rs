//! Hostile peers of both daemons: streams of bytes that no honest peer would send, each made from a seed and its number.
//!
//! A stream gets as far as it likes in an honest way, sends what it likes, and ends as it likes. Whatever it does, a daemon answers with frames that
//! are whole, writes and reads only memory that the stream named, and closes a connection whose other end was closed.

mod alphabet;
mod bystander;
mod capsules;
mod commands;
mod crowd;
mod fpdu;
mod garbage;
mod host;
mod link;
mod nbd;
mod random;
mod segments;
mod socket;
mod supply;
mod tally;
mod victim;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

pub use bystander::Bystander;
pub use crowd::Crowd;
pub use random::Random;
pub use tally::{Milestone, Tally};
pub use victim::{VICTIM_MARK, Victim};

/// Block size of every volume of these tests, in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// What hostile streams are aimed at, and what they may change there.
#[derive(Clone, Debug)]
pub struct Aim {
    /// The target's port.
    pub target: SocketAddr,
    /// The subsystem whose namespace 1 is theirs.
    pub subsystem: String,
    /// Blocks of that namespace, half of which, the first ones, no command names that changes anything.
    pub namespace_blocks: u64,
    /// The initiator's socket.
    pub nbd: PathBuf,
    /// Bytes of its export, half of which, the first ones, no request names that changes anything.
    pub export_bytes: u64,
}

/// What a stream is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any bytes at the target's port, and start-up frames that are not quite right.
    Garbage,
    /// Behind an accepted start-up: segments with a valid CRC and wrong content.
    Segments,
    /// Behind an accepted Connect: capsules with wrong content.
    Capsules,
    /// At the NBD socket.
    Nbd,
}

impl Kind {
    /// What the stream of this number is made of: three in four go to the target, of these a third each.
    pub fn of(number: u64) -> Self {
        match number % 4 {
            0 => Self::Garbage,
            1 => Self::Segments,
            2 => Self::Capsules,
            _ => Self::Nbd,
        }
    }
}

/// Something that a daemon must not do, whatever its peer does.
#[derive(Debug, thiserror::Error)]
pub enum Misbehaviour {
    /// It closed, refused, or did not answer where all was in order.
    #[error("an honest beginning failed at {at}: {error}")]
    Refused {
        /// What was asked for.
        at: &'static str,
        /// What came instead.
        error: io::Error,
    },
    /// It sent something that is no frame of its protocol.
    #[error("the daemon sent garbage: {0}")]
    Garbled(String),
    /// It reached for memory that no command named.
    #[error("the daemon {what} {len} bytes at {address:#x} of {key:#010x}, which nothing named")]
    Overreach {
        /// Read or wrote.
        what: &'static str,
        /// The key.
        key: u32,
        /// The first byte.
        address: u64,
        /// How many.
        len: u64,
    },
    /// It sent bytes of the other volume.
    #[error("the daemon sent bytes of another volume")]
    Leak,
    /// It kept a connection whose other end was closed.
    #[error("the daemon kept a half-closed connection for {0:?}")]
    Kept(std::time::Duration),
}

/// Runs one stream from its beginning to its end.
///
/// # Errors
/// What the daemon did wrong.
pub fn run(aim: &Aim, seed: u64, number: u64, tally: &Tally) -> Result<(), Misbehaviour> {
    let mut random = Random::new(seed, number);
    let progress = &mut tally.stream();
    match Kind::of(number) {
        Kind::Garbage => garbage::run(aim, &mut random, progress),
        Kind::Segments => segments::run(aim, &mut random, progress),
        Kind::Capsules => capsules::run(aim, &mut random, progress),
        Kind::Nbd => nbd::run(aim, &mut random, progress),
    }
}
