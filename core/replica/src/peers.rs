//! The other replicas of the group, one object each: link, liveness, refusals, and the copy that goes there.

use crate::copy::stream::Stream;
use plover_types::{Incarnation, Micros, ReplicaId, ReplicaSet};

/// From the first refusal of a copy to the next offer; each further one doubles it.
const WAIT_FIRST: Micros = Micros::from_ms(500);

/// The longest wait. An operator who has just made room on a disk waits no longer than that.
const WAIT_LAST: Micros = Micros::from_ms(8_000);

/// Another replica, as this one sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub id: ReplicaId,
    /// The fabric's link to it is up.
    pub is_linked: bool,
    /// It answers this leader.
    pub is_alive: bool,
    /// This leader has taken it for dead, and has not heard it since.
    pub is_dead: bool,
    /// It has not said that it reaches no clients.
    pub reaches_clients: bool,
    /// It has said that an operator has drained its host.
    pub is_drained: bool,
    /// The process of it whose death was reported last.
    pub died: Option<Incarnation>,
    /// It has refused a copy of the guest, or given one up.
    refusal: Option<Refusal>,
    /// The copy that this replica is the source of. Only one peer has one.
    copy: Option<Stream>,
}

impl Peer {
    fn new(id: ReplicaId) -> Self {
        Self {
            id,
            is_linked: false,
            is_alive: false,
            is_dead: false,
            reaches_clients: true,
            is_drained: false,
            died: None,
            refusal: None,
            copy: None,
        }
    }
}

/// When a peer that has refused a copy is offered one again. A host whose disk is full refuses until
/// somebody makes room; offering more rarely each time keeps both sides free for other work.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    until: Micros,
    /// The length of the wait that ends at `until`.
    wait: Micros,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Peers(Vec<Peer>);

impl Peers {
    pub fn new(ids: impl Iterator<Item = ReplicaId>) -> Self {
        Self(ids.map(Peer::new).collect())
    }

    /// These are the peers from now on; what is known of those that stay is kept.
    pub fn become_of(&mut self, ids: impl Iterator<Item = ReplicaId>) {
        let mut before = std::mem::take(&mut self.0);
        for id in ids {
            let known = before.iter().position(|peer| peer.id == id);
            let peer = known.map(|at| before.swap_remove(at));
            self.0.push(peer.unwrap_or_else(|| Peer::new(id)));
        }
    }

    /// A peer by its id; `None` for an id outside the group.
    pub fn get_mut(&mut self, id: ReplicaId) -> Option<&mut Peer> {
        self.0.iter_mut().find(|peer| peer.id == id)
    }

    /// Whether a peer is linked and alive.
    pub fn answers(&self, id: ReplicaId) -> bool {
        let mut peers = self.0.iter();
        peers.any(|peer| peer.id == id && peer.is_linked && peer.is_alive)
    }

    /// The peers that this leader has taken for dead.
    pub fn dead(&self) -> ReplicaSet {
        let dead = self.0.iter().filter(|peer| peer.is_dead);
        ReplicaSet::of(dead.map(|peer| peer.id))
    }

    pub fn is_linked(&self, id: ReplicaId) -> bool {
        self.0.iter().any(|peer| peer.id == id && peer.is_linked)
    }

    pub fn reaches_clients(&self, id: ReplicaId) -> bool {
        self.0
            .iter()
            .any(|peer| peer.id == id && peer.reaches_clients)
    }

    pub fn is_drained(&self, id: ReplicaId) -> bool {
        self.0.iter().any(|peer| peer.id == id && peer.is_drained)
    }

    /// The peers whose hosts are drained.
    pub fn drained(&self) -> ReplicaSet {
        let drained = self.0.iter().filter(|peer| peer.is_drained);
        ReplicaSet::of(drained.map(|peer| peer.id))
    }

    /// A new leader's view: forgets which peers answer, and what they have said of their hosts.
    pub fn forget_liveness(&mut self) {
        for peer in &mut self.0 {
            peer.is_alive = false;
            peer.is_dead = false;
            peer.reaches_clients = true;
            peer.is_drained = false;
        }
    }

    /// `peer` has refused a copy. The next offer waits longer each time.
    pub fn refused(&mut self, id: ReplicaId, now: Micros) {
        if let Some(peer) = self.get_mut(id) {
            let wait = match peer.refusal {
                Some(refusal) => Micros(refusal.wait.0 * 2).min(WAIT_LAST),
                None => WAIT_FIRST,
            };
            let until = now + wait;
            peer.refusal = Some(Refusal { until, wait });
        }
    }

    /// The peer has come back, or runs the guest in step.
    pub fn forget_refusal(&mut self, id: ReplicaId) {
        if let Some(peer) = self.get_mut(id) {
            peer.refusal = None;
        }
    }

    pub fn forget_refusals(&mut self) {
        self.0.iter_mut().for_each(|peer| peer.refusal = None);
    }

    /// The peers that could take a copy now: linked, alive, and not waiting after a refusal.
    pub fn ready_for_a_copy(&self, now: Micros) -> ReplicaSet {
        let ready = self.0.iter().filter(|peer| {
            let waits = peer.refusal.is_some_and(|refusal| refusal.until > now);
            peer.is_linked && peer.is_alive && !waits
        });
        ReplicaSet::of(ready.map(|peer| peer.id))
    }

    /// When the next peer that has refused is asked again.
    pub fn refusal_deadline(&self, now: Micros) -> Micros {
        let refusals = self.0.iter().filter_map(|peer| peer.refusal);
        let later = refusals.map(|refusal| refusal.until);
        later
            .filter(|until| *until > now)
            .min()
            .unwrap_or(Micros::NEVER)
    }

    /// The copy that this replica is the source of.
    pub fn copy(&self) -> Option<&Stream> {
        self.0.iter().find_map(|peer| peer.copy.as_ref())
    }

    pub fn copy_mut(&mut self) -> Option<&mut Stream> {
        self.0.iter_mut().find_map(|peer| peer.copy.as_mut())
    }

    /// Replaces whatever copy there was.
    pub fn begin_copy(&mut self, stream: Stream) {
        self.end_copy();
        if let Some(peer) = self.get_mut(stream.peer) {
            peer.copy = Some(stream);
        }
    }

    pub fn end_copy(&mut self) {
        self.0.iter_mut().for_each(|peer| peer.copy = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers() -> Peers {
        let mut peers = Peers::new([ReplicaId(1), ReplicaId(2)].into_iter());
        for peer in &mut peers.0 {
            (peer.is_linked, peer.is_alive) = (true, true);
        }
        peers
    }

    #[test]
    fn each_peer_waits_longer_after_each_refusal() {
        let (broken, other) = (ReplicaId(1), ReplicaId(2));
        let (mut peers, mut now) = (peers(), Micros(7));
        let mut waits = Vec::new();
        for _ in 0..6 {
            peers.refused(broken, now);
            assert_eq!(peers.ready_for_a_copy(now), ReplicaSet::of([other]));
            let until = peers.refusal_deadline(now);
            waits.push(until.since(now).0 / 1000);
            assert!(peers.ready_for_a_copy(until).contains(broken));
            now = until;
        }
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 8000]);
        peers.forget_refusal(broken);
        peers.refused(broken, now);
        assert_eq!(peers.refusal_deadline(now).since(now), WAIT_FIRST);
        assert_eq!(peers.refusal_deadline(now + WAIT_FIRST), Micros::NEVER);
    }

    #[test]
    fn only_one_peer_is_copied_to() {
        let mut peers = peers();
        peers.begin_copy(Stream::new(ReplicaId(1), 7, 16));
        peers.begin_copy(Stream::new(ReplicaId(2), 8, 16));
        assert_eq!(peers.copy().map(|copy| copy.id), Some(8));
        peers.end_copy();
        assert!(peers.copy().is_none());
    }
}
