//! A whole session, cut in two at every byte.

use std::collections::BTreeMap;

use godwit_nbd::{Command, Errno, InfoType, OptionCode, client};

use super::world::{Answer, HANDSHAKE_FLAGS, World};

/// Handshake, a write, reads, a refused write, goodbye.
fn session(structured: bool, client: &mut super::world::Client) -> Vec<u8> {
    let mut bytes = client::flags(HANDSHAKE_FLAGS).to_vec();
    if structured {
        bytes.extend(client::option(OptionCode::STRUCTURED_REPLY, &[]));
    }
    bytes.extend(client::info(OptionCode::GO, "vol0", &[InfoType::BLOCK_SIZE]));
    let mut request = |command, offset, length: u32, payload: &[u8]| {
        let request = client.next(command, offset, length);
        client.expect(request);
        bytes.extend(client::request(&request));
        bytes.extend(payload);
    };
    request(Command::Read, 1024, 512, &[]);
    request(Command::Write, 512, 512, &[0xab; 512]);
    request(Command::Write, 513, 5, b"wrong");
    request(Command::Flush, 0, 0, &[]);
    request(Command::Disconnect, 0, 0, &[]);
    bytes
}

/// What the server said: its part of the handshake, and its replies, which come in any order.
fn heard(client: &mut super::world::Client) -> (Vec<u8>, BTreeMap<u64, Answer>) {
    let mut len = 18;
    loop {
        let (reply_len, reply) = client::OptionReply::parse(&client.received[len..]).unwrap().unwrap();
        len += reply_len;
        if reply.is_final() && reply.option == OptionCode::GO {
            break;
        }
    }
    let handshake = client.received.drain(..len).collect();
    (handshake, client.answers().clone().into_iter().collect())
}

fn assert_complete(answers: &BTreeMap<u64, Answer>) {
    let errnos: Vec<_> = answers.values().map(|answer| answer.errno).collect();
    assert_eq!(errnos, [Errno::OK, Errno::OK, Errno::EINVAL, Errno::OK]);
    assert_eq!(answers[&1].data, [2; 512]);
}

#[test]
fn a_session_is_the_same_wherever_its_bytes_are_cut() {
    for structured in [false, true] {
        let mut world = World::new();
        let mut expected = None;
        let len = session(structured, &mut world.connect()).len();
        for cut in 0..len {
            let mut client = world.connect();
            let bytes = session(structured, &mut client);
            world.queue.data[512..1024].fill(0);
            client.say(&bytes[..cut]);
            (0..4).for_each(|_| world.turn());
            client.say(&bytes[cut..]);
            world.until_closed(&mut client);
            let heard = heard(&mut client);
            assert_complete(&heard.1);
            assert_eq!(&heard, expected.get_or_insert_with(|| heard.clone()), "cut at {cut}");
            assert_eq!(world.queue.data[512..1024], [0xab; 512]);
        }
        world.assert_at_rest();
    }
}

#[test]
fn a_session_that_comes_byte_by_byte_is_the_same() {
    let mut world = World::new();
    let mut client = world.connect();
    for byte in session(false, &mut client) {
        client.say(&[byte]);
        world.turn();
    }
    world.until_closed(&mut client);
    assert_complete(&heard(&mut client).1);
    world.assert_at_rest();
}

#[test]
fn an_end_at_any_byte_leaves_nothing_behind() {
    let mut world = World::new();
    let len = session(true, &mut world.connect()).len();
    for cut in (0..len).step_by(3) {
        let mut client = world.connect();
        let bytes = session(true, &mut client);
        client.say(&bytes[..cut]);
        (0..3).for_each(|_| world.turn());
        drop(client);
        world.until("an end", |world| world.front.is_idle());
    }
    world.assert_at_rest();
}
