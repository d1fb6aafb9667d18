//! Which slots are compared, and when a compared one ends (COLO §3.3.2; design §8, `hybrid`).
//!
//! While the two guests say the same, outputs leave as soon as both have said it, and no sync is
//! needed. While they do not, comparing costs: an output waits for the secondary to say something
//! else before the sync begins that lets it go. A guest that answers with the time of day always
//! differs, and is better off with the syncs of an idle guest alone. So each slot is either
//! *compared* or not, and the rule finds out which pays:
//!
//! ```text
//!   compared ──▶ it yields less than others do ─▶ not compared for 1, 2, 4, … slots ─┐
//!      ▲  │ agreed, or yields no less                                                 │
//!      │  ▼                                                                           │
//!      └──┴────────────────────── another try ◀───────────────────────────────────────┘
//! ```
//!
//! What slots of either kind *yield* is the outputs that they let go, on a match and with their sync, by the
//! time that they took, the pause included. Where clients wait for their answers, the kind that yields more
//! is also the one that lets them wait less (Little's law). Slots that are compared and differ have to yield a
//! quarter more: what comparing costs falls on the slot after, too. Where they yielded about the same, as with
//! a Redis that tells the time, a load did a tenth less when every second slot was compared.

use crate::axes::{Input, Policy};
use crate::slot::{SlotCost, SlotRule, SlotView, SyncReason};
use plover_types::Micros;
use serde::{Deserialize, Serialize};

/// Of what slots of one kind yield, so much at least is of the last: where two guests serve one counter they part
/// after a few answers or after some thousands, and it is the latter that pay for the former.
const NEW_PART: u64 = 64;

/// So many slots in a row that are not compared, when nothing is known of such slots yet: what they yield
/// is then known to a tenth or so.
const SLOTS_TO_KNOW: u32 = 16;

/// Slots that are not compared between two tries, at most. A plain slot takes about 5 ms under
/// load, so a load that begins to agree is found out within some seconds; and a try that fails
/// costs an output at most [`MatchConfig::unmatched_max`], which is then a few percent.
const SLOTS_BETWEEN_TRIES_MAX: u32 = 512;

/// A sync that is due and cannot begin, because the secondary is not connected at the moment, is
/// tried again after this long.
const AGAIN: Micros = Micros::from_ms(5);

/// The bounds of a compared slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatchConfig {
    /// An output that the secondary has not sent after this long ends the slot. COLO waits for
    /// 200 ms, which is also how long a client's TCP waits before it sends a segment again
    /// (RFC 6298 asks for a second, Linux takes 200 ms): half of it leaves time for the sync.
    pub unmatched_max: Micros,
    /// A slot in which all agrees ends after this long, so that what has silently diverged stays
    /// few pages and the log of inputs short. A sync costs some milliseconds: below 1% of it.
    pub slot_max: Micros,
    /// Whether every slot is compared, and ends as soon as the outputs differ, as COLO does;
    /// else only those in which it is likely to pay.
    pub always: bool,
    /// Whether, while outputs are compared, the secondary's guest gets an input when it has sent as
    /// much as the leader's had: what they do then depends less on when they get it.
    pub paced: bool,
}

impl Default for MatchConfig {
    fn default() -> Self {
        Self {
            unmatched_max: Micros::from_ms(100),
            slot_max: Micros::from_ms(1000),
            always: false,
            paced: true,
        }
    }
}

impl MatchConfig {
    /// What is usual under a policy. One whose inputs are ordered by connection only is COLO's:
    /// it compares always, and waits for as long as COLO does (§3.3.2). COLO bounds no slot in
    /// which all agrees; ten seconds keep the log of inputs short.
    pub fn of(policy: &Policy) -> Self {
        match policy.input {
            Input::PerConnection => Self {
                unmatched_max: Micros::from_ms(200),
                slot_max: Micros::from_ms(10_000),
                always: true,
                paced: false,
            },
            Input::Total | Input::None => Self::default(),
        }
    }
}

/// How the outputs of a compared slot came out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing differed so far.
    #[default]
    Agrees,
    /// A connection was opened, which no two guests do alike: nothing is known about the load.
    Opens,
    /// They differ, or the secondary is late.
    Differs,
}

/// What the rule looks at in a compared slot, beside the [`SlotView`].
#[derive(Clone, Copy, Debug)]
pub struct MatchView {
    /// How long ago it was found that a sync is needed.
    pub differs_for: Option<Micros>,
    /// How long the oldest output has waited.
    pub oldest_waits: Micros,
}

/// Decides which slots are compared.
#[derive(Clone, Debug)]
pub struct MatchRule {
    config: MatchConfig,
    /// Slots not to be compared before the next try.
    pause: u32,
    /// How many the next pause has.
    next_pause: u32,
    /// What slots that were compared, and differed, have yielded lately; and slots that were not compared.
    compared: Yield,
    plain: Yield,
}

/// Outputs and the time that they took, over the last slots of a kind; the older a slot, the less it counts.
#[derive(Clone, Copy, Debug, Default)]
struct Yield {
    /// In units of 1/1024, so that nothing is lost to rounding.
    outputs: u64,
    micros: u64,
}

impl Yield {
    fn learn(&mut self, cost: &SlotCost) {
        self.outputs -= self.outputs / NEW_PART;
        self.micros -= self.micros / NEW_PART;
        self.outputs += u64::from(cost.outputs) * 1024;
        self.micros += cost.slot.0 + cost.pause.0;
    }

    fn is_known(&self) -> bool {
        self.micros > 0
    }

    /// Whether it is more, by so much that it is worth it.
    fn pays_beside(&self, other: &Self) -> bool {
        let rate = |one: &Self, by: &Self| u128::from(one.outputs) * u128::from(by.micros);
        rate(self, other) * 4 > rate(other, self) * 5
    }
}

impl MatchRule {
    /// A rule that begins with comparing.
    pub fn new(config: MatchConfig) -> Self {
        Self {
            config,
            pause: 0,
            next_pause: 1,
            compared: Yield::default(),
            plain: Yield::default(),
        }
    }

    /// Whether the slot that begins now is compared. To be asked once a slot.
    pub fn compares(&mut self) -> bool {
        if self.pause == 0 || self.config.always {
            return true;
        }
        self.pause -= 1;
        false
    }

    /// Learns from a slot whose sync is over, and how its outputs came out if it was compared.
    pub fn learn(&mut self, verdict: Option<Verdict>, cost: &SlotCost) {
        match verdict {
            None => return self.plain.learn(cost),
            // A sync for each connection says nothing about what is said on it.
            Some(Verdict::Opens) => return,
            Some(Verdict::Agrees) => {
                self.next_pause = 1;
                return;
            }
            Some(Verdict::Differs) => self.compared.learn(cost),
        }
        if !self.plain.is_known() {
            self.pause = SLOTS_TO_KNOW;
        } else if self.compared.pays_beside(&self.plain) {
            self.next_pause = 1;
        } else {
            self.pause = self.next_pause;
            self.next_pause = (self.next_pause * 2).min(SLOTS_BETWEEN_TRIES_MAX);
        }
    }

    /// Whether a compared slot ends now, and why. One that needs a sync ends as a plain slot
    /// does, counted from when that was found out.
    pub fn ends(&self, rule: &SlotRule, view: &SlotView, found: &MatchView) -> Option<SyncReason> {
        if view.guard_full {
            Some(SyncReason::GuardFull)
        } else if view.log_half_full {
            Some(SyncReason::LogFull)
        } else if found.differs_for.is_some() && self.config.always {
            Some(SyncReason::Differ)
        } else if let Some(age) = found.differs_for {
            let plain = plain(view, age);
            rule.decide(&plain).map(|_| SyncReason::Differ)
        } else if view.outputs_held && found.oldest_waits >= self.config.unmatched_max {
            Some(SyncReason::Unmatched)
        } else if view.age >= self.config.slot_max {
            Some(SyncReason::Quiet)
        } else {
            None
        }
    }

    /// How long until [`Self::ends`] may say something else than nothing.
    pub fn ends_within(&self, rule: &SlotRule, view: &SlotView, found: &MatchView) -> Micros {
        if found.differs_for.is_some() && self.config.always {
            // At once; this is for a sync that could not begin.
            return AGAIN;
        }
        if let Some(age) = found.differs_for {
            return rule.age_max(&plain(view, age)).since(age);
        }
        let slot = self.config.slot_max.since(view.age);
        if view.outputs_held {
            slot.min(self.config.unmatched_max.since(found.oldest_waits))
        } else {
            slot
        }
    }
}

/// A slot that needs a sync and ends as a plain one does, counted from when that was found out.
fn plain(view: &SlotView, age: Micros) -> SlotView {
    SlotView {
        age,
        goes_on: false,
        ..*view
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets::Preset;
    use crate::slot::SlotConfig;

    /// A slot that took so many milliseconds and let so many outputs go.
    fn cost(millis: u64, outputs: u32) -> SlotCost {
        SlotCost {
            slot: Micros::from_ms(millis),
            pause: Micros::ZERO,
            outputs,
        }
    }

    /// Runs slots of which those that are compared come out so, and the others let 16 outputs go in 5 ms.
    fn slots_compared(rule: &mut MatchRule, slots: u32, verdict: Verdict, one: SlotCost) -> u32 {
        let mut compared = 0;
        for _ in 0..slots {
            if rule.compares() {
                compared += 1;
                rule.learn(Some(verdict), &one);
            } else {
                rule.learn(None, &cost(5, 16));
            }
        }
        compared
    }

    #[test]
    fn a_load_that_always_differs_is_hardly_ever_compared() {
        let mut rule = MatchRule::new(MatchConfig::default());
        let warm_up = slots_compared(&mut rule, 1040, Verdict::Differs, cost(14, 16));
        assert!(warm_up <= 12, "{warm_up} tries");
        let tries = slots_compared(&mut rule, 5130, Verdict::Differs, cost(14, 16));
        assert!((9..=11).contains(&tries), "{tries} tries");
    }

    #[test]
    fn a_load_that_begins_to_agree_is_found_out() {
        let mut rule = MatchRule::new(MatchConfig::default());
        slots_compared(&mut rule, 5000, Verdict::Differs, cost(14, 16));
        let agree = |rule: &mut MatchRule, slots| {
            slots_compared(rule, slots, Verdict::Agrees, cost(1000, 5000))
        };
        agree(&mut rule, SLOTS_BETWEEN_TRIES_MAX + 1);
        assert_eq!(agree(&mut rule, 100), 100);
    }

    #[test]
    fn colo_compares_always_and_ends_a_slot_that_differs_at_once() {
        let colo = Preset::find("colo").unwrap();
        let mut rule = MatchRule::new(MatchConfig::of(&colo.policy));
        let compared = slots_compared(&mut rule, 100, Verdict::Differs, cost(14, 0));
        assert_eq!(compared, 100);
        let slot = SlotRule::new(SlotConfig::default());
        let (view, found) = views();
        let view = SlotView {
            idle: false,
            ..view
        };
        assert_eq!(rule.ends(&slot, &view, &found), None);
        let differs = MatchView {
            differs_for: Some(Micros::ZERO),
            ..found
        };
        assert_eq!(rule.ends(&slot, &view, &differs), Some(SyncReason::Differ));
    }

    /// A few long slots pay for many short ones.
    #[test]
    fn it_is_the_sum_that_counts() {
        let mut rule = MatchRule::new(MatchConfig::default());
        slots_compared(&mut rule, 30, Verdict::Differs, cost(14, 16));
        while !rule.compares() {
            rule.learn(None, &cost(5, 16));
        }
        rule.learn(Some(Verdict::Differs), &cost(400, 4000));
        for round in 0..50 {
            let compared = slots_compared(&mut rule, 20, Verdict::Differs, cost(14, 16));
            assert_eq!(compared, 20, "round {round}");
            rule.learn(Some(Verdict::Differs), &cost(400, 4000));
        }
        let compared = slots_compared(&mut rule, 1000, Verdict::Differs, cost(14, 16));
        assert!(compared < 100, "{compared}");
    }

    /// What pays is found out by comparing, not guessed.
    #[test]
    fn slots_that_yield_more_than_others_are_compared() {
        for (millis, pays) in [(3, true), (5, false)] {
            let mut rule = MatchRule::new(MatchConfig::default());
            slots_compared(&mut rule, 500, Verdict::Differs, cost(millis, 16));
            let compared = slots_compared(&mut rule, 100, Verdict::Differs, cost(millis, 16));
            assert_eq!(compared > 50, pays, "{compared}");
        }
    }

    #[test]
    fn connections_that_are_opened_say_nothing_about_a_load() {
        let mut rule = MatchRule::new(MatchConfig::default());
        let compared = slots_compared(&mut rule, 100, Verdict::Opens, cost(14, 0));
        assert_eq!(compared, 100);
    }

    fn views() -> (SlotView, MatchView) {
        (
            SlotView {
                age: Micros::ZERO,
                outputs_held: true,
                idle: true,
                goes_on: false,
                guard_full: false,
                log_half_full: false,
            },
            MatchView {
                differs_for: None,
                oldest_waits: Micros::ZERO,
            },
        )
    }

    #[test]
    fn an_idle_guest_whose_outputs_agree_is_left_alone() {
        let rule = MatchRule::new(MatchConfig::default());
        let slot = SlotRule::new(SlotConfig::default());
        let (view, found) = views();
        assert_eq!(rule.ends(&slot, &view, &found), None);
        let differs = MatchView {
            differs_for: Some(Micros::ZERO),
            ..found
        };
        assert_eq!(rule.ends(&slot, &view, &differs), Some(SyncReason::Differ));
        let late = MatchView {
            oldest_waits: MatchConfig::default().unmatched_max,
            ..found
        };
        assert_eq!(rule.ends(&slot, &view, &late), Some(SyncReason::Unmatched));
    }

    /// A loop that sleeps as long as it is told wakes to something.
    #[test]
    fn a_slot_ends_by_its_deadline() {
        let rule = MatchRule::new(MatchConfig::default());
        let slot = SlotRule::new(SlotConfig::default());
        for outputs_held in [false, true] {
            for differs_for in [None, Some(Micros::ZERO)] {
                let (view, found) = views();
                let view = SlotView {
                    outputs_held,
                    idle: false,
                    ..view
                };
                let found = MatchView {
                    differs_for,
                    ..found
                };
                let span = rule.ends_within(&slot, &view, &found);
                let view = SlotView { age: span, ..view };
                let found = MatchView {
                    differs_for: differs_for.map(|_| span),
                    oldest_waits: span,
                };
                let ends = rule.ends(&slot, &view, &found);
                assert!(ends.is_some(), "{outputs_held} {differs_for:?}");
            }
        }
    }
}
