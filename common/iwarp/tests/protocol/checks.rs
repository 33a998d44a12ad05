//! A transcript for each check on what a peer sends: the error, its Terminate, and valid traffic that is close to it.

use godwit_iwarp::{
    Connection, Fault, FaultKind, InvalidateError, Landing, Misuse, Msn, Negotiated, Opcode, Options, Place, QueueNumber, Received, Role,
    SendKind, Source, Stag, TaggedError, TerminateCode, TerminateInfo,
};

use crate::support::{
    Arena, ReadRequest, Region, Untagged, connection, feed, fpdu, message, negotiated, read_request, send, tagged, write,
};

const LIVE: u32 = 0x0000_1100;
const BASE: u64 = 0x7000;

/// One region of 64 bytes, and receives of 100 bytes.
fn arena() -> Arena {
    let mut arena = Arena::with_receives(&[100; 4]);
    arena.regions.insert(LIVE, Region::open(BASE, vec![0; 64]));
    arena
}

/// Feeds `bytes` to an established connection with CRC; they end in a fault.
fn fault(bytes: &[u8], arena: &mut Arena) -> (Connection, Fault) {
    let mut connection = connection(Role::Initiator, true);
    let fault = feed(&mut connection, bytes, arena).expect_err("this traffic is invalid");
    (connection, fault)
}

fn kind_of(bytes: &[u8]) -> FaultKind {
    fault(bytes, &mut arena()).1.kind
}

/// The bytes of the Terminate from its layer on, after which the stream is dead.
fn terminate_of(bytes: &[u8], arena: &mut Arena) -> Vec<u8> {
    let (mut connection, fault) = fault(bytes, arena);
    let segment = connection.terminate(&fault).expect("this fault has a Terminate");
    assert_eq!(segment.header()[2..20], [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(segment.source, Source::Nothing);
    assert!(connection.is_ended());
    assert_eq!(connection.terminate(&fault).map(|_| ()), None, "only one Terminate");
    assert!(connection.next_segment().is_none());
    assert_eq!(connection.post_send(1, SendKind::Plain, 0), Err(Misuse::Ended));
    assert_eq!(connection.receive(&[1; 99], arena), Ok((99, Received::NeedMore)), "what follows is discarded");
    segment.header()[20..].to_vec()
}

/// Checks that `bytes` are answered with a Terminate of `code` that shows the DDP header of `segment`.
fn terminates(bytes: &[u8], code: [u8; 2], segment: &[u8]) {
    let ddp_header = if segment[2] & 0x80 == 0 { 20 } else { 16 };
    let expected = [&code[..], &[0xc0, 0], &segment[..ddp_header]].concat();
    assert_eq!(terminate_of(bytes, &mut arena()), expected);
}

/// Checks that the connection is dropped without a Terminate.
fn drops(bytes: &[u8], arena: &mut Arena) -> FaultKind {
    let (mut connection, fault) = fault(bytes, arena);
    assert_eq!(fault.terminate_code(), None);
    assert!(connection.terminate(&fault).is_none());
    assert!(connection.is_ended());
    fault.kind
}

fn raw(control: [u8; 2], rest: usize) -> Vec<u8> {
    fpdu(&[&control[..], &vec![0; rest]].concat())
}

#[test]
fn unsupported_ddp_version() {
    for version in [0, 2, 3] {
        let bytes = raw([0xc0 | version, 0x40], 12);
        assert_eq!(kind_of(&bytes), FaultKind::DdpVersion { version, tagged: true });
        terminates(&bytes, [0x11, 0x04], &bytes);
        let bytes = raw([0x40 | version, 0x43], 16);
        assert_eq!(kind_of(&bytes), FaultKind::DdpVersion { version, tagged: false });
        terminates(&bytes, [0x12, 0x06], &bytes);
    }
}

#[test]
fn unsupported_rdmap_version() {
    for version in [0, 2, 3] {
        let bytes = raw([0x41, version << 6 | 3], 16);
        assert_eq!(kind_of(&bytes), FaultKind::RdmapVersion { version });
        terminates(&bytes, [0x02, 0x05], &bytes);
    }
}

#[test]
fn unknown_opcode_and_opcode_in_the_wrong_model() {
    for opcode in 8..16 {
        let bytes = raw([0x41, 0x40 | opcode], 16);
        assert_eq!(kind_of(&bytes), FaultKind::Opcode { opcode: Opcode(opcode), tagged: false });
        terminates(&bytes, [0x02, 0x06], &bytes);
    }
    for (control, rest) in [([0xc1, 0x43], 12), ([0x41, 0x40], 16), ([0x41, 0x42], 16), ([0xc1, 0x41], 44)] {
        terminates(&raw(control, rest), [0x02, 0x06], &raw(control, rest));
    }
}

#[test]
fn reserved_bits_are_ignored() {
    let mut bytes = Untagged { control: [0x7d, 0x73], stag: 9, ..Untagged::send(1) };
    let events = feed(&mut connection(Role::Initiator, true), &bytes.with(b"abc"), &mut arena());
    assert_eq!(events, Ok(vec![message(3)]));
    bytes.control[1] = 0xb3;
    assert!(matches!(kind_of(&bytes.with(b"abc")), FaultKind::RdmapVersion { version: 2 }));
}

#[test]
fn ulpdu_length_below_the_headers_of_the_opcode() {
    let shortest = [([0xc1, 0x40], 14), ([0xc1, 0x42], 14), ([0x41, 0x43], 18), ([0x41, 0x41], 46), ([0x41, 0x47], 22)];
    for (control, least) in shortest {
        let length = usize::from(least);
        assert_ne!(
            feed(&mut connection(Role::Initiator, true), &raw(control, length - 2), &mut arena()).map_err(|fault| fault.kind),
            Err(FaultKind::UlpduLength { found: least, least }),
        );
        let bytes = raw(control, length - 3);
        assert!(matches!(kind_of(&bytes), FaultKind::UlpduLength { .. }));
        assert_eq!(terminate_of(&bytes, &mut arena()), [0x20, 0x03, 0, 0]);
    }
    for length in 0..2 {
        assert!(matches!(kind_of(&[0, length, 0xc1, 0x40]), FaultKind::UlpduLength { found: 0 | 1, least: 14 }));
    }
}

#[test]
fn wrong_crc() {
    let good = send(1, b"hello");
    for byte in 0..good.len() {
        let mut bytes = good.clone();
        bytes[byte] ^= 1;
        // A few flips are met by a check of the header, or wait for bytes that do not come, before the CRC.
        let outcome = feed(&mut connection(Role::Initiator, true), &bytes, &mut arena());
        assert_ne!(outcome, Ok(vec![message(5)]), "byte {byte} is covered");
    }
    let mut bytes = good;
    bytes[20] ^= 0x80;
    assert!(matches!(kind_of(&bytes), FaultKind::Crc { .. }));
    assert_eq!(terminate_of(&bytes, &mut arena()), [0x20, 0x02, 0, 0]);
}

#[test]
fn crc_is_not_looked_at_when_not_negotiated() {
    let mut bytes = send(1, b"hello");
    let end = bytes.len();
    bytes[end - 4..].fill(0xee);
    assert_eq!(feed(&mut connection(Role::Initiator, false), &bytes, &mut arena()), Ok(vec![message(5)]));
}

#[test]
fn message_inside_an_unfinished_one_of_its_class() {
    let open_send = Untagged { control: [0x01, 0x43], ..Untagged::send(1) }.with(b"abcd");
    let open_write = tagged([0x81, 0x40], LIVE, BASE, b"abcd");
    let other_send = Untagged { control: [0x41, 0x45], offset: 4, ..Untagged::send(1) }.with(b"efgh");
    let interleaved = |opcode, unfinished| FaultKind::Interleaved { opcode, unfinished };
    assert_eq!(drops(&[open_send.clone(), other_send].concat(), &mut arena()), interleaved(Opcode::SEND_SOLICITED, Opcode::SEND));
    assert_eq!(
        drops(&[open_send.clone(), read_request(1, 4, (LIVE, BASE))].concat(), &mut arena()),
        interleaved(Opcode::READ_REQUEST, Opcode::SEND)
    );
    let response = tagged([0xc1, 0x42], 1, 0, b"");
    assert_eq!(drops(&[open_write.clone(), response].concat(), &mut arena()), interleaved(Opcode::READ_RESPONSE, Opcode::WRITE));
}

#[test]
fn tagged_and_untagged_messages_may_alternate() {
    let bytes = [
        Untagged { control: [0x01, 0x43], ..Untagged::send(1) }.with(b"abcd"),
        tagged([0x81, 0x40], LIVE, BASE, b"1234"),
        Untagged { control: [0x41, 0x43], offset: 4, ..Untagged::send(1) }.with(b"efgh"),
        tagged([0xc1, 0x40], LIVE, BASE + 4, b"5678"),
    ]
    .concat();
    let mut arena = arena();
    assert_eq!(feed(&mut connection(Role::Initiator, true), &bytes, &mut arena), Ok(vec![message(8)]));
    assert_eq!(arena.messages, [b"abcdefgh"]);
    assert_eq!(arena.regions[&LIVE].bytes[..8], *b"12345678");
}

#[test]
fn write_inside_an_unfinished_read_response() {
    let mut connection = reader(8);
    let bytes = [tagged([0x81, 0x42], 1, 0, b"abcd"), write(LIVE, BASE, b"x")].concat();
    let fault = feed(&mut connection, &bytes, &mut arena()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Interleaved { opcode: Opcode::WRITE, unfinished: Opcode::READ_RESPONSE });
    assert_eq!(fault.terminate_code(), None);
}

#[test]
fn wrong_queue_number() {
    for (control, queue, rest) in [([0x41, 0x43], 1, 0), ([0x41, 0x41], 0, 28), ([0x41, 0x47], 0, 4), ([0x41, 0x44], 3, 0)] {
        let bytes = Untagged { control, queue, ..Untagged::send(1) }.with(&vec![0; rest]);
        let opcode = Opcode(control[1] & 0x0f);
        assert_eq!(kind_of(&bytes), FaultKind::Queue { opcode, found: QueueNumber(queue) });
        terminates(&bytes, [0x12, 0x01], &bytes);
    }
}

#[test]
fn msn_that_is_not_the_next_one() {
    let msn = |queue, found, expected| FaultKind::Msn { queue, found: Msn(found), expected: Msn(expected) };
    for found in [0, 2, u32::MAX] {
        assert_eq!(kind_of(&send(found, b"")), msn(QueueNumber::SEND, found, 1));
        terminates(&send(found, b""), [0x12, 0x03], &send(found, b""));
        assert_eq!(kind_of(&read_request(found, 0, (0, 0))), msn(QueueNumber::READ_REQUEST, found, 1));
    }
    let twice = [send(1, b"a"), send(1, b"a")].concat();
    assert_eq!(kind_of(&twice), msn(QueueNumber::SEND, 1, 2));
    let next_while_open = [Untagged { control: [0x01, 0x43], ..Untagged::send(1) }.with(b"a"), send(2, b"b")].concat();
    assert_eq!(kind_of(&next_while_open), msn(QueueNumber::SEND, 2, 1));
    let terminate = Untagged { control: [0x41, 0x47], queue: 2, ..Untagged::send(2) }.with(&[0; 4]);
    assert_eq!(kind_of(&terminate), msn(QueueNumber::TERMINATE, 2, 1));
}

#[test]
fn each_queue_counts_its_own_messages() {
    let bytes = [send(1, b"a"), read_request(1, 0, (0, 0)), send(2, b"b"), read_request(2, 0, (0, 0)), send(3, b"c")].concat();
    let expected = [message(1), Received::ReadRequested, message(1), Received::ReadRequested, message(1)];
    assert_eq!(feed(&mut connection(Role::Initiator, true), &bytes, &mut arena()), Ok(expected.to_vec()));
}

#[test]
fn message_offset_that_does_not_continue() {
    let part = |offset| Untagged { control: [0x01, 0x43], offset, ..Untagged::send(1) }.with(b"abcd");
    let offset = |found, expected| FaultKind::MessageOffset { queue: QueueNumber::SEND, found, expected };
    assert_eq!(kind_of(&part(4)), offset(4, 0));
    terminates(&part(4), [0x12, 0x04], &part(4));
    assert_eq!(kind_of(&[part(0), part(0)].concat()), offset(0, 4));
    assert_eq!(kind_of(&[part(0), part(3)].concat()), offset(3, 4));
    assert_eq!(kind_of(&[part(0), part(5)].concat()), offset(5, 4));
    assert!(feed(&mut connection(Role::Initiator, true), &[part(0), part(4)].concat(), &mut arena()).is_ok());
    for (control, queue, rest) in [([0x41, 0x41], 1, 28), ([0x41, 0x47], 2, 4)] {
        let bytes = Untagged { control, queue, offset: 1, ..Untagged::send(1) }.with(&vec![0; rest]);
        terminates(&bytes, [0x12, 0x04], &bytes);
    }
}

#[test]
fn send_without_a_posted_receive() {
    let bytes = send(1, b"");
    let (mut connection, fault) = fault(&bytes, &mut Arena::default());
    assert_eq!(fault.kind, FaultKind::NoReceivePosted);
    let terminate = connection.terminate(&fault).unwrap();
    assert_eq!(terminate.header()[20..], [&[0x12, 0x02, 0xc0, 0], &bytes[..20]].concat());
}

#[test]
fn send_longer_than_its_buffer() {
    let fits = send(1, &[7; 100]);
    assert_eq!(feed(&mut connection(Role::Initiator, true), &fits, &mut arena()), Ok(vec![message(100)]));
    let bytes = send(1, &[7; 101]);
    assert_eq!(kind_of(&bytes), FaultKind::TooLong);
    terminates(&bytes, [0x12, 0x05], &bytes);
}

#[test]
fn stag_to_invalidate_that_changes_within_a_message() {
    let part = |control, stag, offset| Untagged { control, stag, offset, ..Untagged::send(1) }.with(b"abcd");
    let bytes = [part([0x01, 0x44], LIVE, 0), part([0x41, 0x44], 5, 4)].concat();
    let expected = FaultKind::InvalidateChanged { found: Stag(5), expected: Stag(LIVE) };
    assert_eq!(drops(&bytes, &mut arena()), expected);
    let same = [part([0x01, 0x44], LIVE, 0), part([0x41, 0x44], LIVE, 4)].concat();
    let event = Received::Message { length: 8, invalidated: Some(Stag(LIVE)), solicited: false };
    assert_eq!(feed(&mut connection(Role::Initiator, true), &same, &mut arena()), Ok(vec![event]));
}

#[test]
fn invalidation_happens_after_the_whole_message() {
    for (control, solicited) in [([0x41, 0x44], false), ([0x41, 0x46], true)] {
        let mut bytes = Untagged { control, stag: LIVE, ..Untagged::send(1) }.with(b"done");
        let mut arena = arena();
        let event = Received::Message { length: 4, invalidated: Some(Stag(LIVE)), solicited };
        assert_eq!(feed(&mut connection(Role::Initiator, true), &bytes, &mut arena), Ok(vec![event]));
        assert_eq!(arena.invalidated, [Stag(LIVE)]);

        bytes[21] ^= 1;
        let (_, fault) = fault(&bytes, &mut self::arena());
        assert!(matches!(fault.kind, FaultKind::Crc { .. }), "and not with a wrong CRC");
    }
    let solicited = Untagged { control: [0x41, 0x45], ..Untagged::send(1) }.with(b"");
    let event = Received::Message { length: 0, invalidated: None, solicited: true };
    assert_eq!(feed(&mut connection(Role::Initiator, true), &solicited, &mut arena()), Ok(vec![event]));
}

#[test]
fn invalidation_of_stag_0_is_none() {
    for (control, solicited) in [([0x41, 0x44], false), ([0x41, 0x46], true)] {
        let bytes = Untagged { control, stag: 0, ..Untagged::send(1) }.with(b"done");
        let mut arena = arena();
        let event = Received::Message { length: 4, invalidated: None, solicited };
        assert_eq!(feed(&mut connection(Role::Initiator, true), &bytes, &mut arena), Ok(vec![event]));
        assert_eq!(arena.invalidated, []);
    }
}

#[test]
fn stag_that_cannot_be_invalidated() {
    let bytes = Untagged { control: [0x41, 0x44], stag: 0x999, ..Untagged::send(1) }.with(b"");
    let invalidate = |stag, error| FaultKind::Invalidate { stag: Stag(stag), error };
    assert_eq!(kind_of(&bytes), invalidate(0x999, InvalidateError::InvalidStag));
    terminates(&bytes, [0x02, 0x09], &bytes);

    let bytes = Untagged { control: [0x41, 0x44], stag: LIVE, ..Untagged::send(1) }.with(b"");
    let mut arena = arena();
    arena.pinned.push(Stag(LIVE));
    assert_eq!(fault(&bytes, &mut arena.clone()).1.kind, invalidate(LIVE, InvalidateError::Access));
    assert_eq!(terminate_of(&bytes, &mut arena), [&[0x01, 0x09, 0xc0, 0], &bytes[..20]].concat());
}

#[test]
fn write_within_bounds_is_placed() {
    let mut arena = arena();
    let bytes = [write(LIVE, BASE, b"first"), write(LIVE, BASE + 60, b"last")].concat();
    assert_eq!(feed(&mut connection(Role::Initiator, true), &bytes, &mut arena), Ok(vec![]));
    assert_eq!((&arena.regions[&LIVE].bytes[..5], &arena.regions[&LIVE].bytes[60..]), (&b"first"[..], &b"last"[..]));
}

#[test]
fn write_that_memory_refuses() {
    let mut shared = arena();
    shared.regions.insert(2, Region { remote_write: false, ..Region::open(0, vec![0; 8]) });
    shared.regions.insert(3, Region { foreign: true, ..Region::open(0, vec![0; 8]) });
    let cases = [
        (LIVE ^ 1, BASE, TaggedError::InvalidStag, [0x11, 0x00]),
        (2, 0, TaggedError::Access, [0x11, 0x00]),
        (LIVE, BASE + 61, TaggedError::Bounds, [0x11, 0x01]),
        (LIVE, BASE - 1, TaggedError::Bounds, [0x11, 0x01]),
        (3, 0, TaggedError::NotAssociated, [0x11, 0x02]),
    ];
    for (stag, to, error, code) in cases {
        let bytes = write(stag, to, b"data");
        assert_eq!(fault(&bytes, &mut shared.clone()).1.kind, FaultKind::Write { stag: Stag(stag), to, error });
        let expected = [&code[..], &[0xc0, 0], &bytes[..16]].concat();
        assert_eq!(terminate_of(&bytes, &mut shared.clone()), expected);
    }
}

#[test]
fn write_whose_tagged_offset_wraps() {
    let bytes = write(LIVE, u64::MAX - 3, b"12345");
    assert_eq!(kind_of(&bytes), FaultKind::TaggedOffsetWrap { to: u64::MAX - 3, len: 5 });
    terminates(&bytes, [0x11, 0x03], &bytes);
    assert!(matches!(kind_of(&write(LIVE, u64::MAX - 4, b"1234")), FaultKind::Write { error: TaggedError::Bounds, .. }));
}

#[test]
fn write_of_nothing_names_nothing() {
    let bytes = write(0xdead, u64::MAX, b"");
    assert_eq!(feed(&mut connection(Role::Initiator, true), &bytes, &mut arena()), Ok(vec![]));
}

#[test]
fn write_continuation_elsewhere() {
    let first = tagged([0x81, 0x40], LIVE, BASE, b"abcd");
    let other_stag = write(LIVE ^ 0x100, BASE + 4, b"e");
    let expected = FaultKind::WriteStagChanged { found: Stag(LIVE ^ 0x100), expected: Stag(LIVE) };
    assert_eq!(kind_of(&[first.clone(), other_stag.clone()].concat()), expected);
    terminates(&[first.clone(), other_stag.clone()].concat(), [0x11, 0x00], &other_stag);
    for to in [BASE, BASE + 3, BASE + 5] {
        let elsewhere = write(LIVE, to, b"e");
        let bytes = [first.clone(), elsewhere.clone()].concat();
        assert_eq!(kind_of(&bytes), FaultKind::WriteOffset { found: to, expected: BASE + 4 });
        terminates(&bytes, [0x11, 0x01], &elsewhere);
    }
    // A new message may start anywhere.
    let bytes = [write(LIVE, BASE, b"abcd"), write(LIVE, BASE, b"e")].concat();
    assert_eq!(feed(&mut connection(Role::Initiator, true), &bytes, &mut arena()), Ok(vec![]));
}

/// An Initiator with one read of `len` bytes outstanding, posted as 77.
fn reader(len: u32) -> Connection {
    let mut connection = connection(Role::Initiator, true);
    connection.post_read(77, (Stag(9), 0x900), len).expect("room for a read");
    let request = connection.next_segment().expect("a Read Request");
    assert_eq!(request.source, Source::ReadRequest(77));
    assert_eq!(connection.outstanding_reads(), 1);
    connection
}

fn response_fault(len: u32, bytes: &[u8]) -> Fault {
    feed(&mut reader(len), bytes, &mut arena()).expect_err("this response is invalid")
}

#[test]
fn read_response_in_segments_completes_the_read() {
    let mut connection = reader(8);
    let mut arena = arena();
    let bytes = [tagged([0x81, 0x42], 1, 0, b"abcd"), tagged([0xc1, 0x42], 1, 4, b"efgh")].concat();
    assert_eq!(feed(&mut connection, &bytes, &mut arena), Ok(vec![Received::ReadDone { read: 77 }]));
    assert_eq!((arena.sinks[&77].as_slice(), connection.outstanding_reads()), (&b"abcdefgh"[..], 0));
}

#[test]
fn read_response_to_nothing() {
    let bytes = tagged([0xc1, 0x42], 1, 0, b"");
    assert_eq!(drops(&bytes, &mut arena()), FaultKind::UnexpectedReadResponse);
    let mut connection = reader(1);
    let twice = [tagged([0xc1, 0x42], 1, 0, b"a"), tagged([0xc1, 0x42], 1, 0, b"a")].concat();
    assert_eq!(feed(&mut connection, &twice, &mut arena()).unwrap_err().kind, FaultKind::UnexpectedReadResponse);
}

#[test]
fn read_response_with_another_sink() {
    let fault = response_fault(4, &tagged([0xc1, 0x42], 2, 0, b"abcd"));
    assert_eq!(fault.kind, FaultKind::ReadResponseStag { found: Stag(2), expected: Stag(1) });
    assert_eq!(fault.terminate_code(), Some(TerminateCode::TAGGED_INVALID_STAG));
    let fault = response_fault(4, &tagged([0xc1, 0x42], 1, 1, b"abcd"));
    assert_eq!(fault.kind, FaultKind::ReadResponseOffset { found: 1, expected: 0 });
    assert_eq!(fault.terminate_code(), Some(TerminateCode::TAGGED_BOUNDS));
}

#[test]
fn read_response_of_another_length() {
    for (control, payload) in [([0xc1, 0x42], &b"abc"[..]), ([0xc1, 0x42], b"abcde"), ([0x81, 0x42], b"abcde"), ([0xc1, 0x42], b"")] {
        let fault = response_fault(4, &tagged(control, 1, 0, payload));
        assert_eq!(fault.kind, FaultKind::ReadResponseLength { found: payload.len() as u64, expected: 4 });
        assert_eq!(fault.terminate_code(), Some(TerminateCode::TAGGED_BOUNDS));
    }
    let fault = response_fault(0, &tagged([0xc1, 0x42], 1, 0, b"a"));
    assert_eq!(fault.kind, FaultKind::ReadResponseLength { found: 1, expected: 0 });
}

#[test]
fn read_response_of_nothing_names_nothing() {
    let done = Ok(vec![Received::ReadDone { read: 77 }]);
    assert_eq!(feed(&mut reader(0), &tagged([0xc1, 0x42], 0xdead, 0xbeef, b""), &mut arena()), done);
}

#[test]
fn read_response_whose_sink_is_gone() {
    let mut arena = Arena { sinks_gone: true, ..arena() };
    let mut connection = reader(4);
    let fault = feed(&mut connection, &tagged([0xc1, 0x42], 1, 0, b"abcd"), &mut arena).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Placement);
    assert_eq!(connection.terminate(&fault).unwrap().header()[20..], [0x10, 0x00, 0, 0]);
}

#[test]
fn read_request_with_payload_or_more_to_come() {
    let request = ReadRequest { msn: 1, sink: (1, 2), size: 4, source: (LIVE, BASE) }.body();
    let with_payload = Untagged { control: [0x41, 0x41], queue: 1, ..Untagged::send(1) }.with(&[&request[..], b"x"].concat());
    assert_eq!(drops(&with_payload, &mut arena()), FaultKind::ReadRequestForm);
    let not_last = Untagged { control: [0x01, 0x41], queue: 1, ..Untagged::send(1) }.with(&request);
    assert_eq!(drops(&not_last, &mut arena()), FaultKind::ReadRequestForm);
}

#[test]
fn read_requests_over_the_ird() {
    let requests: Vec<_> = (1..=5).map(|msn| read_request(msn, 4, (LIVE, BASE))).collect();
    let mut four = connection(Role::Initiator, true);
    assert_eq!(feed(&mut four, &requests[..4].concat(), &mut arena()), Ok(vec![Received::ReadRequested; 4]));
    assert_eq!(four.inbound_reads(), 4);
    let fault = feed(&mut four, &requests[4], &mut arena()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::TooManyReads { ird: 4 });
    let terminate = four.terminate(&fault).unwrap();
    assert_eq!(terminate.header()[20..], [&[0x02, 0x07, 0xc0, 0], &requests[4][..20]].concat());

    let none = Negotiated { ird: 0, ..negotiated(true) };
    let mut none = Connection::new(Role::Initiator, none, Options::default());
    assert_eq!(feed(&mut none, &requests[0], &mut arena()).unwrap_err().kind, FaultKind::TooManyReads { ird: 0 });
}

#[test]
fn answered_read_request_makes_room_for_another() {
    let mut connection = connection(Role::Initiator, true);
    for msn in 1..=20 {
        assert_eq!(feed(&mut connection, &read_request(msn, 4, (LIVE, BASE)), &mut arena()), Ok(vec![Received::ReadRequested]));
        assert!(connection.next_segment().unwrap().last);
    }
}

#[test]
fn read_request_that_memory_refuses() {
    let mut shared = arena();
    shared.regions.insert(2, Region { remote_read: false, ..Region::open(0, vec![0; 8]) });
    shared.regions.insert(3, Region { foreign: true, ..Region::open(0, vec![0; 8]) });
    let cases = [
        (LIVE ^ 1, BASE, TaggedError::InvalidStag, [0x01, 0x00]),
        (LIVE, BASE + 61, TaggedError::Bounds, [0x01, 0x01]),
        (2, 0, TaggedError::Access, [0x01, 0x02]),
        (3, 0, TaggedError::NotAssociated, [0x01, 0x03]),
    ];
    for (stag, to, error, code) in cases {
        let bytes = read_request(1, 4, (stag, to));
        assert_eq!(fault(&bytes, &mut shared.clone()).1.kind, FaultKind::Read { stag: Stag(stag), to, len: 4, error });
        // Length, DDP header and Read Request header: M, D and R.
        let expected = [&code[..], &[0xe0, 0], &bytes[..48]].concat();
        assert_eq!(terminate_of(&bytes, &mut shared.clone()), expected);
    }
}

#[test]
fn read_request_whose_offsets_wrap() {
    let source = ReadRequest { msn: 1, sink: (1, 0), size: 5, source: (LIVE, u64::MAX - 5) };
    assert!(matches!(kind_of(&source.bytes()), FaultKind::Read { error: TaggedError::Bounds, .. }));
    let source = ReadRequest { source: (LIVE, u64::MAX - 4), ..source };
    assert_eq!(kind_of(&source.bytes()), FaultKind::ReadWrap { to: u64::MAX - 4, len: 5 });
    assert_eq!(terminate_of(&source.bytes(), &mut arena())[..4], [0x01, 0x04, 0xe0, 0]);
    let sink = ReadRequest { sink: (1, u64::MAX - 3), source: (LIVE, BASE), ..source };
    assert_eq!(kind_of(&sink.bytes()), FaultKind::ReadWrap { to: u64::MAX - 3, len: 5 });
}

#[test]
fn read_request_of_nothing_names_nothing() {
    let mut connection = connection(Role::Initiator, true);
    let request = ReadRequest { msn: 1, sink: (0xdead, u64::MAX), size: 0, source: (0xbeef, u64::MAX) };
    assert_eq!(feed(&mut connection, &request.bytes(), &mut arena()), Ok(vec![Received::ReadRequested]));
    let response = connection.next_segment().unwrap();
    let expected = tagged([0xc1, 0x42], 0xdead, u64::MAX, b"");
    assert_eq!([response.header(), response.trailer(response.header(), []).as_ref()].concat(), expected);
    assert!(connection.next_segment().is_none());
}

#[test]
fn read_request_is_not_acted_on_before_its_crc() {
    let mut bytes = read_request(1, 4, (LIVE ^ 1, BASE));
    let end = bytes.len();
    bytes[end - 1] ^= 1;
    assert!(matches!(kind_of(&bytes), FaultKind::Crc { .. }));
}

#[test]
fn source_that_goes_away_under_its_response() {
    let mut connection =
        Connection::new(Role::Initiator, negotiated(true), Options { fpdu: godwit_iwarp::FpduSize::Payload(16), ..Options::default() });
    let request = ReadRequest { msn: 1, sink: (7, 0x70), size: 40, source: (LIVE, BASE) };
    feed(&mut connection, &request.bytes(), &mut arena()).unwrap();
    connection.next_segment().unwrap();
    let second = connection.next_segment().unwrap();
    let fault = second.read_fault(TaggedError::InvalidStag);
    assert_eq!(fault.kind, FaultKind::Read { stag: Stag(LIVE), to: BASE + 16, len: 24, error: TaggedError::InvalidStag });
    let rest = ReadRequest { msn: 1, sink: (7, 0x80), size: 24, source: (LIVE, BASE + 16) }.bytes();
    let terminate = connection.terminate(&fault).unwrap();
    assert_eq!(terminate.header()[20..], [&[0x01, 0x00, 0xe0, 0], &rest[..48]].concat());
    assert!(terminate.trailer(terminate.header(), []).as_ref().len() == 4);
}

#[test]
fn terminate_is_reported_and_ends_the_stream() {
    let mut connection = connection(Role::Initiator, true);
    let terminate = |payload: &[u8]| Untagged { control: [0x41, 0x47], queue: 2, ..Untagged::send(1) }.with(payload);
    // Inside an unfinished Send: the peer found the error while it was sending.
    let open = Untagged { control: [0x01, 0x43], ..Untagged::send(1) }.with(b"abcd");
    let bytes = [open, terminate(&[0x12, 0x02, 0xc0, 0, 0, 34, 1, 2, 3]), vec![9; 50]].concat();
    let info = TerminateInfo { code: TerminateCode::UNTAGGED_NO_BUFFER, segment_length: Some(34), swapped: false };
    assert_eq!(feed(&mut connection, &bytes, &mut arena()), Ok(vec![Received::Terminated(info)]));
    assert!(connection.is_ended());
    assert!(connection.terminate(&Fault::local_catastrophic()).is_none(), "it is not answered");
    assert_eq!(info.to_string(), "the peer ended the stream with Terminate 1/2/02 (untagged: no buffer)");
}

#[test]
fn terminate_may_be_all_that_an_initiator_says() {
    let bytes = Untagged { control: [0x41, 0x47], queue: 2, ..Untagged::send(1) }.with(&[0x20, 0x07, 0, 0]);
    let info = TerminateInfo { code: TerminateCode::MPA_NO_MATCHING_RTR, segment_length: None, swapped: false };
    let mut connection = connection(Role::Responder, true);
    let events = feed(&mut connection, &bytes, &mut arena());
    assert_eq!(events, Ok(vec![Received::Established, Received::Terminated(info)]));
    assert!(connection.is_ended() && !connection.is_established());
}

#[test]
fn terminate_is_one_segment_whatever_its_last_flag_says() {
    let bytes = Untagged { control: [0x01, 0x47], queue: 2, ..Untagged::send(1) }.with(&[0x20, 0x02, 0, 0]);
    let info = TerminateInfo { code: TerminateCode::MPA_CRC, segment_length: None, swapped: false };
    let events = feed(&mut connection(Role::Initiator, true), &bytes, &mut arena());
    assert_eq!(events, Ok(vec![Received::Terminated(info)]));
}

#[test]
fn terminate_of_siw_is_read_in_its_own_layout() {
    let payload = [0x21, 0x02, 0x03, 0, 0, 16, 0x41, 0x43];
    let bytes = Untagged { control: [0x41, 0x47], queue: 2, ..Untagged::send(1) }.with(&payload);
    let info = TerminateInfo { code: TerminateCode::UNTAGGED_NO_BUFFER, segment_length: Some(16), swapped: true };
    let events = feed(&mut connection(Role::Initiator, true), &bytes, &mut arena());
    assert_eq!(events, Ok(vec![Received::Terminated(info)]));
}

#[test]
fn stalls_without_a_buffer_and_resumes() {
    let mut arena = Arena { waits: 2, ..arena() };
    let mut connection = connection(Role::Initiator, true);
    let bytes = [send(1, b"hello"), send(2, b"world")].concat();
    // The header is consumed, the payload is not.
    assert_eq!(connection.receive(&bytes, &mut arena), Ok((20, Received::Stalled)));
    assert_eq!(connection.landing(), None, "no buffer, no landing");
    assert_eq!(connection.receive(&bytes[20..], &mut arena), Ok((0, Received::Stalled)));
    assert_eq!(connection.receive(&[], &mut arena), Ok((0, Received::NeedMore)));
    assert_eq!(connection.receive(&bytes[20..22], &mut arena), Ok((2, Received::NeedMore)));
    arena.waits = 1;
    assert_eq!(connection.receive(&bytes[22..], &mut arena), Ok((0, Received::Stalled)), "also in the middle");
    assert_eq!(connection.receive(&bytes[22..], &mut arena), Ok((10, message(5))));
    arena.deliver(5);
    assert_eq!(feed(&mut connection, &bytes[32..], &mut arena), Ok(vec![message(5)]));
    assert_eq!(arena.messages, [b"hello", b"world"]);
}

#[test]
fn landing_tells_where_the_next_bytes_belong() {
    let mut arena = arena();
    let mut connection = reader(8);
    let place = |connection: &Connection| connection.landing();
    assert_eq!(place(&connection), None);

    let bytes = write(LIVE, BASE, b"abcdefgh");
    connection.receive(&bytes[..18], &mut arena).unwrap();
    assert_eq!(place(&connection), Some(Landing { place: Place::Write { stag: Stag(LIVE), to: BASE + 2 }, len: 6 }));
    connection.landed(&bytes[18..21]);
    assert_eq!(place(&connection), Some(Landing { place: Place::Write { stag: Stag(LIVE), to: BASE + 5 }, len: 3 }));
    connection.landed(&bytes[21..24]);
    assert_eq!(place(&connection), None);
    assert_eq!(connection.receive(&bytes[24..], &mut arena), Ok((4, Received::NeedMore)));

    let bytes = tagged([0xc1, 0x42], 1, 0, b"abcdefgh");
    connection.receive(&bytes[..19], &mut arena).unwrap();
    assert_eq!(place(&connection), Some(Landing { place: Place::ReadResponse { read: 77, offset: 3 }, len: 5 }));
    connection.landed(&bytes[19..24]);
    assert_eq!(connection.receive(&bytes[24..], &mut arena), Ok((4, Received::ReadDone { read: 77 })));

    let bytes = send(1, b"abcde");
    connection.receive(&bytes[..20], &mut arena).unwrap();
    assert_eq!(place(&connection), Some(Landing { place: Place::Receive { offset: 0 }, len: 5 }));
    connection.landed(&bytes[20..25]);
    assert_eq!(connection.receive(&bytes[25..], &mut arena), Ok((7, message(5))));
}

#[test]
#[should_panic(expected = "no more bytes land than the landing has room for")]
fn landing_more_than_there_is_room_for_is_our_own_error() {
    let mut connection = connection(Role::Initiator, true);
    connection.receive(&write(LIVE, BASE, b"abcdefgh")[..18], &mut arena()).unwrap();
    connection.landed(&[0; 7]);
}

#[test]
fn fault_is_one_readable_line() {
    let (_, found) = fault(&send(5, b""), &mut arena());
    assert_eq!(found.to_string(), "MSN on queue 0 is 5, not 1; Terminate 1/2/03 (untagged: MSN out of range)");
    let (_, found) = fault(&write(LIVE, BASE + 61, b"data"), &mut arena());
    assert_eq!(
        found.to_string(),
        "an RDMA Write to 0x00001100:0x703d is outside the region; Terminate 1/1/01 (tagged: base or bounds violation)"
    );
    let (_, found) = fault(&tagged([0xc1, 0x42], 1, 0, b""), &mut arena());
    assert_eq!(found.to_string(), "an RDMA Read Response with no read outstanding");
}
