//! After the last fault, the group has to recover, by itself or after an operator's bootstrap.

use crate::invariants::progress_after_healing::{HEALING_MAX, Outlook};
use crate::process::{Process, State};
use crate::schedule::Happening;
use crate::trace::trace;
use crate::world::World;
use plover_replica::{Event, Role};
use plover_types::{Micros, ReplicaId};

/// Between two looks at the healing group.
pub(crate) const LOOK_EVERY: Micros = Micros(50_000);

/// Between two looks of an operator who is there all the time.
const OPERATOR_LOOKS_EVERY: Micros = Micros(150_000);

/// How long the operator watches a group without service before acting.
const OPERATOR_WAITS: Micros = Micros(3_000_000);

impl World {
    /// Whether all processes run, nobody waits for a copy that does not come or runs a guest that counts for nothing,
    /// and a leader serves with a guest that each member of the in-sync set really holds.
    pub(crate) fn is_whole(&self) -> bool {
        let group = self.group();
        let members = group.members.all();
        let up = members
            .iter()
            .all(|who| self.process(who).state == State::Up);
        let changes = group.change.is_some();
        let protected = self.running().any(|(who, replica)| {
            let status = replica.status();
            let held = |member: ReplicaId| {
                let process = self.process(member);
                let holds = process
                    .replica
                    .as_ref()
                    .is_some_and(|r| r.status().holds_state);
                process.has_guest() && holds
            };
            status.protected
                && status.serving
                && status.in_sync.contains(who)
                && status.in_sync.iter().all(held)
        });
        let joins = self
            .running()
            .any(|(_, r)| r.status().role == Role::Joining);
        let strays = self.running().any(|(who, replica)| {
            let status = replica.status();
            status.role == Role::Secondary && !status.in_sync.contains(who)
        });
        let together = self.speaks_together();
        up && together && protected && !changes && !joins && !strays
    }

    /// Whether it is whole and nothing is left of a fault. A disk that was slow has done what it was given then: until that
    /// its replica may be silent for longer than others wait.
    pub(crate) fn is_calm(&self) -> bool {
        let now = self.plan.now();
        let is_done = |process: &Process| process.disk_slow_until <= now;
        self.active_faults == 0 && self.processes.iter().all(is_done) && self.is_whole()
    }

    /// Every fault ends.
    pub(crate) fn heal(&mut self) {
        trace!(self, "HEALED");
        let now = self.plan.now();
        self.healed_at = Some(now);
        self.net.heal(&mut self.plan);
        self.clients.stale = false;
        self.clients.count_fresh(now);
        self.let_guests_live();
        self.end_planned_work();
        if self.orders.come() {
            self.plan.after(Micros::ZERO, Happening::Order);
        }
        self.end_replacing();
        self.end_upgrading();
        for who in self.scenario.members.clone() {
            self.process_mut(who).disk_slow = false;
            self.unhang_disk(who);
            self.process_mut(who).has_tap = true;
            self.go_on(who);
            self.unhang_guest(who);
            self.tell(who, Event::Uplink { up: true });
            let late = self.chance.faults.micros((0, 200_000));
            self.plan.after(late, Happening::Restart(who));
        }
        self.plan.after(Micros(1_000_000), Happening::Look);
    }

    /// The operator ends a process, perhaps one of several at once: no single fault.
    pub(crate) fn ended_by_operator(&mut self, who: ReplicaId) {
        self.invariants.one_fault.is_given_up();
        self.vanish(who);
    }

    /// Looks whether the group has recovered. If it cannot by itself, the operator acts.
    pub(crate) fn look(&mut self) {
        let members = self.group().members;
        let processes = &self.processes;
        let all: Vec<_> = members.all().iter().collect();
        let running = all
            .iter()
            .filter_map(|who| Some((*who, processes[usize::from(who.0)].replica.as_deref()?)));
        let voters = members.voters;
        self.invariants
            .progress
            .look(self.generation, voters, running);
        if self.is_whole() && self.is_upgraded() && self.clients.all_are_answered() {
            self.finished = true;
            self.check_operators();
            self.coverage.hit("healed");
            return;
        }
        let since = self.plan.now().since(self.healed_at.unwrap_or_default());
        if since > HEALING_MAX {
            let report = self.report();
            let violation = self.invariants.progress.too_late(&report);
            return self.check(Err(violation));
        }
        if since > OPERATOR_WAITS {
            self.operate();
        }
        self.plan.after(LOOK_EVERY, Happening::Look);
    }

    /// An impatient operator: bootstraps the group whenever it has no leader. The group itself has to
    /// refuse if it is not empty.
    pub(crate) fn watch(&mut self) {
        if self.healed_at.is_some() {
            return;
        }
        if self.leader().is_none() {
            self.speak();
        }
        self.plan.after(OPERATOR_LOOKS_EVERY, Happening::Operator);
    }

    fn speak(&mut self) {
        self.operator_spoke_at = Some(self.plan.now());
        let first = self.scenario.first_leader();
        let voters = self.group().members.voters;
        let lowest = voters.iter().next().unwrap_or(first);
        let first = if voters.contains(first) {
            first
        } else {
            lowest
        };
        self.tell(first, Event::Bootstrap);
    }

    /// The operator acts on a group that cannot serve any more.
    fn operate(&mut self) {
        let outlook = self.invariants.progress.outlook();
        if outlook == Some(Outlook::Alive) {
            return;
        }
        let holders: Vec<_> = self
            .running()
            .filter(|(_, replica)| replica.status().holds_state)
            .map(|(who, _)| who)
            .collect();
        if outlook == Some(Outlook::Stuck) && self.generation_before_operator() {
            self.coverage
                .hit("generation: stuck, the operator restarted the holder");
            for who in holders {
                self.ended_by_operator(who);
                self.plan.after(LOOK_EVERY, Happening::Restart(who));
            }
        } else if holders.is_empty() {
            let silence = self.invariants.progress.silence();
            self.check(silence);
            self.speak();
        }
        self.invariants.progress.operator_spoke();
    }

    /// Whether the operator has not acted yet.
    fn generation_before_operator(&self) -> bool {
        !self.invariants.progress.has_operator_spoken()
    }

    fn report(&self) -> String {
        let lines: Vec<_> = self
            .running()
            .map(|(who, replica)| {
                let status = replica.status();
                let consensus = replica.consensus_core().status();
                format!(
                    "{who} is {:?} ({:?}) in view {}, leader {:?}, in-sync set {}, holds the \
                     state: {}, serves: {}, log {} committed {}",
                    status.role,
                    consensus.phase,
                    status.view,
                    status.leader,
                    status.in_sync,
                    status.holds_state,
                    status.serving,
                    consensus.last,
                    consensus.commit
                )
            })
            .collect();
        format!(
            "{}; fresh replies of each client: {:?}",
            lines.join("; "),
            self.clients.fresh_replies()
        )
    }
}
