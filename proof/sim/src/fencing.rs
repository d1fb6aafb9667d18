//! Pairs with fencing (docs/decisions/0079): something outside of the group sees which processes run no more and says so,
//! and ends one of two that have lost each other.
//!
//! Its reports come at once or late, and sometimes never or twice; also after the process has been started again. It
//! looks again and again.

use crate::process::State;
use crate::rng::Rng;
use crate::schedule::Happening;
use crate::streams::Stream;
use crate::trace::trace;
use crate::world::World;
use plover_replica::{Event, Role};
use plover_types::{Micros, ReplicaId};

/// Between two looks.
const LOOKS_EVERY: (u64, u64) = (50_000, 600_000);

/// The random decisions about fencing.
pub(crate) fn stream(seed: u64) -> Rng {
    Stream::Fencing.of(seed)
}

impl World {
    /// Looks at both of a pair.
    pub(crate) fn fence(&mut self) {
        let next = self.chance.fencing.micros(LOOKS_EVERY);
        self.plan.after(next, Happening::Fence);
        self.fence_one();
        for peer in self.scenario.members.clone() {
            if self.process(peer).state == State::Down {
                self.say_that_it_is_off(peer);
            }
        }
    }

    /// One of two that do not reach each other is ended, or one that stands still.
    fn fence_one(&mut self) {
        let stands = |who: &&ReplicaId| self.process(**who).state == State::Stopped;
        let members = &self.scenario.members;
        let lost_each_other = self.net.has_cut() && members.iter().all(|who| self.runs(*who));
        let stopped = members.iter().find(stands).copied();
        if self.healed_at.is_some() || !(stopped.is_some() || lost_each_other) {
            return;
        }
        let rng = &mut self.chance.fencing;
        if !rng.chance(0.3) {
            return;
        }
        let anyone = rng.pick(members);
        let victim = stopped.unwrap_or(anyone);
        let away = rng.micros((5_000, 1_500_000));
        trace!(self, "{victim} is fenced");
        self.coverage.hit(match stopped {
            Some(_) => "fencing: one that stands still is ended",
            None => "fencing: one of two that have lost each other is ended",
        });
        self.ended_by_operator(victim);
        self.plan.after(away, Happening::Restart(victim));
    }

    fn runs(&self, who: ReplicaId) -> bool {
        self.process(who).state == State::Up
    }

    fn say_that_it_is_off(&mut self, peer: ReplicaId) {
        let now = self.plan.now();
        for who in self.others(peer) {
            let process = self.process(who);
            let (number, seen_at) = (process.number, process.clock.local(now));
            let rng = &mut self.chance.fencing;
            for _ in 0..rng.pick(&[0, 1, 1, 2]) {
                let span = rng.pick(&[(100, 3_000), (100, 3_000), (5_000, 2_000_000)]);
                let said = Happening::SaidOff {
                    who,
                    number,
                    peer,
                    seen_at,
                };
                self.plan.after(rng.micros(span), said);
            }
        }
    }

    /// A report arrives, if the process that it was sent to still runs.
    pub(crate) fn said_off(
        &mut self,
        who: ReplicaId,
        number: u64,
        peer: ReplicaId,
        seen_at: Micros,
    ) {
        let process = self.process(who);
        if process.state == State::Down || process.number != number {
            return;
        }
        let role = process.replica.as_deref().map(|it| it.status().role);
        if self.process(peer).state == State::Up {
            self.coverage.hit("fencing: old news");
        } else if role == Some(Role::Leader) {
            self.coverage
                .hit("fencing: the leader hears that its backup is off");
        }
        self.tell(who, Event::PeerOff { peer, seen_at });
    }
}
