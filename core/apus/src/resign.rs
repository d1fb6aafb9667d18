//! A leader that resigns while it is well: it says so, and nobody waits for a timeout.
//!
//! ```text
//!   leader                                        backup
//!   stops leading: it has no lease any more
//!      -- Resigned{view, stays} -->               the leader of `view` counts as gone:
//!                                                 the only candidate stands at once, without pre-votes;
//!                                                 the others give their votes when they are asked
//! ```
//!
//! # Why the vote needs no timeout
//!
//! A voter refuses its vote for a while because the leader's lease may rest on its answer. The leader of
//! a view that has resigned never leads that view again, so its lease is worth nothing from then on. The
//! message names the view, and a voter heeds it only while that view is the one that it has promised. So
//! a message that is late, or comes twice, changes nothing: by then the voter has promised a higher view,
//! or still waits for a candidate of this one.
//!
//! Messages that the leader sent earlier in its view may arrive after this one. They are dropped, as if they
//! were lost: they are no sign of life.
//!
//! # When the message is lost
//!
//! The candidate waits for the timeout, as after a death. A voter that it does not reach refuses until its
//! own timeout, but the old leader votes too, so one message to the candidate is enough. If no candidate
//! is elected, the old leader stands itself: it waits for one timeout first.
//!
//! The log in the candidate's hands is whole, as a rule: the message comes by the same lane as the entries
//! before it. If some were lost, the merge of the logs finds them (`merge`).

use crate::death::Heard;
use crate::message::Message;
use crate::{Apus, Command, Role};
use plover_types::{Micros, ReplicaId, View};

/// A leader that has stopped leading, and said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resigned {
    /// The view that it led.
    view: View,
    /// Its guest stays in step.
    stays: bool,
}

impl Heard {
    /// Whether what the leader of `view` says is no sign of life.
    pub(crate) fn has_resigned(&self, view: View) -> bool {
        self.resigned.is_some_and(|resigned| view <= resigned.view)
    }
}

impl Apus {
    /// Stops leading because this replica is at fault, and says so to all, so that another one is elected at
    /// once. This one votes, and [abstains](Self::set_abstains); its guest is still there.
    pub fn hand_over(&mut self, now: Micros, out: &mut Vec<Command>) {
        self.set_abstains(true);
        self.leave(now, false, out);
    }

    /// Stops leading because an operator wants it, and says so to all. This replica is well: its guest stays
    /// in step with the next leader's, and if no other replica is elected within a timeout it stands itself.
    pub fn switch_over(&mut self, now: Micros, out: &mut Vec<Command>) {
        self.leave(now, true, out);
    }

    fn leave(&mut self, now: Micros, stays: bool, out: &mut Vec<Command>) {
        if !matches!(self.role, Role::Leading(_)) {
            return;
        }
        let view = self.promised;
        self.step_down(now, out);
        for peer in self.others().iter() {
            self.send(peer, &Message::Resigned { view, stays }, out);
        }
    }

    /// The leader before this one, if it has resigned with a guest that stays in step. `None` unless this
    /// replica leads.
    pub fn predecessor_in_step(&self) -> Option<ReplicaId> {
        let Role::Leading(leadership) = &self.role else {
            return None;
        };
        let predecessor = leadership.predecessor.filter(|resigned| resigned.stays)?;
        predecessor.view.leader()
    }

    /// The leader of `view` has resigned.
    pub(crate) fn on_resigned(
        &mut self,
        now: Micros,
        view: View,
        stays: bool,
        out: &mut Vec<Command>,
    ) {
        let follows = matches!(self.role, Role::Following(_) | Role::PreVoting(_));
        if view != self.promised || !follows || self.config.pair {
            return;
        }
        self.heard.resigned = Some(Resigned { view, stays });
        if let Role::Following(follower) = &mut self.role {
            follower.leader = None;
            self.tell(None, out);
        }
        if !self.may_stand(now) {
            return;
        }
        if self.is_the_only_candidate() {
            self.arm_election(now);
            self.stand(out);
        } else if matches!(self.role, Role::Following(_)) {
            let heartbeat = self.config.heartbeat.0;
            let soon = now + Micros(self.random.range(0, heartbeat));
            self.election_at = self.election_at.min(soon);
        }
    }
}
