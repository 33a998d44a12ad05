//! Streams at the initiator's NBD socket: hostile bytes, options, and requests.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use godwit_nbd::client::{self, OptionReply, Reply};
use godwit_nbd::wire::{HandshakeFlags, OPTION_REPLY_MAGIC};
use godwit_nbd::{Command, CommandFlags, Errno, InfoType, OptionCode, Request};

use super::socket::{Ending, PATIENCE, Socket};
use super::tally::Progress;
use super::{Aim, BLOCK_BYTES, Milestone, Misbehaviour, Random, alphabet, supply};

/// Bytes of the server's greeting.
const GREETING_BYTES: usize = 18;

/// How long a stream listens to what comes of its requests.
const ATTENTION: Duration = Duration::from_millis(1);

pub(super) fn run(aim: &Aim, random: &mut Random, progress: &mut Progress<'_>) -> Result<(), Misbehaviour> {
    let mut socket = Socket::unix(&aim.nbd).map_err(|error| Misbehaviour::Refused { at: "NBD socket", error })?;
    greet(&mut socket)?;
    progress.reach(Milestone::NbdConnected);
    match random.below(10) {
        0 => {
            let count = random.count(0, 600);
            let bytes = random.bytes(count);
            socket.send(&bytes);
            finish(socket, random, progress, |_, _| Ok(()))
        }
        1..=4 => {
            negotiate_badly(&mut socket, random);
            finish(socket, random, progress, option_replies)
        }
        _ => {
            enter_transmission(&mut socket, random, progress)?;
            ask_badly(&mut socket, random, aim.export_bytes, progress)?;
            finish(socket, random, progress, replies)
        }
    }
}

/// Waits for the whole of something honest.
fn wait_for<T>(
    socket: &mut Socket,
    at: &'static str,
    parse: impl Fn(&[u8]) -> Result<Option<(usize, T)>, client::Garbled>,
) -> Result<T, Misbehaviour> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some((len, value)) = parse(&socket.inbox).map_err(|error| Misbehaviour::Garbled(error.to_string()))? {
            socket.inbox.drain(..len);
            return Ok(value);
        }
        if !socket.receive(deadline.saturating_duration_since(Instant::now())) {
            let kind = if socket.is_over { ErrorKind::ConnectionReset } else { ErrorKind::TimedOut };
            if socket.is_over || Instant::now() >= deadline {
                return Err(Misbehaviour::Refused { at, error: kind.into() });
            }
        }
    }
}

fn greet(socket: &mut Socket) -> Result<(), Misbehaviour> {
    wait_for(socket, "NBD greeting", |bytes| client::greeting(bytes).map(|flags| flags.map(|flags| (GREETING_BYTES, flags))))?;
    Ok(())
}

fn finish(
    mut socket: Socket,
    random: &mut Random,
    progress: &mut Progress<'_>,
    look: impl Fn(&mut Socket, &mut Progress<'_>) -> Result<(), Misbehaviour>,
) -> Result<(), Misbehaviour> {
    if random.one_in(2) {
        socket.receive(ATTENTION);
        look(&mut socket, progress)?;
    }
    match Ending::any(random) {
        Ending::Dropped | Ending::Reset => Ok(()),
        Ending::HalfClosed => {
            socket.close_half();
            while socket.drain()? {
                look(&mut socket, progress)?;
            }
            progress.reach(Milestone::Closed);
            Ok(())
        }
    }
}

/// Takes replies to options off; what is behind a transition to transmission is left.
#[allow(clippy::unnecessary_wraps, reason = "one of several looks")]
fn option_replies(socket: &mut Socket, progress: &mut Progress<'_>) -> Result<(), Misbehaviour> {
    while socket.inbox.starts_with(&OPTION_REPLY_MAGIC.to_be_bytes()) {
        let Ok(Some((len, _))) = OptionReply::parse(&socket.inbox) else { break };
        socket.inbox.drain(..len);
        progress.reach(Milestone::NbdOptions);
    }
    Ok(())
}

fn replies(socket: &mut Socket, progress: &mut Progress<'_>) -> Result<(), Misbehaviour> {
    let mut start = 0;
    // A request's cookie says how much data its simple reply has.
    let len_of = |cookie: u64| u32::try_from(cookie & 0xffff_ffff).expect("32 bits");
    while let Some((len, reply)) = Reply::parse(&socket.inbox[start..], len_of).map_err(|error| Misbehaviour::Garbled(error.to_string()))? {
        start += len;
        progress.reach(if reply.errno() == Errno::OK { Milestone::NbdSucceeded } else { Milestone::NbdRefused });
    }
    socket.inbox.drain(..start);
    Ok(())
}

fn option_code(random: &mut Random) -> OptionCode {
    OptionCode(if random.one_in(8) { alphabet::word(random) } else { random.word() % 13 })
}

/// Client flags and options that are not quite right.
fn negotiate_badly(socket: &mut Socket, random: &mut Random) {
    let flags = if random.one_in(4) { alphabet::half(random) } else { 1 | random.half() & 2 };
    let mut bytes = client::flags(HandshakeFlags(flags)).to_vec();
    if random.one_in(8) {
        bytes[0] = random.byte();
    }
    let count = if random.one_in(8) { random.count(60, 70) } else { random.count(1, 8) };
    for _ in 0..count {
        bytes.extend(option(random));
    }
    if random.one_in(4) {
        bytes.truncate(random.count(0, bytes.len()));
    }
    socket.send(&bytes);
}

fn option(random: &mut Random) -> Vec<u8> {
    let name = random.pick(&["", "x", "default", "\u{fffd}", "a name that nothing has"]);
    let code = option_code(random);
    let mut option = match random.below(8) {
        0 | 1 => client::info(code, name, &[InfoType(random.half() % 5), InfoType(alphabet::half(random))]),
        2 => client::meta_context(code, name, &["base:allocation", "base:", "qemu:dirty-bitmap:b", ""]),
        3 => {
            // Lengths inside that are larger than what they are in.
            let mut data = alphabet::word(random).to_be_bytes().to_vec();
            let count = random.count(0, 40);
            data.extend(random.bytes(count));
            client::option(code, &data)
        }
        4 => client::option(code, &vec![random.byte(); random.count(0, 70_000)]),
        5 => client::option(code, &[]),
        _ => {
            let count = random.count(0, 64);
            client::option(code, &random.bytes(count))
        }
    };
    match random.below(12) {
        0 => random.scramble(&mut option[..8], 1),
        1 => option[12..16].copy_from_slice(&alphabet::word(random).to_be_bytes()),
        2 => random.scramble(&mut option, 4),
        _ => {}
    }
    option
}

/// Negotiates as honest clients do, in one of their ways.
fn enter_transmission(socket: &mut Socket, random: &mut Random, progress: &mut Progress<'_>) -> Result<(), Misbehaviour> {
    socket.send(&client::flags(HandshakeFlags(3)));
    let mut options = Vec::new();
    if random.one_in(2) {
        options.push(client::option(OptionCode::STRUCTURED_REPLY, &[]));
        if random.one_in(2) {
            options.push(client::meta_context(OptionCode::SET_META_CONTEXT, "", &["base:allocation"]));
        }
    }
    let infos: &[InfoType] = if random.one_in(2) { &[InfoType::BLOCK_SIZE] } else { &[] };
    options.push(client::info(OptionCode::GO, "", infos));
    for option in options {
        socket.send(&option);
        loop {
            let reply = wait_for(socket, "NBD option", OptionReply::parse)?;
            if reply.reply.is_error() {
                return Err(Misbehaviour::Refused {
                    at: "NBD option",
                    error: io::Error::other(format!("{}: {}", reply.option, reply.reply)),
                });
            }
            progress.reach(Milestone::NbdOptions);
            if reply.is_final() {
                break;
            }
        }
    }
    progress.reach(Milestone::NbdTransmission);
    Ok(())
}

/// Rounds of requests, each with a moment for their answers.
fn ask_badly(socket: &mut Socket, random: &mut Random, export_bytes: u64, progress: &mut Progress<'_>) -> Result<(), Misbehaviour> {
    for _ in 0..random.count(0, 3) {
        let mut bytes = Vec::new();
        for _ in 0..random.count(1, 8) {
            push_request(random, &mut bytes, export_bytes, false);
        }
        socket.send(&bytes);
        socket.receive(ATTENTION);
        replies(socket, progress)?;
    }
    let mut bytes = Vec::new();
    let count = if random.one_in(4) { random.count(50, 600) } else { random.count(1, 12) };
    for _ in 0..count {
        let misshapen = random.one_in(8);
        push_request(random, &mut bytes, export_bytes, misshapen);
        if bytes.len() > 4 << 20 {
            break;
        }
    }
    if random.one_in(4) {
        bytes.truncate(random.count(0, bytes.len()));
    }
    if random.one_in(8) {
        let count = random.count(1, 100);
        bytes.extend(random.bytes(count));
    }
    socket.send(&bytes);
    Ok(())
}

/// A request that is not quite right, in a form that is right or not: after the latter, nothing is understood any more.
fn push_request(random: &mut Random, bytes: &mut Vec<u8>, export_bytes: u64, misshapen: bool) {
    let request = request(random, export_bytes);
    let mut header = client::request(&request);
    let mut payload_len = if request.command == Command::Write { request.length } else { 0 };
    if misshapen {
        match random.below(3) {
            0 => random.scramble(&mut header[..4], 1),
            1 => payload_len /= 2,
            _ => payload_len = payload_len.saturating_add(28),
        }
    }
    bytes.extend(header);
    bytes.extend(supply::filling(random, payload_len.min(2 << 20) as usize));
}

/// A request. What it changes lies in the second half of the export, or in no export.
fn request(random: &mut Random, export_bytes: u64) -> Request {
    let command = if random.one_in(10) { alphabet::half(random) } else { random.pick(&[0, 0, 0, 1, 1, 1, 3, 4, 5, 6, 7, 8]) };
    let command = Command::from_wire(command);
    let block = BLOCK_BYTES as u64;
    let offset = match random.below(8) {
        0 => alphabet::long(random),
        1 => export_bytes - random.below(3) * block,
        2 => random.below(export_bytes),
        _ => random.below(export_bytes / block) * block,
    };
    let length = match random.below(10) {
        0 => alphabet::word(random),
        1 => random.word() % (1 << 20),
        2 => u32::from(random.half() % 256 + 1) * 4096,
        _ => u32::from(random.byte() % 8 + 1) * 4096,
    };
    // A whole export is worth moving once in a while only.
    let length = if length > 4 << 20 && length <= 64 << 20 && !random.one_in(50) { length % (1 << 20) } else { length };
    let flags = if random.one_in(3) { alphabet::half(random) } else { 0 };
    let harmless = matches!(command, Command::Read | Command::Flush | Command::Cache | Command::BlockStatus | Command::Disconnect);
    let offset = if !harmless && offset < export_bytes / 2 { offset + export_bytes / 2 } else { offset };
    let data_len = if command == Command::Read { length } else { 0 };
    let cookie = u64::from(random.word()) << 32 | u64::from(data_len);
    Request { cookie, command, flags: CommandFlags(flags), offset, length }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hostile_request_names_a_guarded_byte_to_change_it() {
        let size = 64 << 20;
        for number in 0..50_000 {
            let request = request(&mut Random::new(5, number), size);
            if request.command.writes() || matches!(request.command, Command::Unknown(_)) {
                assert!(request.offset >= size / 2, "stream {number}: {request:?}");
            }
        }
    }

    #[test]
    fn options_are_whole_in_most_streams_and_of_every_kind() {
        let mut codes = std::collections::BTreeSet::new();
        for number in 0..2000 {
            let option = option(&mut Random::new(9, number));
            assert!(option.len() >= 16);
            codes.insert(u32::from_be_bytes(option[8..12].try_into().unwrap()));
        }
        assert!((1..12).all(|code| codes.contains(&code)));
    }
}
