//! Requests of all kinds over many NBD connections at once, and a model of what each block must hold.
//!
//! The blocks of a connection are cut into cells, each with at most one request under way. A written cell is filled with words that tell their place and
//! the version, so that a stale, torn or misplaced write is seen for what it is. A write that was not answered, or answered with an error, may or may not
//! have happened; all else is known.

use std::fmt::Write as _;
use std::fs::File;
use std::net::Shutdown;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use godwit_nbd::{Command, CommandFlags, Errno, Request};

use crate::daemon::wait_for;
use crate::nbd::{Answer, Client, Receiver, Sender};

/// Cells of a connection. Few, so that each is written again and again.
const CELLS: u32 = 40;

/// Every fourth cell does not fit a command capsule: its data go by RDMA Read.
const SMALL_LEN: u32 = 4096;
const LARGE_LEN: u32 = 64 << 10;

/// Bytes between the first cells of two connections.
const REGION_LEN: u32 = CELLS * LARGE_LEN;

/// Requests under way on one connection.
const DEPTH: usize = 24;

/// How long a request may take when nothing is broken any more.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a cell holds: zeroes, or a numbered write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version(u64);

impl Version {
    const ZEROES: Self = Self(0);

    fn word(self, address: u64) -> u64 {
        if self == Self::ZEROES {
            return 0;
        }
        address.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.0.wrapping_mul(0xD6E8_FEB8_6659_FD93)
    }

    fn content(self, place: Place) -> Vec<u8> {
        (0..u64::from(place.len)).step_by(8).flat_map(|at| self.word(place.offset + at).to_le_bytes()).collect()
    }
}

/// Where a cell is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    offset: u64,
    len: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Write(Version),
    Read,
}

/// A cell, and what it may hold.
#[derive(Clone, Debug)]
struct Cell {
    place: Place,
    possible: Vec<Version>,
    pending: Option<(u64, Action)>,
}

impl Cell {
    /// Checks what was read; from then on the cell is known.
    fn check(&mut self, data: &[u8]) -> Result<(), String> {
        let found = self.possible.iter().copied().find(|version| version.content(self.place) == data);
        if let Some(version) = found {
            self.possible = vec![version];
            return Ok(());
        }
        let Place { offset, len } = self.place;
        let mut text = format!("{len} bytes at {offset} must hold one of {:?}, but", self.possible);
        let newest = self.possible.iter().map(|version| version.0).max().unwrap_or_default() + 2 * DEPTH as u64;
        let word = |index: usize| data.get(8 * index..8 * index + 8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        for index in [0, len as usize / 16, len as usize / 8 - 1] {
            let version = (0..=newest).find(|&version| Some(Version(version).word(offset + 8 * index as u64)) == word(index));
            let _ = write!(text, " word {index} is of {version:?};");
        }
        Err(text)
    }
}

#[derive(Debug)]
struct Model {
    cells: Vec<Cell>,
    outstanding: usize,
    next_version: u64,
    next_cookie: u64,
    random: u64,
    answered: u64,
    errors: u64,
    stopping: bool,
    /// Why nothing comes any more.
    ended: Option<String>,
    /// The first thing that must not be.
    fault: Option<String>,
}

impl Model {
    fn random(&mut self, below: u64) -> u64 {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// Chooses a request for a cell that has none under way.
    fn next(&mut self) -> (Request, Option<Version>) {
        let cell = loop {
            let cell = usize::try_from(self.random(CELLS.into())).expect("a small number");
            if self.cells[cell].pending.is_none() {
                break cell;
            }
        };
        self.next_cookie += u64::from(CELLS);
        let cookie = self.next_cookie + cell as u64;
        let kind = self.random(16);
        let (command, action) = match kind {
            0..4 => (Command::Read, Action::Read),
            4 => (Command::WriteZeroes, Action::Write(Version::ZEROES)),
            _ => {
                self.next_version += 1;
                (Command::Write, Action::Write(Version(self.next_version)))
            }
        };
        let flags = if kind == 5 { CommandFlags::FUA } else { CommandFlags::NONE };
        let cell = &mut self.cells[cell];
        cell.pending = Some((cookie, action));
        self.outstanding += 1;
        let request = Request { cookie, command, flags, offset: cell.place.offset, length: cell.place.len };
        let payload = if let Action::Write(version) = action { Some(version).filter(|_| command == Command::Write) } else { None };
        (request, payload)
    }

    fn read_len(&self, cookie: u64) -> u32 {
        let cell = &self.cells[Self::cell_of(cookie)];
        if cell.pending == Some((cookie, Action::Read)) { cell.place.len } else { 0 }
    }

    fn cell_of(cookie: u64) -> usize {
        usize::try_from(cookie % u64::from(CELLS)).expect("a small number")
    }

    fn settle(&mut self, answer: &Answer) -> Result<(), String> {
        let cell = &mut self.cells[Self::cell_of(answer.cookie)];
        let (_, action) = cell
            .pending
            .take_if(|(cookie, _)| *cookie == answer.cookie)
            .ok_or_else(|| format!("{} is answered, but not under way (the cell has {:?})", answer.cookie, cell.pending))?;
        self.outstanding -= 1;
        self.answered += 1;
        match (action, answer.errno) {
            (Action::Write(version), Errno::OK) => cell.possible = vec![version],
            (Action::Read, Errno::OK) => cell.check(&answer.data)?,
            (action, _) => {
                self.errors += 1;
                if let Action::Write(version) = action {
                    cell.possible.push(version);
                }
            }
        }
        Ok(())
    }
}

/// One connection with its two threads.
#[derive(Debug)]
struct Connection {
    shared: Arc<Shared>,
    stream: UnixStream,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    model: Mutex<Model>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, sender: &mut Sender) {
        loop {
            let idle = |model: &mut Model| !model.stopping && model.ended.is_none() && model.outstanding >= DEPTH;
            let mut model = self.changed.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
            if model.stopping || model.ended.is_some() {
                return;
            }
            let (request, version) = model.next();
            drop(model);
            let place = Place { offset: request.offset, len: request.length };
            let payload = version.map(|version| version.content(place)).unwrap_or_default();
            if let Err(error) = sender.send(&request, &payload) {
                return self.end(&error.to_string());
            }
        }
    }

    fn receive(&self, receiver: &mut Receiver) {
        loop {
            match receiver.receive(|cookie| self.lock().read_len(cookie)) {
                Ok(answer) => {
                    let mut model = self.lock();
                    if let Err(fault) = model.settle(&answer) {
                        model.fault.get_or_insert(fault);
                    }
                    drop(model);
                    self.changed.notify_all();
                }
                Err(error) => return self.end(&error.to_string()),
            }
        }
    }

    fn end(&self, why: &str) {
        self.lock().ended.get_or_insert_with(|| why.to_owned());
        self.changed.notify_all();
    }
}

impl Connection {
    fn start(socket: &Path, cells: Vec<Cell>, seed: u64) -> Self {
        let stream = UnixStream::connect(socket).expect("the volume is served");
        let (mut sender, mut receiver) = Client::on(stream.try_clone().expect("a second handle")).expect("the handshake").split();
        let next_version = cells.iter().flat_map(|cell| &cell.possible).map(|version| version.0).max().unwrap_or_default();
        let model = Model {
            cells,
            outstanding: 0,
            next_version,
            next_cookie: 0,
            random: seed,
            answered: 0,
            errors: 0,
            stopping: false,
            ended: None,
            fault: None,
        };
        let shared = Arc::new(Shared { model: Mutex::new(model), changed: Condvar::new() });
        let (sending, receiving) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = vec![thread::spawn(move || sending.send(&mut sender)), thread::spawn(move || receiving.receive(&mut receiver))];
        Self { shared, stream, threads }
    }

    /// Ends both threads; whatever is under way stays unanswered.
    fn close(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.changed.notify_all();
        let _ = self.stream.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A load that runs until it is told otherwise.
#[derive(Debug)]
pub struct Load {
    connections: Vec<Connection>,
}

impl Load {
    /// Starts on `connections` connections to a volume that holds zeroes.
    ///
    /// # Panics
    ///
    /// When the volume is not served.
    pub fn start(socket: &Path, connections: usize) -> Self {
        Self::resume(socket, Contents::zeroes(connections))
    }

    /// Starts on a volume that was loaded before.
    ///
    /// # Panics
    ///
    /// When the volume is not served.
    pub fn resume(socket: &Path, contents: Contents) -> Self {
        // Seeds differ by connection only: what differs between runs is timing, which no seed could repeat.
        let connections = contents.cells.chunks(CELLS as usize).zip(1_u64..);
        let connections = connections.map(|(cells, number)| Connection::start(socket, cells.to_vec(), number << 20 | 0x5EED)).collect();
        Self { connections }
    }

    /// How many requests were answered.
    pub fn answered(&self) -> u64 {
        self.connections.iter().map(|connection| connection.shared.lock().answered).sum()
    }

    /// How many of them with an error.
    pub fn errors(&self) -> u64 {
        self.connections.iter().map(|connection| connection.shared.lock().errors).sum()
    }

    /// Waits until each connection got `count` more answers.
    ///
    /// # Panics
    ///
    /// When they do not come within `limit`, or something is wrong with the answers.
    pub fn progress(&self, count: u64, limit: Duration) {
        for connection in &self.connections {
            let from = connection.shared.lock().answered;
            wait_for("the load goes on", limit, || {
                self.assert_sound();
                connection.shared.lock().answered >= from + count
            });
        }
    }

    /// Asserts that no answer was wrong so far, and no connection has ended.
    ///
    /// # Panics
    ///
    /// When one has.
    pub fn assert_sound(&self) {
        for connection in &self.connections {
            let model = connection.shared.lock();
            assert_eq!(model.fault, None);
            assert_eq!(model.ended, None);
        }
    }

    /// Lets every request be answered, reads all blocks back, and ends.
    ///
    /// # Panics
    ///
    /// When a request failed, or is not answered, or a block does not hold what it must.
    pub fn finish(self, socket: &Path) -> Contents {
        assert_eq!(self.errors(), 0, "requests failed");
        let mut contents = self.drain();
        contents.verify(socket);
        contents
    }

    /// Lets every request be answered, with or without an error, and ends.
    ///
    /// # Panics
    ///
    /// When a request is not answered, or an answer was wrong.
    pub fn drain(self) -> Contents {
        for connection in &self.connections {
            connection.shared.lock().stopping = true;
            connection.shared.changed.notify_all();
        }
        for connection in &self.connections {
            wait_for("all requests are answered", PATIENCE, || {
                self.assert_sound();
                connection.shared.lock().outstanding == 0
            });
        }
        self.abandon()
    }

    /// Waits for the end of all connections.
    ///
    /// # Panics
    ///
    /// When they do not end within `limit`, or an answer was wrong.
    pub fn ended(self, limit: Duration) -> Contents {
        for connection in &self.connections {
            wait_for("the connection ends", limit, || connection.shared.lock().ended.is_some());
        }
        self.abandon()
    }

    /// Breaks all connections: what is under way may happen or not.
    ///
    /// # Panics
    ///
    /// When an answer was wrong.
    pub fn abandon(mut self) -> Contents {
        let mut cells = Vec::new();
        for connection in &mut self.connections {
            connection.close();
            let model = connection.shared.lock();
            assert_eq!(model.fault, None);
            cells.extend(model.cells.iter().cloned().map(|mut cell| {
                if let Some((_, Action::Write(version))) = cell.pending.take() {
                    cell.possible.push(version);
                }
                cell
            }));
        }
        Contents { cells }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for connection in &mut self.connections {
            connection.close();
        }
    }
}

/// What a volume must hold after a load.
#[derive(Clone, Debug)]
pub struct Contents {
    cells: Vec<Cell>,
}

impl Contents {
    fn zeroes(connections: usize) -> Self {
        let mut cells = Vec::new();
        for region in (0_u32..).step_by(REGION_LEN as usize).take(connections).map(u64::from) {
            let mut offset = region;
            for cell in 0..CELLS {
                let len = if cell % 4 == 3 { LARGE_LEN } else { SMALL_LEN };
                cells.push(Cell { place: Place { offset, len }, possible: vec![Version::ZEROES], pending: None });
                offset += u64::from(len);
            }
        }
        Self { cells }
    }

    /// Reads all blocks through NBD.
    ///
    /// # Panics
    ///
    /// When one does not hold what it must.
    pub fn verify(&mut self, socket: &Path) {
        let mut client = Client::connect(socket).expect("the volume is served");
        self.check(|place| client.read(place.offset, place.len));
    }

    /// Reads all blocks from the backing file.
    ///
    /// # Panics
    ///
    /// When one does not hold what it must.
    pub fn verify_file(&mut self, path: &Path) {
        let file = File::open(path).expect("the backing file");
        self.check(|place| {
            let mut data = vec![0; place.len as usize];
            file.read_exact_at(&mut data, place.offset).expect("the file is long enough");
            data
        });
    }

    fn check(&mut self, mut read: impl FnMut(Place) -> Vec<u8>) {
        for cell in &mut self.cells {
            if let Err(fault) = cell.check(&read(cell.place)) {
                panic!("{fault}");
            }
        }
    }
}

/// Bytes that a volume must have for so many connections.
pub const fn size_bytes(connections: u64) -> u64 {
    connections * REGION_LEN as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell() -> Cell {
        Cell { place: Place { offset: 8192, len: SMALL_LEN }, possible: vec![Version(3), Version(5)], pending: None }
    }

    #[test]
    fn a_cell_may_hold_what_is_possible_and_is_known_once_read() {
        let mut cell = cell();
        assert_eq!(cell.check(&Version(5).content(cell.place)), Ok(()));
        assert_eq!(cell.possible, [Version(5)]);
        assert!(cell.check(&Version(3).content(cell.place)).is_err());
    }

    #[test]
    fn a_stale_torn_or_misplaced_write_is_no_content() {
        let mut cell = cell();
        let place = cell.place;
        let mut torn = Version(3).content(place);
        torn[2048..].copy_from_slice(&Version(5).content(place)[2048..]);
        let elsewhere = Version(3).content(Place { offset: 12288, len: SMALL_LEN });
        for wrong in [Version(4).content(place), Version::ZEROES.content(place), torn, elsewhere, Vec::new()] {
            assert!(cell.check(&wrong).is_err());
        }
        assert_eq!(cell.possible.len(), 2);
    }

    #[test]
    fn an_answer_counts_once_and_for_its_own_request() {
        let connection = Contents::zeroes(1).cells;
        let mut model = Model {
            cells: connection,
            outstanding: 0,
            next_version: 0,
            next_cookie: 0,
            random: 1,
            answered: 0,
            errors: 0,
            stopping: false,
            ended: None,
            fault: None,
        };
        let (request, _) = model.next();
        let answer = |cookie, errno| Answer { cookie, errno, data: Vec::new() };
        assert!(model.settle(&answer(request.cookie + u64::from(CELLS), Errno::EIO)).is_err());
        assert!(model.settle(&answer(request.cookie, Errno::EIO)).is_ok());
        assert!(model.settle(&answer(request.cookie, Errno::EIO)).is_err());
        assert_eq!((model.answered, model.errors, model.outstanding), (1, 1, 0));
    }
}
