//! The part of the configuration that an operator may change while the replica runs ([`crate::Event::Tuned`]).
//!
//! No promise rests on these values. Each one decides when something is done: when a slot ends, how long a hypervisor
//! may be silent, how fast a copy is. Replicas of one group may differ in them, as they do while an operator changes
//! one host after the other. The timeouts of consensus are not among them, because the lease rests on them
//! (docs/decisions/0053).

use crate::api::Config;
use crate::context::Context;
use plover_policy::{MatchConfig, SlotConfig, UnprotectedOutput};
use plover_types::Micros;

/// Values of [`Config`] that may change while a replica runs; see the fields of the same names there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How long this side's hypervisor may leave an order unanswered.
    pub hypervisor_timeout: Micros,
    /// The slot's bounds.
    pub slot: SlotConfig,
    /// The bounds of a slot whose outputs are compared.
    pub matching: MatchConfig,
    /// Whether outputs go out while the leader is solo.
    pub unprotected_output: UnprotectedOutput,
    /// Bytes a second that a secondary sends to keep a witness warm, at most.
    pub warm_bytes_per_s: u64,
    /// Whether only the differing subpages of divergent pages are sent.
    pub subpages: bool,
    /// Bytes of frames that may wait to be fed.
    pub input_bytes_max: usize,
}

impl Config {
    /// The part of this configuration that may change while the replica runs.
    #[cfg(test)]
    fn tuning(&self) -> Tuning {
        Tuning {
            hypervisor_timeout: self.hypervisor_timeout,
            slot: self.slot,
            matching: self.matching,
            unprotected_output: self.unprotected_output,
            warm_bytes_per_s: self.warm_bytes_per_s,
            subpages: self.subpages,
            input_bytes_max: self.input_bytes_max,
        }
    }

    fn tune(&mut self, to: Tuning) {
        self.hypervisor_timeout = to.hypervisor_timeout;
        self.slot = to.slot;
        self.matching = to.matching;
        self.unprotected_output = to.unprotected_output;
        self.warm_bytes_per_s = to.warm_bytes_per_s;
        self.subpages = to.subpages;
        self.input_bytes_max = to.input_bytes_max;
    }
}

impl Context {
    /// Takes other values from now on. The rules keep what they have learnt.
    pub fn tune(&mut self, to: Tuning) {
        self.config.tune(to);
        let wait_max = self.config.policy.sync.wait_max(&to.slot);
        self.rules.slot.set(to.slot);
        self.rules.wait.set_max(wait_max);
        self.rules.matching.set(to.matching);
        self.guest.activity.set_threshold(to.slot.idle_threshold);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Action, Event};
    use crate::replica::Replica;
    use crate::testing;
    use plover_policy::{DEFAULT, Policy, Preset, SyncWhen};

    fn apply(replica: &mut Replica, now: Micros, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        replica.apply(now, event, &mut out);
        out
    }

    fn pauses(out: &[Action]) -> bool {
        out.iter().any(|action| matches!(action, Action::Pause))
    }

    /// The running slot ends by the new bound, not only the next one. The policy takes checkpoints, so that no entry of the
    /// log comes first.
    #[test]
    fn a_shorter_slot_holds_at_once() {
        let policy = Policy {
            sync: SyncWhen::Idle,
            ..Preset::find("remus-25").unwrap().policy
        };
        let now = Micros::from_ms(60);
        let mut replica = testing::leader(policy, true);
        assert!(!pauses(&apply(&mut replica, now, Event::Tick)), "500 ms");
        let mut tuning = replica.cx.config.tuning();
        tuning.slot.quiet_max = Micros::from_ms(50);
        let out = apply(&mut replica, now, Event::Tuned(Box::new(tuning)));
        assert!(pauses(&out), "for a syncvm: {out:?}");
    }

    #[test]
    fn all_values_arrive_where_they_are_used() {
        let mut replica = testing::leader(DEFAULT.policy, true);
        let before = replica.cx.config.tuning();
        let after = Tuning {
            hypervisor_timeout: Micros(1),
            slot: SlotConfig {
                idle_threshold: Micros(700),
                slot_min: Micros(3),
                slot_max: Micros(3),
                ..before.slot
            },
            unprotected_output: UnprotectedOutput::Hold,
            warm_bytes_per_s: 5,
            subpages: !before.subpages,
            input_bytes_max: 9,
            ..before
        };
        apply(&mut replica, Micros(2), Event::Tuned(Box::new(after)));
        assert_eq!(replica.cx.config.tuning(), after);
        let status = replica.status();
        assert_eq!(status.idle_threshold, Micros(700));
        assert_eq!(status.slot_longest, Micros(3));
    }
}
