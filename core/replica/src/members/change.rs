//! The steps of a change, and what each waits for.

use super::record::{Change, GroupRecord};
use crate::api::Note;
use crate::canary::canary;
use crate::context::Context;
use crate::leader::Leader;
use crate::phase::Phase;
use crate::replica::Replica;
use apus::{EntryKind, Members, MembersError, ProposeError};
use plover_types::{ReplicaId, ReplicaSet};

/// A learner may vote when it lacks at most this many entries: a busy leader sends them in a fraction of a round trip, so
/// that the group hardly waits.
const CAUGHT_UP: u64 = 256;

/// The event that a change under way waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeStep {
    /// The new host has not answered yet.
    Reach(ReplicaId),
    /// The new host is sent the log.
    CatchUp {
        /// Its replica.
        new: ReplicaId,
        /// How many entries it lacks.
        behind: u64,
    },
    /// The guest is copied to the new host.
    Copy(ReplicaId),
    /// This replica still has a role: another one is to take its place.
    Roles(ReplicaId),
    /// The next entry is on its way into the log.
    Commit,
}

/// The state that decides the next step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    pub me: ReplicaId,
    /// The replicas that answer, this one included.
    pub answer: ReplicaSet,
    /// The replicas that are taken for dead. A new leader has heard nothing yet of one that lives.
    pub dead: ReplicaSet,
    /// The replicas that hold the guest, or are about to be named so.
    pub counts: ReplicaSet,
    /// How many entries the new host lacks, once it has any.
    pub behind: Option<u64>,
    /// The new host has a whole copy of the guest.
    pub is_copied: bool,
}

/// The next step of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Propose(Members),
    Wait(ChangeStep),
    Done,
}

pub(super) fn next(change: Change, members: Members, sight: &Sight) -> Next {
    let voters = members.voters;
    let old = change.remove.filter(|old| voters.contains(*old));
    let new = change.add.filter(|new| !voters.contains(*new));
    let without = |old: ReplicaId| {
        let mut next = members;
        next.voters.remove(old);
        Next::Propose(next)
    };
    let is_free = |old: &ReplicaId| *old != sight.me && !sight.counts.contains(*old);
    if let Some(new) = new {
        if !members.learners.contains(new) {
            // A new generation of the group has begun without the entry that named it.
            let mut next = members;
            next.learners.insert(new);
            return Next::Propose(next);
        }
        match sight.behind {
            _ if !sight.answer.contains(new) => return Next::Wait(ChangeStep::Reach(new)),
            None => return Next::Wait(ChangeStep::Reach(new)),
            Some(behind) if behind > CAUGHT_UP => {
                return Next::Wait(ChangeStep::CatchUp { new, behind });
            }
            Some(_) => {}
        }
        let dead = old.filter(|old| sight.dead.contains(*old));
        if let Some(dead) = dead {
            return match is_free(&dead) {
                true => without(dead),
                false => Next::Wait(ChangeStep::Roles(dead)),
            };
        }
        if old.is_some() && !sight.is_copied {
            return Next::Wait(ChangeStep::Copy(new));
        }
        let mut next = members;
        next.learners.remove(new);
        next.voters.insert(new);
        return Next::Propose(next);
    }
    let Some(old) = old else {
        return Next::Done;
    };
    if !is_free(&old) {
        return Next::Wait(ChangeStep::Roles(old));
    }
    match change.add {
        Some(new) if !sight.dead.contains(old) && !sight.is_copied => {
            Next::Wait(ChangeStep::Copy(new))
        }
        _ => without(old),
    }
}

impl Leader {
    /// The replicas that are in sync, or named so by an entry on its way, or join.
    pub(super) fn counts(&self, cx: &Context) -> ReplicaSet {
        let mut counts = cx.group.core.status().in_sync;
        counts.0 |= cx.group.in_sync.0;
        counts.0 |= self.proposed.unwrap_or_default().0;
        if let Some(join) = &self.join {
            counts.insert(join.peer);
        }
        counts
    }

    fn sight(&self, cx: &Context, change: Change) -> Sight {
        let me = cx.config.me;
        let members = cx.group.core.status().members.all();
        let answer = members
            .iter()
            .filter(|id| *id == me || cx.peers.answers(*id));
        let last = cx.group.core.status().last.index;
        let matched = change.add.and_then(|new| cx.group.core.matched(new));
        let matched = matched.filter(|index| index.0 > 0);
        let secondary = self.secondary(cx).filter(|_| self.is_protected(cx));
        let is_copied = change.add.is_some_and(|new| {
            let both = |peer| [me, peer].contains(&new) || self.is_copied(cx, peer, new);
            secondary.is_some_and(both)
        });
        Sight {
            me,
            answer: ReplicaSet::of(answer),
            dead: cx.peers.dead(),
            counts: self.counts(cx),
            behind: matched.map(|index| last.0.saturating_sub(index.0)),
            is_copied: is_copied || canary!(cx, SwapBeforeCopy),
        }
    }

    /// Goes on with a change of the members.
    pub(crate) fn tick_members(&mut self, cx: &mut Context) {
        let order = self.ordered.take();
        let record = match &order {
            Some(order) => self.begin_change(cx, order),
            None => Ok(self.next_record(cx)),
        };
        let why = match record {
            Ok(None) => return,
            Ok(Some(record)) => {
                let kind = EntryKind::Members(record.members);
                match cx.propose(kind, record.payload()) {
                    Ok(_) => return,
                    // Soon.
                    Err(ProposeError::Members(
                        MembersError::ChangePending | MembersError::ViewTooYoung,
                    )) => {
                        self.ordered = order;
                        return;
                    }
                    Err(error) => error.to_string(),
                }
            }
            Err(refused) => refused.to_string(),
        };
        cx.note(Note::MembersRefused { why });
    }

    fn next_record(&self, cx: &Context) -> Option<GroupRecord> {
        let record = &cx.group.record;
        let change = record.change?;
        let members = cx.group.core.status().members;
        let sight = self.sight(cx, change);
        let to = match next(change, members, &sight) {
            Next::Propose(to) => to,
            Next::Wait(_) => return None,
            // A new generation of the group has begun with the last step, and without its entry.
            Next::Done => members,
        };
        let mut then = record.with(members, to);
        if next(change, to, &sight) == Next::Done {
            then.change = None;
        }
        Some(then)
    }
}

impl Replica {
    /// The event that the change under way waits for, as its leader sees it.
    pub fn change_step(&self) -> Option<ChangeStep> {
        let Phase::Leader(leader) = &self.phase else {
            return None;
        };
        let cx = &self.cx;
        let change = cx.group.record.change?;
        let members = cx.group.core.status().members;
        Some(match next(change, members, &leader.sight(cx, change)) {
            Next::Wait(step) => step,
            Next::Propose(_) | Next::Done => ChangeStep::Commit,
        })
    }
}
