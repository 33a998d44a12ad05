//! `godwit discover`: prints what a target offers.

use std::fmt::Write;

use godwit_config::Crc;
use godwit_memory::Layout;
use godwit_nvme::Nqn;
use godwit_nvme::log::{DiscoveryEntry, DiscoveryEntryFlags, RdmaProvider, SubsystemType, TransportRequirements};
use godwit_rdma::Fabric;
use godwit_reactor::{Event, PollBudget, Uring, UringConfig};
use serde_json::{Value, json};

use super::{Failure, endpoints, names, print};
use crate::cli::DiscoverArgs;
use crate::host::{Discovery, DiscoveryLog, DiscoverySettings, Endpoint, Names, TokenSpace};

pub(super) fn run(args: &DiscoverArgs) -> Result<(), Failure> {
    let endpoints = endpoints(&args.url, Crc::default())?;
    let names = names(&args.host, Nqn::discovery())?;
    let mut result = Err("the name has no address".to_owned());
    for endpoint in endpoints {
        result = discover(endpoint, names.clone());
        if result.is_ok() {
            break;
        }
    }
    let log = result.map_err(Failure::Failed)?;
    let text = if args.json { format!("{:#}\n", as_json(&log)) } else { as_text(&log) };
    print(text.as_bytes())
}

/// The names of the subsystems that a target offers.
pub(super) fn offered(endpoint: Endpoint, names: Names) -> Result<Vec<String>, String> {
    let log = discover(endpoint, names)?;
    let subsystems = log.entries.iter().filter(|entry| entry.subtype() == SubsystemType::NVM);
    let mut names: Vec<_> = subsystems.filter_map(|entry| Some(entry.subsystem_nqn().ok()?.to_string())).collect();
    names.dedup();
    Ok(names)
}

fn discover(endpoint: Endpoint, names: Names) -> Result<DiscoveryLog, String> {
    let config =
        UringConfig { pool: Layout::of_total(Layout::MINIMUM_BYTES), poll: PollBudget(godwit_config::PollBudget::default().duration()) };
    let mut reactor = Uring::new(&config).map_err(|error| error.to_string())?;
    let mut fabric = Fabric::new();
    let settings = DiscoverySettings { endpoint, names };
    let mut discovery = Discovery::start(&mut reactor, &mut fabric, settings, TokenSpace::new(0)).map_err(|error| error.to_string())?;
    let mut events = Vec::new();
    loop {
        fabric.flush(&mut reactor);
        if let Some(outcome) = discovery.take_outcome() {
            return outcome.map_err(|error| error.to_string());
        }
        reactor.turn(&mut events).map_err(|error| format!("io_uring failed: {error}"))?;
        for event in events.drain(..) {
            match event {
                Event::Timer { token } if !Fabric::owns(token) => discovery.on_timer(&mut reactor, &mut fabric, token),
                event => fabric.on_event(&mut reactor, event),
            }
        }
        while let Some((qp, completion)) = fabric.poll(&mut reactor) {
            discovery.on_completion(&mut reactor, &mut fabric, qp, completion);
        }
    }
}

/// As `nvme discover` prints it.
fn as_text(log: &DiscoveryLog) -> String {
    let mut text = format!("Discovery Log Number of Records {}, Generation counter {}\n", log.entries.len(), log.generation);
    for (number, entry) in log.entries.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "=====Discovery Log Entry {number}======");
        for (name, value) in fields(entry) {
            let _ = writeln!(text, "{:<8} {value}", format!("{name}:"));
        }
    }
    text
}

fn as_json(log: &DiscoveryLog) -> Value {
    let records = log.entries.iter().map(|entry| {
        let fields = fields(entry).into_iter().map(|(name, value)| (name.to_owned(), Value::String(value)));
        Value::Object(fields.collect())
    });
    json!({ "genctr": log.generation, "records": records.collect::<Vec<_>>() })
}

fn fields(entry: &DiscoveryEntry) -> Vec<(&'static str, String)> {
    let mut fields = vec![
        ("trtype", name_of(entry.transport().name(), entry.transport().code())),
        ("adrfam", name_of(entry.family().name(), entry.family().code())),
        ("subtype", name_of(entry.subtype().name(), entry.subtype().code())),
        ("treq", requirements(entry.treq)),
        ("portid", entry.port_id().to_string()),
        ("trsvcid", entry.service().to_string()),
        ("subnqn", entry.subsystem_nqn().map_or_else(|error| format!("({error})"), |nqn| nqn.to_string())),
        ("traddr", entry.address().to_string()),
        ("eflags", flags(entry.eflags)),
    ];
    if let Some(provider) = entry.provider() {
        fields.push(("rdma_prtype", provider_name(provider)));
    }
    fields
}

fn name_of(name: Option<&str>, value: u8) -> String {
    name.map_or_else(|| format!("unknown ({value})"), str::to_lowercase)
}

fn provider_name(provider: RdmaProvider) -> String {
    name_of(provider.name(), provider.code())
}

fn requirements(treq: TransportRequirements) -> String {
    let channel = if treq.contains(TransportRequirements::SECURE_CHANNEL_REQUIRED) {
        "required"
    } else if treq.contains(TransportRequirements::SECURE_CHANNEL_NOT_REQUIRED) {
        "not required"
    } else {
        "not specified"
    };
    let flow = if treq.contains(TransportRequirements::SQ_FLOW_CONTROL_DISABLE) { ", sq flow control disable supported" } else { "" };
    format!("{channel}{flow}")
}

fn flags(eflags: DiscoveryEntryFlags) -> String {
    let known = [
        (DiscoveryEntryFlags::DUPLICATE_INFORMATION, "duplicate discovery information"),
        (DiscoveryEntryFlags::PERSISTENT_CONNECTIONS, "explicit discovery connections"),
        (DiscoveryEntryFlags::NO_CDC_CONNECTIVITY, "no cdc connectivity"),
    ];
    let set: Vec<_> = known.into_iter().filter(|(flag, _)| eflags.contains(*flag)).map(|(_, name)| name).collect();
    if set.is_empty() { "none".to_owned() } else { set.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use godwit_nvme::log::{AddressFamily, RdmaAddress};

    fn log() -> DiscoveryLog {
        let address = RdmaAddress { family: AddressFamily::IPV4, address: "192.0.2.7", port: 4420, provider: RdmaProvider::IWARP };
        let nqn = "nqn.2026-11.org.example:vol0".parse().unwrap();
        DiscoveryLog { generation: 3, entries: vec![DiscoveryEntry::new(SubsystemType::NVM, &nqn, 1, address).unwrap()] }
    }

    #[test]
    fn prints_as_nvme_cli_does() {
        let text = as_text(&log());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "Discovery Log Number of Records 1, Generation counter 3",
                "=====Discovery Log Entry 0======",
                "trtype:  rdma",
                "adrfam:  ipv4",
            ]
        );
        for line in ["treq:    not required", "portid:  1", "trsvcid: 4420", "subnqn:  nqn.2026-11.org.example:vol0", "traddr:  192.0.2.7"]
        {
            assert!(lines.contains(&line), "{line} in {text}");
        }
    }

    #[test]
    fn json_has_the_same_fields() {
        let json = as_json(&log());
        assert_eq!(json["genctr"], 3);
        assert_eq!(json["records"][0]["traddr"], "192.0.2.7");
        assert_eq!(json["records"][0]["rdma_prtype"], "iwarp");
    }
}
