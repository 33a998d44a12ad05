//! SPDK, where the machine has a build of it: its target over NVMe/TCP on one core, driven by its own `spdk_nvme_perf` on another.
//!
//! Both spin for as long as they run, so the target is stopped (as SIGSTOP does) while others are measured. A rate is offered by a limit on the
//! block device, for perf has none: it lets the requests of a millisecond through together, so there is no other pace for SPDK. Processor time is then
//! that of both processes between two looks while perf works.

mod perf;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use godwit_initiator::demo::process::cpu_time;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::case::{AT_A_RATE, Case, LARGE_WRITE};
use super::contest::{ContestError, Contestant, finish};
use super::sample::Figures;
use super::stage::scratch;
use crate::daemon::{Process, free_port};

/// Memory that the target takes besides the volumes, and perf in all, in MiB.
const TARGET_MIB: u64 = 768;
const PERF_MIB: u64 = 512;

/// Bytes of the volume whose rate is limited.
const LIMITED_BYTES: u64 = 64 << 20;

const BLOCK_BYTES: u64 = 4096;

/// Requests a second of the volume whose rate is limited.
const LIMIT: Option<u64> = match AT_A_RATE.rate {
    Some(rate) => Some(rate.per_second),
    None => None,
};

/// How much longer than its time a run may take: it starts slowly.
const PATIENCE: Duration = Duration::from_secs(30);

/// What perf says when it begins to measure.
const AT_WORK: &str = "Launching workers";

/// Why a folder is no build of SPDK, if it is none.
pub fn lacks(folder: &Path) -> Option<String> {
    let missing = ["nvmf_tgt", "spdk_nvme_perf"].into_iter().find(|name| !program(folder, name).is_file())?;
    Some(format!("{}: not built", program(folder, missing).display()))
}

fn program(folder: &Path, name: &str) -> PathBuf {
    folder.join("build/bin").join(name)
}

/// One of the two volumes.
#[derive(Debug)]
struct Volume {
    nqn: String,
    port: u16,
}

/// SPDK's target, and where its programs are.
#[derive(Debug)]
pub struct Spdk {
    // Field order is teardown order.
    target: Process,
    volumes: [Volume; 2],
    perf: PathBuf,
    core: usize,
    _folder: tempfile::TempDir,
}

impl Spdk {
    /// Starts the target on the first core, and fills its volume.
    ///
    /// # Errors
    ///
    /// When it does not come up.
    pub fn start(build: &Path, size_bytes: u64, [first, second]: [usize; 2], stop: &AtomicBool) -> Result<Self, ContestError> {
        let of = |error: std::io::Error| ContestError::of(&error);
        let folder = scratch().map_err(of)?;
        let volumes = ["free", "limited"].map(|name| Volume { nqn: format!("nqn.2026-11.org.example:spdk-{name}"), port: free_port() });
        let config = folder.path().join("target.json");
        fs::write(&config, format!("{:#}\n", configuration(&volumes, size_bytes))).map_err(of)?;
        let mut command = Command::new(program(build, "nvmf_tgt"));
        command.args(["-m", &mask(first), "-u", "--no-huge", "-s", &(((size_bytes + LIMITED_BYTES) >> 20) + TARGET_MIB).to_string()]);
        command.arg("-c").arg(&config).arg("-r").arg(folder.path().join("rpc.sock"));
        let mut target = Process::try_start(&mut command).map_err(of)?;
        let last = format!("port {} ***", volumes[1].port);
        target.await_word(&last).map_err(|error| ContestError::of(&error))?;
        let mut spdk = Self { target, volumes, perf: program(build, "spdk_nvme_perf"), core: second, _folder: folder };
        // Memory that was never written is answered faster than data: two seconds write it several times over.
        spdk.run(&LARGE_WRITE, Duration::from_secs(2), stop)?;
        Ok(spdk)
    }

    fn perf(&self, case: &Case, seconds: u64) -> Command {
        let Volume { nqn, port } = &self.volumes[usize::from(case.rate.is_some())];
        // Its words are to come when it says them: they tell when to look. With a pipe they would come at its end.
        let mut command = Command::new("stdbuf");
        command.arg("--output=L").arg(&self.perf);
        command.args(["-c", &mask(self.core), "--no-huge", "-s", &PERF_MIB.to_string(), "-LL", "-t", &seconds.to_string()]);
        command.args(["-q", &case.depth.to_string(), "-o", &case.block_bytes.to_string(), "-w", case.pattern]);
        command.args(["-r", &format!("trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{port} subnqn:{nqn}")]);
        command
    }

    fn measure(&self, case: &Case, time: Duration, stop: &AtomicBool) -> Result<Figures, ContestError> {
        // A second more where processor time is looked at, for the looks have to be within.
        let seconds = (time + Duration::from_millis(999)).as_secs().max(1) + u64::from(case.rate.is_some());
        let mut process = Process::try_start(&mut self.perf(case, seconds)).map_err(|error| ContestError::of(&error))?;
        let burnt = if case.rate.is_some() { Some(self.watch(&mut process, time, stop)?) } else { None };
        let said = finish(&mut process, Duration::from_secs(seconds) + PATIENCE, stop)?;
        let summary = perf::Summary::find(&said).ok_or_else(|| ContestError::Failed("spdk_nvme_perf printed no summary".to_owned()))?;
        let cpu_us = burnt.filter(|_| summary.iops > 0.0).map(|per_second| per_second * 1e6 / summary.iops);
        Ok(Figures {
            iops: summary.iops,
            bytes_per_second: summary.iops * f64::from(case.block_bytes),
            mean_us: summary.mean_us,
            p50_us: summary.percentile_us(50.0),
            p99_us: summary.percentile_us(99.0),
            cpu_us,
        })
    }

    /// Processor time that both processes take each second while perf works.
    fn watch(&self, perf: &mut Process, time: Duration, stop: &AtomicBool) -> Result<f64, ContestError> {
        perf.await_word(AT_WORK).map_err(|error| ContestError::of(&error))?;
        let pause = |limit: Duration| {
            let deadline = Instant::now() + limit;
            while Instant::now() < deadline && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let look = || cpu_time(self.target.pid()).zip(cpu_time(perf.pid())).map(|(target, perf)| target + perf);
        pause(Duration::from_millis(300));
        let (begin, before) = (Instant::now(), look());
        pause(time);
        let (elapsed, after) = (begin.elapsed(), look());
        if !perf.is_running() {
            return Err(ContestError::Failed("spdk_nvme_perf ended before its time".to_owned()));
        }
        let burnt = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        burnt.map(|burnt| burnt.as_secs_f64() / elapsed.as_secs_f64()).ok_or_else(|| ContestError::Failed("it is gone".to_owned()))
    }
}

impl Contestant for Spdk {
    fn name(&self) -> &'static str {
        "spdk"
    }

    fn takes(&self, case: &Case) -> bool {
        case.rate.is_none_or(|rate| Some(rate.per_second) == LIMIT)
    }

    fn run(&mut self, case: &Case, time: Duration, stop: &AtomicBool) -> Result<Figures, ContestError> {
        if !self.target.is_running() {
            return Err(ContestError::Failed("nvmf_tgt has ended".to_owned()));
        }
        self.target.signal(Signal::SIGCONT);
        let figures = self.measure(case, time, stop);
        if self.target.is_running() {
            self.target.signal(Signal::SIGSTOP);
        }
        figures
    }
}

/// Of one core, in hexadecimal.
fn mask(core: usize) -> String {
    let (zeroes, digit) = (core / 4, 1 << (core % 4));
    format!("0x{digit:x}{}", "0".repeat(zeroes))
}

fn configuration(volumes: &[Volume; 2], size_bytes: u64) -> Value {
    let disk = |name: &str, bytes: u64| json!({ "method": "bdev_malloc_create", "params": { "name": name, "num_blocks": bytes / BLOCK_BYTES, "block_size": BLOCK_BYTES } });
    let limit = json!({ "method": "bdev_set_qos_limit", "params": { "name": "Malloc1", "rw_ios_per_sec": LIMIT } });
    let mut fabric = vec![json!({ "method": "nvmf_create_transport", "params": { "trtype": "TCP" } })];
    for (Volume { nqn, port }, (number, disk)) in volumes.iter().zip([(0, "Malloc0"), (1, "Malloc1")]) {
        let serial = format!("SPDK{number}");
        let listener = json!({ "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port.to_string() });
        fabric.extend([
            json!({ "method": "nvmf_create_subsystem", "params": { "nqn": nqn, "allow_any_host": true, "serial_number": serial } }),
            json!({ "method": "nvmf_subsystem_add_ns", "params": { "nqn": nqn, "namespace": { "nsid": 1, "bdev_name": disk } } }),
            json!({ "method": "nvmf_subsystem_add_listener", "params": { "nqn": nqn, "listen_address": listener } }),
        ]);
    }
    json!({ "subsystems": [
        { "subsystem": "bdev", "config": [disk("Malloc0", size_bytes), disk("Malloc1", LIMITED_BYTES), limit] },
        { "subsystem": "nvmf", "config": fabric },
    ]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_the_bit_of_its_core() {
        assert_eq!([0, 1, 3, 4, 65].map(mask), ["0x1", "0x2", "0x8", "0x10", "0x20000000000000000"]);
    }

    #[test]
    fn a_folder_without_the_programs_is_no_build() {
        let folder = tempfile::tempdir().unwrap();
        assert!(lacks(folder.path()).unwrap().ends_with("build/bin/nvmf_tgt: not built"));
        fs::create_dir_all(folder.path().join("build/bin")).unwrap();
        fs::write(program(folder.path(), "nvmf_tgt"), "").unwrap();
        assert!(lacks(folder.path()).unwrap().ends_with("spdk_nvme_perf: not built"));
        fs::write(program(folder.path(), "spdk_nvme_perf"), "").unwrap();
        assert_eq!(lacks(folder.path()), None);
    }

    #[test]
    fn both_volumes_are_exported_and_one_is_limited() {
        let volumes = [1, 2].map(|port| Volume { nqn: format!("nqn.2026-11.org.example:{port}"), port });
        let value = configuration(&volumes, 1 << 20);
        let [disks, fabric] = [0, 1].map(|index| value["subsystems"][index]["config"].as_array().unwrap().clone());
        assert_eq!((&disks[0]["params"]["num_blocks"], &disks[2]["params"]["rw_ios_per_sec"]), (&json!(256), &json!(20_000)));
        let ports: Vec<_> = fabric.iter().filter_map(|call| call["params"]["listen_address"]["trsvcid"].as_str()).collect();
        assert_eq!((fabric.len(), ports), (7, vec!["1", "2"]));
    }
}
