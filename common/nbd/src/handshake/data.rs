//! The data of options: what a client may put into them.

use crate::{InfoType, MAX_STRING_LEN};

/// Why an option is answered `ERR_INVALID`; its `Display` is the text of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("only EXPORT_NAME is legal for a client without fixed newstyle")]
    PlainNewstyle,
    #[error("this option has no data")]
    UnexpectedData,
    #[error("metadata contexts need structured replies first")]
    NotStructured,
    #[error("the data end in the middle of a field")]
    Truncated,
    #[error("there are data behind the last field")]
    Trailing,
    #[error("a string is longer than {MAX_STRING_LEN} bytes, or not UTF-8, or holds a NUL")]
    Text,
}

/// The data of `INFO` and `GO`.
pub(super) struct InfoRequest<'a> {
    pub(super) name: &'a str,
    infos: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    pub(super) fn parse(mut data: &'a [u8]) -> Result<Self, Malformed> {
        let name = string(&mut data)?;
        let (count, infos) = data.split_first_chunk().ok_or(Malformed::Truncated)?;
        let len = usize::from(u16::from_be_bytes(*count)) * 2;
        match infos.len() {
            actual if actual < len => Err(Malformed::Truncated),
            actual if actual > len => Err(Malformed::Trailing),
            _ => Ok(Self { name, infos }),
        }
    }

    pub(super) fn asks(&self, info: InfoType) -> bool {
        self.infos.chunks_exact(2).any(|asked| asked == info.0.to_be_bytes())
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
pub(super) struct MetaRequest<'a> {
    pub(super) name: &'a str,
    pub(super) queries: Vec<&'a str>,
}

impl<'a> MetaRequest<'a> {
    pub(super) fn parse(mut data: &'a [u8]) -> Result<Self, Malformed> {
        let name = string(&mut data)?;
        let count = number(&mut data)?;
        // A count that is too large ends at the first query that is not there.
        let queries = (0..count).map(|_| string(&mut data)).collect::<Result<_, _>>()?;
        match data {
            [] => Ok(Self { name, queries }),
            _ => Err(Malformed::Trailing),
        }
    }
}

/// A string of the protocol: UTF-8, no NUL, not too long.
pub(super) fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.len() <= MAX_STRING_LEN && !text.contains('\0') => Ok(text),
        _ => Err(Malformed::Text),
    }
}

/// Takes a string with a length in front.
fn string<'a>(data: &mut &'a [u8]) -> Result<&'a str, Malformed> {
    let len = number(data)? as usize;
    let (string, rest) = data.split_at_checked(len).ok_or(Malformed::Truncated)?;
    *data = rest;
    text(string)
}

/// Takes a number.
fn number(data: &mut &[u8]) -> Result<u32, Malformed> {
    let (number, rest) = data.split_first_chunk().ok_or(Malformed::Truncated)?;
    *data = rest;
    Ok(u32::from_be_bytes(*number))
}
