//! The NBD server of a volume: clients' sockets on one side, the volume's [`BlockQueue`](crate::block::BlockQueue) on the other.
//!
//! A [`Front`] holds the connections of one volume on one reactor thread; the [`Volume`] is what all threads share about it. A turn of the loop gives
//! the front end its events, and calls [`Front::pump`] once.
//!
//! # The path of data
//!
//! One receive fills the stream buffer with many requests. The payload of a write goes into a buffer of the pool: what came with the headers is copied,
//! the rest is received straight into it, and what follows it into the stream buffer by the same call. A read's data leave from the buffer that they
//! were read into, behind their header; all that is ready of a connection leaves by one send at the end of the turn.
//!
//! Requests are cut into pieces of the volume's longest transfer, of which few are under way at a time. Structured replies carry each piece as it comes. A
//! simple reply (or one with DF) is one run of bytes. If the buffers for all its pieces are there at once, the read takes them and is answered when it is
//! whole, so that an error can still be told. If it is longer than that, or buffers are lacking, it streams: its pieces leave in their order as they come,
//! no other read of the connection is begun until its end, replies without data wait for its end, and an error in its middle closes the connection.
//!
//! # Waiting
//!
//! Nothing is allocated for a request. Where a table, the pool, or the volume's queue is full, the connection stops taking requests, and its client's
//! socket fills. Nothing waits for a buffer while it holds one that is not submitted: a piece of payload is submitted before the next buffer is taken, a
//! refused operation (which holds one) is offered again before anything else is begun, and a read has taken all its buffers or hands its pieces over as they
//! come. Buffers go to those who wait in their order. So whoever waits is waited for by nobody but a client, and a client that neither sends nor
//! takes its data while others wait loses its connection. Nothing else times out: while the volume reconnects, requests wait.
//!
//! # Flush
//!
//! A FLUSH is submitted as it comes. The volume's flush covers every write that ended on any queue before it was submitted, and a write is answered to a
//! client, on any connection and thread, only after it ended. So it covers all that was acknowledged, and CAN_MULTI_CONN is truthful. FUA goes with each
//! piece of a write; a trim with FUA is its discards, then a flush.
//!
//! When the target's machine lost its power, and acknowledged writes with it, the next FLUSH or FUA of each connection fails with EIO (once; see the module
//! `host::ledger`): whoever relies on a flush is told that an earlier answer does not hold.
//!
//! # When a connection breaks
//!
//! Its requests that were not sent to the target are dropped. Those that were sent cannot be taken back, and the client may send them again on another
//! connection, believe that answer, and go on to change the same blocks: then the old write must not land after the new one. Therefore a connection that
//! ends with operations under way is counted in the volume's gate, under a mutex, before its socket is closed, and its operations are counted down as they
//! end; they end when the target answered, or when the association that carried them is fenced. Every connection, new or old, of any thread, starts the
//! requests that it received only when all operations of the connections that had ended by then have ended. While no connection breaks, this costs one
//! load per receive.
//!
//! Of one thread, all sockets are read before any request is begun, so an end is seen before what was sent after it. Of several threads, an end counts from
//! when its thread has seen it: a client that moves to another connection is ordered behind its operations if it did so because we closed the first one,
//! or after that thread's next turn. An end is not seen while the stream before it is full and waits.

mod buffers;
mod connection;
mod error;
mod front;
mod gate;
mod input;
mod limits;
mod output;
mod request;
mod transmission;
mod volume;

pub use front::{Front, LinkEnd, LinkId};
pub(crate) use input::Input;
pub use limits::Limits;
pub use volume::Volume;

#[cfg(test)]
mod tests;
