//! The callers of consensus: clients that propose, the trimming of the log, and in groups with a
//! guest the in-sync set.

use super::invariants::acknowledged_survive::Acknowledged;
use super::schedule::Happening;
use super::world::World;
use apus::{EntryKind, Phase, ProposeError};
use plover_sim::trace::trace;
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, View};

impl World {
    /// Gives proposals to every replica that believes that it leads. Deposed leaders that do not know it
    /// yet are the most important to test.
    pub(super) fn work(&mut self) {
        for host in 0..self.hosts.len() {
            let leads = self.status(host).is_some_and(|s| s.phase == Phase::Leading);
            if !leads || self.hosts[host].paused_until > self.plan.now() {
                continue;
            }
            for _ in 0..self.work.range(0, 5) {
                self.propose(host);
            }
            if self.work.often(self.scenario.trims) {
                self.trim(host);
            }
        }
        if !self.done {
            let gap = self.work.micros(self.scenario.work_gap);
            self.plan.after(gap, Happening::Work);
        }
    }

    /// A client's proposal on `host`; its name.
    pub(super) fn propose(&mut self, host: usize) -> Option<u64> {
        let name = self.invariants.acknowledged.propose();
        let mut payload = vec![0; self.work.range(8, 300) as usize];
        payload[..8].copy_from_slice(&name.to_le_bytes());
        debug_assert_eq!(Acknowledged::name_of(&payload), Some(name));
        match self.propose_kind(host, EntryKind::App, payload) {
            Some(Ok(())) => Some(name),
            Some(Err(ProposeError::LogFull)) => {
                self.coverage.hit("leader: its log was full");
                self.trim(host);
                None
            }
            _ => None,
        }
    }

    pub(super) fn propose_kind(
        &mut self,
        host: usize,
        kind: EntryKind,
        payload: Vec<u8>,
    ) -> Option<Result<(), ProposeError>> {
        self.turn(host, |core, now, out| {
            let proposed = core.propose(now, kind, payload).map(|_| ());
            core.flush(now, out);
            proposed
        })
    }

    /// Trims to what the guests have consumed. Without a guest, trims to the commit index: replicas
    /// that still lack entries install a snapshot.
    fn trim(&mut self, host: usize) {
        let Some(status) = self.status(host) else {
            return;
        };
        let mut index = status.commit;
        if self.scenario.guest {
            // Its log may name a set that is lost again, so the committed one counts as well.
            let set = ReplicaSet(status.in_sync.0 | self.hosts[host].in_sync.0);
            let covered = set.iter().map(|id| self.hosts[usize::from(id.0)].cursor);
            index = covered.min().unwrap_or(Index(0));
        }
        self.turn(host, |core, _, _| core.trim(index));
    }

    pub(super) fn hold_guest(&mut self, host: usize, holds: bool) {
        if let Some(core) = &mut self.hosts[host].core {
            core.set_holds_state(holds);
            self.hosts[host].holds_guest = holds;
        }
    }

    /// The leader reports a peer's liveness: a dead one leaves the in-sync set, a live one may join
    /// it.
    pub(super) fn peer_alive(&mut self, leader: usize, peer: ReplicaId, alive: bool) {
        trace!(
            self,
            "r{leader} takes {peer} for {}",
            if alive { "alive" } else { "dead" }
        );
        self.hosts[leader].alive.insert(peer, alive);
        if !self.scenario.guest {
            return;
        }
        let Some(status) = self.status(leader) else {
            return;
        };
        let mut set = status.in_sync;
        if !alive && set.contains(peer) {
            set.remove(peer);
            self.propose_kind(leader, EntryKind::InSync(set), Vec::new());
        }
        self.bring_up(leader);
    }

    /// Starts to copy the guest to a live voter, if no other replica has it.
    pub(super) fn bring_up(&mut self, leader: usize) {
        let Some(status) = self.status(leader) else {
            return;
        };
        let voters = status.members.voters;
        let alive = self.hosts[leader].alive.iter();
        let mut alive = alive.filter(|(peer, alive)| **alive && voters.contains(**peer));
        let peer = alive.next().map(|(peer, _)| usize::from(peer.0));
        if let (1, Some(peer)) = (status.in_sync.len(), peer) {
            let copied = Happening::Copied {
                leader,
                view: status.view,
                peer,
                process: self.hosts[peer].process,
            };
            self.plan.after(Micros::from_ms(30), copied);
        }
    }

    /// The copy has arrived: the leader proposes an in-sync set with the peer.
    pub(super) fn copied(&mut self, leader: usize, view: View, peer: usize, process: u64) {
        let Some(status) = self.status(leader) else {
            return;
        };
        let in_sync = status.in_sync;
        if status.phase != Phase::Leading || status.view != view || in_sync.len() > 1 {
            return;
        }
        let ready = self.status(peer).is_some_and(|own| {
            // The copied guest is of use only with the log that continues from there.
            let recovered = own.phase != Phase::Recovering;
            let follows = recovered && own.view == view && own.commit >= status.base;
            self.hosts[peer].process == process && follows
        });
        let (me, other) = (ReplicaId(leader as u8), ReplicaId(peer as u8));
        let voters = status.members.voters;
        if !ready || !voters.contains(other) || !voters.contains(me) {
            return self.bring_up(leader);
        }
        self.hold_guest(peer, true);
        self.coverage.hit("guest: copied to another");
        let set = ReplicaSet::of([me, other]);
        self.propose_kind(leader, EntryKind::InSync(set), Vec::new());
    }
}
