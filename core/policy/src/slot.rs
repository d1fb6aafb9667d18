//! When a slot ends (PLOVER §4.3), adapting to the guest.
//!
//! ```text
//!  age  0 ─────────── slot_min, or 3 pauses ─────────────────────────── slot_max
//!        idle: ends │ idle: ends; busy: goes on while outputs come faster │ ends
//!                   │ than they do on average, pauses included            │
//! ```
//!
//! With constants ([`SlotKind::Fixed`]) a busy guest's slot ends at the first bar.
//!
//! How long a guest that stays busy may run is the question of when to leave a patch that yields
//! less and less (Charnov's marginal value theorem, 1976): the long-run rate of outputs is greatest
//! if a slot ends when its present rate has fallen to that long-run rate, pauses included. Clients
//! that wait for their answers see the least latency just then, since with so many requests under
//! way (Little) latency is their number over the rate. See docs/decisions/0020 for where that holds.

use crate::rate::OutputRate;
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
    /// An output waits, and the policy waits for nothing else.
    Output,
    /// The outputs of the two sides differ.
    Differ,
    /// The secondary has not sent what the leader's guest has, for too long.
    Unmatched,
    /// The guard is full.
    GuardFull,
    /// The log is half full; a sync lets it be reclaimed (design §6).
    LogFull,
    /// Much was written to the guest's disks; a sync keeps the next one small.
    Written,
    /// Nothing waits, but pages have been dirtied for a while; a sync keeps the next one small.
    Quiet,
    /// The last round of a full copy to a new secondary.
    Join,
    /// The last syncvm failed and is repeated.
    Retry,
}

/// Who chooses the longest slot and the idle threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlotKind {
    /// Constants decide: three pauses, a threshold that grows by half.
    #[default]
    Fixed,
    /// What syncs are measured to cost decides (docs/decisions/0020).
    Adaptive,
}

/// The bounds within which the slot adapts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotConfig {
    /// Who chooses within these bounds.
    pub kind: SlotKind,
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
            kind: SlotKind::default(),
            idle_threshold: Micros(100),
            slot_max: Micros::from_ms(50),
            slot_min: Micros::from_ms(4),
            quiet_max: Micros::from_ms(500),
            wait_max: Micros::from_ms(20),
        }
    }
}

/// What the rule looks at.
#[derive(Clone, Copy, Debug)]
pub struct SlotView {
    /// How long the slot has run.
    pub age: Micros,
    /// Whether outputs wait.
    pub outputs_held: bool,
    /// Whether the guest is idle.
    pub idle: bool,
    /// Whether outputs come so fast that a longer slot pays ([`SlotRule::pays_to_go_on`]).
    pub goes_on: bool,
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
    rate: OutputRate,
}

/// What a finished sync cost, and what it was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotCost {
    /// How long the slot ran.
    pub slot: Micros,
    /// How long the leader's guest stood at its end.
    pub pause: Micros,
    /// Frames that the guest had sent in it.
    pub outputs: u32,
}

/// A busy guest runs this many times as long as the pause that ends its slot, so that it
/// keeps at least three quarters of its time however much a sync costs.
const RUN_PER_PAUSE: u64 = 3;

/// While a busy guest's slot goes on, how soon it is looked at again.
const LOOK_AGAIN: Micros = Micros(500);

impl SlotRule {
    /// A rule within the bounds of `config`, before anything was learnt.
    pub fn new(config: SlotConfig) -> Self {
        Self {
            config,
            pause: Micros::ZERO,
            rate: OutputRate::default(),
        }
    }

    /// A slot begins.
    pub fn begin(&mut self) {
        self.rate.begin();
    }

    /// The guest has sent `frames` at this age of its slot.
    pub fn sent(&mut self, age: Micros, frames: u32) {
        // Nobody asks a fixed rule when outputs came.
        if self.config.kind == SlotKind::Adaptive {
            self.rate.sent(age, frames);
        }
    }

    /// Whether a busy guest should run on although its slot has been long enough for its share of
    /// the time: outputs have lately come faster than on average.
    pub fn pays_to_go_on(&self, age: Micros) -> bool {
        self.config.kind == SlotKind::Adaptive
            && (self.longest()..self.config.slot_max).contains(&age)
            && self.rate.is_above_average(age)
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
        } else if view.outputs_held && view.age >= self.longest() && !view.goes_on {
            Some(SyncReason::Longest)
        } else if view.age >= self.config.quiet_max {
            Some(SyncReason::Quiet)
        } else {
            None
        }
    }

    /// When the slot must be looked at again, at the latest, counted from its start.
    pub fn age_max(&self, view: &SlotView) -> Micros {
        let longest = self.longest();
        if view.outputs_held && view.goes_on && view.age >= longest {
            (view.age + LOOK_AGAIN).min(self.config.slot_max)
        } else if view.outputs_held {
            longest
        } else {
            self.config.quiet_max
        }
    }

    /// Learns from a finished sync.
    pub fn learn(&mut self, cost: &SlotCost) {
        self.pause = smooth(self.pause, cost.pause);
        self.rate.learn(cost);
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
            goes_on: false,
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
    fn an_idle_guest_with_outputs_ends_its_slot() {
        let rule = SlotRule::new(SlotConfig::default());
        assert_eq!(
            rule.decide(&SlotView {
                idle: true,
                ..view()
            }),
            None
        );
        assert_eq!(
            rule.decide(&SlotView {
                idle: true,
                outputs_held: true,
                ..view()
            }),
            Some(SyncReason::Idle)
        );
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

    /// Runs slots of a guest that answers `requests` at once, one each `work`, and then nothing
    /// until its clients have got them. Returns the slots' usual length, and requests a second.
    fn run(kind: SlotKind, requests: u64, work: Micros) -> (Micros, u64) {
        let pause = |slot: Micros| Micros(3000 + slot.0 / 20);
        let config = SlotConfig {
            kind,
            ..SlotConfig::default()
        };
        let mut rule = SlotRule::new(config);
        let (mut time, mut answered, mut slot) = (0, 0, Micros::ZERO);
        for _ in 0..400 {
            rule.begin();
            let mut sent = 0;
            let mut age = Micros::ZERO;
            loop {
                age = age + Micros(100);
                let now = (age.0 / work.0).min(requests);
                rule.sent(age, (now - sent) as u32);
                sent = now;
                let view = SlotView {
                    age,
                    outputs_held: sent > 0,
                    idle: sent == requests,
                    goes_on: rule.pays_to_go_on(age),
                    ..view()
                };
                if rule.decide(&view).is_some() {
                    break;
                }
                assert!(rule.age_max(&view) > age, "it is looked at again later");
            }
            slot = age;
            time += age.0 + pause(age).0;
            answered += sent;
            rule.learn(&SlotCost {
                slot: age,
                pause: pause(age),
                outputs: sent as u32,
            });
        }
        (slot, answered * 1_000_000 / time)
    }

    /// Where the guest is idle soon there is nothing to choose.
    #[test]
    fn a_guest_that_is_idle_soon_is_left_as_it_is() {
        let quick = |kind| run(kind, 16, Micros(200));
        assert_eq!(quick(SlotKind::Adaptive), quick(SlotKind::Fixed));
    }

    /// One that has more to do than a slot holds runs longer, within the bound, and does more.
    #[test]
    fn a_guest_that_stays_busy_runs_until_it_yields_less() {
        let (slot, rate) = run(SlotKind::Fixed, 1000, Micros(500));
        let (longer, more) = run(SlotKind::Adaptive, 1000, Micros(500));
        assert!(slot < Micros::from_ms(13), "{slot}");
        assert_eq!(longer, SlotConfig::default().slot_max);
        assert!(more * 100 > rate * 110, "{more} and {rate}");
        // All is answered after 20 ms: a good time to end.
        let (until_done, _) = run(SlotKind::Adaptive, 40, Micros(500));
        assert_eq!(until_done, Micros::from_ms(20));
    }
}
