//! What the tests share: exports to serve, bytes written as hex, and a handshake to talk to.

#![allow(dead_code, unreachable_pub, missing_docs, missing_debug_implementations, reason = "each test file uses a part")]

use godwit_nbd::{BlockSizes, Export, Handshake, Outcome, Session, TransmissionFlags, Violation};

pub const KERNEL_READY: TransmissionFlags = TransmissionFlags(0x056d);
pub const EVERYTHING: TransmissionFlags = TransmissionFlags(0x0ded);

pub const GIB: u64 = 1 << 30;

/// "disk0", 1 GiB in blocks of 512, and "Disk0", read-only, 8 KiB in blocks of 4096.
pub fn exports() -> Vec<Export> {
    let small = BlockSizes::new(512, 4096, 32 << 20).unwrap();
    let large = BlockSizes::new(4096, 4096, 1 << 20).unwrap();
    let read_only = TransmissionFlags::READ_ONLY.with(TransmissionFlags::SEND_FLUSH);
    vec![Export::new("disk0", "the first", GIB, small, EVERYTHING).unwrap(), Export::new("Disk0", "", 8192, large, read_only).unwrap()]
}

/// Bytes of hex digits; blanks and line ends are for the reader.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    assert_eq!(digits.len() % 2, 0, "half a byte in {text:?}");
    digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).unwrap()).collect()
}

/// A handshake that has been greeted, and what it said last.
pub struct Talk {
    pub handshake: Handshake,
    pub exports: Vec<Export>,
}

impl Talk {
    /// A handshake with fixed newstyle and no padding agreed.
    pub fn fixed() -> Self {
        Self::with_flags(3)
    }

    pub fn with_flags(flags: u32) -> Self {
        let mut talk = Self { handshake: Handshake::new(), exports: exports() };
        assert_eq!(talk.say(&flags.to_be_bytes()), Ok((vec![], Outcome::NeedMore)));
        talk
    }

    /// Feeds all of the input; returns the output and how it ended.
    pub fn say(&mut self, mut input: &[u8]) -> Result<(Vec<u8>, Outcome), Violation> {
        let mut out = Vec::new();
        loop {
            let (consumed, outcome) = self.handshake.receive(input, &self.exports, &mut out)?;
            input = &input[consumed..];
            match outcome {
                Outcome::Answered if !input.is_empty() => {}
                outcome => {
                    assert!(input.is_empty(), "{} bytes behind the end", input.len());
                    return Ok((out, outcome));
                }
            }
        }
    }

    /// Says `input` and expects exactly that answer, and that the handshake goes on.
    #[track_caller]
    pub fn expect(&mut self, input: &[u8], answer: &[u8]) {
        let (out, outcome) = self.say(input).unwrap();
        assert_eq!((format!("{out:02x?}"), outcome), (format!("{answer:02x?}"), Outcome::Answered));
    }

    /// Says `input` and expects exactly that answer, and transmission.
    #[track_caller]
    pub fn expect_session(&mut self, input: &[u8], answer: &[u8]) -> Session {
        let (out, outcome) = self.say(input).unwrap();
        assert_eq!(format!("{out:02x?}"), format!("{answer:02x?}"));
        match outcome {
            Outcome::Transmission(session) => session,
            other => panic!("no transmission but {other:?}"),
        }
    }
}

/// An option reply written down: head, then text.
pub fn error_reply(option: u32, reply: u32, text: &str) -> Vec<u8> {
    let mut bytes = hex("0003e889045565a9");
    bytes.extend(option.to_be_bytes());
    bytes.extend(reply.to_be_bytes());
    bytes.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
    bytes.extend(text.as_bytes());
    bytes
}
