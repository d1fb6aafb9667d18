//! How long outputs wait for their match, and after how long one is late.
//!
//! The limit is computed as TCP computes its retransmission timeout (Jacobson 1988, RFC 6298): the
//! smoothed wait plus four times its mean deviation. Each output that is given up doubles the limit,
//! until another output is matched.

use plover_types::Micros;

/// Outputs that are given up double the limit at most this many times.
const DOUBLINGS_MAX: u32 = 8;

/// The waits of outputs that were matched.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lag {
    known: Option<Known>,
    doublings: u32,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    smoothed: Micros,
    deviation: Micros,
}

impl Lag {
    /// An output was matched after this long.
    pub fn matched(&mut self, waited: Micros) {
        self.doublings = 0;
        let known = self.known.get_or_insert(Known {
            smoothed: waited,
            deviation: waited,
        });
        let off = known.smoothed.0.abs_diff(waited.0);
        known.deviation = Micros((known.deviation.0 * 3 + off) / 4);
        known.smoothed = Micros((known.smoothed.0 * 7 + waited.0) / 8);
    }

    /// An output was given up as late.
    pub fn was_late(&mut self) {
        self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
    }

    /// An output is late after this long; `None` while nothing was matched.
    pub fn late_after(&self) -> Option<Micros> {
        let known = self.known?;
        let wait = known.smoothed.0 + 4 * known.deviation.0;
        Some(Micros(wait << self.doublings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lag(waits: impl IntoIterator<Item = u64>) -> Lag {
        let mut lag = Lag::default();
        for wait in waits {
            lag.matched(Micros(wait));
        }
        lag
    }

    #[test]
    fn nothing_is_late_before_anything_was_matched() {
        assert_eq!(lag([]).late_after(), None);
    }

    #[test]
    fn an_output_with_the_usual_delay_is_not_late() {
        let steady = lag([1000; 100]).late_after().unwrap();
        assert!((1000..1100).contains(&steady.0), "{steady:?}");
        let mixed = lag((0..100).map(|n| 500 + 2000 * (n % 2)));
        let mixed = mixed.late_after().unwrap();
        assert!((3000..8000).contains(&mixed.0), "{mixed:?}");
    }

    /// When waits have grown, outputs that are given up too early are never matched. So the limit must
    /// grow as well.
    #[test]
    fn a_limit_that_gave_up_too_early_grows() {
        let mut lag = lag([1000; 100]);
        let before = lag.late_after().unwrap().0;
        for times in 1..=3 {
            lag.was_late();
            assert_eq!(lag.late_after(), Some(Micros(before << times)));
        }
        lag.matched(Micros(4000));
        let after = lag.late_after().unwrap().0;
        assert!((4000..before << 3).contains(&after), "{after}");
        (0..100).for_each(|_| lag.was_late());
        assert_eq!(lag.late_after(), Some(Micros(after << DOUBLINGS_MAX)));
    }
}
