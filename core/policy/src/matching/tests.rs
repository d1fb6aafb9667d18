use super::*;
use crate::presets::Preset;
use crate::slot::SlotConfig;

/// The cost of a slot that took this many milliseconds and released this many outputs.
fn cost(millis: u64, outputs: u32) -> SlotCost {
    SlotCost {
        slot: Micros::from_ms(millis),
        pause: Micros::ZERO,
        outputs,
    }
}

/// A rule, and the last slot. The rule learns from that after it was asked about the next one.
struct Run {
    rule: MatchRule,
    before: Option<(Option<Verdict>, SlotCost)>,
    plain: SlotCost,
}

impl Run {
    /// Slots that are not compared release 16 outputs in 5 ms.
    fn new() -> Self {
        Self::of(MatchConfig::default())
    }

    fn of(config: MatchConfig) -> Self {
        Self {
            rule: MatchRule::new(config),
            before: None,
            plain: cost(5, 16),
        }
    }

    /// Runs one slot; if it is compared, `verdict` is the result. Returns whether it is compared.
    fn slot(&mut self, verdict: Verdict, compared: SlotCost) -> bool {
        let compares = self
            .rule
            .compares(self.before.and_then(|(verdict, _)| verdict));
        if let Some((verdict, cost)) = self.before.take() {
            self.rule.learn(verdict, &cost);
        }
        self.before = Some(match compares {
            true => (Some(verdict), compared),
            false => (None, self.plain),
        });
        compares
    }

    /// Runs `slots` slots; returns how many were compared.
    fn slots(&mut self, slots: u32, verdict: Verdict, compared: SlotCost) -> u32 {
        (0..slots)
            .map(|_| u32::from(self.slot(verdict, compared)))
            .sum()
    }
}

#[test]
fn a_load_that_always_differs_is_hardly_ever_compared() {
    let mut run = Run::new();
    let warm_up = run.slots(1045, Verdict::Differs, cost(14, 16));
    assert!(warm_up <= 12, "{warm_up} tries");
    let tries = run.slots(5140, Verdict::Differs, cost(14, 16));
    assert!((9..=11).contains(&tries), "{tries} tries");
}

/// The fear: comparing seems to pay because slots of an idle guest yielded little, and slots that are not
/// compared are never measured again.
#[test]
fn a_load_that_begins_to_differ_is_found_out() {
    let mut run = Run::new();
    run.plain = cost(500, 1);
    run.slots(20, Verdict::Differs, cost(500, 1));
    run.slots(20, Verdict::Agrees, cost(1000, 2));
    run.plain = cost(5, 16);
    run.slots(2000, Verdict::Differs, cost(14, 16));
    let compared = run.slots(5000, Verdict::Differs, cost(14, 16));
    assert!(compared < 50, "{compared}");
}

#[test]
fn a_load_that_begins_to_agree_is_found_out() {
    let mut run = Run::new();
    run.slots(5000, Verdict::Differs, cost(14, 16));
    let agree = |run: &mut Run, slots| run.slots(slots, Verdict::Agrees, cost(1000, 5000));
    agree(&mut run, SLOTS_BETWEEN_TRIES_MAX + 1);
    assert_eq!(agree(&mut run, 100), 100);
}

/// The yields of a guest that had little to do are soon forgotten.
#[test]
fn a_light_load_is_soon_forgotten() {
    let mut run = Run::new();
    run.plain = cost(500, 8);
    run.slots(300, Verdict::Differs, cost(1000, 2));
    run.plain = cost(5, 16);
    run.slots(600, Verdict::Differs, cost(400, 4000));
    let compared = run.slots(1000, Verdict::Differs, cost(400, 4000));
    assert!(compared > 900, "{compared}");
}

#[test]
fn colo_compares_always_and_ends_a_slot_that_differs_at_once() {
    let colo = Preset::find("colo").unwrap();
    let mut run = Run::of(MatchConfig::of(&colo.policy));
    assert_eq!(run.slots(100, Verdict::Differs, cost(14, 0)), 100);
    let rule = &run.rule;
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
fn the_total_cost_decides_which_slots_are_compared() {
    let mut run = Run::new();
    run.slots(30, Verdict::Differs, cost(14, 16));
    while !run.slot(Verdict::Differs, cost(400, 4000)) {}
    let compared = (0..50)
        .map(|_| {
            run.slots(20, Verdict::Differs, cost(14, 16))
                + run.slots(1, Verdict::Differs, cost(400, 4000))
        })
        .sum::<u32>();
    assert!(compared > 900, "{compared}");
    let compared = run.slots(1000, Verdict::Differs, cost(14, 16));
    assert!(compared < 150, "{compared}");
}

/// Yields decide what is compared, not a guess.
#[test]
fn slots_that_yield_more_than_others_are_compared() {
    for (millis, pays) in [(3, true), (5, false)] {
        let mut run = Run::new();
        run.slots(500, Verdict::Differs, cost(millis, 16));
        let compared = run.slots(100, Verdict::Differs, cost(millis, 16));
        assert_eq!(compared > 50, pays, "{compared}");
    }
}

#[test]
fn connections_that_are_opened_say_nothing_about_a_load() {
    let mut run = Run::new();
    assert_eq!(run.slots(100, Verdict::Opens, cost(14, 0)), 100);
}

fn views() -> (SlotView, MatchView) {
    (
        SlotView {
            age: Micros::ZERO,
            outputs_held: true,
            idle: true,
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

/// A slot rule that has learnt pauses of this many milliseconds.
fn pauses(millis: u64) -> SlotRule {
    let mut rule = SlotRule::new(SlotConfig::default());
    let pause = Micros::from_ms(millis);
    rule.learn(&SlotCost {
        pause,
        ..cost(5, 16)
    });
    rule
}

/// The wait after which an output is late, where others waited for a millisecond.
fn late(config: MatchConfig, slot: &SlotRule) -> u64 {
    let mut rule = MatchRule::new(config);
    (0..100).for_each(|_| rule.matched(Micros::from_ms(1)));
    let (view, found) = views();
    let late = rule.ends_within(slot, &view, &found);
    let waits = |oldest_waits| MatchView {
        oldest_waits,
        ..found
    };
    let early = Micros(late.0 - 1);
    assert_eq!(rule.ends(slot, &view, &waits(early)), None);
    assert_eq!(
        rule.ends(slot, &view, &waits(late)),
        Some(SyncReason::Unmatched)
    );
    late.0
}

/// The fear: each time the secondary's guest has given a lock to another client, all clients stand still
/// for a tenth of a second.
#[test]
fn lateness_depends_on_the_usual_delay_and_the_cost_of_a_sync() {
    let config = MatchConfig::default();
    let usual = late(config, &SlotRule::new(SlotConfig::default()));
    assert!((1000..1500).contains(&usual), "{usual}");
    assert_eq!(late(config, &pauses(3)), 12_000);
    assert_eq!(late(config, &pauses(80)), config.unmatched_max.0);
    let colo = MatchConfig::of(&Preset::find("colo").unwrap().policy);
    assert_eq!(late(colo, &pauses(3)), colo.unmatched_max.0);
}

/// After the wait that the rule names, the slot ends.
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
