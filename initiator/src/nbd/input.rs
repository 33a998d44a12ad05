//! The bytes of a connection that were received and not yet looked at.

use std::fmt;

use super::limits::STREAM_BUFFER_BYTES;

/// The stream buffer of one connection.
pub(crate) struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; STREAM_BUFFER_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }

    /// What is there.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether there is room for more.
    pub(crate) fn has_space(&self) -> bool {
        self.end - self.start < self.bytes.len()
    }

    /// Room for more bytes, behind those that are there.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.start > 0 {
            // Mostly there is nothing to move: what was received was used up.
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.bytes[self.end..]
    }

    /// So many bytes were put into [`Self::space`].
    pub(crate) fn received(&mut self, len: usize) {
        debug_assert!(len <= self.bytes.len() - self.end);
        self.end += len;
    }

    /// The first so many bytes were used.
    pub(crate) fn consume(&mut self, len: usize) {
        debug_assert!(len <= self.end - self.start);
        self.start += len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Input({} bytes)", self.end - self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_went_in_across_the_end_of_the_buffer() {
        let mut input = Input::new();
        let (mut written, mut read) = (0_u8, 0_u8);
        for len in [STREAM_BUFFER_BYTES, 1, 100, STREAM_BUFFER_BYTES - 7, 13] {
            for byte in input.space().iter_mut().take(len) {
                *byte = written;
                written = written.wrapping_add(1);
            }
            let taken = len.min(input.space().len());
            input.received(taken);
            let used = input.bytes().len() - 3;
            for &byte in &input.bytes()[..used] {
                assert_eq!(byte, read);
                read = read.wrapping_add(1);
            }
            input.consume(used);
            // What did not fit was counted, but not kept.
            written = read.wrapping_add(3);
        }
        assert_eq!(input.bytes(), [read, read.wrapping_add(1), read.wrapping_add(2)]);
    }

    #[test]
    fn a_full_buffer_has_no_space() {
        let mut input = Input::new();
        assert!(input.is_empty() && input.has_space());
        input.received(STREAM_BUFFER_BYTES);
        assert!(!input.has_space());
        input.consume(1);
        assert_eq!(input.space().len(), 1);
    }
}
