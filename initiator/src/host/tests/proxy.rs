//! A TCP relay that can go silent: bytes stop, and nothing says so.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(super) struct Proxy {
    pub(super) port: u16,
    silent: Arc<AtomicBool>,
}

impl Proxy {
    /// A relay to a port of this machine. Its threads end with the test's process.
    pub(super) fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let this = Self { port: listener.local_addr().unwrap().port(), silent: Arc::default() };
        let silent = Arc::clone(&this.silent);
        std::thread::spawn(move || {
            for host in listener.incoming().flatten() {
                let target = TcpStream::connect(("127.0.0.1", port)).unwrap();
                // A connection that was cut stays cut.
                let cut = Arc::new(AtomicBool::new(false));
                for (from, to) in [(host.try_clone().unwrap(), target.try_clone().unwrap()), (target, host)] {
                    let (silent, cut) = (Arc::clone(&silent), Arc::clone(&cut));
                    std::thread::spawn(move || relay(from, to, &silent, &cut));
                }
            }
        });
        this
    }

    /// Cuts all connections there are, without a word; new ones work once it is undone.
    pub(super) fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::SeqCst);
        // Every relay looks at it within its read timeout.
        std::thread::sleep(Duration::from_millis(60));
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, silent: &AtomicBool, cut: &AtomicBool) {
    from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    to.set_nodelay(true).unwrap();
    let mut bytes = [0; 65536];
    loop {
        if silent.load(Ordering::SeqCst) {
            cut.store(true, Ordering::SeqCst);
        }
        if cut.load(Ordering::SeqCst) {
            // Held open for good: neither end ever hears of it.
            std::mem::forget((from, to));
            return;
        }
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => {
                if to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
