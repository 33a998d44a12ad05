//! The report for programs: JSON with every single run.

use godwit_initiator::demo::fio::WORKLOADS;
use serde_json::{Value, json};

use super::bars;
use super::machine::Machine;
use super::outcome::{Fate, Outcome, Results};
use super::sample::{Sample, Section};
use super::statistics::Run;
use super::system::{Backend, Class, System};
use super::verdict::{self, Demand};

/// Everything.
pub fn render(machine: &Machine, results: &Results) -> Value {
    let outcome = &results.chains;
    let others = results.samples.0.iter().filter(|sample| sample.section != Section::Chain);
    let absences = results.absences.iter().map(|absence| {
        json!({ "section": absence.section.name(), "subject": absence.subject, "reason": absence.reason, "is_failure": absence.is_failure })
    });
    json!({
        "machine": { "processor": machine.processor, "cores": machine.cores, "kernel": machine.kernel, "programs": machine.programs, "load": machine.load },
        "options": { "seconds": results.time.as_secs(), "rounds": results.rounds, "size_bytes": results.size_bytes },
        "systems": outcome.fates.iter().map(|(system, fate)| describe(*system, fate)).collect::<Vec<_>>(),
        "runs": outcome.runs.0.iter().chain(&outcome.broken).map(run).collect::<Vec<_>>(),
        "medians": medians(outcome),
        "ratios": ratios(outcome),
        "floor": floor(outcome),
        "samples": others.map(sample).collect::<Vec<_>>(),
        "scaling": results.scaling.rows().iter().map(super::scaling::Row::json).collect::<Vec<_>>(),
        "not_measured": absences.collect::<Vec<_>>(),
        "bars": bars::judge(&results.samples, &results.gauges).iter().map(bars::Judgement::json).collect::<Vec<_>>(),
    })
}

fn sample(sample: &Sample) -> Value {
    let figures = &sample.figures;
    json!({
        "section": sample.section.name(),
        "subject": sample.subject,
        "case": sample.case.to_string(),
        "round": sample.round,
        "iops": figures.iops,
        "bytes_per_second": figures.bytes_per_second,
        "mean_us": figures.mean_us,
        "p50_us": figures.p50_us,
        "p99_us": figures.p99_us,
        "cpu_us_per_io": figures.cpu_us,
    })
}

fn describe(system: System, fate: &Fate) -> Value {
    let (state, reason, footprint) = match fate {
        Fate::Measured(footprint) => ("measured", None, *footprint),
        Fate::Skipped(reason) => ("skipped", Some(reason), Default::default()),
        Fate::Failed(reason) => ("failed", Some(reason), Default::default()),
    };
    json!({
        "name": system.name,
        "backend": system.backend.name(),
        "path": system.path(),
        "state": state,
        "reason": reason,
        "peak_resident_kib": footprint.peak_resident_kib,
        "idle_cpu_per_cent": footprint.idle_cpu_per_cent,
    })
}

fn run(run: &Run) -> Value {
    json!({
        "system": run.system.name,
        "workload": WORKLOADS[run.workload].name,
        "round": run.round,
        "iops": run.measured.iops,
        "bytes_per_second": run.measured.bytes_per_second,
        "mean_us": run.measured.mean_us,
        "p50_us": run.measured.p50_us,
        "p99_us": run.measured.p99_us,
        "cpu_us_per_io": run.cpu_us,
    })
}

fn medians(outcome: &Outcome) -> Vec<Value> {
    let systems = outcome.fates.iter().map(|(system, _)| *system);
    let pairs = systems.flat_map(|system| (0..WORKLOADS.len()).map(move |workload| (system, workload)));
    let measured = pairs.filter_map(|(system, workload)| {
        let median = |figure: fn(&Run) -> Option<f64>| outcome.runs.median(system, workload, figure);
        Some(json!({
            "system": system.name,
            "workload": WORKLOADS[workload].name,
            "iops": median(|run| Some(run.measured.iops))?,
            "bytes_per_second": median(|run| Some(run.measured.bytes_per_second)),
            "p50_us": median(|run| Some(run.measured.p50_us)),
            "p99_us": median(|run| Some(run.measured.p99_us)),
            "cpu_us_per_io": median(|run| run.cpu_us),
        }))
    });
    measured.collect()
}

fn ratios(outcome: &Outcome) -> Vec<Value> {
    let classes = [(Class::TwoHops, "best two-hop chain"), (Class::OneHop, "best one hop"), (Class::Raw, "raw")];
    let mut ratios = Vec::new();
    for backend in Backend::ALL {
        for (class, name) in classes {
            for (workload, of) in WORKLOADS.iter().enumerate() {
                if let Some(comparison) = outcome.runs.compare(backend, class, workload) {
                    ratios.push(json!({
                        "backend": backend.name(), "against": name, "peer": comparison.peer.name, "workload": of.name, "ratio": comparison.ratio,
                    }));
                }
            }
        }
    }
    ratios
}

fn floor(outcome: &Outcome) -> Vec<Value> {
    let judge = |backend: Backend, demand: Demand| {
        let verdict = verdict::judge(&outcome.runs, backend, demand);
        let figures = verdict.figures().iter().map(|(workload, comparison)| {
            json!({ "workload": WORKLOADS[*workload].name, "peer": comparison.peer.name, "ratio": comparison.ratio })
        });
        json!({
            "backend": backend.name(),
            "demand": demand.to_string(),
            "enough": demand.enough(),
            "verdict": verdict.word(),
            "figures": figures.collect::<Vec<_>>(),
        })
    };
    Backend::JUDGED.into_iter().flat_map(|backend| [Demand::NotSlower, Demand::SmallAtDepth].map(|demand| judge(backend, demand))).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use godwit_initiator::demo::fio::Measured;

    use super::super::case::READ_1;
    use super::super::sample::{Figures, Samples};
    use super::super::statistics::Runs;
    use super::*;

    #[test]
    fn the_report_has_every_run_and_counts_those_of_whole_systems() {
        let [ours, peer] = ["godwit-memory", "qemu-2hop-memory"].map(|name| System::named(name).unwrap());
        let runs = (1..=2).map(|round| {
            let measured = Measured { iops: 1000.0 * f64::from(round), ..Measured::default() };
            Run { system: ours, workload: 1, round, measured, cpu_us: None }
        });
        let broken = Run { system: peer, workload: 0, round: 1, measured: Measured::default(), cpu_us: Some(4.5) };
        let outcome = Outcome {
            fates: vec![(ours, Fate::Measured(Default::default())), (peer, Fate::Failed("fio failed".to_owned()))],
            runs: Runs(runs.collect()),
            broken: vec![broken],
            time: Duration::from_secs(3),
            rounds: 2,
            size_bytes: 1 << 20,
        };
        let direct = Sample { section: Section::Direct, subject: "godwit", case: READ_1, round: 1, figures: Figures::default() };
        let chain = Sample { section: Section::Chain, ..direct };
        let samples = Samples(vec![chain, direct]);
        let results = Results { chains: outcome, samples, ..Results::default() };
        let report = render(&Machine::default(), &results);
        assert_eq!(report["samples"].as_array().unwrap().len(), 1);
        assert_eq!(report["samples"][0]["case"], "4 KiB random read, depth 1");
        assert_eq!((&report["bars"][0]["verdict"], &report["bars"][0]["measured"]), (&json!("not measured"), &Value::Null));
        assert_eq!(report["runs"].as_array().unwrap().len(), 3);
        assert_eq!(report["runs"][1]["iops"], 2000.0);
        assert_eq!(report["runs"][1]["workload"], "4 KiB random write, depth 1");
        assert_eq!(report["runs"][1]["cpu_us_per_io"], Value::Null);
        assert_eq!(report["runs"][2]["cpu_us_per_io"], 4.5);
        assert_eq!(report["medians"].as_array().unwrap().len(), 1);
        assert_eq!(report["medians"][0]["iops"], 1500.0);
        assert_eq!(report["systems"][1]["reason"], "fio failed");
        assert_eq!(report["floor"][0]["verdict"], "NOT MEASURED");
    }
}
