//! What the soft provider promises beyond the list of operations that all have in common.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use godwit_rdma::{Access, Completion, Disconnect, QpConfig, WorkId};
use support::{HOST, Machines, Net, Pair, Rings, TARGET, config, on_both, pattern};

on_both!(
    what_is_posted_to_a_failed_queue_pair_is_flushed_before_its_end,
    a_region_that_is_revoked_while_it_is_read_ends_the_connection,
    a_region_that_is_revoked_between_writes_is_no_longer_reached,
);

#[test]
fn a_busy_queue_pair_takes_turns_with_a_quiet_one() {
    let net = &mut Net::<Rings>::new(0);
    let deep = QpConfig { send_depth: 2000, ..config() };
    let (busy, quiet) = (net.connect(&deep), net.connect(&deep));
    let [host, _] = &mut net.sides;
    for id in 0..2000 {
        host.fabric.post_send(busy[HOST], WorkId(id), &[0; 16], None, None);
    }
    host.fabric.post_send(quiet[HOST], WorkId(0), &[1; 16], None, None);
    host.fabric.flush(&mut host.reactor);
    // All of it arrives before the target looks at any.
    for _ in 0..300 {
        net.machines.turn(&mut net.sides);
    }
    let [_, target] = &mut net.sides;
    target.handle_events();
    let order: Vec<_> = std::iter::from_fn(|| target.fabric.poll(&mut target.reactor)).map(|(qp, _)| qp).collect();
    let position = order.iter().position(|qp| *qp == quiet[TARGET]).expect("the quiet one was heard");
    let busy_ones = order.iter().filter(|qp| **qp == busy[TARGET]).count();
    assert!(position <= 64, "{position} of {} before it", order.len());
    assert!(busy_ones > 100, "{busy_ones} messages make no busy queue pair");
}

fn what_is_posted_to_a_failed_queue_pair_is_flushed_before_its_end<M: Machines>(seed: u64) {
    let pair = &mut Pair::<M>::greeted(seed, &config());
    pair.destroy(HOST);
    for _ in 0..300 {
        pair.net.machines.turn(&mut pair.net.sides);
        let [_, target] = &mut pair.net.sides;
        target.handle_events();
    }
    // The end is there to be seen but not reported: the first of these finds the queue pair well, the last one failed.
    let data = pair.buffer(TARGET, &[1; 100]);
    pair.send(TARGET, WorkId(1), &[0; 16], Some(data), None);
    let [_, target] = &mut pair.net.sides;
    let first = target.fabric.poll(&mut target.reactor);
    assert!(matches!(first, Some((_, Completion::Flushed { id: WorkId(1), data: Some(_) }))), "{first:?}");
    drop(first);
    let data = pair.buffer(TARGET, &[2; 100]);
    pair.send(TARGET, WorkId(2), &[0; 16], Some(data), None);
    let [_, target] = &mut pair.net.sides;
    let second = target.fabric.poll(&mut target.reactor);
    assert!(matches!(second, Some((_, Completion::Flushed { id: WorkId(2), data: Some(_) }))), "{second:?}");
    drop(second);
    let end = target.fabric.poll(&mut target.reactor);
    assert!(matches!(end, Some((_, Completion::Disconnected { .. }))), "{end:?}");
    assert!(target.fabric.poll(&mut target.reactor).is_none());
    assert_eq!(target.pool().in_use(), 0);
}

fn a_region_that_is_revoked_while_it_is_read_ends_the_connection<M: Machines>(seed: u64) {
    let pair = &mut Pair::<M>::greeted(seed, &config());
    // Much more than a socket holds, so that some of it still waits when the regions go.
    let remotes: Vec<_> = (0..7)
        .map(|id| {
            let source = pair.buffer(HOST, &pattern(1 << 20, 1));
            let remote = pair.expose(HOST, source, 1 << 20, Access::RemoteRead);
            let sink = pair.side(TARGET).pool().take(1 << 20).unwrap();
            pair.read(TARGET, WorkId(id), sink, 1 << 20, remote);
            remote
        })
        .collect();
    let [_, target] = &mut pair.net.sides;
    target.fabric.flush(&mut target.reactor);
    // The host hears the requests and answers as far as the network takes it; the target reads nothing.
    for _ in 0..300 {
        pair.net.machines.turn(&mut pair.net.sides);
        let [host, _] = &mut pair.net.sides;
        host.handle_events();
        host.poll();
    }
    for remote in remotes {
        drop(pair.revoke(HOST, remote.rkey));
    }
    let end = pair.next(|side, c| side == HOST && matches!(c, Completion::Disconnected { .. }));
    assert!(matches!(end, Completion::Disconnected { reason: Disconnect::Violation(_) }), "{end:?}");
    pair.next(|side, c| side == TARGET && matches!(c, Completion::Disconnected { .. }));
}

fn a_region_that_is_revoked_between_writes_is_no_longer_reached<M: Machines>(seed: u64) {
    let pair = &mut Pair::<M>::greeted(seed, &config());
    let lent = pair.buffer(HOST, &[0; 65536]);
    let remote = pair.expose(HOST, lent, 65536, Access::RemoteWrite);
    let source = pair.buffer(TARGET, &[1; 65536]);
    pair.write(TARGET, source, 65536, remote);
    pair.send(TARGET, WorkId(1), &[0; 16], None, None);
    pair.next(|side, c| side == HOST && matches!(c, Completion::Received { .. }));
    let mut lent = pair.revoke(HOST, remote.rkey);
    assert!(lent.iter().all(|&byte| byte == 1));
    lent.fill(7);
    let source = pair.buffer(TARGET, &[2; 65536]);
    pair.write(TARGET, source, 65536, remote);
    pair.next(|side, c| side == HOST && matches!(c, Completion::Disconnected { reason: Disconnect::Violation(_) }));
    pair.next(|side, c| side == TARGET && matches!(c, Completion::Disconnected { reason: Disconnect::Terminated(_) }));
    assert!(lent.iter().all(|&byte| byte == 7));
}
