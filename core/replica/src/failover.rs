//! Failover: who leads, who holds the guest, and what a change of either means.

use crate::api::{Action, BootReason, GuestRecord, Note, Role};
use crate::canary::canary;
use crate::guest::Power;
use crate::leader::Leader;
use crate::phase::Phase;
use crate::replica::Replica;
use plover_matching::SequenceTranslator;
use plover_syncvm::message::Body;
use plover_types::{Index, MachineWords, ReplicaId, ReplicaSet, Unconsumed, View, Viewstamp};

impl Replica {
    /// This replica leads. It serves when the log says that the in-sync set is itself alone:
    /// from that entry on no other replica can take over with an older state.
    pub(crate) fn on_lead(&mut self, view: View) {
        self.cx.group.view = view;
        self.cx.group.leader = Some(self.cx.config.me);
        self.cx.peers.forget_liveness();
        self.cx.note(Note::Elected { view });
        self.cx.tell_all_members();
        if self.target_mut().is_some() {
            // A new generation of the group begins here; the warm copy is of the last one.
            self.drop_guest();
        }
        self.lead_with_this_guest();
        self.stop_comparing();
        if canary!(self.cx, ForgetNumbers) {
            self.cx.guest.translator = SequenceTranslator::default();
        }
        let last = self.cx.group.core.status().last.index;
        // Inputs that this guest was fed before their commit, as leader of an older view, may
        // have lost their places in the log to others, which are new to it.
        self.cx.guest.taken = self.cx.guest.taken.min(last);
        if self.cx.guest.power == Power::Off {
            if self.cx.group.core.generation() != view {
                // Its guest died while it was being elected. A new one may only be booted where
                // a new generation of the group begins: nobody else holds a guest then.
                return self.resign();
            }
            self.cx.start_guest(BootReason::Boot);
        }
        if let Some((leader, cx)) = self.leading() {
            leader.last_input_proposed = last;
            leader.partner = cx.partner_in_step();
            if leader.partner.is_some() {
                cx.keep_in_step();
            }
            let set = ReplicaSet::of(leader.partner.into_iter().chain([cx.config.me]));
            leader.propose_in_sync(cx, set);
        }
    }

    /// The phase of a leader begins. A guest that has waited or rested goes on from the last state.
    pub(crate) fn lead_with_this_guest(&mut self) {
        if self.is_resting() {
            self.abort_follow("this replica leads now");
        }
        let (kept, rested) = match &mut self.phase {
            Phase::Secondary(secondary) => (secondary.kept.take(), secondary.rests.take()),
            _ => (None, None),
        };
        if self.role() != Role::Leader {
            let mut leader = Leader::new(&self.cx.config, self.cx.now);
            let mut streams = std::mem::take(&mut self.cx.guest.streams.of_state);
            if canary!(self.cx, KeepEarlyStreams) {
                streams.iter_mut().for_each(|stream| stream.early = false);
            }
            leader.adopt_streams(streams);
            self.enter(Phase::Leader(Box::new(leader)));
        }
        // The old leader's syncvm: given up, or carried through if it was complete.
        self.abort_follow("this replica leads now");
        if let Some(first) = rested.filter(|_| self.follow.is_none()) {
            self.wake(first);
        }
        if let Some(kept) = kept {
            self.take_over(kept);
        }
    }

    /// Another replica leads `view`, or nobody yet.
    pub(crate) fn on_follow(&mut self, view: View, leader: Option<ReplicaId>) {
        let changed = view != self.cx.group.view || leader != self.cx.group.leader;
        self.cx.group.view = view;
        self.cx.group.leader = leader;
        if changed {
            self.correct_leader();
            self.stop_comparing();
            if let Some(stream) = self.cx.peers.copy_mut() {
                // The target drops messages of the old view.
                stream.is_open = false;
            }
        }
        if let Some((leader, cx)) = self.leading() {
            leader.abort_sync(cx, "this replica does not lead any more");
            cx.guest.streams.of_state = leader.leave_streams();
            self.cx.out.push(Action::FaceClients(false));
            let holds_state = self.holds_state();
            self.enter(Phase::Deposed);
            if !holds_state {
                self.drop_guest();
                self.become_witness();
            }
        } else if changed {
            let parting = self.parting_message();
            self.abort_follow("the view changed");
            if self.role() == Role::Joining && !self.counts_once_loaded() {
                self.leave_join();
            }
            if let Some((to, body)) = parting {
                self.cx.send_bulk(to, body);
            }
        }
    }

    /// A leader that is suspected may lead on, and would wait for this replica's part of a syncvm or a join. This tells it that
    /// the part is given up.
    fn parting_message(&self) -> Option<(ReplicaId, Body)> {
        let why = "the leader was not heard for a while".to_string();
        if let Phase::Joining { copy } = &self.phase {
            let attempt = copy.attempt;
            return (!self.counts_once_loaded())
                .then_some((copy.source, Body::CopyFailed { attempt, why }));
        }
        let follow = self.follow.as_ref();
        let sync = follow.filter(|it| !it.is_past_the_end_mark())?.sync;
        Some((self.cx.leader_of_view()?, Body::GaveUp { sync, why }))
    }

    /// The log was replaced; entries up to `base` are not delivered here.
    pub(crate) fn on_install_snapshot(&mut self, base: Index, in_sync: ReplicaSet) {
        self.cx.group.delivered = base;
        if base == Index(0) && self.cx.guest.power != Power::Off {
            // A new generation of the group: this guest lived the last one, up to nobody knows where.
            self.drop_guest();
            self.become_witness();
        }
        if self.cx.guest.power == Power::Off {
            // A new generation of the group counts its entries from 1 again.
            self.cx.guest.taken = base;
        }
        self.cx.guest.taken = self.cx.guest.taken.max(base);
        self.record_in_sync(in_sync, base);
        self.leave_to_others();
        self.leave_if_out();
    }

    /// An in-sync set is committed.
    pub(crate) fn on_in_sync(&mut self, set: ReplicaSet, viewstamp: Viewstamp) {
        let at = viewstamp.index;
        self.cx.note(Note::InSync { in_sync: set, at });
        self.record_in_sync(set, at);
        if let Some((leader, _)) = self.leading() {
            // An older entry may have the same set, with others in between.
            if at >= leader.proposed_at {
                leader.proposed = None;
            }
        }
        self.leave_to_others();
        self.leave_if_out();
        self.stay_in_step(viewstamp);
        if let Some((leader, cx)) = self.leading() {
            leader.on_in_sync(cx);
        }
    }

    /// Makes durable what a restart of the whole group needs to know.
    fn record_in_sync(&mut self, in_sync: ReplicaSet, index: Index) {
        let group = &mut self.cx.group;
        group.in_sync = in_sync;
        let record = GuestRecord {
            in_sync,
            view: group.view,
            sync: group.sync_no,
            generation: group.core.generation(),
            index,
        };
        self.cx.out.push(Action::PersistGuest(record));
    }

    /// The in-sync set goes on without this replica: its guest is history.
    pub(crate) fn leave_if_out(&mut self) {
        let is_in = self.cx.group.in_sync.contains(self.cx.config.me);
        let is_out = match &mut self.phase {
            Phase::Secondary(secondary) => {
                secondary.joined_by.take_if(|_| is_in);
                secondary.joined_by.is_none() && !is_in
            }
            Phase::Deposed => !is_in,
            _ => false,
        };
        if is_out {
            self.drop_guest();
            self.become_witness();
        }
    }

    /// A peer answers, or has stopped answering (as the leader sees it).
    pub(crate) fn on_peer_alive(&mut self, id: ReplicaId, alive: bool) {
        if let Some(peer) = self.cx.peers.get_mut(id) {
            peer.is_alive = alive;
            peer.is_dead = !alive;
        }
        self.cx.note(Note::Peer { peer: id, alive });
        if let Some((leader, cx)) = self.leading().filter(|_| !alive) {
            leader.lose_peer(cx, id, "it does not answer");
        }
    }

    /// The hypervisor is up with a paused guest.
    pub(crate) fn on_guest_started(&mut self, machine: MachineWords) {
        if self.cx.guest.power != Power::Starting {
            return;
        }
        self.cx.guest.power = Power::Paused;
        self.cx.guest.machine = machine;
        if let Some((leader, cx)) = self.leading() {
            cx.group.core.set_holds_state(true);
            leader.resume_guest(cx, Unconsumed::default());
            leader.serve_if_ready(cx);
        } else if self.target_mut().is_some() {
            self.target_is_ready();
        } else {
            self.drop_guest();
        }
    }

    /// The hypervisor died or failed: a replica failure, noticed at once.
    pub(crate) fn on_guest_died(&mut self, why: String) {
        if self.cx.guest.power == Power::Off {
            return;
        }
        self.cx.note(Note::GuestLost { why: why.clone() });
        match &mut self.phase {
            Phase::Leader(leader) => {
                leader.abort_sync(&mut self.cx, "the guest is lost");
                self.drop_guest();
                // A member of the in-sync set takes over; solo, nobody can, and serving ends.
                self.resign();
            }
            Phase::Deposed => {
                self.drop_guest();
                self.resign();
                self.become_witness();
            }
            Phase::Secondary(_) => {
                if let Some(leader) = self.cx.leader_of_view() {
                    self.cx.send_bulk(leader, Body::GuestLost { why });
                }
                self.drop_guest();
                self.become_witness();
            }
            Phase::Joining { .. } => {
                // The leader may take the join for complete, and count on this guest.
                if let Some(leader) = self
                    .cx
                    .leader_of_view()
                    .filter(|_| self.counts_once_loaded())
                {
                    let why = why.clone();
                    self.cx.send_bulk(leader, Body::GuestLost { why });
                }
                self.target_died(why);
                self.become_witness();
            }
            Phase::Recovering | Phase::Witness { .. } => self.target_died(why),
        }
    }

    /// Gives this side's guest up, with everything that rested on it. The phase is the caller's to change.
    pub(crate) fn drop_guest(&mut self) {
        self.follow = None;
        self.early_dirty = None;
        if let Phase::Witness { copy } = &mut self.phase {
            *copy = None;
        }
        self.cx.peers.end_copy();
        self.stop_comparing();
        self.cx.outputs.discard_all();
        self.cx.group.core.set_holds_state(false);
        // Open jobs on its memory are still answered, and the answers mean nothing.
        self.cx.jobs.forget_all();
        if self.cx.guest.power != Power::Off {
            self.cx.guest.off(self.cx.group.delivered);
            self.cx.out.push(Action::KillGuest);
        }
        self.abstain_if_at_fault();
    }

    /// The two guests' outputs have nothing to do with each other any more: the leader's part ends, and the
    /// secondary's.
    pub(crate) fn stop_comparing(&mut self) {
        match &mut self.phase {
            Phase::Leader(leader) => leader.matching.stop(),
            Phase::Secondary(secondary) => secondary.report = None,
            _ => {}
        }
        self.cx.stop_translating();
    }
}

#[cfg(test)]
mod tests;
