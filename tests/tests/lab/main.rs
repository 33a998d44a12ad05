//! Real kernels as peers, in QEMU guests: Linux's NVMe host on our target, our initiator on Linux's NVMe target. `make lab` runs these alone.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

mod cells;
mod devices;
mod driver;
mod matrix;
mod provider;
