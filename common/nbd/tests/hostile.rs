//! Any bytes at any moment: no panic, no memory, no endless loop.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use godwit_nbd::{
    CommandFlags, Errno, Handshake, MAX_KEPT_OPTION_LEN, MAX_OPTION_LEN, MAX_OPTIONS, OptionCode, Outcome, Parsed, Reply, Request,
    Requests, Session, client,
};
use proptest::prelude::*;
use support::{EVERYTHING, exports};

/// Feeds everything, chunk by chunk; the most output of one call, and how it ended.
fn feed(input: &[u8], chunk_len: usize) -> (usize, Option<Session>) {
    let (mut handshake, exports) = (Handshake::new(), exports());
    let (mut out, mut longest) = (Vec::new(), 0);
    for mut chunk in input.chunks(chunk_len) {
        while !chunk.is_empty() {
            out.clear();
            let Ok((consumed, outcome)) = handshake.receive(chunk, &exports, &mut out) else {
                return (longest, None);
            };
            longest = longest.max(out.len());
            chunk = &chunk[consumed..];
            match outcome {
                Outcome::NeedMore => assert!(chunk.is_empty(), "more is needed, and there is more"),
                Outcome::Answered => assert!(!out.is_empty()),
                Outcome::Aborted => return (longest, None),
                Outcome::Transmission(session) => return (longest, Some(session)),
            }
        }
    }
    (longest, None)
}

fn any_option() -> impl Strategy<Value = Vec<u8>> {
    let code = prop_oneof![6 => 0..13_u32, 1 => any::<u32>()];
    let data = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        prop::collection::vec(0..3_u8, 0..40),
        Just(b"\0\0\0\x05disk0\0\x02\0\x03\0\x01".to_vec()),
        Just(b"\0\0\0\x05disk0\0\0\0\x01\0\0\0\x0fbase:allocation".to_vec()),
    ];
    (code, data, 0..20_i64).prop_map(|(code, data, skew)| {
        let mut option = client::option(OptionCode(code), &data);
        if skew == 0 {
            option.pop(); // a length that does not fit
        }
        option
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn arbitrary_bytes_do_no_harm(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        chunk_len in 1..64_usize,
    ) {
        feed(&bytes, chunk_len);
        feed(&[&[0, 0, 0, 3][..], &bytes].concat(), chunk_len);
    }

    #[test]
    fn arbitrary_options_do_no_harm_however_they_are_cut(
        options in prop::collection::vec(any_option(), 0..80),
        flags in 0..4_u32,
        chunk_len in 1..64_usize,
    ) {
        let script = [flags.to_be_bytes().to_vec(), options.concat()].concat();
        let cut = feed(&script, chunk_len);
        prop_assert_eq!(cut, feed(&script, script.len()));
        prop_assert!(cut.0 < 4096, "one call appended {} bytes", cut.0);
    }

    #[test]
    fn arbitrary_requests_do_no_harm(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        takes in prop::collection::vec(any::<u16>(), 1..20),
        chunk_len in 1..64_usize,
    ) {
        let mut requests = Requests::new();
        let mut takes = takes.into_iter().cycle();
        // Headers that are mostly legal: small numbers of commands, and lengths of at most 64 KiB.
        let framed: Vec<u8> = bytes
            .chunks_exact(24)
            .flat_map(|rest| {
                let mut header = [&[0x25, 0x60, 0x95, 0x13][..], rest].concat();
                (header[6], header[7]) = (0, header[7] % 10);
                header[24..26].fill(0);
                header
            })
            .collect();
        'stream: for mut chunk in framed.chunks(chunk_len) {
            while !chunk.is_empty() {
                let Ok((consumed, parsed)) = requests.parse(chunk) else { break 'stream };
                chunk = &chunk[consumed..];
                prop_assert!(consumed > 0 || requests.payload_owed() > 0);
                if let Some(Parsed::Request(request)) = parsed {
                    prop_assert_eq!(requests.payload_owed(), request.payload_len());
                }
                let take = u32::from(takes.next().unwrap());
                if take.is_multiple_of(3) {
                    let _ = requests.refuse(Reply::simple(Errno::EIO, 1));
                } else {
                    requests.take(take.min(requests.payload_owed()));
                }
            }
        }
    }

    #[test]
    fn whatever_passes_the_checks_lies_inside_the_export_in_whole_blocks(
        number in 0..10_u16,
        flags in prop_oneof![4 => 0..64_u16, 1 => any::<u16>()],
        offset in prop_oneof![
            any::<u64>(),
            (0..70_u64).prop_map(|block| block * 256),
            (0..70_u64).prop_map(|block| u64::MAX - block),
        ],
        length in prop_oneof![any::<u32>(), (0..70_u32).prop_map(|block| block * 256)],
        told: u16,
        structured: bool,
        block_sizes_known: bool,
        selected: bool,
        export in 0..2_usize,
    ) {
        let command = godwit_nbd::Command::from_wire(number);
        let request = Request { cookie: 1, command, flags: CommandFlags(flags), offset, length };
        let session = Session {
            export,
            flags: godwit_nbd::TransmissionFlags(told & EVERYTHING.0),
            structured,
            allocation: (structured && selected).then_some(godwit_nbd::ContextId(1)),
            block_sizes_known,
        };
        let export = &exports()[export];
        match request.check(&session, export) {
            Ok(()) if command != godwit_nbd::Command::Disconnect => {
                let minimum = export.block().minimum();
                prop_assert!(offset.checked_add(length.into()).unwrap() <= export.size());
                prop_assert!(offset.is_multiple_of(minimum.into()));
                prop_assert!(length.is_multiple_of(minimum));
                prop_assert!(flags < 0x20);
                prop_assert!(request.payload_len() <= export.block().maximum());
            }
            Ok(()) => {}
            Err(refusal) => {
                let reply = Reply::error(&session, &request, refusal.errno(), refusal);
                let parsed = client::Reply::parse(reply.as_bytes(), |_| 0).unwrap();
                let (len, parsed) = parsed.unwrap();
                prop_assert_eq!(len, reply.as_bytes().len());
                prop_assert_eq!(parsed.errno(), refusal.errno());
            }
        }
    }

    #[test]
    fn client_parsers_survive_arbitrary_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        magic in 0..5_usize,
        read_len: u32,
    ) {
        let magics = ["", "67446698", "668e33ef", "0003e889045565a9", "4e42444d4147494349484156454f5054"];
        let bytes = [support::hex(magics[magic]), bytes].concat();
        let _ = client::greeting(&bytes);
        if let Ok(Some((len, _))) = client::OptionReply::parse(&bytes) {
            prop_assert!(len <= bytes.len());
        }
        if let Ok(Some((len, reply))) = client::Reply::parse(&bytes, |_| read_len) {
            prop_assert!(len <= bytes.len());
            let _ = (reply.cookie(), reply.errno());
        }
    }
}

#[test]
fn the_largest_options_one_after_the_other_are_bounded_work() {
    let (mut handshake, exports) = (Handshake::new(), exports());
    let mut out = Vec::new();
    handshake.receive(&[0, 0, 0, 3], &exports, &mut out).unwrap();
    let skipped = vec![0xff; MAX_OPTION_LEN as usize];
    let kept = vec![0xff; MAX_KEPT_OPTION_LEN as usize];
    for index in 0..MAX_OPTIONS {
        let (code, data) = if index % 2 == 0 { (99, &skipped) } else { (10, &kept) };
        let option = client::option(OptionCode(code), data);
        let mut input = &option[..];
        while !input.is_empty() {
            let len = input.len().min(4000);
            let (consumed, _) = handshake.receive(&input[..len], &exports, &mut out).unwrap();
            input = &input[consumed..];
            assert!(handshake.kept_len() <= MAX_KEPT_OPTION_LEN as usize);
        }
    }
    assert!(out.len() < 64 * 1024, "{} bytes", out.len());
}
