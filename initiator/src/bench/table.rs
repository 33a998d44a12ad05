//! Tables for people.

use std::fmt::Write as _;

use godwit_config::Size;

use super::load::Pattern;
use super::report::{CaseReport, Config, Report};
use crate::columns::{Side, columns};

/// Columns as wide as they need; the first to the left, the others to the right.
pub fn aligned(rows: &[Vec<String>]) -> String {
    columns(rows, Side::Right)
}

/// The figures of a run, and how they compare with those of others.
pub(crate) fn render(report: &Report, others: &[Report]) -> String {
    let mut text = format!("{}: {}, latency in microseconds\n\n", report.subject, queues(report.config.queues));
    let titles = others.iter().map(|other| format!("IOPS vs {}", other.name));
    let mut rows = vec![HEADER.map(str::to_owned).into_iter().chain(titles).collect()];
    rows.extend(report.cases.iter().map(|case| {
        let ratios = others.iter().map(|other| {
            let ratio = other.case_like(case).filter(|theirs| theirs.iops > 0.0).map(|theirs| case.iops / theirs.iops);
            ratio.map_or_else(|| ABSENT.to_owned(), |ratio| format!("{ratio:.2} x"))
        });
        cells(case).into_iter().chain(ratios).collect::<Vec<_>>()
    }));
    text += &aligned(&rows);
    let mixes = report.cases.iter().any(|case| case.rw == Pattern::RandRw);
    for other in others {
        let differences = differences(&report.config, &other.config, mixes);
        if !differences.is_empty() {
            let _ = writeln!(text, "\n{} was measured otherwise: {}", other.name, differences.join(", "));
        }
    }
    if report.config.verify {
        let checked: u64 = report.cases.iter().map(|case| case.checked_blocks).sum();
        let _ = writeln!(text, "\nverified: {checked} blocks, each as it was written");
    }
    text
}

/// What makes the figures of another run unlike those of this one, as it is there.
fn differences(ours: &Config, theirs: &Config, mixes: bool) -> Vec<String> {
    let differences = [
        (ours.queues != theirs.queues).then(|| queues(theirs.queues)),
        ((ours.rate, ours.burst) != (theirs.rate, theirs.burst)).then(|| theirs.offered()),
        (ours.verify != theirs.verify).then(|| if theirs.verify { "verified" } else { "not verified" }.to_owned()),
        (mixes && ours.read_percent != theirs.read_percent).then(|| format!("{} % of randrw are reads", theirs.read_percent)),
        (ours.crc != theirs.crc).then(|| theirs.crc.as_ref().map_or_else(|| "no iWARP".to_owned(), |crc| format!("CRC {crc}"))),
    ];
    differences.into_iter().flatten().collect()
}

/// So many, in words.
pub(crate) fn queues(count: usize) -> String {
    if count == 1 { "1 queue".to_owned() } else { format!("{count} queues") }
}

const ABSENT: &str = "-";

/// The titles of [`cells`].
pub(crate) const HEADER: [&str; 13] =
    ["rw", "bs", "qd", "IOPS", "MB/s", "mean", "p50", "p99", "p99.9", "p99.99", "max", "CPU us/IO", "target CPU"];

/// The figures of a case.
pub(crate) fn cells(case: &CaseReport) -> [String; 13] {
    let latency = &case.latency;
    let cpu = |us: Option<f64>| us.map_or_else(|| ABSENT.to_owned(), |us| format!("{us:.2}"));
    [
        case.rw.name().to_owned(),
        Size::from_bytes(case.request_bytes).to_string(),
        case.depth.to_string(),
        format!("{:.0}", case.iops),
        format!("{:.1}", case.bytes_per_second / 1e6),
        micros(latency.mean_us),
        micros(latency.p50_us),
        micros(latency.p99_us),
        micros(latency.p999_us),
        micros(latency.p9999_us),
        micros(latency.max_us),
        cpu(case.cpu_us_per_io),
        cpu(case.target_cpu_us_per_io),
    ]
}

/// Short ones to a tenth.
fn micros(us: f64) -> String {
    if us < 100.0 { format!("{us:.1}") } else { format!("{us:.0}") }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn runs_that_were_measured_otherwise_are_told() {
        let mine = report("mine", &[1]);
        assert!(!render(&mine, &[report("same", &[1])]).contains("otherwise"));
        let mut other = report("other", &[1]);
        other.config = Config { queues: 2, rate: Some(7), burst: 2, verify: true, read_percent: 70, crc: None, ..other.config };
        let text = render(&mine, &[other]);
        let expected = "other was measured otherwise: 2 queues, 7 requests a second, 2 at a time, verified, no iWARP";
        assert_eq!(text.lines().last(), Some(expected), "{text}");
    }

    #[test]
    fn each_case_has_a_row_with_its_figures_and_ratios() {
        let mut faster = report("faster", &[1]);
        faster.cases[0].iops *= 4.0;
        let text = render(&report("mine", &[1, 32]), &[faster]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].ends_with("IOPS vs faster"), "{text}");
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(3)[..5], ["randread", "4KiB", "1", "1000", "4.1"]);
        assert_eq!(words(3)[9..], ["1000", "1000", "1.25", "-", "0.25", "x"]);
        assert_eq!(words(4)[2..4], ["32", "32000"]);
        assert!(lines[4].ends_with("1.25           -               -"), "{text}");
    }
}
