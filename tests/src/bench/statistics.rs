//! The arithmetic of the report: medians over rounds, and ratios within a round.

use godwit_initiator::demo::fio::Measured;

use super::system::{Backend, Class, System};

/// One run of one workload on one system.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// What was measured.
    pub system: System,
    /// Index into the workloads.
    pub workload: usize,
    /// From 1.
    pub round: u32,
    /// What fio says.
    pub measured: Measured,
    /// Processor time of the serving processes for each request, in microseconds; nothing where no process serves.
    pub cpu_us: Option<f64>,
}

/// The median; of an even number of values, the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(values[values.len() / 2 - 1], upper))
}

/// Every run of the bench.
#[derive(Clone, Debug, Default)]
pub struct Runs(pub Vec<Run>);

impl Runs {
    /// The median over the rounds of one figure of a system in a workload.
    pub fn median(&self, system: System, workload: usize, figure: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        median(self.of(system, workload).filter_map(figure).collect())
    }

    /// Median requests per second.
    pub fn iops(&self, system: System, workload: usize) -> Option<f64> {
        self.median(system, workload, |run| Some(run.measured.iops))
    }

    /// How many times a peer's requests per second ours does: the median of the ratios within each round, for a machine drifts more between
    /// rounds than within one.
    pub fn ratio(&self, ours: System, peer: System, workload: usize) -> Option<f64> {
        let pairs = self.of(ours, workload).filter_map(|mine| {
            let theirs = self.of(peer, workload).find(|run| run.round == mine.round)?;
            (theirs.measured.iops > 0.0).then(|| mine.measured.iops / theirs.measured.iops)
        });
        median(pairs.collect())
    }

    /// Ours on a backend against the fastest system of a class there.
    pub fn compare(&self, backend: Backend, class: Class, workload: usize) -> Option<Comparison> {
        let shown =
            |class| super::system::SYSTEMS.into_iter().filter(move |system| system.is_shown_with(backend) && system.class() == class);
        let ours = shown(Class::Ours).next()?;
        let measured = shown(class).filter_map(|peer| Some((peer, self.iops(peer, workload)?)));
        let (peer, _) = measured.max_by(|(_, one), (_, other)| one.total_cmp(other))?;
        Some(Comparison { peer, ratio: self.ratio(ours, peer, workload)? })
    }

    fn of(&self, system: System, workload: usize) -> impl Iterator<Item = &Run> {
        self.0.iter().filter(move |run| run.system == system && run.workload == workload)
    }
}

/// Ours against a peer in one workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// The peer.
    pub peer: System,
    /// Our requests per second, divided by the peer's.
    pub ratio: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(name: &str) -> System {
        System::named(name).unwrap()
    }

    fn run(name: &str, workload: usize, round: u32, iops: f64) -> Run {
        Run { system: system(name), workload, round, measured: Measured { iops, ..Measured::default() }, cpu_us: None }
    }

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![7.0]), Some(7.0));
        assert_eq!(median(vec![9.0, 1.0]), Some(5.0));
        assert_eq!(median(vec![30.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 100.0, 1.0, 2.0]), Some(3.0));
    }

    #[test]
    fn a_ratio_pairs_the_runs_of_a_round() {
        // The machine is twice as fast in round 2, and ours always 1.5 times the peer.
        let ours = [(1, 150.0), (2, 300.0), (3, 165.0)].map(|(round, iops)| run("godwit-memory", 0, round, iops));
        let theirs = [(3, 110.0), (1, 100.0), (2, 200.0)].map(|(round, iops)| run("nbdkit-2hop-memory", 0, round, iops));
        let runs = Runs(ours.into_iter().chain(theirs).collect());
        assert_eq!(runs.ratio(system("godwit-memory"), system("nbdkit-2hop-memory"), 0), Some(1.5));
    }

    #[test]
    fn a_ratio_to_nothing_is_no_ratio() {
        let runs = Runs(vec![run("godwit-memory", 0, 1, 5.0), run("raw-tmpfs", 0, 1, 0.0), run("nbdkit-unix-memory", 0, 2, 5.0)]);
        assert_eq!(runs.ratio(system("godwit-memory"), system("raw-tmpfs"), 0), None);
        assert_eq!(runs.ratio(system("godwit-memory"), system("nbdkit-unix-memory"), 0), None);
        assert_eq!(runs.ratio(system("godwit-memory"), system("nbdkit-tcp-memory"), 0), None);
    }

    #[test]
    fn ours_is_compared_with_the_fastest_of_a_class_in_that_workload() {
        let runs = Runs(vec![
            run("godwit-memory", 0, 1, 60.0),
            run("nbdkit-2hop-memory", 0, 1, 30.0),
            run("qemu-2hop-memory", 0, 1, 40.0),
            run("qemu-2hop-memory", 1, 1, 10.0),
            run("nbdkit-2hop-tmpfs", 0, 1, 90.0),
        ]);
        let expected = Comparison { peer: system("qemu-2hop-memory"), ratio: 1.5 };
        assert_eq!(runs.compare(Backend::Memory, Class::TwoHops, 0), Some(expected));
        assert_eq!(runs.compare(Backend::Memory, Class::OneHop, 0), None);
        assert_eq!(runs.compare(Backend::Tmpfs, Class::TwoHops, 0), None);
    }

    #[test]
    fn raw_memory_is_the_file_on_tmpfs() {
        let runs = Runs(vec![run("godwit-memory", 2, 1, 50.0), run("raw-tmpfs", 2, 1, 100.0), run("raw-disk", 2, 1, 1000.0)]);
        let expected = Comparison { peer: system("raw-tmpfs"), ratio: 0.5 };
        assert_eq!(runs.compare(Backend::Memory, Class::Raw, 2), Some(expected));
    }
}
