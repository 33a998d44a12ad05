//! The bytes of replies, written down from the protocol document.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use std::fmt;

use godwit_nbd::wire::{ChunkFlags, ChunkType};
use godwit_nbd::{Command, CommandFlags, ContextId, Errno, ExtentFlags, MAX_MESSAGE_LEN, Reply, Request, Session, client};
use support::{EVERYTHING, hex};

fn request(command: Command, length: u32) -> Request {
    Request { cookie: 0x0102_0304_0506_0708, command, flags: CommandFlags::NONE, offset: 0x11_2233_4455, length }
}

fn session(structured: bool) -> Session {
    Session { export: 0, flags: EVERYTHING, structured, allocation: structured.then_some(ContextId(1)), block_sizes_known: true }
}

#[track_caller]
fn expect(reply: Reply, bytes: &str) {
    assert_eq!(format!("{:02x?}", reply.as_bytes()), format!("{:02x?}", hex(bytes)));
}

#[test]
fn success_without_data_is_a_simple_reply() {
    expect(Reply::ok(&request(Command::Write, 512)), "67446698 00000000 0102030405060708");
}

#[test]
fn read_is_a_simple_header_or_one_last_data_chunk() {
    let read = request(Command::Read, 0x1000);
    expect(Reply::read(&session(false), &read), "67446698 00000000 0102030405060708");
    expect(Reply::read(&session(true), &read), "668e33ef 0001 0001 0102030405060708 00001008 0000001122334455");
}

#[test]
fn empty_read_has_no_data_chunk() {
    let read = request(Command::Read, 0);
    expect(Reply::read(&session(false), &read), "67446698 00000000 0102030405060708");
    expect(Reply::read(&session(true), &read), "668e33ef 0001 0000 0102030405060708 00000000");
}

#[test]
fn error_is_simple_or_a_chunk_with_a_message() {
    let read = request(Command::Read, 512);
    expect(Reply::error(&session(false), &read, Errno::EIO, "lost"), "67446698 00000005 0102030405060708");
    expect(Reply::error(&session(true), &read, Errno::EIO, "lost"), "668e33ef 0001 8001 0102030405060708 0000000a 00000005 0004 6c6f7374");
    expect(
        Reply::error_chunk(9, Errno::ENOSPC, "", Some(0x1000)),
        "668e33ef 0001 8002 0000000000000009 0000000e 0000001c 0000 0000000000001000",
    );
    expect(
        Reply::error_chunk(9, Errno::ENOSPC, "full", Some(0x1000)),
        "668e33ef 0001 8002 0000000000000009 00000012 0000001c 0004 66756c6c 0000000000001000",
    );
}

#[test]
fn pieces_of_a_read_are_data_holes_and_an_end() {
    expect(Reply::offset_data(ChunkFlags::NONE, 9, 512, 1), "668e33ef 0000 0001 0000000000000009 00000009 0000000000000200");
    expect(
        Reply::offset_hole(ChunkFlags::NONE, 9, 0x1000, 0x2000),
        "668e33ef 0000 0002 0000000000000009 0000000c 0000000000001000 00002000",
    );
    expect(
        Reply::offset_hole(ChunkFlags::DONE, 9, 0x1000, 0x2000),
        "668e33ef 0001 0002 0000000000000009 0000000c 0000000000001000 00002000",
    );
    expect(Reply::none(9), "668e33ef 0001 0000 0000000000000009 00000000");
}

#[test]
fn block_status_is_one_extent_of_the_selected_context() {
    let status = request(Command::BlockStatus, 0x8000);
    let hole = ExtentFlags::HOLE.with(ExtentFlags::ZERO);
    expect(
        Reply::block_status(&session(true), &status, 0x8000, hole),
        "668e33ef 0001 0005 0102030405060708 0000000c 00000001 00008000 00000003",
    );
}

#[test]
fn longest_message_is_whole_and_a_longer_one_is_cut_at_a_character() {
    let message_of = |text: fmt::Arguments<'_>| {
        let reply = Reply::error_chunk(9, Errno::EIO, text, Some(1));
        let (len, parsed) = client::Reply::parse(reply.as_bytes(), |_| 0).unwrap().unwrap();
        assert_eq!(len, reply.as_bytes().len());
        let client::Reply::Chunk { payload, .. } = parsed else { panic!("{parsed:?}") };
        let message_len = usize::from(u16::from_be_bytes(*payload[4..].first_chunk().unwrap()));
        assert_eq!(payload.len(), 6 + message_len + 8);
        String::from_utf8(payload[6..6 + message_len].to_vec()).unwrap()
    };
    let whole = "x".repeat(MAX_MESSAGE_LEN);
    assert_eq!(message_of(format_args!("{whole}")), whole);
    assert_eq!(message_of(format_args!("{whole}x")), whole);
    let almost = "x".repeat(MAX_MESSAGE_LEN - 1);
    assert_eq!(message_of(format_args!("{almost}{}x", 'ü')), almost);
}

#[test]
#[should_panic = "an error has a number"]
fn error_without_a_number_panics() {
    let _ = Reply::error_chunk(9, Errno::OK, "", None);
}

#[test]
#[should_panic = "the length of a data chunk"]
fn data_chunk_without_data_panics() {
    let _ = Reply::offset_data(ChunkFlags::DONE, 9, 0, 0);
}

#[test]
fn client_takes_every_reply_apart() {
    let read = request(Command::Read, 3);
    let simple = [Reply::read(&session(false), &read).as_bytes(), b"abc"].concat();
    let expected = client::Reply::Simple { cookie: read.cookie, errno: Errno::OK, data: b"abc".to_vec() };
    assert_eq!(client::Reply::parse(&simple, |_| 3), Ok(Some((19, expected))));
    assert_eq!(client::Reply::parse(&simple[..18], |_| 3), Ok(None));
    assert_eq!(client::Reply::parse(&simple[..15], |_| 3), Ok(None));

    let chunk = [Reply::read(&session(true), &read).as_bytes(), b"abc"].concat();
    let expected = client::Reply::Chunk {
        cookie: read.cookie,
        flags: ChunkFlags::DONE,
        chunk: ChunkType::OFFSET_DATA,
        payload: [hex("0000001122334455"), b"abc".to_vec()].concat(),
    };
    assert_eq!(client::Reply::parse(&chunk, |_| 0), Ok(Some((31, expected))));
    assert_eq!(client::Reply::parse(&chunk[..30], |_| 0), Ok(None));

    let error = Reply::error(&session(true), &read, Errno::EPERM, "no");
    let (_, parsed) = client::Reply::parse(error.as_bytes(), |_| 0).unwrap().unwrap();
    assert_eq!(parsed.errno(), Errno::EPERM);
    assert_eq!(client::Reply::parse(&hex("67446699 00000000"), |_| 0), Err(client::Garbled::Magic(0x6744_6699)));
}
