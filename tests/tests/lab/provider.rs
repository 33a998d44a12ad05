//! The list of verbs operations on RDMA devices, and between a device and our own iWARP: what is one wire must be one behaviour.

#[path = "../../../common/rdma/tests/suite/mod.rs"]
mod suite;
#[path = "../../../common/rdma/tests/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::ops::Range;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use godwit_iwarp::{
    Connection, Initiator, InvalidateError, Memory, Negotiated, Options, PlacementError, ReceiveError, Received, Reply, Role, Segment,
    SendKind, Source, Stag, StartupConfig, TaggedError,
};
use godwit_rdma::{Completion, Transport, WorkId, verbs};
use godwit_reactor::{PollBudget, Uring, UringConfig};
use godwit_tests::lab::rdma::{self, Device};
use godwit_tests::lab::{Guest, in_guest};
use support::{Machines, Net, Side, layout, listen_on, turn_rings};

/// Two rings, of which the host, the target or both use an RDMA device.
struct Devices<const HOST: bool, const TARGET: bool>;

impl<const HOST: bool, const TARGET: bool> Machines for Devices<HOST, TARGET> {
    type Reactor = Uring;
    const SEEDS: Range<u64> = 0..1;
    const TRANSPORT: Transport = if HOST { Transport::Rdma } else { Transport::Iwarp };
    const EXPLAINS: [bool; 2] = [!HOST, !TARGET];
    const PATIENCE: Duration = Duration::from_secs(60);
    const SETTLING: Duration = Duration::from_secs(1);

    fn new(_: u64) -> (Self, [Uring; 2]) {
        let reactor = || Uring::new(&UringConfig { pool: layout(), poll: PollBudget(Duration::ZERO) }).unwrap();
        (Self, [reactor(), reactor()])
    }

    fn listen(&self, target: &mut Side<Uring>) -> SocketAddr {
        let address = SocketAddr::new(rdma::V4, 0);
        if !TARGET {
            return listen_on(address, target);
        }
        let (deliver, delivered) = mpsc::channel();
        // The connection manager chooses a port that none of its own has; on siw a TCP socket may have it.
        let attempts = std::iter::repeat_with(|| {
            let deliver = deliver.clone();
            verbs::Listener::bind(address, move |incoming| drop(deliver.send(incoming)))
        });
        let listener = attempts.take(8).find_map(Result::ok).expect("one of its ports is free");
        let address = listener.local_address();
        target.on_devices = Some((listener, delivered));
        address
    }

    fn turn(&mut self, sides: &mut [Side<Uring>; 2]) -> bool {
        turn_rings(sides);
        // The kernel's software devices work in threads of their own, which a loop that spins keeps waiting.
        thread::sleep(Duration::from_micros(200));
        true
    }
}

macro_rules! run_all {
    ($($operation:ident),* $(,)?) => {
        fn run_all<M: Machines>() {
            let mut failed = Vec::new();
            $(
                let started = Instant::now();
                let passed = catch_unwind(|| suite::$operation::<M>(0)).is_ok();
                let name = stringify!($operation);
                println!("{name}: {} ({:.1?})", if passed { "ok" } else { "FAILED" }, started.elapsed());
                failed.extend((!passed).then_some(name));
            )*
            assert!(failed.is_empty(), "failed: {failed:?}");
        }
    };
}
suite::operations!(run_all);

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn every_operation_works_on_rxe() {
    in_guest(&Guest::with(Device::Rxe).shared(), run_all::<Devices<true, true>>);
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn every_operation_works_on_siw() {
    in_guest(&Guest::with(Device::Siw).shared(), run_all::<Devices<true, true>>);
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn every_operation_works_from_our_iwarp_to_siw() {
    in_guest(&Guest::with(Device::Siw).shared(), run_all::<Devices<false, true>>);
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn every_operation_works_from_siw_to_our_iwarp() {
    in_guest(&Guest::with(Device::Siw).shared(), run_all::<Devices<true, false>>);
}

/// A guest whose kernel gives a processor away within its calls, too, and whose processors have more than enough to do: there siw lets one in twenty first
/// messages lie when its peer is our own iWARP, against one in hundreds at other times.
fn busy_siw() -> Guest {
    Guest::with(Device::Siw).kernel_arguments("preempt=full")
}

/// Keeps all processors busy until it is dropped.
struct Spinners(Arc<AtomicBool>);

impl Spinners {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(stop)
    }
}

impl Drop for Spinners {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Connects again and again, and has the first message come at once.
fn quick_first_messages(rounds: u32) {
    let _spinners = Spinners::start();
    let net = &mut Net::<Devices<false, true>>::new(0);
    let mut nudged = 0;
    for _ in 0..rounds {
        let qps = net.connect(&support::config());
        let host = &mut net.sides[support::HOST];
        host.fabric.post_send(qps[0], WorkId(0), &[7; 16], None, None);
        let sent = Instant::now();
        net.next_of(|_, qp, c| qp == qps[1] && matches!(c, Completion::Received { .. }));
        nudged += u32::from(sent.elapsed() >= Duration::from_millis(500));
        for (side, qp) in net.sides.iter_mut().zip(qps) {
            side.fabric.destroy(&mut side.reactor, qp);
        }
        net.settle_for(Duration::from_millis(30));
        net.sides.iter_mut().for_each(|side| side.completions.clear());
    }
    println!("{nudged} of {rounds} first messages came late");
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn siw_gets_each_first_message_of_our_iwarp() {
    in_guest(&busy_siw(), || quick_first_messages(100));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn what_siw_let_lie_when_it_accepted_is_fetched_from_it_by_the_side_that_accepts() {
    in_guest(&Guest::with(Device::Siw).shared(), || {
        let net = &mut Net::<Devices<false, true>>::new(0);
        let startup = StartupConfig { crc: false, ird: 1, ord: 1, peer_to_peer: None };
        let mut initiator = Initiator::new(startup, b"by hand").unwrap();
        let stream = net.connect_plain();
        net.write_plain(support::HOST, stream, initiator.request());
        let (qp, _) = net.next_of(|_, _, c| matches!(c, Completion::ConnectRequest { .. }));

        // The first message comes early, so that siw is sure to miss it.
        let negotiated = Negotiated { crc: false, ird: 1, ord: 1, rtr: None };
        let mut connection = Connection::new(Role::Initiator, negotiated, Options::default());
        connection.post_send(1, SendKind::Plain, 16).unwrap();
        net.write_plain(support::HOST, stream, &fpdu(&connection.next_segment().unwrap(), &[7; 16]));
        net.settle_for(Duration::from_millis(100));
        let target = &mut net.sides[support::TARGET];
        target.fabric.accept(&mut target.reactor, qp, &support::config(), b"yes").unwrap();
        let (reply, _) = net.read_plain(support::HOST, stream, 20 + 4 + 3);
        let reply = initiator.receive(&reply).unwrap();
        assert!(matches!(reply, (27, Some(Reply::Accepted { .. }))), "{reply:?}");

        // An RDMA Read of nothing is all that comes, and its answer brings the message.
        let (request, _) = net.read_plain(support::HOST, stream, 2 + 18 + 28 + 4);
        assert!(net.sides.iter().all(|side| side.completions.is_empty()));
        assert_eq!(connection.receive(&request, &mut Nothing), Ok((request.len(), Received::ReadRequested)));
        let response = connection.next_segment().unwrap();
        assert!(matches!(response.source, Source::ReadResponse { .. }) && response.len == 0);
        net.write_plain(support::HOST, stream, &fpdu(&response, b""));
        let first = net.next(|_, _| true);
        assert!(matches!(&first, Completion::Received { header, data: None, .. } if header.as_bytes() == [7; 16]), "{first:?}");

        // The connection is as good as any: a second message arrives, and an answer goes out.
        connection.post_send(2, SendKind::Plain, 16).unwrap();
        net.write_plain(support::HOST, stream, &fpdu(&connection.next_segment().unwrap(), &[8; 16]));
        let second = net.next(|_, _| true);
        assert!(matches!(&second, Completion::Received { header, data: None, .. } if header.as_bytes() == [8; 16]), "{second:?}");
        net.sides[support::TARGET].fabric.post_send(qp, WorkId(9), &[9; 16], None, None);
        let (answer, _) = net.read_plain(support::HOST, stream, 20 + 16 + 4);
        assert_eq!(answer[20..36], [9; 16]);
    });
}

/// The bytes of a frame.
fn fpdu(segment: &Segment, payload: &[u8]) -> Vec<u8> {
    [segment.header(), payload, segment.trailer(segment.header(), [payload]).as_ref()].concat()
}

/// Memory of a peer that lends none.
struct Nothing;

impl Memory for Nothing {
    fn write(&mut self, _: Stag, _: u64, _: &[u8]) -> Result<(), TaggedError> {
        Err(TaggedError::InvalidStag)
    }

    fn read_response(&mut self, _: u64, _: u32, _: &[u8]) -> Result<(), PlacementError> {
        Err(PlacementError)
    }

    fn receive(&mut self, _: u32, _: &[u8]) -> Result<(), ReceiveError> {
        Ok(())
    }

    fn check_read(&mut self, _: Stag, _: u64, _: u32) -> Result<(), TaggedError> {
        Err(TaggedError::InvalidStag)
    }

    fn invalidate(&mut self, _: Stag) -> Result<(), InvalidateError> {
        Err(InvalidateError::InvalidStag)
    }
}
