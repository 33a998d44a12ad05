//! A host that connects as it should, and then does nothing but keep alive.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use godwit_nvme::{Cid, Sqe};

use super::host::{self, Host};
use super::link::Link;
use super::{Aim, BLOCK_BYTES, Misbehaviour, Random, Tally};

/// Such a host: an admin queue, and an I/O queue.
#[derive(Debug)]
pub struct Bystander {
    admin: Link,
    _io: Link,
    next_cid: u16,
}

impl Bystander {
    /// Connections that each has.
    pub const CONNECTIONS: usize = 2;

    /// Connects to a subsystem with an I/O queue of `entries`. The target has to insist on CRC. `number` tells it from others.
    ///
    /// # Errors
    ///
    /// What the target did wrong.
    pub fn connect(target: SocketAddr, subsystem: &str, entries: u32, number: u64) -> Result<Self, Misbehaviour> {
        let nowhere = PathBuf::new();
        let aim = Aim { target, subsystem: subsystem.to_owned(), namespace_blocks: BLOCK_BYTES as u64, nbd: nowhere, export_bytes: 0 };
        let (random, tally) = (&mut Random::new(number, 0), Tally::default());
        let progress = &mut tally.stream();
        let host = Host::new(&aim, random);
        let (mut admin, cntlid) = host::connect_admin(&aim, &host, random, progress)?;
        host::enable(random, &mut admin, progress)?;
        let io = host::connect_io(&aim, &host, random, cntlid, entries, progress)?;
        Ok(Self { admin, _io: io, next_cid: 0 })
    }

    /// Says that it is still there; how long the answer took.
    ///
    /// # Errors
    ///
    /// What the target did wrong.
    pub fn keep_alive(&mut self) -> Result<Duration, Misbehaviour> {
        let tally = Tally::default();
        self.next_cid = self.next_cid.wrapping_add(1);
        let begin = Instant::now();
        let cqe = self.admin.command("Keep Alive", &Sqe::keep_alive(Cid::new(self.next_cid)), &[], &[], &mut tally.stream())?;
        let elapsed = begin.elapsed();
        if cqe.status().is_success() {
            return Ok(elapsed);
        }
        Err(Misbehaviour::Refused { at: "Keep Alive", error: std::io::Error::other(cqe.status().to_string()) })
    }
}
