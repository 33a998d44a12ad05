//! `godwit list`, `status` and `disconnect`: they ask the daemons of this machine, by their control sockets.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use godwit_control::{Client, ControlError, place};
use serde_json::{Value, json};

use super::{Failure, print};
use crate::cli::{AskArgs, DisconnectArgs, StatusArgs};
use crate::columns::{Side, columns};
use crate::daemon::ControlSocket;
use crate::host::QueueStatus;

/// How long a daemon may take to answer: longer than it takes to flush a device.
const PATIENCE: Duration = Duration::from_secs(90);

/// Between two looks with `--watch`.
const LOOK: Duration = Duration::from_secs(1);

/// The control socket of a daemon that is told none. `None` where there is no place for one.
pub(super) fn of_this_process(told: Option<&Path>) -> Option<ControlSocket> {
    own(told, &place::initiator_name(Some(std::process::id())))
}

/// The control socket of the daemon of a configuration, of which a machine has one.
pub(super) fn of_the_configured(told: Option<&Path>) -> Option<ControlSocket> {
    own(told, &place::initiator_name(None))
}

fn own(told: Option<&Path>, name: &str) -> Option<ControlSocket> {
    if let Some(path) = told {
        return Some(ControlSocket { path: path.to_owned(), is_asked_for: true });
    }
    let Some(folder) = place::of_initiators() else {
        tracing::warn!(
            "`godwit list` does not find this daemon, for there is no place for its control socket: set XDG_RUNTIME_DIR, or name one by --control (of a \
             configuration: `control:`)"
        );
        return None;
    };
    match fs::create_dir_all(&folder) {
        Ok(()) => {
            place::remove_dead_initiators(&folder);
            Some(ControlSocket { path: folder.join(name), is_asked_for: false })
        }
        Err(error) => {
            tracing::info!("`godwit list` does not find this daemon: {}: {error}", folder.display());
            None
        }
    }
}

/// The control sockets to ask: one that was named, or those of a folder, of which there is a `usual` one for most users.
fn sockets_in(told: Option<&Path>, usual: Option<PathBuf>) -> Result<Vec<PathBuf>, Failure> {
    match (told, usual) {
        (Some(folder), _) if folder.is_dir() => Ok(place::initiators_in(folder)),
        (Some(path), _) => Ok(vec![path.to_owned()]),
        (None, Some(folder)) => Ok(place::initiators_in(&folder)),
        (None, None) => {
            let why = "there is no place to look for daemons of this user: set XDG_RUNTIME_DIR, or name a control socket by --control";
            Err(Failure::Failed(why.to_owned()))
        }
    }
}

fn sockets(told: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    sockets_in(told, place::of_initiators())
}

/// What all daemons say of their volumes, or of one.
fn ask_all(ask: &AskArgs, volume: Option<&str>) -> Result<Vec<Value>, Failure> {
    let mut volumes = Vec::new();
    for socket in sockets(ask.control.as_deref())? {
        match Client::call(&socket, &json!({ "command": "status", "volume": volume }), PATIENCE) {
            Ok(Value::Array(more)) => volumes.extend(more),
            // Another daemon may have it. And one that was killed has left its socket.
            Err(ControlError::Refused(_)) => {}
            Err(ControlError::NoServer(_)) if ask.control.as_deref().is_none_or(Path::is_dir) => {}
            Ok(_) => return Err(failed(&ControlError::NoAnswer(socket))),
            Err(error) => return Err(failed(&error)),
        }
    }
    match volume {
        Some(name) if volumes.is_empty() => Err(unknown(name)),
        _ => Ok(volumes),
    }
}

pub(super) fn list(args: &AskArgs) -> Result<(), Failure> {
    let volumes = ask_all(args, None)?;
    if args.json {
        return print_json(&Value::Array(volumes));
    }
    if volumes.is_empty() {
        return print(b"no volumes: `godwit connect` or `godwit run` attaches some\n");
    }
    let mut rows = vec![["NAME", "STATE", "SIZE", "SERVED AS", "TARGET", "PID", "NQN"].map(str::to_owned)];
    rows.extend(volumes.iter().map(|volume| {
        [
            text(&volume["name"]),
            text(&volume["state"]),
            volume["size_bytes"].as_u64().map_or_else(|| "-".to_owned(), size),
            text(&volume["served"]),
            text(&volume["address"]),
            text(&volume["pid"]),
            text(&volume["nqn"]),
        ]
    }));
    print(columns(&rows, Side::Left).as_bytes())
}

pub(super) fn status(args: &StatusArgs) -> Result<(), Failure> {
    loop {
        let volumes = ask_all(&args.ask, args.volume.as_deref())?;
        if args.ask.json {
            print_json(&Value::Array(volumes))?;
        } else {
            // Terminals are cleared, so that the numbers stand where they stood.
            let clear = if args.watch && std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
            let shown: Vec<String> = volumes.iter().map(show).collect();
            let none = if shown.is_empty() { "no volumes: `godwit connect` or `godwit run` attaches some\n" } else { "" };
            print(format!("{clear}{}{none}", shown.join("\n")).as_bytes())?;
        }
        if !args.watch {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
}

pub(super) fn disconnect(args: &DisconnectArgs) -> Result<(), Failure> {
    let mut found = Vec::new();
    for socket in sockets(args.ask.control.as_deref())? {
        match Client::call(&socket, &json!({ "command": "status", "volume": args.volume }), PATIENCE) {
            Ok(Value::Array(volumes)) => found.extend(volumes.into_iter().map(|volume| (socket.clone(), volume))),
            Err(ControlError::Refused(_) | ControlError::NoServer(_)) => {}
            Ok(_) => return Err(failed(&ControlError::NoAnswer(socket))),
            Err(error) => return Err(failed(&error)),
        }
    }
    let [(socket, _)] = &found[..] else {
        return Err(if found.is_empty() { unknown(&args.volume) } else { ambiguous(&args.volume, &found) });
    };
    let request = json!({ "command": "disconnect", "volume": args.volume, "force": args.force });
    let answer = Client::call(socket, &request, PATIENCE).map_err(|error| failed(&error))?;
    if args.ask.json {
        return print_json(&answer);
    }
    print(format!("detached: {}\n", text(&answer["detached"])).as_bytes())
}

/// Which volumes could be meant, and how to say which.
fn ambiguous(name: &str, found: &[(PathBuf, Value)]) -> Failure {
    let candidates: Vec<_> = found
        .iter()
        .map(|(socket, volume)| {
            format!(
                "{} of the daemon with PID {}, target {}, as {} (--control {})",
                text(&volume["name"]),
                text(&volume["pid"]),
                text(&volume["address"]),
                text(&volume["served"]),
                socket.display()
            )
        })
        .collect();
    Failure::Failed(format!(
        "`{name}` could be any of {} volumes: {}; nothing was done: choose one by its daemon's --control, or by what it is served as",
        found.len(),
        candidates.join("; ")
    ))
}

pub(super) fn prepare_shutdown(args: &AskArgs) -> Result<(), Failure> {
    for socket in sockets(args.control.as_deref())? {
        match Client::call(&socket, &json!({ "command": "prepare_shutdown" }), PATIENCE) {
            Ok(_) | Err(ControlError::NoServer(_)) => {}
            Err(error) => return Err(failed(&error)),
        }
    }
    Ok(())
}

fn failed(error: &ControlError) -> Failure {
    Failure::Failed(error.to_string())
}

fn unknown(name: &str) -> Failure {
    Failure::Failed(format!("no daemon of this user has a volume `{name}`: `godwit list` shows those there are"))
}

fn print_json(value: &Value) -> Result<(), Failure> {
    print(format!("{value:#}\n").as_bytes())
}

/// A value for people; `-` for what is not there.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

fn size(bytes: u64) -> String {
    godwit_config::Size::from_bytes(bytes).to_string()
}

/// A volume, for people.
fn show(volume: &Value) -> String {
    let mut shown = format!(
        "{}: {} for {} s, at {}, as {}\n",
        text(&volume["name"]),
        text(&volume["state"]),
        text(&volume["since_seconds"]),
        text(&volume["address"]),
        text(&volume["served"])
    );
    if let Some(bytes) = volume["size_bytes"].as_u64() {
        let access = if volume["read_only"] == true { ", read-only" } else { "" };
        shown += &format!("  {} in blocks of {} bytes{access}, {}\n", size(bytes), text(&volume["block_bytes"]), text(&volume["nqn"]));
    }
    shown += &format!(
        "  {} I/O queues of {}; {} in flight, {} waiting; {} reconnects, {} errors, {} sent again\n",
        text(&volume["io_queues"]),
        text(&volume["queue_depth"]),
        text(&volume["in_flight"]),
        text(&volume["waiting"]),
        text(&volume["reconnects"]),
        text(&volume["errors"]),
        text(&volume["retries"])
    );
    let mut rows = vec![["  ", "COUNT", "BYTES", "P50 us", "P99 us", "P99.9 us", "MAX us"].map(str::to_owned)];
    for kind in QueueStatus::KINDS {
        let flow = &volume[kind];
        if flow["count"].as_u64().is_none_or(|count| count == 0) {
            continue;
        }
        let micros = |name: &str| flow["latency_us"][name].as_f64().map_or_else(|| "-".to_owned(), |micros| format!("{micros:.0}"));
        rows.push([
            format!("  {kind}"),
            text(&flow["count"]),
            text(&flow["bytes"]),
            micros("p50"),
            micros("p99"),
            micros("p99.9"),
            micros("max"),
        ]);
    }
    if rows.len() > 1 {
        shown += &columns(&rows, Side::Left);
    }
    if volume["last_error"].is_object() {
        shown += &format!("  last error: {}\n", text(&volume["last_error"]["text"]));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> Value {
        json!({
            "name": "vol0", "state": "live", "since_seconds": 12, "address": "127.0.0.1:4420", "served": "/dev/nbd0",
            "nqn": "nqn.2026-11.org.example:vol0", "size_bytes": 1 << 30, "block_bytes": 4096, "read_only": true, "io_queues": 2,
            "queue_depth": 127, "in_flight": 3, "waiting": 0, "reconnects": 1, "errors": 0, "retries": 0,
            "reads": { "count": 2, "bytes": 8192, "latency_us": { "p50": 12.4, "p99": 20.0, "p99.9": 20.0, "max": 21.0 } },
            "writes": { "count": 0, "bytes": 0, "latency_us": { "p50": null } },
            "last_error": { "at": 0, "text": "the target closed the connection" },
        })
    }

    #[test]
    fn a_volume_is_shown_with_what_it_has_done() {
        let expected = "vol0: live for 12 s, at 127.0.0.1:4420, as /dev/nbd0\n\
                        \x20 1GiB in blocks of 4096 bytes, read-only, nqn.2026-11.org.example:vol0\n\
                        \x20 2 I/O queues of 127; 3 in flight, 0 waiting; 1 reconnects, 0 errors, 0 sent again\n\
                        \x20        COUNT  BYTES  P50 us  P99 us  P99.9 us  MAX us\n\
                        \x20 reads  2      8192   12      20      20        21\n\
                        \x20 last error: the target closed the connection\n";
        assert_eq!(show(&volume()), expected);
    }

    #[test]
    fn who_has_no_place_for_sockets_is_told_so_and_not_that_there_are_no_volumes() {
        let told = Path::new("/of/one.sock");
        assert_eq!(sockets_in(Some(told), None).ok(), Some(vec![told.to_owned()]));
        assert_eq!(sockets_in(None, Some("/not/there".into())).ok(), Some(vec![]));
        assert!(matches!(sockets_in(None, None), Err(Failure::Failed(why)) if why.contains("XDG_RUNTIME_DIR")));
    }
}
