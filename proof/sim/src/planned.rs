//! Planned work: an operator who moves the lead, and clears hosts of their roles, in the middle of everything.
//!
//! Now and then a fault strikes while the roles move. If none does, and none has struck since the group was
//! whole, the guest must be protected all the time ([`crate::invariants::planned_work`]).

use crate::faults::AfterOrder;
use crate::invariants::planned_work;
use crate::rng::Rng;
use crate::schedule::Happening;
use crate::streams::Stream;
use crate::trace::trace;
use crate::world::World;
use plover_replica::{Event, Role};
use plover_types::{ReplicaId, ReplicaSet};

/// The part of the seeds in which an operator works on hosts.
const CHANCE: f64 = 0.35;

/// The operator's work.
#[derive(Debug)]
pub(crate) struct Planned {
    rng: Rng,
    comes: bool,
    /// The time between two pieces of work.
    gap: (u64, u64),
    /// How often a fault follows.
    fault_after: f64,
    drained: ReplicaSet,
    /// A leader has handed over, and no leader has served since.
    moves: bool,
}

impl Planned {
    /// The work of a seed.
    pub fn draw(seed: u64, has_witness: bool) -> Self {
        let mut rng = Stream::Planned.of(seed);
        Self {
            comes: has_witness && rng.chance(CHANCE),
            gap: rng.pick(&[
                (50_000, 400_000),
                (300_000, 1_500_000),
                (1_000_000, 4_000_000),
            ]),
            fault_after: rng.pick(&[0.0, 0.1, 0.4]),
            drained: ReplicaSet::EMPTY,
            moves: false,
            rng,
        }
    }

    /// Whether there is any.
    pub fn comes(&self) -> bool {
        self.comes
    }

    /// Whether a replica's host is drained: this outlives its process.
    pub fn is_drained(&self, who: ReplicaId) -> bool {
        self.drained.contains(who)
    }
}

impl World {
    /// The next piece of work.
    pub(crate) fn plan_work(&mut self) {
        if self.healed_at.is_some() {
            return;
        }
        if self.is_calm() {
            self.invariants.one_fault.is_whole();
        }
        let gap = self.planned.rng.micros(self.planned.gap);
        self.plan.after(gap, Happening::Plan);
        if self.planned.rng.chance(0.6) {
            self.switch_over();
        } else {
            self.drain_one();
        }
        if self.planned.rng.chance(self.planned.fault_after) {
            let next = AfterOrder::draw(&mut self.planned.rng, &self.scenario.members);
            self.strike_after_order(next);
        }
    }

    fn switch_over(&mut self) {
        let members = self.scenario.members.clone();
        let named = self.planned.rng.pick(&members);
        let to = self.planned.rng.chance(0.2).then_some(named);
        if let Some(leader) = self.leader() {
            trace!(self, "OPERATOR switches {leader} over to {to:?}");
            let replica = self.process(leader).replica.as_deref();
            let refused = replica.and_then(|replica| replica.why_not_switch_over(to));
            self.coverage.hit(match refused {
                Some(_) => "planned: a switchover is refused",
                None => "planned: a switchover",
            });
            self.tell(leader, Event::SwitchOver { to });
        }
    }

    fn drain_one(&mut self) {
        let leader = self.leader();
        let members = self.scenario.members.clone();
        let anyone = self.planned.rng.pick(&members);
        let secondary = self
            .running()
            .find(|(_, replica)| replica.status().role == Role::Secondary)
            .map(|(who, _)| who);
        let who = self.planned.rng.pick(&[leader, secondary, Some(anyone)]);
        let Some(who) = who else { return };
        trace!(self, "OPERATOR drains {who}");
        self.coverage.hit("planned: a drain");
        self.planned.drained.insert(who);
        if self.planned.drained.len() > 1 {
            self.coverage.hit("planned: several hosts are drained");
        }
        self.tell(who, Event::Drain(true));
        let work = self.planned.rng.micros((100_000, 3_000_000));
        self.plan.after(work, Happening::Undrain(who));
    }

    pub(crate) fn undrain(&mut self, who: ReplicaId) {
        if self.planned.drained.contains(who) {
            self.planned.drained.remove(who);
            self.tell(who, Event::Drain(false));
        }
    }

    /// From now on no operator works on the hosts.
    pub(crate) fn end_planned_work(&mut self) {
        for who in self.scenario.members.clone() {
            self.undrain(who);
        }
    }

    /// A leader hands over.
    pub(crate) fn hands_over(&mut self, who: ReplicaId) {
        self.coverage.hit("planned: a leader hands over");
        if self.planned.is_drained(who) {
            self.coverage.hit("planned: a drained leader hands over");
        }
        self.planned.moves = true;
        if self.scenario.takes_checkpoints() {
            // The guest is copied anew (`plover_replica`, `planned`).
            self.invariants.one_fault.is_given_up();
        }
    }

    /// A replica has heard of a new in-sync set.
    pub(crate) fn changes_in_sync(&mut self, who: ReplicaId, set: ReplicaSet) {
        let Some(replica) = self.process(who).replica.as_deref() else {
            return;
        };
        if replica.status().role != Role::Leader || self.healed_at.is_some() {
            return;
        }
        let moves = std::mem::take(&mut self.planned.moves);
        if set.len() > 1 && moves {
            self.coverage
                .hit("planned: the lead moves, and the guest stays protected");
        }
        if !(self.planned.comes || self.replacing.comes()) || self.scenario.takes_checkpoints() {
            return;
        }
        // A timeout may pass where the network or a disk is at its slowest, without any fault.
        let is_fast = self.scenario.store.1 <= 300
            && self.scenario.net.delay.1 <= 400
            && self.scenario.net.harsh == 0.0;
        if is_fast && self.invariants.one_fault.is_undisturbed() {
            let check = planned_work::check(who, set);
            self.check(check);
        }
    }
}
