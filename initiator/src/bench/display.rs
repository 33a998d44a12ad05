//! Progress for people, on standard error: a line that changes on a terminal, a line for each step elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often the line changes.
const EVERY: Duration = Duration::from_millis(250);

/// Where the run is.
pub(crate) struct Display {
    bar: Option<ProgressBar>,
    steps: usize,
    step: usize,
    name: String,
    begun: Instant,
    last: (Instant, u64),
}

impl Display {
    /// For a run of so many steps.
    pub(crate) fn new(steps: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
            ProgressBar::new_spinner().with_style(style)
        });
        let now = Instant::now();
        Self { bar, steps, step: 0, name: String::new(), begun: now, last: (now, 0) }
    }

    /// The next step begins.
    pub(crate) fn step(&mut self, name: String, completed: u64) {
        self.step += 1;
        self.name = format!("[{}/{}] {name}", self.step, self.steps);
        self.begun = Instant::now();
        self.last = (self.begun, completed);
        match &self.bar {
            Some(bar) => bar.set_message(self.name.clone()),
            None => eprintln!("{}", self.name),
        }
    }

    /// Requests have ended, so many since the run began.
    pub(crate) fn tick(&mut self, completed: u64) {
        let Some(bar) = &self.bar else { return };
        let now = Instant::now();
        let (before, then) = self.last;
        let passed = now.saturating_duration_since(before);
        if passed < EVERY {
            return;
        }
        self.last = (now, completed);
        #[expect(clippy::cast_precision_loss, reason = "it is shown in thousands")]
        let rate = completed.saturating_sub(then) as f64 / passed.as_secs_f64() / 1000.0;
        bar.set_message(format!("{}: {} s, {rate:.1}k IOPS", self.name, self.begun.elapsed().as_secs()));
        bar.tick();
    }

    /// Takes the line away.
    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
