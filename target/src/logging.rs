//! Log lines: to standard error, as text, JSON, or with the priorities of the journal.

use std::fmt;
use std::io;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, format};
use tracing_subscriber::registry::LookupSpan;

use crate::cli::LogFormat;

/// What suits where the program runs: systemd tells by a variable that standard error is the journal.
pub(crate) fn usual_format() -> LogFormat {
    if std::env::var_os("JOURNAL_STREAM").is_some() { LogFormat::Journald } else { LogFormat::Text }
}

/// Starts to log. Only the first call has an effect.
pub(crate) fn start(filter: EnvFilter, form: LogFormat) {
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false);
    // Fails when there is a subscriber already, which then logs.
    let _ = match form {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Journald => builder.event_format(Journal).try_init(),
    };
}

/// A line with a priority in front, as sd-daemon(3) describes it.
struct Journal;

fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        format().without_time().with_level(false).with_target(false).with_ansi(false).format_event(ctx, writer, event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_the_priorities_of_syslog() {
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        assert_eq!(levels.map(priority), [3, 4, 6, 7, 7]);
    }
}
