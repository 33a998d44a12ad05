//! The report as one page of HTML: charts, tables, and nothing that is elsewhere.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use godwit_config::Size;

use super::chart::{Chart, Curve, Scale, colour, escape};
use super::load::Pattern;
use super::report::{CaseReport, Report};
use super::table;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#222;--soft:#666;--rule:#ddd;--ground:#fff}\
@media(prefers-color-scheme:dark){:root{--ink:#eee;--soft:#aaa;--rule:#444;--ground:#181818}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--ground);margin:2em auto;max-width:1500px;padding:0 1em}\
h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em}\
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(400px,1fr));gap:1em}\
svg{width:100%;height:auto}svg text{fill:var(--ink);font-size:11px}svg .t{font-size:13px;font-weight:600}svg .l{fill:var(--soft)}\
svg .g{stroke:var(--rule);stroke-width:1}svg .c{fill:none;stroke-width:2}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{padding:.2em .7em;text-align:right;border-bottom:1px solid var(--rule)}\
th:first-child,td:first-child{text-align:left}.wide{overflow-x:auto}\
.key{display:inline-block;width:1.2em;height:.7em;margin-right:.5em}";

/// The page: the first run, and those that it is compared with.
pub(crate) fn render(runs: &[&Report]) -> String {
    let title = runs.first().map_or_else(String::new, |run| format!("godwit bench: {}", run.name));
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{}</h1>\n",
        escape(&title),
        escape(&title)
    );
    page += &legend(runs);
    for pattern in patterns(runs) {
        let charts: String = charts(runs, pattern).iter().filter(|chart| !chart.is_empty()).map(|chart| chart.svg()).collect();
        // Writing to a text does not fail.
        let _ = write!(page, "<h2>{}</h2>\n<div class=\"charts\">\n{charts}</div>\n", escape(pattern.name()));
    }
    for run in runs {
        let _ = write!(page, "<h2>{}</h2>\n{}", escape(&run.name), figures(run));
    }
    page + "</body>\n</html>\n"
}

/// What each run was, with its colour.
fn legend(runs: &[&Report]) -> String {
    let head = row("th", ["run", "subject", "queues", "load", "range", "CRC", "machine", "began"].map(str::to_owned));
    let rows = runs.iter().enumerate().map(|(index, run)| {
        let config = &run.config;
        let extras = [(config.fill, ", filled before"), (config.verify, ", verified")];
        let extras: String = extras.into_iter().filter(|(is_so, _)| *is_so).map(|(_, words)| words).collect();
        let cells = [
            run.subject.clone(),
            config.queues.to_string(),
            format!("{} for {} s after {} s{extras}", config.offered(), config.time_seconds, config.ramp_seconds),
            Size::from_bytes(config.size_bytes).to_string(),
            config.crc.clone().unwrap_or_else(|| "-".to_owned()),
            format!("{}, {} cores, Linux {}, godwit {}", run.machine.processor, run.machine.cores, run.machine.kernel, run.version),
            began(run.unix_seconds),
        ];
        let key = format!("<td><span class=\"key\" style=\"background:{}\"></span>{}</td>", colour(index), escape(&run.name));
        format!("<tr>{key}{}</tr>\n", cells.map(|cell| format!("<td>{}</td>", escape(&cell))).concat())
    });
    format!("<div class=\"wide\"><table>\n{head}{}</table></div>\n", rows.collect::<String>())
}

/// When a run began, as people write it.
fn began(unix_seconds: u64) -> String {
    let mut date = String::new();
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(unix_seconds));
    match time.map(|time| write!(date, "{}", humantime::format_rfc3339_seconds(time))) {
        Some(Ok(())) => date,
        // Beyond the year 9999, which somebody else's report may name.
        _ => unix_seconds.to_string(),
    }
}

fn row<const N: usize>(tag: &str, cells: [String; N]) -> String {
    format!("<tr>{}</tr>\n", cells.map(|cell| format!("<{tag}>{}</{tag}>", escape(&cell))).concat())
}

fn figures(run: &Report) -> String {
    let head = row("th", table::HEADER.map(str::to_owned));
    let rows: String = run.cases.iter().map(|case| row("td", table::cells(case))).collect();
    format!("<div class=\"wide\"><table>\n{head}{rows}</table></div>\n")
}

fn patterns(runs: &[&Report]) -> Vec<Pattern> {
    distinct(cases(runs).map(|case| case.rw))
}

fn cases<'a>(runs: &'a [&'a Report]) -> impl Iterator<Item = &'a CaseReport> {
    runs.iter().flat_map(|run| &run.cases)
}

/// Each once, in the order in which they were first.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

fn sorted<T: Ord + PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut values = distinct(values);
    values.sort_unstable();
    values
}

fn charts(runs: &[&Report], pattern: Pattern) -> Vec<Chart> {
    let of_pattern = || cases(runs).filter(|case| case.rw == pattern);
    let sizes = sorted(of_pattern().map(|case| case.request_bytes));
    let depths = sorted(of_pattern().map(|case| case.depth));
    let mut charts = Vec::new();
    for &size in &sizes {
        let ticks: Vec<(u64, String)> = depths.iter().map(|&depth| (depth.into(), depth.to_string())).collect();
        let view = View { runs, pattern, ticks: &ticks, of: &|case| (case.request_bytes == size).then(|| case.depth.into()) };
        let what = format!("{} {}", pattern.name(), Size::from_bytes(size));
        charts.push(view.chart(&what, "requests under way in each queue", Figure::Iops));
        charts.push(view.chart(&what, "requests under way in each queue", Figure::Latency));
    }
    if sizes.len() > 1 {
        let ticks: Vec<(u64, String)> = sizes.iter().map(|&size| (size, Size::from_bytes(size).to_string())).collect();
        for &depth in &depths {
            let view = View { runs, pattern, ticks: &ticks, of: &|case| (case.depth == depth).then_some(case.request_bytes) };
            let what = format!("{}, depth {depth}", pattern.name());
            charts.push(view.chart(&what, "bytes of a request", Figure::Bytes));
            charts.push(view.chart(&what, "bytes of a request", Figure::Latency));
        }
    }
    let kinds = distinct(of_pattern().map(|case| (case.request_bytes, case.depth)));
    charts.extend(kinds.into_iter().map(|(size, depth)| distribution(runs, pattern, size, depth)));
    charts
}

/// What a chart shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Figure {
    Iops,
    Bytes,
    Latency,
}

/// Cases of one pattern over what they differ by.
struct View<'a> {
    runs: &'a [&'a Report],
    pattern: Pattern,
    ticks: &'a [(u64, String)],
    /// By what a case differs from the others, if it belongs here.
    of: &'a dyn Fn(&CaseReport) -> Option<u64>,
}

impl View<'_> {
    fn chart(&self, what: &str, x_label: &'static str, figure: Figure) -> Chart {
        let (name, y_label, scale) = match figure {
            Figure::Iops => ("throughput", "IOPS", Scale::Linear),
            Figure::Bytes => ("throughput", "MB/s", Scale::Linear),
            Figure::Latency => ("latency: mean, and p99 dashed", "microseconds", Scale::Logarithmic),
        };
        let curves = self.runs.iter().enumerate().flat_map(|(run, report)| match figure {
            Figure::Iops => vec![self.curve(run, report, "", false, |case| case.iops)],
            Figure::Bytes => vec![self.curve(run, report, "", false, |case| case.bytes_per_second / 1e6)],
            Figure::Latency => vec![
                self.curve(run, report, " mean", false, |case| case.latency.mean_us),
                self.curve(run, report, " p99", true, |case| case.latency.p99_us),
            ],
        });
        Chart {
            title: format!("{what}: {name}"),
            x_label,
            y_label,
            ticks: self.ticks.iter().enumerate().map(|(place, (_, label))| (place_of(place), label.clone())).collect(),
            scale,
            curves: curves.collect(),
        }
    }

    fn curve(&self, run: usize, report: &Report, suffix: &str, dashed: bool, figure: impl Fn(&CaseReport) -> f64) -> Curve {
        let of_pattern = report.cases.iter().filter(|case| case.rw == self.pattern);
        let mut points: Vec<(f64, f64)> = of_pattern
            .filter_map(|case| {
                let key = (self.of)(case)?;
                let place = self.ticks.iter().position(|(tick, _)| *tick == key)?;
                Some((place_of(place), figure(case)))
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Curve { run, label: format!("{}{suffix}", report.name), dashed, points }
    }
}

/// Values stand at even distances, whatever they are.
#[expect(clippy::cast_precision_loss, reason = "there are few")]
fn place_of(index: usize) -> f64 {
    index as f64
}

/// What is marked where the tail of a distribution is: each step is a tenth of what is left.
const TAILS: [(f64, &str); 6] = [(50.0, "50%"), (90.0, "90%"), (99.0, "99%"), (99.9, "99.9%"), (99.99, "99.99%"), (99.999, "99.999%")];

/// How many times the rest goes into the whole, as a power of ten.
fn nines(percent: f64) -> f64 {
    -(1.0 - percent / 100.0).max(1e-6).log10()
}

fn distribution(runs: &[&Report], pattern: Pattern, size: u64, depth: u16) -> Chart {
    let curves = runs.iter().enumerate().filter_map(|(run, report)| {
        let case = report.cases.iter().find(|case| case.key() == (pattern, size, depth))?;
        let points = case.latency.curve.iter().filter(|(percent, _)| (50.0..=99.999).contains(percent));
        let points = points.map(|&(percent, us)| (nines(percent), us)).collect();
        Some(Curve { run, label: report.name.clone(), dashed: false, points })
    });
    Chart {
        title: format!("{} {}, depth {depth}: latency of the slowest", pattern.name(), Size::from_bytes(size)),
        x_label: "so many took at most",
        y_label: "microseconds",
        ticks: TAILS.map(|(percent, label)| (nines(percent), label.to_owned())).to_vec(),
        scale: Scale::Logarithmic,
        curves: curves.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    /// Checks that every element that is opened is closed again, in order, and that nothing is left open.
    fn assert_well_formed(page: &str) {
        let mut open: Vec<&str> = Vec::new();
        let body = page.strip_prefix("<!DOCTYPE html>").unwrap();
        for part in body.split('<').skip(1) {
            let (tag, text) = part.split_once('>').unwrap_or_else(|| panic!("not closed: {part}"));
            assert!(!text.contains('>'), "a bare > in {text}");
            assert_eq!(tag.matches('"').count() % 2, 0, "quotes in {tag}");
            let name = tag.split([' ', '/']).find(|word| !word.is_empty()).unwrap();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "closed in {part}");
            } else if !tag.ends_with('/') {
                open.push(name);
            }
            for entity in text.split('&').skip(1) {
                let (name, _) = entity.split_once(';').unwrap_or_else(|| panic!("a bare & in {text}"));
                assert!(["amp", "lt", "gt", "quot", "#39"].contains(&name), "{name}");
            }
        }
        assert_eq!(open, Vec::<&str>::new());
    }

    #[test]
    fn a_run_has_a_date_if_it_can_be_written() {
        assert_eq!(began(1_764_547_200), "2025-12-01T00:00:00Z");
        assert_eq!([began(u64::MAX), began(253_402_300_800)], ["18446744073709551615", "253402300800"]);
    }

    #[test]
    fn a_page_is_well_formed_whatever_runs_are_called() {
        let evil = report("</style><script>alert(\"1\")</script>&\u{0}'", &[1, 32]);
        let page = render(&[&evil, &report("other", &[1])]);
        assert_well_formed(&page);
        assert!(!page.contains("<script"));
    }

    #[test]
    fn a_page_needs_nothing_else() {
        let page = render(&[&report("one", &[1])]);
        for outside in ["http:", "https:", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn every_run_has_a_curve_in_every_chart_that_it_has_cases_for() {
        let count = |runs: &[&Report]| render(runs).matches("<polyline").count();
        let (one, two) = (report("one", &[1, 32]), report("two", &[1, 128]));
        // Throughput, mean and p99 over depth, and the distribution of each depth.
        assert_eq!(count(&[&one]), 3 + 2);
        assert_eq!(count(&[&one, &two]), 3 + 3 + 2 + 2);
    }

    #[test]
    fn with_several_sizes_there_are_charts_over_size() {
        let mut run = report("one", &[1]);
        let mut larger = run.cases[0].clone();
        larger.request_bytes = 131_072;
        run.cases.push(larger);
        let page = render(&[&run]);
        assert!(page.contains("randread 4KiB: throughput") && page.contains("randread 128KiB: throughput"));
        assert!(page.contains("randread, depth 1: throughput"));
        assert!(!render(&[&report("one", &[1])]).contains("randread, depth 1: throughput"));
    }

    #[test]
    fn each_nine_is_one_step() {
        assert!((nines(99.9) - nines(99.0) - 1.0).abs() < 1e-9);
        assert!(nines(100.0).is_finite());
    }
}
