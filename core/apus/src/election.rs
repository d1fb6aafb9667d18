//! How a view gets its leader.
//!
//! ```text
//!   candidate                                     voter
//!   ELECTING: promise own view durably
//!               -- Prepare{view} -->              refuses a view not above its promise, and
//!               <-- Promise{last, commit, base}   while a leader is alive; else promises durably
//!   a quorum has: take over the best log among them (see `merge`)
//!   LEADING     -- Append{Noop} -->
//! ```
//!
//! The leader's lease rests on a voter's refusal while a leader is alive ([`Apus::lease_until`]).
//! So a voter checks it at `Prepare` as well, where it makes a promise, and not only in a pre-vote.

use crate::Command;
use crate::message::{Message, Vote};
use crate::{Apus, Role};
use plover_types::{Micros, ReplicaId, ReplicaSet, View, Viewstamp};
use std::collections::BTreeMap;

/// How far an election has come.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// Storage does not have the candidate's own promise yet.
    Promising,
    /// As `Promising`, for the first view of a generation, which needs no votes.
    Beginning,
    /// As `Promising`, for a view that one of a pair leads without the other's vote.
    Alone,
    /// Votes come in.
    Collecting,
    /// A voter's log is better than the candidate's.
    Merging {
        /// The voter.
        from: ReplicaId,
        /// The end of its log.
        target: Viewstamp,
        /// The last entry that the candidate has of it.
        after: Viewstamp,
    },
}

/// An attempt to lead the view that is promised.
#[derive(Clone, Debug)]
pub(crate) struct Election {
    pub stage: Stage,
    pub votes: BTreeMap<ReplicaId, Vote>,
    repeat_at: Micros,
    pub give_up_at: Micros,
}

impl Election {
    pub(crate) fn new(stage: Stage) -> Self {
        let never = Micros::NEVER;
        Self {
            stage,
            votes: BTreeMap::new(),
            repeat_at: never,
            give_up_at: never,
        }
    }

    pub(crate) fn deadline(&self) -> Micros {
        self.repeat_at.min(self.give_up_at)
    }

    /// The replicas, voters of the group or not, whose promises count for a log that ends at `last`.
    pub(crate) fn voters(&self, last: Viewstamp) -> ReplicaSet {
        let votes = self.votes.iter();
        ReplicaSet::of(votes.filter_map(|(id, vote)| (vote.forgot <= Some(last)).then_some(*id)))
    }
}

impl Apus {
    pub(crate) fn repeat_to_all(&mut self, out: &mut Vec<Command>) {
        for peer in self.others().iter() {
            self.repeat_to(peer, out);
        }
    }

    /// Repeats the question that `peer` has not answered yet.
    pub(crate) fn repeat_to(&mut self, peer: ReplicaId, out: &mut Vec<Command>) {
        let view = self.promised;
        let message = match &self.role {
            Role::PreVoting(pre_vote) if !pre_vote.granted.contains(peer) => Message::PreVote {
                nonce: pre_vote.nonce,
                last: self.log.last(),
                dead: self.heard.dead_leader(),
            },
            Role::Electing(election) => match election.stage {
                Stage::Collecting if !election.votes.contains_key(&peer) => {
                    Message::Prepare { view }
                }
                Stage::Merging { from, after, .. } if from == peer => {
                    Message::Fetch { view, after }
                }
                _ => return,
            },
            _ => return,
        };
        self.send(peer, &message, out);
    }

    /// Storage has the promise of this replica's own view: it may ask the others for theirs.
    pub(crate) fn candidacy_is_durable(&mut self, now: Micros, out: &mut Vec<Command>) {
        let give_up_at = now + self.spread_timeout();
        let repeat_at = now + self.config.heartbeat;
        let Role::Electing(election) = &mut self.role else {
            return;
        };
        match election.stage {
            Stage::Promising => {
                election.stage = Stage::Collecting;
                election.repeat_at = repeat_at;
                election.give_up_at = give_up_at;
                self.repeat_to_all(out);
                self.merge_if_promised(now, out);
            }
            Stage::Beginning => self.begin_generation(now, out),
            Stage::Alone => self.begin_alone(now, out),
            Stage::Collecting | Stage::Merging { .. } => {}
        }
    }

    pub(crate) fn tick_electing(&mut self, now: Micros, out: &mut Vec<Command>) {
        let heartbeat = self.config.heartbeat;
        let Role::Electing(election) = &mut self.role else {
            return;
        };
        if now >= election.give_up_at {
            let voters = election.voters(self.log.last());
            if self.is_quorum(voters) && !self.is_eligible() {
                self.stand_down(now, out);
            } else {
                self.give_up(now, out);
            }
        } else if now >= election.repeat_at {
            election.repeat_at = now + heartbeat;
            self.repeat_to_all(out);
        }
    }

    /// Gives up the attempt and tries again soon, after a random time so that another candidate can
    /// win meanwhile.
    fn give_up(&mut self, now: Micros, out: &mut Vec<Command>) {
        self.follow(now, out);
        let timeout = self.config.timeout.0;
        self.election_at = now + Micros(self.random.range(timeout / 4, timeout));
    }

    pub(crate) fn on_prepare(
        &mut self,
        now: Micros,
        from: ReplicaId,
        view: View,
        out: &mut Vec<Command>,
    ) {
        if !self.may_vote() {
            return;
        }
        if view == self.promised && self.durable == self.promised {
            // The candidate asks again, so the answer was lost.
            self.send_promise(out);
            return;
        }
        let leads = matches!(self.role, Role::Leading(_)) && now < self.lease_until();
        if view < self.promised || leads || self.leader_is_alive(now) {
            let promised = self.promised;
            self.send(from, &Message::Refuse { view, promised }, out);
            return;
        }
        if view > self.promised {
            self.promise(view, out);
            self.follow(now, out);
        }
        if let Role::Following(follower) = &mut self.role {
            follower.owes_promise = true;
        }
    }

    /// Votes for the candidate whose view is promised.
    pub(crate) fn send_promise(&mut self, out: &mut Vec<Command>) {
        assert_eq!(
            self.durable, self.promised,
            "a promise that a crash would break"
        );
        let view = self.promised;
        let vote = Vote {
            last: self.log.last(),
            commit: self.log.committed(),
            base: self.log.base().index,
            members: self.members(),
            forgot: self.forgot(),
        };
        if let Some(candidate) = view.leader() {
            self.send(candidate, &Message::Promise { view, vote }, out);
        }
    }

    pub(crate) fn on_refuse(
        &mut self,
        now: Micros,
        view: View,
        promised: View,
        out: &mut Vec<Command>,
    ) {
        self.round_max = self.round_max.max(promised.round());
        if view != self.promised || promised <= view {
            return;
        }
        match self.role {
            // The sender has promised a higher view and acknowledges no more entries of this one.
            Role::Leading(_) => self.follow(now, out),
            Role::Electing(_) => self.give_up(now, out),
            Role::Following(_) | Role::PreVoting(_) => {}
        }
    }

    pub(crate) fn on_promise(
        &mut self,
        now: Micros,
        from: ReplicaId,
        view: View,
        vote: Vote,
        out: &mut Vec<Command>,
    ) {
        let Role::Electing(election) = &mut self.role else {
            return;
        };
        if view != self.promised || !matches!(election.stage, Stage::Collecting) {
            return;
        }
        election.votes.insert(from, vote);
        self.merge_if_promised(now, out);
    }
}
