//! The simulator behaves as the machine does.

use super::*;

const FOREVER: Time = Time::from_nanos(u64::MAX);

fn layout() -> Layout {
    Layout::new(&[godwit_memory::ClassLayout { buffer_bytes: 4096, count: 8 }]).unwrap()
}

/// Two hosts with a stream between them.
fn connected(seed: u64) -> (World, Sim, Sim, StreamId, StreamId) {
    let world = World::new(seed);
    let (mut a, mut b) = (world.host(&layout()), world.host(&layout()));
    let address = "10.0.0.2:4420".parse().unwrap();
    b.listen(address, Token(1)).unwrap();
    let stream = a.connect(address, Token(2)).unwrap();
    let (mut up, mut accepted) = (false, None);
    let mut events = Vec::new();
    while !up || accepted.is_none() {
        world.advance(FOREVER).expect("the connection comes up");
        a.take_events(&mut events);
        b.take_events(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Connected { token: Token(2), result } => {
                    result.unwrap();
                    up = true;
                }
                Event::Incoming { token: Token(1), incoming } => accepted = Some(b.adopt(incoming, Token(3)).unwrap()),
                _ => {}
            }
        }
    }
    (world, a, b, stream, accepted.unwrap())
}

fn transfer(seed: u64) -> (Vec<u8>, Time) {
    let (world, mut a, mut b, from, to) = connected(seed);
    let data: Vec<u8> = (0..300_000_u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
    let (mut sent, mut got, mut ended) = (0, Vec::new(), false);
    let mut events = Vec::new();
    while !ended {
        while sent < data.len() {
            match a.send(from, &[IoSlice::new(&data[sent..])]) {
                Ok(count) => sent += count,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    break;
                }
            }
            if sent == data.len() {
                a.shutdown_send(from);
            }
        }
        world.advance(FOREVER).expect("something is on its way");
        a.take_events(&mut events);
        b.take_events(&mut events);
        events.clear();
        let mut chunk = [0; 5000];
        loop {
            match b.receive(to, &mut [IoSliceMut::new(&mut chunk)]) {
                Ok(0) => {
                    ended = true;
                    break;
                }
                Ok(count) => got.extend(&chunk[..count]),
                Err(_) => break,
            }
        }
    }
    assert_eq!(got, data);
    (got, world.now())
}

#[test]
fn streams_deliver_everything_in_order_and_the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        assert_eq!(transfer(seed), transfer(seed));
    }
    assert_ne!(transfer(1).1, transfer(2).1);
}

#[test]
fn a_cut_network_delivers_nothing_until_it_heals() {
    let (world, mut a, mut b, from, to) = connected(7);
    world.partition(a.id(), b.id(), true);
    a.send(from, &[IoSlice::new(b"late")]).unwrap();
    let later = world.now() + Duration::from_secs(60);
    let mut events = Vec::new();
    while let Some(_host) = world.advance(later) {
        a.take_events(&mut events);
        b.take_events(&mut events);
    }
    let mut chunk = [0; 16];
    assert_eq!(b.receive(to, &mut [IoSliceMut::new(&mut chunk)]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    world.partition(a.id(), b.id(), false);
    assert_eq!(world.advance(FOREVER), Some(b.id()));
    assert!(b.receive(to, &mut [IoSliceMut::new(&mut chunk)]).unwrap() > 0);
}

#[test]
fn a_killed_host_resets_its_streams_and_forgets_its_timers() {
    let (world, mut a, mut b, from, _) = connected(3);
    b.set_timer(world.now() + Duration::from_secs(1), Token(9));
    world.kill(b.id());
    let mut events = Vec::new();
    while world.advance(FOREVER).is_some() {
        a.take_events(&mut events);
    }
    assert!(events.iter().all(|event| matches!(event, Event::Readable { token: Token(2) })), "{events:?}");
    let mut chunk = [0; 16];
    assert_eq!(a.receive(from, &mut [IoSliceMut::new(&mut chunk)]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    b.take_events(&mut events);
}

fn write(sim: &mut Sim, world: &World, file: FileId, byte: u8, durable: bool) {
    let mut buffer = sim.pool().take(512).unwrap();
    buffer.fill(byte);
    sim.submit(file, FileOp::Write { offset: u64::from(byte) * 512, buffer, start: 0, len: 512, durable }, Token(5));
    finish(sim, world).unwrap();
}

fn finish(sim: &mut Sim, world: &World) -> io::Result<usize> {
    let mut events = Vec::new();
    world.advance(FOREVER).expect("the operation ends");
    sim.take_events(&mut events);
    match events.pop() {
        Some(Event::File { token: Token(5), done }) => done.result,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_power_cut_takes_only_what_was_not_synced() {
    let mut lost = 0;
    for seed in 0..16 {
        let world = World::new(seed);
        let mut sim = world.host(&layout());
        let disk = Disk::new(1 << 16, Duration::from_millis(1));
        let file = sim.register_file(disk.clone()).unwrap();
        write(&mut sim, &world, file, 1, false);
        sim.submit(file, FileOp::Sync, Token(5));
        finish(&mut sim, &world).unwrap();
        write(&mut sim, &world, file, 2, true);
        write(&mut sim, &world, file, 3, false);
        world.cut_power(&disk);
        let contents = disk.contents();
        assert_eq!((contents[512], contents[1024]), (1, 2));
        lost += usize::from(contents[1536] == 0);
    }
    assert!((1..16).contains(&lost), "{lost} of 16 unsynced writes were lost");
}

#[test]
fn a_sync_fails_once_when_told_to() {
    let world = World::new(1);
    let mut sim = world.host(&layout());
    let disk = Disk::new(1 << 16, Duration::from_millis(1));
    let file = sim.register_file(disk.clone()).unwrap();
    disk.fail_next_sync();
    sim.submit(file, FileOp::Sync, Token(5));
    assert!(finish(&mut sim, &world).is_err());
    sim.submit(file, FileOp::Sync, Token(5));
    assert!(finish(&mut sim, &world).is_ok());
    assert_eq!(disk.syncs(), 1);
}
