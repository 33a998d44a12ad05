//! Line charts as SVG, to stand in a page of HTML.

use std::fmt::Write as _;

/// Outer size, and where the curves are.
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 42.0;

/// Colours of curves, one after the other; told apart by those who see few colours (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555"];

/// Some curves over one axis.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) x_label: &'static str,
    pub(super) y_label: &'static str,
    /// What is marked on the horizontal axis, from left to right.
    pub(super) ticks: Vec<(f64, String)>,
    pub(super) scale: Scale,
    pub(super) curves: Vec<Curve>,
}

/// The vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// From zero.
    Linear,
    /// A decade is a step.
    Logarithmic,
}

/// One curve.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    /// Which run it is of: these have a colour each.
    pub(super) run: usize,
    pub(super) label: String,
    pub(super) dashed: bool,
    pub(super) points: Vec<(f64, f64)>,
}

/// The colour of a run.
pub(super) fn colour(run: usize) -> &'static str {
    COLOURS[run % COLOURS.len()]
}

/// Text within HTML, also within quotes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

impl Chart {
    /// Whether there is anything to see.
    pub(super) fn is_empty(&self) -> bool {
        self.curves.iter().all(|curve| curve.points.is_empty())
    }

    /// The chart.
    pub(super) fn svg(&self) -> String {
        let axis = Axis::of(self);
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n", escape(&self.title));
        let mut put = |element: String| {
            svg.push_str(&element);
            svg.push('\n');
        };
        put(text(WIDTH / 2.0, 16.0, "middle", "t", &self.title));
        for (value, label) in &axis.ticks {
            let y = axis.y(*value);
            put(line("g", (LEFT, y), (WIDTH - RIGHT, y)));
            put(text(LEFT - 6.0, y + 4.0, "end", "l", label));
        }
        for (value, label) in &self.ticks {
            let x = axis.x(*value);
            put(line("g", (x, TOP), (x, HEIGHT - BOTTOM)));
            put(text(x, HEIGHT - BOTTOM + 15.0, "middle", "l", label));
        }
        put(text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0, "middle", "l", self.x_label));
        put(format!(
            "<text x=\"0\" y=\"0\" class=\"l\" text-anchor=\"middle\" transform=\"translate(13 {:.1}) rotate(-90)\">{}</text>",
            (TOP + HEIGHT - BOTTOM) / 2.0,
            escape(self.y_label)
        ));
        self.curves.iter().filter(|curve| !curve.points.is_empty()).for_each(|curve| put(axis.curve(curve)));
        svg.push_str("</svg>\n");
        svg
    }
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> String {
    format!("<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>", from.0, from.1, to.0, to.1)
}

fn text(x: f64, y: f64, anchor: &str, class: &str, text: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{}</text>", escape(text))
}

/// Where values are.
struct Axis {
    scale: Scale,
    x_range: (f64, f64),
    y_range: (f64, f64),
    /// What is marked on the vertical axis.
    ticks: Vec<(f64, String)>,
}

impl Axis {
    fn of(chart: &Chart) -> Self {
        let xs = chart.ticks.iter().map(|tick| tick.0).chain(chart.curves.iter().flat_map(|curve| &curve.points).map(|point| point.0));
        let ys = chart.curves.iter().flat_map(|curve| &curve.points).map(|point| point.1);
        let (low, high) = bounds(ys.filter(|y| chart.scale == Scale::Linear || *y > 0.0)).unwrap_or((1.0, 1.0));
        let (y_range, ticks) = match chart.scale {
            Scale::Linear => linear(high),
            Scale::Logarithmic => logarithmic(low, high),
        };
        let ticks = ticks.into_iter().map(|value| (value, short(value))).collect();
        Self { scale: chart.scale, x_range: bounds(xs).unwrap_or((0.0, 1.0)), y_range, ticks }
    }

    fn x(&self, value: f64) -> f64 {
        let (low, high) = self.x_range;
        // A single value stands in the middle.
        let part = if high > low { 0.03 + 0.94 * (value - low) / (high - low) } else { 0.5 };
        LEFT + part * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let place = |value: f64| if self.scale == Scale::Linear { value } else { value.max(f64::MIN_POSITIVE).log10() };
        let (low, high) = (place(self.y_range.0), place(self.y_range.1));
        let part = if high > low { (place(value) - low) / (high - low) } else { 0.5 };
        HEIGHT - BOTTOM - part.clamp(0.0, 1.0) * (HEIGHT - BOTTOM - TOP)
    }

    fn curve(&self, curve: &Curve) -> String {
        let colour = colour(curve.run);
        let dash = if curve.dashed { " stroke-dasharray=\"5 3\"" } else { "" };
        let mut path = String::new();
        for (x, y) in curve.points.iter().map(|&(x, y)| (self.x(x), self.y(y))) {
            // Writing to a text does not fail.
            let _ = write!(path, "{x:.1},{y:.1} ");
        }
        let mut svg = format!("<polyline class=\"c\" stroke=\"{colour}\"{dash} points=\"{}\"/>", path.trim_end());
        for &(x, y) in &curve.points {
            let _ = write!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"><title>{}: {}</title></circle>",
                self.x(x),
                self.y(y),
                escape(&curve.label),
                short(y)
            );
        }
        svg
    }
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |bounds, value| {
        let (low, high) = bounds.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

type Marks = ((f64, f64), Vec<f64>);

/// What an axis shows at most: a file may say anything.
const SHOWN: (f64, f64) = (1e-3, 1e15);

/// From zero to a round number, in four to eight steps of 1, 2 or 5 times a power of ten.
fn linear(high: f64) -> Marks {
    let high = if high > 0.0 { high.clamp(SHOWN.0, SHOWN.1) } else { 1.0 };
    let power = 10_f64.powf((high / 4.0).log10().floor());
    let step = [5.0, 2.0, 1.0].map(|factor| factor * power).into_iter().find(|step| high / step >= 3.0).unwrap_or(power);
    let count = (high / step).ceil();
    let marks = std::iter::successors(Some(0.0), |mark| Some(mark + 1.0)).take_while(|mark| *mark <= count).map(|mark| mark * step);
    ((0.0, count * step), marks.collect())
}

/// From a power of ten to another, with the twos and fives between them where there are few.
fn logarithmic(low: f64, high: f64) -> Marks {
    let [low, high] = [low, high].map(|value| value.clamp(SHOWN.0, SHOWN.1));
    let bottom = 10_f64.powf(low.log10().floor());
    let decades = (high / bottom).log10().ceil().max(1.0);
    let top = bottom * 10_f64.powf(decades);
    let factors: &[f64] = if decades <= 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let powers = std::iter::successors(Some(bottom), |power| Some(power * 10.0)).take_while(|power| *power <= top * 1.001);
    let marks = powers.flat_map(|power| factors.iter().map(move |factor| factor * power)).filter(|mark| *mark <= top * 1.001);
    ((bottom, top), marks.collect())
}

/// A number in few characters.
pub(super) fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 999_500_000.0 => (value / 1e9, "G"),
        size if size >= 999_500.0 => (value / 1e6, "M"),
        size if size >= 1_000.0 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    let shown = format!("{value:.digits$}");
    let shown = if shown.contains('.') { shown.trim_end_matches('0').trim_end_matches('.') } else { &shown };
    format!("{shown}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.25, 7.0, 12.34, 999.0, 1000.0, 15_300.0, 812_000.0, 999_600.0, 1_260_000.0, 5e9].map(short);
        assert_eq!(shown, ["0", "0.25", "7", "12.3", "999", "1k", "15.3k", "812k", "1M", "1.26M", "5G"]);
    }

    #[test]
    fn axes_have_round_marks_that_hold_all_values() {
        assert_eq!(linear(812_000.0).1, [0.0, 200_000.0, 400_000.0, 600_000.0, 800_000.0, 1_000_000.0]);
        assert_eq!(linear(3.0).0, (0.0, 3.0));
        assert_eq!(linear(0.0).0, (0.0, 1.0));
        assert_eq!(logarithmic(7.0, 90.0).1, [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(logarithmic(20.0, 90_000.0).1, [10.0, 100.0, 1000.0, 10_000.0, 100_000.0]);
    }

    #[test]
    fn axes_end_whatever_a_file_says() {
        for value in [f64::MAX, 1.7e308, f64::MIN_POSITIVE, 5e-324, f64::INFINITY] {
            for (range, marks) in [linear(value), logarithmic(value, value), logarithmic(5e-324, f64::MAX)] {
                assert!(range.0 < range.1 && range.1.is_finite() && marks.len() < 100, "{value}: {range:?} {}", marks.len());
            }
        }
    }

    #[test]
    fn larger_values_are_higher_and_later_ones_further_right() {
        let curve = Curve { run: 0, label: "a".to_owned(), dashed: false, points: vec![(0.0, 10.0), (1.0, 1000.0)] };
        for scale in [Scale::Linear, Scale::Logarithmic] {
            let chart = Chart { title: String::new(), x_label: "", y_label: "", ticks: Vec::new(), scale, curves: vec![curve.clone()] };
            let axis = Axis::of(&chart);
            assert!(axis.y(1000.0) < axis.y(10.0) && axis.x(0.0) < axis.x(1.0));
            assert!(axis.y(1000.0) >= TOP && axis.y(10.0) <= HEIGHT - BOTTOM);
        }
    }

    #[test]
    fn everything_that_html_reads_is_escaped() {
        assert_eq!(escape("<a href='x' title=\"y\">&\u{1b}</a>"), "&lt;a href=&#39;x&#39; title=&quot;y&quot;&gt;&amp;\u{fffd}&lt;/a&gt;");
    }
}
