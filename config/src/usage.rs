//! What a command line parser has to say about wrong usage, as the one line that users read.

use std::net::SocketAddr;

/// The reason out of a parser's message of several lines, followed by where to find more; free of control characters whatever the arguments hold.
///
/// The message is one of clap: `error: ` and the reason, which may go on in indented lines; then an empty line, usage and a pointer to the help.
#[must_use]
pub fn one_line(message: &str) -> String {
    let mut line = String::new();
    for part in message.lines().map(str::trim).take_while(|part| !is_appendix(part)).filter(|part| !part.is_empty()) {
        match line.chars().last() {
            None => {}
            Some(':') => line.push(' '),
            Some(_) => line.push_str("; "),
        }
        line.push_str(part);
    }
    let reason = line.strip_prefix("error: ").unwrap_or(&line);
    let mut shown = String::with_capacity(reason.len());
    for c in reason.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown + "; see --help"
}

/// Reads where metrics are served on the command line.
///
/// # Errors
/// Says how to write it.
pub fn metrics_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write it as ADDRESS:PORT, as in 127.0.0.1:9420".to_owned())
}

fn is_appendix(part: &str) -> bool {
    part.starts_with("Usage: ") || part.starts_with("For more information")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_becomes_one_line() {
        for (message, expected) in [
            (
                "error: invalid value 'foo' for '--nqn <NQN>': `foo` is not an NQN\n\nFor more information, try '--help'.\n",
                "invalid value 'foo' for '--nqn <NQN>': `foo` is not an NQN; see --help",
            ),
            (
                "error: the following required arguments were not provided:\n  --nbd <PATH>\n  <URL>\n\nUsage: godwit connect <URL>\n\nFor more",
                "the following required arguments were not provided: --nbd <PATH>; <URL>; see --help",
            ),
            (
                "error: unexpected argument '--exprt' found\n\n  tip: a similar argument exists: '--export'\n\nUsage: x\n",
                "unexpected argument '--exprt' found; tip: a similar argument exists: '--export'; see --help",
            ),
        ] {
            assert_eq!(one_line(message), expected);
        }
    }

    #[test]
    fn control_characters_of_arguments_do_not_reach_the_terminal() {
        assert_eq!(one_line("error: unexpected argument '\x1b[31m' found\n"), "unexpected argument '\\u{1b}[31m' found; see --help");
    }
}
