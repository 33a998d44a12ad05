//! The engine over loopback: a raw host against workers on rings, with storage in memory.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod delayed;
mod fence;
mod host;
mod limits;
mod reload;
mod server;
mod volume;
