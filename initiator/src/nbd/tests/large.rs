//! Large requests, small pools, full tables.

use godwit_nbd::{Command, CommandFlags, Errno};

use super::queue::{Ends, GEOMETRY, MIB, Seen};
use super::world::{Client, World, flagged};
use crate::block::{BlockError, Geometry};
use crate::nbd::Limits;

const LARGE: u32 = 32 << 20;

/// Two buffers of 1 MiB, and nothing else.
fn minimal() -> World {
    World::with(GEOMETRY, Limits::default(), &[(MIB, 2)])
}

fn pattern(seed: u32, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    data.chunks_mut(512).zip(seed..).for_each(|(block, number)| block.fill(number.wrapping_mul(31) as u8));
    data
}

#[test]
fn requests_of_32_mib_go_through_two_buffers_with_both_kinds_of_replies() {
    for structured in [false, true] {
        let mut world = minimal();
        world.queue.ends = Ends::AnyOrder(7);
        let mut client = if structured { world.structured_client() } else { world.simple_client() };
        let payload = pattern(3, LARGE as usize);
        let write = client.next(Command::Write, 512, LARGE);
        assert_eq!(world.ask(&mut client, write, &payload).errno, Errno::OK);
        assert!(world.queue.data[512..512 + LARGE as usize] == payload);
        let read = client.next(Command::Read, 512, LARGE);
        let answer = world.ask(&mut client, read, &[]);
        assert!(answer.errno == Errno::OK && answer.data == payload);
        assert_eq!(answer.chunks.len(), if structured { 32 } else { 0 });
        assert_eq!(world.queue.seen.len(), 64);
        world.assert_at_rest();
    }
}

#[test]
fn a_read_with_df_is_one_chunk() {
    let mut world = minimal();
    world.queue.ends = Ends::AnyOrder(11);
    let mut client = world.structured_client();
    for length in [65536, LARGE] {
        let read = flagged(client.next(Command::Read, 4096, length), CommandFlags::DF);
        let answer = world.ask(&mut client, read, &[]);
        assert_eq!((answer.errno, &*answer.chunks), (Errno::OK, &[(4096, length as usize)][..]));
        assert!(answer.data == world.queue.data[4096..4096 + length as usize]);
    }
    world.assert_at_rest();
}

#[test]
fn many_connections_share_two_buffers_and_all_get_on() {
    let mut world = minimal();
    world.queue.ends = Ends::AnyOrder(5);
    world.queue.capacity = 1;
    let mut clients: Vec<Client> =
        (0..12).map(|number| if number % 2 == 0 { world.simple_client() } else { world.structured_client() }).collect();
    let mut asked = Vec::new();
    for (number, client) in clients.iter_mut().enumerate() {
        let base = (number * 5 * MIB) as u64;
        let payload = pattern(number as u32, 2 * MIB + 512);
        let write = client.next(Command::Write, base, payload.len() as u32);
        client.request(write, &payload);
        let read = client.next(Command::Read, base + 3 * MIB as u64, 2 * MIB as u32);
        client.request(read, &[]);
        asked.push((write, payload, read));
    }
    world.until("all answers", |_| {
        clients.iter_mut().for_each(Client::pump);
        clients.iter_mut().all(|client| client.answers().len() == 2)
    });
    for (client, (write, payload, read)) in clients.iter_mut().zip(asked) {
        let answers = client.answers();
        assert_eq!(answers[&write.cookie].errno, Errno::OK);
        let (start, offset) = (read.offset as usize, write.offset as usize);
        assert!(answers[&read.cookie].data == world.queue.data[start..start + read.length as usize]);
        assert!(world.queue.data[offset..offset + payload.len()] == payload);
    }
    assert!(world.queue.refusals > 0, "the queue was full at times");
    world.assert_at_rest();
}

#[test]
fn a_large_request_holds_four_buffers_at_most() {
    let mut world = World::with(GEOMETRY, Limits::default(), &[(MIB, 16)]);
    world.queue.ends = Ends::ByHand;
    let mut client = world.structured_client();
    let read = client.next(Command::Read, 0, LARGE);
    client.request(read, &[]);
    world.settle();
    assert_eq!(world.queue.pending.len(), 4);
    let other = client.next(Command::Read, 0, 512);
    client.request(other, &[]);
    world.settle();
    assert_eq!(world.queue.pending.len(), 5, "another request is not kept waiting");
}

#[test]
fn bytes_under_way_are_bounded_per_connection() {
    let limits = Limits { bytes_in_flight: 2 * MIB, ..Limits::default() };
    let mut world = World::with(GEOMETRY, limits, &[(MIB, 16)]);
    world.queue.ends = Ends::ByHand;
    let mut client = world.simple_client();
    for number in 0..8 {
        let read = client.next(Command::Read, number * MIB as u64, MIB as u32);
        client.request(read, &[]);
    }
    world.settle();
    assert_eq!(world.queue.pending.len(), 2);
    client.takes = false;
    world.queue.end_all();
    world.settle();
    assert!(world.queue.pending.len() < 2, "what the client does not take counts");
    client.takes = true;
    world.until("all replies", |world| {
        client.pump();
        world.queue.end_all();
        client.answers().len() == 8
    });
    world.assert_at_rest();
}

#[test]
fn a_full_table_of_requests_leaves_the_rest_in_the_socket() {
    let limits = Limits { requests: 4, ..Limits::default() };
    let mut world = World::with(GEOMETRY, limits, &[(4096, 16)]);
    world.queue.ends = Ends::ByHand;
    let mut client = world.simple_client();
    for _ in 0..200_000 {
        let flush = client.next(Command::Flush, 0, 0);
        client.say(&godwit_nbd::client::request(&flush));
    }
    world.settle();
    client.pump();
    world.settle();
    assert_eq!(world.queue.pending.len(), 4);
    assert!(client.unsent() > 0, "the client's socket is full");
    world.queue.end(2);
    world.settle();
    assert_eq!((world.queue.pending.len(), world.queue.seen.len()), (4, 5));
}

#[test]
fn a_full_queue_is_offered_the_operation_again_and_nothing_overtakes_it() {
    let mut world = World::new();
    world.queue.ends = Ends::ByHand;
    world.queue.capacity = 2;
    let mut client = world.simple_client();
    for number in 0..5 {
        let write = client.next(Command::Write, number * 512, 512);
        client.request(write, &[number as u8; 512]);
    }
    world.settle();
    assert_eq!(world.queue.pending.len(), 2);
    assert!(world.reactor.pool_in_use() <= 3, "one refused operation, and no buffer taken after it");
    for expected in [3, 4, 5] {
        world.queue.end(0);
        world.settle();
        assert_eq!(world.queue.seen.len(), expected);
    }
    let offsets: Vec<_> = world.queue.seen.iter().map(|seen| if let Seen::Write(offset, ..) = seen { offset / 512 } else { 99 }).collect();
    assert_eq!(offsets, [0, 1, 2, 3, 4]);
}

trait PoolInUse {
    fn pool_in_use(&self) -> usize;
}

impl PoolInUse for godwit_reactor::Uring {
    fn pool_in_use(&self) -> usize {
        godwit_reactor::Reactor::pool(self).in_use()
    }
}

#[test]
fn a_client_that_takes_no_replies_is_not_asked_for_more_requests() {
    let mut world = World::new();
    let mut client = world.simple_client();
    client.takes = false;
    for _ in 0..300_000 {
        let cache = client.next(Command::Cache, 0, 512);
        client.say(&godwit_nbd::client::request(&cache));
    }
    for _ in 0..50 {
        world.settle();
        client.pump();
    }
    assert!(client.unsent() > 0);
    let left = client.unsent();
    world.settle();
    client.pump();
    assert_eq!(client.unsent(), left, "nothing moves");
    client.takes = true;
    world.until("all replies", |_| {
        client.pump();
        client.received.len() == 300_000 * 16
    });
}

#[test]
fn an_error_in_a_read_that_fits_its_window_is_told() {
    let mut world = World::new();
    world.queue.broken = vec![(3 << 20..(3 << 20) + 512, BlockError::Media)];
    for (mut client, df) in [(world.simple_client(), false), (world.structured_client(), true), (world.structured_client(), false)] {
        let flags = if df { CommandFlags::DF } else { CommandFlags::NONE };
        let read = flagged(client.next(Command::Read, 0, 4 << 20), flags);
        assert_eq!(world.ask(&mut client, read, &[]).errno, Errno::EIO);
        let after = client.next(Command::Read, 0, 512);
        assert_eq!(world.ask(&mut client, after, &[]).errno, Errno::OK, "the connection goes on");
    }
    world.assert_at_rest();
}

#[test]
fn an_error_after_the_beginning_of_a_simple_reply_closes_the_connection() {
    let mut world = World::new();
    world.queue.broken = vec![(20 << 20..(20 << 20) + 512, BlockError::Media)];
    let mut client = world.simple_client();
    let read = client.next(Command::Read, 0, LARGE);
    client.request(read, &[]);
    world.until_closed(&mut client);
    assert_eq!(client.received[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "its header said that it succeeds");
    assert!(client.received.len() < LARGE as usize);
    world.assert_at_rest();
    assert!(world.front.is_idle());
}

#[test]
fn an_error_in_a_chunked_read_is_the_last_chunk_and_says_where() {
    let mut world = World::new();
    world.queue.broken = vec![(20 << 20..(20 << 20) + 512, BlockError::Media)];
    let mut client = world.structured_client();
    let read = client.next(Command::Read, 0, LARGE);
    let answer = world.ask(&mut client, read, &[]);
    assert_eq!(answer.errno, Errno::EIO);
    assert!(answer.chunks.iter().all(|&(offset, _)| offset != 20 << 20));
    world.assert_at_rest();
}

#[test]
fn a_write_that_fails_early_has_the_rest_of_its_payload_skipped() {
    let mut world = World::new();
    world.queue.broken = vec![(MIB as u64..MIB as u64 + 512, BlockError::NoSpace)];
    let mut client = world.simple_client();
    let write = client.next(Command::Write, 0, LARGE);
    assert_eq!(world.ask(&mut client, write, &pattern(1, LARGE as usize)).errno, Errno::ENOSPC);
    assert!(world.queue.seen.len() < 32, "not all of it was written");
    let read = client.next(Command::Read, 0, 512);
    assert_eq!(world.ask(&mut client, read, &[]).errno, Errno::OK);
    world.assert_at_rest();
}

#[test]
fn nothing_stands_in_the_middle_of_a_reply_that_leaves_part_by_part() {
    // Two buffers: whatever needs more must stream, and everything else goes on beside it.
    for structured in [false, true] {
        let mut world = minimal();
        world.queue.ends = Ends::AnyOrder(23);
        let mut client = if structured { world.structured_client() } else { world.simple_client() };
        let flags = if structured { CommandFlags::DF } else { CommandFlags::NONE };
        let mut reads = Vec::new();
        for number in 0..6_u32 {
            for (command, flags, length) in [
                (Command::Read, flags, 3 << 20),
                (Command::Flush, CommandFlags::NONE, 0),
                (Command::Read, CommandFlags::NONE, 1 << 20),
                (Command::Cache, CommandFlags::NONE, 512),
                (Command::Read, flags, 5 << 20),
                (Command::Unknown(77), CommandFlags::NONE, 0),
                (Command::Read, CommandFlags::NONE, 2 << 20),
            ] {
                let offset = if command == Command::Read { u64::from(number) << 20 } else { 0 };
                let request = flagged(client.next(command, offset, length), flags);
                client.request(request, &[]);
                reads.push(request);
            }
        }
        world.until("all answers", |_| {
            client.pump();
            client.answers().len() == reads.len()
        });
        for request in reads {
            let answer = &client.answers()[&request.cookie];
            let expected = if request.command == Command::Unknown(77) { Errno::EINVAL } else { Errno::OK };
            assert_eq!(answer.errno, expected, "{request:?}");
            if request.command == Command::Read {
                let start = request.offset as usize;
                assert!(answer.data == world.queue.data[start..start + request.length as usize], "{request:?}");
            }
        }
        world.assert_at_rest();
    }
}

#[test]
fn a_reply_that_leaves_part_by_part_begins_after_the_reads_that_were_under_way() {
    let mut world = minimal();
    world.queue.ends = Ends::ByHand;
    let mut client = world.simple_client();
    let short = client.next(Command::Read, 0, MIB as u32);
    let long = client.next(Command::Read, 0, 5 << 20);
    client.request(short, &[]);
    client.request(long, &[]);
    world.until("both reads", |world| world.queue.pending.len() == 2);
    world.queue.end(1);
    world.settle();
    client.pump();
    assert!(client.received.is_empty());
    world.until("both answers", |world| {
        world.queue.end_all();
        client.pump();
        client.answers().len() == 2
    });
    assert!(client.answers()[&long.cookie].data == world.queue.data[..5 << 20]);
    world.assert_at_rest();
}

#[test]
fn a_read_that_found_all_its_buffers_is_whole_before_its_reply_begins() {
    let mut world = World::new();
    world.queue.ends = Ends::ByHand;
    let mut client = world.simple_client();
    let read = client.next(Command::Read, 0, 3 << 20);
    client.request(read, &[]);
    world.until("three pieces", |world| world.queue.pending.len() == 3);
    world.queue.end(0);
    world.queue.end(0);
    world.settle();
    client.pump();
    assert!(client.received.is_empty());
    world.queue.end_with(0, Err(BlockError::Media));
    assert_eq!(world.answer(&mut client, read.cookie).errno, Errno::EIO);
    world.assert_at_rest();
}

#[test]
fn a_volume_with_short_transfers_is_served_in_many_pieces() {
    let geometry = Geometry { max_transfer_bytes: 12_288, ..GEOMETRY };
    let mut world = World::with(geometry, Limits::default(), &[(16_384, 3)]);
    world.queue.ends = Ends::AnyOrder(3);
    for mut client in [world.simple_client(), world.structured_client()] {
        let payload = pattern(9, 300_032);
        let write = client.next(Command::Write, 512, 300_032);
        assert_eq!(world.ask(&mut client, write, &payload).errno, Errno::OK);
        let read = client.next(Command::Read, 512, 300_032);
        assert!(world.ask(&mut client, read, &[]).data == payload);
    }
    world.assert_at_rest();
}

#[test]
fn those_who_wait_for_a_buffer_get_one_in_their_order() {
    let mut world = World::with(GEOMETRY, Limits::default(), &[(MIB, 1)]);
    world.queue.ends = Ends::ByHand;
    let mut clients: Vec<Client> = (0..4).map(|_| world.simple_client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        for _ in 0..2 {
            let read = client.next(Command::Read, number as u64 * 512, 512);
            client.request(read, &[]);
        }
        world.settle();
    }
    let mut order = Vec::new();
    for _ in 0..8 {
        let Some(Seen::Read(offset, _)) = world.queue.seen.last() else { panic!("a read") };
        order.push(offset / 512);
        world.queue.end(0);
        world.settle();
    }
    for client in 0..4 {
        assert!(order[..5].contains(&client), "{order:?}: everyone has had a turn after five");
    }
}

/// What the queue refused is not forgotten for a write whose last bytes come while the queue is still full.
#[test]
fn a_write_that_becomes_whole_while_the_queue_is_full_waits_behind_what_was_refused() {
    let mut world = World::with(GEOMETRY, Limits::default(), &[(4096, 64), (131_072, 8), (MIB, 12)]);
    world.queue.ends = Ends::ByHand;
    let mut client = world.structured_client();
    let read = client.next(Command::Read, 0, 6 * MIB as u32);
    client.request(read, &[]);
    world.until("as many pieces as may be under way", |world| world.queue.pending.len() == 4);
    let (write, payload) = (client.next(Command::Write, 32 << 20, 65536), vec![9; 65536]);
    client.expect(write);
    client.say(&godwit_nbd::client::request(&write));
    client.say(&payload[..1000]);
    world.settle();
    // The next piece of the read finds no room.
    world.queue.capacity = 3;
    world.queue.end(0);
    world.settle();
    assert!(world.queue.refusals > 0);
    client.say(&payload[1000..]);
    world.settle();
    world.queue.capacity = 128;
    world.queue.ends = Ends::AtOnce;
    world.queue.end_all();
    assert_eq!(world.answer(&mut client, write.cookie).errno, Errno::OK);
    let answer = world.answer(&mut client, read.cookie);
    assert!(answer.data == world.queue.data[..6 * MIB]);
    world.assert_at_rest();
}
