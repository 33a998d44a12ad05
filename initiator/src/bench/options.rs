//! The command line of `godwit bench`, and the plan that it asks for.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use godwit_config::{ConnectOptions, Crc, IoQueues, NbdUri, PollBudget, QueueSize, Size, Url};
use godwit_memory::{ClassLayout, Layout, MAX_BUFFER_BYTES};

use super::load::{Pattern, Rate};
use super::{Case, Plan};
use crate::cli::HostArgs;

/// The deepest that a queue of 1024 entries takes, of which one always stays free.
const MOST_DEPTH: i64 = 1023;

/// Arguments of `bench`.
#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// What to measure; options are nsid=1, fpdu=mss and crc=off
    #[arg(value_name = "iwarp://HOST[:PORT]/NQN[?OPTION&OPTION]")]
    pub url: Option<Url>,

    /// Measure an NBD export instead, of any server
    #[arg(long, value_name = "nbd://HOST[:PORT]/NAME|nbd+unix:///NAME?socket=PATH", conflicts_with_all = ["url", "hostnqn", "hostid", "crc"])]
    pub nbd: Option<NbdUri>,

    /// Order and direction of requests; several are measured one after the other
    #[arg(long, value_name = "PATTERN", value_enum, value_delimiter = ',', default_value = "randread")]
    pub rw: Vec<Pattern>,

    /// Bytes of a request: one size or several, as in 4k,128k
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "4KiB", value_parser = request_size)]
    pub bs: Vec<Size>,

    /// Requests under way at a time in each queue: one depth or several
    #[arg(long, value_name = "DEPTH", value_delimiter = ',', default_value = "1,32,128", value_parser = clap::value_parser!(u16).range(1..=MOST_DEPTH))]
    pub qd: Vec<u16>,

    /// I/O queues (connections, of NBD), each with a thread and an equal part of the range
    #[arg(long, value_name = "N", default_value_t = IoQueues::MIN)]
    pub queues: IoQueues,

    /// Time of each combination, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub time: u64,

    /// Time before that which is not counted, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub ramp: u64,

    /// Offer so many requests a second, all queues together, instead of as many as are answered
    #[arg(long, value_name = "IOPS", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub rate: Option<u64>,

    /// Offer requests of a rate so many at a time, each queue for itself, instead of one by one at even distances; those beyond the depth wait
    #[arg(long, value_name = "N", default_value_t = 1, requires = "rate", value_parser = clap::value_parser!(u16).range(1..=1023))]
    pub burst: u16,

    /// Of a hundred requests of randrw, how many are reads
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=99))]
    pub rwmixread: u8,

    /// Where the range begins that is used
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub offset: Size,

    /// How long it is [default: up to the volume's end]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,

    /// Where the random numbers begin [default: another one each time]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,

    /// Write the range once before anything is measured: what was never written is answered faster than data
    #[arg(long)]
    pub fill: bool,

    /// Write data that say what they are, and check all that is read; the range is filled first where reads are measured, and read back where only writes are.
    /// Takes four bytes of memory for each block of the range
    #[arg(long)]
    pub verify: bool,

    /// Let what is in the range be overwritten
    #[arg(long)]
    pub allow_writes: bool,

    /// CRC of iWARP: on or off; the address's crc= goes before it
    #[arg(long, value_name = "SWITCH", default_value_t = ConnectOptions::default().crc)]
    pub crc: Crc,

    /// How long a thread spins before it sleeps, as in 50us; 0 never spins
    #[arg(long, value_name = "TIME", default_value_t = ConnectOptions::default().poll)]
    pub poll: PollBudget,

    /// Who this host is
    #[command(flatten)]
    pub host: HostArgs,

    /// Control socket of the target, to be asked for its processor time [default: that of the target of this machine, if it serves the volume]
    #[arg(long, value_name = "PATH")]
    pub target_control: Option<PathBuf>,

    /// What reports call this run [default: what is measured]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Write all figures to this file, as JSON; - is standard output, in place of the table
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,

    /// Write a report with charts to this file: one page of HTML that needs nothing else; - is standard output, in place of the table
    #[arg(long, value_name = "FILE|-")]
    pub html: Option<PathBuf>,

    /// Show the run that was written to this file by --json beside this one; can be given several times
    #[arg(long, value_name = "FILE")]
    pub compare: Vec<PathBuf>,
}

fn request_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error| format!("{error}"))?;
    let is_fit = size.bytes().is_multiple_of(512) && (512..=MAX_BUFFER_BYTES as u64).contains(&size.bytes());
    if is_fit { Ok(size) } else { Err("a request is a multiple of 512 bytes, from 512 to 1MiB".to_owned()) }
}

impl BenchArgs {
    /// What is to be measured. `seed` is for when none is told.
    ///
    /// # Errors
    ///
    /// Whether what is in the volume may be lost must be said.
    pub(crate) fn plan(&self, seed: u64) -> Result<Plan, String> {
        let writing = self.rw.iter().find(|pattern| pattern.is_writing());
        let why = match writing {
            Some(pattern) => Some(format!("{} overwrites what is in the volume", pattern.name())),
            None if self.verify => Some("--verify fills the range before it reads".to_owned()),
            None if self.fill => Some("--fill overwrites what is in the volume".to_owned()),
            None => None,
        };
        if let Some(why) = why.filter(|_| !self.allow_writes) {
            return Err(format!("{why}: add --allow-writes if that may be lost"));
        }
        let cases = self.rw.iter().flat_map(|&pattern| {
            let sizes = self.bs.iter().flat_map(|size| self.qd.iter().map(|&depth| (size.bytes(), depth)));
            sizes.map(move |(request_bytes, depth)| Case { pattern, request_bytes, depth })
        });
        Ok(Plan {
            cases: cases.collect(),
            time: Duration::from_secs(self.time),
            ramp: Duration::from_secs(self.ramp),
            rate: self.rate.map(|per_second| Rate { per_second, burst: self.burst }),
            read_percent: self.rwmixread,
            offset_bytes: self.offset.bytes(),
            size_bytes: self.size.map(Size::bytes),
            seed: self.seed.unwrap_or(seed),
            verify: self.verify,
            fill: self.fill,
        })
    }
}

impl Plan {
    /// Entries of an I/O queue, of which one stays free: what hosts usually ask for, or as many as the deepest case needs.
    pub(crate) fn queue_size(&self) -> QueueSize {
        let needed = QueueSize::new(self.depth().saturating_add(1)).unwrap_or(QueueSize::MAX);
        needed.max(QueueSize::DEFAULT)
    }

    /// A thread's buffers: those of a thread that serves volumes, and for each size those of all requests at a time.
    pub(crate) fn pool(&self, usual: &Layout) -> Layout {
        let add = |class: &ClassLayout, below: usize| {
            let fits = |bytes: u64| usize::try_from(bytes).is_ok_and(|bytes| bytes > below && bytes <= class.buffer_bytes);
            let more = self.demands().filter(|&(bytes, _)| fits(bytes)).map(|(_, depth)| usize::from(depth)).max();
            ClassLayout { count: class.count + more.unwrap_or(0), ..*class }
        };
        let below = std::iter::once(0).chain(usual.classes().iter().map(|class| class.buffer_bytes));
        let classes: Vec<_> = usual.classes().iter().zip(below).map(|(class, below)| add(class, below)).collect();
        Layout::new(&classes).unwrap_or_else(|_| usual.clone())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    const URL: &str = "iwarp://127.0.0.1/nqn.2026-11.org.example:vol0";

    fn parse(arguments: &[&str]) -> Result<BenchArgs, clap::Error> {
        Cli::try_parse_from(["godwit", "bench"].iter().chain(arguments)).map(|cli| match cli.command {
            Command::Bench(args) => *args,
            other => panic!("{other:?}"),
        })
    }

    fn plan(arguments: &[&str]) -> Result<Plan, String> {
        parse(&[&[URL][..], arguments].concat()).unwrap().plan(7)
    }

    #[test]
    fn every_combination_is_a_case_in_the_order_of_the_command_line() {
        let plan = plan(&["--rw", "randread,read", "--bs", "4k,128k", "--qd", "1,32"]).unwrap();
        let cases: Vec<_> = plan.cases.iter().map(|case| (case.pattern.name(), case.request_bytes, case.depth)).collect();
        let of = |name| [(name, 4096, 1), (name, 4096, 32), (name, 131_072, 1), (name, 131_072, 32)];
        assert_eq!(cases, [of("randread"), of("read")].concat());
        assert_eq!((plan.seed, plan.rate, plan.time, plan.ramp), (7, None, Duration::from_secs(10), Duration::from_secs(1)));
    }

    #[test]
    fn whoever_overwrites_must_say_so() {
        for arguments in [&["--rw", "randwrite"][..], &["--rw", "randread,randrw"], &["--rw", "write"], &["--verify"], &["--fill"]] {
            let refusal = plan(arguments).unwrap_err();
            assert!(refusal.contains("add --allow-writes if that may be lost"), "{refusal}");
            assert!(plan(&[arguments, &["--allow-writes"]].concat()).is_ok());
        }
        assert!(plan(&["--rw", "randwrite"]).unwrap_err().starts_with("randwrite overwrites"));
        assert!(plan(&["--rw", "read,randread"]).is_ok());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let wrong = [
            &["--bs", "1000"][..],
            &["--bs", "2MiB"],
            &["--bs", "0"],
            &["--qd", "0"],
            &["--qd", "1024"],
            &["--queues", "0"],
            &["--rw", "trim"],
            &["--rate", "0"],
            &["--burst", "20"],
            &["--rate", "1000", "--burst", "0"],
            &["--rwmixread", "100"],
            &["--nbd", "nbd://127.0.0.1/"],
        ];
        for arguments in wrong {
            assert_eq!(parse(&[&[URL][..], arguments].concat()).unwrap_err().exit_code(), 2, "{arguments:?}");
        }
        assert!(parse(&["--nbd", "nbd://127.0.0.1/"]).is_ok());
        assert!(parse(&["--nbd", "nbd://127.0.0.1/", "--crc", "off"]).is_err());
    }

    #[test]
    fn queues_are_as_deep_as_the_deepest_case() {
        let entries = |depth| plan(&["--qd", depth]).unwrap().queue_size().get();
        assert_eq!([entries("1"), entries("127"), entries("1,128"), entries("1023")], [128, 128, 129, 1024]);
    }

    #[test]
    fn pools_have_a_buffer_for_each_request_beside_the_usual_ones() {
        let usual = Layout::of_total(Layout::MINIMUM_BYTES);
        let counts =
            |arguments: &[&str]| plan(arguments).unwrap().pool(&usual).classes().iter().map(|class| class.count).collect::<Vec<_>>();
        assert_eq!(counts(&["--qd", "1"]), [257, 64, 24, 3]);
        assert_eq!(counts(&["--bs", "4k,8k,128k,1M", "--qd", "1,8"]), [264, 72, 32, 11]);
        assert_eq!(counts(&["--qd", "1", "--fill", "--allow-writes"]), [257, 64, 24 + 32, 3]);
    }
}
