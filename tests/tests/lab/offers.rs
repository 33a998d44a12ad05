//! Our target as a configuration file has it: several subsystems, whose namespaces lie in memory.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use godwit_tests::daemon::{Target, binary};
use godwit_tests::lab::nvme::Host;

use crate::cells::Provider;

/// A subsystem.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    nqn: String,
    hosts: Vec<String>,
    namespaces: Vec<String>,
}

impl Offer {
    /// A subsystem for every host, without a namespace yet.
    pub(crate) fn new(nqn: &str) -> Self {
        Self { nqn: nqn.to_owned(), hosts: Vec::new(), namespaces: Vec::new() }
    }

    /// For this host alone.
    pub(crate) fn to(mut self, host: &Host) -> Self {
        self.hosts.push(host.nqn.clone());
        self
    }

    /// With one more namespace, whose identifier is the next; `settings` are those of the configuration beside its backend.
    pub(crate) fn with(mut self, mib: u32, settings: &str) -> Self {
        let nsid = self.namespaces.len() + 1;
        self.namespaces.push(format!("{{ nsid: {nsid}, backend: {{ memory: {{ size: {mib}MiB }} }}, {settings} }}"));
        self
    }

    fn yaml(&self) -> String {
        let hosts =
            if self.hosts.is_empty() { "allow_any_host: true".to_owned() } else { format!("hosts: [\"{}\"]", self.hosts.join("\", \"")) };
        format!("  - nqn: {}\n    {hosts}\n    namespaces: [{}]\n", self.nqn, self.namespaces.join(", "))
    }
}

/// Starts the target, which logs all that it does.
pub(crate) fn start(folder: &Path, provider: Provider, address: SocketAddr, offers: &[Offer]) -> Target {
    let url = provider.url(address);
    let transport = url.split(':').next().unwrap();
    let subsystems: String = offers.iter().map(Offer::yaml).collect();
    let yaml = format!(
        "listeners:\n  - {{ transport: {transport}, address: \"{address}\" }}\ninsecure_allow_any_host: true\nsubsystems:\n{subsystems}"
    );
    let path = folder.join("target.yaml");
    fs::write(&path, yaml).unwrap();
    Target::start_command(Command::new(binary("godwit-target")).arg("--config").arg(path).args(["--log", "debug"]), address)
}
