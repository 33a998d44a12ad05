//! Connecting to an export.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use godwit_config::{NbdEndpoint, NbdUri};
use godwit_memory::MAX_BUFFER_BYTES;
use godwit_nbd::client::{self, Garbled, Info, OptionReply};
use godwit_nbd::wire::HandshakeFlags;
use godwit_nbd::{InfoType, OptionCode, OptionReplyType, TransmissionFlags};
use godwit_reactor::Incoming;
use socket2::{SockAddr, Socket, Type};

use super::{DEFAULT_MAX_PAYLOAD_BYTES, LEAST_BLOCK_BYTES};
use crate::block::Geometry;
use crate::host::in_words;

/// How long an address may take to answer, and the whole handshake then. A server that takes a single client at a time lets the second one wait for ever.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of replies at most: those of a server are some dozens, and a kilobyte or two of words.
const MOST_REPLY_BYTES: usize = 64 << 10;

/// The length of a greeting.
const GREETING_BYTES: usize = 18;

/// Why an export cannot be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NbdError {
    /// Nobody is there, or the connection failed.
    #[error("{uri}: {}", explain(.source))]
    Io { uri: String, source: io::Error },
    /// What came is not NBD.
    #[error("{uri} does not answer as an NBD server does: {source}; is that the port of another server?")]
    Garbled { uri: String, source: Garbled },
    /// A server of the time before options could be answered.
    #[error("{0} is an old server: only those that speak fixed newstyle can be measured, as nbdkit and qemu-nbd do")]
    Old(String),
    /// It has no such export.
    #[error("{uri}: the server has no export of that name{}; `nbdinfo --list {uri}` lists what it has", if .words.is_empty() { String::new() } else { format!(" ({words})") })]
    Unknown { uri: String, words: String },
    /// It wants TLS.
    #[error("{0}: the server wants TLS, which is not there; let it serve without, as on a Unix socket")]
    Tls(String),
    /// It refuses the export.
    #[error("{uri}: the server refuses ({reply}) {words}")]
    Refused { uri: String, reply: OptionReplyType, words: String },
    /// It did not say how large the export is.
    #[error("{0}: the server does not say how large the export is, as it must; measure another server, as nbdkit or qemu-nbd")]
    NoSize(String),
    /// Its connections have exports of their own.
    #[error("{0}: the server offers another export to each connection; choose --queues 1")]
    Differs(String),
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "nothing is listening there; is the server running?".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied; the socket is another user's".to_owned(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("the server is silent for {} s; does it take several clients at a time?", PATIENCE.as_secs())
        }
        io::ErrorKind::UnexpectedEof => "the server has closed the connection in the handshake".to_owned(),
        _ => in_words(error),
    }
}

/// What a server says of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    pub(crate) size_bytes: u64,
    pub(crate) flags: TransmissionFlags,
    pub(crate) block_bytes: u32,
    pub(crate) max_payload_bytes: u32,
}

impl Export {
    /// As a volume.
    pub(crate) fn geometry(&self) -> Geometry {
        let longest = usize::try_from(self.max_payload_bytes).unwrap_or(usize::MAX).min(MAX_BUFFER_BYTES);
        Geometry {
            size_bytes: self.size_bytes,
            block_bytes: self.block_bytes,
            optimal_bytes: self.block_bytes,
            max_transfer_bytes: longest,
            max_zeroes_bytes: 0,
            max_discard_bytes: 0,
            read_only: self.flags.contains(TransmissionFlags::READ_ONLY),
            can_write_zeroes: false,
            can_discard: false,
            volatile_cache: self.flags.contains(TransmissionFlags::SEND_FLUSH),
        }
    }
}

/// A connection in transmission, and its export.
pub(crate) fn connect(uri: &NbdUri) -> Result<(Incoming, Export), NbdError> {
    let failed = |source| NbdError::Io { uri: uri.to_string(), source };
    let socket = open(&uri.endpoint).map_err(failed)?;
    let export = shake_hands(&mut Timely { socket: &socket, deadline: Instant::now() + PATIENCE }, uri)?;
    Ok((Incoming::from_socket(socket).map_err(failed)?, export))
}

/// Connects to the first address that answers.
fn open(endpoint: &NbdEndpoint) -> io::Result<Socket> {
    let addresses = match endpoint {
        NbdEndpoint::Unix(path) => vec![SockAddr::unix(path)?],
        NbdEndpoint::Tcp(address) => address.resolve()?.into_iter().map(SockAddr::from).collect(),
    };
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match open_at(&address) {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn open_at(address: &SockAddr) -> io::Result<Socket> {
    let socket = Socket::new(address.domain(), Type::STREAM, None)?;
    if address.is_unix() {
        // Of a Unix socket this is how long a place in the server's line is waited for.
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.connect(address)?;
    } else {
        socket.connect_timeout(address, PATIENCE)?;
        socket.set_tcp_nodelay(true)?;
    }
    Ok(socket)
}

/// A socket until a deadline.
struct Timely<'a> {
    socket: &'a Socket,
    deadline: Instant,
}

impl Timely<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timely<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(into)
    }
}

impl Write for Timely<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// Everything up to the transmission phase ("Baseline", "Fixed newstyle negotiation").
fn shake_hands(stream: &mut (impl Read + Write), uri: &NbdUri) -> Result<Export, NbdError> {
    let failed = |source| NbdError::Io { uri: uri.to_string(), source };
    let garbled = |source| NbdError::Garbled { uri: uri.to_string(), source };
    let mut greeting = [0; GREETING_BYTES];
    stream.read_exact(&mut greeting).map_err(failed)?;
    let offered = client::greeting(&greeting).map_err(garbled)?.unwrap_or_default();
    if !offered.contains(HandshakeFlags::FIXED_NEWSTYLE) {
        return Err(NbdError::Old(uri.to_string()));
    }
    let wanted = if offered.contains(HandshakeFlags::NO_ZEROES) {
        HandshakeFlags::FIXED_NEWSTYLE.with(HandshakeFlags::NO_ZEROES)
    } else {
        HandshakeFlags::FIXED_NEWSTYLE
    };
    let go = client::info(OptionCode::GO, &uri.export_name, &[InfoType::BLOCK_SIZE]);
    stream.write_all(&[&client::flags(wanted)[..], &go].concat()).map_err(failed)?;
    let (mut size, mut sizes) = (None, None);
    let (mut received, mut total) = (Vec::new(), 0);
    loop {
        while let Some((len, reply)) = OptionReply::parse(&received).map_err(garbled)? {
            received.drain(..len);
            match reply.reply {
                OptionReplyType::INFO => match Info::parse(&reply.data) {
                    Some(Info::Export { size: bytes, flags }) => size = Some((bytes, flags)),
                    Some(Info::BlockSize { minimum, maximum, .. }) => sizes = Some((minimum, maximum)),
                    Some(Info::Other(_)) | None => {}
                },
                // Before a request is sent there is nothing to say.
                OptionReplyType::ACK if !received.is_empty() => return Err(garbled(Garbled::Trailing(received.len()))),
                OptionReplyType::ACK => {
                    let (size_bytes, flags) = size.ok_or_else(|| NbdError::NoSize(uri.to_string()))?;
                    let (minimum, maximum) = sizes.unwrap_or((LEAST_BLOCK_BYTES, DEFAULT_MAX_PAYLOAD_BYTES));
                    let block_bytes = minimum.max(LEAST_BLOCK_BYTES);
                    return Ok(Export { size_bytes, flags, block_bytes, max_payload_bytes: maximum });
                }
                refusal => return Err(refused(uri, refusal, &reply.data)),
            }
        }
        let mut more = [0; 4096];
        let count = stream.read(&mut more).map_err(failed)?;
        if count == 0 {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        received.extend_from_slice(&more[..count]);
        total += count;
        if total > MOST_REPLY_BYTES {
            return Err(garbled(Garbled::Endless(total)));
        }
    }
}

fn refused(uri: &NbdUri, reply: OptionReplyType, data: &[u8]) -> NbdError {
    // A server's words are shown without what would move the cursor.
    let words: String = String::from_utf8_lossy(data).chars().filter(|c| !c.is_control()).take(200).collect();
    match reply {
        OptionReplyType::ERR_UNKNOWN => NbdError::Unknown { uri: uri.to_string(), words },
        OptionReplyType::ERR_TLS_REQD => NbdError::Tls(uri.to_string()),
        reply => NbdError::Refused { uri: uri.to_string(), reply, words },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server says, and what it hears.
    struct Script {
        says: io::Cursor<Vec<u8>>,
        hears: Vec<u8>,
    }

    impl Read for Script {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            // Cut anywhere.
            let len = into.len().min(7);
            self.says.read(&mut into[..len])
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.hears.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn reply(kind: OptionReplyType, data: &[u8]) -> Vec<u8> {
        let head = [0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec(), 7_u32.to_be_bytes().to_vec(), kind.0.to_be_bytes().to_vec()].concat();
        [head, u32::try_from(data.len()).unwrap().to_be_bytes().to_vec(), data.to_vec()].concat()
    }

    fn shake(flags: u16, replies: &[Vec<u8>]) -> (Result<Export, String>, Vec<u8>) {
        let greeting = [b"NBDMAGICIHAVEOPT".to_vec(), flags.to_be_bytes().to_vec()].concat();
        let mut script = Script { says: io::Cursor::new([greeting, replies.concat()].concat()), hears: Vec::new() };
        let uri = "nbd+unix:///vol0?socket=/s".parse().unwrap();
        let result = shake_hands(&mut script, &uri).map_err(|error| error.to_string());
        (result, script.hears)
    }

    const EXPORT: &[u8] = b"\0\0\0\0\0\0\x40\0\0\0\x01\x6d";
    const SIZES: &[u8] = b"\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0";

    #[test]
    fn an_export_is_gone_to() {
        let (export, said) =
            shake(3, &[reply(OptionReplyType::INFO, EXPORT), reply(OptionReplyType::INFO, SIZES), reply(OptionReplyType::ACK, b"")]);
        let expected = Export { size_bytes: 1 << 30, flags: TransmissionFlags(0x016d), block_bytes: 512, max_payload_bytes: 32 << 20 };
        assert_eq!(export, Ok(expected));
        assert_eq!(said, b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x0c\0\0\0\x04vol0\0\x01\0\x03");
        assert_eq!(expected.geometry().max_transfer_bytes, 1 << 20);
    }

    #[test]
    fn a_server_without_block_sizes_gets_those_of_the_protocol() {
        let (export, _) = shake(1, &[reply(OptionReplyType::INFO, EXPORT), reply(OptionReplyType::ACK, b"")]);
        assert_eq!(export.map(|export| (export.block_bytes, export.max_payload_bytes)), Ok((512, 32 << 20)));
    }

    #[test]
    fn what_follows_the_last_reply_or_never_ends_is_garbled() {
        let mut last = reply(OptionReplyType::ACK, b"");
        last.push(0);
        let (export, _) = shake(3, &[reply(OptionReplyType::INFO, EXPORT), last]);
        assert!(export.unwrap_err().contains("1 bytes follow the last reply"));
        let (export, _) = shake(3, &vec![reply(OptionReplyType::INFO, EXPORT); 10_000]);
        assert!(export.unwrap_err().contains("bytes of replies"));
    }

    #[test]
    fn a_server_that_dawdles_is_not_waited_for() {
        let (ours, mut theirs) = Socket::pair(socket2::Domain::UNIX, Type::STREAM, None).unwrap();
        let mut timely = Timely { socket: &ours, deadline: Instant::now() + Duration::from_millis(200) };
        let dawdling = std::thread::spawn(move || {
            // A byte at a time, none of them late.
            while theirs.write_all(b"N").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let began = Instant::now();
        let error = timely.read_exact(&mut [0; 10_000]).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        assert!(began.elapsed() < Duration::from_secs(10));
        drop(ours);
        dawdling.join().unwrap();
    }

    #[test]
    fn refusals_are_told_in_words() {
        let told = |flags, replies: &[Vec<u8>]| shake(flags, replies).0.unwrap_err();
        let unknown = told(3, &[reply(OptionReplyType::ERR_UNKNOWN, b"no\x1b such thing")]);
        assert!(unknown.contains("the server has no export of that name (no such thing); `nbdinfo --list nbd+unix:///vol0"), "{unknown}");
        assert!(told(3, &[reply(OptionReplyType::ERR_TLS_REQD, b"")]).contains("wants TLS"));
        assert!(told(3, &[reply(OptionReplyType::ERR_POLICY, b"not you")]).contains("refuses (ERR_POLICY) not you"));
        assert!(told(3, &[reply(OptionReplyType::ACK, b"")]).contains("does not say how large"));
        assert!(told(3, &[]).contains("has closed the connection"));
        assert!(told(0, &[]).contains("is an old server"));
    }
}
