#![forbid(unsafe_code)]
//! How people and programs ask a running daemon: a control socket, and metrics for Prometheus.
//!
//! * [`Server`] answers requests on a Unix socket, [`Client`] asks. Both are lines of JSON: a request is one line, its answer is one line, and a
//!   connection carries as many of these as its client likes. What they mean is the daemon's. An answer that is an object with a text `error`, and
//!   nothing else, is a refusal: [`refusal`] makes one, and [`Client::ask`] gives it back as [`ControlError::Refused`].
//! * [`metrics`] writes Prometheus' text format, and serves it through HTTP.
//!
//! All of it is off the data path, on threads of its own, and bounded: so many clients at a time ([`MAX_CLIENTS`]), so many bytes of a request
//! ([`MAX_REQUEST_BYTES`]), so long for each ([`PATIENCE`]). A client that breaks a bound costs its own connection.

mod client;
mod clients;
mod error;
mod line;
pub mod metrics;
pub mod place;
mod process;
mod server;
pub mod unix;

use std::time::Duration;

pub use client::Client;
pub use error::ControlError;
pub use process::cpu_time;
pub use server::{Handle, Server, refusal};

/// Clients of one server at a time. One more is told so, and let go.
pub const MAX_CLIENTS: usize = 16;

/// The longest request, in bytes, with its line end.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;

/// The longest answer that a client reads, in bytes.
pub const MAX_ANSWER_BYTES: usize = 64 << 20;

/// How long a client may take for a request from its first byte on, and for taking its answer. Between two requests it may be silent for as long.
pub const PATIENCE: Duration = Duration::from_secs(30);
