//! One list of verbs operations: what any provider must do. Run over rings and over the simulator.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use std::rc::Rc;

use godwit_memory::{Buffer, Reservation};
use godwit_rdma::{Access, Completion, Disconnect, FpduSize, QpConfig, Remote, Rkey, WorkId};
use support::{HOST, Machines, Net, Pair, Rings, TARGET, config, on_both, pattern};

on_both!(
    a_send_arrives_with_its_data,
    an_rdma_write_is_placed_before_the_send_behind_it_arrives,
    an_rdma_read_fetches_what_is_exposed,
    more_reads_than_the_peer_answers_at_a_time_wait_their_turn,
    access_without_right_ends_the_connection_and_changes_nothing,
    a_message_longer_or_shorter_than_allowed_ends_the_connection,
    work_is_flushed_before_the_end_is_reported,
    a_disconnect_delivers_what_was_posted_and_shows_that_the_peer_knows,
    a_rejected_peer_learns_why,
    connecting_to_nobody_says_so,
    a_receiver_without_buffers_waits_and_loses_nothing,
    a_reservation_feeds_a_stalled_receiver,
    what_is_posted_to_a_failed_queue_pair_is_flushed_before_its_end,
    a_region_that_is_revoked_while_it_is_read_ends_the_connection,
    a_region_that_is_revoked_between_writes_is_no_longer_reached,
);

fn each_framing<M: Machines>(seed: u64, test: impl Fn(&mut Pair<M>)) {
    for (crc, fpdu) in [(true, FpduSize::Large), (false, FpduSize::Large), (true, FpduSize::Segment)] {
        test(&mut Pair::greeted(seed, &QpConfig { crc, fpdu, ..config() }));
    }
}

fn a_send_arrives_with_its_data<M: Machines>(seed: u64) {
    each_framing::<M>(seed, |pair| {
        for len in [0, 1, 15, 511, 4096, 8192] {
            let data = (len > 0).then(|| pair.buffer(HOST, &pattern(len, 3)));
            pair.send(HOST, WorkId(7), b"sixteen bytes ok", data, None);
            let Completion::Received { header, data, invalidated } =
                pair.next(|side, c| side == TARGET && matches!(c, Completion::Received { .. }))
            else {
                unreachable!()
            };
            assert_eq!(header.as_bytes(), b"sixteen bytes ok");
            assert_eq!(data.as_deref().unwrap_or_default(), pattern(len, 3));
            assert_eq!(invalidated, None);
            let Completion::SendDone { id, data } = pair.next(|side, c| side == HOST && matches!(c, Completion::SendDone { .. })) else {
                unreachable!()
            };
            assert_eq!((id, data.map_or(0, |data| data.len())), (WorkId(7), len));
        }
        assert_eq!(pair.side(HOST).pool().in_use() + pair.side(TARGET).pool().in_use(), 0);
    });
}

fn an_rdma_write_is_placed_before_the_send_behind_it_arrives<M: Machines>(seed: u64) {
    each_framing::<M>(seed, |pair| {
        for len in [1, 4096, 65_537, 1 << 20] {
            let buffer = pair.side(HOST).pool().take(len).unwrap();
            let remote = pair.expose(HOST, buffer, len, Access::RemoteWrite);
            let source = pair.buffer(TARGET, &pattern(len, 9));
            pair.write(TARGET, source, len, remote);
            pair.send(TARGET, WorkId(1), &[0; 16], None, Some(remote.rkey));
            let Completion::Received { invalidated, .. } = pair.next(|side, c| side == HOST && matches!(c, Completion::Received { .. }))
            else {
                unreachable!()
            };
            assert_eq!(invalidated, Some(remote.rkey));
            let buffer = pair.revoke(HOST, remote.rkey);
            assert!(*buffer == *pattern(len, 9), "{len} bytes differ");
        }
    });
}

fn an_rdma_read_fetches_what_is_exposed<M: Machines>(seed: u64) {
    each_framing::<M>(seed, |pair| {
        let lengths = [1, 4096, 65_537, 1 << 20];
        let remotes: Vec<Remote> = lengths
            .iter()
            .map(|&len| {
                let source = pair.buffer(HOST, &pattern(len, 5));
                pair.expose(HOST, source, len, Access::RemoteRead)
            })
            .collect();
        for (index, (&len, &remote)) in lengths.iter().zip(&remotes).enumerate() {
            let sink = pair.side(TARGET).pool().take(len).unwrap();
            pair.read(TARGET, WorkId(index as u64), sink, len, remote);
        }
        for (index, &len) in lengths.iter().enumerate() {
            let Completion::ReadDone { id, data } = pair.next(|_, c| matches!(c, Completion::ReadDone { .. })) else { unreachable!() };
            assert_eq!(id, WorkId(index as u64));
            assert!(*data == *pattern(len, 5), "{len} bytes differ");
        }
    });
}

fn more_reads_than_the_peer_answers_at_a_time_wait_their_turn<M: Machines>(seed: u64) {
    let pair = &mut Pair::<M>::greeted(seed, &QpConfig { outbound_reads: 1, inbound_reads: 1, ..config() });
    let source = pair.buffer(HOST, &pattern(4096, 1));
    let remote = pair.expose(HOST, source, 4096, Access::RemoteRead);
    for id in 0..20 {
        let sink = pair.side(TARGET).pool().take(4096).unwrap();
        pair.read(TARGET, WorkId(id), sink, 4096, remote);
    }
    for wanted in 0..20 {
        let Completion::ReadDone { id, .. } = pair.next(|_, c| matches!(c, Completion::ReadDone { .. })) else { unreachable!() };
        assert_eq!(id, WorkId(wanted));
    }
}

fn access_without_right_ends_the_connection_and_changes_nothing<M: Machines>(seed: u64) {
    let cases: [fn(Remote) -> Remote; 4] = [
        |remote| remote,
        |remote| Remote { address: remote.address + 1, ..remote },
        |remote| Remote { address: u64::MAX - 8, ..remote },
        |remote| Remote { rkey: Rkey(remote.rkey.0 ^ 1), ..remote },
    ];
    for (case, twist) in cases.into_iter().enumerate() {
        let pair = &mut Pair::<M>::greeted(seed, &config());
        let access = if case == 0 { Access::RemoteRead } else { Access::RemoteWrite };
        let lent = pair.buffer(HOST, &[7; 16384]);
        let remote = pair.expose(HOST, lent, 4096, access);
        let source = pair.buffer(TARGET, &[9; 4096]);
        pair.write(TARGET, source, 4096, twist(remote));
        if case != 2 {
            let reason = pair.next(|side, c| side == HOST && matches!(c, Completion::Disconnected { .. }));
            assert!(matches!(reason, Completion::Disconnected { reason: Disconnect::Violation(_) }), "{reason:?}");
            let reason = pair.next(|side, c| side == TARGET && matches!(c, Completion::Disconnected { .. }));
            assert!(matches!(reason, Completion::Disconnected { reason: Disconnect::Terminated(_) }), "{reason:?}");
        } else {
            // An address that wraps never leaves this side.
            pair.next(|side, c| side == TARGET && matches!(c, Completion::Disconnected { reason: Disconnect::Violation(_) }));
        }
        let mut lent = pair.revoke(HOST, remote.rkey);
        lent.set_len(16384);
        // What arrives in pieces is checked in pieces: those inside the region may have been placed.
        let untouched = if case == 1 { [&lent[..1], &lent[4096..]].concat() } else { lent.to_vec() };
        assert!(untouched.iter().all(|&byte| byte == 7), "case {case}");
    }
}

fn a_message_longer_or_shorter_than_allowed_ends_the_connection<M: Machines>(seed: u64) {
    for (header, data_len) in [(&[1_u8; 16][..], 8193), (&[1; 15][..], 0)] {
        let pair = &mut Pair::<M>::greeted(seed, &config());
        let data = (data_len > 0).then(|| pair.buffer(HOST, &pattern(data_len, 0)));
        pair.send(HOST, WorkId(1), header, data, None);
        pair.next(|side, c| side == TARGET && matches!(c, Completion::Disconnected { reason: Disconnect::Violation(_) }));
        pair.next(|side, c| side == HOST && matches!(c, Completion::Disconnected { .. }));
    }
}

fn work_is_flushed_before_the_end_is_reported<M: Machines>(seed: u64) {
    let pair = &mut Pair::<M>::greeted(seed, &config());
    // The host never exposes it in time: the read stays outstanding until the connection ends.
    pair.destroy(HOST);
    let sink = pair.side(TARGET).pool().take(4096).unwrap();
    let remote = Remote { rkey: Rkey(0x100), address: 0 };
    pair.read(TARGET, WorkId(5), sink, 4096, remote);
    let flushed = pair.next(|side, c| side == TARGET && !matches!(c, Completion::SendDone { .. }));
    assert!(matches!(flushed, Completion::Flushed { id: WorkId(5), data: Some(_) }), "{flushed:?}");
    let end = pair.next(|side, c| side == TARGET && matches!(c, Completion::Disconnected { .. }));
    let Completion::Disconnected { reason } = end else { unreachable!() };
    assert!(reason.known_to_peer(), "{reason:?}");
}

fn a_disconnect_delivers_what_was_posted_and_shows_that_the_peer_knows<M: Machines>(seed: u64) {
    let pair = &mut Pair::<M>::greeted(seed, &config());
    for id in 0..20 {
        let data = pair.buffer(HOST, &pattern(4096, 0));
        pair.send(HOST, WorkId(id), &[0; 16], Some(data), None);
    }
    pair.disconnect(HOST);
    for _ in 0..20 {
        pair.next(|side, c| side == TARGET && matches!(c, Completion::Received { .. }));
    }
    pair.next(|side, c| side == TARGET && matches!(c, Completion::Disconnected { reason: Disconnect::PeerClosed }));
    pair.destroy(TARGET);
    pair.next(|side, c| side == HOST && matches!(c, Completion::Disconnected { reason: Disconnect::Closed }));
}

fn a_rejected_peer_learns_why<M: Machines>(seed: u64) {
    let net = &mut Net::<M>::new(seed);
    let [host, _] = &mut net.sides;
    let host_qp = host.fabric.connect(&mut host.reactor, net.address, &config(), b"").unwrap();
    let (qp, _) = net.next_of(|_, _, c| matches!(c, Completion::ConnectRequest { .. }));
    let [_, target] = &mut net.sides;
    target.fabric.reject(&mut target.reactor, qp, &[0, 0, 6, 0]);
    let Completion::Rejected { private_data } = net.next(|_, c| matches!(c, Completion::Rejected { .. })) else { unreachable!() };
    assert_eq!(*private_data.0, [0, 0, 6, 0]);
    // Posting is too late, and says so.
    let [host, _] = &mut net.sides;
    host.fabric.post_send(host_qp, WorkId(3), &[0; 16], None, None);
    net.next(|side, c| side == HOST && matches!(c, Completion::Flushed { id: WorkId(3), data: None }));
}

fn connecting_to_nobody_says_so<M: Machines>(seed: u64) {
    let net = &mut Net::<M>::new(seed);
    let unused = "127.0.0.1:1".parse().unwrap();
    let [host, _] = &mut net.sides;
    host.fabric.connect(&mut host.reactor, unused, &config(), b"").unwrap();
    let end = net.next(|_, c| matches!(c, Completion::Disconnected { .. }));
    assert!(
        matches!(&end, Completion::Disconnected { reason: Disconnect::Connect(error) } if error.kind() == std::io::ErrorKind::ConnectionRefused),
        "{end:?}"
    );
}

fn a_receiver_without_buffers_waits_and_loses_nothing<M: Machines>(seed: u64) {
    let pair = &mut Pair::<M>::greeted(seed, &config());
    let pool = pair.side(TARGET).pool().clone();
    let held: Vec<Buffer> = std::iter::from_fn(|| pool.take(4097)).collect();
    for id in 0..12 {
        let data = pair.buffer(HOST, &pattern(8192, u8::try_from(id).unwrap()));
        pair.send(HOST, WorkId(id), &[0; 16], Some(data), None);
        pair.next(|side, c| side == HOST && matches!(c, Completion::SendDone { .. }));
    }
    pair.net.settle();
    assert!(pair.is_stalled(TARGET));
    assert!(pair.net.sides[TARGET].completions.is_empty());
    drop(held);
    for id in 0..12 {
        let Completion::Received { data, .. } = pair.next(|side, c| side == TARGET && matches!(c, Completion::Received { .. })) else {
            unreachable!()
        };
        assert!(*data.unwrap() == *pattern(8192, id));
    }
}

fn a_reservation_feeds_a_stalled_receiver<M: Machines>(seed: u64) {
    let pair = &mut Pair::<M>::greeted(seed, &config());
    let pool = pair.side(TARGET).pool().clone();
    let reservation = Rc::new(Reservation::new(&pool, 8192, 2).unwrap());
    let held: Vec<Buffer> = std::iter::from_fn(|| pool.take(4097)).collect();
    let qp = pair.qps[TARGET];
    pair.side(TARGET).fabric.receive_from(qp, Some(Rc::clone(&reservation)));
    for id in 0..6 {
        let data = pair.buffer(HOST, &pattern(8192, id));
        pair.send(HOST, WorkId(id.into()), &[id; 16], Some(data), None);
    }
    let mut received = Vec::new();
    for id in 0..6 {
        if received.len() == 2 {
            pair.net.settle();
            assert!(pair.is_stalled(TARGET));
            assert!(pair.side(TARGET).completions.is_empty());
            assert!(reservation.give_back(received.swap_remove(0)));
        }
        let Completion::Received { header, data, .. } = pair.next(|side, c| side == TARGET && matches!(c, Completion::Received { .. }))
        else {
            unreachable!()
        };
        assert_eq!(header.as_bytes(), [id; 16]);
        assert!(*data.as_deref().unwrap() == *pattern(8192, id));
        received.extend(data);
    }
    assert!(!pair.is_stalled(TARGET));
    drop((held, received));
    assert_eq!(pool.in_use(), 0);
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
    let order: Vec<_> = std::iter::from_fn(|| target.fabric.poll(&mut target.reactor)).map(|(qp, _)| qp).collect();
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
