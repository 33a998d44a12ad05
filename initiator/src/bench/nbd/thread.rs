//! The reactor thread of one connection.

use std::sync::mpsc::Receiver;

use godwit_rdma::Fabric;
use godwit_reactor::{Event, Incoming, Reactor, Token, Uring, UringConfig, Waker};

use super::client::Client;
use crate::bench::generator::{Generator, Setup};
use crate::bench::load::Job;
use crate::block::Geometry;
use crate::host::in_words;

/// The token of the connection.
const STREAM: Token = Token(1);

/// To a thread.
pub(crate) enum Order {
    Job(Job),
    Exit,
}

/// What a thread is made of.
pub(crate) struct Connection {
    pub(crate) incoming: Incoming,
    pub(crate) geometry: Geometry,
    pub(crate) depth: usize,
    pub(crate) generator: Setup,
}

/// Runs the thread until it is told to end, or can do nothing more. `ready` is called once, with what wakes it.
pub(crate) fn run(config: &UringConfig, connection: Connection, orders: &Receiver<Order>, ready: impl FnOnce(Waker)) -> Result<(), String> {
    let Connection { incoming, geometry, depth, generator } = connection;
    let mut reactor = Uring::new(config).map_err(|error| error.to_string())?;
    // Of no use here, but a queue of the host takes one.
    let mut fabric = Fabric::new();
    let stream = reactor.adopt(incoming, STREAM).map_err(|error| in_words(&error))?;
    // What holds buffers goes before the reactor.
    let mut client = Client::new(stream, geometry, depth);
    let mut generator = Generator::new(0, generator);
    ready(reactor.waker());
    let mut events = Vec::new();
    loop {
        reactor.turn(&mut events).map_err(|error| format!("io_uring failed: {error}"))?;
        let (mut readable, mut woken) = (false, false);
        for event in events.drain(..) {
            match event {
                Event::Readable { token: STREAM } => readable = true,
                Event::Woken => woken = true,
                _ => {}
            }
        }
        if readable {
            client.receive(&mut reactor);
        }
        // Before the generator sees requests fail of which this is the reason.
        check(&client)?;
        while woken && let Ok(order) = orders.try_recv() {
            match order {
                Order::Job(job) => generator.start(&reactor, job),
                Order::Exit => {
                    client.disconnect(&mut reactor);
                    return Ok(());
                }
            }
        }
        generator.pump(&mut reactor, &mut fabric, &mut client);
        client.flush(&mut reactor);
        reactor.expects(client.awaits_replies());
        check(&client)?;
    }
}

fn check(client: &Client) -> Result<(), String> {
    client.failure().map_or(Ok(()), |failure| Err(failure.to_owned()))
}
