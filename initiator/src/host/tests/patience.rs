//! How long operations, commands and volumes wait, and what for.

use super::*;

fn target_away(done: &BlockDone) -> bool {
    done.result == Err(BlockError::TargetAway)
}

#[test]
fn a_target_that_refuses_for_good_ends_the_volume_at_once_with_its_reason() {
    let mut world = World::up(&Options { loss_timeout: LossTimeout::Never, reconnect_delay: LONG, ..Options::default() });
    world.target.faults.refuse = Some(godwit_nvme::ConnectRefusal::INVALID_HOST);
    world.target.kill(&mut world.reactor, &mut world.fabric);
    let read = world.read(1, 1);
    world.run_at_most(Duration::from_secs(4), |world| world.saw(gone));
    world.expect(read, Err(BlockError::VolumeGone));
    assert!(world.saw(|event| matches!(event, VolumeEvent::Gone(error) if error.is_unknown_host())), "{:?}", world.seen);
    let control = world.status.control();
    assert_eq!(control.state, VolumeState::Gone);
    assert!(control.last_error.unwrap().1.contains("does not allow this host"));
}

#[test]
fn a_refusal_that_may_pass_does_not_end_the_volume() {
    let mut world = World::up(&Options::default());
    let busy = godwit_nvme::ConnectRefusal { status: StatusCode::INTERNAL_ERROR.retryable(), parameter: None };
    world.target.faults.refuse = Some(busy);
    world.target.kill(&mut world.reactor, &mut world.fabric);
    world.run(|world| world.target.controllers >= 3);
    assert!(!world.saw(gone));
    world.target.faults.refuse = None;
    world.run(|world| world.saw(restored));
}

#[test]
fn operations_wait_for_a_lost_target_only_as_long_as_was_said_while_it_is_still_tried() {
    let patience = Duration::from_millis(600);
    let mut world = World::up(&Options { fast_io_fail: Some(patience), ..Options::default() });
    world.target.faults.mute_writes = true;
    let sent = world.write(1, 1, 1);
    world.run(|world| !world.target.executed.is_empty());
    world.target.faults = target::Faults { busy: usize::MAX, ..target::Faults::default() };
    world.target.kill(&mut world.reactor, &mut world.fabric);
    world.run(|world| world.saw(lost));
    let lost_at = Instant::now();
    let waiting = world.read(1, 1);
    world.run_for(patience / 2);
    assert!(world.done.is_empty(), "{:?}", world.done);
    world.run(|world| world.done.len() == 2);
    assert!(lost_at.elapsed() >= patience - Duration::from_millis(50) && lost_at.elapsed() < patience * 3, "{:?}", lost_at.elapsed());
    assert!(world.done.iter().all(target_away), "{:?}", world.done);
    for ticket in [sent, waiting] {
        world.finish(ticket);
    }
    let later = world.write(1, 1, 2);
    world.turn();
    assert!(target_away(&world.finish(later)), "it does not wait at all");
    assert!(!world.saw(gone));
    world.target.faults.busy = 0;
    world.target.executed.clear();
    world.run(|world| world.saw(restored));
    let after = world.write(1, 1, 3);
    world.expect(after, Ok(()));
    assert_eq!(world.target.executed, [Executed::Write(1, 3)], "what had failed is not sent again");
}

#[test]
fn a_loss_shorter_than_that_is_not_felt() {
    let mut world = World::up(&Options { fast_io_fail: Some(Duration::from_secs(3)), ..Options::default() });
    for _ in 0..2 {
        world.target.faults.busy = 1;
        world.target.kill(&mut world.reactor, &mut world.fabric);
        let write = world.write(1, 1, 1);
        world.expect(write, Ok(()));
    }
    // The time of the first loss does not count for the second one.
    world.run_for(Duration::from_millis(1500));
    let write = world.write(1, 1, 1);
    world.expect(write, Ok(()));
}

#[test]
fn an_overdue_command_is_aborted_and_sent_again_without_losing_the_association() {
    let (io_timeout, abort_timeout) = (Duration::from_secs(1), Duration::from_secs(10));
    let mut world = World::up(&Options { io_timeout, abort_timeout, ..Options::default() });
    world.target.faults.mute_writes = true;
    let write = world.write(1, 16, 1);
    world.run(|world| !world.target.executed.is_empty());
    world.target.faults.mute_writes = false;
    world.expect(write, Ok(()));
    assert_eq!((world.target.aborts, world.target.associations), (1, 1));
    assert_eq!(world.target.executed, [Executed::Write(1, 1), Executed::Write(1, 1)]);
    assert_eq!(world.status.total().retries, 1);
    assert!(!world.saw(lost));
}

#[test]
fn a_command_that_cannot_be_aborted_ends_the_association() {
    let (io_timeout, abort_timeout) = (Duration::from_secs(1), Duration::from_secs(1));
    let mut world = World::up(&Options { io_timeout, abort_timeout, ..Options::default() });
    world.target.faults = target::Faults { mute_writes: true, no_abort: true, ..target::Faults::default() };
    let sent = Instant::now();
    let write = world.write(1, 1, 1);
    world.run(|world| world.saw(lost));
    assert!(sent.elapsed() >= io_timeout + abort_timeout, "{:?}", sent.elapsed());
    world.target.faults = target::Faults::default();
    world.expect(write, Ok(()));
    assert_eq!((world.target.aborts, world.target.associations), (1, 2));
}

#[test]
fn what_waits_for_a_lost_target_is_bounded_by_the_depth_of_the_queue() {
    let mut world = World::up(&Options { queue_size: 4, ..Options::default() });
    world.target.faults.busy = usize::MAX;
    world.target.kill(&mut world.reactor, &mut world.fabric);
    world.run(|world| world.saw(lost));
    for block in 0..3 {
        world.read(block, 1);
    }
    assert!(matches!(world.submit(BlockOp::Flush), Err(BlockOp::Flush)));
    assert_eq!(world.status.total().waiting, 0, "counted at the end of a turn");
    world.turn();
    assert_eq!(world.status.total().waiting, 3);
}
