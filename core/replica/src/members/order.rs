//! An operator's order to change the members: whether it can be carried out, and its first step.

use super::record::{Change, GroupRecord};
use crate::api::Note;
use crate::context::Context;
use crate::leader::Leader;
use crate::phase::Phase;
use crate::replica::Replica;
use apus::{Members, VOTERS_MAX};
use plover_types::{ReplicaId, ReplicaSet};
use serde::{Deserialize, Serialize};

/// An order to change the members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberOrder {
    /// A host joins a group that has lost one.
    Add {
        /// Its replica.
        id: ReplicaId,
        /// The address at which it listens.
        address: String,
    },
    /// A host that is dead leaves, or the one that a change under way would add.
    Remove {
        /// Its replica.
        id: ReplicaId,
    },
    /// A host takes the place of another.
    Replace {
        /// The replica that leaves.
        old: ReplicaId,
        /// The replica that joins.
        new: ReplicaId,
        /// The address at which it listens.
        address: String,
    },
}

impl MemberOrder {
    fn change(&self) -> Change {
        let (add, remove) = match self {
            Self::Add { id, .. } => (Some(*id), None),
            Self::Remove { id } => (None, Some(*id)),
            Self::Replace { old, new, .. } => (Some(*new), Some(*old)),
        };
        Change { add, remove }
    }

    fn address(&self) -> Option<&String> {
        match self {
            Self::Add { address, .. } | Self::Replace { address, .. } => Some(address),
            Self::Remove { .. } => None,
        }
    }
}

/// Why an order to change the members is not carried out, for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberRefused {
    /// Ask the leader.
    #[error("replica {} does not lead: ask the replica that does", .0.0)]
    NotLeading(ReplicaId),
    /// Wait for the change under way, or end it.
    #[error(
        "another change of the members is under way ({0}): wait until `plover status` shows none{1}"
    )]
    UnderWay(String, String),
    /// Name a member.
    #[error("replica {} is no member of the group: name one of {}", .0.0, .1.in_words())]
    Unknown(ReplicaId, ReplicaSet),
    /// Name another id.
    #[error("replica {} is a member already, at {}: give the new host an id that no host has had, such as {}", .0.0, .1, .2)]
    IsMember(ReplicaId, String, String),
    /// Name another id.
    #[error(
        "replica {} has left the group, and its votes could come back with its disk: give the new host an id that no host \
         has had, such as {}", .0.0, .1
    )]
    Used(ReplicaId, String),
    /// Name another id.
    #[error("a group has the ids 0 to 15, and {} is none of them: give the new host an id such as {}", .0.0, .1)]
    NoId(ReplicaId, String),
    /// Correct the address.
    #[error("replica {} listens at {} already: give the new host an address of its own", .0.0, .1)]
    SameAddress(ReplicaId, String),
    /// Use `replace`.
    #[error(
        "the group has its {0} members: `plover member replace OLD NEW@ADDRESS` exchanges one of them for the new host"
    )]
    Full(usize),
    /// Use `add`.
    #[error(
        "the group lacks a member since one was removed: `plover member add NEW@ADDRESS` first"
    )]
    Short,
    /// Use `remove`.
    #[error("the group has {0} members, one too many: `plover member remove ID` first")]
    Surplus(usize),
    /// Use `replace`, or stop the host.
    #[error(
        "replica {} answers, and without it the loss of one more host would stop the guest: `plover member replace {} \
         NEW@ADDRESS` puts another host in its place; if it is to go without one, stop it first", .0.0, .0.0
    )]
    Answers(ReplicaId),
    /// Use `replace`, or move the lead first.
    #[error(
        "replica {} leads: `plover member replace {} NEW@ADDRESS` moves the lead and puts another host in its place; \
         `plover switchover` moves the lead alone", .0.0, .0.0
    )]
    Leads(ReplicaId),
    /// Wait.
    #[error(
        "replica {} holds the guest by now: wait until the change is done, and replace it then", .0.0
    )]
    Holds(ReplicaId),
    /// Start the hosts that are down.
    #[error(
        "a change of the members takes {needed} of the {of} that vote, and {} do not answer: start them first",
        .silent.in_words()
    )]
    NoMajority {
        /// How many have to answer, this leader included.
        needed: usize,
        /// How many vote.
        of: usize,
        /// The voters that do not answer.
        silent: ReplicaSet,
    },
    /// Stop the host that leaves.
    #[error(
        "a group has {} voters at most, so the new one gets its place behind replica {}, which answers: stop that one first",
        .1, .0.0
    )]
    NoPlace(ReplicaId, usize),
    /// Nothing to change.
    #[error("a group of {0} keeps its members: a host is replaced in groups of three or more")]
    Small(usize),
}

impl Leader {
    /// The record with which the change begins; `None` if it is done, or under way already.
    pub(super) fn begin_change(
        &self,
        cx: &Context,
        order: &MemberOrder,
    ) -> Result<Option<GroupRecord>, MemberRefused> {
        use MemberRefused::{
            Answers, Full, Holds, IsMember, Leads, NoId, NoMajority, NoPlace, SameAddress, Short,
            Small, Surplus, UnderWay, Unknown, Used,
        };
        let (me, record) = (cx.config.me, &cx.group.record);
        let members = cx.group.core.status().members;
        let Members { voters, .. } = members;
        let size = usize::from(record.size);
        if cx.is_pair() || size == 1 {
            return Err(Small(size));
        }
        let change = order.change();
        let is_at = |id: ReplicaId| record.addresses.get(&id) == order.address();
        let is_new_there = change.add.is_none_or(is_at);
        if record.change == Some(change) && is_new_there {
            return Ok(None);
        }
        let added = change.add.is_none_or(|id| voters.contains(id));
        let removed = change.remove.is_none_or(|id| record.left.contains(id));
        if added && removed && is_new_there {
            return Ok(None);
        }
        if let Some(running) = record.change {
            let ends = (change.add.is_none() && change.remove == running.add)
                .then_some(running.add)
                .flatten();
            match ends {
                Some(new) if self.counts(cx).contains(new) => return Err(Holds(new)),
                Some(new) => return Ok(Some(without_newcomer(record, members, new))),
                None => {}
            }
            let how = running.add.map_or(String::new(), |new| {
                format!(", or end it with `plover member remove {}`", new.0)
            });
            return Err(UnderWay(running.to_string(), how));
        }
        let answer = |id: &ReplicaId| *id == me || cx.peers.answers(*id);
        if let Some(old) = change.remove {
            if !voters.contains(old) {
                return Err(Unknown(old, voters));
            }
        }
        if let (Some(new), Some(address)) = (change.add, order.address()) {
            let free = free_id(record, members);
            let at = |id: ReplicaId| record.addresses.get(&id).cloned().unwrap_or_default();
            if members.all().contains(new) {
                return Err(IsMember(new, at(new), free));
            }
            if record.left.contains(new) {
                return Err(Used(new, free));
            }
            if new.0 > 15 {
                return Err(NoId(new, free));
            }
            // A new host may have the address of the dead one that it replaces.
            let is_gone = |id: ReplicaId| change.remove == Some(id) && cx.peers.dead().contains(id);
            let other = members.all().iter().find(|id| at(*id) == *address);
            if let Some(other) = other.filter(|id| !is_gone(*id)) {
                return Err(SameAddress(other, address.clone()));
            }
        }
        let is_surplus = voters.len() > size;
        match order {
            MemberOrder::Add { .. } if voters.len() >= size => return Err(Full(voters.len())),
            MemberOrder::Replace { .. } if voters.len() < size => return Err(Short),
            MemberOrder::Replace { .. } if is_surplus => return Err(Surplus(voters.len())),
            MemberOrder::Replace { old, .. }
                if voters.len() == VOTERS_MAX && !cx.peers.dead().contains(*old) =>
            {
                return Err(NoPlace(*old, VOTERS_MAX));
            }
            MemberOrder::Remove { id } if *id == me => return Err(Leads(me)),
            MemberOrder::Remove { id }
                if (!is_surplus && !cx.peers.dead().contains(*id))
                    || self.counts(cx).contains(*id) =>
            {
                return Err(Answers(*id));
            }
            _ => {}
        }
        let mut first = members;
        let mut next = record.clone();
        match order {
            MemberOrder::Add { id, address }
            | MemberOrder::Replace {
                new: id, address, ..
            } => {
                first.learners.insert(*id);
                next.addresses.insert(*id, address.clone());
                next.change = Some(change);
            }
            MemberOrder::Remove { id } => first.voters.remove(*id),
        }
        let silent = first.voters.iter().filter(|id| !answer(id));
        let silent = ReplicaSet::of(silent);
        let (of, needed) = (first.voters.len(), first.quorum());
        if of - silent.len() < needed {
            return Err(NoMajority { needed, of, silent });
        }
        Ok(Some(next.with(members, first)))
    }
}

/// The record with which a change ends that has not come to its end: without the replica that it would have added.
fn without_newcomer(record: &GroupRecord, members: Members, new: ReplicaId) -> GroupRecord {
    let mut without = members;
    without.voters.remove(new);
    without.learners.remove(new);
    let mut next = record.with(members, without);
    next.change = None;
    next
}

/// An id that no host has had, in words.
fn free_id(record: &GroupRecord, members: Members) -> String {
    let used = ReplicaSet(record.left.0 | members.all().0);
    let free = (0..16).map(ReplicaId).find(|id| !used.contains(*id));
    free.map_or(
        "none: all 16 are used up, so shut the guest down and begin a new group with its disks"
            .into(),
        |id| id.0.to_string(),
    )
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.add, self.remove) {
            (Some(new), Some(old)) => {
                write!(f, "replica {} takes the place of replica {}", new.0, old.0)
            }
            (Some(new), None) => write!(f, "replica {} joins", new.0),
            (None, Some(old)) => write!(f, "replica {} leaves", old.0),
            (None, None) => f.write_str("nothing"),
        }
    }
}

impl Replica {
    /// Why this leader would not carry the order out; `None` if it would.
    pub fn why_not_change_members(&self, order: &MemberOrder) -> Option<MemberRefused> {
        match &self.phase {
            Phase::Leader(leader) => leader.begin_change(&self.cx, order).err(),
            _ => Some(MemberRefused::NotLeading(self.cx.config.me)),
        }
    }

    /// An operator changes the members.
    pub(crate) fn on_member_order(&mut self, order: MemberOrder) {
        let Some((leader, cx)) = self.leading() else {
            return;
        };
        match leader.begin_change(cx, &order) {
            Ok(_) => leader.ordered = Some(order),
            Err(refused) => cx.note(Note::MembersRefused {
                why: refused.to_string(),
            }),
        }
    }
}
