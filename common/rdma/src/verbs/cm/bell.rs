//! Event counters, by which threads tell each other that there is something to read.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

pub(super) fn bell() -> io::Result<EventFd> {
    Ok(EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?)
}

pub(super) fn ring(bell: &EventFd) {
    // The counter can only be full of earlier rings, which serve as well.
    let _ = bell.write(1);
}

pub(super) fn quiet(bell: &EventFd) {
    let _ = bell.read();
}

pub(super) fn readable(descriptor: RawFd) -> libc::pollfd {
    libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 }
}

pub(super) fn wait_for(watched: &mut [libc::pollfd], limit: Duration) {
    let limit = i32::try_from(limit.as_millis().saturating_add(1)).unwrap_or(i32::MAX);
    let count = libc::nfds_t::try_from(watched.len()).unwrap_or(0);
    // SAFETY: as many entries as said.
    unsafe { libc::poll(watched.as_mut_ptr(), count, limit) };
}
