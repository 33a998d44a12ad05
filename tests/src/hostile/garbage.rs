//! Streams of any bytes at the target's port, and start-up frames that are not quite right.

use std::time::Duration;

use godwit_iwarp::{Initiator, StartupConfig};
use godwit_nvme::cm::QueueRequest;
use godwit_nvme::{Cntlid, Qid, QueueSize};

use super::socket::{Ending, Socket};
use super::tally::Progress;
use super::{Aim, Milestone, Misbehaviour, Random, alphabet};

/// The key at the start of a start-up frame of the target's.
const REPLY_KEY: &[u8] = b"MPA ID Rep Frame";

/// R, in the flags behind the key.
const REJECTED: u8 = 0x20;

pub(super) fn run(aim: &Aim, random: &mut Random, progress: &mut Progress<'_>) -> Result<(), Misbehaviour> {
    let mut socket = Socket::tcp(aim.target).map_err(|error| Misbehaviour::Refused { at: "TCP connect", error })?;
    let bytes = bytes(random);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        // In one piece or in a few, as a network may deliver it.
        let count = if random.one_in(2) { rest.len() } else { random.count(1, rest.len()) };
        socket.send(&rest[..count]);
        rest = &rest[count..];
    }
    if random.one_in(2) {
        socket.receive(Duration::from_millis(1));
    }
    match Ending::any(random) {
        Ending::Dropped => look(&socket.inbox, progress),
        Ending::Reset => {
            look(&socket.inbox, progress);
            socket.reset();
        }
        Ending::HalfClosed => {
            socket.close_half();
            while socket.drain()? {}
            look(&socket.inbox, progress);
            progress.reach(Milestone::Closed);
        }
    }
    Ok(())
}

fn look(inbox: &[u8], progress: &mut Progress<'_>) {
    progress.reach(match (inbox.starts_with(REPLY_KEY), inbox.get(REPLY_KEY.len())) {
        (true, Some(flags)) if flags & REJECTED != 0 => Milestone::StartupRejected,
        (true, Some(_)) => Milestone::StartupAccepted,
        _ => Milestone::TcpOnly,
    });
}

fn bytes(random: &mut Random) -> Vec<u8> {
    match random.below(8) {
        0 => Vec::new(),
        1 => {
            let count = random.count(1, 4000);
            random.bytes(count)
        }
        2 => b"GET / HTTP/1.1\r\nHost: storage\r\n\r\n".to_vec(),
        3 => {
            let key = b"MPA ID Req Frame";
            let count = random.count(0, 600);
            [&key[..random.count(0, key.len())], &random.bytes(count)].concat()
        }
        4 => {
            // Only the length and its bytes: any flags and revision.
            let len = if random.one_in(2) { random.half() % 40 } else { alphabet::half(random) };
            let count = random.count(0, usize::from(len).min(600));
            [b"MPA ID Req Frame", &[random.byte(), random.byte() % 4][..], &len.to_be_bytes(), &random.bytes(count)].concat()
        }
        5 => {
            let mut request = request(random);
            random.scramble(&mut request, 4);
            request
        }
        6 => {
            let request = request(random);
            request[..random.count(0, request.len())].to_vec()
        }
        _ => {
            // A frame that is right, with something behind it that nobody may send yet.
            let mut request = request(random);
            let count = random.count(0, 200);
            request.extend(random.bytes(count));
            request
        }
    }
}

/// A start-up frame whose private data asks for some queue.
fn request(random: &mut Random) -> Vec<u8> {
    let size = QueueSize::from_zeroes_based(alphabet::half(random));
    let mut wanted = QueueRequest::new(Qid::new(alphabet::half(random)), size, Cntlid::new(alphabet::half(random)));
    if random.one_in(4) {
        wanted.host_receive_size = alphabet::half(random);
    }
    let mut private_data = wanted.to_wire().to_vec();
    if random.one_in(4) {
        private_data.truncate(random.count(0, 31));
    }
    let ird = u16::from(random.byte() % 129);
    let config = StartupConfig { crc: random.one_in(2), ird, ord: u16::from(random.byte() % 129), peer_to_peer: None };
    Initiator::new(config, &private_data).expect("within its limits").request().to_vec()
}
