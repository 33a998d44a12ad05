//! Processor time of the target.

use std::path::PathBuf;
use std::time::Duration;

use godwit_control::{Client, ControlError};
use godwit_nvme::{Cntlid, HostId, Nqn};
use serde_json::{Value, json};
use uuid::Uuid;

/// How long a target may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A target on this machine that can be asked.
#[derive(Debug)]
pub(crate) struct TargetDaemon {
    path: PathBuf,
}

/// What tells the target that serves a volume from others.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) subsystem: Nqn,
    pub(crate) host: Nqn,
    pub(crate) host_id: HostId,
    pub(crate) cntlid: Option<Cntlid>,
    /// Of the namespace.
    pub(crate) uuid: Option<Uuid>,
}

impl TargetDaemon {
    /// The target with that control socket.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Processor time that it has used.
    pub(crate) fn cpu_time(&self) -> Result<Duration, ControlError> {
        let status = self.status()?;
        let seconds = status["cpu_seconds"].as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        seconds.ok_or_else(|| ControlError::NoAnswer(self.path.clone()))
    }

    /// Whether it serves this volume.
    pub(crate) fn serves(&self, volume: &Served) -> Result<bool, ControlError> {
        Ok(is_served(&self.status()?, volume))
    }

    fn status(&self) -> Result<Value, ControlError> {
        Client::call(&self.path, &json!({ "command": "status" }), PATIENCE)
    }
}

/// Whether a target that says this of itself has the namespace, and this host's controller.
fn is_served(status: &Value, volume: &Served) -> bool {
    let of = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let uuid = volume.uuid.map(|uuid| uuid.to_string());
    let host_id = Uuid::from_bytes(volume.host_id.0).to_string();
    of(status, "subsystems").iter().filter(|subsystem| subsystem["nqn"] == volume.subsystem.as_str()).any(|subsystem| {
        let has_namespace = of(subsystem, "namespaces").iter().any(|namespace| namespace["uuid"].as_str() == uuid.as_deref());
        let has_controller = of(subsystem, "controllers").iter().any(|controller| {
            controller["cntlid"].as_u64() == volume.cntlid.map(|cntlid| cntlid.get().into())
                && controller["host"] == volume.host.as_str()
                && controller["host_id"] == host_id.as_str()
        });
        has_namespace && has_controller
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_known_by_namespace_and_controller() {
        let uuid = Uuid::from_u128(7);
        let volume = || Served {
            subsystem: "nqn.2026-11.org.example:vol0".parse().unwrap(),
            host: "nqn.2026-11.org.example:host".parse().unwrap(),
            host_id: HostId([1; 16]),
            cntlid: Some(Cntlid::new(3)),
            uuid: Some(uuid),
        };
        let status = json!({ "subsystems": [{
            "nqn": "nqn.2026-11.org.example:vol0",
            "namespaces": [{ "uuid": uuid.to_string() }],
            "controllers": [{ "cntlid": 3, "host": "nqn.2026-11.org.example:host", "host_id": Uuid::from_bytes([1; 16]).to_string() }],
        }]});
        assert!(is_served(&status, &volume()));
        let others = [
            Served { cntlid: Some(Cntlid::new(4)), ..volume() },
            Served { cntlid: None, ..volume() },
            Served { uuid: None, ..volume() },
            Served { uuid: Some(Uuid::from_u128(8)), ..volume() },
            Served { host_id: HostId([2; 16]), ..volume() },
            Served { subsystem: "nqn.2026-11.org.example:vol1".parse().unwrap(), ..volume() },
        ];
        assert!(!others.iter().any(|other| is_served(&status, other)));
        assert!(!is_served(&json!({}), &volume()));
    }
}
