//! iWARP (MPA, DDP, RDMAP) as a protocol core: bytes and work requests in, segments and events out.
//!
//! Standard iWARP as RFC 5040, 5041, 5044 and 6581 define it, compatible with the Linux kernel's siw: CRC negotiated,
//! markers never. No I/O and no clock: the driver moves bytes between this core and a TCP socket, and keeps the payload.
//!
//! 1. [`Initiator`] or [`Responder`] exchange the start-up frames and yield what was [`Negotiated`]. The driver limits
//!    how long that may take.
//! 2. [`Connection`] carries the stream from there on. [`Connection::receive`] takes the bytes that came and calls
//!    [`Memory`] to place payload; [`Connection::next_segment`] says which FPDU to send next.
//! 3. A [`Fault`] or a Terminate from the peer ends it: send what [`Connection::terminate`] yields, then close TCP
//!    gracefully, reading and discarding until the peer closes so that the Terminate is not lost.
//!
//! ```
//! use godwit_iwarp::{Connection, Initiator, Options, Reply, Responder, Role, SendKind, Source, StartupConfig};
//!
//! let mut initiator = Initiator::new(StartupConfig::default(), b"private data")?;
//! let mut responder = Responder::new(true);
//! let (consumed, request) = responder.receive(initiator.request())?;
//! assert_eq!(consumed, initiator.request().len());
//! assert_eq!(request.expect("the Request is whole").peer_ird, 128);
//! let (reply, _negotiated) = responder.accept(0, 128, b"")?;
//!
//! let (_, Some(Reply::Accepted { parameters, .. })) = initiator.receive(&reply)? else { panic!("rejected") };
//! let mut connection = Connection::new(Role::Initiator, parameters, Options::default());
//! connection.post_send(7, SendKind::Plain, 5)?;
//! let segment = connection.next_segment().expect("an Initiator may speak at once");
//! assert_eq!((segment.source, segment.offset, segment.len, segment.last), (Source::Work(7), 0, 5, true));
//! let fpdu = [segment.header(), b"hello", segment.trailer(segment.header(), [&b"hello"[..]]).as_ref()].concat();
//! assert_eq!(fpdu.len(), 20 + 5 + 3 + 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod connection;
mod crc;
mod fault;
mod memory;
mod number;
mod segment;
mod startup;
mod terminate;
mod traffic;
mod wire;

pub use connection::{Connection, FpduSize, Landing, Options, Place, Received, Role, SendKind};
pub use crc::SUMMED_BYTES;
pub use fault::{Fault, FaultKind, Misuse};
pub use memory::{InvalidateError, Memory, PlacementError, ReceiveError, TaggedError};
pub use number::{Msn, Opcode, QueueNumber, Stag};
pub use segment::{Segment, Source, Trailer};
pub use startup::{
    Initiator, MAX_PRIVATE_DATA, MAX_READ_DEPTH, Negotiated, Reply, Request, Responder, Rtr, RtrKinds, StartupConfig, StartupError,
};
pub use terminate::{TerminateCode, TerminateInfo};
pub use traffic::Traffic;
