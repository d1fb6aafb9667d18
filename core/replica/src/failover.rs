//! Failover: who leads, who holds the guest, and what a change of either means.

use crate::api::{Action, Canary, GuestRecord, Note, Role};
use crate::guest::Power;
use crate::refusals::Refusals;
use crate::replica::{Asked, Replica};
use apus::EntryKind;
use plover_matching::SequenceTranslator;
use plover_syncvm::message::Body;
use plover_types::{Index, ReplicaId, ReplicaSet, Unconsumed, View};

impl Replica {
    /// This replica leads. It serves when the log says that the in-sync set is itself alone:
    /// from that entry on no other replica can take over with an older state.
    pub(crate) fn on_lead(&mut self, view: View) {
        self.view = view;
        self.leader = Some(self.config.me);
        self.alive = ReplicaSet::EMPTY;
        self.note(Note::Elected { view });
        if self.standby.is_some() {
            // A new generation of the group begins here; what stands ready is of the last one.
            self.drop_guest();
        }
        self.set_role(Role::Leader);
        // The old leader's syncvm: given up, or carried through if it was complete.
        self.abort_follow("this replica leads now");
        self.take_over();
        self.stop_comparing();
        if self.canary(Canary::ForgetNumbers) {
            self.guest.translator = SequenceTranslator::default();
        }
        let last = self.apus.status().last.index;
        self.last_input_proposed = last;
        // Inputs that this guest was fed before their commit, as leader of an older view, may
        // have lost their places in the log to others; what takes those places is new to it.
        self.guest.taken = self.guest.taken.min(last);
        if self.guest.power == Power::Off {
            if self.apus.generation() != view {
                // Its guest died while it was being elected. A new one may only be booted where
                // a new generation of the group begins: nobody else holds a guest then.
                return self.apus.resign(self.now, &mut self.consensus_out);
            }
            self.guest.power = Power::Starting;
            self.out.push(Action::StartGuest);
        }
        self.propose_in_sync(ReplicaSet::of([self.config.me]));
    }

    /// Another replica leads `view`, or nobody yet.
    pub(crate) fn on_follow(&mut self, view: View, leader: Option<ReplicaId>) {
        let changed = view != self.view || leader != self.leader;
        self.view = view;
        self.leader = leader;
        if changed {
            self.stop_comparing();
            if let Some(stream) = &mut self.stream {
                // What was on its way in the old view is dropped there.
                stream.is_open = false;
            }
        }
        if self.role == Role::Leader {
            self.abort_lead("this replica does not lead any more");
            self.join = None;
            self.pending_in_sync = None;
            self.serving = false;
            self.out.push(Action::FaceClients(false));
            self.set_role(Role::Deposed);
            if !self.holds_state {
                self.drop_guest();
                self.set_role(Role::Witness);
            }
        } else if changed {
            self.abort_follow("the view changed");
            if self.role == Role::Joining {
                self.leave_join();
            }
        }
    }

    /// The log was replaced; entries up to `base` are not delivered here.
    pub(crate) fn on_jump(&mut self, base: Index, in_sync: ReplicaSet) {
        self.delivered = base;
        if base == Index(0) && self.guest.power != Power::Off {
            // A new generation of the group: this guest lived the last one, up to nobody knows where.
            self.drop_guest();
            self.set_role(Role::Witness);
        }
        if self.guest.power == Power::Off {
            // A new generation of the group counts its entries from 1 again.
            self.guest.taken = base;
        }
        self.guest.taken = self.guest.taken.max(base);
        self.in_sync = in_sync;
        let record = GuestRecord {
            in_sync,
            view: self.view,
            sync: self.sync_no,
            generation: self.apus.generation(),
            index: base,
        };
        self.out.push(Action::PersistGuest(record));
        self.leave_if_out();
    }

    /// An in-sync set is committed.
    pub(crate) fn on_in_sync(&mut self, set: ReplicaSet, at: Index) {
        self.in_sync = set;
        if self.pending_in_sync == Some(set) {
            self.pending_in_sync = None;
        }
        self.note(Note::InSync { in_sync: set, at });
        let record = GuestRecord {
            in_sync: set,
            view: self.view,
            sync: self.sync_no,
            generation: self.apus.generation(),
            index: at,
        };
        self.out.push(Action::PersistGuest(record));
        self.leave_if_out();
        if self.role != Role::Leader {
            return;
        }
        self.serve_if_ready();
        if self.pending_in_sync.is_none() {
            if let Some(peer) = self.secondary() {
                self.note(Note::Protected { peer });
            }
        }
    }

    /// Faces clients once the guest runs and the log says that nobody else can take over.
    pub(crate) fn serve_if_ready(&mut self) {
        if self.role == Role::Leader
            && !self.serving
            && self.is_solo()
            && self.guest.power == Power::Running
        {
            self.serving = true;
            self.next_join_at = self.now;
            self.refusals = Refusals::default();
            self.slot_started = self.now;
            self.out.push(Action::FaceClients(true));
            self.out.push(Action::Announce);
            let view = self.view;
            self.note(Note::Serving { view });
        }
    }

    /// The in-sync set goes on without this replica: its guest is history.
    pub(crate) fn leave_if_out(&mut self) {
        if self.in_sync.contains(self.config.me) {
            // What it joined for is agreed: the next set without it is meant.
            self.joined = None;
        }
        if !self.in_sync.contains(self.config.me)
            && matches!(self.role, Role::Secondary | Role::Deposed)
            && self.holds_state
            && !self.joined_is_pending()
        {
            self.drop_guest();
            self.set_role(Role::Witness);
        }
    }

    pub(crate) fn propose_in_sync(&mut self, set: ReplicaSet) {
        self.pending_in_sync = Some(set);
        self.propose(EntryKind::InSync(set), Vec::new())
            .expect("a leader's log always has room for an in-sync set");
    }

    /// A peer answers, or has stopped answering (as the leader sees it).
    pub(crate) fn on_peer_alive(&mut self, peer: ReplicaId, alive: bool) {
        if alive {
            self.alive.insert(peer);
        } else {
            self.alive.remove(peer);
        }
        self.note(Note::Peer { peer, alive });
        if !alive {
            self.lose_peer(peer, "it does not answer");
        }
    }

    /// The leader goes on without `peer`: solo, until a new secondary is synced (design §7).
    pub(crate) fn lose_peer(&mut self, peer: ReplicaId, why: &str) {
        if self.join.as_ref().is_some_and(|j| j.peer == peer) {
            self.fail_join(why);
        }
        if self.role != Role::Leader || self.secondary() != Some(peer) {
            return;
        }
        if self.lead.as_ref().is_some_and(|s| s.peer == peer) {
            self.abort_lead(why);
        }
        self.retry = false;
        self.stop_comparing();
        self.next_join_at = self.now;
        self.propose_in_sync(ReplicaSet::of([self.config.me]));
    }

    /// The hypervisor is up with a paused guest.
    pub(crate) fn on_guest_started(&mut self) {
        if self.guest.power != Power::Starting {
            return;
        }
        self.guest.power = Power::Paused;
        match self.role {
            Role::Leader => {
                self.set_holds_state(true);
                self.resume_guest(Unconsumed::default());
                self.serve_if_ready();
            }
            Role::Joining | Role::Witness if self.standby.is_some() => self.standby_is_ready(),
            _ => self.drop_guest(),
        }
    }

    /// The hypervisor died or failed: a replica failure, noticed at once.
    pub(crate) fn on_guest_died(&mut self, why: String) {
        if self.guest.power == Power::Off {
            return;
        }
        self.note(Note::GuestLost { why: why.clone() });
        match self.role {
            Role::Leader | Role::Deposed => {
                self.abort_lead("the guest is lost");
                self.drop_guest();
                // Somebody in the in-sync set takes over; solo, nobody can, and serving ends.
                self.apus.resign(self.now, &mut self.consensus_out);
                if self.role == Role::Deposed {
                    self.set_role(Role::Witness);
                }
            }
            Role::Secondary => {
                if let Some(leader) = self.leader {
                    self.send_bulk(leader, Body::GuestLost { why });
                }
                self.drop_guest();
                self.set_role(Role::Witness);
            }
            Role::Joining => {
                self.standby_died(why);
                self.set_role(Role::Witness);
            }
            Role::Recovering | Role::Witness => self.standby_died(why),
        }
    }

    /// Gives this side's guest up, with everything that rested on it.
    pub(crate) fn drop_guest(&mut self) {
        self.follow = None;
        self.kept = None;
        self.early_dirty = None;
        self.joined = None;
        self.stream = None;
        self.standby = None;
        self.stop_comparing();
        self.guard.discard_all();
        self.cleared.clear();
        self.set_holds_state(false);
        // What was asked of its memory is still answered, and the answers mean nothing.
        let asked = [
            &mut self.scans,
            &mut self.hashes,
            &mut self.block_hashes,
            &mut self.reads,
            &mut self.writes,
        ];
        for asked in asked {
            asked.iter_mut().for_each(|asked| *asked = Asked::Nothing);
        }
        if self.guest.power != Power::Off {
            self.guest.off(self.delivered);
            self.out.push(Action::KillGuest);
        }
    }
}
