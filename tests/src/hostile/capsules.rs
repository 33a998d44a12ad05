//! Streams behind an accepted Connect: hostile capsules on admin and I/O queues, and hostile answers to RDMA Reads.

use std::time::Duration;

use godwit_iwarp::Opcode;
use godwit_nvme::Sqe;

use super::commands::{self, Field, Queue};
use super::fpdu::{Untagged, frame};
use super::host::{self, Host};
use super::link::{Event, Link, tell};
use super::tally::Progress;
use super::{Aim, Misbehaviour, Random, alphabet, segments, supply};

/// How long a stream listens to what comes of its commands.
const ATTENTION: Duration = Duration::from_millis(2);

pub(super) fn run(aim: &Aim, random: &mut Random, progress: &mut Progress<'_>) -> Result<(), Misbehaviour> {
    let host = Host::new(aim, random);
    let (mut admin, cntlid) = host::connect_admin(aim, &host, random, progress)?;
    let stage = random.below(10);
    if stage > 0 {
        host::enable(random, &mut admin, progress)?;
    }
    let field = Field { blocks: aim.namespace_blocks };
    if stage < 4 {
        misbehave(random, &host, &mut admin, Queue::Admin, 32, field, progress)?;
        return admin.finish(random, progress);
    }
    let entries = random.pick(&[2, 3, 8, 16, 32, 128]);
    let mut io = host::connect_io(aim, &host, random, cntlid, entries, progress)?;
    misbehave(random, &host, &mut io, Queue::Io, entries, field, progress)?;
    if random.one_in(4) {
        misbehave(random, &host, &mut admin, Queue::Admin, 32, field, progress)?;
    }
    let (first, second) = if random.one_in(2) { (admin, io) } else { (io, admin) };
    first.finish(random, progress)?;
    second.finish(random, progress)
}

fn misbehave(
    random: &mut Random,
    host: &Host,
    link: &mut Link,
    queue: Queue,
    entries: u32,
    field: Field,
    progress: &mut Progress<'_>,
) -> Result<(), Misbehaviour> {
    for _ in 0..random.count(1, 4) {
        // What a target answers, and can be spoken to after.
        if random.one_in(3) {
            many_honest(random, link, queue, entries, field);
        } else {
            hostile_commands(random, link, queue, field);
        }
        listen(random, link, field, progress)?;
    }
    match random.below(7) {
        0 => flood(random, link, queue, entries, field),
        1 => half_a_capsule(random, link, queue, field),
        2 => misshapen(random, link, queue, field),
        3 => many_honest(random, link, queue, entries, field),
        4 => {
            // While commands are under way, which the end of the stream then has to wait for or to drop.
            many_honest(random, link, queue, entries, field);
            let bytes = segments::any(random, host, link);
            link.send_bytes(&bytes);
        }
        _ => return Ok(()),
    }
    listen(random, link, field, progress)
}

/// A capsule: a command with data that may be as long as it says, or not.
fn capsule(random: &mut Random, queue: Queue, field: Field) -> Vec<u8> {
    let (sqe, len) = commands::hostile(random, queue, field);
    let in_capsule = match random.below(4) {
        0 if len <= 8192 => len as usize,
        1 if random.one_in(4) => usize::from(alphabet::half(random)) % 17_000,
        1 => usize::from(alphabet::half(random)) % 8193,
        _ => 0,
    };
    // The ranges of Dataset Management are what they are only from the start of the data on.
    let data = data(random, in_capsule, field);
    [&sqe[..], &data].concat()
}

fn data(random: &mut Random, len: usize, field: Field) -> Vec<u8> {
    if random.one_in(3) { supply::ranges(random, field.open(), len) } else { supply::filling(random, len) }
}

fn hostile_commands(random: &mut Random, link: &mut Link, queue: Queue, field: Field) {
    for _ in 0..random.count(1, 6) {
        let capsule = capsule(random, queue, field);
        let frame = link.capsule(&capsule);
        link.send_bytes(&frame);
    }
}

/// More commands than the queue has entries, without looking at an answer.
fn flood(random: &mut Random, link: &mut Link, queue: Queue, entries: u32, field: Field) {
    let mut frames = Vec::new();
    let short = random.one_in(2);
    for _ in 0..entries + u32::from(random.byte()) {
        let (sqe, _) =
            if short { commands::honest(random, field, random_cid(frames.len())) } else { commands::hostile(random, queue, field) };
        frames.extend(link.capsule(&sqe));
    }
    link.send_bytes(&frames);
}

fn random_cid(seen: usize) -> u16 {
    u16::try_from(seen % 7).expect("below 7")
}

/// As many good commands as the queue takes, so that the end finds them under way.
fn many_honest(random: &mut Random, link: &mut Link, queue: Queue, entries: u32, field: Field) {
    let mut frames = Vec::new();
    for cid in 1..entries {
        let cid = u16::try_from(cid).expect("a short queue");
        let sqe = match queue {
            Queue::Io => commands::honest(random, field, cid).0,
            Queue::Admin => *Sqe::keep_alive(godwit_nvme::Cid::new(cid)).as_bytes(),
        };
        frames.extend(link.capsule(&sqe));
    }
    link.send_bytes(&frames);
}

/// The beginning of a frame, and the end of the stream or other bytes behind it.
fn half_a_capsule(random: &mut Random, link: &mut Link, queue: Queue, field: Field) {
    let capsule = capsule(random, queue, field);
    let frame = link.capsule(&capsule);
    let cut = random.count(1, frame.len() - 1);
    link.send_bytes(&frame[..cut]);
    if random.one_in(3) {
        let rest = random.bytes(40);
        link.send_bytes(&rest);
    }
}

/// A capsule in a message that has a wrong form: too short or too long for a command, in several segments, or of another number.
fn misshapen(random: &mut Random, link: &mut Link, queue: Queue, field: Field) {
    let capsule = capsule(random, queue, field);
    link.name(&capsule[..Sqe::LEN_BYTES]);
    let segment = Untagged::new(Opcode::SEND, 0, link.msn);
    let frames = match random.below(6) {
        0 => frame(&segment.ulpdu(&capsule[..random.count(0, 63)])),
        1 => frame(&segment.ulpdu(&[&capsule[..64], &supply::filling(random, 20_000)].concat())),
        2 => {
            let cut = random.count(0, capsule.len());
            let second = Untagged { offset: u32::try_from(cut).expect("short"), ..segment };
            [frame(&segment.not_last().ulpdu(&capsule[..cut])), frame(&second.ulpdu(&capsule[cut..]))].concat()
        }
        3 => {
            let invalidate = Untagged { rdmap: 0x40 | Opcode::SEND_INVALIDATE.0, invalidate: alphabet::word(random), ..segment };
            frame(&invalidate.ulpdu(&capsule))
        }
        4 => frame(&Untagged { msn: alphabet::word(random), ..segment }.ulpdu(&capsule)),
        _ => {
            let solicited = Untagged { rdmap: 0x40 | Opcode::SEND_SOLICITED.0, ..segment };
            frame(&solicited.ulpdu(&capsule))
        }
    };
    link.msn = link.msn.wrapping_add(1);
    link.send_bytes(&frames);
}

/// Looks at what the target does for a moment, and gives it data, or what it does not want, when it asks.
fn listen(random: &mut Random, link: &mut Link, field: Field, progress: &mut Progress<'_>) -> Result<(), Misbehaviour> {
    if random.one_in(4) {
        return Ok(());
    }
    let honest = !random.one_in(3);
    for _ in 0..200 {
        let event = link.next(ATTENTION, progress)?;
        match &event {
            Event::Read(read) => {
                let data = data(random, read.size.min(16 << 20) as usize, field);
                let answer = if honest { supply::honest_answer(read, &data) } else { supply::answer(random, read, &data) };
                link.send_bytes(&answer);
            }
            Event::Silence | Event::End | Event::Terminate => break,
            event => tell(event, progress),
        }
    }
    Ok(())
}
