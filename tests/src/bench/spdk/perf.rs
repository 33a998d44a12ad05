//! What `spdk_nvme_perf -LL` prints when it is done.

/// Its figures of all volumes and cores together; percentiles of the first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Summary {
    /// Requests a second.
    pub(super) iops: f64,
    /// Mean latency in microseconds.
    pub(super) mean_us: f64,
    /// So many per cent took at most so many microseconds.
    percentiles: Vec<(f64, f64)>,
}

impl Summary {
    /// The summary in what it printed, if there is one.
    pub(super) fn find(said: &str) -> Option<Self> {
        let total = said.lines().find_map(|line| line.trim_start().strip_prefix("Total")?.trim_start().strip_prefix(':'))?;
        let mut figures = total.split_whitespace().map(str::parse::<f64>);
        let (iops, _, mean_us) = (figures.next()?.ok()?, figures.next()?.ok()?, figures.next()?.ok()?);
        let lines = said.lines().skip_while(|line| !line.starts_with("Summary latency data")).skip(2);
        let percentiles = lines.map_while(percentile).collect();
        Some(Self { iops, mean_us, percentiles })
    }

    /// The latency that so many per cent took at most.
    pub(super) fn percentile_us(&self, per_cent: f64) -> Option<f64> {
        self.percentiles.iter().find(|(of, _)| (of - per_cent).abs() < 1e-6).map(|(_, us)| *us)
    }
}

/// ` 50.00000% :    38.144us`
fn percentile(line: &str) -> Option<(f64, f64)> {
    let (per_cent, us) = line.split_once("% :")?;
    Some((per_cent.trim().parse().ok()?, us.trim().strip_suffix("us")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
EAL: '-c <coremask>' option is deprecated, and will be removed in a future release
Initializing NVMe Controllers
Attached to NVMeoF Controller at TCP (addr:127.0.0.1 subnqn:nqn.2026-11.org.example:a)
Initialization complete. Launching workers.
========================================================
                                                                                                             Latency(us)
Device Information                                                       :       IOPS      MiB/s    Average        min        max
TCP (addr:127.0.0.1 subnqn:nqn.2026-11.org.example:a) NSID 1 from core  1:    6793.62      26.54    4710.23      69.04   29922.73
========================================================
Total                                                                    :    6793.62      26.54    4710.23      69.04   29922.73

Summary latency data for TCP (addr:127.0.0.1 subnqn:nqn.2026-11.org. from core 1:
=================================================================================
  1.00000% :    83.256us
 50.00000% :   211.033us
 99.00000% : 26214.400us
 99.90000% : 30089.572us

Latency histogram for TCP (addr:127.0.0.1 subnqn:nqn.2026-11.org. from core 1:
==============================================================================
       Range in us     Cumulative    IO count
   69.009 -    69.454:    0.1027%  (        7)
   70.790 -    71.235:   50.0000%  (        8)
";

    #[test]
    fn a_summary_is_found_between_what_else_is_said() {
        let summary = Summary::find(SAID).unwrap();
        assert_eq!((summary.iops, summary.mean_us), (6793.62, 4710.23));
        let at = |per_cent| summary.percentile_us(per_cent);
        assert_eq!((at(50.0), at(99.0), at(99.9), at(95.0)), (Some(211.033), Some(26_214.4), Some(30_089.572), None));
        assert_eq!(summary.percentiles.len(), 4);
    }

    #[test]
    fn one_without_percentiles_is_a_summary_all_the_same() {
        let (head, _) = SAID.split_once("Summary").unwrap();
        let summary = Summary::find(head).unwrap();
        assert_eq!((summary.mean_us, summary.percentile_us(50.0)), (4710.23, None));
    }

    #[test]
    fn what_is_no_summary_is_none() {
        let refused = ["", "Total cores available: 1", "Total :", "Total : 1 2", "Total : x 1 2", "Total : nothing at all here"];
        assert!(refused.iter().all(|text| Summary::find(text).is_none()));
    }
}
