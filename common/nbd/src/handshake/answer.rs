//! Option replies: what the server says in the handshake.

use std::fmt::Write;

use zerocopy::IntoBytes;

use super::data::Malformed;
use crate::{BlockSizes, ContextId, Export, InfoType, OptionCode, OptionReplyType, wire};

/// The longest error text, in bytes: well below the 4096 at which `nbd-client` loses its place.
const MAX_ERROR_TEXT_LEN: usize = 999;

/// The longest part of a client's string that is repeated to it or to the log, in bytes.
const MAX_QUOTED_LEN: usize = 64;

/// Appends the replies to one option.
pub(super) struct Answer<'a> {
    pub(super) option: OptionCode,
    pub(super) out: &'a mut Vec<u8>,
}

impl Answer<'_> {
    pub(super) fn ack(&mut self) {
        self.reply(OptionReplyType::ACK, &[]);
    }

    pub(super) fn error(&mut self, error: OptionReplyType, text: &str) {
        debug_assert!(error.is_error());
        self.reply(error, &[beginning(text, MAX_ERROR_TEXT_LEN).as_bytes()]);
    }

    pub(super) fn invalid(&mut self, malformed: Malformed) {
        self.error(OptionReplyType::ERR_INVALID, &malformed.to_string());
    }

    pub(super) fn unsupported(&mut self, text: &str) {
        self.error(OptionReplyType::ERR_UNSUP, text);
    }

    /// There is no such export; the text tells those that exist.
    pub(super) fn unknown(&mut self, name: &str, exports: &[Export]) {
        let mut text = format!("there is no export {:?}; ", quoted(name));
        text.push_str(match exports {
            [] => "this server has none",
            _ => "this server has ",
        });
        for (index, export) in exports.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            let item = format!("{separator}{:?}", export.name());
            let more = format!("{separator}and {} more", exports.len() - index);
            if text.len() + item.len() + more.len() > MAX_ERROR_TEXT_LEN {
                text.push_str(&more);
                break;
            }
            text.push_str(&item);
        }
        self.error(OptionReplyType::ERR_UNKNOWN, &text);
    }

    /// One export of a list.
    pub(super) fn server(&mut self, export: &Export) {
        let name = export.name().as_bytes();
        let name_len = u32::try_from(name.len()).expect("an export's name is short");
        self.reply(OptionReplyType::SERVER, &[&name_len.to_be_bytes(), name, export.description().as_bytes()]);
    }

    pub(super) fn info_export(&mut self, export: &Export, structured: bool) {
        let info =
            wire::InfoExport { info: InfoType::EXPORT.0.into(), size: export.size().into(), flags: export.flags_for(structured).0.into() };
        self.reply(OptionReplyType::INFO, &[info.as_bytes()]);
    }

    pub(super) fn info_text(&mut self, info: InfoType, text: &str) {
        self.reply(OptionReplyType::INFO, &[&info.0.to_be_bytes(), text.as_bytes()]);
    }

    pub(super) fn info_block_size(&mut self, block: BlockSizes) {
        let info = wire::InfoBlockSize {
            info: InfoType::BLOCK_SIZE.0.into(),
            minimum: block.minimum().into(),
            preferred: block.preferred().into(),
            maximum: block.maximum().into(),
        };
        self.reply(OptionReplyType::INFO, &[info.as_bytes()]);
    }

    pub(super) fn meta_context(&mut self, id: ContextId, name: &str) {
        self.reply(OptionReplyType::META_CONTEXT, &[&id.0.to_be_bytes(), name.as_bytes()]);
    }

    fn reply(&mut self, reply: OptionReplyType, data: &[&[u8]]) {
        let length = data.iter().map(|part| part.len()).sum::<usize>();
        let header = wire::OptionReplyHeader {
            magic: wire::OPTION_REPLY_MAGIC.into(),
            option: self.option.0.into(),
            reply: reply.0.into(),
            length: u32::try_from(length).expect("an option reply is short").into(),
        };
        self.out.extend_from_slice(header.as_bytes());
        data.iter().for_each(|part| self.out.extend_from_slice(part));
    }
}

/// The beginning of a client's string, for messages.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = beginning(text, MAX_QUOTED_LEN).to_owned();
    if quoted.len() < text.len() {
        let _ = write!(quoted, "... ({} bytes)", text.len());
    }
    quoted
}

/// The longest beginning of whole characters that has at most so many bytes.
fn beginning(text: &str, max_len: usize) -> &str {
    let mut len = text.len().min(max_len);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    &text[..len]
}
