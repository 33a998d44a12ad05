//! Commands that no file system sends: whatever nvme-cli can ask is answered, right or wrong, and never costs the association.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use godwit_tests::daemon::NQN;
use godwit_tests::lab::disk::Disk;
use godwit_tests::lab::nvme::{Controller, Host};
use godwit_tests::lab::rdma::Device;
use godwit_tests::lab::{Guest, dmesg, in_guest};
use godwit_tests::tools::{run, run_failing};

use crate::cells::{Provider, address, finish, step};
use crate::offers::{self, Offer};

/// The namespaces: of 512-byte blocks, of 4096-byte blocks, and one that is not to be written.
const SMALL: u32 = 1;
const LARGE: u32 = 2;
const READ_ONLY: u32 = 3;

const MIB: u32 = 16;

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn linux_host_may_ask_for_anything() {
    in_guest(&Guest::with(Device::Siw).shared(), || {
        // nvme-cli takes the memory of long commands from there.
        fs::write("/proc/sys/vm/nr_hugepages", "20").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let host = Host::numbered(1);
        let offer = Offer::new(NQN).with(MIB, "block_size: 512").with(MIB, "block_size: 4096").with(MIB, "read_only: true");
        let mut target = offers::start(folder.path(), Provider::Iwarp, address(), &[offer]);
        let controller = host.connect(address(), NQN, &[]);
        let id = controller.attribute("cntlid");
        let [small, large, read_only] = [SMALL, LARGE, READ_ONLY].map(|nsid| Disk::at(controller.disk(nsid)));

        step("blocks of 512 and of 4096 bytes");
        for (disk, block) in [(&small, "512"), (&large, "4096")] {
            assert_eq!(disk.queue("logical_block_size"), block);
            assert_eq!(disk.size_bytes(), u64::from(MIB) << 20);
            disk.verify_range(0, 4);
        }
        step("a namespace that is not to be written");
        let ro = Path::new("/sys/class/block").join(read_only.path().file_name().unwrap()).join("ro");
        assert_eq!(fs::read_to_string(ro).unwrap().trim(), "1");
        assert_eq!(read_only.read(0, 4096).unwrap(), [0; 4096]);

        step("odd lengths");
        odd_lengths(&small, folder.path());
        step("out of range");
        out_of_range(&small, 512);
        out_of_range(&large, 4096);
        step("many ranges");
        many_ranges(&large);
        step("a user who is not root");
        passthrough_of_a_user(&read_only);
        step("other I/O commands");
        io_commands(&small);
        step("admin commands");
        admin_commands(&controller, folder.path());

        assert_eq!((controller.attribute("state").as_str(), controller.attribute("cntlid")), ("live", id));
        let log = dmesg();
        for word in ["error recovery", "econnect", "timeout"] {
            assert!(!log.contains(word), "{log}");
        }
        controller.disconnect();
        finish(&mut target.process);
    });
}

/// What a command of nvme-cli is to end with: a part of what it prints when it fails, nothing when it does not.
fn expect(device: &Path, command: &str, arguments: &[&str], status: &str) -> Result<String, String> {
    let mut nvme = Command::new("nvme");
    nvme.arg(command).arg(device).args(arguments);
    let output = nvme.output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let is_right = if status.is_empty() { output.status.success() } else { !output.status.success() && said.contains(status) };
    if is_right { Ok(said) } else { Err(format!("{command} {arguments:?}: not `{status}` but {}: {said}", output.status)) }
}

/// Runs all of them, and tells all that went wrong.
fn expect_all(device: &Path, cases: &[(&str, &[&str], &str)]) {
    let wrong: Vec<_> = cases.iter().filter_map(|(command, arguments, status)| expect(device, command, arguments, status).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// One command each, at odd addresses: written, read, compared; and a compare that fails.
fn odd_lengths(disk: &Disk, folder: &Path) {
    let (written, read) = (folder.join("written"), folder.join("read"));
    for (seed, blocks) in [511_usize, 512, 513, 1023, 1024, 1025].into_iter().enumerate() {
        let bytes = blocks * 512;
        let pattern: Vec<u8> = (0..bytes).map(|index| (index / 512 * 7 + index + seed).to_le_bytes()[0]).collect();
        fs::write(&written, &pattern).unwrap();
        for start in ["1", "511"] {
            let (count, size) = ((blocks - 1).to_string(), bytes.to_string());
            let range = |data: &Path| ["-s", start, "-c", &count, "-z", &size, "-d", &data.display().to_string()].map(str::to_owned);
            let nvme = |command: &str, data: &Path| {
                run(Command::new("nvme").arg(command).arg(disk.path()).args(range(data)));
            };
            nvme("write", &written);
            nvme("read", &read);
            assert!(fs::read(&read).unwrap() == pattern, "{blocks} blocks at {start}");
            // Once is enough of what ends at the kernel's limit of a command and of what does not.
            if start == "1" || !matches!(blocks, 513 | 1025) {
                continue;
            }
            nvme("compare", &written);
            let mut other = pattern.clone();
            *other.last_mut().unwrap() ^= 1;
            fs::write(&read, &other).unwrap();
            let (_, said) = run_failing(Command::new("nvme").arg("compare").arg(disk.path()).args(range(&read)));
            assert!(said.contains("(0x4285)") || said.contains("(0x285)"), "{said}");
        }
    }
}

fn out_of_range(disk: &Disk, block_bytes: u64) {
    let blocks = disk.size_bytes() / block_bytes;
    let (end, last) = (blocks.to_string(), (blocks - 1).to_string());
    let (one, two) = (block_bytes.to_string(), (2 * block_bytes).to_string());
    let beyond = "(0x4080)";
    let cases: [(&str, &[&str], &str); 8] = [
        ("read", &["-s", &last, "-c", "0", "-z", &one, "-d", "/dev/null"], ""),
        ("read", &["-s", &end, "-c", "0", "-z", &one], beyond),
        ("read", &["-s", &last, "-c", "1", "-z", &two], beyond),
        ("write", &["-s", &end, "-c", "0", "-z", &one, "-d", "/dev/zero"], beyond),
        ("write", &["-s", &last, "-c", "1", "-z", &two, "-d", "/dev/zero"], beyond),
        ("write", &["-s", "0xffffffffffffffff", "-c", "0", "-z", &one, "-d", "/dev/zero"], beyond),
        ("compare", &["-s", &end, "-c", "0", "-z", &one, "-d", "/dev/zero"], beyond),
        ("write-zeroes", &["-s", &last, "-c", "1"], beyond),
    ];
    expect_all(disk.path(), &cases);
}

/// Ten ranges in one command are given back, and what is between them is not; one over the end is refused.
fn many_ranges(disk: &Disk) {
    let pattern: Vec<u8> = (0..MIB << 20).map(|index| (index >> 12).to_le_bytes()[0] | 1).collect();
    disk.write(0, &pattern);
    let starts: Vec<usize> = (1..=10).map(|number| number * 100).collect();
    let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let (starts_list, lengths) = (list(&starts), list(&[10; 10]));
    run(Command::new("nvme").arg("dsm").arg(disk.path()).args(["--ad", "-s", &starts_list, "-b", &lengths]));
    let mut expected = pattern;
    for start in starts {
        expected[start * 4096..(start + 10) * 4096].fill(0);
    }
    assert!(disk.read(0, expected.len()).unwrap() == expected, "after ten ranges");
    let last = (disk.size_bytes() / 4096 - 1).to_string();
    expect(disk.path(), "dsm", &["--ad", "-s", &last, "-b", "2"], "(0x4080)").unwrap();
    assert!(disk.read(0, expected.len()).unwrap() == expected, "after a range over the end");
}

/// Who may read the character device may ask, and may not write: the kernel's rule, by what we report of our commands' effects.
fn passthrough_of_a_user(disk: &Disk) {
    let name = disk.path().file_name().unwrap().to_string_lossy().replacen("nvme", "ng", 1);
    let device = PathBuf::from("/dev").join(name);
    fs::set_permissions(&device, Permissions::from_mode(0o604)).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "nvme", arguments[0]]).arg(&device).args(&arguments[1..]);
        command
    };
    run(&mut as_nobody(&["io-passthru", "-o", "2", "-n", "3", "-l", "4096", "-r", "--cdw10=0", "--cdw12=0"]));
    run(&mut as_nobody(&["id-ns", "-n", "3"]));
    run(&mut as_nobody(&["id-ctrl"]));
    let refused = |arguments: &[&str]| {
        let (_, said) = run_failing(&mut as_nobody(arguments));
        assert!(said.contains("Permission denied"), "{arguments:?}: {said}");
    };
    refused(&["io-passthru", "-o", "1", "-n", "3", "-l", "4096", "-w", "--cdw10=0", "--cdw12=0", "-i", "/dev/zero"]);
    refused(&["ns-descs", "-n", "3"]);
}

fn io_commands(disk: &Disk) {
    let opcode = "(0x4001)";
    let cases: &[(&str, &[&str], &str)] = &[
        ("flush", &[], ""),
        ("resv-report", &[], opcode),
        ("verify", &["-s", "0", "-c", "0"], opcode),
        ("write-uncor", &["-s", "0", "-c", "0"], opcode),
        ("io-passthru", &["-o", "0x70", "-n", "1"], opcode),
        // A data length that is not what the command says.
        ("io-passthru", &["-o", "2", "-n", "1", "-l", "512", "-r", "--cdw12=7"], "(0x400f)"),
    ];
    expect_all(disk.path(), cases);
}

fn admin_commands(controller: &Controller, folder: &Path) {
    let scratch = folder.join("scratch").display().to_string();
    let (opcode, field, log, parameter) = ("(0x4001)", "(0x4002)", "(0x4109)", "(0x400b)");
    let cases: &[(&str, &[&str], &str)] = &[
        ("id-ctrl", &[], ""),
        ("id-ns", &["-n", "1"], ""),
        // Not active: zeroes.
        ("id-ns", &["-n", "4"], ""),
        ("id-ns", &["-n", "0xffffffff"], parameter),
        ("list-ns", &[], ""),
        ("ns-descs", &["-n", "1"], ""),
        ("nvm-id-ctrl", &[], ""),
        ("list-ns", &["-a"], field),
        ("list-ctrl", &[], field),
        ("id-nvmset", &[], field),
        ("id-iocs", &[], field),
        ("primary-ctrl-caps", &[], field),
        ("smart-log", &[], ""),
        ("error-log", &[], ""),
        ("fw-log", &[], ""),
        ("effects-log", &[], ""),
        ("changed-ns-list-log", &[], ""),
        ("get-log", &["-i", "0x70", "-l", "1024"], log),
        ("ana-log", &[], log),
        ("endurance-log", &["-g", "1"], log),
        ("telemetry-log", &["-o", &scratch], log),
        ("self-test-log", &[], log),
        ("supported-log-pages", &[], log),
        ("format", &["-n", "1", "--force"], opcode),
        ("sanitize", &["-a", "2"], opcode),
        ("fw-commit", &["-s", "1", "-a", "1"], opcode),
        ("device-self-test", &["-s", "1"], opcode),
        ("dir-receive", &["-n", "1", "-D", "0", "-O", "1", "-l", "4096"], opcode),
        ("admin-passthru", &["--opcode=0x70"], opcode),
        ("set-feature", &["-f", "6", "-v", "0"], "(0x410e)"),
        ("set-feature", &["-f", "0x81", "-l", "16", "-d", "/dev/zero"], "(0x400c)"),
        ("ns-rescan", &[], ""),
    ];
    expect_all(&controller.device(), cases);
    let features = |ids: &[&str], status| {
        let wrong: Vec<_> = ids.iter().filter_map(|id| expect(&controller.device(), "get-feature", &["-f", id], status).err()).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    };
    features(&["1", "2", "4", "5", "6", "7", "0xb", "0xf"], "");
    features(&["3", "8", "9", "0xa", "0xc", "0xe", "0x10", "0x16", "0x80", "0x82", "0x84"], field);
}
