//! The fence between an old association and a new one of the same host.

use std::time::{Duration, Instant};

use godwit_nvme::feature::FeatureId;
use godwit_nvme::sqe::{PropertyAccess, SetFeatures};
use godwit_nvme::{Nsid, PropertyOffset, PropertySize, SglDescriptor, Sqe};
use godwit_rdma::Access;
use godwit_target::Limits;

use crate::host::{Host, Queue};
use crate::server::{Server, Setup};
use crate::volume::{blocks, pattern};

const NSID: Nsid = Nsid::new(1);

/// An association with a write in the backend, which does not end.
fn stalled_write(server: &Server, host: &mut Host) -> (Queue, Queue) {
    let (admin, cntlid) = host.admin(server.address, Duration::ZERO);
    let io = host.io(server.address, cntlid, 1, 32);
    server.stall();
    let sqe = Sqe::write(host.cid(), NSID, blocks(0, 1)).with_sgl(SglDescriptor::in_capsule(0, 4096));
    host.send(io, &sqe, Some(&pattern(1, 4096)));
    assert!(host.response_within(io, sqe.cid(), Duration::from_millis(100)).is_none(), "it stalls");
    (admin, io)
}

#[test]
fn a_new_association_is_refused_while_an_old_write_is_in_the_backend() {
    let server = Server::start(Setup { workers: 2, ..Setup::default() });
    let mut host = Host::new();
    let (admin, io) = stalled_write(&server, &mut host);
    host.close(io);
    host.close(admin);
    let queue = host.open(server.address, 0, 32);
    let asked = Instant::now();
    assert_eq!(host.connect_admin(queue, Duration::ZERO).status(), 0x181, "busy, without DNR");
    assert!(asked.elapsed() >= Duration::from_millis(400), "it was held a moment");
    server.resume();
    host.idle(Duration::from_millis(50));
    assert_eq!(host.connect_admin(queue, Duration::ZERO).status(), 0);
}

#[test]
fn a_held_connect_is_answered_as_soon_as_the_old_write_has_ended() {
    let server = Server::start(Setup { workers: 2, ..Setup::default() });
    let mut host = Host::new();
    let (admin, io) = stalled_write(&server, &mut host);
    host.close(io);
    host.close(admin);
    let queue = host.open(server.address, 0, 32);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(150));
            server.resume();
        });
        let asked = Instant::now();
        assert_eq!(host.connect_admin(queue, Duration::ZERO).status(), 0);
        assert!((100..450).contains(&asked.elapsed().as_millis()), "{:?}", asked.elapsed());
    });
}

/// The end of the connection is on the wire; its worker is interrupted before it can say that the association is dying.
#[test]
fn an_association_fences_from_the_moment_that_a_host_sees_its_end() {
    let server = Server::start(Setup { workers: 3, ..Setup::default() });
    let mut host = Host::new();
    let (_admin, io) = stalled_write(&server, &mut host);
    // On the third worker.
    let queue = host.open(server.address, 0, 32);
    server.interrupt();
    host.leave(io);
    assert_eq!(host.connect_admin(queue, Duration::ZERO).status(), 0x181, "busy, without DNR");
    server.resume();
    host.idle(Duration::from_millis(50));
    assert_eq!(host.connect_admin(queue, Duration::ZERO).status(), 0);
}

/// The end of a connection lies behind commands, and more of them than its worker deals with in a turn.
#[test]
fn an_association_fences_whatever_its_end_lies_behind() {
    for commands in [2, 25] {
        let server = Server::start(Setup { workers: 3, ..Setup::default() });
        let mut host = Host::new();
        let (_admin, io) = stalled_write(&server, &mut host);
        let queue = host.open(server.address, 0, 32);
        // The admin queue is on the second worker, this one on the first.
        server.halt(2);
        host.idle(Duration::from_millis(20));
        for _ in 0..commands {
            let sqe = Sqe::flush(host.cid(), NSID);
            host.send(io, &sqe, None);
        }
        host.leave(io);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                server.go_on();
            });
            assert_eq!(host.connect_admin(queue, Duration::ZERO).status(), 0x181, "behind {commands} commands: busy, without DNR");
        });
        server.resume();
        host.idle(Duration::from_millis(50));
        assert_eq!(host.connect_admin(queue, Duration::ZERO).status(), 0);
    }
}

#[test]
fn a_live_association_is_not_superseded_and_does_not_fence() {
    let server = Server::start(Setup { workers: 2, ..Setup::default() });
    let mut host = Host::new();
    let (_admin, io) = stalled_write(&server, &mut host);
    let second = host.open(server.address, 0, 32);
    assert_eq!(host.connect_admin(second, Duration::ZERO).status(), 0);
    server.resume();
    let sqe = Sqe::flush(host.cid(), NSID);
    assert_eq!(host.command(io, sqe).status(), 0, "the first goes on");
}

const CC: PropertyAccess = PropertyAccess { offset: PropertyOffset::CC, size: PropertySize::Four };

/// A short time in which a host may shut its controller down, for tests that wait for its end.
fn hasty(workers: usize) -> Setup {
    Setup { workers, limits: Limits { admin_grace: Duration::from_secs(1), ..Limits::default() }, ..Setup::default() }
}

#[test]
fn one_closed_queue_ends_the_whole_association_and_the_host_may_still_shut_down() {
    let server = Server::start(hasty(2));
    let mut host = Host::new();
    let (admin, cntlid) = host.admin(server.address, Duration::ZERO);
    let queues = [host.io(server.address, cntlid, 1, 32), host.io(server.address, cntlid, 2, 32)];
    host.close(queues[0]);
    assert!(host.is_ended(queues[1], Duration::from_secs(2)));
    let sqe = Sqe::property_set(host.cid(), CC, 0x0046_4001);
    assert_eq!(host.command(admin, sqe).status(), 0, "the kernel's host takes its queues down one by one");
    assert!(host.is_ended(admin, Duration::from_secs(3)));
}

#[test]
fn a_host_that_is_slow_to_take_its_queues_down_may_still_shut_down() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    // Longer than the queues take: a host whose keep alive has run out is not slow but gone.
    let (admin, cntlid) = host.admin(server.address, Duration::from_secs(60));
    let io = host.io(server.address, cntlid, 1, 32);
    host.close(io);
    host.idle(Duration::from_secs(6));
    let sqe = Sqe::property_set(host.cid(), CC, 0x0046_4001);
    assert_eq!(host.command(admin, sqe).status(), 0);
    let csts = PropertyAccess { offset: PropertyOffset::CSTS, size: PropertySize::Four };
    let sqe = Sqe::property_get(host.cid(), csts);
    assert_eq!(host.command(admin, sqe).status(), 0, "it looks whether the shutdown is complete");
}

#[test]
fn the_grace_of_an_admin_queue_cannot_be_stretched() {
    let server = Server::start(hasty(1));
    let mut host = Host::new();
    let (admin, cntlid) = host.admin(server.address, Duration::ZERO);
    let io = host.io(server.address, cntlid, 1, 32);
    host.close(io);
    host.idle(Duration::from_millis(200));
    let keep_alive = SetFeatures { nsid: Nsid::NONE, id: FeatureId::KEEP_ALIVE_TIMER, save: false, value: 60_000 };
    let sqe = Sqe::set_features(host.cid(), &keep_alive);
    assert_eq!(host.command(admin, sqe).status(), 0);
    assert!(host.is_ended(admin, Duration::from_secs(3)));
}

#[test]
fn disabling_a_controller_with_io_queues_ends_them() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let (admin, cntlid) = host.admin(server.address, Duration::ZERO);
    let io = host.io(server.address, cntlid, 1, 32);
    let sqe = Sqe::property_set(host.cid(), CC, 0x0046_0000);
    assert_eq!(host.command(admin, sqe).status(), 0);
    assert!(host.is_ended(io, Duration::from_secs(2)));
}

#[test]
fn a_write_whose_data_are_still_at_the_host_never_reaches_the_backend_of_a_dying_association() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let (admin, cntlid) = host.admin(server.address, Duration::ZERO);
    let io = host.io(server.address, cntlid, 1, 32);
    let other = host.io(server.address, cntlid, 2, 32);
    let buffer = host.buffer(&pattern(7, 1 << 20));
    let (_, sgl) = host.lend(io, buffer, 1 << 20, Access::RemoteRead, false);
    // The admin queue dies before the host's side of the RDMA Read runs: the host only turns afterwards.
    let sqe = Sqe::write(host.cid(), NSID, blocks(0, 256)).with_sgl(sgl);
    host.send(io, &sqe, None);
    host.close(other);
    std::thread::sleep(Duration::from_millis(200));
    assert!(host.is_ended(io, Duration::from_secs(2)));
    host.close(admin);
    let (_, cntlid) = host.admin(server.address, Duration::ZERO);
    let io = host.io(server.address, cntlid, 1, 32);
    let sqe = Sqe::read(host.cid(), NSID, blocks(0, 1));
    let (response, data) = host.fetch(io, sqe, 4096);
    assert_eq!((response.status(), data == vec![0; 4096]), (0, true));
}

#[test]
fn stopping_answers_what_runs_and_ends_in_time() {
    let server = Server::start(Setup { workers: 2, ..Setup::default() });
    let mut host = Host::new();
    let (_admin, io) = stalled_write(&server, &mut host);
    let (_, second) = host.admin(server.address, Duration::ZERO);
    let _ = second;
    let started = Instant::now();
    server.stop();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(host.is_ended(io, Duration::from_secs(2)));
}
