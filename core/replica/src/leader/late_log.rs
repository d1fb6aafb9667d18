//! A log that is not stored in time. With the log in memory, commits wait for the promise of all that are in sync, once for
//! each in-sync set, so a disk that hangs under one of them would keep the clients waiting for as long. With the log on disk
//! a majority is enough, and what waits for the leader's own disk takes memory.
//!
//! | entries wait for | then |
//! |---|---|
//! | nobody but the secondary | it is lost like one that makes no progress in a sync |
//! | this leader's own disk | it hands over, if another replica holds the guest and has stored what waits |
//! | a majority | nothing here: another in-sync set would wait for it as well |
//!
//! Two replicas do none of this: there, no word is given on a suspicion (docs/decisions/0018).

use super::Leader;
use super::slot::patience;
use crate::api::OwnFault;
use crate::context::Context;
use plover_types::{Index, Micros, ReplicaId};

/// An entry that is waited for, and since when.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    entry: Option<Index>,
    since: Micros,
}

impl Wait {
    fn goes_on(&mut self, entry: Option<Index>, now: Micros) {
        if entry != self.entry {
            *self = Self { entry, since: now };
        }
    }

    fn since(&self) -> Option<Micros> {
        self.entry.map(|_| self.since)
    }

    fn begin_anew(&mut self, now: Micros) {
        self.since = now;
    }
}

/// The waits of a leader's log.
#[derive(Debug, Default)]
pub(crate) struct LogWaits {
    /// The next commit, for the secondary alone.
    commit: Wait,
    /// A milestone, which waits for this leader's own disk.
    milestone: Wait,
    /// Since when a replica that may lead has stored what waits for that disk. A disk that is slow takes an entry now and
    /// then, and the other one stays ahead.
    ahead_since: Option<Micros>,
    /// It has handed over for that disk.
    has_resigned: bool,
    /// This process stood still until then, so nobody else was late before.
    awake_since: Micros,
}

impl LogWaits {
    /// This process stood still for a while.
    pub(crate) fn begin_anew(&mut self, now: Micros) {
        self.awake_since = now;
        self.commit.begin_anew(now);
        self.milestone.begin_anew(now);
        self.ahead_since = None;
    }

    /// The oldest entry that this leader's own disk has not stored, and since when it is waited for.
    fn own(&self, cx: &Context) -> Option<(Index, Micros)> {
        let entry = cx.group.core.unstored();
        let entry = entry.map(|(entry, since)| (entry, since.max(self.awake_since)));
        let Wait {
            entry: milestone,
            since,
        } = self.milestone;
        let milestone = milestone.map(|milestone| (milestone, since));
        entry.into_iter().chain(milestone).min_by_key(|it| it.1)
    }
}

/// How long the next leader has to have stored what this one's disk has not.
fn ahead_for(cx: &Context) -> Micros {
    Micros(patience(cx).0 / 2)
}

impl Leader {
    /// Looks for the one at fault where entries have waited for too long.
    pub(crate) fn watch_log(&mut self, cx: &mut Context) {
        let core = &cx.group.core;
        let secondary = self.secondary(cx);
        let commit = core.status().commit;
        let waits_for = |peer: &ReplicaId| core.commits_wait_for(*peer);
        let waits = &mut self.log_waits;
        let uncommitted = secondary.filter(waits_for).map(|_| commit);
        waits.commit.goes_on(uncommitted, cx.now);
        waits.milestone.goes_on(core.unstored_milestone(), cx.now);
        let own = waits.own(cx);
        let may_lead = |peer: &ReplicaId, entry| {
            cx.peers.answers(*peer)
                && cx.peers.reaches_clients(*peer)
                && core.matched(*peer).is_some_and(|at| at >= entry)
        };
        let is_ahead =
            own.is_some_and(|(entry, _)| secondary.is_some_and(|it| may_lead(&it, entry)));
        waits.ahead_since = is_ahead.then(|| waits.ahead_since.unwrap_or(cx.now));
        let is_over = |since: Micros, span: Micros| cx.now.since(since) >= span;
        let own_is_late = own.is_some_and(|(_, since)| is_over(since, patience(cx)));
        waits.has_resigned &= own_is_late;
        // A disk that both share comes back for both, and for one of them first.
        let heir_is_ahead = waits
            .ahead_since
            .is_some_and(|at| is_over(at, ahead_for(cx)));
        let is_blamed = waits
            .commit
            .since()
            .is_some_and(|at| is_over(at, patience(cx)));
        if own_is_late {
            if heir_is_ahead && !cx.is_pair() && !waits.has_resigned {
                waits.has_resigned = true;
                cx.storage_is_late = true;
                cx.hand_over(OwnFault::Storage);
            }
        } else if let Some(peer) = secondary.filter(|_| is_blamed) {
            cx.peers.refused(peer, cx.now);
            self.lose_peer(cx, peer, "it does not store the log");
        }
    }

    pub(super) fn log_deadline(&self, cx: &Context) -> Micros {
        let waits = &self.log_waits;
        let own = waits.own(cx).map(|(_, since)| since);
        let due = own.into_iter().chain(waits.commit.since());
        let due = due.map(|since| since + patience(cx));
        let ahead = waits.ahead_since.map(|since| since + ahead_for(cx));
        // One that is late already is looked at again with the next event.
        let due = due.chain(ahead).filter(|at| *at > cx.now);
        due.min().unwrap_or(Micros::NEVER)
    }
}

#[cfg(test)]
mod tests;
