//! How many messages of each kind went over a stream.

use std::fmt;

use crate::number::Opcode;

/// Messages of one direction, by opcode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    messages: [u64; 8],
}

impl Traffic {
    /// Messages with an opcode.
    #[must_use]
    pub fn of(&self, opcode: Opcode) -> u64 {
        self.messages.get(usize::from(opcode.0)).copied().unwrap_or_default()
    }

    /// Whether there was no message at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages == Self::default().messages
    }

    pub(crate) fn count(&mut self, opcode: Opcode) {
        if let Some(count) = self.messages.get_mut(usize::from(opcode.0)) {
            *count += 1;
        }
    }
}

/// As `0:12 3:7`: opcode, colon, count, for the opcodes that were seen.
impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (opcode, count) in self.messages.iter().enumerate().filter(|(_, count)| **count > 0) {
            write!(f, "{separator}{opcode}:{count}")?;
            separator = " ";
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_what_was_seen() {
        let mut traffic = Traffic::default();
        assert_eq!(traffic.to_string(), "none");
        assert!(traffic.is_empty());
        traffic.count(Opcode::WRITE);
        traffic.count(Opcode::SEND);
        traffic.count(Opcode::SEND);
        traffic.count(Opcode(15));
        assert_eq!(traffic.to_string(), "0:1 3:2");
        assert!(!traffic.is_empty());
        assert_eq!((traffic.of(Opcode::SEND), traffic.of(Opcode(15))), (2, 0));
    }
}
