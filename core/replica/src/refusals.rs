//! Replicas that have refused a copy of the guest, or given it up, and when they are asked again.
//!
//! A host whose disk is full refuses until somebody makes room. A leader that goes on asking gains
//! nothing and keeps both busy, so it asks more rarely each time, each replica by itself: another one
//! that could take the copy does not wait for it. One that comes back, or that its link does, is asked
//! at once, since it may have been mended.

use plover_types::{Micros, ReplicaId, ReplicaSet};

/// From the first refusal to the next question; each further one doubles it.
const WAIT_FIRST: Micros = Micros::from_ms(500);

/// At most. The person who has just made room is not to wait much longer than that.
const WAIT_LAST: Micros = Micros::from_ms(8_000);

#[derive(Debug)]
struct Refusal {
    peer: ReplicaId,
    until: Micros,
    /// What `until` was counted from.
    wait: Micros,
}

/// Who has refused, as one leader has seen it.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Vec<Refusal>);

impl Refusals {
    /// `peer` has refused.
    pub fn add(&mut self, peer: ReplicaId, now: Micros) {
        let before = self.0.iter().position(|refusal| refusal.peer == peer);
        let wait = match before.map(|at| self.0.swap_remove(at)) {
            Some(refusal) => Micros(refusal.wait.0 * 2).min(WAIT_LAST),
            None => WAIT_FIRST,
        };
        let until = now + wait;
        self.0.push(Refusal { peer, until, wait });
    }

    /// It is another one now, or has taken a copy.
    pub fn forget(&mut self, peer: ReplicaId) {
        self.0.retain(|refusal| refusal.peer != peer);
    }

    /// Those who are not asked yet.
    pub fn waiting(&self, now: Micros) -> ReplicaSet {
        let waits = |refusal: &&Refusal| refusal.until > now;
        ReplicaSet::of(self.0.iter().filter(waits).map(|refusal| refusal.peer))
    }

    /// When the next one is asked again.
    pub fn deadline(&self, now: Micros) -> Micros {
        let later = self.0.iter().map(|refusal| refusal.until);
        later
            .filter(|until| *until > now)
            .min()
            .unwrap_or(Micros::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_one_waits_longer_after_each_refusal() {
        let (broken, other) = (ReplicaId(1), ReplicaId(2));
        let (mut refusals, mut now) = (Refusals::default(), Micros(7));
        let mut waits = Vec::new();
        for _ in 0..6 {
            refusals.add(broken, now);
            assert_eq!(refusals.waiting(now), ReplicaSet::of([broken]));
            let until = refusals.deadline(now);
            waits.push(until.since(now).0 / 1000);
            assert_eq!(refusals.waiting(until), ReplicaSet::default());
            now = until;
        }
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 8000]);
        refusals.add(other, now);
        assert_eq!(refusals.deadline(now).since(now), WAIT_FIRST);
        refusals.forget(broken);
        refusals.add(broken, now);
        let both = ReplicaSet::of([broken, other]);
        assert_eq!(refusals.waiting(now), both, "both from the beginning");
        assert_eq!(refusals.waiting(now + WAIT_FIRST), ReplicaSet::default());
        assert_eq!(refusals.deadline(now + WAIT_FIRST), Micros::NEVER);
    }
}
