//! What the daemon tells about itself: to programs as JSON, to people as text, to Prometheus as metrics.
//!
//! All of it is read from what threads share anyway (counters that only their worker writes, the table of associations), so no worker is asked or held up.

use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use godwit_control::cpu_time;
use godwit_control::metrics::{Kind, Text};
use serde_json::{Value, json};

use super::site::Site;
use crate::association::SubsystemIndex;
use crate::counters::Totals;
use crate::subsystem::{AllowedHosts, Namespace};

/// The state of the daemon.
pub(super) fn status(site: &Site) -> Value {
    let limits = &site.target.limits;
    let offer = site.target.offer();
    let subsystems: Vec<_> = offer
        .present()
        .map(|(index, subsystem)| {
            json!({
                "nqn": subsystem.nqn.as_str(),
                "serial": subsystem.serial,
                "allow_any_host": subsystem.hosts == AllowedHosts::Any,
                "hosts": match &subsystem.hosts {
                    AllowedHosts::Any => Vec::new(),
                    AllowedHosts::Listed(hosts) => hosts.iter().map(|host| host.as_str().to_owned()).collect(),
                },
                "namespaces": subsystem.namespaces.iter().map(|found| namespace(site, found)).collect::<Vec<_>>(),
                "controllers": controllers(site, SubsystemIndex::Nvm(index)),
            })
        })
        .collect();
    let refused: serde_json::Map<_, _> =
        site.target.journal.refusals().into_iter().map(|(reason, count)| (reason.to_owned(), count.into())).collect();
    let latest = site.target.journal.latest();
    let errors: Vec<_> = latest.into_iter().map(|(at, text)| json!({ "unix_seconds": seconds(at), "error": text })).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "uptime_seconds": site.started.elapsed().as_secs(),
        "cpu_seconds": cpu_time().as_secs_f64(),
        "listeners": site.urls,
        "reactors": site.target.mailboxes.len(),
        "limits": {
            "in_capsule_bytes": limits.in_capsule_bytes,
            "queue_size": limits.io_queue_size.entries(),
            "io_queues": limits.io_queues,
            "controllers": limits.controllers,
        },
        "subsystems": subsystems,
        "discovery_controllers": controllers(site, SubsystemIndex::Discovery),
        "refused": refused,
        "last_errors": errors,
    })
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn totals(site: &Site, namespace: &Namespace) -> Totals {
    site.target.totals([namespace.store])
}

fn namespace(site: &Site, namespace: &Namespace) -> Value {
    let store = site.store(namespace.store);
    let Totals { read_bytes, written_bytes, reads, writes, media_errors, unsafe_shutdowns } = totals(site, namespace);
    json!({
        "nsid": namespace.nsid.get(),
        "store": store.as_ref().map(|store| store.description().to_owned()),
        "size_bytes": namespace.size_bytes,
        "block_bytes": namespace.block_size.bytes(),
        "read_only": namespace.read_only,
        "uuid": namespace.uuid.to_string(),
        "read_bytes": read_bytes,
        "written_bytes": written_bytes,
        "reads": reads,
        "writes": writes,
        "media_errors": media_errors,
        "unsafe_shutdowns": unsafe_shutdowns,
        "sync_failed": store.as_ref().is_some_and(|store| store.sync_failed()),
        "truncated": store.as_ref().is_some_and(|store| store.truncated()),
    })
}

fn controllers(site: &Site, of: SubsystemIndex) -> Vec<Value> {
    let all = site.target.associations.all().into_iter().filter(|(association, _)| association.subsystem == of);
    all.map(|(association, queues)| {
        let queues: Vec<_> = queues
            .iter()
            .map(|queue| {
                json!({
                    "qid": queue.qid.get(),
                    "reactor": queue.worker,
                    "peer": queue.peer,
                    "depth": queue.depth,
                    "in_flight": queue.in_flight.load(Ordering::Relaxed),
                })
            })
            .collect();
        json!({
            "cntlid": association.cntlid.get(),
            "host": association.host.nqn.as_str(),
            "host_id": uuid::Uuid::from_bytes(association.host.id.0).to_string(),
            "keep_alive_ms": u64::try_from(association.keep_alive.timeout().as_millis()).unwrap_or(u64::MAX),
            "ending": association.is_dying(),
            "errors": association.errors().count(),
            "queues": queues,
        })
    })
    .collect()
}

/// A status for people.
pub(crate) fn in_words(status: &Value) -> String {
    let mut text = String::new();
    // Writing to a text does not fail.
    let _ = write_words(&mut text, status);
    text
}

fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("?")
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn write_words(text: &mut String, status: &Value) -> std::fmt::Result {
    let uptime = number(status, "uptime_seconds");
    let (days, hours, minutes) = (uptime / 86_400, uptime / 3600 % 24, uptime / 60 % 60);
    writeln!(text, "godwit-target {}, process {}, up {days}d {hours}h {minutes}m", word(status, "version"), number(status, "pid"))?;
    let urls: Vec<_> = list(status, "listeners").iter().filter_map(Value::as_str).collect();
    writeln!(text, "listening on {}, {} reactors", urls.join(", "), number(status, "reactors"))?;
    for subsystem in list(status, "subsystems") {
        let hosts = list(subsystem, "hosts").len();
        let who = if subsystem["allow_any_host"] == true { "any host".to_owned() } else { format!("{hosts} allowed") };
        writeln!(text, "\n{} ({who})", word(subsystem, "nqn"))?;
        for namespace in list(subsystem, "namespaces") {
            write_namespace(text, namespace)?;
        }
        write_controllers(text, list(subsystem, "controllers"))?;
    }
    let discovery = list(status, "discovery_controllers");
    if !discovery.is_empty() {
        writeln!(text, "\ndiscovery")?;
        write_controllers(text, discovery)?;
    }
    if let Some(refused) = status["refused"].as_object().filter(|refused| !refused.is_empty()) {
        writeln!(text, "\nrefused connections")?;
        refused.iter().try_for_each(|(reason, count)| writeln!(text, "  {:>6}  {reason}", count.as_u64().unwrap_or_default()))?;
    }
    let errors = list(status, "last_errors");
    if !errors.is_empty() {
        writeln!(text, "\nlast errors")?;
        let now = seconds(SystemTime::now());
        for error in errors {
            let ago = now.saturating_sub(number(error, "unix_seconds"));
            writeln!(text, "  {ago:>6} s ago  {}", word(error, "error"))?;
        }
    }
    Ok(())
}

fn write_namespace(text: &mut String, namespace: &Value) -> std::fmt::Result {
    write!(text, "  namespace {}: {}, {}", number(namespace, "nsid"), word(namespace, "store"), size(number(namespace, "size_bytes")))?;
    write!(text, ", read {}, written {}", size(number(namespace, "read_bytes")), size(number(namespace, "written_bytes")))?;
    writeln!(text, ", unsafe shutdowns {}", number(namespace, "unsafe_shutdowns"))?;
    let flags = [
        ("sync_failed", "A SYNC FAILED: flushes are refused until `godwit-target reopen`"),
        ("truncated", "THE FILE WAS TRUNCATED: what lay behind its end, and flushes, are refused until `godwit-target reopen`"),
    ];
    flags.into_iter().filter(|(key, _)| namespace[key] == true).try_for_each(|(_, words)| writeln!(text, "    {words}"))
}

fn write_controllers(text: &mut String, controllers: &[Value]) -> std::fmt::Result {
    for controller in controllers {
        let queues = list(controller, "queues");
        let in_flight: u64 = queues.iter().map(|queue| number(queue, "in_flight")).sum();
        let peer = queues.first().map_or("?", |queue| word(queue, "peer"));
        let ending = if controller["ending"] == true { ", ending" } else { "" };
        writeln!(
            text,
            "  controller {}: {} at {peer}, {} queues, {in_flight} commands in flight{ending}",
            number(controller, "cntlid"),
            word(controller, "host"),
            queues.len()
        )?;
    }
    Ok(())
}

/// A number of bytes to three digits or so.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (bytes.max(1).ilog2() / 10) as usize;
    if power == 0 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let shown = bytes as f64 / (1_u64 << (10 * power)) as f64;
    let digits = usize::from(shown < 100.0 && shown.fract() != 0.0);
    format!("{shown:.digits$} {}", units[power])
}

/// A number of something that controllers have.
type Count = fn(&[Value]) -> u64;

/// The state of the daemon for Prometheus.
pub(super) fn metrics(site: &Site) -> String {
    let status = status(site);
    let mut text = Text::new();
    text.family("godwit_target_info", Kind::Gauge, "The version of the daemon.").sample(&[("version", word(&status, "version"))], 1);
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    text.family("godwit_target_uptime_seconds", Kind::Gauge, "Time since the daemon started.")
        .sample(&[], number(&status, "uptime_seconds") as f64);
    text.family("godwit_target_cpu_seconds_total", Kind::Counter, "Processor time that the daemon has used.")
        .sample(&[], status["cpu_seconds"].as_f64().unwrap_or_default());
    let subsystems = list(&status, "subsystems");
    let of_namespace = [
        ("godwit_target_namespace_size_bytes", Kind::Gauge, "size_bytes", "Size of the namespace."),
        ("godwit_target_read_bytes_total", Kind::Counter, "read_bytes", "Bytes that hosts have read."),
        ("godwit_target_written_bytes_total", Kind::Counter, "written_bytes", "Bytes that hosts have written."),
        ("godwit_target_reads_total", Kind::Counter, "reads", "Reads and compares that ended well."),
        ("godwit_target_writes_total", Kind::Counter, "writes", "Writes that ended well."),
        ("godwit_target_media_errors_total", Kind::Counter, "media_errors", "Commands that the backing store failed."),
        ("godwit_target_unsafe_shutdowns_total", Kind::Counter, "unsafe_shutdowns", "How often unflushed writes may have been lost."),
    ];
    for (name, kind, key, help) in of_namespace {
        let mut family = text.family(name, kind, help);
        each_namespace(subsystems, |labels, namespace| {
            family.sample(labels, number(namespace, key));
        });
    }
    let flags = [
        ("godwit_target_sync_failed", "sync_failed", "Whether a sync has failed, so that flushes are refused."),
        ("godwit_target_truncated", "truncated", "Whether the backing file was truncated."),
    ];
    for (name, key, help) in flags {
        let mut family = text.family(name, Kind::Gauge, help);
        each_namespace(subsystems, |labels, namespace| {
            family.sample(labels, namespace[key] == true);
        });
    }
    let of_subsystem: [(_, _, Count); 3] = [
        ("godwit_target_controllers", "Controllers that hosts are connected to.", |all| all.len() as u64),
        ("godwit_target_queues", "Connected queues, admin queues among them.", |all| {
            all.iter().map(|one| list(one, "queues").len() as u64).sum()
        }),
        ("godwit_target_commands_in_flight", "Commands that have not been answered.", |all| {
            all.iter().flat_map(|one| list(one, "queues")).map(|queue| number(queue, "in_flight")).sum()
        }),
    ];
    for (name, help, count) in of_subsystem {
        let mut family = text.family(name, Kind::Gauge, help);
        for subsystem in subsystems {
            family.sample(&[("nqn", word(subsystem, "nqn"))], count(list(subsystem, "controllers")));
        }
    }
    let mut family =
        text.family("godwit_target_refused_connections_total", Kind::Counter, "Connections and Connect commands that were refused.");
    for (reason, count) in status["refused"].as_object().into_iter().flatten() {
        family.sample(&[("reason", reason)], count.as_u64().unwrap_or_default());
    }
    text.finish()
}

fn each_namespace(subsystems: &[Value], mut work: impl FnMut(&[(&'static str, &str)], &Value)) {
    for subsystem in subsystems {
        for namespace in list(subsystem, "namespaces") {
            let nsid = number(namespace, "nsid").to_string();
            work(&[("nqn", word(subsystem, "nqn")), ("nsid", &nsid)], namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_for_people() {
        let sizes = [0, 1023, 1024, 1536, 4 << 20, 10 << 30, u64::MAX].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1 KiB", "1.5 KiB", "4 MiB", "10 GiB", "16 EiB"]);
    }

    #[test]
    fn people_see_what_needs_their_attention() {
        let status = json!({
            "version": "1", "pid": 7, "uptime_seconds": 90_061, "listeners": ["iwarp://127.0.0.1:4420"], "reactors": 2,
            "subsystems": [{
                "nqn": "nqn.a", "allow_any_host": false, "hosts": ["x"],
                "namespaces": [{ "nsid": 1, "store": "/a.img, O_DIRECT", "size_bytes": 1 << 30, "sync_failed": true, "unsafe_shutdowns": 2 }],
                "controllers": [{ "cntlid": 3, "host": "nqn.h", "queues": [{ "peer": "192.0.2.1:5", "in_flight": 4 }, { "in_flight": 1 }] }],
            }],
            "refused": { "unknown host": 5 },
        });
        let expected = "godwit-target 1, process 7, up 1d 1h 1m\n\
                        listening on iwarp://127.0.0.1:4420, 2 reactors\n\n\
                        nqn.a (1 allowed)\n  \
                          namespace 1: /a.img, O_DIRECT, 1 GiB, read 0 B, written 0 B, unsafe shutdowns 2\n    \
                            A SYNC FAILED: flushes are refused until `godwit-target reopen`\n  \
                          controller 3: nqn.h at 192.0.2.1:5, 2 queues, 5 commands in flight\n\n\
                        refused connections\n       5  unknown host\n";
        assert_eq!(in_words(&status), expected);
    }
}
