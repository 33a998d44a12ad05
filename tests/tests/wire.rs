//! What goes over the wire, seen by decoders that are not ours: tshark for MPA, DDP and RDMAP; a small independent one for the capsules.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

#[path = "../../common/nvme/tests/golden/capture.rs"]
mod capture;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use godwit_tests::daemon::{Initiator, NQN, Process, Target, binary, free_port, wait_for};
use godwit_tests::tools::{fio, run};

/// Packets that two processors sent may be captured in the wrong order, which tshark otherwise takes for the order of the stream.
const IN_ANY_ORDER: [&str; 2] = ["-o", "tcp.reassemble_out_of_order:TRUE"];

/// A capture of the loopback device, as long as it lives.
struct Capture {
    process: Process,
    path: std::path::PathBuf,
}

impl Capture {
    fn start(path: &Path, port: u16) -> Self {
        let filter = format!("tcp port {port}");
        let mut command = Command::new("dumpcap");
        command.args(["-q", "-P", "-i", "lo", "-B", "64", "-f", &filter, "-w"]).arg(path);
        let process = Process::start(&mut command);
        wait_for("the capture starts", Duration::from_secs(10), || fs::metadata(path).is_ok_and(|file| file.len() >= 24));
        thread::sleep(Duration::from_millis(300));
        Self { process, path: path.to_owned() }
    }

    fn finish(mut self) -> Vec<u8> {
        // What is on its way to the file.
        thread::sleep(Duration::from_millis(500));
        self.process.signal(nix::sys::signal::Signal::SIGINT);
        self.process.wait(Duration::from_secs(10));
        fs::read(&self.path).unwrap()
    }
}

/// Messages by opcode as a daemon's log tells them, over all its connections: those sent and those received.
fn logged(output: &str) -> [BTreeMap<u8, u64>; 2] {
    let mut sums = [BTreeMap::new(), BTreeMap::new()];
    for line in output.lines().filter(|line| line.contains("RDMAP messages by opcode")) {
        let (_, counts) = line.split_once("sent ").unwrap();
        let (sent, received) = counts.split_once("; received ").unwrap();
        for (sum, text) in sums.iter_mut().zip([sent, received]) {
            for (opcode, count) in text.split_whitespace().filter_map(|pair| pair.split_once(':')) {
                *sum.entry(opcode.parse().unwrap()).or_default() += count.parse::<u64>().unwrap();
            }
        }
    }
    sums
}

/// Messages by opcode as tshark finds them (segments that are the last of their message), in one direction.
fn dissected(capture: &Path, direction: &str) -> BTreeMap<u8, u64> {
    let mut command = Command::new("tshark");
    command.args(IN_ANY_ORDER).arg("-r").arg(capture).args(["-Y", direction, "-T", "fields", "-E", "occurrence=a"]);
    command.args(["-e", "iwarp_ddp.last_flag", "-e", "iwarp_rdma.opcode"]);
    let mut counts = BTreeMap::new();
    for line in run(&mut command).lines() {
        let (flags, opcodes) = line.split_once('\t').unwrap_or_default();
        let (flags, opcodes): (Vec<_>, Vec<_>) = (flags.split(',').collect(), opcodes.split(',').collect());
        assert_eq!(flags.len(), opcodes.len(), "{line}");
        for (flag, opcode) in flags.iter().zip(opcodes).filter(|(_, opcode)| !opcode.is_empty()) {
            if matches!(*flag, "1" | "True") {
                let opcode = opcode.trim_start_matches("0x");
                *counts.entry(u8::from_str_radix(opcode, 16).unwrap()).or_default() += 1;
            }
        }
    }
    counts
}

/// Every capsule is a command that NVMe over Fabrics knows, is answered once, and moved exactly the data that it names.
fn check_capsules(queues: &[capture::Queue]) -> usize {
    let mut checked = 0;
    for queue in queues {
        assert_eq!((queue.request.len(), queue.accept.len()), (32, 32), "private data of NVMe/RDMA");
        let qid = u16::from_le_bytes([queue.request[2], queue.request[3]]);
        for exchange in &queue.exchanges {
            let capsule = &exchange.capsule;
            let (opcode, flags, sgl_type) = (capsule[0], capsule[1], capsule[39]);
            assert_eq!(flags, 0x40, "SGLs, not fused");
            let admin = [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x7f];
            let io = [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x7f];
            assert!(if qid == 0 { admin.contains(&opcode) } else { io.contains(&opcode) }, "opcode {opcode:#x} on queue {qid}");
            let Some(response) = exchange.response else {
                assert_eq!(opcode, 0x0c, "only the request for events stays unanswered");
                continue;
            };
            let failed = u16::from_le_bytes([response[14], response[15]]) >> 1 != 0;
            let length = u32::from_le_bytes([capsule[32], capsule[33], capsule[34], 0]) as usize;
            // Bits 0 and 1 of an opcode, and of a Fabrics command's type, are the direction of its data.
            let direction = if opcode == 0x7f { capsule[4] } else { opcode } & 3;
            match (sgl_type, direction) {
                (0x01, 1) => assert_eq!(capsule.len() - 64, length, "in-capsule data"),
                (0x40 | 0x4f, 1) if !failed => assert_eq!(exchange.fetched.len(), length, "RDMA Read"),
                (0x40 | 0x4f, 2) if !failed => assert_eq!(exchange.written.len(), length, "RDMA Write"),
                (0x40, 0) => assert_eq!(length, 0),
                other => assert!(failed, "{other:?}"),
            }
            if sgl_type == 0x4f && !failed {
                let key = u32::from_le_bytes([capsule[35], capsule[36], capsule[37], capsule[38]]);
                assert_eq!(exchange.invalidated, Some(key), "the answer invalidates the command's key");
            }
            checked += 1;
        }
    }
    checked
}

#[test]
fn the_independent_decoder_agrees_with_the_kernel() {
    let golden = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/siw-nvme.pcap")).unwrap();
    // 67 commands, of which two wait for an event.
    assert_eq!(check_capsules(&capture::queues(&golden, 4420)), 65);
}

#[test]
#[ignore = "needs root, to capture packets"]
fn foreign_decoders_understand_every_frame() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let path = folder.path().join("wire.pcap");
    let capture = Capture::start(&path, port);
    let address = format!("127.0.0.1:{port}").parse().unwrap();
    let mut command = Command::new(binary("godwit-target"));
    command.args(["--log", "debug", "--export", "memory:64MiB", "--listen", &format!("iwarp://127.0.0.1:{port}"), "--nqn", NQN]);
    // Waits by connecting, which is one more connection on the wire, without a frame.
    let mut target = Target::start_command(&mut command, address);
    let socket = folder.path().join("nbd.sock");
    let mut initiator = Initiator::start_with(&target.url(), &socket, &["--log", "debug"]);
    for pattern in ["write", "randrw"] {
        fio(&initiator.uri(), &[&format!("--rw={pattern}"), "--bsrange=4k-256k", "--size=8m", "--iodepth=8", "--verify=crc32c"]);
    }
    initiator.process.terminate();
    target.process.terminate();
    let bytes = capture.finish();

    let (to_target, to_host) = (format!("tcp.dstport == {port}"), format!("tcp.srcport == {port}"));
    // What TCP does (0x02000000: its sequence analysis) is the kernel's affair.
    let faults = "_ws.malformed || (_ws.expert.severity >= 0x00600000 && !(_ws.expert.group == 0x02000000))";
    let faulty = run(Command::new("tshark").args(IN_ANY_ORDER).arg("-r").arg(&path).args(["-Y", faults]));
    assert_eq!(faulty.trim(), "", "frames that tshark finds fault with");

    let [host_sent, host_received] = logged(&initiator.process.output());
    let [target_sent, target_received] = logged(&target.process.output());
    let (from_host, from_target) = (dissected(&path, &to_target), dissected(&path, &to_host));
    assert!(from_host.values().sum::<u64>() > 100 && from_target.values().sum::<u64>() > 100, "{from_host:?} {from_target:?}");
    assert_eq!(host_sent, from_host, "sent by the host, and seen on the wire");
    assert_eq!(target_received, from_host, "received by the target, and seen on the wire");
    assert_eq!(target_sent, from_target, "sent by the target, and seen on the wire");
    assert_eq!(host_received, from_target, "received by the host, and seen on the wire");

    let queues: Vec<_> = capture::queues(&bytes, port);
    assert!(check_capsules(&queues) > 100);
}
