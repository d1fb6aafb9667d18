//! Who belongs to the group, and how that changes while it runs.
//!
//! A replica is replaced through the log, one step after the other:
//!
//! ```text
//!   Members{voters 0 1 2}           replica 1 is gone for good
//!   Members{voters 0 2}             removed: two voters, both needed
//!   Members{voters 0 2, learners 3} replica 3 is sent the log, and counts for nothing yet
//!   Members{voters 0 2 3}           once it has caught up ([`Apus::matched`])
//! ```
//!
//! A group is in force as soon as it is in a replica's log. Two replicas may therefore count by
//! different groups for a while; what keeps two leaders apart is that the two differ by one voter
//! at most, so that a majority of the one meets every majority of the other (Ongaro, "Consensus:
//! bridging theory and practice", §4.1):
//!
//! * a change is proposed only once the one before is committed, and
//! * only after the leader has committed an entry of its own view. Otherwise a change that an
//!   older leader had begun could still win elsewhere, and two changes be under way.
//! * A candidate counts promises by the best log among them, and again once it has merged that
//!   log (see `merge`): then it leads only with a majority of the group that its log names.
//!
//! A leader that is removed leads until that is committed, without counting itself, and then
//! follows. Whoever is removed is told so with a last message and does not stand any more; if it
//! misses that, the pre-vote (see `pre_vote`) keeps it from disturbing the others.

use crate::canary::canary;
use crate::{Apus, Role};
use crate::{Command, Members, MembersError};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet};

impl Apus {
    /// The group by the newest word in the log.
    pub(crate) fn members(&self) -> Members {
        if canary!(self.config, FirstMembersForEver) {
            return Members::of(self.config.members);
        }
        self.log.configuration().members
    }

    /// Everyone else of the group: those whom a leader sends the log.
    pub(crate) fn others(&self) -> ReplicaSet {
        self.without_me(self.members().all())
    }

    /// Those whose word a replica that is lost needs: the group as its log knows it, and as it
    /// was told, for its log may know nothing.
    pub(crate) fn everyone_named(&self) -> ReplicaSet {
        let known = self.members().all().0 | self.config.members.0;
        self.without_me(ReplicaSet(known))
    }

    fn without_me(&self, mut set: ReplicaSet) -> ReplicaSet {
        set.remove(self.config.me);
        set
    }

    pub(crate) fn is_voter(&self) -> bool {
        self.members().voters.contains(self.config.me)
    }

    /// Whether `consenting`, and this replica itself if it votes, are a majority of the voters.
    pub(crate) fn is_quorum(&self, consenting: ReplicaSet) -> bool {
        self.is_quorum_by(self.members(), consenting)
    }

    /// The same, of the group that is `members` by another's log. If that log is better than
    /// ours, it is the group by which we shall lead or not: ours may be so old that its majority
    /// is gone for good.
    pub(crate) fn is_quorum_by(&self, members: Members, consenting: ReplicaSet) -> bool {
        let mut consenting = consenting;
        consenting.insert(self.config.me);
        ReplicaSet(consenting.0 & members.voters.0).len() >= members.quorum()
    }

    /// How many others vote that are not in `set`.
    pub(crate) fn voters_without(&self, set: ReplicaSet) -> usize {
        let voters = self.without_me(self.members().voters);
        ReplicaSet(voters.0 & !set.0).len()
    }

    /// Whether this replica may lead by the newest word in its log: as a voter, and where there
    /// is a guest, as one whose guest explains what clients have seen.
    pub(crate) fn is_eligible(&self) -> bool {
        let configuration = self.log.configuration();
        self.is_voter()
            && (self.config.any_voter_stands || configuration.in_sync.contains(self.config.me))
    }

    /// Whether it has what a leader goes on from: the guest, or where the log is all there is,
    /// the log.
    pub(crate) fn has_state(&self) -> bool {
        if self.config.any_voter_stands {
            !self.recovery.amnesiac
        } else {
            self.holds_state
        }
    }

    /// Up to where the log of `peer` is known to equal ours. `None` unless this replica leads
    /// and sends it the log.
    pub fn matched(&self, peer: ReplicaId) -> Option<Index> {
        match &self.role {
            Role::Leading(leadership) => Some(leadership.peers.get(&peer)?.matched),
            _ => None,
        }
    }

    /// Whether the group may become `new` by the next entry of this leader.
    pub(crate) fn check_members(&self, new: Members) -> Result<(), MembersError> {
        let old = self.members();
        if !new.are_sane() {
            return Err(MembersError::NoGroup);
        }
        if (old.voters.0 ^ new.voters.0).count_ones() > 1 {
            return Err(MembersError::MoreThanOne);
        }
        if self.log.members_at() > self.log.commit() {
            return Err(MembersError::ChangePending);
        }
        if self.log.committed().view != self.promised {
            return Err(MembersError::ViewTooYoung);
        }
        Ok(())
    }

    /// A leader's log names a group: newcomers are sent the log from now on.
    pub(crate) fn welcome(&mut self, now: Micros, members: Members) {
        let others = self.without_me(members.all());
        if let Role::Leading(leadership) = &mut self.role {
            for id in others.iter() {
                leadership.welcome(id, now);
            }
        }
    }

    /// The group that a leader's log names is committed: whoever left is told so and sent no
    /// more, and a leader that left stops leading.
    pub(crate) fn dismiss(&mut self, now: Micros, members: Members, out: &mut Vec<Command>) {
        let Role::Leading(leadership) = &self.role else {
            return;
        };
        let gone = ReplicaSet(leadership.audience().0 & !members.all().0);
        for id in gone.iter() {
            self.replicate(now, id, true, out);
        }
        if let Role::Leading(leadership) = &mut self.role {
            leadership.peers.retain(|id, _| !gone.contains(*id));
        }
        if !members.voters.contains(self.config.me) {
            self.replicate_to_all(now, true, out);
            self.follow(now, out);
        }
    }
}
