//! Prometheus' text format (version 0.0.4, "Exposition formats").

use std::fmt::{self, Write};

/// What a metric does as time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Grows, from a start of the daemon on. By convention the name ends with `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// The value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole one.
    Whole(u64),
    /// Another one.
    Real(f64),
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

impl From<bool> for Number {
    fn from(is: bool) -> Self {
        Self::Whole(is.into())
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Whole(number) => write!(f, "{number}"),
            Self::Real(f64::INFINITY) => f.write_str("+Inf"),
            Self::Real(f64::NEG_INFINITY) => f.write_str("-Inf"),
            Self::Real(number) => write!(f, "{number}"),
        }
    }
}

/// Metrics as text.
///
/// ```
/// use godwit_control::metrics::{Kind, Text};
///
/// let mut text = Text::new();
/// text.family("disk_reads_total", Kind::Counter, "Reads that ended well.").sample(&[("disk", "a")], 7);
/// assert_eq!(text.finish(), "# HELP disk_reads_total Reads that ended well.\n# TYPE disk_reads_total counter\ndisk_reads_total{disk=\"a\"} 7\n");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Text {
    text: String,
}

/// The samples of one metric.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Text {
    /// No metrics.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a metric; its samples have to follow at once. Each name may be there once.
    ///
    /// # Panics
    ///
    /// In debug builds, when the name is none that a metric can have.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        debug_assert!(is_name(name), "{name}");
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let _ = write!(self.text, "# HELP {name} ");
        escape(&mut self.text, help, false);
        let _ = write!(self.text, "\n# TYPE {name} {kind}\n");
        Family { text: &mut self.text, name }
    }

    /// The text that is served.
    pub fn finish(self) -> String {
        self.text
    }
}

impl Family<'_> {
    /// A sample, with labels that tell it from the others.
    ///
    /// # Panics
    ///
    /// In debug builds, when the name of a label is none that a label can have.
    pub fn sample(&mut self, labels: &[(&'static str, &str)], value: impl Into<Number>) -> &mut Self {
        self.text.push_str(self.name);
        for (index, (name, value)) in labels.iter().enumerate() {
            debug_assert!(is_name(name) && !name.contains(':'), "{name}");
            let _ = write!(self.text, "{}{name}=\"", if index == 0 { '{' } else { ',' });
            escape(self.text, value, true);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {}", value.into());
        self
    }
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    let first = bytes.next();
    first.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_' || byte == b':')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':')
}

fn escape(out: &mut String, text: &str, quotes: bool) {
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            letter => out.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_has_its_help_its_type_and_its_samples_in_a_row() {
        let mut text = Text::new();
        let mut family = text.family("a_total", Kind::Counter, "All.");
        family.sample(&[("x", "1"), ("y", "2")], 3).sample(&[("x", "2"), ("y", "")], u64::MAX);
        text.family("b", Kind::Gauge, "Some.").sample(&[], 0.5).sample(&[("up", "no")], false);
        let expected = "# HELP a_total All.\n# TYPE a_total counter\na_total{x=\"1\",y=\"2\"} 3\na_total{x=\"2\",y=\"\"} 18446744073709551615\n\
                        # HELP b Some.\n# TYPE b gauge\nb 0.5\nb{up=\"no\"} 0\n";
        assert_eq!(text.finish(), expected);
    }

    #[test]
    fn what_would_end_a_line_or_a_label_is_escaped() {
        let mut text = Text::new();
        text.family("a", Kind::Gauge, "one\\two\n\"three\"").sample(&[("l", "q\"b\\n\n")], 1);
        assert_eq!(text.finish(), "# HELP a one\\\\two\\n\"three\"\n# TYPE a gauge\na{l=\"q\\\"b\\\\n\\n\"} 1\n");
    }

    #[test]
    fn numbers_are_written_as_prometheus_reads_them() {
        let written = [0.0, 1e21, -0.25, f64::INFINITY, f64::NEG_INFINITY, f64::NAN].map(|number| Number::from(number).to_string());
        assert_eq!(written, ["0", "1000000000000000000000", "-0.25", "+Inf", "-Inf", "NaN"]);
    }

    #[test]
    fn names_are_letters_digits_and_underscores() {
        assert!(["a", "_b", "c1:d_e"].into_iter().all(is_name));
        assert!(!["", "1a", "a-b", "a b", "é"].into_iter().any(is_name));
    }
}
