#![forbid(unsafe_code)]
//! The target daemon.

use std::process::ExitCode;

fn main() -> ExitCode {
    godwit_target::cli::main()
}
