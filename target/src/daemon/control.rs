//! The control socket, and what is asked there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use godwit_config::Nqn;
use godwit_control::{Client, ControlError, Handle, Server, place, refusal};
use godwit_nvme::Nsid;
use serde_json::{Value, json};

use super::site::Site;
use super::status;

/// The socket is for the daemon's own user, and root.
const MODE: u32 = 0o600;

/// How long the daemon may take for a command. A reload may have to wait for the lock of a file.
const PATIENCE: Duration = Duration::from_secs(60);

/// Opens the control socket. One that was not asked for is not missed: a second daemon on the machine has none unless it is told where.
pub(super) fn open(site: &Arc<Site>, asked_for: Option<PathBuf>) -> Result<Option<Handle>, ControlError> {
    let asked = asked_for.is_some();
    let Some(path) = asked_for.or_else(place::of_target) else {
        tracing::debug!("no control socket: there is no runtime directory; --control names a place for it");
        return Ok(None);
    };
    if let (false, Some(directory)) = (asked, path.parent()) {
        // What cannot be made is told below.
        let _ = std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o755).create(directory);
    }
    let handler = {
        let site = Arc::clone(site);
        move |request: Value| answer(&site, &request)
    };
    match Server::bind(path, MODE).and_then(|server| server.serve(handler)) {
        Ok(handle) => {
            tracing::debug!("control socket at {}", handle.path().display());
            Ok(Some(handle))
        }
        Err(error) if asked => Err(error),
        Err(ControlError::InUse(path)) => {
            tracing::warn!("no control socket: another daemon has {}; --control names another place", path.display());
            Ok(None)
        }
        Err(error) => {
            tracing::debug!("no control socket: {error}");
            Ok(None)
        }
    }
}

fn answer(site: &Arc<Site>, request: &Value) -> Value {
    match request["command"].as_str() {
        Some("status") => status::status(site),
        Some("reload") => match super::reload_and_tell(site, request["force"] == true) {
            Ok(changes) => json!({ "changes": changes }),
            Err(refusals) => refusal(refusals.join("\n")),
        },
        Some("reopen") => reopen(site, request),
        _ => refusal("the commands are status, reload and reopen"),
    }
}

fn reopen(site: &Site, request: &Value) -> Value {
    let nqn = request["nqn"].as_str().and_then(|nqn| Nqn::new(nqn).ok());
    let nsid = request["nsid"].as_u64().and_then(|nsid| u32::try_from(nsid).ok());
    let (Some(nqn), Some(nsid)) = (nqn, nsid) else { return refusal("reopen needs an nqn and an nsid") };
    match site.reopen(&nqn, Nsid::new(nsid)) {
        Ok(lost) => json!({ "had_lost_writes": lost }),
        Err(error) => refusal(error),
    }
}

/// What a command is answered with.
pub(crate) type Outcome = Result<Value, ControlError>;

/// Asks the daemon for its state.
pub(crate) fn ask_for_status(path: &PathBuf) -> Outcome {
    Client::call(path, &json!({ "command": "status" }), PATIENCE)
}

/// Has the daemon read its configuration again.
pub(crate) fn ask_for_reload(path: &PathBuf, force: bool) -> Outcome {
    Client::call(path, &json!({ "command": "reload", "force": force }), PATIENCE)
}

/// Has the daemon go on with a namespace that has lost writes.
pub(crate) fn ask_to_reopen(path: &PathBuf, nqn: &Nqn, nsid: u32) -> Outcome {
    Client::call(path, &json!({ "command": "reopen", "nqn": nqn.as_str(), "nsid": nsid }), PATIENCE)
}
