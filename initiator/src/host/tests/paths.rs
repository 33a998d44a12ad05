//! Several addresses, names, and discovery.

use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

use godwit_config::HostPort;

use super::*;

/// A world whose target listens at one more port, and whose volume knows both.
fn with_two_ports(options: Options) -> (World, [u16; 2]) {
    let mut world = World::bare();
    let second = world.target.listen(&mut world.reactor);
    let ports = [world.target.port, second];
    world.attach(&Options { addresses: ports.map(|port| endpoint(port).into()).to_vec(), ..options }, ports[0]);
    world.wait_up();
    (world, ports)
}

fn port_in_use(world: &World) -> u16 {
    world.status.control().address.unwrap().port()
}

#[test]
fn the_other_address_takes_over() {
    let (mut world, ports) = with_two_ports(Options { reconnect_delay: Duration::from_secs(2), ..Options::default() });
    assert_eq!(port_in_use(&world), ports[0]);
    let before = world.in_use();
    world.target.leave(&mut world.reactor, &mut world.fabric, ports[0]);
    let write = world.write(1, 1, 1);
    world.run_at_most(Duration::from_secs(2), |world| world.saw(restored));
    world.expect(write, Ok(()));
    assert_eq!(port_in_use(&world), ports[1]);
    assert_eq!(world.in_use(), before);
}

#[test]
fn a_path_that_is_up_is_used_within_one_reconnect_delay_though_another_is_silent() {
    // It is connected to by the kernel, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut world = World::bare();
    let (first, last) = (world.target.port, world.target.listen(&mut world.reactor));
    let ports = [first, silent.local_addr().unwrap().port(), last];
    let addresses = ports.map(|port| endpoint(port).into()).to_vec();
    let delay = Duration::from_secs(2);
    world.attach(&Options { addresses, reconnect_delay: delay, ..Options::default() }, first);
    world.wait_up();
    world.target.leave(&mut world.reactor, &mut world.fabric, first);
    world.run(|world| world.saw(lost));
    world.run_at_most(delay + Duration::from_millis(300), |world| world.saw(restored));
    assert_eq!(port_in_use(&world), last);
}

#[test]
fn a_path_that_comes_up_late_is_used_within_one_reconnect_delay() {
    let mut world = World::bare();
    let (first, second) = (world.target.port, world.target.listen(&mut world.reactor));
    let delay = Duration::from_secs(2);
    let addresses = [first, second].map(|port| endpoint(port).into()).to_vec();
    world.attach(&Options { addresses, reconnect_delay: delay, ..Options::default() }, first);
    world.wait_up();
    world.target.leave(&mut world.reactor, &mut world.fabric, second);
    world.target.leave(&mut world.reactor, &mut world.fabric, first);
    world.run_for(delay * 3);
    assert!(!world.saw(restored));
    world.target.listen_at(&mut world.reactor, second);
    world.run_at_most(delay + Duration::from_millis(300), |world| world.saw(restored));
    assert_eq!(port_in_use(&world), second);
}

#[test]
fn the_fence_holds_for_another_address_too() {
    let keep_alive = Duration::from_secs(4);
    let options = Options { io_timeout: Duration::from_secs(1), keep_alive, ..Options::default() };
    let mut world = World::bare();
    let proxy = Proxy::to(world.target.port);
    let second = world.target.listen(&mut world.reactor);
    world.target.leave(&mut world.reactor, &mut world.fabric, second);
    let addresses = [proxy.port, second].map(|port| endpoint(port).into()).to_vec();
    world.attach(&Options { addresses, ..options }, proxy.port);
    world.wait_up();
    world.target.faults.mute_writes = true;
    let sent = Instant::now();
    let write = world.write(1, 1, 1);
    world.run(|world| !world.target.executed.is_empty());
    proxy.set_silent(true);
    world.run(|world| world.saw(lost));
    world.target.faults = target::Faults::default();
    // By then the old connections are down, and nothing but the fence is waited for.
    world.run_for(Duration::from_millis(2300));
    world.target.listen_at(&mut world.reactor, second);
    world.run(|world| world.target.controllers == 2);
    // The other path came up at once and was probed, but the old association may not be dead at the target before one timeout and its grace of two seconds.
    assert!(sent.elapsed() >= Duration::from_millis(5900), "{:?}", sent.elapsed());
    world.expect(write, Ok(()));
    assert_eq!(port_in_use(&world), second);
}

#[test]
fn a_probe_makes_no_controller() {
    let (mut world, _) = with_two_ports(Options::default());
    let before = world.in_use();
    world.run_for(Duration::from_millis(3500));
    assert!(world.target.associations >= 4, "{} connections are no probes", world.target.associations);
    assert_eq!(world.target.controllers, 1);
    assert!(world.seen.is_empty(), "{:?}", world.seen);
    assert_eq!(world.in_use(), before);
}

#[test]
fn the_first_attach_tries_each_address() {
    let mut world = World::bare();
    let port = world.target.port;
    let addresses = [1, port].map(|port| endpoint(port).into()).to_vec();
    world.attach(&Options { addresses, ..Options::default() }, port);
    world.wait_up();
    let mut world = World::bare();
    world.target.faults.refuse = Some(godwit_nvme::ConnectRefusal::INVALID_HOST);
    let addresses = [world.target.port, 1].map(|port| endpoint(port).into()).to_vec();
    world.attach(&Options { addresses, ..Options::default() }, 1);
    let error = failed(&mut world);
    assert!(error.is_unknown_host(), "{error} says less than the other one");
}

fn named(resolver: Resolver) -> Options {
    let host = HostPort::parse("storage.example", 4420).unwrap();
    let address = Address { transport: Transport::Iwarp, host, crc: true, fpdu: FpduSize::Large };
    Options { addresses: vec![address], resolver, ..Options::default() }
}

#[test]
fn a_name_is_looked_up_anew_for_each_attempt_and_on_another_thread() {
    let mut world = World::bare();
    let ports = [world.target.port, world.target.listen(&mut world.reactor)];
    let port = Arc::new(AtomicU16::new(ports[0]));
    let told = Arc::clone(&port);
    let reactor_thread = std::thread::current().id();
    let threads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&threads);
    let resolver = Resolver::new(move |host| {
        assert_eq!(host.to_string(), "storage.example:4420");
        seen.lock().unwrap().push(std::thread::current().id());
        Ok(vec![([127, 0, 0, 1], told.load(Ordering::SeqCst)).into()])
    });
    world.attach(&named(resolver), ports[0]);
    world.wait_up();
    assert_eq!(port_in_use(&world), ports[0]);
    port.store(ports[1], Ordering::SeqCst);
    world.target.leave(&mut world.reactor, &mut world.fabric, ports[0]);
    world.run(|world| world.saw(restored));
    assert_eq!(port_in_use(&world), ports[1]);
    assert!(threads.lock().unwrap().iter().all(|&thread| thread != reactor_thread));
}

#[test]
fn what_the_resolver_said_last_counts_while_it_says_nothing() {
    let mut world = World::bare();
    let port = world.target.port;
    let calls = Arc::new(AtomicU16::new(0));
    let count = Arc::clone(&calls);
    let resolver = Resolver::new(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => Ok(vec![([127, 0, 0, 1], port).into()]),
        1 => Err(std::io::Error::other("no name server answers")),
        _ => {
            std::thread::sleep(Duration::from_secs(3600));
            unreachable!()
        }
    });
    world.attach(&named(resolver), port);
    world.wait_up();
    for _ in 0..2 {
        world.target.kill(&mut world.reactor, &mut world.fabric);
        world.run(|world| world.saw(restored));
        world.seen.clear();
    }
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[test]
fn a_name_without_an_address_is_told() {
    let mut world = World::bare();
    world.attach(&named(Resolver::new(|_| Err(std::io::Error::other("name or service not known")))), 1);
    let error = failed(&mut world).to_string();
    assert_eq!(error, "cannot find the address of storage.example:4420: name or service not known; correct the name, or write an address");
}

#[test]
fn a_discovery_controller_says_where_the_subsystem_is_and_where_it_went() {
    let mut world = World::bare();
    let discovery = world.target.port;
    let ports = [(); 2].map(|()| world.target.listen(&mut world.reactor));
    world.target.discovered_port = ports[0];
    world.attach(&Options { discovery: true, ..Options::default() }, discovery);
    world.wait_up();
    assert_eq!(port_in_use(&world), ports[0]);
    let before = world.in_use();
    world.target.discovered_port = ports[1];
    world.target.leave(&mut world.reactor, &mut world.fabric, ports[0]);
    let write = world.write(1, 1, 1);
    world.run(|world| world.saw(restored));
    world.expect(write, Ok(()));
    assert_eq!(port_in_use(&world), ports[1]);
    assert_eq!(world.in_use(), before);
}

#[test]
fn a_subsystem_that_the_discovery_controller_does_not_name_is_told() {
    let mut world = World::bare();
    let port = world.target.port;
    world.target.discovered_nqn = "nqn.2026-11.org.example:other".to_owned();
    world.attach(&Options { discovery: true, ..Options::default() }, port);
    let error = failed(&mut world).to_string();
    assert!(error.contains(&format!("127.0.0.1:{port} names no address of {NQN}")), "{error}");
}
