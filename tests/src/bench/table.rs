//! The report for people: the chains, then each other section, then the bars.

use std::fmt::Write as _;

use godwit_initiator::bench::table::aligned;
use godwit_initiator::demo::fio::{WORKLOADS, Workload};

use super::bars;
use super::outcome::{Outcome, Results};
use super::sample::{Figure, Samples, Section};
use super::scaling::Row;
use super::statistics::Run;
use super::system::{Backend, Class, SYSTEMS, System};
use super::verdict::{self, Demand};

const ABSENT: &str = "-";

/// Below so many rounds figures say little.
const FEW_ROUNDS: u32 = 3;

/// Tables, ratios, verdicts and bars.
pub fn render(results: &Results) -> String {
    let mut text = chains(&results.chains);
    for section in [Section::OneCore, Section::Direct, Section::File, Section::Fairness] {
        text += &section_tables(results, section);
    }
    text += &scaling_table(&results.scaling.rows());
    text += &bars_table(results);
    if results.rounds < FEW_ROUNDS {
        let _ = writeln!(text, "(fewer than {FEW_ROUNDS} rounds: an indication, not a measurement)");
    }
    text
}

fn chains(outcome: &Outcome) -> String {
    if outcome.runs.0.is_empty() {
        return String::new();
    }
    let mut text = String::new();
    for backend in Backend::ALL {
        let shown: Vec<System> =
            SYSTEMS.into_iter().filter(|system| system.is_shown_with(backend) && is_measured(outcome, *system)).collect();
        if shown.iter().any(|system| system.backend == backend) {
            text += &backend_tables(outcome, backend, &shown);
        }
    }
    text += "\nagainst chains of two hops:\n";
    for backend in Backend::JUDGED {
        for demand in [Demand::NotSlower, Demand::SmallAtDepth] {
            let verdict = verdict::judge(&outcome.runs, backend, demand);
            let _ = writeln!(text, "  {}", verdict::line(backend, demand, &verdict));
        }
    }
    text
}

/// What each subject of a section has done, what that cost, and the ratios to the first of them.
fn section_tables(results: &Results, section: Section) -> String {
    let samples = &results.samples;
    let (subjects, cases) = (samples.subjects(section), samples.cases(section));
    let Some((&ours, peers)) = subjects.split_first() else { return String::new() };
    let mut text = format!(
        "\n== {}: IOPS (MB/s from 64 KiB on), mean/p99 latency in us, and CPU us for each request of all that serves; medians of {} runs of {} s\n\n",
        section.title(),
        results.rounds,
        results.time.as_secs()
    );
    let first = |name: &str| std::iter::once(name.to_owned()).chain(cases.iter().map(super::case::Case::short)).collect::<Vec<_>>();
    text += &grid(&first("system"), &subjects, |subject| {
        std::iter::once((*subject).to_owned()).chain(cases.iter().map(|case| cell(samples, section, subject, *case))).collect()
    });
    if !peers.is_empty() {
        let _ = writeln!(text, "\n{ours} against the others: median ratio of IOPS within each round, and its spread");
        text += &grid(&first("against"), peers, |peer| {
            let ratios = cases.iter().map(|case| samples.ratio(section, [ours, peer], *case, Figure::Iops));
            std::iter::once((*peer).to_owned()).chain(ratios.map(|ratio| or_absent(ratio, |ratio| ratio.to_string()))).collect()
        });
    }
    text
}

fn cell(samples: &Samples, section: Section, subject: &str, case: super::case::Case) -> String {
    let of = |figure| samples.median(section, subject, case, figure);
    let rate = if case.block_bytes < 64 << 10 {
        of(Figure::Iops).map(thousands)
    } else {
        of(Figure::Bytes).map(|bytes| format!("{:.0}", bytes / 1e6))
    };
    or_absent(rate.zip(of(Figure::Mean)), |(rate, mean)| {
        let p99 = or_absent(of(Figure::P99), microseconds);
        let cpu = or_absent(of(Figure::Cpu), |us| format!("{us:.1}"));
        format!("{rate} {}/{p99} {cpu}", microseconds(mean))
    })
}

fn scaling_table(rows: &[Row]) -> String {
    let mut text = String::new();
    let header = ["", "IOPS", "mean us", "p99 us", "CPU us/IO", "target CPU", "target MiB", "idle CPU"].map(str::to_owned).to_vec();
    let mut left = rows;
    while let Some(question) = left.first().map(|row| row.question) {
        let (rows, rest) = left.split_at(left.iter().take_while(|row| row.question == question).count());
        left = rest;
        let _ = writeln!(text, "\n== {}", question.name());
        text += &grid(&header, rows, |row| {
            let cpu = |us: Option<f64>| or_absent(us, |us| format!("{us:.2}"));
            vec![
                row.value.clone(),
                format!("{:.0}", row.iops),
                microseconds(row.mean_us),
                microseconds(row.p99_us),
                cpu(row.cpu_us),
                cpu(row.target_cpu_us),
                format!("{:.1}", row.resident_kib / 1024.0),
                or_absent(row.idle_cpu_per_cent, |per_cent| format!("{per_cent:.2}%")),
            ]
        });
    }
    text
}

/// All bars: whoever reads them sees what was not measured, too.
fn bars_table(results: &Results) -> String {
    let header = ["bar", "enough", "measured", "verdict"].map(str::to_owned).to_vec();
    let judgements = bars::judge(&results.samples, &results.gauges);
    let table = grid(&header, &judgements, |judgement| {
        let measured = or_absent(judgement.measured, |spread| spread.to_string());
        vec![judgement.name.clone(), judgement.bar.clone(), measured, judgement.verdict().to_owned()]
    });
    let met = judgements.iter().filter(|judgement| judgement.is_met).count();
    format!("\n== bars: median and spread; {met} of {} met\n\n{table}", judgements.len())
}

fn is_measured(outcome: &Outcome, system: System) -> bool {
    outcome.runs.0.iter().any(|run| run.system == system)
}

fn backend_tables(outcome: &Outcome, backend: Backend, shown: &[System]) -> String {
    let mut text = format!(
        "\n== {}: IOPS (4k) or MB/s (128k), and p50/p99 latency in us; medians of runs of {} s, one a round, in {} {}\n\n",
        backend.name(),
        outcome.time.as_secs(),
        outcome.rounds,
        if outcome.rounds == 1 { "round" } else { "rounds" }
    );
    text += &grid(&header("system", []), shown, |system| {
        let cells = (0..WORKLOADS.len()).map(|workload| performance(outcome, *system, workload));
        row(system.name, cells, [])
    });
    let serving: Vec<System> = shown.iter().copied().filter(|system| system.class() != Class::Raw).collect();
    if !serving.is_empty() {
        text += &cost_table(outcome, &serving);
    }
    let classes = [(Class::TwoHops, "best two-hop chain"), (Class::OneHop, "best one hop"), (Class::Raw, "raw io_uring")];
    let compared = |class| (0..WORKLOADS.len()).map(move |workload| outcome.runs.compare(backend, class, workload));
    let classes: Vec<_> = classes.into_iter().filter(|(class, _)| compared(*class).any(|comparison| comparison.is_some())).collect();
    if !classes.is_empty() {
        text += "\nours against the fastest of a kind: ratio of IOPS, the median of the ratios within each round\n";
        text += &grid(&header("ours against", []), &classes, |(class, name)| {
            row(name, compared(*class).map(|comparison| or_absent(comparison, |comparison| format!("{:.2} x", comparison.ratio))), [])
        });
    }
    text
}

fn cost_table(outcome: &Outcome, serving: &[System]) -> String {
    let title = "\nprocessor time of the serving processes for each request, in us; what they need besides\n";
    let table = grid(&header("system", ["peak MiB", "idle CPU"]), serving, |system| {
        let cells = (0..WORKLOADS.len())
            .map(|workload| or_absent(outcome.runs.median(*system, workload, |run| run.cpu_us), |us| format!("{us:.1}")));
        let footprint = outcome.footprint(*system).unwrap_or_default();
        let peak = or_absent(footprint.peak_resident_kib, |kib| (kib / 1024).to_string());
        let idle = or_absent(footprint.idle_cpu_per_cent, |per_cent| format!("{per_cent:.1}%"));
        row(system.name, cells, [peak, idle])
    });
    format!("{title}{table}")
}

fn performance(outcome: &Outcome, system: System, workload: usize) -> String {
    let median = |figure: fn(&Run) -> f64| outcome.runs.median(system, workload, |run| Some(figure(run)));
    let rate = if WORKLOADS[workload].block_bytes == 4096 {
        median(|run| run.measured.iops).map(thousands)
    } else {
        median(|run| run.measured.bytes_per_second).map(|bytes| format!("{:.0}", bytes / 1e6))
    };
    let latencies = median(|run| run.measured.p50_us).zip(median(|run| run.measured.p99_us));
    or_absent(rate.zip(latencies), |(rate, (p50, p99))| format!("{rate} {}/{}", microseconds(p50), microseconds(p99)))
}

fn thousands(iops: f64) -> String {
    format!("{:.1}k", iops / 1000.0)
}

fn microseconds(us: f64) -> String {
    if us < 10.0 { format!("{us:.1}") } else { format!("{us:.0}") }
}

fn or_absent<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| ABSENT.to_owned(), show)
}

fn header<const N: usize>(first: &str, last: [&str; N]) -> Vec<String> {
    row(first, WORKLOADS.iter().map(short_name), last.map(str::to_owned))
}

/// `4k randread q32`.
fn short_name(workload: &Workload) -> String {
    format!("{}k {} q{}", workload.block_bytes / 1024, workload.pattern, workload.depth)
}

fn row<const N: usize>(first: &str, cells: impl Iterator<Item = String>, last: [String; N]) -> Vec<String> {
    std::iter::once(first.to_owned()).chain(cells).chain(last).collect()
}

/// A row for each item, below the header.
fn grid<T>(header: &[String], items: &[T], row: impl Fn(&T) -> Vec<String>) -> String {
    let rows: Vec<Vec<String>> = std::iter::once(header.to_vec()).chain(items.iter().map(row)).collect();
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use godwit_initiator::demo::fio::Measured;

    use super::super::case::READ_32;
    use super::super::outcome::{Fate, Footprint};
    use super::super::sample::tests::sample;
    use super::super::statistics::Runs;
    use super::*;

    fn outcome() -> Results {
        Results { chains: memory(), rounds: 3, time: Duration::from_secs(3), ..Results::default() }
    }

    fn memory() -> Outcome {
        let system = |name| System::named(name).unwrap();
        let mut runs = Vec::new();
        for workload in 0..WORKLOADS.len() {
            for (name, iops) in [("godwit-memory", 60_000.0), ("nbdkit-2hop-memory", 30_000.0)] {
                let measured = Measured { iops, bytes_per_second: 2e9, mean_us: 9.0, p50_us: 8.25, p99_us: 120.4, requests: 1.0 };
                runs.push(Run { system: system(name), workload, round: 1, measured, cpu_us: Some(7.5) });
            }
        }
        let footprint = Footprint { peak_resident_kib: Some(2048), idle_cpu_per_cent: Some(0.25) };
        Outcome {
            fates: vec![(system("godwit-memory"), Fate::Measured(footprint))],
            runs: Runs(runs),
            broken: Vec::new(),
            time: Duration::from_secs(3),
            rounds: 3,
            size_bytes: 1 << 20,
        }
    }

    /// A section with figures of ours and of a peer.
    fn direct() -> Results {
        let samples = [("godwit", 1000.0), ("spdk", 500.0)].map(|(subject, iops)| sample(Section::Direct, subject, READ_32, 1, iops));
        Results { samples: Samples(samples.into()), rounds: 1, ..Results::default() }
    }

    fn line(text: &str, start: &str, nth: usize) -> Vec<String> {
        let line = text.lines().filter(|line| line.starts_with(start)).nth(nth).unwrap();
        line.split_whitespace().skip(1).map(str::to_owned).collect()
    }

    #[test]
    fn small_requests_are_counted_and_large_ones_weighed() {
        let cells = line(&render(&outcome()), "godwit-memory", 0);
        assert_eq!(cells[..2], ["60.0k", "8.2/120"]);
        assert_eq!(cells[10..], ["2000", "8.2/120"]);
    }

    #[test]
    fn the_cost_table_ends_with_memory_and_idle_load() {
        let cells = line(&render(&outcome()), "godwit-memory", 1);
        assert_eq!(cells, ["7.5", "7.5", "7.5", "7.5", "7.5", "7.5", "2", "0.2%"]);
    }

    #[test]
    fn what_was_not_measured_has_no_line() {
        let text = chains(&memory());
        assert!(!text.contains("nbdkit-tcp") && !text.contains("one hop") && !text.contains("== disk"), "{text}");
        assert!(text.contains("memory: not slower than the best two-hop chain in any workload: PASS"), "{text}");
        assert!(text.contains("tmpfs file: not slower than the best two-hop chain in any workload: NOT MEASURED"), "{text}");
    }

    #[test]
    fn columns_line_up() {
        let text = render(&outcome());
        let mut lines = text.lines().skip_while(|line| !line.starts_with("system")).take(3).map(str::len);
        let first = lines.next().unwrap();
        assert!(lines.all(|length| length == first), "{text}");
    }

    #[test]
    fn a_section_has_figures_ratios_and_bars() {
        let text = render(&direct());
        assert_eq!(line(&text, "godwit ", 0), ["1.0k", "1000/-", "1.0"]);
        assert_eq!(line(&text, "spdk", 1), ["2.00", "(2.00-2.00)"]);
        assert!(!text.contains("two hops") && text.contains("(fewer than 3 rounds"), "{text}");
        let bar = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
        assert!(bar("direct: godwit against spdk, 4 KiB random read, depth 32: IOPS").ends_with(" met"), "{text}");
        assert!(bar("direct: godwit against floor-tcp, 4 KiB random read, depth 32: IOPS").ends_with("-  not measured"), "{text}");
        assert!(text.contains("1 of 33 met"), "{text}");
    }
}
