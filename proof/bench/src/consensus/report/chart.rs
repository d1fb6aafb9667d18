//! Bars as inline SVG: no script, no network, no meaning in colour alone.
//!
//! Every bar has its name and its figure in words beside it; the kind of system shows in the
//! filling (ours solid, the limits outlined, others hatched). Lines and letters take the page's
//! own colour, so that a dark page is as readable as a light one.

use std::fmt::Write;

/// How a bar is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filling {
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
pub(super) struct Bar {
    pub name: String,
    pub filling: Filling,
    /// Its length.
    pub value: f64,
    /// A thin line from the end of the bar to here, such as p99 behind p50.
    pub whisker: Option<f64>,
    /// What is written behind it.
    pub words: String,
}

const WIDTH: f64 = 900.0;
const NAMES: f64 = 210.0;
const WORDS: f64 = 210.0;
const ROW: f64 = 22.0;
const AXIS: f64 = 26.0;

/// A chart with a logarithmic axis: what is compared here spans four orders of magnitude.
pub(super) fn bars(title: &str, unit: &str, bars: &[Bar]) -> String {
    let sound = |value: &f64| value.is_finite() && *value > 0.0;
    let values = bars
        .iter()
        .flat_map(|bar| [Some(bar.value), bar.whisker])
        .flatten();
    let values: Vec<f64> = values.filter(sound).collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(0.0, f64::max);
    if values.is_empty() {
        return String::new();
    }
    // From the power of ten below the least, so that every bar has a length.
    let first = least.log10().ceil() - 1.0;
    let last = greatest.log10().ceil().max(first + 1.0);
    let plot = WIDTH - NAMES - WORDS;
    let x = |value: f64| NAMES + (value.log10() - first) / (last - first) * plot;
    let height = ROW * bars.len() as f64 + AXIS;
    let mut svg = String::new();
    // Writing into a string cannot fail.
    let _ = write!(
        svg,
        "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{}\">",
        escaped(title),
        escaped(title)
    );
    for power in first as i32..=last as i32 {
        let (at, bottom) = (x(10f64.powi(power)), height - AXIS);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"0\" y2=\"{bottom}\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            tick(power, unit)
        );
    }
    for (number, bar) in bars.iter().enumerate().filter(|(_, bar)| sound(&bar.value)) {
        one(&mut svg, bar, ROW * number as f64, &x);
    }
    svg + "</svg></figure>\n"
}

fn one(svg: &mut String, bar: &Bar, top: f64, x: &impl Fn(f64) -> f64) {
    let (end, middle) = (x(bar.value), top + ROW / 2.0);
    let _ = write!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
         <rect class=\"{}\" x=\"{NAMES}\" y=\"{}\" width=\"{:.1}\" height=\"{}\"/>",
        NAMES - 8.0,
        middle + 4.0,
        escaped(&bar.name),
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
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{}\">{}</text>",
        right + 6.0,
        middle + 4.0,
        escaped(&bar.words)
    );
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

/// Text as HTML wants it.
pub(super) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
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
        let svg = bars("title", "µs", &[bar(10.0, Some(2000.0)), bar(100.0, None)]);
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
        assert_eq!(bars("title", "µs", &[]), "");
        assert_eq!(bars("title", "µs", &[bar(f64::NAN, None)]), "");
    }
}
