use std::net::Ipv4Addr;
use std::sync::mpsc;

use godwit_memory::{ClassLayout, Layout};
use godwit_nvme::cm::QueueRequest;
use godwit_nvme::sqe::Connect;
use godwit_nvme::{BlockCount, BlockRange, Cid, Cntlid, ConnectData, HostId, Lba, Nqn, Nsid, Qid, QueueSize, SglDescriptor, Sqe};
use godwit_rdma::{QpConfig, Transport};
use godwit_reactor::{PollBudget, Uring, UringConfig};

use super::connection::Attempt;
use super::*;
use crate::association::{Host, Member, SubsystemIndex, Waiter};
use crate::backend::{OpenOptions, Source};
use crate::limits::Limits;
use crate::queue::Slots;
use crate::request::{Action, DataAt, Request};
use crate::subsystem::tests::{namespace, subsystem};

/// A worker with one I/O queue, whose connection leads nowhere.
struct Bench {
    ring: Uring,
    fabric: Fabric,
    worker: Worker<Uring>,
}

const HOST: [u8; 16] = [1; 16];

impl Bench {
    fn new(capsules: usize) -> Self {
        let class = |buffer_bytes, count| ClassLayout { buffer_bytes, count };
        let pool = Layout::new(&[class(4096, 64), class(8192, capsules), class(128 << 10, 2), class(1 << 20, 4)]).unwrap();
        let mut ring = Uring::new(&UringConfig { pool, poll: PollBudget(Duration::ZERO) }).unwrap();
        let store = Arc::new(Store::open(&OpenOptions::new(Source::Memory { size: 2 << 20 })).unwrap());
        let target = Arc::new(Target::new(vec![subsystem(vec![namespace(1, 2 << 20)])], vec![], Limits::default(), 1));
        let (sender, receiver) = mpsc::channel();
        let worker = Worker::new(&mut ring, 0, target, &[store], receiver, vec![sender]).unwrap();
        Self { ring, fabric: Fabric::new(), worker }
    }

    /// Adds an I/O queue of the controller, and says where it is.
    fn queue(&mut self, cntlid: Cntlid, qid: u16, depth: u16) -> usize {
        let member = self.worker.target.associations.join(cntlid, &host(), SubsystemIndex::Nvm(0), Qid::new(qid), 0).unwrap();
        let config = QpConfig {
            send_depth: 64,
            receive_depth: 64,
            header_bytes: 64,
            data_bytes: 8192,
            regions: 0,
            inbound_reads: 0,
            outbound_reads: 1,
            crc: true,
            fpdu: godwit_rdma::FpduSize::Large,
        };
        let private_data = QueueRequest::new(Qid::new(qid), QueueSize::new(2).unwrap(), cntlid).to_wire();
        let nowhere = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let qp = self.fabric.connect(&mut self.ring, Transport::Iwarp, nowhere, &config, &private_data).unwrap();
        let index = self.worker.queues.vacant_key();
        let key = QueueKey { index: u32::try_from(index).unwrap(), generation: 1 };
        let mut queue = Queue::new(key, qp, 0);
        queue.slots = Slots::new(depth);
        queue.phase = Phase::Io(member);
        queue.qid = Qid::new(qid);
        self.worker.queues.insert(queue)
    }

    fn association(&self) -> Arc<crate::association::Association> {
        let waiter = Waiter { worker: 0, queue: QueueKey { index: 99, generation: 0 } };
        let association = self.worker.target.associations.open(host(), SubsystemIndex::Nvm(0), waiter).unwrap();
        association.set_ready(true);
        association
    }

    fn command(&mut self, index: usize, sqe: Sqe, data: Option<usize>) -> u16 {
        let data = data.map(|len| self.ring.pool().take(len).unwrap());
        let slot = self.worker.queues[index].slots.take(&sqe).unwrap();
        let mut ctx = Context { reactor: &mut self.ring, fabric: &mut self.fabric };
        self.worker.on_io_command(&mut ctx, index, slot, &sqe, data);
        slot
    }

    fn serve(&mut self) {
        let mut ctx = Context { reactor: &mut self.ring, fabric: &mut self.fabric };
        self.worker.serve_waiting(&mut ctx);
    }

    fn member(&self, index: usize) -> &Member {
        match &self.worker.queues[index].phase {
            Phase::Io(member) => member,
            other => panic!("{other:?}"),
        }
    }
}

fn host() -> Host {
    Host { nqn: Nqn::new("nqn.2026-11.org.example:host").unwrap(), id: HostId(HOST) }
}

fn range(start: u64, count: u32) -> BlockRange {
    BlockRange::new(Lba::new(start), BlockCount::new(count).unwrap())
}

fn write_in_capsule() -> Sqe {
    Sqe::write(Cid::new(1), Nsid::new(1), range(0, 1)).with_sgl(SglDescriptor::in_capsule(0, 4096))
}

fn write_keyed(count: u32) -> Sqe {
    let sgl = SglDescriptor::keyed(0, count * 4096, godwit_nvme::Rkey::new(1), false).unwrap();
    Sqe::write(Cid::new(2), Nsid::new(1), range(0, count)).with_sgl(sgl)
}

fn read(cid: u16, start: u64, count: u32) -> Sqe {
    let sgl = SglDescriptor::keyed(0, count * 4096, godwit_nvme::Rkey::new(1), false).unwrap();
    Sqe::read(Cid::new(cid), Nsid::new(1), range(start, count)).with_sgl(sgl)
}

/// A read that needs a buffer, for memory is not read in place over the end of one of its stripes.
fn copied_read(cid: u16) -> Sqe {
    read(cid, 255, 2)
}

#[test]
fn a_read_of_memory_needs_no_buffer_and_does_not_stand_in_line() {
    let mut bench = Bench::new(8 + 5);
    let association = bench.association();
    let index = bench.queue(association.cntlid, 1, 8);
    let held: Vec<_> = std::iter::from_fn(|| bench.ring.pool().take(4096)).collect();
    bench.command(index, copied_read(1), None);
    bench.command(index, read(2, 0, 256), None);
    assert_eq!((bench.worker.waiting.len(), bench.worker.target.counters(0).unwrap().totals().reads), (1, 1));
    bench.worker.target.kill(&association, Ending::ConnectionClosed);
    bench.command(index, read(3, 0, 1), None);
    assert_eq!(bench.worker.target.counters(0).unwrap().totals().reads, 1, "nothing of a dying association is read");
    drop(held);
}

#[test]
fn a_store_is_not_let_go_while_what_was_read_of_it_is_still_to_be_sent() {
    let mut bench = Bench::new(64);
    let lent = place(&bench.worker.places, 0).attached.extent(0, 4096).unwrap().expect("memory is read in place");
    let (done, answer) = mpsc::channel();
    bench.worker.leaving.push((0, done));
    let mut ctx = Context { reactor: &mut bench.ring, fabric: &mut bench.fabric };
    bench.worker.let_go(&mut ctx);
    assert!(answer.try_recv().is_err());
    drop(lent);
    bench.worker.let_go(&mut ctx);
    assert_eq!(answer.try_recv(), Ok(Ok(())));
}

#[test]
fn no_command_of_a_dying_association_starts() {
    let mut bench = Bench::new(64);
    let association = bench.association();
    let index = bench.queue(association.cntlid, 1, 8);
    // Memory reads and writes at once; a sync takes its time.
    bench.command(index, Sqe::flush(Cid::new(2), Nsid::new(1)), None);
    assert_eq!(bench.worker.queues[index].running, 1, "a live one starts");
    bench.worker.target.kill(&association, Ending::ConnectionClosed);
    let in_use = bench.ring.pool().in_use();
    // The notice to close is not handled yet: only the flag holds them back.
    bench.command(index, write_in_capsule(), Some(4096));
    bench.command(index, Sqe::flush(Cid::new(3), Nsid::new(1)), None);
    assert_eq!(bench.worker.queues[index].running, 1);
    assert_eq!(bench.worker.queues[index].slots.in_use(), 1);
    assert_eq!(bench.worker.target.counters(0).unwrap().totals().writes, 0);
    assert_eq!(bench.ring.pool().in_use(), in_use, "their buffers are back");
}

#[test]
fn fetched_data_of_a_dying_association_never_reaches_the_backend() {
    let mut bench = Bench::new(64);
    let association = bench.association();
    let index = bench.queue(association.cntlid, 1, 8);
    let slot = bench.worker.queues[index].slots.take(&write_keyed(1)).unwrap();
    let from = DataAt::Host(godwit_rdma::Remote { rkey: godwit_rdma::Rkey(1), address: 0 });
    let request = Request { action: Action::Write { from, durable: false }, store: 0, offset_bytes: 0, len_bytes: 4096 };
    bench.worker.queues[index].slots.set_work(slot, crate::queue::Work::Fetching(request, None));
    bench.worker.queues[index].count_read(Time::default());
    bench.worker.target.kill(&association, Ending::ConnectionClosed);
    let sink = bench.ring.pool().take(4096).unwrap();
    let mut ctx = Context { reactor: &mut bench.ring, fabric: &mut bench.fabric };
    bench.worker.on_fetched(&mut ctx, index, WorkId(slot.into()), sink);
    let queue = &bench.worker.queues[index];
    assert_eq!((queue.running, queue.reads, queue.slots.in_use()), (0, 0, 0));
}

#[test]
fn a_closed_queue_stays_a_member_until_its_last_operation_has_ended() {
    let mut bench = Bench::new(64);
    let association = bench.association();
    let index = bench.queue(association.cntlid, 1, 8);
    bench.command(index, Sqe::flush(Cid::new(2), Nsid::new(1)), None);
    assert_eq!(bench.member(index).association.id, association.id);
    let mut ctx = Context { reactor: &mut bench.ring, fabric: &mut bench.fabric };
    bench.worker.close(&mut ctx, index);
    assert!(bench.worker.target.associations.has_members(&association));
    let mut events = Vec::new();
    while events.is_empty() {
        bench.ring.turn(&mut events).unwrap();
        events.retain(|event| matches!(event, Event::File { .. }));
    }
    for event in events {
        bench.worker.on_event(&mut bench.ring, &mut bench.fabric, event);
    }
    assert!(!bench.worker.target.associations.has_members(&association));
    assert!(bench.worker.queues.is_empty());
}

#[test]
fn a_held_connect_waits_no_longer_however_often_it_is_told_to_try_again() {
    let mut bench = Bench::new(64);
    let association = bench.association();
    let io = bench.queue(association.cntlid, 1, 8);
    bench.command(io, write_in_capsule(), Some(4096));
    let admin = bench.queue(association.cntlid, 2, 8);
    bench.worker.target.kill(&association, Ending::ConnectionClosed);
    bench.worker.queues[admin].phase = Phase::Connecting;
    bench.worker.queues[admin].qid = Qid::ADMIN;
    let connect = Connect::admin(QueueSize::new(32).unwrap(), Duration::ZERO);
    let sqe = Sqe::connect(Cid::new(1), &connect);
    let slot = bench.worker.queues[admin].slots.take(&sqe).unwrap();
    let volume = Nqn::new("nqn.2026-11.org.example:vol0").unwrap();
    let data = ConnectData::new(HostId(HOST), Cntlid::DYNAMIC, &volume, &host().nqn);
    let mut ctx = Context { reactor: &mut bench.ring, fabric: &mut bench.fabric };
    bench.worker.connect(&mut ctx, admin, slot, connect, data, Attempt::First);
    let timer = bench.worker.queues[admin].timer;
    assert!(timer.is_some());
    bench.worker.on_notice(&mut ctx, Notice::Settled(bench.worker.queues[admin].key));
    let queue = &bench.worker.queues[admin];
    assert!(queue.slots.find(|slot| matches!(slot.work, crate::queue::Work::Fence(..))).is_some(), "it is still held");
    assert_eq!(queue.timer, timer);
}

#[test]
fn commands_wait_in_one_line_and_nobody_overtakes_the_first() {
    // Room for the in-capsule data of one queue of eight, and five buffers more.
    let mut bench = Bench::new(8 + 5);
    let association = bench.association();
    let (first, second) = (bench.queue(association.cntlid, 1, 8), bench.queue(association.cntlid, 2, 8));
    let held: Vec<_> = (0..4).map(|_| bench.ring.pool().take(1 << 20).unwrap()).collect();
    bench.command(first, write_keyed(256), None);
    assert_eq!(bench.worker.waiting.len(), 1, "no sink");
    // A small read would find memory, but stands behind.
    bench.command(second, copied_read(4), None);
    assert_eq!((bench.worker.waiting.len(), bench.worker.target.counters(0).unwrap().totals().reads), (2, 0));
    drop(held);
    bench.serve();
    assert_eq!(bench.worker.waiting.len(), 0);
    assert_eq!((bench.worker.queues[first].reads, bench.worker.target.counters(0).unwrap().totals().reads), (1, 1));
}

#[test]
fn a_compare_that_is_first_in_line_keeps_the_first_of_its_two_buffers() {
    let mut bench = Bench::new(8 + 5);
    let association = bench.association();
    let index = bench.queue(association.cntlid, 1, 8);
    let mut held: Vec<_> = (0..4).map(|_| bench.ring.pool().take(1 << 20).unwrap()).collect();
    let sgl = SglDescriptor::keyed(0, 1 << 20, godwit_nvme::Rkey::new(1), false).unwrap();
    bench.command(index, Sqe::compare(Cid::new(5), Nsid::new(1), range(0, 256)).with_sgl(sgl), None);
    for spare in [0, 0, 1] {
        held.pop();
        bench.serve();
        assert_eq!(bench.ring.pool().spare(1 << 20), spare, "what comes back is for the first in line");
    }
    assert_eq!((bench.worker.waiting.len(), bench.worker.queues[index].reads), (0, 1));
}

#[test]
fn a_closed_queue_leaves_the_line_and_what_it_was_being_given() {
    let mut bench = Bench::new(8 + 5);
    let association = bench.association();
    let (first, second) = (bench.queue(association.cntlid, 1, 8), bench.queue(association.cntlid, 2, 8));
    let held: Vec<_> = (0..4).map(|_| bench.ring.pool().take(1 << 20).unwrap()).collect();
    let spare = bench.ring.pool().spare(8192);
    bench.command(first, write_keyed(256), None);
    for cid in 0..4 {
        bench.command(second, copied_read(cid), None);
    }
    assert_eq!(bench.worker.waiting.len(), 5);
    let mut ctx = Context { reactor: &mut bench.ring, fabric: &mut bench.fabric };
    bench.worker.close(&mut ctx, second);
    assert_eq!(bench.worker.waiting.len(), 1, "the line is no longer than what waits");
    bench.worker.close(&mut ctx, first);
    assert!(bench.worker.waiting.is_empty() && bench.worker.building.is_none() && bench.worker.kept.is_none());
    assert_eq!(bench.ring.pool().spare(8192), spare, "what was set aside for the first is free");
    drop(held);
}

#[test]
fn a_reservation_is_built_as_buffers_come_back_and_idle_ones_make_room() {
    let mut bench = Bench::new(8 + 5);
    let association = bench.association();
    let (first, second) = (bench.queue(association.cntlid, 1, 8), bench.queue(association.cntlid, 2, 8));
    bench.command(first, write_keyed(1), None);
    assert_eq!(bench.worker.reserved_queues, 1);
    bench.command(second, write_keyed(1), None);
    assert_eq!(bench.worker.waiting.len(), 1, "the first queue's reservation has RDMA Reads outstanding");
    // Five larger buffers are spare (the store keeps one for its zeroes): all of the fitting size are set aside for the first in line.
    assert_eq!(bench.ring.pool().spare(8192), 5);
    // The first queue's read ends.
    bench.worker.queues[first].reads = 0;
    bench.serve();
    assert_eq!((bench.worker.waiting.len(), bench.worker.reserved_queues), (0, 1));
    assert_eq!(bench.worker.queues[second].reads, 1);
}

#[test]
fn a_host_that_does_nothing_is_stuck_after_a_while() {
    let mut bench = Bench::new(64);
    let association = bench.association();
    let index = bench.queue(association.cntlid, 1, 8);
    let queue = &mut bench.worker.queues[index];
    let at = |seconds: u64| Time::from_nanos(seconds * 1_000_000_000);
    assert!(!queue.is_stuck(at(1000)), "nothing is outstanding");
    queue.count_read(at(100));
    assert!(!queue.is_stuck(at(129)));
    assert!(queue.is_stuck(at(130)));
    queue.reads = 0;
    queue.count_send(at(200));
    queue.count_send(at(210));
    queue.sent(at(220), 1);
    assert!(!queue.is_stuck(at(249)));
    assert!(queue.is_stuck(at(250)));
}
