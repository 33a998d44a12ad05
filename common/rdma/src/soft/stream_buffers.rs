//! Buffers for bytes of streams that are read and not yet looked at.
//!
//! A queue pair has one only while there are such bytes of its stream: mostly within one step, longer when it waits in the middle of them, for memory or for
//! its next turn. So a thread needs one, however many connections it has, and little more while it works.

/// Bytes that are read in one call.
const BUFFER_BYTES: usize = 128 << 10;

/// Buffers that are kept although nobody has bytes in them.
const SPARE: usize = 4;

/// The buffers of a thread that are free.
#[derive(Debug, Default)]
pub(super) struct StreamBuffers(Vec<Box<[u8]>>);

impl StreamBuffers {
    pub(super) fn take(&mut self) -> Box<[u8]> {
        self.0.pop().unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice())
    }

    pub(super) fn give_back(&mut self, buffer: Box<[u8]>) {
        if self.0.len() < SPARE && !buffer.is_empty() {
            self.0.push(buffer);
        }
    }
}
