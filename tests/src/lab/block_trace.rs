//! What a block device of the guest's kernel was asked to write, and what of that it has done.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{collections::BTreeMap, fs};

use crate::trace::{Event, Trace};

const BEGIN: &str = "block_bio_queue";
const END: &str = "block_bio_complete";

/// A record of a device's writes.
#[derive(Debug)]
pub struct BlockTrace {
    trace: Trace,
    /// As the kernel prints it: `253,0 `.
    device: String,
}

impl BlockTrace {
    /// Begins to record.
    ///
    /// # Panics
    ///
    /// When there is no such device, or the kernel does not let us.
    pub fn start(device: &Path) -> Self {
        let number = fs::metadata(device).expect("the device is there").rdev();
        let device = format!("{},{} ", nix::sys::stat::major(number), nix::sys::stat::minor(number));
        Self { trace: Trace::start(&[&format!("block/{BEGIN}"), &format!("block/{END}")]), device }
    }

    /// Puts a marker into the record.
    ///
    /// # Panics
    ///
    /// When the kernel does not take it.
    pub fn mark(&self, text: &str) {
        self.trace.mark(text);
    }

    /// First sectors of writes that have begun and not ended.
    ///
    /// # Panics
    ///
    /// When the record cannot be read.
    pub fn under_way(&self) -> Vec<u64> {
        self.of(&self.trace.events())
    }

    /// First sectors of writes that had begun and not ended at a marker.
    ///
    /// # Panics
    ///
    /// When the marker is not there.
    pub fn under_way_at(&self, marker: &str) -> Vec<u64> {
        self.of(&self.trace.events()[..self.place(marker)])
    }

    /// First sectors of writes that have begun since a marker.
    ///
    /// # Panics
    ///
    /// When the marker is not there.
    pub fn begun_since(&self, marker: &str) -> Vec<u64> {
        let events = self.trace.events();
        events[self.place(marker)..].iter().filter(|event| event.name == BEGIN).filter_map(|event| self.sector(event)).collect()
    }

    fn place(&self, marker: &str) -> usize {
        let events = self.trace.events();
        let place = events.iter().position(|event| event.name == "tracing_mark_write" && event.fields == marker);
        place.unwrap_or_else(|| panic!("the marker `{marker}` is not in the trace:\n{events:#?}"))
    }

    fn of(&self, events: &[Event]) -> Vec<u64> {
        let mut writes = BTreeMap::<u64, i64>::new();
        for event in events {
            if let Some(sector) = self.sector(event) {
                *writes.entry(sector).or_default() += if event.name == BEGIN { 1 } else { -1 };
            }
        }
        writes.into_iter().filter(|(_, count)| *count > 0).map(|(sector, _)| sector).collect()
    }

    /// The first sector, if the event is of a write: `253,0 WS 56 + 8 [comm]`.
    fn sector(&self, event: &Event) -> Option<u64> {
        let fields = event.fields.strip_prefix(&self.device).filter(|_| event.name == BEGIN || event.name == END)?;
        let mut words = fields.split(' ');
        words.next().filter(|operation| operation.contains('W'))?;
        words.next()?.parse().ok()
    }
}
