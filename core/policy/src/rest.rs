//! Decides in which slots the secondary's guest rests (docs/decisions/0049).
//!
//! A guest that runs on the secondary may send what the leader's guest sends: then answers leave early, and few
//! pages differ. A guest that rests costs no CPU, and its side has nothing to finish, to scan or to hash before the
//! leader's guest goes on. Which of the two is worth more depends on the load and on the hosts, so it is measured:
//!
//! ```text
//!   the usual kind ──── its time is over ────▶ a trial of the other kind: 64 outputs
//!      ▲    ▲                                     │ it yields less            │ it yields more
//!      │    └──── 4, 8, … 128 times as long ──────┘                           │
//!      └───────── 4 times as long ──────────── the kinds change places ───────┘
//! ```
//!
//! The *yield* of a kind is the outputs that its slots release divided by their time, the pause included. Where
//! clients wait for their answers, the kind with the greater yield also lets them wait less (Little's law), and
//! the time that either guest takes from the other is in it. Where clients do not wait, or each guest has a CPU,
//! both kinds yield the same. Then the answers that left early decide: each counts a quarter more, so a
//! guest whose answers are matched runs. One whose answers always differ gains nothing by running, and rests.
//!
//! A slot without outputs says nothing, and the secondary's guest runs in the next one.

use crate::matching::MatchRule;
use crate::slot::{SlotCost, SlotRule};
use plover_types::Micros;

/// Outputs of a trial at least. Their number is then known to an eighth (the root of 64), half of what decides
/// between guests whose answers are all matched.
const TRIAL_OUTPUTS: u64 = 64;

/// A trial has as many slots at least, or lasts for twice as many pauses: the pause of a single slot counts for
/// an eighth at most.
const TRIAL_SLOTS: u64 = 8;

/// The time between two trials, in lengths of a trial: at first, and at most. At most one answer of 128 is then one
/// of a trial that fails, which leaves the 99th percentile of latency as it is.
const WAIT_FIRST: u64 = 4;
const WAIT_MAX: u64 = 128;

/// About this many outputs of the usual kind count. They are the last ones before a trial, because loads change.
const OUTPUTS_COUNTED: u64 = 8 * TRIAL_OUTPUTS;

/// The facts about a slot that ends, or may end, for this rule.
#[derive(Clone, Copy, Debug)]
pub struct RestView {
    /// Whether the secondary's guest rests in it.
    pub rests: bool,
    /// How long it has run.
    pub age: Micros,
    /// Frames that the leader's guest has sent in it.
    pub outputs: u32,
}

/// The yield of one kind of slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestYield {
    slots: u64,
    outputs: u64,
    /// Of these, released before the sync.
    early: u64,
    micros: u64,
}

impl RestYield {
    fn add(&mut self, cost: &SlotCost, early: u32) {
        self.slots += 1;
        self.outputs += u64::from(cost.outputs);
        self.early += u64::from(early);
        self.micros += cost.slot.0 + cost.pause.0;
    }

    /// Lets earlier slots count half, once there are many outputs.
    fn age(&mut self) {
        if self.outputs > OUTPUTS_COUNTED {
            for figure in [
                &mut self.slots,
                &mut self.outputs,
                &mut self.early,
                &mut self.micros,
            ] {
                *figure /= 2;
            }
        }
    }

    /// Outputs a second; `None` if none was seen.
    pub fn per_s(&self) -> Option<u64> {
        let per_s = |micros| self.outputs.saturating_mul(1_000_000) / micros;
        Some(self.micros).filter(|micros| *micros > 0).map(per_s)
    }

    /// The share of outputs that left early, in percent.
    pub fn early_percent(&self) -> u64 {
        (self.early * 100).checked_div(self.outputs).unwrap_or(0)
    }

    /// Whether there is enough of it to compare, with a slot that is not added yet.
    fn is_known_with(&self, (slots, outputs, micros): (u64, u64, u64), rule: &SlotRule) -> bool {
        let pauses = Micros(rule.pause().0 * TRIAL_SLOTS * 2);
        let long = self.slots + slots >= TRIAL_SLOTS || self.micros + micros >= pauses.0;
        self.outputs + outputs >= TRIAL_OUTPUTS && long
    }
}

/// Decides between running and resting.
#[derive(Clone, Debug, Default)]
pub struct RestRule {
    usually_rests: bool,
    usual: RestYield,
    /// As the last trial has measured it, or the running one measures it now.
    other: RestYield,
    in_trial: bool,
    /// The time of usual slots until the next trial.
    left: u64,
    /// The length of the last wait for a trial, in lengths of a trial.
    wait: u64,
    /// The slots with outputs in which it rested.
    rested: u64,
}

impl RestRule {
    /// Whether the secondary's guest rests in the slot that begins. To be asked once a slot, about the slot that
    /// ends, whose cost [`Self::learn`] does not know yet. A trial of running begins with a slot that is compared: running is
    /// worth what it yields with answers that leave early.
    pub fn rests(&mut self, ends: &RestView, rule: &SlotRule, matching: &mut MatchRule) -> bool {
        if ends.outputs == 0 {
            return false;
        }
        if !self.in_trial && self.left == 0 && self.usual.is_known_with((0, 0, 0), rule) {
            self.in_trial = true;
            self.other = RestYield::default();
            if self.usually_rests {
                matching.try_soon();
            }
        }
        let tries = self.in_trial && !self.is_measured_with(ends, rule);
        self.usually_rests != tries
    }

    /// Whether the trial has what it needs with this slot.
    fn is_measured_with(&self, view: &RestView, rule: &SlotRule) -> bool {
        let is_tried = view.rests != self.usually_rests;
        let slot = (1, u64::from(view.outputs), view.age.0);
        let slot = Some(slot).filter(|_| is_tried).unwrap_or_default();
        self.other.is_known_with(slot, rule)
    }

    /// Whether a slot in which the secondary's guest runs has lasted for long enough, because that guest usually
    /// rests. A slot whose answers are all matched would last for a second.
    pub fn ends(&self, view: &RestView, rule: &SlotRule) -> bool {
        if view.rests || !self.usually_rests || view.outputs == 0 {
            false
        } else if self.in_trial {
            self.is_measured_with(view, rule)
        } else {
            view.age >= rule.longest()
        }
    }

    /// Learns from a slot whose sync is over; `early` of its outputs had left before.
    pub fn learn(&mut self, rested: bool, cost: &SlotCost, early: u32, rule: &SlotRule) {
        let is_usual = rested == self.usually_rests;
        self.rested += u64::from(rested && cost.outputs > 0);
        if cost.outputs == 0 || is_usual == self.in_trial {
            return;
        }
        if is_usual {
            self.usual.add(cost, early);
            self.usual.age();
            self.left = self.left.saturating_sub(cost.slot.0 + cost.pause.0);
            return;
        }
        self.other.add(cost, early);
        if self.other.is_known_with((0, 0, 0), rule) {
            self.conclude();
        }
    }

    /// The trial is over.
    fn conclude(&mut self) {
        self.in_trial = false;
        let length = self.other.micros;
        if rest_pays(self.running(), self.resting()) == self.usually_rests {
            self.wait = (self.wait * 2).clamp(WAIT_FIRST, WAIT_MAX);
        } else {
            self.usually_rests = !self.usually_rests;
            std::mem::swap(&mut self.usual, &mut self.other);
            self.wait = WAIT_FIRST;
        }
        self.left = length * self.wait;
    }

    /// Whether the secondary's guest usually rests while the guest answers.
    pub fn usually_rests(&self) -> bool {
        self.usually_rests
    }

    /// Whether the other kind is being measured.
    pub fn is_trying(&self) -> bool {
        self.in_trial
    }

    /// In how many slots with outputs it has rested.
    pub fn slots_rested(&self) -> u64 {
        self.rested
    }

    /// The yield of slots in which the secondary's guest runs.
    pub fn running(&self) -> &RestYield {
        match self.usually_rests {
            true => &self.other,
            false => &self.usual,
        }
    }

    /// The yield of slots in which it rests.
    pub fn resting(&self) -> &RestYield {
        match self.usually_rests {
            true => &self.usual,
            false => &self.other,
        }
    }
}

/// Whether resting yields at least what running does, if each early answer counts a quarter more.
fn rest_pays(runs: &RestYield, rests: &RestYield) -> bool {
    let wide = u128::from;
    let of_rests = wide(rests.outputs) * 4 * wide(runs.micros);
    let of_runs = (wide(runs.outputs) * 4 + wide(runs.early)) * wide(rests.micros);
    of_rests >= of_runs
}

#[cfg(test)]
mod tests;
