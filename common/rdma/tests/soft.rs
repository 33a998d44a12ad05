//! What the soft provider promises beyond the list of operations that all have in common.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use std::collections::HashSet;
use std::sync::Arc;

use godwit_memory::{Holding, MemoryDisk};
use godwit_rdma::{Access, Completion, Disconnect, FpduSize, QpConfig, Remote, Rkey, WorkId};
use godwit_reactor::{Reactor, Token};
use support::endless::EndlessWorld;
use support::{HOST, Machines, Net, Pair, Rings, TARGET, config, on_both, pattern};

on_both!(
    what_is_posted_to_a_failed_queue_pair_is_flushed_before_its_end,
    a_region_that_is_revoked_while_it_is_read_ends_the_connection,
    a_region_that_is_revoked_between_writes_is_no_longer_reached,
    blocks_of_a_disk_that_change_while_they_are_sent_arrive_whole,
    pieces_of_a_disk_of_all_lengths_arrive_in_their_places,
    a_disk_stays_until_what_is_sent_from_it_is_gone_and_no_longer,
    a_disk_is_not_sent_from_where_frames_end_within_blocks,
);

#[test]
fn of_much_that_came_at_once_a_thread_that_slept_looks_at_a_little_and_goes_on_after_its_flush() {
    let pair = &mut Pair::<Rings>::greeted(0, &config());
    for id in 0..40 {
        pair.send(HOST, WorkId(id), &[0; 16], None, None);
    }
    let [host, _] = &mut pair.net.sides;
    host.fabric.flush(&mut host.reactor);
    std::thread::sleep(std::time::Duration::from_millis(1));
    let [_, target] = &mut pair.net.sides;
    let mut received = Vec::new();
    while received.iter().sum::<usize>() < 40 {
        let mut events = Vec::new();
        target.reactor.turn(&mut events).unwrap();
        target.events.extend(events);
        target.handle_events();
        let polled = std::iter::from_fn(|| target.fabric.poll(&mut target.reactor));
        let count = polled.filter(|(_, completion)| matches!(completion, Completion::Received { .. })).count();
        received.extend((count > 0).then_some(count));
        target.fabric.flush(&mut target.reactor);
    }
    assert_eq!(received, [4, 8, 16, 12]);
}

#[test]
fn the_end_of_a_connection_is_known_before_the_messages_in_front_of_it_are_reported() {
    for messages in [0, 3, 12] {
        let pair = &mut Pair::<Rings>::greeted(0, &config());
        for id in 0..messages {
            let data = pair.buffer(HOST, &pattern(4096, 1));
            pair.send(HOST, WorkId(id), &[0; 16], Some(data), None);
        }
        let qp = pair.qps[TARGET];
        let [host, target] = &mut pair.net.sides;
        host.fabric.flush(&mut host.reactor);
        assert!(!target.fabric.has_ended(&target.reactor, qp), "it goes on");
        host.fabric.destroy(&mut host.reactor, pair.qps[HOST]);
        // A stream is closed when the ring has let go of it.
        host.reactor.set_timer(host.reactor.now(), Token(0));
        host.reactor.turn(&mut Vec::new()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(target.fabric.has_ended(&target.reactor, qp), "behind {messages} messages");
        pair.destroy(TARGET);
        let [_, target] = &pair.net.sides;
        assert!(target.fabric.has_ended(&target.reactor, qp), "it is gone");
    }
}

#[test]
fn the_end_of_a_queue_pair_is_reported_before_a_turn_ends_however_much_comes_before_it() {
    let pair = &mut Pair::<Rings>::greeted(0, &config());
    for id in 0..8 {
        let sink = pair.buffer(TARGET, &[0; 100]);
        pair.read(TARGET, WorkId(id), sink, 100, Remote { rkey: Rkey(0x100), address: 0 });
    }
    pair.destroy(HOST);
    let [_, target] = &mut pair.net.sides;
    let mut reported = Vec::new();
    while reported.is_empty() {
        // It sleeps until the end comes.
        target.reactor.set_timer(target.reactor.now() + std::time::Duration::from_secs(1), Token(0));
        let mut events = Vec::new();
        target.reactor.turn(&mut events).unwrap();
        assert!(target.reactor.portion() < 9);
        target.events.extend(events);
        target.handle_events();
        reported.extend(std::iter::from_fn(|| target.fabric.poll(&mut target.reactor)).map(|(_, completion)| completion));
        target.fabric.flush(&mut target.reactor);
    }
    assert_eq!(reported.len(), 9, "{reported:?}");
    assert!(matches!(reported.last(), Some(Completion::Disconnected { .. })), "{reported:?}");
}

#[test]
fn a_busy_queue_pair_takes_turns_with_a_quiet_one() {
    let net = &mut Net::<Rings>::new(0);
    let deep = QpConfig { send_depth: 2000, ..config() };
    let (busy, quiet) = (net.connect(&deep), net.connect(&deep));
    let [host, _] = &mut net.sides;
    for id in 0..2000 {
        host.fabric.post_send(busy[HOST], WorkId(id), &[0; 16], None, None);
    }
    host.fabric.post_send(quiet[HOST], WorkId(0), &[1; 16], None, None);
    host.fabric.flush(&mut host.reactor);
    // All of it arrives before the target looks at any.
    for _ in 0..300 {
        net.machines.turn(&mut net.sides);
    }
    let [_, target] = &mut net.sides;
    target.handle_events();
    let mut order = Vec::new();
    for _ in 0..100 {
        order.extend(std::iter::from_fn(|| target.fabric.poll(&mut target.reactor)).map(|(qp, _)| qp));
        target.fabric.flush(&mut target.reactor);
    }
    let position = order.iter().position(|qp| *qp == quiet[TARGET]).expect("the quiet one was heard");
    let busy_ones = order.iter().filter(|qp| **qp == busy[TARGET]).count();
    assert!(position <= 64, "{position} of {} before it", order.len());
    assert!(busy_ones > 100, "{busy_ones} messages make no busy queue pair");
}

fn what_is_posted_to_a_failed_queue_pair_is_flushed_before_its_end<M: Machines>(seed: u64) {
    let pair = &mut Pair::<M>::greeted(seed, &config());
    pair.destroy(HOST);
    for _ in 0..300 {
        pair.net.machines.turn(&mut pair.net.sides);
        let [_, target] = &mut pair.net.sides;
        target.handle_events();
    }
    // The end is there to be seen but not reported: the first of these finds the queue pair well, the last one failed.
    let data = pair.buffer(TARGET, &[1; 100]);
    pair.send(TARGET, WorkId(1), &[0; 16], Some(data), None);
    let [_, target] = &mut pair.net.sides;
    let first = target.fabric.poll(&mut target.reactor);
    assert!(matches!(first, Some((_, Completion::Flushed { id: WorkId(1), data: Some(_) }))), "{first:?}");
    drop(first);
    let data = pair.buffer(TARGET, &[2; 100]);
    pair.send(TARGET, WorkId(2), &[0; 16], Some(data), None);
    let [_, target] = &mut pair.net.sides;
    let second = target.fabric.poll(&mut target.reactor);
    assert!(matches!(second, Some((_, Completion::Flushed { id: WorkId(2), data: Some(_) }))), "{second:?}");
    drop(second);
    let end = target.fabric.poll(&mut target.reactor);
    assert!(matches!(end, Some((_, Completion::Disconnected { .. }))), "{end:?}");
    assert!(target.fabric.poll(&mut target.reactor).is_none());
    assert_eq!(target.pool().in_use(), 0);
}

fn a_region_that_is_revoked_while_it_is_read_ends_the_connection<M: Machines>(seed: u64) {
    let pair = &mut Pair::<M>::greeted(seed, &config());
    // Much more than a socket holds, so that some of it still waits when the regions go.
    let remotes: Vec<_> = (0..7)
        .map(|id| {
            let source = pair.buffer(HOST, &pattern(1 << 20, 1));
            let remote = pair.expose(HOST, source, 1 << 20, Access::RemoteRead);
            let sink = pair.side(TARGET).pool().take(1 << 20).unwrap();
            pair.read(TARGET, WorkId(id), sink, 1 << 20, remote);
            remote
        })
        .collect();
    let [_, target] = &mut pair.net.sides;
    target.fabric.flush(&mut target.reactor);
    // The host hears the requests and answers as far as the network takes it; the target reads nothing.
    for _ in 0..300 {
        pair.net.machines.turn(&mut pair.net.sides);
        let [host, _] = &mut pair.net.sides;
        host.handle_events();
        host.poll();
    }
    for remote in remotes {
        drop(pair.revoke(HOST, remote.rkey));
    }
    let end = pair.next(|side, c| side == HOST && matches!(c, Completion::Disconnected { .. }));
    assert!(matches!(end, Completion::Disconnected { reason: Disconnect::Violation(_) }), "{end:?}");
    pair.next(|side, c| side == TARGET && matches!(c, Completion::Disconnected { .. }));
}

fn a_region_that_is_revoked_between_writes_is_no_longer_reached<M: Machines>(seed: u64) {
    let pair = &mut Pair::<M>::greeted(seed, &config());
    let lent = pair.buffer(HOST, &[0; 65536]);
    let remote = pair.expose(HOST, lent, 65536, Access::RemoteWrite);
    let source = pair.buffer(TARGET, &[1; 65536]);
    pair.write(TARGET, source, 65536, remote);
    pair.send(TARGET, WorkId(1), &[0; 16], None, None);
    pair.next(|side, c| side == HOST && matches!(c, Completion::Received { .. }));
    let mut lent = pair.revoke(HOST, remote.rkey);
    assert!(lent.iter().all(|&byte| byte == 1));
    lent.fill(7);
    let source = pair.buffer(TARGET, &[2; 65536]);
    pair.write(TARGET, source, 65536, remote);
    pair.next(|side, c| side == HOST && matches!(c, Completion::Disconnected { reason: Disconnect::Violation(_) }));
    pair.next(|side, c| side == TARGET && matches!(c, Completion::Disconnected { reason: Disconnect::Terminated(_) }));
    assert!(lent.iter().all(|&byte| byte == 7));
}

const MIB: usize = 1 << 20;

/// Has the target write a disk of 1 MiB to each region, and send a message behind that.
fn write_disk_to<M: Machines>(pair: &mut Pair<M>, disk: &Arc<MemoryDisk>, regions: &[Remote]) {
    let (qp, disk) = (pair.qps[TARGET], Holding::new(Arc::clone(disk)));
    for &to in regions {
        let extent = disk.extent(0, MIB).unwrap();
        pair.side(TARGET).fabric.post_write_extent(qp, extent, to).unwrap();
    }
    pair.send(TARGET, WorkId(1), &[0; 16], None, None);
}

/// Regions of the host, more than a socket holds.
fn expose_to_writes<M: Machines>(pair: &mut Pair<M>, count: usize) -> Vec<Remote> {
    let mut expose = || {
        let buffer = pair.side(HOST).pool().take(MIB).unwrap();
        pair.expose(HOST, buffer, MIB, Access::RemoteWrite)
    };
    (0..count).map(|_| expose()).collect()
}

/// Turns until the host has the message behind what is written from the disk, of which each block consists of one byte, another in each turn.
fn change_until_received<M: Machines>(pair: &mut Pair<M>, disk: &MemoryDisk) {
    let has_arrived = |(_, completion): &_| matches!(completion, Completion::Received { .. });
    for turn in 0..100_000_u32 {
        disk.write_at(&vec![u8::try_from(turn % 251).unwrap() + 1; MIB], 0);
        let more = pair.net.turn();
        if pair.side(HOST).completions.iter().any(has_arrived) {
            return;
        }
        assert!(more, "the message does not come");
    }
}

fn blocks_of_a_disk_that_change_while_they_are_sent_arrive_whole<M: Machines>(seed: u64) {
    for crc in [true, false] {
        let pair = &mut Pair::<M>::greeted(seed, &QpConfig { crc, ..config() });
        let disk = Arc::new(MemoryDisk::new(MIB as u64).unwrap());
        let regions = expose_to_writes(pair, 7);
        write_disk_to(pair, &disk, &regions);
        change_until_received(pair, &disk);
        let mut seen = HashSet::new();
        for region in regions {
            for block in pair.revoke(HOST, region.rkey).chunks(4096) {
                assert!(block.iter().all(|&byte| byte == block[0]), "a block is half of one write and half of another");
                seen.insert(block[0]);
            }
        }
        assert!(seen.len() > 1 && !seen.contains(&0), "it was all sent in one turn: {seen:?}");
    }
}

fn pieces_of_a_disk_of_all_lengths_arrive_in_their_places<M: Machines>(seed: u64) {
    let lengths = [512, 4096, 12_288, 15_872, 16_384, 20_480, 65_536, 131_072];
    for crc in [true, false] {
        let pair = &mut Pair::<M>::greeted(seed, &QpConfig { crc, ..config() });
        let disk = Arc::new(MemoryDisk::new(MIB as u64).unwrap());
        let (qp, holding) = (pair.qps[TARGET], Holding::new(Arc::clone(&disk)));
        let regions = expose_to_writes(pair, 2);
        let mut places = Vec::new();
        for region in &regions {
            let mut at = 0;
            for len in lengths.into_iter().cycle() {
                if at + len > MIB {
                    break;
                }
                let to = Remote { rkey: region.rkey, address: region.address + at as u64 };
                pair.side(TARGET).fabric.post_write_extent(qp, holding.extent(0, len).unwrap(), to).unwrap();
                places.push((region.rkey, at, len));
                at += len;
            }
        }
        pair.send(TARGET, WorkId(1), &[0; 16], None, None);
        change_until_received(pair, &disk);
        for region in regions {
            let buffer = pair.revoke(HOST, region.rkey);
            for &(_, at, len) in places.iter().filter(|(rkey, ..)| *rkey == region.rkey) {
                let is_whole = |block: &[u8]| block[0] > 0 && block.iter().all(|&byte| byte == block[0]);
                assert!(buffer[at..at + len].chunks(4096).all(is_whole), "{len} bytes at {at}");
            }
        }
        assert!(!holding.is_lent());
    }
}

fn a_disk_stays_until_what_is_sent_from_it_is_gone_and_no_longer<M: Machines>(seed: u64) {
    let pair = &mut Pair::<M>::greeted(seed, &config());
    let disk = Arc::new(MemoryDisk::new(MIB as u64).unwrap());
    disk.write_at(&pattern(MIB, 4), 0);
    let regions = expose_to_writes(pair, 2);
    write_disk_to(pair, &disk, &regions);
    let left = Arc::downgrade(&disk);
    drop(disk);
    pair.next(|side, c| side == HOST && matches!(c, Completion::Received { .. }));
    for region in &regions {
        assert!(*pair.revoke(HOST, region.rkey) == *pattern(MIB, 4), "the data differ");
    }
    assert!(left.upgrade().is_none(), "all is sent");

    // As much for a peer that does not read, whose queue pair is then destroyed.
    let disk = Arc::new(MemoryDisk::new(MIB as u64).unwrap());
    let regions = expose_to_writes(pair, 7);
    write_disk_to(pair, &disk, &regions);
    let left = Arc::downgrade(&disk);
    drop(disk);
    let [_, target] = &mut pair.net.sides;
    target.fabric.flush(&mut target.reactor);
    assert!(left.upgrade().is_some(), "a socket holds no 7 MiB");
    pair.destroy(TARGET);
    assert!(left.upgrade().is_none(), "nobody sends from it any more");
}

fn a_disk_is_not_sent_from_where_frames_end_within_blocks<M: Machines>(seed: u64) {
    let pair = &mut Pair::<M>::greeted(seed, &QpConfig { fpdu: FpduSize::Segment, ..config() });
    let disk = Holding::new(Arc::new(MemoryDisk::new(MIB as u64).unwrap()));
    let region = expose_to_writes(pair, 1)[0];
    let (qp, extent) = (pair.qps[TARGET], disk.extent(0, 4096).unwrap());
    assert!(pair.side(TARGET).fabric.post_write_extent(qp, extent, region).is_err());
}

/// How one queue pair sends all that there is to send, when each call takes so many bytes at most: nothing may be lost, doubled, or summed up wrongly.
fn arrives_whole(takes: usize, crc: bool) {
    let pair = &mut Pair::<EndlessWorld>::greeted(3, &QpConfig { crc, ..config() });
    pair.net.sides.iter_mut().for_each(|side| side.reactor.takes = takes);
    let disk = Arc::new(MemoryDisk::new(MIB as u64).unwrap());
    let (qp, holding) = (pair.qps[TARGET], Holding::new(Arc::clone(&disk)));
    let region = expose_to_writes(pair, 1)[0];
    let at = |offset: usize| Remote { rkey: region.rkey, address: region.address + offset as u64 };
    let (mut end, mut blocks) = (0, Vec::new());
    // Small ones are copied, those of a disk are locked for a call, and the long ones of these are summed up later.
    for (from_disk, len) in [(true, 512), (false, 100), (true, 16_384), (false, 300), (true, 4096), (true, 20_480), (false, 5000)] {
        if from_disk {
            pair.side(TARGET).fabric.post_write_extent(qp, holding.extent(0, len).unwrap(), at(end)).unwrap();
            blocks.extend((end..end + len).step_by(4096).map(|start| start..(start + 4096).min(end + len)));
        } else {
            let source = pair.buffer(TARGET, &pattern(len, 9));
            pair.write(TARGET, source, len, at(end));
        }
        end += len;
    }
    let data = pair.buffer(TARGET, &pattern(4096, 5));
    pair.send(TARGET, WorkId(1), &[7; 16], Some(data), None);
    let source = pair.buffer(HOST, &pattern(9000, 6));
    let lent = pair.expose(HOST, source, 9000, Access::RemoteRead);
    let sink = pair.side(TARGET).pool().take(9000).unwrap();
    pair.read(TARGET, WorkId(2), sink, 9000, lent);

    let is_over = |side: usize, completion: &Completion| side == TARGET && matches!(completion, Completion::ReadDone { .. });
    for turn in 0_u32.. {
        if pair.net.sides[TARGET].completions.iter().any(|(_, completion)| is_over(TARGET, completion)) {
            break;
        }
        disk.write_at(&vec![u8::try_from(turn % 251).unwrap() + 1; 20_480], 0);
        assert!(pair.net.turn(), "it goes no further after {turn} turns");
    }
    let Completion::ReadDone { data, .. } = pair.next(is_over) else { unreachable!() };
    assert!(*data == *pattern(9000, 6), "what was read differs");
    let Completion::Received { header, data, .. } = pair.next(|side, c| side == HOST && matches!(c, Completion::Received { .. })) else {
        unreachable!()
    };
    assert!(header.as_bytes() == [7; 16] && data.as_deref() == Some(&pattern(4096, 5)[..]), "the message differs");
    let buffer = pair.revoke(HOST, region.rkey);
    assert!(
        buffer[512..612] == *pattern(100, 9) && buffer[16_996..17_296] == *pattern(300, 9) && buffer[end - 5000..end] == *pattern(5000, 9)
    );
    for block in blocks {
        let first = buffer[block.start];
        assert!(first > 0 && buffer[block.clone()].iter().all(|&byte| byte == first), "{block:?} is of two writes, or of none");
    }
    assert!(!holding.is_lent());
}

#[test]
fn however_little_a_call_takes_all_arrives_whole() {
    for takes in [1, 13, 64, 1000, 4111] {
        arrives_whole(takes, true);
        arrives_whole(takes, false);
    }
}
