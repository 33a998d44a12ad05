//! What fio drives: a chain that is in place, or a file itself.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use godwit_initiator::demo::fio::{self, Place};

use super::case::Case;
use super::contest::{ContestError, Contestant, cpu_us};
use super::cores::Pinned;
use super::sample::Figures;
use super::stage::Stage;

/// A chain, all of it and fio on one core.
#[derive(Debug)]
pub struct OnOneCore {
    /// The chain, which was started on that core.
    pub stage: Stage,
    /// Bytes of its volume.
    pub size_bytes: u64,
    /// The core.
    pub core: usize,
}

impl Contestant for OnOneCore {
    fn name(&self) -> &'static str {
        self.stage.system.name
    }

    fn run(&mut self, case: &Case, time: Duration, stop: &AtomicBool) -> Result<Figures, ContestError> {
        let _pinned = Pinned::to(self.core).map_err(|error| ContestError::of(&error))?;
        let before = self.stage.cpu_time();
        let measured = fio::measure(&self.stage.place, &case.workload(), self.size_bytes, time, stop)?;
        let cpu = self.stage.cpu_time().zip(before).map(|(after, before)| after.saturating_sub(before));
        Ok(Figures::from(&measured).with_cpu(cpu_us(&measured, cpu)))
    }
}

/// A file, past the page cache.
#[derive(Debug)]
pub struct Raw {
    name: &'static str,
    place: Place,
    size_bytes: u64,
}

impl Raw {
    /// By the kernel's two ways.
    pub fn both(path: &Path, size_bytes: u64) -> [Self; 2] {
        [("io_uring", Place::File(path.to_owned())), ("libaio", Place::LibaioFile(path.to_owned()))].map(|(name, place)| Self {
            name,
            place,
            size_bytes,
        })
    }
}

impl Contestant for Raw {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run(&mut self, case: &Case, time: Duration, stop: &AtomicBool) -> Result<Figures, ContestError> {
        Ok(Figures::from(&fio::measure(&self.place, &case.workload(), self.size_bytes, time, stop)?))
    }
}
