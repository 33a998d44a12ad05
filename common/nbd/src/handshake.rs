//! The handshake: a state machine from the greeting to transmission ("Fixed newstyle negotiation").

mod answer;
mod data;
mod terms;

use zerocopy::FromBytes;

use self::answer::Answer;
use self::terms::{OFFERED, Terms, has_data};
use crate::wire::{self, HandshakeFlags};
use crate::{Export, MAX_KEPT_OPTION_LEN, MAX_OPTION_LEN, MAX_OPTIONS, MAX_STRING_LEN, OptionCode, Session, Violation};

const CLIENT_FLAGS_LEN: usize = size_of::<u32>();

/// One client's handshake. It keeps at most the data of one option, [`MAX_KEPT_OPTION_LEN`] bytes.
#[derive(Debug)]
pub struct Handshake {
    /// The part of the current item that came so far.
    partial: Vec<u8>,
    /// Bytes of the current item that are yet to come.
    missing: usize,
    state: State,
    /// How it ended, once it did.
    end: Option<Result<Outcome, Violation>>,
    terms: Terms,
    options: u32,
}

/// How far a handshake is after some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All input is consumed, and more is needed.
    NeedMore,
    /// One option is answered: send the output, then go on with the rest of the input.
    Answered,
    /// Send the output; the rest of the input belongs to [`crate::Requests`].
    Transmission(Session),
    /// Send the output, then close: the client gave up in good order.
    Aborted,
}

/// What the current item is.
#[derive(Clone, Copy, Debug)]
enum State {
    ClientFlags,
    OptionHeader,
    /// The data are kept in `partial`.
    KeptData {
        option: OptionCode,
        length: u32,
    },
    /// The data are not looked at.
    SkippedData {
        option: OptionCode,
        length: u32,
    },
}

impl Default for Handshake {
    fn default() -> Self {
        Self::new()
    }
}

impl Handshake {
    /// Waits for a client's first bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self { partial: Vec::new(), missing: CLIENT_FLAGS_LEN, state: State::ClientFlags, end: None, terms: Terms::NONE, options: 0 }
    }

    /// What the server sends first, before the client says anything.
    #[must_use]
    pub fn greeting() -> [u8; size_of::<wire::Greeting>()] {
        let greeting = wire::Greeting { magic: wire::NBDMAGIC.into(), option_magic: wire::IHAVEOPT.into(), flags: OFFERED.0.into() };
        zerocopy::transmute!(greeting)
    }

    /// Takes the client's next bytes and appends what is to be sent to `out`; returns how many bytes it consumed.
    ///
    /// It returns after each answered option, so a client that does not wait for answers cannot make `out` grow: send it, then
    /// call again with the rest. Once the handshake ended, nothing more is consumed and the end is repeated.
    ///
    /// # Errors
    /// When the connection must be closed; what was appended to `out` may be dropped.
    pub fn receive(&mut self, input: &[u8], exports: &[Export], out: &mut Vec<u8>) -> Result<(usize, Outcome), Violation> {
        if let Some(end) = &self.end {
            return end.clone().map(|end| (0, end));
        }
        let mut rest = input;
        let mut outcome = Ok(Outcome::NeedMore);
        while outcome == Ok(Outcome::NeedMore) && self.gather(&mut rest) {
            outcome = match self.state {
                State::ClientFlags => self.client_flags(),
                State::OptionHeader => self.option_header(),
                State::KeptData { option, length } | State::SkippedData { option, length } => self.option(option, length, exports, out),
            };
        }
        if !matches!(outcome, Ok(Outcome::NeedMore | Outcome::Answered)) {
            self.partial = Vec::new();
            self.end = Some(outcome.clone());
        }
        outcome.map(|outcome| (input.len() - rest.len(), outcome))
    }

    /// Bytes of the client's that are kept at the moment: never more than [`MAX_KEPT_OPTION_LEN`].
    #[must_use]
    pub fn kept_len(&self) -> usize {
        self.partial.len()
    }

    /// Takes input until nothing of the current item is missing; whether that is so.
    fn gather(&mut self, rest: &mut &[u8]) -> bool {
        let (taken, behind) = rest.split_at(rest.len().min(self.missing));
        *rest = behind;
        self.missing -= taken.len();
        if !matches!(self.state, State::SkippedData { .. }) {
            self.partial.extend_from_slice(taken);
        }
        self.missing == 0
    }

    /// Begins the next item, of so many bytes.
    fn expect(&mut self, state: State, len: usize) {
        self.partial.clear();
        self.missing = len;
        self.state = state;
    }

    fn client_flags(&mut self) -> Result<Outcome, Violation> {
        let mut flags = [0; CLIENT_FLAGS_LEN];
        flags.copy_from_slice(&self.partial);
        let flags = u32::from_be_bytes(flags);
        self.terms.flags = match u16::try_from(flags).map(HandshakeFlags) {
            Ok(flags) if OFFERED.contains(flags) => flags,
            _ => return Err(Violation::ClientFlags(flags)),
        };
        self.expect(State::OptionHeader, size_of::<wire::OptionHeader>());
        Ok(Outcome::NeedMore)
    }

    fn option_header(&mut self) -> Result<Outcome, Violation> {
        let header = wire::OptionHeader::read_from_bytes(&self.partial).expect("as many bytes were gathered as the header has");
        let (option, length) = (OptionCode(header.option.get()), header.length.get());
        if header.magic.get() != wire::IHAVEOPT {
            return Err(Violation::OptionMagic(header.magic.get()));
        }
        if self.options == MAX_OPTIONS {
            return Err(Violation::TooManyOptions);
        }
        if length > MAX_OPTION_LEN {
            return Err(Violation::OptionTooLong { option, length });
        }
        if option == OptionCode::EXPORT_NAME && length as usize > MAX_STRING_LEN {
            return Err(Violation::ExportNameMalformed { length });
        }
        self.options += 1;
        let state = if has_data(option) && length <= MAX_KEPT_OPTION_LEN {
            State::KeptData { option, length }
        } else {
            State::SkippedData { option, length }
        };
        self.expect(state, length as usize);
        Ok(Outcome::NeedMore)
    }

    /// Answers an option that came completely.
    fn option(&mut self, option: OptionCode, length: u32, exports: &[Export], out: &mut Vec<u8>) -> Result<Outcome, Violation> {
        let data = std::mem::take(&mut self.partial);
        let outcome = if option == OptionCode::EXPORT_NAME {
            self.terms.export_name(&data, exports, out)
        } else {
            Ok(self.terms.negotiate(option, length, &data, exports, &mut Answer { option, out }))
        };
        self.partial = data;
        self.expect(State::OptionHeader, size_of::<wire::OptionHeader>());
        outcome
    }
}
