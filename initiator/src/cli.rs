//! The command line of `godwit`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use godwit_config::{
    ConnectOptions, Connections, Crc, CtrlLossTimeout, FastIoFailTimeout, HostPort, IoQueues, IoTimeout, KeepAlive, NVME_PORT, NbdDevice,
    NbdEndpoint, NbdMode, Nqn, PollBudget, QueueSize, Reactors, ReconnectDelay, Size, UnsafeShutdowns, Url, VolumeName, metrics_address,
};
use uuid::Uuid;

use crate::bench::BenchArgs;
use crate::demo::DemoOptions;

const EXAMPLES: &str = "\
Examples:
  godwit discover iwarp://storage.example
  godwit connect iwarp://storage.example/nqn.2026-11.org.example:vol0 --nbd unix:/run/vol0.sock
  godwit connect 'iwarp://[::1]:4420/nqn.2026-11.org.example:vol0?nsid=2' --nbd tcp:127.0.0.1:10809
  godwit connect iwarp://storage.example/nqn.2026-11.org.example:vol0 --device /dev/nbd0
  godwit status

Exit status: 0 ok, 1 failed, 2 wrong usage.";

const BENCH_EXAMPLES: &str = "\
Examples:
  godwit bench iwarp://storage.example/nqn.2026-11.org.example:vol0
  godwit bench iwarp://storage.example/nqn.2026-11.org.example:vol0 --rw randrw --bs 4k,128k --verify --allow-writes
  godwit bench iwarp://storage.example/nqn.2026-11.org.example:vol0 --json now.json --compare before.json --html now.html
  godwit bench --nbd 'nbd+unix:///?socket=/run/vol0.sock' --qd 32";

/// Attaches volumes of NVMe over RDMA targets and serves them as block devices through NBD
#[derive(Debug, Parser)]
#[command(name = "godwit", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    /// What to log: error, warn, info, debug or trace, also per module as in godwit_initiator=debug [env: GODWIT_LOG] [default: info]
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,

    /// Log as JSON, one object a line
    #[arg(long, global = true)]
    pub log_json: bool,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the subsystems that a target offers to this host
    #[command(after_help = "Example:\n  godwit discover iwarp://192.0.2.7:4420 --json")]
    Discover(DiscoverArgs),
    /// Attach a namespace and serve it through NBD, in the foreground
    #[command(after_help = EXAMPLES)]
    Connect(Box<ConnectArgs>),
    /// Serve the volumes of a configuration file, in the foreground; SIGHUP reads it anew
    Run(RunArgs),
    /// List the volumes that daemons on this machine serve
    #[command(after_help = "Example:\n  godwit list --json")]
    List(AskArgs),
    /// Show how volumes are doing
    #[command(after_help = "Examples:\n  godwit status\n  godwit status vol0 --watch\n  godwit status --json")]
    Status(StatusArgs),
    /// Detach a volume: what was written is flushed, its device is freed
    #[command(after_help = "Example:\n  umount /mnt/vol0 && godwit disconnect vol0")]
    Disconnect(DisconnectArgs),
    /// Measure a volume by this host's own queues, or an NBD export; several sizes and depths in one run
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(Box<BenchArgs>),
    /// Run a target, an initiator and fio on this machine, and show what they measure
    #[command(after_help = "Example:\n  godwit demo --dir /var/tmp --seconds 10")]
    Demo(DemoOptions),
    /// Have daemons give lost targets up soon, for the machine goes down
    #[command(hide = true)]
    PrepareShutdown(AskArgs),
    /// Print the completions of a shell
    #[command(hide = true)]
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Print the manual page, of a command if one is named
    #[command(hide = true)]
    Man {
        /// Which command
        command: Option<String>,
    },
}

/// Who this host is.
#[derive(Clone, Debug, Args)]
pub struct HostArgs {
    /// Host NQN [default: that of /etc/nvme/hostnqn, or one made from the machine id]
    #[arg(long, value_name = "NQN")]
    pub hostnqn: Option<Nqn>,

    /// Host identifier [default: that of /etc/nvme/hostid, or one made from the machine id]
    #[arg(long, value_name = "UUID")]
    pub hostid: Option<Uuid>,
}

/// Arguments of `discover`.
#[derive(Clone, Debug, Args)]
pub struct DiscoverArgs {
    /// Where the target listens
    #[arg(value_name = "iwarp://HOST[:PORT]", value_parser = Url::parse_target)]
    pub url: Url,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Who this host is
    #[command(flatten)]
    pub host: HostArgs,
}

/// Arguments of `connect`.
#[derive(Clone, Debug, Args)]
pub struct ConnectArgs {
    /// What to attach; options are nsid=1, fpdu=mss and crc=off
    #[arg(value_name = "iwarp://HOST[:PORT]/NQN[?OPTION&OPTION]")]
    pub url: Url,

    /// Where to serve it; this or --device is needed
    #[arg(long, value_name = "unix:PATH|tcp:HOST[:PORT]")]
    pub nbd: Option<NbdEndpoint>,

    /// Attach it to the kernel as this NBD device, as root; one that an earlier godwit left is resumed
    #[arg(long, value_name = "/dev/nbdN|auto", conflicts_with_all = ["nbd", "nbd_mode", "nbd_allow_remote", "export_name"])]
    pub device: Option<NbdDevice>,

    /// Sockets between the kernel and this daemon [default: one an I/O queue]
    #[arg(long, value_name = "N", requires = "device", conflicts_with = "nbd")]
    pub connections: Option<Connections>,

    /// What `godwit list` calls it [default: what follows the last colon of its NQN]
    #[arg(long, value_name = "NAME")]
    pub name: Option<VolumeName>,

    /// Socket by which `godwit list`, status and disconnect find this daemon [default: one in /run/godwit, or in $XDG_RUNTIME_DIR/godwit]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,

    /// Serve metrics for Prometheus there, in clear text and to whoever asks [default: not at all]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = metrics_address)]
    pub metrics: Option<SocketAddr>,

    /// Who this host is
    #[command(flatten)]
    pub host: HostArgs,

    /// I/O queues to ask for; at most one a reactor is of use [default: one a reactor]
    #[arg(long, value_name = "N")]
    pub nr_io_queues: Option<IoQueues>,

    /// Entries of each I/O queue
    #[arg(long, value_name = "N", default_value_t = ConnectOptions::default().queue_size)]
    pub queue_size: QueueSize,

    /// Keep alive timeout, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = ConnectOptions::default().keep_alive_tmo)]
    pub keep_alive_tmo: KeepAlive,

    /// Another address of the same subsystem, to go to when the first does not answer; can be given several times
    #[arg(long = "address", value_name = "HOST[:PORT]", value_parser = target_address, conflicts_with = "discover")]
    pub addresses: Vec<HostPort>,

    /// Ask the target for the addresses of the subsystem, at first and when none that is known answers
    #[arg(long)]
    pub discover: bool,

    /// The longest pause between two attempts to reconnect, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = ConnectOptions::default().reconnect_delay)]
    pub reconnect_delay: ReconnectDelay,

    /// How long I/O waits for a lost target before it fails, in seconds; 0 fails at once, -1 waits for ever
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, default_value_t = ConnectOptions::default().ctrl_loss_tmo)]
    pub ctrl_loss_tmo: CtrlLossTimeout,

    /// How long I/O waits for a lost target before it fails while the target is still tried, in seconds; -1 never
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, default_value_t = ConnectOptions::default().fast_io_fail_tmo)]
    pub fast_io_fail_tmo: FastIoFailTimeout,

    /// How long a command may take before it is aborted, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = ConnectOptions::default().io_timeout)]
    pub io_timeout: IoTimeout,

    /// Keep copies of up to so many bytes of acknowledged writes until they are flushed, and write them again when the target's machine lost its power; at least
    /// 1MiB a reactor, or 0 for none: then the next flush or forced write of each client fails [default: 0]
    #[arg(long, value_name = "SIZE", default_value_t = ConnectOptions::default().retain, hide_default_value = true)]
    pub retain: Size,

    /// When a target comes back that does not count unsafe shutdowns: trust that it lost no writes, or fail the next flush (or write retained copies again)
    #[arg(long, value_name = "trust|fail", default_value_t = ConnectOptions::default().unsafe_shutdowns)]
    pub unsafe_shutdowns: UnsafeShutdowns,

    /// CRC of iWARP: on or off; the address's crc= goes before it
    #[arg(long, value_name = "SWITCH", default_value_t = ConnectOptions::default().crc)]
    pub crc: Crc,

    /// How long a reactor spins before it sleeps, as in 50us, and longer for answers that come soon after; 0 never spins
    #[arg(long, value_name = "TIME", default_value_t = ConnectOptions::default().poll)]
    pub poll: PollBudget,

    /// Reactor threads
    #[arg(long, value_name = "N", default_value_t = Reactors::default())]
    pub reactors: Reactors,

    /// Permissions of the NBD socket, in octal
    #[arg(long, value_name = "MODE", default_value_t = ConnectOptions::default().nbd_mode)]
    pub nbd_mode: NbdMode,

    /// Let other machines reach an NBD export over TCP, which is clear text and has no access control
    #[arg(long)]
    pub nbd_allow_remote: bool,

    /// Name of the NBD export; clients that ask for none get it as well
    #[arg(long, value_name = "NAME", default_value = "")]
    pub export_name: String,

    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
}

/// Arguments of `run`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example:\n  godwit run --config /etc/godwit/initiator.yaml")]
pub struct RunArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,

    /// Only say whether the file is right
    #[arg(long)]
    pub check: bool,
}

/// How to ask daemons.
#[derive(Clone, Debug, Args)]
pub struct AskArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// The daemon's control socket, or a folder with those of several [default: those of all daemons of this user on this machine]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

/// Arguments of `status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// A volume's name, its NQN, or its device [default: all of them]
    pub volume: Option<String>,

    /// How to ask
    #[command(flatten)]
    pub ask: AskArgs,

    /// Show it again and again, each second
    #[arg(long)]
    pub watch: bool,
}

/// Arguments of `disconnect`.
#[derive(Clone, Debug, Args)]
pub struct DisconnectArgs {
    /// The volume's name, its NQN, or its device
    pub volume: String,

    /// Also when it is mounted or open, when NBD clients are connected, and when what was written cannot be flushed
    #[arg(long)]
    pub force: bool,

    /// How to ask
    #[command(flatten)]
    pub ask: AskArgs,
}

impl ConnectArgs {
    /// The options, checked.
    pub fn options(&self) -> ConnectOptions {
        ConnectOptions {
            nr_io_queues: self.nr_io_queues.unwrap_or_else(|| IoQueues::new(self.reactors.get()).unwrap_or(IoQueues::MIN)),
            queue_size: self.queue_size,
            keep_alive_tmo: self.keep_alive_tmo,
            reconnect_delay: self.reconnect_delay,
            addresses: self.addresses.clone(),
            discover: self.discover,
            ctrl_loss_tmo: self.ctrl_loss_tmo,
            fast_io_fail_tmo: self.fast_io_fail_tmo,
            io_timeout: self.io_timeout,
            retain: self.retain,
            unsafe_shutdowns: self.unsafe_shutdowns,
            crc: self.crc,
            poll: self.poll,
            nbd_mode: self.nbd_mode,
            nbd_allow_remote: self.nbd_allow_remote,
            export_name: self.export_name.clone(),
            read_only: self.read_only,
        }
    }
}

fn target_address(text: &str) -> Result<HostPort, String> {
    match text.split_once("://") {
        Some((scheme, address)) => Err(format!("`{scheme}://` is that of the URL for all addresses: write {address}")),
        None => HostPort::parse(text, NVME_PORT).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::time::Duration;

    const URL: &str = "iwarp://127.0.0.1/nqn.2026-11.org.example:vol0";

    fn connect(arguments: &[&str]) -> Result<ConnectArgs, clap::Error> {
        let line = ["godwit", "connect", URL].iter().chain(arguments);
        Cli::try_parse_from(line).map(|cli| match cli.command {
            Command::Connect(args) => *args,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_default_to_those_of_the_configuration() {
        let options = connect(&["--nbd", "unix:/run/vol0.sock"]).unwrap().options();
        assert_eq!(options, ConnectOptions::default());
    }

    #[test]
    fn the_loss_timeout_takes_minus_one_and_zero() {
        let of = |text| connect(&["--nbd", "unix:/s", "--ctrl-loss-tmo", text]).map(|args| args.ctrl_loss_tmo);
        assert_eq!(of("-1").unwrap(), CtrlLossTimeout::Never);
        assert_eq!(of("0").unwrap(), CtrlLossTimeout::After(Duration::ZERO));
        assert!(of("-2").is_err());
    }

    #[test]
    fn further_addresses_have_the_port_of_nvme() {
        let args = connect(&["--nbd", "unix:/s", "--address", "192.0.2.7", "--address", "[::1]:7"]).unwrap();
        let addresses: Vec<_> = args.options().addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["192.0.2.7:4420", "[::1]:7"]);
        assert!(connect(&["--nbd", "unix:/s", "--address", "192.0.2.7", "--discover"]).is_err());
        let told = connect(&["--nbd", "unix:/s", "--address", "iwarp://127.0.0.4:4431"]).unwrap_err().to_string();
        assert!(told.contains("`iwarp://` is that of the URL for all addresses: write 127.0.0.4:4431"), "{told}");
    }

    #[test]
    fn somewhere_to_serve_is_needed() {
        assert!(connect(&["--device", "/dev/nbd0"]).is_ok());
        assert_eq!(connect(&["--device", "nbd0"]).unwrap_err().exit_code(), 2);
        assert!(connect(&["--device", "auto", "--connections", "2"]).is_ok());
        assert!(connect(&["--device", "/dev/sda"]).is_err());
        assert!(connect(&["--device", "/dev/nbd0", "--nbd", "unix:/s"]).is_err());
        assert!(connect(&["--nbd", "unix:/s", "--connections", "2"]).is_err());
    }

    #[test]
    fn wrong_usage_exits_with_2() {
        assert_eq!(connect(&["--queue-size", "1", "--nbd", "unix:/s"]).unwrap_err().exit_code(), 2);
        assert_eq!(connect(&["--nbd", "unix:"]).unwrap_err().exit_code(), 2);
        assert_eq!(connect(&["--nbd", "unix:/s", "--name", "b/c"]).unwrap_err().exit_code(), 2);
    }
}
