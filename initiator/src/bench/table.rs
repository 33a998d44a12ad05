//! Tables for people.

use std::fmt::Write as _;

use godwit_config::Size;

use super::report::{CaseReport, Report};

/// Columns as wide as they need; the first to the left, the others to the right.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or_default();
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Writing to a text does not fail.
            let _ = if column == 0 { write!(text, "{cell:<width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text.push('\n');
    }
    text
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
    if report.config.verify {
        let checked: u64 = report.cases.iter().map(|case| case.checked_blocks).sum();
        let _ = writeln!(text, "\nverified: {checked} blocks, each as it was written");
    }
    text
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
    fn columns_line_up() {
        let rows = [["a", "long"], ["bcd", "x"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&rows), "a    long\nbcd     x\n");
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
