//! Faults that strike alone and last: one at a time, each for longer than the group may take to serve again.
//!
//! Elsewhere faults are short and come together, so the clients may wait for the end of a fault. Here the
//! group has to get along with it.

use crate::faults::{Fault, Kind, Victim};
use crate::hypervisor::Hypervisor;
use crate::schedule::Happening;
use crate::streams::Stream;
use crate::world::World;
use plover_types::{Micros, ReplicaId};

/// The part of the seeds whose faults strike alone.
const CHANCE: f64 = 0.08;

/// The clients are answered again within this time of `fault`.
pub(crate) fn served_within(fault: Fault) -> Micros {
    Micros::from_ms(match fault {
        // Every sync waits for the secondary's disk, here 40 times slower, and an answer for up to two syncs.
        Fault::SlowDisk(_) => 8000,
        _ => 4000,
    })
}

/// For how long faults come.
pub(crate) const SPAN: Micros = Micros(20_000_000);

/// The faults that the group has to get along with.
const KINDS: [Kind; 13] = [
    Kind::Crash,
    Kind::Wipe,
    Kind::Stop,
    Kind::KillGuest,
    Kind::HangGuest,
    Kind::LoseTap,
    Kind::LoseTap,
    Kind::Cut,
    Kind::CutOneWay,
    Kind::Isolate,
    Kind::Slow,
    Kind::SlowDisk,
    Kind::HangDisk,
];

/// Whether the faults of a seed strike alone.
pub(crate) fn is_of(seed: u64) -> bool {
    Stream::Alone.of(seed).chance(CHANCE)
}

impl World {
    /// The next fault strikes a group that is whole.
    pub(crate) fn next_fault_alone(&mut self) {
        let rng = &mut self.chance.faults;
        let kind = rng.pick(&KINDS);
        let victim = rng.pick(&[
            Victim::Leader,
            Victim::Leader,
            Victim::Secondary,
            Victim::Anyone,
        ]);
        let anyone = rng.pick(&self.scenario.members);
        let fault = self.aim_at(kind, victim, anyone);
        let (within, rest) = (served_within(fault), Micros(1_000_000));
        self.expect_blame(fault);
        self.strike(fault, Some(within + rest));
        self.plan.after(within + rest + rest, Happening::Next);
        let half = Micros(within.0 / 2);
        self.plan.after(half, Happening::CountReplies(half));
    }

    /// If a secondary's hypervisor is about to stand still, the leader must soon go on without it: all that its clients
    /// get waits for the secondary.
    fn expect_blame(&mut self, fault: Fault) {
        let (Fault::HangGuest(secondary), Some(leader)) = (fault, self.leader()) else {
            return;
        };
        let is_pair = self.scenario.members.len() == 2;
        let hypervisor = self.process(secondary).hypervisor.as_ref();
        // Nothing is asked of a guest that rests, and a pair suspects nobody (docs/decisions/0018).
        if is_pair || secondary == leader || !hypervisor.is_some_and(Hypervisor::is_running) {
            return;
        }
        // A probe is out within a quarter of the timeout, its answer is late one timeout later, and the leader is told
        // then. A leader that is told nothing waits longer: for ten timeouts of a link.
        let timeout = self.scenario.hypervisor_timeout();
        let happening = Happening::LookForHung { secondary, leader };
        self.plan.after(Micros(timeout.0 * 9 / 4), happening);
    }

    /// A secondary's hypervisor has stood still for a while, with nothing else at fault.
    pub(crate) fn look_for_hung(&mut self, secondary: ReplicaId, leader: ReplicaId) {
        if self.healed_at.is_some() || self.leader() != Some(leader) {
            return;
        }
        let hypervisor = self.process(secondary).hypervisor.as_ref();
        // Or it has joined again, with a new one.
        let hangs = hypervisor.is_some_and(Hypervisor::is_frozen);
        if hangs && self.invariants.log.in_sync().contains(secondary) {
            let check = self.invariants.one_fault.unblamed(secondary);
            return self.check(check);
        }
        self.coverage
            .hit("alone: a secondary that hangs is dropped");
    }

    /// Some time of a fault has passed; the clients must be answered in the `rest`.
    pub(crate) fn count_replies(&mut self, rest: Micros) {
        if self.healed_at.is_some() {
            return;
        }
        if rest > Micros::ZERO {
            self.replies_before = self.clients.replies;
            return self.plan.after(rest, Happening::CountReplies(Micros::ZERO));
        }
        if self.clients.replies > self.replies_before {
            self.coverage.hit("alone: the clients are answered again");
        } else {
            let check = self.invariants.one_fault.unanswered();
            self.check(check);
        }
    }
}
