//! What is asked of whatever is measured.

use std::fmt;

use godwit_initiator::demo::fio::Workload;

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// `randread`, `randwrite`, `read` or `write`.
    pub pattern: &'static str,
    /// Bytes of a request.
    pub block_bytes: u32,
    /// Requests under way at a time.
    pub depth: u32,
    /// Requests a second that are offered; none is as many as are answered.
    pub rate: Option<Rate>,
}

/// How many requests are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// In a second.
    pub per_second: u64,
    /// So many come at the same time.
    pub burst: u64,
}

impl Case {
    /// As many requests as are answered.
    pub const fn new(pattern: &'static str, block_bytes: u32, depth: u32) -> Self {
        Self { pattern, block_bytes, depth, rate: None }
    }

    /// So many requests a second, of which so many come at the same time.
    pub const fn offered(self, per_second: u64, burst: u64) -> Self {
        Self { rate: Some(Rate { per_second, burst }), ..self }
    }

    /// Whether it changes what is stored.
    pub fn is_writing(&self) -> bool {
        self.pattern.ends_with("write")
    }

    /// As fio is told.
    pub const fn workload(&self) -> Workload {
        Workload { name: "", pattern: self.pattern, block_bytes: self.block_bytes, depth: self.depth }
    }

    /// `4k randread q32`.
    pub fn short(&self) -> String {
        let size = if self.block_bytes < 1024 { self.block_bytes.to_string() } else { format!("{}k", self.block_bytes / 1024) };
        let rate = match self.rate {
            None => String::new(),
            Some(Rate { per_second, burst: 1 }) => format!(" at {per_second}/s"),
            Some(Rate { per_second, burst }) => format!(" at {per_second}/s by {burst}"),
        };
        format!("{size} {} q{}{rate}", self.pattern, self.depth)
    }
}

impl From<&Workload> for Case {
    fn from(workload: &Workload) -> Self {
        Self::new(workload.pattern, workload.block_bytes, workload.depth)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = match self.pattern {
            "randread" => "random read",
            "randwrite" => "random write",
            other => other,
        };
        write!(f, "{} KiB {pattern}, depth {}", self.block_bytes / 1024, self.depth)?;
        match self.rate {
            None => Ok(()),
            Some(Rate { per_second, burst: 1 }) => write!(f, ", {per_second} requests a second, evenly"),
            Some(Rate { per_second, burst }) => write!(f, ", {per_second} requests a second, {burst} at a time"),
        }
    }
}

/// 4 KiB random read, depth 1.
pub const READ_1: Case = Case::new("randread", 4096, 1);
/// 4 KiB random read, depth 32.
pub const READ_32: Case = Case::new("randread", 4096, 32);
/// 4 KiB random read, depth 128.
pub const READ_128: Case = Case::new("randread", 4096, 128);
/// 4 KiB random write, depth 32.
pub const WRITE_32: Case = Case::new("randwrite", 4096, 32);
/// 4 KiB random write, depth 128.
pub const WRITE_128: Case = Case::new("randwrite", 4096, 128);
/// 128 KiB read, depth 8.
pub const LARGE_READ: Case = Case::new("read", 128 << 10, 8);
/// 128 KiB write, depth 8.
pub const LARGE_WRITE: Case = Case::new("write", 128 << 10, 8);
/// A load that leaves time to sleep: offered each millisecond, as SPDK's limits let requests through.
pub const AT_A_RATE: Case = READ_32.offered(20_000, 20);
/// The same without pauses: a request each 50 us.
pub const AT_AN_EVEN_RATE: Case = READ_32.offered(20_000, 1);

#[cfg(test)]
mod tests {
    use godwit_initiator::demo::fio::WORKLOADS;

    use super::*;

    #[test]
    fn cases_are_called_as_the_workloads_of_fio_are() {
        for workload in &WORKLOADS {
            assert_eq!(Case::from(workload).to_string(), workload.name);
        }
        assert_eq!(AT_A_RATE.to_string(), "4 KiB random read, depth 32, 20000 requests a second, 20 at a time");
        assert_eq!(AT_AN_EVEN_RATE.to_string(), "4 KiB random read, depth 32, 20000 requests a second, evenly");
        assert_eq!(AT_AN_EVEN_RATE.short(), "4k randread q32 at 20000/s");
        assert_eq!((LARGE_WRITE.short(), AT_A_RATE.short()), ("128k write q8".to_owned(), "4k randread q32 at 20000/s by 20".to_owned()));
        assert_eq!(Case::new("read", 512, 1).short(), "512 read q1");
    }
}
