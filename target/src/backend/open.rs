//! Opening a store: everything that may block, wait or be refused happens here, before the first I/O.

use std::fs::{self, File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use godwit_memory::{MemoryDisk, PAGE_BYTES};
use godwit_reactor::BackingFile;
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;
use uuid::Uuid;

use super::lock::{self, Wait};
use super::mark::{self, BootId, Mark};
use super::storage::{attribute, kind_of, sysfs};
use super::{Description, Identity, Kind, OpenError, StorageId, Store};

/// What a store shall be kept in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A regular file.
    File {
        /// Where it is.
        path: PathBuf,
        /// Its size in bytes: of one that exists, a check; of one that shall be made, its size.
        size: Option<u64>,
        /// Whether to make it, sparse and for this user alone, if it does not exist.
        create: bool,
    },
    /// A block device.
    Device {
        /// Where it is.
        path: PathBuf,
    },
    /// Memory of this process.
    Memory {
        /// Its size in bytes.
        size: u64,
    },
}

/// How to open a store.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// What it is kept in.
    pub source: Source,
    /// Bytes of a logical block: 512, 1024, 2048 or 4096.
    pub block_size: u32,
    /// Whether it must not be changed. Several processes may serve one file so.
    pub read_only: bool,
    /// A UUID in place of the one that follows from what the store is.
    pub uuid: Option<Uuid>,
    /// An NGUID in place of the UUID's bytes.
    pub nguid: Option<[u8; 16]>,
    /// How long to wait for a lock that another process holds.
    pub lock_wait: Duration,
    /// The folder for the marks of devices: see the module `mark`.
    pub state_dir: PathBuf,
    /// The run of the machine that this is; absent asks the kernel.
    pub boot: Option<BootId>,
}

/// Where marks of devices are unless it is said otherwise: what systemd made for the daemon, or `/var/lib/godwit`; or the place of an ordinary user.
#[must_use]
pub fn usual_state_dir() -> PathBuf {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // systemd names all of them, with colons between.
    let of_service = from("STATE_DIRECTORY").and_then(|all| all.to_str().and_then(|all| all.split(':').next()).map(PathBuf::from));
    let of_user = || {
        let state = from("XDG_STATE_HOME").or_else(|| from("HOME").map(|home| home.join(".local/state")))?;
        (!rustix::process::geteuid().is_root()).then(|| state.join("godwit"))
    };
    of_service.or_else(of_user).unwrap_or_else(|| PathBuf::from("/var/lib/godwit"))
}

impl OpenOptions {
    /// Blocks of 4096 bytes, writable, with an identity of its own; waits for a lock for 30 seconds.
    pub fn new(source: Source) -> Self {
        Self {
            source,
            block_size: 4096,
            read_only: false,
            uuid: None,
            nguid: None,
            lock_wait: Duration::from_secs(30),
            state_dir: usual_state_dir(),
            boot: None,
        }
    }

    fn identity(&self, found: impl FnOnce() -> Result<Identity, OpenError>) -> Result<Identity, OpenError> {
        let mut identity = self.uuid.map_or_else(found, |uuid| Ok(Identity::of_uuid(uuid)))?;
        if let Some(nguid) = self.nguid {
            identity.nguid = nguid;
        }
        Ok(identity)
    }

    fn boot(&self) -> Result<BootId, OpenError> {
        let failed = |error| OpenError::System { what: "/proc/sys/kernel/random/boot_id".to_owned(), doing: "read it", error };
        self.boot.map_or_else(|| BootId::current().map_err(failed), Ok)
    }

    /// Gives a store its mark. `place` is where that is; `natural` is what the store is, whatever it is called.
    fn mark(
        &self,
        store: Store<BackingFile>,
        path: &Path,
        place: io::Result<PathBuf>,
        natural: Option<Identity>,
        made: bool,
    ) -> Result<Store<BackingFile>, OpenError> {
        let boot = self.boot()?;
        let natural = natural.unwrap_or_else(|| store.identity()).uuid;
        if self.read_only {
            let count = place.map_or(0, |place| mark::look(&place, natural, boot));
            return Ok(store.with_unsafe_shutdowns(count));
        }
        let failed = |mark: PathBuf| move |error| OpenError::Mark { path: path.to_owned(), mark, error };
        let place = place.map_err(failed(path.to_owned()))?;
        let mark = Mark::take(place.clone(), natural, boot, made).map_err(failed(place))?;
        Ok(store.with_mark(mark))
    }

    fn check_size(&self, what: &str, size_bytes: u64) -> Result<(), OpenError> {
        let (what, block_bytes) = (what.to_owned(), self.block_size);
        if size_bytes == 0 {
            Err(OpenError::Empty { what, block_bytes })
        } else if i64::try_from(size_bytes).is_err() {
            Err(OpenError::TooLarge { what, size_bytes })
        } else if !size_bytes.is_multiple_of(u64::from(block_bytes)) {
            Err(OpenError::PartialBlock { what, size_bytes, block_bytes })
        } else {
            Ok(())
        }
    }

    fn std_options(&self) -> fs::OpenOptions {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(!self.read_only);
        options
    }
}

impl Source {
    /// What lies below it now; `None` for memory, and for what does not exist.
    pub fn storage(&self) -> Option<StorageId> {
        match self {
            Self::File { path, .. } | Self::Device { path } => fs::metadata(path).ok().map(|metadata| StorageId::of(&metadata)),
            Self::Memory { .. } => None,
        }
    }

    /// Looks whether it could be opened as far as names tell: that a file or device is there and is one, or the folder of a file that shall be made.
    /// Opens nothing, and takes what this user may not look at for right.
    ///
    /// # Errors
    ///
    /// What opening it would say.
    pub fn look(&self) -> Result<(), OpenError> {
        let (path, found) = match self {
            Self::File { path, .. } | Self::Device { path } => (path, fs::metadata(path)),
            Self::Memory { .. } => return Ok(()),
        };
        match (self, found) {
            (Self::File { .. }, Ok(found)) if !found.is_file() => Err(not_a_file(path, &found)),
            (Self::Device { .. }, Ok(found)) if !found.file_type().is_block_device() => Err(not_a_device(path, &found)),
            (Self::File { create: true, .. }, Err(error)) if error.kind() == io::ErrorKind::NotFound => match fs::metadata(folder_of(path))
            {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Err(OpenError::MissingFolder { path: path.clone() }),
                _ => Ok(()),
            },
            (Self::File { .. }, Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                Err(OpenError::MissingFile { path: path.clone() })
            }
            (Self::Device { .. }, Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                Err(OpenError::MissingDevice { path: path.clone() })
            }
            _ => Ok(()),
        }
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::File { path, .. } | Self::Device { path } => Some(path),
            Self::Memory { .. } => None,
        }
    }

    /// Whether two sources are one thing. A file that shall be made is known by its folder and its name.
    fn same_as(&self, other: &Self) -> bool {
        let (Some(path), Some(other_path)) = (self.path(), other.path()) else { return false };
        match (self.storage(), other.storage()) {
            (Some(storage), Some(other_storage)) => storage == other_storage,
            (None, None) => match (place(path), place(other_path)) {
                (Some(place), Some(other_place)) => place == other_place,
                _ => path == other_path,
            },
            _ => false,
        }
    }
}

/// Folder, through all links, and name.
fn place(path: &Path) -> Option<(PathBuf, &std::ffi::OsStr)> {
    Some((folder_of(path).canonicalize().ok()?, path.file_name()?))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Checks that no two exports lie on the same file or device, under whatever names. Call it before opening any of them.
///
/// # Errors
///
/// [`OpenError::Twice`] names the two.
pub fn reject_shared_storage(sources: &[&Source]) -> Result<(), OpenError> {
    for (index, source) in sources.iter().enumerate() {
        if let Some(other) = sources[..index].iter().find(|other| other.same_as(source)) {
            let name = |source: &Source| source.path().map(|path| path.display().to_string()).unwrap_or_default();
            return Err(OpenError::Twice { first: name(other), second: name(source) });
        }
    }
    Ok(())
}

impl Store<BackingFile> {
    /// Opens a store, and locks it for this process. Blocks; waits for a lock for at most [`OpenOptions::lock_wait`].
    ///
    /// # Errors
    ///
    /// [`OpenError`] says what, where, and what to do.
    pub fn open(options: &OpenOptions) -> Result<Self, OpenError> {
        let block_bytes = options.block_size;
        if !block_bytes.is_power_of_two() || !(512..=4096).contains(&block_bytes) {
            return Err(OpenError::BlockSize { block_bytes });
        }
        match &options.source {
            Source::File { path, size, create } => open_file(options, path, *size, *create),
            Source::Device { path } => open_device(options, path),
            Source::Memory { size } => open_memory(options, *size),
        }
    }
}

fn open_file(options: &OpenOptions, path: &Path, size: Option<u64>, create: bool) -> Result<Store<BackingFile>, OpenError> {
    let what = path.display().to_string();
    let system = |doing| move |error| OpenError::System { what: path.display().to_string(), doing, error };
    if let Some(size) = size {
        options.check_size(&what, size)?;
    }
    let mut made = false;
    let file = match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => options.std_options().open(path).map_err(|error| refused(options, path, error))?,
        Ok(metadata) => return Err(not_a_file(path, &metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && create => {
            made = make_file(path, size.ok_or_else(|| OpenError::NoSize { path: path.to_owned() })?)?;
            options.std_options().open(path).map_err(|error| refused(options, path, error))?
        }
        Err(error) => return Err(refused(options, path, error)),
    };
    lock::lock(&file, path, options.read_only, options.lock_wait)?;
    let metadata = file.metadata().map_err(system("look at it"))?;
    let storage = StorageId::of(&metadata);
    if fs::metadata(path).ok().map(|named| StorageId::of(&named)) != Some(storage) {
        return Err(OpenError::Replaced { path: path.to_owned() });
    }
    let size_bytes = metadata.len();
    if let Some(wanted_bytes) = size.filter(|&wanted| wanted != size_bytes) {
        return Err(OpenError::SizeDiffers { path: path.to_owned(), found_bytes: size_bytes, wanted_bytes });
    }
    options.check_size(&what, size_bytes)?;
    let natural = Identity::of_file(&metadata);
    let identity = options.identity(|| natural.ok_or_else(|| OpenError::NoIdentity { path: path.to_owned() }))?;
    let in_memory = is_in_memory(&file).map_err(system("ask for its file system"))?;
    let mode = if in_memory { Mode::InMemory } else { choose_mode(&file, path, options.block_size)? };
    let store = store(options, mode.backing(file), path, Kind::File, size_bytes, identity, Some(storage), mode);
    options.mark(store, path, mark::beside(path), natural, made)
}

/// Makes a sparse file. A name that exists by now is left to whoever made it: false.
fn make_file(path: &Path, size_bytes: u64) -> Result<bool, OpenError> {
    let system = |doing| move |error| OpenError::System { what: path.display().to_string(), doing, error };
    let file = match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(OpenError::MissingFolder { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(denied(path, true)),
        Err(error) => return Err(system("make it")(error)),
    };
    let sized = file.set_len(size_bytes).and_then(|()| file.sync_all());
    // The name must survive a power cut as well as what will be acknowledged as written under it.
    let named = sized.and_then(|()| File::open(folder_of(path))?.sync_all());
    if named.is_err() {
        // Without its size it would stand in the way of the next attempt.
        let _ = fs::remove_file(path);
    }
    named.map(|()| true).map_err(system("give it its size"))
}

fn open_device(options: &OpenOptions, path: &Path) -> Result<Store<BackingFile>, OpenError> {
    let system = |doing| move |error| OpenError::System { what: path.display().to_string(), doing, error };
    let named = fs::metadata(path).map_err(|error| refused(options, path, error))?;
    if !named.file_type().is_block_device() {
        return Err(not_a_device(path, &named));
    }
    let number = named.rdev();
    if !options.read_only && attribute(&sysfs(number).join("ro")).as_deref() == Some("1") {
        return Err(OpenError::WriteProtected { path: path.to_owned() });
    }
    let mut file = claim_device(options, path, number)?;
    lock::lock(&file, path, options.read_only, options.lock_wait)?;
    let device_bytes = rustix::fs::ioctl_blksszget(&file).map_err(|errno| system("ask for its block size")(errno.into()))?;
    if device_bytes > options.block_size {
        return Err(OpenError::DeviceBlocks { path: path.to_owned(), device_bytes, block_bytes: options.block_size });
    }
    let size_bytes = file.seek(SeekFrom::End(0)).map_err(system("ask for its size"))?;
    options.check_size(&path.display().to_string(), size_bytes)?;
    let natural = Identity::of_device(number);
    let identity = options.identity(|| {
        Ok(natural.unwrap_or_else(|| {
            tracing::warn!("{}: the device has no serial number or other name of its own; another one under this path and of its size would pass for it; give the namespace a `uuid`", path.display());
            Identity::of_path(path, size_bytes)
        }))
    })?;
    let mode = choose_mode(&file, path, options.block_size)?;
    let storage = StorageId::of(&file.metadata().map_err(system("look at it"))?);
    let store = store(options, mode.backing(file), path, Kind::Device, size_bytes, identity, Some(storage), mode);
    let named = natural.unwrap_or(identity).uuid;
    let place = if options.read_only { Ok(()) } else { make_state_dir(&options.state_dir) };
    options.mark(store, path, place.map(|()| mark::in_state_directory(&options.state_dir, named)), natural, false)
}

fn make_state_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Opens a device for this process alone. What a killed predecessor still has in flight holds its claim, so this may take a while.
fn claim_device(options: &OpenOptions, path: &Path, number: u64) -> Result<File, OpenError> {
    let mut wait = Wait::new(path, options.lock_wait);
    let flags = i32::try_from(OFlags::EXCL.bits()).expect("a flag of open(2) is an int");
    loop {
        match options.std_options().custom_flags(flags).open(path) {
            Ok(file) => return Ok(file),
            Err(error) if lock::is_claimed(&error) => {
                let holder = lock::claimant(path, number);
                if !wait.again(|| holder.clone()) {
                    return Err(OpenError::Claimed { path: path.to_owned(), holder });
                }
            }
            Err(error) => return Err(refused(options, path, error)),
        }
    }
}

fn open_memory(options: &OpenOptions, size_bytes: u64) -> Result<Store<BackingFile>, OpenError> {
    options.check_size("memory", size_bytes)?;
    let disk = MemoryDisk::new(size_bytes).map_err(|error| OpenError::System { what: "memory".to_owned(), doing: "make it", error })?;
    let identity = options.identity(|| Ok(Identity::random()))?;
    let backing = BackingFile::Memory(Arc::new(disk));
    Ok(store(options, backing, Path::new("memory"), Kind::Memory, size_bytes, identity, None, Mode::InMemory))
}

/// How I/O reaches the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Direct,
    Buffered,
    InMemory,
}

impl Mode {
    fn backing(self, file: File) -> BackingFile {
        match self {
            Self::Direct | Self::Buffered => BackingFile::Open(Arc::new(file)),
            Self::InMemory => BackingFile::InMemory(Arc::new(file)),
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "each was found out in its own way")]
fn store(
    options: &OpenOptions,
    backing: BackingFile,
    path: &Path,
    kind: Kind,
    size_bytes: u64,
    identity: Identity,
    storage: Option<StorageId>,
    mode: Mode,
) -> Store<BackingFile> {
    let how = match mode {
        Mode::Direct => "O_DIRECT",
        Mode::Buffered => "buffered",
        Mode::InMemory => "in memory",
    };
    let description = Description {
        text: format!("{}, {how}{}", path.display(), if options.read_only { ", read-only" } else { "" }),
        kind,
        size_bytes,
        block_bytes: options.block_size,
        read_only: options.read_only,
        identity,
        storage,
        buffered: mode == Mode::Buffered,
        in_memory: mode == Mode::InMemory,
    };
    Store::opened(backing, description)
}

fn is_in_memory(file: &File) -> io::Result<bool> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    #[expect(clippy::cast_sign_loss, reason = "a number without a sign, in a field whose type differs between machines")]
    let magic = rustix::fs::fstatfs(file)?.f_type as u64 & 0xffff_ffff;
    Ok(magic == TMPFS_MAGIC || magic == RAMFS_MAGIC)
}

/// Switches the open file to direct I/O where that works for single blocks.
fn choose_mode(file: &File, path: &Path, block_bytes: u32) -> Result<Mode, OpenError> {
    let why_not = match direct(file, block_bytes) {
        Ok(None) => return Ok(Mode::Direct),
        Ok(Some(reason)) => reason,
        Err(error) => {
            return Err(OpenError::System { what: path.display().to_string(), doing: "find out whether direct I/O works", error });
        }
    };
    tracing::info!("{}: {why_not}; I/O goes through the page cache", path.display());
    Ok(Mode::Buffered)
}

/// Turns direct I/O on, or says why not.
fn direct(file: &File, block_bytes: u32) -> io::Result<Option<String>> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    match rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT) {
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some("the file system has no direct I/O".to_owned())),
        other => other?,
    }
    let reason = match direct_alignment(file) {
        Some(0) => Some("the file system has no direct I/O for this file".to_owned()),
        Some(align_bytes) if align_bytes > block_bytes => {
            Some(format!("direct I/O there needs blocks of {align_bytes} bytes and the namespace has {block_bytes}"))
        }
        // What the kernel says is right for its own file systems; what it does not say, a read of one block tells.
        Some(_) => None,
        None => {
            try_direct(file, block_bytes)?.then_some(()).map_or_else(|| Some("direct I/O of one block fails there".to_owned()), |()| None)
        }
    };
    if reason.is_some() {
        rustix::fs::fcntl_setfl(file, flags)?;
    }
    Ok(reason)
}

/// The alignment of direct I/O in the file, 0 if there is none, if the kernel knows.
fn direct_alignment(file: &File) -> Option<u32> {
    let statx = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let known = StatxFlags::from_bits_retain(statx.stx_mask).contains(StatxFlags::DIOALIGN);
    known.then_some(statx.stx_dio_offset_align)
}

fn try_direct(file: &File, block_bytes: u32) -> io::Result<bool> {
    let len = block_bytes as usize;
    let mut memory = vec![0_u8; len + PAGE_BYTES];
    let start = memory.as_ptr().align_offset(PAGE_BYTES);
    match file.read_at(&mut memory[start..start + len], 0) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(false),
        Err(error) => Err(error),
    }
}

fn refused(options: &OpenOptions, path: &Path, error: io::Error) -> OpenError {
    let device = matches!(options.source, Source::Device { .. });
    match error.kind() {
        io::ErrorKind::NotFound if device => OpenError::MissingDevice { path: path.to_owned() },
        io::ErrorKind::NotFound => OpenError::MissingFile { path: path.to_owned() },
        io::ErrorKind::PermissionDenied => denied(path, !options.read_only),
        io::ErrorKind::ReadOnlyFilesystem => OpenError::WriteProtected { path: path.to_owned() },
        _ => OpenError::System { what: path.display().to_string(), doing: "open it", error },
    }
}

fn denied(path: &Path, writing: bool) -> OpenError {
    OpenError::Denied { path: path.to_owned(), user: rustix::process::geteuid().as_raw(), writing }
}

fn not_a_device(path: &Path, metadata: &Metadata) -> OpenError {
    let advice = if metadata.is_file() { "use `file:` for it" } else { "name a device of lsblk's list" };
    OpenError::NotADevice { path: path.to_owned(), found: kind_of(metadata), advice }
}

fn not_a_file(path: &Path, metadata: &Metadata) -> OpenError {
    let advice = if metadata.file_type().is_block_device() {
        "use `device:` for it"
    } else if metadata.is_dir() {
        "name a file in it"
    } else {
        "name a regular file"
    };
    OpenError::NotAFile { path: path.to_owned(), found: kind_of(metadata), advice }
}
