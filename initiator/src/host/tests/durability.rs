//! No flush succeeds over lost writes: a target with a volatile cache, and power cuts.

use super::*;
use crate::block::LossWatch;

impl World {
    fn watch(&mut self) -> LossWatch {
        BlockQueue::<Uring>::losses(self.volume().queue().unwrap()).watch()
    }

    /// A flush of a client, as a front end answers it: whether it succeeded.
    fn flush(&mut self, client: &mut LossWatch) -> bool {
        let flush = self.submit(BlockOp::Flush).unwrap();
        self.flushed(flush, client)
    }

    fn flushed(&mut self, flush: Ticket, client: &mut LossWatch) -> bool {
        self.expect(flush, Ok(()));
        !client.tell(BlockQueue::<Uring>::losses(self.volume().queue().unwrap()))
    }

    fn write_now(&mut self, block: u64, byte: u8) {
        let write = self.write(block, 1, byte);
        self.expect(write, Ok(()));
    }

    fn force(&mut self, block: u64, byte: u8) {
        let mut buffer = self.buffer(BLOCK);
        buffer.fill(byte);
        let write = self.submit(BlockOp::Write { offset: block * BLOCK as u64, len_bytes: BLOCK, buffer, fua: true }).unwrap();
        self.expect(write, Ok(()));
    }

    fn cut_power(&mut self) {
        self.target.cut_power(&mut self.reactor, &mut self.fabric);
    }

    fn cut_power_and_return(&mut self) {
        self.cut_power();
        self.run(|world| world.saw(restored));
        self.seen.clear();
    }

    fn on_disk(&self, block: usize) -> u8 {
        self.target.disk[block * BLOCK]
    }

    fn losses(&self) -> u64 {
        self.status.control().losses
    }
}

fn retaining() -> Options {
    Options { retain_bytes: 1 << 20, ..Options::default() }
}

#[test]
fn the_next_flush_of_each_client_fails_when_unflushed_writes_were_lost() {
    let mut world = World::up(&Options::default());
    let [mut first, mut second] = [(); 2].map(|()| world.watch());
    world.write_now(1, 7);
    world.cut_power_and_return();
    assert_eq!(world.on_disk(1), 0, "the model of the target does lose it");
    let mut late = world.watch();
    assert!(!world.flush(&mut first), "a flush succeeded over lost writes");
    assert!(world.flush(&mut first), "it was told once");
    assert!(!world.flush(&mut second), "the other client is told as well");
    assert!(!world.flush(&mut late), "nobody had been told when it came");
    let mut latest = world.watch();
    assert!(world.flush(&mut latest));
    let control = world.status.control();
    assert_eq!((control.losses, control.unsafe_shutdowns), (1, Some(1)));
    let why = control.last_loss.unwrap().1;
    assert!(why.contains("unsafe shutdowns went from 0 to 1") && why.contains("fails"), "{why}");
}

#[test]
fn a_flush_that_failed_for_its_user_is_counted_as_an_error_only() {
    let mut world = World::up(&Options::default());
    for fails in [true, false] {
        let flush = world.submit(BlockOp::Flush).unwrap();
        world.failing.extend(fails.then_some(flush));
        world.expect(flush, Ok(()));
    }
    let total = world.status.total();
    assert_eq!((total.errors, total.flushes.count()), (1, 1));
}

#[test]
fn zeroes_are_lost_as_data_are() {
    let mut world = World::up(&Options::default());
    let mut client = world.watch();
    let zeroes = BlockOp::WriteZeroes { offset: 4 * 4096, len_bytes: 4096, may_deallocate: true, fua: false };
    let zeroes = world.submit(zeroes).unwrap();
    world.expect(zeroes, Ok(()));
    world.cut_power_and_return();
    assert!(!world.flush(&mut client));
}

#[test]
fn flushed_and_forced_writes_are_not_lost_and_nobody_is_told() {
    let mut world = World::up(&Options::default());
    let mut client = world.watch();
    world.write_now(1, 1);
    assert!(world.flush(&mut client));
    world.force(2, 2);
    let discard = world.submit(BlockOp::Discard { offset: 9 * 4096, len_bytes: 4096 }).unwrap();
    world.expect(discard, Ok(()));
    world.cut_power_and_return();
    assert_eq!((world.on_disk(1), world.on_disk(2)), (1, 2));
    assert!(world.flush(&mut client));
    assert_eq!((world.losses(), world.status.control().unsafe_shutdowns), (0, Some(1)));
}

#[test]
fn a_flush_covers_only_what_was_acknowledged_before_it_was_sent() {
    let mut world = World::up(&Options::default());
    let mut client = world.watch();
    world.target.faults.hold_flushes = true;
    let flush = world.submit(BlockOp::Flush).unwrap();
    world.run(|world| world.target.executed.contains(&Executed::Flush));
    world.write_now(1, 1);
    world.target.answer_held(&mut world.fabric);
    assert!(world.flushed(flush, &mut client));
    world.target.faults.hold_flushes = false;
    world.cut_power_and_return();
    assert!(!world.flush(&mut client), "the write came after the flush, and is lost");
}

#[test]
fn a_flush_that_was_under_way_in_the_power_cut_fails() {
    let mut world = World::up(&Options::default());
    let mut client = world.watch();
    world.write_now(1, 1);
    world.target.faults.mute_flushes = true;
    let flush = world.submit(BlockOp::Flush).unwrap();
    world.run(|world| world.target.executed.contains(&Executed::Flush));
    world.target.faults.mute_flushes = false;
    world.cut_power();
    assert!(!world.flushed(flush, &mut client));
}

#[test]
fn a_write_that_was_under_way_in_the_power_cut_is_sent_again_and_not_lost() {
    let mut world = World::up(&Options::default());
    let mut client = world.watch();
    world.target.faults.mute_writes = true;
    let write = world.write(1, 1, 1);
    world.run(|world| !world.target.executed.is_empty());
    world.target.faults.mute_writes = false;
    world.cut_power();
    world.expect(write, Ok(()));
    assert!(world.flush(&mut client));
    assert_eq!(world.on_disk(1), 1);
}

#[test]
fn a_target_that_only_lost_its_connections_has_lost_nothing() {
    let mut world = World::up(&Options::default());
    let mut client = world.watch();
    world.write_now(1, 1);
    world.target.kill(&mut world.reactor, &mut world.fabric);
    world.run(|world| world.saw(restored));
    assert!(world.flush(&mut client));
    world.write_now(2, 2);
    world.seen.clear();
    world.target.kill(&mut world.reactor, &mut world.fabric);
    world.run(|world| world.saw(restored));
    world.seen.clear();
    world.cut_power_and_return();
    assert!(!world.flush(&mut client), "it was not flushed on any of the associations");
}

#[test]
fn a_target_that_lost_its_power_twice_and_attempts_that_end_half_way_change_nothing() {
    let mut world = World::up(&Options::default());
    let mut client = world.watch();
    world.write_now(1, 1);
    world.target.faults.reject_io = Some(godwit_nvme::cm::RejectStatus::NO_RESOURCES);
    world.cut_power();
    // The count was read by these, and they came to nothing.
    world.run(|world| world.target.controllers >= 3);
    world.target.cut_power(&mut world.reactor, &mut world.fabric);
    world.target.faults.reject_io = None;
    world.run(|world| world.saw(restored));
    assert!(!world.flush(&mut client));
    assert!(world.flush(&mut client));
    assert_eq!((world.losses(), world.status.control().unsafe_shutdowns), (1, Some(2)));
}

#[test]
fn a_target_that_does_not_count_is_trusted_unless_told_otherwise() {
    for unsafe_shutdowns in [None, Some(0)] {
        for (uncounted, told) in [(Uncounted::Trust, false), (Uncounted::Fail, true)] {
            let (mut world, _) =
                World::new(&Options { uncounted, ..Options::default() }, |target| target.unsafe_shutdowns = unsafe_shutdowns);
            world.wait_up();
            let mut client = world.watch();
            world.write_now(1, 1);
            world.cut_power();
            world.target.unsafe_shutdowns = unsafe_shutdowns;
            world.run(|world| world.saw(restored));
            assert_eq!(world.flush(&mut client), !told, "{uncounted:?} of {unsafe_shutdowns:?}");
        }
    }
}

#[test]
fn what_an_earlier_process_knew_counts() {
    for (known, told) in [(None, false), (Some(3), false), (Some(2), true)] {
        let options = Options { known_unsafe_shutdowns: known, ..Options::default() };
        let (mut world, _) = World::new(&options, |target| target.unsafe_shutdowns = Some(3));
        assert_eq!(world.wait_up().unsafe_shutdowns, Some(3));
        let mut client = world.watch();
        assert_eq!(world.flush(&mut client), !told, "{known:?}");
    }
}

#[test]
fn retained_copies_are_written_again_before_anything_else_and_in_their_order() {
    let mut world = World::up(&retaining());
    let mut client = world.watch();
    let before = world.in_use();
    world.write_now(1, 1);
    world.write_now(2, 2);
    world.write_now(1, 3);
    let zeroes = BlockOp::WriteZeroes { offset: 2 * 4096, len_bytes: 4096, may_deallocate: true, fua: false };
    let zeroes = world.submit(zeroes).unwrap();
    world.expect(zeroes, Ok(()));
    world.write_now(3, 4);
    world.force(3, 5);
    world.write_now(4, 6);
    let discard = world.submit(BlockOp::Discard { offset: 4 * 4096, len_bytes: 4096 }).unwrap();
    world.expect(discard, Ok(()));
    world.target.faults.mute_writes = true;
    let under_way = world.write(1, 1, 6);
    world.run(|world| world.target.executed.len() == 9);
    world.target.faults.mute_writes = false;
    world.target.executed.clear();
    world.cut_power();
    world.expect(under_way, Ok(()));
    assert_eq!(world.target.executed.last(), Some(&Executed::Write(1, 6)));
    assert_eq!([1, 2, 3].map(|block| world.on_disk(block)), [6, 0, 5]);
    let of = |block: u64| {
        let executed = world.target.executed.iter();
        let of_block = |executed: &&Executed| matches!(executed, Executed::Write(at, _) | Executed::Zeroes(at) | Executed::Discard(at) if *at == block);
        executed.filter(of_block).copied().collect::<Vec<_>>()
    };
    assert_eq!(of(1), [Executed::Write(1, 1), Executed::Write(1, 3), Executed::Write(1, 6)]);
    assert_eq!(of(2), [Executed::Write(2, 2), Executed::Zeroes(2)]);
    assert_eq!(of(3), [Executed::Write(3, 4), Executed::Write(3, 5)]);
    assert_eq!(of(4), [Executed::Write(4, 6), Executed::Discard(4)]);
    assert!(world.flush(&mut client), "nothing is lost");
    assert_eq!((world.losses(), world.status.control().restorations), (0, 1));
    assert_eq!(world.in_use(), before);
}

#[test]
fn copies_survive_a_second_power_cut_amid_their_writing() {
    let mut world = World::up(&retaining());
    let mut client = world.watch();
    for block in 0..20 {
        world.write_now(block, 1 + u8::try_from(block).unwrap());
    }
    world.target.executed.clear();
    world.cut_power();
    world.target.faults.mute_writes = true;
    world.run(|world| !world.target.executed.is_empty());
    assert!(!world.saw(restored));
    world.target.faults.mute_writes = false;
    world.cut_power_and_return();
    assert!((0..20).all(|block| world.on_disk(block) == 1 + u8::try_from(block).unwrap()));
    assert!(world.flush(&mut client));
    assert_eq!(world.status.control().restorations, 1);
}

#[test]
fn a_loss_of_the_connections_alone_writes_no_copies() {
    let mut world = World::up(&retaining());
    world.write_now(1, 1);
    world.target.executed.clear();
    world.target.kill(&mut world.reactor, &mut world.fabric);
    world.run(|world| world.saw(restored));
    assert!(world.target.executed.is_empty());
}

#[test]
fn a_full_ring_is_flushed_and_no_write_is_acknowledged_without_a_copy() {
    let mut world = World::up(&retaining());
    let mut client = world.watch();
    let before = world.in_use();
    // Ten times what the ring holds, in transfers of all lengths.
    for round in 0..40_u8 {
        let tickets: Vec<_> =
            (0..4_u64).map(|number| world.write(number * 64, 16 + 16 * usize::try_from(number % 3).unwrap(), round + 1)).collect();
        for ticket in tickets {
            world.expect(ticket, Ok(()));
        }
    }
    let flushes = world.target.executed.iter().filter(|&&executed| executed == Executed::Flush).count();
    assert!(flushes >= 10, "{flushes} flushes");
    assert_eq!(world.status.total().flushes.count(), 0, "they are none of a client's");
    world.cut_power_and_return();
    assert!((0..4).all(|number| world.on_disk(number * 64) == 40));
    assert!(world.flush(&mut client));
    assert_eq!((world.losses(), world.in_use()), (0, before));
}

#[test]
fn a_write_that_found_no_room_waits_for_the_flush_and_is_sent_again_if_that_fails_to_come() {
    let mut world = World::up(&retaining());
    world.target.faults.mute_flushes = true;
    let first = world.write(0, 256, 1);
    world.expect(first, Ok(()));
    let second = world.write(0, 256, 2);
    world.run(|world| world.target.executed.contains(&Executed::Flush));
    world.run_for(Duration::from_millis(100));
    assert!(world.done.is_empty(), "it was acknowledged, and there is no copy of it");
    world.target.faults.mute_flushes = false;
    world.cut_power();
    world.expect(second, Ok(()));
    assert_eq!(world.on_disk(0), 2);
}

#[test]
fn copies_that_cannot_be_flushed_are_let_go_and_a_loss_is_told() {
    let mut world = World::up(&retaining());
    let mut client = world.watch();
    world.write_now(1, 1);
    let first = world.write(0, 255, 1);
    world.expect(first, Ok(()));
    world.target.faults.status = Some((StatusCode::WRITE_FAULT.do_not_retry(), usize::MAX));
    world.run(|world| world.target.executed.contains(&Executed::Flush));
    world.run_for(Duration::from_millis(50));
    world.target.faults.status = None;
    world.write_now(2, 2);
    world.cut_power_and_return();
    assert!(!world.flush(&mut client));
    assert_eq!((world.losses(), world.status.control().restorations), (1, 0));
    // Once that is behind it copies are retained again.
    world.write_now(2, 3);
    world.cut_power_and_return();
    assert!(world.flush(&mut client));
    assert_eq!(world.on_disk(2), 3);
}

#[test]
fn copies_that_the_target_does_not_take_are_told_as_lost() {
    let mut world = World::up(&retaining());
    let mut client = world.watch();
    world.write_now(1, 1);
    world.target.faults.status = Some((StatusCode::WRITE_FAULT.do_not_retry(), 1));
    world.cut_power_and_return();
    assert!(!world.flush(&mut client));
    let control = world.status.control();
    assert!(control.last_loss.unwrap().1.contains("cannot be written again (medium error)"));
}
