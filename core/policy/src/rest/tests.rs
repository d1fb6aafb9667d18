//! The rule under loads whose slots yield given numbers.

use super::*;
use crate::SlotConfig;

/// The slots of one load.
#[derive(Clone, Copy)]
struct Load {
    runs: SlotCost,
    /// Of the outputs of a slot in which the secondary's guest runs, those that left early.
    early: u32,
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
    rests: cost(20, 4, 8),
};
/// A CPU for each guest.
const ROOMY: Load = Load {
    runs: cost(500, 8, 1000),
    early: 1000,
    rests: cost(8, 4, 20),
};
/// The answers of two guests always differ; all that resting saves is a part of the pause.
const DIFFERING: Load = Load {
    runs: cost(8, 4, 16),
    early: 0,
    rests: cost(8, 3, 16),
};

/// Runs `slots` slots. The cost of each is learnt after the next has begun, as in a replica. Returns the share of the
/// time in which the secondary's guest rested, in percent, over the second half.
fn run(rule: &mut RestRule, load: Load, slots: u64) -> u64 {
    let mut slot_rule = SlotRule::new(SlotConfig::default());
    let (mut rests, mut open) = (false, None);
    let mut times = [0, 0];
    for slot in 0..slots {
        let cost = if rests { load.rests } else { load.runs };
        let early = if rests { 0 } else { load.early };
        let ended = RestView {
            rests,
            age: cost.slot,
            outputs: cost.outputs,
        };
        let next = rule.rests(&ended, &slot_rule);
        if let Some((rested, cost, early)) = open.replace((rests, cost, early)) {
            slot_rule.learn(&cost);
            rule.learn(rested, &cost, early, &slot_rule);
        }
        if slot >= slots / 2 {
            times[usize::from(rests)] += cost.slot.0 + cost.pause.0;
        }
        rests = next;
    }
    times[1] * 100 / (times[0] + times[1])
}

#[test]
fn a_guest_rests_where_the_other_needs_its_cpu() {
    let mut rule = RestRule::default();
    let rested = run(&mut rule, CROWDED, 4000);
    assert!(rule.usually_rests() && rested > 90, "{rested} %: {rule:?}");
}

#[test]
fn a_guest_whose_answers_are_matched_runs() {
    let mut rule = RestRule::default();
    let rested = run(&mut rule, ROOMY, 4000);
    assert!(!rule.usually_rests() && rested < 2, "{rested} %: {rule:?}");
}

#[test]
fn a_guest_whose_answers_always_differ_rests() {
    let mut rule = RestRule::default();
    let rested = run(&mut rule, DIFFERING, 4000);
    assert!(rested > 90, "{rested} %: {rule:?}");
}

#[test]
fn a_load_that_changes_is_found_out() {
    let mut rule = RestRule::default();
    run(&mut rule, CROWDED, 4000);
    run(&mut rule, ROOMY, 4000);
    assert!(!rule.usually_rests(), "{rule:?}");
    run(&mut rule, CROWDED, 4000);
    assert!(rule.usually_rests(), "{rule:?}");
}

/// A quiet guest is compared: its next answer leaves at once.
#[test]
fn a_slot_without_outputs_is_followed_by_one_that_runs() {
    let mut rule = RestRule::default();
    run(&mut rule, CROWDED, 4000);
    let quiet = RestView {
        rests: true,
        age: Micros::from_ms(500),
        outputs: 0,
    };
    assert!(!rule.rests(&quiet, &SlotRule::new(SlotConfig::default())));
}

/// The fear: all answers of a trial are matched, so it lasts for a second of a load that should rest.
#[test]
fn a_trial_ends_as_soon_as_it_is_measured() {
    let mut rule = RestRule::default();
    run(&mut rule, CROWDED, 4000);
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
