//! Descriptors that the caller brings and reads by itself: the ring says when that is worth while.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::IoUring;
use slab::Slab;

use super::{GENERATION_MASK, Kind, push_cancel, push_poll};
use crate::{Event, Token, WatchId};

#[derive(Debug)]
struct Watch {
    descriptor: OwnedFd,
    token: Token,
    generation: u32,
    armed: bool,
}

/// All watches of a reactor.
#[derive(Debug, Default)]
pub(super) struct Watches {
    watches: Slab<Watch>,
    next_generation: u32,
}

impl Watches {
    pub(super) fn add(&mut self, ring: &mut IoUring, descriptor: OwnedFd, token: Token) -> io::Result<WatchId> {
        self.next_generation = self.next_generation.wrapping_add(1) & GENERATION_MASK;
        let generation = self.next_generation;
        let index = self.watches.insert(Watch { descriptor, token, generation, armed: false });
        let id = WatchId { index: u32::try_from(index).expect("a process has fewer descriptors than that"), generation };
        self.arm(ring, id).inspect_err(|_| drop(self.watches.try_remove(index)))?;
        Ok(id)
    }

    fn get(&mut self, generation: u32, index: u32) -> Option<&mut Watch> {
        self.watches.get_mut(index as usize).filter(|watch| watch.generation == generation)
    }

    /// Has the ring look, which it does at once and so misses nothing.
    pub(super) fn arm(&mut self, ring: &mut IoUring, id: WatchId) -> io::Result<()> {
        let Some(watch) = self.get(id.generation, id.index) else { return Ok(()) };
        if watch.armed {
            return Ok(());
        }
        watch.armed = true;
        push_poll(ring, watch.descriptor.as_raw_fd(), libc::POLLIN, Kind::Watch.user_data(id.generation, id.index))
    }

    pub(super) fn remove(&mut self, ring: &mut IoUring, id: WatchId) {
        let Some(watch) = self.get(id.generation, id.index) else { return };
        if watch.armed {
            let _ = push_cancel(ring, Kind::Watch.user_data(id.generation, id.index));
        }
        self.watches.remove(id.index as usize);
    }

    pub(super) fn on_readable<I>(&mut self, generation: u32, index: u32, events: &mut Vec<Event<I>>) {
        if let Some(watch) = self.get(generation, index) {
            watch.armed = false;
            events.push(Event::Readable { token: watch.token });
        }
    }
}
