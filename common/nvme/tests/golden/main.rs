//! The kernel's own host and target, decoded by our types and encoded again to the same bytes.

#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a test that fails")]

mod capsules;
mod capture;
mod structures;

use godwit_nvme::{Cqe, Rkey, Sgl, Sqe};

use capture::{Exchange, Queue};

const CAPTURE: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/siw-nvme.pcap"));

fn queues() -> Vec<Queue> {
    capture::queues(CAPTURE, 4420)
}

fn discovery() -> Queue {
    queues().remove(0)
}

fn admin() -> Queue {
    queues().remove(1)
}

fn io(qid: usize) -> Queue {
    queues().remove(1 + qid)
}

fn sqe(exchange: &Exchange) -> Sqe {
    Sqe::read_from(&exchange.capsule).unwrap()
}

fn cqe(exchange: &Exchange) -> Cqe {
    Cqe::read_from(&exchange.response.expect("an answer")).unwrap()
}

fn keyed(sqe: &Sqe) -> (u32, Rkey) {
    match sqe.sgl().unwrap() {
        Sgl::Keyed { length, key, invalidate: true, .. } => (length, key),
        other => panic!("{other:?}"),
    }
}
