//! Observes a core from outside, by comparing its status before and after a turn.
//!
//! The changes are counted for coverage, and faults are injected at some of them.

use super::faults::Moment;
use super::scenario::TIMEOUT;
use super::world::World;
use apus::{Phase, Status};
use plover_sim::trace::trace;
use plover_types::Viewstamp;

impl World {
    /// A core has had its turn. It stood at `before`, and now `tail` is where its log ended.
    pub(super) fn observe(&mut self, host: usize, before: &Status, tail: Option<Viewstamp>) {
        let Some(after) = self.status(host) else {
            return;
        };
        let cut = before.last.index > after.base && tail != Some(before.last);
        if cut && after.base == before.base {
            trace!(self, "r{host} truncates: {} to {}", before.last, after.last);
            self.coverage.hit("log: a suffix was truncated");
            if before.members != after.members {
                self.coverage.hit("members: a change was truncated");
            }
            if before.in_sync != after.in_sync {
                self.coverage.hit("guest: an in-sync set was truncated");
            }
            self.moment(Moment::Truncated, host);
        }
        if after.base > before.commit {
            self.moment(Moment::Installed, host);
        }
        if before.suspected_after == TIMEOUT && after.suspected_after < TIMEOUT {
            self.coverage
                .hit("leader: may be silent for less than the timeout");
        }
        if before.phase != after.phase {
            self.observe_phase(host, before, &after);
        }
    }

    fn observe_phase(&mut self, host: usize, before: &Status, after: &Status) {
        trace!(
            self,
            "r{host} {:?} -> {:?} in {}", before.phase, after.phase, after.view
        );
        let what = match (before.phase, after.phase) {
            (Phase::Following, Phase::PreVoting) => "election: pre-vote",
            (Phase::PreVoting, Phase::Following) if after.leader.is_some() => {
                "election: a pre-vote found that a leader lives"
            }
            (Phase::Electing, Phase::Following) if after.view > before.view => {
                "election: lost to a higher view"
            }
            (Phase::Electing, Phase::Following) if after.last != before.last => {
                "election: won and stood down after a merge"
            }
            (Phase::Electing, Phase::Following) => "election: given up or stood down",
            (Phase::Leading, Phase::Following) if after.last == before.last => {
                "leader: stepped down"
            }
            (Phase::Leading, Phase::Following) => "leader: deposed by a newer view's log",
            (Phase::Recovering, Phase::Following) => "recovery: a replica recovered its log",
            _ => "",
        };
        if !what.is_empty() {
            self.coverage.hit(what);
        }
        if after.phase == Phase::Electing {
            self.note_election();
            self.moment(Moment::Electing, host);
        }
        self.hosts[host].disk.is_new &= after.phase == Phase::Recovering;
        if (before.phase, after.phase) == (Phase::Recovering, Phase::Following) {
            if std::mem::take(&mut self.hosts[host].saw_election) {
                self.coverage.hit("recovery: during a view change");
            }
            self.moment(Moment::Recovered, host);
        }
    }

    /// An election begins: a replica that recovers at this time does so during a view change.
    fn note_election(&mut self) {
        for host in 0..self.hosts.len() {
            let phase = self.status(host).map(|status| status.phase);
            if phase == Some(Phase::Recovering) {
                self.hosts[host].saw_election = true;
            }
        }
    }

    /// `host` won an election at the end of a turn before which it stood at `before`.
    pub(super) fn observe_election(&mut self, host: usize, before: &Status) {
        self.coverage.hit("election: won");
        let Some(after) = self.status(host) else {
            return;
        };
        // The last entry is its own no-op.
        if after.last.index.0 > after.commit.0 + 1 {
            self.coverage.hit("election: won with an uncommitted tail");
        }
        if before.last.view > before.view {
            self.coverage.hit("election: won with a later log");
        }
        let merged = after.last.index.0 > before.last.index.0 + 1;
        if merged {
            self.coverage.hit("election: won by merging a better log");
        }
        if self.change_is_pending() {
            self.coverage
                .hit("members: a view began with a change pending");
        }
        let recovering = self
            .up()
            .any(|(_, core)| core.status().phase == Phase::Recovering);
        if recovering {
            self.coverage.hit("election: won while another recovers");
        }
        self.moment(Moment::Elected, host);
    }
}
