//! Pre-vote: a replica asks whether the others would elect it, before it stands for election.
//!
//! ```text
//!   FOLLOWING, silence for a timeout and a moment more, may stand
//!       |                                         voter
//!   PRE-VOTING  -- PreVote{nonce, last} -->       refuses while it leads, has heard a leader
//!               <-- Grant --                      within the timeout, or knows of a later group
//!                                                 that the candidate has left
//!       |
//!   a quorum would elect it: ELECTING (see `election`)
//! ```
//!
//! A pre-vote changes no view. It costs a round trip and protects a healthy leader: a replica that
//! was cut off comes back with a question, not with a high view that deposes the leader.

use crate::canary::canary;
use crate::election::{Election, Stage};
use crate::message::{Grant, Message};
use crate::{Apus, Role};
use crate::{Command, Members};
use plover_types::{Micros, ReplicaId, ReplicaSet, View, Viewstamp};

/// A round of asking.
#[derive(Clone, Debug)]
pub(crate) struct PreVote {
    pub nonce: u64,
    pub granted: ReplicaSet,
    /// The end of the best log that was heard of, and the members that it names.
    best: (Viewstamp, Members),
    repeat_at: Micros,
    give_up_at: Micros,
}

impl PreVote {
    pub(crate) fn deadline(&self) -> Micros {
        self.repeat_at.min(self.give_up_at)
    }
}

/// A replica won an election, but the merged log did not allow it to lead.
#[derive(Clone, Debug)]
pub(crate) struct StoodDown {
    /// Where that log ended. With another log it may stand again.
    pub last: Viewstamp,
    /// When to try again with the same log.
    pub until: Micros,
}

impl Apus {
    /// Sets when to look for a leader again: after the silence that it may keep, and a moment later, since the voters may have
    /// heard the leader later. Several candidates are spread, by much less than in Raft (§5.2 of its paper), which
    /// draws from one to two timeouts: two that collide cost a round trip here, or a timeout where the promises of disks come late. Both are granted a
    /// pre-vote, both stand for the same round, and the one with the higher view is promised by all, the other one too.
    pub(crate) fn arm_election(&mut self, now: Micros) {
        let mut wait = self.heard.span + Micros(self.config.timeout.0 / 16);
        if !self.is_the_only_candidate() {
            wait = wait + Micros(self.random.range(0, self.heard.span.0 / 4));
        }
        self.election_at = now + wait;
    }

    /// Whether nobody but this replica and the leader it followed holds the guest.
    pub(crate) fn is_the_only_candidate(&self) -> bool {
        !self.config.any_voter_stands
            && self.has_state()
            && self.is_eligible()
            && self.log.configuration().in_sync.len() <= 2
    }

    pub(crate) fn spread_timeout(&mut self) -> Micros {
        let timeout = self.config.timeout.0;
        Micros(self.random.range(timeout, timeout.saturating_mul(2)))
    }

    pub(crate) fn leader_is_alive(&self, now: Micros) -> bool {
        !self.heard.leader_is_dead() && self.heard.resigned.is_none() && now < self.heard.until
    }

    /// Whether this replica may stand for election. The in-sync set in its own log need not name it:
    /// the log of a secondary that has just joined may end before that set, and the merged log
    /// decides (`merge`). Where every voter may lead, its log has to name it as a voter: the voters
    /// that the log names are enough to elect a leader.
    pub(crate) fn may_stand(&self, now: Micros) -> bool {
        self.generation > View::NONE
            && self.has_state()
            && !self.abstains
            && !self.recovery.amnesiac
            && self.recovery.doubt.is_none()
            && (self.is_voter() || !self.config.any_voter_stands)
            && !self.leader_is_alive(now)
            && self
                .stood_down
                .as_ref()
                .is_none_or(|stood| stood.last != self.log.last() || now >= stood.until)
    }

    pub(crate) fn tick_following(&mut self, now: Micros, out: &mut Vec<Command>) {
        if now < self.election_at {
            return;
        }
        let is_late = now.since(self.election_at) >= self.config.heartbeat;
        if is_late && !std::mem::replace(&mut self.heard.is_excused, true) {
            self.election_at = now + self.config.grace();
            return;
        }
        self.arm_election(now);
        if let Role::Following(follower) = &mut self.role {
            if follower.leader.take().is_some() {
                self.tell(None, out);
            }
        }
        if self.may_stand(now) {
            self.begin_pre_vote(now, out);
        } else if self.abstains {
            // Perhaps only for a moment, as while its program catches up.
            self.election_at = self.election_at.min(now + self.config.heartbeat);
        }
    }

    fn begin_pre_vote(&mut self, now: Micros, out: &mut Vec<Command>) {
        let pre_vote = PreVote {
            nonce: self.random.next_u64(),
            granted: ReplicaSet::EMPTY,
            best: (self.log.last(), self.members()),
            repeat_at: now + self.config.heartbeat,
            give_up_at: now + self.spread_timeout(),
        };
        self.transition(Role::PreVoting(pre_vote));
        self.tell(None, out);
        self.repeat_to_all(out);
        self.elect_if_granted(now, out);
    }

    pub(crate) fn tick_pre_voting(&mut self, now: Micros, out: &mut Vec<Command>) {
        let heartbeat = self.config.heartbeat;
        let Role::PreVoting(pre_vote) = &mut self.role else {
            return;
        };
        if now >= pre_vote.give_up_at {
            // Old grants are not added to new ones: ask again.
            if self.may_stand(now) {
                self.begin_pre_vote(now, out);
            } else {
                self.follow(now, out);
            }
        } else if now >= pre_vote.repeat_at {
            pre_vote.repeat_at = now + heartbeat;
            if self.may_go_alone() && self.may_stand(now) {
                self.go_alone(now, out);
            } else {
                self.repeat_to_all(out);
                // It may stand now, and perhaps it could not when the last grant came.
                self.elect_if_granted(now, out);
            }
        }
    }

    pub(crate) fn on_pre_vote(
        &mut self,
        now: Micros,
        from: ReplicaId,
        (nonce, last): (u64, Viewstamp),
        out: &mut Vec<Command>,
    ) {
        let leads = matches!(self.role, Role::Leading(_));
        // A replica that has left the group and does not know it could not lead in the end, but
        // the promises that it collects until then would depose a leader that others hear.
        let has_left = last <= self.log.last() && !self.members().voters.contains(from);
        if leads || !self.may_vote() || self.leader_is_alive(now) || has_left {
            return;
        }
        let grant = Grant {
            nonce,
            promised: self.promised,
            last: self.log.last(),
            members: self.members(),
            generation: self.generation,
            forgot: self.forgot(),
        };
        self.send(from, &Message::Grant(grant), out);
    }

    pub(crate) fn on_grant(
        &mut self,
        now: Micros,
        from: ReplicaId,
        grant: Grant,
        out: &mut Vec<Command>,
    ) {
        self.round_max = self.round_max.max(grant.promised.round());
        let Role::PreVoting(pre_vote) = &mut self.role else {
            return;
        };
        if pre_vote.nonce != grant.nonce {
            return;
        }
        if self.config.pair && grant.generation > self.generation {
            self.yield_to(now, grant.generation, out);
            return;
        }
        if grant.forgot.is_none() && grant.last > pre_vote.best.0 {
            pre_vote.best = (grant.last, grant.members);
        }
        if grant.forgot <= Some(self.log.last().max(pre_vote.best.0)) {
            pre_vote.granted.insert(from);
        }
        self.elect_if_granted(now, out);
    }

    fn elect_if_granted(&mut self, now: Micros, out: &mut Vec<Command>) {
        let Role::PreVoting(pre_vote) = &self.role else {
            return;
        };
        // A majority of the members by the best log, or by this replica's own: it may not know newer
        // members yet, and learns of them when it merges that log.
        let granted = self.is_quorum_by(pre_vote.best.1, pre_vote.granted)
            || self.is_quorum(pre_vote.granted)
            || canary!(self.config, SkipPreVote);
        if !granted || !self.may_stand(now) {
            return;
        }
        self.stand(out);
    }

    /// Stands for election: the first step is to store this replica's own promise.
    pub(crate) fn stand(&mut self, out: &mut Vec<Command>) {
        self.transition(Role::Electing(Election::new(Stage::Promising)));
        self.promise(View::new(self.round_max + 1, self.config.me), out);
        self.tell(None, out);
    }
}
