//! A system that runs: its processes, its files, and where fio finds it.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use godwit_initiator::demo::fio::Place;
use godwit_initiator::demo::process::cpu_time;
use tempfile::TempDir;

use super::nbdkit::Nbdkit;
use super::process;
use super::system::{Backend, Chain, System};
use crate::daemon::{self, NotReady, Process, free_port, url};

/// Where files on tmpfs are.
pub const TMPFS: &str = "/dev/shm";

/// Why a system does not run.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The operating system.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What it answered.
        source: io::Error,
    },
    /// A process did not come up.
    #[error(transparent)]
    NotReady(#[from] NotReady),
    /// nbdkit did not come up.
    #[error("nbdkit did not come up; it said: {0}")]
    Nbdkit(String),
}

/// A folder for sockets, configurations and reports, in memory where the machine has such: nothing that is measured waits for a disk that others use.
///
/// # Errors
///
/// When the folder for temporary files cannot be written to either.
pub fn scratch() -> io::Result<TempDir> {
    let folder = tempfile::Builder::new;
    folder().prefix("godwit-bench-").tempdir_in(TMPFS).or_else(|_| folder().prefix("godwit-bench-").tempdir())
}

/// Folders of our own, removed with everything in them.
#[derive(Debug)]
pub struct Folders {
    sockets: TempDir,
    tmpfs: Option<TempDir>,
    disk: TempDir,
}

impl Folders {
    /// Makes them; the one on tmpfs where the machine has that, the one on disk in `dir`.
    ///
    /// # Errors
    ///
    /// When `dir` or the folder for temporary files cannot be written to.
    pub fn make(dir: &Path) -> Result<Self, StageError> {
        let make = |parent: &Path| {
            let absolute = fs::canonicalize(parent);
            let folder = absolute.and_then(|parent| tempfile::Builder::new().prefix("godwit-bench-").tempdir_in(parent));
            folder.map_err(|source| StageError::Io { what: format!("make a folder in {}", parent.display()), source })
        };
        Ok(Self { sockets: make(&std::env::temp_dir())?, tmpfs: make(Path::new(TMPFS)).ok(), disk: make(dir)? })
    }

    /// The folder for the files of a backend, if it has one.
    pub fn of(&self, backend: Backend) -> Option<&Path> {
        match backend {
            Backend::Memory => None,
            Backend::Tmpfs => self.tmpfs.as_ref().map(TempDir::path),
            Backend::Disk => Some(self.disk.path()),
        }
    }
}

/// A process that serves.
#[derive(Debug)]
enum Server {
    Child(Process),
    Nbdkit(Nbdkit),
}

impl Server {
    fn pid(&self) -> u32 {
        match self {
            Self::Child(process) => process.pid(),
            Self::Nbdkit(nbdkit) => nbdkit.pid(),
        }
    }
}

/// A running system. Dropping it ends its processes and removes its image.
#[derive(Debug)]
pub struct Stage {
    /// Which.
    pub system: System,
    /// Where fio finds it.
    pub place: Place,
    /// From the client to the storage, which is also the order in which they end.
    servers: Vec<Server>,
    image: Option<PathBuf>,
}

impl Stage {
    /// Starts a system with an image of its own.
    ///
    /// # Errors
    ///
    /// When one of its processes does not come up; the others are ended.
    pub fn set(system: System, folders: &Folders, size_bytes: u64) -> Result<Self, StageError> {
        let image = folders.of(system.backend).map(|folder| folder.join(format!("{}.img", system.name)));
        let mut stage = Self { system, place: Place::File(PathBuf::new()), servers: Vec::new(), image };
        let builder = Builder { system, folder: folders.sockets.path(), image: stage.image.clone(), size_bytes };
        if let Some(image) = &stage.image {
            let made = File::create(image).and_then(|file| file.set_len(size_bytes));
            made.map_err(|source| StageError::Io { what: format!("make {}", image.display()), source })?;
        }
        stage.place = match system.chain {
            Chain::Raw => Place::File(builder.image.clone().unwrap_or_default()),
            Chain::Godwit => builder.godwit("off", &mut stage.servers)?,
            Chain::GodwitCrc => builder.godwit("on", &mut stage.servers)?,
            Chain::NbdkitTwoHops => builder.nbdkit_two_hops(&mut stage.servers)?,
            Chain::QemuTwoHops => builder.qemu_two_hops(&mut stage.servers)?,
            Chain::NbdkitUnix => builder.nbdkit_unix(&mut stage.servers)?,
            Chain::NbdkitTcp => builder.nbdkit_tcp(&mut stage.servers)?,
            Chain::QemuNbd => builder.qemu_nbd(&mut stage.servers)?,
        };
        Ok(stage)
    }

    /// Processor time of the serving processes so far; nothing where none serves or one is gone.
    pub fn cpu_time(&self) -> Option<Duration> {
        self.sum(|server| cpu_time(server.pid()))
    }

    /// The most memory that the serving processes had, together, in KiB.
    pub fn peak_resident_kib(&self) -> Option<u64> {
        self.sum(|server| process::peak_resident_kib(server.pid()))
    }

    fn sum<T: std::iter::Sum>(&self, figure: impl Fn(&Server) -> Option<T>) -> Option<T> {
        if self.servers.is_empty() { None } else { self.servers.iter().map(figure).sum() }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.servers.drain(..).for_each(drop);
        if let Some(image) = &self.image {
            let _ = fs::remove_file(image);
        }
    }
}

/// Starts the processes of one system. Each enters `servers` at once, so that it ends whatever happens next.
struct Builder<'a> {
    system: System,
    folder: &'a Path,
    image: Option<PathBuf>,
    size_bytes: u64,
}

impl Builder<'_> {
    fn godwit(&self, crc: &str, servers: &mut Vec<Server>) -> Result<Place, StageError> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let export = match &self.image {
            Some(image) => format!("{},size={}", image.display(), self.size_bytes),
            None => format!("memory:{}", self.size_bytes),
        };
        let mut target = Command::new(daemon::binary("godwit-target"));
        target.args(["--export", &export, "--listen", &format!("iwarp://{address}?crc={crc}"), "--nqn", daemon::NQN]);
        start_child(servers, &mut target, || TcpStream::connect(address).is_ok())?;
        let socket = self.path("sock");
        let mut initiator = Command::new(daemon::binary("godwit"));
        initiator.args(["connect", &format!("{}?crc={crc}", url(address)), "--nbd", &format!("unix:{}", socket.display())]);
        start_child(servers, &mut initiator, || UnixStream::connect(&socket).is_ok())?;
        Ok(on_unix(&socket))
    }

    fn nbdkit_two_hops(&self, servers: &mut Vec<Server>) -> Result<Place, StageError> {
        let port = self.storage_on_tcp(servers)?;
        let socket = self.path("sock");
        let mut arguments = unix_arguments(&socket);
        arguments.extend(["nbd".to_owned(), format!("uri=nbd://127.0.0.1:{port}"), "shared=true".to_owned()]);
        servers.insert(0, Server::Nbdkit(Nbdkit::start(&self.path("front.pid"), &arguments)?));
        Ok(on_unix(&socket))
    }

    fn qemu_two_hops(&self, servers: &mut Vec<Server>) -> Result<Place, StageError> {
        let port = self.storage_on_tcp(servers)?;
        let socket = self.path("sock");
        let mut command = Command::new("qemu-storage-daemon");
        command.args(["--blockdev", &format!("driver=nbd,node-name=d,server.type=inet,server.host=127.0.0.1,server.port={port}")]);
        command.args(["--nbd-server", &format!("addr.type=unix,addr.path={},max-connections=8", socket.display())]);
        command.args(["--export", "type=nbd,id=e,node-name=d,name=,writable=on"]);
        start_child(servers, &mut command, || UnixStream::connect(&socket).is_ok())?;
        Ok(on_unix(&socket))
    }

    fn nbdkit_unix(&self, servers: &mut Vec<Server>) -> Result<Place, StageError> {
        let socket = self.path("sock");
        let mut arguments = unix_arguments(&socket);
        arguments.extend(self.storage());
        servers.push(Server::Nbdkit(Nbdkit::start(&self.path("pid"), &arguments)?));
        Ok(on_unix(&socket))
    }

    fn nbdkit_tcp(&self, servers: &mut Vec<Server>) -> Result<Place, StageError> {
        let port = self.storage_on_tcp(servers)?;
        Ok(Place::Nbd(format!("nbd://127.0.0.1:{port}")))
    }

    fn qemu_nbd(&self, servers: &mut Vec<Server>) -> Result<Place, StageError> {
        let socket = self.path("sock");
        let mut command = Command::new("qemu-nbd");
        command.args(["--format=raw", "--persistent", "--shared=8", &format!("--socket={}", socket.display())]);
        if self.system.backend == Backend::Disk {
            command.args(["--cache=none", "--aio=io_uring"]);
        }
        command.arg(self.image.clone().unwrap_or_default());
        start_child(servers, &mut command, || UnixStream::connect(&socket).is_ok())?;
        Ok(on_unix(&socket))
    }

    fn storage_on_tcp(&self, servers: &mut Vec<Server>) -> Result<u16, StageError> {
        let port = free_port();
        let mut arguments = ["-i", "127.0.0.1", "-p", &port.to_string()].map(str::to_owned).to_vec();
        arguments.extend(self.storage());
        servers.push(Server::Nbdkit(Nbdkit::start(&self.path("back.pid"), &arguments)?));
        Ok(port)
    }

    /// The plugin of nbdkit that has the bytes.
    fn storage(&self) -> [String; 2] {
        let what = self.image.as_ref().map_or_else(|| self.size_bytes.to_string(), |image| image.display().to_string());
        [self.system.plugin().to_owned(), what]
    }

    fn path(&self, extension: &str) -> PathBuf {
        self.folder.join(format!("{}.{extension}", self.system.name))
    }
}

fn start_child(servers: &mut Vec<Server>, command: &mut Command, is_ready: impl FnMut() -> bool) -> Result<(), StageError> {
    let started = Process::try_start(command);
    let what = || format!("start {}", command.get_program().to_string_lossy());
    let mut process = started.map_err(|source| StageError::Io { what: what(), source })?;
    process.await_ready(is_ready)?;
    servers.insert(0, Server::Child(process));
    Ok(())
}

fn unix_arguments(socket: &Path) -> Vec<String> {
    vec!["-U".to_owned(), socket.display().to_string()]
}

fn on_unix(socket: &Path) -> Place {
    Place::Nbd(format!("nbd+unix:///?socket={}", socket.display()))
}

/// What a system's processes do while another one is measured.
#[derive(Debug)]
pub struct Idle {
    since: Instant,
    cpu_before: Duration,
    busy: Duration,
    cpu_busy: Duration,
}

impl Idle {
    /// Begins to watch.
    pub fn watch(stage: &Stage) -> Self {
        let cpu_before = stage.cpu_time().unwrap_or_default();
        Self { since: Instant::now(), cpu_before, busy: Duration::ZERO, cpu_busy: Duration::ZERO }
    }

    /// A run of this system took so long, and so much processor time.
    pub fn was_busy(&mut self, time: Duration, cpu: Duration) {
        self.busy += time;
        self.cpu_busy += cpu;
    }

    /// Per cent of one core in the time between the runs; nothing where that was too short to tell.
    pub fn per_cent(&self, stage: &Stage) -> Option<f64> {
        let cpu = stage.cpu_time()?.saturating_sub(self.cpu_before);
        self.per_cent_of(self.since.elapsed(), cpu)
    }

    fn per_cent_of(&self, elapsed: Duration, cpu: Duration) -> Option<f64> {
        let idle = elapsed.saturating_sub(self.busy);
        let cpu_idle = cpu.saturating_sub(self.cpu_busy);
        (idle >= Duration::from_secs(2)).then(|| 100.0 * cpu_idle.as_secs_f64() / idle.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_load_leaves_out_the_runs() {
        let mut idle = Idle { since: Instant::now(), cpu_before: Duration::ZERO, busy: Duration::ZERO, cpu_busy: Duration::ZERO };
        idle.was_busy(Duration::from_secs(3), Duration::from_secs(5));
        idle.was_busy(Duration::from_secs(3), Duration::from_secs(4));
        assert_eq!(idle.per_cent_of(Duration::from_secs(16), Duration::from_secs(10)), Some(10.0));
        assert_eq!(idle.per_cent_of(Duration::from_secs(7), Duration::from_secs(10)), None);
    }

    #[test]
    fn a_stage_leaves_nothing_behind() {
        let parent = tempfile::tempdir().unwrap();
        let folders = Folders::make(parent.path()).unwrap();
        let stage = Stage::set(System::named("raw-disk").unwrap(), &folders, 1 << 20).unwrap();
        let Place::File(image) = stage.place.clone() else { panic!("raw is a file") };
        assert_eq!(fs::metadata(&image).unwrap().len(), 1 << 20);
        assert_eq!((stage.cpu_time(), stage.peak_resident_kib()), (None, None));
        drop(stage);
        assert!(!image.exists());
        drop(folders);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
