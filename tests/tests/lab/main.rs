//! Real kernels as peers, in QEMU guests: Linux's NVMe host on our target, our initiator on Linux's NVMe target. `make lab` runs these alone.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

mod admission;
mod attach;
mod cells;
mod commands;
mod devices;
mod discovery;
mod driver;
mod durability;
mod fencing;
mod filesystems;
mod long;
mod matrix;
mod offers;
mod provider;
mod queues;
mod resizing;
mod served;
mod survival;
mod systemd;
