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
//! time that they took, the pause included. It is known of slots of either kind, and lately: as long as
//! comparing pays, some slots now and then are not compared. Where clients wait for their answers, the kind that yields more
//! is also the one that lets them wait less (Little's law). Slots that are compared and differ have to yield a
//! quarter more: what comparing costs falls on the slot after, too. Where they yielded about the same, as with
//! a Redis that tells the time, a load did a tenth less when every second slot was compared.
//!
//! A secondary that serves clients in another order says nothing more where one holds a lock that the
//! leader's guest has given to another, and then nobody does. So an output is late soon after it usually
//! would have been matched (docs/decisions/0030), but not before waiting has cost as much as some pauses.

use crate::axes::{Input, Policy};
use crate::lag::Lag;
use crate::slot::{SlotCost, SlotRule, SlotView, SyncReason};
use plover_types::Micros;
use serde::{Deserialize, Serialize};

/// About so many slots count, of either kind: where two guests serve one counter they part after a few answers
/// or after some thousands, and it is the latter that pay for the former.
const SLOTS_COUNTED: u64 = 64;

/// After so many compared slots that differed, a few are not compared, to see what those yield now.
const SLOTS_TO_PLAIN: u32 = 128;
/// How many.
const SLOTS_OF_PLAIN: u32 = 8;

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

/// An output is never late before it has waited for as long as so many pauses: giving it up costs one, and
/// what the slot might yet have let go.
const LATE_PAUSES: u64 = 4;

/// The bounds of a compared slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatchConfig {
    /// An output that the secondary has not sent after this long ends the slot; earlier, unless `always`,
    /// where outputs are usually matched earlier. COLO waits for
    /// 200 ms, which is also how long a client's TCP waits before it sends a segment again
    /// (RFC 6298 asks for a second, Linux takes 200 ms): half of it leaves time for the sync.
    pub unmatched_max: Micros,
    /// A slot in which all agrees ends after this long, so that what has silently diverged stays
    /// few pages and the log of inputs short. A sync costs some milliseconds: below 1% of it.
    pub slot_max: Micros,
    /// Whether every slot is compared, ends as soon as the outputs differ, and waits for them by the clock, as
    /// COLO does; else only those in which it is likely to pay.
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
    /// Slots that differ are compared: that was worth it when it was last asked.
    pays: bool,
    /// How many of them since one was not compared.
    differed: u32,
    /// What slots that were compared, and differed, have yielded lately; and slots that were not compared.
    compared: Yield,
    plain: Yield,
    lag: Lag,
}

/// Outputs and the time that they took, over slots of a kind; the more slots of either kind came after one, the
/// less it counts.
#[derive(Clone, Copy, Debug, Default)]
struct Yield {
    /// In units of 1/1024, so that nothing is lost to rounding.
    outputs: u64,
    micros: u64,
}

impl Yield {
    /// A slot more, of whichever kind: what came before counts less.
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
            pays: false,
            differed: 0,
            compared: Yield::default(),
            plain: Yield::default(),
            lag: Lag::default(),
        }
    }

    /// Outputs were matched; the oldest had waited for this long.
    pub fn matched(&mut self, waited: Micros) {
        self.lag.matched(waited);
    }

    /// A slot ended by [`SyncReason::Unmatched`].
    pub fn was_late(&mut self) {
        self.lag.was_late();
    }

    /// After how long an output is late.
    fn late_after(&self, rule: &SlotRule) -> Micros {
        let longest = self.config.unmatched_max;
        let usual = self.lag.late_after().filter(|_| !self.config.always);
        let late = |usual: Micros| usual.max(Micros(rule.pause().0 * LATE_PAUSES));
        usual.map_or(longest, late).min(longest)
    }

    /// Whether the slot that begins now is compared. To be asked once a slot, with how the slot before came
    /// out: what that has cost is not known before its sync is over.
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

    /// Learns from a slot whose sync is over, and how its outputs came out if it was compared.
    pub fn learn(&mut self, verdict: Option<Verdict>, cost: &SlotCost) {
        match verdict {
            None | Some(Verdict::Differs) => {
                self.compared.age();
                self.plain.age();
            }
            // A sync for each connection says nothing about what is said on it.
            Some(Verdict::Opens) => return,
            Some(Verdict::Agrees) => {
                (self.pause, self.next_pause) = (0, 1);
                return;
            }
        }
        if verdict.is_none() {
            self.differed = 0;
            return self.plain.add(cost);
        }
        self.compared.add(cost);
        if self.pause > 0 {
            // It had begun before it was known that the one before did not pay.
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
        } else if view.outputs_held && found.oldest_waits >= self.late_after(rule) {
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
            slot.min(self.late_after(rule).since(found.oldest_waits))
        } else {
            slot
        }
    }
}

/// A slot that needs a sync and ends as a plain one does, counted from when that was found out.
fn plain(view: &SlotView, age: Micros) -> SlotView {
    SlotView { age, ..*view }
}

#[cfg(test)]
mod tests;
