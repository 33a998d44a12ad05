//! What happens when nothing does: time limits and cuts of the network, under the simulator's clock.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use std::io::{ErrorKind, IoSliceMut};
use std::time::Duration;

use godwit_rdma::{Completion, Disconnect, QpConfig, Transport, WorkId};
use godwit_reactor::{Reactor, Time, Token};
use support::{HOST, Net, Pair, Simulator, TARGET, config, each_seed, pattern};

/// Turns until a queue pair of `side` has ended, and says when and why.
fn end_of(net: &mut Net<Simulator>, side: usize) -> (Time, Disconnect) {
    let end = net.next(|of, c| of == side && matches!(c, Completion::Disconnected { .. }));
    let Completion::Disconnected { reason } = end else { unreachable!() };
    (net.machines.world.now(), reason)
}

#[test]
fn a_peer_that_sends_no_request_has_five_seconds() {
    each_seed::<Simulator>(|seed| {
        let net = &mut Net::<Simulator>::new(seed);
        // The beginning of a Request, and no more.
        let stream = net.connect_plain();
        net.settle_until(Duration::from_secs(1));
        net.write_plain(HOST, stream, b"MPA ID Req Fr");
        let (at, reason) = end_of(net, TARGET);
        assert!(matches!(reason, Disconnect::StartupTimeout { seconds: 5 }), "{reason:?}");
        assert!((Duration::from_secs(5)..Duration::from_millis(5100)).contains(&at.since(Time::default())), "{at:?}");
        let (_, end) = net.read_plain(HOST, stream, 1);
        assert_eq!(end, Some(ErrorKind::UnexpectedEof));
    });
}

#[test]
fn a_peer_that_sends_no_reply_has_ten_seconds() {
    each_seed::<Simulator>(|seed| {
        let net = &mut Net::<Simulator>::new(seed);
        net.sides[TARGET].plain = true;
        let address = net.address;
        let [host, _] = &mut net.sides;
        host.fabric.connect(&mut host.reactor, Transport::Iwarp, address, &config(), b"").unwrap();
        let (at, reason) = end_of(net, HOST);
        assert!(matches!(reason, Disconnect::StartupTimeout { seconds: 10 }), "{reason:?}");
        assert!(!reason.known_to_peer());
        assert!((Duration::from_secs(10)..Duration::from_millis(10100)).contains(&at.since(Time::default())), "{at:?}");
    });
}

#[test]
fn a_connection_that_came_up_has_no_time_limit() {
    each_seed::<Simulator>(|seed| {
        let pair = &mut Pair::<Simulator>::greeted(seed, &config());
        pair.net.settle_until(Duration::from_secs(3600));
        assert!(pair.net.sides.iter().all(|side| side.completions.is_empty()));
        pair.send(HOST, WorkId(1), &[1; 16], None, None);
        pair.next(|side, c| side == TARGET && matches!(c, Completion::Received { .. }));
    });
}

/// The bytes that a target made by hand gets behind the Request, within a time; `answers` are what it sends after its Reply.
fn heard_by_hand(seed: u64, posts: bool, answers: &[u8], time: Duration) -> Vec<u8> {
    let net = &mut Net::<Simulator>::new(seed);
    net.sides[TARGET].plain = true;
    let (address, config) = (net.address, QpConfig { crc: false, ..config() });
    let [host, _] = &mut net.sides;
    let qp = host.fabric.connect(&mut host.reactor, Transport::Iwarp, address, &config, b"").unwrap();
    net.settle_incoming();
    let target = &mut net.sides[TARGET];
    let incoming = target.incoming.pop_front().unwrap();
    let stream = target.reactor.adopt(incoming, Token(6)).unwrap();
    net.read_plain(TARGET, stream, 24);
    // Accepts, without a checksum, with as many reads.
    net.write_plain(TARGET, stream, &[&b"MPA ID Rep Frame\x10\x02\0\x04\0\x10\0\x10"[..], answers].concat());
    net.next(|side, c| side == HOST && matches!(c, Completion::Established { .. }));
    if posts {
        net.sides[HOST].fabric.post_send(qp, WorkId(1), &[1; 16], None, None);
    }
    net.settle_until(time);
    let mut heard = Vec::new();
    let mut chunk = [0; 64];
    loop {
        match net.sides[TARGET].reactor.receive(stream, &mut [IoSliceMut::new(&mut chunk)]) {
            Ok(count) if count > 0 => heard.extend(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return heard,
            ended => panic!("the stream ended: {ended:?}"),
        }
    }
}

#[test]
fn a_peer_that_lets_the_first_message_lie_is_nudged_a_few_times() {
    const MESSAGE: usize = 20 + 16 + 4;
    // An RDMA Write to STag 0 at 0, of nothing.
    let nudge = [0, 0x0e, 0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    each_seed::<Simulator>(|seed| {
        for (millis, nudges) in [(400, 0), (900, 1), (1400, 2), (3_600_000, 8)] {
            let heard = heard_by_hand(seed, true, b"", Duration::from_millis(millis));
            assert_eq!(heard[MESSAGE..], nudge.repeat(nudges), "after {millis} ms");
        }
    });
}

#[test]
fn a_peer_that_has_answered_or_was_told_nothing_is_left_alone() {
    // A Send.
    let answer = [&[0, 0x22, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0][..], &[2; 16], &[0; 4]].concat();
    each_seed::<Simulator>(|seed| {
        let hour = Duration::from_secs(3600);
        assert_eq!(heard_by_hand(seed, true, &answer, hour).len(), 20 + 16 + 4);
        assert_eq!(heard_by_hand(seed, false, b"", hour), b"");
    });
}

#[test]
fn a_cut_that_heals_loses_nothing() {
    each_seed::<Simulator>(|seed| {
        let pair = &mut Pair::<Simulator>::greeted(seed, &config());
        let (host, target) = (pair.side(HOST).reactor.id(), pair.side(TARGET).reactor.id());
        for round in 0..5_u8 {
            for id in 0..8 {
                let data = pair.buffer(HOST, &pattern(8192, round ^ id));
                pair.send(HOST, WorkId(id.into()), &[id; 16], Some(data), None);
            }
            pair.net.turn();
            pair.net.machines.world.partition(host, target, true);
            pair.net.settle_until(Duration::from_secs(60));
            pair.net.machines.world.partition(host, target, false);
            for id in 0..8 {
                let received = pair.next(|side, c| side == TARGET && matches!(c, Completion::Received { .. }));
                let Completion::Received { header, data, .. } = received else { unreachable!() };
                assert_eq!(header.as_bytes(), [id; 16]);
                assert!(*data.unwrap() == *pattern(8192, round ^ id));
                pair.next(|side, c| side == HOST && matches!(c, Completion::SendDone { .. }));
            }
        }
        assert_eq!(pair.net.in_use(), [0, 0]);
    });
}

#[test]
fn a_peer_that_stays_after_our_disconnect_is_given_up() {
    each_seed::<Simulator>(|seed| {
        let pair = &mut Pair::<Simulator>::greeted(seed, &config());
        let before = pair.net.machines.world.now();
        pair.disconnect(HOST);
        // The peer hears of the end, but its user does not react.
        let (at, reason) = {
            let [host, _] = &mut pair.net.sides;
            host.poll();
            loop {
                assert!(support::Machines::turn(&mut pair.net.machines, &mut pair.net.sides));
                let [host, _] = &mut pair.net.sides;
                host.handle_events();
                host.poll();
                if let Some((_, Completion::Disconnected { reason })) = host.completions.pop_front() {
                    break (pair.net.machines.world.now(), reason);
                }
            }
        };
        assert!(!reason.known_to_peer(), "{reason:?}");
        assert!((Duration::from_secs(5)..Duration::from_millis(5100)).contains(&at.since(before)), "{at:?}");
    });
}
