//! A peer made by hand that breaks the rules: it is told which, and nothing else happens.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use std::io;

use godwit_rdma::{Access, Completion, Disconnect, QpConfig, QpId, Remote, Transport, WorkId};
use godwit_reactor::{Reactor, StreamId, Token};
use support::endless::EndlessWorld;
use support::{HOST, Machines, Net, TARGET, config, on_both};

on_both!(
    each_violation_is_answered_by_its_terminate_and_then_the_end,
    a_bad_checksum_is_answered_by_its_terminate,
    a_terminate_of_the_peer_is_reported_and_not_answered,
    what_is_no_request_ends_the_connection_without_a_word,
    a_request_for_markers_is_rejected,
    what_is_no_reply_is_answered_by_a_terminate,
);

/// The first bytes of a Request or a Reply with the enhanced word: IRD 16, ORD 1.
fn frame(key: &str, flags: u8, private_data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + private_data.len()).unwrap().to_be_bytes();
    [key.as_bytes(), &[0x10 | flags, 2], &length, &[0, 16, 0, 1], private_data].concat()
}

/// An FPDU without a checksum.
fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let length = u16::try_from(ulpdu.len()).unwrap().to_be_bytes();
    let pad = (2 + ulpdu.len()).wrapping_neg() & 3;
    [&length, ulpdu, &vec![0; pad + 4]].concat()
}

fn tagged(control: [u8; 2], stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    fpdu(&[&control[..], &stag.to_be_bytes(), &to.to_be_bytes(), payload].concat())
}

fn untagged(control: [u8; 2], invalidate: u32, queue: u32, msn: u32, offset: u32, payload: &[u8]) -> Vec<u8> {
    let numbers = [invalidate, queue, msn, offset].map(u32::to_be_bytes).concat();
    fpdu(&[&control[..], &numbers, payload].concat())
}

fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged([0x41, 0x43], 0, 0, msn, 0, payload)
}

fn read_request(msn: u32, size: u32, source: Remote) -> Vec<u8> {
    let sink = [&77_u32.to_be_bytes()[..], &0_u64.to_be_bytes()].concat();
    let source = [&source.rkey.0.to_be_bytes()[..], &source.address.to_be_bytes()].concat();
    untagged([0x41, 0x41], 0, 1, msn, 0, &[&sink[..], &size.to_be_bytes(), &source].concat())
}

/// A Terminate as RFC 5040 wants it, about the segment at the start of `about`.
fn terminate(layer_and_type: u8, code: u8, about: &[u8]) -> Vec<u8> {
    let is_tagged = about.get(2).is_some_and(|control| control & 0x80 != 0);
    let (flags, header) = match (layer_and_type, about.get(3).map(|control| control & 0x0f)) {
        (0x20, _) => (0, &[][..]),
        (0x01, Some(1)) => (0xe0, &about[..48]),
        _ => (0xc0, &about[..if is_tagged { 16 } else { 20 }]),
    };
    untagged([0x41, 0x47], 0, 2, 1, 0, &[&[layer_and_type, code, flags, 0], header].concat())
}

struct Hand<M: Machines> {
    net: Net<M>,
    stream: StreamId,
    qp: QpId,
    /// What the target lends.
    readable: Remote,
    writable: Remote,
}

/// A connection whose host is made by hand and has sent a good message.
fn by_hand<M: Machines>(seed: u64, crc: bool) -> Hand<M> {
    let mut net = Net::<M>::new(seed);
    let stream = net.connect_plain();
    net.write_plain(HOST, stream, &frame("MPA ID Req Frame", 0, b"by hand"));
    let (qp, request) = net.next_of(|side, _, c| side == TARGET && matches!(c, Completion::ConnectRequest { .. }));
    let Completion::ConnectRequest { private_data, .. } = request else { unreachable!() };
    assert_eq!(&*private_data.0, b"by hand");
    let target = &mut net.sides[TARGET];
    let config = QpConfig { crc, inbound_reads: 1, outbound_reads: 4, ..config() };
    target.fabric.accept(&mut target.reactor, qp, &config, b"yes").unwrap();
    let lend = |target: &mut support::Side<M::Reactor>, access| {
        let buffer = target.buffer(&[7; 4096]);
        target.fabric.expose(qp, buffer, 4096, access).unwrap()
    };
    let (readable, writable) = (lend(target, Access::RemoteRead), lend(target, Access::RemoteWrite));
    let (reply, _) = net.read_plain(HOST, stream, 27);
    let flags = if crc { 0x40 } else { 0 };
    let mut expected = frame("MPA ID Rep Frame", flags, b"yes");
    expected[20..24].copy_from_slice(&[0, 1, 0, 4]);
    assert_eq!(reply, expected);
    Hand { net, stream, qp, readable, writable }
}

impl<M: Machines> Hand<M> {
    fn greet(&mut self) {
        self.net.write_plain(HOST, self.stream, &send(1, &[1; 16]));
        self.net.next(|side, c| side == TARGET && matches!(c, Completion::Received { .. }));
    }

    fn end(&mut self) -> Disconnect {
        let end = self.net.next(|side, c| side == TARGET && matches!(c, Completion::Disconnected { .. }));
        let Completion::Disconnected { reason } = end else { unreachable!() };
        reason
    }
}

/// What a peer sends, and the Terminate that answers it.
fn violations(readable: Remote, writable: Remote) -> Vec<(&'static str, Vec<u8>, u8, u8)> {
    let nobody = 0x00ab_cd01;
    let source = |rkey: u32| Remote { rkey: godwit_rdma::Rkey(rkey), ..readable };
    let (r, w) = (readable, writable);
    let write = |stag, to, len: usize| tagged([0xc1, 0x40], stag, to, &vec![9; len]);
    vec![
        ("write to an unknown STag", write(nobody, 0, 8), 0x11, 0),
        ("write beyond the region", write(w.rkey.0, w.address + 4096, 8), 0x11, 1),
        ("write before the region", write(w.rkey.0, w.address - 1, 8), 0x11, 1),
        ("write without the right", write(r.rkey.0, r.address, 8), 0x11, 0),
        ("write that wraps", write(w.rkey.0, u64::MAX - 3, 8), 0x11, 3),
        ("DDP version of a tagged segment", tagged([0xc0, 0x40], w.rkey.0, w.address, b"1234"), 0x11, 4),
        ("queue number", untagged([0x41, 0x43], 0, 3, 2, 0, &[1; 16]), 0x12, 1),
        ("MSN again", send(1, &[1; 16]), 0x12, 3),
        ("MSN ahead", send(3, &[1; 16]), 0x12, 3),
        ("message offset", untagged([0x41, 0x43], 0, 0, 2, 4, &[1; 16]), 0x12, 4),
        ("message too long", send(2, &[1; 8192 + 17]), 0x12, 5),
        ("DDP version of an untagged segment", untagged([0x42, 0x43], 0, 0, 2, 0, &[1; 16]), 0x12, 6),
        ("RDMAP version", untagged([0x41, 0x03], 0, 0, 2, 0, &[1; 16]), 0x02, 5),
        ("opcode", untagged([0x41, 0x4f], 0, 0, 2, 0, &[1; 16]), 0x02, 6),
        ("invalidation of nothing", untagged([0x41, 0x44], nobody, 0, 2, 0, &[1; 16]), 0x02, 9),
        ("read of an unknown STag", read_request(1, 8, source(nobody)), 0x01, 0),
        ("read beyond the region", read_request(1, 4097, r), 0x01, 1),
        ("read without the right", read_request(1, 8, w), 0x01, 2),
        ("read that wraps", read_request(1, 8, Remote { address: u64::MAX - 3, ..r }), 0x01, 4),
        ("length without room for the headers", fpdu(&[0x41, 0x43, 0, 0, 0]), 0x20, 3),
    ]
}

fn each_violation_is_answered_by_its_terminate_and_then_the_end<M: Machines>(seed: u64) {
    let Hand { readable, writable, .. } = by_hand::<M>(seed, false);
    for (name, bytes, layer_and_type, code) in violations(readable, writable) {
        let mut hand = by_hand::<M>(seed, false);
        hand.greet();
        // Work is under way, and flushed.
        let [_, target] = &mut hand.net.sides;
        let sink = target.pool().take(4096).unwrap();
        target.fabric.post_read(hand.qp, WorkId(1), sink, 4096, Remote { rkey: godwit_rdma::Rkey(1), address: 0 });
        hand.net.read_plain(HOST, hand.stream, 52);
        hand.net.write_plain(HOST, hand.stream, &bytes);
        let expected = terminate(layer_and_type, code, &bytes);
        let (answer, end) = hand.net.read_plain(HOST, hand.stream, expected.len() + 1);
        assert_eq!((&answer, end), (&expected, Some(io::ErrorKind::UnexpectedEof)), "{name}");
        hand.net.next(|side, c| side == TARGET && matches!(c, Completion::Flushed { id: WorkId(1), data: Some(_) }));
        let reason = hand.end();
        assert!(matches!(reason, Disconnect::Violation(_)) && !reason.known_to_peer(), "{name}: {reason:?}");
        for (remote, name) in [(readable, "readable"), (writable, "writable")] {
            let lent = hand.net.sides[TARGET].fabric.revoke(hand.qp, remote.rkey).unwrap();
            assert!(lent.iter().all(|&byte| byte == 7), "{name} memory was changed");
        }
        let [_, target] = &mut hand.net.sides;
        target.fabric.destroy(&mut target.reactor, hand.qp);
        assert_eq!(target.pool().in_use(), 0);
    }
}

fn a_bad_checksum_is_answered_by_its_terminate<M: Machines>(seed: u64) {
    let mut hand = by_hand::<M>(seed, true);
    let write = [
        &[0, 0x0e, 0xc1, 0x40, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0, 0, 0, 0x10, 0][..],
        // The checksum of an empty Write, as RFC 5044 puts it on the wire.
        &[0xc5, 0x99, 0xe9, 0xa9],
    ]
    .concat();
    hand.net.write_plain(HOST, hand.stream, &write);
    hand.net.settle();
    let mut bad = write;
    bad[19] ^= 1;
    hand.net.write_plain(HOST, hand.stream, &bad);
    let (answer, end) = hand.net.read_plain(HOST, hand.stream, 29);
    assert_eq!(answer[..24], terminate(0x20, 2, &[])[..24]);
    assert_eq!((answer.len(), end), (28, Some(io::ErrorKind::UnexpectedEof)));
    assert!(matches!(hand.end(), Disconnect::Violation(_)));
}

fn a_terminate_of_the_peer_is_reported_and_not_answered<M: Machines>(seed: u64) {
    let mut hand = by_hand::<M>(seed, false);
    hand.greet();
    hand.net.write_plain(HOST, hand.stream, &terminate(0x12, 2, &send(1, &[0; 16])));
    let (answer, end) = hand.net.read_plain(HOST, hand.stream, 1);
    assert_eq!((&answer[..], end), (&[][..], Some(io::ErrorKind::UnexpectedEof)));
    let reason = hand.end();
    assert!(reason.known_to_peer());
    let Disconnect::Terminated(why) = reason else { panic!("{reason:?}") };
    assert!(why.contains("1/2/02 (untagged: no buffer)"), "{why}");
}

fn what_is_no_request_ends_the_connection_without_a_word<M: Machines>(seed: u64) {
    let cases = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        frame("MPA ID Rep Frame", 0, &[]),
        [b"MPA ID Req Frame", &[0x10, 3, 0, 4, 0, 1, 0, 1][..]].concat(),
        [b"MPA ID Req Frame", &[0x10, 2, 2, 1][..]].concat(),
        [frame("MPA ID Req Frame", 0, &[]), send(1, &[0; 16])].concat(),
    ];
    for (index, bytes) in cases.iter().enumerate() {
        let mut net = Net::<M>::new(seed);
        let stream = net.connect_plain();
        net.write_plain(HOST, stream, bytes);
        let end = net.next(|side, c| side == TARGET && !matches!(c, Completion::ConnectRequest { .. }) || index == 4);
        // Glued to a Request, an FPDU is noticed where it arrives with it.
        if index == 4 && matches!(end, Completion::ConnectRequest { .. }) {
            continue;
        }
        assert!(matches!(end, Completion::Disconnected { reason: Disconnect::Startup(_) }), "case {index}: {end:?}");
        let (answer, end) = net.read_plain(HOST, stream, 1);
        assert_eq!((&answer[..], end), (&[][..], Some(io::ErrorKind::UnexpectedEof)), "case {index}");
    }
}

fn a_request_for_markers_is_rejected<M: Machines>(seed: u64) {
    let mut net = Net::<M>::new(seed);
    let stream = net.connect_plain();
    net.write_plain(HOST, stream, &frame("MPA ID Req Frame", 0x80, &[]));
    let (answer, end) = net.read_plain(HOST, stream, 25);
    assert_eq!((answer.len(), answer[16], end), (24, 0x30, Some(io::ErrorKind::UnexpectedEof)));
    net.next(|side, c| side == TARGET && matches!(c, Completion::Disconnected { reason: Disconnect::Startup(_) }));
}

fn what_is_no_reply_is_answered_by_a_terminate<M: Machines>(seed: u64) {
    let mut net = Net::<M>::new(seed);
    net.sides[TARGET].plain = true;
    let [host, _] = &mut net.sides;
    host.fabric.connect(&mut host.reactor, Transport::Iwarp, net.address, &config(), b"").unwrap();
    net.settle_incoming();
    let incoming = net.sides[TARGET].incoming.pop_front().unwrap();
    let stream = net.sides[TARGET].reactor.adopt(incoming, Token(6)).unwrap();
    let (request, _) = net.read_plain(TARGET, stream, 24);
    assert_eq!(&request[..16], b"MPA ID Req Frame");
    net.write_plain(TARGET, stream, b"SSH-2.0-OpenSSH_9.2\r\n");
    let (answer, end) = net.read_plain(TARGET, stream, 29);
    assert_eq!(answer[..24], terminate(0x20, 4, &[])[..24]);
    assert_eq!((answer.len(), end), (28, Some(io::ErrorKind::UnexpectedEof)));
    let end = net.next(|side, c| side == HOST && matches!(c, Completion::Disconnected { .. }));
    let Completion::Disconnected { reason: Disconnect::Startup(why) } = end else { panic!("{end:?}") };
    assert!(why.contains("does not speak MPA"), "{why}");
}

/// What comes over and over does not keep a thread from everything else: each turn reads a part.
fn flooded(end_first: bool) {
    let mut hand = by_hand::<EndlessWorld>(1, false);
    hand.greet();
    let Remote { rkey, address } = hand.writable;
    let [_, target] = &mut hand.net.sides;
    if end_first {
        target.fabric.disconnect(&mut target.reactor, hand.qp);
    }
    target.reactor.reads = 0;
    target.reactor.flood = tagged([0xc1, 0x40], rkey.0, address, &[9; 4000]);
    hand.net.write_plain(HOST, hand.stream, &[0]);
    for turn in 1..4 {
        hand.net.machines.turn(&mut hand.net.sides);
        let [_, target] = &mut hand.net.sides;
        target.handle_events();
        target.poll();
        assert!((turn..100 * turn).contains(&target.reactor.reads), "{} reads by turn {turn}", target.reactor.reads);
        assert!(target.completions.is_empty(), "{:?}", target.completions);
    }
}

#[test]
fn a_flood_of_writes_is_read_in_parts() {
    flooded(false);
}

#[test]
fn a_flood_after_our_disconnect_is_discarded_in_parts() {
    flooded(true);
}
