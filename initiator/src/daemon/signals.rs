//! Signals, as notices.

use std::io;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::Notice;

/// Within this time a second signal is the first one once more: timeout(1), sudo and the like send it to the process and to its group.
const ECHO: Duration = Duration::from_secs(1);

/// Listens for signals until it is dropped.
pub(super) struct Watch {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Begins to listen.
pub(super) fn watch(notices: Sender<Notice>) -> io::Result<Watch> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let handle = signals.handle();
    let listen = move || {
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            let notice = if signal == SIGHUP {
                Notice::Reload
            } else if first.is_some_and(|first| first.elapsed() < ECHO) {
                continue;
            } else {
                first.get_or_insert_with(Instant::now);
                Notice::Stop
            };
            if notices.send(notice).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(listen)?;
    Ok(Watch { handle, thread: Some(thread) })
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
