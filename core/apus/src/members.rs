//! The members of the group, and how they change while it runs.
//!
//! A replica is replaced through the log, one step after the other:
//!
//! ```text
//!   Members{voters 0 1 2}           replica 1 is gone for good
//!   Members{voters 0 2}             removed: two voters, both needed
//!   Members{voters 0 2, learners 3} replica 3 is sent the log, and does not count yet
//!   Members{voters 0 2 3}           once it has caught up ([`Apus::matched`])
//! ```
//!
//! Members are in force as soon as they are in a replica's log. Two replicas may therefore count by
//! different members for a while. There are no two leaders all the same, because the two differ by
//! one voter at most, so that a majority of one overlaps every majority of the other (Ongaro,
//! "Consensus: bridging theory and practice", §4.1):
//!
//! * a change is proposed only once the one before is committed, and
//! * only after the leader has committed an entry of its own view. Otherwise a change that an
//!   older leader began could still win elsewhere, and two changes would be under way.
//! * A candidate counts promises by the best log among them, and again once it has merged that
//!   log (see `merge`): it leads only with a majority of the members that its log names.
//!
//! Where there is a guest, every replica that is in sync is a voter: one that is removed has left the in-sync set
//! before. And the caller keeps the members that are committed, and tells them ([`Apus::tell_members`]): a
//! replica that restarts with an empty log asks the right ones where the group stands.
//!
//! A leader that is removed leads until that is committed, without counting itself, and then
//! follows. A removed replica is sent a last message that tells it so, and does not stand any more.
//! If it misses that message, the pre-vote (see `pre_vote`) keeps it from disturbing the others.

use crate::canary::canary;
use crate::{Apus, Role};
use crate::{Command, Members, MembersError, ToldMembers};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet};

impl Apus {
    /// The members by the newest such entry in the log, or newer ones that are committed.
    pub(crate) fn members(&self) -> Members {
        if canary!(self.config, FirstMembersForEver) {
            return Members::of(self.config.members);
        }
        let told = self.told_newer();
        told.unwrap_or_else(|| self.log.configuration().members)
    }

    /// All other members: those to which a leader sends the log.
    pub(crate) fn others(&self) -> ReplicaSet {
        self.without_me(self.members().all())
    }

    /// The replicas whose answers a recovering one needs: the members by its log, and those that are settled, for its log
    /// may be empty or end with a change that nobody else has.
    pub(crate) fn everyone_named(&self) -> ReplicaSet {
        let known = self.members().all().0 | self.settled_members().voters.0;
        self.without_me(ReplicaSet(known))
    }

    pub(crate) fn without_me(&self, mut set: ReplicaSet) -> ReplicaSet {
        set.remove(self.config.me);
        set
    }

    pub(crate) fn is_voter(&self) -> bool {
        self.members().voters.contains(self.config.me)
    }

    /// Whether `consenting`, with this replica if it is a voter, are a majority of the voters.
    pub(crate) fn is_quorum(&self, consenting: ReplicaSet) -> bool {
        self.is_quorum_by(self.members(), consenting)
    }

    /// As `is_quorum`, with the `members` that another log names. If that log is better than this
    /// replica's, its members decide, because a majority of the older members may be gone for good.
    pub(crate) fn is_quorum_by(&self, members: Members, consenting: ReplicaSet) -> bool {
        let mut consenting = consenting;
        consenting.insert(self.config.me);
        ReplicaSet(consenting.0 & members.voters.0).len() >= members.quorum()
    }

    /// How many other voters are not in `set`.
    pub(crate) fn voters_without(&self, set: ReplicaSet) -> usize {
        let voters = self.without_me(self.members().voters);
        ReplicaSet(voters.0 & !set.0).len()
    }

    /// Whether this replica may lead by its log: as a voter, and where there is a guest, as a member
    /// of the in-sync set.
    pub(crate) fn is_eligible(&self) -> bool {
        let configuration = self.log.configuration();
        self.is_voter()
            && (self.config.any_voter_stands || configuration.in_sync.contains(self.config.me))
    }

    /// Whether this replica has the state that a leader needs: the guest, or the log in a group
    /// without a guest.
    pub(crate) fn has_state(&self) -> bool {
        if self.config.any_voter_stands {
            !self.recovery.amnesiac
        } else {
            self.holds_state
        }
    }

    /// The last index up to which the log of `peer` is known to equal this one. `None` unless this
    /// replica leads and sends `peer` the log.
    pub fn matched(&self, peer: ReplicaId) -> Option<Index> {
        match &self.role {
            Role::Leading(leadership) => Some(leadership.peers.get(&peer)?.matched),
            _ => None,
        }
    }

    /// Whether the caller tells committed members ([`Apus::tell_members`]). A log without a guest is begun anew with the
    /// configured ones.
    pub(crate) fn keeps_members(&self) -> bool {
        !self.config.any_voter_stands && !self.config.pair
    }

    /// Takes the members of a committed entry, perhaps one that this replica's log lacks: a peer has told the caller, or the
    /// caller has kept them. The replicas that are `gone` have left by then and never come back. Every replica of a group
    /// with a guest that changes its members has to be told of each change that it delivers, hears of, or has kept.
    pub fn tell_members(&mut self, told: ToldMembers) {
        let place = |it: &ToldMembers| (it.generation, it.index);
        if self.told_members.as_ref().map(place) < Some(place(&told)) {
            self.told_members = Some(told);
        }
    }

    /// The members that this replica was told of, if they are newer than those of its log.
    fn told_newer(&self) -> Option<Members> {
        let told = self.told_members.filter(|_| self.keeps_members())?;
        let known = (self.generation, self.log.members_at());
        ((told.generation, told.index) > known).then_some(told.members)
    }

    /// Replicas whose answers are not waited for, even where a log names them that is behind.
    pub(crate) fn gone(&self) -> ReplicaSet {
        self.told_members
            .map_or(ReplicaSet::EMPTY, |told| told.gone)
    }

    /// The newest members that are certainly committed, with which a new generation begins. A change that was under way in
    /// the old one may have been in some logs only.
    pub(crate) fn settled_members(&self) -> Members {
        let told = self.told_members.filter(|_| self.keeps_members());
        told.map_or(Members::of(self.config.members), |told| told.members)
    }

    /// The replica that begins a new generation: the configured one, or the voter with the lowest id once that one has
    /// left.
    pub fn first_leader(&self) -> ReplicaId {
        let (named, voters) = (self.config.first_leader, self.settled_members().voters);
        let lowest = voters.iter().next().filter(|_| !voters.contains(named));
        lowest.unwrap_or(named)
    }

    /// Whether the next entry of this leader may name these members.
    pub(crate) fn check_members(&self, new: Members) -> Result<(), MembersError> {
        let old = self.members();
        if !new.are_sane() {
            return Err(MembersError::NoGroup);
        }
        if (old.voters.0 ^ new.voters.0).count_ones() > 1 {
            return Err(MembersError::MoreThanOne);
        }
        let in_sync = self.log.configuration().in_sync;
        if !self.config.any_voter_stands && in_sync.0 & !new.voters.0 != 0 {
            return Err(MembersError::InSync(in_sync));
        }
        if self.log.members_at() > self.log.commit() {
            return Err(MembersError::ChangePending);
        }
        if self.log.committed().view != self.promised {
            return Err(MembersError::ViewTooYoung);
        }
        Ok(())
    }

    /// A leader's log names these members: newcomers are sent the log from now on.
    pub(crate) fn welcome(&mut self, now: Micros, members: Members) {
        let others = self.without_me(members.all());
        if let Role::Leading(leadership) = &mut self.role {
            for id in others.iter() {
                leadership.welcome(id, now);
            }
        }
    }

    /// The members that a leader's log names are committed: replicas that left are told so and sent
    /// no more, and a leader that left stops leading.
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
