//! Hosts report processes that have died on them (`apus`, `death`).
//!
//! A report comes at once or late, and sometimes never or twice; also after the replica has started
//! again, and leads again.

use super::schedule::Happening;
use super::world::World;
use apus::{Event, Phase};
use plover_types::{Incarnation, ReplicaId};

impl World {
    /// The process of `host` is reported dead to all others.
    pub(super) fn report_death(&mut self, host: usize) {
        let dead = Incarnation {
            replica: ReplicaId(host as u8),
            number: self.hosts[host].incarnation,
        };
        for peer in (0..self.hosts.len()).filter(|peer| *peer != host) {
            let times = self.faults.pick(&[0, 1, 1, 1, 1, 2]);
            for _ in 0..times {
                let at_once = (100, 900);
                let span = self.faults.pick(&[at_once, at_once, (5_000, 2_000_000)]);
                let span = self.faults.micros(span);
                let report = Happening::DeathReported { host: peer, dead };
                self.plan.after(span, report);
            }
        }
    }

    /// A report arrives.
    pub(super) fn death_reported(&mut self, host: usize, dead: Incarnation) {
        let Some(before) = self.status(host) else {
            return;
        };
        let subject = &self.hosts[usize::from(dead.replica.0)];
        if subject.core.is_some() && subject.incarnation != dead.number {
            self.coverage.hit("death: a report of an older process");
            if before.leader == Some(dead.replica) {
                self.coverage
                    .hit("death: a report while the replica leads again");
            }
        }
        if before.phase == Phase::Leading {
            self.coverage.hit("death: a report to a leader");
        }
        self.apply(host, Event::ProcessDied(dead));
        let after = self.status(host).and_then(|status| status.leader);
        if before.leader == Some(dead.replica) && after.is_none() {
            self.coverage.hit("death: a leader is suspected at once");
        }
    }
}
