//! What a message costs in calls.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use std::sync::Arc;

use godwit_memory::{Holding, MemoryDisk};
use godwit_rdma::{Access, Completion, WorkId};
use support::endless::EndlessWorld;
use support::{HOST, Machines, Net, Pair, TARGET, config};

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

#[test]
fn data_and_answers_leave_in_pieces_that_tcp_takes_as_one() {
    let disk = Holding::new(Arc::new(MemoryDisk::new(16_384).unwrap()));
    for len in [4096, 8192, 16_384] {
        let mut pair = Pair::<EndlessWorld>::greeted(7, &config());
        let memory = pair.buffer(HOST, &[0; 16_384]);
        let place = pair.expose(HOST, memory, len, Access::RemoteWrite);
        for id in 0..24 {
            pair.send(HOST, WorkId(id), &[1; 16], None, None);
        }
        let qp = pair.qps[TARGET];
        let Net { machines, sides, .. } = &mut pair.net;
        let [host, target] = sides;
        host.fabric.flush(&mut host.reactor);
        target.reactor.offers.clear();
        let mut answered = 0;
        while answered < 24 {
            assert!(machines.turn(sides), "only {answered} messages came");
            let [_, target] = sides;
            target.handle_events();
            while let Some((_, completion)) = target.fabric.poll(&mut target.reactor) {
                if let Completion::Received { .. } = completion {
                    target.fabric.post_write_extent(qp, disk.extent(0, len).unwrap(), place).unwrap();
                    target.fabric.post_send(qp, WorkId(0), &[2; 16], None, None);
                    answered += 1;
                }
            }
            target.fabric.flush(&mut target.reactor);
        }
        let longest = sides[TARGET].reactor.offers.iter().max();
        assert!(longest.is_some_and(|longest| (49_112..=65_483).contains(longest)), "{:?}", sides[TARGET].reactor.offers);
    }
}
