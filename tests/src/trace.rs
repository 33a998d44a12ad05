//! What the kernel did, in its own words: an instance of tracefs with the events that a test wants. It needs root.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tools::run;

const TRACEFS: &str = "/sys/kernel/tracing";

/// A trace instance, removed when dropped.
#[derive(Debug)]
pub struct Trace {
    folder: PathBuf,
    marker: Option<File>,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The thread that it happened in.
    pub thread: u32,
    /// Its name: `io_uring_complete`.
    pub name: String,
    /// Its fields, as the kernel prints them.
    pub fields: String,
}

impl Trace {
    /// Starts to record events, named as `io_uring/io_uring_complete`.
    ///
    /// # Panics
    ///
    /// When the kernel has no such events or does not let us.
    pub fn start(events: &[&str]) -> Self {
        if !Path::new(TRACEFS).join("instances").exists() {
            run(Command::new("mount").args(["-t", "tracefs", "tracefs", TRACEFS]));
        }
        let folder = Path::new(TRACEFS).join(format!("instances/godwit-{}", std::process::id()));
        fs::create_dir(&folder).expect("a trace instance");
        let mut trace = Self { folder, marker: None };
        trace.write("trace_clock", "mono");
        trace.write("buffer_size_kb", "8192");
        for event in events {
            trace.write(&format!("events/{event}/enable"), "1");
        }
        let marker = fs::OpenOptions::new().write(true).open(trace.folder.join("trace_marker"));
        trace.marker = Some(marker.expect("a trace marker"));
        trace
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.folder.join(file);
        fs::write(&path, text).unwrap_or_else(|error| panic!("cannot write {text} to {}: {error}", path.display()));
    }

    /// Puts a marker into the trace.
    ///
    /// # Panics
    ///
    /// When the kernel does not take it.
    pub fn mark(&self, text: &str) {
        self.marker.as_ref().expect("it is open").write_all(text.as_bytes()).expect("the trace takes a marker");
    }

    /// What was recorded so far, in the order in which it happened; a marker is an event named `tracing_mark_write`.
    ///
    /// # Panics
    ///
    /// When events were lost.
    pub fn events(&self) -> Vec<Event> {
        let text = fs::read_to_string(self.folder.join("trace")).expect("a trace can be read");
        assert!(!text.contains("LOST"), "events were lost");
        text.lines().filter_map(parse).collect()
    }

    /// What was recorded between two markers, in the order in which it happened.
    ///
    /// # Panics
    ///
    /// When a marker is not there once, or events were lost.
    pub fn between(&self, from: &str, to: &str) -> Vec<Event> {
        let events = self.events();
        let find = |marker: &str| {
            let mut found = events.iter().enumerate().filter(|(_, event)| event.name == "tracing_mark_write" && event.fields == marker);
            let (index, _) = found.next().unwrap_or_else(|| panic!("the marker `{marker}` is not in the trace:\n{events:#?}"));
            assert!(found.next().is_none(), "the marker `{marker}` is there twice");
            index
        };
        let (from, to) = (find(from), find(to));
        events[from + 1..to].to_vec()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // An instance in use is not removed.
        self.marker = None;
        let _ = fs::remove_dir(&self.folder);
    }
}

/// `  comm-123  [001] d..2.   123.456789: name: fields`.
fn parse(line: &str) -> Option<Event> {
    let (task, rest) = line.split_once(" [").filter(|_| !line.starts_with('#'))?;
    let thread = task.trim_end().rsplit('-').next()?.parse().ok()?;
    let (_, event) = rest.split_once(": ")?;
    let (name, fields) = event.split_once(": ")?;
    Some(Event { thread, name: name.to_owned(), fields: fields.trim().to_owned() })
}

impl Event {
    /// The value that follows a word among the fields: `opcode` of `..., opcode FSYNC, flags 0x0`.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut words = self.fields.split([' ', ',']).filter(|word| !word.is_empty());
        words.find(|&word| word == name)?;
        words.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line_of_the_kernel() {
        let line = "   godwit-target-1 2-4711    [001] .....  5128.901234: io_uring_submit_req: ring 00000000b1, req 00000000c2, \
                    user_data 0x7, opcode FSYNC, flags 0x80000, sq_thread 0";
        let event = parse(line).unwrap();
        assert_eq!((event.thread, event.name.as_str()), (4711, "io_uring_submit_req"));
        assert_eq!((event.field("opcode"), event.field("req"), event.field("sq_thread")), (Some("FSYNC"), Some("00000000c2"), Some("0")));
        assert_eq!(event.field("result"), None);
        assert_eq!(parse("# tracer: nop"), None);
        assert_eq!(parse(""), None);
    }
}
