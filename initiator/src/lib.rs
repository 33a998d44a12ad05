#![forbid(unsafe_code)]
//! NVMe over RDMA initiator: attaches a namespace of a target and serves it as a block device through NBD.

pub mod bench;
pub mod block;
pub mod cli;
mod columns;
pub mod command;
mod daemon;
pub mod demo;
mod device;
pub mod host;
mod log_linear;
pub mod nbd;
mod random;
mod socket;
mod threads;
mod worker;
