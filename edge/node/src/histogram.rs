//! The distribution of a duration since the start, for the status.
//!
//! The buckets are fixed, so that the difference of two readings is the distribution of the time between. A
//! value costs a short search and two additions, and allocates nothing.

use plover_types::Micros;
use serde_json::{Value, json};

/// The upper bounds of the buckets, µs; a last bucket takes everything above. They reach from the wait of a
/// matched output to a disk that is about to be given up. None is a round number: slots end after 500 ms or
/// 1 s and a few µs, and a quantile that is interpolated in the bucket above a bound of 1 s would tell 1.5 s.
const BOUNDS_US: [u64; 17] = [
    70, 150, 300, 700, 1_500, 3_000, 7_000, 15_000, 30_000, 70_000, 150_000, 300_000, 700_000,
    1_500_000, 3_000_000, 7_000_000, 15_000_000,
];

#[derive(Debug, Default)]
pub(crate) struct Histogram {
    counts: [u64; BOUNDS_US.len() + 1],
    sum_us: u64,
}

impl Histogram {
    /// Counts a value.
    pub fn add(&mut self, value: Micros) {
        self.add_times(value, 1);
    }

    /// Counts a value that several things have.
    pub fn add_times(&mut self, value: Micros, times: u64) {
        let bucket = BOUNDS_US.partition_point(|bound| *bound < value.0);
        self.counts[bucket] += times;
        self.sum_us += value.0 * times;
    }

    /// The sum of all values, µs.
    pub fn sum_us(&self) -> u64 {
        self.sum_us
    }

    /// The number of all values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// `counts` holds the number of values in each bucket: one for each bound in `le_us`, and one for the
    /// values above the last.
    pub fn to_json(&self) -> Value {
        json!({"le_us": BOUNDS_US, "counts": self.counts, "sum_us": self.sum_us})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_the_bucket_below_it() {
        let mut histogram = Histogram::default();
        for value in [0, 70, 71, 15_000_000, 15_000_001] {
            histogram.add(Micros(value));
        }
        histogram.add_times(Micros(150), 7);
        let json = histogram.to_json();
        assert_eq!(json["counts"][0], 2);
        assert_eq!(json["counts"][1], 1 + 7);
        assert_eq!(json["counts"][16], 1);
        assert_eq!(json["counts"][17], 1);
        assert_eq!(histogram.count(), 12);
        assert_eq!(json["sum_us"], 141 + 30_000_001 + 7 * 150);
        assert!(BOUNDS_US.is_sorted());
    }
}
