//! Bars as inline SVG: no script, no network, no meaning in colour alone.
//!
//! Every bar has its name and its figure in words beside it; the kind of system shows in the
//! filling (ours solid, the limits outlined, others hatched). Lines and letters take the page's
//! own colour, so that a dark page is as readable as a light one.

use crate::page::escaped;
use std::fmt::Write;

/// How a bar is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filling {
    /// Ours.
    Solid,
    /// A limit.
    Outlined,
    /// Another system.
    Hatched,
}

impl Filling {
    fn style(self) -> &'static str {
        match self {
            Self::Solid => "solid",
            Self::Outlined => "outlined",
            Self::Hatched => "hatched",
        }
    }
}

/// One bar.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub name: String,
    pub filling: Filling,
    /// Its length.
    pub value: f64,
    /// A thin line from the end of the bar to here, such as p99 behind p50.
    pub whisker: Option<f64>,
    /// What is written behind it.
    pub words: String,
}

/// A bar of parts that add up.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    pub name: String,
    /// One for each name of the legend.
    pub parts: Vec<f64>,
    /// What is written behind it.
    pub words: String,
}

/// How lengths stand for values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Axis {
    /// For values that span orders of magnitude. It begins at a power of ten, not at zero.
    Logarithmic,
    /// From zero to the greatest value, or to this.
    Linear(Option<f64>),
}

const WIDTH: f64 = 900.0;
const NAMES: f64 = 210.0;
const WORDS: f64 = 210.0;
const ROW: f64 = 22.0;
const AXIS: f64 = 26.0;

/// Where values lie on a chart, and the marks of its axis.
struct Scale {
    axis: Axis,
    first: f64,
    last: f64,
    marks: Vec<(f64, String)>,
}

impl Scale {
    /// A scale for these values; none if there is nothing to show.
    fn of(axis: Axis, unit: &str, values: &[f64]) -> Option<Self> {
        let sound = |value: &f64| value.is_finite() && *value > 0.0;
        let values: Vec<f64> = values.iter().copied().filter(sound).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = values.iter().copied().fold(0.0, f64::max);
        if values.is_empty() {
            return None;
        }
        let (first, last, marks) = match axis {
            Axis::Logarithmic => {
                // From the power of ten below the least, so that every bar has a length.
                let first = least.log10().ceil() - 1.0;
                let last = greatest.log10().ceil().max(first + 1.0);
                let powers = first as i32..=last as i32;
                let marks = powers.map(|power| (10f64.powi(power), tick(power, unit)));
                (first, last, marks.collect())
            }
            Axis::Linear(greatest_shown) => {
                let last = greatest_shown.unwrap_or(greatest);
                let step = round_step(last / 4.0);
                let marks = (0..)
                    .map(|n| f64::from(n) * step)
                    .take_while(|at| *at <= last);
                let words = |at| (at, format!("{at} {unit}"));
                (0.0, last, marks.map(words).collect())
            }
        };
        Some(Self {
            axis,
            first,
            last,
            marks,
        })
    }

    fn x(&self, value: f64) -> f64 {
        let place = match self.axis {
            Axis::Logarithmic => value.log10(),
            Axis::Linear(_) => value,
        };
        let part = (place - self.first) / (self.last - self.first);
        NAMES + part.clamp(0.0, 1.0) * (WIDTH - NAMES - WORDS)
    }

    /// The beginning of a chart: its frame, its title, its axis.
    fn begin(&self, title: &str, rows: usize) -> String {
        let height = ROW * rows as f64 + AXIS;
        let mut svg = format!(
            "<figure><figcaption>{0}</figcaption><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-label=\"{0}\">",
            escaped(title)
        );
        for (value, words) in &self.marks {
            let (at, bottom) = (self.x(*value), height - AXIS);
            // Writing into a string cannot fail.
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"0\" y2=\"{bottom}\"/>\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{words}</text>",
                bottom + 16.0
            );
        }
        svg
    }
}

/// A step of 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|step| step * power);
    steps
        .into_iter()
        .find(|step| *step >= least)
        .unwrap_or(10.0 * power)
}

/// A chart of one bar a row.
pub(crate) fn bars(title: &str, unit: &str, axis: Axis, bars: &[Bar]) -> String {
    let values = bars.iter().flat_map(|bar| [Some(bar.value), bar.whisker]);
    let values: Vec<f64> = values.flatten().collect();
    let Some(scale) = Scale::of(axis, unit, &values) else {
        return String::new();
    };
    let mut svg = scale.begin(title, bars.len());
    let sound = |(_, bar): &(usize, &Bar)| bar.value.is_finite() && bar.value > 0.0;
    for (number, bar) in bars.iter().enumerate().filter(sound) {
        one(&mut svg, bar, ROW * number as f64, &|value| scale.x(value));
    }
    svg + "</svg></figure>\n"
}

/// A chart of bars in parts. Each part carries a letter where it is wide enough, and the legend
/// says what it stands for.
pub(crate) fn stacks(title: &str, unit: &str, legend: &[String], stacks: &[Stack]) -> String {
    let sums: Vec<f64> = stacks
        .iter()
        .map(|stack| stack.parts.iter().sum())
        .collect();
    let Some(scale) = Scale::of(Axis::Linear(None), unit, &sums) else {
        return String::new();
    };
    let letter = |part: usize| char::from(b'a' + (part % 26) as u8);
    let mut svg = scale.begin(title, stacks.len());
    for (number, stack) in stacks.iter().enumerate() {
        let top = ROW * number as f64;
        label(&mut svg, NAMES - 8.0, top, "end", &stack.name);
        let (mut sum, mut left) = (0.0, NAMES);
        for (part, value) in stack.parts.iter().enumerate() {
            sum += value;
            let right = scale.x(sum);
            let width = right - left;
            let _ = write!(
                svg,
                "<rect class=\"part part{part}\" x=\"{left:.1}\" y=\"{}\" width=\"{width:.1}\" \
                 height=\"{}\"/>",
                top + 4.0,
                ROW - 8.0
            );
            if width > 12.0 {
                let _ = write!(
                    svg,
                    "<text class=\"letter\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                    left + width / 2.0,
                    top + ROW / 2.0 + 4.0,
                    letter(part)
                );
            }
            left = right;
        }
        label(&mut svg, left + 6.0, top, "start", &stack.words);
    }
    let named = legend.iter().enumerate();
    let named = named.map(|(part, name)| format!("<b>{}</b> {}", letter(part), escaped(name)));
    let named: Vec<_> = named.collect();
    format!("{svg}</svg><p>{}</p></figure>\n", named.join(", "))
}

fn label(svg: &mut String, x: f64, top: f64, anchor: &str, words: &str) {
    let _ = write!(
        svg,
        "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
        top + ROW / 2.0 + 4.0,
        escaped(words)
    );
}

fn one(svg: &mut String, bar: &Bar, top: f64, x: &impl Fn(f64) -> f64) {
    let (end, middle) = (x(bar.value), top + ROW / 2.0);
    label(svg, NAMES - 8.0, top, "end", &bar.name);
    let _ = write!(
        svg,
        "<rect class=\"{}\" x=\"{NAMES}\" y=\"{}\" width=\"{:.1}\" height=\"{}\"/>",
        bar.filling.style(),
        top + 4.0,
        end - NAMES,
        ROW - 8.0
    );
    let mut right = end;
    if let Some(whisker) = bar.whisker.filter(|whisker| *whisker > bar.value) {
        right = x(whisker);
        let _ = write!(
            svg,
            "<path class=\"whisker\" d=\"M{end:.1} {middle}H{right:.1}m0 -5v10\"/>"
        );
    }
    label(svg, right + 6.0, top, "start", &bar.words);
}

/// A power of ten as people read it; microseconds become milliseconds and seconds.
fn tick(power: i32, unit: &str) -> String {
    let step = power.div_euclid(3).clamp(0, 2);
    let number = 10f64.powi(power - 3 * step);
    let unit = match (unit, step) {
        ("µs", 1) => "ms".into(),
        ("µs", 2) => "s".into(),
        (unit, step) => format!("{}{unit}", ["", "k", "M"][step as usize]),
    };
    format!("{number} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(value: f64, whisker: Option<f64>) -> Bar {
        Bar {
            name: "a<b".into(),
            filling: Filling::Hatched,
            value,
            whisker,
            words: "so much".into(),
        }
    }

    #[test]
    fn bars_keep_their_order_and_their_names() {
        let svg = bars(
            "title",
            "µs",
            Axis::Logarithmic,
            &[bar(10.0, Some(2000.0)), bar(100.0, None)],
        );
        assert_eq!(svg.matches("<rect").count(), 2);
        assert_eq!(svg.matches("whisker").count(), 1);
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
        let widths: Vec<f64> = svg
            .split("width=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
            .collect();
        assert!(widths[0] > 0.0 && widths[0] < widths[1], "{widths:?}");
    }

    #[test]
    fn a_linear_axis_begins_at_zero() {
        let scale = Scale::of(Axis::Linear(None), "%", &[50.0, 80.0]).unwrap();
        assert_eq!((scale.x(0.0), scale.x(80.0)), (NAMES, WIDTH - WORDS));
        let marks: Vec<_> = scale.marks.iter().map(|(at, _)| *at).collect();
        assert_eq!(marks, [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!(scale.x(1e9), WIDTH - WORDS, "nothing leaves the chart");
        assert_eq!([0.3, 2.0, 7.0].map(round_step), [0.5, 2.0, 10.0]);
    }

    #[test]
    fn parts_carry_letters_that_the_legend_explains() {
        let stack = Stack {
            name: "vsmr".into(),
            parts: vec![1.0, 0.001, 2.0],
            words: "3 ms".into(),
        };
        let legend = ["scan", "hash", "<send>"].map(String::from);
        let svg = stacks("pause", "ms", &legend, &[stack]);
        assert_eq!(svg.matches("<rect").count(), 3);
        assert!(svg.contains(">a</text>") && svg.contains(">c</text>"));
        assert!(!svg.contains(">b</text>"), "too narrow for a letter");
        assert!(svg.contains("<b>c</b> &lt;send&gt;"));
        assert_eq!(stacks("pause", "ms", &legend, &[]), "");
    }

    #[test]
    fn ticks_are_short() {
        let ticks = [
            (-1, "µs"),
            (2, "µs"),
            (4, "µs"),
            (6, "µs"),
            (5, "/s"),
            (6, "/s"),
        ];
        let texts = ticks.map(|(power, unit)| tick(power, unit));
        assert_eq!(
            texts,
            ["0.1 µs", "100 µs", "10 ms", "1 s", "100 k/s", "1 M/s"]
        );
    }

    #[test]
    fn nothing_measured_is_no_chart() {
        assert_eq!(bars("title", "µs", Axis::Logarithmic, &[]), "");
        assert_eq!(
            bars("title", "µs", Axis::Logarithmic, &[bar(f64::NAN, None)]),
            ""
        );
    }
}
