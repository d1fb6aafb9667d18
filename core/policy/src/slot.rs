//! When a slot ends (PLOVER §4.3), adapting to what a pause costs the guest.
//!
//! ```text
//!  age  0 ───────────────── slot_min, or 3 pauses ───── slot_max
//!        idle: ends │ busy: runs on               │ ends
//! ```

use plover_types::Micros;
use serde::{Deserialize, Serialize};

/// Why a syncvm was proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncReason {
    /// Outputs wait and the guest is idle: the paper's slot boundary.
    Idle,
    /// Outputs wait and the slot is at its longest.
    Longest,
    /// The slot has run for the policy's interval.
    Interval,
    /// An output waits, which is enough under this policy.
    Output,
    /// The outputs of the two sides differ.
    Differ,
    /// The secondary has not sent what the leader's guest has, for too long.
    Unmatched,
    /// The guard is full.
    GuardFull,
    /// The log is half full; a sync lets it be reclaimed.
    LogFull,
    /// Much was written to the guest's memory or disks, and a sync keeps the next one small; or the guest is off.
    Written,
    /// Nothing waits, but pages have been dirtied for a while; a sync keeps the next one small.
    Quiet,
    /// It is known what a slot yields in which the secondary's guest runs, and resting yields more.
    Rest,
    /// The last round of a full copy to a new secondary.
    Join,
    /// The last syncvm failed and is repeated.
    Retry,
}

/// The bounds within which the slot adapts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotConfig {
    /// The guest counts as idle after this long without work (paper §5.1: 100 µs).
    pub idle_threshold: Micros,
    /// A slot with waiting outputs never runs longer than this.
    pub slot_max: Micros,
    /// A slot with waiting outputs may always run this long before a busy guest is paused.
    pub slot_min: Micros,
    /// A slot without waiting outputs ends after this long.
    pub quiet_max: Micros,
    /// The longest the secondary may take to finish its inputs while the leader stands.
    pub wait_max: Micros,
}

impl Default for SlotConfig {
    fn default() -> Self {
        Self {
            idle_threshold: Micros(100),
            slot_max: Micros::from_ms(50),
            slot_min: Micros::from_ms(4),
            quiet_max: Micros::from_ms(500),
            wait_max: Micros::from_ms(20),
        }
    }
}

/// The facts that the rule decides on.
#[derive(Clone, Copy, Debug)]
pub struct SlotView {
    /// How long the slot has run.
    pub age: Micros,
    /// Whether outputs wait.
    pub outputs_held: bool,
    /// Whether the guest is idle.
    pub idle: bool,
    /// Whether the guard is full.
    pub guard_full: bool,
    /// Whether the log is half full.
    pub log_half_full: bool,
}

/// Decides the slot boundary and learns from each sync what one costs.
#[derive(Clone, Debug)]
pub struct SlotRule {
    config: SlotConfig,
    /// Smoothed pause of the leader's guest.
    pause: Micros,
}

/// The cost of a finished sync, and the outputs of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotCost {
    /// How long the slot ran.
    pub slot: Micros,
    /// How long the leader's guest stood at its end.
    pub pause: Micros,
    /// Frames that the guest had sent in it.
    pub outputs: u32,
}

/// A busy guest runs this many times as long as the pause that ends its slot. So it keeps three quarters
/// of its time, as far as [`SlotConfig::slot_max`] allows.
const RUN_PER_PAUSE: u64 = 3;

impl SlotRule {
    /// A rule within the bounds of `config`, before anything was learnt.
    pub fn new(config: SlotConfig) -> Self {
        Self {
            config,
            pause: Micros::ZERO,
        }
    }

    /// Other bounds from now on. What was learnt stays.
    pub fn set(&mut self, config: SlotConfig) {
        self.config = config;
    }

    /// Smoothed pause of the leader's guest.
    pub fn pause(&self) -> Micros {
        self.pause
    }

    /// How long a busy guest with waiting outputs may run in any case.
    pub fn longest(&self) -> Micros {
        let by_cost = Micros(self.pause.0 * RUN_PER_PAUSE);
        by_cost.max(self.config.slot_min).min(self.config.slot_max)
    }

    /// Whether the slot ends now, and why.
    pub fn decide(&self, view: &SlotView) -> Option<SyncReason> {
        if view.guard_full {
            Some(SyncReason::GuardFull)
        } else if view.log_half_full {
            Some(SyncReason::LogFull)
        } else if view.outputs_held && view.idle {
            Some(SyncReason::Idle)
        } else if view.outputs_held && view.age >= self.longest() {
            Some(SyncReason::Longest)
        } else if view.age >= self.config.quiet_max {
            Some(SyncReason::Quiet)
        } else {
            None
        }
    }

    /// When the slot must be looked at again, at the latest, counted from its start.
    pub fn age_max(&self, view: &SlotView) -> Micros {
        if view.outputs_held {
            self.longest()
        } else {
            self.config.quiet_max
        }
    }

    /// Learns from a finished sync.
    pub fn learn(&mut self, cost: &SlotCost) {
        self.pause = smooth(self.pause, cost.pause);
    }
}

/// An exponential average that forgets half in about five syncs.
fn smooth(old: Micros, new: Micros) -> Micros {
    if old == Micros::ZERO {
        new
    } else {
        Micros((old.0 * 7 + new.0) / 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> SlotView {
        SlotView {
            age: Micros::ZERO,
            outputs_held: false,
            idle: false,
            guard_full: false,
            log_half_full: false,
        }
    }

    fn cost(pause: Micros) -> SlotCost {
        SlotCost {
            slot: Micros::from_ms(10),
            pause,
            outputs: 10,
        }
    }

    #[test]
    fn a_busy_guest_runs_longer_when_syncs_cost_more() {
        let mut rule = SlotRule::new(SlotConfig::default());
        assert_eq!(rule.longest(), SlotConfig::default().slot_min);
        for _ in 0..50 {
            rule.learn(&cost(Micros::from_ms(8)));
        }
        assert_eq!(rule.longest(), Micros::from_ms(24));
        for _ in 0..50 {
            rule.learn(&cost(Micros::from_ms(80)));
        }
        assert_eq!(rule.longest(), SlotConfig::default().slot_max);
        let view = SlotView {
            age: rule.longest(),
            outputs_held: true,
            ..view()
        };
        assert_eq!(rule.decide(&view), Some(SyncReason::Longest));
    }
}
