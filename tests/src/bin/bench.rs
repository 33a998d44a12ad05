//! `make bench`: measures the whole chain beside every peer that this machine has.

use std::process::ExitCode;

use clap::Parser as _;
use godwit_tests::bench::{self, BenchOptions};

fn main() -> ExitCode {
    match bench::run(&BenchOptions::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}
