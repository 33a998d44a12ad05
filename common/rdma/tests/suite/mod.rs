//! One list of verbs operations: what any provider must do, whatever the other side runs on.

#![allow(dead_code, reason = "a user of the list may name a part")]

use std::rc::Rc;

use godwit_memory::{Buffer, Reservation};
use godwit_rdma::{Access, Completion, Disconnect, FpduSize, QpConfig, Remote, Rkey, WorkId};

use super::support::{HOST, Machines, Net, Pair, TARGET, config, pattern};

/// Calls a macro with the names of all operations.
#[allow(unused_macros, reason = "a user of the list may name them by itself")]
macro_rules! operations {
    ($for_each:ident) => {
        $for_each!(
            a_send_arrives_with_its_data,
            every_send_is_reported_also_of_several_under_one_name,
            an_rdma_write_is_placed_before_the_send_behind_it_arrives,
            an_rdma_write_of_nothing_needs_no_right_and_tells_nobody,
            an_rdma_read_fetches_what_is_exposed,
            a_read_is_complete_when_its_data_are_there_whatever_was_sent_behind_it,
            more_reads_than_the_peer_answers_at_a_time_wait_their_turn,
            access_without_right_ends_the_connection_and_changes_nothing,
            a_message_longer_or_shorter_than_allowed_ends_the_connection,
            work_is_flushed_before_the_end_is_reported,
            a_disconnect_delivers_what_was_posted_and_shows_that_the_peer_knows,
            a_rejected_peer_learns_why,
            connecting_to_nobody_says_so,
            a_receiver_without_buffers_waits_and_loses_nothing,
            a_reservation_feeds_a_stalled_receiver,
        );
    };
}
#[allow(unused_imports, reason = "a user of the list may name them by itself")]
pub(crate) use operations;

fn each_framing<M: Machines>(seed: u64, test: impl Fn(&mut Pair<M>)) {
    for (crc, fpdu) in [(true, FpduSize::Large), (false, FpduSize::Large), (true, FpduSize::Segment)] {
        test(&mut Pair::greeted(seed, &QpConfig { crc, fpdu, ..config() }));
    }
}

pub(crate) fn a_send_arrives_with_its_data<M: Machines>(seed: u64) {
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
            let Completion::SendDone { id, data, .. } = pair.next(|side, c| side == HOST && matches!(c, Completion::SendDone { .. }))
            else {
                unreachable!()
            };
            assert_eq!((id, data.map_or(0, |data| data.len())), (WorkId(7), len));
        }
        assert_eq!(pair.side(HOST).pool().in_use() + pair.side(TARGET).pool().in_use(), 0);
    });
}

pub(crate) fn every_send_is_reported_also_of_several_under_one_name<M: Machines>(seed: u64) {
    let pair = &mut Pair::<M>::greeted(seed, &config());
    for (id, with_data) in [(9, false), (9, false), (9, true), (9, false), (10, false), (10, false)] {
        let data = with_data.then(|| pair.buffer(HOST, &pattern(4096, 3)));
        pair.send(HOST, WorkId(id), &[0; 16], data, None);
    }
    let mut reported = Vec::new();
    while reported.len() < 6 {
        let Completion::SendDone { id, data, count } = pair.next(|side, c| side == HOST && matches!(c, Completion::SendDone { .. })) else {
            unreachable!()
        };
        reported.extend(std::iter::repeat_n((id.0, data.is_some()), count));
    }
    assert_eq!(reported, [(9, false), (9, false), (9, true), (9, false), (10, false), (10, false)]);
}

pub(crate) fn an_rdma_write_is_placed_before_the_send_behind_it_arrives<M: Machines>(seed: u64) {
    each_framing::<M>(seed, |pair| {
        for len in [1, 4096, 65_537, 1 << 20] {
            let buffer = pair.side(HOST).pool().take(len).unwrap();
            let remote = pair.expose(HOST, buffer, len, Access::RemoteWrite);
            let source = pair.buffer(TARGET, &pattern(len, 9));
            pair.write(TARGET, source, len, remote);
            let invalidate = pair.peer_invalidates(HOST).then_some(remote.rkey);
            pair.send(TARGET, WorkId(1), &[0; 16], None, invalidate);
            let Completion::Received { invalidated, .. } = pair.next(|side, c| side == HOST && matches!(c, Completion::Received { .. }))
            else {
                unreachable!()
            };
            assert_eq!(invalidated, invalidate);
            let buffer = pair.revoke(HOST, remote.rkey);
            assert!(*buffer == *pattern(len, 9), "{len} bytes differ");
        }
    });
}

pub(crate) fn an_rdma_write_of_nothing_needs_no_right_and_tells_nobody<M: Machines>(seed: u64) {
    each_framing::<M>(seed, |pair| {
        for side in [HOST, TARGET] {
            let other = HOST + TARGET - side;
            for (rkey, address) in [(0, 0), (1, 0), (u32::MAX, u64::MAX)] {
                let nothing = pair.buffer(side, &[1]);
                pair.write(side, nothing, 0, Remote { rkey: Rkey(rkey), address });
                pair.send(side, WorkId(1), &[7; 16], None, None);
                let heard = pair.next(|to, c| to == other && !matches!(c, Completion::SendDone { .. }));
                assert!(matches!(&heard, Completion::Received { header, data: None, .. } if header.as_bytes() == [7; 16]), "{heard:?}");
                pair.next(|to, c| to == side && matches!(c, Completion::SendDone { .. }));
            }
        }
        assert_eq!(pair.net.in_use(), [0, 0]);
    });
}

pub(crate) fn an_rdma_read_fetches_what_is_exposed<M: Machines>(seed: u64) {
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

pub(crate) fn a_read_is_complete_when_its_data_are_there_whatever_was_sent_behind_it<M: Machines>(seed: u64) {
    each_framing::<M>(seed, |pair| {
        let len = 1 << 20;
        let source = pair.buffer(HOST, &pattern(len, 6));
        let remote = pair.expose(HOST, source, len, Access::RemoteRead);
        let sink = pair.buffer(TARGET, &vec![0; len]);
        pair.read(TARGET, WorkId(1), sink, len, remote);
        for id in 2..6 {
            pair.send(TARGET, WorkId(id), &[0; 16], None, None);
        }
        let Completion::ReadDone { id, data } = pair.next(|_, c| matches!(c, Completion::ReadDone { .. })) else { unreachable!() };
        assert_eq!(id, WorkId(1));
        assert!(*data == *pattern(len, 6), "the data are not all there");
        for id in 2..6 {
            pair.next(|side, c| side == TARGET && matches!(c, Completion::SendDone { id: done, .. } if *done == WorkId(id)));
        }
    });
}

pub(crate) fn more_reads_than_the_peer_answers_at_a_time_wait_their_turn<M: Machines>(seed: u64) {
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

pub(crate) fn access_without_right_ends_the_connection_and_changes_nothing<M: Machines>(seed: u64) {
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
        let remote = pair.expose(HOST, lent, 16384, access);
        let source = pair.buffer(TARGET, &[9; 16384]);
        pair.write(TARGET, source, 16384, twist(remote));
        let reason = pair.next(|side, c| side == TARGET && matches!(c, Completion::Disconnected { .. }));
        let Completion::Disconnected { reason } = reason else { unreachable!() };
        if M::EXPLAINS[TARGET] && case == 2 {
            // An address that wraps never leaves this side.
            assert!(matches!(reason, Disconnect::Violation(_)), "{reason:?}");
        } else {
            assert!(!M::EXPLAINS[TARGET] || matches!(reason, Disconnect::Terminated(_)), "{reason:?}");
            let reason = pair.next(|side, c| side == HOST && matches!(c, Completion::Disconnected { .. }));
            let Completion::Disconnected { reason } = reason else { unreachable!() };
            assert!(!M::EXPLAINS[HOST] || matches!(reason, Disconnect::Violation(_)), "{reason:?}");
        }
        let lent = pair.revoke(HOST, remote.rkey);
        // What arrives in pieces is checked in pieces: those inside the region may have been placed.
        let untouched = if case == 1 { &lent[..1] } else { &lent[..] };
        assert!(untouched.iter().all(|&byte| byte == 7), "case {case}");
    }
}

pub(crate) fn a_message_longer_or_shorter_than_allowed_ends_the_connection<M: Machines>(seed: u64) {
    for (header, data_len) in [(&[1_u8; 16][..], 8193), (&[1; 15][..], 0)] {
        let pair = &mut Pair::<M>::greeted(seed, &config());
        let data = (data_len > 0).then(|| pair.buffer(HOST, &pattern(data_len, 0)));
        pair.send(HOST, WorkId(1), header, data, None);
        let end = pair.next(|side, c| side == TARGET && matches!(c, Completion::Disconnected { .. }));
        let Completion::Disconnected { reason } = end else { unreachable!() };
        assert!(!M::EXPLAINS[TARGET] || matches!(reason, Disconnect::Violation(_)), "{reason:?}");
        pair.next(|side, c| side == HOST && matches!(c, Completion::Disconnected { .. }));
    }
}

pub(crate) fn work_is_flushed_before_the_end_is_reported<M: Machines>(seed: u64) {
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
    assert!(!M::EXPLAINS[TARGET] || reason.known_to_peer(), "{reason:?}");
}

pub(crate) fn a_disconnect_delivers_what_was_posted_and_shows_that_the_peer_knows<M: Machines>(seed: u64) {
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
    let end = pair.next(|side, c| side == HOST && matches!(c, Completion::Disconnected { .. }));
    let Completion::Disconnected { reason } = end else { unreachable!() };
    assert!(matches!(reason, Disconnect::Closed) || (!M::EXPLAINS[HOST] && matches!(reason, Disconnect::Unconfirmed)), "{reason:?}");
}

pub(crate) fn a_rejected_peer_learns_why<M: Machines>(seed: u64) {
    let net = &mut Net::<M>::new(seed);
    let [host, _] = &mut net.sides;
    let host_qp = host.fabric.connect(&mut host.reactor, M::TRANSPORT, net.address, &config(), b"").unwrap();
    let (qp, _) = net.next_of(|_, _, c| matches!(c, Completion::ConnectRequest { .. }));
    let [_, target] = &mut net.sides;
    target.fabric.reject(&mut target.reactor, qp, &[0, 0, 6, 0]);
    let Completion::Rejected { private_data } = net.next(|_, c| matches!(c, Completion::Rejected { .. })) else { unreachable!() };
    // InfiniBand's connection manager pads with zeroes.
    assert_eq!(private_data.0[..4], [0, 0, 6, 0]);
    // Posting is too late, and says so.
    let [host, _] = &mut net.sides;
    host.fabric.post_send(host_qp, WorkId(3), &[0; 16], None, None);
    net.next(|side, c| side == HOST && matches!(c, Completion::Flushed { id: WorkId(3), data: None }));
}

pub(crate) fn connecting_to_nobody_says_so<M: Machines>(seed: u64) {
    let net = &mut Net::<M>::new(seed);
    let unused = (net.address.ip(), 1).into();
    let [host, _] = &mut net.sides;
    host.fabric.connect(&mut host.reactor, M::TRANSPORT, unused, &config(), b"").unwrap();
    let end = net.next(|_, c| matches!(c, Completion::Disconnected { .. }));
    assert!(
        matches!(&end, Completion::Disconnected { reason: Disconnect::Connect(error) } if error.kind() == std::io::ErrorKind::ConnectionRefused),
        "{end:?}"
    );
}

pub(crate) fn a_receiver_without_buffers_waits_and_loses_nothing<M: Machines>(seed: u64) {
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

pub(crate) fn a_reservation_feeds_a_stalled_receiver<M: Machines>(seed: u64) {
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
