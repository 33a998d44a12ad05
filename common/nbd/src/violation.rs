//! What a client may not do: each of these closes its connection.

use crate::{ABSURD_PAYLOAD_LEN, MAX_OPTION_LEN, MAX_OPTIONS, OptionCode};

/// A client broke the protocol in a way that has no answer: close the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The client set a flag that the server did not offer.
    #[error("handshake: client flags {0:#010x} hold a flag that was not offered")]
    ClientFlags(u32),
    /// An option did not begin with `IHAVEOPT`.
    #[error("handshake: {0:#018x} stands where the magic of an option belongs")]
    OptionMagic(u64),
    /// An option announced more data than any option has.
    #[error("handshake: {option} announces {length} bytes of data; the limit is {MAX_OPTION_LEN}")]
    OptionTooLong {
        /// The option.
        option: OptionCode,
        /// Bytes it announced.
        length: u32,
    },
    /// The client keeps haggling.
    #[error("handshake: more than {MAX_OPTIONS} options")]
    TooManyOptions,
    /// `EXPORT_NAME`, which has no error reply, was malformed.
    #[error("handshake: EXPORT_NAME of {length} bytes is not a valid name")]
    ExportNameMalformed {
        /// Bytes of the name.
        length: u32,
    },
    /// `EXPORT_NAME`, which has no error reply, named no export.
    #[error("handshake: EXPORT_NAME names {name:?}, and there is no such export")]
    ExportNameUnknown {
        /// The name, or its beginning.
        name: String,
    },
    /// A request did not begin with the magic of requests.
    #[error("transmission: {0:#010x} stands where the magic of a request belongs")]
    RequestMagic(u32),
    /// A write announced a payload that is too large to be skipped.
    #[error("transmission: write {cookie:#x} announces {length} bytes; the limit is {ABSURD_PAYLOAD_LEN}")]
    PayloadTooLong {
        /// The request's cookie.
        cookie: u64,
        /// Bytes it announced.
        length: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_violation_says_what_and_where_in_one_line() {
        let table = [
            (Violation::ClientFlags(4), "handshake: client flags 0x00000004 hold a flag that was not offered"),
            (Violation::OptionMagic(1), "handshake: 0x0000000000000001 stands where the magic of an option belongs"),
            (
                Violation::OptionTooLong { option: OptionCode::GO, length: 1 << 21 },
                "handshake: GO announces 2097152 bytes of data; the limit is 1048576",
            ),
            (Violation::TooManyOptions, "handshake: more than 64 options"),
            (Violation::ExportNameMalformed { length: 5000 }, "handshake: EXPORT_NAME of 5000 bytes is not a valid name"),
            (
                Violation::ExportNameUnknown { name: "a\n\u{202e}".into() },
                r#"handshake: EXPORT_NAME names "a\n\u{202e}", and there is no such export"#,
            ),
            (Violation::RequestMagic(0x1256_0953), "transmission: 0x12560953 stands where the magic of a request belongs"),
            (
                Violation::PayloadTooLong { cookie: 0x10, length: u32::MAX },
                "transmission: write 0x10 announces 4294967295 bytes; the limit is 67108864",
            ),
        ];
        for (violation, text) in table {
            assert_eq!(violation.to_string(), text);
        }
    }
}
