#![forbid(unsafe_code)]
//! `godwit`: attaches volumes of NVMe over RDMA targets and serves them as block devices.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use godwit_config::one_line;
use godwit_initiator::cli::Cli;
use godwit_initiator::command::{Failure, run};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version, and the help in place of a missing command.
        Err(asked) if !asked.use_stderr() || asked.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => asked.exit(),
        Err(error) => {
            eprintln!("error: {}", one_line(&error.to_string()));
            return ExitCode::from(2);
        }
    };
    let result = start_log(cli.log.as_deref(), cli.log_json).and_then(|()| run(cli.command));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit_code()
        }
    }
}

/// Logs to standard error: for people on a terminal, without time stamps for the journal (it has its own), as JSON on request.
fn start_log(filter: Option<&str>, json: bool) -> Result<(), Failure> {
    let from_environment = std::env::var("GODWIT_LOG").ok();
    let text = filter.or(from_environment.as_deref()).filter(|text| !text.is_empty()).unwrap_or("info");
    let filter = EnvFilter::try_new(text)
        .map_err(|error| Failure::Usage(format!("`{text}` is not a log filter ({error}): write info, debug, or MODULE=debug")))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    if json {
        log.json().init();
    } else if std::env::var_os("JOURNAL_STREAM").is_some() && !std::io::stderr().is_terminal() {
        log.without_time().with_ansi(false).init();
    } else {
        log.with_ansi(std::io::stderr().is_terminal()).init();
    }
    Ok(())
}
