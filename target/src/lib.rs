//! The NVMe/RDMA target: subsystems, controllers and queues on an RDMA fabric, over files, devices and memory.
//!
//! * [`Target`] is what the target offers, and what its reactor threads share: associations, counters, mailboxes.
//! * [`Worker`] is the engine of one reactor thread. It is generic over the reactor, and does no I/O of its own: it is fed with the events of the
//!   reactor and the completions of the fabric.
//! * [`backend`] is where the bytes are.
//! * [`daemon`] puts these on threads, and [`cli`] is the command line.

#![forbid(unsafe_code)]

mod admin;
mod association;
pub mod backend;
pub mod cli;
mod controller;
mod counters;
pub mod daemon;
mod discovery;
mod error_log;
mod events;
mod fabrics;
mod journal;
mod keep_alive;
mod layout;
pub mod limits;
mod logging;
mod mailbox;
mod offer;
mod queue;
mod request;
mod status;
mod subsystem;
mod worker;

pub use limits::Limits;
pub use subsystem::{AllowedHosts, Namespace, Portal, Subsystem, Target};
pub use worker::{Handover, Worker, WorkerError};
