//! What only the inside can set up or see: numbers about to wrap, and the capacity of the queues.

use super::*;
use crate::memory::{InvalidateError, Memory, PlacementError, ReceiveError, TaggedError};
use crate::number::{Msn, Stag};

struct Anything;

impl Memory for Anything {
    fn write(&mut self, _: Stag, _: u64, _: &[u8]) -> Result<(), TaggedError> {
        Ok(())
    }

    fn read_response(&mut self, _: u64, _: u32, _: &[u8]) -> Result<(), PlacementError> {
        Ok(())
    }

    fn receive(&mut self, _: u32, _: &[u8]) -> Result<(), ReceiveError> {
        Ok(())
    }

    fn check_read(&mut self, _: Stag, _: u64, _: u32) -> Result<(), TaggedError> {
        Ok(())
    }

    fn invalidate(&mut self, _: Stag) -> Result<(), InvalidateError> {
        Ok(())
    }
}

fn connection() -> Connection {
    let negotiated = Negotiated { crc: true, ird: 4, ord: 4, rtr: None };
    Connection::new(Role::Initiator, negotiated, Options { send_queue_depth: 4, ..Options::default() })
}

/// Moves every segment that `from` has to `to`, with zeros for payload; returns the events.
fn deliver(from: &mut Connection, to: &mut Connection) -> Vec<Received> {
    let mut events = Vec::new();
    while let Some(segment) = from.next_segment() {
        let payload = vec![0; segment.len];
        let bytes = [segment.header(), &payload, segment.trailer(segment.header(), [&payload[..]]).as_ref()].concat();
        let mut rest = &bytes[..];
        loop {
            let (consumed, event) = to.receive(rest, &mut Anything).unwrap();
            rest = &rest[consumed..];
            if event == Received::NeedMore {
                break;
            }
            events.push(event);
        }
    }
    events
}

#[test]
fn message_sequence_numbers_wrap() {
    let (mut one, mut two) = (connection(), connection());
    for msn in [&mut one.tx.send_msn, &mut one.tx.request_msn, &mut two.rx.send_msn, &mut two.rx.request_msn] {
        *msn = Msn(u32::MAX);
    }
    for id in 0..3 {
        one.post_send(id, SendKind::Plain, 5).unwrap();
        assert_eq!(deliver(&mut one, &mut two), [Received::Message { length: 5, invalidated: None, solicited: false }]);
        one.post_read(id, (Stag(1), 0), 9).unwrap();
        assert_eq!(deliver(&mut one, &mut two), [Received::ReadRequested]);
        assert_eq!(deliver(&mut two, &mut one), [Received::ReadDone { read: id }]);
    }
    assert_eq!((one.tx.send_msn, two.rx.request_msn), (Msn(2), Msn(2)));
}

#[test]
fn queues_never_grow_beyond_what_was_reserved() {
    let capacities =
        |connection: &Connection| (connection.tx.queue.capacity(), connection.tx.reads.capacity(), connection.rx.requests.capacity());
    let (mut one, mut two) = (connection(), connection());
    let before = (capacities(&one), capacities(&two));
    for round in 0..50 {
        for id in 0..4 {
            match (round + id) % 3 {
                0 => one.post_read(id, (Stag(1), 0), 100).unwrap(),
                1 => one.post_send(id, SendKind::Plain, 100_000).unwrap(),
                _ => one.post_write(id, Stag(1), 0, 100_000).unwrap(),
            }
        }
        deliver(&mut one, &mut two);
        deliver(&mut two, &mut one);
        assert_eq!((one.queued_work(), one.outstanding_reads(), two.inbound_reads()), (0, 0, 0));
    }
    assert_eq!((capacities(&one), capacities(&two)), before);
}
