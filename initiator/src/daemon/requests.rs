//! What a daemon can be asked, on its control socket: objects with a `command`.
//!
//! `status` (of the `volume` that is named, or of all) gives a list of objects, `disconnect` detaches a `volume`, `prepare_shutdown` has lost targets
//! given up soon. Programs read these, so names stay.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, UNIX_EPOCH};

use godwit_control::metrics::{self, Kind, Text};
use godwit_control::{ControlError, Handle, Server, refusal};
use serde_json::{Map, Value, json};

use super::volume::{Outlet, Stage, Use, Volume};
use super::{Daemon, Notice};
use crate::device::Disk;
use crate::host::{Latency, QueueStatus, VolumeInfo, VolumeState};
use crate::worker::VolumeNumber;

/// Who may ask: the daemon's user.
const MODE: u32 = 0o600;

/// How long a request may take: a flush of what the kernel holds, most of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the kernel may take to say who uses a device.
const LOOK: Duration = Duration::from_millis(3500);

/// How long an NBD client that leaves may take until its connection has ended here.
const LEAVING: Duration = Duration::from_millis(500);

/// How long the kernel may take to write a device out before it is freed.
const FLUSH: Duration = Duration::from_secs(30);

/// The same when it is to be freed in any case.
const FORCED_FLUSH: Duration = Duration::from_secs(5);

/// Opens the control socket.
pub(super) fn listen(path: PathBuf, notices: &Sender<Notice>) -> Result<Handle, ControlError> {
    let ask = asker(notices);
    Server::bind(path, MODE)?.serve(ask)
}

/// Serves metrics for Prometheus.
pub(super) fn serve_metrics(address: SocketAddr, notices: &Sender<Notice>) -> Result<metrics::Handle, ControlError> {
    let ask = asker(notices);
    metrics::serve(address, move || exposition(&ask(json!({ "command": "status" }))))
}

/// Hands a request to the control thread, and waits for its answer.
fn asker(notices: &Sender<Notice>) -> impl Fn(Value) -> Value + Send + Sync + 'static {
    let notices = std::sync::Mutex::new(notices.clone());
    move |request| {
        let (tell, answer) = channel();
        let notices = notices.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        if notices.send(Notice::Request(request, tell)).is_err() {
            return refusal("the daemon is ending");
        }
        answer.recv_timeout(PATIENCE).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => refusal(format!("not done within {} s; it may be yet", PATIENCE.as_secs())),
            RecvTimeoutError::Disconnected => refusal("the daemon has ended meanwhile"),
        })
    }
}

/// Who uses each of these devices, in words.
pub(super) fn holders(disks: &[Disk]) -> Vec<Option<String>> {
    let looks: Vec<_> = disks.iter().map(|&disk| ask(move || disk.holder())).collect();
    let deadline = Instant::now() + LOOK;
    let silent = || Some("it does not answer".to_owned());
    looks.iter().map(|look| look.recv_timeout(deadline.saturating_duration_since(Instant::now())).unwrap_or_else(|_| silent())).collect()
}

/// Whether a volume may go, for nobody uses it.
pub(super) fn release(of: &Use, force: bool) -> Result<(), String> {
    match of {
        Use::Device(disk) => release_device(*disk, force),
        Use::Nbd { .. } if force => Ok(()),
        Use::Nbd { export, place, is_lost } => {
            await_clients(|| export.connections()).map_err(|connections| {
                let plural = if connections == 1 { "" } else { "s" };
                format!(
                    "{place} is in use: {connections} connection{plural} of NBD clients; disconnect them first, or add --force to lose what they did not flush"
                )
            })?;
            if *is_lost {
                return Err(format!(
                    "the target of {place} is away, so that nothing can be flushed; wait for it, or add --force to lose what clients did not flush"
                ));
            }
            Ok(())
        }
    }
}

/// Whether no client is connected, or how many connections stay. One that has closed its end a moment ago is gone, even if our end has not heard of it.
fn await_clients(connections: impl Fn() -> usize) -> Result<(), usize> {
    let deadline = Instant::now() + LEAVING;
    loop {
        match connections() {
            0 => return Ok(()),
            some if Instant::now() >= deadline => return Err(some),
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Whether a device may be freed. What the kernel has of it was written out then.
fn release_device(disk: Disk, force: bool) -> Result<(), String> {
    if !force && let [Some(holder)] = &holders(&[disk])[..] {
        return Err(format!("{disk} is in use: {holder}; unmount it first, or add --force to lose what was not written"));
    }
    let limit = if force { FORCED_FLUSH } else { FLUSH };
    match ask(move || disk.flush()).recv_timeout(limit) {
        Ok(Ok(())) => Ok(()),
        _ if force => Ok(()),
        Ok(Err(error)) => Err(format!("{disk} cannot be flushed ({error}); add --force to lose what was not written")),
        Err(_) => Err(format!(
            "{disk} could not be flushed within {} s, for the target is away; add --force to lose what was not written",
            limit.as_secs()
        )),
    }
}

/// What the kernel answers, on a thread of its own: it may wait for a target that is away.
fn ask<T: Send + 'static>(question: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (tell, answer) = channel();
    std::thread::spawn(move || tell.send(question()));
    answer
}

impl<F: FnMut(&str, &str, &VolumeInfo)> Daemon<F> {
    /// Answers a request, now or later.
    pub(super) fn on_request(&mut self, request: &Value, answer: Sender<Value>) {
        let name = request.get("volume").and_then(Value::as_str);
        let now = Instant::now();
        let reply = match request.get("command").and_then(Value::as_str) {
            Some("status") => match name {
                None => Value::Array(self.volumes.values().map(|volume| describe(volume, now)).collect()),
                Some(name) => match &self.named(name)[..] {
                    [] => unknown(name),
                    numbers => Value::Array(numbers.iter().map(|number| describe(&self.volumes[number], now)).collect()),
                },
            },
            Some("disconnect") => match name.map(|name| (name, self.named(name))) {
                None => refusal("`disconnect` needs a `volume`"),
                Some((name, numbers)) => match numbers[..] {
                    [] => unknown(name),
                    [number] => {
                        let force = request.get("force").and_then(Value::as_bool).unwrap_or(false);
                        return self.release(number, force, Some(answer));
                    }
                    _ => refusal(format!("{} volumes here are called `{name}`", numbers.len())),
                },
            },
            Some("prepare_shutdown") => {
                self.prepare_shutdown();
                json!({ "prepared": self.volumes.len() })
            }
            Some(command) => refusal(format!("`{command}` is not a command: there are status, disconnect and prepare_shutdown")),
            None => refusal("a request is an object with a `command`"),
        };
        // Whoever asked may have gone.
        let _ = answer.send(reply);
    }

    /// The volume of a name; without one, those of that NQN or that place.
    fn named(&self, name: &str) -> Vec<VolumeNumber> {
        let matching = |matches: &dyn Fn(&Volume) -> bool| -> Vec<_> {
            self.volumes.iter().filter(|(_, volume)| matches(volume)).map(|(&number, _)| number).collect()
        };
        let named = matching(&|volume| volume.wanted.settings.name == name);
        if !named.is_empty() {
            return named;
        }
        matching(&|volume| volume.wanted.settings.names.subsystem.as_str() == name || volume.place().as_deref() == Some(name))
    }
}

fn unknown(name: &str) -> Value {
    refusal(format!("there is no volume `{name}` here"))
}

/// What there is to say of a volume.
fn describe(volume: &Volume, now: Instant) -> Value {
    let settings = &volume.wanted.settings;
    let control = settings.status.control();
    let total = settings.status.total();
    let state = match volume.stage {
        Stage::Failed { .. } => "failed",
        Stage::Releasing | Stage::Draining { .. } | Stage::Detaching { .. } if control.state != VolumeState::Gone => "detaching",
        _ => control.state.name(),
    };
    let mut text = Map::new();
    let mut put = |name: &str, value: Value| text.insert(name.to_owned(), value);
    put("name", json!(volume.wanted.settings.name));
    put("pid", json!(std::process::id()));
    put("state", json!(state));
    put("since_seconds", json!(now.saturating_duration_since(control.since).as_secs()));
    put("nqn", json!(settings.names.subsystem.as_str()));
    put("address", json!(control.address.map(|address| address.to_string())));
    put("controller", json!(control.cntlid.map(godwit_nvme::Cntlid::get)));
    put("served", json!(volume.place()));
    if let Some(served) = &volume.served {
        let geometry = &served.info.geometry;
        put("nsid", json!(served.info.identity.nsid.get()));
        put("uuid", json!(served.info.identity.uuid.map(|uuid| uuid.to_string())));
        put("size_bytes", json!(geometry.size_bytes));
        put("block_bytes", json!(geometry.block_bytes));
        put("read_only", json!(geometry.read_only));
        let clients = if let Outlet::Nbd(_) = served.outlet { "clients" } else { "sockets" };
        put(clients, json!(served.export.connections()));
    }
    put("io_queues", json!(control.io_queues));
    put("queue_depth", json!(control.queue_depth));
    put("keep_alive_seconds", json!(control.keep_alive.as_secs()));
    put("reconnects", json!(control.reconnects));
    put("attempts", json!(control.attempts));
    put("in_flight", json!(total.in_flight));
    put("waiting", json!(total.waiting));
    for (name, flow) in total.flows() {
        put(name, json!({ "count": flow.count(), "bytes": flow.bytes, "latency_us": latency(&flow.latency) }));
    }
    put("errors", json!(total.errors));
    put("retries", json!(total.retries));
    put("losses", json!(control.losses));
    put("restorations", json!(control.restorations));
    put(
        "last_error",
        // A loss of writes comes with a lost target, and is the graver news.
        match control.last_error.max(control.last_loss) {
            None => Value::Null,
            Some((at, text)) => json!({ "at": at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()), "text": text }),
        },
    );
    Value::Object(text)
}

fn latency(latency: &Latency) -> Value {
    let micros = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e6);
    let [p50, p99, p999] = [500, 990, 999].map(|permille| micros(latency.permille(permille)));
    json!({ "p50": p50, "p99": p99, "p99.9": p999, "max": micros(latency.max()) })
}

/// The answer to `status` as Prometheus reads it.
fn exposition(status: &Value) -> String {
    let mut text = Text::new();
    let volumes: Vec<&Value> = status.as_array().into_iter().flatten().collect();
    let name = |volume: &Value| volume["name"].as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let mut plain = |metric, kind, help, value: &dyn Fn(&Value) -> f64| {
        let mut family = text.family(metric, kind, help);
        for volume in &volumes {
            family.sample(&[("volume", &name(volume))], value(volume));
        }
    };
    let live = |volume: &Value| if volume["state"] == "live" { 1.0 } else { 0.0 };
    plain("godwit_volume_up", Kind::Gauge, "Whether the volume is connected to its target.", &live);
    plain("godwit_volume_size_bytes", Kind::Gauge, "Size of the volume.", &|volume| number(&volume["size_bytes"]));
    plain("godwit_volume_commands_in_flight", Kind::Gauge, "Commands that the target has.", &|volume| number(&volume["in_flight"]));
    plain("godwit_volume_operations_waiting", Kind::Gauge, "Operations that wait to be sent.", &|volume| number(&volume["waiting"]));
    plain("godwit_volume_reconnects_total", Kind::Counter, "Times that the volume came back after a loss.", &|volume| {
        number(&volume["reconnects"])
    });
    plain("godwit_volume_errors_total", Kind::Counter, "Operations that ended with an error.", &|volume| number(&volume["errors"]));
    plain("godwit_volume_losses_total", Kind::Counter, "Times that a target lost acknowledged writes, and clients were told.", &|volume| {
        number(&volume["losses"])
    });
    plain("godwit_volume_retries_total", Kind::Counter, "Commands that were sent again.", &|volume| number(&volume["retries"]));
    let mut by_kind = |metric, help, value: &dyn Fn(&Value) -> f64| {
        let mut family = text.family(metric, Kind::Counter, help);
        for volume in &volumes {
            for kind in QueueStatus::KINDS {
                family.sample(&[("volume", &name(volume)), ("kind", kind)], value(&volume[kind]));
            }
        }
    };
    by_kind("godwit_volume_operations_total", "Operations that ended well.", &|flow| number(&flow["count"]));
    by_kind("godwit_volume_bytes_total", "Bytes that operations moved.", &|flow| number(&flow["bytes"]));
    let mut family = text.family("godwit_volume_latency_seconds", Kind::Gauge, "Latency of operations since the volume was attached.");
    for volume in &volumes {
        for kind in QueueStatus::KINDS {
            for (quantile, name_of) in [("0.5", "p50"), ("0.99", "p99"), ("0.999", "p99.9")] {
                if let Some(micros) = volume[kind]["latency_us"][name_of].as_f64() {
                    family.sample(&[("volume", &name(volume)), ("kind", kind), ("quantile", quantile)], micros / 1e6);
                }
            }
        }
    }
    text.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_that_failed_and_writes_that_were_lost_are_in_the_metrics() {
        let volume = json!({ "name": "v", "state": "live", "errors": 2, "losses": 1, "flushes": { "count": 3 } });
        let text = exposition(&Value::Array(vec![volume]));
        for line in [
            "godwit_volume_errors_total{volume=\"v\"} 2\n",
            "godwit_volume_losses_total{volume=\"v\"} 1\n",
            "godwit_volume_operations_total{volume=\"v\",kind=\"flushes\"} 3\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
