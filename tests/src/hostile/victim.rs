//! The honest client beside hostile ones: what it wrote is what it reads, all the time.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use godwit_nbd::client::{self, OptionReply, Reply};
use godwit_nbd::wire::HandshakeFlags;
use godwit_nbd::{Command, CommandFlags, Errno, OptionCode, Request};

use super::socket::PATIENCE;
use super::{BLOCK_BYTES, Random};

/// In every eight bytes of a victim's, in the middle: what no other volume holds.
pub const VICTIM_MARK: &[u8] = b"\xfeViC";

/// The most blocks of one request.
const MOST_BLOCKS: usize = 64;

/// A client with a range of blocks of its own.
#[derive(Debug)]
pub struct Victim {
    stream: UnixStream,
    random: Random,
    /// The first block of its range.
    first: u64,
    /// Which version of each block it wrote last.
    versions: Vec<u32>,
    cookie: u64,
    /// Requests that were answered.
    pub operations: u64,
    /// The longest that an answer took.
    pub longest: Duration,
}

/// What went wrong for an honest client.
#[derive(Debug, thiserror::Error)]
pub enum Harm {
    /// Its connection failed.
    #[error("the connection failed: {0}")]
    Connection(#[from] io::Error),
    /// An answer is no answer.
    #[error("{0}")]
    Garbled(#[from] client::Garbled),
    /// Something was refused.
    #[error("{what} was refused: {errno}")]
    Refused {
        /// What.
        what: String,
        /// Why.
        errno: String,
    },
    /// A block is not what was written.
    #[error("block {block} is not version {version}; it begins with {found:02x?}")]
    Changed {
        /// Which.
        block: u64,
        /// What was written last.
        version: u32,
        /// What is there.
        found: [u8; 16],
    },
}

/// What a block holds in a version.
pub(super) fn content(block: u64, version: u32) -> Vec<u8> {
    let mut random = Random::new(block, version.into());
    let mut bytes = Vec::with_capacity(BLOCK_BYTES);
    while bytes.len() < BLOCK_BYTES {
        let [a, b, c, d, ..] = random.long().to_le_bytes();
        bytes.extend([a, b]);
        bytes.extend(VICTIM_MARK);
        bytes.extend([c, d]);
    }
    bytes
}

impl Victim {
    /// Connects, and writes every one of `blocks` blocks from block `first` on.
    ///
    /// # Errors
    /// Harm.
    pub fn start(socket: &Path, seed: u64, first: u64, blocks: usize) -> Result<Self, Harm> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut victim = Self {
            stream,
            random: Random::new(seed, first),
            first,
            versions: vec![0; blocks],
            cookie: 0,
            operations: 0,
            longest: Duration::ZERO,
        };
        victim.negotiate()?;
        for start in (0..blocks).step_by(MOST_BLOCKS) {
            victim.write(start, MOST_BLOCKS.min(blocks - start))?;
        }
        Ok(victim)
    }

    fn negotiate(&mut self) -> Result<(), Harm> {
        let mut greeting = [0; 18];
        self.stream.read_exact(&mut greeting)?;
        client::greeting(&greeting)?;
        self.stream.write_all(&client::flags(HandshakeFlags(3)))?;
        self.stream.write_all(&client::info(OptionCode::GO, "", &[]))?;
        let mut bytes = Vec::new();
        loop {
            let Some((len, reply)) = OptionReply::parse(&bytes)? else {
                let mut byte = [0];
                self.stream.read_exact(&mut byte)?;
                bytes.extend(byte);
                continue;
            };
            bytes.drain(..len);
            if reply.reply.is_error() {
                return Err(Harm::Refused { what: "GO".to_owned(), errno: reply.reply.to_string() });
            }
            if reply.is_final() {
                return Ok(());
            }
        }
    }

    /// Does one thing: writes, reads, or flushes.
    ///
    /// # Errors
    /// Harm.
    pub fn step(&mut self) -> Result<(), Harm> {
        let count = self.random.count(1, MOST_BLOCKS.min(self.versions.len()));
        let start = self.random.count(0, self.versions.len() - count);
        match self.random.below(16) {
            0 => self.request(Command::Flush, 0, 0, &[]).map(drop),
            1..=7 => self.write(start, count),
            _ => self.check(start, count),
        }
    }

    /// Reads everything.
    ///
    /// # Errors
    /// Harm.
    pub fn check_all(&mut self) -> Result<(), Harm> {
        for start in (0..self.versions.len()).step_by(MOST_BLOCKS) {
            self.check(start, MOST_BLOCKS.min(self.versions.len() - start))?;
        }
        Ok(())
    }

    fn write(&mut self, start: usize, count: usize) -> Result<(), Harm> {
        let mut data = Vec::with_capacity(count * BLOCK_BYTES);
        for index in start..start + count {
            self.versions[index] += 1;
            data.extend(content(self.first + index as u64, self.versions[index]));
        }
        self.request(Command::Write, start, count, &data).map(drop)
    }

    fn check(&mut self, start: usize, count: usize) -> Result<(), Harm> {
        let data = self.request(Command::Read, start, count, &[])?;
        for (index, found) in (start..).zip(data.chunks_exact(BLOCK_BYTES)) {
            let (block, version) = (self.first + index as u64, self.versions[index]);
            if found != content(block, version) {
                let found = found[..16].try_into().expect("sixteen bytes");
                return Err(Harm::Changed { block, version, found });
            }
        }
        Ok(())
    }

    fn request(&mut self, command: Command, start: usize, count: usize, data: &[u8]) -> Result<Vec<u8>, Harm> {
        self.cookie += 1;
        let length = u32::try_from(count * BLOCK_BYTES).expect("a short request");
        let offset = if count == 0 { 0 } else { (self.first + start as u64) * BLOCK_BYTES as u64 };
        let request = Request { cookie: self.cookie, command, flags: CommandFlags::NONE, offset, length };
        let started = Instant::now();
        self.stream.write_all(&client::request(&request))?;
        self.stream.write_all(data)?;
        let mut reply = vec![0; 16];
        self.stream.read_exact(&mut reply)?;
        let failed = Reply::parse(&reply, |_| 0)?.map_or(Errno::EIO, |(_, reply)| reply.errno());
        if failed != Errno::OK {
            return Err(Harm::Refused { what: format!("{request:?}"), errno: failed.to_string() });
        }
        let mut data = vec![0; if command == Command::Read { length as usize } else { 0 }];
        self.stream.read_exact(&mut data)?;
        self.longest = self.longest.max(started.elapsed());
        self.operations += 1;
        Ok(data)
    }
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} operations, the slowest in {:.1?}", self.operations, self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_of_each_block_is_another_and_bears_the_mark() {
        assert_ne!(content(1, 1), content(1, 2));
        assert_ne!(content(1, 1), content(2, 1));
        assert_eq!(content(3, 4).len(), BLOCK_BYTES);
        assert!(content(3, 4).chunks(8).all(|word| word[2..6] == *VICTIM_MARK));
    }
}
