//! Limits, violations, and memory that runs short.

use std::time::Duration;

use godwit_nvme::cm::{QueueRequest, RejectStatus};
use godwit_nvme::sqe::{Abort, Connect};
use godwit_nvme::{Cid, Cntlid, Nqn, Nsid, Qid, QueueSize, SglDescriptor, Sqe};
use godwit_rdma::Access;
use godwit_target::{AllowedHosts, Limits};

use crate::host::Host;
use crate::server::{Server, Setup, pool};
use crate::volume::{blocks, pattern};

const DNR: u16 = 0x4000;
const NSID: Nsid = Nsid::new(1);

#[test]
fn queues_over_a_limit_are_rejected_with_the_reason() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let mut ask = |qid, entries, reads| {
        let request = QueueRequest::new(Qid::new(qid), QueueSize::new(entries).unwrap(), Cntlid::new(0));
        host.connect_raw(server.address, &request.to_wire(), reads).map(|queue| queue.granted)
    };
    assert_eq!(ask(0, 32, 1), Ok(32));
    assert_eq!(ask(0, 33, 1), Err(RejectStatus::INVALID_HSQSIZE));
    assert_eq!(ask(1, 1024, 1), Ok(1024));
    assert_eq!(ask(1, 1025, 1), Err(RejectStatus::INVALID_HSQSIZE));
    assert_eq!(ask(129, 32, 1), Err(RejectStatus::INVALID_QID));
    assert_eq!(ask(1, 32, 0), Err(RejectStatus::INVALID_IRD));
    assert_eq!(host.connect_raw(server.address, &[0; 31], 1).err(), Some(RejectStatus::INVALID_PRIVATE_DATA_LENGTH));
}

#[test]
fn a_queue_that_memory_cannot_serve_is_rejected() {
    let server = Server::start(Setup { pool: pool(64, 8), ..Setup::default() });
    let mut host = Host::new();
    let mut ask = |entries| {
        let request = QueueRequest::new(Qid::new(1), QueueSize::new(entries).unwrap(), Cntlid::new(0));
        host.connect_raw(server.address, &request.to_wire(), 1).map(|queue| queue.granted)
    };
    assert_eq!(ask(64), Err(RejectStatus::NO_RESOURCES), "one buffer is for the connection itself");
    assert_eq!(ask(63), Ok(63));
    assert_eq!(ask(63), Err(RejectStatus::NO_RESOURCES));
}

#[test]
fn the_answers_to_admin_commands_count_where_they_share_a_size_with_in_capsule_data() {
    let limits = Limits { in_capsule_bytes: 4096, ..Limits::default() };
    // 64 buffers of 4 KiB: 16 for answers, one for the connection itself.
    let server = Server::start(Setup { limits, ..Setup::default() });
    let mut host = Host::new();
    let mut ask = |entries| {
        let request = QueueRequest::new(Qid::new(1), QueueSize::new(entries).unwrap(), Cntlid::new(0));
        host.connect_raw(server.address, &request.to_wire(), 1).map(|queue| queue.granted)
    };
    assert_eq!(ask(48), Err(RejectStatus::NO_RESOURCES), "its data could never be reserved");
    assert_eq!(ask(47), Ok(47));
}

#[test]
fn hosts_that_are_not_listed_are_refused() {
    let listed = AllowedHosts::Listed(vec![Nqn::new("nqn.2026-11.org.example:other").unwrap()]);
    let server = Server::start(Setup { hosts: listed, ..Setup::default() });
    let mut host = Host::new();
    let queue = host.open(server.address, 0, 32);
    let response = host.connect_admin(queue, Duration::ZERO);
    assert_eq!((response.status(), response.cqe.dw0()), (DNR | 0x184, 0x0001_0200));
}

#[test]
fn controllers_over_their_limit_are_busy_and_come_up_later() {
    let limits = Limits { controllers: 1, ..Limits::default() };
    let server = Server::start(Setup { limits, ..Setup::default() });
    let mut host = Host::new();
    let (first, _) = host.admin(server.address, Duration::ZERO);
    let second = host.open(server.address, 0, 32);
    assert_eq!(host.connect_admin(second, Duration::ZERO).status(), 0x181, "without DNR");
    host.close(first);
    host.idle(Duration::from_millis(100));
    assert_eq!(host.connect_admin(second, Duration::ZERO).status(), 0);
}

#[test]
fn the_first_command_must_be_connect_and_the_second_must_not() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let queue = host.open(server.address, 0, 32);
    let sqe = Sqe::keep_alive(host.cid());
    assert_eq!(host.command(queue, sqe).status(), DNR | 0x001);
    assert_eq!(host.connect_admin(queue, Duration::ZERO).status(), 0);
    assert_eq!(host.connect_admin(queue, Duration::ZERO).status(), DNR | 0x001);
    let sqe = Sqe::async_event_request(host.cid());
    assert_eq!(host.command(queue, sqe).status(), DNR | 0x00C, "the controller is not enabled");
}

#[test]
fn io_queues_need_a_live_enabled_controller_of_the_same_host() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let admin = host.open(server.address, 0, 32);
    let response = host.connect_admin(admin, Duration::ZERO);
    let cntlid = Cntlid::new(u16::try_from(response.cqe.dw0()).unwrap());
    let mut connect = |cntlid| {
        let queue = host.open(server.address, 1, 32);
        let sqe = Sqe::connect(host.cid(), &Connect::io(Qid::new(1), QueueSize::new(32).unwrap()));
        let response = host.give_in_capsule(queue, sqe, Host::connect_data(cntlid).as_bytes());
        (response.status(), response.cqe.dw0())
    };
    assert_eq!(connect(cntlid), (DNR | 0x182, 42), "not enabled");
    assert_eq!(connect(Cntlid::new(99)), (0x182, 0x0001_0010));
}

#[test]
fn more_commands_than_the_queue_holds_end_only_that_connection() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let (_, cntlid) = host.admin(server.address, Duration::ZERO);
    let (_, other) = host.admin(server.address, Duration::ZERO);
    let good = host.io(server.address, other, 1, 32);
    let io = host.io(server.address, cntlid, 1, 4);
    let buffer = host.buffer(&[0; 4096]);
    // Fetches of data that the host never lets out: four of them fill the queue.
    let (_, sgl) = host.lend(io, buffer, 4096, Access::RemoteRead, false);
    server.stall();
    for _ in 0..5 {
        let sqe = Sqe::write(host.cid(), NSID, blocks(0, 1)).with_sgl(sgl);
        host.send(io, &sqe, None);
    }
    assert!(host.is_ended(io, Duration::from_secs(5)));
    server.resume();
    let sqe = Sqe::flush(host.cid(), NSID);
    assert_eq!(host.command(good, sqe).status(), 0);
}

#[test]
fn asynchronous_event_requests_are_held_up_to_their_limit_and_can_be_aborted() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let (admin, _) = host.admin(server.address, Duration::ZERO);
    let cids: Vec<Cid> = (0..4).map(|_| host.cid()).collect();
    for &cid in &cids {
        host.send(admin, &Sqe::async_event_request(cid), None);
    }
    let sqe = Sqe::async_event_request(host.cid());
    assert_eq!(host.command(admin, sqe).status(), DNR | 0x105);
    let sqe = Sqe::abort(host.cid(), &Abort { sqid: Qid::ADMIN, cid: cids[2] });
    assert_eq!(host.command(admin, sqe).cqe.dw0(), 0, "aborted");
    assert_eq!(host.response(admin, cids[2]).status(), 0x007);
    let sqe = Sqe::abort(host.cid(), &Abort { sqid: Qid::new(1), cid: Cid::new(7) });
    let response = host.command(admin, sqe);
    assert_eq!((response.status(), response.cqe.dw0()), (0, 1), "not aborted");
}

#[test]
fn hosts_that_go_silent_lose_their_association_and_others_do_not() {
    let server = Server::start(Setup { workers: 2, ..Setup::default() });
    let mut host = Host::new();
    let (silent, cntlid) = host.admin(server.address, Duration::from_millis(300));
    let io = host.io(server.address, cntlid, 1, 32);
    let (alive, _) = host.admin(server.address, Duration::from_millis(300));
    for _ in 0..6 {
        host.idle(Duration::from_millis(100));
        let sqe = Sqe::keep_alive(host.cid());
        assert_eq!(host.command(alive, sqe).status(), 0);
    }
    assert!(host.is_ended(silent, Duration::from_secs(2)));
    assert!(host.is_ended(io, Duration::from_secs(2)), "its I/O queue goes with it");
}

/// Traffic based keep alive: the timer belongs to the admin queue, the I/O to a thread of its own.
#[test]
fn io_on_another_thread_keeps_an_association_alive_as_long_as_it_goes_on() {
    let server = Server::start(Setup { workers: 2, ..Setup::default() });
    let mut host = Host::new();
    let timeout = Duration::from_millis(400);
    let (admin, cntlid) = host.admin(server.address, timeout);
    // Connections go to the threads in turn.
    let io = host.io(server.address, cntlid, 1, 32);
    for _ in 0..30 {
        host.idle(timeout / 4);
        let sqe = Sqe::flush(host.cid(), NSID);
        assert_eq!(host.command(io, sqe).status(), 0);
    }
    let sqe = Sqe::keep_alive(host.cid());
    assert_eq!(host.command(admin, sqe).status(), 0);
    host.idle(timeout * 2);
    assert!(host.is_ended(admin, Duration::ZERO), "and no longer");
    assert!(host.is_ended(io, Duration::ZERO));
}

#[test]
fn admin_commands_keep_an_association_alive() {
    let server = Server::start(Setup::default());
    let mut host = Host::new();
    let timeout = Duration::from_millis(400);
    let (admin, _) = host.admin(server.address, timeout);
    for _ in 0..10 {
        host.idle(timeout / 4);
        let identify = godwit_nvme::sqe::Identify::new(godwit_nvme::sqe::Cns::CONTROLLER, Nsid::NONE);
        let sqe = Sqe::identify(host.cid(), &identify);
        assert_eq!(host.fetch(admin, sqe, 4096).0.status(), 0);
    }
}

#[test]
fn keep_alive_is_answered_while_the_backend_stalls_and_memory_is_used_up() {
    let server = Server::start(Setup { pool: pool(300, 3), ..Setup::default() });
    let mut host = Host::new();
    let (admin, cntlid) = host.admin(server.address, Duration::from_secs(5));
    let io = host.io(server.address, cntlid, 1, 128);
    server.stall();
    let cids: Vec<Cid> = (0..100).map(|_| host.cid()).collect();
    let buffer = host.buffer(&pattern(0, 1 << 20));
    let (_, sgl) = host.lend(io, buffer, 1 << 20, Access::RemoteWrite, false);
    for &cid in &cids {
        host.send(io, &Sqe::read(cid, NSID, blocks(0, 256)).with_sgl(sgl), None);
    }
    for _ in 0..40 {
        let sqe = Sqe::keep_alive(host.cid());
        assert_eq!(host.command(admin, sqe).status(), 0);
        let identify = godwit_nvme::sqe::Identify::new(godwit_nvme::sqe::Cns::CONTROLLER, Nsid::NONE);
        let sqe = Sqe::identify(host.cid(), &identify);
        assert_eq!(host.fetch(admin, sqe, 4096).0.status(), 0);
    }
    server.resume();
    for &cid in &cids {
        assert_eq!(host.response(io, cid).status(), 0);
    }
}

#[test]
fn a_small_pool_serves_many_deep_queues_without_deadlock() {
    // In-capsule buffers for one full queue and a little more, three large ones, four queues with all kinds of commands at full depth.
    let server = Server::start(Setup { pool: pool(64 + 16, 3), ..Setup::default() });
    let mut host = Host::new();
    let (_, cntlid) = host.admin(server.address, Duration::ZERO);
    let queues: Vec<_> = (1..=4).map(|qid| host.io(server.address, cntlid, qid, 64)).collect();
    let large = pattern(1, 256 << 10);
    let lent: Vec<_> = queues
        .iter()
        .map(|&queue| {
            let (to, from) = (host.buffer(&large), host.buffer(&large));
            (host.lend(queue, to, 256 << 10, Access::RemoteWrite, false).1, host.lend(queue, from, 256 << 10, Access::RemoteRead, false).1)
        })
        .collect();
    let mut outstanding = Vec::new();
    for round in 0..60_u64 {
        for (&queue, &(to, from)) in queues.iter().zip(&lent) {
            let cid = host.cid();
            let range = blocks(round * 16 % 960, 64);
            match round % 3 {
                0 => host.send(queue, &Sqe::write(cid, NSID, range).with_sgl(from), None),
                1 => {
                    let sgl = SglDescriptor::in_capsule(0, 8192);
                    host.send(queue, &Sqe::write(cid, NSID, blocks(round, 2)).with_sgl(sgl), Some(&large[..8192]));
                }
                _ => host.send(queue, &Sqe::read(cid, NSID, range).with_sgl(to), None),
            }
            outstanding.push((queue, cid));
        }
    }
    for (queue, cid) in outstanding {
        assert_eq!(host.response(queue, cid).status(), 0);
    }
}

#[test]
fn connection_churn_leaves_nothing_behind() {
    let server = Server::start(Setup { workers: 2, limits: Limits { controllers: 4, ..Limits::default() }, ..Setup::default() });
    let mut host = Host::new();
    for _ in 0..50 {
        let (admin, cntlid) = host.admin(server.address, Duration::ZERO);
        let io = host.io(server.address, cntlid, 1, 128);
        let sqe = Sqe::write(host.cid(), NSID, blocks(0, 4));
        assert_eq!(host.give(io, sqe, &[5; 4 * 4096]).status(), 0);
        host.close(io);
        host.close(admin);
        // Its place is free a moment later.
        host.idle(Duration::from_millis(5));
    }
    host.admin(server.address, Duration::ZERO);
}
