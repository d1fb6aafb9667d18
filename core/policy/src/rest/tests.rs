//! The rule under loads whose slots yield given numbers.

use super::*;
use crate::{MatchConfig, SlotConfig, Verdict};

/// The slots of one load.
#[derive(Clone, Copy)]
struct Load {
    /// A slot in which the secondary's guest runs and outputs are compared, and those of them that left early.
    runs: SlotCost,
    early: u32,
    /// One in which it runs and outputs are not compared.
    plain: SlotCost,
    rests: SlotCost,
}

const fn cost(slot_ms: u64, pause_ms: u64, outputs: u32) -> SlotCost {
    SlotCost {
        slot: Micros::from_ms(slot_ms),
        pause: Micros::from_ms(pause_ms),
        outputs,
    }
}

/// Both guests on the same CPUs: resting gives the leader's guest half as much again, though no answer leaves early.
const CROWDED: Load = Load {
    runs: cost(500, 8, 100),
    early: 100,
    plain: cost(20, 8, 5),
    rests: cost(20, 4, 8),
};
/// A CPU for each guest.
const ROOMY: Load = Load {
    runs: cost(500, 8, 1000),
    early: 1000,
    plain: cost(8, 4, 19),
    rests: cost(8, 4, 20),
};
/// The answers of two guests always differ; all that resting saves is a part of the pause.
const DIFFERING: Load = Load {
    runs: cost(8, 4, 16),
    early: 0,
    plain: cost(8, 4, 16),
    rests: cost(8, 3, 16),
};

/// The two rules of a leader.
struct Run {
    rest: RestRule,
    matching: MatchRule,
}

impl Run {
    fn new() -> Self {
        Self {
            rest: RestRule::default(),
            matching: MatchRule::new(MatchConfig::default()),
        }
    }

    /// Runs `slots` slots. The cost of each is learnt after the next has begun, as in a replica. Returns the share of the
    /// time in which the secondary's guest rested, in percent, over the second half.
    fn slots(&mut self, load: Load, slots: u64) -> u64 {
        let mut slot_rule = SlotRule::new(SlotConfig::default());
        let (mut rests, mut compared, mut open) = (false, false, None);
        let mut times = [0, 0];
        for slot in 0..slots {
            let (cost, early) = match (rests, compared) {
                (true, _) => (load.rests, 0),
                (false, true) => (load.runs, load.early),
                (false, false) => (load.plain, 0),
            };
            let verdict = compared.then_some(match early {
                0 => Verdict::Differs,
                _ => Verdict::Agrees,
            });
            let ended = RestView {
                rests,
                age: cost.slot,
                outputs: cost.outputs,
            };
            let next = self.rest.rests(&ended, &slot_rule, &mut self.matching);
            let compares = !next && self.matching.compares(verdict);
            if let Some((rested, verdict, cost, early)) =
                open.replace((rests, verdict, cost, early))
            {
                slot_rule.learn(&cost);
                if !rested {
                    self.matching.learn(verdict, &cost);
                }
                self.rest.learn(rested, &cost, early, &slot_rule);
            }
            if slot >= slots / 2 {
                times[usize::from(rests)] += cost.slot.0 + cost.pause.0;
            }
            (rests, compared) = (next, compares);
        }
        times[1] * 100 / (times[0] + times[1])
    }
}

#[test]
fn a_guest_rests_where_the_other_needs_its_cpu() {
    let mut run = Run::new();
    let rested = run.slots(CROWDED, 4000);
    assert!(
        run.rest.usually_rests() && rested > 90,
        "{rested} %: {:?}",
        run.rest
    );
}

#[test]
fn a_guest_whose_answers_are_matched_runs() {
    let mut run = Run::new();
    let rested = run.slots(ROOMY, 4000);
    assert!(
        !run.rest.usually_rests() && rested < 2,
        "{rested} %: {:?}",
        run.rest
    );
}

#[test]
fn a_guest_whose_answers_always_differ_rests() {
    let mut run = Run::new();
    let rested = run.slots(DIFFERING, 4000);
    assert!(rested > 90, "{rested} %: {:?}", run.rest);
}

#[test]
fn a_load_that_changes_is_found_out() {
    let mut run = Run::new();
    run.slots(CROWDED, 4000);
    run.slots(ROOMY, 4000);
    assert!(!run.rest.usually_rests(), "{:?}", run.rest);
    run.slots(CROWDED, 4000);
    assert!(run.rest.usually_rests(), "{:?}", run.rest);
}

/// The fear: outputs have differed for so long that hardly any slot is compared. Those of a trial are not either, so running
/// seems to yield less for ever.
#[test]
fn running_is_worth_what_it_yields_with_comparing() {
    let mut run = Run::new();
    run.slots(DIFFERING, 4000);
    let mut tries = 0;
    while tries < 12 {
        let verdict = run.matching.compares(None).then_some(Verdict::Differs);
        tries += u32::from(verdict.is_some());
        run.matching.learn(verdict, &DIFFERING.plain);
    }
    run.slots(ROOMY, 4000);
    assert!(!run.rest.usually_rests(), "{:?}", run.rest);
}

/// A quiet guest is compared: its next answer leaves at once.
#[test]
fn a_slot_without_outputs_is_followed_by_one_that_runs() {
    let mut run = Run::new();
    run.slots(CROWDED, 4000);
    let quiet = RestView {
        rests: true,
        age: Micros::from_ms(500),
        outputs: 0,
    };
    let slot_rule = SlotRule::new(SlotConfig::default());
    assert!(!run.rest.rests(&quiet, &slot_rule, &mut run.matching));
}

/// The fear: all answers of a trial are matched, so it lasts for a second of a load that should rest.
#[test]
fn a_trial_ends_as_soon_as_it_is_measured() {
    let mut run = Run::new();
    run.slots(CROWDED, 4000);
    let mut rule = run.rest;
    let slot_rule = SlotRule::new(SlotConfig::default());
    let running = |age, outputs| RestView {
        rests: false,
        age: Micros::from_ms(age),
        outputs,
    };
    rule.in_trial = true;
    rule.other = RestYield::default();
    assert!(!rule.ends(&running(300, 63), &slot_rule));
    assert!(rule.ends(&running(300, 64), &slot_rule));
    rule.in_trial = false;
    assert!(!rule.ends(&running(300, 0), &slot_rule), "nothing to gain");
    assert!(rule.ends(&running(300, 1), &slot_rule));
}
