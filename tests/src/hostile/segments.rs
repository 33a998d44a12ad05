//! Streams behind an accepted start-up: FPDUs with a valid CRC whose DDP and RDMAP headers are wrong.

use std::time::Duration;

use godwit_iwarp::Opcode;
use godwit_nvme::cm::QueueRequest;
use godwit_nvme::sqe::Connect;
use godwit_nvme::{Cid, Cntlid, Qid, QueueSize, Rkey, SglDescriptor, Sqe};

use super::fpdu::{Read, Tagged, UNTAGGED_BYTES, Untagged, frame, frame_claiming};
use super::host::{self, Host};
use super::link::{Event, Link, tell};
use super::tally::Progress;
use super::{Aim, Misbehaviour, Random, alphabet, supply};

/// How long a stream listens to what comes of its segments.
const ATTENTION: Duration = Duration::from_millis(1);

pub(super) fn run(aim: &Aim, random: &mut Random, progress: &mut Progress<'_>) -> Result<(), Misbehaviour> {
    let host = Host::new(aim, random);
    let size = QueueSize::new(u32::from(random.byte() % 31) + 2).expect("not zero");
    let qid = Qid::new(random.pick(&[0, 0, 0, 1, 2, 4]));
    let mut link = host::start_queue(aim, random, &QueueRequest::new(qid, size, Cntlid::new(0)), progress)?;
    for _ in 0..random.count(1, 5) {
        let bytes = any(random, &host, &mut link);
        link.send_bytes(&bytes);
        if random.one_in(3) {
            listen(random, &mut link, progress)?;
        }
    }
    link.finish(random, progress)
}

fn listen(random: &mut Random, link: &mut Link, progress: &mut Progress<'_>) -> Result<(), Misbehaviour> {
    loop {
        match link.next(ATTENTION, progress)? {
            Event::Read(read) => {
                let data = supply::filling(random, read.size as usize);
                let answer = supply::answer(random, &read, &data);
                link.send_bytes(&answer);
            }
            Event::Silence | Event::End => return Ok(()),
            event => tell(&event, progress),
        }
    }
}

/// The capsule of a Connect that is right, or nearly.
fn connect_capsule(random: &mut Random, host: &Host, link: &mut Link) -> Vec<u8> {
    let mut data = host.connect_data(Cntlid::DYNAMIC).as_bytes().to_vec();
    if random.one_in(2) {
        random.scramble(&mut data, 8);
    }
    let connect = Connect::admin(QueueSize::new(32).expect("not zero"), Duration::from_secs(60));
    let sqe = Sqe::connect(Cid::new(random.half()), &connect);
    let len = if random.one_in(4) { alphabet::word(random) & 0xff_ffff } else { 1024 };
    let address = if random.one_in(4) { alphabet::long(random) } else { 0 };
    let sqe = match random.below(3) {
        0 => sqe.with_sgl(SglDescriptor::keyed(address, len, Rkey::new(random.word()), random.one_in(2)).expect("24 bits")),
        1 => sqe.with_sgl(SglDescriptor::in_capsule(address, len)),
        _ => sqe.with_sgl(SglDescriptor::in_capsule(0, 1024)),
    };
    let mut capsule = sqe.as_bytes().to_vec();
    if random.one_in(4) {
        random.scramble(&mut capsule, 3);
    }
    link.name(&capsule);
    capsule.extend(data);
    capsule
}

fn payload(random: &mut Random) -> Vec<u8> {
    let count = match random.below(4) {
        0 => 0,
        1 => random.count(1, 80),
        2 => random.count(80, 1200),
        _ => random.count(1200, 40_000),
    };
    supply::filling(random, count)
}

/// Segments of which some would be right on a queue that is not connected yet. None of them is a command of an I/O queue that changes anything.
pub(super) fn any(random: &mut Random, host: &Host, link: &mut Link) -> Vec<u8> {
    let msn = link.msn;
    let send = Untagged::new(Opcode::SEND, 0, msn);
    match random.below(16) {
        0 => {
            link.msn = msn.wrapping_add(1);
            frame(&send.ulpdu(&connect_capsule(random, host, link)))
        }
        1 => {
            // Any header over a capsule that may be right.
            let mut ulpdu = send.ulpdu(&connect_capsule(random, host, link));
            random.scramble(&mut ulpdu[..UNTAGGED_BYTES], 4);
            frame(&ulpdu)
        }
        2 => {
            let any = Untagged {
                ddp: random.byte(),
                rdmap: random.byte(),
                invalidate: alphabet::word(random),
                queue: alphabet::word(random) % 4,
                msn: if random.one_in(2) { msn } else { alphabet::word(random) },
                offset: alphabet::word(random),
            };
            frame(&any.ulpdu(&payload(random)))
        }
        3 => frame(&Untagged { queue: alphabet::word(random), ..send }.ulpdu(&payload(random))),
        4 => frame(&Untagged { msn: alphabet::word(random), ..send }.ulpdu(&payload(random))),
        5 => frame(&Untagged { offset: alphabet::word(random), ..send }.ulpdu(&payload(random))),
        6 => {
            let (stag, to) = (alphabet::word(random), alphabet::long(random));
            let write = Tagged::new(random.pick(&[Opcode::WRITE, Opcode::READ_RESPONSE, Opcode::SEND, Opcode(15)]), stag, to);
            let write = if random.one_in(4) { write.not_last() } else { write };
            frame(&write.ulpdu(&payload(random)))
        }
        7 => {
            let any = Tagged { ddp: 0x80 | random.byte(), rdmap: random.byte(), stag: alphabet::word(random), to: alphabet::long(random) };
            frame(&any.ulpdu(&payload(random)))
        }
        8 => read_requests(random),
        9 => interleaved(random, host, link),
        10 => terminate(random),
        11 => {
            // The length field lies; its CRC is that of the real length.
            let ulpdu = send.ulpdu(&connect_capsule(random, host, link));
            frame_claiming(alphabet::half(random), &ulpdu)
        }
        12 => {
            let count = random.count(0, 60);
            frame(&random.bytes(count))
        }
        13 => {
            let whole = frame(&send.ulpdu(&connect_capsule(random, host, link)));
            whole[..random.count(0, whole.len() - 1)].to_vec()
        }
        14 => {
            let mut broken = frame(&send.ulpdu(&connect_capsule(random, host, link)));
            random.scramble(&mut broken, 2);
            broken
        }
        _ => {
            // Nothing at all in a message, many times over.
            let mut frames = Vec::new();
            for number in 0..u32::from(random.byte()) {
                let segment = Untagged { msn: msn.wrapping_add(number), ..send };
                frames.extend(frame(&if random.one_in(2) { segment.not_last() } else { segment }.ulpdu(&[])));
            }
            frames
        }
    }
}

/// Read Requests for memory that was never lent, one or more than there is room for.
fn read_requests(random: &mut Random) -> Vec<u8> {
    let count = if random.one_in(2) { 1 } else { random.count(2, 200) };
    let size = if random.one_in(3) { 0 } else { alphabet::word(random) };
    let first = if random.one_in(4) { alphabet::word(random) } else { 1 };
    let mut frames = Vec::new();
    for number in 0..u32::try_from(count).expect("few") {
        let read = Read {
            sink_stag: random.word(),
            sink_to: alphabet::long(random),
            size,
            source_stag: alphabet::word(random),
            source_to: alphabet::long(random),
        };
        let mut ulpdu = read.ulpdu(first.wrapping_add(number));
        if random.one_in(8) {
            ulpdu.truncate(random.count(2, ulpdu.len()));
        }
        frames.extend(frame(&ulpdu));
    }
    frames
}

/// A message in segments with others between them.
fn interleaved(random: &mut Random, host: &Host, link: &mut Link) -> Vec<u8> {
    let capsule = connect_capsule(random, host, link);
    let send = Untagged::new(Opcode::SEND, 0, link.msn);
    let cut = random.count(0, capsule.len());
    let first = frame(&send.not_last().ulpdu(&capsule[..cut]));
    let between = match random.below(5) {
        0 => frame(&Tagged::new(Opcode::WRITE, random.word(), 0).ulpdu(&[])),
        1 => frame(&Untagged { msn: link.msn.wrapping_add(1), ..send }.ulpdu(&[0; 64])),
        2 => read_requests(random),
        3 => frame(&send.not_last().ulpdu(&capsule[..cut])),
        _ => Vec::new(),
    };
    let offset = if random.one_in(4) { alphabet::word(random) } else { u32::try_from(cut).expect("short") };
    let opcode = if random.one_in(4) { Opcode::SEND_INVALIDATE } else { Opcode::SEND };
    let second = Untagged { offset, rdmap: 0x40 | opcode.0, invalidate: random.word(), ..send };
    link.msn = link.msn.wrapping_add(1);
    [first, between, frame(&second.ulpdu(&capsule[cut..]))].concat()
}

/// A Terminate of any form and length.
fn terminate(random: &mut Random) -> Vec<u8> {
    let segment = Untagged::new(Opcode::TERMINATE, 2, if random.one_in(4) { random.word() } else { 1 });
    let segment = if random.one_in(4) { segment.not_last() } else { segment };
    let count = random.count(0, 60);
    let mut frames = frame(&segment.ulpdu(&random.bytes(count)));
    if random.one_in(2) {
        frames.extend(frame(&Untagged::new(Opcode::SEND, 0, 1).ulpdu(&payload(random))));
    }
    frames
}
