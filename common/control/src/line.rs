//! Lines of bounded length from a stream.

use std::io::{self, Read};
use std::mem;

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 4096;

/// What has been read and is not yet a line.
#[derive(Debug, Default)]
pub(crate) struct LineReader {
    pending: Vec<u8>,
}

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line, without its end.
    Whole(Vec<u8>),
    /// The peer has ended the stream, between two lines or within one.
    End,
    /// More bytes than a line may have.
    TooLong,
}

impl LineReader {
    /// The next line, of less than `limit_bytes`.
    pub(crate) fn next(&mut self, stream: &mut impl Read, limit_bytes: usize) -> io::Result<Line> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.pending[searched..].iter().position(|&byte| byte == b'\n').map(|end| searched + end) {
                if end >= limit_bytes {
                    return Ok(Line::TooLong);
                }
                let after = self.pending.split_off(end + 1);
                let mut line = mem::replace(&mut self.pending, after);
                line.truncate(end);
                return Ok(Line::Whole(line));
            }
            if self.pending.len() >= limit_bytes {
                return Ok(Line::TooLong);
            }
            searched = self.pending.len();
            let mut piece = [0; PIECE_BYTES];
            match stream.read(&mut piece)? {
                0 => return Ok(Line::End),
                len => self.pending.extend_from_slice(&piece[..len]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, limit_bytes: usize) -> Vec<Line> {
        let (mut reader, mut stream) = (LineReader::default(), text.as_bytes());
        let mut lines = Vec::new();
        loop {
            match reader.next(&mut stream, limit_bytes).unwrap() {
                Line::Whole(line) => lines.push(Line::Whole(line)),
                last => {
                    lines.push(last);
                    return lines;
                }
            }
        }
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.into())
    }

    #[test]
    fn lines_come_one_by_one_and_an_unfinished_one_does_not() {
        assert_eq!(lines("a\nbc\n\nd", 8), [whole("a"), whole("bc"), whole(""), Line::End]);
        let long = "x".repeat(3 * PIECE_BYTES);
        assert_eq!(lines(&format!("{long}\ny\n"), 1 << 20), [whole(&long), whole("y"), Line::End]);
    }

    #[test]
    fn a_line_is_as_long_as_it_may_be_and_no_longer() {
        assert_eq!(lines("1234567\n", 8), [whole("1234567"), Line::End]);
        assert_eq!(lines("12345678\n", 8), [Line::TooLong]);
        assert_eq!(lines("12345678", 8), [Line::TooLong]);
    }
}
