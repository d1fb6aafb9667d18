//! A log that is not stored in time. Commits wait for all that are in sync and for a majority, so a disk that hangs under
//! one of them would keep the clients waiting for as long.
//!
//! | entries wait for | then |
//! |---|---|
//! | the secondary, which answers and acknowledges none of them | it is lost like one that makes no progress in a sync |
//! | this leader's own disk | it hands over, if another replica holds the guest |
//! | a majority | nothing here: the voters that do not answer are known as such |

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
}

/// What a leader's log waits for.
#[derive(Debug, Default)]
pub(crate) struct LogWaits {
    /// The next commit.
    commit: Wait,
    /// A milestone, which waits for this leader's own disk.
    milestone: Wait,
    /// It has handed over for that disk.
    has_resigned: bool,
}

impl Leader {
    /// Looks for the one at fault where entries have waited for too long.
    pub(crate) fn watch_log(&mut self, cx: &mut Context) {
        let core = &cx.group.core;
        let status = core.status();
        let late = |since: Option<Micros>| since.is_some_and(|at| cx.now.since(at) >= patience(cx));
        let waits = &mut self.log_waits;
        let uncommitted = (status.commit < status.last.index).then_some(status.commit);
        waits.commit.goes_on(uncommitted, cx.now);
        waits.milestone.goes_on(core.unstored_milestone(), cx.now);
        let commit_is_late = late(waits.commit.since());
        let own_is_late = late(waits.milestone.since()) || late(core.unstored_since());
        waits.has_resigned &= own_is_late;
        let secondary = self.secondary(cx);
        if own_is_late {
            // One that is named in sync by an entry which waits for this disk has loaded the guest, too.
            let heir = secondary.filter(|peer| cx.peers.answers(*peer));
            if heir.is_some() && !cx.is_pair() && !self.log_waits.has_resigned {
                self.log_waits.has_resigned = true;
                cx.hand_over(OwnFault::Storage);
            }
            return;
        }
        let lags = |peer: &ReplicaId| core.matched(*peer).is_some_and(|at| at <= status.commit);
        if let Some(peer) = secondary.filter(|peer| commit_is_late && lags(peer)) {
            self.lose_peer(cx, peer, "it does not store the log");
        }
    }

    pub(super) fn log_deadline(&self, cx: &Context) -> Micros {
        let LogWaits {
            commit, milestone, ..
        } = &self.log_waits;
        let own = cx.group.core.unstored_since();
        let waits = [commit.since(), milestone.since(), own];
        let due = waits.into_iter().flatten().map(|at| at + patience(cx));
        // One that is late already is looked at again with the next event.
        due.filter(|at| *at > cx.now).min().unwrap_or(Micros::NEVER)
    }
}

#[cfg(test)]
mod tests;
