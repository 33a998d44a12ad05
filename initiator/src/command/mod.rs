//! The commands of `godwit`, one module each.

mod bench;
mod connect;
mod control;
mod discover;
mod run;
mod volume;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::CommandFactory;
use godwit_config::{Crc, Fpdu, HostIdentity, IdentityFiles, Transport, Url};
use godwit_nvme::{HostId, Nqn};
use godwit_rdma::FpduSize;

use crate::cli::{Cli, Command, HostArgs};
use crate::daemon::ServiceError;
use crate::demo;
use crate::host::{Endpoint, Names, in_words};

/// Why a command ended without success, in one line.
#[derive(Debug)]
pub enum Failure {
    /// The command line asks for what cannot be.
    Usage(String),
    /// It did not work.
    Failed(String),
}

impl Failure {
    /// What the process exits with.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Failed(_) => ExitCode::FAILURE,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Usage(text) | Self::Failed(text)) = self;
        f.write_str(text)
    }
}

/// Runs a command.
///
/// # Errors
///
/// Why it did not succeed.
pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Discover(args) => discover::run(&args),
        Command::Connect(args) => connect::run(&args),
        Command::Run(args) => run::run(&args),
        Command::List(args) => control::list(&args),
        Command::Status(args) => control::status(&args),
        Command::Disconnect(args) => control::disconnect(&args),
        Command::PrepareShutdown(args) => control::prepare_shutdown(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Demo(options) => demo::run(&options).map_err(|error| Failure::Failed(error.to_string())),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "godwit", &mut script);
            print(&script)
        }
        Command::Man { command } => manual(command.as_deref()),
    }
}

fn manual(name: Option<&str>) -> Result<(), Failure> {
    // `help` has no page that the others could point to.
    let mut cli = Cli::command().disable_help_subcommand(true);
    cli.build();
    let command = match name {
        None => cli,
        Some(name) => {
            let found = cli.find_subcommand(name).cloned();
            found.ok_or_else(|| Failure::Usage(format!("`{name}` is not a command")))?
        }
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).map_err(|error| Failure::Failed(error.to_string()))?;
    print(&page)
}

/// Writes to standard output. That nobody reads on, as after `| head`, is no failure.
fn print(text: &[u8]) -> Result<(), Failure> {
    let mut output = io::stdout();
    match output.write_all(text).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("cannot write to standard output: {}", in_words(&error))))
        }
        _ => Ok(()),
    }
}

/// Where a target listens: every address of its name.
fn endpoints(url: &Url, crc: Crc) -> Result<Vec<Endpoint>, Failure> {
    let resolved = url.address.resolve();
    let addresses = resolved.map_err(|error| {
        Failure::Failed(format!("cannot find the address of {}: {error}; correct the name, or write an address", url.address))
    })?;
    let fpdu = match url.fpdu {
        Fpdu::Large => FpduSize::Large,
        Fpdu::Mss => FpduSize::Segment,
    };
    let transport = match url.transport {
        Transport::Iwarp => godwit_rdma::Transport::Iwarp,
        Transport::Rdma => godwit_rdma::Transport::Rdma,
    };
    let crc = url.crc.unwrap_or(crc) == Crc::On;
    Ok(addresses.into_iter().map(|address: SocketAddr| Endpoint { transport, address, crc, fpdu }).collect())
}

/// Who connects to which subsystem.
fn names(host: &HostArgs, subsystem: Nqn) -> Result<Names, Failure> {
    let identity = HostIdentity::discover(&IdentityFiles::default(), host.hostnqn.clone(), host.hostid);
    let identity = identity.map_err(|error| Failure::Failed(error.to_string()))?;
    Ok(Names { subsystem, host: identity.hostnqn, host_id: HostId::from(identity.hostid) })
}

/// The error, with what the target has instead where that helps.
fn explain(error: ServiceError, url: &Url, crc: Crc, names: Names) -> Failure {
    if matches!(&error, ServiceError::Host(error) if error.is_unknown_host()) {
        return Failure::Failed(format!("{error}: {}", names.host));
    }
    let unknown = matches!(&error, ServiceError::Host(error) if error.is_unknown_subsystem());
    let mut text = error.to_string();
    if unknown && let Some(&endpoint) = endpoints(url, crc).unwrap_or_default().first() {
        let offered = discover::offered(endpoint, names);
        match offered.as_deref() {
            Ok([]) => text.push_str("; it offers none to this host"),
            Ok(offered) => text.push_str(&format!("; it offers {}", offered.join(", "))),
            Err(_) => {}
        }
    }
    Failure::Failed(text)
}
