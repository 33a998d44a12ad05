//! The floor: what a socket and the bare framing cost. Blocks are read over one stream as iWARP frames them, by two threads, and nothing else
//! is done: no NVMe, no CRC. Replies that are due leave in one call, and each block is copied once where it arrives.
//!
//! Threads that spin have a core each, which is the least that a round trip can take; those that block show what a wake-up costs.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::case::Case;
use super::contest::{ContestError, Contestant};
use super::cores::Pinned;
use super::sample::Figures;

/// MPA's length, the header of an untagged segment, a command, MPA's CRC.
const REQUEST_BYTES: usize = 2 + 18 + 64 + 4;

/// MPA's length and the header of a tagged segment.
const HEADER_BYTES: usize = 2 + 14;

const BLOCK_BYTES: usize = 4096;

/// MPA's CRC of the data; a response in a frame of its own.
const TRAILER_BYTES: usize = 4 + 2 + 18 + 16 + 4;

const REPLY_BYTES: usize = HEADER_BYTES + BLOCK_BYTES + TRAILER_BYTES;

/// Replies that leave in one call at most: each is three pieces, of which the kernel takes 1024.
const BATCH: usize = 256;

/// Most requests under way.
const MOST_DEPTH: usize = 1024;

/// Blocks that are read from, and those that are read to.
const BLOCKS: usize = 65_536;
const PLACES: usize = 1024;

const BUFFER_BYTES: usize = 256 << 10;

/// What carries the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// TCP over loopback.
    Tcp,
    /// A Unix socket.
    Unix,
}

/// What a thread does when there is nothing to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It asks again.
    Spin,
    /// It sleeps.
    Block,
}

trait Stream: Read + Write + Send {
    fn set_nonblocking(&self, is: bool) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_nonblocking(&self, is: bool) -> io::Result<()> {
        Self::set_nonblocking(self, is)
    }
}

impl Stream for UnixStream {
    fn set_nonblocking(&self, is: bool) -> io::Result<()> {
        Self::set_nonblocking(self, is)
    }
}

/// Both ends of a connection.
fn connect(carrier: Carrier) -> io::Result<[Box<dyn Stream>; 2]> {
    match carrier {
        Carrier::Tcp => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let one = TcpStream::connect(listener.local_addr()?)?;
            let (other, _) = listener.accept()?;
            one.set_nodelay(true)?;
            other.set_nodelay(true)?;
            Ok([Box::new(one), Box::new(other)])
        }
        Carrier::Unix => UnixStream::pair().map(|(one, other)| -> [Box<dyn Stream>; 2] { [Box::new(one), Box::new(other)] }),
    }
}

/// What one floor has to be measured.
#[derive(Debug)]
pub struct Floor {
    name: &'static str,
    carrier: Carrier,
    wait: Wait,
    cores: [usize; 2],
    blocks: Arc<Blocks>,
}

impl Floor {
    /// All of them.
    pub fn all(cores: [usize; 2]) -> [Self; 4] {
        let blocks = Arc::new(Blocks::new());
        let floor = |name, carrier, wait| Self { name, carrier, wait, cores, blocks: Arc::clone(&blocks) };
        [
            floor("floor-tcp", Carrier::Tcp, Wait::Spin),
            floor("floor-unix", Carrier::Unix, Wait::Spin),
            floor("blocking-tcp", Carrier::Tcp, Wait::Block),
            floor("blocking-unix", Carrier::Unix, Wait::Block),
        ]
    }
}

impl Contestant for Floor {
    fn name(&self) -> &'static str {
        self.name
    }

    /// Small reads; where threads sleep, only a single one tells what that costs.
    fn takes(&self, case: &Case) -> bool {
        let is_read = case.pattern == "randread" && case.block_bytes as usize == BLOCK_BYTES && case.rate.is_none();
        is_read && (1..=MOST_DEPTH).contains(&(case.depth as usize)) && (self.wait == Wait::Spin || case.depth == 1)
    }

    fn run(&mut self, case: &Case, time: Duration, stop: &AtomicBool) -> Result<Figures, ContestError> {
        let done = measure(self, case.depth as usize, time, stop);
        if stop.load(Ordering::Relaxed) {
            return Err(ContestError::Interrupted);
        }
        done.map_err(|error| ContestError::of(&error))
    }
}

fn measure(floor: &Floor, depth: usize, time: Duration, stop: &AtomicBool) -> io::Result<Figures> {
    let [mut near, mut far] = connect(floor.carrier)?;
    for end in [&near, &far] {
        end.set_nonblocking(floor.wait == Wait::Spin)?;
    }
    let [serving, asking] = floor.cores;
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            let _pinned = Pinned::to(serving)?;
            serve(&mut *far, &floor.blocks)
        });
        let _pinned = Pinned::to(asking)?;
        let counted = ask(&mut *near, depth, time, stop);
        // The server ends with the connection.
        drop(near);
        let served = server.join().map_err(|_| io::Error::other("the serving thread panicked"))?;
        let (count, elapsed) = counted?;
        served?;
        Ok(figures(count, elapsed, depth))
    })
}

#[expect(clippy::cast_precision_loss, reason = "rates are shown, not counted")]
fn figures(count: u64, elapsed: Duration, depth: usize) -> Figures {
    let iops = count as f64 / elapsed.as_secs_f64();
    // So many are under way at any time.
    let mean_us = if iops > 0.0 { depth as f64 * 1e6 / iops } else { f64::INFINITY };
    Figures { iops, bytes_per_second: iops * BLOCK_BYTES as f64, mean_us, ..Figures::default() }
}

/// Storage, written through: each block says in all its bytes which one it is, to the last eight bits.
struct Blocks(Vec<u8>);

impl std::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} blocks", self.0.len() / BLOCK_BYTES)
    }
}

impl Blocks {
    fn new() -> Self {
        let mut bytes = vec![0; BLOCKS * BLOCK_BYTES];
        for (block, number) in bytes.chunks_exact_mut(BLOCK_BYTES).zip(0_u32..) {
            block.fill(mark(number));
        }
        Self(bytes)
    }

    fn of(&self, number: u32) -> &[u8] {
        let start = number as usize % BLOCKS * BLOCK_BYTES;
        &self.0[start..start + BLOCK_BYTES]
    }
}

fn mark(number: u32) -> u8 {
    number.to_le_bytes()[0]
}

/// Which block a frame is about.
fn number_of(frame: &[u8]) -> u32 {
    frame.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// What came and was not looked at yet.
struct Inbox {
    buffer: Vec<u8>,
    held: usize,
}

impl Inbox {
    fn new() -> Self {
        Self { buffer: vec![0; BUFFER_BYTES], held: 0 }
    }

    /// Receives what there is; false at the end of the connection.
    fn receive(&mut self, stream: &mut dyn Stream) -> io::Result<bool> {
        match stream.read(&mut self.buffer[self.held..]) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.held += count;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn frames(&self, bytes: usize) -> impl Iterator<Item = &[u8]> {
        self.buffer[..self.held].chunks_exact(bytes)
    }

    fn consume(&mut self, bytes: usize) {
        self.buffer.copy_within(bytes..self.held, 0);
        self.held -= bytes;
    }
}

/// Answers requests until the connection ends.
fn serve(stream: &mut dyn Stream, blocks: &Blocks) -> io::Result<()> {
    let mut inbox = Inbox::new();
    let mut headers = vec![[0; HEADER_BYTES]; BATCH];
    let trailer = [0; TRAILER_BYTES];
    while inbox.receive(stream)? {
        let mut count = 0;
        for (request, header) in inbox.frames(REQUEST_BYTES).zip(&mut headers) {
            header[..4].copy_from_slice(&request[..4]);
            count += 1;
        }
        inbox.consume(count * REQUEST_BYTES);
        let mut slices = Vec::with_capacity(3 * count);
        for header in &headers[..count] {
            slices.extend([header, blocks.of(number_of(header)), &trailer[..]].map(IoSlice::new));
        }
        let mut left = &mut slices[..];
        while !left.is_empty() {
            match stream.write_vectored(left) {
                Ok(sent) => IoSlice::advance_slices(&mut left, sent),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The other end has seen enough.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Reads random blocks for a time: how many, and in what time.
fn ask(stream: &mut dyn Stream, depth: usize, time: Duration, stop: &AtomicBool) -> io::Result<(u64, Duration)> {
    let mut inbox = Inbox::new();
    let mut requests = vec![0; MOST_DEPTH * REQUEST_BYTES];
    let mut places = vec![0; PLACES * BLOCK_BYTES];
    let (mut done, mut random, mut due) = (0_u64, 12_345_u32, depth);
    let begin = Instant::now();
    loop {
        for request in requests.chunks_exact_mut(REQUEST_BYTES).take(due) {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            request[..4].copy_from_slice(&(random >> 8).to_le_bytes());
        }
        send(stream, &requests[..due * REQUEST_BYTES])?;
        due = 0;
        while due == 0 {
            if !inbox.receive(stream)? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            for reply in inbox.frames(REPLY_BYTES) {
                let start = usize::try_from(done).unwrap_or(0) % PLACES * BLOCK_BYTES;
                let place = &mut places[start..start + BLOCK_BYTES];
                place.copy_from_slice(&reply[HEADER_BYTES..HEADER_BYTES + BLOCK_BYTES]);
                if place[0] != mark(number_of(reply)) {
                    return Err(io::Error::other("another block than was asked for"));
                }
                done += 1;
                due += 1;
            }
            inbox.consume(due * REPLY_BYTES);
            if stop.load(Ordering::Relaxed) {
                return Err(ErrorKind::Interrupted.into());
            }
        }
        let elapsed = begin.elapsed();
        if elapsed >= time {
            return Ok((done, elapsed));
        }
    }
}

fn send(stream: &mut dyn Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::case::{AT_A_RATE, LARGE_READ, READ_1, READ_32, WRITE_32};
    use super::super::cores;
    use super::*;

    fn floors() -> [Floor; 4] {
        let cores = cores::allowed();
        Floor::all([cores[0], *cores.last().unwrap()])
    }

    #[test]
    fn frames_have_the_sizes_of_the_wire() {
        assert_eq!((REQUEST_BYTES, HEADER_BYTES, TRAILER_BYTES, REPLY_BYTES), (88, 16, 44, 4156));
    }

    #[test]
    fn blocks_travel_over_each_carrier_in_each_way_of_waiting() {
        let stop = AtomicBool::new(false);
        for mut floor in floors() {
            let case = if floor.wait == Wait::Spin { READ_32 } else { READ_1 };
            let figures = floor.run(&case, Duration::from_millis(20), &stop).unwrap();
            assert!(figures.iops > 0.0 && figures.mean_us.is_finite(), "{}: {figures:?}", floor.name);
        }
    }

    #[test]
    fn a_block_that_was_not_asked_for_is_noticed() {
        let [mut near, mut far] = connect(Carrier::Unix).unwrap();
        thread::scope(|scope| {
            let liar = scope.spawn(move || {
                let mut request = [0; REQUEST_BYTES];
                far.read_exact(&mut request).unwrap();
                let mut reply = vec![request[0] ^ 1; REPLY_BYTES];
                reply[..4].copy_from_slice(&request[..4]);
                far.write_all(&reply).unwrap();
            });
            let error = ask(&mut *near, 1, Duration::from_secs(60), &AtomicBool::new(false)).unwrap_err();
            assert_eq!(error.to_string(), "another block than was asked for");
            liar.join().unwrap();
        });
    }

    #[test]
    fn only_small_reads_have_a_floor() {
        let [spinning, .., blocking] = floors();
        assert!([READ_1, READ_32].iter().all(|case| spinning.takes(case)));
        assert!(![WRITE_32, LARGE_READ, AT_A_RATE].iter().any(|case| spinning.takes(case)));
        assert!(blocking.takes(&READ_1) && !blocking.takes(&READ_32));
    }

    #[test]
    fn requests_under_way_are_latency_times_rate() {
        let figures = figures(3000, Duration::from_secs(3), 32);
        assert_eq!((figures.iops, figures.mean_us), (1000.0, 32_000.0));
    }
}
