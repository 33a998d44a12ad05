#![forbid(unsafe_code)]
//! The NBD protocol as a core without I/O and without a clock: server side, and the little of a client that measuring needs.
//!
//! A connection is driven in two phases, each fed with whatever bytes the socket gave, cut anywhere:
//!
//! 1. [`Handshake`]: send [`Handshake::greeting`], feed [`Handshake::receive`], send what it appended, until it yields a
//!    [`Session`].
//! 2. [`Requests`]: parses request headers. The core never touches payload: after a [`Request`] with a payload the
//!    driver receives those bytes wherever it likes and says so with [`Requests::take`], or lets the core discard them and
//!    then answer with [`Requests::refuse`]. [`Request::check`] holds every rule of the protocol; [`Reply`] is the answer's bytes.
//!
//! A [`Violation`] means: close this connection. A [`Refusal`] means: answer this request with its [`Errno`] and go on.
//!
//! Names and rules are those of the NBD protocol document; sections are cited by title.

pub mod client;
mod errno;
mod export;
mod flags;
mod handshake;
mod number;
mod reply;
mod request;
mod requests;
mod session;
mod violation;
pub mod wire;

pub use errno::Errno;
pub use export::{BlockSizes, Export, InvalidExport, MAX_DESCRIPTION_LEN, MAX_NAME_LEN, find};
pub use flags::{CommandFlags, ExtentFlags, TransmissionFlags};
pub use handshake::{Handshake, Outcome};
pub use number::{Command, ContextId, InfoType, OptionCode, OptionReplyType};
pub use reply::{MAX_MESSAGE_LEN, Reply};
pub use request::{Refusal, Request};
pub use requests::{Parsed, Requests};
pub use session::Session;
pub use violation::Violation;

/// The TCP port that IANA assigned to NBD.
pub const PORT: u16 = 10809;

/// The longest string that the protocol allows, in bytes.
pub const MAX_STRING_LEN: usize = 4096;

/// The largest payload of a request when nothing else was agreed ("Block size constraints"), in bytes: 32 MiB.
pub const DEFAULT_MAX_PAYLOAD_LEN: u32 = 32 << 20;

/// The largest payload that is consumed and refused; the connection of a client that announces more is closed: 64 MiB.
pub const ABSURD_PAYLOAD_LEN: u32 = 64 << 20;

/// The longest data of one option; a longer one closes the connection: 1 MiB.
pub const MAX_OPTION_LEN: u32 = 1 << 20;

/// The longest data of one option that is looked at; a longer one is skipped and answered `ERR_TOO_BIG`: 64 KiB.
pub const MAX_KEPT_OPTION_LEN: u32 = 64 << 10;

/// The most options that one client may send; one more closes the connection.
pub const MAX_OPTIONS: u32 = 64;

/// The one metadata context that this server has ("Metadata contexts", namespace `base`).
pub const BASE_ALLOCATION: &str = "base:allocation";
