//! How connections end, and what later ones wait for.

use std::sync::Arc;
use std::time::Duration;

use godwit_nbd::{Command, CommandFlags, Errno, OptionCode, client};

use super::queue::{Ends, Fua, GEOMETRY, MIB, Seen};
use super::world::{Client, HANDSHAKE_FLAGS, World, flagged};
use crate::block::BlockError;
use crate::nbd::{Limits, Volume};

const POOL: &[(usize, usize)] = &[(4096, 64), (MIB, 2)];

fn write(client: &mut Client, block: u64) {
    let write = client.next(Command::Write, block * 512, 512);
    client.request(write, &[block as u8; 512]);
}

#[test]
fn disc_ends_the_connection_after_everything_is_answered() {
    let mut world = World::new();
    world.queue.ends = Ends::ByHand;
    let mut client = world.simple_client();
    write(&mut client, 1);
    write(&mut client, 2);
    let disc = client.next(Command::Disconnect, 0, 0);
    client.request(disc, &[]);
    write(&mut client, 3);
    world.settle();
    client.pump();
    assert_eq!((world.queue.pending.len(), client.closed), (2, false), "what follows DISC is ignored");
    world.queue.end(1);
    world.settle();
    world.queue.end(0);
    world.until_closed(&mut client);
    assert_eq!(client.answers().len(), 2);
    world.assert_at_rest();
    assert!(world.front.is_idle());
    assert_eq!(world.front.volume().connections(), 0);
}

/// What breaks a connection, after two writes were sent to the target and a third waits in the volume's queue.
fn broken(world: &mut World, how: impl FnOnce(&mut Client)) {
    world.queue.ends = Ends::ByHand;
    world.queue.sent = 2;
    let mut client = world.simple_client();
    (1..=3).for_each(|block| write(&mut client, block));
    world.until("three writes", |world| world.queue.pending.len() == 3);
    how(&mut client);
    drop(client);
    world.until("the third write to be dropped", |world| world.queue.pending.len() == 2);
    world.settle();
}

#[test]
fn a_broken_connection_keeps_later_ones_waiting_until_what_was_sent_has_ended() {
    type Break = fn(&mut Client);
    let ways: [Break; 3] = [|_| {}, |client| client.say(&[0xff; 28]), |client| client.socket.shutdown(std::net::Shutdown::Write).unwrap()];
    for how in ways {
        let mut world = World::new();
        broken(&mut world, how);
        assert_eq!(world.front.volume().connections(), 1, "it counts while it has operations");
        let mut later = world.simple_client();
        write(&mut later, 1);
        let flush = later.next(Command::Flush, 0, 0);
        later.request(flush, &[]);
        world.settle();
        assert_eq!(world.queue.seen.len(), 3, "nothing of the later connection starts");
        world.queue.end(1);
        world.settle();
        assert_eq!(world.queue.seen.len(), 3);
        world.queue.end_with(0, Err(BlockError::Io));
        world.until("the later write", |world| world.queue.seen.len() == 5);
        assert_eq!(world.queue.seen[3..], [Seen::Write(512, 512, Fua(false)), Seen::Flush]);
        world.queue.end_all();
        assert_eq!(world.answer(&mut later, flush.cookie).errno, Errno::OK);
        drop(later);
        world.until("an end", |world| world.front.is_idle());
        world.assert_at_rest();
    }
}

#[test]
fn a_connection_of_another_thread_waits_as_well_and_so_does_an_older_one() {
    let volume = Volume::new("vol0", "", &GEOMETRY, Limits::default()).unwrap();
    let mut world = World::serving(Arc::clone(&volume), GEOMETRY, POOL);
    let mut other = World::serving(volume, GEOMETRY, POOL);
    let mut older = other.simple_client();
    broken(&mut world, |_| {});
    let mut newer = other.simple_client();
    write(&mut older, 8);
    write(&mut newer, 9);
    other.settle();
    std::thread::sleep(Duration::from_millis(5));
    other.settle();
    assert_eq!(other.queue.seen, []);
    world.queue.end_all();
    world.settle();
    other.until("both writes", |other| other.queue.seen.len() == 2);
}

#[test]
fn requests_that_came_before_the_end_are_not_held() {
    let mut world = World::new();
    let mut older = world.simple_client();
    let large = older.next(Command::Write, 0, 3 << 20);
    older.request(large, &vec![1; 1 << 20]);
    world.settle();
    broken(&mut world, |_| {});
    older.say(&vec![1; 2 << 20]);
    older.pump();
    world.until("the rest of the write", |world| {
        older.pump();
        world.queue.seen.len() == 6
    });
}

#[test]
fn an_unanswered_connection_that_had_nothing_under_way_holds_nobody() {
    let mut world = World::new();
    let mut client = world.simple_client();
    write(&mut client, 1);
    world.settle();
    drop(client);
    world.until("an end", |world| world.front.is_idle());
    let mut later = world.simple_client();
    let read = later.next(Command::Read, 512, 512);
    assert_eq!(world.ask(&mut later, read, &[]).data, [1; 512]);
}

#[test]
fn a_hostile_client_costs_its_own_connection_only() {
    let mut world = World::new();
    let mut honest = world.structured_client();
    let absurd = client::request(&honest.next(Command::Write, 0, u32::MAX));
    let attacks: [&[u8]; 3] = [&[0xff; 100], &absurd, &[0; 1 << 16]];
    for attack in attacks {
        for mut hostile in [world.simple_client(), world.connect()] {
            hostile.say(attack);
            world.until_closed(&mut hostile);
        }
        let read = honest.next(Command::Read, 0, 4096);
        assert_eq!(world.ask(&mut honest, read, &[]).errno, Errno::OK);
    }
    assert_eq!(world.front.volume().connections(), 1);
    world.assert_at_rest();
}

#[test]
fn the_next_connection_after_the_limit_is_closed_before_it_says_anything() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let mut world = World::with(GEOMETRY, limits, POOL);
    let mut first = world.simple_client();
    let _second = world.connect();
    let mut third = world.connect();
    world.until_closed(&mut third);
    assert!(third.received.is_empty());
    let disc = first.next(Command::Disconnect, 0, 0);
    first.request(disc, &[]);
    world.until_closed(&mut first);
    let mut fourth = world.simple_client();
    let read = fourth.next(Command::Read, 0, 512);
    assert_eq!(world.ask(&mut fourth, read, &[]).errno, Errno::OK);
}

#[test]
fn a_handshake_must_be_over_in_time_and_transmission_may_idle() {
    let limits = Limits { handshake: Duration::from_millis(150), ..Limits::default() };
    let mut world = World::with(GEOMETRY, limits, POOL);
    let mut idle = world.simple_client();
    let mut slow = world.connect();
    slow.say(&client::flags(HANDSHAKE_FLAGS)[..3]);
    world.until_closed(&mut slow);
    std::thread::sleep(Duration::from_millis(160));
    let read = idle.next(Command::Read, 0, 512);
    assert_eq!(world.ask(&mut idle, read, &[]).errno, Errno::OK);
    assert_eq!(world.front.volume().connections(), 1);
}

#[test]
fn abort_is_acknowledged_before_the_end() {
    let mut world = World::new();
    let mut client = world.connect();
    client.say(&[&client::flags(HANDSHAKE_FLAGS)[..], &client::option(OptionCode::ABORT, &[])].concat());
    world.until_closed(&mut client);
    let (_, reply) = client::OptionReply::parse(&client.received[18..]).unwrap().unwrap();
    assert!(reply.is_final() && !reply.reply.is_error());
    assert!(world.front.is_idle());
}

#[test]
fn shutdown_answers_what_is_under_way_and_nothing_else() {
    let mut world = World::new();
    world.queue.ends = Ends::ByHand;
    let mut clients = [world.simple_client(), world.structured_client()];
    let mut shaking = world.connect();
    for client in &mut clients {
        write(client, 1);
    }
    let half = clients[1].next(Command::Write, 0, 3 << 20);
    clients[1].request(half, &vec![1; (1 << 20) + 512]);
    world.until("two writes and a piece of the third", |world| {
        clients[1].pump();
        world.queue.pending.len() == 3
    });
    world.front.shutdown();
    clients.iter_mut().for_each(|client| write(client, 2));
    world.settle();
    assert_eq!((world.queue.seen.len(), world.front.is_idle()), (3, false));
    world.queue.end_all();
    for client in &mut clients {
        world.until_closed(client);
        assert_eq!(client.answers().len(), 1);
    }
    world.until_closed(&mut shaking);
    let mut late = world.connect();
    world.until_closed(&mut late);
    assert!(world.front.is_idle());
    world.assert_at_rest();
}

#[test]
fn a_client_that_keeps_a_buffer_others_wait_for_loses_its_connection() {
    let limits = Limits { stall: Duration::from_millis(30), ..Limits::default() };
    for sends in [false, true] {
        let mut world = World::with(GEOMETRY, limits, &[(MIB, 1)]);
        let mut stalled = world.simple_client();
        if sends {
            let write = stalled.next(Command::Write, 0, MIB as u32);
            stalled.request(write, &[0; 100_000]);
        } else {
            stalled.takes = false;
            let read = stalled.next(Command::Read, 0, MIB as u32);
            stalled.request(read, &[]);
        }
        world.settle();
        std::thread::sleep(Duration::from_millis(40));
        world.settle();
        stalled.pump();
        assert!(!stalled.closed, "nobody waits yet");
        let mut other = world.simple_client();
        let read = other.next(Command::Read, 0, 512);
        assert_eq!(world.ask(&mut other, read, &[]).errno, Errno::OK);
        stalled.takes = true;
        world.until_closed(&mut stalled);
        world.assert_at_rest();
    }
}

#[test]
fn a_volume_that_is_gone_answers_everything_with_eio() {
    let mut world = World::new();
    world.queue.broken = vec![(0..u64::MAX, BlockError::VolumeGone)];
    let mut client = world.structured_client();
    for (command, flags) in [(Command::Read, CommandFlags::NONE), (Command::Write, CommandFlags::FUA)] {
        let request = flagged(client.next(command, 0, 4096), flags);
        assert_eq!(world.ask(&mut client, request, &vec![0; if command == Command::Write { 4096 } else { 0 }]).errno, Errno::EIO);
    }
}
