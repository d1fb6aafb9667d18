//! Medians and spreads.

use serde::Serialize;

/// Several measurements of the same figure.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Sample(Vec<f64>);

impl FromIterator<f64> for Sample {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl Sample {
    /// Whether there are no measurements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of measurements.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The last measurement.
    pub fn last(&self) -> Option<f64> {
        self.0.last().copied()
    }

    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The middle value; of an even number of values, the mean of the two in the middle.
    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[n / 2],
            n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        }
    }

    /// The least and the greatest.
    pub fn spread(&self) -> (f64, f64) {
        let sorted = self.sorted();
        let end = |value: Option<&f64>| value.copied().unwrap_or(f64::NAN);
        (end(sorted.first()), end(sorted.last()))
    }

    /// The ratios of this sample's values to those of `other`, round by round.
    pub fn ratio(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect())
    }

    /// The differences between this sample's values and those of `other`, round by round.
    pub fn minus(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(a, b)| a - b).collect())
    }

    /// The median with the least and the greatest.
    pub fn words(&self, decimals: usize) -> String {
        let (low, high) = self.spread();
        let median = self.median();
        format!("{median:.decimals$} ({low:.decimals$} to {high:.decimals$})")
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        let (mut a, mut b) = (Sample::default(), Sample::default());
        for (x, y) in [(3.0, 6.0), (1.0, 4.0), (2.0, 2.0), (10.0, 10.0)] {
            a.push(x);
            b.push(y);
        }
        assert_eq!(a.median(), 2.5);
        assert_eq!(a.spread(), (1.0, 10.0));
        assert_eq!(a.words(1), "2.5 (1.0 to 10.0)");
        assert_eq!(a.ratio(&b).median(), 0.75);
        assert!(Sample::default().median().is_nan());
    }
}
