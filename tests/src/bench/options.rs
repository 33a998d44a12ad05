//! The command line of the bench.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use godwit_config::Size;

use super::sample::Section;
use super::system::{SYSTEMS, System};

/// What the user may choose.
#[derive(Clone, Debug, clap::Parser)]
#[command(
    name = "bench",
    about = "Measures godwit and each peer that this machine has, in alternation, and prints ratios and bars",
    after_help = "Examples:\n  make bench\n  SPDK_DIR=/usr/src/spdk make bench ARGS=\"--only direct\"\n  make bench ARGS=\"--quick\"\n  \
                  make bench ARGS=\"--scaling --seconds 3\"\n  make bench ARGS=\"--only godwit-memory --only nbdkit-2hop-memory\"\n\n\
                  Sections: chain (fio over NBD), one-core (the same on one core), direct (without NBD: SPDK, the floor), file (io_uring, libaio),\n\
                  fairness (a reader beside a writer, admin commands under load), scaling (few and many).\n\n\
                  Peers are measured where they are: apt-get install nbdkit qemu-utils; SPDK where it was built"
)]
pub struct BenchOptions {
    /// Time of each run [default: 2, or 1 with --quick]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,
    /// How often each case runs on each system [default: 5, or 3 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Measure this section, or this system of the chains, and no other; may be given several times
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(names()))]
    pub only: Vec<String>,
    /// Fewer and shorter runs on smaller volumes: an indication, not a measurement
    #[arg(long)]
    pub quick: bool,
    /// Measure few and many connections, requests and namespaces, too, which takes minutes
    #[arg(long)]
    pub scaling: bool,
    /// A build of SPDK, to be measured as well
    #[arg(long, value_name = "DIR", env = "SPDK_DIR")]
    pub spdk_dir: Option<PathBuf>,
    /// Write every single run to this file, as JSON
    #[arg(long, value_name = "PATH", overrides_with = "json")]
    pub json: Option<PathBuf>,
    /// Folder for the files on disk; each takes the size of a volume
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Size of each volume; a multiple of 1MiB [default: 512MiB, or 64MiB with --quick]
    #[arg(long, value_name = "SIZE", value_parser = volume_size)]
    size: Option<Size>,
}

fn names() -> Vec<&'static str> {
    Section::ALL.map(Section::name).into_iter().chain(SYSTEMS.map(|system| system.name)).collect()
}

fn volume_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error| format!("{error}"))?;
    let is_fit = size.bytes().is_multiple_of(1 << 20) && (16 << 20..=1 << 40).contains(&size.bytes());
    if is_fit { Ok(size) } else { Err("a volume is a multiple of 1MiB, from 16MiB to 1TiB".to_owned()) }
}

impl BenchOptions {
    /// Time of each run, in seconds.
    pub fn seconds(&self) -> u64 {
        self.seconds.unwrap_or(if self.quick { 1 } else { 2 })
    }

    /// How often each case runs on each system.
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 })
    }

    /// Bytes of each volume.
    pub fn size_bytes(&self) -> u64 {
        self.size.map_or(if self.quick { 64 << 20 } else { 512 << 20 }, Size::bytes)
    }

    /// Whether a section is to run. A system asks for the chains.
    pub fn asks_for(&self, section: Section) -> bool {
        let is_named = |name: &String| name == section.name() || (section == Section::Chain && System::named(name).is_some());
        let is_usual = self.only.is_empty() && section != Section::Scaling;
        is_usual || self.only.iter().any(is_named) || (section == Section::Scaling && self.scaling)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn parse(arguments: &[&str]) -> Result<BenchOptions, clap::Error> {
        BenchOptions::try_parse_from(["bench"].iter().chain(arguments))
    }

    fn sections(arguments: &[&str]) -> Vec<&'static str> {
        let options = parse(arguments).unwrap();
        Section::ALL.into_iter().filter(|section| options.asks_for(*section)).map(Section::name).collect()
    }

    #[test]
    fn accepts_volumes_of_whole_mebibytes_only() {
        let size = |size| parse(&["--size", size]).map(|options| options.size_bytes());
        assert_eq!(size("16MiB").unwrap(), 16 << 20);
        assert_eq!(size("1TiB").unwrap(), 1 << 40);
        for refused in ["15MiB", "1025GiB", "16777217", "0", "x"] {
            assert!(size(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn the_last_json_counts() {
        assert_eq!(parse(&["--json", "a", "--json", "b"]).unwrap().json, Some(PathBuf::from("b")));
    }

    #[test]
    fn rejects_a_name_that_there_is_not() {
        let error = parse(&["--only", "nbdkit"]).unwrap_err().to_string();
        assert!(error.contains("nbdkit-2hop-memory") && error.contains("one-core"), "{error}");
    }

    #[test]
    fn scaling_runs_when_it_is_asked_for() {
        let usual = ["chain", "one-core", "direct", "file", "fairness"];
        assert_eq!(sections(&[]), usual);
        assert_eq!(sections(&["--scaling"]), [&usual[..], &["scaling"]].concat());
        assert_eq!(sections(&["--only", "scaling"]), ["scaling"]);
        assert_eq!(sections(&["--only", "direct", "--only", "raw-disk"]), ["chain", "direct"]);
    }

    #[test]
    fn quick_is_less_of_everything_that_is_not_told() {
        let options = parse(&["--quick", "--rounds", "7"]).unwrap();
        assert_eq!((options.seconds(), options.rounds(), options.size_bytes()), (1, 7, 64 << 20));
    }
}
