//! Metrics for Prometheus: its text format, and the HTTP endpoint that it is fetched from.
//!
//! There is no encryption and no password: an endpoint is for this machine, or for a network that nobody else is in.

mod http;
mod text;

pub use http::{Handle, serve};
pub use text::{Family, Kind, Number, Text};
