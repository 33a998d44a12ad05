//! Requests: their bytes, where payload stands between them, and every rule at both sides of its boundary.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use godwit_nbd::{
    ABSURD_PAYLOAD_LEN, Command, CommandFlags, ContextId, Errno, Export, Parsed, Refusal, Reply, Request, Requests, Session,
    TransmissionFlags, Violation, client,
};
use support::{EVERYTHING, GIB, hex};

const ALL_COMMANDS: [Command; 8] = [
    Command::Read,
    Command::Write,
    Command::Disconnect,
    Command::Flush,
    Command::Trim,
    Command::Cache,
    Command::WriteZeroes,
    Command::BlockStatus,
];

/// A write of 0x1000 bytes at 0x2000 with FUA and the cookie "godwit!!".
const WRITE: &str = "25609513 0001 0001 676f647769742121 0000000000002000 00001000";

/// A parser that has just returned the header of [`WRITE`].
fn after_write() -> Requests {
    let mut requests = Requests::new();
    header(&mut requests, &hex(WRITE)).unwrap();
    requests
}

/// Feeds bytes that end with a header; how many were consumed, and the request.
fn header(requests: &mut Requests, bytes: &[u8]) -> Result<(usize, Request), Violation> {
    match requests.parse(bytes)? {
        (consumed, Some(Parsed::Request(request))) => Ok((consumed, request)),
        other => panic!("{other:?}"),
    }
}

fn request(command: Command, offset: u64, length: u32) -> Request {
    Request { cookie: 7, command, flags: CommandFlags::NONE, offset, length }
}

/// Structured, with context, on "disk0".
fn session() -> Session {
    Session { export: 0, flags: EVERYTHING, structured: true, allocation: Some(ContextId(1)), block_sizes_known: true }
}

fn disk0() -> Export {
    support::exports().remove(0)
}

/// A request of that command that passes every check.
fn legal(command: Command) -> Request {
    match command {
        Command::Flush | Command::Disconnect => request(command, 0, 0),
        _ => request(command, 4096, 4096),
    }
}

#[test]
fn header_is_parsed_field_by_field() {
    let (consumed, parsed) = header(&mut Requests::new(), &hex(WRITE)).unwrap();
    let expected =
        Request { cookie: 0x676f_6477_6974_2121, command: Command::Write, flags: CommandFlags::FUA, offset: 0x2000, length: 0x1000 };
    assert_eq!((consumed, parsed), (28, expected));
    assert_eq!(client::request(&expected)[..], hex(WRITE));
}

#[test]
fn header_comes_in_any_pieces() {
    for cut in 0..28 {
        let mut requests = Requests::new();
        let bytes = hex(WRITE);
        assert_eq!(requests.parse(&bytes[..cut]), Ok((cut, None)));
        let (consumed, parsed) = header(&mut requests, &bytes[cut..]).unwrap();
        assert_eq!((consumed, parsed.length), (28 - cut, 0x1000));
    }
}

#[test]
fn payload_is_left_to_the_driver_piece_by_piece() {
    let mut requests = Requests::new();
    let (consumed, _) = requests.parse(&[hex(WRITE), vec![9; 10]].concat()).unwrap();
    assert_eq!((consumed, requests.payload_owed()), (28, 0x1000));
    assert_eq!(requests.parse(&[9; 10]), Ok((0, None)), "payload is not the parser's");
    requests.take(0xfff);
    assert_eq!(requests.parse(&[9; 10]), Ok((0, None)));
    requests.take(0);
    assert_eq!(requests.payload_owed(), 1);
    requests.take(1);
    assert_eq!(requests.payload_owed(), 0);
    assert!(requests.parse(&hex(WRITE)).unwrap().1.is_some());
}

#[test]
fn refused_payload_is_consumed_exactly_and_then_answered() {
    let reply = Reply::simple(Errno::EIO, 1);
    let mut requests = after_write();
    requests.take(0x10);
    assert_eq!(requests.refuse(reply), None, "not before the payload has come");
    assert_eq!(requests.payload_owed(), 0);
    assert_eq!(requests.parse(&[9; 0xfef]), Ok((0xfef, None)));
    let rest = [vec![9], hex(WRITE)].concat();
    assert_eq!(requests.parse(&rest), Ok((1, Some(Parsed::Refused(reply)))));
    assert_eq!(header(&mut requests, &rest[1..]).unwrap().0, 28);
}

#[test]
fn refusal_without_payload_is_answered_at_once() {
    let reply = Reply::simple(Errno::EIO, 1);
    let mut requests = Requests::new();
    for read in [request(Command::Read, 0, 512), request(Command::Write, 0, 0)] {
        header(&mut requests, &client::request(&read)).unwrap();
        assert_eq!(requests.refuse(reply), Some(reply));
        requests.take(0);
    }
    let mut requests = after_write();
    requests.take(0x1000);
    assert_eq!(requests.refuse(reply), Some(reply), "the whole payload was taken");
    assert!(header(&mut requests, &hex(WRITE)).is_ok());
}

#[test]
#[should_panic = "the driver took more bytes than there is payload"]
fn taking_more_than_the_payload_panics() {
    after_write().take(0x1001);
}

#[test]
fn only_writes_have_payload_and_empty_ones_have_none() {
    for number in (0..20).chain([0xffff]) {
        let mut requests = Requests::new();
        let command = Command::from_wire(number);
        requests.parse(&client::request(&request(command, 0, 512))).unwrap();
        let owed = if command == Command::Write { 512 } else { 0 };
        assert_eq!(requests.payload_owed(), owed, "{command}");
    }
    let mut requests = Requests::new();
    let empty = client::request(&request(Command::Write, 0, 0));
    assert!(requests.parse(&empty).unwrap().1.is_some());
    assert!(requests.parse(&empty).unwrap().1.is_some());
}

#[test]
fn wrong_magic_closes_for_good() {
    let mut bytes = hex(WRITE);
    for magic in [0x1256_0953_u32, 0x2560_9512, 0x21e4_1c71, 0] {
        bytes[..4].copy_from_slice(&magic.to_be_bytes());
        let mut requests = Requests::new();
        assert_eq!(requests.parse(&bytes), Err(Violation::RequestMagic(magic)));
        assert_eq!(requests.parse(&hex(WRITE)), Err(Violation::RequestMagic(magic)));
    }
}

#[test]
fn absurd_write_closes_and_absurd_read_does_not() {
    let parse = |command, length| Requests::new().parse(&client::request(&request(command, 0, length))).map(|_| ());
    let violation = Violation::PayloadTooLong { cookie: 7, length: ABSURD_PAYLOAD_LEN + 1 };
    assert_eq!(parse(Command::Write, ABSURD_PAYLOAD_LEN + 1), Err(violation));
    assert_eq!(parse(Command::Write, ABSURD_PAYLOAD_LEN), Ok(()));
    for command in ALL_COMMANDS.into_iter().filter(|&command| command != Command::Write) {
        assert_eq!(parse(command, u32::MAX), Ok(()), "{command}");
    }
}

#[test]
fn nothing_is_parsed_after_a_disconnect() {
    let mut requests = Requests::new();
    let disconnect = client::request(&request(Command::Disconnect, 1, 1));
    assert!(requests.parse(&disconnect).unwrap().1.is_some());
    assert_eq!(requests.parse(&hex(WRITE)), Ok((28, None)));
    assert_eq!(requests.parse(b"anything"), Ok((8, None)));
}

#[test]
fn every_command_passes_when_it_is_legal() {
    for command in ALL_COMMANDS {
        assert_eq!(legal(command).check(&session(), &cached()), Ok(()), "{command}");
    }
    let anything = Request { flags: CommandFlags(0xffff), ..request(Command::Disconnect, 1, 1) };
    assert_eq!(anything.check(&session(), &disk0()), Ok(()));
}

/// "disk0" does offer CACHE.
fn cached() -> Export {
    let export = disk0();
    assert!(export.flags().contains(TransmissionFlags::SEND_CACHE));
    export
}

#[test]
fn unknown_commands_are_invalid() {
    for number in [8, 9, 0x100, 0xffff] {
        let command = Command::from_wire(number);
        let refusal = request(command, 0, 0).check(&session(), &disk0()).unwrap_err();
        assert_eq!(refusal, Refusal::UnknownCommand(command));
        assert_eq!(refusal.errno(), Errno::EINVAL);
    }
}

#[test]
fn commands_need_their_transmission_flag() {
    let table = [
        (Command::Flush, TransmissionFlags::SEND_FLUSH),
        (Command::Trim, TransmissionFlags::SEND_TRIM),
        (Command::Cache, TransmissionFlags::SEND_CACHE),
        (Command::WriteZeroes, TransmissionFlags::SEND_WRITE_ZEROES),
    ];
    for (command, flag) in table {
        let without = Session { flags: EVERYTHING.without(flag), ..session() };
        let refusal = legal(command).check(&without, &disk0()).unwrap_err();
        assert_eq!(refusal, Refusal::CommandNotOffered(command));
        assert_eq!(refusal.errno(), Errno::EINVAL);
        let alone = Session { flags: TransmissionFlags::HAS_FLAGS.with(flag), ..session() };
        assert_eq!(legal(command).check(&alone, &disk0()), Ok(()), "{command}");
    }
    let bare = Session { flags: TransmissionFlags::HAS_FLAGS, ..session() };
    for command in [Command::Read, Command::Write, Command::BlockStatus] {
        assert_eq!(legal(command).check(&bare, &disk0()), Ok(()), "{command}");
    }
}

#[test]
fn each_command_accepts_its_own_flags_and_no_other() {
    let table = [
        (Command::Read, 0x0001 | 0x0004),
        (Command::Write, 0x0001),
        (Command::Flush, 0x0001),
        (Command::Trim, 0x0001),
        (Command::Cache, 0x0001),
        (Command::WriteZeroes, 0x0001 | 0x0002 | 0x0010),
        (Command::BlockStatus, 0x0001 | 0x0008),
    ];
    for (command, own) in table {
        for bit in 0..16 {
            let flags = CommandFlags(1 << bit);
            let result = Request { flags, ..legal(command) }.check(&session(), &disk0());
            if own & flags.0 == 0 {
                assert_eq!(result, Err(Refusal::InvalidFlags { command, flags }));
                assert_eq!(result.unwrap_err().errno(), Errno::EINVAL);
            } else {
                assert_eq!(result, Ok(()), "{command} {flags:?}");
            }
        }
        let all = Request { flags: CommandFlags(own), ..legal(command) };
        assert_eq!(all.check(&session(), &disk0()), Ok(()));
    }
}

#[test]
fn flags_need_their_transmission_flag() {
    let table = [
        (Command::Read, CommandFlags::DF, TransmissionFlags::SEND_DF),
        (Command::WriteZeroes, CommandFlags::FAST_ZERO, TransmissionFlags::SEND_FAST_ZERO),
        (Command::Write, CommandFlags::FUA, TransmissionFlags::SEND_FUA),
        (Command::Read, CommandFlags::FUA, TransmissionFlags::SEND_FUA),
    ];
    for (command, flags, offer) in table {
        let without = Session { flags: EVERYTHING.without(offer), ..session() };
        let request = Request { flags, ..legal(command) };
        let refusal = request.check(&without, &disk0()).unwrap_err();
        assert_eq!(refusal, Refusal::FlagsNotOffered { command, flags });
        assert_eq!(refusal.errno(), Errno::EINVAL);
    }
}

#[test]
fn force_unit_access_means_something_for_changes_only() {
    for command in ALL_COMMANDS {
        let with = Request { flags: CommandFlags::FUA, ..legal(command) };
        let changes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        assert_eq!(with.fua(), changes, "{command}");
        assert!(!legal(command).fua());
    }
}

#[test]
fn dont_fragment_means_something_for_reads_only() {
    for command in ALL_COMMANDS {
        let with = Request { flags: CommandFlags::DF, ..legal(command) };
        assert_eq!(with.single_chunk(), command == Command::Read, "{command}");
        assert!(!legal(command).single_chunk());
    }
}

#[test]
fn block_status_needs_a_context_and_a_length() {
    let without = Session { allocation: None, ..session() };
    let refusal = legal(Command::BlockStatus).check(&without, &disk0()).unwrap_err();
    assert_eq!((refusal, refusal.errno()), (Refusal::NoContext, Errno::EINVAL));
    let refusal = request(Command::BlockStatus, 0, 0).check(&session(), &disk0()).unwrap_err();
    assert_eq!((refusal, refusal.errno()), (Refusal::EmptyStatus, Errno::EINVAL));
}

#[test]
fn flush_has_no_range() {
    for (offset, length) in [(0, 1), (1, 0), (512, 512), (0, u32::MAX)] {
        let refusal = request(Command::Flush, offset, length).check(&session(), &disk0());
        assert_eq!(refusal, Err(Refusal::FlushRange));
        assert_eq!(refusal.unwrap_err().errno(), Errno::EINVAL);
    }
}

#[test]
fn changes_to_a_read_only_export_are_not_permitted() {
    let export = support::exports().remove(1);
    let read_only = Session { flags: export.flags_for(true), ..session() };
    for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
        let refusal = legal(command).check(&read_only, &export).unwrap_err();
        assert_eq!((refusal, refusal.errno()), (Refusal::ReadOnly(command), Errno::EPERM));
    }
    for command in [Command::Read, Command::Flush, Command::BlockStatus] {
        assert_eq!(legal(command).check(&read_only, &export), Ok(()), "{command}");
    }
    // An export that became read-only after the client was told its flags.
    let refusal = legal(Command::Write).check(&session(), &export).unwrap_err();
    assert_eq!(refusal.errno(), Errno::EPERM);
}

#[test]
fn ranges_end_at_the_end_of_the_export() {
    let table = [
        (Command::Read, Errno::EINVAL),
        (Command::Write, Errno::ENOSPC),
        (Command::Trim, Errno::EINVAL),
        (Command::Cache, Errno::EINVAL),
        (Command::WriteZeroes, Errno::ENOSPC),
        (Command::BlockStatus, Errno::EINVAL),
    ];
    for (command, errno) in table {
        let check = |offset, length| request(command, offset, length).check(&session(), &disk0());
        assert_eq!(check(GIB - 512, 512), Ok(()), "{command}");
        for (offset, length) in [(GIB - 512, 1024), (GIB, 512), (u64::MAX - 511, 512), (u64::MAX, 1), (GIB - 1, 2)] {
            let refusal = check(offset, length).unwrap_err();
            let expected = Refusal::OutOfBounds { command, offset, length, size: GIB };
            assert_eq!((refusal, refusal.errno()), (expected, errno));
        }
    }
}

#[test]
fn ranges_are_made_of_whole_blocks_whether_the_client_knows_or_not() {
    for command in [Command::Read, Command::Write, Command::Trim, Command::Cache, Command::WriteZeroes, Command::BlockStatus] {
        for block_sizes_known in [true, false] {
            let session = Session { block_sizes_known, ..session() };
            for (offset, length) in [(1, 512), (511, 512), (256, 256), (0, 1), (512, 513)] {
                let refusal = request(command, offset, length).check(&session, &disk0());
                let expected = Refusal::Unaligned { command, offset, length, minimum: 512 };
                assert_eq!(refusal, Err(expected));
                assert_eq!(expected.errno(), Errno::EINVAL);
            }
            assert_eq!(request(command, 512, 1024).check(&session, &disk0()), Ok(()));
        }
    }
}

#[test]
fn payload_over_the_maximum_is_invalid_and_consumed() {
    let maximum = 32 << 20;
    for command in [Command::Read, Command::Write] {
        assert_eq!(request(command, 0, maximum).check(&session(), &disk0()), Ok(()));
        let refusal = request(command, 0, maximum + 512).check(&session(), &disk0()).unwrap_err();
        let expected = Refusal::PayloadTooLong { command, length: maximum + 512, maximum };
        assert_eq!((refusal, refusal.errno()), (expected, Errno::EINVAL));
    }
    let mut requests = Requests::new();
    let write = request(Command::Write, 0, maximum + 512);
    header(&mut requests, &client::request(&write)).unwrap();
    let reply = Reply::simple(Errno::EINVAL, write.cookie);
    assert_eq!(requests.refuse(reply), None);
    let rest = vec![0; maximum as usize + 512];
    assert_eq!(requests.parse(&rest), Ok((rest.len(), Some(Parsed::Refused(reply)))));
    assert!(header(&mut requests, &hex(WRITE)).is_ok());
}

#[test]
fn requests_without_payload_may_be_longer_than_the_maximum_payload() {
    for command in [Command::Trim, Command::Cache, Command::WriteZeroes, Command::BlockStatus] {
        let whole = request(command, 0, u32::try_from(GIB).unwrap());
        assert_eq!(whole.check(&session(), &disk0()), Ok(()), "{command}");
    }
}

#[test]
fn empty_ranges_inside_the_export_pass() {
    for command in [Command::Read, Command::Write, Command::Trim, Command::Cache, Command::WriteZeroes] {
        for offset in [0, 512, GIB] {
            assert_eq!(request(command, offset, 0).check(&session(), &disk0()), Ok(()));
        }
        assert!(request(command, GIB + 512, 0).check(&session(), &disk0()).is_err());
    }
}

#[test]
fn refusals_say_what_was_wrong_in_one_line() {
    let table = [
        (request(Command::Write, GIB, 512), "WRITE of 512 bytes at 1073741824 ends beyond the export's 1073741824 bytes"),
        (request(Command::Read, 1, 2), "READ of 2 bytes at 1 is not a multiple of the minimum block size 512"),
        (request(Command::Unknown(99), 0, 0), "command 99 is unknown"),
        (
            Request { flags: CommandFlags(0x22), ..request(Command::Read, 0, 512) },
            "READ with flags 0x0022: not all of them are valid there",
        ),
    ];
    for (request, text) in table {
        assert_eq!(request.check(&session(), &disk0()).unwrap_err().to_string(), text);
    }
}
