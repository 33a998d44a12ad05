//! The stream of requests in transmission: headers are parsed here, payload is only counted.

use zerocopy::FromBytes;

use crate::{ABSURD_PAYLOAD_LEN, Command, Reply, Request, Violation, wire};

const HEADER_LEN: usize = size_of::<wire::RequestHeader>();

/// Parses request headers out of a stream that is cut anywhere, and knows where payload stands between them.
///
/// ```
/// # use godwit_nbd::{Errno, Export, Parsed, Reply, Request, Requests, Session, Violation};
/// # fn send(reply: Reply) {}
/// # fn begin(request: Request) {}
/// fn received(
///     requests: &mut Requests,
///     mut input: &[u8],
///     session: &Session,
///     export: &Export,
/// ) -> Result<(), Violation> {
///     while !input.is_empty() {
///         let (consumed, parsed) = requests.parse(input)?;
///         input = &input[consumed..];
///         match parsed {
///             None => break, // more is needed, or a payload is to be taken first
///             Some(Parsed::Refused(reply)) => send(reply),
///             Some(Parsed::Request(request)) => match request.check(session, export) {
///                 Ok(()) => begin(request), // and receive its payload, if any, saying so with `take`
///                 Err(refusal) => {
///                     let reply = Reply::error(session, &request, refusal.errno(), refusal);
///                     requests.refuse(reply).map(send);
///                 }
///             },
///         }
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Requests {
    partial: [u8; HEADER_LEN],
    state: State,
}

/// What some bytes of the stream completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A header. If there is payload it stands next in the stream.
    Request(Request),
    /// The payload of a request that was refused: its answer may be sent now.
    Refused(Reply),
}

#[derive(Clone, Debug)]
enum State {
    /// So many bytes of the next header are here.
    Header { filled: usize },
    /// So many bytes of payload stand before the next header, for the driver.
    Payload { owed: u32 },
    /// So many bytes of payload stand before the next header, for nobody; then the request is answered.
    Refusing { owed: u32, reply: Reply },
    /// The client disconnected.
    Ended,
    /// The client broke the protocol.
    Failed(Violation),
}

impl Default for Requests {
    fn default() -> Self {
        Self::new()
    }
}

impl Requests {
    /// Waits for the first request.
    #[must_use]
    pub const fn new() -> Self {
        Self { partial: [0; HEADER_LEN], state: State::Header { filled: 0 } }
    }

    /// Takes the next bytes of the stream; returns how many it consumed, and what they completed.
    ///
    /// Bytes behind what was completed are not consumed; call again with them. While payload is owed to the driver (see
    /// [`Requests::payload_owed`]) nothing is consumed and nothing returned. After [`Command::Disconnect`] everything is
    /// consumed and ignored.
    ///
    /// # Errors
    /// On bytes that are no request, and from then on.
    pub fn parse(&mut self, input: &[u8]) -> Result<(usize, Option<Parsed>), Violation> {
        match &self.state {
            State::Header { filled } => self.header(*filled, input),
            State::Payload { .. } => Ok((0, None)),
            State::Refusing { owed, reply } => Ok(self.discard(*owed, *reply, input)),
            State::Ended => Ok((input.len(), None)),
            State::Failed(violation) => Err(violation.clone()),
        }
    }

    /// Bytes of payload that the driver has yet to take before the next header.
    #[must_use]
    pub const fn payload_owed(&self) -> u32 {
        match self.state {
            State::Payload { owed } => owed,
            _ => 0,
        }
    }

    /// The driver took so many bytes of payload off the stream.
    ///
    /// # Panics
    /// When that is more than [`Requests::payload_owed`]: the driver took bytes that are no payload.
    pub fn take(&mut self, len: u32) {
        let owed = self.payload_owed().checked_sub(len);
        let owed = owed.expect("the driver took more bytes than there is payload");
        if let State::Payload { .. } = self.state {
            self.state = match owed {
                0 => State::Header { filled: 0 },
                owed => State::Payload { owed },
            };
        }
    }

    /// The request whose header came last gets an error and the driver wants no more of its payload: [`Requests::parse`] discards
    /// that and then gives `reply` back. Without payload `reply` is given back at once.
    ///
    /// A client that is still sending a request does not know it yet as one that can be answered: libnbd, for one, hangs up
    /// when it is answered early.
    #[must_use = "a reply that is given back is to be sent now"]
    pub fn refuse(&mut self, reply: Reply) -> Option<Reply> {
        let State::Payload { owed } = self.state else {
            return Some(reply);
        };
        self.state = State::Refusing { owed, reply };
        None
    }

    fn discard(&mut self, owed: u32, reply: Reply, input: &[u8]) -> (usize, Option<Parsed>) {
        let len = u32::try_from(input.len()).unwrap_or(u32::MAX).min(owed);
        if len < owed {
            self.state = State::Refusing { owed: owed - len, reply };
            return (len as usize, None);
        }
        self.state = State::Header { filled: 0 };
        (len as usize, Some(Parsed::Refused(reply)))
    }

    fn header(&mut self, filled: usize, input: &[u8]) -> Result<(usize, Option<Parsed>), Violation> {
        let taken = input.len().min(HEADER_LEN - filled);
        self.partial[filled..filled + taken].copy_from_slice(&input[..taken]);
        if filled + taken < HEADER_LEN {
            self.state = State::Header { filled: filled + taken };
            return Ok((taken, None));
        }
        let request = self.accept();
        if let Err(violation) = &request {
            self.state = State::Failed(violation.clone());
        }
        Ok((taken, Some(Parsed::Request(request?))))
    }

    /// Makes a request of a complete header.
    fn accept(&mut self) -> Result<Request, Violation> {
        let header = wire::RequestHeader::read_from_bytes(&self.partial).expect("the partial header is as long as a header");
        if header.magic.get() != wire::REQUEST_MAGIC {
            return Err(Violation::RequestMagic(header.magic.get()));
        }
        let request = Request::from(header);
        let payload_len = request.payload_len();
        if payload_len > ABSURD_PAYLOAD_LEN {
            let cookie = request.cookie;
            return Err(Violation::PayloadTooLong { cookie, length: payload_len });
        }
        self.state = match request.command {
            Command::Disconnect => State::Ended,
            _ if payload_len > 0 => State::Payload { owed: payload_len },
            _ => State::Header { filled: 0 },
        };
        Ok(request)
    }
}
