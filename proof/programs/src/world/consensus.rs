//! Consensus, by its promises: an agreed log of which a suffix may be lost with its leader.

use super::{Host, World};
use plover_program::Replica;
use plover_types::{Index, ReplicaId, View, Viewstamp};

impl World {
    pub(super) fn quorum(&self) -> usize {
        self.hosts.len() / 2 + 1
    }

    pub(super) fn up(&self) -> usize {
        self.hosts.iter().filter(|it| it.brain.is_some()).count()
    }

    pub(super) fn consensus(&mut self) {
        if self.up() < self.quorum() {
            return;
        }
        if self.leader.is_none() {
            self.elect();
        }
        let Some((leader, _)) = self.leader else {
            return;
        };
        let more = self.rng.range(0, 12) as usize;
        while self.committed < self.log.len().min(self.committed + more) {
            let (at, bytes) = &self.log[self.committed];
            self.reference.execute(*at, bytes.as_deref());
            self.committed += 1;
            if self.rng.chance(0.3) {
                break;
            }
        }
        let base = self.hosts[leader].base;
        for place in 0..self.hosts.len() {
            if place == leader || self.rng.chance(0.7) {
                let host = &mut self.hosts[place];
                host.commit = Index(self.committed as u64);
                host.base = host.base.max(base);
                host.knows = true;
            }
        }
    }

    pub(super) fn elect(&mut self) {
        let may = |host: &Host| host.brain.as_ref().is_some_and(Replica::may_lead);
        let able: Vec<usize> = (0..self.hosts.len())
            .filter(|it| may(&self.hosts[*it]))
            .collect();
        if able.is_empty() {
            return;
        }
        let next = self.rng.pick(&able);
        self.round += 1;
        let view = View::new(self.round, ReplicaId(next as u8));
        let kept = self.rng.range(self.committed as u64, self.log.len() as u64) as usize;
        if kept < self.log.len() {
            self.coverage.hit("log: entries lost with their leader");
            self.log.truncate(kept);
        }
        self.leader = Some((next, view));
        trace!(self, "r{next} leads {view}");
        self.append(None);
        let base = self
            .hosts
            .iter()
            .map(|it| it.base)
            .max()
            .unwrap_or_default();
        self.hosts[next].base = base;
        self.hosts[next].commit = Index(self.committed as u64);
    }

    pub(super) fn append(&mut self, bytes: Option<Vec<u8>>) -> Option<Viewstamp> {
        let (_, view) = self.leader?;
        let index = Index(self.log.len() as u64 + 1);
        let at = Viewstamp { view, index };
        self.log.push((at, bytes));
        self.longest = self.longest.max(index.0);
        Some(at)
    }

    /// Bytes that the leader's log holds.
    pub(super) fn log_bytes(&self) -> u64 {
        let base = self.leader.map_or(0, |(it, _)| self.hosts[it].base.0);
        let held = self.log.iter().skip(base as usize);
        held.flat_map(|(_, bytes)| bytes)
            .map(|it| it.len() as u64)
            .sum()
    }

    pub(super) fn at(&self, index: Index) -> Option<Viewstamp> {
        let place = index.0.checked_sub(1)?;
        self.log.get(place as usize).map(|(at, _)| *at)
    }
}
