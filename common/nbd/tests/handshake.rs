//! Transcripts of the handshake: what a client says, and exactly what it is answered.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use godwit_nbd::wire::HandshakeFlags;
use godwit_nbd::{
    BASE_ALLOCATION, BlockSizes, ContextId, Export, Handshake, InfoType, MAX_KEPT_OPTION_LEN, MAX_OPTION_LEN, MAX_OPTIONS, OptionCode,
    Outcome, TransmissionFlags, Violation, client,
};
use support::{EVERYTHING, GIB, KERNEL_READY, Talk, error_reply, hex};

const ACK_GO: &str = "0003e889045565a9 00000007 00000001 00000000";
const ACK_INFO: &str = "0003e889045565a9 00000006 00000001 00000000";
const ACK_STRUCTURED: &str = "0003e889045565a9 00000008 00000001 00000000";
const ACK_LIST_META: &str = "0003e889045565a9 00000009 00000001 00000000";
const ACK_SET_META: &str = "0003e889045565a9 0000000a 00000001 00000000";
/// `INFO_EXPORT` of "disk0" without and with `SEND_DF`, as an answer to `GO`.
const EXPORT_GO: &str = "0003e889045565a9 00000007 00000003 0000000c 0000 0000000040000000 0d6d";
const EXPORT_GO_DF: &str = "0003e889045565a9 00000007 00000003 0000000c 0000 0000000040000000 0ded";
/// `base:allocation` in a list, and selected.
const LISTED: &str = "0003e889045565a9 00000009 00000004 00000013 00000000 62617365 3a 616c6c6f636174696f6e";
const SELECTED: &str = "0003e889045565a9 0000000a 00000004 00000013 00000001 62617365 3a 616c6c6f636174696f6e";
const STRUCTURED: &str = "49484156454f5054 00000008 00000000";

const ERR_UNSUP: u32 = 0x8000_0001;
const ERR_INVALID: u32 = 0x8000_0003;
const ERR_UNKNOWN: u32 = 0x8000_0006;
const ERR_TOO_BIG: u32 = 0x8000_0009;

fn go(name: &str, infos: &[InfoType]) -> Vec<u8> {
    client::info(OptionCode::GO, name, infos)
}

fn set(name: &str, queries: &[&str]) -> Vec<u8> {
    client::meta_context(OptionCode::SET_META_CONTEXT, name, queries)
}

fn list(name: &str, queries: &[&str]) -> Vec<u8> {
    client::meta_context(OptionCode::LIST_META_CONTEXT, name, queries)
}

fn raw(option: u32, data: &[u8]) -> Vec<u8> {
    client::option(OptionCode(option), data)
}

fn structured() -> Talk {
    let mut talk = Talk::fixed();
    talk.expect(&hex(STRUCTURED), &hex(ACK_STRUCTURED));
    talk
}

#[test]
fn greeting_offers_fixed_newstyle_without_zeroes() {
    assert_eq!(Handshake::greeting()[..], hex("4e42444d41474943 49484156454f5054 0003"));
    let parsed = client::greeting(&Handshake::greeting()).unwrap().unwrap();
    assert_eq!(parsed, HandshakeFlags::FIXED_NEWSTYLE.with(HandshakeFlags::NO_ZEROES));
}

#[test]
fn go_with_block_sizes_is_answered_byte_for_byte() {
    let mut talk = Talk::fixed();
    let block = BlockSizes::new(512, 4096, 32 << 20).unwrap();
    talk.exports = vec![Export::new("disk0", "", GIB, block, KERNEL_READY).unwrap()];
    let session = talk.expect_session(
        &hex("49 48 41 56 45 4f 50 54  00 00 00 07  00 00 00 0d  00 00 00 05 64 69 73 6b 30  00 01  00 03"),
        &hex("00 03 e8 89 04 55 65 a9  00 00 00 07  00 00 00 03  00 00 00 0c  00 00  00 00 00 00 40 00 00 00  05 6d
             00 03 e8 89 04 55 65 a9  00 00 00 07  00 00 00 03  00 00 00 0e  00 03  00 00 02 00  00 00 10 00  02 00 00 00
             00 03 e8 89 04 55 65 a9  00 00 00 07  00 00 00 01  00 00 00 00"),
    );
    assert_eq!(session.export, 0);
    assert_eq!(session.flags, KERNEL_READY);
    assert!(session.block_sizes_known);
    assert!(!session.structured);
    assert_eq!(session.allocation, None);
}

#[test]
fn client_builder_makes_the_documented_go() {
    assert_eq!(go("disk0", &[InfoType::BLOCK_SIZE]), hex("49484156454f5054 00000007 0000000d 00000005 6469736b30 0001 0003"));
}

#[test]
fn go_with_every_info_is_answered_in_full_and_ignores_unknown_infos() {
    let infos = [InfoType(0), InfoType(1), InfoType(2), InfoType(3), InfoType(4), InfoType(0xffff), InfoType(1)];
    let answer = [
        hex(EXPORT_GO),
        hex("0003e889045565a9 00000007 00000003 00000007 0001 6469736b30"),
        hex("0003e889045565a9 00000007 00000003 0000000b 0002 746865206669727374"),
        hex("0003e889045565a9 00000007 00000003 0000000e 0003 00000200 00001000 02000000"),
        hex(ACK_GO),
    ]
    .concat();
    let session = Talk::fixed().expect_session(&go("disk0", &infos), &answer);
    assert!(session.block_sizes_known);
}

#[test]
fn go_without_infos_gets_the_export_alone() {
    // What nbd-client does, whatever the block size.
    let answer = [hex("0003e889045565a9 00000007 00000003 0000000c 0000 0000000000002000 0007"), hex(ACK_GO)].concat();
    let session = Talk::fixed().expect_session(&go("Disk0", &[]), &answer);
    assert_eq!(session.export, 1);
    assert!(!session.block_sizes_known);
}

#[test]
fn empty_name_is_the_first_export_and_its_canonical_name_is_told() {
    let answer = [hex(EXPORT_GO), hex("0003e889045565a9 00000007 00000003 00000007 0001 6469736b30"), hex(ACK_GO)].concat();
    let session = Talk::fixed().expect_session(&go("", &[InfoType::NAME]), &answer);
    assert_eq!(session.export, 0);
}

#[test]
fn empty_name_finds_an_export_without_a_name_before_the_first() {
    let mut talk = Talk::fixed();
    let unnamed = Export::new("", "", 4096, BlockSizes::DEFAULT, KERNEL_READY).unwrap();
    talk.exports.push(unnamed);
    let (_, outcome) = talk.say(&go("", &[])).unwrap();
    let Outcome::Transmission(session) = outcome else { panic!("{outcome:?}") };
    assert_eq!(session.export, 2);
}

#[test]
fn info_answers_like_go_and_the_handshake_goes_on() {
    let mut talk = Talk::fixed();
    let answer = [hex("0003e889045565a9 00000006 00000003 0000000c 0000 0000000040000000 0d6d"), hex(ACK_INFO)].concat();
    talk.expect(&client::info(OptionCode::INFO, "disk0", &[]), &answer);
    talk.expect_session(&go("disk0", &[]), &[hex(EXPORT_GO), hex(ACK_GO)].concat());
}

#[test]
fn block_sizes_asked_by_info_alone_are_not_known_to_the_session() {
    let mut talk = Talk::fixed();
    talk.say(&client::info(OptionCode::INFO, "disk0", &[InfoType::BLOCK_SIZE])).unwrap();
    let session = talk.expect_session(&go("disk0", &[]), &[hex(EXPORT_GO), hex(ACK_GO)].concat());
    assert!(!session.block_sizes_known);
}

#[test]
fn dont_fragment_is_offered_only_with_structured_replies() {
    let session = structured().expect_session(&go("disk0", &[]), &[hex(EXPORT_GO_DF), hex(ACK_GO)].concat());
    assert_eq!(session.flags, EVERYTHING);
    assert!(session.structured);
    let session = Talk::fixed().expect_session(&go("disk0", &[]), &[hex(EXPORT_GO), hex(ACK_GO)].concat());
    assert_eq!(session.flags, EVERYTHING.without(TransmissionFlags::SEND_DF));
}

#[test]
fn unknown_export_is_refused_with_the_names_that_exist_and_go_may_be_tried_again() {
    let mut talk = Talk::fixed();
    let text = r#"there is no export "disk1"; this server has "disk0", "Disk0""#;
    talk.expect(&go("disk1", &[InfoType::NAME]), &error_reply(7, ERR_UNKNOWN, text));
    talk.expect(&client::info(OptionCode::INFO, "disk1", &[]), &error_reply(6, ERR_UNKNOWN, text));
    talk.expect_session(&go("disk0", &[]), &[hex(EXPORT_GO), hex(ACK_GO)].concat());
}

#[test]
fn export_names_are_case_sensitive() {
    let text = r#"there is no export "DISK0"; this server has "disk0", "Disk0""#;
    Talk::fixed().expect(&go("DISK0", &[]), &error_reply(7, ERR_UNKNOWN, text));
}

#[test]
fn server_without_exports_says_so() {
    let mut talk = Talk::fixed();
    talk.exports.clear();
    let text = r#"there is no export ""; this server has none"#;
    talk.expect(&go("", &[]), &error_reply(7, ERR_UNKNOWN, text));
    talk.expect(&raw(3, &[]), &hex("0003e889045565a9 00000003 00000001 00000000"));
}

#[test]
fn error_text_stays_short_however_many_exports_there_are_and_however_long_the_name_is() {
    let mut talk = Talk::fixed();
    talk.exports = (0..200)
        .map(|index| {
            let name = format!("{index}\"{}", "ü".repeat(index / 2));
            Export::new(name, "", 0, BlockSizes::DEFAULT, KERNEL_READY).unwrap()
        })
        .collect();
    let (out, _) = talk.say(&go(&"é".repeat(2048), &[])).unwrap();
    let (len, reply) = client::OptionReply::parse(&out).unwrap().unwrap();
    assert_eq!(len, out.len());
    let text = String::from_utf8(reply.data).unwrap();
    assert!(text.len() < 1000, "{} bytes", text.len());
    assert!(text.len() > 500, "{text}");
    assert!(text.contains("... (4096 bytes)"), "{text}");
    let listed = text.matches("ü\"").count() + text.matches(r#"\"""#).count();
    let (_, more) = text.rsplit_once(", and ").unwrap();
    assert_eq!(more, format!("{} more", 200 - listed), "{text}");
}

#[test]
fn list_tells_every_export_with_its_description() {
    Talk::fixed().expect(
        &raw(3, &[]),
        &hex("0003e889045565a9 00000003 00000002 00000012 00000005 6469736b30 746865206669727374
             0003e889045565a9 00000003 00000002 00000009 00000005 4469736b30
             0003e889045565a9 00000003 00000001 00000000"),
    );
}

#[test]
fn list_and_structured_reply_refuse_data() {
    let mut talk = Talk::fixed();
    talk.expect(&raw(3, &[0]), &error_reply(3, ERR_INVALID, "this option has no data"));
    talk.expect(&raw(8, &[0; 70_000]), &error_reply(8, ERR_INVALID, "this option has no data"));
    let session = talk.expect_session(&go("disk0", &[]), &[hex(EXPORT_GO), hex(ACK_GO)].concat());
    assert!(!session.structured, "a refused STRUCTURED_REPLY changes nothing");
}

#[test]
fn structured_replies_may_be_asked_for_twice() {
    structured().expect(&hex(STRUCTURED), &hex(ACK_STRUCTURED));
}

#[test]
fn abort_is_acknowledged_and_ends_the_handshake() {
    let mut talk = Talk::fixed();
    let ack = hex("0003e889045565a9 00000002 00000001 00000000");
    assert_eq!(talk.say(&raw(2, b"bye")), Ok((ack, Outcome::Aborted)));
    let mut out = Vec::new();
    let after = talk.handshake.receive(&go("disk0", &[]), &talk.exports, &mut out);
    assert_eq!((after, out), (Ok((0, Outcome::Aborted)), vec![]));
}

#[test]
fn options_that_are_not_spoken_are_refused_and_their_data_consumed() {
    let mut talk = Talk::fixed();
    let table = [
        (0, "this server does not know that option"),
        (4, "this server does not know that option"),
        (5, "this server does not speak TLS"),
        (11, "this server does not use extended headers"),
        (12, "this server does not know that option"),
        (u32::MAX, "this server does not know that option"),
    ];
    for (option, text) in table {
        for len in [0, 1, MAX_OPTION_LEN as usize] {
            talk.expect(&raw(option, &vec![0xa5; len]), &error_reply(option, ERR_UNSUP, text));
        }
    }
    talk.expect_session(&go("disk0", &[]), &[hex(EXPORT_GO), hex(ACK_GO)].concat());
}

#[test]
fn malformed_go_is_refused() {
    let truncated = "the data end in the middle of a field";
    let trailing = "there are data behind the last field";
    let text = "a string is longer than 4096 bytes, or not UTF-8, or holds a NUL";
    let long = [&hex("00001001")[..], &[b'x'; 4097], &hex("0000")].concat();
    let table = [
        (hex(""), truncated),
        (hex("000000"), truncated),
        (hex("00000000"), truncated),
        (hex("00000000 00"), truncated),
        (hex("00000001 78 00"), truncated),
        (hex("ffffffff 6469736b30 0000"), truncated),
        (hex("00000005 6469736b30 0001 00"), truncated),
        (hex("00000005 6469736b30 ffff 0000"), truncated),
        (hex("00000005 6469736b30 0000 00"), trailing),
        (hex("00000005 6469736b30 0001 0003 0003"), trailing),
        (hex("00000005 6469736b00 0000"), text),
        (hex("00000002 c328 0000"), text),
        (long, text),
    ];
    for option in [6, 7] {
        let mut talk = Talk::fixed();
        for (data, text) in &table {
            talk.expect(&raw(option, data), &error_reply(option, ERR_INVALID, text));
        }
    }
}

#[test]
fn name_of_the_longest_legal_length_is_looked_up() {
    let (out, outcome) = Talk::fixed().say(&go(&"x".repeat(4096), &[])).unwrap();
    let (_, reply) = client::OptionReply::parse(&out).unwrap().unwrap();
    assert_eq!((reply.reply.0, outcome), (ERR_UNKNOWN, Outcome::Answered));
}

#[test]
fn data_over_the_kept_length_are_skipped_and_refused() {
    let kept = MAX_KEPT_OPTION_LEN as usize;
    for option in [6, 7, 9, 10] {
        let mut talk = structured();
        let too_big = error_reply(option, ERR_TOO_BIG, "that is too much data for this option");
        talk.expect(&raw(option, &vec![0; kept + 1]), &too_big);
        let trailing = error_reply(option, ERR_INVALID, "there are data behind the last field");
        talk.expect(&raw(option, &vec![0; kept]), &trailing);
    }
}

#[test]
fn export_name_enters_transmission_without_padding_when_agreed() {
    let session = Talk::fixed().expect_session(&raw(1, b"disk0"), &hex("0000000040000000 0d6d"));
    assert_eq!(session.export, 0);
    assert!(!session.block_sizes_known);
}

#[test]
fn export_name_pads_with_124_zeroes_otherwise() {
    for flags in [0, 1] {
        let answer = [hex("0000000040000000 0d6d"), vec![0; 124]].concat();
        Talk::with_flags(flags).expect_session(&raw(1, b"disk0"), &answer);
    }
    Talk::with_flags(2).expect_session(&raw(1, b"disk0"), &hex("0000000040000000 0d6d"));
}

#[test]
fn export_name_keeps_structured_replies_and_contexts() {
    let mut talk = structured();
    talk.say(&set("disk0", &[BASE_ALLOCATION])).unwrap();
    let session = talk.expect_session(&raw(1, b""), &hex("0000000040000000 0ded"));
    assert!(session.structured);
    assert_eq!(session.allocation, Some(ContextId(1)));
}

#[test]
fn export_name_that_cannot_be_served_closes() {
    let unknown = Violation::ExportNameUnknown { name: "nope".into() };
    assert_eq!(Talk::fixed().say(&raw(1, b"nope")), Err(unknown));
    let malformed = Violation::ExportNameMalformed { length: 2 };
    assert_eq!(Talk::fixed().say(&raw(1, &[0xc3, 0x28])), Err(malformed));
    // Before the data come: only the header is here.
    let too_long = Violation::ExportNameMalformed { length: 4097 };
    assert_eq!(Talk::fixed().say(&hex("49484156454f5054 00000001 00001001")), Err(too_long));
    let legal = Talk::fixed().say(&hex("49484156454f5054 00000001 00001000"));
    assert_eq!(legal, Ok((vec![], Outcome::NeedMore)));
}

#[test]
fn plain_newstyle_client_may_use_export_name_alone() {
    let mut talk = Talk::with_flags(0);
    let text = "only EXPORT_NAME is legal for a client without fixed newstyle";
    for option in [2, 3, 5, 6, 7, 8, 9, 10, 11, 99] {
        talk.expect(&raw(option, &[]), &error_reply(option, ERR_INVALID, text));
    }
    let answer = [hex("0000000040000000 0d6d"), vec![0; 124]].concat();
    let session = talk.expect_session(&raw(1, b"disk0"), &answer);
    assert!(!session.structured);
}

#[test]
fn client_flags_that_were_not_offered_close() {
    for flags in [4_u32, 7, 0x0001_0000, 0x8000_0003, u32::MAX] {
        let mut handshake = Handshake::new();
        let result = handshake.receive(&flags.to_be_bytes(), &[], &mut Vec::new());
        assert_eq!(result, Err(Violation::ClientFlags(flags)));
    }
}

#[test]
fn option_without_magic_closes_and_stays_closed() {
    let mut talk = Talk::fixed();
    let violation = Violation::OptionMagic(0x4948_4156_454f_5055);
    assert_eq!(talk.say(&hex("49484156454f5055 00000007 00000000")), Err(violation.clone()));
    assert_eq!(talk.say(&go("disk0", &[])), Err(violation));
}

#[test]
fn option_over_the_limit_closes_before_its_data_come() {
    let header = |length: u32| [hex("49484156454f5054 00000063"), length.to_be_bytes().to_vec()].concat();
    let violation = Violation::OptionTooLong { option: OptionCode(99), length: MAX_OPTION_LEN + 1 };
    assert_eq!(Talk::fixed().say(&header(MAX_OPTION_LEN + 1)), Err(violation));
    let legal = Talk::fixed().say(&header(MAX_OPTION_LEN));
    assert_eq!(legal, Ok((vec![], Outcome::NeedMore)));
}

#[test]
fn option_after_the_last_one_closes() {
    let mut talk = Talk::fixed();
    for _ in 0..MAX_OPTIONS {
        talk.expect(&hex(STRUCTURED), &hex(ACK_STRUCTURED));
    }
    assert_eq!(talk.say(&hex(STRUCTURED)), Err(Violation::TooManyOptions));
}

#[test]
fn pipelined_options_are_answered_one_call_at_a_time() {
    let mut talk = Talk::fixed();
    let input = hex(STRUCTURED).repeat(2);
    let mut out = Vec::new();
    let first = talk.handshake.receive(&input, &talk.exports, &mut out);
    assert_eq!((first, out), (Ok((16, Outcome::Answered)), hex(ACK_STRUCTURED)));
}

#[test]
fn requests_behind_go_are_left_in_the_input() {
    let mut talk = Talk::fixed();
    let option = go("disk0", &[]);
    let input = [&option[..], b"requests"].concat();
    let (consumed, outcome) = talk.handshake.receive(&input, &talk.exports, &mut Vec::new()).unwrap();
    assert_eq!(consumed, option.len());
    assert!(matches!(outcome, Outcome::Transmission(_)));
}

#[test]
fn contexts_need_structured_replies_first() {
    let mut talk = Talk::fixed();
    let text = "metadata contexts need structured replies first";
    talk.expect(&list("disk0", &[]), &error_reply(9, ERR_INVALID, text));
    talk.expect(&set("disk0", &[BASE_ALLOCATION]), &error_reply(10, ERR_INVALID, text));
}

#[test]
fn contexts_of_unknown_exports_are_refused() {
    let mut talk = structured();
    let text = r#"there is no export "nope"; this server has "disk0", "Disk0""#;
    talk.expect(&list("nope", &[]), &error_reply(9, ERR_UNKNOWN, text));
    talk.expect(&set("nope", &[]), &error_reply(10, ERR_UNKNOWN, text));
}

#[test]
fn list_of_contexts_follows_the_queries() {
    let mut talk = structured();
    let found = [hex(LISTED), hex(ACK_LIST_META)].concat();
    let none = hex(ACK_LIST_META);
    let table: [(&[&str], &[u8]); 9] = [
        (&[], &found),
        (&["base:"], &found),
        (&["base:allocation"], &found),
        (&["qemu:allocation-depth", "base:allocation", "base:"], &found),
        (&["base:allocation", "base:allocation"], &found),
        (&["base:nope"], &none),
        (&["qemu:"], &none),
        (&["base"], &none),
        (&["Base:allocation", ""], &none),
    ];
    for (queries, answer) in table {
        talk.expect(&list("disk0", queries), answer);
    }
}

#[test]
fn selection_of_contexts_follows_the_queries() {
    let selected = [hex(SELECTED), hex(ACK_SET_META)].concat();
    let nothing = hex(ACK_SET_META);
    let table: [(&[&str], bool); 7] = [
        (&["base:allocation"], true),
        (&["qemu:dirty-bitmap:b", "base:allocation"], true),
        (&["base:allocation", "base:allocation"], true),
        (&[], false),
        (&["base:"], false),
        (&["base:nope", "x-godwit:y"], false),
        (&["base:allocation2"], false),
    ];
    for (queries, selects) in table {
        let mut talk = structured();
        talk.expect(&set("disk0", queries), if selects { &selected } else { &nothing });
        let session = talk.expect_session(&go("disk0", &[]), &[hex(EXPORT_GO_DF), hex(ACK_GO)].concat());
        assert_eq!(session.allocation, selects.then_some(ContextId(1)), "{queries:?}");
    }
}

#[test]
fn listing_contexts_selects_nothing_and_unselects_nothing() {
    let mut talk = structured();
    talk.say(&list("disk0", &[BASE_ALLOCATION])).unwrap();
    talk.say(&set("disk0", &[BASE_ALLOCATION])).unwrap();
    talk.say(&list("disk0", &["base:nope"])).unwrap();
    let session = talk.expect_session(&go("disk0", &[]), &[hex(EXPORT_GO_DF), hex(ACK_GO)].concat());
    assert_eq!(session.allocation, Some(ContextId(1)));
}

#[test]
fn new_selection_replaces_the_old_one_even_when_it_fails() {
    let kept = MAX_KEPT_OPTION_LEN as usize;
    let replacements = [
        set("disk0", &[]),
        set("disk0", &["base:"]),
        set("nope", &[BASE_ALLOCATION]),
        raw(10, &hex("00000005")),
        raw(10, &vec![0; kept + 1]),
    ];
    for replacement in replacements {
        let mut talk = structured();
        talk.say(&set("disk0", &[BASE_ALLOCATION])).unwrap();
        talk.say(&replacement).unwrap();
        let (_, outcome) = talk.say(&go("disk0", &[])).unwrap();
        let Outcome::Transmission(session) = outcome else { panic!("{outcome:?}") };
        assert_eq!(session.allocation, None, "{replacement:02x?}");
    }
}

#[test]
fn context_is_void_for_another_export_and_survives_other_options() {
    for (name, holds) in [("disk0", true), ("", true), ("Disk0", false)] {
        let mut talk = structured();
        talk.say(&set("disk0", &[BASE_ALLOCATION])).unwrap();
        talk.say(&client::info(OptionCode::INFO, "Disk0", &[])).unwrap();
        talk.say(&go("nope", &[])).unwrap();
        let (_, outcome) = talk.say(&go(name, &[])).unwrap();
        let Outcome::Transmission(session) = outcome else { panic!("{outcome:?}") };
        assert_eq!(session.allocation.is_some(), holds, "{name:?}");
    }
}

#[test]
fn malformed_context_queries_are_refused() {
    let truncated = "the data end in the middle of a field";
    let table = [
        (hex(""), truncated),
        (hex("00000005 6469736b30"), truncated),
        (hex("00000005 6469736b30 000000"), truncated),
        (hex("00000005 6469736b30 00000001"), truncated),
        (hex("00000005 6469736b30 00000001 00000001"), truncated),
        (hex("00000005 6469736b30 ffffffff 00000000"), truncated),
        (hex("00000005 6469736b30 00000000 00"), "there are data behind the last field"),
        (hex("00000005 6469736b30 00000001 00000001 00"), "a string is longer than 4096 bytes, or not UTF-8, or holds a NUL"),
    ];
    for option in [9, 10] {
        let mut talk = structured();
        for (data, text) in &table {
            talk.expect(&raw(option, data), &error_reply(option, ERR_INVALID, text));
        }
    }
}

#[test]
fn whole_negotiation_is_the_same_when_every_byte_comes_alone() {
    let script = [
        3_u32.to_be_bytes().to_vec(),
        raw(5, &[]),
        raw(12, &[7; 300]),
        hex(STRUCTURED),
        raw(3, &[]),
        set("disk0", &["x:y", BASE_ALLOCATION]),
        go("nope", &[]),
        raw(8, &[1, 2, 3]),
        go("disk0", &[InfoType::NAME, InfoType::BLOCK_SIZE]),
    ]
    .concat();
    let run = |chunk_len: usize| {
        let mut handshake = Handshake::new();
        let (exports, mut out, mut last) = (support::exports(), Vec::new(), Outcome::NeedMore);
        for mut chunk in script.chunks(chunk_len) {
            while !chunk.is_empty() {
                let (consumed, outcome) = handshake.receive(chunk, &exports, &mut out).unwrap();
                assert!(consumed > 0, "no progress");
                chunk = &chunk[consumed..];
                last = outcome;
            }
        }
        (out, last)
    };
    let whole = run(script.len());
    assert!(matches!(whole.1, Outcome::Transmission(session) if session.allocation.is_some()));
    for chunk_len in 1..40 {
        assert_eq!(run(chunk_len), whole, "chunks of {chunk_len}");
    }
}
