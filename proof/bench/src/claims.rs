//! Claims: a ratio of two figures of one run, and its bound.
//!
//! A claim is a verdict on a run, not a test: on a machine that is busy with something else, a ratio can
//! fail that holds on a quiet one. No build should depend on that.

use crate::stats::Sample;
use serde::Serialize;

/// One claim and its figures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Claim {
    /// The ratio, in words.
    pub what: String,
    /// The bound that must hold.
    pub bound: Bound,
    /// The figure of each round; nothing where a side of it was not measured.
    pub figures: Option<Sample>,
    /// The two sides' medians, in words.
    pub sides: String,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "at most {bound}"),
            Self::AtLeast(bound) => write!(f, "at least {bound}"),
        }
    }
}

impl Claim {
    /// Whether the median keeps the bound; nothing if it was not measured.
    pub fn holds(&self) -> Option<bool> {
        let median = self.figures.as_ref()?.median();
        Some(match self.bound {
            Bound::AtMost(bound) => median <= bound,
            Bound::AtLeast(bound) => median >= bound,
        })
    }

    pub fn verdict(&self) -> &'static str {
        match self.holds() {
            Some(true) => "holds",
            Some(false) => "DOES NOT HOLD",
            None => "not measured",
        }
    }
}

/// All claims, a line each, as the end of a report on a terminal.
pub(crate) fn text(claims: &[Claim]) -> String {
    let mut out = String::from("\nwhat must hold:\n");
    for claim in claims {
        let figures = claim.figures.as_ref();
        let figures = figures.map_or_else(String::new, |sample| format!(", {}", sample.words(2)));
        let sides = match claim.sides.as_str() {
            "" => String::new(),
            sides => format!(" [{sides}]"),
        };
        let (verdict, what, bound) = (claim.verdict(), &claim.what, claim.bound);
        out += &format!("  {verdict:<13}  {what}{figures}, {bound}{sides}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(bound: Bound, figure: Option<f64>) -> Claim {
        Claim {
            what: String::new(),
            bound,
            figures: figure.map(|figure| [figure].into_iter().collect()),
            sides: String::new(),
        }
    }

    #[test]
    fn a_bound_can_be_broken_and_nothing_is_claimed_without_figures() {
        assert_eq!(claim(Bound::AtMost(2.5), Some(2.5)).holds(), Some(true));
        assert_eq!(
            claim(Bound::AtMost(2.5), Some(2.6)).verdict(),
            "DOES NOT HOLD"
        );
        assert_eq!(claim(Bound::AtLeast(32.0), Some(31.0)).holds(), Some(false));
        assert_eq!(claim(Bound::AtLeast(32.0), None).verdict(), "not measured");
    }
}
