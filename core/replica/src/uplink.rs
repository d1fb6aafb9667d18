//! The way to the clients: the TAP, and the uplink of its bridge. A host can lose it and be well otherwise.
//!
//! A leader that reaches no client hands over, if its secondary says nothing against it. A follower that has
//! lost its own way tells every leader so; a leader takes silence for a way that works. So the service
//! moves once, to where clients are reached, and not back and forth. Two replicas without a third do not hand
//! over (docs/decisions/0018).

use crate::api::{Note, OwnFault};
use crate::canary::canary;
use crate::context::Context;
use crate::phase::Phase;
use crate::replica::Replica;
use plover_syncvm::message::Body;
use plover_types::ReplicaId;

impl Replica {
    /// The node has looked: this host reaches clients, or does not any more.
    pub(crate) fn on_uplink(&mut self, up: bool) {
        if std::mem::replace(&mut self.cx.reaches_clients, up) != up {
            self.cx.note(Note::Uplink { up });
            self.tell_uplink();
            self.abstain_if_at_fault();
            if let Some((leader, cx)) = self.leading().filter(|(leader, _)| up && leader.serving) {
                leader.announce(cx);
            }
        }
    }

    /// Tells the leader of this host's way to the clients.
    fn tell_uplink(&mut self) {
        let cx = &mut self.cx;
        let up = cx.reaches_clients;
        let leader = cx.group.leader.filter(|leader| cx.peers.is_linked(*leader));
        if let Some(leader) = leader {
            cx.send_bulk(leader, Body::Uplink { up });
        }
    }

    /// There is a new leader, or a new link to it. Or it is the one of before, which this replica took for dead: it may still
    /// have an older word of this host.
    pub(crate) fn correct_leader(&mut self) {
        self.tell_uplink();
        self.tell_drained();
    }

    /// Hands over if this leader reaches no clients and its secondary does.
    pub(crate) fn watch_uplink(&mut self) {
        let cx = &mut self.cx;
        if canary!(cx, IgnoreUplink) {
            return;
        }
        if let Phase::Leader(leader) = &self.phase {
            let secondary = leader.secondary(cx);
            let reaches = secondary.is_some_and(|id| cx.peers.reaches_clients(id));
            if !cx.reaches_clients && reaches && leader.is_covered(cx) {
                cx.hand_over(OwnFault::Uplink);
            }
        }
    }

    /// A replica that has handed over, or would have to, does not stand for election.
    pub(crate) fn abstain_if_at_fault(&mut self) {
        let is_cut_off = !self.cx.reaches_clients && matches!(self.phase, Phase::Deposed);
        let is_late = self.cx.guest.unanswered.is_late() || self.cx.storage_is_late;
        self.cx.group.core.set_abstains(is_late || is_cut_off);
    }

    /// The disk of the promise and the log has stored something.
    pub(crate) fn on_stored(&mut self, event: apus::Event<'_>) {
        if std::mem::take(&mut self.cx.storage_is_late) {
            self.abstain_if_at_fault();
        }
        self.cx.consensus(event);
    }
}

impl Context {
    /// A follower's way to the clients.
    pub fn on_peers_uplink(&mut self, from: ReplicaId, up: bool) {
        if let Some(peer) = self.peers.get_mut(from) {
            peer.reaches_clients = up;
        }
    }
}
