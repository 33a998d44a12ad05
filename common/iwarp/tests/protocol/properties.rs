//! Arbitrary bytes and mutated traffic: no panic, no growth, and nothing placed where it must not be.

use godwit_iwarp::{
    Connection, Fault, FpduSize, Initiator, Negotiated, Options, Received, Reply, Responder, Role, RtrKinds, SendKind, Stag, StartupConfig,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{Arena, ReadRequest, Region, Untagged, fpdu, tagged};

const STAG: u32 = 0x0400;
const CLOSED: u32 = 0x0700;
const BASE: u64 = 0x1000;
const SIZE: usize = 256;
const IRD: usize = 2;

fn arena() -> Arena {
    let mut arena = Arena::with_receives(&[512; 3]);
    arena.regions.insert(STAG, Region::open(BASE, vec![0; SIZE]));
    arena.regions.insert(CLOSED, Region { remote_write: false, remote_read: false, ..Region::open(BASE, vec![0x77; SIZE]) });
    arena.waits = 1;
    arena
}

fn connection(role: Role, crc: bool) -> Connection {
    let options = Options { fpdu: FpduSize::Payload(64), ..Options::default() };
    let mut connection = Connection::new(role, Negotiated { crc, ird: 2, ord: 2, rtr: None }, options);
    for id in 0..3 {
        connection.post_read(id, (Stag(9), 0), 100).expect("room");
        connection.post_send(id + 100, SendKind::Plain, 10).expect("room");
    }
    connection
}

/// Feeds `bytes` in bites, sends what there is to send, and ends the stream after a fault as a driver would.
fn survive(mut connection: Connection, bytes: &[u8], bite: usize, arena: &mut Arena) -> Result<Vec<Received>, Fault> {
    let mut rest = bytes;
    let mut events = Vec::new();
    loop {
        if rest.len().is_multiple_of(3) {
            drain(&mut connection);
        }
        let part = &rest[..rest.len().min(bite)];
        let (consumed, event) = match connection.receive(part, arena) {
            Ok(outcome) => outcome,
            Err(fault) => {
                assert!(connection.is_ended() && !connection.has_work());
                assert!(connection.terminate(&fault).is_none_or(|segment| fault.terminate_code().is_some() && segment.len == 0));
                assert!(!fault.to_string().contains('\n'));
                return Err(fault);
            }
        };
        assert!(connection.inbound_reads() <= IRD);
        rest = &rest[consumed..];
        let landing = connection.landing();
        assert!(landing.is_none_or(|landing| landing.len > 0 && landing.len <= 65_521));
        match event {
            Received::NeedMore if rest.is_empty() => return Ok(events),
            Received::NeedMore => {
                assert_eq!(consumed, part.len());
                continue;
            }
            Received::Message { length, .. } => arena.deliver(length),
            _ => {}
        }
        events.push(event);
    }
}

fn drain(connection: &mut Connection) {
    while let Some(segment) = connection.next_segment() {
        assert!(segment.len <= 64 && segment.wire_len().is_multiple_of(4));
        assert_eq!(segment.header().len() + segment.len - 2, usize::from(u16::from_be_bytes([segment.header()[0], segment.header()[1]])));
    }
}

/// A ULPDU whose fields are near what is valid, more often than not.
fn ulpdu() -> impl Strategy<Value = Vec<u8>> {
    let near = || prop_oneof![6 => 0..4_u32, 1 => any::<u32>()];
    let offset = || prop_oneof![4 => BASE..BASE + 300, 2 => 0..101_u64, 1 => any::<u64>()];
    let stag = || prop_oneof![4 => Just(STAG), 1 => Just(CLOSED), 2 => 1..4_u32, 1 => any::<u32>()];
    let control = |tagged: u8| {
        let ddp = prop_oneof![6 => Just(0x41_u8), 3 => Just(0x01), 1 => any::<u8>()].prop_map(move |ddp| ddp | tagged);
        let rdmap = prop_oneof![9 => (0..8_u8).prop_map(|opcode| 0x40 | opcode), 1 => any::<u8>()];
        (ddp, rdmap)
    };
    let payload = || vec(any::<u8>(), 0..80);
    let tagged = (control(0x80), stag(), offset(), payload())
        .prop_map(|((ddp, rdmap), stag, to, payload)| [&[ddp, rdmap][..], &stag.to_be_bytes(), &to.to_be_bytes(), &payload].concat());
    let untagged = (control(0), stag(), near(), near(), near(), payload()).prop_map(|((ddp, rdmap), stag, queue, msn, offset, payload)| {
        [&[ddp, rdmap][..], &stag.to_be_bytes(), &queue.to_be_bytes(), &msn.to_be_bytes(), &offset.to_be_bytes(), &payload].concat()
    });
    let request = (1..5_u32, stag(), offset(), near(), stag(), offset()).prop_map(|(msn, sink, to, size, source, from)| {
        let request = ReadRequest { msn, sink: (sink, to), size, source: (source, from) };
        request.bytes()[2..48].to_vec()
    });
    prop_oneof![2 => tagged, 2 => untagged, 1 => request]
}

/// Traffic that is valid for `connection`: a Send in two segments around a Write, Read Responses, Read Requests.
fn valid() -> Vec<u8> {
    let send = |control, msn, offset, payload: &[u8]| Untagged { control, offset, ..Untagged::send(msn) }.with(payload);
    [
        send([0x01, 0x43], 1, 0, b"first half"),
        tagged([0x81, 0x40], STAG, BASE, &[1; 40]),
        send([0x41, 0x43], 1, 10, b"second half"),
        tagged([0xc1, 0x40], STAG, BASE + 40, &[2; 41]),
        tagged([0x81, 0x42], 1, 0, &[3; 60]),
        ReadRequest { msn: 1, sink: (5, 6), size: 100, source: (STAG, BASE) }.bytes(),
        tagged([0xc1, 0x42], 1, 60, &[4; 40]),
        Untagged { control: [0x41, 0x46], stag: STAG, ..Untagged::send(2) }.with(b"done"),
    ]
    .concat()
}

/// A connection whose first read request is sent, as [`valid`] expects.
fn reading() -> Connection {
    let mut connection = connection(Role::Initiator, true);
    drain(&mut connection);
    connection
}

#[test]
fn traffic_before_its_mutation_is_valid() {
    let mut arena = arena();
    let events = survive(reading(), &valid(), usize::MAX, &mut arena).unwrap();
    assert_eq!(events.iter().filter(|event| **event != Received::Stalled).count(), 4);
    assert_eq!(arena.messages, [&b"first halfsecond half"[..], b"done"]);
    assert_eq!(arena.sinks[&0].len(), 100);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_survived(bytes in vec(any::<u8>(), 0..400), bite in 1..64_usize, crc: bool, responder: bool) {
        let role = if responder { Role::Responder } else { Role::Initiator };
        let _ = survive(connection(role, crc), &bytes, bite, &mut arena());
    }

    #[test]
    fn any_segments_are_survived_and_closed_memory_stays_as_it_is(ulpdus in vec(ulpdu(), 0..12), bite in 1..200_usize, crc: bool) {
        let bytes: Vec<u8> = ulpdus.iter().flat_map(|ulpdu| fpdu(ulpdu)).collect();
        let mut arena = arena();
        let _ = survive(connection(Role::Responder, crc), &bytes, bite, &mut arena);
        if let Some(closed) = arena.regions.get(&CLOSED) {
            prop_assert_eq!(&closed.bytes, &vec![0x77; SIZE]);
        }
        prop_assert!(arena.sinks.values().all(|sink| sink.len() <= 100));
    }

    #[test]
    fn valid_traffic_means_the_same_in_any_bites(bite in 1..400_usize) {
        let (mut whole, mut bitten) = (arena(), arena());
        let expected = survive(reading(), &valid(), usize::MAX, &mut whole);
        prop_assert_eq!(survive(reading(), &valid(), bite, &mut bitten), expected);
        prop_assert_eq!((whole.messages, whole.sinks), (bitten.messages, bitten.sinks));
    }

    #[test]
    fn mutated_traffic_never_delivers_all_messages(at in 0..valid().len(), flip in 1..=255_u8, bite in 1..200_usize) {
        let mut bytes = valid();
        bytes[at] ^= flip;
        let mut arena = arena();
        let outcome = survive(reading(), &bytes, bite, &mut arena);
        prop_assert!(outcome.is_err() || arena.messages.len() < 2, "a byte that no CRC covers at {}", at);
        let delivered = [&b"first halfsecond half"[..], b"done"];
        prop_assert!(arena.messages.iter().zip(delivered).all(|(got, sent)| got == sent));
    }

    #[test]
    fn cut_traffic_is_waited_for(end in 0..valid().len()) {
        let outcome = survive(reading(), &valid()[..end], 50, &mut arena());
        prop_assert!(outcome.is_ok());
    }

    #[test]
    fn any_start_up_bytes_are_survived(
        bytes in vec(any::<u8>(), 0..80),
        key in 0..3_usize,
        flags: u8,
        revision in 0..4_u8,
        cut in 0..80_usize,
    ) {
        let key: &[u8] = [&b""[..], b"MPA ID Req Frame", b"MPA ID Rep Frame"][key];
        let length = u16::try_from(bytes.len()).expect("short").to_be_bytes();
        let frame = [key, &[flags, revision], &length, &bytes].concat();
        let (front, back) = frame.split_at(cut.min(frame.len()));

        let mut responder = Responder::new(false);
        let first = responder.receive(front);
        if let Ok((consumed, None)) = &first {
            prop_assert_eq!(*consumed, front.len());
            if let Ok((consumed, Some(request))) = responder.receive(back) {
                prop_assert_eq!(consumed, back.len());
                prop_assert_eq!(request.private_data.len() + if request.enhanced { 4 } else { 0 }, bytes.len());
                let (reply, negotiated) = responder.accept(1, 128, b"").expect("within the limits");
                prop_assert!(reply.len() <= 24 && negotiated.ird <= 128 && negotiated.ord <= 128);
            }
        }

        let kinds = RtrKinds { write: true, read: true, send: true };
        let config = StartupConfig { crc: false, ird: 8, ord: 8, peer_to_peer: Some(kinds) };
        let mut initiator = Initiator::new(config, b"").expect("within the limits");
        match initiator.receive(&frame) {
            Ok((_, Some(Reply::Accepted { parameters, .. }))) => prop_assert!(parameters.ird == 8 && parameters.ord <= 8),
            Ok(_) => {}
            Err(error) => prop_assert!(error.terminate().is_some_and(|terminate| terminate.len() == 28)),
        }
    }
}
