//! Groups of two, where one goes on without the other's vote (docs/decisions/0018).
//!
//! While links hold, every invariant is checked. Where links fail, both may lead: from the moment at
//! which one takes over, the invariants that a split brain breaks are not checked until a new guest
//! is booted. The others must hold all the same: views are led once, memories are equal after a
//! sync, no replica panics or spins, and after healing one leader serves a protected guest.

use crate::faults::Fault;
use crate::process::State;
use crate::trace::trace;
use crate::world::World;
use plover_types::{Index, Micros, ReplicaId, View};

/// The invariants that compare what two replicas have told the world, or their logs.
pub(crate) const BROKEN_BY_A_SPLIT: [&str; 9] = [
    "committed_not_lost",
    "debt_never_forgotten",
    "disks_survive",
    "external_consistency",
    "inputs_in_order",
    "logs_agree",
    "one_sender_a_slot",
    "operators_are_told",
    "streams_go_on",
];

/// The least time between two stops in a group whose links hold: enough for a heartbeat and its
/// answer. A backup that is stopped right after its leader cannot tell that leader from a dead one.
const CALM: Micros = Micros(200_000);

impl World {
    /// Whether a fault is one that this group promises to survive.
    pub(crate) fn may_strike(&self, fault: Fault) -> bool {
        if !self.scenario.faults.links_hold {
            return true;
        }
        let stands = |who: &ReplicaId| self.process(*who).state == State::Stopped;
        let calm = self.plan.now().since(self.stopped_at) > CALM
            && !self.scenario.members.iter().any(stands);
        let is_stop = matches!(fault, Fault::Stop(..));
        !fault.is_of_links() && (!is_stop || calm)
    }

    /// Whether the newest generation of `who`'s log continues the log of the one before.
    pub(crate) fn goes_on(&self, who: ReplicaId) -> bool {
        let Some(replica) = self.process(who).replica.as_deref() else {
            return false;
        };
        let consensus = replica.consensus_core();
        let base = consensus.status().base;
        let first = consensus.entry(base.next());
        base > Index(0) || first.is_some_and(|entry| entry.viewstamp.view < consensus.generation())
    }

    /// One of two leads without the other's vote.
    pub(crate) fn begin_alone(&mut self, who: ReplicaId, generation: View) {
        trace!(self, "{who} goes on alone, as generation {generation}");
        self.generation = generation;
        self.coverage.hit("pair: one took over alone");
        if self.links_failed && !self.is_split && !self.scenario.is_fenced() {
            self.is_split = true;
            self.coverage.hit("pair: took over after links failed");
        }
    }
}
