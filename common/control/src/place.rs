//! Where the control socket of a target is: the target puts it there, and whoever asks looks there.

use std::path::PathBuf;

/// The name of the socket in the runtime directory.
const NAME: &str = "target.sock";

/// Where the socket is unless it is said otherwise: in what systemd made for the daemon, in `/run/godwit-target` for root, in the
/// runtime directory of other users. `None` when there is none of these.
#[must_use]
pub fn of_target() -> Option<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_service = from("RUNTIME_DIRECTORY").and_then(|all| all.to_str().and_then(|all| all.split(':').next()).map(PathBuf::from));
    let directory = of_service.or_else(|| match nix::unistd::geteuid().is_root() {
        true => Some(PathBuf::from("/run/godwit-target")),
        false => from("XDG_RUNTIME_DIR").map(|directory| directory.join("godwit")),
    })?;
    Some(directory.join(NAME))
}

/// Where a target is looked for unless it is said otherwise: where one of this user is, or the one that systemd runs.
#[must_use]
pub fn of_running_target() -> Option<PathBuf> {
    let places = [of_target(), Some("/run/godwit/target.sock".into()), Some("/run/godwit/target/target.sock".into())];
    let mut places = places.into_iter().flatten();
    let first = places.next()?;
    Some(if first.exists() { first } else { places.find(|place| place.exists()).unwrap_or(first) })
}
