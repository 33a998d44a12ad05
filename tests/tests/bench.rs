//! `godwit bench` on the built programs: what it measures, what it writes, and that its verification finds what is wrong.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use godwit_initiator::bench::{Pattern, Report};
use godwit_tests::daemon::{Initiator, NQN, Process, Target, binary, free_port};
use godwit_tests::tools::{run, run_failing};
use nix::sys::signal::Signal;

/// How long a run may take beyond its time.
const LIMIT: Duration = Duration::from_secs(60);

struct World {
    folder: tempfile::TempDir,
    target: Target,
}

impl World {
    fn new(export: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let export = export.replace("FOLDER", &folder.path().display().to_string());
        let mut command = Command::new(binary("godwit-target"));
        command.args(["--export", &export, "--listen", &format!("iwarp://{address}"), "--nqn", NQN, "--control"]);
        command.arg(folder.path().join("target.sock"));
        let target = Target::start_command(&mut command, address);
        Self { folder, target }
    }

    fn memory() -> Self {
        Self::new("memory:64MiB")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A bench of the volume, of a second unless told otherwise.
    fn bench(&self, arguments: &[&str]) -> Command {
        let mut command = bench(&[&[self.target.url().as_str()][..], arguments].concat());
        command.arg("--target-control").arg(self.at("target.sock"));
        command
    }

    fn read(&self, name: &str) -> Report {
        Report::read(&fs::read_to_string(self.at(name)).unwrap()).unwrap()
    }
}

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("godwit"));
    command.arg("bench").args(arguments).env("GODWIT_LOG", "error");
    if !arguments.contains(&"--time") {
        command.args(["--time", "1", "--ramp", "0"]);
    }
    command
}

/// The rows of a table, in words.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let table = text.lines().skip_while(|line| !line.starts_with("rw ")).skip(1).take_while(|line| !line.is_empty());
    table.map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn a_volume_is_measured_and_compared_with_an_earlier_run() {
    let world = World::memory();
    let (first, second, page) = (world.at("first.json"), world.at("second.json"), world.at("page.html"));
    let text = run(world.bench(&["--bs", "4k,64k", "--qd", "8", "--name", "first <one>"]).arg("--json").arg(&first));
    let table = rows(&text);
    assert_eq!(table.iter().map(|row| row[..3].to_vec()).collect::<Vec<_>>(), [["randread", "4KiB", "8"], ["randread", "64KiB", "8"]]);
    let report = world.read("first.json");
    assert_eq!((report.name.as_str(), report.config.size_bytes, report.config.queues), ("first <one>", 64 << 20, 1));
    for (case, row) in report.cases.iter().zip(&table) {
        assert_eq!((case.rw, case.depth, case.writes), (Pattern::RandRead, 8, 0));
        // Eight at a time, for a second: their latencies add up to eight seconds.
        let busy = case.latency.mean_us * case.iops / 1e6;
        assert!((7.0..9.0).contains(&busy), "{busy}: {text}");
        let latency = &case.latency;
        let rising = [latency.min_us, latency.p50_us, latency.p99_us, latency.p999_us, latency.p9999_us, latency.max_us];
        assert!(latency.min_us > 0.0 && rising.is_sorted(), "{rising:?}");
        assert!(case.cpu_us_per_io.unwrap() > 0.0 && case.target_cpu_us_per_io.unwrap() > 0.0, "{text}");
        assert_eq!(row[3].parse::<f64>().unwrap(), case.iops.round());
    }
    let mut command = world.bench(&["--qd", "8", "--name", "second", "--json", "-"]);
    command.arg("--compare").arg(&first).arg("--html").arg(&page);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // The table has made room for the JSON, and what is compared stands in it.
    fs::write(&second, &output.stdout).unwrap();
    assert_eq!(world.read("second.json").cases.len(), 1);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("IOPS vs first <one>") && said.contains(" x\n"), "{said}");
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert!(page.contains("first &lt;one&gt;") && !page.contains("<one>"));
    // Over depth: throughput, mean and p99 of 4 KiB for both, and of 64 KiB for one; over size the same for both; and distributions.
    assert_eq!(page.matches("<polyline").count(), 6 + 3 + 6 + 3);
    for outside in ["http:", "https:", "src=", "href=", "<script", "<link"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn what_is_written_is_verified_on_several_queues() {
    let world = World::memory();
    let arguments =
        ["--rw", "randwrite,randrw,read", "--bs", "4k,16k", "--qd", "16", "--queues", "2", "--verify", "--allow-writes", "--fill"];
    let text = run(&mut world.bench(&arguments));
    let checked = text.lines().find_map(|line| line.strip_prefix("verified: ")?.split(' ').next()?.parse::<u64>().ok());
    // Each of the four cases that write is read back: the whole volume, each time, for it was filled.
    assert!(checked.unwrap() > 4 * 16_384, "{text}");
    assert_eq!(rows(&text).len(), 6);
}

#[test]
fn what_changes_behind_its_back_is_named() {
    let world = World::new("FOLDER/disk.img,size=8MiB");
    let mut process = Process::start(&mut world.bench(&["--verify", "--allow-writes", "--qd", "4", "--time", "300"]));
    process.await_word("[2/2] randread").unwrap();
    let image = fs::OpenOptions::new().write(true).open(world.at("disk.img")).unwrap();
    image.write_all_at(&[0xee; 512], 100 * 4096 + 1024).unwrap();
    image.sync_all().unwrap();
    let status = process.wait(LIMIT);
    assert_eq!(status.code(), Some(1));
    let said = process.output();
    let expected = "block 100 (4096 bytes at 409600) does not hold what was written there: it differs from byte 1024 on";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn an_export_is_measured_by_the_same_generators() {
    let world = World::memory();
    let initiator = Initiator::start(&world.target.url(), &world.at("nbd.sock"));
    let port = free_port().to_string();
    let mut nbdkit = Process::start(Command::new("nbdkit").args(["-f", "-i", "127.0.0.1", "-p", &port, "memory", "64M"]));
    nbdkit.await_ready(|| std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()).unwrap();
    for uri in [initiator.uri(), format!("nbd://127.0.0.1:{port}/")] {
        let arguments =
            ["--nbd", &uri, "--rw", "randrw,write", "--bs", "4k,256k", "--qd", "16", "--queues", "2", "--verify", "--allow-writes"];
        let text = run(&mut bench(&arguments));
        let table = rows(&text);
        assert_eq!(table.len(), 4, "{text}");
        for row in table {
            assert!(row[3].parse::<f64>().unwrap() > 0.0 && row[12] == "-", "{text}");
        }
        assert!(text.contains("verified: "), "{text}");
    }
    nbdkit.kill();
    let (code, said) = run_failing(&mut bench(&["--nbd", &format!("nbd://127.0.0.1:{port}/")]));
    assert!(code == 1 && said.contains("nothing is listening there"), "{said}");
    let (code, said) = run_failing(&mut bench(&["--nbd", &initiator.uri().replace("///", "///other")]));
    assert!(code == 1 && said.contains("the server has no export of that name"), "{said}");
}

#[test]
fn a_rate_is_offered_and_no_more() {
    let world = World::memory();
    run(world.bench(&["--rate", "1000", "--qd", "4", "--queues", "2"]).arg("--json").arg(world.at("rate.json")));
    let report = world.read("rate.json");
    assert!((900.0..=1002.0).contains(&report.cases[0].iops), "{:?}", report.cases[0]);
}

#[test]
fn a_target_that_goes_ends_the_run_and_leaves_no_file() {
    let mut world = World::memory();
    let json = world.at("lost.json");
    let mut process = Process::start(world.bench(&["--time", "300", "--qd", "4"]).arg("--json").arg(&json));
    process.await_word("[1/1] randread").unwrap();
    assert!(json.exists());
    world.target.process.kill();
    let status = process.wait(LIMIT);
    let said = process.output();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.lines().last().unwrap().starts_with("error: connection to 127.0.0.1:"), "{said}");
    assert!(!json.exists());
}

#[test]
fn a_report_that_is_written_stays_when_another_cannot_be() {
    let world = World::memory();
    let json = world.at("report.json");
    let (code, said) = run_failing(world.bench(&["--qd", "1", "--html", "/dev/full"]).arg("--json").arg(&json));
    assert!(code == 1 && said.contains("cannot write /dev/full"), "{said}");
    assert_eq!(world.read("report.json").cases.len(), 1);
}

#[test]
fn a_page_may_take_the_place_of_the_table() {
    let world = World::memory();
    let output = world.bench(&["--qd", "1", "--html", "-"]).current_dir(world.folder.path()).output().unwrap();
    assert!(output.status.success() && output.stdout.starts_with(b"<!DOCTYPE html>"), "{output:?}");
    assert_eq!(rows(&String::from_utf8(output.stderr).unwrap()).len(), 1);
    assert!(!world.at("-").exists());
}

#[test]
fn a_range_that_memory_does_not_suffice_to_verify_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let mut nbdkit = Process::start(Command::new("nbdkit").args(["-f", "-U"]).arg(&socket).args(["null", "size=7E"]));
    nbdkit.await_ready(|| socket.exists()).unwrap();
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let (code, said) = run_failing(&mut bench(&["--nbd", &uri, "--verify", "--allow-writes"]));
    assert!(code == 2 && said.contains("of memory for a range of 7168PiB: choose a smaller --size"), "{said}");
    let (code, said) = run_failing(&mut bench(&["--nbd", &uri, "--target-control", "/nowhere"]));
    assert!(code == 1 && said.contains("/nowhere: no daemon listens there"), "{said}");
}

#[test]
fn a_second_interrupt_ends_what_is_stuck() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    // It takes the connection, and never says a word.
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let mut process = Process::start(&mut bench(&["--nbd", &format!("nbd+unix:///?socket={}", socket.display()), "--queues", "100"]));
    std::thread::sleep(Duration::from_millis(500));
    let began = std::time::Instant::now();
    for _ in 0..2 {
        process.signal(Signal::SIGINT);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(process.wait(LIMIT).code(), Some(1));
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[test]
fn what_cannot_be_measured_is_refused_in_one_line() {
    let world = World::memory();
    fs::write(world.at("wrong.json"), "{\"format\":77}").unwrap();
    let wrong = world.at("wrong.json").display().to_string();
    let nowhere = world.at("none/report.json").display().to_string();
    let cases: [(&[&str], i32, &str); 8] = [
        (&["--rw", "randwrite"], 2, "randwrite overwrites what is in the volume: add --allow-writes if that may be lost"),
        (&["--bs", "512"], 2, "--bs 512 is not a multiple of the volume's blocks: choose a multiple of 4096 bytes"),
        (&["--size", "1GiB"], 2, "the range ends at 1GiB, and the volume at 64MiB"),
        (&["--compare", &wrong], 2, "is a report of format 77"),
        (&["--compare", &nowhere], 2, "No such file or directory"),
        (&["--json", &nowhere], 1, "cannot write"),
        (&["--json", "same", "--html", "same"], 2, "--json and --html are both to be same"),
        (&["--hostnqn", "nqn.2026-11.org.example:other", "--target-control", "/nowhere"], 1, "/nowhere"),
    ];
    for (arguments, code, words) in cases {
        let mut command = bench(&[&[world.target.url().as_str()][..], arguments].concat());
        let (found, said) = run_failing(&mut command);
        assert!(said.contains(words), "{arguments:?}: {said}");
        assert_eq!((said.lines().count(), found), (1, code), "{arguments:?}: {said}");
    }
    let (code, said) = run_failing(&mut bench(&[&format!("iwarp://{}", world.target.address)]));
    assert!(code == 2 && said.contains("names no subsystem: add /NQN"), "{said}");
}
