//! What each option asks for, what it changes, and how it is answered.

use zerocopy::IntoBytes;

use super::Outcome;
use super::answer::{self, Answer};
use super::data::{self, InfoRequest, Malformed, MetaRequest};
use crate::wire::{self, HandshakeFlags};
use crate::{BASE_ALLOCATION, ContextId, Export, InfoType, MAX_KEPT_OPTION_LEN, OptionCode, OptionReplyType, Session, Violation, find};

/// What the server offers.
pub(super) const OFFERED: HandshakeFlags = HandshakeFlags::FIXED_NEWSTYLE.with(HandshakeFlags::NO_ZEROES);

/// What follows the answer to `EXPORT_NAME` unless `NO_ZEROES` was agreed.
const PADDING: [u8; 124] = [0; 124];

/// The id of `base:allocation` once it is selected; lists say zero.
const ALLOCATION: ContextId = ContextId(1);

/// What was agreed so far.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) flags: HandshakeFlags,
    structured: bool,
    /// The export for which `base:allocation` is selected.
    allocation: Option<String>,
}

/// Whether an option has data that the server looks at.
pub(super) fn has_data(option: OptionCode) -> bool {
    matches!(
        option,
        OptionCode::EXPORT_NAME | OptionCode::INFO | OptionCode::GO | OptionCode::LIST_META_CONTEXT | OptionCode::SET_META_CONTEXT
    )
}

impl Terms {
    /// What holds before the client says anything.
    pub(super) const NONE: Self = Self { flags: HandshakeFlags::NONE, structured: false, allocation: None };

    /// The one option that has no error reply.
    pub(super) fn export_name(&self, data: &[u8], exports: &[Export], out: &mut Vec<u8>) -> Result<Outcome, Violation> {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let name = data::text(data).map_err(|_| Violation::ExportNameMalformed { length })?;
        let Some(index) = find(exports, name) else {
            return Err(Violation::ExportNameUnknown { name: answer::quoted(name) });
        };
        let export = &exports[index];
        let reply = wire::ExportNameReply { size: export.size().into(), flags: export.flags_for(self.structured).0.into() };
        out.extend_from_slice(reply.as_bytes());
        if !self.flags.contains(HandshakeFlags::NO_ZEROES) {
            out.extend_from_slice(&PADDING);
        }
        Ok(Outcome::Transmission(self.session(index, export, false)))
    }

    /// Every other option: answered in any case.
    pub(super) fn negotiate(
        &mut self,
        option: OptionCode,
        length: u32,
        data: &[u8],
        exports: &[Export],
        answer: &mut Answer<'_>,
    ) -> Outcome {
        if option == OptionCode::SET_META_CONTEXT {
            self.allocation = None; // whatever follows: a failed selection also replaces the old one
        }
        if !self.flags.contains(HandshakeFlags::FIXED_NEWSTYLE) {
            answer.invalid(Malformed::PlainNewstyle);
            return Outcome::Answered;
        }
        if has_data(option) && length > MAX_KEPT_OPTION_LEN {
            answer.error(OptionReplyType::ERR_TOO_BIG, "that is too much data for this option");
            return Outcome::Answered;
        }
        match option {
            OptionCode::ABORT => {
                answer.ack();
                return Outcome::Aborted;
            }
            OptionCode::LIST | OptionCode::STRUCTURED_REPLY if length > 0 => {
                answer.invalid(Malformed::UnexpectedData);
            }
            OptionCode::LIST => {
                exports.iter().for_each(|export| answer.server(export));
                answer.ack();
            }
            OptionCode::STRUCTURED_REPLY => {
                self.structured = true;
                answer.ack();
            }
            OptionCode::INFO | OptionCode::GO => match InfoRequest::parse(data) {
                Err(malformed) => answer.invalid(malformed),
                Ok(request) => {
                    if let Some(session) = self.info(&request, exports, answer)
                        && option == OptionCode::GO
                    {
                        return Outcome::Transmission(session);
                    }
                }
            },
            OptionCode::LIST_META_CONTEXT | OptionCode::SET_META_CONTEXT => {
                let request = match self.structured {
                    true => MetaRequest::parse(data),
                    false => Err(Malformed::NotStructured),
                };
                match request {
                    Err(malformed) => answer.invalid(malformed),
                    Ok(request) => self.meta_context(&request, exports, answer),
                }
            }
            OptionCode::STARTTLS => answer.unsupported("this server does not speak TLS"),
            OptionCode::EXTENDED_HEADERS => answer.unsupported("this server does not use extended headers"),
            _ => answer.unsupported("this server does not know that option"),
        }
        Outcome::Answered
    }

    /// Answers `INFO` and `GO`; the session that `GO` begins, unless there is no such export.
    fn info(&self, request: &InfoRequest<'_>, exports: &[Export], answer: &mut Answer<'_>) -> Option<Session> {
        let Some(index) = find(exports, request.name) else {
            answer.unknown(request.name, exports);
            return None;
        };
        let export = &exports[index];
        answer.info_export(export, self.structured);
        if request.asks(InfoType::NAME) {
            answer.info_text(InfoType::NAME, export.name());
        }
        if request.asks(InfoType::DESCRIPTION) {
            answer.info_text(InfoType::DESCRIPTION, export.description());
        }
        let block_sizes_known = request.asks(InfoType::BLOCK_SIZE);
        if block_sizes_known {
            answer.info_block_size(export.block());
        }
        answer.ack();
        Some(self.session(index, export, block_sizes_known))
    }

    /// Answers `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
    fn meta_context(&mut self, request: &MetaRequest<'_>, exports: &[Export], answer: &mut Answer<'_>) {
        let Some(index) = find(exports, request.name) else {
            return answer.unknown(request.name, exports);
        };
        if answer.option == OptionCode::SET_META_CONTEXT {
            if request.queries.contains(&BASE_ALLOCATION) {
                self.allocation = Some(exports[index].name().to_owned());
                answer.meta_context(ALLOCATION, BASE_ALLOCATION);
            }
        } else if request.queries.is_empty() || request.queries.iter().any(|&query| query == BASE_ALLOCATION || query == "base:") {
            answer.meta_context(ContextId(0), BASE_ALLOCATION);
        }
        answer.ack();
    }

    /// The session on an export under these terms; a context that was selected for another export is void.
    fn session(&self, index: usize, export: &Export, block_sizes_known: bool) -> Session {
        let selected = self.allocation.as_deref() == Some(export.name());
        Session {
            export: index,
            flags: export.flags_for(self.structured),
            structured: self.structured,
            allocation: selected.then_some(ALLOCATION),
            block_sizes_known,
        }
    }
}
