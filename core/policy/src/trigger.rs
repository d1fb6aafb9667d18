//! When a slot ends, by the policy's choice ([`SyncWhen`]).

use crate::axes::SyncWhen;
use crate::slot::{SlotConfig, SlotRule, SlotView, SyncReason};
use plover_types::Micros;

/// A waiting output ends the slot at once. Where no sync can begin, because the secondary is not
/// connected at the moment, this long passes before the next attempt.
const OUTPUT_AGAIN: Micros = Micros::from_ms(5);

impl SyncWhen {
    /// Whether the slot ends now, and why. `rule` decides where the guest's idleness counts.
    pub fn ends(self, rule: &SlotRule, view: &SlotView) -> Option<SyncReason> {
        let reason = match self {
            Self::Idle | Self::Mismatch => return rule.decide(view),
            Self::Every(interval) => (view.age >= interval).then_some(SyncReason::Interval),
            Self::Output(_) if view.outputs_held => Some(SyncReason::Output),
            Self::Output(interval) => (view.age >= interval).then_some(SyncReason::Interval),
        };
        if view.guard_full {
            Some(SyncReason::GuardFull)
        } else if view.log_half_full {
            Some(SyncReason::LogFull)
        } else {
            reason
        }
    }

    /// The age at which the slot must be looked at again, at the latest.
    pub fn age_max(self, rule: &SlotRule, view: &SlotView) -> Micros {
        match self {
            Self::Idle | Self::Mismatch => rule.age_max(view),
            Self::Every(interval) => interval,
            Self::Output(_) if view.outputs_held => OUTPUT_AGAIN,
            Self::Output(interval) => interval,
        }
    }

    /// Whether the choice depends on the leader's guest being idle.
    pub fn asks_for_idleness(self) -> bool {
        matches!(self, Self::Idle | Self::Mismatch)
    }

    /// The longest that the secondary may take to finish its inputs while the leader stands. With a fixed
    /// slot it stops at once: PLOVER's Plan2 measures the cost of stopping both guests at different
    /// points of their work.
    pub fn wait_max(self, slot: &SlotConfig) -> Micros {
        match self {
            Self::Every(_) => Micros::ZERO,
            Self::Idle | Self::Output(_) | Self::Mismatch => slot.wait_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Micros = Micros::from_ms(25);

    fn view(age: Micros, outputs_held: bool) -> SlotView {
        SlotView {
            age,
            outputs_held,
            idle: true,
            guard_full: false,
            log_half_full: false,
        }
    }

    fn ends(when: SyncWhen, age: Micros, outputs_held: bool) -> Option<SyncReason> {
        let view = view(age, outputs_held);
        when.ends(&SlotRule::new(SlotConfig::default()), &view)
    }

    #[test]
    fn a_fixed_slot_cares_for_time_alone() {
        let when = SyncWhen::Every(INTERVAL);
        assert_eq!(ends(when, INTERVAL - Micros(1), true), None);
        assert_eq!(ends(when, INTERVAL, true), Some(SyncReason::Interval));
        assert_eq!(ends(when, INTERVAL, false), Some(SyncReason::Interval));
    }

    #[test]
    fn an_output_ends_the_slot_at_once() {
        let when = SyncWhen::Output(INTERVAL);
        assert_eq!(ends(when, Micros(1), true), Some(SyncReason::Output));
        assert_eq!(ends(when, Micros(1), false), None);
        assert_eq!(ends(when, INTERVAL, false), Some(SyncReason::Interval));
    }

    #[test]
    fn an_idle_slot_ends_when_the_idle_rule_says_so() {
        assert_eq!(
            ends(SyncWhen::Idle, Micros(1), true),
            Some(SyncReason::Idle)
        );
        assert_eq!(ends(SyncWhen::Idle, Micros(1), false), None);
    }

    /// The deadline is never after the decision; otherwise a loop that sleeps until it would oversleep.
    #[test]
    fn a_slot_ends_by_its_deadline() {
        let rule = SlotRule::new(SlotConfig::default());
        for when in [
            SyncWhen::Idle,
            SyncWhen::Every(INTERVAL),
            SyncWhen::Output(INTERVAL),
        ] {
            for outputs_held in [false, true] {
                let age = when.age_max(&rule, &view(Micros::ZERO, outputs_held));
                assert!(
                    ends(when, age, outputs_held).is_some(),
                    "{when} {outputs_held}"
                );
            }
        }
    }

    #[test]
    fn a_full_guard_or_log_ends_any_slot() {
        let rule = SlotRule::new(SlotConfig::default());
        for when in [
            SyncWhen::Idle,
            SyncWhen::Every(INTERVAL),
            SyncWhen::Output(INTERVAL),
            SyncWhen::Mismatch,
        ] {
            let view = SlotView {
                age: Micros::ZERO,
                outputs_held: true,
                idle: false,
                guard_full: true,
                log_half_full: true,
            };
            assert_eq!(when.ends(&rule, &view), Some(SyncReason::GuardFull));
            let view = SlotView {
                guard_full: false,
                outputs_held: false,
                ..view
            };
            assert_eq!(when.ends(&rule, &view), Some(SyncReason::LogFull));
        }
    }
}
