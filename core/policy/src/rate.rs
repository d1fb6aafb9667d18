//! How fast outputs come, lately and in the long run.

use crate::slot::SlotCost;
use plover_types::Micros;
use std::collections::VecDeque;

/// Times of outputs that are kept of a slot. Of more, the oldest are forgotten; the window ends
/// with the youngest.
const KEPT: usize = 512;

/// The part of the long-run figures that a sync replaces: 1/16.
const FORGETS: i64 = 16;

/// Figures are kept in 1024ths.
const UNIT: i64 = 1024;

/// Longer spans count as this, 17 s, whose square in these units is far from the end of an `i64`.
const SPAN_MAX_US: u64 = 1 << 24;

/// Outputs of the running slot, and of slots and pauses on average.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputRate {
    sent: VecDeque<(Micros, u32)>,
    average: Option<Average>,
}

/// Smoothed over the last syncs; µs and frames, in units of 1/[`UNIT`].
#[derive(Clone, Copy, Debug)]
struct Average {
    slot: i64,
    pause: i64,
    outputs: i64,
    /// Of slots, in µs²; and of slots and pauses together.
    variance: i64,
    covariance: i64,
}

impl OutputRate {
    /// A slot begins.
    pub fn begin(&mut self) {
        self.sent.clear();
    }

    /// The guest has sent `frames` at this age of the slot.
    pub fn sent(&mut self, age: Micros, frames: u32) {
        if frames == 0 {
            return;
        }
        if self.sent.len() == KEPT {
            self.sent.pop_front();
        }
        self.sent.push_back((age, frames));
    }

    /// Whether in the last half of the slot so far outputs have come faster than they do on
    /// average, pauses included. What a longer slot adds to its pause counts against it.
    pub fn is_above_average(&self, age: Micros) -> bool {
        let Some(average) = &self.average else {
            return false;
        };
        let half = Micros(age.0 / 2);
        let lately = self.sent.iter().rev().take_while(|(at, _)| *at >= half);
        let frames: i64 = lately.map(|(_, frames)| i64::from(*frames)).sum();
        let cycle = i128::from(average.slot + average.pause);
        let now = i128::from(frames) * cycle * i128::from(UNIT);
        let longer = i128::from(age.0 - half.0) * i128::from(UNIT + average.growth());
        now > i128::from(average.outputs) * longer
    }

    pub fn learn(&mut self, cost: &SlotCost) {
        let [slot, pause] =
            [cost.slot, cost.pause].map(|span| span.0.min(SPAN_MAX_US) as i64 * UNIT);
        let outputs = i64::from(cost.outputs) * UNIT;
        let Some(average) = &mut self.average else {
            self.average = Some(Average {
                slot,
                pause,
                outputs,
                variance: 0,
                covariance: 0,
            });
            return;
        };
        average.learn(slot, pause, outputs);
    }
}

impl Average {
    fn learn(&mut self, slot: i64, pause: i64, outputs: i64) {
        let (by, with) = (slot - self.slot, pause - self.pause);
        self.slot += by / FORGETS;
        self.pause += with / FORGETS;
        self.outputs += (outputs - self.outputs) / FORGETS;
        let (by, with) = (by / UNIT, with / UNIT);
        self.variance += (by * by - self.variance) / FORGETS;
        self.covariance += (by * with - self.covariance) / FORGETS;
    }

    /// By how much a pause grows with its slot, in 1024ths: the slope of a line through the last
    /// ones. Never less than nothing, nor more than as if all of the pause did.
    fn growth(&self) -> i64 {
        let all = self.pause * UNIT / self.slot.max(1);
        let slope = self.covariance * UNIT / self.variance.max(1);
        slope.clamp(0, all.max(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(slot: u64, pause: u64, outputs: u32) -> SlotCost {
        SlotCost {
            slot: Micros(slot),
            pause: Micros(pause),
            outputs,
        }
    }

    #[test]
    fn only_what_came_lately_counts() {
        let mut rate = OutputRate::default();
        rate.sent(Micros(100), 50);
        assert!(!rate.is_above_average(Micros(200)), "nothing to compare");
        rate.learn(&cost(8_000, 2_000, 20));
        rate.begin();
        rate.sent(Micros(1_000), 50);
        assert!(rate.is_above_average(Micros(1_500)));
        assert!(!rate.is_above_average(Micros(4_000)), "that was long ago");
        rate.sent(Micros(3_500), 3);
        assert!(!rate.is_above_average(Micros(4_000)), "3 in 2 ms");
        rate.sent(Micros(3_900), 2);
        assert!(rate.is_above_average(Micros(4_000)), "5 in 2 ms, not 4");
    }

    #[test]
    fn a_pause_that_grows_with_its_slot_counts_against_it() {
        let growth = |pause: fn(u64) -> u64| {
            let mut rate = OutputRate::default();
            for i in 0..200 {
                let slot = 5_000 + i % 7 * 1_000;
                rate.learn(&cost(slot, pause(slot), 10));
            }
            rate.average.unwrap().growth()
        };
        assert_eq!(growth(|_| 2_000), 0);
        let half = growth(|slot| 100 + slot / 2);
        assert!((490..540).contains(&half), "{half}");
        assert_eq!(growth(|slot| 20_000 - slot), 0, "never negative");
    }

    /// A guest that was unprotected for an hour has had a long slot.
    #[test]
    fn an_hour_does_not_overflow() {
        let mut rate = OutputRate::default();
        for slot in [5_000, 3_600_000_000, 5_000, u64::MAX] {
            rate.learn(&cost(slot, slot, u32::MAX));
            rate.begin();
            rate.sent(Micros(slot), u32::MAX);
            let _ = rate.is_above_average(Micros(slot));
        }
        assert!(rate.average.is_some_and(|average| average.growth() >= 0));
    }
}
