//! The report for people.

use std::fmt::Write as _;

use godwit_initiator::bench::table::aligned;
use godwit_initiator::demo::fio::{WORKLOADS, Workload};

use super::outcome::Outcome;
use super::statistics::Run;
use super::system::{Backend, Class, SYSTEMS, System};
use super::verdict::{self, Demand};

const ABSENT: &str = "-";

/// Tables, ratios and verdicts.
pub fn render(outcome: &Outcome) -> String {
    let mut text = String::new();
    for backend in Backend::ALL {
        let shown: Vec<System> =
            SYSTEMS.into_iter().filter(|system| system.is_shown_with(backend) && is_measured(outcome, *system)).collect();
        if shown.iter().any(|system| system.backend == backend) {
            text += &backend_tables(outcome, backend, &shown);
        }
    }
    text += "\nFloor:\n";
    for backend in Backend::JUDGED {
        for demand in [Demand::NotSlower, Demand::SmallAtDepth] {
            let verdict = verdict::judge(&outcome.runs, backend, demand);
            let _ = writeln!(text, "  {}", verdict::line(backend, demand, &verdict));
        }
    }
    if outcome.rounds < 3 {
        text += "  (fewer than 3 rounds: an indication, not a measurement)\n";
    }
    text
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

    use super::super::outcome::{Fate, Footprint};
    use super::super::statistics::Runs;
    use super::*;

    fn outcome() -> Outcome {
        let system = |name| System::named(name).unwrap();
        let mut runs = Vec::new();
        for workload in 0..WORKLOADS.len() {
            for (name, iops) in [("godwit-memory", 60_000.0), ("nbdkit-2hop-memory", 30_000.0)] {
                let measured = Measured { iops, bytes_per_second: 2e9, p50_us: 8.25, p99_us: 120.4, requests: 1.0 };
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
        let text = render(&outcome());
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
}
