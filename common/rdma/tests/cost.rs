//! What a message costs in calls.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use godwit_rdma::{Completion, WorkId};
use support::endless::EndlessWorld;
use support::{HOST, Pair, TARGET, config};

#[test]
fn a_message_that_arrives_alone_costs_little_more_than_one_read() {
    let messages = 200;
    let mut pair = Pair::<EndlessWorld>::greeted(7, &config());
    pair.side(TARGET).reactor.reads = 0;
    for _ in 0..messages {
        pair.send(HOST, WorkId(1), &[1; 16], None, None);
        pair.next(|side, c| side == TARGET && matches!(c, Completion::Received { .. }));
        pair.next(|side, c| side == HOST && matches!(c, Completion::SendDone { .. }));
    }
    // The simulator splits some messages.
    let reads = pair.side(TARGET).reactor.reads;
    assert!((messages..messages * 2).contains(&reads), "{reads} reads for {messages} messages");
}
