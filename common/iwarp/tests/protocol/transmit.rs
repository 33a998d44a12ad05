//! What is sent: golden FPDUs, segmentation, order, limits, and who may speak first.

use godwit_iwarp::{
    Connection, Fault, FaultKind, FpduSize, Misuse, Negotiated, Options, Received, Role, Rtr, Segment, SendKind, Source, Stag,
};

use crate::support::{Arena, Region, Untagged, connection, feed, message, negotiated, read_request, send, tagged, write};

fn next(connection: &mut Connection) -> Segment {
    assert!(connection.has_work());
    connection.next_segment().expect("something to send")
}

fn nothing(connection: &mut Connection) {
    assert!(!connection.has_work());
    assert!(connection.next_segment().is_none());
}

fn bytes(segment: &Segment, payload: &[u8]) -> Vec<u8> {
    let bytes = [segment.header(), payload, segment.trailer(segment.header(), [payload]).as_ref()].concat();
    assert_eq!(bytes.len(), segment.wire_len());
    bytes
}

fn with_fpdu(fpdu: FpduSize) -> Connection {
    Connection::new(Role::Initiator, negotiated(true), Options { fpdu, ..Options::default() })
}

#[test]
fn writes_are_the_examples_byte_for_byte() {
    let mut connection = connection(Role::Initiator, true);
    connection.post_write(1, Stag(0x1234_5678), 0x1000, 0).unwrap();
    connection.post_write(2, Stag(0x100), 0x2000, 5).unwrap();
    let empty = [0, 0x0e, 0xc1, 0x40, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0, 0, 0, 0x10, 0, 0xc5, 0x99, 0xe9, 0xa9];
    assert_eq!(bytes(&next(&mut connection), b""), empty);
    let hello = [&[0, 0x13, 0xc1, 0x40, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x20, 0][..], b"hello\0\0\0\x84\xb1\x04\x85"].concat();
    assert_eq!(bytes(&next(&mut connection), b"hello"), hello);
    nothing(&mut connection);
}

#[test]
fn send_is_the_example_of_rfc_5044_without_its_marker() {
    let mut connection = connection(Role::Initiator, true);
    connection.post_send(1, SendKind::Plain, 24).unwrap();
    let header = [0, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let expected = [&header[..], &[0; 24], &[0xb7, 0x24, 0x3e, 0xc3]].concat();
    assert_eq!(bytes(&next(&mut connection), &[0; 24]), expected);
}

#[test]
fn crc_field_is_zero_and_payload_not_looked_at_when_not_negotiated() {
    let mut connection = connection(Role::Initiator, false);
    connection.post_send(1, SendKind::Plain, 5).unwrap();
    let segment = next(&mut connection);
    assert_eq!(segment.trailer(segment.header(), []).as_ref(), [0; 7]);
}

#[test]
#[should_panic(expected = "exactly its payload")]
fn trailer_of_another_payload_is_our_own_error() {
    let mut connection = connection(Role::Initiator, true);
    connection.post_send(1, SendKind::Plain, 5).unwrap();
    let segment = next(&mut connection);
    segment.trailer(segment.header(), [&b"four"[..]]);
}

#[test]
fn trailer_takes_payload_in_pieces() {
    let mut connection = connection(Role::Initiator, true);
    connection.post_send(1, SendKind::Plain, 5).unwrap();
    let segment = next(&mut connection);
    assert_eq!(segment.trailer(segment.header(), [&b"he"[..], b"", b"llo"]), segment.trailer(segment.header(), [&b"hello"[..]]));
}

#[test]
fn each_send_kind_has_its_opcode_and_stag() {
    let mut connection = connection(Role::Initiator, true);
    let stag = 0x0102_0304;
    let kinds = [
        (SendKind::Plain, 3, 0),
        (SendKind::Invalidate(Stag(stag)), 4, stag),
        (SendKind::Solicited, 5, 0),
        (SendKind::SolicitedInvalidate(Stag(stag)), 6, stag),
    ];
    for ((kind, opcode, stag), msn) in kinds.into_iter().zip(1..) {
        connection.post_send(9, kind, 3).unwrap();
        let expected = Untagged { control: [0x41, 0x40 | opcode], stag, ..Untagged::send(msn) }.with(b"abc");
        assert_eq!(bytes(&next(&mut connection), b"abc"), expected);
    }
}

#[test]
fn message_is_cut_into_segments_that_only_the_last_pads() {
    let mut connection = with_fpdu(FpduSize::Payload(11));
    connection.post_send(1, SendKind::Plain, 18).unwrap();
    connection.post_write(2, Stag(5), 0x100, 16).unwrap();
    connection.post_send(3, SendKind::Plain, 0).unwrap();
    let cut: Vec<_> = std::iter::from_fn(|| connection.next_segment())
        .map(|segment| (segment.source, segment.offset, segment.len, segment.last, segment.trailer_len()))
        .collect();
    let work = Source::Work;
    let expected = [
        (work(1), 0, 8, false, 4),
        (work(1), 8, 8, false, 4),
        (work(1), 16, 2, true, 6),
        (work(2), 0, 8, false, 4),
        (work(2), 8, 8, true, 4),
        (work(3), 0, 0, true, 4),
    ];
    assert_eq!(cut, expected);
}

#[test]
fn segments_of_a_message_share_its_msn_and_advance_its_offset() {
    let mut connection = with_fpdu(FpduSize::Payload(8));
    connection.post_send(1, SendKind::Plain, 12).unwrap();
    connection.post_write(2, Stag(5), 0x100, 12).unwrap();
    connection.post_send(3, SendKind::Plain, 1).unwrap();
    let part = |control, msn, offset| Untagged { control, offset, ..Untagged::send(msn) };
    assert_eq!(bytes(&next(&mut connection), b"abcdefgh"), part([0x01, 0x43], 1, 0).with(b"abcdefgh"));
    assert_eq!(bytes(&next(&mut connection), b"ijkl"), part([0x41, 0x43], 1, 8).with(b"ijkl"));
    assert_eq!(bytes(&next(&mut connection), b"abcdefgh"), tagged([0x81, 0x40], 5, 0x100, b"abcdefgh"));
    assert_eq!(bytes(&next(&mut connection), b"ijkl"), tagged([0xc1, 0x40], 5, 0x108, b"ijkl"));
    assert_eq!(bytes(&next(&mut connection), b"m"), part([0x41, 0x43], 2, 0).with(b"m"));
}

#[test]
fn fpdu_sizes_follow_the_mss_as_siw_and_rfc_5044_do() {
    let first = |fpdu| {
        let mut connection = with_fpdu(fpdu);
        connection.post_write(1, Stag(1), 0, u32::MAX).unwrap();
        let write = next(&mut connection).len;
        let mut connection = with_fpdu(fpdu);
        connection.post_send(1, SendKind::Plain, u32::MAX).unwrap();
        (write, next(&mut connection).len)
    };
    assert_eq!(first(FpduSize::Mss(1448)), (1428, 1424));
    assert_eq!(first(FpduSize::Mss(65483)), (65460, 65456));
    assert_eq!(first(FpduSize::Mss(32768)), (32748, 32744));
    assert_eq!(first(FpduSize::Mss(0)), (112, 108), "MULPDU is at least 128");
    assert_eq!(first(FpduSize::Mss(usize::MAX)), (65520, 65516));
    assert_eq!(first(FpduSize::Payload(usize::MAX)), (65516, 65516));
    assert_eq!(first(FpduSize::Payload(0)), (4, 4));
    assert_eq!(first(Options::default().fpdu), (61440, 61440));
}

#[test]
fn largest_message_ends_with_its_last_byte() {
    let mut connection = with_fpdu(FpduSize::Payload(usize::MAX));
    connection.post_write(1, Stag(1), u64::MAX - u64::from(u32::MAX), u32::MAX).unwrap();
    let mut sent = 0_u64;
    while let Some(segment) = connection.next_segment() {
        assert_eq!(u64::from(segment.offset), sent);
        sent += segment.len as u64;
        assert_eq!(segment.last, sent == u64::from(u32::MAX));
    }
    assert_eq!(sent, u64::from(u32::MAX));
}

#[test]
fn read_request_has_a_sink_of_our_own_and_completes_by_its_response() {
    let mut connection = connection(Role::Initiator, true);
    connection.post_read(31, (Stag(0x0a0b_0c0d), 0x1122_3344_5566_7788), 0x1000).unwrap();
    connection.post_read(32, (Stag(1), 2), 0).unwrap();
    let first = next(&mut connection);
    assert_eq!((first.source, first.len, first.last), (Source::ReadRequest(31), 0, true));
    let header = [
        0, 46, 0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, // DDP: queue 1, MSN 1, MO 0
        0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, // sink
        0, 0, 0x10, 0, // size
        0x0a, 0x0b, 0x0c, 0x0d, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, // source
    ];
    assert_eq!(first.header(), header);
    let second = next(&mut connection);
    assert_eq!((second.header()[15], second.header()[23]), (2, 2), "MSN and sink of the second");
    assert_eq!(connection.outstanding_reads(), 2);
}

#[test]
fn reads_wait_for_ord_and_hold_up_what_was_posted_later() {
    let one = Negotiated { ord: 1, ..negotiated(true) };
    let mut connection = Connection::new(Role::Initiator, one, Options::default());
    connection.post_read(1, (Stag(1), 0), 1).unwrap();
    connection.post_read(2, (Stag(1), 0), 1).unwrap();
    connection.post_send(3, SendKind::Plain, 0).unwrap();
    assert_eq!(next(&mut connection).source, Source::ReadRequest(1));
    nothing(&mut connection);
    assert_eq!((connection.queued_work(), connection.outstanding_reads()), (2, 1));
    let done = feed(&mut connection, &tagged([0xc1, 0x42], 1, 0, b"x"), &mut Arena::default());
    assert_eq!(done, Ok(vec![Received::ReadDone { read: 1 }]));
    assert_eq!(next(&mut connection).source, Source::ReadRequest(2));
    assert_eq!(next(&mut connection).source, Source::Work(3));
    nothing(&mut connection);
}

/// A connection that holds `count` Read Requests of 4 bytes, by 4-byte segments.
fn asked(count: u32, size: u32) -> Connection {
    let many = Negotiated { ird: 64, ..negotiated(true) };
    let mut connection = Connection::new(Role::Initiator, many, Options { fpdu: FpduSize::Payload(4), ..Options::default() });
    let mut arena = Arena::default();
    arena.regions.insert(1, Region::open(0, vec![0; 64]));
    for msn in 1..=count {
        feed(&mut connection, &read_request(msn, size, (1, 0)), &mut arena).expect("within the IRD");
    }
    connection
}

#[test]
fn read_response_echoes_the_sink_in_segments() {
    let mut connection = asked(1, 6);
    let first = next(&mut connection);
    assert_eq!(first.source, Source::ReadResponse { stag: Stag(1), to: 0 });
    assert_eq!(bytes(&first, b"abcd"), tagged([0x81, 0x42], 0x5151, 0x100, b"abcd"));
    assert_eq!(connection.inbound_reads(), 1);
    let second = next(&mut connection);
    assert_eq!((second.offset, second.len, second.last), (4, 2, true));
    assert_eq!(bytes(&second, b"ef"), tagged([0xc1, 0x42], 0x5151, 0x104, b"ef"));
    assert_eq!(connection.inbound_reads(), 0);
    nothing(&mut connection);
}

#[test]
fn at_most_four_responses_in_a_row_go_before_a_waiting_work_request() {
    let mut connection = asked(10, 4);
    connection.post_send(1, SendKind::Plain, 0).unwrap();
    connection.post_send(2, SendKind::Plain, 0).unwrap();
    let order: Vec<_> = std::iter::from_fn(|| connection.next_segment())
        .map(|segment| if matches!(segment.source, Source::Work(_)) { 'W' } else { 'R' })
        .collect();
    assert_eq!(order, "RRRRWRRRRWRR".chars().collect::<Vec<_>>());
}

#[test]
fn responses_are_not_held_up_by_a_read_that_waits_for_ord() {
    let mut connection = asked(10, 4);
    for id in 0..5 {
        connection.post_read(id, (Stag(9), 0), 4).unwrap();
    }
    let requests = std::iter::from_fn(|| connection.next_segment()).filter(|s| matches!(s.source, Source::ReadRequest(_))).count();
    assert_eq!((requests, connection.inbound_reads(), connection.queued_work()), (4, 0, 1));
}

#[test]
fn message_is_finished_before_the_next_one_starts() {
    let mut connection = asked(2, 8);
    connection.next_segment().unwrap();
    connection.post_send(1, SendKind::Plain, 8).unwrap();
    let rest: Vec<_> = std::iter::from_fn(|| connection.next_segment()).map(|segment| (segment.source, segment.offset)).collect();
    let response = Source::ReadResponse { stag: Stag(1), to: 0 };
    assert_eq!(rest, [(response, 4), (response, 0), (response, 4), (Source::Work(1), 0), (Source::Work(1), 4)]);

    let mut connection = Connection::new(Role::Initiator, negotiated(true), Options { fpdu: FpduSize::Payload(4), ..Options::default() });
    connection.post_send(1, SendKind::Plain, 8).unwrap();
    connection.next_segment().unwrap();
    feed(&mut connection, &read_request(1, 0, (0, 0)), &mut Arena::default()).unwrap();
    assert_eq!(next(&mut connection).source, Source::Work(1));
    assert!(matches!(next(&mut connection).source, Source::ReadResponse { .. }));
}

#[test]
fn responder_says_nothing_before_the_first_valid_fpdu() {
    let mut connection = connection(Role::Responder, true);
    let mut arena = Arena::with_receives(&[10; 2]);
    connection.post_send(1, SendKind::Plain, 0).unwrap();
    assert!(!connection.is_established());
    nothing(&mut connection);
    let first = send(1, b"hello");
    assert_eq!(connection.receive(&first[..first.len() - 1], &mut arena), Ok((first.len() - 1, Received::NeedMore)));
    nothing(&mut connection);
    assert_eq!(connection.receive(&first[first.len() - 1..], &mut arena), Ok((1, Received::Established)));
    assert!(connection.is_established());
    assert_eq!(connection.receive(&[], &mut arena), Ok((0, message(5))), "then what the FPDU says");
    assert_eq!(next(&mut connection).source, Source::Work(1));
    arena.deliver(5);
    assert_eq!(feed(&mut connection, &send(2, b""), &mut arena), Ok(vec![message(0)]), "established only once");
}

#[test]
fn responder_sends_no_terminate_before_the_first_valid_fpdu() {
    let mut bad = send(1, b"hello");
    bad[21] ^= 1;
    let mut silent = connection(Role::Responder, true);
    let fault = feed(&mut silent, &bad, &mut Arena::with_receives(&[10])).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Crc { .. }));
    assert!(silent.terminate(&fault).is_none());

    // The CRC of this one is good, so it may be answered.
    let mut spoken_to = connection(Role::Responder, true);
    let fault = feed(&mut spoken_to, &read_request(1, 1, (0xdead, 0)), &mut Arena::default()).unwrap_err();
    assert!(spoken_to.terminate(&fault).is_some());
}

#[test]
fn rtr_message_is_the_first_fpdu_of_the_initiator() {
    let peer = |rtr| Negotiated { rtr: Some(rtr), ord: 1, ..negotiated(true) };
    let read = Untagged { control: [0x41, 0x41], queue: 1, ..Untagged::send(1) }
        .with(&[0, 0, 0, 1].iter().copied().chain([0; 24]).collect::<Vec<_>>());
    for (rtr, expected) in [(Rtr::Write, write(0, 0, b"")), (Rtr::Send, send(1, b"")), (Rtr::Read, read)] {
        let mut connection = Connection::new(Role::Initiator, peer(rtr), Options::default());
        connection.post_send(1, SendKind::Plain, 0).unwrap();
        let first = next(&mut connection);
        assert_eq!((first.source, bytes(&first, b"")), (Source::Nothing, expected));
        let msn = if rtr == Rtr::Send { 2 } else { 1 };
        assert_eq!(bytes(&next(&mut connection), b""), send(msn, b""));
        nothing(&mut connection);
    }
}

#[test]
fn empty_write_is_the_rtr_message_and_goes_between_messages() {
    let mut connection = with_fpdu(FpduSize::Payload(4));
    connection.post_send(1, SendKind::Plain, 8).unwrap();
    connection.post_send(2, SendKind::Plain, 0).unwrap();
    next(&mut connection);
    connection.post_empty_write();
    connection.post_empty_write();
    let rest: Vec<_> = std::iter::from_fn(|| connection.next_segment()).collect();
    let sources: Vec<_> = rest.iter().map(|segment| (segment.source, segment.offset)).collect();
    assert_eq!(sources, [(Source::Work(1), 4), (Source::Nothing, 0), (Source::Work(2), 0)], "once, whoever asked how often");
    // RDMA Write, the last segment, STag 0, tagged offset 0, its CRC32C.
    assert_eq!(bytes(&rest[1], b""), [0, 0x0e, 0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x05, 0x72, 0xab]);

    connection.terminate(&Fault::local_catastrophic()).unwrap();
    connection.post_empty_write();
    nothing(&mut connection);
}

#[test]
fn responder_takes_each_rtr_message() {
    let peer = |rtr| Negotiated { rtr: Some(rtr), ..negotiated(true) };
    let established = |rtr, bytes: &[u8]| {
        let mut connection = Connection::new(Role::Responder, peer(rtr), Options::default());
        nothing(&mut connection);
        (feed(&mut connection, bytes, &mut Arena::with_receives(&[0])), connection)
    };
    assert_eq!(established(Rtr::Write, &write(0, 0, b"")).0, Ok(vec![Received::Established]));
    assert_eq!(established(Rtr::Send, &send(1, b"")).0, Ok(vec![Received::Established, message(0)]));
    let (events, mut connection) = established(Rtr::Read, &read_request(1, 0, (0, 0)));
    assert_eq!(events, Ok(vec![Received::Established, Received::ReadRequested]));
    assert!(matches!(next(&mut connection).source, Source::ReadResponse { .. }));
}

#[test]
fn rtr_read_takes_one_of_the_ord_until_it_is_answered_without_an_event() {
    let peer = Negotiated { rtr: Some(Rtr::Read), ord: 1, ..negotiated(true) };
    let mut connection = Connection::new(Role::Initiator, peer, Options::default());
    connection.post_read(5, (Stag(1), 0), 1).unwrap();
    next(&mut connection);
    nothing(&mut connection);
    assert_eq!(feed(&mut connection, &tagged([0xc1, 0x42], 1, 0, b""), &mut Arena::default()), Ok(vec![]));
    assert_eq!(next(&mut connection).source, Source::ReadRequest(5));
    let done = feed(&mut connection, &tagged([0xc1, 0x42], 2, 0, b"x"), &mut Arena::default());
    assert_eq!(done, Ok(vec![Received::ReadDone { read: 5 }]));
}

#[test]
fn misuse_is_refused_and_changes_nothing() {
    let options = Options { send_queue_depth: 2, ..Options::default() };
    let none = Negotiated { ord: 0, ..negotiated(true) };
    let mut connection = Connection::new(Role::Initiator, none, options);
    assert_eq!(connection.post_read(1, (Stag(1), 0), 1), Err(Misuse::NoReads));
    assert_eq!(connection.post_write(1, Stag(1), u64::MAX, 1), Err(Misuse::TaggedOffsetWrap { to: u64::MAX, len: 1 }));
    assert_eq!(connection.post_read(1, (Stag(1), u64::MAX), 1), Err(Misuse::TaggedOffsetWrap { to: u64::MAX, len: 1 }));
    assert_eq!(connection.queued_work(), 0);
    connection.post_send(1, SendKind::Plain, 0).unwrap();
    connection.post_send(2, SendKind::Plain, 0).unwrap();
    assert_eq!(connection.post_send(3, SendKind::Plain, 0), Err(Misuse::QueueFull { depth: 2 }));
    assert_eq!(next(&mut connection).source, Source::Work(1));
    connection.post_send(3, SendKind::Plain, 0).unwrap();
    assert_eq!(next(&mut connection).source, Source::Work(2));
    assert_eq!(next(&mut connection).source, Source::Work(3));
}

#[test]
fn local_fault_ends_the_stream_with_its_terminate() {
    let mut connection = connection(Role::Initiator, true);
    connection.post_send(1, SendKind::Plain, 0).unwrap();
    let terminate = connection.terminate(&Fault::local_catastrophic()).unwrap();
    assert_eq!(terminate.header()[20..], [0, 0, 0, 0]);
    assert!(connection.is_ended());
    nothing(&mut connection);
}
