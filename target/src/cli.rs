//! The command line of the daemon.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use godwit_config::{Arguments, Export, Nqn, Reactors, Target as Configuration, Url, metrics_address, one_line};
use godwit_control::place;
use tracing_subscriber::EnvFilter;

use crate::daemon;
use crate::logging;

const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  Export a file, making it when there is none, to this machine:
    godwit-target --export disk.img,size=1GiB
  Export a device read-only, to one host, on an address of the network:
    godwit-target --export device:/dev/sdb,read_only --listen iwarp://192.0.2.1 \\
        --host nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555
  Check a configuration, then run it:
    godwit-target --config /etc/godwit/target.yaml --check
    godwit-target --config /etc/godwit/target.yaml
  Ask a running daemon how it is doing, and have it read its configuration again:
    godwit-target status
    godwit-target reload

Exit codes: 0 stopped by a signal, or the configuration is right; 1 failed; 2 wrong usage or configuration.";

/// Export files, block devices and memory as NVMe namespaces over RDMA.
#[derive(Debug, Parser)]
#[command(name = "godwit-target", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    /// Read the configuration from this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["export", "listen", "nqn", "host"])]
    config: Option<PathBuf>,

    /// Check the configuration, and that its files, devices and folders exist; nothing is opened, made or locked
    #[arg(long)]
    check: bool,

    /// Export PATH[,size=SIZE][,block_size=SIZE][,read_only], device:PATH or memory:SIZE; each use is one namespace
    #[arg(long, value_name = "EXPORT")]
    export: Vec<Export>,

    /// Listen on iwarp://ADDRESS[:PORT]; port 0 is any free one [default: iwarp://127.0.0.1:4420]
    #[arg(long, value_name = "URL", value_parser = Url::parse_listen, requires = "export")]
    listen: Vec<Url>,

    /// Name of the subsystem [default: nqn.2026-11.org.example:godwit]
    #[arg(long, requires = "export")]
    nqn: Option<Nqn>,

    /// Let only the host of this name connect; may be repeated [default: every host]
    #[arg(long, value_name = "NQN", requires = "export")]
    host: Vec<Nqn>,

    /// Keep what has to be known about devices after a power cut in this folder [default: the unit's state directory, /var/lib/godwit, or
    /// ~/.local/state/godwit]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// Listen for `status`, `reload` and `reopen` at this socket [default: target.sock in the unit's runtime directory, in /run/godwit-target for
    /// root, in $XDG_RUNTIME_DIR/godwit for others]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,

    /// Serve metrics for Prometheus at http://ADDRESS:PORT/metrics, in clear text to everyone who reaches it [default: none]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = metrics_address)]
    metrics: Option<SocketAddr>,

    /// Keep the daemon in memory, and let it write out where others would wait for memory: for a target on the machine of its initiator
    #[arg(long)]
    lock_memory: bool,

    /// Let every host connect from other machines too: a host NQN is a name, not a password
    #[arg(long)]
    allow_any_host_remote: bool,

    /// Number of reactor threads [default: as configured, or the cores, at most 4]
    #[arg(long, value_name = "N")]
    reactors: Option<Reactors>,

    /// What to log: error, warn, info, debug, trace, or a filter such as godwit_target=debug
    #[arg(long, value_name = "FILTER", env = "GODWIT_LOG", default_value = "info")]
    log: String,

    /// How to log, to standard error [default: journald under systemd, else text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,

    /// Print the completions for a shell
    #[arg(long, value_name = "SHELL", hide = true)]
    completions: Option<Shell>,

    /// Print the manual page, of a command if one is named
    #[arg(long, value_name = "COMMAND", hide = true)]
    man: Option<Option<String>>,
}

/// What a running daemon is asked.
#[derive(Debug, Subcommand)]
enum Command {
    /// Show how a running daemon is doing: listeners, hosts, queues, namespaces, refused connections, last errors
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,

        #[command(flatten)]
        at: At,
    },
    /// Have a running daemon read its configuration again, as SIGHUP does, and say what changed or why nothing did
    #[command(after_help = RELOAD)]
    Reload {
        /// Let namespaces shrink, as nvmet does without being asked: what hosts keep behind their new ends is lost
        #[arg(long)]
        force: bool,

        #[command(flatten)]
        at: At,
    },
    /// Go on with a namespace whose backing store has lost writes: flushes may succeed again, and hosts are told of the loss
    #[command(after_help = REOPEN)]
    Reopen {
        /// The namespace
        #[arg(value_name = "NSID@NQN")]
        namespace: NamespaceName,

        #[command(flatten)]
        at: At,
    },
}

const RELOAD: &str = "\
Subsystems and namespaces that were added or removed, other lists of hosts, and namespaces that grew (a larger `size`, or a file or device
that was made larger) take effect at once; hosts see them without connecting again. What cannot be changed while the daemon runs is refused,
and then nothing is changed. A namespace shrinks only with --force, after its file or device was made smaller.";

const REOPEN: &str = "\
After a sync of a file or device has failed, or a file was truncated, flushes are refused: what was written may be lost. Repair what is
broken first. This syncs once more, counts an unsafe shutdown of the namespace, and has its hosts connect again so that they see it.";

/// Where the daemon listens.
#[derive(Debug, clap::Args)]
struct At {
    /// Its control socket [default: where a daemon of this user listens, or the one that systemd runs]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

/// A namespace and its subsystem: `1@nqn.2026-11.org.example:vol0`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamespaceName {
    nsid: u32,
    nqn: Nqn,
}

impl FromStr for NamespaceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (nsid, nqn) = text.split_once('@').ok_or("write it as NSID@NQN, such as 1@nqn.2026-11.org.example:vol0")?;
        let nsid = nsid.parse().map_err(|_| format!("`{nsid}` is not a namespace id"))?;
        Ok(Self { nsid, nqn: nqn.parse().map_err(|error: godwit_config::NqnError| error.to_string())? })
    }
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people: time, level, message
    Text,
    /// One JSON object a line
    Json,
    /// For journald: priority and message, the journal has the time
    Journald,
}

/// Runs the program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse().and_then(Cli::with_something_to_export) {
        Ok(cli) => cli,
        Err(asked) if !asked.use_stderr() => asked.exit(),
        Err(error) => return fail(&one_line(&error.to_string()), WRONG_USAGE),
    };
    if let Some(shell) = cli.completions {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "godwit-target", &mut script);
        return print(&script);
    }
    if let Some(command) = &cli.man {
        return manual(command.as_deref());
    }
    if let Some(command) = &cli.command {
        return match ask(command) {
            Ok(answer) => print(answer.as_bytes()),
            Err(error) => fail(&error, FAILED),
        };
    }
    let filter = match cli.log.parse::<EnvFilter>() {
        Ok(filter) => filter,
        Err(error) => return fail(&format!("--log {}: {error}", cli.log), WRONG_USAGE),
    };
    let configuration = match cli.configuration() {
        Ok(configuration) => configuration,
        Err(message) => return fail(&message, WRONG_USAGE),
    };
    if cli.check {
        let missing: Vec<_> = daemon::look_at_storage(&configuration).iter().map(ToString::to_string).collect();
        return if missing.is_empty() { print(b"the configuration is right\n") } else { fail(&missing.join("\n"), FAILED) };
    }
    logging::start(filter, cli.log_format.unwrap_or_else(logging::usual_format));
    match daemon::run(&configuration, move || cli.configuration()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.to_string(), FAILED),
    }
}

/// Prints a page of the manual.
fn manual(name: Option<&str>) -> ExitCode {
    // `help` has no page that the others could point to.
    let mut cli = Cli::command().disable_help_subcommand(true);
    cli.build();
    let command = match name {
        None => Some(&cli),
        Some(name) => cli.find_subcommand(name),
    };
    let Some(command) = command.cloned() else {
        return fail(&format!("`{}` is not a command", name.unwrap_or_default()), WRONG_USAGE);
    };
    let mut page = Vec::new();
    match clap_mangen::Man::new(command).render(&mut page) {
        Ok(()) => print(&page),
        Err(error) => fail(&error.to_string(), FAILED),
    }
}

/// Asks a running daemon: what to print.
fn ask(command: &Command) -> Result<String, String> {
    let (Command::Status { at, .. } | Command::Reload { at, .. } | Command::Reopen { at, .. }) = command;
    let path = at.control.clone().or_else(place::of_running_target).ok_or_else(|| {
        let places: Vec<_> = place::of_targets().iter().map(|place| place.display().to_string()).collect();
        format!("no daemon's control socket is at {}; start godwit-target, or name its socket with --control PATH", places.join(", "))
    })?;
    let answer = match command {
        Command::Status { .. } => daemon::control::ask_for_status(&path),
        Command::Reload { force, .. } => daemon::control::ask_for_reload(&path, *force),
        Command::Reopen { namespace, .. } => daemon::control::ask_to_reopen(&path, &namespace.nqn, namespace.nsid),
    };
    let answer = answer.map_err(|error| error.to_string())?;
    Ok(match command {
        Command::Status { json: true, .. } => format!("{answer:#}\n"),
        Command::Status { .. } => daemon::status::in_words(&answer),
        Command::Reload { .. } => {
            let changes: Vec<_> = answer["changes"].as_array().into_iter().flatten().filter_map(|change| change.as_str()).collect();
            if changes.is_empty() { "nothing has changed\n".to_owned() } else { changes.join("\n") + "\n" }
        }
        Command::Reopen { .. } if answer["had_lost_writes"] == true => "reopened; its hosts are told that writes may be lost\n".to_owned(),
        Command::Reopen { .. } => "nothing was lost, so there is nothing to do\n".to_owned(),
    })
}

/// Writes to standard output. That nobody reads on, as after `| head`, is no failure.
fn print(text: &[u8]) -> ExitCode {
    let mut output = io::stdout();
    match output.write_all(text).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(&format!("cannot write to standard output: {error}"), FAILED),
        _ => ExitCode::SUCCESS,
    }
}

fn fail(message: &str, code: u8) -> ExitCode {
    for line in message.lines() {
        eprintln!("godwit-target: {line}");
    }
    ExitCode::from(code)
}

impl Cli {
    /// Refuses a command line of which nothing follows.
    fn with_something_to_export(self) -> Result<Self, clap::Error> {
        let asked = self.command.is_some() || self.completions.is_some() || self.man.is_some();
        if asked || self.config.is_some() || !self.export.is_empty() {
            return Ok(self);
        }
        let message =
            "nothing to export: name it with --export EXPORT, as in --export disk.img,size=1GiB, or a configuration with --config FILE";
        Err(Self::command().error(ErrorKind::MissingRequiredArgument, message))
    }

    /// The configuration that the file or the arguments make; or every fault of it, a line each.
    fn configuration(&self) -> Result<Configuration, String> {
        let made = match &self.config {
            Some(path) => Configuration::load(path, self.allow_any_host_remote).map_err(|error| error.to_string()),
            None => Configuration::from_arguments(Arguments {
                exports: self.export.clone(),
                listen: self.listen.clone(),
                nqn: self.nqn.clone(),
                hosts: self.host.clone(),
                allow_any_host_remote: self.allow_any_host_remote,
            })
            .map_err(|problems| problems.to_string()),
        };
        let mut configuration = made?;
        if let Some(reactors) = self.reactors {
            configuration.reactors = reactors;
        }
        if let Some(state_dir) = &self.state_dir {
            configuration.service.state_dir = Some(state_dir.clone());
        }
        let service = &mut configuration.service;
        service.control = self.control.clone().or_else(|| service.control.take());
        service.metrics = self.metrics.or(service.metrics);
        service.lock_memory |= self.lock_memory;
        daemon::check(&configuration).map_err(|error| error.to_string())?;
        Ok(configuration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from([&["godwit-target"], arguments].concat()).and_then(Cli::with_something_to_export)
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_quick_start_needs_an_export_and_nothing_else() {
        let configuration = parse(&["--export", "memory:1MiB", "--reactors", "2"]).unwrap().configuration().unwrap();
        assert_eq!(configuration.reactors.get(), 2);
        assert_eq!(configuration.subsystems.len(), 1);
        assert_eq!(configuration.listeners[0].address.to_string(), "127.0.0.1:4420");
    }

    #[test]
    fn file_and_arguments_exclude_each_other_and_one_is_needed() {
        let nothing = one_line(&parse(&[]).unwrap_err().to_string());
        assert!(nothing.contains("--export EXPORT") && nothing.contains("--config FILE"), "{nothing}");
        assert!(parse(&["--check"]).is_err());
        assert!(parse(&["--listen", "iwarp://127.0.0.1"]).is_err());
        assert!(parse(&["--config", "a", "--export", "b"]).is_err());
        assert!(parse(&["--config", "a", "--check"]).is_ok());
    }

    #[test]
    fn any_host_from_other_machines_needs_the_flag() {
        let remote = ["--export", "memory:1MiB", "--listen", "iwarp://0.0.0.0:0"];
        let refusal = parse(&remote).unwrap().configuration().unwrap_err();
        assert!(refusal.contains("--allow-any-host-remote") && refusal.contains("--host NQN"), "{refusal}");
        assert!(parse(&[&remote[..], &["--allow-any-host-remote"]].concat()).unwrap().configuration().is_ok());
        assert!(parse(&[&remote[..], &["--host", "nqn.2026-11.org.example:a"]].concat()).unwrap().configuration().is_ok());
    }
}
