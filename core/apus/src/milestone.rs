//! Milestones: how a replica that has forgotten its log may vote.
//!
//! With [`Durability::Memory`] a replica that restarts has forgotten what it acknowledged. If two of
//! three restart while a third still has the whole guest, nobody could elect that one: so of the log
//! the *milestones* are stored, the entries that begin a view or change the group or its in-sync set.
//! They are rare, so an input still costs no write.
//!
//! ```text
//!   1  a milestone is stored before this replica acknowledges it or anything after it
//!   2  the leader of a group with a guest commits an entry once a majority *and* every replica that
//!      is in sync by the newest such set hold it, and that set too if it comes after the entry
//!   3  a voter that has forgotten its log says so with its newest milestone. Its vote counts for a
//!      candidate whose merged log reaches that milestone
//! ```
//!
//! # Why such a candidate has all that was committed
//!
//! Let the leader L of view `v` have committed up to `e`, and a voter R of the candidate's majority
//! have acknowledged `e` in `v` before it promised the candidate's view (some R did, since majorities
//! overlap). L's log begins `v` with a milestone, so R's milestone is of `v` or later (1), and so is
//! the end of the candidate's log (3). If that is of a later view, that view's leader had `e` by
//! induction, and so has the candidate. If it is of `v`, the log is a prefix of L's. R's milestone is
//! not below the newest in-sync set at `e`, so the prefix has that set too (3). Either it reaches `e`;
//! or that set is the newest of the prefix, and names the candidate, since it may lead. Then the
//! candidate has acknowledged `e` (2), and has it.
//!
//! Groups without a guest have no in-sync set, and a pair needs no votes; they keep no milestones.

use crate::canary::canary;
use crate::leading::Leadership;
use crate::{Apus, Command, Durability, Role, VOTERS_MAX};
use plover_types::{Index, ReplicaId, Viewstamp};

/// The newest milestone of the log, here and on storage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Milestones {
    /// The newest that storage was told of, or that was found there at the start. It never falls.
    /// None until this replica has recovered for the first time: it does not know what it
    /// acknowledged before.
    pub newest: Option<Viewstamp>,
    /// The newest that storage has confirmed.
    pub stored: Option<Viewstamp>,
}

impl Apus {
    pub(crate) fn keeps_milestones(&self) -> bool {
        let config = &self.config;
        config.durability == Durability::Memory && !config.any_voter_stands && !config.pair
    }

    /// Stores a milestone that has come into the log.
    pub(crate) fn store_milestone(&mut self, out: &mut Vec<Command>) {
        let newest = self.log.milestone();
        if self.milestones.newest.is_some_and(|known| known < newest) {
            if canary!(self.config, MilestoneNotStored) {
                return;
            }
            self.milestones.newest = Some(newest);
            self.persist_state(out);
        }
    }

    /// Keeps milestones from now on: the log holds all that this replica may have acknowledged. Returns
    /// whether that is new, and so has to be stored.
    pub(crate) fn begin_milestones(&mut self) -> bool {
        let begins = self.keeps_milestones() && self.milestones.newest.is_none();
        if begins {
            self.milestones.newest = Some(self.log.milestone());
        }
        begins
    }

    pub(crate) fn milestone_is_stored(&self) -> bool {
        let Milestones { newest, stored } = self.milestones;
        newest <= stored
    }

    /// The newest milestone, which its votes carry, if this replica has forgotten its log.
    pub(crate) fn forgot(&self) -> Option<Viewstamp> {
        self.milestones.newest.filter(|_| self.recovery.amnesiac)
    }

    /// Whether this replica votes.
    pub(crate) fn may_vote(&self) -> bool {
        !self.recovery.amnesiac || self.forgot().is_some()
    }

    /// The last index up to which a quorum, which does so up to `by_quorum`, and every replica that is in sync hold
    /// this leader's log. 0 while the newest in-sync set has not reached a quorum and all that it names: the older set
    /// counts until then, and might allow less.
    pub(crate) fn held_by_in_sync(&self, leadership: &Leadership, by_quorum: Index) -> Index {
        if !self.keeps_milestones() || canary!(self.config, CommitWithoutInSync) {
            return by_quorum;
        }
        let held = self.log.configuration().in_sync.iter().map(|id| {
            if id == self.config.me {
                self.counted()
            } else {
                let peer = leadership.peers.get(&id);
                peer.map_or(Index(0), |peer| peer.matched)
            }
        });
        let held = held.min().unwrap_or_default().min(by_quorum);
        if held < self.log.in_sync_at() {
            return Index(0);
        }
        held
    }

    /// Whether this leader's commits wait for nothing but the acknowledgement of `peer`, which is in sync: a majority without
    /// it, and all others that are in sync, hold more of the log. Without it they would go on.
    pub fn commits_wait_for(&self, peer: ReplicaId) -> bool {
        let Role::Leading(leadership) = &self.role else {
            return false;
        };
        if !self.keeps_milestones() || self.log.commit() >= self.log.last().index {
            return false;
        }
        let members = self.members();
        let mut held = [Index(0); VOTERS_MAX + 1];
        if self.is_voter() {
            held[VOTERS_MAX] = self.counted();
        }
        let voters = leadership.peers.iter();
        let voters = voters.filter(|(id, _)| members.voters.contains(**id) && **id != peer);
        for (slot, (_, voter)) in held.iter_mut().zip(voters) {
            *slot = voter.matched;
        }
        held.sort_unstable_by(|a, b| b.cmp(a));
        let by_quorum = held[members.quorum() - 1];
        let others = self.log.configuration().in_sync.iter();
        let by_others = others.filter(|id| *id != peer).map(|id| match id {
            id if id == self.config.me => self.counted(),
            id => leadership.peers.get(&id).map_or(Index(0), |it| it.matched),
        });
        let held = by_others.min().unwrap_or(by_quorum).min(by_quorum);
        held > self.log.commit() && held >= self.log.in_sync_at()
    }

    /// Whether a majority that consists of this backup and its leader commits by rule 2: nobody else
    /// is in sync, and both have stored the milestones before.
    pub(crate) fn in_sync_are_me_and(&self, leader: ReplicaId) -> bool {
        if !self.keeps_milestones() {
            return true;
        }
        let mut others = self.log.configuration().in_sync;
        others.remove(self.config.me);
        others.remove(leader);
        others.is_empty()
            && self.milestone_is_stored()
            && self.log.milestone().index <= self.log.commit()
    }
}
