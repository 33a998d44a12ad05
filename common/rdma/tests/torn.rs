//! Connections that are torn at any moment under mixed traffic: every buffer comes back once, and what arrives is what was sent.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use std::collections::BTreeMap;

use godwit_rdma::{Access, Completion, QpConfig, Remote, Rkey, WorkId};
use support::{HOST, Machines, Pair, Simulator, TARGET, config, on_both, pattern};

on_both!(whatever_was_posted_comes_back_once_however_the_connection_ends);

const LENGTHS: [usize; 9] = [1, 3, 100, 4095, 4096, 8192, 61_441, 262_144, 300_000];

/// How a connection is torn.
#[derive(Clone, Copy, Debug)]
enum End {
    HostDestroys,
    TargetDestroys,
    HostDisconnects,
    TargetDisconnects,
}

/// What the host lends at the moment, and with what it is or will be filled.
struct Lent {
    remote: Remote,
    len: usize,
    seed: u8,
}

struct Traffic<M: Machines> {
    pair: Pair<M>,
    next_id: u64,
    /// Posted by either side and not come back; for a read, the key of the region that it fetches.
    posted: [BTreeMap<u64, Option<u32>>; 2],
    lent: BTreeMap<u32, Lent>,
    ended: [bool; 2],
    finished: u64,
}

impl<M: Machines> Traffic<M> {
    fn new(seed: u64) -> Self {
        let crc = seed.is_multiple_of(2);
        let pair = Pair::greeted(seed, &QpConfig { crc, regions: 4, outbound_reads: 2, inbound_reads: 2, ..config() });
        let (posted, lent) = ([BTreeMap::new(), BTreeMap::new()], BTreeMap::new());
        Self { pair, next_id: 1, posted, lent, ended: [false; 2], finished: 0 }
    }

    fn draw(&mut self, bound: usize) -> usize {
        usize::try_from(self.pair.net.random.below(bound as u64)).unwrap()
    }

    /// Posts something at random, if there is room and memory for it.
    fn post(&mut self) {
        let (len, seed) = (LENGTHS[self.draw(LENGTHS.len())], u8::try_from(self.draw(256)).unwrap());
        let (choice, side) = (self.draw(3), self.draw(2));
        if self.ended[side] || self.posted[side].len() >= 16 {
            return;
        }
        match choice {
            0 => self.post_send(side, len.min(8192), seed),
            1 if !self.ended[HOST] => self.lend_and_read(len, seed),
            2 if !self.ended[HOST] => self.lend_and_write(len, seed),
            _ => {}
        }
    }

    /// A header says what the data is.
    fn header(kind: u8, seed: u8, len: usize, rkey: u32) -> [u8; 16] {
        let mut header = [kind; 16];
        header[1] = seed;
        header[4..8].copy_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
        header[8..12].copy_from_slice(&rkey.to_le_bytes());
        header
    }

    fn id(&mut self, side: usize, read: Option<u32>) -> WorkId {
        self.next_id += 1;
        self.posted[side].insert(self.next_id, read);
        WorkId(self.next_id)
    }

    fn post_send(&mut self, side: usize, len: usize, seed: u8) {
        let Some(mut data) = self.pair.side(side).pool().take(len) else { return };
        data.copy_from_slice(&pattern(len, seed));
        let id = self.id(side, None);
        self.pair.send(side, id, &Self::header(1, seed, len, 0), Some(data), None);
    }

    fn lend(&mut self, len: usize, seed: u8, access: Access) -> Option<Remote> {
        if self.lent.len() >= 4 {
            return None;
        }
        let mut buffer = self.pair.side(HOST).pool().take(len)?;
        if access == Access::RemoteRead {
            buffer.copy_from_slice(&pattern(len, seed));
        } else {
            buffer.fill(0);
        }
        let qp = self.pair.qps[HOST];
        let remote = self.pair.side(HOST).fabric.expose(qp, buffer, len, access)?;
        self.lent.insert(remote.rkey.0, Lent { remote, len, seed });
        Some(remote)
    }

    fn lend_and_read(&mut self, len: usize, seed: u8) {
        let Some(sink) = self.pair.side(TARGET).pool().take(len) else { return };
        let Some(remote) = self.lend(len, seed, Access::RemoteRead) else { return };
        if self.ended[TARGET] {
            return;
        }
        let id = self.id(TARGET, Some(remote.rkey.0));
        self.pair.read(TARGET, id, sink, len, remote);
    }

    fn lend_and_write(&mut self, len: usize, seed: u8) {
        let Some(mut source) = self.pair.side(TARGET).pool().take(len) else { return };
        let Some(remote) = self.lend(len, seed, Access::RemoteWrite) else { return };
        if self.ended[TARGET] {
            return;
        }
        source.copy_from_slice(&pattern(len, seed));
        self.pair.write(TARGET, source, len, remote);
        let id = self.id(TARGET, None);
        self.pair.send(TARGET, id, &Self::header(2, seed, len, remote.rkey.0), None, Some(remote.rkey));
    }

    fn handle(&mut self, side: usize, completion: Completion) {
        assert!(!self.ended[side], "after its end, side {side} reports {completion:?}");
        match completion {
            Completion::Received { header, data, invalidated } => self.received(side, header.as_bytes(), data.as_deref(), invalidated),
            Completion::SendDone { id, .. } => assert!(self.posted[side].remove(&id.0).is_some(), "{id:?} came back twice"),
            Completion::Flushed { id, data } => {
                let posted = self.posted[side].remove(&id.0).unwrap_or_else(|| panic!("{id:?} came back twice"));
                assert!(posted.is_none() || data.is_some(), "the sink of {id:?} is lost");
            }
            Completion::ReadDone { id, data } => {
                let Some(Some(rkey)) = self.posted[side].remove(&id.0) else { panic!("{id:?} is no read") };
                let Lent { len, seed, .. } = self.lent[&rkey];
                assert!(*data == *pattern(len, seed), "{len} bytes read differ");
                self.finished += 1;
                let id = self.id(TARGET, None);
                self.pair.send(TARGET, id, &Self::header(3, seed, len, rkey), None, None);
            }
            Completion::Disconnected { .. } => {
                self.ended[side] = true;
                assert!(self.posted[side].is_empty(), "side {side} ended and kept {:?}", self.posted[side]);
                // Also of a message that was half received. (The host's regions stay until they are revoked.)
                assert!(side == HOST || self.pair.net.in_use()[TARGET] == 0, "a buffer stayed behind");
            }
            other => panic!("{other:?}"),
        }
    }

    fn received(&mut self, side: usize, header: &[u8], data: Option<&[u8]>, invalidated: Option<Rkey>) {
        let (kind, seed) = (header[0], header[1]);
        let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let (len, rkey) = (number(4) as usize, number(8));
        self.finished += 1;
        match kind {
            1 => assert!(data == Some(&pattern(len, seed)), "{len} bytes sent differ"),
            2 | 3 => {
                assert_eq!(side, HOST);
                assert_eq!(invalidated, (kind == 2).then_some(Rkey(rkey)));
                let lent = self.lent.remove(&rkey).unwrap();
                let buffer = self.pair.revoke(HOST, lent.remote.rkey);
                assert!(*buffer == *pattern(len, seed), "{len} bytes written or lent differ");
            }
            other => panic!("a message of kind {other}"),
        }
    }

    fn turn(&mut self) -> bool {
        let more = self.pair.net.turn();
        for side in [HOST, TARGET] {
            for (_, completion) in std::mem::take(&mut self.pair.side(side).completions) {
                self.handle(side, completion);
            }
        }
        more
    }

    fn tear(&mut self, end: End) {
        match end {
            End::HostDestroys => self.destroy(HOST),
            End::TargetDestroys => self.destroy(TARGET),
            End::HostDisconnects => self.pair.disconnect(HOST),
            End::TargetDisconnects => self.pair.disconnect(TARGET),
        }
    }

    fn destroy(&mut self, side: usize) {
        self.pair.destroy(side);
        self.ended[side] = true;
        // Its completions are gone with it, and what it held is back in the pool.
        self.pair.side(side).completions.clear();
        self.posted[side].clear();
    }

    fn finish(mut self) -> u64 {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !(self.ended[HOST] && self.ended[TARGET]) {
            let more = self.turn();
            // A side that hears of the end does what its user would do.
            for side in [HOST, TARGET] {
                if self.ended[side] {
                    self.pair.destroy(side);
                }
            }
            assert!(more && std::time::Instant::now() < deadline, "the end of {:?} does not come", self.ended);
        }
        self.pair.destroy(HOST);
        self.pair.destroy(TARGET);
        assert_eq!(self.pair.net.in_use(), [0, 0], "buffers did not come back");
        self.finished
    }
}

fn whatever_was_posted_comes_back_once_however_the_connection_ends<M: Machines>(seed: u64) {
    let mut finished = 0;
    for round in 0..4 {
        let mut traffic = Traffic::<M>::new(seed * 1000 + round);
        let end = [End::HostDestroys, End::TargetDestroys, End::HostDisconnects, End::TargetDisconnects][traffic.draw(4)];
        for _ in 0..traffic.draw(200) {
            for _ in 0..traffic.draw(4) {
                traffic.post();
            }
            traffic.turn();
        }
        traffic.tear(end);
        finished += traffic.finish();
    }
    assert!(finished > 20, "{finished} operations finished: the test does not test");
}

#[test]
fn whatever_was_posted_comes_back_once_after_a_reset() {
    support::each_seed::<Simulator>(|seed| {
        for round in 0..4 {
            let mut traffic = Traffic::<Simulator>::new(seed * 1000 + round);
            for _ in 0..traffic.draw(200) {
                for _ in 0..traffic.draw(4) {
                    traffic.post();
                }
                traffic.turn();
            }
            let [host, target] = &traffic.pair.net.sides;
            let (host, target) = (host.reactor.id(), target.reactor.id());
            traffic.pair.net.machines.world.reset_connections(host, target);
            traffic.finish();
        }
    });
}
