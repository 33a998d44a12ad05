//! What the daemons log during a run.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

/// The lines that were logged.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    text: Arc<Mutex<Vec<u8>>>,
}

impl Journal {
    /// Runs something, and writes its log down.
    pub fn of<T>(&self, run: impl FnOnce() -> T) -> T {
        let subscriber = tracing_subscriber::fmt()
            .with_writer(self.clone())
            .with_ansi(false)
            .without_time()
            .with_max_level(tracing::Level::DEBUG)
            .finish();
        tracing::subscriber::with_default(subscriber, run)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        // A run that panics leaves whole lines.
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.lock()).into_owned()
    }

    /// How many lines have these words.
    pub fn count(&self, words: &str) -> usize {
        self.text().lines().filter(|line| line.contains(words)).count()
    }
}

impl Write for Journal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Journal {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
