//! Hosts report processes that have died on them (`apus`, `death`).
//!
//! A report comes at once or late, and sometimes never or twice; also after the replica has started
//! again, and leads again.

use crate::process::State;
use crate::rng::Rng;
use crate::schedule::Happening;
use crate::streams::Stream;
use crate::world::World;
use plover_replica::{Event, Role};
use plover_types::{Incarnation, ReplicaId};

/// The random decisions about reports.
pub(crate) fn stream(seed: u64) -> Rng {
    Stream::Deaths.of(seed)
}

impl World {
    /// The process of `who` is reported dead to all others.
    pub(crate) fn report_death(&mut self, who: ReplicaId) {
        let dead = Incarnation {
            replica: who,
            number: self.process(who).number,
        };
        for peer in self.others(who) {
            let rng = &mut self.chance.deaths;
            for _ in 0..rng.pick(&[0, 1, 1, 1, 1, 2]) {
                let at_once = (100, 3_000);
                let span = rng.pick(&[at_once, at_once, (5_000, 2_000_000)]);
                let report = Happening::DeathReported(peer, dead);
                self.plan.after(rng.micros(span), report);
            }
        }
    }

    /// A report arrives.
    pub(crate) fn death_reported(&mut self, who: ReplicaId, dead: Incarnation) {
        let subject = self.process(dead.replica);
        if subject.state != State::Down && subject.number != dead.number {
            self.coverage.hit("death: a report of an older process");
        }
        if self.process(who).state == State::Down {
            return;
        }
        if let Some(replica) = &self.process(who).replica {
            let leader = replica.consensus_core().status().leader;
            let leads = replica.status().role == Role::Leader;
            if leader == Some(dead.replica) {
                self.coverage.hit("death: a report of the leader");
            } else if leads {
                self.coverage.hit("death: a report to the leader");
            }
        }
        self.tell(who, Event::ProcessDied(dead));
    }
}
