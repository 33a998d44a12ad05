//! Who this host is towards a target: host NQN and host id.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use uuid::Uuid;

use crate::{Nqn, NqnError, load::without_number};

/// The identity that a host connects under. One NQN always goes with one id: targets tell hosts apart by both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostIdentity {
    /// Host NQN (HOSTNQN).
    pub hostnqn: Nqn,
    /// Host Identifier (HOSTID).
    pub hostid: Uuid,
    /// Where it is from.
    pub source: IdentitySource,
}

/// Where the host id of a [`HostIdentity`] is from, and its host NQN unless that is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentitySource {
    /// The command line, or the files that nvme-cli and the kernel's host use.
    Configured,
    /// Derived from the machine id: the same at each start.
    MachineId,
    /// Made up, because the machine has none: another one at each start.
    Random,
}

/// Where the parts of an identity are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityFiles {
    /// nvme-cli's host NQN.
    pub hostnqn: PathBuf,
    /// nvme-cli's host id.
    pub hostid: PathBuf,
    /// machine-id(5).
    pub machine_id: PathBuf,
}

impl Default for IdentityFiles {
    fn default() -> Self {
        Self { hostnqn: "/etc/nvme/hostnqn".into(), hostid: "/etc/nvme/hostid".into(), machine_id: "/etc/machine-id".into() }
    }
}

/// A file of the identity that is there but not right.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// It cannot be read.
    #[error("cannot read {}: {}", path.display(), without_number(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It holds no NQN.
    #[error("{}: {reason}", path.display())]
    Nqn {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: NqnError,
    },
    /// It holds no UUID.
    #[error("{}: `{found}` is not a host id: write a UUID, as `uuidgen` prints it", path.display())]
    Hostid {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: String,
    },
}

/// Ours alone, so that the machine id, which is confidential, cannot be told from what is derived.
const NAMESPACE: Uuid = Uuid::from_u128(0x9c1d_5c0e_6b7a_4f57_9f0b_2a6e_8d34_71c5);

impl HostIdentity {
    /// The identity of this machine: what the caller gives, else `/etc/nvme`, else one derived from the machine id,
    /// else a random one.
    ///
    /// A missing half follows from the other: an NQN made from a UUID gives that UUID, any other NQN gives an id of its own on
    /// this machine, and an id gives the NQN made from it. The id of the file goes with the NQN of the file only.
    ///
    /// # Errors
    /// A file that is there but not right: to go on under another identity would be refused by the target, or worse, not.
    pub fn discover(files: &IdentityFiles, hostnqn: Option<Nqn>, hostid: Option<Uuid>) -> Result<Self, IdentityError> {
        let (hostnqn, id_of_nqn) = match hostnqn {
            Some(nqn) => (Some(nqn), None),
            None => (read_hostnqn(&files.hostnqn)?, read_hostid(&files.hostid)?),
        };
        let hostid = hostid.or(id_of_nqn).or_else(|| hostnqn.as_ref().and_then(Nqn::uuid));
        let (hostid, source) = match (hostid, &hostnqn) {
            (Some(id), _) => (id, IdentitySource::Configured),
            (None, None) => machine_uuid(&files.machine_id)?,
            (None, Some(nqn)) => {
                let (machine, source) = machine_uuid(&files.machine_id)?;
                (Uuid::new_v5(&machine, nqn.as_str().as_bytes()), source)
            }
        };
        Ok(Self { hostnqn: hostnqn.unwrap_or_else(|| Nqn::from_uuid(hostid)), hostid, source })
    }
}

/// The first line of a file without the space around it; `None` if there is no file, or nothing in it.
fn read_line(path: &Path) -> Result<Option<String>, IdentityError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(IdentityError::Io { path: path.to_owned(), source }),
    }
}

fn read_hostnqn(path: &Path) -> Result<Option<Nqn>, IdentityError> {
    let Some(line) = read_line(path)? else {
        return Ok(None);
    };
    line.parse().map(Some).map_err(|reason| IdentityError::Nqn { path: path.to_owned(), reason })
}

fn read_hostid(path: &Path) -> Result<Option<Uuid>, IdentityError> {
    let Some(line) = read_line(path)? else {
        return Ok(None);
    };
    match Uuid::try_parse(&line) {
        Ok(id) if !id.is_nil() => Ok(Some(id)),
        _ => Err(IdentityError::Hostid { path: path.to_owned(), found: line }),
    }
}

/// An image that has not booted yet holds `uninitialized` instead of a machine id.
fn machine_uuid(path: &Path) -> Result<(Uuid, IdentitySource), IdentityError> {
    let line = read_line(path)?;
    Ok(match line.as_deref().map(Uuid::try_parse) {
        Some(Ok(id)) => (Uuid::new_v5(&NAMESPACE, id.as_bytes()), IdentitySource::MachineId),
        _ => (Uuid::new_v4(), IdentitySource::Random),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
    const OTHER_NQN: &str = "nqn.2026-11.org.example:host";
    const ID: &str = "99999999-2222-3333-4444-555555555555";
    const MACHINE: &str = "0123456789abcdef0123456789abcdef\n";

    /// A machine with these files.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn with(files: &[(&str, &str)]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            for (name, content) in files {
                fs::write(dir.path().join(name), content).unwrap();
            }
            Self(dir)
        }

        fn files(&self) -> IdentityFiles {
            let path = |name| self.0.path().join(name);
            IdentityFiles { hostnqn: path("hostnqn"), hostid: path("hostid"), machine_id: path("machine-id") }
        }

        fn discover(&self) -> Result<HostIdentity, IdentityError> {
            HostIdentity::discover(&self.files(), None, None)
        }
    }

    fn expect(identity: &HostIdentity, hostnqn: &str, hostid: &str, source: IdentitySource) {
        let found = (identity.hostnqn.as_str(), identity.hostid.to_string());
        assert_eq!((found.0, found.1.as_str(), identity.source), (hostnqn, hostid, source));
    }

    #[test]
    fn the_files_of_nvme_cli_go_before_the_machine_id() {
        let machine = Machine::with(&[("hostnqn", &format!(" {NQN}\n")), ("hostid", &format!("{ID}\n")), ("machine-id", MACHINE)]);
        expect(&machine.discover().unwrap(), NQN, ID, IdentitySource::Configured);
    }

    #[test]
    fn the_command_line_goes_before_the_files() {
        let machine = Machine::with(&[("hostnqn", NQN), ("hostid", ID)]);
        let id = Uuid::from_u128(5);
        let identity = HostIdentity::discover(&machine.files(), OTHER_NQN.parse().ok(), Some(id)).unwrap();
        expect(&identity, OTHER_NQN, &id.to_string(), IdentitySource::Configured);
    }

    #[test]
    fn half_an_identity_gives_the_other_half() {
        let uuid = &NQN[NQN.len() - 36..];
        expect(&Machine::with(&[("hostnqn", NQN)]).discover().unwrap(), NQN, uuid, IdentitySource::Configured);
        let from_id = format!("nqn.2014-08.org.nvmexpress:uuid:{ID}");
        expect(&Machine::with(&[("hostid", ID)]).discover().unwrap(), &from_id, ID, IdentitySource::Configured);
    }

    #[test]
    fn the_id_of_the_file_does_not_go_with_another_nqn() {
        let machine = Machine::with(&[("hostnqn", OTHER_NQN), ("hostid", ID), ("machine-id", MACHINE)]);
        let discover = |nqn: &str| HostIdentity::discover(&machine.files(), nqn.parse().ok(), None).unwrap();
        let uuid = &NQN[NQN.len() - 36..];
        expect(&discover(NQN), NQN, uuid, IdentitySource::Configured);
        let [a, b] = ["nqn.2026-11.org.example:a", "nqn.2026-11.org.example:b"].map(discover);
        assert_eq!(a.source, IdentitySource::MachineId);
        assert_eq!(a, discover("nqn.2026-11.org.example:a"));
        assert!(a.hostid != b.hostid && a.hostid.to_string() != ID);
    }

    #[test]
    fn the_machine_id_gives_the_same_identity_each_time_and_is_not_told() {
        let machine = Machine::with(&[("hostnqn", "\n"), ("machine-id", MACHINE)]);
        let identity = machine.discover().unwrap();
        assert_eq!(identity, machine.discover().unwrap());
        expect(
            &identity,
            "nqn.2014-08.org.nvmexpress:uuid:6266ea56-92a5-503f-8b8a-7febabd707b1",
            "6266ea56-92a5-503f-8b8a-7febabd707b1",
            IdentitySource::MachineId,
        );
        let other = Machine::with(&[("machine-id", "1123456789abcdef0123456789abcdef\n")]);
        assert_ne!(identity.hostid, other.discover().unwrap().hostid);
    }

    #[test]
    fn a_machine_without_an_id_has_another_identity_each_time() {
        for files in [&[][..], &[("machine-id", "")], &[("machine-id", "uninitialized\n")]] {
            let machine = Machine::with(files);
            let identity = machine.discover().unwrap();
            assert_eq!(identity.source, IdentitySource::Random);
            assert_eq!(identity.hostnqn.uuid(), Some(identity.hostid));
            assert_ne!(identity.hostid, machine.discover().unwrap().hostid);
        }
    }

    #[test]
    fn a_file_that_is_wrong_is_an_error_that_names_it() {
        let machine = Machine::with(&[("hostnqn", "host\n"), ("machine-id", MACHINE)]);
        assert_eq!(
            machine.discover().unwrap_err().to_string(),
            format!(
                "{}: `host` is not an NQN: it must start with `nqn.`, as in nqn.2026-11.org.example:NAME",
                machine.files().hostnqn.display()
            )
        );
        for text in ["7", "00000000-0000-0000-0000-000000000000"] {
            let machine = Machine::with(&[("hostid", text)]);
            assert_eq!(
                machine.discover().unwrap_err().to_string(),
                format!("{}: `{text}` is not a host id: write a UUID, as `uuidgen` prints it", machine.files().hostid.display())
            );
        }
        let machine = Machine::with(&[]);
        let files = IdentityFiles { hostnqn: machine.0.path().into(), ..machine.files() };
        assert_eq!(
            HostIdentity::discover(&files, None, None).unwrap_err().to_string(),
            format!("cannot read {}: Is a directory", machine.0.path().display())
        );
    }
}
