//! Where the control sockets of daemons are: a daemon puts its own there, and whoever asks looks there.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::geteuid;

use crate::unix;

/// The name of a target's socket in the runtime directory.
const TARGET: &str = "target.sock";

/// How the names of initiators' sockets begin.
const INITIATOR: &str = "initiator";

/// Where a target's socket is unless it is said otherwise: in what systemd made for the daemon, in `/run/godwit-target` for root, in the
/// runtime directory of other users. `None` when there is none of these.
#[must_use]
pub fn of_target() -> Option<PathBuf> {
    target_of(geteuid().is_root(), |name| std::env::var_os(name))
}

/// The first of [`of_targets`] that is there.
#[must_use]
pub fn of_running_target() -> Option<PathBuf> {
    of_targets().into_iter().find(|place| place.exists())
}

/// Where a target is looked for unless it is said otherwise, in this order: where one of this user is, or the one that systemd runs. Not empty.
#[must_use]
pub fn of_targets() -> Vec<PathBuf> {
    let places = [of_target(), Some("/run/godwit/target.sock".into()), Some("/run/godwit/target/target.sock".into())];
    places.into_iter().flatten().collect()
}

/// The folder of the sockets of this user's initiators. `None` when there is no place for one.
#[must_use]
pub fn of_initiators() -> Option<PathBuf> {
    initiators_of(geteuid().is_root(), |name| std::env::var_os(name))
}

/// The name of an initiator's socket in that folder: that of a process, or that of the configuration, of which a machine has one.
#[must_use]
pub fn initiator_name(process: Option<u32>) -> String {
    process.map_or_else(|| format!("{INITIATOR}.sock"), |process| format!("{INITIATOR}-{process}.sock"))
}

/// The sockets of initiators that a folder has, in order. One that was killed has left its own.
#[must_use]
pub fn initiators_in(folder: &Path) -> Vec<PathBuf> {
    let is_socket = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "sock")
            && path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(INITIATOR))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut sockets: Vec<_> = entries.map(|entry| entry.path()).filter(is_socket).collect();
    sockets.sort();
    sockets
}

/// Removes the sockets that daemons of one process each have left in a folder when they were killed: where nobody listens, and the process is not there. (It may
/// be there and not listen yet, and one may listen of which this process cannot see that it is there, being in a container.)
pub fn remove_dead_initiators(folder: &Path) {
    for socket in initiators_in(folder) {
        let name = socket.file_stem().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(INITIATOR)?.strip_prefix('-'));
        let Some(process) = name.and_then(|process| process.parse::<u32>().ok()) else { continue };
        let is_gone = !Path::new("/proc").join(process.to_string()).exists();
        if is_gone && unix::is_stale(&socket, Duration::ZERO).unwrap_or(false) {
            // Another daemon that starts may have been faster.
            let _ = std::fs::remove_file(&socket);
        }
    }
}

fn target_of(root: bool, environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let from = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_service = from("RUNTIME_DIRECTORY").and_then(|all| all.to_str().and_then(|all| all.split(':').next()).map(PathBuf::from));
    let directory = of_service.or_else(|| match root {
        true => Some(PathBuf::from("/run/godwit-target")),
        false => from("XDG_RUNTIME_DIR").map(|directory| directory.join("godwit")),
    })?;
    Some(directory.join(TARGET))
}

fn initiators_of(root: bool, environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    match root {
        true => Some("/run/godwit".into()),
        false => environment("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()).map(|directory| PathBuf::from(directory).join("godwit")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment<'a>(variables: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| variables.iter().find(|variable| variable.0 == name).map(|variable| variable.1.into())
    }

    #[test]
    fn a_service_a_root_and_a_user_have_places_of_their_own() {
        let target = |root, variables: &[(&str, &str)]| target_of(root, environment(variables)).map(|path| path.display().to_string());
        let service = ("RUNTIME_DIRECTORY", "/run/a:/run/b");
        assert_eq!(target(true, &[service]).as_deref(), Some("/run/a/target.sock"));
        assert_eq!(target(true, &[]).as_deref(), Some("/run/godwit-target/target.sock"));
        assert_eq!(target(false, &[("XDG_RUNTIME_DIR", "/run/user/7")]).as_deref(), Some("/run/user/7/godwit/target.sock"));
        assert_eq!(target(false, &[("RUNTIME_DIRECTORY", ""), ("XDG_RUNTIME_DIR", "")]), None);
        let initiators = |root, variables: &[(&str, &str)]| initiators_of(root, environment(variables));
        assert_eq!(initiators(true, &[]), Some("/run/godwit".into()));
        assert_eq!(initiators(false, &[("XDG_RUNTIME_DIR", "/run/user/7")]), Some("/run/user/7/godwit".into()));
        assert_eq!(initiators(false, &[("XDG_RUNTIME_DIR", "")]), None);
    }

    #[test]
    fn initiators_are_found_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let names = [initiator_name(Some(7)), initiator_name(None), TARGET.to_owned(), "initiator.yaml".to_owned(), "vol0.sock".to_owned()];
        names.iter().for_each(|name| std::fs::write(folder.path().join(name), "").unwrap());
        assert_eq!(initiators_in(folder.path()), ["initiator-7.sock", "initiator.sock"].map(|name| folder.path().join(name)));
        assert!(initiators_in(&folder.path().join("nowhere")).is_empty());
    }

    #[test]
    fn only_sockets_that_nobody_listens_on_and_whose_process_is_gone_are_removed() {
        use std::os::unix::net::UnixListener;
        // Larger than any that the kernel gives.
        const GONE: u32 = 1 << 30;
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (dead, heard) = (path(&initiator_name(Some(GONE))), path(&initiator_name(Some(GONE + 1))));
        let _listener = UnixListener::bind(&heard).unwrap();
        let kept = [path(&initiator_name(Some(std::process::id()))), path(&initiator_name(None)), path("initiator-x.sock")];
        kept.iter().chain([&dead]).for_each(|path| drop(UnixListener::bind(path).unwrap()));
        let file = path(&initiator_name(Some(GONE + 2)));
        std::fs::write(&file, "").unwrap();
        remove_dead_initiators(folder.path());
        assert!(!dead.exists() && heard.exists() && file.exists() && kept.iter().all(|path| path.exists()));
    }
}
