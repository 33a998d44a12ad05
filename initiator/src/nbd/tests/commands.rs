//! Each command and flag: what becomes of it, and what the client is told.

use godwit_nbd::{Command, CommandFlags, Errno, Request};

use super::queue::{Ends, Fua, GEOMETRY, MIB, MayDeallocate, Seen};
use super::world::{Answer, Client, World, flagged};
use crate::block::{BlockError, Geometry};
use crate::nbd::Limits;

const POOL: &[(usize, usize)] = &[(4096, 16), (MIB, 4)];

fn ask(world: &mut World, client: &mut Client, command: Command, flags: CommandFlags, offset: u64, length: u32) -> Answer {
    let request = flagged(client.next(command, offset, length), flags);
    let payload = vec![0x77; if command == Command::Write { length as usize } else { 0 }];
    world.ask(client, request, &payload)
}

#[test]
fn a_write_lands_and_is_read_back_with_both_kinds_of_replies() {
    let mut world = World::new();
    for mut client in [world.simple_client(), world.structured_client()] {
        world.queue.seen.clear();
        let payload: Vec<u8> = (0..8192_u32).map(|at| (at / 7) as u8).collect();
        let write = client.next(Command::Write, 4096, 8192);
        assert_eq!(world.ask(&mut client, write, &payload), Answer::new(Errno::OK));
        let read = ask(&mut world, &mut client, Command::Read, CommandFlags::NONE, 4096, 8192);
        assert_eq!((read.errno, read.data == payload), (Errno::OK, true));
        assert_eq!(world.queue.seen, [Seen::Write(4096, 8192, Fua(false)), Seen::Read(4096, 8192)]);
    }
    world.assert_at_rest();
}

#[test]
fn each_command_becomes_its_operations() {
    use Command::{BlockStatus, Cache, Flush, Trim, Write, WriteZeroes};
    let none = CommandFlags::NONE;
    let (fua, no_hole, fast) = (CommandFlags::FUA, CommandFlags::NO_HOLE, CommandFlags::FAST_ZERO);
    let mut world = World::new();
    let mut client = world.structured_client();
    let zeroes = |may_deallocate, fua| Seen::Zeroes(512, 512, MayDeallocate(may_deallocate), Fua(fua));
    let table: &[(Command, CommandFlags, u64, u32, &[Seen])] = &[
        (Write, fua, 512, 512, &[Seen::Write(512, 512, Fua(true))]),
        (Flush, none, 0, 0, &[Seen::Flush]),
        (Flush, fua, 0, 0, &[Seen::Flush]),
        (Trim, none, 512, 512, &[Seen::Discard(512, 512)]),
        (Trim, fua, 512, 512, &[Seen::Discard(512, 512), Seen::Flush]),
        (WriteZeroes, none, 512, 512, &[zeroes(true, false)]),
        (WriteZeroes, no_hole, 512, 512, &[zeroes(false, false)]),
        (WriteZeroes, fua, 512, 512, &[zeroes(true, true)]),
        (WriteZeroes, fast.with(no_hole), 512, 512, &[zeroes(false, false)]),
        (Cache, none, 0, 4096, &[]),
        (Command::Read, none, 512, 0, &[]),
        (Write, none, 512, 0, &[]),
        (Write, fua, 512, 0, &[]),
        (Trim, none, 512, 0, &[]),
        (WriteZeroes, none, 512, 0, &[]),
        (Trim, none, 0, 20 << 20, &[Seen::Discard(0, 8 << 20), Seen::Discard(8 << 20, 8 << 20), Seen::Discard(16 << 20, 4 << 20)]),
    ];
    for &(command, flags, offset, length, operations) in table {
        world.queue.seen.clear();
        let answer = ask(&mut world, &mut client, command, flags, offset, length);
        assert_eq!((answer, &*world.queue.seen), (Answer::new(Errno::OK), operations), "{command} {flags:?}");
    }
    let status = ask(&mut world, &mut client, BlockStatus, CommandFlags::REQ_ONE, 512, 1 << 20);
    assert_eq!((status.errno, status.extents), (Errno::OK, vec![(1 << 20, 0)]), "all of it is data");
    world.assert_at_rest();
}

#[test]
fn what_breaks_a_rule_is_refused_and_its_payload_is_skipped() {
    use Command::{Flush, Read, Trim, Unknown, Write, WriteZeroes};
    let mut world = World::new();
    let size = GEOMETRY.size_bytes;
    for mut client in [world.simple_client(), world.structured_client()] {
        let table = [
            (Read, CommandFlags::NONE, 1, 512, Errno::EINVAL),
            (Read, CommandFlags::NONE, 0, 511, Errno::EINVAL),
            (Read, CommandFlags::NONE, size, 512, Errno::EINVAL),
            (Read, CommandFlags::NONE, u64::MAX - 511, 512, Errno::EINVAL),
            (Read, CommandFlags::NONE, 0, (32 << 20) + 512, Errno::EINVAL),
            (Read, CommandFlags::NO_HOLE, 0, 512, Errno::EINVAL),
            (Write, CommandFlags::NONE, size - 512, 1024, Errno::ENOSPC),
            (Write, CommandFlags::NONE, 3, 70_000, Errno::EINVAL),
            (WriteZeroes, CommandFlags::NONE, size, 512, Errno::ENOSPC),
            (Trim, CommandFlags::NONE, size, 512, Errno::EINVAL),
            (Flush, CommandFlags::NONE, 0, 512, Errno::EINVAL),
            (Unknown(99), CommandFlags::NONE, 0, 0, Errno::EINVAL),
        ];
        world.queue.seen.clear();
        for (command, flags, offset, length, errno) in table {
            let answer = ask(&mut world, &mut client, command, flags, offset, length);
            assert_eq!(answer.errno, errno, "{command} {flags:?} {offset} {length}");
        }
        assert_eq!(world.queue.seen, []);
        let read = ask(&mut world, &mut client, Read, CommandFlags::NONE, 0, 512);
        assert_eq!((read.errno, read.data), (Errno::OK, vec![0; 512]), "the stream is in step");
    }
    world.assert_at_rest();
}

#[test]
fn a_read_only_volume_takes_no_change() {
    let mut world = World::with(Geometry { read_only: true, ..GEOMETRY }, Limits::default(), POOL);
    let mut client = world.structured_client();
    for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
        let answer = ask(&mut world, &mut client, command, CommandFlags::NONE, 0, 4096);
        assert_eq!(answer.errno, Errno::EPERM, "{command}");
    }
    assert_eq!(ask(&mut world, &mut client, Command::Flush, CommandFlags::NONE, 0, 0).errno, Errno::OK);
    assert_eq!(world.queue.seen, [Seen::Flush]);
}

#[test]
fn what_the_volume_cannot_do_is_not_offered() {
    let geometry = Geometry { can_write_zeroes: false, can_discard: false, max_discard_bytes: 0, max_zeroes_bytes: 0, ..GEOMETRY };
    let mut world = World::with(geometry, Limits::default(), POOL);
    let mut client = world.structured_client();
    for command in [Command::Trim, Command::WriteZeroes] {
        assert_eq!(ask(&mut world, &mut client, command, CommandFlags::NONE, 0, 4096).errno, Errno::EINVAL, "{command}");
    }
}

#[test]
fn failures_are_told_with_the_error_values_of_the_protocol() {
    let mut world = World::new();
    world.queue.broken = vec![(0..512, BlockError::Media), (512..1024, BlockError::NoSpace), (1024..1536, BlockError::Unsupported)];
    for mut client in [world.simple_client(), world.structured_client()] {
        let table = [
            (Command::Read, CommandFlags::NONE, 0, Errno::EIO),
            (Command::Write, CommandFlags::NONE, 512, Errno::ENOSPC),
            (Command::Trim, CommandFlags::FUA, 0, Errno::EIO),
            (Command::WriteZeroes, CommandFlags::NONE, 1024, Errno::EIO),
            (Command::WriteZeroes, CommandFlags::FAST_ZERO, 1024, Errno::ENOTSUP),
        ];
        for (command, flags, offset, errno) in table {
            let answer = ask(&mut world, &mut client, command, flags, offset, 512);
            assert_eq!(answer, Answer::new(errno), "{command} {flags:?}");
        }
        assert!(!world.queue.seen.contains(&Seen::Flush), "a failed trim is not flushed");
    }
    world.assert_at_rest();
}

#[test]
fn lost_writes_are_told_once_by_the_next_flush_or_fua_of_each_connection() {
    let (none, fua) = (CommandFlags::NONE, CommandFlags::FUA);
    let syncs = [
        (Command::Flush, none, 0, 0),
        (Command::Write, fua, 0, 4096),
        (Command::Write, fua, 0, 3 << 20),
        (Command::WriteZeroes, fua, 0, 4096),
        (Command::Trim, fua, 0, 4096),
    ];
    for structured in [false, true] {
        let mut world = World::new();
        let mut clients = syncs.map(|_| if structured { world.structured_client() } else { world.simple_client() });
        world.queue.losses.add();
        let mut late = world.simple_client();
        for (client, (command, flags, offset, length)) in clients.iter_mut().zip(syncs) {
            for (command, length) in [(Command::Read, 512), (Command::Write, 512), (Command::Trim, 512), (Command::WriteZeroes, 512)] {
                assert_eq!(ask(&mut world, client, command, none, 0, length).errno, Errno::OK, "{command} promises nothing");
            }
            assert_eq!(ask(&mut world, client, command, flags, offset, length), Answer::new(Errno::EIO), "{command} {flags:?}");
            assert_eq!(ask(&mut world, client, command, flags, offset, length).errno, Errno::OK, "it was told");
            assert_eq!(ask(&mut world, client, Command::Flush, none, 0, 0).errno, Errno::OK, "it was told");
        }
        assert_eq!(ask(&mut world, &mut late, Command::Flush, none, 0, 0).errno, Errno::EIO, "nobody had been told when it came");
        let mut later = world.simple_client();
        assert_eq!(ask(&mut world, &mut later, Command::Flush, none, 0, 0).errno, Errno::OK);
        world.queue.losses.add();
        assert_eq!(ask(&mut world, &mut later, Command::Flush, none, 0, 0).errno, Errno::EIO);
        assert_eq!(world.queue.failed_after_all, syncs.len() + 2, "each is counted as an error");
        world.assert_at_rest();
    }
}

#[test]
fn a_flush_that_was_under_way_when_writes_were_lost_tells_of_it() {
    let mut world = World::new();
    world.queue.ends = Ends::ByHand;
    let mut client = world.simple_client();
    let flush = client.next(Command::Flush, 0, 0);
    client.request(flush, &[]);
    world.until("it is under way", |world| {
        client.pump();
        !world.queue.pending.is_empty()
    });
    world.queue.losses.add();
    world.queue.end_all();
    let answer = world.answer(&mut client, flush.cookie);
    assert_eq!(answer.errno, Errno::EIO);
}

#[test]
fn replies_come_in_the_order_in_which_operations_end() {
    let mut world = World::new();
    world.queue.ends = Ends::ByHand;
    let mut client = world.simple_client();
    let requests: Vec<Request> = (0..3).map(|number| client.next(Command::Read, number * 512, 512)).collect();
    for &request in &requests {
        client.request(request, &[]);
    }
    world.until("three operations", |world| world.queue.pending.len() == 3);
    for (index, left) in [(1, vec![1, 3]), (1, vec![1]), (0, vec![])] {
        world.queue.end(index);
        world.settle();
        client.pump();
        let answers = client.answers().clone();
        let unanswered: Vec<_> = requests.iter().map(|request| request.cookie).filter(|cookie| !answers.contains_key(cookie)).collect();
        assert_eq!(unanswered, left);
    }
    let answers = client.answers();
    for request in &requests {
        assert_eq!(answers[&request.cookie].data, vec![(request.offset / 512) as u8; 512]);
    }
}

#[test]
fn the_handshake_names_the_volume_and_its_sizes() {
    use godwit_nbd::{InfoType, OptionCode, client};
    let mut world = World::new();
    for name in ["", "vol0"] {
        let mut client = world.connect();
        let infos = [InfoType::NAME, InfoType::DESCRIPTION, InfoType::BLOCK_SIZE];
        client.say(&[&client::flags(super::world::HANDSHAKE_FLAGS)[..], &client::info(OptionCode::GO, name, &infos)].concat());
        world.settle();
        client.pump();
        let mut data = Vec::new();
        let mut rest = &client.received[18..];
        while let Some((len, reply)) = client::OptionReply::parse(rest).unwrap() {
            data.push(reply.data);
            rest = &rest[len..];
        }
        let export = [&[0, 0][..], &GEOMETRY.size_bytes.to_be_bytes(), &[0x0d, 0x6d]].concat();
        let sizes = [&[0, 3][..], &512_u32.to_be_bytes(), &4096_u32.to_be_bytes(), &(32_u32 << 20).to_be_bytes()].concat();
        assert_eq!(data, [export, b"\0\x01vol0".to_vec(), b"\0\x02a volume".to_vec(), sizes, vec![]]);
    }
}
