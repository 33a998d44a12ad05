//! Random requests, of several clients, against a model of the volume.

use godwit_nbd::{Command, CommandFlags, Errno, Request};
use proptest::prelude::*;

use super::queue::{Ends, GEOMETRY};
use super::world::{Client, World, flagged};
use crate::block::Geometry;
use crate::nbd::Limits;

/// Each client has its own part of the volume, so that its requests are ordered by nobody but itself.
const PART: u64 = 4 << 20;
const CLIENTS: usize = 3;

#[derive(Clone, Debug)]
struct Op {
    client: usize,
    command: Command,
    flags: CommandFlags,
    block: u64,
    blocks: u32,
    fill: u8,
    /// Whether its answer is awaited before the client's next request.
    wait: bool,
}

fn op() -> impl Strategy<Value = Op> {
    let command = prop_oneof![
        3 => Just(Command::Read),
        3 => Just(Command::Write),
        1 => Just(Command::WriteZeroes),
        1 => Just(Command::Trim),
        1 => Just(Command::Flush),
        1 => Just(Command::Cache),
    ];
    let blocks = prop_oneof![4 => 0_u32..16, 1 => 0_u32..3000];
    (0..CLIENTS, command, any::<bool>(), any::<bool>(), 0_u64..8192, blocks, any::<u8>(), any::<bool>()).prop_map(
        |(client, command, fua, other, block, blocks, fill, wait)| {
            let other = match command {
                Command::Read if client != 0 && other => CommandFlags::DF,
                Command::WriteZeroes if other => CommandFlags::NO_HOLE,
                _ => CommandFlags::NONE,
            };
            let fua = if fua && command != Command::Read { CommandFlags::FUA } else { CommandFlags::NONE };
            let blocks = if command == Command::Flush { 0 } else { blocks.min(8192 - u32::try_from(block).unwrap()) };
            Op { client, command, flags: fua.with(other), block: if command == Command::Flush { 0 } else { block }, blocks, fill, wait }
        },
    )
}

/// A request whose answer is not known yet, with what a read must give.
struct Asked {
    request: Request,
    expected: Vec<u8>,
}

fn overlap(a: &Request, b: &Request) -> bool {
    a.offset < b.offset + u64::from(b.length) && b.offset < a.offset + u64::from(a.length)
}

fn check(world: &mut World, clients: &mut [Client], client: usize, asked: Asked) -> Result<(), TestCaseError> {
    let mut answer = None;
    world.until("an answer", |_| {
        // The others send and take as well: a client that does not may hold a buffer.
        clients.iter_mut().for_each(Client::pump);
        answer = clients[client].answers().get(&asked.request.cookie).cloned();
        answer.is_some()
    });
    let answer = answer.unwrap();
    prop_assert_eq!(answer.errno, Errno::OK);
    prop_assert!(answer.data == asked.expected, "{:?}", asked.request);
    Ok(())
}

fn apply(model: &mut [u8], op: &Op, request: &Request) -> Vec<u8> {
    let range = usize::try_from(request.offset).unwrap()..usize::try_from(request.offset + u64::from(request.length)).unwrap();
    match op.command {
        Command::Read => return model[range].to_vec(),
        Command::Write => model[range].fill(op.fill),
        Command::WriteZeroes => model[range].fill(0),
        Command::Trim => model[range].fill(0xdd),
        _ => {}
    }
    Vec::new()
}

fn run(ops: Vec<Op>, seed: u64, capacity: usize, pool: &[(usize, usize)]) -> Result<(), TestCaseError> {
    let geometry = Geometry { size_bytes: PART * CLIENTS as u64, max_transfer_bytes: 65536, max_zeroes_bytes: 10_240, ..GEOMETRY };
    let mut world = World::with(geometry, Limits { requests: 5, ..Limits::default() }, pool);
    (world.queue.ends, world.queue.capacity) = (Ends::AnyOrder(seed), capacity);
    let mut model = world.queue.data.clone();
    let mut clients = [world.simple_client(), world.structured_client(), world.structured_client()];
    let mut asked: [Vec<Asked>; CLIENTS] = Default::default();
    for op in ops {
        let client = &mut clients[op.client];
        let base = if op.command == Command::Flush { 0 } else { op.client as u64 * PART + op.block * 512 };
        let request = flagged(client.next(op.command, base, op.blocks * 512), op.flags);
        // A client orders what overlaps by itself.
        let conflicts = asked[op.client].iter().any(|earlier| overlap(&earlier.request, &request));
        if conflicts {
            for earlier in asked[op.client].drain(..) {
                check(&mut world, &mut clients, op.client, earlier)?;
            }
        }
        let client = &mut clients[op.client];
        let expected = apply(&mut model, &op, &request);
        let payload = if op.command == Command::Write { vec![op.fill; request.length as usize] } else { Vec::new() };
        client.request(request, &payload);
        asked[op.client].push(Asked { request, expected });
        if op.wait {
            world.turn();
        }
    }
    for (client, asked) in asked.into_iter().enumerate() {
        for asked in asked {
            check(&mut world, &mut clients, client, asked)?;
        }
    }
    prop_assert!(world.queue.data == model);
    world.assert_at_rest();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn every_client_sees_the_volume_that_it_made(
        ops in proptest::collection::vec(op(), 1..40),
        seed in any::<u64>(),
        capacity in 1_usize..12,
        scarce in any::<bool>(),
    ) {
        let pool: &[_] = if scarce { &[(65536, 2)] } else { &[(4096, 16), (65536, 16)] };
        run(ops, seed, capacity, pool)?;
    }
}
