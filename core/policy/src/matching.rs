//! Decides which slots are compared, and when a compared one ends (COLO §3.3.2; docs/decisions/0011).
//!
//! While the two guests send the same, outputs leave as soon as both have sent them, and no sync is
//! needed. While they differ, comparing costs: an output waits until the secondary sends something else,
//! and only then the sync begins that releases it. A guest that answers with the time of day always
//! differs; for it the syncs of an idle guest alone are better. So each slot is either *compared* or not,
//! and the rule finds out which pays:
//!
//! ```text
//!   compared ──▶ it yields less than others do ─▶ not compared for 1, 2, 4, … slots ─┐
//!      ▲  │ agreed, or yields no less                                                 │
//!      │  ▼                                                                           │
//!      └──┴────────────────────── another try ◀───────────────────────────────────────┘
//! ```
//!
//! The *yield* of a kind of slot is the outputs that it releases, on a match and with its sync, divided
//! by its time, the pause included. The rule knows the recent yield of both kinds: as long as comparing
//! pays, some slots now and then are not compared. Where clients wait for their answers, the kind with
//! the higher yield also lets them wait less (Little's law). Compared slots that differ must yield a
//! quarter more, because part of the cost of comparing falls on the next slot. With about equal yields, a
//! Redis that tells the time did a tenth less work when every second slot was compared.
//!
//! When the two guests have given a lock to different clients, both stand still: the secondary sends
//! nothing more until the other client goes on, and the answer of that client is held
//! (docs/decisions/0030). So an output is late soon after it usually would have been matched, but not
//! before it has waited as long as some pauses.

use crate::axes::{Input, Policy};
use crate::lag::Lag;
use crate::slot::{SlotCost, SlotRule, SlotView, SyncReason};
use plover_types::Micros;
use serde::{Deserialize, Serialize};

/// About this many slots of either kind count. Two guests that serve one counter differ after a few
/// answers or after some thousands, and the long slots pay for the short ones.
const SLOTS_COUNTED: u64 = 64;

/// After this many compared slots that differed, a few are not compared, to measure the present yield of
/// such slots.
const SLOTS_TO_PLAIN: u32 = 128;
/// The number of those slots.
const SLOTS_OF_PLAIN: u32 = 8;

/// Slots in a row that are not compared while the yield of such slots is unknown: it is then known to a
/// tenth or so.
const SLOTS_TO_KNOW: u32 = 16;

/// The most slots that are not compared between two tries. A plain slot takes about 5 ms under load, so a
/// load that begins to agree is found out within some seconds. A try that fails costs an output at most
/// [`MatchConfig::unmatched_max`], which is then a few percent.
const SLOTS_BETWEEN_TRIES_MAX: u32 = 512;

/// A sync that is due but cannot begin, because the secondary is not connected at the moment, is tried
/// again after this long.
const AGAIN: Micros = Micros::from_ms(5);

/// An output is never late before it has waited for this many pauses. Giving it up costs one pause, and
/// the outputs that the slot could still have released.
const LATE_PAUSES: u64 = 4;

/// The bounds of a compared slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatchConfig {
    /// An output that the secondary has not sent after this long ends the slot. Unless `always`, the slot
    /// ends earlier where outputs are usually matched earlier. COLO waits for 200 ms, which is also how
    /// long a client's TCP waits before it sends a segment again (RFC 6298 asks for a second, Linux takes
    /// 200 ms). Half of it leaves time for the sync.
    pub unmatched_max: Micros,
    /// A slot in which all outputs agree ends after this long. That keeps the pages that have silently
    /// diverged few, and the log of inputs short. A sync costs some milliseconds: below 1% of it.
    pub slot_max: Micros,
    /// Whether every slot is compared, ends as soon as outputs differ, and waits for them by the clock,
    /// as in COLO. Otherwise only slots in which comparing is likely to pay are compared.
    pub always: bool,
    /// Whether, while outputs are compared, the secondary's guest gets an input when it has sent as much
    /// as the leader's had. The guests' work then depends less on the time of an input.
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
    /// The defaults of a policy. One whose inputs are ordered by connection only is COLO's: it compares
    /// always, and waits for as long as COLO does (COLO §3.3.2). COLO does not bound a slot in which all
    /// outputs agree; ten seconds keep the log of inputs short.
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

/// The result of comparing a slot's outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing differed so far.
    #[default]
    Agrees,
    /// A connection was opened, with sequence numbers that differ between any two guests. That says
    /// nothing about the load.
    Opens,
    /// Outputs differ, or the secondary is late.
    Differs,
}

/// The facts about a compared slot that the rule decides on, beside the [`SlotView`].
#[derive(Clone, Copy, Debug)]
pub struct MatchView {
    /// The time since it was found that a sync is needed.
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
    /// Slots of the next pause.
    next_pause: u32,
    /// Whether slots that differ are compared, because that paid when it was last measured.
    pays: bool,
    /// Compared slots that differed since a slot was not compared.
    differed: u32,
    /// The recent yields of compared slots that differed, and of slots that were not compared.
    compared: Yield,
    plain: Yield,
    lag: Lag,
}

/// Outputs of slots of one kind, and the time that they took. A slot counts the less, the more slots of
/// either kind came after it.
#[derive(Clone, Copy, Debug, Default)]
struct Yield {
    /// In units of 1/1024, so that nothing is lost to rounding.
    outputs: u64,
    micros: u64,
}

impl Yield {
    /// Another slot of either kind has ended: earlier ones count less.
    fn age(&mut self) {
        self.outputs -= self.outputs / SLOTS_COUNTED;
        self.micros -= self.micros / SLOTS_COUNTED;
    }

    fn add(&mut self, cost: &SlotCost) {
        self.outputs += u64::from(cost.outputs) * 1024;
        self.micros += cost.slot.0 + cost.pause.0;
    }

    fn is_known(&self) -> bool {
        self.micros > 0
    }

    /// Whether it is a quarter more than `other`.
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
            pays: false,
            differed: 0,
            compared: Yield::default(),
            plain: Yield::default(),
            lag: Lag::default(),
        }
    }

    /// Other bounds from now on. What was learnt stays.
    pub fn set(&mut self, config: MatchConfig) {
        self.config = config;
    }

    /// Outputs were matched; the oldest had waited for this long.
    pub fn matched(&mut self, waited: Micros) {
        self.lag.matched(waited);
    }

    /// A slot ended by [`SyncReason::Unmatched`].
    pub fn was_late(&mut self) {
        self.lag.was_late();
    }

    /// An output is late after this long.
    fn late_after(&self, rule: &SlotRule) -> Micros {
        let longest = self.config.unmatched_max;
        let usual = self.lag.late_after().filter(|_| !self.config.always);
        let late = |usual: Micros| usual.max(Micros(rule.pause().0 * LATE_PAUSES));
        usual.map_or(longest, late).min(longest)
    }

    /// Whether the slot that begins now is compared. To be asked once a slot. `before` is the result of
    /// the slot before, which [`Self::learn`] does not know yet: its cost is known only when its sync is
    /// over.
    pub fn compares(&mut self, before: Option<Verdict>) -> bool {
        if self.config.always {
            return true;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        before != Some(Verdict::Differs) || self.pays
    }

    /// The next slot is compared, and the tries after it are close to each other again: slots are about to be measured of which
    /// this rule knows little.
    pub fn try_soon(&mut self) {
        (self.pause, self.next_pause) = (0, 1);
    }

    /// Learns from a slot whose sync is over, and how its outputs came out if it was compared.
    pub fn learn(&mut self, verdict: Option<Verdict>, cost: &SlotCost) {
        match verdict {
            None | Some(Verdict::Differs) => {
                self.compared.age();
                self.plain.age();
            }
            // A connection was opened: that says nothing about the data on it.
            Some(Verdict::Opens) => return,
            Some(Verdict::Agrees) => return self.try_soon(),
        }
        if verdict.is_none() {
            self.differed = 0;
            return self.plain.add(cost);
        }
        self.compared.add(cost);
        if self.pause > 0 {
            // This slot had begun before it was known that the one before did not pay.
            return;
        }
        self.pays = self.plain.is_known() && self.compared.pays_beside(&self.plain);
        if self.pays {
            self.next_pause = 1;
            self.differed += 1;
            if self.differed >= SLOTS_TO_PLAIN {
                self.pause = SLOTS_OF_PLAIN;
            }
        } else if !self.plain.is_known() {
            self.pause = SLOTS_TO_KNOW;
        } else {
            self.pause = self.next_pause;
            self.next_pause = (self.next_pause * 2).min(SLOTS_BETWEEN_TRIES_MAX);
        }
    }

    /// Whether a compared slot ends now, and why. One that needs a sync ends as a plain slot does,
    /// counted from the time at which that was found.
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
        } else if view.outputs_held && found.oldest_waits >= self.late_after(rule) {
            Some(SyncReason::Unmatched)
        } else if view.age >= self.config.slot_max {
            Some(SyncReason::Quiet)
        } else {
            None
        }
    }

    /// The time until [`Self::ends`] may return something.
    pub fn ends_within(&self, rule: &SlotRule, view: &SlotView, found: &MatchView) -> Micros {
        if found.differs_for.is_some() && self.config.always {
            // It ends at once. This is for a sync that could not begin.
            return AGAIN;
        }
        if let Some(age) = found.differs_for {
            return rule.age_max(&plain(view, age)).since(age);
        }
        let slot = self.config.slot_max.since(view.age);
        if view.outputs_held {
            slot.min(self.late_after(rule).since(found.oldest_waits))
        } else {
            slot
        }
    }
}

/// The view of a slot that needs a sync and ends as a plain one does, counted from the time at which that
/// was found.
fn plain(view: &SlotView, age: Micros) -> SlotView {
    SlotView { age, ..*view }
}

#[cfg(test)]
mod tests;
