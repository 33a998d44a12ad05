//! The list of verbs operations on the soft provider, over rings and over the simulator.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod suite;
mod support;

use suite::*;
use support::on_both;

suite::operations!(on_both);
